"""The spillway program as its users meet it: what it computes, what it writes, and what it says to wrong input.

    cli_test.py PATH/TO/spillway [mpirun]
"""
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = sys.argv.pop(1)
MPIRUN = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else None
SMALL = ["--model", "unet3d", "--data", "synthetic:32", "--filters", "4", "--steps", "3", "--deterministic"]
OTHERS = {
    "bp3d": ["--model", "bp3d", "--data", "synthetic:32", "--filters", "4", "--batch", "2", "--cases", "8"],
    "resnet50": ["--model", "resnet50", "--edge", "40", "--filters", "4", "--classes", "5", "--batch", "4", "--cases", "10"],
    "bert-base": ["--model", "bert-base", "--data", "synthetic:24", "--layers", "1", "--hidden", "64", "--batch", "2",
                  "--cases", "8"],
    "mlp": ["--model", "mlp", "--data", "synthetic:16", "--hidden", "32", "--layers", "1", "--batch", "4"],
    "autoencoder": ["--model", "autoencoder", "--data", "synthetic:12", "--hidden", "32", "--layers", "2", "--batch", "4",
                    "--cases", "16"]}
MPI = [MPIRUN, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]


def last_of_each(args):
    """The arguments with only the last value of a flag that is given twice."""
    args, kept = list(map(str, args)), []
    for i, arg in enumerate(args):
        if arg.startswith("--") and arg in args[i + 1:]:
            continue
        if i > 0 and args[i - 1].startswith("--") and args[i - 1] in args[i:] and not arg.startswith("--"):
            continue
        kept.append(arg)
    return kept


def run(*args, ranks=0, **kwargs):
    command = [PROGRAM, *last_of_each(args)]
    if ranks:
        command = [*MPI, "-np", str(ranks), *command]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **kwargs)


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="spillway-cli-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def result(self, *args, ranks=0):
        file = self.folder / f"result{len(list(self.folder.iterdir()))}.json"
        done = run("train", *args, "--json", file, ranks=ranks)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(file.read_text())

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


