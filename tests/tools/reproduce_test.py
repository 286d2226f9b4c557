"""spillway reproduce: published figures beside predictions, with every assumption."""
import json

from cli import Case, main, run


class Reproduce(Case):
    def tables(self, *args):
        file = self.folder / "tables.json"
        done = run("reproduce", *args, "--json", file)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.said = done.stdout
        return json.loads(file.read_text())

    def test_six_cells_of_kaisas_memory_are_within_2_percent(self):
        (table,) = self.tables("kaisa-table5")
        far = {figure["what"] for figure in table["figures"] if abs(figure["deviation"]) > 0.02}
        self.assertEqual(len(table["figures"]), 8)
        self.assertEqual(far, {"ResNet-50, f = 1", "ResNet-152, f = 1"})
        self.assertTrue(any("not explained" in assumption for assumption in table["assumptions"]))

    def test_the_balance_of_round_robin_is_exact(self):
        (table,) = self.tables("sc20-balance")
        for figure in table["figures"]:
            self.assertLess(abs(figure["deviation"]), 0.005, figure)

    def test_more_gradient_workers_save_time(self):
        (table,) = self.tables("kaisa-fig6")
        self.assertGreater(table["figures"][0]["predicted"], 0)
        self.assertIn("assumed:", self.said)

    def test_a_figure_without_a_prediction_says_so(self):
        (table,) = self.tables("dpkfac-table4")
        self.assertEqual([figure["predicted"] is None for figure in table["figures"]], [False, False, True])
        self.assertIn("none", self.said)

    def test_critical_paths_of_pipelines_are_exact_where_there_are_as_many_micro_batches_as_ranks(self):
        (table,) = self.tables("pipefisher-paths")
        equal = [figure for figure in table["figures"] if "D = N" in figure["what"]]
        self.assertEqual(len(equal), 9)
        for figure in equal:
            self.assertEqual(figure["deviation"], 0, figure)
        longer = [figure["predicted"] for figure in table["figures"] if "D = N" not in figure["what"]]
        self.assertEqual(longer, [66, 96])

    def test_names(self):
        names = run("reproduce", "--list").stdout.split()
        self.assertIn("lms-192", names)
        self.refused(2, "kaisa-table5", args=["reproduce", "nothing"])
        self.refused(2, "--list", args=["reproduce"])


if __name__ == "__main__":
    main()
