"""Results and reports of models that are cut over ranks."""

import itertools
import json
import re
import unittest

from cli import MPIRUN, main, run
from pipelines import BERT, RESNET, PipelineCase


@unittest.skipIf(MPIRUN is None, "built without MPI")
class PipelineReport(PipelineCase):
    def test_the_schedule_that_was_chosen_is_told(self):
        chosen = self.result(*RESNET, "--steps", "2", "--pipeline", "2", "--schedule", "auto", ranks=2)
        self.assertIn(chosen["pipeline"]["schedule"], ["gpipe", "1f1b", "interleaved", "zb-h1"])

    def test_the_results_tell_where_the_time_went(self):
        result = self.result(*RESNET, "--kfac", "--steps", "13", "--pipeline", "2", ranks=4)
        told = result["pipeline"]
        self.assertEqual(
            (told["copies"], told["micro_batches"], told["cycle_steps"]), (2, 4, told["filled"]["cycle_steps"])
        )
        self.assertEqual([rank["rank"] for rank in told["by_rank"]], [0, 2])  # of rank 0's copy
        for rank in told["by_rank"]:
            self.assertAlmostEqual(rank["busy_seconds"], rank["forward_seconds"] + rank["backward_seconds"])
            self.assertAlmostEqual(rank["busy_seconds"] + rank["bubble_seconds"], told["pass_seconds"])
            self.assertLess(rank["wait_seconds"], rank["bubble_seconds"])
            self.assertLess(rank["kfac_seconds"], rank["bubble_seconds"])
            self.assertEqual(rank["age_steps_max"], 2)  # --staleness
            self.assertTrue(1 <= rank["refresh_steps_mean"] <= 3)
            self.assertGreater(rank["update_seconds"], 0)
            self.assertTrue(0 < rank["held_pair_bytes"] < rank["peak_bytes"])
        mean = lambda key: sum(rank[key] for rank in told["by_rank"]) / 2  # noqa: E731
        seconds = told["seconds"]
        self.assertEqual(
            set(seconds),
            {"forward", "backward", "statistics", "average", "renew", "share", "exchange", "update", "wait"},
        )
        for kind in ("forward", "backward", "update", "wait"):
            self.assertAlmostEqual(seconds[kind], mean(f"{kind}_seconds"))
        self.assertTrue(all(value > 0 for value in seconds.values()), seconds)  # shares: each layer has two ranks
        self.assertAlmostEqual(
            told["filled_seconds"], sum(seconds[kind] for kind in ("statistics", "average", "renew", "share"))
        )
        self.assertAlmostEqual(told["bubble_seconds"], mean("bubble_seconds"))
        self.assertAlmostEqual(
            told["utilization"], 1 - (told["bubble_seconds"] - told["filled_seconds"]) / told["pass_seconds"]
        )
        self.assertAlmostEqual(
            told["exceeded_seconds"], told["filled"]["step_seconds"] - told["filled"]["step_seconds_without"]
        )
        self.assertEqual(told["predicted"]["step_seconds"], told["filled"]["step_seconds"])
        busiest = max(rank["busy_seconds"] + rank["kfac_seconds"] for rank in told["by_rank"])
        self.assertAlmostEqual(told["bound_seconds"], busiest + min(rank["update_seconds"] for rank in told["by_rank"]))
        self.assertLess(told["bound_seconds"], sum(result["step_seconds"]) / len(result["step_seconds"]))
        there, back = told["channels"]
        self.assertEqual([there[key] for key in ("from", "to", "from_rank", "to_rank")], [0, 1, 0, 2])
        self.assertEqual([back[key] for key in ("from", "to", "from_rank", "to_rank")], [1, 0, 2, 0])
        self.assertEqual(there["bytes_per_step"], back["bytes_per_step"])
        self.assertEqual(there["bytes_per_step"] % (4 * 2 * 4), 0)  # micro-batches, cases, float32
        self.assertGreater(there["bytes_per_step"], 0)
        self.assertTrue(0 <= there["exposed_seconds"] <= told["pass_seconds"])

    def test_without_work_in_bubbles_no_plan_is_told(self):
        told = self.result(*BERT, "--steps", "2", "--pipeline", "2", ranks=2)["pipeline"]
        for key in ("filled", "cycle_steps", "exceeded_seconds"):
            self.assertIsNone(told[key])
        self.assertIsNone(told["predicted"]["step_seconds"])
        self.assertEqual(told["filled_seconds"], 0)
        for rank in told["by_rank"]:
            self.assertIsNone(rank["refresh_steps_mean"])
            self.assertIsNone(rank["age_steps_max"])
            self.assertIsNone(rank["held_pair_bytes"])

    def report(self, *options, ranks):
        """The page of a run and the events of each lane of its trace: `(name, begin, end)` in µs."""
        folder = self.folder / "report"
        self.result(*options, "--report", folder, ranks=ranks)
        lanes, names = {}, {}
        for event in json.loads((folder / "trace.json").read_text())["traceEvents"]:
            if event["ph"] == "M":
                names[event["tid"]] = event["args"]["name"]
            else:
                lanes.setdefault(names[event["tid"]], []).append(
                    (event["name"], event["ts"], event["ts"] + event["dur"])
                )
        return (folder / "report.html").read_text(), lanes

    def assert_in_order(self, lanes, suffix):
        """Expects that stages on two ranks never begin before what they read is done, by one clock."""
        spans = {
            name: (begin, end) for lane in (f"rank 0{suffix}", f"rank 1{suffix}") for name, begin, end in lanes[lane]
        }
        for i in range(4):
            ends = [
                spans[name][1]
                for name in (
                    f"forward of stage 0, micro-batch {i}",
                    f"forward of stage 1, micro-batch {i}",
                    f"backward of stage 1, micro-batch {i}",
                )
            ]
            begins = [
                spans[name][0]
                for name in (
                    f"forward of stage 1, micro-batch {i}",
                    f"backward of stage 1, micro-batch {i}",
                    f"backward of stage 0, micro-batch {i}",
                )
            ]
            for end, begin in zip(ends, begins, strict=True):
                self.assertLessEqual(end, begin + 0.1)

    def test_the_report_draws_a_lane_a_rank_measured_above_planned(self):
        page, lanes = self.report(*RESNET, "--kfac", "--steps", "13", "--pipeline", "2", ranks=2)
        self.assertIn("1f1b, 2 ranks, 4 micro-batches, step 13, filled 0", page)
        self.assertEqual(len(re.findall('<g class="measured">', page)), 2)
        self.assertEqual(len(re.findall('<g class="planned">', page)), 2)
        for kind in ("forward", "backward", "statistics", "average", "renew", "exchange", "update"):
            self.assertIn(f'<i class="k-{kind}"></i>', page)
        for suffix in ("", ", planned"):
            self.assert_in_order(lanes, suffix)
            for rank in (0, 1):
                lane = sorted(lanes[f"rank {rank}{suffix}"], key=lambda event: event[1:])
                for (_, _, end), (_, begin, _) in itertools.pairwise(lane):
                    self.assertLessEqual(end, begin + 0.1)  # a rank does one thing at a time
        for rank in (0, 1):  # the rank did what was planned, in that order
            measured = [name for name, _, _ in lanes[f"rank {rank}"] if "exchange" not in name]
            self.assertEqual(measured, [name for name, _, _ in lanes[f"rank {rank}, planned"]])
            self.assertTrue(any("K-FAC statistics of stage" in name for name in measured))
        first = min(begin for _, begin, _ in lanes["rank 0"])
        # The operators of that step are on the same axis.
        self.assertLess(first, max(end for _, _, end in lanes["compute"]))

    def test_the_report_draws_the_replay_where_no_wait_is_filled(self):
        page, lanes = self.report(*RESNET, "--steps", "2", "--pipeline", "2", ranks=2)
        self.assertIn("1f1b, 2 ranks, 4 micro-batches, step 2, plain", page)
        self.assertIn("a replay of the stages' seconds", page)
        for suffix in ("", ", planned"):
            self.assert_in_order(lanes, suffix)
        self.assertEqual(
            min(begin for _, begin, _ in lanes["rank 0"]), min(begin for _, begin, _ in lanes["rank 0, planned"])
        )

    def test_a_run_to_compare_with_refreshes_in_the_same_steps(self):
        options = [*RESNET, "--kfac", "--pipeline", "2", "--steps", "8"]
        for flags in ([], ["--staleness", "1"], ["--inverse-interval", "auto"]):
            result = self.result(*options, *flags, "--compare", "unlimited", ranks=2)
            unlimited = result["compared"]["unlimited"]
            self.assertEqual(unlimited["losses"], result["losses"][:5])
            self.assertEqual(unlimited["step_kinds"], result["step_kinds"][:5])
            for key in ("plan", "curvature_delay"):
                self.assertEqual(unlimited["kfac"][key], result["kfac"][key])
        first_order = self.result(*options, "--inverse-interval", "auto", "--compare", "adam", ranks=2)
        self.assertIsNone(first_order["compared"]["adam"]["kfac"])

    def test_the_results_tell_of_all_stages_of_kfac(self):
        told = (
            "layers",
            "separable_layers",
            "block_layers",
            "left_alone",
            "state_bytes",
            "factor_updates",
            "decompositions",
            "plan",
        )
        options = [
            *RESNET,
            *"--kfac --conv-factors separable --grad-worker-frac 1 --refresh at-once --steps 4".split(),
        ]
        whole = self.result(*options)["kfac"]
        self.assertGreater(whole["separable_layers"], 0)
        for flags in ([], ["--schedule", "chimera"]):
            cut = self.result(*options, "--pipeline", "2", *flags, ranks=2)["kfac"]
            self.assertEqual({key: cut[key] for key in told}, {key: whole[key] for key in told})
        late = self.result(*RESNET, "--kfac", "--pipeline", "2", "--steps", "2", ranks=2)["kfac"]
        self.assertEqual(len(late["plan"]), late["layers"])
        self.assertEqual(late["layers"], whole["layers"])
        said = run("train", *RESNET, "--kfac", "--pipeline", "2", "--steps", "1", ranks=2).stdout
        self.assertIn(f"K-FAC preconditions {whole['layers']} layers and leaves {whole['left_alone']} modules", said)


if __name__ == "__main__":
    main()
