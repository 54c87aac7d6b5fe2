"""Ids of persons are told from ids of other things, categories and measurements."""

import datetime

import numpy as np
import pytest

from tacit.data.tables.propose import likely_ids

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
