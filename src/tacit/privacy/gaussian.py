"""Closed forms of the Gaussian mechanism: the profile, its inverse, in numbers that do not break.

`mu` is sensitivity over noise standard deviation. The profile
`delta(eps; mu) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)` is exact (Balle and Wang,
*Improving the Gaussian mechanism*, Thm. 8; Dong, Roth and Su, Cor. 2.13).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

__all__ = ["gaussian_delta", "gaussian_epsilon", "gaussian_profile"]

Array = NDArray[np.float64]


def gaussian_profile(mu: float, epsilon: Array) -> Array:
    """Delta of a Gaussian mechanism at each epsilon (any real numbers), elementwise.

    The second term is formed in the logarithm and subtracted as a ratio, so that neither a large
    epsilon overflows nor a tiny delta drowns.
    """
    first = log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    gap = np.minimum(second - first, 0.0)
    return np.asarray(np.exp(first) * -np.expm1(gap), dtype=np.float64)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Delta of a Gaussian mechanism with sensitivity / standard deviation `mu` at `epsilon`."""
    return float(gaussian_profile(mu, np.asarray([epsilon], dtype=np.float64))[0])


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Smallest epsilon >= 0 with `gaussian_delta(mu, epsilon) <= delta`, rounded up by 1e-12.

    Returns infinity for `mu` above 1e150, where epsilon exceeds the floating-point range.
    """
    if mu > 1e150:
        return math.inf
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    low, high = 0.0, mu * mu / 2 + mu * 40 + 1.0
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if gaussian_delta(mu, middle) <= delta:
            high = middle
        else:
            low = middle
    return high * (1 + 1e-12)
