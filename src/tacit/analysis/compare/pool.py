"""Makes runs, in this process or in several at once; none that fails takes another with it.

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
import tomllib
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

from tacit.config import load_config
from tacit.errors import BudgetError, DivergenceError, InputError, PeerError, TacitError, describe
from tacit.training import loop as run
from tacit.training.prepare import Job, prepare
from tacit.training.run_folder import checkpoint as checkpoints

OnStep = Callable[[int, float], None]
OnDone = Callable[[int, "Outcome"], None]
_PATIENCE = 0.2  # seconds between two looks at whether to stop
_EVERY = 0.5  # seconds between two reports of a process
_GONE = 5.0  # seconds in which a process has ended whose pipe has
_LEFT = 130  # exit code of a process that was asked to stop before its run began
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class RunRequest:
    """One run to be made: a resolved `experiment`, as TOML, in a folder, where it may `resume`.

    `instead` is a new folder, for a run that turns out not to be able to go on.
    """

    experiment: str
    folder: str
    resume: bool
    instead: str


@dataclass(frozen=True)
class Outcome:
    """How a run ended, and where it lies.

    `status` is as in `result.json`; `failed` where there is none, `cancelled` before it began.
    `message` says in one line why it did not end well, and `code` is the exit code of an error.
    """

    folder: str
    status: str
    message: str | None = None
    code: int = 0


def perform(
    request: RunRequest,
    on_step: Callable[[float], None] = lambda share: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Make one run in this process; errors become its outcome.

    After every step `on_step` hears the share of the steps that are completed, and `should_stop` is
    asked.
    """
    try:
        job = prepare(load_config(tomllib.loads(request.experiment)))
        if should_stop():
            return Outcome(request.folder, "cancelled")
        return _execute(job, request, on_step, should_stop)
    except DivergenceError as error:
        return Outcome(request.folder, "diverged", str(error), error.exit_code)
    except TacitError as error:
        return Outcome(request.folder, "failed", str(error), error.exit_code)
    except Exception as error:  # a defect, or what a user's own module raises
        if os.environ.get("TACIT_TRACEBACK"):
            raise
        return Outcome(request.folder, "failed", f"a defect of ours: {describe(error)}", 1)


def _execute(
    job: Job,
    request: RunRequest,
    on_step: Callable[[float], None],
    should_stop: Callable[[], bool],
) -> Outcome:
    def attempt(folder: str, resume: bool) -> Outcome:
        result = run.execute(
            job,
            out=Path(folder),
            resume=resume,
            on_step=lambda moment: on_step(moment.step / moment.steps),
            should_stop=should_stop,
        )
        return Outcome(folder, result.status, result.message)

    can_go_on = False
    if request.resume:  # where a checkpoint is whole, and all of them belong to this plan
        with suppress(InputError, OSError):
            can_go_on = bool(checkpoints.sound(Path(request.folder), job.digest)[0])
    if not can_go_on:
        return attempt(request.instead if request.resume else request.folder, False)
    outcome = attempt(request.folder, True)
    if outcome.status != "budget-exhausted":
        return outcome
    try:  # what was reserved before it was cut off shortened it: whole runs are compared
        return attempt(request.instead, False)
    except BudgetError:  # of the nodes' data, which have no more for a whole one
        return outcome


def run_all(
    requests: Sequence[RunRequest],
    *,
    jobs: int = 1,
    on_step: OnStep = lambda place, share: None,
    on_done: OnDone = lambda place, outcome: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Outcome]:
    """Make all runs, and give their outcomes in the same order.

    With `jobs` above 1 they run in so many processes. A program that gives it guards its main part
    by `if __name__ == "__main__"`: `multiprocessing` imports it in each process. `on_step` hears
    the place of a run, and the share of its steps that are completed, and `on_done` how it ended;
    `should_stop` is asked all the time: True stops the running ones cleanly, and starts no more.
    """
    if jobs > 1 and len(requests) > 1:
        return _run_in_processes(requests, min(jobs, len(requests)), on_step, on_done, should_stop)
    outcomes = []
    for place, request in enumerate(requests):
        outcome = Outcome(request.folder, "cancelled")
        if not should_stop():
            outcome = perform(request, partial(on_step, place), should_stop)
        on_done(place, outcome)
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


