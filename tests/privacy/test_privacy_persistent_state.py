"""A record that private state carries to all later steps: against enumeration and runs."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit import privacy
from tacit.errors import InputError
from tacit.privacy.accounting.gaussian import gaussian_delta, gaussian_epsilon
from tacit.privacy.accounting.private_state import (
    ClientRound,
    carried_norms,
    energy_norms,
    persistent_delta,
    persistent_epsilon,
)
from tacit.privacy.ledger.ledger import StepRun
from tacit.privacy.ledger.spent import released
from tacit.privacy.mechanisms.base import REPLACE_ONE
from tacit.privacy.mechanisms.composed import Composed, compose
from tacit.privacy.mechanisms.serialise import from_statement, to_statement
from tacit.privacy.mechanisms.steps import Gaussian, PersistentState
from tacit.privacy.published import FedspdRun, fedspd_sensitivity, fedspd_step_parameter
from tacit.privacy.published.fedspd import fedspd_responses


def over_all_patterns(rate, multipliers, epsilon, double):
    """E over every pattern of draws of the Gaussian profile at the sum of their shifts."""
    total = 0.0
    for pattern in itertools.product((False, True), repeat=len(multipliers)):
        draws = sum(pattern)
        chance = rate**draws * (1 - rate) ** (len(pattern) - draws)
        mu = sum(double / z for z, drawn in zip(multipliers, pattern, strict=True) if drawn)
        total += chance * gaussian_delta(mu, epsilon)
    return total


@given(
    rate=st.floats(0.01, 0.99),
    multipliers=st.lists(st.floats(0.3, 50.0), min_size=1, max_size=7),
    epsilon=st.floats(0.0, 8.0),
    relation=st.sampled_from([privacy.ADD_OR_REMOVE_ONE, REPLACE_ONE]),
)
def test_delta_is_the_mean_over_all_patterns(rate, multipliers, epsilon, relation):
    mechanism = PersistentState(rate, multipliers, relation=relation)
    double = 2.0 if relation == REPLACE_ONE else 1.0
    exact = over_all_patterns(rate, multipliers, epsilon, double)
    bound = persistent_delta(mechanism, epsilon)
    assert exact * (1 - 1e-9) <= bound
    # A lattice of 1/8192 of the largest shift, for each of up to 7 draws.
    wider = [1 / (1 / z + 1 / min(multipliers) / 8000) for z in multipliers]
    assert bound <= over_all_patterns(rate, wider, epsilon, double) * (1 + 1e-6) + 1e-15


def test_epsilon_inverts_delta_and_follows_noise_steps_and_relation():
    mechanism = PersistentState(0.2, [3.0, 5.0, 8.0])
    epsilon = privacy.epsilon(mechanism, delta=1e-4)
    assert persistent_delta(mechanism, epsilon) <= 1e-4
    assert persistent_delta(mechanism, epsilon * (1 - 1e-6)) > 1e-4
    assert privacy.epsilon(PersistentState(0.2, [6.0, 10.0, 16.0]), delta=1e-4) < epsilon
    assert privacy.epsilon(PersistentState(0.2, [3.0, 5.0, 8.0, 8.0]), delta=1e-4) > epsilon
    assert privacy.epsilon(PersistentState(0.1, [3.0, 5.0, 8.0]), delta=1e-4) < epsilon
    replaced = PersistentState(0.2, [6.0, 10.0, 16.0], relation=REPLACE_ONE)
    assert privacy.epsilon(replaced, delta=1e-4) == pytest.approx(epsilon, rel=1e-9)
    low, high = privacy.epsilon_bounds(mechanism, delta=1e-4)
    assert (low, high) == (0.0, epsilon)
    assert privacy.delta_bounds(mechanism, epsilon=1.0) == (0.0, persistent_delta(mechanism, 1.0))
    curve = privacy.epsilon_curve(mechanism, [0, 1, 3], delta=1e-4)
    assert curve[0] == 0.0
    assert curve[1] < curve[2] == epsilon


def test_every_record_every_time_is_one_gaussian():
    mechanism = PersistentState(1.0, [2.0, 4.0, 4.0])
    assert persistent_epsilon(mechanism, 1e-5) == pytest.approx(
        gaussian_epsilon(1.0, 1e-5), rel=1e-8
    )
    assert mechanism.rate == 1.0
    once = PersistentState(0.3, 2.0)
    exact = 0.3 * gaussian_delta(0.5, 0.4)
    assert persistent_delta(once, 0.4) == pytest.approx(exact, rel=1e-7)


def test_next_to_no_noise_protects_nothing():
    assert persistent_epsilon(PersistentState(0.1, [1e-200, 1.0]), 1e-5) == math.inf
    assert persistent_delta(PersistentState(0.1, [1e-200, 1.0]), 5.0) == 1.0


def test_silent_steps_cost_next_to_nothing():
    spoken = [4.0, 5.0, 7.0]
    plain = PersistentState(0.3, spoken)
    silent = PersistentState(0.3, [4.0, 1e12, 5.0, 1e12, 1e12, 7.0])
    for epsilon in (0.0, 0.1, 1.0):
        low, high = persistent_delta(plain, epsilon), persistent_delta(silent, epsilon)
        assert low <= high <= low + 1e-11


def test_many_steps_and_a_simulation_of_the_hits():
    """The mean over draws, drawn at random, lies within its standard error of the bound."""
    multipliers = np.geomspace(4.0, 40.0, 300)
    mechanism = PersistentState(0.02, multipliers.tolist())
    draw = np.random.default_rng(0)
    draws = draw.random((4_000, 300)) < 0.02
    deltas = np.array([gaussian_delta(mu, 1.5) for mu in (draws / multipliers).sum(axis=1)])
    error = deltas.std() / math.sqrt(len(deltas))
    assert persistent_delta(mechanism, 1.5) == pytest.approx(deltas.mean(), abs=4 * error)


def test_the_bound_covers_runs_that_carry_a_record():
    """A state that remembers, s <- a s + its draw, y = s + noise: the best threshold test."""
    rate, keep, noise, steps, epsilon = 0.3, 0.8, 1.5, 6, 1.0
    rows = [
        [keep ** (k - j) / noise if k >= j else 0.0 for k in range(steps)] for j in range(steps)
    ]
    mechanism = PersistentState(rate, [1 / float(np.linalg.norm(row)) for row in rows])
    responses, weights = np.array(rows), np.ones(steps) / math.sqrt(steps)
    pattern = np.array(list(itertools.product((0, 1), repeat=steps)))
    chances = (rate**pattern * (1 - rate) ** (1 - pattern)).prod(axis=1)
    means = pattern @ responses @ weights
    best = 0.0
    for tau in np.linspace(-2, 8, 201):
        p = float(chances @ [0.5 * math.erfc((tau - m) / math.sqrt(2)) for m in means])
        q = 0.5 * math.erfc(tau / math.sqrt(2))
        best = max(best, p - math.exp(epsilon) * q)
    assert 0.01 < best <= persistent_delta(mechanism, epsilon)


def test_statements_and_composition_keep_it():
    mechanism = PersistentState(0.1, [2.0, 2.0, 3.0], trust_model="server", coordinates=7)
    assert from_statement(to_statement(mechanism)) == mechanism
    assert to_statement(mechanism)["kind"] == "carried-state"
    twice = compose(mechanism, 2)
    assert twice == Composed([mechanism, mechanism]).parts[0]
    assert privacy.epsilon(twice, delta=1e-5) > privacy.epsilon(mechanism, delta=1e-5)
    other = Composed([mechanism, Gaussian(2.0, trust_model="server")])
    with pytest.raises(InputError, match="carried state"):
        privacy.epsilon(other, delta=1e-5)
    for rate in (0.0, 1.5, True):
        with pytest.raises(InputError, match="sample_rate"):
            PersistentState(rate, 1.0)


def test_a_repeated_step_divides_every_multiplier():
    """After a kill, later messages come twice: squares of what they show add up."""
    mechanism = PersistentState(0.1, [2.0, 3.0, 4.0, 5.0])
    once = released(mechanism, [StepRun(0, 3, 1)])
    assert once == PersistentState(0.1, [2.0, 3.0, 4.0])
    again = released(mechanism, [StepRun(0, 1, 1), StepRun(1, 3, 2), StepRun(3, 4, 1)])
    assert isinstance(again, PersistentState)
    root = math.sqrt(2)
    expected = sorted(z / root for z in (2.0, 3.0, 4.0, 3.0, 4.0, 5.0))
    assert sorted(again.noise_multiplier) == pytest.approx(expected)  # type: ignore[arg-type]


PRINTED = FedspdRun(
    records=60,
    batch=4,
    local_steps=3,
    clients=10,
    chosen=4,
    rounds=30,
    round_epsilon=0.7,
    delta=1e-3,
    penalty=2.0,
    dimension=3,
)
ACTIVE = (1, 4, 5, 9, 17, 30)


def printed_rounds(kept=1.0):
    gammas = [fedspd_step_parameter(PRINTED, number) for number in ACTIVE]
    return [
        ClientRound(
            gamma, kept * gamma, PRINTED.noise_multiplier * fedspd_sensitivity(PRINTED, gamma)
        )
        for gamma in gammas
    ]


def test_norms_are_those_of_every_response():
    responses = np.linalg.norm(fedspd_responses(PRINTED, ACTIVE, norms=True), axis=1).reshape(6, 3)
    one = [[float(r == step) for r in range(3)] for step in range(3)]
    norms = carried_norms(printed_rounds(), PRINTED.penalty, one, 0.0)
    assert norms == pytest.approx(responses.max(axis=1), rel=1e-8)
    single = carried_norms(printed_rounds(), PRINTED.penalty, [one[1]], 0.0)
    assert single == pytest.approx(responses[:, 1], rel=1e-8)
    together = carried_norms(printed_rounds(), PRINTED.penalty, [[1.0, 1.0, 1.0]], 0.0)
    rows = fedspd_responses(PRINTED, ACTIVE, norms=True).reshape(6, 3, 6).sum(axis=1)
    assert together == pytest.approx(np.linalg.norm(rows, axis=1), rel=1e-8)


def test_a_lasting_disturbance_is_a_hit_at_every_later_step():
    rows = fedspd_responses(PRINTED, ACTIVE, norms=True)
    lasting = 2.5
    norms = carried_norms(printed_rounds(), PRINTED.penalty, [[1.0, lasting, lasting]], lasting)
    for index in range(6):
        sizes = np.zeros(18)
        sizes[3 * index] = 1.0
        sizes[3 * index + 1 :] = lasting
        assert norms[index] == pytest.approx(np.linalg.norm(sizes @ rows), rel=1e-8)


def test_copies_of_a_message_add_squares_and_overflow_is_infinite():
    one = [[1.0, 0.0, 0.0]]
    plain = carried_norms(printed_rounds(), PRINTED.penalty, one, 0.0)
    twice = [
        ClientRound(each.gamma, each.kept, each.noise_std, copies=2) for each in printed_rounds()
    ]
    doubled = carried_norms(twice, PRINTED.penalty, one, 0.0)
    assert doubled == pytest.approx([math.sqrt(2) * norm for norm in plain], rel=1e-12)
    steep = carried_norms(printed_rounds(kept=1e30), PRINTED.penalty, one, 0.0)
    assert steep[0] == math.inf
    assert math.isfinite(steep[-1])
    assert carried_norms([], 1.0, one, 0.0) == []


def difference_of_two_runs(draw, rounds, start, local, convex):
    """The norm over noise of two runs that differ in one draw, with losses of L up to 2 gamma.

    Quadratic losses of three coordinates, soft thresholding or a box; gradients differ by norm 1.
    """
    rho, size = PRINTED.penalty, 3
    gap = draw.normal(size=size)
    gap /= np.linalg.norm(gap)
    x, dual = np.zeros((2, size)), np.zeros((2, size))
    threshold, drawn_step, shifts = draw.choice([0.0, 0.2]), draw.integers(local), []
    for index, each in enumerate(rounds):
        server = draw.normal(size=size)
        total = np.zeros((2, size))
        for r in range(local):
            axes = np.linalg.qr(draw.normal(size=(size, size)))[0]
            bends = draw.choice([0.0, 0.5, 2.0], size) * rounds[0].gamma
            hessian = axes @ np.diag(bends if convex else -4 * bends) @ axes.T
            g = x @ hessian + draw.normal(size=size)
            if index == start and r == drawn_step:
                g[0] += gap
            x = (each.gamma * x + rho * server + dual - g) / (each.gamma + rho)
            x = np.sign(x) * np.maximum(np.abs(x) - threshold, 0)
            total += x / local
        dual = dual + rho * (server - total)
        sent = total - dual / rho
        shifts.append((sent[0] - sent[1]) / each.noise_std)
    return float(np.linalg.norm(shifts))


@pytest.mark.parametrize("local", [1, 3])
def test_energy_bounds_two_runs_with_smooth_convex_losses(local):
    """And so do norms, by much more; over 12 rounds, with a growing step parameter."""
    gammas = [4.0 * math.sqrt(t) for t in range(1, 13)]
    rounds = [ClientRound(gamma, gamma, 0.5 / (gamma + PRINTED.penalty)) for gamma in gammas]
    one = [[float(r == step) for r in range(local)] for step in range(local)]
    energy = energy_norms(rounds, PRINTED.penalty, one)
    norms = carried_norms(rounds, PRINTED.penalty, one, 0.0)
    assert energy[0] < norms[0] / 8
    assert energy[-1] == pytest.approx(norms[-1])
    draw = np.random.default_rng(3)
    closest = 0.0
    for trial in range(60):
        start = trial % 12
        distance = difference_of_two_runs(draw, rounds, start, local, convex=True)
        assert distance <= min(energy[start], norms[start]) * (1 + 1e-9)
        closest = max(closest, distance / energy[start])
    assert closest > 0.3
    concave = [difference_of_two_runs(draw, rounds, 0, local, convex=False) for _ in range(5)]
    assert max(concave) > energy[0]


def test_energy_says_nothing_where_its_proof_does_not_hold():
    one = [[1.0]]
    falling = [ClientRound(2.0, 2.0, 1.0), ClientRound(1.0, 1.0, 1.0)]
    steep = [ClientRound(2.0, 2.0, 1.0), ClientRound(3.0, 3.1, 1.0)]
    assert energy_norms(falling, 1.0, one) == energy_norms(steep, 1.0, one) == [math.inf] * 2
    assert energy_norms([], 1.0, one) == []
    plain = [ClientRound(2.0, 2.0, 1.0), ClientRound(2.0, 2.0, 1.0)]
    again = [ClientRound(2.0, 2.0, 1.0, 2), ClientRound(2.0, 2.0, 1.0, 2)]
    once = energy_norms(plain, 1.0, one)
    assert energy_norms(again, 1.0, one) == pytest.approx([math.sqrt(2) * n for n in once])
