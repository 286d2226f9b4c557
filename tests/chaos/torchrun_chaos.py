"""Trains in Python under torchrun over the backend `spillway`, strikes at random moments, goes on, and compares.

    torchrun_chaos.py [--rounds N] [--seed S] [--case JSON]          with an interpreter that has torch and the package

A round is a seed. It draws two to four ranks, DDP or FSDP2, where Sessions open and close, and several launches, each
of which trains up to a further step. A fault strikes each launch but the last, and torchrun may restart the ranks. At
the end every rank's weights and moments must have the bits of an undisturbed run without Sessions. No rank may have
waited longer than its deadline, none may have ended by an error that no fault explains, and no process, socket or file
may be left.
"""

import argparse
import collections
import dataclasses
import os
import pathlib
import random
import re
import shutil
import signal
import sys
import tempfile
import time

from launches import DrawnCase, Failure
from torchrun_ranks import STORE_SECONDS, TorchrunRun

HERE = pathlib.Path(__file__).resolve().parent
DEADLINE = 8  # seconds that a rank waits for a message, in a launch in which a rank stands still
PATIENT = 60  # in other launches, so that whoever waits for the deadline there is noticed
# Seconds that a step, or a word that a rank has ended, may take on a busy machine: less than a second deadline.
GRACE = 6
EXIT = 20  # seconds that an interpreter may take to end, which is two of work for torch's modules
PAUSE = 1.5
MOST_STEPS = 20  # of a round's launches together
SLOW_MONITOR = 3  # seconds after which torchrun looks at its ranks, so that they notice by themselves

# The exit codes of torchrun that a fault explains, beside 0.
LAUNCHER = {"launcher killed": {-9}, "launcher terminated": {1, 143, -15}, "launcher interrupted": {1, 130, -2}}
RANK = {"killed": signal.SIGKILL, "fails": signal.SIGUSR1, "stopped": signal.SIGSTOP}
FAULTS = [*LAUNCHER, *RANK, "killed", "fails", "stopped", "paused"]
WRONG_WORDS = r"SIGSEGV|SIGABRT|SIGBUS|SIGILL|SIGFPE|terminate called|Fatal Python error|wrong values"
# Errors of torch.distributed's own store.
STORE_ERRORS = ("DistStoreError", "DistNetworkError")


@dataclasses.dataclass
class Launch:
    """One start of torchrun: up to which step it trains, and the fault that is to strike."""

    until: int
    fault: str | None = None
    moment: float = 0.5  # below 0.25: while the ranks start and meet. Then: while they train
    delay: float = 0.0  # seconds from the step's begin
    victim: int = 0
    restarts: int = 0  # that torchrun may make
    times: int = 1  # that the fault strikes
    wakes: bool = False  # a rank that was stopped goes on when the others have ended. Otherwise it is killed then
    monitor: float = 0.1

    def describe(self):
        if not self.fault:
            return f"to step {self.until}"
        return (
            f"to step {self.until}, {self.fault}{f' {self.times} times' * (self.times > 1)} at {self.moment:.2f}, "
            + f"victim {self.victim}, {self.restarts} restarts"
        )


@dataclasses.dataclass
class Case(DrawnCase):
    seed: int
    ranks: int
    sharded: bool
    child: bool  # ranks have a forked child that lives on for a while
    launches: list
    launch_class = Launch

    @property
    def steps(self):
        return self.launches[-1].until


def draw_case(seed):
    chance = random.Random(f"torchrun {seed}")
    ranks = chance.choice([2, 2, 3, 3, 4])
    case = Case(seed, ranks, chance.random() < 0.4, chance.random() < 0.3, [])
    until = 0
    for _ in range(chance.choice([1, 1, 2])):
        until += chance.randint(4, 8)
        launch = Launch(until, chance.choice(FAULTS), chance.random(), chance.uniform(0, 0.15), chance.randrange(ranks))
        if launch.fault in RANK:
            launch.restarts = chance.choice([0, 0, 1, 2])
            launch.times = chance.randint(1, launch.restarts + 1) if launch.fault != "stopped" else 1
            launch.wakes = chance.random() < 0.5
            launch.monitor = chance.choice([0.1, SLOW_MONITOR])
        case.launches.append(launch)
    case.launches.append(Launch(until + chance.randint(2, 4)))
    return case


