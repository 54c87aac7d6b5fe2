"""The convergence bound of PrivSGP-VR as a function of the number of steps, and its optimum.

Zhu, Huang, Wang and Xu, *PrivSGP-VR: Differentially Private Variance-Reduced Stochastic Gradient
Push with Tight Utility Bounds* (IJCAI 2024), in its own symbols:

| symbol | here | meaning |
|---|---|---|
| L | `smoothness` | Lipschitz constant of a record's gradient |
| b^2 | `heterogeneity` | mean over nodes of norm(grad f_i - grad f)^2 |
| F0 | `start_gap` | f(x^0) - f* |
| norm(x^0)^2 | `start_norm` | squared l2 norm of the start |
| d | `parameters` | trainable parameters |
| sigma_i^2 | `variances[i]` | noise of node i in one coordinate of its batch **mean** |
| G | `gradient_bound` | bound of every record's gradient norm |
| c2 | `c2` | the constant that the paper leaves open |

Pure arithmetic: nothing here reads data, and nothing is a statement about privacy. The claimed
noise is what the paper prints, not what holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "BoundConstants",
    "Budget",
    "claimed_variances",
    "convergence_bound",
    "least_steps",
    "optimal_steps",
    "published_steps",
]


@dataclass(frozen=True)
class BoundConstants:
    """What Theorem 1 reads of task, model and start.

    Args:
        smoothness: L.
        heterogeneity: b^2.
        start_gap: F0.
        start_norm: the squared norm of x^0.
        parameters: d.
    """

    smoothness: float
    heterogeneity: float
    start_gap: float
    start_norm: float
    parameters: int

    @property
    def noiseless(self) -> float:
        """The numerator of the bound without noise: 13 F0 + 6 L norm(x^0)^2 + 18 L b^2."""
        return 13 * self.start_gap + self.smoothness * (
            6 * self.start_norm + 18 * self.heterogeneity
        )


@dataclass(frozen=True)
class Budget:
    """One node's number of records J and its (epsilon, delta)."""

    records: int
    epsilon: float
    delta: float


def convergence_bound(constants: BoundConstants, variances: Sequence[float], steps: float) -> float:
    """Theorem 1: a bound of the mean over steps and nodes of E norm(grad f(z_i^k))^2.

    (13 F0 + 6 L norm(x^0)^2 + 18 L b^2 + 24 L (d / n) sum_i sigma_i^2) / sqrt(n K), for the step
    size sqrt(n / K).

    Args:
        constants: of the task.
        variances: noise variance in one coordinate of the batch mean, `[nodes]`; its mean over
            the steps where it varies.
        steps: K.
    """
    nodes = len(variances)
    noise = 24 * constants.smoothness * constants.parameters * math.fsum(variances) / nodes
    return (constants.noiseless + noise) / math.sqrt(nodes * steps)


def claimed_variances(
    budgets: Sequence[Budget], steps: float, *, gradient_bound: float, c2: float = 1.0
) -> tuple[float, ...]:
    """Theorem 2, as printed: sigma_i = 3 c2 G sqrt(K log(1 / delta_i)) / (J_i eps_i), squared.

    For one record a step. A claim: the noise that is really needed is another.
    """
    return tuple(
        steps
        * math.log(1 / budget.delta)
        * (3 * c2 * gradient_bound / (budget.records * budget.epsilon)) ** 2
        for budget in budgets
    )


def optimal_steps(constants: BoundConstants, variances_a_step: Sequence[float]) -> float:
    """The K that minimises the bound where each sigma_i^2 is K times a constant.

    (A + K s) / sqrt(n K) is least at K = A / s.

    Args:
        constants: of the task.
        variances_a_step: sigma_i^2 / K, `[nodes]`.
    """
    nodes = len(variances_a_step)
    noise = 24 * constants.smoothness * constants.parameters * math.fsum(variances_a_step) / nodes
    return constants.noiseless / noise


def published_steps(
    constants: BoundConstants,
    budgets: Sequence[Budget],
    *,
    gradient_bound: float,
    c2: float = 1.0,
) -> float:
    """K* of Corollary 1, for nodes that may differ in J: not rounded.

    With one J it is (13 F0 + 6 L norm(x^0)^2 + 18 L b^2) J^2 n over
    216 L d c2^2 G^2 sum_i log(1 / delta_i) / eps_i^2, as printed.
    """
    return optimal_steps(
        constants, claimed_variances(budgets, 1.0, gradient_bound=gradient_bound, c2=c2)
    )


def least_steps(smoothness: float, records: Sequence[int]) -> float:
    """The least K under which Theorem 1 can hold at all: the graph-free terms of its K^(C, q).

    The largest of 4 L^2 J^2 (1 + J), 16 (4 J + 5)^2 L^2 / n and 64 J^4 (1 + J)^2 L^2 n / 9
    (equation 92 without what multiplies the push-sum constant C, which only adds), at the
    smallest J.
    """
    nodes, smallest = len(records), min(records)
    return smoothness**2 * max(
        4.0 * smallest**2 * (1 + smallest),
        16.0 * (4 * smallest + 5) ** 2 / nodes,
        64.0 * smallest**4 * (1 + smallest) ** 2 * nodes / 9,
    )
