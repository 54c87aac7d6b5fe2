"""Standard normals, coins and random subsets from nodes' keystreams: what privacy rests on.

What a draw depends on, and what not, is said in `tacit.privacy.noise.keys`. What the normals are:

- A pair of normals takes one AES block: 64 bits for the radius and 64 for the angle (Box-Muller).
  Radii reach 9.49 standard deviations; the ideal mass beyond is below 2^-63 a pair. In double
  precision the radius uniform has the resolution 2^-63 near 0 (the tails) and 2^-53 near 1.
- In single precision the same words make the same normals, up to rounding: the radius's
  logarithm is still taken in double precision, the angle is the top 32 bits.
- The output of `normal` is floating point, whose low bits the analysis knows nothing of. What a run
  releases is noised by `add_normal`, which is defended: see `tacit.privacy.noise.gaussian`.
- The keystream is the same on every machine. Logarithm, sine and cosine are NumPy's and may
  differ in the last bits between processor types; on one machine, equal positions give equal bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import InputError
from tacit.privacy.noise.block import NormalBlock, Pieces, Place, over_pieces
from tacit.privacy.noise.gaussian import add_normal
from tacit.privacy.noise.keys import NodeKeys, aes_ctr, fresh_keys, keystream, position, seeded_keys
from tacit.privacy.noise.slack import Slack, slack, with_slack

__all__ = [
    "NodeKeys",
    "Slack",
    "add_normal",
    "aes_ctr",
    "choices",
    "coins",
    "fresh_keys",
    "keystream",
    "normal",
    "permutation",
    "seeded_keys",
    "slack",
    "subset",
    "with_slack",
]

_NUMPY_TYPES: Mapping[torch.dtype, type[np.float32 | np.float64]] = MappingProxyType(
    {torch.float32: np.float32, torch.float64: np.float64}
)


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

    The elements with the smallest 64-bit words are taken; between equal words 64 more bits decide,
    and between those (probability below `population^2 / 2^129`) the lower index wins. So the size
    is always exact, and the law is that close to uniform.

    Raises:
        InputError: `size` is not in 0 .. population, the node's key is not held, or the position
            is out of range.
    """
    if not 0 <= size <= population:
        raise InputError("size", size, f"a number from 0 to the population, {population}")
    words = _words(keys, node, purpose, step, population, part)
    return _smallest(
        words, size, lambda: _words(keys, node, f"{purpose}, ties", step, population, part)
    )


def _smallest(
    words: NDArray[np.uint64], size: int, more: Callable[[], NDArray[np.uint64]]
) -> NDArray[np.int64]:
    """Indices of the `size` smallest words, sorted; between equal ones `more` words decide."""
    if size == 0:
        return np.empty(0, np.int64)
    largest = np.partition(words, size - 1)[size - 1]
    below = np.flatnonzero(words < largest)
    ties = np.flatnonzero(words == largest)
    wanted = size - len(below)
    if wanted < len(ties):
        ties = ties[np.argsort(more()[ties], kind="stable")][:wanted]
    return np.sort(np.concatenate([below, ties])).astype(np.int64)


def permutation(
    keys: NodeKeys, node: int, purpose: str, step: int, count: int, part: int = 0
) -> NDArray[np.int64]:
    """A random order of `0 .. count - 1`, `[count]`: that of their 64-bit words.

    Uniform but for a chance of equal words, below `count^2 / 2^65`.

    Raises:
        InputError: the node's key is not held, or the position is out of range.
    """
    words = _words(keys, node, purpose, step, count, part)
    return np.argsort(words, kind="stable").astype(np.int64)


def choices(
    keys: NodeKeys, node: int, purpose: str, step: int, count: int, sides: int, part: int = 0
) -> NDArray[np.int64]:
    """Independent numbers from `0 .. sides - 1`, `[count]`: words modulo `sides`.

    Uniform but for `sides / 2^64`. A shorter draw is a prefix of a longer one.

    Raises:
        InputError: the node's key is not held, or the position is out of range.
    """
    words = _words(keys, node, purpose, step, count, part)
    return (words % np.uint64(sides)).astype(np.int64)
