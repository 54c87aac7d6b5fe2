"""One step on the grid: above the true profile everywhere, and close to it."""

import math
from collections.abc import Callable
from functools import partial

import mpmath as mp
import numpy as np
import pytest
from privacy_oracles import (
    Array,
    add_profile_exact,
    intervals_of,
    remove_profile_by_quadrature,
    remove_profile_exact,
)

from tacit.privacy.composition import MASS_ROUNDING, Losses, delta_at
from tacit.privacy.losses import (
    Directions,
    fixed_batch_step,
    poisson_replace_step,
    poisson_zero_out_step,
    sampled_profile,
)

Profile = Callable[[float], mp.mpf]

RATES = [1e-4, 1 / 3000, 0.01, 0.5, 0.999]
MULTIPLIERS = [0.3, 0.5, 1.0, 5.0, 30.0]
GRID = 2e-3
# What rounding may take off a profile of one step: composition counts as much for each.
ROUNDING = MASS_ROUNDING


def epsilons_of(rate: float, mu: float) -> list[float]:
    """Where the profile bends: between grid points and close to them, both signs, far tails."""
    scales = [1e-3 * GRID, 0.37 * GRID, 5.5 * GRID, 0.1, 0.4, 1.0]
    reach = mu * mu / 2 + 6 * mu
    ends = [-math.log1p(-rate), reach, reach / 2, reach / 7, 4 * rate * mu, rate / 3]
    points = [sign * value for value in scales + ends for sign in (1, -1)]
    return [point for point in points if abs(point) <= mu * mu / 2 + 11 * mu]


def mass(losses: Losses) -> float:
    return float(losses.masses.sum()) + losses.infinite


def larger_delta(directions: Directions, epsilon: float) -> float:
    return max(delta_at(direction, epsilon) for direction in directions)


def assert_dominates(profile: Profile, epsilon: float, found: float) -> None:
    """On or above the true profile, and on its chord between the two nearest grid points.

    Connecting the dots means exactly that chord, linear in e^epsilon, so nothing is left to give.
    """
    assert found >= profile(epsilon) - ROUNDING
    left = math.floor(epsilon / GRID) * GRID
    right = left + GRID
    share = (math.exp(epsilon - left) - 1) / math.expm1(GRID)
    chord = (1 - share) * profile(left) + share * profile(right)
    assert found == pytest.approx(float(chord), rel=1e-9, abs=1e-11)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("multiplier", MULTIPLIERS)
def test_poisson_zero_out_dominates_both_directions(rate: float, multiplier: float) -> None:
    mu = 1 / multiplier
    remove, add = poisson_zero_out_step(rate, multiplier, GRID)
    for epsilon in epsilons_of(rate, mu):
        right = partial(remove_profile_exact, rate, mu)
        assert_dominates(right, epsilon, delta_at(remove, epsilon))
        reverse = partial(add_profile_exact, rate, mu)
        assert_dominates(reverse, epsilon, delta_at(add, epsilon))


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("multiplier", MULTIPLIERS)
def test_fixed_batch_dominates_the_larger_direction(rate: float, multiplier: float) -> None:
    mu = 2 / multiplier

    def larger(epsilon: float) -> mp.mpf:
        return max(remove_profile_exact(rate, mu, epsilon), add_profile_exact(rate, mu, epsilon))

    (losses,) = fixed_batch_step(rate, multiplier, GRID)
    for epsilon in epsilons_of(rate, mu):
        assert_dominates(larger, epsilon, delta_at(losses, epsilon))


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("multiplier", MULTIPLIERS)
@pytest.mark.parametrize("grid", [1e-2, 6e-4])
def test_masses_sum_to_one(rate: float, multiplier: float, grid: float) -> None:
    for step in (poisson_zero_out_step, poisson_replace_step, fixed_batch_step):
        for losses in step(rate, multiplier, grid):
            assert 1 - MASS_ROUNDING <= mass(losses) <= 1 + 1e-11
            assert losses.masses.min() >= 0


