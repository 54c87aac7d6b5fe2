"""What one test of fidelity found, and how often all of them together accuse a correct program."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tacit.report.documents.claims import FidelityTest
from tacit.report.wording import figure_up

ALARM_RATE = 1e-6
"""The chance, at most, that an audit of a correct program raises an alarm."""

MOST_TESTS = 80
"""Tests of fidelity that one audit makes, at most, so that all of them together stay within it."""

LEVEL = ALARM_RATE / 2 / MOST_TESTS
"""Each test fails where a correct program shows as much with this chance or less.

Half of the alarm rate is for the attacks.
"""

POWER = 0.95
"""The chance with which the smallest defect that a test states is found."""


Finding = FidelityTest
"""What one test found: the document itself."""


@dataclass
class Worst:
    """The largest share of what is allowed that was seen, and where; infinite: it was no number."""

    share: float = 0.0
    where: tuple[Any, ...] = ()

    def see(self, share: float, *where: Any) -> None:
        """Take note of one share."""
        if not share <= self.share:  # also where it is no number
            self.share, self.where = (share if share == share else math.inf), where


def finding(
    name: str,
    question: str,
    statistic: float,
    meaning: str,
    saw: str,
    power: str,
    *,
    p_value: float,
    exact: bool,
    noise_factor: float | None = None,
) -> Finding:
    """A `FidelityTest`: it passed if a correct program shows as much often enough.

    A statistic that is no number never passes.
    """
    return Finding(
        name=name,
        question=question,
        passed=math.isfinite(statistic) and p_value > LEVEL,
        statistic=statistic,
        meaning=meaning,
        p_value=p_value,
        exact=exact,
        saw=saw,
        power=power,
        noise_factor=noise_factor,
    )


def exact_finding(
    name: str,
    question: str,
    statistic: float,
    meaning: str,
    saw: str,
    power: str,
    *,
    limit: float = 0.0,
) -> Finding:
    """A test that no correct program fails: its statistic is then `limit` at most.

    Up to there it is a figure of private records, and written down to two digits, rounded up.
    """
    failed = statistic > limit
    shown = float(statistic) if failed else figure_up(float(statistic))
    chance = 0.0 if failed else 1.0
    return finding(name, question, shown, meaning, saw, power, p_value=chance, exact=True)
