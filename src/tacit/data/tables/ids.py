"""Columns that look like ids of persons: told by names, and by what some records hold.

It is a guess that a person checks: whoever takes such a column for an input, or a row for a person,
should not do so by default. Other ids, such as those of visits or sites, are told apart: they are
no inputs either where they have many values, and no persons.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tacit.data.tables.fields import Texts


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
