"""What a site should see of its own table before it trains: how it was read, and what is strange.

Everything is held against the public facts of the schema, by the very maps that training uses. What
is found is private: it is for the site's own screen, and belongs into no document and no message.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.data.datasets import Dataset, as_dataset
from tacit.data.tables.dialect import SENTINELS, VARIED, is_apart
from tacit.data.tables.fields import Column, Table, as_column, rows
from tacit.data.tables.kinds import CategoryColumn, DateColumn, NodeColumn, UnitColumn, Words
from tacit.data.tables.schema import Schema, default_schema
from tacit.errors import PrivateRecordsWarning, RecordsError

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]

_MANY = 0.1  # of the records, clamped to a bound, before the start of a run says so
_MOST = 0.5  # of what is known: then a whole column is written otherwise
_NEARLY = 0.95  # of what is known is "other", where the schema has such
_INSIDE = 0.9  # of what is known, by which a unit of measurement is believed
_NARROW = 0.02  # of the bounds, within which values are crowded
_OFTEN = 10  # records with a text before it is shown: it is no single person's
_LOOKED = 50_000  # records at even distances, where shares are enough
_UNITS = (
    (12, 0, "age", "months", "years"),
    (365.25, 0, "age", "days", "years"),
    (88.4, 0, "creatinine crea kreatinin scr", "umol/l", "mg/dl"),
    (18.016, 0, "glucose gluc glu", "mg/dl", "mmol/l"),
    (38.67, 0, "cholesterol chol hdl ldl", "mg/dl", "mmol/l"),
    (2.2046, 0, "weight wt", "pounds", "kilograms"),
    (2.54, 0, "height waist", "centimetres", "inches"),
    (7.5006, 0, "systolic diastolic pressure sbp dbp", "mmHg", "kPa"),
    (1.8, 32, "temperature temp", "Fahrenheit", "Celsius"),
    (10, 0, "hemoglobin haemoglobin hb albumin", "g/l", "g/dl"),
    (100, 0, "height", "hundredths, such as cm or percent,", "wholes"),
    (1000, 0, "weight", "thousandths, such as g,", "wholes"),
    (60, 0, "", "minutes", "hours"),
)
"""(x - offset) / factor, for columns named so, makes the second unit of the first."""


@dataclass(frozen=True)
class TableCheck:
    """What was found in a table.

    `columns` are of each that is used: its name, what it was read as, and how many records are
    below its bounds, above them, no declared value, missing, and refused. `facts` are of its
    records, each one line, `faults` are why training refuses it, and `suspicions` what a column may
    be in place of what is declared, and the remedy.
    """

    columns: list[tuple[Any, ...]]
    facts: list[str]
    faults: list[str]
    suspicions: list[str]


def check_table(table: Table, schema: Schema, where: str, test: Table | None = None) -> TableCheck:
    """Hold a table of `read_table` against its schema, and against public test records."""
    unlike = [] if test is None else [str(error) for error in schema.unfit(test, "--test")]
    faults = [*(str(error) for error in schema.unfit(table, where)), *unlike]
    words, target = frozenset(schema.missing_words), schema.target
    absent = np.zeros(rows(table), np.bool_)
    if target.column in table:
        fields = table[target.column]
        found, kept, _ = _tolerant(lambda some: target.missing_in(some, words, ""), fields)
        absent[kept] = found
    else:
        faults.append(f"{where} has no column {target.column!r}, which is the target")
    drops = target.missing == "drop"
    own = np.flatnonzero(~absent) if drops else np.arange(len(absent))
    parts = {name: part for name, part in _parts(schema).items() if name in table}
    used = {name: table[name].take(own) for name in parts}
    facts = [f"{absent.sum():,} records have no target" + (", and are left out" if drops else "")]
    check = TableCheck([], facts, faults, [])
    for name, part in parts.items():
        _look_into(check, name, part, used[name], words, own)
    digests = _digests([used], parts, words)[0]
    again = np.setdiff1d(np.arange(len(digests)), np.unique(digests, return_index=True)[1])
    first = f" (the first is row {own[again[0]] + 1:,})" if len(again) else ""
    facts.append(f"{len(again):,} rows equal an earlier one in all columns that are used{first}")
    inputs = {name: part for name, part in parts.items() if name in schema.columns}
    if test is not None and inputs and not unlike:
        mine, public = _digests([used, test], inputs, words)
        both = np.isin(mine, public).sum()
        facts.append(f"{both:,} rows have the inputs of one of the {rows(test):,} test records")
    return check


@dataclass
class OwnScreen:
    """The line on the own screen when a run begins, of the tables that this process reads."""

    records: int = 0
    clamped: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()

    def dataset(
        self, table: object, schema: Schema | None, where: str, node: int | None = None
    ) -> Dataset:
        """The records of a node, as they are or by the schema, which are then looked at."""
        if schema is None:
            return as_dataset(table, where)
        read = schema.read(table, where)
        made = schema.dataset(read, where, node)
        some = np.arange(0, rows(read), 1 + rows(read) // _LOOKED)
        self.records += rows(read)
        for name, part in _parts(schema).items():
            if name in read and getattr(part, "kind", "") in ("number", "date", "category"):
                seen = _look(name, part, read[name].take(some), frozenset(schema.missing_words))
                clamped = (seen.below | seen.above).sum() > _MANY * len(some)
                self.clamped |= {name} if clamped else set()
                self.unknown |= {name} if seen.unknown.sum() > _NEARLY * len(some) else set()
        return made

    def warn(self, file: str) -> None:
        """Say what is strange, if anything is; `file` is what `tacit check` tells more of."""
        told = ""
        for names, what in (
            (self.clamped, "more than a tenth at a bound"),
            (self.unknown, 'nearly nothing but "other"'),
        ):
            s, listed = "s"[: len(names) - 1], ", ".join(sorted(names))
            told += f", {len(names)} column{s} with {what} ({listed})" if names else ""
        if told:
            schema = "" if os.path.isfile(default_schema(file)) else " SCHEMA"
            line = f"own records: {self.records:,} read{told}: tacit check {file}{schema}"
            warnings.warn(line, PrivateRecordsWarning, stacklevel=2)


def _parts(schema: Schema) -> dict[str, Any]:
    """What is declared of every column that is used."""
    roles = [role for role in (schema.target, schema.node, schema.unit) if role is not None]
    inputs = {name: kind for name, kind in schema.columns.items() if kind.features(name)}
    return {role.column: role for role in roles} | inputs


@dataclass(frozen=True)
class _Looked:
    """Which records of a column are what; `odd` are refused, and not for what is missing."""

    missing: Mask
    below: Mask
    above: Mask
    unknown: Mask
    odd: Mask
    refused: Mapping[str, Rows]  # by the rule
    numbers: NDArray[np.float64]


def _look(name: str, part: Any, fields: Column, words: Words) -> _Looked:
    def strict(some: Column) -> object:  # as training reads it
        if isinstance(part, NodeColumn):
            return part.codes(some, name)
        if not hasattr(part, "features"):
            read = part.ids if isinstance(part, UnitColumn) else part.encode
            return read(some, words, name)
        into = np.empty((len(some), len(part.features(name))), np.float32)
        return part.encode(some, words, name, into)

    if getattr(part, "kind", None) == "number":
        numbers, odd = np.full(len(fields), np.nan), np.ones(len(fields), np.bool_)
        found, kept, _ = _tolerant(lambda some: some.numbers(words, "", ""), fields)
        numbers[kept], odd[kept] = found, False
        missing = np.isnan(numbers) & ~odd
        refused = _tolerant(strict, fields)[2] if (missing | odd).any() else {}
        below, above = numbers < part.low, numbers > part.high
        return _Looked(missing, below, above, np.zeros_like(odd), odd, refused, numbers)
    codes, texts = fields.distinct()  # each is judged once
    plain = replace(fields.notation, values={}, missing=frozenset())
    each, declared = Column(as_column(texts).values, plain), _declared(part)
    _, kept, refused = _tolerant(strict, each)
    absent = [text is None or (text in words and text not in declared) for text in texts]
    below, above, unknown = (np.zeros(len(texts), np.bool_) for _ in range(3))
    missing, odd = np.array(absent, np.bool_), np.ones(len(texts), np.bool_)
    odd[kept] = False
    odd &= ~missing
    if isinstance(part, DateColumn):
        # With bounds a day wider, the ends are what lies beyond.
        latest = datetime.date.max.toordinal()
        ends = max(part.low.toordinal() - 1, 1), min(part.high.toordinal() + 1, latest)
        low, high = map(datetime.date.fromordinal, ends)
        wide = part.model_copy(update={"low": low, "high": high, "parts": ("day",)})
        into = np.empty((len(kept), len(wide.features(name))), np.float32)
        wide.encode(each.take(kept), words, name, into)
        below[kept], above[kept] = into[:, 0] == -1, into[:, 0] == 1
    elif isinstance(part, CategoryColumn):
        unknown = np.array([text not in declared for text in texts], np.bool_) & ~missing
    elif not isinstance(part, UnitColumn):
        unknown = odd
    rules = {rule: np.flatnonzero(np.isin(codes, wrong)) for rule, wrong in refused.items()}
    below, above, unknown, odd = (mask[codes] for mask in (below, above, unknown, odd))
    return _Looked(missing[codes], below, above, unknown, odd, rules, np.zeros(0))


def _declared(part: Any) -> Sequence[str]:
    return (*getattr(part, "values", ()), *getattr(part, "labels", ()))


def _tolerant(judge: Callable[[Column], Any], fields: Column) -> tuple[Any, Rows, dict[str, Rows]]:
    """What is made of the fields that break no rule, which these are, and those that break each."""
    kept, refused = np.arange(len(fields)), dict[str, Rows]()
    while True:
        try:
            return judge(fields.take(kept) if refused else fields), kept, refused
        except RecordsError as error:
            if error.wrong is None:
                raise
            before = refused.get(error.expected, kept[:0])
            refused[error.expected] = np.union1d(before, kept[error.wrong])
            kept = kept[~error.wrong]


def _look_into(
    check: TableCheck, name: str, part: Any, fields: Column, words: Words, own: Rows
) -> None:
    """Add what is found of a column; `own` are the places of its records in the file."""
    seen, facts = _look(name, part, fields, words), getattr(part, "facts", None) or ""
    kind = getattr(part, "kind", "node" if isinstance(part, NodeColumn) else "person")
    kind = f"target, {kind}" if hasattr(part, "loss") else kind
    counts = [mask.sum() for mask in (seen.below, seen.above, seen.unknown, seen.missing)]
    refused = sum(map(len, seen.refused.values()))
    check.columns.append((name, f"{kind}{facts.replace('the', ':', 1)}", *counts, refused))
    check.faults.extend(
        f"column {name!r}: {len(wrong):,} of {len(fields):,} records (the first is row "
        f"{own[wrong[0]] + 1:,}): {rule}"
        for rule, wrong in seen.refused.items()
    )
    if kind in ("target, class", "node", "person"):
        codes, texts = fields.distinct()
        found = dict(zip(texts, np.bincount(codes, minlength=len(texts)), strict=True))
        told = [f"{value} {found.get(value, 0):,}" for value in _declared(part)]
        persons = f"{len(found.keys() - {None}):,} different ids"
        check.facts.append(f"{name}: {', '.join(told) or persons}")
    check.suspicions.extend(
        f"column {name!r}: {line}" for line in _suspicions(name, part, fields, seen)
    )


def _suspicions(name: str, part: Any, fields: Column, seen: _Looked) -> Iterator[str]:
    known = max(len(fields) - int(seen.missing.sum()), 1)
    often = _often(fields, seen.unknown | seen.odd)
    shown = f", most often {', '.join(map(repr, often))}" if often else ""
    if seen.unknown.sum() > (_MOST if seen.odd.any() else _NEARLY) * known:
        pairs = [(text, value) for text in often for value in _declared(part)]
        alike = [pair for pair in pairs if pair[0][:1].lower() == pair[1][:1].lower()]
        line = f" {json.dumps(alike[0][0])} = {json.dumps(alike[0][1])}" if alike else ""
        yield (
            f"{share(seen.unknown.sum(), known)} are no declared value{shown}: if these are other "
            f"names of declared ones, say so in the dialect: [values.{name}]{line}"
        )
    elif seen.odd.any() and not isinstance(part, UnitColumn):
        keys = {"number": "decimal, thousands, [missing]", "date": "[dates], [missing]"}
        see = f"[values.{name}]" if seen.unknown.any() else keys[part.kind]
        yield f"{share(seen.odd.sum(), known)} cannot be read{shown}: see {see} of the dialect"
    if isinstance(part, DateColumn) and (seen.below | seen.above).sum() > _MOST * known:
        yield "most lie beyond its bounds: another order of day and month? see [dates]"
    numbers = seen.numbers[~np.isnan(seen.numbers)]
    marks = [mark for mark in SENTINELS if is_apart(numbers, mark)]
    for mark in marks:
        yield (
            f"{mark} in {(numbers == mark).sum():,} records, far from all others: if it means "
            f'missing, say so in the dialect: [missing] {name} = ["{mark}"]'
        )
    numbers = numbers[~np.isin(numbers, marks)]
    if len(numbers):
        yield from _other_unit(name, part, numbers[:: 1 + len(numbers) // _LOOKED])


def _often(fields: Column, which: Mask) -> list[str]:
    """The most frequent texts of some records, of those that are no single person's."""
    if not which.any():
        return []
    codes, texts = fields.take(np.flatnonzero(which)).distinct()
    counts = np.bincount(codes, minlength=len(texts))
    places = np.argsort(-counts, kind="stable")[:3]
    return [str(texts[place])[:40] for place in places if counts[place] >= _OFTEN]


