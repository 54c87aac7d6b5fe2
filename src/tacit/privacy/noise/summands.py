"""Noised values as whole numbers on one lattice, of which only the sum over nodes is shown.

*Mechanism.* Node j holds g_j `[d]` and releases, for one deviation a and one lattice of spacing
s = `spacing(a)` that are the same for all who take part,

    k_j = round((g_j + eta_j) / s),    eta_j ~ N(0, a^2),

the release of `tacit.privacy.noise.gaussian`, counted in lattice points. Whoever adds up sees
K = sum of k_j and no k_j (`tacit.communication.masks`).

*Theorem.* Let h of the nodes be honest: nobody who sees K knows their noise. Given all else, the
law of the sum of their k_j is, at every point, within a ratio of (1 +- 2^-58000)^h of that of

    round((sum of g_j + N(0, h a^2)) / s + (h - 1 uniforms on [-1/2, 1/2])),

which is a Gaussian mechanism of deviation sqrt(h) a, and then a randomised function that reads no
data. So a record that moves g_j by at most C is hidden as by a noise multiplier of sqrt(h) a / C:
rounding costs nothing, and C is not enlarged. Proof: `docs/proofs/pairwise-noise.md`, "Secure
sums". What finite arithmetic adds is that of the draws of all h nodes
(`tacit.privacy.noise.slack`).

*Range.* A draw is at most 30 deviations, whatever its bits (the smallest uniform is 2^-607), and a
spacing is above a / 128. So |g_j| <= bound gives |k_j| <= `most_points(bound, a)` for certain,
which is public. Up to 2^52 every k_j is exact in float64, and a sum below 2^62 does not wrap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tacit.errors import InputError
from tacit.privacy.noise.draws import NodeKeys
from tacit.privacy.noise.gaussian import add_normal, spacing

MOST_PARTICIPANTS = 1 << 13
"""Nodes in one sum."""

MOST_POINTS = 1 << 49
"""Of one value, in lattice points: 2^13 of them stay below 2^62."""

_MOST_DEVIATIONS = 30
_PURPOSE = "noise"  # that of every release: a node makes one at a step and part, in one way


def summands(
    values: Tensor, deviation: float, keys: NodeKeys, nodes: Sequence[int], k: int, *, part: int = 0
) -> Tensor:
    """What each node adds to the sum: lattice points, int64 `[nodes, d]`.

    `values` are g_j, `[nodes, d]`, float64, each at most so large that `most_points` is within
    `MOST_POINTS`; overwritten. `deviation` is a, of each node's own noise, in their units. The rest
    is as in `tacit.privacy.noise.gaussian.add_normal`.

    Raises:
        InputError: the values are not float64, or as there.
    """
    if values.dtype != torch.float64:
        raise InputError("values", str(values.dtype), "must be float64, which holds lattice points")
    deviations = [deviation] * len(nodes)
    released = add_normal(values, deviations, keys, nodes, _PURPOSE, k, part=part)
    return released.div_(spacing(deviation)).to(torch.int64)


def most_points(bound: float, deviation: float) -> int:
    """The largest |k_j| of values of at most `bound`, in their units, for certain.

    Raises:
        InputError: the deviation is not between 2^-500 and 2^500.
    """
    return math.ceil((bound + _MOST_DEVIATIONS * deviation) / spacing(deviation)) + 1
