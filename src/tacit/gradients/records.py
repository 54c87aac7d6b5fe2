"""The gradients of a batch before they are summed: every record's own, clipped."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.gradients.clipping import Clip, ClipNorm, clip_factors, lowered
from tacit.gradients.contributions import Contribution, Dense
from tacit.gradients.probe import GradientPath
from tacit.gradients.waiting import surely_all

__all__ = ["RecordGradients", "clip_records", "record_gradients"]


@dataclass(frozen=True)
class RecordGradients:
    """Gradients of a batch's records, to be multiplied by their clip factors.

    Attributes:
        parts: one a parameter; finite wherever `factors` is zero.
        factors: `[nodes, b]`, at most 1; exactly 0 where masked or where the norm is not finite.
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
    """Parts without the records whose norm is not finite, clip factors, and masked norms.

    Args:
        parts: all the parts of a batch's gradients.
        mask: `[nodes, b]`, True for records.
        clip: the bound C on each record's norm, or `[nodes]` bounds.
        norm: which norm, and how it is kept: see `clipping`. By coordinate, the parts are clamped
            and every factor is 1 or 0.
    """
    return _CLIPPERS[norm](parts, mask, clip)


def _by_l2(parts: Sequence[Contribution], mask: Tensor, clip: Clip) -> _Clipped:
    norms = torch.stack([part.squared_norms() for part in parts]).sum(dim=0).sqrt()
    return _scaled(parts, mask, clip, norms)


def _by_l1(parts: Sequence[Contribution], mask: Tensor, clip: Clip) -> _Clipped:
    sums = torch.stack([part.absolute_sums() for part in parts]).sum(dim=0)
    # n sums and products of positive numbers err by a share of at most n u / (1 - n u), u = eps / 2
    # (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1).
    sums = sums * (1 + (_coordinates(parts) + 16) * torch.finfo(sums.dtype).eps)
    return _scaled(parts, mask, clip, sums.to(parts[0].dtype))


def _by_coordinate(parts: Sequence[Contribution], mask: Tensor, clip: Clip) -> _Clipped:
    root = math.sqrt(_coordinates(parts))
    each: list[Dense] = [part.materialised() for part in parts]
    largest = torch.stack([part.values.abs().amax(dim=2) for part in each]).amax(dim=0)
    norms = largest * root
    finite = torch.isfinite(norms)
    bound = (lowered(clip, norms) / root).unsqueeze(2)
    clamped: list[Contribution] = []
    while each:  # the unclamped are let go as their place is taken
        part = each.pop(0)
        part = part if surely_all(finite) else part.cleaned(finite)
        clamped.append(Dense(part.slot, part.values.clamp(-bound, bound)))
    return clamped, (mask & finite).to(norms.dtype), norms.masked_fill(~mask, 0.0)


_CLIPPERS: Mapping[ClipNorm, Callable[[Sequence[Contribution], Tensor, Clip], _Clipped]] = {
    "l2": _by_l2,
    "l1": _by_l1,
    "coordinate": _by_coordinate,
}


def _scaled(parts: Sequence[Contribution], mask: Tensor, clip: Clip, norms: Tensor) -> _Clipped:
    factors, finite = clip_factors(norms, mask, clip)
    cleaned = list(parts) if surely_all(finite) else [part.cleaned(finite) for part in parts]
    return cleaned, factors, norms.masked_fill(~mask, 0.0)


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
        if not surely_all(mask):
            parts = [part.cleaned(mask) for part in parts]
        norms = losses.new_empty(mask.shape[0], 0)
        return RecordGradients(parts, mask.to(losses.dtype), norms, losses)
