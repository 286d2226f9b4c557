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
        self.refused(2, "ranks 2", "has 1", args=["train", *options, "--grad-worker-frac", "1", "--steps", "5",
                                                  "--checkpoint", folder, "--resume"])

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
    main()
