"""The papers' formulas against 40-digit implementations of what they print."""

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from privacy_oracles import gaussian_epsilon_exact, gaussian_profile_exact

from few import few
from tacit.errors import InputError
from tacit.privacy.published import (
    DO_ADP,
    DYN_D2P,
    DYN_GENERAL,
    PRIVSGP,
    ClaimedRun,
    DoAdpRun,
    do_adp_noise,
    do_adp_theorem_delta,
)

FORMULAS = [PRIVSGP, DYN_D2P, DYN_GENERAL]


def a_run(*, records=3000, steps=1000, clip=4.0, mu=2.0, delta=1e-4, batch=1.0, constant=1.0):
    return ClaimedRun(records, [clip] * steps, [clip / mu] * steps, batch, delta, constant)


def total_mu(epsilon, delta):
    """The Gaussian-DP parameter whose profile passes through (epsilon, delta), by bisection."""
    low, high = mp.mpf("1e-4"), mp.mpf(20)
    for _ in range(80):
        middle = (low + high) / 2
        above = gaussian_profile_exact(middle, epsilon) > delta
        low, high = (low, middle) if above else (middle, high)
    return float(low)


def holds(formula, run):
    return [condition.holds for condition in formula.conditions(run)]


@settings(max_examples=40, deadline=None)
@given(
    records=st.integers(10, 100_000),
    steps=st.integers(1, 300),
    ratio=st.floats(0.01, 20),
    clip=st.floats(0.1, 50),
    delta=st.floats(1e-9, 0.1),
    constant=st.floats(0.1, 10),
)
def test_privsgp_inverts_its_theorem(records, steps, ratio, clip, delta, constant):
    """Theorem 2 gives sigma for epsilon; that sigma is claimed to cost this epsilon."""
    run = ClaimedRun(records, [clip] * steps, [clip * ratio] * steps, 1, delta, constant)
    epsilon = PRIVSGP.epsilon(run)
    sigma = 3 * mp.mpf(constant) * clip * mp.sqrt(steps * mp.log(1 / mp.mpf(delta)))
    sigma /= records * mp.mpf(epsilon)
    assert float(sigma) == pytest.approx(clip * ratio, rel=1e-12)


def test_privsgp_noise_of_the_paper():
    """sigma / G is 0.20 c2 for MNIST and 0.061 c2 for CIFAR-10, and eps J^2 / K 2504 and 9390."""
    for records, steps, epsilon, expected, ratio in [
        (1200, 575, 1.0, 0.20, 2504),
        (3125, 3120, 3.0, 0.061, 9390),
    ]:
        root = math.sqrt(steps * math.log(1e5))
        for constant in (1.0, 2.0):
            sigma_over_g = 3 * constant * root / (records * epsilon)
            assert sigma_over_g == pytest.approx(expected * constant, abs=0.005 * constant)
            run = a_run(
                records=records, steps=steps, mu=1 / sigma_over_g, delta=1e-5, constant=constant
            )
            assert PRIVSGP.epsilon(run) == pytest.approx(epsilon, rel=1e-12)
            regime, lemma, one_record = PRIVSGP.conditions(run)
            assert not regime.holds
            assert f"{ratio:.3g}" in regime.text
            assert not lemma.holds
            assert one_record.holds


@pytest.mark.parametrize("epsilon", [0.3, 0.7, 1.0, 3.0])
@pytest.mark.parametrize("steps", [1000, 10_000])
def test_dyn_d2p_inverts_its_constant_schedule(epsilon, steps):
    """Const-D2P: mu-bar = sqrt(log(J^2 mu_tot^2 / K + 1))."""
    mu_total = total_mu(epsilon, 1e-4)
    mu_bar = math.sqrt(math.log(3000**2 * mu_total**2 / steps + 1))
    claimed = DYN_D2P.epsilon(a_run(steps=steps, mu=mu_bar))
    assert claimed == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.slow
