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

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.base.sending import sent
from tacit.errors import InputError, nearest

# keep * d errs by at most 2^-52 of itself, the rounding of keep included: closer than this to a
# whole number, it is meant to be that number.
_ROUNDING = 2.0**-51
_WIDE = 1 << 32
# Of values, and of the integers that have their bits.
_DTYPES: Mapping[torch.dtype, torch.dtype] = MappingProxyType(
    {torch.float32: torch.int32, torch.float64: torch.int64}
)


@dataclass(frozen=True)
class PublicDraw:
    """What the public mask of the node that sends depends on; `seed` is the public one.

    `part` tells several messages of a node in one step apart.
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

    A `keep` that is the rounded quotient k / d gives that k. It is an InputError where `keep` is
    not in (0, 1], or d is 0.
    """
    _check_keep(keep)
    if d < 1:
        raise InputError("d", d, "1 or more coordinates")
    product = keep * d
    whole = round(product)
    near = abs(product - whole) <= _ROUNDING * product
    return max(1, min(d, whole if near else int(np.ceil(product))))


def message_bytes(
    compressor: str, counts: NDArray[np.int64], d: int, value_bytes: int
) -> NDArray[np.int64]:
    """Bytes of messages that carry `counts` of `d` values each: `[nodes]`, as of `Coding.write`.

    `top-k` adds the cheaper of a bitmap and indices (of 4 bytes each, 8 if d > 2^32), and nothing
    where all are sent. What both sides know of the experiment (d, `keep`, dtype) is not sent.
    """
    places = np.zeros_like(counts)
    if _find_compressor(compressor).located:
        cheaper = np.minimum(_bitmap_bytes(d), counts * _index_bytes(d))
        places = np.where(counts < d, cheaper, 0)
    return np.asarray(counts * value_bytes + places, np.int64)


def share_sent(compressor: str, keep: float, d: int) -> float:
    """Which share of a vector's d values one message carries; of `bernoulli`, on average.

    It is an InputError where there is no such compressor, `keep` is not in (0, 1], or d is 0.
    """
    chosen = _find_compressor(compressor)
    count = kept(keep, d)  # which checks keep and d, whatever the compressor
    return chosen.share(keep, count / d)


def expected_bytes(compressor: str, keep: float, d: int, value_bytes: int) -> float:
    """Bytes of a message of d values, of `value_bytes` each, once it is compressed.

    `keep` is k / d, or the probability of `bernoulli`, of whose messages the bytes are an average;
    all others carry the same number of values in every message. Errors are those of `share_sent`.
    """
    share = share_sent(compressor, keep, d)
    if not _find_compressor(compressor).located:
        return share * d * value_bytes
    count = np.array([kept(keep, d)], np.int64)
    return float(message_bytes(compressor, count, d, value_bytes)[0])


# A selection is a bool tensor `[nodes, d]` (perhaps expanded) on the device of the values, and how
# many it marks in each row, which the host knows without reading it.
_Selection = tuple[Tensor, NDArray[np.int64]]
_Select = Callable[[Tensor, float, Sequence[PublicDraw]], _Selection]


@dataclass(frozen=True)
class _Compressor:
    """How coordinates are chosen, and whether a message must say which (`located`).

    `share` is which share of the coordinates is sent, from `keep` and k / d.
    """

    select: _Select
    share: Callable[[float, float], float]
    located: bool = False


def _everything(values: Tensor) -> _Selection:
    marked = torch.ones((1, 1), dtype=torch.bool, device=values.device).expand(values.shape)
    return marked, np.full(len(values), values.shape[1], np.int64)


def _all(values: Tensor, keep: float, draws: Sequence[PublicDraw]) -> _Selection:
    _check_keep(keep)
    return _everything(values)


def _top_k(values: Tensor, keep: float, draws: Sequence[PublicDraw]) -> _Selection:
    # Without their sign, floating-point numbers are ordered as their bits are, NaN highest.
    bits = values.detach().contiguous().view(_DTYPES[values.dtype])
    return _largest(bits & torch.iinfo(bits.dtype).max, kept(keep, values.shape[1]))


def _rand_k(values: Tensor, keep: float, draws: Sequence[PublicDraw]) -> _Selection:
    d = values.shape[1]
    k = kept(keep, d)
    if k == d or not draws:
        return _everything(values)
    # The largest words are a uniformly random subset: ties have probability below d^2 / 2^65.
    words = torch.from_numpy(np.stack([draw.words(d).view(np.int64) for draw in draws]))
    mask, counts = _largest(words, k)
    return sent(mask, values.device), counts


