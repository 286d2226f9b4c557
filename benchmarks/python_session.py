"""What a Session costs a Python program: importing, each operator, and steps of MONAI's networks under half their peak.

    PYTHONPATH=build/python python benchmarks/python_session.py [--edge 96] [--filters 16] [--rounds 3] [--only overhead]

Needs monai. Plain PyTorch, a Session without a budget and one of half the peak take turns, a step each, after two steps
that do not count. Ratios are medians of neighbors.
"""

import argparse
import contextlib
import statistics
import subprocess
import sys
import time

import torch

import spillway

MIB = 1 << 20


def import_seconds():
    """Returns the seconds that `import spillway` takes after torch, the least of five."""
    code = "import time, torch, torch.distributed; t = time.perf_counter(); import spillway; print(time.perf_counter() - t)"
    return min(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(5))


def microseconds_of_an_operator(calls=20_000, rounds=9):
    """Returns the medians without a Session, inside one, and inside a step of one, of adding to a small tensor."""
    x = torch.zeros(4)

    def per_call():
        began = time.perf_counter()
        for _ in range(calls):
            x.add_(1)
        return 1e6 * (time.perf_counter() - began) / calls

    plain, inside, in_step = [], [], []
    for _ in range(rounds):
        plain.append(per_call())
        with spillway.Session() as session:
            inside.append(per_call())
            with session.step():
                in_step.append(per_call())
    return [statistics.median(each) for each in (plain, inside, in_step)]


class Run:
    """A network in training, with a Session of its own that is open for a step at a time."""

    def __init__(self, make, edge, budget=None, session=True):
        import monai

        torch.manual_seed(0)
        self.session = spillway.Session(budget=budget) if session else None
        self.model = make()
        self.optimizer = spillway.optim.Adam(self.model.parameters(), 1e-3)
        self.loss = monai.losses.DiceCELoss(to_onehot_y=True, softmax=True)
        self.image, self.label = torch.randn(1, 1, edge, edge, edge), torch.randint(0, 2, (1, 1, edge, edge, edge))
        self.losses, self.seconds = [], []

    def steps(self, count):
        """Takes steps, of which the last counts."""
        with self.session or contextlib.nullcontext():
            for _ in range(count):
                began = time.perf_counter()
                with self.session.step() if self.session else contextlib.nullcontext():
                    self.optimizer.zero_grad()
                    loss = self.loss(self.model(self.image), self.label)
                    loss.backward()
                    self.optimizer.step()
                    self.losses.append(loss.item())
                took = time.perf_counter() - began
            if self.session:
                self.stats = self.session.stats()
        self.seconds.append(took)


def compare(name, make, edge, rounds):
    import monai  # noqa: F401

    seen = spillway.observe(lambda: Run(make, edge, session=False).steps(1))
    half = max(seen.peak_bytes // 2, seen.floor_bytes + seen.floor_bytes // 20)
    runs = {"plain": Run(make, edge, session=False), "none": Run(make, edge), "half": Run(make, edge, half)}
    for _ in range(rounds):
        for run in runs.values():
            run.steps(4)  # a Session plans anew when it opens: on demand, then by schedules that settle
    median = {key: statistics.median(run.seconds) for key, run in runs.items()}
    ratio = {key: statistics.median(b / a for a, b in zip(runs["plain"].seconds, runs[key].seconds, strict=True))
             for key in ("none", "half")}
    same = runs["plain"].losses == runs["half"].losses == runs["none"].losses
    print(f"{name}: peak {seen.peak_bytes / MIB:.0f} MiB; step {median['plain']:.2f} s plain, no budget {ratio['none']:.3f} x, "
          f"{half / MIB:.0f} MiB {ratio['half']:.3f} x; held {runs['half'].stats['peak_bytes'] / MIB:.0f} MiB; "
          f"the same bits: {same}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--edge", type=int, default=96)
    parser.add_argument("--filters", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["overhead", "networks"])
    args = parser.parse_args()
    if args.only != "networks":
        print(f"import: {1e3 * import_seconds():.0f} ms beyond torch's")
        plain, inside, in_step = microseconds_of_an_operator()
        print(f"operator: {plain:.2f} us plain, {inside - plain:+.2f} us in a Session, {in_step - plain:+.2f} us in a step")
    if args.only != "overhead":
        from monai.networks import nets

        widths = [args.filters * 2**i for i in range(4)]
        compare("DynUNet", lambda: nets.DynUNet(3, 1, 2, [3] * 4, [1, 2, 2, 2], [2] * 3, filters=widths), args.edge, args.rounds)
        compare("SegResNet", lambda: nets.SegResNet(3, args.filters, 1, 2), args.edge, args.rounds)


if __name__ == "__main__":
    main()
