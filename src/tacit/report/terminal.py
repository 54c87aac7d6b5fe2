"""Tables on a terminal: as a table where it fits, else as cards, in which no name is broken.

A table whose columns would be narrower than the words in them breaks names and numbers, and one
whose columns of prose are a few words wide is as long as it is hard to read. Then each row becomes
a card: its first cell, and below it the others with their headings.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Sequence
from functools import singledispatch

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from tacit.report import view

_PROSE = 24  # characters a line that a column of several words needs at least
_SHORT = 36  # of heading and cell, which then share a line with others
_BETWEEN = 3  # spaces


def terminal(blocks: Iterable[view.Block], console: Console | None = None) -> None:
    """Print blocks; narrow terminals fold them, and nothing is shortened."""
    out = console or Console(emoji=False)  # :name: is a name
    for block in blocks:
        if block.only != "page":
            _show(block, out)


@singledispatch
def _show(block: view.Block, out: Console) -> None:
    """Print a block, of the kinds that a terminal shows."""


@_show.register
def _(block: view.Text, out: Console) -> None:
    unbroken = block.unbroken
    out.print(block.text, style=block.style, highlight=False, markup=False, soft_wrap=unbroken)


@_show.register
def _(block: view.Items, out: Console) -> None:
    for text in block.texts:
        out.print(f"{block.lead}{text}", highlight=False, markup=False)


@_show.register
def _(block: view.Pairs, out: Console) -> None:
    table = Table("", "", title=escape(block.title), title_justify="left", show_header=False)
    for pair in block.pairs:
        table.add_row(*map(escape, pair))
    out.print(table)


@_show.register
def _(block: view.Titled, out: Console) -> None:
    terminal(block.blocks, out)


@_show.register
def _(block: view.Table, out: Console) -> None:
    places = [n for n, name in enumerate(block.columns) if name not in block.page_only]
    headings = [escape(block.columns[place]) for place in places]
    title = None if block.title is None else escape(block.title)
    right = [escape(name) for name in block.columns if name not in block.left]
    table = table_of(headings, title=title, right=right)
    for number, row in enumerate(block.rows):
        style = "bold" if number in block.strong else None
        table.add_row(*(escape(row[place]) for place in places), style=style)
    print_table(out, table)


def table_of(
    headings: Iterable[str],
    rows: Iterable[Sequence[str]] = (),
    *,
    title: str | None = None,
    right: Collection[str] = (),
) -> Table:
    """A table for `print_table`, to which more rows may be added.

    `right` are the headings of columns whose cells are aligned at their right, as numbers are.
    """
    table = Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def print_table(console: Console, table: Table) -> None:
    """Print a table of strings as wide as the console, or cards where it is too narrow.

    The table has a heading for each column, and its first column names the row.
    """
    for column in table.columns:
        column.min_width = max((len(word) for word in _words(column)), default=1)
        column.overflow = "fold"
    _, right, _, left = table.padding
    between = len(table.columns) + 1 if table.box else 0
    room = console.width - (left + right) * len(table.columns) - between
    if sum(map(_least, table.columns)) <= room:
        # Given them itself, rich may make a column narrower than its words, and cut the last one.
        for column, width in zip(table.columns, _widths(table.columns, room), strict=True):
            column.width = width
        console.print(table)
        return
    if table.title is not None:
        console.print(Text.from_markup(str(table.title), emoji=False), style="bold")
    headings = [_plain(column.header) for column in table.columns]
    for name, *cells in zip(*(column.cells for column in table.columns), strict=True):
        if not name:  # a row between groups
            continue
        console.print(Text(_plain(name)), style="bold", highlight=False)
        for line in _card(headings[1:], map(_plain, cells), console.width):
            console.print(Text(line), highlight=False)
    console.print()


def _least(column: Column) -> int:
    """The width below which a column cannot be read."""
    longest = max((len(_plain(cell)) for cell in column.cells), default=0)
    return max(column.min_width or 1, min(longest, _PROSE))


def _widths(columns: Sequence[Column], room: int) -> list[int]:
    """As wide as the longest lines; where there is no room, the widest give way to their least."""
    least = [_least(column) for column in columns]
    lines = [
        [line for cell in (column.header, *column.cells) for line in _plain(cell).splitlines()]
        for column in columns
    ]
    widths = [max(map(cell_len, own), default=1) for own in lines]
    while sum(widths) > room:
        _, place = max((width, place) for place, width in enumerate(widths) if width > least[place])
        widths[place] -= 1
    return widths


def _words(column: Column) -> Iterable[str]:
    for cell in (column.header, *column.cells):
        yield from _plain(cell).split()


def _plain(cell: object) -> str:
    return Text.from_markup(str(cell), emoji=False).plain


def _card(headings: Iterable[str], cells: Iterable[str], width: int) -> list[str]:
    """The lines below a name: short cells side by side, then one of several words on its own."""
    told = [(heading, cell) for heading, cell in zip(headings, cells, strict=True) if cell]
    told = [(heading, cell) for heading, cell in told if cell not in ("-", "–")]
    short = [f"{heading} {cell}" for heading, cell in told if len(heading + cell) < _SHORT]
    long = [f"{heading}: {cell}" for heading, cell in told if len(heading + cell) >= _SHORT]
    lines = [""]
    for words in short:
        gap = " " * (_BETWEEN if lines[-1] else 2)
        if lines[-1] and len(lines[-1] + gap + words) > width:
            lines.append("")
            gap = "  "
        lines[-1] += gap + words
    for text in long:
        lines += textwrap.wrap(
            text,
            max(width, 20),
            initial_indent="  ",
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return [line for line in lines if line]
