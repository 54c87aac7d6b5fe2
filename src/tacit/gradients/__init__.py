"""Clipped gradients of every record, for a stack of nodes with weights of their own."""

from tacit.gradients.losses import LOSSES, Loss
from tacit.gradients.stacked import BatchGradient, StackedModel, build
from tacit.gradients.table.memory import available_bytes
from tacit.gradients.table.need import TableNeed, entries_of, table_need
from tacit.gradients.table.table import GradientTable, Replacement
from tacit.gradients.user_losses import loss_from_mean, with_metric

__all__ = [
    "LOSSES",
    "BatchGradient",
    "GradientTable",
    "Loss",
    "Replacement",
    "StackedModel",
    "TableNeed",
    "available_bytes",
    "build",
    "entries_of",
    "loss_from_mean",
    "table_need",
    "with_metric",
]
