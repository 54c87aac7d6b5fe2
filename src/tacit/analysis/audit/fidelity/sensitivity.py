"""What one record moves, in the arithmetic that runs: in the user's model, data and gradient path.

The experiment runs once on its own data. Then it runs again, with the same coins and with every
release as it came out before, so that all nodes are at the same points. One record of each node is
another one; the releases being what they were, no node sees what happens at others. What is handed
to the noise is compared, release by release, with what the plan's mechanism lets one record move
(`accounted`). That is the sensitivity on which the certificate rests, rounding included.

*No statistics.* A distance is computed so that it is never more than the true one: differences of
machine numbers in float64, of relative error 2^-53, and a sum of d squares or of absolute values,
of relative error (d + 8) 2^-52 at most. A correct program cannot fail on any record
(`docs/proofs/audits.md`, *What one record moves*), so the p-value is 0 or 1. That nothing was found
proves nothing about records that were not tried.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.analysis.audit.canaries import records_of
from tacit.analysis.audit.fidelity.accounted import Accounted, accounted
from tacit.analysis.audit.fidelity.finding import Finding, Worst, exact_finding
from tacit.analysis.audit.fidelity.recomputed import (
    Bench,
    acting,
    division_finding,
    make_bench,
    sum_finding,
)
from tacit.analysis.audit.recorder import Call, ContextFactory, Trace, TracedRelease
from tacit.analysis.audit.records import candidates, marker
from tacit.data import StackedData
from tacit.report.wording import figure_down, figure_up
from tacit.training.job import Job
from tacit.training.stacked_context import StackedContext

_TOLERANCE = 1e-12
"""Of comparing a distance with a product of the plan's numbers, each rounded once."""

_ROUNDING = {torch.float32: 2.0**-11, torch.float64: 2.0**-40}
"""What a step may be moved by a record that it does not draw, over what one that it draws may.

Nothing, but that a kernel may round the other records in another way, as memory lies, or as a batch
is full. For 128 of them some 64 roundings each.
"""

_STEPS = (4, 8)  # that are run, at least and at most
_RUNS = 40  # that a choice of steps leaves time for
_RECOMPUTING = 0.25  # of the time, at most
_KEPT = 2  # variants that all later ones are compared with

Array = NDArray[np.float64]


def _choose(bench: Bench, base: Trace, turn: int) -> tuple[Tensor, Tensor]:
    """Of each node a record that is drawn, and another one of its batch: their numbers in all.

    Nodes and turns take those of different batches, early and late; a node that draws nothing, its
    first records.
    """
    data = bench.data
    found: list[list[tuple[Call, int]]] = [[] for _ in range(len(data.sizes))]
    for called in base.sums:
        if called.whole:
            continue
        for call in base.calls[called.draws]:
            for row, node in enumerate(acting(bench.plan, called.step, len(call.mask))):
                if bool(call.mask[row].any()):
                    found[node].append((call, row))
    chosen: list[tuple[int, int]] = []
    for node, drawn in enumerate(found):
        pair = turn % int(data.counts[node]), 0
        for number in range(len(drawn)):
            call, row = drawn[(node + turn + number) % len(drawn)]
            slots = call.mask[row].nonzero().flatten().tolist()
            own = _number(data, node, call, row, slots[turn % len(slots)])
            other = _number(data, node, call, row, slots[(turn + 1) % len(slots)])
            # A made-up record, on which layers are tried, has no number.
            if own is not None and other is not None:
                pair = own, other
                break
        chosen.append(pair)
    rows = torch.tensor(chosen, device=data.sizes.device)
    rows = rows + data.firsts.unsqueeze(1)
    return rows[:, 0], rows[:, 1]


def _number(data: StackedData, node: int, call: Call, row: int, slot: int) -> int | None:
    """The first number at its node of a record like the one in a slot of a call, if any."""
    start, size = int(data.firsts[node]), int(data.counts[node])
    numbers = torch.arange(start, start + size, device=data.targets.device)
    own, wanted = records_of(data, numbers)
    same = (own == call.inputs[row, slot].to(own)).flatten(1).all(dim=1)
    targets = wanted == call.targets[row, slot]
    same &= targets.flatten(1).all(dim=1) if targets.ndim > 1 else targets
    places = same.nonzero()
    return int(places[0, 0]) if len(places) else None


