"""What the trials of a search may cost: the noise of each, so that all of them keep one budget; and
what is said of that: against whom it holds, and what must be quoted.

*Composed.* The number of trials and their settings are fixed before the first one, and whoever sees
messages sees those of all: what a node releases is the adaptive composition of its mechanisms in
all trials, and choosing the best by public test records is post-processing. All noise scales of a
node are multiplied by one factor, the least for which the composition keeps the node's budget.

*Random stopping.* The trial's noise is the least for which the certified bound on the winner
(`tacit.privacy.accounting.choosing`) keeps the budget.

A trial has its noise by its own `privacy.epsilon`, which calibration meets within a thousandth; so
the bound is computed again from the plans that will run, and the trials' budgets are lowered
until it holds.

What is said is a document before the trials run and another after them, each printed as blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from tacit import privacy
from tacit.analysis.settings.changes import choice_text
from tacit.analysis.tune.search import Search
from tacit.config import Config
from tacit.errors import BudgetError, InputError
from tacit.privacy import Mechanism
from tacit.privacy.accounting.calibration import least_scale
from tacit.privacy.accounting.choosing import NegativeBinomialTrials, choosing_epsilon
from tacit.privacy.ledger.spent import combined, cost
from tacit.privacy.mechanisms.known import KnownRelease
from tacit.report.documents.tune import (
    PlannedTrial,
    TrialMark,
    TuneDocument,
    TunePlanDocument,
)
from tacit.report.view import Block, Table, Text
from tacit.report.wording import epsilon_text
from tacit.training.plan import Plan
from tacit.training.planner import build_plan
from tacit.training.prepare import prepare
from tacit.training.records import found_in, load_records, units_in, warn_of_private
from tacit.training.release import NodePlan

Value = TypeVar("Value")
_LOWER = 0.999
_CHANCE = 0.05  # of records: more are not taken to be equal by chance
_ATTEMPTS = 60
_LARGEST = 1000.0  # epsilon of a trial: where hardly one is run, hardly any noise is asked for
_SHARES = (0.5, 0.1, 0.01)  # of delta, at which a winner is stated beside other runs
_TOLERANCE = 2e-3  # of the noise of trials that stop at random, whose bound takes long


@dataclass(frozen=True)
class SearchPlan:
    """A search whose every trial has its noise.

    `trials` are the experiments of the settings, each with the budget `epsilon` that it may spend
    alone, `[settings][nodes]`. `total` is the certified epsilon of everything that is released, at
    `delta`, one a node; `private` says whether it means anything, and `reason` why not. `noise` is
    the multiplier of each trial's first step, the least over nodes, and `winner` what is released
    of hidden trials, for ledgers of data; None: there is none to keep.
    """

    search: Search
    trials: tuple[Config, ...]
    epsilon: tuple[tuple[float, ...], ...]
    total: tuple[float, ...]
    delta: tuple[float, ...]
    private: bool
    reason: str | None
    steps: tuple[int, ...]
    noise: tuple[float, ...]
    winner: KnownRelease | None

    @property
    def budgets(self) -> tuple[float, ...]:
        """The epsilon that all of it must keep, one a node."""
        budget = self.search.base.privacy.budget
        return self.total if budget is None else self.search.base.per_node(budget)


def plan_search(search: Search, known: Sequence[Sequence[float]] | None = None) -> SearchPlan:
    """Decide every trial's noise, and what all of them cost.

    Of a search that goes on the trials' own budgets are `known`.

    Raises:
        InputError: something is wrong with a setting, or there are no public test records.
        BudgetError: no noise keeps the budget.
    """
    private = search.tune.cost != "public"
    plans = [_planned(search, place, config) for place, config in enumerate(search.trials)]
    own = plans[0] if private else _planned(search, 0, search.base)
    # As they are known once the records are, for budgets that go by name.
    search = replace(
        search,
        trials=tuple(each.with_names(plans[0].config.nodes.names) for each in search.trials),
        experiments=tuple(each.with_names(own.config.nodes.names) for each in search.experiments),
    )
    budgets = [] if known is None else [tuple(row) for row in known]
    trials, made, budget = list(search.trials), plans, search.base.privacy.budget
    if not private:
        _check_public(search)
        # The winner's plan is another, with the same budget: which it must keep.
        total = tuple(node.epsilon or math.nan for node in own.nodes)
        total = total if budget is None else search.base.per_node(budget)
    else:
        budgets = _epsilons(search, plans) if known is None else budgets
        for _ in range(_ATTEMPTS if known is None else 1):
            pairs = zip(search.trials, budgets, strict=True)
            trials = [with_budget(config, row) for config, row in pairs]
            made = [
                build_plan(config, [node.records for node in plan.nodes], plan.parameters)
                for plan, config in zip(plans, trials, strict=True)
            ]
            # Certified epsilon of everything that is released, one a node.
            total = tuple(_per_node(made, partial(_spent, search, made)))
            allowed = [node.budget or 0.0 for node in own.nodes]
            if all(spent <= most for spent, most in zip(total, allowed, strict=True)):
                break
            budgets = [tuple(value * _LOWER for value in row) for row in budgets]
        else:
            raise BudgetError(
                "privacy.epsilon cannot be kept by so many trials: fewer settings or steps, or a "
                "larger budget"
            )
    return SearchPlan(
        search=search,
        trials=tuple(trials),
        epsilon=tuple(budgets) if private else (),
        total=total,
        delta=search.base.per_node(search.base.privacy.delta),
        private=own.not_private_reason is None,
        reason=own.not_private_reason,
        steps=tuple(plan.steps for plan in made),
        noise=tuple(
            min(plan.release.noise_multiplier(node, 0) for node in plan.nodes) for plan in made
        ),
        winner=_winner(search, made, total[0]),
    )


def _check_public(search: Search) -> None:
    """Refuse trials on private records: told by digests of their inputs, never by names or folders.

    Test records of the trials count as well, by which the winner is chosen. Few equal rows may be
    chance, and are a warning; so many that chance is a bad guess are refused. So is anybody whose
    id is known of both, where epsilon protects a person: with other rows it is the same one.
    """
    load = partial(load_records, nodes=None, test=None, schema=None, device=torch.device("cpu"))
    kept, shown = (
        load(config, dtype=torch.float32, hosted=range(config.nodes.count))
        for config in (search.base, search.trials[0])
    )
    private, public = kept.train.inputs, {"trial": shown.train.inputs}
    if shown.test is not None:
        public["test"] = shown.test.inputs
    for what, records in public.items():
        both = found_in(records, private)
        if both > _CHANCE * len(records) or found_in(private, records) > _CHANCE * len(private):
            expected = (
                f"must name public records, and {both:,} of the {len(records):,} {what} records "
                "have the inputs of private ones of the experiment: name others "
                '({ "task.dataset" = "NAME" }), or pay for the choice with cost = "composed"'
            )
            raise InputError("tune.set", dict(search.tune.set), expected)
        warn_of_private(what, records, private)
    persons, own = shown.train.units, kept.train.units
    if persons is not None and own is not None and (both := units_in(persons, own)):
        expected = (
            f"must name records of others, and {both:,} of those whose they are have the id of one "
            "in the experiment: where ids of two tables mean different people, write them apart "
            "(north:17)"
        )
        raise InputError("tune.set", dict(search.tune.set), expected)


def with_budget(config: Config, epsilon: Sequence[float]) -> Config:
    """The experiment with a budget for each node."""
    return config.with_keys(privacy={"epsilon": config.by_node(epsilon)})


def with_ledger(config: Config, folder: Path, total: Sequence[float]) -> Config:
    """The experiment that reserves in ledgers of the nodes' data, whose budget is the total.

    Those that the user named stay, with the budget that they have. Seeded noise protects nobody,
    and no ledger is kept of it.
    """
    settings = config.privacy
    if settings.noise_seed is not None:
        return config
    update: Mapping[str, Any] = {
        "ledger": settings.ledger or str(folder.resolve()),
        "ledger_epsilon": settings.ledger_epsilon or config.by_node(total),
        "ledger_delta": settings.ledger_delta or settings.delta,
    }
    return config.with_keys(privacy=update)


def _planned(search: Search, place: int, config: Config) -> Plan:
    choice = dict(search.choices[place])
    try:
        job = prepare(config)
    except InputError as error:
        raise InputError(f"{error.where}, at {choice}", error.value, error.expected) from None
    if job.test is None:
        expected = (
            "trials are judged on public test records, and there are none: name some (task.test), "
            "or declare a share of the records public (task.test_share)"
        )
        raise InputError("task.test", None, expected)
    return job.plan


def _mechanism(plan: Plan, node: int, factor: float = 1.0) -> Mechanism:
    own = plan.nodes[node]
    return plan.release.mechanism(replace(own, noise_scale=factor * own.noise_scale))


def _per_node(plans: Sequence[Plan], value: Callable[[NodePlan], Value]) -> list[Value]:
    """A value of each node, found once of those that release the same in all trials."""
    known: dict[tuple[Any, ...], Value] = {}
    values = []
    for own in plans[0].nodes:
        released = tuple(plan.release.kind(plan.nodes[own.node]) for plan in plans)
        kind = (released, own.budget, own.delta)
        if kind not in known:
            known[kind] = value(own)
        values.append(known[kind])
    return values


def _epsilons(search: Search, plans: Sequence[Plan]) -> list[tuple[float, ...]]:
    """Budgets of the trials with which all of them together keep the whole one."""

    def of_trials(own: NodePlan) -> list[float]:
        factor, delta = _factor(search, plans, own), own.delta or 0.0
        spent = [privacy.epsilon(_mechanism(plan, own.node, factor), delta=delta) for plan in plans]
        return [min(_LARGEST, float(f"{value * (1 - 1e-9):.12g}")) for value in spent]

    return list(zip(*_per_node(plans, of_trials), strict=True))


def _factor(search: Search, plans: Sequence[Plan], own: NodePlan) -> float:
    """What the noise of a trial that had the whole budget is multiplied by."""
    assert own.budget is not None
    assert own.delta is not None
    if search.law is None:

        def composed(factor: float) -> Mechanism:
            whole = combined(_mechanism(plan, own.node, factor) for plan in plans)
            assert whole is not None
            return whole

        start = math.sqrt(len(plans))
        return privacy.calibrate(composed, epsilon=own.budget, delta=own.delta, start=start)
    spent = partial(_spent, search, plans, own)
    return least_scale(spent, target=own.budget, tolerance=_TOLERANCE, start=1.6, factor=1.2)


def _spent(search: Search, plans: Sequence[Plan], own: NodePlan, factor: float = 1.0) -> float:
    """Certified epsilon of what a node releases in all trials, or in the one that is released."""
    mechanisms = [_mechanism(plan, own.node, factor) for plan in plans]
    if search.law is None:
        return cost(combined(mechanisms), own.delta or 0.0)
    return choosing_epsilon(mechanisms, search.law, delta=own.delta or 0.0)


def _winner(search: Search, plans: Sequence[Plan], total: float) -> KnownRelease | None:
    """The winner of hidden trials, at the planned delta and at smaller ones, beside other runs."""
    own = plans[0].nodes[0]
    if search.law is None or search.base.privacy.ledger is None or own.delta is None:
        return None
    mechanisms = [_mechanism(plan, 0) for plan in plans]
    deltas = [own.delta * share for share in _SHARES]
    epsilons = [choosing_epsilon(mechanisms, search.law, delta=delta) for delta in deltas]
    points = [(total, own.delta), *zip(epsilons, deltas, strict=True)]
    return KnownRelease(
        [point for point in points if math.isfinite(point[0])],
        relation=mechanisms[0].relation,
        trust_model=mechanisms[0].trust_model,
        unit=mechanisms[0].unit,
        words="the best of a secret number of trials",
    )


# Words.


_TRUST = {
    "composed": "whoever sees the messages, models and scores of every trial, in the trust model "
    "of the runs",
    "random-stopping": "whoever sees the released winner alone: not how many trials there were or "
    "how long they took, and nothing of any other trial",
    "public": "whoever sees everything of the search, and of the winner's run in its trust model",
}
_SENTENCES = {
    "composed": (
        "All trials ran on the private records and may be seen: their composition is what the "
        "search costs, whichever of them is used, and what anyone quotes of the winner.",
        "Number and settings of the trials were fixed before the first. The winner was chosen by "
        "scores on public test records, which costs nothing; that score is chosen among several "
        "and flatters the winner.",
    ),
    "random-stopping": (
        "The number of trials was drawn in secret, each trial's setting uniformly from the public "
        "list, and the best was released. What lies in private/, and how long the search took, "
        "would tell more: epsilon does not hold against who knows it.",
        "The winner was chosen by its score on public test records, which flatters it.",
    ),
    "public": (
        "The trials ran on records that were declared public, and cost nothing: epsilon is that of "
        "the winner's run on the private records alone. If the records of the trials are not "
        "public, nothing here covers them.",
    ),
}


def said(plan: SearchPlan, epsilon: Sequence[float]) -> dict[str, Any]:
    """What both documents of a search say; `epsilon` is of all that is released, one a node."""
    cost = plan.search.tune.cost
    more = () if plan.reason is None else (f"This search is NOT PRIVATE: {plan.reason}.",)
    return {
        "cost": cost,
        "measure": plan.search.score,
        "law": _law_text(plan),
        "private": plan.private,
        "epsilon": tuple(value if math.isfinite(value) else None for value in epsilon),
        "delta": plan.delta,
        "trust": _TRUST[cost],
        "sentences": (*more, *_SENTENCES[cost]),
    }


def plan_document(plan: SearchPlan) -> TunePlanDocument:
    """The plan of a search as a document."""
    rows = plan.epsilon or ((None,),) * len(plan.search.choices)
    trials = zip(plan.search.choices, plan.steps, rows, plan.noise, strict=True)
    return TunePlanDocument(
        **said(plan, plan.total),
        budget=plan.budgets,
        trials=tuple(
            PlannedTrial(
                choice=dict(choice),
                steps=steps,
                epsilon=None if own[0] is None else max(value or 0.0 for value in own),
                noise_multiplier=noise,
            )
            for choice, steps, own, noise in trials
        ),
    )


def sentence(plan: SearchPlan) -> str:
    """What must be quoted of a trial or a winner, in place of its own epsilon."""
    most = max(zip(plan.total, plan.delta, strict=True))
    return (
        f"this run is of a search over {len(plan.search.choices)} settings: with the cost of "
        f"choosing, epsilon is {epsilon_text(most[0])} at delta {most[1]:g} as planned, against "
        f"{_TRUST[plan.search.tune.cost]}; tune.json beside it says what was spent"
    )


def mark(plan: SearchPlan) -> TrialMark:
    """What lies in the folder of a trial, for whoever makes a statement of it."""
    return TrialMark(
        format_version=TrialMark.version, cost=plan.search.tune.cost, sentence=sentence(plan)
    )


def _law_text(plan: SearchPlan) -> str | None:
    """The law of the number of trials, which is public; None where the number is."""
    law = plan.search.law
    if law is None:
        return None
    if isinstance(law, NegativeBinomialTrials):
        kind = f"truncated negative binomial, eta {law.eta:g}, gamma {law.gamma:.6g}"
    else:
        kind = "Poisson"
    return f"{kind}: {law.mean:.4g} trials in the mean"


def plan_blocks(document: TunePlanDocument) -> list[Block]:
    """What every trial may spend, and all of them."""
    law = document.law
    rows = [
        (
            choice_text(trial.choice),
            str(trial.steps),
            _number(trial.noise_multiplier),
            "nothing: public records" if trial.epsilon is None else epsilon_text(trial.epsilon),
        )
        for trial in document.trials
    ]
    headings = ("setting", "steps", "noise multiplier", "epsilon of one trial alone")
    title = "settings of the search" + ("" if law is None else f"; number of trials: {law}")
    kept = [value for value in document.budget if value is not None]
    limit = f", of a budget of {max(kept):g}" if kept else ""
    return [Table(headings, rows, title, headings), *_end("all of it may cost", document, limit)]


def result_blocks(document: TuneDocument, folder: Path) -> list[Block]:
    """What came of every trial that may be seen, and the winner."""
    rows = [
        (
            choice_text(trial.choice),
            trial.status,
            _number(trial.score),
            "-" if trial.epsilon is None else epsilon_text(trial.epsilon),
        )
        for trial in document.trials
    ]
    headings = ("setting", "status", document.measure, "epsilon of this trial alone")
    winner = "no trial ended with a model: there is no winner"
    written = ["tune.json"]
    if document.winner is not None:
        chosen = choice_text(document.winner)
        winner = f"winner: {chosen}; {document.measure} {_number(document.score)}"
        written.append("winner.toml")
    written += [] if document.folder is None else [document.folder]
    return [
        *([Table(headings, rows, "trials", headings)] if rows else []),
        Text(winner),
        *_end("with the cost of choosing", document),
        *(Text(str(folder / name), unbroken=True) for name in written),
    ]


def _end(what: str, document: TunePlanDocument | TuneDocument, limit: str = "") -> list[Block]:
    """What is certified of all of it, and what must be known of that."""
    known = [value for value in document.epsilon if value is not None]
    whole = len(known) == len(document.epsilon)
    epsilon = epsilon_text(max(known)) if whole else "unbounded"
    return [
        Text(f"{what}: certified epsilon {epsilon} at delta {max(document.delta):g}{limit}"),
        Text(f"it holds against {document.trust}", unbroken=True),
        *(Text(sentence, unbroken=True) for sentence in document.sentences),
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
