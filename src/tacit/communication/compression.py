"""What is sent instead of a whole vector, and how many bytes that takes.

| `compressor` | what is sent of d coordinates | what says where they belong |
|---|---|---|
| `none` | all | nothing |
| `top-k` | the k = ceil(keep d) largest in size; ties to the lowest index | bitmap or indices |
| `rand-k` | k of them, a uniformly random subset | the public seed |
| `bernoulli` | each with probability `keep`, independently | the public seed |

Values are sent as they are, never scaled up: `top-k` and `rand-k` are contractions,
|C(x) - x|^2 <= (1 - k/d) |x|^2 (the latter in expectation), which is what error feedback needs
(Stich, Cordonnier and Jaggi, *Sparsified SGD with memory*, NeurIPS 2018).

*Privacy.* Masks of `rand-k` and `bernoulli` are public: drawn from (seed, node, step, part) and
nothing else, so that every process finds them and no indices are sent. `top-k` chooses by the
values; that is free of charge only if the values are released ones (post-processing), and it earns
nothing: what is not sent now is sent later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.communication.compressors import (
    COMPRESSORS,
    DTYPES,
    PublicDraw,
    bitmap_bytes,
    check_keep,
    find_compressor,
    index_bytes,
    kept,
    marked,
    message_bytes,
)
from tacit.errors import InputError

__all__ = [
    "COMPRESSORS",
    "Coding",
    "Compressed",
    "PublicDraw",
    "compress",
    "decode",
    "encode",
    "kept",
    "message_bytes",
    "public_mask",
]


@dataclass(frozen=True, eq=False)
class Coding:
    """How the messages of a stack of nodes are written.

    Args:
        compressor: `none`, `top-k`, `rand-k` or `bernoulli`.
        keep: k / d, or the probability of `bernoulli`.
        seed: the public one.
        step: of the algorithm.
        part: for several messages of a node in one step.
        bytes: `[nodes]`, of each node's message, as `encode` writes it; 0: it sends none.
    """

    compressor: str
    keep: float
    seed: int
    step: int
    part: int
    bytes: NDArray[np.int64]

    def size(self, d: int, dtype: torch.dtype, node: int) -> int:
        """Bytes of the message of any node, of this stack or not, that sends one."""
        chosen = find_compressor(self.compressor)
        mask = chosen.select(torch.empty(1, d, dtype=dtype).zero_(), self.keep, [self._draw(node)])
        return int(message_bytes(self.compressor, marked(mask), d, dtype.itemsize)[0])

    def write(self, row: Tensor, node: int) -> Tensor:
        """A node's message as bytes: `[d]` to uint8 `[n]`, on the CPU."""
        written = encode(row, compressor=self.compressor, keep=self.keep, draw=self._draw(node))
        return torch.from_numpy(np.frombuffer(bytearray(written), np.uint8))

    def read(self, message: Tensor, d: int, dtype: torch.dtype, node: int) -> Tensor:
        """What another node wrote: uint8 `[n]` to `[d]`, on the CPU.

        Raises:
            InputError: the message's length is wrong, or places lie outside the vector.
        """
        return decode(
            message.cpu().numpy().tobytes(),
            d,
            dtype,
            compressor=self.compressor,
            keep=self.keep,
            draw=self._draw(node),
        )

    def _draw(self, node: int) -> PublicDraw:
        return PublicDraw(self.seed, self.step, node, self.part)


@dataclass(frozen=True, eq=False)
class Compressed:
    """What a stack of nodes sends.

    Args:
        values: `[nodes, d]`, zeros where nothing is sent.
        coding: how it is written.
    """

    values: Tensor
    coding: Coding

    @property
    def bytes(self) -> NDArray[np.int64]:
        """`[nodes]`, of one message of each node, as `encode` writes it."""
        return self.coding.bytes

    def of(self, active: Tensor) -> Compressed:
        """The same where only the nodes of `active`, bool `[nodes, 1]`, send something."""
        sizes = np.where(active[:, 0].cpu().numpy(), self.bytes, 0)
        return Compressed(torch.where(active, self.values, 0.0), replace(self.coding, bytes=sizes))


