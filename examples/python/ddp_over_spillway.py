"""Data-parallel training over Spillway's collectives, each rank under a budget.

torchrun --nproc-per-node 2 examples/python/ddp_over_spillway.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import spillway
import spillway.distributed


def main():
    dist.init_process_group("spillway")
    torch.manual_seed(0)
    with spillway.Session(budget="256MiB", processes_of_host=dist.get_world_size()) as session:
        model = DistributedDataParallel(nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)))
        optimizer = spillway.optim.AdamW(model.parameters(), 1e-3)
        torch.manual_seed(dist.get_rank())  # every rank has data of its own
        x, y = torch.randn(256, 1024), torch.randn(256, 1024)
        for step in range(5):
            with session.step():
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean, dist.ReduceOp.AVG)
            if dist.get_rank() == 0:
                print(f"step {step + 1}: loss {mean.item():.6f}", flush=True)
        if dist.get_rank() == 0:
            print(f"peak {session.stats()['peak_bytes'] >> 20} MiB of 256 MiB")
            print(spillway.distributed.explain(size="16MiB"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
