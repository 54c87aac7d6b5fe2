"""What is measured on the way: on public test data, and, labelled as such, on private records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tacit.communication.colours import Outgoing, Private, Released, opened
from tacit.data import Dataset
from tacit.gradients import BatchGradient, Loss, StackedModel
from tacit.models.metrics import Baselines, Metric, score_on_the_way
from tacit.report.documents.base import as_dict
from tacit.report.documents.metrics import (
    GradientNorms,
    Measurement,
    PrivateMeasurement,
    Scores,
)
from tacit.report.measures import ACCURACY, LOSS, Measure


@dataclass(frozen=True)
class Evaluation:
    """Accuracy (None where the loss has none), loss and metrics on public test data.

    `accuracy`, shares in [0, 1], and `loss` are `[nodes]`; `metrics` are `[nodes]` for each metric
    of the task, in their order. What begins with `consensus` is of the common model.
    """

    accuracy: tuple[float, ...] | None
    loss: tuple[float, ...]
    consensus_accuracy: float | None
    consensus_loss: float
    metrics: tuple[tuple[float, ...], ...] = ()
    consensus_metrics: tuple[float, ...] = ()

    @classmethod
    def of(cls, rows: Sequence[Sequence[float]], metrics: int) -> Evaluation:
        """Of the scores by each measure, the common model's last: loss, accuracy if any, metrics.

        `rows` are `[measures, nodes + 1]`, and the last `metrics` of them are of the task's own.
        """
        own, last = [tuple(row[:-1]) for row in rows], [row[-1] for row in rows]
        first = len(rows) - metrics
        accuracy = (own[1], last[1]) if first > 1 else (None, None)
        return cls(
            accuracy[0], own[0], accuracy[1], last[0], tuple(own[first:]), tuple(last[first:])
        )

    @property
    def rows(self) -> list[tuple[float, ...]]:
        """What `of` takes."""
        rows = [(*self.loss, self.consensus_loss)]
        if self.accuracy is not None and self.consensus_accuracy is not None:
            rows.append((*self.accuracy, self.consensus_accuracy))
        pairs = zip(self.metrics, self.consensus_metrics, strict=True)
        return rows + [(*own, last) for own, last in pairs]

    def accuracy_summary(self, baseline: float | None = None) -> Scores | None:
        """Mean over nodes, worst node, and consensus model, beside their baseline."""
        if self.accuracy is None or self.consensus_accuracy is None:
            return None
        return _summary(ACCURACY, self.accuracy, self.consensus_accuracy, baseline)

    def loss_summary(self, baseline: float | None = None) -> Scores:
        """Mean over nodes, worst node, and consensus model, beside their baseline."""
        return _summary(LOSS, self.loss, self.consensus_loss, baseline)

    def metric_summaries(
        self, metrics: Sequence[Metric], baselines: Sequence[float | None]
    ) -> dict[str, Scores]:
        """Likewise of each of the task's metrics, by name."""
        rows = zip(metrics, self.metrics, self.consensus_metrics, baselines, strict=True)
        return {
            metric.name: _summary(metric.measure, own, common, baseline)
            for metric, own, common, baseline in rows
        }


@dataclass(frozen=True)
class BatchStatistics:
    """Measured on the private records of one step's batches, over all nodes.

    The augmented Lagrangian is over all records, where a method has one. Records that are left out
    have no bound on their gradient, and contributed nothing.
    """

    train_loss: float | None
    gradient_norm: GradientNorms | None = None
    clip_rate: float | None = None
    records_left_out: int | None = None
    augmented_lagrangian: float | None = None


def _summary(
    measure: Measure, values: tuple[float, ...], consensus: float, baseline: float | None
) -> Scores:
    known = not any(math.isnan(value) for value in values)
    return Scores(
        mean=_mean(values),
        worst=min(values, key=measure.worth) if known else math.nan,
        consensus=consensus,
        baseline=baseline,
    )


def _mean(values: tuple[float, ...]) -> float:
    """Of any numbers, whoever gave them: `fsum` raises where they are huge, or both infinities."""
    try:
        return math.fsum(values) / len(values)
    except (OverflowError, ValueError):
        return sum(value / len(values) for value in values)


NOTHING_MEASURED = BatchStatistics(None)


