"""Whether noise is as large as planned: everywhere, and whatever the batch.

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
    lowest_factor,
)
from tacit.analysis.audit.fidelity.noise_sample import NoiseSample

Array = NDArray[np.float64]
Numbers = NDArray[np.int64]
_MISSED = 1 - POWER


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
    return _sizes(sample, sample.sizes, freedom, lambda i: f"The noise of {sample.place(i)}", level)


def of_groups(
    labels: Callable[[NoiseSample], Numbers], word: str
) -> Callable[[NoiseSample, float], Look | None]:
    """The size of the noise of all releases with one label; a look at all labels together.

    Args:
        labels: of the releases, `[releases]`.
        word: for what they number.
    """

    def look(sample: NoiseSample, level: float) -> Look | None:
        numbers, group = np.unique(labels(sample), return_inverse=True)
        if len(numbers) < 2:
            return None
        sizes = np.bincount(group, weights=sample.sizes).astype(np.float64)
        freedom = np.bincount(group).astype(np.float64) * (sample.freedom * sample.width)
        return _sizes(sample, sizes, freedom, lambda i: f"The noise of {word} {numbers[i]}", level)

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
