"""Bound B against all patterns, one by one, against the binomial sum, and against Theorem A."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from tacit.privacy.accounting.accounting import delta
from tacit.privacy.accounting.gaussian import gaussian_delta, gaussian_epsilon
from tacit.privacy.accounting.private_state import revealed_delta, revealed_epsilon
from tacit.privacy.mechanisms.base import ADD_OR_REMOVE_ONE, REPLACE_ONE
from tacit.privacy.mechanisms.steps import PrivateState


def over_all_patterns(mechanism, epsilon):
    double = 2.0 if mechanism.relation == REPLACE_ONE else 1.0
    noises = list(mechanism.noise_multiplier)  # type: ignore[arg-type]
    total = 0.0
    for pattern in itertools.product((False, True), repeat=len(noises)):
        chance = math.prod(
            mechanism.sample_rate if drawn else 1 - mechanism.sample_rate for drawn in pattern
        )
        shifts = [
            double * (mechanism.drawn_norm if drawn else mechanism.undrawn_norm) / z
            for drawn, z in zip(pattern, noises, strict=True)
        ]
        mu = math.hypot(*shifts)
        total += chance * gaussian_delta(mu, epsilon) if mu > 0 else 0.0
    return total


@settings(max_examples=60, deadline=None)
@given(
    rate=st.sampled_from([0.01, 0.3, 0.5, 0.9, 1.0]),
    bounds=st.sampled_from([(1.9, 0.1), (1.0, 0.0), (0.5, 0.5), (3.0, 1.0)]),
    noises=st.lists(st.floats(0.3, 5.0), min_size=1, max_size=7),
    words=st.sampled_from([("poisson", ADD_OR_REMOVE_ONE), ("fixed", REPLACE_ONE)]),
    epsilon=st.floats(0.0, 5.0),
)
def test_it_is_the_mean_over_patterns(rate, bounds, noises, words, epsilon):
    mechanism = PrivateState(rate, *bounds, noises, None, *words)
    exact = over_all_patterns(mechanism, epsilon)
    bound = revealed_delta(mechanism, epsilon)
    assert exact * (1 - 1e-12) <= bound <= exact * 1.06 + 1e-13


@pytest.mark.parametrize(
    ("rate", "steps", "epsilon"),
    [(1 / 3000, 1000, 3.0), (0.01, 10_000, 40.0), (0.5, 37, 30.0), (1e-5, 1_000_000, 8.0)],
)
def test_constant_noise_is_a_binomial_sum(rate, steps, epsilon):
    mechanism = PrivateState(rate, 1.8, 1e-3, 0.7, steps, "fixed", REPLACE_ONE)
    drawn = np.arange(min(steps, 400) + 1)
    chances = binom.pmf(drawn, steps, rate)
    mus = np.sqrt(drawn * 3.6**2 + (steps - drawn) * 4e-6) / 0.7
    exact = math.fsum(
        float(chance) * gaussian_delta(float(mu), epsilon)
        for chance, mu in zip(chances, mus, strict=True)
    )
    assert exact * (1 - 1e-9) <= revealed_delta(mechanism, epsilon) <= exact * (1 + 1e-6)


def test_many_different_noises_lose_little():
    """Against sampled patterns, at five standard errors."""
    steps, rate = 2000, 1 / 500
    noises = 0.8 * 10.0 ** (-np.arange(steps) / steps)
    mechanism = PrivateState(rate, 2 - rate, rate, noises.tolist())
    generator = np.random.default_rng(7)
    drawn = generator.random((4000, steps)) < rate
    shifts = np.where(drawn, mechanism.drawn_norm, mechanism.undrawn_norm) / noises
    mus = np.sqrt((shifts**2).sum(axis=1))
    for epsilon in (20.0, 100.0):
        deltas = np.asarray([gaussian_delta(float(mu), epsilon) for mu in mus])
        bound = revealed_delta(mechanism, epsilon)
        spread = 5 * deltas.std() / math.sqrt(len(deltas))
        assert deltas.mean() - spread <= bound <= deltas.mean() * 1.01 + spread


@pytest.mark.parametrize("rate", [1 / 3000, 0.01, 0.1])
def test_a_schedule_of_ten_thousand_lies_between_its_ends(rate):
    noises = 2.0 * 10.0 ** (-np.arange(10_000) / 10_000)
    bound = revealed_epsilon(PrivateState(rate, 2 - rate, rate, noises.tolist()), 1e-5)
    ends = [
        revealed_epsilon(PrivateState(rate, 2 - rate, rate, z, 10_000), 1e-5) for z in (2.0, 0.2)
    ]
    assert ends[0] < bound < ends[1]


def test_a_schedule_that_is_nearly_constant_costs_what_a_constant_one_does():
    plain = revealed_epsilon(PrivateState(0.01, 1.99, 0.01, 0.5, 1000), 1e-6)
    noises = [0.5 * (1 + 1e-9 * k) for k in range(1000)]
    nearly = revealed_epsilon(PrivateState(0.01, 1.99, 0.01, noises), 1e-6)
    assert plain * (1 - 1e-5) <= nearly <= plain * (1 + 1e-6)


@settings(max_examples=30, deadline=None)
@given(
    rate=st.sampled_from([1e-4, 0.02, 0.4, 1.0]),
    noise=st.floats(0.1, 4.0),
    steps=st.integers(1, 3000),
    delta=st.sampled_from([0.3, 1e-3, 1e-6, 1e-12]),
)
def test_epsilon_is_the_inverse_rounded_up(rate, noise, steps, delta):
    mechanism = PrivateState(rate, 1.9, 0.02, noise, steps)
    epsilon = revealed_epsilon(mechanism, delta)
    assert revealed_delta(mechanism, epsilon) <= delta
    if epsilon > 0:
        assert revealed_delta(mechanism, epsilon * (1 - 1e-6)) > delta
    assert revealed_epsilon(mechanism, delta) <= revealed_epsilon(
        PrivateState(rate, 1.9, 0.02, noise, steps, relation=REPLACE_ONE), delta
    )


def test_a_record_drawn_every_time_is_a_gaussian():
    mechanism = PrivateState(1.0, 1.5, 0.2, [1.0, 2.0, 4.0])
    mu = 1.5 * math.hypot(1, 1 / 2, 1 / 4)
    assert revealed_epsilon(mechanism, 1e-6) == pytest.approx(gaussian_epsilon(mu, 1e-6), rel=5e-3)
    same = PrivateState(0.1, 0.7, 0.7, 1.0, 16)
    assert revealed_epsilon(same, 1e-6) == pytest.approx(gaussian_epsilon(2.8, 1e-6), rel=1e-6)


def test_no_noise_worth_the_name_has_no_bound():
    assert revealed_epsilon(PrivateState(0.1, 1.0, 0.0, 1e-160, 3), 1e-5) == math.inf
    assert revealed_delta(PrivateState(0.1, 1.0, 0.0, 1e-160, 3), 5.0) == 1.0


@pytest.mark.parametrize(
    ("steps", "records", "claimed", "constant", "zero_out", "replace"),
    [(3120, 3125, 3.0, 1.0, 4123.39, 16_935.93), (575, 1200, 1.0, 2.0, 78.35, 283.42)],
)
def test_the_published_noise_of_privsgp_vr(steps, records, claimed, constant, zero_out, replace):
    noise = 3 * constant * math.sqrt(steps * math.log(1e5)) / (records * claimed)
    rate = 1 / records
    poisson = PrivateState(rate, 2 - rate, rate, noise, steps)
    one = PrivateState(rate, 2 - rate, rate, noise, steps, "fixed", REPLACE_ONE)
    assert revealed_epsilon(poisson, 1e-5) == pytest.approx(zero_out, abs=0.01)
    assert revealed_epsilon(one, 1e-5) == pytest.approx(replace, abs=0.01)


@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.02, 0.6, 100), (0.3, 2.0, 12)])
def test_giving_the_pattern_away_never_gains(rate, noise, steps):
    mechanism = PrivateState(rate, 2 - rate, rate, noise, steps)
    for epsilon in (0.1, 1.0, 4.0, 12.0):
        assert delta(mechanism, epsilon=epsilon) <= revealed_delta(mechanism, epsilon) * 1.001
