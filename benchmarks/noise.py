"""Whether the time of a release tells what its totals are.

    python benchmarks/noise.py [--nodes 50] [--length 101770] [--threads 1]

Figures are the best of several rounds, in which the kinds of totals take turns, in nanoseconds a
value. What noise costs beside `torch.randn` is measured by `benchmarks/speed/noise.py`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping

import torch

from tacit.privacy.noise import draws as noise
from tacit.privacy.noise.gaussian import add_normal

ROUNDS = 25
STD = 0.7


def best(contenders: Mapping[str, Callable[[], object]], values: int) -> dict[str, float]:
    """Nanoseconds a value of each contender: the best of rounds in which they take turns."""
    figures = dict.fromkeys(contenders, float("inf"))
    for _ in range(ROUNDS):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            seconds = time.perf_counter() - start
            figures[name] = min(figures[name], seconds / values * 1e9)
    return figures


def totals_of(keys: noise.NodeKeys, length: int) -> dict[str, float]:
    """The time of a release for totals of several kinds."""
    shape = (len(keys.nodes), length)
    kinds = {
        "zeros": torch.zeros(shape),
        "normals": torch.randn(shape),
        "all 0.49 of a spacing": torch.full(shape, 0.49 / 128),
        "normals times 1000": 1000 * torch.randn(shape),
    }

    def release(total: torch.Tensor) -> Callable[[], object]:
        work = torch.empty_like(total)
        return lambda: add_normal(
            work.copy_(total), [STD] * len(work), keys, keys.nodes, "noise", 0
        )

    contenders = {name: release(total) for name, total in kinds.items()}
    return best(contenders, shape[0] * shape[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--length", type=int, default=101_770)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keys = noise.fresh_keys(range(options.nodes))
    print(f"{options.nodes} nodes, {options.length} values each, {options.threads} thread(s)\n")
    for name, figure in totals_of(keys, options.length).items():
        print(f"{name:30} {figure:7.2f} ns")


if __name__ == "__main__":
    main()
