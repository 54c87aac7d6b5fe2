"""A table becomes numbers by its schema: bounds hold, records stay apart, nothing is quoted."""

import csv
import gzip
import math
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder
from slow_tables import unit

import tacit
from tacit.data.formats.adult import CATEGORIES, COLUMNS, LABELS, NUMBERS, read_adult
from tacit.data.tables import Schema
from tacit.data.tables.dialect import Dialect
from tacit.data.tables.fields import canonical, field_text, read_number
from tacit.data.tables.kinds import NumberTarget
from tacit.data.tables.reading import read_table
from tacit.data.tables.schema import default_schema
from tacit.errors import InputError, RecordsError
from tacit.models.architectures import Embedded, tables_of

SECRET = "Vogelsang"
DECLARED = {
    "confirmed_public": True,
    "target": {"column": "ill", "kind": "class", "labels": ["no", "yes"]},
    "node": {"column": "clinic", "values": ["north", "south"]},
    "columns": {
        "age": {"kind": "number", "low": 0, "high": 120},
        "income": {
            "kind": "number",
            "low": 0,
            "high": 1e6,
            "scale": "log",
            "missing": "indicator",
            "fill": 2e4,
        },
        "sex": {"kind": "category", "values": ["f", "m"], "missing": "category"},
        "grade": {"kind": "category", "values": [1, 2, 3], "unknown": "other"},
        "smoker": {"kind": "boolean", "missing": "indicator"},
        "admitted": {"kind": "date", "low": "2020-01-01", "high": "2021-01-01"},
        "name": {"kind": "ignore"},
    },
}
SCHEMA = Schema(**DECLARED)
ROWS = {
    "clinic": ["south", "north", "south"],
    "name": ["a", "b", "c"],
    "age": [60, 130, 0],
    "income": [1e6, None, 0],
    "sex": ["m", None, "f"],
    "grade": [3, 4, 1],
    "smoker": [True, None, False],
    "admitted": ["2020-01-01", "2021-06-01", "2020-07-02"],
    "ill": ["no", "yes", "yes"],
}


def changed(**columns):
    return {**ROWS, **columns}


def test_every_kind_of_column_by_hand():
    assert SCHEMA.features == [
        *("age", "income", "income is missing", "sex = f", "sex = m", "sex = (missing)"),
        *("grade = 1", "grade = 2", "grade = 3", "grade = (other)"),
        *("smoker", "smoker is missing", "admitted"),
    ]
    fill = 2 * math.log1p(2e4) / math.log1p(1e6) - 1
    middle = 2 * 183 / 366 - 1  # 2 July is day 183 after 1 January of a leap year
    wanted = [
        [0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0, -1],
        [1, fill, 1, 0, 0, 1, 0, 0, 0, 1, 0, 1, 1],
        [-1, -1, 0, 1, 0, 0, 1, 0, 0, 0, -1, 0, middle],
    ]
    data = SCHEMA.dataset(ROWS)
    assert torch.allclose(data.inputs, torch.tensor(wanted))
    assert data.targets.tolist() == [0, 1, 1]
    assert SCHEMA.inputs(ROWS).equal(data.inputs)
    assert max(data.inputs.norm(dim=1)) <= SCHEMA.norm_bound


def test_a_number_is_predicted_between_its_bounds():
    schema = Schema(
        target={"column": "cost", "kind": "number", "low": 0, "high": 50},
        columns={"age": {"kind": "number", "low": 0, "high": 1}},
    )
    targets = schema.dataset({"cost": [0, 50, 25, 900], "age": [0, 0, 0, 0]}).targets
    assert targets.dtype == torch.float32
    assert targets.tolist() == [-1, 1, 0, 1]
    assert schema.target.note is not None
    assert "an error of 0.1 is 2.5" in schema.target.note


@given(
    low=st.floats(-1e6, 1e6), span=st.floats(1e-3, 1e9), share=st.floats(0, 1), log=st.booleans()
)
def test_a_target_is_scaled_and_back(low, span, share, log):
    high, scale = low + span, "log" if log else "linear"
    target = NumberTarget(column="cost", kind="number", low=low, high=high, scale=scale)
    number = min(low + share * span, high)
    shown = target.scaled(np.array([number, low, high, low - 1, high + 1]))
    assert shown[0] == pytest.approx(unit(number, low, high, scale), abs=1e-12)
    assert shown[1:].tolist() == pytest.approx([-1, 1, -1, 1], abs=1e-15)
    near = 1e-12 * max(abs(low), abs(high), 1)
    assert target.unscaled(shown)[0] == pytest.approx(number, abs=near)
    ends = target.unscaled([[-7.0, -1.0], [1.0, 7.0]])
    assert ends.tolist() == [[low, low], [pytest.approx(high), pytest.approx(high)]]


