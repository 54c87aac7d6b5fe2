"""The columns of a table, and maps of one field at a time.

However a table came (a CSV file, a Parquet file, a frame of pandas or polars), a field is the same
text, or None where nothing stands: a whole number that became floating because another record lacks
it is still a whole number. What a field becomes so never depends on other records. Work is done by
columns: numbers are parsed by Arrow, and of anything else each distinct text is read once.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.errors import RecordsError

_EXPONENT = r"(?:[eE][+-]?[0-9]+)?"
NUMBER = rf"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+){_EXPONENT}"
"""What a number is in any text that is read: no underscores, no infinity, no digits but ASCII's."""

_NUMBER = re.compile(NUMBER)
_MOST_EXACT = 2**53  # above, floating numbers skip whole ones


def canonical(text: str, decimal: str = ".") -> str:
    """A text without space around it, with `3` for `3.0` and `true` for `True`."""
    stripped = text.strip()
    if stripped.lower() in ("true", "false"):
        return stripped.lower()
    if decimal not in stripped:
        return stripped
    whole = re.fullmatch(rf"(-?\d+)[{decimal}]0+", stripped)
    return whole[1] if whole else stripped


def field_text(value: Any, decimal: str = ".") -> str | None:
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
        case Decimal():  # not as 0E-7
            return canonical(f"{value:f}")
        case _ if hasattr(value, "isoformat"):
            return str(value.isoformat())
        case _:
            return canonical(str(value), decimal)


def read_number(text: str) -> float | None:
    """The finite number that a text is; None: it is none."""
    value = float(text) if _NUMBER.fullmatch(text) else math.inf
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class Notation:
    """How one column of one file writes what it holds.

    `decimal` is the sign before the fraction of a number, and `thousands` that between its
    thousands; empty: there is none. `missing` are texts that stand for a missing field, beside
    those of the schema. `dates` are formats of dates as `strptime` takes them, tried in order;
    empty: ISO 8601. `values` are texts of the file, and what the schema calls them.
    """

    decimal: str = "."
    thousands: str = ""
    missing: frozenset[str] = frozenset()
    dates: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)

    @property
    def number(self) -> str:
        """The pattern of a number, as `NUMBER` for those with a point."""
        if (self.decimal, self.thousands) == (".", ""):
            return NUMBER
        grouped = f"[0-9]{{1,3}}(?:[{self.thousands}][0-9]{{3}})+|" if self.thousands else ""
        sign = f"[{self.decimal}]"
        return rf"[+-]?(?:(?:{grouped}[0-9]+)(?:{sign}[0-9]*)?|{sign}[0-9]+){_EXPONENT}"

    def plain(self, text: str) -> str | None:
        """A number of this notation, with space around it, as `NUMBER` has it; None: it is none."""
        stripped = text.strip()
        if re.fullmatch(self.number, stripped) is None:
            return None
        ungrouped = stripped.replace(self.thousands, "") if self.thousands else stripped
        return ungrouped.replace(self.decimal, ".")


_PLAIN = Notation()


@dataclass(frozen=True)
class Column:
    """One column: an Arrow array of any type, in one piece or several, and how it is written."""

    values: Any
    notation: Notation = _PLAIN

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: NDArray[np.int64]) -> Column:
        """Some of its fields, in this order."""
        return Column(self.values.take(rows), self.notation)

    def texts(self) -> list[str | None]:
        """Every field as its text."""
        codes, texts = self.distinct()
        return [texts[code] for code in codes.tolist()]

    def distinct(self) -> tuple[NDArray[np.int64], list[str | None]]:
        """The distinct fields as texts, and for every field its place among them."""
        import pyarrow as pa

        values, kind = self.values, self.values.type
        if pa.types.is_timestamp(kind):  # nanoseconds are no Python time
            values = values.cast(pa.timestamp("us", kind.tz), safe=False)
        try:
            codes, found = _encoded(values)
        except pa.ArrowNotImplementedError:  # lists, and types that are seldom
            codes, found = _encoded(_of_texts(map(field_text, values.to_pylist())))
        return codes, [self._text(value) for value in found]

    def _text(self, value: Any) -> str | None:
        text = field_text(value, self.notation.decimal)
        if text is None or text in self.notation.missing:
            return None
        return self.notation.values.get(text, text)

    def each(
        self, read: Callable[[str | None], Any], dtype: type, where: str, rule: str
    ) -> NDArray[Any]:
        """Every field as `read` reads it, each distinct text once, `[records]`.

        `read` gives None for what breaks the rule. An error names the column as `where`, and
        quotes the rule.

        Raises:
            RecordsError: saying how many records break the rule, and which is the first.
        """
        codes, texts = self.distinct()
        found = [read(text) for text in texts]
        refuse(np.array([one is None for one in found], np.bool_)[codes], where, rule)
        return np.array(found, dtype)[codes]

    def numbers(self, words: Iterable[str], where: str, rule: str) -> NDArray[np.float64]:
        """Every field as the float64 nearest to it, NaN where it is missing, `[records]`.

        A number among the `words` for a missing field stands for that value, however it is written.

        Raises:
            RecordsError: fields are neither missing nor finite numbers; as in `each`.
        """
        import pyarrow as pa

        kind, absent = self.values.type, frozenset(words) | self.notation.missing
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        if is_number and not self.notation.values:
            cast = self.values.cast(pa.float64(), safe=False)
            values = cast.to_numpy(zero_copy_only=False)
            refuse(np.isinf(values), where, rule)
        else:
            texts = self.values
            if pa.types.is_decimal(kind):
                texts = texts.cast(pa.string())
            elif self.notation.values or not is_text(kind):
                texts = _of_texts(self.texts())
            values, wrong = _parsed(texts, absent, self.notation)
            refuse(wrong, where, rule)
        marks = number_marks(words) + number_marks(self.notation.missing, self.notation)
        return np.where(np.isin(values, marks), np.nan, values) if marks else values


