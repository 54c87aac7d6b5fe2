"""Losses as functions of one record each, so that a batch loss is a sum or mean over records.

| name | targets | outputs | one record's loss | accuracy |
|---|---|---|---|---|
| `cross-entropy` | int64 classes `[r]` | `[r, classes]` | -log softmax(outputs)[target] | argmax |
| `mse` | numbers, as many as outputs | `[r, ...]` | mean of squared differences | none |
| `huber` | likewise | likewise | mean of squares, linear beyond a quarter | none |
| `logistic` | -1 or 1, `[r]` or `[r, 1]` | `[r]` or `[r, 1]` | log(1 + exp(-y output)) | sign |

Under `huber` an error e counts e^2 up to B, `HUBER_BEND`, and 2 B abs(e) - B^2 beyond, along the
tangent there (Huber, *Robust estimation of a location parameter*, 1964, times 2), so that records
far off pull no harder than those at B. Targets are to lie within about -1 and 1.

The targets of `logistic` may also be 0 or 1, the y of the formula then being -1 for 0; integers and
floating-point numbers will do.

Where a record has several targets `[r, ...]`, its loss is the mean over its own, and its accuracy
the share of its own that are right: of masks and next tokens under `cross-entropy`, whose outputs
are `[r, classes, ...]` or `[r, ..., classes]`, and of several labels under `logistic`, with one
output each. A class of -100 is not there; a record without any other has loss and gradient zero.

`loss_from_mean` takes a user's own loss, a mean over records; `weighted` gives each class a public
weight. Whatever a user's loss does with a batch, a record's loss here is
its value for that record alone: so the gradient that is clipped is a function of one record, and
epsilon holds. That the function is what it should be, the mean over the records, is tried out on a
few, and refused if it is not.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.errors import InputError, RecordsError, describe

IGNORED = -100
"""The class, as PyTorch has it, of a place that is not there; of one of several of a record."""

Formula = Literal["cross-entropy", "mse", "huber", "logistic"]
"""A loss whose derivative by the outputs is known, and needs no autograd."""

OF_NUMBERS: tuple[str | None, ...] = ("mse", "huber")
"""Losses of predicted numbers."""

HUBER_BEND = 0.25
"""The error beyond which `huber` is linear, of targets within -1 and 1."""


def natural_outputs(targets: Tensor, classes: int | None) -> int | None:
    """How many numbers a model gives for a record, going by what is public alone.

    The number of classes, at least 2, where targets are class labels: integers from 0, one a
    record; else as many as a record has targets. None where nothing says it.

    Args:
        targets: public ones, `[r, ...]`; where r is 0, only their shape and type are known.
        classes: how many are declared; None: nobody has said it, and public targets count.
    """
    width = math.prod(targets.shape[1:])
    if targets.is_floating_point() or width != 1:
        return width
    if classes is None and targets.numel() and int(targets.min()) < 0:
        return width
    return _counted(targets, classes)


def _counted(targets: Tensor, classes: int | None) -> int | None:
    if classes is None and not targets.numel():
        return None
    return max(2, 1 + int(targets.max()) if classes is None else classes)


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
            targets can be checked against the outputs of a few. For public targets: it may try
            them out, and quote what came of it.
        outputs: (public targets `[r, ...]`, declared number of classes or None) -> how many
            numbers a model that is built for this loss gives for a record, None where it has to be
            declared; see `natural_outputs`. Raises `InputError` on `task.loss` where the loss
            cannot take such targets.
        labels: whether targets are labels, also where they are floating-point numbers.
        check_records: as `check`, for private targets: asks them for a public rule, and says no
            more than how many break it.
        formula: which known loss `per_record` is; None for a user's own, and for a weighted one.
        weights: what a record's loss is multiplied by, one a class; None: by nothing.
    """

    name: str
    per_record: Callable[[Tensor, Tensor], Tensor]
    accuracy: Callable[[Tensor, Tensor], Tensor] | None
    check: Callable[[Tensor, Tensor], None]
    outputs: Callable[[Tensor, int | None], int | None] = natural_outputs
    labels: bool = False
    check_records: Callable[[Tensor, Tensor], None] = lambda outputs, targets: None
    formula: Formula | None = None
    weights: tuple[float, ...] | None = None


