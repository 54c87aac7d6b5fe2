"""Runs the trials of a search one after the other, each once, whatever cuts it off; and its end:
the winner, what was spent on finding it, and what may be shown of it.

The folder of a search has `search.json` (what is searched, with the trials' budgets), `trials/`
(run folders, of which whoever sees messages has seen the releases), `ledger/` (of the nodes' data,
for all trials), `private/` (of random stopping: the secret draws and every trial), `winner/`,
`winner.toml`, `tune.json`. All of it is its owner's alone to read; what is in `private/` must stay
so for epsilon to hold.

A trial is a run with a run folder. One that was cut off goes on from its checkpoint: what was sent
was sent, and the steps that are repeated are charged again, in its own ledger and in those of the
nodes' data; where the budget does not cover them, the trial ends some steps early, and of a later
trial that no longer fits the budget is lowered.

*Random stopping.* Nothing of a trial is seen before the winner is released, so that steps which a
kill has cut off were never released: a trial that is not whole is begun anew, with fresh noise.
Its outcome is then distributed as that of a trial that was never cut off, provided that whoever
kills does not look inside. In the ledgers of the data the search has one entry, of the winner
(`KnownRelease`), before the first trial; no trial is charged there by itself.
"""

from __future__ import annotations

import math
import os
import random
import secrets
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tacit.analysis.settings.changes import choice_text
from tacit.analysis.settings.processes import (
    UNFINISHED,
    Attempt,
    Make,
    Monitor,
    Outcome,
    WantedRun,
)
from tacit.analysis.settings.runs import complete, read_ended, read_final, score_of
from tacit.analysis.settings.spent import spent_by_node
from tacit.analysis.tune import costs
from tacit.analysis.tune.costs import SearchPlan, with_budget, with_ledger
from tacit.analysis.tune.search import Search, without_ledger
from tacit.base.plain_files import read_plain
from tacit.base.private_files import (
    locked,
    make_private_folder,
    plain_errors,
    sync_folder,
    write_private,
)
from tacit.base.version import __version__
from tacit.config import Config, to_toml
from tacit.errors import BudgetError, DivergenceError, InputError
from tacit.privacy import to_statement
from tacit.privacy.accounting.choosing import draw_trials
from tacit.report import write_report
from tacit.report.documents.base import dump, load_file
from tacit.report.documents.metrics import (
    MOST_SERIES,
    Measurement,
    PrivateMeasurement,
    read_measurements,
)
from tacit.report.documents.run import ResultDocument, read_result
from tacit.report.documents.tune import PrivateDraws, SearchDocument, TrialDocument, TuneDocument
from tacit.training.job import Job
from tacit.training.prepare import prepare
from tacit.training.run_folder.folder import RESULT, RunFolder, half_made, trusted_config
from tacit.training.shared_budgets import check_strangers, draws, open_shared

_MARK = "search.json"
_SMALLER = (1.0, 0.99, 0.97, 0.9, 0.8, 0.65, 0.5)


@dataclass(frozen=True)
class SearchFolder:
    """A search's folder; `reservation` is its identity in ledgers of data, which charge it once."""

    path: Path
    reservation: str

    @classmethod
    def known(cls, path: Path, digest: str, *, resume: bool) -> SearchDocument | None:
        """What a search that goes on began with; None of a new one.

        Raises:
            InputError: a new one has a folder already, or there is none to resume, or it is of
                another search.
        """
        mark = path / _MARK
        if not resume:
            if os.path.lexists(path):
                expected = "exists already: name a new folder, or continue it with --resume"
                raise InputError("--out", str(path), expected)
            return None
        if not mark.is_file():
            # One that was killed while it began has left an empty folder at most.
            if os.path.lexists(path) and (not path.is_dir() or any(path.iterdir())):
                raise InputError("--out", str(path), "holds no search to resume")
            return None
        document = load_file(SearchDocument, mark)
        if document.digest != digest:
            expected = "holds another search: a search resumes with the file that it began with"
            raise InputError("--out", str(path), expected)
        return document

    @classmethod
    @contextmanager
    def begin(
        cls, path: Path, digest: str, epsilon: Sequence[Sequence[float]]
    ) -> Iterator[SearchFolder]:
        """Make the folder with its mark, or take it up; it is this process's alone within.

        Raises:
            InputError: another process runs the search, or the folder cannot be written.
        """
        with plain_errors("--out", path):
            make_private_folder(path)
            if not (path / _MARK).is_file():
                document = SearchDocument(
                    format_version=SearchDocument.version,
                    digest=digest,
                    epsilon=tuple(map(tuple, epsilon)),
                    reservation=secrets.token_hex(16),
                )
                write_private(path / _MARK, dump(document).encode())
        with locked(path):
            yield cls(path, load_file(SearchDocument, path / _MARK).reservation)

    def draws(self) -> tuple[int, ...] | None:
        """The secret settings of the trials; None before they were drawn."""
        path = self.path / "private" / "draws.json"
        return tuple(load_file(PrivateDraws, path).settings) if path.is_file() else None

    def keep_draws(self, settings: Sequence[int]) -> None:
        """Write them down, durably, before the first trial."""
        private = self.path / "private"
        with plain_errors("--out", self.path):
            make_private_folder(private)
            make_private_folder(private / "trials")
            document = PrivateDraws(format_version=PrivateDraws.version, settings=tuple(settings))
            write_private(private / "draws.json", dump(document).encode())

    def write(self, name: str, content: str) -> None:
        """A file of the search, whole or not at all."""
        with plain_errors("--out", self.path / name):
            write_private(self.path / name, content.encode())

    def result(self) -> TuneDocument | None:
        """`tune.json` of a search that is done."""
        path = self.path / "tune.json"
        return load_file(TuneDocument, path) if path.is_file() else None


