"""A site sees how its table is read: every count by hand, every suspicion with its remedy."""

import datetime
import warnings

import numpy as np
import pytest

from tacit import Schema
from tacit.data.tables.check import OwnScreen, check_table
from tacit.data.tables.dialect import Dialect
from tacit.data.tables.propose import likely_ids
from tacit.data.tables.reading import read_table
from tacit.errors import PrivateRecordsWarning, RecordsError

DECLARED = {
    "confirmed_public": True,
    "target": {"column": "ill", "kind": "class", "labels": ["no", "yes"]},
    "columns": {
        "age": {"kind": "number", "low": 18, "high": 110},
        "creatinine": {"kind": "number", "low": 0, "high": 10, "missing": "indicator"},
        "sex": {"kind": "category", "values": ["f", "m"]},
        "ward": {"kind": "category", "values": ["a", "b"], "unknown": "other"},
        "smoker": {"kind": "boolean", "missing": "indicator"},
        "seen": {"kind": "date", "low": "2020-01-01", "high": "2021-12-31"},
        "name": {"kind": "ignore"},
    },
}
SIZE = 200
_draw = np.random.default_rng(1)
GOOD = {
    "age": [str(age) for age in _draw.integers(20, 95, SIZE)],
    "creatinine": [f"{value:.2f}" for value in _draw.lognormal(0, 0.35, SIZE)],
    "sex": list(_draw.choice(["f", "m"], SIZE)),
    "ward": list(_draw.choice(["a", "b"], SIZE)),
    "smoker": list(_draw.choice(["yes", "no"], SIZE)),
    "seen": [str(np.datetime64("2020-01-01") + day) for day in _draw.integers(0, 730, SIZE)],
    "name": [f"n{row}" for row in range(SIZE)],
    "ill": list(_draw.choice(["no", "yes"], SIZE)),
}


def with_rows(name, rows):
    """`GOOD`, with other texts in some rows of a column."""
    return {**GOOD, name: [rows.get(row, text) for row, text in enumerate(GOOD[name])]}


def written(folder, columns):
    path = folder / "own.csv"
    lines = [",".join(columns), *map(",".join, zip(*columns.values(), strict=True))]
    path.write_text("\n".join([*lines, ""]))
    return read_table(path, "own.csv", Dialect())


def checked(folder, table, test=None, **declared):
    schema = Schema(**{**DECLARED, **declared})
    public = None if test is None else written(folder, test)
    return check_table(written(folder, table), schema, "own.csv", public)


def counts(check, name):
    """Below, above, not declared, missing, refused."""
    return next([int(number) for number in row[2:]] for row in check.columns if row[0] == name)


def test_a_table_as_declared_has_nothing_to_say(tmp_path):
    check = checked(tmp_path, GOOD)
    assert (check.faults, check.suspicions) == ([], [])
    assert all(counts(check, row[0]) == [0] * 5 for row in check.columns)
    assert "name" not in {row[0] for row in check.columns}
    assert f"ill: no {GOOD['ill'].count('no')}, yes {GOOD['ill'].count('yes')}" in check.facts


@pytest.mark.parametrize(
    ("name", "rows", "wanted"),
    [
        ("age", {3: "17.9", 4: "111", 5: "200", 6: "18", 7: "110"}, [1, 2, 0, 0, 0]),
        ("age", {3: "", 8: "x", 9: "NA"}, [0, 0, 0, 2, 3]),
        ("creatinine", {3: "", 4: "-1", 5: "1e3"}, [1, 1, 0, 1, 0]),
        ("sex", {3: "male", 4: ""}, [0, 0, 1, 1, 2]),
        ("ward", {3: "c", 4: "c"}, [0, 0, 2, 0, 0]),
        ("smoker", {3: "maybe", 4: ""}, [0, 0, 1, 1, 1]),
        ("seen", {2: "2019-12-31", 3: "2020-01-01"}, [1, 0, 0, 0, 0]),
        ("seen", {4: "2021-12-31", 5: "2022-01-01"}, [0, 1, 0, 0, 0]),
        ("seen", {2: "yesterday", 3: ""}, [0, 0, 0, 1, 2]),
        ("ill", {2: "perhaps", 3: ""}, [0, 0, 1, 1, 2]),
    ],
)  # fmt: skip
def test_counts_are_those_of_the_rows_that_were_changed(tmp_path, name, rows, wanted):
    columns = with_rows(name, rows)
    check = checked(tmp_path, columns)
    assert counts(check, name) == wanted
    # It refuses what training refuses, and says where.
    schema = Schema(**DECLARED)
    if check.faults:
        assert all(name in line for line in check.faults)
        with pytest.raises(RecordsError):
            schema.dataset(written(tmp_path, columns))
    else:
        schema.dataset(written(tmp_path, columns))


