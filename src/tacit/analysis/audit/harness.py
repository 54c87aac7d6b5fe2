"""Runs the product's own code on neighbouring data, many nodes at once: what it then releases.

A repetition is one node of one run: its noise and coins come from a key of its own, and in the
canaries' problems a node's noised gradients depend on nothing else, so nodes are independent
repetitions whatever the graph does with their messages. The experiment's graph is copied until
the stack is worth a step; sampler, clip, noise, steps, algorithm and weights are the plan's.

What is attacked are the releases themselves, as they come back from the noise: every message is a
function of them and of public values, which an exact test shows (`fidelity.interference`), so that
no observer of messages can know more. Each copy of the graph is a run of its own, but for a
server's mean, which is over all of them. No gradient depends on it. What a local regulariser or a
box leaves of a gradient may depend on such public values, so that there repetitions are independent
only given these (`Releases.apart`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.algorithms import Activity, StepContext
from tacit.analysis.audit.canaries import (
    NOBODY,
    Problem,
    Slope,
    directions,
    law_of,
    linear_model,
    older_point,
    sign_schedule,
    stack_records,
)
from tacit.analysis.audit.colluders import Colluders, pooled
from tacit.analysis.audit.recorder import ContextFactory, Noised, Trace, run_traced, seeded
from tacit.communication.exchange import InProcessExchange
from tacit.communication.exchange.protocol import everybody
from tacit.gradients import StackedModel
from tacit.training.pair_noise import PairNoise
from tacit.training.plan import NodePlan, Plan
from tacit.training.prepare import DTYPES

Array = NDArray[np.float64]
FEW_RECORDS, FEW_DRAWN = 40, 10  # of a node, and of its batch, where more make no difference
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
        deviations: of the noise in them as plan and step say, float64 `[steps, nodes]`; likewise.
        inserted: bool `[nodes]`, whether a node held D.
        copies: of the graph; node i of copy c is number `c * (nodes / copies) + i`.
    """

    y: Array
    deviations: Array
    inserted: NDArray[np.bool_]
    copies: int
    trace: Trace

    def rows(self, nodes: Sequence[int]) -> NDArray[np.int64]:
        """The stacked numbers of some nodes of the graph, in all of its copies."""
        starts = len(self.inserted) // self.copies * np.arange(self.copies)[:, None]
        rows: NDArray[np.int64] = (starts + np.asarray(nodes)).reshape(-1)
        return rows

    def deviations_of(self, nodes: Sequence[int]) -> Array:
        """Those of nodes of the same noise, `[steps]`; NaN where all of them released nothing."""
        return np.asarray(np.fmax.reduce(self.deviations[:, self.rows(nodes)], axis=1))


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
    model: StackedModel
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
        if law_of(self.plan) in ("iterates", "carried"):  # which move without gradients, too
            public = self._run(NOBODY, inserted, seed, replay=trace.noise.asked)
        y, deviations = _released(trace, public, self.steps)
        if self.colluders is not None:
            y = pooled(y, trace, self.colluders, self.copies)
        if self.plan.config.algorithm.definition.releases.falls:
            y = -y
        if not np.array_equal(basis, np.eye(len(basis))):
            y = y @ basis.T
        return Observed(y, deviations, inserted, self.copies, trace)

    def _run(
        self,
        problem: Problem,
        inserted: NDArray[np.bool_],
        seed: int,
        replay: Sequence[Noised] = (),
    ) -> Trace:
        train, plan = self.plan.config.train, self._stacked(problem, inserted, seed)
        dtype, device = DTYPES[train.dtype], torch.device(train.device)
        data = stack_records(
            problem,
            [node.records for node in self.plan.nodes] * self.copies,
            torch.from_numpy(inserted).to(device),
            max(map(self.plan.release.clip.attacked, range(self.plan.steps))),
            dtype,
            device,
            directions(self.plan),
        )
        slope, model = Slope(), self.model
        if problem.flips:
            signs, _ = sign_schedule(self.plan, self.steps)
            slope = Slope(signs.tolist(), older=older_point(law_of(self.plan)))
            model = linear_model(dtype, device, slope)
            slope.begin(data)
        return run_traced(
            plan,
            model,
            data,
            self.exchange,
            context=self._side_by_side,
            steps=self.steps,
            replay=replay,
            on_step=slope.after,
        )

    def _side_by_side(self, *arguments: Any, **named: Any) -> StepContext:
        """The context of all copies, each of which is a run of its own: they are not counted."""
        context: Any = self.context(*arguments, **named)
        context.count = len(self.plan.nodes)
        return cast(StepContext, context)

    def _stacked(self, problem: Problem, inserted: NDArray[np.bool_], seed: int) -> Plan:
        """The plan of all copies under seeded noise, without the record that D' lacks."""
        whole, absent = self.copied(), np.zeros_like(inserted)
        if problem.instead is None:
            absent = ~inserted
        nodes = tuple(
            replace(node, records=node.records - int(gone))
            for node, gone in zip(whole.nodes, absent, strict=True)
        )
        return replace(seeded(whole, seed), nodes=nodes)

    def copied(self) -> Plan:
        """The plan of all copies; node i of copy c is number `c * nodes + i`."""
        nodes = tuple(
            replace(node, node=node.node + copy * len(self.plan.nodes))
            for copy in range(self.copies)
            for node in self.plan.nodes
        )
        release = self.plan.release
        activity = _copied(release.activity, self.copies)
        pairs = _copied_pairs(release.pairs, self.copies)
        return replace(
            self.plan, nodes=nodes, release=replace(release, activity=activity, pairs=pairs)
        )


