"""Tests of K-FAC over the ranks of torch.distributed, in processes that this program starts."""

import copy
import functools
import unittest
import warnings

import torch
import torch.distributed as dist
from ranks import expect_error, run_ranks, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import spillway

EXACT = {"factor_samples": "exact", "rank": "full", "factor_interval": 1, "inverse_interval": 2}
SAMPLES = 8


def make_model():
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Conv3d(1, 4, 3, padding=1),
        nn.LeakyReLU(),
        nn.Conv3d(4, 8, 3, padding=1),
        nn.Tanh(),
        nn.AdaptiveAvgPool3d(2),
        nn.Flatten(),
        nn.Linear(64, 3),
    )


def batch_of(step, rank=0, size=1):
    """Returns a rank's part of a step's batch."""
    torch.manual_seed(100 + step)
    x, y = torch.randn(SAMPLES, 1, 12, 12, 12), torch.randint(0, 3, (SAMPLES,))
    return x[rank * SAMPLES // size :][: SAMPLES // size], y[rank * SAMPLES // size :][: SAMPLES // size]


class Training:
    """A model in training with K-FAC on a group's ranks; every rank has a part of each batch."""

    def __init__(self, group, resume=None, **options):
        self.rank, self.size, self.steps = dist.get_rank(group), dist.get_world_size(group), 0
        self.model = DistributedDataParallel(make_model(), process_group=group)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.05, momentum=0.9)
        self.kfac = spillway.KFAC(self.model, self.optimizer, process_group=group, **(EXACT | options))
        if resume:
            self.steps = resume["steps"]
            self.model.load_state_dict(resume["model"])
            self.optimizer.load_state_dict(copy.deepcopy(resume["optimizer"]))  # else it would keep these tensors
            self.kfac.load_state_dict(resume["kfac"])

    def run(self, steps, session=None):
        for _ in range(steps):
            x, y = batch_of(self.steps, self.rank, self.size)
            with session.step(self.kfac.kind) if session else torch.enable_grad():
                self.optimizer.zero_grad()
                nn.functional.cross_entropy(self.model(x), y).backward()
                self.kfac.step()
                self.optimizer.step()
            self.steps += 1
        return self

    def state(self):
        return copy.deepcopy(
            {
                "steps": self.steps,
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "kfac": self.kfac.state_dict(),
            }
        )

    def weights(self):
        return torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])


def expect_equal(one, another, what):
    if not torch.equal(one, another):
        raise AssertionError(f"{what}: the weights differ by up to {(one - another).abs().max()}")


def expect_close(one, another, what):
    away = ((one - another).norm() / another.norm()).item()
    if not away < 1e-5:
        raise AssertionError(f"{what}: the weights are {away} of their norm away")


def of_whole_batch(rank, size, folder):
    """Ranks train as one process that has the whole batch does, and all shares of gradient workers to the same bits."""
    start("gloo", rank, size, folder)  # K-FAC's own group is of another backend
    alone = [dist.new_group([r]) for r in range(size)][rank]
    world = dist.group.WORLD
    one = Training(alone).run(4)
    every = Training(world).run(4)
    expect_close(every.weights(), one.weights(), "ranks beside one process")
    others = [torch.zeros_like(every.weights()) for _ in range(size)]
    dist.all_gather(others, every.weights())
    for other in others:
        expect_equal(other, every.weights(), "another rank")
    bases = {}
    for options in (
        {"grad_worker_frac": 1 / size},
        {"strategy": "owner_reduce"},
        {"overlap_factors": True},
        {"strategy": "comm_opt", "placement": "round-robin"},
    ):
        shared = Training(world, **options).run(4)
        expect_equal(shared.weights(), every.weights(), str(options))
        bases[next(iter(options))] = shared.kfac.stats()["bytes"]["eigenbases"]
    whole = every.kfac.stats()
    assert bases["grad_worker_frac"] < whole["bytes"]["eigenbases"], (bases, whole)
    assert whole["seconds"]["communicate"] > 0, whole
    apart = Training(world, strategy="dp").run(4)  # a layer's statistics are of its owner's samples alone
    assert not torch.equal(apart.weights(), every.weights())
    dist.destroy_process_group()


def resumed(rank, size, folder):
    """A state goes on bit by bit on as many ranks, and on one."""
    start("spillway", rank, size, folder)
    alone = [dist.new_group([r], backend="gloo") for r in range(size)][rank]
    training = Training(dist.group.WORLD, grad_worker_frac=1 / size).run(3)
    state = training.state()
    after = training.run(3).weights()
    expect_equal(Training(dist.group.WORLD, resume=state).run(3).weights(), after, "resumed")
    expect_close(Training(alone, resume=state).run(3).weights(), after, "resumed on one rank")
    dist.destroy_process_group()


