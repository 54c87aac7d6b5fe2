"""The way of models that are one linear layer, on a CPU: one compiled loop over the records.

Wide ones, whose products are most of a step, go by blocks of records (`linear_blocks`).

Slopes of the known losses are formulas, so that nothing is left to autograd, and a step of a few
records a node costs microseconds where taps take a hundred operations. The vectors that are clipped
and added are those of `contributions.Outer` and `Dense`, in the same arithmetic.

That a module is such a layer is known by its types, and tried out on the probe. Taps stay beside,
for what needs the gradients of records one by one, and where they are clamped by coordinate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from tacit.gradients.clipping import Clip, ClipNorm, factor_limits, norm_offset
from tacit.gradients.contributions import Layout, Slot
from tacit.gradients.losses import OF_NUMBERS, Formula, Loss
from tacit.gradients.probe import Probe

LOOP_NORMS: tuple[ClipNorm, ...] = ("l2", "l1", "automatic")
"""What the loop can bound."""

MOST_WEIGHTS = 1 << 14
"""Of more, BLAS makes up for all else: 60,000 take taps 3 ms and the loop 8."""

_PARTS: tuple[type[nn.Module], ...] = (nn.Sequential, nn.Flatten, nn.Identity, nn.Linear)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class LinearLayer:
    """A model's one layer, whose weight is `[outputs, inputs]`, and the formula of its loss."""

    weight: Slot
    bias: Slot | None
    formula: Formula

    @property
    def wide(self) -> bool:
        """Whether its products are most of a step, and worth BLAS."""
        return math.prod(self.weight.shape) > MOST_WEIGHTS


def linear_layer(
    module: nn.Module, exact: nn.Module, loss: Loss, layout: Layout, probe: Probe
) -> LinearLayer | None:
    """The layer that is all that `module` is; None where there is more, or no loop for it.

    Loops are for the CPU, and for losses whose formula is known.
    `exact` is the same module in float64, on the device of the probe.
    """
    if loss.formula is None or probe.inputs.device.type != "cpu":
        return None
    named = only_layer(module)
    if named is None or only_layer(exact) is None:  # which may have a hook for its output
        return None
    slots = {slot.name: slot for slot in layout.slots}
    given = dict(exact.named_parameters())
    if set(slots) != set(given):
        return None  # a part is frozen
    prefix = f"{named[0]}." if named[0] else ""
    weight, bias = f"{prefix}weight", f"{prefix}bias"
    records = probe.inputs.flatten(0, 1)
    outputs, width = slots[weight].shape
    if records[0].numel() != width or (loss.formula == "logistic" and outputs > 1):
        return None
    with torch.no_grad():
        found = exact(records)
        right = functional.linear(records.flatten(1), given[weight], given.get(bias))
    alike = found.shape == right.shape and torch.allclose(found, right, rtol=1e-9)
    return LinearLayer(slots[weight], slots.get(bias), loss.formula) if alike else None


def only_layer(module: nn.Module) -> tuple[str, nn.Linear] | None:
    """The name of the one linear layer that is all of a module, and the layer; None for others."""
    plain = all(
        type(part) in _PARTS
        and "forward" not in vars(part)
        and not any(getattr(part, hooks) for hooks in _HOOKS)
        for part in module.modules()
    )
    layers = [(name, part) for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    return layers[0] if plain and len(layers) == 1 else None


def add_clipped_records(
    layer: LinearLayer,
    parameters: Tensor,
    inputs: Tensor,
    targets: Tensor,
    mask: Tensor,
    clip: Clip | None,
    total: Tensor,
    norm: ClipNorm,
    shares: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Add the sum of (clipped) gradients over unmasked records to `total`, by the loop.

    On one thread, and nothing is made of the batch: however large, it need not be cut.

    Args:
        layer: the model.
        parameters: `[nodes, d]`.
        inputs: `[nodes, b, ...]`, of any floating dtype; masked slots may hold anything.
        targets: `[nodes, b, ...]`, likewise.
        mask: `[nodes, b]`, True for records.
        clip: what each record's norm is brought to, or None.
        total: `[nodes, d]` contiguous, of the dtype of the parameters or float64.
        norm: of `LOOP_NORMS`.
        shares: `[nodes, b, rows]` of the rows that a record is, `[rows, ...]`, which `total` takes
            in float64; None: it is one row.

    Returns:
        Norms `[nodes, b]` (`[nodes, 0]` where clip is None) and losses `[nodes, b]`, both 0 where
        masked; norms are infinite where a record contributes nothing.
    """
    from tacit.kernels.linear import LOSSES, add_clipped_gradients, add_clipped_sums

    nodes, records = mask.shape
    outputs, width = layer.weight.shape
    wanted = outputs if layer.formula in OF_NUMBERS else 1  # numbers of a target
    losses = parameters.new_empty(nodes, records)
    norms = parameters.new_empty(nodes, 0 if clip is None else records)
    limits = factor_limits(1.0 if clip is None else clip, parameters.dtype)
    start = layer.weight.start, -1 if layer.bias is None else layer.bias.start
    read, labels = (_array(readable(values, parameters)) for values in (inputs, targets))
    if shares is not None:
        rows = _array(shares)
        add_clipped_sums(
            LOSSES[layer.formula],
            _array(parameters),
            *start,
            read.reshape(*rows.shape, width),
            labels.reshape(*rows.shape, wanted),
            rows,
            _array(mask),
            of_nodes(limits.numerator, nodes),
            limits.least,
            norm == "l1",
            norm_offset(norm),
            total.numpy(),
            norms.numpy(),
            losses.numpy(),
        )
        return norms, losses
    add_clipped_gradients(
        LOSSES[layer.formula],
        _array(parameters),
        *start,
        read.reshape(nodes, records, width),
        labels.reshape(nodes, records, wanted),
        _array(mask),
        of_nodes(limits.numerator, nodes),
        of_nodes(limits.reach, nodes),
        limits.least,
        torch.finfo(parameters.dtype).tiny,
        norm == "l1",
        norm_offset(norm),
        total.numpy(),
        norms.numpy(),
        losses.numpy(),
    )
    return norms, losses


def scores(layer: LinearLayer, parameters: Tensor, inputs: Tensor) -> Tensor:
    """Every node's outputs for the same records `[records, ...]`, `[nodes, records, outputs]`."""
    turned = layer.weight.view(parameters).transpose(1, 2)
    records = inputs.flatten(1).expand(len(parameters), -1, -1)
    if layer.bias is None:
        return torch.bmm(records, turned)
    return torch.baddbmm(layer.bias.view(parameters).unsqueeze(1), records, turned)


def readable(values: Tensor, parameters: Tensor) -> Tensor:
    """In the dtype of the parameters, but for integers, and for what that dtype holds anyway."""
    known = values.dtype in (torch.float32, parameters.dtype) or not values.is_floating_point()
    return values if known else values.to(parameters.dtype)


def _array(values: Tensor) -> NDArray[Any]:
    """The same numbers, contiguous: a loop is compiled for one layout."""
    array: NDArray[Any] = values.contiguous().numpy()
    return array


def of_nodes(limit: Clip, nodes: int) -> NDArray[np.float64]:
    """One limit a node, `[nodes]`."""
    if isinstance(limit, Tensor):
        return limit.double().reshape(-1).numpy()
    return np.full(nodes, limit)
