"""Several processes on one machine: starts them, hosts their store, and ends them whatever happens.

The agent of torch.distributed.elastic, which torchrun is, is not used: its store listens on every
address of the machine, it starts all again whatever the error was, and after a signal it does not
tell how the processes ended.

The store, through which the processes find each other, is hosted here and bound to the loopback
address alone: the death of rank 0 does not take it along, and one started again finds what was
noted for it. Where this process is killed itself the store goes with it, by which the others know
that they have been left; on Linux they are told by a signal as well.

`exit_code` finds the one that stands for how all ended, and `explanation` what is printed of them.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from tacit.communication.cluster.store import host_store
from tacit.errors import InputError, PeerError

ERROR = "tacit: "  # how the command line begins the line of an error
INTERRUPTED = 130

# Which exit code stands for all: a cause before what follows from it. A process that refuses its
# input, fails or is interrupted is a lost peer to the others.
_BY_PRIORITY = (2, 3, 1, INTERRUPTED, PeerError.exit_code, 0)


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code, or minus the signal's number where a signal ended it.

    `ours` says whether that signal was sent by the launcher. `output` is the last 64 KiB of its
    standard error; empty of rank 0, whose goes to the terminal.
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

    Where rank 0 did not end with the exit code of the whole, `code`, the error of the first rank
    that did; else what the others have said of themselves alone, of which rank 0 may have been told
    the kind. Of a rank that a signal ended, which one, unless an error has named the rank.

    `ended` is every process, by rank. `traceback` says whether all that a failed process wrote is
    wanted where it has no error line.
    """
    first = ended[0]
    told_by_first = first.code >= 0 and not first.ours and _plain(first.code) == code
    if told_by_first:
        return _own_words(ended, code)
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


