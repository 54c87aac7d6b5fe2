"""Whether the noise is what the plan says: its size, its law, and what it depends on.

Mechanism: Gaussian or Laplace noise of the planned size, independent in every coordinate, step,
part and node, released on a public lattice. Relation and trust model do not matter: the tests look
at the noise from inside. A `NoiseSample` turns it into numbers that are independent and standard
normal if the program is correct, with the laws that stand at each test. All p-values are exact for
ideal noise or upper bounds; noise in finite arithmetic changes a probability by a factor within
1 +- 1e-4 (`tacit.privacy.noise.slack`). Proofs: `docs/proofs/audits.md`, section Noise.

*Predictable directions.* Many tests rest on one theorem. Let z_1, z_2, ... be the noises of a
sample in their order, and u_r a vector of length 1 that is a function of what was known before
z_r: of earlier noises, of records and coins, of what was handed in together with z_r. Then the
scores <z_r, u_r> are independent and standard normal. So their weighted sums are normal and their
sums of squares are chi-square, exactly, in any number and width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.spatial import cKDTree

from tacit.analysis.audit.fidelity.finding import LEVEL, POWER, Finding
from tacit.analysis.audit.fidelity.laws import (
    correlation_found,
    expected_length,
    extreme_counts,
    extreme_sizes,
    least_share,
    lowest_factor,
    pair_correlation,
    shift_found,
    two_sided,
)
from tacit.analysis.audit.fidelity.noise_sample import NoiseSample, noise_sample, sample_of

__all__ = ["NoiseSample", "noise_findings", "noise_sample", "sample_of"]

Array = NDArray[np.float64]
Numbers = NDArray[np.int64]

MOST_LAGS = 32
"""Of steps, and of coordinates, that are compared with each other one by one."""

MOST_DIRECTIONS = 512
"""Coordinates or releases whose whole covariance is looked at; more by a public choice."""

MOST_PAIRED = 4096
"""Coordinates with which two noises are compared."""

_NARROW = 24
_MISSED = 1 - POWER


@dataclass(frozen=True)
class _Look:
    """What one test saw in one sample.

    Args:
        statistic: its value.
        p_value: exact, or at most.
        saw: one sentence, without its end.
        least: the smallest defect that it finds, in the test's own measure.
        exact: whether the p-value is.
    """

    statistic: float
    p_value: float
    saw: str
    least: float
    exact: bool = False


@dataclass(frozen=True)
class _Test:
    """One test: in words, and what looks.

    Args:
        name: a few words.
        question: for people.
        meaning: of the statistic.
        look: at a sample, at a level; None where the sample cannot say anything.
        power: the words for the smallest defect.
        factor: whether that defect is a factor of the noise's deviation.
    """

    name: str
    question: str
    meaning: str
    look: Callable[[NoiseSample, float], _Look | None]
    power: Callable[[float], str]
    factor: bool = False


def noise_findings(samples: Sequence[NoiseSample]) -> list[Finding]:
    """All tests of the noise, each over all samples together.

    Each test is made in every sample that allows it, at its share of `LEVEL`; the finding is that
    of the least likely sample, its p-value times their number.

    Args:
        samples: of noise, say of a laboratory and of the user's own model.
    """
    return [finding for test in _TESTS for finding in _found(test, samples)]


def _found(test: _Test, samples: Sequence[NoiseSample]) -> list[Finding]:
    looks = [(sample.where, test.look(sample, LEVEL / len(samples))) for sample in samples]
    seen = [(where, look) for where, look in looks if look is not None]
    if not seen:
        return []
    where, worst = min(seen, key=lambda each: each[1].p_value)
    # A program has one defect in all samples: what the best of them finds is found.
    best = min(look.least for _, look in seen)
    at = f" in {where}" if len(samples) > 1 else ""
    return [
        Finding(
            name=test.name,
            question=test.question,
            statistic=worst.statistic,
            meaning=test.meaning,
            p_value=min(1.0, worst.p_value * len(samples)) if worst.p_value > 0 else 0.0,
            exact=worst.exact and len(samples) == 1,
            saw=f"{worst.saw}{at}.",
            power=test.power(best),
            noise_factor=1 - best if test.factor and best < 1 else None,
        )
    ]


def _deviation(sample: NoiseSample, size_factor: float) -> float:
    """The factor on the noise's deviation that this factor on its size comes from."""
    return float(math.sqrt(size_factor) if sample.kind == "gaussian" else size_factor)


