"""A figure as data: `compare.json`, from which the table, the page and the pictures are drawn.

Curves and figures over seeds: the mean, and the sample standard deviation of the runs (null for
one run). Steps that not every run of a line was measured at are left out of its curve. Epsilon is
the largest over nodes and runs, of one run alone; what all cost together is in `session`.

`watching` shows on a terminal how the runs go.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tacit.analysis.compare.figure import SERIES, TOGETHER, FigureLine, FigureSetting
from tacit.analysis.compare.session import RUNS, FigureRuns, LineRun
from tacit.analysis.settings.changes import choice_text
from tacit.analysis.settings.processes import Monitor, Outcome, WantedRun
from tacit.analysis.settings.runs import run_folders, scores_of
from tacit.analysis.settings.spent import sentences, spent_together
from tacit.base.version import __version__
from tacit.report.compare_panels import compared, is_score
from tacit.report.documents.figure import (
    ComparedLine,
    CompareDocument,
    ComparedPoint,
    ComparedRun,
    CurvePoint,
    FigureNumbers,
    MeanDeviation,
    SiteRow,
    SiteTable,
)
from tacit.report.documents.metrics import Measurement, Scores
from tacit.report.documents.run import ResultDocument

Item = TypeVar("Item")
_MOST_POINTS = 1000  # of a curve
_AT_THE_END = ("train_loss", "augmented_lagrangian", "suboptimality", "consensus_distance")


def figure_document(gathered: FigureRuns) -> CompareDocument:
    """Everything that is known of a figure; all runs in the folder count for what they cost."""
    figure, members = gathered.figure, gathered.members
    rows = [row for member in members for row in member.rows]
    # What nothing was measured of gives way to what comes next.
    wanted = dict.fromkeys([figure.y, "test_accuracy"]) if is_score(figure.y) else ()
    drawn = [name for name in wanted if any(_value(row, name) is not None for row in rows)]
    y = drawn[0] if drawn else "test_loss" if wanted else figure.y
    score = y
    if not is_score(y):  # runs are judged by a metric that was asked for, else the accuracy
        asked = [name for run in members if run.result for name in run.result.test_metrics]
        score = asked[0] if asked else "test_accuracy"
    versions = {member.result.tacit_version for member in members if member.result}
    lines = tuple(
        _line(line, runs, (y, score), gathered.folder)
        for line, runs in zip(figure.lines, gathered.runs, strict=True)
    )
    sites = tuple(_site_tables(gathered, [line.chosen for line in lines]))
    together = spent_together(run_folders(gathered.folder / RUNS))
    # Whether of several points of a line's grid one is shown; budgets are shown side by side.
    chosen = False
    for line in figure.lines:
        budgets = {str(setting.choice.get("privacy.epsilon")) for setting in line.settings}
        chosen |= len(line.settings) > (len(budgets) if figure.x == ("budget",) else 1)
    return CompareDocument(
        format_version=CompareDocument.version,
        tacit_version=__version__,
        title=figure.title,
        source=figure.source,
        notes=figure.notes,
        quick=figure.quick,
        x=figure.x if sites else tuple(axis for axis in figure.x if axis != "records"),
        y=y,
        score=score,
        seeds=max((len(setting) for line in gathered.runs for setting in line), default=0),
        runs=len(members),
        complete=sum(member.complete for member in members),
        made=gathered.made,
        cached=gathered.cached,
        stopped=gathered.stopped,
        other_versions=tuple(sorted(versions - {__version__})),
        lines=lines,
        sites=sites,
        together=tuple(together),
        sentences=tuple(sentences(together, chosen=chosen)),
    )


def mean_and_deviation(values: Sequence[float]) -> MeanDeviation | None:
    """Mean and sample standard deviation; the latter None of one value, both None of none."""
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return MeanDeviation(mean=mean, deviation=None)
    squares = math.fsum((value - mean) ** 2 for value in values)
    return MeanDeviation(mean=mean, deviation=math.sqrt(squares / (len(values) - 1)))


Ends = Sequence[Sequence[ResultDocument | None]]  # of each line of a group, once a seed


def _site_tables(gathered: FigureRuns, chosen: Sequence[int]) -> Iterator[SiteTable]:
    """Of an experiment beside its baselines: a table for each metric that is known by node."""
    groups: dict[str, list[list[ResultDocument | None]]] = {}
    for line, runs, place in zip(gathered.figure.lines, gathered.runs, chosen, strict=True):
        ends = [run.result if run.complete else None for run in runs[place]]
        groups.setdefault(line.group, []).append(ends)
    joint = next((end for ends in groups.get(TOGETHER, ()) for end in ends if end), None)
    if joint is None:
        return
    names = joint.node_names or [f"node {node}" for node in range(joint.node_count)]
    whole = [[end for ends in group for end in ends if end] for group in groups.values()]
    epsilon = [_by_site(group, len(names), lambda end: end.epsilon) for group in groups.values()]
    for metric in joint.test_metrics_by_node or ["test_accuracy"] * bool(joint.test_accuracy):
        scores = [_by_site(group, len(names), _scored(metric)) for group in groups.values()]
        yield SiteTable(
            metric=metric,
            unit=joint.unit.name,
            columns=tuple(groups),
            private=tuple(all(end.private for end in ends) if ends else None for ends in whole),
            rows=tuple(
                SiteRow(
                    name=name,
                    records=joint.records[site],
                    scores=tuple(_over(column[site], lambda score: score) for column in scores),
                    epsilon=tuple(largest([column[site]]) for column in epsilon),
                )
                for site, name in enumerate(names)
            ),
            mean=tuple(_over(zip(*column, strict=True), _mean) for column in scores),
        )


def _by_site(
    group: Ends, sites: int, value: Callable[[ResultDocument], Sequence[float | None] | None]
) -> list[tuple[float | None, ...]]:
    """A number of each site, once a seed; that of one model of all goes for every site."""
    seeds = []
    for ends in zip(*group, strict=True):
        found = [one for end in ends for one in ((end and value(end)) or (None,))]
        seeds.append(found * (sites // len(found)))
    return list(zip(*seeds, strict=True))


def _scored(metric: str) -> Callable[[ResultDocument], Sequence[float | None] | None]:
    return lambda end: end.test_metrics_by_node.get(metric, end.test_accuracy_by_node)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if len(known) == len(values) else None


def _line(
    line: FigureLine, runs: Sequence[Sequence[LineRun]], names: tuple[str, str], folder: Path
) -> ComparedLine:
    y, score = names
    points = [
        _point(setting, members, score, folder)
        for setting, members in zip(line.settings, runs, strict=True)
    ]
    best = _best(points, score)
    chosen = points[best]
    ours = chosen.figures.score if y == score else getattr(chosen.figures, y)
    printed = line.published.get(y)
    definition = line.settings[best].runs[0].algorithm.definition
    difference = None
    if printed is not None and ours is not None and ours.mean is not None:
        printed_unit = 100 if compared(y).percent else 1  # papers print per cent
        difference = printed_unit * ours.mean - printed
    return ComparedLine(
        name=line.name,
        group=line.group,
        algorithm=definition.name,
        published=dict(line.published),
        difference=difference,
        points=tuple(points),
        chosen=best,
        curve=tuple(_curve(runs[best], y)),
        ends=tuple(_ends(points, runs, y, score)),
    )


def _ends(
    points: Sequence[ComparedPoint], runs: Sequence[Sequence[LineRun]], y: str, score: str
) -> list[CurvePoint]:
    """Where the best point of each budget in the grid ends, by rising epsilon."""
    budgets: dict[str, list[int]] = {}
    for place, point in enumerate(points):
        budgets.setdefault(str(point.choice.get("privacy.epsilon")), []).append(place)
    best = [
        places[_best([points[place] for place in places], score)] for places in budgets.values()
    ]
    ends = [curve[-1] for curve in (_curve(runs[place], y) for place in best) if curve]
    return sorted(ends, key=lambda end: math.inf if end.epsilon is None else end.epsilon)


def _point(
    setting: FigureSetting, members: Sequence[LineRun], score: str, folder: Path
) -> ComparedPoint:
    complete = [member for member in members if member.complete]
    results = [member.result for member in complete if member.result is not None]
    ends = [member.rows[-1] for member in complete if member.rows]
    names = dict.fromkeys(name for result in results for name in result.test_metrics)

    def part(name: str, of: str = "mean") -> MeanDeviation | None:
        """A figure of the runs' scores by one measure."""
        scores = [found for result in results if (found := scores_of(result, name)) is not None]
        return _over(scores, attrgetter(of))

    return ComparedPoint(
        choice=dict(setting.choice),
        name=choice_text(setting.choice),
        complete=len(complete),
        figures=FigureNumbers(
            test_accuracy=part("test_accuracy"),
            test_metrics={name: part(name) for name in names},
            score=part(score),
            **{of: part(score, of) for of in ("worst", "consensus", "baseline")},
            test_loss=part("test_loss"),
            **{name: _over(ends, attrgetter(name)) for name in _AT_THE_END},
            bytes_sent=_over(results, attrgetter("bytes_sent")),
            seconds=_over(results, attrgetter("seconds")),
        ),
        private=all(result.private for result in results) if results else None,
        epsilon=largest([result.epsilon for result in results]),
        claimed_epsilon=largest([result.claimed_epsilon for result in results]),
        delta=min(
            (value for result in results for value in result.delta if value is not None),
            default=None,
        ),
        runs=tuple(
            ComparedRun(
                folder=str(member.path.relative_to(folder)),
                seed=member.config.train.seed,
                status="unfinished" if member.result is None else member.result.status,
                cached=member.cached,
                error=member.told,
            )
            for member in members
        ),
    )


