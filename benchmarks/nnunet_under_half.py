#!/usr/bin/env python3
"""Steps of nnU-Net's training on the CPU: stock nnU-Net, and Spillway's trainer under shares of the peak.

  PYTHONPATH=build/python benchmarks/nnunet_under_half.py [--edge 64] [--steps 5] [--rounds 3] [--shares 50,35]

Needs nnunetv2 beside torch 2.11. The data are tests/python/nnunet_test.py's: crops of a head of Debian's package
mricron-data, or numpy's. The network is nnU-Net's own with half its features. Runs take turns, and the fastest step of
each counts, because a shared machine's speed changes. Augmentation is not timed. Where operators are split, losses
differ from stock nnU-Net's by rounding; the runs "unsplit" have its bits.
"""

import argparse
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "python"))
import nnunet_test


def steps(work, trainer_name, count, budget=None, split=""):
    """Trains for `count` steps. Returns the seconds of each, the losses, and the figures of a Session."""
    import torch
    from nnunetv2.run.run_training import get_trainer_from_args

    result = {}

    def train():
        trainer = get_trainer_from_args(
            nnunet_test.DATASET, "3d_fullres", 0, trainer_name, nnunet_test.PLANS, device=torch.device("cpu")
        )
        trainer.disable_checkpointing = True
        trainer.on_train_start()
        trainer.on_train_epoch_start()
        result["seconds"], result["losses"] = [], []
        for _ in range(count):
            batch = next(trainer.dataloader_train)
            start = time.perf_counter()
            result["losses"].append(float(trainer.train_step(batch)["loss"]))
            result["seconds"].append(time.perf_counter() - start)
        if budget:
            result["stats"] = trainer.session.stats()
            trainer.close_session()

    work.call(train, **({"SPILLWAY_BUDGET": budget, "SPILLWAY_SPLIT": split} if budget else {}))
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--edge", type=int, default=64, help="voxels of a patch's edge")
    parser.add_argument("--steps", type=int, default=5, help="steps of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shares", default="50,35", help="budgets, in per cent of the peak")
    arguments = parser.parse_args()
    if nnunet_test.MISSING:
        sys.exit(nnunet_test.MISSING)
    with tempfile.TemporaryDirectory() as folder:
        work = nnunet_test.Workshop(pathlib.Path(folder))
        work.make(patch=(arguments.edge,) * 3, shape=(arguments.edge + 8,) * 3)
        stats = steps(work, "PagedTrainer", 2, "none")["stats"]
        peak, floor = stats["peak_bytes"], stats["floor_bytes"]
        print(f"peak {peak / 2**20:.0f} MiB, floor {floor / 2**20:.0f} MiB = {100 * floor / peak:.0f} %", flush=True)
        runs = {"stock": ("StockTrainer",), "no budget": ("PagedTrainer", "none")}
        for share in arguments.shares.split(","):
            runs[f"{share} %"] = "PagedTrainer", str(peak * int(share) // 100)
        runs["no budget, unsplit"] = "PagedTrainer", "none", "none"
        runs["50 %, unsplit"] = "PagedTrainer", str(peak // 2), "none"
        seconds, last = {name: [] for name in runs}, {}
        for _ in range(arguments.rounds):
            for name, (trainer, *options) in runs.items():
                last[name] = steps(work, trainer, arguments.steps, *options)
                seconds[name] += last[name]["seconds"]
    best = {name: min(all_of) for name, all_of in seconds.items()}
    print(f"{'budget':>20}{'step':>9}{'/ stock':>9}{'/ none':>8}{'peak':>10}{'waited a step':>15}{'loss, off by':>14}")
    for name, run in last.items():
        off = max(abs(a - b) / abs(b) for a, b in zip(run["losses"], last["stock"]["losses"], strict=True))
        line = f"{name:>20}{best[name]:7.2f} s{best[name] / best['stock']:9.2f}{best[name] / best['no budget']:8.2f}"
        if stats := run.get("stats"):
            waited = stats["exposed_seconds"] / arguments.steps
            line += f"{stats['peak_bytes'] / 2**20:6.0f} MiB{waited:13.3f} s{off:14.1e}"
        print(line)


if __name__ == "__main__":
    main()
