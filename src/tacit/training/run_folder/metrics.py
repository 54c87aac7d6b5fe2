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
from tacit.gradients.losses import OF_NUMBERS
from tacit.models.metrics import Baselines, Metric, score_on_the_way
from tacit.report.documents.base import as_dict
from tacit.report.documents.metrics import (
    GradientNorms,
    Measurement,
    PrivateMeasurement,
    Scores,
)
from tacit.report.measures import ACCURACY, LOSS, Measure

_SHARED = 1 << 15  # numbers of a sum that PyTorch shares among threads, in an order of its own


@dataclass(frozen=True)
class Evaluation:
    """Scores on public test data: loss, accuracy if the loss has one, then `metrics` of the task.

    `rows` are `[measures, nodes + 1]`, the common model last. An accuracy is in [0, 1].
    """

    rows: tuple[tuple[float, ...], ...]
    metrics: int = 0

    @property
    def accuracy(self) -> tuple[float, ...] | None:
        """Its row."""
        return self.rows[1] if len(self.rows) - self.metrics > 1 else None

    @property
    def own(self) -> tuple[tuple[float, ...], ...]:
        """The rows of the task's metrics, in their order."""
        return self.rows[len(self.rows) - self.metrics :]


def _summary(measure: Measure, row: tuple[float, ...], baseline: float | None) -> Scores:
    values = row[:-1]
    known = not any(math.isnan(value) for value in values)
    return Scores(
        mean=_mean(values),
        worst=min(values, key=measure.worth) if known else math.nan,
        consensus=row[-1],
        baseline=baseline,
    )


def _mean(values: tuple[float, ...]) -> float:
    """Of any numbers, whoever gave them: `fsum` raises where they are huge, or both infinities."""
    try:
        return math.fsum(values) / len(values)
    except (OverflowError, ValueError):
        return sum(value / len(values) for value in values)


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
    if nodes is not None and len(inputs) > 1 and bool((rows == rows[0]).all()):
        rows = rows[:1]  # as all begin; of one record alone a product may round as its place says
    copies = 1 if nodes is None else nodes // len(rows)
    # Known losses give a record the same bits whatever others are beside it, and so does a mean to
    # a row that is too short for two threads.
    known = loss.formula in ("cross-entropy", *OF_NUMBERS)
    at_once = known and targets.ndim == 1 and len(targets) < _SHARED
    right = [] if loss.accuracy is None else [(loss.accuracy, torch.float64)]
    measures: list[Callable[[Tensor, Tensor], list[float]]] = [
        *(partial(_means, at_once, *one) for one in [(loss.per_record, None), *right]),
        *(partial(_scores, metric) for metric in metrics),
    ]
    found: list[list[float]] = [[] for _ in measures]
    for part in torch.split(torch.cat([rows, common.unsqueeze(0)]), _models_at_once(model, inputs)):
        outputs = model.outputs(part, inputs)
        for values, measure in zip(found, measures, strict=True):
            values += measure(outputs, targets)
    made = tuple((*row[:-1] * copies, row[-1]) for row in found)
    return Released(Evaluation(made, len(metrics)))


def _means(
    at_once: bool,
    per_record: Callable[[Tensor, Tensor], Tensor],
    dtype: torch.dtype | None,
    outputs: Tensor,
    targets: Tensor,
) -> list[float]:
    """Over the records, of each model's outputs `[models, records, ...]`."""
    if at_once:
        rows = per_record(outputs.flatten(0, 1), targets.repeat(len(outputs)))
        found: list[float] = rows.view(len(outputs), -1).mean(dim=1, dtype=dtype).tolist()
        return found
    return [float(per_record(own, targets).mean(dtype=dtype)) for own in outputs]


def _scores(metric: Metric, outputs: Tensor, targets: Tensor) -> list[float]:
    return [score_on_the_way(metric, own, targets) for own in outputs]


def _models_at_once(model: StackedModel, inputs: Tensor) -> int:
    numbers = max(1, len(inputs) * model.outputs_per_record)
    return max(1, model.memory_bytes // (8 * numbers))


def summaries(
    evaluation: Evaluation | None, metrics: Sequence[Metric], baselines: Baselines
) -> dict[str, Any]:
    """What a result and a row of metrics say of the scores, by field; None: no test records."""
    if evaluation is None:
        return {"test_accuracy": None, "test_loss": None, "test_metrics": {}}
    row, rows = evaluation.accuracy, zip(metrics, evaluation.own, baselines.metrics, strict=True)
    return {
        "test_accuracy": None if row is None else _summary(ACCURACY, row, baselines.accuracy),
        "test_loss": _summary(LOSS, evaluation.rows[0], baselines.loss),
        "test_metrics": {one.name: _summary(one.measure, own, base) for one, own, base in rows},
    }


def private_metrics(
    step: int,
    batch: BatchGradient | None = None,
    mask: Tensor | None = None,
    clip: float | None = None,
    *,
    losses: bool = True,
) -> Private[PrivateMeasurement]:
    """Loss, gradient norms, share of clipped records and left out ones of a step's batches.

    It is the private part of a row of metrics: for a node's own file, or that of a simulation.
    `mask` says which slots of the batch, the step's last one, hold records; `losses`, whether its
    losses are those of the task. Records that are left out have no bound on their gradient, and
    contributed nothing.
    """
    found: dict[str, Any] = {
        "train_loss": None,
        "gradient_norm": None,
        "clip_rate": None,
        "records_left_out": None,
        "augmented_lagrangian": None,
    }
    if batch is not None and mask is not None and bool(mask.any()):
        if losses:
            found["train_loss"] = float(batch.losses[mask].double().mean())
        if clip is not None and batch.norms.numel():  # of single records: see `BatchGradient`
            every = batch.norms[mask].double()
            norms = every[torch.isfinite(every)]
            found["records_left_out"] = len(every) - len(norms)
            if len(norms):
                ends = torch.tensor([0.5, 0.9], dtype=norms.dtype, device=norms.device)
                middle, high = torch.quantile(norms, ends).tolist()
                largest = float(norms.max())
                found["gradient_norm"] = GradientNorms(median=middle, p90=high, max=largest)
                found["clip_rate"] = float((norms > clip).double().mean())
    return Private(PrivateMeasurement(step=step, **found))


def consensus_distance(models: Tensor) -> float:
    """Root mean square over nodes of ||z_i - mean z||, for models `[nodes, d]` (or one of all)."""
    centred = models - models.mean(0, keepdim=True)
    return math.sqrt(float(centred.square().sum(1).mean()))


def series(rows: Iterable[Measurement]) -> dict[str, list[Any]]:
    """Rows of metrics as columns."""
    listed = [as_dict(row) for row in rows]
    keys = dict.fromkeys(key for row in listed for key in row)
    return {key: [row.get(key) for row in listed] for key in keys}
