#!/usr/bin/env python3
"""What `spillway plan` predicts, beside what training then takes.

  benchmarks/plan_honesty.py [--program build/bin/spillway] [--steps 30] [--rounds 3] [--worlds 1,2,4] [--json FILE]
      [MODEL…]

Each model is planned under budgets of its own peak, and trained under the same budgets, several times in turn. Kernels
are measured anew for each plan. The fastest plan and the fastest training of each kind count, because a machine is now
and then slow for some seconds. Times are those of the later half of a training, when every kind of step follows its
schedule. With K-FAC every share of gradient workers is trained too, so that the planner's choice can be compared with
the best one.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

MODELS = {
    "unet3d": ["--model", "unet3d", "--edge", "48", "--filters", "8", "--cases", "16"],
    "unet3d+kfac": ["--model", "unet3d", "--edge", "48", "--filters", "8", "--cases", "16", "--kfac"],
    "resnet50+kfac": "--model resnet50 --edge 64 --filters 32 --batch 8 --cases 64 --kfac".split(),
    "bert": "--model bert-base --edge 64 --layers 4 --hidden 256 --batch 4 --cases 64".split(),
    "autoencoder+kfac": ["--model", "autoencoder", "--cases", "1024", "--kfac"],
}
BUDGETS = (None, 90, 75, 60, 50)


def run(command, world, cache):
    environment = dict(os.environ, SPILLWAY_CACHE=cache) if cache else dict(os.environ)
    if world > 1:
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(world), *command]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def planned(program, args, world, cache):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        done = run([program, "plan", *args, "--world", str(world), "--json", file.name], 1, cache)
        if done.returncode not in (0, 3):
            sys.exit(done.stderr)
        return json.load(file)["plan"]


def trained(program, args, world, cache, steps):
    """Seconds of each kind of step, and the counted peak; None where the budget does not fit."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        done = run([program, "train", *args, "--steps", str(steps), "--quiet", "--json", file.name], world, cache)
        if done.returncode == 3:
            return None
        if done.returncode != 0:
            sys.exit(done.stderr)
        result = json.load(file)
    by_kind = {}
    for kind, seconds in list(zip(result["step_kinds"], result["step_seconds"], strict=True))[steps // 2 :]:
        by_kind.setdefault(kind, []).append(seconds)
    return {kind: statistics.median(all) for kind, all in by_kind.items()}, result["peak_bytes"]


def mean_step(kinds, by_kind):
    """The mean of the measured kinds by the plan's shares, and the plan's own, over the kinds that were measured."""
    both = [kind for kind in kinds if kind["kind"] in by_kind]
    share = sum(kind["share"] for kind in both)
    return (
        sum(kind["share"] * by_kind[kind["kind"]] for kind in both) / share,
        sum(kind["share"] * kind["step_seconds"] for kind in both) / share,
    )


def fastest(all):
    """The shortest seconds of each kind over trainings or plans."""
    return {kind: min(one[kind] for one in all) for kind in all[0]}


def compare(program, name, world, arguments, rows):
    args = MODELS[name]
    kfac = "--kfac" in args
    peak = None
    for percent in BUDGETS:
        limited, plans, trainings = args, [], {}
        for _ in range(arguments.rounds):
            with tempfile.TemporaryDirectory() as cache:
                if peak is None:
                    peak = planned(program, args, world, cache)["choices"][0]["unconstrained_peak_bytes"]
                limited = args if percent is None else [*args, "--budget", str(peak * percent // 100)]
                plans.append(planned(program, limited, world, cache)["choices"])
                for choice in plans[0]:
                    share = choice["grad_worker_frac"]
                    flags = ["--grad-worker-frac", str(share)] if kfac else []
                    found = trained(program, [*limited, *flags], world, cache, arguments.steps)
                    trainings.setdefault(share, []).append(found)
        tell(name, world, percent, plans, trainings, rows)


def tell(name, world, percent, plans, trainings, rows):
    choices = {}  # by share, of the fastest plan
    for choice in (choice for plan in plans for choice in plan):
        known = choices.setdefault(choice["grad_worker_frac"], choice)
        if choice["feasible"] and choice["step_seconds"] < known["step_seconds"]:
            choices[choice["grad_worker_frac"]] = choice
    chosen = min(choices, key=lambda share: (not choices[share]["feasible"], choices[share].get("step_seconds")))
    for share, found in sorted(trainings.items(), reverse=True):
        choice = choices[share]
        title = f"{name:18} {world} {percent or 100:3}% f={share:<5}"
        if None in found or not choice["feasible"]:
            print(
                f"{title} {'does not fit' if None in found else 'trains'}, "
                f"planned {'to fit' if choice['feasible'] else 'not to fit'}"
            )
            continue
        seconds, predicted = mean_step(choice["kinds"], fastest([by_kind for by_kind, _ in found]))
        measured_peak = max(peak for _, peak in found)
        rows.append(
            {
                "model": name,
                "world": world,
                "budget_percent": percent,
                "share": share,
                "seconds": seconds,
                "predicted_seconds": predicted,
                "peak_bytes": measured_peak,
                "predicted_peak_bytes": choice["peak_bytes"],
                "chosen": share == chosen,
            }
        )
        print(
            f"{title} step {seconds * 1e3:8.1f} ms, predicted {predicted * 1e3:8.1f} ms "
            f"({predicted / seconds - 1:+.1%}); peak {choice['peak_bytes'] / measured_peak - 1:+.2%}"
            f"{'  chosen' if share == chosen and len(trainings) > 1 else ''}",
            flush=True,
        )


def summarize(rows):
    errors = [abs(row["predicted_seconds"] / row["seconds"] - 1) for row in rows]
    peaks = [row["predicted_peak_bytes"] / row["peak_bytes"] - 1 for row in rows]
    print(
        f"\n{len(rows)} trainings; step time: median error {statistics.median(errors):.1%}, worst {max(errors):.1%}; "
        f"peak: {min(peaks):+.2%} to {max(peaks):+.2%}"
    )
    for world in sorted({row["world"] for row in rows}):
        of_world = [abs(row["predicted_seconds"] / row["seconds"] - 1) for row in rows if row["world"] == world]
        print(f"  world {world}: median error {statistics.median(of_world):.1%}, worst {max(of_world):.1%}")
    groups = {}
    for row in rows:
        groups.setdefault((row["model"], row["world"], row["budget_percent"]), []).append(row)
    ratios = [
        next(row["seconds"] for row in group if row["chosen"]) / min(row["seconds"] for row in group)
        for group in groups.values()
        if len(group) > 1 and any(row["chosen"] for row in group)
    ]
    if ratios:
        print(
            f"  the chosen share beside the best one: median {statistics.median(ratios):.3f}, worst {max(ratios):.3f}, "
            f"{len(ratios)} choices"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default="build/bin/spillway")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worlds", default="1,2,4")
    parser.add_argument("--json")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    arguments = parser.parse_args()
    rows = []
    for name in arguments.models or MODELS:
        for world in map(int, arguments.worlds.split(",")):
            compare(arguments.program, name, world, arguments, rows)
    summarize(rows)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