@few(8, 30)
@given(mus=st.lists(st.floats(0.01, 4.5), min_size=1, max_size=40), records=st.integers(50, 5000))
def test_dyn_formulas_at_high_precision(mus, records):
    clips = [4.0 * 0.9**k for k in range(len(mus))]
    noise = [clip / mu for clip, mu in zip(clips, mus, strict=True)]
    run = ClaimedRun(records, clips, noise, 1, 1e-5)
    exact = [mp.mpf(clip) / mp.mpf(std) for clip, std in zip(clips, noise, strict=True)]
    central = mp.sqrt(sum(mp.expm1(value**2) for value in exact)) / records
    general = mp.sqrt(2 * sum(value**2 for value in exact)) / records
    for formula, mu in [(DYN_D2P, central), (DYN_GENERAL, general)]:
        expected = float(gaussian_epsilon_exact(mu, 1e-5))
        if gaussian_profile_exact(mu, 0) <= 1e-5:
            expected = 0.0
        assert formula.epsilon(run) == pytest.approx(expected, rel=1e-9, abs=1e-300)


def test_the_general_form_adds_too_little_noise():
    """J = 3000, K = 1000, eps = 1: its noise has mu_k = 21, where e^x - 1 < 2 x is far off."""
    mu_k = total_mu(1.0, 1e-4) * 3000 / math.sqrt(2 * 1000)
    assert mu_k == pytest.approx(21, abs=0.1)
    run = a_run(mu=mu_k)
    assert DYN_GENERAL.epsilon(run) == pytest.approx(1.0, rel=1e-9)
    assert holds(DYN_GENERAL, run) == [False, True]
    assert DYN_D2P.epsilon(run) > 1e100


def test_the_clipping_schedule_cancels():
    mus = np.linspace(0.5, 2, 50)
    constant = ClaimedRun(1000, [3.0] * 50, (3 / mus).tolist(), 1, 1e-5)
    falling = 7 * 0.97 ** np.arange(50)
    dynamic = ClaimedRun(1000, falling.tolist(), (falling / mus).tolist(), 1, 1e-5)
    for formula in FORMULAS:
        assert formula.epsilon(dynamic) == pytest.approx(formula.epsilon(constant), rel=1e-12)
    assert dynamic.mu.tolist() == pytest.approx(mus.tolist(), rel=1e-14)


@pytest.mark.parametrize("mu", [30.0, 1e3, 1e10, 1e80])
def test_overflow_is_infinity(mu):
    assert DYN_D2P.epsilon(a_run(mu=mu)) == math.inf
    assert DYN_GENERAL.epsilon(a_run(mu=mu)) > 1
    assert PRIVSGP.epsilon(a_run(mu=mu)) > 1


@pytest.mark.parametrize("mu", [1e-3, 1e-6])
def test_much_noise_is_no_epsilon(mu):
    assert DYN_D2P.epsilon(a_run(mu=mu)) == 0
    assert DYN_GENERAL.epsilon(a_run(mu=mu)) == 0
    assert 0 < PRIVSGP.epsilon(a_run(mu=mu)) < 1e-3


def test_conditions_tell_which_run_meets_them():
    small = a_run(records=10, steps=1000, mu=0.01)
    assert PRIVSGP.epsilon(small) * 10**2 / 1000 < 1
    assert holds(PRIVSGP, small) == [True, True, True]
    assert holds(DYN_D2P, small) == [True, True]
    assert holds(DYN_GENERAL, small) == [True, True]
    rare = a_run(records=3000, steps=1000, mu=0.5)
    assert holds(PRIVSGP, rare) == [False, True, True]
    assert holds(DYN_D2P, rare) == [False, True]
    assert holds(DYN_GENERAL, rare) == [True, True]
    loud = a_run(records=10, steps=1000, mu=1.5, batch=32)
    assert holds(PRIVSGP, loud) == [False, False, False]
    assert holds(DYN_D2P, loud) == [False, False]
    assert holds(DYN_GENERAL, loud) == [False, False]


