"""The transforms of steps: where and how finely to look, and thousands of levels as a few dozen.

*Resolution*: the tilt, the line and the cells that a question deserves. Nothing of it is part of a
proof: any choice gives bounds that hold, a good one gives tight ones. A coarse survey of the losses
(Chernoff's bounds on a lattice of orders) locates the answer; every number is then rounded to a
lattice, so that neighbouring questions share tables.

*Tables*, where there are more than `EXACT` different noise levels. Zero-out and fixed-batch steps:
the Gaussian profile is convex in TV(mu) = 2 Phi(mu/2) - 1, so that a mixture of the losses of two
levels, weighed by TV, dominates what lies between (`by_total_variation`). Below, for zero-out
steps, it is concave in its own value at a far epsilon but for an excess beyond that, which is taken
off (`by_tail`). Everywhere else levels are rounded, up or down: a step of larger mu can be turned
into one of smaller mu by adding noise. The steps of one bracket multiply to prod_k c (1 + v_k x),
whose logarithm is a power series in sums of powers of v_k; what is cut off of it is added to the
error. Proofs: `docs/proofs/composition.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf, erfc, ndtr, ndtri, ndtri_exp

from tacit.privacy.accounting.dominating_pairs import (
    GaussianPart,
    LaplacePart,
    MixedPart,
    NormalStep,
    Part,
    Step,
    StepsPart,
    design,
)
from tacit.privacy.accounting.gaussian import Array, gaussian_profile
from tacit.privacy.accounting.listed import ListPart
from tacit.privacy.accounting.spectrum import (
    SMOOTHEST,
    UNIT,
    Complex,
    Contour,
    Cut,
    Spectrum,
    Transform,
    above,
    atoms,
    list_atoms,
    log_moments,
    spectrum,
    sum_of,
    transform,
)

ORDERS = np.geomspace(1e-6, 1e7, 264)
_LOG_BEST = -ORDERS * np.log1p(1 / ORDERS) - np.log1p(ORDERS)  # log k(s), see `spectrum`
_SURVEY_CELLS = 80
_SURVEY_MORE = 2  # for each standard deviation of outputs
_HIGHER = 10  # orders
_CANDIDATES = 24
_SURVEYED = 12  # levels
# Share of epsilon (or of 1 / theta) that cells, and smoothing, may each take.
_GRAIN = 1.0e-4
_ROUGH = 3e-3
_STEEP = 0.05
_BEYOND = 30.0
_FLAT = 0.02  # an epsilon below this share of 1 / theta needs no finer answer
_LARGEST_LINE = 1 << 16
_MOST_CELLS = 1 << 12
_NEGLIGIBLE = 1e-7  # of delta: aliases
_ROUNDED = 1e-5  # of delta: rounding, where there is a choice
_CUT = 6.8  # e^(-_CUT^2 / 2) = 1e-10
_CUT_OFF = 1e-6  # of delta: truncation


@dataclass(frozen=True, eq=False)
class Survey:
    """Coarse upper bounds of log E[e^(s loss)] at `ORDERS`, `[orders]`."""

    moments: Array
    reach: float

    def epsilon(self, log_delta: float) -> float:
        """Chernoff's bound on epsilon."""
        return float(np.nanmin((self.moments + _LOG_BEST - log_delta) / ORDERS))

    def log_delta(self, epsilon: float) -> float:
        """Chernoff's bound on log delta."""
        return float(np.nanmin(self.moments + _LOG_BEST - ORDERS * epsilon))


@dataclass(frozen=True)
class Resolution:
    """What an answer is computed with; `rough`: only about where the answer lies is asked."""

    line: Contour
    cut: Cut
    rough: bool


def reach_for(log_delta: float, steps: float) -> float:
    """Standard deviations beyond which the masses of all steps are negligible against delta."""
    wanted = min(log_delta, 0.0) + math.log(_NEGLIGIBLE) - math.log(max(1.0, steps))
    return min(37.0, math.ceil(-2 * float(ndtri_exp(wanted))) / 2)


def steps_of(parts: tuple[Part, ...]) -> float:
    """Number of steps of all parts."""
    return sum(_STEPS[type(part)](part) for part in parts)


_STEPS: Mapping[type[Part], Callable[[Any], float]] = {
    GaussianPart: lambda part: 1,
    LaplacePart: lambda part: part.levels.steps,
    ListPart: lambda part: part.count,
    StepsPart: lambda part: part.levels.steps,
    MixedPart: lambda part: part.rounds * part.share * steps_of(part.inner),
}


