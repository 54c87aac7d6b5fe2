"""Private gradient tracking: push-sum along a running estimate of all nodes' mean gradient, made of
noised ones (Nedic, Olshevsky and Shi, SIAM Journal on Optimization 2017).

Push-DIGing, Algorithm 2 of *Achieving Geometric Convergence for Distributed Optimization over
Time-Varying Graphs*, with clipped, noised gradients of batches in place of exact ones: a node whose
own records are all of one kind steps along what all nodes' records say.

| paper | here |
|---|---|
| u_i(k), v_i(k), x_i(k) = u_i / v_i | `state.x`, push-sum weight `state.w`, `de_biased(state)` |
| y_i(k), tracker | `state.y`, mixed, + g_i(k) - `state.g`, `[nodes, d]` |
| gradient of f_i at x_i(k) | g_i(k): clipped, noised, of a batch; the last one is `state.g` |
| C(k), alpha | mixing matrix of step k (column-stochastic), `learning_rate` |

    y(k) = C(k-1) y(k-1) + g(k) - g(k-1),  u(k+1) = C(k) (u(k) - alpha y(k)),  v(k+1) = C(k) v(k).

Column sums are 1, so that the sum of all y_i(k) is that of the g_i(k): the noise of g_i(k) is taken
out again one step later, and none adds up. What a node is away for is taken out of the sum too.

Mechanism: Poisson-sampled Gaussian of each node's clipped gradients, as of `privsgp`. A message
holds two vectors, u_i - alpha y_i and y_i, and the public v_i; both are functions of noised
gradients and of public values, and a noised gradient that is used again is no further release.
Relation and trust model: the plan's, `all-messages`. Published private versions (Chen, Wang and
Zhang, arXiv 2501.06793) noise both messages instead, of a state and a tracker that hold plain
gradients: a record then shows twice a step. No claim. Proof: `docs/proofs/noised-gradients.md`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from tacit.algorithms.context import StepContext
from tacit.algorithms.facets import PaperClaims
from tacit.algorithms.options import step_size
from tacit.algorithms.parts import heavy_ball, no_momentum, noised_gradient
from tacit.algorithms.privsgp import PRIVSGP, PushSumOptions, PushSumState, de_biased
from tacit.communication.colours import Public, Released


class TrackedState(NamedTuple):
    """x `[nodes, d]`, push-sum weights w `[nodes]`, momentum, mixed trackers, last gradients."""

    x: Tensor
    w: Tensor
    m: Tensor
    y: Tensor
    g: Tensor


def start(x: Tensor, options: PushSumOptions, context: StepContext) -> TrackedState:
    """Nothing is tracked yet, so that y(0) = g(0)."""
    none = no_momentum(x, options.momentum)
    return TrackedState(x, x.new_ones(len(x)), none, torch.zeros_like(x), torch.zeros_like(x))


def step(
    state: TrackedState, k: int, options: PushSumOptions, context: StepContext
) -> TrackedState:
    """Track the gradient, step along the tracker, and mix both."""
    g = noised_gradient(de_biased(PushSumState(*state[:3])), k, context)
    y = state.y + g - state.g
    direction, m = heavy_ball(state.m, y, options.momentum)
    descent = (Released(direction), step_size(options, k, context.steps))
    values = Released(state.x), Released(y), Public(state.w)
    x, y, w = context.exchange.mix(k, *values, descent=descent)
    return TrackedState(x, w, m, y, g)


def mix(
    state: TrackedState, k: int, options: PushSumOptions, context: StepContext, extra: int
) -> TrackedState:
    """One round of push-sum alone: C(k) is the product of the matrices of a step's rounds."""
    values = Released(state.x), Released(state.y), Public(state.w)
    x, y, w = context.exchange.mix(k, *values, extra=extra)
    return state._replace(x=x, y=y, w=w)


GRADIENT_TRACKING = replace(
    PRIVSGP,
    name="private-gradient-tracking",
    title="Private gradient tracking",
    documentation=__doc__,
    start=start,
    step=step,
    steps_along="",
    graph=replace(
        PRIVSGP.graph,
        gossip=mix,
        noise_path=None,
        message_numbers=lambda options, d: 2 * d + 1,
    ),
    claims=PaperClaims(),
)
