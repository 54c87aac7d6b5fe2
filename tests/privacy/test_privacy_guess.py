"""How often a guess is right: the curve at epsilon 0 against other accountants and integrals."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.signal import fftconvolve
from scipy.stats import binom, norm

from tacit import privacy
from tacit.errors import InputError
from tacit.privacy.mechanisms.known import KnownRelease

Array = NDArray[np.float64]
Made = Callable[[float], privacy.Mechanism]
MADE = {
    "gaussian": lambda s: privacy.Gaussian(s, 30),
    "of finite arithmetic": lambda s: privacy.Gaussian(s, 30, coordinates=1000),
    "replace-one": lambda s: privacy.Gaussian(s, 30, relation="replace-one"),
    "rising noise": lambda s: privacy.SampledGaussian(
        sample_rate=0.1, noise_multiplier=[s, 2 * s, 3 * s]
    ),
    "sampled": lambda s: privacy.SampledGaussian(sample_rate=0.1, noise_multiplier=s, steps=50),
    "fixed batches": lambda s: privacy.FixedBatchGaussian(
        batch=10, records=100, noise_multiplier=s, steps=20
    ),
    "allocation": lambda s: privacy.RandomAllocationGaussian(
        epoch_steps=5, noise_multiplier=s, steps=10
    ),
    "laplace": lambda s: privacy.Laplace(sample_rate=1.0, noise_multiplier=s, steps=10),
    "clients": lambda s: privacy.ClientSampling(privacy.Gaussian(s, 1), rate=0.3, rounds=10),
    "composed": lambda s: privacy.Composed(
        [privacy.Gaussian(s, 3), privacy.Laplace(sample_rate=1.0, noise_multiplier=s, steps=3)]
    ),
    "rows": lambda s: privacy.for_a_unit(
        privacy.SampledGaussian(sample_rate=0.1, noise_multiplier=s, steps=20), 3
    ),
    "group of rows": lambda s: privacy.for_a_unit(
        privacy.FixedBatchGaussian(batch=10, records=100, noise_multiplier=s, steps=5), 2
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_the_least_noise_keeps_the_guess_and_hardly_less_does_not(name: str) -> None:
    made = MADE[name]
    scale = privacy.calibrate(made, guess=0.6)
    assert privacy.right_guess(made(scale)) <= 0.6
    assert privacy.right_guess(made(scale / 1.01)) > 0.6


@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.01, 1.0, 300), (0.1, 2.0, 100)])
def test_sampled_steps_agree_with_another_accountant(rate: float, noise: float, steps: int) -> None:
    mechanism = privacy.SampledGaussian(sample_rate=rate, noise_multiplier=noise, steps=steps)
    one = pld.from_gaussian_mechanism(noise, sampling_prob=rate)
    other = one.self_compose(steps).get_delta_for_epsilon(0.0)
    assert privacy.delta_bounds(mechanism, epsilon=0.0)[0] <= other
    assert 2 * privacy.right_guess(mechanism) - 1 == pytest.approx(other, rel=1e-3)


@pytest.mark.parametrize("mu", [1e-6, 0.1, 0.5, 2.0])
def test_one_gaussian_step_is_the_closed_form(mu: float) -> None:
    found = privacy.delta(privacy.Gaussian(1 / mu), epsilon=0.0)
    assert 2 * norm.cdf(mu / 2) - 1 <= found * (1 + 1e-9)
    assert found == pytest.approx(2 * norm.cdf(mu / 2) - 1, rel=1e-8)


@pytest.mark.parametrize(("rate", "noise"), [(0.05, 0.5), (0.3, 2.0)])
def test_a_sampled_step_is_the_integral_of_what_the_mixture_adds(rate: float, noise: float) -> None:
    def excess(x: float) -> float:
        return rate * max(0.0, norm.pdf(x, 1, noise) - norm.pdf(x, 0, noise))

    exact = quad(excess, 0.5, 1 + 12 * noise, limit=200)[0]
    mechanism = privacy.SampledGaussian(sample_rate=rate, noise_multiplier=noise, steps=1)
    assert exact <= privacy.delta(mechanism, epsilon=0.0) <= exact * (1 + 1e-3)


def mixture(means: Array, weights: Array) -> Array:
    """Masses of normal outputs of deviation 1 between fine edges."""
    edges = np.linspace(-9.0, 9.0, 90_001)
    below, above = (side(edges[:, None] - means) @ weights for side in (norm.cdf, norm.sf))
    return np.asarray(np.where(edges[:-1] > 0, -np.diff(above), np.diff(below)))


def laplace(shift: float) -> Array:
    """Masses of Laplace outputs of scale 1 about a shift, between edges where the loss changes."""
    at = np.concatenate(([-90.0], np.linspace(0.0, 0.2, 20_001), [90.0])) - shift
    below = np.exp(-np.abs(at)) / 2
    return np.diff(np.where(at > 0, 1 - below, below))


def sum_over(pairs: Sequence[tuple[Array, Array, int]], grain: float = 5e-5) -> float:
    """Total variation of steps with given masses, each so many times: losses rounded, convolved."""
    law, first = np.ones(1), 0
    for p, q, times in pairs:
        held = (p > 1e-18) & (q > 1e-18)
        places = np.rint(np.log(p[held] / q[held]) / grain).astype(int)
        step = np.bincount(places - places.min(), p[held])
        for _ in range(times):
            law, first = np.maximum(fftconvolve(law, step), 0.0), first + int(places.min())
    losses = (first + np.arange(len(law))) * grain
    return float(law @ np.maximum(0.0, -np.expm1(-losses)))


MEANS = np.array([0.0, 1.0])
POISSON = np.array([0.9, 0.1])
NULL = mixture(np.zeros(1), np.ones(1))
DRAWN = (mixture(MEANS / 4, POISSON), NULL, 20)
ROWS = mixture(np.arange(4) / 4, binom.pmf(np.arange(4), 3, 0.1))
SAMPLED = privacy.SampledGaussian(sample_rate=0.1, noise_multiplier=4.0, steps=20)
QUIET = privacy.SampledGaussian(sample_rate=0.1, noise_multiplier=8.0, steps=20)
STATE = privacy.PrivateState(
    sample_rate=0.1, drawn_norm=1.5, undrawn_norm=0.5, noise_multiplier=5.0, steps=10
)
LAPLACE = privacy.Laplace(sample_rate=1.0, noise_multiplier=5.0, steps=3)
SUMS = {
    "private state": (STATE, [(mixture(np.array([0.1, 0.3]), POISSON), NULL, 10)]),
    "private state, replaced": (
        replace(STATE, relation="replace-one"),
        [(mixture(np.array([0.1, 0.3]), POISSON), mixture(-np.array([0.1, 0.3]), POISSON), 10)],
    ),
    "three rows": (privacy.for_a_unit(SAMPLED, 3), [(ROWS, NULL, 20)]),
    "a person at two of three nodes": (
        privacy.across_nodes([QUIET, SAMPLED, QUIET], 2),
        [DRAWN, (mixture(MEANS / 8, POISSON), NULL, 20)],
    ),
    "of two kinds": (
        privacy.Composed([SAMPLED, LAPLACE]),
        [DRAWN, (laplace(0.2), laplace(0.0), 3)],
    ),
}


@pytest.mark.parametrize("name", SUMS)
def test_a_composition_is_the_sum_over_its_losses(name: str) -> None:
    mechanism, pairs = SUMS[name]
    exact, found = sum_over(pairs), privacy.delta(mechanism, epsilon=0.0)
    assert exact * (1 - 2e-5) <= found == pytest.approx(exact, rel=5e-4)


@pytest.mark.parametrize("carried", [False, True])
def test_where_draws_are_told_it_is_the_mean_over_them(carried: bool) -> None:
    """State of batches of fixed size, and state that carries every draw to all later messages."""
    draws, steps, rate, noise = np.arange(11), 10, 0.3, 8.0
    common = {"sample_rate": rate, "noise_multiplier": noise, "steps": steps}
    mu = draws / noise
    mechanism = privacy.PersistentState(**common)
    if not carried:
        mechanism = replace(STATE, **common, sampling="fixed", relation="replace-one")
        mu = 2 * np.sqrt(draws * 1.5**2 + (steps - draws) * 0.5**2) / noise
    exact = float(binom.pmf(draws, steps, rate) @ (2 * norm.cdf(mu / 2) - 1))
    assert exact <= privacy.delta(mechanism, epsilon=0.0) <= exact * (1 + 1e-6)


def test_a_pair_of_epsilon_and_delta_bounds_the_guess() -> None:
    grid = np.linspace(0.0, 1.0, 200_001)
    loss, spent = 1.0, 0.01
    curve = np.maximum.reduce(
        [0 * grid, 1 - spent - math.exp(loss) * grid, math.exp(-loss) * (1 - spent - grid)]
    )
    apart = float((1 - grid - curve).max())
    assert privacy.delta(KnownRelease([(loss, spent)]), epsilon=0.0) == pytest.approx(
        apart, abs=1e-5
    )


@pytest.mark.parametrize("guess", [0.5, 1.0, math.nan])
def test_a_guess_lies_between_blind_and_sure(guess: float) -> None:
    with pytest.raises(InputError, match=r"between 0\.5 and 1|finite"):
        privacy.calibrate(MADE["gaussian"], guess=guess)
