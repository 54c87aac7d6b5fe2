"""Tables as they come: CSV and Parquet files, and frames of pandas, polars or PyArrow.

Nothing is inferred from the records here, neither types nor what is missing: fields are text until
a schema says what they are. CSV is read by Python's own reader, which needs no package. Parquet
needs PyArrow. No error quotes a field.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tacit.base.free_memory import host_bytes, in_words
from tacit.base.plain_files import check_plain
from tacit.data.files import UNREADABLE, UnfitFileError, content
from tacit.data.tables.fields import Table, field_text
from tacit.errors import InputError, RecordsError, optional

SEPARATORS = (",", ";", "\t")
_FIELD_BYTES = 80  # of a text without its characters, and of its places in lists
_FRAMES = ("pandas", "polars", "pyarrow", "narwhals", "modin", "cudf", "dask")
_NO_TABLE = (
    "must be a table: a frame of pandas or polars, or a PyArrow table (a schema was given; pairs "
    "of arrays need none)"
)


def is_frame(value: object) -> bool:
    """Whether something is one frame; imports nothing where no such package made it."""
    if type(value).__module__.partition(".")[0] not in _FRAMES:
        return False
    import narwhals

    return bool(narwhals.dependencies.is_into_dataframe(value))


def as_table(value: object, where: str) -> Table:
    """The columns of a frame, or of a mapping of columns, as texts.

    Raises:
        InputError: on `where`, if it is no frame, or two of its columns have one name.
    """
    if not isinstance(value, Mapping) and not is_frame(value):
        raise InputError(where, type(value).__name__, _NO_TABLE)
    try:
        columns = value if isinstance(value, Mapping) else _frame_columns(value)
        table = {str(name): _fields(column) for name, column in columns.items()}
    except Exception as error:  # whatever the user's object raises; its text may quote a record
        found = f"{type(value).__name__}: {type(error).__name__}"
        raise RecordsError(where, found, "must be a table whose columns can be read") from error
    if len(table) < len(columns):
        found = f"{len(columns)} columns"  # whose names, without a header, are a record
        raise InputError(where, found, "must name every column once")
    if len({len(texts) for texts in table.values()}) > 1:
        raise InputError(where, f"{len(columns)} columns", "must be of one length")
    return table


def _frame_columns(frame: object) -> Mapping[object, list[Any]]:
    """The columns of a frame; narwhals knows what each kind of frame takes for missing."""
    import narwhals

    opened: Any = narwhals.from_native(frame, eager_only=True)
    found: dict[object, list[Any]] = {}
    for name in opened.columns:
        series = opened[name]
        marks = zip(series.is_null().to_list(), series.to_list(), strict=True)
        found[name] = [None if missing else value for missing, value in marks]
    return found


def _fields(values: Iterable[Any]) -> list[str | None]:
    known: dict[str, str | None] = {}
    texts: list[str | None] = []
    for value in values:
        # Texts alone are looked up: of other values, equal ones may be written in two ways.
        if type(value) is not str:
            texts.append(field_text(value))
            continue
        if value not in known:
            known[value] = field_text(value)
        texts.append(known[value])
    return texts


def found_separator(path: Path, where: str) -> str:
    """What stands between the names of the columns of a file: a comma, a semicolon or a tab.

    Raises:
        InputError: on `where`, as `read_table`.
    """
    counts = {}
    for sign in SEPARATORS:
        with contextlib.suppress(InputError):  # with quotes, only the right one may be readable
            counts[sign] = len(read_header(path, where, sign))
    if max(counts.values(), default=0) < 2 and SEPARATORS[0] not in counts:
        read_header(path, where)  # says why
    return max(counts, key=lambda sign: counts[sign])


def read_header(path: Path, where: str, separator: str = ",") -> list[str]:
    """The names of the columns of a file; of its records nothing is read.

    Raises:
        InputError: on `where`, as `read_table`.
    """
    return _reader(path, where).header(path, where, separator)


def read_table(path: Path, where: str, separator: str = ",", most: int | None = None) -> Table:
    """A file as texts, or its first `most` records.

    The ending of its name is one of `TABLE_READERS`; CSV may be packed by gzip (`.csv.gz`), and has
    `separator` between the fields of a line.

    Raises:
        InputError: on `where`, if the file cannot be read as what its ending says.
        RecordsError: lines have another number of fields than the header; says how many.
    """
    return _reader(path, where).table(path, where, separator, most)


class _Csv:
    """Comma-separated values, with a header; quotes as RFC 4180 has them."""

    def header(self, path: Path, where: str, separator: str) -> list[str]:
        return list(self.table(path, where, separator, 0))

    def table(self, path: Path, where: str, separator: str, most: int | None) -> Table:
        try:
            with content(path) as (stream, _):
                text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
                lines = csv.reader(text, delimiter=separator, strict=True)
                names = [name.strip() for name in next(lines, [])]
                found = list(_within_memory(itertools.islice(lines, most)))
        except UnfitFileError as error:
            raise InputError(where, str(path), str(error)) from error
        except UNREADABLE as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise InputError(where, str(path), f"cannot be read as CSV ({reason})") from error
        except (csv.Error, UnicodeDecodeError) as error:  # their text may quote records
            expected = f"must be CSV in UTF-8, such as age,sex ({type(error).__name__})"
            raise InputError(where, str(path), expected) from error
        _check_names(names, where, path, separator)
        unlike = sum(len(line) != len(names) for line in found)
        if unlike:
            rule = f"every line must have {len(names)} fields, as the header has"
            raise RecordsError(f"{where}, {path}", f"{unlike:,} of {len(found):,} records", rule)
        columns = zip(*found, strict=True) if found else ((),) * len(names)
        return {name: _fields(column) for name, column in zip(names, columns, strict=True)}


class _Parquet:
    """Apache Parquet."""

    def header(self, path: Path, where: str, separator: str) -> list[str]:
        return list(self._open(path, where).schema_arrow.names)

    def table(self, path: Path, where: str, separator: str, most: int | None) -> Table:
        file = self._open(path, where)
        sizes = [
            file.metadata.row_group(group).total_byte_size for group in range(file.num_row_groups)
        ]
        if sum(sizes) * 2 > host_bytes():
            raise InputError(where, str(path), "does not fit in the memory that is free")
        try:
            groups = range(file.num_row_groups if most is None else min(1, file.num_row_groups))
            table = file.read_row_groups(list(groups), use_threads=False)
        except Exception as error:  # a damaged file may raise anything, and quote records
            expected = f"cannot be read as Parquet ({type(error).__name__})"
            raise InputError(where, str(path), expected) from error
        names = list(table.column_names)
        _check_names(names, where, path, separator)
        return as_table(table if most is None else table.slice(0, most), where)

    def _open(self, path: Path, where: str) -> Any:
        optional("pyarrow")
        from pyarrow import parquet

        try:
            check_plain(path)
            return parquet.ParquetFile(path)
        except Exception as error:
            expected = f"cannot be read as Parquet ({type(error).__name__})"
            raise InputError(where, str(path), expected) from error


def _within_memory(lines: Iterable[list[str]]) -> Iterator[list[str]]:
    """Lines that are not empty, as long as there is memory for them: a packed file may be huge."""
    free, needed = host_bytes(), 0
    for line in filter(None, lines):
        needed += _FIELD_BYTES * len(line) + sum(map(len, line))
        if needed > free:
            raise UnfitFileError(f"holds more records than fit in {in_words(free)} of memory")
        yield line


def _check_names(names: Sequence[str], where: str, path: Path, separator: str) -> None:
    if not names or "" in names:
        expected = f"must begin with a line of names, with {separator!r} between them"
        raise InputError(where, str(path), expected)
    if len(set(names)) < len(names):
        # Its name is not said: where the line of names is missing, it is a field of a record.
        places = [place for place, name in enumerate(names, 1) if names.count(name) > 1][:2]
        found = f"has two columns of the same name, columns {places[0]} and {places[1]}"
        raise InputError(where, str(path), found)


def _reader(path: Path, where: str) -> _Csv | _Parquet:
    name = path.name.lower().removesuffix(".gz")
    reader = TABLE_READERS.get(Path(name).suffix)
    if reader is None:
        expected = f"must end in one of {', '.join(TABLE_READERS)} (or .csv.gz)"
        raise InputError(where, str(path), expected)
    if not os.path.isfile(path):
        raise InputError(where, str(path), "there is no such file")
    return reader()


TABLE_READERS: MappingProxyType[str, Callable[[], _Csv | _Parquet]] = MappingProxyType(
    {".csv": _Csv, ".parquet": _Parquet}
)
"""How a table is read, by the ending of its file."""
