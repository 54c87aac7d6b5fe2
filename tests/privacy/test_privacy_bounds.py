"""Both bounds hold the truth: closed forms, fifty digits, attacks, other accountants."""

import math

import mpmath as mp
import numpy as np
import pytest
from dp_accounting import (
    GaussianDpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from privacy_oracles import (
    add_profile_exact,
    compose,
    gaussian_epsilon_exact,
    gaussian_profile_exact,
    intervals_of,
    remove_profile_exact,
)

from tacit import privacy
from tacit.errors import InputError
from tacit.privacy import (
    ADD_OR_REMOVE_ONE,
    REPLACE_ONE,
    ClientSampling,
    Composed,
    FixedBatchGaussian,
    Gaussian,
    Laplace,
    PrivateState,
    SampledGaussian,
)

pytestmark = pytest.mark.slow


def assert_tight(bounds, gap=1e-3):
    lower, upper = bounds
    assert 0 <= lower <= upper
    assert upper - lower <= (gap if upper >= 1 else 10 * gap) * upper


def exact_epsilon(profile, delta, most):
    """Where a falling profile crosses delta, by bisection in many digits."""
    low, high = 0.0, most
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if profile(middle) > delta else (low, middle)
    return high


# One step: the truth is known in fifty digits.


@pytest.mark.parametrize("rate", [1e-3, 0.05, 0.5, 0.999])
@pytest.mark.parametrize("multiplier", [0.06, 0.3, 1.0, 8.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 7e-4])
def test_one_step(rate, multiplier, delta):
    mu = 1 / multiplier

    def profile(epsilon):
        return max(remove_profile_exact(rate, mu, epsilon), add_profile_exact(rate, mu, epsilon))

    mechanism = SampledGaussian(rate, multiplier)
    bounds = privacy.epsilon_bounds(mechanism, delta=delta)
    if profile(0.0) <= delta:
        assert bounds[0] == 0
        assert bounds[1] < 0.01
        return
    truth = exact_epsilon(profile, delta, mu * mu / 2 + 12 * mu + 1)
    assert bounds[0] <= truth <= bounds[1]
    assert_tight(bounds)
    for epsilon in (0.0, truth / 3, truth):
        lower, upper = privacy.delta_bounds(mechanism, epsilon=epsilon)
        assert lower <= profile(epsilon) <= upper


@pytest.mark.parametrize("delta", [1e-200, 1e-100, 1e-30, 1e-12])
def test_deltas_of_any_size(delta):
    """Next to a rate of 1 the truth is between those of two closed forms."""
    mechanism = SampledGaussian(1 - 1e-9, 4.0, 20)
    lower, upper = privacy.epsilon_bounds(mechanism, delta=delta)
    truth = float(gaussian_epsilon_exact(math.sqrt(20) / 4, delta))
    assert lower <= truth * (1 + 1e-9)
    assert truth * (1 - 1e-6) <= upper
    assert_tight((lower, upper))


# Attacks: an observer who keeps intervals of the outputs proves no more than the truth.


@pytest.mark.parametrize("kind", ["zero-out", "replace-one", "fixed-batch", "private-state"])
@pytest.mark.parametrize(("rate", "schedule"), [(0.3, [1.0, 2.0]), (0.02, [0.5, 0.7])])
def test_two_steps(kind, rate, schedule):
    shifts = {
        "zero-out": (1, 0),
        "replace-one": (1, -1),
        "fixed-batch": (2, 0),
        "private-state": (1, 0),
    }
    shift, opposite = shifts[kind]
    pairs = [intervals_of(rate, shift / z, opposite / z, count=700) for z in schedule]
    makes = {
        "zero-out": SampledGaussian(rate, schedule),
        "replace-one": SampledGaussian(rate, schedule, relation=REPLACE_ONE),
        "fixed-batch": FixedBatchGaussian(round(1000 * rate), 1000, schedule),
        "private-state": PrivateState(rate, 1.0, 0.0, schedule),
    }
    joint = compose(pairs)
    for delta in (1e-6, 1e-3):
        proved = max(joint.epsilon(delta), joint.reverse.epsilon(delta))
        lower, upper = privacy.epsilon_bounds(makes[kind], delta=delta)
        assert proved <= upper
        assert lower <= proved * 1.01 + 1e-3
        if kind != "fixed-batch":
            assert_tight((lower, upper))


# dp_accounting, as a bracket: its optimistic and its pessimistic estimate.


def theirs(event, delta, grid):
    accountant = PLDAccountant(value_discretization_interval=grid)
    accountant.compose(event)
    return float(accountant.get_epsilon(delta))


@pytest.mark.parametrize(
    ("mechanism", "event", "grid"),
    [
        (
            Laplace(20.0, 100, sample_rate=0.2),
            SelfComposedDpEvent(PoissonSampledDpEvent(0.2, LaplaceDpEvent(20.0)), 100),
            1e-4,
        ),
        (Laplace([10.0] * 30), SelfComposedDpEvent(LaplaceDpEvent(10.0), 30), 1e-4),
        (Laplace(2.0, 5, relation=REPLACE_ONE), SelfComposedDpEvent(LaplaceDpEvent(1.0), 5), 1e-4),
        (
            SampledGaussian(0.01, 0.6, 200),
            SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(0.6)), 200),
            1e-3,
        ),
    ],
    ids=repr,
)
def test_other_accountants_upper_bounds_lie_above_the_lower_bound(mechanism, event, grid):
    lower, upper = privacy.epsilon_bounds(mechanism, delta=1e-5)
    estimate = theirs(event, 1e-5, grid)
    assert_tight((lower, upper))
    assert lower <= estimate
    assert estimate == pytest.approx(upper, rel=2e-3)


