"""Tests of Sessions that begin and end inside other scopes of PyTorch's: profilers, inference mode, backward passes."""

import unittest

import torch
from torch.profiler import profile, schedule

import spillway
from spillway import _compiled

MIB = 1 << 20


def pages_leave(session):
    before = session.stats()["page_outs"]
    kept = [torch.full((MIB // 4,), float(i)) for i in range(8)]
    return session.stats()["page_outs"] > before and all(float(x[0]) == i for i, x in enumerate(kept))


class SessionScopesTest(unittest.TestCase):
    def tearDown(self):
        self.assertFalse(_compiled.is_gated(), "a Session has left its gate open")
        with spillway.Session(budget="5MiB") as session:
            self.assertTrue(pages_leave(session))

    def test_profilers_begin_and_end_on_either_side(self):
        for waits in (0, 1, 3):  # the profiler starts outside, inside, and after the first Session
            with profile(schedule=schedule(wait=waits, warmup=1, active=2, repeat=1), acc_events=True) as profiler:
                for _ in range(2):
                    with spillway.Session(budget="5MiB") as session:
                        for _ in range(3):
                            with session.step():
                                self.assertTrue(pages_leave(session))
                            profiler.step()
            self.assertTrue(profiler.key_averages())
        with profile() as profiler:  # none is left behind
            torch.ones(10).add(1)
        self.assertTrue(profiler.key_averages())

    def test_a_profiler_of_autograd_around_an_opening(self):
        with torch.autograd.profiler.profile():
            session = spillway.Session(budget="5MiB").open()
        self.assertTrue(pages_leave(session))
        with torch.autograd.profiler.profile() as profiler:
            session.close()
        self.assertTrue(profiler.function_events is not None)

    def test_backward_on_other_threads_finds_the_session_under_a_profiler(self):
        x = torch.ones(MIB // 4, requires_grad=True)
        with profile(), spillway.Session(budget="8MiB") as session, session.step():
            y = x
            for _ in range(6):
                y = y.sin()
            y.sum().backward()
            self.assertGreater(session.stats()["page_outs"], 0)
            self.assertLessEqual(session.stats()["peak_bytes"], 8 * MIB)

    def test_a_session_inside_inference_mode(self):
        with torch.inference_mode(), spillway.Session(budget="5MiB") as session:
            self.assertTrue(pages_leave(session))

    def test_a_session_whose_inference_mode_has_ended_says_so(self):
        session = spillway.Session(budget="5MiB")
        with torch.inference_mode():
            with self.assertRaisesRegex(RuntimeError, "open it outside of torch.inference_mode"):
                session.open()
            session.__enter__()  # as a generator may
        with self.assertRaisesRegex(RuntimeError, "inference mode. Close it, and open it outside"), session.step():
            pass
        session.close()

    def test_a_session_is_not_closed_inside_inference_mode_alone(self):
        session = spillway.Session(budget="5MiB").open()
        with (
            torch.inference_mode(),
            self.assertRaisesRegex(RuntimeError, "close it outside of torch.inference_mode"),
        ):
            session.close()
        self.assertTrue(pages_leave(session))
        session.close()

    def test_sessions_do_not_begin_or_end_in_a_backward_pass(self):
        for change in (lambda: spillway.Session().open(), lambda: session.close()):
            session = spillway.Session(budget="5MiB").open()
            x = torch.ones(3, requires_grad=True)
            x.register_hook(lambda _, change=change: change() and None)
            with self.assertRaisesRegex(RuntimeError, "cannot be (opened|closed) in a backward pass"):
                x.sum().backward()
            self.assertTrue(pages_leave(session))
            session.close()


if __name__ == "__main__":
    unittest.main()