def test_one_broken_column_hides_no_other(tmp_path):
    columns = {**with_rows("age", {6: "old"}), "sex": ["male"] * SIZE, "more": ["1"] * SIZE}
    check = checked(tmp_path, columns)
    lines = "\n".join(check.faults)
    assert len(check.faults) == 3
    assert "does not declare this column" in lines
    assert "column 'age': 1 of 200 records (the first is row 7): must be finite numbers" in lines
    assert "column 'sex': 200 of 200 records (the first is row 1)" in lines
    assert counts(check, "creatinine") == [0] * 5


def scaled(name, factor):
    return {**GOOD, name: [f"{float(text) * factor:.3f}" for text in GOOD[name]]}


@pytest.mark.parametrize(
    ("name", "factor", "bounds", "words"),
    [
        ("creatinine", 88.4, (0, 10), "divided by 88.4 (umol/l for mg/dl)"),
        ("creatinine", 1 / 88.4, (0.3, 10), "times 88.4 (mg/dl for umol/l)"),
        ("creatinine", 1, (20, 900), "times 88.4 (mg/dl for umol/l)"),
        ("creatinine", 1, (0, 900), "times 88.4 (mg/dl for umol/l)"),
        ("age", 12, (18, 110), "divided by 12 (months for years)"),
        ("age", 365.25, (18, 110), "divided by 365.25 (days for years)"),
    ],
)
def test_another_unit_of_measurement_is_named(tmp_path, name, factor, bounds, words):
    kind = {**DECLARED["columns"][name], "low": bounds[0], "high": bounds[1]}
    declared = {**DECLARED["columns"], name: kind}
    (line,) = checked(tmp_path, scaled(name, factor), columns=declared).suspicions
    assert line.startswith(f"column '{name}': ")
    assert words in line


def test_a_temperature_in_fahrenheit_is_named(tmp_path):
    columns = {**GOOD, "temperature": [f"{97 + row % 40 / 10:.1f}" for row in range(SIZE)]}
    kind = {"kind": "number", "low": 34, "high": 43}
    declared = {**DECLARED["columns"], "temperature": kind}
    (line,) = checked(tmp_path, columns, columns=declared).suspicions
    assert "less 32, divided by 1.8 (Fahrenheit for Celsius)" in line


@pytest.mark.parametrize(("name", "text"), [("age", "-999"), ("creatinine", "9999"), ("age", "0")])
def test_sentinels_are_no_measurements(tmp_path, name, text):
    columns = {**GOOD, "age": [str(45 + int(age) % 20) for age in GOOD["age"]]}
    columns[name] = [text if row % 20 == 3 else old for row, old in enumerate(columns[name])]
    (line,) = checked(tmp_path, columns).suspicions
    assert f"{text} in 10 records" in line
    assert f'[missing] {name} = ["{text}"]' in line


def test_a_count_that_is_often_nought_is_none_of_it(tmp_path):
    counts = [str(number) for number in np.random.default_rng(2).poisson(2, SIZE)]
    kind = {"kind": "number", "low": 0, "high": 30}
    check = checked(
        tmp_path, {**GOOD, "stays": counts}, columns=DECLARED["columns"] | {"stays": kind}
    )
    assert check.suspicions == []


def test_values_under_other_names_lead_to_the_dialect(tmp_path):
    sexes = ["female" if sex == "f" else "male" for sex in GOOD["sex"]]
    (line,) = checked(tmp_path, {**GOOD, "sex": sexes}).suspicions
    assert "[values.sex]" in line
    assert '"male" = "m"' in line or '"female" = "f"' in line
    path = tmp_path / "own.csv"
    table = read_table(path, "own.csv", Dialect(values={"sex": {"male": "m", "female": "f"}}))
    check = check_table(table, Schema(**DECLARED), "own.csv")
    assert (check.faults, check.suspicions) == ([], [])
    # "other" is declared: it is strange where there is nothing else.
    (line,) = checked(tmp_path, {**GOOD, "ward": ["z"] * SIZE}).suspicions
    assert "[values.ward]" in line


def test_a_text_that_few_have_is_not_shown(tmp_path):
    secret = "Vogelsang"
    columns = with_rows("sex", dict.fromkeys(range(9), secret))
    check = checked(tmp_path, columns)
    assert secret not in repr(check)


def test_rows_given_twice_and_rows_of_the_test_table(tmp_path):
    twice = {name: [*texts, texts[4], texts[4], texts[9]] for name, texts in GOOD.items()}
    twice["name"][-1] = "another"  # which is not used
    twice["age"][-2] += ".0"  # the same number
    check = checked(tmp_path, twice, GOOD)
    assert any(line.startswith("3 rows equal an earlier one") for line in check.facts)
    assert any("the first is row 201" in line for line in check.facts)
    assert f"{SIZE + 3} rows have the inputs of one of the 200 test records" in check.facts
    # However what is missing is written.
    mine, others = ({**GOOD, "smoker": [word] * SIZE} for word in ("NA", ""))
    check = checked(tmp_path, mine, others)
    assert f"{SIZE} rows have the inputs of one of the 200 test records" in check.facts
    # A corrected label is still the same person's; another age is not.
    public = {name: texts[:3] for name, texts in GOOD.items()}
    public |= {"ill": ["no", "no", "no"], "age": ["99", *GOOD["age"][1:3]]}
    check = checked(tmp_path, GOOD, public)
    assert "2 rows have the inputs of one of the 3 test records" in check.facts