def test_one_laplace_step_is_the_closed_form():
    for shift in (0.3, 2.0):
        for delta in (1e-9, 1e-3):
            truth = shift + 2 * math.log1p(-delta)  # 1 - e^((epsilon - shift) / 2) = delta
            lower, upper = privacy.epsilon_bounds(Laplace(1 / shift), delta=delta)
            assert lower <= truth <= upper
            assert_tight((lower, upper))


def test_pure_epsilon_is_never_exceeded():
    assert privacy.epsilon(Laplace(2.0, 4), delta=1e-15) <= 2.0 * (1 + 1e-9)
    assert privacy.delta(Laplace(2.0, 4), epsilon=2.1) == 0
    assert privacy.epsilon(Laplace(1.0, 3, sample_rate=0.5), delta=1e-15) <= 3 * math.log(
        0.5 + 0.5 * math.e
    ) * (1 + 1e-9)


# Compositions.


def test_gaussians_compose_to_the_closed_form_wherever_they_stand():
    mu = math.sqrt(5 / 9 + 3 / 16)
    whole = Composed([Gaussian(3.0, 5), Gaussian(4.0), Composed([Gaussian([4.0, 4.0])])])
    truth = gaussian_epsilon_exact(mu, 1e-7)
    lower, upper = privacy.epsilon_bounds(whole, delta=1e-7)
    assert lower <= truth <= upper
    assert upper - lower < 1e-9
    # With one more step of hardly any effect, the composed engine must say the same.
    more = Composed([whole, SampledGaussian(1e-6, 1e3)])
    lower, upper = privacy.epsilon_bounds(more, delta=1e-7)
    assert lower <= truth * (1 + 1e-9)
    assert truth <= upper
    assert_tight((lower, upper))


def test_mixed_parts_against_intervals():
    whole = Composed([SampledGaussian(0.2, 1.5), Gaussian(2.0), SampledGaussian(0.6, 3.0)])
    joint = compose(
        [
            intervals_of(0.2, 1 / 1.5, count=130),
            intervals_of(1.0, 0.5, count=130),
            intervals_of(0.6, 1 / 3, count=130),
        ]
    )
    for delta in (1e-5, 1e-2):
        proved = max(joint.epsilon(delta), joint.reverse.epsilon(delta))
        lower, upper = privacy.epsilon_bounds(whole, delta=delta)
        assert proved <= upper
        assert lower <= proved * 1.02
        assert_tight((lower, upper))


