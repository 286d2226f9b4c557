"""What ranks say, and how they end, when one of them cannot go on or was started unlike the others."""

import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import time
import unittest

from cli import MPI, MPIRUN, OTHERS, PROGRAM, SMALL, WITH_PAGES, Case, main, run


@unittest.skipIf(MPIRUN is None, "built without MPI")
class FailingRanks(Case):
    def test_ranks_that_compute_other_weights_end_the_run_before_they_write_a_checkpoint(self):
        # LibTorch and MKL choose their kernels by the processor; these variables pretend that rank 1 has an older one.
        folder = self.folder / "checkpoints"
        train = [
            PROGRAM,
            *(
                "train --model mlp --data synthetic:64 --hidden 300 --batch 4 --kfac "
                "--grad-worker-frac 1 --steps 20 --checkpoint"
            ).split(),
            str(folder),
            "--checkpoint-every",
            "20",
        ]
        older = ["-x", "ATEN_CPU_CAPABILITY=default", "-x", "MKL_ENABLE_INSTRUCTIONS=SSE4_2"]
        done = subprocess.run(
            [*MPI, "-np", "1", *train, ":", "-np", "1", *older, *train],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertRegex(
            done.stderr,
            r"spillway: \[train\] after step 20 the weights are not the same on all 2 ranks: "
            r"rank 0 has [0-9a-f]{12}…, rank 1 has [0-9a-f]{12}…",
        )
        self.assertFalse((folder / "checkpoint.safetensors").exists())

    def test_more_ranks_than_training_cases_are_refused(self):
        done = run("train", "--data", self.phantoms(cases=3), "--filters", "4", "--steps", "1", ranks=3)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("3 ranks", done.stderr)

    def test_a_killed_rank_ends_the_others_with_a_communication_error(self):
        options = ["train", *SMALL[:-3], "--steps", "100000", "--comm-timeout", "4"]
        process = subprocess.Popen(
            [*MPI, "--enable-recovery", "-np", "2", PROGRAM, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            while "step 10/" not in process.stdout.readline():
                self.assertIsNone(process.poll())
            children = subprocess.run(
                ["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False
            ).stdout.split()
            ranks = [
                int(c)
                for c in children
                if b"OMPI_COMM_WORLD_RANK=1" in pathlib.Path(f"/proc/{c}/environ").read_bytes().split(b"\0")
            ]
            self.assertEqual(len(ranks), 1)
            start = time.monotonic()
            os.kill(ranks[0], signal.SIGKILL)
            _, errors = process.communicate(timeout=60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        self.assertLess(time.monotonic() - start, 30)
        self.assertRegex(errors, r"spillway: .*rank 1")

    def test_where_one_ranks_disk_takes_no_pages_the_last_whole_step_is_saved(self):
        folder, pages = self.folder / "checkpoints", self.folder / "pages"
        pages.mkdir()
        options = [
            "train",
            *WITH_PAGES[:-3],
            *"--deterministic --budget 80% --host-budget 2MiB --disk".split(),
            str(pages),
            "--checkpoint",
            str(folder),
        ]
        process = subprocess.Popen(
            [*MPI, "-np", "2", PROGRAM, *options, "--steps", "100000"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            while "step 10/" not in process.stdout.readline():
                self.assertIsNone(process.poll())
            children = subprocess.run(
                ["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False
            ).stdout.split()
            rank = next(
                int(c)
                for c in children
                if b"OMPI_COMM_WORLD_RANK=1" in pathlib.Path(f"/proc/{c}/environ").read_bytes().split(b"\0")
            )
            resource.prlimit(rank, resource.RLIMIT_FSIZE, (4096, 4096))  # its own files alone, as if its disk were full
            output, errors = process.communicate(timeout=100)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        self.assertEqual(process.returncode, 1, errors)
        self.assertRegex(errors, r"spillway: .*File too large")
        left = int(re.search(r"step (\d+) is left in its midst", output).group(1))
        resumed = self.result(*WITH_PAGES, "--steps", left, "--checkpoint", folder, "--resume", ranks=2)
        self.assertEqual(resumed["resumed_from_step"], left - 1)
        self.assertEqual(
            resumed["weights_sha256"], self.result(*WITH_PAGES, "--steps", left, ranks=2)["weights_sha256"]
        )

    def test_the_rank_that_fails_is_heard_in_its_own_words_and_with_its_code(self):
        tight = [PROGRAM, "train", *WITH_PAGES, "--budget", "80%", "--host-budget"]
        for sizes in (("1GiB", "2MiB"), ("2MiB", "1GiB")):
            done = subprocess.run(
                [*MPI, "-np", "1", *tight, sizes[0], ":", "-np", "1", *tight, sizes[1]],
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            self.assertIn("host budget of 2.00 MiB", done.stderr)
            self.assertNotIn("was interrupted", done.stderr)
            self.assertEqual(done.returncode, 3, done.stderr)

    def test_where_one_ranks_budget_is_infeasible_all_ranks_end_with_its_words(self):
        # The refusal names a split size, for which every rank observes steps, also those whose budgets are feasible.
        train = [
            PROGRAM,
            *(
                "train --model unet3d --data synthetic:32 --filters 4 --cases 8 --steps 2 --kfac "
                "--kfac-strategy auto --deterministic --budget"
            ).split(),
        ]
        for small in (0, 2):
            ranks = []
            for rank in range(3):
                ranks += [*([":"] if rank else []), "-np", "1", *train, "1MiB" if rank == small else "2GiB"]
            done = subprocess.run([*MPI, *ranks], capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn("a budget of 1.00 MiB (1048576 bytes) cannot run", done.stderr)
            self.assertNotRegex(done.stderr, "bad_alloc|layers other than")

    def test_ranks_that_were_started_with_unlike_options_are_told_which(self):
        def launch(command, first, second):
            one = [PROGRAM, *command]
            return subprocess.run(
                [*MPI, "-np", "1", *one, *first, ":", "-np", "1", *one, *second],
                capture_output=True,
                text=True,
                timeout=50,  # less than --comm-timeout's 60 s
                check=False,
            )

        train = ["train", *OTHERS["mlp"], "--steps", "2"]
        for command, first, second, said in (
            (train, ["--budget", "1GiB"], [], "rank 1 was started without --budget, and rank 0 with --budget …"),
            (
                train,
                ["--budget", "1GiB"],
                ["--budget", "90%"],
                "rank 1 was started with --budget …%, and rank 0 with --budget …",
            ),
            (train, ["--lr", "0.1"], ["--lr", "0.2"], "rank 1 was started with --lr 0.2, and rank 0 with --lr 0.1"),
            (
                train,
                [],
                ["--checkpoint", self.folder / "c"],
                "rank 1 was started with --checkpoint …, and rank 0 without --checkpoint",
            ),
            (
                ["bench", "allreduce"],
                ["--sizes", "8"],
                ["--sizes", "16"],
                "rank 1 was started with --sizes 16, and rank 0 with --sizes 8",
            ),
            (["topo"], ["--measure"], [], "rank 1 was started without --measure, and rank 0 with --measure"),
        ):
            done = launch(command, map(str, first), map(str, second))
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(said, done.stderr)
        file = self.folder / "result.json"
        done = launch(
            train, ["--budget", "1GiB", "--json", str(file)], ["--budget", "2GiB", "--quiet", "--host-budget", "64MiB"]
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(file.read_text())["world_size"], 2)


if __name__ == "__main__":
    main()
