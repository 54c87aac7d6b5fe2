"""A search on the terminal: what it may cost before it runs, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tacit.analysis.settings.changes import choice_text
from tacit.analysis.tune import words
from tacit.analysis.tune.costs import SearchPlan
from tacit.report.documents.tune import PlannedTrial, TuneDocument, TunePlanDocument
from tacit.report.terminal import print_table, table_of
from tacit.report.wording import epsilon_text


def plan_document(plan: SearchPlan) -> TunePlanDocument:
    """The plan of a search as a document."""
    rows = plan.epsilon or ((None,),) * len(plan.search.choices)
    return TunePlanDocument(
        cost=plan.search.tune.cost,
        measure=plan.search.score,
        law=words.law_text(plan),
        trials=tuple(
            PlannedTrial(
                choice=dict(choice),
                steps=steps,
                epsilon=None if own[0] is None else max(value or 0.0 for value in own),
                noise_multiplier=noise,
            )
            for choice, steps, own, noise in zip(
                plan.search.choices, plan.steps, rows, plan.noise, strict=True
            )
        ),
        private=plan.private,
        epsilon=tuple(value if math.isfinite(value) else None for value in plan.total),
        budget=plan.budgets,
        delta=plan.delta,
        trust=words.trust(plan),
        sentences=words.sentences(plan),
    )


def plan_table(document: TunePlanDocument) -> None:
    """What every trial may spend, and all of them."""
    console = Console()
    rows = [
        (
            choice_text(trial.choice),
            str(trial.steps),
            _number(trial.noise_multiplier),
            "nothing: public records" if trial.epsilon is None else epsilon_text(trial.epsilon),
        )
        for trial in document.trials
    ]
    title = "settings of the search"
    if document.law is not None:
        title += f"; number of trials: {document.law}"
    headings = ("setting", "steps", "noise multiplier", "epsilon of one trial alone")
    print_table(console, table_of(headings, rows, title=title))
    _total(console, "all of it may cost", document.epsilon, document.delta, document.budget)
    _end(console, document.trust, document.sentences)


def result_table(document: TuneDocument, folder: Path) -> None:
    """What came of every trial that may be seen, and the winner."""
    console = Console()
    if document.trials:
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
        print_table(console, table_of(headings, rows, title="trials"))
    if document.winner is None:
        console.print("no trial ended with a model: there is no winner", highlight=False)
    else:
        chosen = choice_text(document.winner)
        text = f"winner: {chosen}; {document.measure} {_number(document.score)}"
        console.print(text, highlight=False, markup=False)
    _total(console, "with the cost of choosing", document.epsilon, document.delta, ())
    _end(console, document.trust, document.sentences)
    written = [folder / "tune.json"]
    if document.winner is not None:
        written.append(folder / "winner.toml")
    if document.folder is not None:
        written.append(folder / document.folder)
    for path in written:
        console.print(str(path), highlight=False, markup=False, soft_wrap=True)


def _total(
    console: Console,
    what: str,
    epsilon: Sequence[float | None],
    delta: Sequence[float],
    budget: Sequence[float | None],
) -> None:
    known = [value for value in epsilon if value is not None]
    text = epsilon_text(max(known)) if len(known) == len(epsilon) else "unbounded"
    kept = [value for value in budget if value is not None]
    limit = f", of a budget of {max(kept):g}" if kept else ""
    console.print(
        f"{what}: certified epsilon {text} at delta {max(delta):g}{limit}", highlight=False
    )


def _end(console: Console, trust: str, sentences: Sequence[str]) -> None:
    for text in (f"it holds against {trust}", *sentences):
        console.print(text, highlight=False, markup=False, soft_wrap=True)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
