"""PrivSGP: stochastic gradient push with constant clipping and noise (Zhu, Huang, Wang and Xu,
IJCAI 2024).

Algorithm 2 of *PrivSGP-VR: Differentially Private Variance-Reduced Stochastic Gradient Push with
Tight Utility Bounds*, over time-varying directed graphs with column-stochastic weights.

| paper | here |
|---|---|
| x_i^k | `State.x`, `[nodes, d]` |
| w_i^k, push-sum weight | `State.w`, `[nodes]` |
| z_i^k = x_i^k / w_i^k | `de_biased(state)` |
| gamma | `learning_rate` |
| G, bound of a gradient's norm | `clip` (C), enforced |
| sigma_i | standard deviation of the noise in the batch mean |
| P^k | mixing matrix of step k |

`momentum` (beta, not in the paper; 0 by default) averages noised gradients; `final_mixing` rounds
of gossip follow the last step. Both are post-processing and cost no privacy.

Mechanism: Poisson-sampled Gaussian of each node's clipped gradients; messages, weights and models
are functions of the noised gradients and of public values.

SGP: stochastic gradient push, without noise (Assran, Loizou, Ballas and Rabbat, ICML 2019).
*Stochastic Gradient Push for Distributed Deep Learning*: the same with sigma_i = 0, the non-private
baseline.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, NamedTuple

from pydantic import Field
from torch import Tensor

from tacit.algorithms.base import (
    Algorithm,
    Momentum,
    Options,
    step_size,
)
from tacit.algorithms.context import StepContext
from tacit.algorithms.parts import heavy_ball, no_momentum, noised_gradient
from tacit.communication.colours import Public, Released
from tacit.privacy.published import PRIVSGP as PUBLISHED


class PushSumOptions(Options):
    """Options of every push-sum method."""

    momentum: Momentum = 0.0
    final_mixing: Annotated[int, Field(ge=0, le=100_000)] = 0


class State(NamedTuple):
    """x `[nodes, d]`, push-sum weights w `[nodes]`, momentum m `[nodes, d]` (`[nodes, 0]` if 0)."""

    x: Tensor
    w: Tensor
    m: Tensor


def start(x: Tensor, options: PushSumOptions, context: StepContext) -> State:
    """x_i^0 = z_i^0 = x^0, w_i^0 = 1."""
    return State(x, x.new_ones(len(x)), no_momentum(x, options.momentum))


def step(state: State, k: int, options: PushSumOptions, context: StepContext) -> State:
    """Step k of Algorithm 2."""
    g = noised_gradient(de_biased(state), k, context)  # lines 1 to 3
    return pushed(state, g, k, options, context)


def pushed(state: State, g: Tensor, k: int, options: PushSumOptions, context: StepContext) -> State:
    """Lines 4 and 5: the local update along a noised gradient g `[nodes, d]`, and push-sum."""
    direction, m = heavy_ball(state.m, g, options.momentum)
    x_half = state.x.sub(direction, alpha=step_size(options, k, context.steps))  # line 4
    x, w = context.exchange.mix(k, Released(x_half), Public(state.w))  # line 5
    return State(x, w, m)


def mix(state: State, k: int, context: StepContext) -> State:
    """One round of push-sum alone."""
    x, w = context.exchange.mix(k, Released(state.x), Public(state.w))
    return state._replace(x=x, w=w)


def de_biased(state: State) -> Tensor:
    """The de-biased parameter z = x / w, `[nodes, d]`."""
    return state.x / state.w[:, None]


PRIVSGP: Algorithm[Any, Any] = Algorithm(
    name="privsgp",
    title="PrivSGP",
    documentation=__doc__,
    weights="column-stochastic",
    options=PushSumOptions,
    start=start,
    step=step,
    models=de_biased,
    gossip=mix,
    final_rounds=lambda options: options.final_mixing,
    bound_is_tight=True,
    message_numbers=lambda options, d: d + 1,  # the push-sum weight
    formula=PUBLISHED,
)

SGP = replace(
    PRIVSGP,
    name="sgp",
    title="SGP",
    private=False,
    formula=None,
)
