"""Tests of DistributedDataParallel, and of backward when a rank ends, over the backend `spillway`."""

import contextlib
import copy
import functools
import itertools
import os
import unittest

import torch
import torch.distributed as dist
from ranks import expect, expect_error, run_ranks, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import spillway
import spillway.distributed

MIB = 1 << 20


def train(rank, size, session=None, steps=3, **options):
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 4)),
        bucket_cap_mb=0.5,
        **options,
    )
    optimizer = spillway.optim.Adam(model.parameters(), 1e-3, group_bytes=1 << 18)
    torch.manual_seed(rank)
    x, y = torch.randn(64, 256), torch.randint(0, 4, (64,))
    losses = []
    for _ in range(steps):
        step = session.step() if session else None
        if step:
            step.__enter__()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step:
            step.__exit__(None, None, None)
    return losses, [parameter.detach().clone() for parameter in model.parameters()]


def data_parallel(rank, size, folder):
    """DDP trains as with gloo, and under half of its peak the same."""
    start("gloo", rank, size, folder)
    with_gloo = train(rank, size)
    dist.destroy_process_group()
    start("spillway", rank, size, folder)
    plain = train(rank, size)
    for one, another in zip(plain[1], with_gloo[1], strict=True):
        expect(one, another)
    with spillway.Session(processes_of_host=size) as session:
        train(rank, size, session)
        peak, floor = session.stats()["peak_bytes"], session.floor_bytes
    budget = torch.tensor([max(peak // 2, floor + floor // 20)])
    dist.all_reduce(budget, dist.ReduceOp.MAX)
    with spillway.Session(budget=budget.item(), processes_of_host=size) as session:
        tight = train(rank, size, session)
        stats = session.stats()
    assert tight[0] == plain[0], (tight[0], plain[0])
    assert all(torch.equal(a, b) for a, b in zip(tight[1], plain[1], strict=True))
    assert stats["peak_bytes"] <= budget.item() and stats["bytes_in"] > 0, (stats, budget)
    everyone = [torch.zeros_like(plain[1][0]) for _ in range(size)]
    dist.all_gather(everyone, plain[1][0])
    assert all(torch.equal(everyone[0], other) for other in everyone)
    dist.destroy_process_group()


def smallest_budgets(rank, size, folder):
    """All of DDP's ways to keep gradients work where buckets, gradients and weights are mostly away."""
    start("spillway", rank, size, folder)
    for options in ({}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}, {"static_graph": True}):
        plain = train(rank, size, **options)
        with spillway.Session(processes_of_host=size) as session:
            train(rank, size, session, **options)
            budget = torch.tensor([session.floor_bytes + session.floor_bytes // 50])
            peak = session.stats()["peak_bytes"]
        dist.all_reduce(budget, dist.ReduceOp.MAX)
        with spillway.Session(budget=budget.item(), processes_of_host=size) as session:
            tight = train(rank, size, session, steps=5, **options)
            assert session.stats()["peak_bytes"] <= budget.item() < 0.6 * peak, (session.stats(), budget, peak)
        assert tight[0][:3] == plain[0], (options, tight[0], plain[0])
    dist.destroy_process_group()


def buckets_made_between_sessions(rank, size, folder):
    """A Session may open after buckets were made while none was open, which is when DDP's second step makes them."""
    start("spillway", rank, size, folder)
    torch.manual_seed(0)
    layers = [module for _ in range(4) for module in (nn.Linear(512, 512), nn.Tanh())]
    models = [nn.Sequential(*copy.deepcopy(layers)) for _ in range(2)]
    plain, paged = (DistributedDataParallel(model, bucket_cap_mb=1) for model in models)
    x = torch.full((4, 512), rank + 1.0)
    for in_session in (True, False, False):
        plain(x).square().mean().backward()
        with spillway.Session(processes_of_host=size) if in_session else contextlib.nullcontext() as session:
            paged(x).square().mean().backward()
            if session:
                budget = session.floor_bytes
    with spillway.Session(budget=budget + 8 * MIB, processes_of_host=size) as session:
        paged(x).square().mean().backward()
        assert session.stats()["page_outs"] > 0
    plain(x).square().mean().backward()
    for one, another in zip(paged.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one.grad, another.grad)
    dist.destroy_process_group()


def a_rank_that_ends_before_backward(sharded, in_session, rank, size, folder):
    """Autograd gives the others a CommError too, though torch's own functions throw it."""
    start("spillway", rank, size, folder)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    if sharded:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (size,)))
    else:
        model = DistributedDataParallel(model)
    with spillway.Session(processes_of_host=size) if in_session else contextlib.nullcontext():
        for last in (False, True):
            loss = model(torch.ones(3, 8)).sum()
            dist.barrier()
            if last and rank == 1:
                os._exit(1)
            if not last:
                loss.backward()
                continue
            expect_error(spillway.CommError, "rank 1", loss.backward)
            expect_error(spillway.CommError, "rank 1", lambda: dist.all_reduce(torch.ones(3)))
    os._exit(0)


class DataParallelTest(unittest.TestCase):
    def test_data_parallel_training_equals_gloos_and_pages(self):
        run_ranks(data_parallel, 2)

    def test_data_parallel_training_works_at_the_smallest_budgets(self):
        run_ranks(smallest_budgets, 2)

    def test_data_parallel_buckets_may_be_made_between_sessions(self):
        run_ranks(buckets_made_between_sessions, 2)

    def test_a_rank_that_ends_is_named_by_autograd(self):
        for sharded, in_session in itertools.product((False, True), repeat=2):
            run_ranks(functools.partial(a_rank_that_ends_before_backward, sharded, in_session), 2, failing=(1,))


if __name__ == "__main__":
    unittest.main()