def survey(parts: tuple[Part, ...], reverse: bool, reach: float) -> Survey:
    """Chernoff's bounds of a sum of losses, within some percent."""
    with np.errstate(over="ignore", invalid="ignore"):
        return Survey(_moments(parts, reverse, reach), reach)


def _moments(parts: tuple[Part, ...], reverse: bool, reach: float) -> Array:
    total = np.zeros(len(ORDERS))
    for part in parts:
        total = total + _SURVEYS[type(part)](part, reverse, reach)
    return total


def surveyed(part: StepsPart) -> StepsPart:
    """Few levels that stand for all: of a lattice, rounded up."""
    if len(part.levels) <= _SURVEYED:
        return part
    top = float(part.levels.values[-1])
    grain = 2.0 ** (math.ceil(4 * math.log2(top / _SURVEYED)) / 4)
    return StepsPart(part.unit, part.levels.rounded(grain, up=True))


@lru_cache(maxsize=1024)
def _step_moments(step: Step, reverse: bool, reach: float) -> Array:
    low, high = step.interval(reach)
    cells = min(_SURVEY_CELLS + math.ceil(_SURVEY_MORE * (high - low)), _MOST_CELLS)
    binned = step.binned(np.linspace(low, high, cells + 1))
    return log_moments(above(binned.reverse if reverse else binned), ORDERS)


def laplace_transform(shift: float, z: NDArray[Any]) -> NDArray[Any]:
    """Log E[e^(z loss)] of Laplace noise: atoms of mass 1/2 at `shift` and e^-shift / 2 at -shift.

    Between them the density is e^((loss - shift) / 2) / 4. Formed relative to e^(z shift).
    """
    falling = np.exp(-(2 * z + 1) * shift)
    logarithms = z * shift + np.log(
        (1 + falling - np.expm1(-(2 * z + 1) * shift) / (2 * z + 1)) / 2
    )
    return np.asarray(logarithms)


_SURVEYS: Mapping[type[Part], Callable[[Any, bool, float], Array]] = {
    GaussianPart: lambda part, reverse, reach: part.square * ORDERS * (ORDERS + 1) / 2,
    LaplacePart: lambda part, reverse, reach: sum(
        count * laplace_transform(shift, ORDERS) for shift, count in part.levels.pairs()
    ),
    StepsPart: lambda part, reverse, reach: sum(
        (
            count * _step_moments(part.unit.scaled(level), reverse, reach)
            for level, count in surveyed(part).levels.pairs()
        ),
        np.zeros(len(ORDERS)),
    ),
    ListPart: lambda part, reverse, reach: part.count * log_moments(list_atoms(part), ORDERS),
    MixedPart: lambda part, reverse, reach: (
        part.rounds
        * np.logaddexp(
            math.log(part.share) + _moments(part.inner, reverse, reach),
            math.log1p(-part.share) if part.share < 1 else -np.inf,
        )
    ),
}


def resolve(
    parts: tuple[Part, ...],
    reverse: bool,
    loss_survey: Survey,
    epsilon: float,
    log_delta: float,
    *,
    rough: bool = False,
    finer: float = 1.0,
) -> Resolution:
    """The line and the cells for an answer near (epsilon, delta).

    `epsilon` is about where delta is asked for, and `log_delta` the logarithm of about what it is
    there. With `rough`, about where is enough; `finer` is what every error is divided by.
    """
    best = _best(loss_survey, epsilon, log_delta)
    order, window, above, below = _narrowest(loss_survey, best, epsilon, log_delta, steps_of(parts))
    tilt, slope = float(ORDERS[order]), float(ORDERS[best])
    error = (_ROUGH if rough else _GRAIN) * max(abs(epsilon), _FLAT / slope)
    # At the end of bounded losses the slope is so steep that an error in log delta is what counts.
    error = min(error, _STEEP / slope) / finer
    # A variance v more, or less, moves epsilon by about (1 + slope) v / 2.
    smooth = min(SMOOTHEST, _down(math.sqrt(2 * error / (1 + slope)), 2))
    gaussian = math.sqrt(sum(part.square for part in parts if isinstance(part, GaussianPart)))
    spread = max(smooth, gaussian)
    top = _cut(loss_survey, order, epsilon, log_delta, spread) / spread
    count = top * window / (2 * math.pi)
    if count > _LARGEST_LINE:
        smooth = _CUT * window / (2 * math.pi * _LARGEST_LINE)
        count = _LARGEST_LINE
    count = max(64, 32 * math.ceil(count / 32))
    line = Contour(tilt, 2 * math.pi / window, count, smooth, above, below)
    size = _cells_size(parts, reverse, slope, loss_survey.reach)
    cells = _up(math.sqrt((1 + slope) / 12 * size / error), 2)
    most = 2.0 ** math.ceil(math.log2(max(epsilon, 0.0) + 3 / slope))
    width = max(_down(math.sqrt(16 * error / (1 + slope)), 2), most / _MOST_CELLS)
    cut = Cut(slope, loss_survey.reach, int(min(max(cells, 64), _MOST_CELLS)), width, most)
    return Resolution(line, cut, rough)


