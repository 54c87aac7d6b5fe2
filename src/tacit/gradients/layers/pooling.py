"""Max-pooling, and the rectifier before it, in one pass over images that lie channels last.

Neither has weights, but where images are small they take as long as the products: of 640 images
(16, 14, 14) on one core, rectifying and pooling windows of 2 x 2, one step apart, takes 7 ms by
PyTorch and 3 so, and back 5 and 2.

A convolution that copies patches, and a max-pooling, can take negative numbers for zero while they
read. Then the rectifier before them does nothing, forward or back (`rectified`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.gradients.layers import processor

_KINDS = (nn.Conv1d, nn.Conv2d, nn.MaxPool2d)
_MAKERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.GroupNorm, nn.LayerNorm)
_LARGEST_WINDOW = 255  # numbers, so that a place in it takes a byte


@dataclass(frozen=True)
class MaxPooling:
    """A max-pooling without padding. `rectified` says that numbers below zero count as zero."""

    name: str
    kernel: tuple[int, int]
    stride: tuple[int, int]
    rectified: bool

    def forward(self, inputs: Tensor) -> Tensor:
        """The largest numbers of all windows of `[records, channels, height, width]`."""
        last = inputs.ndim == 4 and inputs.is_contiguous(memory_format=torch.channels_last)
        if last and processor.serves(inputs):
            largest: Tensor = _Largest.apply(inputs, self)  # type: ignore[no-untyped-call]
            return largest
        images = torch.relu(inputs) if self.rectified else inputs
        return functional.max_pool2d(images, self.kernel, self.stride)


class _Largest(torch.autograd.Function):
    """`MaxPooling.forward` by a loop; images channels last."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, pooling: MaxPooling) -> Tensor:
        from tacit.kernels.images import maxima

        records, channels, *sides = images.shape
        counts = (
            (side - kernel) // stride + 1
            for side, kernel, stride in zip(sides, pooling.kernel, pooling.stride, strict=True)
        )
        shape = (records, channels, *counts)
        # No view of another tensor: the next module may work in place.
        largest = torch.empty(shape, dtype=images.dtype, memory_format=torch.channels_last)
        places = torch.empty(shape, dtype=torch.uint8, memory_format=torch.channels_last)
        source, best, where = map(processor.last_channels, (images, largest, places))
        settings = pooling.kernel, pooling.stride, pooling.rectified

        def work(part: slice) -> None:
            maxima(source[part], best[part], where[part], *settings)

        processor.over_records(records, images.numel(), work)
        ctx.pooling, ctx.places, ctx.shape = pooling, where, images.shape
        return largest

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        from tacit.kernels.images import spread

        (given,) = gradients
        images = torch.empty(ctx.shape, dtype=given.dtype, memory_format=torch.channels_last)
        source, target = map(processor.last_channels, (given, images))
        places, settings = ctx.places, (ctx.pooling.kernel, ctx.pooling.stride)

        def work(part: slice) -> None:
            spread(source[part], places[part], target[part], *settings)

        processor.over_records(len(target), images.numel(), work)
        return images, None


def poolings(module: nn.Module, rectifying: Collection[str] = ()) -> tuple[MaxPooling, ...]:
    """The max-poolings of a module that need no padding; those named `rectifying` rectify too."""
    return tuple(
        MaxPooling(name, _pair(child.kernel_size), _pair(child.stride), name in rectifying)
        for name, child in module.named_modules()
        if isinstance(child, nn.MaxPool2d) and _plain(child) and _without_padding(child)
    )


def _without_padding(module: nn.MaxPool2d) -> bool:
    rows, columns = _pair(module.kernel_size)
    usual = (_pair(module.padding), _pair(module.dilation)) == ((0, 0), (1, 1))
    more = module.ceil_mode or module.return_indices or rows * columns > _LARGEST_WINDOW
    return usual and not more


def _pair(size: int | tuple[int, ...]) -> tuple[int, int]:
    rows, columns = (size, size) if isinstance(size, int) else size
    return rows, columns


def rectified(module: nn.Module) -> dict[str, str]:
    """Convolutions and max-poolings that may rectify, and the rectifier before each, by names.

    A rectifier that a `nn.Sequential` calls directly before: nothing else sees what it returns. One
    that works in place counts if what it changes was made by the layer before it.
    """
    # Not `children`, which names a child once that stands in several places.
    uses = Counter(id(child) for parent in module.modules() for child in parent._modules.values())
    found: dict[str, str] = {}
    for name, parent in module.named_modules():
        if type(parent) is not nn.Sequential:
            continue
        prefix = f"{name}." if name else ""
        maker: nn.Module | None = None
        for (before, first), (own, child) in pairwise(parent._modules.items()):
            alone = isinstance(first, nn.ReLU) and _plain(first) and uses[id(first)] == 1
            kept = alone and (not first.inplace or isinstance(maker, _MAKERS))
            if kept and isinstance(child, _KINDS) and _plain(child) and uses[id(child)] == 1:
                found[prefix + own] = prefix + before
            maker = first
    return found


def _plain(module: nn.Module) -> bool:
    """Whether a leaf does what its class does, and nobody listens."""
    listeners = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks
    known = type(module) in (nn.ReLU, *_KINDS) and "forward" not in vars(module)
    return known and not any(listeners)
