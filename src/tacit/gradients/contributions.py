"""The gradients of a batch by one parameter, in whatever form is cheapest.

A contribution *is* a set of real vectors, one a record, which its tensors define exactly: a vector
of numbers, an outer product of two, or a sum of such products over positions. Everything that is
said of a record is said of that vector: `sizes` bounds its norm from above, and `add_to` adds a
multiple of it, with rounding errors that `docs/proofs/clipped-sums.md` bounds. How far the tensors
themselves are from the gradient of the loss has no part in the proof.

A `Layout` says where each trainable parameter of a module lies in a flat vector `[d]`. The order is
that of `module.parameters()`, trainable parameters only; a tied parameter is one.
"""

# ruff: noqa: D102 (what a method of a protocol does, the protocol says)

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn


def all_known_true(flags: Tensor) -> bool:
    """Whether all flags are True, as far as that is known: always False on an accelerator.

    There an answer would hold up the queue of every step; the caller does what is right for any
    flags instead. On the CPU the answer saves passes over whole batches.
    """
    return flags.device.type == "cpu" and bool(flags.all())


@dataclass(frozen=True)
class Slot:
    """One parameter's place: `vector[start:stop]` holds the parameter `name` of shape `shape`."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int

    def view(self, stacked: Tensor) -> Tensor:
        """This parameter for every node, `[nodes, *shape]`, as a view of `[nodes, d]`."""
        return stacked[:, self.start : self.stop].view(stacked.shape[0], *self.shape)


Slots = tuple[Slot, Slot | None]
"""Of a layer's weight, and of its bias if it has one."""


@dataclass(frozen=True)
class Layout:
    """All slots of a module, in order."""

    slots: tuple[Slot, ...]

    @property
    def size(self) -> int:
        """The number d of trainable parameters."""
        return self.slots[-1].stop if self.slots else 0

    def views(self, stacked: Tensor) -> dict[str, Tensor]:
        """Every parameter by name, `[nodes, *shape]` each, as views of `stacked` `[nodes, d]`."""
        return {slot.name: slot.view(stacked) for slot in self.slots}

    def flatten(self, module: nn.Module) -> Tensor:
        """The present trainable weights of `module` as one detached vector `[d]`."""
        named = dict(module.named_parameters())
        return torch.cat([named[slot.name].detach().reshape(-1) for slot in self.slots])


def layout_of(module: nn.Module) -> Layout:
    """The layout of the trainable parameters of `module`."""
    slots: list[Slot] = []
    start = 0
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            stop = start + math.prod(parameter.shape)
            slots.append(Slot(name, tuple(parameter.shape), start, stop))
            start = stop
    return Layout(tuple(slots))


CHUNK = 128
"""Records whose contributions a product adds up; a float64 total adds such sums."""

_BLOCK_NUMBERS = 1 << 21  # 8 MiB in single precision
_NORM_NUMBERS = 1024  # squares that are added up in the dtype of the gradients


@dataclass(frozen=True)
class Sizes:
    """How long the gradients of a batch are, each `[nodes, b]` in float64.

    Attributes:
        bounds: upper bounds on squared l2 norms, rounding included and nothing else; not finite
            where the gradient is not.
        terms: squared sums over positions of the norms of the terms, where a gradient is a sum in
            which terms may cancel; None where it is one term.
        reach: squared norms of the factor that a weighted factor is multiplied by, at least, so
            that what underflows in the one is known to be small; None where there is none.
    """

    bounds: Tensor
    terms: Tensor | None = None
    reach: Tensor | None = None


