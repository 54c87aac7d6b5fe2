"""Runs an algorithm's own code and keeps what passes its borders, from inside: who was drawn, what
was handed to the noise, what came back, and what was sent.

Tests of fidelity compare this with what the plan states. What is planned is read from the plan and
never from what is under audit, which is the code that executes a step (`ContextFactory`), the
algorithm's step, and everything that they call.

A trace can also be *replayed*: the same code runs on other records and other coins, while every
release comes out as it did before. All that leaves a node must then be what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.algorithms import StepContext, StepTable
from tacit.communication.colours import Masked, Summand
from tacit.communication.compression import Coding
from tacit.communication.exchange import Exchange
from tacit.communication.exchange.protocol import Message, descent_of, message_values
from tacit.data import StackedData
from tacit.gradients import BatchGradient, StackedModel
from tacit.privacy.mechanisms.clipping import NoiseNorm
from tacit.privacy.noise import pairwise
from tacit.privacy.noise.draws import NodeKeys
from tacit.privacy.noise.independent import Noise
from tacit.privacy.noise.lattice import Offsets
from tacit.privacy.noise.pairwise import PairKeys
from tacit.training.budget import node_keys
from tacit.training.plan import Plan
from tacit.training.prepare import DTYPES
from tacit.training.rounds import advanced

ContextFactory = Callable[..., StepContext]
"""What `StackedContext` is called with; an audit of other code puts its own here.

