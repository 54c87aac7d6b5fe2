"""The gradients of a batch before they are summed: every record's own, clipped."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.gradients.clipping import (
    CANCELLATION,
    Clip,
    ClipNorm,
    clip_factors,
    column,
    in_reach,
)
from tacit.gradients.contributions import Contribution, Dense, Sizes
from tacit.gradients.known import all_known_true
from tacit.gradients.probe import GradientPath

__all__ = ["RecordGradients", "add_clipped", "clip_records", "norm_bounds", "record_gradients"]


@dataclass(frozen=True)
class RecordGradients:
    """Gradients of a batch's records, to be multiplied by their clip factors.

    Attributes:
        parts: one a parameter; finite wherever `factors` is zero.
        factors: `[nodes, b]`, at most 1; exactly 0 where masked or where there is no bound.
        norms: `[nodes, b]` before clipping, 0 where masked; `[nodes, 0]` without clipping.
        losses: `[nodes, b]`, 0 where masked.
    """

    parts: list[Contribution]
    factors: Tensor
    norms: Tensor
    losses: Tensor


_Clipped = tuple[list[Contribution], Tensor, Tensor]


def clip_records(
    parts: Sequence[Contribution], mask: Tensor, clip: Clip, norm: ClipNorm = "l2"
) -> _Clipped:
    """Parts without the records that have no bound, clip factors, and masked norms.

    Args:
        parts: all the parts of a batch's gradients.
        mask: `[nodes, b]`, True for records.
        clip: the bound C on each record's norm, or `[nodes]` bounds.
        norm: which norm, and how it is kept: see `clipping`. By coordinate, the parts are clamped
            and every factor is 1 or 0.

    Returns:
        The parts, factors `[nodes, b]` and norms `[nodes, b]`: infinite where a record has no bound
        (its gradient is not finite, or too large for its arithmetic) and contributes nothing.
    """
    return _CLIPPERS[norm](parts, mask, clip)


def add_clipped(parts: Sequence[Contribution], factors: Tensor, total: Tensor, beta: int) -> None:
    """Scale `total` `[nodes, d]` by beta and add sum_r factor_r gradient_r, as the proof has it.

    Where a record's gradient is a sum of terms, in float64.
    """
    for part in parts:
        part.exact().add_to(total, factors, beta)


def norm_bounds(sizes: Sequence[Sizes], dtype: torch.dtype) -> Tensor:
    """Upper bounds `[nodes, b]` on l2 norms of gradients, in float64, given the sizes of all parts.

    A part scaled by a factor C / bound keeps to C when its terms are added up in float64, and when
    the products of that factor are first rounded to `dtype`. Gradients that cancel to less than
    1/8192 of their terms count as that much.
    """
    bounds = _summed([size.bounds for size in sizes]).mul_(1 + 2.0**-40).sqrt_()
    cancelling = [size.terms for size in sizes if size.terms is not None]
    if not cancelling:
        return bounds
    terms = _summed(cancelling).sqrt_()
    return torch.maximum(bounds + torch.finfo(dtype).eps * terms, terms / CANCELLATION)


def _summed(values: Sequence[Tensor]) -> Tensor:
    """A new tensor."""
    total = values[0].clone()
    for value in values[1:]:
        total += value
    return total


def _by_l2(parts: Sequence[Contribution], mask: Tensor, clip: Clip) -> _Clipped:
    sizes = [part.sizes() for part in parts]
    return _scaled(parts, mask, clip, norm_bounds(sizes, parts[0].dtype), sizes)


def _by_l1(parts: Sequence[Contribution], mask: Tensor, clip: Clip) -> _Clipped:
    # Sums over positions are made first, so that the norm is that of the very numbers added up.
    parts = [part if part.positions == 1 else part.materialised() for part in parts]
    sums = _summed([part.absolute_sums() for part in parts])
    # n sums and products of positive numbers err by a share of at most n u / (1 - n u), u = eps / 2
    # (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1).
    sums = sums * (1 + (_coordinates(parts) + 16) * torch.finfo(sums.dtype).eps)
    return _scaled(parts, mask, clip, sums, [part.sizes() for part in parts])


def _by_coordinate(parts: Sequence[Contribution], mask: Tensor, clip: Clip) -> _Clipped:
    root = math.sqrt(_coordinates(parts))
    each: list[Dense] = [part.materialised() for part in parts]
    largest = torch.stack([part.values.abs().amax(dim=2) for part in each]).amax(dim=0)
    finite = torch.isfinite(largest)
    limits = torch.finfo(largest.dtype)
    aims = torch.as_tensor(column(clip), dtype=torch.float64, device=mask.device).reshape(-1, 1, 1)
    bound = (aims * (1 - 4 * limits.eps) / root).to(largest.dtype)
    clamped: list[Contribution] = []
    while each:  # the unclamped are let go as their place is taken
        part = each.pop(0)
        part = part if all_known_true(finite) else part.cleaned(finite)
        clamped.append(Dense(part.slot, part.values.clamp(-bound, bound)))
    norms = _reported(largest.double() * root, finite, mask, largest.dtype)
    return clamped, (mask & finite).to(largest.dtype), norms


_CLIPPERS: Mapping[ClipNorm, Callable[[Sequence[Contribution], Tensor, Clip], _Clipped]] = {
    "l2": _by_l2,
    "l1": _by_l1,
    "coordinate": _by_coordinate,
}


def _scaled(
    parts: Sequence[Contribution],
    mask: Tensor,
    clip: Clip,
    norms: Tensor,
    sizes: Sequence[Sizes],
) -> _Clipped:
    """Parts and factors, given upper bounds on norms; changes these."""
    dtype = parts[0].dtype
    for size in sizes:
        if size.reach is not None:  # what underflows in a weighted factor must not matter
            near = in_reach(size.reach, clip, dtype)
            if not all_known_true(near):
                norms = norms.masked_fill_(~near, math.inf)
    factors, bounded = clip_factors(norms, mask, clip, dtype)
    if all_known_true(bounded):
        if not all_known_true(mask):
            norms = norms.masked_fill_(~mask, 0.0)
        return list(parts), factors, norms.to(dtype)
    return (
        [part.cleaned(bounded) for part in parts],
        factors,
        _reported(norms, bounded, mask, dtype),
    )


def _reported(norms: Tensor, bounded: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
    return norms.masked_fill(~bounded, math.inf).masked_fill_(~mask, 0.0).to(dtype)


def _coordinates(parts: Sequence[Contribution]) -> int:
    """The number d of trainable parameters."""
    return sum(part.slot.stop - part.slot.start for part in parts)


def record_gradients(
    engine: GradientPath,
    parameters: Tensor,
    inputs: Tensor,
    targets: Tensor,
    mask: Tensor,
    clip: Clip | None,
) -> RecordGradients:
    """The clipped gradients of a batch, as `StackedModel.record_gradients` has them."""
    # With norms even where nothing is clipped, so that the form of the parts is always the same.
    parts, losses = engine.contributions(parameters, inputs, targets, mask, norms=True)
    with torch.no_grad():
        if clip is not None:
            return RecordGradients(*clip_records(parts, mask, clip), losses)
        if not all_known_true(mask):
            parts = [part.cleaned(mask) for part in parts]
        norms = losses.new_empty(mask.shape[0], 0)
        return RecordGradients(parts, mask.to(losses.dtype), norms, losses)