@pytest.mark.parametrize("rate", [0.01, 0.5, 0.999])
@pytest.mark.parametrize("multiplier", [0.5, 1.0, 5.0])
def test_poisson_replace_one_dominates_opposite_contributions(
    rate: float, multiplier: float
) -> None:
    mu = 1 / multiplier
    pair = intervals_of(rate, mu, -mu, count=40_000)
    directions = poisson_replace_step(rate, multiplier, GRID)
    for epsilon in [0.0, 0.37 * GRID, 0.01, 0.1, 0.5, 1.0, 3.0]:
        found = larger_delta(directions, epsilon)
        assert found >= pair.delta(epsilon) - ROUNDING
        left = math.floor(epsilon / GRID) * GRID
        share = (math.exp(epsilon - left) - 1) / math.expm1(GRID)
        chord = (1 - share) * pair.delta(left) + share * pair.delta(left + GRID)
        assert found == pytest.approx(chord, abs=1e-7)


@pytest.mark.parametrize("rate", [1e-4, 0.01, 0.999])
@pytest.mark.parametrize("mu", [0.03, 0.5, 7.0])
def test_sampled_profile_is_the_integral(rate: float, mu: float) -> None:
    epsilons = [2 * math.log1p(-rate), 0.5 * math.log1p(-rate), 0.0, 0.3 * rate, 0.9, 1.1, 4.0]
    found = sampled_profile(rate, mu, np.asarray(epsilons))
    for epsilon, value in zip(epsilons, found.tolist(), strict=True):
        truth = float(remove_profile_by_quadrature(rate, mu, epsilon))
        assert value == pytest.approx(truth, rel=1e-10, abs=1e-15)
        # The second oracle, used wherever a quadrature would be too slow.
        assert float(remove_profile_exact(rate, mu, epsilon)) == pytest.approx(
            truth, rel=1e-10, abs=1e-20
        )


def test_sampled_profile_far_out() -> None:
    """Neither a large nor a very negative epsilon leaves the floating-point range."""
    epsilons = np.asarray([-1e4, -50.0, 0.999, 1.0, 1.001, 300.0, 720.0, 1300.0, 1e5])
    mu = 50.0
    found: Array = sampled_profile(0.01, mu, epsilons)
    for epsilon, value in zip(epsilons.tolist(), found.tolist(), strict=True):
        truth = float(remove_profile_exact(0.01, mu, epsilon))
        assert value == pytest.approx(truth, rel=1e-10, abs=1e-300)


@pytest.mark.parametrize("multiplier", [0.02, 0.03])
def test_losses_beyond_the_floating_point_range(multiplier: float) -> None:
    """The mean loss of a hit is 1250 and 556 here: e^loss is no number."""
    mu, rate, grid = 1 / multiplier, 0.01, 0.1
    zero_out = poisson_zero_out_step(rate, multiplier, grid)
    replace = fixed_batch_step(rate, 2 * multiplier, grid)
    assert mass(zero_out[0]) == pytest.approx(1, abs=MASS_ROUNDING)
    for deviations in (-5, -2, 0, 1, 4):
        epsilon = mu * mu / 2 + deviations * mu
        truth = float(remove_profile_exact(rate, mu, epsilon))
        for found in (larger_delta(zero_out, epsilon), larger_delta(replace, epsilon)):
            assert truth <= found * (1 + 1e-12)
            assert found <= float(remove_profile_exact(rate, mu, epsilon - 2 * grid))


@pytest.mark.parametrize("grid", [1e-2, 6e-4, 1.5e-4])
@pytest.mark.parametrize(("rate", "multiplier"), [(0.9, 0.5), (0.2, 1.0), (1 / 3000, 3.0)])
def test_rounding_stays_within_what_is_counted_on_fine_grids(
    rate: float, multiplier: float, grid: float
) -> None:
    """Where it once fell short by 3e-14: second differences of a profile lose digits."""
    (losses,) = fixed_batch_step(rate, multiplier, grid)
    mu = 2 / multiplier
    for cells in (0, 1, 7, 50, 300):
        epsilon = cells * grid
        truth = max(remove_profile_exact(rate, mu, epsilon), add_profile_exact(rate, mu, epsilon))
        assert delta_at(losses, epsilon) >= truth - ROUNDING
    for direction, profile in zip(
        poisson_zero_out_step(rate, multiplier, grid),
        (remove_profile_exact, add_profile_exact),
        strict=True,
    ):
        for cells in (0, 1, 7, 50, 300):
            truth = profile(rate, 1 / multiplier, cells * grid)
            assert delta_at(direction, cells * grid) >= truth - ROUNDING