Drawn = list[set[int]]
"""Of each release, the nodes whose changed record a sum before it drew, as far as is known."""


def _drawn(bench: Bench, base: Trace, other: Trace, keeps: Callable[[int, int], bool]) -> Drawn:
    """Where the batches of two runs differ: a record that is another one is in them there.

    Of a node at which a candidate equals the record itself this tells nothing. The places are the
    same for all candidates of a turn, so what each of them tells counts for all.
    """
    changed: list[set[int]] = []
    known: dict[tuple[int, int], NDArray[np.bool_]] = {}
    for release in base.releases:
        nodes: set[int] = set()
        for called in base.sums[release.sums]:
            for place in range(*called.draws.indices(len(base.calls))):
                one, two = base.calls[place], other.calls[place]
                key = id(one.inputs), id(two.inputs)
                if key not in known:
                    known[key] = _differ(one, two)
                rows = acting(bench.plan, called.step, len(one.mask))
                nodes |= {
                    node
                    for node, differs in zip(rows, known[key], strict=bool(rows))
                    if differs and not (called.whole and keeps(node, release.step))
                }
        changed.append(nodes)
    return changed


def _differ(one: Call, two: Call) -> NDArray[np.bool_]:
    """Which rows of two calls hold other records, `[rows]`."""
    if one.inputs.shape != two.inputs.shape:
        return np.ones(len(one.mask), np.bool_)
    flags = (one.mask != two.mask).any(dim=1)
    for left, right in ((one.inputs, two.inputs), (one.targets, two.targets)):
        seen = (left != right).flatten(2).any(dim=2) if left.ndim > 2 else left != right
        flags |= (seen & one.mask).any(dim=1)
    return np.asarray(flags.cpu().numpy(), np.bool_)


@dataclass
class _Seen:
    """What all comparisons found.

    Args:
        drawn: of records that a step may move by something: at which node and step, of which name,
            and whether it was `replaced` or `left out`.
        undrawn: of records that it must not move by anything, likewise,
        still: and how many comparisons that were.
        runs: that were made, the first one included.
    """

    drawn: Worst = field(default_factory=Worst)
    undrawn: Worst = field(default_factory=Worst)
    still: int = 0
    records: int = 0
    runs: int = 1


def _lengths(one: Tensor, other: Tensor, l1: bool) -> Array:
    """Distances of rows, never above the true ones; infinite where a number is not finite."""
    apart = one.double() if one.dtype != torch.float64 else one.clone()
    apart -= other
    lengths: Tensor = torch.linalg.vector_norm(apart, ord=1 if l1 else 2, dim=1)
    lengths = lengths * (1 - (apart.shape[1] + 8) * 2.0**-52)
    lengths = torch.where(torch.isfinite(lengths), lengths, math.inf)
    return np.asarray(lengths.cpu().numpy(), np.float64)


