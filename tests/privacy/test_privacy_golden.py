"""The figures that the PRV accountant's authors and Opacus publish for their own tests.

From pytorch/opacus, `opacus/tests/prv_accountant.py`, computed there with microsoft/prv_accountant:
Poisson-sampled Gaussians at delta = 1e-6. They are its upper bounds, epsilon plus the error of 0.01
that it was asked for, at a delta that is smaller by its error in delta: less 0.01, they are the
truth to some 1e-4.
"""

import pytest

from tacit import privacy
from tacit.privacy import SampledGaussian

# (noise multiplier, rate, steps): epsilon
GOLDEN = {
    (0.8, 0.001, 100): 0.2704033640580187,
    (1.5, 0.001, 100): 0.03936941930952033,
    (2.0, 0.001, 100): 0.02910453694840749,
    (3.0, 0.001, 100): 0.021520093439088266,
    (0.8, 0.05, 100): 6.7410519394141,
    (1.5, 0.05, 100): 1.9538531356842002,
    (2.0, 0.05, 100): 1.2836373796240652,
    (3.0, 0.05, 100): 0.7679337896668256,
    (0.8, 0.2, 100): 24.333664177922543,
    (1.5, 0.2, 100): 8.498977859121631,
    (2.0, 0.2, 100): 5.672055608823724,
    (3.0, 0.2, 100): 3.3812205102218444,
    (0.8, 0.001, 1000): 0.4777712661845226,
    (1.5, 0.001, 1000): 0.09982066023084749,
    (2.0, 0.001, 1000): 0.07121878253811523,
    (3.0, 0.001, 1000): 0.04761593087135893,
    (0.8, 0.05, 1000): 19.525842805373736,
    (1.5, 0.05, 1000): 6.209969246577267,
    (2.0, 0.05, 1000): 4.172799866689319,
    (3.0, 0.05, 1000): 2.5275743260597383,
    (0.8, 0.001, 20000): 1.2960092575706162,
    (1.5, 0.001, 20000): 0.4370051086548608,
    (2.0, 0.001, 20000): 0.30583793976245344,
    (3.0, 0.001, 20000): 0.1940310306860547,
    (0.8, 0.05, 20000): 140.65520976007423,
    (1.5, 0.05, 20000): 38.306617914087234,
    (2.0, 0.05, 20000): 24.421718570322586,
    (3.0, 0.05, 20000): 13.961114699236706,
    (0.8, 0.001, 50000): 2.034514807715867,
    (1.5, 0.001, 50000): 0.7042183845558101,
    (2.0, 0.001, 50000): 0.4913549102114013,
    (3.0, 0.001, 50000): 0.30969416115654404,
    (0.8, 0.05, 50000): 291.38432545239653,
    (1.5, 0.05, 50000): 73.19017682383296,
    (2.0, 0.05, 50000): 45.23699586130669,
    (3.0, 0.05, 50000): 24.942005643144476,
    (0.8, 0.001, 100000): 2.9246221193504103,
    (1.5, 0.001, 100000): 1.0152880750276079,
    (2.0, 0.001, 100000): 0.7067199010818516,
    (3.0, 0.001, 100000): 0.4436717208808755,
}
THEIR_ERROR = 0.01


def test_all_forty_rows_are_here():
    assert len(GOLDEN) == 40


@pytest.mark.parametrize(("row", "published"), GOLDEN.items(), ids=str)
def test_bounds_are_tight_and_hold_the_published_figure(row, published):
    multiplier, rate, steps = row
    mechanism = SampledGaussian(rate, multiplier, steps)
    lower, upper = privacy.epsilon_bounds(mechanism, delta=1e-6)
    assert upper - lower <= (1e-3 if upper >= 1 else 1e-2) * upper
    theirs = published - THEIR_ERROR
    assert lower - 4e-4 <= theirs <= upper + 4e-4
