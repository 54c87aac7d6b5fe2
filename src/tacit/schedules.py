"""Schedules in few levels, as an accountant may need most of a second for each noise level."""

from __future__ import annotations

import math
from bisect import bisect_left

__all__ = ["MOST_LEVELS", "quantise"]

MOST_LEVELS = 16


def quantise(multipliers: tuple[float, ...], levels: int = MOST_LEVELS) -> tuple[float, ...]:
    """The same schedule in at most `levels` distinct values.

    Steps are ranked by multiplier and cut into groups of nearly equal size, steps of equal
    multiplier into the same one, and every step of a group takes the group's root mean square of
    1 / multiplier, so that the sum of mu_k^2, what the group would cost without amplification, is
    kept. A falling or rising schedule stays one.

    Args:
        multipliers: relative noise multipliers, `[steps]`, positive.
        levels: how many distinct values may remain.
    """
    if len(set(multipliers)) <= levels:
        return multipliers
    ranked = sorted(multipliers)
    groups: list[list[int]] = [[] for _ in range(levels)]
    for k, multiplier in enumerate(multipliers):
        groups[bisect_left(ranked, multiplier) * levels // len(ranked)].append(k)
    result = list(multipliers)
    for group in filter(None, groups):
        mean = math.fsum(multipliers[k] ** -2 for k in group) / len(group)
        for k in group:
            result[k] = mean**-0.5
    return tuple(result)
