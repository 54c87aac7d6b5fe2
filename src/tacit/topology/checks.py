"""Checks of graphs and weights: what an algorithm needs, or a refusal that says what is wrong."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InputError
from tacit.topology.mixing import Mixing
from tacit.topology.schedules import GraphSchedule

__all__ = [
    "check_column_stochastic",
    "check_doubly_stochastic",
    "check_strongly_connected",
    "contraction",
]

Matrix = NDArray[np.float64]
_SHOWN = 10
_ROUNDING = 1e-12  # of a sum, for each node


def check_column_stochastic(matrix: Matrix, where: str = "topology.mixing") -> None:
    """Refuse a matrix unless it is non-negative, keeps a part of each node, and columns sum to 1.

    Raises:
        InputError: on `where`, naming the entry or column.
    """
    negative = np.argwhere(~(matrix >= 0))
    if len(negative):
        i, j = negative[0]
        raise InputError(where, f"P[{i}, {j}] = {matrix[i, j]:g}", "weights must be 0 or more")
    for node, kept in enumerate(np.diag(matrix)):
        if not kept > 0:
            raise InputError(where, f"P[{node}, {node}] = {kept:g}", "a node must keep a part")
    _check_sums(matrix.sum(axis=0), "column", where)


def check_doubly_stochastic(matrix: Matrix, where: str = "topology.mixing") -> None:
    """Refuse a matrix unless it is column-stochastic and its rows sum to 1 as well.

    Raises:
        InputError: on `where`, naming the entry, column or row.
    """
    check_column_stochastic(matrix, where)
    _check_sums(matrix.sum(axis=1), "row", where)


def _check_sums(sums: Matrix, kind: str, where: str) -> None:
    wrong = np.flatnonzero(~(np.abs(sums - 1) <= _ROUNDING * len(sums)))
    if len(wrong):
        first = int(wrong[0])
        raise InputError(where, f"{kind} {first} sums to {float(sums[first])!r}", "must sum to 1")


def check_strongly_connected(schedule: GraphSchedule) -> None:
    """Refuse a schedule unless the union of its period's edges connects every node to every other.

    Raises:
        InputError: on `topology.graph`, naming nodes that cannot be reached, and from where.
    """
    union = np.zeros((schedule.nodes, schedule.nodes), dtype=np.bool_)
    for graph in schedule.graphs:
        if graph.edges:
            union[tuple(np.array(list(graph.edges)).T)] = True
    # If node 0 reaches every node and every node reaches it, each reaches each.
    if _reached(union, 0).all() and _reached(union.T, 0).all():
        return
    for start in range(schedule.nodes):
        missing = np.flatnonzero(~_reached(union, start)).tolist()
        if missing:
            shown = ", ".join(str(node) for node in missing[:_SHOWN])
            more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
            plural = "nodes" if len(missing) > 1 else "node"
            raise InputError(
                "topology.graph",
                schedule.name,
                f"is not strongly connected over its period of {schedule.period}: node {start} "
                f"cannot reach {plural} {shown}{more}",
            )


def _reached(edges: NDArray[np.bool_], start: int) -> NDArray[np.bool_]:
    """Nodes that edges [source, target] lead to from `start`, itself included, `[nodes]`."""
    found = np.zeros(len(edges), dtype=np.bool_)
    found[start] = True
    new = np.array([start])
    while len(new):
        new = np.flatnonzero(edges[new].any(axis=0) & ~found)
        found[new] = True
    return found


def contraction(mixing: Mixing) -> float:
    """Factor by which disagreement shrinks in a step, in the long run; 1 less it is the gap.

    The second largest eigenvalue modulus of the product of one period's matrices, to the power
    1 / period. For column-stochastic matrices it is the rate at which push-sum, numerators and
    weights alike, forgets where it started. 0 for one node, and where a period averages exactly.
    """
    product = np.eye(mixing.schedule.nodes)
    for matrix in mixing.matrices:
        product = matrix @ product
    if len(product) == 1:
        return 0.0
    moduli = np.sort(np.abs(np.linalg.eigvals(product)))
    second = float(moduli[-2])
    # A defective zero eigenvalue comes out as rounding noise to a fractional power.
    rounding = 1e-9 if mixing.schedule.period == 1 else 1e-6
    if second < rounding:
        return 0.0
    return min(1.0, math.pow(second, 1 / len(mixing.matrices)))
