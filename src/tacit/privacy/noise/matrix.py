"""Gaussian noise that is correlated over steps: w = C^-1 z, on the lattice, by feedback.

With C lower triangular and 1 on its diagonal, step t releases r_t = g_t + o_t + z_t rounded to the
lattice of `tacit.privacy.noise.gaussian`, where

    o_t = - sum over j < t of C[t, j] w_j,    w_j = r_j - g_j:

w_j is what was really added, rounding included. So r_t is z_t on (C g)_t, less a function of what
was released before: what is accounted, whatever the lattice did. w_j is kept in fixed point, which
moves a record's contributions by half a unit a coordinate; that and the rounding of o_t are part of
the sensitivity (`MatrixGaussian.independent`). Proof: `docs/proofs/matrix-noise.md`.

*Memory.* 4 b bytes a value: of C with b bands, first column (1, a, c, ..., c), the last b - 1 w and
their sum, three of which a step reads or writes; of the binary tree a row a level. It lies on the
host, and is *secret*: it would take the noise off what was released. It is never written down;
whoever goes on from a checkpoint begins with none.
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
from tacit.privacy.noise.gaussian import spacing
from tacit.privacy.noise.independent import GAUSSIAN
from tacit.privacy.noise.lattice import Offsets, host_rows, over_rows

MOST_SUM = 2.0**20
"""Deviations of the noise that a sum may be long, so that rounding adds no more than is said."""


@dataclass(frozen=True)
class MatrixNoise:
    """Noise of one sum a step, whose steps follow one another.

    Args:
        correlations: C of each node of the plan, all alike but for (1, a, c, ..., c).
        steps: K.
    """

    correlations: tuple[Correlation, ...]
    steps: int
    name: str = "gaussian"
    norm: NoiseNorm = "l2"
    # The next step and the nodes; and int32 `[slots + 1, nodes, d]`, the last their sum.
    _next: list[object] = field(default_factory=list, init=False, repr=False, compare=False)
    _kept: list[Tensor] = field(default_factory=list, init=False, repr=False, compare=False)
    _rest: list[Tensor] = field(default_factory=list, init=False, repr=False, compare=False)

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
        if not self._kept:
            slots = self.bands or self.steps.bit_length() + 1
            self._kept.extend(torch.zeros((slots, *total.shape), dtype=torch.int32))
            self._rest.append(torch.empty(total.shape, dtype=torch.float32))
            self._next[:] = [k, tuple(nodes)]
        if [k, tuple(nodes)] != self._next or part or offsets is not None:
            expected = f"must be {self._next[0]} of the same nodes: one sum a step, one by one"
            raise InputError("k", k, expected)
        self._next[0] = k + 1
        units = np.array([2.0 ** -fraction_bits(self.of(i), self.steps) for i in nodes]) * stds
        sums = self._kept[-1]
        if self.bands:
            columns, slot = np.array([self.of(node) for node in nodes]), k % (self.bands - 1)
            old, last = self._kept[slot], self._kept[(k - 1) % (self.bands - 1)]
            far, near = columns[:, -1] * units, (columns[:, 1] - columns[:, -1]) * units
        else:  # the blocks that make up the steps before, in the last one's own
            slot = ((k + 1) & -(k + 1)).bit_length() - 1
            sums.zero_()
            for row in self._kept[:slot]:
                sums += row
            old = last = self._kept[slot].zero_()
            far, near = units, np.zeros(len(nodes))
        points = np.array([spacing(std) for std in stds])
        rest = self._rest[0]
        numbers = np.stack([far, near, units, points], axis=1)
        # Compiled loops, which a process that releases nothing does not load.
        from tacit.privacy.noise.matrix_loops import keep, split

        with host_rows(total) as own:
            given = own, sums.numpy(), last.numpy()
            _over(rest, partial(split, *given, rest.numpy(), numbers))
            GAUSSIAN.add(rest, (stds / points).tolist(), keys, nodes, k, part=0)
            _over(rest, partial(keep, *given, old.numpy(), rest.numpy(), numbers))
        if not self.bands:
            old.copy_(sums)
        return total


def _over(rows: Tensor, loop: Callable[[int, int], None]) -> None:
    """A loop over all rows, from one to before another, on as many threads as PyTorch uses."""
    over_rows(rows.shape[0], rows.shape[1], lambda some: loop(some.start, some.stop))