def square_bounds(values: Tensor) -> Tensor:
    """Upper bounds `[...]` in float64 on squared l2 norms of `values` `[..., n]`.

    Squares of up to 1,024 numbers are added up in the dtype of `values`, which errs by a share of
    at most (1,024 + 16) u, in whatever order it is done, and by what underflows; the sums of these
    are added in float64.
    """
    count = values.shape[-1]
    limits = torch.finfo(values.dtype)
    whole = count - count % _NORM_NUMBERS if count > _NORM_NUMBERS else 0
    norms: Tensor = torch.linalg.vector_norm(values[..., whole:] if whole else values, dim=-1)
    squares = norms.double().square_()
    if whole:
        blocks = values[..., :whole].view(*values.shape[:-1], -1, _NORM_NUMBERS)
        lengths: Tensor = torch.linalg.vector_norm(blocks, dim=-1)
        squares += lengths.double().square_().sum(dim=-1)
    share = (min(count, _NORM_NUMBERS) + 16) * limits.eps / 2 + count * 2.0**-51
    return squares.mul_(1 + 1.01 * share).add_(2 * count * limits.tiny)


@dataclass(frozen=True)
class Contribution(ABC):
    """The gradients of a batch by one parameter, in whatever form is cheapest.

    Attributes:
        slot: where the parameter lies in the flat vector.
    """

    slot: Slot

    @property
    def kept(self) -> tuple[Tensor, ...]:
        """The tensors that define the gradients; the last one has their dtype."""
        return tuple(each for each in vars(self).values() if isinstance(each, Tensor))

    @property
    def dtype(self) -> torch.dtype:
        """Of the gradients."""
        return self.kept[-1].dtype

    @property
    def positions(self) -> int:
        """Terms of the sum that a record's gradient is; 1 where none can cancel another."""
        return 1

    @abstractmethod
    def sizes(self) -> Sizes:
        """Bounds on squared l2 norms, and on what sums of the gradients lose to rounding."""

    @abstractmethod
    def absolute_sums(self) -> Tensor:
        """The l1 norms `[nodes, b]`, in float64; not finite where the gradient is not.

        To a share of (numbers + 16) 2^-52. Only of gradients that are no sum over positions.
        """

    def cleaned(self, finite: Tensor) -> Self:
        """The same with zeros for the records where `finite` `[nodes, b]` is False."""
        zeros: dict[str, Any] = {
            name: each.masked_fill(~finite.view(*finite.shape, *(1,) * (each.ndim - 2)), 0.0)
            for name, each in vars(self).items()
            if isinstance(each, Tensor) and each.is_floating_point()
        }
        return replace(self, **zeros)

    @abstractmethod
    def add_to(self, total: Tensor, factors: Tensor, beta: int) -> None:
        """In `total` `[nodes, d]`, scale the own slot by beta and add sum_r factor_r gradient_r.

        Products of `CHUNK` records at most are added to a float64 total, one after the other;
        a total in the dtype of the gradients takes all of them in one product.
        """

    def exact(self) -> Self:
        """The same, in float64 where terms may cancel: products are then all but exact."""
        return self

    def numel(self) -> int:
        """How many numbers this keeps."""
        return sum(tensor.numel() for tensor in self.kept)

    @abstractmethod
    def materialised(self) -> Dense:
        """The same gradients, as one vector a record."""

    def outer(self) -> Outer:
        """The same gradients, as outer products: of a one, where no factors hold less."""
        return self.materialised().outer()


@dataclass(frozen=True)
class Dense(Contribution):
    """Materialised gradients, `values` `[nodes, b, size of the slot]`.

    `gradients_of` is the slot of the weight whose `Outer.gradients` hold the very same numbers, if
    there is one: a bias whose layer has one position.
    """

    values: Tensor
    gradients_of: Slot | None = None

    def sizes(self) -> Sizes:
        return Sizes(square_bounds(self.values))

    def absolute_sums(self) -> Tensor:
        sums: Tensor = torch.linalg.vector_norm(self.values, ord=1, dim=2, dtype=torch.float64)
        return sums

    def add_to(self, total: Tensor, factors: Tensor, beta: int) -> None:
        target = total[:, self.slot.start : self.slot.stop].unsqueeze(1)
        _add_product(target, factors.to(self.dtype).unsqueeze(1), self.values, beta, CHUNK)

    def materialised(self) -> Dense:
        return self

    def outer(self) -> Outer:
        """See `Contribution`; the inputs are a one that takes no memory."""
        ones = self.values.new_ones(()).expand(*self.values.shape[:2], 1, 1, 1)
        gradients = self.values[:, :, None, None]
        return Outer(self.slot, ones, gradients, self.gradients_of)


