"""What a run gives back: trained models, recorded series, and what was leaked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.algorithms.accounting import noised_sums
from tacit.communication import compression
from tacit.errors import InputError, optional
from tacit.features.maps import WithFeatures
from tacit.gradients import with_output
from tacit.privacy.published import FormulaCondition
from tacit.report import write_report
from tacit.report.compare_panels import run_panels
from tacit.report.documents.base import as_dict, plain_json
from tacit.report.documents.metrics import Measurement, PublicMeasurement, Scores
from tacit.report.documents.run import ResultDocument, Status
from tacit.report.measures import Measure, measure_of
from tacit.report.trust_words import person_text
from tacit.report.wording import epsilon_text, number_text, percent_text, with_article
from tacit.training.job import Job
from tacit.training.plan import Plan
from tacit.training.run_folder.folder import MODEL, NODES, RunFolder, created
from tacit.training.run_folder.metrics import series
from tacit.training.run_folder.predictor import Predictor
from tacit.training.shared_noise import SUMMAND_BYTES


@dataclass(frozen=True)
class Claim:
    """One row of the table of claims: what is said of a node's epsilon, at `delta`.

    Args:
        claimed: by the paper's formula for the noise that ran; None: no claim.
        certified: what provably holds for what ran; None: nothing is accounted.
        audited: what an attack extracted; None: no attack was run.
        budget: the epsilon asked for; None: none was.
    """

    node: int
    claimed: float | None
    certified: float | None
    audited: float | None
    budget: float | None
    delta: float | None


@dataclass(frozen=True, repr=False)
class Result:
    """A finished, stopped or ended run.

    Args:
        document: what `result.json` says of it, in this process's own words: epsilon of its nodes
            is from its own ledger.
        parameters: models of this process's nodes, de-biased, `[nodes, d]`, in the order of
            `model.parameters()` (those that are trained); averages, where `[train] average` asks
            for them. Of an algorithm whose nodes' models are not released they are private: each
            is for the eyes of its node only.
        consensus: their mean, `[d]`.
        rows: what was measured on the way, step by step.
        notes: what else happened to it, each one line.
        out: the run folder, if one was written.
        job: what was run.
    """

    document: ResultDocument
    parameters: Tensor
    consensus: Tensor
    rows: Sequence[Measurement]
    notes: tuple[str, ...]
    out: Path | None
    job: Job

    @cached_property
    def metrics(self) -> Mapping[str, list[Any]]:
        """The recorded series, a list a name, all of one length."""
        return series(self.rows)

    @property
    def epsilon(self) -> tuple[float | None, ...]:
        """Certified, spent, one a node; None where nothing is accounted."""
        return self.document.epsilon

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Claimed, certified and audited epsilon, one row a node."""
        said, audited = self.document, self.document.audited_epsilon
        columns = (said.claimed_epsilon, said.epsilon, said.epsilon_budget, said.delta)
        return tuple(
            Claim(node, claimed, spent, audited, budget, delta)
            for node, (claimed, spent, budget, delta) in enumerate(zip(*columns, strict=True))
        )

    @property
    def test_accuracy(self) -> Mapping[str, float] | None:
        """Mean over nodes, worst node, consensus model, and baseline if known.

        All are of the consensus model where nodes' models are private; None without test records.
        """
        return _numbers(self.document.test_accuracy)

    @property
    def test_loss(self) -> Mapping[str, float] | None:
        """Likewise."""
        return _numbers(self.document.test_loss)

    @property
    def test_metrics(self) -> dict[str, Scores]:
        """Those that were asked for, by name and in their order.

        Each has `mean`, `worst`, `consensus` and `baseline`, which a model that ignores its inputs
        scores.
        """
        return self.document.test_metrics

    @property
    def private(self) -> bool:
        """Whether epsilon means anything: noise from secret keys, and accounted."""
        return self.document.private

    @property
    def bytes_sent(self) -> tuple[int, ...]:
        """By each node."""
        return tuple(int(count or 0) for count in self.document.bytes_sent_by_node)

    @property
    def steps(self) -> int:
        """Completed."""
        return self.document.steps

    @property
    def seconds(self) -> float:
        """Of training."""
        return self.document.seconds or 0.0

    @property
    def status(self) -> Status:
        """`done`, `stopped`, or `budget-exhausted`."""
        return self.document.status

    @property
    def message(self) -> str | None:
        """Why it ended early, if it did."""
        return self.document.message

    @property
    def leading(self) -> tuple[Measure, Scores | None]:
        """What the run is judged by, and its scores: the first metric that was asked for.

        Without one the accuracy, or the loss where there is none.
        """
        return self.document.leading

    @property
    def plan(self) -> Plan:
        """What was planned."""
        return self.job.plan

    def __repr__(self) -> str:
        rows = _facts(self)
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)

    def _repr_html_(self) -> str:
        cells = (
            f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
            for name, value in _facts(self)
        )
        return f"<table>{''.join(cells)}</table>"

    def figure(self) -> Any:
        """Its scores over the steps, and over epsilon, as a `matplotlib.figure.Figure`.

        Raises:
            InputError: matplotlib is not installed.
        """
        optional("matplotlib")
        from tacit.report.pictures import picture

        told = dict(_facts(self))
        title = told["run"].partition(" in ")[0]
        return picture(title, run_panels(self.rows), f"privacy: {told['privacy']}")

    def to_pandas(self, *, private: bool = False) -> Any:
        """The recorded series as a `pandas.DataFrame`, a row an evaluation, indexed by step.

        With `private`, what was measured on private records is among the columns, as
        `private.train_loss` and so on: that is for the eyes of its nodes only.

        Raises:
            InputError: pandas is not installed.
        """
        frame = optional("pandas").DataFrame(_columns(self.metrics, private=private))
        return frame.set_index("step")

    def to_polars(self, *, private: bool = False) -> Any:
        """The same as a `polars.DataFrame`, with the step as a column."""
        return optional("polars").DataFrame(_columns(self.metrics, private=private))

    def model(self, node: int | Literal["consensus"] = "consensus") -> nn.Module:
        """A trained copy of the module, in evaluation mode: a node's, or of the consensus.

        Of a model of features it is one that takes records as they are before, and makes their
        features itself.

        Raises:
            InputError: on `node`, if another process hosts it.
        """
        if node == "consensus":
            return self._of_inputs(self.consensus)
        hosted = self.job.hosted
        if node not in range(-len(hosted), 0) and node not in hosted:
            raise InputError("node", node, f"must be one of this process's nodes: {list(hosted)}")
        row = node if node < 0 else hosted.index(node)
        return self._of_inputs(self.parameters[row])

    @property
    def predictor(self) -> Predictor:
        """The consensus model with what records become before it, and what its outputs say."""
        job = self.job
        return Predictor(job.config, job.schema, with_output(self.model(), job.model.output))

    def predict(self, X: Any) -> dict[str, NDArray[Any]]:
        """What the consensus model says of new records, by the names of columns.

        Of classes the likeliest and the probability of each; or a number in the target's unit. As
        a frame: `pandas.DataFrame(result.predict(X))`. It is computed from what was released.

        Args:
            X: records without targets as `tacit.train` takes them with: a frame or the path of a
                table, of which columns that are no inputs are passed over; or an array, or several.

        Raises:
            InputError: a column is missing.
            RecordsError: records break what the schema declares; says how many.
        """
        return self.predictor.predict(X, "X")

    def save(self, folder: str | Path) -> Path:
        """Write a run folder, which all commands open; give its path.

        It has no ledger, so that no statement of privacy can be made of it: a run that is given
        `out` has one.

        Raises:
            InputError: it exists, or cannot be written.
        """

        def fill(made: RunFolder) -> None:
            for row in self.rows:
                made.append_metrics(row)
            state = self.job.model.module(self.consensus).state_dict()
            models = {NODES: {"parameters": self.parameters}, MODEL: state}
            made.write_result(self.document, models)

        path, job = Path(folder), self.job
        with created(path, job.config, fill, job.schema):
            write_report(path)
        return path

    def _of_inputs(self, parameters: Tensor) -> nn.Module:
        module = self.job.model.module(parameters)
        if self.job.features is None:
            return module.eval()
        return WithFeatures(self.job.features, self.job.config.input_bound, module).eval()


