"""Makes the runs of a figure that are not there yet, and gathers all.

In the folder of a comparison, `format.json` marks it, and `runs/` holds one run folder a run, named
by the line's name, the seed and the digest of the resolved experiment. No run folder is ever
overwritten or deleted.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tacit.analysis.compare.figure import Figure
from tacit.analysis.compare.pool import Outcome, RunRequest, run_all
from tacit.analysis.settings.runs import FINAL, read_final, read_rows, run_digest
from tacit.config import Config, to_toml
from tacit.errors import FormatError, InputError
from tacit.private_files import make_private_folder, write_private
from tacit.report.documents.base import dump, parse_file
from tacit.report.documents.figure import CompareMark
from tacit.report.documents.metrics import Measurement
from tacit.report.documents.run import ResultDocument
from tacit.training.run_folder import checkpoint as checkpoints

_MARK = "format.json"
_NAME = 60  # characters of a line's name in a folder's


@dataclass(frozen=True)
class RunPlace:
    """Where a run of a resolved experiment lies, or is to be made.

    Without a `result` it is still to be run; `resume`: from a checkpoint, where it can go on.
    """

    config: Config
    path: Path
    result: ResultDocument | None
    resume: bool


@dataclass(frozen=True)
class Store:
    """An opened comparison folder."""

    path: Path

    @classmethod
    def open(cls, path: Path) -> Store:
        """Make the folder, or take up one that an earlier comparison made.

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
            (path / "runs").mkdir(mode=0o700, exist_ok=True)
            values = parse_file(mark)
        except OSError as error:
            raise InputError("--out", str(path), f"cannot be used ({error.strerror})") from None
        except InputError as error:
            if error.where == "--out":
                raise
            raise InputError("--out", str(path), f"its {_MARK} is damaged") from None
        if values.get("format_version") != CompareMark.version:
            raise FormatError(str(mark), values.get("format_version"), CompareMark.version)
        return cls(path)

    def find(self, line: str, config: Config) -> RunPlace:
        """A run of this experiment that has ended, else one to go on with, else a new place.

        A run that another line or name than `line` made of the same experiment counts.
        """
        digest = run_digest(config)
        tries = sorted(
            (path for path in self.folders() if re.search(rf"-{digest}(\.\d+)?$", path.name)),
            key=lambda path: (len(path.name), path.name),
        )
        ended = [(path, end) for path in tries if (end := read_final(path)) is not None]
        if ended:  # a whole run before one that a kill has shortened
            path, result = max(ended, key=lambda run: run[1].status == "done")
            return RunPlace(config, path, result, resume=False)
        for path in reversed(tries):
            if (path / "config.toml").is_file() and checkpoints.latest(path) is not None:
                return RunPlace(config, path, None, resume=True)
        base = f"{_slug(line)}-seed{config.train.seed}-{digest}"
        return RunPlace(config, self.fresh(self.path / "runs" / base), None, resume=False)

    def fresh(self, path: Path) -> Path:
        """The path, or one like it with a number, that nothing has yet."""
        base = re.sub(r"\.\d+$", "", path.name)
        number = 1
        candidate = path.with_name(base)
        while os.path.lexists(candidate):
            number += 1
            candidate = path.with_name(f"{base}.{number}")
        return candidate

    def folders(self) -> list[Path]:
        """Every run folder, those of earlier comparisons and of unfinished runs included."""
        return sorted(path for path in (self.path / "runs").iterdir() if path.is_dir())

    def write(self, name: str, text: str) -> Path:
        """A file of the comparison, whole or not at all; that of an earlier one is replaced."""
        target = self.path / name
        write_private(target, text.encode())
        return target


def _slug(name: str) -> str:
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:_NAME].strip("-") or "line"


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

    def member(config: Config) -> LineRun:
        digest = run_digest(config)
        return _member(config, wanted[digest][1], outcomes.get(digest))

    runs = tuple(
        tuple(tuple(map(member, setting.runs)) for setting in line.settings)
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


def _run(
    wanted: Mapping[str, tuple[str, RunPlace]], store: Store, jobs: int, monitor: Monitor
) -> dict[str, Outcome]:
    """The outcomes of the runs that had not ended, by digest; `wanted` names a line of each."""
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


def _member(config: Config, place: RunPlace, outcome: Outcome | None) -> LineRun:
    path = place.path if outcome is None else Path(outcome.folder)
    result = read_final(path)
    member = LineRun(config, path, outcome is None, result, read_rows(path))
    if result is not None:
        return replace(member, error=result.message, code=2 if result.status == "diverged" else 0)
    if outcome is None or outcome.status in ("stopped", "cancelled"):
        return replace(member, error="not finished: run the comparison again to go on")
    return replace(member, error=outcome.message, code=outcome.code)
