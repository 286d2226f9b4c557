"""Tests of pointers to tensors whose bytes may be away: arrays, DLPack, storages, copies and pickles."""

import contextlib
import copy
import io
import pickle
import unittest

import numpy as np
import torch
from habits import COUNT, EXPECTED, MIB, Habits, absent_tensor, make_net, save, send_away
from torch import nn

import spillway


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


if __name__ == "__main__":
    unittest.main()
