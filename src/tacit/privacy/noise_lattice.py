"""Gaussian noise that leaves nothing in the low bits: the release lies on a public lattice.

*Threat.* The analysis of the Gaussian mechanism is over the reals. A floating-point sampler reaches
only some of the numbers near `total + noise`, and which ones depends on `total`: low bits can tell
neighbouring data sets apart at once (Mironov, CCS 2012; Jin, McMurtry, Rubinstein and Ohrimenko,
S&P 2022; Haney, Desfontaines, Hartman, Shrestha and Hay, 2022).

*Mechanism.* With s = 2^(floor(log2 std) - 6), a function of the plan alone, what is released is

    s * round(total / s + (std / s) x),      x = R (cos A, sin A) by pairs (Box-Muller),

the lattice point next to the **exact** sum of the total and the noise, then rounded to the dtype of
the total. Rounding to a public lattice is post-processing of `total + std x`, whatever the total's
own low bits are; so with ideal x this *is* the analysed mechanism, post-processed, at its own
sensitivity. It adds at most std^2 / 49,152 to the variance.

*How the exact point is found.* Normals are drawn in single precision, which errs by less than
2^-17. Where that could matter, within 2^-17 std / s of the middle between two lattice points or in
the corners of the radius (below 0.016 or above 4.24), the value is computed again with care: in
double precision, near u = 1 from 1 - u, and where u < 2^-16 with 512 more bits of a keystream of
its own, since 63 bits resolve small u too coarsely. That is about one value in 500. So every value
is the one that careful arithmetic gives, whichever way it was found; the noise does not depend on
how a machine rounds in single precision.

*What is proved.* The careful value is not exact either. `tacit.privacy.noise_slack` bounds what
that adds to epsilon (below 1e-5 for 10^10 values), and says what is assumed.

*Not covered.* The sensitivity of the total itself in floating point: a sum of clipped gradients
rounds differently when one of them changes. The time a draw takes: recomputing depends on the total
and the noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import InputError
from tacit.privacy.keys import BLOCK_BYTES, NodeKeys, aes_ctr, encryptor, position
from tacit.privacy.noise_block import NormalBlock, over_rows

__all__ = ["add_normal", "careful_normals", "spacing"]

# Lattice points a standard deviation: at least 2^6 and below 2^7.
_POINTS_LOG2 = 6
# Single precision errs by less than this, for u in [2^-13, 1 - 2^-13] (R in [2^-6, 4.245]) and
# totals below 2^36 lattice points. In units of 2^-24: 2 / R for the rounding of u (1/2 / R near
# u = 1), 5 R for logarithm and root, 9.5 R for the angle, 8 R for sine and cosine, 2 R for the
# product, 8 for the sum: at most 113 of 128.
_FAST_ERROR = 2.0**-17
_FAST_TOTAL = 2.0**36
# Middle and half-width of the radii (single precision) that need no care: 0.016 to 4.24, within
# the bounds above by more than they can err.
_FAST_RADII = (np.float32(2.128), np.float32(2.112))
# Radius words below this (u < 2^-16) take more bits.
_TAIL = 1 << 47
_TAIL_BLOCKS = 4
_TAIL_BITS = 8 * BLOCK_BYTES * _TAIL_BLOCKS
_STD_RANGE = (2.0**-500, 2.0**500)


def spacing(std: float) -> float:
    """The lattice's spacing at this standard deviation: a power of two, std / 128 to std / 64.

    Raises:
        InputError: `std` is not between 2^-500 and 2^500.
    """
    if not _STD_RANGE[0] < std < _STD_RANGE[1]:
        raise InputError("noise standard deviation", std, "a number between 2^-500 and 2^500")
    return math.ldexp(1.0, math.frexp(std)[1] - 1 - _POINTS_LOG2)


def add_normal(
    total: Tensor,
    stds: Sequence[float],
    keys: NodeKeys,
    nodes: Sequence[int],
    purpose: str,
    step: int,
    *,
    part: int = 0,
) -> Tensor:
    """Release `total`: add independent Gaussian noise, in place, and leave nothing in the low bits.

    Mechanism, guarantee and its limits are in the module's docstring. Row i depends on its total,
    its standard deviation, the key of node i, purpose, step and part only: alone or in any stack it
    gets the same noise, and the noise of float32 totals is that of float64 totals.

    Args:
        total: `[nodes, d]`, float32 or float64, finite, on any device; noised on the CPU.
        stds: standard deviation of each row.
        keys: keys of at least these nodes.
        nodes: which nodes, in the order of the rows.
        purpose: what the draw is for; different purposes are independent.
        step: 0 .. 2^48 - 1.
        part: 0 .. 2^16 - 1, for several draws of one purpose in one step.

    Returns:
        `total`.

    Raises:
        InputError: a node's key is not held, a position is out of range, a standard deviation is
            not between 2^-500 and 2^500, the shapes differ, or the dtype is another one.
    """
    if total.shape[:1] != (len(nodes),) or len(stds) != len(nodes) or total.dim() != 2:
        raise InputError(
            "total", tuple(total.shape), f"one row for each of {len(nodes)} nodes and deviations"
        )
    if total.dtype not in (torch.float32, torch.float64):
        raise InputError("train.dtype", str(total.dtype), "float32 or float64")
    counter = position(step, part)
    draws = [
        _RowDraw(
            keys.purpose_key(node, purpose),
            keys.purpose_key(node, f"{purpose}, tails"),
            counter,
            spacing(std),
            std / spacing(std),
        )
        for node, std in zip(nodes, stds, strict=True)
    ]
    in_place = total.device.type == "cpu" and total.is_contiguous()
    host = total if in_place else total.cpu().contiguous()
    rows = host.detach().numpy()
    length = rows.shape[1]

    def work(share: range) -> None:
        with np.errstate(invalid="ignore"):  # a total that is not finite stays so
            _settle(rows, draws, list(_noise_rows(rows, share, draws)))

    over_rows(len(rows), length, work)
    if not in_place:
        with torch.no_grad():
            total.copy_(host)
    return total


@dataclass(frozen=True, repr=False)
class _RowDraw:
    """The secret noise of one row, and its lattice: `scale` is the deviation in lattice points."""

    key: bytes
    tail_key: bytes
    counter: int
    spacing: float
    scale: float

    def tail_uniform(self, word: int, pair: int) -> float:
        """U = |word + f - 1/2| / 2^63, where f has bits of its own: never 0."""
        first = self.counter + pair * _TAIL_BLOCKS
        more = int.from_bytes(aes_ctr(self.tail_key, first, _TAIL_BITS // 8), "big")
        # The middle of its cell; the quotient of integers is correctly rounded.
        in_cells = (word << _TAIL_BITS) + more - (1 << (_TAIL_BITS - 1))
        return abs(2 * in_cells + 1) / (1 << (64 + _TAIL_BITS))


@dataclass(frozen=True, repr=False)
class _Unsure:
    """Values that the fast arithmetic does not settle: all arrays are `[n]`, but `words`.

    Args:
        rows: their indices.
        columns: their indices.
        totals: what they were before the noise.
        words: of their pairs, `[n, 2]`.
    """

    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    totals: NDArray[np.float64]
    words: NDArray[np.int64]


def _noise_rows(rows: NDArray[Any], share: range, draws: Sequence[_RowDraw]) -> Iterator[_Unsure]:
    """Noise a share of `[nodes, d]` in place, fast, and say what is left to do with care."""
    block = NormalBlock(len(share), rows.shape[1], np.dtype(np.float32), np.dtype(np.float32))
    sums, points = np.empty(block.normals.shape), np.empty(block.normals.shape)
    distance = np.empty_like(block.radii)
    spacings = np.array([[draw.spacing] for draw in draws])
    scales = np.array([[draw.scale] for draw in draws])
    for place in block.pieces(share, lambda i: encryptor(draws[i].key, draws[i].counter)):
        piece, spacing, scale = rows[place], spacings[place[0]], scales[place[0]]
        height, width = piece.shape
        total, point = sums[:height, :width], points[:height, :width]
        limit = _FAST_TOTAL * spacing.min()
        huge = not (piece.min() > -limit and piece.max() < limit)
        # Exact: spacings are powers of two.
        np.copyto(total, piece)
        total *= 1.0 / spacing
        np.copyto(point, block.normals[:height, :width])
        point *= scale
        total += point
        np.rint(total, out=point)
        # From here on: how far the sum lies from its lattice point.
        total -= point
        np.abs(total, out=total)
        # Totals that are huge or not finite take the careful way, all of the piece.
        close = total > (-1.0 if huge else 0.5 - _FAST_ERROR * scale)
        row, column = _unsure(
            close, np.subtract(block.radii, _FAST_RADII[0], out=distance)[:height]
        )
        if len(row):
            words = block.words[row, column >> 1]
            yield _Unsure(
                row + place[0].start,
                column + place[1].start,
                piece[row, column].astype(float),
                words,
            )
        point *= spacing
        np.copyto(piece, point, casting="same_kind")


def _unsure(
    close: NDArray[np.bool_], distance: NDArray[np.float32]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows and columns of what is `close`, or in a corner of the radius (some perhaps twice).

    `distance` of the radii from the middle of those that need no care is overwritten.
    """
    corner = np.abs(distance, out=distance) > _FAST_RADII[1]
    # In one dimension, finding the few is many times faster.
    close_row, close_column = np.divmod(np.flatnonzero(close), close.shape[1])
    row, pair = np.divmod(np.flatnonzero(corner), corner.shape[1])
    column = np.concatenate([close_column, 2 * pair, 2 * pair + 1])
    there = column < close.shape[1]
    return np.concatenate([close_row, row, row])[there], column[there]


