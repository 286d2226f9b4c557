"""`spillway bench allreduce`, in launches of its own and under mpirun."""

import json
import os
import pathlib
import re
import signal
import subprocess
import unittest
from xml.etree import ElementTree

from cli import MPI, MPIRUN, PROGRAM, Case, main, run


@unittest.skipIf(MPIRUN is None, "built without MPI")
class BenchAllreduce(Case):
    def test_allreduces_are_measured_in_one_launch_and_in_several(self):
        file = self.folder / "allreduce.json"
        done = run(
            *"bench allreduce --sizes 4KiB,100KiB --repeats 2 --levels 2+1 --json".split(),
            file,
            "--plot",
            self.folder / "allreduce.svg",
            "--explain",
            ranks=3,
        )
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
            self.assertRegex(
                row["explanation"],
                r"level 2, 1 group of 2 groups: .*; at least .* predicted .* waited .* % of the bound\)\n",
            )
            self.assertEqual(" x ".join(level["algorithm"] for level in row["by_level"]), row["plan"])
            for level in row["by_level"]:
                self.assertTrue(all(level[key] > 0 for key in level if key != "algorithm"), level)
        errors = {row["bytes"]: row["model_error"] for row in by_levels}
        self.assertEqual(
            one["model_error"],
            {
                "median": sum(errors.values()) / 2,
                "worst": max(errors.values()),
                "worst_bytes": max(errors, key=errors.get),
                "sizes": 2,
            },
        )
        self.assertRegex(
            done.stdout, r"\n# model: median error [0-9.]+ % over 2 sizes \(worst [0-9.]+ % at (4.00|100) KiB\)\n"
        )
        self.check_plot(self.folder / "allreduce.svg", ["bound", "levels", "mpi", "ring", "leader"], points=2)
        done = run(
            *"bench allreduce --sizes 4KiB --repeats 1 --ranks 2 --launches 2 --launcher".split(),
            " ".join(MPI),
            "--json",
            file,
            "--plot",
            self.folder / "several.svg",
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        several = json.loads(file.read_text())
        self.assertEqual(several["launches"], 2)
        self.assertEqual(
            [row["algorithm"] for row in several["rows"]],
            ["levels", "mpi", "ring", "leader", "mpi-ring", "mpi-rabenseifner"],
        )
        for row in several["rows"]:
            self.assertLessEqual(row["min_seconds"], row["seconds"])
            self.assertLessEqual(row["seconds"], row["p95_seconds"])
            self.assertEqual(row["bound_seconds"], several["rows"][0]["bound_seconds"])
        self.assertEqual((len(several["rows"][0]["by_launch"]), len(several["costs_by_launch"])), (2, 2))
        self.check_plot(
            self.folder / "several.svg",
            ["bound", "levels", "mpi", "ring", "leader", "mpi-ring", "mpi-rabenseifner"],
            points=1,
        )
        # Also before MPI has started.
        for args, parts in ((["--sizes", "3"], ("--sizes: 3", "4 bytes")), (["--type", "float8"], ("--type: float8",))):
            done = self.refused(2, *parts, args=["bench", "allreduce", *args], ranks=2)
            self.assertNotIn("MPI_INIT", done.stderr)
        for args, parts in (
            (["--sizes", "3"], ("--sizes: 3", "4 bytes")),
            ([], ("mpirun", "--ranks")),
            (["--sizes", "12", "--type", "int64"], ("--sizes: 12", "int64", "8 bytes")),
            (["--type", "float8"], ("--type: float8", "bfloat16")),
            (["--op", "product"], ("--op: product", "average")),
            (["--ranks", "2", "--launcher", " "], ("--launcher", "mpirun")),
            (["--device", "tpu"], ("--device is 'tpu'", "cpu, cuda or cuda:N")),
            (["--device", "cuda", "--explain"], ("--explain", "--device cpu")),
            (["--device", "cuda"], ("mpirun", "--ranks")),
        ):
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
        for type, op, by_mpi in (
            ("float64", "max", True),
            ("int32", "min", True),
            ("int64", "sum", True),
            ("float16", "sum", False),
            ("bfloat16", "average", False),
            ("int32", "average", False),
        ):
            done = run(
                "bench",
                "allreduce",
                "--type",
                type,
                "--op",
                op,
                *"--sizes 8,200KiB --repeats 1 --levels 2+1 --json".split(),
                file,
                ranks=3,
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            result = json.loads(file.read_text())
            self.assertEqual((result["type"], result["op"]), (type, op))
            self.assertEqual(
                {row["algorithm"] for row in result["rows"]},
                {"levels", "ring", "leader"} | ({"mpi"} if by_mpi else set()),
            )
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
        result, _ = self.bench(
            *"--type all --op all --sizes 8,1KiB --repeats 1 --warmup 0 --offset 8 --levels 2+1".split(),
            ranks=3,
        )
        self.assertEqual(len({(row["type"], row["op"]) for row in result["rows"]}), 6 * 4)
        self.assertEqual(result["offset_bytes"], 8)
        by_mpi = {(row["type"], row["op"]) for row in result["rows"] if row["algorithm"] == "mpi"}
        self.assertEqual(len(by_mpi), 4 * 3)
        self.assertNotIn(("float16", "sum"), by_mpi)

    def test_gloo_is_set_beside_the_others_in_launches_of_its_own(self):
        libraries = subprocess.run(["ldd", PROGRAM], capture_output=True, text=True, check=True).stdout
        torch = pathlib.Path(re.search(r"libtorch_cpu\.so => (\S+)", libraries).group(1))
        python = torch.parents[5] / "bin" / "python"  # …/lib/python3.N/site-packages/torch/lib/libtorch_cpu.so
        if not python.exists():
            self.skipTest("this torch came without a Python")
        options = ["--launches", "2", "--no-forced", "--gloo", python]
        result, said = self.bench(
            "--ranks", "2", "--iterations", "2", "--type", "float32,bfloat16", "--op", "sum,average,max", *options
        )
        self.assertEqual(result["gloo"]["python"], str(python))
        self.assertRegex(result["gloo"]["torch"], r"^\d+\.\d+")
        rows = [row for row in result["rows"] if row["algorithm"] == "gloo"]
        self.assertEqual(
            [(row["type"], row["op"], row["bytes"]) for row in rows],
            [
                (dtype, op, size)
                for dtype in ("float32", "bfloat16")
                for op in ("sum", "max")
                for size in (4096, 102400)
            ],
        )
        for row in rows:
            self.assertEqual((len(row["call_seconds"]), len(row["in_place_call_seconds"])), (4, 4))
            for times in (row, row["back_to_back"]):
                self.assertTrue(times["seconds"] > 0 and times["in_place_seconds"] > 0 and times["busbw"] > 0, row)
            self.assertGreater(row["percent_of_bound"], 0)
        self.assertRegex(said, r"#   gloo +: ")
        alone, _ = self.bench("--ranks", "2", "--no-forced", "--launches", "1")
        self.assertIsNone(alone["gloo"])
        for ranks, args, *words in (
            (0, ["--gloo", "no-such-python"], "no-such-python"),
            (0, ["--gloo", "false"], "'false' has no torch with gloo"),
            (0, ["--gloo", python, "--collective", "broadcast"], "sum, max or min"),
            (0, ["--gloo", python, "--device", "cuda"], "--device cpu"),
            (2, ["--gloo", python], "--ranks"),
        ):
            self.refused(
                2, *words, args=["bench", "allreduce", *([] if ranks else ["--ranks", "2"]), *args], ranks=ranks
            )

    def test_other_collectives_are_measured_beside_mpis(self):
        for ranks in (1, 2, 3):
            # 20 bytes are five elements, so parts differ, and 4 leave some ranks without one.
            result, text = self.bench(
                "--collective", "all", "--sizes", "4,20,100KiB", "--iterations", "2", "--offset", "4", ranks=ranks
            )
            ways = {}
            for row in result["rows"]:
                ways.setdefault(row["collective"], set()).add(row["algorithm"])
                self.assertEqual(row["op"], "sum" if "reduce" in row["collective"] else None)
                self.assertEqual(row["root"], 0 if row["collective"] == "broadcast" else None)
                factor = {"allreduce": 2 * (ranks - 1) / ranks, "broadcast": 1}.get(
                    row["collective"], (ranks - 1) / ranks
                )
                self.assertAlmostEqual(row["busbw"], row["algbw"] * factor)
            self.assertEqual(
                ways,
                {
                    "allreduce": {"levels", "mpi", "ring", "leader"},
                    "reduce_scatter": {"levels", "mpi"},
                    "all_gather": {"levels", "mpi"},
                    "broadcast": {"tree", "mpi"},
                },
            )
            for collective in ways:
                self.assertEqual(text.count(f"# collective: {collective}\n"), 2)
        half, _ = self.bench("--collective", "reduce_scatter", "--type", "bfloat16", "--op", "average", ranks=2)
        self.assertEqual({row["algorithm"] for row in half["rows"]}, {"levels"})
        moved, _ = self.bench("--collective", "all_gather,broadcast", "--type", "float16", "--op", "all", ranks=2)
        self.assertEqual(len(moved["rows"]), 8)

    def test_nccl_tests_sweeps_timing_and_lines_are_there(self):
        file = self.folder / "sweep.json"
        done = run(
            *(
                "bench allreduce --begin 8 --end 100 --factor 3 --iterations 5 --warmup 1 "
                "--repeats 3 --ways levels,mpi --json"
            ).split(),
            file,
            ranks=2,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(file.read_text())
        self.assertEqual([row["bytes"] for row in result["rows"]], [8, 8, 24, 24, 72, 72])
        self.assertEqual(
            result["timing"],
            {"warmup": 1, "repeats": 3, "average": "max", "iterations": 5, "back_to_back_average": "mean"},
        )
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
        for args, parts in (
            (["--begin", "2"], ("--begin: 2", "4 bytes")),
            (["--end", "8"], ("--begin",)),
            (["--begin", "8", "--factor", "1"], ("--factor is 1", "more than 1")),
            (["--begin", "8", "--sizes", "8"], ("--sizes", "--begin")),
            (["--average", "mode"], ("--average: mode", "rank0")),
            (["--offset", "2"], ("--offset: 2", "4 bytes")),
            (["--collective", "gather"], ("--collective: gather", "all_gather")),
            (["--collective", "all", "--plot", "x.svg"], ("--plot", "one")),
            (["--ways", "fastest"], ("--ways", "fastest")),
        ):
            self.refused(2, *parts, args=["bench", "allreduce", *args])
        self.refused(2, "--ways: tree", args=["bench", "allreduce", "--ways", "tree", "--sizes", "8"], ranks=2)

    def test_cycles_end_by_their_count_or_by_an_interrupt(self):
        result, text = self.bench("--cycles", "3", "--sizes", "4KiB", ranks=2)
        self.assertEqual((result["cycles"], text.count("# Out of bounds values : 0 OK")), (3, 3))
        file = self.folder / "endless.json"
        process = subprocess.Popen(
            [
                *MPI,
                "-np",
                "2",
                PROGRAM,
                *"bench allreduce --cycles 0 --sizes 8 --repeats 1 --json".split(),
                file,
            ],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            while "# cycle 3" not in process.stdout.readline():
                self.assertIsNone(process.poll())
            children = subprocess.run(
                ["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False
            ).stdout.split()
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
        hydra.write_text(
            "#!/bin/sh\n[ \"$1\" = --version ] && { printf 'HYDRA build details:\\n    Version: 4.0.2\\n'; exit; }\n"
            f'[ "$1" = -n ] && [ "$3" = {os.path.realpath(PROGRAM)} ] || {{ echo "unknown: $*" >&2; exit 9; }}\n'
            f'exec {" ".join(MPI)} "$@"\n'
        )
        hydra.chmod(0o755)
        result, _ = self.bench(*options, "--ranks", "2", "--launcher", hydra)
        self.assertEqual({row["algorithm"] for row in result["rows"]}, {"levels", "mpi", "ring", "leader"})
        self.assertEqual(result["launcher"], {"command": [str(hydra)], "version": "MPICH 4.0.2"})
        # A launcher that loses what rank 0 prints is named.
        self.refused(1, "true", "printed no results", args=["bench", "allreduce", "--ranks", "2", "--launcher", "true"])


if __name__ == "__main__":
    main()
