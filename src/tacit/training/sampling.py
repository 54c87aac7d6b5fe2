"""Which records join a step: drawn as the plan says, from each node's secret coins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.base.sending import sent
from tacit.privacy.noise import draws as noise
from tacit.training.plan import Plan
from tacit.training.release import NodePlan

PURPOSE = "sampling"
ALLOCATION = "allocation"
DEALING = "dealing"

_WORDS_AT_ONCE = 1 << 20  # 8 MiB

# Local record numbers of one node, ascending; and those of each of its mini-batches.
Records: TypeAlias = NDArray[np.int64]
Parts: TypeAlias = Sequence[Records] | NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """A padded batch: local record numbers `[nodes, width]`, and which slots hold a record."""

    indices: Tensor
    mask: Tensor


@dataclass(frozen=True, repr=False)
class DisjointBatches:
    """The records of one step for some nodes: what its mini-batches are read from.

    Args:
        rows: the nodes, in the order of the rows.
        batches: where the mini-batches share no record: of each node, those of each part.
        together: where these are all of one size: all parts, `[parts, nodes, width]`.
    """

    plan: Plan
    keys: noise.NodeKeys
    step: int
    device: torch.device
    rows: tuple[NodePlan, ...]
    batches: tuple[Parts, ...] | None = None
    together: Batch | None = None

    def batch(self, part: int = 0) -> Batch:
        """The padded mini-batch of one part of the step."""
        if self.together is not None:
            return Batch(self.together.indices[part], self.together.mask[part])
        if self.batches is not None:
            return _padded([batches[part] for batches in self.batches], self.device)
        drawn = {"fixed": _fixed, "allocation": _allocated}.get(
            self.plan.config.train.sampling, _coins
        )
        if self.plan.release.over_time is not None:
            drawn = partial(_in_turn, self.plan)
        found = drawn(self.rows, self.keys, self.step, part)
        if drawn is _fixed or self.device.type == "cpu":
            return _padded(found, self.device)
        # Few widths, so that few CUDA graphs serve all steps.
        most = max(node.records for node in self.rows)
        return _padded(found, self.device, lambda longest: min(most, public_width(longest)))


def public_width(records: int) -> int:
    """The least of 1 to 8, 10, 12, 14, 16, 20, 24, 28, 32, 40 and so on that is no less.

    So a batch is padded by a quarter at most, and its shape says of secret coins which of these.

    >>> [public_width(records) for records in (0, 7, 9, 33, 1000)]
    [0, 7, 10, 40, 1024]
    """
    spacing = 1 << max(0, (records - 1).bit_length() - 3)
    return -(-records // spacing) * spacing


def disjoint_batches(
    plan: Plan,
    keys: noise.NodeKeys,
    k: int,
    device: torch.device,
    *,
    nodes: Sequence[NodePlan] | None = None,
) -> DisjointBatches:
    """The records of step k, for some nodes (by default all), once for all its mini-batches.

    Poisson: independent coins, never likelier than the planned rate. Fixed: a uniform subset of
    the planned size. Allocation: the records that drew this step of its epoch, each uniformly and
    for itself, anew for every epoch and every start of a process. Cyclic, and with noise that is
    correlated over steps: of the records whose turn it is. A node at rate 1 takes every
    record. Where a step has several mini-batches that share no record, the step's records are drawn
    first, and then dealt out, here.
    """
    rows = plan.nodes if nodes is None else tuple(nodes)
    parts = plan.release.local_steps
    if parts == 1 or not plan.release.disjoint:
        return DisjointBatches(plan, keys, k, device, rows)
    if plan.config.train.sampling != "fixed":
        dealt = tuple(_dealt_coins(node, keys, k, parts) for node in rows)
        return DisjointBatches(plan, keys, k, device, rows, dealt)
    batches, together = _disjoint_fixed(rows, keys, k, parts), None
    if len({len(node[0]) for node in batches}) == 1:
        indices = sent(np.stack(batches, axis=1), device)
        together = Batch(indices, torch.ones_like(indices, dtype=torch.bool))
    return DisjointBatches(plan, keys, k, device, rows, batches, together)


def draw(
    plan: Plan,
    keys: noise.NodeKeys,
    k: int,
    device: torch.device,
    *,
    nodes: Sequence[NodePlan] | None = None,
    part: int = 0,
) -> Batch:
    """One mini-batch of step k; for several of them, call `disjoint_batches` once."""
    return disjoint_batches(plan, keys, k, device, nodes=nodes).batch(part)


def everything(
    plan: Plan, device: torch.device, *, nodes: Sequence[NodePlan] | None = None
) -> Batch:
    """Every record of some nodes of the plan (by default all)."""
    rows = plan.nodes if nodes is None else nodes
    return _padded([np.arange(node.records) for node in rows], device)


def draw_units(
    nodes: Sequence[NodePlan], keys: noise.NodeKeys, k: int, device: torch.device, size: int
) -> Batch:
    """Numbers of the fixed mini-batches of `size` records that step k draws, of some nodes.

    Each by a coin of its own, never likelier than the planned rate, whatever `train.sampling` says.
    """
    return _padded([_units(keys, node, k, -(-node.records // size)) for node in nodes], device)


def _units(keys: noise.NodeKeys, node: NodePlan, k: int, count: int) -> Records:
    if node.rate == 1:
        return np.arange(count)
    return np.flatnonzero(noise.coins(keys, node.node, PURPOSE, k, count, node.rate))


def _coins(rows: Sequence[NodePlan], keys: noise.NodeKeys, k: int, part: int) -> list[Records]:
    """Of every node the records whose coin says so; many nodes at a time."""
    found: list[Records] = []
    blocks = np.cumsum([node.records for node in rows]) // _WORDS_AT_ONCE
    for _, some in groupby(zip(blocks.tolist(), rows, strict=True), lambda pair: pair[0]):
        nodes = [node for _, node in some]
        numbers, counts, rates = zip(*((n.node, n.records, n.rate) for n in nodes), strict=True)
        ends = np.cumsum(counts)
        joining = np.flatnonzero(noise.coins_of_all(keys, numbers, PURPOSE, k, counts, rates, part))
        cuts = np.searchsorted(joining, ends)
        own = joining - np.repeat(ends - counts, np.diff(cuts, prepend=0))
        found += [own[first:until] for first, until in pairwise((0, *cuts.tolist()))]
    return found


def _fixed(rows: Sequence[NodePlan], keys: noise.NodeKeys, k: int, part: int) -> list[Records]:
    return _subsets(rows, keys, k, 1, part)


def _allocated(rows: Sequence[NodePlan], keys: noise.NodeKeys, k: int, part: int) -> list[Records]:
    """Every record draws its step of the epoch from coins at the epoch's number."""
    found = []
    for node in rows:
        epoch, step = divmod(k, node.epoch_steps)
        steps = noise.choices(
            keys, node.node, ALLOCATION, epoch, node.records, node.epoch_steps, part
        )
        found.append(np.flatnonzero(steps == step))
    return found


