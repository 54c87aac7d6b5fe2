"""Laws that tests of fidelity compare with, and the smallest defect that each finds.

Every function here gives a p-value that is exact, or at most too large, for independent standard
normal numbers; `docs/proofs/audits.md` has the proofs. `level` is the chance at which a test fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import brentq
from scipy.special import gammaln, ndtri

from tacit.analysis.audit.fidelity.finding import POWER

Array = NDArray[np.float64]
_MISSED = 1 - POWER


@dataclass(frozen=True)
class Look:
    """What one test saw in one sample.

    Its p-value is exact where that is said, and at most too large otherwise. `saw` is one sentence,
    without its end, and `least` the smallest defect that it finds, in the test's own measure.
    """

    statistic: float
    p_value: float
    saw: str
    least: float
    exact: bool = False


@dataclass(frozen=True)
class Extreme:
    """The least likely of several values: which, and a p-value for all together, at most."""

    index: int
    p_value: float


def two_sided(scores: Array) -> Extreme:
    """The largest absolute value of standard normal numbers, which may depend on each other."""
    index = int(np.argmax(np.abs(scores)))
    return Extreme(index, min(1.0, 2.0 * len(scores) * float(stats.norm.sf(abs(scores[index])))))


def least_likely(tails: Array, sides: int = 2) -> Extreme:
    """The least of p-values of one side, `[n]`, by the union bound over all and over the sides."""
    index = int(np.argmin(tails))
    return Extreme(index, min(1.0, sides * len(tails) * float(tails[index])))


def extreme_sizes(sizes: Array, freedom: Array) -> Extreme:
    """The least likely of chi-square numbers of so many degrees, `[n]`, too large or too small."""
    chosen = np.arange(len(sizes))
    if len(np.unique(freedom)) == 1:  # two candidates, and no more tails to work out
        chosen = np.array([int(np.argmin(sizes)), int(np.argmax(sizes))])
    law = stats.chi2(freedom[chosen])
    tails = np.ones(len(sizes))
    tails[chosen] = np.minimum(law.cdf(sizes[chosen]), law.sf(sizes[chosen]))
    return least_likely(tails)


def lowest_factor(freedom: float, groups: int, level: float) -> float:
    """The largest factor on a size that `extreme_sizes` finds in one group with chance `POWER`."""
    critical = stats.chi2.ppf(level / (2 * groups), freedom)
    return float(critical / stats.chi2.ppf(POWER, freedom))


def shift_found(tests: int, level: float) -> float:
    """The least shift of one standard normal that `two_sided` finds with chance `POWER`."""
    return float(stats.norm.isf(level / (2 * tests)) + stats.norm.isf(_MISSED))


def expected_length(width: int) -> float:
    """The mean length of a vector of `width` standard normal numbers."""
    return math.sqrt(2.0) * math.exp(gammaln((width + 1) / 2) - gammaln(width / 2))


def pair_correlation(cosine: float, width: int, pairs: int) -> float:
    """How likely one of `pairs` of independent normal vectors is as parallel, at most.

    The squared cosine of one pair is Beta(1/2, (width - 1) / 2), for vectors of 2 numbers or more.
    `cosine` is that of the most parallel pair, 0 to 1.
    """
    missing = max(0.0, (1.0 - cosine) * (1.0 + cosine))
    return min(1.0, pairs * float(stats.beta.cdf(missing, (width - 1) / 2, 0.5)))


def correlation_found(width: int, pairs: int, level: float) -> float:
    """The least correlation of one pair that `pair_correlation` finds with chance `POWER`.

    Of a pair with correlation r the cosine's numerator and denominator follow from two independent
    vectors: with u along the first, second = r first + sqrt(1 - r^2) other, so that tan = sqrt(1 -
    r^2) |other across| / (r |first| + sqrt(1 - r^2) other along). Bounded by three quantiles, each
    exceeded with a third of 1 - `POWER`. Above 1: no correlation is found.
    """
    missing = float(stats.beta.ppf(min(1.0, level / pairs), (width - 1) / 2, 0.5))
    critical = math.sqrt(missing / (1.0 - missing)) if missing < 1 else math.inf
    third = _MISSED / 3
    across = math.sqrt(stats.chi2.isf(third, width - 1))
    first = math.sqrt(stats.chi2.ppf(third, width))
    along = float(stats.norm.ppf(third))
    # across / (t first + along) <= critical, t = r / sqrt(1 - r^2)
    t = (across / critical - along) / first
    return t / math.sqrt(1.0 + t * t)


def shift_of_score(kind: str, score: float) -> float:
    """The shift of noise, in deviations or scales, that moves its mean score as far.

    Scores of Gaussian noise move as the noise does. Scores of Laplace noise move less, the less the
    farther; so where a shift is spread over coordinates, less of it does.
    """
    if kind == "gaussian":
        return score
    chances = (np.arange(4000) + 0.5) / 4000
    noise = stats.laplace.ppf(chances)

    def beyond(shift: float) -> float:
        chance = stats.laplace.sf(noise + shift)
        return float(-ndtri(np.maximum(chance, 1e-300)).mean()) - score

    return float(brentq(beyond, 0.0, score * (2 + score)))


def least_share(found: Callable[[float], float]) -> float:
    """The share at which a function that starts below 0 reaches it; 1 if none below 1 does."""
    if found(1.0) < 0:
        return 1.0
    return float(brentq(found, 0.0, 1.0, xtol=1e-9))