def _bernoulli(values: Tensor, keep: float, draws: Sequence[PublicDraw]) -> _Selection:
    _check_keep(keep)
    if keep == 1 or not draws:
        return _everything(values)
    threshold = np.uint64(int(keep * 2.0**64))
    coins = np.stack([draw.words(values.shape[1]) < threshold for draw in draws])
    return sent(coins, values.device), np.asarray(np.count_nonzero(coins, axis=1), np.int64)


def _largest(sizes: Tensor, k: int) -> _Selection:
    """Mark the k largest of each row, of equal ones those of lowest index: bool, `[nodes, d]`."""
    if k == sizes.shape[1] or not len(sizes):
        return _everything(sizes)
    # What is the k-th largest is unambiguous; which of the equal ones a sort returns is not.
    threshold = _kth_largest(sizes, k)
    counts = np.full(len(sizes), k, np.int64)
    if sizes.device.type != "cpu":  # where looking for ties would wait for the device
        return _first_of_equal(sizes, threshold, k), counts
    mask = sizes >= threshold
    # Counting bytes, NumPy is much faster.
    crowded = np.flatnonzero(np.count_nonzero(mask.numpy(), axis=1) > k)
    if len(crowded):
        mask[crowded] = _first_of_equal(sizes[crowded], threshold[crowded], k)
    return mask, counts


def _first_of_equal(sizes: Tensor, threshold: Tensor, k: int) -> Tensor:
    above, ties = sizes > threshold, sizes == threshold
    room = k - above.sum(1, keepdim=True)
    return above | (ties & (ties.cumsum(1) <= room))


def _kth_largest(sizes: Tensor, k: int) -> Tensor:
    """Of each row of integers, `[nodes, 1]`; on the CPU, NumPy finds it many times faster."""
    if sizes.device.type != "cpu":
        return _kth_largest_anywhere(sizes, k)
    at = sizes.shape[1] - k
    return torch.from_numpy(np.partition(sizes.numpy(), at, axis=1)[:, at : at + 1].copy())


def _kth_largest_anywhere(sizes: Tensor, k: int) -> Tensor:
    return sizes.topk(k, dim=1, sorted=False).values.amin(1, keepdim=True)


COMPRESSORS: Mapping[str, _Compressor] = MappingProxyType(
    {
        "none": _Compressor(_all, lambda keep, exact: 1.0),
        "top-k": _Compressor(_top_k, lambda keep, exact: exact, located=True),
        "rand-k": _Compressor(_rand_k, lambda keep, exact: exact),
        "bernoulli": _Compressor(_bernoulli, lambda keep, exact: keep),
    }
)


def _find_compressor(name: str) -> _Compressor:
    if name not in COMPRESSORS:
        raise InputError("algorithm.compressor", name, nearest(str(name), COMPRESSORS))
    return COMPRESSORS[name]


def _check_keep(keep: float) -> None:
    if not 0.0 < keep <= 1.0:
        raise InputError("algorithm.keep", keep, "a share of the coordinates, above 0 and up to 1")


def _index_bytes(d: int) -> int:
    return 4 if d <= _WIDE else 8


