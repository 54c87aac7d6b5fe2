"""Bounds from one run: against a linear programme, exact mechanisms, and the truth."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.special import ndtr, ndtri

from tacit import privacy
from tacit.analysis.audit import trade_off as audited
from tacit.analysis.audit.trade_off import Guessed, TradeOff, one_run_p_value
from tacit.errors import InputError
from tacit.privacy.accounting.gaussian import gaussian_delta, gaussian_epsilon

Counts = NDArray[np.float64]
"""The chance of each number of right guesses, `[guesses + 1]`."""


def greatest_tail(guessed, trade_off):
    """The theorem's programme, solved: the largest P[C >= v] that its inequalities allow."""
    m, r, v = guessed.canaries, guessed.guesses, guessed.correct
    counts = np.arange(r + 1)
    rows, bounds = [], []
    for c in range(1, r + 1):
        right = np.where(counts >= c, counts, 0) / m
        wrong = np.where(counts >= c - 1, r - counts, 0) / m
        for epsilon, delta in zip(trade_off.epsilons, trade_off.deltas, strict=True):
            # right <= e^epsilon wrong + delta, and the same of what is left out.
            rows.append(right - math.exp(epsilon) * wrong)
            bounds.append(delta)
            rows.append(right - math.exp(-epsilon) * wrong)
            bounds.append(1 - math.exp(-epsilon) * (1 - delta))
    found = linprog(
        -(counts >= v).astype(float),
        A_ub=np.asarray(rows),
        b_ub=np.asarray(bounds),
        A_eq=np.ones((1, r + 1)),
        b_eq=[1.0],
    )
    return float(-found.fun)


def gaussian(mu, *, times=1):
    """That of a Gaussian mechanism of sensitivity / standard deviation `mu` > 0, by tangents."""
    epsilons = np.linspace(0.0, gaussian_epsilon(mu, 1e-9), 64).tolist()
    deltas = [min(1.0, gaussian_delta(mu, epsilon)) for epsilon in epsilons]
    return TradeOff(tuple(epsilons), tuple(deltas), times)


def by_recursion(guessed, trade_off):
    """The bound of the recursion alone, without that of Steinke et al."""
    low, high = 0.0, 1.0
    if audited._least_total(high, guessed, trade_off) <= 1:
        return 1.0
    for _ in range(60):
        middle = (low + high) / 2
        fits = audited._least_total(middle, guessed, trade_off) <= 1
        low, high = (middle, high) if fits else (low, middle)
    return high


@pytest.mark.parametrize(
    ("m", "r", "v"), [(6, 6, 5), (20, 20, 15), (20, 8, 8), (30, 12, 9), (9, 1, 1)]
)
@pytest.mark.parametrize(
    "trade_off",
    [
        TradeOff((0.7,), (0.0,)),
        TradeOff((0.3,), (0.02,)),
        TradeOff((0.0, 0.5, 1.0), (0.3, 0.1, 0.01)),
        gaussian(0.8),
    ],
)
def test_the_recursion_solves_the_programme(m, r, v, trade_off):
    guessed = Guessed(m, r, v)
    least = TradeOff(trade_off.epsilons[::8], trade_off.deltas[::8])
    assert by_recursion(guessed, least) == pytest.approx(greatest_tail(guessed, least), abs=1e-6)


def guesses_of(chances, most):
    counts = np.zeros(most + 1)
    for chance, correct in chances:
        counts[correct] += chance
    return counts


def randomised_response(m, guesses, epsilon, leak):
    """Exact: every bit is shown as it is with chance `leak`, else by randomised response.

    Bits that were shown as they are can be told, and are guessed first.
    """
    accuracy = 1 / (1 + math.exp(-epsilon))

    def outcomes():
        for kinds in itertools.product((0, 1, 2), repeat=m):  # shown, answered right, wrong
            chance = math.prod(
                (leak, (1 - leak) * accuracy, (1 - leak) * (1 - accuracy))[kind] for kind in kinds
            )
            yield chance, sum(kind < 2 for kind in sorted(kinds, key=lambda k: k != 0)[:guesses])

    return guesses_of(outcomes(), guesses)


def all_or_nothing(m, guesses, epsilon, leak):
    """Exact: with chance `leak` all bits are shown together; else none of them, and coins are
    guessed. (0, leak)-DP, with guesses that are right together."""
    counts = np.asarray([math.comb(guesses, c) / 2**guesses for c in range(guesses + 1)])
    counts *= 1 - leak
    counts[-1] += leak
    return counts


