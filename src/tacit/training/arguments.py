"""What `tacit.train` is called with: of the right kind, before anything is read or loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from tacit.config import Config
from tacit.data.tables import is_frame
from tacit.errors import InputError


def check_arguments(
    config: object, model: object, nodes: object, out: object, loss: object = None
) -> None:
    """Refuse arguments of a wrong kind; arguments are those of `tacit.train`.

    Raises:
        InputError: naming the argument, what it is, and what would be right.
    """
    if not isinstance(config, str | os.PathLike | Mapping | Config):
        expected = (
            "must be the path of an experiment file, a mapping of its sections such as "
            "{'task': {'dataset': 'digits'}}, or a tacit.Config"
        )
        raise InputError("config", _kind(config), expected)
    if out is not None and not isinstance(out, str | os.PathLike):
        raise InputError("out", out, "must be the path of a new run folder")
    if loss is not None and not (isinstance(loss, str) or callable(loss)):
        raise InputError("loss", loss, "must be the name of a loss, or a function")
    _check_model(model)
    _check_nodes(nodes)


def _check_model(model: object) -> None:
    if model is None:
        return
    if isinstance(model, type) and issubclass(model, nn.Module):
        expected = f"is a class: pass an instance, such as {model.__name__}(...)"
        raise InputError("model", _kind(model), expected)
    if not isinstance(model, nn.Module):
        raise InputError("model", _kind(model), "must be a torch.nn.Module")
    for name, values in (*model.named_parameters(), *model.named_buffers()):
        if values.is_meta:
            expected = (
                "is on the device 'meta', and has no numbers: build the module on 'cpu', or call "
                "its to_empty(device='cpu') and load its weights"
            )
            raise InputError("model", name, expected)
        if values.is_complex():
            raise InputError("model", name, "has complex numbers: parameters must be real")


def _check_nodes(nodes: object) -> None:
    if nodes is None or isinstance(nodes, (str, os.PathLike)) or is_frame(nodes):
        return
    expected = "must be a list with one data set a node, or a mapping by their names"
    if isinstance(nodes, Mapping):
        names = ["" if name is None or name != name else str(name) for name in nodes]
        if not names or "" in names or len(set(names)) < len(names):
            rule = "must have one data set a node, each by a name of its own"
            raise InputError("nodes", names, rule)
        return
    if isinstance(nodes, str | bytes | torch.Tensor) or not isinstance(nodes, Sequence):
        raise InputError("nodes", _kind(nodes), f"{expected}: [(inputs, targets), ...]")
    if not nodes:
        raise InputError("nodes", "[]", "needs one data set a node")
    if len(nodes) == 2 and all(isinstance(part, torch.Tensor) for part in nodes):
        raise InputError("nodes", "a pair of tensors", f"{expected}; of a single node, [nodes]")


def _kind(value: object) -> str:
    """The type of an argument, or the class that was given in place of an object."""
    return repr(value) if value is None or isinstance(value, type) else type(value).__name__
