"""Whether records are drawn as the plan says: by secret coins of the planned rate, new ones for
every node, step, part and run.

Under Poisson sampling each record has a coin of its own. A batch of fixed size is a uniformly
random subset of that size: its records are negatively associated (Joag-Dev and Proschan, *Negative
Association of Random Variables*, 1983, section 3.2), and its overlap with any given set is
hypergeometric, whose moment generating function is at most the binomial one (Hoeffding,
*Probability Inequalities for Sums of Bounded Random Variables*, 1963, Theorem 4). So the evidence
of `fidelity/evidence.py`, which asks for no more than a bound of that function, holds for both.
With one random step of each epoch the steps at which a record is drawn are negatively associated as
well, and epochs are independent. So batches of one step are judged like those of coins, but for how
their sizes follow each other, and whole epochs are compared in place of steps. Proof, with whose
coins are counted and in which order they fall: `docs/proofs/audits.md`, Who is drawn.

A record of another node, a batch of another size than is fixed, two disjoint parts that share a
record, and an epoch in which a record is not drawn once need no chance: no correct program shows
one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from tacit.analysis.audit.fidelity.batches import Coins, View, read_drawings
from tacit.analysis.audit.fidelity.evidence import (
    TILTS,
    Cells,
    Verdict,
    counted,
    first_number,
    least_chance,
    least_hits,
    merged,
    p_value,
    weigh,
)
from tacit.analysis.audit.fidelity.finding import (
    LEVEL,
    POWER,
    Finding,
    exact_finding,
    finding,
)
from tacit.analysis.audit.recorder import Trace

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

_MOST_PAIRS = 1 << 24
_MOST_PLACES = 1024  # records whose pairs are looked at, and batches for that: the first ones
_MOST_LAGS = 16  # over which sizes of batches are compared


def sampling_findings(traces: Sequence[Trace]) -> list[Finding]:
    """What traces of a laboratory say about who is drawn, in all tests that this plan allows.

    The traces are of runs of one experiment, each with a noise seed of its own, in which a record's
    target is its number in the stack. At rate 1 there is only the test of the batches.
    """
    drawings = read_drawings(traces)
    certain = (
        (
            drawings.batches,
            "batches",
            "Does every batch hold records of its own node, each once, as many as planned?",
            "contradictions between batches and plan",
            "All {} batches are as the plan says.",
            "batch that the plan rules out",
        ),
        (
            drawings.parts,
            "parts of a step",
            "Do the mini-batches of a step share no record?",
            "steps of a node with mini-batches that share a record",
            "In all {} steps of nodes they share none.",
            "step with mini-batches that share a record",
        ),
        (
            drawings.epochs,
            "epochs",
            "Does every record take part in exactly one step of each epoch?",
            "epochs of a node in which a record does not",
            "In all {} whole epochs of nodes every one does.",
            "epoch in which a record is drawn twice or not at all",
        ),
    )
    findings = []
    for read, name, question, meaning, none, power in certain:
        saw, wrong = none.format(read.count), read.wrong
        if wrong:
            saw = f"{wrong[0][0].upper()}{wrong[0][1:]}."
        power = f"It finds every single {power}."
        if read.count or name == "batches":
            findings.append(exact_finding(name, question, len(wrong), meaning, saw, power))
    if not drawings.coins:
        return findings
    # The logarithm of how much likelier the machine's coins make any event, at most. A coin's rate
    # is rounded to 64 bits, a product of rates to 53; words that are equal are ordered by numbers.
    slack = math.fsum(
        float(some.tossed.sum()) * (2.0**-49 / (1 - some.rate) + some.tossed.shape[3] * 2.0**-65)
        for some in drawings.coins
    )
    poisson = [coins for coins in drawings.coins if coins.size is None]
    tests = [
        _rate(poisson, slack) if poisson else None,
        _sizes([coins for coins in poisson if not coins.once], slack),
        _favoured(drawings.coins, slack),
        _together(drawings.coins, slack),
        _repeated(_AGAIN[0], _by_epochs(drawings.views), slack),
        *(_repeated(again, drawings.views, slack) for again in _AGAIN[1:]),
    ]
    return findings + [test for test in tests if test is not None]


# How many are drawn.


def _rate(coins: Sequence[Coins], slack: float) -> Finding:
    kinds = merged([cells for some in coins for cells in _drawn(some, _TOTALS)])
    return _of_chances(
        "sampling rate",
        "Do batches hold as many records as the sampling rate says?",
        "records that were drawn, over those that are expected",
        kinds,
        (kinds[0], 0),
        slack,
        "records were drawn",
        "a sampling rate of {} in place of {}",
        "coins to find any other sampling rate",
        ratio=float(kinds[0].hits.sum() / kinds[0].planned.sum()),
    )


_WHERE = {
    "each": "",
    "all": " (all parts of a step together)",
    "first": " (first part of a step)",
    "last": " (last part of a step)",
}


_Kinds = Sequence[tuple[str, tuple[int, ...], bool]]
"""What a cell is, over which axes of `Coins` it goes, and whether it is `own`: see `Cells`."""

_TOTALS: _Kinds = (
    ("all batches", (0, 1, 2, 3), False),
    ("all nodes' batches number {}", (0, 1, 3), False),
    ("all batches of one node", (0, 2, 3), True),
    ("one batch", (3,), True),
)
_PLACES: _Kinds = (
    ("all batches at place {}", (0, 1, 2), False),
    ("all batches of one node at one place", (0, 2), True),
    ("all nodes' batches of one number at one place", (0, 1), True),
)


def _drawn(some: Coins, kinds: _Kinds) -> list[Cells]:
    """How many records are drawn, in cells of these kinds."""
    drawn, tossed, where = some.drawn, some.tossed, _WHERE[some.which]
    return [
        counted(name + where, drawn.sum(axis=axes), tossed.sum(axis=axes), some.rate, own=own)
        for name, axes, own in kinds
    ]


def _sizes(coins: Sequence[Coins], slack: float) -> Finding | None:
    """How sizes of batches are spread, and whether one follows from an earlier one."""
    some = [own for own in coins if own.which in ("each", "all")]
    if not some:
        return None
    spreads = [_spread(own) for own in some]
    kinds = merged([*spreads, *(cells for own in some for cells in _successive(own))])
    spread, verdict = kinds[0], weigh(kinds)
    batches, costs = float(spread.tries[0]), spread.costs[:, 0]
    ratio = 1 + float(spread.hits[0]) / batches
    # What a batch of the expected size, rounded, has for its term of `_spread`, at most.
    laws = [(np.unique(own.tossed.sum(axis=3)), own.rate) for own in some]
    each = (stats.binom(records[records > 0], rate) for records, rate in laws)
    still = max(float(((np.rint(b.mean()) - b.mean()) ** 2 / b.var() - 1).max()) for b in each)
    wanted, above = slack - math.log(LEVEL) + math.log(len(kinds) * len(TILTS)), TILTS > 0

    def found(share: float) -> bool:
        """Of batches of the expected size; sizes of others are binomial, bounded by Chernoff."""
        fixed = math.floor(share * batches)
        rest = (1 - fixed / batches) * costs[above] - math.log(1 - POWER)
        hits = fixed * still + float((rest / TILTS[above]).min())
        return hits < 0 and float(special.logsumexp(TILTS * hits - costs)) > wanted

    share = _least_share(found)
    follow = verdict.what != spread.what
    return _judged(
        "batch sizes",
        "Do the sizes of batches vary as those of independent coins do?",
        ratio,
        "variance of the batches' sizes, over the planned one",
        verdict,
        slack,
        (
            f"Sizes follow those of batches {verdict.number + 1} places before them."
            if follow and p_value(verdict.log_evidence, slack) <= LEVEL
            else f"The sizes of {batches:.0f} batches have {ratio:.3f} times the planned variance."
        ),
        f"It finds batches of one fixed size if they are {_percent(share)} of all."
        if share is not None
        else "There are too few batches to tell sizes that are fixed from those of coins.",
    )


def _spread(some: Coins) -> Cells:
    """The squared distances of sizes from their mean, over their variance, less 1."""
    counts, sizes = some.tossed.sum(axis=3), some.drawn.sum(axis=3)
    hits, costs, batches = 0.0, np.zeros(len(TILTS)), 0
    for records in np.unique(counts[counts > 0]).tolist():
        law = stats.binom(records, some.rate)
        every = np.arange(records + 1)
        away = (every - law.mean()) ** 2 / law.var() - 1
        own = sizes[counts == records]
        hits += float(away[own].sum())
        exponents = TILTS[:, None] * away + law.logpmf(every)
        costs += len(own) * special.logsumexp(exponents, axis=1)
        batches += len(own)
    ones = np.array([float(batches)])
    numbers = np.zeros(1, np.int64)
    return Cells("spread", np.array([hits]), ones, 0 * ones, costs[:, None], numbers, 1, False)


def _successive(some: Coins) -> list[Cells]:
    """Products of the distances of two sizes from their means; the first is given, one lag each."""
    counts = some.tossed.sum(axis=3).astype(np.float64)
    away = np.where(counts > 0, some.drawn.sum(axis=3) - counts * some.rate, 0.0)
    largest = max(1.0, counts.max() * some.rate * (1 - some.rate))
    lags = range(1, min(counts.shape[2], _MOST_LAGS + 1))
    if not lags:
        return []
    hits, costs = np.zeros(len(lags)), np.zeros((len(TILTS), len(lags)))
    for at, lag in enumerate(lags):
        before = np.where(counts[:, :, lag:] > 0, away[:, :, :-lag], 0.0) / largest
        after = counts[:, :, lag:]
        hits[at] = (before * away[:, :, lag:]).sum()
        for row, tilt in enumerate(TILTS.tolist()):
            with np.errstate(over="ignore"):  # an infinite cost gives no evidence
                each = np.log1p(some.rate * np.expm1(tilt * before)) - tilt * before * some.rate
            costs[row, at] = (after * each).sum()
    numbers = np.arange(len(lags))
    ones = np.ones(len(lags))
    return [Cells("succession", hits, ones, 0 * ones, costs, numbers, len(lags), False)]


# Who is drawn.


def _favoured(coins: Sequence[Coins], slack: float) -> Finding:
    kinds = merged([cells for some in coins for cells in _drawn(some, _PLACES)])
    return _of_chances(
        "favoured records",
        "Is every record as likely to be drawn as every other, whatever its place?",
        "records drawn where that speaks most against the plan, over those that are expected",
        kinds,
        (kinds[0], _middle(kinds[0])),
        slack,
        "records were drawn",
        "a place whose records are drawn with the chance {} in place of {}",
        "batches to find one place whose records are always drawn",
    )


def _together(coins: Sequence[Coins], slack: float) -> Finding | None:
    kinds = merged([cells for some in coins for cells in _pairs(some)])
    if not kinds:
        return None
    pairs = next(cells for cells in kinds if cells.own)
    return _of_chances(
        "records drawn together",
        "Are two records drawn together no more and no less often than independent coins do it?",
        "pairs drawn where that speaks most against the plan, over those that are expected",
        kinds,
        (pairs, _middle(pairs)),
        slack,
        "pairs of records were drawn together",
        "two places whose records are in one batch with the chance {} in place of {}",
        "batches to find two places that are always drawn together",
    )


def _middle(cells: Cells) -> int:
    """The cell of the middle number of coins."""
    return int(np.argsort(cells.tries)[len(cells.tries) // 2])


def _pairs(some: Coins) -> list[Cells]:
    """Two records of one batch: of every two places, and of all places of one distance.

    The pairs (j, j + d) with an even j // d share no record, nor do those with an odd one.
    """
    places = min(some.drawn.shape[3], _MOST_PLACES)
    if places < 2:
        return []
    # A chance of its own for both: q^2, or that of a subset.
    chance = some.rate**2
    if some.size is not None and some.records is not None:
        chance *= (1 - 1 / some.size) / (1 - 1 / some.records)
    if not 0 < chance < 1:
        return []
    batches = max(1, _MOST_PAIRS * 64 // places**2)
    drawn, tossed = (
        values[..., :places].reshape(-1, places)[:batches].astype(np.float32)
        for values in (some.drawn, some.tossed)
    )
    hits, tries = drawn.T @ drawn, tossed.T @ tossed
    upper = np.triu_indices(places, 1)
    distance = upper[1] - upper[0]
    number = 2 * distance + upper[0] // distance % 2
    sums = [np.bincount(number, values[upper].astype(np.float64)) for values in (hits, tries)]
    where = _WHERE[some.which]
    return [
        counted("all batches" + where, sums[0], sums[1], chance, own=False),
        counted("all batches at two places" + where, hits[upper], tries[upper], chance, own=True),
    ]


# Whether coins are used again.


@dataclass(frozen=True)
class _Again:
    """Batches that must not follow from each other.

    Args:
        whose: of the batches that are compared.
        follows: what a batch does that uses coins again, and
        unit: who does it.
        apart: batches of one distance, in words, and
        chain: those of one chain.
        arranged: bool `[runs, nodes, slots, records]` as `[chains, places, coins]`: in a chain,
            each place is compared with every later one.
    """

    name: str
    question: str
    whose: str
    follows: str
    unit: str
    apart: str
    chain: str
    arranged: Callable[[NDArray[Any]], NDArray[Any]]


_AGAIN = (
    _Again(
        "coins of steps",
        "Does every step of a node toss coins of its own?",
        "two steps of a node",
        "use the coins of the batch before them",
        "the batches",
        "batches of a node, {} places apart",
        "batches of one single node, at one distance",
        lambda values: values.reshape(-1, *values.shape[2:]),
    ),
    _Again(
        "coins of nodes",
        "Does every node toss coins of its own?",
        "two nodes",
        "use the coins of the node before them",
        "the nodes",
        "batches of nodes whose numbers differ by {}",
        "batches of one run, of nodes whose numbers differ alike",
        lambda values: values.reshape(*values.shape[:2], -1),
    ),
    _Again(
        "coins of runs",
        "Are the coins secret, so that a run with other keys tosses others?",
        "two runs",
        "draw the same records in two runs",
        "the nodes",
        "batches of a node in two runs, {} runs apart",
        "batches of one single node, in runs of one distance",
        lambda values: values.swapaxes(0, 1).reshape(values.shape[1], values.shape[0], -1),
    ),
)


def _by_epochs(views: Sequence[View]) -> list[View]:
    """The same with all steps of an epoch as one batch, where each record is drawn once in it.

    Of an epoch, a place is a record at a step; nodes are divided by how long their epochs are.
    """
    found = []
    for view in views:
        if view.epochs is None:
            found.append(view)
            continue
        for steps in np.unique(view.epochs).tolist():
            own = view.epochs == steps
            room = (0, 0), (0, 0), (0, -view.tossed.shape[2] % steps), (0, 0)
            shape = (len(view.tossed), int(own.sum()), -1, steps * view.tossed.shape[3])
            tossed, drawn = (
                np.pad(values[:, own], room).reshape(shape) for values in (view.tossed, view.drawn)
            )
            found.append(View(view.which, tossed, drawn, view.rates[:, own]))
    return found


def _repeated(again: _Again, views: Sequence[View], slack: float) -> Finding | None:
    """Whether batches share more, or fewer, records than independent ones do."""
    compared = [_compared(again, view) for view in views]
    kinds = merged([cells for each, _ in compared for cells in each])
    if not kinds:
        return None
    verdict = weigh(kinds)
    lags = kinds[0]
    share = _repeated_share(lags, np.concatenate([sizes for _, sizes in compared]), kinds, slack)
    return _judged(
        again.name,
        again.question,
        _ratio(verdict),
        f"records that batches of {again.whose} share, where that speaks most against the plan, "
        "over those that are expected",
        verdict,
        slack,
        _seen(verdict, "records are in both"),
        f"It finds coins that are used again if {_percent(share)} of {again.unit} {again.follows}."
        if share is not None
        else f"There are too few coins to find that {again.unit} {again.follows}.",
    )


def _compared(again: _Again, view: View) -> tuple[list[Cells], Array]:
    """Overlaps of batches, and how many records each batch with a next one has.

    A place's coins are tossed after those of the places before it; the records that were drawn
    there say which coins are counted here.
    """
    drawn, tossed = again.arranged(view.drawn & view.tossed), again.arranged(view.tossed)
    slots = view.tossed.shape[2]
    rates = again.arranged(np.repeat(view.rates[:, :, None, None], slots, axis=2))[:, :, 0]
    chains, places, coins = drawn.shape
    if places < 2:
        return [], np.zeros(0)
    earlier, later = np.triu_indices(places, 1)
    lag = later - earlier
    kinds = [again.apart, again.chain, *["two batches"] * (chains * len(lag) <= _MOST_PAIRS)]
    names = [name + _WHERE[view.which] for name in kinds]
    kind: Any = np.float32 if coins < 1 << 24 else np.float64
    at_once = max(1, _MOST_PAIRS // places**2)
    found: list[Cells] = []
    sizes = []
    for first in range(0, chains, at_once):
        chosen = slice(first, first + at_once)
        before, there = drawn[chosen].astype(kind), tossed[chosen].astype(kind)
        hits, tries = (
            np.matmul(before, side.swapaxes(1, 2))[:, earlier, later].astype(np.float64)
            for side in (before, there)
        )
        sizes.append(tries[:, lag == 1].reshape(-1))
        coin: Bools = np.any(tossed[chosen], axis=2)
        public = coin[:, earlier] & coin[:, later]
        found += _overlaps(names, hits, tries, np.where(public, rates[chosen][:, later], 0.0), lag)
    return merged(found), np.concatenate(sizes)


def _overlaps(
    names: Sequence[str], hits: Array, tries: Array, rates: Array, lag: NDArray[np.int64]
) -> list[Cells]:
    """Overlaps by distance, by chain and distance, and by pair where that has a name as well.

    `hits` are records that a later batch shares with an earlier one, `tries` those of the earlier
    batch that the later one has coins for, and `rates` the later one's, 0 where not both have
    coins, `[chains, pairs]` each; `lag` is how far apart the two are, `[pairs]`.
    """
    shape = len(hits), int(lag.max()) + 1
    cell = np.arange(shape[0])[:, None] * shape[1] + lag
    found = []
    for rate in np.unique(rates[rates > 0]).tolist():
        own = rates == rate
        pairs = [hits[own], tries[own], np.ones(int(own.sum()))]
        chains = [np.bincount(cell[own], each, math.prod(shape)).reshape(shape) for each in pairs]
        every = [each.sum(axis=0) for each in chains]
        kinds = zip(names, (every, chains, pairs), (False, True, True), strict=False)
        found += [
            counted(name, shared, there, rate, own=single, public=count > 0)
            for name, (shared, there, count), single in kinds
        ]
    return found


def _repeated_share(
    lags: Cells, sizes: Array, kinds: Sequence[Cells], slack: float
) -> float | None:
    """The least chance of a repeat, each batch for itself, that is found; None: not even 1.

    A batch that is a repeat shares all its records with the one before it. How few are shared in
    all is bounded by Chernoff, from the exact generating function.
    """
    values, counts = np.unique(sizes[sizes > 0], return_counts=True)
    if not len(lags.hits) or not len(values):
        return None
    least = least_hits(lags, 0, len(kinds), slack)
    if least is None:
        return None
    needed, tilts = least - 1, -TILTS[TILTS < 0]
    rate = float(lags.planned[0] / lags.tries[0])
    alone = np.outer(np.log1p(rate * np.expm1(-tilts)), values)
    copied = -np.outer(tilts, values)

    def found(share: float) -> bool:
        with np.errstate(divide="ignore"):
            each = np.logaddexp(np.log(share) + copied, np.log1p(-share) + alone)
        return float((tilts * needed + each @ counts).min()) <= math.log(1 - POWER)

    return _least_share(found)


# Words.


def _of_chances(
    name: str,
    question: str,
    meaning: str,
    kinds: Sequence[Cells],
    of: tuple[Cells, int],
    slack: float,
    what: str,
    power: str,
    too_few: str,
    ratio: float | None = None,
) -> Finding:
    """A test by all kinds of cells; its power is the least mean chance found by one of them.

    That is said of the cell `of`, of some kind, beside the planned chance. `ratio` is of what was
    seen to what is planned; None: that of the cell that speaks most.
    """
    verdict, (cells, cell) = weigh(kinds), of
    hits, tries = least_hits(cells, cell, len(kinds), slack), float(cells.tries[cell])
    found = f"There are too few {too_few}."
    if hits is not None:
        planned = float(cells.planned[cell] / tries)
        found = f"It finds {power.format(_up(least_chance(hits, tries)), f'{planned:.4g}')}."
    seen, shown = _seen(verdict, what), _ratio(verdict) if ratio is None else ratio
    return _judged(name, question, shown, meaning, verdict, slack, seen, found)


def _least_share(found: Callable[[float], bool]) -> float | None:
    """The least share at which a defect is found, rounded up to a 1024th; None: not even all."""
    least = first_number(lambda number: found(number / 1024), 0, 1024)
    return None if least is None else least / 1024


def _judged(
    name: str,
    question: str,
    statistic: float,
    meaning: str,
    verdict: Verdict,
    slack: float,
    saw: str,
    power: str,
) -> Finding:
    chance = p_value(verdict.log_evidence, slack)
    return finding(name, question, statistic, meaning, saw, power, p_value=chance, exact=False)


def _seen(verdict: Verdict, what: str) -> str:
    place = verdict.what.format(verdict.number)
    return f"In {place}, {verdict.hits:.0f} {what}, and {verdict.planned:.1f} are expected."


def _ratio(verdict: Verdict) -> float:
    return verdict.hits / verdict.planned if verdict.planned else 1.0


def _up(value: float) -> str:
    """Four significant digits, never below the value."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{min(1.0, math.ceil(value / unit) * unit):.4g}"


def _percent(share: float) -> str:
    """A share as a percentage, rounded up."""
    return f"{math.ceil(share * 1000) / 10:.1f} %"
