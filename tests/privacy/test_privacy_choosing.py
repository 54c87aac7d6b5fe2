"""The best of a random number of trials: bounds never below the exact law of the winner."""

import itertools
import json
import math
from collections import Counter
from functools import cache

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from few import few
from tacit import privacy
from tacit.errors import InputError
from tacit.privacy import (
    ClientSampling,
    Composed,
    Gaussian,
    NegativeBinomialTrials,
    PoissonTrials,
    choosing_delta,
    choosing_epsilon,
)
from tacit.privacy.accounting.choosing import (
    Profile,
    draw_trials,
    winner_delta,
    winner_epsilon,
)
from tacit.privacy.accounting.gaussian import gaussian_epsilon
from tacit.privacy.mechanisms.known import KnownRelease

Array = NDArray[np.float64]
LAWS = [
    NegativeBinomialTrials(1.0, 0.1),
    NegativeBinomialTrials(0.0, 0.05),
    NegativeBinomialTrials(-0.5, 0.02),
    NegativeBinomialTrials(3.0, 0.4),
    NegativeBinomialTrials(1.0, 1.0),
    PoissonTrials(0.7),
    PoissonTrials(6.0),
]
# Of Renyi divergences: dp_accounting takes milliseconds for each pair of them.
ORDERS = [1 + x / 20 for x in range(1, 200)] + sorted({round(11 * 1.05**x) for x in range(107)})


@cache
def masses(law):
    """P(K = k) from the definition of the law, `[most + 1]`; none of tacit's own arithmetic."""
    k = np.arange(4001)
    factorials = np.array([math.lgamma(i + 1) for i in k])
    if isinstance(law, PoissonTrials):
        return np.asarray(np.exp(k * math.log(law.mean) - law.mean - factorials))
    assert isinstance(law, NegativeBinomialTrials)
    if law.gamma == 1:
        return (k == 1).astype(float)
    weights = [math.lgamma(i + law.eta) for i in k[1:]]
    logs = k[1:] * math.log(1 - law.gamma) + weights - factorials[1:]
    found = np.exp(logs - logs.max())
    return np.concatenate(([0.0], found / found.sum()))


def winner(law, chances, scores):
    """The exact law of the first outcome of the largest score; the last entry: there is none.

    P(winner = y) = sum over k of p_k sum over i of P(trial i is y, earlier ones score less, later
    ones no more); with a and b the chances of less and of no more, the inner sum is
    P(y) (b^k - a^k) / (b - a), `[outcomes + 1]`.
    """
    p = masses(law)
    p = p[: int(np.searchsorted(np.cumsum(p), 1 - 1e-14)) + 2]
    k = np.arange(len(p))
    less = np.array([chances[[s < own for s in scores]].sum() for own in scores])
    no_more = np.array([chances[[s <= own for s in scores]].sum() for own in scores])
    powers = (no_more[:, None] ** k - less[:, None] ** k) @ p
    return np.append(chances * powers / (no_more - less), p[0])


def hockey_stick(p, q, epsilon):
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


def exact_profile(p, q, points=60):
    ratios = np.abs(np.log(p) - np.log(q))
    losses = np.linspace(0.0, float(ratios.max()) + 1e-6, points)
    deltas = [max(hockey_stick(p, q, t), hockey_stick(q, p, t)) for t in losses]
    return Profile(losses, np.array(deltas))


def test_the_oracle_is_the_law_by_enumeration_of_all_sequences():
    chances, scores = np.array([0.2, 0.5, 0.3]), (1, 0, 1)
    law = PoissonTrials(0.05)  # more than 6 trials have a chance of 3e-12
    p = masses(law)
    counted = np.zeros(4)
    counted[-1] = p[0]
    for k in range(1, 7):
        for drawn in itertools.product(range(3), repeat=k):
            best = max(drawn, key=lambda y: scores[y])  # the first of the largest
            counted[best] += p[k] * math.prod(chances[y] for y in drawn)
    assert winner(law, chances, scores) == pytest.approx(counted, abs=1e-11)


def tilted(weights):
    values = np.array(weights)
    return values / values.sum()


