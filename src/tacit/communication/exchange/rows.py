"""Weighted sums of rows: the one way in which messages are mixed, in one process or in many.

The nodes of a process are rows of a tensor; what came from other processes are rows of a second
one. A sum over few in-neighbours is taken in ascending order of the source, wherever that lies, so
that it is the same to the last bit however nodes are placed.

`Server` is that of federated methods: it averages, and keeps clients' last messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.topology.mixing import Weights

__all__ = ["Mixer", "Server", "compile_rows", "mean_of_rows"]

# Up to this many in-neighbours (self included) scaled adds beat a matrix product.
_FEW_NEIGHBOURS = 4
# Up to this many nodes, a whole matrix of weights beats a sparse one, or takes little memory.
_WHOLE_NODES = 1024
# Up to this many pieces, rows are read where they lie; else they are gathered first.
_FEW_RUNS = 8


Runs = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class _Slot:
    """One in-neighbour of some rows: row i weighs by `weights[i]` what it reads of another.

    Attributes:
        weights: `[rows]`.
        sources: what each reads, `[rows]`: a row of this process, or, counted on from these, one
            that came.
        runs: the same as (to, from, length), where rows that follow each other read rows that
            follow each other: of a ring or an exponential graph two, of a node itself one; None
            where these are many.
    """

    weights: Tensor
    sources: Tensor
    runs: Runs | None


@dataclass(frozen=True)
class _Few:
    """Sums of some rows over few in-neighbours.

    With one peer a step and `[50, 101,770]` numbers, reading rows where they lie takes 1.5 ms and
    gathering them 3.8.

    Attributes:
        rows: which rows, ascending, `[rows]`.
        slots: in ascending order of the source.
    """

    rows: Tensor
    slots: tuple[_Slot, ...]

    def into(self, mixed: Tensor, own: Tensor, came: Tensor | None) -> None:
        """Write the sums to the rows of `mixed` `[nodes, ...]`."""
        first, *others = self.slots
        if any(slot.runs is None for slot in self.slots):
            everything = own if came is None else torch.cat([own, came])
            total = _gathered(everything, first)
            for slot in others:
                total.addcmul_(everything.index_select(0, slot.sources), _column(slot, own))
            mixed.index_copy_(0, self.rows, total)
            return
        for at, read, weights in _pieces(first, own, came):
            torch.mul(read, weights, out=mixed[at])
        for slot in others:
            for at, read, weights in _pieces(slot, own, came):
                mixed[at].addcmul_(read, weights)


def _gathered(everything: Tensor, slot: _Slot) -> Tensor:
    return everything.index_select(0, slot.sources).mul_(_column(slot, everything))


def _column(slot: _Slot, like: Tensor) -> Tensor:
    return slot.weights.view((-1,) + (1,) * (like.dim() - 1))


def _pieces(
    slot: _Slot, own: Tensor, came: Tensor | None
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Rows to write to, what they read, and its weights."""
    column, done = _column(slot, own), 0
    assert slot.runs is not None
    for to, start, length in slot.runs:
        read = own[start : start + length]
        if start >= len(own):
            assert came is not None
            read = came[start - len(own) :][:length]
        yield slice(to, to + length), read, column[done : done + length]
        done += length


@dataclass(frozen=True)
class _Product:
    """Sums over many in-neighbours: a matrix product.

    Attributes:
        own: weights of the rows of this process, `[rows, own]`; a sparse tensor for many nodes.
        came: of the rows that come, `[rows, came]`, likewise.
    """

    own: Tensor
    came: Tensor

    def into(self, mixed: Tensor, own: Tensor) -> None:
        total, rows = mixed.view(len(mixed), -1), own.reshape(len(own), -1)
        if self.own.is_sparse:  # whose product has no `out`
            total.zero_().addmm_(self.own, rows)
        else:
            torch.matmul(self.own, rows, out=total)

    def add(self, mixed: Tensor, came: Tensor) -> None:
        mixed.view(len(mixed), -1).addmm_(self.came, came.reshape(len(came), -1))


@dataclass(frozen=True)
class Mixer:
    """The sums of this process's nodes at one step: what needs no message first.

    Attributes:
        few: of the nodes that wait for nothing, and of those that do; or
        product: of all nodes.
    """

    few: tuple[_Few, ...]
    waiting: tuple[_Few, ...]
    product: _Product | None

    def begin(self, own: Tensor) -> Tensor:
        """A new tensor like `own` `[nodes, ...]`, with all that can be computed of it alone."""
        mixed = torch.empty_like(own)
        if self.product is not None:
            self.product.into(mixed, own)
        for part in self.few:
            part.into(mixed, own, None)
        return mixed

    def finish(self, mixed: Tensor, own: Tensor, came: Tensor) -> Tensor:
        """The same with what came, `[others, ...]`, in the order that was compiled."""
        if self.product is not None and len(came):
            self.product.add(mixed, came)
        for part in self.waiting:
            part.into(mixed, own, came)
        return mixed


