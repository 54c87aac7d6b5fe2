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
2^-17, and added to the total in single precision, which errs by less than 2^-12 s. Where that could
matter, so close to the middle between two lattice points or in the corners of the radius (below
0.016 or above 4.24), the value is computed again with care: in double precision, near u = 1 from
1 - u, and where u < 2^-16 with 512 more bits of a keystream of its own, since 63 bits resolve small
u too coarsely. That is about one value in 400. So every value is the one that careful arithmetic
gives, whichever way it was found; the noise does not depend on how a machine rounds in single
precision. (The step from noise to lattice point takes a third of the time of the same step in
double precision, which is what totals beyond 7,168 lattice points take.)

*What is proved.* The careful value is not exact either. `tacit.privacy.noise.slack` bounds what
that adds to epsilon (below 1e-5 for 10^10 values), and says what is assumed.

*Not covered here.* That one record moves the total by no more than its sensitivity, in floating
point, is what whoever computes the total has to prove (`docs/proofs/clipped-sums.md` for clipped
sums). The time a draw takes: recomputing depends on the total and the noise.

*On an accelerator* totals never leave it. The words are those of the node's keystream, made on the
host and copied to the device; Box-Muller and the step to the lattice are computed there, in double
precision and by the careful formulas, for every value. So what is released is what the host would
release, up to the last bits of logarithm, sine and cosine, which change a lattice point once in
some 10^12 values. Words below 2^47 need 512 more bits and exact arithmetic: they are found on the
host, where the words are, one pair in 65,536, and what belongs there is written over on the device.
Nothing here waits for the device: pinned memory is copied without blocking, and no shape depends on
a value. *Assumed of the device:* IEEE 754 in double precision, and a logarithm (log, log1p), sine
and cosine that err by at most 4 units in the last place, as `slack` has it. NVIDIA's tables in the
CUDA programming guide state at most 2 for double precision, which is testing, not proof. Devices
without double precision are noised on the host. Tested on the host's own device; not yet run on a
GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.privacy.noise.draws import BLOCK_BYTES, NodeKeys, position
from tacit.privacy.noise.lattice import (
    Pieces,
    Place,
    SingleBlock,
    check_total,
    host_rows,
    lattice_spacing,
    over_pieces,
    over_rows,
    single_block,
)

__all__ = [
    "add_normal",
    "careful_normals",
    "spacing",
]


