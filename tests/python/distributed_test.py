"""Tests of torch.distributed's backend `spillway`, in processes that this program starts."""

import datetime
import os
import socket
import unittest

import torch
import torch.distributed as dist
from ranks import run_ranks, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import spillway
import spillway.distributed

MIB = 1 << 20


def values(rank, shape, dtype):
    torch.manual_seed(rank)
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(0, 20, shape, dtype=dtype)
    return torch.rand(shape, dtype=torch.complex64 if dtype.is_complex else torch.float32).to(dtype)


def expect(got, wanted):
    """Fails unless the tensors are equal but for the order in which ranks were added."""
    if not torch.allclose(got.to(wanted.dtype), wanted, rtol=1e-2 if wanted.dtype in (torch.half, torch.bfloat16) else 1e-5):
        raise AssertionError(f"{got} is not {wanted}")


def every_collective(rank, size, folder):
    """Compares each collective with gloo's."""
    start("spillway", rank, size, folder)
    other = dist.new_group(backend="gloo")
    ours = dist.group.WORLD
    groups = (ours, other)
    kinds = (torch.float32, torch.float64, torch.half, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.int8,
             torch.bool)
    for dtype in kinds:
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN):
            if dtype == torch.bool and op == dist.ReduceOp.SUM or dtype == torch.bfloat16:
                continue  # gloo lacks it
            got = [values(rank, (7, 5), dtype) for _ in groups]
            for tensor, group in zip(got, groups, strict=True):
                dist.all_reduce(tensor, op, group=group)
            expect(*got)
        gathered = [[torch.zeros(3, 5, dtype=dtype) for _ in range(size)] for _ in groups]
        for tensors, group in zip(gathered, groups, strict=True):
            dist.all_gather(tensors, values(rank, (3, 5), dtype), group=group)
        for one, another in zip(*gathered, strict=True):
            expect(one, another)
        sent = [values(rank, (11,), dtype) for _ in groups]
        for tensor, group in zip(sent, groups, strict=True):
            dist.broadcast(tensor, 1, group=group)
        expect(*sent)
    mean = torch.full((4,), float(rank))
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    expect(mean, torch.full((4,), (size - 1) / 2))
    waves = values(rank, (6,), torch.complex64)
    dist.all_reduce(waves)
    expect(waves, sum(values(r, (6,), torch.complex64) for r in range(size)))
    strided = torch.arange(24.0).view(4, 6).t()[::2]
    dist.all_reduce(strided)
    expect(strided, size * torch.arange(24.0).view(4, 6).t()[::2])

    reduced = torch.full((9,), float(rank))
    dist.reduce(reduced, 1)
    expect(reduced, torch.full((9,), size * (size - 1) / 2 if rank == 1 else float(rank)))
    outputs = [torch.zeros(5) for _ in range(size)] if rank == 0 else None
    dist.gather(torch.full((5,), float(rank)), outputs, dst=0)
    if rank == 0:
        expect(torch.cat(outputs), torch.arange(float(size)).repeat_interleave(5))
    output = torch.zeros(5)
    dist.scatter(output, [torch.full((5,), float(r)) for r in range(size)] if rank == size - 1 else None, src=size - 1)
    expect(output, torch.full((5,), float(rank)))
    whole = torch.zeros(size * 3, dtype=torch.uint8)
    dist.all_gather_into_tensor(whole, torch.full((3,), rank, dtype=torch.uint8))
    expect(whole, torch.arange(size, dtype=torch.uint8).repeat_interleave(3))
    part = torch.zeros(4)
    dist.reduce_scatter_tensor(part, torch.arange(4.0 * size))
    expect(part, size * torch.arange(4.0 * size)[4 * rank:4 * rank + 4])
    dist.reduce_scatter(part, [torch.full((4,), float(r)) for r in range(size)])
    expect(part, torch.full((4,), float(size * rank)))
    given = torch.arange(float(size * 2)) + 100 * rank
    taken = torch.zeros(size * 2)
    dist.all_to_all_single(taken, given)
    expect(taken, torch.cat([torch.arange(2.0) + 2 * rank + 100 * r for r in range(size)]))
    uneven = torch.zeros(size * (rank + 1))
    dist.all_to_all_single(uneven, torch.full((size * (size + 1) // 2,), float(rank)), [rank + 1] * size,
                           list(range(1, size + 1)))
    expect(uneven, torch.arange(float(size)).repeat_interleave(rank + 1))
    things = [None] * size
    dist.all_gather_object(things, {"rank": rank, "text": "x" * (1 + 100 * rank)})
    assert [thing["rank"] for thing in things] == list(range(size))
    listed = ["only", 5] if rank == 0 else [None, None]
    dist.broadcast_object_list(listed, 0)
    assert listed == ["only", 5]
    dist.barrier()

    pair = dist.new_group([0, size - 1], backend="spillway")
    if rank in (0, size - 1):
        both = torch.ones(3)
        dist.all_reduce(both, group=pair)
        expect(both, torch.full((3,), 2.0))
    dist.destroy_process_group()


def asynchronous(rank, size, folder):
    """Works, futures and messages under way together."""
    start("spillway", rank, size, folder)
    tensors = [torch.full((50_000,), float(i + rank)) for i in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for i, work in enumerate(works):
        work.wait()
        assert work.is_completed()
        expect(tensors[i], torch.full((50_000,), size * i + size * (size - 1) / 2))
    future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
    expect(future.then(lambda done: done.value()[0] * 2).wait(), torch.full((3,), 2.0 * size))

    following, before = (rank + 1) % size, (rank + size - 1) % size
    outgoing = [torch.full((300_000,), float(rank)), torch.full((4,), 7.0)]
    incoming = [torch.zeros(300_000), torch.zeros(4)]
    ops = [dist.P2POp(dist.isend, outgoing[0], following, tag=1), dist.P2POp(dist.isend, outgoing[1], following, tag=2),
           dist.P2POp(dist.irecv, incoming[1], before, tag=2), dist.P2POp(dist.irecv, incoming[0], before, tag=1)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    expect(incoming[0], torch.full((300_000,), float(before)))
    expect(incoming[1], outgoing[1])
    for call, name in ((lambda: dist.recv(torch.zeros(1)), "recv"),
                       (lambda: dist.all_reduce(torch.ones(1), dist.ReduceOp.PRODUCT), "PRODUCT"),
                       (lambda: dist.all_reduce(torch.ones(2).to_sparse()), "sparse|Sparse")):
        try:
            call()
        except (RuntimeError, NotImplementedError, ValueError) as error:
            assert any(word in str(error) for word in name.split("|")), error
        else:
            raise AssertionError(f"{name} was not refused")
    dist.barrier()
    dist.destroy_process_group()


def train(rank, size, session=None, steps=3, **options):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256), nn.ReLU(),
                                                  nn.Linear(256, 4)), bucket_cap_mb=0.5, **options)
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


def other_backends_in_a_session(rank, size, folder):
    """gloo's asynchronous collectives are refused inside a Session; ours run."""
    start("gloo", rank, size, folder)
    ours = dist.new_group(backend="spillway")
    with spillway.Session(budget="64MiB", processes_of_host=size):
        x = torch.full((MIB,), float(rank))
        dist.all_reduce(x, group=ours)
        assert x[0].item() == size * (size - 1) / 2
        try:
            dist.all_reduce(x)
        except RuntimeError as error:
            assert "backend 'spillway'" in str(error), error
        else:
            raise AssertionError("gloo was not refused")
    dist.destroy_process_group()


def fully_sharded(rank, size, folder):
    """FSDP's collectives: parameters gathered, gradients reduce-scattered."""
    from torch.distributed.fsdp import fully_shard

    start("spillway", rank, size, folder)
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    torch.manual_seed(0)
    sharded = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    fully_shard(sharded, mesh=dist.device_mesh.init_device_mesh("cpu", (size,)))
    inputs = [torch.randn(4, 8, generator=torch.Generator().manual_seed(r)) for r in range(size)]
    sharded(inputs[rank]).square().mean().backward()
    torch.cat([plain(x).square() for x in inputs]).mean().backward()
    for one, another in zip(sharded.parameters(), plain.parameters(), strict=True):
        expect(one.grad.full_tensor(), another.grad)
    dist.destroy_process_group()


def a_rank_that_ends(rank, size, folder):
    """The others get a CommError that names it, long before the deadline."""
    start("spillway", rank, size, folder)
    dist.barrier()
    if rank == 1:
        os._exit(1)
    began = datetime.datetime.now()
    try:
        dist.all_reduce(torch.ones(10))
    except spillway.CommError as error:
        assert "rank 1" in str(error), error
    else:
        raise AssertionError("no error")
    assert (datetime.datetime.now() - began).total_seconds() < 15
    os._exit(0)


def declared_levels(rank, size, folder):
    start("spillway", rank, size, folder,
          pg_options=spillway.distributed.Options(levels=[[0, 0, 1, 1]], deadline=20, address="127.0.0.1"))
    text = spillway.distributed.explain(size="4MiB")
    assert "level 2" in text, text
    x = torch.full((1000,), float(rank))
    dist.all_reduce(x)
    expect(x, torch.full((1000,), 6.0))
    dist.destroy_process_group()


class DistributedTest(unittest.TestCase):
    def test_every_collective_equals_gloos(self):
        run_ranks(every_collective, 3)

    def test_works_futures_and_messages_go_on_together(self):
        run_ranks(asynchronous, 3)

    def test_data_parallel_training_equals_gloos_and_pages(self):
        run_ranks(data_parallel, 2)

    def test_data_parallel_training_works_at_the_smallest_budgets(self):
        run_ranks(smallest_budgets, 2)

    def test_in_a_session_only_this_backend_runs(self):
        run_ranks(other_backends_in_a_session, 2)

    def test_fully_sharded_gradients_are_those_of_the_whole_batch(self):
        run_ranks(fully_sharded, 2)

    def test_a_rank_that_ends_is_named_at_once(self):
        run_ranks(a_rank_that_ends, 3, failing=(1,))

    def test_levels_may_be_declared(self):
        run_ranks(declared_levels, 4)

    def test_addresses(self):
        own = spillway.distributed._own_address
        store = dist.HashStore()
        self.assertEqual(own(store, "lo"), "127.0.0.1")
        self.assertEqual(own(store, "10.1.2.3"), "10.1.2.3")
        self.assertIn(own(store, "").count("."), (3,))
        os.environ["MASTER_ADDR"] = "localhost"
        self.assertEqual(own(store, ""), "127.0.0.1")
        os.environ["MASTER_ADDR"] = socket.gethostname()
        self.assertTrue(own(store, ""))
        with self.assertRaises(TypeError):
            spillway.distributed._make(None, object())


if __name__ == "__main__":
    unittest.main()
