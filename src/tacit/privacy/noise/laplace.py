"""Laplace noise that leaves nothing in the low bits: exact by comparisons, released on a lattice.

*Threat.* The analysis of the Laplace mechanism is over the reals; `total - b log(u)` in floating
point reaches only some numbers near the total, and which ones tells neighbouring data sets apart
(Mironov, CCS 2012).

*Mechanism.* With s = 2^(floor(log2 b) - 6), a function of the plan alone, what is released is

    s * round((total + X) / s),      X Laplace of scale b' in [b, b (1 + 2^-63)],

the lattice point next to the **exact** sum, then rounded to the dtype of the total. Trust model and
relation are those of what is accounted: this is the analysed mechanism, post-processed, at its own
sensitivity in l1. The lattice is public; and noise of scale b' >= b is noise of scale b plus an
independent variable. Rounding adds at most b^2 / 49,152 to the variance 2 b^2.

*How X is drawn* (von Neumann 1951; Forsythe 1972). Nothing but 64-bit words is compared, so there
is no logarithm whose rounding would matter. An attempt draws a word w, then words for as long as
each is strictly below the one before it; if the number of those is odd, it failed and another
follows. With M = 2^64, failed attempts times M plus w is **exactly** geometric, ties of words
included; with a fraction F of a cell more it is exactly exponential, and with a fair sign it is X.
F alone is not exact: it is taken with 256 bits, which changes the probability of every lattice
point, whatever the total, by a factor within 1 +- 2^-117. Proofs:
`docs/proofs/finite-arithmetic.md`.

*How the exact point is found.* In double precision, from w and k alone, with an error below 2^-38
lattice points for k < 64. Within 2^-36 of the middle between two points, or for larger k (together
fewer than one value in 10^10), the sum is taken in exact rational arithmetic, F included.

*Assumed:* AES-256 in counter mode cannot be told from random bits (privacy is computational); IEEE
754; totals are finite, over the spacing too; b is exactly what the accountant was given.

*Not covered here.* The sensitivity of the total in floating point (`docs/proofs/clipped-sums.md`).
Time: how many words are drawn depends on the noise (not on the total), and whoever measures it
learns something about |X|.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import InputError
from tacit.privacy.noise.draws import BLOCK_BYTES, NodeKeys, aes_ctr, position
from tacit.privacy.noise.lattice import check_total, host_rows, lattice_spacing, over_rows
from tacit.privacy.noise.slack import Slack

# Values that are drawn together; what lies at an index depends on no later one.
_CHUNK = 1 << 15
# Words that an unfinished value draws at once: one costs most time, more are mostly wasted.
_WORDS = 4
# The 64-bit block index of a draw: chunk of the row, turn, block (a turn takes 2^16 at most).
_CHUNK_BLOCKS = 1 << 40
_TURN_BLOCKS = 1 << 16
# What double precision does not settle: closer than this to the middle between two points, or
# after so many failed attempts.
_MARGIN = 2.0**-36
_MOST_FAILED = 64
# b' is above b by this factor at most.
_WIDER = 1 + Fraction(1, 1 << 63)
_FRACTION_BLOCKS = 2
_FRACTION_BITS = 8 * BLOCK_BYTES * _FRACTION_BLOCKS
# Bound of the logarithm of a lattice point's probability over the ideal one.
_LOG_RATIO = 2.0**-116


def laplace_spacing(scale: float) -> float:
    """The lattice's spacing at this scale: a power of two, scale / 128 to scale / 64.

    Raises:
        InputError: `scale` is not between 2^-500 and 2^500.
    """
    return lattice_spacing("scale of Laplace noise", scale)


def laplace_slack(values: int) -> Slack:
    """How far the law of this many noised values may lie from the ideal one, at most.

    If the exact Laplace mechanism is (epsilon, delta)-DP, what runs is (`total_epsilon(epsilon)`,
    `total_delta(epsilon, delta)`)-DP, for any epsilon; a pure epsilon stays pure. Every
    probability, and hence every mixture of them over coins and histories, is within a factor
    e^(2^-116) a value of the ideal one: `docs/proofs/finite-arithmetic.md`. For 10^9 values it is
    1.2e-26. The values are those of one node in all steps, d times K.

    Raises:
        InputError: `values` is not in 0 .. 2^60.
    """
    if not 0 <= values <= 1 << 60:
        raise InputError("values", values, "a number of values from 0 to 2^60")
    return Slack(values * _LOG_RATIO, 0.0)


def add_laplace(
    total: Tensor,
    scales: Sequence[float],
    keys: NodeKeys,
    nodes: Sequence[int],
    purpose: str,
    step: int,
    *,
    part: int = 0,
) -> Tensor:
    """Release `total`: add independent Laplace noise, in place, and leave nothing in the low bits.

    Mechanism, guarantee and its limits are in the module's docstring. Row i depends on its total,
    its scale, the key of node i, purpose, step and part only: alone or in any stack it gets the
    same noise, its first m values are those of a row of length m, and the noise of float32 totals
    is that of float64 totals.

    Arguments are those of `add_normal`, but for `total`, which is `[nodes, d]`, float32 or float64,
    finite, on any device, and noised on the CPU; and for `scales`, the scale b of each row (the
    mean of the noise's absolute value; variance 2 b^2).

    Raises:
        InputError: a node's key is not held, a position is out of range, a scale is not between
            2^-500 and 2^500, the shapes differ, or the dtype is another one.
    """
    check_total(total, nodes, scales, "scales")
    counter = position(step, part)
    draws = [
        _RowDraw(
            keys.purpose_key(node, f"{purpose}, Laplace"),
            keys.purpose_key(node, f"{purpose}, Laplace fractions"),
            counter,
            laplace_spacing(scale),
            scale / laplace_spacing(scale),
        )
        for node, scale in zip(nodes, scales, strict=True)
    ]
    length = total.shape[1]
    height = max(1, _CHUNK // max(length, 1))
    with host_rows(total) as rows:

        def work(share: range) -> None:
            with np.errstate(invalid="ignore"):  # a total that is not finite stays so
                for i in share[::height]:
                    group = slice(i, min(i + height, share.stop))
                    for first in range(0, length, _CHUNK):
                        chunk = rows[group, first : first + _CHUNK]
                        _noise_block(chunk, first // _CHUNK, draws[group])

        over_rows(len(rows), length, work)
    return total


@dataclass(frozen=True, repr=False)
class _RowDraw:
    """The secret noise of one row, and its lattice: `scale` is b in lattice points."""

    key: bytes
    fraction_key: bytes
    counter: int
    spacing: float
    scale: float

    def words(self, chunk: int, turn: int, count_bytes: int) -> NDArray[np.uint8]:
        """Random bytes of one turn of a chunk: turn 0 is that of the signs."""
        first = self.counter + chunk * _CHUNK_BLOCKS + turn * _TURN_BLOCKS
        return aes_ctr(self.key, first, count_bytes)

    def fraction(self, index: int) -> Fraction:
        """F of one value: the middle of one of 2^256 cells."""
        first = self.counter + index * _FRACTION_BLOCKS
        bits = int.from_bytes(aes_ctr(self.fraction_key, first, _FRACTION_BITS // 8), "big")
        return Fraction(2 * bits + 1, 2 << _FRACTION_BITS)


def _noise_block(rows: NDArray[Any], chunk: int, draws: Sequence[_RowDraw]) -> None:
    """Move a chunk of some rows to the lattice points next to their exact noised sums."""
    height, width = rows.shape
    failed, words = _geometric(draws, chunk, width)
    sign_bytes = np.stack([draw.words(chunk, 0, -(-width // 8)) for draw in draws])
    signs = np.unpackbits(sign_bytes, axis=1, count=width)
    spacings = np.array([[draw.spacing] for draw in draws])
    scales = np.array([[draw.scale] for draw in draws])

    noise = words.astype(np.float64)
    noise *= 2.0**-64
    noise += failed
    noise = noise.reshape(height, width)
    noise *= scales
    np.negative(noise, out=noise, where=signs.view(np.bool_))
    total = rows.astype(np.float64)
    total *= 1.0 / spacings  # exact: spacings are powers of two
    whole = np.rint(total)
    total -= whole
    noise += total
    point = np.rint(noise)
    # From here on: how far the sum lies from its lattice point.
    noise -= point
    np.abs(noise, out=noise)
    # Totals that are not finite make NaN here, and stay what they are.
    unsure = (noise > 0.5 - _MARGIN).ravel()
    unsure |= (failed >= _MOST_FAILED) & np.isfinite(noise.ravel())
    point += whole
    for k in np.flatnonzero(unsure).tolist():
        i, j = divmod(k, width)
        draw = draws[i]
        number = (int(failed[k]) << 64) + int(words[k]) + draw.fraction(chunk * _CHUNK + j)
        size = Fraction(draw.scale) * _WIDER * number / (1 << 64)
        exact = Fraction(float(rows[i, j])) / Fraction(draw.spacing)
        point[i, j] = float(round(exact - size if signs[i, j] else exact + size))
    point *= spacings
    np.copyto(rows, point, casting="same_kind")


def _geometric(
    draws: Sequence[_RowDraw], chunk: int, width: int
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Failed attempts k and accepted words w, row after row: k 2^64 + w is exactly geometric.

    Every few comparisons, each value of a row that is not finished draws its next words, in the
    order of their indices.
    """
    count = len(draws) * width
    failed = np.zeros(count, np.int64)
    first = np.empty(count, np.uint64)
    # Of the values that are left: their index, the word before, whether an attempt begins, and
    # whether the number of words below their predecessor is odd.
    left = np.arange(count)
    before = np.zeros(count, np.uint64)
    fresh = np.ones(count, np.bool_)
    odd = np.zeros(count, np.bool_)
    turn = 0
    while len(left):
        turn += 1
        bounds = np.searchsorted(left, range(0, count + 1, width)).tolist()
        drawn = [
            draw.words(chunk, turn, 8 * _WORDS * (stop - start))
            for draw, (start, stop) in zip(draws, pairwise(bounds), strict=True)
            if start < stop
        ]
        pool = np.concatenate(drawn).view("<u8").reshape(-1, _WORDS)
        row = np.arange(len(left))
        for column in range(_WORDS):
            word = pool[row, column]
            first[left[fresh]] = word[fresh]
            goes = word < before
            goes |= fresh
            kept = goes | odd
            # An attempt that stops at an odd number has failed; one that goes on changes parity.
            failed[left[odd & ~goes]] += 1
            odd = (goes & ~(odd | fresh))[kept]
            fresh = ~goes[kept]
            left, before, row = left[kept], word[kept], row[kept]
    return failed, first
