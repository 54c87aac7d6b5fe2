"""DDP-ADMM by gradients: ADMM on a graph with noise in the dual variable of the local step, whose
loss is linearised (T. Zhang and Zhu, IEEE TIFS 2017, by gradient perturbation).

*Dynamic Differential Privacy for ADMM-Based Distributed Classification Learning*, of which this is
dual variable perturbation, with clipped gradients in place of an exact minimiser.

| paper | here |
|---|---|
| f_p(t), classifier of node p | `state.x`, `[nodes, d]` |
| lambda_p(t), dual variable | `state.dual`, `[nodes, d]` |
| sum over neighbours of f_p - f_i | `state.spread`, weighed by W |
| eta, penalty and dual step | `penalty` |
| mu_p(t) = lambda_p(t) + noise, in the local step alone | 2 mu = 2 lambda + noise of the gradient |
| rho R, regulariser | `regulariser`, `regularisation`; by its subgradient |
| Z_p, empirical loss, minimised | its linearisation at f_p(t), with `learning_rate` |
| noise of density exp(-zeta norm) | Gaussian, of the planned deviation |

    f_p(t+1) = f_p(t) - (g~ + dR + 2 lambda_p + eta sum_i w_pi (f_p - f_i)) / (1/gamma + 2 eta)
    lambda_p(t+1) = lambda_p(t) + (eta / 2) sum_i w_pi (f_p(t+1) - f_i(t+1)).

*What is another here.* The paper minimises the perturbed objective exactly, for losses with bounded
second derivatives, and its pure epsilon rests on that. No machine does so: here the noise hides
clipped gradients, whatever the loss. *Primal* variable perturbation is left out: its node goes on
from an un-noised minimiser, which is private state.

Mechanism: f_p(t) is what was sent, lambda_p is computed from what was sent, so that f_p(t+1) is a
public affine function of one noised sum of clipped gradients at a public point, which a record
moves by at most `clip`. Gaussian on every record, or its sampled kinds, composed over all
iterations. "Dynamic" privacy, the loss of each single iteration, is that of one entry of the
ledger. Relation: the plan's; trust model: `all-messages`, which show each sum: the bound is tight.
The paper's formula is of another mechanism: no claim. Proof: `docs/proofs/graph-admm.md`.
"""

from __future__ import annotations

from typing import Any

from tacit.algorithms.admm.graph import (
    DUALS,
    ONE_ROUND,
    GraphAdmmOptions,
    GraphAdmmState,
    iterate,
    start,
)
from tacit.algorithms.base import Algorithm
from tacit.algorithms.context import StepContext
from tacit.algorithms.facets import GraphNeeds, PaperClaims, Participation, Releases, any_clip
from tacit.algorithms.parts import noised_gradient


def step(
    state: GraphAdmmState, k: int, options: GraphAdmmOptions, context: StepContext
) -> GraphAdmmState:
    """Iteration t = k, with a noised gradient of its own."""
    return iterate(state, noised_gradient(state.x, k, context), k, options, context)


DDP_ADMM: Algorithm[Any, Any] = Algorithm(
    name="ddp-admm-gradient",
    title="DDP-ADMM by gradients",
    documentation=__doc__,
    options=GraphAdmmOptions,
    start=start,
    step=step,
    graph=GraphNeeds(
        fixed=True, one_round=ONE_ROUND, no_faults=dict.fromkeys(("tolerate", "down"), DUALS)
    ),
    releases=Releases(
        clip_norms=any_clip,
        bound_is_tight=True,
        no_pairwise="adds up in dual variables how far noised models stand apart: how fast the "
        "noise of pairs leaves the models then is not worked out",
    ),
    claims=PaperClaims(convex=True),
    participation=Participation(
        no_weights="pulls nodes together by one penalty, beside which weighed losses need others"
    ),
)
