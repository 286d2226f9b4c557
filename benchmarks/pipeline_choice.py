#!/usr/bin/env python3
"""Compares the schedule that is fastest on paper with the fastest one that is measured.

  benchmarks/pipeline_choice.py [--program build/bin/spillway] [--json FILE]

12 cases: 4 and 8 ranks, as many and twice as many micro-batches, and refreshes of K-FAC every 3, 6 and 12 steps. In
each the four schedules that change no bit run with items that sleep (`spillway bench pipeline`). A choice costs what
its measured step takes beyond the shortest measured one.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile

SCHEDULES = "1f1b,gpipe,interleaved,zb-h1"


def rows_of(program, ranks, micro_batches, intervals):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [
            program,
            "bench",
            "pipeline",
            "--ranks",
            str(ranks),
            "--accumulate",
            str(micro_batches),
            "--schedules",
            SCHEDULES,
            "--interval",
            ",".join(map(str, intervals)),
            "--sizes",
            "none",
            "--json",
            file.name,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(done.stderr)
        return json.load(file)["rows"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default="build/bin/spillway")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    cases, errors = [], []
    for ranks, times in itertools.product((4, 8), (1, 2)):
        rows = rows_of(arguments.program, ranks, times * ranks, (3, 6, 12))
        for interval in (3, 6, 12):
            steps = {
                row["schedule"]: (row["predicted"]["step_seconds"], row["measured"]["step_seconds"])
                for row in rows
                if str(row.get("asked_interval")) == str(interval)
            }
            chosen = min(steps, key=lambda schedule: steps[schedule][0])
            best = min(steps, key=lambda schedule: steps[schedule][1])
            errors += [measured / predicted - 1 for predicted, measured in steps.values()]
            cases.append(
                {
                    "ranks": ranks,
                    "micro_batches": times * ranks,
                    "interval": interval,
                    "steps": steps,
                    "chosen": chosen,
                    "best": best,
                    "cost": steps[chosen][1] / steps[best][1] - 1,
                }
            )
            print(
                f"{ranks} ranks, {times * ranks:2} micro-batches, every {interval:2} steps: "
                f"{chosen} of {1e3 * steps[chosen][1]:.1f} ms; "
                f"the fastest is {best}, {100 * cases[-1]['cost']:.1f} % faster",
                flush=True,
            )
    print(
        f"a choice costs {100 * max(case['cost'] for case in cases):.1f} % at most; "
        f"steps take {100 * statistics.median(errors):+.1f} % (median) "
        f"and {100 * max(errors, key=abs):+.1f} % (worst) beside what is predicted"
    )
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(cases, file, indent=1)


main()
