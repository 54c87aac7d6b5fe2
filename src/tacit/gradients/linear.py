"""The way of models that are one linear layer, on a CPU: one compiled loop over the records.

Slopes of the known losses are formulas, so that nothing is left to autograd, and a step of a few
records a node costs microseconds where taps take a hundred operations. The vectors that are clipped
and added are those of `contributions.Outer` and `Dense`, in the same arithmetic.

A step of a wide one, whose products are most of it, costs what its records weigh: 952 MB for 60,000
of 3,969 numbers, which two products, each by itself, read twice. It goes by blocks: a block of some
records is read, and while it lies in the cache there follow its scores (one product), slopes, norms
and clip factors (one compiled loop), and its weighted sum (one product). Threads share the nodes'
records; each works through blocks alone, so that they meet once a step. The arithmetic is that of
`docs/proofs/clipped-sums.md`, too: norms from above, sums of 128 records in the dtype of the run,
and a float64 total of these.

That a module is such a layer is known by its types, and tried out on the probe. Taps stay beside,
for what needs the gradients of records one by one, and where they are clamped by coordinate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from tacit.gradients.clipping import Clip, ClipNorm, factor_limits, norm_offset
from tacit.gradients.contributions import CHUNK, Layout, Slot
from tacit.gradients.losses import OF_NUMBERS, Formula, Loss
from tacit.gradients.probe import Probe
from tacit.kernels.threads import over_threads_of_products

LOOP_NORMS: tuple[ClipNorm, ...] = ("l2", "l1", "automatic")
"""What the loop can bound."""

MOST_WEIGHTS = 1 << 14
"""Of more, BLAS makes up for all else: 60,000 take taps 3 ms and the loop 8."""

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

_PARTS: tuple[type[nn.Module], ...] = (nn.Sequential, nn.Flatten, nn.Identity, nn.Linear)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class LinearLayer:
    """A model's one layer, whose weight is `[outputs, inputs]`, and the formula of its loss."""

    weight: Slot
    bias: Slot | None
    formula: Formula

    @property
    def wide(self) -> bool:
        """Whether its products are most of a step, and worth BLAS."""
        return math.prod(self.weight.shape) > MOST_WEIGHTS

    @property
    def targets(self) -> int:
        """How many numbers a target has."""
        return self.weight.shape[0] if self.formula in OF_NUMBERS else 1


def linear_layer(
    module: nn.Module, exact: nn.Module, loss: Loss, layout: Layout, probe: Probe
) -> LinearLayer | None:
    """The layer that is all that `module` is; None where there is more, or no loop for it.

    Loops are for the CPU, and for losses whose formula is known.
    `exact` is the same module in float64, on the device of the probe.
    """
    if loss.formula is None or probe.inputs.device.type != "cpu":
        return None
    named = only_layer(module)
    if named is None or only_layer(exact) is None:  # which may have a hook for its output
        return None
    slots = {slot.name: slot for slot in layout.slots}
    given = dict(exact.named_parameters())
    if set(slots) != set(given):
        return None  # a part is frozen
    prefix = f"{named[0]}." if named[0] else ""
    weight, bias = f"{prefix}weight", f"{prefix}bias"
    records = probe.inputs.flatten(0, 1)
    outputs, width = slots[weight].shape
    if records[0].numel() != width or (loss.formula == "logistic" and outputs > 1):
        return None
    with torch.no_grad():
        found = exact(records)
        right = functional.linear(records.flatten(1), given[weight], given.get(bias))
    alike = found.shape == right.shape and torch.allclose(found, right, rtol=1e-9)
    return LinearLayer(slots[weight], slots.get(bias), loss.formula) if alike else None


