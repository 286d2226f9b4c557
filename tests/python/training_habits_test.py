"""Tests of what training programs do: hooks, checkpoints, modes, optimizers, interrupts."""

import unittest

import torch
from habits import COUNT, Habits, make_net, parameters_of, train
from torch import nn
from torch.utils import checkpoint

import spillway


class TrainingHabitsTest(Habits):
    """Ways to train."""

    def test_optimizers_and_their_implementations(self):
        for optimizer, options in (
            (torch.optim.Adam, {"foreach": True}),
            (torch.optim.Adam, {"fused": True}),
            (torch.optim.Adam, {"foreach": False}),
            (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
            (torch.optim.AdamW, {"amsgrad": True}),
            (torch.optim.RMSprop, {}),
            (torch.optim.LBFGS, None),
        ):
            with self.subTest(optimizer.__name__, **(options or {})):
                if options is None:
                    self.expect_same(train_with_closures)
                else:
                    self.expect_same(lambda o=optimizer, k=options: train(optimizer=o, **k))

    def test_clipping_schedules_averages_and_hooks(self):
        seen = []

        def work():
            net = make_net()
            average = torch.optim.swa_utils.AveragedModel(
                net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
            )
            seen.clear()
            net[0].register_forward_hook(lambda module, args, output: seen.append(output.mean().item()))
            net[2].register_full_backward_hook(lambda module, given, got: seen.append(got[0].norm().item()))
            net[4].weight.register_hook(lambda gradient: gradient * 0.5)

            def after(net):
                seen.append(torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1).item())
                average.update_parameters(net)

            return train(net, after=after), parameters_of(average), list(seen)

        self.expect_same(work)

    def test_checkpoints_within_a_step_and_saved_tensor_hooks(self):
        for reentrant in (False, True):
            self.expect_same(
                lambda r=reentrant: train(
                    forward=lambda net, x: checkpoint.checkpoint_sequential(net, 2, x.requires_grad_(), use_reentrant=r)
                )
            )

        def packed(net, x):
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t * 1):
                return net(x)

        self.expect_same(lambda: train(forward=packed))

    def test_parametrizations_and_functional_calls(self):
        def normed():
            net = make_net()
            nn.utils.parametrizations.weight_norm(net[2])
            nn.utils.parametrizations.spectral_norm(net[4])
            return train(net)

        self.expect_same(normed)
        self.expect_same(
            lambda: train(forward=lambda net, x: torch.func.functional_call(net, dict(net.named_parameters()), (x,)))
        )

    def test_transforms_of_functions(self):
        def work():
            net = make_net()
            weights = {name: parameter.detach() for name, parameter in net.named_parameters()}
            torch.manual_seed(5)
            x = torch.randn(8, 256)

            def loss(weights, x):
                return torch.func.functional_call(net, weights, (x,)).square().mean()

            gradients = torch.func.grad(loss)(weights, x)
            each = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, x)
            value, tangent = torch.func.jvp(lambda x: net(x), (x,), (x,))
            rows = torch.func.jacrev(lambda x: net(x)[:4])(x[0])
            return [*gradients.values(), *each.values(), value, tangent, rows]

        self.expect_same(work)

    def test_scaled_and_autocast_training(self):
        def work():
            net = make_net()
            scaler = torch.amp.GradScaler("cpu", init_scale=1024)
            rule = torch.optim.SGD(net.parameters(), 0.1)
            torch.manual_seed(4)
            x = torch.randn(128, 256)
            for _ in range(3):
                rule.zero_grad()
                with torch.autocast("cpu", torch.bfloat16):
                    loss = net(x).square().mean()
                scaler.scale(loss).backward()
                scaler.unscale_(rule)
                scaler.step(rule)
                scaler.update()
            return loss.item(), scaler.get_scale(), parameters_of(net)

        self.expect_same(work)

    def test_inference_mode_and_no_grad(self):
        def work():
            net = make_net()
            torch.manual_seed(4)
            x = torch.randn(512, 256)
            with torch.inference_mode():
                for _ in range(3):
                    x = net(x).relu_()
            with torch.no_grad():
                y = net(x.clone())
            return x.sum().item(), y

        self.expect_same(work)

    def test_views_written_in_place_and_shared_storages(self):
        def work():
            x = torch.zeros(8, COUNT // 8)
            rows = x.unbind(0)
            others = [torch.full((COUNT,), float(i)) for i in range(6)]
            for i in range(8):
                rows[i].add_(others[i % 6][: COUNT // 8]).mul_(2)
            x.t()[3:5].copy_(others[5][: 2 * 8].view(2, 8))
            alias = torch.empty(0).set_(x.untyped_storage(), 5, (7, 3))
            alias.fill_(-1)
            empty = torch.empty(0, 5)
            z = torch.complex(x, x * 2)
            z.real.mul_(3)
            return x, z.conj().sum().item(), torch.cat([empty, empty]).shape, [o.sum().item() for o in others]

        self.expect_same(work, budget="7MiB")

    def test_sparse_and_quantized_tensors(self):
        def work():
            torch.manual_seed(1)
            dense = torch.randn(600, 600)
            sparse = (dense * (dense > 1)).to_sparse()
            quantized = torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8)
            more = [dense + i for i in range(4)]
            return (
                torch.sparse.mm(sparse, dense),
                sparse.to_dense(),
                quantized.dequantize(),
                sum(m.sum().item() for m in more),
            )

        self.expect_same(work)

    def test_scripted_traced_and_compiled_functions(self):
        net = make_net()
        x = torch.randn(64, 256)
        scripted, traced = torch.jit.script(net), torch.jit.trace(net, x)
        self.expect_same(lambda: (scripted(x), traced(x)))
        compiled = torch.compile(net)
        with spillway.Session(budget="6MiB"):
            more = [torch.zeros(COUNT) for _ in range(5)]
            self.assertTrue(torch.equal(compiled(x), net(x)), "it runs eagerly")
            del more

    def test_modes_and_the_profiler(self):
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.utils._python_dispatch import TorchDispatchMode

        class Counts(TorchDispatchMode):
            calls = 0

            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                Counts.calls += 1
                return func(*args, **(kwargs or {}))

        def counted():
            with Counts():
                return train()

        self.expect_same(counted)
        self.assertGreater(Counts.calls, 100)
        with spillway.Session(budget="6MiB"):
            with FakeTensorMode():
                self.assertEqual((torch.empty(1 << 30, 10) + 1).shape, (1 << 30, 10))
            with torch.profiler.profile() as profile:
                train()
            self.assertIn("aten::addmm", {event.key for event in profile.key_averages()})

    def test_exceptions_in_hooks_leave_the_session_whole(self):
        with spillway.Session(budget="8MiB") as session:
            net = make_net()
            handle = net[2].weight.register_hook(fail)
            for error in (ValueError, KeyboardInterrupt):
                fail.error = error
                with self.assertRaises(error), session.step():
                    train(net)
            handle.remove()
            tight = train()
        self.assert_equal(tight, train())


def fail(gradient):
    raise fail.error


def train_with_closures():
    net = make_net()
    rule = torch.optim.LBFGS(net.parameters(), max_iter=3)
    torch.manual_seed(4)
    x, y = torch.randn(64, 256), torch.randn(64, 256)

    def closure():
        rule.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        return loss

    return rule.step(closure).item(), parameters_of(net)


if __name__ == "__main__":
    unittest.main()
