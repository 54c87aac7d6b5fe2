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

from tacit.data import bounded_inputs
from tacit.data.tables.fields import number_marks
from tacit.data.tables.kinds import (
    BooleanColumn,
    CategoryColumn,
    Column,
    DateColumn,
    NumberColumn,
    NumberTarget,
)
from tacit.data.tables.schema import packed_rows
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
