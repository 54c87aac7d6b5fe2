"""A person with several rows: against integrals, another accountant, enumeration and attacks."""

import json
import math
from itertools import combinations, pairwise

import mpmath as mp
import numpy as np
import pytest
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st
from privacy_oracles import Pair, compose, gaussian_epsilon_exact
from scipy.stats import binom, hypergeom, norm

from few import few
from tacit import privacy
from tacit.errors import InputError
from tacit.privacy.accounting import persons
from tacit.privacy.accounting.dominating_pairs import NormalStep
from tacit.privacy.accounting.gaussian import gaussian_delta
from tacit.privacy.mechanisms.known import KnownRelease

REPLACE = privacy.REPLACE_ONE
GAUSSIAN = privacy.Gaussian(5.0, 50)
SAMPLED = privacy.SampledGaussian(0.01, 1.1, 1000)
FIXED = privacy.FixedBatchGaussian(2, 50, 2.0, 20)
STATE = privacy.PrivateState(0.02, 1.98, 0.02, 2.0, 30)
ALLOCATED = privacy.RandomAllocationGaussian(10, 2.0, 30)
KINDS = [
    GAUSSIAN,
    SAMPLED,
    privacy.SampledGaussian(0.1, 2.0, 10, relation=REPLACE),
    FIXED,
    STATE,
    privacy.PrivateState(0.02, 1.98, 0.02, 2.0, 30, sampling="groups"),
    privacy.PersistentState(0.05, 3.0, 20),
    ALLOCATED,
    privacy.Laplace(9.0, 5),
    privacy.Laplace(9.0, 5, sample_rate=0.1),
    privacy.Composed([GAUSSIAN, SAMPLED]),
    privacy.ClientSampling(SAMPLED, 0.3, 4),
    privacy.ClientSampling(FIXED, 0.3, 4),
    KnownRelease([(0.1, 1e-7), (0.2, 1e-12)]),
]


def kind(mechanism):
    return mechanism.kind


# -- several rows at one node ---------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", KINDS, ids=kind)
def test_a_person_with_one_row_is_a_row(mechanism):
    assert privacy.for_a_unit(mechanism, 1) is mechanism
    person = privacy.across_nodes([mechanism], 1)
    assert privacy.epsilon_bounds(person, delta=1e-5) == privacy.epsilon_bounds(
        mechanism, delta=1e-5
    )
    assert privacy.delta_bounds(person, epsilon=0.5) == privacy.delta_bounds(mechanism, epsilon=0.5)


@pytest.mark.parametrize("mechanism", KINDS, ids=kind)
def test_more_rows_lose_more(mechanism):
    found = [privacy.epsilon_bounds(privacy.for_a_unit(mechanism, r), delta=1e-4) for r in (1, 3)]
    for (lower, upper), (more_lower, more_upper) in pairwise(found):
        assert lower <= upper
        assert 0 <= lower <= more_lower * (1 + 1e-9)
        assert upper < more_upper


@few(12, 40)
@given(
    noise=st.floats(0.5, 50.0),
    steps=st.integers(1, 100),
    rows=st.integers(2, 256),
    relation=st.sampled_from([privacy.ADD_OR_REMOVE_ONE, REPLACE]),
)
def test_noise_on_every_record_counts_for_its_share(noise, steps, rows, relation):
    person = privacy.for_a_unit(privacy.Gaussian(noise, steps, relation), rows)
    twice = 2 if relation == REPLACE else 1
    with mp.workdps(40):
        exact = gaussian_epsilon_exact(rows * twice * mp.sqrt(steps) / mp.mpf(noise), mp.mpf(1e-5))
    lower, upper = privacy.epsilon_bounds(person, delta=1e-5)
    assert lower <= exact <= upper < exact * (1 + 1e-9)


def test_laplace_noise_counts_for_its_share():
    for relation in (privacy.ADD_OR_REMOVE_ONE, REPLACE):
        person = privacy.for_a_unit(privacy.Laplace(24.0, 7, relation=relation), 3)
        own = privacy.epsilon(privacy.Laplace(8.0, 7, relation=relation), delta=1e-6)
        assert privacy.epsilon(person, delta=1e-6) == pytest.approx(own, rel=1e-6)


