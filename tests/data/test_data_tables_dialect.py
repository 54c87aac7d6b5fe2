"""How a file is written is its own: dialects, folders of Parquet, and columns of every type."""

import datetime
import itertools
import math
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from tacit import Schema
from tacit.data.tables.reading import read_table
from tacit.errors import InputError, PrivateRecordsWarning, RecordsError

SECRET = "Vogelsang"
TARGET = {"column": "ill", "kind": "class", "labels": ["no", "yes"]}
NUMBER = {"kind": "number", "low": 0, "high": 100}
WARD = {"kind": "category", "values": ["a", "b", 3], "missing": "category"}


def schema_of(target: dict[str, Any] = TARGET, **columns: Any) -> Schema:
    return Schema(target=target, columns=columns)


def texts(table):
    return {name: column.texts() for name, column in table.items()}


def read(folder, text: str | bytes, dialect: str = "", name: str = "t.csv"):
    """A file, and that of its dialect beside it, read back."""
    content = text.encode() if isinstance(text, str) else text
    (folder / name).write_bytes(content)
    (folder / "t.dialect.toml").write_text(dialect)
    return read_table(folder / name, "here")


# Each key of a dialect: the same table as without it.

PLAIN = "age,lab,ward,seen,ill\n60,3.62,a,2024-05-31,no\n7,1234.5,3,2024-06-01,yes\n8,,,,no\n"
SCHEMA = schema_of(
    age=NUMBER,
    lab={"kind": "number", "low": 0, "high": 2000, "missing": "indicator"},
    ward=WARD,
    seen={"kind": "date", "low": "2024-01-01", "high": "2025-01-01", "missing": "indicator"},
)
CHANGED = {
    "separator": ('separator = "|"', PLAIN.replace(",", "|")),
    "decimal": (
        'separator = ";"\ndecimal = ","',
        PLAIN.replace(",", ";").replace("3.62", "3,62").replace("1234.5", "1234,5"),
    ),
    "a whole number with its fraction": (
        'separator = ";"\ndecimal = ","',
        PLAIN.replace(",", ";").replace("3.62", "3,62").replace("1234.5;3;", "1234,5;3,0;"),
    ),
    "thousands": (
        'separator = "\\t"\nthousands = "."\ndecimal = ","',
        PLAIN.replace(",", "\t").replace("3.62", "3,62").replace("1234.5", "1.234,5"),
    ),
    "thousands within quotes": ('thousands = ","', PLAIN.replace("1234.5", '"1,234.5"')),
    "a thin space": ('thousands = "\u202f"', PLAIN.replace("1234.5", "1\u202f234.5")),
    "utf-16": ('encoding = "utf-16"', PLAIN.encode("utf-16")),
    "skip_lines": ("skip_lines = 2", f"# from John's \"export, {SECRET}\n\n{PLAIN}"),
    "header": ('header = ["age", "lab", "ward", "seen", "ill"]', PLAIN.partition("\n")[2]),
    "header, after a mark": (
        'header = ["age", "lab", "ward", "seen", "ill"]\nencoding = "U8"',
        "\ufeff" + PLAIN.partition("\n")[2],
    ),
    "names": (
        'names = {"Alter (Jahre)" = "age", "" = "x", Labor = "lab"}'.replace('"" = "x", ', ""),
        PLAIN.replace("age,lab", "Alter (Jahre),Labor"),
    ),
    "missing": (
        '[missing]\nlab = ["-9.0", "n. d."]\n"*" = ["?"]',
        PLAIN.replace("8,,,,", "8,-9,?,?,"),
    ),
    "missing, written otherwise": (
        'separator = ";"\ndecimal = ","\nmissing = {lab = ["-9,50"], "*" = [" n. d."]}',
        PLAIN.replace(",", ";").replace(".", ",").replace("8;;;;", "8;-9,5;n. d.;n. d.;"),
    ),
    "dates": (
        'dates = {seen = ["%d.%m.%Y", "%Y%m%d"]}',
        PLAIN.replace("2024-05-31", "31.05.2024").replace("2024-06-01", "20240601"),
    ),
    "values": (
        '[values]\nill = {0 = "no", "1.0" = "yes"}\nward = {x = "a", y = "3.0"}',
        PLAIN.replace("no", "0").replace("yes", "1").replace(",a,", ",x,").replace(",3,", ",y,"),
    ),
    "an index as pandas writes it": (
        "",
        "," + "\n".join(f"{row},{line}" for row, line in enumerate(PLAIN.split("\n")))[2:-2],
    ),
    "commas at the ends": ("", PLAIN.replace("\n", ",\n")),
}


