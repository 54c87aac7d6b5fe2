"""A user's own loss, a mean over records, and a user's own metric, a score for each record.

Whatever a user's loss does with a batch, a record's loss here is its value for that record alone:
so the gradient that is clipped is a function of one record, and epsilon holds. That the function is
what it should be, the mean over the records, is tried out on a few, and refused if it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from tacit.errors import InputError, describe
from tacit.gradients.losses import Loss

__all__ = ["loss_from_mean", "with_metric"]

_RECORDS = 4
_TOLERANCE = 1e-6
_LOSS = "must take (outputs, targets) and return their mean loss over the records, a scalar"
_METRIC = "must take (outputs, targets) and return one score a record, of shape [records]"

Function = Callable[[Tensor, Tensor], Tensor]


def loss_from_mean(name: str, mean_loss: Function) -> Loss:
    """A `Loss` from a user's function (outputs `[r, ...]`, targets `[r, ...]`) -> scalar mean.

    Each record's loss is the function's value for a batch of that record alone. `check` of the
    result raises `InputError` on `task.loss` if the function fails, returns anything but a finite
    floating-point scalar that depends on the outputs, or is not the mean over the records.

    Args:
        name: what an error names, such as `module:function`.
        mean_loss: must work in float32 and float64 and under `torch.func.vmap`.
    """

    def one(outputs: Tensor, targets: Tensor) -> Tensor:
        return _scalar(name, mean_loss(outputs.unsqueeze(0), targets.unsqueeze(0)))

    def per_record(outputs: Tensor, targets: Tensor) -> Tensor:
        losses: Tensor = torch.func.vmap(one)(outputs, targets)
        return losses

    def check(outputs: Tensor, targets: Tensor) -> None:
        few = min(_RECORDS, outputs.shape[0], targets.shape[0])
        outputs, targets = outputs[:few].detach(), targets[:few]
        _losses(name, per_record, outputs, targets)
        exact = targets.double() if targets.is_floating_point() else targets
        _losses(name, per_record, outputs.double(), exact)
        for varied in (outputs.double(), _varied(outputs.double())):
            mean = _called(name, per_record, varied, exact).mean()
            whole = _called(name, lambda *pair: mean_loss(*pair).detach(), varied, exact)
            if torch.isfinite(mean) and not _close(whole, mean):
                raise InputError(
                    "task.loss",
                    name,
                    f"{_LOSS}; for {few} records it gives {_kind(whole)}, and the mean of what "
                    f"it gives for each alone is {mean.item():.6g}",
                )

    return Loss(name, per_record, None, check)


def with_metric(loss: Loss, name: str, metric: Function) -> Loss:
    """The same loss with a user's metric in the place of its accuracy.

    Args:
        loss: any.
        name: what an error names, such as `module:function`.
        metric: (outputs `[r, ...]`, targets `[r, ...]`) -> scores `[r]`, numbers or booleans. Its
            scores are reported for public test records only.

    Returns:
        A loss whose `accuracy` raises `InputError` on `task.metric` if the metric fails or returns
        anything but one number a record, and whose `check` tries that out.
    """

    def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
        try:
            scores: object = metric(outputs, targets)
        except Exception as error:  # whatever the user's function raises
            raise InputError("task.metric", name, f"{_METRIC}; {describe(error)}") from error
        if not isinstance(scores, Tensor) or scores.shape != outputs.shape[:1]:
            records = outputs.shape[0]
            raise InputError(
                "task.metric", name, f"{_METRIC}; for {records} records it returned {_kind(scores)}"
            )
        return scores.to(outputs.dtype)

    def check(outputs: Tensor, targets: Tensor) -> None:
        loss.check(outputs, targets)
        few = min(outputs.shape[0], targets.shape[0])
        accuracy(outputs[:few], targets[:few])

    return replace(loss, accuracy=accuracy, check=check)


def _losses(name: str, per_record: Function, outputs: Tensor, targets: Tensor) -> Tensor:
    """The losses of a few records, if they are finite and depend on the outputs."""
    with torch.enable_grad():
        losses = _called(name, per_record, outputs.detach().requires_grad_(), targets)
    if not losses.is_floating_point() or not losses.requires_grad:
        raise InputError(
            "task.loss", name, f"{_LOSS}; autograd finds nothing in it that depends on the outputs"
        )
    if not bool(torch.isfinite(losses).all()):
        raise InputError("task.loss", name, "the loss must be finite on the example records")
    return losses.detach()


def _called(name: str, function: Function, outputs: Tensor, targets: Tensor) -> Tensor:
    """What a user's function returns, or one line about why it does not."""
    try:
        result: Tensor = function(outputs, targets)
        return result
    except InputError:
        raise
    except Exception as error:  # whatever the user's function raises
        raise InputError(
            "task.loss",
            name,
            f"{_LOSS}; for outputs {list(outputs.shape)} and targets {list(targets.shape)} of "
            f"{outputs.dtype} and {targets.dtype} it failed: {describe(error)}",
        ) from error


def _scalar(name: str, value: object) -> Tensor:
    if not isinstance(value, Tensor) or value.ndim:
        raise InputError("task.loss", name, f"{_LOSS}; it returned {_kind(value)}")
    return value


def _close(found: Tensor, right: Tensor) -> bool:
    return found.shape == right.shape and torch.allclose(
        found, right.to(found.dtype), rtol=_TOLERANCE, atol=_TOLERANCE
    )


def _varied(outputs: Tensor) -> Tensor:
    """Outputs that differ between records where a model at its start gives all of them the same.

    Positive ones stay so, and what lies between 0 and 1 stays there, as probabilities must.
    """
    generator = torch.Generator().manual_seed(21)
    scales, shifts = torch.rand(2, *outputs.shape, generator=generator, dtype=outputs.dtype)
    scales, shifts = scales.to(outputs.device), shifts.to(outputs.device)
    return outputs.mul(0.5 + 0.4 * scales).add(shifts, alpha=0.05)


def _kind(value: object) -> str:
    """A value of the user's in a few words."""
    if isinstance(value, Tensor):
        return (
            f"{value.item():.6g}" if value.ndim == 0 else f"a tensor of shape {list(value.shape)}"
        )
    return f"a {type(value).__name__}"
