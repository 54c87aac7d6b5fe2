"""Where each trainable parameter of a module lies in a flat vector `[d]`.

The order is that of `module.parameters()`, trainable parameters only; a tied parameter is one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = ["Layout", "Slot", "layout_of"]


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