class Training(Case):
    def test_every_budget_gives_the_same_weights_and_losses(self):
        free = self.result(*SMALL)
        self.assertIsNone(free["budget_bytes"])
        for budget in ("100%", "90%", str(free["floor_bytes"])):
            tight = self.result(*SMALL, "--budget", budget)
            self.assertLessEqual(tight["peak_bytes"], tight["budget_bytes"])
            self.assertEqual(tight["losses"], free["losses"])
            self.assertEqual(tight["weights_sha256"], free["weights_sha256"])
        self.assertGreater(tight["bytes_in"], 0)

    def test_kfac_under_a_budget_gives_the_same_weights(self):
        options = [*SMALL, "--kfac"]
        free = self.result(*options)
        tight = self.result(*options, "--budget", str(free["floor_bytes"]))
        self.assertEqual(tight["weights_sha256"], free["weights_sha256"])
        self.assertLessEqual(tight["peak_bytes"], tight["budget_bytes"])
        self.assertEqual(tight["kfac"]["factor_updates"], 3)
        self.assertGreater(tight["kfac"]["layers"], 10)

    def test_beyond_device_and_host_memory_the_weights_are_the_same(self):
        disk = self.folder / "disk"
        disk.mkdir()
        free = self.result(*SMALL)
        tight = self.result(*SMALL, "--budget", str(free["floor_bytes"]), "--host-budget", "2MiB", "--disk", disk)
        self.assertEqual(tight["losses"], free["losses"])
        self.assertEqual(tight["weights_sha256"], free["weights_sha256"])
        self.assertLessEqual(tight["host_peak_bytes"], 2 << 20)
        self.assertGreater(tight["disk_peak_bytes"], 2 << 20)
        self.assertGreater(tight["bytes_from_disk"], 0)
        self.assertEqual(free["disk_peak_bytes"], 0)
        self.assertEqual(list(disk.iterdir()), [])

    def test_what_a_killed_run_left_on_disk_goes_when_the_next_one_starts(self):
        disk = self.folder / "disk"
        disk.mkdir()
        (disk / "notes.txt").write_text("mine")
        tiers = ["--budget", "90%", "--host-budget", "2MiB", "--disk", disk]
        process = subprocess.Popen([PROGRAM, "train", *SMALL[:-3], "--steps", "100000", *map(str, tiers)],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while "step 1/" not in process.stdout.readline():
            self.assertIsNone(process.poll())
        process.kill()
        process.communicate()
        self.assertEqual(len(list(disk.glob("spillway-*.pages"))), 1)
        self.result(*SMALL, *tiers)
        self.assertEqual([file.name for file in disk.iterdir()], ["notes.txt"])

    def test_every_model_trains_to_the_same_weights_under_a_budget(self):
        for name, options in OTHERS.items():
            with self.subTest(model=name):
                options = [*options, "--steps", "2", "--deterministic"]
                free = self.result(*options)
                tight = self.result(*options, "--budget", str(free["floor_bytes"]))
                self.assertEqual(tight["losses"], free["losses"])
                self.assertEqual(tight["weights_sha256"], free["weights_sha256"])
                self.assertLessEqual(tight["peak_bytes"], tight["budget_bytes"])
                self.assertEqual(free["model"], name)
                self.assertIn({"autoencoder": "explained_variance"}.get(name, "accuracy"), free["metrics"])
                self.assertEqual(free["edge"], {"bp3d": 32, "resnet50": 40, "autoencoder": 12}.get(name))
                self.assertEqual(free["sequence_length"], 24 if name == "bert-base" else None)

    def test_warm_up_decay_and_accumulation_are_in_the_results(self):
        result = self.result(*OTHERS["mlp"], "--steps", "6", "--cases", "9", "--optimizer", "lamb", "--lr", "0.4", "--warmup",
                             "2", "--lr-decay", "0.5@1,0.1@2", "--accumulate", "1", "--amp", "bf16")
        # Eight cases to train on are two steps of four.
        for got, expected in zip(result["learning_rates"], [0.2, 0.4, 0.2, 0.2, 0.02, 0.02], strict=True):
            self.assertAlmostEqual(got, expected)
        self.assertEqual((result["optimizer"], result["amp"], result["accumulate"]), ("lamb", "bf16", 1))

    def test_a_resumed_run_goes_on_as_if_nothing_had_happened(self):
        folder = self.folder / "checkpoints"
        options = [*OTHERS["bert-base"], "--deterministic", "--optimizer", "adamw", "--seed", "3"]
        whole = self.result(*options, "--steps", "5")
        first = self.result(*options, "--steps", "3", "--checkpoint", folder, "--checkpoint-every", "2")
        second = self.result(*options, "--steps", "5", "--checkpoint", folder, "--resume", "--budget", "99%")
        self.assertEqual(second["resumed_from_step"], 3)
        self.assertIsNone(first["resumed_from_step"])
        self.assertEqual(first["losses"] + second["losses"], whole["losses"])
        self.assertEqual(second["weights_sha256"], whole["weights_sha256"])
        self.assertEqual([file.name for file in folder.iterdir()], ["checkpoint.safetensors"])

    def test_an_interrupted_run_leaves_a_checkpoint(self):
        folder = self.folder / "checkpoints"
        process = subprocess.Popen([PROGRAM, "train", *OTHERS["mlp"], "--steps", "100000", "--checkpoint", folder],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while "step 10/" not in process.stdout.readline():
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, errors)
        step = int(errors.split("after step ")[1])
        resumed = self.result(*OTHERS["mlp"], "--steps", step + 2, "--checkpoint", folder, "--resume")
        self.assertEqual(resumed["resumed_from_step"], step)
        self.assertEqual(resumed["steps"], 2)

    def test_the_json_holds_every_key_of_the_contract(self):
        result = self.result(*SMALL, "--kfac")
        keys = """version model device world_size edge batch steps seed parameters budget_bytes peak_bytes peak_by_category
            rss_peak_bytes floor_bytes host_peak_bytes disk_peak_bytes losses weights_sha256 metrics step_seconds step_kinds
            step_seconds_median exposed_copy_seconds bytes_out bytes_in replayed_operators bound_seconds predicted kfac
            allreduce""".split()
        self.assertEqual([key for key in keys if key not in result], [])
        for key in ("strategy", "grad_worker_frac", "layers", "factor_updates", "decompositions", "state_bytes", "seconds"):
            self.assertIn(key, result["kfac"])
        for key in ("factor_compute", "factor_communicate", "decompose", "eigenbasis_communicate", "precondition",
                    "gradient_communicate"):
            self.assertIn(key, result["kfac"]["seconds"])
        self.assertEqual(result["edge"], 32)
        self.assertEqual(len(result["losses"]), 3)
        self.assertEqual(sum(result["peak_by_category"].values()), result["peak_bytes"])
        self.assertIn("dice", result["metrics"])

    def test_trains_from_nifti_files_of_another_shape_and_writes_a_report(self):
        report = self.folder / "report"
        result = self.result("--model", "unet3d", "--data", self.phantoms(edge=40), "--filters", "4", "--steps", "2",
                             "--shape", "32x48x32", "--report", report, "--compare", "unlimited")
        self.assertEqual(result["shape"], [32, 48, 32])
        self.assertIn("<svg", (report / "report.html").read_text())
        self.assertTrue(json.loads((report / "trace.json").read_text())["traceEvents"])

    def test_the_seed_decides_everything(self):
        first, again, other = (self.result(*SMALL, "--seed", seed)["weights_sha256"] for seed in (1, 1, 2))
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)

    def test_ctrl_c_ends_after_the_step_with_130_and_writes_the_results(self):
        file = self.folder / "partial.json"
        process = subprocess.Popen([PROGRAM, "train", *SMALL[:-3], "--steps", "100000", "--json", file],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while "step 10/" not in process.stdout.readline():
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.assertIn("interrupted after step", errors)
        self.assertTrue(json.loads(file.read_text())["interrupted"])


class BadInput(Case):
    def test_a_budget_below_the_floor(self):
        report, file = self.folder / "report", self.folder / "result.json"
        self.refused(3, "aten::", "smallest feasible budget", "MiB", args=[
            "train", *SMALL, "--budget", "1MiB", "--report", report, "--json", file])
        self.assertFalse(report.exists() or file.exists())

    def test_sizes_models_and_options_that_do_not_exist(self):
        self.refused(2, "'12bananas'", args=["train", *SMALL, "--budget", "12bananas"])
        self.refused(2, "'0%'", args=["train", *SMALL, "--budget", "0%"])
        self.refused(2, "'unet4d'", "unet3d, bp3d, resnet50, bert-base, mlp, autoencoder", args=["train", "--model", "unet4d"])
        self.refused(2, "unified engine", "--device cuda", "--engine gate", args=["train", *SMALL, "--engine", "unified"])
        self.refused(2, "'lms'", "gate or unified", args=["train", *SMALL, "--engine", "lms"])
        self.refused(2, "--host-budget", "--engine gate", args=[
            "train", *SMALL, "--device", "cuda", "--engine", "unified", "--disk", self.folder])
        self.refused(2, "--largest", "--engine gate", args=[
            "bench", "paging", "--edge", "32", "--device", "cuda", "--engine", "unified", "--largest"])
        self.refused(2, "[cuda]", args=["train", *SMALL, "--device", "cuda:63"])  # also where there are cards
        self.refused(2, "'tpu'", "cpu, cuda, cuda:N or auto", args=["train", *SMALL, "--device", "tpu"])
        self.refused(2, "sgd, adam, adamw or lamb", args=["train", *SMALL, "--optimizer", "lion"])
        self.refused(2, "allowed with 1 rank(s)", args=["train", *SMALL, "--kfac", "--grad-worker-frac", "0.3"])
        self.refused(2, "auto", args=["train", *SMALL, "--kfac", "--kfac-strategy", "auto", "--grad-worker-frac", "1"])
        self.refused(2, "owner_reduce", args=["train", *SMALL, "--kfac", "--kfac-strategy", "best"])
        self.refused(2, "lpt-memory", args=["train", *SMALL, "--kfac", "--placement", "greedy"])
        self.refused(2, "staleness", "inverse_interval", args=[
            "train", *SMALL, "--kfac", "--inverse-interval", "5", "--staleness", "6"])
        self.refused(2, "staleness", "pi", args=["train", *SMALL, "--kfac", "--kfac-method", "pi", "--staleness", "1"])
        self.refused(2, "warm_start", args=["train", *SMALL, "--kfac", "--warm-start", "1"])
        self.refused(2, "bf16", args=["train", *SMALL, "--kfac", "--factor-dtype", "fp8"])
        self.refused(2, "lr", args=["train", *SMALL, "--lr", "-1"])

    def test_a_host_budget_that_is_too_small_and_disks_that_cannot_be_used(self):
        tight = ["train", *SMALL, "--budget", "70%", "--host-budget", "2MiB"]
        self.refused(3, "host budget of 2.00 MiB", "more bytes", "--disk", args=tight)
        self.refused(2, "nowhere", "No such file", "--disk", args=[*tight, "--disk", self.folder / "nowhere"])
        self.refused(2, "host_budget", "1048576", args=["train", *SMALL, "--host-budget", "1KiB", "--disk", self.folder])
        self.refused(2, "'12bananas'", args=["train", *SMALL, "--host-budget", "12bananas"])

        def almost_full_disk():
            import resource
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

        self.refused(1, "[disk]", str(self.folder), "File too large", args=[*tight, "--disk", self.folder],
                     preexec_fn=almost_full_disk)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_what_a_model_has_not(self):
        def refused(model, *options):
            return lambda *parts: self.refused(2, *parts, args=["train", "--model", model, *options])

        refused("bert-base", "--shape", "32x32x32")("--shape is for volumes", "bert-base")
        refused("resnet50", "--shape", "64x64x64")("--shape is for volumes", "resnet50")
        refused("bert-base", "--filters", "8")("--filters says nothing to bert-base", "128 (bp3d)")
        refused("unet3d", "--classes", "4")("--classes says nothing to unet3d")
        refused("resnet50", "--classes", "1")("--classes is 1; allowed is 2 or more")
        refused("resnet50", "--batch", "0")("--batch is 0; allowed is 1 or more")
        refused("bert-base", "--data", "synthetic:1000")("sequence length is 1000", "512")
        refused("resnet50", "--edge", "20")("edge is 20", "33")
        refused("bp3d", "--edge", "30")("30x30x30", "32x32x32")
        refused("bp3d", "--data", "somewhere")("bp3d", "synthetic:N")
        refused("bp3d", "--data", "synthetic:32", "--edge", "16")("--edge is 16", "synthetic:32")
        refused("bert-base", "--hidden", "200")("hidden is 200", "3 heads")
        refused("mlp", "--memory-format", "channels_last")("mlp has no channels")
        refused("mlp", "--amp", "fp8")("amp is 'fp8'", "fp16, bf16 or off")
        refused("mlp", "--amp", "fp16", "--loss-scale", "0")("loss_scale is 0", "1 to 2^127")
        refused("mlp", "--amp", "fp16", "--loss-scale-interval", "0")("loss_scale_interval is 0")
        refused("mlp", "--cases", "8", "--batch", "8")("there are 7 to train on", "more cases")

    def test_training_options_that_make_no_sense(self):
        def refused(*options):
            return lambda *parts: self.refused(2, *parts, args=["train", *OTHERS["mlp"], *options])

        refused("--lr-decay", "0.1@")("--lr-decay is '0.1@'", "FACTOR@EPOCH")
        refused("--warmup", "-1")("warmup")
        refused("--accumulate", "0")("accumulate is 0")
        refused("--nesterov")("nesterov")
        refused("--clip-norm", "1", "--kfac")("clip_norm")
        refused("--kfac", "--overlap-factors", "--accumulate", "2")("accumulate is 2", "overlap_factors")
        refused("--kfac", "--overlap-factors", "--factor-dtype", "bf16")("factor_dtype", "fp32")
        refused("--kfac", "--kfac-method", "lu")("method 'lu'", "eigen, plain, pi")
        refused("--kfac", "--convention", "asdl")("convention 'asdl'", "fisher, kaisa, dp_kfac")
        refused("--kfac", "--inverse-interval", "7")("inverse_interval = 7", "5 or 10")
        refused("--kfac", "--damping", "-1")("damping = -1")
        refused("--kfac", "--damping-decay", "0.5")("--damping-decay is '0.5'", "FACTOR@EPOCH")
        refused("--kfac", "--interval-decay", "0.1@1")("at step", "factor_interval = 0.5", "1 and more steps")
        refused("--resume")("resume")
        refused("--checkpoint-every", "2")("checkpoint_every")
        refused("--resume", "--checkpoint", self.folder)("there is no", "checkpoint.safetensors")

    def test_methods_conventions_and_decays_of_kfac_change_the_result(self):
        options = [*OTHERS["mlp"], "--kfac", "--cases", "10", "--steps", "8"]  # two steps an epoch
        seen = {self.result(*options, *more)["losses"][-1]
                for more in ([], ["--kfac-method", "pi"], ["--kfac-method", "plain", "--damping", "0.01"],
                             ["--convention", "kaisa"], ["--convention", "dp_kfac", "--damping", "0.01"],
                             ["--damping-decay", "0.01@1"], ["--burn-in", "0", "--interval-decay", "3@1"],
                             ["--burn-in", "0"], ["--factor-decay", "0.5"])}
        self.assertEqual(len(seen), 9)
        held = self.result(*options, "--precompute-outer")
        divided = self.result(*options)
        self.assertAlmostEqual(held["losses"][-1], divided["losses"][-1], places=4)
        self.assertGreater(held["kfac"]["state_bytes"], divided["kfac"]["state_bytes"])

    def test_fp16_leaves_out_steps_that_overflow_and_learns_from_the_others(self):
        curves = [*OTHERS["autoencoder"], "--lr", "1e-3", "--steps", "12", "--amp", "fp16", "--deterministic"]
        self.assertIsNone(self.result(*OTHERS["mlp"], "--steps", "1")["loss_scale"])
        for more in ([], ["--kfac", "--optimizer", "sgd"]):
            free = self.result(*curves, *more, "--loss-scale", "524288")
            skipped = free["loss_scale"]["skipped_steps"]
            self.assertGreaterEqual(skipped, 3, "half a million times a loss of 500")
            self.assertLess(skipped, 12)
            self.assertEqual(free["loss_scale"]["scale"], 524288 / 2**skipped)
            self.assertLess(free["losses"][-1], free["losses"][0])
            if more:
                self.assertEqual(free["kfac"]["dropped_factors"], 0, "no overflow reaches a running average")
                self.assertLessEqual(free["kfac"]["factor_updates"], 12 - skipped)
            paged = self.result(*curves, *more, "--loss-scale", "524288", "--budget", "97%")
            self.assertEqual(paged["weights_sha256"], free["weights_sha256"])
            self.assertLessEqual(paged["peak_bytes"], paged["budget_bytes"])
            ranks = self.result(*curves, *more, "--loss-scale", "524288", ranks=2)
            self.assertGreaterEqual(ranks["loss_scale"]["skipped_steps"], 3)

    def test_forms_and_storage_of_kfac_state_change_its_bytes_and_the_result(self):
        def result(*options):
            return self.result(*SMALL, "--kfac", *options)

        usual = result("--conv-factors", "full")
        blocks = result("--conv-factors", "block", "--max-factor-dim", "60")
        self.assertGreater(blocks["kfac"]["block_layers"], 0)
        self.assertLess(blocks["kfac"]["state_bytes"], usual["kfac"]["state_bytes"])
        small = [result("--conv-factors", "full", "--kfac-storage", storage) for storage in ("bf16", "fp16")]
        for one in small:
            self.assertLess(one["kfac"]["state_bytes"], 0.55 * usual["kfac"]["state_bytes"])
        self.assertEqual(len({r["weights_sha256"] for r in (usual, blocks, *small)}), 4)
        paged = result("--conv-factors", "full", "--kfac-storage", "bf16", "--budget", "80%")
        self.assertEqual(paged["weights_sha256"], small[0]["weights_sha256"])
        mlp = [*OTHERS["mlp"], "--steps", "2", "--kfac"]
        self.assertEqual(self.result(*mlp, "--max-linear-dim", "32")["kfac"]["layers"], 1, "the bias' column is the 33rd")
        whole = self.result(*mlp, "--max-linear-dim", "32", "--block-linear")["kfac"]
        self.assertEqual((whole["layers"], whole["block_layers"]), (2, 1))
        self.refused(2, "fp64", "fp32, bf16, fp16", args=["train", *SMALL, "--kfac", "--kfac-storage", "fp64"])
        self.refused(2, "warm_start", "bf16",
                     args=["train", *SMALL, "--kfac", "--kfac-storage", "bf16", "--warm-start", "0.001"])

    def test_a_model_says_what_kfac_starts_from(self):
        first = self.result(*SMALL, "--kfac")
        self.assertEqual(first["lr"], 1)
        self.assertGreaterEqual(first["kfac"]["left_alone"], 3, "the heads")
        said = run("train", *SMALL, "--kfac", "--steps", "1")
        self.assertEqual((said.stdout + said.stderr).count("3 × skipped by name (head"), 1)
        same = self.result(*SMALL, "--kfac", "--lr", "1", "--kfac-skip", "^head", "--kl-clip", "1e-5", "--kl-clip-steps", "10")
        self.assertEqual(same["weights_sha256"], first["weights_sha256"])
        every = self.result(*SMALL, "--kfac", "--kfac-skip", "none")
        self.assertEqual(every["kfac"]["layers"], first["kfac"]["layers"] + 3)
        fewer = self.result(*SMALL, "--kfac", "--kfac-skip", "^head|^down0")
        self.assertLess(fewer["kfac"]["layers"], first["kfac"]["layers"])
        self.assertEqual(self.result(*OTHERS["mlp"], "--steps", "1", "--kfac")["lr"], 0.1)
        curves = [*OTHERS["autoencoder"], "--steps", "4", "--kfac", "--deterministic"]
        said = self.result(*curves, "--kl-clip", "1e-3", "--kl-clip-steps", "inf", "--kfac-skip", "none", "--lr", "0.1")
        self.assertEqual(said["weights_sha256"], self.result(*curves)["weights_sha256"])
        self.assertNotEqual(said["weights_sha256"], self.result(*curves, "--kl-clip-steps", "2")["weights_sha256"])
        self.refused(2, "skip", "'['", args=["train", *SMALL, "--kfac", "--kfac-skip", "["])

    def test_checkpoints_that_are_cut_short_or_of_another_run(self):
        folder = self.folder / "checkpoints"
        options = [*OTHERS["mlp"], "--checkpoint", folder]
        self.result(*options, "--steps", "2")
        self.refused(2, "batch 4", "has 2", args=["train", *options, "--resume", "--steps", "4", "--batch", "2"])
        self.refused(2, "nothing is left", args=["train", *options, "--resume", "--steps", "2"])
        file = folder / "checkpoint.safetensors"
        file.write_bytes(file.read_bytes()[:-1])
        self.refused(2, "checkpoint.safetensors", "is truncated", args=["train", *options, "--resume", "--steps", "4"])

    def test_shapes_that_are_not_multiples_of_16(self):
        self.refused(2, "40", "16", args=["train", *SMALL, "--shape", "40x32x32"])
        self.refused(2, "'3x'", args=["train", *SMALL, "--shape", "3x"])

    def test_folders_without_whole_cases(self):
        empty = self.folder / "empty"
        empty.mkdir()
        self.refused(2, str(empty), args=["train", "--data", empty])
        self.refused(2, "nowhere", args=["train", "--data", self.folder / "nowhere"])
        data = self.phantoms()
        scan = data / "phantom_0002" / "phantom_0002_t1ce.nii.gz"
        whole = scan.read_bytes()
        scan.write_bytes(whole[: len(whole) // 2])
        self.refused(2, "phantom_0002_t1ce.nii.gz", args=["train", "--data", data, "--filters", "4", "--steps", "1"])
        scan.unlink()
        self.refused(2, "phantom_0002", "t1ce", args=["train", "--data", data, "--filters", "4", "--steps", "1"])
        other = self.folder / "other"
        run("phantom", "--out", other, "--cases", "1", "--edge", "48")
        shutil.copy(other / "phantom_0001" / "phantom_0001_t1ce.nii.gz", scan)
        self.refused(2, "32x32x32", "48x48x48", args=["train", "--data", data, "--filters", "4", "--steps", "1"])

    def test_results_that_cannot_be_written(self):
        self.refused(1, "no/such/folder", args=["train", *SMALL, "--json", self.folder / "no/such/folder/x.json"])
        report = self.folder / "report"

        def almost_full_disk():
            import resource
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

        self.refused(1, "report", args=["train", *SMALL, "--report", report], preexec_fn=almost_full_disk)
        self.assertFalse((report / "report.html").exists())

    def test_phantoms_into_a_folder_that_is_somebody_elses(self):
        (self.folder / "notes.txt").write_text("mine")
        self.refused(2, str(self.folder), args=["phantom", "--out", self.folder, "--cases", "1", "--edge", "32"])


@unittest.skipIf(MPIRUN is None, "built without MPI")
class Ranks(Case):
    def test_two_ranks_agree_and_grad_worker_frac_changes_no_bit(self):
        options = [*SMALL, "--kfac"]
        whole = self.result(*options, "--grad-worker-frac", "1", ranks=2)
        half = self.result(*options, "--grad-worker-frac", "0.5", ranks=2)
        tight = self.result(*options, "--budget", "90%", ranks=2)
        for other in (half, tight):
            self.assertEqual(other["losses"], whole["losses"])
            self.assertEqual(other["weights_sha256"], whole["weights_sha256"])
        self.assertEqual(whole["world_size"], 2)
        self.assertLess(half["kfac"]["state_bytes"], whole["kfac"]["state_bytes"])
        self.assertLessEqual(tight["peak_bytes"], tight["budget_bytes"])
        self.assertIn("f=", tight["kfac"]["reason"])
        self.assertGreater(whole["allreduce"]["bytes_per_step"], 0)

    def test_the_floor_of_two_ranks_with_kfac_is_exact(self):
        mlp = ["--model", "mlp", "--data", "synthetic:64", "--hidden", "300", "--steps", "3", "--batch", "1", "--kfac"]
        for more in ([], ["--overlap-factors"], ["--grad-worker-frac", "1"], ["--kfac-strategy", "auto"]):
            refused = run("train", *mlp, *more, "--budget", "1KiB", ranks=2)
            floor = int(re.search(r"smallest feasible budget is (\d+) bytes", refused.stderr).group(1))
            self.assertEqual(self.result(*mlp, *more, "--budget", str(floor), ranks=2)["budget_bytes"], floor)
            refused = run("train", *mlp, *more, "--budget", str(floor - 4096), ranks=2)
            self.assertIn(f"smallest feasible budget is {floor} bytes", refused.stderr)

    def test_two_ranks_agree_under_every_exact_strategy_and_not_with_dp(self):
        def result(*options):
            return self.result(*SMALL, "--kfac", *options, ranks=2)

        whole = result("--kfac-strategy", "comm_opt")
        owner = result("--kfac-strategy", "owner_reduce", "--grad-worker-frac", "0.5", "--placement", "round-robin")
        chosen = result("--kfac-strategy", "auto", "--placement", "measured")
        for other in (owner, chosen):
            self.assertEqual(other["weights_sha256"], whole["weights_sha256"])
        early = result("--overlap-factors", "--budget", "90%")
        self.assertEqual(early["weights_sha256"], whole["weights_sha256"])
        self.assertLessEqual(early["peak_bytes"], early["budget_bytes"])
        self.assertGreater(early["unconstrained_peak_bytes"], whole["peak_bytes"], "messages are counted")
        self.assertLess(owner["kfac"]["state_bytes"], whole["kfac"]["state_bytes"])
        self.assertIn(chosen["kfac"]["strategy"], ("comm_opt", "hybrid", "owner_reduce"))
        self.assertIn("f=", chosen["kfac"]["reason"])
        for options in (["--kfac-strategy", "dp"], ["--factor-dtype", "bf16"]):
            self.assertNotEqual(result(*options)["weights_sha256"], whole["weights_sha256"])

    def test_ranks_resume_together_where_factors_are_on_their_owner_alone(self):
        options = [*OTHERS["bert-base"], "--deterministic", "--kfac", "--kfac-strategy", "owner_reduce",
                   "--grad-worker-frac", "0.5", "--factor-interval", "3", "--inverse-interval", "3"]
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
            begin, end = json.loads(data[8:8 + length])["bn1.running_mean"]["data_offsets"]
            return struct.unpack(f"<{(end - begin) // 4}f", data[8 + length + begin:8 + length + end])

        # The first layer's mean over four images is the mean of two means over two.
        for one, two in zip(running_mean(1, 4), running_mean(2, 2), strict=True):
            self.assertAlmostEqual(one, two, 6)

    def test_ranks_resume_together_with_kfac_and_their_own_dropout(self):
        folder = self.folder / "checkpoints"
        options = [*OTHERS["bert-base"], "--deterministic", "--kfac", "--grad-worker-frac", "0.5", "--burn-in", "1",
                   "--factor-interval", "2", "--inverse-interval", "4", "--accumulate", "2"]
        whole = self.result(*options, "--steps", "5", ranks=2)
        first = self.result(*options, "--steps", "2", "--checkpoint", folder, ranks=2)
        second = self.result(*options, "--steps", "5", "--checkpoint", folder, "--resume", ranks=2)
        self.assertEqual(first["losses"] + second["losses"], whole["losses"])
        self.assertEqual(second["weights_sha256"], whole["weights_sha256"])
        self.refused(2, "ranks 2", "has 1", args=["train", *options, "--grad-worker-frac", "1", "--steps", "5",
                                                  "--checkpoint", folder, "--resume"])

    def test_more_ranks_than_training_cases_are_refused(self):
        done = run("train", "--data", self.phantoms(cases=3), "--filters", "4", "--steps", "1", ranks=3)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("3 ranks", done.stderr)

    def test_a_killed_rank_ends_the_others_with_a_communication_error(self):
        options = ["train", *SMALL[:-3], "--steps", "100000", "--comm-timeout", "4"]
        process = subprocess.Popen([*MPI, "--enable-recovery", "-np", "2", PROGRAM, *options], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, start_new_session=True)
        try:
            while "step 10/" not in process.stdout.readline():
                self.assertIsNone(process.poll())
            children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
            ranks = [int(c) for c in children
                     if b"OMPI_COMM_WORLD_RANK=1" in pathlib.Path(f"/proc/{c}/environ").read_bytes().split(b"\0")]
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


if __name__ == "__main__":
    unittest.main(verbosity=2)
