"""A figure as data: `compare.json`, from which the table, the page and the pictures are drawn.

Curves and figures over seeds: the mean, and the sample standard deviation of the runs (null for
one run). Steps that not every run of a line was measured at are left out of its curve. Epsilon is
the largest over nodes and runs, of one run alone; what all cost together is in `together`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tacit import __version__
from tacit.analysis.compare.figure import FigureLine, FigureSetting, choice_text
from tacit.analysis.compare.session import FigureRuns, Member
from tacit.analysis.compare.store import Store
from tacit.analysis.compare.together import sentences, spent_together
from tacit.training.run_folder.metrics import finite_json

__all__ = ["figure_document", "mean_and_deviation"]

FORMAT_VERSION = 1
Row = Mapping[str, Any]
_MOST_POINTS = 1000  # of a curve


def figure_document(gathered: FigureRuns, store: Store) -> dict[str, Any]:
    """Everything that is known of a figure, ready for JSON.

    Args:
        gathered: its runs.
        store: the comparison's folder; all runs in it count for what they cost together.
    """
    figure, members = gathered.figure, gathered.members
    y = figure.y
    if y == "test_accuracy" and not any(_value(row, y) is not None for row in _all_rows(members)):
        y = "test_loss"
    document: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "tacit_version": __version__,
        "title": figure.title,
        "source": figure.source,
        "notes": list(figure.notes),
        "quick": figure.quick,
        "x": list(figure.x),
        "y": y,
        "seeds": max((len(setting) for line in gathered.runs for setting in line), default=0),
        "runs": len(members),
        "complete": sum(member.complete for member in members),
        "made": gathered.made,
        "cached": gathered.cached,
        "stopped": gathered.stopped,
        "other_versions": sorted(
            {str(member.result["tacit_version"]) for member in members if member.result}
            - {__version__}
        ),
        "lines": [
            _line(line, runs, y, store)
            for line, runs in zip(figure.lines, gathered.runs, strict=True)
        ],
        "together": spent_together(store.folders()),
    }
    plain: dict[str, Any] = finite_json(document)
    return plain | {"sentences": sentences(plain)}


def mean_and_deviation(values: Sequence[float]) -> dict[str, float | None] | None:
    """Mean and sample standard deviation; the latter None of one value, both None of none."""
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return {"mean": mean, "deviation": None}
    squares = math.fsum((value - mean) ** 2 for value in values)
    return {"mean": mean, "deviation": math.sqrt(squares / (len(values) - 1))}


def _line(
    line: FigureLine, runs: Sequence[Sequence[Member]], y: str, store: Store
) -> dict[str, Any]:
    points = [
        _point(setting, members, store)
        for setting, members in zip(line.settings, runs, strict=True)
    ]
    best = _best(points, y)
    chosen = points[best]
    ours = chosen["figures"].get(y)
    printed = line.published.get(y)
    definition = line.settings[best].runs[0].algorithm.definition
    difference = None
    if printed is not None and ours is not None:
        difference = _as_printed(y, ours["mean"]) - printed
    return {
        "name": line.name,
        "group": line.group,
        "algorithm": definition.name,
        "published": dict(line.published),
        "difference": difference,
        "points": points,
        "chosen": best,
        "curve": _curve([member for member in runs[best] if member.complete], y),
    }


def _as_printed(y: str, value: float) -> float:
    """Papers print accuracies in per cent."""
    return 100 * value if y == "test_accuracy" else value


def _point(setting: FigureSetting, members: Sequence[Member], store: Store) -> dict[str, Any]:
    complete = [member for member in members if member.complete]
    results = [member.result for member in complete if member.result is not None]
    ends: list[Row] = [member.rows[-1] if member.rows else {} for member in complete]
    return {
        "choice": dict(setting.choice),
        "name": choice_text(setting.choice),
        "complete": len(complete),
        "figures": {
            "test_accuracy": _over(results, lambda result: _inner(result, "test_accuracy", "mean")),
            "worst": _over(results, lambda result: _inner(result, "test_accuracy", "worst")),
            "consensus": _over(
                results, lambda result: _inner(result, "test_accuracy", "consensus")
            ),
            "test_loss": _over(results, lambda result: _inner(result, "test_loss", "mean")),
            "train_loss": _over(ends, lambda result: result.get("train_loss")),
            "consensus_distance": _over(ends, lambda result: result.get("consensus_distance")),
            "bytes_sent": _over(results, lambda result: result.get("bytes_sent")),
            "seconds": _over(results, lambda result: result.get("seconds")),
        },
        "private": all(result["private"] for result in results) if results else None,
        "epsilon": _largest(results, "epsilon"),
        "claimed_epsilon": _largest(results, "claimed_epsilon"),
        "delta": min(
            (value for result in results for value in result["delta"] if value is not None),
            default=None,
        ),
        "runs": [
            {
                "folder": str(member.path.relative_to(store.path)),
                "seed": member.config.train.seed,
                "status": "unfinished" if member.result is None else member.result["status"],
                "cached": member.cached,
                "error": member.error,
            }
            for member in members
        ],
    }


def _best(points: Sequence[Row], y: str) -> int:
    """The point with the highest final accuracy, or lowest loss; one that lacks a run comes last.

    Without test records nothing but the training loss could tell, which is private: the first.
    """

    def worth(place: int) -> tuple[bool, int, float]:
        figures = points[place]["figures"]
        accuracy, loss = figures["test_accuracy"], figures["test_loss"]
        value = -math.inf
        if accuracy is not None:
            value = accuracy["mean"]
        elif loss is not None:
            value = -loss["mean"]
        lacking = points[place]["complete"] < len(points[place]["runs"])
        return not lacking, points[place]["complete"], value

    return max(range(len(points)), key=worth)


def _curve(members: Sequence[Member], y: str) -> list[dict[str, Any]]:
    """The mean over runs at every step that all of them were measured at."""
    by_step = [{row["step"]: row for row in member.rows} for member in members]
    if not by_step:
        return []
    steps = sorted(set.intersection(*(set(rows) for rows in by_step)))
    every = max(1, math.ceil(len(steps) / _MOST_POINTS))
    drawn_steps = steps[::every] + ([steps[-1]] if steps and (len(steps) - 1) % every else [])
    points = []
    for step in drawn_steps:
        rows = [run[step] for run in by_step]
        mean_value = _over(rows, lambda row: _value(row, y))
        if mean_value is None:
            continue
        sent = _over(rows, lambda row: row.get("bytes_sent"))
        spent = [value for row in rows if (value := _inner(row, "epsilon", "max")) is not None]
        points.append(
            {
                "step": step,
                "bytes": None if sent is None else sent["mean"],
                "epsilon": max(spent, default=None),
                **mean_value,
            }
        )
    return points


def _all_rows(members: Sequence[Member]) -> list[Row]:
    return [row for member in members for row in member.rows]


def _value(row: Row, y: str) -> float | None:
    value = row.get(y)
    return value["mean"] if isinstance(value, Mapping) else value


def _inner(row: Row, key: str, part: str) -> float | None:
    value = row.get(key)
    return None if value is None else value[part]


def _over(
    items: Sequence[Row], value: Callable[[Row], float | None]
) -> dict[str, float | None] | None:
    return mean_and_deviation([number for number in map(value, items) if number is not None])


def _largest(results: Sequence[Row], key: str) -> float | None:
    """Over nodes and runs; None where some run has none: it bounds nothing."""
    values = [value for result in results for value in result[key]]
    return None if not values or None in values else max(values)
