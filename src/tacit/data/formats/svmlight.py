"""Files in the format of svmlight and LIBSVM: one `target index:value ...` line a record."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from tacit.data.datasets import Dataset, TaskData
from tacit.data.files import UnfitFileError, content, find_file
from tacit.errors import InputError
from tacit.free_memory import host_bytes, in_words

__all__ = ["load_svmlight"]

_WHERE = "task.dataset"
_PACKED = (".gz", ".bz2")
_BYTES = 4  # of a float32
_LONGEST_LINE = 1 << 28
# What a record and each of its values take at most while they are read: they grow by copying.
_RECORD_BYTES = 48
_VALUE_BYTES = 36


@dataclass(frozen=True, eq=False)
class _Columns:
    """What a file holds.

    Args:
        path: the file.
        records: sparse float32 `[records, width]`, column i for the index i.
        targets: float64 `[records]`.
        indices: every index that occurs, also with an explicit 0 as its value.
    """

    path: Path
    records: Any
    targets: np.ndarray
    indices: np.ndarray


def load_svmlight(argument: str, data_dir: Path) -> TaskData:
    """Read a file of records, and its test records where they lie beside it.

    Test records are those of `PATH.t`, as LIBSVM's data sets are named; for `PATH.gz` and
    `PATH.bz2` likewise of `PATH.t`, and each with any of these endings. Indices count from 0 if
    an index 0 occurs in either file, and from 1 otherwise.

    Args:
        argument: the path, plain, gzip (`.gz`) or bzip2 (`.bz2`). A relative one is looked for in
            `data_dir` first, then in the current directory.
        data_dir: a folder.

    Returns:
        Inputs dense float32 `[records, features]`; test records are filled up with zeros to the
        width of the training records. Targets int64 `[records]` where all are -1 or 1 (kept), or
        whole numbers from 0 (kept) or from 1 (then counted from 0): class labels. Other targets
        are numbers, float32.

    Raises:
        InputError: on `task.dataset`, if the file is missing, is no such text, holds no record or
            no feature, does not fit in memory, or if its test records have more features.
    """
    if not argument:
        raise InputError(_WHERE, "svmlight:", "must name a file after the colon")
    wanted, folders = os.path.expanduser(argument), [data_dir, Path()]
    path = find_file([wanted], folders)
    if path is None:
        looked = " or ".join(dict.fromkeys(str(folder / wanted) for folder in folders))
        raise InputError(_WHERE, f"svmlight:{argument}", f"there is no file {looked}")
    tables = [_parse(path)]
    stem = path.name.removesuffix(path.suffix) if path.suffix in _PACKED else path.name
    test_path = find_file([f"{stem}.t{ending}" for ending in ("", *_PACKED)], [path.parent])
    if test_path is not None:
        tables.append(_parse(test_path))
    first = min(int(table.indices.min(initial=1)) for table in tables)
    features = _features(tables, first)
    targets = _as_targets([table.targets for table in tables])
    train, *test = (
        Dataset(_dense(table, first, features), values)
        for table, values in zip(tables, targets, strict=True)
    )
    # How many classes there are is not counted: `[task].outputs` or the test records say it.
    return TaskData(f"svmlight:{argument}", train, test[0] if test else None)


def _parse(path: Path) -> _Columns:
    # Imported here because it is slow, and only this data set needs it.
    from sklearn.datasets import load_svmlight_file

    lines = None
    try:
        with content(path) as (stream, _):
            lines = _Lines(stream, host_bytes())
            records, targets = load_svmlight_file(lines, dtype=np.float32, zero_based=True)
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
    return _Columns(path, records, np.asarray(targets, np.float64), np.asarray(records.indices))


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
            yield line


def _features(tables: Sequence[_Columns], first: int) -> int:
    """How many features the training records have, which must suffice for the test records."""
    last, *test = (int(table.indices.max(initial=first - 1)) for table in tables)
    features = last + 1 - first
    if features == 0:
        raise InputError(_WHERE, str(tables[0].path), "no record has a feature")
    if test and test[0] > last:
        expected = (
            f"the test records have {test[0] + 1 - first} features, the training records of "
            f"{tables[0].path.name} {features}: write '{test[0]}:0' at the end of one of its "
            "lines to widen them"
        )
        raise InputError(_WHERE, str(tables[1].path), expected)
    size, free = sum(len(table.targets) for table in tables) * features * _BYTES, host_bytes()
    if size > free:
        expected = (
            f"its dense records would take {in_words(size)}, and {in_words(free)} of memory are "
            "free: choose fewer features or records"
        )
        raise InputError(_WHERE, str(tables[0].path), expected)
    return features


def _dense(table: _Columns, first: int, features: int) -> Tensor:
    """The records of a file as float32 `[records, features]`; the index `first` is column 0."""
    from scipy.sparse import csr_array  # as slow as scikit-learn, which needs it anyway

    records = table.records
    parts = (records.data, table.indices - first, records.indptr)
    dense = csr_array(parts, shape=(len(table.targets), features)).toarray()
    return torch.from_numpy(dense)


def _as_targets(given: Sequence[np.ndarray]) -> list[Tensor]:
    """The targets of all files as class labels if they can be that, else as numbers."""
    present = np.unique(np.concatenate(given))
    signs = bool(np.isin(present, (-1, 1)).all())
    # Beyond 2^31 they are no classes, and nothing finite is too large for int64 below it.
    whole = bool(((present == np.floor(present)) & (present < 2**31)).all())
    if not signs and not (whole and present[0] in (0, 1)):
        return [torch.from_numpy(values).to(torch.float32) for values in given]
    lowest = 0 if signs else int(present[0])
    return [torch.from_numpy(values.astype(np.int64) - lowest) for values in given]
