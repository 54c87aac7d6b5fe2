"""The world of a step where all nodes are stacked in one process: it does what the plan says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from tacit import sampling
from tacit.data import StackedData
from tacit.errors import InputError
from tacit.exchange import Exchange
from tacit.gradients import BatchGradient, StackedModel
from tacit.gradients.differences import clipped_difference, difference_shapes
from tacit.gradients.table_parts import Shape
from tacit.plan import NodePlan, Plan
from tacit.privacy import noise
from tacit.privacy.noise_laplace import add_laplace
from tacit.stored import StackedTable

__all__ = ["StackedWorld"]

_ADDERS: Mapping[str, Callable[..., Tensor]] = {
    "gaussian": noise.add_normal,
    "laplace": add_laplace,
}


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
        self.nodes = tuple(node.node for node in plan.nodes)
        self.steps = plan.steps
        self.seed = plan.config.train.seed
        self._plan = plan
        self._model = model
        self._data = data
        self._keys = keys
        self._device = data.inputs.device
        self._everyone = torch.ones(len(plan.nodes), 1, dtype=torch.bool, device=self._device)
        self._own = torch.arange(len(plan.nodes), device=self._device)
        self.batch_size = self._column([node.expected_batch for node in plan.nodes])
        self.records = self._column([float(node.records) for node in plan.nodes])
        self.rate = self._column([node.rate for node in plan.nodes])
        self._clip_norm = plan.config.algorithm.options.clip_norm
        self._add = _ADDERS[plan.config.algorithm.definition.noise]

    @cached_property
    def table(self) -> StackedTable:
        """The gradient table, made when it is first filled or restored."""
        self._only_l2()
        return StackedTable(self._plan, self._model, self._data, self._keys, self._seen)

    def active(self, k: int) -> Tensor:
        """Which nodes take part in step k, bool `[nodes, 1]`."""
        rows = self._plan.active(k)
        if rows is None:
            return self._everyone
        return torch.from_numpy(rows[self._rows()]).to(self._device).unsqueeze(1)

    def partner(self, k: int) -> Tensor:
        """Whom each node is paired with at step k, int64 `[nodes]`."""
        activity = self._plan.activity
        if activity is None or activity.partner is None:
            return self._own
        return torch.from_numpy(activity.partner[k]).to(self._device)

    def clip(self, k: int) -> float | None:
        """The clipping bound of step k; None: nothing is clipped."""
        return None if self._plan.clip is None else self._plan.clip[k]

    def batch_gradient(
        self, at: Tensor, k: int, *, part: int = 0, whole: bool = False, clipped: bool = True
    ) -> Tensor:
        """Sum of clipped record gradients over step k's batch, `[nodes, d]`."""
        rows, nodes = self._taking_part(k)
        if rows is not None and not len(rows):
            return torch.zeros_like(at)
        inputs, targets, mask = self._batch(k, part, whole, rows, nodes)
        found = self._model.gradient(
            at if rows is None else at[rows],
            inputs,
            targets,
            mask,
            self.clip(k) if clipped else None,
            norm=self._clip_norm,
        )
        self._seen(found, mask)
        if rows is None:
            return found.total
        return torch.zeros_like(at).index_copy_(0, rows, found.total)

    def batch_difference(self, at: Tensor, anchor: Tensor, k: int, bound: float | None) -> Tensor:
        """Sum over step k's batch of clipped gradients at `at` less those at `anchor`."""
        self._only_l2()
        batch = self._batch(k, 0, False, None, self._plan.nodes)
        found = clipped_difference(
            self._model, self._shapes, (at, anchor), batch, self.clip(k), bound
        )
        self._seen(found, batch[2])
        return found.total

    def add_noise(
        self, total: Tensor, k: int, *, scale: float | Tensor = 1.0, part: int = 0
    ) -> Tensor:
        """`total` plus step k's noise, on a public lattice, in place; as it is without noise."""
        if not self._plan.noisy:
            return total
        rows, nodes = self._taking_part(k)
        if rows is not None and not len(rows):
            return total
        factors = torch.as_tensor(scale, dtype=torch.float64).expand(len(total), 1)[:, 0].tolist()
        chosen = range(len(total)) if rows is None else rows.tolist()
        stds = [
            self._plan.noise_std(node, k) * factors[row]
            for row, node in zip(chosen, nodes, strict=True)
        ]
        numbers = [node.node for node in nodes]
        if rows is None:
            return self._add(total, stds, self._keys, numbers, "noise", k, part=part)
        released = self._add(total[rows], stds, self._keys, numbers, "noise", k, part=part)
        return total.index_copy_(0, rows, released)

    def noise_std(self, k: int) -> Tensor:
        """Standard deviation of step k's noise in the sum over a batch, `[nodes, 1]`; 0 without."""
        if not self._plan.noisy:
            return torch.zeros_like(self.batch_size)
        return self._column([self._plan.noise_std(node, k) for node in self._plan.nodes])

    def divide(self, total: Tensor) -> Tensor:
        """`total` over each node's expected batch size, in place."""
        return total.div_(self.batch_size)

    def tensors(self) -> dict[str, Tensor]:
        """Private state beside the algorithm's own, for a checkpoint."""
        return dict(self.table.tensors()) if self._has_table else {}

    def load(self, tensors: Mapping[str, Tensor], at: Tensor) -> None:
        """Go on from what a checkpoint held; `at` `[nodes, d]` only gives shapes."""
        if self._has_table:
            self.table.load(tensors, at)

    @property
    def _has_table(self) -> bool:
        chosen = self._plan.config.algorithm
        return chosen.definition.table(chosen.options) is not None

    def _column(self, values: list[float]) -> Tensor:
        column = torch.tensor(values, dtype=self._data.inputs.dtype, device=self._device)
        return column.unsqueeze(1)

    def _rows(self) -> np.ndarray:
        """Columns of the plan's activity that this process's nodes are."""
        activity = self._plan.activity
        return np.asarray(self.nodes) % (1 if activity is None else activity.active.shape[1])

    def _only_l2(self) -> None:
        if self._clip_norm != "l2":
            raise InputError(
                "algorithm.clip_norm",
                self._clip_norm,
                "must be 'l2' where an algorithm keeps or subtracts the gradients of records",
            )

    def _seen(self, found: BatchGradient, mask: Tensor) -> None:
        """Keep what the private metrics show."""
        self.last, self.last_mask = found, mask

    def _taking_part(self, k: int) -> tuple[Tensor | None, tuple[NodePlan, ...]]:
        """Rows and plans of the nodes that are active; None for all rows."""
        flags = self._plan.active(k)
        if flags is None:
            return None, self._plan.nodes
        chosen = np.flatnonzero(flags[self._rows()])
        if len(chosen) == len(self._plan.nodes):
            return None, self._plan.nodes
        rows = torch.from_numpy(chosen).to(self._device)
        return rows, tuple(self._plan.nodes[row] for row in chosen)

    @cached_property
    def _shapes(self) -> tuple[Shape, ...]:
        """The form of record gradients whose differences are clipped."""
        return difference_shapes(self._model)

    @cached_property
    def _whole(self) -> tuple[Tensor, Tensor, Tensor]:
        """Every record of every node, gathered once."""
        batch = sampling.everything(self._plan, self._device)
        return (*self._data.gather(batch.indices), batch.mask)

    def _batch(
        self,
        k: int,
        part: int,
        whole: bool,
        rows: Tensor | None,
        nodes: tuple[NodePlan, ...],
    ) -> tuple[Tensor, Tensor, Tensor]:
        if whole or all(node.rate == 1 for node in self._plan.nodes):
            found = self._whole
            return found if rows is None else (found[0][rows], found[1][rows], found[2][rows])
        batch = sampling.draw(self._plan, self._keys, k, self._device, nodes=nodes, part=part)
        return (*self._data.gather(batch.indices, rows), batch.mask)
