"""Evidence from counts of coins: how much a count speaks against the chance that was planned.

A *hit* is a coin that fell on heads, or two records that were drawn together; a *cell* is a set of
coins, chosen before they fell, and its hits are counted. For every tilt t the number

    exp(t hits - cost(t)),   cost(t) = sum over the cell's coins of log(1 - q + q e^t),

has an expectation of at most 1 in a correct program, and so has every mean of such numbers, over
tilts, cells and kinds of cells, however these depend on each other. By Markov's inequality such a
mean reaches 1 / a with a chance of at most a: `p_value` is that bound, so no count of tests needs
to be corrected for. Proof, with what is asked of the coins: `docs/proofs/audits.md`, Who is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from tacit.analysis.audit.fidelity.finding import LEVEL, POWER

Array = NDArray[np.float64]

_SIZES = 2.0 ** (np.arange(-26, 7) / 2)
TILTS: Array = np.concatenate([-_SIZES, _SIZES])
"""From small ones, for a little too much in many coins, to large ones, for the same coins twice."""

_MOST = 2048  # own cells of a kind that are weighed; others' evidence is taken for zero


@dataclass(frozen=True, eq=False)
class Cells:
    """Counts of one kind.

    Args:
        hits: `[cells]`.
        tries: how many coins could have been hits, `[cells]`.
        planned: how many hits are expected, `[cells]`.
        costs: `[tilts, cells]`, the logarithm of the expected exp(tilt hits), at most.
        numbers: which cell each is, of all of the kind, `[cells]`.
        count: how many there are of the kind, with those whose evidence is taken for zero.
        own: whether coins of other rates have cells of their own, see `counted`.
    """

    what: str
    hits: Array
    tries: Array
    planned: Array
    costs: Array
    numbers: NDArray[np.int64]
    count: int
    own: bool


@dataclass(frozen=True)
class Verdict:
    """The logarithm of all evidence of a test together, and the cell that speaks most."""

    log_evidence: float
    what: str
    number: int
    hits: float
    planned: float


def counted(
    what: str,
    hits: NDArray[Any],
    tries: NDArray[Any],
    rate: float,
    *,
    own: bool,
    public: NDArray[np.bool_] | None = None,
) -> Cells:
    """Cells of coins of one rate, the planned chance of a hit.

    `hits` of each cell are of any shape, and `tries`, how many coins each has, of the same one.
    `own` says that these cells are met with this rate only; of many such cells only those that are
    furthest from the plan are kept. `public`, of the same shape, says which cells there are where
    coins that fell decide about tries; None: those with tries.
    """
    found, tossed = (np.asarray(values, np.float64).reshape(-1) for values in (hits, tries))
    numbers = np.flatnonzero(tossed if public is None else public)
    count = len(numbers)
    if own and count > _MOST:
        away = np.abs(found - tossed * rate)[numbers]
        scale = np.sqrt(tossed[numbers] * rate * (1 - rate)) + 1
        numbers = np.sort(numbers[np.argpartition(away / scale, -_MOST)[-_MOST:]])
    kept = tossed[numbers]
    costs = np.outer(costs_of(rate), kept)
    return Cells(what, found[numbers], kept, kept * rate, costs, numbers, count, own)


def costs_of(rate: float) -> Array:
    """The logarithm of the expected exp(tilt) of one coin, `[tilts]`."""
    found: Array = np.log1p(rate * np.expm1(TILTS))
    return found


def merged(kinds: Sequence[Cells]) -> list[Cells]:
    """The cells of each kind together.

    Cells of one number are added up, whatever the rates of their coins; own cells stay apart.
    """
    found: dict[str, list[Cells]] = {}
    for cells in kinds:
        found.setdefault(cells.what, []).append(cells)
    return [same[0] if len(same) == 1 else _joined(same) for same in found.values()]


def _joined(same: Sequence[Cells]) -> Cells:
    every = np.concatenate([cells.numbers for cells in same])
    own = same[0].own
    numbers, places = every, np.arange(len(every))
    if not own:
        numbers, places = np.unique(every, return_inverse=True)

    def summed(values: Sequence[Array]) -> Array:
        """Rows of one number added up, `[numbers, ...]`."""
        found: Array = np.zeros((len(numbers), *values[0].shape[1:]))
        np.add.at(found, places, np.concatenate(values))
        return found

    return Cells(
        what=same[0].what,
        hits=summed([cells.hits for cells in same]),
        tries=summed([cells.tries for cells in same]),
        planned=summed([cells.planned for cells in same]),
        costs=summed([cells.costs.T for cells in same]).T,
        numbers=numbers,
        count=sum(cells.count for cells in same) if own else len(numbers),
        own=own,
    )


def weigh(kinds: Sequence[Cells]) -> Verdict:
    """The mean of all cells' evidence, at least of one cell, each kind with the same weight."""
    some = [cells for cells in kinds if cells.count]
    each = [
        special.logsumexp(TILTS[:, None] * cells.hits - cells.costs, axis=0)
        - math.log(len(TILTS) * cells.count * len(some))
        for cells in some
    ]
    kind = max(range(len(some)), key=lambda at: float(each[at].max()))
    cell = int(each[kind].argmax())
    cells = some[kind]
    return Verdict(
        float(special.logsumexp(np.concatenate(each))),
        cells.what,
        int(cells.numbers[cell]),
        float(cells.hits[cell]),
        float(cells.planned[cell]),
    )


def p_value(log_evidence: float, slack: float) -> float:
    """How likely a correct program shows as much evidence, at most.

    `slack` is the logarithm of how much likelier the machine's coins can make any event.
    """
    return math.exp(min(0.0, slack - log_evidence))


def least_hits(cells: Cells, cell: int, kinds: int, slack: float) -> int | None:
    """The least hits of one cell, above the planned ones, that fail a test of so many kinds alone.

    None where not even hits of all its coins do.
    """
    wanted = slack - math.log(LEVEL) + math.log(cells.count * kinds * len(TILTS))

    def enough(hits: int) -> bool:
        return float(special.logsumexp(TILTS * hits - cells.costs[:, cell])) > wanted

    return first_number(enough, math.floor(cells.planned[cell]), math.floor(cells.tries[cell]))


def first_number(enough: Callable[[int], bool], low: int, high: int) -> int | None:
    """The least whole number above `low` that is enough, by bisection; None if not even `high`."""
    if not enough(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def least_chance(hits: int, tries: float) -> float:
    """The chance of a hit at which so many of the coins are reached with the chance `POWER`.

    Exact for coins of one rate: the quantile of a beta distribution. For coins of several rates it
    is their mean: theirs are spread less than those of one rate (Hoeffding, *On the Distribution of
    the Number of Successes in Independent Trials*, 1956, Theorem 4).
    """
    return float(stats.beta.ppf(POWER, hits, max(tries - hits, 0) + 1))
