"""The help of the programs: one short line for each flag, grouped, and the same in docs/cli.

help_test.py PATH/TO/spillway PATH/TO/ddlrun [unittest's arguments]
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

PROGRAMS = [sys.argv.pop(1), sys.argv.pop(1)]
ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMANDS = [
    "spillway train",
    "spillway phantom",
    "spillway bench paging",
    "spillway bench kfac",
    "spillway bench allreduce",
    "spillway bench pipeline",
    "spillway topo",
    "ddlrun",
]


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def help_of(command):
    name, *words = command.split()
    program = next(p for p in PROGRAMS if pathlib.Path(p).name == name)
    return output(program, *words, "--help")


class Help(unittest.TestCase):
    def test_the_pages_say_what_the_programs_say(self):
        done = subprocess.run(
            [sys.executable, "-B", ROOT / "scripts/cli-docs", "--check", *PROGRAMS],
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr + "\nscripts/cli-docs writes the pages anew")

    def test_the_check_of_the_pages_finds_a_difference(self):
        with tempfile.TemporaryDirectory(prefix="spillway-help-") as folder:
            for text in ("| `--edge N` |", "<!-- help: phantom -->"):
                root = pathlib.Path(folder)
                (root / "scripts").mkdir(exist_ok=True)
                (root / "docs/cli").mkdir(parents=True, exist_ok=True)
                (root / "scripts/cli-docs").write_text((ROOT / "scripts/cli-docs").read_text())
                for page in (ROOT / "docs/cli").glob("*.md"):
                    (root / "docs/cli" / page.name).write_text(page.read_text())
                page = root / "docs/cli/phantom.md"
                old = "| flag" if text.startswith("|") else "<!-- help: spillway phantom -->"
                page.write_text(page.read_text().replace(old, text, 1))
                done = subprocess.run(
                    [sys.executable, "-B", root / "scripts/cli-docs", "--check", *PROGRAMS],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                self.assertEqual(done.returncode, 1)
                self.assertIn("phantom", done.stdout)

    def test_flags_that_train_and_plan_share_stand_on_one_page(self):
        pages = [page.name for page in (ROOT / "docs/cli").glob("*.md") if "\n| `--momentum X` |" in page.read_text()]
        self.assertEqual(pages, ["training_flags.md"])
        for name in ("train.md", "plan.md"):
            self.assertIn("](training_flags.md): Model and data, ", (ROOT / "docs/cli" / name).read_text())

    def test_a_flag_is_one_short_line_with_a_meaning(self):
        for command in COMMANDS:
            with self.subTest(command=command):
                lines = [line for line in help_of(command).split("\n") if line.startswith(" ")]
                self.assertGreater(len(lines), 3)
                for line in lines:
                    self.assertRegex(line, r"^  -[-\w,]+( [^ ]+)?  +\w", "a flag and its meaning on one line")
                    meaning = re.split(r"  +", line.strip(), maxsplit=1)[1]
                    self.assertLessEqual(len(re.sub(r" \[.*\]$", "", meaning).split()), 20, line)

    def test_flags_of_training_are_grouped_and_say_their_defaults(self):
        said = help_of("spillway train")
        for group in ("Model and data", "Device and memory", "Optimizer", "K-FAC", "Ranks", "Checkpoints", "Output"):
            self.assertIn(f"\n{group}:\n", said)
        for flag, default in (
            ("--budget BUDGET", "none"),
            ("--steps N", "10"),
            ("--momentum X", "0.9"),
            ("--filters N", "16 (unet3d)"),
        ):
            line = next(line for line in said.split("\n") if line.strip().startswith(flag + " "))
            self.assertIn(f"[{default}", line)
        self.assertRegex(said, r"--accumulate N .*; 1 or more \[1\]")
        self.assertRegex(said, r"--comm-timeout SECONDS .*; 0.001 to 86400 \[60\]")
        self.assertNotIn("--worker", help_of("spillway bench paging"), "a flag between processes of a benchmark")


if __name__ == "__main__":
    unittest.main(verbosity=2)
