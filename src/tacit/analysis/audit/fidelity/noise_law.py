"""Whether noise follows its law, lies on its lattice, and is there at all."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from tacit.analysis.audit.fidelity.finding import POWER
from tacit.analysis.audit.fidelity.laws import (
    Look,
    extreme_counts,
    least_share,
    shift_found,
    shift_of_score,
    two_sided,
)
from tacit.analysis.audit.fidelity.noise_sample import NoiseSample

Array = NDArray[np.float64]
Numbers = NDArray[np.int64]


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


_LAPLACE_BIAS = 2.0**-15
"""How far the lowest bit of a Laplace release may be from fair; see `docs/proofs/audits.md`."""


def lowest_bit(sample: NoiseSample, level: float) -> Look | None:
    """How many releases are odd on their lattice: binomial."""
    count, odd = int(sample.judged.sum()), int(sample.odd.sum())
    if not count:
        return None
    bias = _LAPLACE_BIAS if sample.kind == "laplace" else 2.0**-1000
    low, high = 0.5 - bias, 0.5 + bias
    tail = min(stats.binom.cdf(odd, count, low), stats.binom.sf(odd - 1, count, high))
    critical = float(stats.binom.isf(level / 2, count, high)) + 1
    least = least_share(lambda extra: _odd_found(extra, critical, count))
    return Look(
        statistic=odd / count,
        p_value=min(1.0, 2.0 * float(tail)),
        saw=f"The lowest bit is 1 in {odd / count:.4%} of the released numbers, where half is fair",
        least=least,
        exact=sample.kind == "gaussian",
    )


def _odd_found(extra: float, critical: float, count: int) -> float:
    chance = min(1.0, 0.5 + extra / 2)
    return float(stats.binom.sf(critical - 1, count, chance)) - POWER


def _edges() -> Array:
    """Of the cells of the shape: 16 equal ones, the outer ones halved again and again."""
    inner = np.arange(1, 16) / 16
    tails = 2.0 ** -np.arange(5.0, 21.0)
    return np.asarray(stats.norm.ppf(np.sort(np.concatenate([inner, tails, 1 - tails]))))


def shape(sample: NoiseSample, level: float) -> Look:
    """How many scores lie in each of 16 parts of the law, and beyond points far out: binomial."""
    edges = _edges()
    number = sample.releases * sample.width
    cells = np.histogram(sample.scores, np.concatenate([[-np.inf], edges, [np.inf]]))[0]
    below = np.cumsum(cells)[:-1]
    chances = stats.norm.cdf(edges)
    # Tails are counted from their own end, where their chance is exact.
    upper = edges > 0
    counts = np.where(upper, number - below, below)
    tail_chances = np.where(upper, stats.norm.sf(edges), chances)
    extreme = extreme_counts(counts, number, tail_chances)
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
    wrong = [*sample.missing, *sample.twice]
    saw = f"All {sample.releases:,} releases were made, and each of them once"
    if sample.missing:
        saw = f"{len(sample.missing):,} releases were not made, first that of {sample.missing[0]}"
    elif sample.twice:
        saw = f"{len(sample.twice):,} releases were made again, first that of {sample.twice[0]}"
    return Look(float(len(wrong)), 0.0 if wrong else 1.0, saw, 0.0, exact=True)
