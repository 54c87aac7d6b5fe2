r"""DO-ADP: compressed gossip of randomly active nodes, with momentum (Huo, Liu, Ding, Johansson and
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
| 1 / q, twice the weight of the ridge term in f_i | `weight_decay`, the same for all nodes |
| gamma | `consensus_step`; `"paper"` is that of Theorem 1, from p, k / d and the spectrum of W |
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

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from tacit.algorithms.accounting import NodeRun
from tacit.algorithms.base import Algorithm
from tacit.algorithms.context import StepContext
from tacit.algorithms.facets import (
    FAULTS,
    GraphNeeds,
    PaperClaims,
    Participation,
    Releases,
    Setup,
    any_clip,
)
from tacit.algorithms.options import Momentum, Options, Share, step_size
from tacit.algorithms.parts import (
    CompressorName,
    Keep,
    WeightDecay,
    compressed,
    heavy_ball,
    independent,
    keeps_back,
    no_momentum,
    noised_gradient,
    with_weight_decay,
)
from tacit.algorithms.promise import PromisedRun, constant_rate, promised
from tacit.communication import compression
from tacit.communication.colours import Released
from tacit.errors import InputError
from tacit.privacy.published import DO_ADP as PUBLISHED
from tacit.privacy.published import DoAdpRun, FormulaCondition
from tacit.privacy.published.do_adp import (
    DoAdpTask,
    do_adp_bound,
    do_adp_consensus_step,
    do_adp_contraction,
    do_adp_disagreement,
    do_adp_momentum,
    do_adp_order,
)
from tacit.report.documents.plan import PlannedPromise
from tacit.topology.mixing import Mixing

PAPER: Literal["paper"] = "paper"
MOST_EIGENVALUES = 2000
"""Nodes of which all eigenvalues of W are computed: some seconds."""

ConsensusStep = Annotated[float, Field(gt=0, le=1)] | Literal["paper"]


class CompressedGossipOptions(Options):
    """Options of every method with this step: without compression until it is asked for.

    The paper's experiments have `momentum` 0.15, `consensus_step` 0.05, `top-k` with `keep` 0.3 or
    0.4, and `activation` 0.8. `consensus_step = "paper"` takes that of the convergence theorem.
    """

    momentum: Momentum = 0.0
    consensus_step: ConsensusStep = 0.3
    compressor: CompressorName = "none"
    keep: Keep = 1.0
    weight_decay: WeightDecay = 0.0


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
    g = with_weight_decay(g, state.x, options.weight_decay, active)
    direction, m = heavy_ball(state.m, g, options.momentum)
    gamma = float(options.consensus_step)  # a number since the plan was made: see `settled`
    x = state.x.add(state.near - state.copy, alpha=gamma)
    moved = x.sub(direction, alpha=step_size(options, k, context.steps))
    x = torch.where(active, moved, x)

    s = compressed(x - state.copy, k, options, context).of(active, context.flags(k))
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
        kept=compression.share_sent(options.compressor, options.keep, run.coordinates),
        failure=run.delta,
    )


def spectrum(mixing: Mixing) -> tuple[float, float]:
    """Rho, 1 less the second largest modulus of W's eigenvalues, and phi = ||I - W||_2."""
    eigenvalues = np.asarray(np.linalg.eigvalsh(mixing.weights[0].matrix()), np.float64)
    moduli = np.sort(np.abs(eigenvalues))
    gap = 1.0 if len(moduli) == 1 else 1.0 - float(moduli[-2])
    return gap, float(np.abs(1.0 - eigenvalues).max())


def sent_share(options: CompressedGossipOptions, d: int) -> float:
    """The share p k / d of a dense exchange that a step sends."""
    kept = compression.share_sent(options.compressor, options.keep, d)
    return kept * float(getattr(options, "activation", 1.0))


def settled(
    options: CompressedGossipOptions, mixing: Mixing, d: int
) -> tuple[CompressedGossipOptions, str | None]:
    """Options whose `consensus_step` is a number, and a note with it.

    It is rounded to nine digits, so that processes on different machines have the same.

    Raises:
        InputError: on `algorithm.consensus_step`, where the paper's is 0, since the graph does not
            mix; or where there are more nodes than `MOST_EIGENVALUES`.
    """
    if options.consensus_step != PAPER:
        return options, None
    where, weights = "algorithm.consensus_step", mixing.weights[0]
    if weights.nodes > MOST_EIGENVALUES:
        expected = f"needs the eigenvalues of W, of at most {MOST_EIGENVALUES} nodes: give a number"
        raise InputError(where, PAPER, expected)
    exact = do_adp_consensus_step(*spectrum(mixing), sent_share(options, d))
    gamma = float(f"{exact:.9g}")
    if not gamma > 1e-12:
        expected = "is 0 on this graph, whose nodes never agree: give a number, or another graph"
        raise InputError(where, PAPER, expected)
    chosen = options.model_copy(update={"consensus_step": gamma})
    return chosen, f"consensus step: {gamma:.4g}, that of the paper's convergence theorem"


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


