"""DP-RADMM by gradients: ADMM on a graph that takes each noised gradient twice, so that every other
iteration costs no privacy (X. Zhang, Khalili and Liu, Allerton 2018, by gradient perturbation).

*Recycled ADMM: Improve Privacy and Accuracy with Less Computation in Distributed Algorithms*.

| paper | here |
|---|---|
| f_i(t), lambda_i(t) | `state.x`, `state.dual`, `[nodes, d]` |
| iteration 2k - 1 (odd, from 1), of the data | steps 0, 2, 4, ... |
| iteration 2k (even), of the last result | steps 1, 3, 5, ... |
| grad O(f_i(2k-1)) + noise, known from the odd iteration | g~, `state.g`, `[nodes, d]` |
| eta, penalty and dual step | `penalty` |
| gamma, weight of half the square of f - f_i(2k-1) | 1 / `learning_rate`, in odd iterations too |

Odd iterations take a fresh noised gradient g~ at f_i, even ones the same g~ once more, at no cost:

    f_i(t+1) = f_i(t) - (g~ + dR + 2 lambda_i + eta sum_j w_ij (f_i - f_j)) / (1/gamma + 2 eta)
    lambda_i(t+1) = lambda_i(t) + (eta / 2) sum_j w_ij (f_i(t+1) - f_j(t+1)).

*What is another here.* The paper's odd iteration minimises an objective with noise exactly; then
grad O(f_i(2k-1)) + noise follows from the released f_i(2k-1) by the condition of the minimum. Here
the odd iteration is linearised as well, g~ stands for that gradient in both, and it is the one at
f_i(2k-2). The regulariser is public, and its subgradient is taken anew each time.

Mechanism: f_i and lambda_i are computed from what was sent, and g~ is a public affine function of
two messages, so that even iterations are post-processing. Gaussian on every record, or its sampled
kinds, composed over the odd iterations alone, ceil(K / 2) of K. Relation: the plan's; trust model:
`all-messages`; the bound is tight. The paper's bound is of another mechanism: no claim. Proof:
`docs/proofs/graph-admm.md`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tacit.algorithms.admm import graph
from tacit.algorithms.admm.ddp_admm import DDP_ADMM
from tacit.algorithms.admm.graph import GraphAdmmOptions, GraphAdmmState, iterate
from tacit.algorithms.context import StepContext
from tacit.algorithms.facets import Activity, Setup
from tacit.algorithms.parts import noised_gradient


class RecycledState(NamedTuple):
    """As `GraphAdmmState`, and the last noised gradient: `[nodes, d]` each."""

    x: Tensor
    spread: Tensor
    dual: Tensor
    g: Tensor


def start(x: Tensor, options: GraphAdmmOptions, context: StepContext) -> RecycledState:
    """All nodes at x^0, lambda_i = 0, no gradient yet."""
    return RecycledState(*graph.start(x, options, context), g=torch.zeros_like(x))


def every_other(setup: Setup) -> Activity:
    """Steps 0, 2, 4, ... (the paper's odd iterations, from 1) of all nodes, by a public rule.

    It says who takes a gradient. Everybody sends in every step.
    """
    fresh = np.arange(setup.steps) % 2 == 0
    return Activity(np.repeat(fresh[:, None], setup.nodes, axis=1))


def step(
    state: RecycledState, k: int, options: GraphAdmmOptions, context: StepContext
) -> RecycledState:
    """Iteration t = k, with a noised gradient of its own or with the last one."""
    before = GraphAdmmState(state.x, state.spread, state.dual)
    fresh = noised_gradient(state.x, k, context)  # zero where nobody takes part
    g = torch.where(context.active(k), fresh, state.g)
    return RecycledState(*iterate(before, g, k, options, context), g=g)


R_ADMM = replace(
    DDP_ADMM,
    name="dp-radmm-gradient",
    title="DP-RADMM by gradients",
    documentation=__doc__,
    start=start,
    step=step,
    participation=replace(DDP_ADMM.participation, activity=every_other),
)
