"""One rank of a training that torchrun starts for torchrun_chaos.py: DDP or FSDP2 over the backend `spillway`.

    torchrun … train_rank.py --folder F --notes N --until STEP --seed S --deadline SECONDS
        --store-timeout SECONDS [--sharded] [--sessions] [--child] [--digests]

It goes on from the folder's checkpoint up to a step. The seed decides where Sessions open and close and when messages
are under way. The weights depend on the step and the number of ranks alone, not on Sessions, faults and restarts.

Each rank notes what it begins and when, so that the longest wait of a rank is known even when it is killed in it.
Beside each checkpoint, with --digests after every step, it notes a digest of its weights and moments.
"""

import os
import signal
import time


class Notes:
    """A file `rank.attempt.pid` of lines `seconds words`, by a clock that all processes of the machine share."""

    def __init__(self, folder):
        name = f"{os.environ['RANK']}.{os.environ['TORCHELASTIC_RESTART_COUNT']}.{os.getpid()}"
        self._file = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def add(self, words):
        os.write(self._file, f"{time.monotonic():.3f} {words}\n".encode())


class Struck(Exception):
    """The error that torchrun_chaos.py makes a rank raise, wherever it is."""


def raise_struck(*_):
    raise Struck("this rank was told to fail")


if __name__ == "__main__":  # a fault may come before torch is there
    import argparse

    signal.signal(signal.SIGUSR1, raise_struck)
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    for option in ("--folder", "--notes"):
        parser.add_argument(option, required=True)
    for option in ("--until", "--seed", "--deadline", "--store-timeout"):
        parser.add_argument(option, type=int, required=True)
    for flag in ("--sharded", "--sessions", "--child", "--digests"):
        parser.add_argument(flag, action="store_true")
    options = parser.parse_args()
    notes = Notes(options.notes)
    notes.add("start")

import contextlib  # noqa: E402
import datetime  # noqa: E402
import gc  # noqa: E402
import hashlib  # noqa: E402
import pathlib  # noqa: E402
import random  # noqa: E402

import torch  # noqa: E402
import torch._dynamo  # noqa: E402  both kinds of models import it, for a second, while others would wait
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import spillway  # noqa: E402
import spillway.distributed  # noqa: E402

KIB = 1 << 10
WIDTH, LAYERS = 512, 4
HOST_BUDGET = 2 << 20  # less than the model, so that some of it goes to disk
SCOPES = ("none", "step", "forward", "backward", "steps")  # where a Session is open


class Ring:
    """A message around the ring and a sum, both under way while the step runs, unless a Session makes the sum wait."""

    def __init__(self, rank, size, step):
        self.sum = torch.full((128 * KIB,), float(rank + step))
        self.sent, self.come = torch.full((192 * KIB,), float(rank * 100 + step)), torch.zeros(192 * KIB)
        self.works = [
            dist.irecv(self.come, (rank - 1) % size),
            dist.isend(self.sent, (rank + 1) % size),
            dist.all_reduce(self.sum, async_op=True),
        ]
        self.wanted = (size * (size - 1) / 2 + size * step, (rank - 1) % size * 100 + step)

    def finish(self):
        for work in self.works:
            work.wait()
        if not ((self.sum == self.wanted[0]).all() and (self.come == self.wanted[1]).all()):
            raise AssertionError(
                f"wrong values in a sum or a message: {self.sum[:4]}, {self.come[:4]}, not {self.wanted}"
            )


def group_options():
    # Plans from measured links may differ from launch to launch, and with them the last bits of sums.
    return {
        "timeout": datetime.timedelta(seconds=options.store_timeout),
        "pg_options": spillway.distributed.Options(deadline=options.deadline, calibrate=False),
    }


