"""A first schema of a table, for a person to check: what `tacit init` writes.

Of a public sample, or a synthetic one, everything may be read: bounds, values and labels are those
of its records, and count as confirmed. Of a private file the header and the first records are read,
and what is proposed says as little of them as can be: kinds, powers of ten as bounds, the values
that these records have. It is not confirmed, so that nothing is trained before a person has
replaced it by what is public.

Columns that look like ids of persons are told by names, and by what some records hold
(`likely_ids`). It is a guess that a person checks: whoever takes such a column for an input, or a
row for a person, should not do so by default. Other ids, such as those of visits or sites, are told
apart: they are no inputs either where they have many values, and no persons.
"""

from __future__ import annotations

import datetime
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tomli_w

from tacit.data.tables.dialect import Dialect, date_formats, missing_among
from tacit.data.tables.fields import Texts, read_number
from tacit.data.tables.schema import MISSING_WORDS, Schema
from tacit.errors import InputError, nearest

FIRST_RECORDS = 100
"""How many records of a private file are read."""

_MOST_VALUES = 50  # of a category; text with more is taken for names or remarks
_MOST_LABELS = 20  # whole numbers with more are a number to predict
_BOOLEAN_WORDS = (frozenset({"true", "false"}), frozenset({"yes", "no"}), frozenset({"t", "f"}))
_UNDECIDED = (
    "# Somebody has to decide whom epsilon protects: a row, or a person with all rows. This one\n"
    "# looks like the number of a person. If it is, take the # away from these two lines, and\n"
    "# from `unit` in the experiment; if no person has two rows, delete them.\n"
)


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_PERSONS = _set(
    "person patient subject participant customer client member user employee student respondent "
    "individual resident citizen pupil worker"
)
_SHORT = _set("per pers zper pat pt subj cust emp stud indiv")
_IDS = _set("id ids identifier uid uuid guid")
_OF_PERSONS = _set("pid mrn ssn")
_NUMBERS = _set("number no nr num key")
_OTHERS = _set(
    "row record index line visit encounter admission hadm stay icustay episode event order claim "
    "invoice transaction sample specimen test message observation site hospital clinic center "
    "centre region state country county city district zip ward room bed house department school "
    "class store branch product item drug device type group category diagnosis batch lot"
)
_CODE = re.compile(r"\d+|(?=\S*\d)(?=\S*[^\W\d])[\w.@/-]+")  # a whole number, or a word with digits
_ENOUGH = 20  # records, or values, to judge by values alone
_NOT_PERSONS = 4  # the rank of ids of something else


@dataclass(frozen=True)
class Roles:
    """Which columns are no inputs: what is predicted, whose a record is, which person a row is of.

    None: nothing says it. `labels` and `nodes` are values in order; empty: those that are found.
    """

    target: str
    node: str | None = None
    labels: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    unit: str | None = None


@dataclass(frozen=True)
class ProposedSchema:
    """What fits some records.

    The dialect is what this file writes otherwise: words for missing fields, dates, limits.
    `ignored` says by name why each column that is no input is left out.
    """

    schema: Schema
    dialect: Dialect
    ignored: Mapping[str, str]


