"""Gaussian noise that is correlated over steps: a matrix mechanism, as data.

Step t releases g_t + (C^-1 Z)_t, with C lower triangular and Z independent: all of it is a function
of C g + Z, so that the rows of C say how far a record moves what is released. Proofs, also of what
runs in finite arithmetic: `docs/proofs/matrix-noise.md`. Unit, trust model, noise multiplier,
coordinates and relation are explained in `tacit.privacy.mechanisms.base`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InputError
from tacit.privacy.mechanisms.base import (
    ADD_OR_REMOVE_ONE,
    TRUST_MODEL,
    Relation,
    Unit,
    count,
    few_enough,
    number,
)
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
        sample_rate: 1 for no coins.
        times: how often each step is released; empty: once each. Other fields as of `Gaussian`.
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
        for name in ("correlation", "times"):
            if not isinstance(getattr(self, name), Iterable):
                raise InputError(name, getattr(self, name), "must be a list of numbers")
        column: tuple[float, ...] = ()
        if self.correlation != "tree":
            column = tuple(number("correlation", value) for value in self.correlation)
            if not column or column[0] <= 0 or min(column) < 0:
                expected = "must be 'tree', or numbers of 0 or more, the first above 0"
                raise InputError("correlation", column, expected)
            object.__setattr__(self, "correlation", column)
        if self.sample_rate < 1 and (self.correlation == "tree" or len(column) > self.turns):
            expected = f"must be banded, with at most turns = {self.turns} bands, for coins"
            raise InputError("correlation", self.correlation, expected)
        times = tuple(count("times", value) for value in self.times)
        if times and len(times) != self.steps:
            raise InputError("times", times, f"must be one number for each of {self.steps} steps")
        few_enough("times", sum(times))
        object.__setattr__(self, "times", times)

    @property
    def rate(self) -> float:
        """Share of the records that joins a step, in expectation."""
        return self.sample_rate / self.turns

    def _summary(self) -> str:
        turn = "every record" if self.turns == 1 else f"each record every {self.turns} steps"
        coin = "" if self.sample_rate == 1 else f" with probability {self.sample_rate:.4g}"
        tree = self.correlation == "tree"  # else trailing zeros are no bands
        bands = 0 if tree else len(np.trim_zeros(np.asarray(self.correlation), "b"))
        words = f" correlated over steps ({f'{bands} bands' if bands else 'binary tree'})"
        released = f", {sum(self.times)} releases" if self.times else ""
        return f"Gaussian{'' if bands == 1 else words}{released}, {turn}{coin}"

    def _release(self, number_text: Callable[[float], str]) -> str:
        return f"{self._summary()} at most, on the sum over the records that take part"

    def released_values(self) -> int:
        """Noised values that all steps release on the lattice."""
        return (sum(self.times) if self.times else len(schedule(self))) * self.coordinates

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
        if self.times:
            times = [n * own for n, own in zip(times, self.times, strict=True)]
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
            unit = 2.0 ** -fraction_bits(matrix, len(z)) * (1 + 2.0**-4)
            moved = moved + unit * math.sqrt(self.coordinates)
        elif not upper and self.times:
            matrix = (
                1.0 if matrix == "tree" else float(matrix[0]),
            )  # of a start in the middle, no more
        largest = float(moved.max()) * (_ROUNDED if upper else 1 / _ROUNDED)
        shape, times = tuple((moved / moved.max()).tolist()), tuple(counts.tolist())
        coins = self.sample_rate < 1
        losses = _losses(matrix, min(self.turns, len(z)), coins, shape, times, upper)
        noises = [min(SILENT, 1 / max(largest * loss, 1 / SILENT)) for loss in losses]
        words = {name: getattr(self, name) for name in ("relation", "trust_model", "unit")}
        return (
            SampledGaussian(self.sample_rate, noises, **words)
            if coins
            else Gaussian(noises, **words)
        )


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


@lru_cache(maxsize=256)
def _losses(
    matrix: Correlation,
    turns: int,
    coins: bool,
    moved: tuple[float, ...],
    times: tuple[int, ...],
    upper: bool,
) -> tuple[float, ...]:
    """How far a record moves what is released, over the noise, of the worst group.

    Without coins one number, of all steps. With coins one for each step that it may join,
    descending: of a group that is worse than any, or for a lower bound of the first one.

    `moved` is the norm of a contribution at each step over the noise, `times` how often each row is
    released.
    """
    norms, counts, step = np.array(moved), np.array(times), np.arange(len(moved))
    # Of equal steps, none of which is released more often than those before it, the first group's
    # are the others', earlier.
    alike = matrix != "tree" and np.ptp(norms) == 0 and bool(np.all(np.diff(counts) <= 0))
    groups = 1 if alike or (coins and not upper) else min(turns, len(norms))
    if not coins:
        rows = (applied(matrix, np.where(step % turns == r, norms, 0.0)) for r in range(groups))
        return (math.sqrt(max(float((counts * row**2).sum()) for row in rows)),)
    assert matrix != "tree"
    squares = np.convolve((counts > 0)[::-1], np.square(matrix))[: len(norms)][::-1]
    norms = norms * np.sqrt(squares)
    worst = np.zeros(max(1, *(int(counts[r::turns].sum()) for r in range(groups))))
    for r in range(groups):
        own = np.sort(np.repeat(norms[r::turns], counts[r::turns]))[::-1]
        worst[: len(own)] = np.maximum(worst[: len(own)], own)
    return tuple(worst.tolist())


@lru_cache(maxsize=64)
def fraction_bits(correlation: Correlation, steps: int) -> int:
    """Of 32-bit fixed point numbers, in deviations, in which kept noise and sums of it have room.

    Raises:
        InputError: fewer than 8 are left.
    """
    if correlation == "tree":
        span = float(_MOST_DEVIATIONS * (steps.bit_length() + 1))
    else:
        from scipy.signal import lfilter  # takes long to load

        impulse = np.zeros(steps)
        impulse[0] = 1.0
        grown = np.abs(lfilter([1.0], correlation, impulse)).sum()
        span = float(_MOST_DEVIATIONS * grown * max(1, len(correlation) - 1))
    bits = min(20, 30 - math.ceil(math.log2(span))) if math.isfinite(span) else 0
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
    from scipy.signal import lfilter

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
