"""Tables as they come: CSV and Parquet files, and frames of pandas, polars or PyArrow.

Nothing is inferred from the records here, neither types nor what is missing: fields of a CSV file
are text until a schema says what they are. Files are read by PyArrow, column by column. No error
quotes a field.
"""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Protocol
from urllib.parse import unquote

import numpy as np

from tacit.base.free_memory import host_bytes, in_words
from tacit.base.plain_files import check_plain
from tacit.data.files import UNREADABLE, UnfitFileError, content
from tacit.data.tables.dialect import ENDING, Dialect, beside
from tacit.data.tables.fields import Column, Notation, Table, as_column, is_text, refuse
from tacit.errors import InputError, RecordsError

CSV_ENDINGS = (".csv", ".csv.gz")
PARQUET_ENDINGS = (".parquet", ".pq")
TABLE_ENDINGS = (*CSV_ENDINGS, *PARQUET_ENDINGS)
"""How the file of a table ends; a folder of the second kind holds parts of one."""

_BLOCK = 1 << 20  # bytes that are parsed at a time; a longer line is left to the strict reader
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_FIELD_BYTES = 80  # of a text without its characters, and of its places in lists
_TIMES = 3  # what a table takes in memory, as a multiple of the bytes of its file
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


def as_columns(value: object, where: str) -> dict[str, Any]:
    """The columns of a frame, or of a mapping of columns, by name; none of them is read.

    Raises:
        InputError: on `where`, if it is no frame, or two of its columns have one name.
    """
    if not isinstance(value, Mapping) and not is_frame(value):
        raise InputError(where, type(value).__name__, _NO_TABLE)
    try:
        named = list(value.items()) if isinstance(value, Mapping) else _series(value)
    except InputError:
        raise
    except Exception as error:  # whatever the user's object raises; its text may quote a record
        found = f"{type(value).__name__}: {type(error).__name__}"
        raise RecordsError(where, found, "must be a table whose columns can be read") from error
    if not all(isinstance(name, str | int) for name, _ in named):
        raise InputError(where, f"{len(named)} columns", "must have one line of names, of text")
    named = [(name, column) for name, column in named if not _is_index(str(name))]
    columns = {str(name): column for name, column in named}
    if len(columns) < len(named):
        found = f"{len(named)} columns"  # whose names, without a header, are a record
        raise InputError(where, found, "must name every column once")
    return columns


def _series(frame: Any) -> list[tuple[Any, Any]]:
    """The columns of a frame; narwhals knows what each kind of frame takes for missing."""
    import narwhals

    if hasattr(frame, "iloc"):  # as pandas has it: names may be of any type
        parts = [frame.iloc[:, place] for place in range(frame.shape[1])]
        return [
            (name, narwhals.from_native(part.rename("x"), series_only=True))
            for name, part in zip(frame.columns, parts, strict=True)
        ]
    opened: Any = narwhals.from_native(frame, eager_only=True)
    return [(name, opened[name]) for name in opened.columns]


def read_columns(columns: Mapping[str, Any], names: Sequence[str], where: str) -> Table:
    """Some columns of `as_columns`, read.

    Raises:
        RecordsError: a column cannot be read, or they are not of one length.
    """
    table: dict[str, Column] = {}
    for name in names:
        try:
            table[name] = as_column(columns[name])
        except Exception as error:  # whatever the user's object raises; its text may quote a record
            found = type(error).__name__
            rule = "must be a column of numbers, texts, dates or truth values"
            raise RecordsError(f"column {name!r} of {where}", found, rule) from error
    if len({len(column) for column in table.values()}) > 1:
        raise InputError(where, f"{len(columns)} columns", "must be of one length")
    return table


class Use(Protocol):
    """What is made of the columns of a table, by which they can be kept in less memory."""

    missing_words: tuple[str, ...]

    @property
    def numbers(self) -> Collection[str]:
        """The columns of which nothing but numbers is made, and of missing fields NaN."""

    def narrowed(self, name: str, fields: Column) -> Column:
        """What has to be kept of a column."""


def unnamed(path: Path, where: str, dialect: Dialect) -> list[str]:
    """The columns of a file that have no name and are not read, as `column 1`."""
    read = _csv if path.name.lower().endswith(CSV_ENDINGS) else _parquet
    names, _ = read(path, where, dialect, 0, None)
    return [f"column {place}" for place, name in enumerate(names, 1) if not name]


