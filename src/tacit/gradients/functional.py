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

from tacit.gradients.clipping import Clip, ClipNorm
from tacit.gradients.contributions import Contribution, Dense
from tacit.gradients.layout import Layout
from tacit.gradients.losses import Loss
from tacit.gradients.records import add_clipped, clip_records

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
        norm: ClipNorm = "l2",
    ) -> tuple[Tensor, Tensor]:
        """Scale `total` by beta and add the (clipped) sum; see `probe.GradientPath`."""
        nodes = mask.shape[0]
        if clip is None:
            weights = self.layout.views(parameters)
            summed = grad_and_value(self._masked_loss, has_aux=True)
            gradients, (_, losses) = vmap(summed)(weights, inputs, targets, mask)
            for slot in self.layout.slots:
                _add(
                    total[:, slot.start : slot.stop], gradients[slot.name].reshape(nodes, -1), beta
                )
            return losses.new_empty(nodes, 0), losses

        parts, losses = self.contributions(parameters, inputs, targets, mask, norms=True)
        parts, factors, norms = clip_records(parts, mask, clip, norm)
        add_clipped(parts, factors, total, beta)
        return norms, losses

    def contributions(
        self, parameters: Tensor, inputs: Tensor, targets: Tensor, mask: Tensor, norms: bool
    ) -> tuple[list[Contribution], Tensor]:
        """Every parameter's materialised gradients; see `probe.GradientPath`."""
        flat, losses = self._materialised(parameters, inputs, targets)
        parts: list[Contribution] = [
            Dense(slot, values) for slot, values in zip(self.layout.slots, flat, strict=True)
        ]
        return parts, losses.masked_fill(~mask, 0.0)

    def _materialised(
        self, parameters: Tensor, inputs: Tensor, targets: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        """Gradients `[nodes, b, size]` of every slot, and losses `[nodes, b]`."""
        each = vmap(grad_and_value(self._record_loss), (None, 0, 0))
        gradients, losses = vmap(each)(self.layout.views(parameters), inputs, targets)
        shape = losses.shape
        return [gradients[slot.name].reshape(*shape, -1) for slot in self.layout.slots], losses

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
