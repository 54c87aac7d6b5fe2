"""The clip factor of each record, and what counts as a record that cannot be clipped.

| `clip_norm` | what becomes of a record's gradient g | its norm, as reported |
|---|---|---|
| `l2` | min(1, C / norm) g | l2 |
| `l1` | min(1, C / norm) g | l1, rounded up; never below l2 |
| `coordinate` | every coordinate clamped to [-C / sqrt(d), C / sqrt(d)] | sqrt(d) max_j abs(g_j) |

All three leave a gradient whose norm, the reported one, is at most C as it is, and any other with
an **l2** norm of at most C: Gaussian accounting with sensitivity C holds for each. `l1` bounds the
l1 norm too, which is what Laplace noise needs. `coordinate` turns gradients, the others only
shorten them.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from tacit.errors import InputError

__all__ = ["Clip", "ClipNorm", "check_clip", "clip_factors", "lowered"]

_ROUNDING = 16  # units in the last place

Clip = float | Tensor
"""A bound C for all nodes, or one a node as a tensor `[nodes]`."""

ClipNorm = Literal["l2", "l1", "coordinate"]


def check_clip(clip: Clip, key: str = "algorithm.clip") -> None:
    """Raise `InputError` on `key` unless every bound is positive and finite."""
    if isinstance(clip, Tensor):
        right = bool((torch.isfinite(clip) & (clip > 0)).all())
    else:
        right = math.isfinite(clip) and clip > 0
    if not right:
        raise InputError(key, clip, "the clipping bound must be positive and finite")


def lowered(clip: Clip, like: Tensor) -> Tensor:
    """The bounds to aim at, `[nodes or 1, 1]`, so that C is kept whatever a few roundings add."""
    bound = torch.as_tensor(clip, dtype=like.dtype, device=like.device).reshape(-1, 1)
    return bound * (1 - _ROUNDING * torch.finfo(like.dtype).eps)


def clip_factors(norms: Tensor, mask: Tensor, clip: Clip) -> tuple[Tensor, Tensor]:
    """What to multiply each record's gradient with, and which records can be multiplied at all.

    Args:
        norms: `[nodes, b]`, norms before clipping, masked slots included.
        mask: `[nodes, b]`, True for records.
        clip: the bound C, or `[nodes]` bounds.

    Returns:
        factors `[nodes, b]`: min(1, C / norm), less what rounding may add, exactly 0 where masked
        or where the norm is not finite. finite `[nodes, b]`: False where the norm is not finite;
        there the gradient must be zeroed and not multiplied, as 0 * nan is nan.
    """
    finite = torch.isfinite(norms)
    # A norm and a product are rounded.
    factors = (lowered(clip, norms) / norms).clamp(max=1.0)
    return torch.where(mask & finite, factors, 0.0), finite
