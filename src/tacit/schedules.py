"""Schedules in few levels, as an accountant may need most of a second for each noise level."""

from __future__ import annotations

import math

__all__ = ["MOST_LEVELS", "quantise"]

MOST_LEVELS = 16


def quantise(multipliers: tuple[float, ...], levels: int = MOST_LEVELS) -> tuple[float, ...]:
    """The same schedule in at most `levels` distinct values.

    Steps are ranked by multiplier and cut into groups of (nearly) equal size, and every step of a
    group takes the group's root mean square of 1 / multiplier, so that the sum of mu_k^2, what the
    group would cost without amplification, is kept.

    Args:
        multipliers: relative noise multipliers, `[steps]`, positive.
        levels: how many distinct values may remain.
    """
    if len(set(multipliers)) <= levels:
        return multipliers
    ranked = sorted(range(len(multipliers)), key=lambda k: (multipliers[k], k))
    result = list(multipliers)
    for level in range(levels):
        group = ranked[level * len(ranked) // levels : (level + 1) * len(ranked) // levels]
        mean = math.fsum(multipliers[k] ** -2 for k in group) / len(group)
        for k in group:
            result[k] = mean**-0.5
    return tuple(result)
