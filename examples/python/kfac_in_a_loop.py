"""K-FAC in a loop of PyTorch: SGD with Nesterov's momentum takes the steps, and nothing else changes.

python examples/python/kfac_in_a_loop.py
"""

import torch
from torch import nn

import spillway


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 14 * 14, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def train(model, optimizer, kfac=None, steps=60):
    """Fits noisy pictures of ten random patterns; returns the last loss."""
    random = torch.Generator().manual_seed(1)
    patterns = torch.randn(10, 1, 28, 28, generator=random)
    for _ in range(steps):
        labels = torch.randint(0, 10, (64,), generator=random)
        pictures = patterns[labels] + 3 * torch.randn(64, 1, 28, 28, generator=random)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pictures), labels)
        loss.backward()
        if kfac:
            kfac.step()
        optimizer.step()
    return loss.item()


def main():
    model = make_model()
    print(f"Adam:  {train(model, torch.optim.Adam(model.parameters(), 1e-3)):.4f}")
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, nesterov=True)
    kfac = spillway.KFAC(model, optimizer)
    print(f"K-FAC: {train(model, optimizer, kfac):.4f}, layers {', '.join(kfac.layers)}")


if __name__ == "__main__":
    main()
