"""Models of tests of K-FAC, options that make it exact, and a comparison of gradients."""

import functools
import unittest

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import spillway

# No sampling, truncation or clipping, and curvature in every step.
EXACT = {
    "factor_samples": "exact",
    "rank": "full",
    "factor_interval": 1,
    "inverse_interval": 1,
    "norm_clip": float("inf"),
    "kl_clip": float("inf"),
    "damping_scope": "layer",
    "damping": 0.3,
}
REENTRANT, PLAIN = functools.partial(checkpoint, use_reentrant=True), functools.partial(checkpoint, use_reentrant=False)


def directly(function, *args):
    return function(*args)


class Net(nn.Module):
    """Residual blocks with dropout; `run` runs each of them."""

    def __init__(self, run=directly, width=12):
        super().__init__()
        torch.manual_seed(7)
        self.stem = nn.Conv2d(1, 3, 2)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.Tanh(), nn.Dropout(0.2), nn.Linear(2 * width, width))
            for _ in range(2)
        )
        self.head, self.run = nn.Linear(width, 3), run

    def forward(self, x):
        x = self.run(self.stem, x).flatten(1)
        for block in self.blocks:
            x = x + self.run(block, x)
        return self.head(x)


def images():
    return torch.randn(16, 1, 3, 3, generator=torch.Generator().manual_seed(8)).requires_grad_()


def natural(model, x=None, loss_of=None, given=None, **options):
    """Returns the gradients of a step before and after K-FAC, by parameter."""
    kfac = spillway.KFAC(given or model, 0.1, **(EXACT | options))
    torch.manual_seed(9)
    output = model(images() if x is None else x)
    loss = loss_of(output) if loss_of else nn.functional.cross_entropy(output, torch.arange(16) % 3)
    loss.backward()
    before = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    kfac.step()
    return before, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


class KfacCase(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        torch.manual_seed(0)

    def expect_same(self, got, expected):
        self.assertEqual(list(got[1]), list(expected[1]))
        for name in expected[1]:
            for one, other in zip((got[0][name], got[1][name]), (expected[0][name], expected[1][name]), strict=True):
                self.assertLess(((one - other).norm() / other.norm()).item(), 1e-6, name)
        self.assertTrue(any(not torch.equal(expected[0][n], expected[1][n]) for n in expected[0]))
