"""PrivSGP: stochastic gradient push with constant clipping and noise (Zhu, Huang, Wang and Xu,
IJCAI 2024).

Algorithm 2 of *PrivSGP-VR: Differentially Private Variance-Reduced Stochastic Gradient Push with
Tight Utility Bounds*, over time-varying directed graphs with column-stochastic weights.

| paper | here |
|---|---|
| x_i^k | `state.x`, `[nodes, d]` |
| w_i^k, push-sum weight | `state.w`, `[nodes]` |
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

PrivSGP-VR: PrivSGP with variance reduction, by a gradient table or by released anchors. Algorithm 1
of the same paper, in batch form: q = b / J is the sampling rate, B the batch of step k.

| paper | here |
|---|---|
| table grad f_i(phi_j; j) | `context.table`: one **clipped** gradient a record, never sent |
| g, difference of gradients plus mean of the table | (sum_B (new - old) + q sum_j old_j) / (q J) |
| - | `clip_difference` (C_d), `table_batch`, `table_directory`, anchors, `momentum` |

The order is the paper's: the table's mean is that of before the step; then the drawn entries are
renewed. Mechanism, with the estimators in `variance_reduction`:

- `state = "private"`, the paper's table: Theorem A with Poisson batches (a record moves the sum by
  at most (2 - q) C where it is drawn **and q C at every other step**), else Bound B;
- `state = "public"`, the default: anchors at public points, released with noise of their own, and
  ordinary amplified accounting.

Relation: the plan's; trust model: `all-messages`. The paper's accounting takes a bound of the norm
for what a replaced record moves, and the steps for a subsampled mechanism, which they are not.
Proofs: `docs/proofs/variance-reduction.md`; what either state buys:
`docs/concepts/variance-reduction.md`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from tacit.algorithms.accounting import NodeRun, claimed_sums
from tacit.algorithms.base import Algorithm
from tacit.algorithms.context import StepContext
from tacit.algorithms.facets import SEEN_SUMS, GraphNeeds, NoisePath, PaperClaims, l2_clip
from tacit.algorithms.options import Momentum, Options, step_size
from tacit.algorithms.parts import heavy_ball, no_momentum, noised_gradient
from tacit.algorithms.promise import PromisedRun, constant_rate, promised
from tacit.algorithms.variance_reduction.estimators import (
    Anchor,
    AnchorOptions,
    TableOptions,
    anchor_ratio,
    by_anchor,
    by_table,
    check_differences,
    private_state,
    reduced_sums,
    table_request,
)
from tacit.communication.colours import Public, Released
from tacit.gradients.contributions import all_known_true
from tacit.privacy.published import PRIVSGP as PUBLISHED
from tacit.privacy.published import (
    BoundConstants,
    ClaimedRun,
    FormulaCondition,
    convergence_bound,
    least_steps,
    published_bound,
    published_steps,
    utility_order,
)
from tacit.report.documents.plan import PlannedPromise


class PushSumOptions(Options):
    """Options of every push-sum method."""

    momentum: Momentum = 0.0
    final_mixing: Annotated[int, Field(ge=0, le=100_000)] = 0


class PushSumState(NamedTuple):
    """x `[nodes, d]`, push-sum weights w `[nodes]`, momentum m `[nodes, d]` (`[nodes, 0]` if 0)."""

    x: Tensor
    w: Tensor
    m: Tensor


def start(x: Tensor, options: PushSumOptions, context: StepContext) -> PushSumState:
    """x_i^0 = z_i^0 = x^0, w_i^0 = 1."""
    return PushSumState(x, x.new_ones(len(x)), no_momentum(x, options.momentum))


def step(
    state: PushSumState, k: int, options: PushSumOptions, context: StepContext
) -> PushSumState:
    """Step k of Algorithm 2."""
    g = noised_gradient(de_biased(state), k, context)  # lines 1 to 3
    return pushed(state, g, k, options, context)


def pushed(
    state: PushSumState, g: Tensor, k: int, options: PushSumOptions, context: StepContext
) -> PushSumState:
    """Lines 4 and 5: the local update along a noised gradient g `[nodes, d]`, and push-sum."""
    direction, m = heavy_ball(state.m, g, options.momentum)
    # Line 4, x less the step along the direction, is taken on the way into line 5.
    descent = (Released(direction), step_size(options, k, context.steps))
    x, w = context.exchange.mix(k, Released(state.x), Public(state.w), descent=descent)
    return PushSumState(x, w, m)


def mix(
    state: PushSumState, k: int, options: PushSumOptions, context: StepContext, extra: int
) -> PushSumState:
    """One round of push-sum alone."""
    x, w = context.exchange.mix(k, Released(state.x), Public(state.w), extra=extra)
    return state._replace(x=x, w=w)


def restart(state: PushSumState, models: Tensor) -> PushSumState:
    """Push-sum from these models, of weight 1 each."""
    return state._replace(x=models, w=torch.ones_like(state.w))


def de_biased(state: PushSumState) -> Tensor:
    """The de-biased parameter z = x / w, `[nodes, d]`: x itself where all weights are 1."""
    # So they stay on regular graphs, and a division by 1 changes no bit.
    return state.x if all_known_true(state.w == 1) else state.x / state.w[:, None]


PRIVSGP: Algorithm[Any, Any] = Algorithm(
    name="privsgp",
    title="PrivSGP",
    documentation=__doc__,
    options=PushSumOptions,
    start=start,
    step=step,
    models=de_biased,
    steps_along="push-sum steps along noised gradients, over any graph",
    graph=GraphNeeds(
        weights="column-stochastic",
        gossip=mix,
        final_rounds=lambda options: options.final_mixing,
        restart=restart,
        noise_path=NoisePath("adapt-then-combine"),
        message_numbers=lambda options, d: d + 1,  # the push-sum weight
    ),
    releases=SEEN_SUMS,
    claims=PaperClaims(formula=PUBLISHED),
)

SGP = replace(PRIVSGP, name="sgp", title="SGP", private=False, claims=PaperClaims())


class VarianceReductionOptions(PushSumOptions, AnchorOptions, TableOptions):
    """Options of PrivSGP-VR."""

    state: Literal["public", "private"] = "public"


class ReducedState(NamedTuple):
    """x, w, m of `PushSumState`; anchor point and released anchor `[nodes, d]` or `[nodes, 0]`."""

    x: Tensor
    w: Tensor
    m: Tensor
    point: Tensor
    anchor: Tensor


def reduced_start(
    x: Tensor, options: VarianceReductionOptions, context: StepContext
) -> ReducedState:
    """As PrivSGP; the table begins with every record's gradient at z^0."""
    none = x.new_zeros(len(x), 0)
    if options.state == "private":
        context.table.fill(x)
        return ReducedState(*start(x, options, context), none, none.clone())
    return ReducedState(*start(x, options, context), x.clone(), x.new_zeros(x.shape))


