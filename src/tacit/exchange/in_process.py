"""The exchange of the simulator: all nodes are rows of the same tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["InProcessExchange"]

# Up to this many in-neighbours (self included) a gather and scaled adds beat a matrix product.
_FEW_NEIGHBOURS = 4


@dataclass(frozen=True)
class _Neighbours:
    """Mixing with few in-neighbours: slot s of node i weighs `weights[s][i]` and reads `sources`.

    Slots are in ascending order of the source, so that a sum has one order wherever it is done.
    """

    sources: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]

    def apply(self, value: Tensor) -> Tensor:
        shape = (-1,) + (1,) * (value.dim() - 1)
        mixed = torch.zeros_like(value)
        for source, weight in zip(self.sources, self.weights, strict=True):
            mixed.addcmul_(value.index_select(0, source), weight.view(shape))
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
            (weights.to(value) @ value.reshape(len(value), -1))
            .view(1, *value.shape[1:])
            .expand_as(value)
            .contiguous()
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
        tuple(torch.as_tensor(slot, device=device) for slot in sources),
        tuple(torch.as_tensor(slot, dtype=dtype, device=device) for slot in weights),
    )