class _Judge:
    """Compares what two runs handed to the noise with what the plan's mechanisms let it move."""

    def __init__(self, bench: Bench, releases: Sequence[TracedRelease]) -> None:
        self._rounding = _ROUNDING[bench.job.dtype]
        self._l1 = bench.plan.release.algorithm.releases.noise.norm == "l1"
        self._releases = releases
        self._pairs = bench.plan.release.pairs
        steps: dict[int, list[int]] = {}
        for release in releases:
            for node in release.nodes:
                if not steps.setdefault(node, []) or steps[node][-1] != release.step:
                    steps[node].append(release.step)
        self._allowed = {
            node: accounted(bench.plan, bench.plan.nodes[node], own) for node, own in steps.items()
        }

    def keeps(self, node: int, step: int) -> bool:
        """Whether a sum over all records draws none, as the node keeps gradients of each."""
        return self._allowed[node][step].keeps

    def compare(
        self,
        one: Sequence[Tensor],
        other: Sequence[Tensor],
        drawn: Drawn,
        seen: _Seen,
        *,
        name: str,
        left_out: bool,
    ) -> float:
        """Add what was moved to `seen`; the largest share of what is accounted."""
        moved: dict[int, dict[int, float]] = {}
        hit: dict[int, set[int]] = {}
        for release, left, right, nodes in zip(self._releases, one, other, drawn, strict=True):
            # The deviation of the noise that counts for each row: that of the node's own, or more.
            hidden, pairs = release.deviations, self._pairs
            if pairs is not None:
                hidden = hidden * np.array([pairs.gain(n, release.step) for n in release.nodes])
            lengths = _lengths(left, right, self._l1) / hidden
            for node, length in zip(release.nodes, lengths.tolist(), strict=True):
                own = moved.setdefault(node, {})
                before = own.get(release.step, 0.0)
                own[release.step] = before + length if self._l1 else math.hypot(before, length)
                if node in nodes:
                    hit.setdefault(node, set()).add(release.step)
        how, largest = "left out" if left_out else "replaced", 0.0
        for node, own in moved.items():
            limits = self._limited(node, own, hit.get(node, set()), left_out)
            for step, length, limit, nothing in limits:
                share = length / limit / (1 + _TOLERANCE)
                (seen.undrawn if nothing else seen.drawn).see(share, node, step, name, how)
                seen.still += nothing
                largest = max(largest, 0.0 if nothing else share)
        return largest

    def _limited(
        self, node: int, moved: dict[int, float], hit: set[int], left_out: bool
    ) -> Iterator[tuple[int, float, float, bool]]:
        """Of each step of a node: how far it was moved, how far it may be, whether not at all."""
        together, reach = 0.0, 0.0
        for step, length in moved.items():
            allowed: Accounted = self._allowed[node][step]
            limit = allowed.drawn if step in hit else allowed.undrawn
            if allowed.carried:
                together, reach = math.hypot(together, length), reach + limit
                length, limit = together, reach
            nothing = limit == 0
            times = allowed.alone if left_out else 2.0
            yield step, length, times * (limit or self._rounding * allowed.drawn), nothing


def sensitivity_findings(
    job: Job,
    *,
    context: ContextFactory = StackedContext,
    seed: int = 0,
    seconds: float = 20.0,
    steps: int | None = None,
    fewest: int | None = None,
) -> list[Finding]:
    """Replace records of the experiment by others, and measure what that moves.

    The experiment adds noise, and clips. Records are tried in a fixed order, the most telling
    first, until about so many `seconds` are used. However long it takes, every kind of record is
    tried in the place of one record of each node, in as many steps as the plan has, or four.

    By default four steps are run, and up to eight if there is time for them. `fewest` runs are made
    however long they take; None: one with every kind of record. `seed` is of noise, coins and
    records.
    """
    began = time.perf_counter()
    bench = make_bench(job, context, seed, _STEPS[0] if steps is None else steps)
    base = bench.run()
    if steps is None:
        again = time.perf_counter()
        bench.run()  # nothing is compiled any more
        each = (time.perf_counter() - again) / bench.steps
        most = int(min(_STEPS[1], max(_STEPS[0], seconds / _RUNS / max(each, 1e-9))))
        if min(most, bench.plan.steps) > bench.steps:
            bench.steps = min(most, bench.plan.steps)
            base = bench.run()
    recomputed = sum_finding(bench, base, time.perf_counter() + seconds * _RECOMPUTING)
    if not bench.plan.release.clip.enforced:  # any record may move anything: nothing is certified
        return [division_finding(bench, base)]
    seen = _try_records(bench, base, seed, began + seconds, fewest)
    still = _still_finding(seen, _ROUNDING[job.dtype])
    return [_moved_finding(seen), still, recomputed, division_finding(bench, base)]


