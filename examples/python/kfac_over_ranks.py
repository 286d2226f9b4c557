"""K-FAC over data-parallel ranks, which share its work: half of them precondition a layer.

torchrun --nproc-per-node 2 examples/python/kfac_over_ranks.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import spillway


def make_batch(patterns, random):
    """Returns noisy pictures of the patterns."""
    labels = torch.randint(0, 10, (64,), generator=random)
    return patterns[labels] + 3 * torch.randn(64, *patterns.shape[1:], generator=random), labels


def main():
    dist.init_process_group("spillway")
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(8 * 14 * 14, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, nesterov=True)
    kfac = spillway.KFAC(model, optimizer, grad_worker_frac=0.5)
    patterns = torch.randn(10, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    random = torch.Generator().manual_seed(2 + dist.get_rank())  # every rank has data of its own
    for step in range(30):
        pictures, labels = make_batch(patterns, random)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pictures), labels)
        loss.backward()
        kfac.step()
        optimizer.step()
        if step % 10 == 9:
            mean = loss.detach().clone()
            dist.all_reduce(mean, dist.ReduceOp.AVG)
            if dist.get_rank() == 0:
                print(f"step {step + 1}: loss {mean.item():.4f}", flush=True)
    held = torch.tensor([kfac.stats()["bytes"]["eigenbases"]])
    dist.all_reduce(held)
    if dist.get_rank() == 0:
        print(f"eigenbases: {held.item() >> 10} KiB on all ranks together")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
