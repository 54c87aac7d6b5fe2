"""What a gradient table keeps, and the memory that takes: known before it is allocated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tacit.errors import InputError
from tacit.free_memory import in_words
from tacit.gradients.stacked import StackedModel
from tacit.gradients.table.parts import Shape, shapes_of, whole

__all__ = ["TableNeed", "entries_of", "entry_shapes", "table_need"]

_PROBES = 2


@dataclass(frozen=True)
class TableNeed:
    """The memory that a table takes, known before it is allocated.

    Attributes:
        kind: `factored` where some parameter's gradients are kept as factors, `dense` where none
            are, `mini-batches` where an entry is a sum over a mini-batch.
        entries: how many entries all nodes have: records or mini-batches.
        numbers_per_record: numbers in one entry.
        bytes: of all entries, and of the running total in float64.
    """

    kind: Literal["factored", "dense", "mini-batches"]
    entries: int
    numbers_per_record: int
    bytes: int

    def describe(self) -> str:
        """One line for the plan."""
        what = "mini-batches" if self.kind == "mini-batches" else "records"
        kept = "factors and vectors" if self.kind == "factored" else "whole gradients"
        return (
            f"gradient table: {self.entries:,} {what}, {self.numbers_per_record:,} numbers each "
            f"({kept}), {in_words(self.bytes)}"
        )


def table_need(
    model: StackedModel, records: Sequence[int], dtype: torch.dtype, *, mini_batch: int | None
) -> TableNeed:
    """What a table for nodes with these numbers of records takes; computes a few gradients.

    Args:
        model: whose gradients are kept.
        records: how many each node has.
        dtype: of the run.
        mini_batch: records in a mini-batch; None for one entry a record.

    Raises:
        InputError: on `algorithm.table_batch` if it is below 1.
    """
    shapes = entry_shapes(model, mini_batch)
    numbers = sum(shape.numbers for shape in shapes)
    count = sum(entries_of(records, mini_batch))
    factored = any(shape.inputs is not None for shape in shapes)
    return TableNeed(
        kind="mini-batches" if mini_batch else "factored" if factored else "dense",
        entries=count,
        numbers_per_record=numbers,
        bytes=count * numbers * dtype.itemsize + 8 * len(records) * model.parameters_count,
    )


def entries_of(records: Sequence[int], mini_batch: int | None) -> list[int]:
    """How many entries each node has: what `indices` of `GradientTable.replace` number.

    Args:
        records: how many each node has.
        mini_batch: records m in a mini-batch: entry e is the records e m, ..., e m + m - 1, the
            last of a node maybe fewer. None for one entry a record.

    Raises:
        InputError: on `algorithm.table_batch` if it is below 1.
    """
    if mini_batch is None:
        return list(records)
    if mini_batch < 1:
        raise InputError("algorithm.table_batch", mini_batch, "must be at least one record")
    return [-(-count // mini_batch) for count in records]


def entry_shapes(model: StackedModel, mini_batch: int | None) -> tuple[Shape, ...]:
    """How a table keeps its entries.

    Found from gradients at drawn weights and drawn records of all sizes, so that what is equal
    there is equal by construction.
    """
    if mini_batch is not None:
        return whole(model.parameters_count)
    generator = torch.Generator().manual_seed(21)

    def drawn(like: Tensor) -> Tensor:
        size, wide = torch.randn(2, *like.shape, generator=generator, dtype=torch.float64)
        values: Tensor = size * wide.exp()
        return values.to(like)

    inputs, targets = (values.expand(1, _PROBES, *values.shape) for values in model.examples)
    inputs = drawn(inputs) if inputs.is_floating_point() else inputs
    dtype = next(model.evaluated.parameters()).dtype
    start = model.start(1, dtype, inputs.device)
    mask = torch.ones(1, _PROBES, dtype=torch.bool, device=inputs.device)
    found = model.record_gradients(start + 0.05 * drawn(start), inputs, targets, mask, None)
    return shapes_of(found.parts, inputs)
