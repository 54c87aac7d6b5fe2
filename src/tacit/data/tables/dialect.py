"""How one site's own file writes a table: what is no business of the common schema.

A dialect is a TOML file beside the table (`patients.csv` has `patients.dialect.toml`), or is not
there. It changes how a file is read and never what a record becomes by the schema.

A first dialect is guessed for a person to check (`found_dialect`): of a private file only the first
lines are looked at. What a dialect says stays with its file.
"""

from __future__ import annotations

import csv
import datetime
import io
import itertools
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tomli_w
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from tacit.base.plain_files import read_toml
from tacit.data.files import UNREADABLE, content
from tacit.data.tables.fields import Notation, canonical, read_number
from tacit.errors import InputError, is_meant, plain_rule

ENDING = ".dialect.toml"
_WHERE = "dialect"
_MOST_BYTES = 1 << 20
_ENOUGH = 1000  # texts to tell a format by
_FORMATS = [
    day + time
    for time in ("", " %H:%M", " %H:%M:%S")
    for day in ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%Y/%m/%d", "%d.%m.%y", "%Y-%m-%d")
]
_LIMIT = re.compile(r"[<>]=?\s*(\d+(?:[.,]\d+)?)")  # below or above what can be measured
SENTINELS = (0, -1, *(sign * int("9" * digits) for digits in range(1, 6) for sign in (-1, 1)))
"""Numbers that often stand for a missing one."""

VARIED = 10
"""How many different values make a measurement."""


def _one_sign(value: str) -> str:
    if len(value) != 1 or value in '"\r\n' or not value.isascii():
        raise ValueError("must be one character, such as ';'")
    return value


def _known_encoding(value: str) -> str:
    try:
        io.TextIOWrapper(io.BytesIO(), value)
    except LookupError:
        raise ValueError("must be an encoding of text, such as 'latin-1'") from None
    return value


def _format(value: str) -> str:
    try:
        if "%" in value and datetime.datetime.strptime(_DAY.strftime(value), value):
            return value
    except ValueError:
        pass
    raise ValueError("must be a format of dates, such as '%d.%m.%Y'")


_DAY = datetime.datetime(2024, 5, 31)
_Word = Annotated[str, Field(min_length=1)]
Format = Annotated[str, AfterValidator(_format)]


