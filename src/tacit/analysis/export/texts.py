"""Columns of text in an ONNX graph, read as a schema reads them: by standard operators alone.

Operators know no dictionary that takes a text with space around it, or `3.0` for `3`. Regular
expressions do: each text of a schema is told by those that match it, one expression for each binary
digit of its number.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tacit.analysis.export.scorer import MISSING, REFUSED
from tacit.data.tables.fields import canonical
from tacit.data.tables.kinds import FALSE, TRUE, BooleanColumn, CategoryColumn, Column
from tacit.errors import optional

_SPACE = r"[\s\x0b\x1c-\x1f\x{85}\p{Z}]*"  # what `str.strip` takes, as RE2 writes it
_TEXTS_AT_ONCE = 500  # in one expression, so that it stays within RE2's memory
_CENTURIES = "(?:0[48]|[2468][048]|[13579][26])"  # that are leap years, as years of any other are
_DATE = (
    r"(?:(?:000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))"
    rf"|(?:\d\d{_CENTURIES}|{_CENTURIES}00)-02-29)"
)
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d+)?)?"


class Texts:
    """Nodes of a graph that read columns of text, and their constants, by names with a prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: ArrayLike) -> str:
        """The name of a constant, int64 or of texts."""
        name = f"{self.prefix}constant_{len(self.constants)}"
        self.constants.append(optional("onnx").numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """The name of what a new node gives first."""
        made = optional("onnx").helper.make_node
        names = [f"{self.prefix}{what}_{len(self.nodes)}" for what in (operator, "count")]
        outputs = names if operator == "StringSplit" else names[:1]
        self.nodes.append(made(operator, list(inputs), outputs, **attributes))
        return names[0]

    def read(self, name: str, kind: Column, words: tuple[str, ...]) -> str:
        """What a `Scorer` takes of a column, `[N]` or `[N, 6]`."""
        places: dict[str, int]
        match kind:
            case CategoryColumn():
                absent = len(kind.known) - 1 if kind.missing == "category" else REFUSED
                places = dict.fromkeys(words, absent)
                places |= {value: place for place, value in enumerate(kind.values)}
                other = len(kind.values) if kind.unknown == "other" else REFUSED
                return self._codes(name, places, other)
            case BooleanColumn():
                places = {
                    "".join(letters): truth
                    for truth, known in enumerate((FALSE, TRUE))
                    for word in known
                    for letters in itertools.product(*zip(word, word.upper(), strict=True))
                }
                return self._codes(name, places | dict.fromkeys(words, 2), REFUSED)
            case _:
                return self._date(name, words)

    def _codes(self, name: str, places: Mapping[str, int], other: int) -> str:
        """The place of every text, int64 `[N]`, or `other`."""
        codes = sorted({*places.values()})
        reachable = [text for text in places if canonical(text) == text]
        number = self._matches(name, r"[^\s\S]")  # none: of as many records as there are, 0
        for digit in range(len(codes).bit_length()):
            chosen = [t for t in reachable if (codes.index(places[t]) + 1) >> digit & 1]
            for start in range(0, len(chosen), _TEXTS_AT_ONCE):
                patterns = "|".join(map(_pattern, chosen[start : start + _TEXTS_AT_ONCE]))
                matches = self._matches(name, f"{_SPACE}(?:{patterns}){_SPACE}")
                value = self.node("Mul", matches, self.constant(np.int64(1 << digit)))
                number = self.node("Add", number, value)
        return self.node("Gather", self.constant(np.array([other, *codes], np.int64)), number)

    def _matches(self, name: str, pattern: str) -> str:
        return self.node("Cast", self.node("RegexFullMatch", name, pattern=pattern), to=_INT64)

    def _date(self, name: str, words: tuple[str, ...]) -> str:
        """Year, month, day, hour, minute and second, int64 `[N, 6]`."""
        whole = rf"\s*{_DATE}(?:[T ]{_TIME})?\s*"
        good = self.node("RegexFullMatch", name, pattern=whole)
        text = self.node("Where", good, name, self.constant(["0001-01-01"]))
        # With what is added, there is always as much as is taken of what it is split into.
        day, time = self._split(self._add(text, "T"), "T", 2)
        day, time = self._split(self._add(self._add(self._add(day, " "), time), " 00:00:00"), "", 2)
        found = [*self._split(day, "-", 3), *self._split(self._add(time, ":00"), ":", 3)]
        numbers = [self.node("Cast", part, to=_DOUBLE) for part in found]
        axis = self.constant(np.array([1], np.int64))
        columns = [self.node("Unsqueeze", part, axis) for part in numbers]
        parts = self.node("Cast", self.node("Concat", *columns, axis=1), to=_INT64)
        absent = self._codes(name, dict.fromkeys(words, MISSING), REFUSED)
        absent = self.node("Unsqueeze", absent, axis)
        is_absent = self.node("Equal", absent, self.constant(np.int64(MISSING)))
        kept = self.node("And", self.node("Unsqueeze", good, axis), self.node("Not", is_absent))
        return self.node("Where", kept, parts, absent)

    def _add(self, text: str, more: str) -> str:
        end = more if more.startswith(self.prefix) else self.constant([more])
        return self.node("StringConcat", text, end)

    def _split(self, text: str, at: str, count: int) -> list[str]:
        """The first so many parts of texts, `[N]` each; at "": between space."""
        attributes = {"delimiter": at} if at else {}
        parts = self.node("StringSplit", text, **attributes)
        places = [self.constant(np.int64(place)) for place in range(count)]
        return [self.node("Gather", parts, place, axis=1) for place in places]


_INT64, _DOUBLE = 7, 11  # of TensorProto.DataType


def _pattern(text: str) -> str:
    """What matches all texts that a column's field reads as this one."""
    if text in ("true", "false"):
        return "".join(f"[{letter}{letter.upper()}]" for letter in text)
    whole = re.fullmatch(r"-?\d+", text) is not None
    return re.escape(text) + (r"(?:\.0+)?" if whole else "")