def compile_rows(
    weights: Weights,
    *,
    nodes: Sequence[int],
    others: Sequence[int] = (),
    dtype: torch.dtype,
    device: torch.device,
) -> Mixer:
    """The cheaper way to apply some rows of a mixing matrix.

    Args:
        weights: of all nodes: they alone decide the way, so that every process takes the same.
        nodes: those of this process, ascending: which rows.
        others: of whom messages come, ascending; all other in-neighbours are among `nodes`.
        dtype: of the values.
        device: likewise.
    """
    own, near = np.asarray(nodes, np.int64), np.asarray(others, np.int64)
    if int(weights.counts.max(initial=0)) > _FEW_NEIGHBOURS:
        write = _whole if weights.nodes <= _WHOLE_NODES else _sparse
        parts = (write(weights, own, columns, dtype).to(device) for columns in (own, near))
        return Mixer((), (), _Product(*parts))
    places = np.full(weights.nodes, -1, np.int64)
    places[own], places[near] = np.arange(len(own)), len(own) + np.arange(len(near))
    reads = np.zeros(weights.nodes, np.bool_)  # whether a target reads what comes
    reads[weights.targets[places[weights.sources] >= len(own)]] = True
    waits = reads[own]

    def part(rows: NDArray[np.int64]) -> tuple[_Few, ...]:
        if not len(rows):
            return ()
        return (_few(weights, own[rows], rows, places, len(own), dtype, device),)

    return Mixer(part(np.flatnonzero(~waits)), part(np.flatnonzero(waits)), None)


def _whole(
    weights: Weights, rows: NDArray[np.int64], columns: NDArray[np.int64], dtype: torch.dtype
) -> Tensor:
    return torch.tensor(weights.block(rows, columns), dtype=dtype)


def _sparse(
    weights: Weights, rows: NDArray[np.int64], columns: NDArray[np.int64], dtype: torch.dtype
) -> Tensor:
    entries, targets, sources = weights.within(rows, columns)
    return torch.sparse_coo_tensor(
        torch.from_numpy(np.stack([targets, sources])),
        torch.tensor(weights.values[entries], dtype=dtype),
        (len(rows), len(columns)),
        is_coalesced=True,  # each place once, in ascending order
        check_invariants=False,  # left open, torch warns
    )


def _few(
    weights: Weights,
    targets: NDArray[np.int64],
    rows: NDArray[np.int64],
    places: NDArray[np.int64],
    own: int,
    dtype: torch.dtype,
    device: torch.device,
) -> _Few:
    """Slots of some rows; a row with fewer in-neighbours than others reads itself with weight 0."""
    counts = weights.counts[targets]
    sources = np.tile(rows, (max(1, int(counts.max())), 1))
    values = np.zeros(sources.shape)
    for slot in range(len(sources)):
        filled = np.flatnonzero(counts > slot)
        entries = weights.starts[targets[filled]] + slot
        sources[slot, filled] = places[weights.sources[entries]]
        values[slot, filled] = weights.values[entries]
    return _Few(
        torch.as_tensor(rows, device=device),
        tuple(
            _Slot(
                torch.as_tensor(weight, dtype=dtype, device=device),
                torch.as_tensor(source, device=device),
                _runs(rows, source, own),
            )
            for weight, source in zip(values, sources, strict=True)
        ),
    )


def _runs(rows: NDArray[np.int64], sources: NDArray[np.int64], own: int) -> Runs | None:
    """Where each run of consecutive rows and sources goes, begins, and how long it is.

    None where they are many.
    """
    breaks = (np.diff(sources, prepend=-2) != 1) | (np.diff(rows, prepend=-2) != 1)
    breaks |= sources == own  # the first row that came lies in another tensor
    starts = np.flatnonzero(breaks)
    if len(starts) > _FEW_RUNS:
        return None
    lengths = np.diff(starts, append=len(sources))
    return tuple(
        (int(rows[at]), int(sources[at]), int(length))
        for at, length in zip(starts, lengths, strict=True)
    )


def mean_of_rows(value: Tensor) -> Tensor:
    """The mean `[1, ...]` of rows `[n, ...]`, as one product; zeros of none."""
    if not len(value):
        return value.new_zeros(1, *value.shape[1:])
    weights = value.new_full((len(value),), 1 / len(value))
    return (weights @ value.reshape(len(value), -1)).view(1, *value.shape[1:])


class Server:
    """Averages what arrives; of messages that are lost, it goes on with those it has.

    The first time that it is asked for a mean of latest messages, all arrive: it has no others.

    Args:
        clients: how many there are.
    """

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self._kept: dict[int, Tensor] = {}

    def mean(
        self,
        position: int,
        value: Tensor,
        nodes: NDArray[np.int64],
        arrived: NDArray[np.bool_] | None,
        *,
        latest: bool,
    ) -> Tensor:
        """The mean `[1, ...]` of the messages of this step, or of every client's latest one.

        Args:
            position: of the value in its message.
            value: `[rows, ...]`.
            nodes: whose rows they are. The first time that `latest` is asked for, and whenever
                no message can be missing, they are all clients'.
            arrived: of all clients, whose message of this step came; None: all that sent one.
            latest: over all clients, in place of those that sent.
        """
        if not latest:
            return mean_of_rows(value if arrived is None else value[self._rows(nodes, arrived)])
        kept = self._kept.get(position)
        if kept is None or (arrived is None and len(nodes) == self._clients):
            self._kept[position] = value if arrived is None else value.clone()
            return mean_of_rows(value)
        came = slice(None) if arrived is None else self._rows(nodes, arrived)
        places = torch.from_numpy(nodes).to(value.device)
        kept[places[came]] = value[came]
        return mean_of_rows(kept)

    def _rows(self, nodes: NDArray[np.int64], arrived: NDArray[np.bool_]) -> Tensor:
        return torch.from_numpy(np.flatnonzero(arrived[nodes]))
