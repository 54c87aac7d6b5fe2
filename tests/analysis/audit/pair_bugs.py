"""Defects of noise that is to cancel between nodes: of its law, of its ends, and of its keys."""

from collections.abc import Callable

import torch
from planting import Patch

from tacit.privacy.noise import pairwise
from tacit.privacy.noise.independent import IndependentNoise
from tacit.privacy.noise.lattice import Offsets, lattice_spacing
from tacit.privacy.noise.pairwise import PairKeys
from tacit.training import budget, stacked_context

Sums = Callable[..., Offsets]
"""(keys, nodes, active, factors, deviation, d, k, part, device), as of `pair_sums`."""


def _everywhere(make):
    """The draw itself is another one, for whoever draws."""
    owners = (pairwise, stacked_context)
    return tuple(Patch(owner, "pair_sums", make) for owner in owners)


def _in_a_run(make):
    """The draw is as it should be, and a step makes something else of it."""
    return (Patch(stacked_context, "pair_sums", make),)


def _one_by_one(draw, ends):
    """What pairs draw, added to their ends with other signs: of each place, of its first and last.

    For experiments in which all nodes take part, in one process.
    """

    def sums(keys, nodes, *others):
        _, factors, *rest = others
        count = len(keys.pairs)
        apart = PairKeys(tuple((2 * e, 2 * e + 1) for e in range(count)), keys.keys)
        each = draw(apart, range(0, 2 * count, 2), None, [1.0] * count, *rest)
        points = torch.zeros(len(nodes), each.points.shape[1], dtype=torch.int32)
        for place, pair in enumerate(keys.pairs):
            for node, sign in zip(pair, ends(place), strict=True):
                points[node] += sign * each.points[place]
        return Offsets(points, tuple(factor * each.units[0] for factor in factors))

    return sums


def _of_step_0(draw):
    def sums(*arguments):
        *first, _, part, device = arguments
        return draw(*first, 0, part, device)

    return sums


def _a_tenth_less(draw):
    def sums(keys, nodes, active, factors, size, *rest):
        return draw(keys, nodes, active, factors, 0.9 * size, *rest)

    return sums


def _one_number(draw):
    def sums(*arguments):
        *first, d, k, part, device = arguments
        one = draw(*first, 1, k, part, device)
        return Offsets(one.points.expand(-1, d).contiguous(), one.units)

    return sums


def _of_everybody(draw):
    def sums(keys, nodes, active, *rest):
        return draw(keys, nodes, None, *rest)

    return sums


def _without_own(original):
    def add(self, total, stds, *others, offsets=None, **more):
        if offsets is None:
            return original(self, total, stds, *others, **more)
        steps = torch.tensor([[lattice_spacing("deviation", std)] for std in stds])
        points = torch.round((total.double() + offsets.dense()) / steps.double())
        return total.copy_(points * steps)

    return add


def _of_the_pair(original):
    def keys(seed, pairs):
        return original(0, pairs)

    return keys


def _of_no_start(original):
    def keys(pairs):
        return PairKeys.of({pair: bytes(pair) * 16 for pair in pairs}, seeded=False)

    return keys


AT_EVERY_STEP = _everywhere(_of_step_0)
LESS = _everywhere(_a_tenth_less)
ONE_NUMBER = _everywhere(_one_number)
SAME_SIGNS = _in_a_run(lambda draw: _one_by_one(draw, lambda place: (1, 1)))
ONE_MISSING = _in_a_run(lambda draw: _one_by_one(draw, lambda place: (int(place > 0), -1)))
INACTIVE = _in_a_run(_of_everybody)
NO_OWN = (Patch(IndependentNoise, "add", _without_own),)
PUBLIC_KEYS = (Patch(pairwise, "seeded_pair_keys", _of_the_pair),)
SAME_KEYS = (Patch(budget, "fresh_pair_keys", _of_no_start),)