def share(count: int, of: int) -> str:
    """So many records in words, with their share where it is one in a hundred or more."""
    return f"{count:,}" + (f" ({count / of:.0%})" if 100 * count >= of > 0 else "")


def _other_unit(name: str, part: Any, numbers: NDArray[np.float64]) -> Iterator[str]:
    """Lines on a factor that brings most numbers within the bounds, and spreads them there."""

    def fits(values: NDArray[np.float64]) -> bool:
        least, most = np.quantile(values, [0.01, 0.99])
        inside = ((values >= part.low) & (values <= part.high)).mean()
        return bool(inside >= _INSIDE and most - least >= _NARROW * (part.high - part.low))

    beyond = ((numbers < part.low) | (numbers > part.high)).mean()
    crowded = beyond < 1 - _INSIDE and getattr(part, "scale", "linear") == "linear"
    crowded = crowded and not fits(numbers) and len(np.unique(numbers)) >= VARIED
    if beyond <= _MOST and not crowded:
        return
    words, named, other = re.findall("[a-z]+", name.lower()), list[str](), list[str]()
    for factor, offset, hints, first, second in _UNITS:
        less, more = (f"less {offset}, ", f", plus {offset}") if offset else ("", "")
        for values, how in (
            ((numbers - offset) / factor, f"{less}divided by {factor} ({first} for {second})"),
            (numbers * factor + offset, f"times {factor}{more} ({second} for {first})"),
        ):
            if fits(values):
                (named if {*hints.split()} & {*words} else other).append(how)
    if named or not crowded:
        what = "crowd within" if crowded else "lie beyond, and are clamped to,"
        how = f", such that they should be {' or '.join(named or other[:3])}"
        yield (
            f"{max(beyond, 1 - beyond):.0%} {what} its bounds {part.low:g} and {part.high:g}: "
            f"another unit of measurement{how if named or other else ', or other bounds'}?"
        )


def _digests(
    tables: Sequence[Table], parts: Mapping[str, Any], words: Words
) -> list[NDArray[np.uint64]]:
    """A number for every row of some tables: two are equal where these columns are.

    Of 64 bits drawn for each value: two of 300,000 other rows share one with 3e-9.
    """
    draw = np.random.default_rng()
    sums = [np.zeros(rows(table), np.uint64) for table in tables]
    for name, part in parts.items():
        columns = [table[name] for table in tables]
        found: list[Any] = []
        if getattr(part, "kind", None) == "number":
            with contextlib.suppress(RecordsError):
                found = [column.numbers(words, "", "") for column in columns]
        if not found:
            absent = words - {*_declared(part)}
            known: dict[str | None, int] = {}
            for codes, texts in (column.distinct() for column in columns):
                told = [None if text in absent else text for text in texts]
                numbers = [known.setdefault(text, len(known)) for text in told]
                found.append(np.array(numbers, np.int64)[codes])
        keys, places = np.unique(np.concatenate(found), return_inverse=True)
        values = draw.integers(2**64, size=len(keys), dtype=np.uint64)[places]
        start = 0
        for total in sums:
            total += values[start : start + len(total)]
            start += len(total)
    return sums
