"""Whether noise is as large as planned, follows its law, lies on its lattice, and is there at all;
and the laws that these tests and those of `noise_links` compare with.

Every law gives a p-value that is exact, or at most too large, for independent standard normal
numbers; `docs/proofs/audits.md` has the proofs. Sizes are sums of chi-square numbers, so that their
p-values are exact before the union bound. `level` is the chance at which a test fails.
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
from tacit.analysis.audit.fidelity.noise_sample import NoiseSample, ReleasePlace

Array = NDArray[np.float64]
MISSED = 1 - POWER
_LAPLACE_BIAS = 2.0**-15
"""How far the lowest bit of a Laplace release may be from fair; see `docs/proofs/audits.md`."""


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
    return float(stats.norm.isf(level / (2 * tests)) + stats.norm.isf(MISSED))


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
    third = MISSED / 3
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


# Tests.


def _deviation(sample: NoiseSample, size_factor: float) -> float:
    """The factor on the noise's deviation that this factor on its size comes from."""
    return float(math.sqrt(size_factor) if sample.kind == "gaussian" else size_factor)


def _sizes(
    sample: NoiseSample, sizes: Array, freedom: Array, names: Callable[[int], str], level: float
) -> Look:
    """Whether sums of sizes are as planned: chi-square, by the union bound."""
    extreme = extreme_sizes(sizes, freedom)
    factor = _deviation(sample, sizes[extreme.index] / freedom[extreme.index])
    least = _deviation(sample, lowest_factor(float(freedom.min()), len(sizes), level))
    return Look(
        statistic=factor,
        p_value=extreme.p_value,
        saw=f"{names(extreme.index)} is {factor:.4g} times as large as planned",
        least=1 - least,
        exact=len(sizes) == 1,
    )


def of_all(sample: NoiseSample, level: float) -> Look:
    """The size of all noise together: chi-square, exactly."""
    freedom = np.array([float(sample.freedom * sample.releases * sample.width)])
    sizes = np.array([sample.sizes.sum()])
    return _sizes(sample, sizes, freedom, lambda _: "The noise", level)


def of_coordinates(sample: NoiseSample, level: float) -> Look:
    """The size of each coordinate's noise, over all releases."""
    freedom = np.full(sample.width, float(sample.freedom * sample.releases))
    return _sizes(
        sample, sample.column_sizes, freedom, lambda i: f"The noise of coordinate {i}", level
    )


def of_releases(sample: NoiseSample, level: float) -> Look:
    """The size of each release's noise, over its coordinates."""
    freedom = np.full(sample.releases, float(sample.freedom * sample.width))
    return _sizes(
        sample, sample.sizes, freedom, lambda i: f"The noise of {sample.places[i]}", level
    )


def of_groups(group: str, sample: NoiseSample, level: float) -> Look | None:
    """The size of the noise of each group of releases: those of one `node`, `step` or `part`."""
    numbers, which = np.unique(sample.labels[group], return_inverse=True)
    if len(numbers) < 2:
        return None
    sizes = np.bincount(which, weights=sample.sizes).astype(np.float64)
    freedom = np.bincount(which).astype(np.float64) * (sample.freedom * sample.width)
    return _sizes(sample, sizes, freedom, lambda i: f"The noise of {group} {numbers[i]}", level)


def by_batch(sample: NoiseSample, level: float) -> Look | None:
    """Of the third of releases with the most and the fewest records: their ratio is F."""
    if sample.drawn is None or np.ptp(sample.drawn) == 0 or sample.releases < 3:
        return None
    # The coins of the batch are independent of the noise, so the thirds are, too.
    order = np.argsort(sample.drawn, kind="stable")
    third = sample.releases // 3
    few, many = order[:third], order[-third:]
    freedom = float(third * sample.freedom * sample.width)
    ratio = float(sample.sizes[many].sum() / sample.sizes[few].sum())
    tail = min(stats.f.cdf(ratio, freedom, freedom), stats.f.sf(ratio, freedom, freedom))
    found = stats.f.isf(level / 2, freedom, freedom) / stats.f.ppf(MISSED, freedom, freedom)
    return Look(
        statistic=_deviation(sample, ratio),
        p_value=min(1.0, 2.0 * float(tail)),
        saw=(
            f"The noise of the releases with the most records is {_deviation(sample, ratio):.4g} "
            "times that of the releases with the fewest"
        ),
        least=_deviation(sample, found) - 1,
        exact=True,
    )


