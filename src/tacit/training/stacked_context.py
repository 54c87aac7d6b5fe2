"""The context of a step where all nodes are stacked in one process: it does what the plan says."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.algorithms.context import PublicNumbers
from tacit.base.sending import sent
from tacit.communication.colours import Summand
from tacit.communication.exchange import Exchange
from tacit.data import StackedData
from tacit.errors import InputError, LeakError
from tacit.gradients import BatchGradient, StackedModel, record_coins, refuse_coins
from tacit.gradients.table import clipped_difference
from tacit.gradients.table_storage import Shape, entry_shapes
from tacit.privacy.noise.draws import NodeKeys
from tacit.privacy.noise.gaussian import spacing
from tacit.privacy.noise.lattice import Offsets
from tacit.privacy.noise.pairwise import PairKeys, pair_sums
from tacit.privacy.noise.summands import summands
from tacit.training import sampling
from tacit.training.gradient_table import StackedTable
from tacit.training.plan import Plan
from tacit.training.release import NodePlan
from tacit.training.shared_noise import most_value

_FEW = 1 << 20  # numbers that are read before they are used


class StackedContext:
    """What `tacit.algorithms.StepContext` asks for, from the plan.

    `data` and the secret `keys` are those of the nodes `hosted` by this process, which ascend; by
    default all of the plan. `pair_keys` are the secret keys that these nodes share with their
    partners, where the plan has noise of pairs.
    """

    def __init__(
        self,
        plan: Plan,
        model: StackedModel,
        data: StackedData,
        keys: NodeKeys,
        exchange: Exchange,
        hosted: Sequence[int] | None = None,
        pair_keys: PairKeys | None = None,
    ) -> None:
        self.exchange = exchange
        self.count = len(plan.nodes)
        self.steps = plan.steps
        self.seed = plan.config.train.seed
        self._seen = _LastBatch()
        self._disjoint_batches: sampling.DisjointBatches | None = None
        self._gathered: tuple[Tensor, Tensor] | None = None
        self._plan = plan
        self._model = model
        self._data = data
        self._keys = keys
        self._pair_keys = pair_keys
        self._device = data.targets.device
        self._noise = plan.release.algorithm.releases.noise.begin()
        # None: itself. A reference to itself would keep all records until cycles are collected.
        self._parent: StackedContext | None = None
        here = plan.nodes if hosted is None else tuple(plan.nodes[node] for node in hosted)
        # In float64, as planned: a rate that is rounded up would be more than is accounted.
        exact = torch.tensor(
            [
                (node.expected_batch, node.records, node.rate, node.weight, node.divisor)
                for node in here
            ],
            dtype=torch.float64,
        )
        batch_size, records, rate, weight, self._divisors = exact.unsqueeze(2).unbind(1)
        kind = getattr(torch, plan.config.train.dtype)
        self.on_host = PublicNumbers(batch_size.to(kind), records.to(kind), rate, weight)
        moved = (column.to(self._device) for column in (*self.on_host, self._divisors))
        self.batch_size, self.records, self.rate, self.weight, self._divisor = moved
        self._settle(here, None)
        self._check_pair_keys()

    def _settle(self, members: tuple[NodePlan, ...], places: Tensor | None) -> None:
        """Be of some nodes: `places` are their rows in the data; None for all."""
        self._members, self._places = members, places
        self._chosen: NDArray[np.int64] | None = None
        self._last_part: tuple[int, tuple[Tensor | None, tuple[NodePlan, ...]]] | None = None
        self.nodes = tuple(node.node for node in members)
        self._numbers = np.asarray(self.nodes, np.int64)
        self._some = np.asarray([node.records > 0 for node in members], np.bool_)
        self.batch_size, self.records, self.rate, self.weight, self._divisor = map(
            self.take, (self.batch_size, self.records, self.rate, self.weight, self._divisor)
        )

    def _check_pair_keys(self) -> None:
        """Refuse to begin without the key of a pair: what is certified counts on all of them."""
        pairs = self._plan.release.pairs
        held = set() if self._pair_keys is None else set(self._pair_keys.pairs)
        here = set(self.nodes)
        missing = [
            pair for pair in (pairs.pairs if pairs else ()) if here & {*pair} and pair not in held
        ]
        if missing:
            raise InputError("pair_keys", missing[0], "a pair whose key is needed and is not held")

    @property
    def last(self) -> BatchGradient | None:
        """Gradient norms and losses of the last batch: of private records, never for a message."""
        return self._seen.batch

    @property
    def last_mask(self) -> Tensor | None:
        """Which slots of the last batch hold a record."""
        return self._seen.mask

    @property
    def last_rows(self) -> tuple[Sequence[NodePlan], Tensor] | None:
        """Whose its rows are, and the numbers of the records in its slots."""
        return self._seen.rows

    @cached_property
    def table(self) -> StackedTable:
        """The gradient table, made when it is first filled or restored."""
        self._only_l2()
        refuse_coins(self._model)
        nodes = self._all._members
        return StackedTable(self._plan, self._model, self._data, self._keys, self._seen.keep, nodes)

    @property
    def _all(self) -> StackedContext:
        """The context of all nodes of this process, which is this one or what it is a part of."""
        return self if self._parent is None else self._parent

    def active(self, k: int) -> Tensor:
        """Which nodes take part in step k, bool `[nodes, 1]`."""
        return sent(self.flags(k), self._device).unsqueeze(1)

    def flags(self, k: int) -> NDArray[np.bool_]:
        """The same on the host, `[nodes]`."""
        flags = self._plan.release.active(k)
        return np.ones(len(self.nodes), np.bool_) if flags is None else flags[self._rows()]

    def among(self, k: int) -> StackedContext:
        """The context of those nodes alone that take part in step k."""
        rows, nodes = self._taking_part(k)
        if rows is None:
            return self
        part = copy.copy(self)
        part._parent = self._all
        part._settle(nodes, rows)
        assert self._chosen is not None  # or all take part
        own = torch.from_numpy(self._chosen)
        part.on_host = PublicNumbers(*(column[own] for column in self.on_host))
        part._divisors = self._divisors[own]
        return part

    def take(self, values: Tensor) -> Tensor:
        """The rows of this context's nodes, of `values` `[nodes of the process, d]`."""
        return values if self._places is None else values[self._places]

    def put(self, values: Tensor, rows: Tensor) -> Tensor:
        """`values` `[nodes of the process, d]` with new rows of this context's nodes, in place."""
        return rows if self._places is None else values.index_copy_(0, self._places, rows)

    def partner(self, k: int) -> Tensor:
        """The number of the node that each is paired with at step k, int64 `[nodes]`."""
        activity = self._plan.release.activity
        if activity is None or activity.partner is None:
            return torch.from_numpy(self._numbers)
        return torch.from_numpy(activity.partner[k][self._rows()])

    def clip(self, k: int) -> float | None:
        """What gradients are clipped to in step k; None: nothing is clipped."""
        return self._plan.release.clip.applied(k)

    def batch_gradient(
        self, at: Tensor, k: int, *, part: int = 0, whole: bool = False, clipped: bool = True
    ) -> Tensor:
        """Sum of clipped record gradients over step k's batch, `[nodes, d]`."""
        rows, nodes = self._taking_part(k)
        if not nodes:
            return at.new_zeros(at.shape)
        inputs, targets, mask, indices = self._own_rows(whole, rows) or self._batch(
            k, part, whole, rows, nodes
        )
        found = self._model.gradient(
            at if rows is None else at[rows],
            inputs,
            targets,
            mask,
            self.clip(k) if clipped else None,
            norm=self._plan.release.clip.norm,
            counts=self._clip_counts(nodes),
            coins=self._coins(k, part, nodes, indices),
            shares=self._shares(rows, indices),
        )
        self._seen.keep(found, mask, indices, nodes)
        if rows is None:
            return found.total
        return at.new_zeros(at.shape).index_copy_(0, rows, found.total)

    def batch_difference(self, at: Tensor, anchor: Tensor, k: int, bound: float | None) -> Tensor:
        """Sum over step k's batch of clipped gradients at `at` less those at `anchor`."""
        self._only_l2()
        refuse_coins(self._model)
        whole = at.new_zeros(at.shape, dtype=torch.float64)
        rows, nodes = self._taking_part(k)
        if not nodes:
            return whole
        inputs, targets, mask, indices = self._batch(k, 0, False, rows, nodes)
        chosen = slice(None) if rows is None else rows
        found = clipped_difference(
            self._model,
            self._shapes,
            (at[chosen], anchor[chosen]),
            (inputs, targets, mask),
            self.clip(k),
            bound,
            self.records[chosen].squeeze(1),
            self._shares(rows, indices),
        )
        self._seen.keep(found, mask, indices, nodes)
        return found.total if rows is None else whole.index_copy_(0, rows, found.total)

    def add_noise(
        self, total: Tensor, k: int, *, scale: float | Tensor = 1.0, part: int = 0
    ) -> Tensor:
        """`total` plus step k's noise, on a public lattice, in place; as it is without noise."""
        if not self._plan.noisy:
            return total
        if self.only_sums:
            raise LeakError("noise of a run with secure sums is too little for a single message")
        rows, nodes = self._taking_part(k)
        if not nodes:
            return total
        factors = torch.as_tensor(scale, dtype=torch.float64).expand(len(total), 1)[:, 0].tolist()
        chosen = range(len(total)) if self._chosen is None else self._chosen.tolist()
        stds = [
            self._plan.release.noise_std(node, k) * factors[row]
            for row, node in zip(chosen, nodes, strict=True)
        ]
        numbers = [node.node for node in nodes]
        chosen_total = total if rows is None else total[rows]
        scales = [factors[row] * node.divisor for row, node in zip(chosen, nodes, strict=True)]
        offsets = self._pair_sums(chosen_total, numbers, scales, k, part)
        released = self._noise.add(
            chosen_total, stds, self._keys, numbers, k, part=part, offsets=offsets
        )
        return released if rows is None else total.index_copy_(0, rows, released)

    def _pair_sums(
        self, total: Tensor, nodes: Sequence[int], scales: Sequence[float], k: int, part: int
    ) -> Offsets | None:
        """What pairs of nodes add to `total` `[nodes, d]` so that it cancels in what is averaged.

        `scales` say how far each row of `total` moves when what is averaged (`divide`) does by one;
        `part` is the number of the release, where a step has several.
        """
        if self._plan.release.pairs is None or self._pair_keys is None:
            return None
        flags = self._plan.release.active(k)
        active = None
        if flags is not None:
            everyone = np.arange(len(self._plan.nodes))
            active = set(np.flatnonzero(flags[everyone % len(flags)]).tolist())
        return pair_sums(
            self._pair_keys,
            nodes,
            active,
            scales,
            self._plan.release.pair_noise_std(k),
            total.shape[1],
            k,
            part,
            total.device,
        )

    @property
    def only_sums(self) -> bool:
        """Whether the server may see sums alone."""
        return self._plan.release.sums is not None

    def summand(self, values: Tensor, k: int) -> Summand[Tensor]:
        """`values` `[active, d]` plus step k's noise, in points of the lattice that all share.

        Raises:
            LeakError: a value is beyond what the plan has room for, or is no number.
        """
        rows, nodes = self._taking_part(k)
        bound, most = self.clip(k), max(node.weight / node.rate for node in self._plan.nodes)
        if rows is not None or self._plan.release.sums is None or bound is None:
            raise LeakError("a summand is asked for of those who take part in a round of sums")
        if values.numel() and not bool(values.abs().max() <= most_value(bound, most)):
            raise LeakError(
                f"a client's part of the sum of step {k} is not within the bound of the plan: this "
                "is a defect of the algorithm, and nothing was sent"
            )
        numbers = [node.node for node in nodes]
        return Summand(summands(values, self._sum_deviation(k), self._keys, numbers, k))

    def mean_of_sum(self, total: Tensor, k: int) -> Tensor:
        """The mean `[1, d]` over step k's active clients, of the sum of their summands."""
        flags = self._plan.release.active(k)
        count = self.count if flags is None else max(1, int(flags.sum()))
        unit = spacing(self._sum_deviation(k))
        return total.double().mul_(unit).div_(count).to(self.batch_size.dtype)

    def _sum_deviation(self, k: int) -> float:
        """Of every client's own noise in what is summed: one number, by the first node."""
        node = next(node for node in self._plan.nodes if node.records)
        return self._plan.release.noise_std(node, k) / node.divisor

    def noise_std(self, k: int) -> Tensor:
        """Standard deviation of step k's noise in a sum, float64 `[nodes, 1]`; 0 without noise."""
        stds = [
            self._plan.release.noise_std(node, k) if self._plan.noisy else 0.0
            for node in self._members
        ]
        return sent(np.array(stds, np.float64), self._device).unsqueeze(1)

    def divide(self, total: Tensor) -> Tensor:
        """`total` over each node's expected batch size, weighed, in place."""
        if bool((self._divisors == 1).all()):
            return total
        return total.div_(self._divisor.to(total.dtype))

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

    def _rows(self) -> np.ndarray:
        """Columns of the plan's activity that these nodes are."""
        activity = self._plan.release.activity
        return self._numbers % (1 if activity is None else activity.active.shape[1])

    def _only_l2(self) -> None:
        """Refuse a row of a user's own that is accounted in a norm in which this has no bound.

        Kept and subtracted gradients are clipped in l2, which bounds no l1 norm: Laplace noise
        would not hide them.
        """
        norm = self._plan.release.clip.norm
        if norm != "l2":
            raise InputError(
                "algorithm.clip_norm",
                norm,
                "must be 'l2' where an algorithm keeps or subtracts the gradients of records",
            )

    def _taking_part(self, k: int) -> tuple[Tensor | None, tuple[NodePlan, ...]]:
        """Rows and plans of the nodes that are active and have records; None for all rows."""
        if self._last_part is None or self._last_part[0] != k:  # asked several times a step
            self._last_part = k, self._found_part(k)
        return self._last_part[1]

    def _found_part(self, k: int) -> tuple[Tensor | None, tuple[NodePlan, ...]]:
        flags = self._plan.release.active(k)
        chosen = np.flatnonzero(self._some if flags is None else self._some & flags[self._rows()])
        if len(chosen) == len(self._members):
            self._chosen = None
            return None, self._members
        rows = sent(chosen, self._device)
        self._chosen = chosen
        return rows, tuple(self._members[row] for row in chosen)

    @cached_property
    def _shapes(self) -> tuple[Shape, ...]:
        """The form of record gradients whose differences are clipped."""
        return entry_shapes(self._model)

    @cached_property
    def _everyone_joins(self) -> bool:
        """Whether every batch of every node of the plan holds all its records."""
        return all(node.rate == 1 for node in self._plan.nodes)

    @cached_property
    def _whole(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Every record of every node, gathered once."""
        batch = sampling.everything(self._plan, self._device, nodes=self._members)
        return (*self._data.gather(batch.indices), batch.mask, batch.indices)

    @cached_property
    def _whole_rows(self) -> tuple[list[Tensor], Tensor, Tensor, Tensor] | None:
        """The same where they lie, neither copied nor padded, for a model that reads them so."""
        batch = sampling.everything(self._plan, self._device, nodes=self._members)
        if not self._model.reads_rows(batch.mask.shape[1], self._plan.release.clip.norm):
            return None
        targets = self._data.gather_targets(batch.indices)
        return self._data.rows(), targets, batch.mask, batch.indices

    def _own_rows(
        self, whole: bool, rows: Tensor | None
    ) -> tuple[list[Tensor], Tensor, Tensor, Tensor] | None:
        """All records of some nodes where they lie, if that is the batch; None for all rows."""
        found = self._all._whole_rows if whole or self._everyone_joins else None
        places = self._places if rows is None else rows if self._places is None else None
        if found is None or places is None:
            return found
        inputs, targets, mask, indices = found
        own = [inputs[place] for place in places.tolist()]
        return own, targets[places], mask[places], indices[places]

    def _coins(
        self, k: int, part: int, nodes: tuple[NodePlan, ...], indices: Tensor
    ) -> Tensor | None:
        """The public coins of records `[nodes, b]`, by their numbers, where gradients need them."""
        if not self._model.needs_coins:
            return None
        numbers = sent(np.array([node.node for node in nodes], np.int64), self._device)
        return record_coins(self.seed, k, part, numbers, indices)

    def _shares(self, rows: Tensor | None, indices: Tensor) -> Tensor | None:
        """How much each row of records `[nodes, b]` counts, where a record is several."""
        places = self._places if rows is None else rows if self._places is None else None
        return self._data.shares(indices, places)

    def _clip_counts(self, nodes: tuple[NodePlan, ...]) -> int | Tensor | None:
        """For how many records' rounding clipping is to allow, `[nodes]`, or all alike.

        None where batches have a fixed size: for so many. Else for all that a node has: a record
        that is there, or is drawn, would otherwise change what all others are clipped to.
        """
        if self._plan.config.train.sampling == "fixed" and not self._everyone_joins:
            return None
        counts = [node.records for node in nodes]
        if len(set(counts)) == 1:
            return counts[0]
        return sent(np.array(counts, np.int64), self._device)

    def _batch(
        self,
        k: int,
        part: int,
        whole: bool,
        rows: Tensor | None,
        nodes: tuple[NodePlan, ...],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Inputs, targets, mask and record numbers of some rows' batch; None for all rows here."""
        places = self._places if rows is None else rows if self._places is None else None
        if whole or self._everyone_joins:
            inputs, targets, mask, indices = self._all._whole
            if places is None:
                return inputs, targets, mask, indices
            return inputs[places], targets[places], mask[places], indices[places]
        # Mini-batches of one step that share no record are drawn once.
        drawn = self._disjoint_batches
        if drawn is None or (drawn.step, drawn.rows) != (k, nodes):
            drawn = sampling.disjoint_batches(self._plan, self._keys, k, self._device, nodes=nodes)
            self._disjoint_batches, self._gathered = drawn, self._read_together(drawn, places)
        batch = drawn.batch(part)
        if self._gathered is not None:
            inputs, targets = self._gathered
            return inputs[part], targets[part], batch.mask, batch.indices
        return (*self._data.gather(batch.indices, places), batch.mask, batch.indices)

    def _read_together(
        self, drawn: sampling.DisjointBatches, places: Tensor | None
    ) -> tuple[Tensor, Tensor] | None:
        """Records of all mini-batches of a step, where they are few: one read in place of many."""
        if drawn.together is None:
            return None
        indices = drawn.together.indices
        record = self._data.stored[0].numel()
        return None if indices.numel() * record > _FEW else self._data.gather(indices, places)


@dataclass
class _LastBatch:
    """Norms and losses of the last batch, without its sum; shared by a context and its parts."""

    batch: BatchGradient | None = None
    mask: Tensor | None = None
    rows: tuple[Sequence[NodePlan], Tensor] | None = None

    def keep(
        self, batch: BatchGradient, mask: Tensor, indices: Tensor, nodes: Sequence[NodePlan]
    ) -> None:
        self.batch, self.mask = BatchGradient(_NOTHING, batch.norms, batch.losses), mask
        self.rows = nodes, indices


_NOTHING = torch.empty(0)
