"""Makes the runs of a figure that are not there yet, and gathers all.

In the folder of a comparison, `format.json` marks it, and `runs/` holds one run folder a run, named
by the line's name, the seed and the digest of the resolved experiment. No run folder is ever
overwritten or deleted.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tacit.analysis.compare.figure import Figure, runs_of
from tacit.analysis.settings.processes import (
    UNFINISHED,
    UNHEARD,
    Attempt,
    Monitor,
    Outcome,
    WantedRun,
)
from tacit.analysis.settings.runs import (
    FINAL,
    complete,
    found_run,
    fresh,
    read_final,
    read_rows,
    run_digest,
)
from tacit.base.private_files import make_private_folder, write_private
from tacit.communication.reports import report_of
from tacit.config import Config
from tacit.errors import BudgetError, FormatError, InputError, TacitError, describe
from tacit.report.documents.base import dump, parse_file
from tacit.report.documents.figure import CompareMark
from tacit.report.documents.metrics import Measurement
from tacit.report.documents.run import ResultDocument
from tacit.training.prepare import prepare
from tacit.training.run_folder import checkpoint as checkpoints

_MARK = "format.json"
RUNS = "runs"


def open_folder(path: Path) -> Path:
    """Make the folder of a comparison, or take up one that an earlier comparison made.

    Raises:
        InputError: it holds something else, another format version, or cannot be written.
    """
    mark = path / _MARK
    try:
        if not os.path.lexists(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            make_private_folder(path)
        if not mark.is_file():
            if not path.is_dir() or any(path.iterdir()):
                raise InputError(
                    "--out", str(path), "exists, and no comparison made it: name a new folder"
                )
            content = CompareMark(format="tacit compare", format_version=CompareMark.version)
            write_private(mark, dump(content, indent=None).encode())
        (path / RUNS).mkdir(mode=0o700, exist_ok=True)
        values = parse_file(mark)
    except OSError as error:
        raise InputError("--out", str(path), f"cannot be used ({error.strerror})") from None
    except InputError as error:
        if error.where == "--out":
            raise
        raise InputError("--out", str(path), f"its {_MARK} is damaged") from None
    if values.get("format_version") != CompareMark.version:
        raise FormatError(str(mark), values.get("format_version"), CompareMark.version)
    return path


@dataclass(frozen=True)
class LineRun:
    """One run of a line: its resolved experiment, folder, and what is known of its end.

    `cached`: it had ended before. Without a `result` it has not ended, and `error` says why;
    beside one, why it is not that of a whole run. `told` is what documents say of it, where the
    error is for the own screen alone. `code` is the exit code of that error.
    """

    config: Config
    path: Path
    cached: bool
    result: ResultDocument | None
    rows: Sequence[Measurement]
    error: str | None = None
    told: str | None = None
    code: int = 0

    @property
    def complete(self) -> bool:
        """Whether there is a model at the end, be it that the budget ended the run."""
        return self.result is not None and self.result.status != "diverged"


@dataclass(frozen=True)
class FigureRuns:
    """All runs of a figure, by line, by setting, by seed, in the folder of a comparison.

    So many were `made` now, and so many `cached`; `stopped`: the user ended it.
    """

    figure: Figure
    folder: Path
    runs: tuple[tuple[tuple[LineRun, ...], ...], ...]
    made: int
    cached: int
    stopped: bool

    @property
    def members(self) -> list[LineRun]:
        """Every run once a line."""
        return [run for line in self.runs for setting in line for run in setting]


def gather(
    figure: Figure,
    folder: Path,
    *,
    jobs: int = 1,
    executor: Executor | None = None,
    monitor: Monitor = UNHEARD,
) -> FigureRuns:
    """Make the runs that have not ended yet, and give all of the figure; see `complete`.

    A run that fails does not end the others: its error is kept beside it.
    """
    # All lines with the first seed, then all with the next: what is cut short still compares them.
    requests: dict[str, WantedRun] = {}
    digests = {id(config): run_digest(config) for config in runs_of(figure.lines)}
    settings = [(line.name, setting) for line in figure.lines for setting in line.settings]
    for turn in range(max((len(setting.runs) for _, setting in settings), default=0)):
        for name, setting in settings:
            config = setting.runs[turn]
            digest = digests[id(config)]
            if digest not in requests:
                path = found_run(folder / RUNS, name, config, digest)
                requests[digest] = WantedRun(name, config, path)
    outcomes = complete(
        list(requests.values()), make_whole, jobs=jobs, executor=executor, monitor=monitor
    )
    ended = {}
    for (digest, request), outcome in zip(requests.items(), outcomes, strict=True):
        path, result = outcome.path, read_final(outcome.path)
        error, told, code = outcome.message, outcome.told, outcome.code
        if result is not None:
            error, told, code = result.message, None, 2 if result.status == "diverged" else 0
        elif outcome.status in UNFINISHED:
            error, told, code = "not finished: run the comparison again to go on", None, 0
        cached, rows = outcome.status == "cached", read_rows(path)
        told = told or error
        ended[digest] = LineRun(request.config, path, cached, result, rows, error, told, code)
    statuses = [outcome.status for outcome in outcomes]
    return FigureRuns(
        figure=figure,
        folder=folder,
        runs=tuple(
            tuple(
                tuple(ended[digests[id(config)]] for config in setting.runs)
                for setting in line.settings
            )
            for line in figure.lines
        ),
        made=sum(status in FINAL for status in statuses),
        cached=statuses.count("cached"),
        stopped=any(status in UNFINISHED for status in statuses),
    )


def make_whole(request: WantedRun, attempt: Attempt) -> Outcome:
    """Make a run, or go on with it where it can; errors become its outcome.

    No folder is overwritten: what cannot go on, or was shortened by what a kill had reserved, is
    made anew in a folder beside it.
    """
    try:
        job = prepare(request.config)
        if _can_go_on(request.path, job.digest):
            outcome = attempt(job, request.path, True)
            if outcome.status != "budget-exhausted":
                return outcome
            try:
                return attempt(job, fresh(request.path), False)
            except BudgetError:  # of the nodes' data, which have no more for a whole one
                return outcome
        return attempt(job, fresh(request.path), False)
    except TacitError as error:
        return Outcome(
            request.path, "failed", str(error), error.exit_code, told=report_of(error).line
        )
    except Exception as error:  # a defect, or what a user's own module raises
        if os.environ.get("TACIT_TRACEBACK"):
            raise
        message = f"a defect of ours: {describe(error)}"
        return Outcome(request.path, "failed", message, 1, told=report_of(error).line)


def _can_go_on(path: Path, digest: str) -> bool:
    """Whether a checkpoint is whole, and all of them belong to the plan of this digest."""
    with suppress(InputError, OSError):
        return path.is_dir() and bool(checkpoints.sound(path, digest)[0])
    return False


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