@pytest.mark.parametrize("key", CHANGED)
def test_a_dialect_changes_how_a_file_is_read_and_nothing_else(key, tmp_path):
    wanted = SCHEMA.dataset(read(tmp_path, PLAIN))
    dialect, content = CHANGED[key]
    found = SCHEMA.dataset(read(tmp_path, content, dialect))
    assert found.inputs.equal(wanted.inputs)
    assert found.targets.equal(wanted.targets)
    assert list(read_table(tmp_path / "t.csv", "here", most=0)) == list(
        read(tmp_path, content, dialect)
    )


def test_names_in_latin_1_are_read(tmp_path):
    table = read(tmp_path, "größe,ill\n1,né\n".encode("latin-1"), 'encoding = "latin-1"')
    assert texts(table) == {"größe": ["1"], "ill": ["né"]}
    with pytest.raises(InputError, match=r"must be CSV in UTF-8, or .*t\.dialect\.toml must name"):
        read(tmp_path, "größe,ill\n1,né\n".encode("latin-1"))


@pytest.mark.parametrize(
    ("dialect", "where"),
    [
        ('separator = ";;"', r"dialect\.separator = ';;': must be one character"),
        ('decimal = ";"', r"dialect\.decimal = ';'"),
        ('decimal = ","\nthousands = ","', "two signs as decimal and as thousands"),
        ('encoding = "klingon"', r"dialect\.encoding = 'klingon': must be an encoding"),
        ('encoding = "hex"', r"dialect\.encoding = 'hex'"),
        ("skip_lines = -1", r"dialect\.skip_lines = -1"),
        ("header = []", r"dialect\.header"),
        ('dates = {seen = ["d.m.Y"]}', r"dialect\.dates\.seen.* = 'd\.m\.Y': must be a format"),
        ('seperator = ";"', r"dialect\.seperator = ';': unknown key; did you mean 'separator'"),
        ("missing = {lab = [0]}", r"dialect\.missing\.lab"),
        ('values = {wardd = {x = "a"}}', "wardd.*the table has no such column"),
        ('names = {Alter = "alter"}', "alter.*the table has no such column"),
        ("separator = ", "is not valid TOML"),
    ],
)
def test_a_wrong_dialect_is_refused_by_its_key(dialect, where, tmp_path):
    with pytest.raises(InputError, match=where):
        read(tmp_path, PLAIN, dialect)


@pytest.mark.parametrize(
    ("dialect", "content", "words"),
    [
        ("", PLAIN.replace(",", ";"), "none of which is declared"),
        ("", PLAIN.replace("3.62", '"3,62"'), "1 of 3 records.*must be finite numbers"),
        ('decimal = ","', PLAIN, "2 of 3 records.*must be finite numbers"),
        ("", PLAIN.replace("2024-05-31", "31.05.2024"), "1 of 3 records.*must be dates"),
        ('dates = {seen = ["%d.%m.%Y"]}', PLAIN, "2 of 3 records.*must be dates"),
        ("", f"# {SECRET}\n{PLAIN}", "must begin with a line of names; lines before it, another"),
        ("", f"# {SECRET}, 2024\n{PLAIN}", "every line must have 2 fields, as the header has"),
        ('thousands = "."\ndecimal = ","', PLAIN.replace("1234.5", '"1.23,5"'), "finite numbers"),
        ("", PLAIN.replace("8,,", f'8,"{SECRET}'), "cannot be read as CSV at line 4"),
        ("skip_lines = 1", "\n" + PLAIN.replace("8,,", f'8,"{SECRET}'), "as CSV at line 5"),
    ],
)
def test_a_file_of_another_dialect_is_refused_and_not_quoted(dialect, content, words, tmp_path):
    with pytest.raises(InputError, match=words) as caught:
        SCHEMA.dataset(read(tmp_path, content, dialect))
    assert SECRET not in str(caught.value)