def propose(
    table: Texts, roles: Roles, *, public: bool, dialect: Dialect | None = None
) -> ProposedSchema:
    """A schema that fits some records: a public sample, or the first ones of a private file.

    Where these are `public`, their extremes are bounds, and all that is declared counts as
    confirmed. `dialect` is how they were read.

    Raises:
        InputError: on `--target`, `--node` or `--unit`, if there is no such column, or it has
            another role, or too little is found.
    """
    taken: dict[str | None, str] = {}
    for role, name in (("target", roles.target), ("node", roles.node), ("unit", roles.unit)):
        if name is not None and name not in table:
            raise InputError(
                f"--{role}", name, f"is no column of the table: {nearest(name, table)}"
            )
        if name is not None and name in taken:
            raise InputError(f"--{role}", name, f"is the {taken[name]}: name another column")
        taken[name] = role
    others = {name: texts for name, texts in table.items() if name not in taken}
    ids = likely_ids(others, MISSING_WORDS)
    missing: dict[str, tuple[str, ...]] = {}
    values: dict[str, dict[str, str]] = {}
    dates: dict[str, tuple[str, ...]] = {}
    kinds: dict[str, dict[str, Any]] = {}
    ignored: dict[str, str] = {}
    for name, texts in others.items():
        if name in ids:
            ignored[name] = (
                f"looks like the number of a {'person' if ids[name] else 'row or place'}"
            )
            kinds[name] = {"kind": "ignore"}
            continue
        known, there = texts, _values(texts)
        words, limits = missing_among(there, Counter(filter(None, texts)))
        if words or limits:
            plain_limits = {text: limit.replace(",", ".") for text, limit in limits.items()}
            known = [
                None if text in words else plain_limits.get(text or "", text) for text in texts
            ]
            there = _values(known)
            missing |= {name: tuple(words)} if words else {}
            values |= {name: limits} if limits else {}
        formats = date_formats(there)
        if formats:
            dates[name] = formats
        found = _column(known, there, public, formats)
        kinds[name] = found if isinstance(found, dict) else {"kind": "ignore"}
        if isinstance(found, str):
            ignored[name] = found
    declared: dict[str, Any] = {
        "confirmed_public": public,
        "target": _target(table[roles.target], roles, public),
        "columns": kinds,
    }
    if roles.unit is not None:
        declared["unit"] = {"column": roles.unit}
    if roles.node is not None:
        nodes = roles.nodes or tuple(_values(table[roles.node]))
        if not nodes:
            raise InputError(
                "--node", roles.node, "holds no value: list the nodes by --node-values"
            )
        declared["node"] = {"column": roles.node, "values": list(nodes)}
    plain = (dialect or Dialect()).model_dump()
    found_so: dict[str, Any] = {"missing": missing, "values": values, "dates": dates}
    changed: dict[str, Any] = {key: {**own, **plain[key]} for key, own in found_so.items()}
    return ProposedSchema(Schema(**declared), Dialect(**{**plain, **changed}), ignored)


def proposed_unit(table: Texts, schema: Schema) -> str | None:
    """The column that looks most like ids of persons, of those that have no role."""
    ids = likely_ids({name: table[name] for name in schema.columns}, MISSING_WORDS)
    return next((name for name, persons in ids.items() if persons), None)


def refuse_record(table: Texts, where: str, path: str) -> None:
    """Refuse a table whose first line is a record, of which nothing may be shown.

    A name is unlike what stands below it: no number above numbers, and no value that comes again.

    Raises:
        InputError: on `where`, whose value is the table's `path`.
    """
    like = unlike = 0
    for name, texts in table.items():
        values = _values(texts)
        if (_numbers(values) or date_formats(values)) is not None:
            same = (_numbers([name]) or date_formats([name])) is not None
        elif len(values) > _MOST_LABELS:  # names or remarks: it may be one of them or not
            continue
        else:
            same = name in values
        like, unlike = like + same, unlike + (not same)
    if like >= unlike:
        expected = "must begin with a line of names: its first line looks like a record"
        raise InputError(where, path, expected)


def _target(texts: Sequence[str | None], roles: Roles, public: bool) -> dict[str, Any]:
    found = _values(texts)
    numbers = _numbers(found)
    if not roles.labels and numbers is not None and len(found) > _MOST_LABELS:
        low, high = _bounds(numbers, public)
        scale = {"scale": "log"} if public and _is_skewed(texts) else {}
        return {"column": roles.target, "kind": "number", "low": low, "high": high, **scale}
    labels = roles.labels or tuple(found)
    if len(labels) < 2:
        expected = (
            f"must have two labels or more, and {len(labels)} are found: list them by --labels"
        )
        raise InputError("--target", roles.target, expected)
    if len(labels) > _MOST_LABELS and not roles.labels:
        expected = f"has {len(labels)} different texts, which are no labels: list them by --labels"
        raise InputError("--target", roles.target, expected)
    return {"column": roles.target, "kind": "class", "labels": list(labels)}


