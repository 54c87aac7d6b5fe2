"""Gaussian noise that is correlated over steps: a matrix mechanism, as data.

Step t releases g_t + (C^-1 Z)_t, with C lower triangular and Z independent: all of it is a function
of C g + Z, so that the rows of C say how far a record moves what is released. Proofs, also of what
runs in finite arithmetic: `docs/proofs/matrix-noise.md`. Unit, trust model, noise multiplier,
coordinates and relation are explained in `tacit.privacy.mechanisms.base`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from tacit.errors import InputError
from tacit.privacy.mechanisms.base import ADD_OR_REMOVE_ONE, TRUST_MODEL, Relation, Unit, number
from tacit.privacy.mechanisms.steps import SILENT, Gaussian, SampledGaussian, Scheduled, schedule

Correlation: TypeAlias = Literal["tree"] | tuple[float, ...]
"""C: the binary tree's, or the first column of a banded Toeplitz matrix."""
_Array = NDArray[np.float64]

# No value's own noise is larger, in deviations: 30 of the draw, and what rounding adds.
_MOST_DEVIATIONS = 31
# Sums of non-negative terms here err by less.
_ROUNDED = 1 + 2.0**-40
_GRID = 32
_FORESEEN = 4096


@dataclass(frozen=True)
class MatrixGaussian(Scheduled):
    """Gaussian noise Z behind a matrix C over steps; each record takes part every `turns` steps.

    Records are divided into `turns` groups, publicly; step t is of group t mod `turns`. Without
    coins (Denisov et al., 2022; Choquette-Choo et al., 2023) it is one Gaussian whose mu is the
    norm of the sum of a group's columns of C, the largest of all groups. With coins, each record
    joins a step of its group with probability `sample_rate`, and C has at most `turns` bands: the
    rows that two of its steps move are then different ones, and each step is a Poisson-sampled
    Gaussian, its multiplier divided by the norm of its column.

    Args:
        correlation: C: "tree" for the binary tree, or the first column of a banded lower triangular
            Toeplitz matrix, none below 0, the first above.
        turns: 1 where every record takes part in every step.
        noise_multiplier: of Z over the clipping bound; one number, or one a step.
        steps: how many steps; with a schedule it may be left out.
        sample_rate: 1 for no coins.
        times: how often each step is released; empty: once each.
        relation: the neighbouring relation.
        coordinates: numbers that a step releases on the lattice; 0 states ideal noise.
    """

    kind = "matrix-gaussian"
    correlation: Correlation | Sequence[float]
    turns: int
    noise_multiplier: float | Sequence[float]
    steps: int | None = None
    sample_rate: float = 1.0
    times: Sequence[int] = ()
    relation: Relation = ADD_OR_REMOVE_ONE
    trust_model: str = TRUST_MODEL
    unit: Unit = "record"
    coordinates: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.correlation != "tree":
            column = tuple(number("correlation", value) for value in self.correlation)
            if not column or column[0] <= 0 or min(column) < 0:
                expected = "must be 'tree', or numbers of 0 or more, the first above 0"
                raise InputError("correlation", column, expected)
            object.__setattr__(self, "correlation", column)
        if self.sample_rate < 1 and not 0 < self.bands <= self.turns:
            expected = f"must be banded, with at most turns = {self.turns} bands, for coins"
            raise InputError("correlation", self.correlation, expected)
        times = tuple(self.times)
        if times and (len(times) != self.steps or min(times) < 0):
            raise InputError("times", times, "must be one number of 0 or more for each step")
        object.__setattr__(self, "times", times)

    @property
    def rate(self) -> float:
        """Share of the records that joins a step, in expectation."""
        return self.sample_rate / self.turns

    @property
    def bands(self) -> int:
        """Of C; 0 of the tree, which has no fixed number."""
        return 0 if self.correlation == "tree" else len(self.correlation)

    def _summary(self) -> str:
        coins = "" if self.sample_rate == 1 else f" with probability {self.sample_rate:.4g}"
        return f"Gaussian correlated over steps ({self._words}), {self._turn}{coins}"

    @property
    def _words(self) -> str:
        if self.bands == 1:
            return "independent"
        return f"{self.bands} bands" if self.bands else "binary tree"

    @property
    def _turn(self) -> str:
        return "every record" if self.turns == 1 else f"each record every {self.turns} steps"

    def _release(self, number_text: Callable[[float], str]) -> str:
        coin = "" if self.sample_rate == 1 else f", by a coin of {number_text(self.sample_rate)}"
        return (
            f"Gaussian noise that is correlated over steps by a matrix ({self._words}) on the sum "
            f"over a batch, where {self._turn} at most takes part{coin}"
        )

    def released_values(self) -> int:
        """Noised values that all steps release on the lattice."""
        return (sum(self.times) if self.times else len(schedule(self))) * self.coordinates

    def with_schedule(self, noise_multipliers: Sequence[float]) -> Self:
        """The first steps, or all, with another schedule."""
        times = self.times[: len(noise_multipliers)]
        return replace(self, noise_multiplier=noise_multipliers, steps=None, times=times)

    def repeated(self, times: int) -> Self:
        """The mechanism so many times over, each with noise of its own."""
        return replace(self, times=[times * n for n in self.times or (1,) * len(schedule(self))])

    def of_steps(self, steps: Sequence[tuple[int, int, int]]) -> Self:
        """The mechanism of these steps: whoever goes on begins with no noise of before.

        So what a record moves at a step is what it would have moved, or less.
        """
        times = [0] * len(schedule(self))
        for first, until, repeats in steps:
            times[first:until] = [n + repeats for n in times[first:until]]
        return replace(self, times=() if set(times) == {1} else times)

    def merge_key(self) -> Self:
        """The mechanism itself: only equal ones are one."""
        return self

    @classmethod
    def merged(cls, parts: Sequence[Self]) -> Self:
        """All of the parts, which are equal."""
        return parts[0] if len(parts) == 1 else parts[0].repeated(len(parts))

    def independent(self, *, upper: bool) -> Gaussian | SampledGaussian:
        """Independent noise that loses as much at least; for a lower bound, at most."""
        z, counts = np.array(schedule(self)), np.array(self.times or (1,) * len(schedule(self)))
        matrix, moved = self.correlation, 1 / z
        assert not isinstance(matrix, list)
        if upper and self.coordinates:
            # Kept noise is rounded, and sums with it.
            unit = 2.0 ** -fraction_bits(matrix, len(z)) * (1 + 2.0**-6)
            moved = moved + unit * math.sqrt(self.coordinates)
        elif not upper and self.times:
            matrix = (float(matrix[0]) if self.bands else 1.0,)  # of a start in the middle, no more
        words = {name: getattr(self, name) for name in ("relation", "trust_model", "unit")}
        largest = float(moved.max()) * (_ROUNDED if upper else 1 / _ROUNDED)
        shape, times = tuple((moved / moved.max()).tolist()), tuple(counts.tolist())
        if self.sample_rate < 1:
            norms = _column_norms(matrix, self.turns, shape, times, upper)
            return SampledGaussian(self.sample_rate, [1 / (largest * n) for n in norms], **words)
        square = participation_square(matrix, self.turns, shape, times)
        return Gaussian(1 / (largest * math.sqrt(square)) if square else SILENT, **words)


