"""Tables that are read by columns are those that are read field by field."""

import datetime
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from slow_tables import NUMBER, RefusedError, encoded, fields_of

from tacit import Schema
from tacit.data.tables import reading
from tacit.data.tables.dialect import Dialect
from tacit.data.tables.fields import as_column
from tacit.data.tables.reading import read_table
from tacit.errors import InputError, RecordsError

TARGET = {"column": "target", "kind": "class", "labels": ["no", "yes"]}
WORDS = ("", "NA", "nan", "-9", "9.5")


def schema_of(**columns: Any) -> Schema:
    return Schema(target=TARGET, missing_words=WORDS, columns=columns)


def read_back(
    path, content: bytes, *, piece: int = reading._BLOCK, use: Any = None, **dialect: Any
):
    """The columns of a file with this content, which is read in pieces of so many bytes."""
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "_BLOCK", piece)
        return read_table(path, "here", Dialect(**dialect), use=use)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("tables") / "t.csv"


# How a file is divided into fields.

SIGNS = st.sampled_from(['"', '"', '""', ",", "\n", "\r\n", "\r", " ", "1", "a", "é", "\0", '","'])
PLAIN = st.text(st.sampled_from('ab1 é".,;\n\r'), max_size=6)


def quoted(field: str) -> str:
    return '"' + field.replace('"', '""') + '"'


def written(field: str) -> str:
    """A field as any program may write it."""
    return quoted(field) if set(field) & set('",\n\r') else field


FIELDS = st.one_of(PLAIN.map(written), PLAIN.map(quoted))
LINES = st.lists(st.one_of(*[st.tuples(FIELDS, FIELDS).map(",".join)] * 3, FIELDS), max_size=12)
LOOSE = st.lists(SIGNS, max_size=30).map(lambda signs: "a,b\n" + "".join(signs))
WHOLE = st.builds(
    lambda lines, end, last: end.join(["a,b", *lines, last]),
    LINES,
    st.sampled_from(["\n", "\r\n", "\r", "\n\n"]),
    st.sampled_from(["", "1,2", '1,"', '1,2"', '"']),
)
DAMAGED = st.builds(
    lambda whole, places, sign: "a,b\n" + _put(whole[4:], places, sign),
    WHOLE,
    st.lists(st.integers(0, 60), min_size=1, max_size=2),
    st.sampled_from(['"', ",", "\n", "x"]),
)


def _put(text: str, places: list[int], sign: str) -> str:
    for place in places:
        text = text[:place] + sign + text[place:]
    return text


@pytest.mark.slow
@settings(max_examples=3 * settings.default.max_examples, deadline=None)
@given(
    text=st.one_of(LOOSE, WHOLE, DAMAGED),
    mark=st.booleans(),
    piece=st.sampled_from([8, 13, 16, 32, 100, 1 << 20]),
    encoding=st.sampled_from(["utf-8", "UTF_8", "utf-16", "latin-1"]),
)
@example(text='a,b\n1,x"y\n3,z"w\n', mark=False, piece=1 << 20, encoding="utf-8")
@example(text='a,b\n1,"x\n3,"z\n5,6\n', mark=False, piece=1 << 20, encoding="utf-8")
@example(text='a,b\n1,"x"\n3,4"\n5,"6\n', mark=True, piece=16, encoding="utf-8")
def test_a_file_is_divided_as_pythons_strict_reader_divides_it(path, text, mark, piece, encoding):
    marked = mark and encoding in ("utf-8", "UTF_8")
    content = ("\ufeff" * marked + text).encode(encoding)
    try:
        wanted = fields_of(("\ufeff" * marked + text).encode())
    except RefusedError:
        with pytest.raises(InputError):
            read_back(path, content, piece=piece, encoding=encoding)
        return
    found = read_back(path, content, piece=piece, encoding=encoding)
    assert {name: column.values.to_pylist() for name, column in found.items()} == wanted


