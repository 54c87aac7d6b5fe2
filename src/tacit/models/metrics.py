"""What a run is judged by: scores of a model on all the public test records together.

| name | needs | score of several classes, or of several numbers a record |
|---|---|---|
| `accuracy` | classes | share of right classes |
| `balanced-accuracy` | classes | mean over classes of the share that is found |
| `auc` | classes | area under the ROC curve, one class against the rest, mean over classes |
| `average-precision` | classes | one class against the rest, mean over classes |
| `f1` | classes | of class 1 where there are two, else the mean over classes |
| `brier`, `log-loss` | classes | of the probabilities (`tacit.models.probabilities`) |
| `calibration` | classes | predicted over observed prevalence; of the predicted class |
| `calibration-slope` | two classes | refused |
| `mae`, `rmse`, `r2` | numbers | mean over the numbers of a record, errors in the unit of a table |

Classes are integer targets beside at least two outputs a record, or targets -1 or 1, or 0 or 1,
beside one output. The predicted class is the largest output, or the sign of the one output. `auc`
and `average-precision` rank records by the softmax probability of a class, or by the one output;
classes without a test record are left out of their mean. scikit-learn computes all of these but
`auc`: that is the sum of ranks of Mann and Whitney, which gives the same number in a tenth of the
time (measured at 1,000 records, where scikit-learn's checks take longer than the sorting).

Where a record has several targets, a metric of classes is of all places together, of masks and next
tokens (without those that are not there), and the mean of that of each label, of several labels.

A *baseline* is what the same metric says of a model that ignores its inputs: of outputs that are
the same for every record, namely the logarithms of the class frequencies (or their log-odds) where
there are classes, else the mean of the targets. It is a function of public test targets alone.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import InputError, describe
from tacit.gradients import Loss
from tacit.gradients.losses import IGNORED, OF_NUMBERS, class_axis
from tacit.models import probabilities
from tacit.models.imports import import_function
from tacit.report.measures import MEASURES, Measure, measure_of

Array = NDArray[Any]
Function = Callable[[Tensor, Tensor], Any]

GIVEN_METRIC = "given:"
"""Begins what an experiment calls a metric that was passed as an object; its name follows."""

_EXPECTED = (
    "must take (outputs, targets), both with one row a test record, and return one number for all "
    "of them"
)
_SAME = 0.01  # of the span of targets, or of probabilities: outputs within are one answer
_SMALLEST = 1e-30  # a frequency, so that its logarithm is finite
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Metric:
    """A score of whole test sets: `function` makes a number of outputs and targets `[r, ...]`."""

    measure: Measure
    function: Function

    @property
    def name(self) -> str:
        """As `[task].metric` has it."""
        return self.measure.name


@dataclass(frozen=True)
class Baselines:
    """What a model that ignores its inputs scores on the public test records.

    None where that is not known, as for a loss of one's own.

    Args:
        accuracy: the share of the most frequent class.
        loss: of the constant output for which it is least.
        metrics: one a metric of the task, in their order.
    """

    accuracy: float | None = None
    loss: float | None = None
    metrics: tuple[float | None, ...] = ()

    def by_name(self, metrics: Sequence[Metric]) -> dict[str, float | None]:
        """All of them: of accuracy, loss and each metric of the task."""
        own = zip(metrics, self.metrics, strict=True)
        common = {"accuracy": self.accuracy, "loss": self.loss}
        return common | {metric.name: value for metric, value in own}


def find_metrics(
    names: Sequence[str] | None,
    functions: Mapping[str, Function] | None = None,
    unscaled: Callable[[Tensor], Array] | None = None,
) -> tuple[Metric, ...]:
    """The metrics that `[task].metric` names: keys of `METRICS`, or `module:function`.

    Such a function is (outputs, targets) -> number; the module is looked for in the current
    directory first. `functions` are those that were passed as objects, as `named_metrics` has them.
    `unscaled` brings outputs and targets to the unit of the target, in which errors are.

    Raises:
        InputError: on `task.metric` for a function that cannot be found.
    """

    def in_unit(metric: Metric) -> Metric:
        if unscaled is None or metric.name not in IN_UNIT:
            return metric
        unit = unscaled

        def function(outputs: Tensor, targets: Tensor) -> Any:
            pair = (torch.from_numpy(unit(values.cpu())) for values in (outputs, targets))
            return metric.function(*pair)

        return replace(metric, function=function)

    return tuple(in_unit(_found(name, functions or {})) for name in names or ())


def named_metrics(
    metrics: str | Function | Sequence[str | Function] | None,
) -> dict[str, Function | None]:
    """What an experiment calls metrics, in their order; each with its function, if it is one.

    Raises:
        InputError: on `metric`, for something else, or two of one name.
    """
    if metrics is None:
        return {}
    listed = [metrics] if isinstance(metrics, str) or callable(metrics) else metrics
    if not isinstance(listed, Sequence) or not listed:
        raise InputError("metric", metrics, "must be a name, a function, or a list of these")
    named: dict[str, Function | None] = {}
    for metric in listed:
        if not isinstance(metric, str) and not callable(metric):
            raise InputError("metric", metric, "must be a name, a function, or a list of these")
        function = None if isinstance(metric, str) else metric
        if isinstance(metric, str):
            name = metric
        else:
            own = getattr(metric, "__name__", type(metric).__name__)
            if own in METRICS:
                expected = "is a metric by name: call your function something else"
                raise InputError("metric", own, expected)
            name = f"{GIVEN_METRIC}{own}"
        if name in named:
            raise InputError("metric", name, "is given twice: functions need names of their own")
        named[name] = function
    return named


def _found(name: str, functions: Mapping[str, Function]) -> Metric:
    measure = measure_of(name)
    if name in METRICS:
        return Metric(measure, METRICS[name])
    if name in functions:
        return Metric(measure_of(name.removeprefix(GIVEN_METRIC)), functions[name])
    if name.startswith(GIVEN_METRIC):
        raise InputError("task.metric", name, "was passed as an object: pass it as metric= again")
    return Metric(measure, import_function(name, "task.metric"))


def score(metric: Metric, outputs: Tensor, targets: Tensor) -> float:
    """The score of one model; not a number where an output of its is not finite.

    Outputs and targets are `[r, ...]`.

    Raises:
        InputError: on `task.metric`, where a user's function fails, or returns no number.
    """
    if metric.name in METRICS:
        if not bool(torch.isfinite(outputs).all()):
            return math.nan
        parts = [(outputs, targets)] if metric.name in _OF_NUMBERS else _judged(outputs, targets)
        return math.fsum(float(metric.function(*part)) for part in parts) / len(parts)
    try:
        value = metric.function(outputs, targets)
    except Exception as error:  # whatever the user's function raises
        fault = f"{_EXPECTED}; {describe(error)}"
        raise InputError("task.metric", metric.name, fault) from error
    try:
        return float(value)
    except Exception as error:
        shape = f"of shape {list(value.shape)}" if isinstance(value, Tensor) else ""
        fault = f"{_EXPECTED}; it returned a {type(value).__name__} {shape}".rstrip()
        raise InputError("task.metric", metric.name, fault) from error


def score_on_the_way(metric: Metric, outputs: Tensor, targets: Tensor) -> float:
    """As `score`, but a function that fails in the middle of a run does not end the run.

    The score is not a number then, and the log says why: what was sent has been paid for.
    """
    try:
        return score(metric, outputs, targets)
    except InputError as error:
        _log.warning("%s", error)
        return math.nan


def check_metrics(
    metrics: Sequence[Metric], loss: Loss, example: Tensor, targets: Tensor, records: int
) -> None:
    """Refuse metrics that are not defined on the public test records, before a run begins.

    `example` is what the model gives for a few records, `[few, ...]`; `targets` are those of the
    public test records, `[r, ...]`, of which `records` are scored on the way.

    Raises:
        InputError: on `task.metric`, or on `train.evaluate_records`.
    """
    outputs = _repeated(example, len(targets))
    for metric in metrics:
        if metric.name in METRICS:
            of_numbers = metric.name in _OF_NUMBERS
            for part in [(outputs, targets)] if of_numbers else _judged(outputs, targets):
                _check_kind(metric, loss, *part)
                _check_defined(metric, part[1], records * len(part[1]) // len(targets))
        score(metric, outputs, targets)


def baselines(metrics: Sequence[Metric], loss: Loss, example: Tensor, targets: Tensor) -> Baselines:
    """What a model that ignores its inputs scores; arguments as those of `check_metrics`."""
    parts = _judged(_repeated(example, len(targets)), targets) if _width(targets) > 1 else []
    if parts and all(_are_classes(loss, *part) for part in parts):
        each = [baselines(metrics, loss, *part) for part in parts]
        shares = [one.accuracy for one in each]
        columns = zip(*(one.metrics for one in each), strict=True)
        return Baselines(_mean_known(shares), None, tuple(map(_mean_known, columns)))
    constant = _constant(loss, example, targets)
    share = None if loss.accuracy is None else majority(loss, example, targets)
    if constant is None:
        return Baselines(share, None, (None,) * len(metrics))
    own = tuple(
        _baseline(metric, _mean(example, targets), targets)
        if metric.name in _OF_NUMBERS
        else _baseline(metric, constant, targets)
        for metric in metrics
    )
    if loss.formula in (None, "huber") and loss.weights is None:
        return Baselines(share, None, own)
    least = _constant(loss, example, targets, weighted=True)
    assert least is not None
    value = float(loss.per_record(least, targets).mean())
    return Baselines(share, value, own)


def _mean_known(values: Sequence[float | None]) -> float | None:
    """Their mean; None where one is not known."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(values) if known and len(known) == len(values) else None


