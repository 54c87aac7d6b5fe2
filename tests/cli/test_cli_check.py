"""`tacit check` shows a site its own table, in private, and ends as training would."""

import csv
import os

import pytest

from experiments import tacit, write_experiment
from patient_tables import write_tables
from tacit.errors import PrivateRecordsWarning

COUNT = 400


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    write_tables(tmp_path, COUNT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def change(path, **changes):
    """Write a table anew with other fields: each column's function is given the field."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row.update({name: make(row[name]) for name, make in changes.items()})
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)


def in_micromoles(text):
    return text and f"{88.4 * float(text):.0f}"


EXPERIMENT = {
    "task": {"dataset": "csv:patients.csv", "test": "csv:sample.csv", "model": "logistic"},
    "nodes": {"count": 5},
    "train": {"steps": 1},
}


def test_what_was_read_how(folder):
    before = sorted(os.listdir(folder))
    answer = tacit("check", "patients.csv", "--test", "sample.csv")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("private: ")
    for words in (
        "patients.csv: 400 records, 12 columns, read by patients.schema.toml",
        "dialect: plain",
        "without a name, and not read: none",
        "number: bounds 18 and 110",
        "0 rows have the inputs of one of the 100 test records",
    ):
        assert words in answer.out
    assert sorted(os.listdir(folder)) == before


def test_the_dialect_and_columns_that_are_not_read_are_named(folder):
    lines = (folder / "patients.csv").read_text().splitlines()
    lines = [f";{line.replace(',', ';')}" for line in lines]
    (folder / "own.csv").write_text("\n".join(lines).replace("age", "Alter"))
    (folder / "own.dialect.toml").write_text("separator = ';'\n[names]\nAlter = 'age'\n")
    text = (folder / "patients.schema.toml").read_text()
    text = text.replace('[columns.bmi]\nkind = "number"', '[columns.bmi]\nkind = "ignore"')
    head, _, bmi = text.partition('[columns.bmi]\nkind = "ignore"\n')
    _, _, rest = bmi.partition("[")
    (folder / "own.schema.toml").write_text(f'{head}[columns.bmi]\nkind = "ignore"\n[{rest}')
    answer = tacit("check", "own.csv")
    assert answer.code == 0, answer.err
    for words in (
        "dialect: separator = ';', names = {'Alter': 'age'} (own.dialect.toml)",
        "ignored: bmi",
        "not read: column 1",
    ):
        assert words in answer.out


def test_it_ends_as_training_would_and_hides_nothing(folder):
    file = write_experiment(folder, **EXPERIMENT)
    change(
        folder / "patients.csv",
        creatinine=in_micromoles,
        sex=lambda text: {"f": "female", "m": "male"}[text],
        systolic=lambda text: "-999" if text.endswith("7") else text,
    )
    answer = tacit("check", "patients.csv")
    assert answer.code == 2
    for words in ("[values.sex]", "divided by 88.4", '[missing] systolic = ["-999"]'):
        assert words in answer.out
    assert "refused: column 'sex': 400 of 400 records (the first is row 1)" in answer.out
    assert tacit("plan", file).code == 2
    values = '[values.sex]\nfemale = "f"\nmale = "m"\n[missing]\nsystolic = ["-999"]\n'
    (folder / "patients.dialect.toml").write_text(values)
    answer = tacit("check", "patients.csv")
    assert "column 'sex'" not in answer.out
    assert "column 'systolic'" in answer.out  # which may not be missing
    assert answer.code == 2


def test_a_run_begins_with_one_line_of_it_on_the_own_screen(folder, recwarn):
    file = write_experiment(folder, **EXPERIMENT)
    change(folder / "patients.csv", creatinine=in_micromoles)
    answer = tacit("train", file, "--out", "run")
    assert answer.code == 0, answer.err
    said = [str(each.message) for each in recwarn if each.category is PrivateRecordsWarning]
    assert len(said) == 1
    assert "400 read, 1 column with more than a tenth at a bound (creatinine)" in said[0]
    assert said[0].endswith("tacit check patients.csv")
    for path in (folder / "run").rglob("*"):
        if path.is_file():
            assert b"at a bound" not in path.read_bytes()


def test_what_cannot_be_read_at_all_is_one_line(folder):
    assert "there is no such file" in tacit("check", "nowhere.csv").refusal
    (folder / "other.csv").write_text("a,b\n1,2\n")
    assert "no such file" in tacit("check", "other.csv").refusal
    answer = tacit("check", "other.csv", "patients.schema.toml")
    assert answer.code == 2
    assert "must begin with a line of names" in answer.out
