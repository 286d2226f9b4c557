"""Training on several ranks under mpirun."""
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import time
import unittest
from xml.etree import ElementTree

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

    def test_auto_chooses_no_strategy_that_the_budget_cannot_run(self):
        options = [*OTHERS["resnet50"], "--batch", "2", "--deterministic", "--kfac", "--no-overlap-gradients", "--steps", "2"]

        def trained(strategy, budget):
            return self.result(*options, "--kfac-strategy", strategy, "--budget", budget, ranks=2)

        hybrid, owner_reduce = trained("hybrid", "100%"), trained("owner_reduce", "100%")
        self.assertLess(hybrid["floor_bytes"], owner_reduce["floor_bytes"])
        between = (hybrid["floor_bytes"] + owner_reduce["floor_bytes"]) // 2
        chosen = trained("auto", str(between))
        self.assertEqual(chosen["kfac"]["strategy"], "hybrid")
        self.assertIn("owner_reduce f=0.5 would need", chosen["kfac"]["reason"])
        self.assertLessEqual(chosen["peak_bytes"], between)
        self.assertEqual(chosen["weights_sha256"], hybrid["weights_sha256"])

    def test_replicas_are_compared_at_checkpoints_and_at_the_end(self):
        options = [*OTHERS["mlp"], "--steps", "5", "--checkpoint", self.folder / "checkpoints", "--checkpoint-every", "2"]
        file = self.folder / "result.json"
        done = run("train", *options, "--json", file, ranks=2)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(file.read_text())["replicas"], {"equal": True, "compared_after_steps": [2, 4, 5]})
        self.assertIn("the same weights on all 2 ranks, compared 3 times, last after step 5", done.stdout)
        alone = self.result(*OTHERS["mlp"], "--steps", "1")
        self.assertIsNone(alone["replicas"])

    def test_ranks_that_compute_other_weights_end_the_run_before_they_write_a_checkpoint(self):
        # LibTorch and MKL choose their kernels by the processor; these variables pretend that rank 1 has an older one.
        folder = self.folder / "checkpoints"
        train = [PROGRAM, "train", "--model", "mlp", "--data", "synthetic:64", "--hidden", "300", "--batch", "4", "--kfac",
                 "--grad-worker-frac", "1", "--steps", "20", "--checkpoint", str(folder), "--checkpoint-every", "20"]
        older = ["-x", "ATEN_CPU_CAPABILITY=default", "-x", "MKL_ENABLE_INSTRUCTIONS=SSE4_2"]
        done = subprocess.run([*MPI, "-np", "1", *train, ":", "-np", "1", *older, *train], capture_output=True, text=True,
                              timeout=300)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertRegex(done.stderr, r"spillway: \[train\] after step 20 the weights are not the same on all 2 ranks: "
                                      r"rank 0 has [0-9a-f]{12}…, rank 1 has [0-9a-f]{12}…")
        self.assertFalse((folder / "checkpoint.safetensors").exists())

    def test_every_rank_has_as_many_threads_as_the_one_with_the_fewest_cpus(self):
        # Of three cores one rank gets two, and the other the third.
        done = run("train", *OTHERS["mlp"], "--steps", "2", "--json", self.folder / "result.json", ranks=2,
                   env={**os.environ, "HWLOC_SYNTHETIC": "core:3 pu:1"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads((self.folder / "result.json").read_text())["threads"], 1)

    def test_ranks_share_the_cpus_of_the_launch_and_not_of_the_host(self):
        cpu = max(os.sched_getaffinity(0))
        file = self.folder / "topo.json"
        for wrapper in ([], ["sh", "-c", '"$@"; exit $?', "sh"]):
            subprocess.run(["taskset", "-c", str(cpu), *MPI[:-1], "core", "-np", "2", *wrapper, PROGRAM, "topo", "--json",
                            str(file)], check=True, capture_output=True, timeout=100)
            self.assertEqual([rank["cpus"] for rank in json.loads(file.read_text())["ranks"]], [[cpu], [cpu]])

    def test_a_step_of_one_task_is_no_launch(self):
        file = self.folder / "topo.json"
        for variables in ({"PMI_RANK": "0", "PMI_SIZE": "1"},
                          {"PMIX_RANK": "0", "PMIX_NAMESPACE": "slurm.pmix.7.0", "SLURM_STEP_NUM_TASKS": "1"}):
            done = run("topo", "--json", file, env={**os.environ, **variables})
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIsNone(json.loads(file.read_text())["levels"])

    def test_the_floor_of_two_ranks_with_kfac_is_exact(self):
        mlp = ["--model", "mlp", "--data", "synthetic:64", "--hidden", "300", "--steps", "3", "--batch", "1", "--kfac"]
        for more in ([], ["--overlap-factors"], ["--overlap-factors", "--factor-dtype", "fp16"],
                     ["--grad-worker-frac", "1"], ["--kfac-strategy", "auto"]):
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

    def test_a_run_goes_on_with_another_number_of_ranks_and_draws_the_same_cases(self):
        options = [*OTHERS["mlp"], "--deterministic", "--kfac", "--factor-interval", "2", "--inverse-interval", "4"]
        folder = self.folder / "checkpoints"
        whole = self.result(*options, "--steps", "6", ranks=2)
        losses = self.result(*options, "--steps", "2", "--checkpoint", folder, ranks=2)["losses"]
        # Each step has the cases of two ranks: two micro-batches of one rank, then two ranks again.
        losses += self.result(*options, "--steps", "4", "--accumulate", "2", "--checkpoint", folder, "--resume")["losses"]
        losses += self.result(*options, "--steps", "6", "--checkpoint", folder, "--resume", ranks=2)["losses"]
        for one, two in zip(losses, whole["losses"], strict=True):
            self.assertAlmostEqual(one, two, places=4)

    def test_a_batch_systems_warning_to_the_launcher_writes_a_checkpoint_and_training_goes_on(self):
        folder = self.folder / "checkpoints"
        options = [*OTHERS["mlp"], "--checkpoint", folder]
        process = subprocess.Popen([*MPI, "-np", "2", PROGRAM, "train", *options, "--steps", "1000000"],
                                   stdout=subprocess.PIPE, text=True, start_new_session=True)

        def next_line(text):
            for line in process.stdout:
                if text in line:
                    return line
            self.fail(f"the run ended with {process.wait()} before it said '{text}'")

        try:
            next_line("step 10/")
            process.send_signal(signal.SIGUSR1)
            asked = int(re.search(r"step (\d+): wrote the checkpoint", next_line("wrote the checkpoint")).group(1))
            next_line("step ")
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        data = (folder / "checkpoint.safetensors").read_bytes()
        metadata = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])["__metadata__"]
        self.assertGreaterEqual(int(metadata["step"]), asked, "each rank may have heard of it in another step")

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
        for more in ([], ["--gradient-bucket", "16KiB"], ["--gradient-bucket", "16KiB", "--gradient-buffer", "32KiB"],
                     ["--budget", "90%"]):
            early = self.result(*options, *more, ranks=2)
            self.assertEqual(early["weights_sha256"], late["weights_sha256"], more)
            allreduce = early["allreduce"]
            self.assertEqual(allreduce["bytes_per_step"], late["allreduce"]["bytes_per_step"])
            self.assertGreater(allreduce["buckets"], 0)
            self.assertGreater(allreduce["percent_of_bound"], 0)
            self.assertLessEqual(allreduce["exposed_seconds_per_step"], allreduce["seconds_per_step"])
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

        self.assertEqual(said(), "measured")
        file, = (cache / "links").iterdir()
        self.assertEqual(said(), f"remembered in {file}")
        self.assertEqual(said("--calibrate"), "measured")
        file.write_text("{")
        self.assertIn(f"measured, since {file} cannot be used", said())
        self.assertEqual(said(), f"remembered in {file}")
        kept = json.loads(file.read_text())
        kept["costs"]["levels"][0]["bytes_per_second"] = -1
        file.write_text(json.dumps(kept))
        self.assertIn("bandwidth", said())
        kept = json.loads(file.read_text())
        kept["measured_at"] -= 40 * 24 * 3600
        file.write_text(json.dumps(kept))
        self.assertEqual(said(), f"measured, since {file} is 40 days old")
        self.assertEqual(said(), f"remembered in {file}")
        # Another interface is another network.
        environment["OMPI_MCA_btl_tcp_if_include"] = "lo"
        self.assertEqual(said(), "measured")
        del environment["OMPI_MCA_btl_tcp_if_include"]
        self.assertEqual(said(), f"remembered in {file}")
        # Links that are faster than what is remembered.
        kept = json.loads(file.read_text())
        for level in kept["costs"]["levels"]:
            level["bytes_per_second"] = 10
        file.write_text(json.dumps(kept))
        done = run(*options, ranks=2, env=environment)
        self.assertIn(f"{file} is forgotten", done.stdout)
        self.assertEqual(said(), "measured")
        shutil.rmtree(cache)
        cache.write_text("no folder")
        self.assertIn("not remembered", said())

    def test_allreduces_are_measured_in_one_launch_and_in_several(self):
        file = self.folder / "allreduce.json"
        done = run("bench", "allreduce", "--sizes", "4KiB,100KiB", "--repeats", "2", "--levels", "2+1", "--json", file,
                   "--plot", self.folder / "allreduce.svg", "--explain", ranks=3)
        self.assertEqual(done.returncode, 0, done.stderr)
        one = json.loads(file.read_text())
        self.assertEqual((one["world_size"], one["levels"]), (3, "2+1"))
        self.assertEqual((one["device"], one["cards"]), ("cpu", None))
        self.assertEqual({row["algorithm"] for row in one["rows"]}, {"levels", "mpi", "ring", "leader"})
        for row in one["rows"]:
            self.assertEqual(row["wrong"], 0)
            for key in ("bytes", "seconds", "algbw", "busbw", "percent_of_bound", "mpi_seconds"):
                self.assertGreater(row[key], 0, key)
        self.assertIn("busbw", done.stdout)
        by_levels = [row for row in one["rows"] if row["algorithm"] == "levels"]
        for row in by_levels:
            self.assertIn(row["explanation"], done.stdout)
            self.assertRegex(row["explanation"], r"level 2, 1 group of 2 groups: .*; at least .* predicted .* waited .* % of the bound\)\n")
            self.assertEqual(" x ".join(level["algorithm"] for level in row["by_level"]), row["plan"])
            for level in row["by_level"]:
                self.assertTrue(all(level[key] > 0 for key in level if key != "algorithm"), level)
        errors = {row["bytes"]: row["model_error"] for row in by_levels}
        self.assertEqual(one["model_error"], {"median": sum(errors.values()) / 2, "worst": max(errors.values()),
                                              "worst_bytes": max(errors, key=errors.get), "sizes": 2})
        self.assertRegex(done.stdout, r"\n# model: median error [0-9.]+ % over 2 sizes \(worst [0-9.]+ % at (4.00|100) KiB\)\n")
        self.check_plot(self.folder / "allreduce.svg", ["bound", "levels", "mpi", "ring", "leader"], points=2)
        done = run("bench", "allreduce", "--sizes", "4KiB", "--repeats", "1", "--ranks", "2", "--launches", "2", "--launcher",
                   " ".join(MPI), "--json", file, "--plot", self.folder / "several.svg")
        self.assertEqual(done.returncode, 0, done.stderr)
        several = json.loads(file.read_text())
        self.assertEqual(several["launches"], 2)
        self.assertEqual([row["algorithm"] for row in several["rows"]],
                         ["levels", "mpi", "ring", "leader", "mpi-ring", "mpi-rabenseifner"])
        for row in several["rows"]:
            self.assertLessEqual(row["min_seconds"], row["seconds"])
            self.assertLessEqual(row["seconds"], row["p95_seconds"])
            self.assertEqual(row["bound_seconds"], several["rows"][0]["bound_seconds"])
        self.assertEqual((len(several["rows"][0]["by_launch"]), len(several["costs_by_launch"])), (2, 2))
        self.check_plot(self.folder / "several.svg",
                        ["bound", "levels", "mpi", "ring", "leader", "mpi-ring", "mpi-rabenseifner"], points=1)
        # Also before MPI has started.
        for args, parts in ((["--sizes", "3"], ("--sizes: 3", "4 bytes")), (["--type", "float8"], ("--type: float8",))):
            done = self.refused(2, *parts, args=["bench", "allreduce", *args], ranks=2)
            self.assertNotIn("MPI_INIT", done.stderr)
        for args, parts in ((["--sizes", "3"], ("--sizes: 3", "4 bytes")), ([], ("mpirun", "--ranks")),
                            (["--sizes", "12", "--type", "int64"], ("--sizes: 12", "int64", "8 bytes")),
                            (["--type", "float8"], ("--type: float8", "bfloat16")),
                            (["--op", "product"], ("--op: product", "average")),
                            (["--ranks", "2", "--launcher", " "], ("--launcher", "mpirun")),
                            (["--device", "tpu"], ("--device is 'tpu'", "cpu, cuda or cuda:N")),
                            (["--device", "cuda", "--explain"], ("--explain", "--device cpu")),
                            (["--device", "cuda"], ("mpirun", "--ranks"))):
            self.refused(2, *parts, args=["bench", "allreduce", *args])
        # Also where there are cards. Launched by itself, it says so too.
        self.refused(2, "[cuda]", args=["bench", "allreduce", "--device", "cuda:63"], ranks=2)
        done = run("bench", "allreduce", "--device", "cuda:63", "--ranks", "2", "--launcher", " ".join(MPI))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, r"(?s)spillway: \[cuda\] .*what the ranks said is above")
        self.refused(1, "no-such-mpirun", args=["bench", "allreduce", "--ranks", "2", "--launcher", "no-such-mpirun"])

    def check_plot(self, file, names, points):
        """A curve of each name in this order, with so many points, and its line and point in the legend."""
        svg = "{http://www.w3.org/2000/svg}"
        plot = ElementTree.parse(file).getroot()
        self.assertEqual(plot.tag, svg + "svg")
        self.assertEqual({text.text for text in plot.iter(svg + "text") if text.get("class") == "name"}, set(names))
        for name in names:
            curves = [path.get("d") for path in plot.iter(svg + "path") if path.get("class") == f"curve {name}"]
            self.assertEqual([len(re.findall("[ML]", d)) for d in curves], [points, 1], name)
            dots = [dot for dot in plot.iter(svg + "circle") if dot.get("class") == name]
            self.assertEqual(len(dots), points + 1, name)
            for dot in dots:
                self.assertTrue(0 < float(dot.get("cx")) < float(plot.get("width")), name)
                self.assertTrue(0 < float(dot.get("cy")) < float(plot.get("height")), name)

    def test_allreduces_of_every_type_and_operation_are_measured_and_right(self):
        file = self.folder / "allreduce.json"
        for type, op, by_mpi in (("float64", "max", True), ("int32", "min", True), ("int64", "sum", True),
                                 ("float16", "sum", False), ("bfloat16", "average", False), ("int32", "average", False)):
            done = run("bench", "allreduce", "--type", type, "--op", op, "--sizes", "8,200KiB", "--repeats", "1",
                       "--levels", "2+1", "--json", file, ranks=3)
            self.assertEqual(done.returncode, 0, done.stderr)
            result = json.loads(file.read_text())
            self.assertEqual((result["type"], result["op"]), (type, op))
            self.assertEqual({row["algorithm"] for row in result["rows"]},
                             {"levels", "ring", "leader"} | ({"mpi"} if by_mpi else set()))
            self.assertEqual({row["wrong"] for row in result["rows"]}, {0})
            self.assertEqual(f"# mpi: has no {op} of {type}\n" in done.stdout, not by_mpi)

    def bench(self, *args, ranks=0):
        """Its results and what it prints."""
        file = self.folder / "bench.json"
        done = run("bench", "allreduce", "--sizes", "4KiB,100KiB", "--repeats", "2", *args, "--json", file, ranks=ranks)
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(file.read_text())
        self.assertEqual({row["wrong"] for row in result["rows"]}, {0})
        return result, done.stdout

    def test_all_types_and_operations_are_measured_in_one_run_also_misaligned(self):
        result, _ = self.bench("--type", "all", "--op", "all", "--sizes", "8,1KiB", "--repeats", "1", "--warmup", "0",
                               "--offset", "8", "--levels", "2+1", ranks=3)
        self.assertEqual(len({(row["type"], row["op"]) for row in result["rows"]}), 6 * 4)
        self.assertEqual(result["offset_bytes"], 8)
        by_mpi = {(row["type"], row["op"]) for row in result["rows"] if row["algorithm"] == "mpi"}
        self.assertEqual(len(by_mpi), 4 * 3)
        self.assertNotIn(("float16", "sum"), by_mpi)

    def test_other_collectives_are_measured_beside_mpis(self):
        for ranks in (1, 2, 3):
            # 20 bytes are five elements, so parts differ, and 4 leave some ranks without one.
            result, text = self.bench("--collective", "all", "--sizes", "4,20,100KiB", "--iterations", "2", "--offset", "4",
                                      ranks=ranks)
            ways = {}
            for row in result["rows"]:
                ways.setdefault(row["collective"], set()).add(row["algorithm"])
                self.assertEqual(row["op"], "sum" if "reduce" in row["collective"] else None)
                self.assertEqual(row["root"], 0 if row["collective"] == "broadcast" else None)
                factor = {"allreduce": 2 * (ranks - 1) / ranks, "broadcast": 1}.get(row["collective"], (ranks - 1) / ranks)
                self.assertAlmostEqual(row["busbw"], row["algbw"] * factor)
            self.assertEqual(ways, {"allreduce": {"levels", "mpi", "ring", "leader"}, "reduce_scatter": {"levels", "mpi"},
                                    "all_gather": {"levels", "mpi"}, "broadcast": {"tree", "mpi"}})
            for collective in ways:
                self.assertEqual(text.count(f"# collective: {collective}\n"), 2)
        half, _ = self.bench("--collective", "reduce_scatter", "--type", "bfloat16", "--op", "average", ranks=2)
        self.assertEqual({row["algorithm"] for row in half["rows"]}, {"levels"})
        moved, _ = self.bench("--collective", "all_gather,broadcast", "--type", "float16", "--op", "all", ranks=2)
        self.assertEqual(len(moved["rows"]), 8)

    def test_nccl_tests_sweeps_timing_and_lines_are_there(self):
        file = self.folder / "sweep.json"
        done = run("bench", "allreduce", "--begin", "8", "--end", "100", "--factor", "3", "--iterations", "5", "--warmup", "1",
                   "--repeats", "3", "--ways", "levels,mpi", "--json", file, ranks=2)
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(file.read_text())
        self.assertEqual([row["bytes"] for row in result["rows"]], [8, 8, 24, 24, 72, 72])
        self.assertEqual(result["timing"], {"warmup": 1, "repeats": 3, "average": "max", "iterations": 5,
                                            "back_to_back_average": "mean"})
        for row in result["rows"]:
            self.assertEqual(len(row["call_seconds"]), 3)
            spread = row["spread"]
            self.assertEqual(row["seconds"], spread["p50_seconds"])
            self.assertLessEqual(spread["min_seconds"], spread["p50_seconds"])
            self.assertLessEqual(spread["p99_seconds"], spread["max_seconds"])
            self.assertGreater(row["back_to_back"]["busbw"], 0)
            self.assertEqual(row["back_to_back"]["iterations"], 5)
        # As those read it who read nccl-tests: twelve columns and more for every size, in two tables.
        rows = [line.split() for line in done.stdout.splitlines() if re.match(r"^ +\d", line)]
        self.assertEqual(len(rows), 12)
        for words in rows:
            self.assertEqual(words[2:5], ["float", "sum", "-1"])
            for number in words[5:8] + words[9:12]:
                float(number)
            self.assertEqual((words[8], words[12]), ("0", "0"))
        self.assertEqual(re.search(r"^# Out of bounds values : (\d+) (\w+)$", done.stdout, re.M).groups(), ("0", "OK"))
        average = float(re.search(r"^# Avg bus bandwidth    : ([\d.e+-]+)$", done.stdout, re.M).group(1))
        ours = [row["back_to_back"] for row in result["rows"] if row["algorithm"] == "levels"]
        expected = sum(times["busbw"] + times["in_place_busbw"] for times in ours) / 6
        self.assertAlmostEqual(average / expected, 1, 4)
        self.assertAlmostEqual(result["avg_bus_bandwidth"]["levels"], expected)
        self.assertEqual(result["out_of_bounds"], 0)
        self.assertRegex(done.stdout, r"minBytes 8 maxBytes 72 step: 3\(factor\) warmup iters: 1 iters: 5 repeats: 3")
        for rank in range(2):
            found = re.search(rf"^#  Rank +{rank} Pid +(\d+) on +(\S+) device cpu$", done.stdout, re.M)
            self.assertEqual((int(found.group(1)), found.group(2)), (result["ranks"][rank]["pid"], os.uname().nodename))
        for how in ("rank0", "mean", "min"):
            chosen, text = self.bench("--average", how, ranks=2)
            self.assertEqual((chosen["timing"]["average"], chosen["timing"]["back_to_back_average"]), (how, how))
            self.assertIn(f"the median of 2, {how} over ranks", text)
        for args, parts in ((["--begin", "2"], ("--begin: 2", "4 bytes")), (["--end", "8"], ("--begin",)),
                            (["--begin", "8", "--factor", "1"], ("--factor is 1", "more than 1")),
                            (["--begin", "8", "--sizes", "8"], ("--sizes", "--begin")),
                            (["--average", "mode"], ("--average: mode", "rank0")),
                            (["--offset", "2"], ("--offset: 2", "4 bytes")),
                            (["--collective", "gather"], ("--collective: gather", "all_gather")),
                            (["--collective", "all", "--plot", "x.svg"], ("--plot", "one")),
                            (["--ways", "fastest"], ("--ways", "fastest"))):
            self.refused(2, *parts, args=["bench", "allreduce", *args])
        self.refused(2, "--ways: tree", args=["bench", "allreduce", "--ways", "tree", "--sizes", "8"], ranks=2)

    def test_cycles_end_by_their_count_or_by_an_interrupt(self):
        result, text = self.bench("--cycles", "3", "--sizes", "4KiB", ranks=2)
        self.assertEqual((result["cycles"], text.count("# Out of bounds values : 0 OK")), (3, 3))
        file = self.folder / "endless.json"
        process = subprocess.Popen([*MPI, "-np", "2", PROGRAM, "bench", "allreduce", "--cycles", "0", "--sizes", "8",
                                    "--repeats", "1", "--json", file], stdout=subprocess.PIPE, text=True,
                                   start_new_session=True)
        try:
            while "# cycle 3" not in process.stdout.readline():
                self.assertIsNone(process.poll())
            children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
            os.kill(int(children[0]), signal.SIGINT)
            text, _ = process.communicate(timeout=60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        self.assertEqual(process.returncode, 0, text)
        self.assertGreaterEqual(json.loads(file.read_text())["cycles"], 3)

    def test_any_launcher_starts_any_number_of_ranks(self):
        options = ["--sizes", "4KiB", "--repeats", "1", "--warmup", "0", "--launches", "1"]
        ranks = len(os.sched_getaffinity(0)) + 1  # more than there are cores
        result, _ = self.bench(*options, "--ranks", ranks)
        self.assertEqual((result["world_size"], result["launches"]), (ranks, 1))
        self.assertIn("mpi-ring", {row["algorithm"] for row in result["rows"]})
        self.assertEqual(result["launcher"]["command"][0], "mpirun")
        self.assertEqual(len({rank["pid"] for rank in result["ranks"]}), ranks)
        # Some launchers put the rank before each line.
        self.bench(*options, "--ranks", "2", "--launcher", " ".join([*MPI, "--tag-output"]))
        # One that answers as MPICH's does, and takes no more than it does.
        hydra = self.folder / "mpiexec"
        hydra.write_text("#!/bin/sh\n[ \"$1\" = --version ] && { printf 'HYDRA build details:\\n    Version: 4.0.2\\n'; exit; }\n"
                         f"[ \"$1\" = -n ] && [ \"$3\" = {os.path.realpath(PROGRAM)} ] || {{ echo \"unknown: $*\" >&2; exit 9; }}\n"
                         f"exec {' '.join(MPI)} \"$@\"\n")
        hydra.chmod(0o755)
        result, _ = self.bench(*options, "--ranks", "2", "--launcher", hydra)
        self.assertEqual({row["algorithm"] for row in result["rows"]}, {"levels", "mpi", "ring", "leader"})
        self.assertEqual(result["launcher"], {"command": [str(hydra)], "version": "MPICH 4.0.2"})
        # A launcher that loses what rank 0 prints is named.
        self.refused(1, "true", "printed no results", args=["bench", "allreduce", "--ranks", "2", "--launcher", "true"])

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

    def test_the_rank_that_fails_is_heard_in_its_own_words_and_with_its_code(self):
        tight = [PROGRAM, "train", *SMALL, "--budget", "70%", "--host-budget"]
        for sizes in (("1GiB", "2MiB"), ("2MiB", "1GiB")):
            done = subprocess.run([*MPI, "-np", "1", *tight, sizes[0], ":", "-np", "1", *tight, sizes[1]],
                                  capture_output=True, text=True, timeout=120)
            self.assertIn("host budget of 2.00 MiB", done.stderr)
            self.assertNotIn("was interrupted", done.stderr)
            self.assertEqual(done.returncode, 3, done.stderr)

    def test_ranks_that_were_started_with_unlike_options_are_told_which(self):
        def launch(command, first, second):
            one = [PROGRAM, *command]
            return subprocess.run([*MPI, "-np", "1", *one, *first, ":", "-np", "1", *one, *second], capture_output=True,
                                  text=True, timeout=50)  # less than --comm-timeout's 60 s

        train = ["train", *OTHERS["mlp"], "--steps", "2"]
        for command, first, second, said in (
                (train, ["--budget", "1GiB"], [], "rank 1 was started without --budget, and rank 0 with --budget …"),
                (train, ["--budget", "1GiB"], ["--budget", "90%"],
                 "rank 1 was started with --budget …%, and rank 0 with --budget …"),
                (train, ["--lr", "0.1"], ["--lr", "0.2"], "rank 1 was started with --lr 0.2, and rank 0 with --lr 0.1"),
                (train, [], ["--checkpoint", self.folder / "c"],
                 "rank 1 was started with --checkpoint …, and rank 0 without --checkpoint"),
                (["bench", "allreduce"], ["--sizes", "8"], ["--sizes", "16"],
                 "rank 1 was started with --sizes 16, and rank 0 with --sizes 8"),
                (["topo"], ["--measure"], [], "rank 1 was started without --measure, and rank 0 with --measure")):
            done = launch(command, map(str, first), map(str, second))
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(said, done.stderr)
        file = self.folder / "result.json"
        done = launch(train, ["--budget", "1GiB", "--json", str(file)], ["--budget", "2GiB", "--quiet", "--host-budget", "64MiB"])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(file.read_text())["world_size"], 2)


if __name__ == "__main__":
    main()
