"""Collectives and messages of the backend `spillway` that are under way: beside Sessions, deaths, and forks."""

import contextlib
import datetime
import os
import subprocess
import sys
import tempfile
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
    dist.barrier()  # a rank that leaves while another still connects to the wrapper's gloo would break that
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


EXITS = """
import datetime, os, sys, time
import torch
import torch.distributed as dist
import spillway

rank, folder = int(sys.argv[1]), sys.argv[2]
wrong = 0
for way in ("under way", "dropped", "late", "slow", "never"):
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        dist.init_process_group("spillway", init_method=f"file://{folder}/{way}", rank=rank, world_size=2,
                                timeout=datetime.timedelta(seconds=20))
        dist.barrier()
        note = lambda done: time.sleep(0.3) or open(f"{folder}/{way}{rank}", "w").close()
        if way == "under way":
            for _ in range(20):
                dist.all_reduce(torch.ones(300_000), async_op=True).get_future().then(lambda done: done.value()[0] * 2)
        elif way == "dropped":
            for i in range(20):
                dist.all_reduce(torch.ones(300_000), async_op=True)
                dist.irecv(torch.ones(3), 1 - rank)
        elif way == "late":  # a callback becomes due while its rank leaves
            time.sleep(rank)
            dist.all_reduce(torch.ones(3), async_op=True).get_future().then(note)
        elif way == "slow":
            work = dist.all_reduce(torch.ones(3), async_op=True)
            work.get_future().then(note)
            work.wait()
            time.sleep(0.1)
        elif way == "never":
            kept = dist.irecv(torch.ones(3), 1 - rank)
            kept.get_future().then(note)
        sys.exit(0)
    wrong += os.waitpid(child, 0)[1] != 0
assert os.path.exists(f"{folder}/slow{rank}")  # a callback that runs is waited for
sys.exit(wrong)
"""


class UnderWayTest(unittest.TestCase):
    def test_an_interpreter_may_end_with_callbacks_outstanding(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks = [
                subprocess.Popen([sys.executable, "-c", EXITS, str(rank), folder], stderr=subprocess.PIPE, text=True)
                for rank in range(2)
            ]
            for rank in ranks:
                said = rank.communicate(timeout=120)[1]
                self.assertEqual(rank.returncode, 0, said)

    def test_works_futures_and_messages_go_on_together(self):
        run_ranks(asynchronous, 3)

    def test_a_rank_that_ends_is_named_at_once(self):
        run_ranks(a_rank_that_ends, 3, failing=(1,))

    def test_what_is_under_way_when_a_session_opens_keeps_its_bits(self):
        run_ranks(a_session_opens_beside_a_collective, 2)

    def test_messages_in_a_session_do_not_wait_for_each_other(self):
        run_ranks(messages_in_a_session, 3)

    def test_collectives_leave_tensors_pageable(self):
        run_ranks(collectives_keep_no_tensor, 2)

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


if __name__ == "__main__":
    unittest.main()
