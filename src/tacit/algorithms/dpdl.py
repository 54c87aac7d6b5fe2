"""DPDL: steps along neighbours' noised cross-gradients, weighed by how alike they are (Yuan, Xiao,
Wang and Li, 2026).

*Towards Differential Privacy Preservation in Decentralized Stochastic Learning on Non-IID Data*,
arXiv 2606.04399. A cross-gradient is that of a neighbour's model on one's own records.

| summary of the paper | here |
|---|---|
| x^i, v^i | `state.x`, `state.v`, `[nodes, d]` |
| g^ii, own gradient | `state.own`: clipped **and noised** |
| g^ij, of j's records at i's model, noised | what `swap` brings back |
| C^ij = 1 / (1 + exp(cos(g^ij, g^ii))) | `_calibrated` |
| W, symmetric; N | Metropolis weights 1 / (1 + max(d_i, d_j)); `context.count` |
| eta, beta, alpha | `learning_rate`, `momentum`, `similarity` |

    g~^i = sum_j [ g^ij / (sqrt(w_ij) N) + alpha w_ij C^ij g^ii ]        (j: the neighbours and i)
    v~^i = beta v^i + g~^i,  x~^i = x^i - eta v~^i,  v^i = sum_j w_ij v~^j,  x^i = sum_j w_ij x~^j.

**A reading, not the paper**, whose text was not at hand: its abstract, and a summary with these
equations (github.com/junaidaliop/zij, canon/math/dpdl.md). Open, and decided here:

- The summary clips g^ii and does not noise it, but sends x~^i and v~^i, which are made of it: no
  noise of the cross-gradients covers that. Here it is noised as they are, one release more.
- Batches: every gradient draws one of its own. One batch for a round's 1 + d_i gradients would be a
  Gaussian of sqrt(1 + d_i) times the sensitivity, under the same noise.
- Neighbours: with i itself, as W has w_ii. W itself: Metropolis. Starts: v = 0, equal models.
- The noise level of the paper's theorem: the abstract names one and prints none. No claim.

**A step is one matching.** In the first step of a round every node takes its own gradient; in each
further one, pairs of neighbours swap models and send back cross-gradients, until every edge had its
turn; the last one mixes. A run that ends within a round mixes what it has.

Mechanism: node i releases one noised sum in 1 + d_i steps of a round, in which it is active: the
Poisson-sampled Gaussian (or that of a fixed batch) of so many steps, each at a point that was
released before. Similarities are of released gradients, and so are post-processing. Relation and
trust model: the plan's, `all-messages`. Proof: `docs/proofs/noised-gradients.md`.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import networkx
import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from tacit.algorithms.base import Algorithm
from tacit.algorithms.context import StepContext
from tacit.algorithms.facets import (
    FAULTS,
    SEEN_SUMS,
    Activity,
    GraphNeeds,
    Participation,
    Setup,
)
from tacit.algorithms.options import Momentum, Options, step_size
from tacit.algorithms.parts import noised_gradient
from tacit.base.sending import sent
from tacit.communication.colours import Public, Released


class CrossOptions(Options):
    """Options of DPDL."""

    momentum: Momentum = 0.0
    similarity: Annotated[float, Field(ge=0, le=1e38, allow_inf_nan=False)] = 1.0


class CrossState(NamedTuple):
    """x, v, own noised gradient and the sum over neighbours so far, `[nodes, d]`; sum of w_ij."""

    x: Tensor
    v: Tensor
    own: Tensor
    total: Tensor
    shared: Tensor


def start(x: Tensor, options: CrossOptions, context: StepContext) -> CrossState:
    """Equal models, and no velocity."""
    v, own, total = (torch.zeros_like(x) for _ in range(3))
    return CrossState(x, v, own, total, x.new_zeros(len(x), 1))


def step(state: CrossState, k: int, options: CrossOptions, context: StepContext) -> CrossState:
    """Own gradients, or cross-gradients of one matching; the last step of a round mixes."""
    if _begins(k, context):
        own = noised_gradient(state.x, k, context)
        total, shared = torch.zeros_like(own), torch.zeros_like(state.shared)
    else:
        pairs, degrees, own = context.partner(k), _degrees(state.x, context), state.own
        near, others = context.exchange.swap(k, pairs, Released(state.x), Public(degrees))
        cross = noised_gradient(near, k, context)
        (back,) = context.exchange.swap(k, pairs, Released(cross))
        weight = context.active(k) / (1 + torch.maximum(degrees, others))
        total = state.total + _calibrated(back, own, weight, options, context)
        shared = state.shared + weight
    if k + 1 < context.steps and not _begins(k + 1, context):
        return state._replace(own=own, total=total, shared=shared)
    v = state.v * options.momentum + total + _calibrated(own, own, 1 - shared, options, context)
    descent = (Released(v), step_size(options, k, context.steps))
    x, v = context.exchange.mix(k, Released(state.x), Released(v), descent=descent)
    return CrossState(x, v, own, total, shared)


def _calibrated(
    gradient: Tensor, own: Tensor, weight: Tensor, options: CrossOptions, context: StepContext
) -> Tensor:
    """A noised gradient's part of g~, `[nodes, d]`, by its w `[nodes, 1]`; 0 where that is 0."""
    alike = torch.nn.functional.cosine_similarity(gradient, own, dim=1).unsqueeze(1)
    taken = gradient * torch.where(weight > 0, weight.rsqrt() / context.count, 0.0)
    return taken + own * (options.similarity * weight * torch.sigmoid(-alike))


def _begins(k: int, context: StepContext) -> bool:
    """Whether a round begins: all nodes are active then, and paired with themselves."""
    alone = context.partner(k).numpy() == np.asarray(context.nodes)
    return bool((context.flags(k) & alone).any())


def _degrees(like: Tensor, context: StepContext) -> Tensor:
    """How many neighbours each node has: its pairs of the first round, `[nodes, 1]`."""
    paired, k = np.zeros(len(context.nodes)), 1
    while k < context.steps and not _begins(k, context):
        paired, k = paired + context.flags(k), k + 1
    return sent(torch.from_numpy(paired).to(like.dtype), like.device).unsqueeze(1)


def matchings(setup: Setup) -> Activity:
    """Who takes a gradient when, and at whose model: round after round, edges as they exclude."""
    edges = [(i, j) for i, near in enumerate(setup.neighbours) for j in near if i < j]
    # Edges of one colour share no node.
    colours = networkx.greedy_color(networkx.line_graph(networkx.Graph(edges)), "DSATUR")
    everyone = np.arange(setup.nodes, dtype=np.int64)
    partner = np.tile(everyone, (2 + max(colours.values(), default=-1), 1))
    for (i, j), colour in colours.items():
        partner[1 + colour, [i, j]] = j, i
    active = partner != everyone
    active[0] = True
    rows = np.arange(setup.steps) % len(partner)
    return Activity(active[rows], partner[rows], {"steps of a round": len(partner)})


DPDL = Algorithm(
    name="dpdl",
    title="DPDL",
    documentation=__doc__,
    options=CrossOptions,
    start=start,
    step=step,
    graph=GraphNeeds(
        fixed=True,
        one_round="mixes once in a round of matchings, of which each step is one",
        # Of every neighbour it meets: a model, a gradient back, and the two that are mixed.
        message_numbers=lambda options, d: 4 * d + 1,
        no_faults=dict.fromkeys(FAULTS, "takes the matchings of a round one after the other"),
    ),
    releases=SEEN_SUMS,
    participation=Participation(
        activity=matchings,
        no_weights="weighs its neighbours' gradients by how alike they are",
    ),
)
