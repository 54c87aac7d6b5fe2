"""The gradient table of a run, as the plan asks for it: what is drawn, clipped and stored.

A table is private state: it never leaves its node, and epsilon covers what is released from it
only by way of the algorithm's mechanism.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from tacit.data import StackedData
from tacit.gradients import BatchGradient, StackedModel
from tacit.gradients.table import GradientTable
from tacit.privacy.noise import draws as noise
from tacit.training import sampling
from tacit.training.plan import Plan
from tacit.training.release import NodePlan

Seen = Callable[[BatchGradient, Tensor, Tensor, Sequence[NodePlan]], None]


class StackedTable:
    """What `tacit.algorithms.StepTable` asks for, of all nodes of this process.

    `seen` is told of every batch, for the private metrics.
    """

    def __init__(
        self,
        plan: Plan,
        model: StackedModel,
        data: StackedData,
        keys: noise.NodeKeys,
        seen: Seen,
        nodes: Sequence[NodePlan],
    ) -> None:
        self._nodes = nodes
        chosen = plan.config.algorithm
        self._request = chosen.definition.table(chosen.options)
        self._plan, self._model, self._data = plan, model, data
        self._keys, self._seen = keys, seen
        self._table: GradientTable | None = None

    def fill(self, at: Tensor) -> None:
        """Store every record's clipped gradient at parameters `at`, `[nodes, d]`."""
        assert self._request is not None
        clip = self._plan.release.clip.applied(0)
        self._table = GradientTable.build(
            self._model,
            self._data,
            at,
            clip,
            steps=self._plan.steps,
            mini_batch=self._request.mini_batch,
            directory=self._request.directory,
        )

    def total(self) -> Tensor:
        """The sum of all entries of each node, float64 `[nodes, d]`."""
        return self._filled.total()

    def replace(self, at: Tensor, k: int, difference: float | None) -> Tensor:
        """Draw step k's batch, renew its entries, return the sum of new less old in float64."""
        table, clip = self._filled, self._plan.release.clip.applied(k)
        batch = self._draw(k)
        renewed = table.replace(at, batch.indices, batch.mask, clip, difference)
        self._seen(renewed.batch, renewed.mask, batch.indices, self._nodes)
        return renewed.difference

    def tensors(self) -> Mapping[str, Tensor]:
        """What a checkpoint has to hold of it."""
        return {} if self._table is None else self._table.tensors()

    def load(self, tensors: Mapping[str, Tensor], at: Tensor) -> None:
        """Go on from what a checkpoint held; `at` `[nodes, d]` only gives shapes."""
        if self._table is None:
            self.fill(at)
        self._filled.load(tensors)

    @property
    def _filled(self) -> GradientTable:
        assert self._table is not None, "the table is filled in `start`"
        return self._table

    def _draw(self, k: int) -> sampling.Batch:
        device = self._data.targets.device
        size = self._request.mini_batch if self._request is not None else None
        if size is None:
            return sampling.draw(self._plan, self._keys, k, device, nodes=self._nodes)
        return sampling.draw_units(self._nodes, self._keys, k, device, size)
