"""Tests of tensors that live longer or elsewhere than a Session: cycles, threads, workers, the interpreter's end."""

import contextlib
import gc
import io
import os
import subprocess
import sys
import textwrap
import threading
import unittest
import weakref

import numpy as np
import torch
from habits import COUNT, EXPECTED, MIB, Habits, make_net, send_away, train
from torch.utils import data

import spillway


class Numbered(data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        x = torch.full((COUNT,), float(index))
        return x * 2 + x.sort().values


class LivesTest(Habits):
    """When and where tensors are made and die."""

    def test_data_loaders_with_worker_processes(self):
        for context in ("fork", "spawn", "forkserver"):
            with spillway.Session(budget="6MiB"):
                net = make_net()
                loader = data.DataLoader(Numbered(), batch_size=1, num_workers=2, multiprocessing_context=context)
                total = 0
                for batch in loader:
                    net(torch.randn(64, 256))
                    total += batch[0, 7].item()
            self.assertEqual(total, 3 * sum(range(6)))

    def test_workers_read_a_data_set_that_is_away_or_say_what_to_do(self):
        for context in ("fork", "spawn", "forkserver"):
            for is_lent in (False, True):
                with self.subTest(context, lent=is_lent), spillway.Session(budget="6MiB"):
                    x = torch.arange(COUNT, dtype=torch.float32).reshape(4, -1)
                    more = send_away()
                    loader = data.DataLoader(data.TensorDataset(x), num_workers=1, multiprocessing_context=context)
                    with spillway.resident(x) if is_lent else contextlib.nullcontext():
                        if context == "fork" and not is_lent:
                            with self.assertRaisesRegex(RuntimeError, "forked inside a Session.*'spawn'.*resident"):
                                list(loader)
                        else:
                            read = torch.cat([batch for (batch,) in loader])
                            np.testing.assert_array_equal(read.flatten().numpy(), EXPECTED)
                    del more
                    self.assertEqual(x[0, 5].item(), 5)

    def test_a_forked_child_waits_for_nobody(self):
        with spillway.Session(budget="5MiB"):
            x = torch.arange(COUNT, dtype=torch.float32)
            more = send_away()
            uses = (
                x.tolist,
                x.numpy,
                lambda: x.apply_(abs),
                lambda: spillway.resident(x).__enter__().sum(),
                x.data_ptr,
            )
            child = os.fork()
            if child == 0:
                wrong = 0
                for use in uses:
                    try:
                        use()
                        wrong += 1
                    except RuntimeError as error:
                        wrong += "paged out" not in str(error)
                os._exit(wrong)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
            del more

    def test_pointers_of_before_a_session_stay_right_in_it(self):
        file = io.BytesIO()
        torch.save(torch.arange(COUNT, dtype=torch.float32), file)
        for export in (lambda x: x.numpy(), np.asarray, np.from_dlpack):
            for make in (
                lambda: torch.load(io.BytesIO(file.getvalue())),
                lambda: torch.arange(COUNT, dtype=torch.float32),
            ):
                x = make()
                array = export(x)
                with spillway.Session(budget="6MiB"):
                    x.add_(1)
                    more = send_away()
                    np.testing.assert_array_equal(array, EXPECTED + 1)
                    x.mul_(2)
                    del more
                np.testing.assert_array_equal(array, 2 * (EXPECTED + 1))
                np.testing.assert_array_equal(x.numpy(), array)

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
                results.append(
                    torch.equal(x.sort().values.sort(descending=True).values, x.sort(descending=True).values)
                )

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
            done = subprocess.run(
                [
                    sys.executable,
                    "-c",
                    textwrap.dedent(f"""
                import spillway, torch
                session = spillway.Session(budget="6MiB").open()
                x = [torch.rand(1 << 18) for _ in range(10)]
                array = x[0].numpy()
                with session.step():
                    y = x[3] + x[4]
                    {end}
                """),
                ],
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            self.assertIn(done.returncode, code if isinstance(code, tuple) else (code,), done.stderr)
            self.assertNotIn("Segmentation", done.stderr)


if __name__ == "__main__":
    unittest.main()
