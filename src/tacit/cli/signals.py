"""What signals do: Ctrl-C is one plain line and exit code 130, and a run stops cleanly if it can.

Python answers Ctrl-C with an exception wherever it is, and with a page of traceback where nobody
waits for that: while PyTorch is loaded, in a finaliser, or while an earlier one is being answered.
So the first one is an exception as usual, which unwinds what is half done, and the second one ends
the process at once: everything that is written is safe against that at any moment.

Nothing but the standard library is imported, so that it holds from the first moment on.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

EXIT_CODE = 130
INTERRUPTED = "interrupted before a clean stop was possible"
ANEW = "nothing was written: the same command begins anew"
_TERMINATED = (
    "ended by SIGTERM before a clean stop was possible: what was written is kept; tacit train goes "
    "on with --resume-if-there, any other command when it is given again"
)


def _plainly(line: str = INTERRUPTED, code: int = EXIT_CODE) -> str:
    return f"tacit: {line}\n"


last_words: Callable[..., str] = _plainly
"""What an interrupt says, or a line with its exit code; to be set where lines have another form."""


@contextmanager
def kept(what: str) -> Iterator[None]:
    """Within, an interrupt says as well what is kept of the work, and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(what) from None


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handle a signal: unwind now, and end at once if it comes again."""
    signal.signal(number, _end)
    raise KeyboardInterrupt


def interrupted() -> bool:
    """Whether an interrupt is being answered."""
    return signal.getsignal(signal.SIGINT) is _end


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, last_words().encode())
    os._exit(EXIT_CODE)


def _terminate(number: int, frame: FrameType | None) -> None:
    """Say one line, and end as the signal ends a process that does not handle it."""
    os.write(2, last_words(_TERMINATED, 128 + number).encode())
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


@contextmanager
def one_line() -> Iterator[None]:
    """Within, and until the process has ended, an interrupt says one line, and SIGTERM another.

    For the outermost function of a process: the handlers stay as they are when it is left.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored by the shell
        signal.signal(signal.SIGINT, interrupt)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    usual = sys.unraisablehook

    def quiet(problem: Any) -> None:
        """A finaliser that was interrupted says nothing: the next interrupt ends the process."""
        if problem.exc_type is not KeyboardInterrupt:
            usual(problem)

    sys.unraisablehook = quiet
    try:
        yield
    except KeyboardInterrupt:
        sys.stderr.write(last_words())
        sys.exit(EXIT_CODE)
    finally:
        # What is left is to end, which an interrupt would only fill with tracebacks.
        if signal.getsignal(signal.SIGINT) in (interrupt, _end):
            signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def handled(handler: Callable[[int, FrameType | None], None], *numbers: int) -> Iterator[None]:
    """Within, this handles the signals of these numbers."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)


@contextmanager
def stop_signals(
    *,
    hidden: bool = False,
    leaves: bool = False,
    say: Callable[[str], bool] = lambda line: False,
) -> Iterator[Callable[[], bool]]:
    """Within, the first SIGINT, SIGTERM or SIGHUP asks for a clean stop; a second one interrupts.

    So does SIGHUP, of a terminal that is closed, unless it is ignored (`nohup`); a second one says
    nothing new, since system and shell may each send one.

    Args:
        hidden: nothing is said of it on standard error.
        leaves: whether SIGTERM ends this process at once, as the system sends it before it goes
            down: the others wait, and this one comes back to where it was.
        say: logs the line, if it does; see `tacit.cli.logs.say`.

    Yields what tells whether a stop was asked for.
    """
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        if number == signal.SIGHUP:
            _leave_closed_terminal()
        else:
            signal.signal(number, interrupt)
        stopping = "stopping after this step; once more to interrupt at once"
        if not say(stopping) and not hidden:
            sys.stderr.write(f"\n{stopping}\n")

    received = [signal.SIGINT] if leaves else [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        received.append(signal.SIGHUP)
    try:
        with handled(ask, *received):
            yield lambda: asked
    finally:
        _leave_closed_terminal()  # where SIGHUP is ignored, nothing else has told


def _leave_closed_terminal() -> None:
    """Standard output and error go nowhere from now on, if they went to a terminal that is gone."""
    for descriptor in (1, 2):
        try:
            termios.tcgetattr(descriptor)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
