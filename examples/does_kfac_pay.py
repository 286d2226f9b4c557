#!/usr/bin/env python3
"""Does second order pay? K-FAC at its defaults against Adam at the best of five learning rates, on the clock.

    python3 examples/does_kfac_pay.py --out pays            # both problems, about 10 minutes on 2 cores
    python3 examples/does_kfac_pay.py --out pays --only autoencoder --first-seed 4
    python3 examples/does_kfac_pay.py --out pays_in_time --only resnet50 --flags="--kfac-time 20%"

The same seeds, data, weights and order of cases for all; losses are means over the last 5 steps. The first line of a
problem is the wall-clock time to the loss that Adam has after 80 % of its steps, K-FAC's over Adam's, for each seed.
Adam is at the rate whose loss is least there, in the median over seeds; K-FAC has one trial. In the table, for every
learning rate of Adam the median over seeds of the seconds to a target counts, and the best of them stands beside
K-FAC's median. Writes DIR/PROBLEM_SEED/report.html, which draws every curve, and DIR/PROBLEM_SEED.json. Prints, for
each problem, lines such as

  time to the loss of Adam at 0.003 after 480 steps, K-FAC / Adam: 0.41 0.32 0.36, median 0.36, worst 0.41
    loss      K-FAC s, steps       Adam s, steps, lr  seconds    steps
     130             0.7, 58         1.8, 388, 0.003      39%      15%
"""

import argparse
import json
import math
import pathlib
import statistics
import subprocess

PROBLEMS = {
    "unet3d": {
        "about": "soft Dice loss on phantoms of 32³, batch 4",
        "flags": ["--data", "synthetic:32", "--cases", "40", "--filters", "8", "--batch", "4"],
        "steps": 80,
        "rates": [0.001, 0.003, 0.01, 0.03, 0.1],
        "targets": [-0.5, -0.6, -0.7, -0.75, -0.8],
    },
    "autoencoder": {
        "about": "cross entropy of curves of 28², batch 128, in nats",
        "flags": [],
        "steps": 600,
        "rates": [0.0001, 0.0003, 0.001, 0.003, 0.01],
        "targets": [135, 130, 125, 120],
    },
}
# They run when --only names them. K-FAC's damping was chosen on their seeds 1 to 4.
OTHERS = {
    "bp3d": {
        "about": "cross entropy of voxels of volumes of 32³, batch 4",
        "flags": ["--data", "synthetic:32", "--filters", "16", "--batch", "4"],
        "steps": 60,
        "rates": [0.0003, 0.001, 0.003, 0.01, 0.03],
        "targets": [0.5, 0.3, 0.2, 0.15],
    },
    "resnet50": {
        "about": "cross entropy of random images of 64², batch 16",
        "flags": ["--data", "synthetic:64", "--filters", "32", "--batch", "16"],
        "steps": 60,
        "rates": [0.0003, 0.001, 0.003, 0.01, 0.03],
        "targets": [2, 1, 0.3, 0.1],
    },
}
WINDOW = 5
END = 10
SHARE = 0.8


def smoothed(losses):
    return [statistics.fmean(losses[max(0, i + 1 - WINDOW) : i + 1]) for i in range(len(losses))]


def reach(run, target):
    """(steps, seconds) until the smoothed loss is at the target; infinite where it never is."""
    for i, loss in enumerate(smoothed(run["losses"])):
        if i + 1 >= WINDOW and loss <= target:
            return i + 1, sum(run["step_seconds"][: i + 1])
    return math.inf, math.inf


