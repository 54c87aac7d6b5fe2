"""How far one record may move what is noised, by the mechanism that is accounted for the node.

A mechanism states its noise multiplier z, the noise over the clipping bound, so that a release with
noise of deviation s may be moved by s / z. Everything here is in units of s, so that nothing of
what is under audit is needed: neither what a step calls its clipping bound, nor in which units it
adds noise.

| mechanism | at a step that draws the record | at any other step |
|---|---|---|
| `Gaussian`, `SampledGaussian`, `FixedBatchGaussian`, `Laplace` | 1 / z | 0 |
| `RandomAllocationGaussian`, `MatrixGaussian` | likewise | 0 |
| `PrivateState` | `drawn_norm` / z | `undrawn_norm` / z |

Of `PersistentState`, all releases up to a step, taken together as one vector, are moved by at most
the sum of 1 / z_j over the steps j up to it that drew the record.

This is what the record moves by being there. That it is *replaced* moves twice as much, under
either relation: one record goes and another comes. Where the bound is of replaced records alone
(`replace-one` with batches of fixed size, or of all records), a record that is *left out* may move
as much; where it is drawn by a coin, or under `add-or-remove-one`, half of that.

A unit's vector is made of `privacy.unit_rows` rows at most, and its epsilon is that of
`privacy.unit_nodes` nodes: the certificate of a person rests on whose rows are whose. Both are
compared with the records that the run holds, by their ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tacit.analysis.audit.fidelity.finding import Finding, exact_finding
from tacit.privacy import ADD_OR_REMOVE_ONE, Mechanism
from tacit.privacy.mechanisms.allocation import RandomAllocationGaussian
from tacit.privacy.mechanisms.matrix import MatrixGaussian
from tacit.privacy.mechanisms.steps import (
    FixedBatchGaussian,
    Gaussian,
    Laplace,
    PersistentState,
    PrivateState,
    SampledGaussian,
    schedule,
)
from tacit.training.job import Job
from tacit.training.plan import Plan
from tacit.training.release import NodePlan

_Pair = tuple[float, float]


@dataclass(frozen=True)
class Accounted:
    """What one record may move one release of a node, over the deviation of the noise in it.

    Args:
        drawn: where the step draws the record.
        undrawn: where it does not.
        alone: what a record that is left out may move, over the above; a replaced one may move 2.
        carried: whether `drawn` is what a draw adds to the bound of all releases from that step on,
            taken together as one vector.
        keeps: whether the node keeps gradients of every record, so that a sum over all of them
            draws none.
    """

    drawn: float
    undrawn: float
    alone: float
    carried: bool
    keeps: bool


def accounted(plan: Plan, node: NodePlan, steps: Sequence[int]) -> dict[int, Accounted]:
    """What the mechanism of the plan lets one record of a node move, at each of some steps.

    The node adds noise, and takes part in these steps.
    """
    found = {}
    for step in steps:
        mechanism = plan.release.mechanism(node, [(step, step + 1)])
        found[step] = of_step(mechanism)
        if type(mechanism) is PersistentState:
            # What a draw may do depends on all rounds that follow, hence on the whole mechanism.
            multipliers: Any = plan.release.mechanism(node)
            active = plan.release.active_steps(node)
            z = dict(zip(active, schedule(multipliers), strict=True))
            like = replace(found[step], undrawn=0.0, carried=True)
            return {own: replace(like, drawn=1 / z[own]) for own in steps}
    return found


def of_step(mechanism: Mechanism) -> Accounted:
    """What the mechanism of a single step lets one record move in it."""
    drawn, undrawn = _SHIFTS[type(mechanism)](mechanism)
    # By coins, a bound is of two records around a run that has neither of them.
    coins = type(mechanism) is SampledGaussian or getattr(mechanism, "sampling", "") == "poisson"
    return Accounted(
        drawn=drawn,
        undrawn=undrawn,
        alone=1.0 if coins or mechanism.relation == ADD_OR_REMOVE_ONE else 2.0,
        carried=False,
        keeps=type(mechanism) is PrivateState,
    )


def _plain(mechanism: Any) -> _Pair:
    return 1 / schedule(mechanism)[0], 0.0


def _in_turn(mechanism: MatrixGaussian) -> _Pair:
    step = mechanism.times.index(1) if mechanism.times else 0
    return 1 / schedule(mechanism)[step], 0.0  # what is handed to the noise, which adds the rest


def _kept(mechanism: PrivateState) -> _Pair:
    (multiplier,) = schedule(mechanism)
    return mechanism.drawn_norm / multiplier, mechanism.undrawn_norm / multiplier


_SHIFTS: Mapping[type[Mechanism], Callable[[Any], _Pair]] = {
    Gaussian: _plain,
    SampledGaussian: _plain,
    FixedBatchGaussian: _plain,
    # The other steps of its epoch are silent.
    RandomAllocationGaussian: lambda mechanism: (1 / min(schedule(mechanism)), 0.0),
    MatrixGaussian: _in_turn,
    Laplace: _plain,
    PersistentState: _plain,
    PrivateState: _kept,
}


def unit_findings(job: Job) -> list[Finding]:
    """Whether the rows of each unit are where and as many as is planned; none without units."""
    privacy, units = job.config.privacy, job.train.units
    if privacy.unit_column is None:
        return []
    wrong, saw = len(job.train.targets), "In this run every row is a record."
    if units is not None:
        names, nodes = np.unique(np.concatenate(units.ids), return_counts=True)
        apart = int((nodes > privacy.unit_nodes).sum())
        many = int((units.counts > privacy.unit_rows).sum())
        wrong = apart + many
        saw = f"None of {len(names):,} records had more rows, or rows at more nodes."
        if wrong:
            saw = (
                f"{apart:,} of {len(names):,} records had rows at more than {privacy.unit_nodes} "
                f"of the nodes, and {many:,} more than {privacy.unit_rows} rows at one."
            )
    return [
        exact_finding(
            "rows of a unit",
            "Has no record more rows than count, or rows at more nodes than are accounted?",
            wrong,
            "how many records have",
            saw,
            "Every such record of the nodes of this process is found. Ids of other processes are "
            "not compared.",
        )
    ]
