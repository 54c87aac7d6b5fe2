"""The loops of noise that is correlated over steps: see `tacit.privacy.noise.matrix`."""

from __future__ import annotations

from typing import Any

import numpy as np

from tacit.kernels.compile import compiled


@compiled
def shift(
    total: Any, sums: Any, last: Any, moved: Any, far: Any, near: Any, first: int, until: int
) -> None:
    """Totals `[rows, d]` plus what earlier noise gives, into `moved`, of some rows."""
    for row in range(first, until):
        of_sums, of_last = far[row], near[row]
        for i in range(total.shape[1]):
            value = np.float64(total[row, i]) - sums[row, i] * of_sums
            moved[row, i] = value - last[row, i] * of_last


@compiled
def keep(
    total: Any, sums: Any, oldest: Any, moved: Any, units: Any, first: int, until: int
) -> None:
    """Release `moved` in place of totals, and keep what was added in place of the oldest."""
    kind = total.dtype.type
    for row in range(first, until):
        unit = units[row]
        for i in range(total.shape[1]):
            released = kind(moved[row, i])
            added = np.int32(np.rint((np.float64(released) - np.float64(total[row, i])) / unit))
            total[row, i] = released
            sums[row, i] += added - oldest[row, i]
            oldest[row, i] = added
