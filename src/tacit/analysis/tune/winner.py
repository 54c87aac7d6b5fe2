"""The end of a search: the winner, what was spent on finding it, and what may be shown of it."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tacit import __version__
from tacit.analysis.settings.runs import score_of
from tacit.analysis.settings.spent import spent_by_node
from tacit.analysis.tune import words
from tacit.analysis.tune.costs import SearchPlan, with_ledger
from tacit.analysis.tune.folder import SearchFolder
from tacit.analysis.tune.search import without_ledger
from tacit.analysis.tune.trials import (
    SearchMonitor,
    Trial,
    reserve_total,
    run_final,
    run_trials,
)
from tacit.config import to_toml
from tacit.plain_files import read_plain
from tacit.private_files import make_private_folder, plain_errors, sync_folder, write_private
from tacit.report import write_report
from tacit.report.documents.base import dump
from tacit.report.documents.metrics import (
    MOST_SERIES,
    Measurement,
    PrivateMeasurement,
    read_measurements,
)
from tacit.report.documents.run import read_result
from tacit.report.documents.tune import TrialDocument, TuneDocument


def run_search(plan: SearchPlan, folder: SearchFolder, watch: SearchMonitor) -> TuneDocument | None:
    """Run the search, choose, and write what may be shown; None where the user ended it.

    What has ended in the folder is not run again.
    """
    known = folder.result()
    if known is not None:
        return known
    reserve_total(plan, folder.reservation)
    trials = run_trials(plan, folder, watch)
    if trials is None:
        return None
    best = _best(plan, trials)
    path, score, config = None, None, None
    if best is not None:
        config, score, path = plan.trials[best.setting], best.score, best.path
        if plan.search.tune.cost == "composed":  # whoever runs it again finds what was spent
            config = with_ledger(config, folder.ledger, plan.budgets)
        if plan.search.tune.cost == "public":
            config, path = plan.search.experiments[best.setting], folder.winner
            final = run_final(config, path, watch)
            if final is None:
                return None
            score = score_of(final, plan.search.score)
        if plan.search.tune.cost == "random-stopping":
            path = _shown(plan, folder, best)
    if config is not None:
        told = (
            "# Chosen by `tacit tune`. A run of it is a release of its own, whose cost adds to\n"
            "# that of the search.\n"
        )
        folder.write("winner.toml", told + to_toml(config))
    document = _document(plan, folder, trials, best, (path, score))
    folder.write_result(document)
    return document


def _best(plan: SearchPlan, trials: Sequence[Trial]) -> Trial | None:
    """The first trial of the best score."""
    scored = [trial for trial in trials if trial.score is not None]
    return max(
        scored, key=lambda trial: plan.search.measure.worth(trial.score or 0.0), default=None
    )


def _shown(plan: SearchPlan, folder: SearchFolder, best: Trial) -> Path:
    """A copy of the winner's run that says nothing of when it ran, and nothing of private records.

    Its times, and the dates in its ledger, would tell how many trials there were.
    """
    target = folder.winner
    if target.exists():
        return target
    result = read_result(best.path / "result.json")
    epsilon = tuple(plan.total)
    shown = result.model_copy(
        update={
            "epsilon": epsilon,
            "epsilon_budget": tuple(plan.budgets),
            "claimed_epsilon": (None,) * len(epsilon),
            "claim": result.claim.model_copy(update={"formula": None, "reading": None}),
            "mechanism": f"the best of a random number of trials; each: {result.mechanism}",
            "seconds": None,
            "steps_per_second": None,
            "charged_steps": None,
            "choosing": words.sentence(plan),
            "notes": (),
            "epsilon_source": None,
        }
    )
    path = best.path / "metrics.jsonl"
    rows = read_measurements(read_plain(path, MOST_SERIES).decode(), str(path))
    contents = {
        "config.toml": to_toml(without_ledger(plan.trials[best.setting])).encode(),
        "metrics.jsonl": "".join(dump(_public(row), indent=None) + "\n" for row in rows).encode(),
        "model.safetensors": (best.path / "model.safetensors").read_bytes(),
        "trial.json": dump(words.mark(plan)).encode(),
        "result.json": dump(shown).encode(),
    }
    half = target.with_name(".winner.new")  # it appears whole, or not at all
    with plain_errors("--out", target):
        if half.exists():
            shutil.rmtree(half)
        make_private_folder(half)
        for name, content in contents.items():
            write_private(half / name, content)
        write_report(half)
        os.rename(half, target)
        sync_folder(target.parent)
    return target


def _public(row: Measurement) -> Measurement:
    """Without times, without what was measured on private records, without epsilon of one trial."""
    private = {name: None for name in PrivateMeasurement.model_fields if name != "step"}
    return row.model_copy(
        update={**private, "seconds": None, "epsilon": None, "claimed_epsilon": None}
    )


def _document(
    plan: SearchPlan,
    folder: SearchFolder,
    trials: Sequence[Trial],
    best: Trial | None,
    winner: tuple[Path | None, float | None],
) -> TuneDocument:
    search, (path, score) = plan.search, winner
    hidden = search.law is not None
    spent = _spent(plan, trials, path)
    return TuneDocument(
        format_version=TuneDocument.version,
        tacit_version=__version__,
        cost=search.tune.cost,
        measure=search.score,
        settings=tuple(dict(choice) for choice in search.choices),
        law=words.law_text(plan),
        trials=()
        if hidden
        else tuple(
            TrialDocument(
                choice=dict(search.choices[trial.setting]),
                folder=str(trial.path.relative_to(folder.path)),
                status=trial.status,
                score=trial.score,
                epsilon=trial.epsilon,
            )
            for trial in trials
        ),
        winner=None if best is None else dict(search.choices[best.setting]),
        score=score,
        folder=None if path is None else str(path.relative_to(folder.path)),
        private=plan.private,
        epsilon=tuple(value if math.isfinite(value) else None for value in spent),
        delta=plan.delta,
        trust=words.trust(plan),
        sentences=words.sentences(plan),
    )


def _spent(plan: SearchPlan, trials: Sequence[Trial], winner: Path | None) -> tuple[float, ...]:
    """Certified epsilon of all that was released, one a node: by the ledgers of the runs.

    Of random stopping it is what was planned: what the winner is a function of.
    """
    if not plan.private:
        return (math.inf,) * len(plan.total)
    if plan.search.law is not None:
        return plan.total
    runs = [trial.path for trial in trials] if plan.search.tune.cost == "composed" else []
    if plan.search.tune.cost == "public" and winner is not None:
        runs = [winner]
    return spent_by_node(runs, plan.delta)
