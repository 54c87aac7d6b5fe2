"""Runs an algorithm's own code and keeps what passes its borders, from inside: who was drawn, what
was handed to the noise, what came back, and what was sent.

Tests of fidelity compare this with what the plan states. What is planned is read from the plan and
never from what is under audit, which is the code that executes a step (`ContextFactory`), the
algorithm's step, and everything that they call.

A run can also be *replayed*: the same code runs on other records and other coins, while the noise
releases what it did before. Two such runs differ in nothing but what reached the outside by another
way, and all that leaves a node must be what it was. The `noise` of the algorithm's row is the only
thing that a step may noise with. A context that adds something before or after it, or leaves it
out, is therefore run as it is, and is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
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
from tacit.config.schema import LEDGER_KEYS
from tacit.data import StackedData
from tacit.gradients import StackedModel
from tacit.privacy.noise import pairwise
from tacit.privacy.noise.draws import NodeKeys
from tacit.privacy.noise.independent import Noise
from tacit.privacy.noise.lattice import Offsets
from tacit.privacy.noise.pairwise import PairKeys
from tacit.training.budget import node_keys
from tacit.training.job import DTYPES
from tacit.training.plan import Plan
from tacit.training.rounds import advanced

ContextFactory = Callable[..., StepContext]
"""What `StackedContext` is called with; an audit of other code puts its own here.

Plan, model, data, keys and exchange; and, by name, `pair_keys` where the plan has noise of pairs.
"""

Verb = Literal["mix", "swap", "average", "secure_sum"]
Kind = Literal["gradient", "difference", "table"]


@dataclass(frozen=True, eq=False)
class Sent:
    """One message of every node of the process.

    Args:
        step: the number that the algorithm gave for the step.
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
        part: of the mini-batch.
        whole: whether it was asked over every record.
        clipped: whether contributions were to be clipped.
        at: where, `[rows, d]`.
        total: what came back, `[rows, d]`.
        draws: which calls of the model it made: `Trace.drawn[first:end]`, or of `Trace.calls`.
    """

    kind: Kind
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
            of a record is its number in the stack, so that this says who was drawn. Of a unit, that
            of its first row.
        rows: which row of the call each belongs to, int64 `[records]`.
        counts: how many rows of each unit have a share, int64 `[records]`; None: a record is a row.
    """

    targets: Tensor
    rows: Tensor
    counts: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Call:
    """One call of the model, whole.

    Args:
        at: parameters, `[rows, d]`.
        inputs: `[rows, records, ...]`.
        targets: likewise.
        mask: which slots hold a record, bool `[rows, records]`.
        coins: of dropout, int64 `[rows, records]`; None: there are none.
        shares: of the rows of units, `[rows, records, unit_rows]`; None: a record is a row.
        clipped: whether it was given a clipping bound. The engine is tried out without one, on
            made-up records.
    """

    at: Tensor
    inputs: Tensor
    targets: Tensor
    mask: Tensor
    coins: Tensor | None
    shares: Tensor | None
    clipped: bool


@dataclass(frozen=True, eq=False)
class Divided:
    """One division by the size of a batch: of `before` `[rows, d]`, a row for each of `nodes`."""

    nodes: tuple[int, ...]
    before: Tensor
    after: Tensor


@dataclass(frozen=True, eq=False)
class Noised:
    """One call for noise: a node and a deviation for each row, what was handed in, what came out.

    Its `repr` says all but what came out.
    """

    step: int
    part: int
    nodes: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    deviations: tuple[float, ...]
    released: Tensor = field(repr=False)


class Recorded:
    """Another object, of which a subclass keeps what passes; in all else that object itself."""

    _inner: Any

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Pinned(Recorded):
    """Noise that does what another one does, and keeps it; or that releases what was kept.

    Args:
        before: calls of another run. The call of the same number for the same rows releases what
            that one did; any other is as it is drawn.
        draws: whether noise is drawn in any case, so that the same code runs; if not, a call that
            releases what was kept draws none.
    """

    _inner: Noise

    def __init__(self, inner: Noise, before: Sequence[Noised] = (), draws: bool = True) -> None:
        super().__init__(inner)
        self._before, self._draws = dict(enumerate(before)), draws
        self._offsets: dict[int, Tensor] = {}
        self.asked: list[Noised] = []

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
        """See `Noise.add`; where it replays, `total` decides nothing but shape and type."""
        if offsets is not None:
            for node, row in zip(nodes, offsets.dense(), strict=True):
                before = self._offsets.get(node)
                self._offsets[node] = row if before is None else before + row
        asked = k, part, tuple(nodes), tuple(total.shape)
        call = self._before.get(len(self.asked))
        kept = call if call and (call.step, call.part, call.nodes, call.shape) == asked else None
        dtype = str(total.dtype)
        if kept is None or self._draws:
            total = self._inner.add(total, stds, keys, nodes, k, part=part, offsets=offsets)
        if kept is not None:
            total.copy_(kept.released)
        released = total.clone() if kept is None else kept.released
        self.asked.append(Noised(*asked, dtype, tuple(stds), released))
        return total

    def begin(self) -> Pinned:
        """Itself, so that a context adds what is kept."""
        return self

    def offsets(self, nodes: Sequence[int], like: Tensor) -> Tensor:
        """What was added to some rows besides since this was asked last: zeros where nothing was.

        That is the noise of pairs, float64 `[rows, d]`.
        """
        nothing = torch.zeros(like.shape[1], dtype=torch.float64, device=like.device)
        rows = [self._offsets.get(node, nothing).to(like.device) for node in nodes]
        self._offsets.clear()
        return torch.stack(rows) if rows else nothing.expand(0, -1)


