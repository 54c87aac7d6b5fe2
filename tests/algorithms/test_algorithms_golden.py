"""Seeded runs, plans and help pages give what they gave: see `golden`."""

import json

import golden
import pytest

RIGHT = json.loads(golden.FILE.read_text(encoding="utf-8"))


def assert_same(found, right, where=""):
    """Numbers nearly, and all else to the letter.

    Kernels differ between machines in last bits. So do the sums of an accountant, and a search for
    the least noise, which tries numbers of 20 bits, may end at the next one: then noise lies on
    another lattice, which sums show a hundred times as much.
    """
    if isinstance(right, float) and isinstance(found, (int, float)):
        assert found == pytest.approx(right, rel=1e-4, abs=1e-12), where
    elif isinstance(right, dict):
        assert list(found) == list(right), where
        for key, value in right.items():
            assert_same(found[key], value, f"{where}/{key}")
    elif isinstance(right, list):
        assert len(found) == len(right), where
        for place, (one, other) in enumerate(zip(found, right, strict=True)):
            assert_same(one, other, f"{where}/{place}")
    else:
        assert found == right, where


def plain(value):
    return json.loads(json.dumps(value))


@pytest.mark.parametrize("case", RIGHT["runs"])
def test_seeded_runs_end_where_they_did(case, tmp_path):
    assert_same(plain(golden.ran(case, tmp_path / "run")), RIGHT["runs"][case])


def test_statements_have_the_same_keys(tmp_path):
    assert golden.stated(tmp_path / "run") == RIGHT["statement"]


def test_every_way_to_run_an_algorithm_has_a_golden_result():
    assert list(RIGHT["runs"]) == list(golden.ROWS)
    assert list(RIGHT["plans"]) == golden.figures()


@pytest.mark.slow
@pytest.mark.parametrize("figure", RIGHT["plans"])
def test_figures_of_the_papers_are_planned_as_they_were(figure):
    assert_same(plain(golden.planned(figure)), RIGHT["plans"][figure])


def test_commands_explain_themselves_as_they_did():
    assert golden.helped() == RIGHT["help"]
