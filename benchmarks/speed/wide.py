"""A wide linear model at full batch, against the plain matrix products alone.

    python benchmarks/speed/wide.py [--rounds 9] [--quick]

20 nodes of 3,000 records of 3,969 numbers (952 MB), ten classes, cross-entropy: what is left to
train where features are computed once. A step of a run, with clipping, cryptographic noise and
gossip, and the two products that no gradient goes without, X W' for the scores and G' X for the
sum, as one writes them with `torch.bmm`. Both in one process, on one thread and on all cores; they
take turns, and a figure is the median over rounds of the ratio within a round. On one thread the
same clipped sum by taps has its turn too: what it would be without blocks. Prints a table and JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from interleaved import AGREEMENT, disagreement
from tacit_stacked import build
from torch import Tensor
from workloads import Workload

from tacit.gradients import StackedModel

GOAL = 1.2
STEPS = 2  # of a turn
FEW = 300  # records of a node whose sums are compared
PLAIN, STEP, TAPS = "plain products", "a step", "its clipped sum by taps"
WORKLOAD = Workload(
    "wide",
    model="logistic",
    dataset="generated",
    nodes=20,
    batch=3000,
    records=3000,
    shape=(3969,),
    data_dir="none",
)
# Just wide enough to be computed as the large one.
QUICK = replace(WORKLOAD, nodes=3, batch=300, records=300, shape=(1700,))


def measure(rounds: int, quick: bool = False) -> dict[str, Any]:
    """The table of this workload: seconds and ratios by number of threads, goal, agreement.

    Args:
        rounds: in which the contenders take turns; the first one more is not counted.
        quick: tiny, to see that it works.
    """
    workload = QUICK if quick else WORKLOAD
    before = torch.get_num_threads()
    counts = sorted({1, len(os.sched_getaffinity(0))})
    try:
        found = {threads: _on(threads, workload, rounds) for threads in counts}
    finally:
        torch.set_num_threads(before)
    return {
        "workload": f"{workload.nodes} nodes x {workload.records} x {workload.shape[0]}",
        "rounds": rounds,
        "goal": GOAL,
        "threads": found,
        "disagreement": max(one["disagreement"] for one in found.values()),
        "most disagreement": AGREEMENT,
    }


def _on(threads: int, workload: Workload, rounds: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    run = build(workload)
    model, train = run.job.model, run.job.train
    inputs = train.inputs.view(workload.nodes, workload.records, -1)
    weights = torch.randn(workload.nodes, workload.shape[0], workload.classes)
    slopes = torch.randn(workload.nodes, workload.classes, workload.records)

    def products() -> tuple[Tensor, Tensor]:
        return torch.bmm(inputs, weights), torch.bmm(slopes, inputs)

    by_taps = replace(model, loop=None, path="taps")
    at = model.start(workload.nodes, torch.float32, "cpu")
    targets = train.targets.view(workload.nodes, -1)
    mask = torch.ones_like(targets, dtype=torch.bool)

    def clipped_sum(one: StackedModel, most: int) -> Tensor:
        few = slice(0, most)
        return one.gradient(at, inputs[:, few], targets[:, few], mask[:, few], workload.clip).total

    contenders: dict[str, Callable[[], object]] = {
        PLAIN: lambda: [products() for _ in range(STEPS)],
        STEP: lambda: run.run(STEPS),
    }
    if threads == 1:
        contenders[TAPS] = lambda: [clipped_sum(by_taps, workload.records) for _ in range(STEPS)]
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, work in contenders.items():
            begun = time.perf_counter()
            work()
            if number:
                seconds[name].append((time.perf_counter() - begun) / STEPS)
    ratios = {
        name: [one / other for one, other in zip(spent, seconds[PLAIN], strict=True)]
        for name, spent in seconds.items()
        if name != PLAIN
    }
    sums = [clipped_sum(one, FEW).numpy() for one in (model, by_taps)]
    run.close()
    return {
        "seconds": seconds,
        "ratios": ratios,
        "medians": {name: statistics.median(each) for name, each in ratios.items()},
        "disagreement": disagreement(*sums),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    found = measure(2 if options.quick else options.rounds, options.quick)
    print(f"{found['workload']}, {found['rounds']} rounds\n")
    for threads, one in found["threads"].items():
        for name, seconds in one["seconds"].items():
            print(f"threads {threads}, {name:23} {statistics.median(seconds) * 1e3:8.1f} ms")
        for name, ratios in one["ratios"].items():
            print(
                f"threads {threads}, {name} over them: {one['medians'][name]:.2f} "
                f"({min(ratios):.2f} to {max(ratios):.2f})"
            )
    print(f"\ngoal of a step: {GOAL}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
