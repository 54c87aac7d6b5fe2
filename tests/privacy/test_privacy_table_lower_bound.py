"""The flipping gradient: its test against all patterns and against runs of a real table."""

import itertools
import math

import numpy as np
import pytest

from tacit.errors import InputError
from tacit.privacy.accounting.accounting import delta
from tacit.privacy.accounting.private_state import (
    revealed_delta,
    revealed_epsilon,
    table_lower_delta,
    table_lower_epsilon,
)
from tacit.privacy.mechanisms.base import ADD_OR_REMOVE_ONE, REPLACE_ONE
from tacit.privacy.mechanisms.steps import PrivateState


def table(rate, noise, steps, relation=ADD_OR_REMOVE_ONE):
    sampling = "fixed" if relation == REPLACE_ONE else "poisson"
    return PrivateState(rate, 2 - rate, rate, noise, steps, sampling, relation)  # type: ignore[arg-type]


def shifts(pattern, undrawn_norm):
    """The algorithm as written: the table starts with gradients at z^0, -1; they are 1 later."""
    moved, stored = [], -1.0
    for step, drawn in enumerate(pattern):
        gradient = -1.0 if step == 0 else 1.0
        moved.append((gradient - stored if drawn else 0.0) + undrawn_norm * stored)
        stored = gradient if drawn else stored
    return moved


def best_test(mechanism, epsilon):
    """The best common threshold on the largest message, over all patterns."""
    noises = list(mechanism.noise_multiplier)  # type: ignore[arg-type]
    mirrored = -1 if mechanism.relation == REPLACE_ONE else 0
    rate, best = mechanism.sample_rate, 0.0
    patterns = list(itertools.product((False, True), repeat=len(noises)))
    for threshold in np.linspace(0.0, 9.0, 181):
        chances = [0.0, 0.0]
        for pattern in patterns:
            weight = math.prod(rate if drawn else 1 - rate for drawn in pattern)
            moved = shifts(pattern, mechanism.undrawn_norm)
            for side, sign in enumerate((1, mirrored)):
                none = math.prod(
                    1 - math.erfc((threshold - sign * shift) / z / math.sqrt(2)) / 2
                    for shift, z in zip(moved, noises, strict=True)
                )
                chances[side] += weight * (1 - none)
        best = max(best, chances[0] - math.exp(epsilon) * chances[1])
    return best


@pytest.mark.parametrize("relation", [ADD_OR_REMOVE_ONE, REPLACE_ONE])
@pytest.mark.parametrize(("rate", "noise"), [(0.3, 0.5), (0.02, 0.3), (0.1, 1.0)])
@pytest.mark.parametrize("epsilon", [0.5, 3.0, 7.0])
def test_it_is_the_chance_of_the_test_over_all_patterns(rate, noise, epsilon, relation):
    mechanism = table(rate, noise, 4, relation)
    bound, exact = table_lower_delta(mechanism, epsilon), best_test(mechanism, epsilon)
    # Below by what the union over four steps costs; above only by its finer search.
    assert 0.9 * exact - 2e-3 <= bound <= exact * 1.02 + 1e-7


@pytest.mark.parametrize("noise", [0.2, [0.9, 0.4, 0.3, 0.5, 0.3], 1.5])
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 5.0, 20.0])
def test_it_lies_below_what_is_certified(noise, epsilon):
    mechanism = table(0.1, noise, None if isinstance(noise, list) else 5)
    lower = table_lower_delta(mechanism, epsilon)
    assert lower <= revealed_delta(mechanism, epsilon)
    assert lower <= delta(mechanism, epsilon=epsilon)


def test_runs_of_a_real_table_agree():
    """The algorithm itself, the gradient a narrow dip in the start, z moved by what is released."""
    generator = np.random.default_rng(3)
    rate, noise, steps, runs, width, pace = 0.05, 0.5, 12, 40_000, 1e-6, 0.1
    z, stored, seen = np.zeros(runs), np.full(runs, -1.0), np.full(runs, -np.inf)
    for _ in range(steps):
        gradient = np.where(np.abs(z) <= width, -1.0, 1.0)
        drawn = generator.random(runs) < rate
        message = np.where(drawn, gradient - stored, 0.0) + rate * stored
        message += noise * generator.standard_normal(runs)
        stored = np.where(drawn, gradient, stored)
        seen = np.maximum(seen, message)
        z -= pace * (message + 0.3)
    null = noise * generator.standard_normal((runs, steps)).max(axis=1)
    bound = table_lower_delta(table(rate, noise, steps), 1.0)
    gains = [np.mean(seen > t) - math.e * np.mean(null > t) for t in np.linspace(0.5, 3.0, 51)]
    assert max(gains) == pytest.approx(bound, abs=0.02)
    assert bound > 0.2


@pytest.mark.parametrize("relation", [ADD_OR_REMOVE_ONE, REPLACE_ONE])
def test_the_published_noise_of_privsgp_vr_is_violated(relation):
    """Claimed at delta 1e-5: 3 (CIFAR-10, c2 = 1) and 1 (MNIST, c2 = 2)."""
    cifar = table(1 / 3125, math.sqrt(3120 * math.log(1e5)) / 3125, 3120, relation)
    assert 671 <= table_lower_epsilon(cifar, 1e-5) <= revealed_epsilon(cifar, 1e-5)
    assert table_lower_delta(cifar, 3.0) >= 0.51
    mnist = table(1 / 1200, 6 * math.sqrt(575 * math.log(1e5)) / 1200, 575, relation)
    assert 16 <= table_lower_epsilon(mnist, 1e-5) <= revealed_epsilon(mnist, 1e-5)


@pytest.mark.parametrize("noise", [0.2, 1.0, 10.0])
@pytest.mark.parametrize("mark", [0.2, 1e-3, 1e-9])
def test_epsilon_is_the_inverse_rounded_down(noise, mark):
    mechanism = table(0.05, noise, 50)
    epsilon = table_lower_epsilon(mechanism, mark)
    if epsilon > 0:
        assert table_lower_delta(mechanism, epsilon * (1 - 1e-3)) > mark
    assert table_lower_delta(mechanism, epsilon * (1 + 1e-3) + 1e-3) <= mark


def test_other_private_states_are_no_such_table():
    for drawn_norm in (0.21, 2.0):
        mechanism = PrivateState(0.01, drawn_norm, 0.01, 1.0, 10)
        with pytest.raises(InputError, match="table of gradients") as caught:
            table_lower_delta(mechanism, 1.0)
        assert caught.value.where == "drawn_norm"
        with pytest.raises(InputError):
            table_lower_epsilon(mechanism, 1e-5)


def test_one_step_shows_no_flip():
    assert table_lower_epsilon(table(0.5, 1.0, 1), 0.2) == 0.0
