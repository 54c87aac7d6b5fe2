"""Where data sets come from: one row of `SOURCES` each, and a user's own function."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np

from tacit.data.datasets import Dataset, TaskData, as_dataset, check_dataset
from tacit.data.files import find_file
from tacit.data.formats.adult import load_adult
from tacit.data.formats.cifar10 import load_cifar10
from tacit.data.formats.digits import load_digits
from tacit.data.formats.idx import FASHION_MNIST, MNIST, load_idx_images
from tacit.data.formats.svmlight import Declared, load_svmlight
from tacit.data.public_coins import TEST_SPLIT, public_generator
from tacit.data.tables.check import OwnScreen
from tacit.data.tables.reading import CSV_ENDINGS, PARQUET_ENDINGS, read_table
from tacit.data.tables.schema import Schema, default_schema, find_schema
from tacit.errors import InputError, nearest
from tacit.models.imports import call_function

_WHERE, _TEST = "task.dataset", "task.test"


@dataclass(frozen=True)
class Request:
    """What a loader is asked for: as in `load`, which gives it.

    `argument` is what follows the colon in `name:argument`, or an empty string.
    """

    argument: str
    data_dir: Path
    seed: int
    schema: Schema | None = None
    test: str | None = None
    declared: Declared = field(default_factory=Declared)


Loader = Callable[[Request], TaskData]


def load(
    dataset: str,
    *,
    data_dir: Path,
    seed: int = 0,
    schema: Schema | None = None,
    test: str | None = None,
    test_share: float | None = None,
    declared: Declared | None = None,
) -> TaskData:
    """Load a data set.

    Args:
        dataset: a name in `SOURCES`, or `module:function`: a function without arguments that
            returns a `TaskData` or a pair `(train, test)`. Each of these is whatever
            `as_dataset` takes; `test` may be None.
        data_dir: the folder where files are looked for, and downloaded to.
        seed: the public one; draws the test set where a data set has none of its own.
        schema: of a table; by default that beside its file.
        test: a table of public test records, for a table: `csv:FILE` or `parquet:FILE`.
        test_share: the share of the training records that is held out for testing, and so
            declared public, where there are no test records.
        declared: what is public of an svmlight file, which does not say it itself.

    Raises:
        InputError: on `task.test` or `task.test_share` if it does not go with the data set, on
            `task.dataset` if the name or the data are wrong, on `task.data_dir` if
            a file is wrong or missing.
    """
    if test is not None and not is_table(dataset):
        raise InputError(_TEST, test, "goes with a table, and this data set is none")
    name, colon, argument = dataset.partition(":")
    loader = SOURCES.get(f"{name}:PATH" if colon else name)
    if loader is not None:
        folder = data_dir.expanduser()
        data = loader(Request(argument, folder, seed, schema, test, declared or Declared()))
    elif colon:
        data = _from_user(dataset)
    else:
        expected = f"{nearest(dataset, SOURCES)} (module:function names a function of your own)"
        raise InputError(_WHERE, dataset, expected)
    check_dataset(data.train, _WHERE, data.classes)
    if data.test is not None:
        check_dataset(data.test, f"{_WHERE} (test)", data.classes)
    return data if test_share is None else hold_out(data, test_share, seed)


def hold_out(data: TaskData, share: float, seed: int) -> TaskData:
    """Move a share of the training records, drawn by the public seed, to the test records.

    They are trained on by nobody, and epsilon covers nothing that is said of them. At least one is
    moved, and one stays. Where units are known, they are a share of these, with all their records.

    Raises:
        InputError: on `task.test_share`, if there are test records already, or too few records.
    """
    if data.test is not None:
        raise InputError("task.test_share", share, f"{data.name} has test records: leave it out")
    whose = np.arange(len(data.train))
    if data.train.units is not None:
        whose = np.unique(data.train.units, return_inverse=True)[1]
    count = int(whose.max()) + 1
    moved = round(share * count)
    kind = "records" if data.train.units is None else "units"
    if not 1 <= moved < count:
        expected = f"must leave at least one of the {count:,} {kind} on both sides"
        raise InputError("task.test_share", share, expected)
    order = public_generator(seed, TEST_SPLIT).permutation(count)
    moves = np.isin(whose, order[:moved])
    note = (
        f"test records: {moved:,} of {count:,} {kind} are held out and declared public "
        f"(task.test_share = {share:g}): no epsilon covers what is said of them"
    )
    kept = data.chosen(np.flatnonzero(~moves))
    return replace(kept, test=data.train.chosen(np.flatnonzero(moves)), notes=(*data.notes, note))


def _from_user(reference: str) -> TaskData:
    match call_function(reference, _WHERE):
        case TaskData() as data:
            train, test = _halves(data.train, data.test)
            return replace(data, train=train, test=test)
        case (given_train, given_test):
            train, test = _halves(given_train, given_test)
            return TaskData(reference, train, test)
        case result:
            expected = "the function must return a TaskData or a pair (train, test)"
            raise InputError(_WHERE, reference, f"{expected}, not {type(result).__name__}")


def _halves(train: object, test: object) -> tuple[Dataset, Dataset | None]:
    trained = as_dataset(train, _WHERE)
    return trained, None if test is None else as_dataset(test, f"{_WHERE} (test)")


def is_table(dataset: str | None) -> bool:
    """Whether `[task].dataset` or `[task].test` names a table."""
    return dataset is not None and dataset.startswith(("csv:", "parquet:"))


def table_schema(dataset: str) -> str:
    """The path of the schema of a table, where `[task].schema` does not say it."""
    return default_schema(dataset.partition(":")[2])


def _load_table(kind: str, request: Request) -> TaskData:
    """Read a table by its schema, or, if none is given, by that beside its file."""
    dataset, data_dir = f"{kind}:{request.argument}", request.data_dir
    schema, test = request.schema, request.test
    path = _find_table(dataset, data_dir, _WHERE)
    if schema is None:
        schema = find_schema(table_schema(dataset), data_dir)
    tested = None if test is None or not is_table(test) else _find_table(test, data_dir, _TEST)
    if tested is not None and path.samefile(tested):
        expected = "is the table that is trained on: name another one, of public records"
        raise InputError(_TEST, test, expected)
    where = path.name
    table = schema.read(read_table(path, _WHERE, use=schema), where)
    screen = OwnScreen()
    train = screen.dataset(table, schema, where)
    screen.warn(str(path))
    return TaskData(
        name=dataset,
        train=train,
        test=None if test is None else public_records(test, data_dir, schema),
        classes=schema.target.classes,
        columns=schema.groups(table, where),
        values=schema.group_values,
    )


def public_records(test: str, data_dir: Path, schema: Schema) -> Dataset:
    """The public test records that `[task].test` names.

    Raises:
        InputError: on `task.test`.
    """
    if not is_table(test):
        expected = "must name a table of public records: csv:FILE or parquet:FILE"
        raise InputError(_TEST, test, expected)
    path = _find_table(test, data_dir, _TEST)
    return schema.dataset(read_table(path, _TEST, use=schema), path.name)


def _find_table(reference: str, data_dir: Path, where: str) -> Path:
    """The file of a table, whose ending says what it is."""
    kind, _, argument = reference.partition(":")
    if not argument:
        raise InputError(where, reference, f"must name a file after the colon, as in {kind}:FILE")
    wanted = os.path.expanduser(argument)
    endings = CSV_ENDINGS if kind == "csv" else PARQUET_ENDINGS
    folders = [Path(), data_dir.expanduser()]
    parts = (folder / wanted for folder in folders if kind == "parquet")
    path = next((part for part in parts if os.path.isdir(part)), None)
    if path is None and not wanted.lower().endswith(endings):
        raise InputError(where, reference, f"must be a file that ends in {' or '.join(endings)}")
    path = path or find_file([wanted], folders)
    if path is None:
        looked = " or ".join(dict.fromkeys(str(folder / wanted) for folder in folders))
        raise InputError(where, reference, f"there is no file {looked}")
    return path


SOURCES: MappingProxyType[str, Loader] = MappingProxyType(
    {
        "digits": lambda request: load_digits(request.seed),
        "mnist": lambda request: load_idx_images(MNIST, request.data_dir),
        "fashion-mnist": lambda request: load_idx_images(FASHION_MNIST, request.data_dir),
        "cifar10": lambda request: load_cifar10(request.data_dir),
        "adult": lambda request: load_adult(request.data_dir),
        "svmlight:PATH": lambda request: load_svmlight(
            request.argument, request.data_dir, request.declared
        ),
        "csv:PATH": partial(_load_table, "csv"),
        "parquet:PATH": partial(_load_table, "parquet"),
    }
)
"""Loaders by name; a name that ends in `:PATH` takes an argument after the colon."""
