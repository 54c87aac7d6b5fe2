"""Losses as functions of one record each, so that a batch loss is a sum or mean over records.

| name | targets | outputs | one record's loss | accuracy |
|---|---|---|---|---|
| `cross-entropy` | int64 classes `[r]` | `[r, classes]` | -log softmax(outputs)[target] | argmax |
| `mse` | numbers, as many as outputs | `[r, ...]` | mean of squared differences | none |
| `logistic` | -1 or 1, `[r]` or `[r, 1]` | `[r]` or `[r, 1]` | log(1 + exp(-y output)) | sign |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tacit.errors import InputError, describe

__all__ = ["LOSSES", "Loss", "loss_from_mean"]


@dataclass(frozen=True)
class Loss:
    """A loss that is a mean over records.

    Attributes:
        name: as in `task.loss`.
        per_record: (outputs `[r, ...]`, targets `[r, ...]`) -> losses `[r]`; record i of the
            result depends on record i of the arguments only.
        accuracy: (outputs, targets) -> 1 where the prediction is right, else 0, `[r]`; or None
            where the loss has no notion of right.
        check: (outputs `[few, ...]`, targets `[r, ...]`) -> None; raises `InputError` on
            `task.model` if the outputs have the wrong shape and on `task.dataset` if the targets
            do not fit. The two need not have the same number of records: a whole data set's
            targets can be checked against the outputs of a few.
    """

    name: str
    per_record: Callable[[Tensor, Tensor], Tensor]
    accuracy: Callable[[Tensor, Tensor], Tensor] | None
    check: Callable[[Tensor, Tensor], None]


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


def _argmax_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(dim=1) == targets).to(outputs.dtype)


def _check_cross_entropy(outputs: Tensor, targets: Tensor) -> None:
    if outputs.ndim != 2:
        raise InputError(
            "task.model",
            _shape(outputs),
            "this is the shape of its output; cross-entropy needs [records, classes]",
        )
    if targets.dtype != torch.int64 or targets.ndim != 1:
        raise InputError(
            "task.dataset",
            f"targets {_shape(targets)} of {targets.dtype}",
            "cross-entropy needs one int64 class a record, of shape [records]",
        )
    classes = outputs.shape[1]
    _check_values(
        targets,
        (targets >= 0) & (targets < classes),
        f"the model has {classes} outputs, so classes must lie in 0..{classes - 1}",
    )


def _mse(outputs: Tensor, targets: Tensor) -> Tensor:
    differences = outputs - targets.reshape(outputs.shape)
    return differences.square().unsqueeze(-1).flatten(1).mean(dim=1)


def _check_mse(outputs: Tensor, targets: Tensor) -> None:
    outputs_count, targets_count = math.prod(outputs.shape[1:]), math.prod(targets.shape[1:])
    if outputs_count != targets_count:
        raise InputError(
            "task.model",
            _shape(outputs),
            f"this is the shape of its output; mse needs {targets_count} outputs a record, "
            f"as many as the targets have",
        )
    if not targets.is_floating_point():
        raise InputError(
            "task.dataset", f"targets of {targets.dtype}", "mse needs floating-point targets"
        )
    _check_values(targets, torch.isfinite(targets), "targets must be finite")


def _logistic(outputs: Tensor, targets: Tensor) -> Tensor:
    # logsigmoid and not softplus: torch's softplus turns linear above a threshold of 20.
    margins = outputs.reshape(-1) * targets.reshape(-1)
    return -functional.logsigmoid(margins)


def _sign_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    # A score of exactly zero is right for neither class.
    return (outputs.reshape(-1) * targets.reshape(-1) > 0).to(outputs.dtype)


def _check_logistic(outputs: Tensor, targets: Tensor) -> None:
    if math.prod(outputs.shape[1:]) != 1 or outputs.ndim > 2:
        raise InputError(
            "task.model",
            _shape(outputs),
            "this is the shape of its output; logistic needs one score a record, "
            "[records] or [records, 1]",
        )
    if math.prod(targets.shape[1:]) != 1 or targets.ndim > 2:
        raise InputError(
            "task.dataset",
            f"targets {_shape(targets)}",
            "logistic needs one target a record, of shape [records] or [records, 1]",
        )
    _check_values(targets, (targets == 1) | (targets == -1), "logistic targets must be -1 or 1")


def _check_values(targets: Tensor, right: Tensor, expected: str) -> None:
    if not bool(right.all()):
        first = targets[~right].flatten()[0].item()
        raise InputError("task.dataset", f"a target of {first}", expected)


def _shape(tensor: Tensor) -> list[int]:
    return list(tensor.shape)


LOSSES: dict[str, Loss] = {
    loss.name: loss
    for loss in (
        Loss("cross-entropy", _cross_entropy, _argmax_accuracy, _check_cross_entropy),
        Loss("mse", _mse, None, _check_mse),
        Loss("logistic", _logistic, _sign_accuracy, _check_logistic),
    )
}


def loss_from_mean(name: str, mean_loss: Callable[[Tensor, Tensor], Tensor]) -> Loss:
    """A `Loss` from a user's function (outputs `[r, ...]`, targets `[r, ...]`) -> scalar mean.

    Each record's loss is the function's value for a batch of that record alone, so the batch loss
    is the mean over records whatever the function does with a batch.
    """

    def one(outputs: Tensor, targets: Tensor) -> Tensor:
        return mean_loss(outputs.unsqueeze(0), targets.unsqueeze(0)).reshape(())

    def per_record(outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.func.vmap(one)(outputs, targets)

    def check(outputs: Tensor, targets: Tensor) -> None:
        few = min(outputs.shape[0], targets.shape[0])
        try:
            losses = per_record(outputs[:few], targets[:few])
        except Exception as error:
            raise InputError(
                "task.loss",
                name,
                "the function must take (outputs, targets) and return a scalar; "
                f"it failed: {describe(error)}",
            ) from error
        if not bool(torch.isfinite(losses).all()):
            raise InputError("task.loss", name, "the loss must be finite on the first records")

    return Loss(name, per_record, None, check)
