"""A model with its schema's encoding and decoding around it, in operations that are exported.

What becomes of a column of a table is said again here as operations on tensors: tests hold both
ways together. A record that the schema refuses, which no exception can tell of here, has no score:
its numbers are NaN, its class is -1.

In an ONNX graph columns are texts, read as a schema reads them: by standard operators alone. These
know no dictionary that takes a text with space around it, or `3.0` for `3`. Regular expressions do:
each text of a schema is told by those that match it, one expression for each binary digit of its
number.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from tacit.data import bounded_inputs
from tacit.data.tables.fields import canonical, number_marks
from tacit.data.tables.kinds import (
    FALSE,
    TRUE,
    BooleanColumn,
    CategoryColumn,
    Column,
    DateColumn,
    NumberColumn,
    NumberTarget,
)
from tacit.data.tables.schema import packed_rows
from tacit.errors import optional
from tacit.gradients.inputs import unpacking
from tacit.models.architectures import input_dtype
from tacit.models.probabilities import log_shares
from tacit.training.job import DTYPES
from tacit.training.run_folder.predictor import Predictor, are_finite

MISSING, REFUSED = 0, -1
"""The year of a missing date, and of one that is none."""

_FIRST, _LAST = [1, 1, 1, 0, 0, 0], [9999, 12, 31, 23, 59, 59]
_BEFORE_YEAR = 306  # days of a year that begins in March


class Scorer(nn.Module):
    """What a predictor says of raw columns, one tensor for each column that inputs are made of.

    | kind | tensor |
    |---|---|
    | `number` | float64 `[N]`, NaN where it is missing |
    | `category` | int64 `[N]`, the place among its `known` values; any other: refused |
    | `boolean` | int64 `[N]`: 0 false, 1 true, 2 missing; any other: refused |
    | `date` | int64 `[N, 6]`, year to second; year 0: missing, out of range: refused |

    Without a schema its one input is that of the model, `[N, ...]`. It gives a tensor `[N]` for
    each of `names`, which are those of `Predictor.decoded`: int64 for the place of a class.

    Args:
        shape: of a record, as a data set holds it.
    """

    def __init__(self, predictor: Predictor, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.predictor, self.module = predictor, predictor.module.eval()
        schema = self.schema = predictor.schema
        self.words = () if schema is None else schema.missing_words
        self.kinds: dict[str, Column] = {}
        if schema is not None:
            self.kinds = {name: schema.columns[name] for name in schema.sources}
        self.columns = tuple(self.kinds) or ("inputs",)
        rows, packed = torch.zeros(2, *shape), None
        if schema is not None:
            rows, packed = packed_rows(self.kinds, torch.zeros(2, len(schema.features)))
        self.unpack = None if packed is None else unpacking(self.module, packed)
        self.dtype = input_dtype(self.module, rows, DTYPES[predictor.config.train.dtype])
        self.examples = tuple(map(_example, self.kinds.values())) or (rows.to(self.dtype),)
        with torch.no_grad():
            said = predictor.decoded(self._outputs(rows))
        self.names, self.labels = tuple(said), predictor.labels
        if self.labels == ():
            self.labels = tuple(map(str, range(len(said) - 1)))

    def forward(self, *columns: Tensor) -> tuple[Tensor, ...]:
        """What is said of raw columns, as above."""
        rows = columns[0]
        if self.kinds:
            pairs = zip(self.kinds.values(), columns, strict=True)
            parts, good = zip(*(_encoded(*pair, self.words) for pair in pairs), strict=True)
            kept = torch.stack(good, 1).all(1)
            # What stands for a record without a score is one that any model takes.
            rows = torch.where(kept[:, None], torch.cat(parts, 1), _exact(0)).float()
            rows = packed_rows(self.kinds, rows)[0]
        else:
            kept = are_finite(rows)
        outputs = self._outputs(rows)
        kept = kept & are_finite(outputs)
        outputs = outputs.reshape(outputs.shape[0], math.prod(outputs.shape[1:])).double()
        if self.labels is not None:
            outputs = log_shares(outputs).exp()
            found = [outputs.argmax(1), *outputs.unbind(1)]
        else:
            target = None if self.schema is None else self.schema.target
            found = list(outputs.unbind(1))
            if isinstance(target, NumberTarget):
                found = [_unscaled(target, value) for value in found]
        none = {torch.int64: torch.tensor(REFUSED), torch.float64: _exact(math.nan)}
        return tuple(torch.where(kept, value, none[value.dtype]) for value in found)

    def _outputs(self, rows: Tensor) -> Tensor:
        """As `Predictor.outputs_of_rows`."""
        rows, bound = rows.to(self.dtype), self.predictor.bound
        rows = rows if bound is None else bounded_inputs(rows, bound)
        arguments, named = ((rows,), {}) if self.unpack is None else self.unpack(rows)
        outputs: Tensor = self.module(*arguments, **named)
        return outputs


def _example(kind: Column) -> Tensor:
    if isinstance(kind, NumberColumn):
        return torch.zeros(2, dtype=torch.float64)
    return torch.zeros((2, 6) if isinstance(kind, DateColumn) else 2, dtype=torch.int64)


def _unscaled(target: NumberTarget, outputs: Tensor) -> Tensor:
    """As `NumberTarget.unscaled`."""
    low, high, span = _exact(target.low), _exact(target.high), target.high - target.low
    shares = (torch.clamp(outputs, -1, 1) + 1) / 2
    if target.scale == "log":
        above = torch.expm1(shares * _exact(math.log1p(span)))
    else:
        above = shares * _exact(span)
    return torch.minimum(torch.maximum(low + above, low), high)


def _exact(value: float) -> Tensor:
    """A constant: of a number as such, the exporter makes one in float32."""
    return torch.tensor(value, dtype=torch.float64)


def _encoded(kind: Column, raw: Tensor, words: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """What a column becomes, float64 `[N, features]`, and which records `[N]` have such."""
    match kind:
        case NumberColumn():
            return _number(kind, raw, words)
        case CategoryColumn():
            good = (raw >= 0) & (raw < len(kind.known))
            if kind.embed:
                return raw[:, None].double(), good
            places = torch.arange(len(kind.known))
            return (raw[:, None] == places).double(), good
        case BooleanColumn():
            absent, values = raw == 2, (2 * raw - 1).double()
            good = (raw >= 0) & (raw <= 2)
            encoded = [torch.where(absent, _exact(0), values)]
        case _:
            assert isinstance(kind, DateColumn)
            when, first = raw.unbind(1), torch.tensor(_FIRST)
            absent = when[0] == MISSING
            good = absent | ((raw >= first) & (raw <= torch.tensor(_LAST))).all(1)
            encoded = [torch.where(absent, _exact(0), part) for part in _date_parts(kind, when)]
    if kind.missing == "refuse":
        return torch.stack(encoded, 1), good & ~absent
    return torch.stack([*encoded, absent.double()], 1), good


def _number(kind: NumberColumn, raw: Tensor, words: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    absent = raw.isnan()
    for mark in number_marks(words):
        absent = absent | (raw == _exact(mark))
    low, high = _exact(kind.low), _exact(kind.high)
    unit = torch.minimum(torch.maximum(raw, low), high) - low
    whole = kind.high - kind.low
    if kind.scale == "log":
        unit, whole = torch.log1p(unit), math.log1p(whole)
    unit = torch.clamp(2 * (unit / _exact(whole)) - 1, -1, 1)
    if kind.missing == "refuse":
        return unit[:, None], ~(raw.isinf() | absent)
    unit = torch.where(absent, _exact(kind.filled), unit)
    return torch.stack([unit, absent.double()], 1), ~raw.isinf()


def _date_parts(kind: DateColumn, when: tuple[Tensor, ...]) -> list[Tensor]:
    """The features of dates, of which any stand for those that are none."""
    year, month, day, hour, minute, second = when
    floored: Callable[[Tensor, int], Tensor] = lambda a, b: torch.div(a, b, rounding_mode="floor")  # noqa: E731
    before = floored(14 - month, 12)  # January and February end the year before
    year, late = torch.clamp(year, min=1) - before, month + 12 * before - 3
    ordinal = day + floored(153 * late + 2, 5) + 365 * year - _BEFORE_YEAR
    ordinal = ordinal + floored(year, 4) - floored(year, 100) + floored(year, 400)
    low, high = kind.low.toordinal(), kind.high.toordinal()
    shares = {
        "hour": (hour.double() + minute.double() / 60 + second.double() / 3600) / 24,
        "weekday": ((ordinal + 6) % 7).double() / 7,
        "month": (month - 1).double() / 12,
    }
    found: list[Tensor] = []
    for part in kind.parts:
        if part == "day":
            found.append(2 * ((torch.clamp(ordinal, low, high) - low).double() / (high - low)) - 1)
        else:
            angle = _exact(2 * math.pi) * shares[part]
            found += [torch.cos(angle), torch.sin(angle)]
    return found


# Columns of text.


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
