"""The slack of finite arithmetic: its lemma, its constants, and the accuracy that it assumes."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from tacit import privacy
from tacit.errors import InputError
from tacit.privacy.accounting.gaussian import gaussian_delta, gaussian_epsilon
from tacit.privacy.noise import slack as noise_slack
from tacit.privacy.noise.slack import (
    Slack,
    delta_with_slack,
    delta_without_slack,
    epsilon_without_slack,
    slack,
    with_slack,
)


def deviation(radius, width):
    """How far a square whose farthest point is at `radius` deviates, relatively, at most."""
    e = 7 * 2.0**-50 * max(radius, 2.0**-6)
    return 4 * (e / width + (e / width) ** 2) * math.exp(math.sqrt(2) * (width + 2 * e) * radius)


@pytest.mark.parametrize("width", [2.0**-7, 2.0**-6.5, 2.0**-6])
def test_the_constants_cover_every_lattice_and_the_whole_radius(width):
    assert math.sqrt(-2 * math.log(2.0**-524)) < 27
    # The farthest point of a square is at most its diagonal beyond any other.
    diagonal = math.sqrt(2) * width
    assert deviation(27 + diagonal, width) < noise_slack._RATIO

    def weighed(r):
        return r * math.exp(-r * r / 2) * deviation(r + diagonal, width) ** 2 * 2.0**80

    square, _ = integrate.quad(weighed, 0, 27, points=[1, 3, 6])
    assert square * 2.0**-80 < noise_slack._SQUARED_RATIO


def test_the_resolution_of_the_radius_is_below_the_arithmetic():
    """4.5 R + 2^-10 + 2^-15 / R <= 7 R in units of 2^-50, from R = 2^-6 to that of U = 2^-30."""
    r = np.linspace(2.0**-6, math.sqrt(60 * math.log(2)), 100_001)
    assert (4.5 * r + 2.0**-10 + 2.0**-15 / r <= 7 * r).all()


@given(
    shares=st.lists(st.tuples(st.floats(0.01, 1), st.floats(-1, 1)), min_size=2, max_size=8),
    order=st.floats(2, 60),
    scale=st.floats(0.001, 0.2),
)
def test_both_renyi_divergences_stay_below_order_times_mean_square(shares, order, scale):
    p = np.array([share for share, _ in shares])
    p /= p.sum()
    xi = np.array([value for _, value in shares])
    xi = xi - p @ xi
    h = scale / order
    xi *= h / max(2.0, abs(xi).max())
    k = float(p @ xi**2)
    slop = 1e-12
    assert math.log(p @ (1 + xi) ** order) / (order - 1) <= order * k + slop
    assert math.log(p @ (1 + xi) ** (1 - order)) / (order - 1) <= order * k + slop


@pytest.mark.parametrize("pairs", [1, 100, 10_000])
@pytest.mark.parametrize("spend", [1e-3, 1e-9])
def test_slack_bounds_the_exact_divergence_of_many_two_point_laws(pairs, spend, monkeypatch):
    """Each pair deviates by +-h with probability one half: binomial laws, summed exactly."""
    h = 2.0**-8
    monkeypatch.setattr(noise_slack, "_RATIO", h)
    monkeypatch.setattr(noise_slack, "_SQUARED_RATIO", h * h)
    bound = slack(pairs, spend)
    ups = np.arange(pairs + 1)
    log_p = stats.binom.logpmf(ups, pairs, 0.5)
    log_ratio = ups * math.log1p(h) + (pairs - ups) * math.log1p(-h)
    log_q = log_p + log_ratio
    for one, other in ((log_q, log_p), (log_p, log_q)):
        gap = np.exp(one) - np.exp(bound.epsilon + other)
        assert gap[gap > 0].sum() <= bound.delta
    assert bound.delta == pytest.approx(spend)


def test_the_order_is_near_the_best():
    for draws in (10**3, 10**7, 10**10, 10**13):
        log = -math.log(1e-12)
        best = min(
            draws * a * noise_slack._SQUARED_RATIO + log / (a - 1)
            for a in np.geomspace(2, 0.2 / noise_slack._RATIO, 4_000)
        )
        assert slack(draws, 1e-12).epsilon == pytest.approx(best, rel=1e-4)


def test_slack_is_small_and_grows_with_the_draws():
    epsilons = [slack(10**power, 1e-20).epsilon for power in range(14)]
    assert epsilons == sorted(epsilons)
    assert epsilons[7] < 3e-7
    assert epsilons[10] < 1e-5
    assert slack(0, 1e-9) == Slack(0.0, 0.0)


@pytest.mark.parametrize("multiplier", [0.5, 3.0, 40.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-12])
@pytest.mark.parametrize("draws", [0, 1, 10**6, 10**11])
def test_what_runs_keeps_delta_and_costs_hardly_more(multiplier, delta, draws):
    asked = []

    def epsilon_at(at):
        asked.append(at)
        return privacy.epsilon(privacy.Gaussian(multiplier, steps=100), delta=at)

    bound = with_slack(epsilon_at, draws, delta)
    ideal = privacy.epsilon(privacy.Gaussian(multiplier, steps=100), delta=delta)
    if epsilon_at(delta) > 300:
        assert bound == math.inf
        return
    assert ideal < bound < ideal * (1 + 2e-5) + 5e-5
    assert asked[0] < delta
    # There is a share of delta with which the two exchanges of laws add up.
    kept = asked[-2]
    at_kept = epsilon_at(kept)
    spent = (delta - kept) / 4 * math.exp(-at_kept - 1)
    assert slack(draws, spent).total_delta(at_kept, kept) <= delta


def test_large_epsilons_have_no_bound():
    assert with_slack(lambda at: 301.0, 10, 1e-5) == math.inf
    assert with_slack(lambda at: math.inf, 10, 1e-5) == math.inf
    assert with_slack(lambda at: 299.0, 10, 1e-5) < 299.001


@given(
    mu=st.floats(0.01, 20),
    log_delta=st.floats(-30, -2),
    draws=st.one_of(st.integers(0, 100), st.integers(0, 10**12)),
)
def test_bounds_of_what_runs_enclose_the_ideal_closely(mu, log_delta, draws):
    delta = math.exp(log_delta)
    ideal = gaussian_epsilon(mu, delta)

    def epsilon_at(at):
        return gaussian_epsilon(mu, at)

    upper = with_slack(epsilon_at, draws, delta)
    lower = epsilon_without_slack(epsilon_at, draws, delta)
    assert lower <= ideal <= upper
    if ideal > 299:  # from 300 on nothing is claimed
        assert upper == math.inf or upper - lower < 2.0
        return
    assert upper - lower < 1e-4 * (ideal + mu) + 1e-3


@given(
    mu=st.floats(0.01, 5),
    epsilon=st.one_of(st.just(0.0), st.floats(0, 20), st.floats(1e-9, 1e-6)),
    draws=st.one_of(st.integers(0, 100), st.integers(0, 10**12)),
)
def test_deltas_of_what_runs_enclose_the_ideal_closely(mu, epsilon, draws):
    ideal = gaussian_delta(mu, epsilon)

    def delta_at(at):
        return gaussian_delta(mu, at)

    upper = delta_with_slack(delta_at, draws, epsilon)
    lower = delta_without_slack(delta_at, draws, epsilon)
    # The closed form itself is rounded.
    assert lower * (1 - 1e-12) <= ideal <= upper * (1 + 1e-12)
    # As much as the slope of delta, at most 1, makes of the exchanges of laws.
    assert upper - lower < 1e-3 * ideal + 5e-4
    # Consistent with each other: at the epsilon that is charged for a delta, delta is kept.
    charged = with_slack(lambda at: gaussian_epsilon(mu, at), draws, 1e-5)
    if charged < 300:
        assert delta_without_slack(delta_at, draws, charged) <= 1e-5


def test_mechanisms_of_many_coordinates_cost_a_little_more():
    ideal = privacy.SampledGaussian(0.01, 1.25, 1000)
    runs = privacy.SampledGaussian(0.01, 1.25, 1000, coordinates=1_000_000)
    below, above = privacy.epsilon_bounds(runs, delta=1e-4)
    assert privacy.epsilon(ideal, delta=1e-4) < above < privacy.epsilon(ideal, delta=1e-4) + 1e-4
    assert 0 < privacy.epsilon_bounds(ideal, delta=1e-4)[0] - below < 1e-4
    assert privacy.delta(runs, epsilon=1.0) > privacy.delta(ideal, epsilon=1.0)
    assert privacy.delta(runs, epsilon=1.0) == pytest.approx(
        privacy.delta(ideal, epsilon=1.0), rel=1e-3
    )


def test_the_two_exchanges_add_up():
    own = Slack(0.01, 1e-6)
    assert own.total_epsilon(1.0) == pytest.approx(1.02)
    assert own.total_delta(1.0, 1e-5) == pytest.approx(
        math.exp(0.01) * 1e-5 + 1e-6 + math.exp(1.01) * 1e-6
    )


@pytest.mark.parametrize(("draws", "delta"), [(-1, 0.5), (2**61, 0.5), (1, 0.0), (1, 1.0)])
def test_unusable_arguments_are_refused(draws, delta):
    with pytest.raises(InputError):
        slack(draws, delta)


UNIT = np.random.default_rng(0).uniform(0, 1, 1_500)
TURNS = np.random.default_rng(1).uniform(-math.pi, math.pi, 1_500)
SMALL = 2.0 ** -np.random.default_rng(2).uniform(1, 600, 500)


@pytest.mark.parametrize(
    ("function", "exact", "points"),
    [
        (np.log, mpmath.log, np.concatenate([UNIT, SMALL])),
        (np.log1p, mpmath.log1p, -np.concatenate([UNIT / 2, SMALL[SMALL > 2.0**-64]])),
        (np.sin, mpmath.sin, np.concatenate([TURNS, TURNS * 2.0**-40, [math.pi, -math.pi / 2]])),
        (np.cos, mpmath.cos, np.concatenate([TURNS, TURNS * 2.0**-40, [math.pi, -math.pi / 2]])),
    ],
    ids=["log", "log1p", "sin", "cos"],
)
def test_library_functions_err_by_at_most_four_units_in_the_last_place(function, exact, points):
    with mpmath.workdps(50):
        true = [exact(mpmath.mpf(x)) for x in points.tolist()]
        for got, right in zip(function(points).tolist(), true, strict=True):
            assert abs(mpmath.mpf(got) - right) <= 4 * math.ulp(float(right))
