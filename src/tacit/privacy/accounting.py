"""Certified accounting: an epsilon, or delta, that provably holds for a mechanism.

Every figure is an upper bound. What it rests on:

- `Gaussian` (and a sampling rate of 1): the closed form, exact.
- `SampledGaussian`: privacy loss distributions, discretised by connecting the dots (`losses`) and
  composed by Fourier transforms (`composition`). The larger of the two directions is taken after
  composition. The grid is refined until the bound gains less than 0.1 %; every grid gives an upper
  bound, so the smallest is kept.
- `FixedBatchGaussian`: the same engine on the pointwise maximum of the two directions.

What is cut off or rounded is counted as infinite loss, `composition` says how. A delta below
`SMALLEST_DELTA` is refused where losses are composed numerically: rounding would dominate it. The
bounds hold for real-valued noise; the discreteness of floating-point noise is not part of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from tacit.errors import InputError
from tacit.privacy.composition import Losses, compose, delta_at, epsilon_at
from tacit.privacy.gaussian import gaussian_delta, gaussian_epsilon
from tacit.privacy.losses import (
    Directions,
    fixed_batch_step,
    poisson_replace_step,
    poisson_zero_out_step,
)
from tacit.privacy.mechanisms import (
    ADD_OR_REMOVE_ONE,
    REPLACE_ONE,
    FixedBatchGaussian,
    Mechanism,
    Relation,
    SampledGaussian,
    levels,
    schedule,
)

__all__ = ["SMALLEST_DELTA", "delta", "epsilon", "epsilon_curve"]

SMALLEST_DELTA = 1e-8

_GRIDS = (1e-2, 2.5e-3, 6e-4, 1.5e-4)
_REFINE_ABOVE = 1e-3
_LARGEST_GRID = 400_000
_COARSE_GRID = 40_000
_LARGEST_WINDOW = 1 << 22
# How one step of a sampled mechanism is put on a grid: (rate, noise multiplier, grid) -> losses.
_STEPS: Mapping[tuple[type[Mechanism], Relation], Callable[[float, float, float], Directions]] = {
    (SampledGaussian, ADD_OR_REMOVE_ONE): poisson_zero_out_step,
    (SampledGaussian, REPLACE_ONE): poisson_replace_step,
    (FixedBatchGaussian, REPLACE_ONE): fixed_batch_step,
}


def epsilon(mechanism: Mechanism, *, delta: float) -> float:
    """An epsilon that holds for the mechanism at `delta`: an upper bound, never an estimate.

    Args:
        mechanism: what is released.
        delta: in (0, 1); at least 1e-8 where the bound is composed numerically.

    Raises:
        InputError: delta is outside its range.
    """
    _check_delta(delta)
    mu = _gaussian_mu(mechanism)
    if mu is not None:
        return gaussian_epsilon(mu, delta)
    if delta < SMALLEST_DELTA:
        raise InputError(
            "delta",
            delta,
            f"must be at least {SMALLEST_DELTA:g} where sampling is amplified: below it the "
            "rounding of the numerical composition is not covered",
        )
    return _tightest(mechanism, lambda losses: epsilon_at(losses, delta))


def delta(mechanism: Mechanism, *, epsilon: float) -> float:
    """A delta that holds for the mechanism at `epsilon` >= 0: an upper bound.

    Raises:
        InputError: epsilon is negative or not finite.
    """
    if not (epsilon >= 0 and math.isfinite(epsilon)):
        raise InputError("epsilon", epsilon, "must be 0 or more, and finite")
    mu = _gaussian_mu(mechanism)
    if mu is not None:
        return gaussian_delta(mu, epsilon)
    return min(1.0, _tightest(mechanism, lambda losses: delta_at(losses, epsilon)))


def epsilon_curve(mechanism: Mechanism, marks: Sequence[int], *, delta: float) -> tuple[float, ...]:
    """Epsilon after the first `m` steps, for each `m` of the ascending `marks`; 0 after none.

    Each is an upper bound as `epsilon` gives.

    Raises:
        InputError: delta is outside its range, or a mark is not a number of steps.
    """
    _check_delta(delta)
    multipliers = schedule(mechanism)
    if any(not 0 <= mark <= len(multipliers) for mark in marks) or list(marks) != sorted(marks):
        raise InputError("marks", list(marks), f"must ascend within 0..{len(multipliers)}")
    bounds = {
        mark: epsilon(
            replace(mechanism, noise_multiplier=multipliers[:mark], steps=None), delta=delta
        )
        for mark in set(marks)
        if mark
    }
    # Epsilon never falls from step to step, so a later bound holds for an earlier mark as well.
    curve = list(accumulate((bounds.get(mark, 0.0) for mark in reversed(marks)), min))
    return tuple(reversed(curve))


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise InputError("delta", delta, "must lie strictly between 0 and 1")


def _gaussian_mu(mechanism: Mechanism) -> float | None:
    """The Gaussian-DP parameter where every record is taken at every step; else None."""
    if mechanism.rate < 1:
        return None
    sensitivity = 2.0 if mechanism.relation == REPLACE_ONE else 1.0
    return sensitivity * math.hypot(*(math.sqrt(n) / z for z, n in levels(mechanism)))


def _tightest(mechanism: Mechanism, read: Callable[[Losses], float]) -> float:
    """Refine the grid until the bound stops improving; all grids give upper bounds."""
    best = math.inf
    finer = 1.0
    cells = 0
    for grid in _grids(mechanism):
        if cells * finer / grid > _LARGEST_WINDOW:
            break
        directions = _compose(mechanism, grid)
        bound = max(read(direction) for direction in directions)
        improved = best - bound
        best = min(best, bound)
        if improved <= _REFINE_ABOVE * best:
            break
        finer, cells = grid, max(len(direction.masses) for direction in directions)
    return best


def _grids(mechanism: Mechanism) -> tuple[float, ...]:
    """Grids of losses, ever finer, none with more points than it is worth.

    None at all where noise is so low (a multiplier below about 0.007) that the coarsest would be
    wider than one unit of loss: no bound is then better than infinity.
    """
    # Losses of one step reach about mu^2 / 2 + 8 mu.
    widest = max(2 / z / z + 16 / z for z, _ in levels(mechanism))
    first = max(_GRIDS[0], widest / _COARSE_GRID)
    if first > 1:
        return ()
    return (first, *(grid for grid in _GRIDS[1:] if widest / grid <= _LARGEST_GRID))


def _compose(mechanism: Mechanism, grid: float) -> Directions:
    """The losses of all steps, on a grid, in each direction."""
    single = _STEPS[type(mechanism), mechanism.relation]
    steps = [(single(mechanism.rate, z, grid), count) for z, count in levels(mechanism)]
    directions = range(len(steps[0][0]))
    return tuple(compose([(one[i], count) for one, count in steps]) for i in directions)
