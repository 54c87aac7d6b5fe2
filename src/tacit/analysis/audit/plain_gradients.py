"""The clipped gradients of single records by plain autograd: an independent way to what is summed.

Nothing here is shared with the engine of `tacit.gradients` but the order of the parameters, the
user's module and the loss of one record: no taps, no products over positions, no compiled loops, no
chunks. It is slow, and meant to be compared with, and to be differentiated once more.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tacit.gradients import Augmentation, Loss, StackedModel
from tacit.gradients.clipping import AUTOMATIC_GAMMA
from tacit.gradients.contributions import Layout
from tacit.gradients.dropout import dropping, view_coins
from tacit.privacy.mechanisms.clipping import ClipNorm


@dataclass(frozen=True, eq=False)
class PlainModel:
    """A user's module whose gradients are taken by one record after the other.

    The module is a copy, in `dtype`, without parameters that require grad. `layout` says where each
    trainable parameter lies in a flat vector `[d]`, and `augmentation` what the views of a record
    are, if it has any. `low`: whether its products are in bfloat16, by autocast.
    """

    module: nn.Module
    loss: Loss
    layout: Layout
    dtype: torch.dtype
    augmentation: Augmentation | None = None
    low: bool = False

    def gradient(self, at: Tensor, record: Tensor, target: Tensor) -> Tensor:
        """The gradient `[d]` of one record's loss at `at` `[d]`, differentiable by the record.

        Record and target come without an axis of records.
        """
        return self._alone(at, record, target, twice=True)

    def gradients(
        self,
        at: Tensor,
        inputs: Tensor,
        targets: Tensor,
        coins: Tensor | None = None,
        shares: Tensor | None = None,
    ) -> Tensor:
        """The gradients `[records, d]` of single records at `at` `[d]`, each as if it were alone.

        Inputs and targets are `[records, ...]`; coins are int64 `[records]`, where the module has
        dropout or records have views. With `shares` `[records, rows]`, a record is a unit,
        `[records, rows, ...]`, whose gradient is that of each of its rows times the row's share.
        """
        if shares is not None:
            whole = at.new_zeros(len(inputs), self.layout.size, dtype=self.dtype)
            drawn = None if coins is None else view_coins(coins[:, None], shares.shape[1])
            for unit, row in shares.nonzero().tolist():
                one = unit, slice(row, row + 1)
                coin = None if drawn is None else drawn[one]
                whole[unit] += shares[one] * self.gradients(at, inputs[one], targets[one], coin)[0]
            return whole
        found = at.new_empty(len(inputs), self.layout.size, dtype=self.dtype)
        # As quick as torch.func.vmap, which loads 800 modules first.
        for row in range(len(inputs)):
            shown, own = inputs[row : row + 1], None if coins is None else coins[row : row + 1]
            if self.augmentation is not None and own is not None:
                # In the type in which the run makes them: a function may round.
                kind = at.dtype if shown.is_floating_point() else shown.dtype
                made, drawn = self.augmentation.made(shown.unsqueeze(0).to(kind), own[None])
                shown, own = made[0], drawn[0]
            each = []
            for view in range(len(shown)):
                with dropping(self.module, None if own is None else own[view : view + 1]):
                    each.append(self._alone(at, shown[view], targets[row], twice=False))
            found[row] = torch.stack(each).mean(dim=0)
        return found

    def _alone(self, at: Tensor, record: Tensor, target: Tensor, *, twice: bool) -> Tensor:
        with torch.enable_grad():
            rows = at.detach().to(self.dtype).unsqueeze(0)
            views = self.layout.views(rows)
            given = {name: view[0].detach().requires_grad_() for name, view in views.items()}
            kind = at.device.type
            with torch.autocast(kind, torch.bfloat16, enabled=self.low, cache_enabled=False):
                outputs = functional_call(self.module, given, (self._cast(record).unsqueeze(0),))
            value = self.loss.per_record(outputs.to(self.dtype), self._cast(target).unsqueeze(0))[0]
            found = torch.autograd.grad(
                value,
                list(given.values()),
                create_graph=twice,
                allow_unused=True,
                materialize_grads=True,
            )
            return torch.cat([part.reshape(-1) for part in found])

    def _cast(self, values: Tensor) -> Tensor:
        return values.to(self.dtype) if values.is_floating_point() else values


def plain_model(model: StackedModel, dtype: torch.dtype, device: torch.device) -> PlainModel:
    """The user's module of a gradient engine, to be differentiated plainly.

    Of the engine its module, loss, output, views and order of parameters are taken, and nothing
    else.
    """
    module = copy.deepcopy(model.original).to(device=device, dtype=dtype)
    module = model.wired(module.requires_grad_(False).train(), dtype)
    return PlainModel(module, model.loss, model.layout, dtype, model.augmentation)


def clipped(gradients: Tensor, bound: float, norm: ClipNorm) -> Tensor:
    """Gradients `[records, d]`, each clipped to C = `bound` as an algorithm's `clip_norm` says.

    A gradient that is not finite becomes zero: it contributes nothing. What the norms are is said
    at `tacit.privacy.mechanisms.clipping.Clipping`.
    """
    finite = torch.isfinite(gradients).all(dim=1, keepdim=True)
    # In units of their largest number, whose square may overflow.
    largest = gradients.abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(gradients.dtype).tiny)
    units, order = gradients / largest, 1 if norm == "l1" else 2
    norms = torch.linalg.vector_norm(units, ord=order, dim=1, keepdim=True)
    if norm == "coordinate":
        limit = bound / math.sqrt(gradients.shape[1])
        made = gradients.clamp(-limit, limit)
    elif norm == "automatic":  # as Bu et al. have it
        made = units * (bound / (norms + AUTOMATIC_GAMMA / largest))
    else:
        made = units * torch.minimum(largest, bound / norms.clamp(min=1.0))
    return torch.where(finite, made, 0.0)
