"""Makes runs, in this process or by an executor; none of these takes another with it.

An executor is anything with `submit` of `concurrent.futures.Executor`, whose answers have `done`
and `result`. What it is handed is a function of a module, with a wanted run: a run is a file and a
folder, so that one that was lost with its worker is handed in again, and goes on from its
checkpoint. All that workers share with this process is the file system. A file says that the runs
are wanted: where it is gone each stops after the step that it is at, with a checkpoint.

The processes of our own are an executor, too: a process that is killed takes its own run alone
along, and whose parent is gone, however it died, stops likewise.
"""

from __future__ import annotations

import os
import pickle
import secrets
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import parent_process
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit.analysis.settings.fork_server import SIGNALS, start_server
from tacit.config import Config
from tacit.errors import DivergenceError, InputError, PeerError, describe
from tacit.models.imports import call_function
from tacit.report.documents.status import read_status
from tacit.training.job import Job
from tacit.training.loop import execute

_PATIENCE = 0.2  # seconds between two looks at whether to stop
_EVERY = 0.5  # seconds between two looks at how far runs are
_LEFT = 130  # exit code of a process that was asked to stop
_TRIES = 3  # of a run whose worker is lost


@dataclass(frozen=True)
class WantedRun:
    """A run that is wanted, of a resolved experiment and in a folder; `name` is for who watches."""

    name: str
    config: Config
    path: Path


@dataclass(frozen=True)
class Outcome:
    """How a wanted run ended, and where it lies.

    `status` is as in `result.json`; without a result it is `failed`, `lost` (no budget was left for
    it), or `cancelled` before it began; `cached`: it had ended before. `message` says in one line
    why it did not end well, and `code` is the exit code of an error. `told` is what documents say
    of it, where the message is for the own screen alone.
    """

    path: Path
    status: str
    message: str | None = None
    code: int = 0
    told: str | None = None


UNFINISHED = ("stopped", "cancelled")  # by the user
Attempt = Callable[[Job, Path, bool], Outcome]
Make = Callable[[WantedRun, Attempt], Outcome]
"""Makes a run by attempts: each of a job, in a folder, that is new or resumed."""


@dataclass(frozen=True)
class Monitor:
    """What the caller hears, and is asked, while runs are made.

    `begin` hears how many runs there are and how many of them have ended before, `start` of each
    that begins, `step` which share of it is completed, and `done` how it ended. `should_stop` is
    asked all the time: True ends the running ones cleanly, and begins no more.
    """

    begin: Callable[[int, int], None] = lambda total, cached: None
    start: Callable[[WantedRun], None] = lambda request: None
    step: Callable[[WantedRun, float], None] = lambda request, share: None
    done: Callable[[WantedRun, Outcome], None] = lambda request, outcome: None
    should_stop: Callable[[], bool] = lambda: False


UNHEARD = Monitor()


def _attempt(
    on_step: Callable[[float], None],
    should_stop: Callable[[], bool],
    job: Job,
    path: Path,
    resume: bool,
) -> Outcome:
    """Run a job in this process; one that diverges has ended as well."""
    if should_stop():
        return Outcome(path, "cancelled")
    try:
        result = execute(
            job,
            out=path,
            resume=resume,
            on_step=lambda moment: on_step(moment.step / moment.steps),
            should_stop=should_stop,
        )
    except DivergenceError as error:
        return Outcome(path, "diverged", str(error), error.exit_code)
    return Outcome(path, result.status, result.message)


def run_in_turn(requests: Sequence[WantedRun], make: Make, monitor: Monitor) -> list[Outcome]:
    """Make all runs in this process, one after the other; what one raises ends them."""
    outcomes: list[Outcome] = []
    stopping = False
    for request in requests:
        stopping = stopping or monitor.should_stop()
        outcome = Outcome(request.path, "cancelled")
        if not stopping:
            monitor.start(request)
            on_step = partial(monitor.step, request)
            with as_found():
                outcome = make(request, partial(_attempt, on_step, monitor.should_stop))
            stopping = outcome.status in UNFINISHED
        monitor.done(request, outcome)
        outcomes.append(outcome)
    return outcomes


