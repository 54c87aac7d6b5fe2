"""One stored gradient a record, for variance reduction.

In units of a sum over the batch, with rate q, clipping bound C and table entries old_j:

    G_k = sum_{j in batch} clip_diff(new_j - old_j) + q * sum_{all j} old_j

with new_j = clip_C(grad_j), and afterwards old_j := new_j for j in the batch.
`GradientTable.replace` is the first sum and the renewal, `GradientTable.total` the second sum.
`clip_diff` scales the difference of two clipped gradients to norm C_d at most, or does nothing.

**What an entry can do.** Its norm is at most C, as it is kept: rounded to the run's dtype, clip
factor included. A gradient that is not finite, or has no bound, is kept as zero and contributes
zero. So, for one record's presence against a null record (zero-out), the record moves G_k by at
most (2 - q) C when drawn, C_d + q C where the difference is clipped, and q C when not drawn: the
shifts A and c of the private-state theorem for Poisson sampling, which needs record-wise coins.
Differences, running total and G_k are in float64, and entries are clipped to a little less than C,
by what rounding may add over all steps: `docs/proofs/clipped-sums.md`.

**Mini-batches.** An entry may stand for a fixed mini-batch of m records, with the sum of their
clipped gradients; the draw is then of whole mini-batches. The same (2 - q) C and q C hold for one
record, without a clipped difference. With one, it clips the difference of the *sums*; projection
onto a ball being non-expansive, a record moves it by at most min(2 C, 2 C_d). But what the other
records of a mini-batch do depends on the same coin as what the record does: the private-state
theorem, which asks that the null record's run does not, cannot be used; bound the shifts given
the pattern of draws.

**The running total** is kept in float64 and follows every renewal by new - old, which is formed
in float64 too. It drifts from the true sum by at most 2^-53 of J C a step.

A table is private state: it must not leave its node, and epsilon does not cover it.

**By an anchor.** `clipped_difference` sums over a batch each record's clipped gradient at one point
less that at another, and keeps nothing. With a bound C_d the difference of each record is scaled to
norm C_d at most, by an upper bound on its norm (`clipping.norm_bounds`), and added up in float64: a
record moves the sum that the machine returns by C_d at most (`docs/proofs/clipped-sums.md`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from tacit.errors import InputError
from tacit.gradients.clipping import (
    CANCELLATION,
    Clip,
    RecordGradients,
    aimed,
    check_clip,
    clip_factors,
    norm_bounds,
)
from tacit.gradients.contributions import CHUNK, Dense, all_known_true
from tacit.gradients.precision import exact_products
from tacit.gradients.stacked import BatchGradient, StackedModel
from tacit.gradients.table_storage import (
    Entry,
    Shape,
    add,
    differences,
    entries,
    entries_of,
    entry_shapes,
    keepable,
    mapped,
    numbers_beside,
    read,
    write,
)

TOTAL = "total"


class Records(Protocol):
    """The records of all nodes, as `tacit.data.StackedData` has them."""

    @property
    def counts(self) -> Tensor:
        """How many records each node has, int64 `[nodes]`."""

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets `[nodes, width, ...]` of local record numbers `[nodes, width]`."""

    def shares(self, indices: Tensor) -> Tensor | None:
        """How much each row of these records counts; None where a record is one row."""


@dataclass(frozen=True)
class Replacement:
    """What `GradientTable.replace` found.

    Attributes:
        difference: float64 `[nodes, d]`, the sum over the batch of clipped differences new - old.
        batch: norms `[nodes, r]` before clipping and losses `[nodes, r]` of the records that were
            evaluated; its `total` is `difference`.
        mask: `[nodes, r]`, True for those records. r is the width of the batch, times m with
            mini-batches of m.
    """

    difference: Tensor
    batch: BatchGradient
    mask: Tensor


