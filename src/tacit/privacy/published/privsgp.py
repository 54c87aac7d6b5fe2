"""PrivSGP and PrivSGP-VR (Zhu, Huang, Wang and Xu, IJCAI 2024): Theorem 2 and Corollary 1.

Both algorithms are claimed to need the same noise; what they release differs, and with it what is
certified (`settings_peer`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacit.errors import InputError
from tacit.privacy.published.formula import (
    ClaimedRun,
    Formula,
    FormulaCondition,
    one_record,
    positive,
)

__all__ = ["PRIVSGP", "UtilityConstants", "optimal_steps", "privsgp_noise"]


def privsgp_noise(
    *, records: int, steps: float, epsilon: float, delta: float, constant: float = 1.0
) -> float:
    """Theorem 2's sigma / G = 3 c2 sqrt(K log(1 / delta)) / (J eps), as printed.

    Raises:
        InputError: a number is not positive, or delta lies outside (0, 1).
    """
    positive(records=records, steps=steps, epsilon=epsilon, constant=constant)
    if not 0 < delta < 1:
        raise InputError("delta", delta, "must lie strictly between 0 and 1")
    return 3 * constant * math.sqrt(steps * math.log(1 / delta)) / (records * epsilon)


def privsgp_epsilon(run: ClaimedRun) -> float:
    """Theorem 2 solved for eps: 3 c2 G sqrt(K log(1 / delta)) / (J sigma).

    With a schedule, the step with the least noise decides: the theorem knows one sigma.
    """
    sigma_over_g = 1.0 / float(np.max(run.mu))
    steps = len(run.clip)
    root = math.sqrt(steps * math.log(1 / run.delta))
    return 3 * run.constant * root / (run.records * sigma_over_g)


def _conditions(run: ClaimedRun) -> tuple[FormulaCondition, ...]:
    steps = len(run.clip)
    ratio = privsgp_epsilon(run) * run.records**2 / steps
    return (
        FormulaCondition(
            f"eps < c1 K / J^2: needs c1 above {ratio:.3g}, c1 is not printed", ratio < 1
        ),
        FormulaCondition(
            "the moments lemma needs sigma / G of 1 or more for one record a step",
            float(np.max(run.mu)) <= 1,
        ),
        one_record(run),
    )


PRIVSGP = Formula(
    statement="eps = 3 c2 G sqrt(K log(1/delta)) / (J sigma)",
    source="PrivSGP-VR, Theorem 2",
    reading=(
        "G is the clipping bound, c2 is [privacy].published_constant; applied to the mean over "
        "the batch as printed for one record a step"
    ),
    epsilon=privsgp_epsilon,
    conditions=_conditions,
)


@dataclass(frozen=True)
class UtilityConstants:
    """What the convergence bound of PrivSGP-VR (Theorem 1) reads of a problem.

    Args:
        smoothness: L.
        gradient_bound: G, the norm that no record's gradient exceeds.
        heterogeneity: b^2, mean squared distance of the nodes' gradients from their mean.
        gap: F0 = f(x0) - f*.
        start_norm_squared: ||x0||^2.
        dimension: d.
    """

    smoothness: float
    gradient_bound: float
    heterogeneity: float
    gap: float
    start_norm_squared: float
    dimension: int


def optimal_steps(
    constants: UtilityConstants,
    *,
    records: int,
    epsilon: Sequence[float],
    delta: Sequence[float],
    constant: float = 1.0,
) -> float:
    """K* of Corollary 1, as printed: the steps at which Theorem 1's bound is least.

    K* = (13 F0 + 6 L ||x0||^2 + 18 L b^2) J^2 n / (216 L d c2^2 G^2 sum_i log(1/delta_i)/eps_i^2).
    It rests on Theorem 2's noise, which is too small (module docstring of `settings_peer`): it is
    the paper's optimum, not one under certified noise.

    Args:
        constants: of the problem.
        records: J.
        epsilon: one a node; their number is n.
        delta: one a node.
        constant: c2.

    Raises:
        InputError: the budgets differ in number, are none, or a number is out of range.
    """
    if not epsilon or len(epsilon) != len(delta):
        raise InputError("delta", list(delta), f"needs one number a node, {len(epsilon)}, not none")
    L, G, d = constants.smoothness, constants.gradient_bound, constants.dimension
    positive(smoothness=L, gradient_bound=G, dimension=d, records=records, constant=constant)
    burden = 0.0
    for node_epsilon, node_delta in zip(epsilon, delta, strict=True):
        positive(epsilon=node_epsilon)
        if not 0 < node_delta < 1:
            raise InputError("delta", node_delta, "must lie strictly between 0 and 1")
        burden += math.log(1 / node_delta) / node_epsilon**2
    start = 13 * constants.gap + 6 * L * constants.start_norm_squared
    numerator = (start + 18 * L * constants.heterogeneity) * records**2 * len(epsilon)
    return numerator / (216 * L * d * constant**2 * G**2 * burden)
