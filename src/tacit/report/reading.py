"""Reads a run folder into frozen objects, and refuses what it cannot read truthfully."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.errors import InputError
from tacit.report.fields import Fields

__all__ = [
    "FORMAT_VERSION",
    "Claim",
    "Condition",
    "GradientNorms",
    "Measurement",
    "NodeRow",
    "Result",
    "RunFolder",
    "Scores",
    "Spread",
    "Topology",
    "read_row",
    "read_run_folder",
]

FORMAT_VERSION = 1
_STATUSES = ("done", "stopped", "diverged", "budget-exhausted")


@dataclass(frozen=True)
class Scores:
    """A score on the test set: mean over nodes, worst node, and the mean of all models."""

    mean: float | None
    worst: float | None
    consensus: float | None


@dataclass(frozen=True)
class Spread:
    """The largest and the smallest value over nodes."""

    most: float | None
    least: float | None


@dataclass(frozen=True)
class GradientNorms:
    """Norms of the record gradients before clipping: median, 90th percentile, largest."""

    median: float | None
    p90: float | None
    largest: float | None


@dataclass(frozen=True)
class Measurement:
    """One line of `metrics.jsonl`; what was not measured or not finite is `None`.

    `step` counts completed steps, `bytes_sent` is cumulative and a mean over nodes, `seconds`
    are of wall time, `noise_std` is that of one coordinate of a node's batch-mean gradient.
    """

    step: int
    test_accuracy: Scores | None
    test_loss: Scores | None
    train_loss: float | None
    consensus_distance: float | None
    gradient_norm: GradientNorms | None
    clip: float | None
    clip_rate: float | None
    noise_std: float | None
    epsilon: Spread | None
    claimed_epsilon: Spread | None
    bytes_sent: float | None
    seconds: float | None


@dataclass(frozen=True)
class Condition:
    """A condition under which a published claim was proved, and whether this run meets it."""

    text: str
    holds: bool


@dataclass(frozen=True)
class Claim:
    """What the paper's own formula says, and how it was read; `infinite` if it gives no bound."""

    formula: str | None
    reading: str | None
    conditions: tuple[Condition, ...]
    infinite: bool


@dataclass(frozen=True)
class Topology:
    """Who may talk: `edges[t]` are the `(source, target)` pairs of graph t of the period."""

    graph: str
    directed: bool
    period: int
    contraction: float | None
    edges: tuple[tuple[tuple[int, int], ...], ...]


@dataclass(frozen=True)
class NodeRow:
    """The final numbers of one node; `first_noise` and `last_noise` are noise multipliers.

    `reported_by` is the process, "rank 1", whose word epsilon is; None where it was read from a
    ledger by the process that wrote the result.
    """

    node: int
    records: int
    sampling_rate: float | None
    expected_batch: float | None
    first_noise: float | None
    last_noise: float | None
    delta: float | None
    budget: float | None
    epsilon: float | None
    reported_by: str | None
    claimed_epsilon: float | None
    test_accuracy: float | None
    bytes_sent: float | None

    @property
    def is_over_budget(self) -> bool:
        """Say whether the certified epsilon lies above the budget, by more than rounding."""
        if self.epsilon is None or self.budget is None:
            return False
        return self.epsilon > self.budget * (1 + 1e-9)


@dataclass(frozen=True)
class Audit:
    """What goes with an audited epsilon."""

    delta: float
    verdict: str
    claim_verdict: str


@dataclass(frozen=True)
class Result:
    """The content of `result.json`; lists with one entry a node are gathered in `nodes`."""

    tacit_version: str
    status: str
    message: str | None
    private: bool
    not_private_reason: str | None
    algorithm: str
    title: str
    paper: str
    dataset: str
    model: str
    loss: str
    parameters: int
    steps: int
    planned_steps: int
    relation: str | None
    trust_model: str | None
    accounting: str
    mechanism: str | None
    nodes: tuple[NodeRow, ...]
    claim: Claim
    audited_epsilon: float | None
    audit: Audit | None
    test_accuracy: Scores | None
    test_loss: Scores | None
    bytes_sent: float | None
    seconds: float | None
    steps_per_second: float | None
    topology: Topology
    not_covered: tuple[str, ...]


