"""`tacit init` writes an experiment that runs, and confirms nothing that private data told it."""

import csv
import io
import sys
import tomllib

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments import tacit
from patient_tables import write_tables
from tacit import Schema
from tacit.config import load_config
from tacit.data.tables.dialect import Dialect
from tacit.data.tables.propose import Roles, propose, schema_text
from tacit.data.tables.reading import read_table

TABLE = ("--csv", "patients.csv", "--target", "readmitted", "--node", "hospital")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    write_tables(tmp_path)
    (tmp_path / "patients.schema.toml").unlink()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # no terminal
    return tmp_path


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_without_arguments_it_offers_the_digits():
    answer = tacit("init")
    assert (answer.code, answer.err) == (0, "")
    assert load_config("digits.toml").task.dataset == "digits"
    assert tacit("plan", "digits.toml", "--json").json["nodes"] == 10


def test_a_public_sample_makes_an_experiment_that_runs_as_it_is(folder):
    (folder / "patients.csv").rename(folder / "elsewhere")
    answer = tacit("init", *TABLE, "--public-csv", "sample.csv", "--epsilon", "2")
    assert answer.code == 0, answer.err  # the private file was not opened
    (folder / "elsewhere").rename(folder / "patients.csv")
    plan = tacit("plan", "patients.toml", "--json").json
    assert (plan["nodes"], plan["per_node"][0]["budget"]) == (5, 2.0)
    run = tacit("train", "patients.toml", "--set", "train.steps=2", "--out", "run", "--json").json
    assert list(run["test_metrics"]) == ["auc", "balanced-accuracy"]
    assert run["test_metrics"]["auc"]["baseline"] == 0.5
    schema, sample = Schema.of("patients.schema.toml"), pd.read_csv("sample.csv")
    assert schema.unconfirmed == []
    age = schema.columns["age"]
    assert (age.low, age.high) == (sample["age"].min(), sample["age"].max())


def test_what_is_proposed_from_private_records_is_not_confirmed(folder):
    answer = tacit("init", *TABLE)
    assert answer.code == 0
    for words in ("no epsilon covers", "age: the bounds 0 and ", "hospital: the list of 5 nodes"):
        assert words in answer.out
    refusal = tacit("train", "patients.toml").refusal
    assert "confirmed_public = False" in refusal
    path = folder / "patients.schema.toml"
    path.write_text(path.read_text().replace("confirmed_public = false", "confirmed_public = true"))
    assert tacit("plan", "patients.toml", "--json").json["nodes"] == 5
    experiment = folder / "patients.toml"
    for key in ("test_share", "metric"):
        experiment.write_text(experiment.read_text().replace(f"# {key}", key))
    assert tacit("plan", "patients.toml", "--json").code == 0


def test_no_more_than_the_first_records_of_a_private_file_is_looked_at(folder):
    lines = (folder / "patients.csv").read_text().splitlines()
    texts = []
    for last in (lines[-1], 'Nowhere,999999,x,y,z,"1","2",3,4,5,maybe,perhaps'):
        (folder / "patients.csv").write_text("\n".join([*lines[:-1], last, ""]))
        assert tacit("init", *TABLE).code == 0
        texts.append((folder / "patients.schema.toml").read_text())
        (folder / "patients.schema.toml").unlink()
        (folder / "patients.toml").unlink()
    assert texts[0] == texts[1]


def test_extremes_of_private_records_do_not_show():
    roles = Roles("y", labels=("0", "1"))
    for age, low, high in (("87", 0, 100), ("99.5", 0, 100), ("-3", -10, 10), ("0", 0, 1)):
        declared = propose({"age": [age, "0"], "y": ["0", "1"]}, roles, public=False).schema
        column = declared.columns["age"]
        assert (column.low, column.high) == (low, high)
        assert not declared.confirmed_public


def test_kinds_are_told_by_the_fields():
    table = {
        "y": ["a", "b", "a"],
        "patient_id": ["1", "2", "3"],
        "ok": ["yes", "no", None],
        "when": ["2020-01-02", "2021-05-05", "2020-07-07"],
        "size": ["1", "2.5", "NA"],
        "empty": [None, "", None],
        "colour of eyes": ["b", "g", "b"],
    }
    schema = propose(table, Roles("y"), public=True).schema
    kinds = {name: kind.kind for name, kind in schema.columns.items()}
    assert kinds == {
        "patient_id": "ignore",
        "ok": "boolean",
        "when": "date",
        "size": "number",
        "empty": "ignore",
        "colour of eyes": "category",
    }
    assert schema.dataset(table).inputs.shape == (3, len(schema.features))


NAMES = st.text(min_size=1, max_size=6).map(str.strip).filter(bool)


