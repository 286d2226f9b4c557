"""How ranks were launched: their CPUs, their levels, and the links between them."""

import itertools
import json
import os
import re
import shutil
import subprocess
import unittest

from cli import MPI, MPIRUN, OTHERS, PROGRAM, Case, main, run


@unittest.skipIf(MPIRUN is None, "built without MPI")
class Launches(Case):
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
