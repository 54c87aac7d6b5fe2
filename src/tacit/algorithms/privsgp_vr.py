"""PrivSGP-VR: PrivSGP with variance reduction, by a gradient table or by released anchors (Zhu,
Huang, Wang and Xu, IJCAI 2024).

Algorithm 1 of *PrivSGP-VR: Differentially Private Variance-Reduced Stochastic Gradient Push with
Tight Utility Bounds*, in batch form: q = b / J is the sampling rate, B the batch of step k.

| paper | here |
|---|---|
| x_i^k, w_i^k, z_i^k = x_i^k / w_i^k | `State.x`, `State.w`, `privsgp.de_biased` |
| gamma, P^k | `learning_rate`, mixing matrix of step k |
| table grad f_i(phi_j; j) | `context.table`: one **clipped** gradient a record, never sent |
| G, bound of a gradient's norm | `clip` (C), enforced |
| g, difference of gradients plus mean of the table | (sum_B (new - old) + q sum_j old_j) / (q J) |
| sigma_i | standard deviation of the noise in the batch mean |
| - | `clip_difference` (C_d), `table_batch`, `table_directory`, anchors, `momentum` |

The order is the paper's: the table's mean is that of before the step; then the drawn entries are
renewed. Mechanism, with the estimators in `variance_reduction`:

- `state = "private"`, the paper's table: Theorem A with Poisson batches (a record moves the sum by
  at most (2 - q) C where it is drawn **and q C at every other step**), else Bound B;
- `state = "public"`, the default: anchors at public points, released with noise of their own, and
  ordinary amplified accounting.

Relation: the plan's; trust model: `all-messages`. The paper's accounting takes a bound of the norm
for what a replaced record moves, and the steps for a subsampled mechanism, which they are not.
Proofs: `docs/proofs/variance-reduction.md`; what either state buys: `docs/variance-reduction.md`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from torch import Tensor

from tacit.algorithms import privsgp
from tacit.algorithms.accounting import NodeRun, claimed_sums
from tacit.algorithms.context import StepContext
from tacit.algorithms.privsgp import PushSumOptions
from tacit.algorithms.variance_reduction import (
    Anchor,
    AnchorOptions,
    TableOptions,
    by_anchor,
    by_table,
    check_differences,
    reduced_sums,
    table_request,
)
from tacit.privacy.published import PRIVSGP as PUBLISHED
from tacit.privacy.published import ClaimedRun, FormulaCondition, PublishedFormula


class VarianceReductionOptions(PushSumOptions, AnchorOptions, TableOptions):
    """Options of PrivSGP-VR."""

    state: Literal["public", "private"] = "public"


class State(NamedTuple):
    """x, w and m of `privsgp`; anchor point and released anchor `[nodes, d]`, or `[nodes, 0]`."""

    x: Tensor
    w: Tensor
    m: Tensor
    point: Tensor
    anchor: Tensor


def start(x: Tensor, options: VarianceReductionOptions, context: StepContext) -> State:
    """As PrivSGP; the table begins with every record's gradient at z^0."""
    none = x.new_zeros(len(x), 0)
    if options.state == "private":
        context.table.fill(x)
        return State(*privsgp.start(x, options, context), none, none.clone())
    return State(*privsgp.start(x, options, context), x.clone(), x.new_zeros(x.shape))


def step(state: State, k: int, options: VarianceReductionOptions, context: StepContext) -> State:
    """Step k of Algorithm 1, with the table or with anchors."""
    plain, anchor = _plain(state), Anchor(state.point, state.anchor)
    z = privsgp.de_biased(plain)
    if options.state == "private":
        g = by_table(z, k, options, context)
    else:
        g, anchor = by_anchor(z, k, options, context, anchor)
    return State(*privsgp.pushed(plain, g, k, options, context), *anchor)


def _plain(state: State) -> privsgp.State:
    return privsgp.State(state.x, state.w, state.m)


@dataclass(frozen=True)
class ClaimedTable(ClaimedRun):
    """What Theorem 2 reads, and whether the run is what it is about.

    Args:
        state: of the options.
    """

    state: str = "private"


def claimed_run(run: NodeRun) -> ClaimedTable:
    """The noise of the steps, for `state = "public"` of those that release no anchor."""
    return ClaimedTable(**vars(claimed_sums(run)), state=run.options.state)


def _conditions(run: ClaimedTable) -> tuple[FormulaCondition, ...]:
    table = FormulaCondition(
        f"printed for a private gradient table (state = '{run.state}' here)", run.state == "private"
    )
    return (*PUBLISHED.conditions(run), table)


CLAIM = PublishedFormula(
    statement=PUBLISHED.statement,
    source=PUBLISHED.source,
    reading=PUBLISHED.reading,
    epsilon=PUBLISHED.epsilon,
    conditions=_conditions,
)


PRIVSGP_VR = replace(
    privsgp.PRIVSGP,
    name="privsgp-vr",
    title="PrivSGP-VR",
    documentation=__doc__,
    options=VarianceReductionOptions,
    start=start,
    step=step,
    mechanism=reduced_sums,
    bound_is_tight=False,
    formula=CLAIM,
    claimed_run=claimed_run,
    cost_depends_on_step=lambda options: options.state == "public",
    check=check_differences,
    table=table_request,
    not_covered=("the gradient table of state = 'private', in memory and in checkpoints",),
)
