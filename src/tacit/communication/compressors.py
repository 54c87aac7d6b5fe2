"""The ways of choosing which coordinates are sent, and how many bytes that takes.

Public masks are drawn from (seed, node, step, part) and nothing else; see
`tacit.communication.compression`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import InputError, nearest

__all__ = [
    "COMPRESSORS",
    "DTYPES",
    "Compressor",
    "PublicDraw",
    "bitmap_bytes",
    "check_keep",
    "find_compressor",
    "index_bytes",
    "kept",
    "marked",
    "message_bytes",
]

# keep * d errs by at most 2^-52 of itself, the rounding of keep included: closer than this to a
# whole number, it is meant to be that number.
_ROUNDING = 2.0**-51
_WIDE = 1 << 32
# Of values, and of the integers that have their bits.
DTYPES: Mapping[torch.dtype, torch.dtype] = MappingProxyType(
    {torch.float32: torch.int32, torch.float64: torch.int64}
)


@dataclass(frozen=True)
class PublicDraw:
    """What the public mask of one node depends on.

    Args:
        seed: the public seed.
        step: of the algorithm.
        node: who sends.
        part: for several messages of a node in one step.
    """

    seed: int
    step: int
    node: int
    part: int = 0

    def words(self, count: int) -> NDArray[np.uint64]:
        """Uniform 64-bit words, `[count]`: Philox, keyed by a hash; the same on every machine.

        A shorter draw is a prefix of a longer one. Nothing secret may be made of them.
        """
        text = f"{self.seed} {self.step} {self.node} {self.part}".encode()
        digest = hashlib.blake2b(text, digest_size=16, person=b"tacit mask 1").digest()
        key = np.frombuffer(digest, "<u8").astype(np.uint64)
        return np.asarray(np.random.Philox(key=key).random_raw(count), np.uint64)


def kept(keep: float, d: int) -> int:
    """How many of `d` coordinates are sent: k = ceil(keep * d), from 1 to d.

    A `keep` that is the rounded quotient k / d gives that k.

    Raises:
        InputError: `keep` is not in (0, 1], or d is 0.
    """
    check_keep(keep)
    if d < 1:
        raise InputError("d", d, "1 or more coordinates")
    product = keep * d
    whole = round(product)
    near = abs(product - whole) <= _ROUNDING * product
    return max(1, min(d, whole if near else int(np.ceil(product))))


def message_bytes(
    compressor: str, counts: NDArray[np.int64], d: int, value_bytes: int
) -> NDArray[np.int64]:
    """Bytes of messages that carry `counts` of `d` values each: `[nodes]`, as of `encode`.

    `top-k` adds the cheaper of a bitmap and indices (of 4 bytes each, 8 if d > 2^32), and nothing
    where all are sent. What both sides know of the experiment (d, `keep`, dtype) is not sent.

    Raises:
        InputError: another compressor.
    """
    places = np.zeros_like(counts)
    if find_compressor(compressor).located:
        cheaper = np.minimum(bitmap_bytes(d), counts * index_bytes(d))
        places = np.where(counts < d, cheaper, 0)
    return np.asarray(counts * value_bytes + places, np.int64)


# A selection is a bool tensor `[nodes, d]` (perhaps expanded) on the device of the values.
_Select = Callable[[Tensor, float, Sequence[PublicDraw]], Tensor]


@dataclass(frozen=True)
class Compressor:
    """How coordinates are chosen, and whether a message must say which (`located`)."""

    select: _Select
    located: bool = False


def _everything(values: Tensor) -> Tensor:
    return torch.ones((1, 1), dtype=torch.bool, device=values.device).expand(values.shape)


def _all(values: Tensor, keep: float, draws: Sequence[PublicDraw]) -> Tensor:
    check_keep(keep)
    return _everything(values)


def _top_k(values: Tensor, keep: float, draws: Sequence[PublicDraw]) -> Tensor:
    # Without their sign, floating-point numbers are ordered as their bits are, NaN highest.
    bits = values.detach().contiguous().view(DTYPES[values.dtype])
    return _largest(bits & torch.iinfo(bits.dtype).max, kept(keep, values.shape[1]))


def _rand_k(values: Tensor, keep: float, draws: Sequence[PublicDraw]) -> Tensor:
    d = values.shape[1]
    k = kept(keep, d)
    if k == d or not draws:
        return _everything(values)
    # The largest words are a uniformly random subset: ties have probability below d^2 / 2^65.
    words = torch.from_numpy(np.stack([draw.words(d).view(np.int64) for draw in draws]))
    return _largest(words, k).to(values.device)


def _bernoulli(values: Tensor, keep: float, draws: Sequence[PublicDraw]) -> Tensor:
    check_keep(keep)
    if keep == 1 or not draws:
        return _everything(values)
    threshold = np.uint64(int(keep * 2.0**64))
    coins = np.stack([draw.words(values.shape[1]) < threshold for draw in draws])
    return torch.from_numpy(coins).to(values.device)


def _largest(sizes: Tensor, k: int) -> Tensor:
    """Mark the k largest of each row, of equal ones those of lowest index: bool, `[nodes, d]`."""
    d = sizes.shape[1]
    if k == d or not len(sizes):
        return _everything(sizes)
    # What is the k-th largest is unambiguous; which of the equal ones a sort returns is not.
    threshold = _kth_largest(sizes, k)
    mask = sizes >= threshold
    crowded = np.flatnonzero(marked(mask) > k)
    if len(crowded):
        some, edge = sizes[crowded], threshold[crowded]
        above, ties = some > edge, some == edge
        room = k - above.sum(1, keepdim=True)
        mask[crowded] = above | (ties & (ties.cumsum(1) <= room))
    return mask


def _kth_largest(sizes: Tensor, k: int) -> Tensor:
    """Of each row of integers, `[nodes, 1]`; on the CPU, NumPy finds it many times faster."""
    if sizes.device.type != "cpu":
        return _kth_largest_anywhere(sizes, k)
    at = sizes.shape[1] - k
    return torch.from_numpy(np.partition(sizes.numpy(), at, axis=1)[:, at : at + 1].copy())


def _kth_largest_anywhere(sizes: Tensor, k: int) -> Tensor:
    return sizes.topk(k, dim=1, sorted=False).values.amin(1, keepdim=True)


def marked(mask: Tensor) -> NDArray[np.int64]:
    """How many are marked in each row, `[nodes]`; counting bytes, NumPy is much faster too."""
    if mask.device.type != "cpu":
        return np.asarray(mask.sum(1).cpu().numpy(), np.int64)
    return np.asarray(np.count_nonzero(mask.numpy(), axis=1), np.int64)


COMPRESSORS: Mapping[str, Compressor] = MappingProxyType(
    {
        "none": Compressor(_all),
        "top-k": Compressor(_top_k, located=True),
        "rand-k": Compressor(_rand_k),
        "bernoulli": Compressor(_bernoulli),
    }
)


def find_compressor(name: str) -> Compressor:
    """The compressor of a name; raises InputError for another one."""
    if name not in COMPRESSORS:
        raise InputError("algorithm.compressor", name, nearest(str(name), COMPRESSORS))
    return COMPRESSORS[name]


def check_keep(keep: float) -> None:
    """Raise InputError unless `keep` is a share."""
    if not 0.0 < keep <= 1.0:
        raise InputError("algorithm.keep", keep, "a share of the coordinates, above 0 and up to 1")


def index_bytes(d: int) -> int:
    """Bytes of one index into d coordinates."""
    return 4 if d <= _WIDE else 8


def bitmap_bytes(d: int) -> int:
    """Bytes of one bit for each of d coordinates."""
    return -(-d // 8)
