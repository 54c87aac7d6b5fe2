"""Tables on a terminal: as a table where it fits, else as cards, in which no name is broken.

A table whose columns would be narrower than the words in them breaks names and numbers, and one
whose columns of prose are a few words wide is as long as it is hard to read. Then each row becomes
a card: its first cell, and below it the others with their headings.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from functools import singledispatch

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
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
    title = Text(block.title, style="table.title")
    table = Table("", "", title=title, title_justify="left", show_header=False)
    for pair in block.pairs:
        table.add_row(*map(Text, pair))
    out.print(table)


@_show.register
def _(block: view.Titled, out: Console) -> None:
    terminal(block.blocks, out)


@_show.register
def _(block: view.Table, out: Console) -> None:
    places = [n for n, name in enumerate(block.columns) if name not in block.page_only]
    headings, *rows = ([row[place] for place in places] for row in (block.columns, *block.rows))
    columns = list(zip(headings, *rows, strict=True))
    least = [_least(*column) for column in columns]
    room = out.width - 2 * len(columns) - 1
    if sum(least) > room:
        _print_cards(block.title, headings, rows, out)
        return
    # Given them itself, rich may make a column narrower than its words, and cut the last one.
    lines = [[line for cell in column for line in cell.splitlines()] for column in columns]
    widths = [max(map(cell_len, own), default=1) for own in lines]
    while sum(widths) > room:  # the widest give way to their least
        _, widest = max((width, n) for n, width in enumerate(widths) if width > least[n])
        widths[widest] -= 1
    title = None if block.title is None else Text(block.title, style="table.title")
    table = Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for heading, width in zip(headings, widths, strict=True):
        table.add_column(
            Text(heading),
            justify="left" if heading in block.left else "right",
            overflow="fold",
            width=width,
        )
    for number, row in enumerate(rows):
        table.add_row(*map(Text, row), style="bold" if number in block.strong else None)
    out.print(table)


def _least(heading: str, *cells: str) -> int:
    """The width below which a column cannot be read."""
    longest = max((len(word) for text in (heading, *cells) for word in text.split()), default=1)
    return max(longest, min(max(map(len, cells), default=0), _PROSE))


def _print_cards(
    title: str | None, headings: Sequence[str], rows: Sequence[Sequence[str]], out: Console
) -> None:
    if title is not None:
        out.print(Text(title), style="bold")
    for name, *cells in rows:
        if not name:  # a row between groups
            continue
        out.print(Text(name), style="bold", highlight=False)
        for line in _card(headings[1:], cells, out.width):
            out.print(Text(line), highlight=False)
    out.print()


def _card(headings: Iterable[str], cells: Iterable[str], width: int) -> list[str]:
    """The lines below a name: short cells side by side, then one of several words on its own."""
    pairs = zip(headings, cells, strict=True)
    told = [(heading, cell) for heading, cell in pairs if cell not in ("", "-", "–")]
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