def _settle(rows: NDArray[Any], draws: Sequence[_RowDraw], left: Sequence[_Unsure]) -> None:
    """Compute with care, and write into `[nodes, d]`, what is left; all at once, for speed."""
    if not left:
        return
    row = np.concatenate([unsure.rows for unsure in left])
    column = np.concatenate([unsure.columns for unsure in left])
    words = np.concatenate([unsure.words for unsure in left])
    units = np.array([draw.spacing for draw in draws])[row]
    scales = np.array([draw.scale for draw in draws])[row]

    magnitudes = np.abs(words[:, 0]).view(np.uint64)  # of -2^63 it is 2^63
    uniforms = magnitudes * 2.0**-63
    for j in np.flatnonzero(magnitudes < _TAIL).tolist():
        uniforms[j] = draws[row[j]].tail_uniform(int(words[j, 0]), int(column[j]) >> 1)
    noise = scales * careful_normals(uniforms, magnitudes, words[:, 1], column % 2 == 1)
    totals = np.concatenate([unsure.totals for unsure in left]) / units
    whole = np.rint(totals)
    rows[row, column] = (whole + np.rint((totals - whole) + noise)) * units


def careful_normals(
    uniforms: NDArray[np.float64],
    magnitudes: NDArray[np.uint64],
    angles: NDArray[np.int64],
    odd: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Box-Muller in double precision that keeps its relative accuracy at both ends of u: `[n]`.

    Args:
        uniforms: u in (0, 1].
        magnitudes: round(2^63 u), which says 1 - u exactly where u is above one half.
        angles: 2^64 / (2 pi) times the angle.
        odd: whether the second of the pair (the sine) is wanted.
    """
    upper = magnitudes >= np.uint64(1 << 62)
    short = (np.uint64(1 << 63) - magnitudes) * 2.0**-63
    logs = np.where(upper, np.log1p(-np.where(upper, short, 0.0)), np.log(uniforms))
    turned = angles * (2.0 * np.pi * 2.0**-64)
    return np.asarray(np.sqrt(-2.0 * logs) * np.where(odd, np.sin(turned), np.cos(turned)))
