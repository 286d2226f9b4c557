"""Errors and interrupts in Sessions: they keep their types, and leave nothing open."""

import contextlib
import os
import signal
import tempfile
import unittest

import torch
from small_training import TrainingCase, train

import spillway
from spillway import _pointers, _purposes, _torch_check

MIB = 1 << 20


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


class SessionErrorsTest(TrainingCase):
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

    def test_a_step_that_an_exception_leaves_is_forgotten(self):
        with spillway.Session() as session:
            for error in (ValueError, KeyboardInterrupt):
                with self.assertRaises(error), session.step():
                    torch.ones(10).add(1)
                    raise error
            self.assertEqual(train(session)[0], train()[0])

    def test_another_torch_is_refused_in_one_sentence(self):
        version, torch.__version__ = torch.__version__, "2.12.1+cu130"
        try:
            with self.assertRaisesRegex(ImportError, "built for torch 2.11, and torch 2.12.1.cu130 is installed"):
                _torch_check.require_torch()
        finally:
            torch.__version__ = version


if __name__ == "__main__":
    unittest.main()
