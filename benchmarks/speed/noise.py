"""Noise: what a run releases, against `torch.randn`, one thread each.

    python benchmarks/speed/noise.py [--rounds 15] [--quick]

50 nodes release 101,770 float32 totals each (a 784-128-10 network, some 5 million values) on the
lattice, from AES-256 keystreams. The contenders take turns; figures are medians of the rounds, in
nanoseconds a value, and ratios are medians of the rounds' ratios. Prints a table and JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from tacit.privacy.noise import draws as noise
from tacit.privacy.noise import gaussian
from tacit.privacy.noise.draws import position
from tacit.privacy.noise.fast import noise_rows
from tacit.privacy.noise.gaussian import add_normal
from tacit.privacy.noise.lattice import Pieces

NODES, LENGTH = 50, 101_770
QUICK_NODES = 12
STD = 0.7
GOAL = 0.5
# What a value must move: a quarter AES block written and read, its total read and written.
BYTES = 4 + 4 + 4 + 4


def measure(rounds: int, quick: bool = False) -> dict[str, Any]:
    """The table of this workload: contenders, ratio and goal, parts, floor.

    Args:
        rounds: in which the contenders take turns; the first one more is not counted.
        quick: fewer nodes, to see that it works.
    """
    nodes = QUICK_NODES if quick else NODES
    cores = len(os.sched_getaffinity(0))
    keys = noise.fresh_keys(range(nodes))
    total = torch.zeros(nodes, LENGTH)
    steps = iter(range(1 << 40))

    def release() -> None:
        add_normal(total, [STD] * nodes, keys, range(nodes), "noise", next(steps))

    contenders: dict[str, tuple[int, Callable[[], object]]] = {
        "torch.randn, one thread": (1, lambda: torch.randn(nodes, LENGTH)),
        "add_normal, all cores": (cores, release),
        "add_normal, one thread": (1, release),
    }
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, (threads, run) in contenders.items():
            # Totals that grow would not be those of a run. By NumPy: PyTorch's threads spin on.
            total.numpy().fill(0.0)
            with _threads(threads):
                seconds = _seconds(run)
            if number:
                found[name].append(seconds / total.numel() * 1e9)
    randn = found["torch.randn, one thread"]
    ratios = {name: float(np.median(np.divide(figures, randn))) for name, figures in found.items()}
    ratio = ratios["add_normal, one thread"]
    medians = {name: float(np.median(figures)) for name, figures in found.items()}
    parts = _parts(keys, rounds, medians["add_normal, one thread"])
    return {
        "workload": f"Gaussian noise, {total.numel():,} float32 values",
        "values": total.numel(),
        "cores": cores,
        "rounds": rounds,
        "ns_per_value": medians,
        "best_ns_per_value": {name: min(figures) for name, figures in found.items()},
        "ratios": ratios,
        "ratio": ratio,
        "goal": GOAL,
        "met": ratio <= GOAL,
        "parts_ns_per_value": parts,
        "bytes_per_value": BYTES,
        "floor_ns_per_value": _floor(keys, rounds),
    }


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _medians(
    runs: Mapping[str, Callable[[], object]],
    rounds: int,
    values: int,
    before: Callable[[], object] = lambda: None,
) -> dict[str, float]:
    """Nanoseconds a value of runs that take turns; `before` each, something that is not timed."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            before()
            found[name].append(_seconds(run) / values * 1e9)
    return {name: float(np.median(figures[1:])) for name, figures in found.items()}


def _parts(keys: noise.NodeKeys, rounds: int, whole: float) -> dict[str, float]:
    """Where one thread's time goes, `whole` nanoseconds a value; all in nanoseconds a value."""
    nodes = len(keys.nodes)
    total = np.zeros((nodes, LENGTH), np.float32)
    pieces = Pieces.of(*total.shape)
    lattice, room = gaussian._Lattice.of([STD] * nodes), gaussian._Room(pieces)
    source = gaussian._Source(keys, keys.nodes, "noise", position(0, 0))

    def stream() -> None:
        for place in pieces.places():
            room.words(place, len(total[place]), source)

    def loop() -> None:
        words = room.words(next(iter(pieces.places())), pieces.height, source)
        for place in pieces.places():
            piece, group = total[place], place[0]
            noise_rows(
                piece,
                None,
                words[: len(piece)],
                lattice.spacings[group],
                lattice.scales[group],
                lattice.ratios[group],
                room.flags,
                room.left,
                room.left_words,
                0,
                0,
                0,
            )

    runs = {"keystream": stream, "loop": loop}
    # Totals that grow from round to round would not be those of a run.
    found = _medians(runs, rounds, total.size, lambda: total.fill(0.0))
    return found | {"care and the rest": whole - sum(found.values())}


def _floor(keys: noise.NodeKeys, rounds: int) -> dict[str, float]:
    """What cannot be saved: the keystream from AES, and moving the bytes; on one thread."""
    count = 1 << 16
    room, zeros = bytearray(4 * count + 16), bytes(4 * count)
    large = np.zeros(1 << 24, np.uint8)
    target = np.empty_like(large)
    stream = {"AES": lambda: keys.read(0, "floor", 0, zeros, memoryview(room))}
    copied = _medians({"copy": lambda: np.copyto(target, large)}, rounds, 2 * len(large))["copy"]
    return _medians(stream, 5 * rounds, count) | {"moving its bytes": BYTES * copied}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    found = measure(3 if options.quick else options.rounds, options.quick)
    print(f"{found['workload']}, {found['cores']} cores, {found['rounds']} rounds\n")
    for name, figure in found["ns_per_value"].items():
        print(f"{name:34} {figure:7.2f} ns {found['ratios'][name]:6.2f}")
    for kind in ("parts_ns_per_value", "floor_ns_per_value"):
        print(f"\n{kind}: " + ", ".join(f"{k} {v:.2f}" for k, v in found[kind].items()))
    print(f"\nratio {found['ratio']:.2f}, goal {GOAL:.2f}: {'met' if found['met'] else 'not met'}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
