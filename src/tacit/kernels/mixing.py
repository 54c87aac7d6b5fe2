"""Weighted sums of rows in one pass over memory, with the step before them where there is one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.kernels.compile import compiled

# Numbers of all nodes that are worked on at once: they fit the cache of a core.
_BLOCK_NUMBERS = 1 << 16
_LEAST_COLUMNS = 64


@compiled
def mix_rows(
    mixed: NDArray[np.float32],
    own: NDArray[np.float32],
    came: NDArray[np.float32],
    direction: NDArray[np.float32],
    step: float,
    rows: NDArray[np.int64],
    starts: NDArray[np.int64],
    sources: NDArray[np.int64],
    weights: NDArray[np.float32],
    first: int,
    last: int,
) -> None:
    """Some columns of `mixed[rows[t]] = sum of weights[e] x[sources[e]]`, e = starts[t] .. - 1.

    x is `own - step direction`, and after it `came`. Products and sums are rounded one by one, in
    the order of the entries.

    Args:
        mixed: is written, `[nodes, d]`; like all values float32 or float64.
        own: `[nodes, d]`.
        came: `[others, d]`.
        direction: `[nodes, d]`; `[0, d]` for none.
        step: how far along it.
        rows: which rows are written, `[rows]`.
        starts: of the entries of each, and the end of the last, `[rows + 1]`.
        sources: rows of x, `[entries]`.
        weights: `[entries]`.
        first: the first of the columns.
        last: the column after the last.
    """
    here, moves = len(own), len(direction) > 0
    length = own.dtype.type(step)
    width = max(_LEAST_COLUMNS, _BLOCK_NUMBERS // max(1, here))
    moved = np.empty((here if moves else 0, width), own.dtype)
    for begin in range(first, last, width):
        end = min(begin + width, last)
        if moves:
            for i in range(here):
                x, along, there = own[i, begin:end], direction[i, begin:end], moved[i]
                for c in range(end - begin):
                    there[c] = x[c] - length * along[c]
        for t in range(len(rows)):
            total = mixed[rows[t], begin:end]
            if starts[t] == starts[t + 1]:
                total[:] = 0
            for e in range(starts[t], starts[t + 1]):
                weight, source = weights[e], sources[e]
                if source >= here:
                    read = came[source - here, begin:end]
                elif moves:
                    read = moved[source, : end - begin]
                else:
                    read = own[source, begin:end]
                if e == starts[t]:
                    for c in range(end - begin):
                        total[c] = weight * read[c]
                else:
                    for c in range(end - begin):
                        total[c] += weight * read[c]
