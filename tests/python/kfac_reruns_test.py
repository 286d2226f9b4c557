"""Tests of K-FAC on layers that run again in backward: in checkpoints, behind hooks of saved tensors, in functions."""

import contextlib
import unittest
import warnings

import torch
from kfac_cases import EXACT, PLAIN, REENTRANT, KfacCase, Net, directly, images, natural
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

import spillway


def nested(outer, inner):
    """Returns a way to run a block in a checkpoint in a checkpoint."""
    return lambda block, x: outer(lambda y: block[2:](inner(block[:2], y)), x)


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


class KfacRerunsTest(KfacCase):
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
