"""How one site's own file writes a table: what is no business of the common schema.

A dialect is a TOML file beside the table (`patients.csv` has `patients.dialect.toml`), or is not
there. It changes how a file is read and never what a record becomes by the schema.
"""

from __future__ import annotations

import datetime
import io
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from tacit.base.plain_files import read_toml
from tacit.data.tables.fields import Notation, canonical
from tacit.errors import InputError, is_meant, plain_rule

ENDING = ".dialect.toml"
_WHERE = "dialect"


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
