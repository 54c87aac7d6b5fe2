"""What releases on a public lattice are made of: spacing, rows on the host, pieces of rows.

Why a release lies on a lattice, and what that guarantees, is in `tacit.privacy.noise.gaussian` and
`tacit.privacy.noise.laplace`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import InputError
from tacit.kernels.threads import over_threads

# Pairs of normals come in groups of this many: first all words for radii, then those for angles.
GROUP_PAIRS = 32
# Most pairs of a piece. A thread alone does not mind the size; two hand the interpreter's lock to
# each other twice a piece: 5 million values take 3.4 ns each in pieces of 2^14 pairs, 2.0 in 2^17.
_PIECE_PAIRS = 1 << 17
# Rows that are worked on as a whole are shared among threads from this many values on.
_SHARED_VALUES = 1 << 16
# Pieces: a thread for every so many values.
_THREAD_VALUES = 1 << 17
_DTYPES = (torch.float32, torch.float64)

_POINTS = (torch.int16, torch.int32)
# Of offsets: single precision holds whole numbers up to this.
LARGEST_POINT = 1 << 24

# Which rows and columns of `[rows, length]`.
Place: TypeAlias = tuple[slice, slice]


@dataclass(frozen=True, eq=False)
class Offsets:
    """Added to totals before they are noised: whole numbers, each row in units of its own."""

    points: Tensor  # int16 or int32 `[nodes, d]`, at most 2^24 in size
    units: tuple[float, ...]  # of each row, exactly what one point is worth

    def dense(self) -> Tensor:
        """The offsets themselves, float64 `[nodes, d]`, each rounded once."""
        units = torch.tensor(self.units, dtype=torch.float64, device=self.points.device)
        return self.points * units.unsqueeze(1)

    def check(self, total: Tensor) -> None:
        """Raise InputError unless they are int16 or int32, of a total's shape and on its device."""
        found, wanted = (
            (tuple(tensor.shape), tensor.device, dtype)
            for tensor, dtype in ((self.points, self.points.dtype in _POINTS), (total, True))
        )
        if found != wanted or len(self.units) != len(total):
            expected = (
                f"whole numbers of shape {wanted[0]} on {wanted[1]}, with a unit for each row"
            )
            raise InputError("offsets", (*found[:2], self.points.dtype), expected)


def over_rows(rows: int, length: int, work: Callable[[range], None]) -> None:
    """Call `work` with ranges that make up all rows, on as many threads as PyTorch uses.

    Rows are independent, so how they are shared among threads changes nothing.
    """
    threads = max(1, min(torch.get_num_threads(), rows) if rows * length >= _SHARED_VALUES else 1)
    bounds = [rows * share // threads for share in range(threads + 1)]
    over_threads(work, [range(*pair) for pair in pairwise(bounds)])


@dataclass(frozen=True)
class Pieces:
    """How `[rows, length]` values are cut: short rows together, long ones in parts.

    What lies in a piece is contiguous: whole rows, `height` of them at most, or a part of one.
    `pairs` are those of a row of a piece.
    """

    rows: int
    length: int
    height: int
    pairs: int

    @classmethod
    def of(cls, rows: int, length: int, most: int = _PIECE_PAIRS) -> Pieces:
        """Pieces as large as pays (`most` pairs at most), and enough of them for all threads."""
        padded = -(-max(length, 1) // (2 * GROUP_PAIRS))  # in groups
        threads = _threads(rows * length)
        share = -(-padded * rows // threads)
        units = max(1, min(most // GROUP_PAIRS, share))
        pairs = GROUP_PAIRS * _parts(padded, units)
        height = _parts(max(rows, 1), max(1, GROUP_PAIRS * units // pairs))
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
    left = iter(places)  # of a list: taking the next is atomic under the interpreter's lock
    over_threads(work, [left] * max(1, threads))


def _threads(values: int) -> int:
    return max(1, min(torch.get_num_threads(), values // _THREAD_VALUES))


def _parts(total: int, most: int) -> int:
    """The size of equal parts of `total` (at least 1), at most `most` each, the last one cut."""
    return -(-total // -(-total // most))


# Lattice points a standard deviation (of Laplace noise: a scale): at least 2^6 and below 2^7.
_POINTS_LOG2 = 6
_SIZE_RANGE = (2.0**-500, 2.0**500)


def lattice_spacing(what: str, size: float) -> float:
    """The lattice's spacing at this size of the noise: a power of two, size / 128 to size / 64.

    The size is a standard deviation, or a scale; `what` is its name, for the message.

    Raises:
        InputError: the size is not between 2^-500 and 2^500.
    """
    check_size(what, size)
    return math.ldexp(1.0, math.frexp(size)[1] - 1 - _POINTS_LOG2)


def check_size(what: str, size: float) -> None:
    """Raise InputError, which names `what`, on a size of noise not between 2^-500 and 2^500."""
    if not _SIZE_RANGE[0] < size < _SIZE_RANGE[1]:
        raise InputError(what, size, "a number between 2^-500 and 2^500")


def check_total(
    total: Tensor, nodes: Sequence[int], sizes: Sequence[float], size_word: str
) -> None:
    """Raise InputError unless a total is `[nodes, d]`, float32 or float64, with a noise size a row.

    Sizes are standard deviations or scales: `size_word` says which, for the message.
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

    The total may be on any device; where it lies contiguous on the CPU, the rows are its own
    memory.
    """
    in_place = total.device.type == "cpu" and total.is_contiguous()
    host = total if in_place else total.cpu().contiguous()
    yield host.detach().numpy()
    if not in_place:
        with torch.no_grad():
            total.copy_(host)
