"""Graphs, who may talk to whom, and schedules, which graph connects the nodes at which step.

An edge (source, target) lets source send to target. A node always keeps a part of its own value;
that is a matter of weights (`mixing`), so graphs hold no self loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InputError, nearest, optional

Edge = tuple[int, int]
Numbers = NDArray[np.int64]
Entries = tuple[Numbers, Numbers, NDArray[np.float64]]  # of P: targets, sources, values

_REDRAWS = 100
_PURPOSE = 3  # of the public seed; data splits have 1, partitions 2
# An edge takes some 100 bytes until a run has begun.
MOST_EDGES = 10_000_000
_MOST_PAIRS = 1_000_000_000  # that a drawn graph decides on, 200 million a second


@dataclass(frozen=True, eq=False)
class Graph:
    """A directed graph on nodes 0..nodes-1; an undirected one has every edge both ways.

    `sources` and `targets` are those of each edge, `[edges]`. Edges are ordered by source and then
    target, none is there twice, and none leads from a node to itself: `graph_of` sees to that.
    """

    nodes: int
    sources: Numbers
    targets: Numbers

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Graph)
            and self.nodes == other.nodes
            and np.array_equal(self.sources, other.sources)
            and np.array_equal(self.targets, other.targets)
        )

    def __hash__(self) -> int:
        return hash((self.nodes, self.sources.tobytes(), self.targets.tobytes()))

    @cached_property
    def edges(self) -> frozenset[Edge]:
        """The (source, target) pairs: for few edges, since a pair takes ten times its numbers."""
        return frozenset(zip(self.sources.tolist(), self.targets.tolist(), strict=True))

    @cached_property
    def symmetric(self) -> bool:
        """Whether every edge goes both ways."""
        there = self.sources * self.nodes + self.targets
        back = self.targets * self.nodes + self.sources
        return np.array_equal(there, np.sort(back))

    @cached_property
    def out_degrees(self) -> Numbers:
        """Out-neighbours of each node, itself not counted, `[nodes]`."""
        return np.bincount(self.sources, minlength=self.nodes)


def graph_of(nodes: int, edges: Iterable[Edge] | Numbers, *, both_ways: bool = False) -> Graph:
    """The graph of some edges, in any order; duplicates and self loops are left out.

    Edges are (source, target) pairs, an array of them `[edges, 2]`; with `both_ways` each of them
    also leads back.
    """
    listed = edges if isinstance(edges, np.ndarray) else np.array(list(edges), np.int64)
    sources, targets = listed.reshape(-1, 2).T
    if both_ways:
        sources, targets = np.append(sources, targets), np.append(targets, sources)
    proper = sources != targets
    codes = np.unique(sources[proper] * nodes + targets[proper])
    return Graph(nodes, *np.divmod(codes, max(nodes, 1)))


def reached(nodes: int, sources: Numbers, targets: Numbers, start: int) -> NDArray[np.bool_]:
    """Nodes that edges `[edges]` lead to from `start`, itself included, `[nodes]`."""
    order = np.argsort(sources, kind="stable")
    ends = targets[order]
    starts = np.searchsorted(sources[order], np.arange(nodes + 1))
    visited = np.zeros(nodes, dtype=np.bool_)
    visited[start] = True
    new = np.array([start])
    while len(new):
        first, counts = starts[new], starts[new + 1] - starts[new]
        # The edges of all new nodes: from each one's first on, as many as it has.
        skipped = np.repeat(first - np.cumsum(counts) + counts, counts)
        near = ends[skipped + np.arange(len(skipped))]
        new = np.unique(near[~visited[near]])
        visited[new] = True
    return visited


def _hops(nodes: int, hops: Iterable[int], *, both_ways: bool = False) -> Graph:
    """Every node linked to those some hops ahead."""
    sources = np.arange(nodes)
    pairs = [np.stack([sources, (sources + hop) % nodes], axis=1) for hop in hops]
    return graph_of(nodes, np.concatenate(pairs), both_ways=both_ways)


def check_size(name: str, nodes: int, edges: float) -> None:
    """Refuse a graph of more than `MOST_EDGES` edges."""
    if edges > MOST_EDGES:
        expected = (
            f"of {nodes} nodes has {edges:.3g} edges, and {MOST_EDGES} are the most: choose a "
            "sparse graph (exponential, k-regular, torus), or a method with a server, which "
            "averages all nodes without edges between them"
        )
        raise InputError("topology.graph", name, expected)


def ring(nodes: int) -> Graph:
    """Each node and its two neighbours, both ways."""
    return _hops(nodes, [1], both_ways=True)


def directed_ring(nodes: int) -> Graph:
    """Each node sends to the next one."""
    return _hops(nodes, [1])


def complete(nodes: int) -> Graph:
    """Every node and every other: 10 million edges at most."""
    check_size("complete", nodes, nodes * (nodes - 1))
    return graph_of(nodes, np.indices((nodes, nodes)).reshape(2, -1).T)


def star(nodes: int) -> Graph:
    """Node 0 and every other, both ways."""
    others = np.arange(1, nodes)
    return graph_of(nodes, np.stack([np.zeros_like(others), others], axis=1), both_ways=True)


def k_regular(nodes: int, degree: int) -> Graph:
    """Node i linked to i +- 1, ..., i +- degree / 2, both ways.

    Raises:
        InputError: on `topology.degree`, unless it is even, positive and below `nodes`; on
            `topology.graph` with fewer than 3 nodes, or with more than 10 million edges.
    """
    largest = 2 * ((nodes - 1) // 2)
    if largest < 2:
        raise InputError("topology.graph", "k-regular", f"needs 3 nodes or more, not {nodes}")
    if degree % 2 or not 0 < degree <= largest:
        expected = f"must be even and at most {largest}: a node is linked to as many on either side"
        raise InputError("topology.degree", degree, expected)
    check_size("k-regular", nodes, nodes * degree)
    return _hops(nodes, range(1, degree // 2 + 1), both_ways=True)


def torus(nodes: int, shape: tuple[int, int]) -> Graph:
    """A grid whose sides meet: node r * columns + c linked to those above, below, left and right.

    `shape` is rows and columns. Where a side is 2 long, its two ways round lead to the same node,
    which is one edge.

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
    grid = np.arange(nodes).reshape(rows, columns)
    pairs = [np.stack([grid, np.roll(grid, -1, axis)], axis=-1).reshape(-1, 2) for axis in (0, 1)]
    return graph_of(nodes, np.concatenate(pairs), both_ways=True)


