"""Which records join a step: drawn as the plan says, from each node's secret coins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.plan import NodePlan, Plan
from tacit.privacy import noise

__all__ = ["Batch", "draw", "everything"]

PURPOSE = "sampling"


@dataclass(frozen=True)
class Batch:
    """A padded batch: local record numbers `[nodes, width]`, and which slots hold a record."""

    indices: Tensor
    mask: Tensor


def draw(plan: Plan, keys: noise.NodeKeys, k: int, device: torch.device) -> Batch:
    """The batch of step k, for every node of the plan.

    Poisson: independent coins, never likelier than the planned rate. Fixed: a uniform subset of
    the planned size. A node at rate 1 takes every record.
    """
    fixed = plan.config.train.sampling == "fixed"
    return _padded([_records(node, keys, k, fixed) for node in plan.nodes], device)


def everything(plan: Plan, device: torch.device) -> Batch:
    """Every record of every node."""
    return _padded([np.arange(node.records) for node in plan.nodes], device)


def _records(node: NodePlan, keys: noise.NodeKeys, k: int, fixed: bool) -> NDArray[np.int64]:
    if node.rate == 1:
        return np.arange(node.records)
    if fixed:
        return noise.subset(keys, node.node, PURPOSE, k, node.records, int(node.expected_batch))
    return np.flatnonzero(noise.coins(keys, node.node, PURPOSE, k, node.records, node.rate))


def _padded(records: Sequence[NDArray[np.int64]], device: torch.device) -> Batch:
    width = max(len(chosen) for chosen in records)
    indices = np.zeros((len(records), width), dtype=np.int64)
    mask = np.zeros((len(records), width), dtype=bool)
    for row, chosen in enumerate(records):
        indices[row, : len(chosen)] = chosen
        mask[row, : len(chosen)] = True
    return Batch(torch.from_numpy(indices).to(device), torch.from_numpy(mask).to(device))
