"""The world of a step where all nodes are stacked in one process: it does what the plan says."""

from __future__ import annotations

import torch
from torch import Tensor

from tacit import sampling
from tacit.data import StackedData
from tacit.exchange import Exchange
from tacit.gradients import BatchGradient, StackedModel
from tacit.plan import Plan
from tacit.privacy import noise

__all__ = ["StackedWorld"]


class StackedWorld:
    """What `tacit.algorithms.World` asks for, from the plan.

    Args:
        plan: decides sampling, clipping and noise.
        model: computes clipped gradients for the stack.
        data: every node's records.
        keys: every node's secret key.
        exchange: moves messages.

    Attributes:
        last: gradient norms and losses of the last batch, on private records: for the progress
            line and the private part of the metrics, never for a message.
    """

    def __init__(
        self,
        plan: Plan,
        model: StackedModel,
        data: StackedData,
        keys: noise.NodeKeys,
        exchange: Exchange,
    ) -> None:
        self.exchange = exchange
        self.last: BatchGradient | None = None
        self.last_mask: Tensor | None = None
        self._plan = plan
        self._model = model
        self._data = data
        self._keys = keys
        self._device = data.inputs.device
        self._expected = torch.tensor(
            [[node.expected_batch] for node in plan.nodes],
            dtype=data.inputs.dtype,
            device=self._device,
        )
        # Gathered once where every node takes every record at every step.
        self._whole = None
        if all(node.rate == 1 for node in plan.nodes):
            batch = sampling.everything(plan, self._device)
            self._whole = (*data.gather(batch.indices), batch.mask)

    def batch_gradient(self, at: Tensor, k: int) -> Tensor:
        """Sum of clipped record gradients over step k's batch, `[nodes, d]`."""
        inputs, targets, mask = self._whole or self._batch(k)
        clip = None if self._plan.clip is None else self._plan.clip[k]
        self.last = self._model.gradient(at, inputs, targets, mask, clip)
        self.last_mask = mask
        return self.last.total

    def add_noise(self, total: Tensor, k: int) -> Tensor:
        """`total` plus step k's noise, on a public lattice, in place; as it is without noise."""
        if not self._plan.noisy:
            return total
        nodes = [node.node for node in self._plan.nodes]
        stds = [self._plan.noise_std(node, k) for node in self._plan.nodes]
        return noise.add_normal(total, stds, self._keys, nodes, "noise", k)

    def divide(self, total: Tensor) -> Tensor:
        """`total` over each node's expected batch size, in place."""
        return total.div_(self._expected)

    def _batch(self, k: int) -> tuple[Tensor, Tensor, Tensor]:
        batch = sampling.draw(self._plan, self._keys, k, self._device)
        return (*self._data.gather(batch.indices), batch.mask)
