"""What Dyn-D2P promises of accuracy (Zhu, Huang, Wang, Ji and Xu): Theorem 1 and Corollary 1.

Of smooth f_i on B-strongly connected column-stochastic P^k, and of x-bar_k, the mean of the nodes.
`clip` and `noise` are C_k and sigma~_k, `[steps]`, the latter up to a factor; `push_sum_constant`
and `push_sum_rate` are Psi and q in [0, 1) of the network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tacit.privacy.published.formula import positive


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