def _run_in_processes(
    requests: Sequence[RunRequest],
    jobs: int,
    on_step: OnStep,
    on_done: OnDone,
    should_stop: Callable[[], bool],
) -> list[Outcome]:
    outcomes: dict[int, Outcome] = {}
    waiting = deque(range(len(requests)))
    running: dict[_Worker, int] = {}
    idle: list[_Worker] = []
    threads = threads_a_process(jobs)
    stopping = False

    def end(place: int, outcome: Outcome) -> None:
        outcomes[place] = outcome
        on_done(place, outcome)

    try:
        while waiting or running:
            if not stopping and should_stop():
                stopping = True
                for worker in running:
                    worker.tell(None)
            while waiting and stopping:
                place = waiting.popleft()
                end(place, Outcome(requests[place].folder, "cancelled"))
            while waiting and len(running) < jobs:
                place = waiting.popleft()
                idle = [worker for worker in idle if worker.process.is_alive()]
                try:
                    worker = idle.pop() if idle else _start_worker(threads)
                except (OSError, ValueError) as error:
                    if running:  # the machine has room for no more
                        jobs = len(running)
                        waiting.appendleft(place)
                        break
                    message = f"its process could not be started ({describe(error)})"
                    end(place, _lost(requests[place], message))
                    continue
                running[worker] = place
                worker.tell(requests[place])
            wait([worker.link for worker in running], timeout=_PATIENCE)
            for worker, place in list(running.items()):
                share, outcome = None, None
                try:
                    while outcome is None and worker.link.poll():
                        share, outcome = worker.link.recv()
                except (EOFError, OSError):
                    reason = worker.lost()
                    outcome = _lost(requests[place], f"its process was lost ({reason})")
                    if stopping:
                        outcome = Outcome(requests[place].folder, "cancelled")
                if outcome is not None:
                    del running[worker]
                    end(place, outcome)
                    idle += [] if worker.link.closed else [worker]
                elif share is not None:
                    on_step(place, share)
    finally:
        for worker in (*running, *idle):
            worker.kill()
    return [outcomes[place] for place in range(len(requests))]


def _lost(request: RunRequest, message: str) -> Outcome:
    return Outcome(request.folder, "failed", message, PeerError.exit_code)


@dataclass(frozen=True, eq=False)
class _Worker:
    """A process for runs, and the parent's end of the pipe to it."""

    process: BaseProcess
    link: Connection[Any, Any]

    def tell(self, request: RunRequest | None) -> None:
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


def _start_worker(threads: int) -> _Worker:
    context = get_context("spawn")
    link, other_end = context.Pipe()
    process = context.Process(target=_serve, args=(other_end,))
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


def _serve(link: Connection[Any, Any]) -> None:
    """What a process of the pool does: one run after the other, until the parent is gone."""
    for number in _SIGNALS:  # they are for the parent; those that are pending are forgotten
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    os.dup2(2, 1)  # what a user's module prints does not mix with what the parent prints
    requests: SimpleQueue[RunRequest] = SimpleQueue()
    stopping, idle = threading.Event(), threading.Event()
    preparing = threading.Event()  # a run that has sent and reserved nothing as yet
    idle.set()

    def listen() -> None:
        with suppress(EOFError, OSError):
            while (request := link.recv()) is not None:  # until it says to stop, or is gone
                requests.put(request)
        stopping.set()
        if preparing.is_set():  # which may take minutes
            os._exit(_LEFT)
        with suppress(EOFError, OSError):
            link.recv()  # until the parent is gone
        idle.wait()
        os._exit(_LEFT)

    def should_stop() -> bool:  # first asked when all is prepared
        preparing.clear()
        return stopping.is_set()

    def send(share: float | None, outcome: Outcome | None = None) -> None:
        with suppress(OSError):  # the parent is gone: the run is stopped cleanly all the same
            link.send((share, outcome))

    threading.Thread(target=listen, daemon=True).start()
    while True:
        request = requests.get()
        idle.clear()
        preparing.set()
        outcome = Outcome(request.folder, "cancelled")
        if not stopping.is_set():
            outcome = perform(request, _now_and_then(send), should_stop)
        preparing.clear()
        idle.set()
        send(None, outcome)


def _now_and_then(send: Callable[[float], None]) -> Callable[[float], None]:
    """Lets at most one report through in `_EVERY` seconds: many quick steps do not drown anyone."""
    last = -_EVERY

    def show(share: float) -> None:
        nonlocal last
        if time.monotonic() >= last + _EVERY:
            last = time.monotonic()
            send(share)

    return show
