"""Corollary 1's K* and the noise that PrivSGP and the Dyn-D2P family print."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from privacy_oracles import gaussian_profile_exact

from tacit.errors import InputError
from tacit.privacy.published import (
    DYN_D2P,
    DYN_GENERAL,
    PRIVSGP,
    ClaimedRun,
    UtilityConstants,
    constant_mu,
    general_noise_scale,
    growing_mu,
    optimal_steps,
    privsgp_noise,
    total_mu,
)

CIFAR = UtilityConstants(
    smoothness=25,
    gradient_bound=10,
    heterogeneity=500_000,
    gap=2.8,
    start_norm_squared=780_000,
    dimension=11_170_000,
)


def claimed(records: int, mus: list[float], delta: float) -> ClaimedRun:
    return ClaimedRun(records, [1.0] * len(mus), [1 / mu for mu in mus], 1, delta)


def test_optimal_steps_of_the_paper() -> None:
    """K* = 3120 at eps = 3 and its constants, if d = 11.17 M and c2 = 0.37."""
    steps = optimal_steps(CIFAR, records=3125, epsilon=[3.0] * 16, delta=[1e-5] * 16, constant=0.37)
    assert steps == pytest.approx(3120, rel=0.02)


@settings(max_examples=30, deadline=None)
@given(
    epsilons=st.lists(st.floats(0.1, 10), min_size=1, max_size=6),
    records=st.integers(10, 10_000),
    constant=st.floats(0.1, 5),
    gap=st.floats(0.1, 10),
)
def test_optimal_steps_minimise_the_bound_of_theorem_1(
    epsilons: list[float], records: int, constant: float, gap: float
) -> None:
    """The bound with Theorem 2's noise in it is larger to both sides of K*."""
    problem = UtilityConstants(2.0, 3.0, 5.0, gap, 7.0, 100)
    deltas = [1e-5 * (i + 1) for i in range(len(epsilons))]
    nodes = len(epsilons)

    def bound(steps: float) -> float:
        squares = [
            (
                3.0
                * privsgp_noise(
                    records=records, steps=steps, epsilon=eps, delta=delta, constant=constant
                )
            )
            ** 2
            for eps, delta in zip(epsilons, deltas, strict=True)
        ]
        fixed = 13 * gap + 6 * 2.0 * 7.0 + 18 * 2.0 * 5.0
        return (fixed + 24 * 2.0 * 100 / nodes * sum(squares)) / math.sqrt(nodes * steps)

    best = optimal_steps(
        problem, records=records, epsilon=epsilons, delta=deltas, constant=constant
    )
    assert bound(best) < min(bound(best * 0.97), bound(best * 1.03))


def test_optimal_steps_refuse_budgets_that_do_not_fit() -> None:
    with pytest.raises(InputError, match="one number a node"):
        optimal_steps(CIFAR, records=10, epsilon=[1.0, 1.0], delta=[1e-5])
    with pytest.raises(InputError, match="one number a node"):
        optimal_steps(CIFAR, records=10, epsilon=[], delta=[])
    with pytest.raises(InputError, match="epsilon"):
        optimal_steps(CIFAR, records=10, epsilon=[math.inf], delta=[1e-5])
    with pytest.raises(InputError, match="delta"):
        optimal_steps(CIFAR, records=10, epsilon=[1.0], delta=[1.0])


@pytest.mark.parametrize("field", ["records", "steps", "epsilon", "constant"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_noise_refuses_numbers_out_of_range(field: str, value: float) -> None:
    good = {"records": 100, "steps": 10.0, "epsilon": 1.0, "delta": 1e-5, "constant": 1.0}
    with pytest.raises(InputError, match=field):
        privsgp_noise(**{**good, field: value})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="delta"):
        privsgp_noise(**{**good, "delta": 1.5})  # type: ignore[arg-type]


def test_noise_gives_back_the_claim() -> None:
    noise = privsgp_noise(records=3125, steps=3120, epsilon=3.0, delta=1e-5)
    assert noise == pytest.approx(0.0606, abs=5e-5)
    run = ClaimedRun(3125, [1.0] * 3120, [noise] * 3120, 1, 1e-5)
    assert PRIVSGP.epsilon(run) == pytest.approx(3.0, rel=1e-12)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-4, 0.1])
def test_total_mu_inverts_the_gaussian_profile(epsilon: float, delta: float) -> None:
    mu = total_mu(epsilon, delta)
    assert float(gaussian_profile_exact(mp.mpf(mu), epsilon)) == pytest.approx(delta, rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("steps", [1, 1000, 10_000])
def test_schedules_give_back_the_claim(epsilon: float, steps: int) -> None:
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


def test_growth_of_one_is_constant() -> None:
    numbers = {"records": 2500, "steps": 500, "epsilon": 1.0, "delta": 1e-4}
    mu = constant_mu(**numbers)  # type: ignore[arg-type]
    growing = growing_mu(**numbers, growth=1.0)  # type: ignore[arg-type]
    assert growing == pytest.approx((mu,) * 500, rel=1e-9)


def test_general_form_of_the_paper() -> None:
    """mu_k = 21 at J = 3000, K = 1000, eps = 1."""
    scale = general_noise_scale(records=3000, steps=1000, epsilon=1.0, delta=1e-4)
    assert 1 / scale == pytest.approx(21, abs=0.1)
