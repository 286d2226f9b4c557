"""Tests of torch.distributed's backend `spillway`, in processes that this program starts."""

import contextlib
import datetime
import os
import socket
import time
import unittest

import torch
import torch.distributed as dist
from ranks import expect, expect_error, run_ranks, start
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


def every_collective(rank, size, folder):
    """Compares each collective with gloo's."""
    start("spillway", rank, size, folder)
    other = dist.new_group(backend="gloo")
    ours = dist.group.WORLD
    groups = (ours, other)
    kinds = (
        torch.float32,
        torch.float64,
        torch.half,
        torch.bfloat16,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.int8,
        torch.bool,
    )
    for dtype in kinds:
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN):
            if (dtype == torch.bool and op == dist.ReduceOp.SUM) or dtype == torch.bfloat16:
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
    expect(part, size * torch.arange(4.0 * size)[4 * rank : 4 * rank + 4])
    dist.reduce_scatter(part, [torch.full((4,), float(r)) for r in range(size)])
    expect(part, torch.full((4,), float(size * rank)))
    given = torch.arange(float(size * 2)) + 100 * rank
    taken = torch.zeros(size * 2)
    dist.all_to_all_single(taken, given)
    expect(taken, torch.cat([torch.arange(2.0) + 2 * rank + 100 * r for r in range(size)]))
    uneven = torch.zeros(size * (rank + 1))
    dist.all_to_all_single(
        uneven, torch.full((size * (size + 1) // 2,), float(rank)), [rank + 1] * size, list(range(1, size + 1))
    )
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
    ops = [
        dist.P2POp(dist.isend, outgoing[0], following, tag=1),
        dist.P2POp(dist.isend, outgoing[1], following, tag=2),
        dist.P2POp(dist.irecv, incoming[1], before, tag=2),
        dist.P2POp(dist.irecv, incoming[0], before, tag=1),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    expect(incoming[0], torch.full((300_000,), float(before)))
    expect(incoming[1], outgoing[1])
    for call, name in (
        (lambda: dist.recv(torch.zeros(1)), "recv"),
        (lambda: dist.all_reduce(torch.ones(1), dist.ReduceOp.PRODUCT), "PRODUCT"),
        (lambda: dist.all_reduce(torch.ones(2).to_sparse()), "sparse|Sparse"),
    ):
        try:
            call()
        except (RuntimeError, NotImplementedError, ValueError) as error:
            assert any(word in str(error) for word in name.split("|")), error
        else:
            raise AssertionError(f"{name} was not refused")
    dist.barrier()
    dist.destroy_process_group()


def other_backends_in_a_session(rank, size, folder):
    """A Session refuses gloo's asynchronous collectives; ours run."""
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
    start(
        "spillway",
        rank,
        size,
        folder,
        pg_options=spillway.distributed.Options(levels=[[0, 0, 1, 1]], deadline=20, address="127.0.0.1"),
    )
    text = spillway.distributed.explain(size="4MiB")
    assert "level 2" in text, text
    dist.group.WORLD.set_timeout(datetime.timedelta(seconds=25))
    x = torch.full((1000,), float(rank))
    dist.all_reduce(x)
    expect(x, torch.full((1000,), 6.0))
    dist.destroy_process_group()


def a_session_opens_beside_a_collective(rank, size, folder):
    """What is under way when a Session opens stays where it is."""
    start("spillway", rank, size, folder)

    def pressure():
        tensors = [torch.full((MIB,), float(i)) for i in range(30)]
        assert all(tensor[0].item() == i for i, tensor in enumerate(tensors))

    for call in ("all_reduce", "irecv"):
        t = torch.full((4 * MIB,), float(rank + 1))
        dist.barrier()
        if call == "all_reduce":
            if rank == 1:
                time.sleep(1)
            work = dist.all_reduce(t, async_op=True)
        elif rank == 0:
            work = dist.irecv(t, 1)
        else:
            time.sleep(1)
            work = dist.isend(t, 0)
        if rank == 0:
            with spillway.Session(budget="48MiB", processes_of_host=size):
                pressure()
                work.wait()
                pressure()
        work.wait()
        wanted = 3.0 if call == "all_reduce" else 2.0
        assert (t == wanted).all(), (call, rank, t)
    dist.destroy_process_group()


def messages_in_a_session(rank, size, folder):
    """Messages never wait for each other, in either order and size, where tensors come and go."""
    start("spillway", rank, size, folder)
    following, before = (rank + 1) % size, (rank + size - 1) % size
    with spillway.Session(budget="128MiB", processes_of_host=size):
        for count in (4, 4 * MIB):
            for receive_first in (True, False):
                out, into = torch.full((count,), float(rank)), torch.zeros(2, count)[1]
                ops = [dist.P2POp(dist.isend, out, following), dist.P2POp(dist.irecv, into, before)]
                works = dist.batch_isend_irecv(ops[::-1] if receive_first else ops)
                out.fill_(-1.0)  # what was sent is what it was
                filler = [torch.ones(MIB) for _ in range(12)]
                for work in works:
                    work.wait()
                assert (into == before).all(), (count, receive_first, into)
                assert all(one.sum().item() == MIB for one in filler)
        polled = torch.zeros(3)
        work = dist.irecv(polled, before)
        dist.isend(torch.full((3,), 5.0 + rank), following)
        while not work.is_completed():
            time.sleep(0.001)
        assert (polled == 5.0 + before).all(), polled
        expect_error(NotImplementedError, "work.wait()", work.get_future)
        strided = torch.zeros(6, 4).t()
        work = dist.irecv(strided, before)
        dist.send(torch.arange(24.0).view(4, 6), following)
        work.wait()
        assert (strided == torch.arange(24.0).view(4, 6)).all(), strided
    dist.destroy_process_group()


def collectives_keep_no_tensor(rank, size, folder):
    """What went through a collective can leave the device again."""
    start("spillway", rank, size, folder)
    with spillway.Session(budget="24MiB", processes_of_host=size) as session:
        tensors = [torch.full((MIB,), float(i)) for i in range(12)]
        for tensor in tensors:
            dist.all_reduce(tensor)
        parts = torch.zeros(MIB)
        dist.all_gather_into_tensor(parts, tensors[3][: MIB // size])
        assert parts.sum().item() == MIB * 3.0 * size
        for i, tensor in enumerate(tensors):
            assert (tensor == i * size).all()
        assert session.stats()["peak_bytes"] <= 24 * MIB

    def floor(wrap):  # of a model whose buckets have the size of a layer from the first step on
        torch.manual_seed(0)
        model = wrap(nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(12))))
        with spillway.Session(processes_of_host=size) as session:
            for _ in range(2):
                model(torch.randn(8, 1024)).sum().backward()
            return session.floor_bytes

    alone, wrapped = (
        floor(lambda model: model),
        floor(lambda model: DistributedDataParallel(model, bucket_cap_mb_list=[4])),
    )
    assert wrapped <= 1.5 * alone, (alone, wrapped)
    dist.destroy_process_group()


def refusals(rank, size, folder):
    """What a rank refuses leaves the group alive: a sum follows each refusal."""
    start("spillway", rank, size, folder)
    ones = torch.ones

    def sum_works(after):
        x = torch.full((5,), float(rank))
        dist.all_reduce(x)
        assert (x == size * (size - 1) / 2).all(), (after, x)

    other = [torch.zeros(3, dtype=torch.float64) for _ in range(size)]
    calls = {
        "a list for fewer ranks": lambda: dist.all_gather([torch.zeros(2)], ones(2)),
        "another type in a list": lambda: dist.all_gather(other, ones(3)),
        "an output of another size": lambda: dist.all_gather([torch.zeros(4)] * size, ones(3)),
        "an output that does not divide": lambda: dist.all_gather_into_tensor(torch.zeros(size * 3 + 1), ones(3)),
        "an output of another type": lambda: dist.all_gather_into_tensor(other[0].repeat(size), ones(3)),
        "float8": lambda: dist.all_reduce(ones(4).to(torch.float8_e4m3fn)),
        "uint16": lambda: dist.all_reduce(ones(4).to(torch.uint16)),
        "float8 behind float32": lambda: dist.all_reduce_coalesced([ones(4), ones(4).to(torch.float8_e5m2)]),
        "PRODUCT": lambda: dist.all_reduce(ones(4), dist.ReduceOp.PRODUCT),
        "MAX of complex numbers": lambda: dist.all_reduce(ones(4, dtype=torch.complex64), dist.ReduceOp.MAX),
        "sparse": lambda: dist.all_reduce(ones(4).to_sparse()),
        "elements in one place": lambda: dist.all_reduce(torch.zeros(1).expand(4)),
        "a part of another size": lambda: dist.reduce_scatter_tensor(torch.zeros(3), ones(size * 3 + 1)),
        "parts of another size": lambda: dist.reduce_scatter(torch.zeros(3), [ones(2)] * size),
        "too few parts": lambda: dist.reduce_scatter(torch.zeros(3), [ones(3)] * (size + 1)),
        "parts that do not divide": lambda: dist.all_to_all_single(torch.zeros(size * 2 + 1), ones(size * 2 + 1)),
        "parts for fewer ranks": lambda: dist.all_to_all([torch.zeros(1)], [ones(1)]),
        "a negative tag": lambda: dist.isend(ones(1), (rank + 1) % size, tag=-65),
        "a tag beyond 30 bits": lambda: dist.irecv(ones(1), (rank + 1) % size, tag=2**30),
        "a receive into one place": lambda: dist.irecv(torch.zeros(1).expand(4), (rank + 1) % size),
        "recv from any rank": lambda: dist.recv(torch.zeros(1)),
    }
    for inside in (False, True):
        with spillway.Session(budget="64MiB", processes_of_host=size) if inside else contextlib.nullcontext():
            for name, call in calls.items():
                try:
                    call()
                except spillway.CommError as error:
                    raise AssertionError(f"{name} ended the group: {error}") from error
                except (RuntimeError, ValueError, NotImplementedError, TypeError):
                    sum_works(name)
                else:
                    raise AssertionError(f"{name} was not refused")
            uneven = [torch.zeros(r + 2) for r in range(size)]
            dist.all_gather(uneven, torch.full((rank + 2,), float(rank)))
            assert all((part == r).all() for r, part in enumerate(uneven)), uneven
    # One rank alone has no room for a copy on the way. It says so, and makes the call after all.
    with spillway.Session(budget="24MiB", processes_of_host=size) as session:
        x = torch.full((2, MIB), float(rank))  # 8 MiB, of which columns are not dense
        held = torch.zeros(4 * MIB)
        if rank == 0:
            with spillway.resident(held):
                try:
                    dist.all_reduce(x[:, ::2])
                except spillway.OutOfBudget as error:
                    assert error.budget_bytes == 24 * MIB, error
                else:
                    raise AssertionError(f"no refusal: {session.stats()}")
        dist.all_reduce(x[:, ::2])
        assert (x[:, ::2] == size * (size - 1) / 2).all() and (x[:, 1::2] == rank).all()
    dist.destroy_process_group()


def in_inference_mode(rank, size, folder):
    """Evaluation loops gather tensors that were made in inference mode."""
    start("spillway", rank, size, folder)
    with torch.inference_mode():
        gathered = [torch.zeros(3) for _ in range(size)]
        dist.all_gather(gathered, torch.full((3,), float(rank)))
        assert all((part == r).all() for r, part in enumerate(gathered))
        column = torch.full((4, 2), float(rank))[:, 0]
        dist.all_reduce(column)
        assert (column == size * (size - 1) / 2).all()
        counts = torch.full((2,), rank, dtype=torch.int16)
        dist.all_reduce(counts)
        assert (counts == size * (size - 1) // 2).all()
    dist.destroy_process_group()


def offsets_and_strides(rank, size, folder):
    """What ranks must agree on depends neither on an address nor on strides that mean nothing."""
    start("spillway", rank, size, folder)
    for dtype in (torch.uint8, torch.float16, torch.float32, torch.float64):
        for count in (1, 2, 3, 8):
            buffer = torch.zeros(size * count + 9, dtype=dtype)
            out = buffer[rank : rank + size * count]
            dist.all_gather_into_tensor(out, torch.full((count,), rank + 1, dtype=dtype))
            assert (out == torch.arange(1, size + 1, dtype=dtype).repeat_interleave(count)).all(), (dtype, count, out)
            assert (buffer[:rank] == 0).all() and (buffer[rank + size * count :] == 0).all()
    column = torch.full((5, 1), float(rank)) if rank == 0 else torch.full((1, 5), float(rank)).t()
    dist.all_reduce(column)
    assert (column == size * (size - 1) / 2).all()
    dist.broadcast(torch.zeros(0, 3) if rank == 0 else torch.zeros(3, 0).t(), 0)
    dist.destroy_process_group()


def early_receives_and_dead_groups(rank, size, folder):
    """A receive may be posted long before its message; every work of a dead group ends."""
    start("spillway", rank, size, folder, pg_options=spillway.distributed.Options(deadline=1.5))
    if rank == 0:
        signal = torch.zeros(1)
        work = dist.irecv(signal, 1)
        while not work.is_completed():
            time.sleep(0.01)
        assert signal.item() == 3.0
    else:
        time.sleep(2.5)
        dist.send(torch.full((1,), 3.0), 0)
    if rank == 1:
        os._exit(1)
    for _ in range(100):
        works = [dist.isend(torch.ones(4), 1) for _ in range(3)] + [dist.irecv(torch.zeros(4), 1)]
        for work in works:
            with contextlib.suppress(spillway.CommError):
                work.wait()
        assert works[-1].is_completed()
    os._exit(0)


def callbacks_that_wait(rank, size, folder):
    """A future's callback may make and await further collectives, as quantizing hooks do."""
    start("spillway", rank, size, folder)
    group = dist.new_group(backend="spillway")

    def then(done):
        x = done.value()[0] + 1
        dist.all_reduce(x, group=group, async_op=True).get_future().wait()
        return dist.all_reduce(x, group=group, async_op=True).get_future().then(lambda f: f.value()[0]).wait()

    x = torch.full((4,), float(rank))
    expected = (size * (size - 1) / 2 + 1) * size * size
    assert (dist.all_reduce(x, async_op=True).get_future().then(then).wait() == expected).all()
    # All keep the group alive until the callbacks have run.
    futures = [
        dist.all_reduce(torch.ones(1), async_op=True).get_future().then(lambda f: f.value()[0].item())
        for _ in range(50)
    ]
    assert [future.wait() for future in futures] == [float(size)] * 50
    dist.destroy_process_group()


def debug_level(rank, size, folder):
    """TORCH_DISTRIBUTED_DEBUG=DETAIL wraps the backend; it and what looks for it go on."""
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    asynchronous(rank, size, folder)
    start("spillway", rank, size, f"{folder}/again")
    assert "level 1" in spillway.distributed.explain()
    dist.destroy_process_group()


def leaving_with_a_collective_under_way(rank, size, folder):
    """A rank that raised and cleans up does not wait for the others' deadline, and they learn of it."""
    start("spillway", rank, size, folder)
    if rank == 0:
        dist.all_reduce(torch.ones(3), async_op=True)
        dist.destroy_process_group()
        return
    time.sleep(11)  # longer than the grace, shorter than the deadline
    expect_error(spillway.CommError, "rank 0", lambda: dist.all_reduce(torch.ones(3)))


def forked_children(rank, size, folder):
    """A child cannot use its parent's group, says so, and its end leaves the group alive."""
    start("spillway", rank, size, folder)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            dist.all_reduce(torch.ones(3))
        except RuntimeError as error:
            code = 0 if "forked" in str(error) else 2
        dist.destroy_process_group()
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    x = torch.ones(3)
    dist.all_reduce(x)
    assert (x == size).all()
    dist.destroy_process_group()


class DistributedTest(unittest.TestCase):
    def test_every_collective_equals_gloos(self):
        run_ranks(every_collective, 3)

    def test_works_futures_and_messages_go_on_together(self):
        run_ranks(asynchronous, 3)

    def test_in_a_session_only_this_backend_runs(self):
        run_ranks(other_backends_in_a_session, 2)

    def test_a_rank_that_ends_is_named_at_once(self):
        run_ranks(a_rank_that_ends, 3, failing=(1,))

    def test_what_is_under_way_when_a_session_opens_keeps_its_bits(self):
        run_ranks(a_session_opens_beside_a_collective, 2)

    def test_messages_in_a_session_do_not_wait_for_each_other(self):
        run_ranks(messages_in_a_session, 3)

    def test_collectives_leave_tensors_pageable(self):
        run_ranks(collectives_keep_no_tensor, 2)

    def test_every_refusal_leaves_the_group_alive(self):
        run_ranks(refusals, 2)

    def test_tensors_of_inference_mode_are_filled(self):
        run_ranks(in_inference_mode, 2)

    def test_addresses_and_strides_that_mean_nothing_do_not_count(self):
        run_ranks(offsets_and_strides, 3)

    def test_receives_may_be_early_and_works_of_a_dead_group_end(self):
        run_ranks(early_receives_and_dead_groups, 2, failing=(1,))

    def test_callbacks_may_wait_for_collectives(self):
        run_ranks(callbacks_that_wait, 2)

    def test_torchs_debug_level_wraps_the_backend(self):
        run_ranks(debug_level, 2)

    def test_a_rank_that_leaves_gives_up_what_is_under_way(self):
        run_ranks(leaving_with_a_collective_under_way, 2)

    def test_a_forked_child_leaves_the_group_alone(self):
        run_ranks(forked_children, 2)

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
