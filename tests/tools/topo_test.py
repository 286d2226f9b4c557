"""spillway topo, and --levels that are looked up."""

import json
import os
import pathlib
import socket
import subprocess
import unittest

from cli import MPI, OTHERS, PROGRAM, Case, main, run

FOUR_GPUS = pathlib.Path(__file__).parent.parent / "core" / "host" / "data" / "four_gpus.xml"
# What hwloc takes the host for: two NUMA nodes of a core each. Ranks run on CPUs 0 and 1, which must be there.
TWO_NODES = dict(os.environ, HWLOC_SYNTHETIC="numa:2 core:1 pu:1")


def bits(numbers):
    """A set as hwloc writes it: words of 32 bits."""
    mask = sum(1 << number for number in set(numbers))
    return ",".join(f"0x{mask >> 32 * word & 0xFFFFFFFF:08x}" for word in range(max(numbers) // 32, -1, -1))


def machine_xml(*nodes):
    """The hwloc file of a machine with NUMA nodes that have these CPUs."""

    def place(cpus, numbers):
        return "".join(
            f' {prefix}{kind}="{value}"'
            for kind, value in (("cpuset", bits(cpus)), ("nodeset", bits(numbers)))
            for prefix in ("", "complete_", "allowed_")
        )

    lines = []
    for number, cpus in enumerate(nodes):
        near = place(cpus, [number])
        lines.append(f'<object type="Package" os_index="{number}"{near}>')
        lines.append(f'<object type="NUMANode" os_index="{number}"{near} local_memory="1073741824"/>')
        lines += [
            f'<object type="Core" os_index="{cpu}"{place([cpu], [number])}>'
            f'<object type="PU" os_index="{cpu}"{place([cpu], [number])}/></object>'
            for cpu in cpus
        ]
        lines.append("</object>")
    everything = place([cpu for cpus in nodes for cpu in cpus], range(len(nodes)))
    return "\n".join(
        [
            '<?xml version="1.0" encoding="UTF-8"?>',
            '<!DOCTYPE topology SYSTEM "hwloc2.dtd">',
            '<topology version="2.0">',
            f'<object type="Machine" os_index="0"{everything}>',
            *lines,
            "</object>",
            "</topology>",
            "",
        ]
    )


DRAWN = """\
example: 8 cores, 128 GiB
├─ package 0: Example CPU 4
│  └─ NUMA node 0: 4 cores, 64.0 GiB
│     ├─ PCIe switch 0000:11:00.0
│     │  ├─ GPU 0000:13:00.0: NVIDIA Example 40GB, PCIe 15.8 GB/s, NVLink 50 GB/s (group 0)
│     │  ├─ GPU 0000:14:00.0: NVIDIA Example 40GB, PCIe 15.8 GB/s, NVLink 50 GB/s (group 0)
│     │  └─ NIC 0000:15:00.0: ib0, mlx5_0, Example Fabric Adapter, PCIe 15.8 GB/s
│     ├─ NIC 0000:20:00.0: eth0, 8086:1521, PCIe 1 GB/s
│     └─ NIC 0000:20:00.1: eth1, 8086:1521, PCIe 1 GB/s
└─ package 1: Example CPU 4
   └─ NUMA node 1: 4 cores, 64.0 GiB
      └─ PCIe switch 0000:81:00.0
         ├─ GPU 0000:83:00.0: NVIDIA Example 40GB, PCIe 15.8 GB/s, NVLink 50 GB/s (group 0)
         └─ GPU 0000:84:00.0: NVIDIA Example 40GB, PCIe 15.8 GB/s, NVLink 50 GB/s (group 0)
"""


class Topo(Case):
    def topo(self, *args, **kwargs):
        """What is printed, and the JSON."""
        file = self.folder / "topo.json"
        done = run("topo", *args, "--json", file, **kwargs)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout, json.loads(file.read_text())

    four = ()  # the ranks of one launch, which tests share

    def halves(self):
        """Of the CPUs that four ranks here run on, those of the first two and of the others."""
        if not Topo.four:
            Topo.four = self.topo(ranks=4)[1]["ranks"]
        first, second = (
            sorted({cpu for rank in half for cpu in rank["cpus"]}) for half in (Topo.four[:2], Topo.four[2:])
        )
        if set(first) & set(second):
            self.skipTest("needs two cores")
        return first, second

    def two_processors(self):
        if not {0, 1} <= os.sched_getaffinity(0):
            self.skipTest("needs CPUs 0 and 1")

    def test_this_machine(self):
        text, found = self.topo()
        (host,) = found["hosts"]
        self.assertTrue(text.startswith(f"{host['hostname']}: "), text)
        self.assertGreaterEqual(host["cores"], 1)
        self.assertGreater(host["memory_bytes"], 0)
        self.assertGreaterEqual(len(host["numa"]), 1)
        self.assertEqual(text.count("NUMA node"), len(host["numa"]))
        self.assertEqual((found["levels"], found["ranks"], found["links"]), (None, [], []))

    @unittest.skipUnless(os.geteuid() == 0, "not root")
    def test_a_container_without_sys(self):
        hidden = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /sys && exec "$@"', "sh"]
        if subprocess.run([*hidden, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("mounts are not allowed here")
        done = subprocess.run([*hidden, PROGRAM, "topo"], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        cores = self.topo()[1]["hosts"][0]["cores"]
        self.assertIn(f": {cores} core", done.stdout)

    def test_a_made_up_machine(self):
        text, found = self.topo(env=dict(os.environ, HWLOC_SYNTHETIC="package:2 numa:2 core:3 pu:2"))
        self.assertEqual(found["hosts"][0]["cores"], 12)
        self.assertEqual([node["package"] for node in found["hosts"][0]["numa"]], [0, 0, 1, 1])
        self.assertEqual(text.count("3 cores"), 4, text)

    def test_a_machine_from_a_file(self):
        text, found = self.topo("--xml", FOUR_GPUS)
        self.assertEqual(text, DRAWN)
        (host,) = found["hosts"]
        self.assertEqual((host["hostname"], len(host["gpus"]), len(host["nics"])), ("example", 4, 3))
        self.assertEqual(host["gpus"][2]["pcie_switch"], "0000:81:00.0")
        self.assertEqual(host["gpus"][2]["nvlink_bytes_per_second"], 50e9)
        self.assertEqual(host["nics"][0]["interfaces"], ["ib0", "mlx5_0"])
        self.assertIsNone(host["nics"][0]["bits_per_second"])
        self.assertIsNone(host["nics"][1]["pcie_switch"])

    def test_what_is_refused(self):
        self.refused(2, "'/no/such.xml'", "No such file", args=["topo", "--xml", "/no/such.xml"])
        broken = self.folder / "broken.xml"
        broken.write_text(FOUR_GPUS.read_text()[:5000])
        self.refused(2, str(broken), "lstopo", args=["topo", "--xml", broken])
        self.refused(2, "--measure", "mpirun", args=["topo", "--measure"])
        self.refused(2, "--measure", "mpirun", args=["topo", "--xml", FOUR_GPUS, "--measure"])
        self.refused(2, "--measure", "2 and more", args=["topo", "--measure"], ranks=1)
        self.refused(2, "--xml", "without mpirun", args=["topo", "--xml", FOUR_GPUS], ranks=2)
        self.refused(2, "--levels", "--xml", args=["topo", "--xml", FOUR_GPUS, "--levels", "2x2"])
        self.refused(2, "'2x2'", "1 are running", args=["topo", "--levels", "2x2"])
        self.refused(2, "'racks'", "hosts, discover", "4x2", args=["topo", "--levels", "racks"])
        self.refused(2, "'4x2'", "2 are running", args=["topo", "--levels", "4x2"], ranks=2)
        self.refused(1, "no/such/folder", args=["topo", "--json", self.folder / "no/such/folder/x.json"])

    def test_ranks_are_drawn_on_their_host(self):
        text, found = self.topo(ranks=2)
        self.assertEqual(found["levels"], "2")
        name = found["hosts"][0]["hostname"]
        self.assertIn(f"levels 2\n└─ host {name}: ranks 0-1\n", text)
        self.assertEqual(text.count("NUMA node"), len(found["hosts"][0]["numa"]), "one host is drawn once")
        self.assertEqual(
            [(rank["rank"], rank["host"], rank["groups"]) for rank in found["ranks"]], [(0, name, [0]), (1, name, [0])]
        )
        self.assertEqual((found["links"], found["host_latency_seconds"]), ([], None))
        text, found = self.topo(ranks=1)
        self.assertEqual(found["levels"], "1")
        self.assertIn("1 rank\n", text)

    def test_links_are_measured_level_by_level(self):
        text, found = self.topo("--measure", "--levels", "2x2", ranks=4)
        self.assertEqual([link["level"] for link in found["links"]], [1, 2])
        for link in found["links"]:
            self.assertGreater(link["latency_seconds"], 0)
            self.assertGreater(link["bytes_per_second"], 0)
        self.assertEqual([link["between"] for link in found["links"]], ["ranks", "parts of a host"])
        self.assertIn("level 2, between parts of a host: ", text)
        self.assertIsNone(found["host_latency_seconds"], "there is one host")
        self.assertEqual([rank["groups"] for rank in found["ranks"]], [[0, 0], [0, 0], [1, 0], [1, 0]])

    def test_ranks_near_the_same_memory_are_a_level(self):
        self.two_processors()
        text, found = self.topo("--levels", "discover", ranks=4, env=TWO_NODES)
        self.assertEqual(found["levels"], "2x2")
        self.assertEqual([rank["numa_nodes"] for rank in found["ranks"]], [[0], [0], [1], [1]])
        self.assertEqual(
            text[text.index("levels") :],
            f"levels 2x2\n└─ host {found['hosts'][0]['hostname']}\n"
            "   ├─ NUMA node 0: ranks 0-1\n   └─ NUMA node 1: ranks 2-3\n",
        )
        _, found = self.topo("--levels", "hosts", ranks=4, env=TWO_NODES)
        self.assertEqual(found["levels"], "4")

    def test_hosts_are_as_a_file_says(self):
        halves = self.halves()
        file = self.folder / "two.xml"
        file.write_text(machine_xml(*halves))
        text, found = self.topo("--levels", file, ranks=4)
        (host,) = found["hosts"]
        self.assertEqual(found["levels"], "2x2")
        self.assertEqual(host["hostname"], socket.gethostname())
        self.assertEqual(tuple(node["cpus"] for node in host["numa"]), halves)
        self.assertEqual([rank["numa_nodes"] for rank in found["ranks"]], [[0], [0], [1], [1]])
        self.assertIn(
            f"levels 2x2\n└─ host {host['hostname']}\n   ├─ NUMA node 0: ranks 0-1\n   └─ NUMA node 1: ranks 2-3\n",
            text,
        )
        _, found = self.topo("--levels", file, ranks=2)
        self.assertEqual((found["levels"], found["ranks"][1]["numa_nodes"]), ("2", [1]))
        _, found = self.topo("--levels", file)
        self.assertEqual((found["levels"], len(found["hosts"][0]["numa"])), (None, 2))
        _, found = self.topo(
            "--levels", "discover", ranks=4, env=dict(os.environ, HWLOC_XMLFILE=str(file), HWLOC_THISSYSTEM="1")
        )
        self.assertEqual(found["levels"], "2x2")

    def test_files_that_do_not_say_where_ranks_are(self):
        first, second = self.halves()
        broken, half = self.folder / "broken.xml", self.folder / "half.xml"
        broken.write_text("no XML")
        half.write_text(machine_xml(first))
        for program in (["topo"], ["train", *OTHERS["mlp"]]):
            for ranks in (0, 2):
                self.refused(
                    2, "'/no/such.xml'", "No such file", args=[*program, "--levels", "/no/such.xml"], ranks=ranks
                )
                self.refused(2, str(broken), "lstopo", args=[*program, "--levels", broken], ranks=ranks)
            self.refused(2, str(half), f"no CPU {second[0]};", "(rank 1)", args=[*program, "--levels", half], ranks=2)
        self.refused(
            2, "'/no/such.xml'", "No such file", args=["bench", "allreduce", "--levels", "/no/such.xml"], ranks=2
        )

    def test_a_file_that_one_host_lacks_is_refused_on_all(self):
        here, there = self.folder / "here", self.folder / "there"
        for folder in (here, there):
            folder.mkdir()
        (here / "machine.xml").write_text(machine_xml(*self.halves()))
        topo = [os.path.abspath(PROGRAM), "topo", "--levels", "machine.xml"]
        for first, second, rank in ((here, there, 1), (there, here, 0)):
            done = subprocess.run(
                [*MPI, "-np", "1", "--wdir", first, *topo, ":", "-np", "1", "--wdir", second, *topo],
                capture_output=True,
                text=True,
                timeout=50,
                check=False,
            )
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertEqual(done.stdout, "")
            (said,) = [line for line in done.stderr.splitlines() if line.startswith("spillway: ")]
            self.assertIn("'machine.xml': No such file", said)
            self.assertIn(f"(rank {rank})", said)

    def test_training_and_allreduces_take_the_same_levels(self):
        self.two_processors()
        file = self.folder / "result.json"
        two = self.folder / "two.xml"
        two.write_text(machine_xml(*self.halves()))
        for args, levels in (
            (["train", *OTHERS["mlp"], "--steps", "2"], lambda result: result["allreduce"]["levels"]),
            (["bench", "allreduce", "--sizes", "4KiB", "--repeats", "1"], lambda result: result["levels"]),
        ):
            for words, expected, env in (
                (["--levels", "discover"], "2x2", TWO_NODES),
                (["--levels", two], "2x2", None),
                (["--levels", "hosts"], "4", TWO_NODES),
                ([], "4", TWO_NODES),
            ):
                done = run(*args, *words, "--json", file, ranks=4, env=env)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(levels(json.loads(file.read_text())), expected)
        self.refused(2, "'racks'", "hosts, discover", args=["train", *OTHERS["mlp"], "--levels", "racks"], ranks=2)
        for words in ("hosts", "discover"):
            done = run("train", *OTHERS["mlp"], "--steps", "1", "--levels", words)
            self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    main()
