"""The clip factor of each record, and what counts as a record that cannot be clipped."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tacit.errors import InputError

__all__ = ["Clip", "check_clip", "clip_factors"]

_ROUNDING = 16  # units in the last place

Clip = float | Tensor
"""A bound C for all nodes, or one a node as a tensor `[nodes]`."""


def check_clip(clip: Clip) -> None:
    """Raise `InputError` on `algorithm.clip` unless every bound is positive and finite."""
    if isinstance(clip, Tensor):
        right = bool((torch.isfinite(clip) & (clip > 0)).all())
    else:
        right = math.isfinite(clip) and clip > 0
    if not right:
        raise InputError("algorithm.clip", clip, "the clipping bound must be positive and finite")


def clip_factors(norms: Tensor, mask: Tensor, clip: Clip) -> tuple[Tensor, Tensor]:
    """What to multiply each record's gradient with, and which records can be multiplied at all.

    Args:
        norms: `[nodes, b]`, l2 norms before clipping, masked slots included.
        mask: `[nodes, b]`, True for records.
        clip: the bound C, or `[nodes]` bounds.

    Returns:
        factors `[nodes, b]`: min(1, C / norm), less what rounding may add, exactly 0 where masked
        or where the norm is not finite. finite `[nodes, b]`: False where the norm is not finite;
        there the gradient must be zeroed and not multiplied, as 0 * nan is nan.
    """
    bound = torch.as_tensor(clip, dtype=norms.dtype, device=norms.device).reshape(-1, 1)
    # A norm and a product are rounded: aim that much lower, so that the bound itself is kept.
    bound = bound * (1 - _ROUNDING * torch.finfo(norms.dtype).eps)
    finite = torch.isfinite(norms)
    factors = (bound / norms).clamp(max=1.0)
    return torch.where(mask & finite, factors, 0.0), finite
