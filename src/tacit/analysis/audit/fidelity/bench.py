"""An experiment that can be run over and over, with some of its records exchanged.

What the model is asked is kept: which records, at which parameters. Nothing else is changed of the
code that runs; the records, the releases and the coins are the experimenter's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import Tensor

from tacit.algorithms import StepContext
from tacit.analysis.audit.harness import seeded
from tacit.analysis.audit.records import Candidate
from tacit.analysis.audit.trace import ContextFactory, Trace, TracedRelease, run_traced
from tacit.communication.exchange import InProcessExchange
from tacit.data import StackedData
from tacit.gradients import StackedModel
from tacit.training.plan import Plan
from tacit.training.prepare import Job


@dataclass(frozen=True, eq=False)
class NotedCall:
    """One call of the model by what is under audit.

    Args:
        at: parameters, `[rows, d]`.
        inputs: `[rows, records, ...]`.
        targets: likewise.
        mask: which slots hold a record, bool `[rows, records]`.
        coins: of dropout, int64 `[rows, records]`; None: there are none.
        clipped: whether it was given a clipping bound. The engine is tried out without one, on
            made-up records.
    """

    at: Tensor
    inputs: Tensor
    targets: Tensor
    mask: Tensor
    coins: Tensor | None
    clipped: bool


@dataclass(frozen=True, eq=False)
class NotedDivision:
    """One division by the size of a batch.

    Args:
        nodes: one a row.
        before: what was divided, `[rows, d]`.
        after: what came of it.
    """

    nodes: tuple[int, ...]
    before: Tensor
    after: Tensor


class _NotingModel:
    """A model that keeps what it was asked, in `calls`; in all else the model itself.

    Args:
        inner: that model.
        calls: what is added to.
        absent: the inputs of records that are masked, as if they were not there; the others are
            clipped as they are with them. None: nothing is masked.
    """

    def __init__(self, inner: StackedModel, calls: list[NotedCall], absent: Tensor | None) -> None:
        self._inner, self._calls, self._absent = inner, calls, absent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def gradient(
        self, at: Tensor, inputs: Tensor, targets: Tensor, mask: Tensor, *rest: Any, **more: Any
    ) -> Any:
        self._note(at, inputs, targets, mask, rest, more)
        if self._absent is not None:
            more.setdefault("counts", mask.sum(dim=1))
        return self._inner.gradient(at, inputs, targets, self._present(inputs, mask), *rest, **more)

    def record_gradients(
        self, at: Tensor, inputs: Tensor, targets: Tensor, mask: Tensor, *rest: Any, **more: Any
    ) -> Any:
        self._note(at, inputs, targets, mask, rest, more)
        present = self._present(inputs, mask)
        return self._inner.record_gradients(at, inputs, targets, present, *rest, **more)

    def _note(
        self,
        at: Tensor,
        inputs: Tensor,
        targets: Tensor,
        mask: Tensor,
        rest: Sequence[Any],
        more: Mapping[str, Any],
    ) -> None:
        bound = rest[0] if rest else more.get("clip")
        where, coins = at.detach().clone(), more.get("coins")
        self._calls.append(NotedCall(where, inputs, targets, mask, coins, bound is not None))

    def _present(self, inputs: Tensor, mask: Tensor) -> Tensor:
        if self._absent is None or not mask.numel():
            return mask
        same = inputs == self._absent
        return mask & ~(same.flatten(2).all(dim=2) if same.ndim > 2 else same)


class _NotingContext:
    """A context that keeps its divisions; in all else the context itself."""

    def __init__(self, inner: StepContext, divisions: list[NotedDivision]) -> None:
        self._inner, self._divisions = inner, divisions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def among(self, k: int) -> StepContext:
        inner = self._inner.among(k)
        same = inner is self._inner
        return cast(StepContext, self if same else _NotingContext(inner, self._divisions))

    def divide(self, total: Tensor) -> Tensor:
        before = total.clone()
        divided = self._inner.divide(total)
        self._divisions.append(NotedDivision(tuple(self._inner.nodes), before, divided.clone()))
        return divided


@dataclass(frozen=True, eq=False)
class NotedRun:
    """One run: what it showed, what the model was asked, and what was divided."""

    trace: Trace
    calls: list[NotedCall]
    divisions: list[NotedDivision]

    @property
    def handed(self) -> list[Tensor]:
        """What was handed to the noise, one release after the other, `[rows, d]`."""
        return [release.before for release in self.trace.releases]


@dataclass(eq=False)
class Bench:
    """An experiment that can be run over and over with some records exchanged.

    Args:
        job: the experiment.
        plan: its plan under seeded noise.
        data: its records, as numbers in memory of their own.
        context: what executes a step.
        steps: how many are run.
    """

    job: Job
    plan: Plan
    data: StackedData
    context: ContextFactory
    steps: int

    def run(
        self, replay: Sequence[TracedRelease] | None = None, absent: Tensor | None = None
    ) -> NotedRun:
        """The run, its releases as they were in another one, without the records `absent`."""
        calls: list[NotedCall] = []
        divisions: list[NotedDivision] = []

        def noted(plan: Plan, model: StackedModel, *others: Any, **named: Any) -> StepContext:
            noting = cast(StackedModel, _NotingModel(model, calls, absent))
            inner = self.context(plan, noting, *others, **named)
            return cast(StepContext, _NotingContext(inner, divisions))

        exchange = InProcessExchange(
            self.plan.mixing.weights,
            dtype=self.job.dtype,
            device=self.job.device,
            active=self.plan.release.active,
            rounds=self.plan.rounds,
        )
        trace = run_traced(
            self.plan,
            self.job.model,
            self.data,
            exchange,
            context=noted,
            steps=self.steps,
            replay=replay,
        )
        return NotedRun(trace, calls, divisions)

    def with_records(
        self, rows: Tensor, candidate: Candidate, base: NotedRun, *, absent: bool = False
    ) -> NotedRun:
        """The run in which these rows of the data are other records, all releases as in `base`.

        With `absent` the records are not there: they are marked by the candidate, and masked.
        """
        inputs, targets = self.data.stored[rows].clone(), self.data.targets[rows].clone()
        self.data.stored[rows], self.data.targets[rows] = candidate.inputs, candidate.targets
        try:
            return self.run(base.trace.releases, candidate.inputs if absent else None)
        finally:
            self.data.stored[rows], self.data.targets[rows] = inputs, targets


def make_bench(job: Job, context: ContextFactory, seed: int, steps: int) -> Bench:
    """An experiment's bench, with records in memory of its own.

    Args:
        job: the experiment.
        context: what executes a step.
        seed: of noise and coins.
        steps: how many are run, at most those of the plan.
    """
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
