"""A slope and an intercept for the log-odds of a trained model of two classes.

Log-odds L become slope * L + intercept, slope > 0, so that no record changes its place among the
others. Both go into the last layer, of which the outputs are an affine function.

They are fitted to counts of records by class and by bins of log-odds, whose edges public records
give. A model predicts for a bin the mean over its public records. The fit is the least chi-square,
noise of counts included, beside a wide prior: log slope ~ N(0, 2^2), intercept ~ N(0, 10^2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import expit, logit
from torch import Tensor

from tacit.data import Dataset
from tacit.errors import InputError
from tacit.gradients import Loss, StackedModel
from tacit.gradients.contributions import Slot
from tacit.models.metrics import majority
from tacit.models.probabilities import MOST_BINS, Array, log_odds

_PRIOR = np.array([2.0, 10.0])
_TRIED = (2.0, 0.5)  # a slope and an intercept


@dataclass(frozen=True)
class Recalibration:
    """Public records whose log-odds give the bins, and the place of the last layer in a model."""

    public: Dataset
    weight: Slot
    bias: Slot

    def applied(self, models: Tensor, slope: float, intercept: float) -> Tensor:
        """Models `[..., d]` with log-odds so changed."""
        made = models.clone()
        made[..., self.weight.start : self.bias.stop] *= slope
        shift = [intercept] if self.bias.shape == (1,) else [-intercept / 2, intercept / 2]
        made[..., self.bias.start : self.bias.stop] += made.new_tensor(shift)
        return made


def halves(public: Dataset) -> tuple[Dataset, Dataset]:
    """Public records to score on, of each class every other one; and the others, to fit to."""
    order = torch.argsort(public.targets.reshape(len(public), -1)[:, 0], stable=True)
    rows = [order[k::2].sort().values for k in (0, 1)]
    scored, fitted = (public.chosen(part.cpu().numpy()) for part in rows)
    return scored, fitted


def find_recalibration(
    how: str, model: StackedModel, loss: Loss, public: Dataset | None, dtype: torch.dtype
) -> Recalibration:
    """What a model is recalibrated with, tried out on public records and made-up parameters.

    Raises:
        InputError: on `task.calibrate`, whose value is `how`, if it cannot be done.
    """

    def refused(expected: str) -> InputError:
        return InputError("task.calibrate", how, f"{expected}, or leave it out")

    if public is None or not len(public):
        raise refused("needs public test records: name some (task.test, task.test_share)")
    if model.moments is not None:
        raise refused("is of models whose outputs are log-odds: choose another algorithm")
    few, generator = public.inputs[:8], torch.Generator().manual_seed(0)
    made = 0.1 * torch.randn(model.parameters_count, generator=generator, dtype=dtype)
    made = model.start(1, dtype, few.device) + made.to(few.device)
    outputs = model.outputs(made, few)[0]
    if majority(loss, outputs, public.targets) is None or outputs[0].numel() > 2:
        raise refused("is of two classes: it takes a slope and an intercept for their log-odds")
    if how == "public" and bool((public.targets == public.targets[:1]).all()):
        raise refused("needs public records of both classes: give more")
    slots = model.layout.slots
    for weight, bias in zip(slots[-2::-1], slots[:0:-1], strict=True):
        found = Recalibration(public, weight, bias)
        if bias.shape == outputs.shape[1:] and weight.shape[:1] == bias.shape:
            after = log_odds(model.outputs(found.applied(made, *_TRIED), few)[0])
            wanted = _TRIED[0] * log_odds(outputs) + _TRIED[1]
            if np.allclose(after, wanted, rtol=1e-3, atol=1e-3 * float(np.abs(wanted).max())):
                return found
    raise refused("needs a model that ends with a trained linear layer with a bias: add one")


def edges_of(odds: Array) -> Array:
    """Log-odds between bins with as equal numbers of public records as can be, ascending."""
    return np.unique(np.quantile(odds, np.linspace(0, 1, MOST_BINS + 1)[1:-1]))


def histogram(odds: Array, targets: Tensor, edges: Array) -> Array:
    """Records by class and bin, `[2 * bins]`: each adds 1 to one count, whatever its log-odds."""
    bins = len(edges) + 1
    cells = np.searchsorted(edges, odds) + bins * (targets.reshape(-1) > 0).cpu().numpy()
    return np.bincount(cells, minlength=2 * bins).astype(np.float64)


def fit(counts: Array, odds: Array, edges: Array, deviation: float) -> tuple[float, float]:
    """Slope and intercept, by counts with noise of a deviation, and log-odds of public records."""
    from scipy.optimize import least_squares  # here, since it is slow and few runs need it

    place = np.searchsorted(edges, odds)
    known = np.bincount(place, minlength=len(edges) + 1)
    outside, inside = counts.reshape(2, -1)[:, known > 0]
    every = np.maximum(outside + inside, 1.0)

    def rates(at: Array) -> Array:
        shares = expit(np.exp(at[0]) * odds + at[1])
        return np.bincount(place, shares, len(known))[known > 0] / known[known > 0]

    spread, least = float(odds.std()) or 1.0, 0.5 / every.sum()
    share = np.clip(inside.sum() / every.sum(), least, 1 - least)
    at = np.array([-math.log(spread), logit(share) - float(odds.mean()) / spread])
    for _ in range(20):  # of weights by what was fitted
        before, share = at, rates(at)
        noise = every * share * (1 - share) + deviation**2 * (share**2 + (1 - share) ** 2)
        scale = np.sqrt(np.maximum(noise, 1e-12))

        def residuals(at: Array, scale: Array = scale) -> Array:
            return np.concatenate([(inside - every * rates(at)) / scale, at / _PRIOR])

        at = least_squares(residuals, before, x_scale=_PRIOR).x
        if float(np.abs(at - before).max()) < 1e-6:
            break
    return float(np.exp(at[0])), float(at[1])
