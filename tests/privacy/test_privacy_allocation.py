"""Random allocation: its pair against integrals, samples, known limits and another library."""

import math
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import ndtr

from tacit import privacy
from tacit.errors import InputError
from tacit.privacy import Gaussian, RandomAllocationGaussian, SampledGaussian
from tacit.privacy.accounting import allocation
from tacit.privacy.accounting.allocation import likelihood_ratios
from tacit.privacy.accounting.gaussian import gaussian_delta
from tacit.privacy.ledger.spent import dominating
from tacit.privacy.mechanisms.allocation import allocated
from tacit.privacy.mechanisms.steps import SILENT


def call(level, strike):
    """E(R - strike)+ of a lognormal number R of mean 1."""
    if strike <= 0:
        return 1 - strike
    at = math.log(strike) / level
    return float(ndtr(level / 2 - at) - strike * ndtr(-level / 2 - at))


@pytest.mark.parametrize("level", [0.01, 0.3, 1.0, 2.5, 4.0])
def test_one_number_on_the_grid_is_wider_and_hardly_so(level):
    law = likelihood_ratios(((level, 1),), 1)
    assert 1 <= law.masses.sum() < 1 + 1e-5
    assert law.lost_p < 1e-30
    assert law.lost_q < 1e-30
    for quantile in np.linspace(-4, 4, 17):
        strike = math.exp(level * quantile)
        above = float((law.masses * np.maximum(law.values - strike, 0)).sum())
        below = float((law.masses * np.maximum(strike - law.values, 0)).sum())
        truth = call(level, strike)
        put = truth - 1 + strike
        assert truth * (1 - 1e-9) <= above <= truth * (1 + 2e-3) + 1e-9
        assert put * (1 - 1e-9) - 1e-14 <= below <= put * (1 + 2e-3) + 1e-9


def delta_of_two(first, second, epsilon, out_of):
    """Both directions of an epoch of which two steps are released, by an integral."""
    a = math.exp(epsilon)

    def mean(of):
        def at(g):
            other = math.exp(first * g - first * first / 2)
            return of(other) * math.exp(-g * g / 2) / math.sqrt(2 * math.pi)

        return quad(at, -12, 12, epsabs=1e-12, epsrel=1e-8, limit=200)[0]

    def remove(other):
        return call(second, out_of * a - (out_of - 2) - other) / out_of

    def add(other):
        strike = out_of / a - (out_of - 2) - other
        return a * (call(second, strike) - 1 + strike) / out_of  # a put

    return mean(remove), mean(add)


@pytest.mark.parametrize(
    ("levels", "steps"), [((0.8, 0.8), 2), ((2.0, 0.5), 2), ((1.0, 1.5), 5), ((0.2, 0.2), 2)]
)
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0])
def test_two_steps_are_as_an_integral_says(levels, steps, epsilon):
    mechanism = RandomAllocationGaussian(steps, [1 / level for level in levels])
    truth = max(delta_of_two(*levels, epsilon, steps))
    bound = privacy.delta(mechanism, epsilon=epsilon)
    assert truth * (1 - 1e-9) <= bound
    assert bound <= truth * (1 + 5e-3) + 1e-11


@pytest.mark.parametrize("multiplier", [0.26, 0.7, 3.0])
def test_epochs_of_one_step_are_the_gaussian(multiplier):
    once = privacy.epsilon(RandomAllocationGaussian(1, multiplier, 6), delta=1e-5)
    truth = privacy.epsilon(Gaussian(multiplier, 6), delta=1e-5)
    assert truth * (1 - 1e-9) <= once <= truth * 1.002


def sampled_delta(levels, steps, epochs, epsilon, draws=30_000):
    """Estimate of the delta of both directions, and a deviation of it, from random outputs."""
    rng = np.random.default_rng(epochs * steps)
    loss = np.zeros((2, draws))
    for _ in range(epochs):
        for world in range(2):  # Q, then P
            noise = rng.standard_normal((draws, len(levels)))
            if world:
                place = rng.integers(steps, size=draws)
                rows = np.flatnonzero(place < len(levels))
                noise[rows, place[rows]] += np.asarray(levels)[place[rows]]
            ratio = np.exp(noise * levels - np.square(levels) / 2)
            loss[world] += np.log((ratio.sum(axis=1) + steps - len(levels)) / steps)
    remove = np.maximum(1 - np.exp(epsilon - loss[1]), 0)
    add = np.maximum(1 - np.exp(epsilon + loss[0]), 0)
    worse = remove if remove.mean() > add.mean() else add
    return float(worse.mean()), float(worse.std() / math.sqrt(draws))


