"""Calls that ranks make differently: all learn of it, and no later call gets what was sent for an earlier one."""

import unittest

import torch
import torch.distributed as dist
from ranks import expect, expect_error, run_ranks, start

import spillway


def parts(size, value):
    return [torch.full((2,), float(value + r)) for r in range(size)]


def different_calls(rank, size, folder):
    """Each pair of calls, one of rank 0 and one of the others, ends its group with an error that names both."""

    def gather(root, dtype=torch.float32):
        outputs = [torch.zeros(2, dtype=dtype) for _ in range(size)] if rank == root else None
        dist.gather(torch.ones(2, dtype=dtype), outputs, root)

    def scatter(root, dtype=torch.float32):
        inputs = [torch.ones(2, dtype=dtype) for _ in range(size)] if rank == root else None
        dist.scatter(torch.zeros(2, dtype=dtype), inputs, root)

    def all_to_all(dtype=torch.float32):
        dist.all_to_all_single(torch.zeros(size, dtype=dtype), torch.ones(size, dtype=dtype))

    pairs = {
        "gather of Float to rank 1": (lambda: gather(1), lambda: gather(0)),
        "scatter of Float from rank 0": (lambda: scatter(0), lambda: scatter(1)),
        "scatter of Float from rank 1": (lambda: scatter(1), lambda: gather(1)),
        "gather of Int to rank 0": (lambda: gather(0, torch.int32), lambda: gather(0)),
        "scatter of Double from rank 1": (lambda: scatter(1, torch.float64), lambda: scatter(1)),
        "all_to_all of Int": (lambda: all_to_all(torch.int32), all_to_all),
        "all_to_all of Float": (all_to_all, dist.barrier),
    }
    for number, (call, those) in enumerate(pairs.items()):
        start("spillway", rank, size, f"{folder}/{number}")
        expect_error(spillway.CommError, f"rank 0 calls {call}", those[rank > 0])
        expect_error(spillway.CommError, f"rank 0 calls {call}", dist.barrier)
        dist.destroy_process_group()


def one_rank_refuses(rank, size, folder):
    """A rank that refuses its arguments and goes on to its next call does not get what others sent before."""

    def gather(outputs, value=0):
        dist.gather(torch.full((2,), float(value)), outputs if rank == 0 else None, 0)

    def scatter(inputs, value=0):
        dist.scatter(torch.zeros(2), inputs if rank == 0 else None, 0)

    wrong = rank == 0
    zeros = torch.zeros(size)
    calls = {
        "gather": lambda: gather(parts(1 if wrong else size, 0)),
        "scatter": lambda: scatter(parts(1 if wrong else size, 0)),
        "all_to_all": lambda: dist.all_to_all(parts(size, 0)[wrong:], parts(size, 0)),
        "all_to_all_single": lambda: dist.all_to_all_single(torch.zeros(3 * size + wrong), torch.zeros(3 * size)),
        "all_reduce": lambda: dist.all_reduce(zeros.to(torch.uint16) if wrong else zeros),
        "broadcast": lambda: dist.broadcast(torch.zeros(1).expand(size) if wrong else zeros, 0),
        "all_gather": lambda: dist.all_gather(parts(size - wrong, 0), torch.zeros(2)),
        "reduce_scatter": lambda: dist.reduce_scatter(torch.zeros(2), parts(size - wrong, 0)),
    }
    for name, call in calls.items():
        start("spillway", rank, size, f"{folder}/{name}")
        if rank == 0:
            try:
                call()
            except (RuntimeError, ValueError) as error:
                assert not isinstance(error, spillway.CommError), error
            else:
                raise AssertionError(f"{name} was not refused")
            wrong = False
        # The other ranks make the first call, and rank 0 the second.
        expect_error(spillway.CommError, "the ranks disagree", call)
        wrong = rank == 0
        dist.destroy_process_group()


def all_ranks_refuse(rank, size, folder):
    """What all ranks refuse leaves the group alive, and no message behind."""
    start("spillway", rank, size, folder)
    for _ in range(3):
        expect_error(RuntimeError, "3 tensors for", lambda: dist.all_to_all(parts(3, 0), parts(3, 0)))
        outputs = [torch.zeros(2) for _ in range(size)]
        dist.gather(torch.full((2,), float(rank)), outputs if rank == 1 else None, 1)
        if rank == 1:
            expect(torch.stack(outputs)[:, 0], torch.arange(float(size)))
    dist.destroy_process_group()


class DisagreementsTest(unittest.TestCase):
    def test_different_calls_end_the_group_on_all_ranks(self):
        run_ranks(different_calls, 2)

    def test_a_call_that_one_rank_refuses_is_not_mistaken_for_its_next(self):
        run_ranks(one_rank_refuses, 2)

    def test_what_all_ranks_refuse_leaves_the_group_alive(self):
        run_ranks(all_ranks_refuse, 2)


if __name__ == "__main__":
    unittest.main()
