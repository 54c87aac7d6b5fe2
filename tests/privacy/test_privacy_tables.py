"""Many levels at once: mixtures of two bound what lies between, and products are what they are."""

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from privacy_oracles import gaussian_profile_exact

from tacit import privacy
from tacit.privacy import (
    REPLACE_ONE,
    FixedBatchGaussian,
    Laplace,
    PrivateState,
    SampledGaussian,
)
from tacit.privacy.accounting import tables
from tacit.privacy.accounting.dominating_pairs import Levels
from tacit.privacy.accounting.tables import EXACT, by_tail, by_total_variation

pytestmark = pytest.mark.slow


@settings(max_examples=40, deadline=None)
@given(
    low=st.just(0.0) | st.floats(1e-3, 4),
    width=st.floats(1e-3, 1),
    share=st.floats(0.01, 0.99),
    deviations=st.floats(-7, 9),
)
def test_mixtures_lie_above_and_below(low, width, share, deviations):
    high, mu = low + width, low + share * width
    ends = np.asarray([low]), np.asarray([high]), np.asarray([mu])
    epsilon = high * high / 2 + deviations * high
    with mp.workdps(40):

        def profile(at):
            return gaussian_profile_exact(at, epsilon) if at else max(0, 1 - mp.exp(epsilon))

        truth = profile(mu)
        (w,) = by_total_variation(*ends).tolist()
        assert (1 - w) * profile(low) + w * profile(high) >= truth - mp.mpf(1e-14)
        weights, excess = by_tail(*ends, 0.01, 8.0)
        (w,) = weights.tolist()
        mixture = (1 - w) * profile(low) + w * profile(high)
        assert 0.01 * mixture <= 0.01 * truth + excess + mp.mpf(1e-16)
        assert excess < 1e-9


def test_many_levels_of_little_noise_cost_more_than_one_of_them():
    """So little that floating point cannot tell the ends of a bracket apart."""
    multipliers = np.geomspace(0.02, 0.05, EXACT + 8).tolist()
    many = SampledGaussian(0.1, multipliers)
    assert privacy.delta(many, epsilon=1.0) >= privacy.delta(
        SampledGaussian(0.1, [0.05]), epsilon=1.0
    )
    assert privacy.delta(many, epsilon=1.0) > 0.09


@pytest.mark.parametrize("mu", [0.3, 3.0, 7.0, 20.0, 100.0])
def test_weights_are_those_of_the_bracket_where_they_can_be_told(mu):
    low, high = mu * 0.99, mu * 1.01
    ends = np.asarray([low]), np.asarray([high]), np.asarray([mu])
    with mp.workdps(700):
        first, last, at = (mp.erf(mp.mpf(end) / mp.sqrt(8)) for end in (low, high, mu))
        truth = float((at - first) / (last - first))
    (bound,) = by_total_variation(*ends).tolist()
    assert bound == (pytest.approx(truth, abs=1e-9) if mu < 70 else 1.0)
    (below,) = by_tail(*ends, 0.01, 8.0)[0].tolist()
    assert 0 <= below <= 1


def test_the_mixture_below_does_exceed_far_out():
    """Without the excess it would be no bound: the deduction is needed."""
    low, high, mu = 1.0, 1.5, 1.25
    weights, excess = by_tail(np.asarray([low]), np.asarray([high]), np.asarray([mu]), 0.01, 4.0)
    w = float(weights[0])
    worst = max(
        float(
            (1 - w) * gaussian_profile_exact(low, e)
            + w * gaussian_profile_exact(high, e)
            - gaussian_profile_exact(mu, e)
        )
        for e in np.linspace(0, 12, 60).tolist()
    )
    assert 0 < 0.01 * worst <= excess


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(1e-6, 100), min_size=1, max_size=30, unique=True),
    grain=st.floats(1e-3, 10),
)
def test_levels_are_rounded_to_the_side_that_is_said(values, grain):
    levels = Levels(np.sort(values), np.ones(len(values), dtype=np.int64))
    for up in (True, False):
        rounded = levels.rounded(grain, up=up)
        assert rounded.steps == levels.steps
        spread = np.repeat(rounded.values, rounded.counts)
        assert np.all(spread >= levels.values if up else spread <= levels.values)
        assert np.all(np.abs(spread - levels.values) <= grain * (1 + 1e-9))