def threads_a_process(jobs: int) -> int:
    """Each process's share of the cores that this one may use, at least 1.

    `OMP_NUM_THREADS` bounds it, where it is set.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "")
    most = int(limit) if limit.isdigit() and int(limit) else cores
    return max(1, min(most, cores // jobs))


@contextmanager
def opened_executor(reference: str | None) -> Iterator[Executor | None]:
    """What a user's `module:function` returns, shut down in the end; None: there is none.

    Raises:
        InputError: it cannot be imported, fails, or returns what takes no jobs.
    """
    executor: Any = None if reference is None else call_function(reference, "--executor")
    if reference is not None and not callable(getattr(executor, "submit", None)):
        expected = f"must return an executor: its {type(executor).__name__} has no submit"
        raise InputError("--executor", reference, expected)
    try:
        yield executor
    finally:
        getattr(executor, "shutdown", lambda: None)()


def run_by_executor(
    requests: Sequence[WantedRun],
    make: Make,
    executor: Executor,
    monitor: Monitor,
    at_once: int | None = None,
) -> list[Outcome]:
    """Make all runs, each in a folder of its own, of which so many `at_once` are handed in.

    `make` is a function of a module, or a `partial` of one. What one raises ends them.

    Raises:
        InputError: the workers do not share this file system.
    """
    outcomes: dict[Path, Outcome] = {}
    waiting = deque((request, 1) for request in requests)
    running: dict[Future[Any], tuple[WantedRun, int]] = {}
    stopping, looked = False, time.monotonic()
    wanted = requests[0].path.parent.absolute() / f".wanted-{secrets.token_hex(8)}"
    wanted.parent.mkdir(parents=True, exist_ok=True)
    wanted.touch(mode=0o600, exist_ok=False)

    def end(request: WantedRun, outcome: Outcome) -> None:
        outcomes[request.path] = outcome
        monitor.done(request, outcome)

    try:
        while waiting or running:
            if not stopping and monitor.should_stop():
                stopping = True
                wanted.unlink(missing_ok=True)
                for future, (request, _) in running.items():
                    if not request.path.exists():  # it may wait for its turn for hours
                        getattr(future, "cancel", bool)()
            while waiting and (stopping or at_once is None or len(running) < at_once):
                request, turn = waiting.popleft()
                if stopping:
                    end(request, Outcome(request.path, "cancelled"))
                    continue
                if turn == 1:
                    monitor.start(request)
                try:
                    task = pickle.dumps(partial(_make, make, request, wanted))
                    path, here = request.path, os.getcwd()
                    future = executor.submit(_made_there, task, path, wanted, here, turn)
                    running[future] = request, turn
                except Exception as error:  # it is broken, or the machine has no room for more
                    if running:
                        waiting.appendleft((request, turn))
                        at_once = len(running)
                        break
                    end(request, _lost(request, f"could not be started ({describe(error)})"))
            _await_any(list(running))
            for future in [future for future in running if future.done()]:
                request, turn = running.pop(future)
                answer = _answer(future)
                if isinstance(answer, _Lost) and turn < _TRIES and not stopping:
                    waiting.append((request, turn + 1))  # it goes on from its checkpoint
                    continue
                if isinstance(answer, _Lost):
                    lost = _lost(request, f"was lost ({answer})")
                    answer = Outcome(request.path, "cancelled") if stopping else lost
                elif answer.status == "cancelled" and not stopping:
                    expected = f"its workers do not see {wanted.parent}: name a folder by --out"
                    raise InputError("--executor", str(executor), f"{expected} that all share")
                end(request, answer)
            if time.monotonic() > looked + _EVERY:
                looked = time.monotonic()
                for request, _ in running.values():
                    with suppress(InputError, OSError):
                        status = read_status(request.path)
                        monitor.step(request, status.step / (status.steps or status.step + 1))
    finally:
        wanted.unlink(missing_ok=True)
    return [outcomes[request.path] for request in requests]


def call_there(executor: Executor, function: Callable[[], Any]) -> Any:
    """What a `partial` of a module's function returns, called by a worker.

    Raises:
        PeerError: the worker was lost.
    """
    future: Any = executor.submit(_called_there, pickle.dumps(function), os.getcwd())
    while not future.done():
        _await_any([future])
    answer = _answer(future)
    if isinstance(answer, _Lost):
        raise PeerError(f"its process was lost ({answer})")
    return answer


class _Lost(str):
    """Why a worker is lost."""


def _await_any(futures: Sequence[Any]) -> None:
    """Wait for a moment, or until one of them has ended; not all have what others wait for."""
    if all(isinstance(future, Future) for future in futures):
        wait_for(futures, _PATIENCE, "FIRST_COMPLETED")
    else:
        time.sleep(_PATIENCE)


def _answer(future: Any) -> Any:
    """What a worker returned; what its function raised is raised here."""
    try:
        answer = future.result()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # libraries have such of their own for what is cancelled
        return _Lost(describe(error))
    if isinstance(answer, Exception):
        raise answer
    return answer


def _lost(request: WantedRun, how: str) -> Outcome:
    return Outcome(request.path, "failed", f"its process {how}", PeerError.exit_code)


# What follows is called in a worker.

_TURN = threading.Lock()  # of a worker with several threads
_asker: Path | None = None  # what said that the last run is wanted
_found: set[str] = set()  # modules of the directory that it was asked from
_wanted: Path | None = None  # what says that the run is wanted which is made here now
_preparing = False  # it, and nothing is reserved as yet


def _called_there(task: bytes, directory: str, asker: Path | None = None) -> Any:
    """What a pickled function returns or raises, where paths mean what they mean to who asks.

    So do modules: those that another asker's directory held are forgotten.
    """
    global _asker
    main = threading.current_thread() is threading.main_thread()
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None  # it is for who asks
    try:
        with _TURN, as_found():
            while _found and (asker is None or asker != _asker):
                sys.modules.pop(_found.pop(), None)
            _asker, known = asker, set(sys.modules)
            os.chdir(directory)
            try:
                return pickle.loads(task)()
            finally:
                for name in sys.modules.keys() - known:
                    file, own = getattr(sys.modules[name], "__file__", None), Path(*name.split("."))
                    if file in (f"{directory}/{own}.py", f"{directory}/{own}/__init__.py"):
                        _found.add(name)
    except Exception as error:
        return error
    finally:
        if main:
            signal.signal(signal.SIGINT, usual)


def _made_there(task: bytes, path: Path, wanted: Path, directory: str, turn: int) -> Any:
    """Make a run here, while it is wanted.

    Some executors know a call by its arguments, and would not make one `turn` after another.
    """
    if not (wanted.exists() and os.path.isdir(directory)):
        return Outcome(path, "cancelled")
    return _called_there(task, directory, wanted)


def _make(make: Make, request: WantedRun, wanted: Path) -> Outcome:
    global _wanted, _preparing
    looked, stopping = 0.0, False

    def should_stop() -> bool:  # first asked when all is prepared
        global _preparing
        nonlocal looked, stopping
        if time.monotonic() > looked + _PATIENCE:
            _preparing, looked, stopping = False, time.monotonic(), not wanted.exists()
        return stopping

    _wanted, _preparing = wanted, True
    try:
        return make(request, partial(_attempt, lambda share: None, should_stop))
    finally:
        _wanted, _preparing = None, False


@contextmanager
def as_found() -> Iterator[None]:
    """What a run within changes of its process is as before afterwards: the next begins alike."""
    directory, surroundings, drawn = os.getcwd(), dict(os.environ), torch.get_rng_state()
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    try:
        with warnings.catch_warnings():
            yield
    finally:
        os.chdir(directory)
        for name in os.environ.keys() - surroundings.keys():
            del os.environ[name]
        os.environ.update(surroundings)
        torch.set_rng_state(drawn)
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)


class Processes(Executor):
    """Processes of our own, each with its share of the cores, which are kept for further runs.

    A program that asks for them guards its main part by `if __name__ == "__main__"`:
    `multiprocessing` imports it in each.
    """

    def __init__(self, jobs: int) -> None:
        """At most so many jobs are handed in at once."""
        self._threads = threads_a_process(jobs)
        self._last: dict[_Process, Future[Any]] = {}

    def submit(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        """Hand it to a process that has nothing to do, which is started if there is none."""
        for one in [one for one, last in self._last.items() if last.done() and one.alive]:
            with suppress(BrokenExecutor):  # it was killed since
                self._last[one] = one.executor.submit(function, *args, **options)
                return self._last[one]
        start_server()
        one = _Process(self._threads)
        self._last[one] = one.executor.submit(function, *args, **options)
        return self._last[one]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End them at once, whatever threads a user's module has begun."""
        for one in self._last:
            for process in one.started:
                process.kill()
            one.executor.shutdown()


