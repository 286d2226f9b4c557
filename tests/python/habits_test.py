"""Tests of what Python programs do to tensors besides calling operators, while the tensors are away."""

import contextlib
import copy
import gc
import io
import pickle
import subprocess
import sys
import textwrap
import threading
import unittest
import warnings
import weakref

import numpy as np
import torch
from torch import nn
from torch.utils import checkpoint, data

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


class PointersTest(Habits):
    """Functions that read a tensor's memory without an operator."""

    def test_numpy_brings_the_bytes_back_and_keeps_them_in_place(self):
        for export in (lambda x: x.numpy(), np.asarray, np.from_dlpack, lambda x: x.detach().numpy()):
            with absent_tensor() as (_, x):
                array = export(x)
                np.testing.assert_array_equal(array, EXPECTED)
                more = send_away()
                np.testing.assert_array_equal(array, EXPECTED)
                x.add_(1)
                del more
                more = send_away()
                np.testing.assert_array_equal(array, EXPECTED + 1)
                with contextlib.suppress(ValueError):  # some exports are read-only
                    array[5] = 77
                    self.assertEqual(x[5].item(), 77)
                del more

    def test_numpy_of_a_tensor_that_is_there_stays_right(self):
        with spillway.Session(budget="5MiB"):
            x = torch.arange(COUNT, dtype=torch.float32)
            array = x.numpy()
            more = send_away()
            np.testing.assert_array_equal(array, EXPECTED)
            del more

    def test_dlpack_between_tensors(self):
        with absent_tensor() as (_, x):
            other = torch.from_dlpack(x)
            more = send_away()
            self.assertTrue(torch.equal(other, x))
            del more

    def test_copies_and_lists(self):
        with absent_tensor() as (_, x):
            self.assertTrue(torch.equal(copy.deepcopy(x), x))
        with absent_tensor() as (_, x):
            self.assertEqual(x.tolist()[:4], [0, 1, 2, 3])
        with absent_tensor() as (_, x):
            self.assertEqual((x[7].item(), f"{x[3]:.1f}", bool((x >= 0).all()), len(repr(x)) > 10), (7, "3.0", True, True))
        with absent_tensor() as (_, x):
            self.assertEqual([float(value) for value in x[:3]], [0, 1, 2])
            self.assertEqual(x.untyped_storage().nbytes(), MIB)

    def test_saving_and_pickling(self):
        for to_bytes, from_bytes in (
                (lambda x: pickle.dumps(x), pickle.loads),
                (lambda x: save(x), lambda b: torch.load(io.BytesIO(b))),
                (lambda x: save(x, _use_new_zipfile_serialization=False), lambda b: torch.load(io.BytesIO(b)))):
            with absent_tensor() as (_, x):
                stored = to_bytes(x)
            np.testing.assert_array_equal(from_bytes(stored).numpy(), EXPECTED)

    def test_a_models_checkpoint_needs_one_tensor_at_a_time(self):
        net = nn.Sequential(*[nn.Linear(512, 512) for _ in range(12)])  # 12 MiB
        plain = save(net.state_dict())
        with spillway.Session(budget="6MiB") as session:
            x = torch.randn(4, 512)
            net(x)
            self.assertEqual(len(save(net.state_dict())), len(plain))
            stored = torch.load(io.BytesIO(save(net.state_dict())))
            loaded = copy.deepcopy(net)
            loaded.load_state_dict(stored)
            self.assertTrue(torch.equal(loaded(x), net(x)))
            self.assertGreater(session.stats()["page_outs"], 0)

    def test_what_takes_the_memory_away_is_refused(self):
        with absent_tensor() as (_, x):
            for take in (torch.Tensor.data_ptr, torch.Tensor.share_memory_, lambda x: x.untyped_storage().data_ptr()):
                with self.assertRaisesRegex(RuntimeError, r"paged out.*resident\(tensor\)"):
                    take(x)
            with spillway.resident(x):
                self.assertNotEqual(x.data_ptr(), 0)

    def test_resident_takes_modules_and_lists(self):
        net = make_net()
        with spillway.Session(budget="8MiB"):
            net(torch.randn(2, 256))
            more = [torch.zeros(COUNT) for _ in range(12)]
            with spillway.resident(net, {"more": more[:1]}):
                addresses = [parameter.data_ptr() for parameter in net.parameters()]
                self.assertTrue(all(addresses) and more[0].data_ptr())

    def test_tensors_of_others_memory_are_read_and_written(self):
        with spillway.Session(budget="5MiB"):
            array = EXPECTED.copy()
            x = torch.from_numpy(array)
            more = [x + 1 for _ in range(6)]
            x.mul_(2)
            np.testing.assert_array_equal(array, 2 * EXPECTED)
            self.assertEqual(more[0][9].item(), 10)

    def test_storages_change_under_a_tensor(self):
        with absent_tensor() as (_, x):
            self.assertEqual(torch.empty(0).set_(x.untyped_storage())[4].item(), 4)
        with absent_tensor() as (_, x):
            self.assertEqual(x.resize_(10)[4].item(), 4)
        with absent_tensor() as (_, x):
            x.data = torch.ones(3)
            self.assertEqual(x.sum().item(), 3)

    def test_pytorchs_functions_are_its_own_again(self):
        before = torch.Tensor.numpy, torch.Tensor.tolist, torch.UntypedStorage.clone
        with spillway.Session():
            self.assertIsNot(torch.Tensor.numpy, before[0])
        self.assertEqual((torch.Tensor.numpy, torch.Tensor.tolist, torch.UntypedStorage.clone), before)


