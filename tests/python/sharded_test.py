"""Tests of tensors that are sharded over ranks of the backend `spillway`: DTensor, FSDP2 and their checkpoints."""

import contextlib
import functools
import tempfile
import unittest

import torch
import torch.distributed as dist
from ranks import expect_error, run_ranks, start
from torch import nn

import spillway
import spillway.distributed


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
        torch.testing.assert_close(one.grad.full_tensor(), another.grad)
    dist.destroy_process_group()


def functional(rank, size):
    """The results of torch.distributed's functional collectives, and of what DTensor does with them."""
    from torch.distributed import _functional_collectives as calls
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
    ranks = dist.group.WORLD
    x = torch.randn(size * 30, 1000, generator=torch.Generator().manual_seed(rank))
    results = [
        calls.all_reduce(x, "sum", ranks),
        calls.all_reduce(x * 2, "avg", mesh),
        calls.broadcast(x, size - 1, ranks),
        calls.all_gather_tensor(x, 0, ranks),
        calls.reduce_scatter_tensor(x, "sum", 0, ranks),
        calls.all_to_all_single(x, None, None, ranks),
        calls.all_reduce_inplace(x.clone(), "max", ranks),
        *calls.all_reduce_coalesced([x, x + 1], "sum", ranks),
        *calls.all_gather_into_tensor_coalesced([x, x[:30].contiguous()], ranks),
        *calls.reduce_scatter_tensor_coalesced([x, -x], "sum", [0, 0], ranks),
    ]
    one = torch.randn(size * 30, size * 200, generator=torch.Generator().manual_seed(7))
    sharded = distribute_tensor(one, mesh, [Shard(0)])
    results += [
        sharded.full_tensor(),
        sharded.redistribute(mesh, [Shard(1)]).to_local(),
        sharded.redistribute(mesh, [Replicate()]).to_local(),
    ]
    gram = sharded.t() @ sharded  # every rank has a summand
    assert gram.placements[0] == Partial()
    results += [
        gram.redistribute(mesh, [Shard(0)]).to_local(),
        gram.full_tensor(),
        torch.linalg.vector_norm(sharded).full_tensor(),
    ]
    return [torch.Tensor(calls.wait_tensor(result)).clone() for result in results]


def functional_collectives(rank, size, folder):
    """They run inside a Session whose tensors are mostly away, with the bits that they have without."""
    start("spillway", rank, size, folder)
    plain = functional(rank, size)
    with spillway.Session(budget="6MiB", processes_of_host=size) as session:
        for got, wanted in zip(functional(rank, size), plain, strict=True):
            assert torch.equal(got, wanted)
        assert session.stats()["bytes_out"] > 0, session.stats()
        gloo = dist.new_group(backend="gloo")
        expect_error(
            RuntimeError,
            "backend 'spillway'",
            lambda: torch.ops._c10d_functional.all_reduce(torch.ones(5), "sum", gloo.group_name),
        )
    dist.destroy_process_group()


def sharded_training(size, steps, session=None):
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(64, 301), nn.Tanh(), nn.Linear(301, 301), nn.Tanh(), nn.Linear(301, 7))
    mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, foreach=False)
    norms = []
    for i in range(steps):
        with session.step() if session else contextlib.nullcontext():
            x = torch.randn(16, 64, generator=torch.Generator().manual_seed(100 * dist.get_rank() + i))
            optimizer.zero_grad()
            model(x).square().mean().backward()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).full_tensor().item())
            optimizer.step()
    return model, optimizer, norms


def whole(model):
    return [weight.full_tensor().detach().clone() for weight in model.parameters()]


def saving_sharded(path, rank, size, folder):
    """Clips gradients that are sharded and saves the training, both inside a Session at its floor."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    start("spillway", rank, size, folder)
    model, _, wanted = sharded_training(size, 3)
    plain = whole(model)
    with spillway.Session(processes_of_host=size) as session:
        sharded_training(size, 3, session)
        budget = torch.tensor([session.floor_bytes + session.floor_bytes // 20])
    dist.all_reduce(budget, dist.ReduceOp.MAX)
    with spillway.Session(budget=budget.item(), processes_of_host=size) as session:
        model, optimizer, norms = sharded_training(size, 3, session)
        assert norms == wanted, (norms, wanted)
        assert all(torch.equal(a, b) for a, b in zip(whole(model), plain, strict=True))
        assert session.stats()["peak_bytes"] <= budget.item()
        weights, state = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": state}, checkpoint_id=path)
        # A thread of PyTorch's writes copies, while the weights change.
        later = dcp.async_save(
            {"model": weights, "optimizer": state},
            checkpoint_id=f"{path}.later",
            process_group=dist.new_group(backend="gloo"),
        )
        with torch.no_grad():
            for weight in model.parameters():
                weight.zero_()
        later.result()
        if rank == 0:
            torch.save(plain, f"{path}.whole")
    dist.destroy_process_group()


def loading_sharded(path, rank, size, folder):
    """Loads it on another number of ranks, inside a Session."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    start("spillway", rank, size, folder)
    with spillway.Session(budget="4MiB", processes_of_host=size):
        for checkpoint in (path, f"{path}.later"):
            model, optimizer, _ = sharded_training(size, 1)
            weights, state = get_state_dict(model, optimizer)
            wanted = {"model": weights, "optimizer": state}
            dcp.load(wanted, checkpoint_id=checkpoint)
            set_state_dict(model, optimizer, model_state_dict=wanted["model"], optim_state_dict=wanted["optimizer"])
            for got, saved in zip(whole(model), torch.load(f"{path}.whole"), strict=True):
                assert torch.equal(got, saved)
            assert {state["step"].item() for state in optimizer.state.values()} == {3}
    dist.destroy_process_group()


class ShardedTest(unittest.TestCase):
    def test_fully_sharded_gradients_are_those_of_the_whole_batch(self):
        run_ranks(fully_sharded, 2)

    def test_functional_collectives_run_in_a_session(self):
        run_ranks(functional_collectives, 2)

    def test_sharded_trainings_are_saved_on_two_ranks_and_loaded_on_three(self):
        with tempfile.TemporaryDirectory() as folder:
            run_ranks(functools.partial(saving_sharded, f"{folder}/saved"), 2)
            run_ranks(functools.partial(loading_sharded, f"{folder}/saved"), 3)


if __name__ == "__main__":
    unittest.main()
