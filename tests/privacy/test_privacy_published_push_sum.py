"""The noise that PrivSGP and the Dyn-D2P family print."""

import math

import mpmath as mp
import numpy as np
import pytest
from privacy_oracles import gaussian_profile_exact

from tacit.errors import InputError
from tacit.privacy.published import (
    DYN_D2P,
    DYN_GENERAL,
    PRIVSGP,
    ClaimedRun,
    constant_mu,
    general_noise_scale,
    growing_mu,
    privsgp_noise,
    total_mu,
)


def claimed(records, mus, delta):
    return ClaimedRun(records, [1.0] * len(mus), [1 / mu for mu in mus], 1, delta)


@pytest.mark.parametrize("field", ["records", "steps", "epsilon", "constant"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_noise_refuses_numbers_out_of_range(field, value):
    good = {"records": 100, "steps": 10.0, "epsilon": 1.0, "delta": 1e-5, "constant": 1.0}
    with pytest.raises(InputError, match=field):
        privsgp_noise(**{**good, field: value})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="delta"):
        privsgp_noise(**{**good, "delta": 1.5})  # type: ignore[arg-type]


def test_noise_gives_back_the_claim():
    noise = privsgp_noise(records=3125, steps=3120, epsilon=3.0, delta=1e-5)
    assert noise == pytest.approx(0.0606, abs=5e-5)
    run = ClaimedRun(3125, [1.0] * 3120, [noise] * 3120, 1, 1e-5)
    assert PRIVSGP.epsilon(run) == pytest.approx(3.0, rel=1e-12)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-4, 0.1])
def test_total_mu_inverts_the_gaussian_profile(epsilon, delta):
    mu = total_mu(epsilon, delta)
    assert float(gaussian_profile_exact(mp.mpf(mu), epsilon)) == pytest.approx(delta, rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("steps", [1, 1000, 10_000])
def test_schedules_give_back_the_claim(epsilon, steps):
    given_numbers = {"records": 3000, "steps": steps, "epsilon": epsilon, "delta": 1e-4}
    mu = constant_mu(**given_numbers)  # type: ignore[arg-type]
    assert DYN_D2P.epsilon(claimed(3000, [mu] * steps, 1e-4)) == pytest.approx(epsilon, rel=1e-8)
    growing = growing_mu(**given_numbers, growth=10.0)  # type: ignore[arg-type]
    assert len(growing) == steps
    assert DYN_D2P.epsilon(claimed(3000, list(growing), 1e-4)) == pytest.approx(epsilon, rel=1e-8)
    ratios = np.diff(np.log(growing))
    assert ratios == pytest.approx(np.full(steps - 1, math.log(10.0) / steps), rel=1e-6)
    scale = general_noise_scale(**given_numbers)  # type: ignore[arg-type]
    general = claimed(3000, [1 / scale] * steps, 1e-4)
    assert DYN_GENERAL.epsilon(general) == pytest.approx(epsilon, rel=1e-8)


def test_growth_of_one_is_constant():
    numbers = {"records": 2500, "steps": 500, "epsilon": 1.0, "delta": 1e-4}
    mu = constant_mu(**numbers)  # type: ignore[arg-type]
    growing = growing_mu(**numbers, growth=1.0)  # type: ignore[arg-type]
    assert growing == pytest.approx((mu,) * 500, rel=1e-9)


def test_general_form_of_the_paper():
    """mu_k = 21 at J = 3000, K = 1000, eps = 1."""
    scale = general_noise_scale(records=3000, steps=1000, epsilon=1.0, delta=1e-4)
    assert 1 / scale == pytest.approx(21, abs=0.1)
