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

*Words.* A pair takes 64 bits: words W and A of 32 bits (`tacit.privacy.noise.fast` has the
formulas, and their layout). They are the leading bits of ideal uniforms; a keystream of its own has
64 more bits for each, which are read only where they decide.

*How the exact point is found.* One compiled loop (`fast`) draws normals in single precision, which
err by less than 3 * 2^-20 whatever the bits that it does not read, and adds them to the total in
single precision, which errs by less than 2^-12 s; what that leaves in doubt, so close to the middle
between two lattice points, it adds once more in double precision. What is still in doubt, and the
ends of the radius (above 4.24 or below 0.0007), is computed again here with care: in double
precision, from all bits, near u = 1 from 1 - u, and where u < 2^-30 with 512 bits more. That is
about one value in 1,500. So every value is the one that careful arithmetic gives, whichever way it
was found; the noise does not depend on how a machine rounds in single precision.

*Offsets*, such as noise that cancels between nodes, are added to the exact sum before it is
rounded, and cost no accuracy however large a total is: total and offset are each split into a
lattice point and the rest, and only the rests (together at most one point) are added to the noise.
An offset is a whole number n, up to 2^24 in size, of units u: with u / s = h + l, h of 24 bits, n h
is exact in double precision, and n l is below 2^-24 of it, so what is rounded is below 2^-50 of a
lattice point as long as an offset is below 2^26 points.

*What is proved.* The careful value is not exact either. `tacit.privacy.noise.slack` bounds what
that adds to epsilon (below 1e-5 for 10^10 values), and says what is assumed.

*Not covered here.* That one record moves the total by no more than its sensitivity, in floating
point, is what whoever computes the total has to prove (`docs/proofs/clipped-sums.md` for clipped
sums). The time a draw takes: recomputing depends on the total and the noise.

*On a CUDA device* noise of ChaCha20 is drawn where totals lie (`tacit.privacy.noise.on_device`),
and what is released is what the host releases of the same keys. Without Triton or a C compiler, of
AES, and on other devices, totals are copied to the host, noised there, and copied back.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import InputError
from tacit.privacy.noise.draws import BLOCK_BYTES, CHACHA_BYTES, NodeKeys, position
from tacit.privacy.noise.lattice import (
    GROUP_PAIRS,
    LARGEST_POINT,
    Offsets,
    Pieces,
    Place,
    check_total,
    host_rows,
    lattice_spacing,
    over_pieces,
)

# Radius words below this (u < 2^-30) take more bits.
_TAIL = 4
_TAIL_BLOCKS = 4
_TAIL_BITS = 8 * BLOCK_BYTES * _TAIL_BLOCKS
# Bytes of keystream that a pair takes: two words; and as many more for the bits that care needs.
_PAIR_BYTES = 8
# Pairs whose words a block of ChaCha20 has, and those of a group of as many blocks.
_LANE_PAIRS = CHACHA_BYTES // _PAIR_BYTES
_LANE_GROUP = GROUP_PAIRS * _LANE_PAIRS
# Values that are settled with care at once, or a few more.
_MOST_LEFT = 1 << 15
# Offsets, in lattice points; see the module.
LARGEST_OFFSET = 2.0**26
_EIGHTH = math.pi / 4.0 * 2.0**-31
# Kinds of devices with double precision.
_DEVICE_TYPES = frozenset({"cuda"})
# Rows, and values of a row, of which the kernels' lists have room in a word.
_MOST_ROWS, _MOST_VALUES = 1 << 19, 1 << 31


def spacing(std: float) -> float:
    """The lattice's spacing at this standard deviation: a power of two, std / 128 to std / 64.

    Raises:
        InputError: `std` is not between 2^-500 and 2^500.
    """
    return lattice_spacing("noise standard deviation", std)


