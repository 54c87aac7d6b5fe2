"""Mixing: with which weight a node takes what it receives.

`P[i, j]` weighs what node i receives from node j. Directed graphs split equally: node j gives the
same share, 1 / (out-degree + 1), to itself and to each out-neighbour, so that columns sum to 1 and
push-sum keeps its mass. Undirected graphs have symmetric, doubly stochastic weights.

A matrix of 10,000 nodes has 100 million entries, of which a ring uses 30,000. So `Weights` keeps
only the entries that are not zero, row by row: what is known as compressed sparse rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InputError, nearest
from tacit.topology.graphs import Graph, GraphSchedule, graph_of

Numbers = NDArray[np.int64]
Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Weights:
    """The entries of a mixing matrix P that are not zero; all arrays are read-only.

    `P[i, j]` weighs what node i receives from node j, so i is a target and j a source.

    Args:
        starts: where the entries of each target begin, and the end of the last, `[nodes + 1]`.
        sources: of each entry, ascending for each target, `[entries]`.
        values: likewise, none of them 0.
    """

    starts: Numbers
    sources: Numbers
    values: Values

    def __post_init__(self) -> None:
        for array in (self.starts, self.sources, self.values):
            array.setflags(write=False)

    @classmethod
    def of_entries(cls, nodes: int, targets: Numbers, sources: Numbers, values: Values) -> Weights:
        """The weights with these entries `[entries]`, in any order; equal places are added up."""
        places, which = np.unique(targets * nodes + sources, return_inverse=True)
        sums = np.bincount(which, weights=values, minlength=len(places))
        kept = sums != 0
        rows, columns = np.divmod(places[kept], max(nodes, 1))
        starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=nodes))])
        return cls(starts, columns, sums[kept])

    @property
    def nodes(self) -> int:
        """How many nodes."""
        return len(self.starts) - 1

    @property
    def counts(self) -> Numbers:
        """Entries of each target, `[nodes]`."""
        return np.diff(self.starts)

    @cached_property
    def targets(self) -> Numbers:
        """Of each entry, `[entries]`."""
        return np.repeat(np.arange(self.nodes), self.counts)

    @cached_property
    def own(self) -> Numbers:
        """The entry by which each node weighs what it has itself, `[nodes]`; -1 without one."""
        entries = np.flatnonzero(self.targets == self.sources)
        numbers = np.full(self.nodes, -1, np.int64)
        numbers[self.sources[entries]] = entries
        return numbers

    @property
    def symmetric(self) -> bool:
        """Whether both directions of every link weigh the same, but for rounding."""
        turned = Weights.of_entries(self.nodes, self.sources, self.targets, self.values)
        same = np.array_equal(self.targets, turned.targets)
        same = same and np.array_equal(self.sources, turned.sources)
        return same and np.allclose(self.values, turned.values, rtol=0, atol=1e-12)

    @property
    def diagonal(self) -> Values:
        """What each node keeps of its own, `[nodes]`."""
        return np.append(self.values, 0.0)[self.own]  # the last, 0, where there is none

    @property
    def out_degrees(self) -> Numbers:
        """Messages that each node sends to others, `[nodes]`."""
        return np.bincount(self.sources[self.targets != self.sources], minlength=self.nodes)

    def matrix(self) -> Values:
        """The whole matrix, `[nodes, nodes]`: for few nodes only."""
        return self.block(np.arange(self.nodes), np.arange(self.nodes))

    def block(self, rows: Numbers, columns: Numbers) -> Values:
        """Some rows and columns of the matrix, each ascending: `[rows, columns]`."""
        block = np.zeros((len(rows), len(columns)))
        if block.size:
            at, targets, sources = self.within(rows, columns)
            block[targets, sources] = self.values[at]
        return block

    def among(self, nodes: Sequence[int]) -> Weights:
        """What stays between some nodes, ascending, which are numbered from 0 then."""
        kept = np.asarray(nodes, np.int64)
        at, targets, sources = self.within(kept, kept)
        return Weights.of_entries(len(kept), targets, sources, self.values[at])

    def without(self, entries: Numbers, keepers: Numbers | None = None) -> Weights:
        """The same without some entries, by their numbers `[n]`.

        `keepers` `[n]` are of each entry the node whose own weight, which is not 0, grows by it;
        None: nobody's.
        """
        values = self.values.copy()
        values[entries] = 0.0
        if keepers is not None:
            own = self.own[keepers]
            assert (own >= 0).all()
            np.add.at(values, own, self.values[entries])
        kept = values != 0
        counts = np.bincount(self.targets[kept], minlength=self.nodes)
        starts = np.concatenate([[0], np.cumsum(counts)])
        return Weights(starts, self.sources[kept], values[kept])

    def apart(self, nodes: Sequence[int]) -> Weights:
        """The same without the edges of some nodes; each sender keeps its part.

        Columns sum to what they did, and so do rows where the weights are symmetric.
        """
        inside = np.zeros(self.nodes, np.bool_)
        inside[list(nodes)] = True
        touched = inside[self.targets] | inside[self.sources]
        lost = np.flatnonzero(touched & (self.targets != self.sources))
        return self.without(lost, self.sources[lost])

    def repeated(self, copies: int) -> Weights:
        """So many graphs beside each other, which do not talk: `[copies * nodes]` nodes."""
        shifts = np.arange(copies)[:, None]
        starts = (self.starts[:-1] + len(self.sources) * shifts).reshape(-1)
        return Weights(
            np.append(starts, copies * len(self.sources)),
            (self.sources + self.nodes * shifts).reshape(-1),
            np.tile(self.values, copies),
        )

    def within(self, rows: Numbers, columns: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Entries of a block `[rows, columns]`: their numbers, and where their ends are in it."""
        row, column = self._places(rows)[self.targets], self._places(columns)[self.sources]
        at = np.flatnonzero((row >= 0) & (column >= 0))
        return at, row[at], column[at]

    def _places(self, nodes: Numbers) -> Numbers:
        places = np.full(self.nodes, -1, np.int64)
        places[nodes] = np.arange(len(nodes))
        return places


