"""The fields of a table as text, and maps of one field at a time.

However a table came (a CSV file, a Parquet file, a frame of pandas or polars), a field is the same
text, or None where nothing stands: a whole number that became floating because another record lacks
it is still a whole number. What a field becomes so never depends on other records.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tacit.errors import RecordsError

Table = Mapping[str, Sequence[str | None]]
"""Columns by name, all of one length."""

_Read = TypeVar("_Read")
_WHOLE = re.compile(r"(-?\d+)\.0+")
NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
"""What a number is in any text that is read: no underscores, no infinity, no digits but ASCII's."""

_NUMBER = re.compile(NUMBER)
_MOST_EXACT = 2**53  # above, floating numbers skip whole ones


def rows(table: Table) -> int:
    """How many records a table holds."""
    return len(next(iter(table.values()), ()))


def canonical(text: str) -> str:
    """A text without space around it, with `3` for `3.0` and `true` for `True`."""
    stripped = text.strip()
    if stripped.lower() in ("true", "false"):
        return stripped.lower()
    whole = _WHOLE.fullmatch(stripped)
    return whole[1] if whole else stripped


def field_text(value: Any) -> str | None:
    """The text of a value of a frame, or of a schema; None for a number that is none (NaN)."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case float():
            if math.isnan(value):
                return None
            exact = value.is_integer() and abs(value) < _MOST_EXACT
            return str(int(value)) if exact else repr(value)
        case _ if hasattr(value, "isoformat"):
            return str(value.isoformat())
        case _:
            return canonical(str(value))


def read_number(text: str) -> float | None:
    """The finite number that a text is; None: it is none."""
    value = float(text) if _NUMBER.fullmatch(text) else math.inf
    return value if math.isfinite(value) else None


def read_each(
    texts: Sequence[str | None], read: Callable[[str | None], _Read | None], where: str, rule: str
) -> list[_Read]:
    """Every field as `read` reads it, each distinct text once.

    `read` gives None for what breaks the rule. An error names the column as `where`, and quotes the
    rule.

    Raises:
        RecordsError: saying how many records break the rule.
    """
    known = {text: read(text) for text in dict.fromkeys(texts)}
    values = [value for text in texts if (value := known[text]) is not None]
    wrong = len(texts) - len(values)
    if wrong:
        raise RecordsError(where, f"{wrong:,} of {len(texts):,} records", rule)
    return values
