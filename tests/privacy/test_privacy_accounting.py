"""Certified epsilons against exact lower bounds, dp_accounting and published figures."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from privacy_oracles import (
    compose,
    gaussian_epsilon_exact,
    gaussian_profile_exact,
    intervals_of,
    their_epsilon,
)

from tacit import privacy
from tacit.errors import InputError
from tacit.privacy import (
    ADD_OR_REMOVE_ONE,
    REPLACE_ONE,
    FixedBatchGaussian,
    Gaussian,
    SampledGaussian,
)

pytestmark = pytest.mark.slow

ROUNDING = 1e-9  # of a composition of a few steps, in delta
RELATIONS = [ADD_OR_REMOVE_ONE, REPLACE_ONE]


def sampled(rate, multipliers, *, replace=False):
    relation = REPLACE_ONE if replace else ADD_OR_REMOVE_ONE
    return SampledGaussian(rate, multipliers, relation=relation)


def fixed(rate, multipliers):
    return FixedBatchGaussian(round(1000 * rate), 1000, multipliers)


# The closed form.


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
def test_every_record_at_every_step_is_the_closed_form(relation, delta):
    schedule = [0.3, 5.0, 30.0, 30.0, 1.0]
    sensitivity = 2 if relation == REPLACE_ONE else 1
    mu = sensitivity * math.sqrt(sum(z**-2 for z in schedule))
    truth = gaussian_epsilon_exact(mu, delta)
    same = [
        Gaussian(schedule, relation=relation),
        SampledGaussian(1, schedule, relation=relation),
        SampledGaussian(1.0, schedule[::-1], relation=relation),
    ]
    if relation == REPLACE_ONE:
        same.append(FixedBatchGaussian(40, 40, schedule))
    for mechanism in same:
        bound = privacy.epsilon(mechanism, delta=delta)
        assert truth <= bound * (1 + 1e-14)
        assert bound <= truth * (1 + 1e-9)
        exact = gaussian_profile_exact(mu, bound)
        # One ulp of mu moves delta by some 1e-14 of itself.
        assert float(exact) <= privacy.delta(mechanism, epsilon=bound) <= delta * (1 + 1e-9)


def test_a_rate_next_to_one_is_nearly_the_closed_form():
    for relation in RELATIONS:
        whole = privacy.epsilon(Gaussian(5.0, 20, relation=relation), delta=1e-6)
        nearly = privacy.epsilon(SampledGaussian(0.999999, 5.0, 20, relation=relation), delta=1e-6)
        assert whole * (1 - 1e-5) <= nearly <= whole * 1.002


# Lower bounds: what an attacker who keeps only intervals of the outputs already proves.

STEPS = [
    (0.01, [0.5]),
    (0.01, [0.5, 0.8]),
    (0.3, [1.0, 1.0, 1.0]),
    (0.5, [0.3]),
    (0.5, [5.0, 0.7, 1.5]),
    (0.9, [3.0, 3.0]),
]


@pytest.mark.parametrize(("rate", "schedule"), STEPS)
@pytest.mark.parametrize("kind", ["add-or-remove-one", "replace-one", "fixed-batch"])
def test_certified_is_above_what_an_attack_proves_and_close(rate, schedule, kind):
    count = {1: 20_000, 2: 600, 3: 80}[len(schedule)]
    sensitivity, opposite = {
        "add-or-remove-one": (1, 0),
        "replace-one": (1, -1),
        "fixed-batch": (2, 0),
    }[kind]
    pair = compose(
        [intervals_of(rate, sensitivity / z, opposite / z, count=count) for z in schedule]
    )
    mechanism = (
        fixed(rate, schedule)
        if kind == "fixed-batch"
        else sampled(rate, schedule, replace=kind == "replace-one")
    )
    directions = [pair, pair.reverse]
    for delta in (1e-6, 1e-3):
        proved = max(direction.epsilon(delta) for direction in directions)
        certified = privacy.epsilon(mechanism, delta=delta)
        assert certified >= proved
        # Composed, the larger direction of every step is more than either direction composed.
        exact = kind != "fixed-batch" or len(schedule) == 1
        assert certified <= (proved * 1.02 + 1e-3 if exact else proved * 1.3 + 0.01)
    for epsilon in (0.0, 1.0):
        proved = max(direction.delta(epsilon) for direction in directions)
        bound = privacy.delta(mechanism, epsilon=epsilon)
        assert proved <= bound <= 1
        if kind != "fixed-batch" or len(schedule) == 1:
            assert bound <= proved * 1.02 + ROUNDING


# dp_accounting on a fine grid.


@pytest.mark.parametrize(
    ("rate", "multiplier", "steps", "delta"),
    [
        (0.01, 1.0, 500, 1e-5),
        (1 / 3000, 0.5, 1000, 1e-4),
        (0.2, 3.0, 200, 1e-6),
        (0.999, 5.0, 20, 1e-5),
        (0.001, 0.3, 50, 1e-3),
        (0.05, 30.0, 100, 1e-7),
    ],
)
@pytest.mark.parametrize("replace", [False, True])
def test_agrees_with_dp_accounting(rate, multiplier, steps, delta, replace):
    grid = 1e-3 if multiplier < 1 else 1e-4
    theirs = their_epsilon(rate, [(multiplier, steps)], delta, replace=replace, grid=grid)
    ours = privacy.epsilon(sampled(rate, [multiplier] * steps, replace=replace), delta=delta)
    # Theirs is an upper bound too: either may be the tighter one.
    assert ours == pytest.approx(theirs, rel=2e-3)


@pytest.mark.parametrize("replace", [False, True])
def test_two_levels_agree_with_dp_accounting_in_any_order(replace):
    theirs = their_epsilon(0.01, [(0.9, 100), (1.7, 300)], 1e-5, replace=replace, grid=3e-4)
    together = [0.9] * 100 + [1.7] * 300
    mixed = [1.7, 0.9, 1.7, 1.7] * 100
    for schedule in (together, together[::-1], mixed):
        ours = privacy.epsilon(sampled(0.01, schedule, replace=replace), delta=1e-5)
        assert ours == pytest.approx(theirs, rel=2e-3)
    one, two, three = (
        privacy.epsilon(sampled(0.01, schedule, replace=replace), delta=1e-5)
        for schedule in (together, together[::-1], mixed)
    )
    assert one == two == three


def test_levels_of_very_different_noise_compose():
    """One level's losses fit in a few points, another's need thousands."""
    for make in (sampled, lambda q, z: sampled(q, z, replace=True), fixed):
        loud = privacy.epsilon(make(0.01, [0.5] * 3), delta=1e-5)
        both = privacy.epsilon(make(0.01, [0.5] * 3 + [3000.0]), delta=1e-5)
        assert loud * (1 - 1e-9) <= both <= loud * 1.002


# Figures that were computed elsewhere, by another accountant.


def dyn_constant_mu(epsilon, records, steps, delta):
    """Const-D2P: mu-bar = sqrt(log(J^2 mu_tot^2 / K + 1)), mu_tot from the Gaussian profile."""
    low, high = 1e-3, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        above = gaussian_profile_exact(middle, epsilon) > delta
        low, high = (low, middle) if above else (middle, high)
    return math.sqrt(math.log(records**2 * low**2 / steps + 1))


@pytest.mark.parametrize(
    ("claimed", "poisson", "fixed_at_least"),
    [(0.3, 1.43, 15.9), (0.7, 3.06, 20.5), (1, 3.79, 22.6), (3, 6.03, 28.8)],
)
def test_what_dyn_d2p_costs(claimed, poisson, fixed_at_least):
    multiplier = 1 / dyn_constant_mu(claimed, 3000, 1000, 1e-4)
    bound = privacy.epsilon(SampledGaussian(1 / 3000, multiplier, 1000), delta=1e-4)
    assert bound == pytest.approx(poisson, abs=0.006)
    fixed_found = privacy.epsilon(FixedBatchGaussian(1, 3000, multiplier, 1000), delta=1e-4)
    assert fixed_at_least <= fixed_found < 2 * fixed_at_least


def test_what_privsgp_costs_on_mnist():
    sigma_over_g = 3 * 2 * math.sqrt(575 * math.log(1e5)) / 1200
    bound = privacy.epsilon(SampledGaussian(1 / 1200, sigma_over_g, 575), delta=1e-5)
    assert bound == pytest.approx(5.645, abs=0.006)


def test_fixed_batch_figures():
    bound = privacy.epsilon(FixedBatchGaussian(1, 100, 1.5, 1000), delta=1e-4)
    assert bound == pytest.approx(3.65, abs=0.006)
    assert privacy.epsilon(FixedBatchGaussian(1, 3000, 0.45, 1000), delta=1e-4) > 16
    poisson = SampledGaussian(1 / 3000, 0.45, 1000, relation=REPLACE_ONE)
    assert privacy.epsilon(poisson, delta=1e-4) == pytest.approx(1.73, abs=0.006)


def test_replace_one_takes_sigma_over_the_bound():
    """z = 2 at delta = 1e-5: 4.38 with a sensitivity of 2, where 2.17 would be one of 1."""
    bound = privacy.epsilon(Gaussian(2.0, relation=REPLACE_ONE), delta=1e-5)
    assert bound == pytest.approx(4.38, abs=0.005)


# Curves.


CURVES = [
    (SampledGaussian(0.02, [1.5] * 30 + [0.8] * 20), [0, 0, 1, 10, 10, 30, 45, 50]),
    (SampledGaussian(0.1, [3.0, 2.0] * 20, relation=REPLACE_ONE), [5, 20, 40]),
    (FixedBatchGaussian(1, 50, 1.2, 40), [1, 20, 39, 40]),
    (Gaussian([3.0, 1.0, 2.0]), [0, 1, 2, 2, 3]),
    (SampledGaussian(1, 4.0, 50, relation=REPLACE_ONE), [1, 25, 49]),
    (FixedBatchGaussian(9, 9, [5.0, 4.0]), [0, 1, 2]),
]


@pytest.mark.parametrize(("mechanism", "marks"), CURVES, ids=lambda value: type(value).__name__)
def test_a_curve_bounds_every_prefix(mechanism, marks):
    curve = privacy.epsilon_curve(mechanism, marks, delta=1e-5)
    assert len(curve) == len(marks)
    assert list(curve) == sorted(curve)
    schedule = mechanism.noise_multiplier
    assert isinstance(schedule, tuple)
    for mark, bound in zip(marks, curve, strict=True):
        if mark == 0:
            assert bound == 0
            continue
        steps = {**vars(mechanism), "noise_multiplier": schedule[:mark], "steps": None}
        truth = privacy.epsilon(type(mechanism)(**steps), delta=1e-5)
        assert truth * (1 - 3e-3) <= bound <= truth * (1 + 2e-2) + 1e-3
    if marks[-1] == len(schedule):
        assert curve[-1] == pytest.approx(privacy.epsilon(mechanism, delta=1e-5), rel=3e-3)
    assert curve[-1] <= privacy.epsilon(mechanism, delta=1e-5) * (1 + 1e-12)


def test_curves_of_nothing():
    mechanism = SampledGaussian(0.1, 1.0, 5)
    assert privacy.epsilon_curve(mechanism, [], delta=1e-5) == ()
    assert privacy.epsilon_curve(mechanism, [0, 0], delta=1e-5) == (0.0, 0.0)


@pytest.mark.parametrize("marks", [[-1], [6], [3, 2], [0, 5, 6], [math.nan]])
def test_bad_marks_are_refused(marks):
    with pytest.raises(InputError) as caught:
        privacy.epsilon_curve(SampledGaussian(0.1, 1.0, 5), marks, delta=1e-5)
    assert caught.value.where == "marks"


# Monotonicity.

KINDS = [
    lambda q, z, k: SampledGaussian(q, z, k),
    lambda q, z, k: SampledGaussian(q, z, k, relation=REPLACE_ONE),
    lambda q, z, k: FixedBatchGaussian(max(1, round(q * 200)), 200, z, k),
]


@settings(max_examples=6, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    rate=st.floats(0.005, 0.4),
    multiplier=st.floats(0.5, 5),
    steps=st.integers(1, 8),
    delta=st.sampled_from([1e-7, 1e-5, 1e-3]),
)
def test_more_noise_fewer_steps_lower_rates_and_larger_deltas_cost_less(
    kind, rate, multiplier, steps, delta
):
    mechanism = kind(rate, multiplier, steps)
    bound = privacy.epsilon(mechanism, delta=delta)
    # Grids are refined until epsilon gains less than 0.1 %: each figure may be about that far off.
    most = bound * 1.005 + 1e-3
    assert privacy.epsilon(kind(rate, multiplier * 1.3, steps), delta=delta) <= most
    assert privacy.epsilon(mechanism, delta=10 * delta) <= most
    assert privacy.epsilon(kind(rate, multiplier, steps + 3), delta=delta) >= bound * 0.995 - 1e-3
    assert privacy.epsilon(kind(rate * 1.5, multiplier, steps), delta=delta) >= bound * 0.995 - 1e-3
    assert privacy.delta(mechanism, epsilon=bound * 1.002 + 2e-3) <= delta * 1.0001 + ROUNDING
    assert privacy.delta(mechanism, epsilon=bound) <= delta * 1.05 + ROUNDING


@settings(max_examples=6, deadline=None)
@given(rate=st.floats(0.01, 0.5), multiplier=st.floats(0.7, 4), steps=st.integers(1, 8))
def test_replacing_costs_more_than_removing(rate, multiplier, steps):
    one = privacy.epsilon(SampledGaussian(rate, multiplier, steps), delta=1e-5)
    other = privacy.epsilon(
        SampledGaussian(rate, multiplier, steps, relation=REPLACE_ONE), delta=1e-5
    )
    assert other >= one * 0.998 - 1e-3


# Edges.


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, 1.5, math.nan, math.inf])
@pytest.mark.parametrize("mechanism", [Gaussian(1.0), SampledGaussian(0.1, 1.0)], ids=repr)
def test_delta_lies_between_zero_and_one(mechanism, delta):
    for refuse in (
        lambda: privacy.epsilon(mechanism, delta=delta),
        lambda: privacy.epsilon_curve(mechanism, [1], delta=delta),
        lambda: privacy.epsilon_curve(mechanism, [0], delta=delta),
    ):
        with pytest.raises(InputError) as caught:
            refuse()
        assert caught.value.where == "delta"


@pytest.mark.parametrize("epsilon", [-1e-9, -1.0, math.nan, math.inf, -math.inf])
def test_epsilon_is_finite_and_not_negative(epsilon):
    for mechanism in (Gaussian(1.0), SampledGaussian(0.1, 1.0)):
        with pytest.raises(InputError) as caught:
            privacy.delta(mechanism, epsilon=epsilon)
        assert caught.value.where == "epsilon"


def test_huge_noise_costs_nothing():
    for make in KINDS:
        for multiplier in (1e5, 1e12, 1e300):
            mechanism = make(0.5, multiplier, 10)
            assert 0 <= privacy.epsilon(mechanism, delta=1e-5) < 1e-3
            assert 0 <= privacy.delta(mechanism, epsilon=0.0) < 1e-4
    assert privacy.epsilon(Gaussian(1e300, 10), delta=1e-12) == 0


def test_hardly_any_noise_is_never_a_number_that_does_not_hold():
    """A draw's loss is about mu^2 / 2; epsilon is at least that of draws likelier than delta."""
    for make, sensitivity in zip(KINDS, (1, 1, 2), strict=True):
        for multiplier in (0.05, 0.022):
            loss = (sensitivity / multiplier) ** 2 / 2
            bound = privacy.epsilon(make(0.005, multiplier, 1), delta=1e-5)
            assert loss < bound < 2 * loss
        for multiplier in (1e-4, 1e-300):
            assert privacy.epsilon(make(0.005, multiplier, 1), delta=1e-5) == math.inf
            # A lower bound is that of more noise, at which it is still in the hundreds.
            assert privacy.epsilon_bounds(make(0.005, multiplier, 1), delta=1e-5)[0] > 200
            # With a chance of 1 - rate nothing is said of the record.
            assert privacy.delta(make(0.005, multiplier, 1), epsilon=1.0) == pytest.approx(0.005)
            assert privacy.epsilon_curve(make(0.005, multiplier, 2), [0, 1, 2], delta=1e-5) == (
                0.0,
                math.inf,
                math.inf,
            )
    assert privacy.epsilon(Gaussian(1e-300, 10), delta=1e-5) == math.inf
    assert privacy.epsilon_curve(Gaussian([1.0, 1e-300]), [1, 2], delta=1e-5)[1] == math.inf


def test_a_delta_above_the_chance_of_a_hit_costs_nothing():
    assert privacy.epsilon(SampledGaussian(1e-4, 0.3, 10), delta=1.1e-3) == 0
    assert privacy.delta(SampledGaussian(1e-4, 0.3, 10), epsilon=0.0) <= 1e-3