# Whatever the records are.

NUMBERS_DRAWN = st.one_of(
    st.none(), st.floats(allow_nan=False, allow_infinity=False), st.integers(-(10**12), 10**12)
)
RECORD = st.fixed_dictionaries(
    {
        "clinic": st.sampled_from(["north", "south"]),
        "name": st.text(max_size=3),
        "age": st.one_of(
            st.floats(allow_nan=False, allow_infinity=False), st.integers(-(10**9), 10**9)
        ),
        "income": NUMBERS_DRAWN,
        "sex": st.sampled_from(["f", "m", None]),
        "grade": st.integers(-2, 5),
        "smoker": st.sampled_from([True, False, None]),
        "admitted": st.dates().map(str),
        "ill": st.sampled_from(["no", "yes"]),
    }
)


@settings(max_examples=60, deadline=None)
@given(st.lists(RECORD, min_size=1, max_size=6))
def test_the_encoding_never_leaves_its_bounds(records):
    table = {name: [record[name] for record in records] for name in records[0]}
    inputs = SCHEMA.dataset(table).inputs
    assert inputs.shape == (len(records), len(SCHEMA.features))
    assert float(inputs.abs().max()) <= 1
    assert float(inputs.double().norm(dim=1).max()) <= SCHEMA.norm_bound * (1 + 1e-6)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(RECORD, min_size=2, max_size=6))
def test_a_record_is_encoded_as_if_it_were_alone(records):
    table = {name: [record[name] for record in records] for name in records[0]}
    together = SCHEMA.dataset(table)
    for row, record in enumerate(records):
        alone = SCHEMA.dataset({name: [value] for name, value in record.items()})
        assert alone.inputs.equal(together.inputs[row : row + 1])
        assert alone.targets.equal(together.targets[row : row + 1])


@settings(max_examples=40, deadline=None)
@given(column=st.sampled_from(["age", "income", "sex", "smoker", "admitted", "clinic", "ill"]))
def test_an_error_says_how_many_records_and_never_what_they_hold(column):
    table = changed(**{column: [ROWS[column][0], SECRET, SECRET]})
    read = SCHEMA.split if column == "clinic" else SCHEMA.dataset
    words = rf"column '{column}' of .* = '2 of 3 records \(the first is row 2\)'"
    with pytest.raises(RecordsError, match=words) as caught:
        read(table)
    assert SECRET not in str(caught.value)
    assert SECRET not in caught.value.reported()
    assert "2 of 3" not in caught.value.reported()


@pytest.mark.parametrize(
    ("column", "rule"),
    [
        ("age", 'missing = "indicator"'),
        ("grade", 'missing = "category"'),
        ("admitted", 'missing = "indicator"'),
        ("ill", "none may be missing"),
    ],
)
def test_a_missing_value_is_refused_or_declared(column, rule):
    with pytest.raises(RecordsError, match=r"1 of 3 records") as caught:
        SCHEMA.dataset(changed(**{column: [None, *ROWS[column][1:]]}))
    assert rule in caught.value.expected


def test_a_declared_value_is_no_missing_word():
    declared = {"columns": {"size": {"kind": "category", "values": ["NA", "x"]}}}
    schema = Schema(**{**DECLARED, "node": None, **declared})
    table = {"size": ["NA", "x"], "ill": ["no", "no"]}
    assert schema.inputs(table).tolist() == [[1, 0], [0, 1]]


# Frames and files.


def frames():
    plain = pd.DataFrame(ROWS)
    typed = plain.astype(
        {"grade": "Int64", "sex": "category", "smoker": "boolean", "age": "float32"}
    )
    dated = typed.assign(admitted=pd.to_datetime(typed["admitted"]))
    polars = pl.DataFrame(ROWS, strict=False)
    return {
        "plain pandas": plain,
        "typed pandas": dated,
        "polars": polars.with_columns(pl.col("admitted").str.to_date()),
        "arrow": polars.to_arrow(),
    }


