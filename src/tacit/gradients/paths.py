"""The two ways to the clipped gradient sum of every node: by `torch.func`, and by taps.

`FunctionalPath` evaluates every record alone. It is the slower one, and materialises the gradients
of a chunk of records; in return it needs nothing of the module but that `torch.func` can
differentiate it, and a module that mixes the records of a batch cannot do so here, since each
record is a batch of its own.

`TapsPath` computes the sums from layer inputs and output gradients ("taps"), for all nodes at once.
One forward and one backward pass over the flat batch `[nodes * b, ...]`, in which every tapped
layer computes each node's records with that node's weights and hands out its input and the
gradient by its output. Parameter gradients are never asked of autograd; `layers` makes the norms
and the clipped sums from the two.
"""

# ruff: noqa: D102 (what a method of a protocol does, the protocol says)

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from tacit.errors import InputError
from tacit.gradients.clipping import Clip, ClipNorm, add_clipped, clip_records
from tacit.gradients.contributions import (
    Contribution,
    Dense,
    Layout,
    all_known_true,
    scale_and_add,
)
from tacit.gradients.dropout import dropping
from tacit.gradients.layers.pooling import MaxPooling
from tacit.gradients.layers.rules import Layer, describe
from tacit.gradients.losses import Loss
from tacit.gradients.precision import Precision, forward, passing, taken, widened
from tacit.gradients.recurrent import Product, Products, Recurrent, RecurrentLayer

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class RecordBatch:
    """Records of some nodes, each of one row, or of several that follow each other.

    These are its views, or all that a person has: its loss is the sum of theirs, each times its
    share.

    Attributes:
        inputs: `[nodes, b * rows, ...]`, valid in masked slots too.
        targets: likewise.
        mask: `[nodes, b]`, True for records.
        coins: int64 `[nodes, b * rows]`, what dropout derives the mask of each row from; None for a
            module that drops nothing.
        shares: `[nodes, b, rows]`; None where a record is one row that counts once.
    """

    inputs: Tensor
    targets: Tensor
    mask: Tensor
    coins: Tensor | None = None
    shares: Tensor | None = None

    @cached_property
    def full(self) -> bool:
        """Whether every slot is known to hold a record."""
        return all_known_true(self.mask)

    def __getitem__(self, part: slice | tuple[slice, slice]) -> RecordBatch:
        """Some of the nodes, or of their records, whose rows have an axis of their own."""
        coins, shares = (None if one is None else one[part] for one in (self.coins, self.shares))
        return RecordBatch(self.inputs[part], self.targets[part], self.mask[part], coins, shares)

    def by_record(self) -> tuple[Tensor | None, ...]:
        """Shares, inputs, targets and coins; `[nodes, b, rows, ...]` where there are shares."""
        each = self.inputs, self.targets, self.coins
        if self.shares is None:
            return None, *each
        shape = self.shares.shape
        rows = (None if one is None else one.view(*shape, *one.shape[2:]) for one in each)
        return self.shares, *rows


class GradientPath(Protocol):
    """One way to compute clipped sums; what `StackedModel` is built on. See `accumulate`."""

    def contributions(
        self, parameters: Tensor, batch: RecordBatch, norms: bool
    ) -> tuple[list[Contribution], Tensor]:
        """Each record's gradient, not clipped, one part a parameter; and the masked losses.

        `norms`: whether norms will be asked for, which decides the form of the parts. Masked slots
        hold whatever their inputs give.
        """

    def add_plain(self, parameters: Tensor, batch: RecordBatch, total: Tensor, beta: int) -> Tensor:
        """What `accumulate` does where nothing is clipped; returns the losses."""

    def evaluate(self, module: nn.Module, weights: Weights, inputs: Tensor) -> Tensor:
        """The outputs `[records, ...]` of `module` with these weights."""


