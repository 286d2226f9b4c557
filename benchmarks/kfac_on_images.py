#!/usr/bin/env python3
"""K-FAC beside SGD, AdamW, Muon and SOAP at their best rates, on real images: steps and seconds.

    sudo apt-get install dataset-fashion-mnist
    PYTHONPATH=build/python python3 benchmarks/kfac_on_images.py --out resnet20.json
    PYTHONPATH=build/python python3 benchmarks/kfac_on_images.py --model resnet50 --batch 512 --steps 150 --seeds 3

Every rival has as many rates, tried on seed 0, which counts no further; the best one has the least mean loss over the
last tenth of its steps. K-FAC has one trial a seed, with Nesterov's momentum as SGD has. The rival `kaisa` is K-FAC
with that paper's settings. Within a seed all methods have the same weights and batches, and their steps take turns, so
that a machine's moods hit all of them. A loss is the mean of 20 steps. For each rival the program prints K-FAC's steps,
and K-FAC's seconds, to the loss that the rival has after 80 % of its steps, over the rival's own.
"""

import argparse
import gzip
import itertools
import json
import math
import pathlib
import statistics
import time
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

import spillway

RATES = {
    "sgd": [0.03, 0.1, 0.3],
    "adamw": [0.003, 0.01, 0.03],
    "muon": [0.02, 0.05, 0.1],
    "soap": [0.003, 0.01, 0.03],
    "kaisa": [0.03, 0.1, 0.3],
}
# K-FAC with the settings and the convention of KAISA (Pauloski et al. 2021).
KAISA = {
    "convention": "kaisa",
    "absolute_damping": 0.003,
    "kl_clip": 0.001,
    "decay": 0.95,
    "factor_interval": 10,
    "inverse_interval": 100,
    "factor_samples": "exact",
    "rank": "full",
}
REST_RATE = 0.01  # of AdamW for norms, biases and the head beside Muon and SOAP
WARM_UP = 20  # steps
WINDOW = 20  # steps of a mean loss


# --- data and models


def read_images(folder: pathlib.Path) -> tuple[Tensor, Tensor]:
    """Returns the training images [60000, 1, 28, 28], of mean 0 and deviation 1, and their classes."""

    def read(name: str, header: int) -> Tensor:
        return torch.frombuffer(bytearray(gzip.open(folder / name).read()[header:]), dtype=torch.uint8)

    images = read("train-images-idx3-ubyte.gz", 16).view(-1, 1, 28, 28).float()
    return (images - images.mean()) / images.std(), read("train-labels-idx1-ubyte.gz", 8).long()


def conv(ins: int, outs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    layer = nn.Conv2d(ins, outs, kernel, stride, kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(layer, nn.BatchNorm2d(outs))


class Residual(nn.Module):
    """Layers with a shortcut: the input itself, its every other position and channels of zeros, or a projection."""

    def __init__(self, layers: list[nn.Module], stride: int, missing: int, projection: nn.Module | None = None) -> None:
        super().__init__()
        self.layers, self.projection = nn.Sequential(*layers), projection
        self.stride, self.missing = stride, missing

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x)
        if self.projection is not None:
            return functional.relu(y + self.projection(x))
        half = self.missing // 2
        x = x[:, :, :: self.stride, :: self.stride]
        return functional.relu(y + functional.pad(x, (0, 0, 0, 0, half, self.missing - half)))


def small_resnet(depth: int, width: int) -> nn.Module:
    """He et al. 2016, section 4.2, shortcuts of option A: ResNet-20 or 32."""
    parts: list[nn.Module] = [conv(1, width, 3), nn.ReLU()]
    ins = width
    for outs in (width, 2 * width, 4 * width):
        for _ in range((depth - 2) // 6):
            stride = 2 if outs > ins else 1
            parts.append(Residual([conv(ins, outs, 3, stride), nn.ReLU(), conv(outs, outs, 3)], stride, outs - ins))
            ins = outs
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(ins, 10))


def resnet50(width: int) -> nn.Module:
    """ResNet-50 with a first convolution of 3 x 3, without max pooling."""
    parts: list[nn.Module] = [conv(1, width, 3), nn.ReLU()]
    ins = width
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner, outs = width << stage, 4 * width << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            layers = [conv(ins, inner, 1), nn.ReLU(), conv(inner, inner, 3, stride), nn.ReLU(), conv(inner, outs, 1)]
            parts.append(Residual(layers, stride, 0, conv(ins, outs, 1, stride) if ins != outs else nn.Identity()))
            ins = outs
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(ins, 10))