class Training:
    def __init__(self):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.folder = pathlib.Path(options.folder)
        torch.manual_seed(1)
        layers = [module for _ in range(LAYERS) for module in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
        model = nn.Sequential(*layers, nn.Linear(WIDTH, 8))
        if options.sharded:
            from torch.distributed.fsdp import fully_shard

            mesh = dist.device_mesh.init_device_mesh("cpu", (self.size,))
            for layer in model:
                if isinstance(layer, nn.Linear):
                    fully_shard(layer, mesh=mesh)
            self.model = fully_shard(model, mesh=mesh)
        else:
            self.model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-3)
        self.budgets = {}  # by scope: a budget under which tensors are paged
        self.session = None  # the one that stays open over several steps

    # ---- state

    def local(self, tensors):
        """The parts of tensors that this rank has."""
        return [tensor.to_local().detach() if options.sharded else tensor.detach() for tensor in tensors]

    def state(self):
        """Every tensor that a checkpoint holds, in one order."""
        parameters = list(self.model.parameters())
        moments = [self.optimizer.state[p][name] for name in ("exp_avg", "exp_avg_sq", "step") for p in parameters]
        return self.local(parameters) + [t.to_local() if hasattr(t, "to_local") else t for t in moments]

    def note_digest(self, number):
        digest = hashlib.sha256()
        for tensor in self.state():
            # A clone, because a tensor that an array was made of stays on the device.
            digest.update(tensor.clone().numpy().tobytes())
        notes.add(f"digest {number} {digest.hexdigest()}")

    def save(self, number):
        """Each rank writes its part. The checkpoint counts once all parts are there."""
        self.note_digest(number)
        notes.add(f"save {number}")
        part = self.folder / f"step{number}.rank{self.rank}"
        torch.save(self.state(), f"{part}.part")
        os.replace(f"{part}.part", part)
        dist.barrier()
        if self.rank == 0:
            (self.folder / "latest.part").write_text(str(number))
            os.replace(self.folder / "latest.part", self.folder / "latest")
        dist.barrier()
        for old in self.folder.glob(f"step*.rank{self.rank}*"):
            if old != part:
                old.unlink()

    def load(self):
        latest = self.folder / "latest"
        number = torch.tensor(int(latest.read_text()) if latest.exists() else 0)
        dist.broadcast(number, 0)  # a rank that starts late may find a later checkpoint
        if number > 0:
            for parameter in self.model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            self.optimizer.step()  # makes the moments
            with torch.no_grad():
                for tensor, saved in zip(
                    self.state(), torch.load(self.folder / f"step{number}.rank{self.rank}"), strict=True
                ):
                    tensor.copy_(saved)
        return int(number)

    # ---- steps

    def open_session(self, scope):
        """Returns an open Session. The first ones have no budget, and tell which one makes them page."""
        notes.add(f"open a Session over {scope}")
        budget = self.budgets.get(scope)
        more = {} if budget is None else {"host_budget": HOST_BUDGET, "disk": self.folder / "pages"}
        return spillway.Session(budget=budget, **more).open()

    def close_session(self, session, scope):
        notes.add(f"close the Session over {scope}")
        stats = session.stats()
        # Room for the ring's tensors beside the neediest operator.
        self.budgets.setdefault(scope, stats["floor_bytes"] * 9 // 8 + (4 << 20))
        notes.add(f"paged {stats['page_outs']} out, {stats['bytes_to_disk']} bytes to disk")
        session.close()

    @contextlib.contextmanager
    def scope(self, scope, wanted):
        """A Session over the block, where `scope` is the one wanted."""
        if scope != wanted:
            yield
            return
        session = self.open_session(scope)
        try:
            with session.step(scope):
                yield
            self.close_session(session, scope)
        finally:
            session.close()

    def step(self, number, scope):
        generator = torch.Generator().manual_seed(number * 10 + self.rank)
        x = torch.randn(16, WIDTH, generator=generator)
        y = torch.randint(0, 8, (16,), generator=generator)
        self.optimizer.zero_grad()
        with self.scope(scope, "forward"):
            notes.add(f"forward {number}")
            loss = nn.functional.cross_entropy(self.model(x), y)
        with self.scope(scope, "backward"):
            notes.add(f"backward {number}")
            loss.backward()
            self.optimizer.step()

    def use_another_group(self, number):
        """Makes a group of all ranks, uses it and ends it. Its sockets must go with it."""
        notes.add(f"another group {number}")
        before = sockets()
        group = dist.new_group(**group_options())
        total = torch.full((64 * KIB,), float(number))
        dist.all_reduce(total, group=group)
        if not (total == number * self.size).all():
            raise AssertionError(f"wrong values in another group's sum: {total[:4]}")
        dist.destroy_process_group(group)
        del group
        if left := {inode: line for inode, line in sockets().items() if inode not in before}:
            report_wrong(f"sockets are left when a group has ended: {list(left.values())}")

    def train(self):
        own = random.Random(f"{self.rank}/{options.seed}")
        for number in range(self.load(), options.until):
            chance = random.Random(f"{options.seed}/{number}")  # the same on every rank
            notes.add(f"step {number}")
            time.sleep(own.random() * 0.03)
            scope = chance.choice(SCOPES) if options.sessions else "none"
            if self.session and chance.random() < 0.5:
                self.close_session(self.session, "steps")
                self.session = None
            if scope == "steps" and not self.session:
                self.session = self.open_session("steps")
            if self.session:
                scope = "none"  # a thread has one Session at a time
            if chance.random() < 0.15:
                self.use_another_group(number)
            begins, ends = chance.choice(["before", "inside", "never"]), chance.choice(["inside", "after"])
            ring = Ring(self.rank, self.size, number) if begins == "before" else None
            with self.session.step("steps") if self.session else self.scope(scope, "step"):
                if begins == "inside":
                    ring = Ring(self.rank, self.size, number)
                self.step(number, scope)
                if ring and ends == "inside":
                    notes.add(f"finish {number} inside")
                    ring.finish()
            if ring and ends == "after":
                notes.add(f"finish {number} after")
                ring.finish()
            if number % 3 == 2:
                self.save(number + 1)
            if options.digests:
                self.note_digest(number + 1)
        if self.session:
            self.close_session(self.session, "steps")
        self.save(options.until)
        if options.sessions:  # it removes what launches that were killed left on the disk
            spillway.Session(budget="1GiB", host_budget=HOST_BUDGET, disk=self.folder / "pages").open().close()


# ---- things that may be left over


def report_wrong(text):
    """Tells torchrun_chaos.py of a defect that no exit code shows."""
    pathlib.Path(options.notes, f"wrong.{os.getpid()}").write_text(text)


def sockets():
    """Unix-domain and listening sockets that this process holds: {inode: the kernel's line}."""
    held = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            held.add(os.readlink(f"/proc/self/fd/{descriptor}").removeprefix("socket:[").removesuffix("]"))
    lines = {line.split()[6]: line for line in pathlib.Path("/proc/net/unix").read_text().splitlines()[1:]}
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path("/proc/net", table).read_text().splitlines()[1:]:
            if line.split()[3] == "0A":  # listens
                lines[line.split()[9]] = line
    return {inode: lines[inode] for inode in held & lines.keys()}


def live_as_child(parent, before):
    """Holds what a fork of a rank holds, for two seconds longer than the rank."""
    if left := sockets().keys() - before.keys():
        report_wrong(f"a forked child holds sockets of its rank: {[sockets()[inode] for inode in left]}")
    while os.getppid() == parent:
        time.sleep(0.05)
    time.sleep(2)


def main():
    torch.set_num_threads(1)
    before = sockets()
    notes.add("store")  # which is torch's own, and so is the wait for one that has ended with its launcher
    store, rank, size = next(dist.rendezvous("env://", timeout=datetime.timedelta(seconds=options.store_timeout)))
    notes.add("meet")
    dist.init_process_group("spillway", store=store, rank=rank, world_size=size, **group_options())
    notes.add("met")
    parent = os.getpid()
    if options.child and os.fork() == 0:
        try:
            live_as_child(parent, before)
        finally:
            os._exit(0)
    training = Training()
    training.train()
    notes.add("end")
    del training
    gc.collect()
    dist.destroy_process_group()  # the model's Reducer keeps the sockets, as those of torch's own backends
    notes.add("done")


if __name__ == "__main__":
    try:
        main()
    except BaseException as error:
        notes.add(f"error {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        raise
