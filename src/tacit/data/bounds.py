"""A public bound of inputs, enforced: what is longer is scaled down, and rounding is counted."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["bounded_inputs"]

_AT_ONCE = 2**20  # numbers in float64
_ULP = 2.0**-53  # relative error of one rounding in float64


def bounded_inputs(inputs: Tensor, bound: float) -> Tensor:
    """Records whose l2 norm, in exact arithmetic, is at most `bound`.

    A record that is longer is scaled down to it; any other stays as it is, but for those within
    rounding of the bound. A function of each record alone.

    With n numbers in a record, the norm is computed in float64 of numbers of size at most 1, to a
    relative error below (n + 8) 2^-53; twice that much is taken off the bound. Rounding to the
    type of the inputs goes towards zero, and so makes no record longer.

    Args:
        inputs: `[records, ...]`, finite, float32 or float64.
        bound: between 1e-100 and 1e100.

    Returns:
        Of the same shape and type; the very tensor that was given where no record is longer.
    """
    length = math.prod(inputs.shape[1:])
    rows = inputs.reshape(len(inputs), length)
    aim = bound * (1 - 2 * (length + 8) * _ULP)
    bounded: Tensor | None = None
    for start in range(0, len(rows), max(1, _AT_ONCE // max(1, length))):
        part = rows[start : start + max(1, _AT_ONCE // max(1, length))].double()
        largest = part.abs().amax(dim=1, keepdim=True) if length else part.new_zeros(len(part), 1)
        units = part / torch.where(largest > 0, largest, 1.0)
        norms = units.square().sum(dim=1, keepdim=True).sqrt()
        longer = (norms * largest > aim)[:, 0]  # infinite products are longer too
        if not bool(longer.any()):
            continue
        if bounded is None:
            bounded = rows.clone()
        exact = units[longer] * (aim / norms[longer])
        rounded = exact.to(rows.dtype)
        outside = rounded.double().abs() > exact.abs()
        rounded = torch.where(outside, torch.nextafter(rounded, rounded.new_zeros(())), rounded)
        bounded[start : start + len(part)][longer] = rounded
    return inputs if bounded is None else bounded.view(inputs.shape)
