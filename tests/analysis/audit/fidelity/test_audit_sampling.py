"""Tests of who is drawn: each defect is found by the test that is for it, and nothing else is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import drawing_lab as lab
import pytest

from tacit.analysis.audit.fidelity.finding import Finding

COINS: Mapping[str, Any] = {}
FEDAVG = {"name": "dp-fedavg", "local_steps": 2}
AGAIN = {**FEDAVG, "sampling": "with-replacement"}


def failed(findings: Mapping[str, Finding]) -> set[str]:
    return {name for name, finding in findings.items() if not finding.passed}


@pytest.mark.parametrize("setting", [COINS, lab.FIXED], ids=["poisson", "fixed"])
def test_coins_of_one_step_in_all(setting: Mapping[str, Any]) -> None:
    found = lab.observe(lab.drawing_job(**setting), lab.SameCoins).findings()
    assert "coins of steps" in failed(found)
    assert found["coins of steps"].statistic > 3


@pytest.mark.parametrize("setting", [COINS, lab.FIXED], ids=["poisson", "fixed"])
def test_a_correct_program(setting: Mapping[str, Any]) -> None:
    found = lab.observe(lab.drawing_job(**setting)).findings()
    assert not failed(found)
    assert {"batches", "favoured records", "records drawn together"} <= set(found)
    assert {"coins of steps", "coins of nodes", "coins of runs"} <= set(found)
    assert ("sampling rate" in found) == ("batch sizes" in found) == (setting is COINS)