class _Process(ForkServerContext):
    """An executor of one process, so that one that is killed takes no other along."""

    def __init__(self, threads: int) -> None:
        self.started: list[BaseProcess] = []
        self.executor = ProcessPoolExecutor(1, self, _begin, (threads, dict(os.environ)))

    def Process(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        self.started.append(ForkServerContext.Process(*args, **options))
        return self.started[-1]

    @property
    def alive(self) -> bool:
        return all(process.is_alive() for process in self.started)


def _begin(threads: int, environment: Mapping[str, str]) -> None:
    for number in SIGNALS:  # they are for the parent; those that are pending are forgotten
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    os.environ.clear()  # the server's, which may be older than what it stands for
    os.environ.update(environment, OMP_NUM_THREADS=str(threads))
    torch.set_num_threads(threads)
    np.random.seed()  # noqa: NPY002  # of a user's module: forks have it in common
    os.dup2(2, 1)  # what a user's module prints does not mix with what the parent prints
    threading.Thread(target=_watch, daemon=True).start()


def _watch() -> None:
    """Leave what is being prepared, which may take minutes, once it is not wanted.

    Where the parent is gone nothing is wanted any more, and the process ends with its run.
    """
    parent, gone = parent_process(), False
    while _wanted is not None or not gone:
        gone = parent is None or bool(wait([parent.sentinel], _PATIENCE))
        wanted, preparing = _wanted, _preparing
        if gone and wanted is not None:
            wanted.unlink(missing_ok=True)
            time.sleep(_PATIENCE)
        if preparing and wanted is not None and not wanted.exists():
            break
    os._exit(_LEFT)
