"""Pairs that are lists of losses, each with a mass: own ones, whole-numbered noise, allocation.

*Points*. What is (epsilon_i, delta_i)-DP in both directions for every i has a profile below the
lower convex hull, in a = e^epsilon, of these points, of their images (1 - 1/a_i + delta_i / a_i at
1/a_i) and of (0, 1), flat from the last point on. That hull is the profile of a symmetric pair of
atoms at +-epsilon_i and 0 (`hull`). *Renyi divergences* give such points: with s = order - 1,
delta(epsilon) <= E[e^(s L)] k(s) e^(-s epsilon), k(s) = s^s / (1+s)^(1+s); s times the divergence
is convex in s, so that chords between known orders hold. Proofs: `docs/proofs/curves.md`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Self

import numpy as np
from scipy.special import erf, expit, ndtr

from tacit.privacy.accounting.allocation import Ratios, likelihood_ratios
from tacit.privacy.accounting.gaussian import Array
from tacit.privacy.mechanisms.counted import RenyiDP

_PLACES = 16.0  # of a list, for what counts as a standard deviation of outputs
_FEW = 1 << 12  # atoms that are kept as they are, not put into cells
_MOST_DISTANCE = 40.0
_RAISED = 1 + 1e-9  # more than rounding takes from what a hull says between points so far apart:
_APART = 1e-6
FARTHEST = 700.0  # a loss whose exponential is a number
_SLOPES = np.geomspace(1e-5, 1e8, 1500)  # s
_FALLING = np.append(np.arange(0.0, 40.0, 0.05), np.geomspace(40.0, 690.0, 280))  # -log delta


@dataclass(frozen=True, eq=False)
class Binned:
    """The masses of a pair (P, Q) between ascending losses.

    Args:
        losses: log(dP/dQ) at the ends of the cells, `[cells + 1]`.
        p: masses of P where the loss lies below, between and above them, `[cells + 2]`.
        q: masses of Q likewise.
        bounded: nothing lies beyond the outermost losses: what is below has the lowest loss
            itself, what is above the highest.
        middle: mass of P (and of Q) at a loss of 0 beside the cells.
        mirrored: the cells' mirror image belongs to the pair as well, with P and Q swapped.
        p_error: what rounding may have moved in each mass, in units of roundoff, `[cells + 2]`.
        q_error: likewise.
        size: what a loss was formed of, whose rounding it may carry.
    """

    losses: Array
    p: Array
    q: Array
    bounded: bool
    middle: float
    mirrored: bool
    p_error: Array
    q_error: Array
    size: float

    @property
    def reverse(self) -> Binned:
        """The pair (Q, P)."""
        return replace(
            self,
            losses=-self.losses[::-1],
            p=self.q[::-1],
            q=self.p[::-1],
            p_error=self.q_error[::-1],
            q_error=self.p_error[::-1],
        )


@dataclass(frozen=True, eq=False)
class Listed:
    """Ascending losses with their masses under P and Q, `[losses]`.

    `lost_p` is mass of P whose loss may be infinite, `lost_q` of Q whose loss may be -infinite;
    masses err by `p_units` and `q_units` units of roundoff, losses by those of `size`.
    """

    losses: Array
    p: Array
    q: Array
    lost_p: float
    lost_q: float
    p_units: float
    q_units: float
    size: float

    @property
    def reverse(self) -> Listed:
        """The pair (Q, P)."""
        ascending = (-self.losses[::-1], self.q[::-1], self.p[::-1])
        return Listed(*ascending, self.lost_q, self.lost_p, self.q_units, self.p_units, self.size)

    def delta(self, epsilon: float, *, upper: bool) -> float:
        """What the list says, rounded up or down."""
        over = self.losses > epsilon
        terms = self.p[over] * -np.expm1(epsilon - self.losses[over])
        units = (self.p_units + 8) * terms.sum() + 4 * (self.size + epsilon) * self.p[over].sum()
        error = 2.0**-53 * float(units)
        total = math.fsum([*terms.tolist(), self.lost_p, error if upper else -error])
        return min(max(total, 0.0), 1.0)


class ListedStep:
    """A step whose pair is a list. What stands for an output is a place in it.

    `lowest` is the cell of the lowest loss: the first one, or (0) what lies below all cells.
    """

    lowest = 1

    @property
    @abstractmethod
    def listed(self) -> Listed:
        """The list."""

    @property
    def is_short(self) -> bool:
        """Its atoms are composed as they are."""
        return len(self.listed.losses) <= _FEW

    @property
    def alike(self) -> Self:
        """Itself."""
        return self

    @property
    def both_ways(self) -> bool:
        """(P, Q) and (Q, P) may have different losses."""
        return False

    @property
    def distance(self) -> float:
        """About that of two means over the noise that make the largest loss, where that is less."""
        largest = float(np.abs(self.listed.losses).max())
        return min(math.sqrt(2 * largest), _MOST_DISTANCE)

    @property
    def largest_loss(self) -> float:
        """In either direction."""
        lost = self.listed.lost_p > 0 or self.listed.lost_q > 0
        return math.inf if lost else float(np.abs(self.listed.losses).max())

    def total_variations(self, levels: Array) -> Array:
        """At least that of each level, all of which are 1, `[levels]`."""
        ways = (self.listed, self.listed.reverse)
        return np.full(len(levels), max(way.delta(0.0, upper=True) for way in ways))

    def scaled(self, level: float) -> Self:
        """Itself: there is no other level than 1."""
        return self

    def interval(self, reach: float) -> tuple[float, float]:
        """The places between which all but Phi(-reach) of P and of Q lies, on either side."""
        listed, beyond = self.listed, float(ndtr(-reach))
        from_below = np.cumsum(listed.q)
        from_above = np.cumsum(listed.p[::-1])
        low, high = (int(np.searchsorted(mass, beyond)) for mass in (from_below, from_above))
        last = len(listed.losses) - 1
        return min(low, last) / _PLACES, max(last - high, min(low, last) + 1) / _PLACES

    def loss(self, x: Array) -> Array:
        """The privacy loss at each place."""
        losses = self.listed.losses
        return np.asarray(np.interp(x * _PLACES, np.arange(len(losses)), losses))

    def binned(self, edges: Array) -> Binned:
        """Masses between places, `[cells + 1]`."""
        listed, ends = self.listed, self.loss(edges)
        cell = np.searchsorted(ends, listed.losses)
        cell[listed.losses == ends[0]] = self.lowest
        q, p = (
            np.bincount(cell, masses, len(edges) + 1).astype(np.float64)
            for masses in (listed.q, listed.p)
        )
        q[0] += listed.lost_q
        p[-1] += listed.lost_p
        return Binned(
            ends,
            p,
            q,
            bounded=False,
            middle=0.0,
            mirrored=False,
            p_error=listed.p_units * p,
            q_error=listed.q_units * q,
            size=listed.size,
        )


@dataclass(frozen=True)
class AllocationStep(ListedStep):
    """One epoch of random allocation (`allocation`): P = (1/t) sum_i N(e_i, ..) against N(0, ..).

    Args:
        means: 1 / z of the steps that are released, ascending, each with how many.
        steps: t, of the whole epoch.
    """

    means: tuple[tuple[float, int], ...]
    steps: int
    lowest = 0

    @property
    def listed(self) -> Listed:
        """The law of the likelihood ratio, from above."""
        ratios: Ratios = likelihood_ratios(self.means, self.steps)
        at = np.log(ratios.values)
        # A word modulo t draws no step by more than t / 2^64 likelier, or less likely, than 1 / t.
        uneven = self.steps * 2.0**-11
        return Listed(
            at,
            ratios.masses * ratios.values,
            ratios.masses,
            ratios.lost_p,
            ratios.lost_q,
            len(at) + 16 + uneven,
            len(at) + 16,
            float(np.abs(at[[0, -1]]).max()) + 4 + uneven,
        )

    @property
    def is_short(self) -> bool:
        """Its list is a grid, which cells follow."""
        return False

    @property
    def distance(self) -> float:
        """The largest distance of the means of a step."""
        return self.means[-1][0]

    @property
    def largest_loss(self) -> float:
        """None is the largest."""
        return math.inf

    def total_variations(self, levels: Array) -> Array:
        """At most that of each level, `[levels]`: that of an observer who knows the step."""
        mean, count = np.asarray(self.means).T
        return np.asarray(erf(np.outer(levels, mean) / math.sqrt(8)) @ count / self.steps)

    def scaled(self, level: float) -> AllocationStep:
        """The step with all means multiplied by the level, rounded up."""
        up = 1.0 if level == 1.0 else 1 + 2.0**-52
        return replace(self, means=tuple((mean * level * up, n) for mean, n in self.means))


@dataclass(frozen=True)
class LossesStep(ListedStep):
    """A pair given by its losses; `masses` are of P, `infinite` of P and of Q beside them."""

    losses: tuple[float, ...]
    masses: tuple[float, ...]
    infinite: tuple[float, float]

    @cached_property
    def listed(self) -> Listed:
        """The list."""
        losses, p = np.asarray(self.losses), np.asarray(self.masses)
        with np.errstate(divide="ignore"):
            q = np.exp(np.log(p) - losses)
        size = float(np.abs(losses).max())
        return Listed(losses, p, q, *self.infinite, 4.0, 16.0 + 4 * size, size)


@dataclass(frozen=True)
class DiscreteGaussianStep(ListedStep):
    """N_Z(shift, scale^2) against N_Z(0, scale^2) on the whole numbers."""

    scale: float
    shift: int
    both_ways = True

    @cached_property
    def listed(self) -> Listed:
        """Its masses within 39 deviations of either mean; what lies beyond counts as lost."""
        reach = math.ceil(39 * self.scale) + 1
        x = np.arange(-reach, self.shift + reach + 1, dtype=np.float64)
        p, q = (np.exp(-((x - mean) ** 2) / (2 * self.scale**2)) for mean in (self.shift, 0))
        whole = math.fsum(q.tolist()) * (1 - 1e-15)  # some mass less, so that each is rounded up
        losses = self.shift * (2 * x - self.shift) / (2 * self.scale**2)
        units = 4 * 39.0**2 + 32
        beyond = 1e-300  # 2 Phi(-39) = 2e-333
        size = float(np.abs(losses).max())
        return Listed(losses, p / whole, q / whole, beyond, beyond, units, units, 4 * size)


def hull(points: Iterable[tuple[float, float]]) -> LossesStep:
    """The pair of the module's docstring, for points of epsilon >= 0 and delta."""
    at, deltas = np.asarray(sorted(points), dtype=np.float64).T
    deltas = np.minimum(deltas * _RAISED, 1.0)
    apart = float((np.tanh(at / 2) + 2 * deltas * expit(-at)).min())
    kept: list[tuple[float, float]] = [(0.0, min(1.0, apart * _RAISED))]
    for epsilon, delta in zip(at.tolist(), deltas.tolist(), strict=True):
        if delta >= kept[-1][1] or epsilon <= kept[-1][0] + _APART:
            continue
        while len(kept) > 1:
            (first, above), (middle, between) = kept[-2:]
            share = math.expm1(middle - epsilon) / math.expm1(first - epsilon)
            if between < share * above + (1 - share) * delta:
                break
            kept.pop()
        kept.append((epsilon, delta))
    corner, height = np.asarray(kept).T
    width, fall = np.diff(corner), -np.diff(height)
    with np.errstate(over="ignore"):
        onward = np.append(fall / np.expm1(width), 0.0)
    masses = np.maximum(fall / -np.expm1(-width) - onward[1:], 0.0)
    middle = max(0.0, 1 - float(height[0]) - 2 * float(onward[0]))
    images = masses * np.exp(-corner[1:])
    return LossesStep(
        (*(-corner[:0:-1]).tolist(), 0.0, *corner[1:].tolist()),
        (*images[::-1].tolist(), middle, *masses.tolist()),
        (float(height[-1]),) * 2,
    )