@pytest.mark.parametrize("name", ["plain pandas", "typed pandas", "polars", "arrow"])
def test_frames_are_the_table_that_they_hold(name):
    data, wanted = SCHEMA.dataset(frames()[name]), SCHEMA.dataset(ROWS)
    assert data.inputs.equal(wanted.inputs)
    assert data.targets.equal(wanted.targets)
    assert [len(part["age"]) for part in SCHEMA.split(frames()[name])] == [1, 2]


def test_files_are_the_table_that_they_hold(tmp_path):
    frame = frames()["typed pandas"]
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_csv(tmp_path / "packed.csv.gz", index=False)
    frame.to_csv(tmp_path / "marked.csv", index=False, encoding="utf-8-sig")
    frame.to_parquet(tmp_path / "t.parquet")
    wanted = SCHEMA.dataset(ROWS)
    for name in ("t.csv", "packed.csv.gz", "marked.csv", "t.parquet"):
        table = read_table(tmp_path / name, "here")
        assert SCHEMA.dataset(table).inputs.equal(wanted.inputs), name
        assert list(read_table(tmp_path / name, "here", most=0)) == list(frame.columns)


def test_quotes_and_separators_are_read_as_other_programs_write_them(tmp_path):
    path = tmp_path / "quoted.csv"
    pd.DataFrame({"a": ['x;"y"\nz', "w"], "b": [1, 2]}).to_csv(path, sep=";", index=False)
    table = read_table(path, "here", Dialect(separator=";"))
    found = {name: column.texts() for name, column in table.items()}
    assert found == {"a": ['x;"y"\nz', "w"], "b": ["1", "2"]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"a,b\n1,2\n{SECRET}\n", "1 of 2 records"),
        ("a,a\n1,2\n", "has two columns of the same name, columns 1 and 2"),
        (",,\n1,2,3\n", "must begin with a line of names"),
        ("", "must begin with a line of names"),
        (f'a,b\n1,"{SECRET}\n', "cannot be read as CSV at line 2"),
        (f"a,b\n1,{SECRET}\x00\xff\n", "must be CSV in UTF-8|records"),
    ],
)
def test_damaged_csv_is_refused_and_not_quoted(text, words, tmp_path):
    path = tmp_path / "bad.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=words) as caught:
        read_table(path, "task.dataset")
    assert SECRET not in str(caught.value)


def test_other_files_are_refused(tmp_path):
    (tmp_path / "t.parquet").write_bytes(SECRET.encode())
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"a,b\n1,2\n")[:-9])
    (tmp_path / "t.xlsx").touch()
    cases = {"t.parquet": "as Parquet", "t.csv.gz": "as CSV", "t.xlsx": "end", "no.csv": "no such"}
    for name, words in cases.items():
        with pytest.raises(InputError, match=words) as caught:
            read_table(tmp_path / name, "here")
        assert SECRET not in str(caught.value)


def test_a_table_that_does_not_fit_in_memory_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "long.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 10_000))
    monkeypatch.setattr("tacit.data.tables.reading.host_bytes", lambda: 10**5)
    with pytest.raises(InputError, match=r"holds more records than fit in 100 kB"):
        read_table(path, "here")
    assert len(read_table(path, "here", most=100)["a"]) == 100


def test_what_is_no_table_is_refused():
    for value in (torch.zeros(3, 2), [1, 2], 7, None, pd.Series([1, 2])):
        with pytest.raises(InputError, match="must be a"):
            SCHEMA.dataset(value)
    with pytest.raises(InputError, match=r'does not declare this column.*kind = "ignore"'):
        SCHEMA.dataset(changed(shoe=[1, 2, 3]))
    with pytest.raises(InputError, match="lacks columns that the schema declares: sex"):
        SCHEMA.dataset({name: values for name, values in ROWS.items() if name != "sex"})
    with pytest.raises(InputError, match="no column 'ill', which is the target"):
        SCHEMA.dataset({name: values for name, values in ROWS.items() if name != "ill"})
    with pytest.raises(InputError, match="pass a list with one table a node"):
        SCHEMA.split({name: values for name, values in ROWS.items() if name != "clinic"})


