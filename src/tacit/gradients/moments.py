"""A linear model that is solved from moments of its records, in place of being trained in steps.

A record with inputs x and target y has the **features** a = (x / B, 1) / sqrt(2), or x / B for a
layer without bias, where B is the public bound of its inputs, so that |a| <= 1; and the **code** c
of its target, with |c| <= 1. What is summed and noised is

    z = (a a', c a') / sqrt(2),          |z| = |a| sqrt(|a|^2 + |c|^2) / sqrt(2) <= 1,

a matrix `[p + outputs, p]`, p the number of features. It is the gradient of a linear function of
that matrix M, less its sign: of -<M, z>, the loss of `MomentModule` here. So sums of z are sums of
clipped record gradients like any other: the module's one layer has inputs a and, behind it, the
output gradient (a, c) / sqrt(2), and `tacit.gradients` clips, adds and proves what it proves of
every layer (`docs/proofs/clipped-sums.md`). Nothing of this file is trusted for privacy.

| loss | code c of a target | scores of the solved model |
|---|---|---|
| `logistic` | 1 or -1 | 2 f |
| `cross-entropy` | (e_y - 1 / K) / sqrt(1 - 1 / K), of K classes | sqrt(1 - 1 / K) K f |
| `mse` | y / T, shortened to norm 1, T the public bound of targets | T f |

f is the least squares fit of the codes. Its multiples are the logits to first order, around equal
chances: for labels, least squares finds the boundary, and the loss is used for scores alone.

`Moments` solves, from M as it was released: (A + ridge) W = b with A = sqrt(2) times the symmetric
part of its first p rows, negative eigenvalues of which are raised to zero, and b = sqrt(2) times
the others. That is post-processing, in float64 (Vu and Slavkovic 2009; Foulds et al. 2016). The
ridge follows the noise, as in AdaSSP (Wang, UAI 2018).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.errors import InputError
from tacit.gradients.linear import only_layer
from tacit.gradients.losses import Loss

MOST_MOMENTS = 1 << 24
"""Numbers of one message: about 4,000 inputs."""

RIDGE = 0.4
"""The ridge over the deviation of a moment's noise times sqrt(p), by default.

Noise on A is symmetric, of deviation s (off the diagonal, sqrt(2) s on it), with eigenvalues of
2 sqrt(p) s at most for large p (Wigner). Less than that is best on Adult, at every budget that was
tried: see `docs/concepts/which-algorithm.md`.
"""

LEAST_RIDGE = 1e-6
"""Where there is no noise: of |a|^2, which is 1 at most; float32 moments are as exact."""

_HALF = math.sqrt(0.5)


class MomentModule(nn.Module):
    """Outputs <M_1, a a'> and M_2 a of a record, `[records, 1 + outputs]`: linear in M.

    A record has n = `inputs` numbers, of norm B = `bound` at most, and `outputs` are those of the
    linear model. `constant` says that a constant stands beside the inputs (the layer has a bias).
    """

    def __init__(self, inputs: int, outputs: int, bound: float, *, constant: bool) -> None:
        super().__init__()
        self.bound, self.constant = bound, constant
        self.features = inputs + constant
        self.moments = nn.Linear(self.features, self.features + outputs, bias=False)
        nn.init.zeros_(self.moments.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        """See the class."""
        a = inputs.flatten(1) / self.bound  # the features, `[records, p]`
        if self.constant:
            a = functional.pad(a, (0, 1), value=1.0) * _HALF
        found: Tensor = self.moments(a)
        squares = (found[:, : self.features] * a).sum(1, keepdim=True)
        return torch.cat((squares, found[:, self.features :]), dim=1)


@dataclass(frozen=True, eq=False)
class Moments:
    """What makes a linear model of moments.

    Args:
        linear: the user's module, whose weights are solved for; `weight` and `bias` are the names
            of its parameters (None: no bias).
        module: whose parameter the moments are.
        loss: whose record gradients they are.
        scale: what fitted codes are multiplied by to be scores.
        ridge: what is added to the diagonal of A; None: by the noise.
        target_bound: the norm that targets are shortened to; None: they are labels.
        deviation: of the noise of one moment in the mean over all nodes; 0 without noise.
    """

    linear: nn.Module
    weight: str
    bias: str | None
    module: MomentModule
    loss: Loss
    scale: float
    ridge: float | None
    target_bound: float | None
    deviation: float = 0.0

    @property
    def noise_norm(self) -> float:
        """About the largest eigenvalue of the noise of A: 2 sqrt(p) deviations (Wigner)."""
        return 2.0 * self.deviation * math.sqrt(self.module.features)

    @property
    def used_ridge(self) -> float:
        """What is added to the diagonal of A, whose trace is 1 at most."""
        if self.ridge is not None:
            return self.ridge
        return max(LEAST_RIDGE, RIDGE * self.deviation * math.sqrt(self.module.features))

    def solved(self, moments: Tensor) -> tuple[Tensor, Tensor]:
        """Weights `[nodes, outputs, n]` and biases `[nodes, outputs]`, float64.

        Moments are `[nodes, (p + outputs) p]`, rows of M one after the other.
        """
        p, constant = self.module.features, self.module.constant
        rows = moments.detach().double().reshape(len(moments), -1, p) / _HALF
        square, right = rows[:, :p], rows[:, p:]
        values, vectors = torch.linalg.eigh((square + square.transpose(1, 2)) / 2)
        turned = right @ vectors / (values.clamp(min=0.0) + self.used_ridge).unsqueeze(1)
        fit = self.scale * turned @ vectors.transpose(1, 2)
        if not constant:
            return fit / self.module.bound, fit.new_zeros(fit.shape[:2])
        return fit[:, :, :-1] * (_HALF / self.module.bound), fit[:, :, -1] * _HALF

    def outputs(self, moments: Tensor, inputs: Tensor) -> Tensor:
        """Every node's scores `[nodes, records, outputs]` of the same records `[records, ...]`."""
        weights, biases = (part.to(moments.dtype) for part in self.solved(moments))
        records = inputs.flatten(1).to(moments).expand(len(moments), -1, -1)
        return torch.baddbmm(biases.unsqueeze(1), records, weights.transpose(1, 2))

    def model(self, moments: Tensor) -> nn.Module:
        """A copy of the user's module with weights solved from `[(p + outputs) p]`, to evaluate."""
        weights, biases = self.solved(moments.unsqueeze(0))
        result = copy.deepcopy(self.linear).to(device=moments.device, dtype=moments.dtype).eval()
        named = dict(result.named_parameters())
        with torch.no_grad():
            named[self.weight].copy_(weights[0])
            if self.bias is not None:
                named[self.bias].copy_(biases[0])
        return result


