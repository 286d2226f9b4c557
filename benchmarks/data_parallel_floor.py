"""Prints the floor, the least budget of a training step, with DistributedDataParallel and without.

torchrun --nproc-per-node 2 benchmarks/data_parallel_floor.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import spillway
import spillway.distributed

MIB = 1 << 20


def model():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(12)))


def floors(network, steps):
    """Returns each step's floor, in MiB. A Session's floor is that of all its steps, so every step has its own one."""
    found = []
    for _ in range(steps):
        with spillway.Session(processes_of_host=dist.get_world_size()) as session:
            with session.step():
                network(torch.randn(8, 1024)).sum().backward()
            found.append(f"{session.floor_bytes / MIB:.1f}")
    return found


def main():
    torch.set_num_threads(1)
    dist.init_process_group("spillway")
    networks = {
        "without": model(),
        "DDP": DistributedDataParallel(model()),
        "DDP, bucket_cap_mb=4": DistributedDataParallel(model(), bucket_cap_mb=4),
        "DDP, bucket_cap_mb_list=[4]": DistributedDataParallel(model(), bucket_cap_mb_list=[4]),
    }
    for name, network in networks.items():
        found = floors(network, 3)
        if dist.get_rank() == 0:
            print(f"{name:30} floor in MiB, step by step: {', '.join(found)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