def reduced_step(
    state: ReducedState, k: int, options: VarianceReductionOptions, context: StepContext
) -> ReducedState:
    """Step k of Algorithm 1, with the table or with anchors."""
    plain, anchor = PushSumState(*state[:3]), Anchor(*state[3:])
    z = de_biased(plain)
    if options.state == "private":
        g = by_table(z, k, options, context)
    else:
        g, anchor = by_anchor(z, k, options, context, anchor)
    return ReducedState(*pushed(plain, g, k, options, context), *anchor)


@dataclass(frozen=True)
class ClaimedTable(ClaimedRun):
    """What Theorem 2 reads, and the option `state`, by which the run is what it is about or not."""

    state: str = "private"


def claimed_run(run: NodeRun) -> ClaimedTable:
    """The noise of the steps, for `state = "public"` of those that release no anchor."""
    return ClaimedTable(**vars(claimed_sums(run)), state=run.options.state)


def _conditions(run: Any) -> tuple[FormulaCondition, ...]:
    table = FormulaCondition(
        f"printed for a private gradient table (state = '{run.state}' here)", run.state == "private"
    )
    return (*PUBLISHED.conditions(run), table)


def _weight(options: VarianceReductionOptions, k: int, steps: int, clip: float | None) -> float:
    anchors = options.state == "public" and k % options.anchor_every == 0
    return anchor_ratio(options, steps, clip) if anchors else 1.0


