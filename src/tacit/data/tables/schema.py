"""A schema: what is public of a table, and so how each of its records becomes numbers.

A schema is a TOML file, the same as a mapping, or a `Schema`. It declares the target, the column
that says whose record it is (if there is one), and for every other column its kind with public
bounds or values (`tacit.data.tables.kinds`). Whoever declares says with `confirmed_public = true`
that all of it is public; `tacit init` writes proposals, which are not confirmed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tomli_w
import torch
from numpy.typing import NDArray
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)
from torch import Tensor

from tacit.base.plain_files import read_toml
from tacit.data.datasets import Dataset
from tacit.data.files import find_file
from tacit.data.tables.dialect import beside
from tacit.data.tables.fields import Column as Fields
from tacit.data.tables.fields import Table, is_text, rows
from tacit.data.tables.kinds import (
    CategoryColumn,
    Column,
    IgnoredColumn,
    NodeColumn,
    NumberColumn,
    NumberTarget,
    Target,
    UnitColumn,
)
from tacit.data.tables.reading import as_columns, read_columns
from tacit.errors import (
    InputError,
    PrivateRecordsWarning,
    RecordsError,
    is_meant,
    nearest,
    plain_rule,
)
from tacit.gradients.inputs import InputPart, Packed
from tacit.models.architectures import NUMBERS

ENDING = ".schema.toml"
MISSING_WORDS = ("", "NA", "N/A", "NaN", "nan", "NULL", "null")
"""Fields that count as missing, unless the schema says otherwise."""

_WHERE = "task.schema"


def _complete(value: Any) -> Any:
    """Kinds that are left out are named, for a better error."""
    if isinstance(value, Mapping) and "kind" not in value:
        raise ValueError('must have a kind, such as kind = "number"')
    return value


class Schema(BaseModel):
    """What is declared of a table.

    Attributes:
        target: what is predicted: a class with `labels`, or a number with `low` and `high`.
        node: the column that says whose record it is, and its `values`, node 0 first.
        unit: the column that says which person a record is of; None: nobody said.
        columns: every other column by name; the inputs of a record have their order.
        confirmed_public: whether a person has confirmed that all that is declared is public.
        missing_words: fields that count as missing, where they are no declared value.

    Raises:
        InputError: naming the key of the schema, its value and what would be right.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    confirmed_public: bool = False
    missing_words: tuple[str, ...] = MISSING_WORDS
    target: Annotated[Target, BeforeValidator(_complete)]
    node: NodeColumn | None = None
    unit: UnitColumn | None = None
    columns: Annotated[
        dict[str, Annotated[Column, BeforeValidator(_complete)]], Field(min_length=1)
    ]

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _refusal(values, error) from None
        known: dict[str, str] = {}
        for name, role in (("target", self.target), ("node", self.node), ("unit", self.unit)):
            if role is None:
                continue
            column, kind = role.column, self.columns.get(role.column)
            # An id that is ignored becomes the unit by the lines of [unit] alone.
            if kind is not None and (name != "unit" or kind.features(column)):
                expected = f"is the {name}'s column: leave it out of the columns"
                raise InputError(f"schema.columns.{column}", column, expected)
            if column in known:
                expected = f"is the {known[column]}'s column"
                raise InputError(f"schema.{name}.column", column, expected)
            known[column] = name
        if NUMBERS in self.tables:
            expected = "is what all numbers of a record are called beside categories with embed"
            raise InputError(f"schema.columns.{NUMBERS}", "category", f"{expected}: rename it")
        if not self.features:
            raise InputError(
                "schema.columns", list(self.columns), "leave no input: all are ignored"
            )

    @classmethod
    def of(cls, value: object) -> Schema:
        """A schema, of the path of its file, of a mapping, or as it is.

        Raises:
            InputError: it is none of these, or something in it is wrong.
        """
        match value:
            case Schema():
                return value
            case Mapping():
                return cls(**{str(key): part for key, part in value.items()})
            case str() | Path():
                return cls(**read_toml(Path(os.path.expanduser(value)), _WHERE, "schema"))
            case _:
                expected = "must be the path of a schema file, a mapping, or a tacit.Schema"
                raise InputError("schema", type(value).__name__, expected)

    @property
    def features(self) -> list[str]:
        """What each number of a record's inputs is."""
        return [feature for name, kind in self.columns.items() for feature in kind.features(name)]

    @property
    def sources(self) -> list[str]:
        """The columns that inputs are made of."""
        return [name for name, kind in self.columns.items() if kind.features(name)]

    @property
    def norm_bound(self) -> float:
        """The l2 norm that no record's inputs exceed."""
        return math.sqrt(math.fsum(kind.norm for kind in self.columns.values()))

    @property
    def notes(self) -> tuple[str, ...]:
        """What people should know of the records that a model sees, each one line."""
        encoded = (
            f"table: {len(self.columns)} columns become {len(self.features)} inputs, each within "
            f"[-1, 1]; the l2 norm of a record's inputs is at most {self.norm_bound:.4g}"
        )
        return (encoded,) if self.target.note is None else (encoded, self.target.note)

    @property
    def unconfirmed(self) -> list[str]:
        """What is declared and has not been confirmed to be public, in words."""
        parts, default = [("target", self.target), ("node", self.node)], self.confirmed_public
        named = {f"[{name}] {part.column}": part for name, part in parts if part is not None}
        declared = {**named, **{f"[columns] {name}": kind for name, kind in self.columns.items()}}
        return [
            f"{name}: {part.facts}"
            for name, part in declared.items()
            if part.facts is not None
            and not (default if part.confirmed_public is None else part.confirmed_public)
        ]

    def check_confirmed(self, where: str) -> None:
        """Refuse what nobody has confirmed to be public.

        Raises:
            InputError: naming what has to be public.
        """
        facts = self.unconfirmed
        if facts:
            expected = (
                f"set it to true once you have checked that these are public: {'; '.join(facts)}. "
                "They must come from a data dictionary or from what everyone knows, and not from "
                "the private records: no epsilon covers bounds that were read off them"
            )
            raise InputError(f"{where}, confirmed_public", False, expected)

    @property
    def digest(self) -> str:
        """Identifies what becomes of a record."""
        plain = self.model_dump(mode="json", exclude={"confirmed_public"})
        parts = [str(plain[key]) for key in sorted(plain)]
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()

    @property
    def toml(self) -> str:
        """The file of it, which is read back as the same."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))

    @property
    def stated(self) -> dict[str, str]:
        """What it declares, a text for each column and each other part: what two of them share."""
        plain = self.model_dump(mode="json", exclude={"confirmed_public"}, exclude_none=True)
        columns = {f"column {name}": kind for name, kind in plain.pop("columns").items()}
        return {name: json.dumps(part, sort_keys=True) for name, part in (columns | plain).items()}

    def dataset(self, table: object, where: str = "table", node: int | None = None) -> Dataset:
        """Inputs and targets of a table: a map of each record alone.

        Args:
            table: a frame of pandas or polars, or what `read_table` gives.
            where: what an error names.
            node: whose records these are, which the node's column, if there is one, must say; None:
                those of any.

        Returns:
            Inputs float32 `[records, len(features)]` within [-1, 1]; targets int64 `[records]`,
            the classes, or float32 `[records]` within [-1, 1].

        Raises:
            InputError: a column is missing or not declared; or it is no table.
            RecordsError: records break what is declared; says how many.
        """
        columns = self.read(table, where)
        target = self.target.column
        if target not in columns:
            expected = f"has no column {target!r}, which is the target"
            raise InputError(where, list(columns), expected)
        if node is not None and self.node is not None and self.node.column in columns:
            self.node.check(columns[self.node.column], node, where)
        words = frozenset(self.missing_words)
        targets = self.target.encode(columns[target], words, f"column {target!r} of {where}")
        units = None
        if self.unit is not None and self.unit.column in columns:
            units = self.unit.ids(columns[self.unit.column], words, where)
        inputs, packed = packed_rows(self.columns, self._encoded(columns, where))
        return Dataset(inputs, torch.from_numpy(targets), units, packed)

    def inputs(self, table: object, where: str = "table") -> Any:
        """Inputs alone, as in `dataset`, of a table that needs no target: for predictions.

        Columns that are no inputs are passed over. A dictionary, where categories are embedded:
        `numbers`, and the codes of each by its name.

        Raises:
            InputError: a column is missing.
            RecordsError: as `dataset`.
        """
        columns = as_columns(table, where)
        known = {name: columns[name] for name in self.sources if name in columns}
        for error in self.unfit(known, where):
            raise error
        encoded = self._encoded(read_columns(known, self.sources, where), where)
        inputs, packed = packed_rows(self.columns, encoded)
        return inputs if packed is None else packed.unpacked(inputs)

    @property
    def tables(self) -> dict[str, tuple[int, int]]:
        """Values, and numbers that stand for one, of each category that is embedded."""
        return _tables(self.columns)

    def groups(self, table: object, where: str) -> dict[str, NDArray[np.str_]]:
        """The values of the columns by which records can be divided: node and categories."""
        columns, words = self.read(table, where), frozenset(self.missing_words)
        groups = {
            name: kind.named(columns[name], words, f"column {name!r} of {where}")
            for name, kind in self.columns.items()
            if isinstance(kind, CategoryColumn)
        }
        if self.node is not None and self.node.column in columns:
            codes = self.node.codes(columns[self.node.column], where)
            groups[self.node.column] = np.array(self.node.values, np.str_)[codes]
        return groups

    @property
    def group_values(self) -> dict[str, tuple[str, ...]]:
        """The declared values of the columns in `groups`, in order."""
        values = {
            name: kind.known
            for name, kind in self.columns.items()
            if isinstance(kind, CategoryColumn)
        }
        return values if self.node is None else {**values, self.node.column: self.node.values}

    def split(self, table: object, where: str = "nodes") -> list[Table]:
        """One table a node, of one with the node's column.

        Raises:
            InputError: no node's column is declared or there.
            RecordsError: records are of no declared node; says how many.
        """
        columns = self.read(table, where)
        if self.node is None or self.node.column not in columns:
            expected = (
                "is one table, and so needs the column of the node, declared as [node] in the "
                "schema; or pass a list with one table a node"
            )
            raise InputError(where, list(columns), expected)
        owners = self.node.codes(columns[self.node.column], where)
        parts = [np.flatnonzero(owners == node) for node in range(len(self.node.values))]
        return [{name: fields.take(part) for name, fields in columns.items()} for part in parts]

    def read(self, table: object, where: str) -> Table:
        """The columns of a table that are used, all of whose columns are declared.

        Records without a target are left out where the schema says so.
        """
        columns = as_columns(table, where)
        for error in self.unfit(columns, where):
            raise error
        used = [name for name in columns if name in self.sources or name in self._roles]
        read = read_columns(columns, used, where)
        target = self.target
        if target.missing == "refuse" or target.column not in read:
            return read
        words, at = frozenset(self.missing_words), f"column {target.column!r} of {where}"
        absent_rows = target.missing_in(read[target.column], words, at)
        if not absent_rows.any():
            return read
        dropped, kept = np.flatnonzero(absent_rows) + 1, np.flatnonzero(~absent_rows)
        which = ", ".join(map(str, dropped[:10].tolist())) + (", ..." if len(dropped) > 10 else "")
        warnings.warn(
            f"{len(dropped):,} of {len(absent_rows):,} records have no target in {at} and are left "
            f"out: rows {which}",
            PrivateRecordsWarning,
            stacklevel=2,
        )
        return {name: fields.take(kept) for name, fields in read.items()}

    @property
    def numbers(self) -> list[str]:
        """The columns of which nothing but numbers is made, and of missing fields NaN."""
        parts = {**self.columns, self.target.column: self.target}
        return [k for k, part in parts.items() if isinstance(part, NumberColumn | NumberTarget)]

    def narrowed(self, name: str, fields: Fields) -> Fields:
        """A column as small as what is used of it: numbers as such, and nothing of what is ignored.

        One that breaks a rule stays as it is: whoever reads it next says so.
        """
        import pyarrow

        if isinstance(self.columns.get(name), IgnoredColumn) and name not in self._roles:
            return Fields(pyarrow.nulls(len(fields)))
        if name in self.numbers and is_text(fields.values.type):
            with contextlib.suppress(RecordsError):
                return Fields(pyarrow.array(fields.numbers(self.missing_words, "", "")))
        return fields

    @property
    def _roles(self) -> list[str]:
        others = [role.column for role in (self.node, self.unit) if role is not None]
        return [self.target.column, *others]

    def unfit(self, columns: Mapping[str, object], where: str) -> Iterator[InputError]:
        """What is wrong with the names of a table's columns, for which it is refused."""
        declared = [*self.columns, *self._roles]
        unknown = [name for name in columns if name not in declared]
        if columns and len(unknown) == len(columns):  # then its first line may be a record
            expected = f"must begin with a line of names: {', '.join(declared)}"
            found = f"{len(columns)} columns, none of which is declared"
            yield InputError(where, found, expected)
            return
        if unknown:
            hint = nearest(unknown[0], declared)
            hint = f" ({hint})" if hint.startswith("did") else ""
            expected = (
                f"the schema does not declare {'this column' if len(unknown) == 1 else 'these'}"
                f'{hint}: declare it, with kind = "ignore" where it is not used'
            )
            yield InputError(f"columns of {where}", ", ".join(unknown), expected)
        absent = [name for name in self.sources if name not in columns]
        if absent:
            expected = f"lacks columns that the schema declares: {', '.join(absent)}"
            yield InputError(f"columns of {where}", ", ".join(columns), expected)

    def _encoded(self, table: Table, where: str) -> Tensor:
        words, place = frozenset(self.missing_words), 0
        found = np.empty((rows(table), len(self.features)), np.float32)
        for name, kind in self.columns.items():
            if width := len(kind.features(name)):
                into = found[:, place : place + width]
                kind.encode(table[name], words, f"column {name!r} of {where}", into)
                place += width
        return torch.from_numpy(found)


