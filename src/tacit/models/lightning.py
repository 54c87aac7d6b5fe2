"""Modules of Lightning: their `forward` is trained as any module's, with the loss they declare.

The loss is that of `training_step`, where a module has one: it is called with the batch
`(inputs, targets)`, and its `forward` then gives the outputs that were computed already. So it is a
function of outputs and targets, and of one record at a time, as `loss_from_mean` asks. What it must
not do is read the inputs by itself, or add a term of the parameters: both are refused, since
neither would be trained. A module without one may have its loss as the attribute `loss` or
`criterion`, a function of `(outputs, targets)`.

Optimizers, schedulers, callbacks and the trainer of Lightning are not used. Lightning itself need
not be installed for any of this.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from tacit.errors import InputError
from tacit.gradients import Loss, loss_from_mean

_PACKAGES = ("lightning", "pytorch_lightning")
_ATTRIBUTES = ("loss", "criterion")
_REMEDY = "name the loss as task.loss in its place"


def is_lightning(module: nn.Module | None) -> bool:
    """Whether a module is a LightningModule, by the class that it derives from."""
    return _base(module) is not None


def _base(module: nn.Module | None) -> type | None:
    """The class LightningModule that a module derives from."""
    return next(
        (
            kind
            for kind in type(module).__mro__
            if kind.__name__ == "LightningModule" and kind.__module__.split(".")[0] in _PACKAGES
        ),
        None,
    )


def lightning_loss(module: nn.Module | None) -> Loss | None:
    """The loss that a LightningModule declares; None where it declares none, or is none.

    Its `check` raises `InputError` on `task.loss` where it is no function of outputs and targets
    alone.
    """
    base = _base(module)
    if base is None or module is None:
        return None
    name = type(module).__name__
    if type(module).training_step is not base.training_step:  # type: ignore[attr-defined]
        return _alone(f"{name}.training_step", _by_step(module))
    for attribute in _ATTRIBUTES:
        function = getattr(module, attribute, None)
        if callable(function):
            return _alone(f"{name}.{attribute}", function)
    return None


def lightning_notes(module: nn.Module | None, loss: Loss) -> tuple[str, ...]:
    """What is said of a LightningModule: what of it is used, and what is not."""
    if not is_lightning(module):
        return ()
    return (
        f"the model is a LightningModule: its forward is trained, by the loss {loss.name}; its "
        "optimizers, schedulers, callbacks and trainer are not used",
    )


class _Inputs:
    """Stands for the inputs of a batch: it may be handed to `forward`, and counted."""

    def __init__(self, records: int) -> None:
        self.shape = (records,)

    def __len__(self) -> int:
        return self.shape[0]

    def size(self, dimension: int = 0) -> int:
        """How many records there are."""
        return self.shape[dimension]


def _by_step(module: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """The mean loss of `training_step` for outputs that were computed already."""
    step = type(module).training_step  # type: ignore[attr-defined]
    more = [0] * (len(inspect.signature(step).parameters) - 2)  # the number of the batch

    def mean_loss(outputs: Tensor, targets: Tensor) -> Tensor:
        inputs, probe = _Inputs(len(targets)), copy.copy(module)

        def forward(given: object, *others: object, **named: object) -> Tensor:
            if given is not inputs or others or named:
                raise ValueError(
                    f"it must call self(inputs) with the inputs as they are; {_REMEDY}"
                )
            return outputs

        # In the copy's own dictionary, past what modules do with attributes.
        vars(probe).update(forward=forward, log=_nothing, log_dict=_nothing)
        returned = step(probe, (inputs, targets), *more)
        loss: Tensor = returned["loss"] if isinstance(returned, Mapping) else returned
        return loss

    return mean_loss


def _nothing(*arguments: object, **named: object) -> None:
    """Nothing is logged: what a step logs is measured on private records."""


def _alone(name: str, mean_loss: Callable[[Tensor, Tensor], Tensor]) -> Loss:
    """The loss of a user's function, refused where parameters enter it beside the outputs."""
    loss = loss_from_mean(name, mean_loss)

    def check(outputs: Tensor, targets: Tensor) -> None:
        loss.check(outputs, targets)
        few = min(len(outputs), len(targets))
        with torch.enable_grad():
            found = mean_loss(outputs[:few].detach(), targets[:few])
        if found.requires_grad:
            raise InputError(
                "task.loss",
                name,
                "depends on parameters beside the outputs, such as a term of weight decay, which "
                f"would not be trained; leave that out, or {_REMEDY}",
            )

    return replace(loss, check=check)
