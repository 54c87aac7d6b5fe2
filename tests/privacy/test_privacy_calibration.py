"""The least noise: it meets the budget, and a little less of it does not."""

import math
import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from privacy_oracles import gaussian_epsilon_exact, gaussian_profile_exact

from few import few
from tacit import privacy
from tacit.errors import BudgetError, InputError
from tacit.privacy import REPLACE_ONE, FixedBatchGaussian, Gaussian, SampledGaussian
from tacit.privacy.accounting import accounting
from tacit.privacy.accounting.calibration import TOLERANCE, least_scale

# What a budget buys at delta = 1e-4 with 3000 records: the multiplier and the noise accumulated
# over all steps, over the least possible, at epsilon 0.3, 0.7, 1 and 3.
TABLE = [
    (1.0, 50, [("65.6", "1.00"), ("30.9", "1.00"), ("22.5", "1.00"), ("8.65", "1.00")]),
    (0.1, 300, [("16.2", "1.01"), ("7.67", "1.01"), ("5.63", "1.02"), ("2.29", "1.08")]),
    (0.05, 600, [("11.4", "1.01"), ("5.45", "1.02"), ("4.02", "1.03"), ("1.69", "1.13")]),
    (0.01, 1000, [("3.06", "1.04"), ("1.59", "1.15"), ("1.25", "1.25"), ("0.76", "1.95")]),
    (1 / 3000, 1000, [("0.58", "5.9"), ("0.51", "11.2"), ("0.49", "14.6"), ("0.41", "31.4")]),
]
ROWS = [
    pytest.param(rate, steps, epsilon, *cell, id=f"{steps} steps, epsilon {epsilon}")
    for rate, steps, cells in TABLE
    for epsilon, cell in zip((0.3, 0.7, 1.0, 3.0), cells, strict=True)
]


def agrees(least, printed):
    """Within the rounding of the printed figure and 0.2 % that either calculation may be above."""
    half = 0.5 * 10 ** -len(printed.partition(".")[2])
    return abs(least - float(printed)) <= half + 2e-3 * least


@pytest.mark.parametrize(("rate", "steps", "epsilon", "multiplier", "waste"), ROWS)
def test_what_a_budget_buys(rate, steps, epsilon, multiplier, waste):
    least = privacy.calibrate(
        lambda scale: SampledGaussian(rate, scale, steps),
        epsilon=epsilon,
        delta=1e-4,
        start=float(multiplier),
    )
    assert agrees(least, multiplier)
    # Noise of the mean over the least: z / (q sqrt(K)) times mu of (epsilon, delta).
    low, high = 1e-3, 10.0
    for _ in range(50):
        middle = (low + high) / 2
        above = gaussian_profile_exact(middle, epsilon) > 1e-4
        low, high = (low, middle) if above else (middle, high)
    assert agrees(least * low / (rate * math.sqrt(steps)), waste)


@pytest.mark.parametrize(
    "mechanism",
    [
        lambda scale: SampledGaussian(0.01, scale, 200),
        lambda scale: SampledGaussian(0.01, [scale, 2 * scale, 3 * scale] * 8),
        lambda scale: SampledGaussian(0.05, scale, 30, relation=REPLACE_ONE),
        lambda scale: FixedBatchGaussian(1, 100, scale, 50),
        lambda scale: Gaussian(scale, 50),
        lambda scale: FixedBatchGaussian(5, 5, [scale, 4 * scale]),
    ],
)
def test_the_budget_is_met_and_used_up(mechanism):
    epsilon = 0.8
    scale = privacy.calibrate(mechanism, epsilon=epsilon, delta=1e-5)
    assert privacy.epsilon(mechanism(scale), delta=1e-5) <= epsilon
    assert privacy.epsilon(mechanism(scale / (1 + 3 * TOLERANCE)), delta=1e-5) > epsilon


@pytest.mark.parametrize("start", [1e-6, 1.0, 1e5])
def test_the_guess_does_not_matter(start):
    scale = privacy.calibrate(lambda s: Gaussian(s, 50), epsilon=1.0, delta=1e-12, start=start)
    assert privacy.epsilon(Gaussian(scale, 50), delta=1e-12) <= 1
    mu = math.sqrt(50) / scale
    assert gaussian_epsilon_exact(mu * (1 + TOLERANCE), 1e-12) > 1


