"""What a person with several rows loses: the worst of the nodes, and group privacy of a curve.

*Group privacy.* Where one row loses delta(e) at every e, rows that come and go one after the other
lose, for every choice of e_1, ..., e_r >= 0 and E their sum,

    delta_r(E) <= sum_i delta(e_i) e^(e_(i+1) + ... + e_r),

whatever the mechanism is. With e_i = E / r that is delta (e^(r e) - 1) / (e^e - 1). The best choice
is found from its other side: an event of chance x has one of at most min_e (delta(e) + e^e x) with
one row less, and the e that attains it is the one to take. Every choice is a bound, and the numbers
are those of the choice.

*The worst nodes.* A mechanism whose statement another's implies loses no less. Who has rows at s
nodes is at none that s others cover so (proofs: `docs/proofs/units.md`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tacit.errors import InputError
from tacit.privacy.accounting import dominating_pairs
from tacit.privacy.accounting.dominating_pairs import (
    GaussianPart,
    LaplacePart,
    Levels,
    MixedPart,
    NormalStep,
    Part,
    StepsPart,
)
from tacit.privacy.accounting.gaussian import Array
from tacit.privacy.mechanisms.base import Mechanism
from tacit.privacy.mechanisms.composed import ClientSampling, Composed, Person
from tacit.privacy.mechanisms.matrix import MatrixGaussian
from tacit.privacy.mechanisms.steps import (
    FixedBatchGaussian,
    Gaussian,
    Laplace,
    PrivateState,
    SampledGaussian,
    Scheduled,
    schedule,
)

MOST_SETS = 300
"""Different choices of a person's nodes that are accounted for one by one."""

_THINNED = (SampledGaussian, Laplace)  # whose records are drawn by coins of their own
_EVALUATED = 32  # points of a curve
_BETWEEN = 8  # points between two of them, on chords
_EVENTS = 400
_TINY = 1e-300  # a delta that counts as this where it is below: weights may be as large
_LARGEST = 1e3  # an epsilon beyond which no group is accounted for
_SMALLEST = 1e-6  # and below which none is divided
_ROUNDED = 1e-9  # more than sums of some hundred logarithms below 1e3 lose


def rows_epsilon(delta_at: Callable[[float], float], rows: int, delta: float) -> float:
    """An epsilon at `delta` for so many rows, from a bound on delta for one at any epsilon >= 0."""
    log_delta, low, high = math.log(delta), 0.0, 1.0
    while _evenly(delta_at, rows, high) > log_delta:
        low, high = high, 2 * high
        if high * rows > _LARGEST:
            break
    while high - low > 0.1 * high and high > _SMALLEST:
        middle = (low + high) / 2
        low, high = (middle, high) if _evenly(delta_at, rows, middle) > log_delta else (low, middle)
    epsilons, deltas = _points(delta_at, rows, high, log_delta - rows * high)
    even = rows * high if high * rows <= _LARGEST else math.inf
    best = epsilons[deltas <= log_delta].min(initial=even)
    return float(best) * (1 + _ROUNDED)


def rows_delta(delta_at: Callable[[float], float], rows: int, epsilon: float) -> float:
    """A delta at `epsilon` for so many rows, from a bound on delta for one at any epsilon >= 0."""
    kept = min(epsilon, _LARGEST) * (1 - _ROUNDED)
    even = _evenly(delta_at, rows, kept / rows)
    if kept < _SMALLEST:
        return min(1.0, math.exp(min(even, 0.0)) * (1 + _ROUNDED))
    epsilons, deltas = _points(delta_at, rows, 2 * kept / rows, max(even, -_LARGEST) - 2 * kept)
    best = float(deltas[epsilons <= kept].min(initial=even))
    return min(1.0, math.exp(min(best, 0.0)) * (1 + _ROUNDED))


def _evenly(delta_at: Callable[[float], float], rows: int, epsilon: float) -> float:
    """Log delta of all rows if each is given the same epsilon, which is not 0 together."""
    return (
        math.log(max(delta_at(epsilon), _TINY))
        + float(np.logaddexp.reduce(epsilon * np.arange(rows)))
        + _ROUNDED
    )


def _points(
    delta_at: Callable[[float], float], rows: int, most: float, least: float
) -> tuple[Array, Array]:
    """Epsilons that all `rows` have together, and log delta at each, `[events]`.

    `most` is the largest epsilon of one row that is tried, and `least` the logarithm of the chance
    of the rarest event.
    """
    at = np.linspace(0.0, most, _EVALUATED)
    known = np.log([max(delta_at(epsilon), _TINY) for epsilon in at.tolist()])
    # Delta is convex in e^epsilon: chords lie above it.
    epsilons = np.linspace(0.0, most, (_EVALUATED - 1) * _BETWEEN + 1)
    cell = np.minimum(np.searchsorted(at, epsilons, side="right") - 1, _EVALUATED - 2)
    width = np.expm1(at[1] - at[0])
    share = np.clip(np.expm1(np.maximum(epsilons - at[cell], 0.0)) / width, 0.0, 1.0)
    with np.errstate(divide="ignore"):
        logs = np.logaddexp(np.log1p(-share) + known[cell], np.log(share) + known[cell + 1])
    logs[::_BETWEEN] = known
    events = np.linspace(least, 0.0, _EVENTS)
    total, log_delta = np.zeros(_EVENTS), np.full(_EVENTS, -np.inf)
    for _ in range(rows):
        ways = np.logaddexp(logs, epsilons + events[:, None])
        best = ways.argmin(axis=1)
        events = np.minimum(ways[np.arange(_EVENTS), best], 0.0)
        total += epsilons[best]
        log_delta = np.logaddexp(logs[best], epsilons[best] + log_delta)
    return total, log_delta + _ROUNDED


