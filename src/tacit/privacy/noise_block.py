"""From keystream to pairs of normals, piece by piece: the arithmetic of all noise.

A pair takes one AES block: a signed 64-bit word w for the radius and one, a, for the angle. With
u = |w| / 2^63 and t = 2 pi a / 2^64 it is sqrt(-2 ln u) (cos t, sin t): Box-Muller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.privacy.keys import BLOCK_BYTES

__all__ = ["NormalBlock", "Stream", "over_rows"]

# Keystreams are worked on in blocks of about this many pairs: 2 to 3 MB of working memory a
# thread. Smaller blocks spend more time between the calls.
_BLOCK_PAIRS = 1 << 15
# Blocks are multiples of this many pairs wide, and the last is cut: no element is ever computed by
# the scalar remainder of a vectorised loop, which may round otherwise.
_PAD_PAIRS = 64
# For less than this many values, handing the interpreter lock to and fro costs more than a second
# core brings.
_THREAD_VALUES = 1 << 16


class Stream(Protocol):
    """What a block reads its words from: the keystream of AES in counter mode."""

    def update_into(self, zeros: bytes, buffer: memoryview, /) -> object:
        """Write the next `len(zeros)` bytes of the keystream into `buffer`."""


def over_rows(rows: int, length: int, work: Callable[[range], None]) -> None:
    """Call `work` with ranges that make up all rows, on as many threads as PyTorch uses.

    Rows are independent, so how they are shared among threads changes nothing.
    """
    threads = min(torch.get_num_threads(), rows) if rows * length >= _THREAD_VALUES else 1
    if threads <= 1:
        work(range(rows))
        return
    bounds = [rows * share // threads for share in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, [range(*pair) for pair in pairwise(bounds)]))


def _parts(total: int, most: int) -> int:
    """The size of equal parts of `total` (at least 1), at most `most` each, the last one cut."""
    return -(-total // -(-total // most))


class NormalBlock:
    """Working memory of one thread, which turns keystreams into rows of normals, piece by piece.

    It is kept over the pieces: fresh memory for each costs as much as the arithmetic. Short rows
    are worked on together, long ones in pieces.

    Args:
        rows: how many rows there are to fill.
        length: of a row.
        dtype: of the normals. In float32 the same words make the same normals up to rounding; the
            angle is the top 32 bits of its word.
        log_dtype: what the radius is computed in, up to its square. In float32 it is rounded on
            the scale of u, so that radii below 2^-6 are coarse.

    Attributes:
        words: the signed words of a piece, `[rows, pairs, 2]`: radius, angle.
        radii: of the pairs, `[rows, pairs]`.
        normals: what they make, `[rows, 2 pairs]`.
    """

    def __init__(
        self, rows: int, length: int, dtype: np.dtype[Any], log_dtype: np.dtype[Any]
    ) -> None:
        padded = -(-max(length, 1) // (2 * _PAD_PAIRS))  # in units of the padding
        pairs = _PAD_PAIRS * _parts(padded, _BLOCK_PAIRS // _PAD_PAIRS)
        height = _parts(max(rows, 1), max(1, _BLOCK_PAIRS // pairs))
        shape = (height, pairs)
        self._length = length
        self._zeros = bytes(pairs * BLOCK_BYTES)
        # Encryption asks for room of one more block.
        self._stream = np.empty((height * pairs + 1) * BLOCK_BYTES, np.uint8)
        raw = self._stream[: height * pairs * BLOCK_BYTES]
        self.words: NDArray[np.int64] = raw.view("<i8").reshape(*shape, 2)
        # float32 takes its angle from the top half of the word that float64 takes as a whole.
        angle_bytes = dtype.itemsize
        self._angle_words = raw.view(f"<i{angle_bytes}").reshape(*shape, -1)[..., -1]
        self._angle_unit = dtype.type(2.0 * np.pi / 2.0 ** (8 * angle_bytes))
        self._uniform = np.empty(shape, log_dtype)
        self.radii, self._angle, self._direction = (np.empty(shape, dtype) for _ in range(3))
        self._pairs = np.empty((*shape, 2), dtype)
        self.normals: NDArray[Any] = self._pairs.reshape(height, -1)

    def pieces(self, rows: range, stream: Callable[[int], Stream]) -> Iterator[tuple[slice, slice]]:
        """Draw all values of `rows` from the keystream of each: yields each piece's place.

        Between two yields, the corner of the attributes holds what belongs there.
        """
        height, width = self.normals.shape
        for first in range(rows.start, rows.stop, height):
            group = range(first, min(first + height, rows.stop))
            streams = [stream(i) for i in group]
            for column in range(0, self._length, width):
                self.draw(streams)
                yield slice(group.start, group.stop), slice(column, column + width)

    def draw(self, streams: Sequence[Stream]) -> None:
        """Turn the next AES blocks of each stream into a row of `normals`."""
        count = len(self._zeros)
        for i, stream in enumerate(streams):
            stream.update_into(self._zeros, self._stream[i * count :].data)
        uniform, radius, angle = self._uniform, self.radii, self._angle
        # |word| of a signed word is uniform on 0 .. 2^63 (its ends have half the mass); the
        # 2^-65, a quarter of the finest spacing, keeps the logarithm off zero.
        np.copyto(uniform, self.words[..., 0], casting="unsafe")
        np.abs(uniform, out=uniform)
        uniform *= 2.0**-63
        uniform += 2.0**-65
        np.log(uniform, out=uniform)
        np.multiply(uniform, -2.0, out=radius, casting="same_kind")
        np.sqrt(radius, out=radius)
        np.copyto(angle, self._angle_words, casting="unsafe")
        angle *= self._angle_unit
        np.cos(angle, out=self._direction)
        np.multiply(radius, self._direction, out=self._pairs[..., 0])
        np.sin(angle, out=self._direction)
        np.multiply(radius, self._direction, out=self._pairs[..., 1])
