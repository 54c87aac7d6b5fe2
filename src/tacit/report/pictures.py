"""Still pictures of figures and runs by matplotlib, for papers, slides and notebooks.

They draw the panels of the page. matplotlib is an extra, so this module is imported only when a
picture is drawn.
"""
# ruff: noqa: E402

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any, Literal

from tacit.errors import optional

optional("matplotlib")
from matplotlib import style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.figure import Figure, SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, NullFormatter

from tacit.report.compare_panels import AXIS_TITLES, Curve, Panel, compared
from tacit.report.wording import bytes_text

_WIDTH, _HEIGHT = 5.2, 3.1  # of a panel without its legend, inches
_MARGIN = 0.08  # inches, around each part
_LEGEND_ROW = 0.18  # inches
_LEGEND_LETTERS = 66  # that fit beside each other at the width of a panel
_LABEL_LETTERS = 36  # that fit beside a panel, from its foot to its head
_KEY_LETTERS = 8  # as wide as the line beside a name in a legend
_NOTE_LETTERS = 86  # of the note, at the width of a panel
_DPI = 200
_MOST_SYMBOLS = 8  # on one line
_INK, _QUIET, _GRID = "#1b2027", "#5c6572", "#dde1e6"
_DASHES: Mapping[str, Any] = {"solid": "-", "dash": "--", "dashdot": "-.", "longdash": (0, (8, 3))}
_MARKERS: Mapping[str, str] = {
    "circle": "o",
    "square": "s",
    "triangle-up": "^",
    "diamond": "D",
    "x": "x",
    "triangle-down": "v",
    "cross": "+",
    "star": "*",
}
_STYLE: Mapping[str, Any] = {
    # Words stay words: they can be searched, read aloud and edited. DejaVu Sans, in which they
    # are measured, is a wide face, so that what a reader has in its place takes no more room.
    "svg.fonttype": "none",
    "svg.hashsalt": "tacit",
    "pdf.fonttype": 42,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Segoe UI", "Helvetica Neue", "Arial"],
    "font.size": 8.5,
    "text.color": _INK,
    "text.parse_math": False,  # a dollar in a name is a dollar
    "axes.edgecolor": _QUIET,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.formatter.useoffset": False,
    "grid.color": _GRID,
    "xtick.color": _QUIET,
    "ytick.color": _QUIET,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
}


def picture(title: str, panels: Sequence[Panel], note: str = "") -> Figure:
    """Draw panels, two in a row, each with its legend, on white.

    The same panels give the same picture, whatever the settings of matplotlib on the machine. At
    least one is needed; those without a curve are left out where another has one. `note` is below
    the panels.
    """
    panels = [panel for panel in panels if panel.curves] or panels
    columns = min(2, len(panels))
    rows = [panels[at : at + columns] for at in range(0, len(panels), columns)]
    heights = [_HEIGHT + _LEGEND_ROW * max(map(_legend_rows, row)) for row in rows]
    with style.context(["default", dict(_STYLE)]):
        layout = ConstrainedLayoutEngine(w_pad=_MARGIN, h_pad=_MARGIN)
        figure = Figure(figsize=(_WIDTH * columns, sum(heights) + 0.6), layout=layout)
        figure.suptitle(title, x=0.01, ha="left", size=11, weight="bold")
        if note:
            note = textwrap.fill(note, _NOTE_LETTERS * columns)
            figure.supxlabel(note, x=0.01, ha="left", size=8.5, color=_QUIET)
        grid = figure.subfigures(len(rows), columns, squeeze=False, height_ratios=heights)
        for cell, panel in zip(grid.flat, panels, strict=False):
            _draw(cell, panel)
    return figure


