"""`spillway bench pipeline` runs all schedules, has the JSON keys that docs/cli promises, and refuses wrong input."""

import json

from cli import Case, main, run

SCHEDULES = ["gpipe", "1f1b", "interleaved", "zb-h1", "chimera"]
KEYS = {
    "ranks",
    "micro_batches",
    "chunks",
    "model",
    "blocks",
    "scale",
    "message_bytes",
    "message_seconds",
    "link_bytes_per_second",
    "rows",
    "empty_items",
    "beside_items",
}
FIGURES = {"step_seconds", "ratio_to_first", "utilization"}
OF_REFRESH = {"filled", "exceeded_seconds"}
ROW = {"schedule", "refresh", "predicted", "measured"}
REFRESH_ROW = {"asked_interval", "turns", "cycle_steps", "done_in_steps"}
SHORT = ["--scale", "0.02", "--steps", "2", "--sizes", "none"]
BLOCKS = "blocks,forward,backward,statistics,inversion,preconditioning\n"


class BenchPipeline(Case):
    def measured(self, *args):
        file = self.folder / "pipeline.json"
        done = run("bench", "pipeline", *args, "--json", file)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(file.read_text()), done.stdout

    def check_row(self, row):
        has_refresh = row["refresh"] != "none"
        self.assertEqual(set(row), ROW | REFRESH_ROW if has_refresh else ROW)
        for figures in (row["predicted"], row["measured"]):
            self.assertEqual(set(figures), FIGURES | OF_REFRESH if has_refresh else FIGURES)
            self.assertGreater(figures["step_seconds"], 0)
            self.assertTrue(0 < figures["utilization"] < 1.05, row)
        # A run is never much faster than its plan; how much slower it is depends on the machine.
        self.assertLessEqual(row["predicted"]["step_seconds"], 1.05 * row["measured"]["step_seconds"], row)
        self.assertLessEqual(row["measured"]["utilization"], 1.05 * row["predicted"]["utilization"], row)

    def test_all_schedules_run_with_both_refreshes(self):
        found, said = self.measured(*SHORT, "--refresh", "rolling,together")
        self.assertEqual(set(found), KEYS)
        self.assertEqual((found["ranks"], found["micro_batches"], found["blocks"], found["scale"]), (4, 4, 16, 0.02))
        self.assertEqual((found["message_bytes"], found["link_bytes_per_second"]), (65536, None))
        self.assertEqual(
            [(row["schedule"], row["refresh"]) for row in found["rows"]],
            [(schedule, refresh) for schedule in SCHEDULES for refresh in ("none", "rolling", "together")],
        )
        for row in found["rows"]:
            self.check_row(row)
            self.assertIn(row["schedule"], said)
            if row["refresh"] == "none":
                continue
            self.assertEqual(row["asked_interval"], "auto")
            self.assertLess(row["predicted"]["exceeded_seconds"], 0.002 * row["predicted"]["step_seconds"])
            self.assertTrue(0 < row["predicted"]["filled"] <= 1, row)
        by = {(row["schedule"], row["refresh"]): row for row in found["rows"]}
        for schedule in SCHEDULES:
            rolling, together = by[schedule, "rolling"], by[schedule, "together"]
            self.assertLessEqual(rolling["done_in_steps"], 3)
            self.assertEqual(together["turns"], 1)
        self.assertGreater(
            by["gpipe", "rolling"]["predicted"]["filled"], by["gpipe", "together"]["predicted"]["filled"]
        )
        self.assertLess(by["zb-h1", "none"]["predicted"]["ratio_to_first"], 0.8)
        self.assertEqual([set(row) for row in found["empty_items"]], [{"schedule", "seconds", "processor_seconds"}] * 5)
        self.assertEqual([row["schedule"] for row in found["empty_items"]], SCHEDULES)
        for row in found["empty_items"]:
            self.assertGreater(row["seconds"], 0)
        self.assertEqual(found["beside_items"], [])

    def test_intervals_that_are_asked_for_may_exceed_the_waits(self):
        found, _ = self.measured(
            *SHORT,
            *"--schedules 1f1b,zb-h1 --interval 1,6 --blocks 2 --pieces 4 --staleness 1".split(),
        )
        rows = [row for row in found["rows"] if row["refresh"] == "rolling"]
        self.assertEqual(
            [(row["schedule"], row["asked_interval"], row["cycle_steps"]) for row in rows],
            [(schedule, str(steps), steps) for schedule in ("1f1b", "zb-h1") for steps in (1, 6)],
        )
        for row in rows:
            self.check_row(row)
            self.assertLessEqual(row["done_in_steps"], 2)
        for often, seldom in (rows[:2], rows[2:]):
            self.assertGreater(often["predicted"]["exceeded_seconds"], seldom["predicted"]["exceeded_seconds"] + 1e-4)
        self.assertLess(rows[3]["predicted"]["ratio_to_first"], 0.9)

    def test_times_come_from_a_file_and_messages_may_take_theirs(self):
        file = self.folder / "blocks.csv"
        file.write_text(BLOCKS + "1,0.5,1,0,0,0.1\n4,1,2,1,3,0.2\n1,0.5,1,0,0,0.1\n")
        found, _ = self.measured(
            *"--ranks 2 --accumulate 6 --schedules interleaved --chunks 3 --emulate".split(),
            file,
            *"--steps 2 --message 20KB --link 20MB --sizes 10KB".split(),
        )
        self.assertEqual((found["model"], found["blocks"], found["scale"], found["chunks"]), (str(file), 6, 1, 3))
        self.assertEqual((found["message_bytes"], found["link_bytes_per_second"]), (20000, 20e6))
        self.assertGreaterEqual(found["message_seconds"], 0.001)
        for row in found["rows"]:
            self.check_row(row)
            # The work of all blocks, on two ranks.
            self.assertGreaterEqual(row["measured"]["step_seconds"], 6 * 15e-3 / 2)
        (beside,) = found["beside_items"]
        self.assertEqual(set(beside), {"bytes", "message_seconds", "step_seconds", "exposed_seconds", "hidden"})
        self.assertEqual(beside["bytes"], 10000)
        self.assertGreaterEqual(beside["message_seconds"], 0.0005)
        self.assertGreaterEqual(beside["step_seconds"], 0.66)  # 33 items of 20 ms, one behind the other

    def test_wrong_input_is_refused_by_name(self):
        def refused(*args, parts):
            self.refused(2, *parts, args=["bench", "pipeline", *args])

        refused("--schedules", "1f1b,2f2b", parts=("--schedules", "'2f2b'", "zb-h1"))
        refused("--ranks", "1", parts=("--ranks", "2"))
        refused("--ranks", "3", "--schedules", "chimera", parts=("chimera", "even"))
        refused("--accumulate", "6", "--schedules", "interleaved", parts=("interleaved", "4 do not divide 6"))
        refused("--schedules", "gpipe", "--chunks", "2", parts=("--chunks", "interleaved"))
        refused("--refresh", "never", parts=("--refresh", "'never'", "rolling, together"))
        refused("--refresh", "together", "--staleness", "2", parts=("--staleness", "rolling"))
        refused("--interval", "2,often", parts=("--interval", "'often'", "auto"))
        refused("--interval", "0", parts=("--interval", "'0'"))
        refused("--scale", "0", parts=("--scale", "above 0"))
        refused("--scale", "nan", parts=("--scale", "above 0"))
        refused("--message", "many", parts=("'many'",))
        refused("--link", "0", parts=("--link", "none"))
        refused("--sizes", "1MB,big", parts=("'big'",))
        refused("--steps", "0", parts=("--steps",))
        refused("--emulate", self.folder / "none.csv", parts=("--emulate", "cannot read", "none.csv"))
        file = self.folder / "blocks.csv"
        for text, parts in (
            ("forward\n1\n", (":1:", "backward is missing")),
            (BLOCKS, ("has no block",)),
            (BLOCKS + "1,1,1,1,soon,1\n", (":2:", "inversion is 'soon'")),
            (BLOCKS + "1,1,1,1,1,1\n", ("4 stages",)),
        ):
            file.write_text(text)
            refused("--emulate", file, parts=parts)
        refused("--emulate", file, "--blocks", "2", parts=("--blocks", "--emulate"))


if __name__ == "__main__":
    main()
