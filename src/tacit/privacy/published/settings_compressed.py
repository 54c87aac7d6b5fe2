"""The experiments of DO-ADP and of the methods it is compared with, with the mechanism of each.

What an agent sends is a function of its noised gradients, so its Top_k compression is free of
charge and without credit; who is active is visible. T, G and delta_0 of the MNIST runs are not
printed: T = 1000 and 10,000 and delta_0 = 1e-5 here (G cancels). With all coordinates sent the
noised gradient can be read off the messages, and linear losses attain the pair; with fewer, no
instance is known that does.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tacit.privacy.mechanisms.composed import (
    ClientSampling,
    FixedBatchGaussian,
    Mechanism,
    SampledGaussian,
)
from tacit.privacy.published.do_adp import DO_ADP, DoAdpRun, do_adp_noise, do_adp_theorem_delta
from tacit.privacy.published.setting import KINDEST, ONE_OF_J, PaperSetting, certified_bounds

__all__ = ["do_adp_settings"]

_PAPER = "DO-ADP"
_FAILURE = 1e-5  # delta_0
_MNIST = ("MNIST, n = 20", 3000)
_EPSILON_SET = ("epsilon set, n = 20", 20_000)


def do_adp_settings() -> Iterator[PaperSetting]:
    """DO-ADP at both tasks, then its baselines, which print no claim and no noise."""
    name, records = _MNIST
    runs = ((1000, 1.0), (1000, 0.9), (1000, 0.8), (10_000, 1.0))
    for (steps, epsilon), kept, activation in product(runs, (1.0, 0.4), (1.0, 0.8)):
        yield from _do_adp(name, records, steps, epsilon, kept, activation, "T assumed; ")
    name, records = _EPSILON_SET
    for kept, activation in product((1.0, 0.3), (1.0, 0.8)):
        yield from _do_adp(name, records, 120_000, 0.01, kept, activation, "")
    yield from _baselines()


def _do_adp(
    name: str,
    records: int,
    steps: int,
    epsilon: float,
    kept: float,
    activation: float,
    assumed: str,
) -> Iterator[PaperSetting]:
    noise = do_adp_noise(
        records=records,
        steps=steps,
        epsilon=epsilon,
        activation=activation,
        kept=kept,
        failure=_FAILURE,
    )
    run = DoAdpRun(records, steps, noise, activation, kept, _FAILURE)
    theorem = do_adp_theorem_delta(run)
    experiment = f"{name}, T = {steps}, eps = {epsilon:g}, p = {activation:g}, k/d = {kept:g}"
    poisson, fixed = _when_active(records, noise, steps, activation)
    for mechanism, delta, text, kindest in (
        (poisson, theorem, f"{KINDEST}; the theorem's own delta, {theorem:.3g}", True),
        (poisson, _FAILURE, f"{KINDEST}; {assumed}delta_0 = 1e-5 read as the delta", False),
        (fixed, _FAILURE, f"{ONE_OF_J}; {assumed}delta_0 = 1e-5 read as the delta", False),
    ):
        yield PaperSetting(
            paper=_PAPER,
            algorithm="DO-ADP",
            experiment=experiment,
            reading=text,
            kindest=kindest,
            claimed=epsilon,
            delta=delta,
            noise_multiplier=(noise, noise),
            relation=mechanism.relation,
            mechanism=mechanism,
            bounds=certified_bounds(mechanism, bound_is_tight=kept == 1),
            conditions=DO_ADP.conditions(run),
        )


def _when_active(
    records: int, noise: float, steps: int, activation: float
) -> tuple[Mechanism, Mechanism]:
    """The two readings; where activation is random and seen, delta is its mean over patterns."""
    if activation == 1:
        poisson: Mechanism = SampledGaussian(1 / records, noise, steps)
        return poisson, FixedBatchGaussian(1, records, noise, steps)
    return (
        ClientSampling(SampledGaussian(1 / records, noise, 1), activation, steps),
        ClientSampling(FixedBatchGaussian(1, records, noise, 1), activation, steps),
    )


def _baselines() -> Iterator[PaperSetting]:
    experiment = "epsilon set, n = 20"
    for algorithm, missing in (
        ("DPDO", "the decay rates of step and Laplace scale are not printed"),
        ("DP-DDA", "the noise variance is not printed"),
        ("CPGT", "the Laplace scales of its two variables are not printed"),
    ):
        yield PaperSetting(
            paper=_PAPER,
            algorithm=algorithm,
            experiment=experiment,
            reading="none",
            missing=missing,
        )