def accumulate(
    path: GradientPath,
    parameters: Tensor,
    batch: RecordBatch,
    clip: Clip | None,
    total: Tensor,
    beta: int,
    norm: ClipNorm = "l2",
) -> tuple[Tensor, Tensor]:
    """Scale `total` by beta and add the sum of (clipped) gradients over unmasked records.

    Args:
        path: computes them.
        parameters: `[nodes, d]`.
        batch: the records.
        clip: bound on each record's norm, or None.
        total: `[nodes, d]`, changed in place.
        beta: 1, or 0 to overwrite whatever `total` holds.
        norm: which norm is bounded, and how; see `clipping`.

    Returns:
        norms `[nodes, b]` (`[nodes, 0]` where clip is None) and losses `[nodes, b]`, both 0 where
        masked.
    """
    if clip is None:
        losses = path.add_plain(parameters, batch, total, beta)
        return losses.new_empty(len(losses), 0), losses
    parts, losses = path.contributions(parameters, batch, norms=True)
    with torch.no_grad():
        parts, factors, norms = clip_records(parts, batch.mask, clip, norm)
        add_clipped(parts, factors, total, beta)
    return norms, losses


@dataclass(frozen=True)
class FunctionalPath:
    """Per-record gradients by `vmap` over nodes and records of `grad`."""

    module: nn.Module
    loss: Loss
    layout: Layout
    precision: Precision = "float32"

    def _row_loss(
        self, weights: Weights, inputs: Tensor, target: Tensor, coin: Tensor | None
    ) -> Tensor:
        dropped = dropping(self.module, None if coin is None else coin.unsqueeze(0))
        with dropped, forward(self.precision, inputs.device):
            outputs = functional_call(self.module, weights, (inputs.unsqueeze(0),))
        return self.loss.per_record(widened(outputs), target.unsqueeze(0))[0]

    def _record_loss(self, weights: Weights, shares: Tensor | None, *rows: Any) -> Tensor:
        """Of a record, or the sum over its rows `[rows, ...]`, each a batch of its own."""
        if shares is None:
            return self._row_loss(weights, *rows)
        losses: Tensor = vmap(self._row_loss, (None, *_axes(rows)))(weights, *rows)
        return (losses * shares).sum()

    def _masked_loss(self, weights: Weights, mask: Tensor, *records: Any) -> tuple[Tensor, Tensor]:
        losses = vmap(self._record_loss, (None, *_axes(records)))(weights, *records)
        losses = torch.where(mask, losses, 0.0)
        return losses.sum(), losses.detach()

    def add_plain(self, parameters: Tensor, batch: RecordBatch, total: Tensor, beta: int) -> Tensor:
        given = (batch.mask, *batch.by_record())
        summed: Any = grad_and_value(self._masked_loss, has_aux=True)
        with passing(self.precision, parameters.device):
            weights = self.layout.views(parameters)
            gradients, (_, losses) = vmap(summed, (0, *_axes(given)))(weights, *given)
        for slot in self.layout.slots:
            own = gradients[slot.name].reshape(len(total), -1)
            scale_and_add(total[:, slot.start : slot.stop], own, beta)
        found: Tensor = losses
        return found

    def contributions(
        self, parameters: Tensor, batch: RecordBatch, norms: bool
    ) -> tuple[list[Contribution], Tensor]:
        """Every parameter's materialised gradients; see `GradientPath`."""
        given = batch.by_record()
        axes = _axes(given)
        every = vmap(vmap(grad_and_value(self._record_loss), (None, *axes)), (0, *axes))
        with passing(self.precision, parameters.device):
            gradients, losses = every(self.layout.views(parameters), *given)
        shape = batch.mask.shape
        parts: list[Contribution] = [
            Dense(slot, gradients[slot.name].reshape(*shape, -1)) for slot in self.layout.slots
        ]
        return parts, losses.masked_fill(~batch.mask, 0.0)

    def evaluate(self, module: nn.Module, weights: Weights, inputs: Tensor) -> Tensor:
        """The outputs `[records, ...]` of one node, every record alone."""

        def one(record: Tensor) -> Tensor:
            outputs: Tensor = functional_call(module, weights, (record.unsqueeze(0),))
            return outputs[0]

        return vmap(one)(inputs)


