"""Makes runs, in this process or in several at once; none of these takes another with it.

Each of several processes has a pipe. A process that is killed is seen by the end of it: its run
alone fails, and another takes its place. On the pipe it hears its runs, and reports how far each is
and how it ended; a word from the parent, or the end of the pipe because the parent is gone, however
it died, asks it to stop after the step that it is at, with a checkpoint.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tacit.config import Config
from tacit.errors import DivergenceError, PeerError, describe
from tacit.training.job import Job
from tacit.training.loop import execute

_PATIENCE = 0.2  # seconds between two looks at whether to stop
_EVERY = 0.5  # seconds between two reports of a process
_GONE = 5.0  # seconds in which a process has ended whose pipe has
_LEFT = 130  # exit code of a process that was asked to stop
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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


def run_in_processes(
    requests: Sequence[WantedRun], make: Make, jobs: int, monitor: Monitor
) -> list[Outcome]:
    """Make all runs, each in a folder of its own, in so many processes.

    `make` is a function of a module. A program that asks for processes guards its main part by `if
    __name__ == "__main__"`: `multiprocessing` imports it in each.
    """
    outcomes: dict[Path, Outcome] = {}
    waiting = deque(requests)
    running: dict[_Worker, WantedRun] = {}
    idle: list[_Worker] = []
    threads = threads_a_process(jobs)
    stopping = False

    def end(request: WantedRun, outcome: Outcome) -> None:
        outcomes[request.path] = outcome
        monitor.done(request, outcome)

    try:
        while waiting or running:
            if not stopping and monitor.should_stop():
                stopping = True
                for worker in running:
                    worker.tell(None)
            while waiting and stopping:
                request = waiting.popleft()
                end(request, Outcome(request.path, "cancelled"))
            while waiting and len(running) < jobs:
                request = waiting.popleft()
                idle = [worker for worker in idle if worker.process.is_alive()]
                try:
                    worker = idle.pop() if idle else _start_worker(make, threads)
                except (OSError, ValueError) as error:
                    if running:  # the machine has room for no more
                        jobs = len(running)
                        waiting.appendleft(request)
                        break
                    end(request, _lost(request, f"could not be started ({describe(error)})"))
                    continue
                running[worker] = request
                monitor.start(request)
                worker.tell(request)
            wait([worker.link for worker in running], timeout=_PATIENCE)
            for worker, request in list(running.items()):
                share, outcome = None, None
                try:
                    while outcome is None and worker.link.poll():
                        share, outcome = worker.link.recv()
                except (EOFError, OSError):
                    outcome = _lost(request, f"was lost ({worker.lost()})")
                    if stopping:
                        outcome = Outcome(request.path, "cancelled")
                if outcome is not None:
                    del running[worker]
                    end(request, outcome)
                    idle += [] if worker.link.closed else [worker]
                elif share is not None:
                    monitor.step(request, share)
    finally:
        for worker in (*running, *idle):
            worker.kill()
    return [outcomes[request.path] for request in requests]


def _lost(request: WantedRun, how: str) -> Outcome:
    return Outcome(request.path, "failed", f"its process {how}", PeerError.exit_code)


@dataclass(frozen=True, eq=False)
class _Worker:
    """A process for runs, and the parent's end of the pipe to it."""

    process: BaseProcess
    link: Connection[Any, Any]

    def tell(self, request: WantedRun | None) -> None:
        """Hand it a run, or ask it to stop cleanly; one that is lost says so by its pipe."""
        with suppress(OSError):
            self.link.send(request)

    def lost(self) -> str:
        """Why it is gone."""
        self.process.join(_GONE)
        self.kill()
        code = self.process.exitcode or 0
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.link.close()


def _start_worker(make: Make, threads: int) -> _Worker:
    context = get_context("spawn")
    link, other_end = context.Pipe()
    process = context.Process(target=_serve, args=(other_end, make))
    with _start_conditions(threads):
        process.start()
    other_end.close()  # so that its end is seen if the process dies
    return _Worker(process, link)


@contextmanager
def _start_conditions(threads: int) -> Iterator[None]:
    """What a process inherits that is started within: its threads, and no signals as yet.

    A Ctrl-C goes to every process of a terminal, but is meant for the parent, who then asks each to
    stop: until a process can ignore it, it is blocked there.
    """
    previous = os.environ.get("OMP_NUM_THREADS")
    signal_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    try:
        yield
    finally:
        os.environ.pop("OMP_NUM_THREADS")
        if previous is not None:
            os.environ["OMP_NUM_THREADS"] = previous
        signal.pthread_sigmask(signal.SIG_SETMASK, signal_mask)


def _serve(link: Connection[Any, Any], make: Make) -> None:
    """What a process of the pool does: one run after the other, until the parent is gone."""
    for number in _SIGNALS:  # they are for the parent; those that are pending are forgotten
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    os.dup2(2, 1)  # what a user's module prints does not mix with what the parent prints
    requests: SimpleQueue[WantedRun | None] = SimpleQueue()
    stopping = threading.Event()
    preparing = threading.Event()  # a run that has sent and reserved nothing as yet

    def listen() -> None:
        with suppress(EOFError, OSError):
            while (request := link.recv()) is not None:  # until it says to stop, or is gone
                requests.put(request)
        stopping.set()
        if preparing.is_set():  # which may take minutes
            os._exit(_LEFT)
        requests.put(None)

    def should_stop() -> bool:  # first asked when all is prepared
        preparing.clear()
        return stopping.is_set()

    def send(share: float | None, outcome: Outcome | None = None) -> None:
        with suppress(OSError):  # the parent is gone: the run is stopped cleanly all the same
            link.send((share, outcome))

    threading.Thread(target=listen, daemon=True).start()
    while (request := requests.get()) is not None:
        preparing.set()
        outcome = Outcome(request.path, "cancelled")
        if not stopping.is_set():
            outcome = make(request, partial(_attempt, _now_and_then(send), should_stop))
        preparing.clear()
        send(None, outcome)
    os._exit(_LEFT)  # whatever threads a user's module has begun


def _now_and_then(send: Callable[[float], None]) -> Callable[[float], None]:
    """Lets at most one report through in `_EVERY` seconds: many quick steps do not drown anyone."""
    last = -_EVERY

    def show(share: float) -> None:
        nonlocal last
        if time.monotonic() >= last + _EVERY:
            last = time.monotonic()
            send(share)

    return show