def test_a_declared_node_without_records_has_an_empty_table():
    parts = SCHEMA.split(changed(clinic=["south"] * 3))
    datasets = [SCHEMA.dataset(part, "nodes", node) for node, part in enumerate(parts)]
    assert [len(dataset) for dataset in datasets] == [0, 3]
    wide = {tuple(dataset.inputs.shape[1:]) for dataset in datasets}
    assert wide == {(SCHEMA.dataset(ROWS).inputs.shape[1],)}
    assert datasets[0].targets.dtype == datasets[1].targets.dtype


def test_columns_that_cannot_be_read_are_refused_and_not_quoted():
    cases = [
        (changed(age=[[SECRET], {}, 3]), "must be finite numbers"),
        (changed(age=7), "column 'age' of table.*must be a column of numbers"),
        (changed(age=[1, 2]), "must be of one length"),
    ]
    for table, words in cases:
        with pytest.raises(InputError, match=words) as caught:
            SCHEMA.dataset(table)
        assert SECRET not in str(caught.value)


def test_texts_of_one_value_are_one_text():
    assert [field_text(value) for value in (3, 3.0, "3.0", " 3 ", True, "True", "x")] == [
        *("3", "3", "3", "3", "true", "true", "x")
    ]
    assert field_text(float("nan")) is None
    assert [canonical(text) for text in ("03.0", "1.50", "-2.000", "a.0")] == [
        *("03", "1.50", "-2", "a.0")
    ]


# Schemas.


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"target": None}, r"schema\.target = None"),
        ({"colums": {}}, r"schema\.colums = {}: unknown key"),
        ({"columns": {}}, r"schema\.columns = {}"),
        ({"columns": {"age": {"low": 1}}}, r"schema\.columns\.age = .*must have a kind"),
        ({"columns": {"age": {"kind": "numbr"}}}, r"schema\.columns\.age"),
        ({"columns": {"age": {"kind": "number", "low": 1}}}, r"schema\.columns\.age\.high = None"),
        (
            {"columns": {"age": {"kind": "number", "low": 2, "high": 1}}},
            r"schema\.columns\.age = .*low that is below its high",
        ),
        (
            {"columns": {"number": {"kind": "number", "low": "x", "high": 1}}},
            r"schema\.columns\.number\.low = 'x'",
        ),
        ({"columns": {"sex": {"kind": "category", "values": ["a", "a"]}}}, "every value once"),
        ({"columns": {"ill": {"kind": "boolean"}}}, "is the target's column"),
        ({"columns": {"x": {"kind": "ignore"}}}, "leave no input"),
    ],
)
def test_a_wrong_schema_is_refused_by_its_key(change, words):
    with pytest.raises(InputError, match=words):
        Schema.of({**DECLARED, **change})


def test_a_schema_is_read_from_a_file(tmp_path):
    path = tmp_path / "t.schema.toml"
    path.write_text(
        "confirmed_public = true\n"
        'target = {column = "ill", kind = "class", labels = [false, true]}\n'
        'columns.when = {kind = "date", low = 2020-01-01, high = 2020-12-31}\n'
    )
    schema = Schema.of(path)
    assert schema.unconfirmed == []
    assert schema.dataset({"ill": [True], "when": ["2020-12-31"]}).targets.tolist() == [1]
    assert schema.digest != SCHEMA.digest
    assert schema.digest == Schema.of(str(path)).digest
    assert default_schema("a/t.parquet") == "a/t.schema.toml"
    for wrong, words in (("x = ", "is not valid TOML"), (None, "No such file")):
        path.unlink()
        if wrong is not None:
            path.write_text(wrong)
        with pytest.raises(InputError, match=words):
            Schema.of(path)
    with pytest.raises(InputError, match="must be the path of a schema file"):
        Schema.of(3)


def test_what_nobody_has_confirmed_is_named():
    columns = {**DECLARED["columns"]}
    columns["age"] = {**columns["age"], "confirmed_public": True}
    schema = Schema(**{**DECLARED, "confirmed_public": False, "columns": columns})
    facts = "; ".join(schema.unconfirmed)
    for words in ("[target] ill: the list of 2 labels", "[node] clinic: the list of 2 nodes"):
        assert words in facts
    assert "income: the bounds 0 and 1e+06" in facts
    assert "age" not in facts
    assert "smoker" not in facts  # true or false: there is nothing to confirm
    with pytest.raises(InputError, match=r"confirmed_public = False: .* no epsilon covers"):
        schema.check_confirmed("here")
    SCHEMA.check_confirmed("here")


# The real Adult, as CSV.


