"""What a Session costs a Python program: importing, each operator, and steps of MONAI's networks under half their peak.

    PYTHONPATH=build/python python benchmarks/python_session.py [--edge 96] [--filters 16] [--rounds 8]
        [--only overhead] [--split none]

Needs monai. Plain PyTorch, a Session without a budget and one of half the peak take turns, a step each, in processes of
their own, after six steps in which Sessions settle. Ratios are medians of neighbors. `--split none` keeps operators
whole, so that all have the same bits; `--split 224MiB`, the default of a Session, runs large ones in windows.
"""

import argparse
import contextlib
import multiprocessing
import statistics
import subprocess
import sys
import time

import torch

import spillway

MIB = 1 << 20
WARM_UP = 6


def import_seconds():
    """Returns the seconds that `import spillway` takes after torch, the least of five."""
    code = (
        "import time, torch, torch.distributed; t = time.perf_counter(); "
        "import spillway; print(time.perf_counter() - t)"
    )
    return min(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(5))


def microseconds_of_an_operator(calls=1_000, bursts=40, rounds=5):
    """Returns the least times of adding to a small tensor, because the machine's other work only adds to them.

    They are those without a Session, inside one, in its first step (recorded) and in a later one (planned).
    """
    x, y = torch.zeros(4), torch.ones(4)

    def per_call():
        least = float("inf")
        for _ in range(bursts):
            began = time.perf_counter()
            for _ in range(calls):
                x.add_(y)
            least = min(least, time.perf_counter() - began)
        return 1e6 * least / calls

    plain, inside, first, later = [per_call() for _ in range(rounds)], [], [], []  # between Sessions more is recorded
    for _ in range(rounds):
        with spillway.Session() as session:
            inside.append(per_call())
            steps = []
            for _ in range(3):
                with session.step():
                    steps.append(per_call())
            first.append(steps[0])
            later.append(steps[-1])
    return [min(each) for each in (plain, inside, first, later)]


def make_network(name, filters):
    from monai.networks import nets

    if name == "SegResNet":
        return nets.SegResNet(3, filters, 1, 2)
    widths = [filters * 2**i for i in range(4)]
    return nets.DynUNet(3, 1, 2, [3] * 4, [1, 2, 2, 2], [2] * 3, filters=widths)


class Training:
    """A network in training on random voxels."""

    def __init__(self, name, edge, filters):
        import monai

        torch.manual_seed(0)
        self.model = make_network(name, filters)
        self.optimizer = spillway.optim.Adam(self.model.parameters(), 1e-3)
        self.loss = monai.losses.DiceCELoss(to_onehot_y=True, softmax=True)
        self.image, self.label = torch.randn(1, 1, edge, edge, edge), torch.randint(0, 2, (1, 1, edge, edge, edge))

    def step(self):
        self.optimizer.zero_grad()
        loss = self.loss(self.model(self.image), self.label)
        loss.backward()
        self.optimizer.step()
        return loss.item()


def answer_steps(pipe, options, training):
    """A process's work: each message asks for a step, and is answered by its seconds, its loss and the bytes held."""
    training = Training(*training)
    session = spillway.Session(**options) if options is not None else None
    with session or contextlib.nullcontext():
        while pipe.recv():
            began = time.perf_counter()
            with session.step() if session else contextlib.nullcontext():
                loss = training.step()
            took = time.perf_counter() - began
            pipe.send((took, loss, session.stats()["peak_bytes"] if session else 0))


def compare(name, args):
    split = None if args.split == "none" else args.split
    training = (name, args.edge, args.filters)
    seen = spillway.observe(Training(*training).step, split=split)
    half = max(seen.peak_bytes // 2, seen.floor_bytes + seen.floor_bytes // 20)
    runs = {"plain": None, "no budget": {"split": split}, "half": {"split": split, "budget": half}}
    context = multiprocessing.get_context("spawn")
    pipes, processes, answers = {}, [], {key: [] for key in runs}
    for key, options in runs.items():
        pipes[key], theirs = context.Pipe()
        processes.append(context.Process(target=answer_steps, args=(theirs, options, training), daemon=True))
        processes[-1].start()
        theirs.close()  # so that a process that dies ends the wait for its answer
    for _ in range(WARM_UP + args.rounds):
        for key, pipe in pipes.items():
            pipe.send(True)
            answers[key].append(pipe.recv())
    for pipe, process in zip(pipes.values(), processes, strict=True):
        pipe.send(False)
        process.join()
    seconds = {key: [took for took, _, _ in each[WARM_UP:]] for key, each in answers.items()}
    losses = {key: [loss for _, loss, _ in each] for key, each in answers.items()}
    ratio = {key: statistics.median(b / a for a, b in zip(seconds["plain"], seconds[key], strict=True)) for key in runs}
    print(
        f"{name}: peak {seen.peak_bytes / MIB:.0f} MiB; step {statistics.median(seconds['plain']):.2f} s plain, "
        f"no budget {ratio['no budget']:.3f} x, {half / MIB:.0f} MiB {ratio['half']:.3f} x, "
        f"held {answers['half'][-1][2] / MIB:.0f} MiB; the same losses as plain: {losses['plain'] == losses['half']}, "
        f"as without a budget: {losses['no budget'] == losses['half']}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--edge", type=int, default=96)
    parser.add_argument("--filters", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--split", default="none")
    parser.add_argument("--only", choices=["overhead", "networks"])
    args = parser.parse_args()
    if args.only != "networks":
        print(f"import: {1e3 * import_seconds():.0f} ms beyond torch's")
        plain, inside, first, later = microseconds_of_an_operator()
        print(
            f"operator: {plain:.2f} us plain, {inside - plain:+.2f} us in a Session, "
            f"{first - plain:+.2f} us in its first step, {later - plain:+.2f} us in a later one"
        )
    if args.only != "overhead":
        for name in ("DynUNet", "SegResNet"):
            compare(name, args)


if __name__ == "__main__":
    main()