def erdos_renyi(nodes: int, probability: float, seed: int) -> Graph:
    """G(n, p): each pair of nodes linked, both ways, with a probability; redrawn until connected.

    So it is distributed as G(n, p) given that it is connected (Erdos and Renyi 1959, Gilbert
    1959). Drawn from the public seed: nothing secret may depend on it.

    Raises:
        InputError: on `topology.probability`, if it is outside (0, 1] or if none of 100 draws
            was connected; on `topology.graph` with more than 10 million edges to be expected, or
            10^9 pairs of nodes.
    """
    where = "topology.probability"
    if not 0 < probability <= 1:
        raise InputError(where, probability, "must lie above 0, and be at most 1")
    pairs = nodes * (nodes - 1) // 2
    if pairs > _MOST_PAIRS:
        expected = f"has {pairs:.3g} pairs of nodes to draw for, and at most {_MOST_PAIRS:g} are"
        raise InputError("topology.graph", "erdos-renyi", f"{expected} drawn: take k-regular")
    check_size("erdos-renyi", nodes, 2 * pairs * probability)
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, _PURPOSE])))
    for _ in range(_REDRAWS):
        # A row at a time: the numbers of all pairs at once would take gigabytes.
        rows = [
            node + 1 + np.flatnonzero(generator.random(nodes - 1 - node) < probability)
            for node in range(nodes)
        ]
        sources = np.repeat(np.arange(nodes), [len(row) for row in rows])
        drawn = graph_of(nodes, np.stack([sources, np.concatenate(rows)], axis=1), both_ways=True)
        if reached(nodes, drawn.sources, drawn.targets, 0).all():
            return drawn
    threshold = np.log(nodes) / nodes  # where G(n, p) becomes connected (Erdos and Renyi 1960)
    expected = (
        f"none of {_REDRAWS} graphs drawn for {nodes} nodes is connected: try "
        f"{min(1.0, 2 * threshold):.2g} or more (few are below log(n) / n = {threshold:.2g})"
    )
    raise InputError(where, probability, expected)


def hypercube(nodes: int) -> Graph:
    """Each node and those whose number differs in one binary digit, both ways."""
    if nodes & (nodes - 1):
        expected = f"needs a power of two as the number of nodes, not {nodes}"
        raise InputError("topology.graph", "hypercube", expected)
    digits, own = np.meshgrid(1 << np.arange(nodes.bit_length() - 1), np.arange(nodes))
    return graph_of(nodes, np.stack([own, own ^ digits], axis=-1))


def drawn_by_networkx(request: GraphRequest, kind: str) -> tuple[Graph, ...]:
    """A small world (Watts and Strogatz 1998), or Barabasi and Albert's graph (1999), connected."""
    nodes, degree, small = request.nodes, request.degree or 0, kind == "small-world"
    if not 0 < degree < nodes or (small and degree % 2):
        expected = f"must be {'an even number ' if small else ''}from 1 to {nodes - 1}"
        raise InputError("topology.degree", degree, expected)
    check_size(kind, nodes, 2 * nodes * degree)
    networkx = optional("networkx")
    seed = int(np.random.SeedSequence([request.seed, _PURPOSE]).generate_state(1)[0])
    draw = networkx.connected_watts_strogatz_graph if small else networkx.barabasi_albert_graph
    try:
        drawn = draw(nodes, degree, *((request.probability, _REDRAWS) if small else ()), seed)
    except networkx.NetworkXError as error:
        raise InputError("topology.graph", kind, f"cannot be drawn: {error}") from None
    return (graph_of(nodes, list(drawn.edges), both_ways=True),)


