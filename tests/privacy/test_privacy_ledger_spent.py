"""What several mechanisms come to, and what one record has been through, over shared accounts.

The oracle is a register of persons: who was at which node of which run, and what that released.
Gaussian steps compose by adding 1/z^2, so that a history is a number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tacit import privacy
from tacit.privacy import (
    ClientSampling,
    Composed,
    FixedBatchGaussian,
    Gaussian,
    Laplace,
    Mechanism,
    SampledGaussian,
)
from tacit.privacy.ledger.spent import (
    MOST_HISTORIES,
    AccountRelease,
    composed,
    dominating,
    histories,
    holders,
)

gaussians = st.builds(
    lambda rate, multipliers: SampledGaussian(rate, multipliers),
    st.floats(0.05, 1.0),
    st.lists(st.floats(0.8, 4.0), min_size=3, max_size=3),
)


@settings(max_examples=15, deadline=None)
@given(st.lists(gaussians, min_size=1, max_size=3))
def test_the_dominating_mechanism_costs_no_less(nodes: list[SampledGaussian]) -> None:
    whole = dominating(nodes)
    assert whole is not None
    for epsilon in (0.3, 2.0):
        above = privacy.delta(whole, epsilon=epsilon)
        for node in nodes:
            # Both are upper bounds: what is proved from below of a node may not lie above.
            assert privacy.delta_bounds(node, epsilon=epsilon)[0] <= above * (1 + 1e-9)


def test_the_dominating_mechanism_takes_the_worst_of_each() -> None:
    nodes = [SampledGaussian(0.1, [1.0, 3.0]), SampledGaussian(0.3, [2.0, 2.0], coordinates=4)]
    whole = dominating(nodes)
    assert whole == SampledGaussian(0.3, [1.0, 2.0], coordinates=4)
    assert dominating([Gaussian([2.0, 1.0]), nodes[0]]) == Gaussian([1.0, 1.0])
    fixed = [FixedBatchGaussian(2, 10, 1.0, 3), FixedBatchGaussian(2, 5, 2.0, 3)]
    assert dominating(fixed) == FixedBatchGaussian(2, 5, 1.0, 3)
    assert dominating([Laplace(1.0), Laplace(2.0)]) is None
    assert dominating([Gaussian(1.0, 2), Gaussian(1.0, 3)]) is None
    assert dominating([]) is None


PERSONS = 9


def precision(mechanism: Mechanism | None) -> float:
    """The sum of 1 / z^2 over the steps of Gaussian releases: more reveals more."""
    if mechanism is None:
        return 0.0
    assert isinstance(mechanism, Gaussian)
    return sum(z**-2 for z in mechanism.noise_multiplier)  # type: ignore[union-attr]


def of(*records: int) -> NDArray[np.uint64]:
    return np.array(records, np.uint64)


def test_records_are_grouped_by_the_accounts_that_hold_them() -> None:
    accounts = {"a": of(1, 2, 3), "b": of(3, 4, 4), "c": of(9)}
    held = holders({"x": of(4, 1, 3, 4, 7), "y": of(7), "z": of()}, accounts)
    assert held == {
        "x": {("b",): 2, ("a",): 1, ("a", "b"): 1, (): 1},
        "y": {(): 1},
        "z": {},
    }
    assert holders({"x": of(1)}, {}) == {"x": {(): 1}}


Run = Sequence[tuple[int, float]]  # of each person: node, and the noise multiplier there

runs_of_persons = st.lists(
    st.tuples(
        st.lists(st.integers(0, 2), min_size=PERSONS, max_size=PERSONS),
        st.lists(st.sampled_from([2.0, 3.0, 5.0]), min_size=3, max_size=3),
    ),
    min_size=1,
    max_size=4,
)


def entered(
    runs: Sequence[tuple[list[int], list[float]]], contents: Sequence[int]
) -> tuple[dict[str, NDArray[np.uint64]], dict[str, list[AccountRelease]]]:
    """The accounts of some runs, found by their sets of records, and what was released of each."""
    accounts: dict[str, NDArray[np.uint64]] = {}
    releases: dict[str, list[AccountRelease]] = {}
    for number, (places, noise) in enumerate(runs):
        for node, z in enumerate(noise):
            records = sorted(contents[who] for who, place in enumerate(places) if place == node)
            if records:
                name = str(records)
                accounts[name] = of(*records)
                one = AccountRelease(f"run {number}", name, node, Gaussian(z, 1))
                releases.setdefault(name, []).append(one)
    return accounts, releases


def worst(
    account: str,
    accounts: Mapping[str, NDArray[np.uint64]],
    releases: Mapping[str, list[AccountRelease]],
) -> float:
    groups = holders({account: accounts[account]}, accounts)[account]
    paths = histories(account, groups, releases)
    assert len(paths) <= MOST_HISTORIES
    return max(precision(composed(history)) for history in paths)


@settings(max_examples=60, deadline=None)
@given(runs_of_persons)
def test_the_books_say_of_every_record_what_was_released_of_it(
    runs: list[tuple[list[int], list[float]]],
) -> None:
    """However records were dealt: exactly that, where no two records are equal."""
    accounts, releases = entered(runs, range(PERSONS))
    paid = [sum(noise[places[who]] ** -2 for places, noise in runs) for who in range(PERSONS)]
    for name, records in accounts.items():
        assert worst(name, accounts, releases) == pytest.approx(max(paid[int(r)] for r in records))


@settings(max_examples=60, deadline=None)
@given(
    runs_of_persons,
    st.lists(st.integers(0, 3), min_size=PERSONS, max_size=PERSONS),
)
def test_the_books_never_say_less_where_records_are_equal(
    runs: list[tuple[list[int], list[float]]], contents: list[int]
) -> None:
    """Nobody can tell equal records apart, but by the whole data of the node that has them."""
    accounts, releases = entered(runs, contents)
    for name, records in accounts.items():
        most = 0.0
        for content in {int(record) for record in records}:
            paid = 0.0
            for number in range(len(runs)):
                here = {
                    one.account: one
                    for listed in releases.values()
                    for one in listed
                    if one.run == f"run {number}" and content in accounts[one.account]
                }
                own = [
                    precision(one.mechanism) for one in releases[name] if one.run == f"run {number}"
                ]
                other = [precision(one.mechanism) for one in here.values()]
                paid += sum(own) if own else max(other, default=0.0)
            most = max(most, paid)
        assert worst(name, accounts, releases) >= most - 1e-12


def test_many_histories_become_one_that_covers_all() -> None:
    """Forty persons, each alone in a different mixture of runs."""
    runs = [([(who >> bit) % 2 for who in range(40)], [2.0, 3.0 + bit]) for bit in range(6)]
    accounts: dict[str, NDArray[np.uint64]] = {"all": of(*range(40))}
    releases: dict[str, list[AccountRelease]] = {}
    for number, (places, noise) in enumerate(runs):
        for node, z in enumerate(noise):
            name = f"{number}-{node}"
            accounts[name] = of(*(who for who, place in enumerate(places) if place == node))
            releases[name] = [AccountRelease(f"run {number}", name, node, Gaussian(z, 1))]
    groups = holders({"all": accounts["all"]}, accounts)["all"]
    assert len(groups) > MOST_HISTORIES
    (history,) = histories("all", groups, releases)
    assert precision(composed(history)) == pytest.approx(6 / 4)  # the worst of every run


def test_of_one_run_the_worst_counts_whatever_the_mechanisms_are() -> None:
    poisson, smaller = SampledGaussian(0.2, 2.0, 5), SampledGaussian(0.1, 3.0, 5)
    pair = [
        AccountRelease("one", name, 0, mechanism)
        for name, mechanism in (("a", poisson), ("b", smaller))
    ]
    assert composed(pair) == poisson
    # Where none is known to reveal more than the other, both count.
    clients = ClientSampling(Gaussian(4.0, 2), rate=0.5, rounds=5)
    both = composed([pair[0], AccountRelease("one", "b", 0, clients)])
    assert both == Composed([poisson, clients])
    # Nodes with the same data release the same records twice.
    assert composed([pair[0], AccountRelease("one", "a", 1, poisson)]) == SampledGaussian(
        0.2, 2.0, 10
    )
    assert composed([AccountRelease("one", "a", 0, None)]) is None
    assert math.isclose(
        precision(composed([AccountRelease("one", "a", 0, Gaussian(2.0, 3))])), 0.75
    )