def _tables(columns: Mapping[str, Column]) -> dict[str, tuple[int, int]]:
    return {
        name: (len(kind.known), kind.embed)
        for name, kind in columns.items()
        if isinstance(kind, CategoryColumn) and kind.embed
    }


def packed_rows(columns: Mapping[str, Column], rows: Tensor) -> tuple[Tensor, Packed | None]:
    """Rows of features as they are packed, and how; the same and None without embedded categories.

    Numbers stand first in a row, and then one code of each category that is embedded.
    """
    wanted = _tables(columns)
    if not wanted:
        return rows, None
    names = [name for name, kind in columns.items() for _ in kind.features(name)]
    codes = [place for place, name in enumerate(names) if name in wanted]
    others = [place for place, name in enumerate(names) if name not in wanted]
    numbers = InputPart(NUMBERS, (len(others),), "floating")
    parts = [InputPart(name, (), "integer") for name in names if name in wanted]
    return rows[:, others + codes], Packed((numbers, *parts))


def default_schema(path: str) -> str:
    """Where the schema of a table lies if nothing else is said: beside it."""
    return beside(path, ENDING)


def find_schema(path: str, data_dir: Path) -> Schema:
    """Read a schema; a relative path is seen from the current directory, then from `data_dir`.

    Raises:
        InputError: on `task.schema`.
    """
    wanted = os.path.expanduser(path)
    found = find_file([wanted], [Path(), data_dir.expanduser()])
    if found is None:
        expected = (
            "there is no such file: `tacit init` writes one for a table, to be checked by a person"
        )
        raise InputError(_WHERE, path, expected)
    return Schema.of(found)


