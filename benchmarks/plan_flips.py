#!/usr/bin/env python3
"""The share of gradient workers that a plan chooses, by the interval between decompositions and by the budget.

  benchmarks/plan_flips.py [--program build/bin/spillway] [PLAN FLAGS…]

Without flags: ResNet-50 on 16 V100s in 4 hosts, whose GPUs share one PCIe link. Nothing is run.
"""

import argparse
import json
import subprocess
import sys
import tempfile

DEFAULT = (
    "--model resnet50 --world 16 --levels 4x4 --device-profile v100 "
    "--devices-per-link 4 --factor-samples exact --kfac-rank full"
).split()
INTERVALS = (1, 10, 100)
BUDGETS = (None, 80, 60, 40)


def planned(program, args):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        done = subprocess.run(
            [program, "plan", *args, "--kfac", "--json", file.name], capture_output=True, text=True, check=False
        )
        if done.returncode not in (0, 3):
            sys.exit(done.stderr)
        return json.load(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default="build/bin/spillway")
    arguments, flags = parser.parse_known_args()
    flags = flags or DEFAULT
    print(f"{'interval':>9}" + "".join(f"{'no budget' if b is None else f'{b} %':>22}" for b in BUDGETS))
    for interval in INTERVALS:
        every = [*flags, "--factor-interval", str(max(1, interval // 10)), "--inverse-interval", str(interval)]
        peak = min(
            choice["unconstrained_peak_bytes"] for choice in planned(arguments.program, every)["unlimited"]["choices"]
        )
        line = f"{interval:9}"
        for budget in BUDGETS:
            limited = every if budget is None else [*every, "--budget", str(peak * budget // 100)]
            best = planned(arguments.program, limited)["plan"]["choices"][0]
            found = (
                f"f={best['grad_worker_frac']:g}, {best['step_seconds'] * 1e3:.0f} ms"
                if best["feasible"]
                else "does not fit"
            )
            line += f"{found:>22}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