def median_reach(runs, target):
    """Of several seeds, the one with the median time."""
    return sorted((reach(run, target) for run in runs), key=lambda reached: reached[1])[(len(runs) - 1) // 2]


def final(run):
    return statistics.fmean(run["losses"][-END:])


def clock(runs, adam, steps):
    """K-FAC's time to the loss of the best Adam after 80 % of its steps, over the time of these, for each seed."""
    at = round(SHARE * steps)
    loss = {rate: [smoothed(run["losses"])[at - 1] for run in each] for rate, each in adam.items()}
    rate = min(loss, key=lambda each: statistics.median(loss[each]))
    pairs = zip(runs, adam[rate], loss[rate], strict=True)
    return rate, at, [reach(mine, target)[1] / sum(other["step_seconds"][:at]) for mine, other, target in pairs]


def train(arguments, name, problem, seed):
    file = arguments.out / f"{name}_{seed}.json"
    if not file.exists() or json.loads(file.read_text())["steps"] != problem["steps"]:
        command = [
            arguments.program,
            "train",
            "--model",
            name,
            *problem["flags"],
            "--steps",
            problem["steps"],
            "--seed",
            seed,
            "--kfac",
            *arguments.flags.split(),
            "--report",
            arguments.out / f"{name}_{seed}",
            "--json",
            file,
            "--quiet",
        ]
        for rate in problem["rates"]:
            command += ["--compare", f"adam@{rate}"]
        subprocess.run([str(part) for part in command], check=True)
    return json.loads(file.read_text())


def show(reached, rate=None):
    steps, seconds = reached
    if math.isinf(steps):
        return "never"
    return f"{seconds:.1f}, {steps}" + (f", {rate:g}" if rate else "")


def compare(arguments, name, problem):
    first = arguments.first_seed
    runs = [train(arguments, name, problem, seed) for seed in range(first, first + arguments.seeds)]
    adam = {rate: [run["compared"][f"adam@{rate}"] for run in runs] for rate in problem["rates"]}
    print(f"{name}: {problem['about']}; {len(runs)} seed(s) from {first}")
    rate, at, ratios = clock(runs, adam, problem["steps"])
    print(
        f"  time to the loss of Adam at {rate:g} after {at} steps, K-FAC / Adam: "
        f"{' '.join(f'{r:.2f}' for r in ratios)}, median {statistics.median(ratios):.2f}, worst {max(ratios):.2f}"
    )
    print(f"{'loss':>8}{'K-FAC s, steps':>20}{'Adam s, steps, lr':>24}{'seconds':>9}{'steps':>9}")
    for target in problem["targets"]:
        mine = median_reach(runs, target)
        best, rate = min(
            ((median_reach(each, target), rate) for rate, each in adam.items()), key=lambda each: each[0][1]
        )
        both = not math.isinf(mine[0]) and not math.isinf(best[0])
        ratios = f"{mine[1] / best[1]:9.0%}{mine[0] / best[0]:9.0%}" if both else ""
        print(f"{target:8g}{show(mine):>20}{show(best, rate):>24}{ratios}")
    mine = statistics.median(final(run) for run in runs)
    best, rate = min((statistics.median(final(run) for run in each), rate) for rate, each in adam.items())
    print(f"  mean of the last {END} of {problem['steps']} steps: K-FAC {mine:.4g}, Adam {best:.4g} at {rate:g}")
    metric = next(iter(runs[0]["metrics"]))
    mine = statistics.median(run["metrics"][metric] for run in runs)
    best, rate = max((statistics.median(run["metrics"][metric] for run in each), rate) for rate, each in adam.items())
    print(f"  {metric} on held-out cases at the end: K-FAC {mine:.3f}, Adam {best:.3f} at {rate:g}")
    print(f"  curves: {arguments.out}/{name}_{first}/report.html", flush=True)


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=pathlib.Path, default=root / "build/bin/spillway")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder; runs that it has are not repeated")
    parser.add_argument("--only", choices=[*PROBLEMS, *OTHERS])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--steps", type=int, help="of every run; default 80 for unet3d, 600 for autoencoder, else 60")
    parser.add_argument("--flags", default="", help="further flags of the run with K-FAC; give each its own --out")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    problems = PROBLEMS if arguments.only is None else {arguments.only: {**PROBLEMS, **OTHERS}[arguments.only]}
    for name, problem in problems.items():
        compare(arguments, name, {**problem, "steps": arguments.steps or problem["steps"]})


if __name__ == "__main__":
    main()
