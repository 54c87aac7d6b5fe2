"""What a run gives back: trained models, recorded series, and what was leaked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from tacit import __version__
from tacit.algorithms.accounting import noised_sums
from tacit.communication import compression
from tacit.communication.colours import Outgoing, opened
from tacit.errors import InputError, optional
from tacit.features.maps import WithFeatures
from tacit.models.metrics import majority
from tacit.models.probabilities import calibration_bins
from tacit.privacy.published import FormulaCondition
from tacit.report.documents.metrics import Scores, leading
from tacit.report.documents.run import (
    AlgorithmNames,
    CalibrationBin,
    ClaimCondition,
    CommunicationGraph,
    ModelShape,
    NoiseMultipliers,
    PublishedClaim,
    ResultDocument,
    Status,
    TaskNames,
)
from tacit.report.documents.trust import TrustTerms
from tacit.report.measures import Measure
from tacit.training import weights
from tacit.training.consensus import consensus_distances
from tacit.training.plan import Plan
from tacit.training.prepare import Job
from tacit.training.run_folder import summary
from tacit.training.run_folder.metrics import Evaluation, summaries
from tacit.training.run_folder.not_covered import not_covered
from tacit.training.secure_sums import SUMMAND_BYTES


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
        parameters: models of this process's nodes, de-biased, `[nodes, d]`, in the order of
            `model.parameters()` (those that are trained); averages, where `[train] average` asks
            for them. Of an algorithm whose nodes' models are not released they are private: each
            is for the eyes of its node only.
        consensus: their mean, `[d]`.
        metrics: the recorded series, a list a name, all of one length.
        epsilon: certified, spent, one a node; None where nothing is accounted.
        claims: claimed, certified and audited epsilon, one row a node.
        test_accuracy: mean over nodes, worst node, consensus model (all of the consensus model
            where nodes' models are private) and baseline; None without test records.
        test_loss: likewise.
        test_metrics: those that were asked for, by name and in their order: each with `mean`,
            `worst`, `consensus` and `baseline`, which a model that ignores its inputs scores.
        private: whether epsilon means anything: noise from secret keys, and accounted.
        bytes_sent: by each node.
        steps: completed.
        seconds: of training.
        status: `done`, `stopped`, or `budget-exhausted`.
        message: why it ended early, if it did.
        notes: what else happened to it, each one line.
        out: the run folder, if one was written.
        job: what was run.
    """

    parameters: Tensor
    consensus: Tensor
    metrics: Mapping[str, list[Any]]
    epsilon: tuple[float | None, ...]
    claims: tuple[Claim, ...]
    test_accuracy: Mapping[str, float] | None
    test_loss: Mapping[str, float] | None
    test_metrics: dict[str, Scores]
    private: bool
    bytes_sent: tuple[int, ...]
    steps: int
    seconds: float
    status: Status
    message: str | None
    notes: tuple[str, ...]
    out: Path | None
    job: Job

    @property
    def leading(self) -> tuple[Measure, Scores | None]:
        """What the run is judged by, and its scores: the first metric that was asked for.

        Without one the accuracy, or the loss where there is none.
        """
        accuracy, loss = (
            None if scores is None else Scores(**scores)
            for scores in (self.test_accuracy, self.test_loss)
        )
        return leading(self.test_metrics, accuracy, loss)

    @property
    def plan(self) -> Plan:
        """What was planned."""
        return self.job.plan

    def __repr__(self) -> str:
        return summary.text_table(self._facts())

    def _repr_html_(self) -> str:
        return summary.html_table(self._facts())

    def _facts(self) -> list[tuple[str, str]]:
        return summary.facts(
            self.plan,
            epsilon=self.epsilon,
            accuracy=self.test_accuracy,
            loss=self.test_loss,
            metrics=self.test_metrics,
            steps=self.steps,
            seconds=self.seconds,
            ended=self.status if self.message is None else f"{self.status}: {self.message}",
        )

    def to_pandas(self, *, private: bool = False) -> Any:
        """The recorded series as a `pandas.DataFrame`, a row an evaluation, indexed by step.

        With `private`, what was measured on private records is among the columns, as
        `private.train_loss` and so on: that is for the eyes of its nodes only.

        Raises:
            InputError: pandas is not installed.
        """
        frame = optional("pandas").DataFrame(summary.columns(self.metrics, private=private))
        return frame.set_index("step")

    def to_polars(self, *, private: bool = False) -> Any:
        """The same as a `polars.DataFrame`, with the step as a column."""
        return optional("polars").DataFrame(summary.columns(self.metrics, private=private))

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

    def _of_inputs(self, parameters: Tensor) -> nn.Module:
        module = self.job.model.module(parameters)
        if self.job.features is None:
            return module.eval()
        return WithFeatures(self.job.features, self.job.config.input_bound, module).eval()


