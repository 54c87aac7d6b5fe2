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
from dataclasses import replace
from functools import lru_cache

import numpy as np
from scipy.special import ndtr

from tacit.privacy.composition import Losses, grid_profile
from tacit.privacy.gaussian import Array, gaussian_profile

__all__ = [
    "Directions",
    "fixed_batch_step",
    "poisson_replace_step",
    "poisson_zero_out_step",
    "sampled_profile",
]

# The losses of a pair (P, Q) and of (Q, P), or of one of them where both are the same.
Directions = tuple[Losses, ...]

# A loss above which the second mass of a cell may leave the floating-point range.
_STEEP = 600.0
# Standard deviations beyond which the mass (below 1e-32) is counted as infinite loss.
_REACH = 12.0


@lru_cache(maxsize=256)
def poisson_zero_out_step(rate: float, multiplier: float, grid: float) -> Directions:
    """One Poisson-sampled Gaussian step under add-or-remove-one, both directions.

    P = (1-q) N(0,1) + q N(mu,1) against Q = N(0,1), mu = 1 / multiplier. The loss
    log(1 - q + q e^(mu x - mu^2/2)) rises with x, so that a cell of losses is an interval of x.
    """
    mu = 1.0 / multiplier
    reach = mu * mu / 2 + _REACH * mu
    losses = _points(max(math.log1p(-rate), -reach), reach, grid)
    edges = _unsampled_loss(rate, losses) / mu + mu / 2
    q = _cell_masses(edges)
    p = (1 - rate) * q + rate * _cell_masses(edges - mu)
    return _connected(p, q, losses, grid)


@lru_cache(maxsize=256)
def poisson_replace_step(rate: float, multiplier: float, grid: float) -> Directions:
    """One Poisson-sampled Gaussian step under replace-one: opposite contributions of size C.

    P = (1-q) N(0,1) + q N(mu,1) against Q = (1-q) N(0,1) + q N(-mu,1), mu = 1 / multiplier: the
    mirror image, so both directions are the same. The loss is odd and rises with x; with
    y = e^(mu x) and c = q e^(-mu^2/2) it is l where c y^2 + (1-q)(1 - e^l) y - c e^l = 0.
    """
    mu = 1.0 / multiplier
    reach = min(2 * mu * mu + 2 * _REACH * mu, mu * mu / 2 + _REACH * mu - math.log1p(-rate))
    losses = _points(-reach, reach, grid)
    size = np.abs(losses)
    log_c = math.log(rate) - mu * mu / 2
    with np.errstate(divide="ignore"):
        linear = math.log1p(-rate) + np.log(-np.expm1(-size))
    root = np.logaddexp(2 * linear, math.log(4) + 2 * log_c - size) / 2
    edges = np.sign(losses) * (size + np.logaddexp(linear, root) - math.log(2) - log_c) / mu
    centre = _cell_masses(edges)
    p = (1 - rate) * centre + rate * _cell_masses(edges - mu)
    q = (1 - rate) * centre + rate * _cell_masses(edges + mu)
    return _connected(p, q, losses, grid)[:1]


def _points(lowest: float, highest: float, grid: float) -> Array:
    """Multiples of the grid that cover an interval."""
    first, last = math.floor(lowest / grid), math.ceil(highest / grid)
    return np.arange(first, last + 1, dtype=np.float64) * grid


def _connected(p: Array, q: Array, losses: Array, grid: float) -> Directions:
    """Connect the dots of a pair, in both directions.

    Args:
        p: masses of P below, between and above the grid losses, `[cells + 1]`.
        q: masses of Q likewise.
        losses: ascending multiples of `grid`, `[cells]`.
        grid: their distance.
    """
    p_in, q_in = p[1:-1], q[1:-1]
    steep, deep = losses[1:] > _STEEP, losses[:-1] < -_STEEP
    # q_r of the module's docstring; the rest by what is left over, so that no mass is lost to the
    # division by a small number. What rounding moves goes to the other end of its own cell.
    ratio = np.exp(-np.maximum(losses[:-1], -_STEEP)) * p_in
    q_right = np.clip((ratio - q_in) / np.expm1(grid), 0.0, q_in)
    p_right = np.minimum(q_right * np.exp(np.minimum(losses[1:], _STEEP)), p_in)
    # Where e^-loss leaves the floating-point range, the cell's mass q goes to its lower end, the
    # higher loss of the reverse direction; where e^loss does, its mass p to the upper end.
    q_right = np.where(deep, 0.0, q_right)
    p_right = np.where(steep | deep, p_in, p_right)
    mass_q = np.append(q_in - q_right, 0.0) + np.append(0.0, q_right)
    mass_p = np.append(p_in - p_right, 0.0) + np.append(0.0, p_right)
    mass_p[0] += p[0]
    mass_q[-1] += q[-1]
    lowest, highest = round(losses[0] / grid), round(losses[-1] / grid)
    return (
        Losses(grid, lowest, mass_p, float(p[-1])),
        Losses(grid, -highest, mass_q[::-1].copy(), float(q[0])),
    )


def _cell_masses(edges: Array) -> Array:
    """Standard normal mass left of, between and right of ascending edges, exact in both tails."""
    below = np.concatenate(([0.0], ndtr(edges), [1.0]))
    above = np.concatenate(([1.0], ndtr(-edges), [0.0]))
    centre = np.concatenate(([-np.inf], edges))
    return np.asarray(np.where(centre < 0, np.diff(below), -np.diff(above)), dtype=np.float64)


@lru_cache(maxsize=256)
def fixed_batch_step(rate: float, multiplier: float, grid: float) -> Directions:
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
    losses = Losses(grid, -reach, masses, float(profile[-1]))
    # Second differences of a profile lose digits: where they fall short of it, the gap is counted
    # as infinite loss.
    short = max(0.0, float(np.max(profile - grid_profile(losses)[reach:])))
    return (replace(losses, infinite=losses.infinite + short),)


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
