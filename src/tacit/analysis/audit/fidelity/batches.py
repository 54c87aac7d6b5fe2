"""Who was drawn, read from traces of a laboratory, where a record's target is its number.

What no correct program does is found here: a record of another node, or twice, a batch of another
size than the plan fixes, parts of a step that share a record although the plan says that they do
not. All else is a matter of chance: `Coins` holds which coins were tossed and how they fell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.analysis.audit.laboratory import rule_of
from tacit.analysis.audit.recorder import Drawn, Sum, Trace
from tacit.training.plan import Plan

Bools = NDArray[np.bool_]
Numbers = NDArray[np.int64]

_MOST = 1 << 25  # coins that are kept: those of the first nodes


@dataclass(frozen=True, eq=False)
class View:
    """All coins of a run, in one of the ways in which the mini-batches of a step can be taken.

    Args:
        which: `each` mini-batch for itself; where those of a step share no record: `all` of them as
            one batch, the `first` or the `last` alone.
        tossed: whether there is a coin, bool `[runs, nodes, slots, records]`. A slot is a
            mini-batch: a step's, or one of its parts.
        drawn: whether the record was drawn, likewise.
        rates: the planned chance of it, `[runs, nodes]`; of batches of fixed size, their share of
            the records.
        epochs: of each node, in how many slots each record is drawn once, `[nodes]`; None: each
            slot is drawn for itself.
    """

    which: str
    tossed: Bools
    drawn: Bools
    rates: NDArray[np.float64]
    epochs: Numbers | None = None


@dataclass(frozen=True, eq=False)
class Coins:
    """The coins of those nodes of a `View` that are drawn alike.

    Args:
        rate: q, below 1.
        size: of batches of fixed size; None: each coin is tossed alone.
        records: of a node with batches of fixed size; None: of any number.
        once: whether each record is drawn once in each epoch.
    """

    which: str
    tossed: Bools
    drawn: Bools
    rate: float
    size: int | None
    records: int | None
    once: bool = False


@dataclass(frozen=True)
class Read:
    """How many things of one kind were read, and what contradicts the plan, each one sentence."""

    count: int
    wrong: Sequence[str]


@dataclass(frozen=True, eq=False)
class Drawings:
    """What traces show of who was drawn.

    Args:
        views: the coins that were kept; none where every batch holds all records.
        coins: the same, by how they are drawn.
        batches: each by itself.
        parts: steps of nodes whose mini-batches must share no record.
        epochs: of nodes, whole ones, in which each record takes part once.
    """

    views: Sequence[View]
    coins: Sequence[Coins]
    batches: Read
    parts: Read
    epochs: Read


def read_drawings(traces: Sequence[Trace]) -> Drawings:
    """Read who was drawn in runs of one experiment."""
    plans = [trace.plan for trace in traces]
    first, unit = plans[0], _records_of_a_coin(plans[0])
    count = min(len(plan.nodes) for plan in plans)
    sizes = np.array([[-(-node.records // unit) for node in plan.nodes[:count]] for plan in plans])
    parts = first.release.local_steps
    slots = parts * (1 + max((each.step for trace in traces for each in trace.sums), default=0))
    shape = (len(plans), slots, int(sizes.max()))
    nodes = max(1, min(count, _MOST // (shape[0] * shape[1] * shape[2])))
    drawn = np.zeros((shape[0], nodes, *shape[1:]), np.bool_)
    present = np.zeros(drawn.shape[:3], np.bool_)
    wrong: list[str] = []
    batches = 0
    for run, trace in enumerate(traces):
        plan = trace.plan
        for asked in trace.sums:
            found, rows = _read(asked, trace, wrong)
            batches += len(rows)
            units = _units(found, plan, rows, unit, asked, wrong)
            drawing = [row < nodes and plan.nodes[row].rate < 1 for row in rows]
            kept = [] if asked.whole else np.flatnonzero(drawing).tolist()
            own = [rows[at] for at in kept]
            slot = asked.step * parts + asked.part
            again = present[run, own, slot]
            if (drawn[run, own, slot][again] != units[kept][:, : shape[2]][again]).any():
                wrong.append(f"step {asked.step} drew twice, and not the same records")
            drawn[run, own, slot], present[run, own, slot] = units[kept][:, : shape[2]], True
    views, coins = _by_law(plans, drawn, present, sizes[:, :nodes])
    shared, epochs = _shared(first, drawn, present), _once(plans, drawn, present)
    return Drawings(views, coins, Read(batches, wrong), shared, epochs)


def _records_of_a_coin(plan: Plan) -> int:
    """How many records one coin draws: those of a mini-batch of a table, or one."""
    chosen = plan.config.algorithm
    table = chosen.definition.table(chosen.options)
    return 1 if table is None or table.mini_batch is None else table.mini_batch


def _read(asked: Sum, trace: Trace, wrong: list[str]) -> tuple[Bools, list[int]]:
    """Which records each node of a sum was drawn, `[nodes of the sum, most records]`; its nodes."""
    every, active = range(len(trace.plan.nodes)), trace.plan.release.active(asked.step)
    of_all = asked.kind != "gradient" and len(asked.at) == len(every)
    flags = [True] if active is None or of_all else active
    rows = [node for node in every if flags[node % len(flags)]]
    most = max(node.records for node in trace.plan.nodes)
    # A batch was read in all calls; of a difference in every second one, at either point. The first
    # difference of a run is preceded by a call that finds out what form gradients have, on records
    # that are nobody's.
    calls = trace.drawn[asked.draws]
    read = [calls]
    if asked.kind == "difference":
        own = calls[len(calls) % 2 :]
        read = [own[0::2], own[1::2]]
    batches = [_counted(each, rows, trace, most, asked, wrong) for each in read]
    counts = batches[0] if batches else np.zeros((len(rows), most), np.int64)
    if any((counts != other).any() for other in batches[1:]):
        wrong.append(f"step {asked.step} subtracted gradients of other records than it added")
    if (counts > 1).any():
        wrong.append(f"step {asked.step} drew a record twice in one batch")
    return counts > 0, rows


def _counted(
    calls: Sequence[Drawn],
    rows: list[int],
    trace: Trace,
    most: int,
    asked: Sum,
    wrong: list[str],
) -> NDArray[np.int64]:
    """How often each record of each node was given to the model."""
    nothing, flat = np.zeros(0, np.int64), (call.targets.reshape(-1) for call in calls)
    places = np.concatenate([nothing, *(call.rows.cpu().numpy() for call in calls)])
    numbers = np.concatenate([nothing, *(own.round().long().cpu().numpy() for own in flat)])
    sizes = np.array([node.records for node in trace.plan.nodes])
    nodes = np.asarray(rows, np.int64)
    known = places < len(nodes)
    own = nodes[np.where(known, places, 0)] if len(nodes) else places
    local = numbers - trace.offsets[own]
    known &= (local >= 0) & (local < sizes[own])
    if not known.all():
        wrong.append(f"step {asked.step} drew a record that its node does not have")
    rule = rule_of(trace.plan)
    parts = (call.counts for call in calls if call.counts is not None)
    if rule is not None and any(bool((counts != rule.most).any()) for counts in parts):
        wrong.append(f"step {asked.step} drew a record without some of its rows")
    counts = np.bincount(places[known] * most + local[known], minlength=len(nodes) * most)
    return counts.reshape(len(nodes), most)


def _units(
    found: Bools, plan: Plan, rows: list[int], unit: int, asked: Sum, wrong: list[str]
) -> Bools:
    """Which coins fell on heads, `[nodes of the sum, most coins]`; sizes are checked."""
    coins = -(-found.shape[1] // unit)
    padded = np.zeros((len(rows), coins * unit), np.bool_)
    padded[:, : found.shape[1]] = found
    grouped = padded.reshape(len(rows), coins, unit)
    drawn: Bools = np.any(grouped, axis=2)
    sizes = np.array([plan.nodes[row].records for row in rows], np.int64)
    real = (np.arange(coins * unit) < sizes[:, None]).reshape(grouped.shape)
    if (drawn[:, :, None] & real & ~grouped).any():
        wrong.append(f"step {asked.step} drew a part of a mini-batch that is drawn whole")
    fixed = plan.config.train.sampling == "fixed"
    for row, size in zip(rows, found.sum(axis=1).tolist(), strict=True):
        node = plan.nodes[row]
        certain = asked.whole or node.rate == 1  # else that is left to chance, or fixed
        wanted = node.records if certain else int(node.expected_batch) if fixed else size
        if wanted != size:
            wrong.append(f"step {asked.step} drew {size} records where {wanted} are planned")
    return drawn


def _shared(plan: Plan, drawn: Bools, present: Bools) -> Read:
    """Steps whose parts share a record and must not."""
    parts = plan.release.local_steps
    if parts == 1 or not plan.release.disjoint:
        return Read(0, ())
    split = (*drawn.shape[:2], -1, parts)
    times = drawn.reshape(*split, drawn.shape[3]).sum(axis=3)
    twice: Bools = np.any(times > 1, axis=3)
    told = [
        f"in run {run}, two parts of step {step} of node {node} share a record"
        for run, node, step in np.argwhere(twice).tolist()
    ]
    return Read(int(present.reshape(split).any(axis=3).sum()), told)


def _once(plans: Sequence[Plan], drawn: Bools, present: Bools) -> Read:
    """Epochs in which a record is not drawn once and must be; only whole ones are counted.

    Of an epoch of which not all steps were seen, no record may be drawn twice.
    """
    if plans[0].release.over_time is not None:
        return _in_turn(plans, drawn, present)
    if plans[0].config.train.sampling != "allocation":
        return Read(0, ())
    told, whole = [], 0
    for run, plan in enumerate(plans):
        for row, node in enumerate(plan.nodes[: drawn.shape[1]]):
            t = node.epoch_steps
            for first in range(0, drawn.shape[2] if node.rate < 1 else 0, t):
                seen = present[run, row, first : first + t]
                times = drawn[run, row, first : first + t, : node.records].sum(axis=0)
                complete = bool(seen.all()) and len(seen) == t
                whole += complete
                if times.max() > 1 or (complete and times.min() < 1):
                    told.append(
                        f"in run {run}, a record of node {row} takes part "
                        f"{times.max() if times.max() > 1 else 0} times in the epoch from step "
                        f"{first}"
                    )
    return Read(whole, told)


def _turns(plan: Plan, shape: tuple[int, ...]) -> Bools:
    """Whose turn it is, `[nodes, steps, records]`."""
    turns = np.array([plan.release.turns(node) for node in plan.nodes[: shape[0]]])[:, None, None]
    own: Bools = np.arange(shape[2]) % turns == np.arange(shape[1])[:, None] % turns
    return own


def _in_turn(plans: Sequence[Plan], drawn: Bools, present: Bools) -> Read:
    """Steps in which a record takes part out of turn, or does not where no coin decides."""
    told = []
    for run, plan in enumerate(plans):
        own, release = _turns(plan, drawn.shape[1:]), plan.release
        for row, node in enumerate(plan.nodes[: drawn.shape[1]]):
            wrong = drawn[run, row] & ~own[row]
            if release.coin(node) == 1:
                wrong |= own[row] & ~drawn[run, row] & (np.arange(drawn.shape[3]) < node.records)
            steps = np.flatnonzero(wrong.any(axis=1) & present[run, row]).tolist()
            told += [f"in run {run}, step {k} of node {row} is not of whose turn" for k in steps]
    return Read(int(present.sum()), told)


def _by_law(
    plans: Sequence[Plan], drawn: Bools, present: Bools, counts: NDArray[np.int64]
) -> tuple[list[View], list[Coins]]:
    """The views of a run's coins, and these divided among the nodes that are drawn alike."""
    release, nodes = plans[0].release, drawn.shape[1]
    # Mini-batches of a table are drawn by coins, whatever the sampling.
    fixed = plans[0].config.train.sampling == "fixed" and _records_of_a_coin(plans[0]) == 1
    turned = release.over_time is not None
    planned = [
        [plan.release.coin(node) if turned else node.rate for node in plan.nodes[:nodes]]
        for plan in plans
    ]
    sizes = np.array([[int(node.expected_batch) for node in plan.nodes[:nodes]] for plan in plans])
    rates = np.where(np.array(planned) < 1, sizes / counts if fixed else planned, 1.0)
    real = (np.arange(drawn.shape[3]) < counts[:, :, None])[:, :, None, :]
    tossed: Bools = present[:, :, :, None] & real & (rates < 1)[:, :, None, None]
    if turned:
        tossed &= np.stack([_turns(plan, drawn.shape[1:]) for plan in plans])
    parts = release.local_steps if release.disjoint else 1
    epochs = None
    if plans[0].config.train.sampling == "allocation":
        epochs = np.array([node.epoch_steps for node in plans[0].nodes[:nodes]], np.int64)
    each = View("each", tossed, drawn, rates, epochs)
    views = [each] if parts == 1 else _split(each, parts)
    views = [view for view in views if view.tossed.any()]
    coins = []
    for view in views:
        together = parts if view.which == "all" else 1
        # By rate, size of batch and number of records; the latter two where batches are of a size.
        laws = np.stack([together * sizes, counts], axis=2) * fixed
        for rate in np.unique(view.rates[view.tossed.any(axis=(2, 3))]).tolist():
            member = view.rates == rate
            for size, records in np.unique(laws[member], axis=0).tolist():
                own = member & (laws == (size, records)).all(axis=2)
                alike = own.any(axis=0)
                tossed = view.tossed[:, alike] & own[:, alike, None, None]
                if tossed.any():
                    law = rate, size or None, records or None, view.epochs is not None
                    coins.append(Coins(view.which, tossed, view.drawn[:, alike] & tossed, *law))
    return views, coins


def _split(each: View, parts: int) -> list[View]:
    """Parts of a step that share no record: all of them as one batch, the first, the last."""
    shape = (*each.tossed.shape[:2], -1, parts, each.tossed.shape[3])
    tossed, drawn = each.tossed.reshape(shape), each.drawn.reshape(shape)
    together = np.minimum(1.0, parts * each.rates)
    left = (together < 1)[:, :, None, None]
    there: Bools = np.any(tossed, axis=3)
    fell: Bools = np.any(drawn, axis=3)
    return [
        View("all", there & left, fell, together),
        View("first", tossed[:, :, :, 0], drawn[:, :, :, 0], each.rates),
        View("last", tossed[:, :, :, -1], drawn[:, :, :, -1], each.rates),
    ]