def run_trials(
    plan: SearchPlan, folder: SearchFolder, monitor: Monitor, executor: Executor | None = None
) -> list[tuple[int, TrialDocument]] | None:
    """Make every trial that has not ended, and give the setting of each and what came of it.

    None where the user ended the search before the last one. Of hidden trials nobody hears.
    """
    cost, hidden = plan.search.tune.cost, plan.search.law is not None
    refuse_workers(plan.search, executor)
    settings = _settings(plan, folder) if hidden else tuple(range(len(plan.trials)))
    runs = (folder.path / "private" if hidden else folder.path) / "trials"
    requests = [
        WantedRun(
            f"trial {place + 1} of {len(settings)}: {choice_text(plan.search.choices[setting])}",
            _numbered(plan.trials[setting], place),
            runs / f"{place + 1:04d}",
        )
        for place, setting in enumerate(settings)
    ]
    if cost == "composed":  # of one that ended just before a kill nothing was said yet
        for request in requests:
            if read_final(request.path) is not None:
                _say(plan, request.path)
    rules: dict[str, Make] = {
        "composed": partial(_composed, plan, folder.path / "ledger"),
        "public": _gone_on,
        "random-stopping": _anew,
    }
    outcomes = complete(
        requests,
        partial(_or_lost, rules[cost]),
        executor=executor,
        turns=cost == "composed",
        monitor=Monitor(should_stop=monitor.should_stop) if hidden else monitor,
    )
    if any(outcome.status in UNFINISHED for outcome in outcomes):
        return None
    trials = []
    for setting, request in zip(settings, requests, strict=True):
        known = read_ended(request.path)
        spent = [] if known is None else [value for value in known.epsilon if value is not None]
        trial = TrialDocument(
            choice=dict(plan.search.choices[setting]),
            folder=str(request.path.relative_to(folder.path)),
            status="lost" if known is None else known.status,
            score=None if known is None else score_of(known, plan.search.score),
            epsilon=max(spent, default=None),
        )
        trials.append((setting, trial))
    return trials


def refuse_workers(search: Search, executor: object) -> None:
    """Refuse an executor of hidden trials: whoever has the workers could count them."""
    if search.law is not None and executor is not None:
        expected = 'goes without cost = "random-stopping": its workers could count hidden trials'
        raise InputError("--executor", str(executor), expected)


def reserve_total(plan: SearchPlan, identity: str) -> None:
    """Reserve what hidden trials cost in the ledgers of the data, durably and once.

    Of others nothing is reserved: each draws on the ledgers by itself, or the winner does. But
    before the first of any kind, nodes that hold records of a source which they do not name are
    refused. The `identity` of the search is the same whenever it goes on.

    Raises:
        BudgetError: the budget of the data does not cover it, or a source is not named.
        InputError: the ledgers cannot be used, or another run draws on the records now.
    """
    base, winner = plan.search.base, plan.winner
    if base.privacy.ledger is None:
        return
    job = prepare(base if winner is None else plan.trials[0])
    with open_shared(job.plan, job.loaded, job.hosted, identity, base.privacy) as shared:
        check_strangers(shared)
        if winner is None or all(shared.reserved(source, identity) for source in shared.nodes):
            return
        for draw in draws(job.plan, shared, 0, identity):
            total, most = draw.with_([winner]), draw.account.epsilon_budget
            if total > most:
                raise BudgetError(
                    f"the search costs epsilon {plan.total[0]:.4g} and would bring its data, whose "
                    f"budget is {most:g} at delta {draw.account.delta:g} (in {draw.file}), to "
                    f"{total:.4g}: no trial was run; lower privacy.epsilon",
                    public=False,
                )
        statements = {0: to_statement(winner)}
        shared.enter(identity, digest=plan.search.digest(), statements=statements, sent={})
        shared.reserve(0, 1)


