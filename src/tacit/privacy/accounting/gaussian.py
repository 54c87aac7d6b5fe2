"""Closed forms of the Gaussian mechanism: the profile, its inverse, in numbers that do not break.

`mu` is sensitivity over noise standard deviation. The profile
`delta(eps; mu) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)` is exact (Balle and Wang,
*Improving the Gaussian mechanism*, Thm. 8; Dong, Roth and Su, Cor. 2.13).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

Array = NDArray[np.float64]
_LEAST = 1e-150  # a mu whose square is a number; rounded up to it, delta is 0 all the same


def gaussian_profile(mu: float | Array, epsilon: Array) -> Array:
    """Delta of a Gaussian mechanism at each epsilon (any real numbers), elementwise.

    The second term is formed in the logarithm and subtracted as a ratio, so that neither a large
    epsilon overflows nor a tiny delta drowns.
    """
    first, second = _log_terms(mu, epsilon)
    gap = np.minimum(second - first, 0.0)
    return np.asarray(np.exp(first) * -np.expm1(gap), dtype=np.float64)


def _log_terms(mu: float | Array, epsilon: Array) -> tuple[Array, Array]:
    """Logarithms of the two terms of the profile."""
    # Bounded so that the logarithms stay finite: beyond it both terms are 0, or both are 1.
    scaled = np.clip(epsilon / mu, -1e150, 1e150)
    return log_ndtr(mu / 2 - scaled), epsilon + log_ndtr(-mu / 2 - scaled)


def gaussian_delta(mu: float, epsilon: float, *, upper: bool = True) -> float:
    """Delta of a Gaussian mechanism with sensitivity / standard deviation `mu`, rounded up.

    For a small `mu` the two terms nearly cancel, so what rounding may have taken is counted in
    units of their logarithms, not of their difference. Without `upper` it is rounded down. `mu` is
    0 or more, and epsilon any number.
    """
    mu = max(mu, _LEAST)
    first, second = (
        float(term[0]) for term in _log_terms(mu, np.asarray([epsilon], dtype=np.float64))
    )
    # An argument of log_ndtr is off by a rounding of mu or epsilon / mu, times the slope there.
    slope = 1 + math.sqrt(2 * abs(second - epsilon))
    sizes = 1 + abs(first) + abs(second) + abs(epsilon) + slope * (mu + abs(epsilon) / mu)
    rounding = 1e-15 * sizes if upper else -1e-15 * sizes
    difference = -math.expm1(min(second - first, 0.0))
    return max(0.0, min(1.0, math.exp(first) * (difference + rounding) * (1 + rounding)))


def gaussian_deltas(mu: Array, epsilon: float) -> Array:
    """`gaussian_delta` of many `mu` at an epsilon of 0 or more, rounded up alike, `[mu]`."""
    mu = np.maximum(mu, _LEAST)
    scaled = np.minimum(epsilon / mu, 1e150)
    first, second = log_ndtr(mu / 2 - scaled), epsilon + log_ndtr(-mu / 2 - scaled)
    slope = 1 + np.sqrt(2 * np.abs(second - epsilon))
    sizes = 1 + np.abs(first) + np.abs(second) + epsilon + slope * (mu + scaled)
    difference = -np.expm1(np.minimum(second - first, 0.0)) + 1e-15 * sizes
    return np.asarray(np.minimum(1.0, np.exp(first) * difference * (1 + 1e-15 * sizes)))


def least(
    enough: Callable[[float], bool], high: float, *, tolerance: float, most: float = math.inf
) -> float:
    """The least number that is enough, as are all above it: never below it, relatively near.

    The search begins at `high`, and doubles it; the result is infinite beyond `most`.
    """
    low = 0.0
    while not enough(high):
        low, high = high, 2 * high
        if high > most:
            return math.inf
    while high - low > tolerance * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def gaussian_epsilon(mu: float, delta: float, *, upper: bool = True) -> float:
    """Smallest epsilon >= 0 with `gaussian_delta(mu, epsilon) <= delta`, rounded up (or down).

    Returns infinity for `mu` above 1e150, where epsilon exceeds the floating-point range.
    """
    if mu > 1e150:
        return math.inf
    mu = max(mu, _LEAST)
    if gaussian_delta(mu, 0.0, upper=upper) <= delta:
        return 0.0
    low, high = 0.0, mu * mu / 2 + mu * 40 + 1.0
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if gaussian_delta(mu, middle, upper=upper) <= delta:
            high = middle
        else:
            low = middle
    return high * (1 + 1e-12) if upper else low * (1 - 1e-12)
