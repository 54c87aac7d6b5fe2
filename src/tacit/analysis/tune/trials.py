"""Runs the trials of a search one after the other, each once, whatever cuts it off.

A trial is a run with a run folder. One that was cut off goes on from its checkpoint: what was sent
was sent, and the steps that are repeated are charged again, in its own ledger and in those of the
nodes' data; where the budget does not cover them, the trial ends some steps early, and of a later
trial that no longer fits the budget is lowered.

*Random stopping.* Nothing of a trial is seen before the winner is released, so that steps which a
kill has cut off were never released: a trial that is not whole is begun anew, with fresh noise.
Its outcome is then distributed as that of a trial that was never cut off, provided that whoever
kills does not look inside. In the ledgers of the data the search has one entry, of the winner
(`BestOfTrials`), before the first trial; no trial is charged there by itself.
"""

from __future__ import annotations

import random
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tacit.analysis.settings.runs import read_ended, read_final, score_of
from tacit.analysis.tune.costs import SearchPlan, with_budget, with_ledger
from tacit.analysis.tune.folder import SearchFolder, write_document
from tacit.analysis.tune.search import without_ledger
from tacit.analysis.tune.words import mark, sentence
from tacit.config import Config
from tacit.errors import BudgetError, DivergenceError, InputError
from tacit.privacy import to_statement
from tacit.privacy.accounting.choosing import draw_trials
from tacit.report import write_report
from tacit.report.documents.run import ResultDocument
from tacit.training.hooks import Progress
from tacit.training.loop import execute
from tacit.training.prepare import Job, prepare
from tacit.training.run_folder.folder import RESULT, RunFolder, half_made, trusted_config
from tacit.training.shared_budgets import draws, open_shared

_SMALLER = (1.0, 0.99, 0.97, 0.9, 0.8, 0.65, 0.5)


@dataclass(frozen=True)
class Trial:
    """What came of a trial of a `setting` of the search, in its run folder.

    Its status is that of its run, or "lost": no budget was left for it. The score on public test
    records is None where it has no model or the score is no number; `epsilon` is what it spent by
    itself, the largest over nodes.
    """

    setting: int
    path: Path
    status: str
    score: float | None
    epsilon: float | None


@dataclass(frozen=True)
class SearchMonitor:
    """What the caller hears, and is asked; of hidden trials it hears nothing.

    `begin` hears the number of a trial, of how many, and its setting, `step` how far it is. Where
    `should_stop` is true the search ends cleanly.
    """

    begin: Callable[[int, int, int], None] = lambda number, count, setting: None
    step: Callable[[Progress], None] = lambda progress: None
    should_stop: Callable[[], bool] = lambda: False


def run_trials(plan: SearchPlan, folder: SearchFolder, watch: SearchMonitor) -> list[Trial] | None:
    """Run every trial that has not ended, and give all in their order.

    None where the user ended the search before the last one.
    """
    hidden = plan.search.law is not None
    settings = _settings(plan, folder) if hidden else tuple(range(len(plan.trials)))
    ended: list[Trial] = []
    for place, setting in enumerate(settings):
        path = folder.trial(place, hidden=hidden)
        known = read_final(path)
        if known is None:
            if watch.should_stop():
                return None
            if not hidden:
                watch.begin(place + 1, len(settings), setting)
            _run(plan, folder, place, setting, watch)
            known = read_ended(path)
            if known is not None and known.status == "stopped":
                return None
        if plan.search.tune.cost == "composed" and path.is_dir():
            _say(plan, path, known)
        ended.append(_trial(plan, path, setting, known))
    return ended


def reserve_total(plan: SearchPlan, identity: str) -> None:
    """Reserve what hidden trials cost in the ledgers of the data, durably and once.

    Of others, and without a ledger, nothing is reserved. The `identity` of the search is the same
    whenever it goes on.

    Raises:
        BudgetError: the budget of the data does not cover it.
        InputError: the ledgers cannot be used, or another run draws on the records now.
    """
    winner = plan.winner
    if winner is None:
        return
    job = prepare(plan.trials[0])
    budget = plan.search.base.privacy.budget
    with open_shared(job.plan, job.loaded, job.hosted, identity, budget) as shared:
        if all(shared.reserved(source, identity) for source in shared.nodes):
            return
        for draw in draws(job.plan, shared, 0, identity):
            total, most = draw.with_([winner]), draw.account.epsilon_budget
            if total > most:
                raise BudgetError(
                    f"the search costs epsilon {plan.total[0]:.4g} and would bring its data, whose "
                    f"budget is {most:g} at delta {draw.account.delta:g} (in {draw.file}), to "
                    f"{total:.4g}: no trial was run; lower privacy.epsilon"
                )
        statements = {0: to_statement(winner)}
        shared.enter(identity, digest=plan.search.digest(), statements=statements, sent={})
        shared.reserve(0, 1)


