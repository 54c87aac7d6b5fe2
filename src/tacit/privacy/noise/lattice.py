"""What releases on a public lattice are made of: spacing, rows on the host, pieces, normals.

Why a release lies on a lattice, and what that guarantees, is in `tacit.privacy.noise.gaussian` and
`tacit.privacy.noise.laplace`.

*Normals.* A pair takes one AES block: a signed 64-bit word w for the radius and one, a, for the
angle. With u = |w| / 2^63 and t = 2 pi a / 2^64 it is sqrt(-2 ln u) (cos t, sin t): Box-Muller.
Radii reach 9.49 standard deviations; the ideal mass beyond is below 2^-63 a pair. Logarithm, sine
and cosine are NumPy's and may differ in the last bits between processor types; on one machine,
equal positions give equal bits.

*Pieces.* Rows are worked on in pieces of up to 2^17 pairs, on every core. NumPy lets go of the
interpreter lock during each operation; with two threads each operation then costs some 10 us more
than alone, hardly ever by waiting (20 voluntary context switches a release), as if what the
interpreter works with had to move to the other core. An operation on 2^13 pairs takes no longer.
Measured with 5 million values on two cores, two threads over one: 1.9 with pieces of 2^14 pairs,
1.3 with 2^15, 0.9 with 2^16, 0.7 with 2^17 and with 2^18. One thread alone loses nothing by large
pieces, although they do not fit its own cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import InputError
from tacit.privacy.noise.draws import BLOCK_BYTES, NodeKeys, position

__all__ = [
    "NormalBlock",
    "Pieces",
    "Place",
    "Read",
    "SingleBlock",
    "check_total",
    "host_rows",
    "lattice_spacing",
    "normal",
    "over_pieces",
    "over_rows",
    "single_block",
]


# Most pairs of a piece: 6 MB of working memory a thread.
_PIECE_PAIRS = 1 << 17
# Blocks are multiples of this many pairs wide, and the last is cut: no element is ever computed by
# the scalar remainder of a vectorised loop, which may round otherwise.
_PAD_PAIRS = 64
# Rows that are worked on as a whole are shared among threads from this many values on.
_SHARED_VALUES = 1 << 16
# Pieces: a thread for every so many values. Handing the interpreter lock from core to core costs
# 10 us an operation, so two threads are slower than one for 400,000 values, equal for 500,000.
_THREAD_VALUES = 1 << 19
_DTYPES = (torch.float32, torch.float64)

# Which rows and columns of `[rows, length]`.
Place: TypeAlias = tuple[slice, slice]
# Writes the keystream of a row, from one of its pairs on: row, pair, zeros, buffer.
Read: TypeAlias = Callable[[int, int, bytes, memoryview], None]


def over_rows(rows: int, length: int, work: Callable[[range], None]) -> None:
    """Call `work` with ranges that make up all rows, on as many threads as PyTorch uses.

    Rows are independent, so how they are shared among threads changes nothing.
    """
    threads = min(torch.get_num_threads(), rows) if rows * length >= _SHARED_VALUES else 1
    if threads <= 1:
        work(range(rows))
        return
    bounds = [rows * share // threads for share in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, [range(*pair) for pair in pairwise(bounds)]))


@dataclass(frozen=True)
class Pieces:
    """How `[rows, length]` values are cut: short rows together, long ones in parts.

    Args:
        rows: how many rows there are.
        length: of a row, in values.
        height: rows of a piece, at most.
        pairs: of a row of a piece.
    """

    rows: int
    length: int
    height: int
    pairs: int

    @classmethod
    def of(cls, rows: int, length: int, most: int = _PIECE_PAIRS) -> Pieces:
        """Pieces as large as pays (`most` pairs at most), and enough of them for all threads."""
        padded = -(-max(length, 1) // (2 * _PAD_PAIRS))  # in units of the padding
        threads = _threads(rows * length)
        share = -(-padded * rows // threads)
        units = max(1, min(most // _PAD_PAIRS, share))
        pairs = _PAD_PAIRS * _parts(padded, units)
        height = _parts(max(rows, 1), max(1, _PAD_PAIRS * units // pairs))
        return cls(rows, length, height, pairs)

    def places(self) -> list[Place]:
        """Of all pieces."""
        rows, width = range(0, self.rows, self.height), 2 * self.pairs
        return [
            (slice(row, min(row + self.height, self.rows)), slice(column, column + width))
            for row in rows
            for column in range(0, self.length, width)
        ]


def over_pieces(pieces: Pieces, work: Callable[[Iterator[Place]], None]) -> None:
    """Call `work` on as many threads as PyTorch uses, each with an iterator over its pieces.

    The threads share one list and take the next piece when they are done with one, so a core that
    is busy with something else does not hold up the others. Pieces are independent.
    """
    places = pieces.places()
    threads = min(_threads(pieces.rows * pieces.length), len(places))
    left = iter(places)  # of a list: taking the next is atomic
    if threads <= 1:
        work(left)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, [left] * threads))


def _threads(values: int) -> int:
    return max(1, min(torch.get_num_threads(), values // _THREAD_VALUES))


def _parts(total: int, most: int) -> int:
    """The size of equal parts of `total` (at least 1), at most `most` each, the last one cut."""
    return -(-total // -(-total // most))


class _WordBlock:
    """Room for the keystream of one piece at a time.

    It is kept over the pieces: fresh memory for each costs as much as the arithmetic.
    """

    def __init__(self, pieces: Pieces) -> None:
        height, pairs = pieces.height, pieces.pairs
        self.pairs = pairs
        self.shape = (height, pairs)
        self._zeros = bytes(pairs * BLOCK_BYTES)
        # Encryption asks for room of one more block.
        self._stream = np.empty((height * pairs + 1) * BLOCK_BYTES, np.uint8)
        self._raw = self._stream[: height * pairs * BLOCK_BYTES]
        self.words: NDArray[np.int64] = self._raw.view("<i8").reshape(*self.shape, 2)

    def _fill(self, place: Place, read: Read) -> int:
        """Read the words of a piece; the number of its rows."""
        count, first = len(self._zeros), place[1].start // 2
        group = range(place[0].start, place[0].stop)
        for i, row in enumerate(group):
            read(row, first, self._zeros, self._stream[i * count :].data)
        return len(group)


@contextmanager
def single_block(pieces: Pieces) -> Iterator[SingleBlock]:
    """A `SingleBlock` for these pieces, whatever it holds; it is kept for the next time.

    Six megabytes of fresh memory cost 1,500 page faults a thread: 5 to 8 % of the time of 5 million
    values on two threads. Blocks of one shape are kept, as many as there were threads at once.
    """
    shape = (pieces.height, pieces.pairs)
    try:
        block = _SPARE.pop()
    except IndexError:
        block = SingleBlock(pieces)
    if block.shape != shape:
        _SPARE.clear()
        block = SingleBlock(pieces)
    yield block
    _SPARE.append(block)


class NormalBlock(_WordBlock):
    """Working memory of one thread, which turns keystreams into normals, piece by piece.

    The radius is computed in float64 up to its square. In float32 the same words make the same
    normals up to rounding; the angle is the top 32 bits of its word.

    Attributes:
        words: the signed words of a piece, `[rows, pairs, 2]`: radius, angle.
        normals: what they make, `[rows, 2 pairs]`.
    """

    def __init__(self, pieces: Pieces, dtype: np.dtype[Any]) -> None:
        super().__init__(pieces)
        shape, angle_bytes = self.shape, dtype.itemsize
        # float32 takes its angle from the top half of the word that float64 takes as a whole.
        self._angle_words = self._raw.view(f"<i{angle_bytes}").reshape(*shape, -1)[..., -1]
        self._angle_unit = dtype.type(2.0 * np.pi / 2.0 ** (8 * angle_bytes))
        self._uniform = np.empty(shape, np.float64)
        self._radii, self._angle, self._direction = (np.empty(shape, dtype) for _ in range(3))
        self._pairs = np.empty((*shape, 2), dtype)
        self.normals: NDArray[Any] = self._pairs.reshape(shape[0], -1)

    def draw(self, place: Place, read: Read) -> None:
        """Draw a piece: it lies in the corner of the attributes."""
        self._fill(place, read)
        uniform, radius, angle = self._uniform, self._radii, self._angle
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


class SingleBlock(_WordBlock):
    """Like `NormalBlock`, wholly in single precision, times a deviation; and what not to trust.

    Only the upper halves of the words are used. `tacit.privacy.noise.gaussian` bounds the error.

    Attributes:
        words: the signed words of a piece, `[rows, pairs, 2]`: radius, angle.
        corner: pairs whose radius is outside `RADII`, or may be, `[rows, pairs]`.
        noise: what the words make, `[rows, 2 pairs]`.
        close, points: scratch of the shape of `noise` for whoever uses it.
    """

    # Radii whose pairs are not `corner`.
    RADII = (0.016, 4.24)

    def __init__(self, pieces: Pieces) -> None:
        super().__init__(pieces)
        height, pairs = self.shape
        self._radii, self._angle, self._other = (np.empty(self.shape, np.float32) for _ in range(3))
        self._pairs = np.empty((height, pairs, 2), np.float32)
        self._complex = self._pairs.view(np.complex64)[..., 0]
        self.noise: NDArray[np.float32] = self._pairs.reshape(height, -1)
        self.points = np.empty_like(self.noise)
        self.corner = np.zeros(self.shape, np.bool_)
        self.close = np.zeros(self.noise.shape, np.bool_)
        low, high = (np.float32(np.exp(-radius * radius)) for radius in reversed(self.RADII))
        self._lowest = low.view(np.uint32)
        self._span = high.view(np.uint32) - self._lowest

    @cached_property
    def doubles(self) -> NDArray[np.float64]:
        """Two more of the shape of `noise` in double precision, for those who need them."""
        return np.empty((2, *self.noise.shape))

    def draw(self, place: Place, read: Read, factors: NDArray[np.float32]) -> None:
        """Draw a piece: it lies in the corner of the attributes.

        Args:
            place: of the piece.
            read: writes the keystreams.
            factors: minus the square of each row's deviation, `[rows, 1]`.
        """
        height = self._fill(place, read)
        # The upper halves of the words, with sign, rounded down: `[rows, pairs, 2]`.
        halves = self._raw.view("<i4").reshape(*self.shape, 4)[:height, :, 1::2]
        radius, angle, other = (array[:height] for array in (self._radii, self._angle, self._other))
        np.copyto(radius, halves[..., 0], casting="unsafe")
        radius *= np.float32(2.0**-31)
        np.multiply(radius, radius, out=radius)  # u^2, so that its logarithm is -R^2
        # Positive floats are ordered like their bits; 0 is a corner since it wraps around.
        bits = other.view(np.uint32)
        np.subtract(radius.view(np.uint32), self._lowest, out=bits)
        np.greater(bits, self._span, out=self.corner[:height])
        with np.errstate(divide="ignore"):
            np.log(radius, out=radius)
        radius *= factors
        np.sqrt(radius, out=radius)
        np.copyto(angle, halves[..., 1], casting="unsafe")
        angle *= np.float32(2.0 * np.pi / 2.0**32)
        np.cos(angle, out=self._pairs[:height, :, 0])
        np.sin(angle, out=self._pairs[:height, :, 1])
        # As complex numbers: one pass in place of two that write every other number.
        self._complex[:height] *= radius


# Working memory that is not in use, for `single_block`: scratch, whose content never matters.
_SPARE: list[SingleBlock] = []


def normal(
    keys: NodeKeys,
    nodes: Sequence[int] | None,
    purpose: str,
    step: int,
    d: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    out: Tensor | None = None,
    part: int = 0,
) -> Tensor:
    """Independent standard normals, one row a node: `[nodes, d]`.

    Row i depends on the key of node i, purpose, step and part only: alone or in any stack it has
    the same bits, and its first m values are those of a draw of length m. Rows are drawn on the
    CPU, on as many threads as PyTorch uses, and copied where the device is another one.

    Args:
        keys: keys of at least these nodes.
        nodes: which nodes, in the order of the rows; None for all that `keys` holds.
        purpose: what the draw is for; different purposes are independent.
        step: 0 .. 2^48 - 1.
        d: length of a row, at least 0.
        dtype: `torch.float32` or `torch.float64`; that of `out` if it is given.
        device: where the result lies; that of `out` if it is given.
        out: `[nodes, d]`, filled and returned instead of a new tensor.
        part: 0 .. 2^16 - 1, for several draws of one purpose in one step.

    Raises:
        InputError: a node's key is not held, a position is out of range, the dtype is another one,
            or `out` has another shape.
    """
    rows = keys.nodes if nodes is None else tuple(nodes)
    shape = (len(rows), d)
    if out is None:
        out = torch.empty(shape, dtype=dtype, device=device)
    if out.shape != shape:
        raise InputError("out", tuple(out.shape), f"a tensor of shape {shape}")
    if out.dtype not in _DTYPES:
        raise InputError("train.dtype", str(out.dtype), "float32 or float64")

    in_place = out.device.type == "cpu" and out.is_contiguous()
    host = out if in_place else torch.empty(shape, dtype=out.dtype)
    for node in rows:
        keys.check(node)
    counter = position(step, part)
    values = host.detach().numpy()
    pieces = Pieces.of(*shape)

    def read(row: int, pair: int, zeros: bytes, buffer: memoryview) -> None:
        keys.read(rows[row], purpose, counter + pair, zeros, buffer)

    def work(places: Iterator[Place]) -> None:
        block = NormalBlock(pieces, values.dtype)
        for place in places:
            block.draw(place, read)
            piece = values[place]
            height, width = piece.shape
            piece[...] = block.normals[:height, :width]

    over_pieces(pieces, work)
    if not in_place:
        with torch.no_grad():
            out.copy_(host)
    return out


# Lattice points a standard deviation (of Laplace noise: a scale): at least 2^6 and below 2^7.
_POINTS_LOG2 = 6
_SIZE_RANGE = (2.0**-500, 2.0**500)


def lattice_spacing(what: str, size: float) -> float:
    """The lattice's spacing at this size of the noise: a power of two, size / 128 to size / 64.

    Args:
        what: the size's name, for the message.
        size: standard deviation, or scale.

    Raises:
        InputError: the size is not between 2^-500 and 2^500.
    """
    if not _SIZE_RANGE[0] < size < _SIZE_RANGE[1]:
        raise InputError(what, size, "a number between 2^-500 and 2^500")
    return math.ldexp(1.0, math.frexp(size)[1] - 1 - _POINTS_LOG2)


def check_total(
    total: Tensor, nodes: Sequence[int], sizes: Sequence[float], size_word: str
) -> None:
    """Refuse a total that is not `[nodes, d]` of float32 or float64, with a noise size a row.

    Args:
        total: what is to be released.
        nodes: which nodes, in the order of the rows.
        sizes: standard deviations or scales.
        size_word: what they are, for the message.

    Raises:
        InputError: the shapes differ, or the dtype is another one.
    """
    if total.shape[:1] != (len(nodes),) or len(sizes) != len(nodes) or total.dim() != 2:
        raise InputError(
            "total", tuple(total.shape), f"one row for each of {len(nodes)} nodes and {size_word}"
        )
    if total.dtype not in _DTYPES:
        raise InputError("train.dtype", str(total.dtype), "float32 or float64")


@contextmanager
def host_rows(total: Tensor) -> Iterator[NDArray[Any]]:
    """The rows of a total, to be changed in place on the host; the total has the change at the end.

    Args:
        total: on any device; where it lies contiguous on the CPU, the rows are its own memory.
    """
    in_place = total.device.type == "cpu" and total.is_contiguous()
    host = total if in_place else total.cpu().contiguous()
    yield host.detach().numpy()
    if not in_place:
        with torch.no_grad():
            total.copy_(host)