def has_pairs(mechanism: Mechanism) -> bool:
    """Whether pairs are proved for several rows of a person, and not for one row alone."""
    if isinstance(mechanism, Composed | ClientSampling):
        return all(map(has_pairs, mechanism.inner))
    if isinstance(mechanism, FixedBatchGaussian | Laplace):
        return mechanism.rate == 1
    if isinstance(mechanism, MatrixGaussian):
        return mechanism.sample_rate == 1
    poisson = isinstance(mechanism, PrivateState) and mechanism.sampling == "poisson"
    return poisson or isinstance(mechanism, Gaussian | SampledGaussian)


def parts_of(mechanism: Mechanism, *, upper: bool, rows: int = 1) -> tuple[Part, ...]:
    """As `dominating_pairs.parts_of`, and of a person at one node, whose mechanism `has_pairs`.

    Everything that one row moves is moved `rows` times as far; where rows are drawn, each has a
    coin of its own; those of `ClientSampling` come with the client.
    """
    if isinstance(mechanism, Person):
        return parts_of(mechanism.parts[0], upper=upper, rows=mechanism.rows)
    if rows == 1:
        return dominating_pairs.parts_of(mechanism, upper=upper)
    if isinstance(mechanism, Composed):
        return tuple(p for one in mechanism.parts for p in parts_of(one, upper=upper, rows=rows))
    if isinstance(mechanism, ClientSampling):
        inner = parts_of(mechanism.participation, upper=upper, rows=rows)
        return (MixedPart(inner, mechanism.rate, mechanism.rounds),)
    (part,) = dominating_pairs.parts_of(mechanism, upper=upper)
    # Products below are rounded by less; a pair with larger means dominates.
    side = 1 + 2.0**-49 if upper else 1 - 2.0**-49
    if isinstance(part, GaussianPart):
        return (GaussianPart(part.square * rows**2 * side),)
    assert isinstance(part, LaplacePart | StepsPart)
    values, counts = part.levels.values * side, part.levels.counts
    if isinstance(part, LaplacePart):
        return (LaplacePart(Levels(values * rows, counts)),)
    assert isinstance(part.unit, NormalStep)
    return (StepsPart(replace(part.unit, rows=rows), Levels(values, counts)),)


def worst_nodes(person: Person) -> list[Person]:
    """What a person may lose at most, as one at one node that releases all: some candidates."""
    counts = Counter(person.parts)
    above = {
        part: sum(counts[other] for other in counts if _covers(other, part)) for part in counts
    }
    # Of so many that cover it all are worse; those that cover come first.
    kept = sorted((part for part in counts if above[part] < person.nodes), key=above.__getitem__)
    sizes = [(part, min(counts[part], person.nodes)) for part in kept]
    sets = _worst_sets(sizes, min(person.nodes, len(person.parts)))
    found = [parts for parts, _ in zip(sets, range(MOST_SETS + 1), strict=False)]
    if len(found) > MOST_SETS:
        expected = (
            f"must leave at most {MOST_SETS} choices among {len(kept)} different mechanisms: bring "
            "nodes to one noise and rate, or state the least noise and largest rate for all"
        )
        raise InputError("nodes", person.nodes, expected)
    return [
        replace(person, parts=[parts[0] if len(parts) == 1 else Composed(parts)], nodes=1)
        for parts in found
    ]


def _worst_sets(
    sizes: Sequence[tuple[Mechanism, int]], wanted: int
) -> Iterator[tuple[Mechanism, ...]]:
    """All choices of so many, each mechanism at most so often as is said.

    None has a mechanism without all of those that cover it: with one of them in its place it would
    be no better.
    """
    if wanted == 0:
        yield ()
    elif sizes:
        (part, most), *rest = sizes
        for count in range(min(most, wanted), -1, -1):
            left = [one for one in rest if count == most or not _covers(part, one[0])]
            for others in _worst_sets(left, wanted - count):
                yield (part,) * count + others


def _covers(more: Mechanism, less: Mechanism) -> bool:
    """The statement of `less` implies that of `more`: of one kind, no less noise, no larger rate.

    Noise N(0, z^2 C^2) on contributions bounded by C is noise for any z' < z with a larger bound.
    """
    if not (isinstance(more, Scheduled) and type(more) is type(less)) or more == less:
        return False
    other: Any = less
    noises, others = schedule(more), schedule(other)
    if len(noises) < len(others) or any(z > y for z, y in zip(noises, others, strict=False)):
        return False
    key: Any = more.merge_key()
    if isinstance(more, _THINNED) and other.sample_rate <= more.sample_rate:
        return bool(key == replace(other.merge_key(), sample_rate=more.sample_rate))
    return bool(key == other.merge_key())