def _numbers(scores: Scores | None) -> dict[str, float] | None:
    """As JSON has them, where what is not finite is none; here it is no number."""
    if scores is None:
        return None
    told = plain_json(scores)
    return {
        key: math.nan if value is None else value
        for key, value in told.items()
        if key != "baseline" or value is not None
    }


def _facts(result: Result) -> list[tuple[str, str]]:
    """What there is to say of a result first, as names and values."""
    plan, config = result.plan, result.job.config
    title = f"{config.algorithm.definition.title} on {config.task.dataset}, {len(plan.nodes)} nodes"
    steps = f"{result.steps} of {plan.steps} steps in {result.seconds:.1f} s"
    ended = result.status if result.message is None else f"{result.status}: {result.message}"
    rows = [("run", f"{title}, {steps}, {ended}")]
    for name, scores in result.test_metrics.items():
        measure = measure_of(name)
        told = {key: measure.text(value) for key, value in as_dict(scores).items()}
        rows.append((f"test {measure.title}", _scores(told)))
    shown: tuple[tuple[str, Mapping[str, float] | None, Callable[[float], str]], ...] = (
        ("test accuracy", result.test_accuracy, percent_text),
        ("test loss", result.test_loss, number_text),
    )
    for name, values, text in shown:
        if values is not None:
            rows.append((name, _scores({key: text(value) for key, value in values.items()})))
    rows.append(("privacy", _privacy(plan, result.document)))
    return rows


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


