"""Tests of optimizers that take their parameters in groups."""

import copy
import unittest

import torch
from torch import nn

import spillway
from spillway import optim


def model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 5))


def train(make, steps=6, start=None, rate=None):
    net = copy.deepcopy(start) if start else model()
    optimizer = make(net.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, rate) if rate else None
    torch.manual_seed(5)
    x, y = torch.randn(16, 20), torch.randn(16, 5)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
        if schedule:
            schedule.step()
    return net, optimizer


PAIRS = [
    (torch.optim.Adam, optim.Adam, {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
    (torch.optim.AdamW, optim.AdamW, {"lr": 0.01}),
    (torch.optim.SGD, optim.SGD, {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
]


class OptimTest(unittest.TestCase):
    def expect_equal(self, one, other):
        for a, b in zip(one.parameters(), other.parameters(), strict=True):
            self.assertTrue(torch.equal(a, b))

    def test_steps_are_those_of_torch_bit_for_bit(self):
        for theirs, ours, options in PAIRS:
            for way in ({}, {"foreach": True}, {"fused": True}):
                for group_bytes in (1, 6000, 1 << 25):
                    with self.subTest(ours, way=way, group_bytes=group_bytes):
                        if "amsgrad" in options and "fused" in way:
                            continue
                        a, _ = train(lambda p: theirs(p, **options, **way), rate=0.9)
                        b, _ = train(lambda p: ours(p, **options, **way, group_bytes=group_bytes), rate=0.9)
                        self.expect_equal(a, b)

    def test_state_goes_to_torch_and_back(self):
        for theirs, ours, options in PAIRS:
            with self.subTest(ours):
                start, begun = train(lambda p: ours(p, **options), steps=3)

                def resume(make):
                    def made(parameters):
                        optimizer = make(parameters, **options)
                        optimizer.load_state_dict(copy.deepcopy(begun.state_dict()))  # which keeps tensors
                        return optimizer

                    return train(made, steps=3, start=start)[0]

                self.expect_equal(resume(theirs), resume(ours))

    def test_hooks_run_once_and_closures_give_the_loss(self):
        torch.optim.Adam(model().parameters())  # torch wraps a class's step when it makes the first one
        net = model()
        optimizer = optim.Adam(net.parameters(), group_bytes=1)
        calls = []
        optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
        optimizer.register_step_post_hook(lambda *_: calls.append("after"))

        def closure():
            optimizer.zero_grad()
            loss = net(torch.ones(2, 20)).square().mean()
            loss.backward()
            return loss

        self.assertGreater(optimizer.step(closure).item(), 0)
        self.assertEqual(calls, ["before", "after"])
        self.assertEqual(len(optimizer.param_groups), 1)

    def test_a_copied_optimizer_steps(self):
        _, optimizer = train(lambda p: optim.SGD(p, lr=0.1, momentum=0.9))
        copy.deepcopy(optimizer).step()

    def test_a_scaler_steps_them(self):
        net = model()
        for fused in (False, True):
            optimizer = optim.Adam(net.parameters(), fused=fused, group_bytes=1)
            optimizer.zero_grad()
            scaler = torch.amp.GradScaler("cpu")
            scaler.scale(net(torch.ones(2, 20)).square().mean()).backward()
            before = net[0].weight.clone()
            scaler.step(optimizer)
            scaler.update()
            self.assertFalse(torch.equal(before, net[0].weight))
            net[0].weight.grad.fill_(float("inf"))
            before = net[0].weight.clone()
            optimizer_of_inf = optim.Adam(net.parameters(), fused=fused, group_bytes=1)
            scaler.step(optimizer_of_inf)
            self.assertTrue(torch.equal(before, net[0].weight))

    def test_lamb_follows_its_formulas(self):
        net, _ = train(lambda p: optim.Lamb(p, lr=0.01, weight_decay=0.1, group_bytes=6000), steps=4)
        expected = model().double()
        state = [(torch.zeros_like(p), torch.zeros_like(p)) for p in expected.parameters()]
        torch.manual_seed(5)
        x, y = torch.randn(16, 20).double(), torch.randn(16, 5).double()
        for t in range(1, 5):
            loss = nn.functional.mse_loss(expected(x), y)
            gradients = torch.autograd.grad(loss, list(expected.parameters()))
            with torch.no_grad():
                for p, g, (m, v) in zip(expected.parameters(), gradients, state, strict=True):
                    m.mul_(0.9).add_(0.1 * g)
                    v.mul_(0.999).add_(0.001 * g * g)
                    r = (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-6) + 0.1 * p
                    p.sub_(0.01 * p.norm() / r.norm() * r)
        for a, b in zip(net.parameters(), expected.parameters(), strict=True):
            self.assertLess((a - b).norm() / b.norm(), 1e-5)

    def test_the_floor_is_that_of_a_group(self):
        def floor(make):
            with spillway.Session() as session:
                net = nn.Sequential(*[nn.Linear(256, 256) for _ in range(8)])
                optimizer = make(net.parameters())
                with session.step():
                    net(torch.ones(2, 256)).sum().backward()
                    optimizer.step()
                return session.stats()

        whole = floor(lambda p: torch.optim.Adam(p, fused=True))
        grouped = floor(lambda p: optim.Adam(p, fused=True, group_bytes=1))
        self.assertLess(grouped["floor_bytes"], whole["floor_bytes"] / 4)
        self.assertGreater(grouped["peak_by_category"].get("optimizer", 0), 0)

    def test_refuses_what_makes_no_sense(self):
        parameters = list(model().parameters())
        for options in ({"group_bytes": 0}, {"group_bytes": 1.5}, {"betas": (1, 0)}, {"lr": -1}, {"eps": -1}):
            with self.subTest(options), self.assertRaises(ValueError):
                optim.Lamb(parameters, **options)


if __name__ == "__main__":
    unittest.main()