@dataclass(frozen=True)
class Outer(Contribution):
    """Gradients as outer products summed over positions.

    `inputs` `[nodes, b, groups, positions, in]`, `gradients` `[nodes, b, groups, positions, out]`;
    the slot's parameter is `[groups * out, in]` when flattened. `gradients_of` as in `Dense`.
    """

    inputs: Tensor
    gradients: Tensor
    gradients_of: Slot | None = None

    @property
    def positions(self) -> int:
        return self.inputs.shape[3]

    def sizes(self) -> Sizes:
        return _one_term(self) if self.positions == 1 else _terms(self)

    def absolute_sums(self) -> Tensor:
        """See `Contribution`; of an outer product, the product of those of its factors."""
        left, right = (
            torch.linalg.vector_norm(factor, ord=1, dim=(3, 4), dtype=torch.float64)
            for factor in (self.inputs, self.gradients)
        )
        sums: Tensor = (left * right).sum(dim=2)
        return sums

    def exact(self) -> Outer:
        if self.positions == 1:
            return self
        return replace(self, inputs=self.inputs.double(), gradients=self.gradients.double())

    def add_to(self, total: Tensor, factors: Tensor, beta: int) -> None:
        nodes, _, groups, _, width = self.inputs.shape
        height = self.gradients.shape[4]
        weighted = self.gradients
        if not all_known_true(factors == 1):
            weighted = weighted * factors.to(self.dtype).view(*factors.shape, 1, 1, 1)
        target = total[:, self.slot.start : self.slot.stop].view(nodes, groups, height, width)
        for group in range(groups):
            left = weighted[:, :, group].reshape(nodes, -1, height).transpose(1, 2)
            right = self.inputs[:, :, group].reshape(nodes, -1, width)
            _add_product(target[:, group], left, right, beta, CHUNK * self.positions)

    def materialised(self) -> Dense:
        return Dense(self.slot, (self.gradients.transpose(3, 4) @ self.inputs).flatten(2))

    def outer(self) -> Outer:
        return self


def materialise(positions: int, width: int, height: int) -> bool:
    """Whether to norm a weight by its materialised gradient rather than by Gram matrices.

    With one position the norm is a product of two norms. Else the materialised gradient, which
    also makes the sum over records nearly free, as long as it is no more than twice the size of
    what it is made of: measured with the convolutions of the models here.
    """
    return positions > 1 and width * height <= 2 * positions * (width + height)


def _in_form(outer: Outer, as_matrix: bool) -> Contribution:
    return outer.materialised() if as_matrix else outer


def of_factors(
    slots: Slots,
    inputs: Tensor,
    gradients: Tensor,
    norms: bool,
    finish: Callable[[Outer, bool], Contribution] = _in_form,
) -> list[Contribution]:
    """Those by the weight and the bias of a layer of products, from the factors of an `Outer`.

    Positions are a record's own, of all its views. `norms`: whether norms will be asked for.
    `finish`: (outer products, whether as matrices) -> the gradients by the weight.
    """
    (weight, bias), positions = slots, inputs.shape[3]
    as_matrix = norms and materialise(positions, inputs.shape[4], gradients.shape[4])
    found = [finish(Outer(weight, inputs, gradients), as_matrix)]
    if bias is not None:
        alike = weight if positions == 1 else None
        found.append(Dense(bias, gradients.sum(dim=3).flatten(2), alike))
    return found


