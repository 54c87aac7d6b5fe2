"""What is said of a search: its cost, against whom that holds, and what must be quoted.

It is a document before the trials run and another after them, and each is printed as blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacit.analysis.settings.changes import choice_text
from tacit.analysis.tune.costs import SearchPlan
from tacit.privacy.accounting.choosing import NegativeBinomialTrials
from tacit.report.documents.tune import (
    PlannedTrial,
    TrialMark,
    TuneDocument,
    TunePlanDocument,
)
from tacit.report.view import Block, Table, Text
from tacit.report.wording import epsilon_text

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
