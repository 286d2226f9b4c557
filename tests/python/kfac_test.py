"""Tests of K-FAC in Python."""

import copy
import gc
import io
import unittest

import torch
from kfac_cases import EXACT
from torch import nn

import spillway


def conv_model():
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Conv3d(1, 4, 3, padding=1),
        nn.InstanceNorm3d(4, affine=True),
        nn.LeakyReLU(),
        nn.Conv3d(4, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 3),
    )


def train(model, steps=7, session=None, resume=None, first=0, **options):
    """Trains with K-FAC and SGD; returns losses, the model and the KFAC."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    kfac = spillway.KFAC(model, optimizer, **options)
    if resume:
        kfac.load_state_dict(resume[0])
        optimizer.load_state_dict(resume[1])
    losses = []
    for i in range(first, first + steps):
        torch.manual_seed(100 + i)
        x, y = torch.randn(4, 1, 8, 8, 8), torch.randint(0, 3, (4,))
        with session.step(kfac.kind) if session else torch.enable_grad():
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            kfac.step()
            optimizer.step()
            losses.append(loss.item())
    return losses, kfac, optimizer


class KfacTest(unittest.TestCase):
    def expect_equal(self, one, other):
        for a, b in zip(one.parameters(), other.parameters(), strict=True):
            self.assertTrue(torch.equal(a, b))

    def test_a_linear_layer_gets_the_dense_solution(self):
        torch.manual_seed(1)
        layer = nn.Linear(5, 4).double()
        x, y = torch.randn(16, 5, dtype=torch.double), torch.randn(16, 4, dtype=torch.double)
        kfac = spillway.KFAC(layer, 0.1, **EXACT)
        output = layer(x)
        output.retain_grad()
        (output - y).square().sum(1).mean().backward()
        gradient = torch.cat([layer.weight.grad, layer.bias.grad[:, None]], 1)
        a = torch.cat([x, torch.ones(16, 1)], 1)
        factor_a, factor_g = a.T @ a / 16, 16 * output.grad.T @ output.grad
        damping = 0.3 * factor_a.trace() / 6 * factor_g.trace() / 4
        fisher = torch.kron(factor_g, factor_a) + damping * torch.eye(24)
        expected = torch.linalg.solve(fisher, gradient.flatten()).view(4, 6)
        kfac.step()
        found = torch.cat([layer.weight.grad, layer.bias.grad[:, None]], 1)
        self.assertLess((found - expected).norm() / expected.norm(), 1e-7)

    def test_an_absolute_damping_is_added_to_the_curvature_itself(self):
        torch.manual_seed(1)
        layer = nn.Linear(5, 4).double()
        x, y = torch.randn(16, 5, dtype=torch.double), torch.randn(16, 4, dtype=torch.double)
        options = {key: value for key, value in EXACT.items() if not key.startswith("damping")}
        kfac = spillway.KFAC(layer, 0.1, absolute_damping=0.003, **options)
        for damping in (0.003, 0.02):
            kfac.damping = damping
            layer.zero_grad()
            output = layer(x)
            output.retain_grad()
            (output - y).square().sum(1).mean().backward()
            gradient = torch.cat([layer.weight.grad, layer.bias.grad[:, None]], 1)
            a = torch.cat([x, torch.ones(16, 1)], 1)
            fisher = torch.kron(16 * output.grad.T @ output.grad, a.T @ a / 16) + damping * torch.eye(24)
            expected = torch.linalg.solve(fisher, gradient.flatten()).view(4, 6)
            kfac.step()
            found = torch.cat([layer.weight.grad, layer.bias.grad[:, None]], 1)
            self.assertLess((found - expected).norm() / expected.norm(), 1e-7)

    def test_training_under_a_budget_changes_no_bit(self):
        plain = conv_model()
        losses, kfac, _ = train(plain)
        self.assertLess(losses[-1], losses[0] + 1)
        self.assertEqual(kfac.stats()["counters"]["steps"], 7)
        self.assertGreater(kfac.stats()["bytes"]["factors"], 0)
        with spillway.Session() as session:
            unlimited = conv_model()
            train(unlimited, session=session)
            stats = session.stats()
        self.assertGreater(stats["peak_by_category"]["factors"], 0)
        budget = max(stats["peak_bytes"] // 2, stats["floor_bytes"] * 21 // 20)
        self.assertLess(budget, stats["peak_bytes"])
        with spillway.Session(budget=budget) as session:
            tight = conv_model()
            train(tight, session=session)
            self.assertLessEqual(session.stats()["peak_bytes"], budget)
        self.expect_equal(plain, unlimited)
        self.expect_equal(plain, tight)

    def test_goes_on_from_its_state_bit_by_bit(self):
        whole, part = conv_model(), conv_model()
        train(whole, 8)
        _, kfac, optimizer = train(part, 5)
        state = copy.deepcopy((kfac.state_dict(), optimizer.state_dict()))
        kfac.remove()
        train(part, 3, resume=state, first=5)
        self.expect_equal(whole, part)
        with self.assertRaisesRegex(ValueError, "factor"):
            spillway.KFAC(nn.Linear(3, 3), 0.1).load_state_dict(state[0])

    def test_names_the_layers_and_those_that_are_left_alone(self):
        model = nn.ModuleDict(
            {
                "down": nn.Conv2d(1, 4, 3),
                "up": nn.ConvTranspose2d(4, 1, 3),
                "norm": nn.BatchNorm2d(4),
                "head": nn.Linear(4, 4),
                "frozen": nn.Linear(4, 4),
                "scaled": nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
            }
        )
        model["frozen"].weight.requires_grad_(False)
        kfac = spillway.KFAC(model, 0.1, skip=["^head$"])
        self.assertEqual(kfac.layers, ["down"])
        alone = dict(kfac.left_alone)
        self.assertIn("ConvTranspose2d", alone["up"])
        self.assertEqual(alone["head"], "skipped by name")
        self.assertIn("frozen", alone["frozen"])
        self.assertTrue(any(name.startswith("scaled") for name in alone))

    def test_sees_forward_passes_of_training_alone(self):
        model = conv_model()
        kfac = spillway.KFAC(model, 0.1)
        x = torch.randn(2, 1, 8, 8, 8)
        with torch.no_grad():
            model(x)
        model.eval()
        model(x)
        model.train()
        with kfac.no_watch():
            model(x).sum().backward()
        with self.assertRaisesRegex(RuntimeError, "watch"):
            kfac.step()
        model(x).mean().backward()
        kfac.step()
        self.assertEqual(kfac.stats()["counters"]["steps"], 1)

    def test_a_loss_that_is_watched_counts_like_a_forward_pass(self):
        seen, told = conv_model(), conv_model()
        first, second = spillway.KFAC(seen, 0.1), spillway.KFAC(told, 0.1)
        x = torch.randn(2, 1, 8, 8, 8)
        seen(x).square().mean().backward()
        with second.no_watch():
            loss = told(x).square().mean()
        second.watch(loss, 2)
        loss.backward()
        first.step()
        second.step()
        for a, b in zip(seen.parameters(), told.parameters(), strict=True):
            self.assertTrue(torch.equal(a.grad, b.grad))

    def test_a_model_with_a_kfac_is_copied_averaged_and_saved_without_it(self):
        model, x = conv_model(), torch.randn(2, 1, 8, 8, 8)
        kfac = spillway.KFAC(model, 0.1, factor_interval=1)
        averaged = torch.optim.swa_utils.AveragedModel(model)
        averaged.update_parameters(model)
        file = io.BytesIO()
        torch.save(model, file)
        self.assertNotIn(b"spillway", file.getvalue())
        file.seek(0)
        for other in (
            copy.deepcopy(model),
            copy.deepcopy(copy.deepcopy(model)),
            averaged.module,
            torch.load(file, weights_only=False),
        ):
            other.train()
            self.assertTrue(torch.equal(other(x), model(x)))
            kfac.discard()
            other(x).square().mean().backward()
            with self.assertRaisesRegex(RuntimeError, "watch"):
                kfac.step()
            own = spillway.KFAC(other, 0.1)
            other(x).square().mean().backward()
            own.step()
        model(x).square().mean().backward()
        kfac.step()
        self.assertEqual(kfac.stats()["counters"]["steps"], 1)

    def test_a_kfac_that_is_let_go_leaves_nothing_on_the_model(self):
        model = conv_model()
        kfac = spillway.KFAC(model, 0.1)
        self.assertEqual(len(model._forward_hooks), 1)
        loss = model(torch.randn(2, 1, 8, 8, 8)).square().mean()
        del kfac
        gc.collect()
        self.assertEqual(len(model._forward_hooks), 0)
        loss.backward()

    def test_follows_the_optimizers_schedule(self):
        model = conv_model()
        optimizer = torch.optim.SGD(model.parameters(), 0.4)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        kfac = spillway.KFAC(model, optimizer)
        for expected in (0.4, 0.2):
            model(torch.randn(2, 1, 8, 8, 8)).square().mean().backward()
            kfac.step()
            self.assertEqual(kfac._kfac.lr, expected)
            optimizer.step()
            schedule.step()
        kfac.damping = 0.5
        self.assertEqual(kfac.damping, 0.5)

    def test_a_scaled_loss_gives_the_steps_of_a_plain_one(self):
        plain, scaled = conv_model(), conv_model()
        x = torch.randn(2, 1, 8, 8, 8)
        for model, scaler in ((plain, None), (scaled, torch.amp.GradScaler("cpu", init_scale=1024.0))):
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            kfac = spillway.KFAC(model, optimizer)
            for overflow in (False, True):
                optimizer.zero_grad()
                loss = model(x).square().mean()
                if scaler is None:
                    if not overflow:
                        loss.backward()
                        kfac.step()
                        optimizer.step()
                    continue
                scaler.scale(loss).backward()
                if overflow:
                    model[0].weight.grad.fill_(float("nan"))
                else:
                    with self.assertRaises((KeyError, RuntimeError)):
                        kfac.step(scaler)
                scaler.unscale_(optimizer)
                kfac.step(scaler)
                scaler.step(optimizer)
                scaler.update()
            self.assertEqual(kfac.stats()["counters"]["steps"], 1)
        for a, b in zip(plain.parameters(), scaled.parameters(), strict=True):
            self.assertLess((a - b).norm(), 1e-5 * (1 + b.norm()))

    def test_refuses_what_makes_no_sense(self):
        model = conv_model()
        for options in (
            {"decay": 1.5},
            {"method": "magic"},
            {"rank": 0},
            {"factor_interval": 0},
            {"damping": -1},
            {"absolute_damping": 0},
            {"absolute_damping": 1, "damping": 1},
        ):
            with self.subTest(options), self.assertRaises(ValueError):
                spillway.KFAC(model, 0.1, **options)
        with self.assertRaisesRegex(TypeError, "no argument 'dumping'"):
            spillway.KFAC(model, 0.1, dumping=1)
        with self.assertRaisesRegex(TypeError, "optimizer is str"):
            spillway.KFAC(model, "adam")
        with self.assertRaisesRegex(RuntimeError, "no layer"):
            spillway.KFAC(nn.BatchNorm2d(3), 0.1)
        with self.assertRaisesRegex(RuntimeError, "no layer"):
            spillway.KFAC(torch.jit.trace(nn.Linear(3, 3), torch.randn(2, 3)), 0.1)


if __name__ == "__main__":
    unittest.main()