def adult_schema():
    """What is publicly known of Adult, as a schema."""
    columns = {}
    for name in COLUMNS[:-1]:
        if name in NUMBERS:
            low, high, logarithmic = NUMBERS[name]
            scale = "log" if logarithmic else "linear"
            columns[name] = {"kind": "number", "low": low, "high": high, "scale": scale}
        else:
            columns[name] = {
                "kind": "category",
                "values": list(CATEGORIES[name]),
                "missing": "category",
            }
    target = {"column": COLUMNS[-1], "kind": "class", "labels": list(LABELS)}
    return {"confirmed_public": True, "missing_words": ["?"], "target": target, "columns": columns}


def test_adult_as_csv_is_what_scikit_learn_makes_of_it(adult_dir, tmp_path):
    (source,) = (adult_dir / "adult").glob("adult.test*")
    with gzip.open(source, "rt") as lines, (tmp_path / "adult.csv").open("w") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        kept = [line for line in lines if line.count(",") == len(COLUMNS) - 1][:4000]
        writer.writerows([part.strip(" .\n") for part in line.split(",")] for line in kept)
    schema = Schema(**adult_schema())
    data = schema.dataset(read_table(tmp_path / "adult.csv", "here"))
    oracle = {name: values[:4000] for name, values in read_adult(source).items()}
    assert data.targets.tolist() == oracle["income"].tolist()
    place = {name: number for number, name in enumerate(schema.features)}
    for name, (low, high, logarithmic) in NUMBERS.items():
        values, ends = oracle[name][:, None], np.array([[low], [high]])
        if logarithmic:
            values, ends = np.log1p(values), np.log1p(ends)
        scaler = MinMaxScaler((-1, 1), clip=True).fit(ends)
        ours = data.inputs[:, place[name]].numpy()
        assert np.allclose(ours, scaler.transform(values)[:, 0], atol=1e-6), name
    for name in ("education", "sex", "relationship"):  # none is missing
        wanted = OneHotEncoder(categories=[list(CATEGORIES[name])], sparse_output=False)
        first = place[f"{name} = {CATEGORIES[name][0]}"]
        ours = data.inputs[:, first : first + len(CATEGORIES[name])].numpy()
        assert np.array_equal(ours, wanted.fit_transform(oracle[name][:, None])), name
    missing = data.inputs[:, place["occupation = (missing)"]].sum()
    assert missing == sum(" ?, " in line and line.split(", ")[6] == "?" for line in kept)


def test_a_table_without_a_line_of_names_quotes_no_record(tmp_path):
    for lines, words in (
        ("Alice Miller,34,f\nBob Stone,50,m\n", "none of which is declared"),
        ("34,34,f\n50,51,m\n", "columns 1 and 2"),
    ):
        path = tmp_path / "patients.csv"
        path.write_text(lines)
        with pytest.raises(InputError, match=words) as caught:
            SCHEMA.dataset(read_table(path, "task.dataset"))
        said = str(caught.value).replace(str(path), "")  # a folder may be called by any number
        assert "Alice" not in said
        assert "34" not in said


@pytest.mark.parametrize(
    "text", ["1_0", "inf", "-Infinity", "1e400", "nan0", "0x10", "\u0661\u0662", "1,5", "1e", "."]
)
def test_no_reader_takes_these_for_a_number(text):
    column = {"kind": "number", "low": 0, "high": 100}
    target = {"column": "y", "kind": "number", "low": 0, "high": 1}
    schema = Schema.of({"confirmed_public": True, "target": target, "columns": {"x": column}})
    for table in ({"x": [text, "3"], "y": ["0", "1"]}, {"x": ["3", "3"], "y": ["0", text]}):
        with pytest.raises(RecordsError, match=r"1 of 2 records.*must be finite numbers") as caught:
            schema.dataset(table)
        assert text not in str(caught.value)
    for value in (float("inf"), float("-inf")):
        with pytest.raises(RecordsError, match="must be finite numbers"):
            schema.dataset(pd.DataFrame({"x": [value, 3.0], "y": [0.0, 1.0]}))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_what_python_writes_is_a_number(value):
    assert read_number(repr(value)) == value
    assert read_number(f"{value:+.17E}") == value