def applied(correlation: Correlation, x: _Array) -> _Array:
    """C x, `[steps]`."""
    if correlation != "tree":
        return np.convolve(x, correlation)[: len(x)]
    # Row t, from 1, is the sum of as many entries up to t as the largest power of two in t.
    found, sums, size = x.copy(), x.copy(), 1
    while size < len(x):
        sums[size:] = sums[size:] + sums[:-size]
        size *= 2
        found[size - 1 :: size] = sums[size - 1 :: size]
    return found


def _first_is_worst(correlation: Correlation, moved: _Array, counts: _Array) -> bool:
    """Whether the first group loses most: all others are the same, later."""
    return correlation != "tree" and np.ptp(moved) == 0 and bool(np.all(np.diff(counts) <= 0))


@lru_cache(maxsize=256)
def participation_square(
    correlation: Correlation, turns: int, moved: tuple[float, ...], times: tuple[int, ...]
) -> float:
    """The largest, over groups, of the squared norm of C times what a record of it contributes.

    `moved` is the norm of a contribution at each step, over the noise, and `times` how often each
    row is released.
    """
    norms, counts, step = np.array(moved), np.array(times), np.arange(len(moved))
    groups = 1 if _first_is_worst(correlation, norms, counts) else min(turns, len(moved))
    rows = (applied(correlation, np.where(step % turns == r, norms, 0.0)) for r in range(groups))
    return max(float((counts * row**2).sum()) for row in rows)