class Round:
    def __init__(self, case, folder, references):
        self.case, self.folder, self.references = case, folder, references
        self.training = folder / "training"
        (self.training / "pages").mkdir(parents=True)
        self.launches, self.log, self.longest = 0, [], (-EXIT, "")

    # ---- launching

    def start(self, training, launch, *flags):
        self.launches += 1
        folder = self.folder / f"launch{self.launches}"
        case = self.case
        command = [
            sys.executable,
            "-B",
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={case.ranks}",
            f"--max-restarts={launch.restarts}",
            f"--monitor-interval={launch.monitor}",
            HERE / "train_rank.py",
            "--folder",
            training,
            "--notes",
            folder / "notes",
            "--until",
            launch.until,
            "--seed",
            case.seed,
            "--deadline",
            deadline_of(launch),
            "--store-timeout",
            STORE_SECONDS,
        ]
        command += [*["--sharded"] * case.sharded, *flags]
        return TorchrunRun(list(map(str, command)), folder, f"{self.folder.name}-{self.launches}")

    def reference(self):
        """Returns digests by rank and step of a launch without faults or Sessions, and the seconds until ranks met."""
        key = self.case.ranks, self.case.sharded
        if key not in self.references:
            training = self.folder / "reference"
            training.mkdir()
            launch = Launch(MOST_STEPS)
            run = self.start(training, launch, "--digests")
            self.end(run, launch)
            met = max(when for rank in run.look() for when, words in rank.notes if words == "met")
            digests = {(rank.number, step): digest for rank in run.look() for step, digest in rank.digests()}
            self.references[key] = digests, met - run.started
        return self.references[key]

    # ---- the fault

    def moment(self, run, launch, attempt, seconds_to_meet):
        """Waits for the moment of the fault. Returns the victim; None when it has ended, or the launch has."""

        def victim(ranks):
            return next((rank for rank in ranks if rank.number == launch.victim and rank.attempt >= attempt), None)

        if not run.until(victim, PATIENT):
            return None
        if launch.moment < 0.25:
            run.until(
                lambda ranks: victim(ranks).begun("met") or victim(ranks).gone, launch.moment / 0.25 * seconds_to_meet
            )
        else:
            begin = step_of(self.training)
            step = begin + int((launch.moment - 0.25) / 0.75 * (launch.until - begin))
            run.until(lambda ranks: victim(ranks).begun(f"step {step}") or victim(ranks).gone, PATIENT)
            time.sleep(launch.delay)
        rank = victim(run.look())
        return None if rank.gone else rank

    def strike(self, run, launch, attempt, seconds_to_meet):
        """Strikes once. Returns the attempt of torchrun that it struck; None when it came too late."""
        rank = self.moment(run, launch, attempt, seconds_to_meet)
        if rank is None or run.process.poll() is not None:
            return None
        try:
            if launch.fault in LAUNCHER:
                os.kill(
                    run.process.pid, {"k": signal.SIGKILL, "t": signal.SIGTERM, "i": signal.SIGINT}[launch.fault[9]]
                )
                return rank.attempt
            rank.struck = time.monotonic()
            os.kill(rank.pid, signal.SIGSTOP if launch.fault == "paused" else RANK[launch.fault])
            if launch.fault == "paused":
                time.sleep(PAUSE)
                os.kill(rank.pid, signal.SIGCONT)
            elif launch.fault == "stopped":
                run.until(
                    lambda ranks: all(r.gone for r in ranks if r is not rank and r.attempt == rank.attempt),
                    DEADLINE + 2 * GRACE,
                )
                os.kill(rank.pid, signal.SIGCONT if launch.wakes else signal.SIGKILL)
        except ProcessLookupError:
            return None
        return rank.attempt

    # ---- one launch

    def attempt(self, launch, digests, seconds_to_meet):
        begin = step_of(self.training)
        run = self.start(self.training, launch, "--sessions", *["--child"] * self.case.child)
        struck = []
        if launch.fault:
            for _ in range(launch.times):
                attempt = self.strike(run, launch, struck[-1] + 1 if struck else 0, seconds_to_meet)
                if attempt is None:
                    break
                struck.append(attempt)
        self.log.append(f"{launch.describe()}{', missed' * (launch.fault is not None and not struck)}")
        code = self.end(run, launch)
        self.log[-1] += f" → {code}"
        ranks = run.look()
        for rank in ranks:
            for step, digest in rank.digests():
                if digest != digests[rank.number, step]:
                    raise Failure(
                        f"rank {rank.number} has other bits after step {step} than in an undisturbed run\n{run.story()}"
                    )
        if code == 0 and sum((str(launch.until) in dict(rank.digests())) for rank in ranks) < self.case.ranks:
            raise Failure(f"the launch ended with 0 before step {launch.until}\n{run.story()}")
        if step_of(self.training) < begin:
            raise Failure(f"the checkpoint fell from step {begin} back to {step_of(self.training)}\n{run.story()}")
        return code

    def end(self, run, launch):
        """Waits for the launch's end. Returns its exit code. Raises Failure unless it ended as its fault explains."""
        try:
            code = run.watch(2 * PATIENT)
        except Failure as failure:
            raise Failure(f"{failure}\n{run.story()}") from None
        ranks, story = run.look(), run.story()
        allowed = {0} | LAUNCHER.get(launch.fault, set())
        if launch.fault in RANK and launch.times > launch.restarts:
            allowed.add(1)
        if code not in allowed:
            raise Failure(f"the launch ended with {code}, allowed: {sorted(allowed)}\n{story}")
        if found := re.search(WRONG_WORDS, run.text()):
            raise Failure(f"'{found.group()}' in what the launch printed\n{story}")
        for file in run.notes.glob("wrong.*"):
            raise Failure(f"{file.read_text()}\n{story}")
        for rank in ranks:
            self.check_error(rank, ranks, launch, story)
            self.check_waits(rank, launch, story)
        self.expect_nothing_left(run, ranks)
        return code

    def check_error(self, rank, ranks, launch, story):
        if rank.struck and "told to fail" in (rank.error or ""):
            return  # by Struck, or by the RuntimeError that DTensor makes of any error
        explained = ("KeyboardInterrupt",) if launch.fault == "launcher interrupted" else ()
        if launch.fault not in (None, "paused"):
            explained += ("CommError",)
            # torch's store ends with the launcher. new_group() waits in it for every rank.
            if launch.fault in LAUNCHER or any("another group" in words for _, words in rank.notes[-2:]):
                explained += STORE_ERRORS
        if rank.error and rank.error.split()[1].rstrip(":") not in explained:
            raise Failure(
                f"rank {rank.number} ended with an error that '{launch.fault}' does not explain: {rank.error}\n{story}"
            )
        struck = next((other for other in ranks if other.attempt == rank.attempt and other.struck), None)
        # While a communicator is made there is no board yet, by which ranks would learn who is silent.
        is_too_early = "no communicator was made: not all of" in (rank.error or "")
        is_told = struck and rank is not struck and "CommError" in (rank.error or "") and not is_too_early
        if is_told and f"rank {struck.number}" not in rank.error:
            raise Failure(
                f"rank {rank.number} does not name rank {struck.number}, which was struck: {rank.error}\n{story}"
            )

    def check_waits(self, rank, launch, story):
        allowed = GRACE + launch.monitor
        if launch.fault == "stopped":
            if rank.struck:
                return  # it stood still
            allowed += DEADLINE
        if launch.fault == "paused":
            allowed += PAUSE
        for seconds, words in rank.waits():
            most = EXIT if words.startswith(("error", "done")) else allowed
            if seconds > most:
                raise Failure(f"rank {rank.number} waited {seconds:.1f} s in '{words}', allowed: {most:.1f} s\n{story}")
            self.longest = max(self.longest, (seconds - most, words))

    def expect_nothing_left(self, run, ranks):
        """Processes are Run's to look for."""
        patience = time.monotonic() + GRACE  # a process whose first thread has ended may still close its files
        while left := sockets_of(ranks):
            if time.monotonic() > patience:
                raise Failure(f"sockets are left: {left}\n{run.story()}")
            time.sleep(0.1)
        torchs = ("torchelastic_", "torchinductor_")
        left = [
            name for name in os.listdir(run.folder) if name not in ("output", "notes") and not name.startswith(torchs)
        ]
        shared = [name for name in os.listdir("/dev/shm") if any(f"_{rank.pid}_" in name for rank in ranks)]
        if left or shared:
            raise Failure(f"files are left: {left + shared}")

    def run(self):
        digests, seconds_to_meet = self.reference()
        code = None
        for launch in self.case.launches:
            code = self.attempt(launch, digests, seconds_to_meet)
        assert code == 0  # an undisturbed launch ends with nothing else
        kept = {"latest"} | {f"step{self.case.steps}.rank{rank}" for rank in range(self.case.ranks)}
        files = {str(file.relative_to(self.training)) for file in self.training.rglob("*") if file.is_file()}
        if files != kept:
            raise Failure(f"files are left: {sorted(files - kept)}, missing: {sorted(kept - files)}")