def under_a_budget(rank, size, folder):
    """Half of the peak changes no bit."""
    start("spillway", rank, size, folder)
    plain = Training(dist.group.WORLD).run(5).weights()
    with spillway.Session(processes_of_host=size) as session:
        Training(dist.group.WORLD).run(5, session)
        peak, floor = session.stats()["peak_bytes"], session.floor_bytes
    budget = torch.tensor([max(peak // 2, floor + floor // 20)])
    dist.all_reduce(budget, dist.ReduceOp.MAX)
    with spillway.Session(budget=budget.item(), processes_of_host=size) as session:
        tight = Training(dist.group.WORLD).run(5, session).weights()
        stats = session.stats()
        expect_equal(tight, plain, "under a budget")
    assert stats["peak_bytes"] <= budget.item() < peak and stats["bytes_in"] > 0, (stats, budget, peak)
    dist.destroy_process_group()


def refusals(rank, size, folder):
    """What cannot be shared is refused, on every rank."""
    from torch.distributed.fsdp import fully_shard

    expect_error(ValueError, "not initialized", lambda: spillway.KFAC(make_model(), 0.1, process_group=object()))
    start("spillway", rank, size, folder)
    narrower = nn.Sequential(nn.Linear(4 + rank, 2))
    expect_error(ValueError, "rank 1", lambda: spillway.KFAC(narrower, 0.1))
    expect_error(ValueError, "grad_worker_frac", lambda: spillway.KFAC(make_model(), 0.1, grad_worker_frac=0.4))
    expect_error(ValueError, "strategy", lambda: spillway.KFAC(make_model(), 0.1, strategy="best"))
    sharded = nn.Sequential(nn.Linear(8, 4))
    fully_shard(sharded, mesh=dist.device_mesh.init_device_mesh("cpu", (size,)))
    expect_error(TypeError, "DTensor", lambda: spillway.KFAC(sharded, 0.1))
    first = dist.new_group([0])
    if rank == 1:
        expect_error(ValueError, "not in process_group", lambda: spillway.KFAC(make_model(), 0.1, process_group=first))
    dist.destroy_process_group()


class Checkpointed(nn.Module):
    """The model, whose convolutions are a checkpoint of one kind; or none."""

    def __init__(self, use_reentrant):
        super().__init__()
        self.net = make_model()
        self.run = functools.partial(checkpoint, use_reentrant=use_reentrant) if use_reentrant is not None else None

    def forward(self, x):
        if self.run is None:
            return self.net(x)
        return self.net[3:](self.run(self.net[:3], x.requires_grad_()))


def gradients(model, group, accumulate=1, **options):
    """Returns the preconditioned gradients of a step of DistributedDataParallel."""
    model = DistributedDataParallel(model, process_group=group)
    kfac = spillway.KFAC(model, 0.1, process_group=group, **(EXACT | options))
    x, y = batch_of(0, dist.get_rank(group), dist.get_world_size(group))
    size = len(x) // accumulate
    for part in range(accumulate):
        model.require_backward_grad_sync = part == accumulate - 1
        (nn.functional.cross_entropy(model(x[part * size :][:size]), y[part * size :][:size]) / accumulate).backward()
    kfac.step()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def in_checkpoints(rank, size, folder):
    """Checkpoints of both kinds change nothing, also where gradients add up, or factors are sent beside backward."""
    start("spillway", rank, size, folder)
    world = dist.group.WORLD
    warnings.simplefilter("error", UserWarning)
    expected = gradients(Checkpointed(None), world)
    for use_reentrant in (False, True):
        for accumulate in (1, 2):
            found = gradients(Checkpointed(use_reentrant), world, accumulate)
            expect_close(found, expected, f"reentrant {use_reentrant}, {accumulate} parts")
        found = gradients(Checkpointed(use_reentrant), world, overlap_factors=True)
        expect_close(found, expected, f"reentrant {use_reentrant}, factors beside backward")
    dist.destroy_process_group()


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x, branch):
        return self.layers[branch](self.layers[0](x))


def branches(rank, size, folder):
    """A layer that runs on one rank alone was seen; one that runs on none is named on all of them."""
    start("spillway", rank, size, folder)
    torch.manual_seed(3)
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    kfac = spillway.KFAC(model, 0.1, **EXACT)
    model(torch.randn(5, 4), 1 + rank).square().mean().backward()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kfac.step()
    told = [str(w.message) for w in caught if "KFAC" in str(w.message)]
    assert len(told) == 1 and told[0].endswith("it does: 'module.layers.3' (it had no gradient)"), told
    kfac = spillway.KFAC(model, 0.1, **EXACT)
    model.zero_grad()
    output = model.module.layers[0](torch.randn(5, 4))
    if rank == 1:
        output = nn.functional.linear(output, 2 * model.module.layers[2].weight)
    kfac.watch(output, 5)
    output.square().mean().backward()
    expect_error(RuntimeError, "layers.2", kfac.step)
    dist.destroy_process_group()


class KfacOverRanksTest(unittest.TestCase):
    def test_checkpoints_change_nothing(self):
        run_ranks(in_checkpoints, 2)

    def test_layers_that_no_rank_saw_are_named_on_all(self):
        run_ranks(branches, 2)

    def test_ranks_train_as_one_process_with_the_whole_batch(self):
        run_ranks(of_whole_batch, 2)

    def test_a_state_goes_on_and_on_another_number_of_ranks(self):
        run_ranks(resumed, 2)

    def test_a_budget_changes_no_bit(self):
        run_ranks(under_a_budget, 2)

    def test_what_cannot_be_shared_is_refused(self):
        run_ranks(refusals, 2)


if __name__ == "__main__":
    unittest.main()
