"""Runs tasks, here or in several processes; none that fails takes another with it.

A process of the pool (`tacit.analysis.compare.worker`) reads tasks from its standard input, one
JSON object a line, and answers on its standard output. When its input ends it stops after the step
that it is at, with a checkpoint: so it does when it is asked to, and when the parent is gone,
however it died.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tacit.config import load_config
from tacit.errors import (
    BudgetError,
    DivergenceError,
    InputError,
    PeerError,
    TacitError,
    describe,
)
from tacit.training import loop as run
from tacit.training.prepare import Job, prepare
from tacit.training.run_folder import checkpoint as checkpoints

__all__ = ["Outcome", "Task", "perform", "run_tasks", "threads_a_process"]

OnStep = Callable[[int, float], None]
OnDone = Callable[[int, "Outcome"], None]
_PATIENCE = 0.2  # seconds between two looks at whether to stop


@dataclass(frozen=True)
class Task:
    """One run to be made.

    Args:
        experiment: resolved, as TOML.
        folder: of the run.
        resume: whether the run in the folder goes on.
        instead: a new folder, for a run that turns out not to be able to go on.
    """

    experiment: str
    folder: str
    resume: bool
    instead: str


@dataclass(frozen=True)
class Outcome:
    """How a task ended.

    Args:
        folder: where the run lies.
        status: as in `result.json`; `failed` where there is none, `cancelled` before it began.
        message: why, where it did not end well; one line.
        code: the exit code of an error; 0 without.
    """

    folder: str
    status: str
    message: str | None = None
    code: int = 0


def perform(
    task: Task,
    on_step: Callable[[float], None] = lambda share: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Make one run in this process; errors become its outcome.

    Args:
        task: what to run.
        on_step: told the share of the steps that are completed.
        should_stop: asked after every step.
    """
    try:
        job = prepare(load_config(tomllib.loads(task.experiment)))
        if should_stop():
            return Outcome(task.folder, "cancelled")
        return _execute(job, task, on_step, should_stop)
    except DivergenceError as error:
        return Outcome(task.folder, "diverged", str(error), error.exit_code)
    except TacitError as error:
        return Outcome(task.folder, "failed", str(error), error.exit_code)
    except Exception as error:  # a defect, or what a user's own module raises
        if os.environ.get("TACIT_TRACEBACK"):
            raise
        return Outcome(task.folder, "failed", f"a defect of ours: {describe(error)}", 1)


def _execute(
    job: Job, task: Task, on_step: Callable[[float], None], should_stop: Callable[[], bool]
) -> Outcome:
    def show(moment: run.Progress) -> None:
        on_step(moment.step / moment.steps)

    def attempt(folder: str, resume: bool) -> Outcome:
        result = run.execute(
            job, out=Path(folder), resume=resume, on_step=show, should_stop=should_stop
        )
        return Outcome(folder, result.status, result.message)

    if not (task.resume and _can_go_on(job, Path(task.folder))):
        return attempt(task.instead if task.resume else task.folder, False)
    outcome = attempt(task.folder, True)
    if outcome.status != "budget-exhausted":
        return outcome
    try:  # what was booked before it was cut off shortened it: whole runs are compared
        return attempt(task.instead, False)
    except BudgetError:  # of the nodes' data, which have no more for a whole one
        return outcome


def _can_go_on(job: Job, folder: Path) -> bool:
    """Whether a checkpoint of a folder is whole, and all of them belong to this plan."""
    try:
        steps, _ = checkpoints.sound(folder, job.digest)
    except (InputError, OSError):
        return False
    return bool(steps)


def run_tasks(
    tasks: Sequence[Task],
    *,
    jobs: int = 1,
    on_step: OnStep = lambda place, share: None,
    on_done: OnDone = lambda place, outcome: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Outcome]:
    """Run all tasks, and give their outcomes in the same order.

    Args:
        tasks: what to run.
        jobs: 1: one after the other in this process; more: in so many processes.
        on_step: told the place of a task, and the share of its steps that are completed.
        on_done: told the place of a task, and how it ended.
        should_stop: asked all the time; True stops the running ones cleanly, and starts no more.
    """
    if jobs > 1 and len(tasks) > 1:
        return _run_in_processes(tasks, min(jobs, len(tasks)), on_step, on_done, should_stop)
    outcomes = []
    for place, task in enumerate(tasks):
        outcome = Outcome(task.folder, "cancelled")
        if not should_stop():

            def show(share: float, place: int = place) -> None:
                on_step(place, share)

            outcome = perform(task, show, should_stop)
        on_done(place, outcome)
        outcomes.append(outcome)
    return outcomes