@settings(max_examples=8, deadline=None)
@given(
    rate=st.floats(1e-3, 0.6),
    schedule=st.lists(st.floats(0.4, 6), min_size=1, max_size=4),
    times=st.integers(2, 5),
)
def test_composing_is_the_same_as_repeating(rate, schedule, times):
    one = SampledGaussian(rate, schedule)
    ways = [
        privacy.compose(one, times),
        Composed([one] * times),
        SampledGaussian(rate, schedule * times),
    ]
    assert len({privacy.epsilon_bounds(way, delta=1e-6) for way in ways}) == 1


def test_client_sampling_is_the_mean_over_participation():
    """Of Gaussian rounds: m of T, each pattern a closed form."""
    rate, rounds, z = 0.3, 12, 2.5
    mechanism = ClientSampling(Gaussian(z, 2), rate, rounds)
    for epsilon in (0.5, 2.0, 4.0):
        with mp.workdps(30):
            truth = mp.fsum(
                mp.binomial(rounds, m)
                * mp.mpf(rate) ** m
                * (1 - mp.mpf(rate)) ** (rounds - m)
                * gaussian_profile_exact(math.sqrt(2 * m) / z, epsilon)
                for m in range(1, rounds + 1)
            )
        lower, upper = privacy.delta_bounds(mechanism, epsilon=epsilon)
        assert lower <= truth <= upper
        assert upper <= truth * 1.01


def test_a_client_that_always_takes_part_is_not_sampled():
    inner = SampledGaussian(0.1, 2.0, 5)
    sampled = privacy.epsilon_bounds(ClientSampling(inner, 1.0, 4), delta=1e-5)
    plain = privacy.epsilon_bounds(privacy.compose(inner, 4), delta=1e-5)
    assert sampled == pytest.approx(plain, rel=2e-4)
    assert sampled[0] <= plain[1]
    assert plain[0] <= sampled[1]


def test_sampled_rounds_of_sampled_steps():
    """A round that is seen, of one sampled step: losses of patterns, one by one."""
    rate, inner, rounds = 0.4, SampledGaussian(0.3, 1.0), 3
    mechanism = ClientSampling(inner, rate, rounds)
    pair = intervals_of(0.3, 1.0, count=90)
    for epsilon in (0.2, 1.0):
        sums = []
        for one in (pair, pair.reverse):
            total = 0.0
            for m in range(1, rounds + 1):
                chance = math.comb(rounds, m) * rate**m * (1 - rate) ** (rounds - m)
                total += chance * compose([one] * m).delta(epsilon)
            sums.append(total)
        lower, upper = privacy.delta_bounds(mechanism, epsilon=epsilon)
        assert max(sums) <= upper
        assert lower <= max(sums) * 1.02
        assert upper <= max(sums) * 1.03


# Private state.


def test_private_state_of_no_misses_is_a_sampled_gaussian():
    state = privacy.epsilon_bounds(PrivateState(0.05, 1.0, 0.0, 1.3, 40), delta=1e-6)
    plain = privacy.epsilon_bounds(SampledGaussian(0.05, 1.3, 40), delta=1e-6)
    assert state == pytest.approx(plain, rel=1e-6)


def test_private_state_that_always_hits_is_a_gaussian():
    truth = gaussian_epsilon_exact(2 * math.sqrt(7) / 3, 1e-5)
    for mechanism in (PrivateState(1.0, 2.0, 0.5, 3.0, 7), PrivateState(0.2, 2.0, 2.0, 3.0, 7)):
        assert privacy.epsilon(mechanism, delta=1e-5) == pytest.approx(float(truth), rel=1e-9)


@pytest.mark.parametrize("relation", [ADD_OR_REMOVE_ONE, REPLACE_ONE])
def test_private_state_against_intervals(relation):
    """(1-q) N(c) + q N(A) against N(0), or against its mirror image, two steps."""
    rate, drawn_norm, undrawn_norm = 0.1, 1.2, 0.3
    ends = np.linspace(-drawn_norm - 8.0, drawn_norm + 8.0, 600)

    def masses(mean):
        below = np.asarray([float(mp.ncdf(x - mean)) for x in ends])
        return np.diff(np.concatenate(([0.0], below, [1.0])))

    sign = -1 if relation == REPLACE_ONE else 0
    p = (1 - rate) * masses(undrawn_norm) + rate * masses(drawn_norm)
    q = (1 - rate) * masses(sign * undrawn_norm) + rate * masses(sign * drawn_norm)
    pair = type(intervals_of(rate, drawn_norm - undrawn_norm, -undrawn_norm, count=3))(p, q)
    joint = compose([pair, pair])
    for delta in (1e-4, 1e-2):
        proved = max(joint.epsilon(delta), joint.reverse.epsilon(delta))
        state = PrivateState(rate, drawn_norm, undrawn_norm, 1.0, 2, relation=relation)
        lower, upper = privacy.epsilon_bounds(state, delta=delta)
        assert proved <= upper
        assert lower <= proved * 1.01
        assert_tight((lower, upper))


