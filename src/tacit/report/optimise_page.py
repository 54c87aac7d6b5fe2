"""What is said of an optimised plan: the bound against the steps, with both optima, and tables.

Reads the document of `tacit plan FILE --optimise --json` and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tacit.privacy.published.privsgp import THEOREM
from tacit.report.charts import (
    AMBER,
    BLUE,
    GREEN,
    GREY,
    RED,
    Axis,
    Chart,
    Drawing,
    Trace,
    base_layout,
    scatter,
)
from tacit.report.view import (
    Banner,
    Block,
    Heading,
    Table,
    Text,
    Tile,
    Tiles,
    Titled,
    listed,
    sheet,
)
from tacit.report.wording import count_text, number_text

Row = Mapping[str, Any]

_STEPS = Axis("steps K", scale="log", settings={"dtick": 1})
_BOUND = Axis("bound", scale="log", settings={"dtick": "D2"})


def optimise_blocks(document: Mapping[str, Any]) -> list[Block]:
    """What is said of an optimised plan."""
    best, claim, now = document["certified"], document["published"], document["as_is"]
    claimed = f"K* = {number_text(claim['exact'])}; claimed bound {number_text(claim['bound'])}"
    warning, flags = document["warning"], " ".join(document["flags"])
    whole = f"{document['title']} on {document['dataset']}"
    private, constants = f"NOT PRIVATE: {warning}", _constants_table(document)
    return [
        Heading(
            "tacit plan --optimise", f"{whole}, {document['nodes']:,} nodes", _subtitle(document)
        ),
        *([Banner("bad", private)] if warning else []),
        *([Banner("good", "Certified optimum:", code=flags)] if flags else []),
        Tiles(
            [
                Tile("Certified optimum", count_text(best["steps"], "step"), _bound_note(best)),
                Tile("Published optimum", count_text(claim["steps"], "step"), claimed),
                Tile("As it stands", count_text(now["steps"], "step"), _bound_note(now)),
            ]
        ),
        Titled(
            "The bound",
            [_bound_chart(document), *_waste_charts(document), *_search_charts(document)],
            "charts",
        ),
        replace(constants, only="terminal"),
        *([Text(private, style="bold red", only="terminal")] if warning else []),
        sheet(_choices_table(whole, document), "The choices"),
        *(
            replace(
                _runs_table(
                    f"best of each {key}",
                    "batch",
                    [(str(run["batch"]), run) for run in runs],
                    *("clip", "steps", "noise_multiplier", "record_gradients"),
                ),
                only="terminal",
            )
            for key, runs in (("batch", document["batches"]), ("clip", document["clips"]))
            if runs
        ),
        sheet(_purchases_table(document["purchases"])),
        *listed("Advice", document["advice"], lead="advice: "),
        replace(sheet(constants), only="page"),
        *listed("What the bound does not know", document["not_modelled"], lead="note: "),
        *([Text(f"apply: {flags}", unbroken=True, only="terminal")] if flags else []),
    ]


def _subtitle(document: Row) -> str:
    budgets = [f"({epsilon:g}, {delta:g})" for epsilon, delta in document["budgets"]]
    shown = ", ".join(budgets[:4]) + (f" and {len(budgets) - 4} more" if len(budgets) > 4 else "")
    return f"budgets {shown}, {document['relation']}, {document['sampling']} sampling"


def _bound_note(choice: Row) -> str:
    bias = choice["clipping_bias"]
    added = "" if bias is None else f", clipping bias {number_text(bias)}"
    return f"bound {number_text(choice['bound'])}{added}"


def _bound_chart(document: Row) -> Chart:
    claim, best, now = document["published"], document["certified"], document["as_is"]
    # where batch or clip were chosen, the optimum lies off the file's own curve
    chosen = [f"{key} {best[key]}" for key in ("batch", "clip") if best[key] != now[key]]
    optimum = "certified optimum" + (f" ({', '.join(chosen)})" if chosen else "")
    traces = [
        _line("claimed noise, one record a step", document["claimed_curve"], AMBER, dash="dash"),
        _line("certified noise, the file's batch", document["curve"], BLUE),
        _point("published optimum", claim, AMBER, "diamond"),
        _point(optimum, best, BLUE, "star"),
        _point("as it stands", now, GREY, "circle"),
    ]
    if claim["certified"] is not None:
        name = "published steps, certified noise"
        traces.append(_point(name, claim["certified"], RED, "diamond-open"))
    return _chart(
        "bound",
        "Bound against the number of steps",
        f"The bound of the mean squared gradient norm ({THEOREM}): the claimed curve "
        "with the noise of its Theorem 2, the certified one with the noise that the budgets "
        "really need. Lower is better; its direction is to be trusted, not its size.",
        traces,
        _BOUND,
    )


def _waste_charts(document: Row) -> list[Chart]:
    """How much more noise than the least; nothing where it is the least at every step."""
    factors = [row["over_least_noise"] for row in (*document["curve"], document["as_is"])]
    if max((factor for factor in factors if factor is not None), default=1.0) < 1.01:
        return []
    return [
        _chart(
            "waste",
            "Accumulated noise over its least",
            "Noise in the average over nodes and steps, over the least that these budgets allow, "
            "which every record at every step attains: 1 wastes nothing. Above 1.5, larger batches "
            "are the first advice.",
            [
                _line("the file's batch", document["curve"], GREEN, key="over_least_noise"),
                _point("as it stands", document["as_is"], GREY, "circle", key="over_least_noise"),
            ],
            Axis("times the least", settings={"rangemode": "tozero"}),
        )
    ]


def _search_charts(document: Row) -> list[Chart]:
    """Where batch or clip were chosen: the best bound of each that was tried."""
    charts = []
    if document["batches"]:
        rows = sorted(document["batches"], key=lambda row: row["record_gradients"])
        labels = [f"batch {row['batch']}, {row['steps']:,} steps" for row in rows]
        costs = [row["record_gradients"] for row in rows]
        trace = {
            **_markers("best of each batch", costs, [row["bound"] for row in rows], labels),
            "mode": "markers+text",
            "textposition": "top center",
            "cliponaxis": False,
        }
        charts.append(
            _chart(
                "batches",
                "The best of each batch",
                "The smallest bound of each batch size, against the record gradients that a node "
                "computes for it: the cheapest within 5 % of the best is chosen.",
                [trace],
                _BOUND,
                Axis("record gradients a node", scale="log", settings=_padded(costs)),
            )
        )
    if document["clips"]:
        rows = document["clips"]
        clips = [row["clip"] for row in rows]
        labels = [f"{row['steps']:,} steps" for row in rows]
        total = [row["bound"] + row["clipping_bias"] for row in rows]
        traces = [
            _markers("bound and clipping bias", clips, total, labels),
            _line("bound alone", rows, AMBER, x="clip", dash="dash"),
        ]
        charts.append(
            _chart(
                "clips",
                "The best of each clipping bound",
                "Small bounds need little noise but bend the gradient: the squared mean excess of "
                "the gradient norms at the start is added. Norms later in training are not known.",
                traces,
                _BOUND,
                Axis("clipping bound C", scale="log", settings={"dtick": "D2"}),
            )
        )
    return charts


def _padded(values: Sequence[float]) -> dict[str, object]:
    """Settings of a logarithmic axis that leave room for the labels of the outermost points."""
    low, high = math.log10(min(values)), math.log10(max(values))
    room = 0.25 * (high - low) + 0.1
    # 1, 2, 5, 10, ... where there are few of them; else they run into each other on a telephone
    marks = "D2" if high - low + 2 * room < 1.5 else 1
    return {"dtick": marks, "range": [low - room, high + room]}


def _chart(
    key: str, title: str, caption: str, traces: Sequence[Trace], y: Axis, x: Axis = _STEPS
) -> Chart:
    layout = base_layout(x, y, hovermode="closest")
    return Chart(key, title, caption, Drawing(traces, layout, y.title, len(traces) > 1), "")


def _line(
    name: str,
    rows: Sequence[Row],
    colour: str,
    *,
    x: str = "steps",
    key: str = "bound",
    dash: str = "solid",
) -> Trace:
    return scatter(
        x=[row[x] for row in rows],
        y=[row[key] for row in rows],
        name=name,
        mode="lines+markers" if dash == "solid" else "lines",
        line={"color": colour, "dash": dash, "width": 2},
        marker={"color": colour, "size": 5},
        hovertemplate="%{x:,}: %{y:.3g}",
    )


def _point(name: str, row: Row, colour: str, symbol: str, *, key: str = "bound") -> Trace:
    return scatter(
        x=[row["steps"]],
        y=[row[key]],
        name=name,
        mode="markers",
        marker={"color": colour, "symbol": symbol, "size": 13, "line": {"width": 1.5}},
        hovertemplate="%{x:,} steps: %{y:.3g}",
    )


def _markers(name: str, xs: Sequence[float], ys: Sequence[float], labels: Sequence[str]) -> Trace:
    return scatter(
        x=xs,
        y=ys,
        text=labels,
        name=name,
        mode="lines+markers",
        line={"color": BLUE, "width": 1.5},
        marker={"color": BLUE, "size": 9},
        hovertemplate="%{text}: %{y:.3g}",
    )


def _constants_table(document: Row) -> Table:
    rows = [
        (
            row["name"],
            number_text(row["value"]),
            row["kind"] if row["private"] else "PRIVATE RECORDS, not covered by epsilon",
            row["how"],
        )
        for row in document["constants"]
    ]
    rows.append(("d", f"{document['parameters']:,}", "exact", "trained parameters"))
    words = ("constant", "source", "how")
    return Table(
        ("constant", "value", *words[1:]), rows, title="constants of the bound", left=words
    )


_SHOWN: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "steps": ("steps", "{:,}".format),
    "batch": ("batch", str),
    "clip": ("clip", "{:g}".format),
    "noise_std": ("noise in mean", number_text),
    "noise_multiplier": ("noise multiplier", number_text),
    "record_gradients": ("record gradients", number_text),
    "bound": ("bound", number_text),
    "clipping_bias": ("clipping bias", lambda bias: "" if bias is None else number_text(bias)),
}
"""What each number of a run is called, and how it is written."""


def _runs_table(title: str, name: str, runs: Sequence[tuple[str, Row]], *keys: str) -> Table:
    """Numbers of named runs, the bound and, where one has it, the clipping bias at their end."""
    biased = any(run["clipping_bias"] is not None for _, run in runs)
    keys = (*keys, "bound", *["clipping_bias"] * biased)
    rows = [(named, *(_SHOWN[key][1](run[key]) for key in keys)) for named, run in runs]
    return Table((name, *(_SHOWN[key][0] for key in keys)), rows, title=title, left=(name,))


def _choices_table(title: str, document: Row) -> Table:
    """The runs that are compared; the best is the last."""
    claim = document["published"]
    claimed = {**claim, "batch": 1, "clip": claim["gradient_bound"], "clipping_bias": None}
    choices = (
        ("as it stands, certified noise", document["as_is"]),
        ("published optimum, claimed noise", claimed),
        ("published optimum, certified noise", claim["one_record"]),
        ("its steps in the file's batch, certified noise", claim["certified"]),
        ("certified optimum", document["certified"]),
    )
    runs = [(name, run) for name, run in choices if run is not None]
    table = _runs_table(title, "choice", runs, "steps", "batch", "clip", "noise_std")
    return replace(table, strong={len(runs) - 1})


def _purchases_table(runs: Sequence[Row]) -> Table:
    """What each change alone would give, the file as it stands first."""
    rows = []
    for run in runs:
        noise, bound, *others = (
            number_text(run[key])
            for key in ("noise_std", "bound", "accumulated_noise", "over_least_noise")
        )
        if run is not runs[0]:
            bound += f" ({100 * (run['bound'] / runs[0]['bound'] - 1):+.0f} %)"
        rows.append((run["change"], noise, bound, *others))
    columns = ("what would buy what", "noise in mean", "bound", "accumulated noise", "over least")
    title = "one change at a time, from the file as it stands"
    return Table(columns, rows, title=title, left=columns[:1])