class Around:
    """What is around sums and calls of the model while they are made: here nothing."""

    def summing(
        self, kind: Kind, k: int, whole: bool, anchor: Tensor | None, bound: float | None
    ) -> AbstractContextManager[None]:
        """A sum of a step, of differences to an `anchor` or to a table within a `bound`."""
        return nullcontext()

    def at(self, point: Tensor) -> AbstractContextManager[None]:
        """A call of the model at a point, `[nodes, d]`."""
        return nullcontext()


@dataclass(eq=False)
class Trace:
    """What one run showed, in the order in which it happened.

    Args:
        noise: that it adds, and what that was asked.
        offsets: where each node's records begin in the stack, int64 `[nodes]`.
        start: `[nodes, d]`, x^0.
        sent: messages, those of the gossip-only round after the last step included.
        releases: calls for noise, as the step makes them.
        sums: calls for sums.
        drawn: calls of the model.
        calls: the same ones, whole; empty unless asked for.
        models: what the algorithm calls the nodes' models, before every step and after the last,
            `[nodes, d]` each; empty unless asked for.
        common: the common model of the end, `[d]`.
        around: what is around sums and calls of the model.
    """

    plan: Plan
    noise: Pinned
    offsets: NDArray[np.int64]
    start: Tensor
    around: Around = field(default_factory=Around)
    sent: list[Sent] = field(default_factory=list)
    releases: list[TracedRelease] = field(default_factory=list)
    sums: list[Sum] = field(default_factory=list)
    divisions: list[Divided] = field(default_factory=list)
    drawn: list[Drawn] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    models: list[Tensor] = field(default_factory=list)
    common: Tensor | None = None

    def forget(self) -> None:
        """Drops what was recorded so far: of a long run, one step is looked at at a time."""
        steps: Sequence[list[Any]] = (self.sent, self.releases, self.sums, self.divisions)
        kept: Sequence[list[Any]] = (*steps, self.drawn, self.calls, self.noise.asked)
        for one in kept:
            one.clear()


class _RecordedExchange(Recorded):
    """An exchange of which every message is copied into `sent`, before it is moved."""

    _inner: Exchange

    def __init__(self, inner: Exchange, sent: list[Sent]) -> None:
        super().__init__(inner)
        self._sent = sent

    def mix(
        self,
        k: int,
        *values: Message,
        coding: Coding | None = None,
        descent: tuple[Message, float] | None = None,
        extra: int = 0,
    ) -> tuple[Tensor, ...]:
        sent, first = message_values("mix", k, values), descent_of(k, descent)
        moved = sent if first is None else (first.of(sent[0]), *sent[1:])
        self._keep("mix", k, moved, coding, values, extra)
        return self._inner.mix(k, *values, coding=coding, descent=descent, extra=extra)

    def swap(self, k: int, partner: Tensor, *values: Message) -> tuple[Tensor, ...]:
        self._keep("swap", k, message_values("swap", k, values), None, values)
        return self._inner.swap(k, partner, *values)

    def average(
        self, k: int, *values: Message, latest: bool = False, coding: Coding | None = None
    ) -> tuple[Tensor, ...]:
        self._keep("average", k, message_values("average", k, values), coding, values)
        return self._inner.average(k, *values, latest=latest, coding=coding)

    def secure_sum(self, k: int, summands: Summand[Tensor], *, part: int = 0) -> Tensor:
        total = self._inner.secure_sum(k, summands, part=part)
        self._sent.append(Sent("secure_sum", k, (total.clone(),), None, (Masked.__name__,)))
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
        self._sent.append(Sent(verb, k, copies, coding, colours, extra))


