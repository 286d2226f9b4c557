"""Training on several ranks under mpirun."""

import itertools
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import unittest

from cli import MPI, MPIRUN, OTHERS, PROGRAM, SMALL, Case, main, run


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

    def test_optimizers_of_matrices_give_the_same_weights_under_a_budget(self):
        for optimizer in ("muon", "soap"):
            options = [*OTHERS["resnet50"], "--batch", "2", "--deterministic", "--steps", "3", "--optimizer", optimizer]
            free = self.result(*options, ranks=2)
            tight = self.result(*options, "--budget", str(free["floor_bytes"]), ranks=2)
            self.assertEqual((free["rest_optimizer"], free["rest_lr"]), ("adamw", free["lr"]))
            self.assertEqual(free["replicas"]["equal"], True)
            self.assertEqual(tight["weights_sha256"], free["weights_sha256"])
            self.assertLessEqual(tight["peak_bytes"], tight["budget_bytes"])

    def test_the_report_shows_what_is_sent_beside_backward(self):
        report = self.folder / "report"
        done = run(
            "train",
            *OTHERS["mlp"],
            *"--kfac --burn-in 2 --overlap-factors --gradient-bucket 1KiB --steps 2 --report".split(),
            report,
            ranks=2,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        events = json.loads((report / "trace.json").read_text())["traceEvents"]
        lanes = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
        work = [{**event, "lane": lanes[event["tid"]]} for event in events if event["ph"] == "X"]
        gradients = [event for event in work if event["name"] == "gradients"]
        factors = [event for event in work if event["name"] == "factors"]
        self.assertGreater(len(gradients), 1)
        self.assertGreater(len(factors), 0)
        self.assertEqual({event["lane"] for event in gradients}, {"communication"})
        self.assertEqual({event["lane"] for event in factors}, {"factors"})
        for lane in ("communication", "factors"):  # a lane does one thing at a time; times have a hundredth of a µs
            spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in work if event["lane"] == lane)
            for (_, end), (start, _) in itertools.pairwise(spans):
                self.assertLessEqual(end, start + 0.01)
        self.assertTrue(all(event["bytes"] > 0 for event in (e["args"] for e in gradients + factors)))
        backward = [event["ts"] for event in work if event["lane"] == "compute" and "backward" in event["name"]]
        self.assertLess(min(event["ts"] for event in gradients), max(backward))
        page = (report / "report.html").read_text()
        for lane in ("communication", "factors"):
            self.assertIn(f">{lane}</text>", page)
        self.assertRegex(page, r"<title>([^<]*: )?gradients, ")

    def test_auto_chooses_no_strategy_that_the_budget_cannot_run(self):
        options = [
            *OTHERS["resnet50"],
            *"--batch 2 --deterministic --kfac --kfac-rank full --no-overlap-gradients --steps 2".split(),
        ]

        def trained(strategy, budget):
            return self.result(*options, "--kfac-strategy", strategy, "--budget", budget, ranks=2)

        hybrid, owner_reduce = trained("hybrid", "100%"), trained("owner_reduce", "100%")
        self.assertLess(hybrid["floor_bytes"], owner_reduce["floor_bytes"])
        between = (hybrid["floor_bytes"] + owner_reduce["floor_bytes"]) // 2
        for plan, reason in (("auto", "ms a step"), ("formula", "owner_reduce f=0.5 would need")):
            options += ["--plan", plan]
            chosen = trained("auto", str(between))
            self.assertEqual(chosen["kfac"]["strategy"], "hybrid")
            self.assertIn(reason, chosen["kfac"]["reason"])
            self.assertLessEqual(chosen["peak_bytes"], between)
            self.assertEqual(chosen["weights_sha256"], hybrid["weights_sha256"])

    def test_allowed_changes_are_those_of_their_flags(self):
        model = ["--model", "unet3d", "--edge", "32", "--filters", "4", "--cases", "8", "--steps", "2"]
        floor = self.result(*model, "--budget", "90%", ranks=2)["floor_bytes"]
        budget = ["--budget", str(floor - 1)]
        taken = self.result(*model, *budget, "--allow", "amp,batch", ranks=2)
        given = self.result(*model, *budget, "--amp", "bf16", ranks=2)
        self.assertEqual(taken["weights_sha256"], given["weights_sha256"])
        self.refused(
            2,
            "--resume",
            args=["train", *model, *budget, "--allow", "amp", "--resume", "--checkpoint", self.folder / "checkpoints"],
        )

    def test_steps_that_cannot_be_simulated_are_distributed_by_the_formula(self):
        options = [*OTHERS["mlp"], "--kfac", "--kfac-time", "20%", "--steps", "2", "--budget", "100%"]
        chosen = self.result(*options, ranks=2)
        self.assertIn("of K-FAC state", chosen["kfac"]["reason"])

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

    def test_every_rank_has_as_many_threads_as_the_one_with_the_fewest_cpus(self):
        # Of three cores one rank gets two, and the other the third.
        done = run(
            "train",
            *OTHERS["mlp"],
            "--steps",
            "2",
            "--json",
            self.folder / "result.json",
            ranks=2,
            env={**os.environ, "HWLOC_SYNTHETIC": "core:3 pu:1"},
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads((self.folder / "result.json").read_text())["threads"], 1)

    def test_ranks_share_the_cpus_of_the_launch_and_not_of_the_host(self):
        cpu = max(os.sched_getaffinity(0))
        file = self.folder / "topo.json"
        for wrapper in ([], ["sh", "-c", '"$@"; exit $?', "sh"]):
            subprocess.run(
                [
                    "taskset",
                    "-c",
                    str(cpu),
                    *MPI[:-1],
                    "core",
                    "-np",
                    "2",
                    *wrapper,
                    PROGRAM,
                    "topo",
                    "--json",
                    str(file),
                ],
                check=True,
                capture_output=True,
                timeout=100,
            )
            self.assertEqual([rank["cpus"] for rank in json.loads(file.read_text())["ranks"]], [[cpu], [cpu]])

    def test_a_step_of_one_task_is_no_launch(self):
        file = self.folder / "topo.json"
        for variables in (
            {"PMI_RANK": "0", "PMI_SIZE": "1"},
            {"PMIX_RANK": "0", "PMIX_NAMESPACE": "slurm.pmix.7.0", "SLURM_STEP_NUM_TASKS": "1"},
        ):
            done = run("topo", "--json", file, env={**os.environ, **variables})
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIsNone(json.loads(file.read_text())["levels"])

    def test_the_floor_of_two_ranks_with_kfac_is_exact(self):
        mlp = ["--model", "mlp", "--data", "synthetic:64", "--hidden", "300", "--steps", "3", "--batch", "1", "--kfac"]
        for more in (
            [],
            ["--overlap-factors"],
            ["--overlap-factors", "--factor-dtype", "fp16"],
            ["--grad-worker-frac", "1"],
            ["--kfac-strategy", "auto"],
        ):
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
        early = result("--kfac-strategy", "comm_opt", "--overlap-factors", "--budget", "90%")
        self.assertEqual(early["weights_sha256"], whole["weights_sha256"])
        self.assertLessEqual(early["peak_bytes"], early["budget_bytes"])
        self.assertGreater(early["unconstrained_peak_bytes"], whole["peak_bytes"], "messages are counted")
        self.assertLess(owner["kfac"]["state_bytes"], whole["kfac"]["state_bytes"])
        self.assertIn(chosen["kfac"]["strategy"], ("comm_opt", "hybrid", "owner_reduce"))
        self.assertIn("f=", chosen["kfac"]["reason"])
        self.assertNotEqual(result("--kfac-strategy", "dp")["weights_sha256"], whole["weights_sha256"])
        rounded = result("--factor-dtype", "bf16")
        self.assertNotEqual(rounded["weights_sha256"], whole["weights_sha256"])
        early = result("--factor-dtype", "bf16", "--overlap-factors", "--budget", "90%")
        self.assertEqual(early["weights_sha256"], rounded["weights_sha256"])

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

    def test_declared_levels_are_in_the_results_and_in_the_order_of_sums(self):
        options = [*OTHERS["mlp"], "--steps", "3", "--deterministic"]
        found = self.result(*options, ranks=4)
        hosts = self.result(*options, "--levels", "2x2", ranks=4)
        # Whatever the links suggest, it keeps the order of sums.
        order = r"(direct|leader|oneshot)"
        self.assertEqual(found["allreduce"]["levels"], "4")
        self.assertRegex(found["allreduce"]["algorithm"], f"^{order}$")
        self.assertEqual(hosts["allreduce"]["levels"], "2x2")
        self.assertRegex(hosts["allreduce"]["algorithm"], f"^{order} x {order}$")
        for one, two in zip(found["losses"], hosts["losses"], strict=True):
            self.assertAlmostEqual(one, two, places=4)
        self.refused(2, "'4x2'", "8 ranks", "4 are running", args=["train", *options, "--levels", "4x2"], ranks=4)
        self.refused(2, "'2'", "1 are running", args=["train", *options, "--levels", "2"])

    def test_gradients_are_sent_beside_backward_and_no_bit_depends_on_how(self):
        options = [*SMALL, "--accumulate", "2"]
        late = self.result(*options, "--no-overlap-gradients", ranks=2)
        self.assertEqual((late["allreduce"]["buckets"], late["allreduce"]["hidden_percent"]), (0, 0))
        for more in (
            [],
            ["--gradient-bucket", "16KiB"],
            ["--gradient-bucket", "16KiB", "--gradient-buffer", "32KiB"],
            ["--budget", "90%"],
        ):
            early = self.result(*options, *more, ranks=2)
            self.assertEqual(early["weights_sha256"], late["weights_sha256"], more)
            allreduce = early["allreduce"]
            self.assertEqual(allreduce["bytes_per_step"], late["allreduce"]["bytes_per_step"])
            self.assertGreater(allreduce["buckets"], 0)
            self.assertGreater(allreduce["percent_of_bound"], 0)
            # Who waits may be woken late, so it may have waited for longer than the allreduce took.
            share = allreduce["exposed_seconds_per_step"] / allreduce["seconds_per_step"]
            self.assertGreaterEqual(share, 0)
            self.assertAlmostEqual(allreduce["hidden_percent"], max(0, 100 * (1 - share)), places=3)
            if "16KiB" in more:
                self.assertEqual(allreduce["bucket_bytes"], 16384)
                self.assertGreater(allreduce["buckets"], allreduce["bytes_per_step"] // 16384 - 1)
        self.refused(2, "gradient_bucket_bytes is 10", args=["train", *options, "--gradient-bucket", "10"])
        self.refused(2, "'much'", args=["train", *options, "--gradient-buffer", "much"])

    def test_what_links_do_is_measured_once(self):
        options = ["train", *OTHERS["mlp"], "--steps", "1"]
        cache = self.folder / "cache"
        environment = {**os.environ, "SPILLWAY_CACHE": str(cache)}

        def said(*more):
            done = run(*options, *more, ranks=2, env=environment)
            self.assertEqual(done.returncode, 0, done.stderr)
            return re.search("links between ranks, (.*): level 1", done.stdout).group(1)

        def change(what):
            kept = json.loads(file.read_text())
            what(kept)
            file.write_text(json.dumps(kept))

        def set_rates(rate):
            def set_in(kept):
                kept["costs"]["reduce_seconds_per_byte"] = 1e-15
                for level in kept["costs"]["levels"]:
                    level.update(latency_seconds=1e-9, message_seconds=1e-9, bytes_per_second=rate)

            change(set_in)

        def measured(*more):
            said_so = said(*more)
            set_rates(1e14)  # which no link reaches: what a busy machine measured may be forgotten again
            return said_so

        self.assertEqual(said(), "measured")
        (file,) = (cache / "links").iterdir()
        set_rates(1e14)
        self.assertEqual(said(), f"remembered in {file}")
        self.assertEqual(measured("--calibrate"), "measured")
        file.write_text("{")
        self.assertIn(f"measured, since {file} cannot be used", measured())
        self.assertEqual(said(), f"remembered in {file}")
        set_rates(-1)
        self.assertIn("bandwidth", measured())
        change(lambda kept: kept.update(measured_at=kept["measured_at"] - 40 * 24 * 3600))
        self.assertEqual(measured(), f"measured, since {file} is 40 days old")
        self.assertEqual(said(), f"remembered in {file}")
        # Another interface is another network.
        environment["OMPI_MCA_btl_tcp_if_include"] = "lo"
        self.assertEqual(said(), "measured")
        del environment["OMPI_MCA_btl_tcp_if_include"]
        self.assertEqual(said(), f"remembered in {file}")
        # Another cluster may give its hosts the same names.
        self.assertTrue(all(json.loads(file.read_text())["of"]["processors"]))
        for other in ({"processors": ["another"] * 2}, {"cpus": [1000, 1000]}, {"mpi": "another"}):
            change(lambda kept: kept["of"].update(other))
            self.assertEqual(measured(), "measured")
            self.assertEqual(said(), f"remembered in {file}")
        # Links that are faster than what is remembered.
        set_rates(10)
        done = run(*options, ranks=2, env=environment)
        self.assertIn(f"{file} is forgotten", done.stdout)
        self.assertEqual(said(), "measured")
        shutil.rmtree(cache)
        cache.write_text("no folder")
        self.assertIn("not remembered", said())


if __name__ == "__main__":
    main()
