"""The records of many nodes in one tensor, so that every node's batch is one indexed read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.data.datasets import Dataset
from tacit.errors import InputError

__all__ = ["StackedData", "stack", "stack_parts"]


@dataclass(frozen=True, eq=False)
class StackedData:
    """The records of all nodes of this process, one node after the other.

    Args:
        inputs: `[total, ...]`.
        targets: `[total]` or `[total, m]`.
        offsets: int64 `[nodes]`, where each node's records start.
        sizes: int64 `[nodes]`, how many records each node has.
    """

    inputs: Tensor
    targets: Tensor
    offsets: Tensor
    sizes: Tensor

    def gather(self, indices: Tensor, nodes: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Read the same number of records from every node, or from some.

        Args:
            indices: int64 `[nodes, width]`, record numbers within each node. They are not
                checked; slots that a mask hides hold 0.
            nodes: int64 rows of the nodes that are read; by default all.

        Returns:
            Inputs `[nodes, width, ...]` and targets `[nodes, width, ...]`.
        """
        offsets = self.offsets if nodes is None else self.offsets[nodes]
        rows = (offsets.unsqueeze(1) + indices).reshape(-1)
        inputs, targets = (
            values.index_select(0, rows).reshape(*indices.shape, *values.shape[1:])
            for values in (self.inputs, self.targets)
        )
        return inputs, targets


def stack(
    datasets: Sequence[Dataset], dtype: torch.dtype, device: torch.device | str
) -> StackedData:
    """Lay the data sets of nodes in one tensor.

    Args:
        datasets: one a node.
        dtype: of inputs and of floating targets; integers stay as they are.
        device: where the result lies.

    Raises:
        InputError: on `nodes` if there are none, on `nodes[i]` if a node has no records or
            differs from node 0 in the shape of its records or in the kind of its targets.
    """
    if not datasets:
        raise InputError("nodes", [], "must be at least one data set")
    first = _layout(datasets[0])
    for node, dataset in enumerate(datasets):
        if len(dataset) == 0:
            raise InputError(f"nodes[{node}]", "no records", "must hold at least one record")
        if _layout(dataset) != first:
            raise InputError(f"nodes[{node}]", _layout(dataset), f"must be as node 0: {first}")
    sizes = torch.tensor([len(dataset) for dataset in datasets], dtype=torch.int64)
    return StackedData(
        inputs=torch.cat([_cast(dataset.inputs, dtype, device) for dataset in datasets]),
        targets=torch.cat([_cast(dataset.targets, dtype, device) for dataset in datasets]),
        offsets=(sizes.cumsum(0) - sizes).to(device),
        sizes=sizes.to(device),
    )


def stack_parts(
    dataset: Dataset,
    parts: Sequence[NDArray[np.int64]],
    dtype: torch.dtype,
    device: torch.device | str,
) -> StackedData:
    """What `stack` makes of the parts of a data set, each record copied once and not twice.

    Args:
        dataset: of all nodes' records.
        parts: record numbers of each node, none empty, as `partition` gives them.
        dtype: of inputs and of floating targets; integers stay as they are.
        device: where the result lies.
    """
    order = torch.from_numpy(np.concatenate(parts))
    sizes = torch.tensor([len(part) for part in parts], dtype=torch.int64)
    return StackedData(
        inputs=_cast(dataset.inputs[order], dtype, device),
        targets=_cast(dataset.targets[order], dtype, device),
        offsets=(sizes.cumsum(0) - sizes).to(device),
        sizes=sizes.to(device),
    )


def _layout(dataset: Dataset) -> str:
    """What all nodes must share, in words."""
    kind = "floating" if dataset.targets.is_floating_point() else "integer"
    inputs, targets = list(dataset.inputs.shape[1:]), list(dataset.targets.shape[1:])
    return f"inputs {inputs} and {kind} targets {targets} a record"


def _cast(values: Tensor, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    return values.to(device, dtype if values.is_floating_point() else None)
