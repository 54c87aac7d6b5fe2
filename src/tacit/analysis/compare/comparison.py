"""Many runs from Python, as `tacit compare` makes them: to pandas and to matplotlib."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from tacit.analysis.compare.document import figure_document, largest
from tacit.analysis.compare.figure import figure_of
from tacit.analysis.compare.session import FigureRuns, gather, open_folder
from tacit.analysis.settings.changes import UNSET, choice_text, flat_keys, grid_points
from tacit.analysis.settings.processes import Monitor, Outcome, WantedRun
from tacit.analysis.settings.runs import scores_of
from tacit.config import flat, read_sections
from tacit.errors import InputError, optional
from tacit.report.compare_page import figure_blocks
from tacit.report.compare_panels import compared, panels, picture_note
from tacit.report.documents.base import plain_json
from tacit.report.documents.figure import CompareDocument
from tacit.report.terminal import terminal
from tacit.training.api import Source, check_arguments

_DRAWN = 12  # lines that can be told apart

_log = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class ManyRuns:
    """Runs that were compared: `document` is `compare.json`, `runs` are their folders and ends."""

    document: CompareDocument
    runs: FigureRuns

    def to_pandas(self) -> Any:
        """A row a run, as a `pandas.DataFrame`: keys in which they differ, scores and costs.

        Scores are means over nodes; epsilon is the largest of a node, of that run alone: what all
        cost together, `document.sentences` say. An InputError where there is no pandas.
        """
        frame, rows = optional("pandas").DataFrame, []
        settings = [flat(run.config) for run in self.runs.members]
        differ = _differing(settings)
        for run, own in zip(self.runs.members, settings, strict=True):
            row = {key: own.get(key) for key in differ} | {"status": "unfinished"}
            if (end := run.result) is not None:
                names = ("test_accuracy", "test_loss", *end.test_metrics)
                row |= {name: one.mean for name in names if (one := scores_of(end, name))}
                for name in ("epsilon", "claimed_epsilon", "delta"):
                    row[name] = largest([getattr(end, name)])
                costs = ("status", "private", "steps", "bytes_sent", "seconds")
                row |= {name: getattr(end, name) for name in costs}
            rows.append(row | {"folder": str(run.path), "error": run.error})
        return frame(rows)

    def figure(self, axis: str | None = None) -> Any:
        """The lines on an axis, by default the first of the figure: a `matplotlib.figure.Figure`.

        Of more than 12 lines those that end best. An InputError where there is no matplotlib.
        """
        optional("matplotlib")
        from tacit.report.pictures import picture

        told: dict[str, Any] = plain_json(self.document)
        note, lines = picture_note(told), told["lines"]
        if axis is not None and axis not in told["x"]:
            raise InputError("axis", axis, f"must be one of {', '.join(told['x'])}")
        if len(lines) > _DRAWN:
            best = [line for line in lines if line["curve"]]
            best.sort(key=lambda line: -compared(told["y"]).worth(line["curve"][-1]["mean"]))
            note = f"the best {_DRAWN} of {len(lines)} lines; {note}"
            told["lines"] = best[:_DRAWN]
        return picture(told["title"], panels(told, axis or told["x"][0]), note)

    def __repr__(self) -> str:
        console = Console(width=110, emoji=False, color_system=None)
        with console.capture() as shown:
            terminal(figure_blocks(plain_json(self.document)), console)
        return shown.get().rstrip()


def compare(
    experiments: Source | Sequence[Source],
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    seeds: int | Sequence[int] = 1,
    jobs: int = 1,
    executor: Executor | None = None,
    out: str | Path = "runs/compare",
) -> ManyRuns:
    """Make the runs of experiments, or of every point of a grid over them, and compare them.

    A folder keeps each run: what has run before is taken from there, and what was cut off goes on.

    Args:
        experiments: paths, mappings or `Config`s, or one of them.
        grid: lists of values by `section.key`: every combination is a run.
        seeds: how often each is repeated, or the seeds.
        jobs: runs at once, each in a process of its own.
        executor: what makes them in place of processes here: see `docs/how-to/executors.md`.
        out: the folder, a new one or that of an earlier comparison.

    Raises:
        InputError: an experiment is wrong, or the folder holds something else.
    """
    if int(os.environ.get("WORLD_SIZE", "1") or 1) > 1:
        expected = "a comparison runs in one process, which holds all records"
        raise InputError("WORLD_SIZE", os.environ["WORLD_SIZE"], expected)
    if type(jobs) is not int or not 1 <= jobs <= 1000:
        raise InputError("jobs", jobs, "must be a whole number from 1 to 1000")
    if executor is not None and (jobs != 1 or not callable(getattr(executor, "submit", None))):
        expected = (
            "must be a concurrent.futures.Executor, and has workers of its own: leave out jobs"
        )
        raise InputError("executor", executor, expected)
    several = isinstance(experiments, (list, tuple))
    sources: Sequence[Any] = experiments if several else [experiments]  # type: ignore[assignment]
    for source in sources:
        check_arguments(source, None, None, out)
    values = {key: getattr(of, "tolist", lambda of=of: of)() for key, of in (grid or {}).items()}
    own = [
        flat_keys(read_sections(source), "experiments") | point
        for source in sources
        for point in grid_points(values, "grid")
    ]
    differ = _differing(own)
    names = [choice_text({key: said.get(key, UNSET) for key in differ}) for said in own]
    named = dict(zip(names, own, strict=True))  # one that is given twice is one
    lines = [{"name": name or "experiment", "set": said} for name, said in named.items()]
    title = {"title": "comparison", "seeds": seeds}
    figure = figure_of(Path("compare"), {"figure": {**title, "line": lines}})
    monitor = Monitor(done=_log_failure)
    folder = open_folder(Path(out))
    runs = gather(figure, folder, jobs=jobs, executor=executor, monitor=monitor)
    return ManyRuns(figure_document(runs), runs)


def _log_failure(request: WantedRun, outcome: Outcome) -> None:
    """What no document says, since it may quote a record: for the own screen."""
    if outcome.told is not None:
        _log.warning("%s: %s", request.name, outcome.message)


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = dict.fromkeys(key for own in settings for key in own)
    return [key for key in keys if len({repr(own.get(key)) for own in settings}) > 1]
