"""A result for people: in a few lines of text, as a small table in a notebook, and as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from tacit.report.documents.base import as_dict
from tacit.report.documents.metrics import PublicMeasurement
from tacit.report.documents.run import ResultDocument
from tacit.report.measures import measure_of
from tacit.report.trust_words import person_text
from tacit.report.wording import epsilon_text, number_text, percent_text, with_article
from tacit.training.plan import Plan

Facts = Sequence[tuple[str, str]]


def facts(
    plan: Plan,
    result: ResultDocument,
    accuracy: Mapping[str, float] | None,
    loss: Mapping[str, float] | None,
) -> list[tuple[str, str]]:
    """What there is to say of a result first, as names and values.

    `accuracy` and `loss` are its scores without an unknown baseline.
    """
    steps = f"{result.steps} of {plan.steps} steps in {result.seconds or 0.0:.1f} s"
    ended = result.status if result.message is None else f"{result.status}: {result.message}"
    rows = [("run", f"{_title(plan)}, {steps}, {ended}")]
    for name, scores in result.test_metrics.items():
        measure = measure_of(name)
        told = {key: measure.text(value) for key, value in as_dict(scores).items()}
        rows.append((f"test {measure.title}", _scores(told)))
    if accuracy is not None:
        rows.append(("test accuracy", _scores({k: percent_text(v) for k, v in accuracy.items()})))
    if loss is not None:
        rows.append(("test loss", _scores({k: number_text(v) for k, v in loss.items()})))
    rows.append(("privacy", _privacy(plan, result)))
    return rows


def _title(plan: Plan) -> str:
    config = plan.config
    title = config.algorithm.definition.title
    return f"{title} on {config.task.dataset}, {len(plan.nodes)} nodes"


def _scores(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _privacy(plan: Plan, result: ResultDocument) -> str:
    if plan.not_private_reason is not None:
        return f"NOT PRIVATE: {plan.not_private_reason}"
    deltas = {node.delta for node in plan.nodes}
    at = f"delta {epsilon_text(max(delta or 0.0 for delta in deltas))}"
    spent, unit = [value for value in result.epsilon if value is not None], result.unit
    most, least = epsilon_text(max(spent)), epsilon_text(min(spent))
    between = most if most == least else f"{most} (most) to {least} (least)"
    told = f"certified epsilon {between} at {at}{' or less' if len(deltas) > 1 else ''}"
    told += "" if unit.gradient is None else f" of {with_article(unit.name)} at one node"
    return f"{told}; {person_text(unit)}" if unit.apart else told


def text_table(rows: Facts) -> str:
    """The rows below each other, names aligned."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def html_table(rows: Facts) -> str:
    """The rows as an HTML table."""
    cells = (
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in rows
    )
    return f"<table>{''.join(cells)}</table>"


def columns(metrics: Mapping[str, Sequence[Any]], *, private: bool) -> dict[str, list[Any]]:
    """The series of a run as flat columns, `test_accuracy.mean` and so on.

    Each of the metrics is a list of numbers, mappings or None. With `private`, those that were
    measured on private records are among the columns, as `private.train_loss` and so on.
    """
    flat: dict[str, list[Any]] = {}
    for name, series in metrics.items():
        public = name in PublicMeasurement.model_fields
        if not public and not private:
            continue
        label = name if public else f"private.{name}"
        flat |= _flat(label, series)
    return flat


def _flat(label: str, series: Sequence[Any]) -> dict[str, list[Any]]:
    """One column, or one for each key of its mappings; where there is nothing, None."""
    parts = list(dict.fromkeys(key for value in series if isinstance(value, dict) for key in value))
    if not parts:
        return {label: list(series)}
    return {
        column: values
        for part in parts
        for column, values in _flat(
            f"{label}.{part}", [None if value is None else value.get(part) for value in series]
        ).items()
    }
