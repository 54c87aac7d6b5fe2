"""The budgets of the nodes' data: what a run would draw on, and whether all of them cover it.

A node draws on the accounts of the sources that its records are of (`sources_of`). What is charged,
and whether a run is admitted, follows from their names, from plans and from what is on file: from
no record. Digests of records then tell a node that it holds records of a source which it does not
name: it does not take part. Others hear the same of both, and of a ledger nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from tacit import privacy
from tacit.config import GIVEN, Config
from tacit.config.schema import Privacy
from tacit.data import StackedData
from tacit.data.own import record_digests, unit_digests
from tacit.errors import BudgetError, InputError
from tacit.privacy.ledger.ledger import DataAccount
from tacit.privacy.ledger.shared import SharedLedgers, WantedAccount, folder_key
from tacit.privacy.ledger.spent import (
    alternatives,
    check_agreement,
    combined,
    compositions,
    cost,
    run_mechanism,
)
from tacit.training.plan import Plan
from tacit.training.release import NodePlan

_LEAST = 1e-3  # of epsilon: no run is worth less
_AND = " + "


@dataclass(frozen=True)
class Draw:
    """A budget that nodes of a run draw on.

    Args:
        nodes: those of this process whose records are of the source.
        account: whose budget it is; it stands in `file`.
        before: what other runs may have released of one record, each a mechanism or nothing.
        runs: those runs, with the time at which each was entered.
        mine: what the nodes may release of it if steps up to the given one are run.
    """

    nodes: tuple[int, ...]
    account: DataAccount
    file: Path
    before: tuple[privacy.Mechanism | None, ...]
    runs: dict[str, str]
    mine: Callable[[int], Sequence[privacy.Mechanism]]

    def with_(self, alternatives: Sequence[privacy.Mechanism | None]) -> float:
        """Certified epsilon of all other runs and the worst of these, at the account's delta."""
        return max(
            cost(combined([released, mechanism]), self.account.delta)
            for released in self.before
            for mechanism in alternatives or [None]
        )

    def cost(self, end: int) -> float:
        """Certified epsilon of all runs if steps up to `end` are run, at the account's delta."""
        return self.with_(self.mine(end))


def _divides(config: Config) -> bool:
    return config.task.dataset != GIVEN and config.nodes.data == "split"


def sources_of(config: Config, node: int) -> tuple[str, ...]:
    """The sources that a node's records are of, which is public: as declared, or by this rule.

    Where tacit divides one data set that has one budget, it is the data set, as it is written;
    elsewhere the records of each node are a source of its own.
    """
    settings = config.privacy
    declared = settings.ledger_source
    if declared is not None:
        text = config.per_node(declared)[node]
        return tuple(dict.fromkeys(part.strip() for part in text.split(_AND)))
    limits = (settings.ledger_epsilon, settings.ledger_delta)
    each = any(isinstance(limit, (tuple, Mapping)) for limit in limits)
    own = f"node {node}" if config.nodes.names is None else config.nodes.names[node]
    if not _divides(config):
        return (own,)
    return (f"{config.task.dataset}, {own}" if each else config.task.dataset,)


def open_shared(
    plan: Plan,
    loaded: StackedData,
    hosted: Sequence[int] | None,
    session: str,
    experiment: Privacy | None = None,
) -> SharedLedgers:
    """The ledgers of the nodes' data; of a run without any, one that allows everything.

    `loaded` are the records of this process's nodes, `hosted` (None: all), as they were loaded.
    `session` is that of the run, as its processes have agreed; what they run is part of it as well,
    so that no other process's word makes two different runs one. Accounts that are
    yet to be made have the budget that `experiment` asks for; None: that of the plan.

    Raises:
        InputError: a source is in use, or a ledger is damaged or has another budget.
    """
    config, settings, per_node = plan.config, plan.config.privacy, plan.config.per_node
    if settings.ledger is None or not plan.accounted:
        return SharedLedgers(Path())
    folder = Path(settings.ledger)
    salt = folder_key(folder).salt
    digests = record_digests(loaded.inputs, salt)
    nothing: Sequence[None] = (None,) * len(plan.nodes)
    asked = (settings.ledger_epsilon, settings.ledger_delta)
    epsilons, deltas = (nothing if value is None else per_node(value) for value in asked)
    new = (experiment or settings).budget
    budgets = nothing if new is None else per_node(new)
    here = range(len(plan.nodes)) if hosted is None else hosted
    ids: Sequence[Iterable[str]] = (
        [()] * len(loaded.sizes) if loaded.units is None else loaded.units.ids
    )
    places = zip(here, loaded.offsets.tolist(), loaded.sizes.tolist(), ids, strict=True)
    wanted = [
        WantedAccount(
            node,
            sources_of(config, node),
            np.concatenate([digests[first : first + size], unit_digests(whose, salt)]),
            epsilons[node],
            deltas[node],
            budgets[node],
            per_node(settings.delta)[node],
        )
        for node, first, size, whose in places
    ]
    name = f"{session} {plan.digest()}"
    one = settings.unit_column is None or settings.unit_nodes == 1  # node of each that is protected
    apart = one and _divides(config)
    return SharedLedgers.open(folder, wanted, session=name, apart=apart, unit=settings.unit)