def run_final(
    config: Config, path: Path, monitor: Monitor, executor: Executor | None
) -> ResultDocument | None:
    """The winner's own run on the private records; None where the user ended it."""
    wanted = [WantedRun("winner", config, path)]
    heard = Monitor(should_stop=monitor.should_stop)
    (outcome,) = complete(wanted, _gone_on, executor=executor, monitor=heard)
    if outcome.status == "diverged":
        raise DivergenceError(outcome.message)
    return None if outcome.status in UNFINISHED else read_ended(path)


def _settings(plan: SearchPlan, folder: SearchFolder) -> tuple[int, ...]:
    """The settings of a secret number of trials: drawn once, and never shown.

    From the operating system, unless the noise is seeded, which protects nobody anyway.
    """
    known = folder.draws()
    if known is not None:
        if max(known, default=0) >= len(plan.trials):
            expected = "names a setting that the search does not have: it was changed"
            raise InputError("--out", str(folder.path / "private" / "draws.json"), expected)
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


def _anew(request: WantedRun, attempt: Attempt) -> Outcome:
    """Make a hidden trial: of one that was cut off nothing was released."""
    if request.path.exists():
        shutil.rmtree(request.path)
    # What it costs was reserved before, for all trials together.
    return attempt(prepare(without_ledger(request.config)), request.path, False)


def _gone_on(request: WantedRun, attempt: Attempt) -> Outcome:
    """Make a run, or go on with it."""
    resume = request.path.exists() or half_made(request.path)
    return attempt(prepare(request.config), request.path, resume)


def _composed(plan: SearchPlan, ledger: Path, request: WantedRun, attempt: Attempt) -> Outcome:
    """Make a trial whose cost adds to that of the others, or go on with what is left of it.

    A new one has less of its budget where that of the data does not cover it.
    """
    path, own = request.path, request.config
    if path.exists():
        configs = [trusted_config(path, False, own=own)]
    else:
        budgets = own.per_node(own.privacy.budget or 0.0)
        smaller = [with_budget(own, [share * value for value in budgets]) for share in _SMALLER]
        configs = [with_ledger(config, ledger, plan.budgets) for config in smaller]
    for config in configs:
        job = prepare(config)
        cautions = (costs.sentence(plan), *job.plan.cautions)  # what must be quoted of it
        job = replace(job, plan=replace(job.plan, cautions=cautions))
        outcome = attempt(job, path, path.exists() or half_made(path))
        if outcome.status != "lost" or path.exists():
            break
    if path.exists() and outcome.status not in UNFINISHED:
        _say(plan, path)
    return outcome


def _or_lost(make: Make, request: WantedRun, attempt: Attempt) -> Outcome:
    """Make a trial, which is lost without any budget left."""

    def attempt_or_lose(job: Job, path: Path, resume: bool) -> Outcome:
        try:
            return attempt(job, path, resume)
        except BudgetError as error:
            known = read_ended(path)
            return Outcome(path, "lost" if known is None else known.status, str(error))

    return make(request, attempt_or_lose)


def _numbered(config: Config, place: int) -> Config:
    """With seeded noise of its own: equal noise of two trials would be no trial."""
    seed = config.privacy.noise_seed
    if seed is None:
        return config
    return config.with_keys(privacy={"noise_seed": seed + place})


def _say(plan: SearchPlan, path: Path) -> None:
    """Say in the trial's result and report that its epsilon is not what choosing it costs."""
    if (path / "trial.json").is_file():
        return
    known = read_ended(path)
    if known is not None:
        said = known.model_copy(update={"choosing": costs.sentence(plan)})
        RunFolder(path).write_document(RESULT, said)
        write_report(path)
    RunFolder(path).write_document("trial.json", costs.mark(plan))


# The end.


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
        **costs.said(plan, _spent(plan, runs, path)),
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
            "choosing": costs.sentence(plan),
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
        "trial.json": dump(costs.mark(plan)).encode(),
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
