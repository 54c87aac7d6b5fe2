"""Gradients of any module by `torch.func`, every record evaluated alone.

Slower than taps, and materialises the gradients of a chunk of records; in return it needs nothing
of the module but that `torch.func` can differentiate it, and a module that mixes the records of a
batch cannot do so here, since each record is a batch of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from tacit.gradients.clipping import Clip, clip_factors
from tacit.gradients.layout import Layout
from tacit.gradients.losses import Loss

__all__ = ["FunctionalPath"]

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class FunctionalPath:
    """Per-record gradients by `vmap` over nodes and records of `grad`."""

    module: nn.Module
    loss: Loss
    layout: Layout

    def _record_loss(self, weights: Weights, inputs: Tensor, target: Tensor) -> Tensor:
        outputs = functional_call(self.module, weights, (inputs.unsqueeze(0),))
        return self.loss.per_record(outputs, target.unsqueeze(0))[0]

    def _masked_loss(
        self, weights: Weights, inputs: Tensor, targets: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        losses = vmap(self._record_loss, (None, 0, 0))(weights, inputs, targets)
        losses = torch.where(mask, losses, 0.0)
        return losses.sum(), losses.detach()

    def accumulate(
        self,
        parameters: Tensor,
        inputs: Tensor,
        targets: Tensor,
        mask: Tensor,
        clip: Clip | None,
        total: Tensor,
        beta: int,
    ) -> tuple[Tensor, Tensor]:
        """Scale `total` by beta and add the (clipped) sum; see `probe.GradientPath`."""
        nodes, count = mask.shape
        weights = self.layout.views(parameters)
        if clip is None:
            summed = grad_and_value(self._masked_loss, has_aux=True)
            gradients, (_, losses) = vmap(summed)(weights, inputs, targets, mask)
            for slot in self.layout.slots:
                _add(
                    total[:, slot.start : slot.stop], gradients[slot.name].reshape(nodes, -1), beta
                )
            return losses.new_empty(nodes, 0), losses

        each = vmap(grad_and_value(self._record_loss), (None, 0, 0))
        gradients, losses = vmap(each)(weights, inputs, targets)
        flat = [gradients[slot.name].reshape(nodes, count, -1) for slot in self.layout.slots]
        norms = torch.stack([torch.linalg.vector_norm(part, dim=2) for part in flat]).norm(dim=0)
        factors, finite = clip_factors(norms, mask, clip)
        if not bool(finite.all()):
            flat = [part.masked_fill(~finite.unsqueeze(2), 0.0) for part in flat]
        for slot, part in zip(self.layout.slots, flat, strict=True):
            product = torch.bmm(factors.unsqueeze(1), part).squeeze(1)
            _add(total[:, slot.start : slot.stop], product, beta)
        return norms.masked_fill(~mask, 0.0), losses.masked_fill(~mask, 0.0)

    def evaluate(self, module: nn.Module, weights: Weights, inputs: Tensor) -> Tensor:
        """The outputs `[records, ...]` of one node, every record alone."""

        def one(record: Tensor) -> Tensor:
            outputs: Tensor = functional_call(module, weights, (record.unsqueeze(0),))
            return outputs[0]

        return vmap(one)(inputs)


def _add(target: Tensor, values: Tensor, beta: int) -> None:
    if beta:
        target.add_(values)
    else:
        target.copy_(values)