def schedule(steps, least, most):
    """Geometric, so that every level differs."""
    return [1 / (least * (most / least) ** (k / (steps - 1))) for k in range(steps)]


@pytest.mark.parametrize(
    ("rate", "steps", "least", "most", "fixed"),
    [(1 / 300, 60, 0.3, 2.2, False), (0.05, 50, 0.1, 1.0, True), (0.6, 40, 0.02, 0.6, False)],
)
def test_tables_hold_what_exact_levels_say(rate, steps, least, most, fixed, monkeypatch):
    noise = schedule(steps, least, most)
    assert steps > EXACT
    mechanism = (
        FixedBatchGaussian(round(600 * rate), 600, noise) if fixed else SampledGaussian(rate, noise)
    )
    # Few levels, to be quick: the gap is of second order in their distance.
    monkeypatch.setattr(tables, "_LEVELS", {True: 24, False: 40})
    by_table = privacy.epsilon_bounds(mechanism, delta=1e-5)
    monkeypatch.setattr(tables, "EXACT", steps)
    # Another object that means the same, so that nothing is remembered.
    exact = privacy.epsilon_bounds(mechanism, delta=1.0000001e-5)
    assert exact[0] <= by_table[1]
    assert by_table[0] <= exact[1]
    assert exact[1] <= by_table[1] * (1 + 2e-4)
    assert by_table[0] <= exact[0] * (1 + 2e-4)
    assert by_table[1] <= exact[1] * 1.02
    assert by_table[0] >= exact[0] * 0.96


@pytest.mark.parametrize(
    "make",
    [
        lambda noise: SampledGaussian(0.01, noise, relation=REPLACE_ONE),
        lambda noise: PrivateState(0.01, 1.0, 0.02, noise),
        lambda noise: Laplace(noise, sample_rate=0.05),
    ],
)
def test_levels_that_are_rounded_hold_what_exact_ones_say(make, monkeypatch):
    mechanism = make(schedule(50, 0.2, 1.2))  # type: ignore[operator]
    rounded = privacy.epsilon_bounds(mechanism, delta=1e-5)
    monkeypatch.setattr(tables, "EXACT", 50)
    exact = privacy.epsilon_bounds(mechanism, delta=1.0000001e-5)
    assert rounded[0] <= exact[0] * (1 + 2e-4)
    assert exact[1] <= rounded[1] * (1 + 2e-4)
    # Of first order in the distance of levels: one in 128 to 256 of the largest.
    assert rounded[1] - rounded[0] <= 0.06 * rounded[1]


def test_ten_thousand_levels():
    """Dyn-D2P: J = 3000, mu from mu_0 to 10 mu_0. The certified gap is some 0.1 %."""

    def make(first):
        return SampledGaussian(1 / 3000, [10 ** (-k / 10_000) / first for k in range(10_000)])

    lower, upper = privacy.epsilon_bounds(make(0.223), delta=1e-4)
    assert 1.0 < lower <= upper < 1.1
    assert upper - lower <= 1.1e-3 * upper
    # Const-D2P with every step at the least, or the greatest, level is cheaper, or dearer.
    assert privacy.epsilon(SampledGaussian(1 / 3000, 1 / 0.223, 10_000), delta=1e-4) < lower
    assert privacy.epsilon(SampledGaussian(1 / 3000, 1 / 2.23, 10_000), delta=1e-4) > upper


@pytest.mark.parametrize("steps", [40, 3000])
def test_power_sums_are_the_product(steps, monkeypatch):
    """Where a series is cut is no matter: with none at all each factor is multiplied out."""
    mechanism = SampledGaussian(0.3, schedule(steps, 0.02, 0.2))
    series = privacy.delta_bounds(mechanism, epsilon=2.0)
    monkeypatch.setattr(tables, "_SERIES", 0.0)
    tables.clear()
    one_by_one = privacy.delta_bounds(mechanism, epsilon=2.0)
    tables.clear()
    assert series == pytest.approx(one_by_one, rel=1e-5)


def test_half_the_steps_cost_less(monkeypatch):
    monkeypatch.setattr(tables, "_LEVELS", {True: 24, False: 40})
    noise = schedule(200, 0.2, 1.5)
    whole = privacy.epsilon_bounds(SampledGaussian(0.02, noise), delta=1e-5)
    half = privacy.epsilon_bounds(SampledGaussian(0.02, noise[:100]), delta=1e-5)
    assert half[1] < whole[0]
    assert math.isfinite(whole[1])
