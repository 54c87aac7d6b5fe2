"""The Gaussian's closed forms against 60 digits: never below the truth, and hardly above it."""

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from privacy_oracles import gaussian_epsilon_exact, gaussian_profile_exact

from tacit.privacy.accounting.gaussian import gaussian_delta, gaussian_epsilon, gaussian_profile

MUS = [1e-3, 1e-2, 0.1, 0.5, 1.0, 3.0, 10.0, 30.0, 50.0]
DELTAS = [1e-12, 1e-10, 1e-8, 1e-5, 1e-4, 1e-2, 0.1, 0.5, 0.9]


def losses_of(mu):
    """Epsilons from eight deviations below the mean loss to ten above: many are negative."""
    return [mu * mu / 2 + t * mu for t in np.linspace(-8, 10, 19).tolist()]


@pytest.mark.parametrize("mu", MUS)
def test_profile_is_the_integral_of_the_positive_part(mu):
    for epsilon in losses_of(mu)[::6]:
        with mp.workdps(40):
            crossing = mp.mpf(epsilon) / mu + mp.mpf(mu) / 2
            tail = mp.quad(
                lambda x, e=epsilon: mp.npdf(x - mu) - mp.exp(mp.mpf(e)) * mp.npdf(x),
                [crossing + step for step in (0, 1, 2, 4, 8, 16, 32)],
            )
        assert float(gaussian_profile_exact(mu, epsilon)) == pytest.approx(float(tail), rel=1e-12)


@pytest.mark.parametrize("mu", MUS)
def test_profile_at_high_precision(mu):
    epsilons = losses_of(mu)
    truth = [float(gaussian_profile_exact(mu, epsilon)) for epsilon in epsilons]
    # The terms cancel to a share of about mu: that many digits are lost.
    tolerance = 2e-12 + 2e-13 / mu
    value = gaussian_profile(mu, np.asarray(epsilons))
    assert value.tolist() == pytest.approx(truth, rel=tolerance, abs=0)


@pytest.mark.parametrize("mu", [1e-8, 1e-6, 1e-4, *MUS, 1e3])
def test_delta_is_never_below_the_truth(mu):
    for epsilon in losses_of(mu):
        truth = gaussian_profile_exact(mu, epsilon)
        value = gaussian_delta(mu, epsilon)
        assert value >= truth
        assert value <= truth * (1 + mp.mpf(1e-11) * (1 + mu + 1 / mp.mpf(mu)))


@pytest.mark.parametrize("mu", [1e-6, 1e-4, *MUS, 1e3])
@pytest.mark.parametrize("delta", DELTAS)
def test_epsilon_is_never_below_the_truth_and_within_a_billionth(mu, delta):
    value = gaussian_epsilon(mu, delta)
    if gaussian_profile_exact(mu, 0) <= delta:
        assert value == 0
        return
    truth = gaussian_epsilon_exact(mu, delta)
    assert value >= truth
    # Below mu = 1e-3 the slack for rounding is relative to delta, and shows.
    assert value <= truth * (1 + (1e-9 if mu >= 1e-3 else 1e-7))


def test_edges():
    assert gaussian_epsilon(1e151, 1e-5) == math.inf
    assert gaussian_epsilon(math.inf, 1e-5) == math.inf
    assert gaussian_epsilon(1e-300, 1e-12) == 0
    assert gaussian_delta(1.0, 1e9) == 0
    assert gaussian_delta(1.0, -1e9) == 1
    assert gaussian_delta(50.0, 0.0) <= 1
    assert gaussian_epsilon(1.0, 2 * 0.6914624612740131 - 1 - 1e-9) > 0
    assert gaussian_epsilon(1.0, 2 * 0.6914624612740131 - 1 + 1e-9) == 0


@settings(max_examples=60, deadline=None)
@given(mu=st.floats(1e-3, 50), log_delta=st.floats(-28, -0.5), factor=st.floats(1.001, 3))
def test_epsilon_rises_with_mu_and_falls_with_delta(mu, log_delta, factor):
    delta = math.exp(log_delta)
    epsilon = gaussian_epsilon(mu, delta)
    assert gaussian_epsilon(mu * factor, delta) >= epsilon
    assert gaussian_epsilon(mu, min(delta * factor, 0.99)) <= epsilon
    # Rounded up, delta may be above by what is counted for rounding, which is much for a small mu.
    assert gaussian_delta(mu, epsilon, upper=False) <= delta
    assert gaussian_delta(mu, epsilon) <= delta * (1 + 1e-9)