def test_a_dialect_of_parquet_does_not_change_what_has_a_type(tmp_path):
    typed = pa.table(
        {
            "age": [60, 7, 8],
            "lab": pa.array(["3,62", "1.234,5", "-9"]),
            "ward": pa.array([Decimal("1.0"), Decimal("3.0"), None], pa.decimal128(5, 1)),
            "seen": pa.array([datetime.date(2024, 5, 31), datetime.date(2024, 6, 1), None]),
            "ill": [0, 1, 0],
        }
    )
    parquet.write_table(typed, tmp_path / "t.parquet")
    (tmp_path / "t.dialect.toml").write_text(
        'decimal = ","\nthousands = "."\nmissing = {lab = ["-9"]}\ndates = {seen = ["%d.%m.%Y"]}\n'
        'values = {ward = {1 = "a"}, ill = {0 = "no", 1 = "yes"}, age = {60 = "6"}}\n'
    )
    found = SCHEMA.dataset(read_table(tmp_path / "t.parquet", "here"))
    wanted = SCHEMA.dataset(read(tmp_path, PLAIN.replace("60,", "6,")))
    assert found.inputs.equal(wanted.inputs)
    assert found.targets.equal(wanted.targets)


def test_the_example_of_the_page_is_read_as_it_says(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "tables.md").read_text()
    files = dict(re.findall(r"<!-- file: (riverside\S+) -->\n```text\n(.*?)```", page, re.DOTALL))
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="latin-1")
    table = read_table(tmp_path / "riverside.csv", "here")
    named = {"age": ["61", "74"], "creatinine": ["1,2", None], "smoker": ["yes", "no"]}
    assert texts(table) == named
    assert table["creatinine"].numbers((), "here", "")[0] == 1.2


# Dates.


def test_the_parts_of_a_date_by_hand():
    parts = ["day", "hour", "weekday", "month"]
    when = {"kind": "date", "low": "2024-01-01", "high": "2025-01-01", "parts": parts}
    schema = schema_of(at={**when, "missing": "indicator"})
    assert schema.features[:3] == ["at", "at hour cosine", "at hour sine"]
    # 4 April 2024 is a Thursday, and day 94 after 1 January; the month is the fourth of twelve.
    angle = 2 * math.pi * 3 / 7
    wanted = [2 * 94 / 366 - 1, 0, 1, math.cos(angle), math.sin(angle), 0, 1, 0]
    found = schema.inputs({"at": ["2024-04-04T06:00", None, "2024-04-04 06:00:00.000"]})
    assert torch.allclose(found[0], torch.tensor(wanted), atol=1e-6)
    assert found[1].tolist() == [0.0] * 7 + [1.0]
    assert found[2].equal(found[0])
    assert float(found.norm(dim=1).max()) <= schema.norm_bound * (1 + 1e-6)
    for wrong in ({"parts": ["minute"]}, {"parts": []}, {"parts": ["day", "day"]}, {"zone": "X/Y"}):
        with pytest.raises(InputError, match=rf"schema\.columns\.at(\.{next(iter(wrong))})?"):
            schema_of(at={**when, **wrong})


