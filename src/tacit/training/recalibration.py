"""A slope and an intercept for the log-odds of a trained model of two classes.

Log-odds L become slope * L + intercept, slope > 0: no record changes its place among the others, so
that AUC stays. Both go into the weights and biases of the model's last layer, of which its outputs
are affine functions, so that the model is of its kind as before.

They are fitted to counts of records, by class and by bins of log-odds that public records give.
What a model predicts for a bin is the mean over its public records. The fit is the least chi-square
with the noise of the counts in it, beside a prior that is wide enough to decide nothing but what
counts leave open: log slope ~ N(0, 2^2), intercept ~ N(0, 10^2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import least_squares
from scipy.special import expit, logit
from torch import Tensor

from tacit.data import Dataset
from tacit.errors import InputError
from tacit.gradients import Loss, StackedModel
from tacit.gradients.contributions import Slot
from tacit.models.metrics import majority
from tacit.models.probabilities import MOST_BINS, Array, log_odds

_ROUNDS = 20  # of weights by what was fitted
_PRIOR = np.array([2.0, 10.0])
_TRIED = (2.0, 0.5)  # a slope and an intercept


@dataclass(frozen=True)
class Recalibration:
    """What a trained model is recalibrated with.

    Args:
        public: records whose log-odds give the bins, on the device of the run.
        weight: of the last layer, in a vector of parameters.
        bias: likewise, one number or two.
    """

    public: Dataset
    weight: Slot
    bias: Slot

    def applied(self, models: Tensor, slope: float, intercept: float) -> Tensor:
        """Models `[..., d]` with log-odds so changed."""
        made = models.clone()
        made[..., self.weight.start : self.bias.stop] *= slope
        width = self.bias.stop - self.bias.start
        shift = [intercept] if width == 1 else [-intercept / 2, intercept / 2]
        made[..., self.bias.start : self.bias.stop] += made.new_tensor(shift)
        return made


def halves(public: Dataset) -> tuple[Dataset, Dataset]:
    """Public records to score on, of each class every other one; and the others, to fit to."""
    order = torch.argsort(public.targets.reshape(len(public), -1)[:, 0], stable=True)
    rows = [order[k::2].sort().values for k in (0, 1)]
    scored, fitted = (Dataset(public.inputs[part], public.targets[part]) for part in rows)
    return scored, fitted


def find_recalibration(
    how: str, model: StackedModel, loss: Loss, public: Dataset | None, dtype: torch.dtype
) -> Recalibration:
    """What is needed to recalibrate a model, tried out on public records and made-up parameters.

    Args:
        how: `[task].calibrate`.
        model: of the run.
        loss: of the task.
        public: records to fit to, or whose log-odds give the bins alone.
        dtype: of parameters.

    Raises:
        InputError: on `task.calibrate`, for what it cannot be done with.
    """

    def refused(expected: str) -> InputError:
        return InputError("task.calibrate", how, f"{expected}, or leave it out")

    if public is None or not len(public):
        raise refused("needs public test records: name some (task.test, task.test_share)")
    if model.moments is not None:
        raise refused("is of models whose outputs are log-odds: choose another algorithm")
    few = public.inputs[:8]
    origin = model.start(1, dtype, public.targets.device)
    made = torch.randn(origin.shape, generator=torch.Generator().manual_seed(0), dtype=dtype)
    made = origin + 0.1 * made.to(origin.device)
    outputs = model.outputs(made, few)[0]
    if majority(loss, outputs, public.targets) is None or outputs[0].numel() > 2:
        raise refused("is of two classes: it takes a slope and an intercept for their log-odds")
    if how == "public" and bool((public.targets == public.targets[:1]).all()):
        raise refused("needs public records of both classes: give more, shuffled")
    before, last = log_odds(outputs), model.layout.slots
    for weight, bias in zip(last[-2::-1], last[:0:-1], strict=True):
        found = Recalibration(public, weight, bias)
        if bias.shape != outputs.shape[1:] or weight.shape[:1] != bias.shape:
            continue
        after = log_odds(model.outputs(found.applied(made, *_TRIED), few)[0])
        wanted = _TRIED[0] * before + _TRIED[1]
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
    """Slope and intercept.

    Args:
        counts: as `histogram`, of all nodes together; noised, so they may be negative.
        odds: of public records.
        edges: of the bins.
        deviation: standard deviation of the noise in each count.
    """
    place = np.searchsorted(edges, odds)
    known = np.bincount(place, minlength=len(edges) + 1)
    outside, inside = counts.reshape(2, -1)[:, known > 0]
    every = np.maximum(outside + inside, 1.0)

    def rates(at: Array) -> Array:
        shares = expit(np.exp(at[0]) * odds + at[1])
        return np.bincount(place, shares, len(known))[known > 0] / known[known > 0]

    spread = float(odds.std()) or 1.0
    share = np.clip(inside.sum() / every.sum(), 0.5 / every.sum(), 1 - 0.5 / every.sum())
    at = np.array([-math.log(spread), logit(share) - float(odds.mean()) / spread])
    for _ in range(_ROUNDS):
        before, share = at, rates(at)
        noise = every * share * (1 - share) + deviation**2 * (share**2 + (1 - share) ** 2)
        scale = np.sqrt(np.maximum(noise, 1e-12))

        def residuals(at: Array, scale: Array = scale) -> Array:
            return np.concatenate([(inside - every * rates(at)) / scale, at / _PRIOR])

        at = least_squares(residuals, before, x_scale=_PRIOR).x
        if float(np.abs(at - before).max()) < 1e-6:
            break
    return float(np.exp(at[0])), float(at[1])
