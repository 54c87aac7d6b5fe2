"""What a run may spend, and what it has spent: keys, ledgers, and the end a budget allows."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from tacit import privacy
from tacit.communication.pair_keys import agreed_pair_keys
from tacit.communication.peers import ALONE, Peers, Placement, SessionMemory
from tacit.communication.received import FLAG
from tacit.errors import BudgetError, InputError
from tacit.privacy import Mechanism, across_nodes, for_a_unit, to_statement
from tacit.privacy.ledger import ledger as ledgers
from tacit.privacy.ledger.shared import SharedLedgers
from tacit.privacy.ledger.spent import dominating
from tacit.privacy.noise.draws import NodeKeys, seeded_keys
from tacit.privacy.noise.pairwise import PairKeys, fresh_pair_keys, seeded_pair_keys
from tacit.report.documents.base import plain_json
from tacit.report.documents.unit import UnitTerms
from tacit.training.plan import Plan
from tacit.training.release import Interval, NodePlan, Release
from tacit.training.run_folder.folder import RunFolder
from tacit.training.shared_budgets import draws
from tacit.training.shared_noise import check_pooled


@dataclass(frozen=True)
class RunLedger:
    """The ledger of a run, and those of its nodes' data, which never have less of the run."""

    own: ledgers.Ledger
    shared: SharedLedgers

    def reserve(self, first_step: int, until: int) -> None:
        """Reserve steps in every ledger, durably, before they are sent."""
        self.shared.reserve(first_step, until)
        self.own.reserve(first_step, until)

    def settle(self, used_until: int, charged_until: int | None = None) -> None:
        """Give back at a clean stop what this session reserved and did not use: `Ledger.settle`."""
        self.own.settle(used_until, charged_until)
        self.shared.settle(used_until, charged_until)

    def use(self) -> None:
        """Say, durably, that steps which a stop had kept charged are sent from now on."""
        self.own.use()
        self.shared.use()

    def paid_until(self, first: int) -> int:
        """Up to which step a run that goes on at `first` has paid already: `first`, or further.

        That is where its last stop kept more charged than was sent, and every ledger says the same.
        """
        unsent = {self.own.unsent, *self.shared.unsent()}
        interval = unsent.pop() if len(unsent) == 1 else None
        return interval.until if interval is not None and interval.first == first else first

    def charged(self) -> dict[int, tuple[ledgers.Interval, ...]]:
        """The reserved intervals of each node, repeats included."""
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


def open_ledger(
    plan: Plan,
    folder: RunFolder | None,
    resume: bool,
    shared: SharedLedgers | None = None,
    hosted: Sequence[int] | None = None,
    run_id: str | None = None,
) -> RunLedger | None:
    """The ledger of an accounted run: its own in its folder, or in memory without one.

    `hosted` are the nodes of this process, by default all. The run is entered into `shared`, the
    ledgers of the nodes' data, and the result closes them. A new run that several processes enter
    is given its `run_id`.

    Raises:
        InputError: a ledger cannot be opened or made, or is that of another run or other nodes.
    """
    if not plan.accounted:
        return None
    here = range(len(plan.nodes)) if hosted is None else hosted
    nodes, release = [plan.nodes[number] for number in here], plan.release
    stated = release.of_each(nodes, lambda node: to_statement(release.ledger_mechanism(node)))
    statements = [
        ledgers.NodeStatement(node.node, statement, node.budget, node.delta)
        for node, statement in zip(nodes, stated, strict=True)
    ]
    digest = plan.digest(here)
    if folder is None:
        own = ledgers.Ledger.in_memory(digest=digest, statements=statements)
    elif resume:
        own = ledgers.Ledger.open(folder.ledger, digest=digest)
    else:
        own = ledgers.Ledger.create(
            folder.ledger, digest=digest, statements=statements, run_id=run_id
        )
    shared = shared or SharedLedgers(Path())
    try:
        if own.nodes != tuple(here):
            expected = f"began here with nodes {list(own.nodes)}: resume it as it was placed"
            raise InputError("nodes.placement", list(here), expected)
        shared.enter(
            own.run_id,
            digest=digest,
            statements={entry.node: entry.statement for entry in statements},
            sent=own.charged(),
        )
    except BaseException:
        own.close()
        raise
    return RunLedger(own, shared)


