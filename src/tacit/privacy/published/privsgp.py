"""PrivSGP and PrivSGP-VR (Zhu, Huang, Wang and Xu, IJCAI 2024): noise and accuracy as printed.

*Noise*: Theorem 2. Both are claimed to need the same; what they release differs, and with it what
is certified. DP2-SGD and A(DP)2SGD run at PrivSGP's noise and claim nothing of their own.

*Accuracy*: Theorem 1 and Corollary 1 of PrivSGP-VR, in its own symbols.

| symbol | here | meaning |
|---|---|---|
| L | `smoothness` | Lipschitz constant of every record's gradient |
| b^2 | `heterogeneity` | mean over nodes of norm(grad f_i - grad f)^2 |
| F0 | `start_gap` | f(x^0) - f* |
| norm(x^0)^2 | `start_norm` | squared l2 norm of the start |
| d | `parameters` | trainable parameters |
| sigma_i^2 | `variances[i]` | noise of node i in one coordinate of its batch **mean** |
| G | `gradient_bound` | bound of every record's gradient norm |
| c2 | `c2` | the constant that the paper leaves open |
| C, q | `push_sum_constant`, `push_sum_rate` | of push-sum's convergence, C q^k |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tacit.errors import InputError
from tacit.privacy.published.formula import (
    ClaimedRun,
    Formula,
    FormulaCondition,
    one_record,
    positive,
)


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


def _privsgp_conditions(run: ClaimedRun) -> tuple[FormulaCondition, ...]:
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
    conditions=_privsgp_conditions,
)


THEOREM = "PrivSGP-VR, Theorem 1"


@dataclass(frozen=True)
class BoundConstants:
    """What Theorem 1 of PrivSGP-VR reads of task, model and start; symbols as in the module.

    Raises:
        InputError: L or d is not positive and finite, or another is negative or not finite.
    """

    smoothness: float
    heterogeneity: float
    start_gap: float
    start_norm: float
    parameters: int

    def __post_init__(self) -> None:
        positive(smoothness=self.smoothness, parameters=self.parameters)
        for name in ("heterogeneity", "start_gap", "start_norm"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise InputError(name, value, "must be zero or more, and finite")

    @property
    def noiseless(self) -> float:
        """The numerator of the bound without noise: 13 F0 + 6 L norm(x^0)^2 + 18 L b^2."""
        return 13 * self.start_gap + self.smoothness * (
            6 * self.start_norm + 18 * self.heterogeneity
        )


@dataclass(frozen=True)
class Budget:
    """One node's number of records J and its (epsilon, delta).

    Raises:
        InputError: J or epsilon is not positive and finite, or delta lies outside (0, 1).
    """

    records: int
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        positive(records=self.records, epsilon=self.epsilon)
        if not 0 < self.delta < 1:
            raise InputError("delta", self.delta, "must lie strictly between 0 and 1")


def convergence_bound(constants: BoundConstants, variances: Sequence[float], steps: float) -> float:
    """Theorem 1: a bound of the mean over steps and nodes of E norm(grad f(z_i^k))^2.

    (13 F0 + 6 L norm(x^0)^2 + 18 L b^2 + 24 L (d / n) sum_i sigma_i^2) / sqrt(n K), for the step
    size sqrt(n / K) and K of at least `least_steps`. It falls with K for a given noise; with the
    noise that a budget needs, it has a least value: see `published_steps`.

    `steps` is K. `variances` `[nodes]` are those of the noise in one coordinate of the batch mean;
    of each, its mean over the steps where it varies.
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
    """The K that minimises Theorem 1's bound where each sigma_i^2 is K times a constant.

    (A + K s) / sqrt(n K) is least at K = A / s. `variances_a_step` are sigma_i^2 / K, `[nodes]`.
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
    216 L d c2^2 G^2 sum_i log(1 / delta_i) / eps_i^2, as printed. It rests on Theorem 2's noise,
    which is too small: it is the paper's optimum, not one under certified noise.
    """
    return optimal_steps(
        constants, claimed_variances(budgets, 1.0, gradient_bound=gradient_bound, c2=c2)
    )