@pytest.mark.parametrize(
    ("levels", "steps", "epochs", "epsilon"),
    [
        ([0.8] * 20, 20, 3, 0.5),
        ([2.0] * 10, 10, 2, 2.0),
        ([0.5, 1.0, 2.0, 1.0], 6, 4, 1.0),
        ([3.0, 2.9, 2.8, 2.7, 2.6, 2.5, 2.4, 2.3], 8, 1, 3.0),
    ],
)
def test_random_outputs_agree(levels, steps, epochs, epsilon):
    away = [SILENT] * (steps - len(levels))
    schedule = ([1 / level for level in levels] + away) * epochs
    bound = privacy.delta(RandomAllocationGaussian(steps, schedule), epsilon=epsilon)
    estimate, deviation = sampled_delta(levels, steps, epochs, epsilon)
    assert bound >= estimate - 4 * deviation
    assert bound <= (estimate + 4 * deviation) * 1.03


# Upper and lower bounds of PLD-accounting 2.0, `gaussian_allocation_epsilon_range`, at its own
# accuracy: of (noise multiplier, steps of an epoch, epochs, delta).
ELSEWHERE = {
    (1.25, 100, 10, 1e-4): (0.9391396530152192, 0.9832312754513232),
    (1.25, 100, 10, 1e-6): (1.286744148548416, 1.344318802419008),
    (1.0, 10, 10, 1e-5): (6.0738087084026855, 6.161512665452126),
    (0.5, 100, 3, 1e-5): (7.495422470376072, 7.559069798299952),
    (1.0, 2, 10, 1e-5): (13.291390314482854, 13.397301683956709),
    (0.3, 200, 1, 1e-5): (13.825960733096252, 13.849761431573807),
}


@pytest.mark.parametrize("setting", ELSEWHERE)
def test_epsilon_lies_between_two_bounds_of_another_library(setting):
    multiplier, steps, epochs, delta = setting
    lower, upper = ELSEWHERE[setting]
    mechanism = RandomAllocationGaussian(steps, multiplier, steps * epochs)
    assert lower <= privacy.epsilon(mechanism, delta=delta) <= upper


@pytest.mark.slow
def test_another_library_says_so_still():
    library = pytest.importorskip("PLD_accounting")
    lower, upper = sorted(
        library.gaussian_allocation_epsilon_range(
            delta=1e-4, sigma=1.5, num_steps=3, num_epochs=2, epsilon_accuracy=0.05
        )
    )
    mechanism = RandomAllocationGaussian(3, 1.5, 6)
    assert lower <= privacy.epsilon(mechanism, delta=1e-4) <= upper * (1 + 1e-3)


def test_the_setting_of_the_pages():
    found = {
        "allocation": RandomAllocationGaussian(100, 1.25, 1000),
        "poisson": SampledGaussian(0.01, 1.25, 1000),
        "fixed": privacy.FixedBatchGaussian(64, 6400, 1.25, 1000),
    }
    costs = {name: round(privacy.epsilon(each, delta=1e-4), 2) for name, each in found.items()}
    assert costs == {"allocation": 0.96, "poisson": 1.01, "fixed": 6.19}


