"""What every chart of the page has in common: a key, words around it, and one style.

Figures are written as plotly.js takes them, and not with plotly's classes: to load and fill those
takes half a second, at the end of every run. The tests read all figures with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tacit.report.view import Block

# Okabe and Ito's palette, which colour-blind readers can tell apart, with the two darkest
# colours lightened until they also stand out on a dark page.
BLUE = "#1f84c4"
RED = "#d55e00"
GREEN = "#009e73"
PURPLE = "#b86a9c"
AMBER = "#e69f00"
SKY = "#56b4e9"
GREY = "#8a8f98"

# What tells lines apart beside their colours.
DASHES = ("solid", "dash", "dashdot", "longdash")
SYMBOLS = ("circle", "square", "triangle-up", "diamond", "x", "triangle-down", "cross", "star")

_GRID = "rgba(138, 143, 152, 0.25)"
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_POINTS_WITH_MARKERS = 40

Trace = Mapping[str, Any]
"""Points or lines, with the attributes that plotly.js gives them."""
Layout = Mapping[str, Any]
"""Axes, legend and margins of a figure, likewise."""


@dataclass(frozen=True)
class Drawing:
    """What plotly.js draws, and what the page writes around it.

    `y_title`, what the vertical axis measures, stands above the plot, since words along the axis
    are cut where the plot is lower than they are long. `has_legend` says that the names of the
    lines are needed to tell what is drawn.
    """

    data: Sequence[Trace]
    layout: Layout
    y_title: str = ""
    has_legend: bool = True


def scatter(**attributes: Any) -> Trace:
    """Points or lines, by the attributes of plotly.js."""
    return {"type": "scatter", **attributes}


def changed(layout: Layout, **attributes: Any) -> Layout:
    """A layout with some attributes changed; those inside of others are changed one by one."""
    inner = {
        name: changed(layout[name], **value)
        for name, value in attributes.items()
        if isinstance(value, Mapping) and isinstance(layout.get(name), Mapping)
    }
    return {**layout, **attributes, **inner}


@dataclass(frozen=True)
class Chart(Block):
    """A chart and the words around it.

    `key` is its name in the page's markup: letters and hyphens. The caption is one sentence that
    tells how to read the figure, and `absent` is said where there is nothing to draw. The height is
    in CSS pixels.
    """

    key: str
    title: str
    caption: str
    figure: Drawing | None
    absent: str
    height: int = 340


@dataclass(frozen=True)
class Series:
    """One line of a chart: a value for each x, `None` where there is none.

    Without a `dash` of its own it gets one by its place, so that colour is not its only mark.
    """

    name: str
    values: Sequence[float | None]
    colour: str
    dash: str = ""
    hover: str = ".3g"


@dataclass(frozen=True)
class Axis:
    """One axis: its title, `linear` or `log`, and how plotly formats its ticks."""

    title: str
    scale: str = "linear"
    ticks: str = ""
    suffix: str = ""
    settings: dict[str, object] = field(default_factory=dict)


def base_layout(x: Axis, y: Axis) -> Layout:
    """Give the layout that all charts share: no background and a thin grid.

    The legend and the title of the vertical axis are words of the page: see `Drawing`.
    """
    return {
        "autosize": True,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": _FONT, "size": 12},
        "margin": {"l": 48, "r": 12, "t": 10, "b": 46},
        "hovermode": "x unified",
        "showlegend": False,
        "xaxis": _axis(x),
        "yaxis": _axis(replace(y, title="")),
    }


def _axis(axis: Axis) -> dict[str, object]:
    shared: dict[str, object] = {
        "title": {"text": axis.title, "font": {"size": 12}, "standoff": 8},
        "type": axis.scale,
        "gridcolor": _GRID,
        "linecolor": _GRID,
        "zeroline": False,
        "tickfont": {"size": 11},
        "nticks": 6,
        # without a format, a logarithmic axis labels 0.2 as "2"
        "tickformat": axis.ticks or ("~g" if axis.scale == "log" else ""),
        "ticksuffix": axis.suffix,
        "automargin": True,
    }
    return {**shared, **axis.settings}


def line_figure(
    xs: Sequence[float | None], x: Axis, y: Axis, series: Sequence[Series]
) -> Drawing | None:
    """Draw lines over `xs`; give `None` where no line has a point that can be shown.

    On a logarithmic axis, zero and negative values cannot be shown and leave a gap.
    """
    shown = [_shown_on(y, line) for line in series]
    drawn = [
        line
        for line in shown
        if any(a is not None and b is not None for a, b in zip(xs, line.values, strict=True))
    ]
    if not drawn:
        return None
    mode = "lines+markers" if len(xs) <= _POINTS_WITH_MARKERS else "lines"
    traces = [
        scatter(
            x=list(xs),
            y=list(line.values),
            name=line.name,
            mode=mode,
            line={
                "color": line.colour,
                "dash": line.dash or DASHES[place % len(DASHES)],
                "width": 2,
            },
            marker={"color": line.colour, "symbol": SYMBOLS[place % len(SYMBOLS)], "size": 6},
            hovertemplate=f"%{{y:{line.hover}}}",
        )
        for place, line in enumerate(drawn)
    ]
    # the title of the axis names a single line
    return Drawing(traces, base_layout(x, y), y.title, has_legend=len(series) > 1)


def _shown_on(axis: Axis, line: Series) -> Series:
    if axis.scale != "log":
        return line
    positive = [value if value is not None and value > 0 else None for value in line.values]
    return replace(line, values=positive)


def has_wide_range(values: Sequence[float | None]) -> bool:
    """Say whether the positive values span so much that only a logarithmic axis shows them."""
    positive = [value for value in values if value is not None and value > 0]
    return bool(positive) and max(positive) > 50 * min(positive)