def published_bound(
    constants: BoundConstants,
    budgets: Sequence[Budget],
    *,
    gradient_bound: float,
    c2: float = 1.0,
) -> float:
    """Corollary 1: Theorem 1's bound after K* steps with Theorem 2's noise.

    With one J it is 12 c2 G sqrt(6 L d (13 F0 + 6 L norm(x^0)^2 + 18 L b^2) sum_i log(1/delta_i) /
    eps_i^2) / (n J), as printed. K* is not rounded.
    """
    a_step = claimed_variances(budgets, 1.0, gradient_bound=gradient_bound, c2=c2)
    noise = 24 * constants.smoothness * constants.parameters * math.fsum(a_step) / len(budgets)
    # At K* both parts of the numerator are equal: 2 A / sqrt(n K*), K* = A / s.
    return 2 * math.sqrt(constants.noiseless * noise / len(budgets))


def least_steps(
    smoothness: float,
    records: Sequence[int],
    *,
    push_sum_constant: float = 0.0,
    push_sum_rate: float = 0.0,
) -> float:
    """K^(C, q) of equation 92: the least K at which Theorem 1 holds.

    The largest of 4 n L^2 (J^2 (1 + J) / n + 12 (1 + J) C^2 / (1 - q)^2),
    144 n^3 L^2 C^4 / (1 - q)^4, 16 (4 J + 5)^2 L^2 / n, 4 L^2 C^2 (48 J + 66) n / (1 - q)^2 and
    64 J^4 (1 + J)^2 L^2 n / 9, at the smallest J (`records` are those of each node). Without C and
    q it is what every graph needs at the least, since all that they multiply only adds. Here
    q = lambda^(1 / (Delta B + 1)), lambda = 1 - n e^(Delta B), with e the least weight that is not
    zero.

    Raises:
        InputError: C is negative, or q lies outside [0, 1).
    """
    if not 0 <= push_sum_constant < math.inf:
        raise InputError("push_sum_constant", push_sum_constant, "must be zero or more, and finite")
    if not 0 <= push_sum_rate < 1:
        raise InputError("push_sum_rate", push_sum_rate, "must be from 0 to below 1")
    n, j = len(records), min(records)
    apart = push_sum_constant / (1 - push_sum_rate)
    apart *= apart  # not a power, which raises where a product is infinite
    return (
        smoothness
        * smoothness
        * max(
            4.0 * n * (j**2 * (1 + j) / n + 12 * (1 + j) * apart),
            144.0 * n**3 * apart * apart,
            16.0 * (4 * j + 5) ** 2 / n,
            4.0 * apart * (48 * j + 66) * n,
            64.0 * j**4 * (1 + j) ** 2 * n / 9,
        )
    )


def utility_order(
    *,
    nodes: int,
    records: int,
    parameters: int,
    epsilon: float,
    delta: float,
    method: Literal["privsgp-vr", "server", "adp2-sgd"] = "privsgp-vr",
) -> float:
    """What Table 1 of PrivSGP-VR compares: the order of the best bound, without its constants.

    sqrt(d log(1 / delta)) / (sqrt(n) J eps) for PrivSGP-VR and for the methods with a server that
    it compares itself with; sqrt(n) times that for A(DP)2SGD. Orders are for comparing how a bound
    moves with n, J, d and the budget: two of them say nothing about which bound is smaller.

    `nodes` is n, `records` J and `parameters` d; J and the budget are those of every node.

    Raises:
        InputError: a number is out of range, or the method is unknown.
    """
    positive(nodes=nodes, parameters=parameters)
    budget = Budget(records, epsilon, delta)
    gains = {"privsgp-vr": math.sqrt(nodes), "server": math.sqrt(nodes), "adp2-sgd": 1.0}
    if method not in gains:
        raise InputError("method", method, f"must be one of {', '.join(gains)}")
    root = math.sqrt(parameters * math.log(1 / budget.delta))
    return root / (gains[method] * budget.records * budget.epsilon)
