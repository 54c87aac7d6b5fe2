"""Discrete normals from a table: a law that is exact to 591 bits, two bytes of keystream a value.

The discrete normal of `points` lattice points a deviation has

    P(k) = exp(-k^2 / (2 points^2)) / sum over all whole k' of exp(-k'^2 / (2 points^2)).

A value takes a 16-bit word: one bit is the sign, and the other 15 are the leading bits of a uniform
V. The size |k| is the least m with V < P(|k| <= m). For most words those 15 bits decide, and a
table of 2^15 entries has the answer. Where a border lies within the word's cell (about one in 140
at 64 points) 64 bits more of V decide, which follow in the keystream; and where they agree with the
border as well (once in 2^64 such words) 512 bits more do.

*Law.* Borders are kept to 591 bits, so every probability is within 2^-590 of the one above. Of each
that is at least 2^-540 that is a share of at most 2^-50, and the others have below 2^-524 together
(proof: `docs/proofs/pairwise-noise.md`). That is closer than
`tacit.privacy.noise.slack` asks of a normal draw.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InputError

CELL_BITS, FINE_BITS, LAST_BITS = 15, 64, 512
_BITS = CELL_BITS + FINE_BITS + LAST_BITS
# Of the fixed-point numbers that borders are computed from.
_GUARD_BITS = 120
DOUBT = 1
"""In place of twice a number: the word does not decide."""
# Twice the largest number has 16 bits.
_POINTS = tuple(1 << power for power in range(4, 10))


@dataclass(frozen=True, eq=False)
class NormalTable:
    """Which part of the uniform numbers belongs to which size."""

    points: int  # of the lattice a deviation
    # Twice that of each word, or `DOUBT`, int16 `[2^16]`; the top bit is the sign.
    numbers: NDArray[np.int16]
    first: NDArray[np.int16]  # the least size that a cell can have, int16 `[2^15]`
    cells: NDArray[np.uint16]  # the leading 15 bits of every border, `[sizes - 1]`, ascending
    fine: NDArray[np.uint64]  # the 64 bits after them, `[sizes - 1]`
    borders: tuple[int, ...]  # V is below the m-th of these for sizes up to m: in units of 2^-591


@lru_cache(maxsize=4)
def table_of(points: int) -> NormalTable:
    """The table of a deviation of so many lattice points.

    Raises:
        InputError: `points` is not a power of two from 16 to 512.
    """
    if points not in _POINTS:
        raise InputError("points", points, "a power of two from 16 to 512")
    borders = _borders(points)
    cells = np.array([border >> (_BITS - CELL_BITS) for border in borders], np.uint16)
    mask = (1 << FINE_BITS) - 1
    fine = np.array([(border >> LAST_BITS) & mask for border in borders], np.uint64)
    every = np.arange(1 << CELL_BITS)
    first = np.searchsorted(cells, every, "left").astype(np.int16)
    # A border at the very beginning of a cell would leave it undivided: it counts as one within.
    decided = first == np.searchsorted(cells, every, "right")
    halves = [np.where(decided, sign * 2 * first, DOUBT) for sign in (1, -1)]
    numbers = np.concatenate(halves).astype(np.int16)
    return NormalTable(points, numbers, first, cells, fine, borders)


def _borders(points: int) -> tuple[int, ...]:
    """P(|k| <= m) in units of 2^-591, rounded down, for every m but the last."""
    one = 1 << (_BITS + _GUARD_BITS)
    # exp(-1 / (2 points^2)), by its series.
    ratio, term, n = 0, one, 0
    while term:
        ratio += -term if n % 2 else term
        n += 1
        term //= 2 * points * points * n
    square = (ratio * ratio) // one
    # w(m + 1) = w(m) times the (2m + 1)-th power of the ratio; a truncation errs by less than one
    # unit, and m^2 < 2^30 of them make less than a unit of 2^-591 by far.
    weights, factor, weight = [one], ratio, one
    while weight:
        weight = weight * factor // one
        factor = factor * square // one
        weights.append(2 * weight)
    total = sum(weights)
    below, borders = 0, []
    for weight in weights:
        below += weight
        border = (below << _BITS) // total
        if border >= (1 << _BITS) - 1:
            break
        borders.append(border)
    return tuple(borders)


def size_of(table: NormalTable, cell: int, fine: int, last: int) -> int:
    """The size of a uniform of 15, 64 and 512 bits, computed with all of them."""
    uniform = (((cell << FINE_BITS) | fine) << LAST_BITS) | last
    return bisect_right(table.borders, uniform)