def node_keys(
    plan: Plan,
    hosted: Sequence[int] | None = None,
    session: SessionMemory = ALONE.session,
) -> NodeKeys:
    """Keys that rest on the operating system, unless nothing rests on them or the user asked so.

    Of the nodes of this process (`hosted`; by default all): no other process has them. They are
    the session's: new at every start, but for a process that comes back to one that goes on. Where
    no cipher is asked for, it is the one that suits the device, and stays so for a session, whose
    draws must not change under it; of seeded noise it is AES, so that a seed means the same
    everywhere.
    """
    settings = plan.config.privacy
    here = range(len(plan.nodes)) if hosted is None else hosted
    cipher = settings.keystream or "aes"
    if settings.noise_seed is not None:
        return seeded_keys(settings.noise_seed, here, cipher)
    if not plan.noisy:
        return seeded_keys(plan.config.train.seed, here, cipher)
    on_device = plan.config.train.device.partition(":")[0] == "cuda"
    if settings.keystream is None and session.remember("ChaCha20", lambda: on_device, FLAG):
        cipher = "chacha20"
    secret = {n: session.secret(f"noise of node {n}") for n in here}
    return NodeKeys(secret, seeded=False, cipher=cipher)


def pair_keys(plan: Plan, placement: Placement, peers: Peers) -> PairKeys | None:
    """The secret keys of this process's pairs of nodes, fresh at every start; None without pairs.

    Steps that are run again after a kill therefore never see the same noise of a pair twice.

    Raises:
        InputError: see `check_pooled`.
        PeerError: another process was lost, or showed no public key.
    """
    pairs = plan.release.pairs
    if pairs is None:
        return None
    seed = plan.config.privacy.noise_seed
    if seed is not None:
        return seeded_pair_keys(seed, pairs.pairs)
    if peers.processes == 1:
        return fresh_pair_keys(pairs.pairs)
    check_pooled(pairs.colluding, "nodes", placement, peers)
    return agreed_pair_keys(peers, pairs.pairs, placement.ranks, "noise of pairs")


@dataclass(frozen=True)
class _Limit:
    """A budget that a node, and those like it, must keep.

    Args:
        whose: it is, in words that others may read.
        budget: epsilon, or the total variation that a guess allows.
        cost: the same if steps up to the given one are run.
        why: what is charged beside the steps to come.
    """

    whose: str
    budget: float
    cost: Callable[[int], float]
    why: str = "steps that were reserved before the run was cut off are charged on top"


def affordable(
    plan: Plan,
    before: Mapping[int, Sequence[Interval]],
    first: int,
    ledger: RunLedger | None = None,
    paid: int | None = None,
    again: Sequence[Interval] = (),
) -> tuple[int, str | None]:
    """The last step that every budget still covers, and why it is not the planned one.

    Where nothing is left, that is the step it stands at: its last checkpoint is the result.

    Args:
        plan: of the run.
        before: what the run's own ledger has charged each node.
        first: the step that the run stands at.
        ledger: its ledger, for the budgets of the nodes' data; a new run needs none, since
            `shared_budgets.check_shared` has admitted it.
        paid: up to which step the run has paid already; None: `first`.
        again: steps that the run will reserve beside those to come.

    Raises:
        BudgetError: nothing is left, and no step was completed that could be the result.
    """
    paid = first if paid is None else paid
    charged = {node: (*intervals, *again) for node, intervals in before.items()}
    until, short = plan.steps, None
    for limit in _limits(plan, charged, paid, ledger, again):
        covered = _covered(limit, first, paid, until)
        if covered < until:
            until, short = covered, limit
    if short is None:
        return until, None
    reason = f"{short.why}; the budget of {short.whose} covers steps up to {until} of {plan.steps}"
    if until > first:
        return until, reason
    if first == 0:
        key = "epsilon" if plan.config.privacy.guess is None else "guess"
        remedy = f"there is no checkpoint to end with; raise privacy.{key} in a new run"
        raise BudgetError(
            f"{reason}: nothing is left to resume with, and {remedy}",
            public=plan.config.privacy.ledger is None,
        )
    return first, f"{reason}: nothing is left, and the last checkpoint is the result"


