"""A compared figure in tables: on a terminal, and on its page, which has its charts as well.

Both are of the document of `tacit compare --json` and of nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from tacit.report.compare_panels import (
    AXIS_TITLES,
    Row,
    chart,
    column_name,
    compared,
    epsilon_cell,
    measure_title,
    panels,
)
from tacit.report.html import html
from tacit.report.measures import Measure
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
    count_text,
    duration_text,
    number_text,
    percent_text,
    plural,
)

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


def compare_page(document: Row) -> str:
    """Give the page of a comparison as HTML."""
    lines, seeds, score = document["lines"], document["seeds"], document["score"]
    grid = [
        (line["name"], *point_cells(point, score))
        for line in lines
        if len(line["points"]) > 1
        for point in line["points"]
    ]
    failed = [
        f"{_line_name({**line, 'chosen': place})}, seed {run['seed']}: {run['error']}"
        for line, place, run in _failed(document)
    ]
    source = f"After {document['source']}. " if document["source"] else ""
    quick = "Quick version: short runs, not for conclusions. " if document["quick"] else ""
    subtitle = (
        f"{source}{quick}{count_text(len(lines), 'line')}, {document['complete']} of "
        f"{document['runs']} runs complete, {count_text(seeds, 'seed')} a setting."
    )
    blocks = [
        Heading("tacit compare", document["title"], subtitle),
        *(
            [Banner("warn", "What all runs cost together", document["sentences"])]
            if document["sentences"]
            else []
        ),
        *(
            sheet(site_table(table), f"What each site gains: {compared(table['metric']).title}")
            for table in document["sites"]
        ),
        Text("The charts need JavaScript; the tables do not.", "noscript"),
        *(
            Titled(
                f"Against {AXIS_TITLES[axis]}",
                [chart(panel, seeds) for panel in panels(document, axis)],
                "charts",
            )
            for axis in document["x"]
        ),
        sheet(_table(columns(score), [line_cells(line, score) for line in lines]), "At the end"),
        Text(f"{_DEVIATION if seeds > 1 else ''}{_LARGEST}"),
        *([sheet(_table(_grid_columns(score), grid), "Every point of the grids")] if grid else []),
        *listed("Notes", document["notes"]),
        *listed("Runs that are missing or ended early", failed),
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


def columns(score: str) -> tuple[str, ...]:
    """The headings of the table of lines, whose runs are judged by `score`."""
    return ("line", f"test {compared(score).title}", *_COLUMNS)


def line_cells(line: Row, score: str) -> tuple[str, ...]:
    """A line's row of the table: one cell for each of `columns`."""
    point = line["points"][line["chosen"]]
    published = [
        f"{value:g} %" if key == "test_accuracy" else f"{measure_title(key)} {value:g}"
        for key, value in line["published"].items()
    ]
    return (
        _line_name(line),
        *_score_cells(point, compared(score)),
        epsilon_cell(point, "claimed_epsilon", "no claim"),
        epsilon_cell(point, "epsilon", NOTHING),
        bytes_text(_mean(point, "bytes_sent")),
        duration_text(_mean(point, "seconds")),
        ", ".join(published) or NOTHING,
        NOTHING if line["difference"] is None else f"{line['difference']:+.3g}",
    )


def point_cells(point: Row, score: str) -> tuple[str, ...]:
    """A grid point's row: its values, how it ends, epsilon, and how many runs are complete."""
    return (
        str(point["name"]),
        *_score_cells(point, compared(score)),
        epsilon_cell(point, "epsilon", NOTHING),
        f"{point['complete']} of {len(point['runs'])}",
    )


def site_table(table: Row) -> Table:
    """What each site has of the experiment and of its baselines, and the mean over sites.

    `table` is one of `CompareDocument.sites`, as JSON has it.
    """
    measure = compared(table["metric"])
    names = [column_name(table, place) for place in range(len(table["columns"]))]
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
    headings = ["site", plural(table.get("unit", "record")), *names, *epsilons]
    return Table(headings, rows, measure.title, left=("site",))


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