@dataclass(frozen=True)
class RunFolder:
    """A run folder: the resolved experiment as text, the measured series, and the result."""

    config: str
    measurements: tuple[Measurement, ...]
    result: Result


def read_run_folder(folder: Path) -> RunFolder:
    """Read `config.toml`, `metrics.jsonl` and `result.json` of a run folder.

    Raises `InputError` where a file is missing, cannot be parsed, lacks a field, or was written
    in a format of another version.
    """
    if not folder.is_dir():
        raise InputError(str(folder), "not a folder", "must be the folder that a run wrote")
    result = _read_result(folder / "result.json")
    return RunFolder(
        config=_read_config(folder / "config.toml"),
        measurements=_read_measurements(folder / "metrics.jsonl"),
        result=result,
    )


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = f"a run folder has a readable {path.name}; give the folder of a finished run"
        raise InputError(str(path), str(error), reason) from error


def _read_config(path: Path) -> str:
    text = _read_text(path)
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(str(path), str(error), "must be TOML") from error
    return text


def _parse(text: str, where: str) -> Fields:
    try:
        return Fields.of(json.loads(text), where)
    except (ValueError, RecursionError) as error:
        raise InputError(where, text, f"must be a JSON object ({error})") from error


def _read_measurements(path: Path) -> tuple[Measurement, ...]:
    text = _read_text(path)
    lines = text.split("\n")
    # A line without its newline was being written when the process was killed.
    complete = lines[:-1]
    return _last_of_each_step(
        _measurement(_parse(line, f"{path}, line {number}"))
        for number, line in enumerate(complete, start=1)
        if line.strip()
    )


def read_row(line: bytes) -> dict[str, Any] | None:
    """One line of `metrics.jsonl` as it was written; None where it is torn or damaged."""
    try:
        row = json.loads(line)
        _measurement(Fields.of(row, "metrics.jsonl"))
    except (ValueError, RecursionError):  # an InputError is a ValueError, and so is bad UTF-8
        return None
    return dict(row)


def _last_of_each_step(measurements: Iterable[Measurement]) -> tuple[Measurement, ...]:
    """Drop what a resumed run went through again: lines at or after a later line's step."""
    kept: list[Measurement] = []
    for measurement in measurements:
        while kept and kept[-1].step >= measurement.step:
            kept.pop()
        kept.append(measurement)
    return tuple(kept)


def _measurement(line: Fields) -> Measurement:
    return Measurement(
        step=line.count("step"),
        test_accuracy=_scores(line.optional_child("test_accuracy")),
        test_loss=_scores(line.optional_child("test_loss")),
        train_loss=line.optional_number("train_loss"),
        consensus_distance=line.optional_number("consensus_distance"),
        gradient_norm=_gradient_norms(line.optional_child("gradient_norm")),
        clip=line.optional_number("clip"),
        clip_rate=line.optional_number("clip_rate"),
        noise_std=line.optional_number("noise_std"),
        epsilon=_spread(line.optional_child("epsilon")),
        claimed_epsilon=_spread(line.optional_child("claimed_epsilon")),
        bytes_sent=line.optional_number("bytes_sent"),
        seconds=line.optional_number("seconds"),
    )


def _scores(fields: Fields | None) -> Scores | None:
    if fields is None:
        return None
    return Scores(
        mean=fields.optional_number("mean"),
        worst=fields.optional_number("worst"),
        consensus=fields.optional_number("consensus"),
    )


def _gradient_norms(fields: Fields | None) -> GradientNorms | None:
    if fields is None:
        return None
    return GradientNorms(
        median=fields.optional_number("median"),
        p90=fields.optional_number("p90"),
        largest=fields.optional_number("max"),
    )


def _spread(fields: Fields | None) -> Spread | None:
    if fields is None:
        return None
    return Spread(most=fields.optional_number("max"), least=fields.optional_number("min"))


