"""The page of claims: what the papers claim against what is certified, as one self-contained file.

Reads the document of `tacit privacy claims --json` and nothing else.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from tacit.report.charts import (
    AMBER,
    BLUE,
    RED,
    Axis,
    Chart,
    Drawing,
    base_layout,
    changed,
    scatter,
)
from tacit.report.protection import MOST_SHOWN, SIZE_NOTE, epsilon_words, size_note
from tacit.report.rendering import Table, Tile, render
from tacit.report.wording import NOTHING, epsilon_text, lower_text, number_text, range_text

Row = Mapping[str, Any]

COLUMNS = (
    "experiment",
    "reading",
    "delta",
    "noise multiplier",
    "claimed",
    "certified",
    "at least",
    "verdict",
    "violated",
)
_SERIES = (
    ("claimed", "claimed by the paper", AMBER, "diamond-open"),
    ("certified", "certified: never more", BLUE, "triangle-down"),
    ("lower", "proved: at least", RED, "triangle-up"),
)
_EDGE = 5 * MOST_SHOWN  # where a larger epsilon is drawn
_ROW_HEIGHT = 22  # CSS pixels of a chart


def claims_page(document: Mapping[str, Any]) -> str:
    """Give the page of a claims document as HTML.

    Args:
        document: as `tacit.analysis.claims.claims_document` makes it.
    """
    groups = groupby(document["rows"], key=lambda row: (row["paper"], row["algorithm"]))
    verdicts = Counter(row["verdict"] for row in document["rows"])
    return render(
        "claims",
        title="Claimed and certified epsilon",
        source=str(document["source"]),
        verdicts=[Tile(verdict, str(count)) for verdict, count in verdicts.items()],
        groups=[
            _group(place, algorithm, paper, list(rows))
            for place, ((paper, algorithm), rows) in enumerate(groups)
        ],
    )


def bound_cells(row: Row) -> tuple[str, ...]:
    """Claimed (to the nearest), certified (rounded up) and proved lower epsilon (rounded down).

    Those beyond all meaning are not written as numbers.
    """
    claimed = "infinite" if row["claimed_infinite"] else number_text(row["claimed"])
    if row["claimed"] is None and not row["claimed_infinite"]:
        claimed = "no claim"
    certified = "infinite" if row["certified_infinite"] else epsilon_text(row["certified"])
    cells = claimed, certified, lower_text(row["lower"] or None)
    return tuple(
        cell if row[key] is None or row[key] <= MOST_SHOWN else epsilon_words(row[key])
        for key, cell in zip(("claimed", "certified", "lower"), cells, strict=True)
    )


def noise_text(row: Row) -> str:
    """Write the noise multiplier: one number, or first and last."""
    if row["noise_multiplier"] is None:
        return NOTHING
    first, last = row["noise_multiplier"]
    return range_text(first, last)


def violated_numbers(row: Row) -> str:
    """List the numbers, from 1, of the conditions that the row violates."""
    numbers = [
        str(number)
        for number, condition in enumerate(row["conditions"], start=1)
        if not condition["holds"]
    ]
    return ", ".join(numbers) or NOTHING


def violations(rows: Sequence[Row]) -> list[tuple[int, str]]:
    """Each condition that some row violates: its number, and its text in the first such row."""
    texts: dict[int, str] = {}
    for row in rows:
        for number, condition in enumerate(row["conditions"], start=1):
            if not condition["holds"]:
                texts.setdefault(number, str(condition["text"]))
    return sorted(texts.items())


def _group(place: int, algorithm: str, paper: str, rows: Sequence[Row]) -> dict[str, object]:
    """What the page shows of one algorithm of one paper."""
    cells = [(str(number), *claim_cells(row)) for number, row in enumerate(rows, start=1)]
    unmet = [number for number, row in enumerate(rows) if row["verdict"] == "does not hold"]
    return {
        "algorithm": algorithm,
        "paper": paper,
        "chart": _chart(place, algorithm, rows),
        "table": Table(
            ("row", *COLUMNS),
            cells,
            left=("experiment", "reading", "verdict"),
            over={(number, "verdict") for number in unmet},
            note=size_note(cells),
        ),
        "violations": violations(rows),
    }


def reading_of(row: Row) -> str:
    """How the formula was read, or what a claim lacks."""
    return str(row["missing"] or row["reading"])


def claim_cells(row: Row) -> tuple[str, ...]:
    """A row of the table: one cell for each of `COLUMNS`."""
    return (
        row["experiment"],
        reading_of(row),
        NOTHING if row["delta"] is None else number_text(row["delta"]),
        noise_text(row),
        *bound_cells(row),
        row["verdict"],
        violated_numbers(row),
    )


def _chart(place: int, algorithm: str, rows: Sequence[Row]) -> Chart:
    """Claimed, certified and proved epsilon of the rows that have any, on a logarithmic axis."""
    numbered = list(enumerate(rows, start=1))
    drawn = [pair for pair in numbered if any(_positive(pair[1][key]) for key, *_ in _SERIES)]
    shown = [row for _, row in drawn]
    figure = None
    if shown:
        numbers = [str(number) for number, _ in drawn]
        labels = [f"{number}: {row['experiment']}" for number, row in drawn]
        traces = [
            scatter(
                x=[_place(row[key]) for row in shown],
                y=numbers,
                customdata=[
                    f"{number_text(row[key])} ({label})"
                    for row, label in zip(shown, labels, strict=True)
                ],
                name=name,
                mode="markers",
                marker={"color": colour, "symbol": symbol, "size": 10},
                hovertemplate="%{customdata}",
            )
            for key, name, colour, symbol in _SERIES
            if any(_positive(row[key]) for row in shown)
        ]
        settings: dict[str, object] = {
            "autorange": "reversed",
            "type": "category",
            "tickmode": "array",
            "tickvals": numbers,
            "ticktext": labels,
        }
        layout = base_layout(
            Axis("epsilon", "log", settings=_ticks(shown)), Axis("", settings=settings)
        )
        layout = changed(layout, hovermode="closest")
        figure = Drawing(traces, layout)
    return Chart(
        key=f"claims-{place}",
        title=f"{algorithm}: claimed, certified and proved epsilon",
        caption="A claim left of what is proved (upward triangle) is too small; one right of what "
        f"is certified (downward triangle) holds.{_edge_note(shown)}",
        figure=figure,
        absent="There is nothing to draw: no noise is determined by what is printed.",
        height=70 + _ROW_HEIGHT * len(shown),
    )


def _place(value: float | None) -> float | None:
    """Where an epsilon is drawn; what is beyond all meaning stands at the edge."""
    if value is None or value <= 0:
        return None
    return value if value <= MOST_SHOWN else _EDGE


def _edge_note(rows: Sequence[Row]) -> str:
    if not any(_place(row[key]) == _EDGE for row in rows for key, *_ in _SERIES):
        return ""
    return f" {SIZE_NOTE}, and stands at the right edge; the verdict in the table compares them."


def _ticks(rows: Sequence[Row]) -> dict[str, object]:
    """Powers of ten that the rows span, and words for the edge where it is used."""
    places = [place for row in rows for key, *_ in _SERIES if (place := _place(row[key]))]
    powers = range(math.floor(math.log10(min(places))), math.ceil(math.log10(max(places))) + 1)
    marks = {10.0**power: f"{10.0**power:,g}" for power in powers if 10.0**power <= MOST_SHOWN}
    if max(places) == _EDGE:
        marks[_EDGE] = "more"
    return {"tickmode": "array", "tickvals": list(marks), "ticktext": list(marks.values())}


def _positive(value: float | None) -> bool:
    return value is not None and value > 0
