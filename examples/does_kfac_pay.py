#!/usr/bin/env python3
"""Does second order pay? K-FAC at its defaults against Adam at the best of five learning rates.

    python3 examples/does_kfac_pay.py --out pays            # both problems, about 10 minutes on 2 cores
    python3 examples/does_kfac_pay.py --out pays --only autoencoder

The same seeds, data, weights and order of cases for all; losses are means over the last 5 steps. For every learning
rate of Adam the median over seeds of the steps to a target counts, and the best of them stands beside K-FAC's median.
Writes DIR/PROBLEM_SEED/report.html, which draws every curve, and DIR/PROBLEM_SEED.json. Prints, for each problem, lines
such as

    loss    K-FAC steps, s     Adam steps, s, lr    steps  seconds
    -0.8          36, 14.4        65, 10.5, 0.03      55%     137%
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
        "steps": 80, "rates": [0.001, 0.003, 0.01, 0.03, 0.1], "targets": [-0.5, -0.6, -0.7, -0.75, -0.8]},
    "autoencoder": {
        "about": "cross entropy of curves of 28², batch 128, in nats",
        "flags": [],
        "steps": 600, "rates": [0.0001, 0.0003, 0.001, 0.003, 0.01], "targets": [135, 130, 125, 120]}}
WINDOW = 5
END = 10


def smoothed(losses):
    return [statistics.fmean(losses[max(0, i + 1 - WINDOW):i + 1]) for i in range(len(losses))]


def reach(run, target):
    """(steps, seconds) until the smoothed loss is at the target; infinite where it never is."""
    for i, loss in enumerate(smoothed(run["losses"])):
        if i + 1 >= WINDOW and loss <= target:
            return i + 1, sum(run["step_seconds"][:i + 1])
    return math.inf, math.inf


def median_reach(runs, target):
    """Of several seeds, the one with the median number of steps."""
    return sorted(reach(run, target) for run in runs)[(len(runs) - 1) // 2]


def final(run):
    return statistics.fmean(run["losses"][-END:])


def train(arguments, name, problem, seed):
    file = arguments.out / f"{name}_{seed}.json"
    if not file.exists() or json.loads(file.read_text())["steps"] != problem["steps"]:
        command = [arguments.program, "train", "--model", name, *problem["flags"], "--steps", problem["steps"], "--seed", seed,
                   "--kfac", "--report", arguments.out / f"{name}_{seed}", "--json", file, "--quiet"]
        for rate in problem["rates"]:
            command += ["--compare", f"adam@{rate}"]
        subprocess.run([str(part) for part in command], check=True)
    return json.loads(file.read_text())


def show(reached, rate=None):
    steps, seconds = reached
    if math.isinf(steps):
        return "never"
    return f"{steps}, {seconds:.1f}" + (f", {rate:g}" if rate else "")


def compare(arguments, name, problem):
    runs = [train(arguments, name, problem, seed) for seed in range(1, arguments.seeds + 1)]
    adam = {rate: [run["compared"][f"adam@{rate}"] for run in runs] for rate in problem["rates"]}
    print(f"{name}: {problem['about']}; {len(runs)} seed(s)")
    print(f"{'loss':>8}{'K-FAC steps, s':>18}{'Adam steps, s, lr':>22}{'steps':>9}{'seconds':>9}")
    for target in problem["targets"]:
        mine = median_reach(runs, target)
        best, rate = min((median_reach(each, target), rate) for rate, each in adam.items())
        both = not math.isinf(mine[0]) and not math.isinf(best[0])
        ratios = f"{mine[0] / best[0]:9.0%}{mine[1] / best[1]:9.0%}" if both else ""
        print(f"{target:8g}{show(mine):>18}{show(best, rate):>22}{ratios}")
    mine = statistics.median(final(run) for run in runs)
    best, rate = min((statistics.median(final(run) for run in each), rate) for rate, each in adam.items())
    print(f"  mean of the last {END} of {problem['steps']} steps: K-FAC {mine:.4g}, Adam {best:.4g} at {rate:g}")
    metric = next(iter(runs[0]["metrics"]))
    mine = statistics.median(run["metrics"][metric] for run in runs)
    best, rate = max((statistics.median(run["metrics"][metric] for run in each), rate) for rate, each in adam.items())
    print(f"  {metric} on held-out cases at the end: K-FAC {mine:.3f}, Adam {best:.3f} at {rate:g}")
    print(f"  curves: {arguments.out}/{name}_1/report.html", flush=True)


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=pathlib.Path, default=root / "build/bin/spillway")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder; runs that it has are not repeated")
    parser.add_argument("--only", choices=list(PROBLEMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="of every run; default 80 for unet3d, 600 for autoencoder")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, problem in PROBLEMS.items():
        if arguments.only in (None, name):
            compare(arguments, name, {**problem, "steps": arguments.steps or problem["steps"]})


if __name__ == "__main__":
    main()