INSTANTS = ["2024-06-01T01:30:00+02:00", "2024-05-31T23:30:00Z", "2024-05-31T19:30:00-04:00"]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Vienna", "America/New_York"])
def test_one_instant_is_one_day_at_every_site(zone):
    when = {"kind": "date", "low": "2024-05-30", "high": "2024-06-03", "parts": ["day", "hour"]}
    schema = schema_of(at={**when, "zone": zone})
    utc = datetime.datetime(2024, 5, 31, 23, 30, tzinfo=datetime.UTC)
    frames = [
        {"at": INSTANTS},
        pa.table({"at": pa.array([utc] * 3, pa.timestamp("ns", "Asia/Tokyo"))}),
        pd.DataFrame({"at": pd.to_datetime([utc] * 3).tz_convert("America/New_York")}),
        pl.DataFrame({"at": [utc] * 3}).with_columns(pl.col("at").dt.convert_time_zone(zone)),
        {"at": [utc.astimezone(None)] * 3},
    ]
    wanted = schema.inputs({"at": [{"UTC": "2024-05-31T23:30"}.get(zone, _local(utc, zone))]})
    for frame in frames:
        for row in schema.inputs(frame):
            assert row.equal(wanted[0])
    with pytest.raises(RecordsError, match=r"3 of 3 .*without an offset from UTC"):
        schema_of(at=when).inputs({"at": INSTANTS})
    ends = {"at": ["0001-01-01T00:00+10:00", "9999-12-31T23:59-10:00", INSTANTS[0]]}
    with pytest.raises(RecordsError, match="column 'at'"):
        schema.inputs(ends)


def _local(when: datetime.datetime, zone: str) -> str:
    import zoneinfo

    return when.astimezone(zoneinfo.ZoneInfo(zone)).replace(tzinfo=None).isoformat()


OUT = [
    pa.array([10**12, None], pa.timestamp("s")),
    pa.array([10**7, None], pa.date32()),
    pa.array([10**15, None], pa.duration("s")),
]


@pytest.mark.parametrize("values", OUT, ids=str)
def test_a_time_that_python_has_none_for_is_refused_as_any_other(values):
    date = {"kind": "date", "low": "2024-01-01", "high": "2025-01-01", "missing": "indicator"}
    with pytest.raises(RecordsError, match=r"'at' of table = '1 of 2 records .*must be dates"):
        schema_of(at=date).inputs(pa.table({"at": values}))
    other = {"kind": "category", "values": ["a"], "unknown": "other", "missing": "category"}
    assert schema_of(at=other).inputs(pa.table({"at": values})).tolist() == [[0, 1, 0], [0, 0, 1]]


# Folders of Parquet.


def test_a_folder_of_parquet_is_one_table(tmp_path):
    folder = tmp_path / "site=north" / "t.parquet"  # what stands above the table tells nothing
    parts = {
        "ward=a/part-0.parquet": {"age": [60], "lab": [None], "ill": ["no"]},
        "ward=a/part-1.PQ": {"age": [7.5], "lab": [1234.5], "ill": ["yes"]},
        "ward=03/deep/part-0.pq": {"age": [8], "lab": [3], "ill": ["no"]},
        "ward=__HIVE_DEFAULT_PARTITION__/part-0.parquet": {"age": [9], "lab": [3], "ill": ["no"]},
    }
    for name, columns in parts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        index = None if "part-1" in name else [5]  # then pandas writes it, or not
        pd.DataFrame(columns, index=index).to_parquet(folder / name, engine="pyarrow")
    (folder / "_SUCCESS").touch()
    (folder / "ward=a" / ".part-0.parquet.crc").write_bytes(b"x")
    table = read_table(folder, "here")
    assert sorted(zip(*texts(table).values(), strict=True), key=str) == sorted(
        [
            ("60", None, "no", "a"),
            ("7.5", "1234.5", "yes", "a"),
            ("8", "3", "no", "03"),
            ("9", "3", "no", None),
        ],
        key=str,
    )
    assert list(read_table(folder, "here", most=0)) == ["age", "lab", "ill", "ward"]
    single = read_table(folder / "ward=a" / "part-1.PQ", "here")
    assert list(single) == ["age", "lab", "ill"]
    pd.DataFrame({"age": [1]}).to_parquet(folder / "ward=a" / "other.parquet")
    with pytest.raises(InputError, match="all of which have the same columns"):
        read_table(folder, "here")