def _best(points: Sequence[ComparedPoint], score: str) -> int:
    """The point whose score ends best, or its loss lowest; one that lacks a run comes last.

    Without test records nothing but the training loss could tell, which is private: the first.
    """

    def worth(place: int) -> tuple[bool, int, float]:
        point = points[place]
        found, loss = point.figures.score, point.figures.test_loss
        value = -math.inf
        if found is not None and found.mean is not None:
            value = compared(score).worth(found.mean)
        elif loss is not None and loss.mean is not None:
            value = -loss.mean
        lacking = point.complete < len(point.runs)
        return not lacking, point.complete, value

    return max(range(len(points)), key=worth)


def _curve(members: Sequence[LineRun], y: str) -> list[CurvePoint]:
    """The mean over complete runs at every step that all of them were measured at."""
    by_step = [{row.step: row for row in member.rows} for member in members if member.complete]
    if not by_step:
        return []
    steps = sorted(set.intersection(*(set(rows) for rows in by_step)))
    every = max(1, math.ceil(len(steps) / _MOST_POINTS))
    drawn_steps = steps[::every] + ([steps[-1]] if steps and (len(steps) - 1) % every else [])
    points = []
    for step in drawn_steps:
        rows = [run[step] for run in by_step]
        drawn = _over(rows, lambda row: _value(row, y))
        if drawn is None:
            continue
        sent = _over(rows, lambda row: row.bytes_sent)
        spent = [row.epsilon.most for row in rows if row.epsilon is not None]
        points.append(
            CurvePoint(
                step=step,
                bytes=None if sent is None else sent.mean,
                epsilon=max((value for value in spent if value is not None), default=None),
                mean=drawn.mean,
                deviation=drawn.deviation,
            )
        )
    return points