@pytest.mark.parametrize("piece", [64, 100, 1000, 1 << 20])
def test_no_line_is_lost_between_the_pieces_of_a_long_file(path, piece):
    odd = ["x", 'say ""so""', "two\nlines", "a,b", "", "é"]
    lines = [f'{row},"{odd[row % len(odd)]}"' for row in range(5000)]
    content = "\r\n".join(["a,b", *lines]).encode()
    found = read_back(path, content, piece=piece)
    assert {name: column.values.to_pylist() for name, column in found.items()} == fields_of(content)
    lost = content.replace(b'4000,"', b"4000,", 1)  # from here on, all quotes mean the other thing
    with pytest.raises(InputError, match=r"line [0-9,]+"):
        read_back(path, lost, piece=piece)


# What fields become.

FLOATS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(-200, 200).map(lambda value: f"{value:.3f}"),
    st.from_regex(NUMBER, fullmatch=True),
    st.decimals(allow_nan=False, allow_infinity=False, places=25).map(str),
)
ODD_NUMBERS = """+5 1. .5 -.5 1_0 inf -Infinity 1e400 -1e400 1e-400 NaN nan NAN NA -9 -9.0 -9.00 9.5
    9.50 +9.5 95e-1 3.0 03.0 -0 -0.0 1e5 1E+05 1e 0x10 5- +-5 1,5 1.797693134862315708e308 5kg
    9007199254740993 1.7976931348623159e308 4.9e-324 2.4703282292062328e-324 \u0663 \uff13.0"""
ODD_WORDS = """TRUE True 1 1.0 0 0.0 yes No t F f.0 y null NULL ? 2024-05-31 2024-05-31T23:59
    20240531 2024-W22-5 31.05.2024 2024-02-30"""
BLANKS = ["", " ", "  7 ", "\t7", "7\n", "\u00a07", "7 8", "a\nb", 'a "b" c', "a,b", " NA ", "\0"]
ODD = st.sampled_from([*ODD_NUMBERS.split(), *ODD_WORDS.split(), *BLANKS])
CELLS = st.one_of(FLOATS, ODD, ODD, st.dates().map(str), st.sampled_from(["a", "b", "3", "true"]))
KINDS = {
    "number": {"kind": "number", "low": -100, "high": 100},
    "filled": {
        "kind": "number",
        "low": 0,
        "high": 1e6,
        "scale": "log",
        "missing": "indicator",
        "fill": 7,
    },
    "boolean": {"kind": "boolean"},
    "perhaps": {"kind": "boolean", "missing": "indicator"},
    "category": {"kind": "category", "values": ["a", 3, True, "-9", "9.5", " b"[1:]]},
    "other": {
        "kind": "category",
        "values": ["a", "b", 1, 5],
        "unknown": "other",
        "missing": "category",
    },
    "date": {"kind": "date", "low": "1900-01-01", "high": "2100-01-01"},
    "dated": {"kind": "date", "low": "2020-01-01", "high": "2025-01-01", "missing": "indicator"},
}


@pytest.mark.slow
@settings(max_examples=4 * settings.default.max_examples, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    cells=st.lists(CELLS, min_size=1, max_size=4),
    blanks=st.sampled_from(["", "", " "]),
    whole=st.booleans(),
    known=st.booleans(),
)
def test_a_field_becomes_what_it_becomes_alone(path, kind, cells, blanks, whole, known):
    """Whether it is known when a file is read what is made of it, or not."""
    schema = schema_of(x=KINDS[kind], free={"kind": "ignore"})
    use = schema if known else None
    inner = [blanks + cell + blanks for cell in cells]
    lines = [f"{(quoted if whole else written)(cell)},{row}" for row, cell in enumerate(inner)]
    content = "\n".join(["x,free", *lines]).encode()
    try:
        wanted = encoded(schema, content)
    except RefusedError:
        with pytest.raises(RecordsError, match="column 'x' of here"):
            schema.inputs(read_back(path, content, use=use), "here")
        return
    found = schema.inputs(read_back(path, content, use=use), "here").numpy()
    assert found.tobytes() == wanted.tobytes()


@settings(max_examples=2 * settings.default.max_examples, deadline=None)
@given(texts=st.lists(FLOATS, min_size=1, max_size=5), odd=st.booleans())
def test_a_number_is_the_one_nearest_to_its_text(texts, odd):
    wanted = [float(text) for text in texts]
    column = as_column([*texts, *([" 1 "] if odd else [])])
    if any(map(math.isinf, wanted)):
        with pytest.raises(RecordsError):
            column.numbers((), "here", "rule")
        return
    found = column.numbers((), "here", "rule")[: len(texts)]
    assert found.tobytes() == np.array(wanted).tobytes()


