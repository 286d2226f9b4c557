r"""Times all_reduce of torch.distributed over the backend spillway and over gloo, in turns, in the same processes.

    torchrun --nproc-per-node 4 benchmarks/distributed_backends.py
    scripts/emulated-hosts up 2 && MASTER_ADDR=10.78.0.1 scripts/emulated-hosts run 2x3 python \
        benchmarks/distributed_backends.py

Prints, by size, the median milliseconds of each and the median of the ratios of neighbors.
"""

import argparse
import datetime
import os
import statistics
import time

import torch
import torch.distributed as dist

import spillway
import spillway.distributed

SIZES = {"4KiB": 4 << 10, "64KiB": 64 << 10, "1MiB": 1 << 20, "4MiB": 4 << 20, "16MiB": 16 << 20, "64MiB": 64 << 20}


def from_mpirun():
    """Sets what torchrun would set, where mpirun started this process."""
    if "RANK" not in os.environ and "OMPI_COMM_WORLD_RANK" in os.environ:
        os.environ["RANK"] = os.environ["OMPI_COMM_WORLD_RANK"]
        os.environ["WORLD_SIZE"] = os.environ["OMPI_COMM_WORLD_SIZE"]
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29511")


def seconds_of(group, x, calls):
    dist.barrier(group=group)
    began = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(x, group=group)
    return (time.perf_counter() - began) / calls


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--seconds", type=float, default=3, help="for each size")
    args = parser.parse_args()
    from_mpirun()
    torch.set_num_threads(1)
    dist.init_process_group("spillway", timeout=datetime.timedelta(seconds=120))
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        os.environ["GLOO_SOCKET_IFNAME"] = spillway_interface()
    gloo = dist.new_group(backend="gloo")
    rank = dist.get_rank()
    if rank == 0:
        print(spillway.distributed.explain(size="16MiB"))
        print(f"{'size':>8} {'spillway ms':>12} {'gloo ms':>10} {'gloo/spillway':>14}")
    for name in args.sizes:
        x = torch.zeros(SIZES[name] // 4)
        both = seconds_of(None, x, 1) + seconds_of(gloo, x, 1)
        calls = torch.tensor([max(1, int(args.seconds / 10 / both))])
        dist.broadcast(calls, 0)
        ours, theirs = [], []
        for _ in range(9):
            ours.append(seconds_of(None, x, calls.item()))
            theirs.append(seconds_of(gloo, x, calls.item()))
        if rank == 0:
            ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
            print(
                f"{name:>8} {1e3 * statistics.median(ours):12.3f} "
                f"{1e3 * statistics.median(theirs):10.3f} {ratio:14.2f}",
                flush=True,
            )
    dist.destroy_process_group()


def spillway_interface():
    """Returns the network interface of this host's own address, for gloo."""
    import socket

    own = spillway.distributed._own_address(dist.HashStore(), "")
    for _, name in socket.if_nameindex():
        try:
            if spillway.distributed._address_of_interface(name) == own:
                return name
        except OSError:
            continue
    return "lo"


if __name__ == "__main__":
    main()