def sockets_of(ranks):
    """The kernel's lines of Unix-domain sockets that these ranks bound, whoever holds them now."""
    names = [f"@spillway-{rank.pid}-" for rank in ranks]
    lines = pathlib.Path("/proc/net/unix").read_text().splitlines()
    return [line for line in lines if any(name in line for name in names)]


def deadline_of(launch):
    return DEADLINE if launch.fault == "stopped" else PATIENT


def step_of(training):
    latest = training / "latest"
    return int(latest.read_text()) if latest.exists() else 0


def try_case(case, scratch, references):
    """Runs the case: (the round, what is wrong or None)."""
    trial = Round(case, pathlib.Path(tempfile.mkdtemp(prefix=f"torchrun{case.seed}-", dir=scratch)), references)
    try:
        trial.run()
        return trial, None
    except Failure as failure:
        return trial, str(failure)
    finally:
        shutil.rmtree(trial.folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", help="a case as a failure prints it; runs that one alone")
    arguments = parser.parse_args()
    cases = (
        [Case.from_json(arguments.case)]
        if arguments.case
        else [draw_case(seed) for seed in range(arguments.seed, arguments.seed + arguments.rounds)]
    )
    references, ends = {}, collections.Counter()
    with tempfile.TemporaryDirectory(prefix="spillway-chaos-", ignore_cleanup_errors=True) as scratch:
        for case in cases:
            started = time.monotonic()
            trial, wrong = try_case(case, scratch, references)
            print(
                f"seed {case.seed}: {case.ranks} ranks, "
                f"{'FSDP2' if case.sharded else 'DDP'}{', children' * case.child}: {'; '.join(trial.log)} "
                f"({time.monotonic() - started:.0f} s; the longest wait ended {-trial.longest[0]:.1f} s early, "
                f"in '{trial.longest[1]}')",
                flush=True,
            )
            ends.update("died" if not line.endswith("→ 0") else "ended" for line in trial.log)
            if wrong:
                print(f"FAILED: {wrong}\nagain:   scripts/soak --torchrun --case '{case.to_json()}'", flush=True)
                return 1
    print(f"{len(cases)} rounds passed; {ends['died']} of {ends.total()} launches died", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
