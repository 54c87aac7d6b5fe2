"""Whether what is noised is the sum of clipped gradients, record by record, over the planned size.

*Sums.* Every sum of clipped gradients of a run is computed once more: for each record that was in
the batch its gradient alone, in float64, by plain autograd (`plain_gradients`), clipped as the
plan says. Of a unit that is the mean or the sum over its rows, one by one, of which `unit_rows`
count. With n records and clipping bound C, the two sums may differ by

    C (n (2^-6 + theta_n) + 2 m),

where theta_n is by how much each record is clipped to less than C, for what a sum of n may lose to
rounding (`docs/proofs/clipped-sums.md`), and m is how many of the records are *not judged*. These
are those whose clipped gradient in float32 is not within 2^-14 C of that in float64, so that
neither way of computing it tells the other's; and those that are out of range: where the gradient
is not finite in float64, or longer than 2^48 or than 2^48 C, or where the largest input times the
largest parameter (or 1) is above 2^48. Of a record with much larger numbers, squares overflow in
float32, and a correct program leaves it out.

2^-6 of C a record covers what else rounding does: it is 256 times what a record that is judged
loses to single precision, and leaves room for a rectifier that rounding switches. It is *measured
and not proved* that no correct program needs more. A sum that is
something else (not clipped, clipped together, of other records, with something added) is off by a
share of C for each record. Where `train.precision` is not float32, the other way is in bfloat16, a
record is judged within 2^-6 C, and 2^-3 of C a record is allowed. Sums of differences between a
point and an anchor are compared likewise, with twice as much allowed, since two gradients of each
record are in them; what a gradient table adds is not, for its entries are of earlier steps.

*Divisions.* A noised sum is divided by the expected size of the batch, a public number: each
quotient must be that of the plan, to a few roundings.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tacit.analysis.audit.canaries import exchanged
from tacit.analysis.audit.fidelity.finding import Finding, Worst, exact_finding
from tacit.analysis.audit.plain_gradients import PlainModel, clipped, plain_model
from tacit.analysis.audit.recorder import (
    Call,
    ContextFactory,
    Noised,
    Sum,
    Trace,
    run_traced,
    seeded,
)
from tacit.analysis.audit.records import Candidate
from tacit.config.schema import Privacy
from tacit.data import StackedData
from tacit.privacy.mechanisms.clipping import ClipNorm
from tacit.report.wording import figure_up
from tacit.training.job import Job
from tacit.training.plan import Plan
from tacit.training.processes.communication import local_exchange

_ROOM = {False: (2.0**-6, 2.0**-14), True: (2.0**-3, 2.0**-6)}  # of C a record, and to be judged
_CHUNK = 128
_RANGE = 2.0**48
_ROUNDINGS = 16
_FEWEST = 4
_POINTS = {"gradient": 1, "difference": 2}  # at which each record's gradient is taken
_RECORDS = 32  # whose gradients are held at once


@dataclass(eq=False)
class Bench:
    """An experiment that can be run over and over with some of its records exchanged.

    The plan is under seeded noise, and the records are numbers in memory of their own.
    """

    job: Job
    plan: Plan
    data: StackedData
    context: ContextFactory
    steps: int

    def run(self, replay: Sequence[Noised] = (), absent: Tensor | None = None) -> Trace:
        """The run, its noise as it was in another one, without the records `absent`."""
        return run_traced(
            self.plan,
            self.job.model,
            self.data,
            local_exchange(replace(self.job, plan=self.plan)),
            context=self.context,
            steps=self.steps,
            replay=replay,
            calls=True,
            absent=absent,
        )

    def with_records(
        self, rows: Tensor, candidate: Candidate, base: Trace, *, absent: bool = False
    ) -> Trace:
        """The run in which the records of these numbers are others, its noise as in `base`.

        With `absent` the records are not there: they are marked by the candidate, and masked.
        """
        marked, units = candidate.inputs if absent else None, self.data.units
        if units is not None:
            made = [candidate.inputs, candidate.targets]
            if absent:
                made = [v.expand(len(rows), units.rule.most, *v.shape) for v in made]
            other = replace(self, data=exchanged(self.data, rows, *made))
            return other.run(base.noise.asked, marked)
        inputs, targets = self.data.stored[rows].clone(), self.data.targets[rows].clone()
        self.data.stored[rows], self.data.targets[rows] = candidate.inputs, candidate.targets
        try:
            return self.run(base.noise.asked, marked)
        finally:
            self.data.stored[rows], self.data.targets[rows] = inputs, targets


def make_bench(job: Job, context: ContextFactory, seed: int, steps: int) -> Bench:
    """An experiment's bench under noise and coins of `seed`, of `steps` of its plan at most."""
    train = job.train
    data = replace(train, stored=train.inputs.clone(), targets=train.targets.clone(), bytes=False)
    plan = seeded(job.plan, seed)
    return Bench(job, plan, data, context, min(steps, plan.steps))


