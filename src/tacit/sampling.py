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

__all__ = ["Batch", "draw", "draw_units", "everything"]

PURPOSE = "sampling"
DEALING = "dealing"


@dataclass(frozen=True)
class Batch:
    """A padded batch: local record numbers `[nodes, width]`, and which slots hold a record."""

    indices: Tensor
    mask: Tensor


def draw(
    plan: Plan,
    keys: noise.NodeKeys,
    k: int,
    device: torch.device,
    *,
    nodes: Sequence[NodePlan] | None = None,
    part: int = 0,
) -> Batch:
    """The batch of step k, for some nodes of the plan.

    Poisson: independent coins, never likelier than the planned rate. Fixed: a uniform subset of
    the planned size. A node at rate 1 takes every record. Where a step has several mini-batches
    that share no record, the step's records are drawn first, and then dealt out.

    Args:
        plan: says how.
        keys: the nodes' secret keys.
        k: the step.
        device: of the result.
        nodes: of the plan, in the order of the rows; by default all.
        part: number of the mini-batch within the step.
    """
    rows = plan.nodes if nodes is None else nodes
    fixed = plan.config.train.sampling == "fixed"
    drawn = _dealt if plan.local_steps > 1 and plan.disjoint else _records
    return _padded([drawn(plan, node, keys, k, part, fixed) for node in rows], device)


def everything(
    plan: Plan, device: torch.device, *, nodes: Sequence[NodePlan] | None = None
) -> Batch:
    """Every record of some nodes of the plan (by default all)."""
    rows = plan.nodes if nodes is None else nodes
    return _padded([np.arange(node.records) for node in rows], device)


def draw_units(plan: Plan, keys: noise.NodeKeys, k: int, device: torch.device, size: int) -> Batch:
    """Numbers of the fixed mini-batches of `size` records that step k draws.

    Each by a coin of its own, never likelier than the planned rate, whatever `train.sampling` says.
    """
    return _padded([_units(keys, node, k, -(-node.records // size)) for node in plan.nodes], device)


def _units(keys: noise.NodeKeys, node: NodePlan, k: int, count: int) -> NDArray[np.int64]:
    if node.rate == 1:
        return np.arange(count)
    return np.flatnonzero(noise.coins(keys, node.node, PURPOSE, k, count, node.rate))


def _records(
    plan: Plan, node: NodePlan, keys: noise.NodeKeys, k: int, part: int, fixed: bool
) -> NDArray[np.int64]:
    if node.rate == 1:
        return np.arange(node.records)
    if fixed:
        size = int(node.expected_batch)
        return noise.subset(keys, node.node, PURPOSE, k, node.records, size, part)
    return np.flatnonzero(noise.coins(keys, node.node, PURPOSE, k, node.records, node.rate, part))


def _dealt(
    plan: Plan, node: NodePlan, keys: noise.NodeKeys, k: int, part: int, fixed: bool
) -> NDArray[np.int64]:
    """The records of one of the step's disjoint mini-batches; at rate 1 each holds them all."""
    if node.rate == 1:
        return np.arange(node.records)
    parts, size = plan.local_steps, int(node.expected_batch)
    if fixed:
        chosen = noise.subset(keys, node.node, PURPOSE, k, node.records, parts * size)
        order = noise.permutation(keys, node.node, DEALING, k, len(chosen))
        return np.sort(chosen[order[part * size : (part + 1) * size]])
    rate = min(1.0, parts * node.rate)
    chosen = np.flatnonzero(noise.coins(keys, node.node, PURPOSE, k, node.records, rate))
    hands = noise.choices(keys, node.node, DEALING, k, node.records, parts)
    mine: NDArray[np.int64] = chosen[hands[chosen] == part]
    return mine


def _padded(records: Sequence[NDArray[np.int64]], device: torch.device) -> Batch:
    width = max(len(chosen) for chosen in records)
    indices = np.zeros((len(records), width), dtype=np.int64)
    mask = np.zeros((len(records), width), dtype=bool)
    for row, chosen in enumerate(records):
        indices[row, : len(chosen)] = chosen
        mask[row, : len(chosen)] = True
    return Batch(torch.from_numpy(indices).to(device), torch.from_numpy(mask).to(device))
