#!/usr/bin/env python3
"""Prints every include that the folders' table does not allow: check_includes.py ROOT.

So it does with includes that bring MPI, hwloc or CUDA to a file that is not theirs, and with those that lead from a
public header to one that is not installed. Fails when there is one, when the table has a cycle, when a folder has more
than 30 files, and when there was nothing to look at.
"""

import collections
import fnmatch
import os
import re
import sys

MOST_FILES = 30

# Which folders each may include, besides itself and core. The order is the one in which they can be built.
TABLE = """
core
core/memory
core/host
core/device          core/host core/memory
swap/tiers           core/memory
swap/pager           core/memory swap/tiers
swap/schedule        swap/pager swap/tiers
swap/conductor       swap/pager swap/schedule
swap/windows         core/memory
swap/gate            core/device core/host core/memory swap/conductor swap/pager swap/schedule swap/tiers swap/windows
swap/shapes          swap/gate swap/windows
swap/optim           swap/gate
swap                 core/memory swap/gate swap/pager
ddl/comm             core/host
ddl/allreduce        ddl/comm
ddl/topology         core/host ddl/allreduce ddl/comm
ddl/nccl             ddl/comm
ddl/sockets          core/host ddl/comm
ddl/courier          ddl/comm
ddl/point_to_point   ddl/comm
ddl/torch            core/device ddl/allreduce ddl/comm ddl/courier ddl/nccl
ddl/process_group    ddl/allreduce ddl/comm ddl/point_to_point ddl/torch
kfac/plan
pipe
kfac/factors         kfac/plan
kfac/inverse         kfac/factors kfac/plan
kfac/comm            ddl/allreduce ddl/comm ddl/torch kfac/factors kfac/inverse kfac/plan
kfac/refresh         kfac/comm kfac/factors kfac/inverse kfac/plan
kfac                 ddl/comm ddl/torch kfac/comm kfac/factors kfac/inverse kfac/plan kfac/refresh
runtime/recording    core/device swap swap/gate swap/schedule swap/tiers
runtime/pictures     runtime/recording
runtime/passes
runtime/models       runtime/passes
runtime/io           swap
runtime/data         core/memory runtime/io runtime/models
runtime/options      kfac/plan runtime/io runtime/models runtime/passes swap/gate swap/tiers swap/windows
runtime/planning     core/memory ddl/allreduce ddl/comm kfac/plan runtime/options swap/schedule
runtime/results      kfac/plan runtime/options runtime/recording swap/schedule
runtime/report       runtime/options runtime/pictures runtime/planning runtime/recording runtime/results
runtime/interruption ddl/comm ddl/torch runtime/models runtime/passes swap/gate
runtime/pipeline     ddl/allreduce ddl/comm ddl/courier ddl/torch kfac kfac/plan pipe runtime/models runtime/options runtime/passes \
                     runtime/results
runtime/training     core/device core/host ddl/allreduce ddl/comm ddl/torch kfac kfac/comm kfac/factors kfac/plan pipe runtime/data \
                     runtime/interruption runtime/io runtime/models runtime/options runtime/passes runtime/pipeline runtime/planning \
                     runtime/recording runtime/results swap swap/gate swap/optim swap/schedule swap/shapes swap/tiers
runtime/dry_runs     core/host core/memory ddl/allreduce ddl/comm ddl/torch kfac/factors kfac/plan kfac/refresh pipe runtime/data runtime/models runtime/passes \
                     runtime/options runtime/pipeline runtime/planning runtime/training swap/schedule swap/shapes swap/windows
tools/cli            core/device core/host ddl/allreduce ddl/comm ddl/topology runtime/data runtime/models runtime/options \
                     runtime/training
tools/ddlrun         core/host ddl/allreduce ddl/comm tools/cli
benchmarks/pipeline  core/host ddl/comm ddl/courier pipe runtime/planning tools/cli
benchmarks/commands  core/device core/host kfac kfac/factors kfac/inverse runtime/data runtime/io runtime/models runtime/passes \
                     runtime/pipeline runtime/planning runtime/report runtime/results runtime/training swap swap/schedule \
                     benchmarks/pipeline tools/cli
benchmarks/allreduce core/device ddl/allreduce ddl/comm ddl/torch runtime/pictures benchmarks/commands tools/cli tools/ddlrun
benchmarks/reproduce core/device core/host ddl/allreduce kfac/plan pipe runtime/dry_runs runtime/options runtime/planning tools/cli
benchmarks           core/device ddl/allreduce ddl/comm ddl/torch kfac kfac/inverse kfac/plan runtime/data runtime/dry_runs runtime/models \
                     runtime/training swap swap/schedule swap/shapes swap/tiers
python/bindings      ddl/comm ddl/process_group ddl/sockets kfac kfac/plan runtime/pictures runtime/recording swap swap/gate swap/schedule
tools/spillway       core/device core/host ddl/allreduce ddl/comm ddl/topology ddl/torch runtime/data runtime/dry_runs runtime/models \
                     runtime/passes runtime/planning runtime/report runtime/interruption runtime/results runtime/training tools/cli benchmarks/commands
"""
# Headers of libraries, and the only files that may include them.
OWNERS = [
    (r"mpi\.h", ["ddl/comm/*mpi*.cpp", "benchmarks/persistent_requests.cpp"]),
    (r"hwloc(\.h|/.*)", ["core/host/*.cpp", "core/host/hwloc_topology.h"]),
    (
        r"((cuda|cublas|cusolver|cusparse|curand|cufft|cupti|nccl|nvml|nvToolsExt|nvtx)[^/]*\.(h|hpp|cuh)"
        r"|(ATen|c10)/(native/)?cuda/.*|torch/csrc/cuda/.*|nvtx3/.*)",
        ["*_cuda.cpp", "*.cu"],
    ),
]
SOURCES = (".h", ".hpp", ".cpp", ".cu", ".cuh")


