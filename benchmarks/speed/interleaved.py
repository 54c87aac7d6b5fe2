"""Runs one comparison: contenders start, agree, warm up, and take turns."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from comparisons import Comparison, Ratio
from contender import Contender, Within, Worker, started
from numpy.typing import NDArray
from table import Line
from workloads import Workload

# tacit clips to less than the bound by what rounding may add: 1.5e-4 of it for 32 records.
AGREEMENT = 5e-4


@dataclass(frozen=True)
class Protocol:
    """How long is measured.

    Attributes:
        rounds: times that every contender has its turn.
        turn: seconds that a turn should last at least.
        most_steps: of a turn.
        within: contenders run in this process where they can: quicker, but in each other's way.
    """

    rounds: int = 9
    turn: float = 1.0
    most_steps: int = 1000
    within: bool = False


@dataclass(frozen=True)
class Outcome:
    """What came of a comparison.

    Attributes:
        workload: what was done.
        entries: of each contender: name, notes, set-up, every round's seconds a step, memory.
        left_out: contenders that could not take part, and why.
        disagreements: of each contender, the largest difference from the first one, over the
            largest norm.
        lines: the figures.
        wrong: what makes the whole comparison worthless; empty if nothing does.
    """

    workload: Workload
    entries: tuple[Mapping[str, Any], ...]
    left_out: Mapping[str, str]
    disagreements: Mapping[str, float]
    lines: tuple[Line, ...]
    wrong: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            **asdict(self),
            "records": self.workload.source(),
            "lines": [asdict(line) | {"met": line.met} for line in self.lines],
        }


def compare(
    comparison: Comparison, protocol: Protocol, folder: Path, say: Callable[[str], None]
) -> Outcome:
    """Run it.

    Args:
        comparison: who and what.
        protocol: how long.
        folder: for logs and what is checked.
        say: is told what is going on.
    """
    workload = comparison.workload
    left_out = {
        contender.name: reason
        for contender in comparison.contenders
        if (reason := contender.missing()) is not None
    }
    taking_part = [one for one in comparison.contenders if one.name not in left_out]
    say(f"{workload.name}: starting {', '.join(one.name for one in taking_part)}")
    with started(taking_part, workload, folder, within=protocol.within) as workers:
        differences = _differences(workers, folder)
        say(f"{workload.name}: {protocol.rounds} rounds")
        seconds, memory, steps = _rounds(workers, protocol)
        entries = tuple(
            _entry(worker, seconds[worker.contender.name], memory[worker.contender.name], steps[i])
            for i, worker in enumerate(workers)
        )
    lines = [line_of(workload.name, ratio, seconds, memory) for ratio in comparison.ratios]
    wrong = tuple(
        f"{workload.name}: {name} differs by {difference:.2g} of the largest norm"
        for name, difference in differences.items()
        if not difference <= AGREEMENT
    )
    return Outcome(
        workload, entries, left_out, differences, tuple(line for line in lines if line), wrong
    )


def disagreement(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """The largest difference, over the largest norm of a row; infinite where shapes differ."""
    if found.shape != expected.shape:
        return math.inf
    return float(np.abs(found - expected).max() / np.linalg.norm(expected, axis=1).max())


def _differences(workers: Sequence[Worker | Within], folder: Path) -> dict[str, float]:
    """Of all that do the private step from the first of them."""
    private = [worker for worker in workers if worker.contender.private]
    checks = {
        worker.contender.name: worker.check(folder / f"check-{number}.npy")
        for number, worker in enumerate(private)
    }
    expected = next(iter(checks.values()))
    return {name: disagreement(found, expected) for name, found in checks.items()}


def _rounds(
    workers: Sequence[Worker | Within], protocol: Protocol
) -> tuple[dict[str, list[float]], dict[str, int], list[int]]:
    """Seconds a step of every round, largest memory seen, and steps a turn."""
    steps = []
    for worker in workers:
        worker.run(2)
        taken = worker.run(2) / 2
        turn = min(max(2, math.ceil(protocol.turn / taken)), protocol.most_steps)
        worker.run(turn)
        steps.append(turn)
    seconds: dict[str, list[float]] = {worker.contender.name: [] for worker in workers}
    memory = dict.fromkeys(seconds, 0)
    for number in range(protocol.rounds):
        first = number % len(workers)  # so that nobody always comes after the same one
        for i in [*range(first, len(workers)), *range(first)]:
            name = workers[i].contender.name
            seconds[name].append(workers[i].run(steps[i]) / steps[i])
            memory[name] = max(memory[name], workers[i].memory())
    return seconds, memory, steps


def _entry(
    worker: Worker | Within, seconds: list[float], memory: int, steps: int
) -> dict[str, Any]:
    contender: Contender = worker.contender
    return {
        "name": contender.name,
        "module": contender.module,
        "options": dict(contender.options),
        "notes": dict(worker.notes),
        "set-up seconds": worker.setup_seconds,
        "steps a turn": steps,
        "seconds a step": seconds,
        "median seconds a step": statistics.median(seconds),
        "memory bytes": memory,
    }


def line_of(
    row: str, ratio: Ratio, seconds: Mapping[str, list[float]], memory: Mapping[str, int]
) -> Line | None:
    """The median over rounds of the ratio within a round; None if one of them took no part."""
    if ratio.of not in seconds or ratio.over not in seconds:
        return None
    if ratio.quantity == "bytes":
        values = [memory[ratio.of] / memory[ratio.over]]
        detail = ""
    else:
        values = [a / b for a, b in zip(seconds[ratio.of], seconds[ratio.over], strict=True)]
        detail = f"rounds: {min(values):.3g} to {max(values):.3g}"
    return Line(
        row,
        ratio.name,
        statistics.median(values),
        at_least=ratio.at_least,
        at_most=ratio.at_most,
        detail=detail,
    )