@pytest.mark.slow
@settings(max_examples=3, deadline=None)
@given(
    steps=st.integers(1, 12),
    multiplier=st.floats(0.4, 6),
    released=st.integers(1, 40),
    delta=st.sampled_from([1e-8, 1e-5, 1e-3]),
)
def test_more_noise_fewer_steps_and_larger_deltas_cost_less(steps, multiplier, released, delta):
    mechanism = RandomAllocationGaussian(steps, multiplier, released)
    bound = privacy.epsilon(mechanism, delta=delta)
    most = bound * 1.005 + 1e-3
    less_noise = RandomAllocationGaussian(steps, multiplier * 1.2, released)
    assert privacy.epsilon(less_noise, delta=delta) <= most
    assert privacy.epsilon(mechanism, delta=10 * delta) <= most
    more = privacy.epsilon(RandomAllocationGaussian(steps, multiplier, released + 3), delta=delta)
    assert more >= bound * 0.995 - 1e-3
    # Whoever knows in which step of each epoch the record takes part learns more.
    known = privacy.epsilon(Gaussian(multiplier, -(-released // steps)), delta=delta)
    assert bound <= known * 1.003 + 1e-3
    lower, upper = privacy.epsilon_bounds(mechanism, delta=delta)
    assert 0 <= lower <= upper == bound
    assert privacy.delta(mechanism, epsilon=bound) <= delta * 1.05


def test_the_lower_bound_is_that_of_sums_over_epochs():
    lower, upper = privacy.epsilon_bounds(RandomAllocationGaussian(10, 2.0, 25), delta=1e-5)
    of_sums = privacy.epsilon(Gaussian(2.0 * math.sqrt(10), 2), delta=1e-5)
    assert lower == pytest.approx(of_sums, rel=1e-6)
    assert upper > lower
    assert privacy.epsilon_bounds(RandomAllocationGaussian(10, 2.0, 9), delta=1e-5)[0] == 0


def test_an_epoch_of_many_levels_costs_no_less_than_of_the_rounded_ones():
    rising = RandomAllocationGaussian(40, [1 + 0.02 * k for k in range(40)])
    constant = RandomAllocationGaussian(40, 1.0, 40)
    most = RandomAllocationGaussian(40, 1.78, 40)
    bounds = [privacy.epsilon(each, delta=1e-6) for each in (most, rising, constant)]
    assert bounds == sorted(bounds)
    backwards = RandomAllocationGaussian(40, [1.78 - 0.02 * k for k in range(40)])
    assert privacy.epsilon(backwards, delta=1e-6) == pytest.approx(bounds[1], rel=1e-9)


def test_many_levels_of_epochs_are_rounded_up_by_little():
    rising = [1.0 + 0.01 * k for k in range(36)]
    exact = privacy.delta(RandomAllocationGaussian(4, rising), epsilon=2.0)
    with patch.object(allocation, "_LAWS", 3):
        few, square = allocation.epoch_levels(RandomAllocationGaussian(4, rising))
        rounded = privacy.delta(RandomAllocationGaussian(4, rising), epsilon=2.0)
    assert square == 0
    assert len(few) <= 3
    assert sum(few.values()) == 9
    assert sum(n * count for levels, count in few.items() for _, n in levels) == 36
    assert exact < rounded < 2 * exact


def test_below_a_quarter_the_step_is_taken_for_known():
    mechanism = RandomAllocationGaussian(50, [0.2] + [1.0] * 49)
    known = gaussian_delta(5.0, 20.0)
    assert privacy.delta(mechanism, epsilon=20.0) == pytest.approx(known, rel=1e-6)


def test_a_step_of_silence_costs_next_to_nothing():
    partial = RandomAllocationGaussian(8, 1.0, 3)
    padded = RandomAllocationGaussian(8, [1.0] * 3 + [SILENT] * 5)
    costs = [privacy.epsilon(each, delta=1e-5) for each in (partial, padded)]
    assert costs[0] <= costs[1] * (1 + 1e-6) <= costs[0] * (1 + 1e-3)


Steps = list[tuple[int, int, int]]


@pytest.mark.parametrize(
    ("steps", "charged"),
    [
        ([(0, 6, 1)], [1, 2, 3, 4, 5, 6]),
        ([(0, 4, 1)], [1, 2, 3, 4]),
        ([(0, 2, 1)], [1, 2]),
        # Step 1 twice: the first epoch twice, with all of its steps.
        ([(0, 1, 1), (1, 2, 2), (2, 4, 1)], [1, 2, 3, 1, 2, 3, 4]),
        ([(3, 5, 3)], [4, 5, 0, 4, 5, 0, 4, 5]),
        ([(2, 3, 1), (5, 6, 2)], [0, 0, 3, 0, 0, 6, 0, 0, 6]),
    ],
)
def test_an_epoch_is_charged_as_often_as_its_most_repeated_step(steps, charged):
    planned = RandomAllocationGaussian(3, [1, 2, 3, 4, 5, 6])
    expected = [float(z) if z else SILENT for z in charged]
    assert planned.of_steps(steps) == RandomAllocationGaussian(3, expected)


def test_what_is_released_is_the_same_whether_told_by_numbers_or_by_intervals():
    planned = RandomAllocationGaussian(4, [1, 2, 3, 4, 5, 6, 7], coordinates=9)
    numbers = [0, 1, 2, 3, 4, 2, 3, 4, 5]
    told = allocated(4, numbers, [k + 1 for k in numbers], coordinates=9)
    assert told == planned.of_steps([(0, 2, 1), (2, 5, 2), (5, 6, 1)])
    assert allocated(4, range(7), range(1, 8), coordinates=9) == planned


def test_epochs_of_several_parts_stay_apart():
    one = RandomAllocationGaussian(4, [1.0] * 6)
    both = privacy.Composed([one, one]).parts
    assert both == (RandomAllocationGaussian(4, [1.0] * 6 + [SILENT] * 2 + [1.0] * 6),)
    assert privacy.compose(one, 2) == both[0]
    other = RandomAllocationGaussian(5, 1.0, 5)
    assert len(privacy.Composed([one, other]).parts) == 2
    together = privacy.epsilon(privacy.Composed([one, other]), delta=1e-5)
    assert together > privacy.epsilon(one, delta=1e-5)


def test_a_dominating_one_has_the_least_noise_and_the_same_epochs():
    found = dominating(
        [RandomAllocationGaussian(3, [1.0, 2.0]), RandomAllocationGaussian(3, [2.0, 1.0])]
    )
    assert found == RandomAllocationGaussian(3, [1.0, 1.0])
    assert dominating([RandomAllocationGaussian(3, 1.0), RandomAllocationGaussian(4, 1.0)]) is None


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"epoch_steps": 0}, "epoch_steps"),
        ({"epoch_steps": 2.5}, "epoch_steps"),
        ({"relation": "replace-one"}, "relation"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
    ],
)
def test_what_is_not_proved_is_refused(fields, where):
    given_fields = {"epoch_steps": 3, "noise_multiplier": 1.0, **fields}
    with pytest.raises(InputError) as caught:
        RandomAllocationGaussian(**given_fields)  # type: ignore[arg-type]
    assert caught.value.where == where
