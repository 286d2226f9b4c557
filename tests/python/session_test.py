"""Sessions in Python: their steps, their threads, and what they tell."""

import concurrent.futures
import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import threading
import unittest
import xml.dom.minidom

import torch
from small_training import TrainingCase, train
from torch import nn

import spillway

MIB = 1 << 20


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


class SessionTest(TrainingCase):
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
