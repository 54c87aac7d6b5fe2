"""What a run may spend, and what it has spent: keys, books, and the end a budget allows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tacit import privacy
from tacit.errors import BudgetError, InputError
from tacit.folder import RunFolder
from tacit.plan import Interval, NodePlan, Plan
from tacit.privacy import ledger as books
from tacit.privacy import to_statement
from tacit.privacy.keys import NodeKeys, fresh_keys, seeded_keys
from tacit.privacy.ledger_shared import SharedLedgers, WantedAccount
from tacit.privacy.ledger_spent import check_agreement, combined, cost, spent

__all__ = [
    "Books",
    "affordable",
    "check_shared",
    "claimed_spent",
    "epsilon_spent",
    "extremes",
    "node_keys",
    "open_ledger",
    "open_shared",
]


_LEAST = 1e-3  # of epsilon: no run is worth less


@dataclass(frozen=True)
class Books:
    """The ledger of a run, and those of its nodes' data.

    Args:
        own: the run's.
        shared: of the data; they never have less of this run than its own.
    """

    own: books.Ledger
    shared: SharedLedgers

    def reserve(self, first_step: int, until: int) -> None:
        """Book steps in every ledger, durably, before they are sent."""
        self.shared.reserve(first_step, until)
        self.own.reserve(first_step, until)

    def settle(self, used_until: int) -> None:
        """Give back what this session booked and did not use, at a clean stop."""
        self.own.settle(used_until)
        self.shared.settle(used_until)

    def charged(self) -> dict[int, tuple[books.Interval, ...]]:
        """The booked intervals of each node, repeats included."""
        return self.own.charged()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.own.close()
        self.shared.close()


def open_shared(plan: Plan, hosted: Sequence[int] | None = None) -> SharedLedgers:
    """The ledgers of the nodes' data, locked; of a run without any, one that allows everything.

    Args:
        plan: of the run.
        hosted: the nodes of this process; by default all.

    Raises:
        InputError: a ledger is in use, damaged or has another budget.
    """
    settings, per_node = plan.config.privacy, plan.config.per_node
    if settings.ledger is None or not plan.accounted:
        return SharedLedgers(Path(), ())
    nothing: Sequence[None] = (None,) * len(plan.nodes)
    asked = (settings.ledger_epsilon, settings.ledger_delta)
    epsilons, deltas = (nothing if value is None else per_node(value) for value in asked)
    budgets = nothing if settings.epsilon == "none" else per_node(settings.epsilon)
    wanted = [
        WantedAccount(*row)
        for row in zip(
            range(len(plan.nodes)), epsilons, deltas, budgets, per_node(settings.delta), strict=True
        )
        if hosted is None or row[0] in hosted
    ]
    return SharedLedgers.open(Path(settings.ledger), wanted)


def open_ledger(
    plan: Plan,
    folder: RunFolder | None,
    resume: bool,
    shared: SharedLedgers | None = None,
    hosted: Sequence[int] | None = None,
    run_id: str | None = None,
) -> Books | None:
    """The books of an accounted run: its own in its folder, or in memory without one.

    Args:
        plan: of the run.
        folder: of the run.
        resume: whether the run goes on.
        shared: the ledgers of the nodes' data, into which the run is entered; `Books` closes them.
        hosted: the nodes of this process; by default all.
        run_id: of a new run that several processes book; by default one of its own.

    Raises:
        InputError: a ledger cannot be opened or made, or is that of another run or other nodes.
    """
    if not plan.accounted:
        return None
    here = range(len(plan.nodes)) if hosted is None else hosted
    statements = [
        books.NodeStatement(node.node, to_statement(plan.booked(node)), node.budget, node.delta)
        for node in (plan.nodes[number] for number in here)
    ]
    digest = plan.digest()
    if folder is None:
        own = books.Ledger.in_memory(digest=digest, statements=statements)
    elif resume:
        own = books.Ledger.open(folder.ledger, digest=digest)
    else:
        own = books.Ledger.create(
            folder.ledger, digest=digest, statements=statements, run_id=run_id
        )
    shared = shared or SharedLedgers(Path(), ())
    try:
        if own.nodes != tuple(here):
            expected = f"began here with nodes {list(own.nodes)}: resume it as it was placed"
            raise InputError("nodes.placement", list(here), expected)
        shared.enter(
            own.run_id,
            digest=digest,
            statements={one.node: one.statement for one in statements},
            sent=own.charged(),
        )
    except BaseException:
        own.close()
        raise
    return Books(own, shared)


def node_keys(plan: Plan, hosted: Sequence[int] | None = None) -> NodeKeys:
    """Keys from the operating system, unless nothing rests on them or the user asked otherwise.

    Of the nodes of this process (`hosted`; by default all): no other process has them.
    """
    settings = plan.config.privacy
    here = range(len(plan.nodes)) if hosted is None else hosted
    if settings.noise_seed is not None:
        return seeded_keys(settings.noise_seed, here)
    if not plan.noisy:
        return seeded_keys(plan.config.train.seed, here)
    return fresh_keys(here)


@dataclass(frozen=True)
class _Limit:
    """A budget that a node, and those like it, must keep.

    Args:
        node: the first of them.
        budget: epsilon.
        cost: its epsilon if steps up to the given one are run.
        why: what is charged beside the steps to come.
        kept_in: where the budget stands.
        nodes: how many they are.
    """

    node: int
    budget: float
    cost: Callable[[int], float]
    why: str = "steps that were booked before the run was cut off are charged on top"
    kept_in: str = ""
    nodes: int = 1


def affordable(
    plan: Plan,
    before: Mapping[int, Sequence[Interval]],
    first: int,
    ledger: Books | None = None,
) -> tuple[int, str | None]:
    """The last step that every budget still covers, and why it is not the planned one.

    Where nothing is left, that is the step it stands at: its last checkpoint is the result.

    Args:
        plan: of the run.
        before: what the run's own ledger has charged each node.
        first: the step that the run stands at.
        ledger: its books, for the budgets of the nodes' data; a new run needs none, since
            `check_shared` has admitted it.

    Raises:
        BudgetError: nothing is left, and no step was completed that could be the result.
    """
    limits = [*_own_limits(plan, before, first)]
    if ledger is not None:
        limits += _data_limits(plan, ledger.shared, first, ledger.own.run_id)
    until, short = plan.steps, None
    for limit in limits:
        covered = _covered(limit, first, until)
        if covered < until:
            until, short = covered, limit
    if short is None:
        return until, None
    reason = (
        f"{short.why}; the budget of node {short.node} ({short.budget:g}{short.kept_in}) covers "
        f"steps up to {until} of {plan.steps}"
    )
    if until > first:
        return until, reason
    if first == 0:
        remedy = "there is no checkpoint to end with; raise privacy.epsilon in a new run"
        raise BudgetError(f"{reason}: nothing is left to resume with, and {remedy}")
    return first, f"{reason}: nothing is left, and the last checkpoint is the result"


def _own_limits(
    plan: Plan, before: Mapping[int, Sequence[Interval]], first: int
) -> Sequence[_Limit]:
    """The run's own budgets, where something was spent of them already."""
    if plan.config.privacy.accounting != "certified":
        return ()
    limits = []
    nodes = {
        (_kind(plan, node), node.budget, tuple(before.get(node.node, ()))): node
        for node in plan.nodes
    }
    for node in nodes.values():
        charged = list(before.get(node.node, ()))
        if node.budget is None or not charged:
            continue

        def total(end: int, node: NodePlan = node, charged: Sequence[Interval] = charged) -> float:
            return plan.epsilon(node, [*charged, (first, end)]) or 0.0

        limits.append(_Limit(node.node, node.budget, total))
    return limits