def threads_a_process(jobs: int) -> int:
    """Each process's share of the cores that this one may use, at least 1.

    `OMP_NUM_THREADS` bounds it, where it is set.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    given = os.environ.get("OMP_NUM_THREADS", "")
    most = int(given) if given.isdigit() and int(given) else cores
    return max(1, min(most, cores // jobs))


@dataclass(frozen=True)
class _Event:
    """What a process said of the task at a place: a share of its steps, or its end."""

    place: int
    share: float | None
    outcome: Outcome | None


def _run_in_processes(
    tasks: Sequence[Task],
    jobs: int,
    on_step: OnStep,
    on_done: OnDone,
    should_stop: Callable[[], bool],
) -> list[Outcome]:
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
    for place in range(len(tasks)):
        waiting.put(place)
    members = [_Member(tasks, waiting, events, threads_a_process(jobs)) for _ in range(jobs)]
    outcomes: dict[int, Outcome] = {}
    try:
        for member in members:
            member.start()
        while len(outcomes) < len(tasks):
            if should_stop():
                for member in members:
                    member.stop()
            try:
                event = events.get(timeout=_PATIENCE)
            except queue.Empty:
                continue
            if event.outcome is None:
                on_step(event.place, event.share or 0.0)
            else:
                outcomes[event.place] = event.outcome
                on_done(event.place, event.outcome)
        for member in members:
            member.stop()
            member.join()
    finally:
        for member in members:
            member.kill()
    return [outcomes[place] for place in range(len(tasks))]


class _Member(threading.Thread):
    """Keeps one process busy; where it is lost, its task fails and another takes its place."""

    def __init__(
        self,
        tasks: Sequence[Task],
        waiting: queue.SimpleQueue[int],
        events: queue.SimpleQueue[_Event],
        threads: int,
    ) -> None:
        super().__init__(daemon=True)
        self._tasks, self._waiting, self._events, self._threads = tasks, waiting, events, threads
        self._process: subprocess.Popen[str] | None = None
        self._asked = threading.Event()
        self._lock = threading.Lock()

    def run(self) -> None:
        """Take tasks until there are none."""
        while True:
            try:
                place = self._waiting.get_nowait()
            except queue.Empty:
                return
            self._events.put(_Event(place, None, self._outcome(place)))

    def stop(self) -> None:
        """End the process's input: it stops cleanly."""
        self._asked.set()
        with self._lock:
            if self._process is not None and self._process.stdin is not None:
                with suppress(OSError):
                    self._process.stdin.close()

    def kill(self) -> None:
        """End the process if it is still there."""
        self._asked.set()
        with self._lock:
            if self._process is not None:
                self._process.kill()
                self._process.wait()

    def _outcome(self, place: int) -> Outcome:
        task = self._tasks[place]
        try:
            process = self._ready()
            if process is None:
                return Outcome(task.folder, "cancelled")
            return self._ask(process, place, task)
        except (OSError, ValueError) as error:
            code = None if self._process is None else self._process.poll()
            if self._asked.is_set():
                return Outcome(task.folder, "cancelled")
            lost = f"its process was lost (exit code {code}; {describe(error)})"
            return Outcome(task.folder, "failed", lost, PeerError.exit_code)

    def _ready(self) -> subprocess.Popen[str] | None:
        with self._lock:
            if self._asked.is_set():
                return None
            if self._process is None or self._process.poll() is not None:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tacit.analysis.compare.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    encoding="utf-8",
                    env={**os.environ, "OMP_NUM_THREADS": str(self._threads)},
                    start_new_session=True,  # Ctrl-C is for the parent, who then asks each to stop
                )
            return self._process

    def _ask(self, process: subprocess.Popen[str], place: int, task: Task) -> Outcome:
        if process.stdin is None or process.stdout is None:
            raise ValueError("it has no pipes")
        process.stdin.write(json.dumps(asdict(task)) + "\n")
        process.stdin.flush()
        for line in process.stdout:
            answer: Mapping[str, Any] = json.loads(line)
            if "share" not in answer:
                return Outcome(**answer)
            self._events.put(_Event(place, float(answer["share"]), None))
        process.wait()
        raise ValueError("it gave no answer")
