"""Tests of K-FAC on layers that run again in backward, behind hooks, in compiled graphs, or not at all."""

import collections
import contextlib
import dataclasses
import functools
import unittest
import warnings

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

import spillway

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


def nested(outer, inner):
    """Returns a way to run a block in a checkpoint in a checkpoint."""
    return lambda block, x: outer(lambda y: block[2:](inner(block[:2], y)), x)


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


class KeptOnce:
    """Hooks of saved tensors that give each back once, as offloaders do."""

    def __init__(self):
        self.kept, self.number = {}, 0

    def pack(self, tensor):
        self.number += 1
        self.kept[self.number] = tensor.clone()
        return self.number

    def unpack(self, key):
        return self.kept.pop(key)


class RunAgain(torch.autograd.Function):
    """A function that keeps its input alone and runs its module again in backward, as reversible networks do."""

    @staticmethod
    def forward(ctx, x, module, *parameters):
        ctx.module = module
        ctx.save_for_backward(x)
        with torch.no_grad():
            return module(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            output = ctx.module(x)
        parameters = list(ctx.module.parameters())
        gradients = torch.autograd.grad(output, [x, *parameters], gradient)
        return gradients[0], None, *gradients[1:]


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


class KfacOutOfSightTest(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        torch.manual_seed(0)

    def expect_same(self, got, expected):
        self.assertEqual(list(got[1]), list(expected[1]))
        for name in expected[1]:
            for one, other in zip((got[0][name], got[1][name]), (expected[0][name], expected[1][name]), strict=True):
                self.assertLess(((one - other).norm() / other.norm()).item(), 1e-6, name)
        self.assertTrue(any(not torch.equal(expected[0][n], expected[1][n]) for n in expected[0]))

    def test_layers_in_checkpoints_are_preconditioned_as_without_them(self):
        expected = natural(Net())
        for name, run in {
            "not reentrant": PLAIN,
            "reentrant": REENTRANT,
            "both": nested(PLAIN, PLAIN),
            "reentrant in reentrant": nested(REENTRANT, REENTRANT),
            "plain in reentrant": nested(REENTRANT, PLAIN),
        }.items():

            def only_blocks(part, x, run=run):
                return run(part, x) if isinstance(part, nn.Sequential) else PLAIN(part, x)

            with self.subTest(name), warnings.catch_warnings():
                warnings.simplefilter("error")
                self.expect_same(natural(Net(only_blocks)), expected)

    def test_a_checkpoint_around_the_model_counts_its_samples_once(self):
        expected = natural(Net())
        for early_stop in (True, False):
            for use_reentrant in (True, False):
                inside = Net()

                class Whole(nn.Module):
                    def __init__(self):
                        super().__init__()
                        self.net = inside

                    def forward(self, x):
                        return checkpoint(self.net, x, use_reentrant=use_reentrant)

                with self.subTest((early_stop, use_reentrant)), set_checkpoint_early_stop(early_stop):
                    before, after = natural(Whole(), given=inside)
                    cut = [{n.removeprefix("net."): g for n, g in part.items()} for part in (before, after)]
                    self.expect_same(cut, expected)

    def test_a_reentrant_checkpoint_of_a_plain_function_shows_its_layers(self):
        def called(part, x):
            if not isinstance(part, nn.Sequential):
                return part(x)
            first, last = part[0], part[3]
            return REENTRANT(
                lambda y: nn.functional.linear(
                    part[1:3](nn.functional.linear(y, first.weight, first.bias)), last.weight, last.bias
                ),
                x,
            )

        self.expect_same(natural(Net(called)), natural(Net()))

    def test_hooks_that_give_a_saved_tensor_back_once_do_so_once(self):
        expected = natural(Net())
        hooks = KeptOnce()
        with torch.autograd.graph.saved_tensors_hooks(hooks.pack, hooks.unpack):
            self.expect_same(natural(Net()), expected)
        self.assertEqual(hooks.kept, {})
        with torch.autograd.graph.save_on_cpu():
            self.expect_same(natural(Net(PLAIN)), expected)

    def test_a_graph_with_hooks_goes_back_twice_and_to_its_second_order(self):
        def of(hooks):
            net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
            x = torch.linspace(-1, 1, 20).view(5, 4)
            kfac = spillway.KFAC(net, 0.1, **EXACT)
            with hooks:
                loss = net(x).square().mean()
            loss.backward(retain_graph=True)
            (first,) = torch.autograd.grad(loss, net[0].weight, create_graph=True)
            first.square().sum().backward()
            kfac.step()
            return [p.grad for p in net.parameters()]

        torch.manual_seed(1)
        plain = of(contextlib.nullcontext())
        torch.manual_seed(1)
        hooked = of(torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t))
        for one, other in zip(plain, hooked, strict=True):
            self.assertLess((one - other).norm(), 1e-6 * other.norm())

    def test_functions_that_run_modules_again_in_backward_show_them(self):
        def run(part, x):
            return RunAgain.apply(x, part, *part.parameters()) if isinstance(part, nn.Sequential) else part(x)

        def without_dropout(net):
            for block in net.blocks:
                block[2].p = 0.0
            return net

        self.expect_same(natural(without_dropout(Net(run))), natural(without_dropout(Net())))
        self.assertFalse(nn.modules.module._global_forward_hooks)

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

    def test_training_with_checkpoints_changes_no_bit_under_a_budget(self):
        def train(run, session=None):
            net = Net(run)
            rule = torch.optim.SGD(net.parameters(), 0.05)
            kfac = spillway.KFAC(net, rule, factor_interval=1, inverse_interval=2)
            for step in range(3):
                with session.step(kfac.kind) if session else contextlib.nullcontext():
                    torch.manual_seed(200 + step)
                    rule.zero_grad()
                    nn.functional.cross_entropy(net(images()), torch.arange(16) % 3).backward()
                    kfac.step()
                    rule.step()
            return [p.detach().clone() for p in net.parameters()]

        expected = train(directly)
        for run in (PLAIN, REENTRANT):
            with spillway.Session() as session:
                free, floor = train(run, session), session.floor_bytes
            with spillway.Session(budget=floor + floor // 4 + (64 << 10)) as session:
                tight = train(run, session)
            for one, other, plain in zip(free, tight, expected, strict=True):
                self.assertTrue(torch.equal(one, plain) and torch.equal(other, plain))

    def test_gradients_accumulate_over_checkpointed_parts(self):
        def accumulated(run):
            net = Net(run)
            kfac = spillway.KFAC(net, 0.1, **EXACT)
            torch.manual_seed(9)
            for part in range(2):
                x = images()[8 * part :][:8]
                (nn.functional.cross_entropy(net(x), torch.arange(8) % 3) / 2).backward()
            before = {n: p.grad.clone() for n, p in net.named_parameters()}
            kfac.step()
            return before, {n: p.grad for n, p in net.named_parameters()}

        expected = accumulated(directly)
        for run in (PLAIN, REENTRANT):
            self.expect_same(accumulated(run), expected)


if __name__ == "__main__":
    unittest.main()
