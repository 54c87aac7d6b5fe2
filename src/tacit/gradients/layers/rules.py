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

# ruff: noqa: D102 (what a method of a protocol does, the protocol says)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tacit.gradients.contributions import Contribution, Layout, Slots, of_factors
from tacit.gradients.layers.convolution import geometry_of
from tacit.gradients.layers.embedding import bag_of, embedding_of
from tacit.gradients.layers.normalisation import (
    group_normalisation,
    layer_normalisation,
    parametric_rectifier,
)


class Kind(Protocol):
    """What a tapped layer computes, beside its parameters."""

    def forward(
        self, inputs: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, tuple[int, ...], Tensor]:
        """The output for each node's records with its own weights.

        Inputs are `[nodes * b, ...]`, weights `[nodes, ...]`, and biases `[nodes, out]`.

        Returns:
            The output in any shape, and no view of another tensor (the tap works in place, and on
            views that takes four more passes); the shape `[nodes * b, ...]` it is to have; and what
            `parts` needs of the input, without grad.

        Raises:
            ValueError: the first axis of the input is not the records.
        """

    def parts(
        self, slots: Slots, kept: Tensor, gradients: Tensor, nodes: int, views: int, norms: bool
    ) -> list[Contribution]:
        """The gradients by weight and bias, from what `forward` kept and those by the output.

        Those are `[nodes * b, ...]`. As many rows as there are `views`, one after the other, are
        one record. `norms`: whether norms will be asked for.
        """


@dataclass(frozen=True)
class Layer:
    """One tapped leaf module: its path in the module, and where its parameters lie."""

    name: str
    slots: Slots
    kind: Kind


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
    return Layer(name, (slots[prefix + "weight"], own.get("bias")), found)


class Linear:
    """A linear layer, of vectors or of sequences."""

    def forward(
        self, inputs: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, tuple[int, ...], Tensor]:
        rows = inputs.reshape(weight.shape[0], -1, inputs.shape[-1])
        turned = weight.transpose(1, 2)
        if bias is None:
            outputs = torch.bmm(rows, turned)
        else:
            outputs = torch.baddbmm(bias.unsqueeze(1), rows, turned)
        return outputs, (*inputs.shape[:-1], outputs.shape[-1]), inputs.detach()

    def parts(
        self, slots: Slots, kept: Tensor, gradients: Tensor, nodes: int, views: int, norms: bool
    ) -> list[Contribution]:
        records = len(kept) // (nodes * views)
        left, right = (
            each.reshape(nodes, records, 1, -1, each.shape[-1]) for each in (kept, gradients)
        )
        return of_factors(slots, left, right, norms)


# Of a module, whether images may lie channels last, and whether negative inputs count as zero.
_KINDS: dict[type[nn.Module], Callable[[Any, bool, bool], Kind | str]] = {
    nn.Linear: lambda *_: Linear(),
    nn.Conv1d: geometry_of,
    nn.Conv2d: geometry_of,
    nn.GroupNorm: lambda module, *_: group_normalisation(module),
    nn.InstanceNorm1d: lambda module, *_: group_normalisation(module),
    nn.InstanceNorm2d: lambda module, *_: group_normalisation(module),
    nn.InstanceNorm3d: lambda module, *_: group_normalisation(module),
    nn.LayerNorm: lambda module, *_: layer_normalisation(module),
    nn.RMSNorm: lambda module, *_: layer_normalisation(module),
    nn.PReLU: lambda module, *_: parametric_rectifier(module),
    nn.Embedding: lambda module, *_: embedding_of(module),
    nn.EmbeddingBag: lambda module, *_: bag_of(module),
}
