"""CPGT: gradient tracking with compressed messages and Laplace noise (Xie, Yi, Wang, Cao and Ren,
2023).

| paper | here |
|---|---|
| x_i^t, y_i^t (tracks the mean gradient) | `state.x`, `state.y`, `[nodes, d]` |
| x_i^c, y_i^c, public copies | `state.x_copy`, `state.y_copy` |
| sum_j w_ij x_j^c, likewise y | `state.x_near`, `state.y_near`: no copy of each neighbour is kept |
| gamma_x, gamma_y | `consensus_step`, `tracking_step` |
| eta | `learning_rate` |
| C, with k of d coordinates | `compressor`, `keep` |
| grad f_i(x_i^t), noised | `state.g` |

    x_i^c += C(x_i - x_i^c),  y_i^c += C(y_i - y_i^c)                       (what is sent)
    x_i^{t+1} = x_i^t - gamma_x sum_j w_ij (x_i^c - x_j^c) - eta y_i^t
    y_i^{t+1} = y_i^t - gamma_y sum_j w_ij (y_i^c - y_j^c) + g_i^{t+1} - g_i^t,   y_i^0 = g_i^0.

The noise enters the gradient, g_i = clipped mean + Laplace noise; everything else, compression
included, is a function of the g_i and of public values. As printed, each message of an un-noised x
and y gets noise of its own, which needs J times as much.

Mechanism: Laplace noise on sums of gradients that are clipped in l1 (`clip`), Poisson-sampled if
batches are (add-or-remove-one). Adaptive: g_i^t is computed at x_i^t, a function of earlier g_i.
Relation: the plan's; trust model: `all-messages`. No claim. Proof:
`docs/proofs/noised-gradients.md`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from tacit.algorithms.base import Algorithm
from tacit.algorithms.context import StepContext
from tacit.algorithms.do_adp import COPIES
from tacit.algorithms.facets import FAULTS, LAPLACE_SUMS, GraphNeeds
from tacit.algorithms.options import Options, Share, step_size
from tacit.algorithms.parts import (
    CompressorName,
    Keep,
    WeightDecay,
    compressed,
    keeps_back,
    noised_gradient,
    with_weight_decay,
)
from tacit.communication.colours import Released
from tacit.privacy.mechanisms.clipping import ClipRule


class TrackingOptions(Options):
    """Options of CPGT."""

    clip_norm: ClipRule = "l1"
    consensus_step: Share = 0.3
    tracking_step: Share = 0.3
    compressor: CompressorName = "none"
    keep: Keep = 1.0
    weight_decay: WeightDecay = 0.0


class TrackingState(NamedTuple):
    """Of each node `[nodes, d]`: x, y, the noised gradient, public copies and their mixtures."""

    x: Tensor
    y: Tensor
    g: Tensor
    x_copy: Tensor
    x_near: Tensor
    y_copy: Tensor
    y_near: Tensor


def start(x: Tensor, options: TrackingOptions, context: StepContext) -> TrackingState:
    """Copies begin at zero."""
    zeros = [torch.zeros_like(x) for _ in range(6)]
    return TrackingState(x, *zeros)


def step(
    state: TrackingState, k: int, options: TrackingOptions, context: StepContext
) -> TrackingState:
    """Track the gradient, send both compressed differences, move."""
    g = noised_gradient(state.x, k, context)
    g = with_weight_decay(g, state.x, options.weight_decay, context.active(k))
    y = state.y + g - state.g
    # x and y are compressed with masks of their own.
    x_copy, x_near = _sent(state.x, state.x_copy, state.x_near, k, 0, options, context)
    y_copy, y_near = _sent(y, state.y_copy, state.y_near, k, 1, options, context)
    x = state.x.add(x_near - x_copy, alpha=options.consensus_step)
    x.sub_(y, alpha=step_size(options, k, context.steps))
    y = y.add(y_near - y_copy, alpha=options.tracking_step)
    return TrackingState(x, y, g, x_copy, x_near, y_copy, y_near)


def _sent(
    value: Tensor,
    copy: Tensor,
    near: Tensor,
    k: int,
    part: int,
    options: TrackingOptions,
    context: StepContext,
) -> tuple[Tensor, Tensor]:
    """The public copy after this step's message, and the mixture of the neighbours' copies."""
    message = compressed(value - copy, k, options, context, part)
    (moved,) = context.exchange.mix(k, Released(message.values), coding=message.coding)
    return copy + message.values, near + moved


CPGT = Algorithm(
    name="cpgt",
    title="CPGT",
    documentation=__doc__,
    options=TrackingOptions,
    start=start,
    step=step,
    default_clip=4.0,
    graph=GraphNeeds(
        fixed=True,
        no_faults=dict.fromkeys(FAULTS, COPIES),
        one_round="mixes public copies of the models, which only its compressed messages move: "
        "algorithm.consensus_step and algorithm.tracking_step say how far a step goes towards the "
        "neighbours",
        message_numbers=lambda options, d: 2 * d,  # two variables
    ),
    releases=replace(LAPLACE_SUMS, hides=keeps_back),
)
