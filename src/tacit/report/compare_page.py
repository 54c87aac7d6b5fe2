"""The page of a compared figure: panels, table, and what all runs cost together, as one file.

Reads the document of `tacit compare --json` and nothing else. Its panels, `panels`, are drawn by
the still pictures as well, so that they and the page cannot differ.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
    Layout,
    Trace,
    base_layout,
    changed,
    has_wide_range,
    scatter,
)
from tacit.report.html import html
from tacit.report.measures import ACCURACY, LOSS, Measure, measure_of
from tacit.report.protection import epsilon_words, size_note
from tacit.report.view import (
    Banner,
    Block,
    Heading,
    Items,
    Table,
    Text,
    Titled,
    listed,
    sheet,
    texts,
)
from tacit.report.wording import (
    NOTHING,
    bytes_text,
    duration_text,
    number_text,
    percent_text,
)

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
_KEYS = {
    "steps": "step",
    "rounds": "step",
    "bytes": "bytes",
    "epsilon": "epsilon",
    "budget": "epsilon",
}
_COLOURS = (BLUE, RED, GREEN, PURPLE, AMBER, SKY, GREY)
_FLOOR = 0.01  # of the mean: where a band that reaches zero ends on a logarithmic axis
_COLUMNS = (
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
_DEVIATION = "± is the sample standard deviation over seeds. "
_LARGEST = (
    "Epsilon is the largest over nodes and runs, of one run alone; published accuracies are in per "
    "cent as printed, and the difference is in percentage points."
)
_ABSENT = dict.fromkeys(
    ("epsilon", "budget"), "There is nothing to draw: no run here has an epsilon."
)
_X_FORMATS = {"bytes": ("~s", "B")}


@dataclass(frozen=True)
class Curve:
    """One line of a panel.

    Args:
        name: in the legend.
        colour: CSS.
        dash: `solid`, `dash`, `dashdot` or `longdash`.
        symbol: of its points, as plotly names it; tells lines apart where colours do not.
        budget: its certified epsilon in words, or that it is not private; may be empty.
        x: where it was measured.
        y: mean over runs.
        low: lower edge of the band; empty of a single run.
        high: upper edge.
        published: a printed figure, in the unit of `y`; None without.
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
    """One group of lines on one pair of axes.

    Args:
        key: its name in markup.
        title: of the group; may be empty.
        axis: of `AXIS_TITLES`.
        measure: as `CompareDocument.y`.
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

    @property
    def y_title(self) -> str:
        """What stands at its y axis."""
        by_site = self.axis in ("records", "sites")
        return f"test {self.title}, by site" if by_site else measure_title(self.measure)


def compare_page(document: Row) -> str:
    """Give the page of a comparison as HTML.

    Args:
        document: as `tacit.analysis.compare.figure_document` makes it.
    """
    lines, seeds, score = document["lines"], document["seeds"], document["score"]
    sites = [
        (f"What each site gains: {compared(table['metric']).title}", site_table(table))
        for table in document["sites"]
    ]
    grid = [
        (line["name"], *point_cells(point, score))
        for line in lines
        if len(line["points"]) > 1
        for point in line["points"]
    ]
    blocks = [
        Heading("tacit compare", document["title"], _subtitle(document)),
        *(
            [Banner("warn", "What all runs cost together", document["sentences"])]
            if document["sentences"]
            else []
        ),
        *(sheet(table, title) for title, table in sites),
        Text("The charts need JavaScript; the tables do not.", "noscript"),
        *(
            Titled(
                f"Against {AXIS_TITLES[axis]}",
                [_chart(panel, seeds) for panel in panels(document, axis)],
                "charts",
            )
            for axis in document["x"]
        ),
        sheet(_table(columns(score), [line_cells(line, score) for line in lines]), "At the end"),
        Text(f"{_DEVIATION if seeds > 1 else ''}{_LARGEST}"),
        *([sheet(_table(_grid_columns(score), grid), "Every point of the grids")] if grid else []),
        *listed("Notes", document["notes"]),
        *listed(
            "Runs that are missing or ended early",
            [
                f"{_line_name({**line, 'chosen': place})}, seed {run['seed']}: {run['error']}"
                for line, place, run in _failed(document)
            ],
        ),
    ]
    return html(blocks, f"Written by tacit {document['tacit_version']} from the run folders alone.")


def figure_blocks(document: Row) -> list[Block]:
    """What a terminal shows: the same cells in narrower tables, and what must be known of them."""
    notes = [*document["sentences"], *document["notes"]]
    errors: dict[str, list[str]] = {}
    for line, place, run in _failed(document):
        where = f"{line['name']} {line['points'][place]['name']}".strip()
        errors.setdefault(run["error"], []).append(f"{where}, seed {run['seed']}")
    failed = [
        f"{where[0]}{f' and {len(where) - 1} more runs' if len(where) > 1 else ''}: {error}"
        for error, where in errors.items()
    ]
    count = f"{document['complete']} of {document['runs']} runs complete"
    if document["other_versions"]:
        count += f"; some were made by tacit {', '.join(document['other_versions'])}"
    if document["stopped"]:
        count += "; stopped: run it again to go on"
    spread = _DEVIATION.strip(" .") if document["seeds"] > 1 else ""
    return [
        *_terminal_tables(document),
        *texts([spread]),
        Items(notes, lead="note: "),
        *texts([*failed, count]),
    ]


def _terminal_tables(document: Row) -> list[Block]:
    title, lines, score = document["title"], document["lines"], document["score"]
    if document["sites"]:
        tables = [site_table(table) for table in document["sites"]]
        wide, ends = len(tables[0].columns), 2 + len(document["sites"][0]["columns"])
        bounds = replace(tables[0], rows=tables[0].rows[:-1])
        about = "the sites, and what is certified of one run"
        return [
            *(_part(table, [0, *range(2, ends)], table.title) for table in tables),
            _part(bounds, [0, 1, *range(ends, wide)], about),
        ]
    if not document["complete"]:
        return texts([f"{title}: no run is complete, so there is nothing to compare"])
    scored = any(point["figures"]["score"] for line in lines for point in line["points"])
    headings, cells = columns(score), [line_cells(line, score) for line in lines]
    shown = headings[1:4] if scored else headings[4:5]
    tables = [
        _grouped(_table(headings, cells, ("line", *wanted), about), lines)
        for about, wanted in (
            (title, (*shown, *headings[9:])),
            ("what it cost, of one run", headings[5:9]),
        )
    ]
    for line in lines:
        if len(line["points"]) > 1:
            grid = [["", *point_cells(point, score)] for point in line["points"]]
            grid[line["chosen"]][1] += " (shown)"
            wanted = ("point", *(shown[:2] if scored else shown), "certified epsilon", "runs")
            tables.append(_table(_grid_columns(score), grid, wanted, f"grid of {line['name']}"))
    return list(tables)


def _grouped(table: Table, lines: Sequence[Row]) -> Table:
    """With the name of each group above the rows of its lines."""
    rows: list[Sequence[str]] = []
    names: list[int] = []
    group = ""
    for line, row in zip(lines, table.rows, strict=True):
        if line["group"] != group:
            group, blank = line["group"], [""] * len(row)
            rows += [blank] if rows else []
            names.append(len(rows))
            rows.append([group, *blank[1:]])
        rows.append(row)
    return replace(table, rows=rows, strong=names)


def is_score(y: str) -> bool:
    """Whether what is drawn is a score that runs can be judged by: the accuracy, or a metric."""
    return y == "test_accuracy" or y not in MEASURE_TITLES


def compared(y: str) -> Measure:
    """The measure that a figure calls `y`."""
    return {"test_accuracy": ACCURACY, "test_loss": LOSS}.get(y) or measure_of(y)


def measure_title(y: str) -> str:
    """What stands at an axis."""
    return MEASURE_TITLES.get(y) or f"test {compared(y).title}, mean over nodes"


def columns(score: str) -> tuple[str, ...]:
    """The headings of the table of lines, whose runs are judged by `score`."""
    return ("line", f"test {compared(score).title}", *_COLUMNS)


def line_cells(line: Row, score: str) -> tuple[str, ...]:
    """A line's row of the table: one cell for each of `columns`."""
    point = line["points"][line["chosen"]]
    return (
        _line_name(line),
        *_score_cells(point, compared(score)),
        _epsilon_cell(point, "claimed_epsilon", "no claim"),
        _epsilon_cell(point, "epsilon", NOTHING),
        bytes_text(_mean(point, "bytes_sent")),
        duration_text(_mean(point, "seconds")),
        _published(line),
        NOTHING if line["difference"] is None else f"{line['difference']:+.3g}",
    )


