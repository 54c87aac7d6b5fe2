"""Several processes on one machine: starts them, hosts their store, and ends them whatever happens.

The store, through which the processes find each other, is hosted here and bound to the loopback
address alone: the death of rank 0 does not take it along. Where this process is killed itself the
store goes with it, by which the others know that they have been left; on Linux they are told by a
signal as well.

`exit_code` finds the one that stands for how all ended, and `explanation` what is printed of them.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import FrameType

from tacit.errors import InputError, PeerError

__all__ = [
    "COMMAND",
    "ERROR",
    "INTERRUPTED",
    "Ended",
    "exit_code",
    "explanation",
    "launch",
    "worker_environment",
]

ERROR = "tacit: "  # how the command line begins the line of an error
INTERRUPTED = 130

# Which exit code stands for all: a cause before what follows from it. A process that refuses its
# input, fails or is interrupted is a lost peer to the others.
_BY_PRIORITY = (2, 3, 1, INTERRUPTED, PeerError.exit_code, 0)


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Args:
        rank: its rank.
        code: its exit code; minus the signal's number where a signal ended it.
        ours: whether that signal was sent by the launcher.
        output: the last 64 KiB of its standard error; empty of rank 0, whose goes to the terminal.
    """

    rank: int
    code: int
    ours: bool = False
    output: str = ""


def exit_code(codes: Sequence[int]) -> int:
    """The exit code of the whole: 0 if every process's is; otherwise the cause, not what followed.

    In this order: wrong input (2), budget (3), a defect (1 and any unknown code), interrupted
    (130), a lost process (4, and any that a signal ended).

    >>> exit_code([4, 2, 4]), exit_code([4, -9, 4]), exit_code([4, 77]), exit_code([0, 0])
    (2, 4, 1, 0)
    """
    return min(map(_plain, codes), key=_BY_PRIORITY.index)


def _plain(code: int) -> int:
    if code < 0:
        return PeerError.exit_code
    return code if code in _BY_PRIORITY else 1


def explanation(ended: Sequence[Ended], code: int, *, traceback: bool = False) -> list[str]:
    """What is to be printed beside what rank 0 has printed itself, so that a cause stands once.

    Where rank 0 did not end with the exit code of the whole, the error of the first rank that did;
    of a rank that a signal ended, which one, unless an error has named the rank.

    Args:
        ended: every process, by rank.
        code: the exit code of the whole.
        traceback: whether all that a failed process wrote is wanted where it has no error line.
    """
    first = ended[0]
    told_by_first = first.code >= 0 and not first.ours and _plain(first.code) == code
    if told_by_first:
        return []
    if code == INTERRUPTED:
        return [f"{ERROR}interrupted before a clean stop was possible"]
    speaker = next((one for one in ended[1:] if one.code >= 0 and _plain(one.code) == code), None)
    lines = [] if speaker is None else [_last_words(speaker, traceback)]
    if code != PeerError.exit_code:
        return lines
    printed = " ".join(lines)
    lost = [one for one in ended if one.code < 0 and not one.ours]
    return lines + [
        f"{ERROR}the process of rank {one.rank} was ended by {_signal_name(-one.code)}"
        for one in lost
        if not re.search(rf"\brank {one.rank}\b", printed)
    ]


def _last_words(one: Ended, traceback: bool) -> str:
    """The error line of a process; without one, its exit code and what it wrote last."""
    lines = [line.strip() for line in one.output.splitlines() if line.strip()]
    error = next((line for line in reversed(lines) if line.startswith(ERROR)), None)
    if error is not None:
        return error
    text = f"{ERROR}rank {one.rank} ended with exit code {one.code}"
    if traceback:
        return f"{one.output.rstrip()}\n{text}"
    return ": ".join([text, *lines[-1:]])


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


COMMAND = ("-m", "tacit", "train")
LOOPBACK = "127.0.0.1"
_PASSED_ON = {
    signal.SIGINT: signal.SIGINT,
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGHUP: signal.SIGTERM,  # the terminal was closed: training ends cleanly
}
_LOOK = 0.05  # seconds between two looks at the processes
_DEAD = 10.0  # seconds that a killed process may take to be gone
_KEPT = 64 * 1024  # bytes of a process's standard error

