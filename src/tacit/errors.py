"""The errors a user of tacit may meet, each with the exit code the command line gives it.

A leaf: imports nothing, and every other module may import it.

| error | exit code | meaning |
|---|---|---|
| `InputError` | 2 | something the user gave is wrong: a key, a file, a model, a data set, no room |
| `BudgetError` | 3 | the privacy budget forbids it |
| `PeerError` | 4 | a peer or a process was lost |
| `DivergenceError` | 2 | training left the finite numbers: a setting is too large |
| `LeakError` | 1 | a defect: something private was about to leave its node |

Anything else that escapes is a defect of ours, and exits with 1. What is allowed, but guarantees
nothing, is a `NotPrivateWarning`.
"""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterable

__all__ = [
    "BudgetError",
    "DivergenceError",
    "InputError",
    "LeakError",
    "NotPrivateWarning",
    "PeerError",
    "PrivateRecordsWarning",
    "RecordsError",
    "TacitError",
    "describe",
    "nearest",
    "public_line",
]


class TacitError(Exception):
    """Base of every error that tacit raises on purpose; its text is one plain line.

    Attributes:
        public: whether the text may be told to other processes. It may where it speaks of public
            settings, budgets or peers alone; it must not where it may depend on private records.
    """

    exit_code = 1
    public = False

    def reported(self) -> str | None:
        """What other processes are told of it; None: nothing but its kind."""
        return str(self) if self.public else None


class InputError(TacitError, ValueError):
    """The user's input is wrong.

    What the user wrote is quoted without control characters, and cut in its middle where it is
    long: one line whatever it was.

    Args:
        where: the key, argument or file at fault, as the user wrote it (`train.steps`).
        value: the value it had.
        expected: what would be right, in plain words.
        public: whether other processes may be told; see `TacitError`.
    """

    exit_code = 2

    def __init__(self, where: str, value: object, expected: str, *, public: bool = False) -> None:
        self.public = public
        self.where = where
        self.value = value
        self.expected = expected
        super().__init__(f"{_line(where, 200)} = {_shown(value)}: {_line(expected, 1000)}")


class RecordsError(InputError):
    """Records of a node break a rule that is public: known here, and no more of them is told.

    Args:
        where: the node, key or file.
        found: what is wrong, for the node's own eyes: how many records break the rule, never
            which, nor what they hold.
        rule: in plain words.
    """

    def __init__(self, where: str, found: str, rule: str) -> None:
        super().__init__(where, found, rule)

    def reported(self) -> str:
        """The rule alone."""
        return f"its own records break a rule: {self.expected}"


class BudgetError(TacitError):
    """The privacy budget of one or more nodes forbids what was asked; that is public."""

    exit_code = 3
    public = True


class PeerError(TacitError):
    """A peer or a process was lost, or sent what cannot be; that is public."""

    exit_code = 4
    public = True


class GoneError(PeerError):
    """A site for which something waits has been left out of the run, which goes on without it."""


class LeftOutError(PeerError):
    """The others go on without this site, and take it back if it begins a new session."""


class MeetAnewError(PeerError):
    """The session is given up, of which this site has begun no step: all meet in a new one.

    Attributes:
        without: ranks for whom it could not begin, and who need not come.
    """

    def __init__(self, message: str, without: frozenset[int] = frozenset()) -> None:
        super().__init__(message)
        self.without = without


class DivergenceError(TacitError):
    """The model of a node is no longer finite."""

    exit_code = 2


class LeakError(TacitError):
    """A defect: an algorithm hands over what is neither public nor released."""


class NotPrivateWarning(UserWarning):
    """A run that guarantees nothing to anybody: it adds no noise, or none that counts."""


class PrivateRecordsWarning(UserWarning):
    """Records that were called public have the inputs of private ones; for the own screen alone."""


def _shown(value: object) -> str:
    try:
        return _line(repr(value), 120)
    except (ValueError, RecursionError):  # an integer of thousands of digits; nested too deeply
        return f"({type(value).__name__})"


def _line(text: str, most: int) -> str:
    """A text of so many characters at most, all of which can be printed."""
    if len(text) > most:
        text = f"{text[: most // 2 - 3]} ... {text[len(text) - most // 2 + 2 :]}"
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def nearest(word: str, known: Iterable[str]) -> str:
    """Say which known word is meant, or list them all: the end of an error message.

    >>> nearest("epsilo", ["epsilon", "delta"])
    "did you mean 'epsilon'?"
    """
    options = sorted(known)
    close = difflib.get_close_matches(word[:100], options, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    return "known are: " + ", ".join(options)


def describe(error: BaseException) -> str:
    """An exception's type and message on one line."""
    return textwrap.shorten(f"{type(error).__name__}: {error}", 300, placeholder=" ...")


_OF_FILES = ("out", "checkpoint", "ledger", "session", "RUN")  # errors that speak of files alone


def public_line(error: BaseException) -> str | None:
    """What a status or a log may say of an error beyond its kind; None: nothing.

    Its text where that is public, or is about a file of a run that cannot be read or written. Any
    other may quote a record.
    """
    if isinstance(error, InputError) and error.where in _OF_FILES:
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'a file'}: {error.strerror}"
    return error.reported() if isinstance(error, TacitError) else None
