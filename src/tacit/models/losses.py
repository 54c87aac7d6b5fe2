"""The loss and the metric of a task: by name, or a user's own by `module:function`."""

from __future__ import annotations

from tacit.errors import InputError, nearest
from tacit.gradients import LOSSES, Loss, loss_from_mean, with_metric
from tacit.models.imports import import_function

__all__ = ["find_loss"]


def find_loss(name: str, metric: str | None = None) -> Loss:
    """The loss that `[task].loss` names, scored by what `[task].metric` names.

    Args:
        name: a key of `LOSSES`, or `module:function`: (outputs `[r, ...]`, targets `[r, ...]`) ->
            the mean loss over the records, a scalar. The module is looked for in the current
            directory first.
        metric: None for the accuracy that the loss has, if any; or `module:function`: (outputs,
            targets) -> one score a record, `[r]`.

    Raises:
        InputError: on `task.loss` or `task.metric` for an unknown name, or a function that cannot
            be found. Whether a function returns what it should is seen by the loss's `check`.
    """
    loss = _loss(name)
    if metric is None:
        return loss
    return with_metric(loss, metric, import_function(metric, "task.metric"))


def _loss(name: str) -> Loss:
    if ":" in name:
        return loss_from_mean(name, import_function(name, "task.loss"))
    if name not in LOSSES:
        expected = f"not a loss; {nearest(name, LOSSES)} (or 'module:function' for your own)"
        raise InputError("task.loss", name, expected)
    return LOSSES[name]