def test_an_empty_folder_and_an_empty_table(tmp_path):
    (tmp_path / "none.parquet").mkdir()
    with pytest.raises(InputError, match="must hold Parquet files"):
        read_table(tmp_path / "none.parquet", "here")
    pd.DataFrame({"age": [1.0]})[:0].to_parquet(tmp_path / "e.parquet")
    (tmp_path / "e.csv").write_text("age\n")
    for name in ("e.parquet", "e.csv"):
        found = schema_of(age=NUMBER).inputs(read_table(tmp_path / name, "here"))
        assert found.shape == (0, 1)


# Columns that are not used are not read; names are of any type.


def test_what_is_ignored_is_not_read(tmp_path):
    schema = schema_of(age=NUMBER, free={"kind": "ignore"})
    long = "x" * 200_000
    frame = pd.DataFrame({"age": [1, 2], "free": [[1, [2]], {"a": object()}]})
    found = schema.inputs(frame)
    assert found.shape == (2, 1)
    parquet.write_table(pa.table({"age": [1, 2], "free": [[1], None]}), tmp_path / "t.parquet")
    assert schema.inputs(read_table(tmp_path / "t.parquet", "here")).equal(found)
    assert schema.inputs(read(tmp_path, f"age,free\n1,{long}\n2,\n")).equal(found)
    with pytest.raises(InputError, match=r"at line 2.*more than 131,072 characters"):
        read(tmp_path, f'age,free\n1,{long}\n2,a"b\n')
    lists = {"age": [[1], [2]], "free": [1, 2]}
    for table in (lists, pa.table(lists), pd.DataFrame(lists), pl.DataFrame(lists)):
        with pytest.raises(RecordsError, match=r"column 'age' of table = '2 of 2 records"):
            schema.inputs(table)


def test_names_of_columns_may_be_whole_numbers_and_have_one_line():
    schema = Schema(
        target={"column": "2", "kind": "class", "labels": ["no", "yes"]},
        columns={"0": NUMBER, "1": NUMBER},
    )
    values = [[1, 2, "no"], [3, 4, "yes"]]
    named = pd.DataFrame([[1, 2, "no"], [3, 4, "yes"]], columns=["0", "1", "2"])
    found, wanted = schema.dataset(pd.DataFrame(values)), schema.dataset(named)
    assert found.inputs.equal(wanted.inputs)
    assert found.targets.equal(wanted.targets)
    header = pd.MultiIndex.from_product([["a"], ["b", "c", "d"]])
    two = pd.DataFrame(values, columns=header)
    with pytest.raises(InputError, match="one line of names"):
        schema.dataset(two)
    with pytest.raises(InputError, match="every column once"):
        schema.dataset(pd.DataFrame(values, columns=[0, 1, "1"]))


# Targets.


@pytest.mark.parametrize("labels", [["no", "yes"], [0, 1], [False, True], ["n", "y"], ["yes", 0]])
def test_a_target_of_truth_values_takes_any_words_for_them(labels, tmp_path):
    schema = schema_of({**TARGET, "labels": labels}, age=NUMBER)
    ages, wanted = [1] * 4, [0, 1, 1, 0] if labels[0] != "yes" else [1, 0, 0, 1]
    truth = [False, True, True, False]
    for ill in (truth, [0, 1, 1, 0], [0.0, 1.0, 1.0, 0.0], ["No", "YES", "t", "f"]):
        frame = pd.DataFrame({"age": ages, "ill": ill})
        frame.to_csv(tmp_path / "t.csv", index=False)
        for table in (frame, pl.DataFrame(frame), read_table(tmp_path / "t.csv", "here")):
            assert schema.dataset(table).targets.tolist() == wanted
    with pytest.raises(RecordsError, match="1 of 2 records"):
        schema.dataset({"age": [1, 2], "ill": [True, "perhaps"]})


