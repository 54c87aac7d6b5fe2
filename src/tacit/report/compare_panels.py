"""The panels of a compared figure: its lines on their axes, for the page and for still pictures.

Both draw the same panels, so that they cannot differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tacit.report.charts import (
    AMBER,
    BLUE,
    DASHES,
    GREEN,
    GREY,
    PURPLE,
    RED,
    SKY,
    SYMBOLS,
    Axis,
    Chart,
    Drawing,
    Trace,
    base_layout,
    has_wide_range,
    scatter,
)
from tacit.report.documents.metrics import PublicMeasurement
from tacit.report.measures import ACCURACY, LOSS, Measure, measure_of
from tacit.report.protection import epsilon_words
from tacit.report.wording import NOTHING

Row = Mapping[str, Any]

AXIS_TITLES = {
    "steps": "steps completed",
    "rounds": "rounds completed",
    "bytes": "bytes sent by a node (mean)",
    "epsilon": "epsilon certified by then, of one run",
    "budget": "epsilon certified of one whole run",
    "records": "records of the site",
    "sites": "site, from the smallest",
}
MEASURE_TITLES = {
    "test_accuracy": "test accuracy, mean over nodes",
    "test_loss": "test loss, mean over nodes",
    "train_loss": "train loss (private, not covered by epsilon)",
    "augmented_lagrangian": "augmented Lagrangian (private, not covered by epsilon)",
    "consensus_distance": "consensus distance",
    "suboptimality": "f(x) - f* of the common model (private, not covered by epsilon)",
}
_KEYS = {"steps": "step", "rounds": "step", "budget": "epsilon"}  # others as the axis
_COLOURS = (BLUE, RED, GREEN, PURPLE, AMBER, SKY, GREY)
_FLOOR = 0.01  # of the mean: where a band that reaches zero ends on a logarithmic axis


@dataclass(frozen=True)
class Curve:
    """One line of a panel: means over runs, `y`, at `x`, in a band from `low` to `high`.

    `colour` is CSS, and `dash` and `symbol` are named as plotly has them: the latter tells lines
    apart where colours do not. `budget` is its certified epsilon in words, or that it is not
    private; it may be empty. The band of a single run is empty. `published` is a printed figure, in
    the unit of `y`.
    """

    name: str
    colour: str
    dash: str
    symbol: str
    budget: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    published: float | None


@dataclass(frozen=True)
class Panel:
    """One group of lines on one pair of axes: the curves that have a point.

    `key` is its name in markup, and its title may be empty. The `axis` is of `AXIS_TITLES`, and the
    `measure` as `CompareDocument.y`. `absent` are the names of lines that have no point.
    """

    key: str
    title: str
    axis: str
    measure: str
    log_x: bool
    log_y: bool
    curves: tuple[Curve, ...]
    absent: tuple[str, ...]
    label: str = ""

    @property
    def y_title(self) -> str:
        """What stands at its y axis."""
        if self.label:
            return self.label
        by_site = self.axis in ("records", "sites")
        return f"test {self.title}, by site" if by_site else measure_title(self.measure)


def panels(document: Row, axis: str) -> tuple[Panel, ...]:
    """One panel a group of lines, on one axis of `AXIS_TITLES`.

    The document is that of `tacit.analysis.compare.document.figure_document`, as JSON has it.
    """
    if axis == "records":
        return tuple(_site_panel(table, place) for place, table in enumerate(document["sites"]))
    groups = dict.fromkeys(line["group"] for line in document["lines"])
    made = []
    for place, group in enumerate(groups):
        lines = [line for line in document["lines"] if line["group"] == group]
        made.append(_panel(f"{axis}-{place}", group, axis, document["y"], lines))
    return tuple(made)


def run_panels(rows: Sequence[PublicMeasurement]) -> tuple[Panel, ...]:
    """What a run is judged by, over its steps and over what is certified of them."""
    measure = rows[-1].leading[0]
    y = {"accuracy": "test_accuracy", "loss": "test_loss"}.get(measure.name, measure.name)
    names = {"mean": "mean over nodes", "worst": "worst node", "consensus": "consensus model"}
    no_budget = {"group": "", "published": {}, "points": [{"private": None}], "chosen": 0}
    lines: list[Row] = []
    for key, name in names.items():
        curve = [
            {"step": row.step, "epsilon": row.epsilon and row.epsilon.most}
            | {"mean": mean, "deviation": None}
            for row in rows
            if (mean := getattr(row.leading[1], key, None)) is not None
        ]
        lines.append({"name": name, "curve": curve, **no_budget})
    axes = ("steps", "epsilon") if any(row.epsilon for row in rows) else ("steps",)
    drawn = [panels({"lines": lines, "y": y}, axis)[0] for axis in axes]
    return tuple(replace(panel, label=f"test {measure.title}") for panel in drawn)


def picture_note(document: Row) -> str:
    """What a still picture must say below its panels."""
    notes = []
    if document["quick"]:
        notes.append("quick version: short runs, not for conclusions")
    if document["seeds"] > 1:
        notes.append(f"bands: standard deviation over {document['seeds']} seeds")
    if any(line["published"] for line in document["lines"]):
        notes.append("dotted: published figures")
    swept = list(document["x"]) == ["budget"]
    if not swept and any(_budget(line["points"][line["chosen"]]) for line in document["lines"]):
        notes.append("in brackets: what is certified of one run")
    return "; ".join(notes)


def is_score(y: str) -> bool:
    """Whether what is drawn is a score that runs can be judged by: the accuracy, or a metric."""
    return y == "test_accuracy" or y not in MEASURE_TITLES


def compared(y: str) -> Measure:
    """The measure that a figure calls `y`."""
    return {"test_accuracy": ACCURACY, "test_loss": LOSS}.get(y) or measure_of(y)


def measure_title(y: str) -> str:
    """What stands at an axis."""
    return MEASURE_TITLES.get(y) or f"test {compared(y).title}, mean over nodes"


def column_name(table: Row, place: int) -> str:
    """A column in words: what is not private says so wherever it is shown."""
    name = str(table["columns"][place])
    return f"{name}, not private" if table["private"][place] is False else name


def epsilon_cell(point: Row, key: str, absent: str) -> str:
    """An epsilon in words. A paper may claim one of a run for which none holds, as of an assumed
    bound: that claim is shown.
    """
    if point["private"] is None:
        return NOTHING
    if not point["private"] and (key == "epsilon" or point[key] is None):
        return "not private"
    return absent if point[key] is None else epsilon_words(point[key])


def _panel(key: str, title: str, axis: str, measure: str, lines: Sequence[Row]) -> Panel:
    curves = [_curve(line, place, axis, measure) for place, line in enumerate(lines)]
    if axis == "budget":
        curves = [_across(curve, line, curves) for curve, line in zip(curves, lines, strict=True)]
    drawn = [curve for curve in curves if curve.x]
    values = [value for curve in drawn for value in curve.y]
    log_y = not is_score(measure) and min(values, default=0) > 0 and has_wide_range(values)
    ends = [curve.x[-1] for curve in drawn]
    log_x = axis == "budget" or (axis == "bytes" and has_wide_range(ends))
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


def _site_panel(table: Row, number: int) -> Panel:
    """The columns of a table of sites, over how many records each site has."""
    rows = sorted(table["rows"], key=lambda row: row["records"])
    spread = rows[-1]["records"] >= 2 * rows[0]["records"]
    curves = []
    for place in range(len(table["columns"])):
        points = [
            (row["records"] if spread else at, row["scores"][place])
            for at, row in enumerate(rows, 1)
            if row["scores"][place] is not None
        ]
        most = max((row["epsilon"][place] or 0.0 for row in rows), default=0.0)
        budget = f"epsilon {epsilon_words(most)}" if most else ""
        curves.append(_drawn(column_name(table, place), place, points, budget))
    return Panel(
        key=f"records-{number}",
        title=compared(table["metric"]).title,
        axis="records" if spread else "sites",
        measure=table["metric"],
        log_x=spread,
        log_y=False,
        curves=tuple(curve for curve in curves if curve.x),
        absent=tuple(curve.name for curve in curves if not curve.x),
    )


def _drawn(
    name: str,
    place: int,
    points: Sequence[tuple[float, Row]],
    budget: str = "",
    published: float | None = None,
) -> Curve:
    """A curve of means, with a band where all have a deviation."""
    banded = bool(points) and all(point["deviation"] is not None for _, point in points)
    edges = [(point["mean"], point["deviation"]) for _, point in points] if banded else []
    return Curve(
        name=name,
        colour=_COLOURS[place % len(_COLOURS)],
        dash=DASHES[place // len(_COLOURS) % len(DASHES)],
        symbol=SYMBOLS[place % len(SYMBOLS)],
        budget=budget,
        x=tuple(float(x) for x, _ in points),
        y=tuple(float(point["mean"]) for _, point in points),
        low=tuple(mean - deviation for mean, deviation in edges),
        high=tuple(mean + deviation for mean, deviation in edges),
        published=published,
    )


def _curve(line: Row, place: int, axis: str, measure: str) -> Curve:
    measured = line["ends" if axis == "budget" else "curve"]
    key = _KEYS.get(axis, axis)
    points = [(point[key], point) for point in measured if point[key] is not None]
    printed = line["published"].get(measure)
    if printed is not None and compared(measure).percent:
        printed /= 100  # papers print per cent
    budget = "" if axis == "budget" else _budget(line["points"][line["chosen"]])
    return _drawn(line["name"], place, points, budget, printed)


def _across(curve: Curve, line: Row, others: Sequence[Curve]) -> Curve:
    """A line without noise has no budget: it is drawn level, from the least to the largest."""
    budgets = [x for other in others for x in other.x]
    bare = line["points"][line["chosen"]]["private"] is False
    if not (bare and line["ends"] and budgets):
        return curve
    level = _drawn("", 0, [(x, line["ends"][0]) for x in (min(budgets), max(budgets))])
    return replace(
        curve, budget="not private", x=level.x, y=level.y, low=level.low, high=level.high
    )


def _budget(point: Row) -> str:
    cell = epsilon_cell(point, "epsilon", NOTHING)
    if cell == NOTHING:
        return ""
    return f"epsilon {cell}" if point["private"] else cell


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


def chart(panel: Panel, seeds: int) -> Chart:
    """A panel on the page."""
    measure = panel.y_title
    caption = f"{measure[0].upper()}{measure[1:]}"
    if any(curve.low for curve in panel.curves):
        caption += f"; bands are the standard deviation over {seeds} seeds, each way"
    if any(curve.published is not None for curve in panel.curves):
        caption += "; dotted lines are the published figures"
    if panel.absent:
        caption += f"; without a point here: {', '.join(panel.absent)}"
    figure = None
    if panel.curves:
        ticks, suffix = ("~s", "B") if panel.axis == "bytes" else ("", "")
        x = Axis(AXIS_TITLES[panel.axis], "log" if panel.log_x else "linear", ticks, suffix)
        y_ticks = ".0~%" if compared(panel.measure).percent else ""
        y = Axis(measure, "log" if panel.log_y else "linear", y_ticks)
        traces = [trace for curve in panel.curves for trace in _traces(curve)]
        figure = Drawing(traces, base_layout(x, y, hovermode="closest"), measure)
    missing = "no run has a point here yet"
    if panel.axis in ("epsilon", "budget"):
        missing = "no run here has an epsilon"
    return Chart(
        key=f"compare-{panel.key}",
        title=panel.title or measure,
        caption=f"{caption}.",
        figure=figure,
        absent=f"There is nothing to draw: {missing}.",
    )


def _traces(curve: Curve) -> list[Trace]:
    traces = []
    if curve.low:
        red, green, blue = (int(curve.colour[at : at + 2], 16) for at in (1, 3, 5))
        traces.append(
            scatter(
                x=[*curve.x, *reversed(curve.x)],
                y=[*curve.high, *reversed(curve.low)],
                fill="toself",
                fillcolor=f"rgba({red}, {green}, {blue}, 0.16)",
                line={"width": 0},
                mode="lines",
                hoverinfo="skip",
                showlegend=False,
                legendgroup=curve.name,
            )
        )
    traces.append(
        scatter(
            x=list(curve.x),
            y=list(curve.y),
            name=curve.name,
            mode="lines+markers" if len(curve.x) <= 40 else "lines",
            line={"color": curve.colour, "dash": curve.dash, "width": 2},
            marker={"color": curve.colour, "symbol": curve.symbol, "size": 6},
            hovertemplate="%{x:.4~s}: %{y:.4g}",
            legendgroup=curve.name,
        )
    )
    if curve.published is not None:
        traces.append(
            scatter(
                x=[min(curve.x), max(curve.x)],
                y=[curve.published] * 2,
                name=f"{curve.name}, published",
                mode="lines",
                line={"color": curve.colour, "dash": "dot", "width": 1.6},
                hovertemplate="published: %{y:.4g}",
            )
        )
    return traces
