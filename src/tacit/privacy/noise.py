"""Standard normals, coins and random subsets from nodes' keystreams: what privacy rests on.

What a draw depends on, and what not, is said in `tacit.privacy.keys`. What the normals are:

- A pair of normals takes one AES block: 64 bits for the radius and 64 for the angle (Box-Muller).
  Radii reach 9.49 standard deviations; the ideal mass beyond is below 2^-63 a pair. In double
  precision the radius uniform has the resolution 2^-63 near 0 (the tails) and 2^-53 near 1.
- In single precision the same words make the same normals, up to rounding: the radius's
  logarithm is still taken in double precision, the angle is the top 32 bits.
- The output is floating point. The analysis of the Gaussian mechanism is over the reals; this
  module does not defend against an observer who exploits the low-order bits of single values
  (Mironov 2012; Jin et al. 2021).
- The keystream is the same on every machine. Logarithm, sine and cosine are NumPy's and may
  differ in the last bits between processor types; on one machine, equal positions give equal bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import CipherContext
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import InputError
from tacit.privacy.keys import (
    BLOCK_BYTES,
    NodeKeys,
    aes_ctr,
    encryptor,
    fresh_keys,
    keystream,
    position,
    seeded_keys,
)

__all__ = [
    "NodeKeys",
    "aes_ctr",
    "coins",
    "fresh_keys",
    "keystream",
    "normal",
    "seeded_keys",
    "subset",
]

_NUMPY_TYPES: Mapping[torch.dtype, type[np.float32 | np.float64]] = MappingProxyType(
    {torch.float32: np.float32, torch.float64: np.float64}
)
# A node's row is drawn in chunks of at most this many pairs: 4 to 6 MB of working memory a thread.
_CHUNK_PAIRS = 1 << 16
# Chunks are multiples of this many pairs, and the last is cut: no element is ever computed by the
# scalar remainder of a vectorised loop, which may round otherwise.
_PAD_PAIRS = 64
# On shorter rows, handing the interpreter lock to and fro costs more than a second core brings.
_THREAD_LENGTH = 1 << 15


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
    if out.dtype not in _NUMPY_TYPES:
        raise InputError("train.dtype", str(out.dtype), "float32 or float64")

    in_place = out.device.type == "cpu" and out.is_contiguous()
    host = out if in_place else torch.empty(shape, dtype=out.dtype)
    counter = position(step, part)
    purpose_keys = [keys.purpose_key(node, purpose) for node in rows]
    _fill_rows(host.detach().numpy(), purpose_keys, counter)
    if not in_place:
        with torch.no_grad():
            out.copy_(host)
    return out


def _fill_rows(rows: NDArray[Any], purpose_keys: Sequence[bytes], counter: int) -> None:
    """Fill `[nodes, d]` with normals; the number of threads does not change a bit of it."""
    threads = min(torch.get_num_threads(), len(rows)) if rows.shape[1] >= _THREAD_LENGTH else 1

    def fill_share(share: int) -> None:
        block = _NormalBlock(_chunk_pairs(rows.shape[1]), rows.dtype)
        for i in range(share, len(rows), threads):
            block.fill(rows[i], encryptor(purpose_keys[i], counter))

    if threads <= 1:
        fill_share(0)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(fill_share, range(threads)))


def _chunk_pairs(length: int) -> int:
    """How many pairs to draw at a time, so that chunks of equal size cover the row."""
    pairs = max(1, (length + 1) // 2)
    chunks = -(-pairs // _CHUNK_PAIRS)
    return -(-pairs // (chunks * _PAD_PAIRS)) * _PAD_PAIRS


class _NormalBlock:
    """Working memory of one thread, which turns AES blocks into pairs of normals.

    It is kept over the rows: fresh memory for each costs as much as the arithmetic.
    """

    def __init__(self, pairs: int, dtype: np.dtype[Any]) -> None:
        self._zeros = bytes(pairs * BLOCK_BYTES)
        self._stream = np.empty((pairs + 1) * BLOCK_BYTES, np.uint8)
        words = self._stream[: pairs * BLOCK_BYTES]
        self._radius_words = words.view("<i8").reshape(pairs, 2)[:, 0]
        # float32 takes its angle from the top half of the word that float64 takes as a whole.
        angle_bytes = dtype.itemsize
        angle_words = words.view(f"<i{angle_bytes}").reshape(pairs, -1)
        self._angle_words = angle_words[:, -1]
        self._angle_unit = dtype.type(2.0 * np.pi / 2.0 ** (8 * angle_bytes))
        self._uniform = np.empty(pairs, np.float64)
        self._radius, self._angle, self._direction = (np.empty(pairs, dtype) for _ in range(3))
        self._normals = np.empty((pairs, 2), dtype)

    def fill(self, row: NDArray[Any], stream: CipherContext) -> None:
        """Fill `[d]` with the normals of the keystream that `stream` begins."""
        width = self._normals.size
        for first in range(0, len(row), width):
            stream.update_into(self._zeros, self._stream.data)
            self._box_muller()
            piece = row[first : first + width]
            piece[:] = self._normals.reshape(-1)[: len(piece)]

    def _box_muller(self) -> None:
        uniform, radius, angle = self._uniform, self._radius, self._angle
        # |word| of a signed word is uniform on 0 .. 2^63 (its ends have half the mass); the
        # 2^-65, a quarter of the finest spacing, keeps the logarithm off zero.
        np.copyto(uniform, self._radius_words)
        np.abs(uniform, out=uniform)
        uniform *= 2.0**-63
        uniform += 2.0**-65
        np.log(uniform, out=uniform)
        np.multiply(uniform, -2.0, out=radius, casting="same_kind")
        np.sqrt(radius, out=radius)
        np.copyto(angle, self._angle_words, casting="unsafe")
        angle *= self._angle_unit
        np.cos(angle, out=self._direction)
        np.multiply(radius, self._direction, out=self._normals[:, 0])
        np.sin(angle, out=self._direction)
        np.multiply(radius, self._direction, out=self._normals[:, 1])


def coins(
    keys: NodeKeys,
    node: int,
    purpose: str,
    step: int,
    count: int,
    rate: float,
    part: int = 0,
) -> NDArray[np.bool_]:
    """Independent coins of one node, each True with probability `rate`: `[count]`.

    A coin compares a 64-bit word with `floor(rate * 2^64)`: the probability that is realised is
    never above `rate`, and below it by less than 2^-64. Rate 1 gives True always. A shorter draw
    is a prefix of a longer one.

    Raises:
        InputError: `rate` is not in [0, 1], the node's key is not held, or the position is out of
            range.
    """
    if not 0.0 <= rate <= 1.0:
        raise InputError("rate", rate, "a probability from 0 to 1")
    threshold = _threshold(rate)
    if threshold == 1 << 64:
        return np.ones(count, np.bool_)
    return _words(keys, node, purpose, step, count, part) < np.uint64(threshold)


def _threshold(rate: float) -> int:
    # Scaling by a power of two is exact, and int() drops the fraction: the exact floor.
    return int(rate * 2.0**64)


def _words(
    keys: NodeKeys, node: int, purpose: str, step: int, count: int, part: int
) -> NDArray[np.uint64]:
    return keystream(keys, node, purpose, step, 8 * count, part).view("<u8")


def subset(
    keys: NodeKeys,
    node: int,
    purpose: str,
    step: int,
    population: int,
    size: int,
    part: int = 0,
) -> NDArray[np.int64]:
    """A uniformly random subset of `0 .. population - 1` of fixed size, sorted: `[size]`.

    The elements with the smallest 64-bit words are taken; between equal words (probability below
    `population^2 / 2^65`) the lower index wins, so the size is always exact.

    Raises:
        InputError: `size` is not in 0 .. population, the node's key is not held, or the position
            is out of range.
    """
    if not 0 <= size <= population:
        raise InputError("size", size, f"a number from 0 to the population, {population}")
    return _smallest(_words(keys, node, purpose, step, population, part), size)


def _smallest(words: NDArray[np.uint64], size: int) -> NDArray[np.int64]:
    """Indices of the `size` smallest words, sorted; between equal words the lower index wins."""
    if size == 0:
        return np.empty(0, np.int64)
    largest = np.partition(words, size - 1)[size - 1]
    below = np.flatnonzero(words < largest)
    ties = np.flatnonzero(words == largest)[: size - len(below)]
    return np.sort(np.concatenate([below, ties])).astype(np.int64)
