"""Where a run is measured: what each process knows of its own nodes, and the row made of all.

What is measured on private records never leaves its process: of a run of many, the common
`metrics.jsonl` has none of it, and each process writes its own beside its ledger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tacit.algorithms.facets import common_mean
from tacit.communication.colours import Private, Released
from tacit.communication.exchange import Exchange
from tacit.errors import PeerError
from tacit.training.job import Job
from tacit.training.run_folder import metrics as measured
from tacit.training.run_folder.metrics import Evaluation

MetricsPart = tuple[Mapping[str, Any], Tensor]
"""What one process says at a mark: a JSON object, and the sum of its nodes' models, `[d]`."""


@dataclass(frozen=True)
class RunEvaluation:
    """What all nodes came to at a mark.

    Args:
        evaluation: on public test records; None without any. Where nodes' models are private, every
            node has the scores of the common model.
        consensus_distance: root mean square over nodes of the distance to their mean; None where
            models are private, or, across processes, are not added up.
        notes: of bad messages that were dropped, if any were, for people.
        common: the mean of the models of all processes, `[d]` in float64; None where this process
            knows the common model without the others.
    """

    evaluation: Released[Evaluation] | None
    consensus_distance: float | None
    bytes_sent: tuple[int, ...]
    notes: tuple[str, ...] = ()
    common: Tensor | None = None


def measure(
    job: Job, models: Tensor, consensus: Tensor, state: Any, exchange: Exchange, *, whole: bool
) -> Released[MetricsPart]:
    """What this process may tell of its nodes.

    Models are `[nodes, d]`, or `[1, d]` where all have the same. Those that are private are not
    looked at: in their place stands the common model `[d]`, `consensus`, as far as this process
    knows it. The exchange has counted bytes, and rows that were bad. With `whole`, scores are of
    all test records, in place of the first.
    """
    count, weights = len(job.hosted), getattr(state, "w", None)
    if not job.config.algorithm.definition.releases.models:
        models = consensus.unsqueeze(0)
    report: dict[str, Any] = {
        "nodes": list(job.hosted),
        "bytes": exchange.bytes_sent.tolist(),
        "dropped": sum(exchange.dropped.values()),
        "mass": None if weights is None else float(weights.sum()),
        "scores": None,
        "equal": len(models) == 1,
    }
    if job.test is not None:
        records = None if whole else job.config.train.evaluate_records
        scores = measured.evaluate(
            job.model,
            job.loss,
            Released(models),
            Released(consensus),
            job.test,
            records,
            nodes=count,
            metrics=job.metrics,
        ).value
        report["scores"] = {
            "accuracy": scores.accuracy,
            "loss": scores.loss,
            "consensus_accuracy": scores.consensus_accuracy,
            "consensus_loss": scores.consensus_loss,
            "metrics": scores.metrics,
            "consensus_metrics": scores.consensus_metrics,
        }
    alone, total = job.placement.processes == 1, models.new_empty(0)
    report["spread"] = 0.0
    if alone or models_public(job):
        report["spread"] = measured.consensus_distance(models) ** 2 * count
    if models_public(job) and not alone:
        total = models.sum(0) * (count / len(models))
    return Released((report, total))


def augmented_lagrangian(job: Job, state: Any) -> Private[float | None]:
    """That of this process's nodes, over all their records; None of a method without duals.

    It reads private records, and mostly models that were never noised: for the eyes of the nodes.
    """
    chosen = job.config.algorithm
    if chosen.definition.primal_dual is None:
        return Private(None)
    made, train = chosen.definition.primal_dual(state, chosen.options), job.train
    ends = zip(train.offsets.tolist(), train.sizes.tolist(), strict=True)
    losses = []
    for model, (first, size) in zip(made.models, ends, strict=True):
        rows = torch.arange(first, first + size, device=train.targets.device)
        outputs = job.model.outputs(model.to(job.dtype).unsqueeze(0), train.inputs_of(rows))[0]
        losses.append(job.loss.per_record(outputs, train.targets[rows]).double().mean())
    return Private(made.terms(torch.stack(losses), len(job.plan.nodes)))


