"""spillway bench paging and bench kfac: they run, and their JSON has the keys that docs/cli promises."""

import json

from cli import Case, main, run

PAGING = {
    "model",
    "edge",
    "stock_step_seconds",
    "stock_bit_equal",
    "unconstrained_peak_bytes",
    "floor_bytes",
    "device",
    "engine",
    "library_bytes",
    "peers",
    "unsplit",
    "rows",
}
BUDGET = {
    "budget_percent",
    "budget_bytes",
    "peak_bytes",
    "step_seconds",
    "ratio_to_stock",
    "ratio_to_unlimited",
    "ratio_to_bound",
    "bound_seconds",
    "predicted_seconds",
    "predicted_peak_bytes",
    "first_step_seconds",
    "replays_per_run",
    "exposed_copy_seconds",
    "bit_equal",
}
PHASE = {"phase", "seconds", "gflops", "bytes"}


class Bench(Case):
    def measured(self, *args):
        file = self.folder / "bench.json"
        done = run("bench", *args, "--json", file)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(file.read_text())

    def test_paging(self):
        found = self.measured(
            *"paging --model unet3d --edge 32 --filters 2 --steps 2 --budgets 80,1 --peers".split(),
        )
        self.assertEqual(set(found), PAGING)
        self.assertEqual(found["edge"], 32)
        self.assertIsInstance(found["stock_bit_equal"], bool)
        unlimited, limited, infeasible = found["rows"]
        self.assertEqual(set(unlimited), BUDGET)
        self.assertEqual(set(limited), BUDGET)
        self.assertEqual(set(infeasible), {"budget_percent", "budget_bytes", "feasible"})
        self.assertEqual(
            (unlimited["budget_percent"], limited["budget_percent"], infeasible["budget_percent"]), (None, 80, 1)
        )
        for row in (unlimited, limited):
            self.assertTrue(row["bit_equal"])
            self.assertGreater(row["step_seconds"], 0)
            self.assertLessEqual(row["peak_bytes"], row["budget_bytes"] or found["unconstrained_peak_bytes"])
            self.assertGreaterEqual(row["predicted_peak_bytes"], 0.99 * row["peak_bytes"])
            self.assertLessEqual(row["predicted_peak_bytes"], 1.05 * row["peak_bytes"])
        self.assertFalse(infeasible["feasible"])
        self.assertEqual(
            [set(peer) for peer in found["peers"]], [{"name", "peak_bytes", "step_seconds", "ratio_to_stock"}] * 2
        )

    def test_the_edge_is_the_data_sets_where_none_is_given(self):
        found = self.measured("paging", "--data", "synthetic:32", "--filters", "2", "--steps", "1", "--budgets", "90")
        self.assertEqual(found["edge"], 32)

    def test_the_largest_edge_trains_at_its_floor(self):
        model = ["--model", "unet3d", "--filters", "4"]
        found = self.measured("paging", *model, "--edge", "64", "--budgets", "40", "--largest")
        (row,) = found["rows"]
        needs = {edge["edge"]: edge for edge in found["edges"]}
        self.assertGreaterEqual(row["largest_edge"], row["largest_edge_without_paging"])
        self.assertLessEqual(needs[row["largest_edge"]]["floor_bytes"], row["budget_bytes"])
        # The needs are of dry runs, and at most a few per cent above those of real steps.
        train = ["train", *model, "--edge", str(row["largest_edge"]), "--steps", "1", "--cases", "4", "--quiet"]
        floor = needs[row["largest_edge"]]["floor_bytes"]
        self.assertEqual(run(*train, "--budget", str(floor)).returncode, 0)
        self.assertEqual(run(*train, "--budget", str(floor * 9 // 10)).returncode, 3)

    def test_kfac(self):
        found = self.measured(
            *(
                "kfac --model autoencoder --hidden 32 --layers 1 --batch 8 --repeats 1 --forms auto "
                "--factor-interval 15 --inverse-interval 30 --adapt-damping 32"
            ).split(),
        )
        self.assertEqual(found["model"], "autoencoder")
        operators = found["forms"][0]["operators"]
        self.assertLess(operators["factor"], operators["factor+decompose"], "no step draws its cases")
        for row in found["rows"]:
            self.assertLessEqual(PHASE, set(row))
        self.assertNotEqual(found["forms"][0]["damping_scale"], 1, "adapted once in 33 steps")
        phases = {row["phase"] for row in found["rows"]}
        self.assertTrue(any("precondition" in phase for phase in phases), phases)


if __name__ == "__main__":
    main()