def run_final(config: Config, path: Path, watch: SearchMonitor) -> ResultDocument | None:
    """The winner's own run on the private records; None where the user ended it."""
    known = read_final(path)
    if known is None:
        execute(
            prepare(config),
            out=path,
            resume=path.exists() or half_made(path),
            on_step=watch.step,
            should_stop=watch.should_stop,
        )
        known = read_ended(path)
    return None if known is None or known.status == "stopped" else known


def _settings(plan: SearchPlan, folder: SearchFolder) -> tuple[int, ...]:
    """The settings of a secret number of trials: drawn once, and never shown.

    From the operating system, unless the noise is seeded, which protects nobody anyway.
    """
    known = folder.draws()
    if known is not None:
        if max(known, default=0) >= len(plan.trials):
            expected = "names a setting that the search does not have: it was changed"
            raise InputError("--out", str(folder.private / "draws.json"), expected)
        return known
    law, seed = plan.search.law, plan.search.base.privacy.noise_seed
    assert law is not None
    if seed is None:
        number = draw_trials(law)
        drawn = [secrets.randbelow(len(plan.trials)) for _ in range(number)]
    else:
        coins = random.Random(seed)
        number = draw_trials(law, coins.getrandbits(256))
        drawn = [coins.randrange(len(plan.trials)) for _ in range(number)]
    folder.keep_draws(drawn)
    return tuple(drawn)


def _run(
    plan: SearchPlan, folder: SearchFolder, place: int, setting: int, watch: SearchMonitor
) -> None:
    """Run one trial to its end, to a stop, or not at all where no budget is left."""
    path = folder.trial(place, hidden=plan.search.law is not None)
    config = _numbered(plan.trials[setting], place)
    if plan.search.law is not None:
        if path.exists():  # cut off: nothing of it was released
            shutil.rmtree(path)
        # What it costs was reserved before, for all trials together.
        hidden = SearchMonitor(should_stop=watch.should_stop)
        _execute(prepare(without_ledger(config)), path, False, hidden)
        return
    if plan.search.tune.cost == "public":
        _execute(prepare(config), path, path.exists() or half_made(path), watch)
        return
    if (path / "config.toml").is_file():
        _execute(_warned(prepare(trusted_config(path, False, own=config)), plan), path, True, watch)
        return
    budgets = plan.epsilon[setting]
    for share in _SMALLER:
        smaller = with_budget(config, [value * share for value in budgets])
        job = prepare(with_ledger(smaller, folder.ledger, plan.budgets))
        if _execute(_warned(job, plan), path, half_made(path), watch):
            return


def _numbered(config: Config, place: int) -> Config:
    """With seeded noise of its own: equal noise of two trials would be no trial."""
    seed = config.privacy.noise_seed
    if seed is None:
        return config
    return config.with_keys(privacy={"noise_seed": seed + place})


def _execute(job: Job, path: Path, resume: bool, watch: SearchMonitor) -> bool:
    """Whether the trial was begun: a divergence is an end, and a lack of budget may be one."""
    try:
        execute(job, out=path, resume=resume, on_step=watch.step, should_stop=watch.should_stop)
    except DivergenceError:
        return True
    except BudgetError:
        return (path / "config.toml").is_file()
    return True


def _warned(job: Job, plan: SearchPlan) -> Job:
    """The run with what must be quoted of it, in its report and result."""
    cautions = (sentence(plan), *job.plan.cautions)
    return replace(job, plan=replace(job.plan, cautions=cautions))


def _say(plan: SearchPlan, path: Path, known: ResultDocument | None) -> None:
    """Say in the trial's result and report that its epsilon is not what choosing it costs."""
    if (path / "trial.json").is_file():
        return
    if known is not None:
        said = known.model_copy(update={"choosing": sentence(plan)})
        RunFolder(path).write_document(RESULT, said)
        write_report(path)
    write_document(path / "trial.json", mark(plan))


def _trial(plan: SearchPlan, path: Path, setting: int, known: ResultDocument | None) -> Trial:
    if known is None:
        return Trial(setting, path, "lost", None, None)
    spent = [value for value in known.epsilon if value is not None]
    return Trial(
        setting, path, known.status, score_of(known, plan.search.score), max(spent, default=None)
    )