def combined(job: Job, parts: Sequence[MetricsPart], *, whole: bool) -> RunEvaluation:
    """What all processes' parts come to; in the process that writes them down.

    Raises:
        PeerError: a part does not speak of the nodes of its process.
    """
    for rank, (report, _) in enumerate(parts):
        _check(rank, report, job)
    scores = [report["scores"] for report, _ in parts]
    bytes_sent = _by_node([(report["nodes"], report["bytes"]) for report, _ in parts])
    distance: float | None = None
    if job.config.algorithm.definition.releases.models:
        distance = math.sqrt(parts[0][0]["spread"] / len(job.hosted))
    own, common = scores[0], None
    if len(parts) > 1:
        equal = distance is not None and all(report.get("equal") for report, _ in parts)
        distance = 0.0 if equal else None
        if models_public(job):
            distance, common, own = _around(job, parts, whole)
    notes = _notes(job, [report for report, _ in parts])
    if job.test is None:
        return RunEvaluation(None, distance, tuple(bytes_sent), notes, common)
    loss = _by_node([(report["nodes"], report["scores"]["loss"]) for report, _ in parts])
    accuracy = None
    if own["accuracy"] is not None:
        accuracy = tuple(
            _by_node([(report["nodes"], report["scores"]["accuracy"]) for report, _ in parts])
        )
    metrics = tuple(
        tuple(_by_node([(report["nodes"], report["scores"]["metrics"][m]) for report, _ in parts]))
        for m in range(len(job.metrics))
    )
    evaluation = Evaluation(
        accuracy,
        tuple(loss),
        own["consensus_accuracy"],
        own["consensus_loss"],
        metrics=metrics,
        consensus_metrics=tuple(own["consensus_metrics"]),
    )
    return RunEvaluation(Released(evaluation), distance, tuple(bytes_sent), notes, common)


def consensus_of(job: Job, models: Tensor, state: Any) -> Tensor:
    """The common model `[d]` as far as this process knows it: of its own nodes, or the server's."""
    common: Tensor = job.config.algorithm.definition.graph.consensus(models, state)
    return common


def models_public(job: Job) -> bool:
    """Whether nodes' models are added up: they are where their mean is the common model."""
    return job.config.algorithm.definition.graph.consensus is common_mean


def _around(
    job: Job, parts: Sequence[MetricsPart], whole: bool
) -> tuple[float, Tensor, Mapping[str, Any] | None]:
    """Distance of all models to their mean, that mean, and what it scores."""
    here = [(report, total) for report, total in parts if len(total)]  # of those that are not gone
    counts = [len(report["nodes"]) for report, _ in here]
    every = sum(counts)
    means = [total.double() / count for (_, total), count in zip(here, counts, strict=True)]
    mean = torch.stack([m * c for m, c in zip(means, counts, strict=True)]).sum(0) / every
    between = [
        count * float((own - mean).square().sum()) for own, count in zip(means, counts, strict=True)
    ]
    within = [float(report["spread"]) for report, _ in here]
    distance = math.sqrt(sum([*between, *within]) / every)  # of what is huge, infinity
    if job.test is None:
        return distance, mean, None
    records = None if whole else job.config.train.evaluate_records
    model = mean.to(job.device, job.dtype)
    scores = measured.evaluate(
        job.model,
        job.loss,
        Released(model.unsqueeze(0)),
        Released(model),
        job.test,
        records,
        metrics=job.metrics,
    ).value
    of_mean = {
        "consensus_accuracy": scores.consensus_accuracy,
        "consensus_loss": scores.consensus_loss,
        "consensus_metrics": scores.consensus_metrics,
    }
    return distance, mean, {**parts[0][0]["scores"], **of_mean}


def _notes(job: Job, reports: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """What bad messages that were dropped have cost."""
    dropped = sum(own["dropped"] for own in reports)
    masses = [mass for own in reports if (mass := own.get("mass")) is not None]
    if not dropped:
        return ()
    note = f"rows of bad messages that were dropped: {dropped:,}"
    if job.plan.release.pairs is not None:
        note += " (noise of pairs that was in them is left in the mean; privacy stands)"
    if len(masses) < len(reports):
        return (note,)
    every = len(job.plan.nodes)
    return (f"{note}; the push-sum mass is {math.fsum(masses):.6g} of {every} since",)


def _by_node(rows: Sequence[tuple[Sequence[int], Sequence[Any]]]) -> list[Any]:
    """Values in the order of nodes."""
    values = {node: value for nodes, own in rows for node, value in zip(nodes, own, strict=True)}
    return [values[node] for node in sorted(values)]


def _check(rank: int, report: Mapping[str, Any], job: Job) -> None:
    """Refuse what is not of the nodes of its process; its form was checked when it came."""
    own, scores = list(job.placement.hosted(rank)), report["scores"] or {}
    lists = [report["bytes"]]
    if job.test is not None:
        lists.append(scores.get("loss"))
        if job.loss.accuracy is not None:
            lists.append(scores.get("accuracy"))
        every = (scores.get("metrics") or (), scores.get("consensus_metrics") or ())
        lists += every[0]
        if any(len(values) != len(job.metrics) for values in every):
            raise PeerError(f"rank {rank} sent other metrics than those of the task")
    if report["nodes"] != own or any(values is None or len(values) != len(own) for values in lists):
        raise PeerError(f"rank {rank} sent metrics that are not those of its nodes")


def share_of(steps: int, parts: int) -> int:
    """Steps between two of about `parts` events."""
    return max(1, -(-steps // parts))