def test_one_loud_step_breaks_a_condition():
    noise = [10.0] * 99 + [0.5]
    run = ClaimedRun(5, [1.0] * 100, noise, 1, 1e-5)
    assert holds(DYN_D2P, run) == [False, True]
    assert holds(DYN_GENERAL, run) == [False, True]
    assert not PRIVSGP.conditions(run)[1].holds


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda formula: formula.source)
def test_a_formula_says_what_it_is(formula):
    assert "=" in formula.statement
    assert formula.source
    assert "mean over the batch" in formula.reading
    assert all(condition.text for condition in formula.conditions(a_run()))


# DO-ADP's noise, and the delta that its theorem really grants.


@settings(max_examples=40, deadline=None)
@given(
    records=st.integers(10, 100_000),
    steps=st.integers(1, 200_000),
    epsilon=st.floats(0.001, 5),
    activation=st.floats(0.1, 1),
    kept=st.floats(0.01, 1),
    failure=st.floats(1e-9, 0.1),
)
def test_noise_and_epsilon_are_inverse(records, steps, epsilon, activation, kept, failure):
    noise = do_adp_noise(
        records=records,
        steps=steps,
        epsilon=epsilon,
        activation=activation,
        kept=kept,
        failure=failure,
    )
    variance = 160 * mp.mpf(kept) * mp.mpf(activation) ** 2 * steps
    variance *= mp.log(mp.mpf("1.25") / mp.mpf(failure))
    variance /= (records * mp.mpf(epsilon)) ** 2
    assert noise**2 == pytest.approx(float(variance), rel=1e-12)
    run = DoAdpRun(records, steps, noise, activation, kept, failure)
    assert DO_ADP.epsilon(run) == pytest.approx(epsilon, rel=1e-12)
    with mp.workdps(50):
        survive = (1 - mp.mpf(activation) * mp.mpf(failure)) ** steps
    prime = min(mp.mpf(1), mp.mpf(epsilon) / mp.sqrt(5))
    assert do_adp_theorem_delta(run) == pytest.approx(float(1 - (1 - prime) * survive), rel=1e-9)


def a_compressed_run(*, records=3000, steps=1000, epsilon=1.0, activation=1.0):
    noise = do_adp_noise(records=records, steps=steps, epsilon=epsilon, activation=activation)
    return DoAdpRun(records, steps, noise, activation)


def test_the_theorem_grants_a_large_delta():
    """At least 0.447 at eps = 1; on the epsilon set mostly from 120,000 steps at delta_0."""
    assert 0.447 < do_adp_theorem_delta(a_compressed_run()) < 0.46
    over_noised = do_adp_theorem_delta(
        a_compressed_run(records=20_000, steps=120_000, epsilon=0.01)
    )
    assert over_noised == pytest.approx(1 - (1 - 0.01 / math.sqrt(5)) * math.exp(-1.2), rel=1e-4)


def test_conditions_tell_which_compressed_run_meets_them():
    def broken(run):
        numbered = enumerate(DO_ADP.conditions(run), start=1)
        return [number for number, condition in numbered if not condition.holds]

    assert broken(a_compressed_run(steps=10_000_000, epsilon=0.9)) == [4]
    assert broken(a_compressed_run(steps=10_000_000, epsilon=2.0)) == [1, 4]
    assert broken(a_compressed_run(steps=100_000_000, epsilon=0.5, activation=0.4)) == [2, 4]
    assert broken(a_compressed_run(steps=1000, epsilon=1.0)) == [3, 4]
    quiet = DoAdpRun(5, 1000, do_adp_noise(records=5, steps=1000, epsilon=0.01), failure=1e-9)
    assert broken(quiet) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("records", 0),
        ("steps", -1),
        ("noise_over_bound", math.nan),
        ("activation", 0.0),
        ("kept", 1.5),
        ("failure", 0.0),
    ],
)
def test_numbers_out_of_range_are_refused(field, value):
    good = {"records": 100, "steps": 10, "noise_over_bound": 1.0}
    with pytest.raises(InputError, match=field):
        DoAdpRun(**{**good, field: value})  # type: ignore[arg-type]
