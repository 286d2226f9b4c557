"""Tests of Sessions in Python on a GPU. They are skipped where there is none."""

import contextlib
import os
import unittest
from unittest import mock

import torch
from torch import nn

import spillway

MIB = 1 << 20


def make_net():
    torch.manual_seed(1)
    layers = []
    for i in range(6):
        layers += [nn.Conv3d(16 if i else 2, 16, 3, padding=1), nn.BatchNorm3d(16), nn.LeakyReLU()]
    return nn.Sequential(*layers, nn.Conv3d(16, 2, 1)).cuda()


def train(session=None, steps=5, autocast=False, kfac=False):
    """Trains a small network on the GPU; returns losses and every tensor of its state, on the host."""
    net = make_net()
    rule = torch.optim.SGD(net.parameters(), 1e-2) if kfac else torch.optim.Adam(net.parameters(), 1e-2)
    preconditioner = spillway.KFAC(net, rule, factor_interval=2, inverse_interval=2) if kfac else None
    inputs, targets = torch.randn(1, 2, 64, 64, 64).cuda(), torch.randint(0, 2, (1, 64, 64, 64)).cuda()
    losses = []
    for _ in range(steps):
        with session.step() if session else contextlib.nullcontext():
            rule.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                logits = net(inputs)
            loss = nn.functional.binary_cross_entropy_with_logits(logits.float()[:, 0], targets.float())
            loss.backward()
            if preconditioner:
                preconditioner.step()
            rule.step()
            losses.append(loss.item())
    return losses, [tensor.cpu() for tensor in net.state_dict().values()]


@unittest.skipUnless(torch.cuda.is_available(), "there is no GPU here")
class GpuTest(unittest.TestCase):
    def setUp(self):
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.deterministic = True

    def tearDown(self):
        torch.use_deterministic_algorithms(False)

    def expect_equal(self, one, other):
        self.assertEqual(one[0], other[0])
        for a, b in zip(one[1], other[1], strict=True):
            self.assertTrue(torch.equal(a, b))

    def train_under(self, percent, **options):
        """Trains without a budget and under one; returns both results, and the figures of the second."""
        with spillway.Session(device="cuda") as session:
            unlimited = train(session, **options)
            stats, floor = session.stats(), session.floor_bytes
        # What libraries hold cannot leave, and may still grow a little.
        tensors = stats["peak_bytes"] - stats["library_bytes"]
        budget = max(floor + 32 * MIB, stats["library_bytes"] + tensors * percent // 100)
        with spillway.Session(budget=budget, device="cuda") as session:
            tight = train(session, **options)
            figures = session.stats() | {"budget": budget}
        return unlimited, tight, figures

    def test_training_under_half_of_the_peak_changes_no_bit(self):
        for autocast in (False, True):
            plain = train(autocast=autocast)
            unlimited, tight, figures = self.train_under(50, autocast=autocast)
            self.expect_equal(plain, unlimited)
            self.expect_equal(plain, tight)
            self.assertLessEqual(figures["peak_bytes"], figures["budget"])
            self.assertGreater(figures["bytes_in"], 0)

    def test_kfac_under_a_budget_changes_no_bit(self):
        unlimited, tight, figures = self.train_under(60, kfac=True)
        self.expect_equal(unlimited, tight)
        self.assertLess(unlimited[0][-1], unlimited[0][0])
        self.assertGreater(figures["bytes_in"], 0)

    def test_what_does_not_fit_raises_out_of_budget_and_leaves_the_rest_intact(self):
        early = torch.arange(MIB, device="cuda", dtype=torch.float32)
        with spillway.Session(device="cuda") as session:
            held = session.stats()["library_bytes"]
        with spillway.Session(budget=held + 64 * MIB, device="cuda"):
            with self.assertRaises(spillway.OutOfBudget):
                torch.zeros(32 * MIB, device="cuda")
            kept = [early + i for i in range(32)]  # twice the budget
            sums = [float(tensor[7]) for tensor in kept]
        self.assertEqual(sums, [7.0 + i for i in range(32)])

    def test_another_stream_inside_a_session_is_refused(self):
        with spillway.Session(device="cuda"):
            made = torch.ones(MIB, device="cuda")
            with torch.cuda.stream(torch.cuda.Stream()):
                for use in (
                    lambda: torch.zeros(MIB, device="cuda"),
                    lambda: made.mul_(2),
                    lambda: made.copy_(torch.zeros(MIB)),
                ):
                    with self.assertRaisesRegex(RuntimeError, "stream"):
                        use()
            self.assertEqual(made.sum().item(), MIB)

    def test_the_current_gpu_is_the_sessions_and_stays_current(self):
        here = torch.cuda.current_device()
        with spillway.Session(device="cuda"):
            self.assertEqual(torch.cuda.current_device(), here)
            made = torch.ones(MIB, device="cuda")
            self.assertEqual(made.device.index, here)
        with self.assertRaises(spillway.DeviceError):
            spillway.Session(device=f"cuda:{torch.cuda.device_count()}").open()
        self.assertEqual(torch.cuda.current_device(), here)

    def test_workers_of_a_data_loader_inside_a_session(self):
        data = torch.utils.data.TensorDataset(torch.arange(64.0).reshape(16, 4))
        with spillway.Session(device="cuda") as session:
            seen = 0.0
            for (batch,) in torch.utils.data.DataLoader(data, batch_size=4, num_workers=2):
                with session.step():
                    seen += batch.cuda().sum().item()
        self.assertEqual(seen, torch.arange(64.0).sum().item())


class RankTest(unittest.TestCase):
    """What a rank of several on one machine gets, on doubles of its GPU and of the opened Session."""

    def options_of(self, current=2, environment=(), **given):
        """Returns the options of the Session that is opened where GPU `current` is the current one."""
        with (
            mock.patch.object(torch.cuda, "is_available", lambda: True),
            mock.patch.object(torch.cuda, "current_device", lambda: current),
            mock.patch.dict(os.environ, dict(environment)),
            mock.patch.object(spillway.session._spillway, "Session") as opened,
        ):
            spillway.Session(**given).open().close()
        return opened.call_args.kwargs

    def test_cuda_is_the_current_gpu(self):
        self.assertEqual(self.options_of(device="cuda")["device"], "cuda:2")
        self.assertEqual(self.options_of(device=torch.device("cuda"))["device"], "cuda:2")
        self.assertEqual(self.options_of(device="cuda:1")["device"], "cuda:1")
        self.assertEqual(self.options_of(device="cpu")["device"], "cpu")

    def test_ranks_of_torchrun_share_the_hosts_memory(self):
        self.assertEqual(self.options_of()["processes_of_host"], 1)
        self.assertEqual(self.options_of(environment={"LOCAL_WORLD_SIZE": "8"})["processes_of_host"], 8)
        self.assertEqual(
            self.options_of(environment={"LOCAL_WORLD_SIZE": "8"}, processes_of_host=2)["processes_of_host"], 2
        )


if __name__ == "__main__":
    unittest.main()
