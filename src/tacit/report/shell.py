"""What every page has in common: one file that needs neither a network nor anything beside it."""

from __future__ import annotations

from html import escape
from importlib import resources
from string import Template

import plotly.io
import plotly.offline

from tacit.report.charts import Chart

__all__ = ["figure_html", "page_html"]


def page_html(title: str, body: str, *, charts: bool = True) -> str:
    """Give a whole page.

    Args:
        title: of the window, plain text.
        body: HTML.
        charts: whether the body holds figures: only then is what draws them embedded.
    """
    return Template(_asset("page.html")).substitute(
        title=escape(title),
        style=_asset("page.css"),
        plotly=plotly.offline.get_plotlyjs() if charts else "",
        script=_asset("page.js") if charts else "",
        body=body,
    )


def figure_html(chart: Chart) -> str:
    """Give a chart with its words, or what to say where there is nothing to draw."""
    inside = f'<p class="absent">{escape(chart.absent)}</p>'
    if chart.figure is not None:
        inside = f"{_plot(chart)}<figcaption>{escape(chart.caption)}</figcaption>"
    return f'<figure id="{chart.key}"><h3>{escape(chart.title)}</h3>{inside}</figure>'


def _plot(chart: Chart) -> str:
    # "<" may not appear inside a script element: text from files could close it
    data = plotly.io.to_json(chart.figure, validate=False).replace("<", "\\u003c")
    return (
        f'<div class="plot" style="height:{chart.height}px" role="img" '
        f'aria-label="{escape(chart.title)}"></div>'
        f'<script type="application/json">{data}</script>'
    )


def _asset(name: str) -> str:
    return (resources.files("tacit.report") / name).read_text(encoding="utf-8")
