"""Tests of pointers to tensors whose bytes may be away: arrays, DLPack, storages, copies and pickles."""

import contextlib
import copy
import ctypes
import io
import pickle
import threading
import unittest

import numpy as np
import pointer_lists
import torch
from habits import COUNT, EXPECTED, MIB, Habits, absent_tensor, make_net, save, send_away
from torch import nn

import spillway
from spillway import _pointers


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
            self.assertEqual(
                (x[7].item(), f"{x[3]:.1f}", bool((x >= 0).all()), len(repr(x)) > 10), (7, "3.0", True, True)
            )
        with absent_tensor() as (_, x):
            self.assertEqual([float(value) for value in x[:3]], [0, 1, 2])
            self.assertEqual(x.untyped_storage().nbytes(), MIB)

    def test_saving_and_pickling(self):
        for to_bytes, from_bytes in (
            (lambda x: pickle.dumps(x), pickle.loads),
            (lambda x: save(x), lambda b: torch.load(io.BytesIO(b))),
            (lambda x: save(x, _use_new_zipfile_serialization=False), lambda b: torch.load(io.BytesIO(b))),
        ):
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
            for take in (torch.Tensor.data_ptr, torch._C._data_address, lambda x: x.untyped_storage().data_ptr()):
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
        def functions():
            return [vars(owner).get(name) for owner, name, _ in _pointers.USED]

        before = functions()
        with spillway.Session():
            for now, own in zip(functions(), before, strict=True):
                self.assertTrue(now is None or now is not own)
        self.assertEqual(functions(), before)

    def test_every_use_of_memory_is_right_under_pressure(self):
        for table in (
            pointer_lists.TENSOR_USES,
            pointer_lists.STORAGE_USES,
            pointer_lists.C_USES,
            pointer_lists.OTHER_USES,
        ):
            for name, use in table.items():
                if use is None:
                    continue  # an error where the bytes are away, and tried elsewhere
                with self.subTest(name), pointer_lists.quiet():
                    self.try_use(use)

    def try_use(self, use):
        """Uses a tensor that is away, one that is there and clean, and one before the Session opens."""
        x = torch.arange(COUNT, dtype=torch.float32)
        expected = pointer_lists.bits_of(use(x)), pointer_lists.bits_of(x)
        del x
        with absent_tensor() as (_, x):
            self.expect_bits(use, x, expected)
        del x
        with spillway.Session(budget="6MiB"):
            x = torch.arange(COUNT, dtype=torch.float32)
            more = send_away()
            x.sum()  # it is back, and a copy of it is on the host
            del more
            self.expect_bits(use, x, expected)
        x = torch.arange(COUNT, dtype=torch.float32)
        result = use(x)
        with spillway.Session(budget="8MiB"):
            x.sum()
            more = send_away()
            del more
            self.assertEqual((pointer_lists.bits_of(result), pointer_lists.bits_of(x)), expected)

    def expect_bits(self, use, x, expected):
        result = use(x)
        self.assertEqual(pointer_lists.bits_of(result), expected[0])
        for _ in range(2):
            more = send_away()
            del more
        self.assertEqual((pointer_lists.bits_of(result), pointer_lists.bits_of(x)), expected)

    def test_no_function_of_torch_is_on_no_list(self):
        lists, of_objects = pointer_lists, set(dir(object))
        for owner, known in (
            (torch.Tensor, {*lists.operators(), *lists.TENSOR_OPERATORS, *lists.TENSOR_NO_BYTES, *lists.TENSOR_USES}),
            (
                torch.UntypedStorage,
                {*lists.STORAGE_NO_BYTES, *lists.STORAGE_BY_OTHERS, *lists.STORAGE_USES} | of_objects,
            ),
            (torch.TypedStorage, {*lists.TYPED_STORAGE} | of_objects),
        ):
            self.assertEqual({name for name in dir(owner) if not name.startswith("__slot")} - known, set(), owner)
        named = {name for name in dir(torch._C) if any(word in name.lower() for word in lists.C_WORDS)}
        self.assertEqual(named - {*lists.C_NAMES, *lists.C_USES}, set())
        for owner, name, _ in (*_pointers.KEPT, *_pointers.USED):
            self.assertTrue(hasattr(owner, name) or "gds" in name or "nccl" in name or owner is torch._C, name)

    def test_an_address_that_is_written_at_once_keeps_the_write(self):
        for address in (lambda x: x.data_ptr(), lambda x: x.untyped_storage().data_ptr()):
            with spillway.Session(budget="6MiB"):
                x = torch.arange(COUNT, dtype=torch.float32)
                more = send_away()
                x.sum()  # it is back, and a copy of it is on the host
                ctypes.c_float.from_address(address(x)).value = 9.0
                more = send_away()
                self.assertEqual(x[:3].tolist(), [9, 1, 2])
                del more

    def test_tensors_go_through_queues_of_processes(self):
        for strategy in ("file_descriptor", "file_system"):
            before = torch.multiprocessing.get_sharing_strategy()
            torch.multiprocessing.set_sharing_strategy(strategy)
            try:
                with absent_tensor() as (_, x):
                    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
                    queue.put(x)
                    received = queue.get()
                    more = send_away()
                    self.assertTrue(torch.equal(received, x))
                    received[5] = 77
                    self.assertEqual(x[5].item(), 77)
                    del more
            finally:
                torch.multiprocessing.set_sharing_strategy(before)

    def test_arrays_are_taken_beside_sessions_that_open_and_close(self):
        x = torch.arange(COUNT, dtype=torch.float32)
        stop, wrong = threading.Event(), []

        def take():
            while not stop.is_set():
                y = torch.full((MIB // 64,), 3.0)
                if y.numpy().sum() != 3 * MIB // 64 or x.numpy()[9] != 9:
                    wrong.append(1)

        thread = threading.Thread(target=take)
        thread.start()
        try:
            for _ in range(20):
                with spillway.Session(budget="24MiB"):
                    torch.zeros(COUNT).add_(1).sum()
        finally:
            stop.set()
            thread.join()
        self.assertEqual(wrong, [])

    def test_an_object_that_saves_inside_torch_save(self):
        class Nested:
            def __init__(self, x):
                self.x = x

            def __reduce__(self):
                return bytes, (pickle.dumps(self.x.untyped_storage())[:4],)

        with spillway.Session(budget="5MiB"):
            inner, x = torch.ones(COUNT), torch.arange(COUNT, dtype=torch.float32)
            more = send_away()
            file = io.BytesIO()
            torch.save([Nested(inner), x], file)
            file.seek(0)
            del more
            np.testing.assert_array_equal(torch.load(file, weights_only=False)[1].numpy(), EXPECTED)


if __name__ == "__main__":
    unittest.main()