@settings(max_examples=settings.default.max_examples // 2, deadline=None)
@given(names=st.lists(NAMES, min_size=3, max_size=3, unique=True), public=st.booleans())
def test_a_schema_is_read_as_it_was_written(names, public):
    target, first, second = names
    table = {
        target: ['a "quoted" one', "b\nc"],
        first: ["2020-01-02", "2021-01-02"],
        second: ["1", "2.5"],
    }
    schema = propose(table, Roles(target), public=public).schema
    text = schema_text(schema, "some.csv", "a test")
    assert Schema.of(tomllib.loads(text)) == schema


def test_the_private_table_is_no_public_sample_of_itself(folder):
    (folder / "other.csv").symlink_to("patients.csv")
    for name in ("patients.csv", "other.csv"):
        answer = tacit("init", *TABLE, "--public-csv", name, "--epsilon", "2")
        assert answer.code == 2
        assert "is the table of private records itself" in answer.refusal
    assert not (folder / "patients.schema.toml").exists()


def test_nothing_is_overwritten(folder):
    (folder / "patients.toml").write_text("mine")
    assert "exists, and is not overwritten" in tacit("init", *TABLE).refusal
    assert (folder / "patients.toml").read_text() == "mine"
    assert not (folder / "patients.schema.toml").exists()
    assert tacit("init", *TABLE, "--out", "other.toml").code == 0
    assert load_config("other.toml").task.schema == "patients.schema.toml"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--csv", "patients.csv"), "name a column of the table: hospital, age"),
        (("--csv", "no.csv", "--target", "x"), "there is no such file"),
        (("--csv", "patients.csv", "--target", "readmited"), "did you mean 'readmitted'?"),
        (("--csv", "a.csv", "--parquet", "b.parquet"), "give either this or --csv"),
        (("--dataset", "digit"), "did you mean 'digits'?"),
        (("--target", "x"), "--target = 'x': is of a table"),
        ((*TABLE, "--nodes", "3"), "follows from the values of 'hospital'"),
        ((*TABLE, "--epsilon", "-1"), "must be a positive number"),
        (("--csv", "patients.csv", "--target", "hospital", "--node", "hospital"), "is the target"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(words, said, folder):
    before = sorted(folder.iterdir())
    answer = tacit("init", *words)
    assert answer.code == 2
    assert said in answer.refusal
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("columns", [None, ["sex", "admission", "diagnosis", "readmitted"]])
@pytest.mark.parametrize("first", range(3))
def test_a_record_in_the_place_of_names_is_not_shown(folder, columns, first):
    """Of a table without a header, whatever its columns are and whatever is asked of it."""
    records = pd.read_csv("patients.csv", dtype=str)[columns or slice(None)].iloc[first:]
    private = records.iloc[0].astype(str)
    records.to_csv("bare.csv", index=False, header=False)
    for flag in ("--csv", "--public-csv"):
        table = ("--csv", "patients.csv") if flag == "--public-csv" else ()
        for target in ("readmitted", *private):
            answer = tacit("init", *table, flag, "bare.csv", "--target", target)
            assert answer.code == 2
            assert answer.refusal.startswith(f"tacit: {flag} = 'bare.csv': ")
            assert not [text for text in private if len(text) > 3 and text in answer.refusal]
    assert not list(folder.glob("bare.*toml"))


def test_it_asks_on_a_terminal(folder, monkeypatch):
    answers = "patients.csv\nsample.csv\nreadmitted\nhospital\n1.5\n"
    monkeypatch.setattr(sys, "stdin", Terminal(answers))
    answer = tacit("init")
    assert answer.code == 0, answer.err
    assert "Which column is to be predicted?" in answer.err
    config = load_config("patients.toml")
    assert (config.nodes.partition, config.privacy.epsilon) == ("by:hospital", 1.5)
    assert config.task.test == "csv:sample.csv"


def test_a_file_with_semicolons_is_read_as_such(folder):
    pd.read_csv("patients.csv").to_csv("patients.csv", sep=";", index=False, quoting=csv.QUOTE_ALL)
    assert tacit("init", *TABLE).code == 0
    assert Dialect.beside(folder / "patients.csv").separator == ";"
    assert len(Schema.of("patients.schema.toml").columns) == 10


def test_labels_and_nodes_may_be_listed(folder):
    words = ("--labels", "no, yes", "--node-values", "Riverside,General,Lakeview")
    assert tacit("init", *TABLE, *words).code == 0
    schema = Schema.of("patients.schema.toml")
    assert schema.node is not None
    assert schema.node.values == ("Riverside", "General", "Lakeview")
    assert schema.target.classes == 2


def with_persons(folder):
    """The table of patients with the number of each: every one has two rows."""
    for name in ("patients.csv", "sample.csv"):
        frame = pd.read_csv(folder / name)
        frame.insert(0, "patient_id", [1000 + row // 2 for row in range(len(frame))])
        frame.to_csv(folder / name, index=False)


def test_an_id_of_persons_is_no_input_and_somebody_has_to_decide(folder):
    with_persons(folder)
    answer = tacit("init", *TABLE)
    (line,) = [line for line in answer.out.splitlines() if line.startswith("unit: ")]
    for words in ("'patient_id' looks like", "somebody has to decide", "--unit none"):
        assert words in line
    files = {name: folder / name for name in ("patients.schema.toml", "patients.toml")}
    schema = Schema.of(files["patients.schema.toml"])
    assert (schema.unit, schema.columns["patient_id"].kind) == (None, "ignore")
    assert load_config("patients.toml").privacy.unit == "record"
    for path in files.values():  # whoever decides takes the marks of comments away
        text = path.read_text().replace("confirmed_public = false", "confirmed_public = true")
        for key in ("[unit]", 'column = "patient_id"', "unit = "):
            text = text.replace(f"# {key}", key)
        path.write_text(text)
    assert Schema.of(files["patients.schema.toml"]).unit.column == "patient_id"
    assert load_config("patients.toml").privacy.unit_column == "patient_id"


def test_a_declared_unit_is_that_of_schema_and_experiment(folder):
    with_persons(folder)
    table = ("--csv", "patients.csv", "--target", "readmitted", "--nodes", "3")
    answer = tacit("init", *table, "--public-csv", "sample.csv", "--unit", "patient_id")
    assert "unit: epsilon protects a person with all rows, told by 'patient_id'" in answer.out
    schema = Schema.of("patients.schema.toml")
    assert schema.unit.column == "patient_id"
    assert "patient_id" not in schema.columns
    rows = len(pd.read_csv("patients.csv"))
    plan = tacit("plan", "patients.toml", "--set", "train.steps=2", "--json").json
    assert sum(node["records"] for node in plan["per_node"]) == rows // 2


@pytest.mark.parametrize("persons", [False, True])
def test_a_table_without_a_unit_says_so_in_a_line(folder, persons):
    if persons:
        with_persons(folder)
    answer = tacit("init", *TABLE, *(("--unit", "none") if persons else ()))
    assert answer.out.splitlines()[2 + persons].startswith(
        "no unit: epsilon is a row's; of a person with"
    )
    assert "unit" not in (folder / "patients.schema.toml").read_text()
    assert "unit" not in (folder / "patients.toml").read_text()
    if persons:
        assert Schema.of("patients.schema.toml").columns["patient_id"].kind == "ignore"


@pytest.mark.parametrize(
    ("unit", "words"),
    [
        ("readmitted", "--unit = 'readmitted': is the target: name another column"),
        ("hospital", "--unit = 'hospital': is the node: name another column"),
        ("aeg", "--unit = 'aeg': is no column of the table: did you mean 'age'?"),
    ],
)
def test_a_unit_is_a_column_of_its_own(unit, words):
    assert words in tacit("init", *TABLE, "--unit", unit).refusal


def test_a_local_file_is_proposed_as_it_is_written_and_nothing_is_ignored_silently(folder):
    rows = 60
    lines = [
        "export of the ward, 12.03.2024",
        "",
        "name;lab;chol;weight;seen;share;covid;code;died",
    ]
    for row in range(rows):
        lab = "<0,01" if row % 9 == 0 else f"{row % 7},5"
        chol = "0" if row % 10 == 0 else str(180 + row)
        weight = "?" if row % 11 == 0 else f"1.{row + 100},25"
        fields = ("M\u00fcller", lab, chol, weight, f"{row % 28 + 1:02}.05.2024", f"{row}%")
        lines.append(";".join([*fields, str(row % 2), f"q{row}x", "yes" if row % 3 else "no"]))
    (folder / "ward.csv").write_bytes("\r\n".join(lines).encode("latin-1"))
    answer = tacit("init", "--csv", "ward.csv", "--target", "died", "--nodes", "3")
    assert answer.code == 0, answer.err
    dialect = Dialect.beside(folder / "ward.csv")
    assert (dialect.separator, dialect.decimal, dialect.thousands) == (";", ",", ".")
    assert (dialect.encoding, dialect.skip_lines) == ("cp1252", 2)
    assert dialect.missing == {"chol": ("0",), "weight": ("?",)}
    assert dialect.dates == {"seen": ("%d.%m.%Y",)}
    schema = Schema.of("ward.schema.toml")
    kinds = {name: kind.kind for name, kind in schema.columns.items()}
    assert {kinds[name] for name in ("lab", "chol", "weight", "covid")} == {"number"}
    assert kinds["seen"] == "date"
    for name, kind in kinds.items():
        assert (f"not an input: '{name}'" in answer.out) == (kind == "ignore")
    assert "without %" in answer.out
    inputs = schema.dataset(read_table(folder / "ward.csv", "here")).inputs
    place = schema.features.index("chol is missing")
    assert inputs[:, place].tolist() == [float(row % 10 == 0) for row in range(rows)]
    assert inputs[:, schema.features.index("weight is missing")].sum() == 6
