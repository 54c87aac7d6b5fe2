"""The legend of a chart, as words and small drawings of the page.

A legend that plotly.js draws is a box that scrolls where it has no room; this one wraps, is read
aloud, and is printed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tacit.report.charts import Drawing, Trace

# As the attribute `stroke-dasharray` of SVG has them, in CSS pixels.
DASH_LENGTHS: Mapping[str, str] = {
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


@dataclass(frozen=True)
class Key:
    """What an entry of the legend shows, and the places of the `traces` that it hides and shows.

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

    A trace without one, such as the band of a line, goes with that of its group.
    """
    shown = [place for place, trace in enumerate(drawing.data) if trace.get("showlegend", True)]
    hidden = {
        place: trace["legendgroup"]
        for place, trace in enumerate(drawing.data)
        if place not in shown and "legendgroup" in trace
    }
    made = []
    for place in shown if drawing.has_legend else ():
        trace = drawing.data[place]
        group = trace.get("legendgroup")
        made.append(_key(trace, (place, *(at for at, its in hidden.items() if its == group))))
    return tuple(made)


def _key(trace: Trace, places: tuple[int, ...]) -> Key:
    line, marker = trace.get("line", {}), trace.get("marker", {})
    symbol, is_open, _ = str(marker.get("symbol", "circle")).partition("-open")
    mode = trace.get("mode", "lines+markers")
    return Key(
        name=str(trace["name"]),
        traces=places,
        colour=str(marker.get("color", line.get("color", "currentColor"))),
        dashes=DASH_LENGTHS[str(line.get("dash", "solid"))] if "lines" in mode else "",
        outline=_OUTLINES[symbol] if "markers" in mode else "",
        filled=not is_open,
    )