def read_table(
    path: Path,
    where: str,
    dialect: Dialect | None = None,
    most: int | None = None,
    use: Use | None = None,
) -> Table:
    """The columns of a table, or of its first `most` records, by their names in the schema.

    `path` is a file that ends in one of `TABLE_ENDINGS`, or a folder of Parquet files, whose names
    may tell further columns as Hive writes them (`year=2024/part-0.parquet`); `where` is what an
    error names. It is written as the `dialect` says, or the file beside it. `use` is what is made
    of its columns, such as a schema; None: anything.

    Raises:
        InputError: on `where`, if the file cannot be read as what its ending says.
        RecordsError: lines have another number of fields than the header; says how many.
    """
    import pyarrow

    _check_table(path, where)
    dialect = Dialect.beside(path) if dialect is None else dialect
    read = _csv if path.name.lower().endswith(CSV_ENDINGS) else _parquet
    names, columns = read(path, where, dialect, most, use)
    renamed, table = _renamed(names, where, path, dialect), dict[str, Column]()
    strange = sorted(dialect.named - {*renamed.values()})
    if strange:
        expected = f"the table has no such column: {beside(str(path), ENDING)} names it"
        raise InputError(where, strange[0], expected)
    for place, part in enumerate(columns):
        if place in renamed:
            name = renamed[place]
            column = _written(part, dialect.notation(name))
            table[name] = column if use is None else use.narrowed(name, column)
        del part
    pyarrow.default_memory_pool().release_unused()  # what reading took beside the columns
    return table


def read_parts(
    path: Path | None,
    where: str,
    wanted: Collection[str],
    dialect: Dialect | None = None,
    at_once: int = 1 << 16,
) -> Iterator[Table]:
    """Those columns of a table that are wanted and there, so many records at a time.

    The first part has no records, so that columns are known before any is read. A field is what
    `read_table` makes of it. `path` is as there; None is standard input, as CSV.

    Raises:
        InputError, RecordsError: as `read_table`; a row is told by its place in its part.
    """
    shown = Path("-") if path is None else path
    if path is not None:
        _check_table(path, where)
        dialect = Dialect.beside(path) if dialect is None else dialect
    dialect = Dialect() if dialect is None else dialect
    if path is None or path.name.lower().endswith(CSV_ENDINGS):
        names, parts = _csv_parts(path, where, dialect, at_once)
    else:
        names, parts = _parquet_parts(path, where, dialect, wanted, at_once)
    renamed = _renamed(names, where, shown, dialect)
    for part in parts:
        yield {
            name: _written(part[place], dialect.notation(name))
            for place, name in renamed.items()
            if name in wanted
        }


def _check_table(path: Path, where: str) -> None:
    name = path.name.lower()
    if not name.endswith(TABLE_ENDINGS) and not os.path.isdir(path):
        expected = f"must end in one of {', '.join(TABLE_ENDINGS)}"
        raise InputError(where, str(path), expected)
    if not os.path.exists(path) or (os.path.isdir(path) and name.endswith(CSV_ENDINGS)):
        raise InputError(where, str(path), "there is no such file")


def _renamed(names: Sequence[str], where: str, path: Path, dialect: Dialect) -> dict[int, str]:
    """What the schema calls the columns of a table, by their places; an index is none of them."""
    kept = [place for place, name in enumerate(names) if not _is_index(name)]
    if not kept:
        raise InputError(where, str(path), _NO_NAMES)
    named = [dialect.names.get(names[place], names[place]) for place in kept]
    if len(set(named)) < len(named):
        # Its name is not said: where the line of names is missing, it is a field of a record.
        places = [place for place, name in enumerate(named, 1) if named.count(name) > 1][:2]
        found = f"has two columns of the same name, columns {places[0]} and {places[1]}"
        raise InputError(where, str(path), found)
    return dict(zip(kept, named, strict=True))


def _written(part: Any, notation: Notation) -> Column:
    values = as_column(part).values
    if not is_text(values.type):  # a number, or a date, is written in no way
        notation = replace(notation, decimal=".", thousands="", dates=())
    return Column(values, notation)


def _is_index(name: str) -> bool:
    """Whether a column has no name, as an index that pandas writes (or not: by its rows)."""
    return not name or re.fullmatch(r"__index_level_\d+__", name) is not None