def compress(
    values: Tensor,
    *,
    compressor: str,
    keep: float,
    seed: int,
    step: int,
    nodes: Sequence[int],
    part: int = 0,
) -> Compressed:
    """Keep a part of every row, unscaled, and say how many bytes each message takes.

    Row i depends on its values and, for public masks, on (seed, nodes[i], step, part) only: alone
    or in any stack it comes out the same. NaN counts as larger than every number, so that it is
    sent and not hidden.

    Args:
        values: `[nodes, d]`, float32 or float64, on any device; kept as they are.
        compressor: `none`, `top-k`, `rand-k` or `bernoulli`.
        keep: k / d, or the probability of `bernoulli`; in (0, 1], of no effect on `none`.
        seed: the public seed.
        step: of the algorithm.
        nodes: which nodes, in the order of the rows.
        part: for several messages of a node in one step.

    Raises:
        InputError: another compressor, `keep` is not in (0, 1], the rows are not the nodes', or
            the dtype is another one.
    """
    chosen = find_compressor(compressor)
    check_keep(keep)
    if values.dim() != 2 or len(values) != len(nodes):
        raise InputError("values", tuple(values.shape), f"one row for each of {len(nodes)} nodes")
    if values.dtype not in DTYPES:
        raise InputError("train.dtype", str(values.dtype), "float32 or float64")
    draws = [PublicDraw(seed, step, node, part) for node in nodes]
    mask = chosen.select(values, keep, draws)
    sent = torch.where(mask, values, torch.zeros((), dtype=values.dtype, device=values.device))
    sizes = message_bytes(compressor, marked(mask), values.shape[1], values.element_size())
    return Compressed(sent, Coding(compressor, keep, seed, step, part, sizes))


def encode(row: Tensor, *, compressor: str, keep: float, draw: PublicDraw) -> bytes:
    """The message that one node sends: `[d]`, compressed or still to be compressed, to bytes.

    First where the values belong (little-endian indices, or a bitmap, lowest index in the lowest
    bit; `top-k` only), then the values, little-endian, in the order of their indices.

    Raises:
        InputError: another compressor, or `keep` is not in (0, 1].
    """
    chosen = find_compressor(compressor)
    mask = chosen.select(row.unsqueeze(0), keep, [draw])[0].cpu().numpy()
    numbers = row.detach().cpu().numpy()[mask]
    places = _encode_places(mask) if chosen.located else b""
    return places + bytes(numbers.astype(numbers.dtype.newbyteorder("<")).tobytes())


def decode(
    message: bytes, d: int, dtype: torch.dtype, *, compressor: str, keep: float, draw: PublicDraw
) -> Tensor:
    """What `encode` wrote: `[d]`, zeros where nothing was sent.

    Raises:
        InputError: another compressor, `keep` is not in (0, 1], or the message's length is wrong.
    """
    chosen = find_compressor(compressor)
    values = torch.zeros(1, d, dtype=dtype)
    item = values.element_size()
    if chosen.located:
        mask, start = _decode_places(message, kept(keep, d), d)
    else:
        mask, start = chosen.select(values, keep, [draw])[0].numpy(), 0
    if len(message) != start + item * int(mask.sum()):
        raise InputError("message", len(message), f"{start + item * int(mask.sum())} bytes")
    row = values.numpy()[0]
    row[mask] = np.frombuffer(message, row.dtype.newbyteorder("<"), offset=start)
    return values[0]


def public_mask(
    d: int, *, compressor: str, keep: float, seed: int, step: int, nodes: Sequence[int], part: int
) -> Tensor:
    """Which coordinates the public mask of each node lets through: bool, `[nodes, d]`, on the CPU.

    For whoever clips or noises after masking.

    Raises:
        InputError: the compressor's choice depends on the values, or is unknown, or `keep` is not
            in (0, 1].
    """
    chosen = find_compressor(compressor)
    if chosen.located:
        raise InputError("algorithm.compressor", compressor, "one with a public mask, as 'rand-k'")
    draws = [PublicDraw(seed, step, node, part) for node in nodes]
    return chosen.select(torch.empty(len(draws), d), keep, draws)


def _prefers_bitmap(k: int, d: int) -> bool:
    """Both sides know k and d, so the choice need not be sent."""
    return bitmap_bytes(d) <= k * index_bytes(d)


def _encode_places(mask: NDArray[np.bool_]) -> bytes:
    d, k = len(mask), int(mask.sum())
    if k == d:
        return b""
    if _prefers_bitmap(k, d):
        return np.packbits(mask, bitorder="little").tobytes()
    return np.flatnonzero(mask).astype(f"<u{index_bytes(d)}").tobytes()


def _decode_places(message: bytes, k: int, d: int) -> tuple[NDArray[np.bool_], int]:
    """The mask, and where the values begin."""
    mask = np.ones(d, np.bool_)
    if k == d:
        return mask, 0
    size = bitmap_bytes(d) if _prefers_bitmap(k, d) else k * index_bytes(d)
    if len(message) < size:
        raise InputError("message", len(message), f"at least {size} bytes")
    if _prefers_bitmap(k, d):
        bits = np.frombuffer(message, np.uint8, size)
        return np.unpackbits(bits, count=d, bitorder="little").astype(np.bool_), size
    mask[:] = False
    places = np.frombuffer(message, f"<u{index_bytes(d)}", k)
    if int(places.max()) >= d:
        raise InputError("message", int(places.max()), f"a place below {d}")
    mask[places] = True
    return mask, size