def _axes(values: Iterable[Tensor | None]) -> tuple[int | None, ...]:
    """The axes over which `vmap` maps, the first but of what is not there."""
    return tuple(None if one is None else 0 for one in values)


def tapped_layers(
    module: nn.Module, layout: Layout, channels_last: bool, rectifying: Collection[str] = ()
) -> tuple[Layer, ...] | str:
    """The layers that hold all trainable parameters, or the reason why taps cannot serve.

    Every trainable parameter must belong to exactly one leaf of a known kind, or to a `Recurrent`,
    which is no part of what is returned: see `recurrent`. `channels_last`:
    whether convolutions hand out images that lie so, which is faster, but not every module can
    take (one that calls `view`). `rectifying`: convolutions that rectify what they are given.
    """
    owners = Counter(
        id(parameter) for child in module.modules() for parameter in child.parameters(recurse=False)
    )
    if any(owners[id(p)] > 1 for p in module.parameters() if p.requires_grad):
        return "a parameter is shared between layers"
    layers: list[Layer] = []
    for name, child in module.named_modules():
        mine = any(p.requires_grad for p in child.parameters(recurse=False))
        if mine and type(child) is not Recurrent:
            if "forward" in vars(child):
                return f"{name or 'the model'} has a forward of its own"
            layer = describe(name, child, layout, channels_last, name in rectifying)
            if isinstance(layer, str):
                return layer
            layers.append(layer)
    return tuple(layers)


@dataclass
class _Record:
    """What one layer saw in one pass."""

    kept: Tensor | None = None
    output_shape: tuple[int, ...] = ()
    gradient: Tensor | None = None


