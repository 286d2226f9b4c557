"""Tests of what compiles or traces inside Sessions: eager bits, or a refusal that says what to do."""

import subprocess
import sys
import threading
import unittest
import warnings

import torch
from habits import COUNT, Habits, make_net
from torch import nn

import spillway

warnings.simplefilter("ignore")


def held():
    """Tensors that are sent away meanwhile."""
    return [torch.zeros(COUNT // 4) + i for i in range(6)]


def train_compiled(compile_model, compile_step=lambda step: step):
    torch.manual_seed(1)
    others, net = held(), make_net()
    rule = torch.optim.SGD(net.parameters(), 0.1)
    model, step = compile_model(net), compile_step(rule.step)
    losses = []
    for rows in (32, 48, 64):  # a batch of other size is compiled again
        rule.zero_grad()
        loss = model(torch.randn(rows, 256)).square().mean()
        loss.backward()
        step()
        losses.append(loss.item())
    return losses, [parameter.detach().clone() for parameter in net.parameters()], others


def on_branches(model, count):
    torch.manual_seed(2)
    others, seen = held(), []
    weight = torch.randn(256, requires_grad=True)
    for sign in (1.0, -1.0):
        x = (torch.rand(count, 256) * sign).requires_grad_()
        y = torch.cond(x.sum() > 0, lambda t: model(t) * weight, lambda t: (t + weight).cos(), (x,))
        y.sum().backward()
        seen += [y.detach(), x.grad, weight.grad.clone()]
    return seen, others


class CompiledTest(Habits):
    """Functions of torch.compile."""

    def tearDown(self):
        torch._dynamo.reset()

    def test_compiled_functions_run_eagerly_inside_whenever_they_were_compiled(self):
        expected = train_compiled(lambda net: net)
        for backend in ("inductor", "aot_eager", "eager"):
            for dynamic in (None, True):
                with self.subTest(backend, dynamic=dynamic):

                    def compiled(function, b=backend, d=dynamic):
                        return torch.compile(function, backend=b, dynamic=d)

                    if backend != "inductor":  # it takes a compiler of C++
                        train_compiled(compiled, compiled)  # outside, before
                    with spillway.Session(budget="6MiB") as session:
                        inside = train_compiled(compiled, compiled)
                        self.assertGreater(session.stats()["page_outs"], 0)
                    self.assert_equal(inside, expected)

    def test_a_first_compilation_inside_a_session_is_none(self):
        program = """
import sys, torch, spillway
net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh())
x = torch.randn(64, 256)
expected = net(x)
assert "torch._dynamo" not in sys.modules
with spillway.Session(budget="4MiB"):
    held = [torch.zeros(1 << 18) + i for i in range(6)]
    def refuse(graph, inputs):
        raise AssertionError("it was compiled")
    assert torch.equal(torch.compile(net, backend=refuse)(x), expected)
    assert all((h == i).all() for i, h in enumerate(held))
"""
        subprocess.run([sys.executable, "-c", program], check=True)

    def test_another_thread_and_the_time_after_compile_as_always(self):
        compilations = []

        def count(graph, inputs):
            compilations.append(1)
            return graph

        x = torch.randn(8)
        # PyTorch crashes where another thread was the first to compile.
        torch.compile(lambda t: t - 1, backend=count)(x)
        compilations.clear()
        with spillway.Session(budget="6MiB"):
            torch.compile(lambda t: t + 1, backend=count)(x)
            self.assertEqual(len(compilations), 0)
            other = threading.Thread(target=lambda: torch.compile(lambda t: t + 2, backend=count)(torch.ones(8)))
            other.start()
            other.join()
            self.assertEqual(len(compilations), 1)
        torch.compile(lambda t: t + 3, backend=count)(x)
        self.assertEqual(len(compilations), 2)

    def test_a_backward_that_was_compiled_outside_is_refused_inside(self):
        import torch._inductor.debug
        from torch._inductor import output_code

        class Graph(output_code.CompiledFxGraph):
            def __init__(self):  # as the compiler makes it, without its compiler
                self.compiled_fn_runner, self.current_callable = None, lambda inputs: [inputs[0] * 2]

        class Doubles(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, gradient):
                return Graph()([gradient])[0]

        x = torch.randn(8, requires_grad=True)
        y = Doubles.apply(x).sum()
        with spillway.Session(budget="6MiB"), self.assertRaisesRegex(RuntimeError, "torch.compile.*both"):
            y.backward()
        Doubles.apply(x).sum().backward()
        self.assertEqual(x.grad.sum().item(), 16)


class TracedTest(Habits):
    """What PyTorch traces by itself."""

    def tearDown(self):
        torch._dynamo.reset()

    def test_branches_and_the_gradients_of_what_they_use(self):
        net = nn.Linear(256, 256)
        self.expect_same(lambda: on_branches(net, 64))
        self.expect_same(lambda: on_branches(lambda t: t.sin(), 512))

    def test_loops_and_scans(self):
        from torch._higher_order_ops import associative_scan, scan, while_loop
        from torch._higher_order_ops.map import map as each

        def work():
            torch.manual_seed(3)
            others, x = held(), torch.randn(8, COUNT // 16, requires_grad=True)
            looped = while_loop(
                lambda i, t: i < 4, lambda i, t: (i + 1, t * 2 + 1), (torch.tensor(0), torch.ones(COUNT // 4))
            )
            carry, steps = scan(lambda c, t: (c + t, (c * t).sin()), torch.zeros(COUNT // 16), x)
            mapped = each(lambda t: t.cos() * 2, x)
            (steps.sum() + mapped.sum()).backward()
            multiplied = associative_scan(lambda a, b: a * b, x.detach(), 0, combine_mode="generic")
            return looped[1], carry, steps, mapped, x.grad, multiplied, others

        self.expect_same(work)

    def test_flexible_attention(self):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        def work():
            torch.manual_seed(4)
            others, q, bias = held(), torch.randn(1, 2, 256, 32), torch.tensor([0.5, -0.25])
            mask = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 256, 256, device="cpu")
            with torch.no_grad():
                return flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s + bias[h], block_mask=mask), others

        self.expect_same(work)

    def test_graphs_of_fx_and_exported_programs(self):
        from torch.fx.experimental.proxy_tensor import make_fx

        def work():
            torch.manual_seed(5)
            others, net, x, seen = held(), nn.Sequential(nn.Linear(256, 256), nn.Tanh()), torch.randn(64, 256), []
            for mode in ("real", "fake", "symbolic"):
                graph = make_fx(lambda a, b: (a @ b).relu().sum(0), tracing_mode=mode)(x, net[0].weight.detach())
                seen.append(graph(x, net[0].weight.detach()))
            batch = {0: torch.export.Dim("batch", min=2)}
            exported = torch.export.export(net, (x,), dynamic_shapes=(batch,)).module()
            return seen, exported(x), exported(torch.cat([x, x])), others

        self.expect_same(work)

    def test_transformed_functions(self):
        def work():
            torch.manual_seed(6)
            others, net = held(), nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
            weights, x = {k: v.detach() for k, v in net.named_parameters()}, torch.randn(512, 64)

            def loss(weights, x):
                return torch.func.functional_call(net, weights, x).sum()

            def written(t):
                result = t.clone()
                result[0].add_(1)
                return result.mul_(2)

            return (
                *torch.func.grad(loss)(weights, x).values(),
                *torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, x).values(),
                torch.func.jacrev(lambda t: loss(weights, t))(x),
                torch.func.hessian(lambda t: loss(weights, t))(x[:2]),
                torch.func.jvp(lambda t: loss(weights, t), (x,), (x,)),
                torch.func.functionalize(written)(x),
                others,
            )

        self.expect_same(work)

    def test_traced_operators_are_not_the_sessions(self):
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode() as mode:
            traced = torch.zeros(1 << 40)
        with spillway.Session() as session, session.step():
            before = session.stats()["operators"]
            with mode:
                traced.add(1).sum()
            self.assertEqual(session.stats()["operators"], before)
            torch.ones(3).add(1)
            self.assertGreater(session.stats()["operators"], before)

    def test_dynamic_shapes_are_compiled_without_a_word_after_a_session_has_closed(self):
        program = """
import torch, spillway
with spillway.Session():
    torch.ones(3)
compiled = torch.compile(lambda t: (t @ t.t()).relu(), backend="aot_eager", dynamic=True)
compiled(torch.ones(8, 4, requires_grad=True)).sum().backward()
"""
        done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
        self.assertNotIn("RecordFunction", done.stderr)


class ShardedTest(unittest.TestCase):
    """Storages that are emptied and filled, as fully sharded models do around each layer."""

    def test_storages_that_are_away_are_emptied_filled_and_grown(self):
        size = COUNT // 4
        with spillway.Session(budget="2MiB") as session:
            tensors = [torch.full((size,), float(i)) for i in range(20)]
            for tensor in tensors[1::2]:
                tensor.untyped_storage().resize_(0)
            for i in range(1, 20, 2):
                tensors[i].untyped_storage().resize_(4 * size)
                tensors[i].fill_(i)
            tensors[0].untyped_storage().resize_(8 * size)
            self.assertEqual([tensor.mean().item() for tensor in tensors], list(range(20)))
            self.assertGreater(session.stats()["page_outs"], 0)


class SubclassTest(Habits):
    """Tensor subclasses that are written in Python, and modes, around tensors that are away."""

    def test_a_subclass_computes_on_the_tensors_that_it_holds(self):
        from torch.testing._internal.two_tensor import TwoTensor

        def work():
            torch.manual_seed(7)
            weights = [nn.Parameter(TwoTensor(torch.randn(256, 256), torch.randn(256, 256))) for _ in range(6)]
            rule = torch.optim.Adam(weights, foreach=True)
            for _ in range(2):
                rule.zero_grad()
                x = TwoTensor(torch.randn(64, 256), torch.randn(64, 256))
                for weight in weights:
                    x = (x @ weight).tanh()
                x.square().mean().backward()
                rule.step()
            return [half.detach() for weight in weights for half in (weight.a, weight.b)]

        self.expect_same(work)


if __name__ == "__main__":
    unittest.main()