def test_rows_are_numbered_as_in_the_file_where_some_are_left_out(tmp_path):
    columns = with_rows("ill", {0: "", 1: "NA"})
    columns["sex"] = ["x" if row == 5 else sex for row, sex in enumerate(GOOD["sex"])]
    target = {**DECLARED["target"], "missing": "drop"}
    check = checked(tmp_path, columns, target=target)
    assert "2 records have no target, and are left out" in check.facts
    assert "1 of 198 records (the first is row 6)" in check.faults[0]


def test_the_line_at_the_start_of_a_run(tmp_path):
    schema, screen = Schema(**DECLARED), OwnScreen()
    for columns in (GOOD, scaled("creatinine", 88.4), {**GOOD, "ward": ["z"] * SIZE}):
        screen.dataset(written(tmp_path, columns), schema, "own.csv")
    with pytest.warns(PrivateRecordsWarning) as said:
        screen.warn("own.csv")
    assert str(said[0].message) == (
        "own records: 600 read, 1 column with more than a tenth at a bound (creatinine), 1 column "
        'with nearly nothing but "other" (ward): tacit check own.csv SCHEMA'
    )
    quiet = OwnScreen()
    quiet.dataset(written(tmp_path, GOOD), schema, "own.csv")
    with warnings.catch_warnings(action="error"):
        quiet.warn("own.csv")
        OwnScreen().warn("own.csv")


def test_an_empty_table(tmp_path):
    check = checked(tmp_path, {name: [] for name in GOOD}, GOOD)
    assert check.faults == []
    assert "0 rows have the inputs of one of the 200 test records" in check.facts


# Ids of persons are told from ids of other things, categories and measurements.


RNG = np.random.default_rng(0)
ROWS = 100


def texts(values):
    return [str(value) for value in values]


PERSONS = np.sort(RNG.integers(125_000, 126_000, ROWS // 4)).repeat(4)
SHUFFLED = RNG.permutation(PERSONS)
FEW = RNG.integers(1, 6, ROWS)
CODES = [f"X{number:04d}" for number in range(ROWS)]
ORDER = range(1, ROWS + 1)


@pytest.mark.parametrize(
    ("name", "values", "persons"),
    [
        ("patient_id", FEW, True),  # a long record: the first rows are of few patients
        ("PatientID", CODES, True),
        ("pid", SHUFFLED, True),
        ("custid", SHUFFLED, True),
        ("zper", SHUFFLED, True),
        ("zper", PERSONS, True),
        ("insurance number", SHUFFLED, True),
        ("id", ORDER, True),
        ("household_id", SHUFFLED, True),
        ("x17", PERSONS, True),  # by its values: numbers in blocks that rise
        ("token", CODES, True),
        ("visit_id", ORDER, False),
        ("hadm_id", SHUFFLED, False),
        ("hospital_id", SHUFFLED, False),
        ("column", ORDER, False),  # which counts the rows
        ("hospital_id", FEW, None),
        ("number", FEW, None),
        ("num", FEW, None),
        ("number_of_visits", RNG.integers(0, 40, ROWS), None),
        ("room_number", FEW, None),
        ("year", np.sort(RNG.integers(1950, 2020, ROWS)), None),
        ("age", np.sort(RNG.integers(18, 90, ROWS)), None),
        ("income", RNG.integers(10_000, 99_999, ROWS), None),
        ("weight", RNG.normal(70, 10, ROWS).round(2), None),
        ("paid", RNG.integers(0, 2, ROWS), None),
        ("covid", ["yes", "no"] * (ROWS // 2), None),
        ("humid", RNG.integers(20, 99, ROWS), None),
        ("member", ["yes", "no"] * (ROWS // 2), None),
        ("customer", ["retail", "business"] * (ROWS // 2), None),
        ("subject", ["art", "music", "science", "sport"] * (ROWS // 4), None),
        ("diagnosis", ["E11.9", "I10", "J45"] * 33, None),
        ("sex", ["f", "m"] * (ROWS // 2), None),
        ("born", [datetime.date(1980, 1, 1 + day % 28) for day in range(ROWS)], None),
        ("empty", [], None),
    ],
)
def test_ids_are_told_by_names_and_values(name, values, persons):
    assert likely_ids({name: texts(values)}).get(name) is persons


def test_the_likeliest_comes_first_and_missing_fields_count_for_nothing():
    table = {
        "visit_id": texts(ORDER),
        "id": texts(ORDER),
        "subject_id": [*texts(PERSONS[:-2]), None, "NA"],
        "age": texts(FEW),
    }
    assert list(likely_ids(table, ("NA",)).items()) == [
        ("subject_id", True),
        ("id", True),
        ("visit_id", False),
    ]
