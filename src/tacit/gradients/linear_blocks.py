"""The way of wide models that are one linear layer, on a CPU: blocks of records, read once.

A step of such a model costs what its records weigh: 952 MB for 60,000 of 3,969 numbers, which two
products, each by itself, read twice. Here a block of some records is read, and while it lies in the
cache there follow its scores (one product), slopes, norms and clip factors (one compiled loop), and
its weighted sum (one product). Threads share the nodes' records; each works through blocks alone,
so that they meet once a step.

What is clipped and added are the vectors of `contributions.Outer` and `Dense`, in the arithmetic of
`docs/proofs/clipped-sums.md`: norms from above, sums of 128 records in the dtype of the run, and a
float64 total of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from tacit.gradients.clipping import Clip, ClipNorm, factor_limits, norm_offset
from tacit.gradients.contributions import CHUNK
from tacit.gradients.linear import LinearLayer, of_nodes, readable
from tacit.gradients.losses import OF_NUMBERS
from tacit.kernels.threads import over_threads_of_products

LEAST_RECORDS = 256
"""Of fewer records a node, taps are faster: a few large products for all nodes.

One thread, 20 nodes of (10, 3969): 2.1 times the time of taps for 32 records, 1.1 for 64, 0.7 for
128, 0.6 for 256; 50 of (100, 784): 3.0, 2.5, 1.9, 1.25, and 0.93 for 1,000 (8 nodes).
"""

# A part of a core's own cache, beside which weights and sums lie. Both products for 60,000 records
# of 3,969 numbers, one thread, over two plain ones: 0.65 in blocks of 32 records, 0.66 in blocks of
# 16, 0.67 of 48, 0.89 of 64.
_BLOCK_BYTES = 1 << 19
_FEWEST = 16  # records of a block, however wide


@dataclass(frozen=True)
class _Piece:
    """Records start to stop of a node, which one thread works through; number `row` of all."""

    row: int
    node: int
    start: int
    stop: int


@dataclass(frozen=True)
class _Batch:
    """What all threads read and write; see `add_by_blocks`."""

    layer: LinearLayer
    parameters: Tensor
    inputs: Sequence[Tensor]
    targets: Tensor
    mask: Tensor
    by_l1: bool
    offset: float
    aims: np.ndarray
    reaches: np.ndarray
    least: float
    sums: Tensor
    norms: Tensor
    losses: Tensor


def add_by_blocks(
    layer: LinearLayer,
    parameters: Tensor,
    inputs: Tensor | Sequence[Tensor],
    targets: Tensor,
    mask: Tensor,
    clip: Clip | None,
    total: Tensor,
    norm: ClipNorm,
) -> tuple[Tensor, Tensor]:
    """Put the sum of (clipped) gradients over unmasked records into `total`, block by block.

    Nothing is made of the whole batch, however large: beside arguments and results, this holds a
    float64 sum a node, and a block a thread.

    Args:
        layer: the model.
        parameters: `[nodes, d]`.
        inputs: `[nodes, b, ...]`, of any dtype; masked slots may hold anything. Or of each node its
            own `[at most b, ...]`; slots beyond are masked.
        targets: `[nodes, b, ...]`, likewise.
        mask: `[nodes, b]`, True for records.
        clip: what each record's norm is brought to, or None.
        total: `[nodes, d]`, of the dtype of the parameters, is overwritten.
        norm: of `LOOP_NORMS`.

    Returns:
        Norms `[nodes, b]` (`[nodes, 0]` where clip is None) and losses `[nodes, b]`, both 0 where
        masked; norms are infinite where a record contributes nothing.
    """
    nodes, records = mask.shape
    shares = _shares(nodes, records, torch.get_num_threads())
    pieces = [piece for share in shares for piece in share]
    limits = factor_limits(1.0 if clip is None else clip, parameters.dtype)
    wanted = layer.weight.shape[0] if layer.formula in OF_NUMBERS else 1  # numbers of a target
    batch = _Batch(
        layer=layer,
        parameters=parameters.contiguous(),
        inputs=[rows.flatten(1) for rows in inputs],
        targets=readable(targets, parameters).reshape(nodes, records, wanted).contiguous(),
        mask=mask.contiguous(),
        by_l1=norm == "l1",
        offset=norm_offset(norm),
        aims=of_nodes(limits.numerator, nodes),
        reaches=of_nodes(limits.reach, nodes),
        least=limits.least,
        sums=parameters.new_zeros(len(pieces), parameters.shape[1], dtype=torch.float64),
        norms=parameters.new_zeros(nodes, 0 if clip is None else records),
        losses=parameters.new_zeros(nodes, records),
    )

    def work(share: Sequence[_Piece]) -> None:
        for piece in share:
            _add_piece(batch, piece)

    over_threads_of_products(work, shares)
    for earlier, piece in pairwise(reversed(pieces)):
        if earlier.node == piece.node:
            batch.sums[piece.row] += batch.sums[earlier.row]
    total.copy_(batch.sums[[piece.row for piece in pieces if piece.start == 0]])
    return batch.norms, batch.losses


def outputs_at_once(layer: LinearLayer, parameters: Tensor, inputs: Tensor) -> Tensor:
    """Every node's outputs for the same records `[records, ...]`, `[nodes, records, outputs]`.

    One product for all nodes, which reads the records once.
    """
    weights = layer.weight.view(parameters)
    nodes, outputs, width = weights.shape
    found = inputs.flatten(1) @ weights.reshape(-1, width).t()
    if layer.bias is not None:
        found += layer.bias.view(parameters).reshape(-1)
    return found.view(-1, nodes, outputs).transpose(0, 1)


def _shares(nodes: int, records: int, threads: int) -> list[list[_Piece]]:
    """Of each thread, its pieces, in order: whole chunks, which records share in any case."""
    units = -(-records // CHUNK)
    threads = max(1, min(threads, nodes * units))
    ends = [number * nodes * units // threads for number in range(threads + 1)]
    shares: list[list[_Piece]] = []
    row = 0
    for first, last in pairwise(ends):
        share = []
        for node in range(first // units, -(-last // units)):
            start = max(first - node * units, 0) * CHUNK
            stop = min((last - node * units) * CHUNK, records)
            share.append(_Piece(row, node, start, stop))
            row += 1
        shares.append(share)
    return shares


def _add_piece(batch: _Batch, piece: _Piece) -> None:
    """Add the weighted gradients of a piece to its row of the sums; write norms and losses."""
    from tacit.kernels.linear import LOSSES, add_exactly, weigh_block

    layer, dtype = batch.layer, batch.parameters.dtype
    weight = layer.weight.view(batch.parameters)[piece.node]
    turned = weight.t().contiguous()
    bias, bias_sums = _biases(batch, piece)
    clipped = batch.norms.shape[1] > 0
    limits = torch.finfo(dtype)
    sums = layer.weight.view(batch.sums)[piece.row].numpy()
    own = slice(piece.start, piece.stop)
    inputs, mask = batch.inputs[piece.node][own], batch.mask[piece.node, own].numpy()
    targets = batch.targets[piece.node, own].numpy()
    norms = batch.norms[piece.node, own if clipped else slice(0)].numpy()
    losses = batch.losses[piece.node, own].numpy()
    # Records of a block: some that fit a core's own cache, and at most those of a chunk.
    fitting = _BLOCK_BYTES // (turned.shape[0] * dtype.itemsize)
    rows = max(_FEWEST, min(CHUNK, fitting) // _FEWEST * _FEWEST)
    part, scores = torch.empty_like(weight), weight.new_empty(rows, len(weight))
    kept = torch.empty(rows, dtype=torch.bool)
    for start in range(0, len(inputs), CHUNK):
        begun, end = 0, min(start + CHUNK, len(inputs))
        for at in range(start, end, rows):
            place = slice(at, min(at + rows, end))
            count = place.stop - at
            if not mask[place].any():
                continue
            block, weighted = inputs[place].to(dtype).contiguous(), scores[:count]
            torch.mm(block, turned, out=weighted)
            every = weigh_block(
                LOSSES[layer.formula],
                weighted.numpy(),
                bias,
                block.numpy(),
                targets[place],
                mask[place],
                clipped,
                batch.aims[piece.node],
                batch.reaches[piece.node],
                batch.least,
                limits.eps / 2,
                limits.tiny,
                batch.by_l1,
                batch.offset,
                kept[:count].numpy(),
                bias_sums,
                norms[place],
                losses[place],
            )
            if not every:  # 0 * nan is nan
                block = block.masked_fill(~kept[:count].unsqueeze(1), 0.0)
            torch.addmm(part, weighted.t(), block, beta=begun, out=part)
            begun = 1
        if begun:
            add_exactly(sums, part.numpy())


def _biases(batch: _Batch, piece: _Piece) -> tuple[np.ndarray, np.ndarray]:
    """A node's bias, and the float64 sum of its gradients; both empty where there is none."""
    slot = batch.layer.bias
    if slot is None:
        return batch.parameters.new_empty(0).numpy(), batch.sums.new_empty(0).numpy()
    return slot.view(batch.parameters)[piece.node].numpy(), slot.view(batch.sums)[piece.row].numpy()
