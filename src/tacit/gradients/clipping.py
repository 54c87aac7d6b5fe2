"""The clip factor of each record, and which records cannot be clipped at all.

| `clip_norm` | what becomes of a record's gradient g | its norm, as reported |
|---|---|---|
| `l2` | min(1, C / norm) g | l2 |
| `automatic` | C / (norm + 0.01) g | l2 |
| `l1` | min(1, C / norm) g | l1, rounded up; never below l2 |
| `coordinate` | every coordinate clamped to [-C / sqrt(d), C / sqrt(d)] | sqrt(d) max_j abs(g_j) |

All leave a gradient with an **l2** norm of at most C: Gaussian accounting with sensitivity C holds
for each. All but `automatic` leave one whose norm, the reported one, is at most C as it is (but for
rounding). `l1` bounds the l1 norm too, which is what Laplace noise needs. `coordinate` turns
gradients, the others keep their direction.

`automatic` is automatic clipping (Bu, Wang, Zha and Karypis, *Automatic Clipping: Differentially
Private Deep Learning Made Easier and Stronger*, NeurIPS 2023: AUTO-S with R = C and their gamma of
0.01, `AUTOMATIC_GAMMA`). Every record counts for next to C, however short its gradient, unless that
is not far above 0.01; of zero it makes zero. It lengthens what is shorter than C - 0.01.

That holds for what the machine adds up, not only for what it should: factors are formed from upper
bounds on norms, and aim below C by what the sum itself may lose to rounding (`aimed`). Theorem and
constants: `docs/proofs/clipped-sums.md`.

`clip_records` clips every record's own gradients, before `add_clipped` sums them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from tacit.errors import InputError
from tacit.gradients.contributions import CHUNK, Contribution, Dense, Sizes, all_known_true

CANCELLATION = 2.0**13
"""The terms of a record's sum may be so many times longer than the sum; it is clipped to that."""

_RANGE = (2.0**-60, 2.0**60)  # of clipping bounds: nothing that matters over- or underflows
_REACH = {torch.float32: 2.0**80, torch.float64: 2.0**300}

Clip = float | Tensor
"""A bound C for all nodes, or one a node as a tensor `[nodes]`."""

ClipNorm = Literal["l2", "l1", "coordinate", "automatic"]

AUTOMATIC_GAMMA = 0.01
"""What automatic clipping adds to a norm before it divides by it, in units of the gradient."""


def norm_offset(norm: ClipNorm) -> float:
    """What is added to a record's norm before C is divided by it; 0: factors are 1 at most."""
    return AUTOMATIC_GAMMA if norm == "automatic" else 0.0


def check_clip(clip: Clip, key: str = "algorithm.clip") -> None:
    """Raise `InputError` on `key` unless every bound lies between 2^-60 and 2^60.

    Bounds on a device are not looked at: they are `aimed` from a number, which was.
    """
    low, high = _RANGE
    if isinstance(clip, Tensor):
        right = clip.device.type != "cpu" or bool(((clip >= low) & (clip <= high)).all())
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


@dataclass(frozen=True)
class FactorLimits:
    """What decides a record's clip factor; numbers, or float64 `[nodes, 1]`.

    Attributes:
        numerator: the factor is at most this over the bound on the record's norm, or over that and
            `norm_offset`.
        least: a record with a smaller factor has no bound.
        reach: nor has one with a factor of a larger squared norm, beside which what underflows
            would matter: above 2^80 C in float32, above 2^300 in float64.
    """

    numerator: Clip
    least: float
    reach: Clip


def factor_limits(clip: Clip, dtype: torch.dtype) -> FactorLimits:
    """Limits of factors in `dtype` for what norms are brought to, a number or `[nodes]`."""
    aim: Any = _column(clip)
    limits = torch.finfo(dtype)
    bound = aim if dtype == torch.float32 else 1.0
    # A quotient, a conversion and a product are rounded.
    return FactorLimits(
        numerator=aim * (1 - 4 * limits.eps),
        least=limits.tiny * 2.0**26,
        reach=(bound * _REACH[dtype]) ** 2,
    )


def _column(clip: Clip) -> Clip:
    """`[nodes]` bounds as float64 `[nodes, 1]`; one for all as it is."""
    return clip.double().reshape(-1, 1) if isinstance(clip, Tensor) else clip


def clip_factors(
    bounds: Tensor, mask: Tensor, clip: Clip, dtype: torch.dtype, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """What to multiply each record's gradient with, and which records can be multiplied at all.

    Args:
        bounds: upper bounds on norms before clipping, float64 `[nodes, b]`, masked slots included.
        mask: `[nodes, b]`, True for records.
        clip: what the norm is brought to, or `[nodes]` of it.
        dtype: of the factors.
        offset: of `norm_offset`.

    Returns:
        factors `[nodes, b]`: at most min(1, C / bound), or with an offset C / (bound + offset),
        which may be above 1; exactly 0 where masked or where the record
        has no bound: where `bounds` is not finite, or so large that the factor would underflow.
        bounded `[nodes, b]`: False where a record has no bound; there the gradient must be zeroed
        and not multiplied, as 0 * nan is nan.
    """
    limits = factor_limits(clip, dtype)
    if offset:
        factors = limits.numerator / (bounds + offset)
    else:
        factors = (limits.numerator / bounds).clamp_(max=1.0)
    bounded = factors >= limits.least  # not where it is not a number
    kept = mask & bounded
    if not all_known_true(kept):
        factors = torch.where(kept, factors, 0.0)
    return factors.to(dtype), bounded


@dataclass(frozen=True)
class RecordGradients:
    """Gradients of a batch's records, to be multiplied by their clip factors.

    Attributes:
        parts: one a parameter; finite wherever `factors` is zero.
        factors: `[nodes, b]`; exactly 0 where masked or where there is no bound.
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
        norm: which norm, and how it is kept: see the table above. By coordinate, the parts are
            clamped and every factor is 1 or 0.

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


def _by_l2(
    parts: Sequence[Contribution], mask: Tensor, clip: Clip, offset: float = 0.0
) -> _Clipped:
    sizes = [part.sizes() for part in parts]
    return _scaled(parts, mask, clip, norm_bounds(sizes, parts[0].dtype), sizes, offset)


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
    aims = torch.as_tensor(_column(clip), dtype=torch.float64, device=mask.device).reshape(-1, 1, 1)
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
    "automatic": partial(_by_l2, offset=AUTOMATIC_GAMMA),
}


def _scaled(
    parts: Sequence[Contribution],
    mask: Tensor,
    clip: Clip,
    norms: Tensor,
    sizes: Sequence[Sizes],
    offset: float = 0.0,
) -> _Clipped:
    """Parts and factors, given upper bounds on norms; changes these."""
    dtype = parts[0].dtype
    reach = factor_limits(clip, dtype).reach
    for size in sizes:
        if size.reach is not None:  # what underflows in a weighted factor must not matter
            near = size.reach <= reach
            if not all_known_true(near):
                norms = norms.masked_fill_(~near, math.inf)
    factors, bounded = clip_factors(norms, mask, clip, dtype, offset)
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
