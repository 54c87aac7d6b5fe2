"""A comparison on the terminal: the table, what all runs cost together, and the way there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tacit.analysis.compare.pool import Outcome
from tacit.analysis.compare.session import Monitor
from tacit.report.compare_page import COLUMNS, distinguishing, line_cells, point_cells
from tacit.report.documents.base import plain_json
from tacit.report.documents.figure import CompareDocument

__all__ = ["figure_table", "watching"]

Row = Mapping[str, Any]


def figure_table(figure: CompareDocument, console: Console | None = None) -> None:
    """Print the lines, the points of their grids, and what must be known before believing them.

    Args:
        figure: as `figure_document` makes it.
        console: where; standard output by default.
    """
    document, out = plain_json(figure), console or Console()
    scored = any(
        point["figures"]["test_accuracy"] for line in document["lines"] for point in line["points"]
    )
    ends = COLUMNS[1:4] if scored else COLUMNS[4:5]
    for title, columns in (
        (document["title"], ("line", *ends, *COLUMNS[9:])),
        ("what it cost, of one run", ("line", *COLUMNS[5:9])),
    ):
        out.print(_lines_table(title, columns, document["lines"]))
    for line in document["lines"]:
        if len(line["points"]) > 1:
            out.print(_grid_table(line, scored))
    if document["seeds"] > 1:
        out.print("± is the sample standard deviation over seeds", highlight=False)
    for sentence in document["sentences"]:
        out.print(f"note: {sentence}", highlight=False)
    for note in document["notes"]:
        out.print(f"note: {note}", highlight=False)
    for line in document["lines"]:
        for point in line["points"]:
            for run in point["runs"]:
                if run["error"]:
                    where = f"{line['name']} {point['name']}".strip()
                    out.print(f"{where}, seed {run['seed']}: {run['error']}", highlight=False)
    out.print(_count(document), highlight=False)


def _lines_table(title: str, columns: Sequence[str], lines: Sequence[Row]) -> Table:
    """The lines by group; a column that says nothing of any line is left out."""
    cells = [line_cells(line) for line in lines]
    columns_shown = [place for place in distinguishing(COLUMNS, cells) if COLUMNS[place] in columns]
    table = _table(
        title,
        [COLUMNS[place] for place in columns_shown],
        min(30, max(len(line["group"]) for line in lines)),
    )
    group = ""
    for line, row in zip(lines, cells, strict=True):
        if line["group"] != group:
            group = line["group"]
            table.add_section()
            table.add_row(group, style="bold")
        table.add_row(*(row[place] for place in columns_shown))
    return table


def _count(document: Row) -> str:
    text = f"{document['complete']} of {document['runs']} runs complete"
    if document["other_versions"]:
        text += f"; some were made by tacit {', '.join(document['other_versions'])}"
    return text + ("; stopped: run it again to go on" if document["stopped"] else "")


def _grid_table(line: Row, scored: bool) -> Table:
    columns_shown = [0, 1, 2, 5, 6] if scored else [0, 4, 5, 6]
    columns = ("point", *COLUMNS[1:5], "certified epsilon", "runs")
    table = _table(f"grid of {line['name']}", [columns[column] for column in columns_shown])
    for place, point in enumerate(line["points"]):
        chosen = place == line["chosen"]
        cells = point_cells(point)
        marked = (f"{cells[0]}{' (shown)' if chosen else ''}", *cells[1:])
        table.add_row(*(marked[column] for column in columns_shown))
    return table


def _table(title: str, headings: Sequence[str], first: int = 0) -> Table:
    """A table that a narrow terminal folds, and never shortens."""
    table = Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for place, heading in enumerate(headings):
        justify: Literal["left", "right"] = "right" if place else "left"
        longest = max(len(word) for word in heading.split())
        longest = longest if place else max(longest, first)
        table.add_column(
            heading, justify=justify, overflow="fold", min_width=longest, no_wrap=place > 0
        )
    return table


@contextmanager
def watching(should_stop: Callable[[], bool], *, hidden: bool) -> Iterator[Monitor]:
    """A live line on a terminal, and a line for every run that ends.

    Args:
        should_stop: whether the user asked to stop.
        hidden: say nothing.
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
    counts = {"ended": 0, "total": 0}

    def say(text: str) -> None:
        if hidden:
            return
        if bar.disable:
            sys.stderr.write(f"{text}\n")
        else:
            bar.console.print(text, highlight=False, soft_wrap=True)

    def begin(total: int, cached: int) -> None:
        counts.update(ended=cached, total=total)
        bar.update(task, total=total, completed=cached, visible=True, description="runs")
        say(f"{cached} of {total} runs cached")

    def done(name: str, seed: int, outcome: Outcome) -> None:
        if outcome.status == "cancelled":
            return
        counts["ended"] += 1
        why = "" if outcome.message is None else f": {outcome.message}"
        say(f"{counts['ended']}/{counts['total']} {name}, seed {seed}: {outcome.status}{why}")

    with bar:
        yield Monitor(
            begin=begin,
            step=lambda completed: bar.update(task, completed=completed),
            done=done,
            should_stop=should_stop,
        )