def _down(value: float, lattice: int) -> float:
    return float(2.0 ** (math.floor(lattice * math.log2(value)) / lattice))


def _up(value: float, lattice: int) -> float:
    return float(2.0 ** (math.ceil(lattice * math.log2(max(value, 1e-300))) / lattice))


def _cut(loss_survey: Survey, order: int, epsilon: float, log_delta: float, spread: float) -> float:
    """C = T x spread for which what lies beyond T is negligible: e^(-c^2 / 2) / (pi T c^2)."""
    gain = (
        float(loss_survey.moments[order]) - ORDERS[order] * epsilon - log_delta - math.log(_CUT_OFF)
    )
    needed = _CUT
    for _ in range(3):
        needed = math.sqrt(2 * max(2.0, gain + math.log(spread / (math.pi * needed**3))))
    return min(needed, 2 * _CUT)


def _best(loss_survey: Survey, epsilon: float, log_delta: float) -> int:
    """The best of Chernoff's orders: about the slope of -log delta.

    Where losses are bounded and epsilon is near their end, or beyond it, there is none: the first
    will do whose bound is far below delta. Where delta is about 1, the last whose bound is.
    """
    bounds = (loss_survey.moments + _LOG_BEST - ORDERS * epsilon)[:-_HIGHER]
    least = float(np.nanmin(bounds))
    if least < log_delta - _BEYOND:
        return int(np.argmax(bounds <= log_delta - _BEYOND))
    return int(np.flatnonzero(bounds <= least + (0.05 if least < -1 else 1.0))[-1])