def mlp(width: int) -> nn.Module:
    sizes = [784, width, width, 10]
    layers: list[nn.Module] = [nn.Flatten()]
    for ins, outs in itertools.pairwise(sizes):
        layers += [nn.Linear(ins, outs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet20": lambda: small_resnet(20, 8),
    "resnet32": lambda: small_resnet(32, 8),
    "resnet50": lambda: resnet50(8),
    "mlp": lambda: mlp(256),
}


# --- rivals, of matrices [out, rest]


class Muon(torch.optim.Optimizer):
    """Jordan et al. 2024: Nesterov's momentum, orthogonalized by five Newton-Schulz iterations."""

    def __init__(self, params: Iterable[Tensor], lr: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": 0.95})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                mean = self.state[weight].setdefault("mean", torch.zeros_like(weight))
                mean.lerp_(weight.grad, 1 - group["momentum"])
                x = weight.grad.lerp(mean, group["momentum"]).flatten(1)
                rows, columns = x.shape
                x = x.T if rows > columns else x
                x = x / (x.norm() + 1e-7)
                for _ in range(5):
                    gram = x @ x.T
                    x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
                x = x.T if rows > columns else x
                weight.add_(x.view_as(weight), alpha=-group["lr"] * math.sqrt(max(1, rows / columns)))


class Soap(torch.optim.Optimizer):
    """Vyas et al. 2024: Adam in the eigenbases of Shampoo's two matrices, followed by QR every ten steps."""

    def __init__(self, params: Iterable[Tensor], lr: float) -> None:
        super().__init__(params, {"lr": lr, "beta": 0.95, "every": 10})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                self.update(weight, self.state[weight], group["lr"], group["beta"], group["every"])

    @staticmethod
    def update(weight: Tensor, state: dict, lr: float, beta: float, every: int) -> None:
        grad = weight.grad.flatten(1)
        products = grad @ grad.T, grad.T @ grad
        if not state:  # the first step only starts the matrices
            state.update(steps=0, sums=list(products), mean=torch.zeros_like(grad), square=torch.zeros_like(grad))
            state["bases"] = [torch.linalg.eigh(product)[1].flip(1) for product in products]
            return
        state["steps"] += 1
        left, right = state["bases"]
        state["mean"].lerp_(grad, 1 - beta)
        turned = left.T @ grad @ right
        state["square"].lerp_(turned * turned, 1 - beta)
        bias = 1 - beta ** state["steps"]
        step = (left.T @ state["mean"] @ right / bias) / ((state["square"] / bias).sqrt() + 1e-8)
        weight.sub_((left @ step @ right.T).view_as(weight), alpha=lr)
        for total, product in zip(state["sums"], products, strict=True):
            total.lerp_(product, 1 - beta)
        if state["steps"] % every == 0:
            for side, (total, basis) in enumerate(zip(state["sums"], state["bases"], strict=True)):
                order = (basis * (total @ basis)).sum(0).argsort(descending=True)
                state["square"] = state["square"].index_select(side, order)
                state["bases"][side] = torch.linalg.qr(total @ basis[:, order])[0]


# --- a contest


class Entrant:
    """A model and the method that trains it."""

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        method: str,
        rate: float,
        seed: int,
        kfac_options: dict | None = None,
        nesterov: bool = True,
    ) -> None:
        torch.manual_seed(seed)
        self.name, self.rate, self.model = method, rate, make_model()
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.kfac: spillway.KFAC | None = None
        weights = list(self.model.parameters())
        if method in ("muon", "soap"):
            head = next(reversed([m for m in self.model.modules() if isinstance(m, nn.Linear)])).weight
            matrices = [weight for weight in weights if weight.dim() > 1 and weight is not head]
            rest = [weight for weight in weights if weight.dim() == 1 or weight is head]
            own = Muon(matrices, rate) if method == "muon" else Soap(matrices, rate)
            self.optimizers = [own, torch.optim.AdamW(rest, REST_RATE, weight_decay=0)]
        elif method == "adamw":
            self.optimizers = [torch.optim.AdamW(weights, rate, weight_decay=0)]
        else:
            self.optimizers = [torch.optim.SGD(weights, rate, momentum=0.9, nesterov=nesterov and method != "kaisa")]
        if method in ("kfac", "kaisa"):
            options = KAISA if method == "kaisa" else kfac_options or {}
            self.kfac = spillway.KFAC(self.model, self.optimizers[0], **options)
        self.rates = [optimizer.param_groups[0]["lr"] for optimizer in self.optimizers]

    def step(self, images: Tensor, classes: Tensor, share_of_rate: float) -> None:
        start = time.perf_counter()
        for optimizer, rate in zip(self.optimizers, self.rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * share_of_rate
            optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(images), classes)
        loss.backward()
        if self.kfac:
            self.kfac.step()
        for optimizer in self.optimizers:
            optimizer.step()
        self.losses.append(loss.item())
        self.seconds.append(time.perf_counter() - start)

    def smooth_losses(self) -> list[float]:
        means = []
        for step in range(1, len(self.losses) + 1):
            last = self.losses[max(0, step - WINDOW) : step]
            means.append(sum(last) / len(last))
        return means


def run(entrants: list[Entrant], data: tuple[Tensor, Tensor], args: argparse.Namespace, seed: int) -> None:
    """Trains all of them, step by step in turn."""
    images, classes = data
    order = torch.Generator().manual_seed(seed)
    for step in range(args.steps):
        batch = torch.randint(len(images), (args.batch,), generator=order)
        fall = 1 - step / args.steps if args.schedule == "linear" else 1
        for entrant in entrants:
            entrant.step(images[batch], classes[batch], min(1, (step + 1) / WARM_UP) * fall)


def ratios(kfac: Entrant, rival: Entrant) -> tuple[float, float]:
    """Returns K-FAC's steps and seconds to the rival's loss after 80 % of its steps, over the rival's."""
    steps = math.ceil(0.8 * len(rival.losses))
    target = rival.smooth_losses()[steps - 1]
    reached = [step for step, loss in enumerate(kfac.smooth_losses(), 1) if step >= WINDOW and loss <= target]
    if not reached:
        return math.inf, math.inf
    return reached[0] / steps, sum(kfac.seconds[: reached[0]]) / sum(rival.seconds[:steps])


def best_rates(data: tuple[Tensor, Tensor], args: argparse.Namespace) -> dict[str, float]:
    trials = [Entrant(MODELS[args.model], name, rate, 0) for name in args.rivals for rate in RATES[name]]
    run(trials, data, args, 0)
    tail = max(1, args.steps // 10)

    def final(trial: Entrant) -> float:
        mean = statistics.fmean(trial.losses[-tail:])
        return mean if math.isfinite(mean) else math.inf

    return {name: min((t for t in trials if t.name == name), key=final).rate for name in args.rivals}


def print_table(
    rows: dict[str, list[tuple[float, float]]], rates: dict[str, float], step: dict[str, float], kfac_rate: float
) -> None:
    print("rival        rate  steps, median  worst   seconds, median  worst   a step / SGD's")
    for name, found in rows.items():
        steps, seconds = zip(*found, strict=True)
        print(
            f"{name:9} {rates[name]:7g} {statistics.median(steps):14.2f} {max(steps):6.2f} "
            f"{statistics.median(seconds):17.2f} {max(seconds):6.2f} {step[name]:16.2f}"
        )
    print(f"kfac      {kfac_rate:7g} {'':47} {step['kfac']:16.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--model", choices=MODELS, default="resnet20")
    parser.add_argument("--rivals", nargs="+", choices=RATES, default=["sgd", "adamw", "muon", "soap"])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--schedule", choices=["constant", "linear"], default="constant")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--kfac-rate", type=float, default=0.01)
    parser.add_argument("--kfac", type=json.loads, default={}, help="options of spillway.KFAC, a JSON object")
    parser.add_argument("--plain-momentum", action="store_true", help="K-FAC's momentum is not Nesterov's")
    parser.add_argument("--rates", type=pathlib.Path, help="takes the rivals' best rates from this --out of before")
    parser.add_argument("--out", type=pathlib.Path, help="also writes every loss and time to this file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    data = read_images(args.data)
    if args.rates:
        found = json.loads(args.rates.read_text())["rates"]
        rates = {name: found[name] for name in args.rivals}
    else:
        rates = best_rates(data, args)
    rows: dict[str, list[tuple[float, float]]] = {name: [] for name in args.rivals}
    seconds: dict[str, list[float]] = {name: [] for name in [*args.rivals, "kfac"]}
    curves = []
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        entrants = [Entrant(MODELS[args.model], name, rate, seed) for name, rate in rates.items()]
        kfac = Entrant(MODELS[args.model], "kfac", args.kfac_rate, seed, args.kfac, not args.plain_momentum)
        entrants.append(kfac)
        run(entrants, data, args, seed)
        for entrant in entrants:
            seconds[entrant.name].append(statistics.fmean(entrant.seconds[WINDOW:]))
            curves.append(
                {
                    "method": entrant.name,
                    "rate": entrant.rate,
                    "seed": seed,
                    "losses": entrant.losses,
                    "seconds": entrant.seconds,
                }
            )
        for rival in entrants[:-1]:
            rows[rival.name].append(ratios(kfac, rival))
    base = statistics.fmean(seconds[args.rivals[0]])
    print_table(rows, rates, {name: statistics.fmean(own) / base for name, own in seconds.items()}, args.kfac_rate)
    if args.out:
        args.out.write_text(json.dumps({"model": args.model, "batch": args.batch, "rates": rates, "curves": curves}))


if __name__ == "__main__":
    main()