def draws(
    plan: Plan,
    shared: SharedLedgers,
    first: int,
    run_id: str | None,
    again: Sequence[tuple[int, int]] = (),
) -> list[Draw]:
    """Every budget of data that a run draws on.

    `first` is the step that the run stands at, `again` are steps that it will reserve beside those
    to come, and `run_id` is its identity, if it was entered before.

    Raises:
        InputError: relation, unit or trust model are not those of the ledger, or what an earlier
            run cost a unit is not known; whole clients are protected, and a source is of several.
    """
    return [_draw(plan, shared, source, first, run_id, again) for source in shared.accounts]


def _draw(
    plan: Plan,
    shared: SharedLedgers,
    source: str,
    first: int,
    run_id: str | None,
    again: Sequence[tuple[int, int]],
) -> Draw:
    nodes, account = shared.nodes[source], shared.accounts[source]
    charged = shared.reserved(source, run_id)
    holders = _holders(plan, nodes, shared.apart)
    earlier = [
        run
        for snapshot in shared.snapshots[source]
        for run in snapshot.runs
        if run.run_id != run_id and any(run.charged.values())
    ]
    for run in earlier:
        mechanism, where = plan.release.mechanism(holders[0]), str(shared.file(source))
        check_agreement(mechanism, shared.unit, run, nodes[0], where)
    several = [nodes, *(tuple(run.statements) for run in earlier)]
    if plan.release.mechanism(holders[0]).unit == "client" and max(map(len, several)) > 1:
        expected = "a source for each node, in every run: whole clients are protected here"
        raise InputError("privacy.ledger_source", source, expected)

    def mine(end: int) -> Sequence[privacy.Mechanism]:
        every = (*charged, *again, (first, end), *plan.release.after)
        steps = [pair for pair in every if pair[0] < pair[1]]
        return alternatives(
            (
                plan.release.mechanism(node, steps)
                if steps and plan.release.active_steps(node, steps)
                else None
                for node in holders
            ),
            apart=shared.apart,
        )

    released: dict[str, list[privacy.Mechanism | None]] = {}
    for run in earlier:  # nodes of one run may stand in several files
        mechanisms = (run_mechanism(run, node) for node in run.statements)
        released.setdefault(run.run_id, []).extend(mechanisms)
    apart = {run.run_id: run.apart for run in earlier}
    ways = [alternatives(all_, apart=apart[run]) for run, all_ in released.items()]
    return Draw(
        nodes=nodes,
        account=account,
        file=shared.file(source),
        before=compositions(ways, account.delta),
        runs={run.run_id: run.created for run in earlier},
        mine=mine,
    )


def _holders(plan: Plan, nodes: Sequence[int], apart: bool) -> list[NodePlan]:
    """The nodes of which one record's release is an alternative, or all of which may have it."""
    chosen = [plan.nodes[node] for node in nodes]
    kinds = {plan.release.kind(node): node for node in chosen}  # which release the same of a record
    return list(kinds.values()) if apart else chosen


