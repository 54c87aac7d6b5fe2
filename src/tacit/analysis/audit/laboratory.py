"""Runs the product's own code on worst-case data, many nodes at once: what it then releases.

*Data.* Records have the gradients that an accountant fears most. The model is linear in a few
weights and the loss is its output, so that a record's gradient is its feature vector, at every step
and wherever the model is. Direction `CANARY` is used by the canary, `CROWD` by the other records,
those of `BARE` by nobody: there an observer sees the noise alone. The canary's feature is a million
times the clipping bound, so that clipping is put to the test.

Where old gradients are kept, or subtracted from new ones, a gradient that never changes shows
little. So old ones have the opposite sign of new ones, by what a step asks its context for
(`Slope`). The certificates hold for gradients that depend on the step in any way, since they hold
for every history. The sign does not depend on the model's position, because nodes that share a
model would then depend on each other's messages, and would not be independent repetitions.

Where a model's change is clipped in place of gradients, the other records push the change to one
end, and the canary, who outweighs all of them, to the other (`OUTVOTED`).

*Runs.* A repetition is one node of one run: its noise and coins come from a key of its own, and its
noised gradients depend on nothing else, so nodes are independent repetitions whatever the graph
does with their messages. The experiment's graph is copied until the stack is worth a step; sampler,
clip, noise, steps, algorithm and weights are the plan's.

What is attacked are the releases themselves, as they come back from the noise: every message is a
function of them and of public values, which an exact test shows (`fidelity.interference`), so that
no observer of messages can know more. Each copy of the graph is a run of its own, but for a
server's mean, which is over all of them. No gradient depends on it. What a local regulariser or a
box leaves of a gradient may depend on such public values, so that there repetitions are independent
only given these (`Releases.apart`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import hadamard
from torch import Tensor, nn

from tacit import gradients, privacy
from tacit.algorithms import Activity, StepContext
from tacit.analysis.audit.colluders import Colluders, pooled
from tacit.analysis.audit.recorder import (
    Around,
    ContextFactory,
    Kind,
    Noised,
    Trace,
    run_traced,
    seeded,
)
from tacit.communication.exchange import InProcessExchange
from tacit.communication.exchange.protocol import everybody
from tacit.data import StackedData
from tacit.data.units import UnitRule, Units
from tacit.gradients import Loss, StackedModel
from tacit.training.job import DTYPES
from tacit.training.plan import Plan

CANARY, CROWD = 0, 1
BARE = slice(2, 16)
WIDTH = 16
HUGE = 1e6

Array = NDArray[np.float64]
Vector = tuple[float, float]


@dataclass(frozen=True)
class Problem:
    """A pair of neighbouring data sets, gradients along `CANARY` and `CROWD`.

    In units of the largest clipping bound of the schedule.

    Args:
        others: the gradient of every other record.
        canary: the gradient of the canary in D.
        instead: what stands in its place in D'; None: nothing does, and J, the sampling rate and
            the denominator stay as they were (zero-out).
    """

    others: Vector
    canary: Vector
    instead: Vector | None


ALONE = Problem(others=(0, 1), canary=(HUGE, 0), instead=None)
"""Add-or-remove-one: nobody else works along the canary's direction."""

OPPOSED = Problem(others=(0, 1), canary=(0, -HUGE), instead=None)
"""Add-or-remove-one: against all the others, so that a changing denominator counts double."""

REPLACED = Problem(others=(0, 1), canary=(HUGE, 0), instead=(-HUGE, 0))
"""Replace-one: opposite contributions."""

REPLACED_IN_BATCH = Problem(others=(-1, 0), canary=(HUGE, 0), instead=(-1, 0))
"""Replace-one with a batch of fixed size: whoever the canary displaces is its opposite."""


NOBODY = Problem(others=(0, 0), canary=(0, 0), instead=(0, 0))
"""No gradients at all: what is released then is public."""

OUTVOTED = Problem(others=(-HUGE, 0), canary=(HUGE**2, 0), instead=None)
"""Add-or-remove-one: one change of the model becomes its opposite, 2 C apart."""

OUTVOTED_REPLACED = Problem(others=(-HUGE, 0), canary=(HUGE**2, 0), instead=(-HUGE, 0))
"""Replace-one: the same, with one more of the others in D'."""


