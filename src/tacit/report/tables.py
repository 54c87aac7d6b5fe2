"""The tables of the page: the facts of the run, and the final numbers of every node."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tacit.report.reading import NodeRow, Result, Scores
from tacit.report.wording import (
    NOTHING,
    bytes_text,
    epsilon_text,
    number_text,
    percent_text,
)

__all__ = ["facts_section", "node_table"]

_OPEN_TABLE = 20


def facts_section(result: Result) -> str:
    """List the settings and outcomes that have no place elsewhere."""
    topology = result.topology
    direction = "directed" if topology.directed else "undirected"
    turns = f", {topology.period} graphs in turn" if topology.period > 1 else ""
    facts = [
        ("Algorithm", result.algorithm),
        ("Data set", result.dataset),
        ("Model", f"{result.model}, {result.parameters:,} parameters"),
        ("Loss", result.loss),
        ("Steps", f"{result.steps:,} of {result.planned_steps:,} planned"),
        ("Records", _records_text(result.nodes)),
        ("Graph", f"{topology.graph}, {direction}{turns}"),
        (
            "Contraction",
            "not known"
            if topology.contraction is None
            else f"{number_text(topology.contraction)} a step (0: all average at once, 1: never)",
        ),
        ("Test loss", _scores_text(result.test_loss)),
        ("Accounting", result.accounting),
        ("Relation", result.relation or NOTHING),
        ("Trust model", result.trust_model or NOTHING),
    ]
    rows = "".join(f"<div><dt>{escape(a)}</dt><dd>{escape(b)}</dd></div>" for a, b in facts)
    return (
        f'<section><h2>The run</h2><div class="card"><dl class="facts">{rows}</dl></div></section>'
    )


def _records_text(nodes: Sequence[NodeRow]) -> str:
    counts = [row.records for row in nodes]
    low, high = min(counts), max(counts)
    a_node = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"{sum(counts):,} in all, {a_node} a node"


def _scores_text(scores: Scores | None) -> str:
    if scores is None:
        return NOTHING
    return (
        f"mean {number_text(scores.mean)}, worst node {number_text(scores.worst)}, "
        f"consensus {number_text(scores.consensus)}"
    )


_COLUMNS = (
    "node",
    "records",
    "sampling rate",
    "batch",
    "noise multiplier",
    "delta",
    "budget",
    "certified epsilon",
    "claimed epsilon",
    "test accuracy",
    "sent",
)


def node_table(result: Result) -> str:
    """Give the final numbers of every node, folded away where there are many."""
    head = "".join(f'<th scope="col">{column}</th>' for column in _COLUMNS)
    body = "".join(map(_node_row, result.nodes))
    opened = " open" if len(result.nodes) <= _OPEN_TABLE else ""
    return (
        f"<details{opened}><summary>Every node ({len(result.nodes):,})</summary>"
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></details>"
    )


def _node_row(row: NodeRow) -> str:
    cells = [
        str(row.node),
        f"{row.records:,}",
        number_text(row.sampling_rate),
        number_text(row.expected_batch),
        _noise_text(row),
        epsilon_text(row.delta),
        NOTHING if row.budget is None else f"{row.budget:.6g}",
        epsilon_text(row.epsilon) + (f", as {row.reported_by} reports" if row.reported_by else ""),
        epsilon_text(row.claimed_epsilon),
        percent_text(row.test_accuracy),
        bytes_text(row.bytes_sent),
    ]
    over = ' class="over" title="above the budget"' if row.is_over_budget else ""
    marks = [over if column == "certified epsilon" else "" for column in _COLUMNS]
    inside = "".join(
        f"<td{mark}>{escape(cell)}</td>" for mark, cell in zip(marks, cells, strict=True)
    )
    return f"<tr>{inside}</tr>"


def _noise_text(row: NodeRow) -> str:
    first, last = number_text(row.first_noise), number_text(row.last_noise)
    return first if first == last else f"{first} to {last}"
