"""Which part of what a module returns is the prediction: by key, position or function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from tacit.errors import InputError, describe

Output = Callable[[Any], Any]
"""What a module returns -> the prediction, one tensor `[records, ...]`."""


def picked(key: str | int) -> Output:
    """The function that takes the part `key` of what a module returns.

    A key of a dictionary, a field of a named tuple or dataclass (such as the outputs of Hugging
    Face's models), or a position in any of these. The function raises InputError on `task.output`
    where there is none, and names those that there are.
    """

    def pick(returned: Any) -> Any:
        parts = _parts(returned)
        if key not in parts:
            raise InputError(
                "task.output", key, f"is no part of what the model returns: {described(returned)}"
            )
        return parts[key]

    return pick


def with_output(module: nn.Module, output: Output | None) -> nn.Module:
    """The same module, which now returns its prediction alone; without an output, as it is.

    Raises:
        InputError: when it is called, on `task.output`, if the output is no tensor, or a function
            of the user's fails.
    """
    if output is None:
        return module

    def pick(module: nn.Module, arguments: Any, returned: Any) -> Any:
        try:
            prediction = output(returned)
        except InputError:
            raise
        except Exception as error:  # whatever the user's function raises
            name = getattr(output, "__name__", "output")
            raise InputError("task.output", name, f"it failed: {describe(error)}") from error
        if not isinstance(prediction, Tensor):
            raise InputError(
                "task.output",
                type(prediction).__name__,
                "the prediction must be one tensor with a row a record",
            )
        return prediction

    module.register_forward_hook(pick)
    return module


def described(returned: Any) -> str:
    """What a module returns, in words: its kind, and the keys by which its parts are named."""
    parts, kind = _parts(returned), type(returned).__name__
    names = [repr(key) for key in parts if isinstance(key, str)] or [str(key) for key in parts]
    return f"{kind} with {', '.join(names)}" if names else kind


def _parts(returned: Any) -> dict[str | int, Any]:
    """The parts by position, and by name where they have names."""
    named: dict[str | int, Any] = {}
    ordered: list[Any] = []
    if isinstance(returned, Mapping):
        named = dict(returned)
    elif isinstance(returned, tuple | list):
        ordered = list(returned)
        named = dict(zip(getattr(returned, "_fields", ()), ordered, strict=False))
    elif not isinstance(returned, Tensor):
        named = dict(getattr(returned, "__dict__", {}))
    return {**dict(enumerate(ordered or named.values())), **named}
