"""Defects of noise: too little, not fresh, not of the law, or not on the lattice.

What is wrong is the law of the noise. But for those that are about the lattice, what is released
lies on it, so that a bug is seen by nothing but what it is about.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from planting import Patch
from torch import Tensor

from tacit.privacy.noise.draws import NodeKeys, seeded_keys
from tacit.privacy.noise.independent import IndependentNoise
from tacit.privacy.noise.lattice import lattice_spacing
from tacit.training.stacked_context import StackedContext

OF_NO_STEP = 1 << 40
"""A step that no run reaches."""

Draw = Callable[[Sequence[float], Sequence[int], int, int], Tensor]
"""(deviations, nodes, step, numbers a row): what the product would add, float64 `[rows, d]`."""


def on_lattice(total, noise, stds):
    """`total` plus noise `[rows, d]`, in place, on the lattice of the planned noise."""
    steps = torch.tensor([[lattice_spacing("deviation", std)] for std in stds], dtype=torch.float64)
    points = torch.round((total.double() + noise) / steps)
    return total.copy_(points * steps)


def _instead(law):
    """Another law of what is added to a row, on the planned lattice."""

    def make(original):
        def add(self, total, stds, keys, nodes, k, *, part, offsets=None):
            def draw(sizes, rows, step, count):
                none = torch.zeros(len(rows), count, dtype=torch.float64)
                return original(self, none, sizes, keys, rows, step, part=part)

            return on_lattice(total, law(draw, stds, nodes, k, total.shape[1]), stds)

        return add

    return Patch(IndependentNoise, "add", make)


def _scaled(stds, factor):
    return [factor * std for std in stds]


def _a_tenth_less(draw, stds, nodes, k, d):
    return draw(_scaled(stds, 0.9), nodes, k, d)


def _half_shared(draw, stds, nodes, k, d):
    halves = _scaled(stds, math.sqrt(0.5))
    return draw(halves, nodes, k, d) + draw(halves, nodes, OF_NO_STEP, d)


def _one_normal(draw, stds, nodes, k, d):
    return draw(stds, nodes, k, 1).expand(len(nodes), d)


def _taken_back(draw, stds, nodes, k, d):
    return draw(stds, nodes, k - k % 2, d) * (-1.0) ** k


def _one_in_200(draw, stds, nodes, k, d):
    left_out = torch.tensor([[(31 * node + 57 * k) % 200 == 13] for node in nodes])
    return draw(stds, nodes, k, d).masked_fill(left_out, 0.0)


def _bare_bias(draw, stds, nodes, k, d):
    noise = draw(stds, nodes, k, d)
    noise[:, -1] = 0.0
    return noise


def _cut_off(draw, stds, nodes, k, d):
    most = 3 * torch.tensor(stds, dtype=torch.float64).unsqueeze(1)
    return torch.maximum(torch.minimum(draw(stds, nodes, k, d), most), -most)


def _next_deviation(draw, stds, nodes, k, d):
    return draw([*stds[1:], stds[0]], nodes, k, d)


A_TENTH_LESS = _instead(_a_tenth_less)
HALF_SHARED = _instead(_half_shared)
ONE_NORMAL = _instead(_one_normal)
TAKEN_BACK = _instead(_taken_back)
ONE_IN_200 = _instead(_one_in_200)
BARE_BIAS = _instead(_bare_bias)
CUT_OFF = _instead(_cut_off)
NEXT_DEVIATION = _instead(_next_deviation)


def _floating_point(dtype):
    """Plain normals (or Laplace numbers) of a type, added as they are."""

    def make(original):
        def add(self, total, stds, keys, nodes, k, *, part, offsets=None):
            for row, (std, node) in enumerate(zip(stds, nodes, strict=True)):
                key = np.frombuffer(keys.purpose_key(node, "plain"), np.uint32)
                rng = np.random.default_rng([*key.tolist(), k, part])
                law = rng.laplace if self.norm == "l1" else rng.normal
                drawn = law(size=total.shape[1]).astype(dtype)
                total[row] += std * torch.from_numpy(drawn).to(total.dtype)
            return total

        return add

    return Patch(IndependentNoise, "add", make)


FLOATING_POINT = _floating_point(np.float64)
HALF_PRECISION = _floating_point(np.float16)


class LastStepBare(StackedContext):
    """The last step adds no noise: its models are only written down, somebody thought."""

    def add_noise(self, total, k, **options):
        return total if k == self.steps - 1 else super().add_noise(total, k, **options)


class RootOfTheBatch(StackedContext):
    """The noise grows with the root of the batch that was drawn, as it would in a mean."""

    def add_noise(self, total, k, *, scale=1.0, part=0):
        assert self.last_mask is not None
        sizes = torch.zeros(len(total), 1, dtype=torch.float64)
        drawn = self.last_mask.sum(1, keepdim=True).double().clamp(min=0.5)
        rows, _ = self._taking_part(k)
        sizes.index_copy_(0, torch.arange(len(total)) if rows is None else rows, drawn)
        factor = (sizes / self.batch_size.double()).clamp(min=1e-3).sqrt()
        return super().add_noise(total, k, scale=factor * scale, part=part)


class ScaleForgotten(StackedContext):
    """The noise is that of a sum over a batch, whatever the step makes of the sum."""

    def add_noise(self, total, k, *, scale=1.0, part=0):
        return super().add_noise(total, k, part=part)


class PublicSeed(StackedContext):
    """The keys come from the seed that everyone knows."""

    def __init__(self, plan, model, data, keys, exchange):
        public = seeded_keys(plan.config.train.seed, keys.nodes)
        super().__init__(plan, model, data, public, exchange)


class KeyOfTheNumber(StackedContext):
    """A node's key is made from its number and nothing else."""

    def __init__(self, plan, model, data, keys, exchange):
        own = NodeKeys({node: bytes([node % 256] * 32) for node in keys.nodes}, seeded=True)
        super().__init__(plan, model, data, own, exchange)
