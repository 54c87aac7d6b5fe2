"""What a model's outputs say as probabilities of classes, and how far that is from the truth.

Outputs are read as logits: of one output the log-odds of class 1, of several their softmax. All is
computed from the logits in float64, so that no probability is rounded to 0 or 1 before its
logarithm is taken: scikit-learn's `log_loss`, which takes probabilities, clips them.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

Array = NDArray[np.float64]
MOST_BINS = 10
_MOST_STEPS = 200  # of Newton's method, each at least halved until it gets lower
_CLOSE = 1e-12


def log_shares(outputs: Tensor) -> Tensor:
    """Logarithm of each class's probability, `[r, classes]` float64, of outputs `[r, ...]`."""
    whole = outputs.detach().double().reshape(len(outputs), -1)
    if whole.shape[1] == 1:
        return functional.logsigmoid(torch.cat([-whole, whole], 1))
    return whole.log_softmax(1)


def labels_of(outputs: Tensor, targets: Tensor) -> Tensor:
    """The true class of each record, `[r]` int64: targets are classes, or -1 or 0, and 1."""
    flat = targets.reshape(-1)
    return (flat > 0).long() if outputs[:1].numel() == 1 else flat.long()


def log_loss(outputs: Tensor, targets: Tensor) -> float:
    """Mean of minus the logarithm of the true class's probability."""
    return float(functional.nll_loss(log_shares(outputs), labels_of(outputs, targets)))


def brier(outputs: Tensor, targets: Tensor) -> float:
    """Mean square of probability less what is observed.

    Of two classes that of class 1, from 0 to 1; of more the sum over classes, from 0 to 2, as
    scikit-learn's `brier_score_loss` has both.
    """
    shares = log_shares(outputs).exp()
    observed = functional.one_hot(labels_of(outputs, targets), shares.shape[1])
    squares = (shares - observed).square().sum(1)
    return float(squares.mean()) / (2 if shares.shape[1] == 2 else 1)


def log_odds(outputs: Tensor) -> Array:
    """Of class 1 of two, `[r]`."""
    whole = outputs.detach().double().reshape(len(outputs), -1)
    odds = whole[:, 0] if whole.shape[1] == 1 else whole[:, 1] - whole[:, 0]
    return np.asarray(odds.cpu().numpy())


def calibration(outputs: Tensor, targets: Tensor) -> float:
    """Predicted over observed: the mean probability of class 1 over its share of the records.

    Of more than two classes: the mean probability of the predicted class over the share of records
    of which it is the true one. Not a number where nothing is observed.
    """
    predicted, observed = _judged(outputs, targets)
    return float(predicted.mean() / observed.mean()) if observed.any() else math.nan


def calibration_slope(outputs: Tensor, targets: Tensor) -> float:
    """The slope of a logistic regression of the class on the log-odds, of two classes.

    Below 1, probabilities are too far from each other; above, too close. Infinite where log-odds
    tell the classes apart without a mistake; not a number where they are all equal.
    """
    odds, labels = log_odds(outputs), labels_of(outputs, targets).cpu().numpy().astype(float)
    inside, outside = odds[labels == 1], odds[labels == 0]
    known = bool(len(inside) and len(outside) and np.isfinite(odds).all())
    if not known or odds.min() == odds.max():
        return math.nan
    if outside.max() <= inside.min():
        return math.inf
    return -math.inf if inside.max() <= outside.min() else _slope(odds, labels)


def _slope(odds: Array, labels: Array) -> float:
    """By Newton's method, of log-odds that do not separate the classes."""
    centred = odds - odds.mean()
    scale = float(np.abs(centred).max())
    features = np.stack([np.ones_like(odds), centred / scale], axis=1)
    fit, value = np.zeros(2), math.log(2.0)
    for _ in range(_MOST_STEPS):
        shares = np.exp(-np.logaddexp(0.0, -(features @ fit)))
        gradient = features.T @ (shares - labels) / len(labels)
        curvature = features.T @ (features * (shares * (1 - shares))[:, None]) / len(labels)
        step = np.linalg.lstsq(curvature, gradient, rcond=None)[0]
        while True:
            at = features @ (fit - step)
            lower = float((np.logaddexp(0.0, at) - labels * at).mean())
            if lower <= value or float(np.abs(step).max()) < _CLOSE:
                break
            step /= 2
        fit, value = fit - step, lower
        if float(np.abs(step).max()) < _CLOSE * max(1.0, float(np.abs(fit).max())):
            break
    return float(fit[1]) / scale


def calibration_bins(outputs: Tensor, targets: Tensor) -> list[tuple[float, float, int]]:
    """The calibration curve: (mean probability, share observed, records) of each bin.

    Up to ten bins of as equal a number of records as can be, by probability of class 1 (of more
    than two classes: of the predicted one); equal probabilities share a bin.
    """
    predicted, observed = _judged(outputs, targets)
    edges = np.quantile(predicted, np.linspace(0, 1, MOST_BINS + 1))
    bins = np.searchsorted(edges[1:-1], predicted)
    return [
        (float(predicted[own].mean()), float(observed[own].mean()), int(own.sum()))
        for own in (bins == place for place in np.unique(bins))
    ]


def _judged(outputs: Tensor, targets: Tensor) -> tuple[Array, Array]:
    """A probability of every record, and whether what it is of is observed, `[r]` each."""
    shares, labels = log_shares(outputs).exp(), labels_of(outputs, targets)
    if shares.shape[1] == 2:
        predicted, observed = shares[:, 1], labels == 1
    else:
        predicted, chosen = shares.max(1)
        observed = labels == chosen
    return predicted.cpu().numpy(), observed.double().cpu().numpy()
