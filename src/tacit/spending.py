"""What a run may spend, and what it has spent: keys, ledger, and the end a budget allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tacit.errors import BudgetError
from tacit.folder import RunFolder
from tacit.plan import Interval, NodePlan, Plan
from tacit.privacy import ledger as books
from tacit.privacy import to_statement
from tacit.privacy.keys import NodeKeys, fresh_keys, seeded_keys

__all__ = ["affordable", "claimed_spent", "epsilon_spent", "extremes", "node_keys", "open_ledger"]


def open_ledger(plan: Plan, folder: RunFolder | None, resume: bool) -> books.Ledger | None:
    """The books of an accounted run: in its folder, or in memory without one."""
    if not plan.accounted:
        return None
    statements = [
        books.NodeStatement(node.node, to_statement(plan.mechanism(node)), node.budget, node.delta)
        for node in plan.nodes
    ]
    if folder is None:
        return books.Ledger.in_memory(digest=plan.digest(), statements=statements)
    if resume:
        return books.Ledger.open(folder.ledger, digest=plan.digest())
    return books.Ledger.create(folder.ledger, digest=plan.digest(), statements=statements)


def node_keys(plan: Plan) -> NodeKeys:
    """Keys from the operating system, unless nothing rests on them or the user asked otherwise."""
    settings, count = plan.config.privacy, len(plan.nodes)
    if settings.noise_seed is not None:
        return seeded_keys(settings.noise_seed, range(count))
    if not plan.noisy:
        return seeded_keys(plan.config.train.seed, range(count))
    return fresh_keys(range(count))


def affordable(
    plan: Plan, before: Mapping[int, Sequence[Interval]], first: int
) -> tuple[int, str | None]:
    """The last step that every budget still covers, and why it is not the planned one."""
    until = plan.steps
    if plan.config.privacy.accounting != "certified":
        return until, None
    short: NodePlan | None = None
    for node in _distinct(plan):
        spent = list(before.get(node.node, ()))
        if node.budget is None or not spent:
            continue
        covered = _covered(plan, node, spent, first, until)
        if covered < until:
            until, short = covered, node
    if short is None:
        return until, None
    reason = (
        f"steps that were booked before the run was cut off are charged on top; the budget of node "
        f"{short.node} ({short.budget:g}) covers steps up to {until} of {plan.steps}"
    )
    if until <= first:
        raise BudgetError(
            f"{reason}: nothing is left to resume with; raise privacy.epsilon in a new run"
        )
    return until, reason


def _covered(plan: Plan, node: NodePlan, spent: list[Interval], first: int, until: int) -> int:
    """The largest end within [first, until] for which a node's epsilon stays in its budget."""
    low, high = first, until

    def fits(end: int) -> bool:
        cost = plan.epsilon(node, [*spent, (first, end)])
        return cost is None or node.budget is None or cost <= node.budget

    if fits(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def epsilon_spent(
    plan: Plan, charged: Mapping[int, Sequence[Interval]]
) -> tuple[float | None, ...]:
    """Certified epsilon of what is on the books, one a node."""
    known = {
        _kind(node): plan.epsilon(node, charged.get(node.node, ())) for node in _distinct(plan)
    }
    return tuple(known[_kind(node)] for node in plan.nodes)


def claimed_spent(plan: Plan, steps: int) -> tuple[float | None, ...]:
    """What the paper's formula says of the steps that were completed, one a node."""
    known = {_kind(node): plan.claimed(node, steps) for node in _distinct(plan)}
    return tuple(known[_kind(node)] for node in plan.nodes)


def _kind(node: NodePlan) -> tuple[Any, ...]:
    """What decides a node's epsilon: all nodes of one process book the same steps."""
    return node.records, node.noise_scale, node.delta


def _distinct(plan: Plan) -> list[NodePlan]:
    """One node of each kind and budget: with a given noise, one kind may have several budgets."""
    return list({(_kind(node), node.budget): node for node in plan.nodes}.values())


def extremes(plan: Plan) -> dict[str, NodePlan]:
    """The nodes whose whole plan costs most and least."""
    ranked = sorted(plan.nodes, key=lambda node: node.epsilon or 0.0)
    return {"most": ranked[-1], "least": ranked[0]}