def _columns(metrics: Mapping[str, Sequence[Any]], *, private: bool) -> dict[str, list[Any]]:
    """The series as flat columns, `test_accuracy.mean` and so on, or `private.train_loss`."""
    flat: dict[str, list[Any]] = {}
    for name, values in metrics.items():
        public = name in PublicMeasurement.model_fields
        if not public and not private:
            continue
        label = name if public else f"private.{name}"
        flat |= _flat(label, values)
    return flat


def _flat(label: str, values: Sequence[Any]) -> dict[str, list[Any]]:
    """One column, or one for each key of its mappings; where there is nothing, None."""
    parts = list(dict.fromkeys(key for value in values if isinstance(value, dict) for key in value))
    if not parts:
        return {label: list(values)}
    return {
        column: found
        for part in parts
        for column, found in _flat(
            f"{label}.{part}", [None if value is None else value.get(part) for value in values]
        ).items()
    }


def mechanism_line(plan: Plan) -> str | None:
    """The mechanism of a node in one line, for people."""
    if not plan.noisy:
        return None
    after, nodes = "", [node for node in plan.nodes if node.records]
    if plan.release.calibrating:
        noise = [plan.release.noise_multiplier(node, plan.steps) for node in nodes]
        after = "; then counts of records by class and predicted probability, noise multiplier "
        after += _range(noise)
    rates = [node.rate for node in nodes]
    if plan.release.over_time is not None:
        turns = {(plan.release.turns(node), plan.release.coin(node)): node for node in nodes}
        words = [
            plan.release.assumed_mechanism(turns[way], [(0, plan.steps)]).describe().split(", ")
            for way in dict.fromkeys((min(turns), max(turns)))
        ]
        sampling = " to ".join([", ".join(words[0][:-1]), *(each[-2] for each in words[1:])])
    elif min(rates) == 1:
        sampling = "Gaussian on every record at every step"
    elif plan.config.train.sampling == "fixed":
        sampling = "Gaussian on batches of fixed size without replacement"
    elif plan.config.train.sampling == "allocation":
        steps = _range([node.epoch_steps for node in nodes])
        sampling = f"Gaussian in one random step of each epoch of {steps}"
    else:
        sampling = f"Poisson-sampled Gaussian, rate {_range(rates)}"
    first = [plan.release.noise_multiplier(node, 0) for node in nodes]
    last = [plan.release.noise_multiplier(node, plan.steps - 1) for node in nodes]
    multiplier = _range(first)
    if last != first:
        multiplier += f" {'rising' if last[0] > first[0] else 'falling'} to {_range(last)}"
    if not plan.release.clip.enforced:
        multiplier += " of a bound that is assumed"
    definition = plan.config.algorithm.definition
    if definition.releases.mechanism is not noised_sums:
        # Where nothing is accounted, relation and sampling need not have a mechanism.
        seen = f"{definition.releases.noise.name} noise, not accounted"
        if plan.accounted:
            seen = plan.release.mechanism(nodes[0]).describe()
        return plan.unit.said(f"{seen}, noise multiplier {multiplier}")
    told = f"{sampling}, noise multiplier {multiplier}, {plan.steps} steps{after}"
    return plan.unit.said(told)


def shared_conditions(plan: Plan) -> tuple[FormulaCondition, ...]:
    """The conditions of the published formula at the node where the fewest hold."""
    return min(
        (node.conditions for node in plan.nodes),
        key=lambda conditions: sum(condition.holds for condition in conditions),
    )


def message_bytes(plan: Plan, size: int) -> float:
    """Bytes of one message of a node that sends, compressed or not; a number has `size`."""
    chosen, d = plan.config.algorithm, plan.parameters
    options: Any = chosen.options
    numbers = chosen.definition.graph.message_numbers(options, d)
    compressor = getattr(options, "compressor", "none")
    if compressor == "none":
        return numbers * size
    return numbers / d * compression.expected_bytes(compressor, options.keep, d, size)


def bytes_per_step(plan: Plan, numbers: float, size: int) -> Tensor:
    """Bytes each node sends in a step, mean over the run, `[nodes]` float64.

    Over the graph's period and, where only nodes that take part send, over their steps; with a
    partner or a server, one message each time. In each further gossip round of a step all nodes
    send to all neighbours; rounds after the last step are not in it. Numbers of `size` bytes each;
    those of a secure sum have 8.
    """
    size = SUMMAND_BYTES if plan.release.sums is not None else size
    period = plan.mixing.schedule.period
    degrees = torch.stack([torch.as_tensor(plan.mixing.out_degrees(k)) for k in range(period)])
    sent = degrees.double().mean(0)
    further = (plan.rounds - 1) * sent
    activity = plan.release.activity
    one = plan.mixing.kind == "server" or (activity is not None and activity.partner is not None)
    if one:
        sent = torch.ones(len(plan.nodes), dtype=torch.float64)
    if activity is not None and (one or plan.config.algorithm.definition.participation.silent):
        paired = activity.active
        if activity.partner is not None:
            paired = activity.partner != np.arange(activity.partner.shape[1])
        sent = sent * torch.as_tensor(paired.mean(axis=0), dtype=torch.float64)
    return (sent + further) * (numbers * size)


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