DEFAULT = "metropolis"


@dataclass(frozen=True, eq=False)
class Mixing:
    """The mixing weights of a schedule, one for each graph of its period; all are of the `kind`.

    A server's have no entries, since nothing goes from node to node.
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
    """1 / (degree + 1) on edges and diagonal: regular graphs only."""
    degrees = graph.out_degrees.tolist()
    for node, degree in enumerate(degrees):
        if degree != degrees[0]:
            expected = (
                f"needs a regular graph: node 0 has degree {degrees[0]}, node {node} has {degree}; "
                "use 'metropolis'"
            )
            raise InputError("topology.mixing", "uniform", expected)
    return laplacian(graph)


WEIGHTS: Mapping[str, Callable[[Graph], Weights]] = {
    "metropolis": metropolis,
    "laplacian": laplacian,
    "uniform": uniform,
}


def build_mixing(schedule: GraphSchedule, weights: str | None = None) -> Mixing:
    """The mixing weights of a schedule; what is wrong with `topology.mixing` is an InputError.

    Its own, if it has any. Else directed ones split equally; undirected ones take those of a name
    in `WEIGHTS`, by default `metropolis`.
    """
    if weights is not None and weights not in WEIGHTS:
        raise InputError("topology.mixing", weights, nearest(weights, WEIGHTS))
    if weights is not None and schedule.entries is not None:
        expected = f"chooses weights, and {schedule.name} has its own: leave it out"
        raise InputError("topology.mixing", weights, expected)
    if schedule.entries is not None:
        own = tuple(Weights.of_entries(schedule.nodes, *part) for part in schedule.entries)
        both = all(one.symmetric for one in own)
        return Mixing(schedule, own, "doubly-stochastic" if both else "column-stochastic")
    if not schedule.directed:
        chosen = WEIGHTS[weights or DEFAULT]
        return Mixing(schedule, tuple(map(chosen, schedule.graphs)), "doubly-stochastic")
    if weights is not None:
        expected = (
            f"is for undirected graphs; {schedule.name} is directed and splits equally: leave it "
            "out"
        )
        raise InputError("topology.mixing", weights, expected)
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