def only_layer(module: nn.Module) -> tuple[str, nn.Linear] | None:
    """The name of the one linear layer that is all of a module, and the layer; None for others."""
    plain = all(
        type(part) in _PARTS
        and "forward" not in vars(part)
        and not any(getattr(part, hooks) for hooks in _HOOKS)
        for part in module.modules()
    )
    layers = [(name, part) for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    return layers[0] if plain and len(layers) == 1 else None


def add_clipped_records(
    layer: LinearLayer,
    parameters: Tensor,
    inputs: Tensor,
    targets: Tensor,
    mask: Tensor,
    clip: Clip | None,
    total: Tensor,
    norm: ClipNorm,
    shares: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Put the sum of (clipped) gradients over unmasked records into `total`, by one loop.

    On one thread, and nothing is made of the batch: however large, it need not be cut.

    Args:
        layer: the model.
        parameters: `[nodes, d]`.
        inputs: `[nodes, b, ...]`, of any floating dtype; masked slots may hold anything.
        targets: `[nodes, b, ...]`, likewise.
        mask: `[nodes, b]`, True for records.
        clip: what each record's norm is brought to, or None.
        total: `[nodes, d]` contiguous, of the dtype of the parameters, is overwritten.
        norm: of `LOOP_NORMS`.
        shares: `[nodes, b, rows]` of the rows that a record is, `[rows, ...]`; None: it is one row.

    Returns:
        Norms `[nodes, b]` (`[nodes, 0]` where clip is None) and losses `[nodes, b]`, both 0 where
        masked; norms are infinite where a record contributes nothing.
    """
    from tacit.kernels.linear import LOSSES, add_clipped_gradients, add_clipped_sums

    nodes, records = mask.shape
    width = layer.weight.shape[1]
    losses = parameters.new_empty(nodes, records)
    norms = parameters.new_empty(nodes, 0 if clip is None else records)
    wide = shares is not None or (clip is not None and records > CHUNK)
    sums = total.new_zeros(total.shape, dtype=torch.float64) if wide else total.zero_()
    limits = factor_limits(1.0 if clip is None else clip, parameters.dtype)
    start = layer.weight.start, -1 if layer.bias is None else layer.bias.start
    model = LOSSES[layer.formula], _array(parameters), *start
    read, labels = (_array(readable(values, parameters)) for values in (inputs, targets))
    aims, reaches = (_of_nodes(limit, nodes) for limit in (limits.numerator, limits.reach))
    rule = norm == "l1", norm_offset(norm)
    written = sums.numpy(), norms.numpy(), losses.numpy()
    rows = mask.shape if shares is None else shares.shape
    records_read = read.reshape(*rows, width), labels.reshape(*rows, layer.targets)
    if shares is not None:
        weighed = *records_read, _array(shares), _array(mask)
        add_clipped_sums(*model, *weighed, aims, limits.least, *rule, *written)
    else:
        least = limits.least, torch.finfo(parameters.dtype).tiny
        given = *records_read, _array(mask), aims, reaches
        add_clipped_gradients(*model, *given, *least, *rule, *written)
    if sums is not total:
        total.copy_(sums)
    return norms, losses


@dataclass(frozen=True)
class _Piece:
    """Records start to stop of a node, which one thread works through; number `row` of all."""

    row: int
    node: int
    start: int
    stop: int


@dataclass(frozen=True)
class _Batch:
    """What all threads read and write: see `add_by_blocks`."""

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

    Arguments and results are those of `add_clipped_records`; inputs, of any dtype, may also be of
    each node its own `[at most b, ...]`: slots beyond are masked.
    """
    nodes, records = mask.shape
    shares = _shares(nodes, records, torch.get_num_threads())
    pieces = [piece for share in shares for piece in share]
    limits = factor_limits(1.0 if clip is None else clip, parameters.dtype)
    batch = _Batch(
        layer=layer,
        parameters=parameters.contiguous(),
        inputs=[rows.flatten(1) for rows in inputs],
        targets=readable(targets, parameters).reshape(nodes, records, layer.targets).contiguous(),
        mask=mask.contiguous(),
        by_l1=norm == "l1",
        offset=norm_offset(norm),
        aims=_of_nodes(limits.numerator, nodes),
        reaches=_of_nodes(limits.reach, nodes),
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


def scores(layer: LinearLayer, parameters: Tensor, inputs: Tensor) -> Tensor:
    """Every node's outputs for the same records `[records, ...]`, `[nodes, records, outputs]`.

    Of a wide layer by one product for all nodes, which reads the records once.
    """
    weights, records = layer.weight.view(parameters), inputs.flatten(1)
    bias = None if layer.bias is None else layer.bias.view(parameters)
    if layer.wide:
        nodes, outputs, width = weights.shape
        found = records @ weights.reshape(-1, width).t()
        if bias is not None:
            found += bias.reshape(-1)
        return found.view(-1, nodes, outputs).transpose(0, 1)
    each, turned = records.expand(len(parameters), -1, -1), weights.transpose(1, 2)
    if bias is None:
        return torch.bmm(each, turned)
    return torch.baddbmm(bias.unsqueeze(1), each, turned)


def readable(values: Tensor, parameters: Tensor) -> Tensor:
    """In the dtype of the parameters, but for integers, and for what that dtype holds anyway."""
    known = values.dtype in (torch.float32, parameters.dtype) or not values.is_floating_point()
    return values if known else values.to(parameters.dtype)


def _array(values: Tensor) -> NDArray[Any]:
    """The same numbers, contiguous: a loop is compiled for one layout."""
    array: NDArray[Any] = values.contiguous().numpy()
    return array


def _of_nodes(limit: Clip, nodes: int) -> NDArray[np.float64]:
    """One limit a node, `[nodes]`."""
    if isinstance(limit, Tensor):
        return limit.double().reshape(-1).numpy()
    return np.full(nodes, limit)


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
    part, room = torch.empty_like(weight), weight.new_empty(rows, len(weight))
    kept = torch.empty(rows, dtype=torch.bool)
    for start in range(0, len(inputs), CHUNK):
        begun, end = 0, min(start + CHUNK, len(inputs))
        for at in range(start, end, rows):
            place = slice(at, min(at + rows, end))
            count = place.stop - at
            if not mask[place].any():
                continue
            block, weighted = inputs[place].to(dtype).contiguous(), room[:count]
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