@few(5, 15)
@given(
    p=st.lists(st.floats(1e-4, 1.0), min_size=4, max_size=4),
    q=st.lists(st.floats(1e-4, 1.0), min_size=4, max_size=4),
    law=st.sampled_from(LAWS),
    epsilon=st.floats(0.0, 6.0),
)
def test_no_score_function_exceeds_the_bound(p, q, law, epsilon):
    one, other = tilted(p), tilted(q)
    bound = winner_delta(exact_profile(one, other), law, epsilon)
    for scores in itertools.product(range(4), repeat=4):
        if set(scores) != set(range(len(set(scores)))):
            continue  # the same order by other numbers
        laws = winner(law, one, scores), winner(law, other, scores)
        assert hockey_stick(*laws, epsilon) <= bound + 1e-12
        assert hockey_stick(*laws[::-1], epsilon) <= bound + 1e-12


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("outcomes", [5, 6])
def test_adversarial_mechanisms_come_close_and_stay_below(law, outcomes):
    """Randomised response with a rare, telling outcome: every order of its outcomes is tried."""
    rare = [1e-3, 1e-2, 0.1, 0.5, 1.0, 1.0][:outcomes]
    one, other = (
        tilted(rare),
        tilted([v * r for v, r in zip(rare, (9, 0.2, 4, 0.5, 1, 2.5), strict=False)]),
    )
    profile = exact_profile(one, other, 400)
    laws = [
        (winner(law, one, order), winner(law, other, order))
        for order in itertools.permutations(range(outcomes))
    ]
    for epsilon in (0.0, 0.5, 1.5, 3.0):
        bound = winner_delta(profile, law, epsilon)
        worst = max(max(hockey_stick(a, b, epsilon), hockey_stick(b, a, epsilon)) for a, b in laws)
        assert worst <= bound + 1e-12
        if law.mean == 1 and epsilon:
            assert bound <= worst * 1.02 + 1e-9  # one trial costs what a trial costs


def test_a_gaussian_trial_and_its_worst_known_score_stay_below_the_bound():
    """Thresholds on the outcome: a trial of N(0, 1) or N(mu, 1), cut into cells that are ranked."""
    mu, law, epsilon = 0.4, NegativeBinomialTrials(1.0, 0.1), 1.0
    cells = np.linspace(-8, 8, 2001)
    one, other = (
        np.diff([0.5 * math.erfc((m - x) / math.sqrt(2)) for x in cells]) for m in (0.0, mu)
    )
    bound = choosing_delta(privacy.Gaussian(1 / mu, 1), law, epsilon=epsilon)
    odds = (1 - law.gamma) / law.gamma

    def density(p, order):
        tails = np.zeros(len(p))
        tails[order] = np.cumsum(p[order]) - p[order]
        return np.asarray(law.mean * p / (1 + odds * tails) / (1 + odds * (tails + p)))

    worst = 0.0
    cell = np.arange(2000)
    for place in range(0, 2000, 50):
        for width in (100, 300, 600):
            # First what is likelier under the other law, then what is likelier under this one.
            head = (cell >= place) & (cell < place + width)
            order = np.concatenate((cell[head], cell[~head]))
            for ranked in (order, np.concatenate((cell[head], cell[~head][::-1]))):
                a, b = density(one, ranked), density(other, ranked)
                worst = max(worst, hockey_stick(a, b, epsilon), hockey_stick(b, a, epsilon))
    assert 0.2 * bound < worst <= bound


@pytest.mark.slow
@pytest.mark.parametrize("eta", [-0.5, 0.0, 1.0, 2.0])
def test_pure_trials_cost_at_most_two_plus_eta_times(eta):
    """Papernot and Steinke, Corollary 3; 3 epsilon of Liu and Talwar where eta is 1."""
    base = 0.7
    one = np.array([math.exp(base), 1.0]) / (1 + math.exp(base))
    profile = exact_profile(one, one[::-1], 200)
    for mean in (10.0, 100.0):
        law = NegativeBinomialTrials.of_mean(eta, mean)
        # Chords between points of the profile cost a little.
        assert winner_epsilon(profile, law, 1e-12) <= (2 + eta) * base * 1.02


