"""A loop of PyTorch under half of the memory that it would take: two lines more than without Spillway.

python examples/python/two_lines.py
"""

import torch
from torch import nn

import spillway


def train(session, steps=5):
    """Trains a small 3-D net on noise, and returns the losses. Nothing but `session.step()` is Spillway's."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv3d(1, 16, 3, padding=1),
        nn.InstanceNorm3d(16, affine=True),
        nn.LeakyReLU(),
        nn.Conv3d(16, 16, 3, padding=1),
        nn.InstanceNorm3d(16, affine=True),
        nn.LeakyReLU(),
        nn.Conv3d(16, 2, 1),
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    volume, labels = torch.randn(1, 1, 64, 64, 64), torch.randint(0, 2, (1, 64, 64, 64))
    losses = []
    for _ in range(steps):
        with session.step():
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(volume), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def main():
    with spillway.Session() as session:  # no budget: it counts what the training takes
        unlimited = train(session)
        peak, floor = session.stats()["peak_bytes"], session.floor_bytes
    budget = max(peak // 2, floor + floor // 20)
    with spillway.Session(budget=budget) as session:
        losses = train(session)
        stats = session.stats()
    mib = 1 << 20
    print(
        f"peak {peak / mib:.0f} MiB; under a budget of {budget / mib:.0f} MiB "
        f"it held {stats['peak_bytes'] / mib:.0f} MiB"
    )
    print(f"losses {losses[0]:.6f} → {losses[-1]:.6f}, the same bits: {losses == unlimited}")


if __name__ == "__main__":
    main()
