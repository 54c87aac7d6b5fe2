"""Privacy loss distributions of one step, discretised so that every error is on the safe side.

A pair (P, Q) is put on a grid of losses by *connecting the dots* (Doroshenko et al., 2022) in its
mass-splitting form: in a cell [l, r] of the loss log(dP/dQ), the masses p of P and q of Q are moved
to the cell's two ends so that both are kept,

    q_r = (p - e^l q) / (e^r - e^l),   q_l = (e^r q - p) / (e^r - e^l),
    p_l = e^l q_l,                     p_r = e^r q_r.

The result dominates the pair: its profile interpolates the true one linearly in e^eps at the grid
points. Losses above the grid are counted as infinite, losses below it are raised to its end.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
    from_gaussian_mechanism,
)
from dp_accounting.privacy_accountant import NeighboringRelation
from scipy.special import ndtr

from tacit.privacy.gaussian import Array, gaussian_profile

__all__ = ["fixed_batch_step", "poisson_replace_step", "poisson_zero_out_step", "sampled_profile"]

# A loss above which the second mass of a cell may leave the floating-point range.
_STEEP = 600.0
# Standard deviations beyond which the mass (below 1e-32) is counted as infinite loss.
_REACH = 12.0


@lru_cache(maxsize=512)
def poisson_zero_out_step(rate: float, multiplier: float, grid: float) -> PrivacyLossDistribution:
    """One Poisson-sampled Gaussian step under add-or-remove-one, both directions.

    P = (1-q) N(0,1) + q N(mu,1) against Q = N(0,1), mu = 1 / multiplier. The loss
    log(1 - q + q e^(mu x - mu^2/2)) rises with x, so that a cell of losses is an interval of x.
    """
    mu = 1.0 / multiplier
    reach = mu * mu / 2 + _REACH * mu
    lowest = math.floor(max(math.log1p(-rate), -reach) / grid)
    highest = math.ceil(reach / grid)
    losses = np.arange(lowest, highest + 1, dtype=np.float64) * grid
    edges = _unsampled_loss(rate, losses) / mu + mu / 2
    q = _cell_masses(edges)
    p = (1 - rate) * q + rate * _cell_masses(edges - mu)
    step = np.expm1(grid)
    ratio = np.exp(-losses[:-1]) * p[1:-1]  # p e^-l: both ends from the same two numbers
    right = np.maximum(ratio - q[1:-1], 0.0) / step
    left = np.maximum((1 + step) * q[1:-1] - ratio, 0.0) / step
    mass_q = np.append(left, 0.0) + np.append(0.0, right)
    # Where e^loss leaves the floating-point range, the cell's mass p is raised to its upper end.
    steep = losses[1:] > _STEEP
    lift = np.exp(np.minimum(losses, _STEEP))
    mass_p = np.append(np.where(steep, 0.0, left * lift[:-1]), 0.0)
    mass_p += np.append(0.0, np.where(steep, p[1:-1], right * lift[1:]))
    mass_p[0] += p[0]
    mass_q[-1] += q[-1]
    return PrivacyLossDistribution(
        pld_pmf.DensePLDPmf(grid, lowest, mass_p, float(p[-1]), True),
        pld_pmf.DensePLDPmf(grid, -highest, mass_q[::-1].copy(), float(q[0]), True),
    )


def _cell_masses(edges: Array) -> Array:
    """Standard normal mass left of, between and right of ascending edges, exact in both tails."""
    below = np.concatenate(([0.0], ndtr(edges), [1.0]))
    above = np.concatenate(([1.0], ndtr(-edges), [0.0]))
    centre = np.concatenate(([-np.inf], edges))
    return np.asarray(np.where(centre < 0, np.diff(below), -np.diff(above)), dtype=np.float64)


@lru_cache(maxsize=512)
def poisson_replace_step(rate: float, multiplier: float, grid: float) -> PrivacyLossDistribution:
    """One Poisson-sampled Gaussian step under replace-one: opposite contributions of size C.

    dp_accounting takes the deviation over C and opposes the contributions itself. It overflows
    for a very large deviation; with less noise the bound holds as well.
    """
    return from_gaussian_mechanism(
        standard_deviation=min(multiplier, 1e9),
        sampling_prob=rate,
        value_discretization_interval=grid,
        neighboring_relation=NeighboringRelation.REPLACE_ONE,
    )


@lru_cache(maxsize=512)
def fixed_batch_step(rate: float, multiplier: float, grid: float) -> PrivacyLossDistribution:
    """One step on a batch of fixed size under replace-one: the maximum of both directions.

    A maximum of two profiles, each convex and falling in e^eps, is one too, so it is the profile
    of some pair and is put on the grid by its values. The pair is symmetric: the mass at a loss -l
    is e^-l times the mass at l, so that only losses from 0 up are read off the profile, where it
    is small and its differences are accurate.
    """
    mu = 2.0 / multiplier
    reach = math.ceil((mu * mu / 2 + _REACH * mu) / grid)
    points = np.arange(reach + 1, dtype=np.float64) * grid
    remove = sampled_profile(rate, mu, points)
    # H_a(Q||P) = 1 - a + a H_{1/a}(P||Q), and 0 for a > 1 / (1 - q).
    last = -math.log1p(-rate)
    near = np.minimum(points, last)
    reverse = -np.expm1(near) + np.exp(near) * sampled_profile(rate, mu, -near)
    add = np.where(points < last, reverse, 0.0)
    profile = np.minimum.accumulate(np.clip(np.maximum(remove, add), 0.0, 1.0))
    fall = -np.diff(profile)
    above = fall / -np.expm1(-grid) - np.append(fall[1:], 0.0) / np.expm1(grid)
    above = np.maximum(above, 0.0)
    below = above * np.exp(-points[1:])
    centre = max(0.0, 1.0 - float(profile[-1]) - float(np.sum(above)) - float(np.sum(below)))
    masses = np.concatenate((below[::-1], [centre], above))
    return PrivacyLossDistribution(
        pld_pmf.DensePLDPmf(grid, -reach, masses, float(profile[-1]), True)
    )


def sampled_profile(rate: float, mu: float, epsilon: Array) -> Array:
    """Hockey-stick divergence of ((1-q) N(0,1) + q N(mu,1)) from N(0,1) at each epsilon.

    For a = e^eps > 1 - q it is q delta_Gauss(log(1 + (a - 1) / q); mu) (advanced joint convexity,
    here an equality); below, the first density exceeds a times the second everywhere: 1 - a.
    """
    unsampled = _unsampled_loss(rate, epsilon)
    inside = np.isfinite(unsampled)
    profile = gaussian_profile(mu, np.where(inside, unsampled, 0.0))
    return np.where(inside, rate * profile, -np.expm1(np.minimum(epsilon, 0.0)))


def _unsampled_loss(rate: float, losses: Array) -> Array:
    """log(1 + (e^l - 1) / q): the Gaussian's own loss where the sampled one's is l.

    Minus infinity from log(1 - q) down. Formed without cancellation near 0, and without overflow
    for a loss above 709.
    """
    with np.errstate(divide="ignore"):
        near = np.log1p(np.maximum(np.expm1(np.minimum(losses, 1.0)) / rate, -1.0))
    far = losses - math.log(rate) + np.log1p((rate - 1) * np.exp(-np.maximum(losses, 1.0)))
    return np.asarray(np.where(losses < 1.0, near, far), dtype=np.float64)
