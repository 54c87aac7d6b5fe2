"""What the papers claim against what is certified: `tacit privacy claims`, as data.

Without a file, the papers' own experiments (`tacit.privacy.published.paper_settings`); with one,
the plan of that experiment. Certified figures are upper bounds, rounded up; proved lower bounds are
rounded down; a claim is "does not hold" only where a lower bound lies above it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from tacit import privacy
from tacit.config import load_config
from tacit.privacy.published import PaperSetting, paper_settings
from tacit.report.documents.claims import ClaimRow, ClaimsDocument
from tacit.report.documents.run import ClaimCondition
from tacit.report.wording import alike
from tacit.training.plan import Plan
from tacit.training.release import NodePlan


def claims_document(file: Path | None = None, overrides: Sequence[str] = ()) -> ClaimsDocument:
    """Claimed and certified epsilon, row by row; without a file, of the papers' own settings.

    `overrides` are `section.key=value` strings for the experiment.

    Raises:
        InputError: overrides without a file, or a fault in the experiment.
        BudgetError: a node's budget cannot be met.
    """
    if file is None and not overrides:
        rows = []
        for setting in paper_settings():
            known: tuple[float | None, float | None] = (None, None)
            if setting.bounds is not None and setting.delta is not None:
                known = setting.bounds(setting.delta)
            rows.append(_row(setting, *known))
        source = "the papers' own settings"
    else:
        # Training libraries are loaded where there is an experiment only.
        from tacit.training.prepare import prepare

        plan = prepare(load_config({} if file is None else file, overrides=overrides)).plan
        nodes = alike(
            ((node.records, node.noise_scale, node.budget, node.delta, node.epsilon), node)
            for node in plan.nodes
        )
        rows = [_plan_row(plan, group) for group in nodes.values()]
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


def _row(setting: PaperSetting, lower: float | None, certified: float | None) -> ClaimRow:
    told = vars(setting).copy()
    for key in ("bounds", "mechanism", "conditions"):
        del told[key]
    return ClaimRow(
        **told,
        mechanism=None if setting.mechanism is None else setting.mechanism.describe(),
        claimed_infinite=setting.claimed == math.inf,
        certified=certified,
        certified_infinite=certified == math.inf,
        lower=lower,
        conditions=tuple(
            ClaimCondition(text=condition.text, holds=condition.holds)
            for condition in setting.conditions
        ),
        violated=tuple(condition.text for condition in setting.conditions if not condition.holds),
        verdict=verdict(setting.claimed, lower, certified, setting.missing),
    )


def _plan_row(plan: Plan, nodes: Sequence[NodePlan]) -> ClaimRow:
    """The row of nodes that are alike: their plan is a setting of its own."""
    config, node, last = plan.config, nodes[0], plan.steps - 1
    algorithm, release = config.algorithm.definition, plan.release
    mechanism = release.mechanism(node) if plan.accounted else None
    lower = multiplier = None
    if mechanism is not None and node.delta is not None:
        # Messages are the noised sums themselves: linear losses attain their pairs.
        if algorithm.releases.bound_is_tight:
            lower = privacy.epsilon_bounds(mechanism, delta=node.delta)[0]
        multiplier = release.noise_multiplier(node, 0), release.noise_multiplier(node, last)
    missing = "" if plan.accounted else "no noise is accounted"
    if not release.clip.enforced:
        missing = "the bound of gradients is assumed, and no epsilon holds"
    node_names = f"node {node.node}" if len(nodes) == 1 else f"{len(nodes)} nodes from {node.node}"
    setting = PaperSetting(
        paper=algorithm.paper,
        algorithm=algorithm.title,
        experiment=f"{config.task.dataset}, {node_names}, J = {node.records}, K = {plan.steps}",
        reading="none" if algorithm.claims.formula is None else algorithm.claims.formula.reading,
        relation=None if mechanism is None else mechanism.relation,
        mechanism=mechanism,
        noise_multiplier=multiplier,
        delta=node.delta,
        claimed=node.claimed,
        conditions=node.conditions,
        missing=missing,
    )
    return _row(setting, lower, node.epsilon if release.clip.enforced else math.inf)
