"""A run that is stepped by hand: the loop of `tacit.train`, which waits after every step.

All nodes are in one process, and whoever steps them is all of them. Messages are what others see of
a node, and epsilon covers them; states, drawn records and noise are private: for research on
records that one may see. Whoever steps has seen what was released, so that an end before that of
the plan is charged as one that a callback chose, see `tacit.training.hooks`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any, cast
from weakref import finalize

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.analysis.audit.recorder import Pinned, Sent, Trace, heard, recorded
from tacit.communication.peers import ALONE
from tacit.errors import InputError
from tacit.report.documents.metrics import Measurement
from tacit.training.api import Source, understood, warn_of
from tacit.training.faults import effective
from tacit.training.hooks import Callback, Hooks, checked_callbacks
from tacit.training.job import Job
from tacit.training.loop import running
from tacit.training.plan import Plan
from tacit.training.run_folder import folder as folders
from tacit.training.run_folder.result import Result
from tacit.training.stacked_context import StackedContext
from tacit.training.state import RunState, record


class SteppedRun:
    """A run that waits after every step, as `tacit.prepare` gives it.

    It charges, records and certifies as `tacit.train`, and comes to the same bits. One that is
    dropped before its end stays charged whole.
    """

    def __init__(
        self, job: Job, out: Path | None, resume: bool, callbacks: Sequence[Callback]
    ) -> None:
        self._hooks, self._end, self.plan = Hooks(callbacks), Event(), job.plan
        self._hooks.watched = True
        noise = Pinned(job.plan.release.algorithm.releases.noise)
        self._trace = Trace(job.plan, noise, np.empty(0, np.int64), torch.empty(0))
        trace = self._trace  # the run refers to no session: it ends when that is dropped

        def context(plan: Plan, model: Any, data: Any, keys: Any, *more: Any) -> StackedContext:
            exchange, hosted, shared = more
            moved = heard(exchange, trace.sent)
            inner = StackedContext(plan, model, data, keys, moved, hosted, shared)
            return cast(StackedContext, recorded(inner, trace))

        stop = self._end.is_set
        self._steps = running(job, self._hooks, out, resume, should_stop=stop, make_context=context)
        self._run, self._result = cast(RunState, next(self._steps)), cast(Result | None, None)
        finalize(self, self._steps.close)  # before the interpreter is taken down

    @property
    def step_number(self) -> int:
        """Steps that were made."""
        return self._run.step

    @property
    def state(self) -> Any:
        """A copy of the algorithm's state, a `NamedTuple` of tensors: private."""
        return type(self._run.state)(*(value.clone() for value in self._run.state))

    @property
    def models(self) -> Tensor:
        """A copy of the models that the result would have now, `[nodes, d]`."""
        return self._run.models.expand(len(self.plan.nodes), -1).clone()

    @property
    def messages(self) -> tuple[Sent, ...]:
        """What left the nodes in the last step, in order, as it was sent.

        A row for each node, of `average` for each that is active; of a secure sum the sum alone.
        """
        return tuple(self._trace.sent)

    @property
    def active(self) -> NDArray[np.bool_]:
        """Which nodes took part in the last step, bool `[nodes]`."""
        return self._run.context.flags(max(0, self._run.step - 1))

    @property
    def drawn(self) -> dict[int, NDArray[np.int64]]:
        """By node the numbers of the records (or persons) in the last batch: private."""
        rows, mask = self._run.context.last_rows, self._run.context.last_mask
        if rows is None or mask is None:
            return {}
        return {
            node.node: own[m].numpy(force=True) for node, own, m in zip(*rows, mask, strict=True)
        }

    @property
    def noise(self) -> tuple[dict[int, Tensor], ...]:
        """What each release of the last step added to a node's sum, float64 `[d]`, with rounding.

        An InputError where it is from secret keys.
        """
        if self.plan.noisy and self.plan.config.privacy.noise_seed is None:
            expected = "set it: noise of secret keys is shown to nobody, since epsilon rests on it"
            raise InputError("privacy.noise_seed", None, expected)
        return tuple(
            dict(zip(one.nodes, one.after.double() - one.before.double(), strict=True))
            for one in self._trace.releases
        )

    @property
    def spectral_gap(self) -> float | None:
        """1 less the contraction of a step; None where that is not known."""
        return None if self.plan.contraction is None else 1 - self.plan.contraction

    def mixing_matrix(self, k: int, extra: int = 0) -> NDArray[np.float64]:
        """How node i weighs what j sends in a gossip round of step k, `[i, j]`; 0 with a server."""
        t = k * self.plan.rounds + extra
        return effective(self.plan.mixing, self.plan.faults)(t).matrix()

    def step(self) -> Measurement | None:
        """Make one step; what was measured after it, if anything was: in part private.

        An InputError where the run has ended, a DivergenceError where it diverges.
        """
        run, before = self._run, self._run.rows[-1:]
        self._trace.forget()
        moved = None if run.step >= run.until else next(self._steps, None)
        if isinstance(moved, Result):  # a callback has ended the run
            self._result = moved
        if moved is not run:
            raise InputError("session.step", run.step, f"has ended, of {run.until} steps")
        return run.rows[-1] if run.rows[-1:] != before else None

    def run(self, steps: int | None = None) -> None:
        """Make so many steps, by default all that remain: see `step`."""
        for _ in range(self._run.until - self._run.step if steps is None else steps):
            self.step()

    def evaluate(self) -> Measurement:
        """Measure where the run stands on all test records; nothing is kept of it."""
        aside = dict.fromkeys(("folder", "common_folder", "suboptimality"))
        run = replace(self._run, rows=[], **cast(Any, aside))
        record(run, whole=True)
        return run.rows[-1]

    def finish(self, *, decided_beforehand: bool = False) -> Result:
        """End the run where it stands: what `tacit.train` returns.

        If its end was `decided_beforehand`, so that nothing which was released had a part in it,
        the steps that were made are charged; else all that were planned. An InputError where no
        step was made, or the run has failed.
        """
        run = self._run
        if run.first < run.step < run.until:
            self._end.set()
            if not decided_beforehand:
                self._hooks.stopped_by = self._hooks.stopped_by or "SteppedRun.finish"
        if self._result is None and not run.first == run.step < run.until:
            self._result = cast(Result | None, next(self._steps, None))
        if self._result is None:
            raise InputError("session.finish", run.step, "has no result: no step, or it has failed")
        return self._result


def prepare(
    config: Source,
    *,
    callbacks: Sequence[Callback] = (),
    out: str | Path | None = None,
    resume: bool = False,
    **data: Any,
) -> SteppedRun:
    """A run that is stepped by hand, in one process; nothing is sent before its first step.

    `data` are `model`, `nodes`, `test`, `loss`, `metric`, `output`, `schema`, `units` and
    `graph`: all are as `tacit.train` takes them, and so are the warning and errors.
    """
    if int(os.environ.get("WORLD_SIZE", "1") or 1) > 1:
        expected = "a run is stepped by hand in one process, which holds all records"
        raise InputError("WORLD_SIZE", os.environ["WORLD_SIZE"], expected)
    called, path = checked_callbacks(callbacks), None if out is None else Path(out)
    _, job_among = understood(config, out, data)
    if path is not None and not resume:
        folders.check_new(path)
    job = job_among(ALONE)
    warn_of(job, 3)
    return SteppedRun(job, path, resume, called)
