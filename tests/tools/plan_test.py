"""spillway plan: what it says of runs that it does not run, against runs, and what it says to wrong input."""

import json
import unittest
import xml.etree.ElementTree

from cli import MPIRUN, Case, main, run

MODEL = ["--model", "unet3d", "--edge", "32", "--filters", "4", "--cases", "8"]
KFAC = [*MODEL, "--kfac", "--factor-interval", "2", "--inverse-interval", "4"]
TOP = {
    "model",
    "size",
    "batch",
    "world_size",
    "levels",
    "device_profile",
    "unlimited",
    "plan",
    "smaller",
    "larger",
    "taken",
    "proposals",
    "frontier",
    "planning_seconds",
}
PLAN = {"budget_bytes", "feasible", "reason", "choices"}
CHOICE = {
    "strategy",
    "grad_worker_frac",
    "placement",
    "feasible",
    "floor_bytes",
    "floor_operator",
    "unconstrained_peak_bytes",
}
FITS = CHOICE | {"step_seconds", "peak_bytes", "host_bytes", "kinds"}
KIND = {
    "kind",
    "share",
    "step_seconds",
    "compute_seconds",
    "exposed_copy_seconds",
    "message_seconds",
    "bound_seconds",
    "peak_bytes",
    "host_bytes",
    "bytes_out",
    "bytes_in",
}


