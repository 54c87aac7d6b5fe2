"""What several mechanisms come to, and what one record of a source may have been through.

The oracle is a sum: Gaussian steps compose by adding 1/z^2.
"""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from few import few
from tacit import privacy
from tacit.privacy import ClientSampling, FixedBatchGaussian, Gaussian, Laplace, SampledGaussian
from tacit.privacy.ledger.spent import (
    MOST_WAYS,
    alternatives,
    combined,
    compositions,
    cost,
    dominating,
)

gaussians = st.builds(
    lambda rate, multipliers: SampledGaussian(rate, multipliers),
    st.floats(0.05, 1.0),
    st.lists(st.floats(0.8, 4.0), min_size=3, max_size=3),
)


@pytest.mark.slow
@few(5, 15)
@given(st.lists(gaussians, min_size=1, max_size=3))
def test_the_dominating_mechanism_costs_no_less(nodes):
    whole = dominating(nodes)
    assert whole is not None
    for epsilon in (0.3, 2.0):
        above = privacy.delta(whole, epsilon=epsilon)
        for node in nodes:
            # Both are upper bounds: what is proved from below of a node may not lie above.
            assert privacy.delta_bounds(node, epsilon=epsilon)[0] <= above * (1 + 1e-9)


def test_the_dominating_mechanism_takes_the_worst_of_each():
    nodes = [SampledGaussian(0.1, [1.0, 3.0]), SampledGaussian(0.3, [2.0, 2.0], coordinates=4)]
    whole = dominating(nodes)
    assert whole == SampledGaussian(0.3, [1.0, 2.0], coordinates=4)
    assert dominating([Gaussian([2.0, 1.0]), nodes[0]]) == Gaussian([1.0, 1.0])
    fixed = [FixedBatchGaussian(2, 10, 1.0, 3), FixedBatchGaussian(2, 5, 2.0, 3)]
    assert dominating(fixed) == FixedBatchGaussian(2, 5, 1.0, 3)
    assert dominating([Laplace(1.0), Laplace(2.0)]) is None
    assert dominating([Gaussian(1.0, 2), Gaussian(1.0, 3)]) is None
    assert dominating([]) is None


def precision(mechanism):
    """The sum of 1 / z^2 over the steps of Gaussian releases: more reveals more."""
    if mechanism is None:
        return 0.0
    assert isinstance(mechanism, Gaussian)
    return sum(z**-2 for z in mechanism.noise_multiplier)  # type: ignore[union-attr]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from([2.0, 3.0, 4.0, 5.0]), max_size=4), st.booleans()),
        max_size=5,
    )
)
def test_of_every_run_a_record_was_at_the_worst_node_or_at_all(runs):
    """The oracle adds 1/z^2: of the worst node where records are apart, of all elsewhere."""
    ways = compositions(
        [alternatives([Gaussian(z, 1) for z in noise], apart=apart) for noise, apart in runs], 1e-5
    )
    assert len(ways) <= MOST_WAYS
    paid = [
        max((z**-2 for z in noise), default=0.0) if apart else sum(z**-2 for z in noise)
        for noise, apart in runs
    ]
    assert max(map(precision, ways)) == pytest.approx(math.fsum(paid))


def test_a_node_that_released_nothing_adds_nothing():
    assert alternatives([None, None], apart=True) == alternatives([None], apart=False) == ()
    assert compositions([(), ()], 1e-5) == compositions([], 1e-5) == (None,)


def test_many_nodes_of_one_run_are_each_their_own_alternative():
    """So that a run costs what its worst node does, however many kinds of nodes it has."""
    run = [SampledGaussian(rate / 50, 1.0 + rate / 10, 2) for rate in range(1, 41)]
    (homogeneous,) = alternatives([Gaussian(8.0, 3)] * 3, apart=True)
    for runs in ([run], [run, [homogeneous]]):
        assert len(compositions(runs, 1e-5)) == len(run)


@pytest.mark.slow
def test_beyond_so_many_ways_nodes_are_taken_together_and_nothing_is_lost():
    """Four kinds of nodes in each of three runs, whose rate and noise rise together."""
    runs = [
        [SampledGaussian(0.1 * rate, 1.5 + 0.5 * rate + 0.1 * number, 3) for rate in range(1, 5)]
        for number in range(3)
    ]
    ways = compositions(runs, 1e-5)
    assert len(ways) <= MOST_WAYS
    most = max(cost(way, 1e-5) for way in ways)
    every = [cost(combined(choice), 1e-5) for choice in itertools.product(*runs)]
    assert max(every) <= most <= 2 * max(every)


def test_where_no_node_dominates_all_of_them_count():
    poisson = SampledGaussian(0.2, 2.0, 5)
    clients = ClientSampling(Gaussian(4.0, 2), rate=0.5, rounds=5)
    both = alternatives([poisson, clients], apart=True)
    assert both == (poisson, clients)
    ways = compositions([both] * 40, 1e-5)
    assert len(ways) == 1
    assert cost(ways[0], 1e-5) >= max(cost(combined([one] * 40), 1e-5) for one in both)
