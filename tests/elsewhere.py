"""A device that holds no numbers: what a step does there can be looked at on any machine.

PyTorch's `meta` device has shapes and types, and whatever would have to read a number fails. So a
step that runs there does not wait for its device. Copies to it and from it are seen, too.
"""

import copy
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from tacit.gradients.captured import WaitError, Watched

META = torch.device("meta")


@contextmanager
def watched():
    """Within, whatever would wait for the device raises `WaitError`: see `Watched`."""
    with _Calls(), Watched(sends=True):
        yield


class _Calls(TorchFunctionMode):
    """What makes a tensor of numbers of the host elsewhere, which no operation shows."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        made = func in (torch.tensor, torch.as_tensor) and not isinstance(args[0], torch.Tensor)
        if made and torch.device(kwargs.get("device") or "cpu").type != "cpu":
            raise WaitError(f"a copy from the host by {func}")
        return func(*args, **kwargs)


def elsewhere(value):
    """A deep copy of anything, with every tensor on the device without numbers."""

    def tensor(self, memo):
        if id(self) not in memo:
            memo[id(self)] = torch.empty_like(self.detach(), device=META)
        return memo[id(self)]

    def parameter(self, memo):
        if id(self) not in memo:
            made = torch.empty_like(self.detach(), device=META)
            memo[id(self)] = nn.Parameter(made, requires_grad=self.requires_grad)
        return memo[id(self)]

    with (
        patch.object(torch.Tensor, "__deepcopy__", tensor),
        patch.object(nn.Parameter, "__deepcopy__", parameter),
    ):
        return copy.deepcopy(value)
