"""Weighted sums of rows: the one way in which messages are mixed, in one process or in many.

The nodes of a process are rows of a tensor; what came from other processes are rows of a second
one. A sum over few in-neighbours is taken in ascending order of the source, wherever that lies, so
that it is the same to the last bit however nodes are placed.

`Server` is that of federated methods: it averages, and keeps clients' last messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.base.sending import sent
from tacit.communication.exchange.protocol import Descent
from tacit.kernels.threads import over_threads
from tacit.topology.mixing import Weights

# Up to this many in-neighbours (self included) scaled adds beat a matrix product.
_FEW_NEIGHBOURS = 4
# Up to this many nodes, a whole matrix of weights beats a sparse one, or takes little memory.
_WHOLE_NODES = 1024


# Kinds of devices whose sums are compiled loops.
_LOOPED = frozenset({"cpu"})
# Numbers of a message for which another thread pays.
_THREAD_NUMBERS = 1 << 17


@dataclass(frozen=True, eq=False)
class _Loop:
    """Sums of some rows over few in-neighbours, on a CPU; see `mix_rows`, which has the meanings.

    The `rows` ascend, and the entries of each begin at `starts`. An entry reads a source, a row of
    this process or, counted on, one that came, with its weight.
    """

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    sources: NDArray[np.int64]
    weights: NDArray[Any]

    def into(
        self, mixed: Tensor, own: Tensor, came: Tensor | None, descent: Descent | None
    ) -> None:
        """Write the sums to the rows of `mixed` `[nodes, ...]`."""
        # A compiled loop, which a process that mixes nothing does not load.
        from tacit.kernels.mixing import mix_rows

        none = own.new_empty(0, *own.shape[1:])
        direction, step = (none, 0.0) if descent is None else (descent.direction, descent.step)
        values = (mixed, own, none if came is None else came, direction)
        columns = own.shape[1:].numel()
        total, here, others, along = (
            value.detach().reshape(len(value), columns).numpy() for value in values
        )

        def work(share: tuple[int, int]) -> None:
            sums = (self.rows, self.starts, self.sources, self.weights)
            mix_rows(total, here, others, along, step, *sums, *share)

        threads = min(torch.get_num_threads(), 1 + own.numel() // _THREAD_NUMBERS)
        over_threads(work, list(pairwise(columns * i // threads for i in range(threads + 1))))


@dataclass(frozen=True)
class _Slots:
    """The same on another device: a product and a sum of whole tensors for each in-neighbour.

    The slots are, in ascending order of the source, what each of the `rows` reads, `[rows]`, and
    its weights.
    """

    rows: Tensor
    slots: tuple[tuple[Tensor, Tensor], ...]

    def into(
        self, mixed: Tensor, own: Tensor, came: Tensor | None, descent: Descent | None
    ) -> None:
        here = own if descent is None else descent.of(own)
        everything = here if came is None else torch.cat([here, came])
        (first, weights), *others = self.slots
        total = everything.index_select(0, first).mul_(_column(weights, own))
        for sources, weights in others:
            total.addcmul_(everything.index_select(0, sources), _column(weights, own))
        mixed.index_copy_(0, self.rows, total)


_Few: TypeAlias = _Loop | _Slots


def _column(weights: Tensor, like: Tensor) -> Tensor:
    return weights.view((-1,) + (1,) * (like.dim() - 1))


@dataclass(frozen=True)
class _Product:
    """Sums over many in-neighbours: a matrix product.

    The weights of the rows of this process are `own`, `[rows, own]`, a sparse tensor for many
    nodes; those of the rows that come are `came`, `[rows, came]`, likewise.
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

    They are of the nodes that wait for nothing and of those that do, or a product of all nodes.
    """

    few: tuple[_Few, ...]
    waiting: tuple[_Few, ...]
    product: _Product | None

    def begin(self, own: Tensor, descent: Descent | None = None) -> Tensor:
        """A new tensor like `own` `[nodes, ...]`, with all that can be computed of it alone.

        What is mixed is `own`, or where a descent that starts from it leads.
        """
        mixed = torch.empty_like(own, memory_format=torch.contiguous_format)
        if self.product is not None:
            self.product.into(mixed, own if descent is None else descent.of(own))
        for part in self.few:
            part.into(mixed, own, None, descent)
        return mixed

    def finish(self, mixed: Tensor, own: Tensor, came: Tensor) -> Tensor:
        """The same with what came, `[others, ...]`, in the order that was compiled."""
        if self.product is not None and len(came):
            self.product.add(mixed, came)
        for part in self.waiting:
            part.into(mixed, own, came, None)
        return mixed


def compile_rows(
    weights: Weights,
    *,
    nodes: Sequence[int],
    others: Sequence[int] = (),
    dtype: torch.dtype,
    device: torch.device,
) -> Mixer:
    """The cheaper way to apply some rows of a mixing matrix: those of `nodes`, ascending.

    The weights of all nodes alone decide the way, so that every process takes the same. Messages
    come of `others`, ascending; all other in-neighbours are among `nodes`.
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
        return (_few(weights, own[rows], rows, places, dtype, device),)

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
    dtype: torch.dtype,
    device: torch.device,
) -> _Few:
    counts = weights.counts[targets]
    starts = np.concatenate([[0], np.cumsum(counts)])
    entries = np.repeat(weights.starts[targets] - starts[:-1], counts) + np.arange(starts[-1])
    sources, values = places[weights.sources[entries]], weights.values[entries]
    if device.type in _LOOPED:
        return _Loop(rows, starts, sources, torch.tensor(values, dtype=dtype).numpy())
    # A row with fewer in-neighbours than others reads itself with weight 0.
    slots = []
    for slot in range(max(1, int(counts.max()))):
        read, weighted = rows.copy(), np.zeros(len(rows))
        filled = np.flatnonzero(counts > slot)
        read[filled] = sources[starts[filled] + slot]
        weighted[filled] = values[starts[filled] + slot]
        slots.append((sent(read, device), sent(torch.tensor(weighted, dtype=dtype), device)))
    return _Slots(sent(rows, device), tuple(slots))


