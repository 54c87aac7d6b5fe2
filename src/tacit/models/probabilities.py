"""What a model's outputs say as probabilities of classes, and how far that is from the truth.

Outputs are logits: of one output the log-odds of class 1, of several their softmax. All is computed
from them in float64, so that no probability is rounded to 0 or 1 before its logarithm is taken.
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


def log_shares(outputs: Tensor) -> Tensor:
    """Logarithm of each class's probability, `[r, classes]`, of outputs `[r, ...]`."""
    whole = outputs.detach().double().reshape(outputs.shape[0], math.prod(outputs.shape[1:]))
    if whole.shape[1] == 1:
        return functional.logsigmoid(torch.cat([-whole, whole], 1))
    return whole.log_softmax(1)


def _labels(outputs: Tensor, targets: Tensor) -> Tensor:
    flat = targets.reshape(-1)
    return (flat > 0).long() if outputs[:1].numel() == 1 else flat.long()


def log_loss(outputs: Tensor, targets: Tensor) -> float:
    """Mean of minus the logarithm of the true class's probability."""
    return float(functional.nll_loss(log_shares(outputs), _labels(outputs, targets)))


def brier(outputs: Tensor, targets: Tensor) -> float:
    """Mean square of probability less what is observed, as scikit-learn's `brier_score_loss`.

    Of two classes that of class 1, from 0 to 1; of more the sum over classes, from 0 to 2.
    """
    shares = log_shares(outputs).exp()
    observed = functional.one_hot(_labels(outputs, targets), shares.shape[1])
    squares = (shares - observed).square().sum(1)
    return float(squares.mean()) / (2 if shares.shape[1] == 2 else 1)


def log_odds(outputs: Tensor) -> Array:
    """Of class 1 of two, `[r]`."""
    whole = outputs.detach().double().reshape(len(outputs), math.prod(outputs.shape[1:]))
    return np.asarray((whole[:, -1] - (whole[:, 0] if whole.shape[1] > 1 else 0)).cpu().numpy())


def calibration(outputs: Tensor, targets: Tensor) -> float:
    """Predicted over observed; not a number where nothing is observed. See `_judged`."""
    predicted, observed = _judged(outputs, targets)
    return float(predicted.mean() / observed.mean()) if observed.any() else math.nan


def calibration_slope(outputs: Tensor, targets: Tensor) -> float:
    """The slope of a logistic regression, without penalty, of the class on the log-odds.

    Infinite where log-odds tell the classes apart; not a number where they are all equal.
    """
    from sklearn.linear_model import LogisticRegression

    odds, labels = log_odds(outputs), _labels(outputs, targets).cpu().numpy()
    scale = float(np.ptp(odds))
    if not 0 < scale < math.inf or labels.min() == labels.max():
        return math.nan
    inside, outside = odds[labels == 1], odds[labels == 0]
    if outside.max() <= inside.min() or inside.max() <= outside.min():
        return math.copysign(math.inf, inside.mean() - outside.mean())
    model = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-10, max_iter=1000)
    centred = (odds - odds.mean()) / scale
    return float(model.fit(centred[:, None], labels).coef_[0, 0]) / scale


def calibration_bins(outputs: Tensor, targets: Tensor) -> list[tuple[float, float, int]]:
    """The calibration curve: (mean probability, share observed, records) of each bin.

    Of up to ten with as equal numbers of records as can be; equal probabilities share one.
    """
    predicted, observed = _judged(outputs, targets)
    edges = np.quantile(predicted, np.linspace(0, 1, MOST_BINS + 1))
    bins = np.searchsorted(edges[1:-1], predicted)
    chosen = [bins == place for place in np.unique(bins)]
    return [(float(predicted[k].mean()), float(observed[k].mean()), int(k.sum())) for k in chosen]


def _judged(outputs: Tensor, targets: Tensor) -> tuple[Array, Array]:
    """A probability of every record, and whether what it is of is observed, `[r]` each.

    Of class 1; of more than two classes, of the predicted one.
    """
    shares, labels = log_shares(outputs).exp(), _labels(outputs, targets)
    chosen = shares.argmax(1) if shares.shape[1] > 2 else torch.ones_like(labels)
    predicted = shares.gather(1, chosen[:, None])[:, 0]
    return predicted.cpu().numpy(), (labels == chosen).double().cpu().numpy()
