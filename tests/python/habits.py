"""What tests of Python programs' habits share: a tensor that is away, and a small training."""

import contextlib
import io
import unittest

import numpy as np
import torch
from torch import nn

import spillway

MIB = 1 << 20
COUNT = MIB // 4
EXPECTED = np.arange(COUNT, dtype=np.float32)


def send_away():
    """Makes so many tensors that those before have left."""
    ones = torch.zeros(COUNT) + 1
    return [ones + i for i in range(8)]


@contextlib.contextmanager
def absent_tensor():
    """A Session of 5 MiB, and in it a tensor of 1 MiB whose bytes are away."""
    with spillway.Session(budget="5MiB") as session:
        x = torch.arange(COUNT, dtype=torch.float32)
        others = send_away()
        try:
            x.data_ptr()
        except RuntimeError:
            yield session, x
        else:
            raise AssertionError("the tensor is not away")
        del others


def save(thing, **options):
    file = io.BytesIO()
    torch.save(thing, file, **options)
    return file.getvalue()


def parameters_of(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def make_net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 256))


def train(net=None, optimizer=torch.optim.Adam, forward=None, after=None, steps=3, **options):
    """Trains a net of some 2 MiB; returns losses and weights."""
    net = net or make_net()
    rule = optimizer(net.parameters(), lr=1e-3, **options)
    torch.manual_seed(4)
    x, y = torch.randn(128, 256), torch.randn(128, 256)
    losses = []
    for _ in range(steps):
        rule.zero_grad()
        loss = nn.functional.mse_loss(forward(net, x) if forward else net(x), y)
        loss.backward()
        if after:
            after(net)
        rule.step()
        losses.append(loss.item())
    return losses, parameters_of(net)


class Habits(unittest.TestCase):
    def expect_same(self, work, budget=None):
        """Does the work without a Session and under a tight budget, and expects the same bits."""
        plain = work()
        with spillway.Session() as session:
            work()
            floor = session.floor_bytes
        with spillway.Session(budget=budget or floor + floor // 10) as session:
            tight = work()
            self.assertGreater(session.stats()["page_outs"], 0)
        self.assert_equal(plain, tight)

    def assert_equal(self, one, other):
        if isinstance(one, torch.Tensor):
            self.assertTrue(torch.equal(one, other))
        elif isinstance(one, (list, tuple)):
            self.assertEqual(len(one), len(other))
            for a, b in zip(one, other, strict=True):
                self.assert_equal(a, b)
        else:
            self.assertEqual(one, other)