def test_replacing_a_private_record_costs_between_one_and_two_zero_outs():
    zero_out = PrivateState(0.02, 1.5, 0.1, 1.2, 50)
    replace = PrivateState(0.02, 1.5, 0.1, 1.2, 50, relation=REPLACE_ONE)
    assert_tight(privacy.epsilon_bounds(replace, delta=1e-5))
    upper = privacy.epsilon(replace, delta=1e-5)
    # e^(e1) d2 with e1 = e2: group privacy of two.
    single = privacy.epsilon(zero_out, delta=1e-5)
    assert single < upper < 2.6 * single
    half = upper / 2
    remove_and_add = privacy.delta(zero_out, epsilon=half) * (1 + math.exp(half))
    assert privacy.delta(replace, epsilon=upper) <= remove_and_add * 1.01
    joined = Composed([replace, SampledGaussian(0.02, 5.0, 10, relation=REPLACE_ONE)])
    assert privacy.epsilon(joined, delta=1e-5) > upper


def test_a_fixed_batch_with_private_state_gives_up_amplification():
    fixed = PrivateState(0.02, 1.5, 0.1, 1.2, 50, sampling="fixed", relation=REPLACE_ONE)
    lower, upper = privacy.epsilon_bounds(fixed, delta=1e-5)
    assert 0 < lower < upper < math.inf
    low, high = privacy.delta_bounds(fixed, epsilon=upper)
    assert low <= high <= 1e-5 * (1 + 1e-6)


@pytest.mark.parametrize(
    ("mechanism", "where"),
    [
        (
            Composed(
                [
                    PrivateState(0.1, 1, 0, 1.0, sampling="fixed", relation=REPLACE_ONE),
                    Gaussian(1.0, relation=REPLACE_ONE),
                ]
            ),
            "sampling",
        ),
        (
            ClientSampling(
                PrivateState(0.1, 1, 0, 1.0, sampling="fixed", relation=REPLACE_ONE), 0.5, 3
            ),
            "sampling",
        ),
    ],
    ids=["composed", "sampled"],
)
def test_what_has_no_bound_says_so(mechanism, where):
    for ask in (
        lambda: privacy.epsilon(mechanism, delta=1e-5),
        lambda: privacy.delta_bounds(mechanism, epsilon=1.0),
    ):
        with pytest.raises(InputError, match="use Poisson sampling") as caught:
            ask()
        assert caught.value.where == where


# The edges.


def test_a_million_steps():
    lower, upper = privacy.epsilon_bounds(SampledGaussian(1e-3, 2.0, 1_000_000), delta=1e-6)
    assert_tight((lower, upper))
    # In the limit of many steps a Gaussian with mu = q sqrt(K (e^(1 / z^2) - 1)).
    mu = 1e-3 * math.sqrt(1e6 * math.expm1(0.25))
    assert lower == pytest.approx(float(gaussian_epsilon_exact(mu, 1e-6)), rel=2e-2)


def test_epsilon_in_the_thousands():
    bounds = privacy.epsilon_bounds(SampledGaussian(0.1, 0.5, 100_000), delta=1e-6)
    assert bounds[0] > 6000
    assert_tight(bounds)


def test_the_smallest_delta_of_a_long_schedule():
    loose = privacy.epsilon_bounds(SampledGaussian(0.01, 1.0, 1000), delta=1e-5)
    tight = privacy.epsilon_bounds(SampledGaussian(0.01, 1.0, 1000), delta=1e-12)
    assert_tight(tight)
    assert loose[1] < tight[0]
