"""Tests of Sessions in Python."""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import unittest
import xml.dom.minidom

import torch
from torch import nn

import spillway
from spillway import _pointers, _purposes, _torch_check

MIB = 1 << 20


def small_model():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv3d(1, 8, 3, padding=1),
        nn.InstanceNorm3d(8, affine=True),
        nn.LeakyReLU(),
        nn.Conv3d(8, 8, 3, padding=1),
        nn.InstanceNorm3d(8, affine=True),
        nn.LeakyReLU(),
        nn.Conv3d(8, 8, 3, padding=1),
        nn.BatchNorm3d(8),
        nn.ReLU(inplace=True),
        nn.Conv3d(8, 2, 1),
    )


def train(session=None, steps=3, autocast=False):
    """Trains a small model; returns losses and every tensor of its state."""
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    inputs, targets = torch.randn(1, 1, 24, 24, 24), torch.randint(0, 2, (1, 24, 24, 24))
    losses = []
    for _ in range(steps):
        with session.step() if session else contextlib.nullcontext():
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, [tensor.clone() for tensor in model.state_dict().values()]


def run_alone(code):
    """Runs a program of its own; returns its end."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, check=False
    )


def session_on_a_thread(**options):
    """Returns a Session that is opened on a thread of its own, whose errors arrive here."""

    @contextlib.contextmanager
    def scope():
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            session = spillway.Session(**options)
            pool.submit(session.open).result()
            try:
                yield session
            finally:
                pool.submit(session.close).result()

    return scope()


def ways_to_leave_a_step():
    """Returns functions that end a step with an exception, and its type."""

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, error):
            ctx.error = error
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            if ctx.error is spillway.OutOfBudget:
                return torch.zeros(4 * MIB)[: gradient.numel()], None
            if ctx.error is RuntimeError:
                return gradient @ torch.ones(3, 3), None
            if ctx.error is KeyboardInterrupt:
                signal.raise_signal(signal.SIGINT)
            raise ctx.error

    def in_backward(error):
        return lambda: Fails.apply(torch.ones(MIB // 4, requires_grad=True), error).sum().backward()

    def throws(error):
        def leave():
            torch.ones(MIB // 4).add(1)
            raise error

        return leave

    def interrupted_generator():
        def batches():
            try:
                yield torch.ones(MIB // 4)
            finally:
                torch.ones(10).add(1)

        for batch in batches():
            batch.add_(1)
            raise GeneratorExit

    def many():
        kept = [torch.ones(MIB // 4) for _ in range(9)]
        torch.stack(kept)

    def hook(_):
        raise ValueError

    def in_hook():
        x = torch.ones(MIB // 4, requires_grad=True)
        x.register_hook(hook)
        (x * 2).sum().backward()

    return {
        "too large, in the first operator": (spillway.OutOfBudget, lambda: torch.zeros(4 * MIB)),
        "too many arguments": (spillway.OutOfBudget, many),
        "too large, in backward": (spillway.OutOfBudget, in_backward(spillway.OutOfBudget)),
        "shapes, in the first operator": (RuntimeError, lambda: torch.ones(2, 3) @ torch.ones(2, 3)),
        "shapes, in backward": (RuntimeError, in_backward(RuntimeError)),
        "an error in backward": (ZeroDivisionError, in_backward(ZeroDivisionError)),
        "an error in a hook of backward": (ValueError, in_hook),
        "Ctrl-C": (KeyboardInterrupt, lambda: (torch.ones(MIB // 4), signal.raise_signal(signal.SIGINT))),
        "Ctrl-C in backward": (KeyboardInterrupt, in_backward(KeyboardInterrupt)),
        "an index": (IndexError, lambda: torch.ones(2)[5]),
        "the end of the program": (SystemExit, throws(SystemExit)),
        "the end of an iterator": (StopIteration, throws(StopIteration)),
        "the end of a generator": (GeneratorExit, interrupted_generator),
        "no memory": (MemoryError, throws(MemoryError)),
    }


class SessionTest(unittest.TestCase):
    def expect_equal(self, one, other):
        self.assertEqual(one[0], other[0])
        for a, b in zip(one[1], other[1], strict=True):
            self.assertTrue(torch.equal(a, b))

    def test_training_under_half_of_the_peak_changes_no_bit(self):
        for autocast in (False, True):
            plain = train(autocast=autocast)
            with spillway.Session() as session:
                unlimited = train(session, autocast=autocast)
                peak, floor = session.stats()["peak_bytes"], session.floor_bytes
            self.assertLess(floor, peak)
            budget = max(peak // 2, floor + floor // 20)
            with spillway.Session(budget=budget) as session:
                tight = train(session, autocast=autocast)
                stats = session.stats()
            self.expect_equal(plain, unlimited)
            self.expect_equal(plain, tight)
            self.assertLessEqual(stats["peak_bytes"], budget)
            self.assertGreater(stats["bytes_in"], 0)

    def test_an_operator_that_does_not_fit_raises_out_of_budget(self):
        with spillway.Session(budget="4MiB") as session:
            with self.assertRaises(spillway.OutOfBudget) as caught:
                torch.zeros(2 * MIB)
            self.assertIsInstance(caught.exception, RuntimeError)
            self.assertEqual(caught.exception.budget_bytes, 4 * MIB)
            self.assertGreaterEqual(caught.exception.requested_bytes, 8 * MIB)
            self.assertIn("zeros", str(caught.exception))
            x = torch.ones(1000, requires_grad=True)  # the Session goes on
            (x * 2).sum().backward()
            self.assertEqual(x.grad.sum().item(), 2000)
            self.assertTrue(session.is_open)

    def test_out_of_budget_arrives_from_within_backward(self):
        class Greedy(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                return torch.zeros(2 * MIB)[: gradient.numel()].view_as(gradient)

        with spillway.Session(budget="4MiB"):
            x = torch.ones(1000, requires_grad=True)
            with self.assertRaises(spillway.OutOfBudget):
                Greedy.apply(x).sum().backward()

    def test_errors_of_torch_stay_what_they_are(self):
        with spillway.Session(budget="4MiB"):
            with self.assertRaisesRegex(RuntimeError, "mat1 and mat2"):
                torch.zeros(2, 3) @ torch.zeros(2, 3)
            with self.assertRaises(IndexError):
                torch.zeros(2)[5]

    def test_messages_that_are_no_utf_8_keep_their_type(self):
        with tempfile.TemporaryDirectory() as folder:
            name = os.fsencode(folder) + b"/\xff\xfe/disk"
            with self.assertRaises((ValueError, OSError)) as caught:
                spillway.Session(budget="1GiB", disk=name).open()
            self.assertNotIsInstance(caught.exception, UnicodeError)
            self.assertIn("\ufffd", str(caught.exception))

    def test_every_exception_in_a_step_leaves_a_session_that_closes(self):
        plain = train()
        for name, (error, leave) in ways_to_leave_a_step().items():
            with self.subTest(name):
                for _ in range(2):
                    session = spillway.Session(budget="6MiB")
                    with session:
                        with contextlib.suppress(error), session.step():
                            leave()
                        with session.step():  # the next one runs
                            self.assertEqual(torch.ones(1000).add(1).sum().item(), 2000)
                    self.assertFalse(session.is_open)
                with self.assertRaises(error), spillway.Session(budget="6MiB") as session, session.step():
                    leave()
                self.assertFalse(session.is_open)
        with spillway.Session(budget="64MiB") as session:
            self.expect_equal(train(session), plain)

    def test_a_generator_that_ends_late_ends_no_other_step(self):
        session = spillway.Session()

        def batches():
            with session.step():
                yield torch.ones(10)

        with session:
            late = batches()
            next(late)
        with session, session.step():
            torch.ones(10).add(1)
            late.close()  # its step went with the Session of before
            with self.assertRaisesRegex(RuntimeError, "do not nest"):
                session.step("inner").__enter__()

    def test_an_interrupt_of_the_opening_leaves_nothing_open(self):
        def interrupt():
            raise KeyboardInterrupt

        install = _purposes.install
        for owner, name in ((_purposes, "install"), (_pointers, "install")):
            own = getattr(owner, name)
            setattr(owner, name, interrupt)
            try:
                session = spillway.Session(budget="6MiB")
                with self.assertRaises(KeyboardInterrupt):
                    session.open()
                self.assertFalse(session.is_open)
            finally:
                setattr(owner, name, own)
            with session:
                torch.ones(10).add(1)
        self.assertIs(_purposes.install, install)
        with spillway.Session(budget="64MiB") as session:
            self.assertEqual(train(session)[0], train()[0])

    def test_an_interrupt_while_functions_are_replaced_puts_all_back(self):
        class InterruptedAt(dict):
            def __setitem__(self, key, value):
                super().__setitem__(key, value)
                if key == (torch.Tensor, "tolist"):
                    raise KeyboardInterrupt

        before = {(owner, name): vars(owner).get(name) for owner, name, _ in _pointers.USED}
        originals = _pointers._originals
        _pointers._originals = InterruptedAt(originals)
        try:
            with self.assertRaises(KeyboardInterrupt):
                spillway.Session(budget="6MiB").open()
        finally:
            _pointers._originals = originals
        self.assertEqual(before, {(owner, name): vars(owner).get(name) for owner, name, _ in _pointers.USED})
        with spillway.Session(budget="6MiB"):
            torch.ones(10).add(1)

    def test_a_step_is_a_scope_and_a_decorator(self):
        with spillway.Session() as session:

            @session.step("validate")
            def validate(x):
                return (x + 1).sum().item()

            self.assertEqual(validate(torch.ones(10)), 20)
            self.assertEqual(validate(torch.ones(10)), 20)
            with session.step() as given:
                self.assertIs(given, session)
            with self.assertRaisesRegex(RuntimeError, "do not nest"), session.step(), session.step("inner"):
                pass
            with session.step():  # the outer one was ended, too
                pass

    def test_a_step_that_an_exception_leaves_is_forgotten(self):
        with spillway.Session() as session:
            for error in (ValueError, KeyboardInterrupt):
                with self.assertRaises(error), session.step():
                    torch.ones(10).add(1)
                    raise error
            self.assertEqual(train(session)[0], train()[0])

    def test_opens_again_and_refuses_what_makes_no_sense(self):
        session = spillway.Session(budget="1GiB")
        self.assertIn("1.00 GiB", repr(session))
        for _ in range(2):
            with session:
                with self.assertRaisesRegex(RuntimeError, "open already"):
                    session.open()
                with self.assertRaisesRegex(RuntimeError, "this thread has a Session"):
                    spillway.Session().open()
            self.assertFalse(session.is_open)
        session.close()  # does nothing
        for call in (session.stats, session.reset_peak, lambda: session.step().__enter__()):
            with self.assertRaisesRegex(RuntimeError, "closed"):
                call()
        with self.assertRaisesRegex(ValueError, "split is 0"):
            spillway.Session(split=0)
        with self.assertRaisesRegex(ValueError, "12 apples"):
            spillway.Session(budget="12 apples")
        with self.assertRaisesRegex(TypeError, "budget is 0.5"):
            spillway.Session(budget=0.5)
        for bad in ({"budget": -1}, {"engine": "steam"}, {"device": "toaster"}, {"processes_of_host": 0}):
            with self.subTest(bad), self.assertRaises((ValueError, spillway.DeviceError)):
                spillway.Session(**bad).open()

    def test_closes_on_its_own_thread_alone(self):
        session = spillway.Session().open()
        errors = []

        def close():
            try:
                session.close()
            except RuntimeError as error:
                errors.append(str(error))

        thread = threading.Thread(target=close)
        thread.start()
        thread.join()
        self.assertTrue(session.is_open)
        self.assertIn("on the thread that opened it", errors[0])
        session.close()

    def test_is_closed_by_another_thread_once_its_own_has_ended(self):
        kept = {}

        def work():
            kept["session"] = spillway.Session(budget="5MiB").open()
            kept["step"] = kept["session"].step().__enter__()
            kept["x"] = [torch.full((MIB // 4,), float(i)) for i in range(8)]

        for outer in (contextlib.nullcontext(), spillway.Session(budget="5MiB")):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            with outer:
                with self.assertRaisesRegex(ValueError, "budget"), session_on_a_thread(budget="64MiB"):
                    pass
                kept["session"].close()
                self.assertFalse(kept["session"].is_open)
                torch.ones(10).add(1)  # this thread's own gate is as it was
            self.assertEqual([x[7].item() for x in kept.pop("x")], list(range(8)))
            with spillway.Session(budget="64MiB") as session:
                self.assertEqual(train(session)[0], train()[0])

    def test_other_threads_run_while_an_operator_does(self):
        # The operator runs without the GIL, so the other thread counts on meanwhile.
        with spillway.Session(budget="512MiB"):
            stop, count = threading.Event(), [0]

            def counts():
                while not stop.is_set():
                    count[0] += 1

            thread = threading.Thread(target=counts)
            thread.start()
            a = torch.rand(1024, 1024)
            before = count[0]
            a @ a
            after = count[0]
            stop.set()
            thread.join()
            self.assertGreater(after, before)

    def test_bytes_that_are_taken_by_pointer_are_lent(self):
        with spillway.Session(budget="5MiB"):
            x, y = torch.full((MIB // 4,), 3.0), torch.full((MIB // 4,), 4.0)
            with spillway.resident(x):
                array = x.numpy()
                z = [torch.rand(MIB // 4) + y for _ in range(6)]  # would take the place of x
                array[0] = 7
                self.assertEqual(array.sum(), 3 * (MIB // 4) + 4)
            z[:] = [torch.rand(MIB // 4) + y for _ in range(6)]
            self.assertEqual(x[0].item(), 7)
            with spillway.resident_read(x) as lent:
                self.assertEqual(lent.numpy()[0], 7)

    def test_observe_tells_peak_and_floor(self):
        seen = spillway.observe(lambda: train()[0])
        self.assertEqual(seen.result, train()[0])
        self.assertLess(seen.floor_bytes, seen.peak_bytes)
        self.assertEqual(sum(seen.peak_by_category.values()), seen.peak_bytes)
        self.assertIn(seen.floor_operator, str(seen))
        with self.assertRaises(spillway.OutOfBudget), spillway.Session(budget=seen.floor_bytes // 2) as session:
            train(session)

    def test_bytes_are_counted_by_purpose(self):
        with spillway.Session() as session:
            model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))
            weights = sum(parameter.nbytes for parameter in model.parameters())
            for optimizer in (torch.optim.Adam(model.parameters()), spillway.optim.AdamW(model.parameters())):
                for i in range(3):
                    if i == 2:
                        session.reset_peak()
                    with session.step():
                        model(torch.randn(16, 512)).square().mean().backward()
                        optimizer.step()
                seen = session.stats()["peak_by_category"]
                for name, least in (("weights", weights), ("gradients", weights), ("optimizer", 2 * weights)):
                    self.assertGreaterEqual(seen[name], least, name)
                    self.assertLess(seen[name], 1.3 * least + (1 << 20), name)
                optimizer.state.clear()

    def test_a_report_shows_a_step_from_inside(self):
        with tempfile.TemporaryDirectory() as folder:
            floor = spillway.observe(train).floor_bytes
            with spillway.Session(budget=floor + floor // 20) as session:
                train(session, steps=4)
                page = session.report(pathlib.Path(folder) / "out")
            text = pathlib.Path(page).read_text()
            xml.dom.minidom.parseString(text.replace("<!DOCTYPE html>", ""))
            for part in (
                ", budget ",
                "step 3, step",
                "c-activations",
                "aten::convolution_backward",
                "steps of kind step",
                "What was paged",
            ):
                self.assertIn(part, text)
            events = json.loads((pathlib.Path(folder) / "out/trace.json").read_text())
            lanes = {event["args"]["name"] for event in events["traceEvents"] if event["ph"] == "M"}
            self.assertLessEqual({"compute", "copy out", "copy in"}, lanes)
            with spillway.Session() as session:
                session.report(folder)  # without a step
                with self.assertRaises(OSError):
                    session.report("/dev/null/out")
            with self.assertRaisesRegex(RuntimeError, "closed"):
                session.report(folder)

    def test_another_torch_is_refused_in_one_sentence(self):
        version, torch.__version__ = torch.__version__, "2.12.1+cu130"
        try:
            with self.assertRaisesRegex(ImportError, "built for torch 2.11, and torch 2.12.1.cu130 is installed"):
                _torch_check.require_torch()
        finally:
            torch.__version__ = version

    def test_the_interpreter_ends_with_a_session_open(self):
        for end in ("", "raise SystemExit(0)", "import os; os.kill(os.getpid(), 2)"):
            done = run_alone(f"""
                import spillway, torch
                model = torch.nn.Linear(2000, 2000)
                session = spillway.Session(budget="24MiB").open()
                x = [torch.rand(1000, 1000) for _ in range(4)]
                step = session.step().__enter__()
                print(sum((y @ y).sum() for y in x).item() > 0)
                {end}
                """)
            self.assertEqual(done.stdout.strip(), "True", done.stderr)
            self.assertIn(done.returncode, (0, 1, -2, 130), done.stderr)
            if not end.startswith("import"):
                self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_the_interpreter_ends_though_storages_of_pages_outlive_their_tensors(self):
        done = run_alone("""
            import spillway, torch
            session = spillway.Session(budget="8MiB").open()
            torch.kept = [torch.rand(1 << 18).untyped_storage() for _ in range(12)]  # until torch's module ends
            print(session.stats()["page_outs"] > 0)
            """)
        self.assertEqual((done.stdout.strip(), done.returncode, done.stderr), ("True", 0, ""))


if __name__ == "__main__":
    unittest.main()