def log_moments_of(mechanism: RenyiDP, slopes: Array) -> Array:
    """S times the divergence of order 1 + s of all its steps, at most, at each s, `[slopes]`."""
    known = np.asarray([order - 1 for order in mechanism.orders])
    moments = known * np.asarray(mechanism.values)
    chords = np.interp(slopes, np.append(0.0, known), np.append(0.0, moments), right=math.inf)
    if not len(known):
        chords = np.full(len(slopes), math.inf)
    if mechanism.rho is not None:
        chords = np.minimum(chords, mechanism.rho * slopes * (1 + slopes))
    return np.asarray(chords * mechanism.steps * (1 + 1e-12))


@lru_cache(maxsize=64)
def renyi_pair(mechanisms: tuple[RenyiDP, ...]) -> LossesStep:
    """The pair of all of them together."""
    own = [order - 1 for mechanism in mechanisms for order in mechanism.orders]
    slopes = np.union1d(_SLOPES, own)
    total = np.sum([log_moments_of(mechanism, slopes) for mechanism in mechanisms], axis=0)
    best = -slopes * np.log1p(1 / slopes) - np.log1p(slopes)
    at = [float(((total + best + fall) / slopes).min()) for fall in _FALLING]
    falls = np.exp(-_FALLING).tolist()
    points = [(max(0.0, e) * _RAISED, fall) for e, fall in zip(at, falls, strict=True)]
    return hull([(0.0, 1.0), *(point for point in points if point[0] <= FARTHEST)])


def points_of_trade_off(alphas: Array, betas: Array) -> list[tuple[float, float]]:
    """Points of the profile, both ways, of a test whose errors lie on or above a polyline."""
    ways = [(alphas, betas), (betas[::-1], alphas[::-1])]
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes = np.concatenate([-np.diff(missed) / np.diff(at) for at, missed in ways])
    ratios = np.unique(np.append(1.0, slopes[(slopes >= 1) & (slopes < 1e300)]))
    deltas = np.max([(1 - missed - ratios[:, None] * at).max(1) for at, missed in ways], axis=0)
    return list(zip(np.log(ratios).tolist(), (deltas + 1e-15).tolist(), strict=True))
