"""Ranks of torch.distributed for tests: processes of one machine."""

import datetime
import os
import pathlib
import tempfile
import traceback

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def start(backend, rank, size, folder, **options):
    torch.set_num_threads(1)
    os.makedirs(folder, exist_ok=True)
    dist.init_process_group(
        backend,
        init_method=f"file://{folder}/{backend}",
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=30),
        **options,
    )


def play(body, rank, size, folder):
    """Runs a rank; its error goes to a file."""
    try:
        body(rank, size, folder)
    except BaseException:
        pathlib.Path(folder, f"error{rank}").write_text(traceback.format_exc())
        os._exit(1)


def run_ranks(body, size, failing=()):
    """Runs `body(rank, size, folder)` in processes. Fails with the errors of ranks that are not to fail.

    The processes are forked from one that has imported the test's file, and with it torch, once for all ranks.
    """
    with tempfile.TemporaryDirectory() as folder:
        context = mp.get_context("forkserver")
        ranks = [context.Process(target=play, args=(body, rank, size, folder)) for rank in range(size)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(120)
            if rank.is_alive():
                rank.kill()
        errors = {
            number: file.read_text()
            for number in range(size)
            if number not in failing and (file := pathlib.Path(folder, f"error{number}")).exists()
        }
        if errors:
            raise AssertionError("\n".join(f"rank {number}: {error}" for number, error in errors.items()))
        for number, rank in enumerate(ranks):
            if (rank.exitcode != 0) != (number in failing):
                raise AssertionError(f"rank {number} ended with {rank.exitcode}")


def expect(got, wanted):
    """Fails unless the tensors are equal but for the order in which ranks were added."""
    if not torch.allclose(
        got.to(wanted.dtype), wanted, rtol=1e-2 if wanted.dtype in (torch.half, torch.bfloat16) else 1e-5
    ):
        raise AssertionError(f"{got} is not {wanted}")


def expect_error(kind, text, call):
    """Fails unless `call()` raises an error of this kind that says `text`."""
    try:
        call()
    except kind as error:
        if text not in str(error):
            raise AssertionError(f"no '{text}' in: {error}") from error
    else:
        raise AssertionError(f"no {kind.__name__} with '{text}'")
