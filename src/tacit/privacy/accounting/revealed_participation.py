"""Bound B: the steps at which a record was drawn are given away, and the rest is Gaussian.

Trust model: all messages; any relation, any private state. The sampling coins b do not depend on
the data, so that the messages are mixtures over b of the same weights, P = E_b P_b and Q = E_b Q_b.
Divergences are jointly convex:

    delta(eps) <= E_b[delta_Gauss(eps; mu(b))],   mu(b)^2 = sum_k shift_k(b)^2 / sigma_k^2,

since given b every step is a Gaussian with a shift of at most shift_k(b), in whatever direction
earlier messages make it, and such steps are mu(b)-GDP together (Dong, Roth and Su, *Gaussian
differential privacy*, Cor. 3.3). It needs bounds that are functions of b alone: `drawn_norm`
where the record is drawn, `undrawn_norm` where it is not, twice both under replace-one. It is tight
where a single draw is visible (shift over noise above about 5); amplification by sampling is given
up.

*How the mean is taken.* mu(b)^2 is the sum over all steps of (m / sigma_k)^2, m =
`undrawn_norm`, and over those that draw the record of the increment (d^2 - m^2) / sigma_k^2, d =
`drawn_norm`. Increments are rounded up to
a lattice (delta rises with mu), of the one increment itself where noise is constant: exact then.
The sum over equal increments is binomial; sums of different ones are convolved directly, in
non-negative terms, so that rounding is relative. Tails that are cut count as delta = 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from tacit.privacy.accounting.gaussian import Array, gaussian_epsilon
from tacit.privacy.mechanisms.base import REPLACE_ONE
from tacit.privacy.mechanisms.steps import PrivateState, levels

__all__ = [
    "Shifts",
    "mean_delta",
    "mean_epsilon",
    "revealed_delta",
    "revealed_epsilon",
    "sum_over_draws",
]

_LOG_TAIL = 80.0  # a tail that is cut is below e^-80 = 2e-35
_NEGLIGIBLE = 1e-40
_LATTICES = (512, 256, 128, 64, 32, 16, 8)
_MOST_PRODUCTS = 4e8
_ROUNDING = 1e-8  # relative, of all sums here: up to a million terms at some 1e-15 each


@dataclass(frozen=True, eq=False)
class Shifts:
    """The law of mu(b), as an upper bound.

    Args:
        mu: values, `[values]`.
        weights: their chances, rounded up.
        tail: chance of everything else.
    """

    mu: Array
    weights: Array
    tail: float


def revealed_delta(mechanism: PrivateState, epsilon: float) -> float:
    """Bound B: a delta that holds at `epsilon` >= 0, whichever the sampling and the relation."""
    return mean_delta(_shifts(mechanism), epsilon)


def revealed_epsilon(mechanism: PrivateState, delta: float) -> float:
    """The smallest epsilon >= 0 at which `revealed_delta` is at most `delta`, rounded up."""
    return mean_epsilon(_shifts(mechanism), delta)


def mean_epsilon(shifts: Shifts, delta: float) -> float:
    """The smallest epsilon >= 0 at which `mean_delta` is at most `delta`, rounded up.

    Infinite where what is cut from the law is worth `delta`.
    """
    if shifts.tail >= delta:
        return math.inf
    if mean_delta(shifts, 0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0 + gaussian_epsilon(float(shifts.mu[-1]), delta)
    if math.isinf(high):
        return math.inf
    while mean_delta(shifts, high) > delta:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        if mean_delta(shifts, middle) <= delta:
            high = middle
        else:
            low = middle
    return high


def mean_delta(shifts: Shifts, epsilon: float) -> float:
    """E[delta_Gauss(epsilon; mu)] over the law of mu, rounded up, what is cut counting as 1."""
    mean = float(np.sum(shifts.weights * _gaussian_deltas(shifts.mu, epsilon)))
    return min(1.0, mean * (1 + _ROUNDING) + shifts.tail)


def _gaussian_deltas(mu: Array, epsilon: float) -> Array:
    """`gaussian_delta` of many mu, elementwise, rounded up by the same reckoning."""
    mu = np.maximum(mu, 1e-150)
    scaled = np.minimum(epsilon / mu, 1e150)
    first, second = log_ndtr(mu / 2 - scaled), epsilon + log_ndtr(-mu / 2 - scaled)
    slope = 1 + np.sqrt(2 * np.abs(second - epsilon))
    sizes = 1 + np.abs(first) + np.abs(second) + epsilon + slope * (mu + scaled)
    difference = -np.expm1(np.minimum(second - first, 0.0)) + 1e-15 * sizes
    return np.asarray(np.minimum(1.0, np.exp(first) * difference * (1 + 1e-15 * sizes)))


def _shifts(mechanism: PrivateState) -> Shifts:
    """The law of mu(b): a sum of independent increments on a lattice."""
    double = 2.0 if mechanism.relation == REPLACE_ONE else 1.0
    drawn, undrawn = double * mechanism.drawn_norm, double * mechanism.undrawn_norm
    noises = levels(mechanism)
    always = math.fsum(steps * (undrawn / z) ** 2 for z, steps in noises)
    increments = [((drawn - undrawn) * (drawn + undrawn) / z / z, steps) for z, steps in noises]
    largest = max(size for size, _ in increments)
    if not math.isfinite(largest + always):
        return Shifts(np.ones(1), np.ones(1), 1.0)
    if not largest > 0:
        mu = math.sqrt(always) * (1 + 1e-12)
        return Shifts(np.asarray([mu]), np.ones(1), 0.0)
    sums, weights, tail = sum_over_draws(increments, mechanism.sample_rate)
    return Shifts(np.sqrt(always + sums) * (1 + 1e-12), weights, tail)


def sum_over_draws(
    increments: Sequence[tuple[float, int]], rate: float, lattices: Sequence[int] = _LATTICES
) -> tuple[Array, Array, float]:
    """The law of a sum of increments over the steps that draw a record, as an upper bound.

    Args:
        increments: of a step, 0 or more and finite, not all 0; each with its number of steps.
        rate: chance that a step draws the record, independently.
        lattices: in how many units the largest increment may be cut, finest first; coarser ones
            are taken where the finer would take too long.

    Returns:
        Values (rounded up to the lattice, and a rounding more is for the caller), their chances,
        and the chance of everything else.
    """
    largest = max(size for size, _ in increments)
    for marks in lattices if len(increments) > 1 else (1,):
        unit = largest / marks
        counts: dict[int, int] = {}
        for size, steps in increments:
            mark = max(1, math.ceil(size / unit))
            counts[mark] = counts.get(mark, 0) + steps
        if _products(counts, rate) <= _MOST_PRODUCTS:
            break
    start, weights, tail = _sum_of_draws(counts, rate)
    held = np.flatnonzero(weights > _NEGLIGIBLE)
    tail += float(len(weights) * _NEGLIGIBLE)
    return np.asarray(unit * (start + held)), weights[held], tail * (1 + _ROUNDING)


def _products(counts: dict[int, int], rate: float) -> float:
    """About how many products `_sum_of_draws` takes."""
    low, high = _reach(counts, rate)
    terms = sum(min(steps, 12 + 25 * math.sqrt(steps * rate)) for steps in counts.values())
    return terms * (high - low)


def _sum_of_draws(counts: dict[int, int], rate: float) -> tuple[int, Array, float]:
    """The law of sum_l l Bin(steps_l, rate) over marks l: its start, weights and what is cut."""
    _, top = _reach(counts, rate)
    start, law, tail = 0, np.ones(1), math.exp(-_LOG_TAIL)
    for mark, steps in counts.items():
        first, chances = _binomial(steps, rate)
        kept = np.flatnonzero(chances > _NEGLIGIBLE)
        tail += 2 * math.exp(-_LOG_TAIL) + len(chances) * _NEGLIGIBLE
        first, chances = first + int(kept[0]), chances[kept[0] : kept[-1] + 1]
        start += mark * first
        # What exceeds the reach of the whole sum stays there: its chance is in the tail.
        size = min(len(law) + mark * (len(chances) - 1), max(1, top - start + 1))
        summed = np.zeros(size)
        for i, chance in enumerate(chances[: 1 + (size - 1) // mark]):
            part = law[: size - mark * i]
            summed[mark * i : mark * i + len(part)] += chance * part
        law = summed
    return start, law, tail


def _reach(counts: dict[int, int], rate: float) -> tuple[int, int]:
    """Bernstein's inequality: the sum exceeds either end with a chance of at most e^-80."""
    mean = rate * math.fsum(mark * steps for mark, steps in counts.items())
    variance = rate * (1 - rate) * math.fsum(m * m * steps for m, steps in counts.items())
    third = _LOG_TAIL * max(counts) / 3
    away = third + math.sqrt(third * third + 2 * _LOG_TAIL * variance)
    most = sum(mark * steps for mark, steps in counts.items())
    return max(0, math.floor(mean - away)), min(most, math.ceil(mean + away))


def _binomial(steps: int, rate: float) -> tuple[int, Array]:
    """Chances of a number of draws, from the first that counts: upper bounds.

    Neighbouring chances have a simple ratio; divided by their own sum, which is at most 1, they
    are upper bounds.
    """
    if rate == 1:
        return steps, np.ones(1)
    low, high = _reach({1: steps}, rate)
    draws = np.arange(low, high, dtype=np.float64)
    ratios = np.log(steps - draws) - np.log(draws + 1) + (math.log(rate) - math.log1p(-rate))
    logs = np.concatenate(([0.0], np.cumsum(ratios)))
    chances = np.exp(logs - logs.max())
    return low, chances / chances.sum()
