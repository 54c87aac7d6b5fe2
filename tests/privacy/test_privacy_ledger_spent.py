"""Which mechanism reveals at least as much as several others."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tacit import privacy
from tacit.privacy import FixedBatchGaussian, Gaussian, Laplace, SampledGaussian
from tacit.privacy.ledger.spent import dominating

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