def acting(plan: Plan, step: int, rows: int) -> Sequence[int]:
    """Numbers of the nodes that the rows of a call of the model at a step are.

    None where they are those of no batch: the engine tries its layers out on an example.
    """
    if rows == len(plan.nodes):
        return range(rows)
    flags = plan.release.active(step)
    active = [] if flags is None else [n.node for n in plan.nodes if flags[n.node % len(flags)]]
    return active if len(active) == rows else []


# Sums and divisions.

Contributions = Iterator[tuple[Tensor, Tensor]]
"""What a few records add to a sum, float64 `[few, d]`, and which of them are not judged."""


@dataclass(frozen=True)
class _Recomputed:
    """One sum of a node that was computed again.

    `unjudged` of its records could not be judged. `distance` is from the sum of the records' own,
    in clipping bounds, and `allowed` how large that may be for rounding.
    """

    node: int
    step: int
    records: int
    unjudged: int
    distance: float
    allowed: float


def _rounding_share(count: int, dtype: torch.dtype, positions: int) -> float:
    """theta_n of the proof: what a record is clipped below C, as a share of C."""
    unit, chunk = torch.finfo(dtype).eps / 2, min(count, _CHUNK)
    share = 2 * chunk * (chunk + 8) * unit + 8 * count * (unit + 2.0**-53)
    share += 2 * count**2 * 2.0**-53
    if positions > 1:
        share += 2.0**14 * chunk * (chunk * positions + 16) * 2.0**-53
    return share


@dataclass(frozen=True, eq=False)
class _Plain:
    """The user's module, in float64 and as it is trained, and how records' gradients are clipped.

    `difference` bounds each record's difference, where there is such a bound. `privacy` says what
    the rows of a unit are to its gradient.
    """

    exact: PlainModel
    rough: PlainModel
    norm: ClipNorm
    difference: float | None
    privacy: Privacy

    def contributions(self, calls: Sequence[Call], row: int, bound: float) -> Contributions:
        """What the records of one row add to a sum, and which of them are not judged.

        There is one call of the model, or one at a point and one at an anchor; `bound` is C.
        """
        present = calls[0].mask[row].nonzero().flatten()
        for part in torch.split(present, _RECORDS):
            exact, rough = (
                [self._gradients(model, call, row, part) for call in calls]
                for model in (self.exact, self.rough)
            )
            found, other = self._added(exact, bound), self._added(rough, bound)
            judged = (found - other).norm(dim=1) <= _ROOM[self.rough.low][1] * bound
            for call, gradients in zip(calls, exact, strict=True):
                judged &= _in_range(call, row, part, gradients, bound)
            yield found, ~judged

    def _gradients(self, model: PlainModel, call: Call, row: int, slots: Tensor) -> Tensor:
        """The gradients of records of one row of a call, as they are, float64 `[few, d]`."""
        coins = None if call.coins is None else call.coins[row][slots]
        shares = None if call.shares is None else self._shares(call.shares[row][slots])
        taken = call.inputs[row][slots], call.targets[row][slots]
        return model.gradients(call.at[row], *taken, coins, shares).double()

    def _shares(self, given: Tensor) -> Tensor:
        """What the plan says of units' rows, `[few, rows]`; `given` says which are there."""
        there = given > 0
        there = (there & (there.cumsum(dim=1) <= self.privacy.unit_rows)).double()
        by_sum = self.privacy.unit_gradient == "sum"
        return there if by_sum else there / there.sum(dim=1, keepdim=True)

    def _added(self, gradients: Sequence[Tensor], bound: float) -> Tensor:
        found = [clipped(one, bound, self.norm) for one in gradients]
        if len(found) == 1:
            return found[0]
        apart = found[0] - found[1]
        return apart if self.difference is None else clipped(apart, self.difference, "l2")


def _in_range(call: Call, row: int, slots: Tensor, gradients: Tensor, bound: float) -> Tensor:
    """Which records a program may not leave out for their size, bool `[few]`."""
    lengths: Tensor = torch.linalg.vector_norm(gradients, dim=1)
    right: Tensor = lengths <= _RANGE * min(1.0, bound)  # not where it is no number
    inputs, parameter = call.inputs[row][slots], call.at[row].double().abs().max()
    largest = torch.ones_like(lengths)  # ids have no size
    if inputs.is_floating_point():
        largest = inputs.double().flatten(1).abs().amax(dim=1)
    return right & (largest * parameter.clamp(min=1.0) <= _RANGE)