def _sizes(
    sample: NoiseSample, sizes: Array, freedom: Array, names: Callable[[int], str], level: float
) -> _Look:
    """Whether sums of sizes are as planned: chi-square, by the union bound."""
    extreme = extreme_sizes(sizes, freedom)
    factor = _deviation(sample, sizes[extreme.index] / freedom[extreme.index])
    least = _deviation(sample, lowest_factor(float(freedom.max()), len(sizes), level))
    return _Look(
        statistic=factor,
        p_value=extreme.p_value,
        saw=f"{names(extreme.index)} is {factor:.4g} times as large as planned",
        least=1 - least,
        exact=len(sizes) == 1,
    )


def _of_all(sample: NoiseSample, level: float) -> _Look:
    freedom = np.array([float(sample.freedom * sample.releases * sample.width)])
    sizes = np.array([sample.sizes.sum()])
    return _sizes(sample, sizes, freedom, lambda _: "The noise", level)


def _of_coordinates(sample: NoiseSample, level: float) -> _Look:
    freedom = np.full(sample.width, float(sample.freedom * sample.releases))
    return _sizes(
        sample, sample.column_sizes, freedom, lambda i: f"The noise of coordinate {i}", level
    )


def _of_releases(sample: NoiseSample, level: float) -> _Look:
    freedom = np.full(sample.releases, float(sample.freedom * sample.width))
    return _sizes(sample, sample.sizes, freedom, lambda i: f"The noise of {sample.place(i)}", level)


def _of_groups(
    labels: Callable[[NoiseSample], Numbers], word: str
) -> Callable[[NoiseSample, float], _Look | None]:
    def look(sample: NoiseSample, level: float) -> _Look | None:
        numbers, group = np.unique(labels(sample), return_inverse=True)
        if len(numbers) < 2:
            return None
        sizes = np.bincount(group, weights=sample.sizes).astype(np.float64)
        freedom = np.bincount(group).astype(np.float64) * (sample.freedom * sample.width)
        return _sizes(sample, sizes, freedom, lambda i: f"The noise of {word} {numbers[i]}", level)

    return look


def _by_batch(sample: NoiseSample, level: float) -> _Look | None:
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
    return _Look(
        statistic=_deviation(sample, ratio),
        p_value=min(1.0, 2.0 * float(tail)),
        saw=(
            f"The noise of the releases with the most records is {_deviation(sample, ratio):.4g} "
            "times that of the releases with the fewest"
        ),
        least=_deviation(sample, found) - 1,
        exact=True,
    )


@dataclass(frozen=True, eq=False)
class _Ordered:
    """Releases sorted by group, in the order in which they were made within it.

    Args:
        order: which release stands at a place, `[releases]`.
        position: its number within its group, `[releases]`.
    """

    order: Numbers
    position: Numbers

    @property
    def longest(self) -> int:
        """Releases of the largest group."""
        return int(self.position.max()) + 1


def _ordered(*labels: Numbers) -> _Ordered:
    _, group = np.unique(np.stack(labels), axis=1, return_inverse=True)
    order = np.argsort(group.reshape(-1), kind="stable")
    sorted_group = group.reshape(-1)[order]
    first = np.searchsorted(sorted_group, sorted_group)
    return _Ordered(order, np.asarray(np.arange(len(order)) - first, np.int64))


def _common(
    labels: Callable[[NoiseSample], tuple[Numbers, ...]], word: str
) -> Callable[[NoiseSample, float], _Look | None]:
    """A part of the noise that all releases of a group have in common.

    Each noise is compared with the direction of the sum of those before it in its group, which is
    predictable; the score of the j-th has weight sqrt(j), which is best for small common parts.
    """

    def look(sample: NoiseSample, level: float) -> _Look | None:
        ordered = _ordered(*labels(sample))
        later = ordered.position > 0
        if not later.any():
            return None
        noises = sample.scores[ordered.order]
        sums = np.cumsum(noises, axis=0)
        ends = np.flatnonzero(later)
        starts = ends - ordered.position[ends]  # the first of the group
        before = sums[ends - 1] - sums[starts] + noises[starts]
        score = np.einsum("rj,rj->r", noises[ends], before) / np.linalg.norm(before, axis=1)
        count = ordered.position[ends].astype(np.float64)
        statistic = float((np.sqrt(count) * score).sum() / math.sqrt(count.sum()))
        share = _common_share(count, sample.width)
        return _Look(
            statistic=statistic,
            p_value=two_sided(np.array([statistic])).p_value,
            saw=(
                f"About {max(0.0, share(statistic)):.2g} of the noise's variance is common to all "
                f"{word}, and chance alone explains {share(shift_found(1, level)):.2g}"
            ),
            least=_common_found(count, sample.width, level),
            exact=True,
        )

    return look


