"""Graphs, who may talk to whom, and schedules, which graph connects the nodes at which step.

An edge (source, target) lets source send to target. A node always keeps a part of its own value;
that is a matter of weights (`mixing`), so graphs hold no self loops.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.base.plain_files import open_plain
from tacit.errors import InputError, nearest

Edge = tuple[int, int]
Numbers = NDArray[np.int64]

_REDRAWS = 100
_PURPOSE = 3  # of the public seed; data splits have 1, partitions 2
# An edge takes some 100 bytes until a run has begun.
_MOST_EDGES = 10_000_000
_MOST_GRAPHS = 10_000  # of a file, which take some 3 ms each until a run has begun
_MOST_BYTES = 2**28  # of a file
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


def _check_size(name: str, nodes: int, edges: float) -> None:
    if edges > _MOST_EDGES:
        raise InputError(
            "topology.graph",
            name,
            f"of {nodes} nodes has {edges:.3g} edges, and {_MOST_EDGES} are the most: choose a "
            "sparse graph (exponential, k-regular, torus), or a method with a server, which "
            "averages all nodes without edges between them",
        )


def ring(nodes: int) -> Graph:
    """Each node and its two neighbours, both ways."""
    return _hops(nodes, [1], both_ways=True)


def directed_ring(nodes: int) -> Graph:
    """Each node sends to the next one."""
    return _hops(nodes, [1])


def complete(nodes: int) -> Graph:
    """Every node and every other.

    Raises:
        InputError: on `topology.graph`, if these are more than 10 million edges.
    """
    _check_size("complete", nodes, nodes * (nodes - 1))
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
        raise InputError(
            "topology.degree",
            degree,
            f"must be even and at most {largest}: a node is linked to as many on either side",
        )
    _check_size("k-regular", nodes, nodes * degree)
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
    _check_size("erdos-renyi", nodes, 2 * pairs * probability)
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
    raise InputError(
        where,
        probability,
        f"none of {_REDRAWS} graphs drawn for {nodes} nodes is connected: try "
        f"{min(1.0, 2 * threshold):.2g} or more (few are below log(n) / n = {threshold:.2g})",
    )


def exponential(nodes: int) -> tuple[Graph, ...]:
    """One period of the one-peer time-varying directed exponential graph.

    At step k every node sends to the one 2^(k mod T) hops ahead, T = floor(log2(nodes - 1)) + 1
    (Zhu, Huang, Wang and Xu, IJCAI 2024, section 5). One node alone has one graph without edges.
    """
    hops = [1 << power for power in range((nodes - 1).bit_length())] or [0]
    return tuple(_hops(nodes, [hop]) for hop in hops)


def read_graph_file(path: Path, nodes: int) -> tuple[Graph, ...]:
    """Read a graph, or a sequence of graphs, from a text file.

    One `source target` pair a line, nodes from 0; `#` starts a comment; one or more blank lines
    separate the graphs of a sequence. Duplicates and self loops are harmless.

    Raises:
        InputError: on `topology.graph`, naming file and line; also for more than 256 MiB, 10,000
            graphs, or 10 million edges in all.
    """
    where = "topology.graph"
    try:
        with open_plain(path, _MOST_BYTES) as file:
            lines = io.TextIOWrapper(file, encoding="utf-8-sig")
            graphs = tuple(graph_of(nodes, block) for block in _blocks(lines, path, nodes))
    except OSError as error:
        raise InputError(where, str(path), f"cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(where, str(path), "is not a text file") from None
    if not graphs:
        raise InputError(where, str(path), "holds no edge: write one 'source target' pair a line")
    return graphs


def _blocks(lines: Iterable[str], path: Path, nodes: int) -> Iterator[list[Edge]]:
    """The edges of each graph of a file."""
    block: list[Edge] = []
    graphs, edges = 0, 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            if block:
                yield block
                block = []
            continue
        content = line.split("#", 1)[0].split(None, 2)  # a third word is wrong, whatever follows
        if content:
            graphs, edges = graphs + (not block), edges + 1
            if graphs > _MOST_GRAPHS or edges > _MOST_EDGES:
                most = f"{_MOST_GRAPHS:,} graphs and {_MOST_EDGES:,} edges are the most of a file"
                raise InputError("topology.graph", str(path), f"line {number}: {most}")
            block.append(_edge(content, f"{path.name}, line {number}", nodes))
    if block:
        yield block


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


@dataclass(frozen=True)
class GraphSchedule:
    """A sequence of graphs that repeats, with the name that `[topology].graph` gives it.

    `graphs` is one period: step k uses number k modulo the period.
    """

    name: str
    graphs: tuple[Graph, ...]

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
    """What a graph may be built from; arguments as those of `build_schedule`."""

    nodes: int
    degree: int | None = None
    shape: tuple[int, int] | None = None
    probability: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class GraphKind:
    """A named graph: its builder, and the keys of `[topology]` that it needs, each as in words.

    Of more than two nodes it may be `directed`, and `periodic`: another one from step to step.
    """

    build: Callable[[GraphRequest], tuple[Graph, ...]]
    takes: Mapping[str, str] = field(default_factory=dict)
    directed: bool = False
    periodic: bool = False

    def is_directed(self, nodes: int) -> bool:
        """Whether some link of so many nodes goes one way only."""
        return self.directed and nodes > 2

    def changes_with(self, nodes: int) -> bool:
        """Whether so many nodes have other neighbours at another step."""
        return self.periodic and nodes > 2


def _k_regular(request: GraphRequest) -> tuple[Graph, ...]:
    assert request.degree is not None
    return (k_regular(request.nodes, request.degree),)


def _torus(request: GraphRequest) -> tuple[Graph, ...]:
    assert request.shape is not None
    return (torus(request.nodes, request.shape),)


def _erdos_renyi(request: GraphRequest) -> tuple[Graph, ...]:
    assert request.probability is not None
    return (erdos_renyi(request.nodes, request.probability, request.seed),)


GRAPHS: Mapping[str, GraphKind] = {
    "exponential": GraphKind(
        lambda request: exponential(request.nodes), directed=True, periodic=True
    ),
    "ring": GraphKind(lambda request: (ring(request.nodes),)),
    "directed-ring": GraphKind(lambda request: (directed_ring(request.nodes),), directed=True),
    "complete": GraphKind(lambda request: (complete(request.nodes),)),
    "k-regular": GraphKind(_k_regular, {"degree": "an even number, such as 4"}),
    "torus": GraphKind(_torus, {"shape": "[rows, columns], such as [4, 4]"}),
    "erdos-renyi": GraphKind(_erdos_renyi, {"probability": "that of a link, such as 0.3"}),
    "star": GraphKind(lambda request: (star(request.nodes),)),
}
_FILE = "file:"


def build_schedule(
    graph: str,
    nodes: int,
    *,
    degree: int | None = None,
    shape: tuple[int, int] | None = None,
    probability: float | None = None,
    seed: int = 0,
) -> GraphSchedule:
    """The schedule of a named graph, or of `file:PATH`.

    The names are those of `GRAPHS`, which also says what each graph takes of `degree` (neighbours
    of a node), `shape` (rows and columns) and `probability` (of a link). `seed` is the public seed,
    for graphs that are drawn.

    Raises:
        InputError: on `topology.graph`, or on the key at fault: `topology.degree`,
            `topology.shape` or `topology.probability`.
    """
    request = GraphRequest(nodes, degree, shape, probability, seed)
    kind = graph_kind(graph, {"degree": degree, "shape": shape, "probability": probability})
    if kind is None:
        path = Path(graph.removeprefix(_FILE))
        return GraphSchedule(graph, read_graph_file(path, nodes))
    return GraphSchedule(graph, kind.build(request))


def graph_kind(graph: str, keys: Mapping[str, Any]) -> GraphKind | None:
    """The row of a named graph, whose keys of `[topology]` are there; None: it is in a file.

    Raises:
        InputError: as `build_schedule`, as far as no graph needs to be made to see it.
    """
    if graph not in GRAPHS and not graph.startswith(_FILE):
        raise InputError("topology.graph", graph, nearest(graph, [*GRAPHS, "file:PATH"]))
    kind = GRAPHS.get(graph)
    takes = {} if kind is None else kind.takes
    for key, value in keys.items():
        if value is not None and key not in takes:
            raise InputError(f"topology.{key}", value, f"{graph} takes none: leave it out")
        if value is None and key in takes:
            raise InputError(f"topology.{key}", None, f"{graph} needs it: {takes[key]}")
    return kind