def density(rate, rows, noise, x, sign):
    """Of the sum of what is drawn of the rows, each of which moves it by 1."""
    total = mp.mpf(0)
    for j in range(rows + 1):
        weight = mp.binomial(rows, j) * mp.mpf(rate) ** j * (1 - mp.mpf(rate)) ** (rows - j)
        total += weight * mp.npdf(x, sign * j, noise)
    return total


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize(
    ("rate", "rows", "noise", "epsilon"),
    [(0.1, 2, 1.0, 0.5), (0.01, 5, 0.6, 2.0), (0.5, 3, 3.0, 0.2), (0.2, 16, 4.0, 1.0)],
)
def test_one_step_is_the_integral_of_its_densities(rate, rows, noise, epsilon, replace):
    relation = REPLACE if replace else privacy.ADD_OR_REMOVE_ONE
    mechanism = privacy.SampledGaussian(rate, noise, 1, relation)
    lower, upper = privacy.delta_bounds(privacy.for_a_unit(mechanism, rows), epsilon=epsilon)
    x = np.linspace(-10 * noise - rows, 10 * noise + 2 * rows, 400_001)
    weights = binom.pmf(range(rows + 1), rows, rate)
    p = sum(w * norm.pdf(x, j, noise) for j, w in enumerate(weights))
    q = sum(w * norm.pdf(x, -j if replace else 0, noise) for j, w in enumerate(weights))
    excess = [np.maximum(a - math.exp(epsilon) * b, 0).sum() for a, b in ((p, q), (q, p))]
    exact = max(excess) * (x[1] - x[0])
    assert lower <= exact * (1 + 1e-3)
    assert exact * (1 - 1e-6) <= upper <= exact * 1.01 + 1e-12


def theirs(noise, means, weights, steps, delta, grid=2e-3):
    accountant = PLDAccountant(value_discretization_interval=grid)
    accountant.compose(MixtureOfGaussiansDpEvent(noise, means, weights), steps)
    return accountant.get_epsilon(delta)


@pytest.mark.parametrize(("rate", "noise", "steps", "rows"), [
    (0.01, 1.1, 1000, 5),
    (0.05, 3.0, 200, 3),
    (0.3, 20.0, 4, 8),
])  # fmt: skip
def test_another_accountant_says_the_same_of_sampled_rows(rate, noise, steps, rows):
    person = privacy.for_a_unit(privacy.SampledGaussian(rate, noise, steps), rows)
    lower, upper = privacy.epsilon_bounds(person, delta=1e-5)
    weights = binom.pmf(range(rows + 1), rows, rate)
    other = theirs(noise, list(range(rows + 1)), list(weights / weights.sum()), steps, 1e-5)
    assert 0.995 * upper < lower <= other * 1.001
    assert upper <= other * 1.001


def test_another_accountant_says_the_same_of_private_state():
    lower, upper = privacy.epsilon_bounds(privacy.for_a_unit(STATE, 4), delta=1e-5)
    means = [1.98 * j + 0.02 * (4 - j) for j in range(5)]
    weights = binom.pmf(range(5), 4, 0.02)
    other = theirs(2.0, means, list(weights / weights.sum()), 30, 1e-5, 0.02)
    assert 0.99 * upper < lower <= other
    assert 0.95 * other < upper < other * 1.001


@few(3, 8)
@given(
    rate=st.sampled_from([0.02, 0.3, 0.9]),
    noise=st.floats(0.8, 6.0),
    rows=st.integers(2, 6),
    steps=st.integers(1, 3),
    replace=st.booleans(),
)
def test_an_attack_that_bins_outputs_stays_below(rate, noise, rows, steps, replace):
    relation = REPLACE if replace else privacy.ADD_OR_REMOVE_ONE
    ends = np.linspace(-6 * noise - rows, 6 * noise + 2 * rows, 60)

    def masses(mean):
        return np.diff(np.concatenate(([0.0], norm.cdf(ends, mean, noise), [1.0])))

    weights = binom.pmf(range(rows + 1), rows, rate)
    p = sum(w * masses(j) for j, w in enumerate(weights))
    q = sum(w * masses(-j if replace else 0) for j, w in enumerate(weights))
    attack = compose([Pair(p, q)] * steps)
    person = privacy.for_a_unit(privacy.SampledGaussian(rate, noise, steps, relation), rows)
    for direction in (attack, attack.reverse):
        for epsilon in (0.0, 0.3, 1.5):
            assert direction.delta(epsilon) <= privacy.delta(person, epsilon=epsilon) + 1e-12


