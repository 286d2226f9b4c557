"""Models that are cut over ranks, under mpirun."""

import itertools
import json
import os
import re
import shutil
import unittest

from cli import MPIRUN, Case, main, run

os.environ["OMP_NUM_THREADS"] = "1"  # a sum's last bits depend on the number of threads
RESNET = (
    "--model resnet50 --edge 40 --filters 4 --classes 5 --batch 2 --cases 40 --accumulate 4 --optimizer sgd --lr 0.05"
).split()
SMALL_BERT = ["--model", "bert-base", "--data", "synthetic:24", "--layers", "3", "--hidden", "64"]
BERT = [*SMALL_BERT, "--batch", "2", "--cases", "32", "--accumulate", "4"]


def tensors_of(file):
    """The bytes of the tensors in a file of the safetensors format, by name."""
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    return {
        name: content[8 + size + entry["data_offsets"][0] : 8 + size + entry["data_offsets"][1]]
        for name, entry in header.items()
        if name != "__metadata__"
    }


@unittest.skipIf(MPIRUN is None, "built without MPI")
class Pipeline(Case):
    def assert_same(self, one, other):
        self.assertEqual(one["losses"], other["losses"])
        self.assertEqual(one["weights_sha256"], other["weights_sha256"])

    def test_a_cut_model_has_the_bits_of_one_rank(self):
        options = [*RESNET, "--kfac", "--refresh", "at-once", "--steps", "4"]
        whole = self.result(*options)
        for flags in (
            ["--pipeline", "2"],
            ["--pipeline", "2", "--schedule", "gpipe", "--cut", "3,15"],
            ["--pipeline", "2", "--schedule", "zb-h1"],
            ["--pipeline", "2", "--schedule", "auto"],
            ["--pipeline", "2", "--schedule", "gpipe", "--recompute"],
            ["--pipeline", "2", "--schedule", "interleaved"],
        ):
            cut = self.result(*options, *flags, ranks=2)
            self.assert_same(cut, whole)
            self.assertEqual(cut["parameters"], whole["parameters"])
            self.assertEqual(cut["metrics"], whole["metrics"])
        self.assertEqual(cut["pipeline"]["stages"], 4)
        self.assertEqual(sum(cut["pipeline"]["cut"]), len(cut["pipeline"]["parts"]))
        self.assertTrue(0 < cut["pipeline"]["utilization"] <= 1)
        self.assertIsNone(whole["pipeline"])

    def test_no_cut_changes_a_bit(self):
        tokens = (
            "--model bert-base --data synthetic:16 --layers 2 --hidden 64 --batch 2 --cases 32 "
            "--accumulate 2 --steps 3 --pipeline 2"
        ).split()
        mlp = (
            "--model mlp --data synthetic:16 --layers 6 --hidden 32 --cases 64 --batch 2 "
            "--accumulate 4 --kfac --kfac-strategy dp --steps 14 --pipeline 2"
        ).split()
        # A stage of the embedding alone has no matrix for muon.
        muon = [*tokens, "--optimizer", "muon", "--lr", "0.02", "--rest-lr", "0.0001"]
        # A stage of the head alone has fewer positions than another one.
        sampled = [*tokens, "--kfac", "--refresh", "at-once", "--factor-samples", "20"]
        for options, cuts, ranks in ((muon, ("2,2", "1,3"), 2), (sampled, ("2,2", "3,1"), 2), (mlp, ("3,4", "4,3"), 4)):
            one, other = (self.result(*options, "--cut", cut, ranks=ranks) for cut in cuts)
            self.assert_same(one, other)

    def test_the_schedule_that_was_chosen_is_told(self):
        chosen = self.result(*RESNET, "--steps", "2", "--pipeline", "2", "--schedule", "auto", ranks=2)
        self.assertIn(chosen["pipeline"]["schedule"], ["gpipe", "1f1b", "interleaved", "zb-h1"])

    def test_a_budget_chooses_the_schedule(self):
        options = [*BERT, "--steps", "3", "--pipeline", "2"]
        chosen = self.result(*options, "--schedule", "auto", "--budget", "40MiB", ranks=2)
        self.assertLessEqual(chosen["peak_bytes"], 40 << 20)
        cut = ",".join(map(str, chosen["pipeline"]["cut"]))
        free = self.result(*options, "--schedule", chosen["pipeline"]["schedule"], "--cut", cut, ranks=2)
        self.assertEqual(free["losses"], chosen["losses"])

    def test_stages_that_run_forward_again_keep_less(self):
        options = [
            *SMALL_BERT,
            *"--batch 8 --cases 64 --accumulate 8 --pipeline 2 --schedule gpipe --steps 2".split(),
        ]
        kept = self.result(*options, ranks=2)
        again = self.result(*options, "--recompute", ranks=2)
        self.assert_same(again, kept)
        self.assertLess(again["peak_bytes"], 0.8 * kept["peak_bytes"])

    def test_chimera_sums_in_another_order(self):
        options = [*BERT, "--kfac", "--inverse-interval", "3", "--steps", "16", "--pipeline", "2"]
        one = self.result(*options, ranks=2)
        two = self.result(*options, "--schedule", "chimera", ranks=2)
        self.assertTrue(two["step_kinds"][-1].startswith("filled"))
        self.assertNotEqual(two["weights_sha256"], one["weights_sha256"])
        for loss, other in zip(one["losses"], two["losses"], strict=True):
            self.assertAlmostEqual(loss, other, delta=1e-5 * loss)
        self.assert_same(self.result(*options, "--schedule", "chimera", "--kfac-work", "after", ranks=2), two)
        self.assertEqual(two["parameters"], one["parameters"])
        self.assertEqual([rank["stages"] for rank in two["pipeline"]["by_rank"]], [[0, 1], [0, 1]])

    def test_dropout_depends_on_no_cut(self):
        two = self.result(*BERT, "--steps", "3", "--pipeline", "2", ranks=2)
        other = self.result(*BERT, "--steps", "3", "--pipeline", "2", "--cut", "1,4", "--schedule", "gpipe", ranks=2)
        self.assert_same(other, two)

    def test_gradients_are_clipped_by_the_norm_of_the_whole_model(self):
        options = [*RESNET, "--clip-norm", "0.5", "--steps", "3"]
        whole = self.result(*options)
        self.assertNotEqual(whole["losses"], self.result(*RESNET, "--steps", "3")["losses"])
        self.assert_same(self.result(*options, "--pipeline", "2", ranks=2), whole)
        tied = [*BERT, "--optimizer", "lamb", "--lr", "0.01", "--clip-norm", "0.5", "--steps", "3", "--pipeline", "2"]
        self.assert_same(
            self.result(*tied, "--schedule", "zb-h1", "--cut", "1,4", ranks=2), self.result(*tied, ranks=2)
        )

    def test_copies_beside_are_data_parallel(self):
        options = [*RESNET, "--kfac", "--refresh", "at-once", "--steps", "3"]
        self.assert_same(self.result(*options, "--pipeline", "2", ranks=4), self.result(*options, ranks=2))

    def test_no_bit_depends_on_when_kfac_works(self):
        options = [*RESNET, "--kfac", "--steps", "13", "--pipeline", "2"]
        for refresh in ("rolling", "together"):
            after = self.result(*options, "--refresh", refresh, "--kfac-work", "after", ranks=2)
            self.assertIsNone(after["pipeline"]["filled"])
            for flags in (
                [],
                ["--schedule", "interleaved"],
                ["--schedule", "zb-h1"],
                ["--schedule", "gpipe", "--cut", "9,9"],
            ):
                bubbles = self.result(*options, "--refresh", refresh, *flags, ranks=2)
                self.assert_same(bubbles, after)
                self.assertEqual(bubbles["step_kinds"][-1], "filled 0")
                self.assertGreater(bubbles["pipeline"]["filled"]["pieces"], 0)
                self.assertTrue(all(rank["kfac_seconds"] > 0 for rank in bubbles["pipeline"]["by_rank"]))

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

    def test_an_interval_that_was_chosen_is_one_that_may_be_given(self):
        # The staleness is less than the first interval, and shortened for others.
        options = [*RESNET, "--kfac", "--pipeline", "2", "--staleness", "4"]
        kept = ["--checkpoint", self.folder / "checkpoint"]
        said = run(
            "train",
            *options,
            *kept,
            "--inverse-interval",
            "auto",
            "--steps",
            "20",
            "--json",
            self.folder / "chosen.json",
            ranks=2,
        )
        self.assertEqual(said.returncode, 0, said.stderr)
        flags = re.search(r"layers are renewed every (\d+) steps \((--factor-interval[^)]*)\): ", said.stdout)
        self.assertTrue(flags, said.stdout)
        self.assertTrue(2 <= int(flags[1]) <= 16)
        chosen = json.loads((self.folder / "chosen.json").read_text())
        self.assertEqual(chosen["pipeline"]["cycle_steps"] or int(flags[1]), int(flags[1]))
        given = self.result(*options, *flags[2].split(), "--steps", "23", ranks=2)
        self.assertEqual(given["losses"][:20], chosen["losses"])
        # It tries nothing.
        resumed = self.result(*options, *kept, "--inverse-interval", "auto", "--steps", "23", "--resume", ranks=2)
        self.assertEqual(resumed["losses"], given["losses"][20:])
        self.assertEqual(resumed["weights_sha256"], given["weights_sha256"])

    def test_without_work_in_waits_no_plan_is_told(self):
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

    def test_a_budget_holds_and_changes_no_bit(self):
        for method in ("eigen", "pi"):  # the largest factors are of side 288, and renewed in pieces
            options = [*RESNET, "--kfac", "--kfac-method", method, "--steps", "12", "--pipeline", "2"]
            free = self.result(*options, ranks=2)
            tight = self.result(*options, "--budget", "60%", ranks=2)
            self.assert_same(tight, free)
            self.assertLessEqual(tight["peak_bytes"], tight["budget_bytes"])
            self.assertLess(tight["peak_bytes"], free["peak_bytes"])
            self.assert_same(self.result(*options, "--kfac-work", "after", ranks=2), free)

    def test_the_smallest_feasible_budget_holds_for_late_refreshes(self):
        for small, work in (
            (["--hidden", "48", "--edge", "12", "--cases", "128", "--batch", "8"], "bubbles"),
            (["--hidden", "400", "--edge", "28", "--cases", "512", "--batch", "16"], "bubbles"),
            (["--hidden", "400", "--edge", "28", "--cases", "512", "--batch", "16"], "after"),
        ):
            options = [
                "--model",
                "autoencoder",
                *small,
                *"--layers 5 --accumulate 4 --deterministic --kfac --kfac-work".split(),
                work,
                *"--pipeline 2 --cut 6,6 --steps 14".split(),
            ]
            refused = run("train", *options, "--budget", "1KiB", ranks=2)
            floor = int(re.search(r"smallest feasible budget is (\d+) bytes", refused.stderr)[1])
            tight = self.result(*options, "--budget", str(floor), ranks=2)
            self.assertLessEqual(tight["peak_bytes"], floor)
            self.assert_same(tight, self.result(*options, ranks=2))

    def test_another_cut_goes_on_from_a_checkpoint(self):
        options = [*RESNET, "--kfac", "--pipeline", "2"]
        whole = self.result(*options, "--steps", "8", ranks=2)
        folder = self.folder / "checkpoint"
        self.result(*options, "--steps", "5", "--checkpoint", folder, ranks=2)
        other = self.folder / "other"
        shutil.copytree(folder, other)
        self.assert_weights(self.result(*options, "--steps", "8", "--checkpoint", folder, "--resume", ranks=2), whole)
        self.assert_weights(
            self.result(
                *options,
                *"--steps 8 --cut 5,13 --kfac-work after --checkpoint".split(),
                other,
                "--resume",
                ranks=2,
            ),
            whole,
        )

    def test_sampled_factors_depend_on_no_cut_and_no_checkpoint(self):
        options = [
            *BERT,
            *"--kfac --factor-samples 8 --factor-interval 6 --inverse-interval 6 --pipeline 2".split(),
        ]
        whole = self.result(*options, "--cut", "2,3", "--steps", "14", ranks=2)
        other = self.result(*options, "--cut", "4,1", "--steps", "14", ranks=2)
        self.assert_same(other, whole)
        folder = self.folder / "checkpoint"
        self.result(*options, "--cut", "4,1", "--steps", "9", "--checkpoint", folder, ranks=2)  # in mid-cycle
        resumed = self.result(*options, "--cut", "2,3", "--steps", "14", "--checkpoint", folder, "--resume", ranks=2)
        self.assert_weights(resumed, whole, step=9)
        for key in ("factor_updates", "decompositions", "dropped_factors", "failed_decompositions"):
            self.assertEqual(other["kfac"][key], whole["kfac"][key])
            self.assertEqual(resumed["kfac"][key], whole["kfac"][key])

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

    def test_kfac_goes_on_with_other_refreshes_than_the_checkpoint(self):
        mlp = ("--model mlp --layers 6 --hidden 32 --cases 64 --batch 4 --accumulate 4 --deterministic --kfac").split()
        cut, whole = ["--pipeline", "2"], []
        late = "what was renewed for later steps is used at once"
        for saved, other, said in (
            (whole, cut, late),
            (cut, whole, late),
            ([*cut, "--refresh", "at-once"], cut, late),
            (cut, [*cut, "--refresh", "at-once"], late),
            (cut, [*cut, "--refresh", "together"], late),
            (cut, [*cut, "--inverse-interval", "6"], late),
            (cut, [*cut, "--staleness", "1"], late),
            ([*cut, "--staleness", "1"], cut, late),
            (whole, [*cut, "--refresh", "at-once"], None),
            (cut, [*cut, "--kfac-work", "after"], None),
        ):
            ranks = lambda flags: 2 if flags else 0  # noqa: E731
            folder = self.folder / f"checkpoint{len(list(self.folder.iterdir()))}"
            first = self.result(*mlp, *saved, "--steps", "7", "--checkpoint", folder, ranks=ranks(saved))
            file = self.folder / "resumed.json"
            done = run(
                "train",
                *mlp,
                *other,
                "--steps",
                "13",
                "--checkpoint",
                folder,
                "--resume",
                "--json",
                file,
                ranks=ranks(other),
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(said is not None, late in done.stdout, done.stdout)
            resumed = json.loads(file.read_text())
            self.assertEqual((resumed["resumed_from_step"], len(resumed["losses"])), (7, 6))
            self.assertLess(resumed["losses"][-1], first["losses"][0])

    def test_inverses_for_later_steps_are_not_lost(self):
        mlp = ("--model mlp --layers 6 --hidden 32 --cases 64 --batch 4 --accumulate 4 --deterministic --kfac").split()
        folder = self.folder / "checkpoint"
        self.result(*mlp, "--pipeline", "2", "--steps", "7", "--checkpoint", folder, ranks=2)
        saved = tensors_of(folder / "checkpoint.safetensors")
        renewed = {name.replace("next_", "") for name in saved if "/next_" in name}
        self.assertTrue(renewed)
        seldom = ["--factor-interval", "100", "--inverse-interval", "100"]  # renews nothing in the one step to go
        self.result(*mlp, *seldom, "--steps", "8", "--checkpoint", folder, "--resume")
        later = tensors_of(folder / "checkpoint.safetensors")
        inverses = [name for name in later if "/vectors" in name or "/values" in name]
        for name in inverses:
            self.assertEqual(later[name], saved[name.replace("/v", "/next_v") if name in renewed else name], name)

    def test_a_plan_of_a_user_goes_on_as_it_is(self):
        mlp = "--model mlp --layers 6 --hidden 32 --cases 64 --batch 4 --accumulate 4 --kfac".split()
        folder = self.folder / "checkpoint"
        planned = self.result(*mlp, "--kfac-time", "20%", "--steps", "3", "--checkpoint", folder)
        self.refused(
            2,
            "had a plan of curvature (--kfac-time or --kfac-plan); allowed in a pipeline with refresh at-once",
            args=["train", *mlp, "--pipeline", "2", "--steps", "5", "--checkpoint", folder, "--resume"],
            ranks=2,
        )
        resumed = self.result(*mlp, "--steps", "5", "--checkpoint", folder, "--resume")
        self.assertEqual(resumed["kfac"]["plan"], planned["kfac"]["plan"])

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

    def assert_weights(self, resumed, whole, step=5):
        self.assertEqual(resumed["resumed_from_step"], step)
        self.assertEqual(resumed["losses"], whole["losses"][step:])
        self.assertEqual(resumed["weights_sha256"], whole["weights_sha256"])

    def test_wrong_input_is_refused_by_name(self):
        def refused(*parts, args, ranks=2):
            self.refused(2, *parts, args=["train", *args], ranks=ranks)

        mlp = ["--model", "mlp", "--data", "synthetic:16", "--hidden", "32", "--layers", "2", "--batch", "4"]
        refused("cut over 3 ranks, and there are 2", args=[*mlp, "--pipeline", "3"])
        refused("cut over 2 ranks, and there is 1", args=[*mlp, "--pipeline", "2"], ranks=0)
        refused(
            "--schedule is 'zb'; allowed is gpipe, 1f1b, interleaved, zb-h1, chimera or auto",
            args=[*mlp, "--pipeline", "2", "--schedule", "zb"],
        )
        refused(
            "--refresh is 'never'; allowed is rolling, together or at-once",
            args=[*mlp, "--pipeline", "2", "--refresh", "never"],
        )
        refused(
            "--kfac-work is 'now'; allowed is bubbles or after", args=[*mlp, "--pipeline", "2", "--kfac-work", "now"]
        )
        refused(
            "the cut is 1,1; allowed: 2 numbers of 1 and more, of 3 parts together",
            args=[*mlp, "--pipeline", "2", "--cut", "1,1"],
        )
        refused(
            "the cut is 4294967297,2; allowed: 2 numbers of 1 and more, of 3 parts together",
            args=[*mlp, "--pipeline", "2", "--cut", "4294967297,2"],
        )
        refused(
            "inverse_interval is auto; allowed is a number, but with K-FAC in the waits of a pipeline",
            args=[*mlp, "--kfac", "--inverse-interval", "auto"],
        )
        refused(
            "--inverse-interval is 'often'; allowed is a number of steps, or auto",
            args=[*mlp, "--kfac", "--inverse-interval", "often"],
        )
        refused(
            "chimera takes micro-batches in units of its ranks; 2 do not divide 1",
            args=[*mlp, "--pipeline", "2", "--schedule", "chimera"],
        )
        refused("recompute is on; allowed is off without a pipeline", args=[*mlp, "--recompute"])
        refused(
            "schedule is chimera; allowed is one of the others without a pipeline", args=[*mlp, "--schedule", "chimera"]
        )
        refused("amp is fp16", args=[*mlp, "--pipeline", "2", "--amp", "fp16"])
        refused("pipeline is 0; allowed is 1 to 1024", args=[*mlp, "--pipeline", "0"])
        refused(
            "burn_in is 3; allowed is 0 with refresh rolling",
            args=[*mlp, "--pipeline", "2", "--kfac", "--burn-in", "3"],
        )
        refused(
            "--factor-interval is 2; allowed with --refresh rolling is the --inverse-interval, 4",
            args=[*mlp, "--pipeline", "2", "--kfac", "--factor-interval", "2", "--inverse-interval", "4"],
        )
        refused(
            "staleness is 3; allowed with refresh rolling is less than the inverse_interval, 3",
            args=[*mlp, "--pipeline", "2", "--kfac", "--staleness", "3"],
        )
        refused(
            "rank 0 has no layer that K-FAC preconditions", args=[*BERT, "--pipeline", "2", "--cut", "1,4", "--kfac"]
        )


if __name__ == "__main__":
    main()
