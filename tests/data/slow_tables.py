"""What a CSV file becomes by a schema, slowly: Python's reader, and one field after the other."""

import csv
import datetime
import io
import math
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tacit import Schema
from tacit.data.tables.kinds import BooleanColumn, CategoryColumn, DateColumn, NumberColumn
from tacit.data.tables.schema import Column

NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
TRUE, FALSE = ("true", "yes", "1", "t", "y"), ("false", "no", "0", "f", "n")
TRUTHS = dict.fromkeys(TRUE, 1.0) | dict.fromkeys(FALSE, -1.0)


class RefusedError(Exception):
    """The table, or one of its fields, is not what the schema takes."""


def fields_of(content: bytes, encoding: str = "utf-8-sig") -> dict[str, list[str]]:
    """The columns of a CSV file.

    Raises:
        RefusedError: it is none, or its lines are of several lengths.
    """
    try:
        lines = io.StringIO(content.decode(encoding), newline="")
        names, *rows = csv.reader(lines, strict=True)
    except (csv.Error, UnicodeError, ValueError) as error:
        raise RefusedError from error
    raise_if(not any(name.strip() for name in names))
    rows = [row for row in rows if row]
    raise_if(any(len(row) != len(names) for row in rows))
    return {name.strip(): [row[place] for row in rows] for place, name in enumerate(names)}


def raise_if(wrong: bool) -> None:
    if wrong:
        raise RefusedError


def text_of(field: str) -> str:
    """A field as a schema names it."""
    text = field.strip()
    text = text.lower() if text.lower() in ("true", "false") else text
    whole = re.fullmatch(r"(-?\d+)\.0+", text)
    return whole[1] if whole else text


def number_of(field: str) -> float:
    raise_if(NUMBER.fullmatch(field.strip()) is None)
    value = float(field.strip())
    raise_if(math.isinf(value))
    return value


def is_missing(field: str, words: Sequence[str]) -> bool:
    """Whether it is one of the words, or the number that one of them is."""
    if text_of(field) in words:
        return True
    marks = [float(word) for word in words if NUMBER.fullmatch(word)]
    return NUMBER.fullmatch(field.strip()) is not None and float(field.strip()) in marks


def unit(value: float, low: float, high: float, scale: str = "linear") -> float:
    """A number between bounds, within [-1, 1], by NumPy as what is tested."""
    inside = np.clip(np.float64(value), low, high)
    share = (inside - low) / (high - low)
    if scale == "log":
        share = np.log1p(inside - low) / math.log1p(high - low)
    return float(np.clip(2 * share - 1, -1.0, 1.0))


def numbers_of(kind: Column, field: str, words: Sequence[str]) -> list[float]:
    """What one field becomes."""
    match kind:
        case NumberColumn(low=low, high=high, scale=scale, missing=missing, fill=fill):
            absent = is_missing(field, words)
            raise_if(absent and missing == "refuse")
            value = (low + high) / 2 if fill is None else fill
            found = unit(value if absent else number_of(field), low, high, scale)
            return [found] if missing == "refuse" else [found, float(absent)]
        case BooleanColumn(missing=missing):
            absent = text_of(field) in words
            raise_if(absent and missing == "refuse")
            raise_if(not absent and text_of(field).lower() not in TRUTHS)
            found = 0.0 if absent else TRUTHS[text_of(field).lower()]
            return [found] if missing == "refuse" else [found, float(absent)]
        case CategoryColumn(values=values, unknown=unknown, missing=missing):
            text = text_of(field)
            absent = text in words and text not in values
            raise_if(absent and missing == "refuse")
            raise_if(not absent and text not in values and unknown == "refuse")
            name = "(missing)" if absent else text if text in values else "(other)"
            return [float(name == known) for known in kind.known]
        case DateColumn(low=first, high=last, missing=missing):
            absent = text_of(field) in words
            raise_if(absent and missing == "refuse")
            try:
                day = 0 if absent else datetime.datetime.fromisoformat(text_of(field)).toordinal()
            except ValueError as error:
                raise RefusedError from error
            found = 0.0 if absent else unit(day, first.toordinal(), last.toordinal())
            return [found] if missing == "refuse" else [found, float(absent)]
        case _:
            return []


def encoded(schema: Schema, content: bytes) -> NDArray[np.float32]:
    """Inputs `[records, features]` of a CSV file."""
    fields = fields_of(content)
    rows = len(next(iter(fields.values())))
    found = [
        [
            number
            for name, kind in schema.columns.items()
            for number in numbers_of(kind, fields[name][row], schema.missing_words)
        ]
        for row in range(rows)
    ]
    return np.array(found, np.float64).reshape(rows, len(schema.features)).astype(np.float32)
