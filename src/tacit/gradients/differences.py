"""Sums over a batch of each record's clipped gradient at one point less that at another.

For variance reduction by an anchor. With a bound C_d the difference of each record is scaled to
norm C_d at most, by an upper bound on its norm (`records.norm_bounds`), and added up in float64:
a record moves the sum that the machine returns by C_d at most (`docs/proofs/clipped-sums.md`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tacit.gradients.clipping import Clip, aimed, check_clip, clip_factors
from tacit.gradients.known import all_known_true
from tacit.gradients.records import RecordGradients, norm_bounds
from tacit.gradients.stacked import BatchGradient, StackedModel
from tacit.gradients.table.need import entry_shapes
from tacit.gradients.table.parts import Entry, Shape, differences, entries, keepable

__all__ = ["clipped_difference", "difference_shapes"]


def difference_shapes(model: StackedModel) -> tuple[Shape, ...]:
    """The cheapest form of this model's gradients, found once from a few of them."""
    return entry_shapes(model, None)


def clipped_difference(
    model: StackedModel,
    shapes: tuple[Shape, ...],
    points: tuple[Tensor, Tensor],
    batch: tuple[Tensor, Tensor, Tensor],
    clip: Clip | None,
    bound: Clip | None,
    records: Tensor,
) -> BatchGradient:
    """Sum over a batch of clipped gradients at one point less those at another.

    Args:
        model: computes them.
        shapes: of `difference_shapes`, for this model.
        points: where, and what is subtracted; `[nodes, d]` each.
        batch: inputs, targets and mask `[nodes, b, ...]`.
        clip: bound C of each of the two gradients; None leaves them.
        bound: C_d of each record's difference; None leaves it.
        records: how many each node has, `[nodes]`: gradients are clipped as in a sum over all of
            them, so that a snapshot's are the very ones that are subtracted here.

    Returns:
        `total` `[nodes, d]`, the sum in float64; norms and losses `[nodes, b]` are those at the
        first point.

    Raises:
        InputError: on `algorithm.clip_difference` unless positive and finite, and as
            `StackedModel.gradient`.
    """
    if bound is None:
        found, other = (model.gradient(at, *batch, clip, counts=records) for at in points)
        total = found.total.double().sub_(other.total)
        return BatchGradient(total, found.norms, found.losses)
    check_clip(bound, "algorithm.clip_difference")
    at, mask = points[0], batch[2]
    total = torch.zeros_like(at, dtype=torch.float64)
    if mask.numel() == 0:
        empty = at.new_zeros(mask.shape)
        return BatchGradient(total, empty, empty.clone())
    numbers = sum(math.prod(shape.gradients) + math.prod(shape.inputs or (0,)) for shape in shapes)
    # New and old, and their difference in float64.
    step = model.records_at_once(at, 2 * numbers + 4 * numbers * 8 // at.element_size())
    # Terms are those of two gradients.
    if clip is not None:
        clip = model.aimed(clip, records, at.dtype)
    aim = aimed(bound, mask.sum(dim=1), torch.float64, 2 * model.positions)
    norms, losses = [], []
    for start in range(0, mask.shape[1], step):
        part = slice(start, start + step)
        inputs, targets, present = (values[:, part] for values in batch)
        found_here = [
            model.record_gradients(point, inputs, targets, present, clip) for point in points
        ]
        with torch.no_grad():
            new, old = (_entry(found, shapes, inputs, at) for found in found_here)
            parts = differences(new, old, shapes)
            bounds = norm_bounds([part.sizes() for part in parts], torch.float64)
            weights = clip_factors(bounds, present, aim, torch.float64)[0]
            for one in parts:
                one.add_to(total, weights, 1)
        norms.append(found_here[0].norms)
        losses.append(found_here[0].losses)
    return BatchGradient(total, torch.cat(norms, dim=1), torch.cat(losses, dim=1))


def _entry(found: RecordGradients, shapes: tuple[Shape, ...], inputs: Tensor, at: Tensor) -> Entry:
    given = inputs.to(at) if inputs.is_floating_point() else inputs.to(at.device)
    kept = keepable(found.parts, shapes, given, clipped=bool(found.norms.numel()))
    parts = found.parts
    if not all_known_true(kept):
        parts = [part.cleaned(kept) for part in parts]
    return entries(parts, shapes, found.factors * kept, given)