def _value(row: Measurement, y: str) -> float | None:
    value: Scores | float | None = getattr(row, y) if y in SERIES else row.test_metrics.get(y)
    return value.mean if isinstance(value, Scores) else value


def _over(items: Iterable[Item], value: Callable[[Item], float | None]) -> MeanDeviation | None:
    return mean_and_deviation([number for number in map(value, items) if number is not None])


def largest(values_of_runs: Sequence[Sequence[float | None]]) -> float | None:
    """Over nodes and runs; None where some run has none: it bounds nothing."""
    values = [value for values in values_of_runs for value in values]
    known = [value for value in values if value is not None]
    return max(known) if known and len(known) == len(values) else None


@contextmanager
def watching(should_stop: Callable[[], bool], *, hidden: bool) -> Iterator[Monitor]:
    """A live line on a terminal, and a line for every run that ends.

    If it is `hidden`, there are lines of those alone of which no document says why they failed.
    """
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.percentage:.0f} %"),
        TimeRemainingColumn(compact=True),
        console=console,
        disable=hidden or not console.is_terminal,
        transient=True,
    )
    task = bar.add_task("", total=None, visible=False)
    ended, total = 0, 0
    shares: dict[Path, float] = {}  # of the runs that are made

    def say(text: str, always: bool = False) -> None:
        if always or not hidden:
            console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def begin(runs: int, cached: int) -> None:
        nonlocal ended, total
        ended, total = cached, runs
        bar.update(task, total=runs, completed=cached, visible=True, description="runs")
        say(f"{cached} of {runs} runs cached")

    def step(request: WantedRun, share: float) -> None:
        bar.update(task, advance=share - shares.get(request.path, 0.0))
        shares[request.path] = share

    def done(request: WantedRun, outcome: Outcome) -> None:
        nonlocal ended
        step(request, 1.0)
        if outcome.status == "cancelled":
            return
        ended += 1
        why = "" if outcome.message is None else f": {outcome.message}"
        seed = request.config.train.seed
        untold = outcome.told not in (None, outcome.message)  # by any document
        say(f"{ended}/{total} {request.name}, seed {seed}: {outcome.status}{why}", untold)

    with bar:
        yield Monitor(begin=begin, step=step, done=done, should_stop=should_stop)