def read_table():
    table = {}
    for line in TABLE.replace("\\\n", " ").strip().split("\n"):
        folder, *others = line.split()
        unknown = [other for other in others if other not in table]
        if unknown:  # each stands below those that it includes, so there is no cycle
            sys.exit(f"the table is not in order: {folder} may include {', '.join(unknown)}, which stand below it")
        table[folder] = {folder, "core", *others}
    return table


def public_headers(folder):
    """The headers that a folder's CMakeLists.txt installs."""
    try:
        with open(f"{folder}/CMakeLists.txt", encoding="utf-8") as file:
            lists = re.findall(r"\bHEADERS\s((?:\s*[\w/]+\.h)+)", file.read())
    except FileNotFoundError:
        return set()
    return {f"{folder}/{name}" for names in lists for name in names.split()}


def main():
    os.chdir(sys.argv[1])
    table = read_table()
    public = set().union(*(public_headers(folder) for folder in table))
    rooms = {folder.split("/")[0] for folder in table}
    looked, complaints = 0, []
    files = collections.Counter()
    for room in sorted(rooms):
        for folder, _, names in os.walk(room):
            for name in sorted(names):
                if not name.endswith(SOURCES):
                    continue
                files[folder] += 1
                path = f"{folder}/{name}"
                with open(path, encoding="utf-8") as file:
                    lines = file.read().split("\n")
                for number, line in enumerate(lines, 1):
                    found = re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line)
                    if not found:
                        continue
                    looked += 1
                    header = found.group(1)
                    target = os.path.dirname(header)
                    if header.startswith("../") or "/../" in header:
                        complaints.append(f'{path}:{number}: "{header}" climbs; write "room/folder/file.h"')
                    elif target.split("/")[0] in rooms and target not in table.get(folder, ()):
                        allowed = " ".join(sorted(table.get(folder, ()))) or "nothing: it is not in the table"
                        complaints.append(
                            f"{path}:{number}: {folder} may not include {target} ({header}); it may include: {allowed}"
                        )
                    if path in public and target.split("/")[0] in rooms and header not in public:
                        complaints.append(
                            f"{path}:{number}: {header} is not installed, but this public header includes it"
                        )
                    for pattern, owners in OWNERS:
                        if re.fullmatch(pattern, header) and not any(fnmatch.fnmatch(path, owner) for owner in owners):
                            complaints.append(f"{path}:{number}: <{header}> belongs in {' or '.join(owners)}")
    for folder, count in sorted(files.items()):
        if count > MOST_FILES:
            complaints.append(f"{folder}:1: {count} files; {MOST_FILES} are the most")
        if folder not in table:
            complaints.append(f"{folder}:1: the table in {sys.argv[0]} does not name this folder")
    complaints += [
        f"{header}:1: is to be installed, but is not there" for header in sorted(public) if not os.path.exists(header)
    ]
    if looked == 0:
        complaints.append("no includes found")
    print(
        "\n".join([*complaints, f"{looked} includes looked at, {len(public)} public headers, {len(complaints)} wrong"])
    )
    sys.exit(1 if complaints else 0)


main()
