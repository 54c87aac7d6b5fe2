"""Layers that scale and shift, with weights for each node, and their gradients for each record.

Normalisations of groups, layers and instances, and that by the root mean square, divide by what is
taken over values of one record only, and then scale and shift: `y = weight * n(x) + bias`. With g
the gradient of a record's loss by y, its gradient is `sum g * n(x)` by the weight and `sum g` by
the bias, summed over all positions at which an entry is used: over pixels for group normalisation,
over a sequence's places for layer normalisation. PReLU is such a layer with n(x) = min(x, 0), to
which max(x, 0) is added.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.instancenorm import _InstanceNorm

from tacit.gradients.contributions import Contribution, Dense, Slots


@dataclass(frozen=True)
class Normalisation:
    """A normalisation without its weight and bias.

    Attributes:
        normalise: input `[records, ...]` -> the same shape, mean 0 and variance 1 in each group.
        rows: values `[records, ...]` -> `[records, before, entries, after]`, in which the weight
            and the bias, flattened, lie along `entries`.
        rest: what is added to the outputs, of the inputs; None: nothing.
    """

    normalise: Callable[[Tensor], Tensor]
    rows: Callable[[Tensor], Tensor]
    rest: Callable[[Tensor], Tensor] | None = None

    def forward(
        self, inputs: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, tuple[int, ...], Tensor]:
        """Each node's records `[nodes * b, ...]` with its own weight and bias, `[nodes, ...]` each.

        Returns:
            See `layers.Kind.forward`; what is kept are the inputs normalised.
        """
        normalised = self.normalise(inputs)
        rows = self.rows(normalised)
        outputs = rows.reshape(weight.shape[0], -1, *rows.shape[1:]) * _along(weight)
        if bias is not None:
            outputs.add_(_along(bias))
        if self.rest is not None:
            outputs.add_(self.rest(inputs).reshape(outputs.shape))
        return outputs, tuple(inputs.shape), normalised.detach()

    def parts(
        self, slots: Slots, kept: Tensor, gradients: Tensor, nodes: int, views: int, norms: bool
    ) -> list[Contribution]:
        """Both gradients are small, so always as they are; overwrites what is kept.

        Autograd has no use for that after a backward pass.
        """
        weight, bias = slots
        by_weight = self._summed(kept.mul_(gradients), nodes, views)
        found: list[Contribution] = [Dense(weight, by_weight)]
        if bias is not None:
            found.append(Dense(bias, self._summed(gradients, nodes, views)))
        return found

    def _summed(self, gradients: Tensor, nodes: int, views: int) -> Tensor:
        """Over a record's positions, `[nodes, b, size]`."""
        summed = self.rows(gradients).sum(dim=(1, 3))
        if views > 1:
            summed = summed.view(-1, views, summed.shape[1]).sum(dim=1)
        return summed.reshape(nodes, -1, summed.shape[1])


def _along(values: Tensor) -> Tensor:
    """`[nodes, ...]` as `[nodes, 1, 1, entries, 1]`."""
    return values.reshape(values.shape[0], 1, 1, -1, 1)


def by_channel(values: Tensor) -> Tensor:
    """`[records, channels, ...]` as `[records, 1, channels, positions]`."""
    return values.reshape(values.shape[0], 1, values.shape[1], -1)


def group_normalisation(module: nn.GroupNorm | _InstanceNorm) -> Normalisation:
    """Inputs `[records, channels, ...]`, a weight and a bias for each channel."""
    groups = module.num_groups if isinstance(module, nn.GroupNorm) else module.num_features
    eps = module.eps

    def normalise(inputs: Tensor) -> Tensor:
        return functional.group_norm(inputs, groups, eps=eps)

    return Normalisation(normalise, by_channel)


def parametric_rectifier(module: nn.PReLU) -> Normalisation:
    """Inputs `[records, channels, ...]`, a slope of what is negative for each channel, or one."""
    one = module.num_parameters == 1

    def rows(values: Tensor) -> Tensor:
        return values.reshape(len(values), 1, 1, -1) if one else by_channel(values)

    return Normalisation(partial(torch.clamp, max=0.0), rows, functional.relu)


class PlainPReLU(nn.PReLU):
    """The same by plain operations: `torch.func` has no rule for torch's under a second `vmap`."""

    def forward(self, inputs: Tensor) -> Tensor:
        """The same as torch's, at 0 too."""
        slopes = self.weight.view(-1, *[1] * max(0, inputs.ndim - 2))
        return torch.where(inputs > 0, inputs, slopes * inputs)


def layer_normalisation(module: nn.LayerNorm | nn.RMSNorm) -> Normalisation:
    """Inputs `[records, ..., *shape]`, a weight and perhaps a bias of that shape."""
    shape, eps = tuple(module.normalized_shape), module.eps
    entries = math.prod(shape)

    def normalise(inputs: Tensor) -> Tensor:
        if isinstance(module, nn.RMSNorm):
            return functional.rms_norm(inputs, shape, eps=eps)
        return functional.layer_norm(inputs, shape, eps=cast(float, eps))

    def rows(values: Tensor) -> Tensor:
        return values.reshape(values.shape[0], -1, entries, 1)

    return Normalisation(normalise, rows)
