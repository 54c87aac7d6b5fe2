"""A model with its schema's encoding and decoding around it, in operations that are exported.

What becomes of a column of a table is said again here as operations on tensors: tests hold both
ways together. A record that the schema refuses, which no exception can tell of here, has no score:
its numbers are NaN, its class is -1.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tacit.data.tables import Schema
from tacit.data.tables.embedded import packed_rows
from tacit.data.tables.fields import number_marks
from tacit.data.tables.kinds import (
    BooleanColumn,
    CategoryColumn,
    Column,
    DateColumn,
    NumberColumn,
    NumberTarget,
)
from tacit.models.probabilities import log_shares

MISSING, REFUSED = 0, -1
"""The year of a missing date, and of one that is none."""

_BEFORE_YEAR = 306  # days of a year that begins in March


class Scorer(nn.Module):
    """Scores of raw columns, one tensor for each used column of a schema, in its order.

    | kind | tensor |
    |---|---|
    | `number` | float64 `[N]`, NaN where it is missing |
    | `category` | int64 `[N]`, the place among its `known` values; -1: refused |
    | `boolean` | int64 `[N]`: 0 false, 1 true, 2 missing, -1 refused |
    | `date` | int64 `[N, 6]`, year to second; year 0: missing, -1: refused |

    A class target gives int64 `[N]`, the classes, and float64 `[N, classes]`, their probabilities;
    a number float64 `[N]` in the target's unit.

    Args:
        module: from rows of a schema `[N, ...]` in `dtype` to outputs `[N, ...]`.
    """

    def __init__(self, schema: Schema, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.schema, self.module, self.dtype = schema, module, dtype
        self.used = {name: kind for name, kind in schema.columns.items() if kind.features(name)}

    def forward(self, *columns: Tensor) -> tuple[Tensor, ...]:
        words = self.schema.missing_words
        pairs = zip(self.used.values(), columns, strict=True)
        parts, good = zip(*(_encoded(kind, raw, words) for kind, raw in pairs), strict=True)
        kept = torch.stack(good, 1).all(1)
        # What stands for a record without a score is any that the model takes.
        rows = torch.where(kept[:, None], torch.cat(parts, 1), 0).float()
        outputs = self.module(packed_rows(self.used, rows)[0].to(self.dtype))
        if isinstance(self.schema.target, NumberTarget):
            values = _unscaled(self.schema.target, outputs.double().reshape(-1))
            return (torch.where(kept, values, _exact(math.nan)),)
        return classes(outputs, kept)

    @property
    def examples(self) -> tuple[Tensor, ...]:
        """Columns of two made-up records."""
        return tuple(
            torch.zeros(2, dtype=torch.float64)
            if isinstance(kind, NumberColumn)
            else torch.zeros((2, 6) if isinstance(kind, DateColumn) else 2, dtype=torch.int64)
            for kind in self.used.values()
        )


class Classifier(nn.Module):
    """The classes and probabilities, as in `Scorer`, of a model's inputs as they are."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        outputs = self.module(*inputs)
        return classes(outputs, torch.ones_like(outputs.reshape(outputs.shape[0], -1)[:, 0]) > 0)


def classes(outputs: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Class and probabilities of outputs `[N, ...]`, where `[N]` says that there are such."""
    shares = log_shares(outputs)
    found = torch.where(kept, shares.argmax(1), _exact(-1).long())
    return found, torch.where(kept[:, None], shares.exp(), _exact(math.nan))


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
            if kind.embed:
                return raw[:, None].double(), raw >= 0
            places = torch.arange(len(kind.known))
            return (raw[:, None] == places).double(), raw >= 0
        case BooleanColumn():
            absent, values = raw == 2, (2 * raw - 1).double()
            encoded = [torch.where(absent, _exact(0), values)]
        case _:
            assert isinstance(kind, DateColumn)
            absent, raw = raw[:, 0] == MISSING, raw.unbind(1)
            parts = [torch.where(absent, _exact(0), part) for part in _date_parts(kind, raw)]
            encoded, raw = parts, raw[0]
    if kind.missing == "refuse":
        return torch.stack(encoded, 1), (raw >= 0) & ~absent
    return torch.stack([*encoded, absent.double()], 1), raw >= 0


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