def test_a_tolerance_is_kept():
    def make(scale):
        return SampledGaussian(0.05, scale, 20)

    scale = privacy.calibrate(make, epsilon=1.0, delta=1e-5, tolerance=0.05)
    assert (
        privacy.epsilon(make(scale), delta=1e-5)
        <= 1
        < privacy.epsilon(make(scale / 1.06), delta=1e-5)
    )


@few(6, 20)
@given(epsilon=st.floats(0.3, 8.0), seed=st.integers(0, 2**32 - 1))
def test_the_last_bits_of_a_cost_decide_nothing(epsilon, seed):
    """They depend on the machine, and on how many threads add: the noise must not."""
    draw, exact = random.Random(seed), accounting.epsilon

    def rounded(mechanism, *, delta):
        return exact(mechanism, delta=delta) * (1 + draw.uniform(-1e-13, 1e-13))

    def found():
        return privacy.calibrate(lambda s: SampledGaussian(0.3, s, 4), epsilon=epsilon, delta=1e-5)

    right = found()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accounting, "epsilon", rounded)
        assert found() == right


def test_where_any_noise_will_do_little_is_added():
    """A draw is rarer than delta: the search walks down to where the accountant gives up."""
    scale = privacy.calibrate(lambda s: SampledGaussian(1e-4, s, 10), epsilon=1.0, delta=1e-2)
    assert 0 < scale < 0.01
    assert privacy.epsilon(SampledGaussian(1e-4, scale, 10), delta=1e-2) <= 1


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_bad_budgets_are_refused(epsilon):
    with pytest.raises(InputError) as caught:
        privacy.calibrate(lambda s: Gaussian(s), epsilon=epsilon, delta=1e-5)
    assert caught.value.where == "epsilon"


@pytest.mark.parametrize("delta", [0.0, -1e-3, 1.0, 2.0, math.nan])
@pytest.mark.parametrize("kind", [Gaussian, lambda s: SampledGaussian(0.1, s, 10)])
def test_bad_deltas_are_refused(kind, delta):
    with pytest.raises(InputError) as caught:
        privacy.calibrate(kind, epsilon=1.0, delta=delta)
    assert caught.value.where == "delta"


def test_an_unreachable_budget_is_said_so():
    with pytest.raises(BudgetError, match=r"0\.5"):
        privacy.calibrate(lambda _: Gaussian(1.0, 10), epsilon=0.5, delta=1e-5)


# The search by itself, on falling costs of every shape.


@few(50, 200)
@given(
    pieces=st.lists(st.tuples(st.floats(1e-4, 1e6), st.floats(0.05, 6)), min_size=1, max_size=4),
    offset=st.sampled_from([0.0, 0.5]),
    infinite_below=st.sampled_from([0.0, 1e-3, 3.0, 1e4]),
    stair=st.sampled_from([0.0, 0.01, 1.0]),
    target=st.sampled_from([0.3, 1.0, 700.0]),
    tolerance=st.sampled_from([1e-9, 1e-3, 0.05]),
    start=st.sampled_from([1e-5, 1.0, 300.0]),
)
def test_least_scale_of_a_falling_cost(
    pieces, offset, infinite_below, stair, target, tolerance, start
):
    """Power laws with kinks, plateaus, a floor, and no value at all below some scale."""
    calls = 0

    def cost(scale):
        nonlocal calls
        calls += 1
        if scale < infinite_below:
            return math.inf
        value = max((scale / knee) ** -power for knee, power in pieces) + offset
        return math.ceil(value / stair) * stair if stair else value

    assume(cost(1e8) <= target < cost(1e-8))
    calls = 0
    least = least_scale(cost, target=target, tolerance=tolerance, start=start)
    searched = calls
    assert cost(least) <= target
    assert cost(least / (1 + 1.001 * tolerance)) > target
    assert searched < 200


@settings(max_examples=40, deadline=None)
@given(st.floats(-6, 6), st.floats(0.2, 4))
def test_a_power_law_takes_few_evaluations(log_knee, power):
    knee, calls = 10**log_knee, 0

    def cost(scale):
        nonlocal calls
        calls += 1
        return (scale / knee) ** -power

    least = least_scale(cost, target=1.0)
    assert knee <= least * (1 + 1e-12)
    assert least <= knee * 1.0011
    assert calls < 25


def test_least_scale_ends():
    with pytest.raises(BudgetError, match="1e9"):
        least_scale(lambda _: 2.0, target=1.0)
    with pytest.raises(BudgetError):
        least_scale(lambda _: math.inf, target=1.0)
    assert least_scale(lambda _: 0.5, target=1.0) < 1e-7
