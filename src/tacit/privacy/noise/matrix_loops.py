"""The loops of noise that is correlated over steps: see `tacit.privacy.noise.matrix`."""

from __future__ import annotations

from typing import Any

import numpy as np

from tacit.kernels.compile import compiled, inlined


@inlined
def _moved(total: float, sums: int, last: int, far: float, near: float) -> float:
    return np.float64(total) - sums * far - last * near


@compiled
def split(own: Any, sums: Any, last: Any, rest: Any, numbers: Any, first: int, until: int) -> None:
    """What is moved by earlier noise, less its nearest lattice point, into `rest`; in points."""
    for row in range(first, until):
        far, near, per_unit = numbers[row, 0], numbers[row, 1], 1.0 / numbers[row, 3]
        for i in range(own.shape[1]):
            points = _moved(own[row, i], sums[row, i], last[row, i], far, near) * per_unit
            rest[row, i] = points - np.rint(points)


@compiled
def keep(
    own: Any, sums: Any, last: Any, old: Any, rest: Any, numbers: Any, first: int, until: int
) -> None:
    """Release the noised `rest` and its point in place of totals; keep what that added."""
    kind = own.dtype.type
    for row in range(first, until):
        far, near, unit, spacing = numbers[row]
        units, per_unit = 1.0 / unit, 1.0 / spacing
        for i in range(own.shape[1]):
            total = own[row, i]
            points = _moved(total, sums[row, i], last[row, i], far, near) * per_unit
            released = kind((np.rint(points) + rest[row, i]) * spacing)
            added = np.int32(np.rint((np.float64(released) - np.float64(total)) * units))
            own[row, i] = released
            sums[row, i] += added - old[row, i]
            old[row, i] = added
