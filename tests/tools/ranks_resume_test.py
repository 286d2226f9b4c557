"""Checkpoints of several ranks: which ranks go on from them, and when they are written."""

import json
import os
import re
import shutil
import signal
import struct
import subprocess
import unittest

from cli import MPI, MPIRUN, OTHERS, PROGRAM, Case, main, run


@unittest.skipIf(MPIRUN is None, "built without MPI")
class RanksThatGoOn(Case):
    def test_replicas_are_compared_at_checkpoints_and_at_the_end(self):
        options = [
            *OTHERS["mlp"],
            "--steps",
            "5",
            "--checkpoint",
            self.folder / "checkpoints",
            "--checkpoint-every",
            "2",
        ]
        file = self.folder / "result.json"
        done = run("train", *options, "--json", file, ranks=2)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(file.read_text())["replicas"], {"equal": True, "compared_after_steps": [2, 4, 5]})
        self.assertIn("the same weights on all 2 ranks, compared 3 times, last after step 5", done.stdout)
        alone = self.result(*OTHERS["mlp"], "--steps", "1")
        self.assertIsNone(alone["replicas"])

    def test_ranks_resume_together_where_factors_are_on_their_owner_alone(self):
        options = [
            *OTHERS["bert-base"],
            *(
                "--deterministic --kfac --kfac-strategy owner_reduce --grad-worker-frac 0.5 "
                "--factor-interval 3 --inverse-interval 3"
            ).split(),
        ]
        folder = self.folder / "checkpoints"
        whole = self.result(*options, "--steps", "4", ranks=2)
        self.result(*options, "--steps", "2", "--checkpoint", folder, ranks=2)
        second = self.result(*options, "--steps", "4", "--checkpoint", folder, "--resume", ranks=2)
        self.assertEqual(second["weights_sha256"], whole["weights_sha256"])

    def test_running_statistics_are_those_of_all_ranks(self):
        def running_mean(ranks, batch):
            folder = self.folder / f"checkpoints{ranks}"
            self.result(*OTHERS["resnet50"], "--steps", "1", "--batch", batch, "--checkpoint", folder, ranks=ranks)
            data = (folder / "checkpoint.safetensors").read_bytes()
            length = struct.unpack("<Q", data[:8])[0]
            begin, end = json.loads(data[8 : 8 + length])["bn1.running_mean"]["data_offsets"]
            return struct.unpack(f"<{(end - begin) // 4}f", data[8 + length + begin : 8 + length + end])

        # The first layer's mean over four images is the mean of two means over two.
        for one, two in zip(running_mean(1, 4), running_mean(2, 2), strict=True):
            self.assertAlmostEqual(one, two, 6)

    def test_ranks_resume_together_with_kfac_and_their_own_dropout(self):
        folder = self.folder / "checkpoints"
        options = [
            *OTHERS["bert-base"],
            *(
                "--deterministic --kfac --grad-worker-frac 0.5 --burn-in 1 --factor-interval 2 "
                "--inverse-interval 4 --accumulate 2"
            ).split(),
        ]
        whole = self.result(*options, "--steps", "5", ranks=2)
        first = self.result(*options, "--steps", "2", "--checkpoint", folder, ranks=2)
        second = self.result(*options, "--steps", "5", "--checkpoint", folder, "--resume", ranks=2)
        self.assertEqual(first["losses"] + second["losses"], whole["losses"])
        self.assertEqual(second["weights_sha256"], whole["weights_sha256"])

    def test_a_run_goes_on_with_another_number_of_ranks_and_draws_the_same_cases(self):
        options = [*OTHERS["mlp"], "--deterministic", "--kfac", "--factor-interval", "2", "--inverse-interval", "4"]
        folder = self.folder / "checkpoints"
        whole = self.result(*options, "--steps", "6", ranks=2)
        losses = self.result(*options, "--steps", "2", "--checkpoint", folder, ranks=2)["losses"]
        # Each step has the cases of two ranks: two micro-batches of one rank, then two ranks again.
        losses += self.result(*options, "--steps", "4", "--accumulate", "2", "--checkpoint", folder, "--resume")[
            "losses"
        ]
        losses += self.result(*options, "--steps", "6", "--checkpoint", folder, "--resume", ranks=2)["losses"]
        for one, two in zip(losses, whole["losses"], strict=True):
            self.assertAlmostEqual(one, two, places=4)

    def test_a_run_on_another_number_of_ranks_says_so(self):
        folder = self.folder / "checkpoints"
        for kfac in ([], ["--kfac", "--factor-interval", "1", "--inverse-interval", "2"]):
            options = ["train", *OTHERS["mlp"], "--deterministic", "--checkpoint", folder, *kfac]
            said = [
                run(*options, "--steps", 2 * (i + 1), *["--resume"] * (i > 0), ranks=ranks)
                for i, ranks in enumerate((2, 0, 2, 2))
            ]
            self.assertEqual([done.returncode for done in said], [0] * 4, [done.stderr for done in said])
            changes = [line for done in said for line in done.stdout.splitlines() if "the checkpoint is of" in line]
            self.assertEqual(len(changes), 2, changes)
            self.assertIn("of 2 ranks, and this run has 1", changes[0])
            self.assertIn("of 1 rank, and this run has 2", changes[1])
            self.assertIn("its bits are not", changes[1])
            shutil.rmtree(folder)

    def test_a_batch_systems_warning_to_the_launcher_writes_a_checkpoint_and_training_goes_on(self):
        folder = self.folder / "checkpoints"
        options = [*OTHERS["mlp"], "--checkpoint", folder]
        process = subprocess.Popen(
            [*MPI, "-np", "2", PROGRAM, "train", *options, "--steps", "1000000"],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

        def next_line(text):
            for line in process.stdout:
                if text in line:
                    return line
            raise AssertionError(f"the run ended with {process.wait()} before it said '{text}'")

        try:
            next_line("step 10/")
            process.send_signal(signal.SIGUSR1)
            asked = int(re.search(r"step (\d+): wrote the checkpoint", next_line("wrote the checkpoint")).group(1))
            next_line("step ")
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        data = (folder / "checkpoint.safetensors").read_bytes()
        metadata = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])["__metadata__"]
        self.assertGreaterEqual(int(metadata["step"]), asked, "each rank may have heard of it in another step")

    def test_sigusr2_to_the_launcher_ends_training_with_130_and_all_written(self):
        result = self.folder / "result.json"
        for more in ([], ["--kfac", "--overlap-factors"]):  # such steps are ended, others left
            checkpoint = self.folder / f"checkpoints{len(more)}"
            options = [*OTHERS["mlp"], "--deterministic", "--checkpoint", str(checkpoint), *more]
            process = subprocess.Popen(
                [*MPI, "-np", "2", PROGRAM, "train", *options, "--steps", "1000000", "--json", str(result)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            while "step 10/" not in process.stdout.readline():
                self.assertIsNone(process.poll())
            process.send_signal(signal.SIGUSR2)
            _, errors = process.communicate(timeout=100)
            self.assertEqual(process.returncode, 130, errors)
            self.assertIn("spillway: interrupted after step", errors)
            done = len(json.loads(result.read_text())["losses"])
            resumed = self.result(*options, "--steps", done + 1, "--resume", ranks=2)
            self.assertEqual(resumed["resumed_from_step"], done)

    def test_ranks_that_the_saved_run_did_not_have_get_dropout_of_their_own_and_the_same_each_time(self):
        options = [*OTHERS["bert-base"], "--deterministic", "--steps", "4", "--resume"]
        folder = self.folder / "checkpoints"
        self.result(*OTHERS["bert-base"], "--deterministic", "--steps", "2", "--checkpoint", folder, ranks=2)
        hashes = []
        for again in ("one", "other"):
            shutil.copytree(folder, self.folder / again)
            hashes.append(self.result(*options, "--checkpoint", self.folder / again, ranks=3)["weights_sha256"])
        self.assertEqual(*hashes)


if __name__ == "__main__":
    main()
