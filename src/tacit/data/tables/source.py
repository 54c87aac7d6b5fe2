"""Tables as data sets: `csv:FILE` and `parquet:FILE` of `[task]`."""

from __future__ import annotations

import os
from pathlib import Path

from tacit.data.datasets import Dataset, TaskData
from tacit.data.files import find_file
from tacit.data.tables.check import OwnScreen
from tacit.data.tables.reading import CSV_ENDINGS, PARQUET_ENDINGS, read_table
from tacit.data.tables.schema import Schema, default_schema, find_schema
from tacit.errors import InputError


def is_table(dataset: str | None) -> bool:
    """Whether `[task].dataset` or `[task].test` names a table."""
    return (
        dataset is not None and dataset.partition(":")[0] in ("csv", "parquet") and ":" in dataset
    )


def table_schema(dataset: str) -> str:
    """The path of the schema of a table, where `[task].schema` does not say it."""
    return default_schema(dataset.partition(":")[2])


def load_table(dataset: str, data_dir: Path, schema: Schema | None, test: str | None) -> TaskData:
    """Read a table by its schema, or, if none is given, by that beside its file.

    `dataset` and `test`, a table of public test records, are `csv:FILE` or `parquet:FILE`; a
    relative path is seen from the current directory, then from `data_dir`.

    Raises:
        InputError: on `task.dataset`, `task.schema` or `task.test`.
        RecordsError: records break what is declared; says how many.
    """
    path = _find(dataset, data_dir, "task.dataset")
    if schema is None:
        schema = find_schema(table_schema(dataset), data_dir)
    if test is not None and is_table(test) and path.samefile(_find(test, data_dir, "task.test")):
        expected = "is the table that is trained on: name another one, of public records"
        raise InputError("task.test", test, expected)
    where = path.name
    table = schema.read(read_table(path, "task.dataset", use=schema), where)
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
        raise InputError(
            "task.test", test, "must name a table of public records: csv:FILE or parquet:FILE"
        )
    path = _find(test, data_dir, "task.test")
    return schema.dataset(read_table(path, "task.test", use=schema), path.name)


def _find(reference: str, data_dir: Path, where: str) -> Path:
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