def evaluate(
    model: StackedModel,
    loss: Loss,
    models: Outgoing[Tensor],
    consensus: Outgoing[Tensor],
    test: Dataset,
    records: int | None = None,
    *,
    nodes: int | None = None,
    metrics: Sequence[Metric] = (),
) -> Released[Evaluation]:
    """Every node's model and the common one on the same test records.

    `models` are de-biased parameters, `[nodes, d]`, or `[1, d]` where all `nodes` have the same (by
    default there is one node a row); `consensus` is the common model, `[d]`. `test` is on the
    device and in the dtype of the models; of it only the first `records` are taken, by default all.
    Each metric is of all the records together, model by model.

    Raises:
        LeakError: models are private: their scores say as much of the records as they do.
    """
    rows, common = opened(models, "a node's model"), opened(consensus, "the common model")
    inputs, targets = test.inputs[:records], test.targets[:records]
    copies = 1 if nodes is None else nodes // len(rows)
    measures: list[Callable[[Tensor, Tensor], float | Tensor]] = [
        partial(_mean_over_records, loss.per_record),
        *([] if loss.accuracy is None else [partial(_share, loss.accuracy)]),
        *(partial(score_on_the_way, metric) for metric in metrics),
    ]
    found: list[list[float | Tensor]] = [[] for _ in measures]
    for part in torch.split(torch.cat([rows, common.unsqueeze(0)]), _models_at_once(model, inputs)):
        for outputs in model.outputs(part, inputs):
            for values, measure in zip(found, measures, strict=True):
                values.append(measure(outputs, targets))
    scores = [[float(value) for value in values] for values in found]
    return Released(Evaluation.of([row[:-1] * copies + row[-1:] for row in scores], len(metrics)))


def _mean_over_records(
    per_record: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, targets: Tensor
) -> Tensor:
    return per_record(outputs, targets).mean()


def _share(right: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, targets: Tensor) -> Tensor:
    return right(outputs, targets).double().mean()


def _models_at_once(model: StackedModel, inputs: Tensor) -> int:
    """Of how many models the outputs for all records are kept at a time, at least one."""
    numbers = max(1, len(inputs) * model.outputs_per_record)
    return max(1, model.memory_bytes // (8 * numbers))


def summaries(
    evaluation: Evaluation | None, metrics: Sequence[Metric], baselines: Baselines
) -> dict[str, Any]:
    """What a result and a row of metrics say of the scores, by field; None: no test records."""
    if evaluation is None:
        return {"test_accuracy": None, "test_loss": None, "test_metrics": {}}
    return {
        "test_accuracy": evaluation.accuracy_summary(baselines.accuracy),
        "test_loss": evaluation.loss_summary(baselines.loss),
        "test_metrics": evaluation.metric_summaries(metrics, baselines.metrics),
    }


def private_metrics(
    batch: BatchGradient | None,
    mask: Tensor | None,
    clip: float | None,
    *,
    losses: bool = True,
) -> Private[BatchStatistics]:
    """Loss, gradient norms, share of clipped records and left out ones of a step's batches.

    `mask` says which slots of the batch, the step's last one, hold records; `losses`, whether its
    losses are those of the task.
    """
    if batch is None or mask is None or not bool(mask.any()):
        return Private(NOTHING_MEASURED)
    loss = float(batch.losses[mask].double().mean()) if losses else None
    if clip is None or not batch.norms.numel():  # not of single records: see `BatchGradient`
        return Private(BatchStatistics(loss))
    every = batch.norms[mask].double()
    norms = every[torch.isfinite(every)]
    left_out = len(every) - len(norms)
    if not len(norms):
        return Private(BatchStatistics(loss, records_left_out=left_out))
    middle, high = torch.quantile(
        norms, torch.tensor([0.5, 0.9], dtype=norms.dtype, device=norms.device)
    ).tolist()
    summary = GradientNorms(median=middle, p90=high, max=float(norms.max()))
    clipped = float((norms > clip).double().mean())
    return Private(BatchStatistics(loss, summary, clipped, left_out))


def consensus_distance(models: Tensor) -> float:
    """Root mean square over nodes of ||z_i - mean z||, for models `[nodes, d]` (or one of all)."""
    centred = models - models.mean(0, keepdim=True)
    return math.sqrt(float(centred.square().sum(1).mean()))


def series(rows: Iterable[Measurement]) -> dict[str, list[Any]]:
    """Rows of metrics as columns."""
    listed = [as_dict(row) for row in rows]
    keys = dict.fromkeys(key for row in listed for key in row)
    return {key: [row.get(key) for row in listed] for key in keys}


def private_row(step: int, statistics: Private[BatchStatistics]) -> PrivateMeasurement:
    """The private part of a row of metrics: for a node's own file, or that of a simulation."""
    measured = statistics.value
    return PrivateMeasurement(
        step=step,
        train_loss=measured.train_loss,
        gradient_norm=measured.gradient_norm,
        clip_rate=measured.clip_rate,
        records_left_out=measured.records_left_out,
        augmented_lagrangian=measured.augmented_lagrangian,
    )