def _in_turn(
    plan: Plan, rows: Sequence[NodePlan], keys: noise.NodeKeys, k: int, part: int
) -> list[Records]:
    """Every record whose turn it is, by its number; or those of them whose coins say so."""
    found = []
    for node in rows:
        turns = plan.release.turns(node)
        own = np.arange(k % turns, node.records, turns)
        coin = plan.release.coin(node)
        if coin < 1:
            own = own[noise.coins(keys, node.node, PURPOSE, k, node.records, coin, part)[own]]
        found.append(own)
    return found


def _subsets(
    rows: Sequence[NodePlan], keys: noise.NodeKeys, k: int, batches: int, part: int = 0
) -> list[Records]:
    """Of every node the records of so many batches, as `noise.subset` draws them; all at rate 1.

    Many nodes at a time: one alone takes five times as long as its random words.
    """
    found = [np.arange(node.records if node.rate == 1 else 0) for node in rows]
    drawing = [row for row, node in enumerate(rows) if node.rate != 1]
    most = max((rows[row].records for row in drawing), default=1)
    step = max(1, _WORDS_AT_ONCE // most)
    for start in range(0, len(drawing), step):
        some = drawing[start : start + step]
        nodes = [rows[row] for row in some]
        sizes = np.array([batches * int(node.expected_batch) for node in nodes])
        words = _words(nodes, [node.records for node in nodes], keys, PURPOSE, k, part)
        largest = np.take_along_axis(np.sort(words, axis=1), sizes[:, None] - 1, axis=1)
        chosen = words <= largest
        taken = np.split(chosen.nonzero()[1], np.cumsum(chosen.sum(axis=1))[:-1])
        for row, node, size, records in zip(some, nodes, sizes, taken, strict=True):
            tied = len(records) != size
            found[row] = (
                noise.subset(keys, node.node, PURPOSE, k, node.records, size, part)
                if tied
                else records
            )
    return found


def _words(
    nodes: Sequence[NodePlan],
    counts: Sequence[int],
    keys: noise.NodeKeys,
    purpose: str,
    k: int,
    part: int = 0,
) -> NDArray[np.uint64]:
    """Random words of each node, `[nodes, most]`, as `noise.keystream` has them.

    A node with fewer than others has the largest of all numbers behind its own.
    """
    most, counter = max(counts), noise.position(k, part)
    bytes_each = 8 * most + noise.BLOCK_BYTES  # the cipher writes up to a block more
    stream = np.empty((len(nodes), bytes_each), np.uint8)
    zeros = bytes(8 * most)
    for own, node in zip(stream, nodes, strict=True):
        keys.read(node.node, purpose, counter, zeros, own.data)
    words = stream[:, : 8 * most].view("<u8")
    if min(counts) < most:
        words[np.arange(most) >= np.array(counts)[:, None]] = np.iinfo(np.uint64).max
    return words


def _dealt_coins(node: NodePlan, keys: noise.NodeKeys, k: int, parts: int) -> Sequence[Records]:
    """The disjoint mini-batches of a step; at rate 1 each holds all records."""
    if node.rate == 1:
        return [np.arange(node.records)] * parts
    rate = min(1.0, parts * node.rate)
    chosen = np.flatnonzero(noise.coins(keys, node.node, PURPOSE, k, node.records, rate))
    batches = noise.choices(keys, node.node, DEALING, k, node.records, parts)[chosen]
    # Stable: within a hand, records stay in order.
    order = np.argsort(batches, kind="stable")
    ends = np.cumsum(np.bincount(batches, minlength=parts))
    return np.split(chosen[order], ends[:-1])


def _disjoint_fixed(
    rows: Sequence[NodePlan], keys: noise.NodeKeys, k: int, parts: int
) -> tuple[Parts, ...]:
    drawn = _subsets(rows, keys, k, parts)
    lengths = [len(records) for records in drawn]
    # The order is that of `noise.permutation`.
    orders = np.argsort(_words(rows, lengths, keys, DEALING, k), axis=1, kind="stable")
    if min(lengths) == max(lengths) and all(node.rate != 1 for node in rows):
        dealt = np.take_along_axis(np.stack(drawn), orders, axis=1)
        return tuple(np.sort(dealt.reshape(len(rows), parts, -1), axis=2))
    return tuple(
        [records] * parts
        if node.rate == 1
        else np.sort(records[order[: len(records)]].reshape(parts, -1), axis=1)
        for node, records, order in zip(rows, drawn, orders, strict=True)
    )


def _padded(
    records: Sequence[Records],
    device: torch.device,
    width: Callable[[int], int] = lambda longest: longest,
) -> Batch:
    lengths = np.fromiter(map(len, records), np.int64, len(records))
    flat, longest = np.concatenate(records), width(int(lengths.max()))
    if len(flat) == len(records) * longest:
        indices = flat.reshape(len(records), longest)
        mask = np.ones(indices.shape, np.bool_)
    else:
        mask = np.arange(longest) < lengths[:, None]
        indices = np.zeros(mask.shape, np.int64)
        indices[mask] = flat
    return Batch(sent(indices, device), sent(mask, device))