@dataclass
class GradientTable:
    """The stored gradients of all nodes' records; made by `build`.

    Its state is `tensors()`; records, model and weights are not part of it.

    Args:
        model: computes the gradients.
        data: every node's records.
        shapes: how the gradient by each parameter is kept.
        fields: the entries, `[all of them, ...]` each; see `Shape.fields`.
        running: the running total, float64 `[nodes, d]`.
        mini_batch: records in a mini-batch; None for one entry a record.
        steps: how often entries are renewed, at most.
    """

    model: StackedModel
    data: Records
    shapes: tuple[Shape, ...]
    fields: Mapping[str, Tensor]
    running: Tensor
    mini_batch: int | None
    steps: int

    def __post_init__(self) -> None:
        counts = entries_of(self.data.counts.tolist(), self.mini_batch)
        self._counts = torch.tensor(counts, device=self.running.device)
        self._offsets = self._counts.cumsum(0) - self._counts

    @staticmethod
    def build(
        model: StackedModel,
        data: Records,
        at: Tensor,
        clip: Clip | None,
        *,
        steps: int,
        mini_batch: int | None = None,
        directory: Path | None = None,
    ) -> GradientTable:
        """A table of every record's clipped gradient at `at`, computed in chunks.

        Args:
            model: computes the gradients.
            data: every node's records.
            at: `[nodes, d]`, each node's weights; the table has their dtype and device.
            clip: bound C on each record's gradient, or None.
            steps: how often entries will be renewed, at most: rounding adds up.
            mini_batch: records in a mini-batch; None for one entry a record.
            directory: where to keep the entries in memory-mapped files, which replace files of
                the same names; None for tensors on the device. They hold private gradients.

        Raises:
            InputError: on `algorithm.table_directory` if the files cannot be made there; on
                `algorithm.table_batch` if it is below 1; on `algorithm.clip`.
        """
        shapes = entry_shapes(model, mini_batch)
        count = sum(entries_of(data.counts.tolist(), mini_batch))
        kept = {name: (count, *rest) for shape in shapes for name, rest in shape.fields.items()}
        fields = (
            {name: torch.zeros(s, dtype=at.dtype, device=at.device) for name, s in kept.items()}
            if directory is None
            else mapped(directory, kept, at.dtype)
        )
        running = torch.zeros(at.shape, dtype=torch.float64, device=at.device)
        table = GradientTable(model, data, shapes, fields, running, mini_batch, steps + 1)
        # A table of zeros, of which every entry is renewed.
        most, step = int(table._counts.max()), table._at_once(at)
        for start in range(0, most, step):
            numbers = torch.arange(start, min(start + step, most), device=at.device)
            mask = numbers < table._counts.unsqueeze(1)
            table.replace(at, numbers * mask, mask, clip, None)
        return table

    def total(self) -> Tensor:
        """The sum of each node's entries, float64 `[nodes, d]`, a new tensor."""
        return self.running.clone()

    def replace(
        self,
        at: Tensor,
        indices: Tensor,
        mask: Tensor,
        clip: Clip | None,
        clip_difference: Clip | None,
    ) -> Replacement:
        """Sum the differences between a batch's gradients at `at` and its entries; renew these.

        Args:
            at: `[nodes, d]`, each node's weights.
            indices: int64 `[nodes, b]`, numbers of entries within each node, each at most once;
                masked slots may hold anything from 0 to the node's number of entries.
            mask: bool `[nodes, b]`, True for entries of the batch.
            clip: bound C on each record's gradient, or None; entries keep to the C they came with.
            clip_difference: bound C_d on each entry's difference, or None. The running total
                follows the differences as they are.

        Raises:
            InputError: on `algorithm.clip` or `algorithm.clip_difference` unless positive and
                finite.
            ValueError: an entry does not exist, or is twice in the batch.
        """
        for key, bound in (("clip", clip), ("clip_difference", clip_difference)):
            if bound is not None:
                check_clip(bound, f"algorithm.{key}")
        self._check(indices, mask)
        sums = torch.empty_like(self.running)
        width, step = indices.shape[1], self._at_once(at)
        found = []
        clip = self._aimed(clip)
        aim: Clip | None = None
        if clip_difference is not None:
            positions = 2 * self.model.positions
            aim = aimed(clip_difference, self._counts, torch.float64, positions)
        for start in range(0, width, step):
            part = slice(start, start + step)
            chunk = indices[:, part], mask[:, part]
            found.append(self._renew(at, *chunk, clip, aim, sums, fresh=start == 0))
        if not found:
            empty = at.new_zeros(at.shape[0], 0)
            return Replacement(sums.zero_(), BatchGradient(sums, empty, empty), mask)
        norms, losses, evaluated = (torch.cat(parts, dim=1) for parts in zip(*found, strict=True))
        return Replacement(sums, BatchGradient(sums, norms, losses), evaluated)

    def tensors(self) -> dict[str, Tensor]:
        """The state, by name, not copied: private, and as large as the table."""
        return {**self.fields, TOTAL: self.running}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the state `tensors` of a table for the same model, records and options.

        Raises:
            InputError: on `checkpoint` if names or shapes are not those of this table.
        """
        own = self.tensors()
        given = {name: tuple(values.shape) for name, values in tensors.items()}
        right = {name: tuple(values.shape) for name, values in own.items()}
        if given != right:
            raise InputError("checkpoint", given, f"this gradient table holds {right}")
        for name, values in own.items():
            values.copy_(tensors[name])

    def _aimed(self, clip: Clip | None) -> Tensor | None:
        """What entries are clipped to, `[nodes]`, so that C holds for G_k after all steps.

        The running total errs by at most J u C a step, the sums of a step's differences by
        J^2 u C, and that of a chunk with the record by its own rounding.
        """
        if clip is None:
            return None
        unit = torch.finfo(torch.float64).eps / 2
        count = self._counts.double()
        chunk, positions = count.clamp(max=CHUNK), self.model.positions
        terms = 1.0 if positions == 1 else CANCELLATION
        own = 2 * terms * chunk * (2 * chunk * positions + 16)
        share = 2 * unit * self.steps * (count * (count + 13) + own)
        bound = torch.as_tensor(clip, dtype=torch.float64, device=count.device)
        return bound / (1 + share)

    def _at_once(self, at: Tensor) -> int:
        return self.model.records_at_once(at, numbers_beside(self.shapes, at.dtype))

    def _renew(
        self,
        at: Tensor,
        indices: Tensor,
        mask: Tensor,
        clip: Clip | None,
        aim: Clip | None,
        sums: Tensor,
        *,
        fresh: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`replace` for a chunk, added to `sums` unless `fresh`; both bounds are aimed at.

        Returns norms, losses and mask of the chunk's records.
        """
        evaluate = self._records if self.mini_batch is None else self._mini_batches
        new, records, seen = evaluate(at, indices, mask, clip)
        with torch.no_grad():
            rows = self._offsets.unsqueeze(1) + torch.where(mask, indices, 0)
            old = read(self.fields, self.shapes, rows, records)
            parts = differences(new, old, self.shapes)
            everything = mask.to(torch.float64)
            weights = everything
            if aim is not None:
                bounds = norm_bounds([part.sizes() for part in parts], torch.float64)
                weights = clip_factors(bounds, mask, aim, torch.float64)[0]
            add(parts, weights, everything, sums, self.running, fresh=fresh)
            write(self.fields, self.shapes, rows, mask, new)
        return seen

    def _records(
        self, at: Tensor, indices: Tensor, mask: Tensor, clip: Clip | None
    ) -> tuple[Entry, Tensor, tuple[Tensor, Tensor, Tensor]]:
        """New entries; the inputs of their records; norms, losses and mask."""
        numbers = torch.where(mask, indices, 0)
        inputs, targets = self.data.gather(numbers)
        shares = self.data.shares(numbers)
        found = self.model.record_gradients(at, inputs, targets, mask, clip, shares=shares)
        new, kept = _entry(found, self.shapes, inputs)
        norms = (
            found.norms.masked_fill(~kept & mask, math.inf) if found.norms.numel() else found.norms
        )
        return new, inputs, (norms, found.losses, mask)

    def _mini_batches(
        self, at: Tensor, indices: Tensor, mask: Tensor, clip: Clip | None
    ) -> tuple[Entry, Tensor, tuple[Tensor, Tensor, Tensor]]:
        """As `_records`, where entries are mini-batches."""
        assert self.mini_batch is not None
        within = torch.arange(self.mini_batch, device=at.device)
        found: list[BatchGradient] = []
        masks: list[Tensor] = []
        for slot in range(indices.shape[1]):
            numbers = indices[:, slot, None] * self.mini_batch + within
            present = mask[:, slot, None] & (numbers < self.data.counts.unsqueeze(1))
            own = torch.where(present, numbers, 0)
            shares = self.data.shares(own)
            batch = *self.data.gather(own), present
            found.append(self.model.gradient(at, *batch, clip, shares=shares))
            masks.append(present)
        sums = Dense(self.shapes[0].slot, torch.stack([batch.total for batch in found], dim=1))
        new = entries([sums], self.shapes, mask.to(at.dtype), at)
        norms, losses = (
            torch.cat([getattr(batch, name) for batch in found], dim=1)
            for name in ("norms", "losses")
        )
        return new, at, (norms, losses, torch.cat(masks, dim=1))

    def _check(self, indices: Tensor, mask: Tensor) -> None:
        if bool((mask & ((indices < 0) | (indices >= self._counts.unsqueeze(1)))).any()):
            raise ValueError("a batch names an entry that its node does not have")
        rows = (self._offsets.unsqueeze(1) + indices)[mask]
        if len(torch.unique(rows)) < len(rows):
            raise ValueError("a batch names an entry twice")