class Plan(Case):
    def planned(self, *args, code=0):
        file = self.folder / "plan.json"
        done = run("plan", *args, "--json", file)
        self.assertEqual(done.returncode, code, done.stderr)
        self.said = done.stdout
        return json.loads(file.read_text())

    def assert_columns(self):
        """Expects that the rows of each printed table of steps or choices end below its heading."""
        tables = [part.splitlines() for part in self.said.split("\n\n")]
        tables = [rows for rows in tables if rows[0].startswith(("kind of step ", "choice "))]
        self.assertTrue(tables, self.said)
        for heading, *rows in tables:
            for row in rows:
                if not row.startswith("…"):
                    self.assertEqual(len(row), len(heading), self.said)

    def test_keys(self):
        found = self.planned(
            *KFAC, "--budget", "90%", "--budgets", "95%,1%", "--largest-batch", "--device-profile", "a100"
        )
        self.assertEqual(set(found), TOP)
        self.assertEqual(set(found["plan"]), PLAN)
        (choice,) = found["plan"]["choices"]
        self.assertEqual(set(choice), FITS)
        for kind in choice["kinds"]:
            self.assertEqual(set(kind), KIND)
        self.assertEqual(
            {kind["kind"] for kind in choice["kinds"]}, {"plain", "factor", "factor+decompose", "validate"}
        )
        self.assertAlmostEqual(sum(kind["share"] for kind in choice["kinds"]), 1)
        (row,) = found["frontier"]
        self.assertEqual(row["size"], 32)
        fits, does_not = row["rows"]
        self.assertEqual(set(fits), FITS | {"budget_bytes", "budget_percent", "largest_batch"})
        self.assertEqual(set(does_not), CHOICE | {"budget_bytes", "budget_percent"})
        self.assertFalse(does_not["feasible"])
        self.assertIn("the smallest feasible budget is", self.said)

    def test_pipelines_are_weighed(self):
        model = (
            "--model bert-base --data synthetic:16 --layers 3 --hidden 64 --batch 2 "
            "--accumulate 4 --cases 32 --pipeline 2"
        ).split()
        planned = self.planned(*model, "--world", "2", "--schedule", "auto", "--device-profile", "a100")
        choices = planned["plan"]["choices"]
        self.assertEqual(
            {(choice["schedule"], choice["recompute"]) for choice in choices},
            {
                (schedule, recompute)
                for schedule in ("1f1b", "gpipe", "zb-h1", "interleaved")
                for recompute in (False, True)
            },
        )
        peaks = {(choice["schedule"], choice["recompute"]): choice["peak_bytes"] for choice in choices}
        self.assertLess(peaks["gpipe", True], peaks["gpipe", False])
        self.assertLess(peaks["1f1b", False], peaks["gpipe", False])
        waits = {
            choice["schedule"]: choice["kinds"][0]["message_seconds"] for choice in choices if not choice["recompute"]
        }
        self.assertTrue(all(seconds > 0 for seconds in waits.values()), waits)
        (four,) = self.planned(
            *model,
            *"--world 4 --kfac --schedule chimera --device-profile a100 --kfac-strategy comm_opt".split(),
        )["plan"]["choices"]
        self.assertEqual((four["schedule"], four["feasible"]), ("chimera", True))
        kfac = ["--kfac", "--kfac-strategy", "owner_reduce"]
        self.planned(*model, *"--world 4 --schedule gpipe --device-profile a100 --budget 98%".split(), *kfac)
        self.assert_columns()

    @unittest.skipIf(MPIRUN is None, "built without MPI")
    def test_needs_of_a_pipeline_are_those_of_training(self):
        model = (
            "--model bert-base --data synthetic:16 --layers 3 --hidden 64 --batch 4 "
            "--accumulate 4 --cases 32 --pipeline 2"
        ).split()
        for flags in (
            ["--schedule", "gpipe", "--cut", "2,3"],
            ["--schedule", "zb-h1", "--cut", "2,3", "--kfac", "--refresh", "at-once"],
        ):
            trained = self.result(*model, *flags, "--steps", "6", ranks=2)
            self.expect_needs(trained, self.planned(*model, *flags, "--world", "2"))
        for flags in (["--cut", "2,3"], ["--cut", "2,3", "--kfac-work", "after"]):
            trained = self.result(*model, *flags, "--kfac", "--steps", "16", ranks=2)
            planned = self.planned(*model, *flags, "--kfac", "--world", "2")
            choice = planned["plan"]["choices"][0]
            if "after" in flags:
                self.expect_needs(trained, planned)
            # A run's own times may order the work in its waits in another way.
            self.assertLess(abs(choice["peak_bytes"] - trained["peak_bytes"]), 0.05 * trained["peak_bytes"])
            named = [kind["kind"] for kind in choice["kinds"] if kind["share"] > 0]
            self.assertEqual(set(named), set(trained["step_kinds"][-3:]))  # a cycle of --inverse-interval steps

    def expect_needs(self, trained, planned, late_share=0):
        """A plan's peaks and floors are at most 5 % above those that are counted, and not below.

        `late_share` is the share of memory that messages hold which end later than planned.
        """
        choice = planned["plan"]["choices"][0]
        self.assertGreaterEqual(choice["peak_bytes"] * (1 + late_share), trained["peak_bytes"])
        self.assertLessEqual(choice["peak_bytes"], 1.05 * trained["peak_bytes"])
        return choice

    def test_needs_are_those_of_training(self):
        for args in (MODEL, KFAC):
            trained = self.result(*args, "--steps", "6", "--quiet")
            self.expect_needs(trained, self.planned(*args))
            limited = self.result(*args, "--steps", "6", "--quiet", "--budget", "90%")
            planned = self.planned(*args, "--budget", str(limited["budget_bytes"]))
            choice = self.expect_needs(limited, planned)
            self.assertGreaterEqual(choice["floor_bytes"], limited["floor_bytes"])
            self.assertLessEqual(choice["floor_bytes"], 1.05 * limited["floor_bytes"])

    @unittest.skipIf(MPIRUN is None, "needs MPI")
    def test_needs_of_ranks_are_those_of_training(self):
        for fraction in ("0.5", "1"):
            # Left alone, a run chooses its buckets by the links' rates, which it measures.
            args = [*KFAC, "--grad-worker-frac", fraction, "--gradient-bucket", "1MiB"]
            trained = self.result(*args, "--steps", "6", "--quiet", ranks=2)
            # Buckets of 1 MiB travel beside backward.
            self.expect_needs(trained, self.planned(*args, "--world", "2"), late_share=0.02)

    def test_a_budget_below_every_floor_is_told_with_the_smallest_one(self):
        found = self.planned(*MODEL, "--budget", "1MiB", "--device-profile", "v100", code=3)
        self.assertFalse(found["plan"]["feasible"])
        floor = found["plan"]["choices"][0]["floor_bytes"]
        self.planned(*MODEL, "--budget", str(floor), "--device-profile", "v100")

    def test_sizes_and_budgets_make_a_frontier(self):
        found = self.planned(
            *(
                "--model unet3d --filters 4 --edges 64,32,320 --budgets 300MiB,16GB --device-profile h200 --report"
            ).split(),
            self.folder / "out",
        )
        self.assertEqual([row["size"] for row in found["frontier"]], [32, 64, 320])
        small, large = found["frontier"][0]["rows"], found["frontier"][2]["rows"]
        self.assertTrue(all(point["feasible"] for point in small))
        self.assertEqual([point["feasible"] for point in large], [False, True])
        page = (self.folder / "out" / "plan.html").read_text()
        xml.etree.ElementTree.fromstring(page.split("\n", 1)[1])
        self.assertIn("Seconds of a step by budget", page)

    def test_choices_of_ranks_are_weighed_and_the_fastest_is_first(self):
        found = self.planned(
            *KFAC, "--world", "4", "--levels", "2x2", "--device-profile", "v100", "--kfac-strategy", "auto"
        )
        self.assert_columns()
        choices = found["plan"]["choices"]
        self.assertGreater(len(choices), 4)
        self.assertEqual({choice["strategy"] for choice in choices}, {"comm_opt", "hybrid", "owner_reduce"})
        fastest = min(choice["step_seconds"] for choice in choices)
        self.assertLessEqual(choices[0]["step_seconds"], 1.005 * fastest)
        self.assertIn("next", found["plan"]["reason"])

    def test_a_budget_that_does_not_fit_comes_with_changes_that_would(self):
        small = [*MODEL, "--edge", "64", "--device-profile", "v100"]
        floor = self.planned(*small)["plan"]["choices"][0]["floor_bytes"]
        refused = self.planned(*small, "--budget", str(floor - 1), code=3)
        fits = {change["name"] for change in refused["proposals"] if change["feasible"]}
        self.assertIn("amp", fits)
        self.assertIn("--allow amp (--amp bf16): fits", self.said)
        allowed = self.planned(*small, "--budget", str(floor - 1), "--allow", "amp")
        self.assertEqual(allowed["taken"], [{"name": "amp", "flags": "--amp bf16"}])
        same = self.planned(*small, "--budget", str(floor - 1), "--amp", "bf16")
        self.assertEqual(allowed["plan"], same["plan"])

    def test_neighboring_budgets_are_told(self):
        budget = ["--model", "unet3d", "--edge", "64", "--filters", "4", "--device-profile", "v100"]
        found = self.planned(*budget, "--budget", "90%")
        self.assertAlmostEqual(found["smaller"]["budget_bytes"] / found["plan"]["budget_bytes"], 0.75, 5)
        self.assertGreaterEqual(found["smaller"].get("step_seconds", 1e9), found["larger"]["step_seconds"])
        self.assertIn("smaller  with", self.said)
        self.assertIsNone(self.planned(*budget)["smaller"])

    def test_devices_on_one_link_share_it(self):
        budget = ["--budget", "60%", "--model", "unet3d", "--edge", "64", "--filters", "4", "--device-profile", "v100"]
        seconds = []
        for rate, devices in (("200MB/s", "2"), ("100MB/s", "1")):
            links = ["--link-out", rate, "--link-in", rate, "--devices-per-link", devices]
            seconds.append(self.planned(*budget, *links)["plan"]["choices"][0]["step_seconds"])
        self.assertAlmostEqual(*seconds)

    def test_rates_of_copies_can_be_given(self):
        budget = ["--budget", "60%", "--model", "unet3d", "--edge", "64", "--filters", "4", "--device-profile", "v100"]
        slow = self.planned(*budget, "--link-out", "100MB/s", "--link-in", "100MB/s")["plan"]["choices"][0]
        fast = self.planned(*budget, "--link-out", "75GB/s", "--link-in", "75GB/s")["plan"]["choices"][0]
        self.assertGreater(slow["step_seconds"], 2 * fast["step_seconds"])

    def test_wrong_input(self):
        for args, part in (
            (["--device-profile", "k80"], "h200"),
            (["--link-out", "75GB"], "75GB/s"),
            (["--world", "8", "--levels", "4x3"], "8"),
            (["--device", "cuda"], "--device-profile"),
            (["--budgets", "much"], "much"),
            (["--host-budget", "50%"], "a size"),
            (["--host-budget", "1GiB"], "--disk"),
            (["--world", "0"], "--world"),
            (["--kfac", "--kfac-time", "20%"], "forward pass"),
            (["--kfac", "--pipeline", "2", "--world", "2", "--inverse-interval", "auto"], "as a number"),
            (["--allow", "amp"], "--budget"),
            (["--allow", "speed", "--budget", "50%"], "separable"),
            (["--devices-per-link", "0"], "--devices-per-link"),
        ):
            self.refused(2, part, args=["plan", *MODEL, *args])
        profile = self.folder / "profile.json"
        profile.write_text('{"name": "mine", "memory_bytes": 1, "library_bytes": 0}')
        self.refused(2, "matrix_flops", args=["plan", *MODEL, "--device-profile", profile])
        profile.write_text("{")
        self.refused(2, str(profile), args=["plan", *MODEL, "--device-profile", profile])


if __name__ == "__main__":
    main()