Plan, model, data, keys and exchange; and, by name, `pair_keys` where the plan has noise of pairs.
"""

Verb = Literal["mix", "swap", "average", "secure_sum"]


@dataclass(frozen=True, eq=False)
class Sent:
    """One message of every node of the process.

    Args:
        verb: what the algorithm asked the exchange for.
        step: the number that it gave for the step.
        values: copies, `[nodes, ...]`; the first less the descent that went with it. Of a secure
            sum, that alone, `[1, ...]`: nobody sees the summands.
        coding: how they are written, where that is not all of their numbers.
        colours: of each value, `Public` or `Released`; of a secure sum `Masked`.
        extra: how many gossip rounds of the step came before.
    """

    verb: Verb
    step: int
    values: tuple[Tensor, ...]
    coding: Coding | None = None
    colours: tuple[str, ...] = ()
    extra: int = 0


@dataclass(frozen=True, eq=False)
class TracedRelease:
    """One call of `StepContext.add_noise`, for the nodes that take part.

    Args:
        step: its number.
        part: of the release, where a step has several.
        nodes: their numbers, one a row.
        before: what was handed in, `[rows, d]`.
        after: what came back, `[rows, d]`.
        deviations: what the plan says of the noise in these rows times the scale that the step asks
            for: standard deviations, scales of Laplace noise; float64 `[rows]`.
        draws: which calls of the model came before it since the last one: `Trace.drawn[first:end]`.
        sums: which sums did: `Trace.sums[first:end]`.
        offsets: what the noise was told to add to these rows besides, `[rows, d]` float64: the
            noise of pairs; None where the plan has none.
    """

    step: int
    part: int
    nodes: tuple[int, ...]
    before: Tensor
    after: Tensor
    deviations: NDArray[np.float64]
    draws: slice
    sums: slice
    offsets: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Sum:
    """One sum over records that a step asked its context for.

    Args:
        kind: `gradient`, `difference` of gradients, or `table`: new less old of one.
        step: the number that was given.
        part: of the mini-batch.
        whole: whether it was asked over every record.
        clipped: whether contributions were to be clipped.
        at: where, `[rows, d]`.
        total: what came back, `[rows, d]`.
        draws: which calls of the model it made: `Trace.drawn[first:end]`.
    """

    kind: Literal["gradient", "difference", "table"]
    step: int
    part: int
    whole: bool
    clipped: bool
    at: Tensor
    total: Tensor
    draws: slice


@dataclass(frozen=True, eq=False)
class Drawn:
    """Records that one call of the model was given.

    Args:
        targets: of those that the mask lets through, `[records, ...]`. In a laboratory the target
            of a record is its number in the stack, so that this says who was drawn.
        rows: which row of the call each belongs to, int64 `[records]`.
    """

    targets: Tensor
    rows: Tensor


@dataclass(eq=False)
class Trace:
    """What one run showed, in the order in which it happened.

    Args:
        plan: what was to run.
        offsets: where each node's records begin in the stack, int64 `[nodes]`.
        start: `[nodes, d]`, x^0.
        sent: messages, those of the gossip-only round after the last step included.
        releases: calls for noise.
        sums: calls for sums.
        drawn: calls of the model.
        models: what the algorithm calls the nodes' models, before every step and after the last,
            `[nodes, d]` each; empty unless asked for.
        common: the common model of the end, `[d]`.
    """

    plan: Plan
    offsets: NDArray[np.int64]
    start: Tensor
    sent: list[Sent] = field(default_factory=list)
    releases: list[TracedRelease] = field(default_factory=list)
    sums: list[Sum] = field(default_factory=list)
    drawn: list[Drawn] = field(default_factory=list)
    models: list[Tensor] = field(default_factory=list)
    common: Tensor | None = None


@dataclass
class TracedExchange:
    """An exchange that keeps a copy of every message that it moves, in `sent`."""

    inner: Exchange
    sent: list[Sent]

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
        extra: int = 0,
    ) -> tuple[Tensor, ...]:
        """Copies the message, then mixes; see `Exchange.mix`."""
        sent, first = message_values("mix", k, values), descent_of(k, descent)
        moved = sent if first is None else (first.of(sent[0]), *sent[1:])
        self._keep("mix", k, moved, coding, values, extra)
        return self.inner.mix(k, *values, coding=coding, descent=descent, extra=extra)

    def swap(self, k: int, partner: Tensor, *values: Message) -> tuple[Tensor, ...]:
        """Copies the message, then swaps; see `Exchange.swap`."""
        self._keep("swap", k, message_values("swap", k, values), None, values)
        return self.inner.swap(k, partner, *values)

    def average(
        self, k: int, *values: Message, latest: bool = False, coding: Coding | None = None
    ) -> tuple[Tensor, ...]:
        """Copies the message, then averages; see `Exchange.average`."""
        self._keep("average", k, message_values("average", k, values), coding, values)
        return self.inner.average(k, *values, latest=latest, coding=coding)

    def secure_sum(self, k: int, summands: Summand[Tensor], *, part: int = 0) -> Tensor:
        """Adds up, then copies the sum; see `Exchange.secure_sum`."""
        total = self.inner.secure_sum(k, summands, part=part)
        self.sent.append(Sent("secure_sum", k, (total.clone(),), None, (Masked.__name__,)))
        return total

    def _keep(
        self,
        verb: Verb,
        k: int,
        values: tuple[Tensor, ...],
        coding: Coding | None,
        given: Sequence[Message],
        extra: int = 0,
    ) -> None:
        copies = tuple(value.clone() for value in values)
        colours = tuple(type(value).__name__ for value in given)
        self.sent.append(Sent(verb, k, copies, coding, colours, extra))


class _TracedModel:
    """A model that keeps which records it was given; in all else the model itself."""

    def __init__(self, inner: StackedModel, drawn: list[Drawn]) -> None:
        self._inner, self._drawn = inner, drawn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def gradient(
        self, at: Tensor, inputs: Tensor, targets: Tensor, mask: Tensor, *rest: Any, **more: Any
    ) -> BatchGradient:
        self._keep(targets, mask)
        return self._inner.gradient(at, inputs, targets, mask, *rest, **more)

    def record_gradients(
        self, at: Tensor, inputs: Tensor, targets: Tensor, mask: Tensor, *rest: Any, **more: Any
    ) -> Any:
        self._keep(targets, mask)
        return self._inner.record_gradients(at, inputs, targets, mask, *rest, **more)

    def _keep(self, targets: Tensor, mask: Tensor) -> None:
        self._drawn.append(Drawn(targets[mask].clone(), mask.nonzero()[:, 0]))


class _TracedTable:
    """A table that keeps what its replacements summed up to."""

    def __init__(self, inner: StepTable, trace: Trace) -> None:
        self._inner, self._trace = inner, trace

    def fill(self, at: Tensor) -> None:
        self._inner.fill(at)

    def total(self) -> Tensor:
        return self._inner.total()

    def replace(self, at: Tensor, k: int, difference: float | None) -> Tensor:
        first, where = len(self._trace.drawn), at.clone()
        total = self._inner.replace(at, k, difference)
        draws = slice(first, len(self._trace.drawn))
        self._trace.sums.append(Sum("table", k, 0, False, True, where, total.clone(), draws))
        return total


@dataclass(frozen=True, eq=False)
class _TracedNoise:
    """Noise that keeps what it was told to add besides, `given`: rows by node, float64 `[d]`."""

    inner: Noise
    given: dict[int, Tensor] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def norm(self) -> NoiseNorm:
        return self.inner.norm

    def add(
        self,
        total: Tensor,
        stds: Sequence[float],
        keys: NodeKeys,
        nodes: Sequence[int],
        k: int,
        *,
        part: int,
        offsets: Offsets | None = None,
    ) -> Tensor:
        if offsets is not None:
            for node, row in zip(nodes, offsets.dense(), strict=True):
                before = self.given.get(node)
                self.given[node] = row if before is None else before + row
        return self.inner.add(total, stds, keys, nodes, k, part=part, offsets=offsets)

    def taken(self, nodes: Sequence[int], like: Tensor) -> Tensor:
        """What was added to some rows since this was asked last: zeros where nothing was."""
        nothing = torch.zeros(like.shape[1], dtype=torch.float64, device=like.device)
        rows = [self.given.get(node, nothing).to(like.device) for node in nodes]
        self.given.clear()
        return torch.stack(rows) if rows else nothing.expand(0, -1)


class _TracedContext:
    """A context that does what another one does, and keeps what passes.

    Args:
        inner: the one under audit.
        plan: what should happen.
        trace: what is added to.
        replay: releases to come out as they did before, in order; None: as they come.
        noise: that it adds; None where the plan has no noise of pairs.
    """

    def __init__(
        self,
        inner: StepContext,
        plan: Plan,
        trace: Trace,
        replay: Sequence[TracedRelease] | None,
        noise: _TracedNoise | None,
    ) -> None:
        self._inner, self._plan, self._trace, self._replay = inner, plan, trace, replay
        self._noise = noise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def table(self) -> StepTable:
        return _TracedTable(self._inner.table, self._trace)

    def among(self, k: int) -> StepContext:
        inner = self._inner.among(k)
        if inner is self._inner:
            return cast(StepContext, self)
        return cast(
            StepContext,
            _TracedContext(inner, self._plan, self._trace, self._replay, self._noise),
        )

    def batch_gradient(
        self, at: Tensor, k: int, *, part: int = 0, whole: bool = False, clipped: bool = True
    ) -> Tensor:
        first, where = len(self._trace.drawn), at.clone()
        total = self._inner.batch_gradient(at, k, part=part, whole=whole, clipped=clipped)
        draws = slice(first, len(self._trace.drawn))
        self._trace.sums.append(
            Sum("gradient", k, part, whole, clipped, where, total.clone(), draws)
        )
        return total

    def batch_difference(self, at: Tensor, anchor: Tensor, k: int, bound: float | None) -> Tensor:
        first, where = len(self._trace.drawn), at.clone()
        total = self._inner.batch_difference(at, anchor, k, bound)
        draws = slice(first, len(self._trace.drawn))
        self._trace.sums.append(Sum("difference", k, 0, False, True, where, total.clone(), draws))
        return total

    def add_noise(
        self, total: Tensor, k: int, *, scale: float | Tensor = 1.0, part: int = 0
    ) -> Tensor:
        trace, release = self._trace, self._plan.release
        numbers = list(self._inner.nodes)
        active = release.active(k)
        rows = [
            row for row, node in enumerate(numbers) if active is None or active[node % len(active)]
        ]
        factors = torch.as_tensor(scale, dtype=torch.float64).expand(len(total), 1)[:, 0].tolist()
        nodes = tuple(numbers[row] for row in rows)
        deviations = [
            release.noise_std(self._plan.nodes[numbers[row]], k) * factors[row] for row in rows
        ]
        before = total[rows].clone()
        released = self._inner.add_noise(total, k, scale=scale, part=part)
        done = trace.releases
        last = done[-1] if done else None
        kept = None
        if self._replay is not None and len(done) < len(self._replay):
            kept = self._replay[len(done)]
        if kept is not None and (kept.step, kept.part, kept.nodes) == (k, part, nodes):
            released[rows] = kept.after
        done.append(
            TracedRelease(
                step=k,
                part=part,
                nodes=nodes,
                before=before,
                after=released[rows].clone(),
                deviations=np.asarray(deviations, np.float64),
                draws=slice(0 if last is None else last.draws.stop, len(trace.drawn)),
                sums=slice(0 if last is None else last.sums.stop, len(trace.sums)),
                offsets=None if self._noise is None else self._noise.taken(nodes, before),
            )
        )
        return released


def pair_keys_of(plan: Plan, among: Sequence[int] | None = None) -> PairKeys | None:
    """The keys of the plan's pairs, from its `noise_seed`; None where it has no noise of pairs.

    Args:
        plan: of the run.
        among: of pairs with an end among these nodes alone; None: of all.
    """
    seed, pairs = plan.config.privacy.noise_seed, plan.release.pairs
    if pairs is None:
        return None
    assert seed is not None
    ends = None if among is None else set(among)
    chosen = [pair for pair in pairs.pairs if ends is None or not ends.isdisjoint(pair)]
    return pairwise.seeded_pair_keys(seed, chosen)


def with_noise(plan: Plan, noise: Noise) -> Plan:
    """The same plan, whose releases get their noise from another object."""
    algorithm = replace(
        plan.release.algorithm, releases=replace(plan.release.algorithm.releases, noise=noise)
    )
    return replace(plan, release=replace(plan.release, algorithm=algorithm))


def run_traced(
    plan: Plan,
    model: StackedModel,
    data: StackedData,
    exchange: Exchange,
    *,
    context: ContextFactory,
    steps: int,
    replay: Sequence[TracedRelease] | None = None,
    models: bool = False,
    on_step: Callable[[int, Tensor], None] = lambda done, at: None,
) -> Trace:
    """Run the first steps of a plan's algorithm, and the round of gossip that sends their result.

    Args:
        plan: of the experiment, with `noise_seed` set: keys come from it. Its nodes, copied or
            not, are those of `data`.
        model: the gradient engine.
        data: the nodes' records.
        exchange: moves messages.
        context: what executes a step.
        steps: how many are run.
        replay: releases of another trace of the same plan, to come out here as they did there. A
            release that is not asked for in the same place comes out as it is here.
        models: whether to keep the models of every step.
        on_step: told how many steps are done, and the models before the last of them.
    """
    algorithm = plan.config.algorithm.definition
    options: Any = plan.config.algorithm.options
    origin = model.start(len(plan.nodes), DTYPES[plan.config.train.dtype], data.targets.device)
    trace = Trace(plan, data.offsets.cpu().numpy(), origin.clone())
    traced_model = cast(StackedModel, _TracedModel(model, trace.drawn))
    noise, shared = None, pair_keys_of(plan)
    ran = plan
    if shared is not None:
        noise = _TracedNoise(plan.release.algorithm.releases.noise)
        ran, context = with_noise(plan, noise), partial(context, pair_keys=shared)
    heard = TracedExchange(exchange, trace.sent)
    inner = context(ran, traced_model, data, node_keys(plan), heard)
    traced = cast(StepContext, _TracedContext(inner, plan, trace, replay, noise))
    state = algorithm.start(origin, options, traced)
    for k in range(steps):
        before = algorithm.models(state).clone()
        if models:
            trace.models.append(before)
        state = advanced(plan, state, k, traced)
        on_step(k + 1, before)
    algorithm.mix(state, steps - 1, options, traced, plan.rounds)
    if models:
        trace.models.append(algorithm.models(state).clone())
    trace.common = algorithm.graph.consensus(algorithm.models(state), state).clone()
    return trace
