"""FedSPD-DP: its formulas, and what its private state reveals, against runs of the algorithm."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtr

from tacit import privacy
from tacit.errors import InputError
from tacit.privacy.accounting.gaussian import gaussian_delta
from tacit.privacy.published import (
    FEDSPD_DP,
    FedspdRun,
    fedspd_round_epsilon,
    fedspd_sensitivity,
    fedspd_step_parameter,
)
from tacit.privacy.published.fedspd import (
    even_rounds,
    fedspd_lower,
    fedspd_responses,
    fedspd_upper,
    fedspd_upper_delta,
    repaired_multiplier,
)


def adult(total, chosen):
    """The paper's setting at a total budget."""
    round_epsilon = fedspd_round_epsilon(
        total=total, records=325, batch=10, local_steps=5, participation=chosen / 100, rounds=100
    )
    return FedspdRun(325, 10, 5, 100, chosen, 100, round_epsilon, 1e-4, 20.0, 162)


SMALL = FedspdRun(
    records=12,
    batch=2,
    local_steps=2,
    clients=4,
    chosen=2,
    rounds=6,
    round_epsilon=0.8,
    delta=1e-3,
    penalty=3.0,
    dimension=4,
)


@pytest.mark.parametrize("total", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("chosen", [10, 20, 100])
def test_a_total_budget_and_a_budget_a_round_are_inverse(total, chosen):
    assert FEDSPD_DP.epsilon(adult(total, chosen)) == pytest.approx(total, rel=1e-12)


def test_formulas_by_hand():
    run = adult(1.0, 20)
    assert run.rate == pytest.approx(50 / 325)
    again = replace(run, drawing="with-replacement")
    assert again.rate == pytest.approx(1 - (324 / 325) ** 50, rel=1e-12)
    assert FEDSPD_DP.epsilon(again) < FEDSPD_DP.epsilon(run)
    assert fedspd_sensitivity(run, 30.0) == pytest.approx(4 * 5 / (4 * 50))
    assert fedspd_sensitivity(replace(run, local_steps=1), 30.0) == pytest.approx(4 / 50)
    noise = 16 * 20 * 162 * math.log(1.25e4) / (16 * run.round_epsilon**2)
    gamma = 2 * math.sqrt(5 * 0.2 * (3 + 2 / 10 + noise)) * math.sqrt(7)
    assert fedspd_step_parameter(run, 7) == pytest.approx(gamma, rel=1e-12)
    one = 16 * 20 * 162 * math.log(1.25e4) / run.round_epsilon**2
    single = 2 * math.sqrt(0.2 * (3 + 2 / 10 + one))
    assert fedspd_step_parameter(replace(run, local_steps=1), 1) == pytest.approx(single)
    whole = replace(run, records=50)
    assert FEDSPD_DP.epsilon(whole) == math.inf


def test_the_papers_own_setting_breaks_its_condition_in_round_one():
    theorem, gaussian, state = FEDSPD_DP.conditions(adult(1.0, 20))
    assert fedspd_step_parameter(adult(1.0, 20), 1) > 20**2
    assert (theorem.holds, gaussian.holds, state.holds) == (False, True, False)
    loud = replace(adult(1.0, 20), round_epsilon=30.0, dimension=1, penalty=40.0)
    assert [condition.holds for condition in FEDSPD_DP.conditions(loud)] == [True, False, False]


def test_bad_numbers_are_refused():
    for field, value in [
        ("records", 0),
        ("round_epsilon", math.inf),
        ("delta", 1.0),
        ("batch", 7),
        ("chosen", 5),
        ("drawing", "poisson"),
    ]:
        with pytest.raises(InputError):
            replace(SMALL, **{field: value})
    with pytest.raises(InputError, match="active round"):
        even_rounds(replace(SMALL, chosen=1, clients=100))


def test_even_rounds_end_with_the_last():
    assert even_rounds(adult(1.0, 20)) == tuple(range(5, 101, 5))
    assert even_rounds(adult(1.0, 100)) == tuple(range(1, 101))


def messages(run, active, gradients, broadcast, curvature):
    """The client's messages before noise, as the paper's three lines give them.

    Args:
        gradients: constant part of each mini-batch gradient, `[rounds, Q, d]`.
        broadcast: x_0 of each round, `[rounds, d]`.
        curvature: of each coordinate: a mini-batch gradient is that times x, plus the constant.
    """
    x, dual = np.zeros(gradients.shape[2]), np.zeros(gradients.shape[2])
    sent = []
    for index, number in enumerate(active):
        gamma, inner = fedspd_step_parameter(run, number), []
        for gradient in gradients[index]:
            full = curvature * x + gradient
            x = (gamma * x + run.penalty * broadcast[index] + dual - full) / (gamma + run.penalty)
            inner.append(x)
        mean = np.mean(inner, axis=0)
        dual = dual + run.penalty * (broadcast[index] - mean)
        sent.append(mean - dual / run.penalty)
    return np.array(sent)


def neighbours(seed, draws, curvature):
    """Norms of the differences of two neighbouring runs over their noise, and the gradients."""
    rng = np.random.default_rng(seed)
    active = (2, 3, 5, 6)
    shared = rng.normal(size=(4, 2, 3))
    other = shared.copy()
    direction = np.array([1.0, 0.0, 0.0])
    for index, step in enumerate(draws):
        if step is not None:
            other[index, step] += direction
    broadcast = rng.normal(size=(4, 3))
    bend = np.full(3, curvature)
    gap = messages(SMALL, active, other, broadcast, bend)
    gap = gap - messages(SMALL, active, shared, broadcast, bend)
    noise = [
        SMALL.noise_multiplier * fedspd_sensitivity(SMALL, fedspd_step_parameter(SMALL, t))
        for t in active
    ]
    return gap / np.array(noise)[:, None], [shared, other]


@pytest.mark.parametrize("draws", [[0, None, None, None], [None, 1, 0, None], [1, 1, None, 0]])
def test_responses_are_the_difference_of_two_runs(draws):
    """Linear losses: the shift is the sum of the responses of the draws, up to its sign."""
    gap, _ = neighbours(3, draws, 0.0)
    responses = fedspd_responses(SMALL, (2, 3, 5, 6), norms=False)
    rows = [2 * index + step for index, step in enumerate(draws) if step is not None]
    assert np.abs(gap[:, 0]) == pytest.approx(np.abs(responses[rows].sum(axis=0)), rel=1e-9)
    assert gap[:, 1:] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("curvature", [0.0, 0.3, 1.0, 1.9])
@pytest.mark.parametrize("draws", [[0, None, 1, None], [1, 1, 1, 1]])
def test_norms_bound_two_runs_with_smooth_convex_losses(draws, curvature):
    """Quadratic losses with L up to 2 gamma."""
    gap, _ = neighbours(5, draws, curvature * fedspd_step_parameter(SMALL, 2))
    norms = fedspd_responses(SMALL, (2, 3, 5, 6), norms=True)
    rows = [2 * index + step for index, step in enumerate(draws) if step is not None]
    assert (np.linalg.norm(gap, axis=1) <= norms[rows].sum(axis=0) * (1 + 1e-12)).all()


def test_one_round_from_equal_state_is_above_the_published_sensitivity():
    """(4 G / (Q rho)) sum_r (1 - theta^r), about 2.4 times the published one for large gamma."""
    run = adult(1.0, 20)
    gamma = fedspd_step_parameter(run, 1)
    theta = gamma / (gamma + 20)
    worst = 4 / (5 * 20) * sum(1 - theta**r for r in range(1, 6))
    response = fedspd_responses(run, (1,), norms=True)[:, 0].sum() * 2
    over_noise = worst / (run.noise_multiplier * fedspd_sensitivity(run, gamma))
    assert response == pytest.approx(over_noise, rel=1e-9)
    assert worst / fedspd_sensitivity(run, gamma) == pytest.approx(2.4, abs=0.1)


def enumerated(terms, chance):
    """The sum of a term for every round that draws the record, over all patterns."""
    rounds, local = terms.shape
    sums, chances = [], []
    for pattern in itertools.product(range(local + 1), repeat=rounds):
        drawn = [(index, step - 1) for index, step in enumerate(pattern) if step]
        sums.append(sum(terms[pair] for pair in drawn))
        chances.append((chance / local) ** len(drawn) * (1 - chance) ** (rounds - len(drawn)))
    return np.array(sums), np.array(chances)


@pytest.mark.parametrize("delta", [1e-3, 1e-2, 0.1])
@pytest.mark.parametrize("drawn_norm", [1.0, 4.0])
def test_lower_bound_is_that_of_all_patterns(delta, drawn_norm):
    active = (2, 3, 5, 6)
    responses = fedspd_responses(SMALL, active, norms=False)
    weights = responses.sum(axis=0) / np.linalg.norm(responses.sum(axis=0))
    sums, chances = enumerated((responses @ weights).reshape(4, 2) * drawn_norm, 4 / 12)
    assert chances.sum() == pytest.approx(1)
    best = 0.0
    for tau in np.linspace(0, sums.max() / 2 + 6, 4001):
        p, q = chances @ ndtr(sums / 2 - tau), chances @ ndtr(-sums / 2 - tau)
        if p > delta:
            best = max(best, math.log((p - delta) / q))
    outcome = fedspd_lower(SMALL, active, delta, drawn_norm=drawn_norm)
    assert best * 0.99 - 1e-3 <= outcome <= best * (1 + 1e-6) + 1e-9
    assert outcome <= fedspd_upper(SMALL, active, delta, drawn_norm=drawn_norm)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0, 10.0])
