"""The benchmark of accountants runs, at tiny sizes, and says what it is meant to say."""

import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "accounting.py"


def test_the_benchmark_runs(capsys):
    runpy.run_path(str(BENCHMARK))["main"](["--quick"])
    said = capsys.readouterr().out
    for who in ("tacit, again", "dp_accounting PLD", "dp_accounting RDP", "PRV accountant"):
        assert said.count(who) == 2
    # What is left out is said: the levels that were not timed, the accountant that is missing.
    assert "timed on 4 of 40 levels" in said
