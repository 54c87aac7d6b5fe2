"""A run folder as data: `result.json` as it is written and read, and what a page needs of a run."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from tacit.base.plain_files import parse_toml, read_plain
from tacit.errors import InputError
from tacit.report.documents.base import (
    MOST_BYTES,
    Count,
    Flag,
    Item,
    Items,
    Number,
    OptionalNumber,
    RunDocument,
    Text,
    load,
)
from tacit.report.documents.metrics import (
    MOST_SERIES,
    Measurement,
    Scores,
    leading,
    read_measurements,
)
from tacit.report.documents.trust import TrustTerms
from tacit.report.documents.unit import RECORD, UnitTerms
from tacit.report.measures import Measure

Status = Literal["done", "stopped", "diverged", "budget-exhausted"]

OWN_LEDGER = "own ledger"
"""Where the epsilon of a node is from, if not another process's word."""

# What is said of a run that was cut off before it had a result, and before it had a folder.
LET_IT_END = "let it finish; if it was cut off, the command that began it goes on with --resume"
NOT_THERE = (
    "does not exist: must be the folder that a run wrote; if the run was cut off before it had a "
    "folder, the command that began it begins it anew, without --resume"
)


class AlgorithmNames(RunDocument):
    """What an algorithm is called: in files, on pages, and in print."""

    name: Text
    title: Text
    paper: Text


class TaskNames(RunDocument):
    """What is learnt, as the experiment file names it, and of which features, if of any."""

    dataset: Text
    model: Text
    loss: Text
    features: Text | None = None


class ModelShape(RunDocument):
    """What a model takes and gives: the shape of a record's input, and how many numbers.

    Of a model of features `input_shape` is theirs, and `record_shape` that of the inputs that they
    are made of.
    """

    input_shape: Items[Count]
    outputs: Count
    record_shape: Items[Count] | None = None


class ClaimCondition(RunDocument):
    """A condition under which a published claim was proved, and whether this run meets it."""

    text: Text
    holds: Flag


class PublishedClaim(RunDocument):
    """What the paper's own formula says, and how it was read; `infinite` if it gives no bound."""

    formula: Text | None
    reading: Text | None
    conditions: Items[ClaimCondition]
    infinite: Flag


class AuditFailure(RunDocument):
    """What accuses the program: a test of fidelity or an attack, and what it saw, or where it says.

    In a run's result the latter: what it saw may be a function of private records.
    """

    name: Text
    saw: Text


class RunAudit(RunDocument):
    """What goes with an audited epsilon: of an `AuditDocument` what a run's result says.

    Args:
        confidence: None: unknown, as all that a result of an earlier version does not say.
        attacks: how many were made on records that the audit made; without one, nothing was
            extracted. What is said of attacks is of these alone.
        questions: that the tests of fidelity asked.
        tested: what was audited, a line each.
        earlier_alarms: how many earlier audits of the run accused the program.
    """

    delta: Number
    confidence: OptionalNumber = None
    certified_epsilon: OptionalNumber = None
    claimed_epsilon: OptionalNumber = None
    certified_violated: Flag = False
    attacks: Count = 0
    verdict: Text
    claim_verdict: Text
    fidelity_tests: Count = 0
    fidelity_passed: Count = 0
    questions: Items[Text] = ()
    failures: Items[AuditFailure] = ()
    alarm_rate: OptionalNumber = None
    smallest_excess: OptionalNumber = None
    power: OptionalNumber = None
    tested: Items[Text] = ()
    earlier_alarms: Count = 0

    @property
    def asked(self) -> tuple[str, ...]:
        """The questions, each once."""
        return tuple(dict.fromkeys(self.questions))


class NoiseMultipliers(RunDocument):
    """Noise multipliers of the first and of the last step, one a node."""

    first: Items[OptionalNumber]
    last: Items[OptionalNumber]