Table = Mapping[str, Column]
"""Columns by name, all of one length."""

Texts = Mapping[str, Sequence[str | None]]
"""The texts of columns by name."""


def rows(table: Table) -> int:
    """How many records a table holds."""
    return len(next(iter(table.values()), ()))


def refuse(wrong: NDArray[np.bool_], where: str, rule: str) -> None:
    """Refuse records, `[records]`, that break a rule.

    Raises:
        RecordsError: on `where`, if there are any: how many, and which is the first.
    """
    count = int(wrong.sum())
    if count:
        found = f"{count:,} of {len(wrong):,} records (the first is row {wrong.argmax() + 1:,})"
        raise RecordsError(where, found, rule, wrong)


def as_column(values: Any) -> Column:
    """A column of a frame, of Arrow, or of any values in order."""
    import narwhals
    import pyarrow as pa

    if isinstance(values, Column):
        return values
    if not isinstance(values, pa.Array | pa.ChunkedArray | narwhals.Series):
        values = narwhals.from_native(values, series_only=True, pass_through=True)
    if isinstance(values, narwhals.Series):
        if values.dtype == narwhals.Object:  # its values may be of several types
            marks = zip(values.is_null().to_list(), values.to_list(), strict=True)
            values = [None if missing else value for missing, value in marks]
        else:
            values = values.to_arrow()
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf" and values.ndim == 1:
        values = pa.array(values)
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        listed = list(values)
        # No type is guessed of the records: a number would be written as others among them are.
        is_text = all(type(value) is str for value in listed if value is not None)
        values = pa.array(listed, pa.string()) if is_text else _of_texts(map(field_text, listed))
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    return Column(values.cast(pa.large_string()) if values.type == "string_view" else values)


def _encoded(values: Any) -> tuple[NDArray[np.int64], list[Any]]:
    """For every value its place among the distinct ones, and these, None last."""
    import pyarrow as pa

    encoded = values.dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.unify_dictionaries().combine_chunks()
    try:
        found = encoded.dictionary.to_pylist()
    except (OverflowError, ValueError):  # times that Python has none for
        found = encoded.dictionary.cast(pa.string()).to_pylist()
    codes = encoded.indices.cast(pa.int64()).fill_null(len(found))
    return codes.to_numpy(), [*found, *([None] if encoded.null_count else [])]


def number_marks(words: Iterable[str], notation: Notation = _PLAIN) -> list[float]:
    """The numbers among the words for a missing field."""
    marks = [_odd_number(word, frozenset(), notation) for word in words]
    return [mark for mark in marks if math.isfinite(mark)]


def _of_texts(texts: Iterable[str | None]) -> Any:
    import pyarrow as pa

    return pa.array(list(texts), pa.large_string())


def is_text(kind: Any) -> bool:
    """Whether a type of Arrow is one of texts."""
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _parsed(
    texts: Any, absent: frozenset[str], notation: Notation
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Texts as numbers, NaN where they are missing; and which are neither."""
    import pyarrow as pa
    from pyarrow import compute

    none = pa.scalar(None, texts.type)
    if notation.number == NUMBER:
        # First as they are, then without what is missing; Arrow takes "inf" and "nan" too, which
        # are no numbers of ours.
        words = pa.array(sorted(absent), texts.type)
        for marked in (False, True):
            with contextlib.suppress(pa.ArrowInvalid):
                known = (
                    compute.if_else(compute.is_in(texts, words), none, texts) if marked else texts
                )
                cast = compute.cast(known, pa.float64())
                values = cast.to_numpy(zero_copy_only=False)
                if np.isfinite(values).sum() + cast.null_count == len(texts):
                    return values, np.zeros(len(texts), np.bool_)
    good = compute.match_substring_regex(texts, f"^(?:{notation.number})$").fill_null(False)
    plain = compute.utf8_ltrim(compute.if_else(good, texts, none), "+")
    if notation.thousands:
        plain = compute.replace_substring(plain, notation.thousands, "")
    if notation.decimal != ".":
        plain = compute.replace_substring(plain, notation.decimal, ".")
    values = compute.cast(plain, pa.float64()).to_numpy(zero_copy_only=False).copy()
    odd = np.flatnonzero(~good.to_numpy(zero_copy_only=False))
    codes, found = _encoded(texts.take(odd))
    values[odd] = np.array([_odd_number(text, absent, notation) for text in found], float)[codes]
    return values, np.isinf(values)


def _odd_number(text: str | None, absent: frozenset[str], notation: Notation) -> float:
    """The number of a text with space around it, NaN if it is missing, or infinity if neither."""
    if text is None or canonical(text, notation.decimal) in absent:
        return math.nan
    plain = notation.plain(text)
    return math.inf if plain is None else float(plain)