def covers_calibration(plan: Plan, ledger: RunLedger) -> bool:
    """Whether what is released after the last step is within every budget of this process."""
    limits = _limits(plan, ledger.charged(), plan.steps, ledger)
    return all(limit.cost(plan.steps) <= limit.budget for limit in limits)


def _limits(
    plan: Plan,
    before: Mapping[int, Sequence[Interval]],
    first: int,
    ledger: RunLedger | None,
    again: Sequence[Interval] = (),
) -> list[_Limit]:
    """The run's own budgets, where something was spent of them already, and those of the data.

    The figures of the latter are for their owners' eyes; `again` is as in `affordable`.
    """
    limits = []
    nodes = {
        (plan.release.kind(node), node.limit, tuple(before.get(node.node, ()))): node
        for node in (plan.nodes if plan.config.privacy.accounting == "certified" else ())
    }
    for node in nodes.values():
        charged = list(before.get(node.node, ()))
        if node.limit is None or not charged:
            continue

        def total(end: int, node: NodePlan = node, charged: Sequence[Interval] = charged) -> float:
            charges = [*charged, (first, end), *plan.release.after]
            return plan.release.spent(node, charges) or 0.0

        told = f"{node.budget:g}" if node.guess is None else f"guess {node.guess:g}"
        limits.append(_Limit(f"node {node.node} ({told})", node.limit, total))
    why = "steps of this run that were reserved before, and all other runs, are charged as well"
    for draw in draws(plan, ledger.shared, first, ledger.own.run_id, again) if ledger else ():
        whose = f"the data of node {draw.nodes[0]} (privacy.ledger)"
        limits.append(_Limit(whose, draw.account.epsilon_budget, draw.cost, why))
    return limits


def _covered(limit: _Limit, first: int, paid: int, until: int) -> int:
    """The largest end within [paid, until] for which a node's epsilon stays in its budget.

    `first` where it does not even without a step beyond those that are paid: what is drawn again
    when a run goes on is charged on top of them.
    """
    low, high = paid, until
    if limit.cost(high) <= limit.budget:
        return high
    if limit.cost(low) > limit.budget:
        return first
    while high - low > 1:
        middle = (low + high) // 2
        fits = limit.cost(middle) <= limit.budget
        low, high = (middle, high) if fits else (low, middle)
    return low


def epsilon_spent(
    plan: Plan, charged: Mapping[int, Sequence[Interval]], release: Release | None = None
) -> tuple[float | None, ...]:
    """Certified epsilon of the steps that each node has released, repeats included, one a node.

    `release` is as other observers see it, by default the plan's.
    """
    seen = plan.release if release is None else release

    def intervals(node: NodePlan) -> tuple[Interval, ...]:
        return tuple(charged.get(node.node, ()))

    found = seen.of_each(plan.nodes, lambda node: seen.epsilon(node, intervals(node)), intervals)
    return tuple(found)


_EXACTLY = 200  # evaluations for each of which epsilon is found
_MORE = 1.02


def costs(
    plan: Plan,
    hosted: Sequence[int],
    charged: Mapping[int, Sequence[Interval]],
    first: int,
    evaluation_steps: Sequence[int],
) -> Callable[[str, int], float | None]:
    """Gives the most and the least that a node has spent by a step: upper bounds.

    They are epsilon, by "most", "least" or "own" and a step. The nodes of this process (`hosted`)
    count beside the extremes of all, since what others have reserved is their word. What one of
    them has spent at most stands as "own".

    A value is found once, when it is asked for: that after the next evaluation, and of more than
    200 evaluations after one with at most 2 % more steps. Epsilon never falls from step to step, so
    that what holds after a later step, or after the last one, holds after an earlier one.

    `charged` is what each node was charged before, all of it up to step `first`; `evaluation_steps`
    ascend, and the last one is that of the run.
    """
    every, own, until = extremes(plan), extremes(plan, hosted), evaluation_steps[-1]
    marks = [until]
    for step in reversed(evaluation_steps):
        if step < marks[-1] and (len(evaluation_steps) <= _EXACTLY or step * _MORE <= marks[-1]):
            marks.append(step)
    marks.reverse()

    @cache
    def after(node: int, step: int) -> float | None:
        last = plan.release.after if step == until else ()
        charges = [*charged.get(node, ()), (first, step), *last]
        found = plan.release.epsilon(plan.nodes[node], charges)
        return found if found is None or step == until else min(found, after(node, until) or 0.0)

    def cost(which: str, step: int) -> float | None:
        mark = marks[min(bisect_left(marks, step), len(marks) - 1)]
        if which == "own":
            return after(own["most"].node, mark)
        values = [after(node, mark) for node in {every[which].node, own[which].node}]
        known = [value for value in values if value is not None]
        return (max if which == "most" else min)(known, default=None)

    return cost


