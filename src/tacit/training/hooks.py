"""Callbacks: what a user's own code may see of a run while it goes on, and how it may end it.

Callbacks are told what is public or released while a run goes on, and nothing else: the plan, where
the run stands, and metrics on public test records. When it has ended they get the result, which is
for the eyes of this site. They run in the process of rank 0, which alone has the metrics of all
nodes.

**A stop that a callback asks for costs the whole plan.** Let Y_1, ..., Y_K be what the K planned
steps release. The plan certifies (epsilon, delta) for all of them together. A callback sees public
values and functions of what was released, so that the step T at which it ends the run is a function
of (Y_1, ..., Y_T) and of randomness that does not depend on records. What an observer then gets,
(T, Y_1, ..., Y_T), is a function of (Y_1, ..., Y_K): it is post-processing, and the figure of the
plan holds for it. The steps that are not made need not be made for that, since no step that was
made depends on a later one. The figure of T steps, which is smaller, is proved for a T that was
fixed beforehand, and not for this one. So the ledger keeps all planned steps charged, and result,
page and statement say so. A run that goes on after such a stop makes the rest of its planned steps
at no further cost: together they are the plan, with a pause.

That the callback sees nothing private is up to whoever writes it: one that looks at records by
itself is outside the proof.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tacit.errors import InputError, describe
from tacit.report.documents.metrics import PublicMeasurement
from tacit.training.plan import Plan
from tacit.training.run_folder.result import Result

LOG = logging.getLogger("tacit")
"""The logger of all of tacit. It has no handler: what is shown of it is for the program to say."""


@dataclass(frozen=True)
class Progress:
    """What the progress line shows; loss, accuracy and leading score are of the last evaluation.

    `score` is that of the first metric that was asked for, `metric` its name; both are None where
    none was. `notes` say what people should know of how a run that was cut off goes on. On a
    terminal, the loss of a task without test records is that of the training records; callbacks
    get None.
    """

    step: int
    steps: int
    loss: float | None
    accuracy: float | None
    epsilon: float | None
    steps_per_second: float
    notes: tuple[str, ...] = ()
    metric: str | None = None
    score: float | None = None


class Callback:
    """Code of a user's own that is called while a run goes on; every method does nothing.

    Derive from it, and write the methods that are wanted. They are called in the process of rank 0,
    between two steps. If one raises an exception, the run ends as if it had asked for a stop, and
    the error is raised as one `tacit.InputError`.
    """

    def on_start(self, plan: Plan) -> None:
        """The run begins, or goes on; nothing was sent yet. The plan is all that was decided."""

    def on_metrics(self, metrics: PublicMeasurement) -> bool | None:
        """The models of all nodes were scored on the public test records.

        Args:
            metrics: of the step `metrics.step`; `metrics.test_accuracy.mean` is a share, and what
                was not measured is None. The last step may come twice: the later one counts.

        Returns:
            What counts as true ends the run cleanly. The certified epsilon is then still that of
            all planned steps, since a stop that depends on released models is only covered by the
            whole plan.
        """

    def on_step(self, progress: Progress) -> None:
        """A step was made; `progress` says where the run stands."""

    def on_end(self, result: Result) -> None:
        """The run has ended, cleanly, and its result is written.

        The result is what `tacit.train` returns, and for the eyes of this site: `parameters` may be
        private, and of `metrics`, `train_loss`, `gradient_norm`, `clip_rate`, `records_left_out`
        and `augmented_lagrangian` are measured on private records.
        """

    def on_error(self, error: BaseException) -> None:
        """The run has ended with an error, which is raised after this.

        The error may speak of private records: it is for the eyes of this site.
        """


def checked_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """The callbacks that a user gave, as a tuple; an `InputError` where one is none."""
    expected = "must be a list of tacit.callbacks.Callback objects"
    if not isinstance(callbacks, Iterable):
        raise InputError("callbacks", callbacks, expected)
    listed = tuple(callbacks)
    for callback in listed:
        if not isinstance(callback, Callback):
            hint = ": make one, by calling the class" if isinstance(callback, type) else ""
            raise InputError("callbacks", callback, expected + hint)
    return listed


class Hooks:
    """The callbacks of a run, called one after the other.

    The first failure of a callback is kept. It asks for a clean stop, so that the run ends with a
    checkpoint before it is raised. `stopped_by` names the callback that asked for a stop.
    `watched`: whoever interrupts the run has seen what was released.
    """

    def __init__(self, callbacks: Sequence[Callback] = ()) -> None:
        self._callbacks = tuple(callbacks)
        self.stopped_by: str | None = None
        self.watched = False
        self.failure: InputError | None = None

    @property
    def ask_for_stop(self) -> bool:
        """Whether a callback asks for the end of the run, or has failed."""
        return self.stopped_by is not None or self.failure is not None

    def start(self, plan: Plan) -> None:
        """Tell all that the run begins; raises as `raise_failure`."""
        for callback in self._callbacks:
            with self._guarded(callback, "on_start"):
                callback.on_start(plan)
        self.raise_failure()

    def metrics(self, rows: Iterable[PublicMeasurement]) -> None:
        """Tell all what was measured."""
        for row in rows:
            for callback in self._callbacks:
                with self._guarded(callback, "on_metrics"):
                    if callback.on_metrics(row):
                        self.stopped_by = self.stopped_by or type(callback).__name__

    def step(self, progress: Callable[[], Progress]) -> None:
        """Tell all that a step was made; where the run stands is looked at if there are any."""
        if self._callbacks:
            moment = progress()
            for callback in self._callbacks:
                with self._guarded(callback, "on_step"):
                    callback.on_step(moment)

    def end(self, result: Result) -> None:
        """Tell all that the run has ended; raises as `raise_failure`, also what failed before."""
        for callback in self._callbacks:
            with self._guarded(callback, "on_end"):
                callback.on_end(result)
        self.raise_failure()

    def error(self, error: BaseException) -> None:
        """Tell all that the run has failed; what they do wrong then is only logged."""
        for callback in self._callbacks:
            try:
                callback.on_error(error)
            except Exception:
                LOG.exception("%s.on_error failed", type(callback).__name__)

    def raise_failure(self, more: str = "") -> None:
        """Raise what a callback did wrong, if one did; `more` says what it means for the run."""
        if self.failure is not None:
            failure = self.failure
            if failure.__cause__ is not None and not isinstance(failure.__cause__, Exception):
                raise failure.__cause__
            expected = f"{failure.expected}{more}"
            raise InputError(failure.where, failure.value, expected) from failure.__cause__

    @contextmanager
    def _guarded(self, callback: Callback, method: str) -> Iterator[None]:
        """Within, an exception is kept as the failure, unless there is one already."""
        try:
            yield
        except BaseException as error:  # whatever the user's code raises, also to end the program
            name = f"{type(callback).__name__}.{method}"
            failure = InputError("callbacks", name, f"must not fail: {describe(error)}")
            failure.__cause__ = error
            self.failure = self.failure or failure