def point_cells(point: Row, score: str) -> tuple[str, ...]:
    """A grid point's row: its values, how it ends, epsilon, and how many runs are complete."""
    return (
        str(point["name"]),
        *_score_cells(point, compared(score)),
        _epsilon_cell(point, "epsilon", NOTHING),
        f"{point['complete']} of {len(point['runs'])}",
    )


def site_table(table: Row) -> Table:
    """What each site has of the experiment and of its baselines, and the mean over sites.

    Args:
        table: of `CompareDocument.sites`.
    """
    measure = compared(table["metric"])
    names = [_column_name(table, place) for place in range(len(table["columns"]))]
    certified = [place for place, private in enumerate(table["private"]) if private]
    rows = [
        [
            row["name"],
            f"{row['records']:,}",
            *(_spread(score, percent=measure.percent) for score in row["scores"]),
            *(epsilon_words(row["epsilon"][place]) for place in certified),
        ]
        for row in table["rows"]
    ]
    mean = [_spread(score, percent=measure.percent) for score in table["mean"]]
    rows.append(["mean", NOTHING, *mean, *[NOTHING] * len(certified)])
    epsilons = [f"certified epsilon, {names[place]}" for place in certified]
    headings = ["site", "records", *names, *epsilons]
    return Table(headings, rows, measure.title, left=("site",))


