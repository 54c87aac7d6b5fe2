"""The release of `tacit.privacy.noise.gaussian` on an accelerator: totals never leave it.

The words are those of the node's keystream, made on the host and copied to the device; Box-Muller
and the step to the lattice are computed there, in double precision and by the careful formulas, for
every value. So what is released is what the host would release, up to the last bits of logarithm,
sine and cosine, which change a lattice point once in some 10^12 values. Mechanism, relation, trust
model and bound are those of `gaussian` and `slack`.

Words below 2^47 need 512 more bits and exact arithmetic: they are found on the host, where the
words are, one pair in 65,536, and what belongs there is written over on the device. Nothing here
waits for the device: pinned memory is copied without blocking, and no shape depends on a value.

*Assumed of the device:* IEEE 754 in double precision, and a logarithm (log, log1p), sine and cosine
that err by at most 4 units in the last place, as `slack` has it. NVIDIA's tables in the CUDA
programming guide state at most 2 for double precision, which is testing, not proof. Devices without
double precision are noised on the host. Tested on the host's own device; not yet run on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.privacy.noise.block import Pieces, Place, Read, over_rows
from tacit.privacy.noise.keys import BLOCK_BYTES

__all__ = ["DEVICE_TYPES", "DeviceDraw", "release_on_device"]

# Kinds of devices with double precision.
DEVICE_TYPES = frozenset({"cuda", "xpu"})
# Pairs that are worked on at once: some 150 MB of the device's memory.
_DEVICE_PAIRS = 1 << 20
# Keystreams are made in strips of this many pairs, on all threads.
_STRIP_PAIRS = 1 << 15
_LOWEST = -(1 << 63)


@dataclass(frozen=True, repr=False)
class DeviceDraw:
    """The secret noise of all rows, and their lattices.

    Args:
        read: writes keystreams.
        tail: words whose magnitude is below this take more bits.
        tail_uniform: of the row, word and pair of such a one: u.
        spacings: of the lattices, `[nodes, 1]`.
        scales: deviations in lattice points, `[nodes, 1]`.
    """

    read: Read
    tail: int
    tail_uniform: Callable[[int, int, int], float]
    spacings: NDArray[np.float64]
    scales: NDArray[np.float64]


def release_on_device(total: Tensor, draw: DeviceDraw) -> None:
    """Noise `[nodes, d]` in place where it lies, float32 or float64, and step to the lattice."""
    device = total.device
    spacings, scales = (_sent(array, device) for array in (draw.spacings, draw.scales))
    with torch.no_grad():
        rows, length = total.shape
        for place in Pieces.of(rows, length, _DEVICE_PAIRS).places():
            piece = total[place]
            words, uniforms, tails = _words(place, piece.shape, draw, device)
            noise = _normals(words, uniforms, tails)[:, : piece.shape[1]]
            units = spacings[place[0]]
            sums = piece.double() / units  # exact: spacings are powers of two
            whole = torch.round(sums)
            sums.sub_(whole).addcmul_(noise, scales[place[0]])
            # A zero has no sign, as on the host.
            piece.copy_(torch.round(sums).add_(whole).add_(0.0).mul_(units))


def _words(
    place: Place, shape: torch.Size, draw: DeviceDraw, device: torch.device
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
            draw.read(row + i, first + begin, bytes(count * BLOCK_BYTES), room.data)
            drawn = room[: count * BLOCK_BYTES].view("<i8").reshape(count, 2)
            words[i, begin : begin + count] = drawn

    over_rows(rows * strips, 2 * _STRIP_PAIRS, fill)
    magnitudes = np.abs(words[..., 0]).view(np.uint64)  # of -2^63 it is 2^63
    at = np.flatnonzero(magnitudes < draw.tail)
    uniforms = [
        draw.tail_uniform(row + i, int(words[i, j, 0]), first + j)
        for i, j in (divmod(k, pairs) for k in at.tolist())
    ]
    return (
        host.to(device, non_blocking=True),
        _sent(np.array(uniforms, np.float64), device),
        _sent(at, device),
    )


def _normals(words: Tensor, tail_uniforms: Tensor, tails: Tensor) -> Tensor:
    """Box-Muller as `careful_normals` of `gaussian` does it, `[rows, 2 pairs]`, float64."""
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