# Normals in single precision err by less than this, for u in [2^-13, 1 - 2^-13] (R in
# [2^-6, 4.245]). In units of 2^-24, with U = u^2 computed from the upper 32 bits of the word:
#   2^-7 / (u R)  those bits are rounded down: 2^-31 of u;
#   1.5 / R       conversion of u (twice, in U) and rounding of U, through sqrt(-ln U);
#   6 R           4 units in the last place of the logarithm (4 R), the factor std^2 and its product
#                 (R together), the root (R);
#   9.5 R         conversion, unit and product of the angle, at most pi;
#   8 R           4 units in the last place of sine and cosine;
#   R             the product.
# That is largest at the ends: 120 of 128 at R = 4.245, 97 at R = 2^-6.
_FAST_ERROR = 2.0**-17
# Totals below so many lattice points take the fast way in single precision. With the noise, at most
# 4.245 * 128, the sum is below 2^13 lattice points, so it is rounded by at most 2^-12 of one.
_SINGLE_TOTAL = 7168.0
_SINGLE_ERROR = 2.0**-12
# Adding and subtracting 3/2 2^23 lattice points rounds to one: both are exact but for that.
_SINGLE_ROUND = 1.5 * 2.0**23
# In this range of deviations nothing in single precision over- or underflows.
_SINGLE_STDS = (2.0**-40, 2.0**40)
# Totals below so many take the fast way in double precision, whose sums are as good as exact.
_FAST_TOTAL = 2.0**36
# Radius words below this (u < 2^-16) take more bits.
_TAIL = 1 << 47
_TAIL_BLOCKS = 4
_TAIL_BITS = 8 * BLOCK_BYTES * _TAIL_BLOCKS
# Kinds of devices with double precision.
_DEVICE_TYPES = frozenset({"cuda", "xpu"})
# Pairs that are worked on at once: some 150 MB of the device's memory.
_DEVICE_PAIRS = 1 << 20
# Keystreams are made in strips of this many pairs, on all threads.
_STRIP_PAIRS = 1 << 15
_LOWEST = -(1 << 63)


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
) -> Tensor:
    """Release `total`: add independent Gaussian noise, in place, and leave nothing in the low bits.

    Mechanism, guarantee and its limits are in the module's docstring. Row i depends on its total,
    its standard deviation, the key of node i, purpose, step and part only: alone or in any stack it
    gets the same noise, and the noise of float32 totals is that of float64 totals.

    Args:
        total: `[nodes, d]`, float32 or float64, finite; noised where it lies, on CPU and
            accelerators, on devices without double precision by way of the CPU.
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
    check_total(total, nodes, stds, "deviations")
    lattice = _Lattice.of(stds)
    source = _Source(keys, tuple(nodes), purpose, position(step, part))
    for node in nodes:
        keys.check(node)
    if total.device.type in _DEVICE_TYPES:
        _release_on_device(total, lattice, source)
        return total
    pieces = Pieces.of(*total.shape)
    with host_rows(total) as rows:

        def work(places: Iterator[Place]) -> None:
            # A total that is not finite stays so.
            with np.errstate(invalid="ignore"), single_block(pieces) as block:
                left = list(_noise_pieces(rows, block, places, lattice, source))
                _settle(rows, lattice, source, left)

        over_pieces(pieces, work)
    return total


@dataclass(frozen=True, repr=False)
class _Source:
    """Where the secret noise of all rows comes from."""

    keys: NodeKeys
    nodes: tuple[int, ...]
    purpose: str
    counter: int

    def read(self, row: int, pair: int, zeros: bytes, buffer: memoryview) -> None:
        """Write the keystream of a row, from one of its pairs on: a block a pair."""
        self.keys.read(self.nodes[row], self.purpose, self.counter + pair, zeros, buffer)

    def tail_uniform(self, row: int, word: int, pair: int) -> float:
        """U = |word + f - 1/2| / 2^63, where f has bits of its own: never 0."""
        buffer = bytearray(_TAIL_BITS // 8 + BLOCK_BYTES)
        self.keys.read(
            self.nodes[row],
            f"{self.purpose}, tails",
            self.counter + pair * _TAIL_BLOCKS,
            bytes(_TAIL_BITS // 8),
            memoryview(buffer),
        )
        more = int.from_bytes(buffer[: _TAIL_BITS // 8], "big")
        # The middle of its cell; the quotient of integers is correctly rounded.
        in_cells = (word << _TAIL_BITS) + more - (1 << (_TAIL_BITS - 1))
        return abs(2 * in_cells + 1) / (1 << (64 + _TAIL_BITS))


@dataclass(frozen=True, eq=False)
class _Lattice:
    """The lattices of all rows; arrays are `[nodes, 1]`.

    Args:
        spacings: of the lattices.
        scales: deviations, in lattice points.
        single: whether all deviations allow for single precision.
        factors: minus the squares of the deviations in which noise is drawn.
        points_per_unit: lattice points in a unit of the noise that is drawn.
        magic: see `_SINGLE_ROUND`.
        sure: up to this distance from its lattice point a sum in single precision is settled.
    """

    spacings: NDArray[np.float64]
    scales: NDArray[np.float64]
    single: bool
    factors: NDArray[np.float32]
    points_per_unit: NDArray[np.float64]
    magic: NDArray[np.float32]
    sure: NDArray[np.float32]

    @classmethod
    def of(cls, stds: Sequence[float]) -> _Lattice:
        """Noise is drawn in the totals' unit where it can be, else in lattice points."""
        spacings = np.array([[spacing(std)] for std in stds]).reshape(-1, 1)
        deviations = np.array(stds, np.float64).reshape(-1, 1)
        scales = deviations / spacings
        low, high = _SINGLE_STDS
        single = bool(((deviations > low) & (deviations < high)).all())
        drawn, per_unit = (deviations, 1.0 / spacings) if single else (scales, np.ones_like(scales))
        # Where that is not single, these two are not used, and may overflow.
        with np.errstate(over="ignore", under="ignore"):
            magic = (_SINGLE_ROUND * spacings).astype(np.float32)
            sure = ((0.5 - _FAST_ERROR * scales - _SINGLE_ERROR) * spacings).astype(np.float32)
        return cls(
            spacings, scales, single, (-drawn * drawn).astype(np.float32), per_unit, magic, sure
        )


# Values that the fast arithmetic does not settle: their rows and columns, what they were before the
# noise, `[n]` each, and the words of their pairs, `[n, 2]`.
_Unsure: TypeAlias = tuple[
    NDArray[np.intp], NDArray[np.intp], NDArray[np.float64], NDArray[np.int64]
]


