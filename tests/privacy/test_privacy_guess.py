"""How often a guess is right: the curve at epsilon 0 against other accountants and integrals."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.integrate import quad
from scipy.stats import norm

from tacit import privacy
from tacit.errors import InputError
from tacit.privacy.mechanisms.trials import BestOfTrials

Made = Callable[[float], privacy.Mechanism]
MADE: dict[str, Made] = {
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


def test_a_pair_of_epsilon_and_delta_bounds_the_guess() -> None:
    grid = np.linspace(0.0, 1.0, 200_001)
    loss, spent = 1.0, 0.01
    curve = np.maximum.reduce(
        [0 * grid, 1 - spent - math.exp(loss) * grid, math.exp(-loss) * (1 - spent - grid)]
    )
    apart = float((1 - grid - curve).max())
    assert privacy.delta(BestOfTrials([(loss, spent)]), epsilon=0.0) == pytest.approx(
        apart, abs=1e-5
    )


@pytest.mark.parametrize("guess", [0.5, 1.0, math.nan])
def test_a_guess_lies_between_blind_and_sure(guess: float) -> None:
    with pytest.raises(InputError, match=r"between 0\.5 and 1"):
        privacy.calibrate(MADE["gaussian"], guess=guess)