def _try_records(bench: Bench, base: Trace, seed: int, until: float, fewest: int | None) -> _Seen:
    """Put record after record in the place of others, and compare."""
    judge, seen = _Judge(bench, base.releases), _Seen()
    start = bench.job.model.start(1, bench.job.dtype, bench.job.device)[0]
    handed = [release.before for release in base.releases]
    for turn in range(int(bench.data.counts.max())):
        rows, others = _choose(bench, base, turn)
        own = records_of(bench.data, rows)
        place = (*own, *records_of(bench.data, others))
        tried: list[tuple[float, str, list[Tensor]]] = []
        drawn: Drawn = [set() for _ in base.releases]
        without: list[Tensor] | None = None
        gone = marker(bench.job, bench.data.stored, bench.data.targets, seed)
        variants = candidates(bench.job, place, None if turn else start, seed + turn)
        for candidate in chain([] if gone is None else [gone], variants):
            enough = turn > 0 if fewest is None else seen.runs >= fewest
            if enough and time.perf_counter() > until:
                return seen
            same = torch.equal(candidate.inputs, own[0]) and torch.equal(candidate.targets, own[1])
            if candidate is not gone and same:  # the very records whose place it takes
                continue
            run = bench.with_records(rows, candidate, base, absent=candidate is gone)
            seen.runs += 1
            for known, told in zip(drawn, _drawn(bench, base, run, judge.keeps), strict=True):
                known |= told
            found, name = [release.before for release in run.releases], candidate.name
            if candidate is gone:
                without, name = found, "from its own data"
                judge.compare(found, handed, drawn, seen, name=name, left_out=True)
                continue
            seen.records += len(rows)
            share = judge.compare(found, handed, drawn, seen, name=name, left_out=False)
            if without is not None:
                judge.compare(found, without, drawn, seen, name=name, left_out=True)
            for _, other, kept in tried:
                pair = f"{name}, in the place of one {other},"
                judge.compare(found, kept, drawn, seen, name=pair, left_out=False)
            tried = sorted([*tried, (share, name, found)], key=lambda one: -one[0])[:_KEPT]
    return seen


_TRIED_ONLY = (
    "A search proves nothing about records that it did not try: the proof is in docs/proofs."
)


def _moved_finding(seen: _Seen) -> Finding:
    best = seen.drawn
    saw = f"{seen.records:,} records were tried in {seen.runs} runs."
    if not best.where:
        saw += " None was drawn."
    else:
        node, step, name, how = best.where
        if best.share > 1:
            saw = (
                f"A record {name} that was {how} at node {node} moved what is noised in step "
                f"{step} by {best.share:.6g} times what is accounted."
            )
        else:
            saw += (
                f" None moved what is noised by more than {figure_up(best.share):g} times what is "
                f"accounted; the one that moved it most was {how}: a record {name} at node "
                f"{node}, step {step}."
            )
    power = (
        "Any record that moves more than is accounted is found if it is tried, by however little"
    )
    if 0 < best.share <= 1:
        most = figure_up(1 / figure_down(best.share))
        power += (
            f"; a program in which every record moves {most:g} times as much or more "
            "is found by the records that were tried"
        )
    return exact_finding(
        "sensitivity",
        "Does one record move what is noised by no more than is accounted?",
        best.share,
        "how far a record moved a release, over what the mechanism allows",
        saw,
        f"{power}. {_TRIED_ONLY}",
        limit=1.0,
    )


def _still_finding(seen: _Seen, rounding: float) -> Finding:
    best = seen.undrawn
    saw = (
        f"In {seen.still:,} comparisons, what a step noised that did not draw a record was the "
        "same without it, but for rounding."
    )
    if best.share > 1:
        node, step, name, how = best.where
        saw = (
            f"A record {name} that was {how} at node {node} moved what is noised in step {step}, "
            f"which did not draw it, by {best.share * rounding:.3g} times what it might if it were "
            "drawn."
        )
    elif not seen.still:
        saw = "Every step that was run drew the records that were tried, or may be moved by all."
    return exact_finding(
        "records that are not drawn",
        "Does a step leave out the records that it did not draw?",
        best.share * rounding,
        "how far a record that was not drawn moved a release, over what a drawn one may",
        saw,
        f"A change of {rounding:.2g} of what a drawn record may move is found, if the record is "
        f"tried; what is smaller may be rounding. {_TRIED_ONLY}",
        limit=rounding,
    )
