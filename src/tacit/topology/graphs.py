"""Graphs: who may talk to whom. An edge (source, target) lets source send to target.

A node always keeps a part of its own value; that is a matter of weights (`mixing`), so graphs hold
no self loops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from tacit.errors import InputError

__all__ = [
    "Graph",
    "complete",
    "directed_ring",
    "erdos_renyi",
    "exponential",
    "k_regular",
    "read_graph_file",
    "ring",
    "star",
    "torus",
]

Edge = tuple[int, int]

_REDRAWS = 100
_PURPOSE = 3  # of the public seed; data splits have 1, partitions 2


@dataclass(frozen=True)
class Graph:
    """A directed graph on nodes 0..nodes-1; an undirected one has every edge both ways.

    Args:
        nodes: how many.
        edges: (source, target) pairs without self loops.
    """

    nodes: int
    edges: frozenset[Edge]

    @cached_property
    def symmetric(self) -> bool:
        """Whether every edge goes both ways."""
        return all((target, source) in self.edges for source, target in self.edges)

    @cached_property
    def out_degrees(self) -> tuple[int, ...]:
        """Out-neighbours of each node, itself not counted, `[nodes]`."""
        counts = Counter(source for source, _ in self.edges)
        return tuple(counts[node] for node in range(self.nodes))


def _graph(nodes: int, edges: Iterable[Edge], *, both_ways: bool = False) -> Graph:
    listed = [(source, target) for source, target in edges if source != target]
    if both_ways:
        listed += [(target, source) for source, target in listed]
    return Graph(nodes, frozenset(listed))


def ring(nodes: int) -> Graph:
    """Each node and its two neighbours, both ways."""
    return _graph(nodes, ((i, (i + 1) % nodes) for i in range(nodes)), both_ways=True)


def directed_ring(nodes: int) -> Graph:
    """Each node sends to the next one."""
    return _graph(nodes, ((i, (i + 1) % nodes) for i in range(nodes)))


def complete(nodes: int) -> Graph:
    """Every node and every other."""
    return _graph(nodes, ((i, j) for i in range(nodes) for j in range(nodes)))


def star(nodes: int) -> Graph:
    """Node 0 and every other, both ways."""
    return _graph(nodes, ((0, i) for i in range(1, nodes)), both_ways=True)


def k_regular(nodes: int, degree: int) -> Graph:
    """Node i linked to i +- 1, ..., i +- degree / 2, both ways.

    Raises:
        InputError: on `topology.degree`, unless it is even, positive and below `nodes`; on
            `topology.graph` with fewer than 3 nodes.
    """
    largest = 2 * ((nodes - 1) // 2)
    if largest < 2:
        raise InputError("topology.graph", "k-regular", f"needs 3 nodes or more, not {nodes}")
    if degree % 2 or not 0 < degree <= largest:
        raise InputError(
            "topology.degree",
            degree,
            f"must be even and at most {largest}: a node is linked to as many on either side",
        )
    reach = range(1, degree // 2 + 1)
    pairs = ((i, (i + hop) % nodes) for i in range(nodes) for hop in reach)
    return _graph(nodes, pairs, both_ways=True)


def torus(nodes: int, shape: tuple[int, int]) -> Graph:
    """A grid whose sides meet: node r * columns + c linked to those above, below, left and right.

    Where a side is 2 long, its two ways round lead to the same node, which is one edge.

    Args:
        nodes: how many.
        shape: rows and columns.

    Raises:
        InputError: on `topology.shape`, unless both are 2 or more and their product is `nodes`;
            on `topology.graph` where no shape would do.
    """
    rows, columns = shape
    if rows * columns != nodes or min(shape) < 2:
        fitting = [[side, nodes // side] for side in range(2, nodes) if nodes % side == 0]
        if not fitting:
            expected = f"needs rows x columns nodes, both 2 or more; {nodes} is no such product"
            raise InputError("topology.graph", "torus", expected)
        squarest = min(fitting, key=lambda sides: abs(sides[0] - sides[1]))
        expected = f"must be rows and columns of 2 or more with product {nodes}, as {squarest}"
        raise InputError("topology.shape", list(shape), expected)
    steps = ((1, 0), (0, 1))
    pairs = (
        (r * columns + c, (r + down) % rows * columns + (c + right) % columns)
        for r in range(rows)
        for c in range(columns)
        for down, right in steps
    )
    return _graph(nodes, pairs, both_ways=True)


def erdos_renyi(nodes: int, probability: float, seed: int) -> Graph:
    """G(n, p): each pair of nodes linked, both ways, with a probability; redrawn until connected.

    So it is distributed as G(n, p) given that it is connected (Erdos and Renyi 1959, Gilbert
    1959). Drawn from the public seed: nothing secret may depend on it.

    Args:
        nodes: how many.
        probability: of a link, in (0, 1].
        seed: the public seed.

    Raises:
        InputError: on `topology.probability`, if it is outside (0, 1] or if none of 100 draws
            was connected.
    """
    import networkx as nx  # here, since it is slow and only this graph needs it

    where = "topology.probability"
    if not 0 < probability <= 1:
        raise InputError(where, probability, "must lie above 0, and be at most 1")
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, _PURPOSE])))
    sources, targets = np.triu_indices(nodes, k=1)
    for _ in range(_REDRAWS):
        linked = generator.random(len(sources)) < probability
        pairs = list(zip(sources[linked].tolist(), targets[linked].tolist(), strict=True))
        drawn: nx.Graph[int] = nx.Graph(pairs)
        drawn.add_nodes_from(range(nodes))
        if nx.is_connected(drawn):
            return _graph(nodes, pairs, both_ways=True)
    threshold = np.log(nodes) / nodes  # where G(n, p) becomes connected (Erdos and Renyi 1960)
    raise InputError(
        where,
        probability,
        f"none of {_REDRAWS} graphs drawn for {nodes} nodes is connected: try "
        f"{min(1.0, 2 * threshold):.2g} or more (few are below log(n) / n = {threshold:.2g})",
    )


def exponential(nodes: int) -> tuple[Graph, ...]:
    """One period of the one-peer time-varying directed exponential graph.

    At step k every node sends to the one 2^(k mod T) hops ahead, T = floor(log2(nodes - 1)) + 1
    (PrivSGP-VR, section 5). One node alone has one graph without edges.
    """
    hops = [1 << power for power in range((nodes - 1).bit_length())] or [0]
    return tuple(_graph(nodes, ((i, (i + hop) % nodes) for i in range(nodes))) for hop in hops)


def read_graph_file(path: Path, nodes: int) -> tuple[Graph, ...]:
    """Read a graph, or a sequence of graphs, from a text file.

    One `source target` pair a line, nodes from 0; `#` starts a comment; one or more blank lines
    separate the graphs of a sequence. Duplicates and self loops are harmless.

    Raises:
        InputError: on `topology.graph`, naming file and line.
    """
    where = "topology.graph"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(where, str(path), f"cannot be read ({error.strerror})") from None
    except ValueError:  # bytes that are not text, or a path that is none
        raise InputError(where, str(path), "is not a text file") from None
    blocks: list[list[Edge]] = [[]]
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            if blocks[-1]:
                blocks.append([])
            continue
        content = line.split("#", 1)[0].split()
        if content:
            blocks[-1].append(_edge(content, f"{path.name}, line {number}", nodes))
    found = tuple(_graph(nodes, block) for block in blocks if block)
    if not found:
        raise InputError(where, str(path), "holds no edge: write one 'source target' pair a line")
    return found


def _edge(content: list[str], place: str, nodes: int) -> Edge:
    where, line = "topology.graph", " ".join(content)
    short = all(word.isascii() and word.isdigit() and len(word) < 10 for word in content)
    if len(content) != 2 or not short:
        raise InputError(where, line, f"{place} must be two node numbers: 'source target'")
    source, target = int(content[0]), int(content[1])
    if max(source, target) >= nodes:
        raise InputError(
            where, line, f"{place}: node {max(source, target)} is not one of 0..{nodes - 1}"
        )
    return source, target
