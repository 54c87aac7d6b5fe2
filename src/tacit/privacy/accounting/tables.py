r"""Thousands of different noise levels at the price of a few dozen, as bounds.

*Above.* Zero-out and fixed-batch steps only. d delta_mu(eps) / d TV(mu), TV(mu) = 2 Phi(mu/2) - 1,
is exp(eps/2 - eps^2 / (2 mu^2)) for the Gaussian profile delta_mu: it does not fall with mu, so
delta_mu(eps) is convex in TV(mu) for every real eps. For mu in [a, b], w = (TV(mu) - TV(a)) /
(TV(b) - TV(a)), the mixture of losses (1-w) L_a + w L_b therefore has a profile on or above that of
L_mu. Sampling maps a profile to a positive affine image of it, in both directions, and the
symmetric profile is a maximum of two: convex as well.

*Below.* Zero-out steps only. With s(mu) = delta_mu(E), d delta_mu(eps) / d s = c exp((E^2 - eps^2)
/ (2 mu^2)), c > 0 free of mu, falls with mu for |eps| <= E: there delta_mu(eps) is concave in
s(mu), and the mixture with w by s lies on or below. Beyond E it exceeds by at most delta_b(E), what
the mixture is there (for eps < -E likewise: delta(-eps) = 1 - e^-eps + e^-eps delta(eps)). Sampling
multiplies that by q (by q / (1-q) e^-E or less at the far end of the reverse). If one step's
profile exceeds by at most h, a composition's does by at most h: the others have mass 1 or less. So
the number of steps times q delta_b(E) is taken off.

Everywhere else levels are rounded, up or down: a step of larger mu can be turned into one of
smaller mu by adding noise. The gap is then of first order in the distance of levels.

*Power sums*. With c = (M_a + M_b) / 2 and x = (M_b - M_a) / (M_a + M_b), the steps of one bracket
multiply to prod_k c (1 + v_k x), v_k = 2 w_k - 1, whose logarithm is n log c + sum_j (-1)^(j+1) x^j
V_j / j with V_j = sum_k v_k^j, |V_j| <= n. Cut after x^J it is off by at most
n |x|^(J+1) / ((J+1) (1 - |x|)), which is added to the relative error. Where the product is below
e^-50 of its value at theta for every choice of weights it is not formed: it counts as that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf, erfc, ndtr, ndtri

from tacit.privacy.accounting.atoms import UNIT, atoms
from tacit.privacy.accounting.gaussian import Array, gaussian_profile
from tacit.privacy.accounting.parts import StepsPart, scaled
from tacit.privacy.accounting.resolution import Resolution, tilted_gain
from tacit.privacy.accounting.spectrum import (
    Complex,
    Contour,
    Spectrum,
    Transform,
    spectrum,
    sum_of,
    transform,
)
from tacit.privacy.accounting.steps import NormalStep, Step

__all__ = [
    "EXACT",
    "by_tail",
    "by_total_variation",
    "clear",
    "interpolates",
    "steps_spectrum",
]

Integers = NDArray[np.int64]

EXACT = 32  # as many different levels are composed as they are
_LEVELS = {True: 60, False: 160}  # of a table, above and below
_FEW = 16  # of a table that only has to say about where
_EVEN = 0.15  # share of a table's levels that is spread evenly
_ROUNDED = 128
_NOTHING = -50.0
_SERIES = 1e-9  # error of a power series, relative to M(theta)


def steps_spectrum(part: StepsPart, reverse: bool, upper: bool, resolution: Resolution) -> Spectrum:
    """The spectrum of the steps of a part, above or below the true one."""
    if len(part.levels) <= EXACT:
        return _exactly(part, reverse, upper, resolution)
    if interpolates(part.unit):
        return _interpolated(part, reverse, upper, resolution)
    grain = 2.0 ** math.ceil(math.log2(float(part.levels.values[-1]) / _ROUNDED))
    rounded = StepsPart(part.unit, part.levels.rounded(grain, up=upper))
    return _exactly(rounded, reverse, upper, resolution)


def interpolates(unit: Step) -> bool:
    """Mixtures of two levels bound what lies between."""
    return isinstance(unit, NormalStep) and unit.undrawn_mean == 0 and unit.opposite == 0


def _exactly(part: StepsPart, reverse: bool, upper: bool, resolution: Resolution) -> Spectrum:
    return sum_of(
        [
            (_level(part.unit, level, reverse, upper, resolution), count)
            for level, count in part.levels.pairs()
            if level > 0
        ]
        or [(_nothing(resolution.line), 1)]
    )


def _nothing(line: Contour) -> Spectrum:
    """Of a loss that is always 0."""
    return Spectrum(line, np.zeros(line.count + 3, dtype=np.complex128))


@lru_cache(maxsize=96)
def _level(
    unit: Step, level: float, reverse: bool, upper: bool, resolution: Resolution
) -> Spectrum:
    line = resolution.line
    if level == 0:
        return _nothing(line)
    return spectrum(atoms(scaled(unit, level), reverse, upper, resolution.cut), line)


@dataclass(frozen=True, eq=False)
class _Table:
    """The steps between neighbouring levels, ready to be multiplied by sums of powers.

    Args:
        line: where transforms are taken.
        series: log c of all brackets, then x of all, then -x^2 / 2, x^3 / 3, ...,
            `[(1 + order), brackets, points]`.
        order: J.
        sizes: log max(|M_a|, |M_b|) of each bracket, `[brackets, points]`.
        remainder: of the power series of one step, `[brackets, points]`.
        anchors: logarithms at the line's two orders, of each end, `[brackets + 1, 2]`.
        rounding: of one step, the largest.
        infinite: mass at infinite loss of one step, of each bracket.
    """

    line: Contour
    series: Complex
    order: int
    sizes: Array
    remainder: Array
    anchors: Array
    rounding: tuple[float, float]
    infinite: Array

    def product(
        self, brackets: Integers, weights: Array, counts: Integers
    ) -> tuple[Complex, float]:
        """Logarithm of the product of steps at each of the line's points, and its relative error.

        Args:
            brackets: of each level, `[levels]`.
            weights: w of each level, `[levels]`.
            counts: number of steps of each level, `[levels]`.
        """
        parts = self.series.shape[1]
        powers = np.empty((1 + self.order, parts))
        spread = 2 * weights - 1
        factor = counts.astype(np.float64)
        for j in range(1 + self.order):
            powers[j] = np.bincount(brackets, factor, minlength=parts)
            factor = factor * spread
        # Real times complex, as real times real and imaginary parts in turn.
        columns = self.series.reshape(powers.size, -1).view(np.float64)
        log = (powers.ravel() @ columns).view(np.complex128)
        totals = powers[0]
        formed = totals @ self.sizes - log[0].real > _NOTHING
        error = totals @ self.remainder
        poor = np.flatnonzero(formed & (error > _SERIES))
        if len(poor):
            centre, ratio = self.series[0][:, poor], self.series[1][:, poor]
            log[poor] = totals @ centre
            for level, bracket in enumerate(brackets):
                log[poor] += counts[level] * np.log(1 + spread[level] * ratio[bracket])
        log[~formed] = _NOTHING + log[0].real
        kept = formed & (error <= _SERIES)
        with np.errstate(divide="ignore"):
            low, high = np.log1p(-weights)[:, None], np.log(weights)[:, None]
        ends = self.anchors
        anchors = counts @ np.logaddexp(low + ends[brackets], high + ends[brackets + 1])
        log = np.concatenate((log, anchors))
        return log, float(error[kept].max(initial=0.0)) + 2 * math.exp(_NOTHING)


@lru_cache(maxsize=8)
def _table(
    unit: NormalStep,
    ends: tuple[float, ...],
    steps: float,
    reverse: bool,
    upper: bool,
    resolution: Resolution,
) -> _Table:
    """The brackets between neighbouring levels, for up to so many steps."""
    line = resolution.line
    transforms = [_transform(unit, level, reverse, upper, resolution) for level in ends]
    scale = np.asarray([each.scale for each in transforms])[:, None]
    values = np.stack([each.values for each in transforms])
    values *= np.exp(scale - scale[:1])
    low, high = values[:-1], values[1:]
    total = low + high
    x = (high - low) / total
    centre = np.log(total / 2) + scale[0, 0]
    squares = values.real**2 + values.imag**2
    sizes = np.log(np.maximum(squares[:-1], squares[1:])) / 2 + scale[0, 0]
    size = np.minimum(np.sqrt(x.real**2 + x.imag**2), 0.999)
    # The order that most points need: those at which so many steps of a bracket still count.
    counted = np.where((sizes - sizes[:, :1]) * steps > _NOTHING, size, 0.0)
    counted = counted.max(axis=1)
    order = 1
    while order < 16 and _remainder(counted, order).max() * steps > _SERIES / 2:
        order += 1
    series = np.empty((1 + order, *x.shape), dtype=np.complex128)
    series[0] = centre
    power = x
    for j in range(1, 1 + order):
        np.multiply(power, (-1) ** (j + 1) / j, out=series[j])
        power = power * x
    return _Table(
        line,
        series,
        order,
        sizes,
        _remainder(size, order),
        np.stack([each.anchors for each in transforms]),
        (
            max(each.rounding[0] for each in transforms),
            max(each.rounding[1] for each in transforms),
        ),
        np.maximum(
            [each.infinite for each in transforms[:-1]], [each.infinite for each in transforms[1:]]
        ),
    )


def _remainder(size: Array, order: int) -> Array:
    power = size
    for _ in range(order):  # faster than a general power
        power = power * size
    return np.asarray(power / ((order + 1) * (1 - size)))


@lru_cache(maxsize=128)
def _transform(
    unit: NormalStep, level: float, reverse: bool, upper: bool, resolution: Resolution
) -> Transform:
    line = resolution.line
    if level == 0:
        ones = np.ones(line.count + 1, dtype=np.complex128)
        return Transform(ones, 0.0, np.zeros(2), (0.0, 0.0), 0.0)
    return transform(atoms(scaled(unit, level), reverse, upper, resolution.cut), line)


def _ends(part: StepsPart, reverse: bool, upper: bool, resolution: Resolution) -> tuple[float, ...]:
    """Levels of a table that spans those of a part, dense where they matter.

    What a level adds to delta rises about as e^(c level); the distance of levels for which the
    error of interpolation is spread evenly then falls as e^(-c level / 3).
    """
    values = part.levels.values
    top = 2.0 ** (math.ceil(32 * math.log2(float(values[-1]))) / 32)
    gains = [
        tilted_gain(scaled(part.unit, share * top), reverse, resolution) for share in (1.0, 0.75)
    ]
    growth = math.log(max(gains[0], 1e-300) / max(gains[1], 1e-300)) / 0.25 / 3
    bend = float(min(max(round(growth), 1), 24))
    levels = _FEW if resolution.rough else _LEVELS[upper]
    grid = np.linspace(0.0, 1.0, 1025)
    below = (1 - _EVEN) * np.expm1(bend * grid) / math.expm1(bend) + _EVEN * grid
    ends = top * np.interp(np.linspace(0.0, 1.0, levels + 1), below, grid)
    first = int(np.searchsorted(ends, values[0], side="right")) - 1
    return tuple(ends[first:].tolist())


def _interpolated(part: StepsPart, reverse: bool, upper: bool, resolution: Resolution) -> Spectrum:
    line = resolution.line
    unit = part.unit
    values, counts, steps = part.levels.values, part.levels.counts, part.levels.steps
    ends = _ends(part, reverse, upper, resolution)
    most = 2.0 ** math.ceil(math.log2(steps))
    table = _table(unit, ends, most, reverse, upper, resolution)
    bracket = np.searchsorted(ends, values, side="right").astype(np.int64) - 1
    bracket = np.minimum(bracket, len(ends) - 2)
    low, high = np.asarray(ends)[bracket], np.asarray(ends)[bracket + 1]
    mean, rate = unit.drawn_mean, unit.rate  # type: ignore[union-attr]
    weights, excess = (
        (by_total_variation(mean * low, mean * high, mean * values), 0.0)
        if upper
        else by_tail(mean * low, mean * high, mean * values, rate, resolution.cut.reach)
    )
    log, error = table.product(bracket, weights, counts)
    relative, steep = table.rounding
    totals = np.bincount(bracket, counts, minlength=len(ends) - 1)
    return Spectrum(
        line,
        log,
        # A weight is off by some units of roundoff over the share that a bracket is of the whole.
        rounding=((relative + 1024 * UNIT) * steps + error, steep * steps),
        infinite=min(1.0, float(totals @ table.infinite)),
        slack=excess * steps,
    )


def by_total_variation(low: Array, high: Array, mu: Array) -> Array:
    """Weights of the higher ends with which a mixture of both dominates mu, `[levels]`.

    Where no difference of the ends can be told, that is 1: the higher end alone dominates.
    """
    first, last, at = (end / math.sqrt(8) for end in (low, high, mu))
    # Beyond 1 the function is so near to 1 that its complement alone tells two values apart.
    share = np.where(
        first > 1,
        _share(-erfc(first), -erfc(last), -erfc(at), 1.0),
        _share(erf(first), erf(last), erf(at), 1.0),
    )
    return np.asarray(share, dtype=np.float64)


def _share(first: Array, last: Array, at: Array, otherwise: float) -> Array:
    """How far `at` is on the way from first to last, from 0 to 1; otherwise where both are one."""
    way = last - first
    share = np.divide(at - first, way, out=np.full(way.shape, otherwise), where=way > 0)
    return np.asarray(np.clip(share, 0.0, 1.0), dtype=np.float64)


def by_tail(low: Array, high: Array, mu: Array, rate: float, reach: float) -> tuple[Array, float]:
    """Weights with which a mixture of both ends is dominated by mu, but for an excess.

    E lies so many deviations above the mean loss that the excess of all steps is some thousandth
    of what lies beyond the reach for which cells are laid; see `resolution.reach_for`.
    """
    beyond = float(ndtri(min(0.02, float(ndtr(-reach)) * 1e3 / rate)))
    far = high * high / 2 - beyond * high
    first, last, at = (
        np.where(end > 0, gaussian_profile(np.maximum(end, 1e-300), far), 0.0)
        for end in (low, high, mu)
    )
    # The lower end alone is dominated.
    return _share(first, last, at, 0.0), rate * float(last.max()) * (1 + 1e-9)


def clear() -> None:
    """Forget all tables: about 100 MB may be kept for the next question."""
    for kept in (_table, _transform, _level):
        kept.cache_clear()