_KINDS: tuple[str, ...] = ("number", "category", "boolean", "date", "ignore", "class")


def _refusal(values: Mapping[str, Any], error: ValidationError) -> InputError:
    faults = error.errors(include_url=False)
    first = next((one for one in faults if one["type"] == "extra_forbidden"), faults[0])
    # Between the keys of a tagged union stands its tag.
    place = [str(part) for part in first["loc"]]
    keys = [part for level, part in enumerate(place) if not _is_tag(values, place, level)]
    where = ".".join(["schema", *keys])
    found: Any = values
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    if first["type"] == "union_tag_invalid":  # it is named by what holds it
        where, found = f"{where}.kind", first["ctx"]["tag"]
    if first["type"] == "extra_forbidden":
        lacking = [str(one["loc"][-1]) for one in faults if one["type"] == "missing"]
        meant = is_meant(keys[-1], Schema.model_fields if len(keys) == 1 else lacking)
        hint = "" if meant is None else f"; did you mean {meant!r}?"
        return InputError(where, found, f"unknown key{hint}")
    return InputError(where, found, plain_rule(faults))


def _is_tag(values: Any, place: list[str], level: int) -> bool:
    """Whether a part of an error's place is the kind of what holds it, and no key."""
    found: Any = values
    for key in place[:level]:
        inner = found.get(key) if isinstance(found, Mapping) else None
        found = found if inner is None and key in _KINDS else inner
    mapping = found if isinstance(found, Mapping) else {}
    return place[level] in _KINDS and mapping.get("kind") == place[level]