def _bitmap_bytes(d: int) -> int:
    return -(-d // 8)


@dataclass(frozen=True, eq=False)
class Coding:
    """How the messages of a stack of nodes are written.

    `keep` is k / d, or the probability of `bernoulli`; `seed` is the public one, and `part` tells
    several messages of a node in one step apart. `bytes`, `[nodes]`, are those of each node's
    message, as it is written; 0: it sends none. Another compressor, or a `keep` that is not in (0,
    1], is an InputError.
    """

    compressor: str
    keep: float
    seed: int
    step: int
    part: int
    bytes: NDArray[np.int64]

    def size(self, d: int, dtype: torch.dtype, node: int) -> int:
        """Bytes of the message of any node, of this stack or not, that sends one."""
        chosen = _find_compressor(self.compressor)
        row, draws = torch.zeros(1, d, dtype=dtype), [self._draw(node)]
        _, counts = chosen.select(row, self.keep, draws)
        return int(message_bytes(self.compressor, counts, d, dtype.itemsize)[0])

    def write(self, row: Tensor, node: int) -> Tensor:
        """A node's message: `[d]`, compressed or still to be, to bytes, uint8 `[n]` on the CPU.

        First where the values belong (little-endian indices, or a bitmap, lowest index in the
        lowest bit; `top-k` only), then the values, little-endian, in the order of their indices.
        """
        chosen = _find_compressor(self.compressor)
        mask = chosen.select(row.unsqueeze(0), self.keep, [self._draw(node)])[0][0].cpu().numpy()
        numbers = row.detach().cpu().numpy()[mask]
        places = _encode_places(mask) if chosen.located else b""
        values = numbers.astype(numbers.dtype.newbyteorder("<")).tobytes()
        return torch.from_numpy(np.frombuffer(bytearray(places + values), np.uint8))

    def read(self, message: Tensor, d: int, dtype: torch.dtype, node: int) -> Tensor:
        """What another node wrote: uint8 `[n]` to `[d]`, on the CPU, zeros where nothing was sent.

        It is an InputError where the message's length is wrong, or places lie outside the vector.
        """
        chosen, sent_bytes = _find_compressor(self.compressor), message.cpu().numpy().tobytes()
        values = torch.zeros(1, d, dtype=dtype)
        item = values.element_size()
        if chosen.located:
            mask, start = _decode_places(sent_bytes, kept(self.keep, d), d)
        else:
            mask, start = chosen.select(values, self.keep, [self._draw(node)])[0][0].numpy(), 0
        expected = start + item * int(mask.sum())
        if len(sent_bytes) != expected:
            raise InputError("message", len(sent_bytes), f"{expected} bytes")
        row = values.numpy()[0]
        row[mask] = np.frombuffer(sent_bytes, row.dtype.newbyteorder("<"), offset=start)
        return values[0]

    def _draw(self, node: int) -> PublicDraw:
        return PublicDraw(self.seed, self.step, node, self.part)


@dataclass(frozen=True, eq=False)
class Compressed:
    """What a stack of nodes sends: `values` are `[nodes, d]`, zeros where nothing is sent."""

    values: Tensor
    coding: Coding

    @property
    def bytes(self) -> NDArray[np.int64]:
        """`[nodes]`, of one message of each node."""
        return self.coding.bytes

    def of(self, active: Tensor, flags: NDArray[np.bool_]) -> Compressed:
        """The same where only active nodes send: bool `[nodes, 1]`, and `[nodes]` on the host."""
        coding = replace(self.coding, bytes=np.where(flags, self.bytes, 0))
        return Compressed(torch.where(active, self.values, 0.0), coding)


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

    The `values`, `[nodes, d]` in the order of `nodes`, float32 or float64 on any device, are kept
    as they are. `keep` is k / d, or the probability of `bernoulli`, and of no effect on `none`;
    `seed` is the public one, and `part` tells several messages of a node in one step apart.

    Raises:
        InputError: another compressor, `keep` is not in (0, 1], the rows are not the nodes', or the
            dtype is another one.
    """
    chosen = _find_compressor(compressor)
    _check_keep(keep)
    if values.dim() != 2 or len(values) != len(nodes):
        raise InputError("values", tuple(values.shape), f"one row for each of {len(nodes)} nodes")
    if values.dtype not in _DTYPES:
        raise InputError("train.dtype", str(values.dtype), "float32 or float64")
    draws = [PublicDraw(seed, step, node, part) for node in nodes]
    mask, counts = chosen.select(values, keep, draws)
    left = torch.where(mask, values, torch.zeros((), dtype=values.dtype, device=values.device))
    sizes = message_bytes(compressor, counts, values.shape[1], values.element_size())
    return Compressed(left, Coding(compressor, keep, seed, step, part, sizes))


def _prefers_bitmap(k: int, d: int) -> bool:
    """Both sides know k and d, so the choice need not be sent."""
    return _bitmap_bytes(d) <= k * _index_bytes(d)


def _encode_places(mask: NDArray[np.bool_]) -> bytes:
    d, k = len(mask), int(mask.sum())
    if k == d:
        return b""
    if _prefers_bitmap(k, d):
        return np.packbits(mask, bitorder="little").tobytes()
    return np.flatnonzero(mask).astype(f"<u{_index_bytes(d)}").tobytes()


def _decode_places(message: bytes, k: int, d: int) -> tuple[NDArray[np.bool_], int]:
    """The mask, and where the values begin."""
    mask = np.ones(d, np.bool_)
    if k == d:
        return mask, 0
    size = _bitmap_bytes(d) if _prefers_bitmap(k, d) else k * _index_bytes(d)
    if len(message) < size:
        raise InputError("message", len(message), f"at least {size} bytes")
    if _prefers_bitmap(k, d):
        bits = np.frombuffer(message, np.uint8, size)
        return np.unpackbits(bits, count=d, bitorder="little").astype(np.bool_), size
    mask[:] = False
    places = np.frombuffer(message, f"<u{_index_bytes(d)}", k)
    if int(places.max()) >= d:
        raise InputError("message", int(places.max()), f"a place below {d}")
    mask[places] = True
    return mask, size
