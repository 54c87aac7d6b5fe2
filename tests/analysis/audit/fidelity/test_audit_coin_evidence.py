"""The evidence of every test of who is drawn has an expectation of at most 1: by enumeration."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import special, stats

from tacit.analysis.audit.fidelity import sampling
from tacit.analysis.audit.fidelity.batches import Coins, View
from tacit.analysis.audit.fidelity.evidence import (
    TILTS,
    Cells,
    costs_of,
    counted,
    least_chance,
    least_hits,
    merged,
    p_value,
    weigh,
)
from tacit.analysis.audit.fidelity.finding import LEVEL, POWER

Outcome = tuple[float, NDArray[np.bool_]]
"""How likely, and who was drawn, `[runs, nodes, slots, records]`."""

Builder = Callable[[View, Coins], list[Cells]]

POISSON: dict[str, Builder] = {
    "totals": lambda view, coins: sampling._drawn(coins, sampling._TOTALS),
    "sizes": lambda view, coins: [sampling._spread(coins), *sampling._successive(coins)],
}
EITHER: dict[str, Builder] = {
    "places": lambda view, coins: sampling._drawn(coins, sampling._PLACES),
    "pairs": lambda view, coins: sampling._pairs(coins),
    **{
        again.name: (lambda view, coins, again=again: sampling._compared(again, view)[0])
        for again in sampling._AGAIN
    },
}
RATE = 0.3


def by_coins(shape):
    """Every outcome of independent coins."""
    count = math.prod(shape)
    for fell in itertools.product((False, True), repeat=count):
        drawn = np.array(fell).reshape(shape)
        yield RATE ** drawn.sum() * (1 - RATE) ** (count - drawn.sum()), drawn


def by_subsets(blocks, records, size):
    """Every outcome of batches of a fixed size."""
    subsets = []
    for chosen in itertools.combinations(range(records), size):
        subset = np.zeros(records, np.bool_)
        subset[list(chosen)] = True
        subsets.append(subset)
    chance = len(subsets) ** -float(math.prod(blocks))
    for each in itertools.product(subsets, repeat=math.prod(blocks)):
        yield chance, np.array(each).reshape(*blocks, records)


def expected(outcomes, build, rate, size):
    """The mean evidence of correct programs."""
    total = chances = 0.0
    for chance, drawn in outcomes:
        tossed = np.ones(drawn.shape, np.bool_)
        view = View("each", tossed, drawn, np.full(drawn.shape[:2], rate))
        records = None if size is None else drawn.shape[3]
        cells = merged(build(view, Coins("each", tossed, drawn, rate, size, records)))
        total += chance * math.exp(weigh(cells).log_evidence)
        chances += chance
    assert chances == pytest.approx(1)
    return total


@pytest.mark.parametrize("shape", [(1, 1, 3, 2), (1, 2, 2, 2), (2, 2, 1, 2)])
@pytest.mark.parametrize("name", [*POISSON, *EITHER])
def test_independent_coins(name, shape):
    again = {again.name: at for again, at in zip(sampling._AGAIN, (2, 1, 0), strict=True)}
    if name in again and shape[again[name]] == 1:
        assert sampling._compared(
            next(each for each in sampling._AGAIN if each.name == name),
            View("each", np.ones(shape, np.bool_), np.ones(shape, np.bool_), np.ones(shape[:2])),
        )[0] == []  # fmt: skip
        return
    mean = expected(by_coins(shape), {**POISSON, **EITHER}[name], RATE, None)
    assert mean <= 1 + 1e-9
    # Independent coins leave nothing to a bound, except where a record stands for several cells.
    if name != "pairs":
        assert mean == pytest.approx(1)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", EITHER)
def test_batches_of_a_fixed_size(name, size):
    blocks = {"coins of nodes": (1, 3, 1), "coins of runs": (3, 1, 1)}.get(name, (1, 1, 3))
    if name == "pairs" and size == 1:
        return  # two records are never drawn
    mean = expected(by_subsets(blocks, 4, size), EITHER[name], size / 4, size)
    assert 0 < mean <= 1 + 1e-9


@given(st.integers(1, 30), st.floats(1e-3, 0.999))
def test_costs_are_the_generating_function(coins, rate):
    law = stats.binom(coins, rate)
    every = np.arange(coins + 1)
    exact = special.logsumexp(TILTS[:, None] * every + law.logpmf(every), axis=1)
    np.testing.assert_allclose(coins * costs_of(rate), exact, rtol=1e-9, atol=1e-12)


def test_cells_of_two_rates_are_added_and_own_cells_are_not():
    first = [counted("sum", np.array([3, 1]), np.array([9, 4]), 0.2, own=False)]
    second = [counted("sum", np.array([5, 0]), np.array([7, 0]), 0.6, own=False)]
    (added,) = merged([*first, *second])
    np.testing.assert_array_equal(added.hits, [8, 1])
    np.testing.assert_allclose(added.planned, [9 * 0.2 + 7 * 0.6, 4 * 0.2])
    np.testing.assert_allclose(added.costs[:, 0], 9 * costs_of(0.2) + 7 * costs_of(0.6))
    own = [
        counted("own", np.array([3, 1]), np.array([9, 4]), rate, own=True) for rate in (0.2, 0.6)
    ]
    assert merged(own)[0].count == 4
    assert len(merged(own)[0].hits) == 4


def test_of_many_own_cells_those_furthest_from_the_plan_are_weighed():
    hits = np.full(5000, 5)
    hits[1234] = 19
    cells = counted("own", hits, np.full(5000, 20), 0.25, own=True)
    assert (cells.count, len(cells.hits)) == (5000, 2048)
    verdict = weigh([cells])
    assert (verdict.number, verdict.hits, verdict.planned) == (1234, 19.0, 5.0)


def test_the_least_that_is_found_is_just_found():
    cells = counted("all", np.array([0]), np.array([1000]), 0.25, own=False)
    least = least_hits(cells, 0, 1, 0.0)
    assert least is not None
    for hits, fails in ((least, True), (least - 1, False)):
        own = counted("all", np.array([hits]), np.array([1000]), 0.25, own=False)
        assert (p_value(weigh([own]).log_evidence, 0.0) <= LEVEL) == fails
    chance = least_chance(least, 1000.0)
    assert stats.binom.sf(least - 1, 1000, chance) == pytest.approx(POWER)
    few = counted("all", np.array([0]), np.array([5]), 0.25, own=False)
    assert least_hits(few, 0, 1, 0.0) is None


def test_the_machines_coins_are_worth_a_factor():
    assert p_value(3.0, 0.5) == pytest.approx(math.exp(-2.5))
    assert p_value(0.1, 0.5) == 1.0
