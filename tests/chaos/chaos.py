"""Trains under random budgets, tiers and strategies, strikes at random moments, goes on, and compares.

    chaos.py --program build/bin/spillway [--mpirun mpirun] [--rounds N] [--seed S] [--case JSON]

A round is a seed. It draws a model and several launches of one to four ranks; a fault strikes each but the last, which
ends the training. Then the checkpoint must hold, bit for bit, what launches without budgets and faults make; no process
and no file may be left, and every launch that died must have said why. A round that fails is made smaller, and printed
as a command.
"""

import argparse
import json
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time

import faults
from cases import Case, draw_case, smaller_cases
from launches import Failure, Programs, Run, SmallDisk, step_of


class Places:
    """The folders of a round. Each is a file system of its own, so that it can be filled."""

    def __init__(self, folder):
        self.pages = SmallDisk(folder / "pages")
        self.checkpoints = SmallDisk(folder / "checkpoints")
        self.checkpoint = self.checkpoints.folder / "checkpoint"

    def remove(self):
        self.pages.remove()
        self.checkpoints.remove()


class Round:
    def __init__(self, programs, case, folder):
        self.programs, self.case, self.folder = programs, case, folder
        self.places = Places(folder)
        self.chain = []  # (ranks, hosts, the step up to which they trained): how the checkpoint came to be
        self.references = {}  # chain → folder of the checkpoint that undisturbed launches make
        self.launches = 0
        self.log = []

    # ---- launching

    def start(self, ranks, hosts, arguments, for_victim=None, victim=0, for_others=()):
        """Starts ranks with the same arguments; a victim may have some of its own, and the others then theirs."""
        self.launches += 1
        folder = self.folder / f"launch{self.launches}"
        folder.mkdir(parents=True)
        program = [self.programs.spillway, "train", *map(str, arguments)]
        launcher = self.programs.launcher(ranks, hosts, folder)
        # A rank alone on an emulated host would run on every core, and sums depend on the number of threads.
        if max(launch.hosts for launch in self.case.launches) > 1:
            launcher = ["taskset", "-c", "0", *launcher]
        command = [*launcher, *program]
        if for_victim and ranks == 1:
            command += for_victim
        elif for_victim:
            groups = [(victim, for_others), (1, for_victim), (ranks - victim - 1, for_others)]
            command = launcher[:-2]
            for count, more in groups:
                if count:
                    command += ([":"] if command != launcher[:-2] else []) + ["-np", str(count), *program, *more]
        return Run(command, folder, f"{self.folder.name}-{self.launches}")

    def arguments(self, checkpoint, steps, *more):
        resume = ["--resume"] if step_of(checkpoint) else []
        return [*self.case.options, "--steps", steps, "--checkpoint", checkpoint, *resume, *more]

    # ---- the oracle

    def reference(self, chain):
        """The folder of the checkpoint that undisturbed launches of this chain leave, with their results beside it."""
        chain = tuple(chain)
        if chain not in self.references:
            ranks, hosts, end = chain[-1]
            before = self.reference(chain[:-1]) if len(chain) > 1 else None
            folder = self.folder / f"reference{len(self.references)}"
            if before:
                shutil.copytree(before, folder)
            levels = ["--levels", f"{ranks // hosts}x{hosts}"] if hosts > 1 else []
            arguments = self.arguments(folder, end, "--json", f"{folder}.json", *levels)
            run = self.start(ranks, 1, arguments)
            code = run.wait()
            if code != 0:
                raise Failure(f"an undisturbed launch ended with {code}: {' '.join(map(str, arguments))}\n{run.text()}")
            (self.folder / f"{folder.name}.seconds").write_text(str(time.monotonic() - run.started))
            self.references[chain] = folder
        return self.references[chain]

    def undisturbed(self, launch):
        """Bytes and seconds of a whole run on as many ranks: (floor, peak, seconds)."""
        folder = self.reference([(launch.ranks, launch.hosts, self.case.steps)])
        result = json.loads(folder.with_suffix(".json").read_text())
        return result["floor_bytes"], result["peak_bytes"], float(folder.with_suffix(".seconds").read_text())

    # ---- one launch

    def tiers(self, launch, floor, peak):
        if launch.budget is None:
            return []
        tiers = ["--budget", int(floor + launch.budget * max(0, peak - floor))]
        if launch.host_share is not None:
            tiers += ["--host-budget", max(1 << 20, int(launch.host_share * peak)), "--disk", self.places.pages.folder]
        return tiers

    def attempt(self, launch, floor, peak, seconds):
        """Starts the launch, strikes, and waits: (exit code, what it printed)."""
        arguments = self.arguments(
            self.places.checkpoint,
            self.case.steps,
            "--checkpoint-every",
            self.case.checkpoint_every,
            "--comm-timeout",
            5 if launch.fault in ("stopped", "link cut") else 60,
            *launch.travel,
        )
        for_victim, for_others = [], []
        if launch.fault in ("out of budget", "out of host memory"):
            # Every rank has a budget, since those that have one observe a step together first.
            for_others = ["--budget", str(2 * peak)]
            for_victim = ["--budget", str(max(1, floor // 2))]
            if launch.fault == "out of host memory":
                for_victim = ["--budget", str(floor), "--host-budget", "4KiB"]
        else:
            arguments += self.tiers(launch, floor, peak)
        run = self.start(launch.ranks, launch.hosts, arguments, for_victim, launch.victim, for_others)
        if launch.fault == "link cut":
            run.wait_for_ranks(launch.ranks)  # before, mpirun's own daemons would be cut off, which wait for ever
        if launch.fault and not for_victim:
            time.sleep(launch.moment * seconds)
            if run.process.poll() is None:
                faults.fault(launch.fault)[0](run, launch, self.places)
        if launch.fault == "link cut":
            time.sleep(8)  # until the deadline has passed; then the operator plugs it in again
            faults.set_link(launch.victim % launch.hosts, "up")
        return run.wait(seconds), run.text()

    def train(self, launch):
        """True when the training has come to its end."""
        floor, peak, seconds = self.undisturbed(launch)
        begin = step_of(self.places.checkpoint)
        if begin == self.case.steps:
            return True
        code, text = self.attempt(launch, floor, peak, seconds)
        needed = re.search(r"smallest feasible budget is (\d+) bytes", text)
        if (
            code == 3 and needed and launch.fault != "out of budget"
        ):  # messages on their way need more than the plain run
            floor = int(needed.group(1))
            code, text = self.attempt(launch, floor, max(peak, floor), seconds)
        if launch.fault:
            faults.check_end(launch, code, text)
        elif code != 0:
            raise Failure(f"a launch without a fault ended with {code}\n{text}")
        faults.mend(self.places)
        end = step_of(self.places.checkpoint)
        if end == 0:
            self.chain = []
        elif end < begin:
            raise Failure(f"the checkpoint fell from step {begin} back to {end}\n{text}")
        elif end > begin:
            if self.chain and self.chain[-1][:2] == (launch.ranks, launch.hosts):
                self.chain.pop()  # a resumed run is the uninterrupted one
            self.chain.append((launch.ranks, launch.hosts, end))
        self.log.append(f"{launch.describe()} → {code}, step {end}")
        return end == self.case.steps

    def run(self):
        hosts = max(launch.hosts for launch in self.case.launches)
        if hosts > 1:
            subprocess.run([self.programs.emulated_hosts, "up", str(hosts), "1gbit"], check=True, capture_output=True)
        try:
            done = False
            for launch in self.case.launches:
                done = done or self.train(launch)
            if not done:
                raise Failure("the last launch did not end the training")
            compare(self.places.checkpoint, self.reference(self.chain))
            self.expect_no_file_left()
        finally:
            if hosts > 1:
                subprocess.run([self.programs.emulated_hosts, "down"], check=False)
            self.places.remove()

    def expect_no_file_left(self):
        # A file of pages that a killed run left is removed by the next run that pages to this folder.
        if any(launch.host_share is not None for launch in self.case.launches):
            run = self.start(
                1,
                1,
                [
                    *self.case.options,
                    "--steps",
                    1,
                    "--budget",
                    "100%",
                    "--host-budget",
                    "1MiB",
                    "--disk",
                    self.places.pages.folder,
                ],
            )
            if (code := run.wait()) != 0:
                raise Failure(f"a run that pages to the folder of dead ones ended with {code}\n{run.text()}")
        left = [str(file) for file in self.places.pages.folder.iterdir()]
        left += [str(file) for file in self.places.checkpoint.iterdir() if file.name != "checkpoint.safetensors"]
        if left:
            raise Failure(f"files are left: {left}")


def tensors_of(folder):
    """The bytes of every tensor of a checkpoint, by name."""
    data = (folder / "checkpoint.safetensors").read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    return {
        name: data[8 + length + place["data_offsets"][0] : 8 + length + place["data_offsets"][1]]
        for name, place in header.items()
        if name != "__metadata__"
    }


def compare(folder, reference):
    ours, expected = tensors_of(folder), tensors_of(reference)
    if ours.keys() != expected.keys():
        raise Failure(
            f"the checkpoint holds other tensors than an undisturbed run's: {sorted(ours.keys() ^ expected.keys())}"
        )
    other = [name for name, value in ours.items() if value != expected[name]]
    if other:
        raise Failure(
            f"{len(other)} of {len(ours)} tensors have other bits than an undisturbed run's, such as {other[0]}"
        )


def try_case(programs, case, scratch):
    """Runs the case: (its log, what is wrong or None)."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"round{case.seed}-", dir=scratch))
    trial = Round(programs, case, folder)
    try:
        trial.run()
        return trial.log, None
    except Failure as failure:
        return trial.log, str(failure)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_smaller(programs, case, scratch, most_tries):
    """The smallest case found that still fails."""
    tries, found = 0, True
    while found and tries < most_tries:
        found = False
        for smaller in smaller_cases(case):
            if tries == most_tries:
                break
            tries += 1
            if try_case(programs, smaller, scratch)[1]:
                case, found = smaller, True
                break
    return case


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--mpirun", default=shutil.which("mpirun"))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", help="a case as a failure prints it; runs that one alone")
    parser.add_argument("--tries", type=int, default=12, help="cases that are tried to make a failing one smaller")
    parser.add_argument("--hosts", default=str(pathlib.Path(__file__).parents[2] / "scripts" / "emulated-hosts"))
    arguments = parser.parse_args()
    programs = Programs(arguments.program, arguments.mpirun, arguments.hosts)
    faults_of_hosts = list(faults.FAULTS_OF_HOSTS) if programs.has_hosts else []
    if not programs.has_hosts:
        print("    no emulated hosts here (root and iproute2 needed): no link is cut")
    with tempfile.TemporaryDirectory(prefix="spillway-chaos-", ignore_cleanup_errors=True) as scratch:
        deaths = 0
        for number in range(arguments.rounds):
            case = (
                Case.from_json(arguments.case)
                if arguments.case
                else draw_case(arguments.seed + number, list(faults.FAULTS), faults_of_hosts)
            )
            started = time.monotonic()
            log, wrong = try_case(programs, case, scratch)
            print(
                f"seed {case.seed}: {case.options[1]}{', kfac' * case.use_kfac}, {case.steps} steps: {'; '.join(log)}"
                f" ({time.monotonic() - started:.0f} s)",
                flush=True,
            )
            deaths += sum("→ 0," not in line for line in log)
            if wrong:
                print(f"FAILED: {wrong}\nagain:   scripts/soak --chaos --case '{case.to_json()}'", flush=True)
                smaller = make_smaller(programs, case, scratch, arguments.tries)
                if smaller != case:
                    print(f"smaller: scripts/soak --chaos --case '{smaller.to_json()}'")
                return 1
            if arguments.case:
                break
    print(
        f"{1 if arguments.case else arguments.rounds} rounds passed; {deaths} launches died and were named", flush=True
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
