"""The entries of a gradient table: which numbers a gradient is kept as, and sums and norms of them.

A clipped gradient is kept one parameter at a time, as the factors of its outer products with the
clip factor inside the output gradients, or as one vector where that takes no more. Two factors are
never kept: inputs of a layer that are the record itself, which the data set holds, and the output
gradients of a bias where those of its weight are the same. Everything here sees an entry as
`layers.Outer`; a vector is an outer product with a one.

How much memory that takes (`table_need`) is known before it is allocated; entries lie in tensors,
or in files in their place (`mapped`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tacit.base.free_memory import host_bytes, in_words
from tacit.errors import InputError
from tacit.gradients.contributions import Contribution, Outer, Slot
from tacit.gradients.precision import exact_products
from tacit.gradients.stacked import StackedModel

_BLOCK_BYTES = 2**21

Entry = list[Outer]
"""The gradients of a batch `[nodes, b]`, one `Outer` a parameter."""


@dataclass(frozen=True)
class Shape:
    """How a table keeps the gradient by one parameter.

    Attributes:
        slot: the parameter.
        inputs: shape `[groups, positions, in]` of one record's input factor, None for a vector.
        gradients: shape `[groups, positions, out]` of the other; `[1, 1, size]` for a vector.
        from_record: the input factor is the record, and not kept.
        gradients_of: the name of the parameter whose output gradients are these, which are then
            not kept; empty otherwise.
    """

    slot: Slot
    inputs: tuple[int, ...] | None
    gradients: tuple[int, ...]
    from_record: bool = False
    gradients_of: str = ""

    @property
    def fields(self) -> dict[str, tuple[int, ...]]:
        """What is kept of one record: name to shape."""
        kept = {} if self.gradients_of else {f"{self.slot.name}.gradients": self.gradients}
        if self.inputs is not None and not self.from_record:
            kept[f"{self.slot.name}.inputs"] = self.inputs
        return kept

    @property
    def numbers(self) -> int:
        """How many numbers are kept of one record."""
        return sum(math.prod(shape) for shape in self.fields.values())


def _shape(outer: Outer, records: Tensor, before: Mapping[str, Shape]) -> Shape:
    """The cheapest way to keep gradients like these.

    They are by one parameter, at weights and records (the batch's inputs, `[nodes, b, ...]`)
    without accidental equalities; `before` are the shapes of the parameters before it, by name.
    """
    slot = outer.slot
    size = slot.stop - slot.start
    alike = outer.gradients_of.name if outer.gradients_of else ""
    if alike and before[alike].inputs is not None:
        return Shape(slot, None, (1, 1, size), gradients_of=alike)
    inputs = outer.inputs
    same_type = inputs.dtype == records.dtype and inputs.numel() == records.numel()
    factored = Shape(
        slot,
        tuple(inputs.shape[2:]),
        tuple(outer.gradients.shape[2:]),
        from_record=same_type and torch.equal(inputs.flatten(2), records.flatten(2)),
    )
    vector = Shape(slot, None, (1, 1, size))
    return factored if factored.numbers < vector.numbers else vector


def entries(
    parts: Sequence[Contribution], shapes: Sequence[Shape], factors: Tensor, records: Tensor
) -> Entry:
    """Gradients of a batch as a table with these shapes keeps them, clip factors multiplied in.

    Parts are finite wherever `factors` `[nodes, b]` is zero, as it is where a record is not
    `keepable`. `records` are the batch's inputs, `[nodes, b, ...]`.
    """
    found: dict[str, Outer] = {}
    for part, shape in zip(parts, shapes, strict=True):
        if shape.gradients_of:
            gradients = found[shape.gradients_of].gradients
            found[shape.slot.name] = _vector(shape.slot, gradients)
            continue
        outer = part.materialised().outer() if shape.inputs is None else part.outer()
        inputs = outer.inputs
        if shape.from_record:
            inputs = _record_factor(shape, records)
        scaled = outer.gradients * factors[:, :, None, None, None]
        found[shape.slot.name] = Outer(shape.slot, inputs, scaled)
    return list(found.values())


def keepable(
    parts: Sequence[Contribution], shapes: Sequence[Shape], records: Tensor, *, clipped: bool
) -> Tensor:
    """Which records a table with these shapes can keep, bool `[nodes, b]`.

    Not those for which a layer's input is another than the record, where it was the record when the
    shapes were found. They contribute nothing: to end the run would tell that there is one.
    """
    found = torch.ones(records.shape[:2], dtype=torch.bool, device=records.device)
    # Without clipping a record that is not finite counts, and differs from itself.
    spoilt = ~found if clipped else ~torch.isfinite(records.flatten(2)).all(dim=2)
    for part, shape in zip(parts, shapes, strict=True):
        if shape.from_record:
            same = part.outer().inputs == _record_factor(shape, records)
            found &= same.flatten(2).all(dim=2) | spoilt
    return found


def read(
    fields: Mapping[str, Tensor], shapes: Sequence[Shape], rows: Tensor, records: Tensor
) -> Entry:
    """The entries in `rows` `[nodes, b]` of a table's fields `[all records, ...]`.

    `records` are the inputs of the same records, `[nodes, b, ...]`, on the device of the result.
    """

    def field(name: str) -> Tensor:
        values = fields[name]
        found = values.index_select(0, rows.flatten().to(values.device))
        return found.view(*rows.shape, *values.shape[1:]).to(records.device)

    found: dict[str, Outer] = {}
    for shape in shapes:
        name = shape.slot.name
        if shape.gradients_of:
            found[name] = _vector(shape.slot, found[shape.gradients_of].gradients)
            continue
        gradients = field(f"{name}.gradients")
        if shape.inputs is None:
            found[name] = _vector(shape.slot, gradients)
            continue
        known = shape.from_record
        inputs = _record_factor(shape, records) if known else field(f"{name}.inputs")
        found[name] = Outer(shape.slot, inputs, gradients)
    return list(found.values())


def write(
    fields: Mapping[str, Tensor],
    shapes: Sequence[Shape],
    rows: Tensor,
    mask: Tensor,
    entry: Entry,
) -> None:
    """Keep the unmasked gradients of `entry` in `rows` `[nodes, b]` of the fields."""
    chosen = rows[mask]
    for shape, outer in zip(shapes, entry, strict=True):
        values = {"gradients": outer.gradients, "inputs": outer.inputs}
        for name in shape.fields:
            field = fields[name]
            kept = values[name.rpartition(".")[2]][mask].to(field.device)
            field.index_copy_(0, chosen.to(field.device), kept)


def differences(new: Entry, old: Entry, shapes: Sequence[Shape]) -> Entry:
    """`new` - `old`, in float64, as outer products summed over the positions of both.

    Where both have the same inputs, over their common positions.
    """
    found = []
    for one, other, shape in zip(new, old, shapes, strict=True):
        left, right = one.gradients.double(), other.gradients.double()
        if shape.inputs is None or shape.from_record:
            found.append(Outer(one.slot, one.inputs.double(), left - right))
        else:
            inputs = torch.cat([one.inputs, other.inputs], dim=3).double()
            found.append(Outer(one.slot, inputs, torch.cat([left, -right], dim=3)))
    return found


def numbers_beside(shapes: Sequence[Shape], dtype: torch.dtype) -> int:
    """Numbers of `dtype` that a record's new and old entry take, and their difference in float64.

    That is as it is, and weighted.
    """
    each = sum(math.prod(shape.gradients) + math.prod(shape.inputs or (0,)) for shape in shapes)
    return 2 * each + 4 * each * 8 // dtype.itemsize


def add(
    parts: Entry,
    weights: Tensor,
    everything: Tensor,
    sums: Tensor,
    running: Tensor,
    *,
    fresh: bool,
) -> None:
    """Add sum_r weight_r part_r to `sums`, and to `running` the same with other weights.

    Args:
        parts: `[nodes, b]`, in float64.
        weights: of `sums`, `[nodes, b]`.
        everything: weights of `running`, `[nodes, b]`; the same object where they are the same.
        sums: `[nodes, d]`, in float64.
        running: `[nodes, d]`, in float64.
        fresh: overwrite `sums`, whatever they hold.
    """

    def weighed(some: Entry, own: Tensor, out: Tensor) -> None:
        with exact_products(out.device):
            for part in some:
                part.add_to(out, own, 0)

    nodes, size = sums.shape
    # Few nodes at a time, so that a sum stays in the cache and takes no memory.
    step = min(nodes, max(1, _BLOCK_BYTES // (8 * size)))
    buffer = running.new_empty(step, size)
    for start in range(0, nodes, step):
        rows = slice(start, start + step)
        some = [Outer(part.slot, part.inputs[rows], part.gradients[rows]) for part in parts]
        found = buffer[: min(step, nodes - start)]
        weighed(some, everything[rows], found)
        running[rows] += found
        if weights is not everything:
            weighed(some, weights[rows], found)
        if fresh:
            sums[rows] = found
        else:
            sums[rows] += found


def _vector(slot: Slot, values: Tensor) -> Outer:
    """`values` `[nodes, b, ...]` as an outer product with one."""
    nodes, count = values.shape[:2]
    ones = values.new_ones(()).expand(nodes, count, 1, 1, 1)
    return Outer(slot, ones, values.reshape(nodes, count, 1, 1, -1))


def _record_factor(shape: Shape, records: Tensor) -> Tensor:
    """The records as an input factor `[nodes, b, groups, positions, in]`.

    What is not finite counts as zero: the gradient of such a record is kept as zero.
    """
    assert shape.inputs is not None
    finite = torch.nan_to_num(records, nan=0.0, posinf=0.0, neginf=0.0)
    return finite.reshape(*records.shape[:2], *shape.inputs)


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

    `mini_batch` is the records in a mini-batch; None for one entry a record.

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

    With m records in a mini-batch, entry e is the records e m, ..., e m + m - 1, the last of a node
    maybe fewer. None is for one entry a record.

    Raises:
        InputError: on `algorithm.table_batch` if it is below 1.
    """
    if mini_batch is None:
        return list(records)
    if mini_batch < 1:
        raise InputError("algorithm.table_batch", mini_batch, "must be at least one record")
    return [-(-count // mini_batch) for count in records]


def entry_shapes(model: StackedModel, mini_batch: int | None = None) -> tuple[Shape, ...]:
    """How a table keeps its entries: of single records, in the cheapest form of their gradients.

    Found from gradients at drawn weights and drawn records of all sizes, so that what is equal
    there is equal by construction.
    """
    if mini_batch is not None:  # all parameters together are one vector
        size = model.parameters_count
        return (Shape(Slot("parameters", (size,), 0, size), None, (1, 1, size)),)
    generator = torch.Generator().manual_seed(21)

    def drawn(like: Tensor) -> Tensor:
        size, wide = torch.randn(2, *like.shape, generator=generator, dtype=torch.float64)
        values: Tensor = size * wide.exp()
        return values.to(like)

    rows = () if model.unit_rows is None else (model.unit_rows,)
    inputs, targets = (values.expand(1, _PROBES, *rows, *values.shape) for values in model.examples)
    inputs = drawn(inputs) if inputs.is_floating_point() else inputs
    dtype = next(model.evaluated.parameters()).dtype
    start = model.start(1, dtype, inputs.device)
    mask = torch.ones(1, _PROBES, dtype=torch.bool, device=inputs.device)
    shares = start.new_ones(*mask.shape, *rows) if rows else None
    batch = inputs, targets, mask, None
    found = model.record_gradients(start + 0.05 * drawn(start), *batch, shares=shares)
    shapes: dict[str, Shape] = {}
    for part in found.parts:
        outer = part.outer()
        shapes[outer.slot.name] = _shape(outer, inputs, shapes)
    return tuple(shapes.values())


def available_bytes(device: torch.device | str = "cpu") -> int:
    """Bytes that could be allocated now without swapping, at most; an estimate, not a promise.

    On a CUDA device, its free memory; else the host's, see `tacit.base.free_memory`.
    """
    device = torch.device(device)
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return host_bytes()


def mapped(
    directory: Path, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Tensors of zeros that lie in files `NAME.bin`, new ones, readable by their owner only.

    The space is reserved, so that a full disk is found here and not at a later write.

    Raises:
        InputError: on `algorithm.table_directory` if the files cannot be made.
    """
    kind = np.dtype(str(dtype).removeprefix("torch."))
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return {
            name: _file_of_zeros(directory / f"{name}.bin", shape, kind)
            for name, shape in shapes.items()
        }
    except OSError as error:
        wanted = in_words(sum(math.prod(shape) for shape in shapes.values()) * kind.itemsize)
        raise InputError(
            "algorithm.table_directory",
            str(directory),
            f"must be a folder to write {wanted} of gradients into ({error.strerror or error})",
        ) from None


def _file_of_zeros(path: Path, shape: tuple[int, ...], kind: np.dtype[Any]) -> Tensor:
    # Another table may still hold a file of this name: it keeps what it has.
    path.unlink(missing_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        size = math.prod(shape) * kind.itemsize
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, size)
        else:
            os.truncate(file, size)
    finally:
        os.close(file)
    return torch.from_numpy(np.memmap(path, kind, "r+", shape=shape))
