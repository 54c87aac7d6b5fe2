"""Private gradient tracking: push-sum along a running estimate of all nodes' mean gradient, made of
noised ones (Nedic, Olshevsky and Shi, SIAM Journal on Optimization 2017).

Push-DIGing, g(k) being clipped, noised gradients of batches; `state.y` is C(k-1) y(k-1):

    y(k) = C(k-1) y(k-1) + g(k) - g(k-1),  u(k+1) = C(k) (u(k) - alpha y(k)),  v(k+1) = C(k) v(k).

Mechanism: that of `privsgp`. A message, u - alpha y, y and v, is a function of noised gradients;
one that is used twice is one release (`docs/proofs/noised-gradients.md`). No claim: private
versions in print (Chen, Wang and Zhang, arXiv 2501.06793) noise both messages instead.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from torch import Tensor, zeros_like

from tacit.algorithms.context import StepContext
from tacit.algorithms.facets import PaperClaims
from tacit.algorithms.options import step_size
from tacit.algorithms.parts import heavy_ball, no_momentum, noised_gradient
from tacit.algorithms.privsgp import PRIVSGP, PushSumOptions, PushSumState, de_biased
from tacit.communication.colours import Public, Released


class Tracked(NamedTuple):
    """x `[nodes, d]`, push-sum weights w `[nodes]`, momentum, mixed trackers, last gradients."""

    x: Tensor
    w: Tensor
    m: Tensor
    y: Tensor
    g: Tensor


def start(x: Tensor, options: PushSumOptions, context: StepContext) -> Tracked:
    """Nothing is tracked yet, so that y(0) = g(0)."""
    m = no_momentum(x, options.momentum)
    return Tracked(x, x.new_ones(len(x)), m, zeros_like(x), zeros_like(x))


def step(state: Tracked, k: int, options: PushSumOptions, context: StepContext) -> Tracked:
    """Track the gradient, step along the tracker, and mix both."""
    g = noised_gradient(de_biased(PushSumState(*state[:3])), k, context)
    y = state.y + g - state.g
    direction, m = heavy_ball(state.m, y, options.momentum)
    descent = (Released(direction), step_size(options, k, context.steps))
    values = Released(state.x), Released(y), Public(state.w)
    x, y, w = context.exchange.mix(k, *values, descent=descent)
    return Tracked(x, w, m, y, g)


def mix(
    state: Tracked, k: int, options: PushSumOptions, context: StepContext, extra: int
) -> Tracked:
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
        PRIVSGP.graph, gossip=mix, noise_path=None, message_numbers=lambda options, d: 2 * d + 1
    ),
    claims=PaperClaims(),
)