def _noise_pieces(
    rows: NDArray[Any],
    block: SingleBlock,
    places: Iterator[Place],
    lattice: _Lattice,
    source: _Source,
) -> Iterator[_Unsure]:
    """Noise pieces of `[nodes, d]` in place, fast, and say what is left to do with care."""
    for place in places:
        group, piece = place[0], rows[place]
        block.draw(place, source.read, lattice.factors[group])
        finest = float(lattice.spacings[group].min())
        single = lattice.single and _within(piece, _SINGLE_TOTAL * finest)
        step: Callable[..., NDArray[Any]] = _single_points if single else _double_points
        released = step(piece, block, lattice, group)
        if not (single or _within(piece, _FAST_TOTAL * finest)):
            block.close[...] = True
        row, column = _unsure(block, *piece.shape)
        if len(row):
            yield (
                row + group.start,
                column + place[1].start,
                piece[row, column].astype(float),
                block.words[row, column >> 1],
            )
        np.copyto(piece, released, casting="same_kind")


def _within(piece: NDArray[Any], limit: float) -> bool:
    """Whether all values are finite and between -limit and limit."""
    least = float(np.minimum.reduce(piece, axis=None))
    return -limit < least and float(np.maximum.reduce(piece, axis=None)) < limit


def _single_points(
    piece: NDArray[Any], block: SingleBlock, lattice: _Lattice, group: slice
) -> NDArray[np.float32]:
    """The lattice points next to a piece with its noise; `block.close` are those in doubt."""
    corner = np.s_[: piece.shape[0], : piece.shape[1]]
    sums, points = block.noise[corner], block.points[corner]
    magic = lattice.magic[group]
    np.add(sums, piece, out=sums, casting="same_kind")
    np.add(sums, magic, out=points)
    points -= magic
    # From here on: how far the sum lies from its lattice point, exactly.
    sums -= points
    np.abs(sums, out=sums)
    np.greater(sums, lattice.sure[group], out=block.close[corner])
    return points


def _double_points(
    piece: NDArray[Any], block: SingleBlock, lattice: _Lattice, group: slice
) -> NDArray[np.float64]:
    """The same in double precision, for larger totals and any deviation."""
    corner = np.s_[: piece.shape[0], : piece.shape[1]]
    units = lattice.spacings[group]
    sums: NDArray[np.float64] = block.doubles[0][corner]
    points: NDArray[np.float64] = block.doubles[1][corner]
    np.copyto(sums, piece)
    sums *= 1.0 / units  # exact: spacings are powers of two
    np.multiply(block.noise[corner], lattice.points_per_unit[group], out=points)
    sums += points
    np.rint(sums, out=points)
    sums -= points
    np.abs(sums, out=sums)
    np.greater(sums, 0.5 - _FAST_ERROR * lattice.scales[group], out=block.close[corner])
    points += 0.0  # a zero has no sign, which would depend on how it was found
    points *= units
    return points