@pytest.mark.parametrize("sigma", [1.0, 4.0, 20.0])
@pytest.mark.parametrize("eta", [0.0, 1.0])
@pytest.mark.parametrize("mean", [3.0, 10.0, 100.0])
def test_below_renyi_by_dp_accounting(sigma, eta, mean):
    """Theorem 2 of Papernot and Steinke as dp_accounting has it, over orders and lambda-hat."""
    law = NegativeBinomialTrials.of_mean(eta, mean)
    accountant = RdpAccountant(ORDERS)
    event = dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(sigma), mean, eta)
    renyi = accountant.compose(event).get_epsilon(1e-5)
    single = privacy.epsilon(privacy.Gaussian(sigma, 1), delta=1e-5)
    certified = choosing_epsilon(privacy.Gaussian(sigma, 1), law, delta=1e-5)
    assert single <= certified <= renyi


@pytest.mark.parametrize("mean", [1.0, 5.0])
def test_poisson_is_below_renyi_by_dp_accounting_or_close(mean):
    accountant = RdpAccountant(ORDERS)
    event = dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(20.0), mean, math.inf)
    renyi = accountant.compose(event).get_epsilon(1e-5)
    assert choosing_epsilon(privacy.Gaussian(20.0, 1), PoissonTrials(mean), delta=1e-5) <= renyi


def test_one_trial_costs_what_it_costs():
    for mechanism in (privacy.Gaussian(5.0, 10), privacy.SampledGaussian(0.1, 2.0, 20)):
        alone = privacy.epsilon(mechanism, delta=1e-5)
        chosen = choosing_epsilon(mechanism, NegativeBinomialTrials(1.0, 1.0), delta=1e-5)
        assert alone <= chosen <= alone * 1.01


def test_more_trials_and_less_noise_cost_more():
    costs = [
        choosing_epsilon(
            privacy.Gaussian(sigma, 1), NegativeBinomialTrials.of_mean(1.0, mean), delta=1e-6
        )
        for sigma, mean in ((10.0, 2.0), (10.0, 20.0), (5.0, 20.0), (5.0, 200.0))
    ]
    assert costs == sorted(costs)


def test_settings_are_averaged_and_the_dearest_bounds_them():
    law = NegativeBinomialTrials(1.0, 0.2)
    quiet, loud = privacy.Gaussian(4.0, 1), privacy.Gaussian(12.0, 1)
    mixed = choosing_epsilon([quiet, loud], law, delta=1e-5)
    assert choosing_epsilon(loud, law, delta=1e-5) < mixed
    assert mixed <= choosing_epsilon(quiet, law, delta=1e-5) * 1.001


@pytest.mark.parametrize("law", LAWS)
def test_delta_and_epsilon_agree(law):
    mechanism = privacy.Gaussian(10.0, 1)
    epsilon = choosing_epsilon(mechanism, law, delta=1e-5)
    assert choosing_delta(mechanism, law, epsilon=epsilon) == pytest.approx(1e-5, rel=0.05)


@pytest.mark.parametrize("law", LAWS)
def test_the_drawn_law_is_the_stated_one(law):
    """The coin's value at the end of each stretch: K jumps where the sum of masses says."""
    sums = np.cumsum(masses(law))
    for k in (0, 1, 2, 5, 9):
        for shift, expected in ((-1e-9, k), (1e-9, k + 1)):
            share = sums[k] + shift
            drawn = draw_trials(law, int(share * 2.0**64) << 192) if 0 < share < 1 else None
            stretch = sums[k] - (sums[k - 1] if k else 0.0)
            if drawn is not None and stretch > 1e-8 and sums[min(k + 1, 9)] > sums[k]:
                assert drawn == expected
    assert draw_trials(law, 2**256 - 1) < 10_000  # the last coin ends as well


def test_draws_are_of_the_system_and_differ():
    law = NegativeBinomialTrials(1.0, 0.1)
    drawn = Counter(draw_trials(law) for _ in range(400))
    assert len(drawn) > 10
    assert 7 < sum(k * n for k, n in drawn.items()) / 400 < 13  # ten standard deviations: 9.5 each


@pytest.mark.parametrize("law", LAWS)
def test_mean_and_slope_are_those_of_the_masses(law):
    p, k = masses(law), np.arange(4001)
    assert law.mean == pytest.approx(float((p * k).sum()), rel=1e-9)
    tails = np.array([0.0, 1e-3, 0.3, 1.0])
    sums = [float((p * k)[1:] @ (1 - t) ** (k[1:] - 1.0)) for t in tails]
    assert law.slope(tails) == pytest.approx(sums, rel=1e-9)


