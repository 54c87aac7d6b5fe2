"""Oracles for the accountant, built from first principles and sharing nothing with it.

- Profiles of one step in 50 digits, from tail probabilities at the crossing of the densities.
- A lower bound for composed pairs: every step's output is replaced by the interval that it falls
  in, which is post-processing, so the hockey-stick divergence of the intervals bounds the true one
  from below.
- dp_accounting's own accountant on a fine grid.
"""

import math
from dataclasses import dataclass
from functools import reduce

import mpmath as mp
import numpy as np
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.privacy_accountant import NeighboringRelation
from numpy.typing import NDArray
from scipy.stats import norm

Array = NDArray[np.float64]


def gaussian_profile_exact(mu, epsilon):
    with mp.workdps(60):
        m, e = mp.mpf(mu), mp.mpf(epsilon)
        return mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m)


def gaussian_epsilon_exact(mu, delta):
    with mp.workdps(60):
        low, high = mp.mpf(0), mp.mpf(mu) ** 2 + 40 * mp.mpf(mu)
        for _ in range(110):
            middle = (low + high) / 2
            above = gaussian_profile_exact(mu, middle) > delta
            low, high = (middle, high) if above else (low, middle)
        return high


def _crossing(rate, mu, ratio):
    """The x where ((1-q) n(x) + q n(x - mu)) / n(x) = ratio; minus infinity if it is above."""
    lifted = (ratio - 1 + mp.mpf(rate)) / mp.mpf(rate)
    return mp.log(lifted) / mu + mp.mpf(mu) / 2 if lifted > 0 else -mp.inf


def _above(x, mean=0.0):
    return mp.ncdf(mean - x) if mp.isfinite(x) else mp.mpf(1)


def remove_profile_exact(rate, mu, epsilon):
    """H of (1-q) N(0,1) + q N(mu,1) from N(0,1): both masses right of the crossing."""
    with mp.workdps(50):
        ratio = mp.exp(mp.mpf(epsilon))
        x = _crossing(rate, mu, ratio)
        sampled = (1 - mp.mpf(rate)) * _above(x) + rate * _above(x, mu)
        return sampled - ratio * _above(x)


def add_profile_exact(rate, mu, epsilon):
    """H of N(0,1) from (1-q) N(0,1) + q N(mu,1): both masses left of the crossing."""
    with mp.workdps(50):
        ratio = mp.exp(mp.mpf(epsilon))
        x = _crossing(rate, mu, 1 / ratio)
        if not mp.isfinite(x):
            return mp.mpf(0)
        sampled = (1 - mp.mpf(rate)) * mp.ncdf(x) + rate * mp.ncdf(x - mu)
        return mp.ncdf(x) - ratio * sampled


def remove_profile_by_quadrature(rate, mu, epsilon):
    """The definition: the integral of max(P - e^eps Q, 0), cut where the integrand starts."""
    with mp.workdps(30):
        ratio = mp.exp(mp.mpf(epsilon))

        def excess(x):
            sampled = (1 - mp.mpf(rate)) * mp.npdf(x) + rate * mp.npdf(x - mu)
            return max(sampled - ratio * mp.npdf(x), mp.mpf(0))

        x = _crossing(rate, mu, ratio)
        inner = [mp.mpf(v) for v in (-12, -4, 0, mu / 2, mu, mu + 4, mu + 12) if v > x]
        start = [x] if mp.isfinite(x) else [mp.mpf(-30)]
        return mp.quad(excess, [*start, *inner, max(x, mp.mpf(mu)) + 30])


@dataclass(frozen=True)
class Pair:
    """Two distributions over the same intervals, `[intervals]` each."""

    p: Array
    q: Array

    @property
    def reverse(self):
        return Pair(self.q, self.p)

    def delta(self, epsilon):
        return float(np.maximum(self.p - math.exp(epsilon) * self.q, 0).sum())

    def epsilon(self, delta):
        """An epsilon >= 0 at which delta is still exceeded, within 1e-5; 0 if there is none."""
        if self.delta(0.0) <= delta:
            return 0.0
        low, high = 0.0, 1.0
        while self.delta(high) > delta:
            low, high = high, 2 * high
        while high - low > 1e-5:
            middle = (low + high) / 2
            low, high = (middle, high) if self.delta(middle) > delta else (low, middle)
        return low


def compose(pairs):
    """All combinations of intervals: `[intervals^steps]`."""
    return reduce(
        lambda done, step: Pair(np.outer(done.p, step.p).ravel(), np.outer(done.q, step.q).ravel()),
        pairs,
    )


def intervals_of(rate, shift, opposite=0.0, *, count):
    """(1-q) N(0,1) + q N(shift,1) and (1-q) N(0,1) + q N(opposite,1), binned into intervals."""
    ends = np.linspace(min(opposite, 0.0) - 7.5, shift + 7.5, count - 1)

    def masses(mean):
        below = np.concatenate(([0.0], norm.cdf(ends, mean), [1.0]))
        above = np.concatenate(([1.0], norm.sf(ends, mean), [0.0]))
        return np.where(below[1:] < 0.5, np.diff(below), -np.diff(above))

    rest = (1 - rate) * masses(0.0)
    return Pair(rest + rate * masses(shift), rest + rate * masses(opposite))


def their_epsilon(rate, runs, delta, *, replace=False, grid):
    """dp_accounting's PLD accountant: `runs` of (noise multiplier, steps)."""
    relation = NeighboringRelation.REPLACE_ONE if replace else NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = PLDAccountant(relation, value_discretization_interval=grid)
    for multiplier, steps in runs:
        accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier)), steps)
    return float(accountant.get_epsilon(delta))
