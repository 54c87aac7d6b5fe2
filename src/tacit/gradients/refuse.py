"""Modules that cannot be trained with a clipped gradient for each record, and what to use instead.

Clipping bounds what one record does to a step only if a record's gradient is a function of that
record alone, and a run can be repeated only if nothing but the run draws random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from tacit.errors import InputError, describe

__all__ = ["refuse_module", "refuse_outputs"]


@dataclass(frozen=True)
class _Rule:
    """Modules of these types to which `applies` are refused with the advice `instead`."""

    types: tuple[type[nn.Module], ...]
    applies: Callable[[nn.Module], bool]
    instead: str


_RULES = (
    _Rule(
        (_BatchNorm,),
        lambda module: True,
        "batch statistics mix records, so a record's gradient cannot be clipped; "
        "use GroupNorm or LayerNorm",
    ),
    _Rule(
        (_InstanceNorm,),
        lambda module: bool(module.track_running_stats),
        "running statistics of private records would be kept without noise; "
        "use track_running_stats=False, GroupNorm or LayerNorm",
    ),
    _Rule(
        (_DropoutNd,),
        lambda module: float(getattr(module, "p", 0.0)) > 0,
        "it draws from torch's global generator, so a run could not be repeated; "
        "use p=0 or remove it",
    ),
    _Rule(
        (nn.RNNBase, nn.MultiheadAttention),
        lambda module: float(getattr(module, "dropout", 0.0)) > 0,
        "its dropout draws from torch's global generator, so a run could not be repeated; "
        "use dropout=0",
    ),
    _Rule(
        (nn.Embedding, nn.EmbeddingBag),
        lambda module: bool(module.scale_grad_by_freq),
        "a record's gradient would depend on how often its ids are in other records; "
        "use scale_grad_by_freq=False",
    ),
    _Rule(
        (nn.Embedding, nn.EmbeddingBag),
        lambda module: module.max_norm is not None,
        "it changes its weight in a forward pass; use max_norm=None",
    ),
    _Rule(
        (nn.Embedding, nn.EmbeddingBag),
        lambda module: bool(module.sparse),
        "sparse gradients cannot be added up with noise; use sparse=False (only the rows that a "
        "record looks up are kept anyway)",
    ),
    _Rule(
        (nn.Module,),
        lambda module: any(
            is_lazy(tensor)
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))
        ),
        "it has no shape yet; call the model once on an example, or give the sizes",
    ),
)


def refuse_module(module: nn.Module) -> None:
    """Raise `InputError` on `task.model` for a module that cannot be trained privately.

    Refused are batch normalisation, instance normalisation with running statistics, dropout that
    is not zero, embeddings that count ids over a batch or change in a forward pass, lazy modules,
    and a model without trainable parameters.
    """
    for name, child in module.named_modules():
        for rule in _RULES:
            if isinstance(child, rule.types) and rule.applies(child):
                kind = type(child).__name__
                raise InputError("task.model", f"{name} ({kind})" if name else kind, rule.instead)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise InputError(
            "task.model",
            type(module).__name__,
            "it has no trainable parameters; set requires_grad on those to be trained",
        )


def refuse_outputs(module: nn.Module, inputs: Tensor) -> Tensor:
    """The outputs of `module` for the examples `inputs` `[few, ...]`, if they can be used.

    Raises `InputError` on `task.model` if the forward pass fails, draws random numbers, changes a
    buffer, or does not return one finite tensor `[few, ...]`. The global generators are left as
    they were.
    """
    kind = type(module).__name__
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    devices = [inputs.device.index or 0] if inputs.device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.no_grad():
        before = _generator_states(inputs.device)
        try:
            outputs: object = module(inputs)
        except Exception as error:
            raise InputError(
                "task.model",
                kind,
                f"it must accept the data, records of shape {list(inputs.shape[1:])} and type "
                f"{inputs.dtype}; {describe(error)}",
            ) from error
        drawn = any(
            not torch.equal(old, new)
            for old, new in zip(before, _generator_states(inputs.device), strict=True)
        )
    if drawn:
        raise InputError(
            "task.model",
            kind,
            "its forward pass draws from torch's global generator, so a run could not be "
            "repeated; remove what is random in it",
        )
    for name, buffer in module.named_buffers():
        if name not in buffers or not _same(buffer, buffers[name]):
            raise InputError(
                "task.model",
                f"{name} (buffer)",
                "the forward pass changes this buffer, which would keep traces of private records "
                "without noise; buffers must be constant",
            )
    if not isinstance(outputs, Tensor) or outputs.shape[:1] != inputs.shape[:1]:
        shape = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise InputError(
            "task.model",
            kind,
            f"it must return one tensor with a row a record, [{inputs.shape[0]}, ...]; "
            f"it returned {shape}",
        )
    if not bool(torch.isfinite(outputs).all()):
        raise InputError(
            "task.model", kind, "its output for the first records must be finite numbers"
        )
    return outputs


def _same(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and torch.equal(left, right)


def _generator_states(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states
