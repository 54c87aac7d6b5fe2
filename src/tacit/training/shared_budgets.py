"""The budgets of the nodes' data: what a run would draw on, and whether all of them cover it.

A run draws on the account of a node's data, and on every other account of the folder that shares
records with it: those records belong to both budgets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tacit import privacy
from tacit.config.schema import PerNode
from tacit.data import StackedData
from tacit.data.own import record_digests
from tacit.errors import BudgetError
from tacit.privacy.ledger.ledger import DataAccount, Interval
from tacit.privacy.ledger.shared import SharedLedgers, WantedAccount, account_file, folder_key
from tacit.privacy.ledger.spent import (
    AccountRelease,
    check_agreement,
    combined,
    composed,
    cost,
    histories,
    run_mechanism,
)
from tacit.training.plan import NodePlan, Plan

__all__ = ["Draw", "check_shared", "draws", "open_shared"]

_LEAST = 1e-3  # of epsilon: no run is worth less


@dataclass(frozen=True)
class Draw:
    """A budget that a node of a run draws on.

    Args:
        node: its number; alike nodes are counted in `nodes` and not listed.
        account: whose budget it is.
        file: where that stands.
        records: how many of the node's records belong to it.
        before: what those may have released in other runs, each a mechanism or nothing.
        runs: those runs, with how many of the records each of them had.
        mine: what the node releases of them if steps up to the given one are run.
        nodes: how many nodes are alike.
    """

    node: int
    account: DataAccount
    file: Path
    records: int
    before: tuple[privacy.Mechanism | None, ...]
    runs: Mapping[str, int]
    mine: Callable[[int], privacy.Mechanism | None]
    nodes: int = 1

    def with_(self, mechanism: privacy.Mechanism | None) -> float:
        """Certified epsilon of all other runs and a mechanism, at the account's delta."""
        return max(
            cost(combined([released, mechanism]), self.account.delta) for released in self.before
        )

    def cost(self, end: int) -> float:
        """Certified epsilon of all runs if steps up to `end` are run, at the account's delta."""
        return self.with_(self.mine(end))


def open_shared(
    plan: Plan,
    loaded: StackedData,
    hosted: Sequence[int] | None,
    session: str,
    new_budgets: PerNode | None = None,
) -> SharedLedgers:
    """The ledgers of the nodes' data; of a run without any, one that allows everything.

    Args:
        plan: of the run.
        loaded: the records of this process's nodes, as they were loaded.
        hosted: the nodes of this process; None: all.
        session: of the run, as its processes have agreed; what they run is part of it as well, so
            that no other process's word makes two different runs one.
        new_budgets: epsilon of accounts that are yet to be made; None: `privacy.epsilon`.

    Raises:
        InputError: the records are in use, or a ledger is damaged or has another budget.
    """
    settings, per_node = plan.config.privacy, plan.config.per_node
    if settings.ledger is None or not plan.accounted:
        return SharedLedgers(Path())
    folder = Path(settings.ledger)
    digests = record_digests(loaded.inputs, folder_key(folder).salt)
    nothing: Sequence[None] = (None,) * len(plan.nodes)
    asked = (settings.ledger_epsilon, settings.ledger_delta)
    epsilons, deltas = (nothing if value is None else per_node(value) for value in asked)
    new = settings.budget if new_budgets is None else new_budgets
    budgets = nothing if new is None else per_node(new)
    here = range(len(plan.nodes)) if hosted is None else hosted
    places = zip(here, loaded.offsets.tolist(), loaded.sizes.tolist(), strict=True)
    wanted = [
        WantedAccount(
            node,
            digests[first : first + size],
            epsilons[node],
            deltas[node],
            budgets[node],
            per_node(settings.delta)[node],
        )
        for node, first, size in places
    ]
    return SharedLedgers.open(folder, wanted, session=f"{session} {plan.digest()}")


