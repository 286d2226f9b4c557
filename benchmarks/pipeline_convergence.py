#!/usr/bin/env python3
"""What the turns of K-FAC's refreshes do to convergence.

  benchmarks/pipeline_convergence.py [--program build/bin/spillway] [--seeds 3] [--only "autoencoder, together"]
      [--flags="--kl-clip 1e-4"] [--json FILE]

A small BERT and the autoencoder are cut over two ranks. Each is trained with LAMB alone, and with K-FAC whose layers
are renewed in turn (rolling), from the statistics of one step (together), and within one step (at-once), every 5 and
every 10 steps. Losses do not depend on the machine's speed. A loss is the mean of a training's last tenth. `--only`
trains those whose name begins so. `--flags` go to those with K-FAC.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

MODELS = {
    "bert-base": (
        "--model bert-base --data synthetic:32 --layers 4 --hidden 128 --batch 4 --cases 512 "
        "--accumulate 2 --steps 150 --warmup 10"
    ).split(),
    "autoencoder": (
        "--model autoencoder --data synthetic:28 --hidden 256 --layers 4 --batch 32 "
        "--cases 1024 --accumulate 2 --steps 300"
    ).split(),
}
LAMB = ["--optimizer", "lamb", "--lr", "0.01"]
WAYS = {"LAMB": LAMB}
for every in (5, 10):
    for refresh in ("at-once", "rolling", "together"):
        WAYS[f"{refresh}, every {every}"] = [
            "--kfac",
            "--refresh",
            refresh,
            "--factor-interval",
            str(every),
            "--inverse-interval",
            str(every),
        ]


def losses(program, model, flags, seed):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [
            *"mpirun --allow-run-as-root --oversubscribe --bind-to none -np 2".split(),
            program,
            "train",
            *MODELS[model],
            "--pipeline",
            "2",
            "--seed",
            str(seed),
            "--quiet",
            "--json",
            file.name,
            *flags,
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, env=dict(os.environ, OMP_NUM_THREADS="1"), check=False
        )
        if done.returncode != 0:
            return done.stderr.strip().splitlines()[0]
        return json.load(file)["losses"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default="build/bin/spillway")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="train those whose MODEL, WAY begins so")
    parser.add_argument("--flags", default="", help="further flags of the trainings with K-FAC")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    results = {}
    for model in MODELS:
        for way, flags in WAYS.items():
            if not f"{model}, {way}".startswith(arguments.only):
                continue
            ends = []
            for seed in range(1, arguments.seeds + 1):
                more = arguments.flags.split() if "--kfac" in flags else []
                curve = losses(arguments.program, model, [*flags, *more], seed)
                if isinstance(curve, str):
                    print(f"{model}, {way}, seed {seed}: {curve}", file=sys.stderr)
                    continue
                results[f"{model}, {way}, seed {seed}"] = curve
                ends.append(statistics.mean(curve[-len(curve) // 10 :]))
            print(f"{model:12} {way:20} {', '.join(f'{end:.4f}' for end in ends)}", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


main()
