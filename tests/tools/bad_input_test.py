"""What the program says to wrong input: one sentence, and a code that names the kind."""

import shutil
import signal

from cli import OTHERS, SMALL, WITH_PAGES, Case, main, run


class BadInput(Case):
    def test_a_budget_below_the_floor(self):
        report, file = self.folder / "report", self.folder / "result.json"
        self.refused(
            3,
            "aten::",
            "smallest feasible budget",
            "MiB",
            args=["train", *SMALL, "--budget", "1MiB", "--report", report, "--json", file],
        )
        self.assertFalse(report.exists() or file.exists())

    def test_sizes_models_and_options_that_do_not_exist(self):
        self.refused(2, "'12bananas'", args=["train", *SMALL, "--budget", "12bananas"])
        self.refused(2, "'0%'", args=["train", *SMALL, "--budget", "0%"])
        self.refused(
            2, "'unet4d'", "unet3d, bp3d, resnet50, bert-base, mlp, autoencoder", args=["train", "--model", "unet4d"]
        )
        self.refused(
            2, "unified engine", "--device cuda", "--engine gate", args=["train", *SMALL, "--engine", "unified"]
        )
        self.refused(2, "'lms'", "gate or unified", args=["train", *SMALL, "--engine", "lms"])
        self.refused(
            2,
            "--host-budget",
            "--engine gate",
            args=["train", *SMALL, "--device", "cuda", "--engine", "unified", "--disk", self.folder],
        )
        self.refused(
            2,
            "--largest",
            "--engine gate",
            args=["bench", "paging", "--edge", "32", "--device", "cuda", "--engine", "unified", "--largest"],
        )
        self.refused(2, "[cuda]", args=["train", *SMALL, "--device", "cuda:63"])  # also where there are cards
        self.refused(2, "'tpu'", "cpu, cuda, cuda:N or auto", args=["train", *SMALL, "--device", "tpu"])
        self.refused(2, "sgd, adam, adamw, lamb, muon or soap", args=["train", *SMALL, "--optimizer", "lion"])
        self.refused(2, "allowed with 1 rank(s)", args=["train", *SMALL, "--kfac", "--grad-worker-frac", "0.3"])
        self.refused(2, "auto", args=["train", *SMALL, "--kfac", "--kfac-strategy", "auto", "--grad-worker-frac", "1"])
        self.refused(2, "owner_reduce", args=["train", *SMALL, "--kfac", "--kfac-strategy", "best"])
        self.refused(2, "lpt-memory", args=["train", *SMALL, "--kfac", "--placement", "greedy"])
        self.refused(
            2,
            "staleness",
            "inverse_interval",
            args=["train", *SMALL, "--kfac", "--inverse-interval", "5", "--staleness", "6"],
        )
        self.refused(2, "staleness", "pi", args=["train", *SMALL, "--kfac", "--kfac-method", "pi", "--staleness", "1"])
        self.refused(2, "warm_start", args=["train", *SMALL, "--kfac", "--warm-start", "1"])
        self.refused(2, "bf16", args=["train", *SMALL, "--kfac", "--factor-dtype", "fp8"])
        self.refused(2, "lr", args=["train", *SMALL, "--lr", "-1"])

    def test_numbers_that_are_none(self):
        def refused(*options):
            return lambda *parts: self.refused(2, *parts, args=["train", *OTHERS["mlp"], *options])

        refused("--lr", "0")("lr is 0", "above 0")
        refused("--lr", "inf")("lr is inf", "finite")
        refused("--lr", "nan")("lr is nan")
        refused("--weight-decay", "inf")("weight_decay is inf")
        refused("--kfac", "--damping", "inf")("damping = inf")
        refused("--kfac", "--adapt-damping", "-1")("damping_adaptation is -1", "0 or more")
        refused("--kfac", "--relative-damping", "inf")("relative_damping = inf")
        refused("--compare", "adam@0.01xyz")("'adam@0.01xyz'", "adam@LR")
        refused("--compare", "adam@inf")("'adam@inf'")
        refused("--compare", "adam@")("'adam@'")
        refused("--compare", "muon@0")("'muon@0'", "muon@LR")
        refused("--compare", "lion")("'lion'", "unlimited")
        refused("--optimizer", "muon", "--rest-lr", "0")("rest_lr is 0", "above 0")
        refused("--optimizer", "muon", "--rest-optimizer", "soap")("rest_optimizer is soap", "sgd, adam, adamw or lamb")
        for flag, value in (("--rest-optimizer", "sgd"), ("--rest-lr", "0.1")):
            refused("--optimizer", "adam", flag, value)("--rest-optimizer and --rest-lr", "adam serves all")
        refused("--kfac", "--norm-clip", "0")("norm_clip = 0")
        refused("--kfac", "--kl-clip", "nan")("kl_clip = nan")
        refused("--kfac", "--damping-scope", "model")("damping_scope 'model'", "layer, network")
        refused("--kfac", "--damping-scope", "layer", "--damping", "1")("--damping", "--damping-scope")
        refused("--kfac", "--optimizer", "muon")("optimizer is muon", "with K-FAC")
        refused("--seed", "-1")("--seed", "'-1'", "from 0 on")
        for command in (
            ["bench", "paging", "--edge", "32", "--budgets=-5"],
            ["bench", "paging", "--edge", "32", "--budgets", "0"],
        ):
            self.refused(2, "--budgets", "above 0", args=command)
        said = self.refused(2, "--steps", "'0'", "from 1 on", args=["bench", "paging", "--edge", "32", "--steps", "0"])
        self.assertLess(len(said.stderr), 200)
        self.refused(2, "--repeats", "'0'", args=["bench", "kfac", "--repeats", "0"])

    def test_flags_without_effect(self):
        def refused(*options):
            return lambda *parts: self.refused(2, *parts, args=["train", *OTHERS["mlp"], *options])

        refused("--momentum", "0.5", "--optimizer", "adam")("--momentum is sgd's", "adam")
        refused("--kfac", "--kl-clip-steps", "5")("--kl-clip-steps has no effect without --kl-clip")
        refused("--damping", "0.1")("--damping has no effect without --kfac")
        refused("--adapt-damping", "2")("--adapt-damping has no effect without --kfac")
        refused("--kfac-strategy", "dp")("--kfac-strategy has no effect without --kfac")
        for strategy in ("comm_opt", "mem_opt", "dp"):
            refused("--kfac", "--kfac-strategy", strategy, "--grad-worker-frac", "1")(
                "--grad-worker-frac is '1'", strategy
            )
        refused("--host-budget", "4MiB")("--host-budget has no effect without --budget")
        refused("--disk", self.folder)("--disk has no effect without --budget")

    def test_options_and_commands_that_nobody_knows(self):
        self.refused(2, "unknown option: --frobnicate", args=["train", "--frobnicate", "3"])
        self.refused(2, "unknown command: paint", "train, plan, reproduce, phantom, bench, topo", args=["paint"])
        self.refused(2, "unknown argument: three", args=["train", *SMALL, "three"])

    def test_a_loss_that_is_no_number(self):
        self.refused(
            1, "[train] the loss of step", "lower lr", args=["train", *OTHERS["mlp"], "--steps", "8", "--lr", "1e30"]
        )

    def test_a_host_budget_that_is_too_small_and_disks_that_cannot_be_used(self):
        tight = ["train", *WITH_PAGES, "--budget", "70%", "--host-budget", "2MiB"]
        self.refused(3, "host budget of 2.00 MiB", "more bytes", "--disk", args=tight)
        self.refused(2, "nowhere", "No such file", "--disk", args=[*tight, "--disk", self.folder / "nowhere"])
        self.refused(
            2, "host_budget", "1048576", args=["train", *SMALL, "--host-budget", "1KiB", "--disk", self.folder]
        )
        self.refused(2, "'12bananas'", args=["train", *SMALL, "--host-budget", "12bananas"])

        def almost_full_disk():
            import resource

            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

        self.refused(
            1,
            "[disk]",
            str(self.folder),
            "File too large",
            args=[*tight, "--disk", self.folder],
            preexec_fn=almost_full_disk,
        )
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
        refused("--kfac", "--kfac-method", "lu")("method 'lu'", "eigen, plain, pi")
        refused("--kfac", "--convention", "asdl")("convention 'asdl'", "fisher, kaisa, dp_kfac")
        refused("--kfac", "--inverse-interval", "7")("inverse_interval = 7", "6 or 9")
        refused("--kfac", "--damping", "-1")("damping = -1")
        refused("--kfac", "--damping-decay", "0.5")("--damping-decay is '0.5'", "FACTOR@EPOCH")
        refused("--kfac", "--interval-decay", "0.1@1")("at step", "factor_interval = 0.3", "1 and more steps")
        refused("--resume")("resume")
        refused("--checkpoint-every", "2")("checkpoint_every")
        refused("--resume", "--checkpoint", self.folder)("there is no", "checkpoint.safetensors")

    def test_numbers_beyond_every_model(self):
        for flag in ("hidden", "classes", "layers", "cases", "batch", "accumulate"):
            args = ["train", *OTHERS["mlp"], "--cases", "8", f"--{flag}", "9223372036854775807"]
            self.refused(2, f"{flag} is 9223372036854775807; allowed is at most", args=args)

    def test_files_that_are_none_or_never_end(self):
        for file, reason in (("/dev/zero", "larger than"), (self.folder, "it is a folder")):
            plan = ["plan", *OTHERS["mlp"], "--device-profile", file]
            self.refused(2, f"--device-profile {file}", reason, args=plan)
            train = ["train", *OTHERS["mlp"], "--kfac", "--kfac-plan", file]
            self.refused(2, f"--kfac-plan '{file}' cannot be read", reason, args=train)

    def test_links_that_carry_nothing(self):
        for flag in ("--link-out", "--link-in"):
            self.refused(2, f"{flag} is '0GB/s'", "above 0", args=["plan", *OTHERS["mlp"], flag, "0GB/s"])

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


if __name__ == "__main__":
    main()
