"""How processes ended: the exit code that stands for all, and what is printed of the others."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from tacit.errors import PeerError

__all__ = ["ERROR", "INTERRUPTED", "Ended", "exit_code", "explanation"]

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
