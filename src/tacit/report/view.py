"""What is said of a document, as blocks: printed by `terminal.terminal`, a page by `html.html`.

Each kind of block is drawn by both writers; a terminal leaves out what it cannot show: headings,
banners, tiles and charts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

MOST_UNFOLDED = 20  # rows of a table


@dataclass(frozen=True)
class Block:
    """Anything that is said; `only` by one of the writers, or by both."""

    only: Literal["page", "terminal", "both"] = field(default="both", kw_only=True)


@dataclass(frozen=True)
class Heading(Block):
    """What the whole is about: the kind of document, its name, and a line below it."""

    eyebrow: str
    title: str
    subtitle: str


@dataclass(frozen=True)
class Banner(Block):
    """What must not be missed: `good`, `warn` or `bad`, and why; `code` ends the headline."""

    kind: str
    headline: str
    details: Sequence[str] = ()
    code: str = ""


@dataclass(frozen=True)
class Text(Block):
    """A paragraph, or of another `tag`; a terminal does not break it where it is to be copied."""

    text: str
    tag: Literal["p", "pre", "code", "noscript"] = "p"
    style: str = field(default="", kw_only=True)
    unbroken: bool = field(default=False, kw_only=True)


@dataclass(frozen=True)
class Items(Block):
    """A list of a `kind`, each text after its name, if it has one; in a terminal after `lead`."""

    texts: Sequence[str]
    kind: str = ""
    tag: Literal["ul", "ol"] = "ul"
    names: Sequence[str] = ()
    lead: str = ""


@dataclass(frozen=True)
class Pairs(Block):
    """Names and what is so called; `digests` are the names of long values without words.

    A terminal has the title above them.
    """

    pairs: Sequence[tuple[str, str]]
    digests: Collection[str] = ()
    title: str = ""


@dataclass(frozen=True)
class Tile:
    """A number that a reader looks for first; the `kind` `void` strikes it through."""

    label: str
    value: str
    note: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Tiles(Block):
    """Tiles side by side."""

    tiles: Sequence[Tile]


@dataclass(frozen=True)
class Table(Block):
    """A table, whose first column names the row.

    Args:
        columns: the headings, all different.
        rows: cells, each with one for every column.
        title: above it in a terminal.
        left: the columns of words, which are aligned at their left.
        over: cells that show something which does not hold, each as (number of the row, column).
        over_note: words that are added to those in a page; may be empty.
        note: a line below it in a page; may be empty.
        strong: the numbers of rows that a terminal prints in bold.
        page_only: columns that a terminal leaves out.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str | None = None
    left: Collection[str] = ()
    over: Collection[tuple[int, str]] = ()
    over_note: str = ""
    note: str = ""
    strong: Collection[int] = ()
    page_only: Collection[str] = ()

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"every row needs {len(self.columns)} cells")


@dataclass(frozen=True)
class Titled(Block):
    """Blocks under a title, in a `box`; a `part` of a section has a smaller title, or none.

    What is `folded` or `unfolded` the reader of a page folds away; paper has it: see page.js.
    """

    title: str
    blocks: Sequence[Block]
    box: str = ""
    kind: Literal["section", "part", "folded", "unfolded"] = "section"


def part(blocks: Sequence[Block], title: str = "") -> Titled:
    """A part of a section."""
    return Titled(title, blocks, kind="part")


def columns(title: str, left: Sequence[Block], aside: str, right: Sequence[Block]) -> Titled:
    """A section of two parts, of which the right one has a title, `aside`."""
    return Titled(title, [part(left), part(right, aside)], "card columns")


def folded(title: str, block: Block, *, rows: int = MOST_UNFOLDED + 1) -> Titled:
    """A block that is folded away, unless it is a table of few rows."""
    return Titled(title, [block], kind="folded" if rows > MOST_UNFOLDED else "unfolded")


def texts(paragraphs: Iterable[str]) -> list[Block]:
    """Paragraphs, without those that are empty."""
    return [Text(paragraph) for paragraph in paragraphs if paragraph]


def listed(title: str, items: Sequence[str], *, lead: str = "") -> list[Block]:
    """A section of a list; nothing where there are no items."""
    return [Titled(title, [Items(items, lead=lead)], "card")] if items else []


def sheet(table: Table, title: str = "") -> Titled:
    """A table in a section of its own, by default under the table's title."""
    own = table.title or ""
    return Titled(title or own[:1].upper() + own[1:], [table], "card sheet")