def mean_of_rows(value: Tensor) -> Tensor:
    """The mean `[1, ...]` of rows `[n, ...]`, as one product; zeros of none."""
    if not len(value):
        return value.new_zeros(1, *value.shape[1:])
    weights = value.new_full((len(value),), 1 / len(value))
    return (weights @ value.reshape(len(value), -1)).view(1, *value.shape[1:])


class Server:
    """Averages what arrives; of messages that are lost, it goes on with those it has.

    The first time that it is asked for a mean of latest messages, all arrive: it has no others. It
    has kept every client's latest row of each value, by its position.
    """

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self.kept: dict[int, Tensor] = {}

    def mean(
        self,
        position: int,
        value: Tensor,
        nodes: NDArray[np.int64],
        arrived: NDArray[np.bool_] | None,
        *,
        latest: bool,
    ) -> Tensor:
        """The mean `[1, ...]` of the messages of this step, or of every client's latest one
        (`latest`).

        `value`, `[rows, ...]`, is at this position in its message, and its rows are those of
        `nodes`. The first time that `latest` is asked for, and whenever no message can be missing,
        these are all clients. `arrived` says of all clients whose message of this step came; None:
        all that sent one.
        """
        if not latest:
            if arrived is None:
                return mean_of_rows(value)
            return mean_of_rows(value.index_select(0, self._rows(nodes, arrived, value)))
        kept = self.kept.get(position)
        if kept is None or (arrived is None and len(nodes) == self._clients):
            self.kept[position] = value if arrived is None else value.clone()
            return mean_of_rows(value)
        if arrived is not None:
            value = value.index_select(0, self._rows(nodes, arrived, value))
            nodes = nodes[arrived[nodes]]
        kept.index_copy_(0, sent(nodes, value.device), value)
        return mean_of_rows(kept)

    def _rows(self, nodes: NDArray[np.int64], arrived: NDArray[np.bool_], like: Tensor) -> Tensor:
        return sent(np.flatnonzero(arrived[nodes]), like.device)