class Dialect(BaseModel):
    """How one file is written.

    Columns are called by their names in the schema, but for `names`.

    Attributes:
        separator: between the fields of a line.
        encoding: of the text.
        skip_lines: how many lines stand before that of the names.
        header: the names of the columns, where no line has them.
        decimal: the sign before the fraction of a number.
        thousands: the sign between its thousands; empty: there is none.
        names: names of columns in the file, and what the schema calls them.
        missing: for each column, texts that stand for a missing field, beside the schema's words;
            those of `"*"` count in every column.
        dates: for each column, formats of dates as `strptime` takes them, tried in order.
        values: for each column, texts of the file and what the schema calls them.

    Raises:
        InputError: naming the key of the dialect, its value and what would be right.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    separator: Annotated[str, AfterValidator(_one_sign)] = ","
    encoding: Annotated[str, AfterValidator(_known_encoding)] = "utf-8"
    skip_lines: Annotated[int, Field(ge=0)] = 0
    header: Annotated[tuple[_Word, ...], Field(min_length=1)] | None = None
    decimal: Literal[".", ","] = "."
    thousands: Literal["", ".", ",", "'", " ", "\u00a0", "\u202f", "\u2019"] = ""
    names: dict[str, _Word] = Field(default_factory=dict)
    missing: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    dates: dict[str, tuple[Format, ...]] = Field(default_factory=dict)
    values: dict[str, dict[str, _Word]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _checked(self) -> Dialect:
        if self.decimal == self.thousands:
            raise ValueError("must have two signs as decimal and as thousands")
        return self

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            faults = error.errors(include_url=False)
            keys = [str(part) for part in faults[0]["loc"]]
            rule = plain_rule(faults)
            if faults[0]["type"] == "extra_forbidden":
                meant = is_meant(keys[-1], Dialect.model_fields)
                rule = "unknown key" + ("" if meant is None else f"; did you mean {meant!r}?")
            raise InputError(".".join([_WHERE, *keys]), faults[0]["input"], rule) from None

    @classmethod
    def beside(cls, table: Path) -> Dialect:
        """That of a table: of the file beside it, or the plain one.

        Raises:
            InputError: something in the file is wrong.
        """
        file = Path(beside(str(table), ENDING))
        return cls(**read_toml(file, _WHERE, "dialect")) if os.path.isfile(file) else cls()

    def notation(self, column: str) -> Notation:
        """How a column, by its name in the schema, writes what it holds."""
        words = (*self.missing.get("*", ()), *self.missing.get(column, ()))
        missing = frozenset(canonical(word, self.decimal) for word in words)
        dates, named = self.dates.get(column, ()), self.values.get(column, {})
        values = {canonical(old, self.decimal): canonical(new) for old, new in named.items()}
        return Notation(self.decimal, self.thousands, missing, dates, values)

    @property
    def named(self) -> set[str]:
        """The columns that it names, as the schema calls them."""
        return {*self.names.values(), *self.missing, *self.dates, *self.values} - {"*"}


def beside(path: str, ending: str) -> str:
    """The file of this ending beside a table, a file or a folder.

    >>> beside("data/patients.csv.gz", ".schema.toml")
    'data/patients.schema.toml'
    """
    file = Path(path)
    stem = file.name.removesuffix(".gz")
    return str(file.with_name(stem.removesuffix(Path(stem).suffix) + ending))


def found_dialect(path: Path, where: str, most: int) -> Dialect:
    """What a CSV file's first `most` lines show of separator, encoding, title lines and numbers.

    Raises:
        InputError: on `where`, if it cannot be read.
    """
    try:
        with content(path) as (stream, _):
            start = stream.read(_MOST_BYTES)
    except UNREADABLE as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise InputError(where, str(path), f"cannot be read as CSV ({reason})") from error
    text, encoding = "", "utf-8"
    for encoding in ("utf-8", "cp1252", "latin-1"):
        try:
            # The last sign may be cut in two.
            text = (start if len(start) < _MOST_BYTES else start[:-4]).decode(encoding)
            break
        except UnicodeDecodeError:
            continue
    lines = text.removeprefix("\ufeff").splitlines(keepends=True)[: most + 1]
    best: tuple[int, int, str, list[list[str]]] = (0, 0, ",", [])
    for separator in (",", ";", "\t", "|"):
        try:
            rows = list(csv.reader(lines, delimiter=separator))
        except csv.Error:
            continue
        widths = [len(row) for row in rows]
        skipped = next(
            (k for k, width in enumerate(widths) if width and {*widths[k:]} <= {0, width}), 0
        )
        width = widths[-1] if len(rows) - skipped > 1 else max(widths, default=0)
        if width > best[0]:
            best = (width, skipped, separator, rows[skipped:])
    _, skipped, separator, rows = best
    fields = [field.strip() for row in rows[1:] for field in row]
    comma = sum(bool(re.fullmatch(r"[+-]?\d{1,3}(\.\d{3})*,\d+", field)) for field in fields)
    point = sum(bool(re.fullmatch(r"[+-]?\d*\.\d+", field)) for field in fields)
    decimal = "," if comma > point else "."
    sign = "." if decimal == "," else ","
    grouped = rf"[+-]?\d{{1,3}}(\{sign}\d{{3}})+(\{decimal}\d*)?"
    is_grouped = any(re.fullmatch(grouped, field) for field in fields)
    return Dialect(
        separator=separator,
        encoding=encoding,
        skip_lines=skipped,
        decimal=decimal,
        thousands=sign if is_grouped and (decimal == "," or separator != ",") else "",
    )


def missing_among(texts: Sequence[str], counts: Counter[str]) -> tuple[list[str], dict[str, str]]:
    """The texts among numbers that seem to stand for a missing one; and those below a limit.

    `texts` are those that are there, once each, and `counts` how often each is. Found are words for
    missing fields, and texts such as `<0.01` with the limit as it is written; both empty where they
    are no numbers.
    """
    numbers = {text: value for text in texts if (value := read_number(text)) is not None}
    odd = [text for text in texts if text not in numbers]
    limits = {text: found[1] for text in odd if (found := _LIMIT.fullmatch(text))}
    words = [text for text in odd if text not in limits]
    if (
        not numbers
        or len(words) > 2
        or sum(counts[text] for text in numbers) < 2 * sum(counts[text] for text in words)
    ):
        return [], {}
    seen = np.repeat([*numbers.values()], [counts[text] for text in numbers])
    marks = {mark for mark in SENTINELS if is_apart(seen, mark)}
    words += [text for text, value in numbers.items() if value in marks]
    return words, limits


def is_apart(numbers: NDArray[np.float64], mark: int) -> bool:
    """Whether some numbers are this mark, from which all others are far by their own spread."""
    if np.count_nonzero(numbers == mark) < (1 if abs(mark) > 9 else 2):
        return False
    others = numbers[~np.isin(numbers, [mark, *(one for one in SENTINELS if abs(one) > 1)])]
    if len(np.unique(others)) < VARIED:
        return False
    least, lower, upper, most = np.quantile(others, [0.01, 0.25, 0.75, 0.99])
    return bool(max(least - mark, mark - most) > upper - lower > 0)


def date_formats(texts: Sequence[str]) -> tuple[str, ...] | None:
    """The formats in which texts are dates, none for ISO 8601; None: no dates, or not plainly."""

    def read(text: str, form: str | None) -> bool:
        try:
            if form is None:
                datetime.datetime.fromisoformat(text)
            else:
                datetime.datetime.strptime(text, form)
        except ValueError:
            return False
        return True

    texts = texts[:_ENOUGH]
    if not texts or not all(any(sign.isdigit() for sign in text) for text in texts):
        return None
    if all(read(text, None) for text in texts):
        return ()
    for count in (1, 2):
        fits = [
            forms
            for forms in itertools.combinations(_FORMATS, count)
            if all(any(read(text, form) for form in forms) for text in texts)
        ]
        if fits:
            return fits[0] if len(fits) == 1 else None
    return None


def dialect_text(dialect: Dialect, table: str, source: str) -> str:
    """A dialect as a TOML file that says what a person has to do."""
    plain = dialect.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    return (
        f"# How {table} is written; it belongs to this file alone, and no other site needs it.\n"
        f"# Proposed from {source}.\n"
        "# Check it: a wrong decimal sign makes other numbers, and what is listed as missing\n"
        "# counts as missing. See it at work: tacit check.\n"
        f"{tomli_w.dumps(plain)}"
    )