@pytest.mark.parametrize("shown", [randomised_response, all_or_nothing])
@pytest.mark.parametrize(("epsilon", "leak"), [(0.0, 0.2), (0.5, 0.0), (1.0, 0.1), (2.0, 0.01)])
@pytest.mark.parametrize(("m", "guesses"), [(1, 1), (5, 5), (6, 3)])
def test_no_exact_mechanism_exceeds_the_bound(shown, epsilon, leak, m, guesses):
    tails = shown(m, guesses, epsilon, leak)[::-1].cumsum()[::-1]
    allowed = TradeOff((epsilon,), (leak,))
    for correct in range(guesses + 1):
        guessed = Guessed(m, guesses, correct)
        assert tails[correct] <= audited.p_value(guessed, allowed) * (1 + 1e-9)
        assert tails[correct] <= by_recursion(guessed, allowed) + 1e-12


def test_guesses_that_fail_together_are_not_a_product_of_independent_ones():
    """Why no bound here multiplies the chances of single guesses, as if they were independent."""
    leak, m = 0.1, 6
    together = all_or_nothing(m, m, 0.0, leak)[-1]
    assert together > ((1 + leak) / 2) ** m * 4


def test_one_guess_is_bounded_by_the_trade_off_function_itself():
    """With one canary the bound is tight: P[right] <= g(P[wrong])."""
    mu = 1.3
    bound = audited.p_value(Guessed(1, 1, 1), gaussian(mu))
    assert bound == pytest.approx(float(ndtr(mu / 2)), rel=1e-4)
    assert bound >= ndtr(mu / 2)


@pytest.mark.parametrize("mu", [0.5, 1.0, 3.0])
def test_tangents_lie_above_the_gaussian_and_close(mu):
    trade_off = gaussian(mu)
    for rate in (1e-6, 1e-3, 0.1, 0.5, 0.9, 0.999):
        power = float(ndtr(ndtri(rate) + mu))
        assert trade_off.needed(power) == pytest.approx(rate, rel=1e-2, abs=1e-8)
        assert trade_off.needed(power) <= rate * (1 + 1e-9)


def test_two_steps_are_a_gaussian_of_twice_the_distance():
    once, twice = gaussian(2.0), gaussian(1.0, times=2)
    for power in (0.01, 0.3, 0.8, 0.99):
        assert twice.needed(power) == pytest.approx(once.needed(power), rel=2e-2)
    exact = float(ndtr(ndtri(0.8) - 2.0))
    assert twice.needed(0.8) <= exact


def test_the_accountants_function_is_that_of_its_gaussian():
    mechanism = privacy.Gaussian(2.0, 4)  # mu = 1
    trade_off = audited.of_mechanisms([mechanism])
    for power in (0.05, 0.4, 0.9):
        exact = float(ndtr(ndtri(power) - 1.0))
        assert exact * 0.95 <= trade_off.needed(power) <= exact * (1 + 1e-9)
    quieter = audited.of_mechanisms([mechanism, privacy.Gaussian(1.0, 4)])
    assert all(quieter.needed(p) < trade_off.needed(p) for p in (0.05, 0.4, 0.9))


def guess_gaussian(m, guesses, mu, rng):
    """The best guesses that there are of `m` coins, each seen under Gaussian noise of its own."""
    coins = rng.integers(0, 2, m).astype(bool)
    seen = rng.normal(size=m) + mu * coins - mu / 2
    order = np.argsort(-np.abs(seen))[:guesses]
    return Guessed(m, guesses, int(((seen > 0) == coins)[order].sum()))


@pytest.mark.parametrize(("m", "guesses"), [(50, 50), (200, 40)])
def test_a_true_mechanism_is_hardly_ever_refuted(m, guesses):
    rng, mu, runs, level = np.random.default_rng(5), 1.0, 400, 0.1
    trade_off = gaussian(mu)
    assert audited.refutes(Guessed(m, guesses, guesses), trade_off, level=level)
    drawn = [guess_gaussian(m, guesses, mu, rng).correct for _ in range(runs)]
    refuted = {
        correct: audited.refutes(Guessed(m, guesses, correct), trade_off, level=level)
        for correct in set(drawn)
    }
    assert np.mean([refuted[correct] for correct in drawn]) <= level


