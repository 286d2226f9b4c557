"""Starts of the program: under mpirun or alone, in folders of their own, watched until no process of theirs is left."""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import time

MARK = "SPILLWAY_CHAOS"  # in the environment of every process of a launch, so that orphans are found
# What ranks say that give up on MPI's start. Open MPI 4.1's mpirun hangs, without ranks, after about one of 30 such
# launches.
UNSTARTED = "[ddl] no answer to MPI_Init"
END_SECONDS = 90  # beyond what a launch takes undisturbed: deadlines, and a busy machine


class Failure(Exception):
    """The round found a defect. The text says which."""


class Programs:
    """What a launch is made of: the program, mpirun, and the script of emulated hosts."""

    def __init__(self, spillway, mpirun, emulated_hosts):
        self.spillway, self.mpirun, self.emulated_hosts = os.path.abspath(spillway), mpirun, emulated_hosts
        self.has_hosts = (
            bool(mpirun and emulated_hosts)
            and subprocess.run([emulated_hosts, "usable"], capture_output=True, check=False).returncode == 0
        )

    def launcher(self, ranks, hosts, folder):
        if ranks == 1:
            return []
        if hosts > 1:
            shape = f"{hosts}x{ranks // hosts}"
            line = subprocess.run(
                [self.emulated_hosts, "launcher", shape], capture_output=True, text=True, check=True
            ).stdout
            return [*line.split(), "-x", MARK, "-x", "TMPDIR", "-x", "SPILLWAY_CACHE", "-np", str(ranks)]
        # Open MPI's own shared memory would stay in /dev/shm after a kill.
        return [
            self.mpirun,
            *(
                "--allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 "
                "--mca btl_vader_backing_directory"
            ).split(),
            str(folder),
            "-np",
            str(ranks),
        ]


class DrawnCase:
    """A round's case. A failure prints it as JSON, from which it runs again.

    It is the base of data classes that have `launches`, which are of the class `launch_class`.
    """

    @classmethod
    def from_json(cls, text):
        fields = json.loads(text)
        return cls(**fields | {"launches": [cls.launch_class(**launch) for launch in fields["launches"]]})

    def to_json(self):
        return json.dumps(dataclasses.asdict(self))


class Run:
    """One running launch."""

    def __init__(self, command, folder, mark):
        folder.mkdir(parents=True, exist_ok=True)
        self.mark, self.folder = mark, folder
        self.output = folder / "output"
        environment = os.environ | {
            MARK: mark,
            "TMPDIR": str(folder),
            "SPILLWAY_CACHE": str(folder.parent / "cache"),
            "OMP_NUM_THREADS": "1",
        }
        self.started = time.monotonic()
        with open(self.output, "w") as out:
            self.process = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )

    def processes(self):
        """PIDs of this launch that are still there, ours and mpirun's."""
        found, mark = [], f"{MARK}={self.mark}".encode()
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                ended = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
                if not ended and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                pass
        return found

    def ranks(self):
        """PIDs of the program itself, by rank."""
        ranks = {}
        for pid in self.processes():
            try:
                if pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == "spillway":
                    environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
                    rank = re.search(rb"\0OMPI_COMM_WORLD_RANK=(\d+)\0", b"\0" + environment)
                    ranks[int(rank.group(1)) if rank else 0] = pid
            except OSError:
                pass
        return ranks

    def wait_for_ranks(self, count):
        """Returns when so many ranks run, or the launch has ended."""
        while len(self.ranks()) < count and self.process.poll() is None:
            time.sleep(0.05)

    def wait(self, undisturbed_seconds=0, patience=15):
        """Returns the exit code. Ends everything and raises Failure when the launch hangs or leaves a process behind.

        A launch may take ten times as long as it takes undisturbed, and its processes so many seconds more.
        """
        seconds = END_SECONDS + 10 * undisturbed_seconds
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            stacks = [f"{pid}: {pathlib.Path(f'/proc/{pid}/wchan').read_text()}" for pid in self.ranks().values()]
            self.kill()
            if not stacks and UNSTARTED in self.text():
                return 4  # the ranks' own code
            raise Failure(
                f"the launch still runs after {seconds:.0f} s ({', '.join(stacks)}):\n{self.text()}"
            ) from None
        end = time.monotonic() + patience
        while left := self.processes():
            if time.monotonic() > end:
                names = [
                    pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:80] for pid in left
                ]
                self.kill()
                raise Failure(f"processes outlive their launch: {names}\n{self.text()}")
            time.sleep(0.05)
        return code

    def kill(self):
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def text(self):
        return self.output.read_text(errors="replace")


def step_of(checkpoint):
    """The step of the checkpoint in a folder; 0 without one."""
    file = checkpoint / "checkpoint.safetensors"
    if not file.exists():
        return 0
    with open(file, "rb") as data:
        length = struct.unpack("<Q", data.read(8))[0]
        return int(json.loads(data.read(length))["__metadata__"]["step"])


class SmallDisk:
    """A small file system, which a fault can fill to the last byte. Without the rights to mount one, a folder."""

    def __init__(self, folder, mebibytes=320):
        folder.mkdir(parents=True)
        self.folder = folder
        self.mounted = (
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(folder)],
                capture_output=True,
                check=False,
            ).returncode
            == 0
        )

    def fill(self):
        try:
            with open(self.folder / "filler", "wb", buffering=0) as file:
                while file.write(bytes(1 << 16)):
                    pass
        except OSError:
            pass

    def empty(self):
        (self.folder / "filler").unlink(missing_ok=True)

    def remove(self):
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)