class _RecordedModel(Recorded):
    """A model that keeps which records it was given, and with `calls` the whole of each call.

    `absent` are the inputs of records that are masked, as if they were not there (of units, those
    of each row); the others are clipped as they are with them. None: nothing is masked.
    """

    _inner: StackedModel

    def __init__(
        self, inner: StackedModel, trace: Trace, calls: bool, absent: Tensor | None
    ) -> None:
        super().__init__(inner)
        self._trace, self._calls, self._absent = trace, calls, absent

    def gradient(
        self, at: Tensor, inputs: Tensor, targets: Tensor, mask: Tensor, *rest: Any, **more: Any
    ) -> Any:
        if self._absent is not None:
            more.setdefault("counts", mask.sum(dim=1))
        present = self._present(at, inputs, targets, mask, rest, more)
        with self._trace.around.at(at):
            return self._inner.gradient(at, inputs, targets, present, *rest, **more)

    def record_gradients(
        self, at: Tensor, inputs: Tensor, targets: Tensor, mask: Tensor, *rest: Any, **more: Any
    ) -> Any:
        present = self._present(at, inputs, targets, mask, rest, more)
        with self._trace.around.at(at):
            return self._inner.record_gradients(at, inputs, targets, present, *rest, **more)

    def _present(
        self,
        at: Tensor,
        inputs: Tensor,
        targets: Tensor,
        mask: Tensor,
        rest: Sequence[Any],
        more: Mapping[str, Any],
    ) -> Tensor:
        """Keeps a call; which of its slots hold a record that is not absent."""
        shares, own = more.get("shares"), targets[mask]
        counts = None if shares is None else (shares[mask] > 0).sum(dim=1)
        own = own.clone() if counts is None else own[:, 0].clone()
        self._trace.drawn.append(Drawn(own, mask.nonzero()[:, 0], counts))
        if self._calls:
            clipped = (rest[0] if rest else more.get("clip")) is not None
            where, coins = at.detach().clone(), more.get("coins")
            self._trace.calls.append(Call(where, inputs, targets, mask, coins, shares, clipped))
        if self._absent is None or not mask.numel():
            return mask
        same = inputs == self._absent
        return mask & ~(same.flatten(2).all(dim=2) if same.ndim > 2 else same)


class _RecordedTable(Recorded):
    """A table that keeps what its replacements summed up to."""

    _inner: StepTable

    def __init__(self, inner: StepTable, context: _RecordedContext) -> None:
        super().__init__(inner)
        self._context = context

    def replace(self, at: Tensor, k: int, difference: float | None) -> Tensor:
        replaced = partial(self._inner.replace, at, k, difference)
        return self._context.summed("table", replaced, at, k, bound=difference)


class _RecordedContext(Recorded):
    _inner: StepContext

    def __init__(self, inner: StepContext, trace: Trace) -> None:
        super().__init__(inner)
        self._trace = trace

    @property
    def table(self) -> StepTable:
        return cast(StepTable, _RecordedTable(self._inner.table, self))

    def among(self, k: int) -> StepContext:
        inner = self._inner.among(k)
        same = inner is self._inner
        return cast(StepContext, self) if same else recorded(inner, self._trace)

    def batch_gradient(
        self, at: Tensor, k: int, *, part: int = 0, whole: bool = False, clipped: bool = True
    ) -> Tensor:
        added = partial(self._inner.batch_gradient, at, k, part=part, whole=whole, clipped=clipped)
        return self.summed("gradient", added, at, k, part, whole, clipped)

    def batch_difference(self, at: Tensor, anchor: Tensor, k: int, bound: float | None) -> Tensor:
        added = partial(self._inner.batch_difference, at, anchor, k, bound)
        return self.summed("difference", added, at, k, anchor=anchor, bound=bound)

    def summed(
        self,
        kind: Kind,
        added: Callable[[], Tensor],
        at: Tensor,
        k: int,
        part: int = 0,
        whole: bool = False,
        clipped: bool = True,
        anchor: Tensor | None = None,
        bound: float | None = None,
    ) -> Tensor:
        """What `added` gives, kept with what is asked of it; see `Sum`."""
        first, where = len(self._trace.drawn), at.clone()
        with self._trace.around.summing(kind, k, whole, anchor, bound):
            total = added()
        draws = slice(first, len(self._trace.drawn))
        self._trace.sums.append(Sum(kind, k, part, whole, clipped, where, total.clone(), draws))
        return total

    def divide(self, total: Tensor) -> Tensor:
        before = total.clone()
        divided = self._inner.divide(total)
        done = Divided(tuple(self._inner.nodes), before, divided.clone())
        self._trace.divisions.append(done)
        return divided

    def add_noise(
        self, total: Tensor, k: int, *, scale: float | Tensor = 1.0, part: int = 0
    ) -> Tensor:
        trace, plan = self._trace, self._trace.plan
        numbers, active = list(self._inner.nodes), plan.release.active(k)
        flags = [True] if active is None else active
        rows = [row for row, node in enumerate(numbers) if flags[node % len(flags)]]
        factors = torch.as_tensor(scale, dtype=torch.float64).expand(len(total), 1)[:, 0].tolist()
        nodes = tuple(numbers[row] for row in rows)
        planned = [plan.release.noise_std(plan.nodes[node], k) for node in nodes]
        deviations = [std * factors[row] for std, row in zip(planned, rows, strict=True)]
        before = total[rows].clone()
        released = self._inner.add_noise(total, k, scale=scale, part=part)
        drawn, summed = (
            (trace.releases[-1].draws.stop, trace.releases[-1].sums.stop)
            if trace.releases
            else (0, 0)
        )
        trace.releases.append(
            TracedRelease(
                step=k,
                part=part,
                nodes=nodes,
                before=before,
                after=released[rows].clone(),
                deviations=np.asarray(deviations, np.float64),
                draws=slice(drawn, len(trace.drawn)),
                sums=slice(summed, len(trace.sums)),
                offsets=None if plan.release.pairs is None else trace.noise.offsets(nodes, before),
            )
        )
        return released


