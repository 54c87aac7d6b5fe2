"""Figures of two digits: never on the wrong side, and never far away."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.report.wording import figure_down as down
from tacit.report.wording import figure_up as up


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_they_enclose_the_value(value: float) -> None:
    assert down(value) <= value <= up(value)
    assert up(value) - down(value) <= 0.101 * value
    for figure in (down(value), up(value)):
        assert len(Decimal(repr(figure)).normalize().as_tuple().digits) <= 2


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [(0.9123, 0.91, 0.92), (0.999, 0.99, 1.0), (1.0, 1.0, 1.0), (123.0, 120.0, 130.0)],
)
def test_two_digits_are_left(value: float, low: float, high: float) -> None:
    assert (down(value), up(value)) == (low, high)


@pytest.mark.parametrize("value", [0.0, math.inf])
def test_what_has_no_digits_stays(value: float) -> None:
    assert (down(value), up(value)) == (value, value)