@pytest.mark.parametrize("kind", ["class", "number"])
def test_records_without_a_target_are_left_out_where_the_schema_says_so(kind):
    parts = {"labels": [1, 2]} if kind == "class" else {"low": 0, "high": 4}
    target = {"column": "ill", "kind": kind, **parts}
    table = {
        "age": [10, 20, 30, 40],
        "clinic": ["s", "n", "s", "n"],
        "person": ["p", "q", "r", "p"],
        "ill": [1, None, "NA", 2.0],
    }
    others = {"node": {"column": "clinic", "values": ["n", "s"]}, "unit": {"column": "person"}}
    with pytest.raises(RecordsError, match=r"2 of 4 records.*missing = \"drop\""):
        Schema(target=target, columns={"age": NUMBER}, **others).dataset(table)
    schema = Schema(target={**target, "missing": "drop"}, columns={"age": NUMBER}, **others)
    with pytest.warns(PrivateRecordsWarning, match="2 of 4 records have no target.*: rows 2, 3"):
        found = schema.dataset(table)
    assert found.inputs[:, 0].tolist() == pytest.approx([-0.8, -0.2])
    assert found.units is not None
    assert list(found.units) == ["p", "p"]
    assert len(found.targets) == 2
    with pytest.warns(PrivateRecordsWarning):
        assert [len(part["age"]) for part in schema.split(table)] == [1, 1]
    assert len(schema.inputs(table)) == 4
    wrong = {**table, "ill": [1, None, "NA", SECRET]}
    with pytest.raises(RecordsError) as caught:
        schema.dataset(wrong)
    assert SECRET not in str(caught.value)


# Types that other programs write.


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    values=st.lists(st.sampled_from([None, "a", "b", "3"]), min_size=1, max_size=8),
    cuts=st.lists(st.integers(0, 8), max_size=3).map(sorted),
)
def test_a_dictionary_with_nulls_in_several_chunks(tmp_path_factory, values, cuts):
    """PyArrow's own `to_numpy` of such a column gives the last value for a null."""
    path = tmp_path_factory.mktemp("dictionary") / "t.parquet"
    ends = [0, *cuts, len(values)]
    pieces = [values[start:end] for start, end in itertools.pairwise(ends)]
    kind = pa.dictionary(pa.int8(), pa.string())
    chunked = pa.chunked_array([pa.array(piece, kind) for piece in pieces], kind)
    known = ["a", "b", "3", None]
    places = pa.array([known.index(value) for value in values], pa.int8())
    holed = pa.DictionaryArray.from_arrays(places, pa.array(known))
    parquet.write_table(pa.table({"ward": chunked}), path, row_group_size=2)
    schema = schema_of(ward=WARD)
    wanted = [[value == "a", value == "b", value == "3", value is None] for value in values]
    polars = pl.concat([pl.DataFrame({"ward": pl.Series(p, dtype=pl.String)}) for p in pieces])
    frames = {
        "arrow": pa.table({"ward": chunked}),
        "null among the values": pa.table({"ward": holed}),
        "parquet": read_table(path, "here"),
        "pandas of parquet": pd.read_parquet(path),
        "pandas": pd.DataFrame({"ward": pd.Categorical(values, categories=["b", "a", "3"])}),
        "polars": polars.with_columns(pl.col("ward").cast(pl.Categorical)),
        "polars, enum": polars.with_columns(pl.col("ward").cast(pl.Enum(["3", "b", "a"]))),
        "polars of parquet": pl.read_parquet(path),
    }
    for name, frame in frames.items():
        assert schema.inputs(frame).tolist() == wanted, name


