"""The records of many nodes in one tensor, so that every node's batch is one indexed read.

Images are kept as the bytes that they came from: a quarter of the memory, and the very same
numbers. A pixel of most data sets is a byte, and what a model takes is the byte over 255. Numbers
that are all of this kind can be kept as bytes and be divided anew when they are read: the division
of two numbers in float32 has one right result, so that no bit differs. Whether they are is tried
out and not assumed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Sized
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.data.datasets import Dataset
from tacit.data.units import Ids, UnitRule, Units, own_units, stacked_units
from tacit.errors import InputError
from tacit.gradients.inputs import Packed

_WHITE = 255
_AT_ONCE = 2**15  # numbers, which with their bytes fit a core's own cache


def to_bytes(values: Tensor) -> Tensor | None:
    """The bytes of which all numbers are 255ths, bit for bit; None where a number is another.

    `values` `[records, ...]` are on the CPU, of any type, and only float32 can be 255ths. The bytes
    are uint8 of the same shape: `from_bytes` gives `values` back.
    """
    if values.dtype != torch.float32 or not values.numel():
        return None
    rows = values.detach().reshape(len(values), -1).numpy()
    found = np.empty(rows.shape, np.uint8)
    white, every = np.float32(_WHITE), max(1, _AT_ONCE // rows.shape[1])
    with np.errstate(all="ignore"):  # whatever is no 255th is found out below
        for start in range(0, len(rows), every):
            part, into = rows[start : start + every], found[start : start + every]
            np.copyto(into, np.rint(part * white), casting="unsafe")
            again = np.divide(into, white, dtype=np.float32)
            # As bits: a negative zero is equal to a byte's zero, and is another number.
            if not np.array_equal(again.view(np.int32), part.view(np.int32)):
                return None
    return torch.from_numpy(found).view(values.shape)


def from_bytes(values: Tensor) -> Tensor:
    """Bytes over 255, float32."""
    return values.to(torch.float32).div_(_WHITE)


@dataclass(frozen=True, eq=False)
class StackedData:
    """The records of all nodes of this process, one node after the other.

    With `units`, a record is a unit, and what lies here are its rows: rows are what `inputs_of` and
    `rows` give, `offsets` and `sizes` count, and records what `gather` reads and `counts` counts.
    Without, each row is a record.

    `stored` `[total, ...]` are inputs as they are kept; with `bytes` they are such, which are
    divided when they are read. `targets` are `[total, ...]`. Of each node `offsets`, int64
    `[nodes]`, is where its rows start, and `sizes`, int64 `[nodes]`, how many it has. `packed` is
    how several inputs of a record lie in what is stored; None: it is the one input.
    """

    stored: Tensor
    targets: Tensor
    offsets: Tensor
    sizes: Tensor
    bytes: bool = False
    units: Units | None = None
    packed: Packed | None = None

    @property
    def counts(self) -> Tensor:
        """How many records each node has, int64 `[nodes]`: units, or else rows."""
        return self.sizes if self.units is None else self.units.sizes

    @property
    def firsts(self) -> Tensor:
        """The number in all of each node's first record, int64 `[nodes]`: a unit or a row."""
        return self.offsets if self.units is None else self.units.offsets

    @property
    def inputs(self) -> Tensor:
        """All inputs `[total, ...]`; where they are kept as bytes, in memory of their own."""
        return from_bytes(self.stored) if self.bytes else self.stored

    @property
    def first(self) -> Dataset:
        """The first record alone, if there is one: what shape and type they have."""
        row = torch.arange(min(1, len(self.targets)), device=self.targets.device)
        return Dataset(self.inputs_of(row), self.targets[:1], packed=self.packed)

    def inputs_of(self, rows: Tensor) -> Tensor:
        """The inputs of some records, by their int64 numbers in all: `[len(rows), ...]`."""
        values = _read(self.stored, rows)
        return from_bytes(values) if self.bytes else values

    def rows(self) -> list[Tensor]:
        """Each node's inputs `[its records, ...]`, where they lie unless they are kept as bytes."""
        return list(torch.split(self.inputs, self.sizes.tolist()))

    def gather(self, indices: Tensor, nodes: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Read the same number of records from every node, or from some, by default all.

        `indices` are int64 `[nodes, width]` or `[batches, nodes, width]`, record numbers within
        each node. They are not checked; slots that a mask hides hold 0. `nodes` are int64 rows of
        those that are read.

        Given are inputs and targets, of the shape of `indices` and then that of a record's: of
        units it begins with `rule.most` rows, of which those that have no share repeat one.
        """
        rows = self._numbers(indices, nodes)
        inputs, targets = (
            values.reshape(*rows.shape, *values.shape[1:])
            for values in (self.inputs_of(rows.reshape(-1)), _read(self.targets, rows.reshape(-1)))
        )
        return inputs, targets

    def shares(self, indices: Tensor, nodes: Tensor | None = None) -> Tensor | None:
        """How much each row that `gather` reads counts, float64; None where a record is one."""
        if self.units is None:
            return None
        own = self.firsts if nodes is None else self.firsts[nodes]
        return self.units.shares(own.unsqueeze(1) + indices)

    def gather_targets(self, indices: Tensor) -> Tensor:
        """The targets that `gather` reads, alone."""
        rows = self._numbers(indices, None)
        return _read(self.targets, rows.reshape(-1)).reshape(*rows.shape, *self.targets.shape[1:])

    def _numbers(self, indices: Tensor, nodes: Tensor | None) -> Tensor:
        """Numbers in all of the rows of records."""
        own = self.firsts if nodes is None else self.firsts[nodes]
        records = own.unsqueeze(1) + indices
        return records if self.units is None else self.units.rows(records)


_FEW = 1 << 18


def _read(values: Tensor, rows: Tensor) -> Tensor:
    """Some rows of `values`; few numbers on one thread.

    Threads meet at the end of a read, and where others use the machine, one that is waited for may
    come a time slice later: then 100,000 numbers took 6 ms in place of 0.03.
    """
    if values.device.type == "cpu" and rows.numel() * math.prod(values.shape[1:]) <= _FEW:
        return torch.from_numpy(values.numpy().take(rows.numpy(), axis=0))
    return values.index_select(0, rows)


def stack(
    datasets: Sequence[Dataset],
    dtype: torch.dtype,
    device: torch.device | str,
    rule: UnitRule | None = None,
    hosted: Sequence[int] = (),
) -> StackedData:
    """Lay the data sets of nodes in one tensor.

    `dtype` is that of inputs and of floating targets; integers stay as they are. With a `rule`,
    records are units, which all data sets know, of the nodes `hosted`.

    Raises:
        InputError: on `nodes` if there are none, on `nodes[i]` if a node differs from node 0 in
            the shape of its records or in the kind of its targets.
    """
    if not datasets:
        raise InputError("nodes", [], "must be at least one data set")
    first = _layout(datasets[0])
    for node, dataset in enumerate(datasets):
        if _layout(dataset) != first:
            raise InputError(f"nodes[{node}]", _layout(dataset), f"must be as node 0: {first}")
    units = None
    if rule is not None:
        own = [
            own_units(_known(dataset), rule, node)
            for node, dataset in zip(hosted, datasets, strict=True)
        ]
        datasets = [part.chosen(one.rows) for part, one in zip(datasets, own, strict=True)]
        units = stacked_units(own, rule, device)
    stored, as_bytes = _stored([dataset.inputs for dataset in datasets], dtype, device)
    targets = torch.cat([_cast(dataset.targets, dtype, device) for dataset in datasets])
    places = _places(datasets, device)
    return StackedData(stored, targets, *places, as_bytes, units, datasets[0].packed)


def stack_parts(
    dataset: Dataset,
    parts: Sequence[NDArray[np.int64]],
    dtype: torch.dtype,
    device: torch.device | str,
    rule: UnitRule | None = None,
    hosted: Sequence[int] = (),
) -> StackedData:
    """What `stack` makes of the parts of a data set, each record copied once and not twice.

    `parts` are the record numbers of each node, as `partition` gives them; all else is as in
    `stack`.
    """
    units = None
    if rule is not None:
        ids = _known(dataset)
        own = [own_units(ids[part], rule, node) for node, part in zip(hosted, parts, strict=True)]
        parts = [part[one.rows] for part, one in zip(parts, own, strict=True)]
        units = stacked_units(own, rule, device)
    order = torch.from_numpy(np.concatenate(parts))
    stored, as_bytes = _stored([dataset.inputs], dtype, device, order)
    targets = _cast(dataset.targets[order], dtype, device)
    places = _places(parts, device)
    return StackedData(stored, targets, *places, as_bytes, units, dataset.packed)


def _known(dataset: Dataset) -> Ids:
    assert dataset.units is not None  # or there is no rule for them
    return dataset.units


def _places(parts: Sequence[Sized], device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Where each node's records start, and how many they are.

    Of a node without records that is a place where one is: slots that a mask hides are read there.
    """
    sizes = torch.tensor([len(part) for part in parts], dtype=torch.int64)
    starts = (sizes.cumsum(0) - sizes).clamp(max=max(0, int(sizes.sum()) - 1))
    return starts.to(device), sizes.to(device)


def _stored(
    parts: Sequence[Tensor],
    dtype: torch.dtype,
    device: torch.device | str,
    order: Tensor | None = None,
) -> tuple[Tensor, bool]:
    """Inputs of all nodes as they are kept, in this order if one is given; whether as bytes.

    As bytes on the CPU alone: an accelerator divides by multiplying, which differs in a last bit.
    """
    chosen: list[Tensor] = []
    as_bytes = dtype == torch.float32 and torch.device(device).type == "cpu"
    for part in parts if as_bytes else ():
        packed = to_bytes(part)
        if packed is None:
            as_bytes = False
            break
        chosen.append(packed)
    if not as_bytes:
        chosen = [_cast(part, dtype, device) for part in parts]
    if order is not None:
        return chosen[0][order], as_bytes
    return torch.cat(chosen), as_bytes


def _layout(dataset: Dataset) -> str:
    """What all nodes must share, in words."""
    kind = "floating" if dataset.targets.is_floating_point() else "integer"
    inputs, targets = str(list(dataset.inputs.shape[1:])), list(dataset.targets.shape[1:])
    if dataset.packed is not None:
        inputs = dataset.packed.words
    return f"inputs {inputs} and {kind} targets {targets} a record"


def _cast(values: Tensor, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    return values.to(device, dtype if values.is_floating_point() else None)
