"""A(DP)2SGD: asynchronous decentralized SGD with noise (Xu, Zhang and Wang, 2022).

AD-PSGD (Lian, Zhang, Zhang and Liu, ICML 2018) with Gaussian noise on every gradient. When node i
has finished a gradient, it picks a neighbour j, the two average their models, and i steps along the
noised gradient, which was computed at an older copy of its model.

| paper | here |
|---|---|
| x_i | `State.x`, `[nodes, d]` |
| x_i at k - tau, the older copy | `State.snapshot`, `[nodes, d]` |
| tau, staleness | comes from the clock; `tacit plan` and the result report it |
| gamma | `learning_rate` |
| N ~ Normal(0, sigma^2 I) | noise in the batch mean |
| event | a pair (i, j) of a wave, see `clock` |

**One step is one wave**: all events that share no node and come next, computed stacked; the result
is exactly that of running them one after the other. A wave holds about a third of the nodes, so a
node makes about K / 3 updates in K steps; the plan says how many.

How fast nodes are is drawn from the public seed: `speed_spread` (standard deviation of the
logarithm of a node's mean time, 0.2 by default), `stragglers` (share of the nodes) and
`straggler_factor` (how much slower they are).

Mechanism: node i releases a noised gradient in each of its K_i events, whose number is public; all
models are sent, so the older copy is public too and staleness costs nothing: the Poisson-sampled
Gaussian (or that of a fixed batch), composed K_i times. Relation and trust model are the plan's,
`all-messages`. The paper accounts by RDP and prints no formula: no claim.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from tacit.algorithms.activity import Activity, Crowd
from tacit.algorithms.clock import Speeds, waves
from tacit.algorithms.context import StepContext
from tacit.algorithms.definition import Algorithm, Options, constant, step_size
from tacit.algorithms.parts import noised_gradient
from tacit.communication.colours import Released

__all__ = ["ADP2_SGD", "AsynchronousOptions", "State", "mix", "models", "start", "step"]


class AsynchronousOptions(Options):
    """Options of A(DP)2SGD."""

    speed_spread: Annotated[float, Field(ge=0, le=5)] = 0.2
    stragglers: Annotated[float, Field(ge=0, le=1)] = 0.0
    straggler_factor: Annotated[float, Field(ge=1, le=1e6)] = 5.0


class State(NamedTuple):
    """Models x, and the copies at which gradients are being computed; `[nodes, d]` each."""

    x: Tensor
    snapshot: Tensor


def start(x: Tensor, options: AsynchronousOptions, context: StepContext) -> State:
    """Every node begins with a gradient at x^0."""
    return State(x, x.clone())


def step(state: State, k: int, options: AsynchronousOptions, context: StepContext) -> State:
    """All events of one wave: average with the partner, then step along the older gradient."""
    g = noised_gradient(state.snapshot, k, context)
    (other,) = context.exchange.swap(k, context.partner(k), Released(state.x))
    averaged = state.x.add(other).div_(2)
    finished = context.active(k)
    moved = averaged.sub(g, alpha=step_size(options, k, context.steps))
    x = torch.where(finished, moved, averaged)
    return State(x, torch.where(finished, x, state.snapshot))


def mix(state: State, k: int, context: StepContext) -> State:
    """One round of gossip alone, over the whole graph."""
    (x,) = context.exchange.mix(k, Released(state.x))
    return State(x, state.snapshot)


def models(state: State) -> Tensor:
    """x, `[nodes, d]`."""
    return state.x


def activity(options: AsynchronousOptions, crowd: Crowd) -> Activity:
    """Who finishes in which wave."""
    return waves(crowd, Speeds(options.speed_spread, options.stragglers, options.straggler_factor))


ADP2_SGD = Algorithm(
    name="adp2-sgd",
    title="A(DP)2SGD",
    paper="Xu, Zhang and Wang, 2022",
    summary="asynchronous gossip SGD: pairs average, gradients are stale",
    setting="peer-to-peer",
    weights="doubly-stochastic",
    private=True,
    options=AsynchronousOptions,
    schedules=constant,
    start=start,
    step=step,
    mix=mix,
    models=models,
    activity=activity,
    fixed_graph=True,
    bound_is_tight=True,
)