def class_axis(outputs: Tensor, targets: Tensor) -> int | None:
    """Along which axis of outputs `[r, ...]` the classes of targets `[r, ...]` lie; None: none."""
    places = targets.shape[1:]
    if outputs.ndim > 1 and outputs.shape[2:] == places:
        return 1
    return outputs.ndim - 1 if outputs.ndim > 2 and outputs.shape[1:-1] == places else None


def _classes_first(outputs: Tensor, targets: Tensor) -> Tensor:
    """Outputs `[r, classes, ...]`."""
    return outputs if outputs.ndim < 3 else outputs.movedim(class_axis(outputs, targets) or 1, 1)


def _mean_of_kept(values: Tensor, targets: Tensor, ignored: int = IGNORED) -> Tensor:
    """The mean over each record's own targets that are there, `[r]`; 0 where none is."""
    kept = (targets != ignored).flatten(1)
    total = torch.where(kept, values.flatten(1), 0.0).sum(dim=1)
    return total / kept.sum(dim=1).clamp(min=1)


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    if targets.ndim < 2:
        return functional.cross_entropy(outputs, targets, reduction="none")
    each = functional.cross_entropy(_classes_first(outputs, targets), targets, reduction="none")
    return _mean_of_kept(each, targets)


def _argmax_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    right = (_classes_first(outputs, targets).argmax(dim=1) == targets).to(outputs.dtype)
    return right if targets.ndim < 2 else _mean_of_kept(right, targets)


def _check_cross_entropy(outputs: Tensor, targets: Tensor) -> None:
    several = outputs.ndim > 2 and targets.ndim > 1
    axis = class_axis(outputs, targets) if several else 1
    if axis is None or (outputs.ndim != 2 and not several):
        places = "".join(f", {size}" for size in targets.shape[1:])
        raise InputError(
            "task.model",
            _shape(outputs)[1:],
            "this is the shape of its output for one record; "
            f"cross-entropy needs [classes{places}]",
        )
    if targets.dtype != torch.int64 or (targets.ndim != 1 and not several):
        expected = "cross-entropy needs one int64 class a record, of shape [records]"
        raise InputError("task.dataset", f"targets {_shape(targets)} of {targets.dtype}", expected)
    classes = outputs.shape[axis]
    rule = f"the model has {classes} outputs, so classes must lie in 0..{classes - 1}"
    if classes <= 2:
        rule += "; for labels of -1 and 1 set task.loss = 'logistic'"
    there = (targets >= 0) & (targets < classes)
    _check_values(targets, there | (several & (targets == IGNORED)), rule)


def _classes(targets: Tensor, classes: int | None) -> int | None:
    if targets.is_floating_point():
        raise InputError(
            "task.loss", "cross-entropy", "needs integer class labels; for numbers use 'mse'"
        )
    return _counted(targets, classes)


def _mse(outputs: Tensor, targets: Tensor) -> Tensor:
    differences = outputs - targets.reshape(outputs.shape)
    return differences.square().unsqueeze(-1).flatten(1).mean(dim=1)


def _huber(outputs: Tensor, targets: Tensor) -> Tensor:
    sizes = (outputs - targets.reshape(outputs.shape)).abs()
    near = sizes.clamp(max=HUBER_BEND)
    return (near * (2 * sizes - near)).unsqueeze(-1).flatten(1).mean(dim=1)


def _check_numbers(name: str, outputs: Tensor, targets: Tensor) -> None:
    outputs_count, targets_count = math.prod(outputs.shape[1:]), math.prod(targets.shape[1:])
    if outputs_count != targets_count:
        raise InputError(
            "task.model",
            _shape(outputs)[1:],
            f"this is the shape of its output for one; {name} needs {targets_count} outputs a "
            "record, as many as the targets have",
        )
    if not targets.is_floating_point():
        raise InputError(
            "task.dataset", f"targets of {targets.dtype}", f"{name} needs floating-point targets"
        )
    _check_values(targets, torch.isfinite(targets), "targets must be finite")


def _width(targets: Tensor, classes: int | None) -> int:
    return math.prod(targets.shape[1:])


def _margins(outputs: Tensor, targets: Tensor) -> Tensor:
    """Outputs times the sign of the class, `[r, m]`."""
    scores = outputs.reshape(len(outputs), -1)
    return torch.where(targets.reshape(len(targets), -1) > 0, scores, -scores)