# Run before a process becomes what it is to be: on Linux it then gets SIGTERM when the launcher
# dies, even before it has a connection to the store. Not a preexec_fn, which may deadlock in a
# process with threads, such as those of torch.
_TIED = """
import os, signal, sys
try:
    import ctypes
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
except (ImportError, OSError, AttributeError):
    pass
if os.getppid() == int(sys.argv[1]):  # else it died before it was asked for
    os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass
class _RankProcess:
    """A process that was started, the signals that it was sent, and the end of what it wrote."""

    rank: int
    process: subprocess.Popen[bytes]
    sent: set[int] = field(default_factory=set)
    output: bytearray = field(default_factory=bytearray)


def launch(
    arguments: Sequence[str],
    processes: int,
    *,
    out: Path | None = None,
    restarts: int = 0,
    patience: float = 75.0,
    grace: float = 5.0,
    environment: Mapping[str, str] | None = None,
    command: Sequence[str] = COMMAND,
    say: Callable[[str], None] | None = None,
) -> int:
    """Train in so many processes on this machine, and wait for all of them.

    Rank 0 writes to this process's standard output and error. Each process is in a session of its
    own: of SIGINT, SIGTERM and SIGHUP, the first that arrives here is passed on to all for a clean
    stop, and the second kills them; SIGTSTP is ignored, as the others would lose the store. When a
    process fails the others have `patience` to notice and end by themselves; then they are sent
    SIGTERM, and after `grace` SIGKILL. None is left when this returns or raises.

    Args:
        arguments: of `tacit train`, but for `--out`.
        processes: how many to start.
        out: the run folder, handed on as `--out`.
        restarts: how many times all are started again after the loss of a process, with `--resume`
            where the run folder exists by then.
        patience: seconds from the first failure until the others are ended.
        grace: seconds from SIGTERM to SIGKILL.
        environment: of the processes, by default this one's; see `worker_environment`.
        command: what Python is called with, before the arguments.
        say: is given what is to be said of how they ended. All processes then write to this one's
            standard error, in lines of their own. By default rank 0 alone does.

    Returns:
        The exit code of the whole; see `tacit.communication.cluster.launch.exit_code`.

    Raises:
        InputError: `processes` or `restarts` is out of range, `restarts` is given without `out`,
            or so many processes cannot be started.
    """
    if processes < 1:
        raise InputError("--processes", processes, "must be a whole number of 1 or more")
    if restarts < 0:
        raise InputError("--restarts", restarts, "must be a whole number of 0 or more")
    if restarts and out is None:
        raise InputError("--restarts", restarts, "name the run folder to continue with --out")
    base = os.environ if environment is None else environment
    run_id = secrets.token_hex(8)
    with _received_signals() as received:
        for restart in range(restarts + 1):
            line = [*command, *_folder(out, restart, arguments), *arguments]
            ended = _attempt(
                line,
                processes,
                base,
                (run_id, restart),
                (patience, grace),
                received,
                open_to_all=say is not None,
            )
            code = exit_code([one.code for one in ended])
            for text in explanation(ended, code, traceback="TACIT_TRACEBACK" in base):
                (say or _say)(text)
            if code != PeerError.exit_code or received:
                break
            if restart < restarts:
                (say or _say)(
                    f"{ERROR}starting all {processes} processes again "
                    f"(restart {restart + 1} of {restarts})"
                )
    return code


def worker_environment(
    base: Mapping[str, str], rank: int, processes: int, port: int, run_id: str, restart: int
) -> dict[str, str]:
    """The environment of a process, in the variables of torchrun.

    `OMP_NUM_THREADS` is the process's share of the cores that this one may use, unless it is set.

    Args:
        base: the environment to add to.
        rank: of the process, from 0.
        processes: how many there are.
        port: of the store, on the loopback address.
        run_id: what sets this launch apart from others.
        restart: how many times the processes were started before.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return {
        "OMP_NUM_THREADS": str(max(1, cores // processes)),
        **base,
        "RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": str(restart),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _folder(out: Path | None, restart: int, arguments: Sequence[str]) -> list[str]:
    """`--out`, and `--resume` for those that were started again once there is a run folder."""
    if out is None:
        return []
    again = restart > 0 and os.path.lexists(out) and "--resume" not in arguments
    return ["--out", str(out), *(["--resume"] if again else [])]


@contextmanager
def _received_signals() -> Iterator[list[int]]:
    """Within, signals that ask for a stop are listed and do nothing else; SIGTSTP does nothing."""
    received: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        received.append(number)

    def ignore(number: int, frame: FrameType | None) -> None:
        """Not SIG_IGN, which the processes would inherit."""

    handlers = {**dict.fromkeys(_PASSED_ON, hear), signal.SIGTSTP: ignore}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # started by nohup
        del handlers[signal.SIGHUP]
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _attempt(
    line: Sequence[str],
    processes: int,
    base: Mapping[str, str],
    which: tuple[str, int],
    limits: tuple[float, float],
    received: Sequence[int],
    *,
    open_to_all: bool = False,
) -> list[Ended]:
    """Start all processes, host a store for them, and wait until they have ended.

    Args:
        line: what Python is called with.
        processes: how many to start.
        base: their environment.
        which: identity of the launch, and how many attempts went before.
        limits: patience and grace, in seconds.
        received: the signals that this process has got, kept up to date by their handler.
        open_to_all: whether all write to this process's standard error.
    """
    workers: list[_RankProcess] = []
    with (
        socket.create_server((LOOPBACK, 0), backlog=max(128, processes)) as listening,
        closing(selectors.DefaultSelector()) as selector,
    ):
        port = listening.getsockname()[1]
        try:
            for rank in range(processes):
                environment = worker_environment(base, rank, processes, port, *which)
                workers.append(_start(line, environment, selector, open_to_all))
            # The slow import comes while the processes start; until then they wait for an answer.
            with _hosted_store(listening):
                _wait(workers, selector, limits, received)
        finally:
            for worker in workers:
                _bury(worker)
    return [_ended(worker, asked=bool(received)) for worker in workers]


def _start(
    line: Sequence[str],
    environment: Mapping[str, str],
    selector: selectors.BaseSelector,
    open_to_all: bool,
) -> _RankProcess:
    rank = int(environment["RANK"])
    tied = [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid())]
    try:
        process = subprocess.Popen(
            [*(tied if sys.platform == "linux" else []), sys.executable, *line],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if rank else None,
            stderr=subprocess.PIPE if rank and not open_to_all else None,
            start_new_session=True,  # Ctrl-C is for the launcher, who passes it on
        )
    except OSError as error:
        expected = f"so many cannot be started here ({error.strerror})"
        raise InputError("--processes", int(environment["WORLD_SIZE"]), expected) from None
    worker = _RankProcess(rank, process)
    if process.stderr is not None:
        selector.register(process.stderr, selectors.EVENT_READ, worker)
    return worker


@contextmanager
def _hosted_store(listening: socket.socket) -> Iterator[None]:
    """A store on a socket that is bound already, for as long as this is entered."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public all the same

    store = TCPStore(
        LOOPBACK,
        listening.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=60),
        master_listen_fd=os.dup(listening.fileno()),
    )
    try:
        yield
    finally:
        del store  # which closes it: it has no method for that


def _wait(
    workers: Sequence[_RankProcess],
    selector: selectors.BaseSelector,
    limits: tuple[float, float],
    received: Sequence[int],
) -> None:
    """Until all have ended. Limited from the first failure on; a healthy run takes what it takes.

    One that is still there long after SIGKILL hangs in the kernel, and is waited for no longer.
    """
    patience, grace = limits
    due, left = math.inf, [(signal.SIGTERM, grace), (signal.SIGKILL, _DEAD)]
    passed_on = False
    while running := [worker for worker in workers if worker.process.poll() is None]:
        _read(selector, _LOOK)
        now = time.monotonic()
        if received and not passed_on:
            passed_on = True
            _send(running, _PASSED_ON[signal.Signals(received[0])])
        if len(received) > 1 and left:
            due, left = now, left[-1:]
        if due == math.inf and any(worker.process.returncode for worker in workers):
            due = now + patience
        if now >= due:
            if not left:
                return
            number, more = left.pop(0)
            _send(running, number)
            due = now + more
    for _ in range(4):  # what still lies in the pipes, whoever else may hold their other ends
        _read(selector, 0.0)


def _read(selector: selectors.BaseSelector, seconds: float) -> None:
    """Take what the processes have written; wait for it at most so many seconds."""
    for key, _ in selector.select(seconds):
        worker: _RankProcess = key.data
        chunk = os.read(key.fd, _KEPT)
        if not chunk:
            selector.unregister(key.fileobj)
        worker.output += chunk
        del worker.output[:-_KEPT]


def _send(workers: Sequence[_RankProcess], number: int) -> None:
    for worker in workers:
        worker.sent.add(number)
        worker.process.send_signal(number)  # nothing is sent to one that has ended


def _bury(worker: _RankProcess) -> None:
    """End a process if it is still there, and let the system forget it."""
    if worker.process.poll() is None:
        _send([worker], signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        worker.process.wait(timeout=_DEAD)
    if worker.process.stderr is not None:
        worker.process.stderr.close()


def _ended(worker: _RankProcess, *, asked: bool) -> Ended:
    """How it ended; by a signal of ours after the user had asked to stop, that is interrupted."""
    code = worker.process.returncode
    if code is None:  # it hangs in the kernel
        code = -signal.SIGKILL
    ours = -code in worker.sent
    output = worker.output.decode("utf-8", errors="replace")
    return Ended(worker.rank, INTERRUPTED if ours and asked else code, ours, output)