@lru_cache(maxsize=256)
def _column_norms(
    column: Correlation, turns: int, moved: tuple[float, ...], times: tuple[int, ...], upper: bool
) -> tuple[float, ...]:
    """How far each step of a group moves all that is released: of the worst, descending.

    Where no group is the worst, those of a group that is worse than any.
    """
    assert column != "tree"
    norms, counts = np.array(moved), np.array(times)
    squares = np.convolve((counts > 0)[::-1], np.square(column))[: len(norms)][::-1]
    norms = norms * np.sqrt(squares)
    only = not upper or _first_is_worst(column, np.array(moved), counts)
    groups = 1 if only else min(turns, len(norms))
    lists = [np.repeat(norms[r::turns], counts[r::turns]) for r in range(groups)]
    worst = np.zeros(max(map(len, lists)) or 1)
    for own in lists:
        worst[: len(own)] = np.maximum(worst[: len(own)], np.sort(own)[::-1])
    return tuple(np.maximum(worst, 1 / SILENT).tolist())


@lru_cache(maxsize=64)
def fraction_bits(correlation: Correlation, steps: int) -> int:
    """Of 32-bit fixed point numbers, in deviations, in which kept noise and sums of it have room.

    Raises:
        InputError: fewer than 8 are left.
    """
    if correlation == "tree":
        span = float(_MOST_DEVIATIONS * (steps.bit_length() + 1))
    else:
        impulse = np.zeros(steps)
        impulse[0] = 1.0
        grown = np.abs(lfilter([1.0], correlation, impulse)).sum()
        span = float(_MOST_DEVIATIONS * grown * max(1, len(correlation) - 1))
    bits = 30 - math.ceil(math.log2(span)) if math.isfinite(span) else 0
    if bits < 8:
        raise InputError("privacy.bands", len(correlation), "leaves too few bits for noise: fewer")
    return bits


@lru_cache(maxsize=64)
def banded_correlation(
    bands: int, steps: int, turns: int, *, coins: bool = False
) -> tuple[float, ...]:
    """The first column (1, a, c, ..., c) of C with small errors of all sums over first steps.

    Of multiples of 1/32, those with the least root mean square at equal privacy, found by turns;
    within 4 % of free banded columns where that was measured (`docs/proofs/matrix-noise.md`). With
    only two different numbers beside the diagonal a step reads two rows of memory, not all bands.
    With `coins`, records join the steps of their group by coins.
    """
    length = min(steps, _FORESEEN)
    ones, impulse = np.ones(length), np.zeros(length)
    impulse[0] = 1.0
    first = np.where(np.arange(length) % turns == 0, 1.0, 0.0)

    def column(a: int, c: int) -> tuple[float, ...]:
        return (1.0, a / _GRID, *[c / _GRID] * (bands - 2))[:bands]

    def error(a: int, c: int) -> float:
        c_matrix = column(a, c)
        sums = np.cumsum(np.cumsum(lfilter([1.0], c_matrix, impulse)) ** 2)
        moved = impulse if coins else first
        return float((sums @ ones) * (applied(c_matrix, moved) ** 2).sum())

    c = min(range(_GRID), key=lambda c: error(c, c))
    a = c
    for _ in range(2):
        a = min(range(c, _GRID + 1), key=lambda a: error(a, c))
        c = min(range(a + 1), key=lambda c: error(a, c))
    return column(a, c)