def _narrowest(
    loss_survey: Survey, best: int, epsilon: float, log_delta: float, steps: float
) -> tuple[int, float, float, float]:
    """The order that needs the shortest line, the window, and the orders that bound aliases.

    The best of Chernoff's orders makes errors least, but its window may be long: where a rare
    large loss takes over at slightly higher orders. Lower ones will do if rounding allows it.
    """
    bounds = loss_survey.moments + _LOG_BEST - ORDERS * epsilon
    # Where there is none, one that is never the least: NumPy's nanargmin for 25 windows took a
    # third of a calibration.
    bounds = np.where(np.isnan(bounds), np.inf, bounds)
    room = max(1.0, math.log(_ROUNDED / (1e-12 + 3e-14 * steps)) - (bounds[best] - log_delta))
    among = np.flatnonzero(
        bounds[: min(best + _HIGHER, len(ORDERS) - _HIGHER)] < bounds[best] + room
    )
    among = np.union1d(among[:: 1 + len(among) // _CANDIDATES], [best])
    chosen = [(order, *_window(bounds, order, log_delta)) for order in among.tolist()]
    return min(chosen, key=lambda choice: (choice[1], abs(choice[0] - best)))


def _window(bounds: Array, order: int, log_delta: float) -> tuple[float, float, float]:
    """The least window whose aliases are negligible, and the orders that bound them."""
    tilt = ORDERS[order]
    target = log_delta + math.log(_NEGLIGIBLE)
    # Orders far above theta would rest on where the survey's losses happen to end.
    higher = slice(order + 1, order + 1 + _HIGHER)
    # An alias at distance W falls below the target from W = (bound - target) / (distance of
    # orders) on.
    after = (bounds[higher] - target) / (ORDERS[higher] - tilt)
    orders = np.append(0.0, ORDERS[:order])
    before = (np.append(0.0, bounds[:order]) - target) / (tilt - orders)
    above, below = int(after.argmin()), int(before.argmin())
    least = max(float(after[above]), float(before[below]), 1 / tilt)
    return _up(least, 4), float(ORDERS[order + 1 + above]), float(orders[below])


def _cells_size(parts: tuple[Part, ...], reverse: bool, tilt: float, reach: float) -> float:
    return sum(_SIZES[type(part)](part, reverse, tilt, reach) for part in parts)


_SIZES: Mapping[type[Part], Callable[[Any, bool, float, float], float]] = {
    GaussianPart: lambda part, reverse, tilt, reach: 0.0,
    LaplacePart: lambda part, reverse, tilt, reach: 0.0,
    ListPart: lambda part, reverse, tilt, reach: 0.0,
    StepsPart: lambda part, reverse, tilt, reach: sum(
        count * design(part.unit.scaled(level), reverse, tilt, reach).error
        for level, count in surveyed(part).levels.pairs()
    ),
    MixedPart: lambda part, reverse, tilt, reach: (
        part.rounds * part.share * _cells_size(part.inner, reverse, tilt, reach)
    ),
}


Integers = NDArray[np.int64]

EXACT = 32  # as many different levels are composed as they are
_LEVELS = {True: 60, False: 160}  # of a table, above and below
_FEW = 16  # of a table that only has to say about where
_EVEN = 0.15  # share of a table's levels that is spread evenly
_ROUNDED_LEVELS = 128
_NOTHING = -50.0
_SERIES = 1e-9  # error of a power series, relative to M(theta)


def steps_spectrum(part: StepsPart, reverse: bool, upper: bool, resolution: Resolution) -> Spectrum:
    """The spectrum of the steps of a part, above or below the true one."""
    if len(part.levels) <= EXACT:
        return _exactly(part, reverse, upper, resolution)
    if interpolates(part.unit):
        return _interpolated(part, reverse, upper, resolution)
    grain = 2.0 ** math.ceil(math.log2(float(part.levels.values[-1]) / _ROUNDED_LEVELS))
    rounded = StepsPart(part.unit, part.levels.rounded(grain, up=upper))
    return _exactly(rounded, reverse, upper, resolution)


def interpolates(unit: Step) -> bool:
    """Mixtures of two levels bound what lies between."""
    one_row = isinstance(unit, NormalStep) and unit.rows == 1
    return one_row and unit.undrawn_mean == 0 and unit.opposite == 0  # type: ignore[union-attr]


def _exactly(part: StepsPart, reverse: bool, upper: bool, resolution: Resolution) -> Spectrum:
    line = resolution.line
    nothing = Spectrum(line, np.zeros(line.count + 3, dtype=np.complex128))  # a loss of 0
    return sum_of(
        [
            (_level(part.unit, level, reverse, upper, resolution), count)
            for level, count in part.levels.pairs()
            if level > 0
        ]
        or [(nothing, 1)]
    )


@lru_cache(maxsize=96)
def _level(
    unit: Step, level: float, reverse: bool, upper: bool, resolution: Resolution
) -> Spectrum:
    step = unit.scaled(level)
    return spectrum(atoms(step, reverse, upper, resolution.cut), resolution.line)


@dataclass(frozen=True, eq=False)
class _Table:
    """The steps between neighbouring levels, ready to be multiplied by sums of powers."""

    line: Contour  # where transforms are taken
    # log c of all brackets, then x of all, then -x^2 / 2, x^3 / 3, ..., `[(1 + order), brackets,
    # points]`.
    series: Complex
    order: int  # J
    sizes: Array  # log max(|M_a|, |M_b|) of each bracket, `[brackets, points]`
    remainder: Array  # of the power series of one step, `[brackets, points]`
    anchors: Array  # logarithms at the line's two orders, of each end, `[brackets + 1, 2]`
    rounding: tuple[float, float]  # of one step, the largest
    infinite: Array  # mass at infinite loss of one step, of each bracket

    def product(
        self, brackets: Integers, weights: Array, counts: Integers
    ) -> tuple[Complex, float]:
        """Logarithm of the product of steps at each of the line's points, and its relative error.

        Of each level its bracket, weight w and number of steps, `[levels]`.
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
    infinite = [each.infinite for each in transforms]
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
        np.maximum(infinite[:-1], infinite[1:]),
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
    return transform(atoms(unit.scaled(level), reverse, upper, resolution.cut), line)


def _ends(part: StepsPart, reverse: bool, upper: bool, resolution: Resolution) -> tuple[float, ...]:
    """Levels of a table that spans those of a part, dense where they matter.

    What a level adds to delta rises about as e^(c level); the distance of levels for which the
    error of interpolation is spread evenly then falls as e^(-c level / 3).
    """
    values = part.levels.values
    top = 2.0 ** (math.ceil(32 * math.log2(float(values[-1]))) / 32)
    order, reach = int(np.argmin(np.abs(ORDERS - resolution.cut.tilt))), resolution.cut.reach
    # About E[e^(theta loss)] - 1 at the slope that cells are laid for.
    gains = [
        float(np.expm1(min(700.0, _step_moments(step, reverse, reach)[order])))
        for step in (part.unit.scaled(share * top) for share in (1.0, 0.75))
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
    line, unit = resolution.line, part.unit
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
    of what lies beyond the reach for which cells are laid; see `reach_for`.
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
