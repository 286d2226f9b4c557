"""What strikes a launch, and how its end must look afterwards."""

import contextlib
import os
import re
import signal
import subprocess
import time

from launches import Failure

# Ends that are no fault's doing but honest: the run was done before the fault came.
DONE = 0


def _signal(number):
    def strike(run, launch, _places):
        pid = run.ranks().get(launch.victim)
        if pid:
            os.kill(pid, number)

    return strike


def _launcher(number):
    def strike(run, _launch, _places):
        if run.process.poll() is None:
            os.kill(run.process.pid, number)

    return strike


def _pause(run, launch, places):
    """A rank that stands still for less than the deadline is waited for."""
    _signal(signal.SIGSTOP)(run, launch, places)
    time.sleep(1)
    _signal(signal.SIGCONT)(run, launch, places)


def _stop(run, launch, places):
    _signal(signal.SIGSTOP)(run, launch, places)
    if launch.ranks == 1:  # nobody is there to notice
        time.sleep(1)
        _signal(signal.SIGCONT)(run, launch, places)


def _fill_pages(_run, _launch, places):
    places.pages.fill()


def _fill_checkpoints(_run, _launch, places):
    places.checkpoints.fill()


def _remove_pages(_run, _launch, places):
    for file in places.pages.folder.iterdir():
        file.unlink(missing_ok=True)


def _remove_checkpoints(_run, _launch, places):
    for file in places.checkpoint.parent.glob("checkpoint/*"):
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # a file came meanwhile
        os.rmdir(places.checkpoint)


def set_link(host, state):
    subprocess.run(["ip", "-n", f"spwy{host}", "link", "set", "eth0", state], check=False)


def _cut_link(_run, launch, _places):
    set_link(launch.victim % launch.hosts, "down")


def mend(places):
    """Takes the fault away, as an operator would before starting again."""
    places.pages.empty()
    places.checkpoints.empty()


SIGNALLED = r"signal (9|15|19)|exited on signal|Killed|Terminated"
# name: (how it strikes, the exit codes that are right, what the output must say unless the code is 0)
FAULTS = {
    "killed": (_signal(signal.SIGKILL), {137, -9}, SIGNALLED),
    "launcher killed": (_launcher(signal.SIGKILL), {-9, 137}, None),
    "paused": (_pause, set(), None),
    "stopped": (_stop, {4}, r"no answer from rank {victim}\b|no answer to MPI_Init"),
    "terminated": (_launcher(signal.SIGTERM), {130, 143, -15, 1}, None),  # whoever asked for it knows
    "rank terminated": (
        _signal(signal.SIGTERM),
        {130, 143, -15},
        r"interrupted (after|before the first) step|" + SIGNALLED,
    ),
    "disk full": (_fill_pages, {1, 4}, r"No space left|disk"),
    "checkpoint disk full": (_fill_checkpoints, {1, 4}, r"No space left"),
    "pages removed": (_remove_pages, {1}, r"pages"),
    "checkpoints removed": (_remove_checkpoints, {1, 2}, r"checkpoint"),  # 2: what was to be resumed is gone
    "out of budget": (None, {3}, r"smallest feasible budget|budget of"),
    "out of host memory": (None, {1, 3}, r"host budget|host memory|host"),
}
# Before ranks have met, it is MPI that notices, with words and a code of its own.
FAULTS_OF_HOSTS = {"link cut": (_cut_link, set(range(1, 256)), r"no answer from rank|MPI|ORTE|PMIX")}


def fault(name):
    return FAULTS.get(name) or FAULTS_OF_HOSTS[name]


def check_end(launch, code, text):
    """Raises Failure unless a launch that a fault struck ended as it must."""
    _strike, codes, words = fault(launch.fault)
    if launch.ranks == 1 and launch.fault in ("stopped", "paused"):
        codes = set()
    if code == DONE:
        return
    if "bad_alloc" in text:
        raise Failure(
            f"'{launch.fault}' ended with an allocation of which nobody says whose and how large it was:\n{text}"
        )
    if code not in codes:
        raise Failure(f"'{launch.fault}' ended the launch with {code}, allowed: {sorted(codes | {DONE})}\n{text}")
    if code < 0 and launch.ranks == 1:
        return  # the shell names the signal
    if words and not re.search(words.format(victim=launch.victim), text):
        raise Failure(f"'{launch.fault}' is not named in what the launch printed:\n{text}")
