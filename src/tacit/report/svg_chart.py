"""Panels as a still picture: SVG that needs no scripts, for pages that can only embed images."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from tacit.report.compare_panels import AXIS_TITLES, MEASURE_TITLES, Curve, Panel
from tacit.report.wording import bytes_text

__all__ = ["svg_picture", "ticks"]

_WIDTH, _HEIGHT = 520, 306  # of a panel's plot with its axes, CSS pixels
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 18, 50, 46
_ROW = 19  # of a legend
_LETTER = 7.2  # of one at 12 px, rather wide
_INK, _QUIET, _GRID = "#1b2027", "#5c6572", "#dde1e6"
_DASHES = {"solid": "", "dash": "7 4", "dashdot": "8 3 2 3", "longdash": "13 5"}
_DOTTED = "2 4"
_MARKED = 40  # curves with at most so many points get a dot at each


@dataclass(frozen=True)
class _Scale:
    """From a value to a pixel."""

    low: float
    high: float
    first: float
    last: float
    log: bool

    def __call__(self, value: float) -> float:
        low, high, at = (
            (map(math.log10, (self.low, self.high, value)))
            if self.log
            else (
                self.low,
                self.high,
                value,
            )
        )
        return self.first + (at - low) / (high - low) * (self.last - self.first)


def svg_picture(title: str, panels: Sequence[Panel], note: str = "") -> str:
    """Draw panels, two in a row, each with its legend, on white.

    Args:
        title: of the picture, for those who cannot see it, and above it.
        panels: at least one.
        note: a line below them.
    """
    columns = min(2, len(panels))
    heights = [_HEIGHT + _legend_height(panel) for panel in panels]
    rows = [max(heights[at : at + columns]) for at in range(0, len(panels), columns)]
    width, head = _WIDTH * columns, 34
    parts = [
        _text(14, 22, title, size=15, weight="600"),
    ]
    for place, panel in enumerate(panels):
        row, column = divmod(place, columns)
        top = head + sum(rows[:row])
        parts.append(f'<g transform="translate({column * _WIDTH} {top})">{_panel(panel)}</g>')
    height = head + sum(rows) + 8
    if note:
        height += _ROW
        parts.append(_text(14, height - 10, note, _QUIET))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" font-family="system-ui, -apple-system, '
        "'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif\">"
        f"<title>{escape(title)}</title>"
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>' + "\n".join(parts) + "</svg>\n"
    )


def ticks(low: float, high: float, log: bool = False, most: int = 6) -> list[float]:
    """Round values within [low, high], at most about `most` of them, in rising order."""
    if log:
        first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
        powers = range(first, last + 1)
        if len(powers) >= 2:
            return [10.0**power for power in powers][:: math.ceil(len(powers) / most)]
        return [
            value
            for power in range(first - 1, last + 1)
            for factor in (1, 2, 5)
            if low <= (value := factor * 10.0**power) <= high
        ]
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [turn * step for turn in range(first, last + 1)]


def _panel(panel: Panel) -> str:
    parts = [_text(14, 18, panel.title, size=13, weight="600")] if panel.title else []
    if not panel.curves:
        middle = _HEIGHT / 2
        return "".join([*parts, _text(_LEFT, middle, "There is nothing to draw.", _QUIET)])
    x = _x_scale(panel)
    y = _y_scale(panel)
    parts += [_axes(panel, x, y)]
    parts += [_band(curve, x, y) for curve in panel.curves if len(curve.low) > 1]
    parts += [_published(curve, x, y) for curve in panel.curves if curve.published is not None]
    parts += [_line(curve, x, y) for curve in panel.curves]
    parts.append(_legend(panel))
    return "\n".join(parts)


def _x_scale(panel: Panel) -> _Scale:
    values = [value for curve in panel.curves for value in curve.x]
    low, high = min(values), max(values)
    if high == low:
        low, high = (low / 2, high * 2) if panel.log_x else (low - 1, high + 1)
    return _Scale(low, high, _LEFT, _WIDTH - _RIGHT, panel.log_x)


def _y_scale(panel: Panel) -> _Scale:
    values = [
        value
        for curve in panel.curves
        for part in (curve.y, curve.low, curve.high)
        for value in part
    ]
    printed = [one.published for one in panel.curves if one.published is not None]
    values += [one for one in printed if one > 0 or not panel.log_y]
    low, high = min(values), max(values)
    if panel.log_y:
        room = (high / low) ** 0.04 if high > low else 2.0
        low, high = low / room, high * room
    else:
        room = 0.04 * (high - low) or 0.05 * abs(high) or 1.0
        low, high = low - room, high + room
        if panel.measure == "test_accuracy":
            low, high = max(low, 0.0), min(high, 1.0)
    return _Scale(low, high, _HEIGHT - _BOTTOM, _TOP, panel.log_y)


def _axes(panel: Panel, x: _Scale, y: _Scale) -> str:
    x_text = _LABELS.get(panel.axis, _number)
    y_text = _LABELS.get(panel.measure, _number)
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = []
    for value in ticks(y.low, y.high, y.log):
        at = y(value)
        parts.append(_stroke(_LEFT, at, right, at, _GRID))
        parts.append(_text(_LEFT - 7, at + 4, y_text(value), _QUIET, size=11, anchor="end"))
    for value in ticks(x.low, x.high, x.log):
        at = x(value)
        parts.append(_stroke(at, _TOP, at, bottom, _GRID))
        parts.append(_text(at, bottom + 16, x_text(value), _QUIET, size=11, anchor="middle"))
    middle = (_LEFT + right) / 2
    parts.append(_text(middle, bottom + 35, AXIS_TITLES[panel.axis], anchor="middle"))
    parts.append(_text(_LEFT - 44, _TOP - 8, MEASURE_TITLES[panel.measure]))
    return "".join(parts)


def _line(curve: Curve, x: _Scale, y: _Scale) -> str:
    points = [(x(a), y(b)) for a, b in zip(curve.x, curve.y, strict=True)]
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    dash = f' stroke-dasharray="{_DASHES[curve.dash]}"' if _DASHES[curve.dash] else ""
    drawn = (
        f'<polyline points="{path}" fill="none" stroke="{curve.colour}" stroke-width="2" '
        f'stroke-linejoin="round"{dash}/>'
    )
    if len(points) > _MARKED:
        return drawn
    return drawn + "".join(
        f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.4" fill="{curve.colour}"/>' for a, b in points
    )


def _band(curve: Curve, x: _Scale, y: _Scale) -> str:
    edge = [*zip(curve.x, curve.high, strict=True)]
    edge += reversed([*zip(curve.x, curve.low, strict=True)])
    inside = [(x(a), y(min(max(b, y.low), y.high))) for a, b in edge]
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in inside)
    return f'<polygon points="{path}" fill="{curve.colour}" fill-opacity="0.16"/>'


def _published(curve: Curve, x: _Scale, y: _Scale) -> str:
    value = curve.published or 0.0
    if y.log and value <= 0:
        return ""
    at = y(min(max(value, y.low), y.high))
    return _stroke(x.first, at, x.last, at, curve.colour, width=1.6, dash=_DOTTED)


def _legend_items(panel: Panel) -> list[tuple[str, str, str, float]]:
    """Text, colour, dash and width of each entry."""
    items = [(one.name, one.colour, _DASHES[one.dash], 2.0) for one in panel.curves]
    return items + [
        (f"{one.name}, published", one.colour, _DOTTED, 1.6)
        for one in panel.curves
        if one.published is not None
    ]


def _legend_rows(panel: Panel) -> list[list[tuple[float, tuple[str, str, str, float]]]]:
    """The entries in rows, each with its place from the left."""
    rows: list[list[tuple[float, tuple[str, str, str, float]]]] = [[]]
    at = float(_LEFT)
    for item in _legend_items(panel):
        width = 42 + _LETTER * len(item[0])
        if rows[-1] and at + width > _WIDTH:
            rows.append([])
            at = float(_LEFT)
        rows[-1].append((at, item))
        at += width
    return rows


def _legend_height(panel: Panel) -> int:
    return _ROW * len(_legend_rows(panel)) + 12 if panel.curves else 0


def _legend(panel: Panel) -> str:
    parts = []
    for row, entries in enumerate(_legend_rows(panel)):
        middle = _HEIGHT + _ROW * row + 4
        for at, (name, colour, dash, width) in entries:
            parts.append(_stroke(at, middle, at + 22, middle, colour, width=width, dash=dash))
            parts.append(_text(at + 27, middle + 4, name))
    return "".join(parts)


def _stroke(
    x1: float, y1: float, x2: float, y2: float, colour: str, *, width: float = 1, dash: str = ""
) -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
        f'stroke-width="{width:g}"{dashed}/>'
    )


def _text(
    x: float,
    y: float,
    content: str,
    colour: str = _INK,
    *,
    size: int = 12,
    anchor: str = "start",
    weight: str = "400",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}" fill="{colour}">{escape(content)}</text>'
    )


def _number(value: float) -> str:
    return f"{0.0 if abs(value) < 1e-12 else value:.6g}"


def _percent(value: float) -> str:
    return f"{100 * value:.4g} %"


_LABELS: dict[str, Callable[[float], str]] = {"test_accuracy": _percent, "bytes": bytes_text}
