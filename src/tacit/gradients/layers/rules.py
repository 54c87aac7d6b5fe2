"""The layers that taps know: their stacked forward, and their gradients as factors.

A tapped layer's weight gradient for one record is a sum over positions t of outer products,
`G[o, i] = sum_t g[t, o] a[t, i]`, with a the layer's input and g the gradient of the loss by its
output. A linear layer on vectors has one position; on sequences, one for each place; a
convolution, one for each output pixel, with a the unfolded input. So one record's squared norm is

* `|a|^2 |g|^2` with one position (Goodfellow 2015, arXiv:1510.01799);
* `sum_{s,t} (a_s . a_t) (g_s . g_t)`, from two Gram matrices (Rochette et al. 2019,
  arXiv:1912.06015), where positions are few and the layer is wide;
* of the materialised G otherwise, which is then kept for the sum.

Normalisations and PReLU scale and shift: their gradients, see `normalisation`, are as small
as their parameters and are kept as they are. An embedding's are zero but in a few rows, and only
those are kept: see `embedding`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tacit.gradients.contributions import Contribution, Dense, Layout, Outer, Slot
from tacit.gradients.layers.convolution import geometry_of
from tacit.gradients.layers.embedding import bag_of, embedding_of
from tacit.gradients.layers.normalisation import (
    Normalisation,
    group_normalisation,
    layer_normalisation,
    parametric_rectifier,
)


def materialise(positions: int, width: int, height: int) -> bool:
    """Whether to norm a weight by its materialised gradient rather than by Gram matrices.

    With one position the norm is a product of two norms. Else the materialised gradient, which
    also makes the sum over records nearly free, as long as it is no more than twice the size of
    what it is made of: measured with the convolutions of the models here.
    """
    return positions > 1 and width * height <= 2 * positions * (width + height)


Forward = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, tuple[int, ...], Tensor]]
Parts = Callable[[Slot, Slot | None, Tensor, Tensor, int, int, bool], list[Contribution]]


@dataclass(frozen=True)
class Layer:
    """One tapped leaf module.

    Attributes:
        name: its path in the module.
        weight, bias: where its parameters lie.
        forward: (input `[nodes * b, ...]`, weight `[nodes, ...]`, bias `[nodes, out]` or None)
            -> the output for each node's records with its own weights, in any shape, and no view
            of another tensor (the tap works in place, and on views that takes four more passes);
            the shape `[nodes * b, ...]` it is to have; and what `parts` needs of the input, without
            grad. Raises `ValueError` for an input whose first axis is not the records.
        parts: (weight, bias, what `forward` kept, output gradient `[nodes * b, ...]`, nodes, views,
            norms) -> the gradients by weight and bias, where as many rows as there are views, one
            after the other, are one record.
    """

    name: str
    weight: Slot
    bias: Slot | None
    forward: Forward
    parts: Parts

    def contributions(
        self, kept: Tensor, gradients: Tensor, nodes: int, views: int, norms: bool
    ) -> list[Contribution]:
        """The gradients of this layer's parameters; `norms`: whether norms will be asked for."""
        return self.parts(self.weight, self.bias, kept, gradients, nodes, views, norms)


def describe(
    name: str, module: nn.Module, layout: Layout, channels_last: bool, rectified: bool
) -> Layer | str:
    """The tapped form of a leaf module with trainable parameters, or why it has none.

    `channels_last` says that convolutions may hand out images that lie so, and `rectified` that
    negative inputs count as zero, which is asked of convolutions alone.
    """
    slots = {slot.name: slot for slot in layout.slots}
    prefix = f"{name}." if name else ""
    own = {key: slots.get(prefix + key) for key, _ in module.named_parameters(recurse=False)}
    kind = _KINDS.get(type(module))
    if kind is None:
        return f"{name or 'the model'} is a {type(module).__name__}"
    if set(own) - {"weight", "bias"} or None in own.values() or "weight" not in own:
        return f"{name or 'the model'} has frozen or additional parameters of its own"
    found = kind(module, channels_last, rectified)
    if isinstance(found, str):
        return f"{name or 'the model'} {found}"
    return Layer(name, slots[prefix + "weight"], own.get("bias"), found.forward, found.parts)


@dataclass(frozen=True)
class _Functions:
    """`Layer.forward` and `Layer.parts` of one module."""

    forward: Forward
    parts: Parts