@pytest.mark.parametrize(("eta", "mean"), [(-0.5, 4.0), (0.0, 8.0), (1.0, 1.0), (5.0, 300.0)])
def test_a_law_of_a_mean_has_it(eta, mean):
    assert NegativeBinomialTrials.of_mean(eta, mean).mean == pytest.approx(mean, rel=1e-9)


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda: NegativeBinomialTrials(-1.0, 0.5), "eta"),
        (lambda: NegativeBinomialTrials(1.0, 0.0), "gamma"),
        (lambda: NegativeBinomialTrials(1.0, math.nan), "gamma"),
        (lambda: NegativeBinomialTrials.of_mean(1.0, 0.5), "expected_trials"),
        (lambda: NegativeBinomialTrials.of_mean(-0.999, 9000.0), "expected_trials"),
        (lambda: PoissonTrials(0.0), "mean"),
        (
            lambda: choosing_epsilon(privacy.Gaussian(1.0, 1), PoissonTrials(1.0), delta=1.0),
            "delta",
        ),
        (lambda: choosing_epsilon([], PoissonTrials(1.0), delta=1e-5), "mechanisms"),
        (lambda: choosing_delta(privacy.Gaussian(1.0, 1), PoissonTrials(1.0), epsilon=-1.0), "eps"),
        (
            lambda: choosing_epsilon(
                [privacy.Gaussian(1.0, 1), privacy.Gaussian(1.0, 1, relation="replace-one")],
                PoissonTrials(1.0),
                delta=1e-5,
            ),
            "mechanisms",
        ),
    ],
)
def test_what_is_wrong_is_said(make, where):
    assert callable(make)
    with pytest.raises(InputError, match=where):
        make()


def test_hardly_any_noise_has_no_bound_and_no_crash():
    for sigma in (1e-3, 1e-6):
        found = choosing_epsilon(
            privacy.Gaussian(sigma, 1), NegativeBinomialTrials(1.0, 0.1), delta=1e-5
        )
        assert found > 1000
    assert choosing_epsilon(privacy.Gaussian(1e9, 1), PoissonTrials(5.0), delta=1e-5) < 0.01


POINTS = ((1.5, 1e-5), (1.9, 1e-6), (2.4, 1e-8))
BESIDE = Gaussian(4.0, 3)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("delta", [1e-6, 1e-5, 1e-4])
def test_a_winner_beside_other_runs_costs_at_most_the_least_sum_of_both(times, delta):
    winner = KnownRelease(POINTS).repeated(times)
    alone = [times * loss for loss, spent in POINTS if times * spent <= delta]
    assert privacy.epsilon(winner, delta=delta) <= min(alone, default=math.inf) * (1 + 1e-9)
    rest = [
        times * loss + gaussian_epsilon(math.sqrt(3) / 4, delta - times * spent)
        for loss, spent in POINTS
        if times * spent < delta * (1 - 1e-9)
    ]
    whole = Composed([BESIDE, *[KnownRelease(POINTS)] * times])
    epsilon = privacy.epsilon(whole, delta=delta)
    assert 0 < epsilon < min(rest)
    # The profile says the same the other way round, and nothing is lost on the way to a file.
    assert privacy.delta(whole, epsilon=epsilon) <= delta * (1 + 1e-3)
    assert privacy.from_statement(json.loads(json.dumps(privacy.to_statement(whole)))) == whole
    lower, upper = privacy.epsilon_bounds(whole, delta=delta)
    assert lower < upper == epsilon
    assert whole.inner[-1] == winner


def test_without_a_point_for_so_small_a_delta_nothing_is_proved():
    assert privacy.epsilon(KnownRelease(POINTS), delta=1e-9) == math.inf
    assert privacy.epsilon(Composed([BESIDE, KnownRelease(POINTS)]), delta=1e-8) == math.inf
    assert privacy.epsilon(ClientSampling(KnownRelease(POINTS), 0.5, 3), delta=1.4e-8) == math.inf


@pytest.mark.parametrize("points", [[], [(1.0,)], [(-1.0, 0.1)], [(1.0, 1.1)], [3], "ab", 3])
def test_points_that_are_none_are_refused(points):
    with pytest.raises(InputError, match="points"):
        KnownRelease(points)
