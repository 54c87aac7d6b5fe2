"""Consensus ADMM on a graph, without a server, with a linearised local step.

DDP-ADMM by gradients: ADMM on a graph with noise in the dual variable of the local step, whose
loss is linearised (T. Zhang and Zhu, IEEE TIFS 2017, by gradient perturbation). *Dynamic
Differential Privacy for ADMM-Based Distributed Classification Learning*, of which this is dual
variable perturbation.

DP-MADMM by gradients: ADMM on a graph whose penalty rises, and the noise in gradients with it,
apart from the dual step (X. Zhang, Khalili and Liu, ICML 2018, by gradient perturbation).
*Improving the Privacy and Accuracy of ADMM-Based Distributed Algorithms*.

DP-RADMM by gradients: ADMM on a graph that takes each noised gradient twice, so that every other
iteration costs no privacy (X. Zhang, Khalili and Liu, Allerton 2018, by gradient perturbation).
*Recycled ADMM: Improve Privacy and Accuracy with Less Computation in Distributed Algorithms*.

minimise sum_i O_i(x_i) subject to x_i = z_ij = x_j on every edge, by the augmented Lagrangian with
penalty eta w_ij on edge ij. With the edges' variables z_ij and half of the multipliers eliminated
(Forero, Cano and Giannakis, *Consensus-based distributed support vector machines*, JMLR 2010), a
node keeps one primal and one dual variable, and one iteration is

    x_i(t+1) = argmin_x O_i(x) + 2 <lambda_i(t), x> + eta sum_j w_ij |x - (x_i(t) + x_j(t)) / 2|^2
    lambda_i(t+1) = lambda_i(t) + (theta / 2) sum_j w_ij (x_i(t+1) - x_j(t+1)),   theta = eta.

O_i is replaced by <g~, x> + |x - x_i(t)|^2 / (2 gamma), with g~ the noised mean of clipped
gradients at x_i(t) and gamma the learning rate. The minimiser is then explicit:

    x_i(t+1) = x_i(t) - (g~ + dR(x_i(t)) + 2 lambda_i(t) + eta_t sum_j w_ij (x_i(t) - x_j(t)))
                        / (1/gamma + 2 eta_t).

| papers | here |
|---|---|
| f_i(t), classifier of node i | x_i(t), `state.x`, `[nodes, d]` |
| lambda_i(t), dual variable | `state.dual`, `[nodes, d]` |
| sum over neighbours of f_i - f_j, with unit weights | `state.spread`, weighed by W |
| eta, penalty and dual step | `penalty` |
| rho R, regulariser | `regulariser`, `regularisation`; by its subgradient |
| Z_p, O: empirical loss, minimised | its linearisation at f_i(t), with `learning_rate` |
| noise of density exp(-zeta norm) | Gaussian, of the planned deviation |
| DDP-ADMM: mu_i = lambda_i + noise, in the local step | 2 mu = 2 lambda + noise of the gradient |
| DP-MADMM: eta_i(t+1), penalty of an iteration | eta_k = `penalty` * `penalty_growth`^k, of all |
| DP-MADMM: theta, step of the dual variable | `dual_step`; by default `penalty` |
| DP-MADMM: epsilon_i(t), noise in the penalty term | noise of the gradient over 2 eta_k |
| DP-MADMM: 1 / alpha_i(t), size of that noise | proportional to `noise_decay`^k |
| DP-RADMM: iteration 2k - 1 (odd, from 1), of the data | steps 0, 2, 4, ... |
| DP-RADMM: iteration 2k (even), of the last result | steps 1, 3, 5, ... |
| DP-RADMM: grad O(f_i(2k-1)) + noise | g~ of the odd iteration, `state.g`, `[nodes, d]` |
| DP-RADMM: gamma, weight of half the square of f - f_i(2k-1) | 1 / `learning_rate`, in all |

*Weights.* Papers have unit weights on edges. Here they are those of the mixing matrix W, which is
symmetric; the node itself is a neighbour of weight w_ii, which adds eta w_ii |x - x_i(t)|^2: a
proximal term. With `mixing = "laplacian"` and all degrees alike this is the papers' form with
penalty eta / iota.

*What is another here.* The papers minimise a perturbed objective exactly, for losses with bounded
second derivatives, and their pure epsilon rests on that. No machine does so: here the noise hides
clipped gradients, whatever the loss. *Primal* variable perturbation is left out: its node goes on
from an un-noised minimiser, which is private state. In DP-MADMM the penalty of a step is the same
at all nodes. In DP-RADMM grad O(f_i(2k-1)) + noise follows from the released f_i(2k-1) by the
condition of the minimum; here the odd iteration is linearised as well, g~ stands for that gradient
in both, and it is the one at f_i(2k-2). The regulariser is public, and its subgradient is taken
anew each time.

*Noise that is correlated with the penalty.* DP-MADMM adds epsilon_i to the point (f_i + f_j) / 2
that the penalty eta_k pulls towards, which is the term -2 eta_k <epsilon_i, f> of the objective:
noise of 2 eta_k epsilon_i in the gradient. With epsilon_i of a constant size an iteration costs the
less privacy the higher its penalty. So the multiplier of step k is proportional to
(`penalty_growth` `noise_decay`)^k.

Mechanism: x_i(t) is what was sent, lambda_i is computed from what was sent, so that x_i(t+1) is a
public affine function of one noised sum of clipped gradients at a public point, which a record
moves by at most `clip`; that, and not the papers' objective with noise in it, is what a message may
be a function of. Gaussian on every record, or its sampled kinds, composed over all iterations;
"dynamic" privacy, the loss of each single iteration, is that of one entry of the ledger. In
DP-RADMM g~ is itself a public affine function of two messages, so that even iterations are
post-processing, and ceil(K / 2) of K are composed. Relation: the plan's; trust model:
`all-messages`, which show each sum: the bound is tight. The papers' formulas are of other
mechanisms: no claim. Proof: `docs/proofs/graph-admm.md`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from tacit.algorithms.base import Algorithm
from tacit.algorithms.context import StepContext
from tacit.algorithms.facets import (
    Activity,
    GraphNeeds,
    PaperClaims,
    Participation,
    Releases,
    Setup,
    any_clip,
)
from tacit.algorithms.options import Options, Schedules, Share, Size, step_size
from tacit.algorithms.parts import SUBGRADIENTS, Regularisation, Subgradient, noised_gradient
from tacit.communication.colours import Released
from tacit.errors import InputError

LARGEST = math.log(1e38)
"""The logarithm of the largest weight: about that of the largest number of float32."""


class GraphAdmmOptions(Options):
    """Options of every ADMM on a graph."""

    penalty: Size = 1.0
    regulariser: Subgradient = "none"
    regularisation: Regularisation = 0.01


class ModifiedAdmmOptions(GraphAdmmOptions):
    """Options of DP-MADMM."""

    penalty_growth: Annotated[float, Field(ge=1, le=1e38, allow_inf_nan=False)] = 1.01
    noise_decay: Share = 1.0
    dual_step: Size | None = None


class GraphAdmmState(NamedTuple):
    """Models x, sum_j w_ij (x_i - x_j), dual variables lambda, `[nodes, d]` each.

    All are functions of messages, and so public.
    """

    x: Tensor
    spread: Tensor
    dual: Tensor


class RecycledState(NamedTuple):
    """As `GraphAdmmState`, and the last noised gradient: `[nodes, d]` each."""

    x: Tensor
    spread: Tensor
    dual: Tensor
    g: Tensor


def start(x: Tensor, options: GraphAdmmOptions, context: StepContext) -> GraphAdmmState:
    """All nodes at x^0, lambda_i = 0."""
    return GraphAdmmState(x, torch.zeros_like(x), torch.zeros_like(x))


def recycled_start(x: Tensor, options: GraphAdmmOptions, context: StepContext) -> RecycledState:
    """The same, with no gradient yet."""
    return RecycledState(*start(x, options, context), g=torch.zeros_like(x))


def weights_of(options: GraphAdmmOptions, k: int) -> tuple[float, float]:
    """The penalty eta_k and the dual step theta of step k.

    A growth that the options do not have is 1; a dual step that they do not have is `penalty`.

    Raises:
        InputError: on `algorithm.penalty_growth`, the penalty leaves the range of float32.
    """
    growth: float = getattr(options, "penalty_growth", 1.0)
    dual_step: float | None = getattr(options, "dual_step", None)
    if math.log(options.penalty) + k * math.log(growth) > LARGEST:
        expected = f"the penalty of step {k} would be above 1e38: choose a factor nearer to 1"
        raise InputError("algorithm.penalty_growth", growth, expected)
    return options.penalty * growth**k, options.penalty if dual_step is None else dual_step


def schedules(options: ModifiedAdmmOptions, clip: float | None, steps: int) -> Schedules:
    """A constant clipping bound; multipliers proportional to eta_k `noise_decay`^k.

    Raises:
        InputError: on `algorithm.penalty_growth` or `algorithm.noise_decay`, which leave the range
            of float32 within these steps.
    """
    weights_of(options, steps - 1)
    if (steps - 1) * math.log(options.noise_decay) < -LARGEST:
        raise InputError(
            "algorithm.noise_decay",
            options.noise_decay,
            f"the noise of step {steps - 1} would be below 1e-38 of that of step 0: choose a "
            "factor nearer to 1",
        )
    return Schedules(
        None if clip is None else (clip,) * steps,
        tuple(options.penalty_growth**k * options.noise_decay**k for k in range(steps)),
    )


def step(
    state: GraphAdmmState, k: int, options: GraphAdmmOptions, context: StepContext
) -> GraphAdmmState:
    """Iteration t = k, with a noised gradient of its own."""
    return _iterate(state, noised_gradient(state.x, k, context), k, options, context)


def recycled_step(
    state: RecycledState, k: int, options: GraphAdmmOptions, context: StepContext
) -> RecycledState:
    """Iteration t = k, with a noised gradient of its own or with the last one."""
    fresh = noised_gradient(state.x, k, context)  # zero where nobody takes part
    g = torch.where(context.active(k), fresh, state.g)
    return RecycledState(*_iterate(GraphAdmmState(*state[:3]), g, k, options, context), g=g)


def _iterate(
    state: GraphAdmmState, g: Tensor, k: int, options: GraphAdmmOptions, context: StepContext
) -> GraphAdmmState:
    """The explicit minimiser, one message to each neighbour, the dual variable.

    `g` is the noised mean of clipped gradients, `[nodes, d]`, and k is t of the formulas above.
    """
    x, spread, dual = state
    penalty, dual_step = weights_of(options, k)
    pull = g + options.regularisation * SUBGRADIENTS[options.regulariser](x)
    pull = pull.add(dual, alpha=2).add(spread, alpha=penalty)
    x = x - pull / (1 / step_size(options, k, context.steps) + 2 * penalty)
    (mixed,) = context.exchange.mix(k, Released(x))
    spread = x - mixed
    return GraphAdmmState(x, spread, dual.add(spread, alpha=dual_step / 2))


def every_other(setup: Setup) -> Activity:
    """Steps 0, 2, 4, ... (the paper's odd iterations, from 1) of all nodes, by a public rule.

    It says who takes a gradient. Everybody sends in every step.
    """
    fresh = np.arange(setup.steps) % 2 == 0
    return Activity(np.repeat(fresh[:, None], setup.nodes, axis=1))


DDP_ADMM: Algorithm[Any, Any] = Algorithm(
    name="ddp-admm-gradient",
    title="DDP-ADMM by gradients",
    documentation=__doc__,
    options=GraphAdmmOptions,
    start=start,
    step=step,
    graph=GraphNeeds(
        fixed=True,
        one_round="adds what one exchange shows of its neighbours to its dual variable, and "
        "further rounds would leave that behind: algorithm.penalty says how hard models are pulled "
        "together",
        no_faults=dict.fromkeys(
            ("tolerate", "down"),
            "keeps dual variables, which move a node at every step, and which sum to zero over all "
            "nodes only while an edge works both ways or not at all: otherwise what the nodes "
            "agree on would move",
        ),
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

M_ADMM = replace(
    DDP_ADMM,
    name="dp-madmm-gradient",
    title="DP-MADMM by gradients",
    options=ModifiedAdmmOptions,
    schedules=schedules,
)

R_ADMM = replace(
    DDP_ADMM,
    name="dp-radmm-gradient",
    title="DP-RADMM by gradients",
    start=recycled_start,
    step=recycled_step,
    participation=replace(DDP_ADMM.participation, activity=every_other),
)
