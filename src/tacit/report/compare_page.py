"""The page of a compared figure: panels, table, and what all runs cost together, as one file.

Reads the document of `tacit compare --json` and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from tacit.report.charts import Axis, Chart, base_layout
from tacit.report.compare_panels import AXIS_TITLES, MEASURE_TITLES, Curve, Panel, panels
from tacit.report.rendering import Table, render
from tacit.report.wording import (
    NOTHING,
    bytes_text,
    duration_text,
    epsilon_text,
    number_text,
    percent_text,
)

__all__ = ["COLUMNS", "compare_page", "distinguishing", "line_cells", "point_cells"]

Row = Mapping[str, Any]

COLUMNS = (
    "line",
    "test accuracy",
    "worst node",
    "consensus",
    "test loss",
    "claimed epsilon",
    "certified epsilon",
    "bytes a node",
    "time",
    "published",
    "difference",
)
_GRID_COLUMNS = ("line", "point", *COLUMNS[1:5], "certified epsilon", "runs")
_ABSENT = {"epsilon": "There is nothing to draw: no run here has an epsilon."}
_X_FORMATS = {"bytes": ("~s", "B")}


def compare_page(document: Row) -> str:
    """Give the page of a comparison as HTML.

    Args:
        document: as `tacit.analysis.compare.figure_document` makes it.
    """
    lines, seeds = document["lines"], document["seeds"]
    return render(
        "compare",
        title=str(document["title"]),
        subtitle=_subtitle(document),
        sentences=document["sentences"],
        chart_sections=[
            (
                f"Against {AXIS_TITLES[axis]}",
                [_chart(panel, seeds) for panel in panels(document, axis)],
            )
            for axis in document["x"]
        ],
        lines=_table(COLUMNS, [line_cells(line) for line in lines]),
        seeds=seeds,
        grid=_table(
            _GRID_COLUMNS,
            [
                (line["name"], *point_cells(point))
                for line in lines
                if len(line["points"]) > 1
                for point in line["points"]
            ],
        ),
        notes=document["notes"],
        errors=_errors(document),
        tacit_version=document["tacit_version"],
    )


def line_cells(line: Row) -> tuple[str, ...]:
    """A line's row of the table: one cell for each of `COLUMNS`."""
    point = line["points"][line["chosen"]]
    return (
        _line_name(line),
        *_score_cells(point),
        _epsilon_cell(point, "claimed_epsilon", "no claim"),
        _epsilon_cell(point, "epsilon", NOTHING),
        bytes_text(_mean(point, "bytes_sent")),
        duration_text(_mean(point, "seconds")),
        _published(line),
        NOTHING if line["difference"] is None else f"{line['difference']:+.3g}",
    )


def point_cells(point: Row) -> tuple[str, ...]:
    """A grid point's row: its values, how it ends, epsilon, and how many runs are complete."""
    return (
        str(point["name"]),
        *_score_cells(point),
        _epsilon_cell(point, "epsilon", NOTHING),
        f"{point['complete']} of {len(point['runs'])}",
    )


