"""The panels of a compared figure: which curves, in which colours, on which axes.

Reads the document of `tacit compare --json`; the page and the SVG pictures both draw these panels,
so that they cannot differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tacit.report.charts import (
    AMBER,
    BLUE,
    GREEN,
    GREY,
    PURPLE,
    RED,
    SKY,
    has_wide_range,
)

__all__ = ["AXIS_TITLES", "MEASURE_TITLES", "Curve", "Panel", "panels", "picture_note"]

Row = Mapping[str, Any]

AXIS_TITLES = {
    "steps": "steps completed",
    "rounds": "rounds completed",
    "bytes": "bytes sent by a node (mean)",
    "epsilon": "epsilon certified by then, of one run",
}
MEASURE_TITLES = {
    "test_accuracy": "test accuracy, mean over nodes",
    "test_loss": "test loss, mean over nodes",
    "train_loss": "train loss (private, not covered by epsilon)",
    "consensus_distance": "consensus distance",
}
_KEYS = {"steps": "step", "rounds": "step", "bytes": "bytes", "epsilon": "epsilon"}
_COLOURS = (BLUE, RED, GREEN, PURPLE, AMBER, SKY, GREY)
_DASHES = ("solid", "dash", "dashdot", "longdash")
_FLOOR = 0.01  # of the mean: where a band that reaches zero ends on a logarithmic axis


@dataclass(frozen=True)
class Curve:
    """One line of a panel.

    Args:
        name: in the legend.
        colour: CSS.
        dash: `solid`, `dash`, `dashdot` or `longdash`.
        x: where it was measured.
        y: mean over runs.
        low: lower edge of the band; empty of a single run.
        high: upper edge.
        published: a printed figure, in the unit of `y`; None without.
    """

    name: str
    colour: str
    dash: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    published: float | None


@dataclass(frozen=True)
class Panel:
    """One group of lines on one pair of axes.

    Args:
        key: its name in markup.
        title: of the group; may be empty.
        axis: of `AXIS_TITLES`.
        measure: of `MEASURE_TITLES`.
        log_x: whether the x axis is logarithmic.
        log_y: likewise.
        curves: those that have a point.
        absent: the names of lines that have none.
    """

    key: str
    title: str
    axis: str
    measure: str
    log_x: bool
    log_y: bool
    curves: tuple[Curve, ...]
    absent: tuple[str, ...]


def panels(document: Row, axis: str) -> tuple[Panel, ...]:
    """One panel a group of lines, on one axis.

    Args:
        document: as `tacit.analysis.compare.figure_document` makes it.
        axis: of `AXIS_TITLES`.
    """
    groups = dict.fromkeys(line["group"] for line in document["lines"])
    return tuple(
        _panel(
            f"{axis}-{place}",
            group,
            axis,
            document["y"],
            [line for line in document["lines"] if line["group"] == group],
        )
        for place, group in enumerate(groups)
    )


def picture_note(document: Row) -> str:
    """What a still picture must say below its panels."""
    notes = []
    if document["quick"]:
        notes.append("quick version: short runs, not for conclusions")
    if document["seeds"] > 1:
        notes.append(f"bands: standard deviation over {document['seeds']} seeds")
    if any(line["published"] for line in document["lines"]):
        notes.append("dotted: published figures")
    return "; ".join(notes)


def _panel(key: str, title: str, axis: str, measure: str, lines: Sequence[Row]) -> Panel:
    curves = [_curve(line, place, axis, measure) for place, line in enumerate(lines)]
    drawn = [curve for curve in curves if curve.x]
    values = [value for curve in drawn for value in curve.y]
    log_y = measure != "test_accuracy" and min(values, default=0) > 0 and has_wide_range(values)
    ends = [curve.x[-1] for curve in drawn]
    log_x = axis == "bytes" and has_wide_range(ends)
    return Panel(
        key=key,
        title=title,
        axis=axis,
        measure=measure,
        log_x=log_x,
        log_y=log_y,
        curves=tuple(_shown(curve, log_x, log_y) for curve in drawn),
        absent=tuple(curve.name for curve in curves if not curve.x),
    )


def _curve(line: Row, place: int, axis: str, measure: str) -> Curve:
    points = [point for point in line["curve"] if point[_KEYS[axis]] is not None]
    deviations = [point["deviation"] for point in points]
    banded = bool(points) and None not in deviations
    y = tuple(float(point["mean"]) for point in points)
    spread = tuple(map(float, deviations)) if banded else ()
    printed = line["published"].get(measure)
    if printed is not None and measure == "test_accuracy":
        printed /= 100  # papers print per cent
    return Curve(
        name=line["name"],
        colour=_COLOURS[place % len(_COLOURS)],
        dash=_DASHES[place // len(_COLOURS) % len(_DASHES)],
        x=tuple(float(point[_KEYS[axis]]) for point in points),
        y=y,
        low=tuple(mean - width for mean, width in zip(y, spread, strict=True)) if banded else (),
        high=tuple(mean + width for mean, width in zip(y, spread, strict=True)) if banded else (),
        published=printed,
    )


def _shown(curve: Curve, log_x: bool, log_y: bool) -> Curve:
    """What a logarithmic axis can show of it."""
    if log_y and curve.low:
        floor = tuple(max(low, _FLOOR * y) for low, y in zip(curve.low, curve.y, strict=True))
        curve = replace(curve, low=floor)
    if not log_x:
        return curve
    kept = [place for place, x in enumerate(curve.x) if x > 0]
    x, y, low, high = (
        tuple(part[place] for place in kept) if part else ()
        for part in (curve.x, curve.y, curve.low, curve.high)
    )
    return replace(curve, x=x, y=y, low=low, high=high)