_NO_NAMES = (
    "must begin with a line of names; lines before it, another separator or encoding, or names "
    f"where no line has them are declared in a file beside it that ends in {ENDING}"
)


def _csv(
    path: Path, where: str, dialect: Dialect, most: int | None, use: Use | None
) -> tuple[list[str], Iterator[Any]]:
    """Comma-separated values; quotes as RFC 4180 has them.

    Arrow reads what leaves no doubt. Anything else is for Python's reader, which is strict, slow,
    and knows in which line something is wrong.
    """
    with _csv_errors(path, where, dialect) as at:
        with content(path) as (stream, _):
            names, lines = _begun(stream, dialect, at)
            skipped = dialect.skip_lines + lines.line_num
            if most is not None or not names:
                rows = itertools.islice(lines, most)
                return names, iter(_by_rows(rows, names, where, path))
        columns: list[Any] | None = None
        for kinds in _kinds(names, dialect, use):
            with content(path) as (stream, _):
                columns = _by_arrow(_Utf8(stream, dialect), kinds, skipped, use)
            if columns is not None:
                break
        else:
            with content(path) as (stream, _):
                columns = _by_rows(_begun(stream, dialect, at)[1], names, where, path)
        # Each is forgotten here when the next is asked for.
        return names, (columns.pop(0) for _ in range(len(columns)))


def _csv_parts(
    path: Path | None, where: str, dialect: Dialect, at_once: int
) -> tuple[list[str], Iterator[Any]]:
    """The same, some records at a time: by Python's reader, which needs to know no others."""
    stack, shown = ExitStack(), Path("-") if path is None else path
    with _csv_errors(shown, where, dialect) as at:
        stream = sys.stdin.buffer if path is None else stack.enter_context(content(path))[0]
        names, lines = _begun(stream, dialect, at)

    def parts() -> Iterator[Any]:
        with stack, _csv_errors(shown, where, dialect, at):
            part: list[list[str]] = []
            records = filter(None, lines)
            while True:
                yield _by_rows(part, names, where, shown)
                if not (part := [*itertools.islice(records, at_once)]):
                    return

    return names, parts()


def _begun(stream: IO[bytes], dialect: Dialect, at: list[Any]) -> tuple[list[str], Any]:
    """The names of the columns of a file, and its lines after them; `at` then holds these."""
    at[:] = [lines := _lines(stream, dialect)]
    return list(dialect.header or map(str.strip, next(filter(None, lines), []))), lines


@contextmanager
def _csv_errors(
    path: Path, where: str, dialect: Dialect, at: list[Any] | None = None
) -> Iterator[list[Any]]:
    """Say in one plain line what is wrong with a file, and where the reader in `at` has got to."""
    at = [] if at is None else at
    try:
        yield at
    except UnfitFileError as error:
        raise InputError(where, str(path), str(error)) from error
    except UNREADABLE as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise InputError(where, str(path), f"cannot be read as CSV ({reason})") from error
    except UnicodeError as error:
        expected = (
            f"must be CSV in {dialect.encoding.upper()}, or {beside(str(path), ENDING)} must name "
            "another encoding, as in encoding = 'latin-1'"
        )
        raise InputError(where, str(path), expected) from error
    except csv.Error as error:  # its text may quote records
        expected = (
            f"cannot be read as CSV at line {dialect.skip_lines + at[0].line_num:,}: a field that "
            "begins with a quote must end with one, before a separator; and no field may have "
            f"more than {csv.field_size_limit():,} characters"
        )
        raise InputError(where, str(path), expected) from error


def _lines(stream: IO[bytes], dialect: Dialect) -> Any:
    """The lines of a file from that of the names on, as lists of fields."""
    encoding = "utf-8-sig" if _is_utf8(dialect) else dialect.encoding
    text = io.TextIOWrapper(stream, encoding=encoding, newline="")
    for _ in range(dialect.skip_lines):
        text.readline()
    return csv.reader(text, delimiter=dialect.separator, strict=True)


def _is_utf8(dialect: Dialect) -> bool:
    return codecs.lookup(dialect.encoding).name in ("utf-8", "utf-8-sig")