def written(figure: Figure, title: str, kind: Literal["svg", "pdf", "png"]) -> bytes:
    """A picture as a file, in which no date stands; the title is also for who cannot see it."""
    drawn = BytesIO()
    dated = {"svg": ("Creator", "Date", "Format", "Type"), "pdf": ("CreationDate",), "png": ()}
    with style.context(["default", dict(_STYLE)]), warnings.catch_warnings():
        # A letter that DejaVu Sans lacks is measured as a box, and drawn by whoever shows the text.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(
            drawn, format=kind, dpi=_DPI, metadata={"Title": title, **dict.fromkeys(dated[kind])}
        )
    return drawn.getvalue()


def svg_picture(title: str, panels: Sequence[Panel], note: str = "") -> str:
    """Panels as SVG; see `picture`."""
    return written(picture(title, panels, note), title, "svg").decode()


def _draw(figure: SubFigure, panel: Panel) -> None:
    if panel.title:
        figure.suptitle(panel.title, size=9.5, weight="bold")
    axes = figure.subplots()
    if not panel.curves:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "There is nothing to draw.", ha="center", color=_QUIET)
        return
    _prepare_axes(axes, panel)
    lines: list[Artist] = []  # in the order of their labels
    for place, curve in enumerate(panel.curves):
        if len(curve.low) > 1:
            axes.fill_between(
                curve.x, curve.low, curve.high, color=curve.colour, alpha=0.16, linewidth=0
            )
        every = math.ceil(len(curve.x) / _MOST_SYMBOLS)
        (line,) = axes.plot(
            curve.x,
            curve.y,
            color=curve.colour,
            linestyle=_DASHES[curve.dash],
            marker=_MARKERS[curve.symbol],
            markevery=(place % every, every),  # symbols of lines that lie together stand apart
        )
        lines.append(line)
    for curve in panel.curves:
        for published in _published(curve, panel):
            ends = (min(curve.x), max(curve.x))
            (line,) = axes.plot(
                ends, (published, published), color=curve.colour, linestyle=":", linewidth=1.3
            )
            lines.append(line)
    figure.legend(
        lines,
        _legend_labels(panel),
        loc="outside lower center",
        ncols=_legend_columns(panel),
        frameon=False,
    )


def _prepare_axes(axes: Axes, panel: Panel) -> None:
    axes.set_axisbelow(True)
    axes.set_xlabel(AXIS_TITLES[panel.axis])
    axes.set_ylabel(textwrap.fill(panel.y_title, _LABEL_LETTERS))
    if panel.log_x:
        axes.set_xscale("log")
        _write_plainly(axes.xaxis)
    if panel.log_y:
        axes.set_yscale("log")
        _write_plainly(axes.yaxis)
    if panel.axis == "budget":
        axes.set_xticks(sorted({float(f"{x:.2g}") for curve in panel.curves for x in curve.x}))
    if not panel.log_x:
        axes.locator_params(axis="x", nbins=6)
    if panel.axis == "bytes":
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: bytes_text(value)))
    if compared(panel.measure).percent:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %"))


def _write_plainly(axis: XAxis | YAxis) -> None:
    """Numbers of a logarithmic axis in plain digits; as formulas, which nobody sets, else."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axis.set_minor_formatter(NullFormatter())


def _published(curve: Curve, panel: Panel) -> tuple[float, ...]:
    """The printed figure of a curve, if there is one that the axis can show."""
    value = curve.published
    return () if value is None or (panel.log_y and value <= 0) else (value,)


def _legend_columns(panel: Panel) -> int:
    longest = max(map(len, _legend_labels(panel)))
    return max(1, _LEGEND_LETTERS // (longest + _KEY_LETTERS))


def _legend_rows(panel: Panel) -> int:
    labels = _legend_labels(panel)
    return math.ceil(len(labels) / _legend_columns(panel)) if labels else 0


def _legend_labels(panel: Panel) -> list[str]:
    curves = panel.curves
    named = [f"{own.name} ({own.budget})" if own.budget else own.name for own in curves]
    return [*named, *(f"{own.name}, published" for own in curves if _published(own, panel))]