def _outer_parts(
    factors: Callable[[Tensor, Tensor, int, int], tuple[Tensor, Tensor]],
    finish: Callable[[Outer, bool], Contribution],
    weight: Slot,
    bias: Slot | None,
    kept: Tensor,
    gradients: Tensor,
    nodes: int,
    views: int,
    norms: bool,
) -> list[Contribution]:
    """`Layer.parts` of a layer whose weight gradient is a sum of outer products.

    `factors`: (what `forward` kept, output gradient `[nodes * b, ...]`, nodes, views) -> (`[nodes,
    b, groups, positions, in]`, `[nodes, b, groups, positions, out]`), in which the positions of all
    views of a record are its own; `finish`: (outer products, whether as matrices) -> the gradients
    by the weight.
    """
    left, right = factors(kept, gradients, nodes, views)
    as_matrix = norms and materialise(left.shape[3], left.shape[4], right.shape[4])
    result: list[Contribution] = [finish(Outer(weight, left, right), as_matrix)]
    if bias is not None:
        alike = weight if right.shape[3] == 1 else None
        result.append(Dense(bias, right.sum(dim=3).flatten(2), alike))
    return result


def _scale_parts(
    layer: Normalisation,
    weight: Slot,
    bias: Slot | None,
    kept: Tensor,
    gradients: Tensor,
    nodes: int,
    views: int,
    norms: bool,
) -> list[Contribution]:
    """`Layer.parts` of a normalisation: both gradients are small, so always as they are."""
    result: list[Contribution] = [Dense(weight, layer.by_weight(kept, gradients, nodes, views))]
    if bias is not None:
        result.append(Dense(bias, layer.by_bias(gradients, nodes, views)))
    return result


def _normalisation(
    make: Callable[[Any], Normalisation], module: nn.Module, channels_last: bool, rectified: bool
) -> _Functions | str:
    layer = make(module)
    return _Functions(layer.forward, partial(_scale_parts, layer))


def _linear(module: nn.Linear, channels_last: bool, rectified: bool) -> _Functions | str:
    return _Functions(_linear_forward, partial(_outer_parts, _linear_factors, _linear_finish))


def _linear_forward(
    inputs: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, tuple[int, ...], Tensor]:
    rows = inputs.reshape(weight.shape[0], -1, inputs.shape[-1])
    turned = weight.transpose(1, 2)
    if bias is None:
        outputs = torch.bmm(rows, turned)
    else:
        outputs = torch.baddbmm(bias.unsqueeze(1), rows, turned)
    return outputs, (*inputs.shape[:-1], outputs.shape[-1]), inputs.detach()


def _linear_factors(
    inputs: Tensor, gradients: Tensor, nodes: int, views: int
) -> tuple[Tensor, Tensor]:
    records = inputs.shape[0] // (nodes * views)
    left = inputs.reshape(nodes, records, 1, -1, inputs.shape[-1])
    right = gradients.reshape(nodes, records, 1, -1, gradients.shape[-1])
    return left, right


def _linear_finish(outer: Outer, as_matrix: bool) -> Contribution:
    return outer.materialised() if as_matrix else outer


def _embedding(module: nn.Embedding, channels_last: bool, rectified: bool) -> _Functions | str:
    found = embedding_of(module)
    return _Functions(found.forward, found.parts)


def _bag(module: nn.EmbeddingBag, channels_last: bool, rectified: bool) -> _Functions | str:
    found = bag_of(module)
    return found if isinstance(found, str) else _Functions(found.forward, found.parts)


def _convolution(
    module: nn.Conv1d | nn.Conv2d, channels_last: bool, rectified: bool
) -> _Functions | str:
    found = geometry_of(module, channels_last, rectified)
    if isinstance(found, str):
        return found
    return _Functions(found.forward, partial(_outer_parts, found.factors, found.contribution))


_KINDS: dict[type[nn.Module], Callable[[Any, bool, bool], _Functions | str]] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.GroupNorm: partial(_normalisation, group_normalisation),
    nn.InstanceNorm1d: partial(_normalisation, group_normalisation),
    nn.InstanceNorm2d: partial(_normalisation, group_normalisation),
    nn.InstanceNorm3d: partial(_normalisation, group_normalisation),
    nn.LayerNorm: partial(_normalisation, layer_normalisation),
    nn.RMSNorm: partial(_normalisation, layer_normalisation),
    nn.PReLU: partial(_normalisation, parametric_rectifier),
    nn.Embedding: _embedding,
    nn.EmbeddingBag: _bag,
}