def _column(
    texts: Sequence[str | None],
    found: Sequence[str],
    public: bool,
    formats: tuple[str, ...] | None,
) -> dict[str, Any] | str:
    """What is declared of a column of inputs, or why it is ignored; `found` are its `_values`."""
    absent = not public or len(found) < len(set(texts))
    indicator = {"missing": "indicator"} if absent else {}
    numbers = _numbers(found)
    if not found:
        return "is empty in all records that were looked at"
    if any({text.lower() for text in found} <= words for words in _BOOLEAN_WORDS):
        return {"kind": "boolean", **indicator}
    if numbers is not None:
        low, high = _bounds(numbers, public)
        scale = {"scale": "log"} if public and _is_skewed(texts) else {}
        return {"kind": "number", "low": low, "high": high, **scale, **indicator}
    if formats is not None:
        years = [int(year) for text in found for year in re.findall(r"(?<!\d)\d{4}(?!\d)", text)]
        first, last = (min(years), max(years)) if public and years else (1900, 2100)
        ends = {"low": datetime.date(first, 1, 1), "high": datetime.date(last, 12, 31)}
        return {"kind": "date", **ends, **indicator}
    if _numbers([text.removesuffix("%") for text in found]) is not None:
        return "has numbers with a sign: write them without %"
    if len(found) > _MOST_VALUES:
        return (
            f"has more than {_MOST_VALUES} different texts, which are neither numbers nor dates of "
            "one plain format"
        )
    category = {"missing": "category"} if absent else {}
    return {"kind": "category", "values": list(found), "unknown": "other", **category}


def _values(texts: Sequence[str | None]) -> list[str]:
    """The distinct texts that are not missing, in order: of numbers by size."""
    found = sorted({text for text in texts if text is not None} - set(MISSING_WORDS))
    numbers = _numbers(found)
    return (
        found if numbers is None else [text for _, text in sorted(zip(numbers, found, strict=True))]
    )


def _numbers(texts: Sequence[str]) -> list[float] | None:
    """The numbers that all texts are; None where one is none, or there are none."""
    numbers = [number for text in texts if (number := read_number(text)) is not None]
    return numbers if numbers and len(numbers) == len(texts) else None


def _bounds(numbers: Sequence[float], public: bool) -> tuple[float, float]:
    """Bounds of public numbers, rounded outwards; of private ones, powers of ten."""
    low, high = min(numbers), max(numbers)
    if not public:
        size = max(abs(low), abs(high), 1.0)
        power = float(10 ** math.ceil(math.log10(size)))
        return (-power if low < 0 else 0.0), power
    step = 10.0 ** math.floor(math.log10(high - low)) / 10 if high > low else 1.0
    return round(math.floor(low / step) * step, 12), round((math.ceil(high / step) or 1) * step, 12)


