"""What is measured on the way: on public test data, and, labelled as such, on private records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tacit.communication.colours import Outgoing, Private, Released, opened
from tacit.data import Dataset
from tacit.gradients import BatchGradient, Loss, StackedModel
from tacit.report.documents.base import as_dict
from tacit.report.documents.metrics import (
    GradientNorms,
    Measurement,
    PrivateMeasurement,
    Scores,
)

__all__ = [
    "NOTHING_MEASURED",
    "BatchStatistics",
    "Evaluation",
    "consensus_distance",
    "evaluate",
    "private_metrics",
    "private_row",
    "series",
]


@dataclass(frozen=True)
class Evaluation:
    """Accuracy (None where the loss has none) and loss on public test data.

    Args:
        accuracy: `[nodes]`, shares in [0, 1].
        loss: `[nodes]`.
        consensus_accuracy: of the common model.
        consensus_loss: likewise.
    """

    accuracy: tuple[float, ...] | None
    loss: tuple[float, ...]
    consensus_accuracy: float | None
    consensus_loss: float

    def accuracy_summary(self) -> Scores | None:
        """Mean over nodes, worst node, and consensus model."""
        if self.accuracy is None or self.consensus_accuracy is None:
            return None
        return Scores(
            mean=_mean(self.accuracy),
            worst=min(self.accuracy),
            consensus=self.consensus_accuracy,
        )

    def loss_summary(self) -> Scores:
        """Mean over nodes, worst node, and consensus model."""
        return Scores(mean=_mean(self.loss), worst=max(self.loss), consensus=self.consensus_loss)


@dataclass(frozen=True)
class BatchStatistics:
    """Measured on the private records of one step's batches, over all nodes.

    Records that are left out have no bound on their gradient, and contributed nothing.
    """

    train_loss: float | None
    gradient_norm: GradientNorms | None = None
    clip_rate: float | None = None
    records_left_out: int | None = None


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
) -> Released[Evaluation]:
    """Every node's model and the common one on the same test records.

    Args:
        model: runs the stack.
        loss: the task's.
        models: de-biased parameters, `[nodes, d]`, or `[1, d]` where all nodes have the same.
        consensus: the common model, `[d]`.
        test: public test data, on the device and in the dtype of the models.
        records: only the first so many; all by default.
        nodes: how many nodes; by default one a row.

    Raises:
        LeakError: models are private: their scores say as much of the records as they do.
    """
    rows, common = opened(models, "a node's model"), opened(consensus, "the common model")
    inputs, targets = test.inputs[:records], test.targets[:records]
    outputs = model.outputs(torch.cat([rows, common.unsqueeze(0)]), inputs)
    copies = 1 if nodes is None else nodes // len(rows)

    def means(measure: Callable[[Tensor, Tensor], Tensor]) -> tuple[tuple[float, ...], float]:
        *own, last = torch.stack([measure(row, targets).mean() for row in outputs]).tolist()
        return tuple(own) * copies, last

    losses, consensus_loss = means(loss.per_record)
    accuracies, consensus_accuracy = (None, None) if loss.accuracy is None else means(loss.accuracy)
    return Released(Evaluation(accuracies, losses, consensus_accuracy, consensus_loss))


def private_metrics(
    batch: BatchGradient | None, mask: Tensor | None, clip: float | None
) -> Private[BatchStatistics]:
    """Loss, gradient norms, share of clipped records and left out ones of a step's batches."""
    if batch is None or mask is None or not bool(mask.any()):
        return Private(NOTHING_MEASURED)
    losses = batch.losses[mask].double()
    loss = float(losses.mean())
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
    )
