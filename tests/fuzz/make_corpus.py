#!/usr/bin/env python3
"""Writes what the fuzzers start from: tests/fuzz/make_corpus.py [FOLDER]. The same bytes every time.

Inputs of findings are kept beside these by hand, as found-*.
"""

import gzip
import hashlib
import json
import pathlib
import struct
import sys

HERE = pathlib.Path(__file__).parent
ROOT = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "corpus"


def put(target, name, data):
    folder = ROOT / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def put_machine(name, data):
    put("machine_xml", name, data)
    put("machine_import", name, data)


def nifti(
    dims=(3, 4, 3, 2, 1, 1, 1, 1), datatype=4, bits=16, order="<", offset=352.0, slope=1.0, data=None, magic=b"n+1\0"
):
    header = bytearray(348)
    struct.pack_into(order + "i", header, 0, 348)
    struct.pack_into(order + "8h", header, 40, *dims)
    struct.pack_into(order + "hh", header, 70, datatype, bits)
    struct.pack_into(order + "8f", header, 76, 1, 0.5, 2, 3, 1, 1, 1, 1)
    struct.pack_into(order + "fff", header, 108, offset, slope, 0)
    header[123] = 2
    header[344:348] = magic
    voxels = max(0, dims[1] * dims[2] * dims[3]) if data is None else 0
    return bytes(header) + b"\0\0\0\0" + (bytes(voxels * bits // 8) if data is None else data)


def make_nifti():
    def gz(data):
        return gzip.compress(data, mtime=0)

    for name, datatype, bits in [
        ("uint8", 2, 8),
        ("int16", 4, 16),
        ("int32", 8, 32),
        ("float32", 16, 32),
        ("float64", 64, 64),
        ("int8", 256, 8),
        ("uint64", 1280, 64),
        ("rgb", 128, 24),
    ]:
        put("nifti", name, b"\0" + nifti(datatype=datatype, bits=bits))
    put("nifti", "big-endian", b"\0" + nifti(order=">"))
    put("nifti", "scaled", b"\0" + nifti(slope=0.5))
    put("nifti", "nan", b"\0" + nifti(datatype=16, bits=32, data=struct.pack("<f", float("nan")) * 24))
    put("nifti", "four-dimensions", b"\0" + nifti(dims=(4, 4, 3, 2, 1, 1, 1, 1)))
    put("nifti", "huge", b"\0" + nifti(dims=(3, 32767, 32767, 32767, 1, 1, 1, 1), data=b"x"))
    put("nifti", "negative", b"\0" + nifti(dims=(3, -4, 3, 2, 1, 1, 1, 1)))
    put("nifti", "far-offset", b"\0" + nifti(offset=1e20))
    put("nifti", "pair", b"\0" + nifti(magic=b"ni1\0"))
    whole = gz(nifti())
    put("nifti", "gz", b"\1" + whole)
    put("nifti", "gz-cut", b"\1" + whole[:-5])
    put("nifti", "gz-members", b"\1" + gz(b"") + gz(nifti()[:360]) + gz(nifti()[360:]) + bytes(40))
    put("nifti", "gz-members-cut", b"\1" + gz(nifti()) + whole[:-3])
    placed = bytearray(nifti())
    struct.pack_into("<2h6f12f", placed, 252, 1, 1, 0, 0, 1, 15, 20, -7, -1, 0, 0, 15, 0, -1, 0, 20, 0, 0, 1, -7)
    put("nifti", "sform", b"\0" + placed)
    struct.pack_into("<h", placed, 254, 0)
    put("nifti", "qform", b"\0" + placed)
    struct.pack_into("<h12f", placed, 254, 1, *[0] * 12)
    put("nifti", "sform-of-zeros", b"\0" + placed)
    put("nifti", "gz-bomb", b"\1" + gz(nifti(dims=(3, 100, 100, 200, 1, 1, 1, 1), datatype=2, bits=8)))
    put("nifti", "gz-promises", b"\1" + gz(nifti(dims=(3, 40, 40, 40, 1, 1, 1, 1), data=b"x")))
    put("nifti", "stored", b"\2" + nifti())


def tensors(header, data, digests=True, pad=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data + pad


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def make_safetensors():
    data = struct.pack("<2f", 1, 2) + struct.pack("<q", 7)
    good = {
        "__metadata__": {"who": "a test"},
        "weight": entry("F32", [2], 0, 8),
        "steps": entry("I64", [], 8, 16),
        "sha256": entry("U8", [3, 32], 16, 112),
    }
    text = json.dumps(good).encode()
    rows = b"".join(hashlib.sha256(part).digest() for part in (text, data[:8], data[8:]))
    put("safetensors", "good", tensors(text, data + rows))
    put("safetensors", "truncated", tensors(text, data + rows[:-1]))
    put("safetensors", "too-long", tensors(text, data + rows, pad=b"x"))
    put("safetensors", "no-checksums", tensors({"weight": entry("F32", [2], 0, 8)}, data[:8]))
    put(
        "safetensors",
        "checksums-first",
        tensors({"sha256": entry("U8", [2, 32], 0, 64), "weight": entry("F32", [2], 64, 72)}, rows[:64] + data[:8]),
    )
    top = 2**63 - 1
    for name, changed in {
        "overlap": entry("I64", [], 4, 12),
        "hole": entry("I64", [], 12, 20),
        "backwards": entry("I64", [], 16, 8),
        "negative-shape": entry("I64", [-1], 8, 16),
        "two-negatives": entry("I64", [-1, -1], 8, 16),
        "overflow": entry("I64", [2**61, 2**61], 8, 16),
        "wraps": entry("I64", [2**61], 8, 8),
        "far": entry("U8", [8], top - 8, top),
        "unsigned": entry("I64", [2**64 - 1], 8, 16),
        "fraction": entry("I64", [1.5], 8, 16),
        "huge-fraction": entry("I64", [1e300], 8, 16),
        "text-shape": entry("I64", "8", 8, 16),
        "other-type": entry("Q8", [1], 8, 16),
    }.items():
        put("safetensors", name, tensors({**good, "steps": changed}, data + rows))
    put("safetensors", "nan-shape", tensors(text.replace(b"[2]", b"[NaN]"), data + rows))
    put("safetensors", "twice", tensors(text.replace(b"steps", b"weight"), data + rows))
    put("safetensors", "metadata-number", tensors({**good, "__metadata__": {"who": 7}}, data + rows))
    put("safetensors", "deep", tensors(b'{"a":' + b"[" * 2000 + b"]" * 2000 + b"}", b""))
    put("safetensors", "long-length", struct.pack("<Q", 2**64 - 1) + b"{}")
    put("safetensors", "length-past-the-end", struct.pack("<Q", 1000) + b"{}")


def make_texts():
    put(
        "page_files",
        "all-kinds",
        "\0spillway-1-2@h.pages\n\1spillway-3-4@h.pages\n\2spillway-5-6@h.pages\n\3spillway-7-8@h.pages\n"
        "\0spillway-9-10-11@h.pages\n\0spillway-1-2-3-4@h.pages\n\0notes.txt",
    )
    put("page_files", "name", "spillway-1-2@h.pages")
    put("page_files", "name-number", "spillway-1-2-3@h.pages")
    put("page_files", "no-numbers", "spillway--@h.pages")
    put("page_files", "short", "spillway-@h.pages")

    for name in ("four_gpus.xml", "eight_gpus.xml"):
        source = HERE.parent / "core" / "host" / "data" / name
        put_machine(name, source.read_bytes())
    small = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
<object type="Machine" os_index="0" cpuset="{all}" complete_cpuset="{all}" allowed_cpuset="{all}" nodeset="0x1" complete_nodeset="0x1" allowed_nodeset="0x1" gp_index="1">
<info name="HostName" value="a"/>
<object type="NUMANode" os_index="0" cpuset="{all}" complete_cpuset="{all}" nodeset="0x1" complete_nodeset="0x1" gp_index="2" local_memory="{memory}"/>
<object type="Package" os_index="0" cpuset="{all}" complete_cpuset="{all}" nodeset="0x1" complete_nodeset="0x1" gp_index="3">
<object type="Core" os_index="0" cpuset="{all}" complete_cpuset="{all}" nodeset="0x1" complete_nodeset="0x1" gp_index="4">
<object type="PU" os_index="0" cpuset="{all}" complete_cpuset="{all}" nodeset="0x1" complete_nodeset="0x1" gp_index="5"/>
</object>
</object>
</object>
</topology>
"""
    put_machine("small", small.format(all="0x1", memory=1 << 30))
    put_machine("all-cpus", small.format(all="0xf...f", memory=1 << 30))
    put_machine("memory", small.format(all="0x1", memory=2**64 - 1))
    put_machine("no-close", small[:-30])
    put_machine(
        "entities",
        '<!DOCTYPE a [<!ENTITY b "cc"><!ENTITY d "&b;&b;">]><topology version="2.0"><info name="&d;"/></topology>',
    )
    put_machine("empty", "<topology/>")

    put("host_lists", "open-mpi", "\0# the cluster\ngpu01 slots=4 max_slots=8\n gpu02\tslots = 2 # few\r\ngpu03\n")
    put("host_lists", "mpich", "\0gpu01:4\ngpu02:16\ngpu01\n")
    put("host_lists", "too-many", "\0a slots=2 max-slots=3\na slots=2\n")
    put("host_lists", "option", "\1gpu01:4,gpu02:4,10.0.0.7")
    put("host_lists", "no-count", "\1a:,b:0,c:99999999999999999999")

    slurm = "SLURM_JOB_NODELIST="
    put("batch_systems", "slurm", slurm + "gpu[01-03,7],login1\nSLURM_TASKS_PER_NODE=4(x4),2\nSLURM_JOB_ID=1")
    put("batch_systems", "slurm-cpus", slurm + "r[1-2]n[01-02]\nSLURM_JOB_CPUS_PER_NODE=64(x4)\nSLURM_CPUS_PER_TASK=16")
    put("batch_systems", "slurm-tasks", slurm + "a,b\nSLURM_NTASKS_PER_NODE=2")
    put("batch_systems", "slurm-last-number", slurm + "n[18446744073709551615]\nSLURM_NTASKS_PER_NODE=2")
    put("batch_systems", "slurm-many", slurm + "n[0-99999" + ",0-99999" * 50 + "]\nSLURM_NTASKS_PER_NODE=2")
    put("batch_systems", "slurm-long", slurm + "n[" + "0" * 3000 + "-99999]\nSLURM_NTASKS_PER_NODE=2")
    put("batch_systems", "lsf-file", "LSB_JOBID=7\nLSB_DJOB_HOSTFILE=launch|gpu1|gpu1|gpu2|gpu2|")
    put("batch_systems", "lsf-mcpu", "LSB_MCPU_HOSTS=a 4 b 4")
    put("batch_systems", "lsf-hosts", "LSB_HOSTS=a a b")
    put("batch_systems", "grid-engine", "PE_HOSTFILE=gpu1 4 all.q@gpu1 UNDEFINED|gpu2 4 all.q@gpu2 UNDEFINED|")

    layer = {"layer": "down0.conv", "samples": "auto", "rank": "64", "interval": 6, "slot": 5}
    put(
        "curvature_plans",
        "good",
        json.dumps([layer, {**layer, "samples": "exact", "rank": "full", "interval": 4, "slot": 0}]),
    )
    put("curvature_plans", "result", json.dumps({"kfac": {"plan": [layer]}}))
    for name, changed in {
        "long": {"interval": 1021},
        "huge": {"interval": 1e300},
        "late": {"slot": 6},
        "negative": {"slot": -1},
        "rank": {"rank": "9" * 40},
        "samples": {"samples": "0"},
        "number": {"layer": 3},
    }.items():
        put("curvature_plans", name, json.dumps([layer, {**layer, **changed}]))
    put("curvature_plans", "deep", "[" * 1500 + "]" * 1500)

    link = {
        "latency_seconds": 1e-6,
        "message_seconds": 1e-7,
        "bytes_per_second": 3e9,
        "piece_bytes": 65536,
        "by_cores": True,
    }
    costs = {
        "of": {"hosts": ["a", "b"], "levels": [[0, 0, 1, 1], [0, 0, 0, 0]], "mpi": "some"},
        "measured_at": 1790000000,
        "costs": {"levels": [link, {**link, "piece_bytes": 2**63 - 1}], "reduce_seconds_per_byte": 1e-10},
    }
    put("link_costs", "good", json.dumps(costs))
    for name, changed in {
        "few": [link],
        "huge": [link, {**link, "piece_bytes": 1e300}],
        "negative": [link, {**link, "latency_seconds": -1}],
        "text": [link, {**link, "by_cores": "yes"}],
    }.items():
        put("link_costs", name, json.dumps({**costs, "costs": {**costs["costs"], "levels": changed}}))
    put("link_costs", "another", json.dumps({**costs, "of": {}}))
    put("link_costs", "deep", '{"of":' + "[" * 1500 + "]" * 1500 + "}")

    record = {
        "hostname": "a",
        "kernel": "6.1",
        "mpi": "Open MPI v4.1.4, x",
        "cores": 2,
        "memory_bytes": 1 << 34,
        "gpus": ["A100"],
        "networks": [{"name": "eth0", "infiniband": False, "megabits": 25000}],
        "program": "/bin/prog",
        "files": [{"name": "prog", "path": "/bin/prog", "hash": "0123456789abcdef"}],
        "missing": [],
    }
    report = {
        "world_size": 4,
        "hosts": [0, 0, 1, 1],
        "levels": "2x2",
        "mpi": "x",
        "records": [{"rank": 0, "record": record}, {"rank": 2, "record": {**record, "hostname": "b"}}],
        "costs": [{"latency_seconds": 1e-6, "bytes_per_second": 1e9}] * 2,
    }
    put("reports", "good", "\0noise\nddlrun-report " + json.dumps(report) + "\nnoise")
    put("reports", "other-mpi", "\0ddlrun-report " + json.dumps({"world_size": 1}) + "\n")
    put("reports", "placed-otherwise", "\0ddlrun-report " + json.dumps({**report, "hosts": [0, 1, 0, 1]}) + "\n")
    put(
        "reports",
        "memory",
        "\0ddlrun-report "
        + json.dumps(
            {
                **report,
                "records": [
                    {"rank": 0, "record": {**record, "memory_bytes": -(2**63)}},
                    {"rank": 1, "record": {**record, "memory_bytes": 2**63 - 1}},
                ],
            }
        )
        + "\n",
    )
    put(
        "reports",
        "letters",
        "\0ddlrun-report "
        + json.dumps(
            {
                **report,
                "records": [
                    {
                        "rank": rank,
                        "record": {**record, "files": [{"name": "prog", "path": "/", "hash": "0123456789a" + letter}]},
                    }
                    for rank, letter in ((0, "\u00e9"), (2, "\u00e8"))
                ],
            },
            ensure_ascii=False,
        )
        + "\n",
    )
    put("reports", "deep", '\0ddlrun-report {"world_size":' + "[" * 1500 + "]" * 1500 + "}\n")
    device = {
        "bus_id": "0000:3b:00.0",
        "name": "A100",
        "package": 0,
        "numa": None,
        "pcie_switch": None,
        "pci_bytes_per_second": 1e9,
    }
    machine = {
        "hostname": "a",
        "cores": 2,
        "memory_bytes": 1 << 34,
        "packages": [{"number": 0, "model": None}],
        "numa": [{"number": 0, "package": 0, "memory_bytes": 1 << 34, "cores": 2, "cpus": [0, 1]}],
        "gpus": [{**device, "nvlink_group": 0, "nvlink_bytes_per_second": 1e11}],
        "nics": [{**device, "interfaces": ["eth0"], "bits_per_second": None}],
    }
    launch = json.dumps({"rows": [{"bytes": 8, "seconds": 1e-6}]}).encode().hex()
    put("reports", "launch", "\2spillway-launch: " + launch + "\n")
    put(
        "reports",
        "launch-tagged",
        "\2[1,0]<stdout>:spillway-launch: " + launch[:7] + "[1,0]<stdout>:" + launch[7:] + "\n",
    )
    put("reports", "machine", "\1" + json.dumps(machine))
    put("reports", "machine-huge", "\1" + json.dumps({**machine, "cores": 1e300}))
    put(
        "reports",
        "machine-negative-rate",
        "\1"
        + json.dumps(
            {
                **machine,
                "gpus": [],
                "nics": [{**device, "pci_bytes_per_second": -1e9, "interfaces": [], "bits_per_second": None}],
            }
        ),
    )

    for i, text in enumerate(
        (
            "600MiB",
            "1.5GiB",
            "16GB",
            "4096",
            "512 KiB",
            "9.2e18",
            "9223372036854775807",
            "-1",
            "9999999TiB",
            "nan",
            "0." + "0" * 400 + "1",
        )
    ):
        put("sizes", f"bytes-{i}", "\0" + text)
    for i, text in enumerate(("155x240x240", "96", "1x1", "32768", "1x2x3x4", "0", "18446744073709551617")):
        put("sizes", f"shape-{i}", "\1" + text)
    for i, (ranks, text) in enumerate(
        ((8, "4x2"), (6, "4+2"), (16, "4x2x2"), (4, "65536x65536"), (1, "1"), (0, "1x0"), (5, "1000000+1000000"))
    ):
        put("sizes", f"levels-{i}", bytes([2, ranks]) + text.encode())
    put("sizes", "count", "\3" + "100000")
    put("sizes", "count-large", "\3" + "9223372036854775808")

    put("words", "quoted", '\0ssh -o \'a b\' "c\\"d" e\\ f')
    put("words", "open-quote", "\0ssh 'a")
    put(
        "words",
        "ldd",
        "\1\tlinux-vdso.so.1 (0x00007ffd)\n\tlibm.so.6 => /lib/libm.so.6 (0x1)\n\tlibx.so => not found\n\t/lib64/ld-linux.so.2 (0x2)\n",
    )
    put("words", "open-mpi", "\2mpirun (Open MPI) 4.1.4\n\nReport bugs to x\n")
    put("words", "mpich", "\2HYDRA build details:\n    Version: 4.0.2\n")
    put("words", "intel", "\2Intel(R) MPI Library for Linux* OS, Version 2021.8 Build 20221129\n")
    put("words", "version-large", "\2mpirun (Open MPI) 99999999999999999999.1\n")


def notice(kind, sender, origin, reason):
    return struct.pack("<iiii496s", kind, sender, origin, 7, reason)


def vote(operation, rank, count=0, detail=b"", sequence=0):
    return struct.pack("<iiqQq40sq", operation, -1, count, 0, sequence, detail, rank)


def make_wires():
    address = "spillway 2 boot/4026531840/a/b 123 456 127.0.0.1 40000 spillway-7-8"
    for name, text in (
        ("good", address + " -"),
        ("signed", address + " " + "0" * 64),
        ("another", address.replace("2", "9", 1) + " -"),
        ("former", "host 123 127.0.0.1 40000 spillway-7-8"),
        ("few", "spillway 2 a b"),
        ("long-name", address + "x" * 100 + " -"),
        ("long", address + " " * 3000 + "-"),
        ("many", address + " - more"),
        ("huge", address.replace("456", "9" * 30) + " -"),
        ("empty", ""),
    ):
        put("addresses", name, "\0" + text)
        put("addresses", "secret-" + name, "\1" + text)

    hello = struct.pack("<QiiQQQ32s", 0x7370696C6C776179, 2, 1, 5, 6, 1, b"")
    put("connections", "http", b"\0GET / HTTP/1.0\r\n\r\n")
    put("connections", "token", b"\0" + hello)
    put("connections", "rank", b"\1" + hello)
    put("connections", "life", b"\1" + hello[:32] + bytes(8) + hello[40:] + b"more")
    put("connections", "nobody", b"\1" + hello[:12] + struct.pack("<i", 1 << 30) + hello[16:])
    message = struct.pack("<qQ", 2, 8) + b"8 bytes."
    put(
        "connections",
        "messages",
        b"\2" + struct.pack("<qQ", 1, 0) + message + struct.pack("<qQ", 3, 3000) + bytes(3000),
    )
    put("connections", "aside", b"\2" + struct.pack("<qQ", 77, 5000) + bytes(5000) + message)
    put("connections", "other-size", b"\2" + struct.pack("<qQ", 3, 5000) + bytes(5000) + message)
    put("connections", "cut", b"\2" + struct.pack("<qQ", 3, 3000) + bytes(100))
    put("connections", "promises", b"\2" + struct.pack("<qQ", 77, 1 << 45) + bytes(100))
    put("connections", "huge", b"\2" + struct.pack("<qQ", 2, (1 << 64) - 1) + bytes(100))

    put("notices", "gave-up", b"\0" + notice(0, 1, 1, b"no room"))
    put("notices", "passed-on", b"\0" + notice(2, 1, 1, b"") + notice(0, 2, 1, "\u00e9".encode() * 248))
    put("notices", "timed-out", b"\0" + notice(1, 1, 1, b"no answer"))
    put("notices", "no-end", b"\0" + notice(0, 1, 1, b"x" * 496))
    put(
        "notices",
        "nobody",
        b"\0" + notice(0, 3, 1, b"x") + notice(0, -1, 1, b"x") + notice(0, 1, 1 << 30, b"x") + notice(3, 1, 1, b"x"),
    )
    put("notices", "agrees", b"\1" + vote(0, 1) * 2)
    put("notices", "differs", b"\1" + vote(0, 1) + vote(2, 1, 100, b"float32"))
    put("notices", "votes-of-nobody", b"\1" + vote(0, 0) + vote(2, 1 << 40, 100, b"z" * 40))
    put("notices", "unknown", b"\1" + vote(-5, 1) + vote(99, 1, -3, b"z" * 40, -1))


make_nifti()
make_safetensors()
make_texts()
make_wires()