def check_shared(plan: Plan, shared: SharedLedgers, *, resume: bool = False) -> None:
    """Refuse a new run that the budgets of the nodes' data do not cover in full.

    Nodes with records of a source that they do not name are refused after that, and of a run that
    goes on too. Both say to others that a budget forbids it, and no more.

    Raises:
        BudgetError: for this process's own eyes, names the nodes, what is spent, what it would come
            to, and what would still fit; or the source that has to be named.
        InputError: relation, unit or trust model are not those of the ledger.
    """
    over = [
        (total, draw)
        for draw in ([] if resume else draws(plan, shared, 0, None))
        if (total := draw.cost(plan.steps)) > draw.account.epsilon_budget
    ]
    if over:
        total, worst = max(over, key=lambda row: row[0] / row[1].account.epsilon_budget)
        account, runs = worst.account, list(worst.runs.items())
        earlier = ""
        for run, entered in runs[-1:]:
            others = f", as {len(runs) - 1} more" if len(runs) > 1 else ""
            entered = entered.replace("T", " ")
            earlier = f"; run {run[:8]}, entered {entered}, has drawn on it{others}"
        raise BudgetError(
            f"node {worst.nodes[0]}: the budget of its data ({account.source!r}) is epsilon "
            f"{account.epsilon_budget:g} at delta {account.delta:g} (in {worst.file}), "
            f"{_up(worst.with_([]))} is spent, and this run would bring it to {_up(total)}: "
            f"{_fitting(plan, worst, shared)}{earlier}"
            + (f"; it is one of {len(over)} sources with too little left" if over[1:] else ""),
            public=False,
        )
    check_strangers(shared)


def check_strangers(shared: SharedLedgers) -> None:
    """Refuse nodes with records of a source that they do not name, for their own eyes."""
    if shared.strangers:
        first = shared.strangers[0]
        kinds = "records" if shared.unit == "record" else "records and units"
        raise BudgetError(
            f"node {first.node}: {first.records} of its {first.of} different {kinds} are of a "
            f"source that it does not name, and would be charged to another "
            f"(in {shared.folder}): privacy.ledger_source = {_AND.join(first.sources)!r} at this "
            "node names them all",
            public=False,
        )


def _fitting(plan: Plan, draw: Draw, shared: SharedLedgers) -> str:
    """What the nodes could still run, in words; never more than what is checked to fit."""
    nothing = "nothing is left for a run of this many steps"
    budget, delta = draw.account.epsilon_budget, draw.account.delta
    if draw.with_([]) >= budget:
        return nothing
    nodes = _holders(plan, draw.nodes, shared.apart)

    def louder(scale: float, node: NodePlan) -> privacy.Mechanism:
        return plan.release.mechanism(replace(node, noise_scale=node.noise_scale * scale))

    def together(
        scale: float, before: privacy.Mechanism | None, ones: Sequence[NodePlan]
    ) -> privacy.Mechanism:
        made = combined([before, *(louder(scale, node) for node in ones)])
        assert made is not None
        return made

    with suppress(BudgetError):
        scale = max(
            privacy.calibrate(
                partial(together, before=before, ones=ones), epsilon=budget, delta=delta
            )
            for before in draw.before
            for ones in ([[node] for node in nodes] if shared.apart else [nodes])
        )
        settings, deltas = plan.config.privacy, [node.delta for node in nodes]
        if settings.noise_std is not None:
            return f"privacy.noise_std = {_up(settings.noise_std * scale)} would still fit"
        if settings.guess is not None or settings.accounting == "published" or None in deltas:
            return f"{_up(scale)} times the noise would still fit"
        pairs = [(node, node.delta) for node in nodes if node.delta is not None]
        fits = min(privacy.epsilon(louder(scale, node), delta=own) for node, own in pairs)
        for _ in range(5):
            fits = float(_rounded(fits, math.floor))
            if fits < _LEAST:
                break
            made = [
                louder(
                    privacy.calibrate(
                        partial(louder, node=node), epsilon=fits, delta=own, start=scale
                    ),
                    node,
                )
                for node, own in pairs
            ]
            if draw.with_(alternatives(made, apart=shared.apart)) <= budget:
                return f"privacy.epsilon = {fits:g} would still fit"
            fits *= 0.99
    return nothing


def _up(value: float) -> str:
    """Three significant digits, never rounded down."""
    return _rounded(value, math.ceil)


def _rounded(value: float, towards: Callable[[float], int]) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{towards(value * 10.0**digits) / 10.0**digits:.6g}"