# However the table comes.

YEARS = datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1)
RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            "age": st.one_of(st.none(), st.integers(-150, 150)),
            "lab": st.one_of(st.none(), st.floats(-1e3, 1e3), st.sampled_from([3.0, -9.0, 0.1])),
            "amount": st.one_of(st.none(), st.decimals(-1000, 1000, places=2)),
            "ward": st.sampled_from([None, "a", "b", " a ", "NA", "x", "3.0", "True"]),
            "grade": st.sampled_from([None, 1, 2, 3]),
            "smokes": st.sampled_from([None, True, False]),
            "seen": st.one_of(st.none(), st.dates(datetime.date(1990, 1, 1))),
            "at": st.one_of(st.none(), st.datetimes(*YEARS)),
        }
    ),
    min_size=1,
    max_size=5,
)
TYPES = pa.schema(
    [
        ("age", pa.int16()),
        ("lab", pa.float64()),
        ("amount", pa.decimal128(12, 2)),
        ("ward", pa.dictionary(pa.int8(), pa.string())),
        ("grade", pa.int64()),
        ("smokes", pa.bool_()),
        ("seen", pa.date32()),
        ("at", pa.timestamp("us")),
    ]
)
MAYBE = {"missing": "indicator"}
ANY = {"kind": "category", "unknown": "other", "missing": "category"}
BOUNDS = {"kind": "number", "low": -200, "high": 200, **MAYBE}
TOGETHER = schema_of(
    age=BOUNDS,
    lab=BOUNDS,
    amount=BOUNDS,
    ward={"values": ["a", "b", 3, True], **ANY},
    grade={"values": [1, 2], **ANY},
    smokes={"kind": "boolean", **MAYBE},
    seen={"kind": "date", "low": "1990-01-01", "high": "2030-01-01", **MAYBE},
    at={
        "kind": "date",
        "low": "1990-01-01",
        "high": "2030-01-01",
        **MAYBE,
        "parts": ["day", "hour", "weekday", "month"],
    },
)


def carriers(table: pa.Table, folder) -> dict[str, Any]:
    """The same table in every form."""
    halves = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    frame = table.to_pandas()
    parquet.write_table(table, folder / "t.parquet", row_group_size=2)
    frame.to_parquet(folder / "u.pq")
    frame.to_csv(folder / "t.csv", index=False)
    polars = pl.DataFrame(table)
    polars.write_csv(folder / "u.csv")
    names = ("t.parquet", "u.pq", "t.csv", "u.csv")
    files = {name: read_table(folder / name, "here") for name in names}
    files |= {f"{name} by use": read_table(folder / name, "here", use=TOGETHER) for name in names}
    plain = {name: table[name].to_pylist() for name in table.column_names}
    return files | {
        "arrow": table,
        "chunks": halves,
        "pandas": frame,
        "pandas of arrow": table.to_pandas(types_mapper=pd.ArrowDtype),
        "pandas of objects": pd.DataFrame(plain, dtype=object),
        "pandas with masks": frame.convert_dtypes(),
        "polars": polars,
        "polars in chunks": pl.concat([polars[:1], polars[1:]], rechunk=False),
        "lists": plain,
    }


@pytest.mark.slow
@settings(max_examples=settings.default.max_examples // 2, deadline=None)
@given(records=RECORDS)
def test_a_table_is_the_same_however_it_comes(tmp_path_factory, records):
    folder = tmp_path_factory.mktemp("same")
    table = pa.Table.from_pylist(records, TYPES)
    wanted = TOGETHER.inputs({name: [record[name] for record in records] for name in records[0]})
    for name, found in carriers(table, folder).items():
        assert TOGETHER.inputs(found).numpy().tobytes() == wanted.numpy().tobytes(), name


# The benchmark of tables runs, at a tiny size, and loses no record.


@pytest.mark.slow
def test_the_benchmark_runs():
    script = Path(__file__).resolve().parents[2] / "benchmarks" / "tables.py"
    command = [sys.executable, str(script), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=True)
    for form in ("csv", "parquet", "folder", "frame"):
        assert f"300 x 29 as {form}" in done.stderr
        assert f"│ {form}" in done.stdout
