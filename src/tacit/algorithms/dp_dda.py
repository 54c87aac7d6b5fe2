"""DP-DDA: dual averaging by gossip; a random part of the nodes adds gradients (Liu, Johansson and
Shi, 2024).

| paper | here |
|---|---|
| z_i^t, dual variable | `state.z`, `[nodes, d]` |
| x_i^t | `state.x`, `[nodes, d]` |
| x^0 | `state.x0`, `[nodes, d]` |
| w_ij, symmetric doubly stochastic | mixing matrix |
| a_t, rising | sqrt(t) / `learning_rate` |
| chance of being active | `activation` (p) |
| R | `regulariser`, `regularisation` |

    z_i^{t+1} = sum_j w_ij z_j^t + active_i (g_i + noise),
    x_i^{t+1} = argmin_x <z_i^{t+1}, x> + p (t+1) R(x) + a_{t+1} |x - x^0|^2 / 2.

p t R weighs R by the expected number of gradients in z, and a_t gives the 1/sqrt(t) rate for convex
losses: derived in `docs/proofs/noised-gradients.md`.

Mechanism: every z_i is sent, active or not, so it is public, and x_i is a function of it; z_i^{t+1}
less its mixed part is the noised gradient of an active node. Poisson-sampled Gaussian (or that of a
fixed batch) over a node's active steps, which everyone sees. Relation: the plan's; trust model:
`all-messages`. No formula is printed in the papers here: no claim.
"""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from tacit.algorithms.base import Algorithm
from tacit.algorithms.context import StepContext
from tacit.algorithms.facets import SEEN_SUMS, GraphNeeds, NoisePath, PaperClaims, Participation
from tacit.algorithms.options import Idle, Options, RateSchedule, Share, WarmUp
from tacit.algorithms.parts import (
    Regularisation,
    RegulariserName,
    independent,
    noised_gradient,
    prox,
)
from tacit.communication.colours import Released


class DualAveragingOptions(Options):
    """Options of DP-DDA."""

    learning_rate_schedule: Annotated[
        RateSchedule,
        Idle(lambda options: True, "dp-dda has one of its own, 1 / sqrt(k + 1): leave it out"),
    ] = "constant"
    warm_up: Annotated[
        WarmUp,
        Idle(lambda options: True, "dp-dda steps by a rule of its own, without one: leave it out"),
    ] = 0
    activation: Share = 1.0
    regulariser: RegulariserName = "none"
    regularisation: Regularisation = 0.01


class DualAveragingState(NamedTuple):
    """Dual variables z, models x and their origin x^0, `[nodes, d]` each."""

    z: Tensor
    x: Tensor
    x0: Tensor


def start(x: Tensor, options: DualAveragingOptions, context: StepContext) -> DualAveragingState:
    """z_i^0 = 0."""
    return DualAveragingState(torch.zeros_like(x), x, x.clone())


def step(
    state: DualAveragingState, k: int, options: DualAveragingOptions, context: StepContext
) -> DualAveragingState:
    """Gossip of z, then the gradient of the active nodes, then the proximal map."""
    g = noised_gradient(state.x, k, context)  # zero where a node is not active
    (mixed,) = context.exchange.mix(k, Released(state.z))
    z = torch.where(context.active(k), mixed + g, mixed)
    return DualAveragingState(z, _minimiser(z, state.x0, k + 1, options), state.x0)


def _minimiser(z: Tensor, x0: Tensor, t: int, options: DualAveragingOptions) -> Tensor:
    a = math.sqrt(t) / options.settled_rate
    step = options.activation * t / a
    return prox(options.regulariser, x0.sub(z, alpha=1 / a), step, options.regularisation)


def mix(
    state: DualAveragingState,
    k: int,
    options: DualAveragingOptions,
    context: StepContext,
    extra: int,
) -> DualAveragingState:
    """One round of gossip of z alone, from which the models follow."""
    (z,) = context.exchange.mix(k, Released(state.z), extra=extra)
    return DualAveragingState(z, _minimiser(z, state.x0, k + 1, options), state.x0)


DP_DDA = Algorithm(
    name="dp-dda",
    title="DP-DDA",
    documentation=__doc__,
    options=DualAveragingOptions,
    start=start,
    step=step,
    graph=GraphNeeds(
        gossip=mix,
        noise_path=NoisePath(
            "combine-then-adapt",
            # Gradients are added to z as they are; after k steps x is rate / sqrt(k) of z.
            rate=lambda options, k, steps: 1.0,
            scale=lambda options, k: options.settled_rate / math.sqrt(k),
        ),
    ),
    releases=SEEN_SUMS,
    claims=PaperClaims(convex=True),
    participation=Participation(activity=independent),
)
