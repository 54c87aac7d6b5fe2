"""What noise costs: the defended release against plain addition of normals, and torch.randn.

    python benchmarks/noise.py [--nodes 50] [--length 101770] [--threads 1]

Figures are the best of several rounds, in which the contenders take turns, in nanoseconds a value;
the last column is relative to undefended noise from the same keystream. The second table says
whether the time of a release tells what the totals are.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping

import torch

from tacit.privacy.noise import draws as noise
from tacit.privacy.noise.gaussian import add_normal
from tacit.privacy.noise.lattice import normal

ROUNDS = 25
STD = 0.7
UNDEFENDED = "AES and Box-Muller, added (no defence)"


def best(
    contenders: Mapping[str, Callable[[], object]],
    values: int,
    before: Callable[[], object] = lambda: None,
) -> dict[str, float]:
    """Nanoseconds a value of each contender: the best of rounds in which they take turns.

    `before` each of which, what it says is done, and not timed.
    """
    found = dict.fromkeys(contenders, float("inf"))
    for _ in range(ROUNDS):
        for name, run in contenders.items():
            before()
            start = time.perf_counter()
            run()
            found[name] = min(found[name], (time.perf_counter() - start) / values * 1e9)
    return found


def noise_of(keys: noise.NodeKeys, length: int, dtype: torch.dtype) -> dict[str, float]:
    """The contenders, each of which noises `[nodes, length]` totals in place."""
    shape = (len(keys.nodes), length)
    total = torch.zeros(shape, dtype=dtype)
    stds = torch.full((len(keys.nodes), 1), STD, dtype=dtype)

    def plain() -> None:
        total.addcmul_(normal(keys, keys.nodes, "noise", 0, length, dtype=dtype), stds)

    def defended() -> None:
        add_normal(total, [STD] * len(stds), keys, keys.nodes, "noise", 0)

    contenders: dict[str, Callable[[], object]] = {
        "torch.randn, added (no secret, no defence)": lambda: total.addcmul_(
            torch.randn(shape, dtype=dtype), stds
        ),
        UNDEFENDED: plain,
        "on the lattice (what a run does)": defended,
    }
    # Totals that grow from round to round would not be those of a run.
    return best(contenders, total.numel(), total.zero_)


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
    for dtype in (torch.float32, torch.float64):
        found = noise_of(keys, options.length, dtype)
        for name, figure in found.items():
            kind = str(dtype).removeprefix("torch.")
            print(f"{kind}  {name:44} {figure:7.2f} ns  {figure / found[UNDEFENDED]:5.2f}")
    print("\nfloat32 releases by what their totals are")
    for name, figure in totals_of(keys, options.length).items():
        print(f"{name:53} {figure:7.2f} ns")


if __name__ == "__main__":
    main()
