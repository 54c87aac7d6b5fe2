"""Clipped gradients of every record, for a stack of nodes with weights of their own."""

from tacit.gradients.losses import LOSSES, Loss, loss_from_mean, weighted
from tacit.gradients.stacked import BatchGradient, StackedModel, build
from tacit.gradients.table import GradientTable, Replacement
from tacit.gradients.table_storage import TableNeed, available_bytes, entries_of, table_need

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
    "weighted",
]
