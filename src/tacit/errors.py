"""The errors a user of tacit may meet, each with the exit code the command line gives it.

A leaf: imports nothing, and every other module may import it.

| error | exit code | meaning |
|---|---|---|
| `InputError` | 2 | something the user gave is wrong: a key, a file, a model, a data set, no room |
| `BudgetError` | 3 | the privacy budget forbids it |
| `PeerError` | 4 | a peer or a process was lost |
| `DivergenceError` | 2 | training left the finite numbers: a setting is too large |

Anything else that escapes is a defect of ours, and exits with 1.
"""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterable

__all__ = [
    "BudgetError",
    "DivergenceError",
    "InputError",
    "PeerError",
    "TacitError",
    "describe",
    "nearest",
]


class TacitError(Exception):
    """Base of every error that tacit raises on purpose; its text is one plain line."""

    exit_code = 1


class InputError(TacitError, ValueError):
    """The user's input is wrong.

    Args:
        where: the key, argument or file at fault, as the user wrote it (`train.steps`).
        value: the value it had.
        expected: what would be right, in plain words.
    """

    exit_code = 2

    def __init__(self, where: str, value: object, expected: str) -> None:
        self.where = where
        self.value = value
        self.expected = expected
        shown = repr(value)
        if len(shown) > 120:
            shown = shown[:117] + "..."
        super().__init__(f"{where} = {shown}: {expected}")


class BudgetError(TacitError):
    """The privacy budget of one or more nodes forbids what was asked."""

    exit_code = 3


class PeerError(TacitError):
    """A peer or a process was lost."""

    exit_code = 4


class DivergenceError(TacitError):
    """The model of a node is no longer finite."""

    exit_code = 2


def nearest(word: str, known: Iterable[str]) -> str:
    """Say which known word is meant, or list them all: the end of an error message.

    >>> nearest("epsilo", ["epsilon", "delta"])
    "did you mean 'epsilon'?"
    """
    options = sorted(known)
    close = difflib.get_close_matches(word, options, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    return "known are: " + ", ".join(options)


def describe(error: BaseException) -> str:
    """An exception's type and message on one line."""
    return textwrap.shorten(f"{type(error).__name__}: {error}", 300, placeholder=" ...")