def _judged(outputs: Tensor, targets: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Outputs and targets as metrics of classes judge them, one target a row."""
    axis = None if outputs.ndim < 3 else class_axis(outputs, targets)
    if axis is not None and not targets.is_floating_point():
        rows, labels = outputs.movedim(axis, -1).flatten(0, -2), targets.flatten()
        there = labels != IGNORED
        return [(rows[there], labels[there])]
    if _width(targets) == 1 or _width(outputs) != _width(targets):
        return [(outputs, targets)]
    flat = (values.reshape(len(targets), -1) for values in (outputs, targets))
    columns = (torch.split(values, 1, dim=1) for values in flat)
    return list(zip(*columns, strict=True))


def majority(loss: Loss, example: Tensor, targets: Tensor) -> float | None:
    """The share of the most frequent class of public targets; None where they are no classes."""
    if not _are_classes(loss, example, targets):
        return None
    shares = _frequencies(example, targets)
    return float(shares.max())


def says_the_same(loss: Loss, outputs: Tensor, targets: Tensor, *, by_class: bool) -> bool:
    """Whether a model says next to the same of all public records, which are not the same.

    `outputs` `[r, ...]` are its own. `by_class`: also where it gives them one class.
    """
    said, known = (each.double().reshape(len(each), -1) for each in (outputs, targets))
    span = known.amax(0) - known.amin(0)
    if not span.any():
        return False
    if _are_classes(loss, outputs, targets):
        said = torch.sigmoid(said) if said.shape[1] == 1 else said.softmax(1)
        classes = said.round() if said.shape[1] == 1 else said.argmax(1, keepdim=True)
        if by_class and bool((classes == classes[:1]).all()):
            return True
        span = torch.ones_like(span)
    elif not targets.is_floating_point() or known.shape != said.shape:
        return False
    return bool((said.amax(0) - said.amin(0) <= _SAME * span).all())


def _baseline(metric: Metric, constant: Tensor, targets: Tensor) -> float | None:
    if metric.measure.ideal is not None:  # which the frequencies themselves have, or nobody
        return None
    try:
        value = score(metric, constant, targets)
    except InputError:  # a function of the user's that does not take outputs that are all equal
        return None
    return value if math.isfinite(value) else None


def _repeated(example: Tensor, records: int) -> Tensor:
    """Outputs of so many records, made of those of a few."""
    return example.detach()[torch.arange(records, device=example.device) % len(example)]


def _constant(
    loss: Loss, example: Tensor, targets: Tensor, *, weighted: bool = False
) -> Tensor | None:
    """Outputs `[r, ...]` of a model that ignores its inputs, float64; None where none is known.

    `weighted`: with the frequencies as the class weights of the loss count them.
    """
    shape = (len(targets), *example.shape[1:])
    if _are_classes(loss, example, targets):
        shares = _frequencies(example, targets)
        if weighted and loss.weights is not None:
            shares = shares * torch.tensor(loss.weights, dtype=shares.dtype, device=shares.device)
        logarithms = shares.div(shares.sum()).clamp(min=_SMALLEST).log()
        if _width(example) == 1:
            logarithms = (logarithms[1] - logarithms[0]).reshape(1)
        return logarithms.reshape(1, *shape[1:]).expand(shape)
    if targets.is_floating_point() and _width(targets) == _width(example):
        return _mean(example, targets)
    return None


def _mean(example: Tensor, targets: Tensor) -> Tensor:
    """The mean of the targets, for every record, in the shape of the outputs."""
    shape = (len(targets), *example.shape[1:])
    return targets.double().mean(0).reshape(1, *shape[1:]).expand(shape)


def _width(values: Tensor) -> int:
    return math.prod(values.shape[1:])


def _are_classes(loss: Loss, example: Tensor, targets: Tensor) -> bool:
    """Whether public targets are classes beside such outputs."""
    if loss.formula in OF_NUMBERS or _width(targets) != 1:
        return False
    if _width(example) == 1:
        flat = targets.reshape(-1)
        low = {value: bool((flat == value).any()) for value in (-1, 0)}
        known = (flat == 1) | (flat == 0) | (flat == -1)
        return bool(known.all()) and not all(low.values())
    return not targets.is_floating_point() and example.ndim == 2 and bool((targets >= 0).all())


def _frequencies(example: Tensor, targets: Tensor) -> Tensor:
    """The share of every class, `[classes]` float64."""
    classes = max(2, _width(example))
    flat = targets.reshape(-1)
    labels = (flat > 0).long() if _width(example) == 1 else flat.long()
    counts = torch.bincount(labels, minlength=classes)[:classes]
    return counts.double() / max(1, len(flat))


def _check_kind(metric: Metric, loss: Loss, outputs: Tensor, targets: Tensor) -> None:
    """Refuse a metric of classes where there are none, and one of numbers where there are."""
    if metric.name in _OF_NUMBERS:
        numbers = targets.is_floating_point() and not loss.labels
        if not numbers or _width(targets) != _width(outputs):
            known = ", ".join(name for name in METRICS if name not in _OF_NUMBERS)
            expected = f"needs targets that are numbers, as many as outputs; of classes: {known}"
            raise InputError("task.metric", metric.name, expected)
    elif not _are_classes(loss, outputs, targets):
        known = ", ".join(_OF_NUMBERS)
        expected = (
            "needs classes: integer targets from 0 beside as many outputs, or targets 0 or 1, or "
            f"-1 or 1, beside one output, and no loss of numbers; of numbers: {known}"
        )
        raise InputError("task.metric", metric.name, expected)
    elif metric.name == "calibration-slope" and _width(outputs) > 2:
        expected = f"is of two classes, and here are {_width(outputs)}: 'calibration' is of several"
        raise InputError("task.metric", metric.name, expected)


def _check_defined(metric: Metric, targets: Tensor, records: int) -> None:
    """Refuse a metric that compares what is the same for all the records it would be of."""
    if metric.name not in _COMPARES:
        return
    noun = _COMPARES[metric.name]
    if bool((targets == targets[:1]).all()):
        raise InputError(
            "task.metric",
            metric.name,
            f"is not defined on these public test records: all {len(targets):,} have the same "
            f"{noun}; give others, or another metric",
        )
    if bool((targets[:records] == targets[:1]).all()):
        first = int((targets != targets[:1]).reshape(len(targets), -1).any(1).nonzero()[0])
        raise InputError(
            "train.evaluate_records",
            records,
            f"{metric.name} is not defined on the first {records:,} public test records, which all "
            f"have the same {noun}: give {first + 1} or more, or shuffle the test records",
        )


def _classes(outputs: Tensor, targets: Tensor) -> tuple[Array, Array]:
    """The true and the predicted class of every record, `[r]` each."""
    flat = targets.reshape(-1)
    if _width(outputs) == 1:
        return (flat > 0).long().cpu().numpy(), (outputs.reshape(-1) > 0).long().cpu().numpy()
    return flat.cpu().numpy(), outputs.argmax(dim=1).cpu().numpy()


def _ranked(outputs: Tensor, targets: Tensor) -> tuple[Array, Array]:
    """Whether a record is of a class, and its score for it: `[r, columns]` float64 each.

    A column for each class that has records; of two classes one, that of the second. There the
    difference of the outputs stands for the probability, which would be 1 of many that differ.
    """
    flat = targets.reshape(-1)
    if _width(outputs) <= 2:
        whole = outputs.double().reshape(len(flat), -1)
        scores = whole[:, -1:] if whole.shape[1] == 1 else whole[:, 1:] - whole[:, :1]
        is_one = flat > 0
        return is_one.double().unsqueeze(1).cpu().numpy(), scores.cpu().numpy()
    present = torch.unique(flat)
    scores = outputs.double().softmax(dim=1)[:, present]
    return (flat[:, None] == present).double().cpu().numpy(), scores.cpu().numpy()


def _numbers(outputs: Tensor, targets: Tensor) -> tuple[Array, Array]:
    """True and predicted numbers, `[r, m]` float64 each."""
    shape = (len(targets), -1)
    return (
        targets.double().reshape(shape).cpu().numpy(),
        outputs.double().reshape(shape).cpu().numpy(),
    )


def _by_sklearn(
    name: str,
    of: Callable[[Tensor, Tensor], tuple[Array, Array]],
    outputs: Tensor,
    targets: Tensor,
    **options: Any,
) -> float:
    """The function of that name in `sklearn.metrics`, of what `of` makes of outputs and targets."""
    from sklearn import metrics

    return float(getattr(metrics, name)(*of(outputs, targets), **options))


def _balanced_accuracy(outputs: Tensor, targets: Tensor) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a class was predicted which no test record has
        return _by_sklearn("balanced_accuracy_score", _classes, outputs, targets)


def _auc(outputs: Tensor, targets: Tensor) -> float:
    """By ranks: the share of pairs, one of the class and one not, that are in the right order."""
    from scipy.stats import rankdata

    of_class, scores = _ranked(outputs, targets)
    inside = of_class.sum(axis=0)
    outside = len(of_class) - inside
    if not bool((inside * outside > 0).all()):
        return math.nan
    sums = (rankdata(scores, axis=0) * of_class).sum(axis=0)
    areas: Array = (sums - inside * (inside + 1) / 2) / (inside * outside)
    return float(areas.mean())


def _f1(outputs: Tensor, targets: Tensor) -> float:
    kind = {"average": "binary" if _width(outputs) <= 2 else "macro", "zero_division": 0.0}
    return _by_sklearn("f1_score", _classes, outputs, targets, **kind)


def _r2(outputs: Tensor, targets: Tensor) -> float:
    from sklearn.metrics import r2_score

    return float(np.round(r2_score(*_numbers(outputs, targets)), 12))  # of the mean itself: 0


METRICS: Mapping[str, Function] = {
    "accuracy": partial(_by_sklearn, "accuracy_score", _classes),
    "balanced-accuracy": _balanced_accuracy,
    "auc": _auc,
    "average-precision": partial(_by_sklearn, "average_precision_score", _ranked, average="macro"),
    "f1": _f1,
    "brier": probabilities.brier,
    "log-loss": probabilities.log_loss,
    "calibration": probabilities.calibration,
    "calibration-slope": probabilities.calibration_slope,
    "mae": partial(_by_sklearn, "mean_absolute_error", _numbers),
    "rmse": partial(_by_sklearn, "root_mean_squared_error", _numbers),
    "r2": _r2,
}
"""The metrics that have a name; `MEASURES` says what they are called."""

IN_UNIT = ("mae", "rmse")
"""Those that are in the unit of the target."""

_OF_NUMBERS = (*IN_UNIT, "r2")
_COMPARES = {
    "auc": "class",
    "average-precision": "class",
    "calibration": "class",
    "calibration-slope": "class",
    "r2": "target",
}
assert METRICS.keys() == MEASURES.keys()
