"""The collectives of torch.distributed's backend `spillway`, in processes that this program starts."""

import contextlib
import datetime
import os
import socket
import unittest

import torch
import torch.distributed as dist
from ranks import expect, expect_error, run_ranks, start

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


def uneven_parts(rank, size, folder):
    """Parts of a reduce_scatter may differ in size, and may be empty, as with gloo and NCCL."""
    start("spillway", rank, size, folder)
    for sizes in ([1, 2, 3], [4, 0, 1000], [0, 0, 5], [200_000, 3, 100_000]):
        for dtype in (torch.float32, torch.int8, torch.complex64):
            parts = [[torch.full((n,), r + part, dtype=dtype) for part, n in enumerate(sizes)] for r in range(size)]
            output = torch.zeros(sizes[rank], dtype=dtype)
            dist.reduce_scatter(output, parts[rank])
            expect(output, sum(those[rank] for those in parts))
    column = torch.zeros(4, 2)[:, 0]
    dist.reduce_scatter(column if rank == 1 else torch.zeros(rank, 2), [torch.ones(n) for n in (0, 4, 4)])
    assert rank != 1 or (column == size).all(), column
    dist.destroy_process_group()


def outputs_that_are_inputs(rank, size, folder):
    """What is sent is what the inputs were before the call, also where outputs share their memory."""
    start("spillway", rank, size, folder)
    rows = torch.arange(2.0 * size).view(size, 2)
    buffer = rows.clone()
    output = buffer[1] if rank == 0 else torch.zeros(2)
    dist.scatter(output, list(buffer) if rank == 0 else None, 0)
    expect(output, rows[rank])
    for strided in (False, True):
        storage = torch.zeros(size, 4, 2)
        inputs = [row[:, 0] if strided else row.view(-1)[:4] for row in storage]
        for r, part in enumerate(inputs):
            part.fill_(10.0 * rank + r)
        outputs = inputs[1:] + inputs[:1]
        dist.all_to_all(outputs, inputs)
        expect(torch.stack(outputs), (10.0 * torch.arange(size) + rank)[:, None].expand(-1, 4))
    for count in (3, MIB):  # the larger parts are received while others are sent
        everybodys = [torch.arange(count * size).remainder(997) + 1000 * r for r in range(size)]
        x = everybodys[rank].clone()
        dist.all_to_all_single(x, x)
        expect(x, torch.cat([one.view(size, count)[rank] for one in everybodys]))
    buffer = torch.arange(4.0 * size) + 10 * rank
    whole = sum(torch.arange(4.0 * size) + 10 * r for r in range(size))
    dist.reduce_scatter_tensor(buffer[2:6], buffer)
    expect(buffer[2:6], whole[4 * rank : 4 * rank + 4])
    buffer = torch.full((size, 2), float(rank))
    dist.gather(buffer[size - 1], list(buffer) if rank == 0 else None, 0)
    if rank == 0:
        expect(buffer, torch.arange(float(size))[:, None].expand(-1, 2))
    buffer = torch.full((size, 2), float(rank))
    dist.all_gather(list(buffer), buffer[0])
    expect(buffer, torch.arange(float(size))[:, None].expand(-1, 2))
    dist.destroy_process_group()


def shapes(rank, size, folder):
    """Contiguous tensors of as many elements go together; another order in memory is refused in words."""
    start("spillway", rank, size, folder)
    variants = [(), (1,), (1, 1)], [(12,), (3, 4), (2, 1, 6)]
    for own in (those[rank] for those in variants):
        x = torch.full(own, float(rank))
        dist.all_reduce(x)
        assert x.shape == own and (x == 3).all(), x
        dist.broadcast(x.fill_(rank), 1)
        assert (x == 1).all(), x
        dist.reduce(x.fill_(rank), 2)
        assert (x == (3 if rank == 2 else rank)).all(), x
        both = [torch.full(own, float(rank)), torch.full((2,), float(rank))]
        dist.all_reduce_coalesced(both)
        assert all((one == 3).all() for one in both), both
    uneven = [torch.zeros(3), torch.zeros(4).view((4,) if rank == 0 else (2, 2)), torch.zeros(0)]
    dist.all_gather(uneven, torch.ones(uneven[rank].shape))
    assert all((one == 1).all() for one in uneven), uneven
    # Elements travel in the order of memory, but for reduce, which takes them by their place.
    x = torch.arange(12.0).view(3, 4)
    x = x.t().contiguous().t() if rank == 0 else x
    dist.reduce(x, 0)
    assert rank != 0 or (x == 3 * torch.arange(12.0).view(3, 4)).all(), x
    expect_error(
        spillway.CommError, "rank 0 calls allreduce (sum) of 12 float32 with strides [1, 3]", lambda: dist.all_reduce(x)
    )
    dist.destroy_process_group()


class CollectivesTest(unittest.TestCase):
    def test_every_collective_equals_gloos(self):
        run_ranks(every_collective, 3)

    def test_in_a_session_only_this_backend_runs(self):
        run_ranks(other_backends_in_a_session, 2)

    def test_every_refusal_leaves_the_group_alive(self):
        run_ranks(refusals, 2)

    def test_tensors_of_inference_mode_are_filled(self):
        run_ranks(in_inference_mode, 2)

    def test_addresses_and_strides_that_mean_nothing_do_not_count(self):
        run_ranks(offsets_and_strides, 3)

    def test_parts_of_a_reduce_scatter_may_differ_in_size(self):
        run_ranks(uneven_parts, 3)

    def test_outputs_may_be_inputs(self):
        run_ranks(outputs_that_are_inputs, 3)

    def test_shapes_may_differ_and_layouts_may_not(self):
        run_ranks(shapes, 3)

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
