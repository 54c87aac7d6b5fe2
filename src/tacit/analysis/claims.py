"""What the papers claim against what is certified: `tacit privacy claims`, as data.

Without a file, the papers' own experiments (`tacit.privacy.published.paper_settings`); with one,
the plan of that experiment. Certified figures are upper bounds, rounded up; proved lower bounds are
rounded down; a claim is "does not hold" only where a lower bound lies above it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacit import privacy
from tacit.config import load_config
from tacit.privacy.published import FormulaCondition, PaperSetting, paper_settings
from tacit.report.documents.claims import ClaimRow, ClaimsDocument
from tacit.report.documents.run import ClaimCondition
from tacit.training.plan import NodePlan, Plan


def claims_document(file: Path | None = None, overrides: Sequence[str] = ()) -> ClaimsDocument:
    """Claimed and certified epsilon, row by row.

    Args:
        file: an experiment file; None takes the papers' own settings.
        overrides: `section.key=value` strings for the experiment.

    Raises:
        InputError: overrides without a file, or a fault in the experiment.
        BudgetError: a node's budget cannot be met.
    """
    if file is None and not overrides:
        rows = [_setting_row(setting) for setting in paper_settings()]
        source = "the papers' own settings"
    else:
        # Training libraries are loaded where there is an experiment only.
        from tacit.training.prepare import prepare

        plan = prepare(load_config({} if file is None else file, overrides=overrides)).plan
        rows = [_plan_row(plan, nodes) for nodes in _groups(plan)]
        source = str(file)
    return ClaimsDocument(format_version=1, source=source, rows=tuple(rows))


def verdict(
    claimed: float | None, lower: float | None, certified: float | None, missing: str
) -> str:
    """What is known about a claim: in two or three words, the same everywhere."""
    if claimed is None:
        return "not determined" if missing else "no claim"
    if lower is not None and lower > claimed:
        return "does not hold"
    if certified is not None and certified <= claimed:
        return "holds"
    return "not determined" if missing else "not shown"


def _setting_row(setting: PaperSetting) -> ClaimRow:
    lower = certified = None
    if setting.bounds is not None and setting.delta is not None:
        lower, certified = setting.bounds(setting.delta)
    return _row(
        paper=setting.paper,
        algorithm=setting.algorithm,
        experiment=setting.experiment,
        reading=setting.reading,
        kindest=setting.kindest,
        relation=setting.relation,
        mechanism=setting.mechanism,
        noise_multiplier=setting.noise_multiplier,
        delta=setting.delta,
        claimed=setting.claimed,
        certified=certified,
        lower=lower,
        conditions=setting.conditions,
        missing=setting.missing,
    )


def _groups(plan: Plan) -> list[list[NodePlan]]:
    """Nodes that differ in nothing but their number, together."""
    groups: dict[tuple[Any, ...], list[NodePlan]] = {}
    for node in plan.nodes:
        key = (node.records, node.noise_scale, node.budget, node.delta, node.epsilon)
        groups.setdefault(key, []).append(node)
    return list(groups.values())


def _plan_row(plan: Plan, nodes: Sequence[NodePlan]) -> ClaimRow:
    config, node = plan.config, nodes[0]
    algorithm = config.algorithm.definition
    mechanism = plan.release.mechanism(node) if plan.accounted else None
    lower, multiplier = None, None
    if mechanism is not None and node.delta is not None:
        # Messages are the noised sums themselves: linear losses attain their pairs.
        if algorithm.releases.bound_is_tight:
            lower = privacy.epsilon_bounds(mechanism, delta=node.delta)[0]
        ends = (0, plan.steps - 1)
        first, last = (plan.release.noise_multiplier(node, k) for k in ends)
        multiplier = (first, last)
    node_names = f"node {node.node}" if len(nodes) == 1 else f"{len(nodes)} nodes from {node.node}"
    return _row(
        paper=algorithm.paper,
        algorithm=algorithm.title,
        experiment=f"{config.task.dataset}, {node_names}, J = {node.records}, K = {plan.steps}",
        reading="none" if algorithm.claims.formula is None else algorithm.claims.formula.reading,
        kindest=True,
        relation=None if mechanism is None else mechanism.relation,
        mechanism=mechanism,
        noise_multiplier=multiplier,
        delta=node.delta,
        claimed=node.claimed,
        certified=node.epsilon if plan.release.clip.enforced else math.inf,
        lower=lower,
        conditions=node.conditions,
        missing=_missing(plan),
    )


def _missing(plan: Plan) -> str:
    """Why nothing is certified; empty where something is."""
    if not plan.release.clip.enforced:
        return "the bound of gradients is assumed, and no epsilon holds"
    return "" if plan.accounted else "no noise is accounted"


def _row(
    *,
    claimed: float | None,
    certified: float | None,
    lower: float | None,
    mechanism: privacy.Mechanism | None,
    conditions: Sequence[FormulaCondition],
    missing: str,
    **words: Any,
) -> ClaimRow:
    """One row, with what follows from the figures."""
    return ClaimRow(
        **words,
        mechanism=None if mechanism is None else mechanism.describe(),
        claimed=claimed,
        claimed_infinite=claimed == math.inf,
        certified=certified,
        certified_infinite=certified == math.inf,
        lower=lower,
        conditions=tuple(
            ClaimCondition.model_validate(condition, from_attributes=True)
            for condition in conditions
        ),
        violated=tuple(condition.text for condition in conditions if not condition.holds),
        verdict=verdict(claimed, lower, certified, missing),
        missing=missing,
    )