def draws(
    plan: Plan,
    shared: SharedLedgers,
    first: int,
    run_id: str | None,
    again: Sequence[tuple[int, int]] = (),
) -> list[Draw]:
    """Every budget of data that a run draws on; of nodes that are alike, those of the first.

    Args:
        plan: of the run.
        shared: the ledgers of its nodes' data.
        first: the step that the run stands at.
        run_id: its identity, if it was entered before.
        again: steps that it will reserve beside those to come.

    Raises:
        InputError: relation, unit or trust model are not those of the ledger.
        BudgetError: whole clients are protected, and their data were split otherwise before.
    """
    releases = _releases(shared, run_id)
    groups: dict[tuple[Any, ...], list[Draw]] = {}
    for number in shared.accounts:
        charged = shared.reserved(number, run_id)
        mates = [plan.nodes[mate] for mate in shared.mates(number)]
        _check_earlier(plan, shared, number, run_id)

        def mine(
            end: int, mates: Sequence[NodePlan] = mates, charged: Sequence[Interval] = charged
        ) -> privacy.Mechanism | None:
            steps = [pair for pair in (*charged, *again, (first, end)) if pair[0] < pair[1]]
            return combined(
                plan.release.mechanism(mate, steps)
                if plan.release.active_steps(mate, steps)
                else None
                for mate in mates
                if steps
            )

        drawn = [
            _draw(shared, number, name, releases, mine)
            for name in dict.fromkeys(
                [
                    shared.accounts[number].name,
                    *(name for group in shared.held[number] for name in group),
                ]
            )
        ]
        alike = (
            tuple(plan.release.kind(mate) for mate in mates),
            charged,
            tuple((draw.account[2:], draw.before) for draw in drawn),
        )
        known = groups.setdefault(alike, drawn)
        if known is not drawn:
            groups[alike] = [replace(draw, nodes=draw.nodes + 1) for draw in known]
    return [draw for drawn in groups.values() for draw in drawn]


def _releases(shared: SharedLedgers, run_id: str | None) -> dict[str, list[AccountRelease]]:
    """What other runs released from each account."""
    releases: dict[str, list[AccountRelease]] = {}
    for name, snapshot in shared.snapshots.items():
        for run in snapshot.runs:
            for node in run.statements:
                released = None if run.run_id == run_id else run_mechanism(run, node)
                if released is not None:
                    release = AccountRelease(run.run_id, name, node, released)
                    releases.setdefault(name, []).append(release)
    return releases


def _check_earlier(plan: Plan, shared: SharedLedgers, node: int, run_id: str | None) -> None:
    """Refuse what cannot be composed with what was released from the same records before."""
    mechanism = plan.release.mechanism(plan.nodes[node])
    own = shared.accounts[node].name
    for name in {own, *(name for group in shared.held[node] for name in group)}:
        known = shared.snapshots.get(name)
        for run in () if known is None else known.runs:
            if run.run_id == run_id or not any(run.charged.values()):
                continue
            where = account_file(shared.folder, name)
            check_agreement(mechanism, run, node, str(where))
            if mechanism.unit == "client" and name != own:
                # Replacing all data of a client would change several clients of the other run.
                raise BudgetError(
                    f"node {node}: whole clients are protected here, and some of its records were "
                    f"those of another client of {_run_words(shared, run.run_id)} (in {where}): a "
                    "client's data must stay together, or use another privacy.ledger"
                )


def _draw(
    shared: SharedLedgers,
    node: int,
    name: str,
    releases: Mapping[str, Sequence[AccountRelease]],
    mine: Callable[[int], privacy.Mechanism | None],
) -> Draw:
    """The budget of an account that a node shares records with."""
    own = shared.accounts[node]
    account = own if name == own.name else shared.snapshots[name].data
    assert account is not None
    groups = {
        group: count
        for group, count in shared.held[node].items()
        if name == own.name or name in group
    }
    earlier = histories(name, groups, releases)
    runs: dict[str, int] = {}
    for group, count in groups.items():
        for run in {
            release.run for member in {*group, name} for release in releases.get(member, ())
        }:
            runs[run] = runs.get(run, 0) + count
    return Draw(
        node=node,
        account=account,
        file=account_file(shared.folder, name),
        records=sum(groups.values()),
        before=tuple(dict.fromkeys(composed(history) for history in earlier)),
        runs=runs,
        mine=mine,
    )


