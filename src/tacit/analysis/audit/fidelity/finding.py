"""What one test of fidelity found, and how often all of them together accuse a correct program."""

from __future__ import annotations

import math
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Finding:
    """What one test found.

    Args:
        name: of the test, a few words: `noise variance`.
        question: what it asks, for people: `Is the noise as large as planned?`
        statistic: its value.
        meaning: what the statistic is, with its unit.
        p_value: how likely a correct program shows as much, exactly or at most; 0 or 1 for tests
            that no correct program fails.
        exact: whether the p-value is exact; if not, it is an upper bound.
        saw: what it saw, one sentence.
        power: the smallest defect that it finds with the chance `POWER`, one sentence.
        noise_factor: that defect as a factor of the noise's standard deviation, below 1, where it
            is one: from it follows the epsilon that could hide; None: it is not of that kind.
    """

    name: str
    question: str
    statistic: float
    meaning: str
    p_value: float
    exact: bool
    saw: str
    power: str
    noise_factor: float | None = None

    @property
    def passed(self) -> bool:
        """Whether a correct program shows as much often enough; never if that is no number."""
        return math.isfinite(self.statistic) and self.p_value > LEVEL
