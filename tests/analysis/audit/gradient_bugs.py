"""Defects of what one record may move: clips that are none, and sums of more than the batch."""

from __future__ import annotations

import torch
from planting import Patch

from tacit.gradients import clipping, contributions, paths, stacked
from tacit.gradients.contributions import Contribution, Dense, Outer, Sizes
from tacit.training.stacked_context import StackedContext


class ClippedInPairs(StackedContext):
    """Two records share a micro-batch: their mean is clipped, and counted twice."""

    def batch_gradient(self, at, k, *, part=0, **options):
        rows, nodes = self._taking_part(k)
        inputs, targets, mask, indices = self._batch(k, part, False, rows, nodes)
        where = at if rows is None else at[rows]
        bound, total = self.clip(k), torch.zeros_like(where)
        assert bound is not None
        for first in range(0, mask.shape[1], 2):
            pair = slice(first, first + 2)
            found = self._model.gradient(
                where, inputs[:, pair], targets[:, pair], mask[:, pair], None
            )
            mean = found.total / mask[:, pair].sum(1, keepdim=True).clamp(min=1)
            total += (
                2 * mean * (bound / mean.norm(dim=1, keepdim=True)).clamp(max=1).nan_to_num(1.0)
            )
        whole = self._model.gradient(where, inputs, targets, mask, bound)
        self._seen.keep(whole, mask, indices, nodes)
        return total if rows is None else torch.zeros_like(at).index_copy_(0, rows, total)


class MomentumBeforeNoise(StackedContext):
    """Momentum of sums that have no noise yet: a record is in all later releases."""

    def batch_gradient(self, at, k, **options):
        buffers = self._all.__dict__.setdefault("momentum_buffers", {})
        total = super().batch_gradient(at, k, **options)
        before = buffers.get("sum")
        if before is not None and before.shape == total.shape:
            total = total + 0.9 * before
        buffers["sum"] = total.clone()
        return total


class SumOfTheNeighbour(StackedContext):
    """A node adds the sum of the node before it to its own, before the noise."""

    def batch_gradient(self, at, k, **options):
        total = super().batch_gradient(at, k, **options)
        return total + total.roll(1, 0)


class FirstClip(StackedContext):
    """The clipping bound of step 0 at every step, under noise that falls with the planned one."""

    def clip(self, k):
        return super().clip(0)


class TwiceTheClip(StackedContext):
    """A bound that is meant for the mean of two records a node."""

    def clip(self, k):
        bound = super().clip(k)
        return None if bound is None else 2 * bound


class _WithoutNorm:
    """A model that clips in l2, whichever norm it is told."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def gradient(self, *arguments, norm="l2", **options):
        return self._inner.gradient(*arguments, **options)


class ClippedInL2(StackedContext):
    """Laplace noise hides an l1 norm, and the clip bounds the l2 norm."""

    def __init__(self, plan, model, *others):
        super().__init__(plan, _WithoutNorm(model), *others)


# The way around the clip that rounding took: norms of exact sums, contributions of rounded ones.


def _squares_alone(original):
    def sizes(outer):
        left, right = outer.inputs.double(), outer.gradients.double()
        products = (left @ left.transpose(3, 4)) * (right @ right.transpose(3, 4))
        return Sizes(products.sum(dim=(2, 3, 4)).clamp(min=0.0))

    return sizes


def _as_it_is(original):
    return lambda outer: outer


def _root(original):
    def bounds(sizes, dtype):
        return torch.stack([size.bounds for size in sizes]).sum(0).sqrt()

    return bounds


CLIP_BYPASS = (
    Patch(contributions, "_terms", _squares_alone),
    Patch(Outer, "exact", _as_it_is),
    Patch(clipping, "norm_bounds", _root),
)


def _of_the_weights(original):
    def bounds(sizes, dtype):
        return original(sizes[:1], dtype)

    return bounds


NORM_OF_A_PART = (Patch(clipping, "norm_bounds", _of_the_weights),)


def _each_alone(original):
    def clipped(parts, mask, clip, norm="l2"):
        made: list[Contribution] = []
        squares = torch.zeros(mask.shape, dtype=torch.float64)
        for part in parts:
            (kept,), factors, norms = original([part], mask, clip, norm)
            own = kept.materialised()
            made.append(Dense(own.slot, own.values * factors.unsqueeze(2)))
            squares += norms.double().square()
        return made, mask.to(parts[0].dtype), squares.sqrt().to(parts[0].dtype)

    return clipped


EACH_LAYER_ALONE = (
    Patch(paths, "clip_records", _each_alone),
    Patch(stacked, "clip_records", _each_alone),
)