def test_an_index_that_pandas_writes_or_not_is_no_column(tmp_path):
    frame = pd.DataFrame({"age": [1, 2, 3, 4], "ill": ["no", "yes", "no", "no"]})
    schema = schema_of(age=NUMBER)
    for name, part in {"all": frame, "some": frame[frame["age"] != 2]}.items():
        part.to_parquet(tmp_path / f"{name}.parquet")
        path = tmp_path / f"{name}.parquet"
        read_back = read_table(path, "here")
        assert list(read_back) == list(read_table(path, "here", most=0)) == ["age", "ill"]
        for table in (read_back, pa.Table.from_pandas(part), part):
            assert len(schema.dataset(table)) == len(part)
    assert "__index_level_0__" in parquet.read_schema(tmp_path / "some.parquet").names


DUCK = {  # as DuckDB gives DECIMAL, HUGEINT, ENUM, UUID and others to Arrow, and then some
    "decimal128": (pa.decimal128(18, 3), ["1.000", "2.500", None]),
    "a small decimal of zero": (pa.decimal128(38, 10), ["0", "2.5", None]),
    "decimal256": (pa.decimal256(50, 3), ["1", "2.5", None]),
    "hugeint": (pa.decimal128(38, 0), [str(2**100), "3", None]),
    "unsigned": (pa.uint64(), [2**64 - 1, 3, None]),
    "half": (pa.float16(), [np.float16(1.5), np.float16(3), None]),
    "bytes": (pa.int8(), [-9, 3, None]),
}


@pytest.mark.parametrize("name", DUCK)
@pytest.mark.parametrize("chunks", [1, 2])
def test_numbers_of_any_type_are_numbers(name, chunks, tmp_path):
    kind, values = DUCK[name]
    made = [Decimal(v) if isinstance(v, str) else v for v in values]
    column = pa.chunked_array([pa.array(made[:1], kind), pa.array(made[1:], kind)][: chunks + 1])
    table = pa.table({"x": column if chunks == 2 else column.combine_chunks()})
    parquet.write_table(table, tmp_path / "t.parquet")
    schema = schema_of(x={"kind": "number", "low": 0, "high": 2**101, "missing": "indicator"})
    stated = column.to_pylist()
    written = [None if value is None else f"{Decimal(str(value)):f}" for value in values]
    wanted = schema.inputs({"x": written})
    known = {"kind": "category", "values": stated[:2], "missing": "category"}
    for frame in (table, read_table(tmp_path / "t.parquet", "here")):
        assert schema.inputs(frame).equal(wanted)
        assert schema_of(x=known).inputs(frame).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([b"0" * 16, b"1" * 16, None], pa.uuid()) if hasattr(pa, "uuid") else None,
        pa.array([True, False, None]),
        pa.array(["a", "b", None], pa.string_view()),
        pa.array(["a", "b", None], pa.large_string()),
        pa.array([datetime.time(1, 2), datetime.time(3, 4), None], pa.time64("ns")),
        pa.array([1, 2, None], pa.duration("us")),
        pa.nulls(3),
        pa.array([None, None, None], pa.dictionary(pa.int8(), pa.string())),
    ],
    ids=lambda column: str(getattr(column, "type", None)),
)
def test_columns_of_any_type_have_texts(column):
    if column is None:
        pytest.skip("this PyArrow has no such type")
    known = [str(value) for value in column.to_pylist() if value is not None]
    schema = schema_of(x={"kind": "category", "values": known or ["a"], "missing": "category"})
    several = pa.chunked_array([column[:1], column[1:1], column[1:]])
    for values in (column, several):
        found = schema.inputs(pa.table({"x": values}))
        missing = [value is None for value in column.to_pylist()]
        assert found[:, -1].tolist() == missing
        assert found.sum().item() == 3
