"""Gaussian noise that is correlated over steps: w = C^-1 z, on the lattice, by feedback.

With C lower triangular and 1 on its diagonal, step t releases r_t = g_t + o_t + z_t rounded to the
lattice of `tacit.privacy.noise.gaussian`, where

    o_t = - sum over j < t of C[t, j] w_j,    w_j = r_j - g_j,

and w_j is what was really added: rounding included. So r_t is z_t on (C g)_t, less a function of
what was released before: exactly the mechanism that is accounted, whatever the lattice did. Kept
are w_j in fixed point, which moves a record's contributions by half a unit a coordinate, and o_t in
double precision; what both may add to its sensitivity is in `MatrixGaussian.independent`. Proof:
`docs/proofs/matrix-noise.md`.

*Memory.* Of C with b bands, first column (1, a, c, ..., c): the last b - 1 w, and their sum, 4 b
bytes a value; a step reads and writes three of them. Of the binary tree: one row a level.

*Secret.* What is kept would take the noise off what was released: it stays in memory, and whoever
goes on from a checkpoint begins with none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from tacit.errors import InputError
from tacit.privacy.mechanisms.clipping import NoiseNorm
from tacit.privacy.mechanisms.matrix import Correlation, fraction_bits
from tacit.privacy.noise.draws import NodeKeys
from tacit.privacy.noise.independent import GAUSSIAN
from tacit.privacy.noise.lattice import Offsets, over_rows

MOST_SUM = 2.0**20
"""Deviations of the noise that a sum may be long, for what rounding adds to be what is said."""
# Values that are worked on at once: their double precision stays in the cache.
_AT_ONCE = 1 << 19


@dataclass
class _Kept:
    """What is known of earlier steps; `rows` int32 `[slots, nodes, d]`, `sums` their sum."""

    nodes: tuple[int, ...]
    next: int
    rows: list[Tensor]
    sums: Tensor


@dataclass(frozen=True)
class MatrixNoise:
    """Noise of one sum a step, whose steps follow one another: see the module.

    Args:
        correlations: C of each node of the plan, all of as many bands: its first column
            (1, a, c, ..., c), or "tree".
        steps: K.
    """

    correlations: tuple[Correlation, ...]
    steps: int
    name: str = "gaussian"
    norm: NoiseNorm = "l2"
    _kept: list[_Kept] = field(default_factory=list, init=False, repr=False, compare=False)

    def of(self, node: int) -> Correlation:
        """C of a node, or of a copy of it."""
        return self.correlations[node % len(self.correlations)]

    @property
    def bands(self) -> int:
        """Of C; 0 of the tree."""
        return 0 if self.correlations[0] == "tree" else len(self.correlations[0])

    def begin(self) -> MatrixNoise:
        """See `Noise.begin`."""
        return MatrixNoise(self.correlations, self.steps)

    def unit(self, node: int) -> float:
        """That of what is kept, in deviations."""
        return 2.0 ** -fraction_bits(self.of(node), self.steps)

    def add(
        self,
        total: Tensor,
        stds: Sequence[float],
        keys: NodeKeys,
        nodes: Sequence[int],
        k: int,
        *,
        part: int,
        offsets: Offsets | None = None,
    ) -> Tensor:
        """See `Noise.add`."""
        if self.bands == 1:
            return GAUSSIAN.add(total, stds, keys, nodes, k, part=part, offsets=offsets)
        if offsets is not None or part:
            raise InputError("part", part, "must be 0, without offsets: noise of one sum a step")
        kept = self._at(total, nodes, k)
        units = np.array([self.unit(node) for node in nodes]) * np.array(stds)
        if self.bands:
            slot = k % len(kept.rows)
            columns = np.array([self.of(node) for node in nodes])
            far, near = columns[:, -1] * units, (columns[:, 1] - columns[:, -1]) * units
            terms = [(kept.sums, far), (kept.rows[slot - 1], near)]
        else:
            slot = ((k + 1) & -(k + 1)).bit_length() - 1
            terms = [(row, units) for row in kept.rows[:slot]]
        if self.bands and total.device.type == "cpu" and total.is_contiguous():
            _add_on_host((total, stds, keys, nodes, k), units, terms, kept.rows[slot])
            return total
        moved = total.double()
        for row, factors in terms:
            moved -= row * _column(factors, total)
        GAUSSIAN.add(moved, stds, keys, nodes, k, part=part)
        before = total.double()
        total.copy_(moved)
        added = ((total.double() - before) / _column(units, total)).round_().to(torch.int32)
        if self.bands:
            kept.sums += added - kept.rows[slot]
        else:
            for row, _ in terms:
                added += row
        kept.rows[slot].copy_(added)
        return total

    def _at(self, total: Tensor, nodes: Sequence[int], k: int) -> _Kept:
        """What is kept at step k, which is made the next."""
        if not self._kept:
            slots = self.bands - 1 if self.bands else self.steps.bit_length()
            rows = [torch.zeros_like(total, dtype=torch.int32) for _ in range(slots)]
            sums = torch.zeros_like(total if self.bands else total[:0], dtype=torch.int32)
            self._kept.append(_Kept(tuple(nodes), k, rows, sums))
        kept = self._kept[0]
        if (kept.nodes, kept.next) != (tuple(nodes), k):
            expected = f"must be {kept.next}, for the same nodes: steps follow one another"
            raise InputError("k", k, expected)
        kept.next += 1
        return kept


def _column(values: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(values).to(like.device).unsqueeze(1)


def _add_on_host(
    given: tuple[Tensor, Sequence[float], NodeKeys, Sequence[int], int],
    units: np.ndarray,
    terms: Sequence[tuple[Tensor, np.ndarray]],
    slot: Tensor,
) -> None:
    """The same of banded noise, a few rows at a time, for which memory is read and written once."""
    from tacit.privacy.noise.matrix_loops import keep, shift

    total, stds, keys, nodes, k = given
    height = max(1, _AT_ONCE // max(1, total.shape[1]))
    room = torch.empty((min(height, len(nodes)), total.shape[1]), dtype=torch.float64)
    (sums, far), (last, near) = terms
    for begin in range(0, len(nodes), height):
        own = slice(begin, begin + height)
        moved = room[: len(nodes[own])]
        values, sum_rows, last_rows, oldest, released = (
            rows.detach().numpy() for rows in (total[own], sums[own], last[own], slot[own], moved)
        )
        _over(moved, partial(shift, values, sum_rows, last_rows, released, far[own], near[own]))
        GAUSSIAN.add(moved, stds[own], keys, nodes[own], k, part=0)
        _over(moved, partial(keep, values, sum_rows, oldest, released, units[own]))


def _over(rows: Tensor, loop: Callable[[int, int], None]) -> None:
    """A loop over all rows, from one to before another, on as many threads as PyTorch uses."""
    over_rows(rows.shape[0], rows.shape[1], lambda some: loop(some.start, some.stop))
