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

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from tacit.errors import InputError
from tacit.gradients.clipping import Clip, ClipNorm, add_clipped, clip_records
from tacit.gradients.contributions import Contribution, Dense, Layout, scale_and_add
from tacit.gradients.dropout import dropping
from tacit.gradients.layers.pooling import MaxPooling
from tacit.gradients.layers.recurrent import Product, Products, RecurrentLayer
from tacit.gradients.layers.rules import Layer, describe
from tacit.gradients.losses import Loss
from tacit.gradients.precision import Precision, forward, passing, taken, widened
from tacit.gradients.recurrent import Recurrent

Weights = dict[str, Tensor]


class GradientPath(Protocol):
    """One way to compute clipped sums; what `StackedModel` is built on."""

    def accumulate(
        self,
        parameters: Tensor,
        inputs: Tensor,
        targets: Tensor,
        mask: Tensor,
        clip: Clip | None,
        total: Tensor,
        beta: int,
        norm: ClipNorm = "l2",
        coins: Tensor | None = None,
        shares: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Scale `total` by beta and add the sum of (clipped) gradients over unmasked records.

        A record may be several rows, one after the other: its views, or all that a person has. Its
        loss is then the sum of theirs, each times its share.

        Args:
            parameters: `[nodes, d]`.
            inputs: `[nodes, b * rows, ...]`, valid in masked slots too.
            targets: `[nodes, b * rows, ...]`, valid in masked slots too.
            mask: `[nodes, b]`, True for records.
            clip: bound on each record's norm, or None.
            total: `[nodes, d]`, changed in place.
            beta: 1, or 0 to overwrite whatever `total` holds.
            norm: which norm is bounded, and how; see `clipping`.
            coins: int64 `[nodes, b * rows]`, what dropout derives the mask of each row from;
                None for a module that drops nothing.
            shares: `[nodes, b, rows]`; None where a record is one row that counts once.

        Returns:
            norms `[nodes, b]` (`[nodes, 0]` where clip is None) and losses `[nodes, b]`, both 0
            where masked.
        """

    def contributions(
        self,
        parameters: Tensor,
        inputs: Tensor,
        targets: Tensor,
        mask: Tensor,
        norms: bool,
        coins: Tensor | None = None,
        shares: Tensor | None = None,
    ) -> tuple[list[Contribution], Tensor]:
        """Each record's gradient, not clipped, one part a parameter; and the masked losses.

        `norms`: whether norms will be asked for, which decides the form of the parts. Masked slots
        hold whatever their inputs give.
        """

    def evaluate(self, module: nn.Module, weights: Weights, inputs: Tensor) -> Tensor:
        """The outputs `[records, ...]` of `module` with these weights."""


@dataclass(frozen=True)
class FunctionalPath:
    """Per-record gradients by `vmap` over nodes and records of `grad`."""

    module: nn.Module
    loss: Loss
    layout: Layout
    precision: Precision = "float32"

    def _record_loss(
        self,
        weights: Weights,
        inputs: Tensor,
        targets: Tensor,
        coins: Tensor | None,
        shares: Tensor | None,
    ) -> Tensor:
        """Of a record, or the sum over its rows `[rows, ...]`, each a batch of its own."""
        if shares is None:
            return self._row_loss(weights, inputs, targets, coins)
        each = vmap(self._row_loss, (None, 0, 0, _axis(coins)))
        losses: Tensor = each(weights, inputs, targets, coins)
        return (losses * shares).sum()

    def _row_loss(
        self, weights: Weights, inputs: Tensor, target: Tensor, coin: Tensor | None
    ) -> Tensor:
        dropped = dropping(self.module, None if coin is None else coin.unsqueeze(0))
        with dropped, forward(self.precision, inputs.device):
            outputs = functional_call(self.module, weights, (inputs.unsqueeze(0),))
        return self.loss.per_record(widened(outputs), target.unsqueeze(0))[0]

    def _masked_loss(
        self,
        weights: Weights,
        inputs: Tensor,
        targets: Tensor,
        mask: Tensor,
        coins: Tensor | None,
        shares: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        each = vmap(self._record_loss, (None, 0, 0, _axis(coins), _axis(shares)))
        losses = each(weights, inputs, targets, coins, shares)
        losses = torch.where(mask, losses, 0.0)
        return losses.sum(), losses.detach()

    def accumulate(
        self,
        parameters: Tensor,
        inputs: Tensor,
        targets: Tensor,
        mask: Tensor,
        clip: Clip | None,
        total: Tensor,
        beta: int,
        norm: ClipNorm = "l2",
        coins: Tensor | None = None,
        shares: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Scale `total` by beta and add the (clipped) sum; see `GradientPath`."""
        nodes = mask.shape[0]
        if clip is None:
            inputs, targets, coins = _by_record(shares, inputs, targets, coins)
            weights = self.layout.views(parameters)
            summed = grad_and_value(self._masked_loss, has_aux=True)
            every = vmap(summed, (0, 0, 0, 0, _axis(coins), _axis(shares)))
            with passing(self.precision, parameters.device):
                gradients, (_, losses) = every(weights, inputs, targets, mask, coins, shares)
            for slot in self.layout.slots:
                scale_and_add(
                    total[:, slot.start : slot.stop], gradients[slot.name].reshape(nodes, -1), beta
                )
            return losses.new_empty(nodes, 0), losses

        parts, losses = self.contributions(
            parameters, inputs, targets, mask, norms=True, coins=coins, shares=shares
        )
        parts, factors, norms = clip_records(parts, mask, clip, norm)
        add_clipped(parts, factors, total, beta)
        return norms, losses

    def contributions(
        self,
        parameters: Tensor,
        inputs: Tensor,
        targets: Tensor,
        mask: Tensor,
        norms: bool,
        coins: Tensor | None = None,
        shares: Tensor | None = None,
    ) -> tuple[list[Contribution], Tensor]:
        """Every parameter's materialised gradients; see `GradientPath`."""
        inputs, targets, coins = _by_record(shares, inputs, targets, coins)
        axes = 0, 0, _axis(coins), _axis(shares)
        every = vmap(vmap(grad_and_value(self._record_loss), (None, *axes)), (0, *axes))
        weights = self.layout.views(parameters)
        with passing(self.precision, parameters.device):
            gradients, losses = every(weights, inputs, targets, coins, shares)
        parts: list[Contribution] = [
            Dense(slot, gradients[slot.name].reshape(*mask.shape, -1)) for slot in self.layout.slots
        ]
        return parts, losses.masked_fill(~mask, 0.0)

    def evaluate(self, module: nn.Module, weights: Weights, inputs: Tensor) -> Tensor:
        """The outputs `[records, ...]` of one node, every record alone."""

        def one(record: Tensor) -> Tensor:
            outputs: Tensor = functional_call(module, weights, (record.unsqueeze(0),))
            return outputs[0]

        return vmap(one)(inputs)


def _by_record(
    shares: Tensor | None, inputs: Tensor, targets: Tensor, coins: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Rows `[nodes, b * rows, ...]` as `[nodes, b, rows, ...]`, where a record may be several."""
    if shares is None:
        return inputs, targets, coins
    shape = shares.shape
    inputs, targets = (values.view(*shape, *values.shape[2:]) for values in (inputs, targets))
    return inputs, targets, None if coins is None else coins.view(shape)


def _axis(values: Tensor | None) -> int | None:
    """The axis of records, for `vmap`, of what may not be there."""
    return None if values is None else 0


def tapped_layers(
    module: nn.Module, layout: Layout, channels_last: bool, rectifying: Collection[str] = ()
) -> tuple[Layer, ...] | str:
    """The layers that hold all trainable parameters, or the reason why taps cannot serve.

    Every trainable parameter must belong to exactly one leaf of a known kind, or to a `Recurrent`,
    which is no part of what is returned: see `layers.recurrent`. `channels_last`:
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


def _tapped_forward(
    layer: Layer,
    weight: Tensor,
    bias: Tensor | None,
    count: int,
    anchor: Tensor,
    record: _Record,
    inputs: Tensor,
) -> Tensor:
    """What a tapped layer's `forward` does with `inputs` `[count, ...]`."""
    if record.kept is not None:
        raise InputError("task.model", layer.name, "this layer is called twice in one forward pass")
    if inputs.shape[0] != count:
        raise InputError(
            "task.model", layer.name, "the first axis of this layer's input must be the records"
        )
    output, record.output_shape, record.kept = layer.forward(inputs, weight, bias)
    tapped: Tensor = _Tap.apply(output, anchor, record)  # type: ignore[no-untyped-call]
    return tapped if tapped.shape == record.output_shape else tapped.view(record.output_shape)


@contextmanager
def _tapping(
    module: nn.Module,
    layers: Sequence[Layer],
    poolings: Sequence[MaxPooling],
    rectifiers: Iterable[str],
    recurrent: Sequence[RecurrentLayer],
    parameters: Tensor,
    count: int,
) -> Iterator[tuple[Tensor, list[_Record], list[Products]]]:
    """Within, a call of `module` on `[count, ...]` records fills the records of all layers.

    Yields the anchor, one record a layer, and the products of each recurrent layer.
    """
    anchor = torch.zeros((), device=parameters.device, requires_grad=True)
    records = [_Record() for _ in layers]
    forwards: dict[str, Callable[[Tensor], Tensor]] = {}
    for leaf, record in zip(layers, records, strict=True):
        weight = leaf.weight.view(parameters)
        bias = leaf.bias.view(parameters) if leaf.bias else None
        forwards[leaf.name] = partial(_tapped_forward, leaf, weight, bias, count, anchor, record)
    forwards |= {pooling.name: pooling.forward for pooling in poolings}
    forwards |= dict.fromkeys(rectifiers, _unchanged)
    children = {name: module.get_submodule(name) for name in forwards}
    recurring = [module.get_submodule(layer.name) for layer in recurrent]
    products: list[Products] = [{} for _ in recurrent]

    def tap(output: Tensor, product: Product) -> Tensor:
        tapped: Tensor = _Tap.apply(output, anchor, product)  # type: ignore[no-untyped-call]
        return tapped

    try:
        for name, child in children.items():
            vars(child)["forward"] = forwards[name]
        for layer, child, own in zip(recurrent, recurring, products, strict=True):
            vars(child)["project"] = layer.projection(parameters, count, tap, own)
        yield anchor, records, products
    finally:
        for child in children.values():
            vars(child).pop("forward", None)
        for child in recurring:
            vars(child).pop("project", None)


def _unchanged(inputs: Tensor) -> Tensor:
    """The forward pass of a module whose work another one does."""
    return inputs


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

    def accumulate(
        self,
        parameters: Tensor,
        inputs: Tensor,
        targets: Tensor,
        mask: Tensor,
        clip: Clip | None,
        total: Tensor,
        beta: int,
        norm: ClipNorm = "l2",
        coins: Tensor | None = None,
        shares: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Scale `total` by beta and add the (clipped) sum; see `GradientPath`."""
        parts, losses = self.contributions(
            parameters, inputs, targets, mask, clip is not None, coins, shares
        )
        with torch.no_grad():
            if clip is None:
                norms = losses.new_empty(mask.shape[0], 0)
                factors = mask.to(losses.dtype)
                for part in parts:
                    part.add_to(total, factors, beta)
            else:
                parts, factors, norms = clip_records(parts, mask, clip, norm)
                add_clipped(parts, factors, total, beta)
        return norms, losses

    def contributions(
        self,
        parameters: Tensor,
        inputs: Tensor,
        targets: Tensor,
        mask: Tensor,
        norms: bool,
        coins: Tensor | None = None,
        shares: Tensor | None = None,
    ) -> tuple[list[Contribution], Tensor]:
        """The gradients of every layer in their cheapest form, and the masked losses."""
        nodes, count = mask.shape[0], mask.numel()
        rows = 1 if shares is None else shares.shape[2]
        replaced = self.layers, self.poolings, self.rectifiers, self.recurrent
        tapping = _tapping(self.module, *replaced, parameters, count * rows)
        dropped = dropping(self.module, None if coins is None else coins.flatten())
        passed = passing(self.precision, parameters.device)
        with torch.enable_grad(), passed, tapping as (anchor, records, products), dropped:
            with forward(self.precision, parameters.device):
                outputs = self.module(inputs.flatten(0, 1))
            losses = self.loss.per_record(widened(outputs), targets.flatten(0, 1))
            if shares is not None:
                losses = (losses.view(shares.shape) * shares).sum(dim=2)
            losses = torch.where(mask, losses.view(mask.shape), 0.0)
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
                parts += layer.contributions(kept, gradient, nodes, rows, norms)
            for recurring, own in zip(self.recurrent, products, strict=True):
                parts += recurring.contributions(own, nodes, count, norms, kind)
        return parts, losses.detach()

    def evaluate(self, module: nn.Module, weights: Weights, inputs: Tensor) -> Tensor:
        """The outputs `[records, ...]` of one node, all records in one pass."""
        outputs: Tensor = functional_call(module, weights, (inputs,))
        return outputs
