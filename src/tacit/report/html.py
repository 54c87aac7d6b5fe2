"""Writes blocks as a page: what is written is escaped, and must be there.

A page is one file that needs neither a network nor anything beside it.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tacit.report.charts import Drawing, keys
from tacit.report.documents.base import plain_json
from tacit.report.view import Block


def html(
    blocks: Sequence[Block], footer: str = "", *, title: str = "", signed: bool = False
) -> str:
    """Give a page as HTML.

    Args:
        blocks: a `Heading` first.
        footer: the last line, before it says that the page loads nothing.
        title: of its window; that of the heading by default.
        signed: whether it is for printing and signing: without charts and footer, and narrow.
    """
    page = _environment().get_template("page.html.j2")
    return page.render(blocks=blocks, title=title, footer=footer, signed=signed)


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
    environment.filters["kind"] = lambda block: type(block).__name__
    return environment


def _not_none(value: object) -> object:
    """Refuse a value that the page would call "None"; `StrictUndefined` refuses a missing one."""
    if value is None:
        raise ValueError("a page must say in words what is not known")
    return value


@cache
def _plotly_code() -> str:
    """The code of plotly.js, compressed, as text: a third of its size, and page.js unpacks it."""
    packed = resources.files("tacit.report") / "plotly" / "plotly-basic.min.js.gz"
    return b64encode(packed.read_bytes()).decode("ascii")


def _plotly_json(figure: Drawing) -> Markup:
    # "<" may not appear inside a script element: text from files could close it
    content = plain_json({"data": list(figure.data), "layout": figure.layout})
    return Markup(json.dumps(content, allow_nan=False).replace("<", "\\u003c"))