def result_document(
    job: Job,
    *,
    status: Status,
    message: str | None,
    steps: int,
    epsilon: Sequence[float | None],
    epsilon_by_colluders: Sequence[Sequence[float | None]],
    claimed: Sequence[float | None],
    evaluation: Outgoing[Evaluation] | None,
    bytes_sent: Sequence[int | None],
    seconds: float,
    notes: Sequence[str] = (),
    epsilon_source: Sequence[str] | None = None,
    charged_steps: int | None = None,
    measured_at: Sequence[int] = (),
    consensus: Outgoing[Tensor] | None = None,
) -> ResultDocument:
    """The content of `result.json`, from which the report is drawn too."""
    more: dict[str, Any] = {} if charged_steps is None else {"charged_steps": charged_steps}
    if job.plan.release.pairs is not None:
        forecast = consensus_distances(job.plan, measured_at)
        more["consensus_forecast"] = tuple(zip(measured_at, forecast, strict=True))
    plan, config = job.plan, job.config
    algorithm = config.algorithm.definition
    reason = plan.not_private_reason
    scores = None if evaluation is None else opened(evaluation, "the scores of a result")
    formula = algorithm.claims.formula if plan.release.claims else None
    last = max(steps - 1, 0)
    known = [count for count in bytes_sent if count is not None]
    schedule = plan.mixing.schedule
    if config.nodes.names is not None:
        more["node_names"] = config.nodes.names
    return ResultDocument(
        format_version=1,
        tacit_version=__version__,
        status=status,
        message=message,
        private=reason is None,
        not_private_reason=reason,
        algorithm=AlgorithmNames(name=algorithm.name, title=algorithm.title, paper=algorithm.paper),
        task=_task(job),
        model=_shape(job),
        nodes=len(plan.nodes),
        parameters=plan.parameters,
        steps=steps,
        planned_steps=plan.steps,
        relation=config.privacy.relation if plan.accounted else None,
        trust_model=plan.release.trust_model if plan.accounted else None,
        trust=_trust_terms(job, epsilon_by_colluders),
        accounting=config.privacy.accounting,
        mechanism=mechanism_line(plan),
        epsilon=tuple(epsilon),
        epsilon_budget=tuple(node.budget for node in plan.nodes),
        delta=tuple(node.delta for node in plan.nodes),
        claimed_epsilon=tuple(claimed),
        claim=PublishedClaim(
            formula=None if formula is None else f"{formula.statement} ({formula.source})",
            reading=None if formula is None else formula.reading,
            conditions=tuple(
                ClaimCondition(text=condition.text, holds=condition.holds)
                for condition in shared_conditions(plan)
            ),
            infinite=math.inf in claimed,
        ),
        audited_epsilon=None,
        audit=None,
        **summaries(scores, job.metrics, job.baselines),
        test_accuracy_by_node=None if scores is None else scores.accuracy,
        test_metrics_by_node=_metrics_by_node(job, scores),
        bytes_sent=sum(known) / len(known) if len(known) == len(bytes_sent) else None,
        bytes_sent_by_node=tuple(bytes_sent),
        seconds=seconds,
        steps_per_second=steps / seconds if seconds > 0 else 0.0,
        records=tuple(node.records for node in plan.nodes),
        signal_share=tuple(share.signal for share in weights.shares(plan.nodes)),
        noise_share=tuple(share.noise for share in weights.shares(plan.nodes)),
        sampling_rate=tuple(node.rate for node in plan.nodes),
        expected_batch=tuple(node.expected_batch for node in plan.nodes),
        noise_multiplier=NoiseMultipliers(
            first=tuple(plan.release.noise_multiplier(node, 0) for node in plan.nodes),
            last=tuple(plan.release.noise_multiplier(node, last) for node in plan.nodes),
        ),
        topology=CommunicationGraph(
            graph=schedule.name,
            directed=schedule.directed,
            period=schedule.period,
            contraction=plan.contraction,
            edges=tuple(
                tuple(zip(graph.sources.tolist(), graph.targets.tolist(), strict=True))
                for graph in schedule.graphs
            ),
        ),
        gradient_path=job.model.path,
        warnings=plan.warnings,
        notes=(*plan.notes, *notes),
        not_covered=not_covered(config) if plan.accounted else (),
        epsilon_source=None if epsilon_source is None else tuple(epsilon_source),
        calibration=() if consensus is None else _calibration(job, consensus),
        **more,
    )


