"""The exchange of the simulator: all nodes are rows of the same tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["InProcessExchange"]

# Up to this many in-neighbours (self included) scaled adds beat a matrix product.
_FEW_NEIGHBOURS = 4
# Up to this many pieces, rows are read where they lie; else they are gathered first.
_FEW_RUNS = 8


@dataclass(frozen=True)
class _Slot:
    """One in-neighbour of every node: node i weighs by `weights[i]` what it reads of another.

    Attributes:
        weights: `[nodes]`.
        sources: whom each node reads, `[nodes]`.
        runs: the same as (to, from, length), where rows that follow each other read rows that
            follow each other: of a ring or an exponential graph two, of a node itself one.
    """

    weights: Tensor
    sources: Tensor
    runs: tuple[tuple[int, int, int], ...]

    def pieces(self, value: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Rows to write to, what they read, and its weights, for `value` `[nodes, ...]`."""
        column = self.weights.view((-1,) + (1,) * (value.dim() - 1))
        if len(self.runs) > _FEW_RUNS:
            yield slice(None), value.index_select(0, self.sources), column
            return
        for to, start, length in self.runs:
            rows = slice(to, to + length)
            yield rows, value[start : start + length], column[rows]


@dataclass(frozen=True)
class _Neighbours:
    """Mixing with few in-neighbours, in ascending order of the source.

    So that a sum has one order wherever it is done. With one peer a step and `[50, 101,770]`
    numbers, reading rows where they lie takes 1.5 ms and gathering them 3.8.
    """

    slots: tuple[_Slot, ...]

    def apply(self, value: Tensor) -> Tensor:
        mixed = torch.empty_like(value)
        first, *others = self.slots
        for rows, read, weights in first.pieces(value):
            torch.mul(read, weights, out=mixed[rows])
        for slot in others:
            for rows, read, weights in slot.pieces(value):
                mixed[rows].addcmul_(read, weights)
        return mixed


@dataclass(frozen=True)
class _Dense:
    """Mixing with many in-neighbours: one matrix product."""

    matrix: Tensor

    def apply(self, value: Tensor) -> Tensor:
        return (self.matrix @ value.reshape(len(value), -1)).view_as(value)


class InProcessExchange:
    """Mixes rows of stacked tensors, and counts what each node would have sent.

    Args:
        matrices: mixing matrices of one period, `[nodes, nodes]` each; `P[i, j]` weighs what i
            receives from j.
        dtype: of the values to be mixed.
        device: of the values to be mixed.

    Attributes:
        bytes_sent: int64 `[nodes]`, so far: a message to every out-neighbour other than the node
            itself, or to the partner, or to the server; all of its numbers in the dtype of the
            values, unless their encoding is given. What a server sends back is not counted.
    """

    def __init__(
        self,
        matrices: Sequence[NDArray[np.float64]],
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._steps = [_compile(matrix, dtype, device) for matrix in matrices]
        self._out_degrees = [
            np.count_nonzero(matrix - np.diag(np.diag(matrix)), axis=0) for matrix in matrices
        ]
        self.bytes_sent: NDArray[np.int64] = np.zeros(len(matrices[0]), dtype=np.int64)

    def mix(
        self, k: int, *values: Tensor, message_bytes: NDArray[np.int64] | None = None
    ) -> tuple[Tensor, ...]:
        """Weighted sums over the in-neighbours of step k; see `Exchange.mix`."""
        index = k % len(self._steps)
        self.bytes_sent += _sizes(values, message_bytes) * self._out_degrees[index]
        return tuple(self._steps[index].apply(value) for value in values)

    def swap(self, k: int, partner: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        """What each node's partner holds; see `Exchange.swap`."""
        paired = partner.cpu().numpy() != np.arange(len(partner))
        self.bytes_sent += _sizes(values, None) * paired
        return tuple(value.index_select(0, partner) for value in values)

    def average(
        self,
        k: int,
        *values: Tensor,
        weights: Tensor,
        sent: Tensor,
        message_bytes: NDArray[np.int64] | None = None,
    ) -> tuple[Tensor, ...]:
        """The server's weighted sum, for everyone; see `Exchange.average`."""
        self.bytes_sent += _sizes(values, message_bytes) * sent.cpu().numpy()
        return tuple(
            (weights.to(value) @ value.reshape(len(value), -1)).view(1, *value.shape[1:])
            for value in values
        )


def _sizes(
    values: Sequence[Tensor], message_bytes: NDArray[np.int64] | None
) -> NDArray[np.int64] | np.int64:
    """Bytes of one message of each node."""
    if message_bytes is not None:
        return message_bytes
    return np.int64(sum(value[0].numel() * value.element_size() for value in values))


def _compile(
    matrix: NDArray[np.float64], dtype: torch.dtype, device: torch.device
) -> _Neighbours | _Dense:
    """The cheaper way to apply one mixing matrix."""
    most = int(np.count_nonzero(matrix, axis=1).max())
    if most > _FEW_NEIGHBOURS:
        return _Dense(torch.tensor(matrix, dtype=dtype, device=device))
    sources = np.zeros((most, len(matrix)), dtype=np.int64)
    weights = np.zeros((most, len(matrix)))
    for node, row in enumerate(matrix):
        neighbours = np.flatnonzero(row)
        sources[: len(neighbours), node] = neighbours
        weights[: len(neighbours), node] = row[neighbours]
    return _Neighbours(
        tuple(
            _Slot(
                torch.as_tensor(weight, dtype=dtype, device=device),
                torch.as_tensor(source, device=device),
                _runs(source),
            )
            for weight, source in zip(weights, sources, strict=True)
        )
    )


def _runs(sources: NDArray[np.int64]) -> tuple[tuple[int, int, int], ...]:
    """Where each run of consecutive sources goes, begins, and how long it is."""
    starts = np.flatnonzero(np.diff(sources, prepend=-2) != 1)
    lengths = np.diff(starts, append=len(sources))
    return tuple(
        (int(to), int(sources[to]), int(length)) for to, length in zip(starts, lengths, strict=True)
    )
