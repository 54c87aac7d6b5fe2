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
from torch.utils._python_dispatch import TorchDispatchMode

META = torch.device("meta")


class WaitError(Exception):
    """An operation for which host and device would have to meet."""


@contextmanager
def watched():
    """Within, whatever would wait for the device raises `WaitError`.

    That is: a number that is read, a shape that depends on numbers, and copies between host and
    device, but for those from the host that are told not to wait (`tacit.base.sending`).
    """
    with _Calls(), _Operations():
        yield


class _Calls(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        made = func in (torch.tensor, torch.as_tensor) and not isinstance(args[0], torch.Tensor)
        if made and torch.device(kwargs.get("device") or "cpu").type != "cpu":
            raise WaitError(f"a copy from the host by {func}")
        return func(*args, **kwargs)


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        if name == "copy_":
            self._copied(args[1].device, args[0].device, args[2] if len(args) > 2 else False)
        elif name == "_to_copy" and kwargs.get("device") is not None:
            target = torch.device(kwargs["device"])
            self._copied(args[0].device, target, kwargs.get("non_blocking", False))
        elif any(tensor.device != torch.device("cpu") for tensor in tensors):
            self._read(func, name, args)
        return func(*args, **kwargs)

    def _copied(self, source, target, non_blocking):
        if source.type != target.type and not (source.type == "cpu" and non_blocking):
            raise WaitError(f"a copy from {source} to {target}")

    def _read(self, func, name, args):
        if torch.Tag.data_dependent_output in func.tags:
            raise WaitError(f"{func} reads a number")
        indexed = name.startswith(("index", "_index")) and isinstance(args[1], (list, tuple))
        indices = [index for index in args[1] if index is not None] if indexed else []
        if any(index.device != args[0].device for index in indices):
            raise WaitError(f"{func} by numbers that lie elsewhere")
        masks = any(index.dtype in (torch.bool, torch.uint8) for index in indices)
        if masks or name in ("nonzero", "masked_select", "_unique2", "bincount"):
            raise WaitError(f"the shape of {func} depends on numbers")


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
