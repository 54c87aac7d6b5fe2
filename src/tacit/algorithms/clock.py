"""A virtual clock: who finishes when, and which events can run at once without changing anything.

Every node computes at a speed of its own. When node i finishes, an *event* takes place: it picks a
neighbour j, and both are busy with it. Events are in the order of time. Two events that share no
node commute, so they are laid out in *waves*: an event's wave is one more than the latest earlier
event of either node. Running wave after wave, all events of a wave stacked, is therefore the same
as running one event after the other, and a prefix of waves is a consistent cut of the history.

Everything is drawn from the public seed: the schedule depends on no record and is no secret.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.algorithms.activity import Activity, Crowd, public_draws

__all__ = ["Event", "Speeds", "events", "waves"]

_CLOCK = 3
_AT_ONCE = 4096  # random numbers drawn at a time


@dataclass(frozen=True)
class Speeds:
    """How long nodes take for a gradient.

    Args:
        spread: standard deviation of the logarithm of a node's mean time.
        stragglers: share of the nodes that are slower still, at least one if positive.
        straggler_factor: by how much.
    """

    spread: float
    stragglers: float
    straggler_factor: float


@dataclass(frozen=True)
class Event:
    """One update.

    Args:
        wave: in which it runs.
        node: whose gradient is used.
        partner: with whom it averages; itself if it has no neighbour.
        staleness: averagings of the node between the model that its gradient was computed at and
            this event, which is not counted.
    """

    wave: int
    node: int
    partner: int
    staleness: int


def events(crowd: Crowd, speeds: Speeds) -> list[Event]:
    """Every event of the first `crowd.steps` waves, in the order of time."""
    rng = public_draws(crowd.seed, _CLOCK)
    means = _mean_times(rng, crowd.nodes, speeds)
    numbers = _Numbers(rng)
    queue = [(means[node] * (0.5 + numbers.next()), node) for node in range(crowd.nodes)]
    heapq.heapify(queue)
    level = [0] * crowd.nodes
    averaged = [0] * crowd.nodes  # since the node's own last event
    found: list[Event] = []
    behind = crowd.nodes  # nodes that may still have an event in the waves that are wanted
    while behind:
        now, node = queue[0]
        near = crowd.neighbours[node]
        partner = near[int(numbers.next() * len(near))] if near else node
        wave = max(level[node], level[partner])
        for one in {node, partner}:
            behind -= level[one] < crowd.steps <= wave + 1
            level[one] = wave + 1
        if wave < crowd.steps:
            found.append(Event(wave, node, partner, averaged[node]))
        averaged[partner] += partner != node
        averaged[node] = 0
        # Computing takes its mean time, give or take a half.
        heapq.heapreplace(queue, (now + means[node] * (0.5 + numbers.next()), node))
    return found


def waves(crowd: Crowd, speeds: Speeds) -> Activity:
    """Who finishes in which wave, and who is paired with whom."""
    listed = events(crowd, speeds)
    active = np.zeros((crowd.steps, crowd.nodes), dtype=np.bool_)
    partner = np.tile(np.arange(crowd.nodes, dtype=np.int64), (crowd.steps, 1))
    for event in listed:
        active[event.wave, event.node] = True
        partner[event.wave, event.node] = event.partner
        partner[event.wave, event.partner] = event.node
    staleness = np.asarray([event.staleness for event in listed])
    said = f"mean {staleness.mean():.3g}, largest {staleness.max()} averagings"
    return Activity(active, partner, {"staleness of gradients": said})


def _mean_times(rng: np.random.Generator, nodes: int, speeds: Speeds) -> NDArray[np.float64]:
    means = np.exp(speeds.spread * rng.standard_normal(nodes))
    slow = int(np.ceil(speeds.stragglers * nodes))
    means[rng.permutation(nodes)[:slow]] *= speeds.straggler_factor
    return np.asarray(means, np.float64)


class _Numbers:
    """Uniform numbers one at a time, drawn many at a time."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._drawn: list[float] = []

    def next(self) -> float:
        """The next one, in [0, 1)."""
        if not self._drawn:
            self._drawn = self._rng.random(_AT_ONCE).tolist()
        return self._drawn.pop()
