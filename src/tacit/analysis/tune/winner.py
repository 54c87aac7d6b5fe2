"""The end of a search: the winner, what was spent on finding it, and what may be shown of it."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

from tacit.analysis.settings.processes import Monitor
from tacit.analysis.settings.runs import score_of
from tacit.analysis.settings.spent import spent_by_node
from tacit.analysis.tune import words
from tacit.analysis.tune.costs import SearchPlan, with_ledger
from tacit.analysis.tune.search import without_ledger
from tacit.analysis.tune.trials import SearchFolder, reserve_total, run_final, run_trials
from tacit.base.plain_files import read_plain
from tacit.base.private_files import make_private_folder, plain_errors, sync_folder, write_private
from tacit.base.version import __version__
from tacit.config import Config, to_toml
from tacit.report import write_report
from tacit.report.documents.base import dump
from tacit.report.documents.metrics import (
    MOST_SERIES,
    Measurement,
    PrivateMeasurement,
    read_measurements,
)
from tacit.report.documents.run import read_result
from tacit.report.documents.tune import TuneDocument


def run_search(
    plan: SearchPlan, folder: SearchFolder, monitor: Monitor, executor: Executor | None = None
) -> TuneDocument | None:
    """Run the search, choose, and write what may be shown; None where the user ended it.

    What has ended in the folder is not run again.
    """
    known = folder.result()
    if known is not None:
        return known
    reserve_total(plan, folder.reservation)
    trials = run_trials(plan, folder, monitor, executor)
    if trials is None:
        return None
    scored = [(setting, trial) for setting, trial in trials if trial.score is not None]
    worth = plan.search.measure.worth
    setting, best = max(scored, key=lambda one: worth(one[1].score or 0.0), default=(0, None))
    path, score, config = None, None, None
    if best is not None:  # the first trial of the best score
        config, score, path = plan.trials[setting], best.score, folder.path / best.folder
        if plan.search.tune.cost == "composed":  # whoever runs it again finds what was spent
            config = with_ledger(config, folder.path / "ledger", plan.budgets)
        if plan.search.tune.cost == "public":
            config, path = plan.search.experiments[setting], folder.path / "winner"
            final = run_final(config, path, monitor, executor)
            if final is None:
                return None
            score = score_of(final, plan.search.score)
        if plan.search.tune.cost == "random-stopping":
            path = _shown(plan, folder, config, path)
        told = (
            "# Chosen by `tacit tune`. A run of it is a release of its own, whose cost adds to\n"
            "# that of the search.\n"
        )
        folder.write("winner.toml", told + to_toml(config))
    runs = [folder.path / trial.folder for _, trial in trials]
    document = TuneDocument(
        **words.said(plan, _spent(plan, runs, path)),
        format_version=TuneDocument.version,
        tacit_version=__version__,
        settings=tuple(map(dict, plan.search.choices)),
        trials=() if plan.search.law is not None else tuple(trial for _, trial in trials),
        winner=None if best is None else best.choice,
        score=score,
        folder=None if path is None else str(path.relative_to(folder.path)),
    )
    folder.write("tune.json", dump(document))  # which says that the search is done
    return document


def _shown(plan: SearchPlan, folder: SearchFolder, config: Config, run: Path) -> Path:
    """A copy of the winner's run that says nothing of when it ran, and nothing of private records.

    Its times, and the dates in its ledger, would tell how many trials there were.
    """
    target = folder.path / "winner"
    if target.exists():
        return target
    result = read_result(run / "result.json")
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
    path = run / "metrics.jsonl"
    rows = read_measurements(read_plain(path, MOST_SERIES).decode(), str(path))
    contents = {
        "config.toml": to_toml(without_ledger(config)).encode(),
        "metrics.jsonl": "".join(dump(_public(row), indent=None) + "\n" for row in rows).encode(),
        "model.safetensors": (run / "model.safetensors").read_bytes(),
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


def _spent(plan: SearchPlan, trials: Sequence[Path], winner: Path | None) -> tuple[float, ...]:
    """Certified epsilon of all that was released, one a node: by the ledgers of the runs.

    Of random stopping it is what was planned: what the winner is a function of.
    """
    if not plan.private:
        return (math.inf,) * len(plan.total)
    if plan.search.law is not None:
        return plan.total
    runs = trials if plan.search.tune.cost == "composed" else []
    if plan.search.tune.cost == "public" and winner is not None:
        runs = [winner]
    return spent_by_node(runs, plan.delta)
