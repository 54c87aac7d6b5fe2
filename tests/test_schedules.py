"""Few levels: how many, at what cost, and in which order."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.schedules import MOST_LEVELS, quantise

MULTIPLIERS = st.integers(100, 9000).map(lambda number: number / 1000)
SCHEDULES = st.lists(MULTIPLIERS, min_size=1, max_size=200)


def cost(multipliers: tuple[float, ...]) -> float:
    return math.fsum(value**-2 for value in multipliers)


@settings(max_examples=150, deadline=None)
@given(SCHEDULES, st.integers(1, 20))
def test_few_levels_at_the_same_cost(multipliers: list[float], levels: int) -> None:
    given_schedule = tuple(multipliers)
    found = quantise(given_schedule, levels)
    assert len(found) == len(given_schedule)
    assert len(set(found)) <= levels
    assert cost(found) == pytest.approx(cost(given_schedule), rel=1e-12)
    assert min(multipliers) * (1 - 1e-12) <= min(found)
    assert max(found) <= max(multipliers) * (1 + 1e-12)


@settings(max_examples=150, deadline=None)
@given(SCHEDULES, st.integers(1, 20))
def test_order_is_kept_and_equal_steps_stay_equal(multipliers: list[float], levels: int) -> None:
    pairs = sorted(zip(multipliers, quantise(tuple(multipliers), levels), strict=True))
    for (before, after), (next_before, next_after) in pairwise(pairs):
        assert after <= next_after
        assert before < next_before or after == next_after


@pytest.mark.parametrize("sign", [1, -1])
def test_a_monotone_schedule_with_plateaus_stays_monotone(sign: int) -> None:
    levels = [1.0 + 0.05 * (step // 7) for step in range(300)]
    found = quantise(tuple(levels[::sign]))
    assert len(set(found)) == MOST_LEVELS
    assert list(found) == sorted(found, reverse=sign < 0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([1 / (3 + k) for k in range(MOST_LEVELS)]), max_size=99))
def test_few_levels_are_left_alone(multipliers: list[float]) -> None:
    assert quantise(tuple(multipliers)) == tuple(multipliers)


def test_a_published_schedule_changes_little() -> None:
    steps, growth = 1000, 10.0
    schedule = tuple(growth ** (-k / steps) for k in range(steps))
    found = quantise(schedule)
    assert MOST_LEVELS == 16
    assert len(set(found)) == 16
    # A sixteenth of a factor of ten: 15.5 % a level, half of that to either side.
    ratios = [after / before for before, after in zip(schedule, found, strict=True)]
    assert max(max(ratios), 1 / min(ratios)) < 10 ** (0.6 / 16)
    sizes = [found.count(value) for value in set(found)]
    assert max(sizes) - min(sizes) <= 1
