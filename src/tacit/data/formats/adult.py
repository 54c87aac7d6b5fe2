"""Adult: is a person's income above 50,000 dollars? (B. Becker and R. Kohavi, UCI, 1996).

The two files `adult.data` (32,561 records) and `adult.test` (16,281) are looked for in a folder,
otherwise downloaded. A record becomes 105 numbers: the six numeric columns, scaled to [0, 1] with
public bounds (dollars by log(1 + x), which would otherwise be almost all near 0), then one 0 / 1
for each of the 99 categories that the description lists. Then every record is divided by its own
L2 norm.

None of this looks at more than one record, so none of it costs privacy: bounds, categories and what
stands for a missing value are the tables of `adult.toml`, of what is publicly known: all of it
comes from the description that is published with the data (`adult.names`), none of it from the
records of a node. An encoding that was fitted to the training records would have to be paid for.

Records have L2 norm at most 1, so with a bias (a feature that is always 1) the gradient of the
logistic loss has L2 norm at most sqrt(2), and the loss is smooth with L = (1 + 1) / 4 = 1/2;
without a bias, 1 and 1/4.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch

from tacit.data.datasets import Dataset, TaskData
from tacit.data.files import UNREADABLE, PublishedFile, obtain, read_content
from tacit.errors import InputError

_DESCRIPTION = tomllib.loads(
    (resources.files("tacit.data.formats") / "adult.toml").read_text(encoding="utf-8")
)
COLUMNS: tuple[str, ...] = tuple(_DESCRIPTION["columns"])
LABELS: Mapping[str, int] = MappingProxyType(_DESCRIPTION["labels"])
NUMBERS: Mapping[str, tuple[float, float, bool]] = MappingProxyType(
    {name: tuple(bounds) for name, bounds in _DESCRIPTION["numbers"].items()}
)
MISSING = "?"
MOST_FREQUENT: Mapping[str, str] = MappingProxyType(_DESCRIPTION["most_frequent"])
CATEGORIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {name: tuple(listed) for name, listed in _DESCRIPTION["categories"].items()}
)

_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"
TRAIN_FILE = PublishedFile(
    "adult",
    f"{_URL}/adult.data",
    "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
)
TEST_FILE = PublishedFile(
    "adult",
    f"{_URL}/adult.test",
    "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
)

FEATURES: tuple[str, ...] = (
    *NUMBERS,
    *(f"{column}={category}" for column, listed in CATEGORIES.items() for category in listed),
)
"""What each of the 105 numbers of a record is."""

_WHERE = "task.data_dir"
_MOST_BYTES = 1 << 26  # the published files hold 4 million
# Rounding to float32 must not take a norm above 1: it changes it by at most one part in 2^24.
_UNIT = 1 - 2**-22

Table = dict[str, np.ndarray]


def load_adult(
    data_dir: Path, train_file: PublishedFile = TRAIN_FILE, test_file: PublishedFile = TEST_FILE
) -> TaskData:
    """Read Adult: inputs float32 `[records, 105]` of L2 norm 1, targets int64 0 / 1 `[records]`.

    The categorical columns of the training records, missing values replaced, are columns to divide
    by (`by:education`), beside `label`. The files lie in the folder `adult` of `data_dir`, or in
    that itself, plain or gzip; what is missing is downloaded to the former.

    Raises:
        InputError: on `task.data_dir`, if a file is wrong, or missing and cannot be downloaded.
    """
    folders = [data_dir / "adult", data_dir]
    advice = f"put adult.data and adult.test in {folders[0]}"
    train, test = (
        read_adult(obtain(file, data_dir, folders, advice)) for file in (train_file, test_file)
    )
    columns = {name: train[name] for name in CATEGORIES}
    return TaskData("adult", _encoded(train), _encoded(test), len(LABELS), columns, CATEGORIES)


def read_adult(path: Path) -> Table:
    """The columns of a file of Adult, each `[records]`: float64 numbers, text, int64 0 / 1 income.

    Missing values are replaced; numbers are as they stand. Empty lines, and those that begin with
    `|`, are passed over.

    Raises:
        InputError: on `task.data_dir`, naming the file, and a line and its field that are wrong.
    """
    try:
        lines = read_content(path, _MOST_BYTES).decode("utf-8").splitlines()
    except (*UNREADABLE, UnicodeDecodeError) as error:
        reason = f"a text file of Adult was expected: {type(error).__name__}: {error}"
        raise InputError(_WHERE, str(path), reason) from error
    kept = [
        number for number, line in enumerate(lines) if line.strip() and not line.startswith("|")
    ]
    if not kept:
        raise InputError(_WHERE, str(path), "holds no record")
    for number in kept:
        found = lines[number].count(",") + 1
        if found != len(COLUMNS):
            expected = f"line {number + 1} has {found} fields, not {len(COLUMNS)}"
            raise InputError(_WHERE, str(path), expected)
    # All lines cut at once, and a field read once however often it occurs: half the time
    # that taking each line apart needs.
    fields = ",".join(lines[number] for number in kept).split(",")
    table = {}
    for place, name in enumerate(COLUMNS):
        column = fields[place :: len(COLUMNS)]
        try:
            table[name] = _column(name, column)
        except _FieldError as error:
            line = kept[column.index(error.field)] + 1
            expected = f"line {line}: {name} {error.field.strip()!r} {error}"
            raise InputError(_WHERE, str(path), expected) from None
    return table


class _FieldError(Exception):
    """A field that cannot be read; its text says why."""

    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        super().__init__(reason)


def _column(name: str, fields: Sequence[str]) -> np.ndarray:
    if name in NUMBERS:
        return _read_each(fields, _number, "is no number of 0 or more")
    if name in CATEGORIES:
        known = {MISSING: MOST_FREQUENT[name]} if name in MOST_FREQUENT else {}
        known |= {category: category for category in CATEGORIES[name]}
        return _read_each(fields, known.__getitem__, "is no category of the description")
    ended = {f"{word}{end}": sign for word, sign in LABELS.items() for end in ("", ".")}
    reason = f"is none of {', '.join(LABELS)}"
    return _read_each(fields, ended.__getitem__, reason)


def _read_each(
    fields: Sequence[str], read: Callable[[str], float | str], reason: str
) -> np.ndarray:
    """Each field as `read` reads it; the first that it cannot read is an error."""
    numbers: dict[str, int] = {}
    values: list[float | str] = []
    for field in dict.fromkeys(fields):  # each once, in order: most repeat often
        try:
            values.append(read(field.strip()))
        except (KeyError, ValueError):
            raise _FieldError(field, reason) from None
        numbers[field] = len(numbers)
    places = np.fromiter(map(numbers.__getitem__, fields), dtype=np.intp, count=len(fields))
    return np.array(values)[places]


def _number(field: str) -> float:
    if not (field.isascii() and field.isdigit() and len(field) < 10):
        raise ValueError(field)
    return float(field)


def _encoded(table: Mapping[str, np.ndarray]) -> Dataset:
    features = [_scaled(table[name], *bounds)[:, None] for name, bounds in NUMBERS.items()]
    features += [
        table[name][:, None] == np.array(listed)[None, :] for name, listed in CATEGORIES.items()
    ]
    inputs = np.concatenate(features, axis=1, dtype=np.float64)
    # Never 0: each of eight columns has one category.
    inputs *= _UNIT / np.linalg.norm(inputs, axis=1, keepdims=True)
    targets = torch.from_numpy(table["income"])
    return Dataset(torch.from_numpy(inputs).to(torch.float32), targets)


def _scaled(values: np.ndarray, low: float, high: float, logarithmic: bool) -> np.ndarray:
    """Values clipped to public bounds, and these moved to 0 and 1."""
    clipped = np.clip(values, low, high)
    if logarithmic:
        clipped, low, high = np.log1p(clipped), float(np.log1p(low)), float(np.log1p(high))
    return np.asarray((clipped - low) / (high - low))
