"""How far the objective of a convex task is from its least value: f(x) - f*.

| in papers | here |
|---|---|
| f(x) = (1/n) sum_i f_i(x) | mean over nodes, each times n p_i of `nodes.weights` |
| f_i(x) = (1/q) sum_j loss(x; j) + the ridge term | mean over its records, + lambda |x|^2 / 2 |
| 1 / q of the ridge term | lambda: `weight_decay`, or `regularisation` of the regulariser `l2` |
| x* | what Newton's method or L-BFGS comes to, in float64, once a run |

Both numbers are functions of all nodes' private records, as the training loss is: they are for the
eyes of whoever has these records, and no epsilon covers them. Of a run across processes that is the
one that writes its rows, and only where all processes read one data set: it reads the records of
the other nodes there too, and from the other processes it takes what they release anyway, the sums
of their models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.communication.peers import ALONE
from tacit.data import StackedData
from tacit.gradients import Loss
from tacit.training.job import Job

_RECORDS_AT_ONCE = 8192
_HELD = 2**25  # numbers of records that are kept in float64 while f* is looked for
_STEPS = 5000
_GRADIENT = 1e-9  # the search ends where no coordinate of the gradient is larger
_CURVED = 300  # parameters, up to which second derivatives are cheaper than many more steps


_Part = tuple[Tensor, Tensor, float]


@dataclass(frozen=True, eq=False)
class Objective:
    """f of a linear model: one layer with weights `[outputs, features]` and a bias `[outputs]`.

    The ridge is lambda, and `weights` has n p_i of each node.
    """

    data: StackedData
    loss: Loss
    outputs: int
    ridge: float
    weights: tuple[float, ...]

    def value(self, x: Tensor) -> float:
        """F at x, `[d]`."""
        return self._value_and_slope(x.detach().double().cpu(), self._parts())[0]

    def _value_and_slope(self, x: Tensor, parts: Iterable[_Part]) -> tuple[float, Tensor]:
        leaf = x.clone().requires_grad_()
        total, slope = 0.0, torch.zeros_like(x)
        for rows, targets, weight in parts:
            with torch.enable_grad():
                features = rows.shape[1] * self.outputs
                weights, bias = leaf[:features].view(self.outputs, -1), leaf[features:]
                losses = self.loss.per_record(rows @ weights.T + bias, targets)
                part = losses.sum() * weight
                slope += torch.autograd.grad(part, leaf)[0]
            total += float(part.detach())
        total += self.ridge / 2 * float(x @ x)
        return total, slope + self.ridge * x

    def _curvature(self, x: Tensor, parts: Iterable[_Part]) -> Tensor:
        """The second derivatives of F at x, `[d, d]`."""
        outputs, features = self.outputs, (len(x) - self.outputs) // self.outputs
        weights, bias = x[: features * outputs].view(outputs, -1), x[features * outputs :]
        found = x.new_zeros(outputs, features + 1, outputs, features + 1)
        for rows, targets, weight in parts:
            with_ones = torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1)
            with torch.enable_grad():
                made = (rows @ weights.T + bias).requires_grad_()
                losses = self.loss.per_record(made, targets).sum() * weight
                slopes = torch.autograd.grad(losses, made, create_graph=True)[0].sum(0)
                bends = [
                    torch.autograd.grad(slopes[a], made, retain_graph=True)[0]
                    for a in range(outputs)
                ]
            for a, bend in enumerate(bends):
                for b in range(outputs):
                    found[a, :, b] += (with_ones * bend[:, b : b + 1]).T @ with_ones
        # From rows of weights with their bias to all weights, and then all biases.
        order = torch.arange(len(x)).view(outputs, features + 1)
        order = torch.cat([order[:, :-1].flatten(), order[:, -1]])
        square = found.view(len(x), len(x))[order][:, order]
        return square + self.ridge * torch.eye(len(x), dtype=x.dtype)

    def _parts(self) -> Iterator[_Part]:
        """Inputs and targets of some records of one node, and what each of them counts."""
        sizes, starts = self.data.sizes.tolist(), self.data.offsets.tolist()
        for start, size, counts in zip(starts, sizes, self.weights, strict=True):
            for first in range(start, start + size, _RECORDS_AT_ONCE):
                until = min(first + _RECORDS_AT_ONCE, start + size)
                rows = torch.arange(first, until, device=self.data.targets.device)
                targets = self.data.targets[first:until].cpu()
                if targets.is_floating_point():  # numbers, and no labels
                    targets = targets.double()
                inputs = self.data.inputs_of(rows).flatten(1).double().cpu()
                yield inputs, targets, counts / (size * len(sizes))


def least_value(objective: Objective, start: Tensor) -> float:
    """The least value of f that is found from `start`, `[d]`: f*, or a hair above it.

    By Newton's method in a trust region where there are few parameters, else by L-BFGS. Where
    lambda is above 0 it is above f* by at most |gradient|^2 / (2 lambda), and the search goes on
    until no coordinate of the gradient is above 1e-9. Without a ridge term, records that a model
    can separate have no minimum: what is found is then the value after 5000 steps at most.
    """
    # Imported here, since it takes 0.2 s and only this needs it.
    from scipy.optimize import minimize

    # All records are read up to ten thousand times.
    few = objective.data.stored.numel() <= _HELD
    held = list(objective._parts()) if few else None

    def parts() -> Iterable[_Part]:
        return objective._parts() if held is None else held

    def called(x: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        value, slope = objective._value_and_slope(torch.from_numpy(x), parts())
        return value, slope.numpy()

    def curvature(x: NDArray[np.float64]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = objective._curvature(torch.from_numpy(x), parts()).numpy()
        return found

    method: dict[str, Any] = {
        "method": "L-BFGS-B",
        "options": {"maxiter": _STEPS, "maxfun": 2 * _STEPS, "gtol": _GRADIENT, "ftol": 0.0},
    }
    if len(start) <= _CURVED:
        options = {"maxiter": _STEPS, "gtol": _GRADIENT, "max_trust_radius": 1e4}
        method = {"method": "trust-exact", "hess": curvature, "options": options}
    first = start.detach().double().cpu().numpy()
    found: Any = minimize(called, first, jac=True, **method)
    return float(found.fun)


@dataclass(frozen=True, eq=False)
class Suboptimality:
    """F(x) - f* of the common model, step by step.

    `least` is f*. `known` has the common model `[d]` as this process knew it at each step of which
    no row is written.
    """

    objective: Objective
    least: float
    known: dict[int, Tensor] = field(default_factory=dict)

    def keep(self, step: int, common: Tensor) -> None:
        """The common model of a step, `[d]`: its row follows when all processes have said theirs.

        It is that of the nodes of this process, or of the server.
        """
        self.known[step] = common.clone()

    def at(self, step: int, common: Tensor | None) -> float | None:
        """F(x) - f* at a step; None where the common model is not known, of an earlier session.

        `common` is that of the nodes of all processes, `[d]`; None: what was kept is that already.
        """
        own = self.known.pop(step, None)
        x = own if common is None else common
        return None if x is None else self.objective.value(x) - self.least


def suboptimality_of(job: Job, size: int) -> Suboptimality | None:
    """What measures f(x) - f* of a run, for the process that writes its rows; None: nobody asked.

    `size` is the number d of parameters.
    """
    if not job.config.train.suboptimality:
        return None
    everyone = job if len(job.hosted) == len(job.plan.nodes) else job.again(None, ALONE)
    ridge = ridge_of(job.config.algorithm.options)
    weights = tuple(node.weight for node in job.plan.nodes)
    objective = Objective(everyone.train, job.loss, job.outputs, ridge, weights)
    return Suboptimality(objective, least_value(objective, torch.zeros(size)))


def ridge_of(options: Any) -> float:
    """Lambda of the ridge term that an algorithm with these options minimises too."""
    if getattr(options, "regulariser", "none") == "l2":
        return float(options.regularisation)
    return float(getattr(options, "weight_decay", 0.0))