PROMISED = ("smoothness", "initial_gap")
_TERMS = (
    ("2 (1 - beta) (f(x_0) - f*) / (alpha p T)", "f(x_0) - f*"),
    ("of gradients and noise, G and varsigma at most C", "L and C"),
    ("of the nodes' disagreement", "L, C and rho of the graph"),
)


def promise(run: PromisedRun) -> PlannedPromise:
    """Theorem 2 at this noise, equations 9 and 10, Lemmas 2 and 3."""
    options, most = run.options, max(run.clip or (math.nan,))
    large = len(run.records) > MOST_EIGENVALUES
    gap, distance = (math.nan, math.nan) if large else spectrum(run.mixing)
    share = sent_share(options, run.parameters)
    task = DoAdpTask(
        nodes=len(run.records),
        parameters=run.parameters,
        smoothness=run.constants["smoothness"],
        start_gap=run.constants["initial_gap"],
        gradient_bound=most,
        variance=most**2,
        noise_variance=math.fsum(run.variances) / len(run.records),
        contraction=do_adp_contraction(gap, share) or math.nan,
        momentum=options.momentum,
        activation=options.activation,
    )
    rate = run.rates[0]
    best = math.sqrt(len(run.records) / run.steps)
    values = do_adp_bound(task, rate, run.steps)
    return promised(
        run,
        _TERMS,
        values,
        source="DO-ADP's Theorem 2",
        quantity="mean squared gradient norm of the mean model",
        reads=PROMISED,
        trivial_bound=most**2,
        order=do_adp_order(task, run.steps),
        figures={
            "bound at alpha = sqrt(n / T), equation 10": math.fsum(
                do_adp_bound(task, best, run.steps)
            ),
            "squared norm of the momentum, Lemma 2": do_adp_momentum(task),
            "squared distances from the mean model, Lemma 3": do_adp_disagreement(task, rate),
        },
        conditions=(*run.claim_conditions, *_theorem_2(run, task, gap, distance, share)),
    )


def _theorem_2(
    run: PromisedRun, task: DoAdpTask, gap: float, distance: float, share: float
) -> Iterator[FormulaCondition]:
    """What Theorem 2 and equation 10 need."""
    options, smoothness = run.options, task.smoothness
    gamma = do_adp_consensus_step(gap, distance, share)
    yield FormulaCondition(
        f"gamma of Theorem 1, algorithm.consensus_step = {gamma:.4g} "
        f"(here {options.consensus_step:g})",
        math.isclose(options.consensus_step, gamma, rel_tol=1e-3),
    )
    yield constant_rate(run, run.rates[0], "alpha")
    if not math.isnan(smoothness):
        most = (1 - options.momentum) ** 2 / (2 * smoothness)
        yield FormulaCondition(
            f"alpha below (1 - beta)^2 / (2 L) = {most:.4g} (here {max(run.rates):.4g})",
            max(run.rates) < most,
        )
        least = len(run.records) / most**2
        yield FormulaCondition(
            f"for equation 10, T >= 4 n L^2 / (1 - beta)^4 = {least:.4g} (here {run.steps})",
            run.steps >= least,
        )
    yield FormulaCondition(
        "gradients that stay within their bound by themselves (here they are clipped to it)",
        options.clip_norm == "assumed",
    )


COPIES = (
    "keeps public copies of its neighbours, which messages move by differences: one that is lost "
    "would leave the copies apart for ever"
)

CHOCO_SGD: Algorithm[CompressedState, Any] = Algorithm(
    name="choco-sgd",
    title="CHOCO-SGD with momentum",
    documentation=__doc__,
    options=CompressedGossipOptions,
    start=start,
    step=step,
    private=False,
    check=check,
    settled=settled,
    graph=GraphNeeds(
        fixed=True,
        no_faults=dict.fromkeys(FAULTS, COPIES),
        one_round="mixes public copies of the models, which only its compressed messages move: "
        "algorithm.consensus_step says how far a step goes towards the neighbours",
    ),
    releases=Releases(clip_norms=any_clip),
)

DO_ADP = replace(
    CHOCO_SGD,
    name="do-adp",
    title="DO-ADP",
    options=DoAdpOptions,
    private=True,
    releases=replace(
        CHOCO_SGD.releases,
        hides=keeps_back,
        no_pairwise="sends compressed differences, in which a pair's noise would arrive in parts",
    ),
    claims=PaperClaims(
        formula=PUBLISHED, run=claimed_run, promise_constants=PROMISED, promise=promise
    ),
    participation=Participation(activity=independent, silent=True),
)
