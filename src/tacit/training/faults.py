"""Simulated faults: which messages are lost, who is away when, and who is slow.

Everything is drawn from the public seed by a generator that is positioned by the gossip round, so
that any process can ask for any round in any order and all get the same answer. A step has
`[topology].rounds` of them, 1 if not set, and each round of a step loses messages of its own: they
are sent one after the other. Who is away is away for a whole step. Faults are therefore public,
like who takes part: a node that is away releases nothing in that step and is charged nothing for
it; a message that is lost was released, and is charged.

**What a lost message does to the weights.** What node j does not deliver to node i, it keeps:

    P[j, j] += P[i, j],  P[i, j] = 0.

Columns still sum to 1, so push-sum keeps its mass and its de-biased parameters still agree on the
average. A link of an undirected graph is lost both ways together, so that both of its ends keep
their own part and the weights stay symmetric and doubly stochastic. This models a link that its
sender knows to be down, or a loss that it learns of before it goes on (an acknowledgement that does
not come). A loss that the sender never learns of would take mass along: every parameter would then
tend to the average of what is left, weighed by which messages were lost. That is what
`[faults].tolerate` does to a bad message of another process: the receiver drops it, its mass is
gone, and the run says how much.

A site that the run goes on without is both: until all others know of it, what is sent to it is
lost with its mass, and from the step that is agreed on, its edges are lost as above. What others
weigh their rows with is public and depends on who answers, not on records; each node's noise is
its own, so its account stands (`tacit.training.processes.communication` says where it would not).

With a server, a client's message is lost on its way to it; the server averages those that came,
or goes on with the client's last one. What the server sends back is never lost.

**What is refused.** An algorithm in which the two ends of a message both count on it: public copies
of neighbours, and shifts whose mean the server keeps, would be apart for ever; dual variables of
neighbours would no longer sum to zero if one end alone dropped a message. And downtime where
gradients are differences to a table or an anchor, which the accounting dates by every step of every
node, or where momentum or a dual variable would carry a node on while it is away.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tacit.algorithms import Activity
from tacit.config import Config, Faults
from tacit.errors import InputError
from tacit.topology.mixing import Mixing, Weights

Matrix = NDArray[np.float64]
Flags = NDArray[np.bool_]
Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LossyEdges:
    """The edges of one graph that may lose a message, in the order in which they are drawn for.

    Args:
        targets, sources: of each, `[edges]`: `P[target, source]` weighs what is lost.
        entries: their numbers among the graph's weights, `[edges]`.
        draws: number of the draw that decides, `[edges]`: the two ways of an undirected link share
            one.
        chances: of a loss, `[edges]`.
    """

    targets: Numbers
    sources: Numbers
    entries: Numbers
    draws: Numbers
    chances: Matrix


@dataclass(frozen=True, eq=False)
class FaultPlan:
    """The faults of a run, step by step: public, and the same in every process.

    Args:
        key: of the draws, 128 bits of the public seed.
        edges: of each graph of the period; one with a server has none.
        drop: chance that a client's message to its server is lost; 0 without a server.
        down: (node, first step, step after the last) in which a node is away.
        seconds: that each node takes longer for a step, `[nodes]`.
        note: what is simulated, one line.
    """

    nodes: int
    key: int
    edges: tuple[LossyEdges, ...]
    drop: float
    down: tuple[tuple[int, int, int], ...]
    seconds: Matrix
    note: str
    rounds: int = 1

    @property
    def lossy(self) -> bool:
        """Whether any message between nodes may be lost."""
        return bool(self.down) or any(edges.chances.any() for edges in self.edges)

    def up(self, k: int) -> Flags | None:
        """Who is not away at step k, `[nodes]`; None: nobody ever is."""
        if not self.down:
            return None
        present = np.ones(self.nodes, np.bool_)
        present[[node for node, first, until in self.down if first <= k < until]] = False
        return present

    def present(self, steps: int) -> Flags:
        """`up` of the first so many steps, `[steps, nodes]`."""
        present = np.ones((steps, self.nodes), np.bool_)
        for node, first, until in self.down:
            present[first:until, node] = False
        return present

    def lost_edges(self, t: int) -> tuple[Numbers, Numbers]:
        """Targets and sources `[lost]` of the messages that are lost in round t of the run."""
        edges, lost = self._lost(t)
        return edges.targets[lost], edges.sources[lost]

    def _lost(self, t: int) -> tuple[LossyEdges, Flags]:
        """The edges of round t, and which of them lose their message, `[edges]`."""
        edges = self.edges[t % len(self.edges)]
        lost = self._draws(t, int(edges.draws.max(initial=-1)) + 1)[edges.draws] < edges.chances
        up = self.up(t // self.rounds)
        if up is not None:
            lost |= ~(up[edges.targets] & up[edges.sources])
        return edges, lost

    def weights(self, t: int, weights: Weights) -> Weights:
        """The mixing weights of round t of the run: what a node does not deliver, it keeps."""
        edges, lost = self._lost(t)
        if not lost.any():
            return weights
        return weights.without(edges.entries[lost], edges.sources[lost])

    def arrives(self, k: int) -> Flags | None:
        """Whose message of step k reaches the server, if sent, `[nodes]`; None: everybody's."""
        return None if self.drop == 0 else self._draws(k, self.nodes) >= self.drop

    def delay(self, k: int, nodes: Iterable[int]) -> float:
        """Seconds that the slowest of these nodes takes longer for step k, if it is not away."""
        up = self.up(k)
        own = np.fromiter(nodes, np.int64)
        here = own if up is None else own[up[own]]
        return float(self.seconds[here].max(initial=0.0))

    def _draws(self, t: int, count: int) -> Matrix:
        """Uniform numbers of round t, in [0, 1), of 53 bits; each has its own 2^64 blocks."""
        source = np.random.Philox(key=self.key, counter=t << 64)
        return np.asarray((source.random_raw(count) >> np.uint64(11)) * 2.0**-53, np.float64)


