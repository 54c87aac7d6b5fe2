"""The layers that taps know: their stacked forward, and their gradients as factors.

A tapped layer's weight gradient for one record is a sum over positions t of outer products,
`G[o, i] = sum_t g[t, o] a[t, i]`, with a the layer's input and g the gradient of the loss by its
output. A linear layer on vectors has one position; on sequences, one for each place; a
convolution, one for each output pixel, with a the unfolded input. So one record's squared norm is

* `|a|^2 |g|^2` with one position (Goodfellow 2015, arXiv:1510.01799);
* `sum_{s,t} (a_s . a_t) (g_s . g_t)`, from two Gram matrices (Rochette et al. 2019,
  arXiv:1912.06015), where positions are few and the layer is wide;
* of the materialised G otherwise, which is then kept for the sum.

Group and layer normalisation scale and shift: their gradients, see `normalisation`, are as small
as their parameters and are kept as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.gradients.layout import Layout, Slot
from tacit.gradients.normalisation import (
    Normalisation,
    group_normalisation,
    layer_normalisation,
)

__all__ = ["Contribution", "Dense", "Layer", "Outer", "describe"]


class Contribution(Protocol):
    """The gradients of a batch by one parameter, in whatever form is cheapest."""

    @property
    def slot(self) -> Slot:
        """Where the parameter lies in the flat vector."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the gradients."""

    def squared_norms(self) -> Tensor:
        """Squared l2 norms `[nodes, b]`, not finite where the gradient is not."""

    def absolute_sums(self) -> Tensor:
        """The l1 norms `[nodes, b]`, in float64; not finite where the gradient is not."""

    def cleaned(self, finite: Tensor) -> Contribution:
        """The same with zeros for the records where `finite` `[nodes, b]` is False."""

    def add_to(self, total: Tensor, factors: Tensor, beta: int) -> None:
        """In `total` `[nodes, d]`, scale the own slot by beta and add sum_r factor_r gradient_r."""

    def numel(self) -> int:
        """How many numbers this keeps."""

    def materialised(self) -> Dense:
        """The same gradients, as one vector a record."""

    def outer(self) -> Outer:
        """The same gradients, as outer products."""


@dataclass(frozen=True)
class Dense:
    """Materialised gradients, `values` `[nodes, b, size of the slot]`.

    `gradients_of` is the slot of the weight whose `Outer.gradients` hold the very same numbers, if
    there is one: a bias whose layer has one position.
    """

    slot: Slot
    values: Tensor
    gradients_of: Slot | None = None

    @property
    def dtype(self) -> torch.dtype:
        """See `Contribution`."""
        return self.values.dtype

    def squared_norms(self) -> Tensor:
        """See `Contribution`."""
        norms: Tensor = torch.linalg.vector_norm(self.values, dim=2)
        return norms.square()

    def absolute_sums(self) -> Tensor:
        """See `Contribution`."""
        sums: Tensor = torch.linalg.vector_norm(self.values, ord=1, dim=2, dtype=torch.float64)
        return sums

    def cleaned(self, finite: Tensor) -> Dense:
        """See `Contribution`."""
        return Dense(self.slot, _zero_unless(finite, self.values), self.gradients_of)

    def add_to(self, total: Tensor, factors: Tensor, beta: int) -> None:
        """See `Contribution`."""
        target = total[:, self.slot.start : self.slot.stop].unsqueeze(1)
        target.baddbmm_(factors.unsqueeze(1), self.values, beta=beta)

    def numel(self) -> int:
        """See `Contribution`."""
        return self.values.numel()

    def materialised(self) -> Dense:
        """See `Contribution`."""
        return self

    def outer(self) -> Outer:
        """See `Contribution`; the inputs are a one that takes no memory."""
        ones = self.values.new_ones(()).expand(*self.values.shape[:2], 1, 1, 1)
        gradients = self.values[:, :, None, None]
        return Outer(self.slot, ones, gradients, self.gradients_of)


