#!/usr/bin/env python3
"""What K-FAC costs in a pipeline: after the passes, and while ranks wait.

  benchmarks/pipeline_kfac.py [--program build/bin/spillway] [--ranks 2] [--rounds 3] [--steps 30] [--accumulate 2,4]
  [--schedule 1f1b] [--budget none] [--also-budget 50%] [--batch 4]
  [--json FILE]

A small BERT is cut over ranks with a core each. Trainings with Adam, with K-FAC after the passes and with K-FAC in the
waits run in turn, and the fastest of each counts, because a machine is now and then slow for some seconds. A training's
time is the mean of whole cycles of its later half. `--also-budget` trains a fourth way: K-FAC in the waits, under that
budget.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

MODEL = ["--model", "bert-base", "--edge", "64", "--layers", "4", "--hidden", "256", "--cases", "128"]
CYCLE = 3
WAYS = {
    "adam": [],
    "after": ["--kfac", "--kfac-work", "after", "--inverse-interval", str(CYCLE)],
    "bubbles": ["--kfac", "--kfac-work", "bubbles", "--inverse-interval", str(CYCLE)],
}


def trained(arguments, flags):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [
            *"mpirun --allow-run-as-root --oversubscribe --bind-to none -np".split(),
            str(arguments.ranks),
            arguments.program,
            "train",
            *MODEL,
            "--batch",
            str(arguments.batch),
            "--pipeline",
            str(arguments.ranks),
            "--schedule",
            arguments.schedule,
            "--steps",
            str(arguments.steps),
            "--quiet",
            "--json",
            file.name,
            *(flags if "--budget" in flags else [*flags, "--budget", arguments.budget]),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, env=dict(os.environ, OMP_NUM_THREADS="1"), check=False
        )
        if done.returncode != 0:
            sys.exit(done.stderr)
        return json.load(file)


def mean_step(result):
    """The mean of the last whole cycles of a training's later half."""
    seconds = result["step_seconds"]
    count = len(seconds) // 2 // CYCLE * CYCLE
    return sum(seconds[-count:]) / count


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default="build/bin/spillway")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--accumulate", default="2,4")
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--budget", default="none")
    parser.add_argument("--also-budget")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    if arguments.also_budget:
        WAYS["limited"] = [*WAYS["bubbles"], "--budget", arguments.also_budget]
    rows = []
    for micro_batches in arguments.accumulate.split(","):
        results = {way: [] for way in WAYS}
        for _ in range(arguments.rounds):
            for way, flags in WAYS.items():
                results[way].append(trained(arguments, [*flags, "--accumulate", micro_batches]))
        best = {way: min(all, key=mean_step) for way, all in results.items()}
        times = {way: mean_step(result) for way, result in best.items()}
        for way in WAYS:
            if way != "adam" and best[way]["weights_sha256"] != best["after"]["weights_sha256"]:
                sys.exit(f"K-FAC, {way}: other weights than after the passes")
        pipeline = best["bubbles"]["pipeline"]
        rows.append(
            {
                "micro_batches": int(micro_batches),
                "seconds": times,
                "filled": pipeline["filled"],
                "peak_bytes": best["bubbles"]["peak_bytes"],
                "by_rank": pipeline["by_rank"],
                "utilization": {way: best[way]["pipeline"]["utilization"] for way in WAYS},
            }
        )
        print(
            f"{micro_batches} micro-batches: Adam {1e3 * times['adam']:.0f} ms, "
            f"K-FAC after the passes {1e3 * times['after']:.0f} ms, in the waits {1e3 * times['bubbles']:.0f} ms: "
            f"{times['after'] / times['bubbles']:.3f} times as fast; "
            f"planned {1e3 * pipeline['filled']['step_seconds']:.0f} ms",
            flush=True,
        )
        if arguments.also_budget:
            exposed = best["limited"]["exposed_copy_seconds"] / sum(best["limited"]["step_seconds"])
            rows[-1]["limited"] = {
                key: best["limited"][key] for key in ("budget_bytes", "peak_bytes", "exposed_copy_seconds")
            }
            print(
                f"  under {arguments.also_budget}: {1e3 * times['limited']:.0f} ms, "
                f"{times['limited'] / times['bubbles']:.3f} times as long, "
                f"{100 * exposed:.1f} % of it waiting for copies; the peak is {best['limited']['peak_bytes'] >> 20} of "
                f"{best['bubbles']['peak_bytes'] >> 20} MiB",
                flush=True,
            )
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


main()
