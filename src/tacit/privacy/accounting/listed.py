"""Pairs that are lists of losses: of what is known by points of its profile, or by divergences.

*Points*. What is (epsilon_i, delta_i)-DP in both directions for every i has a profile below the
lower convex hull, in a = e^epsilon, of these points, of their images (1 - 1/a_i + delta_i / a_i at
1/a_i) and of (0, 1), flat from the last point on: the profile of a symmetric pair of atoms at 0 and
+-epsilon_i. *Renyi divergences* give points: with s = order - 1, delta(epsilon) <= E[e^(s L)] k(s)
e^(-s epsilon), k(s) = s^s / (1+s)^(1+s); s times the divergence is convex in s, so that chords
between known orders hold. Proofs: `docs/proofs/curves.md`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import expit

from tacit.privacy.accounting.gaussian import Array
from tacit.privacy.mechanisms.known import KnownRelease

UNITS = 64.0  # more units of roundoff than a mass of a hull is off by, beside what it is raised by:
_RAISED = 1 + 1e-9  # more than the differences of points so far apart lose
_APART = 1e-6
_SLOPES = np.geomspace(1e-5, 1e8, 1500)  # s
_FALLING = np.append(np.arange(0.0, 40.0, 0.05), np.geomspace(40.0, 690.0, 280))  # -log delta


@dataclass(frozen=True, eq=False)
class ListPart:
    """So many steps of a symmetric pair: `losses` and `masses` under P; (Q, P) has the same.

    `lost` is the mass of P at infinite loss, `points` are some of the profile.
    """

    losses: Array
    masses: Array
    lost: float
    count: int
    points: Sequence[Sequence[float]]

    def delta(self, epsilon: float) -> float:
        """An upper bound of one step's."""
        over = self.losses > epsilon
        losses, masses = self.losses[over], self.masses[over]
        moved = 2.0**-53 * (UNITS + 4 * (losses + epsilon)) * masses
        terms = masses * -np.expm1(epsilon - losses) + moved
        return min(math.fsum([*terms.tolist(), self.lost]), 1.0)


def hull(points: Sequence[Sequence[float]], count: int) -> ListPart:
    """The pair of the module's docstring, so many times over."""
    at, deltas = np.asarray([(0.0, 1.0), *sorted(map(tuple, points))]).T
    deltas = np.minimum(np.minimum.accumulate(deltas) * _RAISED, 1.0)
    kept = [(0.0, min(1.0, float((np.tanh(at / 2) + 2 * deltas * expit(-at)).min()) * _RAISED))]
    apart: list[tuple[float, float]] = []  # of points too close together the last stays
    for epsilon, delta in zip(
        np.maximum(at, _APART)[::-1].tolist(), deltas[::-1].tolist(), strict=True
    ):
        if not apart or epsilon < apart[-1][0] - _APART:
            apart.append((epsilon, delta))
    for epsilon, delta in reversed(apart):
        if delta >= kept[-1][1]:
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
    rest = max(0.0, 1 - float(height[0]) - 2 * float(onward[0]))
    p = np.concatenate(((masses * np.exp(-corner[1:]))[::-1], [rest], masses))
    losses = np.concatenate((-corner[:0:-1], corner))
    return ListPart(losses, p, float(height[-1]), count, points)


def log_moments(mechanism: KnownRelease, slopes: Array) -> Array:
    """S times the divergence of order 1 + s of all steps, at most, at each s, `[slopes]`."""
    known = np.asarray([0.0, *(order - 1 for order in mechanism.orders)])
    chords = np.interp(slopes, known, known * [0.0, *mechanism.values], right=math.inf)
    rho = math.inf if mechanism.rho is None else mechanism.rho
    least = np.minimum(chords, rho * slopes * (1 + slopes))
    return np.asarray(least * mechanism.steps * (1 + 1e-12))


@lru_cache(maxsize=64)
def listed(mechanisms: tuple[KnownRelease, ...]) -> ListPart:
    """The pair of one mechanism with points, or of all that have none together."""
    if mechanisms[0].points:
        return hull(mechanisms[0].points, mechanisms[0].steps)
    slopes = np.union1d(_SLOPES, [order - 1 for one in mechanisms for order in one.orders])
    total = np.sum([log_moments(one, slopes) for one in mechanisms], axis=0)
    total -= slopes * np.log1p(1 / slopes) + np.log1p(slopes)
    at = [max(0.0, float(((total + fall) / slopes).min())) * _RAISED + 1e-14 for fall in _FALLING]
    points = zip(at, np.exp(-_FALLING).tolist(), strict=True)
    return hull([point for point in points if point[0] < math.inf], 1)
