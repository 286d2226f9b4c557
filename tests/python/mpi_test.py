"""Tests of torch.distributed's backend `spillway` over MPI, in ranks that mpirun starts from this program."""

import ctypes
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import torch
import torch.distributed as dist
from ranks import expect_error
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import spillway
import spillway.distributed

BODIES = {}
MPI_THREAD_SERIALIZED, MPI_THREAD_MULTIPLE = 2, 3


def body(function):
    BODIES[function.__name__] = function
    return function


def start(folder, rank, size):
    dist.init_process_group(
        "spillway",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=size,
        pg_options=spillway.distributed.Options(transport="mpi", deadline=20),
    )


def train_and_check(rank, size):
    model = DistributedDataParallel(nn.Linear(4, 2))
    kfac = spillway.KFAC(model, 0.1)
    model(torch.full((3, 4), float(rank))).square().mean().backward()
    kfac.step()
    gradients = [torch.zeros(2, 4) for _ in range(size)]
    dist.all_gather(gradients, model.module.weight.grad)
    assert all(torch.equal(gradients[0], other) for other in gradients)
    x = torch.full((1000,), float(rank))
    dist.all_reduce(x)
    assert x[5].item() == size * (size - 1) / 2
    pair = dist.new_group([0, size - 1])  # a part of the ranks talks over sockets
    if rank in (0, size - 1):
        dist.all_reduce(x, group=pair)
        assert x[5].item() == size * (size - 1)


@body
def mpi_is_started_by_the_backend(folder, rank, size):
    start(folder, rank, size)
    train_and_check(rank, size)
    dist.destroy_process_group()


@body
def mpi_is_the_programs(folder, rank, size):
    mpi = initialized_mpi(MPI_THREAD_MULTIPLE)
    start(folder, rank, size)
    train_and_check(rank, size)
    mpi.MPI_Finalize()  # as mpi4py does when the interpreter ends, with the group still there


@body
def mpi_lets_one_thread_call(folder, rank, size):
    mpi = initialized_mpi(MPI_THREAD_SERIALIZED)
    expect_error(RuntimeError, "MPI_THREAD_MULTIPLE", lambda: start(folder, rank, size))
    mpi.MPI_Finalize()


@body
def ranks_are_others_in_mpi(folder, rank, size):
    expect_error(ValueError, "in MPI's order", lambda: start(folder, size - 1 - rank, size))


def initialized_mpi(level):
    mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
    provided = ctypes.c_int()
    mpi.MPI_Init_thread(None, None, level, ctypes.byref(provided))
    return mpi


def is_built_with_mpi():
    libraries = subprocess.run(["ldd", spillway._spillway.__file__], capture_output=True, text=True, check=False).stdout
    return "libmpi" in libraries


@unittest.skipUnless(is_built_with_mpi() and shutil.which("mpirun"), "needs a package with MPI, and mpirun")
class MpiTest(unittest.TestCase):
    def run_ranks(self, function, size=2):
        with tempfile.TemporaryDirectory() as folder:
            flags = ["--oversubscribe", "--bind-to", "none"] + (["--allow-run-as-root"] if os.getuid() == 0 else [])
            done = subprocess.run(
                ["mpirun", *flags, "-np", str(size), sys.executable, __file__, function.__name__, folder],
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(len(list(pathlib.Path(folder).glob("done*"))), size, done.stderr)

    def test_the_backend_starts_mpi(self):
        self.run_ranks(mpi_is_started_by_the_backend, 3)

    def test_a_program_has_its_own_mpi(self):
        self.run_ranks(mpi_is_the_programs)

    def test_an_mpi_for_one_thread_is_refused(self):
        self.run_ranks(mpi_lets_one_thread_call)

    def test_groups_of_other_ranks_are_refused(self):
        self.run_ranks(ranks_are_others_in_mpi)


class TransportTest(unittest.TestCase):
    def test_a_transport_that_is_none_is_refused(self):
        options = spillway.distributed.Options(transport="pigeons")
        with self.assertRaisesRegex(ValueError, "'sockets' and 'mpi'"):
            dist.init_process_group("spillway", store=dist.HashStore(), rank=0, world_size=1, pg_options=options)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in BODIES:
        torch.set_num_threads(1)
        number = int(os.environ["OMPI_COMM_WORLD_RANK"])
        BODIES[sys.argv[1]](sys.argv[2], number, int(os.environ["OMPI_COMM_WORLD_SIZE"]))
        pathlib.Path(sys.argv[2], f"done{number}").touch()
    else:
        unittest.main()