def distinguishing(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """The places of columns that say something of some row; always the first."""
    return [
        place
        for place in range(len(columns))
        if place == 0 or any(row[place] != NOTHING for row in rows)
    ]


def _score_cells(point: Row) -> tuple[str, ...]:
    figures = point["figures"]
    scored = figures["test_accuracy"] is not None
    return (
        _spread(figures["test_accuracy"], percent=True),
        *(percent_text(_mean(point, key)) for key in ("worst", "consensus")),
        number_text(_mean(point, "test_loss")) if scored else _spread(figures["test_loss"]),
    )


def _line_name(line: Row) -> str:
    point = line["points"][line["chosen"]]
    chosen = f" ({point['name']})" if len(line["points"]) > 1 else ""
    return f"{line['name']}{chosen}"


def _mean(point: Row, key: str) -> float | None:
    figure = point["figures"][key]
    return None if figure is None else figure["mean"]


def _spread(figure: Row | None, *, percent: bool = False) -> str:
    if figure is None:
        return NOTHING
    text = percent_text if percent else number_text
    if figure["deviation"] is None:
        return text(figure["mean"])
    deviation = f"{100 * figure['deviation']:.1f}" if percent else number_text(figure["deviation"])
    return f"{text(figure['mean'])}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{deviation}"


def _epsilon_cell(point: Row, key: str, absent: str) -> str:
    if point["private"] is None:
        return NOTHING
    if not point["private"]:
        return "not private"
    return absent if point[key] is None else epsilon_text(point[key])


def _published(line: Row) -> str:
    texts = [
        f"{value:g} %" if key == "test_accuracy" else f"{MEASURE_TITLES[key]} {value:g}"
        for key, value in line["published"].items()
    ]
    return ", ".join(texts) or NOTHING


def _subtitle(document: Row) -> str:
    source = f"After {document['source']}. " if document["source"] else ""
    quick = "Quick version: short runs, not for conclusions. " if document["quick"] else ""
    lines, seeds = len(document["lines"]), document["seeds"]
    return (
        f"{source}{quick}{lines} {'line' if lines == 1 else 'lines'}, {document['complete']} of "
        f"{document['runs']} runs complete, {seeds} {'seed' if seeds == 1 else 'seeds'} a setting."
    )


def _chart(panel: Panel, seeds: int) -> Chart:
    measure = MEASURE_TITLES[panel.measure]
    caption = f"{measure[0].upper()}{measure[1:]}"
    if any(curve.low for curve in panel.curves):
        caption += f"; bands are the standard deviation over {seeds} seeds, each way"
    if any(curve.published is not None for curve in panel.curves):
        caption += "; dotted lines are the published figures"
    if panel.absent:
        caption += f"; without a point here: {', '.join(panel.absent)}"
    figure = None
    if panel.curves:
        figure = go.Figure(
            data=[trace for curve in panel.curves for trace in _traces(curve)],
            layout=_layout(panel),
        )
    entries = sum(1 + (curve.published is not None) for curve in panel.curves)
    return Chart(
        key=f"compare-{panel.key}",
        title=panel.title or measure,
        caption=f"{caption}.",
        figure=figure,
        absent=_ABSENT.get(panel.axis, "There is nothing to draw: no run has a point here yet."),
        height=340 + 20 * max(0, entries - 4),
    )


def _layout(panel: Panel) -> go.Layout:
    ticks, suffix = _X_FORMATS.get(panel.axis, ("", ""))
    x = Axis(AXIS_TITLES[panel.axis], "log" if panel.log_x else "linear", ticks, suffix)
    y_ticks = ".0~%" if panel.measure == "test_accuracy" else ""
    y = Axis(MEASURE_TITLES[panel.measure], "log" if panel.log_y else "linear", y_ticks)
    layout = base_layout(x, y)
    entries = sum(1 + (curve.published is not None) for curve in panel.curves)
    layout.update(hovermode="closest", margin={"b": 104 + 20 * max(0, entries - 4)})
    return layout


def _traces(curve: Curve) -> list[go.Scatter]:
    traces = []
    if curve.low:
        traces.append(
            go.Scatter(
                x=[*curve.x, *reversed(curve.x)],
                y=[*curve.high, *reversed(curve.low)],
                fill="toself",
                fillcolor=_faint(curve.colour),
                line={"width": 0},
                mode="lines",
                hoverinfo="skip",
                showlegend=False,
                legendgroup=curve.name,
            )
        )
    traces.append(
        go.Scatter(
            x=list(curve.x),
            y=list(curve.y),
            name=curve.name,
            mode="lines+markers" if len(curve.x) <= 40 else "lines",
            line={"color": curve.colour, "dash": curve.dash, "width": 2},
            marker={"color": curve.colour, "size": 5},
            hovertemplate="%{x:.4~s}: %{y:.4g}",
            legendgroup=curve.name,
        )
    )
    if curve.published is not None:
        traces.append(
            go.Scatter(
                x=[min(curve.x), max(curve.x)],
                y=[curve.published] * 2,
                name=f"{curve.name}, published",
                mode="lines",
                line={"color": curve.colour, "dash": "dot", "width": 1.6},
                hovertemplate="published: %{y:.4g}",
                legendgroup=curve.name,
            )
        )
    return traces


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, 0.16)"


def _errors(document: Row) -> list[str]:
    return [
        f"{_line_name({**line, 'chosen': place})}, seed {run['seed']}: {run['error']}"
        for line in document["lines"]
        for place, point in enumerate(line["points"])
        for run in point["runs"]
        if run["error"]
    ]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """The columns that say something of some row."""
    kept = distinguishing(columns, rows)
    return Table(
        [columns[place] for place in kept],
        [[cells[place] for place in kept] for cells in rows],
        left=("line", "point"),
    )
