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
        self.assertEqual([figure["predicted"] is None for figure in table["figures"]], [False, False, True] * 2)
        self.assertIn("none", self.said)

    def test_dp_kfac_takes_the_least_time_and_memory(self):
        (table,) = self.tables("dpkfac-table4")
        for figure in table["figures"]:
            if figure["predicted"] is not None:
                self.assertGreater(figure["predicted"], 1, figure)

    def test_dp_kfac_does_keeps_and_receives_the_least(self):
        (table,) = self.tables("dpkfac-table1")
        every, one, dp = ([figure["predicted"] for figure in table["figures"][k : k + 3]] for k in (0, 3, 6))
        self.assertLessEqual(every[0], one[0])  # factors of a layer apart
        self.assertEqual(dp[0], one[0])  # whole layers
        self.assertGreater(every[1], one[1])
        self.assertGreater(one[1], dp[1])
        self.assertGreater(one[2], dp[2])
        self.assertTrue(all(figure["published"] is None for figure in table["figures"]))

    def test_more_gradient_workers_leave_room_for_smaller_batches(self):
        (table,) = self.tables("kaisa-table4")
        batches = [figure["predicted"] for figure in table["figures"] if figure["unit"] == "images"]
        self.assertEqual(len(batches), 4)
        self.assertEqual(batches, sorted(batches, reverse=True))
        self.assertGreater(batches[0], batches[3])

    def test_more_gpus_have_less_to_decompose(self):
        (table,) = self.tables("sc20-table5")
        times = [figure["predicted"] for figure in table["figures"]]
        self.assertEqual(len(times), 9)
        for depth in range(0, 9, 3):
            self.assertEqual(times[depth : depth + 3], sorted(times[depth : depth + 3], reverse=True))

    def test_what_of_a_table_is_assumed_for_want_of_the_paper_is_said(self):
        for name in ("ddl-table1", "bp-lms"):
            (table,) = self.tables(name)
            self.assertIn("at hand", table["assumptions"][0])
            for figure in table["figures"]:
                self.assertIsNotNone(figure["deviation"], figure)

    def test_critical_paths_of_pipelines_are_exact_where_there_are_as_many_micro_batches_as_ranks(self):
        (table,) = self.tables("pipefisher-paths")
        equal = [figure for figure in table["figures"] if "D = N" in figure["what"]]
        self.assertEqual(len(equal), 9)
        for figure in equal:
            self.assertEqual(figure["deviation"], 0, figure)
        longer = [figure["predicted"] for figure in table["figures"] if "D = N" not in figure["what"]]
        self.assertEqual(longer, [66, 96])

    def test_a_figure_of_which_no_number_is_published_has_none(self):
        (table,) = self.tables("pipefisher-fig5")
        told = [figure["published"] is not None for figure in table["figures"]]
        self.assertIn(True, told)
        self.assertIn(False, told)
        for figure in table["figures"]:
            self.assertIsNotNone(figure["predicted"])
            self.assertEqual(figure["deviation"] is None, figure["published"] is None, figure)

    def times(self, *rows, header="bs,time_f,time_b,time_kron,time_inv,time_prec,mem_act"):
        file = self.folder / "times.csv"
        file.write_text("\n".join([header, *rows]) + "\n")
        return file

    def test_pipelines_take_other_times_of_blocks(self):
        (published,) = self.tables("pipefisher-fig3")
        (own,) = self.tables("pipefisher-fig3", "--times", self.times("32,5,10,10,10,2,900"))
        steps = {figure["what"]: figure["predicted"] for figure in own["figures"]}
        self.assertAlmostEqual(steps["GPipe, r"], (4 * 10 + 10) / (3 * 15))
        self.assertEqual(
            [figure["published"] for figure in own["figures"]], [figure["published"] for figure in published["figures"]]
        )
        self.assertIn("times.csv", own["assumptions"][0])
        self.assertNotIn("times.csv", published["assumptions"][0])

    def test_bad_times_are_refused_by_name(self):
        for file, *said in [
            (self.folder / "nothing.csv", "nothing.csv", "No such file"),
            (self.folder, str(self.folder), "it is a folder"),
        ]:
            self.refused(2, *said, args=["reproduce", "pipefisher-fig3", "--times", file])
        for rows, header, *said in [
            (["32,5,10"], "bs,time_f,time_b", "times.csv", "no column 'time_kron'"),
            (
                ["32,5,ten,10,10,2"],
                "bs,time_f,time_b,time_kron,time_inv,time_prec",
                "times.csv",
                "line 2",
                "time_b 'ten'",
            ),
            (["8,5,10,10,10,2"], "bs,time_f,time_b,time_kron,time_inv,time_prec", "times.csv", "32; there are for 8"),
        ]:
            self.refused(2, *said, args=["reproduce", "pipefisher-fig3", "--times", self.times(*rows, header=header)])

    def test_times_are_refused_where_they_change_nothing(self):
        times = self.times("32,5,10,10,10,2,900")
        self.refused(2, "kaisa-table5", "--times", args=["reproduce", "kaisa-table5", "--times", times])
        self.refused(2, "pipefisher-paths", "--times", args=["reproduce", "pipefisher-paths", "--times", times])
        self.refused(2, "kaisa-table4", "--times", args=["reproduce", "--all", "--times", times])
        self.refused(2, "--list", "--times", args=["reproduce", "--list", "--times", times])

    def test_every_name_says_what_it_assumes(self):
        tables = self.tables("--all")
        self.assertEqual([table["name"] for table in tables], run("reproduce", "--list").stdout.split())
        for table in tables:
            self.assertTrue(table["assumptions"], table["name"])
            self.assertTrue(table["figures"], table["name"])

    def test_names(self):
        names = run("reproduce", "--list").stdout.split()
        self.assertIn("lms-192", names)
        for name in ["paths", "table2", "wide", *(f"fig{n}" for n in [3, 4, 5, 6, 7, *range(9, 17)])]:
            self.assertIn(f"pipefisher-{name}", names)
        self.refused(2, "kaisa-table5", args=["reproduce", "nothing"])
        self.refused(2, "--list", args=["reproduce"])


if __name__ == "__main__":
    main()