def _unsure(
    block: SingleBlock, height: int, width: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows and columns of what is close, or in a corner of the radius (some perhaps twice)."""
    # In one dimension, finding the few is many times faster.
    close_row, close_column = np.divmod(np.flatnonzero(block.close[:height]), 2 * block.pairs)
    row, pair = np.divmod(np.flatnonzero(block.corner[:height]), block.pairs)
    column = np.concatenate([close_column, 2 * pair, 2 * pair + 1])
    there = column < width
    return np.concatenate([close_row, row, row])[there], column[there]


def _settle(
    rows: NDArray[Any], lattice: _Lattice, source: _Source, left: Sequence[_Unsure]
) -> None:
    """Compute with care, and write into `[nodes, d]`, what is left; all at once, for speed."""
    if not left:
        return
    row = np.concatenate([unsure[0] for unsure in left])
    column = np.concatenate([unsure[1] for unsure in left])
    words = np.concatenate([unsure[3] for unsure in left])
    units = lattice.spacings[row, 0]

    magnitudes = np.abs(words[:, 0]).view(np.uint64)  # of -2^63 it is 2^63
    uniforms = magnitudes * 2.0**-63
    # Both values of a pair are left, if one is: each is found once.
    tail_uniforms: dict[tuple[int, int], float] = {}
    for j in np.flatnonzero(magnitudes < _TAIL).tolist():
        at = (int(row[j]), int(column[j]) >> 1)
        if at not in tail_uniforms:
            tail_uniforms[at] = source.tail_uniform(at[0], int(words[j, 0]), at[1])
        uniforms[j] = tail_uniforms[at]
    noise = lattice.scales[row, 0] * careful_normals(
        uniforms, magnitudes, words[:, 1], column % 2 == 1
    )
    totals = np.concatenate([unsure[2] for unsure in left]) / units
    whole = np.rint(totals)
    rows[row, column] = (whole + np.rint((totals - whole) + noise) + 0.0) * units


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


def _release_on_device(total: Tensor, lattice: _Lattice, source: _Source) -> None:
    """Noise `[nodes, d]` in place where it lies, float32 or float64, and step to the lattice."""
    device = total.device
    spacings, scales = (_sent(array, device) for array in (lattice.spacings, lattice.scales))
    with torch.no_grad():
        rows, length = total.shape
        for place in Pieces.of(rows, length, _DEVICE_PAIRS).places():
            piece = total[place]
            words, uniforms, tails = _words_on_device(place, piece.shape, source, device)
            noise = _normals_on_device(words, uniforms, tails)[:, : piece.shape[1]]
            units = spacings[place[0]]
            sums = piece.double() / units  # exact: spacings are powers of two
            whole = torch.round(sums)
            sums.sub_(whole).addcmul_(noise, scales[place[0]])
            # A zero has no sign, as on the host.
            piece.copy_(torch.round(sums).add_(whole).add_(0.0).mul_(units))


def _words_on_device(
    place: Place, shape: torch.Size, source: _Source, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Words of a piece, `[rows, pairs, 2]`; u of its tails, and where they are, row after row."""
    rows, pairs = shape[0], -(-shape[1] // 2)
    row, first = place[0].start, place[1].start // 2
    strips = -(-pairs // _STRIP_PAIRS)
    # Encryption asks for room of one more block, which must not be another strip's.
    host = torch.empty((rows, pairs, 2), dtype=torch.int64, pin_memory=device.type == "cuda")
    words: NDArray[np.int64] = host.numpy()

    def fill(share: range) -> None:
        room = np.empty((_STRIP_PAIRS + 1) * BLOCK_BYTES, np.uint8)
        for i, strip in (divmod(number, strips) for number in share):
            begin = strip * _STRIP_PAIRS
            count = min(_STRIP_PAIRS, pairs - begin)
            source.read(row + i, first + begin, bytes(count * BLOCK_BYTES), room.data)
            drawn = room[: count * BLOCK_BYTES].view("<i8").reshape(count, 2)
            words[i, begin : begin + count] = drawn

    over_rows(rows * strips, 2 * _STRIP_PAIRS, fill)
    magnitudes = np.abs(words[..., 0]).view(np.uint64)  # of -2^63 it is 2^63
    at = np.flatnonzero(magnitudes < _TAIL)
    uniforms = [
        source.tail_uniform(row + i, int(words[i, j, 0]), first + j)
        for i, j in (divmod(k, pairs) for k in at.tolist())
    ]
    return (
        host.to(device, non_blocking=True),
        _sent(np.array(uniforms, np.float64), device),
        _sent(at, device),
    )


def _normals_on_device(words: Tensor, tail_uniforms: Tensor, tails: Tensor) -> Tensor:
    """Box-Muller as `careful_normals` does it, `[rows, 2 pairs]`, float64."""
    radius, angle = words[..., 0], words[..., 1].double()
    uniforms = radius.double().abs_().mul_(2.0**-63)
    # 2^63 - |word| without overflow, for either sign; it matters where |word| is 2^62 or more.
    short = torch.where(radius < 0, radius ^ _LOWEST, (~_LOWEST - radius) + 1)
    upper = uniforms >= 0.5
    upper &= short <= 1 << 62
    uniforms.view(-1).index_copy_(0, tails, tail_uniforms)
    near_one = torch.log1p(short.double().mul_(-(2.0**-63)).masked_fill_(~upper, 0.0))
    radii = torch.where(upper, near_one, uniforms.log_()).mul_(-2.0).sqrt_()
    angle.mul_(2.0 * math.pi * 2.0**-64)
    pairs = torch.stack((angle.cos(), angle.sin()), dim=-1)
    return pairs.mul_(radii.unsqueeze(-1)).view(len(words), -1)


def _sent(array: NDArray[Any], device: torch.device) -> Tensor:
    """A copy on the device, without waiting for it."""
    host = torch.from_numpy(array)
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)
