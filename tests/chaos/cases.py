"""A round of chaos, drawn from its seed: a model, its options, and the launches that are to be disturbed."""

import dataclasses
import random

from launches import DrawnCase

# Options that decide the weights. Each trains in a second or two, so that faults and not steps take a round's time.
MODELS = {
    "mlp": ["--data", "synthetic:64", "--hidden", "256", "--layers", "3", "--batch", "8", "--cases", "256"],
    "autoencoder": ["--data", "synthetic:16", "--hidden", "128", "--layers", "2", "--batch", "8", "--cases", "256"],
    "bert-base": ["--data", "synthetic:32", "--layers", "2", "--hidden", "128", "--batch", "2", "--cases", "64"],
    "unet3d": ["--data", "synthetic:32", "--filters", "4", "--cases", "32"],
    "resnet50": ["--edge", "40", "--filters", "4", "--classes", "5", "--batch", "2", "--cases", "64"],
}
OPTIMIZERS = [
    ["--optimizer", "sgd", "--lr", "0.05"],
    ["--optimizer", "adam"],
    ["--optimizer", "adamw", "--clip-norm", "1"],
    ["--optimizer", "lamb"],
]
KFAC = [[], [], ["--staleness", "2"], ["--kfac-storage", "bf16"], ["--factor-dtype", "bf16"], ["--kfac-method", "pi"]]
# Options that change no bit, so every launch of a round draws its own.
TRAVEL = [
    [],
    [],
    ["--no-overlap-gradients"],
    ["--gradient-bucket", "16KiB"],
    ["--gradient-bucket", "64KiB", "--gradient-buffer", "128KiB"],
]
STRATEGIES = [
    ["--kfac-strategy", "comm_opt"],
    ["--kfac-strategy", "mem_opt"],
    ["--kfac-strategy", "owner_reduce"],
    ["--kfac-strategy", "hybrid", "--grad-worker-frac", "1"],
    ["--kfac-strategy", "auto"],
    ["--overlap-factors"],
]


@dataclasses.dataclass
class Launch:
    """One start of the program: how many ranks, under which budget, and the fault that is to strike it."""

    ranks: int
    hosts: int = 1  # more: emulated hosts of one rank each
    budget: float | None = None  # between the floor, 0, and the unconstrained peak, 1
    host_share: float | None = None  # of the unconstrained peak, for pages on the host; the rest goes to disk
    travel: list = dataclasses.field(default_factory=list)
    fault: str | None = None
    moment: float = 0.5  # share of an undisturbed launch's time after which the fault strikes
    victim: int = 0

    def describe(self):
        parts = [f"{self.ranks} rank{'s' * (self.ranks > 1)}" + (f" on {self.hosts} hosts" if self.hosts > 1 else "")]
        if self.budget is not None:
            parts.append(f"budget {self.budget:.2f}")
        if self.host_share is not None:
            parts.append(f"host {self.host_share:.2f}, disk")
        if self.fault:
            parts.append(f"{self.fault} at {self.moment:.2f}, victim {self.victim}")
        return ", ".join(parts + [" ".join(self.travel)] * bool(self.travel))


@dataclasses.dataclass
class Case(DrawnCase):
    seed: int
    options: list
    steps: int
    checkpoint_every: int
    launches: list
    launch_class = Launch

    @property
    def use_kfac(self):
        return "--kfac" in self.options


def draw_case(seed, faults, faults_of_hosts):
    """The case of a seed. `faults` may strike any launch, `faults_of_hosts` those on emulated hosts."""
    chance = random.Random(seed)
    model = chance.choice(list(MODELS))
    options = [
        "--model",
        model,
        *MODELS[model],
        "--deterministic",
        "--seed",
        str(chance.randrange(1000)),
        "--validate-every",
        "1000",
    ]
    if chance.random() < 0.5:
        options += [
            "--kfac",
            "--burn-in",
            str(chance.choice([0, 1, 3])),
            "--factor-interval",
            "2",
            "--inverse-interval",
            "4",
            *chance.choice(KFAC),
        ]
    else:
        options += chance.choice(OPTIMIZERS)
    if chance.random() < 0.2:
        options += ["--amp", "bf16"]
    if chance.random() < 0.2:
        options += ["--accumulate", "2"]
    case = Case(seed, options, chance.randint(6, 14), chance.choice([1, 2, 3]), [])
    for _ in range(chance.choice([1, 1, 2, 2, 3])):
        case.launches.append(_draw_launch(chance, case, faults, faults_of_hosts))
    last = _draw_launch(chance, case, faults, [])
    last.fault = None
    case.launches.append(last)
    # Half of the rounds keep their number of ranks, so that whole runs are compared as well as chains of them.
    if chance.random() < 0.5:
        for launch in case.launches:
            launch.ranks, launch.hosts = case.launches[0].ranks, case.launches[0].hosts
            launch.victim %= launch.ranks
            if launch.fault in faults_of_hosts and launch.hosts == 1:
                launch.fault = "killed"
    return case


def _draw_launch(chance, case, faults, faults_of_hosts):
    launch = Launch(ranks=chance.randint(1, 4), moment=chance.uniform(0, 1.05), travel=[*chance.choice(TRAVEL)])
    launch.fault = chance.choice(faults)
    if faults_of_hosts and chance.random() < 0.08:
        launch.hosts = launch.ranks = 2
        launch.fault = chance.choice(faults_of_hosts)
    if chance.random() < 0.7:
        launch.budget = chance.random() ** 2
        if chance.random() < 0.6:
            launch.host_share = chance.choice([0.02, 0.1, 0.3])
    if case.use_kfac:
        strategy = chance.choice(STRATEGIES)
        if not (strategy == ["--overlap-factors"] and "--accumulate" in case.options):
            launch.travel += strategy
    launch.victim = chance.randrange(launch.ranks)
    return launch


def smaller_cases(case):
    """Simpler cases that may fail as well, the simplest first."""
    launches = case.launches
    for i in range(len(launches) - 1):
        yield dataclasses.replace(case, launches=launches[:i] + launches[i + 1 :])
    plain = {"budget": None, "host_share": None, "travel": [], "hosts": 1}
    for i, launch in enumerate(launches):
        for field, value in plain.items():
            if getattr(launch, field) != value and not (field == "hosts" and launch.fault):
                change = {field: value} | ({"host_share": None} if field == "budget" else {})
                yield dataclasses.replace(
                    case, launches=[*launches[:i], dataclasses.replace(launch, **change), *launches[i + 1 :]]
                )
        if launch.ranks > 1 and launch.hosts == 1:
            fewer = dataclasses.replace(launch, ranks=launch.ranks - 1, victim=min(launch.victim, launch.ranks - 2))
            yield dataclasses.replace(case, launches=[*launches[:i], fewer, *launches[i + 1 :]])