def moments_of(
    model: nn.Module,
    loss: Loss,
    *,
    bound: float,
    target_bound: float,
    ridge: float | None,
) -> Moments:
    """The moments that stand for a linear model: one linear layer, perhaps flattened before.

    `bound` is B, the public norm of a record's inputs, and `target_bound` T, that of a record's
    target under `mse`. For the ridge see `Moments`.

    Raises:
        InputError: on `task.model` for any other model, or one of too many inputs; on `task.loss`
            for any other loss than `cross-entropy`, `logistic` and `mse`, or one with weights of
            classes; on `algorithm.target_bound`, given for labels.
    """
    found = only_layer(model)
    if found is None or not all(part.requires_grad for part in model.parameters()):
        raise InputError(
            "task.model",
            type(model).__name__,
            "noised moments are of one linear layer: use 'logistic' or 'linear', on the inputs or "
            "on task.features",
        )
    name, layer = found
    if loss.formula in (None, "huber") or (
        loss.formula == "logistic" and found[1].out_features > 1
    ):
        raise InputError(
            "task.loss",
            loss.name,
            "noised moments are solved by least squares: use 'cross-entropy', 'logistic' or "
            "'mse', without task.class_weights, and of 'logistic' with one output",
        )
    if loss.formula != "mse" and target_bound != 1.0:
        expected = f"is of numbers, and '{loss.name}' has labels: leave it out"
        raise InputError("algorithm.target_bound", target_bound, expected)
    inputs, outputs = layer.in_features, layer.out_features
    constant = layer.bias is not None
    features = inputs + constant
    if features * (features + outputs) > MOST_MOMENTS:
        raise InputError(
            "task.model",
            f"{inputs} inputs",
            f"makes {features * (features + outputs):,} moments, which noise would drown: at most "
            f"{MOST_MOMENTS:,}, about 4,000 inputs; train it in steps, or take fewer features",
        )
    code, scale = _coded(loss, outputs, target_bound)

    def per_record(found: Tensor, targets: Tensor) -> Tensor:
        codes = code(targets).to(found.dtype)
        return -_HALF * (found[:, 0] + (found[:, 1:] * codes).sum(1))

    objective = Loss(f"moments for {loss.name}", per_record, None, lambda *_: None)
    prefix = f"{name}." if name else ""
    return Moments(
        linear=copy.deepcopy(model),
        weight=f"{prefix}weight",
        bias=f"{prefix}bias" if constant else None,
        module=MomentModule(inputs, outputs, bound, constant=constant),
        loss=objective,
        scale=scale,
        ridge=ridge,
        target_bound=target_bound if loss.formula == "mse" else None,
    )


def _coded(loss: Loss, outputs: int, bound: float) -> tuple[Callable[[Tensor], Tensor], float]:
    """What codes targets `[r, ...]` as `[r, outputs]`, and what makes scores of fitted codes."""
    if loss.formula == "mse":
        return lambda targets: _shortened(targets.flatten(1) / bound), bound
    if loss.formula == "logistic":
        return lambda targets: (targets.reshape(-1, 1) > 0).float() * 2 - 1, 2.0
    norm = math.sqrt(1 - 1 / outputs) if outputs > 1 else 1.0

    def centred(targets: Tensor) -> Tensor:
        classes = torch.arange(outputs, device=targets.device)
        return ((targets.reshape(-1, 1) == classes).double() - 1 / outputs) / norm

    return centred, norm * outputs


def _shortened(values: Tensor) -> Tensor:
    """Rows that are longer than 1 brought to length 1."""
    rows = values.double()
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / lengths.clamp(min=1.0)
