"""Tests of the examples: each runs as its first lines say, and ends well."""

import pathlib
import subprocess
import sys
import unittest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples/python"


class ExamplesTest(unittest.TestCase):
    def run_example(self, name, ranks=0):
        """Returns what an example prints, as a process or as ranks that torchrun starts."""
        start = [sys.executable]
        if ranks:
            start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        done = subprocess.run([*start, str(EXAMPLES / name)], capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def expect_training(self, name, count, says):
        """Runs an example on two ranks: it prints so many losses, the last one lower than the first, and says this."""
        text = self.run_example(name, ranks=2)
        losses = [float(line.split("loss ")[1]) for line in text.splitlines() if "loss " in line]
        self.assertEqual(len(losses), count)
        self.assertLess(losses[-1], losses[0])
        self.assertIn(says, text)

    def test_two_lines(self):
        self.assertIn("the same bits: True", self.run_example("two_lines.py"))

    def test_kfac_in_a_loop(self):
        lines = dict(line.split(":", 1) for line in self.run_example("kfac_in_a_loop.py").splitlines())
        self.assertLess(float(lines["K-FAC"].split(",")[0]), float(lines["Adam"]))

    def test_data_parallel(self):
        self.expect_training("ddp_over_spillway.py", 5, "of 256 MiB")

    def test_kfac_over_ranks(self):
        self.expect_training("kfac_over_ranks.py", 3, "eigenbases")


if __name__ == "__main__":
    unittest.main()
