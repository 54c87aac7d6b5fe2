"""Whom epsilon protects, by name: one function says a record, a patient, patients."""

import pytest

from tacit.errors import InputError
from tacit.report.documents.base import as_dict, read
from tacit.report.documents.unit import RECORD, UnitTerms

TEXTS = {
    "record": "A record joins a step; each record's gradient, of all records, was recorded.",
    "patient": "A patient joins a step; each patient's gradient, of all patients, was recorded.",
    "employee": "An employee joins a step; each employee's gradient, of all employees, was "
    "recorded.",
    "company": "A company joins a step; each company's gradient, of all companies, was recorded.",
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_says_what_is_protected_by_its_name(name):
    assert UnitTerms(name=name).said(TEXTS["record"]) == TEXTS[name]


def test_a_name_at_the_beginning_of_a_sentence_is_written_as_one():
    unit = UnitTerms(name="patient")
    assert (
        unit.said("Records are many. Record by record.") == "Patients are many. Patient by patient."
    )


@pytest.mark.parametrize(
    ("gradient", "nodes", "apart"),
    [(None, 1, True), (None, 2, True), ("mean", 1, False), ("sum", 1, False), ("mean", 2, True)],
)
def test_a_persons_epsilon_is_another_by_row_and_at_several_nodes(gradient, nodes, apart):
    assert UnitTerms(name="x", person="x", gradient=gradient, nodes=nodes).apart is apart
    assert not RECORD.apart


def test_terms_are_what_they_say_and_nothing_else():
    unit = UnitTerms(name="patient", person="patient", gradient="sum", rows=3, nodes=2)
    assert read(UnitTerms, as_dict(unit), "unit") == unit
    assert as_dict(RECORD) == {"name": "record"}
    for wrong in ({"name": "x", "gradient": "median"}, {"name": "x", "rows": -1}, {"rows": 1}):
        with pytest.raises(InputError, match="unit"):
            read(UnitTerms, wrong, "unit")