def test_losses_of_many_rows_are_as_exact_as_said():
    x = np.linspace(-30.0, 60.0, 13)
    for rows, rate, mean in ((5, 0.01, 0.9), (16, 0.3, 1e-7), (64, 0.02, 0.4)):
        step = NormalStep(rate, mean, rows=rows)
        for at, loss in zip(x.tolist(), step.loss(x).tolist(), strict=True):
            with mp.workdps(50):
                ratio = density(rate, rows, 1 / mp.mpf(mean), at / mp.mpf(mean), 1)
                exact = mp.log(ratio / mp.npdf(at / mp.mpf(mean), 0, 1 / mp.mpf(mean)))
            reach = rows * mean * (abs(at) + rows * mean)
            assert abs(loss - exact) <= 8 * (rows + 10) * 2.0**-53 * reach


# -- group privacy of a curve ---------------------------------------------------------------------


@pytest.mark.parametrize("rows", [2, 5, 16])
@pytest.mark.parametrize("mu", [1e-3, 0.1, 0.5, 1.4])
def test_group_privacy_is_nearly_exact_for_gaussian_curves(mu, rows):
    exact = float(gaussian_epsilon_exact(rows * mu, 1e-5))
    found = persons.rows_epsilon(lambda epsilon: gaussian_delta(mu, epsilon), rows, 1e-5)
    assert exact <= found <= 1.12 * exact + 0.02 * mu
    at = persons.rows_delta(lambda epsilon: gaussian_delta(mu, epsilon), rows, exact)
    assert 1e-5 * (1 - 1e-6) <= at <= 3e-4


@pytest.mark.parametrize("rows", [2, 7])
def test_group_privacy_is_no_worse_than_equal_shares(rows):
    def curve(epsilon):
        return privacy.delta(FIXED, epsilon=epsilon)

    for epsilon in (0.5, 6.0):
        one = epsilon / rows
        even = curve(one) * math.expm1(epsilon) / math.expm1(one)
        assert persons.rows_delta(curve, rows, epsilon) <= min(1.0, even * (1 + 1e-6))


@pytest.mark.parametrize(("rows", "noise"), [(2, 1.0), (5, 4.0)])
def test_rows_of_a_fixed_batch_lose_what_they_lose_at_least(rows, noise):
    """Rows that all change from -1 to 1 in one step, others still: drawn without replacement."""
    batch, records = 10, 50
    weights = hypergeom.pmf(range(rows + 1), records, rows, batch)
    x = np.linspace(-12 * noise, 12 * noise, 40001)

    def density_of(sign):
        return sum(w * norm.pdf(x, sign * j, noise) for j, w in enumerate(weights))

    mechanism = privacy.FixedBatchGaussian(batch, records, noise, 1)
    for epsilon in (0.1, 3.0):
        excess = np.maximum(density_of(1) - math.exp(epsilon) * density_of(-1), 0)
        least = float(excess.sum() * (x[1] - x[0]))
        found = privacy.delta(privacy.for_a_unit(mechanism, rows), epsilon=epsilon)
        assert least <= found + 1e-9


def test_rows_times_epsilon_is_no_bound():
    """Delta grows with the rows as well: an observer of linear losses does better than that."""
    for mechanism in (GAUSSIAN, SAMPLED):
        one = privacy.epsilon(mechanism, delta=1e-5)
        assert (
            privacy.epsilon_bounds(privacy.for_a_unit(mechanism, 5), delta=1e-5)[0] > 1.2 * 5 * one
        )


# -- several nodes --------------------------------------------------------------------------------

NODES = st.lists(
    st.builds(privacy.Gaussian, st.sampled_from([2.0, 3.0, 5.0, 7.0]), st.sampled_from([1, 4]))
    | st.builds(privacy.Laplace, st.sampled_from([5.0, 9.0]), st.just(2)),
    min_size=1,
    max_size=6,
)


@few(12, 40)
@given(parts=NODES, nodes=st.integers(1, 6), rows=st.integers(1, 3))
def test_the_worst_nodes_are_the_worst_of_all(parts, nodes, rows):
    each = [privacy.for_a_unit(part, rows) for part in parts]
    found = privacy.epsilon(privacy.across_nodes(each, nodes), delta=1e-5)
    tried = [
        privacy.epsilon(privacy.for_a_unit(privacy.Composed(chosen), rows), delta=1e-5)
        for chosen in combinations(parts, min(nodes, len(parts)))
    ]
    assert found == pytest.approx(max(tried), rel=1e-6)
    if nodes > 1:
        fewer = privacy.epsilon(privacy.across_nodes(each, nodes - 1), delta=1e-5)
        assert fewer <= found * (1 + 1e-6)


