"""The spillway program as its users meet it: what it computes, what it writes, and what it says to wrong input.

NAME_test.py PATH/TO/spillway [mpirun] [unittest's arguments]
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv.pop(1)
MPIRUN = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else None
SMALL = "--model unet3d --data synthetic:16 --filters 2 --cases 8 --steps 3 --deterministic".split()
WITH_PAGES = ["synthetic:32" if word == "synthetic:16" else word for word in SMALL]  # more than 2 MiB of them leave
OTHERS = {
    "bp3d": ["--model", "bp3d", "--data", "synthetic:32", "--filters", "4", "--batch", "2", "--cases", "8"],
    "resnet50": "--model resnet50 --edge 40 --filters 4 --classes 5 --batch 4 --cases 10".split(),
    "bert-base": "--model bert-base --data synthetic:24 --layers 1 --hidden 64 --batch 2 --cases 8".split(),
    "mlp": ["--model", "mlp", "--data", "synthetic:16", "--hidden", "32", "--layers", "1", "--batch", "4"],
    "autoencoder": "--model autoencoder --data synthetic:12 --hidden 32 --layers 2 --batch 4 --cases 16".split(),
}
# What links do is remembered here and not among the user's files.
CACHE = tempfile.TemporaryDirectory(prefix="spillway-cli-cache-")
os.environ["SPILLWAY_CACHE"] = CACHE.name
RESULTS = {}  # of the runs that tests share
MPI = [MPIRUN, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]


def last_of_each(args):
    """The arguments with only the last value of a flag that is given twice."""
    args, kept = list(map(str, args)), []
    for i, arg in enumerate(args):
        if arg.startswith("--") and arg in args[i + 1 :]:
            continue
        if i > 0 and args[i - 1].startswith("--") and args[i - 1] in args[i:] and not arg.startswith("--"):
            continue
        kept.append(arg)
    return kept


def run(*args, ranks=0, **kwargs):
    command = [PROGRAM, *last_of_each(args)]
    if ranks:
        command = [*MPI, "-np", str(ranks), *command]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **kwargs)


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="spillway-cli-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def result(self, *args, ranks=0):
        file = self.folder / f"result{len(list(self.folder.iterdir()))}.json"
        done = run("train", *args, "--json", file, ranks=ranks)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(file.read_text())

    def shared_result(self, *args, ranks=0):
        """The result of a run that several tests look at. It happens once."""
        if (args, ranks) not in RESULTS:
            RESULTS[args, ranks] = self.result(*args, ranks=ranks)
        return RESULTS[args, ranks]

    def refused(self, code, *parts, args, **kwargs):
        done = run(*args, **kwargs)
        self.assertEqual(done.returncode, code, done.stderr + done.stdout)
        lines = [line for line in done.stderr.splitlines() if line.startswith("spillway: ")]
        self.assertEqual(len(lines), 1, done.stderr)
        for part in parts:
            self.assertIn(part, lines[0])
        return done

    def phantoms(self, cases=3, edge=32):
        folder = self.folder / "data"
        done = run("phantom", "--out", folder, "--cases", cases, "--edge", edge, "--seed", 1)
        self.assertEqual(done.returncode, 0, done.stderr)
        return folder


def main():
    unittest.main(verbosity=2)
