"""DO-ADP's noise, and the delta that its theorem really grants."""

import math

import mpmath as mp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import InputError
from tacit.privacy.published import DO_ADP, DoAdpRun, do_adp_noise, do_adp_theorem_delta


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


def a_run(*, records=3000, steps=1000, epsilon=1.0, activation=1.0):
    noise = do_adp_noise(records=records, steps=steps, epsilon=epsilon, activation=activation)
    return DoAdpRun(records, steps, noise, activation)


def test_the_theorem_grants_a_large_delta():
    """At least 0.447 at eps = 1; on the epsilon set mostly from 120,000 steps at delta_0."""
    assert 0.447 < do_adp_theorem_delta(a_run()) < 0.46
    over_noised = do_adp_theorem_delta(a_run(records=20_000, steps=120_000, epsilon=0.01))
    assert over_noised == pytest.approx(1 - (1 - 0.01 / math.sqrt(5)) * math.exp(-1.2), rel=1e-4)


def test_conditions_tell_which_run_meets_them():
    def broken(run):
        numbered = enumerate(DO_ADP.conditions(run), start=1)
        return [number for number, condition in numbered if not condition.holds]

    assert broken(a_run(steps=10_000_000, epsilon=0.9)) == [4]
    assert broken(a_run(steps=10_000_000, epsilon=2.0)) == [1, 4]
    assert broken(a_run(steps=100_000_000, epsilon=0.5, activation=0.4)) == [2, 4]
    assert broken(a_run(steps=1000, epsilon=1.0)) == [3, 4]
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