class _Utf8(io.RawIOBase):
    """A CSV file as UTF-8, as much of it as memory is free for.

    `is_regular`: whether every quote so far stands at an end of a field, or is one of two in a
    quoted field; at the end of the file, whether all are closed too. Of such a file all readers
    make the same.
    """

    def __init__(self, stream: IO[bytes], dialect: Dialect) -> None:
        plain, encoding = _is_utf8(dialect), dialect.encoding
        self._text = None if plain else io.TextIOWrapper(stream, encoding=encoding, newline="")
        self._stream, self._free = stream, host_bytes()
        self.separator = dialect.separator
        self._ends = np.frombuffer(b'\n\r"' + dialect.separator.encode(), np.uint8)
        self._bytes, self._quotes, self._last, self._is_placed = 0, 0, b"\n", True

    @property
    def is_regular(self) -> bool:
        return self._is_placed and self._quotes % 2 == 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        size = size if size > 0 else _BLOCK
        if self._text is None:
            piece = self._stream.read(size)
            piece = piece.removeprefix(codecs.BOM_UTF8) if self._bytes == 0 else piece
        else:
            piece = self._text.read(size // 4).encode()
        self._bytes += len(piece)
        if self._bytes * _TIMES > self._free:
            free = in_words(self._free)
            raise UnfitFileError(f"holds more records than fit in {free} of memory")
        if piece and (b'"' in piece or self._last == b'"'):
            # With the last sign of the piece before: a quote there is judged by what follows it.
            signs = np.frombuffer(self._last + piece, np.uint8)
            places = np.flatnonzero(signs == ord('"'))
            before = self._quotes - (self._last == b'"')
            closes = (np.arange(len(places)) + before) % 2 == 1
            opens = places[~closes]
            ends = places[closes]
            opened = np.isin(signs[opens[opens > 0] - 1], self._ends)
            closed = np.isin(signs[ends[ends < len(signs) - 1] + 1], self._ends)
            self._is_placed &= bool(opened.all() and closed.all())
            self._quotes = before + len(places)
        self._last = piece[-1:] or self._last
        return piece


def _kinds(names: Sequence[str], dialect: Dialect, use: Use | None) -> Iterator[list[str]]:
    """The types of Arrow that columns are tried as: numbers as such, and then all as text."""
    wanted = frozenset() if use is None else frozenset(use.numbers)
    own = [dialect.names.get(name, name) for name in names]
    numbers = [name in wanted and dialect.notation(name) == Notation() for name in own]
    if any(numbers):
        yield ["double" if number else "string" for number in numbers]
    yield ["string"] * len(names)


def _by_arrow(text: _Utf8, kinds: Sequence[str], skipped: int, use: Use | None) -> list[Any] | None:
    """The columns that follow some skipped lines; None: this is for a stricter reader."""
    import pyarrow
    from pyarrow import csv as arrow

    unlike: list[int] = []

    def skip(line: Any) -> str:
        unlike.append(line.actual_columns)
        return "skip"

    names = [str(place) for place in range(len(kinds))]
    try:
        table = arrow.read_csv(
            text,
            arrow.ReadOptions(column_names=names, skip_rows=skipped, block_size=_BLOCK),
            arrow.ParseOptions(
                delimiter=text.separator, newlines_in_values=True, invalid_row_handler=skip
            ),
            arrow.ConvertOptions(
                column_types=dict(zip(names, map(pyarrow.type_for_alias, kinds), strict=True)),
                null_values=[] if use is None else list(use.missing_words),
                strings_can_be_null=False,
            ),
        )
    except pyarrow.ArrowInvalid:  # its text may quote records
        return None
    # Arrow takes "inf" and "nan" too, which are no numbers of ours.
    columns = list(table.columns)
    doubtful = any(
        column.null_count + np.isfinite(column.to_numpy()).sum() < len(column)
        for column, kind in zip(columns, kinds, strict=True)
        if kind == "double"
    )
    return None if unlike or doubtful or not text.is_regular else columns


def _by_rows(lines: Iterable[list[str]], names: Sequence[str], where: str, path: Path) -> list[Any]:
    found: list[list[str]] = []
    free, needed = host_bytes(), 0
    for line in filter(None, lines):
        needed += _FIELD_BYTES * len(line) + sum(map(len, line))
        if needed > free:
            raise UnfitFileError(f"holds more records than fit in {in_words(free)} of memory")
        found.append(line)
    unlike = np.array([len(line) != len(names) for line in found], np.bool_)
    rule = f"every line must have {len(names)} fields, as the header has"
    if len({len(line) for line in found}) == 1 and len(names) == 1:
        rule = _NO_NAMES
    refuse(unlike, f"{where}, {path}", rule)
    return list(zip(*found, strict=True)) if found else [()] * len(names)


def _parquet(
    path: Path, where: str, dialect: Dialect, most: int | None, use: Use | None
) -> tuple[list[str], Iterator[Any]]:
    """Apache Parquet: one file, or all files of a folder; read column by column."""
    import pyarrow

    def column(name: str) -> Any:
        try:
            parts = [told[name] if name in told else read(file, name) for file, told in opened]
            return pyarrow.chunked_array(
                [part.cast(kinds[name]) for chunks in parts for part in chunks], kinds[name]
            )[:most]
        except Exception as error:  # a damaged file may raise anything
            raise _no_parquet(path, where, error) from error

    def read(file: Any, name: str) -> Any:
        if most is None:
            return file.read(columns=[name], use_threads=False)[name].chunks
        batches = file.iter_batches(max(most, 1), columns=[name], use_threads=False)
        return [batch[name] for batch in itertools.islice(batches, 1)]

    opened = _opened(path, where)
    try:
        about = [file.metadata for file, _ in opened]
        sizes = [
            one.row_group(k).total_byte_size for one in about for k in range(one.num_row_groups)
        ]
        if sum(sizes) * 2 > host_bytes():
            raise InputError(where, str(path), "does not fit in the memory that is free")
        schemas = [file.schema_arrow for file, _ in opened]
        merged = pyarrow.unify_schemas(schemas, promote_options="permissive")
    except InputError:
        raise
    except Exception as error:
        raise _no_parquet(path, where, error) from error
    kinds = dict(zip(merged.names, merged.types, strict=True))
    kinds |= dict.fromkeys(opened[0][1], pyarrow.string())
    names = [name for name in kinds if not _is_index(name)]
    return names, map(column, names)


def _parquet_parts(
    path: Path, where: str, dialect: Dialect, wanted: Collection[str], at_once: int
) -> tuple[list[str], Iterator[Any]]:
    """The same, some records at a time; what is not wanted is not read."""
    import pyarrow

    opened = _opened(path, where)
    first, told = opened[0]
    names = [name for name in (*first.schema_arrow.names, *told) if not _is_index(name)]
    own = [n for n in names if n not in told and dialect.names.get(n, n) in wanted]

    def parts() -> Iterator[Any]:
        none = pyarrow.RecordBatch.from_pylist([], schema=first.schema_arrow)
        try:
            for place, (file, told) in enumerate(opened):
                read = file.iter_batches(at_once, columns=own, use_threads=False)
                for batch in itertools.chain([none] if place == 0 else [], read):
                    of_folder = {name: column[0][: len(batch)] for name, column in told.items()}
                    yield [batch[n] if n in own else of_folder.get(n) for n in names]
        except Exception as error:
            raise _no_parquet(path, where, error) from error

    return names, parts()


def _opened(path: Path, where: str) -> list[tuple[Any, dict[str, Any]]]:
    """The files of a table, and for each the columns that its place tells, as Hive writes them."""
    import pyarrow
    from pyarrow import parquet

    opened: list[tuple[Any, dict[str, Any]]] = []
    try:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if not file.name.lower().endswith(PARQUET_ENDINGS):
                continue
            check_plain(file)
            found = parquet.ParquetFile(file, pre_buffer=False, buffer_size=_BLOCK)
            keys = (part.split("=", 1) for part in file.relative_to(path).parts[:-1])
            # What a folder's name says is text: if it is a number depends on other folders.
            told = {}
            for key, value in (pair for pair in keys if pair[1:]):
                text = pyarrow.scalar(None if value == _HIVE_NULL else unquote(value))
                told[key] = [pyarrow.repeat(text, found.metadata.num_rows)]
            opened.append((found, told))
        schemas = [file.schema_arrow for file, _ in opened]
        layouts = {
            frozenset(name for name in (*schema.names, *told) if not _is_index(name))
            for schema, (_, told) in zip(schemas, opened, strict=True)
        }
        if len(layouts) != 1:
            expected = "must hold Parquet files, all of which have the same columns"
            raise InputError(where, str(path), expected)
    except InputError:
        raise
    except Exception as error:
        raise _no_parquet(path, where, error) from error
    return opened


def _no_parquet(path: Path, where: str, error: Exception) -> InputError:
    """What is said of an error, which may quote records."""
    return InputError(where, str(path), f"cannot be read as Parquet ({type(error).__name__})")
