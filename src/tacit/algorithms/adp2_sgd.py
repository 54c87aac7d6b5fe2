"""A(DP)2SGD: asynchronous gossip SGD: pairs average, gradients are stale (Xu, Zhang and Wang,
2022).

AD-PSGD (Lian, Zhang, Zhang and Liu, ICML 2018) with Gaussian noise on every gradient. When node i
has finished a gradient, it picks a neighbour j, the two average their models, and i steps along the
noised gradient, which was computed at an older copy of its model.

| paper | here |
|---|---|
| x_i | `state.x`, `[nodes, d]` |
| x_i at k - tau, the older copy | `state.snapshot`, `[nodes, d]` |
| tau, staleness | comes from the clock; `tacit plan` and the result report it |
| gamma | `learning_rate` |
| N ~ Normal(0, sigma^2 I) | noise in the batch mean |
| event | a pair (i, j) of a wave |

**One step is one wave.** A virtual clock says who finishes when. Every node computes at a speed of
its own; when node i finishes, an *event* takes place: it picks a neighbour j, and both are busy
with it. Events are in the order of time. Two events that share no node commute, so they are laid
out in *waves*: an event's wave is one more than the latest earlier event of either node. Running
wave after wave, all events of a wave stacked, is therefore the same as running one event after the
other, and a prefix of waves is a consistent cut of the history. A wave holds about a third of the
nodes, so a node makes about K / 3 updates in K steps; the plan says how many. With
`[topology].rounds` above 1, all nodes average with all their neighbours in the further rounds of
every wave.

Everything of the clock is drawn from the public seed: the schedule depends on no record and is no
secret. The options are `speed_spread` (standard deviation of the logarithm of a node's mean time),
`stragglers` (share of the nodes that are slower still, at least one if positive) and
`straggler_factor` (by how much).

Mechanism: node i releases a noised gradient in each of its K_i events, whose number is public; all
models are sent, so the older copy is public too and staleness costs nothing: the Poisson-sampled
Gaussian (or that of a fixed batch), composed K_i times. Relation and trust model are the plan's,
`all-messages`. The paper accounts by RDP and prints no formula: no claim.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from tacit.algorithms.base import Algorithm
from tacit.algorithms.context import StepContext
from tacit.algorithms.facets import SEEN_SUMS, Activity, GraphNeeds, NoisePath, Participation, Setup
from tacit.algorithms.options import Idle, Options, step_size
from tacit.algorithms.parts import noised_gradient, public_draws
from tacit.communication.colours import Released

_CLOCK = 3  # the purpose of the public draws
_AT_ONCE = 4096  # random numbers drawn at a time


class AsynchronousOptions(Options):
    """Options of A(DP)2SGD."""

    speed_spread: Annotated[float, Field(ge=0, le=5)] = 0.2
    stragglers: Annotated[float, Field(ge=0, le=1)] = 0.0
    straggler_factor: Annotated[
        float,
        Field(ge=1, le=1e6),
        Idle(
            lambda options: "stragglers" not in options.model_fields_set,
            "slows stragglers, and there are none: set algorithm.stragglers, or leave it out",
        ),
    ] = 5.0


class WaveState(NamedTuple):
    """Models x, and the copies at which gradients are being computed; `[nodes, d]` each."""

    x: Tensor
    snapshot: Tensor


def start(x: Tensor, options: AsynchronousOptions, context: StepContext) -> WaveState:
    """Every node begins with a gradient at x^0."""
    return WaveState(x, x.clone())


def step(state: WaveState, k: int, options: AsynchronousOptions, context: StepContext) -> WaveState:
    """All events of one wave: average with the partner, then step along the older gradient."""
    g = noised_gradient(state.snapshot, k, context)
    (other,) = context.exchange.swap(k, context.partner(k), Released(state.x))
    averaged = state.x.add(other).div_(2)
    finished = context.active(k)
    moved = averaged.sub(g, alpha=step_size(options, k, context.steps))
    x = torch.where(finished, moved, averaged)
    return WaveState(x, torch.where(finished, x, state.snapshot))


def mix(
    state: WaveState, k: int, options: AsynchronousOptions, context: StepContext, extra: int
) -> WaveState:
    """One round of gossip of x over the whole graph, after the events of wave k.

    Who has finished in the wave begins its next gradient where the round leaves it.
    """
    (x,) = context.exchange.mix(k, Released(state.x), extra=extra)
    return WaveState(x, torch.where(context.active(k), x, state.snapshot))


class Event(NamedTuple):
    """One update.

    `wave` in which it runs; `node` whose gradient is used; `partner` with whom it averages (itself
    if it has no neighbour); `staleness`, averagings of the node between the model that its gradient
    was computed at and this event, which is not counted.
    """

    wave: int
    node: int
    partner: int
    staleness: int


def events(
    neighbours: tuple[tuple[int, ...], ...], steps: int, seed: int, options: AsynchronousOptions
) -> list[Event]:
    """Every event of the first `steps` waves, in the order of time, from the public seed."""
    nodes = len(neighbours)
    rng = public_draws(seed, _CLOCK)
    means = np.exp(options.speed_spread * rng.standard_normal(nodes))
    slow = int(np.ceil(options.stragglers * nodes))
    means[rng.permutation(nodes)[:slow]] *= options.straggler_factor
    # Computing takes its mean time, give or take a half.
    numbers = _uniform(rng)
    queue = [(means[node] * (0.5 + next(numbers)), node) for node in range(nodes)]
    heapq.heapify(queue)
    level = [0] * nodes
    averaged = [0] * nodes  # since the node's own last event
    listed: list[Event] = []
    behind = nodes  # nodes that may still have an event in the waves that are wanted
    while behind:
        now, node = queue[0]
        choice = neighbours[node]
        partner = choice[int(next(numbers) * len(choice))] if choice else node
        wave = max(level[node], level[partner])
        for busy in {node, partner}:
            behind -= level[busy] < steps <= wave + 1
            level[busy] = wave + 1
        if wave < steps:
            listed.append(Event(wave, node, partner, averaged[node]))
        averaged[partner] += partner != node
        averaged[node] = 0
        heapq.heapreplace(queue, (now + means[node] * (0.5 + next(numbers)), node))
    return listed


def _uniform(rng: np.random.Generator) -> Iterator[float]:
    """Numbers in [0, 1), one at a time, drawn many at a time."""
    while True:
        yield from reversed(rng.random(_AT_ONCE).tolist())


def waves(setup: Setup) -> Activity:
    """Who finishes in which wave, and who is paired with whom."""
    listed = events(setup.neighbours, setup.steps, setup.seed, setup.options)
    active = np.zeros((setup.steps, setup.nodes), dtype=np.bool_)
    partner = np.tile(np.arange(setup.nodes, dtype=np.int64), (setup.steps, 1))
    for event in listed:
        active[event.wave, event.node] = True
        partner[event.wave, event.node] = event.partner
        partner[event.wave, event.partner] = event.node
    staleness = np.asarray([event.staleness for event in listed])
    summary = f"mean {staleness.mean():.3g}, largest {staleness.max()} averagings"
    return Activity(active, partner, {"staleness of gradients": summary})


ADP2_SGD = Algorithm(
    name="adp2-sgd",
    title="A(DP)2SGD",
    documentation=__doc__,
    options=AsynchronousOptions,
    start=start,
    step=step,
    graph=GraphNeeds(gossip=mix, noise_path=NoisePath("combine-then-adapt"), fixed=True),
    releases=SEEN_SUMS,
    participation=Participation(activity=waves),
)