def check_shared(plan: Plan, shared: SharedLedgers) -> None:
    """Refuse a new run that the budgets of the nodes' data do not cover in full.

    Raises:
        BudgetError: names the node, what is spent and by which run, what it would come to, and
            what would still fit.
        InputError: relation, unit or trust model are not those of the ledger.
    """
    every = draws(plan, shared, 0, None)
    over = [
        (total, draw)
        for draw in every
        if (total := draw.cost(plan.steps)) > draw.account.epsilon_budget
    ]
    if not over:
        return
    total, worst = max(over, key=lambda row: row[0] / row[1].account.epsilon_budget)
    account, size = worst.account, shared.accounts[worst.node].records
    short = {draw.node: draw.nodes for _, draw in over}
    count = sum(short.values())
    which = "its data" if worst.records == size else f"{worst.records} of its {size} records"
    fits = _fitting(plan, worst.node, [draw for draw in every if draw.node == worst.node], shared)
    raise BudgetError(
        f"node {worst.node}: the budget of {which} is epsilon {account.epsilon_budget:g} at delta "
        f"{account.delta:g} (in {worst.file}), {_up(worst.with_(None))} is spent, and this run "
        f"would bring it to {_up(total)}: {fits}{_earlier(shared, worst, size)}"
        + (f"; it is one of {count} nodes with too little left" if count > 1 else "")
    )


def _earlier(shared: SharedLedgers, draw: Draw, size: int) -> str:
    """Which runs hold the records, in words."""
    if not draw.runs:
        return ""
    run, records = max(draw.runs.items(), key=lambda item: item[1])
    held = "its records" if records == size else f"{records} of its {size} records"
    others = len(draw.runs) - 1
    more = f", as {others} more {'have' if others > 1 else 'has'}" if others else ""
    return f"; {_run_words(shared, run)} has {held} in its ledger{more}"


def _run_words(shared: SharedLedgers, run_id: str) -> str:
    entered = next(
        run.created
        for snapshot in shared.snapshots.values()
        for run in snapshot.runs
        if run.run_id == run_id
    )
    return f"run {run_id[:8]}, entered {entered.replace('T', ' ')},"


def _fitting(plan: Plan, number: int, drawn: Sequence[Draw], shared: SharedLedgers) -> str:
    """What the node could still run, in words; never more than what is checked to fit."""
    nothing = "nothing is left for a run of this many steps"
    if any(draw.with_(None) >= draw.account.epsilon_budget for draw in drawn):
        return nothing
    node, mates = plan.nodes[number], [plan.nodes[mate] for mate in shared.mates(number)]

    def louder(scale: float, nodes: Sequence[NodePlan] = mates) -> privacy.Mechanism:
        made = combined(
            plan.release.mechanism(replace(mate, noise_scale=mate.noise_scale * scale))
            for mate in nodes
        )
        assert made is not None
        return made

    def alone(scale: float) -> privacy.Mechanism:
        return louder(scale, [node])

    def together(scale: float, before: privacy.Mechanism | None) -> privacy.Mechanism:
        return combined([before, louder(scale)]) or louder(scale)

    with suppress(BudgetError):
        scale = max(
            privacy.calibrate(
                partial(together, before=before),
                epsilon=draw.account.epsilon_budget,
                delta=draw.account.delta,
            )
            for draw in drawn
            for before in draw.before
        )
        settings = plan.config.privacy
        if settings.noise_std is not None:
            return f"privacy.noise_std = {_up(settings.noise_std * scale)} would still fit"
        if settings.accounting == "published" or node.delta is None:
            return f"{_up(scale)} times the noise would still fit"
        fits = privacy.epsilon(alone(scale), delta=node.delta)
        for _ in range(5):
            fits = _down(fits)
            if fits < _LEAST:
                break
            needed = privacy.calibrate(alone, epsilon=fits, delta=node.delta, start=scale)
            if all(draw.with_(louder(needed)) <= draw.account.epsilon_budget for draw in drawn):
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
