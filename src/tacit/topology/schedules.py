"""Schedules: which graph connects the nodes at which step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tacit.errors import InputError, nearest
from tacit.topology.graphs import (
    Graph,
    complete,
    directed_ring,
    erdos_renyi,
    exponential,
    k_regular,
    read_graph_file,
    ring,
    star,
    torus,
)

__all__ = ["GRAPHS", "GraphKind", "GraphRequest", "GraphSchedule", "build_schedule"]


@dataclass(frozen=True)
class GraphSchedule:
    """A sequence of graphs that repeats.

    Args:
        name: as `[topology].graph` gives it.
        graphs: one period; step k uses number k modulo the period.
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
    """What a graph may be built from.

    Args:
        nodes: how many.
        degree: neighbours of a node.
        shape: rows and columns.
        probability: of a link.
        seed: the public seed, for graphs that are drawn.
    """

    nodes: int
    degree: int | None = None
    shape: tuple[int, int] | None = None
    probability: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class GraphKind:
    """A named graph: its builder, and the keys of `[topology]` that it takes."""

    build: Callable[[GraphRequest], tuple[Graph, ...]]
    takes: frozenset[str] = frozenset()


def _k_regular(request: GraphRequest) -> tuple[Graph, ...]:
    if request.degree is None:
        raise InputError("topology.degree", None, "k-regular needs it: an even number, such as 4")
    return (k_regular(request.nodes, request.degree),)


def _torus(request: GraphRequest) -> tuple[Graph, ...]:
    if request.shape is None:
        raise InputError("topology.shape", None, "torus needs it: [rows, columns], such as [4, 4]")
    return (torus(request.nodes, request.shape),)


def _erdos_renyi(request: GraphRequest) -> tuple[Graph, ...]:
    if request.probability is None:
        expected = "erdos-renyi needs it: that of a link, such as 0.3"
        raise InputError("topology.probability", None, expected)
    return (erdos_renyi(request.nodes, request.probability, request.seed),)


GRAPHS: Mapping[str, GraphKind] = {
    "exponential": GraphKind(lambda request: exponential(request.nodes)),
    "ring": GraphKind(lambda request: (ring(request.nodes),)),
    "directed-ring": GraphKind(lambda request: (directed_ring(request.nodes),)),
    "complete": GraphKind(lambda request: (complete(request.nodes),)),
    "k-regular": GraphKind(_k_regular, frozenset({"degree"})),
    "torus": GraphKind(_torus, frozenset({"shape"})),
    "erdos-renyi": GraphKind(_erdos_renyi, frozenset({"probability"})),
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

    Args:
        graph: a name in `GRAPHS`, or `file:` and a path.
        nodes: how many.
        degree: neighbours of a node, for graphs that take it.
        shape: rows and columns, for graphs that take it.
        probability: of a link, for graphs that take it.
        seed: the public seed, for graphs that are drawn.

    Raises:
        InputError: on `topology.graph`, or on the key at fault: `topology.degree`,
            `topology.shape` or `topology.probability`.
    """
    request = GraphRequest(nodes, degree, shape, probability, seed)
    if graph.startswith(_FILE):
        path = Path(graph.removeprefix(_FILE))
        kind = GraphKind(lambda wanted: read_graph_file(path, wanted.nodes))
    elif graph in GRAPHS:
        kind = GRAPHS[graph]
    else:
        raise InputError("topology.graph", graph, nearest(graph, [*GRAPHS, "file:PATH"]))
    for key, value in (("degree", degree), ("shape", shape), ("probability", probability)):
        if value is not None and key not in kind.takes:
            raise InputError(f"topology.{key}", value, f"{graph} takes none: leave it out")
    return GraphSchedule(graph, kind.build(request))