def _own_words(ended: Sequence[Ended], code: int) -> list[str]:
    """What other ranks than 0 said of themselves alone, and not all of them the same."""
    spoke = [one for one in ended[1:] if code in (2, 3) and one.code == code]
    said = {one.rank: _last_words(one, False).removeprefix(ERROR) for one in spoke}
    if len(said) == len(ended) - 1 > 1 == len(set(said.values())):
        return []
    return [
        f"{ERROR}rank {rank}: {line}"
        for rank, line in said.items()
        if not re.search(r"\branks? \d", line)
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
_DEAD = 10  # seconds that a killed process may take to be gone
_KEPT = 64 * 1024  # bytes of a process's standard error

# Run before a process becomes what it is to be: on Linux it then gets SIGTERM when the launcher
# dies, even before it has a connection to the store. It has no standard input.
_TIED = """
import os, signal, sys
try:
    import ctypes
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
except (ImportError, OSError, AttributeError):
    pass
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
if os.getppid() == int(sys.argv[1]):  # else it died before it was asked for
    os.execv(sys.argv[2], sys.argv[2:])
"""


def launch(
    arguments: Sequence[str],
    processes: int,
    *,
    out: Path | None = None,
    restarts: int = 0,
    patience: float = 75.0,
    grace: int = 5,
    command: Sequence[str] = COMMAND,
    say: Callable[[str], None] | None = None,
) -> int:
    """Train in so many processes on this machine; the exit code of the whole (`exit_code`).

    Rank 0 writes to this process's standard output and error. Each process is in a session of its
    own: of SIGINT, SIGTERM and SIGHUP, the first that arrives here is passed on to all for a clean
    stop, and the second kills them; SIGTSTP is ignored, as the others would lose the store. When a
    process fails the others have `patience` seconds to notice and end by themselves; then they are
    sent SIGTERM, and SIGKILL after `grace` seconds. None is left when this returns.

    Python is called with `command` and the `arguments` of `tacit train`, but for `--out`: that is
    the run folder `out`, in which all go on when they are started again, at most `restarts` times,
    after the loss of a process. `say` is given what is to be said of how they ended, and all
    processes then write to this one's standard error, in lines of their own; by default rank 0
    alone does.

    Raises:
        InputError: `processes` or `restarts` is out of range, `restarts` is given without `out`, or
            so many processes cannot be started; those that were are ended.
    """
    if processes < 1:
        raise InputError("--processes", processes, "must be a whole number of 1 or more")
    if restarts < 0:
        raise InputError("--restarts", restarts, "must be a whole number of 0 or more")
    if restarts and out is None:
        raise InputError("--restarts", restarts, "name the run folder to continue with --out")
    line = [*command, *([] if out is None else ["--out", str(out)]), *arguments]
    run_id = secrets.token_hex(8)
    store = host_store(LOOPBACK, 0, 60.0)  # as long as it is held here
    with _received_signals() as received:
        for restart in range(restarts + 1):
            environments = {
                rank: worker_environment(rank, processes, store.port, run_id, restart)
                for rank in range(processes)
            }
            ended = _attempt(
                line, environments, (patience, grace), received, open_to_all=say is not None
            )
            code = exit_code([one.code for one in ended])
            for text in explanation(ended, code, traceback="TACIT_TRACEBACK" in os.environ):
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
    rank: int, processes: int, port: int, run_id: str, restart: int
) -> dict[str, str]:
    """What a process finds in its environment beside this one's: the variables of torchrun.

    `OMP_NUM_THREADS` is the process's share of the cores that this one may use, unless it is set.

    The store is at `port` of the loopback address, `run_id` sets this launch apart from others, and
    the processes were started `restart` times before.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, cores // processes))),
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


@contextmanager
def _received_signals() -> Iterator[list[int]]:
    """Within, signals that ask for a stop are listed and do nothing else."""
    received: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        # Of a terminal that is closed, system and shell may each tell.
        if number != signal.SIGHUP or number not in received:
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
    environments: Mapping[int, dict[str, str]],
    limits: tuple[float, int],
    received: Sequence[int],
    *,
    open_to_all: bool,
) -> list[Ended]:
    """Start all processes, and wait until they have ended.

    Python is called with `line`; `limits` are patience and grace, in seconds, and `received` the
    signals that this process has got, kept up to date by their handler.
    """
    whole = ("-I", "-S", "-c", _TIED, str(os.getpid()), sys.executable, *line)
    workers: list[subprocess.Popen[bytes]] = []
    with ExitStack() as stack:
        stack.callback(_end, workers, signal.SIGKILL, _DEAD)
        outputs: list[BinaryIO | None] = [None] * len(environments)
        try:  # nothing is kept of rank 0, nor where all may write
            for rank in range(1, 1 if open_to_all else len(environments)):
                outputs[rank] = stack.enter_context(tempfile.TemporaryFile())
        except OSError as error:
            expected = f"must be a folder that can be written to ({error.strerror})"
            raise InputError("TMPDIR", os.environ.get("TMPDIR"), expected) from None
        try:
            for rank, environment in environments.items():
                worker = subprocess.Popen(
                    [sys.executable, *whole],
                    env={**os.environ, **environment},
                    stdout=subprocess.DEVNULL if rank else None,
                    stderr=outputs[rank],
                    start_new_session=True,
                )
                workers.append(worker)
        except OSError as error:
            expected = f"so many cannot be started here ({error.strerror})"
            raise InputError("--processes", len(environments), expected) from None
        before = _wait(workers, limits[0], received)
        if len(received) < 2:
            _end(workers, signal.SIGTERM, limits[1])
        _end(workers, signal.SIGKILL, _DEAD)
        return [
            _ended(rank, worker, was, received, output)
            for rank, (worker, was, output) in enumerate(zip(workers, before, outputs, strict=True))
        ]


def _end(workers: Sequence[subprocess.Popen[bytes]], number: int, seconds: float) -> None:
    """Send a signal to those that still run, and to what they have started, and wait for them."""
    running = [worker for worker in workers if worker.poll() is None]
    for worker in running:
        with suppress(ProcessLookupError):
            os.killpg(worker.pid, number)
    for worker in running:
        try:
            worker.wait(seconds)
        except subprocess.TimeoutExpired:
            seconds = 0.0  # those after it had as long


def _wait(
    workers: Sequence[subprocess.Popen[bytes]], patience: float, received: Sequence[int]
) -> list[int | None]:
    """Until all have ended, or are to be ended; of each the exit code, None where it still runs."""
    due, passed_on = math.inf, False
    while None in (codes := [worker.poll() for worker in workers]):
        if len(received) > 1 or time.monotonic() >= due:
            break
        if received and not passed_on:
            passed_on = True
            for worker in workers:
                worker.send_signal(_PASSED_ON[signal.Signals(received[0])])
        if due == math.inf and any(codes):
            due = time.monotonic() + patience
        time.sleep(_LOOK)
    return codes


def _ended(
    rank: int,
    worker: subprocess.Popen[bytes],
    before: int | None,
    received: Sequence[int],
    output: BinaryIO | None,
) -> Ended:
    """How it ended; by a signal of ours after the user had asked to stop, that is interrupted."""
    code = worker.poll()
    if code is None:  # it hangs in the kernel
        code = -signal.SIGKILL
    asked = {_PASSED_ON[signal.Signals(number)] for number in received[:1]}
    ours = code < 0 and (before is None or -code in asked)
    text = ""
    if output is not None:
        output.seek(max(0, output.seek(0, os.SEEK_END) - _KEPT))
        text = output.read().decode("utf-8", errors="replace")
    return Ended(rank, INTERRUPTED if ours and received else code, ours, text)
