"""Gaussian noise as one loop: from keystream to lattice points, and what is left in doubt.

A pair of noise values takes two 32-bit words, W and A. With h = W >> 2,

    u = (h + 1/2) / 2^30,    R = sqrt(-2 ln u),    t = (pi / 4) A / 2^31 with A read as signed,

and the two low bits of W make the whole circle of the eighths from -t to t: bit 0 is the sign of
the cosine, bit 1 swaps the two. The pair is R (cos t, sin t), so changed. Logarithm, cosine and
sine are polynomials in single precision, the best ones of their degree on their interval.

The words of a row come in groups of `GROUP_PAIRS` pairs, first their W, then their A; so do values:
first those of the cosine, then those of the sine. That lets the processor work on eight or more
pairs at once.

`FAST_ERROR` bounds how far these values lie from those of words with any number of more bits, which
is tested for every W and every A. Whatever that bound leaves in doubt is not decided here.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.kernels.compile import compiled, fused, inlined
from tacit.privacy.noise.lattice import GROUP_PAIRS

F, U, S = np.float32, np.uint32, np.int32  # single precision; words, and words with a sign

GROUP_VALUES = 2 * GROUP_PAIRS
# Pairs whose W is below the first (R > 4.24) or not below the second (R < 0.0007) are left to care:
# 30 bits resolve their R too coarsely.
LEAST_WORD, TOP_WORD = 1 << 19, (1 << 32) - (1 << 10)
# Of other normal values, in units of their standard deviation.
FAST_ERROR = 3.0 * 2.0**-20
# With sums below 2^11 lattice points, their rounding to single precision is at most 2^-14 of one,
# that of a total in double precision as much again, and that of the threshold nothing beside them.
_SINGLE_SUM = F(2.0**11)
_SINGLE_ERROR = 2.0**-12
# With offsets: totals and rests are added first, and both sums are rounded, by at most 2^-13; what
# the rests of offsets that are split in single precision are rounded by is nothing beside that.
_MOVED_ERROR = 2.0**-11
_SINGLE_OFFSET, _SINGLE_COUNT = F(2.0**21), F(2.0**24)
# Sums below this many lattice points are rounded by at most 2^-19 of one in double precision.
_DOUBLE_SUM = 2.0**34
_DOUBLE_ERROR = 2.0**-18
# Adding and subtracting this rounds to a whole number, to the even one of two.
_ROUND = F(1.5 * 2.0**23)
# Deviations in lattice points are 2^6 to 2^7; outside this range of spacings single precision
# might over- or underflow.
_SPACINGS = (2.0**-40, 2.0**40)

_LOG_2 = F(2.0 * np.log(2.0))
_EIGHTH = F(np.pi / 4.0 * 2.0**-31)
# -2 ln(1 + t) = t (-2 + t (L0 + t (L1 + ...))) for 1 + t from sqrt(1/2) to sqrt(2).
_L0, _L1, _L2, _L3 = F(1.0000064373), F(-0.66669428349), F(0.49942457676), F(-0.39813768864)
_L4, _L5, _L6 = F(0.34486451745), F(-0.32360994816), F(0.20164737105)
# sin t = t + t z (S0 + z (S1 + z S2)) and cos t = 1 + z (C0 + z (C1 + z C2)), z = t^2.
_S0, _S1, _S2 = F(-0.16666650772), F(0.0083319786936), F(-0.00019495635934)
_C0, _C1, _C2 = F(-0.49999895692), F(0.041656292975), F(-0.0013597822981)
_HALF_ROOT = U(0x3F3504F3)  # the bits of sqrt(1/2), as a float, which is below the root


@inlined
def fast_radius(word: np.uint32) -> np.float32:
    """R of a word W, by the formula of the module."""
    h = S(word >> U(2))
    # 2^30 u = 2^exponent (1 + t)
    bits = U(F(F(h) + F(0.5)).view(U) - _HALF_ROOT)
    exponent = S(S(bits) >> S(23))
    t = U(U(bits & U(0x7FFFFF)) + _HALF_ROOT).view(F) - F(1.0)
    # Near u = 1 the logarithm is that of what is missing to 1, which no conversion has rounded.
    missing = (F(S(h ^ S(0x3FFFFFFF))) + F(0.5)) * F(-(2.0**-30))
    t = missing if exponent == S(30) else t
    series = fused(_L6, t, _L5)
    series = fused(series, t, _L4)
    series = fused(series, t, _L3)
    series = fused(series, t, _L2)
    series = fused(series, t, _L1)
    series = fused(series, t, _L0)
    series = fused(series, t, F(-2.0))
    return F(np.sqrt(fused(series, t, F(S(30) - exponent) * _LOG_2)))


@inlined
def fast_direction(word: np.uint32, angle: np.uint32) -> tuple[np.float32, np.float32]:
    """The two coordinates of the direction that the low bits of W and the word A make."""
    t = F(S(angle)) * _EIGHTH
    z = t * t
    sine = fused(fused(fused(_S2, z, _S1), z, _S0) * z, t, t)
    cosine = fused(fused(fused(_C2, z, _C1), z, _C0), z, F(1.0))
    cosine = U(F(cosine).view(U) ^ U(U(word & U(1)) << U(31))).view(F)
    swapped = U(word & U(2)) != U(0)
    return (sine if swapped else cosine), (cosine if swapped else sine)


@compiled
def _noise_groups(
    totals: NDArray[np.float32],
    points: NDArray[np.int32] | None,
    words: NDArray[np.uint32],
    spacing: float,
    scale: float,
    ratio: float,
    flags: NDArray[np.uint8],
) -> None:
    """Noise whole groups in place; flags say which of a pair, 1 or 2, is left as it was.

    Without `points` of offsets their branches are not compiled.
    """
    kind = totals.dtype.type
    size, points_per_unit = kind(spacing), kind(1.0 / spacing)
    high = F(ratio)
    low = F(ratio - np.float64(high))
    rounded = _SINGLE_ERROR if points is None else _MOVED_ERROR
    deviation, sure = F(scale), F(0.5 - rounded - FAST_ERROR * scale)
    for group in range(len(totals) // GROUP_VALUES):
        begin = group * GROUP_VALUES
        for pair in range(GROUP_PAIRS):
            i, j = begin + pair, begin + GROUP_PAIRS + pair
            word = words[i]
            radius = fast_radius(word) * deviation
            cosine, sine = fast_direction(word, words[j])
            first, second = totals[i], totals[j]
            # Scaling by a power of two is exact.
            if points is None:
                one = fused(radius, cosine, F(first * points_per_unit))
                other = fused(radius, sine, F(second * points_per_unit))
            else:
                whole, rest, fits = _split(F(points[i]), high, low)
                other_whole, other_rest, other_fits = _split(F(points[j]), high, low)
                one = fused(radius, cosine, F(first * points_per_unit) + rest)
                other = fused(radius, sine, F(second * points_per_unit) + other_rest)
            point_of_one = (one + _ROUND) - _ROUND
            point_of_other = (other + _ROUND) - _ROUND
            fine = (word >= LEAST_WORD) & (word < TOP_WORD)
            # What is not a number is above no bound, and not sure either.
            sure_of_one = fine & (abs(one) < _SINGLE_SUM) & (abs(one - point_of_one) <= sure)
            sure_of_other = (
                fine & (abs(other) < _SINGLE_SUM) & (abs(other - point_of_other) <= sure)
            )
            if points is not None:
                sure_of_one &= fits
                sure_of_other &= other_fits
                point_of_one += whole
                point_of_other += other_whole
            totals[i] = point_of_one * size if sure_of_one else first
            totals[j] = point_of_other * size if sure_of_other else second
            flags[group * GROUP_PAIRS + pair] = np.uint8(3) - sure_of_one - 2 * sure_of_other


@inlined
def _split(count: Any, high: Any, low: Any) -> tuple[Any, Any, Any]:
    """An offset in lattice points, as a whole number and the rest; and whether these are right."""
    offset = count * high
    whole = (offset + _ROUND) - _ROUND
    rest = fused(count, low, fused(count, high, -whole))
    return whole, rest, (abs(offset) < _SINGLE_OFFSET) & (abs(count) < _SINGLE_COUNT)


@compiled
def _settled(
    total: float, word: np.uint32, angle: np.uint32, half: int, spacing: float, scale: float
) -> float:
    """The lattice point in double precision, in units of the spacing; NaN where it is in doubt."""
    coordinate = fast_direction(word, angle)[half]
    exact = total / spacing
    noised = exact + scale * np.float64(fast_radius(word) * coordinate)
    point = np.rint(noised)
    sure = 0.5 - _DOUBLE_ERROR - FAST_ERROR * scale
    fine = LEAST_WORD <= word < TOP_WORD
    if fine and abs(exact) < _DOUBLE_SUM and abs(noised - point) <= sure:
        return float(point + 0.0)  # a zero has no sign, which would depend on how it was found
    return math.nan


@inlined
def _settled_with_offset(
    total: float,
    count: float,
    ratio: float,
    word: np.uint32,
    angle: np.uint32,
    half: int,
    spacing: float,
    scale: float,
) -> float:
    """As `_settled`, with an offset."""
    exact, high = total / spacing, np.float64(F(ratio))
    offset = count * high
    whole, moved = np.rint(exact), np.rint(offset)
    if not (abs(offset) < np.float64(_SINGLE_OFFSET) and abs(count) < np.float64(_SINGLE_COUNT)):
        return math.nan
    rest = (exact - whole) + ((offset - moved) + count * (ratio - high))
    return float(whole + (moved + _settled(rest, word, angle, half, 1.0, scale)))


@compiled
def noise_rows(
    rows: NDArray[np.float32],
    points: NDArray[np.int32] | None,
    words: NDArray[np.uint32],
    spacings: NDArray[np.float64],
    scales: NDArray[np.float64],
    ratios: NDArray[np.float64],
    flags: NDArray[np.uint8],
    left: NDArray[np.int64],
    left_words: NDArray[np.uint32],
    count: int,
    first_row: int,
    first_column: int,
) -> int:
    """Move totals to the lattice points next to their noised sums, where that is beyond doubt.

    Args:
        rows: totals, `[rows, length]` of float32 or float64, changed in place.
        points: of the offsets that are added beside the noise, `[rows, length]`.
        words: their keystream, `[rows, width]`, in whole groups.
        spacings: of the lattices, powers of two, `[rows]`.
        scales: standard deviations in lattice points, `[rows]`.
        ratios: units of offsets in lattice points, `[rows]`.
        flags: scratch, `[width / 2]`.
        left: is written, from `count` on, with row and column of the values that are left as they
            were, to be settled with care; `[capacity, 2]`, with room for all values.
        left_words: and this with the two words of their pairs.
        count: how many are left from before.
        first_row: number of the first row, in `left`.
        first_column: number of the first column, in `left`.

    Returns:
        How many are left then.
    """
    length = rows.shape[1]
    whole = length // GROUP_VALUES * GROUP_VALUES
    pairs = -(-length // GROUP_VALUES) * GROUP_PAIRS
    rest, rest_points = np.zeros(GROUP_VALUES, rows.dtype), np.zeros(GROUP_VALUES, np.int32)
    for row in range(len(rows)):
        spacing, scale, ratio = spacings[row], scales[row], ratios[row]
        if _SPACINGS[0] < spacing < _SPACINGS[1]:
            first, own = rows[row, :whole], words[row]
            if points is None:
                _noise_groups(first, None, own, spacing, scale, ratio, flags)
            else:
                _noise_groups(first, points[row, :whole], own, spacing, scale, ratio, flags)
            if whole < length:
                rest[: length - whole] = rows[row, whole:]
                last, last_flags = words[row, whole:], flags[whole // 2 :]
                if points is None:
                    _noise_groups(rest, None, last, spacing, scale, ratio, last_flags)
                else:
                    rest_points[: length - whole] = points[row, whole:]
                    _noise_groups(rest, rest_points, last, spacing, scale, ratio, last_flags)
                rows[row, whole:] = rest[: length - whole]
        else:
            flags[:pairs] = 3
        # Few flags are set: eight are passed over at once.
        eights = flags[:pairs].view(np.uint64)
        for eight in range(len(eights)):
            if eights[eight] == 0:
                continue
            for pair in range(8 * eight, 8 * eight + 8):
                for half in range(2):
                    at = pair // GROUP_PAIRS * GROUP_VALUES + pair % GROUP_PAIRS
                    column = at + half * GROUP_PAIRS
                    if flags[pair] & (1 << half) and column < length:
                        total = float(rows[row, column])
                        word, angle = words[row, at], words[row, at + GROUP_PAIRS]
                        if points is not None:
                            count_of_points = np.float64(points[row, column])
                            point = _settled_with_offset(
                                total, count_of_points, ratio, word, angle, half, spacing, scale
                            )
                        else:
                            point = _settled(total, word, angle, half, spacing, scale)
                        if math.isnan(point):
                            left[count, 0], left[count, 1] = first_row + row, first_column + column
                            left_words[count, 0], left_words[count, 1] = word, angle
                            count += 1
                        else:
                            rows[row, column] = point * spacing
    return count
