"""Figures with their goals, and how they are printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """One figure of the table.

    Attributes:
        row: the workload or benchmark that it belongs to.
        name: what was measured.
        value: the figure.
        unit: of the figure; empty for a ratio.
        at_least: the goal, where more is better.
        at_most: the goal, where less is better.
        detail: what a reader should know of it.
    """

    row: str
    name: str
    value: float
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None
    detail: str = ""

    @property
    def goal(self) -> str:
        """As the table shows it; empty where there is none."""
        if self.at_least is not None:
            return f">= {number(self.at_least)}"
        return "" if self.at_most is None else f"<= {number(self.at_most)}"

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None where there is none. What is no number meets no goal."""
        if self.at_least is not None:
            return self.value >= self.at_least
        return None if self.at_most is None else self.value <= self.at_most

    def cells(self, *, judged: bool = True) -> list[str]:
        """For `formatted`; `judged` says whether the goal is met."""
        verdict = {True: "yes", False: "NO", None: ""}[self.met if judged else None]
        value = f"{number(self.value)} {self.unit}".rstrip()
        return [self.row, self.name, value, self.goal, verdict, self.detail]


def number(value: float) -> str:
    """Three digits, without an exponent where that is readable."""
    if value and 1e-4 <= abs(value) < 1e7:
        digits = max(0, 2 - int(f"{value:e}".partition("e")[2]))
        return f"{value:,.{digits}f}"
    return f"{value:.3g}"


def formatted(
    headers: Sequence[str], rows: Sequence[Sequence[str]], widest: int | None = None
) -> str:
    """A plain-text table, columns as wide as they must be; nothing repeats in the first column.

    A last cell of more than `widest` characters is numbered, and follows below the table.
    """
    lines, below, above = [list(headers)], [], ""
    for row in rows:
        *cells, last = ["" if row[0] == above else row[0], *row[1:]]
        if widest is not None and len(last) > widest:
            below.append(f"[{len(below) + 1}] {last}")
            last = f"[{len(below)}]"
        lines.append([*cells, last])
        above = row[0]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    table = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([*table, *([""] if below else []), *below])