def sum_finding(bench: Bench, run: Trace, until: float) -> Finding:
    """Compare every sum of clipped gradients of a run with its records' own, while there is time.

    It stops at `until`, by `time.perf_counter`. A few sums are compared however late it is, the
    last ones first, in which more can have been carried.
    """
    model, device = bench.job.model, bench.job.device
    options: Any = bench.plan.config.algorithm.options
    plain = _Plain(
        plain_model(model, torch.float64, device),
        replace(
            plain_model(model, torch.float32, device),
            low=bench.plan.config.train.precision != "float32",
        ),
        bench.plan.release.clip.norm,
        getattr(options, "clip_difference", None),
        bench.plan.config.privacy,
    )
    seen, worst = list[_Recomputed](), Worst()
    for one in _sums(bench, run, plain):
        seen.append(one)
        worst.see(one.distance / one.allowed, one)
        if len(seen) >= _FEWEST and time.perf_counter() > until:
            break
    unjudged = sum(one.unjudged for one in seen)
    saw = "No step asked for a sum of clipped gradients; there is nothing to compare."
    power = "Nothing is found by this test in this experiment"
    if seen:
        (most,) = worst.where or seen[:1]
        saw = (
            f"{len(seen):,} sums over {sum(one.records for one in seen):,} records were computed "
            f"again, record by record. The furthest was off by {figure_up(most.distance):g} "
            f"clipping bounds, at node {most.node} in step {most.step}."
        )
        if unjudged:
            saw += f" {unjudged:,} records were too ill-conditioned or large to be judged."
        smallest = min(one.allowed / one.records for one in seen)
        power = (
            f"A sum that is off by {figure_up(smallest):g} clipping bounds a record is found; "
            "what is closer may be rounding"
        )
    return exact_finding(
        "clipped sums",
        "Is what is noised the sum of the records' own clipped gradients?",
        worst.share,
        "how far a sum was from its records' own, over what rounding may do",
        saw,
        f"{power}.",
        limit=1.0,
    )


def _sums(bench: Bench, run: Trace, plain: _Plain) -> Iterator[_Recomputed]:
    """Every sum of clipped gradients of every node, the last ones first."""
    for called in reversed(run.sums):
        if called.kind not in _POINTS or not called.clipped:
            continue
        calls = [
            call
            for call in run.calls[called.draws]
            if acting(bench.plan, called.step, len(call.mask))
            and (call.clipped or called.kind == "gradient")
        ]
        bound = bench.plan.release.clip.applied(called.step)
        if not calls or bound is None:
            continue
        for row, node in enumerate(acting(bench.plan, called.step, len(calls[0].mask))):
            found = _compared(bench, called, calls, row, node, plain, bound)
            if found.records:
                yield found


def _compared(
    bench: Bench,
    called: Sum,
    calls: Sequence[Call],
    row: int,
    node: int,
    plain: _Plain,
    bound: float,
) -> _Recomputed:
    """The comparison of one node's sum, of records that are clipped to `bound`."""
    points = _POINTS[called.kind]
    total = called.total[node if len(called.total) == len(bench.plan.nodes) else row].double()
    whole, unjudged, count = torch.zeros_like(total), 0, 0
    for start in range(0, len(calls), points):
        for found, unsure in plain.contributions(calls[start : start + points], row, bound):
            unjudged += int(unsure.sum())
            whole += found.sum(dim=0)
            count += len(found)
    # What is subtracted is clipped as in a sum over all records of the node.
    together = count if points == 1 else bench.plan.nodes[node].records
    lowered = _rounding_share(together, bench.job.dtype, bench.job.model.positions)
    return _Recomputed(
        node=node,
        step=called.step,
        records=count,
        unjudged=unjudged,
        distance=float((total - whole).norm()) / bound,
        allowed=points * (count * (_ROOM[plain.rough.low][0] + lowered) + 2 * unjudged),
    )


def division_finding(bench: Bench, run: Trace) -> Finding:
    """Whether every division was by the expected size of the batch, which is public."""
    worst = Worst()
    for division in run.divisions:
        unit = _ROUNDINGS * torch.finfo(division.after.dtype).eps
        sizes = [bench.plan.nodes[number].divisor for number in division.nodes]
        size = torch.tensor(sizes, dtype=torch.float64, device=division.before.device).unsqueeze(1)
        before = division.before.double()
        apart = (division.after.double() * size - before).norm(dim=1)
        shares = apart / (before.norm(dim=1) * unit + torch.finfo(torch.float32).tiny)
        for node, share in zip(division.nodes, shares.tolist(), strict=True):
            worst.see(share, node, share * unit)
    saw = f"{len(run.divisions):,} divisions of noised sums were by the size that is planned."
    if worst.share > 1:
        node, off = worst.where
        saw = f"At node {node} a noised sum was divided by another size: off by {off:.2%}."
    return exact_finding(
        "division by the batch",
        "Is a sum divided by the expected size of its batch, and not by the drawn one?",
        worst.share,
        "how far a quotient was from that of the plan, over what rounding may do",
        saw,
        "Any other divisor is found that differs by more than a few roundings.",
        limit=1.0,
    )