def _data_limits(
    plan: Plan, shared: SharedLedgers, first: int, run_id: str | None
) -> Sequence[_Limit]:
    """The budgets of the nodes' data, one limit for nodes whose books agree."""
    limits: dict[tuple[Any, ...], _Limit] = {}
    for node in plan.nodes:
        account = shared.accounts.get(node.node)
        if account is None or account.epsilon_budget is None or account.delta is None:
            continue
        snapshot = shared.snapshot(node.node)
        check_agreement(snapshot, node.node, plan.mechanism(node), str(shared.file(node.node)))
        others = spent(snapshot, node.node, without=run_id)
        charged = next(
            (run.charged[node.node] for run in snapshot.runs if run.run_id == run_id), ()
        )
        same = (account.epsilon_budget, account.delta, others, charged, _kind(plan, node))
        if same in limits:
            limits[same] = replace(limits[same], nodes=limits[same].nodes + 1)
            continue

        def total(
            end: int,
            node: NodePlan = node,
            others: privacy.Mechanism | None = others,
            charged: Sequence[Interval] = charged,
            delta: float = account.delta,
        ) -> float:
            steps = [pair for pair in (*charged, (first, end)) if pair[0] < pair[1]]
            mine = plan.mechanism(node, steps) if steps and plan.released(node, steps) else None
            return cost(combined([others, mine]), delta)

        why = "steps of this run that were booked before, and all other runs, are charged as well"
        kept_in = f", in {shared.file(node.node)}"
        limits[same] = _Limit(node.node, account.epsilon_budget, total, why, kept_in)
    return list(limits.values())