def test_different_rates_and_schedules_are_tried_or_ordered():
    parts = [privacy.SampledGaussian(q, z, 20) for q, z in ((0.1, 2.0), (0.05, 1.5), (0.04, 1.6))]
    person = privacy.across_nodes(parts, 2)
    # The third is covered by the second: a person at it is at the second as well.
    assert len(persons.worst_nodes(person)) == 2
    tried = [privacy.epsilon(privacy.Composed(two), delta=1e-5) for two in combinations(parts, 2)]
    assert privacy.epsilon(person, delta=1e-5) == pytest.approx(max(tried), rel=1e-3)


@pytest.mark.slow
def test_nodes_in_one_order_are_one_choice():
    parts = [privacy.SampledGaussian(0.01, 1 + k / 100, 50) for k in range(200)]
    (worst,) = persons.worst_nodes(privacy.across_nodes(parts, 3))
    assert worst.parts == (privacy.Composed(parts[:3]),)
    (worst,) = persons.worst_nodes(privacy.across_nodes([GAUSSIAN] * 1000, 7))
    assert worst.parts == (privacy.Composed([privacy.compose(GAUSSIAN, 7)]),)


def test_too_many_choices_are_refused():
    parts = [privacy.SampledGaussian(0.01 * (k + 1), 1 + k / 10, 5) for k in range(30)]
    with pytest.raises(InputError) as caught:
        privacy.epsilon(privacy.across_nodes(parts, 3), delta=1e-5)
    assert caught.value.where == "nodes"
    assert "300" in caught.value.expected


# -- as data --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", KINDS, ids=kind)
def test_persons_are_statements(mechanism):
    person = privacy.for_a_unit(mechanism, 3)
    read = privacy.from_statement(json.loads(json.dumps(privacy.to_statement(person))))
    assert read == person
    assert hash(read) == hash(person)
    assert "3 rows" in person.describe()
    assert "promised" in person.explain(str)


def test_curves_and_calibration():
    person = privacy.across_nodes([privacy.for_a_unit(SAMPLED, 5)] * 3, 2)
    first = privacy.across_nodes(
        [privacy.for_a_unit(privacy.SampledGaussian(0.01, 1.1, 100), 5)] * 3, 2
    )
    curve = privacy.epsilon_curve(person, [0, 100, 1000], delta=1e-5)
    assert curve[0] == 0
    assert curve[1:] == (privacy.epsilon(first, delta=1e-5), privacy.epsilon(person, delta=1e-5))
    noise = privacy.calibrate(
        lambda z: privacy.for_a_unit(privacy.SampledGaussian(0.01, z, 100), 5),
        epsilon=1.0,
        delta=1e-5,
    )
    lattice = privacy.for_a_unit(privacy.SampledGaussian(0.01, noise, 100, coordinates=1000), 5)
    assert lattice.released_values() == 100_000
    assert 0.99 < privacy.epsilon(lattice, delta=1e-5) < 1.01


CLIENT = privacy.Gaussian(1.0, unit="client")
SUMS = privacy.Gaussian(1.0, trust_model="secure-sum, 1 colluding")
REFUSED = {
    "rows": lambda: privacy.for_a_unit(GAUSSIAN, 257),
    "rows, too": lambda: privacy.for_a_unit(GAUSSIAN, 0),
    "nodes": lambda: privacy.across_nodes([GAUSSIAN], 1.5),  # type: ignore[arg-type]
    "parts": lambda: privacy.across_nodes([], 1),
    "parts, too": lambda: privacy.Person([privacy.Person([GAUSSIAN])]),
    "parts, of one kind": lambda: privacy.across_nodes([GAUSSIAN, FIXED], 2),
    "parts, drawn together": lambda: privacy.across_nodes([KINDS[11]] * 2, 2),
    "parts, chosen together": lambda: privacy.across_nodes([KINDS[-1]] * 2, 2),
    "unit": lambda: privacy.for_a_unit(CLIENT, 2),
    "trust_model": lambda: privacy.across_nodes([SUMS, SUMS], 2),
    "mechanisms": lambda: privacy.across_nodes([privacy.across_nodes([GAUSSIAN] * 2, 2)], 1),
    "mechanism": lambda: privacy.epsilon(
        privacy.Composed([privacy.for_a_unit(GAUSSIAN, 2), GAUSSIAN]), delta=1e-5
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_proved_is_refused(name):
    with pytest.raises(InputError) as caught:
        REFUSED[name]()
    assert caught.value.where == name.partition(",")[0]
