"""Loop over wavelets at an angle and at minus it: the moduli of both, of what the two share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.kernels.compile import compiled


@compiled
def mirrored_moduli(
    s_real: NDArray[Any],
    s_imaginary: NDArray[Any],
    t_real: NDArray[Any],
    t_imaginary: NDArray[Any],
    made: NDArray[Any],
) -> None:
    """Write |s + i t| of all numbers, and then |s - i t| of the first of them.

    Arrays are contiguous: s is `[r, s]`, and t `[r, t]`, of the first numbers of s; of the others t
    is zero. `made` is `[r, s + m]`, overwritten; m, at most t, is of how many numbers s - i t is
    asked for.
    """
    rows, every = s_real.shape
    both, mirrored = t_real.shape[1], made.shape[1] - every
    for row in range(rows):
        a, b, c, d = s_real[row], s_imaginary[row], t_real[row], t_imaginary[row]
        sums, differences = made[row, :every], made[row, every:]
        for i in range(both):
            x, y = a[i] - d[i], b[i] + c[i]
            sums[i] = np.sqrt(x * x + y * y)
        for i in range(both, every):
            sums[i] = np.sqrt(a[i] * a[i] + b[i] * b[i])
        for i in range(mirrored):
            x, y = a[i] + d[i], b[i] - c[i]
            differences[i] = np.sqrt(x * x + y * y)
