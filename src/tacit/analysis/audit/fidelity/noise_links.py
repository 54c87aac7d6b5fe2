"""Whether noises are independent: of each other, and of what they hide."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.spatial import cKDTree

from tacit.analysis.audit.fidelity.noise_law import (
    MISSED,
    Look,
    correlation_found,
    expected_length,
    least_likely,
    least_share,
    pair_correlation,
    shift_found,
    shift_of_score,
    two_sided,
)
from tacit.analysis.audit.fidelity.noise_sample import NoiseSample

Array = NDArray[np.float64]
Numbers = NDArray[np.int64]
MOST_LAGS = 32
"""Of steps, and of coordinates, that are compared with each other one by one."""

MOST_DIRECTIONS = 512
"""Coordinates or releases whose whole covariance is looked at; more by a public choice."""

MOST_PAIRED = 4096
"""Coordinates with which two noises are compared."""

_MOST_HANDED = 8
_LOOKED_AT = 1e-4
_MOST_SHIFTED = 1 << 16
_NARROW = 16
_MOST_PRODUCTS = 1 << 33


def _ordered(sample: NoiseSample, *labels: str) -> tuple[Numbers, Numbers]:
    """Releases sorted by group, in the order in which they were made within it, `[releases]`.

    Which release stands at a place, and its number within its group.
    """
    of_group = np.stack([sample.labels[label] for label in labels])
    group = np.unique(of_group, axis=1, return_inverse=True)[1].reshape(-1)
    order = np.argsort(group, kind="stable")
    first = np.searchsorted(group[order], group[order])
    return order, np.asarray(np.arange(len(order)) - first, np.int64)


def common(group: str, sample: NoiseSample, level: float) -> Look | None:
    """The noise that releases share which differ in their step, node, run or part alone.

    Each noise is compared with the direction of the sum of those before it in its group, which is
    predictable; the score of the j-th has weight sqrt(j), which is best for small common parts.
    """
    others = [name for name in ("run", "node", "step", "part") if name != group]
    word = "parts of a step" if group == "part" else f"{group}s"
    order, position = _ordered(sample, *others)
    ends = np.flatnonzero(position)
    if not len(ends):
        return None
    noises = sample.scores[order]
    sums = np.cumsum(noises, axis=0)
    starts = ends - position[ends]  # the first of the group
    before = sums[ends - 1] - sums[starts] + noises[starts]
    score = np.einsum("rj,rj->r", noises[ends], before) / np.linalg.norm(before, axis=1)
    count = position[ends].astype(np.float64)
    statistic = float((np.sqrt(count) * score).sum() / math.sqrt(count.sum()))
    # The share of common variance for which a statistic is expected; exact for small shares.
    shown, chance = (
        min(1.0, score / math.sqrt(sample.width * count.sum()))
        for score in (max(0.0, statistic), float(stats.norm.isf(level / 2)))
    )
    return Look(
        statistic=statistic,
        p_value=two_sided(np.array([statistic])).p_value,
        saw=(
            f"The {word} share {shown:.3%} of the noise's variance, where chance alone "
            f"explains {chance:.3%}"
        ),
        least=_common_found(count, sample.width, level),
        exact=True,
    )


def _common_found(count: Array, width: int, level: float) -> float:
    """The least share of common variance that is found with chance `POWER`.

    With z_r = sqrt(h) c + sqrt(1 - h) y_r the j-th score is at least sqrt(h) <c, S> / |S| beside
    noise of variance 1 - h, where S = j sqrt(h) c + sqrt(j (1 - h)) g. Given c this has mean
    sqrt(h) a |c|, with a = j sqrt(h) |c| / |S| about sqrt(j h / (1 + (j - 1) h)). The length |c|
    varies by less than one half, alike for all of a group.
    """
    values, times = np.unique(count, return_counts=True)
    root = math.sqrt(count.sum())
    length = expected_length(width) * (1 - 1 / (2 * width))
    longest = float(values[-1])
    critical = stats.norm.isf(level / 2)

    def found(share: float) -> float:
        along = np.sqrt(values * share / (1 + (values - 1) * share))
        mean = (times * np.sqrt(values) * math.sqrt(share) * along).sum() * length / root
        spread = math.sqrt(1 + share * (longest + 1))
        return float(mean - critical + stats.norm.ppf(MISSED) * spread)

    return least_share(found)


def _lag_scores(noises: Array, others: Array, position: Numbers, lag: int) -> Array:
    """Scores of noises along what stood `lag` places before in their group, in length 1."""
    ends = np.flatnonzero(position >= lag)
    return np.asarray(np.einsum("rj,rj->r", noises[ends], others[ends - lag]), np.float64)


def steps_apart(sample: NoiseSample, level: float) -> Look | None:
    """Noise that repeats with either sign some steps later, in part or whole."""
    order, position = _ordered(sample, "run", "node", "part")
    lags = min(int(position.max()), MOST_LAGS)
    if lags < 1:
        return None
    noises = sample.scores[order]
    directions = noises / np.linalg.norm(noises, axis=1, keepdims=True)
    scores = [_lag_scores(noises, directions, position, lag) for lag in range(1, lags + 1)]
    length = expected_length(sample.width)
    seen = _along(scores, lambda i: f"noises that are {_steps(i + 1)} apart", length, level)
    return replace(seen, least=min(1.0, seen.least))


def shifted(sample: NoiseSample, level: float) -> Look | None:
    """Noise that is that of the step before, moved by some coordinates: a stretch used twice."""
    order, position = _ordered(sample, "run", "node", "part")
    ends = np.flatnonzero(position)
    most = min(sample.width // 2, MOST_LAGS)
    if not len(ends) or most < 1:
        return None
    noises = sample.scores[order, :_MOST_SHIFTED]
    later, before = noises[ends], noises[ends - 1]
    width = noises.shape[1]
    whole = np.einsum("rj,rj->r", before, before)
    scores = []
    shifts = [shift for size in range(1, most + 1) for shift in (size, -size)]
    for shift in shifts:
        # A shift to the left is one to the right of what is read backwards.
        moved, left = (before, later) if shift > 0 else (before[:, ::-1], later[:, ::-1])
        kept = width - abs(shift)
        products = np.einsum("rj,rj->r", left[:, -kept:], moved[:, :kept])
        lost = np.einsum("rj,rj->r", moved[:, kept:], moved[:, kept:])
        scores.append(products / np.sqrt(whole - lost))
    seen = _along(
        scores,
        lambda i: f"noises one step apart, one of them moved by {shifts[i]:+d} coordinates",
        expected_length(width - most),
        level,
    )
    return replace(seen, least=min(1.0, seen.least))


def _steps(count: int) -> str:
    return f"{count} step{'' if count == 1 else 's'}"


def _along(
    scores: Sequence[Array], names: Callable[[int], str], length: float, level: float
) -> Look:
    """Sums and sums of squares of predictable scores: normal and chi-square.

    Squares that are too small are no link, but too little noise.
    """
    counts = np.array([float(len(each)) for each in scores])
    sums = np.array([each.sum() for each in scores]) / np.sqrt(counts)
    squares = np.array([(each**2).sum() for each in scores])
    normal, size = two_sided(sums), least_likely(stats.chi2.sf(squares, counts), sides=1)
    index = normal.index if normal.p_value <= size.p_value else size.index
    by_sum = sums[index] / math.sqrt(counts[index]) / length
    by_square = math.sqrt(max(0.0, squares[index] / counts[index] - 1)) / length
    return Look(
        statistic=max(abs(by_sum), by_square),
        p_value=min(1.0, 2 * min(normal.p_value, size.p_value)),
        saw=(
            f"The clearest link is between {names(index)}: {by_sum:+.2g} on average and "
            f"{by_square:.2g} whatever its sign, where 0 is none and 1 is full"
        ),
        least=shift_found(2 * len(scores), level) / math.sqrt(counts[:2].min()) / length,
    )


def pairs(sample: NoiseSample, level: float) -> Look | None:
    """The two most parallel noises of all: their squared cosine has a beta law."""
    width, releases = min(sample.width, MOST_PAIRED), sample.releases
    if width < 4 or releases < 2:
        return None
    # Of very many releases, few coordinates are compared: enough to see that two are the same.
    width = min(width, max(_NARROW, _MOST_PRODUCTS // releases**2))
    pairs = releases * (releases - 1) // 2
    chosen = np.linspace(0, sample.width - 1, width).astype(np.int64)
    noises = sample.scores[:, chosen]
    unit = noises / np.linalg.norm(noises, axis=1, keepdims=True)
    closest = _closest_narrow if width <= _NARROW else _closest_wide
    cosine, one, other, twins = closest(unit, pairs)
    # Where none is close enough to be looked at, all that is known is that nothing was seen.
    p_value, saw = 1.0, f"No two noises are more alike than {cosine:.3g}, where 1 is the same"
    if one >= 0:
        p_value = pair_correlation(cosine, width, pairs)
        saw = (
            f"The two noises that are most alike, of {sample.places[one]} and of "
            f"{sample.places[other]}, agree to {cosine:.5g}, where 1 is the same"
        )
    if twins > 1:
        saw += f"; {twins} noises have such a twin"
    return Look(cosine, p_value, saw, correlation_found(width, pairs, level))


def _closest_narrow(unit: Array, pairs: int) -> tuple[float, int, int, int]:
    """Cosine of the most parallel pair, which, and how many are as good as parallel to another.

    Only pairs that are close enough to count are searched for; -1 where none is.
    """
    width = unit.shape[1]
    missing = float(stats.beta.ppf(min(0.5, _LOOKED_AT / pairs), (width - 1) / 2, 0.5))
    bound = math.sqrt(1 - missing)
    reach = math.sqrt(2 * (1 - bound))
    tree = cKDTree(unit)
    near, neighbour = tree.query(unit, k=2, distance_upper_bound=reach)
    far, opposite = tree.query(-unit, k=1, distance_upper_bound=reach)
    # A noise is its own nearest, unless others are the same to the last bit.
    own = neighbour[:, 0] == np.arange(len(unit))
    near_to = np.where(own, neighbour[:, 1], neighbour[:, 0])
    distance = np.where(own, near[:, 1], near[:, 0])
    closer = distance <= far
    distance, partner = np.where(closer, distance, far), np.where(closer, near_to, opposite)
    one = int(np.argmin(distance))
    if not math.isfinite(distance[one]):
        return bound, -1, -1, 0
    cosine = max(bound, 1 - float(distance[one]) ** 2 / 2)
    return cosine, one, int(partner[one]), int(np.isfinite(distance).sum())


def _closest_wide(unit: Array, pairs: int) -> tuple[float, int, int, int]:
    """The same by all scalar products."""
    best, one, other, twins = 0.0, -1, -1, 0
    for first in range(0, len(unit), 1024):
        rows = unit[first : first + 1024]
        cosines = np.abs(rows @ unit[: first + len(rows)].T)
        own = np.arange(len(rows))
        cosines[own[:, None], first + own[None, :]] = np.tril(cosines[:, first:], -1)
        twins += int((cosines.max(1) > 0.99).sum())
        at = int(np.argmax(cosines))
        row, column = divmod(at, cosines.shape[1])
        if cosines[row, column] > best:
            best, one, other = float(cosines[row, column]), first + row, column
    return min(best, 1.0), one, other, twins


def coordinates(sample: NoiseSample, level: float) -> Look | None:
    """Noise that coordinates share: sums over a release, and coordinates some places apart."""
    width, releases = sample.width, sample.releases
    if width < 2:
        return None
    sums = sample.scores.sum(1) / math.sqrt(width)
    lags = min(width // 2, MOST_LAGS)
    scores = []
    for lag in range(1, lags + 1):
        # Blocks of `lag` coordinates: every second one is given, and its follower is looked at.
        count = width // (2 * lag)
        blocks = sample.scores[:, : 2 * lag * count].reshape(releases, count, 2, lag)
        given = blocks[:, :, 0]
        products = np.einsum("rbj,rbj->", given, blocks[:, :, 1])
        length = math.sqrt(float(np.einsum("rbj,rbj->", given, given)))
        scores.append(float(products) / length)
    size = least_likely(stats.chi2.sf([(sums**2).sum()], releases), sides=1)
    apart = two_sided(np.array(scores))
    share = ((sums**2).mean() - 1) / (width - 1)
    grown = stats.chi2.isf(level / 2, releases) / stats.chi2.ppf(MISSED, releases)
    lag = apart.index + 1
    link = scores[apart.index] / math.sqrt(releases * max(1, width // 2))
    return Look(
        statistic=max(abs(share), abs(link)),
        p_value=min(1.0, 2 * min(size.p_value, apart.p_value)),
        saw=(
            f"All coordinates share {max(0.0, share):.3%} of the noise's variance; the clearest "
            f"correlation is {link:+.2g}, between coordinates that are {lag} apart"
        ),
        least=min(1.0, (grown - 1) / (width - 1)),
    )


def directions(sample: NoiseSample, level: float) -> Look | None:
    """The largest and smallest singular values: Davidson and Szarek (2001), Theorem II.13."""
    noises = sample.scores
    if min(noises.shape) > MOST_DIRECTIONS:
        noises = noises[:, np.linspace(0, sample.width - 1, MOST_DIRECTIONS).astype(np.int64)]
    if min(noises.shape) < 2:
        return None
    if len(noises) < noises.shape[1]:
        noises = noises.T
    long, short = (math.sqrt(size) for size in noises.shape)
    values = np.sqrt(np.maximum(np.linalg.eigvalsh(noises.T @ noises), 0.0))
    beyond = max(float(values[-1]) - long - short, long - short - float(values[0]))
    p_value = min(1.0, 2.0 * math.exp(-(max(0.0, beyond) ** 2) / 2))
    critical = long + short + math.sqrt(2 * math.log(2 / level))
    found = critical**2 / float(stats.chi2.ppf(MISSED, noises.shape[0]))
    lowest, highest = float(values[0]) / long, float(values[-1]) / long
    return Look(
        statistic=float(values[-1]) / (long + short),
        p_value=p_value,
        saw=(
            f"Over all directions the noise is {lowest:.3g} to {highest:.3g} times as large as "
            f"planned, and chance alone explains {max(0.0, 1 - short / long):.3g} to "
            f"{1 + short / long:.3g}"
        ),
        least=math.sqrt(found) - 1,
    )


def along_handed(sample: NoiseSample, level: float) -> Look:
    """The noise along what was handed in: with it, and some steps before."""
    order, position = _ordered(sample, "run", "node", "part")
    noises, handed = sample.scores[order], sample.handed[order]
    lags = min(int(position.max()) + 1, _MOST_HANDED)
    scores = [_lag_scores(noises, handed, position, lag) for lag in range(lags)]
    seen = _along(
        scores,
        lambda i: f"the noise and what was handed in {f'{_steps(i)} before' if i else 'with it'}",
        1.0,
        level,
    )
    return replace(seen, least=shift_of_score(sample.kind, seen.least))