def test_upper_bound_covers_the_mean_over_all_patterns(epsilon):
    active = (2, 3, 5, 6)
    responses = fedspd_responses(SMALL, active, norms=True)
    norms = np.linalg.norm(responses, axis=1).reshape(4, 2)
    sums, chances = enumerated(norms, 4 / 12)
    bound = sum(
        chance * gaussian_delta(mu, epsilon)
        for mu, chance in zip(sums, chances, strict=True)
        if mu > 0
    )
    outcome = fedspd_upper_delta(SMALL, active, epsilon, drawn_norm=1.0)
    assert bound <= outcome <= bound * 1.01 + 1e-12
    # The exact bound, with the shifts themselves, is below it.
    linear = fedspd_responses(SMALL, active, norms=False).reshape(4, 2, 4)
    exact = 0.0
    for pattern in itertools.product(range(3), repeat=4):
        drawn = [(index, step - 1) for index, step in enumerate(pattern) if step]
        chance = (4 / 24) ** len(drawn) * (1 - 4 / 12) ** (4 - len(drawn))
        if drawn:
            mu = float(np.linalg.norm(sum(linear[pair] for pair in drawn)))
            exact += chance * gaussian_delta(mu, epsilon)
    assert exact <= outcome


def test_upper_epsilon_inverts_upper_delta():
    active = even_rounds(SMALL)
    epsilon = fedspd_upper(SMALL, active, 1e-3, drawn_norm=1.0)
    assert fedspd_upper_delta(SMALL, active, epsilon, drawn_norm=1.0) <= 1e-3
    assert fedspd_upper_delta(SMALL, active, epsilon * (1 - 1e-5), drawn_norm=1.0) > 1e-3
    assert fedspd_upper(SMALL, active, 0.999, drawn_norm=1.0) == 0.0


def test_the_claim_does_not_hold_where_every_client_is_active():
    """Total epsilon 1 and K = N: at least 3.4 with the reading kindest to the paper."""
    run = adult(1.0, 100)
    assert fedspd_lower(run, even_rounds(run), 1e-4, drawn_norm=0.2) > 3.3
    assert fedspd_lower(run, even_rounds(run), 1e-4, drawn_norm=2.0) > 70
    few = adult(1.0, 20)
    assert fedspd_lower(few, even_rounds(few), 1e-4, drawn_norm=2.0) > 15


def test_the_repair_is_over_noised():
    """The published noise then certifies 0.0096 for a claimed 1."""
    run = adult(1.0, 20)
    mechanism = privacy.FixedBatchGaussian(50, 325, repaired_multiplier(run), 20)
    assert privacy.epsilon(mechanism, delta=1e-4) == pytest.approx(0.0096, abs=1e-4)
