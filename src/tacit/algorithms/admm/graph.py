"""Consensus ADMM on a graph, without a server, with a linearised local step: what rows share.

minimise sum_i O_i(x_i) subject to x_i = z_ij = x_j on every edge, by the augmented Lagrangian with
penalty eta w_ij on edge ij. With the edges' variables z_ij and half of the multipliers eliminated
(Forero, Cano and Giannakis, *Consensus-based distributed support vector machines*, JMLR 2010), a
node keeps one primal and one dual variable, and one iteration is

    x_i(t+1) = argmin_x O_i(x) + 2 <lambda_i(t), x> + eta sum_j w_ij |x - (x_i(t) + x_j(t)) / 2|^2
    lambda_i(t+1) = lambda_i(t) + (theta / 2) sum_j w_ij (x_i(t+1) - x_j(t+1)),   theta = eta.

Papers have unit weights on edges. Here they are those of the mixing matrix W, which is symmetric;
the node itself is a neighbour of weight w_ii, which adds eta w_ii |x - x_i(t)|^2: a proximal term.
With `mixing = "laplacian"` and all degrees alike this is the papers' form with penalty eta / iota.

M-ADMM has a penalty eta_t of each iteration, and theta apart from it. O_i is replaced by
<g~, x> + |x - x_i(t)|^2 / (2 gamma), with g~ the noised mean of clipped gradients at x_i(t) and
gamma the learning rate. The minimiser is then explicit:

    x_i(t+1) = x_i(t) - (g~ + dR(x_i(t)) + 2 lambda_i(t) + eta_t sum_j w_ij (x_i(t) - x_j(t)))
                        / (1/gamma + 2 eta_t).

That, and not the papers' objective with noise in it, is what a message may be a function of: see
`docs/proofs/graph-admm.md`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tacit.algorithms.admm.parts import SUBGRADIENTS, Subgradient
from tacit.algorithms.context import StepContext
from tacit.algorithms.options import Options, Size, step_size
from tacit.algorithms.parts import Regularisation
from tacit.communication.colours import Released
from tacit.errors import InputError

ONE_ROUND = (
    "adds what one exchange shows of its neighbours to its dual variable, and further rounds "
    "would leave that behind: algorithm.penalty says how hard models are pulled together"
)


DUALS = (
    "keeps dual variables, which move a node at every step, and which sum to zero over all nodes "
    "only while an edge works both ways or not at all: otherwise what the nodes agree on would move"
)

LARGEST = math.log(1e38)
"""The logarithm of the largest weight: about that of the largest number of float32."""


class GraphAdmmOptions(Options):
    """Options of every ADMM on a graph."""

    penalty: Size = 1.0
    regulariser: Subgradient = "none"
    regularisation: Regularisation = 0.01


class GraphAdmmState(NamedTuple):
    """Models x, sum_j w_ij (x_i - x_j), dual variables lambda, `[nodes, d]` each.

    All are functions of messages, and so public.
    """

    x: Tensor
    spread: Tensor
    dual: Tensor


def start(x: Tensor, options: GraphAdmmOptions, context: StepContext) -> GraphAdmmState:
    """All nodes at x^0, lambda_i = 0."""
    return GraphAdmmState(x, torch.zeros_like(x), torch.zeros_like(x))


def weights_of(options: GraphAdmmOptions, k: int) -> tuple[float, float]:
    """The penalty eta_k and the dual step theta of step k.

    A growth that the options do not have is 1; a dual step that they do not have is `penalty`.

    Raises:
        InputError: on `algorithm.penalty_growth`, the penalty leaves the range of float32.
    """
    growth: float = getattr(options, "penalty_growth", 1.0)
    dual_step: float | None = getattr(options, "dual_step", None)
    if math.log(options.penalty) + k * math.log(growth) > LARGEST:
        raise InputError(
            "algorithm.penalty_growth",
            growth,
            f"the penalty of step {k} would be above 1e38: choose a factor nearer to 1",
        )
    return options.penalty * growth**k, options.penalty if dual_step is None else dual_step


def iterate(
    state: GraphAdmmState, g: Tensor, k: int, options: GraphAdmmOptions, context: StepContext
) -> GraphAdmmState:
    """One iteration: the explicit minimiser, one message to each neighbour, the dual variable.

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