def exponential(nodes: int) -> tuple[Graph, ...]:
    """One period of the one-peer time-varying directed exponential graph.

    At step k every node sends to the one 2^(k mod T) hops ahead, T = floor(log2(nodes - 1)) + 1
    (Zhu, Huang, Wang and Xu, IJCAI 2024, section 5). One node alone has one graph without edges.
    """
    hops = [1 << power for power in range((nodes - 1).bit_length())] or [0]
    return tuple(_hops(nodes, [hop]) for hop in hops)


@dataclass(frozen=True)
class GraphSchedule:
    """A sequence of graphs that repeats, with the name that `[topology].graph` gives it.

    `graphs` is one period: step k uses number k modulo the period. `entries` are those of their own
    mixing matrices, if they have any; `names` is what node 0, 1, ... is called in a graph of one's
    own, where it is neither by number from 0 nor by the experiment's name.
    """

    name: str
    graphs: tuple[Graph, ...]
    entries: tuple[Entries, ...] | None = None
    names: tuple[str, ...] | None = None

    @property
    def nodes(self) -> int:
        """How many nodes."""
        return self.graphs[0].nodes

    @property
    def period(self) -> int:
        """Steps until the sequence repeats."""
        return len(self.graphs)

    @cached_property
    def directed(self) -> bool:
        """Whether any of the graphs has an edge that goes one way only."""
        return not all(graph.symmetric for graph in self.graphs)

    def at(self, k: int) -> Graph:
        """The graph of step k."""
        return self.graphs[k % self.period]


@dataclass(frozen=True)
class GraphRequest:
    """What a graph may be built from; `seed` is the public one, for graphs that are drawn."""

    nodes: int
    degree: int | None = None
    shape: tuple[int, int] | None = None
    probability: float | None = None
    seed: int = 0
    undirected: bool | None = None


KEYS = ("degree", "shape", "probability", "undirected")  # of `[topology]`, that some graphs take


@dataclass(frozen=True)
class GraphKind:
    """A named graph: its builder, and the keys of `[topology]` that it needs, each as in words.

    Of more than two nodes it may be `directed`, and `periodic`: another one from step to step.
    """

    build: Callable[[GraphRequest], tuple[Graph, ...]]
    takes: Mapping[str, str] = field(default_factory=dict)
    directed: bool = False
    periodic: bool = False


GRAPHS: Mapping[str, GraphKind] = {
    "exponential": GraphKind(
        lambda request: exponential(request.nodes), directed=True, periodic=True
    ),
    "ring": GraphKind(lambda request: (ring(request.nodes),)),
    "directed-ring": GraphKind(lambda request: (directed_ring(request.nodes),), directed=True),
    "complete": GraphKind(lambda request: (complete(request.nodes),)),
    "k-regular": GraphKind(
        lambda r: (k_regular(r.nodes, r.degree or 0),), {"degree": "an even number, such as 4"}
    ),
    "torus": GraphKind(
        lambda r: (torus(r.nodes, r.shape or (0, 0)),), {"shape": "[rows, columns], such as [4, 4]"}
    ),
    "erdos-renyi": GraphKind(
        lambda r: (erdos_renyi(r.nodes, r.probability or 0.0, r.seed),),
        {"probability": "that of a link, such as 0.3"},
    ),
    "star": GraphKind(lambda request: (star(request.nodes),)),
    "hypercube": GraphKind(lambda request: (hypercube(request.nodes),)),
    "small-world": GraphKind(
        lambda request: drawn_by_networkx(request, "small-world"),
        {"degree": "an even number, such as 4", "probability": "that of a link, such as 0.3"},
    ),
    "barabasi-albert": GraphKind(
        lambda request: drawn_by_networkx(request, "barabasi-albert"),
        {"degree": "the links that each node brings, such as 2"},
    ),
}


def graph_kind(graph: str, keys: Mapping[str, Any]) -> GraphKind | None:
    """The row of a named graph, whose keys of `[topology]` are there; None: it is one's own.

    It is an InputError as far as no graph needs to be made to see it.
    """
    if graph not in GRAPHS and ":" not in graph:
        known = [*GRAPHS, "file:PATH", "module:function"]
        raise InputError("topology.graph", graph, nearest(graph, known))
    kind = GRAPHS.get(graph)
    takes = {"undirected": ""} if kind is None else kind.takes
    for key, value in keys.items():
        if value is not None and key not in takes:
            raise InputError(f"topology.{key}", value, f"{graph} takes none: leave it out")
        if value is None and takes.get(key):
            raise InputError(f"topology.{key}", None, f"{graph} needs it: {takes[key]}")
    return kind
