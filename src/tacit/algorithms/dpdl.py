"""DPDL: steps along neighbours' noised cross-gradients, weighed by how alike they are (Yuan, Xiao,
Wang and Li, 2026).

arXiv 2606.04399, **by a reading** of its abstract and of a summary of its equations
(github.com/junaidaliop/zij, canon/math/dpdl.md). g^ij is of j's records at i's model:

    g~^i = sum_j [ g^ij / (sqrt(w_ij) N) + alpha w_ij C^ij g^ii ]        (j: the neighbours and i)
    v~^i = beta v^i + g~^i,  x~^i = x^i - eta v~^i,  v^i = sum_j w_ij v~^j,  x^i = sum_j w_ij x~^j.

C^ij = 1 / (1 + exp(cos(g^ij, g^ii))); eta, beta, alpha: `learning_rate`, `momentum`, `similarity`.
Open, and decided here: g^ii has noise, though the summary names none, since what is sent is made of
it; each gradient has a batch of its own; W is Metropolis; v starts at 0. No claim: the least noise
of its theorem was not at hand. **A step is one matching**: every node takes its own gradient, then
pairs of neighbours swap models and cross-gradients until each edge had its turn, and all mix.
Mechanism: `noised_sums` of 1 + d_i steps a round, each at a released point; similarities are post-
processing. Trust model: `all-messages`. Proof: `docs/proofs/noised-gradients.md`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from tacit.algorithms.base import Algorithm
from tacit.algorithms.context import StepContext
from tacit.algorithms.facets import FAULTS, SEEN_SUMS, Activity, GraphNeeds, Participation, Setup
from tacit.algorithms.options import Momentum, Options, step_size
from tacit.algorithms.parts import noised_gradient
from tacit.base.sending import sent
from tacit.communication.colours import Public, Released


class CrossOptions(Options):
    """Options of DPDL."""

    momentum: Momentum = 0.0
    similarity: Annotated[float, Field(ge=0, le=1e38, allow_inf_nan=False)] = 1.0


class CrossState(NamedTuple):
    """x, v, own noised gradient, the sum over neighbours so far, `[nodes, d]`; sum of their w."""

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
    x, v, own, total, shared = state

    def part(gradient: Tensor, weight: Tensor) -> Tensor:  # of g~; 0 where its w is 0
        alike = torch.nn.functional.cosine_similarity(gradient, own, dim=1).unsqueeze(1)
        taken = gradient * torch.where(weight > 0, weight.rsqrt() / context.count, 0.0)
        return taken + own * (options.similarity * weight * torch.sigmoid(-alike))

    if _begins(k, context):
        own, total, shared = noised_gradient(x, k, context), 0 * total, 0 * shared
    else:
        pairs, degrees = context.partner(k), _degrees(x, context)
        near, others = context.exchange.swap(k, pairs, Released(x), Public(degrees))
        cross = noised_gradient(near, k, context)
        (back,) = context.exchange.swap(k, pairs, Released(cross))
        weight = context.active(k) / (1 + torch.maximum(degrees, others))
        total, shared = total + part(back, weight), shared + weight
    if k + 1 == context.steps or _begins(k + 1, context):
        v = v * options.momentum + total + part(own, 1 - shared)
        descent = (Released(v), step_size(options, k, context.steps))
        x, v = context.exchange.mix(k, Released(x), Released(v), descent=descent)
    return CrossState(x, v, own, total, shared)


def _begins(k: int, context: StepContext) -> bool:
    """Whether a round begins: all nodes are active then, and paired with themselves."""
    return bool((context.flags(k) & (context.partner(k).numpy() == context.nodes)).any())


def _degrees(like: Tensor, context: StepContext) -> Tensor:
    """How many neighbours each node has: its pairs of the first round, `[nodes, 1]`."""
    paired, k = np.zeros(len(context.nodes)), 1
    while k < context.steps and not _begins(k, context):
        paired, k = paired + context.flags(k), k + 1
    return sent(torch.from_numpy(paired).to(like.dtype), like.device).unsqueeze(1)


def matchings(setup: Setup) -> Activity:
    """Who takes a gradient when, and at whose model: round after round, edges as they exclude."""
    edges = [(i, j) for i, near in enumerate(setup.neighbours) for j in near if i < j]
    everyone = np.arange(setup.nodes, dtype=np.int64)
    turns = _turns(setup.nodes, np.array(edges, np.int64).reshape(-1, 2))
    partner = np.tile(everyone, (2 + max(turns, default=-1), 1))
    for (i, j), turn in zip(edges, turns, strict=True):  # edges of one turn share no node
        partner[1 + turn, [i, j]] = j, i
    active = partner != everyone
    active[0] = True
    rows = np.arange(setup.steps) % len(partner)
    return Activity(active[rows], partner[rows], {"steps of a round": len(partner)})


def _turns(nodes: int, edges: NDArray[np.int64]) -> list[int]:
    """The turn of each edge `[edges, 2]`, the first that is free (Brelaz 1979).

    Edges with the most taken ones are first, then those with the most others at their ends.
    """
    degrees = np.bincount(edges.reshape(-1), minlength=nodes)
    near = np.argsort(edges.reshape(-1), kind="stable") // 2  # edges of node 0, of 1, ...
    starts, others = np.append(0, degrees.cumsum()), edges.sum(axis=1)
    taken = np.zeros((nodes, 2 * int(degrees.max(initial=1))), np.bool_)
    turns, excluded, most = np.full(len(edges), -1), np.zeros(len(edges)), 2.0 * len(edges) + 1
    excluded += degrees[edges].sum(axis=1) / most  # ties
    for _ in edges:
        edge = int(excluded.argmax())
        turns[edge] = turn = int((taken[edges[edge]].any(axis=0)).argmin())
        excluded[edge] = -np.inf
        for node in edges[edge]:
            beside = near[starts[node] : starts[node + 1]]
            excluded[beside] += ~taken[others[beside] - node, turn]
        taken[edges[edge], turn] = True
    return [int(turn) for turn in turns]


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
        message_numbers=lambda options, d: 4 * d + 1,  # to a neighbour a round, and back
        no_faults=dict.fromkeys(FAULTS, "takes the matchings of a round one after the other"),
    ),
    releases=replace(
        SEEN_SUMS, no_pairwise="multiplies each noised gradient by a factor of its own"
    ),
    participation=Participation(activity=matchings, no_weights="weighs gradients by likeness"),
)
