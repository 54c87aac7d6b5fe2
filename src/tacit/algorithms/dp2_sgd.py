"""DP2-SGD: gossip SGD on an undirected graph with constant clipping and noise (Yu et al., 2021).

| paper | here |
|---|---|
| x_i^k | `state.x`, `[nodes, d]` |
| W, symmetric doubly stochastic | mixing matrix |
| gamma | `learning_rate` |
| N ~ Normal(0, sigma^2 I) | noise in the batch mean |

x_i^{k+1} = sum_j W_ij x_j^k - gamma (g_i(x_i^k) + N). Every x_i is sent, so it is public.

Mechanism: Poisson-sampled Gaussian of each node's clipped gradients. The papers print no formula
to compare it with: no claim.

D-PSGD: gossip SGD on an undirected graph, without noise (Lian et al., NeurIPS 2017). *Can
Decentralized Algorithms Outperform Centralized Algorithms?*: the non-private baseline.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from tacit.algorithms.base import Algorithm
from tacit.algorithms.context import StepContext
from tacit.algorithms.facets import SEEN_SUMS, GraphNeeds, NoisePath
from tacit.algorithms.options import Options, step_size
from tacit.algorithms.parts import noised_gradient
from tacit.communication.colours import Released


class ConsensusState(NamedTuple):
    """x `[nodes, d]`."""

    x: Tensor


def start(x: Tensor, options: Options, context: StepContext) -> ConsensusState:
    """x_i^0 = x^0."""
    return ConsensusState(x)


def step(state: ConsensusState, k: int, options: Options, context: StepContext) -> ConsensusState:
    """Gossip the old models, step along the gradient at the own old model."""
    g = noised_gradient(state.x, k, context)
    (mixed,) = context.exchange.mix(k, Released(state.x))
    return ConsensusState(mixed.sub_(g, alpha=step_size(options, k, context.steps)))


DP2_SGD: Algorithm[ConsensusState, Options] = Algorithm(
    name="dp2-sgd",
    title="DP2-SGD",
    documentation=__doc__,
    options=Options,
    start=start,
    step=step,
    steps_along="gossip steps along noised gradients",
    graph=GraphNeeds(noise_path=NoisePath("combine-then-adapt")),
    releases=SEEN_SUMS,
)

D_PSGD = replace(DP2_SGD, name="d-psgd", title="D-PSGD", private=False)
