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

# As the attribute `stroke-dasharray` of SVG has them, in CSS pixels.
_DASH_LENGTHS: Mapping[str, str] = {
    "solid": "none",
    "dash": "7 4",
    "dot": "2 3",
    "dashdot": "7 3 2 3",
    "longdash": "10 4",
}
# Paths of SVG around the middle of their symbol, in CSS pixels.
_OUTLINES: Mapping[str, str] = {
    "circle": "M-4,0A4,4 0 1,1 4,0A4,4 0 1,1 -4,0Z",
    "square": "M-3.6,-3.6H3.6V3.6H-3.6Z",
    "diamond": "M0,-5L5,0L0,5L-5,0Z",
    "triangle-up": "M-4.6,3.6H4.6L0,-4.6Z",
    "triangle-down": "M-4.6,-3.6H4.6L0,4.6Z",
    "x": "M-4,-2.4L-2.4,-4L0,-1.6L2.4,-4L4,-2.4L1.6,0L4,2.4L2.4,4L0,1.6L-2.4,4L-4,2.4L-1.6,0Z",
    "cross": "M-4.5,-1.5H-1.5V-4.5H1.5V-1.5H4.5V1.5H1.5V4.5H-1.5V1.5H-4.5Z",
    "star": "M0,-5.2L1.3,-1.7H5L2,0.6L3.1,4.2L0,2L-3.1,4.2L-2,0.6L-5,-1.7H-1.3Z",
    "line-ew": "M-6,0H6",
    "arrow": "M0,-4L7,0L0,4Z",
}

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


def base_layout(x: Axis, y: Axis, **changed: Any) -> Layout:
    """Give the layout that all charts share: no background and a thin grid.

    The legend and the title of the vertical axis are words of the page: see `Drawing`. Attributes
    that are `changed` are those of plotly.js.
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
        **changed,
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
    if y.scale == "log":
        series = [
            replace(line, values=[value if value and value > 0 else None for value in line.values])
            for line in series
        ]
    drawn = [
        line
        for line in series
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


def has_wide_range(values: Sequence[float | None]) -> bool:
    """Say whether the positive values span so much that only a logarithmic axis shows them."""
    positive = [value for value in values if value is not None and value > 0]
    return bool(positive) and max(positive) > 50 * min(positive)


@dataclass(frozen=True)
class Key:
    """An entry of the legend, which hides and shows the `traces` at these places.

    `dashes` are the lengths of dashes and gaps, empty where no line is drawn, and `outline` is the
    symbol as a path of SVG, empty where none is drawn, and perhaps not `filled`.
    """

    name: str
    traces: tuple[int, ...]
    colour: str
    dashes: str
    outline: str
    filled: bool


def keys(drawing: Drawing) -> tuple[Key, ...]:
    """Give the legend: an entry for each trace that has one, in their order.

    A trace without one, such as the band of a line, goes with that of its group. The page draws
    them: a legend of plotly.js is a box that scrolls where it has no room; this one wraps, is read
    aloud, and is printed.
    """
    shown: list[tuple[int, Trace]] = []
    groups: dict[str, list[int]] = {}
    for place, trace in enumerate(drawing.data if drawing.has_legend else ()):
        if trace.get("showlegend", True):
            shown.append((place, trace))
        elif "legendgroup" in trace:
            groups.setdefault(trace["legendgroup"], []).append(place)
    made = []
    for place, trace in shown:
        line, marker = trace.get("line", {}), trace.get("marker", {})
        symbol, is_open, _ = str(marker.get("symbol", "circle")).partition("-open")
        mode = trace.get("mode", "lines+markers")
        key = Key(
            name=str(trace["name"]),
            traces=(place, *groups.get(trace.get("legendgroup", ""), ())),
            colour=str(marker.get("color", line.get("color", "currentColor"))),
            dashes=_DASH_LENGTHS[str(line.get("dash", "solid"))] if "lines" in mode else "",
            outline=_OUTLINES[symbol] if "markers" in mode else "",
            filled=not is_open,
        )
        made.append(key)
    return tuple(made)
