"""The lower bounds: against exact tails, by simulation of coverage, and at their edges."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import bisect, brentq
from scipy.special import ndtri
from scipy.stats import binom

from tacit.analysis.audit import trade_off as bounds
from tacit.analysis.audit.trade_off import Counts
from tacit.errors import InputError
from tacit.privacy.accounting.gaussian import gaussian_delta


def tail(trials, rate, least):
    """P[Binomial(trials, rate) >= least], summed term by term."""
    return mpmath.fsum(
        mpmath.binomial(trials, i) * rate**i * (1 - rate) ** (trials - i)
        for i in range(least, trials + 1)
    )


@pytest.mark.parametrize(("hits", "trials"), [(1, 20), (7, 20), (20, 20), (3, 400), (399, 400)])
@pytest.mark.parametrize("alpha", [0.025, 1e-4])
def test_clopper_pearson_solves_the_binomial_tails(hits, trials, alpha):
    low = float(bounds.rate_below(hits, trials, alpha))
    assert float(tail(trials, mpmath.mpf(low), hits)) == pytest.approx(alpha, rel=1e-5)
    assert tail(trials, mpmath.mpf(low), hits) <= alpha
    high = float(bounds.rate_above(trials - hits, trials, alpha))
    missed = 1 - tail(trials, mpmath.mpf(high), trials - hits + 1)
    assert float(missed) == pytest.approx(alpha, rel=1e-3)
    assert float(missed) <= alpha * (1 + 1e-12)


def test_no_hits_and_all_hits_prove_nothing_on_one_side():
    assert float(bounds.rate_below(0, 50, 0.05)) == 0.0
    assert float(bounds.rate_above(50, 50, 0.05)) == 1.0
    assert float(bounds.rate_above(0, 50, 0.05)) == pytest.approx(1 - 0.05 ** (1 / 50), rel=1e-6)


def test_both_error_rates_hold_jointly_at_the_stated_confidence():
    rng, trials, confidence = np.random.default_rng(3), 200, 0.8
    tpr, fpr = 0.35, 0.06
    missed = 0
    draws = 4000
    hits = rng.binomial(trials, tpr, draws)
    false = rng.binomial(trials, fpr, draws)
    for a, b in zip(hits, false, strict=True):
        low, high = bounds.error_rates(Counts(trials, int(a), trials, int(b)), confidence)
        missed += low > tpr or high < fpr
    assert missed / draws <= 1 - confidence
    assert missed / draws >= 0.05  # and not by being wide of the mark


def least_over_region(counts, confidence, of):
    """The least value over the region of the proof, on a grid of rates: by definition."""
    alpha = 1 - confidence
    a = 0.45 * alpha
    c = bisect(lambda c: 2 * a + c * (math.log(c / a**2) - 1) - alpha, a * a, a)
    best = math.inf
    for p in np.linspace(0.4, 0.99, 120):
        one = binom.sf(counts.true_positives - 1, counts.positives, p)
        if one <= a:
            continue
        q = brentq(
            lambda q, one=one: (
                binom.cdf(counts.false_positives, counts.negatives, q) - max(a, c / one)
            ),
            0.0,
            1.0,
        )
        best = min(best, of(p, q))
    return best


@pytest.mark.parametrize("confidence", [0.95, 0.999])
@pytest.mark.parametrize("counts", [Counts(300, 200, 300, 40), Counts(500, 450, 100, 0)])
def test_epsilon_is_the_least_over_the_region(counts, confidence):
    right = least_over_region(counts, confidence, lambda p, q: math.log((p - 1e-3) / q))
    bound = bounds.epsilon_lower(counts, delta=1e-3, confidence=confidence)
    opposite = least_over_region(
        counts, confidence, lambda p, q: math.log((1 - q - 1e-3) / (1 - p))
    )
    assert bound <= max(right, opposite) + 1e-2
    assert bound >= max(right, opposite) - 0.03
    mu = least_over_region(counts, confidence, lambda p, q: float(ndtri(p) - ndtri(q)))
    assert mu - 0.02 <= bounds.mu_lower(counts, confidence=confidence) <= mu + 1e-2


def test_epsilon_takes_the_better_direction():
    counts, mirrored = Counts(1000, 400, 1000, 10), Counts(1000, 990, 1000, 600)
    forward = bounds.epsilon_lower(counts, delta=1e-3, confidence=0.95)
    backward = bounds.epsilon_lower(mirrored, delta=1e-3, confidence=0.95)
    assert forward > 2.5
    assert backward == pytest.approx(forward, rel=0.01)


def test_the_region_is_better_than_two_halves_where_both_rates_are_uncertain():
    def halves(counts):
        return float(bounds.epsilon_bounds_of(*bounds.error_rates(counts, 0.95), 1e-3))

    both = Counts(200, 120, 200, 40)
    assert bounds.epsilon_lower(both, delta=1e-3, confidence=0.95) > halves(both) + 0.05
    alone = Counts(1000, 900, 1000, 0)
    assert bounds.epsilon_lower(alone, delta=1e-3, confidence=0.95) > halves(alone) - 0.03


@pytest.mark.parametrize(("tpr", "fpr"), [(0.5, 0.2), (0.9, 0.01), (0.3, 0.3)])
def test_the_bounds_at_all_deltas_hold_together(tpr, fpr):
    rng, trials, confidence = np.random.default_rng(9), 80, 0.8
    truth = {delta: float(bounds.epsilon_bounds_of(tpr, fpr, delta)) for delta in (0.0, 0.05, 0.3)}
    drawn = zip(rng.binomial(trials, tpr, 1500), rng.binomial(trials, fpr, 1500), strict=True)
    wrong = 0
    known: dict[Counts, bool] = {}
    for hits, false in drawn:
        counts = Counts(trials, int(hits), trials, int(false))
        if counts not in known:
            known[counts] = any(
                bounds.epsilon_lower(counts, delta=delta, confidence=confidence) > epsilon
                for delta, epsilon in truth.items()
            )
        wrong += known[counts]
    assert wrong / 1500 <= 1 - confidence


@pytest.mark.parametrize(
    "counts", [Counts(100, 0, 100, 0), Counts(100, 100, 100, 100), Counts(100, 5, 100, 50)]
)
def test_an_attack_that_fails_proves_nothing(counts):
    assert bounds.epsilon_lower(counts, delta=1e-3, confidence=0.95) == 0.0
    assert bounds.mu_lower(counts, confidence=0.95) == 0.0


def delta_lower(tpr, fpr, epsilon):
    """The least delta that allows these rates at epsilon, by the definition."""
    factor = math.exp(epsilon)
    return max(0.0, tpr - factor * fpr, 1 - fpr - factor * (1 - tpr))


@settings(max_examples=200, deadline=None)
@given(
    hits=st.integers(0, 500),
    false=st.integers(0, 500),
    delta=st.floats(0, 0.3),
    confidence=st.floats(0.5, 0.999),
)
def test_delta_and_epsilon_are_inverse(hits, false, delta, confidence):
    counts = Counts(500, hits, 500, false)
    epsilon = bounds.epsilon_lower(counts, delta=delta, confidence=confidence)
    corners = list(zip(*bounds._corners(counts, confidence), strict=True))
    least = min(delta_lower(*rates, epsilon + 0.01) for rates in corners)
    assert least <= delta  # at a corner, more than epsilon is not needed
    if epsilon > 0:
        assert all(delta_lower(*rates, epsilon - 1e-6) >= delta - 1e-9 for rates in corners)


def test_the_gaussian_fit_covers_a_gaussian():
    rng, mu, trials, draws = np.random.default_rng(1), 1.2, 2000, 400
    above = 0
    for _ in range(draws):
        hits = int((rng.normal(size=trials) + mu > 0.7).sum())
        false = int((rng.normal(size=trials) > 0.7).sum())
        lower = bounds.mu_lower(Counts(trials, hits, trials, false), confidence=0.9)
        above += lower > mu
        assert lower > 0.9
    assert above / draws <= 0.1


def test_epsilon_of_mu_lies_just_below_the_closed_form():
    for mu, delta in ((0.3, 1e-3), (1.0, 1e-5), (4.0, 1e-2)):
        epsilon = bounds.epsilon_of_mu(mu, delta)
        assert gaussian_delta(mu, epsilon) >= delta
        assert gaussian_delta(mu, epsilon * (1 + 1e-6)) <= delta
    assert bounds.epsilon_of_mu(0.0, 1e-3) == 0.0


def one_run_by_definition(m, r, v, epsilon, delta):
    """Theorem 5.2 of Steinke et al., term by term."""
    accuracy = mpmath.e**epsilon / (1 + mpmath.e**epsilon)

    def f(least):
        return tail(r, accuracy, max(0, least))

    worst = max((f(v - i) - f(v)) / i for i in range(1, m + 1))
    return f(v) + 2 * m * mpmath.mpf(delta) * worst


@pytest.mark.parametrize(
    ("m", "r", "v", "epsilon", "delta"),
    [
        (30, 20, 15, 0.5, 0.0),
        (30, 20, 15, 0.5, 1e-3),
        (40, 40, 38, 2.0, 1e-5),
        (25, 10, 10, 1.0, 1e-2),
        (12, 6, 1, 0.0, 1e-4),
    ],
)
def test_the_one_run_p_value_is_that_of_the_theorem(m, r, v, epsilon, delta):
    p_value = bounds.one_run_p_value(bounds.Guessed(m, r, v), epsilon, delta)
    right = min(mpmath.mpf(1), one_run_by_definition(m, r, v, epsilon, delta))
    assert p_value == pytest.approx(float(right), rel=1e-9)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (1.5, 0.0), (1.0, 0.02)])
def test_the_one_run_bound_covers_randomised_response(epsilon, delta):
    """Of m bits; with probability delta a bit is shown as it is: (epsilon, delta)-DP, tight."""
    rng, m, runs, confidence = np.random.default_rng(7), 300, 1500, 0.9
    accuracy = delta + (1 - delta) / (1 + math.exp(-epsilon))
    drawn = rng.binomial(m, accuracy, runs)

    def refuted(at):
        """How often an epsilon is refuted."""
        chances = {
            count: bounds.one_run_p_value(bounds.Guessed(m, m, int(count)), at, delta)
            for count in set(drawn)
        }
        return float(np.mean([chances[count] <= 1 - confidence for count in drawn]))

    assert refuted(epsilon) <= 1 - confidence
    if delta == 0:
        assert refuted(epsilon / 2) > 0.5


def test_bad_input_is_refused():
    with pytest.raises(InputError, match="hits <= trials"):
        Counts(10, 11, 10, 0)
    with pytest.raises(InputError, match="confidence"):
        bounds.error_rates(Counts(10, 1, 10, 0), 1.0)
    with pytest.raises(InputError, match="delta"):
        bounds.epsilon_lower(Counts(10, 1, 10, 0), delta=1.0, confidence=0.9)
    with pytest.raises(InputError, match="epsilon, delta"):
        bounds.one_run_p_value(bounds.Guessed(5, 5, 1), -1, 0)
