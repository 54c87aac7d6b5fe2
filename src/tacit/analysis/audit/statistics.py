"""Test statistics: numbers that tend to be larger on D than on D'.

None of them needs to be right for a bound to hold: each is one attack, and what it achieves is
counted. The likelihood ratio is the best there is where the code does what the plan says; the
others look for what a defect would leave.

`y` is `[steps, nodes, width]` in units of the noise's standard deviation, `mu` `[steps]` the
clipping bound in the same unit, `rate` q.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.analysis.audit.canaries import (
    ALONE,
    BARE,
    CANARY,
    CROWD,
    OPPOSED,
    REPLACED,
    REPLACED_IN_BATCH,
    Problem,
)

__all__ = [
    "LIKELIHOOD_RATIO",
    "Known",
    "Statistic",
    "between_nodes",
    "mixture_ratio",
    "repeated_noises",
    "statistics_of",
]

Array = NDArray[np.float64]
LIKELIHOOD_RATIO = "likelihood ratio"

EQUAL = 1e-4
"""Noises as close as this in every bare direction, in standard deviations, are one noise.

Noise lies on a lattice; where its spacing is a hundredth of a standard deviation, two independent
noises have one coordinate in common with a chance below 0.003, and all 14 below 1e-34.
"""

# Two noises that are equal have equal projections, and seldom others.
_PROJECTION = np.sqrt(np.arange(2.0, 2 + BARE.stop - BARE.start))


@dataclass(frozen=True)
class Known:
    """What the attacker knows of the audited nodes beforehand: the plan.

    Args:
        rate: q.
        batch: q J.
        mu: `[steps]`, clipping bound over the standard deviation of the noise in the sum.
    """

    rate: float
    batch: float
    mu: Array


Statistic = Callable[[Array, Known], Array]
"""(y `[steps, nodes, width]`, known) -> scores `[nodes]`."""


def mixture_ratio(y: Array, rate: float, mu: Array) -> Array:
    """The sum over steps of log [((1 - q) N(y; 0, 1) + q N(y; mu, 1)) / N(y; 0, 1)], `[nodes]`."""
    exponents = y * mu[:, None] - (mu**2 / 2)[:, None]
    if rate == 1:
        return np.asarray(exponents.sum(0), np.float64)
    mixed = np.logaddexp(np.log1p(-rate), np.log(rate) + exponents)
    return np.asarray(mixed.sum(0), np.float64)


def _alone(y: Array, known: Known) -> Array:
    return mixture_ratio(y[:, :, CANARY], known.rate, known.mu)


def _replaced(y: Array, known: Known) -> Array:
    along = y[:, :, CANARY]
    return mixture_ratio(along, known.rate, known.mu) - mixture_ratio(-along, known.rate, known.mu)


def _replaced_in_batch(y: Array, known: Known) -> Array:
    """Of its batch all but the canary contribute -C: a hit moves the sum by 2 C."""
    along = y[:, :, CANARY] + known.batch * known.mu[:, None]
    return mixture_ratio(along, known.rate, 2 * known.mu)


def _opposed(y: Array, known: Known) -> Array:
    """How far the sum falls short of the batch that was expected."""
    short = known.batch * known.mu[:, None] - y[:, :, CROWD]
    return mixture_ratio(short, known.rate, 2 * known.mu)


def _shortest(y: Array, known: Known) -> Array:
    short = known.batch * known.mu[:, None] - y[:, :, CROWD]
    return np.asarray(short.max(0), np.float64)


def _largest(y: Array, known: Known) -> Array:
    """The largest value at any step: what outgrows the clipping bound."""
    return np.asarray(y[:, :, CANARY].max(0), np.float64)


def _between_steps(y: Array, known: Known) -> Array:
    """Where the bare noise of two steps is the same, their difference is free of noise."""
    order = np.argsort(y[:, :, BARE] @ _PROJECTION, axis=0)
    moved = np.abs(np.diff(np.take_along_axis(y, order[:, :, None], axis=0), axis=0))
    same = (moved[:, :, BARE] < EQUAL).all(2)
    return np.asarray(np.where(same, moved[:, :, CANARY], 0.0).max(0, initial=0.0), np.float64)


def between_nodes(y: Array, targets: NDArray[np.int64], usable: NDArray[np.bool_]) -> Array:
    """Where two nodes' bare noise is the same, their difference is free of noise: `[copies]`.

    Args:
        y: `[steps, copies, nodes, width]`.
        targets: `[copies]`, the node that is attacked in each copy of the graph.
        usable: bool `[copies, nodes]`, the nodes to compare it with.
    """
    copies = np.arange(y.shape[1])
    own = y[:, copies, targets]
    highest, lowest = np.zeros(len(copies)), np.zeros(len(copies))
    for offset in range(1, y.shape[2]):
        others = (targets + offset) % y.shape[2]
        moved = own - y[:, copies, others]
        same = (np.abs(moved[:, :, BARE]) < EQUAL).all(2) & usable[copies, others]
        along = np.where(same, moved[:, :, CANARY], 0.0)
        highest = np.maximum(highest, along.max(0))
        lowest = np.minimum(lowest, along.min(0))
    return np.asarray(highest + lowest, np.float64)


def repeated_noises(y: Array, copies: int) -> int:
    """How many noises of a run were used before, in another step or by another node of a copy.

    Not a statistic: the chance that a correct run shows even one is that of `EQUAL` times the
    number of pairs.

    Args:
        y: `[steps, nodes, width]`, the nodes of all copies.
        copies: of the graph.
    """
    bare = y[:, :, BARE].reshape(len(y), copies, -1, BARE.stop - BARE.start)
    vectors = bare.transpose(1, 0, 2, 3).reshape(copies, -1, bare.shape[-1])
    order = np.argsort(vectors @ _PROJECTION, axis=1)
    ordered = np.take_along_axis(vectors, order[:, :, None], axis=1)
    return int((np.abs(np.diff(ordered, axis=1)) < EQUAL).all(2).sum())


_STATISTICS: Mapping[Problem, Mapping[str, Statistic]] = {
    ALONE: {
        LIKELIHOOD_RATIO: _alone,
        "largest value": _largest,
        "noise met twice": _between_steps,
    },
    REPLACED: {
        LIKELIHOOD_RATIO: _replaced,
        "largest value": _largest,
        "noise met twice": _between_steps,
    },
    REPLACED_IN_BATCH: {
        LIKELIHOOD_RATIO: _replaced_in_batch,
        "largest value": _largest,
        "noise met twice": _between_steps,
    },
    OPPOSED: {LIKELIHOOD_RATIO: _opposed, "largest value": _shortest},
}


def statistics_of(problem: Problem) -> Mapping[str, Statistic]:
    """The statistics that are tried on a problem, by name."""
    return _STATISTICS[problem]
