"""Where and how finely to look: the tilt, the line and the cells that a question deserves.

Nothing here is part of a proof: any choice gives bounds that hold, a good one gives tight ones.
A coarse survey of the losses (Chernoff's bounds on a lattice of orders) locates the answer; every
number is then rounded to a lattice, so that neighbouring questions share tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri_exp

from tacit.privacy.accounting.atoms import Cut, above, log_moments
from tacit.privacy.accounting.gaussian import Array
from tacit.privacy.accounting.parts import (
    GaussianPart,
    LaplacePart,
    MixedPart,
    Part,
    StepsPart,
    scaled,
)
from tacit.privacy.accounting.spectrum import SMOOTHEST, Contour
from tacit.privacy.accounting.steps import Step, design

__all__ = ["GRAIN", "Resolution", "Survey", "laplace_transform", "resolve", "survey", "tilted_gain"]

ORDERS = np.geomspace(1e-6, 1e7, 264)
_LOG_BEST = -ORDERS * np.log1p(1 / ORDERS) - np.log1p(ORDERS)  # log k(s), see `spectrum`
_SURVEY_CELLS = 80
_SURVEY_MORE = 2  # for each standard deviation of outputs
_HIGHER = 10  # orders
_CANDIDATES = 24
_SURVEYED = 12  # levels
# Share of epsilon (or of 1 / theta) that cells, and smoothing, may each take.
GRAIN = 1.0e-4
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
    """What an answer is computed with.

    Args:
        line: where transforms are taken.
        cut: how steps are cut into cells.
        rough: only about where the answer lies is asked.
    """

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


def _steps_moments(part: StepsPart, reverse: bool, reach: float) -> Array:
    total = np.zeros(len(ORDERS))
    for level, count in surveyed(part).levels.pairs():
        total += count * _step_moments(scaled(part.unit, level), reverse, reach)
    return total


@lru_cache(maxsize=1024)
def _step_moments(step: Step, reverse: bool, reach: float) -> Array:
    low, high = step.interval(reach)
    cells = min(_SURVEY_CELLS + math.ceil(_SURVEY_MORE * (high - low)), _MOST_CELLS)
    binned = step.binned(np.linspace(low, high, cells + 1))
    return log_moments(above(binned.reverse if reverse else binned), ORDERS)


def tilted_gain(step: Step, reverse: bool, at: Resolution) -> float:
    """About E[e^(theta loss)] - 1 at the slope that cells are laid for."""
    order = int(np.argmin(np.abs(ORDERS - at.cut.tilt)))
    return float(np.expm1(min(700.0, _step_moments(step, reverse, at.cut.reach)[order])))


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
    StepsPart: _steps_moments,
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

    Args:
        parts: the losses.
        reverse: their direction.
        loss_survey: their survey.
        epsilon: about where delta is asked for.
        log_delta: logarithm of about what it is there.
        rough: about where is enough.
        finer: what every error is divided by.
    """
    best = _best(loss_survey, epsilon, log_delta)
    order, window, above, below = _narrowest(loss_survey, best, epsilon, log_delta, steps_of(parts))
    tilt, slope = float(ORDERS[order]), float(ORDERS[best])
    error = (_ROUGH if rough else GRAIN) * max(abs(epsilon), _FLAT / slope)
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
    StepsPart: lambda part, reverse, tilt, reach: sum(
        count * design(scaled(part.unit, level), reverse, tilt, reach).error
        for level, count in surveyed(part).levels.pairs()
    ),
    MixedPart: lambda part, reverse, tilt, reach: (
        part.rounds * part.share * _cells_size(part.inner, reverse, tilt, reach)
    ),
}
