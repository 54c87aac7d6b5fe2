"""Files in the format of svmlight and LIBSVM: one `target index:value ...` line a record.

How many features a record has, from which index they count and which labels there are is public,
and decides the shape of every message. So none of it is read off the records: it is declared, or
follows from a public file of test records, and a record that does not fit is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.base.free_memory import host_bytes, in_words
from tacit.data.datasets import Dataset, TaskData
from tacit.data.files import UnfitFileError, content, find_file
from tacit.data.tables.fields import NUMBER
from tacit.errors import InputError, RecordsError

_WHERE = "task.dataset"
_PACKED = (".gz", ".bz2")
_BYTES = 4  # of a float32
_LONGEST_LINE = 1 << 28
# What a record and each of its values take at most while they are read: they grow by copying.
_RECORD_BYTES = 48
_VALUE_BYTES = 36
_LINE = re.compile(
    rf"\s*(?:{NUMBER}(?:\s+qid:[0-9]+)?(?:\s+[0-9]+:{NUMBER})*)?\s*(?:#.*)?".encode(), re.DOTALL
)
_MOST_CLASSES = 10_000
_BEYOND = 2**31  # labels of this size and above are no classes
_SIGNS = frozenset({-1, 0, 1})
_SHOWN = 10  # labels, in an error

Labels = tuple[int, ...] | Literal["signs", "numbers"]
"""Of classes, class 0 first; or -1 / 1, or 0 / 1, as they stand; or any numbers."""


@dataclass(frozen=True)
class Declared:
    """What is public of a file, as far as somebody has said it.

    `features` is how many numbers a record has, `labels` are those that there may be, class 0
    first, and `index_base` is the index of the first feature, 0 or 1. `outputs` is how many classes
    there are; without `labels`, these are 0 to `outputs` - 1. `loss` is as `[task].loss` names it:
    what targets are to it. None: that of no name.
    """

    features: int | None = None
    labels: tuple[int, ...] | None = None
    index_base: int | None = None
    outputs: int | None = None
    loss: str | None = None


@dataclass(frozen=True, eq=False)
class _Records:
    """What a file holds: `targets` float64 `[records]`, and `sparse` float32 `[records, width]`.

    Column i is for the index i; an index that occurs is stored also where its value is 0.
    """

    path: Path
    sparse: Any
    targets: NDArray[np.float64]


def load_svmlight(argument: str, data_dir: Path, declared: Declared) -> TaskData:
    """Read a file of records, and its public test records where they lie beside it.

    The path in `argument` is plain, gzip (`.gz`) or bzip2 (`.bz2`). A relative one is looked for in
    `data_dir` first, then in the current directory.

    Test records are those of `PATH.t`, as LIBSVM's data sets are named; for `PATH.gz` and
    `PATH.bz2` likewise of `PATH.t`, and each with any of these endings. What is not declared is
    that of the test records: their largest index, whether an index 0 occurs, and the labels that
    occur. Without them indices count from 1.

    Returns:
        Inputs dense float32 `[records, features]`. Targets `[records]`: int64, the class of each
        label, or -1, 0 and 1 as they stand where the loss is logistic and no labels are declared;
        float32 where the loss is of numbers, or one of the user's own without declared labels.

    Raises:
        InputError: if the file is missing or no such text, if nothing says what is public of it,
            if the test records do not fit that, or if the dense records do not fit in memory.
        RecordsError: if records do not fit what is public; says how many.
    """
    if not argument:
        raise InputError(_WHERE, "svmlight:", "must name a file after the colon")
    wanted, folders = os.path.expanduser(argument), [data_dir, Path()]
    path = find_file([wanted], folders)
    if path is None:
        looked = " or ".join(dict.fromkeys(str(folder / wanted) for folder in folders))
        raise InputError(_WHERE, f"svmlight:{argument}", f"there is no file {looked}")
    stem = path.name.removesuffix(path.suffix) if path.suffix in _PACKED else path.name
    test_path = find_file([f"{stem}.t{ending}" for ending in ("", *_PACKED)], [path.parent])
    test = None if test_path is None else _parse(test_path)
    known, labels = _public(f"svmlight:{argument}", declared, test, f"{stem}.t")
    held_out = None
    if test is not None:
        try:
            held_out = _dataset(test, known, labels)
        except RecordsError as error:
            expected = f"the test records do not fit: they {error.expected}"
            raise InputError(f"{_WHERE}, {test.path}", error.value, expected) from None
    try:
        train = _dataset(_parse(path), known, labels)
    except RecordsError as error:
        source = "" if test is None else f"; what is not declared follows from {test.path.name}"
        raise RecordsError(error.where, str(error.value), f"{error.expected}{source}") from None
    return TaskData(
        f"svmlight:{argument}",
        train,
        held_out,
        classes=len(labels) if isinstance(labels, tuple) else None,
        values={"label": (-1, 1)} if labels == "signs" and _has_signs(test) else {},
    )


def _public(
    name: str, declared: Declared, test: _Records | None, test_name: str
) -> tuple[Declared, Labels]:
    """What is declared, completed by what public test records show; and what targets are.

    Raises:
        InputError: neither says it; names the keys that do.
    """
    base, features = declared.index_base, declared.features
    if base is None:
        base = 1 if test is None else min(1, int(test.sparse.indices.min(initial=1)))
    if features is None and test is not None:
        features = int(test.sparse.indices.max(initial=base - 1)) + 1 - base
    labels = _labels(declared, test)
    if labels is None or not features:
        keys = [] if features else ["task.features (how many features a record has)"]
        if labels is None:
            keys.append(
                "task.labels (such as [1, 2, 3]) or task.outputs (how many classes there are, for "
                "labels from 0), or task.loss = 'logistic' for labels of -1 and 1"
            )
        expected = (
            f"write {', and '.join(keys)}: what shapes every message must not be read off private "
            f"records. Or put public test records in {test_name}, which show it. Indices count "
            "from 1 unless task.index_base = 0"
        )
        raise InputError(_WHERE, name, expected)
    return replace(declared, features=features, index_base=base), labels


def _labels(declared: Declared, test: _Records | None) -> Labels | None:
    """What targets are, by what is public; None: nothing says it."""
    loss, outputs = declared.loss, declared.outputs
    if declared.labels is not None:
        return declared.labels
    if loss not in ("cross-entropy", "logistic"):
        return "numbers"
    shown = None if test is None else np.unique(test.targets)
    if loss == "logistic" and (shown is None or set(shown.tolist()) <= _SIGNS):
        return "signs"
    if test is None or shown is None:
        return None if outputs is None else tuple(range(outputs))
    where = str(test.path)
    if _has_signs(test):
        expected = "its labels are -1 and 1: set task.loss = 'logistic', or task.labels = [-1, 1]"
        raise InputError(_WHERE, where, expected)
    whole = bool(((shown == np.floor(shown)) & (np.abs(shown) < _BEYOND)).all())
    if not whole or len(shown) > _MOST_CLASSES:
        expected = "its targets are no labels of classes: set task.loss = 'mse'"
        raise InputError(_WHERE, where, expected)
    labels = tuple(int(label) for label in shown)
    if loss == "cross-entropy" and outputs not in (None, len(labels)):
        expected = f"{test.path.name} shows {len(labels)} labels: name all of them in task.labels"
        raise InputError("task.outputs", outputs, expected)
    return labels


def _has_signs(test: _Records | None) -> bool:
    return test is not None and bool((test.targets == -1).any() & (np.abs(test.targets) == 1).all())


def _parse(path: Path) -> _Records:
    # Imported here because it is slow, and only this data set needs it.
    from sklearn.datasets import load_svmlight_file

    lines = None
    try:
        with content(path) as (stream, _):
            lines = _Lines(stream, host_bytes())
            sparse, targets = load_svmlight_file(lines, dtype=np.float32, zero_based=True)
    except UnfitFileError as error:
        raise InputError(_WHERE, str(path), str(error)) from error
    except Exception as error:  # a damaged file may raise anything, and its text may quote records
        place = "it" if lines is None else f"line {lines.count}"
        expected = (
            "must hold lines such as '1 1:0.5 3:2', each with ascending indices: "
            f"{place} cannot be read ({type(error).__name__})"
        )
        raise InputError(_WHERE, str(path), expected) from error
    if len(targets) == 0:
        raise InputError(_WHERE, str(path), "holds no record")
    return _Records(path, sparse, np.asarray(targets, np.float64))


class _Lines:
    """The lines of a file, counted, and no more of them than fit in memory once they are read."""

    def __init__(self, stream: IO[bytes], memory: int) -> None:
        self.count = 0
        self._stream, self._memory = stream, memory

    def read(self) -> bytes:
        """Nothing reads a whole file here; scikit-learn takes what has this for a stream."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[bytes]:
        needed = 0
        while line := self._stream.readline(_LONGEST_LINE + 1):
            self.count += 1
            if len(line) > _LONGEST_LINE:
                longest = in_words(_LONGEST_LINE)
                raise UnfitFileError(f"line {self.count} is longer than {longest}")
            needed += _RECORD_BYTES + _VALUE_BYTES * line.count(b":")
            if needed > self._memory:
                raise UnfitFileError(
                    f"holds more than {self.count - 1} records, and {in_words(self._memory)} of "
                    "memory are too few for them"
                )
            if not _LINE.fullmatch(line):  # scikit-learn would take 1_0 for a number
                raise ValueError
            yield line