def test_equal_values_that_are_written_in_two_ways_stay_what_they_are():
    """The text of a field is its own: the first of two that are equal does not decide it."""
    column = {"kind": "category", "values": ["1.1", "1.2"], "unknown": "other"}
    target = {"column": "y", "kind": "class", "labels": ["0", "1"]}
    schema = Schema.of({"confirmed_public": True, "target": target, "columns": {"x": column}})
    values = [Decimal("1.10"), Decimal("1.1"), Decimal("1.2")]
    whole = schema.dataset(pd.DataFrame({"x": values, "y": [0, 0, 1]}))
    less = schema.dataset(pd.DataFrame({"x": values[1:], "y": [0, 1]}))
    assert whole.inputs[1:].equal(less.inputs)


# `embed = 8` of a category: one code in a row, and an embedding beside the numbers.


CODES = [f"C{number:03}" for number in range(900)]
COLUMN = {"kind": "category", "values": CODES, "unknown": "other", "embed": 8}
EMBEDDED = {
    "confirmed_public": True,
    "target": {"column": "died", "kind": "class", "labels": ["no", "yes"]},
    "node": {"column": "site", "values": ["north", "south"]},
    "columns": {
        "age": {"kind": "number", "low": 0, "high": 100, "missing": "indicator"},
        "main.code": COLUMN,
        "ward": {"kind": "category", "values": ["A", "B"]},
    },
}


def frame(records=400):
    draws = np.random.default_rng(0)
    codes = draws.integers(0, 900, records)
    return pd.DataFrame(
        {
            "site": np.where(np.arange(records) % 2, "north", "south"),
            "age": draws.integers(20, 90, records).astype(float),
            "main.code": np.array([*CODES, "elsewhere"])[np.where(codes == 5, 900, codes)],
            "ward": draws.choice(["A", "B"], records),
            "died": np.where(codes % 2, "yes", "no"),
        }
    )


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_a_table_is_trained_and_its_model_is_loaded(model, tmp_path):
    schema, table = Schema.of(EMBEDDED), frame()
    experiment = {
        "task": {"model": model, "dataset": "given"},
        "algorithm": {"name": "dp2-sgd", "learning_rate": 2.0, "clip": 1.0},
        "privacy": {"epsilon": "none"},
        "train": {"steps": 3, "batch": "all"},
    }
    out = tmp_path / "run"
    result = tacit.train(experiment, nodes=table, test=table, schema=schema, out=str(out))
    assert result.job.model.path == "taps"
    assert result.job.train.packed.words == "numbers floating [4], main.code integer []"
    with torch.no_grad():
        given = schema.inputs(table)
        assert given["main.code"].max() == 900
        made = result.model("consensus")(given)
        again = tacit.load_model(out)(given)
    assert torch.equal(made, again)
    share = float((made.argmax(1) == schema.dataset(table).targets).double().mean())
    assert result.metrics["test_accuracy"][-1]["consensus"] == pytest.approx(share)


def test_without_embed_nothing_of_a_schema_changes():
    plain = {**COLUMN, "embed": None}
    without = {key: value for key, value in COLUMN.items() if key != "embed"}
    digests = {
        Schema.of({**EMBEDDED, "columns": {"main.code": column}}).digest
        for column in (plain, without, COLUMN)
    }
    assert len(digests) == 2
    with pytest.raises(InputError, match="embed"):
        Schema.of({**EMBEDDED, "columns": {"main.code": {**COLUMN, "embed": 0}}})


def test_columns_may_be_called_as_parts_of_modules_are():
    names = ("type", "items", "a.b", "a_b", "a%2Eb", "weight", "tables.x.weight", "of ", "größe")
    tables = {name: (4, width) for width, name in enumerate(names, 1)}
    model = Embedded(tables, torch.nn.Linear(1 + sum(range(len(names) + 1)), 2))
    record = {name: torch.tensor([row % 4]) for row, name in enumerate(names)}
    rows = [model.state_dict()[f"tables.{key}.weight"] for key in model.tables]
    looked_up = [table[row % 4] for row, table in enumerate(rows)]
    wanted = model.model(torch.cat([torch.ones(1), *looked_up]))
    assert model({"numbers": torch.ones(1, 1), **record})[0].allclose(wanted)
    assert tables_of(model.state_dict()) == tables
    columns = {**EMBEDDED["columns"], "numbers": COLUMN}
    with pytest.raises(InputError, match=r"schema\.columns\.numbers .*rename it"):
        Schema.of({**EMBEDDED, "columns": columns})
