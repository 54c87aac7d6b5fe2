"""Mixing weights as lists: of each node, from whom it receives and with which weight.

A matrix of 10,000 nodes has 100 million entries, of which a ring uses 30,000. So only the entries
that are not zero are kept, row by row: what is known as compressed sparse rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

__all__ = ["Weights"]

Numbers = NDArray[np.int64]
Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Weights:
    """The entries of a mixing matrix P that are not zero; all arrays are read-only.

    `P[i, j]` weighs what node i receives from node j, so i is a target and j a source.

    Args:
        starts: where the entries of each target begin, and the end of the last, `[nodes + 1]`.
        sources: of each entry, ascending for each target, `[entries]`.
        values: likewise, none of them 0.
    """

    starts: Numbers
    sources: Numbers
    values: Values

    def __post_init__(self) -> None:
        for array in (self.starts, self.sources, self.values):
            array.setflags(write=False)

    @classmethod
    def of_entries(cls, nodes: int, targets: Numbers, sources: Numbers, values: Values) -> Weights:
        """The weights with these entries `[entries]`, in any order; equal places are added up."""
        places, which = np.unique(targets * nodes + sources, return_inverse=True)
        sums = np.bincount(which, weights=values, minlength=len(places))
        kept = sums != 0
        rows, columns = np.divmod(places[kept], max(nodes, 1))
        starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=nodes))])
        return cls(starts, columns, sums[kept])

    @classmethod
    def of_matrix(cls, matrix: Values) -> Weights:
        """The weights of a whole matrix `[nodes, nodes]`."""
        targets, sources = np.nonzero(matrix)
        values = np.asarray(matrix, np.float64)[targets, sources]
        return cls.of_entries(len(matrix), targets, sources, values)

    @property
    def nodes(self) -> int:
        """How many nodes."""
        return len(self.starts) - 1

    @property
    def nbytes(self) -> int:
        """Memory that the arrays take."""
        return self.starts.nbytes + self.sources.nbytes + self.values.nbytes

    @property
    def counts(self) -> Numbers:
        """Entries of each target, `[nodes]`."""
        return np.diff(self.starts)

    @cached_property
    def targets(self) -> Numbers:
        """Of each entry, `[entries]`."""
        return np.repeat(np.arange(self.nodes), self.counts)

    @cached_property
    def own(self) -> Numbers:
        """The entry by which each node weighs what it has itself, `[nodes]`; -1 without one."""
        entries = np.flatnonzero(self.targets == self.sources)
        numbers = np.full(self.nodes, -1, np.int64)
        numbers[self.sources[entries]] = entries
        return numbers

    @property
    def diagonal(self) -> Values:
        """What each node keeps of its own, `[nodes]`."""
        return np.append(self.values, 0.0)[self.own]  # the last, 0, where there is none

    @property
    def out_degrees(self) -> Numbers:
        """Messages that each node sends to others, `[nodes]`."""
        return np.bincount(self.sources[self.targets != self.sources], minlength=self.nodes)

    def matrix(self) -> Values:
        """The whole matrix, `[nodes, nodes]`: for few nodes only."""
        return self.block(np.arange(self.nodes), np.arange(self.nodes))

    def block(self, rows: Numbers, columns: Numbers) -> Values:
        """Some rows and columns of the matrix, each ascending: `[rows, columns]`."""
        block = np.zeros((len(rows), len(columns)))
        if block.size:
            at, targets, sources = self.within(rows, columns)
            block[targets, sources] = self.values[at]
        return block

    def among(self, nodes: Sequence[int]) -> Weights:
        """What stays between some nodes, ascending, which are numbered from 0 then."""
        kept = np.asarray(nodes, np.int64)
        at, targets, sources = self.within(kept, kept)
        return Weights.of_entries(len(kept), targets, sources, self.values[at])

    def without(self, entries: Numbers, keepers: Numbers | None = None) -> Weights:
        """The same without some entries `[n]`.

        Args:
            entries: their numbers.
            keepers: of each entry the node whose own weight, which is not 0, grows by it, `[n]`;
                None: nobody's.
        """
        values = self.values.copy()
        values[entries] = 0.0
        if keepers is not None:
            own = self.own[keepers]
            assert (own >= 0).all()
            np.add.at(values, own, self.values[entries])
        kept = values != 0
        counts = np.bincount(self.targets[kept], minlength=self.nodes)
        starts = np.concatenate([[0], np.cumsum(counts)])
        return Weights(starts, self.sources[kept], values[kept])

    def repeated(self, copies: int) -> Weights:
        """So many graphs beside each other, which do not talk: `[copies * nodes]` nodes."""
        shifts = np.arange(copies)[:, None]
        starts = (self.starts[:-1] + len(self.sources) * shifts).reshape(-1)
        return Weights(
            np.append(starts, copies * len(self.sources)),
            (self.sources + self.nodes * shifts).reshape(-1),
            np.tile(self.values, copies),
        )

    def within(self, rows: Numbers, columns: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Entries of a block `[rows, columns]`: their numbers, and where their ends are in it."""
        row, column = self._places(rows)[self.targets], self._places(columns)[self.sources]
        at = np.flatnonzero((row >= 0) & (column >= 0))
        return at, row[at], column[at]

    def _places(self, nodes: Numbers) -> Numbers:
        places = np.full(self.nodes, -1, np.int64)
        places[nodes] = np.arange(len(nodes))
        return places
