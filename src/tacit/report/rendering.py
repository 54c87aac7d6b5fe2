"""Fills the templates of the pages: what is written into them is escaped, and must be there.

A page is one file that needs neither a network nor anything beside it.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tacit.report.charts import Drawing
from tacit.report.documents.base import plain_json
from tacit.report.legend import keys


@dataclass(frozen=True)
class Tile:
    """A number that a reader looks for first.

    Args:
        label: what it is.
        value: the number, in words.
        note: a line below it; may be empty.
        kind: `void` strikes the value through.
    """

    label: str
    value: str
    note: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Table:
    """A table as the macro of all pages draws it.

    Args:
        columns: the headings, all different.
        rows: cells, each with one for every column.
        left: the columns of words, which are aligned at their left.
        over: cells that show something which does not hold, each as (number of the row, column).
        over_note: words that are added to those; may be empty.
        note: a line below the table; may be empty.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Collection[str] = ()
    over: Collection[tuple[int, str]] = ()
    over_note: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"every row needs {len(self.columns)} cells")


def render(template: str, **context: object) -> str:
    """Give a page as HTML.

    Args:
        template: the name of its template, without `.html.j2`.
        context: what the template asks for; text is escaped.
    """
    return _environment().get_template(f"{template}.html.j2").render(context)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("tacit.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_not_none,
    )
    environment.globals["plotly_code"] = lambda: Markup(_plotly_code())
    environment.filters["plotly_json"] = _plotly_json
    environment.filters["keys"] = keys
    return environment


def _not_none(value: object) -> object:
    """Refuse a value that the page would call "None"; `StrictUndefined` refuses a missing one."""
    if value is None:
        raise ValueError("a page must say in words what is not known")
    return value


def _plotly_code() -> str:
    """The code of plotly.js, compressed, as text: a third of its size, and page.js unpacks it."""
    packed = resources.files("tacit.report") / "plotly" / "plotly-basic.min.js.gz"
    return b64encode(packed.read_bytes()).decode("ascii")


def _plotly_json(figure: Drawing) -> Markup:
    # "<" may not appear inside a script element: text from files could close it
    content = plain_json({"data": list(figure.data), "layout": figure.layout})
    return Markup(json.dumps(content, allow_nan=False).replace("<", "\\u003c"))