def _calibration(job: Job, consensus: Outgoing[Tensor]) -> tuple[CalibrationBin, ...]:
    """The calibration curve of the common model on the public test records, if they are classes."""
    if job.test is None:
        return ()
    model = opened(consensus, "the common model").to(job.device, job.dtype).unsqueeze(0)
    pair = job.model.outputs(model, job.test.inputs)[0], job.test.targets
    if majority(job.loss, *pair) is None or not bool(torch.isfinite(pair[0]).all()):
        return ()
    rows = calibration_bins(*pair)
    return tuple(CalibrationBin(predicted=p, observed=o, records=r) for p, o, r in rows)


def _task(job: Job) -> TaskNames:
    task = job.config.task
    more = {} if job.features is None else {"features": job.features.words()}
    return TaskNames(dataset=task.dataset, model=task.model, loss=task.loss, **more)


def _shape(job: Job) -> ModelShape:
    own = tuple(job.train.first.inputs.shape[1:])
    if job.features is None:
        return ModelShape(input_shape=own, outputs=job.outputs)
    return ModelShape(input_shape=own, outputs=job.outputs, record_shape=job.features.record_shape)


def _trust_terms(
    job: Job, epsilon_by_colluders: Sequence[Sequence[float | None]]
) -> TrustTerms | None:
    """What nodes hide behind beside their own noise; None where each relies on itself alone."""
    plan, shared = job.plan, job.plan.release.shared
    if shared is None or not plan.accounted:
        return None
    pairs, hosts = plan.release.pairs, job.placement.ranks
    return TrustTerms(
        colluding=shared.colluding,
        nodes_by_process=tuple(hosts.count(rank) for rank in range(job.placement.processes)),
        keys_signed=job.authenticated,
        own=tuple(node.noise_scale / node.divisor for node in plan.nodes),
        expected_batch=tuple(n.divisor if n.records else 0.0 for n in plan.nodes),
        absent=tuple(n.node for n in plan.nodes if not plan.release.active_steps(n)),
        pairs=() if pairs is None else pairs.pairs,
        deviation=0.0 if pairs is None else pairs.deviation,
        epsilon_by_colluders=tuple(map(tuple, epsilon_by_colluders)),
    )


def _metrics_by_node(
    job: Job, evaluation: Evaluation | None
) -> dict[str, tuple[float | None, ...]]:
    if evaluation is None:
        return {}
    rows = zip(job.metrics, evaluation.metrics, strict=True)
    return {metric.name: values for metric, values in rows}


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
    if min(rates) == 1:
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
        return f"{seen}, noise multiplier {multiplier}"
    return f"{sampling}, noise multiplier {multiplier}, {plan.steps} steps{after}"


def shared_conditions(plan: Plan) -> tuple[FormulaCondition, ...]:
    """The conditions of the published formula at the node where the fewest hold."""
    return min(
        (node.conditions for node in plan.nodes),
        key=lambda conditions: sum(condition.holds for condition in conditions),
    )


def message_bytes(plan: Plan, size: int) -> float:
    """Bytes of one message of a node that sends, as `tacit.communication.compression` writes it.

    A number has `size` bytes.
    """
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