def add_normal(
    total: Tensor,
    stds: Sequence[float],
    keys: NodeKeys,
    nodes: Sequence[int],
    purpose: str,
    step: int,
    *,
    part: int = 0,
    offsets: Offsets | None = None,
) -> Tensor:
    """Release `total`: add independent Gaussian noise, in place, and leave nothing in the low bits.

    Mechanism, guarantee and its limits are in the module's docstring. Row i depends on its total,
    its standard deviation, the key of node i, purpose, step and part only: alone or in any stack it
    gets the same noise, and the noise of float32 totals is that of float64 totals.

    Args:
        total: `[nodes, d]`, float32 or float64, finite; noised where it lies, or by
            way of the CPU: see the module.
        stds: standard deviation of each row.
        keys: keys of at least these nodes.
        nodes: which nodes, in the order of the rows.
        purpose: what the draw is for; different purposes are independent.
        step: 0 .. 2^48 - 1.
        part: 0 .. 2^16 - 1, for several draws of one purpose in one step.
        offsets: what is added to the exact sum beside the noise, on the total's device, below
            2^26 spacings; it must not depend on what is to be hidden.

    Raises:
        InputError: a node's key is not held, a position is out of range, a standard deviation is
            not between 2^-500 and 2^500, the shapes differ, the dtype is another one, or an offset
            is too large (found on the host; on a device the value becomes NaN).
    """
    check_total(total, nodes, stds, "deviations")
    if offsets is not None:
        offsets.check(total)
    lattice = _Lattice.of(stds, offsets)
    source = _Source(keys, tuple(nodes), purpose, position(step, part))
    for node in nodes:
        keys.check(node)
    there = total.device.type in _DEVICE_TYPES and keys.cipher == "chacha20"
    fits = len(total) < _MOST_ROWS and total.shape[1] < _MOST_VALUES
    if there and fits and _has_kernels():
        # Triton, which only devices need.
        from tacit.privacy.noise.on_device import noise_of

        noise = noise_of(keys, tuple(nodes), purpose, total.shape[1], total.device)
        noise.add(total, stds, step, part, offsets)
        return total
    # Compiled loops, which a process that releases nothing does not load.
    from tacit.privacy.noise.fast import noise_rows

    pieces = Pieces.of(*total.shape)
    added = None if offsets is None else offsets.points.cpu().contiguous().numpy()
    with host_rows(total) as rows:

        def work(places: Iterator[Place]) -> None:
            room = _Room(pieces)
            for place in places:
                group, piece = place[0], rows[place]
                room.count = noise_rows(
                    piece,
                    None if added is None else added[place],
                    room.words(place, len(piece), source),
                    lattice.spacings[group],
                    lattice.scales[group],
                    lattice.ratios[group],
                    room.flags,
                    room.left,
                    room.left_words,
                    room.count,
                    group.start,
                    place[1].start,
                )
                if room.count > _MOST_LEFT:
                    _settle(rows, added, lattice, source, room)
            _settle(rows, added, lattice, source, room)

        over_pieces(pieces, work)
    return total


