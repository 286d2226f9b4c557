"""Times the allreduce of torch's gloo as `spillway bench allreduce` times its own ways.

usage, as a rank of a launch: PYTHON -c THIS OPTIONS
OPTIONS is JSON: {ranks address port timeout_seconds offset_bytes timing: {warmup repeats iterations average
back_to_back_average} problems: [{bytes count type op}]}. Rank 0 prints its rows in one line, as
tools/cli/launch_result.h says.
"""

import datetime
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

OPERATIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
AVERAGES = {"rank0": lambda times: times[0], "mean": statistics.fmean, "min": min, "max": max}


def own_rank():
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"):
        if name in os.environ:
            return int(os.environ[name])
    sys.exit("gloo: the launcher tells this process no rank")


def values(rank, count, dtype):
    """Small whole numbers, which every type holds and whose sums do not depend on the order."""
    position = torch.arange(count, dtype=torch.int64)
    return (1 + position * 2654435761 % 13 + (position * 40503 + rank) % 4).to(dtype)


def expected(ranks, count, dtype, operation):
    result = values(0, count, torch.int64)
    for rank in range(1, ranks):
        more = values(rank, count, torch.int64)
        result = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}[operation](result, more)
    return result.to(dtype)


class Problem:
    def __init__(self, options, problem):
        self.timing, self.ranks = options["timing"], options["ranks"]
        self.operation = OPERATIONS[problem["op"]]
        dtype = getattr(torch, problem["type"])
        self.input = values(dist.get_rank(), problem["count"], dtype)
        offset = options["offset_bytes"] // self.input.element_size()
        self.result = torch.empty(offset + problem["count"], dtype=dtype)[offset:]
        self.expected = expected(self.ranks, problem["count"], dtype, problem["op"])
        self.wrong = {False: 0, True: 0}

    def reduce(self, in_place):
        # gloo reduces in place only: out of place it is the copy, too.
        if not in_place:
            self.result.copy_(self.input)
        dist.all_reduce(self.result, self.operation)

    def seconds(self, in_place, calls):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            self.reduce(in_place)
        return time.perf_counter() - start

    def check(self, in_place):
        self.wrong[in_place] += int((self.result != self.expected).sum())

    def alone(self, in_place):
        times = []
        for _ in range(self.timing["warmup"] + self.timing["repeats"]):
            self.result.copy_(self.input) if in_place else self.result.zero_()
            times.append(self.seconds(in_place, 1))
            self.check(in_place)
        return self.over_ranks(times[self.timing["warmup"] :], self.timing["average"])

    def back_to_back(self, in_place):
        calls = self.timing["iterations"]
        self.result.copy_(self.input)
        for _ in range(self.timing["warmup"]):
            self.reduce(in_place)
        seconds = self.seconds(in_place, calls) / calls
        if not in_place:
            self.check(in_place)  # in place a result is the next call's input
        return self.over_ranks([seconds], self.timing["back_to_back_average"])[0]

    def over_ranks(self, own, average):
        every = [torch.empty(len(own), dtype=torch.float64) for _ in range(self.ranks)]
        dist.all_gather(every, torch.tensor(own, dtype=torch.float64))
        return [AVERAGES[average](times) for times in torch.stack(every).t().tolist()]

    def row(self):
        calls, in_place = self.alone(False), self.alone(True)
        back_to_back = None
        if self.timing["iterations"]:
            back_to_back = {
                "iterations": self.timing["iterations"],
                "in_place_seconds": self.back_to_back(True),
                "seconds": self.back_to_back(False),
            }
        wrong = [
            int(count) for count in self.over_ranks([self.wrong[False] + self.wrong[True], self.wrong[True]], "max")
        ]
        return {
            "algorithm": "gloo",
            "seconds": statistics.median(calls),
            "in_place_seconds": statistics.median(in_place),
            "call_seconds": calls,
            "in_place_call_seconds": in_place,
            "wrong": wrong[0],
            "in_place_wrong": wrong[1],
            "back_to_back": back_to_back,
        }


def takes(problem):
    try:
        dist.all_reduce(torch.ones(1, dtype=getattr(torch, problem["type"])), OPERATIONS[problem["op"]])
    except (RuntimeError, ValueError):
        return False
    return True


def main():
    options = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{options['address']}:{options['port']}",
        rank=own_rank(),
        world_size=options["ranks"],
        timeout=datetime.timedelta(seconds=options["timeout_seconds"]),
    )
    rows = [
        {**problem, "collective": "allreduce", "root": None, "bound_seconds": None, **Problem(options, problem).row()}
        for problem in options["problems"]
        if takes(problem)
    ]
    if dist.get_rank() == 0:
        print("spillway-launch: " + json.dumps({"rows": rows, "torch": torch.__version__}).encode().hex(), flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
