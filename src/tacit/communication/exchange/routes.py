"""Which rows go from which process to which, at one step: only edges that cross are messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.topology.weights import Weights

__all__ = ["Route", "gossip_route", "pair_route", "server_route"]

Nodes = tuple[int, ...]


@dataclass(frozen=True)
class Route:
    """What one process sends and receives.

    Args:
        sends: of each other rank that gets something, whose rows, ascending.
        receives: of each other rank that something comes from, whose rows, ascending.
    """

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
    """The edges of a graph that cross; a node's row goes once a process.

    Args:
        weights: of the graph.
        ranks: of each node, where it is.
        rank: of this process.
    """
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
