"""Rectifiers that need no pass of their own: where the next layer reads their input anyway.

A convolution that copies patches, and a max-pooling, can take negative numbers for zero while they
read. Then the rectifier before them does nothing, forward or back.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from torch import nn

_KINDS = (nn.Conv1d, nn.Conv2d, nn.MaxPool2d)
_MAKERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.GroupNorm, nn.LayerNorm)


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
            alone = isinstance(first, nn.ReLU) and plain(first) and uses[id(first)] == 1
            kept = alone and (not first.inplace or isinstance(maker, _MAKERS))
            if kept and isinstance(child, _KINDS) and plain(child) and uses[id(child)] == 1:
                found[prefix + own] = prefix + before
            maker = first
    return found


def plain(module: nn.Module) -> bool:
    """Whether a leaf does what its class does, and nobody listens."""
    listeners = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks
    known = type(module) in (nn.ReLU, *_KINDS) and "forward" not in vars(module)
    return known and not any(listeners)