def _logistic(outputs: Tensor, targets: Tensor) -> Tensor:
    # logsigmoid and not softplus: torch's softplus turns linear above a threshold of 20.
    return -functional.logsigmoid(_margins(outputs, targets)).mean(dim=1)


def _sign_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    # A score of exactly zero is right for neither class.
    return (_margins(outputs, targets) > 0).to(outputs.dtype).mean(dim=1)


def _check_logistic(outputs: Tensor, targets: Tensor) -> None:
    given, wanted = _width(outputs, None), _width(targets, None)
    if given == 1 and wanted != 1:
        raise InputError(
            "task.dataset",
            f"targets {_shape(targets)}",
            "logistic needs one target a record, of shape [records] or [records, 1], where the "
            "model has one output",
        )
    if given != wanted or (given == 1 and outputs.ndim > 2):
        of_several = f"; here {wanted}, one for each target" if wanted > 1 else ""
        raise InputError(
            "task.model",
            _shape(outputs)[1:],
            "this is the shape of its output for one record; logistic needs one score, [] or [1]"
            f"{of_several}",
        )
    expected = "logistic targets must be -1 or 1, or 0 or 1; for more classes use 'cross-entropy'"
    negative, zero = targets == -1, targets == 0
    _check_values(targets, (targets == 1) | negative | zero, expected)
    if bool(negative.any()) and bool(zero.any()):
        _refuse(zero, expected)


def _check_values(targets: Tensor, right: Tensor, expected: str) -> None:
    if not bool(right.all()):
        _refuse(~right, expected)


def _refuse(wrong: Tensor, rule: str) -> None:
    count = int(wrong.reshape(len(wrong), -1).any(dim=1).sum())
    raise RecordsError("task.dataset", f"{count:,} of {len(wrong):,} records", rule)


def _shape(tensor: Tensor) -> list[int]:
    return list(tensor.shape)


def _named(
    name: Formula,
    per_record: Callable[[Tensor, Tensor], Tensor],
    accuracy: Callable[[Tensor, Tensor], Tensor] | None,
    check: Callable[[Tensor, Tensor], None],
    outputs: Callable[[Tensor, int | None], int | None],
) -> Loss:
    """Of these losses, `check` is a public rule, and tries nothing out."""
    labels = accuracy is not None
    return Loss(
        name, per_record, accuracy, check, outputs, labels, check_records=check, formula=name
    )


LOSSES: dict[str, Loss] = {
    loss.name: loss
    for loss in (
        _named("cross-entropy", _cross_entropy, _argmax_accuracy, _check_cross_entropy, _classes),
        _named("mse", _mse, None, partial(_check_numbers, "mse"), _width),
        _named("huber", _huber, None, partial(_check_numbers, "huber"), _width),
        _named("logistic", _logistic, _sign_accuracy, _check_logistic, _width),
    )
}


_RECORDS = 4
_TOLERANCE = 1e-6
_LOSS = "must take (outputs, targets) and return their mean loss over the records, a scalar"
_WEIGHTS = "for weights of classes give task.class_weights, which keeps the mean over records"

Function = Callable[[Tensor, Tensor], Tensor]


def loss_from_mean(name: str, mean_loss: Function) -> Loss:
    """A `Loss` from a user's function (outputs `[r, ...]`, targets `[r, ...]`) -> scalar mean.

    Each record's loss is the function's value for a batch of that record alone. The function must
    work in float32 and float64 and under `torch.func.vmap`. `check` of the result raises
    `InputError` on `task.loss` if the function fails, returns anything but a finite floating-point
    scalar that depends on the outputs, or is not the mean over the records. The name, such as
    `module:function`, is what an error names.

    Raises:
        InputError: on `task.loss` for a loss of PyTorch that has weights of classes.
    """
    divides = isinstance(mean_loss, nn.CrossEntropyLoss | nn.NLLLoss)
    if divides and getattr(mean_loss, "weight", None) is not None:
        raise InputError(
            "task.loss",
            name,
            "PyTorch divides this loss by the weights of the whole batch, so that it is no mean "
            f"over records; {_WEIGHTS}, beside the same loss without a weight",
        )

    if divides and getattr(mean_loss, "reduction", None) == "mean":
        mean_loss = _of_kept(mean_loss)

    def one(outputs: Tensor, targets: Tensor) -> Tensor:
        value: object = mean_loss(outputs.unsqueeze(0), targets.unsqueeze(0))
        if not isinstance(value, Tensor) or value.ndim:
            raise InputError("task.loss", name, f"{_LOSS}; it returned {_kind(value)}")
        return value

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
                    f"it gives for each alone is {mean.item():.6g}; {_WEIGHTS}",
                )

    return Loss(name, per_record, None, check)