def problem_of(plan: Plan, mechanism: privacy.Mechanism) -> Problem:
    """The pair of data sets that an observer of this mechanism can tell apart best."""
    releases = plan.config.algorithm.definition.releases
    zero_out = mechanism.relation == privacy.ADD_OR_REMOVE_ONE
    if releases.clips == "change":
        return OUTVOTED if zero_out else OUTVOTED_REPLACED
    if zero_out:
        return ALONE
    in_batch = mechanism.kind == privacy.FixedBatchGaussian.kind and releases.models
    return REPLACED_IN_BATCH if in_batch else REPLACED


def table_signs(plan: Plan, steps: int) -> Array:
    """The sign of the gradients that a table takes up in each step, `[steps]`; 1 without a table.

    It is filled at the sign 1. Then the sign changes as often as a record is drawn, about.
    """
    chosen = plan.config.algorithm
    if chosen.definition.table(chosen.options) is None:
        return np.ones(steps)
    often = max(1, round(1 / max(node.rate for node in plan.nodes)))
    return np.where(np.arange(steps) // often % 2 == 0, -1.0, 1.0)


def directions(plan: Plan) -> Array:
    """The orthonormal directions of a lab's gradients, one a row, `[WIDTH, WIDTH]`: `CANARY` first.

    They are the coordinates, but for a clip that bounds each coordinate: there a gradient is
    longest that has all of them.
    """
    if plan.release.clip.norm == "coordinate":
        return np.asarray(hadamard(WIDTH) / np.sqrt(WIDTH), np.float64)
    return np.eye(WIDTH)


class Slope(Around):
    """The sign of all gradients, by what they are asked for, which everybody knows.

    New gradients have the sign 1. Those over all records, which anchors and snapshots are made of,
    and those at the older point of a difference have the sign -1, and what a table takes up has
    that of `table_signs`, `signs`.
    """

    def __init__(self, signs: Array | None = None) -> None:
        self._signs, self._sign, self._older = signs, 1.0, cast(Tensor | None, None)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """A loss whose gradient is the feature vector times the sign."""
        return outputs.reshape(-1) * self._sign

    @contextmanager
    def _turned(self, sign: float, older: Tensor | None) -> Iterator[None]:
        """Meanwhile gradients have this sign, and at an older point, `[nodes, d]`, the other."""
        before = self._sign, self._older
        self._sign, self._older = sign, older
        try:
            yield
        finally:
            self._sign, self._older = before

    def summing(
        self, kind: Kind, k: int, whole: bool, anchor: Tensor | None, bound: float | None
    ) -> AbstractContextManager[None]:
        """See `Around`: meanwhile gradients have the sign of such a sum."""
        sign = -1.0 if whole else 1.0
        # A difference that is clipped is small, and would take away from what is kept.
        if kind == "table" and bound is None and self._signs is not None:
            sign = float(self._signs[k])
        return self._turned(sign, anchor)

    def at(self, point: Tensor) -> AbstractContextManager[None]:
        """See `Around`: meanwhile gradients have the sign of this point."""
        older = self._older
        is_older = older is not None and older.shape == point.shape and torch.equal(older, point)
        return self._turned(-self._sign if is_older else self._sign, older)


def linear_model(
    dtype: torch.dtype,
    device: torch.device,
    slope: Slope | None = None,
    unit_rows: int | None = None,
    width: int = WIDTH,
) -> StackedModel:
    """The linear model, its weights at 0, under the product's own gradient engine."""
    module = nn.Linear(width, 1, bias=False)
    nn.init.zeros_(module.weight)
    # Any targets will do: the loss does not read them.
    loss = Loss("linear", (slope or Slope()).losses, None, lambda outputs, targets: None)
    return gradients.build(
        module,
        loss,
        torch.eye(width),
        torch.zeros(width, 1),
        dtype=dtype,
        device=device,
        unit_rows=unit_rows,
    )


def rule_of(plan: Plan) -> UnitRule | None:
    """What a unit's rows are in a laboratory, all of which every unit has; None: a record is one.

    Few, as more take longer and show no more: all rows of a unit agree.
    """
    privacy = plan.config.privacy
    if privacy.unit_column is None:
        return None
    return UnitRule(min(privacy.unit_rows, FEW_ROWS), privacy.unit_gradient, 0)


def stack_records(
    problem: Problem,
    records: list[int],
    inserted: Tensor,
    clip: float,
    dtype: torch.dtype,
    device: torch.device,
    basis: NDArray[np.float64] | None = None,
    rule: UnitRule | None = None,
) -> StackedData:
    """The records of all nodes; the canary, or what stands for it, is a node's last one.

    `records` are J of each node, and `inserted`, bool `[nodes]`, is True where it holds D.
    Gradients are in units of `clip`, along `basis`, see `directions`; None: the coordinates.

    A record's target, which the loss does not read, is its number in the stack: it says who was
    drawn. In a node that holds D' of a zero-out problem the last row is still in the stack, but is
    none of the node's records, and the node's plan must not count it either.

    With a `rule`, each record is a unit of as many rows as that takes, all of them alike.
    """
    sizes = torch.tensor(records, dtype=torch.int64, device=device)
    ends = sizes.cumsum(0)
    inputs = torch.zeros(int(ends[-1]), WIDTH, dtype=dtype, device=device)
    inputs[:, : BARE.start] = torch.tensor(problem.others, dtype=dtype, device=device)
    instead = problem.others if problem.instead is None else problem.instead
    choice = torch.tensor([instead, problem.canary], dtype=dtype, device=device)
    inputs[ends - 1, : BARE.start] = choice[inserted.to(device).long()]
    inputs *= clip
    if basis is not None:
        inputs = inputs @ torch.from_numpy(basis).to(inputs)
    absent = torch.zeros_like(sizes)
    if problem.instead is None:
        absent = (~inserted.to(device)).long()
    numbers, offsets, present = torch.arange(len(inputs)).to(device), ends - sizes, sizes - absent
    if rule is None:
        return StackedData(inputs, numbers, offsets, present)
    rows, most = numbers.repeat_interleave(rule.most), rule.most
    counts = torch.full_like(numbers, most)
    units = Units(rule, most * numbers, counts, offsets, present, ())
    return StackedData(inputs[rows], rows, most * offsets, most * present, units=units)


# Runs.

FEW_RECORDS, FEW_DRAWN = 40, 10  # of a node, and of its batch, where more make no difference
FEW_ROWS = 4  # of a unit
MOST_NODES = 1024
MOST_NUMBERS = 1_000_000  # of node-steps, or of records, in one stack
# Records that all batches of one run hold together: its trace keeps who they are.
MOST_DRAWN = 2**24


@dataclass(frozen=True)
class Observed:
    """What one run released.

    Args:
        y: float64 `[steps, nodes, width]`, along the directions of the laboratory: releases in
            units of their noise, with the sign of gradients, less what is public; NaN where a node
            released nothing.
        inserted: bool `[nodes]`, whether a node held D.
        copies: of the graph; node i of copy c is number `c * (nodes / copies) + i`.
    """

    y: Array
    inserted: NDArray[np.bool_]
    copies: int
    trace: Trace

    @property
    def whole(self) -> NDArray[np.bool_]:
        """Which steps ask for a sum over all records, `[steps]`."""
        found = np.zeros(len(self.y), np.bool_)
        for release in self.trace.releases:
            found[release.step] |= any(each.whole for each in self.trace.sums[release.sums])
        return found

    def rows(self, nodes: Sequence[int]) -> NDArray[np.int64]:
        """The stacked numbers of some nodes of the graph, in all of its copies."""
        starts = len(self.inserted) // self.copies * np.arange(self.copies)[:, None]
        rows: NDArray[np.int64] = (starts + np.asarray(nodes)).reshape(-1)
        return rows


@dataclass(frozen=True)
class Harness:
    """An experiment made ready for canaries: some of its steps, on copies of its graph.

    The exchange mixes all copies together; it is public, so the observer has it too. `context`
    executes a step. With colluders, what is attacked is what they make of the releases, of their
    node alone; without, it is what each node releases.
    """

    plan: Plan
    steps: int
    copies: int
    exchange: InProcessExchange
    context: ContextFactory
    colluders: Colluders | None = None

    def observe(self, problem: Problem, seed: int) -> Observed:
        """Run once from a seed: each node holds D or D' by a fair coin of the auditor's.

        The coins are independent, so that what the other nodes hold says nothing of a node.
        """
        rng, basis = np.random.default_rng(seed), directions(self.plan)
        inserted = rng.random(self.copies * len(self.plan.nodes)) < 0.5
        trace, public = self._run(problem, inserted, seed), None
        if not self.plan.config.algorithm.definition.releases.models:  # which move by themselves
            public = self._run(NOBODY, inserted, seed, replay=trace.noise.asked)
        y = _released(trace, public, self.steps)
        if self.colluders is not None:
            y = pooled(y, trace, self.colluders, self.copies)
        if self.plan.config.algorithm.definition.releases.falls:
            y = -y
        if not np.array_equal(basis, np.eye(len(basis))):
            y = y @ basis.T
        return Observed(y, inserted, self.copies, trace)

    def _run(
        self,
        problem: Problem,
        inserted: NDArray[np.bool_],
        seed: int,
        replay: Sequence[Noised] = (),
    ) -> Trace:
        train, plan = self.plan.config.train, seeded(self.copied(), seed)
        if problem.instead is None:  # without the record that D' lacks
            nodes = zip(plan.nodes, inserted, strict=True)
            left = (replace(node, records=node.records - 1 + int(held)) for node, held in nodes)
            plan = replace(plan, nodes=tuple(left))
        dtype, device = DTYPES[train.dtype], torch.device(train.device)
        rule = rule_of(plan)
        data = stack_records(
            problem,
            [node.records for node in self.plan.nodes] * self.copies,
            torch.from_numpy(inserted).to(device),
            max(map(self.plan.release.clip.attacked, range(self.plan.steps))),
            dtype,
            device,
            directions(self.plan),
            rule,
        )
        slope = Slope(table_signs(self.plan, self.steps))
        return run_traced(
            plan,
            linear_model(dtype, device, slope, None if rule is None else rule.most),
            data,
            self.exchange,
            context=self._side_by_side,
            steps=self.steps,
            replay=replay,
            around=slope,
        )

    def _side_by_side(self, *arguments: Any, **named: Any) -> StepContext:
        """The context of all copies, each of which is a run of its own: they are not counted."""
        context: Any = self.context(*arguments, **named)
        context.count = len(self.plan.nodes)
        return cast(StepContext, context)

    def copied(self) -> Plan:
        """The plan of all copies; node i of copy c is number `c * nodes + i`."""
        nodes = tuple(
            replace(node, node=node.node + copy * len(self.plan.nodes))
            for copy in range(self.copies)
            for node in self.plan.nodes
        )
        release, pairs = self.plan.release, self.plan.release.pairs
        activity = _copied(release.activity, self.copies)
        if pairs is not None:  # which stay within their copy
            moved = [copy * len(self.plan.nodes) for copy in range(self.copies)]
            pairs = replace(
                pairs,
                pairs=tuple((i + first, j + first) for first in moved for i, j in pairs.pairs),
                own=pairs.own * self.copies,
                active=None if pairs.active is None else np.tile(pairs.active, (1, self.copies)),
            )
        release = replace(release, activity=activity, pairs=pairs)
        return replace(self.plan, nodes=nodes, release=release)


def _released(trace: Trace, public: Trace | None, steps: int) -> Array:
    """What was released in units of its noise; see `Observed`.

    `public` is of the same releases in a run without gradients, whose totals are what no record
    moved: functions of public values and of earlier releases. None: they are zero. So they are
    wherever what is noised is made of clipped gradients alone (of a sum, of a table, of
    differences), and of no use where a whole change is clipped, which the records push to one end
    or the other.
    """
    y = np.full((steps, *trace.start.shape), math.nan)
    for number, release in enumerate(trace.releases):
        moved = release.after.double()
        if public is not None:
            moved = moved - public.releases[number].before.double()
        y[release.step, list(release.nodes)] = moved.cpu().numpy() / release.deviations[:, None]
    return y


def _copied(activity: Activity | None, copies: int) -> Activity | None:
    """Who takes part in all copies of the graph; pairs stay within theirs."""
    if activity is None:
        return None
    partner = activity.partner
    if partner is not None:
        nodes = partner.shape[1]
        partner = np.concatenate([partner + copy * nodes for copy in range(copies)], axis=1)
    return replace(activity, active=np.tile(activity.active, (1, copies)), partner=partner)


def in_small(plan: Plan) -> Plan:
    """The plan with fewer records a node, wherever its mechanism is the same for so many.

    What one record does to a node's releases does not depend then on how many others there are,
    and a laboratory without them takes less time. The sampling rate stays, and so does the noise.
    Noise of pairs is in units of the mean over a batch: all batches must shrink alike then.
    """
    stated, fewer = plan.release.assumed_mechanism, []
    for node in plan.nodes:
        records = max(FEW_RECORDS, math.ceil(FEW_DRAWN / node.rate))
        few = replace(node, records=records, expected_batch=node.rate * records)
        fewer.append(few if records < node.records and stated(few) == stated(node) else node)
    nodes, pairs = tuple(fewer), plan.release.pairs
    if pairs is None:
        return replace(plan, nodes=nodes)
    shares = {
        small.expected_batch / node.expected_batch
        for small, node in zip(nodes, plan.nodes, strict=True)
    }
    if len(shares) > 1:
        return plan
    release = replace(plan.release, pairs=pairs.scaled(1 / shares.pop()))
    return replace(plan, nodes=nodes, release=release)


def set_up(
    plan: Plan,
    steps: int,
    repetitions: int,
    context: ContextFactory,
    colluders: Colluders | None = None,
) -> Harness:
    """Choose how many copies of the graph one run holds, and lay them out.

    `repetitions` is how many nodes are wanted in all. There are no colluders without noise of
    pairs.
    """
    nodes, rule = len(plan.nodes), rule_of(plan)
    rows = 1 if rule is None else rule.most
    largest = max(steps, *(rows * node.records for node in plan.nodes))
    drawn = (
        rows * steps * plan.release.local_steps * max(node.expected_batch for node in plan.nodes)
    )
    stack = min(MOST_NODES, MOST_NUMBERS // largest, int(MOST_DRAWN // drawn))
    most = max(1, stack // nodes)
    copies = min(most, -(-repetitions // nodes))
    train = plan.config.train
    dtype, device = DTYPES[train.dtype], torch.device(train.device)
    together = [weights.repeated(copies) for weights in plan.mixing.weights]
    activity = _copied(plan.release.activity, copies)
    return Harness(
        plan=plan,
        steps=steps,
        copies=copies,
        exchange=InProcessExchange(
            together,
            dtype=dtype,
            device=device,
            active=everybody if activity is None else lambda k: activity.active[k],
            rounds=plan.rounds,
        ),
        context=context,
        colluders=colluders,
    )


def listened(
    lab: Harness, nodes: Sequence[int], included: NDArray[np.bool_], seed: int
) -> tuple[Array, float]:
    """Scores `[nodes, signals]` of one run, and of some nodes the sum of their means as planned.

    A signal is a canary with a direction of its own, there where it is `included`. Its score is
    what was released along it over planned noise, summed by weights whose squares sum up to 1.
    """
    plan, sizes = lab.plan, torch.from_numpy(included.sum(axis=1))
    train, clips = plan.config.train, map(plan.release.clip.attacked, range(lab.steps))
    dtype, device, length = DTYPES[train.dtype], torch.device(train.device), HUGE * max(clips)
    inputs = length * torch.eye(included.shape[1], dtype=dtype)[included.nonzero()[1]]
    held = inputs, torch.arange(len(inputs)), sizes.cumsum(0) - sizes, sizes
    data = StackedData(*(one.to(device) for one in held))  # type: ignore[arg-type]
    counts = zip(plan.nodes, sizes.tolist(), strict=True)
    here = replace(plan, nodes=tuple(replace(node, records=size) for node, size in counts))
    moves = np.zeros((len(plan.nodes), lab.steps))
    for row in nodes:
        for k in plan.release.active_steps(plan.nodes[row], [(0, lab.steps)]):
            moves[row, k] = 1 / plan.release.own_multiplier(plan.nodes[row], k)
    weights = moves / np.maximum(np.linalg.norm(moves, axis=1, keepdims=True), 1e-300)
    scores, means, owners = np.zeros(included.shape), np.zeros(1), included.nonzero()[0]

    def heard(k: int, points: Tensor, trace: Trace) -> None:
        for release in trace.releases:
            values = release.after.double().cpu().numpy() / release.deviations[:, None]
            scores[list(release.nodes)] += weights[list(release.nodes), k, None] * values
        for drawn in trace.drawn:
            means[0] += (weights * moves)[owners[drawn.targets.cpu().numpy()], k].sum()
        trace.forget()

    model = linear_model(dtype, device, width=included.shape[1])
    more = {"context": lab.context, "steps": lab.steps, "on_step": heard}
    run_traced(seeded(here, seed), model, data, lab.exchange, **more)  # type: ignore[arg-type]
    return scores, float(means[0])
