"""The clip factor of each record, and which records cannot be clipped at all.

| `clip_norm` | what becomes of a record's gradient g | its norm, as reported |
|---|---|---|
| `l2` | min(1, C / norm) g | l2 |
| `l1` | min(1, C / norm) g | l1, rounded up; never below l2 |
| `coordinate` | every coordinate clamped to [-C / sqrt(d), C / sqrt(d)] | sqrt(d) max_j abs(g_j) |

All three leave a gradient whose norm, the reported one, is at most C as it is (but for rounding),
and any other with an **l2** norm of at most C: Gaussian accounting with sensitivity C holds for
each. `l1` bounds the l1 norm too, which is what Laplace noise needs. `coordinate` turns gradients,
the others only shorten them.

That holds for what the machine adds up, not only for what it should: factors are formed from upper
bounds on norms, and aim below C by what the sum itself may lose to rounding (`aimed`). Theorem and
constants: `docs/proofs/clipped-sums.md`.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from tacit.errors import InputError
from tacit.gradients.contributions import CHUNK
from tacit.gradients.known import all_known_true

__all__ = [
    "CANCELLATION",
    "Clip",
    "ClipNorm",
    "aimed",
    "check_clip",
    "clip_factors",
    "column",
    "in_reach",
]

CANCELLATION = 2.0**13
"""The terms of a record's sum may be so many times longer than the sum; it is clipped to that."""

_RANGE = (2.0**-60, 2.0**60)  # of clipping bounds: nothing that matters over- or underflows
_REACH = {torch.float32: 2.0**80, torch.float64: 2.0**300}

Clip = float | Tensor
"""A bound C for all nodes, or one a node as a tensor `[nodes]`."""

ClipNorm = Literal["l2", "l1", "coordinate"]


def check_clip(clip: Clip, key: str = "algorithm.clip") -> None:
    """Raise `InputError` on `key` unless every bound lies between 2^-60 and 2^60."""
    low, high = _RANGE
    if isinstance(clip, Tensor):
        right = bool(((clip >= low) & (clip <= high)).all())
    else:
        right = math.isfinite(clip) and low <= clip <= high
    if not right:
        raise InputError(key, clip, "the clipping bound must lie between 1e-18 and 1e18")


def aimed(
    clip: Clip, counts: int | Tensor, dtype: torch.dtype, positions: int = 1
) -> float | Tensor:
    """What a record is clipped to, so that C holds for the sum whatever rounding adds.

    The smaller one of a node's batch, the less it is below C: for 10 records in float32 by 3e-5,
    for 128 by 2e-3, for 40,000 by 2e-2.

    Args:
        clip: the bound C.
        counts: records of each node that the sum is over, `[nodes]`, or of all nodes.
        dtype: of the sum.
        positions: the most terms that a record's gradient is a sum of.

    Returns:
        A number, or float64 `[nodes]`.
    """
    unit, exact = torch.finfo(dtype).eps / 2, torch.finfo(torch.float64).eps / 2
    count: Any = counts.double() if isinstance(counts, Tensor) else float(counts)
    chunk: Any = count.clamp(max=CHUNK) if isinstance(count, Tensor) else min(count, CHUNK)
    share = 2 * unit * chunk * (chunk + 8) + count * (8 * unit + 8 * exact)
    share = share + count * count * (2 * exact)
    if positions > 1:
        share = share + (2 * CANCELLATION * exact) * chunk * (chunk * positions + 16)
    bound: Any = clip.double() if isinstance(clip, Tensor) else clip
    aim: float | Tensor = bound / (1 + share)
    return aim


def in_reach(squares: Tensor, clip: Clip, dtype: torch.dtype) -> Tensor:
    """Which factors, of these squared norms `[nodes, b]`, lose nothing that matters to underflow.

    In float32 those up to 2^80 C, in float64 up to 2^300.
    """
    bound: Any = column(clip) if dtype == torch.float32 else 1.0
    near: Tensor = squares <= (bound * _REACH[dtype]) ** 2
    return near


def column(clip: Clip) -> Clip:
    """`[nodes]` bounds as float64 `[nodes, 1]`; one for all as it is."""
    return clip.double().reshape(-1, 1) if isinstance(clip, Tensor) else clip


def clip_factors(
    bounds: Tensor, mask: Tensor, clip: Clip, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """What to multiply each record's gradient with, and which records can be multiplied at all.

    Args:
        bounds: upper bounds on norms before clipping, float64 `[nodes, b]`, masked slots included.
        mask: `[nodes, b]`, True for records.
        clip: what the norm is brought to, or `[nodes]` of it.
        dtype: of the factors.

    Returns:
        factors `[nodes, b]`: at most min(1, C / bound), exactly 0 where masked or where the record
        has no bound: where `bounds` is not finite, or so large that the factor would underflow.
        bounded `[nodes, b]`: False where a record has no bound; there the gradient must be zeroed
        and not multiplied, as 0 * nan is nan.
    """
    limits = torch.finfo(dtype)
    # A quotient, a conversion and a product are rounded.
    factors = (column(clip) * (1 - 4 * limits.eps) / bounds).clamp_(max=1.0)
    bounded = factors >= limits.tiny * 2.0**26  # not where it is not a number
    kept = mask & bounded
    if not all_known_true(kept):
        factors = torch.where(kept, factors, 0.0)
    return factors.to(dtype), bounded
