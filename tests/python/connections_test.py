"""Tests of how the ranks of the backend `spillway` find each other, and notice that one has ended."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest

import torch
import torch.distributed as dist
from ranks import expect_error, run_ranks, start

import spillway
import spillway.distributed

LONG = 25  # seconds, which no wait takes but one for the deadline of 30


def torchrun(size, body, *options):
    """Runs `body`, which knows `rank` and `life`, under torchrun. Returns how it ended, and what ranks wrote."""
    begin = """
        import datetime, os, pathlib, signal, sys, time
        import torch, torch.distributed as dist
        import spillway
        torch.set_num_threads(1)
        rank, life = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        def init():
            dist.init_process_group("spillway", timeout=datetime.timedelta(seconds=30))
        def note(text):
            pathlib.Path(os.environ["NOTES"], f"{text}-{life}-{rank}").touch()
    """
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder, "program.py")
        program.write_text(textwrap.dedent(begin) + textwrap.dedent(body))
        notes = pathlib.Path(folder, "notes")
        notes.mkdir()
        ended = subprocess.run(
            [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node",
                str(size),
                "--monitor-interval",
                "0.1",
                *options,
                str(program),
            ],
            env={**os.environ, "NOTES": str(notes)},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        return ended, sorted(note.name for note in notes.iterdir())


def named_at_once(rank, size, folder):
    """Checks that a rank with other options than the rest is named by all of them, long before the deadline."""
    began = time.monotonic()
    options = spillway.distributed.Options(levels=[[0, 1]] if rank == 1 else [])
    if rank == 1:
        expect_error(
            ValueError,
            "levels are declared for 2 ranks, but 4 are running",
            lambda: start("spillway", rank, size, folder, pg_options=options),
        )
    else:
        expect_error(
            spillway.CommError, "rank 1 has ended", lambda: start("spillway", rank, size, folder, pg_options=options)
        )
    assert time.monotonic() - began < LONG
    os._exit(0)


def alone(rank, size, folder):
    """Checks that a rank which does not come is named, by the same kind of error as one that ends later."""
    if rank == 1:
        return
    options = spillway.distributed.Options(deadline=2)
    expect_error(
        spillway.CommError, "missing is rank 1", lambda: start("spillway", rank, size, folder, pg_options=options)
    )
    os._exit(0)


def interrupted(rank, size, folder):
    """Checks that Ctrl-C ends the wait for a rank that does not come."""
    if rank == 1:
        return
    threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    expect_error(KeyboardInterrupt, "", lambda: start("spillway", rank, size, folder))
    assert time.monotonic() - began < LONG
    os._exit(0)


def killed_with_a_child(rank, size, folder):
    """Checks that a killed rank is noticed while a child of its fork() lives."""
    start("spillway", rank, size, folder)
    dist.barrier()
    if rank == 1:
        child = os.fork()
        if child == 0:
            time.sleep(100)
            os._exit(0)
        pathlib.Path(folder, "child").write_text(str(child))
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    expect_error(spillway.CommError, "rank 1", lambda: dist.all_reduce(torch.ones(10)))
    assert time.monotonic() - began < LONG
    os.kill(int(pathlib.Path(folder, "child").read_text()), signal.SIGKILL)
    os._exit(0)


def with_secrets(rank, size, folder):
    """Checks that ranks of one secret meet, and that others do not."""
    os.environ["SPILLWAY_SECRET"] = "one of many"
    start("spillway", rank, size, folder)
    x = torch.ones(10)
    dist.all_reduce(x)
    assert x[0].item() == size
    dist.destroy_process_group()
    os.environ["SPILLWAY_SECRET"] = f"that of rank {rank}"
    other = pathlib.Path(folder, "other")
    other.mkdir(exist_ok=True)
    expect_error(RuntimeError, "SPILLWAY_SECRET must be the same", lambda: start("spillway", rank, size, other))
    os._exit(0)


class ConnectionsTest(unittest.TestCase):
    def test_groups_follow_each_other_under_torchrun_though_a_rank_is_late(self):
        ended, notes = torchrun(
            3,
            """
            for group in range(4):
                if rank == group % 3:
                    time.sleep(0.5)
                init()
                x = torch.ones(1000)
                dist.all_reduce(x)
                assert x[0].item() == 3
                pair = dist.new_group([0, 2])
                if rank != 1:
                    dist.barrier(pair)
                dist.destroy_process_group()
            note("done")
        """,
        )
        self.assertEqual(ended.returncode, 0, ended.stderr[-3000:])
        self.assertEqual(notes, ["done-0-0", "done-0-1", "done-0-2"])

    def test_lives_that_torchrun_starts_anew_do_not_meet_the_former_ones(self):
        ended, notes = torchrun(
            2,
            """
            if life == 1 and rank == 0:
                time.sleep(0.5)
            init()
            dist.barrier()
            if life < 2 and rank == life:
                os.kill(os.getpid(), signal.SIGKILL)
            x = torch.ones(10)
            dist.all_reduce(x)
            note("done")
            dist.barrier()
            dist.destroy_process_group()
        """,
            "--max-restarts",
            "5",
        )
        self.assertEqual(ended.returncode, 0, ended.stderr[-3000:])
        self.assertEqual(notes, ["done-2-0", "done-2-1"])

    def test_lives_on_one_prefix_of_a_store_do_not_meet_the_former_ones(self):
        # Where the agent restarts all ranks because others came, the count of restarts stays, and so does the prefix.
        ended, notes = torchrun(
            2,
            """
            os.environ["TORCHELASTIC_RESTART_COUNT"] = "0"
            if life == 1 and rank == 0:
                time.sleep(0.5)
            init()
            if life == 0 and rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            x = torch.ones(10)
            dist.all_reduce(x)
            note("done")
            dist.barrier()
            dist.destroy_process_group()
        """,
            "--max-restarts",
            "5",
        )
        self.assertEqual(ended.returncode, 0, ended.stderr[-3000:])
        self.assertEqual(notes, ["done-1-0", "done-1-1"])

    def test_a_rank_that_refuses_its_options_is_named_at_once(self):
        run_ranks(named_at_once, 4)

    def test_a_rank_that_does_not_come_is_named(self):
        run_ranks(alone, 2)

    def test_an_interrupt_ends_the_wait_for_a_rank(self):
        run_ranks(interrupted, 2)

    def test_a_killed_rank_is_noticed_though_a_child_of_it_lives(self):
        run_ranks(killed_with_a_child, 2, failing=(1,))

    def test_a_secret_must_be_the_same_on_all_ranks(self):
        run_ranks(with_secrets, 2)

    def test_interfaces_may_be_listed_and_may_have_ipv6_alone(self):
        address = spillway.distributed._address_of_interface
        self.assertEqual(address("nobodys0,lo,eth0"), "127.0.0.1")
        self.assertEqual(address("nobodys0"), "nobodys0")
        with tempfile.NamedTemporaryFile("w") as table:
            table.write(
                "fe80000000000000020000fffe000001 02 40 20 80     eth0\n"
                "20010db8000000000000000000000007 02 40 00 80     eth0\n"
            )
            table.flush()
            self.assertEqual(spillway.distributed._ipv6_of("eth0", table.name), "2001:db8::7")
            self.assertIsNone(spillway.distributed._ipv6_of("eth1", table.name))


if __name__ == "__main__":
    unittest.main()