def refuse_coins(model: StackedModel) -> None:
    """Raise `InputError` if a record's gradient changes from step to step by its coin.

    On `task.model` for the masks of dropout, on `task.augmentation` for fresh views.

    For an algorithm that keeps or subtracts the gradients of records: what it subtracts must be the
    very vector that it has added before (`docs/proofs/clipped-sums.md`).
    """
    if model.drops:
        raise InputError(
            "task.model",
            "Dropout",
            "an algorithm that keeps or subtracts the gradients of records needs them without "
            "dropout, whose masks change from step to step; use p=0, or another algorithm",
        )
    if model.augmentation is not None:
        raise InputError(
            "task.augmentation",
            model.augmentation.name,
            "an algorithm that keeps or subtracts the gradients of records needs them without "
            "augmentation, whose views change from step to step; leave it out, or use another "
            "algorithm",
        )


def clipped_difference(
    model: StackedModel,
    shapes: tuple[Shape, ...],
    points: tuple[Tensor, Tensor],
    batch: tuple[Tensor, Tensor, Tensor],
    clip: Clip | None,
    bound: Clip | None,
    records: Tensor,
    shares: Tensor | None = None,
) -> BatchGradient:
    """Sum over a batch of clipped gradients at one point less those at another.

    Args:
        model: computes them.
        shapes: of `entry_shapes`, for this model.
        points: where, and what is subtracted; `[nodes, d]` each.
        batch: inputs, targets and mask `[nodes, b, ...]`.
        clip: bound C of each of the two gradients; None leaves them.
        bound: C_d of each record's difference; None leaves it.
        records: how many each node has, `[nodes]`: gradients are clipped as in a sum over all of
            them, so that a snapshot's are the very ones that are subtracted here, and so are
            differences, so that no record changes what others are clipped to.
        shares: of the rows of records, as `gradient` takes them.

    Returns:
        `total` `[nodes, d]`, the sum in float64; norms and losses `[nodes, b]` are those at the
        first point.

    Raises:
        InputError: on `algorithm.clip_difference` unless positive and finite, and as
            `StackedModel.gradient`.
    """
    inputs, targets, mask = batch
    if bound is None:
        found, other = (
            model.gradient(at, inputs, targets, mask, clip, counts=records, shares=shares)
            for at in points
        )
        total = found.total.double().sub_(other.total)
        return BatchGradient(total, found.norms, found.losses)
    check_clip(bound, "algorithm.clip_difference")
    at = points[0]
    total = torch.zeros_like(at, dtype=torch.float64)
    if mask.numel() == 0:
        empty = at.new_zeros(mask.shape)
        return BatchGradient(total, empty, empty.clone())
    step = model.records_at_once(at, numbers_beside(shapes, at.dtype))
    # Terms are those of two gradients.
    if clip is not None:
        clip = model.aimed(clip, records, at.dtype)
    aim = aimed(bound, records, torch.float64, 2 * model.positions)
    norms, losses = [], []
    for start in range(0, mask.shape[1], step):
        part = slice(start, start + step)
        some, labels, present = inputs[:, part], targets[:, part], mask[:, part]
        own = None if shares is None else shares[:, part]
        found_here = [
            model.record_gradients(point, some, labels, present, clip, shares=own)
            for point in points
        ]
        with torch.no_grad(), exact_products(at.device):
            known = some.to(at) if some.is_floating_point() else some.to(at.device)
            new, old = (_entry(found, shapes, known)[0] for found in found_here)
            parts = differences(new, old, shapes)
            bounds = norm_bounds([part.sizes() for part in parts], torch.float64)
            weights = clip_factors(bounds, present, aim, torch.float64)[0]
            for one in parts:
                one.add_to(total, weights, 1)
        norms.append(found_here[0].norms)
        losses.append(found_here[0].losses)
    return BatchGradient(total, torch.cat(norms, dim=1), torch.cat(losses, dim=1))


def _entry(
    found: RecordGradients, shapes: Sequence[Shape], records: Tensor
) -> tuple[Entry, Tensor]:
    """Gradients as a table keeps them, and which of the `records` `[nodes, b, ...]` it can keep."""
    kept = keepable(found.parts, shapes, records, clipped=bool(found.norms.numel()))
    parts = found.parts
    if not all_known_true(kept):
        parts = [part.cleaned(kept) for part in parts]
    return entries(parts, shapes, found.factors * kept, records), kept
