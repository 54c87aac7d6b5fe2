"""Composition of privacy losses on a grid: one Fourier transform a level, every error counted.

A composed loss is a sum of independent ones, so its transform is a product of powers. What is cut
or rounded on the way is added to the mass at infinite loss, so that the result is an upper bound:

- *Window*: the sum is kept where Chernoff bounds leave less than `TAIL` outside on either side.
  What lies outside wraps round to anywhere, and is therefore counted as infinite as well.
- *Fourier transforms*: a coefficient is a sum of masses of at most 1 in all, formed in log2 N
  stages, and so off by at most about 8 u log2 N (u, the unit roundoff); a power of it by n times
  that and its own rounding. Both are carried to the result in the root mean square over
  coefficients, and from there to a sum over the window by the Cauchy-Schwarz inequality.
- *Masses of one step*: a cell's mass is the difference of two distribution functions, each right
  to a few u. Summed against a profile's weights, which rise from 0 to 1, such errors telescope:
  a few u a step, for which `MASS_ROUNDING` allows generously.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.signal import lfilter

from tacit.privacy.gaussian import Array

__all__ = ["MASS_ROUNDING", "Losses", "compose", "delta_at", "epsilon_at", "grid_profile"]

TAIL = 1e-16
MASS_ROUNDING = 1e-14  # a step
_UNIT = 2.0**-53
_ORDERS = np.outer([-1.0, 1.0], np.geomspace(3e-4, 50.0, 11)).ravel()  # of Chernoff bounds

_BLOCK = 8  # cells

Spectrum = NDArray[np.complex128]


@dataclass(frozen=True, eq=False)
class Losses:
    """A privacy loss distribution on a grid, in one direction.

    Args:
        grid: distance of two neighbouring losses.
        lowest: the smallest loss, in units of the grid.
        masses: of the losses `(lowest + i) * grid`, `[cells]`.
        infinite: mass at infinite loss, which adds to delta as it is.
    """

    grid: float
    lowest: int
    masses: Array
    infinite: float

    @property
    def highest(self) -> int:
        """The largest finite loss, in units of the grid."""
        return self.lowest + len(self.masses) - 1

    @cached_property
    def points(self) -> Array:
        """The finite losses, `[cells]`."""
        return np.arange(self.lowest, self.highest + 1, dtype=np.float64) * self.grid

    @cached_property
    def log_moments(self) -> Array:
        """Upper bounds on log E[e^(t loss); loss finite] at the orders t of the Chernoff bounds.

        Each mass is split between the two ends of its block of cells so that the mean stays: a
        spread, which raises the expectation of every convex function a little, for less work.
        """
        padded = np.zeros(-(-len(self.masses) // _BLOCK) * _BLOCK)
        padded[: len(self.masses)] = self.masses
        blocks = padded.reshape(-1, _BLOCK)
        right = blocks @ (np.arange(_BLOCK) / _BLOCK)
        spread = np.append(blocks.sum(axis=1) - right, 0.0) + np.append(0.0, right)
        held = np.flatnonzero(spread > 0)
        if not len(held):
            return np.full(len(_ORDERS), -np.inf)
        points = (self.lowest + _BLOCK * held) * self.grid
        exponents = np.outer(_ORDERS, points) + np.log(spread[held])
        top = exponents.max(axis=1)
        return np.asarray(top + np.log(np.exp(exponents - top[:, None]).sum(axis=1)))


def compose(parts: Sequence[tuple[Losses, int]]) -> Losses:
    """The losses of independent steps, each part so many times.

    Args:
        parts: losses on one grid, and how many steps have them.
    """
    grid = parts[0][0].grid
    lowest, highest = _window(parts)
    size = next_fast_len(highest - lowest + 1, real=True)
    transforms = [_transform(losses.masses, size) for losses, _ in parts]
    product: Spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    for transform, (_, steps) in zip(transforms, parts, strict=True):
        product *= transform**steps
    start = sum(losses.lowest * steps for losses, steps in parts)
    masses = np.roll(irfft(product, size), (start - lowest) % size)[: highest - lowest + 1]
    infinite = math.fsum(losses.infinite * steps for losses, steps in parts)
    slack = 2 * TAIL + _rounding(parts, transforms, product, size)
    return Losses(grid, lowest, np.maximum(masses, 0.0), min(1.0, infinite + slack))


def _window(parts: Sequence[tuple[Losses, int]]) -> tuple[int, int]:
    """Grid losses outside which less than `TAIL` of the sum's mass lies, on either side."""
    grid = parts[0][0].grid
    moments = sum(losses.log_moments * steps for losses, steps in parts)
    bounds = (moments + math.log(1 / TAIL)) / _ORDERS / grid
    low = sum(losses.lowest * steps for losses, steps in parts)
    high = sum(losses.highest * steps for losses, steps in parts)
    below, above = np.max(bounds[_ORDERS < 0]), np.min(bounds[_ORDERS > 0])
    low = max(low, math.floor(below)) if math.isfinite(below) else low
    high = min(high, math.ceil(above)) if math.isfinite(above) else high
    return low, max(low, high)