def _of_kept(mean_loss: Any) -> Function:
    """A loss of PyTorch that ignores a class: the mean over records of that over their own."""
    each, ignored = copy.copy(mean_loss), mean_loss.ignore_index
    each.reduction = "none"

    def mean(outputs: Tensor, targets: Tensor) -> Tensor:
        losses: Tensor = each(outputs, targets)
        if losses.shape != targets.shape:  # shares of classes, none of which is ignored
            return losses.mean()
        return _mean_of_kept(
            losses.reshape(len(losses), -1), targets.reshape(len(losses), -1), ignored
        ).mean()

    return mean


def weighted(loss: Loss, weights: Sequence[float]) -> Loss:
    """The same loss, of which each record counts by the weight of its class.

    A record's loss is multiplied by its class's weight over the mean of all weights, so that
    weights that are all equal change nothing. The weights are public: no labels are counted. They
    are positive, one a class; of `logistic` that of the negative class comes first.

    Returns:
        A loss whose checks raise `InputError` on `task.class_weights` where there are not as many
        weights as classes, or targets are no classes, and `RecordsError` where private ones are
        none.

    Raises:
        InputError: on `task.class_weights` for a loss of numbers, which has no classes.
    """
    if loss.formula in OF_NUMBERS:
        expected = f"needs classes, and '{loss.name}' has none"
        raise InputError("task.class_weights", list(weights), expected)
    mean = math.fsum(weights) / len(weights)
    shares = tuple(weight / mean for weight in weights)

    def per_record(outputs: Tensor, targets: Tensor) -> Tensor:
        flat = targets.reshape(len(outputs))
        classes = (flat > 0).long() if math.prod(outputs.shape[1:]) == 1 else flat
        factors = torch.tensor(shares, dtype=outputs.dtype, device=outputs.device)
        return factors[classes] * loss.per_record(outputs, targets)

    def also(rule: Callable[[Tensor, Tensor], None]) -> Callable[[Tensor, Tensor], None]:
        def check(outputs: Tensor, targets: Tensor) -> None:
            classes = max(2, math.prod(outputs.shape[1:]))
            if classes != len(weights):
                expected = f"needs one weight a class: there are {classes} classes"
                raise InputError("task.class_weights", list(weights), expected)
            rule(outputs, targets)
            _check_classes(outputs, targets)

        return check

    return replace(
        loss,
        per_record=per_record,
        check=also(loss.check),
        check_records=also(loss.check_records),
        formula=None,
        weights=shares,
    )


def _check_classes(outputs: Tensor, targets: Tensor) -> None:
    """Refuse targets that are no classes, of one output or of several."""
    one = math.prod(outputs.shape[1:]) == 1
    if math.prod(targets.shape[1:]) != 1 or (targets.is_floating_point() and not one):
        raise InputError(
            "task.class_weights",
            f"targets {_shape(targets)} of {targets.dtype}",
            "class weights need one class a record",
        )
    last = len(outputs[0].reshape(-1)) - 1
    right = (targets >= 0) & (targets <= last)
    rule = f"task.class_weights needs classes from 0 to {last}"
    if one:
        right = (targets == 1) | (targets == 0) | (targets == -1)
        rule = "task.class_weights needs targets that are -1 or 1, or 0 or 1"
    _check_values(targets, right, rule)


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
        hint = f"; {_WEIGHTS}" if "expected scalar type" in str(error) else ""
        raise InputError(
            "task.loss",
            name,
            f"{_LOSS}; for outputs {list(outputs.shape)} and targets {list(targets.shape)} of "
            f"{outputs.dtype} and {targets.dtype} it failed: {describe(error)}{hint}",
        ) from error


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