def _dataset(records: _Records, known: Declared, labels: Labels) -> Dataset:
    """The records of a file, each of which must fit what is public.

    Raises:
        RecordsError: saying how many records do not.
    """
    first, features, count = known.index_base, known.features, len(records.targets)
    assert first is not None
    assert features is not None
    size, free = count * features * _BYTES, host_bytes()
    if size > free:
        expected = (
            f"its dense records would take {in_words(size)}, and {in_words(free)} of memory are "
            "free: choose fewer features or records"
        )
        raise InputError(_WHERE, str(records.path), expected)
    indices = records.sparse.indices.astype(np.int64)
    (places,) = np.nonzero((indices < first) | (indices >= first + features))
    wrong = np.zeros(count, bool)
    wrong[np.searchsorted(records.sparse.indptr, places, side="right") - 1] = True
    last = first + features - 1
    rule = f"must have indices from {first} to {last} (task.index_base, task.features)"
    _refuse(wrong, records, rule)
    targets = _targets(records, known, labels)
    from scipy.sparse import csr_array  # as slow as scikit-learn, which needs it anyway

    parts = (records.sparse.data, indices - first, records.sparse.indptr)
    return Dataset(torch.from_numpy(csr_array(parts, shape=(count, features)).toarray()), targets)


def _targets(records: _Records, known: Declared, labels: Labels) -> Tensor:
    """Class numbers, signs or numbers, of what stands first in each line."""
    if labels == "numbers":
        return torch.from_numpy(records.targets).to(torch.float32)
    named = np.array(sorted(_SIGNS) if labels == "signs" else labels)
    order = np.argsort(named)
    places = np.searchsorted(named, records.targets, sorter=order).clip(max=len(named) - 1)
    words = ", ".join(map(str, named[:_SHOWN])) + (", ..." if len(named) > _SHOWN else "")
    rule = f"must have one of the labels {words} (task.labels)"
    if labels == "signs":
        rule = "must have labels of -1 and 1, or of 0 and 1 (others are named in task.labels)"
    elif known.labels is None and known.loss == "cross-entropy":
        rule += "; for labels of -1 and 1 set task.loss = 'logistic'"
    _refuse(named[order[places]] != records.targets, records, rule)
    return torch.from_numpy(named[order[places]] if labels == "signs" else order[places])


def _refuse(wrong: NDArray[np.bool_], records: _Records, rule: str) -> None:
    count = int(wrong.sum())
    if count:
        found = f"{count:,} of {len(wrong):,} records"
        raise RecordsError(f"{_WHERE}, {records.path}", found, rule)