def _column_name(table: Row, place: int) -> str:
    """A column in words: what is not private says so wherever it is shown."""
    name = str(table["columns"][place])
    return f"{name}, not private" if table["private"][place] is False else name


def panels(document: Row, axis: str) -> tuple[Panel, ...]:
    """One panel a group of lines, on one axis.

    Args:
        document: as `tacit.analysis.compare.figure_document` makes it.
        axis: of `AXIS_TITLES`.
    """
    if axis == "records":
        return tuple(_site_panel(table, place) for place, table in enumerate(document["sites"]))
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
    swept = list(document["x"]) == ["budget"]
    if not swept and any(_budget(line["points"][line["chosen"]]) for line in document["lines"]):
        notes.append("in brackets: what is certified of one run")
    return "; ".join(notes)


def _score_cells(point: Row, measure: Measure) -> tuple[str, ...]:
    figures = point["figures"]
    scored = figures["score"] is not None
    return (
        _spread(figures["score"], percent=measure.percent),
        *(measure.text(_mean(point, key)) for key in ("worst", "consensus")),
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
    mean, width = text(figure["mean"]), figure["deviation"]
    digits = len(mean.partition(".")[2]) if "e" not in mean else 0
    deviation = (
        f"{100 * width:.1f}" if percent else f"{width:.{digits}f}" if digits else number_text(width)
    )
    return f"{mean}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{deviation}"


def _epsilon_cell(point: Row, key: str, absent: str) -> str:
    """An epsilon in words. A paper may claim one of a run for which none holds, as of an assumed
    bound: that claim is shown.
    """
    if point["private"] is None:
        return NOTHING
    if not point["private"] and (key == "epsilon" or point[key] is None):
        return "not private"
    return absent if point[key] is None else epsilon_words(point[key])


def _published(line: Row) -> str:
    texts = [
        f"{value:g} %" if key == "test_accuracy" else f"{measure_title(key)} {value:g}"
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
        curves.append(replace(_drawn(_column_name(table, place), place, points), budget=budget))
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


def _drawn(name: str, place: int, points: Sequence[tuple[float, Row]]) -> Curve:
    """A curve of means, with a band where all have a deviation."""
    banded = bool(points) and all(point["deviation"] is not None for _, point in points)
    edges = [(point["mean"], point["deviation"]) for _, point in points] if banded else []
    return Curve(
        name=name,
        colour=_COLOURS[place % len(_COLOURS)],
        dash=DASHES[place // len(_COLOURS) % len(DASHES)],
        symbol=SYMBOLS[place % len(SYMBOLS)],
        budget="",
        x=tuple(float(x) for x, _ in points),
        y=tuple(float(point["mean"]) for _, point in points),
        low=tuple(mean - deviation for mean, deviation in edges),
        high=tuple(mean + deviation for mean, deviation in edges),
        published=None,
    )


def _curve(line: Row, place: int, axis: str, measure: str) -> Curve:
    measured = line["ends" if axis == "budget" else "curve"]
    points = [(point[_KEYS[axis]], point) for point in measured if point[_KEYS[axis]] is not None]
    printed = line["published"].get(measure)
    if printed is not None and compared(measure).percent:
        printed /= 100  # papers print per cent
    return replace(
        _drawn(line["name"], place, points),
        budget="" if axis == "budget" else _budget(line["points"][line["chosen"]]),
        published=printed,
    )


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
    cell = _epsilon_cell(point, "epsilon", NOTHING)
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


def _chart(panel: Panel, seeds: int) -> Chart:
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
        figure = Drawing(
            data=[trace for curve in panel.curves for trace in _traces(curve)],
            layout=_layout(panel),
            y_title=measure,
        )
    return Chart(
        key=f"compare-{panel.key}",
        title=panel.title or measure,
        caption=f"{caption}.",
        figure=figure,
        absent=_ABSENT.get(panel.axis, "There is nothing to draw: no run has a point here yet."),
    )


def _layout(panel: Panel) -> Layout:
    ticks, suffix = _X_FORMATS.get(panel.axis, ("", ""))
    x = Axis(AXIS_TITLES[panel.axis], "log" if panel.log_x else "linear", ticks, suffix)
    y_ticks = ".0~%" if compared(panel.measure).percent else ""
    y = Axis(panel.y_title, "log" if panel.log_y else "linear", y_ticks)
    return changed(base_layout(x, y), hovermode="closest")


def _traces(curve: Curve) -> list[Trace]:
    traces = []
    if curve.low:
        traces.append(
            scatter(
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


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, 0.16)"


def _failed(document: Row) -> list[tuple[Row, int, Row]]:
    """Every run with an error: its line, the place of its point, and the run."""
    return [
        (line, place, run)
        for line in document["lines"]
        for place, point in enumerate(line["points"])
        for run in point["runs"]
        if run["error"]
    ]


def _grid_columns(score: str) -> tuple[str, ...]:
    return ("line", "point", *columns(score)[1:5], "certified epsilon", "runs")


def _table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    wanted: Collection[str] | None = None,
    title: str | None = None,
) -> Table:
    """The columns that say something of some row, of those that are `wanted`."""
    kept = [
        place
        for place, name in enumerate(columns)
        if (wanted is None or name in wanted)
        and (place == 0 or any(row[place] != NOTHING for row in rows))
    ]
    table = Table(columns, rows, left=("line", "point"), note=size_note(rows))
    return _part(table, kept, title)


def _part(table: Table, kept: Sequence[int], title: str | None = None) -> Table:
    """Some columns of a table, whose headings are folded at a comma."""
    return replace(
        table,
        columns=[table.columns[place].replace(", ", ",\n") for place in kept],
        rows=[[cells[place] for place in kept] for cells in table.rows],
        title=title,
    )
