"""Whose rows are whose: at how many nodes, and how many; and how a laboratory draws whole units."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from audit_cases import PERSONS, job
from bug_table import BUGS
from planting import patched, planted

from tacit.analysis.audit.fidelity.accounted import unit_findings
from tacit.analysis.audit.fidelity.batches import read_drawings
from tacit.analysis.audit.laboratory import problem_of, set_up
from tacit.errors import RecordsError
from tacit.training.stacked_context import StackedContext


def test_records_that_are_rows_are_asked_nothing():
    assert unit_findings(job()) == []


def test_persons_as_planned_pass():
    (found,) = unit_findings(job(privacy=PERSONS))
    assert found.passed
    assert found.exact
    assert "160" in found.saw


def test_persons_at_several_nodes_are_counted():
    with pytest.raises(RecordsError, match="unit_nodes"):
        job(privacy=PERSONS, shared=True)
    with planted(BUGS["a person at two nodes"], "poisson") as wrong:
        (found,) = unit_findings(wrong)
    assert (found.passed, found.statistic) == (False, 40)
    (found,) = unit_findings(job(privacy={**PERSONS, "unit_nodes": 4}, shared=True))
    assert found.passed


def test_persons_of_more_rows_than_count_are_counted():
    with planted(BUGS["all rows of a person"], "poisson") as wrong:
        (found,) = unit_findings(wrong)
    assert (found.passed, found.statistic) == (False, 2 * 8 * 4)  # of four or five rows


def test_rows_in_the_place_of_persons_fail():
    given = job(privacy=PERSONS)
    (found,) = unit_findings(replace(given, train=replace(given.train, units=None)))
    assert not found.passed


@pytest.mark.parametrize("rows", ["mean", "sum"])
def test_a_laboratory_has_a_person_of_several_rows_for_each_record(rows):
    plan = job(privacy={**PERSONS, "unit_gradient": rows}).plan
    lab = set_up(plan, 4, 8, StackedContext)
    problem = problem_of(plan, plan.release.mechanism(plan.nodes[0]))
    right = lab.observe(problem, 3)
    assert all((one.counts == 3).all() for one in right.trace.drawn)
    assert read_drawings([right.trace]).batches.wrong == []
    for release in right.trace.releases:  # a canary of rows that agree moves what one record may
        assert (release.before.norm(dim=1) <= 40.0).all()
        assert (release.before[:, 0] <= 1).all()
    with patched(BUGS["a person in part"].patches):
        wrong = read_drawings([lab.observe(problem, 3).trace]).batches.wrong
    assert "without some of its rows" in wrong[0]
    with patched(BUGS["clipped by row"].patches):
        apart = lab.observe(problem, 3)
    most = max(float(release.before[:, 0].max()) for release in apart.trace.releases)
    assert 2.9 < most <= 3.0
    assert torch.equal(torch.tensor(apart.inserted), torch.tensor(right.inserted))