def _read_result(path: Path) -> Result:
    fields = _parse(_read_text(path), str(path))
    version = fields.raw("format_version")
    if version != FORMAT_VERSION:
        raise InputError(
            fields.path("format_version"),
            version,
            f"this version of tacit reads format {FORMAT_VERSION}: use the version that wrote it",
        )
    status = fields.text("status")
    if status not in _STATUSES:
        raise InputError(fields.path("status"), status, "must be one of " + ", ".join(_STATUSES))
    algorithm, task = fields.child("algorithm"), fields.child("task")
    return Result(
        tacit_version=fields.text("tacit_version"),
        status=status,
        message=fields.optional_text("message"),
        private=fields.flag("private"),
        not_private_reason=fields.optional_text("not_private_reason"),
        algorithm=algorithm.text("name"),
        title=algorithm.text("title"),
        paper=algorithm.text("paper"),
        dataset=task.text("dataset"),
        model=task.text("model"),
        loss=task.text("loss"),
        parameters=fields.count("parameters"),
        steps=fields.count("steps"),
        planned_steps=fields.count("planned_steps"),
        relation=fields.optional_text("relation"),
        trust_model=fields.optional_text("trust_model"),
        accounting=fields.text("accounting"),
        mechanism=fields.optional_text("mechanism"),
        nodes=_node_rows(fields),
        claim=_claim(fields.child("claim")),
        audited_epsilon=fields.optional_number("audited_epsilon"),
        audit=_audit(fields.optional_child("audit")),
        test_accuracy=_scores(fields.optional_child("test_accuracy")),
        test_loss=_scores(fields.optional_child("test_loss")),
        bytes_sent=fields.optional_number("bytes_sent"),
        seconds=fields.optional_number("seconds"),
        steps_per_second=fields.optional_number("steps_per_second"),
        topology=_topology(fields.child("topology")),
        not_covered=fields.texts("not_covered"),
    )


def _audit(fields: Fields | None) -> Audit | None:
    if fields is None:
        return None
    return Audit(
        delta=fields.optional_number("delta") or 0.0,
        verdict=fields.text("verdict"),
        claim_verdict=fields.text("claim_verdict"),
    )


def _node_rows(fields: Fields) -> tuple[NodeRow, ...]:
    count = fields.count("nodes")
    if count == 0:
        raise InputError(fields.path("nodes"), count, "must be 1 or more")
    noise = fields.child("noise_multiplier")
    accuracy: tuple[float | None, ...] = (None,) * count
    if fields.raw("test_accuracy_by_node") is not None:
        accuracy = fields.optional_numbers("test_accuracy_by_node", count)
    columns = zip(
        range(count),
        fields.counts("records", count),
        fields.optional_numbers("sampling_rate", count),
        fields.optional_numbers("expected_batch", count),
        noise.optional_numbers("first", count),
        noise.optional_numbers("last", count),
        fields.optional_numbers("delta", count),
        fields.optional_numbers("epsilon_budget", count),
        fields.optional_numbers("epsilon", count),
        _reporters(fields, count),
        fields.optional_numbers("claimed_epsilon", count),
        accuracy,
        fields.optional_numbers("bytes_sent_by_node", count),
        strict=True,
    )
    return tuple(NodeRow(*column) for column in columns)


def _reporters(fields: Fields, count: int) -> tuple[str | None, ...]:
    """Of each node, the process whose word its epsilon is, if it is not that of the writer."""
    if fields.raw("epsilon_source") is None:
        return (None,) * count
    sources = fields.texts("epsilon_source")
    if len(sources) != count:
        raise InputError(fields.path("epsilon_source"), sources, f"must have {count} entries")
    return tuple(source if source.startswith("rank ") else None for source in sources)


def _claim(fields: Fields) -> Claim:
    return Claim(
        formula=fields.optional_text("formula"),
        reading=fields.optional_text("reading"),
        conditions=tuple(
            Condition(text=condition.text("text"), holds=condition.flag("holds"))
            for condition in fields.children("conditions")
        ),
        infinite=fields.flag("infinite"),
    )


def _topology(fields: Fields) -> Topology:
    return Topology(
        graph=fields.text("graph"),
        directed=fields.flag("directed"),
        period=fields.count("period"),
        contraction=fields.optional_number("contraction"),
        edges=fields.edges("edges"),
    )
