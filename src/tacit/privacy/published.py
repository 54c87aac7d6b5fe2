"""The papers' privacy formulas, exactly as printed: what they claim, not what holds.

A claim is evaluated for the noise that really runs, so that claimed and certified epsilon are
about the same mechanism. The formulas are printed for one record a step, where sum and mean are
one; for larger batches they are applied to the batch **mean** as printed, and the reading says so.

Symbols: G or C_k, the clipping bound; sigma or sigma_k, the noise standard deviation in the mean;
J, records of the node; K, steps; p = 1 / J; mu_tot, the total Gaussian-DP parameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from tacit.privacy.gaussian import Array, gaussian_epsilon

__all__ = [
    "DYN_D2P",
    "DYN_GENERAL",
    "PRIVSGP",
    "ClaimedRun",
    "Condition",
    "Formula",
]


@dataclass(frozen=True)
class ClaimedRun:
    """What a published formula reads of one node's run.

    Args:
        records: J.
        clip: clipping bound of each step.
        noise_std: standard deviation of the noise in the batch mean, each step.
        expected_batch: q J; the papers draw one record.
        delta: the delta of the claim.
        constant: the unspecified constant (c2 of PrivSGP-VR).
    """

    records: int
    clip: Sequence[float]
    noise_std: Sequence[float]
    expected_batch: float
    delta: float
    constant: float = 1.0

    @property
    def mu(self) -> Array:
        """mu_k = C_k / sigma_k, each step."""
        return np.asarray(self.clip, np.float64) / np.asarray(self.noise_std, np.float64)


@dataclass(frozen=True)
class Condition:
    """A condition that the paper states, or silently needs, and whether this run meets it."""

    text: str
    holds: bool


@dataclass(frozen=True)
class Formula:
    """A published privacy formula.

    Args:
        statement: the formula as printed, in one line.
        source: paper and number.
        reading: how it is applied here, in the way kindest to the paper.
        epsilon: the epsilon it claims for a run; infinity if the formula overflows.
        conditions: what it needs.
    """

    statement: str
    source: str
    reading: str
    epsilon: Callable[[ClaimedRun], float]
    conditions: Callable[[ClaimedRun], tuple[Condition, ...]]


def privsgp_epsilon(run: ClaimedRun) -> float:
    """Theorem 2 of PrivSGP-VR: eps = 3 c2 G sqrt(K log(1 / delta)) / (J sigma)."""
    sigma_over_g = 1.0 / float(np.max(run.mu))
    steps = len(run.clip)
    root = math.sqrt(steps * math.log(1 / run.delta))
    return 3 * run.constant * root / (run.records * sigma_over_g)


def _privsgp_conditions(run: ClaimedRun) -> tuple[Condition, ...]:
    steps = len(run.clip)
    ratio = privsgp_epsilon(run) * run.records**2 / steps
    return (
        Condition(f"eps < c1 K / J^2: needs c1 above {ratio:.3g}, c1 is not printed", ratio < 1),
        Condition(
            "the moments lemma needs sigma / G of 1 or more for one record a step",
            float(np.max(run.mu)) <= 1,
        ),
        _one_record(run),
    )


def dyn_d2p_epsilon(run: ClaimedRun) -> float:
    """Dyn-D2P: mu_tot = p sqrt(sum_k (e^{mu_k^2} - 1)), p = 1 / J, then Gaussian DP.

    Evaluated in the logarithm, since e^{mu_k^2} leaves the floating-point range early.
    """
    squares = run.mu**2
    # log(e^s - 1) = s + log(1 - e^-s)
    log_sum = float(logsumexp(squares + np.log(-np.expm1(-squares))))
    log_mu = log_sum / 2 - math.log(run.records)
    if log_mu > math.log(1e150):
        return math.inf
    return gaussian_epsilon(math.exp(log_mu), run.delta)


def _dyn_d2p_conditions(run: ClaimedRun) -> tuple[Condition, ...]:
    largest = float(np.max(run.mu))
    hits = len(run.clip) * run.expected_batch / run.records
    return (
        Condition(
            "the central limit behind it needs small mu_k and many hits "
            f"(largest mu_k {largest:.3g}, hits expected {hits:.3g})",
            largest <= 1 and hits >= 10,
        ),
        _one_record(run),
    )


def dyn_general_epsilon(run: ClaimedRun) -> float:
    """The general form: sigma~ = (1 / (J mu_tot)) sqrt(2 sum_k C_k^2 / sigma~_k^2).

    With sigma_k = sigma~ sigma~_k injected, mu_tot = sqrt(2 sum_k mu_k^2) / J.
    """
    mu_total = math.sqrt(2 * math.fsum(run.mu**2)) / run.records
    return gaussian_epsilon(mu_total, run.delta)


def _dyn_general_conditions(run: ClaimedRun) -> tuple[Condition, ...]:
    largest = float(np.max(run.mu))
    return (
        Condition(
            f"e^x - 1 < 2 x holds for x <= 1 only (largest mu_k^2 here {largest**2:.3g})",
            largest <= 1,
        ),
        _one_record(run),
    )


def _one_record(run: ClaimedRun) -> Condition:
    return Condition(
        f"printed for one record a step (expected here {run.expected_batch:.4g})",
        run.expected_batch <= 1,
    )


_MEAN = "applied to the mean over the batch as printed for one record a step"

PRIVSGP = Formula(
    statement="eps = 3 c2 G sqrt(K log(1/delta)) / (J sigma)",
    source="PrivSGP-VR, Theorem 2",
    reading=f"G is the clipping bound, c2 is [privacy].published_constant; {_MEAN}",
    epsilon=privsgp_epsilon,
    conditions=_privsgp_conditions,
)
DYN_D2P = Formula(
    statement="mu_tot = (1/J) sqrt(sum_k (e^(mu_k^2) - 1)), mu_k = C_k / sigma_k, then Gaussian DP",
    source="Dyn-D2P",
    reading=f"Bernoulli sampling and one record left out, as Proposition 3 has it; {_MEAN}",
    epsilon=dyn_d2p_epsilon,
    conditions=_dyn_d2p_conditions,
)
DYN_GENERAL = Formula(
    statement="mu_tot = (1/J) sqrt(2 sum_k C_k^2 / sigma_k^2), then Gaussian DP",
    source="Dyn-D2P, Algorithm 2",
    reading=f"sigma_k is the noise injected at step k; {_MEAN}",
    epsilon=dyn_general_epsilon,
    conditions=_dyn_general_conditions,
)
