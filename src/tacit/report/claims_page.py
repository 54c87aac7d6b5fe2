"""What is said of claims: what the papers claim against what is certified.

Reads the document of `tacit privacy claims --json` and nothing else.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
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
    scatter,
)
from tacit.report.protection import MOST_SHOWN, SIZE_NOTE, epsilon_words, lower_words, size_note
from tacit.report.view import Block, Heading, Items, Table, Text, Tile, Tiles, Titled, folded, part
from tacit.report.wording import NOTHING, number_text, range_text

Row = Mapping[str, Any]

_HOW_TO_READ = (
    "Certified epsilon is proved for every loss and data set of the mechanism and rounded up. “At "
    "least” is proved on an explicit instance and rounded down. A claim “does not hold” where that "
    "lower bound lies above it, “holds” where the certified figure does not, and is “not shown” in "
    "between. Of one experiment the reading most favourable to the paper comes first."
)
_SERIES = (
    ("claimed", "claimed by the paper", AMBER, "diamond-open"),
    ("certified", "certified: never more", BLUE, "triangle-down"),
    ("lower", "proved: at least", RED, "triangle-up"),
)
_EDGE = 5 * MOST_SHOWN  # where a larger epsilon is drawn
_ROW_HEIGHT = 22  # CSS pixels of a chart


def claims_blocks(document: Mapping[str, Any]) -> list[Block]:
    """What is said of a claims document: a section for each algorithm of a paper."""
    groups = groupby(document["rows"], key=lambda row: (row["paper"], row["algorithm"]))
    verdicts = Counter(row["verdict"] for row in document["rows"])
    return [
        Heading("tacit privacy claims", "Claimed and certified epsilon", document["source"]),
        Text(_HOW_TO_READ, only="page"),
        Text(
            "certified: an upper bound that is proved; at least: a lower bound that is proved; "
            "violated: numbers of the conditions below each table",
            only="terminal",
        ),
        Tiles([Tile(verdict, str(count)) for verdict, count in verdicts.items()]),
        *(
            Titled(algorithm, _group(place, algorithm, paper, list(rows)))
            for place, ((paper, algorithm), rows) in enumerate(groups)
        ),
    ]


def violations(rows: Sequence[Row]) -> list[tuple[int, str]]:
    """Each condition that some row violates: its number, and its text in the first such row."""
    texts: dict[int, str] = {}
    for row in rows:
        for number, condition in enumerate(row["conditions"], start=1):
            if not condition["holds"]:
                texts.setdefault(number, str(condition["text"]))
    return sorted(texts.items())


def _group(place: int, algorithm: str, paper: str, rows: Sequence[Row]) -> list[Block]:
    told = [{"row": str(number), **claim_cells(row)} for number, row in enumerate(rows, start=1)]
    cells = [tuple(row.values()) for row in told]
    unmet = [number for number, row in enumerate(rows) if row["verdict"] == "does not hold"]
    readings = {_reading(row) for row in rows}
    table = Table(
        tuple(told[0]),
        cells,
        title=f"{algorithm}  ({paper})",
        left=("experiment", "reading", "verdict"),
        over={(number, "verdict") for number in unmet},
        note=size_note(cells),
        page_only=("row", "reading") if len(readings) == 1 else ("row",),
    )
    violated = [f"{number}: {text}" for number, text in violations(rows)]
    return [
        Text(paper, only="page"),
        _chart(place, algorithm, rows),
        folded(f"{len(rows)} rows", table, rows=len(rows)),
        *(Text(f"  reading: {text}", only="terminal") for text in readings if len(readings) == 1),
        *([part([Items(violated, lead="  ")], "Violated conditions")] if violated else []),
    ]


def claim_cells(row: Row) -> dict[str, str]:
    """A row of the table, by the names of its columns.

    Claimed epsilon is rounded to the nearest, certified up, and what is proved at least down. Those
    beyond all meaning are not written as numbers. Violated conditions are numbered from 1.
    """
    claimed, noise = row["claimed"], row["noise_multiplier"]
    claim = "infinite" if row["claimed_infinite"] else "no claim"
    if claimed is not None:
        claim = number_text(claimed) if claimed <= MOST_SHOWN else epsilon_words(claimed)
    return {
        "experiment": row["experiment"],
        "reading": _reading(row),
        "delta": number_text(row["delta"]),
        "noise multiplier": NOTHING if noise is None else range_text(*noise),
        "claimed": claim,
        "certified": "infinite" if row["certified_infinite"] else epsilon_words(row["certified"]),
        "at least": lower_words(row["lower"] or None),
        "verdict": row["verdict"],
        "violated": ", ".join(str(number) for number, _ in violations([row])) or NOTHING,
    }


def _reading(row: Row) -> str:
    """How the formula was read, or what a claim lacks."""
    return str(row["missing"] or row["reading"])


def _chart(place: int, algorithm: str, rows: Sequence[Row]) -> Chart:
    """Claimed, certified and proved epsilon of the rows that have any, on a logarithmic axis."""
    numbered = list(enumerate(rows, start=1))
    drawn = [pair for pair in numbered if any(_place(pair[1][key]) for key, *_ in _SERIES)]
    shown = [row for _, row in drawn]
    places = {key: [_place(row[key]) for row in shown] for key, *_ in _SERIES}
    known = {place for own in places.values() for place in own if place is not None}
    edge = f" {SIZE_NOTE}, and stands at the right edge; the verdict in the table compares them."
    figure = None
    if shown:
        numbers = [str(number) for number, _ in drawn]
        labels = [f"{number}: {row['experiment']}" for number, row in drawn]
        traces = [
            scatter(
                x=places[key],
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
            if any(places[key])
        ]
        ticks = {"tickmode": "array", "tickvals": numbers, "ticktext": labels}
        y = Axis("", settings={"autorange": "reversed", "type": "category", **ticks})
        x = Axis("epsilon", "log", settings=_ticks(known))
        figure = Drawing(traces, base_layout(x, y, hovermode="closest"))
    return Chart(
        key=f"claims-{place}",
        title=f"{algorithm}: claimed, certified and proved epsilon",
        caption="A claim left of what is proved (upward triangle) is too small; one right of what "
        f"is certified (downward triangle) holds.{edge if _EDGE in known else ''}",
        figure=figure,
        absent="There is nothing to draw: no noise is determined by what is printed.",
        height=70 + _ROW_HEIGHT * len(shown),
    )


def _place(value: float | None) -> float | None:
    """Where an epsilon is drawn; what is beyond all meaning stands at the edge."""
    if value is None or value <= 0:
        return None
    return value if value <= MOST_SHOWN else _EDGE


def _ticks(places: Collection[float]) -> dict[str, object]:
    """Powers of ten that they span, and words for the edge where it is used."""
    powers = range(math.floor(math.log10(min(places))), math.ceil(math.log10(max(places))) + 1)
    marks = {10.0**power: f"{10.0**power:,g}" for power in powers if 10.0**power <= MOST_SHOWN}
    if _EDGE in places:
        marks[_EDGE] = "more"
    return {"tickmode": "array", "tickvals": list(marks), "ticktext": list(marks.values())}
