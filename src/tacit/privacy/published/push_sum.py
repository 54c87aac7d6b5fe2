"""PrivSGP, PrivSGP-VR and the Dyn-D2P family: noise and composition as printed.

*PrivSGP and PrivSGP-VR* (Zhu, Huang, Wang and Xu, IJCAI 2024), Theorem 2. Both are
claimed to need the same noise; what they release differs, and with it what is certified. DP2-SGD
and A(DP)2SGD run at PrivSGP's noise and claim nothing of their own.

*Dyn-D2P and its variants* (Zhu, Huang, Wang, Ji and Xu). Symbols: C_k, clipping bound; sigma_k,
noise standard deviation; mu_k = C_k / sigma_k; p = 1 / J; mu_tot, the Gaussian-DP parameter of
(eps, delta). The clipping schedule cancels: Dyn[C] claims what Const-D2P does, Dyn-D2P what Dyn[mu]
does.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import logsumexp

from tacit.errors import InputError
from tacit.privacy.accounting.gaussian import Array, gaussian_delta, gaussian_epsilon
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


def total_mu(epsilon: float, delta: float) -> float:
    """mu_tot: the mu with delta = Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2).

    Raises:
        InputError: epsilon is not positive, or delta lies outside (0, 1).
    """
    positive(epsilon=epsilon, delta=delta, room=1 - delta)

    def excess(log_mu: float) -> float:
        return gaussian_delta(math.exp(log_mu), epsilon) - delta

    return math.exp(_root(excess, math.log(1e-9), math.log(1e9), xtol=1e-14))


def constant_mu(*, records: int, steps: int, epsilon: float, delta: float) -> float:
    """mu-bar of Const-D2P and Dyn[C]: sqrt(log(J^2 mu_tot^2 / K + 1)), as printed."""
    positive(records=records, steps=steps)
    return math.sqrt(math.log1p((records * total_mu(epsilon, delta)) ** 2 / steps))


def growing_mu(
    *, records: int, steps: int, epsilon: float, delta: float, growth: float
) -> tuple[float, ...]:
    """mu_k = mu_0 rho_mu^{k/K} of Dyn-D2P and Dyn[mu], mu_0 solved for as printed, `[steps]`.

    mu_tot = (1/J) sqrt(sum_k (e^{mu_k^2} - 1)) is solved in the logarithm. `records` is J, `steps`
    K, and `growth` rho_mu; epsilon and delta are those of the claim.
    """
    positive(records=records, steps=steps, growth=growth)
    shape = growth ** (np.arange(steps) / steps)
    target = math.log(records * total_mu(epsilon, delta))
    # A single step at the largest mu has at most the whole sum; the rest follows by bracketing.
    high = 1.001 * math.sqrt(math.log1p(math.exp(2 * target)))
    low = high / float(shape.max()) / math.sqrt(steps) / 10
    first = _root(lambda mu: _log_composed(mu * shape) - target, low, high, xtol=1e-15)
    return tuple((first * shape).tolist())


def general_noise_scale(*, records: int, steps: int, epsilon: float, delta: float) -> float:
    """The sigma / C of Algorithm 2 where both sequences are constant: sqrt(2 K) / (J mu_tot)."""
    positive(records=records, steps=steps)
    return math.sqrt(2 * steps) / (records * total_mu(epsilon, delta))


def _root(function: Callable[[float], float], low: float, high: float, *, xtol: float) -> float:
    """Where a function between `low` and `high` is 0."""
    from scipy.optimize import brentq  # here, since it is slow and few runs need it

    return float(brentq(function, low, high, xtol=xtol))


def _log_composed(mu: Array) -> float:
    """The log of sqrt(sum_k (e^{mu_k^2} - 1)): e^{mu_k^2} leaves the floating-point range early."""
    squares = mu**2
    # log(e^s - 1) = s + log(1 - e^-s)
    return float(logsumexp(squares + np.log(-np.expm1(-squares)))) / 2


def dyn_d2p_epsilon(run: ClaimedRun) -> float:
    """Dyn-D2P: mu_tot = p sqrt(sum_k (e^{mu_k^2} - 1)), p = 1 / J, then Gaussian DP."""
    log_mu = _log_composed(run.mu) - math.log(run.records)
    if log_mu > math.log(1e150):
        return math.inf
    return gaussian_epsilon(math.exp(log_mu), run.delta)


def _dyn_d2p_conditions(run: ClaimedRun) -> tuple[FormulaCondition, ...]:
    largest = float(np.max(run.mu))
    draws = len(run.clip) * run.expected_batch / run.records
    return (
        FormulaCondition(
            "the central limit behind it needs small mu_k and many hits "
            f"(largest mu_k {largest:.3g}, hits expected {draws:.3g})",
            largest <= 1 and draws >= 10,
        ),
        one_record(run),
    )


def dyn_general_epsilon(run: ClaimedRun) -> float:
    """The general form: sigma~ = (1 / (J mu_tot)) sqrt(2 sum_k C_k^2 / sigma~_k^2).

    With sigma_k = sigma~ sigma~_k injected, mu_tot = sqrt(2 sum_k mu_k^2) / J.
    """
    mu_total = math.sqrt(2 * math.fsum(run.mu**2)) / run.records
    return gaussian_epsilon(mu_total, run.delta)


def _dyn_general_conditions(run: ClaimedRun) -> tuple[FormulaCondition, ...]:
    largest = float(np.max(run.mu))
    return (
        FormulaCondition(
            f"e^x - 1 < 2 x holds for x <= 1 only (largest mu_k^2 here {largest**2:.3g})",
            largest <= 1,
        ),
        one_record(run),
    )


_MEAN = "applied to the mean over the batch as printed for one record a step"

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