def mean(sample: NoiseSample, level: float) -> Look:
    """The mean of all noise, and of each coordinate's."""
    columns = sample.scores.sum(0) / math.sqrt(sample.releases)
    whole = columns.sum() / math.sqrt(sample.width)
    one, all_of_them = two_sided(columns), two_sided(np.array([whole]))
    coordinate = float(columns[one.index]) / math.sqrt(sample.releases)
    average = float(whole) / math.sqrt(sample.width * sample.releases)
    return Look(
        statistic=max(abs(coordinate), abs(average)),
        p_value=min(1.0, 2 * min(one.p_value, all_of_them.p_value)),
        saw=(
            f"The mean of all noise is {average:+.2g} deviations, and that of coordinate "
            f"{one.index}, which is farthest from 0, {coordinate:+.2g}"
        ),
        least=shift_of_score(
            sample.kind, shift_found(2 * sample.width, level) / math.sqrt(sample.releases)
        ),
    )


def lattice(sample: NoiseSample, level: float) -> Look:
    """Numbers that are no multiple of their lattice's spacing: a correct program has none."""
    off = int(sample.off_lattice.sum())
    total = sample.releases * sample.width
    return Look(
        statistic=float(off),
        p_value=0.0 if off else 1.0,
        saw=f"{off:,} of {total:,} released numbers are not on the public lattice",
        least=0.0,
        exact=True,
    )


def lowest_bit(sample: NoiseSample, level: float) -> Look | None:
    """How many releases are odd on their lattice: binomial."""
    count, odd = int(sample.judged.sum()), int(sample.odd.sum())
    if not count:
        return None
    bias = _LAPLACE_BIAS if sample.kind == "laplace" else 2.0**-1000
    low, high = 0.5 - bias, 0.5 + bias
    tail = min(stats.binom.cdf(odd, count, low), stats.binom.sf(odd - 1, count, high))
    critical = float(stats.binom.isf(level / 2, count, high)) + 1

    def found(extra: float) -> float:
        return float(stats.binom.sf(critical - 1, count, min(1.0, 0.5 + extra / 2))) - POWER

    return Look(
        statistic=odd / count,
        p_value=min(1.0, 2.0 * float(tail)),
        saw=f"The lowest bit is 1 in {odd / count:.4%} of the released numbers, where half is fair",
        least=least_share(found),
        exact=sample.kind == "gaussian",
    )


def shape(sample: NoiseSample, level: float) -> Look:
    """How many scores lie in each of 16 parts of the law, and beyond points far out: binomial."""
    # 16 equal parts, the outer ones halved again and again.
    inner, outer = np.arange(1, 16) / 16, 2.0 ** -np.arange(5.0, 21.0)
    edges = np.asarray(stats.norm.ppf(np.sort(np.concatenate([inner, outer, 1 - outer]))))
    number = sample.releases * sample.width
    cells = np.histogram(sample.scores, np.concatenate([[-np.inf], edges, [np.inf]]))[0]
    below = np.cumsum(cells)[:-1]
    # Tails are counted from their own end, where their chance is exact.
    upper = edges > 0
    counts = np.where(upper, number - below, below)
    tail_chances = np.where(upper, stats.norm.sf(edges), stats.norm.cdf(edges))
    law = stats.binom(number, tail_chances)
    extreme = least_likely(np.minimum(law.cdf(counts), law.sf(counts - 1)))
    share, chance = counts[extreme.index] / number, float(tail_chances[extreme.index])
    least = -math.log(level / (2 * len(edges))) / number
    side = "highest" if upper[extreme.index] else "lowest"
    return Look(
        statistic=float(share / chance),
        p_value=extreme.p_value,
        saw=(
            f"{share:.4%} of the noise lies where the {side} {chance:.4%} should, the part of the "
            "law that fits worst"
        ),
        least=float(min((each for each in tail_chances if each >= least), default=1.0)),
    )


def missing(sample: NoiseSample, level: float) -> Look:
    """Releases that the plan has and that were not made, or made again: none is correct."""
    twice, seen = list[ReleasePlace](), set[ReleasePlace]()
    for place in sample.places:
        if place in seen:
            twice.append(place)
        seen.add(place)
    wrong = [*sample.missing, *twice]
    saw = f"All {sample.releases:,} releases were made, and each of them once"
    if wrong:
        count, how = len(sample.missing), "were not made"
        if not count:
            count, how = len(twice), "were made again"
        saw = f"{count:,} releases {how}, first that of {wrong[0]}"
    return Look(float(len(wrong)), 0.0 if wrong else 1.0, saw, 0.0, exact=True)