def _pairs(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    try:
        return handler(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] in ("missing", "too_long"):
            raise PydanticCustomError("pairs", "must hold [source, target] pairs") from None
        raise


_Edges = Annotated[Items[Items[tuple[Count, Count]]], WrapValidator(_pairs)]


class CommunicationGraph(RunDocument):
    """Who may talk: `edges[t]` are `(source, target)` pairs of graph t, named by `names`."""

    graph: Text
    names: Items[Text] | None = None
    directed: Flag
    period: Count
    contraction: OptionalNumber
    edges: _Edges


class CalibrationBin(RunDocument):
    """Test records of similar probability: its mean, the share observed, how many they are."""

    predicted: OptionalNumber
    observed: OptionalNumber
    records: Count


def _one_a_node(value: Any, info: ValidationInfo) -> Any:
    """Refuse a list, or one of several, that has not one entry a node."""
    nodes = info.data.get("node_count")
    lists = (value.first, value.last) if isinstance(value, NoiseMultipliers) else (value,)
    if isinstance(value, TrustTerms):
        lists = (value.own,)
    if info.field_name == "test_metrics_by_node":
        lists = tuple(value.values())
    if nodes is not None and any(one is not None and len(one) != nodes for one in lists):
        raise PydanticCustomError(
            "one_a_node",
            "must have one entry a node: {nodes} entries",
            {"nodes": nodes, "value": [len(one) for one in lists if one is not None][-1]},
        )
    return value


_ByNode = Annotated[Items[Item], AfterValidator(_one_a_node)]


class ResultDocument(RunDocument):
    """The content of `result.json`.

    `unit` is whom epsilon protects. `node_names` are given where nodes have names. `signal_share`
    is how much each node's mean loss counts in what was trained, p_i, and `noise_share` its part of
    the variance of the noise. Each `epsilon_source` is the process whose word epsilon is, "rank 1";
    of a ledger that was read by the process that wrote the result, other words.
    """

    format_version: Literal[1]
    tacit_version: Text
    status: Status
    message: Text | None
    private: Flag
    not_private_reason: Text | None
    algorithm_names: AlgorithmNames = Field(alias="algorithm")
    task: TaskNames
    model_shape: ModelShape | None = Field(None, alias="model")
    node_count: Annotated[int, Field(strict=True, ge=1)] = Field(alias="nodes")
    parameters: Count
    steps: Count
    planned_steps: Count
    relation: Text | None
    trust_model: Text | None
    trust: Annotated[TrustTerms | None, AfterValidator(_one_a_node)] = None
    accounting: Text
    unit: UnitTerms = RECORD
    mechanism: Text | None
    epsilon: _ByNode[OptionalNumber]
    epsilon_budget: _ByNode[OptionalNumber]
    delta: _ByNode[OptionalNumber]
    claimed_epsilon: _ByNode[OptionalNumber]
    claim: PublishedClaim
    audited_epsilon: OptionalNumber
    audit: RunAudit | None
    test_accuracy: Scores | None
    test_loss: Scores | None
    test_metrics: dict[str, Scores] = Field(default_factory=dict)
    test_accuracy_by_node: _ByNode[OptionalNumber] | None
    test_metrics_by_node: Annotated[
        dict[str, Items[OptionalNumber]], AfterValidator(_one_a_node)
    ] = Field(default_factory=dict)
    bytes_sent: OptionalNumber
    bytes_sent_by_node: _ByNode[OptionalNumber]
    seconds: OptionalNumber
    steps_per_second: OptionalNumber
    records: _ByNode[Count]
    signal_share: _ByNode[Number]
    noise_share: _ByNode[OptionalNumber]
    sampling_rate: _ByNode[OptionalNumber]
    expected_batch: _ByNode[OptionalNumber]
    noise_multiplier: Annotated[NoiseMultipliers, AfterValidator(_one_a_node)]
    topology: CommunicationGraph
    gradient_path: Text | None = None
    warnings: Items[Text] = ()
    notes: Items[Text] = ()
    not_covered: Items[Text]
    epsilon_source: _ByNode[Text] | None
    charged_steps: Count | None = None
    consensus_forecast: Items[tuple[Count, OptionalNumber]] = ()
    choosing: Text | None = None
    node_names: _ByNode[Text] | None = None
    guess: _ByNode[OptionalNumber] | None = None
    right_guess: _ByNode[OptionalNumber] | None = None
    calibration: Items[CalibrationBin] = ()

    @property
    def certified(self) -> float | None:
        """The highest certified epsilon of a node; None where no node has one."""
        return max((own for own in self.epsilon if own is not None), default=None)

    @property
    def guesses(self) -> list[float]:
        """How often a guess is right at most, of the nodes that were asked and of which is known.

        None of them where epsilon is certified of one, and no guess.
        """
        pairs = zip(self.right_guess or (), self.epsilon, strict=False)
        known = [guess for guess, epsilon in pairs if epsilon is not None]
        return [] if None in known else [guess for guess in known if guess is not None]

    @property
    def claimed(self) -> float | None:
        """The highest claimed epsilon of a node; None where no node has one."""
        return max((own for own in self.claimed_epsilon if own is not None), default=None)

    @property
    def leading(self) -> tuple[Measure, Scores | None]:
        """What the run is judged by: the first metric that was asked for, else accuracy or loss."""
        return leading(self.test_metrics, self.test_accuracy, self.test_loss)

    @property
    def leading_by_node(self) -> Sequence[float | None]:
        """The score of each node by that measure."""
        for by_node in self.test_metrics_by_node.values():
            return by_node
        return self.test_accuracy_by_node or (None,) * self.node_count

    @property
    def over_budget(self) -> list[int]:
        """The nodes whose certified epsilon lies above their budget, by more than rounding."""
        pairs = enumerate(zip(self.epsilon, self.epsilon_budget, strict=True))
        return [
            node
            for node, (epsilon, budget) in pairs
            if epsilon is not None and budget is not None and epsilon > budget * (1 + 1e-9)
        ]


@dataclass(frozen=True)
class RecordedRun:
    """What a run folder says: the resolved experiment as text, the measured series, the result."""

    config: str
    measurements: tuple[Measurement, ...]
    result: ResultDocument


def read_run_folder(folder: Path) -> RecordedRun:
    """Read `config.toml`, `metrics.jsonl` and `result.json` of a run folder.

    Raises `InputError` where a file is missing, cannot be parsed, lacks a field, or was written
    in a format of another version.
    """
    if not folder.is_dir():
        found = "is no folder: must be the folder that a run wrote"
        raise InputError("RUN", str(folder), found if os.path.lexists(folder) else NOT_THERE)
    result = read_result(folder / "result.json")
    path = folder / "config.toml"
    config = _read_text(path)
    try:
        parse_toml(config)
    except tomllib.TOMLDecodeError as error:
        raise InputError(str(path), str(error), "must be TOML") from error
    path = folder / "metrics.jsonl"
    measurements = read_measurements(_read_text(path, MOST_SERIES), str(path))
    return RecordedRun(config, measurements, result)


def read_result(path: Path) -> ResultDocument:
    """Read `result.json`; errors are those of `read_run_folder`."""
    return load(ResultDocument, _read_text(path), str(path))


def _read_text(path: Path, most: int = MOST_BYTES) -> str:
    try:
        return read_plain(path, most).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        what = f"{path.name} cannot be read ({why})"
        if isinstance(error, FileNotFoundError):
            what = f"has no {path.name}"
        expected = f"{what}: {LET_IT_END}"
        raise InputError("RUN", str(path.parent), expected) from error
