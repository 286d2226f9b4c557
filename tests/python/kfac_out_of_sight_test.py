"""Tests of K-FAC on layers whose uses are hard to see: in containers, functions, compiled graphs, or nowhere."""

import collections
import dataclasses
import unittest
import warnings

import torch
from kfac_cases import EXACT, PLAIN, REENTRANT, KfacCase, Net, directly, natural
from torch import nn

import spillway


class Product(torch.autograd.Function):
    """A function that multiplies by a layer's weight out of sight."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.t() @ x


@dataclasses.dataclass
class Result:
    scores: torch.Tensor
    name: str = "result"


class Slotted:
    __slots__ = ("scores", "owner")  # noqa: RUF023  K-FAC looks into them in this order

    def __init__(self, scores):
        self.scores, self.owner = scores, self


Pair = collections.namedtuple("Pair", "scores more")


class KfacOutOfSightTest(KfacCase):
    def compiled(self, fullgraph, whole):
        """Returns a model that is compiled, or has a part that is, the same without, and a KFAC of each."""
        torch.compiler.reset()
        net, plain = (nn.Sequential(nn.Sequential(nn.Linear(5, 4), nn.Tanh()), nn.Linear(4, 3)) for _ in range(2))
        plain.load_state_dict(net.state_dict())
        if whole:
            net = torch.compile(net, backend="aot_eager", fullgraph=fullgraph)
        else:
            net[0] = torch.compile(net[0], backend="aot_eager", fullgraph=fullgraph)
        options = EXACT | {"factor_interval": 2, "inverse_interval": 2}
        return net, plain, spillway.KFAC(net, 0.1, **options), spillway.KFAC(plain, 0.1, **options)

    def expect_same_step(self, net, plain, kfac, expected, x):
        for model, own in ((net, kfac), (plain, expected)):
            model.zero_grad()
            model(x).square().mean().backward()
            own.step()
        for one, other in zip(net.parameters(), plain.parameters(), strict=True):
            self.assertLess((one.grad - other.grad).norm(), 1e-6 * other.grad.norm())

    def test_a_weight_in_a_function_that_shows_nothing_is_refused_by_name(self):
        class Hidden(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = nn.Linear(5, 4), nn.Linear(4, 3, bias=False)

            def forward(self, x):
                return Product.apply(self.first(x), self.second.weight)

        net, x = Hidden(), torch.randn(6, 5)
        with self.assertRaisesRegex(RuntimeError, r"layer 'second' .*ProductBackward hides.*skip"):
            natural(net, x, lambda out: out.square().mean())
        natural(Hidden(), x, lambda out: out.square().mean(), skip=["second"])

    def test_a_weight_that_is_scaled_before_its_use_is_refused_by_name(self):
        class Scaled(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = nn.Linear(5, 4), nn.Linear(4, 3)

            def forward(self, x):
                return nn.functional.linear(self.first(x), 2 * self.second.weight, self.second.bias)

        with self.assertRaisesRegex(RuntimeError, "layer 'second' .*MulBackward0 hides.*skip"):
            natural(Scaled(), torch.randn(6, 5), lambda out: out.square().mean())

    def test_a_weight_that_was_replaced_is_refused_by_name(self):
        class Double(nn.Module):
            def forward(self, weight):
                return 2 * weight

        def assign(net):
            net.load_state_dict({k: v.clone() for k, v in net.state_dict().items()}, assign=True)

        for names, replace in {
            "0, 2": assign,
            "2": lambda net: nn.utils.parametrize.register_parametrization(net[2], "weight", Double()),
        }.items():
            net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
            kfac = spillway.KFAC(net, 0.1, **EXACT)
            replace(net)
            net(torch.randn(6, 5)).square().mean().backward()
            with self.assertRaisesRegex(RuntimeError, f"^{names}: other weights than when KFAC was made.*new KFAC"):
                kfac.step()
        again = spillway.KFAC(net, 0.1)
        self.assertEqual((again.layers, [name for name, _ in again.left_alone][:1]), (["0"], ["2"]))

    def test_compiled_parts_are_refused_and_run_eagerly_where_told(self):
        for fullgraph in (False, True):
            for whole in (False, True):
                with self.subTest(fullgraph=fullgraph, whole=whole):
                    net, plain, kfac, expected = self.compiled(fullgraph, whole)
                    x = torch.randn(6, 5)
                    net(x).square().mean().backward()
                    with self.assertRaisesRegex(
                        RuntimeError, "CompiledFunctionBackward is a compiled graph.*set_stance"
                    ):
                        kfac.step()
                    kfac.discard()
                    for step in range(2):
                        self.assertEqual(kfac.updates_factors, step == 0)
                        with torch.compiler.set_stance("force_eager" if kfac.updates_factors else "default"):
                            self.expect_same_step(net, plain, kfac, expected, x)

    def test_compiled_parts_run_eagerly_in_a_session_and_are_preconditioned(self):
        for whole in (False, True):
            with self.subTest(whole=whole), spillway.Session():
                net, plain, kfac, expected = self.compiled(True, whole)
                for _ in range(2):
                    self.expect_same_step(net, plain, kfac, expected, torch.randn(6, 5))

    def test_a_model_that_is_compiled_around_its_kfac_is_watched_where_it_runs_eagerly(self):
        torch.compiler.reset()
        net, x = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), torch.randn(6, 5)
        kfac = spillway.KFAC(net, 0.1, **EXACT)
        compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
        compiled(x).square().mean().backward()
        with self.assertRaisesRegex(RuntimeError, "watch"):
            kfac.step()
        with torch.compiler.set_stance("force_eager"):
            compiled(x).square().mean().backward()
        kfac.step()

    def test_outputs_in_any_container_are_watched(self):
        def net_with(pack):
            class Packed(nn.Module):
                def __init__(self):
                    super().__init__()
                    torch.manual_seed(4)
                    self.layer = nn.Linear(5, 3)

                def forward(self, given):
                    return pack(self.layer(given.scores if isinstance(given, Result) else given))

            return Packed()

        x = torch.randn(6, 5)
        expected = natural(net_with(lambda y: y), x, lambda y: y.square().mean())
        ways = {
            "dataclass": (Result, lambda y: y.scores),
            "named tuple": (lambda y: Pair(y, None), lambda y: y.scores),
            "dict": (lambda y: {"a": [1, {"b": y}]}, lambda y: y["a"][1]["b"]),
            "slots": (Slotted, lambda y: y.scores),
            "subclass of dict": (lambda y: type("Own", (dict,), {})(y=y), lambda y: y["y"]),
            "object in a list": (lambda y: [Result(y)], lambda y: y[0].scores),
            "user's dict": (lambda y: collections.UserDict(y=y), lambda y: y["y"]),
            "distribution": (lambda y: torch.distributions.Normal(y, 1.0), lambda y: y.mean),
        }
        for name, (pack, scores) in ways.items():
            for given in (x, Result(x)):
                with self.subTest(name):
                    self.expect_same(natural(net_with(pack), given, lambda out: scores(out).square().mean()), expected)

    def test_a_first_run_without_gradients_changes_nothing(self):
        class First(Net):
            def forward(self, x):
                with torch.no_grad(), torch.random.fork_rng():
                    super().forward(x)
                return super().forward(x)

        self.expect_same(natural(First()), natural(Net()))

    def test_uses_by_function_count_as_calls_of_the_module(self):
        class Functional(Net):
            def forward(self, x):
                x = nn.functional.conv2d(x, self.stem.weight, self.stem.bias).flatten(1)
                for block in self.blocks:
                    x = x + block(x)
                return nn.functional.linear(x, self.head.weight, self.head.bias)

        self.expect_same(natural(Functional()), natural(Net()))

    def test_a_layer_used_twice_counts_twice_whatever_runs_it(self):
        class Shared(Net):
            def forward(self, x):
                x = self.stem(x).flatten(1)
                for _ in range(2):
                    x = x + self.run(self.blocks[0], x)
                return self.head(x)

        def made(run):
            net = Shared(run)
            net.blocks[1].requires_grad_(False)
            return net

        expected = natural(made(directly))
        for run in (PLAIN, REENTRANT):
            self.expect_same(natural(made(lambda part, x, run=run: run(part, x))), expected)

    def test_passes_that_share_a_graph_show_it_once_in_each_backward(self):
        def step(watches):
            torch.manual_seed(5)
            net = nn.Linear(4, 4)
            kfac = spillway.KFAC(net, 0.1, **EXACT)
            with kfac.no_watch():
                loss = net(torch.linspace(-1, 1, 12).view(3, 4)).square().mean()
            for _ in range(watches):
                kfac.watch(loss, 3 // watches)
            loss.backward()
            kfac.step()
            return net.weight.grad

        self.assertTrue(torch.equal(step(3), step(1)))

    def test_layers_without_statistics_are_named_in_one_warning(self):
        class Branches(nn.Module):
            def __init__(self):
                super().__init__()
                self.used, self.unused, self.frozen_later = nn.Linear(5, 3), nn.Linear(5, 3), nn.Linear(3, 3)

            def forward(self, x, other=False):
                return self.frozen_later((self.unused if other else self.used)(x))

        net, x = Branches(), torch.randn(6, 5)
        kfac = spillway.KFAC(net, 0.1, **EXACT)
        net.frozen_later.requires_grad_(False)
        net(x).square().mean().backward()
        with self.assertWarnsRegex(
            UserWarning, r"nothing of these layers .*: 'unused' \(it had no gradient\), 'frozen_later'"
        ):
            kfac.step()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for other in (False, True):
                net.zero_grad()
                net(x, other).square().mean().backward()
                kfac.step()

    def test_a_penalty_on_a_layer_that_did_not_run_is_a_warning(self):
        net = nn.ModuleDict({"used": nn.Linear(5, 3), "unused": nn.Linear(5, 3)})
        kfac = spillway.KFAC(net, 0.1, **EXACT)
        output = net["used"](torch.randn(6, 5))
        kfac.watch(output, 6)
        (output.square().mean() + net["unused"].weight.square().sum() + net["unused"].bias.square().sum()).backward()
        with self.assertWarnsRegex(UserWarning, r"'unused' \(its gradient comes from no watched pass\)"):
            kfac.step()


if __name__ == "__main__":
    unittest.main()