def _common_share(count: Array, width: int) -> Callable[[float], float]:
    """The share of common variance for which a statistic is expected; exact for small shares."""
    unit = math.sqrt(width * count.sum())
    return lambda statistic: min(1.0, statistic / unit)


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
        return float(mean - critical + stats.norm.ppf(_MISSED) * spread)

    return least_share(found)


def _lag_scores(noises: Array, others: Array, ordered: _Ordered, lag: int) -> Array:
    """Scores of noises along what stood `lag` places before in their group, in length 1."""
    ends = np.flatnonzero(ordered.position >= lag)
    return np.asarray(np.einsum("rj,rj->r", noises[ends], others[ends - lag]), np.float64)


def _steps_apart(sample: NoiseSample, level: float) -> _Look | None:
    """Noise that repeats with either sign some steps later, in part or whole."""
    ordered = _ordered(sample.run, sample.node, sample.part)
    lags = min(ordered.longest - 1, MOST_LAGS)
    if lags < 1:
        return None
    noises = sample.scores[ordered.order]
    directions = noises / np.linalg.norm(noises, axis=1, keepdims=True)
    scores = [_lag_scores(noises, directions, ordered, lag) for lag in range(1, lags + 1)]
    return _along(
        scores,
        lambda i: f"noises that are {_steps(i + 1)} apart",
        expected_length(sample.width),
        level,
    )


def _steps(count: int) -> str:
    return f"{count} step{'' if count == 1 else 's'}"


def _along(
    scores: Sequence[Array], names: Callable[[int], str], length: float, level: float
) -> _Look:
    """Sums and sums of squares of predictable scores: normal and chi-square."""
    counts = np.array([float(len(each)) for each in scores])
    sums = np.array([each.sum() for each in scores]) / np.sqrt(counts)
    squares = np.array([(each**2).sum() for each in scores])
    normal, size = two_sided(sums), extreme_sizes(squares, counts)
    index = normal.index if normal.p_value <= size.p_value else size.index
    by_sum = sums[index] / math.sqrt(counts[index]) / length
    by_square = math.sqrt(max(0.0, squares[index] / counts[index] - 1)) / length
    return _Look(
        statistic=max(abs(by_sum), by_square),
        p_value=min(1.0, 2 * min(normal.p_value, size.p_value)),
        saw=(
            f"The clearest link is between {names(index)}: {by_sum:+.2g} on average and "
            f"{by_square:.2g} whatever its sign, where 0 is none and 1 is full"
        ),
        least=min(1.0, shift_found(2 * len(scores), level) / math.sqrt(counts.min()) / length),
    )


def _pairs(sample: NoiseSample, level: float) -> _Look | None:
    """The two most parallel noises of all: their squared cosine has a beta law."""
    width, releases = min(sample.width, MOST_PAIRED), sample.releases
    if width < 4 or releases < 2:
        return None
    pairs = releases * (releases - 1) // 2
    noises = sample.scores[:, :width]
    unit = noises / np.linalg.norm(noises, axis=1, keepdims=True)
    closest = _closest_narrow if width <= _NARROW else _closest_wide
    cosine, one, other, twins = closest(unit, pairs)
    p_value = pair_correlation(cosine, width, pairs)
    saw = f"No two noises are more alike than {cosine:.3g}, where 1 is the same"
    if one >= 0:
        saw = (
            f"The two noises that are most alike, of {sample.place(one)} and of "
            f"{sample.place(other)}, agree to {cosine:.5g}, where 1 is the same"
        )
    if twins > 1:
        saw += f"; {twins} noises have such a twin"
    return _Look(cosine, p_value, saw, correlation_found(width, pairs, level))


