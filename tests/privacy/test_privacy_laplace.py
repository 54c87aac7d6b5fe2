"""Laplace noise against the definition and dp_accounting; why one dimension is enough."""

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_laplace_mechanism
from dp_accounting.pld.privacy_loss_mechanism import LaplacePrivacyLoss
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.privacy import Laplace, delta, epsilon


def laplace_profile(shift, epsilon):
    """Hockey-stick divergence of Lap(shift) from Lap(0): the closed form, elementwise."""
    inside = -np.expm1(np.minimum((epsilon - shift) / 2, 0.0))
    below = -np.expm1(np.minimum(epsilon, 0.0))
    return np.where(epsilon < -shift, below, inside)


def profile_by_quadrature(rate, shift, epsilon, *, reverse):
    """The integral of max(P - e^eps Q, 0), cut at the kinks of the densities and its own."""
    with mp.workdps(30):
        ratio, t, q = mp.exp(mp.mpf(epsilon)), mp.mpf(shift), mp.mpf(rate)

        def still(x):
            return mp.exp(-abs(x)) / 2

        def sampled(x):
            return (1 - q) * still(x) + q * still(x - t)

        one, other = (still, sampled) if reverse else (sampled, still)
        goal = 1 / ratio if reverse else ratio
        cuts = [-60, -10, mp.mpf(0), t, t + 10, t + 60]
        lifted = 1 + (goal - 1) / q
        if lifted > 0 and abs(mp.log(lifted)) < t:
            cuts.append((mp.log(lifted) + t) / 2)
        return mp.quad(lambda x: max(one(x) - ratio * other(x), mp.mpf(0)), sorted(cuts))


@pytest.mark.parametrize("shift", [1e-4, 0.3, 2.0, 40.0])
def test_the_profile_is_that_of_the_definition_and_of_dp_accounting(shift):
    epsilons = shift * np.asarray([-1.5, -1.0, -0.3, 0.0, 0.25, 0.9, 1.0, 1.1])
    ours = laplace_profile(shift, epsilons)
    theirs = LaplacePrivacyLoss(1 / shift)
    for mark, value in zip(epsilons, ours, strict=True):
        true = profile_by_quadrature(1.0, shift, float(mark), reverse=False)
        assert value == pytest.approx(float(true), rel=1e-9, abs=1e-15)
        assert value == pytest.approx(theirs.get_delta_for_epsilon(float(mark)), abs=1e-12)


@pytest.mark.parametrize("shift", [1e-6, 0.3, 2.0, 40.0])
@pytest.mark.parametrize("mark", [1e-9, 1e-3, 0.4])
def test_epsilon_of_one_step_is_the_inverse_of_the_profile(shift, mark):
    with mp.workdps(40):
        exact = max(mp.mpf(0), mp.mpf(shift) + 2 * mp.log(1 - mp.mpf(mark)))
        value = epsilon(Laplace(1 / shift), delta=mark)
        assert exact <= value * (1 + 1e-12)
        assert value <= exact + 2e-3 * shift


def binned(shift, ends):
    below = np.where(
        ends < shift, np.exp(np.minimum(ends - shift, 0)) / 2, 1 - np.exp(-abs(ends - shift)) / 2
    )
    return np.diff(np.concatenate(([0.0], below, [1.0])))


@settings(max_examples=25, deadline=None)
@given(shifts=st.lists(st.floats(-1.5, 1.5), min_size=2, max_size=3))
def test_one_dimension_dominates_many(shifts):
    """Vectors of shifts, binned (which only lowers delta), against one shift by the l1 norm."""
    norm = sum(map(abs, shifts))
    ends = np.linspace(-6.0, 6.0, 61)
    moved, still = np.ones(1), np.ones(1)
    for shift in shifts:
        moved = np.outer(moved, binned(shift, ends)).ravel()
        still = np.outer(still, binned(0.0, ends)).ravel()
    for mark in np.linspace(-norm, norm, 9):
        bound = laplace_profile(norm, np.asarray([mark]))[0]
        assert np.maximum(moved - math.exp(mark) * still, 0).sum() <= bound + 1e-12


@pytest.mark.parametrize(
    ("rate", "shift"), [(1.0, 1.0), (1.0, 0.05), (0.3, 2.0), (0.01, 5.0), (0.9, 12.0)]
)
def test_what_is_certified_for_one_step_lies_above_the_definition(rate, shift):
    mechanism = Laplace(1 / shift, sample_rate=rate)
    for mark in (0.0, 0.02, 0.3, 1.4):
        for reverse in (False, True):
            true = float(profile_by_quadrature(rate, shift, mark, reverse=reverse))
            assert delta(mechanism, epsilon=mark) >= true - 1e-15


@pytest.mark.parametrize(
    ("rate", "scale", "steps"), [(0.1, 2.0, 100), (0.01, 0.5, 500), (1.0, 20.0, 50)]
)
def test_composed_steps_agree_with_dp_accounting(rate, scale, steps):
    theirs = from_laplace_mechanism(
        scale, value_discretization_interval=1e-3, sampling_prob=rate
    ).self_compose(steps)
    mechanism = Laplace(scale, steps, sample_rate=rate)
    for mark in (1e-3, 1e-6):
        assert epsilon(mechanism, delta=mark) == pytest.approx(
            theirs.get_epsilon_for_delta(mark), rel=5e-3
        )


def test_pure_epsilon_is_never_exceeded():
    """K steps never exceed K shifts, and reach them as delta falls; replace-one doubles them."""
    for relation, shift in (("add-or-remove-one", 0.5), ("replace-one", 1.0)):
        mechanism = Laplace(2.0, 6, relation=relation)  # type: ignore[arg-type]
        assert epsilon(mechanism, delta=1e-9) == pytest.approx(6 * shift, rel=1e-2)


def test_two_sampled_steps_over_all_patterns():
    """Two steps, binned, which only lowers delta, stay below what is certified."""
    rate, shift = 0.3, 1.0
    ends = np.linspace(-8.0, 9.0, 401)
    still = binned(0.0, ends)
    sampled = np.zeros((len(still), len(still)))
    for pattern in itertools.product((0, 1), repeat=2):
        one, two = (binned(shift * drawn, ends) for drawn in pattern)
        chance = math.prod(rate if drawn else 1 - rate for drawn in pattern)
        sampled += chance * np.outer(one, two)
    null = np.outer(still, still)
    mechanism = Laplace(1 / shift, 2, sample_rate=rate)
    for mark in (0.0, 0.1, 0.4, 0.8):
        for one, other in ((sampled, null), (null, sampled)):
            true = float(np.maximum(one - math.exp(mark) * other, 0).sum())
            assert true <= delta(mechanism, epsilon=mark)
