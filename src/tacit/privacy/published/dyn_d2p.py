"""Dyn-D2P and its variants (Zhu, Huang, Wang, Ji and Xu): noise and accuracy as printed.

Symbols: C_k, clipping bound (`clip`, `[steps]`); sigma_k, noise standard deviation; mu_k = C_k /
sigma_k; p = 1 / J; mu_tot, the Gaussian-DP parameter of (eps, delta). The clipping schedule
cancels: Dyn[C] claims what Const-D2P does, Dyn-D2P what Dyn[mu] does.

*Accuracy*: Theorem 1 and Corollary 1, of smooth f_i on B-strongly connected column-stochastic P^k,
and of x-bar_k, the mean of the nodes. `noise` is sigma~_k, `[steps]`, up to a factor;
`push_sum_constant` and `push_sum_rate` are Psi and q in [0, 1) of the network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import logsumexp

from tacit.privacy.accounting.gaussian import Array, gaussian_delta, gaussian_epsilon
from tacit.privacy.published.formula import (
    ClaimedRun,
    Formula,
    FormulaCondition,
    one_record,
    positive,
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


def dyn_noise(clip: Sequence[float], noise: Sequence[float]) -> float:
    """T1 of Theorem 1: (1/K) sum_k C_k^2 / sigma~_k^2 times (1/K) sum_k sigma~_k^2."""
    over = math.fsum((c / s) ** 2 for c, s in zip(clip, noise, strict=True))
    return over * math.fsum(s**2 for s in noise) / len(noise) ** 2


def dyn_least_noise(clip: Sequence[float]) -> tuple[float, ...]:
    """The sigma~_k that make T1 least for given bounds: sqrt(C_k), `[steps]`, up to a factor.

    By Cauchy and Schwarz, (sum_k C_k)^2 = (sum_k (C_k / sigma~_k) sigma~_k)^2 is at most
    sum_k C_k^2 / sigma~_k^2 times sum_k sigma~_k^2, so that T1 >= ((1/K) sum_k C_k)^2. Both are
    equal if and only if C_k / sigma~_k is proportional to sigma~_k. With C_k proportional to
    rho_c^(-k/K) and sigma~_k to (rho_c rho_mu)^(-k/K) that is rho_mu = 1 / sqrt(rho_c): a budget a
    step that *falls*, while the paper's grows.
    """
    return tuple(math.sqrt(c) for c in clip)


def dyn_noise_variance(
    clip: Sequence[float], noise: Sequence[float], *, records: int, mu_total: float
) -> float:
    """The mean over the steps of equation 10's variance, in a coordinate: 2 K T1 / (J mu_tot)^2.

    Step k has sigma~ sigma~_k, sigma~ = sqrt(2 sum_k C_k^2 / sigma~_k^2) / (J mu_tot).
    """
    positive(records=records, mu_total=mu_total)
    return 2 * len(clip) * dyn_noise(clip, noise) / (records * mu_total) ** 2


def dyn_bound(
    clip: Sequence[float],
    noise_variance: float,
    *,
    rate: float,
    nodes: int,
    parameters: int,
    start_norm: float,
    smoothness: float,
    start_gap: float,
    push_sum_constant: float,
    push_sum_rate: float,
) -> tuple[float, float, float, float, float]:
    """Theorem 1 (equation 11): a bound of (1/K) sum_k E norm(grad f(x-bar_k))^2, less T2.

    Its terms: 2 (f(x-bar_0) - f*) / (gamma K); 3 N norm(x^0)^2 / K with N = L^2 Psi^2 / (1 - q)^2,
    for equal starts (`start_norm` is squared); 3 gamma^2 N times the mean square of a node's
    clipped gradient; gamma L times that of their mean, both of at most C_k; and the noise. This
    is printed as (6 gamma^2 K N d / (J mu_tot)^2 + 2 gamma K L d / (n J^2 mu_tot^2)) T1, which is
    (3 gamma^2 N + gamma L / n) d times `dyn_noise_variance`: here for noise of any variance, the
    mean over steps and nodes of that in a coordinate.
    """
    positive(rate=rate, nodes=nodes, parameters=parameters)
    apart = smoothness * push_sum_constant / (1 - push_sum_rate)
    network, square = apart * apart, math.fsum(c**2 for c in clip) / len(clip)
    return (
        2 * start_gap / (rate * len(clip)),
        3 * network * start_norm / len(clip),
        3 * rate**2 * network * square,
        rate * smoothness * square,
        (3 * rate**2 * network + rate * smoothness / nodes) * parameters * noise_variance,
    )


def dyn_steps(*, nodes: int, records: int, mu_total: float) -> float:
    """K = n J^2 mu_tot^2 of Corollary 1 (equation 12), not rounded.

    Its step size is 1 / (sqrt(n) J mu_tot), the bound then O(1 / ((1 - q)^2 sqrt(n) J mu_tot)) and
    T2, for J mu_tot > sqrt(n).
    """
    positive(nodes=nodes, records=records, mu_total=mu_total)
    return nodes * (records * mu_total) ** 2
