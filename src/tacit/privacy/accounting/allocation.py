"""How far one epoch of random allocation tells two worlds apart: a law that bounds it from above.

A record takes part in one uniformly random step of an epoch of t steps. What an observer of the
epoch sees is a random function of the pair

    P = (1/t) sum_i N(e_i, diag(z_1^2, ..., z_t^2)),   Q = N(0, diag(z_1^2, ..., z_t^2)),

z_i the noise multiplier of step i (`docs/proofs/random-allocation.md`; Feldman and Shenfeld,
*Privacy amplification by random allocation*, 2025, prove the same of equal noise). Under Q its
likelihood ratio is the mean U = (1/t) (R_1 + ... + R_t) of independent lognormal numbers of mean 1,
R_i = exp(g_i / z_i - 1 / (2 z_i^2)), and both divergences are means of convex functions of it:

    H_a(P || Q) = E_Q (U - a)+,   H_a(Q || P) = E_Q (1 - a U)+.

*From above.* A law that has the same mean and is wider in convex order has the larger divergences,
both of them. Moving the mass between two points of a grid to these points, so that mass and mean
are kept, widens a law in this sense; sums of wider numbers are wider. So each R_i is put on a grid,
sums are formed exactly on it, and grids are made coarser, and nothing is ever lost. Sums are taken
directly, in non-negative terms, so that rounding is relative; every mass is rounded up by more than
that. What lies beyond the grid is counted twice: at its end, and as infinite loss.

*The grid* is even from its origin on and then coarser by two in each octave, so that it is fine
both near the mean and far out, where a single large number decides.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce

import numpy as np
from scipy.special import ndtr, ndtri

from tacit.privacy.accounting.gaussian import Array
from tacit.privacy.mechanisms.allocation import RandomAllocationGaussian, epochs
from tacit.privacy.mechanisms.steps import SILENT

STEEPEST = 4.0
"""Level above which the grid would be too long: there the step that a record takes part in is taken
for known."""

EpochLevels = tuple[tuple[float, int], ...]
"""Levels 1 / z of the steps that an epoch releases, ascending, each with how many."""

_POINTS = 512  # of an octave
_UNIT = 2.0**-53
_REACH = 12.0  # standard deviations: what lies beyond has a mass of 2e-33
_BEYOND = float(ndtr(-_REACH))
_DIFFERENT = 12  # noise multipliers of an epoch that are summed apart
_LAWS = 48  # of epochs, as many as are composed
_OCTAVES = (256, 128, 64, 32, 16, 8, 4, 2, 1)  # parts of an octave, to which levels are rounded up
_RELATIVE = 16.0  # octaves' lengths over the smallest number


@dataclass(frozen=True, eq=False)
class Ratios:
    """A law of the likelihood ratio dP/dQ of an epoch, no narrower than the true one."""

    values: Array  # ascending and positive, `[values]`
    masses: Array  # of each under Q, rounded up, `[values]`; under P it is value times mass
    lost_p: float  # mass of P whose ratio may be infinite
    lost_q: float  # mass of Q whose ratio may be 0


@dataclass(frozen=True, eq=False)
class _Sum:
    """A law of a sum of lognormal numbers of mean 1.

    Point n of the grid is `offset + unit * n` for n up to twice `_POINTS`; from there on each
    `_POINTS` points are twice as far apart as those before.
    """

    masses: Array  # at each point of the grid, `[octaves, _POINTS]`
    unit: float  # a power of two
    offset: float  # of the first point
    terms: int  # how many numbers are added
    variance: float  # of the sum
    low: float  # mass that was raised to the first point
    high: float  # mass that was lowered to the last point, or to a former one
    far: float  # mean of the sum where it was lowered

    @property
    def values(self) -> Array:
        """The points of the grid, `[octaves * _POINTS]`."""
        return self.offset + self.unit * _positions(len(self.masses))


def epoch_levels(mechanism: RandomAllocationGaussian) -> tuple[dict[EpochLevels, int], float]:
    """What the epochs of a mechanism are charged as, rounded up to few different ones.

    Returns:
        The levels of epochs, with how many of each; and the sum of the squares of the levels of
        Gaussian steps on every record, which stand for what is not released, and for epochs whose
        least noise is below 1 / `STEEPEST`.
    """
    square, drawn = 0.0, []
    for noises, count in epochs(mechanism).items():
        released = [z for z in noises if z < SILENT]
        square += count * (len(released) < len(noises)) / SILENT**2
        if released and 1 / released[0] > STEEPEST:
            square += count / released[0] ** 2
        elif released:
            drawn.append((_few([math.nextafter(1 / z, math.inf) for z in released]), count))
    charged = _counted(drawn)
    for parts in _OCTAVES:
        if len(charged) <= _LAWS:
            break
        charged = _counted(
            ([_raised(level, parts) for level in levels], count) for levels, count in drawn
        )
    return charged, square * (1 + 1e-9)


def _counted(epochs_of: Iterable[tuple[Sequence[float], int]]) -> dict[EpochLevels, int]:
    """How many epochs there are of each kind."""
    found: Counter[EpochLevels] = Counter()
    for levels, count in epochs_of:
        found[tuple(sorted(Counter(levels).items()))] += count
    return dict(found)


def _few(levels: Sequence[float]) -> Sequence[float]:
    """Falling levels; where too many differ, neighbours have the largest of them."""
    if len(set(levels)) <= _DIFFERENT:
        return levels
    size = -(-len(levels) // _DIFFERENT)
    return [levels[at - at % size] for at in range(len(levels))]


def _raised(level: float, parts: int) -> float:
    """The next level of a lattice that divides octaves, rounded up."""
    above = math.ceil(parts * math.log2(level)) / parts
    return max(level, math.exp2(above) * (1 + 1e-12))


def sums_square(mechanism: RandomAllocationGaussian) -> float:
    """The square of what an observer of each epoch's sum sees of a record, rounded down.

    In the sum over an epoch that is released whole the record is exactly once.
    """
    entire = [
        count / math.fsum(z * z for z in noises)
        for noises, count in epochs(mechanism).items()
        if len(noises) == mechanism.epoch_steps and noises[-1] < SILENT
    ]
    return math.fsum(entire) * (1 - 1e-9)


@lru_cache(maxsize=128)
def likelihood_ratios(levels: EpochLevels, steps: int) -> Ratios:
    """A law that dominates the likelihood ratio of an epoch, in both directions.

    `levels` are in (0, `STEEPEST`]; `steps` is t, of the whole epoch, of which others may not be
    released.
    """
    released = sum(count for _, count in levels)
    total = reduce(
        lambda first, second: _settled(_added(first, second), released),
        (_power(_lognormal(level, released), count, released) for level, count in levels),
    )
    masses = total.masses.ravel()
    held = np.flatnonzero(masses)
    values = (total.values[held] + (steps - released)) / steps
    # Of each sum that was lowered, the mean of what it is part of, with the constant.
    lost_p = (total.far + (steps - released) * total.high) / steps
    return Ratios(
        values, masses[held], min(1.0, lost_p * (1 + 1e-9)), min(1.0, total.low * (1 + 1e-9))
    )


def _positions(octaves: int) -> Array:
    """Points of the grid in units, from its first, `[octaves * _POINTS]`."""
    first = np.arange(_POINTS, dtype=np.float64)
    later = [(first + _POINTS) * 2.0**octave for octave in range(octaves - 1)]
    return np.concatenate([first, *later])


def _lognormal(level: float, terms: int) -> _Sum:
    """R = exp(level g - level^2 / 2), of which so many are to be added."""
    reach = -float(ndtri(_BEYOND / (4 * terms)))
    lowest = math.exp(-level * (reach + level / 2))
    highest = math.exp(level * (reach + level / 2))
    variance = math.expm1(level * level)
    unit = _power_of_two(min(_RELATIVE * lowest, _REACH * math.sqrt(variance)) / _POINTS)
    offset = math.floor(lowest / unit) * unit
    octaves = 1 + max(1, math.ceil(math.log2((highest - offset) / unit / _POINTS)))
    values = offset + unit * _positions(octaves)
    g = np.log(values) / level + level / 2
    q, q_error = _normal_masses(g, level)
    p, p_error = _normal_masses(g - level, level)
    left, width = values[:-1], np.diff(values)
    # Mass and mean are kept: the share at the right end is (p - left q) / width of q.
    middle, slack = q[1:-1], q_error[1:-1]
    right = np.clip((p[1:-1] - left * middle) / width, 0.0, middle)
    error = (p_error[1:-1] + left * slack + 4 * (p[1:-1] + left * middle)) / width * _UNIT
    error += slack * _UNIT
    masses = np.zeros(len(values))
    masses[:-1] += middle - right + error
    masses[1:] += right + error
    low, high = (float(q[end] + q_error[end] * _UNIT) for end in (0, -1))
    masses[0] += low
    masses[-1] += high
    far = float(p[-1] + p_error[-1] * _UNIT)
    return _Sum(masses.reshape(octaves, _POINTS), unit, offset, 1, variance, low, high, far)


def _normal_masses(edges: Array, level: float) -> tuple[Array, Array]:
    """Standard normal mass below, between and above ascending edges, and errors in units.

    An edge is (log r) / level + level / 2, perhaps less the level: off by a few roundings of
    |edge| + 2 level, which moves a tail by that times the density, at most tail (|edge| + 1).
    """
    sizes = np.abs(edges)
    tails = ndtr(-sizes)
    moved = tails * (9 + 8 * (sizes + 2 * level + 1) ** 2)
    below = edges < 0
    inner = np.abs(np.diff(tails))
    crossing = below[:-1] & ~below[1:]
    inner = np.where(crossing, 1 - tails[:-1] - tails[1:], inner)
    errors = np.maximum(moved[:-1], moved[1:]) + np.where(crossing, 4.0, 0.0)
    # Below the first edge, and above the last: the other tail's complement where that is larger.
    ends = [(tails[0], below[0]), (tails[-1], not below[-1])]
    (first, last), (first_error, last_error) = zip(
        *((tail, 0.0) if is_tail else (1 - tail, 4.0) for tail, is_tail in ends), strict=True
    )
    return (
        np.concatenate(([first], inner, [last])),
        np.concatenate(([moved[0] + first_error], errors, [moved[-1] + last_error])),
    )


def _power(one: _Sum, terms: int, of: int) -> _Sum:
    """The sum of so many independent numbers of one law, by doubling."""
    found: _Sum | None = None
    while True:
        if terms & 1:
            found = one if found is None else _settled(_added(found, one), of)
        terms >>= 1
        if not terms:
            break
        one = _settled(_added(one, one), of)
    assert found is not None
    return found


def _added(first: _Sum, second: _Sum) -> _Sum:
    """The law of the sum of two independent numbers, on a grid of the coarser unit."""
    unit = max(first.unit, second.unit)
    same = first is second
    first, second = _regridded(first, unit), _regridded(second, unit)
    octaves = max(len(first.masses), len(second.masses))
    a, b = (_padded(each.masses, octaves) for each in (first, second))
    total = np.zeros((octaves + 1, _POINTS))
    below_a, below_b = (np.zeros(_POINTS + 1) for _ in range(2))
    for octave in range(octaves):
        # In units of this octave's distance: what is below it, and then its own points.
        all_b = np.concatenate((below_b[:_POINTS], b[octave]))
        all_b[_POINTS] += below_b[_POINTS]
        if octave == 0:
            both = np.convolve(a[0], b[0])
            total[0] += both[:_POINTS]
            total[1, : _POINTS - 1] += both[_POINTS:]
            below_a[:_POINTS], below_b[:_POINTS] = a[0], b[0]
            continue
        if a[octave].any() or b[octave].any():
            if same:
                all_b[:_POINTS] *= 2
                all_b[_POINTS] += below_b[_POINTS]
                both = np.convolve(a[octave], all_b)
            else:
                both = np.convolve(a[octave], all_b)
                both[: 2 * _POINTS] += np.convolve(below_a, b[octave])
            total[octave] += both[:_POINTS]
            total[octave + 1] += _halved(both[_POINTS:])[:_POINTS]
        if octave + 1 < octaves:
            all_a = np.concatenate((below_a[:_POINTS], a[octave]))
            all_a[_POINTS] += below_a[_POINTS]
            if same:
                all_b = all_a
            below_a, below_b = _halved(all_a), _halved(all_b)
    total *= 1 + 16 * _POINTS * _UNIT  # more than the rounding of so many terms, and of halving
    return _Sum(
        total,
        unit,
        first.offset + second.offset,
        first.terms + second.terms,
        first.variance + second.variance,
        first.low + second.low,
        first.high + second.high,
        # The sum where one of both was lowered: that one, and the other's mean.
        (first.far + first.high * second.terms + second.far + second.high * first.terms)
        * (1 + 8 * _UNIT),
    )


def _halved(masses: Array) -> Array:
    """Masses at 0..n on the points of half the distance, moved to the even ones, mean kept."""
    odd = masses[1::2] / 2
    even = masses[::2]
    halved = np.zeros(len(masses) // 2 + 1)
    halved[: len(even)] = even
    halved[: len(odd)] += odd
    halved[1 : 1 + len(odd)] += odd
    return halved


def _padded(masses: Array, octaves: int) -> Array:
    if len(masses) == octaves:
        return masses
    return np.concatenate((masses, np.zeros((octaves - len(masses), _POINTS))))


def _settled(found: _Sum, of: int) -> _Sum:
    """The same on a grid that begins where its mass does, ends there, and is as fine as needed."""
    allowed = _BEYOND * found.terms / of / 8
    masses, values = found.masses.ravel(), found.values
    first = int(np.searchsorted(np.cumsum(masses), allowed))
    # From the top: the mean of what is lowered, and what it is added to.
    weights = masses * (values + of)
    last = len(masses) - 1 - int(np.searchsorted(np.cumsum(weights[::-1]), allowed * of))
    first, last = min(first, last), max(first, last)
    low, beyond = float(masses[:first].sum()), masses[last + 1 :]
    masses = masses[first : last + 1].copy()
    masses[0] += low
    masses[-1] += beyond.sum()
    far = float((beyond * values[last + 1 :]).sum())
    values = values[first : last + 1]
    fine = min(_RELATIVE * float(values[0]), _REACH * math.sqrt(found.variance)) / _POINTS
    unit = max(found.unit, _power_of_two(fine))
    offset = math.floor(float(values[0]) / unit) * unit
    on_it = replace(
        found,
        masses=masses,
        unit=unit,
        offset=offset,
        low=(found.low + low) * (1 + 1e-12),
        high=(found.high + float(beyond.sum())) * (1 + 1e-12),
        far=(found.far + far) * (1 + 1e-12),
    )
    return _placed(on_it, values - offset)


def _regridded(found: _Sum, unit: float) -> _Sum:
    """The same on a coarser grid."""
    if unit == found.unit:
        return found
    offset = math.floor(found.offset / unit) * unit
    on_it = replace(found, masses=found.masses.ravel(), unit=unit, offset=offset)
    return _placed(on_it, found.values - offset)


def _placed(found: _Sum, distances: Array) -> _Sum:
    """Masses, of any shape so far, at these distances from the offset, moved to the grid."""
    x = distances / found.unit
    octave = np.maximum(np.frexp(x / _POINTS)[1] - 1, 0)  # x is below 2^(octave + 1) _POINTS
    steps = np.ldexp(x, -octave)
    below = np.floor(steps)
    share = steps - below
    index = below.astype(np.int64) + octave * _POINTS
    octaves = int(index.max()) // _POINTS + 2
    grid = np.bincount(index, found.masses * (1 - share), octaves * _POINTS).astype(np.float64)
    grid[1:] += np.bincount(index, found.masses * share, octaves * _POINTS)[:-1]
    # Of some points many fall on one, and each share is rounded.
    grid *= 1 + (16 + 2 * len(x)) * _UNIT
    kept = math.ceil((int(np.flatnonzero(grid)[-1]) + 1) / _POINTS)
    return replace(found, masses=grid[: kept * _POINTS].reshape(kept, _POINTS))


def _power_of_two(value: float) -> float:
    """The largest power of two that is no larger."""
    return math.ldexp(1.0, math.frexp(value)[1] - 1)