def recorded(context: StepContext, trace: Trace) -> StepContext:
    """The same context, of which sums, divisions and releases are kept in a trace."""
    return cast(StepContext, _RecordedContext(context, trace))


def heard(exchange: Exchange, sent: list[Sent]) -> Exchange:
    """The same exchange, of which every message is copied into `sent`."""
    return cast(Exchange, _RecordedExchange(exchange, sent))


def seeded(plan: Plan, seed: int) -> Plan:
    """The same plan with its noise and coins from a number, and no ledger, which that rules out."""
    settings = {**dict.fromkeys(LEDGER_KEYS), "noise_seed": seed}
    return replace(plan, config=plan.config.with_keys(privacy=settings))


def pair_keys_of(plan: Plan, among: Sequence[int] | None = None) -> PairKeys | None:
    """The keys of the plan's pairs, from its `noise_seed`; None where it has no noise of pairs.

    They are of pairs with an end among the nodes `among` alone; None: of all.
    """
    seed, pairs = plan.config.privacy.noise_seed, plan.release.pairs
    if pairs is None:
        return None
    assert seed is not None
    ends = None if among is None else set(among)
    chosen = [pair for pair in pairs.pairs if ends is None or not ends.isdisjoint(pair)]
    return pairwise.seeded_pair_keys(seed, chosen)


def with_noise(plan: Plan, noise: Pinned) -> Plan:
    """The same plan, whose releases get their noise from another object."""
    algorithm = replace(
        plan.release.algorithm,
        releases=replace(plan.release.algorithm.releases, noise=cast(Noise, noise)),
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
    replay: Sequence[Noised] = (),
    draws: bool = False,
    models: bool = False,
    calls: bool = False,
    absent: Tensor | None = None,
    around: Around | None = None,
    on_step: Callable[[int, Tensor, Trace], None] = lambda k, points, trace: None,
) -> Trace:
    """Run the first steps of a plan's algorithm, and the round of gossip that sends their result.

    The plan has a `noise_seed`, from which keys come; its nodes, copied or not, are those of
    `data`. `replay` is what another run of the same plan asked of the noise, which releases the
    same here; with `draws` it is drawn all the same, see `Pinned`. `models` and `calls` say whether
    to keep the models of every step, and calls of the model whole. Records whose inputs are
    `absent` are masked wherever they are drawn. `around` is around sums and calls of the model.
    `on_step` is told after each step its number, the public points where it began, and what is
    recorded: the nodes' models, or the common one `[1, d]` where models are a node's own.
    """
    algorithm = plan.config.algorithm.definition
    options: Any = plan.config.algorithm.options
    origin = model.start(len(plan.nodes), DTYPES[plan.config.train.dtype], data.targets.device)
    noise = Pinned(plan.release.algorithm.releases.noise.begin(), replay, draws)
    trace = Trace(plan, noise, data.firsts.cpu().numpy(), origin.clone(), around or Around())
    shared = pair_keys_of(plan)
    if shared is not None:
        context = partial(context, pair_keys=shared)
    asked = _RecordedModel(model, trace, calls, absent)
    moved = heard(exchange, trace.sent)
    inner = context(with_noise(plan, noise), asked, data, node_keys(plan), moved)
    traced = recorded(inner, trace)
    state = algorithm.start(origin, options, traced)
    for k in range(steps):
        before = algorithm.models(state).clone()
        if models:
            trace.models.append(before)
        if not algorithm.releases.models:
            before = algorithm.graph.consensus(before, state)[None].clone()
        state = advanced(plan, state, k, traced)
        on_step(k, before, trace)
    algorithm.mix(state, steps - 1, options, traced, plan.rounds)
    if models:
        trace.models.append(algorithm.models(state).clone())
    trace.common = algorithm.graph.consensus(algorithm.models(state), state).clone()
    return trace
