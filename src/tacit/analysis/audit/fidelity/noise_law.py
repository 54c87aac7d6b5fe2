"""Whether noise is as large as planned, follows its law, lies on its lattice, and is there at all.

Sizes are sums of chi-square numbers, so that every p-value is exact before the union bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from tacit.analysis.audit.fidelity.finding import POWER
from tacit.analysis.audit.fidelity.laws import (
    Look,
    extreme_sizes,
    least_likely,
    least_share,
    lowest_factor,
    shift_found,
    shift_of_score,
    two_sided,
)
from tacit.analysis.audit.fidelity.noise_sample import NoiseSample, ReleasePlace

Array = NDArray[np.float64]
_MISSED = 1 - POWER
_LAPLACE_BIAS = 2.0**-15
"""How far the lowest bit of a Laplace release may be from fair; see `docs/proofs/audits.md`."""


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


def of_groups(group: str) -> Callable[[NoiseSample, float], Look | None]:
    """A look at the noise of each group of releases: those of one `node`, `step` or `part`."""

    def look(sample: NoiseSample, level: float) -> Look | None:
        numbers, which = np.unique(sample.labels[group], return_inverse=True)
        if len(numbers) < 2:
            return None
        sizes = np.bincount(which, weights=sample.sizes).astype(np.float64)
        freedom = np.bincount(which).astype(np.float64) * (sample.freedom * sample.width)
        return _sizes(sample, sizes, freedom, lambda i: f"The noise of {group} {numbers[i]}", level)

    return look


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
    found = stats.f.isf(level / 2, freedom, freedom) / stats.f.ppf(_MISSED, freedom, freedom)
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
