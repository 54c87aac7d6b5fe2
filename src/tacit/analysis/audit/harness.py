"""Runs the product's own code on neighbouring data, many nodes at once, and keeps what was sent.

A repetition is one node of one run: its noise and coins come from a key of its own, and in the
canaries' problems a node's noised gradients depend on nothing else, so nodes are independent
repetitions whatever the graph does with their messages. The experiment's graph is copied until
the stack is worth a step; sampler, clip, noise, steps, algorithm and weights are the plan's.

What an observer of all messages has is a `Transcript`, and `noised_gradients` is what it can work
out from that. Trust model `all-messages`: the observer knows the start, the graph and its weights,
the learning rate, and every message. For each algorithm's step a function says how the noised batch
gradient of every node follows from these alone: what the algorithm does with it later is
post-processing that the observer undoes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.algorithms import Activity, Algorithm, StepContext
from tacit.algorithms import do_adp as compressed_gossip
from tacit.algorithms import dp2_sgd as gossip
from tacit.algorithms import privsgp as push_sum
from tacit.algorithms.base import step_size
from tacit.analysis.audit.canaries import (
    Problem,
    Slope,
    directions,
    law_of,
    linear_model,
    sign_schedule,
    stack_records,
)
from tacit.analysis.audit.observers import Overheard, Seen, seen
from tacit.analysis.audit.trace import ContextFactory, Trace, run_traced
from tacit.communication.colours import Public, Released
from tacit.communication.compression import Coding
from tacit.communication.exchange import Exchange, InProcessExchange
from tacit.communication.exchange.protocol import (
    Message,
    descent_of,
    everybody,
    message_values,
)
from tacit.errors import InputError
from tacit.gradients import StackedModel
from tacit.training.plan import Plan
from tacit.training.prepare import DTYPES

__all__ = [
    "ContextFactory",
    "Harness",
    "Observed",
    "RecordingExchange",
    "Transcript",
    "noised_gradients",
    "seeded",
    "set_up",
]


@dataclass
class RecordingExchange:
    """An exchange that keeps a copy of every message it moves.

    Args:
        inner: what moves them.

    Attributes:
        sent: (step, values) in the order they were sent.
    """

    inner: Exchange
    sent: list[tuple[int, tuple[Tensor, ...]]] = field(default_factory=list)

    @property
    def bytes_sent(self) -> NDArray[np.int64]:
        """See `Exchange`."""
        return self.inner.bytes_sent

    @property
    def dropped(self) -> Mapping[int, int]:
        """See `Exchange`."""
        return self.inner.dropped

    def mix(
        self,
        k: int,
        *values: Message,
        coding: Coding | None = None,
        descent: tuple[Message, float] | None = None,
    ) -> tuple[Tensor, ...]:
        """Copies the message, then mixes; see `Exchange.mix`."""
        sent, first = message_values("mix", k, values), descent_of(k, descent)
        self._keep(k, sent if first is None else (first.of(sent[0]), *sent[1:]))
        return self.inner.mix(k, *values, coding=coding, descent=descent)

    def swap(self, k: int, partner: Tensor, *values: Message) -> tuple[Tensor, ...]:
        """Copies the message, then swaps; see `Exchange.swap`."""
        self._keep(k, message_values("swap", k, values))
        return self.inner.swap(k, partner, *values)

    def average(
        self, k: int, *values: Message, latest: bool = False, coding: Coding | None = None
    ) -> tuple[Tensor, ...]:
        """Copies the message, then averages; see `Exchange.average`."""
        self._keep(k, message_values("average", k, values))
        return self.inner.average(k, *values, latest=latest, coding=coding)

    def _keep(self, k: int, values: tuple[Tensor, ...]) -> None:
        self.sent.append((k, tuple(value.clone() for value in values)))


@dataclass(frozen=True)
class Transcript:
    """Public values of a run.

    Args:
        start: `[nodes, d]`, x^0.
        sent: (step, message) in order, one a step and one after the last.
        options: the algorithm's options.
        steps: K of the whole run.
        exchange: the public mixing matrices, to follow what the nodes do with messages.
    """

    start: Tensor
    sent: list[tuple[int, tuple[Tensor, ...]]]
    options: Any
    steps: int
    exchange: Exchange


def _from_push_sum(transcript: Transcript) -> Tensor:
    """x_i^k is what node i received, so (x_i^k - x_i^{k+1/2}) / gamma is its direction."""
    x, gradients = transcript.start, []
    before: Tensor | None = None
    for k, message in transcript.sent[:-1]:
        x_half, w = message
        direction = (x.double() - x_half.double()) / step_size(
            transcript.options, k, transcript.steps
        )
        beta = transcript.options.momentum
        gradients.append(direction if before is None else direction - beta * before)
        before = direction
        x, _ = transcript.exchange.mix(k, Released(x_half), Public(w))
    return torch.stack(gradients)


def _from_variance_reduction(transcript: Transcript) -> Tensor:
    """As push-sum; where anchors are released, what follows one is taken relative to it."""
    gradients = _from_push_sum(transcript)
    if transcript.options.state == "private":
        return gradients
    every = transcript.options.anchor_every
    anchors = gradients[torch.arange(len(gradients)) // every * every]
    released = torch.arange(len(gradients)) % every == 0
    return torch.where(released.to(gradients.device)[:, None, None], gradients, gradients - anchors)


def _from_gossip(transcript: Transcript) -> Tensor:
    """x^{k+1} is W x^k less the step, and is sent in its turn."""
    gradients = []
    for (k, (x,)), (_, (following,)) in zip(transcript.sent, transcript.sent[1:], strict=False):
        (mixed,) = transcript.exchange.mix(k, Released(x))
        gradients.append(
            (mixed.double() - following.double())
            / step_size(transcript.options, k, transcript.steps)
        )
    return torch.stack(gradients)


def _from_compressed_gossip(transcript: Transcript) -> Tensor:
    """Where everything is sent by everyone, the public copies are the models.

    Raises:
        InputError: messages are compressed, or nodes are inactive: the gradients of a step cannot
            be told from what was kept back.
    """
    options = transcript.options
    if options.compressor != "none":
        raise InputError(
            "algorithm.compressor", options.compressor, "must be 'none' in an audit: no observer "
            "is written yet for messages that hold a part of what a node has",
        )  # fmt: skip
    if getattr(options, "activation", 1.0) < 1:
        raise InputError(
            "algorithm.activation", options.activation, "must be 1 in an audit: no observer is "
            "written yet for nodes that are silent at times",
        )  # fmt: skip
    x, gradients = transcript.start, []
    copy, neighbours = torch.zeros_like(x), torch.zeros_like(x)
    before: Tensor | None = None
    for k, (s,) in transcript.sent[:-1]:
        pulled = x.double() + options.consensus_step * (neighbours.double() - copy.double())
        copy = copy + s
        (moved,) = transcript.exchange.mix(k, Released(s))
        x, neighbours = copy, neighbours + moved
        direction = (pulled - x.double()) / step_size(options, k, transcript.steps)
        gradients.append(direction if before is None else direction - options.momentum * before)
        before = direction
    return torch.stack(gradients)


# An algorithm with a step of its own needs a row.
OBSERVERS: Mapping[Callable[..., Any], Callable[[Transcript], Tensor]] = {
    push_sum.step: _from_push_sum,
    push_sum.reduced_step: _from_variance_reduction,
    gossip.step: _from_gossip,
    compressed_gossip.step: _from_compressed_gossip,
}


def noised_gradients(algorithm: Algorithm[Any, Any], transcript: Transcript) -> Tensor:
    """Every node's noised batch **mean** at every step, float64 `[steps, nodes, d]`.

    Raises:
        InputError: nothing is known yet of what an observer learns from this algorithm.
    """
    if algorithm.step not in OBSERVERS:
        raise InputError(
            "algorithm.name", algorithm.name, "cannot be audited yet: no observer is written for it"
        )
    return OBSERVERS[algorithm.step](transcript)


Array = NDArray[np.float64]
MOST_NODES = 1024
MOST_NUMBERS = 1_000_000  # of node-steps, or of records, in one stack


@dataclass(frozen=True)
class Observed:
    """What an observer worked out of one run.

    Args:
        seen: the readings of every node, in units of the noise.
        inserted: bool `[nodes]`, whether a node held D.
        copies: of the graph; node i of copy c is number `c * (nodes / copies) + i`.
        trace: of the same run, from inside; no attack reads it.
    """

    seen: Seen
    inserted: NDArray[np.bool_]
    copies: int
    trace: Trace

    @property
    def y(self) -> Array:
        """`[steps, nodes, width]`, releases in units of their noise; NaN where nothing is known."""
        return self.seen.y


@dataclass(frozen=True)
class Harness:
    """An experiment made ready for canaries.

    Args:
        plan: the experiment's.
        steps: how many of its steps are run.
        copies: of its graph.
        model: the linear model.
        exchange: the mixing of all copies together; public, so the observer has it too.
        context: what executes a step.
    """

    plan: Plan
    steps: int
    copies: int
    model: StackedModel
    exchange: InProcessExchange
    context: ContextFactory

    def observe(self, problem: Problem, seed: int) -> Observed:
        """Run once from a seed: each node holds D or D' by a fair coin of the auditor's.

        The coins are independent, so that what the other nodes hold says nothing of a node.
        """
        train, rng = self.plan.config.train, np.random.default_rng(seed)
        dtype, device = DTYPES[train.dtype], torch.device(train.device)
        inserted = rng.random(self.copies * len(self.plan.nodes)) < 0.5
        plan, basis = self._stacked(problem, inserted, seed), directions(self.plan)
        data = stack_records(
            problem,
            [node.records for node in self.plan.nodes] * self.copies,
            torch.from_numpy(inserted).to(device),
            max(self.plan.release.clip.bounds or (1.0,)),
            dtype,
            device,
            basis,
        )
        slope, model = Slope(), self.model
        if problem.flips:
            signs, kept = sign_schedule(self.plan, self.steps), law_of(self.plan) != "table"
            slope = Slope(signs.tolist(), remembers=kept)
            model = linear_model(dtype, device, slope)
            slope.begin(data)
        trace = run_traced(
            plan,
            model,
            data,
            self.exchange,
            context=self._side_by_side,
            steps=self.steps,
            on_step=slope.after,
        )
        heard = Overheard(plan, trace.start, trace.sent, self.exchange, self.steps)
        return Observed(seen(heard).along(basis), inserted, self.copies, trace)

    def _side_by_side(self, *arguments: Any) -> StepContext:
        """The context of all copies, each of which is a run of its own: they are not counted."""
        context: Any = self.context(*arguments)
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
        activity = _copied(self.plan.release.activity, self.copies)
        return replace(
            self.plan, nodes=nodes, release=replace(self.plan.release, activity=activity)
        )


def _copied(activity: Activity | None, copies: int) -> Activity | None:
    """Who takes part in all copies of the graph; pairs stay within theirs."""
    if activity is None:
        return None
    partner = activity.partner
    if partner is not None:
        nodes = partner.shape[1]
        partner = np.concatenate([partner + copy * nodes for copy in range(copies)], axis=1)
    return replace(activity, active=np.tile(activity.active, (1, copies)), partner=partner)


def seeded(plan: Plan, seed: int) -> Plan:
    """The same plan with its noise and coins from a number, and no ledger, which that rules out."""
    ledgers = dict.fromkeys(("ledger", "ledger_epsilon", "ledger_delta"))
    settings = plan.config.privacy.model_copy(update={**ledgers, "noise_seed": seed})
    return replace(plan, config=plan.config.model_copy(update={"privacy": settings}))


def set_up(plan: Plan, steps: int, repetitions: int, context: ContextFactory) -> Harness:
    """Choose how many copies of the graph one run holds, and lay them out.

    Args:
        plan: the experiment's.
        steps: how many steps to run.
        repetitions: how many nodes are wanted in all.
        context: what executes a step.
    """
    nodes = len(plan.nodes)
    largest = max(steps, *(node.records for node in plan.nodes))
    most = max(1, min(MOST_NODES, MOST_NUMBERS // largest) // nodes)
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
        ),
        context=context,
    )