@dataclass(frozen=True)
class Outer:
    """Gradients as outer products summed over positions.

    `inputs` `[nodes, b, groups, positions, in]`, `gradients` `[nodes, b, groups, positions, out]`;
    the slot's parameter is `[groups * out, in]` when flattened. `gradients_of` as in `Dense`.
    """

    slot: Slot
    inputs: Tensor
    gradients: Tensor
    gradients_of: Slot | None = None

    @property
    def dtype(self) -> torch.dtype:
        """See `Contribution`."""
        return self.gradients.dtype

    def squared_norms(self) -> Tensor:
        """See `Contribution`."""
        if self.inputs.shape[3] == 1:
            # A sum of squares that underflows would understate the norm, and so break the bound
            # on the contribution; the floor overstates it instead.
            limits = torch.finfo(self.inputs.dtype)
            floor = limits.tiny / limits.eps
            left = self.inputs.square().sum(dim=(3, 4)).clamp(min=floor)
            right = self.gradients.square().sum(dim=(3, 4)).clamp(min=floor)
            return (left * right).sum(dim=2)
        # In float64: where gradients of positions cancel, the sum of products loses twice the
        # digits that the gradient itself loses.
        left, right = self.inputs.double(), self.gradients.double()
        products = (left @ left.transpose(3, 4)) * (right @ right.transpose(3, 4))
        return products.sum(dim=(2, 3, 4)).clamp(min=0.0).to(self.inputs.dtype)

    def absolute_sums(self) -> Tensor:
        """See `Contribution`; of an outer product, the product of those of its factors."""
        if self.inputs.shape[3] > 1:
            return self.materialised().absolute_sums()
        left, right = (
            torch.linalg.vector_norm(factor, ord=1, dim=(3, 4), dtype=torch.float64)
            for factor in (self.inputs, self.gradients)
        )
        sums: Tensor = (left * right).sum(dim=2)
        return sums

    def cleaned(self, finite: Tensor) -> Outer:
        """See `Contribution`."""
        inputs, gradients = (_zero_unless(finite, x) for x in (self.inputs, self.gradients))
        return Outer(self.slot, inputs, gradients, self.gradients_of)

    def add_to(self, total: Tensor, factors: Tensor, beta: int) -> None:
        """See `Contribution`."""
        nodes, _, groups, _, width = self.inputs.shape
        height = self.gradients.shape[4]
        weighted = self.gradients * factors.view(*factors.shape, 1, 1, 1)
        target = total[:, self.slot.start : self.slot.stop].view(nodes, groups, height, width)
        for group in range(groups):
            left = weighted[:, :, group].reshape(nodes, -1, height).transpose(1, 2)
            right = self.inputs[:, :, group].reshape(nodes, -1, width)
            target[:, group].baddbmm_(left, right, beta=beta)

    def numel(self) -> int:
        """See `Contribution`."""
        return self.inputs.numel() + self.gradients.numel()

    def materialised(self) -> Dense:
        """See `Contribution`."""
        return Dense(self.slot, (self.gradients.transpose(3, 4) @ self.inputs).flatten(2))

    def outer(self) -> Outer:
        """See `Contribution`."""
        return self


def _zero_unless(finite: Tensor, values: Tensor) -> Tensor:
    return values.masked_fill(~finite.view(*finite.shape, *(1,) * (values.ndim - 2)), 0.0)


def materialise(positions: int, width: int, height: int) -> bool:
    """Whether to norm a weight by its materialised gradient rather than by Gram matrices.

    With one position the norm is a product of two norms. Else the materialised gradient, which
    also makes the sum over records nearly free, as long as it is no more than twice the size of
    what it is made of: measured with the convolutions of the models here.
    """
    return positions > 1 and width * height <= 2 * positions * (width + height)


Parts = Callable[[Slot, Slot | None, Tensor, Tensor, int, bool], list[Contribution]]


@dataclass(frozen=True)
class Layer:
    """One tapped leaf module.

    Attributes:
        name: its path in the module.
        weight, bias: where its parameters lie.
        forward: (input `[nodes * b, ...]`, weight `[nodes, ...]`, bias `[nodes, out]` or None)
            -> output `[nodes * b, ...]`, each node's records with its own weights. Raises
            `ValueError` for an input whose first axis is not the records.
        parts: (weight, bias, input, output gradient `[nodes * b, ...]`, nodes, norms) -> the
            gradients by weight and bias.
    """

    name: str
    weight: Slot
    bias: Slot | None
    forward: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    parts: Parts

    def contributions(
        self, inputs: Tensor, gradients: Tensor, nodes: int, norms: bool
    ) -> list[Contribution]:
        """The gradients of this layer's parameters; `norms`: whether norms will be asked for."""
        return self.parts(self.weight, self.bias, inputs, gradients, nodes, norms)


def describe(name: str, module: nn.Module, layout: Layout) -> Layer | str:
    """The tapped form of a leaf module with trainable parameters, or why it has none."""
    slots = {slot.name: slot for slot in layout.slots}
    prefix = f"{name}." if name else ""
    own = {key: slots.get(prefix + key) for key, _ in module.named_parameters(recurse=False)}
    kind = _KINDS.get(type(module))
    if kind is None:
        return f"{name or 'the model'} is a {type(module).__name__}"
    if set(own) - {"weight", "bias"} or None in own.values() or "weight" not in own:
        return f"{name or 'the model'} has frozen or additional parameters of its own"
    found = kind(module)
    if isinstance(found, str):
        return f"{name or 'the model'} {found}"
    return Layer(name, slots[prefix + "weight"], own.get("bias"), found.forward, found.parts)


@dataclass(frozen=True)
class _Functions:
    """`Layer.forward` and `Layer.parts` of one module."""

    forward: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    parts: Parts


