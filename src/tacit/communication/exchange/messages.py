"""What goes from one process to another: a header that says what it is, then the rows.

Everything here came over a network and is believed by nobody: the length, what the header says,
and that every number is finite are checked before a row is mixed. Nothing is unpickled.

| bytes | what |
|---|---|
| 0-7 | `tacit`, and the version of this format |
| 8-11 | rank of the sender |
| 12-15 | kind: 1 mix, 2 swap, 3 average, 4 a mean from rank 0, 5 a sum for it, 6 one under masks |
| 16-23 | step k |
| 24-31 | how many exchanges the sender has had before this one |
| 32-35 | code of the dtype |
| 36-39 | rows |
| 40-47 | numbers in a row, of all values together |
| 48-55 | bytes after the header |
| 56-63 | zero |

Then, little-endian: each value's rows, `[rows, ...]`, in ascending order of their nodes; or, where
messages are compressed, the message of each node, one after the other
(`tacit.communication.compression.Coding`).

A `Route` says which rows go from which process to which at one step: only edges that cross are
messages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import PeerError
from tacit.topology.mixing import Weights

Kind = Literal["mix", "swap", "average", "mean", "total", "masked"]

HEADER_BYTES = 64
_HEADER = struct.Struct("<8sIIqqIIqq8x")
_MAGIC = b"tacit\x00\x00\x01"
_KINDS: Mapping[Kind, int] = MappingProxyType(
    {"mix": 1, "swap": 2, "average": 3, "mean": 4, "total": 5, "masked": 6}
)
_DTYPES: Mapping[torch.dtype, int] = MappingProxyType(
    {torch.float32: 1, torch.float64: 2, torch.int64: 3}
)


@dataclass(frozen=True)
class Envelope:
    """What a header says, or must say, and the rows that follow it: those of `nodes`, ascending.

    `turn` is how many exchanges there were before. `shapes` are of one row of each value, and
    `sizes` the bytes of each node's message where they are compressed; None: whole rows.
    """

    sender: int
    kind: Kind
    step: int
    turn: int
    shapes: tuple[torch.Size, ...]
    dtype: torch.dtype
    nodes: tuple[int, ...]
    sizes: tuple[int, ...] | None = None

    @property
    def _numbers(self) -> int:
        return sum(shape.numel() for shape in self.shapes)

    @property
    def payload(self) -> int:
        """Bytes after the header."""
        if self.sizes is not None:
            return sum(self.sizes)
        return len(self.nodes) * self._numbers * self.dtype.itemsize

    @property
    def size(self) -> int:
        """Of the whole message, in bytes."""
        return HEADER_BYTES + self.payload

    def fields(self) -> Mapping[str, int]:
        """The fields of the header by name, as numbers."""
        return {
            "sender": self.sender,
            "kind of exchange": _KINDS[self.kind],
            "step": self.step,
            "number of exchanges before": self.turn,
            "dtype": _DTYPES[self.dtype],
            "rows": len(self.nodes),
            "numbers in a row": self._numbers,
            "bytes": self.payload,
        }


def write_header(envelope: Envelope) -> bytes:
    """The 64 bytes before the rows."""
    return _HEADER.pack(_MAGIC, *envelope.fields().values())


def read_header(message: bytes) -> tuple[int, ...] | None:
    """The fields of a header, in the order of `Envelope.fields`; None if it is none of ours."""
    if len(message) < HEADER_BYTES:
        return None
    magic, *fields = _HEADER.unpack(message[:HEADER_BYTES])
    return tuple(fields) if magic == _MAGIC else None


def check(message: Tensor, expected: Envelope) -> None:
    """Refuse a message, uint8 `[n]` as it came, that is not the expected one but for its numbers.

    The PeerError names the sender, and what is wrong.
    """
    where = f"rank {expected.sender} sent a bad message at step {expected.step}"
    found = read_header(message[:HEADER_BYTES].cpu().numpy().tobytes())
    if found is None:
        raise PeerError(f"{where}: it does not begin as messages of this version of tacit do")
    for (name, right), value in zip(expected.fields().items(), found, strict=True):
        if value != right:
            raise PeerError(f"{where}: its {name} is {value} and must be {right}")
    if len(message) != expected.size:
        raise PeerError(f"{where}: it holds {len(message)} bytes and must hold {expected.size}")


def unfinite(values: Sequence[Tensor]) -> list[int]:
    """Rows of values `[rows, ...]` in which a number is not finite."""
    rows = len(values[0])
    # One pass; a finite sum can only come of finite numbers.
    if all(bool(torch.isfinite(value.sum())) for value in values):
        return []
    good = torch.ones(rows, dtype=torch.bool, device=values[0].device)
    for value in values:
        good &= torch.isfinite(value.reshape(rows, -1)).all(1)
    found: list[int] = (~good).nonzero().flatten().tolist()
    return found


Nodes = tuple[int, ...]


@dataclass(frozen=True)
class Route:
    """What one process sends and receives: by other rank, whose rows, ascending."""

    sends: Mapping[int, Nodes]
    receives: Mapping[int, Nodes]

    @property
    def others(self) -> Nodes:
        """All nodes whose rows come, ascending."""
        return tuple(sorted(node for nodes in self.receives.values() for node in nodes))

    def only(self, active: NDArray[np.bool_] | None) -> Route:
        """The same without the nodes that send nothing, and without what is empty then."""
        if active is None:
            return self
        sends, receives = (
            {
                rank: kept
                for rank, nodes in rows.items()
                if (kept := tuple(node for node in nodes if active[node]))
            }
            for rows in (self.sends, self.receives)
        )
        return Route(sends, receives)


def gossip_route(weights: Weights, ranks: Sequence[int], rank: int) -> Route:
    """The edges of a graph that cross, seen from `rank`; a node's row goes once a process."""
    where = np.asarray(ranks)
    to, start = where[weights.targets], where[weights.sources]
    leaving, coming = (start == rank) & (to != rank), (start != rank) & (to == rank)
    return Route(
        _by_rank(_distinct(to[leaving], weights.sources[leaving])),
        _by_rank(_distinct(start[coming], weights.sources[coming])),
    )


def pair_route(partner: Mapping[int, int], ranks: Sequence[int], rank: int) -> Route:
    """Rows of pairs that cross; `partner` is that of each node of this process."""
    crossing = [(node, other) for node, other in partner.items() if ranks[other] != rank]
    return Route(
        _by_rank((ranks[other], node) for node, other in crossing),
        _by_rank((ranks[other], other) for node, other in crossing),
    )


def server_route(sending: Sequence[int], ranks: Sequence[int], rank: int, server: int) -> Route:
    """Rows of clients that send to a server in another process."""
    pairs = [(ranks[node], node) for node in sending]
    if rank == server:
        return Route({}, _by_rank(pair for pair in pairs if pair[0] != rank))
    return Route(_by_rank((server, node) for where, node in pairs if where == rank), {})


def _distinct(ranks: NDArray[np.int64], nodes: NDArray[np.int64]) -> list[tuple[int, int]]:
    return list(set(zip(ranks.tolist(), nodes.tolist(), strict=True)))


def _by_rank(pairs: Iterable[tuple[int, int]]) -> dict[int, Nodes]:
    found: dict[int, list[int]] = {}
    for rank, node in sorted(pairs):
        found.setdefault(rank, []).append(node)
    return {rank: tuple(nodes) for rank, nodes in found.items()}