def fault_plan(config: Config, mixing: Mixing, rounds: int = 1) -> FaultPlan | None:
    """The faults that an experiment asks for, of `rounds` a step; None where nothing is simulated.

    Raises:
        InputError: on `drop_edges` that are no edges of the graph.
    """
    faults = config.faults
    if not faults.simulated and not any(seconds for _, seconds in faults.slow):
        return None
    server = mixing.kind == "server"
    if server and faults.drop_edges:
        raise InputError(
            "faults.drop_edges",
            faults.drop_edges[0],
            f"{config.algorithm.name} has a server, and clients no edges between them: give "
            "faults.drop, the chance that a client's message is lost",
        )
    chances = _chances(faults, mixing)
    seconds = np.zeros(config.nodes.count)
    for node, longer in faults.slow:
        seconds[node] = longer
    digest = hashlib.blake2b(f"tacit faults {config.train.seed}".encode(), digest_size=16)
    return FaultPlan(
        nodes=config.nodes.count,
        key=int.from_bytes(digest.digest(), "little"),
        edges=tuple(
            _lossy_edges(weights, mixing, faults.drop, chances) for weights in mixing.weights
        ),
        drop=faults.drop if server else 0.0,
        down=faults.down,
        seconds=seconds,
        note=_note(faults),
        rounds=rounds,
    )


def effective(mixing: Mixing, faults: FaultPlan | None) -> Callable[[int], Weights]:
    """The mixing weights of a round of the run as they are applied, for an exchange."""
    if faults is None or not faults.lossy:
        return mixing.at
    return lambda t: faults.weights(t, mixing.at(t))


def taking_part(activity: Activity | None, faults: FaultPlan | None, steps: int) -> Activity | None:
    """Who is active when, less who is away; None: everybody always.

    A pair whose link is lost, or of whom one is away, does not average: each is paired with itself.
    Its nodes still take their own steps.
    """
    if faults is None or not (faults.down or activity):
        return activity
    present = faults.present(steps)
    if activity is None:
        return Activity(present)
    active = activity.active & present
    if activity.partner is None:
        return replace(activity, active=active)
    partner = _apart(activity.partner, faults)
    notes = activity.notes
    if not np.array_equal(partner, activity.partner):
        notes = {name: f"{value}, before faults" for name, value in notes.items()}
    return Activity(active, partner, notes)


def _apart(partner: Numbers, faults: FaultPlan) -> Numbers:
    """Partners `[steps, nodes]` without the pairs whose link is lost in a step's first round."""
    partners = partner.copy()
    for k, row in enumerate(partners):
        targets, sources = faults.lost_edges(k * faults.rounds)
        alone = targets[row[targets] == sources]
        row[alone] = alone
    return partners


def _chances(faults: Faults, mixing: Mixing) -> dict[tuple[int, int], float]:
    edges = {edge for graph in mixing.schedule.graphs for edge in graph.edges}
    both_ways = mixing.kind == "doubly-stochastic"
    chances: dict[tuple[int, int], float] = {}
    for source, target, chance in faults.drop_edges:
        expected = ""
        if (source, target) not in edges:
            near = sorted(end for start, end in edges if start == source)
            shown = ", ".join(map(str, near[:8])) or "nobody"
            shown += f" and {len(near) - 8} more" if len(near) > 8 else ""
            expected = (
                f"is no edge of graph '{mixing.schedule.name}': node {source} sends to {shown}"
            )
        elif chances.setdefault((source, target), chance) != chance:
            expected = (
                f"is one link with ({target}, {source}), whose chance is "
                f"{chances[source, target]:g}: it is lost both ways together, give it once"
            )
        if expected:
            raise InputError("faults.drop_edges", (source, target, chance), expected)
        if both_ways:
            chances[target, source] = chance
    return chances


def _lossy_edges(
    weights: Weights, mixing: Mixing, drop: float, chances: Mapping[tuple[int, int], float]
) -> LossyEdges:
    """The edges of one graph, ordered by target and then source; a server's has none."""
    entries = np.flatnonzero(weights.targets != weights.sources)
    targets, sources = weights.targets[entries], weights.sources[entries]
    draws = np.arange(len(targets))
    if mixing.kind == "doubly-stochastic":
        ends = np.minimum(targets, sources) * weights.nodes + np.maximum(targets, sources)
        draws = np.unique(ends, return_inverse=True)[1]
    pairs = zip(sources.tolist(), targets.tolist(), strict=True)
    return LossyEdges(
        targets, sources, entries, draws, np.array([chances.get(pair, drop) for pair in pairs])
    )


def _note(faults: Faults) -> str:
    parts = [f"{100 * faults.drop:.3g}% of the messages lost"] if faults.drop else []
    if faults.drop_edges:
        count = len(faults.drop_edges)
        parts.append(
            f"{count} {'edge' if count == 1 else 'edges'} with a chance of loss of its own"
        )
    windows = [f"node {node} away in steps {a} to {b - 1}" for node, a, b in faults.down]
    slow = [f"node {node} slower by {longer:g} s" for node, longer in faults.slow if longer]
    for listed in (windows, slow):
        more = [f"{len(listed) - 3} more"] if len(listed) > 3 else []
        parts += [*listed[:3], *more]
    return "simulated faults: " + ", ".join(parts)
