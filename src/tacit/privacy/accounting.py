"""Certified accounting: an epsilon, or delta, that provably holds for a mechanism.

Every figure is an upper bound. What it rests on:

- `Gaussian` (and a sampling rate of 1): the closed form, exact.
- `SampledGaussian`: the privacy loss distributions of dp_accounting, discretised pessimistically
  by connecting the dots (Doroshenko et al., *Connect the dots*), composed by FFT. The grid is
  refined until epsilon gains less than 0.1 %; every grid gives an upper bound, so the smallest
  is kept.
- `FixedBatchGaussian`: the same engine on the pointwise maximum of the two directions.

Rounding in the FFT (about 1e-10 of delta, not bounded by dp_accounting) is covered by
`FFT_SLACK`, which is taken off the delta asked for; a delta so small that the slack would
dominate is refused rather than reported wrongly. The bounds hold for real-valued noise; the
discreteness of floating-point noise is not part of them.

Beware of the relation: dp_accounting's PLD accountant takes sigma / C and doubles it itself where
it needs to, which is the convention here; its RDP accountant does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import accumulate, pairwise

from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from tacit.errors import InputError
from tacit.privacy.gaussian import gaussian_delta, gaussian_epsilon
from tacit.privacy.losses import fixed_batch_step, poisson_replace_step, poisson_zero_out_step
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

__all__ = ["FFT_SLACK", "SMALLEST_DELTA", "coarse_epsilon", "delta", "epsilon", "epsilon_curve"]

FFT_SLACK = 1e-9
SMALLEST_DELTA = 1e-8

_GRIDS = (1e-2, 2.5e-3, 6e-4, 1.5e-4)
_REFINE_ABOVE = 1e-3
_LARGEST_GRID = 400_000
_COARSE_GRID = 40_000
# How one step of a sampled mechanism is put on a grid: (rate, noise multiplier, grid) -> losses.
_STEPS: Mapping[
    tuple[type[Mechanism], Relation], Callable[[float, float, float], PrivacyLossDistribution]
] = {
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
    return _tightest(mechanism, lambda pld: float(pld.get_epsilon_for_delta(delta - FFT_SLACK)))


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
    bound = _tightest(mechanism, lambda pld: float(pld.get_delta_for_epsilon(epsilon)))
    return min(1.0, bound + FFT_SLACK)


def epsilon_curve(mechanism: Mechanism, marks: Sequence[int], *, delta: float) -> tuple[float, ...]:
    """Epsilon after the first `m` steps, for each `m` of the ascending `marks`; 0 after none.

    Each is an upper bound as `epsilon` gives; the work is shared, as each prefix is composed from
    the one before.

    Raises:
        InputError: delta is outside its range, or a mark is not a number of steps.
    """
    _check_delta(delta)
    multipliers = schedule(mechanism)
    if any(not 0 <= mark <= len(multipliers) for mark in marks) or list(marks) != sorted(marks):
        raise InputError("marks", list(marks), f"must ascend within 0..{len(multipliers)}")
    parts = [
        replace(mechanism, noise_multiplier=multipliers[first:until], steps=None)
        for first, until in pairwise((0, *marks))
        if until > first
    ]
    if not parts:
        return (0.0,) * len(marks)
    whole = epsilon(
        replace(mechanism, noise_multiplier=multipliers[: marks[-1]], steps=None), delta=delta
    )
    curve: list[float] = []
    if mechanism.rate == 1:
        prefix_mus = accumulate((_gaussian_mu(part) or 0.0 for part in parts), math.hypot)
        curve = [gaussian_epsilon(mu, delta) for mu in prefix_mus]
    else:
        curve = [math.inf] * len(parts)
        for grid in _grids(mechanism):
            prefixes = accumulate(
                (_compose(part, grid) for part in parts), lambda done, part: done.compose(part)
            )
            curve = [float(pld.get_epsilon_for_delta(delta - FFT_SLACK)) for pld in prefixes]
            if curve[-1] <= whole * (1 + 2 * _REFINE_ABOVE):
                break
    # Epsilon never falls, and the whole bounds every prefix.
    found = iter(min(bound, whole) for bound in curve)
    value = 0.0
    result = []
    for first, until in pairwise((0, *marks)):
        value = next(found) if until > first else value
        result.append(value)
    return tuple(result)


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise InputError("delta", delta, "must lie strictly between 0 and 1")


def _gaussian_mu(mechanism: Mechanism) -> float | None:
    """The Gaussian-DP parameter where every record is taken at every step; else None."""
    if mechanism.rate < 1:
        return None
    sensitivity = 2.0 if mechanism.relation == REPLACE_ONE else 1.0
    return sensitivity * math.hypot(*(math.sqrt(n) / z for z, n in levels(mechanism)))


def coarse_epsilon(mechanism: Mechanism, *, delta: float) -> float:
    """An upper bound as `epsilon` gives, looser and several times faster: for searching only."""
    if _gaussian_mu(mechanism) is not None or not SMALLEST_DELTA <= delta < 1:
        return epsilon(mechanism, delta=delta)
    for grid in _grids(mechanism)[:1]:
        return float(_compose(mechanism, grid).get_epsilon_for_delta(delta - FFT_SLACK))
    return math.inf


def _tightest(mechanism: Mechanism, read: Callable[[PrivacyLossDistribution], float]) -> float:
    """Refine the grid until the bound stops improving; all grids give upper bounds."""
    best = math.inf
    for grid in _grids(mechanism):
        bound = read(_compose(mechanism, grid))
        improved = best - bound
        best = min(best, bound)
        if improved <= _REFINE_ABOVE * best:
            break
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


def _compose(mechanism: Mechanism, grid: float) -> PrivacyLossDistribution:
    """The privacy loss distribution of all steps, on a grid of losses."""
    single = _STEPS[type(mechanism), mechanism.relation]
    parts = [
        single(mechanism.rate, multiplier, grid).self_compose(steps)
        for multiplier, steps in levels(mechanism)
    ]
    return reduce(lambda whole, part: whole.compose(part), parts)