def promise(run: PromisedRun) -> PlannedPromise:
    """Theorem 1 with this noise; K* and bound of Corollary 1; Table 1, for nodes that are alike."""
    most = None if run.clip is None else max(run.clip)
    bound = math.nan
    best_steps = best_bound = order = None
    known = run.constants
    if not math.isnan(known["smoothness"] + known["heterogeneity"] + known["initial_gap"]):
        constants = BoundConstants(
            smoothness=known["smoothness"],
            heterogeneity=known["heterogeneity"],
            start_gap=known["initial_gap"],
            start_norm=run.start_norm,
            parameters=run.parameters,
        )
        bound = convergence_bound(constants, run.variances, run.steps)
        if run.budgets is not None and most is not None and constants.noiseless:
            paper = {"gradient_bound": most, "c2": run.c2}
            best_steps = published_steps(constants, run.budgets, **paper)
            best_bound = published_bound(constants, run.budgets, **paper)
    if run.budget is not None:
        order = utility_order(
            nodes=len(run.records),
            records=run.budget.records,
            parameters=run.parameters,
            epsilon=run.budget.epsilon,
            delta=run.budget.delta,
        )
    return promised(
        run,
        [("Theorem 1", "L, b^2 and F0")],
        [bound],
        source="PrivSGP-VR's Theorem 1 and Corollary 1",
        quantity="mean squared gradient norm",
        reads=("smoothness", "initial_gap", "heterogeneity"),
        best_steps=best_steps,
        best_bound=best_bound,
        trivial_bound=None if most is None else most**2,
        order=order,
        figures={},
        conditions=_theorem_1(run),
    )


def _theorem_1(run: PromisedRun) -> Iterator[FormulaCondition]:
    """What Theorem 1 needs, and whether the run has it."""
    batch, options = run.expected_batch, run.options
    yield FormulaCondition(f"one record a step (expected here {batch:.4g})", batch <= 1)
    yield constant_rate(run, math.sqrt(len(run.records) / run.steps), "sqrt(n / K)")
    smoothness, constant, rate = (
        run.constants[key] for key in ("smoothness", "push_sum_constant", "push_sum_rate")
    )
    if not math.isnan(smoothness):
        known = not math.isnan(constant)
        push_sum = {"push_sum_constant": constant, "push_sum_rate": rate} if known else {}
        least = least_steps(smoothness, run.records, **push_sum)
        about = "K^(C, q)" if known else "K^(C, q) on any graph"
        yield FormulaCondition(
            f"at least {least:.3g} steps, {about} (here {run.steps})", run.steps >= least
        )
    yield FormulaCondition(
        f"the gradient table as printed, algorithm.state = 'private' (here '{options.state}')",
        options.state == "private",
    )
    yield FormulaCondition(f"no momentum (here {options.momentum:g})", options.momentum == 0)
    yield FormulaCondition(
        "gradients that stay within their bound by themselves (here they are clipped to it)",
        run.clip is None,
    )


PRIVSGP_VR = replace(
    PRIVSGP,
    name="privsgp-vr",
    title="PrivSGP-VR",
    options=VarianceReductionOptions,
    start=reduced_start,
    step=reduced_step,
    steps_along="",
    check=check_differences,
    table=table_request,
    differences=True,
    graph=replace(
        PRIVSGP.graph,
        noise_path=NoisePath(
            "adapt-then-combine",
            # A released anchor is a part of all gradients until the next one.
            held=lambda options: options.anchor_every if options.state == "public" else 1,
            weight=_weight,
        ),
        no_faults={
            "down": "takes gradients as differences to a table or an anchor, which the accounting "
            "dates by every step of every node"
        },
    ),
    releases=replace(
        PRIVSGP.releases,
        mechanism=reduced_sums,
        clip_norms=l2_clip,
        bound_is_tight=False,
        cost_depends_on_step=lambda options: options.state == "public",
        not_covered=private_state,
    ),
    claims=PaperClaims(
        formula=replace(PUBLISHED, conditions=_conditions),
        run=claimed_run,
        promise_constants=(
            "smoothness",
            "initial_gap",
            "heterogeneity",
            "push_sum_constant",
            "push_sum_rate",
        ),
        promise=promise,
    ),
)