def _transform(masses: Array, size: int) -> Spectrum:
    """The transform of masses folded to `size` cells."""
    folded = np.zeros(-(-len(masses) // size) * size)
    folded[: len(masses)] = masses
    spectrum: Spectrum = rfft(folded.reshape(-1, size).sum(axis=0))
    return spectrum


def _rounding(
    parts: Sequence[tuple[Losses, int]],
    transforms: Sequence[Spectrum],
    product: Spectrum,
    size: int,
) -> float:
    """What rounding may have moved in sum over the window; see the module's docstring."""
    stages = 8 * math.log2(size) + 8
    magnitude = np.abs(product)
    # Off by `stages` u in each transform, `10 n` u in its power, `stages` u in the way back.
    moved = stages * _mean_root(magnitude)
    steps = 0
    for transform, (_, count) in zip(transforms, parts, strict=True):
        # |product / transform|: the other factors, and this one to the power count - 1.
        others = np.divide(
            magnitude, np.abs(transform), out=np.zeros_like(magnitude), where=magnitude > 0
        )
        moved += count * stages * _mean_root(others) + 10 * count * _mean_root(magnitude)
        steps += count
    return _UNIT * math.sqrt(size) * moved + MASS_ROUNDING * steps


def _mean_root(values: Array) -> float:
    """Root mean square over the coefficients of a real transform, each stored one counted twice."""
    return math.sqrt(2 * float(np.square(values).sum()) / max(1, 2 * len(values) - 2))


def grid_profile(losses: Losses) -> Array:
    """The hockey-stick divergence at every grid loss, `[cells]`."""
    above, discounted = _sums_above(losses)
    return np.asarray(losses.infinite + above - discounted, dtype=np.float64)


def _sums_above(losses: Losses) -> tuple[Array, Array]:
    """At each grid loss l, over higher finite losses: the mass, and the sum of mass e^(l - loss).

    The second by recurrence from the top, which neither overflows nor cancels.
    """
    shrink = math.exp(-losses.grid)
    above = np.append(np.cumsum(losses.masses[::-1])[::-1][1:], 0.0)
    discounted = lfilter([0.0, shrink], [1.0, -shrink], losses.masses[::-1])[::-1]
    return above, discounted


def delta_at(losses: Losses, epsilon: float) -> float:
    """Hockey-stick divergence at `epsilon`: E[(1 - e^(epsilon - loss))+] plus the infinite mass."""
    gain = -np.expm1(np.minimum(epsilon - losses.points, 0.0))
    return min(1.0, losses.infinite + float((losses.masses * gain).sum()))


def epsilon_at(losses: Losses, delta: float) -> float:
    """Smallest epsilon >= 0 with `delta_at(losses, epsilon) <= delta`; infinity if there is none.

    Between two grid losses, delta is mass above less e^epsilon times a sum, and is inverted there.
    """
    masses, points = losses.masses, losses.points
    above, discounted = _sums_above(losses)
    profile = losses.infinite + above - discounted
    inside = np.flatnonzero(profile <= delta)
    if not len(inside):
        return math.inf
    first = int(inside[0])
    # Between the losses before and at `first` (or below all), delta is excess - e^(eps - loss) sum.
    before = max(first - 1, 0)
    lowest = masses[0] if first == 0 else 0.0
    excess = losses.infinite + float(above[before] + lowest) - delta
    total = float(discounted[before] + lowest)
    if excess <= 0 or total <= 0:
        return max(0.0, float(points[first])) if first else 0.0
    inverted = float(points[before]) + math.log(excess / total)
    return max(0.0, min(float(points[first]), inverted + 1e-12 * (1 + abs(inverted))))
