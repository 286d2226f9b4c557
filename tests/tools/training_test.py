"""What `spillway train` computes and writes."""

import json
import signal
import subprocess

from cli import MPIRUN, OTHERS, PROGRAM, SMALL, WITH_PAGES, Case, main, run


class Training(Case):
    def test_every_budget_gives_the_same_weights_and_losses(self):
        free = self.shared_result(*SMALL)
        self.assertIsNone(free["budget_bytes"])
        for budget in ("100%", "90%", str(free["floor_bytes"])):
            tight = self.result(*SMALL, "--budget", budget)
            self.assertLessEqual(tight["peak_bytes"], tight["budget_bytes"])
            self.assertEqual(tight["losses"], free["losses"])
            self.assertEqual(tight["weights_sha256"], free["weights_sha256"])
        self.assertGreater(tight["bytes_in"], 0)

    def test_beyond_device_and_host_memory_the_weights_are_the_same(self):
        disk = self.folder / "disk"
        disk.mkdir()
        free = self.result(*WITH_PAGES)
        tight = self.result(*WITH_PAGES, "--budget", str(free["floor_bytes"]), "--host-budget", "2MiB", "--disk", disk)
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
        process = subprocess.Popen(
            [PROGRAM, "train", *SMALL[:-3], "--steps", "100000", *map(str, tiers)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        while "step 1/" not in process.stdout.readline():
            self.assertIsNone(process.poll())
        process.kill()
        process.communicate()
        self.assertEqual(len(list(disk.glob("spillway-*.pages"))), 1)
        self.result(*SMALL, *tiers)
        self.assertEqual([file.name for file in disk.iterdir()], ["notes.txt"])

    def test_every_model_trains_to_the_same_weights_under_a_budget(self):
        for name, model in OTHERS.items():
            with self.subTest(model=name):
                options = [*model, "--steps", "2", "--deterministic"]
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
        result = self.result(
            *OTHERS["mlp"],
            *(
                "--steps 6 --cases 9 --optimizer lamb --lr 0.4 --warmup 2 --lr-decay 0.5@1,0.1@2 "
                "--accumulate 1 --amp bf16"
            ).split(),
        )
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
        process = subprocess.Popen(
            [PROGRAM, "train", *OTHERS["mlp"], "--steps", "100000", "--checkpoint", folder],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
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
        keys = """version model device world_size edge batch steps seed parameters budget_bytes peak_bytes
            peak_by_category rss_peak_bytes floor_bytes host_peak_bytes disk_peak_bytes losses weights_sha256
            metrics step_seconds step_kinds step_seconds_median exposed_copy_seconds bytes_out bytes_in
            replayed_operators bound_seconds predicted kfac allreduce""".split()
        self.assertEqual([key for key in keys if key not in result], [])
        for key in (
            "strategy",
            "grad_worker_frac",
            "layers",
            "factor_updates",
            "decompositions",
            "state_bytes",
            "seconds",
        ):
            self.assertIn(key, result["kfac"])
        for key in (
            "factor_compute",
            "factor_communicate",
            "decompose",
            "eigenbasis_communicate",
            "precondition",
            "gradient_communicate",
        ):
            self.assertIn(key, result["kfac"]["seconds"])
        self.assertEqual(result["kfac"]["seconds_by_rank"], [result["kfac"]["seconds"]])
        self.assertEqual(result["edge"], 16)
        self.assertEqual(len(result["losses"]), 3)
        self.assertEqual(sum(result["peak_by_category"].values()), result["peak_bytes"])
        self.assertIn("dice", result["metrics"])

    def test_trains_from_nifti_files_of_another_shape_and_writes_a_report(self):
        report = self.folder / "report"
        result = self.result(
            "--model",
            "unet3d",
            "--data",
            self.phantoms(edge=40),
            *"--filters 4 --steps 2 --shape 32x48x32 --report".split(),
            report,
            "--compare",
            "unlimited",
        )
        self.assertEqual(result["shape"], [32, 48, 32])
        self.assertIn("<svg", (report / "report.html").read_text())
        self.assertTrue(json.loads((report / "trace.json").read_text())["traceEvents"])

    def test_the_seed_decides_everything(self):
        first, again, other = (self.result(*SMALL, "--seed", seed)["weights_sha256"] for seed in (1, 1, 2))
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)

    def test_ctrl_c_ends_with_130_and_writes_the_results(self):
        file = self.folder / "partial.json"
        process = subprocess.Popen(
            [PROGRAM, "train", *SMALL[:-3], "--steps", "100000", "--json", file],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        while "step 10/" not in process.stdout.readline():
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.assertIn("interrupted after step", errors)
        self.assertTrue(json.loads(file.read_text())["interrupted"])

    def test_a_run_to_compare_with_that_fails_keeps_the_results(self):
        file, report = self.folder / "result.json", self.folder / "report"
        done = run(
            "train",
            *OTHERS["mlp"],
            "--steps",
            "4",
            "--compare",
            "unlimited,adam@1e30",
            "--json",
            file,
            "--report",
            report,
        )
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("training diverged", done.stderr)
        self.assertIn("weights sha256", done.stdout)
        result = json.loads(file.read_text())
        self.assertEqual(len(result["losses"]), 4)
        self.assertEqual(list(result["compared"]), ["unlimited"])
        self.assertTrue((report / "report.html").exists())

    def test_ctrl_c_in_a_run_to_compare_with_keeps_the_results(self):
        file = self.folder / "partial.json"
        process = subprocess.Popen(
            [
                PROGRAM,
                "train",
                *SMALL[:-3],
                *"--steps 1 --accumulate 40 --budget 90% --compare adam --json".split(),
                file,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        while "compared with adam" not in process.stdout.readline():
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)  # it observes a step to choose its budget
        _, errors = process.communicate(timeout=100)
        self.assertEqual(process.returncode, 130, errors)
        result = json.loads(file.read_text())
        self.assertEqual(len(result["losses"]), 1)
        self.assertNotIn("compared", result)

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
            if MPIRUN:
                ranks = self.result(*curves, *more, "--loss-scale", "524288", ranks=2)
                self.assertGreaterEqual(ranks["loss_scale"]["skipped_steps"], 3)


if __name__ == "__main__":
    main()