def _one_term(outer: Outer) -> Sizes:
    """The norm of an outer product is the product of two norms."""
    left, right = (square_bounds(factor.flatten(3)) for factor in (outer.inputs, outer.gradients))
    if left.shape[2] == 1:
        left, right = left.squeeze(2), right.squeeze(2)
        return Sizes((left * right).mul_(1 + 2.0**-40), reach=left)
    return Sizes((left * right).sum(dim=2).mul_(1 + 2.0**-40), reach=left.amax(dim=2))


def _terms(outer: Outer) -> Sizes:
    """The norm of a sum over positions, from two Gram matrices in float64.

    The square is sum_{s,t} (a_s . a_t) (g_s . g_t), of terms that may cancel. With u = 2^-53, a sum
    of n products errs by at most n u (to first order) times the sum of their absolute values, in
    whatever order it is taken (Higham, Accuracy and Stability of Numerical Algorithms, section
    3.1). That sum is at most M = (sum_t |a_t| |g_t|)^2, and n = in + out + groups positions^2 + 16
    covers the operations.
    """
    left, right = outer.inputs.double(), outer.gradients.double()
    groups, positions, width = left.shape[2:]
    lengths = [torch.linalg.vector_norm(factor, dim=4) for factor in (left, right)]
    terms = (lengths[0] * lengths[1]).sum(dim=(2, 3)).square()
    products = (left @ left.transpose(3, 4)) * (right @ right.transpose(3, 4))
    squares = products.sum(dim=(2, 3, 4)).clamp(min=0.0)
    operations = width + right.shape[4] + groups * positions**2 + 16
    bounds = squares + 2 * operations * 2.0**-52 * terms + _UNDERFLOW
    reach = torch.maximum(*(length.square().sum(dim=3).amax(dim=2) for length in lengths))
    return Sizes(bounds, terms, reach)


# What products in float64 lose by underflow is below this where factors are below 2^300.
_UNDERFLOW = 2.0**-300


def _add_product(target: Tensor, left: Tensor, right: Tensor, beta: int, depth: int) -> None:
    """Scale `target` `[nodes, m, n]` by beta and add the matrix products of each node.

    A float64 `target` takes them `depth` columns of `left` at a time, so that a record changes the
    rounding of its own product alone.

    A part of the flat vectors is no contiguous batch, for which `baddbmm_` takes one node after the
    other. So products go by way of a contiguous block that fits a cache. Milliseconds on two cores:
    20 nodes x 32 records x (128, 784) 4.0 so and 1.4 with the block; x (32, 512) 0.88 and 0.48; 65
    records x (2, 105) 0.45 and 0.05. For one record a product is a plain multiplication: 50 nodes x
    (128, 784) 1.5 and 0.56.
    """
    alike = target.dtype == left.dtype
    if left.shape[2] == 1 and alike:
        if beta:
            target.addcmul_(left, right)
        else:
            torch.mul(left, right, out=target)
        return
    total = left.shape[2]
    depth = min(depth, total) if target.dtype == torch.float64 else total
    size = target.shape[1] * target.shape[2]
    if alike and depth == total and (size > _BLOCK_NUMBERS or target.is_contiguous()):
        target.baddbmm_(left, right, beta=beta)
        return
    step = max(1, _BLOCK_NUMBERS // size)
    if step >= target.shape[0] and depth == total:
        scale_and_add(target, torch.bmm(left, right), beta)
        return
    blocks = (torch.split(values, step) for values in (target, left, right))
    for part, one, other in zip(*blocks, strict=True):
        for start in range(0, total, depth):
            columns = slice(start, start + depth)
            scale_and_add(part, torch.bmm(one[:, :, columns], other[:, columns]), beta or start)


def scale_and_add(target: Tensor, values: Tensor, beta: int) -> None:
    """Scale `target` by beta, 1 or 0, and add `values` of the same shape; 0 overwrites anything."""
    if beta:
        target.add_(values)
    else:
        target.copy_(values)
