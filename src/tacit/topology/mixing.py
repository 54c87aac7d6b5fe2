"""Mixing: with which weight a node takes what it receives.

`P[i, j]` weighs what node i receives from node j. Directed graphs split equally: node j gives the
same share, 1 / (out-degree + 1), to itself and to each out-neighbour, so that columns sum to 1 and
push-sum keeps its mass. Undirected graphs have symmetric, doubly stochastic weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InputError, nearest
from tacit.topology.graphs import Graph
from tacit.topology.schedules import GraphSchedule

__all__ = ["WEIGHTS", "Mixing", "build_mixing", "equal_splitting", "server_averaging"]

Matrix = NDArray[np.float64]
DEFAULT = "metropolis"


@dataclass(frozen=True, eq=False)
class Mixing:
    """The mixing matrices of a schedule.

    Args:
        schedule: which graph at which step.
        matrices: float64 `[nodes, nodes]`, one for each graph of the period, read-only.
        kind: what all of them are.
    """

    schedule: GraphSchedule
    matrices: tuple[Matrix, ...]
    kind: Literal["column-stochastic", "doubly-stochastic", "server"]

    def matrix(self, k: int) -> Matrix:
        """The matrix of step k."""
        return self.matrices[k % len(self.matrices)]

    def out_degrees(self, k: int) -> NDArray[np.int64]:
        """Messages that each node sends at step k, `[nodes]`."""
        return np.asarray(self.schedule.at(k).out_degrees, dtype=np.int64)


def equal_splitting(graph: Graph) -> Matrix:
    """Column-stochastic weights: each node splits its mass equally, itself included."""
    matrix = _adjacency(graph) + np.eye(graph.nodes)
    return np.asarray(matrix / matrix.sum(axis=0), dtype=np.float64)


def metropolis(graph: Graph) -> Matrix:
    """w_ij = 1 / (1 + max(deg_i, deg_j)) on edges, the rest on the diagonal."""
    degrees = np.asarray(graph.out_degrees)
    return _with_diagonal(_adjacency(graph) / (1 + np.maximum.outer(degrees, degrees)))


def laplacian(graph: Graph) -> Matrix:
    """I - L / (d_max + 1), L the graph's Laplacian."""
    return _with_diagonal(_adjacency(graph) / (1 + max(graph.out_degrees)))


def uniform(graph: Graph) -> Matrix:
    """1 / (degree + 1) on edges and diagonal: regular graphs only.

    Raises:
        InputError: on `topology.mixing`, naming two nodes of different degree.
    """
    degrees = graph.out_degrees
    for node, degree in enumerate(degrees):
        if degree != degrees[0]:
            raise InputError(
                "topology.mixing",
                "uniform",
                f"needs a regular graph: node 0 has degree {degrees[0]}, node {node} has {degree}; "
                "use 'metropolis'",
            )
    return laplacian(graph)


WEIGHTS: Mapping[str, Callable[[Graph], Matrix]] = {
    "metropolis": metropolis,
    "laplacian": laplacian,
    "uniform": uniform,
}


def build_mixing(schedule: GraphSchedule, weights: str | None = None) -> Mixing:
    """The mixing matrices of a schedule.

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
        return Mixing(schedule, _frozen(chosen, schedule), "doubly-stochastic")
    if weights is not None:
        raise InputError(
            "topology.mixing",
            weights,
            f"is for undirected graphs; {schedule.name} is directed and splits equally: leave it "
            "out",
        )
    return Mixing(schedule, _frozen(equal_splitting, schedule), "column-stochastic")


def server_averaging(clients: int) -> Mixing:
    """What a server does to its clients: each gets the average of all.

    The graph has no edges, since clients send to the server only, which is no node.
    """
    matrix = np.full((clients, clients), 1 / clients)
    matrix.setflags(write=False)
    alone = Graph(clients, frozenset())
    return Mixing(GraphSchedule("star", (alone,)), (matrix,), "server")


def _frozen(weigh: Callable[[Graph], Matrix], schedule: GraphSchedule) -> tuple[Matrix, ...]:
    matrices = tuple(weigh(graph) for graph in schedule.graphs)
    for matrix in matrices:
        matrix.setflags(write=False)
    return matrices


def _adjacency(graph: Graph) -> Matrix:
    """1 at [target, source] of every edge."""
    matrix = np.zeros((graph.nodes, graph.nodes))
    if graph.edges:
        sources, targets = zip(*graph.edges, strict=True)
        matrix[targets, sources] = 1.0
    return matrix


def _with_diagonal(matrix: Matrix) -> Matrix:
    """The same with a diagonal that makes every row sum to 1."""
    np.fill_diagonal(matrix, 1.0 - matrix.sum(axis=1))
    return matrix