def _outer_parts(
    factors: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]],
    weight: Slot,
    bias: Slot | None,
    inputs: Tensor,
    gradients: Tensor,
    nodes: int,
    norms: bool,
) -> list[Contribution]:
    """`Layer.parts` of a layer whose weight gradient is a sum of outer products.

    `factors`: (input, output gradient `[nodes * b, ...]`, nodes) -> (`[nodes, b, groups,
    positions, in]`, `[nodes, b, groups, positions, out]`).
    """
    left, right = factors(inputs, gradients, nodes)
    outer = Outer(weight, left, right)
    as_matrix = norms and materialise(left.shape[3], left.shape[4], right.shape[4])
    result: list[Contribution] = [outer.materialised() if as_matrix else outer]
    if bias is not None:
        alike = weight if right.shape[3] == 1 else None
        result.append(Dense(bias, right.sum(dim=3).flatten(2), alike))
    return result


def _scale_parts(
    layer: Normalisation,
    weight: Slot,
    bias: Slot | None,
    inputs: Tensor,
    gradients: Tensor,
    nodes: int,
    norms: bool,
) -> list[Contribution]:
    """`Layer.parts` of a normalisation: both gradients are small, so always as they are."""
    result: list[Contribution] = [Dense(weight, layer.by_weight(inputs, gradients, nodes))]
    if bias is not None:
        result.append(Dense(bias, layer.by_bias(gradients, nodes)))
    return result


def _normalisation(layer: Normalisation) -> _Functions:
    return _Functions(layer.forward, partial(_scale_parts, layer))


def _group_norm(module: nn.GroupNorm) -> _Functions | str:
    return _normalisation(group_normalisation(module))


def _layer_norm(module: nn.LayerNorm) -> _Functions | str:
    return _normalisation(layer_normalisation(module))


def _linear(module: nn.Linear) -> _Functions | str:
    return _Functions(_linear_forward, partial(_outer_parts, _linear_factors))


def _linear_forward(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = inputs.reshape(weight.shape[0], -1, inputs.shape[-1])
    turned = weight.transpose(1, 2)
    if bias is None:
        outputs = torch.bmm(rows, turned)
    else:
        outputs = torch.baddbmm(bias.unsqueeze(1), rows, turned)
    return outputs.view(*inputs.shape[:-1], outputs.shape[-1])


def _linear_factors(inputs: Tensor, gradients: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    records = inputs.shape[0] // nodes
    left = inputs.reshape(nodes, records, 1, -1, inputs.shape[-1])
    right = gradients.reshape(nodes, records, 1, -1, gradients.shape[-1])
    return left, right


@dataclass(frozen=True)
class _Geometry:
    """A convolution's settings over two axes; a one-dimensional one has a first axis of one."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def _convolution(module: nn.Conv1d | nn.Conv2d) -> _Functions | str:
    if isinstance(module.padding, str) or module.padding_mode != "zeros":
        return f"pads with {module.padding!r}, mode {module.padding_mode!r}"
    missing = 2 - len(module.kernel_size)
    geometry = _Geometry(
        kernel=(1,) * missing + module.kernel_size,
        stride=(1,) * missing + module.stride,
        padding=(0,) * missing + module.padding,
        dilation=(1,) * missing + module.dilation,
        groups=module.groups,
    )
    return _Functions(
        partial(_convolution_forward, geometry),
        partial(_outer_parts, partial(_convolution_factors, geometry)),
    )


def _convolution_forward(
    geometry: _Geometry, inputs: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    nodes, height = weight.shape[:2]
    images = _as_images(inputs)
    kernels = weight.reshape(nodes, height, weight.shape[2], *geometry.kernel)
    biases = [None] * nodes if bias is None else list(bias)
    # A loop: a grouped convolution over all nodes is slower on the CPU.
    outputs = [
        functional.conv2d(
            node_images,
            kernel,
            node_bias,
            geometry.stride,
            geometry.padding,
            geometry.dilation,
            geometry.groups,
        )
        for node_images, kernel, node_bias in zip(images.chunk(nodes), kernels, biases, strict=True)
    ]
    result = torch.cat(outputs)
    return result.view(*result.shape[:2], *result.shape[4 - (inputs.ndim - 2) :])


def _convolution_factors(
    geometry: _Geometry, inputs: Tensor, gradients: Tensor, nodes: int
) -> tuple[Tensor, Tensor]:
    columns = functional.unfold(
        _as_images(inputs), geometry.kernel, geometry.dilation, geometry.padding, geometry.stride
    )
    shape = (nodes, inputs.shape[0] // nodes, geometry.groups, -1, columns.shape[2])
    left = columns.view(shape).transpose(3, 4)
    right = gradients.reshape(shape).transpose(3, 4)
    return left, right


def _as_images(inputs: Tensor) -> Tensor:
    return inputs if inputs.ndim == 4 else inputs.unsqueeze(2)


_KINDS: dict[type[nn.Module], Callable[[Any], _Functions | str]] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
}
