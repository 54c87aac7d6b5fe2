"""The clipped gradients of single records by plain autograd: an independent way to what is summed.

Nothing here is shared with the engine of `tacit.gradients` but the order of the parameters, the
user's module and the loss of one record: no taps, no products over positions, no compiled loops, no
chunks. It is slow, and meant to be compared with, and to be differentiated once more.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from tacit.gradients import Loss, StackedModel
from tacit.gradients.contributions import Layout
from tacit.gradients.dropout import dropping
from tacit.gradients.outputs import with_output
from tacit.privacy.mechanisms.clipping import ClipNorm

__all__ = ["PlainModel", "clipped", "plain_model"]

_NUMBERS = 1 << 23  # of gradients that are computed at once


@dataclass(frozen=True, eq=False)
class PlainModel:
    """A user's module whose gradients are taken by one record after the other.

    Args:
        module: a copy, in `dtype`, without parameters that require grad.
        loss: of the task.
        layout: where each trainable parameter lies in a flat vector `[d]`.
        dtype: in which it computes.
        drops: whether it needs the coins of records.
    """

    module: nn.Module
    loss: Loss
    layout: Layout
    dtype: torch.dtype
    drops: bool

    def gradient(self, at: Tensor, record: Tensor, target: Tensor) -> Tensor:
        """The gradient `[d]` of one record's loss at `at` `[d]`, differentiable by the record.

        Args:
            at: the parameters.
            record: one record's inputs, without an axis of records.
            target: its target, likewise.
        """
        weights = self._weights(at)
        with torch.enable_grad():
            given = {name: value.detach().requires_grad_() for name, value in weights.items()}
            found = torch.autograd.grad(
                self._value(given, self._cast(record), self._cast(target)),
                list(given.values()),
                create_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
            return torch.cat([part.reshape(-1) for part in found])

    def gradients(
        self, at: Tensor, inputs: Tensor, targets: Tensor, coins: Tensor | None = None
    ) -> Tensor:
        """The gradients `[records, d]` of single records at `at` `[d]`, each as if it were alone.

        Args:
            at: the parameters.
            inputs: `[records, ...]`.
            targets: `[records, ...]`.
            coins: int64 `[records]`, where the module has dropout.
        """
        if not len(inputs):
            return at.new_zeros(0, self.layout.size, dtype=self.dtype)
        inputs, targets, weights = self._cast(inputs), self._cast(targets), self._weights(at)
        if not self.drops:
            try:
                return self._together(weights, inputs, targets)
            except RuntimeError:  # torch.func cannot take every module
                pass
        rows = []
        for row in range(len(inputs)):
            with dropping(self.module, None if coins is None else coins[row : row + 1]):
                rows.append(self.gradient(at, inputs[row], targets[row]).detach())
        return torch.stack(rows)

    def _together(self, weights: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        step = max(1, _NUMBERS // max(1, self.layout.size + inputs[0].numel()))
        each = vmap(grad(self._value), in_dims=(None, 0, 0), randomness="error")
        rows = []
        for start in range(0, len(inputs), step):
            part = slice(start, start + step)
            found = each(weights, inputs[part], targets[part])
            rows.append(torch.cat([found[slot.name].flatten(1) for slot in self.layout.slots], 1))
        return torch.cat(rows)

    def _value(self, weights: dict[str, Tensor], record: Tensor, target: Tensor) -> Tensor:
        outputs = functional_call(self.module, weights, (record.unsqueeze(0),))
        return self.loss.per_record(outputs, target.unsqueeze(0))[0]

    def _weights(self, at: Tensor) -> dict[str, Tensor]:
        rows = at.detach().to(self.dtype).unsqueeze(0)
        return {name: view[0] for name, view in self.layout.views(rows).items()}

    def _cast(self, values: Tensor) -> Tensor:
        return values.to(self.dtype) if values.is_floating_point() else values


def plain_model(model: StackedModel, dtype: torch.dtype, device: torch.device) -> PlainModel:
    """The user's module of a gradient engine, to be differentiated plainly.

    Args:
        model: whose module, loss and order of parameters are taken, and nothing else.
        dtype: in which to compute.
        device: where.
    """
    module = copy.deepcopy(model.original).to(device=device, dtype=dtype)
    module = with_output(module.requires_grad_(False).train(), model.output)
    return PlainModel(module, model.loss, model.layout, dtype, model.drops)


def clipped(gradients: Tensor, bound: float, norm: ClipNorm) -> Tensor:
    """Gradients `[records, d]`, each clipped as an algorithm's `clip_norm` says.

    A gradient that is not finite becomes zero: it contributes nothing.

    Args:
        gradients: one a row.
        bound: C.
        norm: see `tacit.privacy.mechanisms.clipping.Clipping`.
    """
    finite = torch.isfinite(gradients).all(dim=1, keepdim=True)
    return torch.where(finite, _CLIPS[norm](gradients, bound), 0.0)


def _scaled(gradients: Tensor, bound: float, order: int) -> Tensor:
    # By the largest number first, whose square may overflow.
    largest = gradients.abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(gradients.dtype).tiny)
    units = gradients / largest
    norms = torch.linalg.vector_norm(units, ord=order, dim=1, keepdim=True)
    return units * torch.minimum(largest, bound / norms.clamp(min=1.0))


def _clamped(gradients: Tensor, bound: float) -> Tensor:
    limit = bound / math.sqrt(gradients.shape[1])
    return gradients.clamp(-limit, limit)


_CLIPS: Mapping[ClipNorm, Callable[[Tensor, float], Tensor]] = {
    "l2": lambda gradients, bound: _scaled(gradients, bound, 2),
    "l1": lambda gradients, bound: _scaled(gradients, bound, 1),
    "coordinate": _clamped,
}