def _closest_narrow(unit: Array, pairs: int) -> tuple[float, int, int, int]:
    """Cosine of the most parallel pair, which, and how many are as good as parallel to another.

    Only pairs that are close enough to count are searched for; -1 where none is.
    """
    width = unit.shape[1]
    missing = float(stats.beta.ppf(min(0.5, 0.01 / pairs), (width - 1) / 2, 0.5))
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


def _coordinates(sample: NoiseSample, level: float) -> _Look | None:
    """Noise that coordinates share: sums over a release, and coordinates some places apart."""
    width, releases = sample.width, sample.releases
    if width < 2:
        return None
    sums = sample.scores.sum(1) / math.sqrt(width)
    lags = min(width // 2, MOST_LAGS)
    column = np.arange(width)
    scores = []
    for lag in range(1, lags + 1):
        first = column[(column // lag) % 2 == 0]
        first = first[first + lag < width]
        given = sample.scores[:, first]
        products = np.einsum("rj,rj->", given, sample.scores[:, first + lag])
        scores.append(float(products) / float(np.linalg.norm(given)))
    size = extreme_sizes(np.array([(sums**2).sum()]), np.array([float(releases)]))
    apart = two_sided(np.array(scores))
    share = ((sums**2).mean() - 1) / (width - 1)
    grown = stats.chi2.isf(level / 4, releases) / stats.chi2.ppf(_MISSED, releases)
    lag = apart.index + 1
    link = scores[apart.index] / math.sqrt(releases * max(1, width // 2))
    return _Look(
        statistic=max(abs(share), abs(link)),
        p_value=min(1.0, 2 * min(size.p_value, apart.p_value)),
        saw=(
            f"About {max(0.0, share):.2g} of the noise's variance is common to all coordinates, "
            f"and the clearest link between coordinates is {link:+.2g}, {lag} apart"
        ),
        least=min(1.0, (grown - 1) / (width - 1)),
    )


def _directions(sample: NoiseSample, level: float) -> _Look | None:
    """The largest and smallest singular values: Davidson and Szarek (2001), Theorem II.13."""
    noises = sample.scores
    if min(noises.shape) > MOST_DIRECTIONS:
        noises = noises[:, :MOST_DIRECTIONS]
    if min(noises.shape) < 2:
        return None
    if len(noises) < noises.shape[1]:
        noises = noises.T
    long, short = (math.sqrt(size) for size in noises.shape)
    values = np.sqrt(np.maximum(np.linalg.eigvalsh(noises.T @ noises), 0.0))
    beyond = max(float(values[-1]) - long - short, long - short - float(values[0]))
    p_value = min(1.0, 2.0 * math.exp(-(max(0.0, beyond) ** 2) / 2))
    critical = long + short + math.sqrt(2 * math.log(2 / level))
    found = critical**2 / float(stats.chi2.ppf(_MISSED, noises.shape[0]))
    lowest, highest = (_deviation_of(value, long) for value in (values[0], values[-1]))
    return _Look(
        statistic=float(values[-1]) / (long + short),
        p_value=p_value,
        saw=(
            f"Over all directions the noise is {lowest:.3g} to {highest:.3g} times as large as "
            f"planned, and chance alone explains {max(0.0, 1 - short / long):.3g} to "
            f"{1 + short / long:.3g}"
        ),
        least=math.sqrt(found) - 1,
    )


def _deviation_of(value: float, long: float) -> float:
    return float(value) / long


def _mean(sample: NoiseSample, level: float) -> _Look:
    """The mean of all noise, and of each coordinate's."""
    columns = sample.scores.sum(0) / math.sqrt(sample.releases)
    whole = columns.sum() / math.sqrt(sample.width)
    one, all_of_them = two_sided(columns), two_sided(np.array([whole]))
    coordinate = float(columns[one.index]) / math.sqrt(sample.releases)
    mean = float(whole) / math.sqrt(sample.width * sample.releases)
    return _Look(
        statistic=max(abs(coordinate), abs(mean)),
        p_value=min(1.0, 2 * min(one.p_value, all_of_them.p_value)),
        saw=(
            f"The mean of all noise is {mean:+.2g} deviations, and that of coordinate {one.index}, "
            f"which is farthest from 0, {coordinate:+.2g}"
        ),
        least=shift_found(2 * sample.width, level) / math.sqrt(sample.releases),
    )


def _along_handed(sample: NoiseSample, level: float) -> _Look:
    """The noise along what was handed in: with it, and some steps before."""
    ordered = _ordered(sample.run, sample.node, sample.part)
    noises, handed = sample.scores[ordered.order], sample.handed[ordered.order]
    lags = min(ordered.longest, MOST_LAGS)
    scores = [_lag_scores(noises, handed, ordered, lag) for lag in range(lags)]
    return _along(
        scores,
        lambda i: f"the noise and what was handed in {f'{_steps(i)} before' if i else 'with it'}",
        1.0,
        level,
    )


def _lattice(sample: NoiseSample, level: float) -> _Look:
    off = int(sample.off_lattice.sum())
    total = sample.releases * sample.width
    return _Look(
        statistic=float(off),
        p_value=0.0 if off else 1.0,
        saw=f"{off:,} of {total:,} released numbers are not on the public lattice",
        least=0.0,
        exact=True,
    )


_LAPLACE_BIAS = 2.0**-15
"""How far the lowest bit of a Laplace release may be from fair; see `docs/proofs/audits.md`."""


def _lowest_bit(sample: NoiseSample, level: float) -> _Look | None:
    """How many releases are odd on their lattice: binomial."""
    count, odd = int(sample.judged.sum()), int(sample.odd.sum())
    if not count:
        return None
    bias = _LAPLACE_BIAS if sample.kind == "laplace" else 2.0**-1000
    low, high = 0.5 - bias, 0.5 + bias
    tail = min(stats.binom.cdf(odd, count, low), stats.binom.sf(odd - 1, count, high))
    critical = float(stats.binom.isf(level / 2, count, high)) + 1
    least = least_share(lambda extra: _odd_found(extra, critical, count))
    return _Look(
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


def _shape(sample: NoiseSample, level: float) -> _Look:
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
    edge = float(edges[extreme.index])
    share = counts[extreme.index] / number
    missing = -math.log(level / (2 * len(edges))) / number
    found = [abs(float(stats.norm.ppf(c))) for c in tail_chances if c >= missing]
    side = "above" if edge > 0 else "below"
    return _Look(
        statistic=float(share / tail_chances[extreme.index]),
        p_value=extreme.p_value,
        saw=(
            f"{share:.4%} of the noise lies {side} {edge:+.3g} deviations, where "
            f"{tail_chances[extreme.index]:.4%} should"
        ),
        least=-max(found, default=0.0),
    )


def _missing(sample: NoiseSample, level: float) -> _Look:
    wrong = [*sample.missing, *sample.twice]
    saw = f"All {sample.releases:,} releases were made, and each of them once"
    if sample.missing:
        saw = f"{len(sample.missing):,} releases were not made, first that of {sample.missing[0]}"
    elif sample.twice:
        saw = f"{len(sample.twice):,} releases were made again, first that of {sample.twice[0]}"
    return _Look(float(len(wrong)), 0.0 if wrong else 1.0, saw, 0.0, exact=True)


def _lower(what: str) -> Callable[[float], str]:
    return lambda least: f"Finds {what} that is {100 * least:.2g} % too small."


def _share(what: str) -> Callable[[float], str]:
    return lambda least: f"Finds {100 * least:.2g} % of the noise's variance that {what} share."


_TESTS: tuple[_Test, ...] = (
    _Test(
        "noise variance",
        "Is the noise as large as planned?",
        "standard deviation of the noise over the planned one",
        _of_all,
        _lower("noise"),
        factor=True,
    ),
    _Test(
        "noise of each coordinate",
        "Is the noise of every coordinate as large as planned?",
        "deviation of the coordinate that is farthest off, over the planned one",
        _of_coordinates,
        _lower("noise of one coordinate"),
        factor=True,
    ),
    _Test(
        "noise of each release",
        "Does every single release have its noise?",
        "deviation of the release that is farthest off, over the planned one",
        _of_releases,
        _lower("noise of one release"),
        factor=True,
    ),
    _Test(
        "noise of each node",
        "Is the noise of every node as large as planned?",
        "deviation of the node that is farthest off, over the planned one",
        _of_groups(lambda sample: sample.node, "node"),
        _lower("noise of one node"),
        factor=True,
    ),
    _Test(
        "noise of each step",
        "Is the noise of every step as large as planned?",
        "deviation of the step that is farthest off, over the planned one",
        _of_groups(lambda sample: sample.step, "step"),
        _lower("noise of one step"),
        factor=True,
    ),
    _Test(
        "noise of each part",
        "Is the noise of every part of a step's releases as large as planned?",
        "deviation of the part that is farthest off, over the planned one",
        _of_groups(lambda sample: sample.part, "part"),
        _lower("noise of one part"),
        factor=True,
    ),
    _Test(
        "noise and batch size",
        "Is the noise the same however many records were drawn?",
        "deviation where most records were drawn over that where fewest were",
        _by_batch,
        lambda least: f"Finds noise that is {100 * least:.2g} % larger where more are drawn.",
    ),
    _Test(
        "noise common to steps",
        "Does every step have noise of its own?",
        "standard score of the part that all steps share",
        _common(lambda sample: (sample.run, sample.node, sample.part), "steps"),
        _share("all steps"),
    ),
    _Test(
        "noise common to nodes",
        "Does every node have noise of its own?",
        "standard score of the part that all nodes share",
        _common(lambda sample: (sample.run, sample.step, sample.part), "nodes"),
        _share("all nodes"),
    ),
    _Test(
        "noise common to runs",
        "Does every run have noise of its own?",
        "standard score of the part that all runs share",
        _common(lambda sample: (sample.node, sample.step, sample.part), "runs"),
        _share("all runs"),
    ),
    _Test(
        "noise common to parts",
        "Does every part of a step's releases have noise of its own?",
        "standard score of the part that all parts of a step share",
        _common(lambda sample: (sample.run, sample.node, sample.step), "parts of a step"),
        _share("all parts of a step"),
    ),
    _Test(
        "noise some steps apart",
        "Is the noise of a step independent of the steps before it?",
        "correlation of noises that are some steps apart, the largest",
        _steps_apart,
        lambda least: f"Finds a correlation of {least:.2g} between steps.",
    ),
    _Test(
        "noise met twice",
        "Is every noise used once?",
        "correlation of the two noises that are most alike",
        _pairs,
        lambda least: f"Finds one pair of noises with a correlation of {least:.2g}.",
    ),
    _Test(
        "noise of coordinates",
        "Does every coordinate have noise of its own?",
        "share of the variance, or correlation, that coordinates have in common",
        _coordinates,
        _share("all coordinates"),
    ),
    _Test(
        "noise in any direction",
        "Is the noise alike in all directions?",
        "largest deviation over all directions, over what chance alone explains",
        _directions,
        lambda least: f"Finds a direction whose noise is {100 * least:.2g} % too large.",
    ),
    _Test(
        "mean of the noise",
        "Is the noise around zero?",
        "mean farthest from zero, in deviations",
        _mean,
        lambda least: f"Finds a mean of {least:.2g} deviations in one coordinate.",
    ),
    _Test(
        "noise and what it hides",
        "Is what is released centred on what was to be released?",
        "part of the noise along what was handed in, in deviations",
        _along_handed,
        lambda least: f"Finds {least:.2g} deviations of what is handed in, now or before.",
    ),
    _Test(
        "low bits",
        "Does every released number lie on its public lattice?",
        "numbers off the lattice",
        _lattice,
        lambda least: "Finds a single number that is off.",
    ),
    _Test(
        "lowest bit",
        "Is the lowest bit of what is released a fair coin?",
        "share of released numbers whose lowest bit is 1",
        _lowest_bit,
        lambda least: f"Finds noise on a coarser lattice in {100 * least:.2g} % of all numbers.",
    ),
    _Test(
        "shape of the noise",
        "Does the noise follow its law, out to its tails?",
        "share of the noise beyond a point over the share that belongs there",
        _shape,
        lambda least: f"Finds tails that are cut off at {-least:.2g} deviations.",
    ),
    _Test(
        "releases",
        "Is every planned release made with noise, and once?",
        "releases that were not made, or made again",
        _missing,
        lambda least: "Finds a single one.",
    ),
)
