"""Ctrl-C on the command line: one plain line and exit code 130, whenever it is pressed.

Python answers it with an exception wherever it is, and with a page of traceback where nobody waits
for that: while PyTorch is loaded, in a finaliser, or while an earlier one is being answered. So the
first one is an exception as usual, which unwinds what is half done, and the second one ends the
process at once: everything that is written is safe against that at any moment.

Nothing but the standard library is imported, so that it holds from the first moment on.
"""

from __future__ import annotations

import os
import signal
import sys
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