def test_half_of_the_noise_is_refuted_by_one_run_of_many_canaries():
    guessed = guess_gaussian(1000, 200, 2.0, np.random.default_rng(0))
    assert audited.refutes(guessed, gaussian(1.0), level=0.05)
    factor = audited.quietest_not_refuted(
        guessed, lambda noise: gaussian(1 / noise), confidence=0.95
    )
    assert factor is not None
    assert 0.5 < factor < 0.8  # one half is the truth
    assert audited.refutes(guessed, gaussian(1 / factor), level=0.05)
    assert not audited.refutes(guessed, gaussian(1.011 / factor), level=0.05)


def test_noise_above_the_plan_is_searched_as_well():
    guessed = guess_gaussian(200, 40, 1.0, np.random.default_rng(2))
    factor = audited.quietest_not_refuted(
        guessed, lambda noise: gaussian(1 / noise), confidence=0.95
    )
    assert factor is not None
    assert 1.0 < factor < 3.0
    half = Guessed(200, 40, 20)
    nothing = audited.quietest_not_refuted(half, lambda noise: gaussian(1 / noise), confidence=0.95)
    assert nothing is None


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 40), st.integers(0, 40), st.integers(0, 40)).map(sorted),
    epsilon=st.floats(0, 3),
    delta=st.floats(0, 0.2),
)
def test_the_chance_falls_with_the_count_and_no_bound_is_lost(sizes, epsilon, delta):
    correct, guesses, canaries = sizes
    allowed = TradeOff((epsilon,), (delta,))
    chance = audited.p_value(Guessed(canaries, guesses, correct), allowed)
    assert chance <= one_run_p_value(Guessed(canaries, guesses, correct), epsilon, delta)
    if correct:
        before = audited.p_value(Guessed(canaries, guesses, correct - 1), allowed)
        assert chance <= before * (1 + 1e-9)
    looser = TradeOff((epsilon + 0.2,), (min(1.0, delta + 0.01),))
    assert audited.p_value(Guessed(canaries, guesses, correct), looser) >= chance * (1 - 1e-9)


@settings(max_examples=12, deadline=None)
@given(correct=st.integers(0, 15), delta=st.sampled_from([0.0, 1e-5, 1e-2]))
def test_epsilon_grows_with_the_count_and_falls_with_confidence(correct, delta):
    def bound(count, confidence):
        return audited.epsilon_of_any(Guessed(30, 15, count), delta=delta, confidence=confidence)

    assert bound(correct, 0.99) <= bound(correct, 0.9) + 1e-9
    assert correct == 15 or bound(correct, 0.9) <= bound(correct + 1, 0.9) + 1e-9
    beyond = bound(correct, 0.9) + 1e-6
    assert one_run_p_value(Guessed(30, 15, correct), beyond, delta) > 0.1


def test_what_coins_show_asks_no_accountant():
    """As many right guesses as coin flips give are refuted by no amount of noise."""

    def mechanisms(factor):
        raise AssertionError("asked for a mechanism in vain")

    found = audited.epsilon_of_family(
        Guessed(1000, 200, 105), mechanisms, delta=1e-3, confidence=0.95
    )
    assert found == (0.0, None)
    assert not audited.refutes(Guessed(1000, 200, 105), gaussian(1e-6), level=0.05)


def test_a_refuted_factor_is_within_two_percent_of_one_that_is_not():
    guessed, level = Guessed(1000, 200, 180), 0.05
    asked: list[float] = []

    def held_to(factor):
        asked.append(factor)
        return gaussian(1 / factor)

    factor = audited.quietest_not_refuted(guessed, held_to, confidence=1 - level)
    assert factor is not None
    assert audited.refutes(guessed, gaussian(1 / factor), level=level)
    assert not audited.refutes(guessed, gaussian(1.02 / factor), level=level)
    assert len(asked) <= 12


def test_bad_numbers_are_refused():
    with pytest.raises(InputError, match="guesses"):
        Guessed(5, 6, 1)
    with pytest.raises(InputError, match="guesses"):
        Guessed(0, 0, 0)
    with pytest.raises(InputError, match="trade-off"):
        TradeOff((1.0, 2.0), (0.1,))
    with pytest.raises(InputError, match="trade-off"):
        TradeOff((-1.0,), (0.1,))
    with pytest.raises(InputError, match="level"):
        audited.refutes(Guessed(5, 5, 5), TradeOff((1.0,), (0.1,)), level=1.0)
    with pytest.raises(InputError, match="delta"):
        audited.epsilon_of_any(Guessed(5, 5, 5), delta=2.0, confidence=0.9)