def _released(trace: Trace, public: Trace | None, steps: int) -> tuple[Array, Array]:
    """What was released in units of its noise, and its deviations; see `Observed`.

    `public` is of the same releases in a run without gradients, whose totals are what no record
    moved: functions of public values and of earlier releases. None: they are zero. So they are
    wherever what is noised is made of clipped gradients alone (of a sum, of a table, of
    differences), and of no use where a whole change is clipped, which the records push to one end
    or the other.
    """
    y = np.full((steps, *trace.start.shape), math.nan)
    deviations = np.full(y.shape[:2], math.nan)
    for number, release in enumerate(trace.releases):
        moved, nodes = release.after.double(), list(release.nodes)
        if public is not None:
            moved = moved - public.releases[number].before.double()
        y[release.step, nodes] = moved.cpu().numpy() / release.deviations[:, None]
        deviations[release.step, nodes] = release.deviations
    return y, deviations


def _copied(activity: Activity | None, copies: int) -> Activity | None:
    """Who takes part in all copies of the graph; pairs stay within theirs."""
    if activity is None:
        return None
    partner = activity.partner
    if partner is not None:
        nodes = partner.shape[1]
        partner = np.concatenate([partner + copy * nodes for copy in range(copies)], axis=1)
    return replace(activity, active=np.tile(activity.active, (1, copies)), partner=partner)


def _copied_pairs(pairs: PairNoise | None, copies: int) -> PairNoise | None:
    """The noise of the pairs of all copies of the graph; pairs stay within theirs."""
    if pairs is None:
        return None
    nodes = len(pairs.own)
    moved = [copy * nodes for copy in range(copies)]
    return replace(
        pairs,
        pairs=tuple((i + first, j + first) for first in moved for i, j in pairs.pairs),
        own=pairs.own * copies,
        active=None if pairs.active is None else np.tile(pairs.active, (1, copies)),
    )


def in_small(plan: Plan) -> Plan:
    """The plan with fewer records a node, wherever its mechanism is the same for so many.

    What one record does to a node's releases does not depend then on how many others there are,
    and a laboratory without them takes less time. The sampling rate stays, and so does the noise.
    Noise of pairs is in units of the mean over a batch: all batches must shrink alike then.
    """
    nodes, pairs = tuple(_small(plan, node) for node in plan.nodes), plan.release.pairs
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


def _small(plan: Plan, node: NodePlan) -> NodePlan:
    records = max(FEW_RECORDS, math.ceil(FEW_DRAWN / node.rate))
    if records >= node.records:
        return node
    fewer = replace(node, records=records, expected_batch=node.rate * records)
    stated = plan.release.assumed_mechanism
    same = stated(fewer) == stated(node)
    return fewer if same else node


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
    nodes = len(plan.nodes)
    largest = max(steps, *(node.records for node in plan.nodes))
    drawn = steps * plan.release.local_steps * max(node.expected_batch for node in plan.nodes)
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
        model=linear_model(dtype, device),
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
