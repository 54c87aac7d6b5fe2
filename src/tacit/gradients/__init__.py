"""Clipped gradients of every record, for a stack of nodes with weights of their own."""

from tacit.gradients.augmentation import AUGMENTATIONS, Augmentation, image_views
from tacit.gradients.dropout import Dropout, record_coins
from tacit.gradients.inputs import Output, picked, with_output
from tacit.gradients.losses import LOSSES, Loss, loss_from_mean, weighted
from tacit.gradients.moments import Moments, moments_of
from tacit.gradients.recurrent import Recurrent
from tacit.gradients.stacked import BatchGradient, StackedModel, build
from tacit.gradients.table import GradientTable, Replacement, refuse_coins
from tacit.gradients.table_storage import TableNeed, available_bytes, entries_of, table_need

__all__ = [
    "AUGMENTATIONS",
    "LOSSES",
    "Augmentation",
    "BatchGradient",
    "Dropout",
    "GradientTable",
    "Loss",
    "Moments",
    "Output",
    "Recurrent",
    "Replacement",
    "StackedModel",
    "TableNeed",
    "available_bytes",
    "build",
    "entries_of",
    "image_views",
    "loss_from_mean",
    "moments_of",
    "picked",
    "record_coins",
    "refuse_coins",
    "table_need",
    "weighted",
    "with_output",
]