class _Tap(torch.autograd.Function):
    """The identity, in place; its backward pass keeps the gradient.

    In place and neither a tensor hook nor `autograd.grad` by the output: so the gradient is that
    by the layer's own output even where the next module works in place. `anchor` is a scalar that
    requires grad, so that the graph exists although no weight requires grad.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, anchor: Tensor, record: _Record | Product) -> Tensor:
        ctx.record = record
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        ctx.record.gradient = gradients[0]
        return gradients[0], None, None


@contextmanager
def _tapping(
    path: TapsPath, parameters: Tensor, count: int
) -> Iterator[tuple[Tensor, list[_Record], list[Products]]]:
    """Within, a call of the module on `[count, ...]` records fills the records of all layers.

    Yields the anchor, one record a layer, and the products of each recurrent layer.
    """
    anchor = torch.zeros((), device=parameters.device, requires_grad=True)
    records = [_Record() for _ in path.layers]

    def tap(output: Tensor, into: _Record | Product) -> Tensor:
        tapped: Tensor = _Tap.apply(output, anchor, into)  # type: ignore[no-untyped-call]
        return tapped

    def tapped_forward(layer: Layer, record: _Record) -> Callable[[Tensor], Tensor]:
        weight, shift = layer.slots[0].view(parameters), layer.slots[1]
        bias = None if shift is None else shift.view(parameters)

        def replacement(inputs: Tensor) -> Tensor:
            if record.kept is not None:
                fault = "this layer is called twice in one forward pass"
                raise InputError("task.model", layer.name, fault)
            if inputs.shape[0] != count:
                fault = "the first axis of this layer's input must be the records"
                raise InputError("task.model", layer.name, fault)
            output, record.output_shape, record.kept = layer.kind.forward(inputs, weight, bias)
            tapped = tap(output, record)
            shape = record.output_shape
            return tapped if tapped.shape == shape else tapped.view(shape)

        return replacement

    forwards: dict[str, Callable[[Tensor], Tensor]] = {
        layer.name: tapped_forward(layer, record)
        for layer, record in zip(path.layers, records, strict=True)
    }
    forwards |= {pooling.name: pooling.forward for pooling in path.poolings}
    forwards |= dict.fromkeys(path.rectifiers, lambda inputs: inputs)
    children = {name: path.module.get_submodule(name) for name in forwards}
    recurring = [path.module.get_submodule(layer.name) for layer in path.recurrent]
    products: list[Products] = [{} for _ in recurring]
    try:
        for name, child in children.items():
            vars(child)["forward"] = forwards[name]
        for layer, child, own in zip(path.recurrent, recurring, products, strict=True):
            vars(child)["project"] = layer.projection(parameters, count, tap, own)
        yield anchor, records, products
    finally:
        for child in children.values():
            vars(child).pop("forward", None)
        for child in recurring:
            vars(child).pop("project", None)


@dataclass(frozen=True)
class TapsPath:
    """Clipped sums by taps; valid for a module only once `probe` has proved it.

    `poolings` pool in place of the children of the same name; what `rectifiers` do, the layer or
    the pooling after each of them does.

    `module` is this object's own copy, with no parameter that requires grad. Its tapped layers'
    `forward` are replaced during a call, so one object serves one thread.
    """

    module: nn.Module
    loss: Loss
    layers: tuple[Layer, ...]
    poolings: tuple[MaxPooling, ...]
    rectifiers: tuple[str, ...]
    recurrent: tuple[RecurrentLayer, ...] = ()
    precision: Precision = "float32"

    def add_plain(self, parameters: Tensor, batch: RecordBatch, total: Tensor, beta: int) -> Tensor:
        parts, losses = self.contributions(parameters, batch, norms=False)
        with torch.no_grad():
            factors = batch.mask.to(losses.dtype)
            for part in parts:
                part.add_to(total, factors, beta)
        return losses

    def contributions(
        self, parameters: Tensor, batch: RecordBatch, norms: bool
    ) -> tuple[list[Contribution], Tensor]:
        """The gradients of every layer in their cheapest form, and the masked losses."""
        mask, shares, coins = batch.mask, batch.shares, batch.coins
        nodes, count = mask.shape[0], mask.numel()
        rows = 1 if shares is None else shares.shape[2]
        tapping = _tapping(self, parameters, count * rows)
        dropped = dropping(self.module, None if coins is None else coins.flatten())
        passed = passing(self.precision, parameters.device)
        with torch.enable_grad(), passed, tapping as (anchor, records, products), dropped:
            with forward(self.precision, parameters.device):
                outputs = self.module(batch.inputs.flatten(0, 1))
            losses = self.loss.per_record(widened(outputs), batch.targets.flatten(0, 1))
            if shares is not None:
                losses = (losses.view(shares.shape) * shares).sum(dim=2)
            losses = losses.view(mask.shape)
            if not batch.full:
                losses = torch.where(mask, losses, 0.0)
            if losses.requires_grad:
                torch.autograd.grad(losses.sum(), anchor, allow_unused=True)
        parts: list[Contribution] = []
        kind = parameters.dtype
        with torch.no_grad():
            for layer, record in zip(self.layers, records, strict=True):
                if record.kept is None:
                    raise InputError(
                        "task.model", layer.name, "this layer is not called in a forward pass"
                    )
                gradient = record.gradient
                if gradient is None:
                    gradient = parameters.new_zeros(record.output_shape)
                gradient = taken(gradient, layer.name, kind).view(record.output_shape)
                kept = taken(record.kept, layer.name, kind)
                parts += layer.kind.parts(layer.slots, kept, gradient, nodes, rows, norms)
            for recurring, calls in zip(self.recurrent, products, strict=True):
                parts += recurring.contributions(calls, nodes, count, norms, kind)
        return parts, losses.detach()

    def evaluate(self, module: nn.Module, weights: Weights, inputs: Tensor) -> Tensor:
        """The outputs `[records, ...]` of one node, all records in one pass."""
        outputs: Tensor = functional_call(module, weights, (inputs,))
        return outputs
