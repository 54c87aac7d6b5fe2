"""Clipped gradients of every record, for a stack of nodes with weights of their own."""

from tacit.gradients.losses import LOSSES, Loss, loss_from_mean
from tacit.gradients.stacked import BatchGradient, StackedModel, build

__all__ = ["LOSSES", "BatchGradient", "Loss", "StackedModel", "build", "loss_from_mean"]