def epsilon_by_colluders(
    plan: Plan, charged: Mapping[int, Sequence[Interval]] | None = None
) -> tuple[tuple[float | None, ...], ...]:
    """Certified epsilon against 0, 1, 2 ... nodes who pool all that they know: a row a number.

    Up to one more than the plan's guarantee is about; no rows where it counts on nobody else.
    `charged` has the steps that each node has released, by default all that are planned.
    """
    shared = plan.release.shared
    if shared is None:
        return ()
    if charged is None:
        charged = {node.node: ((0, plan.steps),) for node in plan.nodes}
    most = min(shared.colluding + 1, len(plan.nodes) - 1)
    return tuple(
        epsilon_spent(plan, charged, plan.release.against(colluding))
        for colluding in range(most + 1)
    )


def unit_spent(plan: Plan, charged: Mapping[int, Sequence[Interval]] | None = None) -> UnitTerms:
    """Whom epsilon protects, with what is certified of a person where that is not a node's.

    `charged` has the steps that each node has released, by default all that are planned; of nodes
    that are not in it nothing is known.
    """
    unit, release = plan.unit, plan.release
    nodes = [node for node in plan.nodes if node.records]
    if charged is None:
        charged = {node.node: release.planned for node in nodes}
    deltas = [node.delta for node in nodes if node.delta is not None]
    known = all(node.node in charged for node in nodes)
    if not (unit.apart and plan.accounted and deltas and known):
        return unit
    released = [(node, charged[node.node]) for node in nodes if charged[node.node]]
    mechanisms = [release.mechanism(*own) for own in released if release.active_steps(*own)]
    return with_person(unit, mechanisms, min(deltas))


def with_person(unit: UnitTerms, mechanisms: Sequence[Mechanism], delta: float) -> UnitTerms:
    """The terms with what is certified of a person, of what each node has released.

    Group privacy where epsilon is a row's, and the worst set of as many nodes as may have rows of
    one person; where there are too many sets, that of a mechanism that dominates all nodes'.
    Nothing is certified where no bound is proved of what nodes share.
    """
    epsilon = math.inf if mechanisms else 0.0
    worst = [one for one in [dominating(mechanisms)] * unit.nodes if one is not None]
    for nodes in (mechanisms, worst[: len(mechanisms)]):
        with suppress(InputError):
            if unit.gradient is None:
                nodes = [for_a_unit(mechanism, unit.rows) for mechanism in nodes]
            epsilon = privacy.epsilon(across_nodes(nodes, unit.nodes), delta=delta)
            break
    return unit.model_copy(update={"epsilon": plain_json(epsilon), "delta": delta})


def claimed_spent(plan: Plan, steps: int) -> tuple[float | None, ...]:
    """What the paper's formula says of the steps that were completed, one a node."""
    return tuple(plan.release.of_each(plan.nodes, lambda node: plan.release.claimed(node, steps)))


def extremes(plan: Plan, nodes: Sequence[int] | None = None) -> dict[str, NodePlan]:
    """Of these nodes, by default all, those whose whole plan costs most and least."""
    chosen = plan.nodes if nodes is None else [plan.nodes[node] for node in nodes]
    ranked = sorted(chosen, key=lambda node: node.epsilon or 0.0)
    return {"most": ranked[-1], "least": ranked[0]}
