"""Mixing: with which weight a node takes what it receives.

`P[i, j]` weighs what node i receives from node j. Directed graphs split equally: node j gives the
same share, 1 / (out-degree + 1), to itself and to each out-neighbour, so that columns sum to 1 and
push-sum keeps its mass. Undirected graphs have symmetric, doubly stochastic weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InputError, nearest
from tacit.topology.graphs import Graph, graph_of
from tacit.topology.schedules import GraphSchedule
from tacit.topology.weights import Weights

__all__ = ["WEIGHTS", "Mixing", "build_mixing", "equal_splitting", "server_averaging"]

Values = NDArray[np.float64]
DEFAULT = "metropolis"


@dataclass(frozen=True, eq=False)
class Mixing:
    """The mixing weights of a schedule.

    Args:
        schedule: which graph at which step.
        weights: one for each graph of the period; a server's have no entries, since nothing goes
            from node to node.
        kind: what all of them are.
    """

    schedule: GraphSchedule
    weights: tuple[Weights, ...]
    kind: Literal["column-stochastic", "doubly-stochastic", "server"]

    def at(self, k: int) -> Weights:
        """The weights of step k."""
        return self.weights[k % len(self.weights)]

    def out_degrees(self, k: int) -> NDArray[np.int64]:
        """Messages that each node sends at step k, `[nodes]`."""
        return self.schedule.at(k).out_degrees

    def digests(self) -> list[str]:
        """What tells the weights of one graph from those of another, for each of the period."""
        return [
            hashlib.blake2b(
                b"".join(
                    array.tobytes() for array in (weights.starts, weights.sources, weights.values)
                ),
                digest_size=16,
            ).hexdigest()
            for weights in self.weights
        ]


def equal_splitting(graph: Graph) -> Weights:
    """Column-stochastic weights: each node splits its mass equally, itself included."""
    shares = np.divide(1.0, graph.out_degrees + 1, dtype=np.float64)
    return _weights(graph, shares[graph.sources], shares)


def metropolis(graph: Graph) -> Weights:
    """w_ij = 1 / (1 + max(deg_i, deg_j)) on edges, the rest on the diagonal."""
    degrees = graph.out_degrees
    larger = np.maximum(degrees[graph.targets], degrees[graph.sources])
    return _with_diagonal(graph, np.divide(1.0, 1 + larger, dtype=np.float64))


def laplacian(graph: Graph) -> Weights:
    """I - L / (d_max + 1), L the graph's Laplacian."""
    share = 1.0 / (1 + int(graph.out_degrees.max()))
    return _with_diagonal(graph, np.full(len(graph.sources), share, np.float64))


def uniform(graph: Graph) -> Weights:
    """1 / (degree + 1) on edges and diagonal: regular graphs only.

    Raises:
        InputError: on `topology.mixing`, naming two nodes of different degree.
    """
    degrees = graph.out_degrees.tolist()
    for node, degree in enumerate(degrees):
        if degree != degrees[0]:
            raise InputError(
                "topology.mixing",
                "uniform",
                f"needs a regular graph: node 0 has degree {degrees[0]}, node {node} has {degree}; "
                "use 'metropolis'",
            )
    return laplacian(graph)


WEIGHTS: Mapping[str, Callable[[Graph], Weights]] = {
    "metropolis": metropolis,
    "laplacian": laplacian,
    "uniform": uniform,
}


def build_mixing(schedule: GraphSchedule, weights: str | None = None) -> Mixing:
    """The mixing weights of a schedule.

    Args:
        schedule: directed ones split equally; undirected ones take `weights`.
        weights: a name in `WEIGHTS`; by default `metropolis`.

    Raises:
        InputError: on `topology.mixing`.
    """
    if weights is not None and weights not in WEIGHTS:
        raise InputError("topology.mixing", weights, nearest(weights, WEIGHTS))
    if not schedule.directed:
        chosen = WEIGHTS[weights or DEFAULT]
        return Mixing(schedule, tuple(map(chosen, schedule.graphs)), "doubly-stochastic")
    if weights is not None:
        raise InputError(
            "topology.mixing",
            weights,
            f"is for undirected graphs; {schedule.name} is directed and splits equally: leave it "
            "out",
        )
    return Mixing(schedule, tuple(map(equal_splitting, schedule.graphs)), "column-stochastic")


def server_averaging(clients: int) -> Mixing:
    """What a server does to its clients: each gets the average of all.

    The graph has no edges, since clients send to the server only, which is no node.
    """
    alone = graph_of(clients, ())
    nothing = np.zeros(0, np.int64)
    weights = Weights.of_entries(clients, nothing, nothing, np.zeros(0))
    return Mixing(GraphSchedule("star", (alone,)), (weights,), "server")


def _weights(graph: Graph, values: Values, diagonal: Values) -> Weights:
    """Weights of the edges `[edges]` and of the nodes themselves `[nodes]`."""
    own = np.arange(graph.nodes)
    return Weights.of_entries(
        graph.nodes,
        np.concatenate([graph.targets, own]),
        np.concatenate([graph.sources, own]),
        np.concatenate([values, diagonal]),
    )


def _with_diagonal(graph: Graph, values: Values) -> Weights:
    """Weights of the edges, and on the diagonal what makes every row sum to 1."""
    sums = np.bincount(graph.targets, weights=values, minlength=graph.nodes)
    return _weights(graph, values, np.subtract(1.0, sums, dtype=np.float64))
