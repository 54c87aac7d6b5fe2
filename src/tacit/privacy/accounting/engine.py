"""Bounds on delta and epsilon of a sum of independent privacy losses, each with its proof.

Every figure comes from atoms above or below the pair (`atoms`), composed on a line of the complex
plane (`spectrum`, `tables`); `resolution` says where, and no choice of its makes a bound invalid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tacit.privacy.accounting.atoms import UNIT
from tacit.privacy.accounting.parts import GaussianPart, LaplacePart, MixedPart, Part, StepsPart
from tacit.privacy.accounting.resolution import (
    Resolution,
    Survey,
    laplace_transform,
    reach_for,
    resolve,
    steps_of,
    survey,
    surveyed,
)
from tacit.privacy.accounting.spectrum import Spectrum, mixed, sum_of
from tacit.privacy.accounting.tables import interpolates, steps_spectrum

__all__ = [
    "about",
    "delta_bound",
    "epsilon_bound",
    "is_symmetric",
]

_NEAR = 0.1  # an answer is looked for again where the first guess was off by more
_ROUGHLY_NEAR = 0.6  # and about where it is
_EXACT = 1e-9
_BENT = 0.02  # share of delta that smoothing may change
_LOG_TINY = -700.0  # below it delta is no number
_FIRST_GUESS = 0.5  # of Chernoff's bound, at least


def is_symmetric(parts: tuple[Part, ...]) -> bool:
    """Both directions have the same losses."""
    return all(_SYMMETRIC[type(part)](part) for part in parts)


_SYMMETRIC: Mapping[type[Part], Callable[[Any], bool]] = {
    GaussianPart: lambda part: True,
    LaplacePart: lambda part: True,
    StepsPart: lambda part: part.unit.both_ways,
    MixedPart: lambda part: is_symmetric(part.inner),
}


def _spectrum(parts: tuple[Part, ...], reverse: bool, upper: bool, at: Resolution) -> Spectrum:
    return sum_of([(_SPECTRA[type(part)](part, reverse, upper, at), 1) for part in parts])


def _gaussian(part: GaussianPart, reverse: bool, upper: bool, at: Resolution) -> Spectrum:
    z = at.line.points
    return Spectrum(at.line, part.square * z * (z + 1) / 2, (16 * UNIT, 0.0), gaussian=part.square)


def _laplace(part: LaplacePart, reverse: bool, upper: bool, at: Resolution) -> Spectrum:
    z = at.line.points
    log = np.zeros(len(z), dtype=np.complex128)
    for shift, count in part.levels.pairs():
        log += count * laplace_transform(shift, z)
    steps = part.levels.steps
    size = float((part.levels.values * part.levels.counts).sum())
    return Spectrum(at.line, log, (64 * UNIT * steps, 8 * UNIT * size))


def _mixed(part: MixedPart, reverse: bool, upper: bool, at: Resolution) -> Spectrum:
    return mixed(_spectrum(part.inner, reverse, upper, at), part.share, part.rounds)


_SPECTRA: Mapping[type[Part], Callable[[Any, bool, bool, Resolution], Spectrum]] = {
    GaussianPart: _gaussian,
    LaplacePart: _laplace,
    StepsPart: steps_spectrum,
    MixedPart: _mixed,
}


def epsilon_bound(
    parts: tuple[Part, ...],
    reverse: bool,
    upper: bool,
    log_delta: float,
    *,
    guess: float | None = None,
    enough: float = 0.0,
) -> float:
    """An epsilon >= 0 that holds at delta (upper), or below which none holds (lower).

    Args:
        parts: the losses.
        reverse: their direction.
        upper: which bound.
        log_delta: logarithm of delta.
        guess: about what the answer is.
        enough: an upper bound this low is not made any lower.
    """
    loss_survey = survey(parts, reverse, reach_for(log_delta, steps_of(parts)))
    most = loss_survey.epsilon(log_delta)
    if upper and most <= enough:
        return max(0.0, most)
    if guess is None:
        guess = _roughly(parts, reverse, loss_survey, most, log_delta)
    delta = math.exp(log_delta)
    value, finer = most, 1.0
    for _ in range(4):
        at = resolve(parts, reverse, loss_survey, guess, log_delta, finer=finer)
        losses = _spectrum(parts, reverse, upper, at)
        value = _root(
            losses.upper if upper else losses.lower, upper, delta, guess, at.line.window / 256
        )
        bent = losses.bend(value) if math.isfinite(value) else 0.0
        is_close = abs(value - guess) <= _NEAR * guess + 0.1 / at.line.tilt
        if not math.isfinite(value) or (is_close and bent <= _BENT):
            break
        # Delta changes on a smaller scale than its slope says.
        finer *= min(64.0, max(1.0, 2 * bent / _BENT))
        guess = max(value, 0.01 / at.line.tilt)
    return value


def about(parts: tuple[Part, ...], log_delta: float) -> float:
    """About what epsilon is at delta, within some percent: no bound."""
    directions = (False,) if is_symmetric(parts) else (False, True)
    largest = 0.0
    for reverse in directions:
        loss_survey = survey(parts, reverse, reach_for(log_delta, steps_of(parts)))
        most = loss_survey.epsilon(log_delta)
        if most > largest:
            largest = max(largest, _roughly(parts, reverse, loss_survey, most, log_delta))
    return largest


def _roughly(
    parts: tuple[Part, ...], reverse: bool, loss_survey: Survey, most: float, log_delta: float
) -> float:
    """About what epsilon is, from few levels and few cells."""
    few = tuple(_fewer(part) if isinstance(part, StepsPart) else part for part in parts)
    # Chernoff's bound on delta is some e^3 times delta.
    guess = max(loss_survey.epsilon(min(0.0, log_delta + 3)), _FIRST_GUESS * most)
    for _ in range(4):
        at = resolve(few, reverse, loss_survey, guess, log_delta, rough=True)
        losses = _spectrum(few, reverse, True, at)
        value = _root(losses.upper, True, math.exp(log_delta), guess, at.line.window / 256)
        is_close = abs(value - guess) <= _ROUGHLY_NEAR * guess
        guess = min(most, max(value, 0.01 / at.line.tilt))
        if is_close:
            break
    return guess


def _fewer(part: StepsPart) -> StepsPart:
    return part if interpolates(part.unit) else surveyed(part)


def _root(
    bound: Callable[[float], float],
    upper: bool,
    delta: float,
    start: float,
    step: float,
    tolerance: float = _EXACT,
) -> float:
    """The end of the epsilons at which a bound on delta lies on the right side of delta.

    Whatever it returns was tried: there an upper bound was at most delta, a lower one above it.

    Args:
        bound: on delta, at an epsilon.
        upper: which.
        delta: sought.
        start: where to begin.
        step: how far to go at first.
        tolerance: relative.
    """

    def excess(epsilon: float) -> float:
        value = bound(epsilon)
        return math.log(value / delta) if value > 0 else -1e3

    low, high = 0.0, start
    at_low = math.nan
    at_high = excess(high)
    if at_high > 0:
        while at_high > 0:
            low, at_low = high, at_high
            high, step = high + step, 2 * step
            at_high = excess(high)
            if high > 64 * start:
                return math.inf if upper else low
    else:
        low, at_low = high, at_high
        while at_low <= 0:
            if low == 0:
                return 0.0
            high, at_high = low, at_low
            low, step = max(0.0, low - step), 2 * step
            at_low = excess(low)
    side = 0
    for _ in range(100):
        if high - low <= tolerance * high:
            break
        share = at_low / (at_low - at_high)
        middle = low + (high - low) * min(max(share, 1e-3), 1 - 1e-3)
        value = excess(middle)
        if value > 0:
            low, at_low = middle, value
            at_high /= 2 if side == 1 else 1
            side = 1
        else:
            high, at_high = middle, value
            at_low /= 2 if side == -1 else 1
            side = -1
    return high if upper else low


def delta_bound(parts: tuple[Part, ...], reverse: bool, upper: bool, epsilon: float) -> float:
    """A delta that holds at epsilon (upper), or below which none holds (lower)."""
    steps = steps_of(parts)
    loss_survey = survey(parts, reverse, reach_for(math.log(1e-4), steps))
    log_delta = loss_survey.log_delta(epsilon)
    reach = reach_for(log_delta, steps)
    if reach != loss_survey.reach:
        loss_survey = survey(parts, reverse, reach)
    log_delta = loss_survey.log_delta(epsilon)
    at = resolve(parts, reverse, loss_survey, epsilon, max(log_delta - 3, _LOG_TINY))
    losses = _spectrum(parts, reverse, upper, at)
    return min(1.0, losses.upper(epsilon)) if upper else max(0.0, losses.lower(epsilon))
