"""A training that is small, and the comparison of two of them."""

import contextlib
import unittest

import torch
from torch import nn


def small_model():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv3d(1, 8, 3, padding=1),
        nn.InstanceNorm3d(8, affine=True),
        nn.LeakyReLU(),
        nn.Conv3d(8, 8, 3, padding=1),
        nn.InstanceNorm3d(8, affine=True),
        nn.LeakyReLU(),
        nn.Conv3d(8, 8, 3, padding=1),
        nn.BatchNorm3d(8),
        nn.ReLU(inplace=True),
        nn.Conv3d(8, 2, 1),
    )


def train(session=None, steps=3, autocast=False):
    """Trains a small model; returns losses and every tensor of its state."""
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    inputs, targets = torch.randn(1, 1, 24, 24, 24), torch.randint(0, 2, (1, 24, 24, 24))
    losses = []
    for _ in range(steps):
        with session.step() if session else contextlib.nullcontext():
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, [tensor.clone() for tensor in model.state_dict().values()]


class TrainingCase(unittest.TestCase):
    def expect_equal(self, one, other):
        self.assertEqual(one[0], other[0])
        for a, b in zip(one[1], other[1], strict=True):
            self.assertTrue(torch.equal(a, b))