def _is_skewed(texts: Sequence[str | None]) -> bool:
    """Whether most public numbers are small beside the largest, as amounts of money are."""
    known = [text for text in texts if text is not None and text not in MISSING_WORDS]
    numbers = sorted(map(float, known))
    middle = numbers[len(numbers) // 2]
    return numbers[0] >= 0 and numbers[-1] - numbers[0] > 10 * max(middle - numbers[0], 1e-12)


def likely_ids(table: Texts, missing: Iterable[str] = ()) -> dict[str, bool]:
    """The columns that look like ids, the likeliest of persons first; whether of persons at all.

    Of two columns with equally good names it is that with fewer values, by which more is protected.
    """
    words = {"", *missing}
    found: list[tuple[int, int, str]] = []
    for name, texts in table.items():
        known = [text for text in texts if text is not None and text not in words]
        rank = _rank(_words(name), known)
        if rank is not None:
            found.append((rank, len(set(known)), name))
    return {name: rank < _NOT_PERSONS for rank, _, name in sorted(found)}


def _rank(words: Sequence[str], known: Sequence[str]) -> int | None:
    """0 to 3: ids of persons, the likeliest first; 4: ids of something else; None: no ids."""
    values = set(known)
    coded = bool(values) and all(map(_CODE.fullmatch, values))
    many = len(values) > 10 or len(known) < 5 * len(values)  # few values with many rows: a category
    *before, last = words or [""]
    joined = {last.removeprefix(one) for one in _PERSONS | _SHORT} - {last}  # as in `custid`
    person = bool((_PERSONS | _SHORT) & {*before} or joined & (_IDS | _NUMBERS))
    is_id, is_number = bool(_IDS & {last, *joined}), bool(_NUMBERS & {last, *joined})
    if _OTHERS & {*words} and not person and (is_id or is_number):
        return _NOT_PERSONS if many else None
    alone = len(words) == 1 and last in _PERSONS | _SHORT
    weak = coded and many and (alone or (is_number and person))
    if (is_id and person) or last in _OF_PERSONS or weak:
        return 0
    if is_id and (many or not before):
        return 1
    if is_number and coded and many and 2 * len(values) >= min(len(known), 2 * _ENOUGH):
        return 2
    return _rank_of_values(known, values) if coded and len(known) >= _ENOUGH else None


def _rank_of_values(known: Sequence[str], values: set[str]) -> int | None:
    """By values alone, in their order: a count of rows, codes of a row each, or blocks of numbers.

    These count where they rise from block to block of equal ones and have four digits or more:
    measurements do not, but for years.
    """
    numbers = [int(text) for text in known if text.isdecimal()]
    if len(numbers) < len(known):
        return 3 if len(values) >= 0.95 * len(known) else None
    if numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return _NOT_PERSONS
    blocks = numbers == sorted(numbers) and _ENOUGH <= len(values) < len(known) <= 8 * len(values)
    return 3 if blocks and numbers[0] >= 1000 and numbers[-1] >= 2200 else None


def _words(name: str) -> list[str]:
    """The words of a column's name, in small letters: `patientID` has two."""
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return [word.lower() for word in re.findall(r"[^\W_]+", parted)]


def schema_text(schema: Schema, table: str, source: str, proposed: str | None = None) -> str:
    """A schema as a TOML file that says what a person has to do; `proposed` as the unit."""
    plain = schema.model_dump(exclude_none=True, exclude_defaults=True)
    checked = schema.confirmed_public
    head = [
        f"# What is public of {table}. Every record becomes numbers by this file alone.",
        f"# Proposed from {source}.",
        "#",
        "# All of it must be public: names of columns, bounds, values, labels, nodes and rules for",
        "# missing values. Take it from a data dictionary or from what everyone knows. Bounds that",
        "# are the extremes of your private records, rounded or not, are a leak that no epsilon",
        "# covers. `confirmed_public = true` says that a person has checked all of this.",
        f"confirmed_public = {'true' if checked else 'false'}",
        "",
    ]
    parts = [_part("target", plain["target"], schema.target.kind)]
    if schema.node is not None:
        parts.append(_part("node", plain["node"], None))
    if schema.unit is not None:
        parts.append(_part("unit", plain["unit"], None))
    if proposed is not None:
        parts.append(f"{_UNDECIDED}# [unit]\n# column = {_toml(proposed)}\n")
    parts += [
        _part(f"columns.{_key(name)}", plain["columns"][name], kind.kind)
        for name, kind in schema.columns.items()
    ]
    return "\n".join([*head, *parts])


def _part(title: str, values: Mapping[str, Any], kind: str | None) -> str:
    """A table of TOML; lists stand on one line."""
    ordered = {"column": values.get("column"), "kind": kind, **values}
    lines = [f"{key} = {_toml(value)}" for key, value in ordered.items() if value is not None]
    return "\n".join([f"[{title}]", *lines, ""])


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return tomli_w.dumps({"x": value}).strip().removeprefix("x = ")


def _key(name: str) -> str:
    return tomli_w.dumps({name: 0}).rpartition(" = ")[0]