def _covered(limit: _Limit, first: int, until: int) -> int:
    """The largest end within [first, until] for which a node's epsilon stays in its budget."""
    low, high = first, until
    if limit.cost(high) <= limit.budget:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        fits = limit.cost(middle) <= limit.budget
        low, high = (middle, high) if fits else (low, middle)
    return low


def check_shared(plan: Plan, shared: SharedLedgers) -> None:
    """Refuse a new run that the budget of a node's data does not cover in full.

    Raises:
        BudgetError: names the node, what is spent, what it would come to, and what would still fit.
        InputError: relation, unit or trust model are not those of the books.
    """
    over = [
        (total, limit)
        for limit in _data_limits(plan, shared, 0, None)
        if (total := limit.cost(plan.steps)) > limit.budget
    ]
    if not over:
        return
    total, limit = max(over, key=lambda row: row[0] / row[1].budget)
    node, delta = plan.nodes[limit.node], shared.accounts[limit.node].delta or 0.0
    before = spent(shared.snapshot(limit.node), limit.node)
    count = sum(one.nodes for _, one in over)
    more = f"; it is one of {count} nodes with too little left" if count > 1 else ""
    raise BudgetError(
        f"node {limit.node}: the budget of its data is epsilon {limit.budget:g} at delta "
        f"{delta:g} (in {shared.file(limit.node)}), {_up(cost(before, delta))} is spent, and this "
        f"run would bring it to {_up(total)}: {_fitting(plan, node, before, limit.budget, delta)}"
        f"{more}"
    )


def _fitting(
    plan: Plan, node: NodePlan, before: privacy.Mechanism | None, budget: float, delta: float
) -> str:
    """What the node could still run, in words; never more than what is checked to fit."""
    nothing = "nothing is left for a run of this many steps"
    if cost(before, delta) >= budget:
        return nothing

    def louder(scale: float) -> privacy.Mechanism:
        return plan.mechanism(replace(node, noise_scale=node.noise_scale * scale))

    def total(scale: float) -> privacy.Mechanism:
        return combined([before, louder(scale)]) or louder(scale)

    with suppress(BudgetError):
        scale = privacy.calibrate(total, epsilon=budget, delta=delta)
        settings = plan.config.privacy
        if settings.noise_std is not None:
            return f"privacy.noise_std = {_up(settings.noise_std * scale)} would still fit"
        if settings.accounting == "published" or node.delta is None:
            return f"{_up(scale)} times the noise would still fit"
        fits = privacy.epsilon(louder(scale), delta=node.delta)
        for _ in range(5):
            fits = _down(fits)
            if fits < _LEAST:
                break
            found = privacy.calibrate(louder, epsilon=fits, delta=node.delta, start=scale)
            if cost(total(found), delta) <= budget:
                return f"privacy.epsilon = {fits:g} would still fit"
            fits *= 0.99
    return nothing


def _up(value: float) -> str:
    """Three significant digits, never rounded down."""
    return _rounded(value, math.ceil)


def _down(value: float) -> float:
    """Three significant digits, never rounded up."""
    return float(_rounded(value, math.floor))


def _rounded(value: float, towards: Callable[[float], int]) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{towards(value * 10.0**digits) / 10.0**digits:.6g}"


def epsilon_spent(
    plan: Plan, charged: Mapping[int, Sequence[Interval]]
) -> tuple[float | None, ...]:
    """Certified epsilon of what is on the books, one a node."""
    known: dict[tuple[Any, ...], float | None] = {}
    found = []
    for node in plan.nodes:
        intervals = tuple(charged.get(node.node, ()))
        kind = (_kind(plan, node), intervals)
        if kind not in known:
            known[kind] = plan.epsilon(node, intervals)
        found.append(known[kind])
    return tuple(found)


def claimed_spent(plan: Plan, steps: int) -> tuple[float | None, ...]:
    """What the paper's formula says of the steps that were completed, one a node."""
    known = {_kind(plan, node): plan.claimed(node, steps) for node in _distinct(plan)}
    return tuple(known[_kind(plan, node)] for node in plan.nodes)


def _kind(plan: Plan, node: NodePlan) -> tuple[Any, ...]:
    """What decides a node's epsilon, where nodes book the same steps."""
    alone = None if plan.activity is None else node.node
    return node.records, node.noise_scale, node.delta, alone


def _distinct(plan: Plan) -> list[NodePlan]:
    """One node of each kind and budget: with a given noise, one kind may have several budgets."""
    return list({(_kind(plan, node), node.budget): node for node in plan.nodes}.values())


def extremes(plan: Plan) -> dict[str, NodePlan]:
    """The nodes whose whole plan costs most and least."""
    ranked = sorted(plan.nodes, key=lambda node: node.epsilon or 0.0)
    return {"most": ranked[-1], "least": ranked[0]}
