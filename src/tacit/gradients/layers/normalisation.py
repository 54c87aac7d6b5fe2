"""Group and layer normalisation with weights for each node, and their gradients for each record.

Both subtract a mean and divide by a standard deviation, taken over values of one record only, and
then scale and shift: `y = weight * n(x) + bias`. With g the gradient of a record's loss by y, its
gradient is `sum g * n(x)` by the weight and `sum g` by the bias, summed over all positions at
which an entry is used: over pixels for group normalisation, over a sequence's places for layer
normalisation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Normalisation:
    """A normalisation without its weight and bias.

    Attributes:
        normalise: input `[records, ...]` -> the same shape, mean 0 and variance 1 in each group.
        rows: values `[records, ...]` -> `[records, before, entries, after]`, in which the weight
            and the bias, flattened, lie along `entries`.
    """

    normalise: Callable[[Tensor], Tensor]
    rows: Callable[[Tensor], Tensor]

    def forward(
        self, inputs: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, tuple[int, ...], Tensor]:
        """Each node's records `[nodes * b, ...]` with its own weight and bias, `[nodes, ...]` each.

        Returns:
            See `layers.Layer.forward`; what is kept are the inputs normalised.
        """
        normalised = self.normalise(inputs)
        rows = self.rows(normalised)
        outputs = rows.reshape(weight.shape[0], -1, *rows.shape[1:]) * _along(weight)
        if bias is not None:
            outputs.add_(_along(bias))
        return outputs, tuple(inputs.shape), normalised.detach()

    def by_weight(self, normalised: Tensor, gradients: Tensor, nodes: int, views: int) -> Tensor:
        """Each record's gradient by the weight, `[nodes, b, size]`.

        `normalised` is of `forward`, and is overwritten: autograd has no use for it after a
        backward pass. Gradients are by the output, `[nodes * b, ...]`; a record is `views` rows,
        one after the other.
        """
        return self.by_bias(normalised.mul_(gradients), nodes, views)

    def by_bias(self, gradients: Tensor, nodes: int, views: int) -> Tensor:
        """Each record's gradient by the bias, `[nodes, b, size]`."""
        summed = self.rows(gradients).sum(dim=(1, 3))
        if views > 1:
            summed = summed.view(-1, views, summed.shape[1]).sum(dim=1)
        return summed.reshape(nodes, -1, summed.shape[1])


def _along(values: Tensor) -> Tensor:
    """`[nodes, ...]` as `[nodes, 1, 1, entries, 1]`."""
    return values.reshape(values.shape[0], 1, 1, -1, 1)


def group_normalisation(module: nn.GroupNorm) -> Normalisation:
    """Inputs `[records, channels, ...]`, a weight and a bias for each channel."""
    groups, eps = module.num_groups, module.eps

    def normalise(inputs: Tensor) -> Tensor:
        return functional.group_norm(inputs, groups, eps=eps)

    def rows(values: Tensor) -> Tensor:
        return values.reshape(values.shape[0], 1, values.shape[1], -1)

    return Normalisation(normalise, rows)


def layer_normalisation(module: nn.LayerNorm) -> Normalisation:
    """Inputs `[records, ..., *shape]`, a weight and perhaps a bias of that shape."""
    shape, eps = tuple(module.normalized_shape), module.eps
    entries = math.prod(shape)

    def normalise(inputs: Tensor) -> Tensor:
        return functional.layer_norm(inputs, shape, eps=eps)

    def rows(values: Tensor) -> Tensor:
        return values.reshape(values.shape[0], -1, entries, 1)

    return Normalisation(normalise, rows)
