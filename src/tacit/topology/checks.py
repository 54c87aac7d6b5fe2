"""Checks of graphs and weights: what an algorithm needs, or an InputError that says why not."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InputError
from tacit.topology.graphs import GraphSchedule, reached
from tacit.topology.mixing import Mixing, Weights

_SHOWN, _SHOWN_PARTS = 10, 3
_ROUNDING = 1e-12  # of a sum, for each node
# Up to this many nodes, all eigenvalues are computed: 0.3 s for a period of ten graphs.
_FEW_NODES = 512
_ITERATIONS = 300  # of Arnoldi's method, before it is given up


def check_column_stochastic(weights: Weights, where: str = "topology.mixing") -> None:
    """Refuse weights unless none is negative, each node keeps a part, and columns sum to 1."""
    negative = np.flatnonzero(~(weights.values >= 0))
    if len(negative):
        first = negative[0]
        i, j = weights.targets[first], weights.sources[first]
        entry = f"P[{i}, {j}] = {weights.values[first]:g}"
        raise InputError(where, entry, "weights must be 0 or more")
    kept = weights.diagonal
    for node in np.flatnonzero(~(kept > 0))[:1]:
        raise InputError(where, f"P[{node}, {node}] = {kept[node]:g}", "a node must keep a part")
    _check_sums(weights, weights.sources, "column", where)


def check_doubly_stochastic(weights: Weights, where: str = "topology.mixing") -> None:
    """Refuse weights unless they are column-stochastic, rows sum to 1, and both ways are alike."""
    check_column_stochastic(weights, where)
    _check_sums(weights, weights.targets, "row", where)
    if not weights.symmetric:
        expected = "the algorithm needs symmetric weights: both directions of a link weigh the same"
        raise InputError(where, "a matrix that is not symmetric", expected)


def _check_sums(weights: Weights, ends: NDArray[np.int64], kind: str, where: str) -> None:
    sums = np.bincount(ends, weights=weights.values, minlength=weights.nodes)
    wrong = np.flatnonzero(~(np.abs(sums - 1) <= _ROUNDING * len(sums)))
    if len(wrong):
        first = int(wrong[0])
        raise InputError(where, f"{kind} {first} sums to {float(sums[first])!r}", "must sum to 1")


def check_strongly_connected(schedule: GraphSchedule) -> None:
    """Refuse a schedule unless the union of its period's edges connects every node to every other.

    The error names the largest parts, within which each reaches each.
    """
    nodes = schedule.nodes
    sources = np.concatenate([graph.sources for graph in schedule.graphs])
    targets = np.concatenate([graph.targets for graph in schedule.graphs])
    # If node 0 reaches every node and every node reaches it, each reaches each.
    if reached(nodes, sources, targets, 0).all() and reached(nodes, targets, sources, 0).all():
        return
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    edges = coo_array((np.ones(len(sources)), (sources, targets)), (nodes, nodes))
    count, part_of = connected_components(edges, connection="strong")
    names = schedule.names or range(nodes)
    parts = []
    for part in np.argsort(-np.bincount(part_of), kind="stable")[:_SHOWN_PARTS]:
        inside = [str(names[node]) for node in np.flatnonzero(part_of == part)[:_SHOWN].tolist()]
        parts.append(", ".join(inside) + ", ..." * int((part_of == part).sum() > _SHOWN))
    parts += [f"{count - _SHOWN_PARTS} more"] * (count > _SHOWN_PARTS)
    over = f"is not strongly connected over its period of {schedule.period}: it has {count} parts"
    raise InputError("topology.graph", schedule.name, f"{over}, {' | '.join(parts)}")


def contraction(mixing: Mixing) -> float | None:
    """Factor by which disagreement shrinks in a step, in the long run; 1 less it is the gap.

    The second largest eigenvalue modulus of the product of one period's matrices, to the power
    1 / period. For column-stochastic matrices it is the rate at which push-sum, numerators and
    weights alike, forgets where it started. 0 for one node, and where a period averages exactly,
    as a server does.

    Up to 512 nodes, all eigenvalues are computed. Of more, they are known where all nodes weigh
    what lies equally far ahead of them equally (rings, k-regular and exponential graphs);
    otherwise the second largest is found by iteration, and None is returned where that does not
    converge.
    """
    nodes = mixing.schedule.nodes
    if nodes == 1 or mixing.kind == "server":
        return 0.0
    second: float | None
    if nodes <= _FEW_NODES:
        product = np.eye(nodes)
        for weights in mixing.weights:
            product = weights.matrix() @ product
        second = float(np.sort(np.abs(np.linalg.eigvals(product)))[-2])
    elif all(map(is_circulant, mixing.weights)):
        # Such matrices have their eigenvectors in common, so eigenvalues are multiplied.
        values = np.ones(nodes, np.complex128)
        for weights in mixing.weights:
            values *= np.fft.fft(weights.block(np.array([0]), np.arange(nodes))[0])
        second = float(np.sort(np.abs(values))[-2])
    else:
        second = _second_by_iteration(mixing)
    if second is None:
        return None
    # A defective zero eigenvalue comes out as rounding noise to a fractional power.
    rounding = 1e-9 if mixing.schedule.period == 1 else 1e-6
    if second < rounding:
        return 0.0
    return min(1.0, math.pow(second, 1 / len(mixing.weights)))


def is_circulant(weights: Weights) -> bool:
    """Whether every row is that of node 0, moved."""
    count = int(weights.counts[0])
    if (weights.counts != count).any():
        return False
    hops = ((weights.sources - weights.targets) % weights.nodes).reshape(-1, count)
    order = np.argsort(hops, axis=1)
    hops = np.take_along_axis(hops, order, axis=1)
    values = np.take_along_axis(weights.values.reshape(-1, count), order, axis=1)
    return bool((hops == hops[0]).all() and np.allclose(values, values[0], rtol=1e-12, atol=0))


def _second_by_iteration(mixing: Mixing) -> float | None:
    """Arnoldi's method, from a fixed start.

    Columns sum to 1, so vectors that sum to 0 are mapped to such vectors, and there all
    eigenvalues but the largest one are found.
    """
    # Imported here, since it takes 0.2 s and only this needs it.
    from scipy.sparse import csr_array
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigs

    nodes = mixing.schedule.nodes
    matrices = [csr_array((w.values, w.sources, w.starts), (nodes, nodes)) for w in mixing.weights]

    def less_the_mean(x: NDArray[np.float64]) -> NDArray[np.float64]:
        mixed = x - x.mean()
        for matrix in matrices:
            mixed = matrix @ mixed
        return np.asarray(mixed - mixed.mean(), np.float64)

    product = LinearOperator((nodes, nodes), matvec=less_the_mean, dtype=np.float64)
    start = np.random.Generator(np.random.PCG64(0)).standard_normal(nodes)
    try:
        values = eigs(
            product, k=1, v0=start, tol=1e-6, maxiter=_ITERATIONS, return_eigenvectors=False
        )
    except ArpackError:
        return None
    return float(np.abs(values).max())
