"""Makes the runs of a figure that are not there yet, and gathers all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tacit.analysis.compare.figure import Figure
from tacit.analysis.compare.pool import Outcome, RunRequest, run_all
from tacit.analysis.compare.store import RunPlace, Store
from tacit.analysis.settings.runs import FINAL, read_final, read_rows, run_digest
from tacit.config import Config, to_toml
from tacit.report.documents.metrics import Measurement
from tacit.report.documents.run import ResultDocument


@dataclass(frozen=True)
class LineRun:
    """One run of a line: its resolved experiment, folder, and what is known of its end.

    `cached`: it had ended before. Without a `result` it has not ended, and `error` says why;
    beside one, why it is not that of a whole run. `code` is the exit code of that error.
    """

    config: Config
    path: Path
    cached: bool
    result: ResultDocument | None
    rows: Sequence[Measurement]
    error: str | None = None
    code: int = 0

    @property
    def complete(self) -> bool:
        """Whether there is a model at the end, be it that the budget ended the run."""
        return self.result is not None and self.result.status != "diverged"


@dataclass(frozen=True)
class FigureRuns:
    """All runs of a figure, by line, by setting, by seed.

    So many were `made` now, and so many `cached`; `stopped`: the user ended it.
    """

    figure: Figure
    runs: tuple[tuple[tuple[LineRun, ...], ...], ...]
    made: int
    cached: int
    stopped: bool

    @property
    def members(self) -> list[LineRun]:
        """Every run once a line."""
        return [run for line in self.runs for setting in line for run in setting]


@dataclass(frozen=True)
class Monitor:
    """What the caller hears, and is asked, while runs are made.

    `begin` hears how many runs there are and how many of them have ended before, `step` how many
    were completed, parts of running ones included, and `done` the line's name, the run's seed, and
    how it ended. Where `should_stop` is true everything ends cleanly.
    """

    begin: Callable[[int, int], None] = lambda total, cached: None
    step: Callable[[float], None] = lambda completed: None
    done: Callable[[str, int, Outcome], None] = lambda name, seed, outcome: None
    should_stop: Callable[[], bool] = lambda: False


Wanted = Mapping[str, tuple[str, RunPlace]]  # by digest: a line that asks for it, of several


def gather(
    figure: Figure, store: Store, *, jobs: int = 1, monitor: Monitor = Monitor()
) -> FigureRuns:
    """Run what has not ended yet, in so many processes at once, and give all runs of the figure.

    A run that fails does not end the others: its error is kept beside it. Runs that reserve in
    ledgers of the nodes' data take turns, whatever `jobs` says.
    """
    # All lines with the first seed, then all with the next: what is cut short still compares them.
    wanted: dict[str, tuple[str, RunPlace]] = {}
    settings = [(line.name, setting) for line in figure.lines for setting in line.settings]
    for turn in range(max((len(setting.runs) for _, setting in settings), default=0)):
        for name, setting in settings:
            config = setting.runs[turn]
            digest = run_digest(config)
            if digest not in wanted:
                wanted[digest] = name, store.find(name, config)
    outcomes = _run(wanted, store, jobs, monitor)
    runs = tuple(
        tuple(
            tuple(_member(config, wanted, outcomes) for config in setting.runs)
            for setting in line.settings
        )
        for line in figure.lines
    )
    return FigureRuns(
        figure=figure,
        runs=runs,
        made=sum(outcome.status in FINAL for outcome in outcomes.values()),
        cached=len(wanted) - len(outcomes),
        stopped=any(outcome.status in ("stopped", "cancelled") for outcome in outcomes.values()),
    )


def worst_code(gathered: FigureRuns) -> int:
    """The exit code: that of the worst failure, a defect of ours before a lost process and so on.

    A point of a grid that diverges fails nothing while another point of the line is complete.
    """
    codes = {0}
    for line in gathered.runs:
        some_complete = any(all(run.complete for run in setting) for setting in line)
        codes |= {
            run.code
            for setting in line
            for run in setting
            if not (some_complete and run.result is not None and run.result.status == "diverged")
        }
    return max(codes, key=lambda code: (0, 2, 3, 4, 1).index(code))


def _run(wanted: Wanted, store: Store, jobs: int, monitor: Monitor) -> dict[str, Outcome]:
    """The outcomes of the runs that had not ended, by digest."""
    missing = {digest: run for digest, run in wanted.items() if run[1].result is None}
    runs, cached = list(missing.values()), len(wanted) - len(missing)
    monitor.begin(len(wanted), cached)
    shares = [0.0] * len(runs)

    def step(place: int, share: float) -> None:
        shares[place] = share
        monitor.step(cached + sum(shares))

    def done(place: int, outcome: Outcome) -> None:
        step(place, 1.0)
        name, run = runs[place]
        monitor.done(name, run.config.train.seed, outcome)

    requests = [
        RunRequest(to_toml(run.config), str(run.path), run.resume, str(store.fresh(run.path)))
        for _, run in runs
    ]
    reserved = any(run.config.privacy.ledger is not None for _, run in runs)
    ended = run_all(
        requests,
        jobs=1 if reserved else jobs,
        on_step=step,
        on_done=done,
        should_stop=monitor.should_stop,
    )
    return dict(zip(missing, ended, strict=True))


def _member(config: Config, wanted: Wanted, outcomes: Mapping[str, Outcome]) -> LineRun:
    digest = run_digest(config)
    outcome = outcomes.get(digest)
    path = wanted[digest][1].path if outcome is None else Path(outcome.folder)
    result = read_final(path)
    member = LineRun(config, path, outcome is None, result, read_rows(path))
    if result is not None and result.status == "diverged":
        return replace(member, error=result.message, code=2)
    if result is not None:
        return replace(member, error=result.message)
    if outcome is None or outcome.status in ("stopped", "cancelled"):
        return replace(member, error="not finished: run the comparison again to go on")
    return replace(member, error=outcome.message, code=outcome.code)
