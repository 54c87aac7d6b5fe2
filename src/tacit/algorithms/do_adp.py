"""DO-ADP: compressed gossip of randomly active nodes, with momentum (Huo, Liu, Ding, Johansson and
Shi (DO-ADP)).

| paper | here |
|---|---|
| x_{i,t} | `state.x`, `[nodes, d]` |
| m_{i,t}, momentum | `state.m`, `[nodes, d]` |
| x^_{i,t}, public copy, zero at the start | `state.copy`, `[nodes, d]` |
| sum_j w_ij x^_{j,t} | `state.near`, `[nodes, d]`: no copy of each neighbour is kept |
| W = I - L / iota, symmetric doubly stochastic | mixing matrix |
| eta_{i,t} ~ Bernoulli(p) | `StepContext.active`; p is `activation` |
| g + theta, theta ~ Normal(0, sigma^2 I) | noised gradient of the batch **mean** |
| G, bound of a gradient's norm | `clip` (C), enforced |
| alpha | `learning_rate` |
| beta | `momentum` |
| gamma | `consensus_step` |
| Top_k | `compressor`; k / d is `keep` |

With the old copies x^_t, at step t:

    active:    m_{t+1} = g + theta + beta m_t
               x_{t+1} = x_t - alpha m_{t+1} + gamma sum_j w_ij (x^_j - x^_i)
               s = Top_k(x_{t+1} - x^_i), which is sent
    inactive:  m_{t+1} = beta m_t,  x_{t+1} = x_t + gamma sum_j w_ij (x^_j - x^_i),  s = 0
    all:       x^_j += s_j

so sum_j w_ij x^_j moves by sum_j w_ij s_j. With `compressor = "none"` and p = 1 the copies are the
models: x_{t+1} = (1 - gamma) x_t + gamma W x_t - alpha m_{t+1} from equal starts, gossip with
momentum. |g_j| <= G / sqrt(d) for every coordinate, which the paper assumes of gradients, is
`clip_norm = "coordinate"`; any other clip norm will do.

Mechanism: `noised_sums` over the steps in which the node is active, since all that it sends is a
function of its noised gradients and of public values, its models and momentum included. Relation:
the plan's; trust model: `all-messages`. Each active step is charged in full: activation is visible
to everyone, and what Top_k leaves out is sent later. The published theorem charges p^2 and k / d,
and its delta is at least 0.447 at eps = 1. Proof: `docs/proofs/noised-gradients.md`.

*Claim*: the theorem's sigma over T = all steps, delta_0 = the claim's delta, its noise that of the
batch mean; `keep` counts as k / d whatever the compressor.

CHOCO-SGD with momentum: compressed gossip SGD with momentum, without noise (Koloskova, Stich and
Jaggi, ICML 2019). *Decentralized Stochastic Optimization and Gossip Algorithms with Compressed
Communication*: the same with p = 1 and sigma = 0, the non-private baseline. Its gossip too is with
the **old** public copies.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tacit.algorithms.accounting import NodeRun
from tacit.algorithms.base import (
    Algorithm,
    Momentum,
    Options,
    Setup,
    Share,
    any_clip,
    step_size,
)
from tacit.algorithms.context import StepContext
from tacit.algorithms.parts import (
    CompressorName,
    Keep,
    compressed,
    heavy_ball,
    independent,
    no_momentum,
    noised_gradient,
)
from tacit.communication import compression
from tacit.communication.colours import Released
from tacit.privacy.published import DO_ADP as PUBLISHED
from tacit.privacy.published import DoAdpRun


class CompressedGossipOptions(Options):
    """Options of every method with this step: without compression until it is asked for.

    The paper's experiments have `momentum` 0.15, `consensus_step` 0.05, `top-k` with `keep` 0.3 or
    0.4, and `activation` 0.8.
    """

    momentum: Momentum = 0.0
    consensus_step: Share = 0.3
    compressor: CompressorName = "none"
    keep: Keep = 1.0


class DoAdpOptions(CompressedGossipOptions):
    """Options of DO-ADP."""

    activation: Share = 1.0


class CompressedState(NamedTuple):
    """x, m (`[nodes, 0]` if unused), the own public copy, and the mixture of the copies near by.

    All `[nodes, d]`.
    """

    x: Tensor
    m: Tensor
    copy: Tensor
    near: Tensor


def start(x: Tensor, options: CompressedGossipOptions, context: StepContext) -> CompressedState:
    """x_{i,0} = x_0, m_0 = 0, x^_0 = 0."""
    return CompressedState(
        x, no_momentum(x, options.momentum), torch.zeros_like(x), torch.zeros_like(x)
    )


def step(
    state: CompressedState, k: int, options: CompressedGossipOptions, context: StepContext
) -> CompressedState:
    """Gossip with the old public copies, then compress the difference to them, then renew them."""
    active = context.active(k)
    g = noised_gradient(state.x, k, context)  # zero where a node is not active: m = beta m
    direction, m = heavy_ball(state.m, g, options.momentum)
    x = state.x.add(state.near - state.copy, alpha=options.consensus_step)
    moved = x.sub(direction, alpha=step_size(options, k, context.steps))
    x = torch.where(active, moved, x)

    s = compressed(x - state.copy, k, options, context).of(active)
    (near,) = context.exchange.mix(k, Released(s.values), coding=s.coding)
    return CompressedState(x, m, state.copy + s.values, near.add_(state.near))


def claimed_run(run: NodeRun) -> DoAdpRun:
    """What the theorem reads: sigma / G of the batch mean, T of all steps, active or not."""
    options: DoAdpOptions = run.options
    return DoAdpRun(
        records=run.records,
        steps=run.steps if run.completed is None else run.completed,
        noise_over_bound=run.noise_multiplier[0] / run.expected_batch,
        activation=options.activation,
        kept=numbers_sent(options, run.coordinates) / run.coordinates,
        failure=run.delta,
    )


def numbers_sent(options: CompressedGossipOptions, d: int) -> float:
    """How many of d numbers a message holds; where they belong is not counted."""
    return d if options.compressor == "none" else compression.kept(options.keep, d)


def check(setup: Setup) -> tuple[str, ...]:
    """Warns of a consensus step that public copies cannot follow: found by trying, no theorem."""
    options = setup.options
    share = options.keep * getattr(options, "activation", 1.0)
    if options.compressor not in ("rand-k", "bernoulli") or options.consensus_step <= share:
        return ()
    return (
        f"algorithm.consensus_step = {options.consensus_step:g} is above p k / d = {share:g}, and "
        f"coordinates that '{options.compressor}' leaves out for long may then grow without bound",
    )


CHOCO_SGD: Algorithm[CompressedState, Any] = Algorithm(
    name="choco-sgd",
    title="CHOCO-SGD with momentum",
    documentation=__doc__,
    weights="doubly-stochastic",
    options=CompressedGossipOptions,
    start=start,
    step=step,
    private=False,
    clip_norms=any_clip,
    claimed_run=claimed_run,
    fixed_graph=True,
    one_round="mixes public copies of the models, which only its compressed messages move: "
    "algorithm.consensus_step says how far a step goes towards the neighbours",
    check=check,
    message_numbers=numbers_sent,
)

DO_ADP = replace(
    CHOCO_SGD,
    name="do-adp",
    title="DO-ADP",
    options=DoAdpOptions,
    private=True,
    no_pairwise="sends compressed differences, in which a pair's noise would arrive in parts",
    formula=PUBLISHED,
    activity=independent,
    message_numbers=lambda options, d: options.activation * numbers_sent(options, d),
)
