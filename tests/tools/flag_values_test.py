"""What both programs say to a value that no flag takes: an empty one, or a number in another base.

flag_values_test.py PATH/TO/spillway PATH/TO/ddlrun [unittest's arguments]
"""

import concurrent.futures
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

PROGRAMS = {"spillway": sys.argv.pop(1), "ddlrun": sys.argv.pop(1)}
NUMBERS = {"N", "N,…", "N,N,…", "X", "SECONDS", "PERCENTS"}
WORDS_TOO = {"--inverse-interval", "--factor-samples", "--kfac-rank"}  # auto, exact or full


def run(program, *arguments):
    return subprocess.run([PROGRAMS[program], *arguments], capture_output=True, text=True, timeout=120, check=False)


def flags():
    """Each flag that takes a value, once however many commands share it: (command, names, kind of value)."""
    found = {}
    for program in PROGRAMS:
        command = []
        for line in run(program, "--markdown-help").stdout.splitlines():
            if line.startswith("<!-- help: "):
                command = line.split()[2:-1]
            if flag := re.match(r"\| `(-\S+) (\S+)` \| (.*) \| ", line):
                found.setdefault(flag.groups(), (command, flag[1].split(","), flag[2]))
    return list(found.values())


class FlagValues(unittest.TestCase):
    def refusals(self, cases):
        """Runs commands with (command, name, value), and compares what they say with one line that names the flag."""

        def run_case(case):
            command, name, value = case
            return case, run(command[0], *command[1:], name, value)

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for (command, name, value), done in pool.map(run_case, cases):
                with self.subTest(command=command, flag=name, value=value):
                    self.assertEqual(done.returncode, 2, done.stderr)
                    self.assertRegex(done.stderr, rf"^{command[0]}: .*{name}\b.*'{re.escape(value)}'.*\n$")

    def test_empty_values(self):
        texts = [(command, names[-1]) for command, names, kind in flags() if kind not in NUMBERS]
        self.assertGreater(len(texts), 50)
        self.refusals([(command, name, "") for command, name in texts])
        self.refusals([(["spillway", "train"], name, "") for name in ("--steps", "--lr", "--cut")])

    def test_numbers_in_another_base(self):
        numbers = [
            (command, names[-1]) for command, names, kind in flags() if kind in NUMBERS and names[-1] not in WORDS_TOO
        ]
        self.assertGreater(len(numbers), 60)
        self.refusals((command, name, "0x3") for command, name in numbers)

    def test_numbers_that_do_not_fit(self):
        seed, steps, ranks = ("train", "--seed"), ("train", "--steps"), ("bench", "allreduce", "--ranks")
        for *command, flag in (seed, steps, ranks):
            self.refusals([(["spillway", *command], flag, "99999999999999999999")])
        self.refusals([(["spillway", "train"], "--lr", value) for value in ("1e999", " 1", "+1")])
        self.refusals([(["spillway", "topo"], "--comm-timeout", value) for value in ("nan", "inf", "0")])

    def test_a_leading_zero_means_nothing(self):
        with tempfile.TemporaryDirectory(prefix="spillway-flags-") as folder:
            file = pathlib.Path(folder, "plan.json")
            done = run("ddlrun", "--dry-run", "-H", "a:16", "-n", "010", "--json", str(file), "prog")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(file.read_text())["world_size"], 10)


if __name__ == "__main__":
    unittest.main(verbosity=2)