def save(thing, **options):
    file = io.BytesIO()
    torch.save(thing, file, **options)
    return file.getvalue()


class TrainingHabitsTest(Habits):
    """Ways to train."""

    def test_optimizers_and_their_implementations(self):
        for optimizer, options in ((torch.optim.Adam, {"foreach": True}), (torch.optim.Adam, {"fused": True}),
                                   (torch.optim.Adam, {"foreach": False}), (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
                                   (torch.optim.AdamW, {"amsgrad": True}), (torch.optim.RMSprop, {}), (torch.optim.LBFGS, None)):
            with self.subTest(optimizer.__name__, **(options or {})):
                if options is None:
                    self.expect_same(train_with_closures)
                else:
                    self.expect_same(lambda o=optimizer, k=options: train(optimizer=o, **k))

    def test_clipping_schedules_averages_and_hooks(self):
        seen = []

        def work():
            net = make_net()
            average = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
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
            self.expect_same(lambda r=reentrant: train(
                forward=lambda net, x: checkpoint.checkpoint_sequential(net, 2, x.requires_grad_(), use_reentrant=r)))

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
        self.expect_same(lambda: train(
            forward=lambda net, x: torch.func.functional_call(net, dict(net.named_parameters()), (x,))))

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
                rows[i].add_(others[i % 6][:COUNT // 8]).mul_(2)
            x.t()[3:5].copy_(others[5][:2 * 8].view(2, 8))
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
            return torch.sparse.mm(sparse, dense), sparse.to_dense(), quantized.dequantize(), sum(m.sum().item() for m in more)

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


class Numbered(data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        x = torch.full((COUNT,), float(index))
        return x * 2 + x.sort().values


class LivesTest(Habits):
    """When and where tensors are made and die."""

    def test_data_loaders_with_worker_processes(self):
        for context in ("fork", "spawn"):
            with spillway.Session(budget="6MiB"):
                net = make_net()
                loader = data.DataLoader(Numbered(), batch_size=1, num_workers=2, multiprocessing_context=context)
                total = 0
                for batch in loader:
                    net(torch.randn(64, 256))
                    total += batch[0, 7].item()
            self.assertEqual(total, 3 * sum(range(6)))

    def test_tensors_made_before_between_and_after_sessions(self):
        net, x = make_net(), torch.arange(COUNT, dtype=torch.float32)
        for _ in range(2):
            with spillway.Session(budget="6MiB") as session:
                net(torch.randn(16, 256))
                inside = x + 1
                more = send_away()
                self.assertGreater(session.stats()["page_outs"], 0)
            np.testing.assert_array_equal(x.numpy(), EXPECTED)
            np.testing.assert_array_equal(inside.numpy(), EXPECTED + 1)
            x = x.clone()
            del more

    def test_tensors_of_other_threads_stay_right(self):
        results = []

        def work():
            own = torch.Generator().manual_seed(7)  # the default one is the process's
            for _ in range(20):
                x = torch.randn(COUNT, generator=own)
                results.append(torch.equal(x.sort().values.sort(descending=True).values, x.sort(descending=True).values))

        with spillway.Session(budget="24MiB"):
            thread = threading.Thread(target=work)
            thread.start()
            tight = train()
            thread.join()
        self.assertTrue(results and all(results))
        self.assert_equal(tight, train())

    def test_a_session_on_a_thread_of_its_own(self):
        kept = []

        def work():
            with spillway.Session(budget="12MiB") as session:
                kept.extend([train(), session.stats()["peak_bytes"]])

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        self.assert_equal(kept[0], train())
        self.assertLessEqual(kept[1], 12 * MIB)

    def test_cycles_keep_a_dead_model_until_they_are_collected(self):
        with spillway.Session(budget="6MiB") as session:
            net = make_net()
            net.itself = [net]
            ghost = weakref.ref(net[0].weight)
            del net
            tight = train()
            gc.collect()
            self.assertIsNone(ghost())
            used = session.stats()["used_bytes"]
        self.assertLess(used, 6 * MIB)
        self.assert_equal(tight, train())

    def test_a_session_that_nobody_closes_and_a_ctrl_c(self):
        for end, code in (("", 0), ("raise KeyboardInterrupt", (1, 130, -2))):
            done = subprocess.run([sys.executable, "-c", textwrap.dedent(f"""
                import spillway, torch
                session = spillway.Session(budget="6MiB").open()
                x = [torch.rand(1 << 18) for _ in range(10)]
                array = x[0].numpy()
                with session.step():
                    y = x[3] + x[4]
                    {end}
                """)], capture_output=True, text=True, timeout=120)
            self.assertIn(done.returncode, code if isinstance(code, tuple) else (code,), done.stderr)
            self.assertNotIn("Segmentation", done.stderr)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    unittest.main()
