"""Clipped gradient sums from layer inputs and output gradients ("taps"), for all nodes at once.

One forward and one backward pass over the flat batch `[nodes * b, ...]`, in which every tapped
layer computes each node's records with that node's weights and hands out its input and the
gradient by its output. Parameter gradients are never asked of autograd; `layers` makes the norms
and the clipped sums from the two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tacit.errors import InputError
from tacit.gradients.clipping import Clip, ClipNorm
from tacit.gradients.contributions import Contribution
from tacit.gradients.layers.rules import Layer, describe
from tacit.gradients.layout import Layout
from tacit.gradients.losses import Loss
from tacit.gradients.records import add_clipped, clip_records

__all__ = ["TapsPath", "tapped_layers"]


def tapped_layers(
    module: nn.Module, layout: Layout, channels_last: bool
) -> tuple[Layer, ...] | str:
    """The layers that hold all trainable parameters, or the reason why taps cannot serve.

    Every trainable parameter must belong to exactly one leaf of a known kind. `channels_last`:
    whether convolutions hand out images that lie so, which is faster, but not every module can
    take (one that calls `view`).
    """
    owners = Counter(
        id(parameter) for child in module.modules() for parameter in child.parameters(recurse=False)
    )
    if any(owners[id(p)] > 1 for p in module.parameters() if p.requires_grad):
        return "a parameter is shared between layers"
    layers: list[Layer] = []
    for name, child in module.named_modules():
        if any(p.requires_grad for p in child.parameters(recurse=False)):
            if "forward" in vars(child):
                return f"{name or 'the model'} has a forward of its own"
            layer = describe(name, child, layout, channels_last)
            if isinstance(layer, str):
                return layer
            layers.append(layer)
    return tuple(layers)


@dataclass
class _Record:
    """What one layer saw in one pass."""

    kept: Tensor | None = None
    output_shape: tuple[int, ...] = ()
    gradient: Tensor | None = None


class _Tap(torch.autograd.Function):
    """The identity, in place; its backward pass keeps the gradient.

    In place and neither a tensor hook nor `autograd.grad` by the output: so the gradient is that
    by the layer's own output even where the next module works in place. `anchor` is a scalar that
    requires grad, so that the graph exists although no weight requires grad.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, anchor: Tensor, record: _Record) -> Tensor:
        ctx.record = record
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        ctx.record.gradient = gradients[0]
        return gradients[0], None, None


def _tapped_forward(
    layer: Layer,
    weight: Tensor,
    bias: Tensor | None,
    count: int,
    anchor: Tensor,
    record: _Record,
    inputs: Tensor,
) -> Tensor:
    """What a tapped layer's `forward` does with `inputs` `[count, ...]`."""
    if record.kept is not None:
        raise InputError("task.model", layer.name, "this layer is called twice in one forward pass")
    if inputs.shape[0] != count:
        raise InputError(
            "task.model", layer.name, "the first axis of this layer's input must be the records"
        )
    output, record.output_shape, record.kept = layer.forward(inputs, weight, bias)
    tapped: Tensor = _Tap.apply(output, anchor, record)  # type: ignore[no-untyped-call]
    return tapped if tapped.shape == record.output_shape else tapped.view(record.output_shape)


@contextmanager
def _tapping(
    module: nn.Module, layers: Sequence[Layer], parameters: Tensor, count: int
) -> Iterator[tuple[Tensor, list[_Record]]]:
    """Within, a call of `module` on `[count, ...]` records fills the records of all layers.

    Yields the anchor and one record a layer.
    """
    anchor = torch.zeros((), device=parameters.device, requires_grad=True)
    records = [_Record() for _ in layers]
    children = [module.get_submodule(layer.name) for layer in layers]
    try:
        for layer, child, record in zip(layers, children, records, strict=True):
            weight = layer.weight.view(parameters)
            bias = layer.bias.view(parameters) if layer.bias else None
            vars(child)["forward"] = partial(
                _tapped_forward, layer, weight, bias, count, anchor, record
            )
        yield anchor, records
    finally:
        for child in children:
            vars(child).pop("forward", None)


@dataclass(frozen=True)
class TapsPath:
    """Clipped sums by taps; valid for a module only once `probe` has proved it.

    `module` is this object's own copy, with no parameter that requires grad. Its tapped layers'
    `forward` are replaced during a call, so one object serves one thread.
    """

    module: nn.Module
    loss: Loss
    layers: tuple[Layer, ...]

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
        parts, losses = self.contributions(parameters, inputs, targets, mask, clip is not None)
        with torch.no_grad():
            if clip is None:
                norms = losses.new_empty(mask.shape[0], 0)
                factors = mask.to(losses.dtype)
                for part in parts:
                    part.add_to(total, factors, beta)
            else:
                parts, factors, norms = clip_records(parts, mask, clip, norm)
                add_clipped(parts, factors, total, beta)
        return norms, losses

    def contributions(
        self, parameters: Tensor, inputs: Tensor, targets: Tensor, mask: Tensor, norms: bool
    ) -> tuple[list[Contribution], Tensor]:
        """The gradients of every layer in their cheapest form, and the masked losses."""
        nodes, count = mask.shape[0], mask.numel()
        with (
            torch.enable_grad(),
            _tapping(self.module, self.layers, parameters, count) as (anchor, records),
        ):
            outputs = self.module(inputs.flatten(0, 1))
            losses = self.loss.per_record(outputs, targets.flatten(0, 1))
            losses = torch.where(mask, losses.view(mask.shape), 0.0)
            if losses.requires_grad:
                torch.autograd.grad(losses.sum(), anchor, allow_unused=True)
        parts: list[Contribution] = []
        with torch.no_grad():
            for layer, record in zip(self.layers, records, strict=True):
                if record.kept is None:
                    raise InputError(
                        "task.model", layer.name, "this layer is not called in a forward pass"
                    )
                gradient = record.gradient
                if gradient is None:
                    gradient = parameters.new_zeros(record.output_shape)
                gradient = gradient.view(record.output_shape)
                parts += layer.contributions(record.kept, gradient, nodes, norms)
        return parts, losses.detach()

    def evaluate(self, module: nn.Module, weights: dict[str, Tensor], inputs: Tensor) -> Tensor:
        """The outputs `[records, ...]` of one node, all records in one pass."""
        outputs: Tensor = functional_call(module, weights, (inputs,))
        return outputs