@dataclass(frozen=True, repr=False)
class _Source:
    """Where the secret noise of all rows comes from."""

    keys: NodeKeys
    nodes: tuple[int, ...]
    purpose: str
    counter: int

    @property
    def more_bits(self) -> str:
        """The purpose of the bits that only care needs: a block a pair."""
        return f"{self.purpose}, more bits"

    def read(self, row: int, pair: int, zeros: bytes, buffer: memoryview) -> None:
        """Write the words of a row, from one of its pairs on, which has an even number.

        Of ChaCha20, a lane of a device has a block: its eight pairs. Values are computed next to
        each other where lanes are, in groups of `GROUP_PAIRS` lanes: the words of these pairs stand
        in a column of their blocks.
        """
        node, skipped = self.nodes[row], 0 if self.keys.cipher == "aes" else pair % _LANE_GROUP
        first = self.counter + (pair - skipped) * _PAIR_BYTES // BLOCK_BYTES
        if self.keys.cipher == "aes":
            self.keys.read(node, self.purpose, first, zeros, buffer)
            return
        begin, each = skipped * _PAIR_BYTES, _LANE_GROUP * _PAIR_BYTES
        size = -(-(begin + len(zeros)) // each) * each
        room = np.empty(size + BLOCK_BYTES, np.uint8)
        self.keys.read(node, self.purpose, first, bytes(size), room.data)
        columns = room[:size].view("<u4").reshape(size // each, GROUP_PAIRS, -1).swapaxes(1, 2)
        in_order = np.ascontiguousarray(columns).view(np.uint8).reshape(-1)
        buffer[: len(zeros)] = in_order[begin : begin + len(zeros)].data

    def number(self, pair: Any) -> Any:
        """Which in the streams of further bits are those of pairs."""
        if self.keys.cipher == "aes":
            return pair
        group, place = pair // _LANE_GROUP, pair % _LANE_GROUP
        return group * _LANE_GROUP + place % GROUP_PAIRS * _LANE_PAIRS + place // GROUP_PAIRS

    def more(self, rows: NDArray[np.intp], pairs: NDArray[np.intp]) -> NDArray[np.uint64]:
        """64 more bits for radius and angle of pairs anywhere in the rows: `[n, 2]`."""
        counters = np.empty((len(pairs), 2), ">u8")
        counters[:, 0], counters[:, 1] = self.counter >> 64, self.number(pairs)
        bits = np.empty((len(pairs), 2), np.uint64)
        order = np.argsort(rows, kind="stable")
        ends = np.flatnonzero(np.diff(rows[order])) + 1
        for some in np.split(order, ends):
            if len(some):
                node = self.nodes[rows[some[0]]]
                blocks = self.keys.blocks(node, self.more_bits, counters[some].view(np.uint8))
                bits[some] = blocks.view("<u8")
        return bits

    def tail_uniform(self, row: int, more: int, pair: int) -> float:
        """U of a pair whose h is 0: m and 512 bits of its own, in the middle of their cell."""
        buffer = bytearray(_TAIL_BITS // 8 + BLOCK_BYTES)
        self.keys.read(
            self.nodes[row],
            f"{self.purpose}, tails",
            self.counter + self.number(pair) * _TAIL_BLOCKS,
            bytes(_TAIL_BITS // 8),
            memoryview(buffer),
        )
        cells = (more << _TAIL_BITS) + int.from_bytes(buffer[: _TAIL_BITS // 8], "big")
        # The quotient of integers is correctly rounded.
        return (2 * cells + 1) / (1 << (1 + 30 + 64 + _TAIL_BITS))


@dataclass(frozen=True, eq=False)
class _Lattice:
    """The lattices of all rows, `[nodes]`: spacings; deviations and units of offsets over them."""

    spacings: NDArray[np.float64]
    scales: NDArray[np.float64]
    ratios: NDArray[np.float64]

    @classmethod
    def of(cls, stds: Sequence[float], offsets: Offsets | None = None) -> _Lattice:
        spacings = np.array([spacing(std) for std in stds], np.float64)
        units = np.zeros(len(stds)) if offsets is None else np.array(offsets.units, np.float64)
        with np.errstate(over="ignore"):
            return cls(spacings, np.array(stds, np.float64) / spacings, units / spacings)


class _Room:
    """Working memory of one thread: the keystream of a piece, and what is left to do with care.

    `count` values are left: of each row and column, `[capacity, 2]`, and the words of its pair.
    `flags` is scratch of `noise_rows`.
    """

    def __init__(self, pieces: Pieces) -> None:
        values = pieces.height * 2 * pieces.pairs
        self.flags = np.empty(pieces.pairs, np.uint8)
        self.count = 0
        self.left = np.empty((_MOST_LEFT + values, 2), np.int64)
        self.left_words = np.empty((_MOST_LEFT + values, 2), np.uint32)
        self._zeros = bytes(pieces.pairs * _PAIR_BYTES)
        # Encryption asks for room of one more block.
        self._stream = np.empty(values * 4 + BLOCK_BYTES, np.uint8)
        self._words = self._stream[: values * 4].view("<u4").reshape(pieces.height, -1)

    def words(self, place: Place, height: int, source: _Source) -> NDArray[np.uint32]:
        """The words of a piece, `[height, 2 pairs]`."""
        count = len(self._zeros)
        for i in range(height):
            buffer = self._stream[i * count :].data
            source.read(place[0].start + i, place[1].start // 2, self._zeros, buffer)
        return self._words[:height]


def _settle(
    rows: NDArray[Any],
    added: NDArray[np.int32] | None,
    lattice: _Lattice,
    source: _Source,
    room: _Room,
) -> None:
    """Compute with care, and write into `[nodes, d]`, what is left; all at once, for speed."""
    if not room.count:
        return
    row, column = room.left[: room.count].T
    word, angle = room.left_words[: room.count].T
    room.count = 0
    units = lattice.spacings[row]
    pairs = column // (2 * GROUP_PAIRS) * GROUP_PAIRS + column % GROUP_PAIRS
    more = source.more(row, pairs)
    uniforms = uniform(word, more[:, 0])
    for j in np.flatnonzero(word < _TAIL).tolist():
        uniforms[j] = source.tail_uniform(int(row[j]), int(more[j, 0]), int(pairs[j]))
    second = column % (2 * GROUP_PAIRS) >= GROUP_PAIRS
    noise = lattice.scales[row] * careful_normals(uniforms, word, angle, more, second)
    # A total that is not finite stays so; one that is not over the spacing becomes no number.
    with np.errstate(invalid="ignore", over="ignore"):
        totals = rows[row, column] / units
        whole = np.rint(totals)
        rest = totals - whole
        if added is None:
            rows[row, column] = (whole + np.rint(rest + noise) + 0.0) * units
            return
        count, ratio = added[row, column].astype(np.float64), lattice.ratios[row]
        high = ratio.astype(np.float32).astype(np.float64)
        offset = count * high
        # How large it is is not said: offsets may be secret.
        if not np.all((np.abs(offset) < LARGEST_OFFSET) & (np.abs(count) <= LARGEST_POINT)):
            expected = f"at most {LARGEST_POINT} points, and less than {LARGEST_OFFSET:g} spacings"
            raise InputError("offsets", "one is larger", expected)
        point = np.rint(offset)
        rest += (offset - point) + count * (ratio - high)
        rows[row, column] = (whole + (point + np.rint(rest + noise)) + 0.0) * units


def uniform(word: NDArray[np.uint32], more: NDArray[np.uint64]) -> NDArray[np.float64]:
    """U of radius words and 64 more bits, `[n]`: the middle of their cell, never 0."""
    return (np.asarray(word >> 2, np.float64) + (more + 0.5) * 2.0**-64) * 2.0**-30


def careful_normals(
    uniforms: NDArray[np.float64],
    word: NDArray[np.uint32],
    angle: NDArray[np.uint32],
    more: NDArray[np.uint64],
    second: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Box-Muller in double precision that keeps its relative accuracy at both ends of u: `[n]`.

    `uniforms` are u in (0, 1), by `uniform` or from more bits; `word`, that of the radius, says 1 -
    u where u is above one half. `more` are 64 more bits of radius and angle, `[n, 2]`, and `second`
    says whether the second of the pair is wanted.
    """
    upper = word >= np.uint32(1 << 31)
    short = uniform(~word, ~more[:, 0])
    logs = np.where(upper, np.log1p(-np.where(upper, short, 0.0)), np.log(uniforms))
    turned = (angle.view(np.int32) + (more[:, 1] + 0.5) * 2.0**-64) * _EIGHTH
    cosine = np.cos(turned) * np.where(word & np.uint32(1), -1.0, 1.0)
    swapped = (word & np.uint32(2)) != 0
    return np.asarray(np.sqrt(-2.0 * logs) * np.where(swapped == second, cosine, np.sin(turned)))


@cache
def _has_kernels() -> bool:
    """Whether Triton is here, and a C compiler, which it needs."""
    compilers = (os.environ.get("CC", ""), "gcc", "clang")
    return find_spec("triton") is not None and any(map(shutil.which, compilers))
