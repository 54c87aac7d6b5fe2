"""What stands between rows of numbers and a user's module: before its `forward`, and behind it.

Records of several named or ordered inputs are packed when they are read, each as one row, and
unpacked just before the user's `forward`. Between the two they are rows `[records, d]` as any
other: what stores, stacks, digests, bounds or audits records need not know. Numbers of floating
parts are those of the rows. Integers, which are ids or counts, have no gradient; they are exact in
float32 below 2^24, and refused above.

Of what a module returns the prediction may be a part: by key, position or function.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tacit.errors import InputError, RecordsError, describe

_EXACT = 2**24

Kind = Literal["floating", "integer", "boolean"]


@dataclass(frozen=True)
class InputPart:
    """One input of a record: its name, or its place; and the shape and kind of its numbers."""

    name: str | int
    shape: tuple[int, ...]
    kind: Kind

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Packed:
    """How the inputs of a record lie in a row; public. Named ones are in the order of names."""

    parts: tuple[InputPart, ...]

    @property
    def words(self) -> str:
        """The parts in words, such as `age floating [1], codes integer [8]`."""
        return ", ".join(f"{part.name} {part.kind} {list(part.shape)}" for part in self.parts)

    @property
    def has_ids(self) -> bool:
        """Whether some part is not of floating numbers."""
        return any(part.kind != "floating" for part in self.parts)

    @property
    def named(self) -> bool:
        """Whether the parts have names."""
        return isinstance(self.parts[0].name, str)

    def unpacked(self, rows: Tensor) -> dict[str | int, Tensor]:
        """The parts of rows `[..., d]`, `[..., *shape]` each: int64, bool, or as the rows are."""
        found: dict[str | int, Tensor] = {}
        for part, values in zip(self.parts, self._split(rows), strict=True):
            own = values.reshape(*rows.shape[:-1], *part.shape)
            if part.kind != "floating":
                own = own.detach().round().long() if part.kind == "integer" else own != 0
            found[part.name] = own
        return found

    def possible(self, rows: Tensor, known: Tensor) -> Tensor:
        """Rows `[..., d]` whose integers are whole, and between those of the rows `known`."""
        pairs = zip(self.parts, self._split(rows), self._split(known), strict=True)
        return torch.cat(
            [
                values
                if part.kind == "floating" or not own.numel()
                else values.nan_to_num().round().clamp(own.min(), own.max())
                for part, values, own in pairs
            ],
            dim=-1,
        )

    def _split(self, rows: Tensor) -> tuple[Tensor, ...]:
        return torch.split(rows, [part.size for part in self.parts], dim=-1)


def pack(inputs: Mapping[str, Tensor] | Sequence[Tensor], where: str) -> tuple[Tensor, Packed]:
    """Inputs `[records, ...]` by name or in order as rows `[records, d]`, and how they lie there.

    Raises:
        InputError: on `where`, for parts without a record's axis, or of different lengths.
        RecordsError: on `where`, for integers that float32 does not hold.
    """
    if isinstance(inputs, Mapping):
        named: list[tuple[str | int, Tensor]] = [(str(n), inputs[n]) for n in sorted(inputs)]
    else:
        named = list(enumerate(inputs))
    lengths = {values.shape[:1] for _, values in named}
    if len(lengths) != 1 or torch.Size() in lengths:
        shown = ", ".join(f"{name} {list(values.shape)}" for name, values in named) or "none"
        raise InputError(where, shown, "all inputs must have the same number of records")
    parts, rows, dtype = [], [], torch.float32
    for name, values in named:
        kind: Kind = "floating"
        if not values.is_floating_point():
            kind = "boolean" if values.dtype == torch.bool else "integer"
            sizes = values.long().abs().reshape(len(values), math.prod(values.shape[1:]))
            wide = (sizes >= _EXACT).any(dim=1)
            if bool(wide.any()):
                found = f"{int(wide.sum()):,} of {len(values):,} records"
                raise RecordsError(where, found, f"integers of {name} must be below {_EXACT:,}")
        elif values.dtype == torch.float64:
            dtype = torch.float64
        parts.append(InputPart(name, tuple(values.shape[1:]), kind))
        rows.append(values.reshape(len(values), math.prod(values.shape[1:])))
    return torch.cat([values.to(dtype) for values in rows], dim=1), Packed(tuple(parts))


def with_inputs(module: nn.Module, packed: Packed | None) -> nn.Module:
    """The same module, which now takes rows: see `unpacking`."""
    if packed is not None:
        unpack = unpacking(module, packed)
        module.register_forward_pre_hook(
            lambda module, arguments, keywords: unpack(arguments[0]), with_kwargs=True
        )
    return module


def unpacking(
    module: nn.Module, packed: Packed
) -> Callable[[Tensor], tuple[tuple[Any, ...], dict[str, Any]]]:
    """What makes of rows `[records, d]` the arguments of the module's `forward`.

    Named inputs go to arguments of these names, ordered ones to arguments in their order; a
    `forward` that takes one argument alone gets the dictionary, or the tuple.

    Raises:
        InputError: on `task.model`, if `forward` takes them in no way.
    """
    named, names = packed.named, [part.name for part in packed.parts]
    taken = inspect.signature(module.forward)
    whole = False
    try:
        taken.bind(**dict.fromkeys(map(str, names))) if named else taken.bind(*names)
    except TypeError:
        whole = True
        try:
            taken.bind(names)
        except TypeError:
            expected = (
                f"its forward{taken} must take the inputs of a record ({packed.words}), by name "
                "or in order, or one argument that is all of them"
            )
            raise InputError("task.model", type(module).__name__, expected) from None

    def unpack(rows: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        found = packed.unpacked(rows)
        if whole:
            return (found if named else tuple(found.values()),), {}
        return ((), {str(n): v for n, v in found.items()}) if named else (tuple(found.values()), {})

    return unpack


def with_dtype(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The same module, in whose forward pass tensors are made in `dtype` if it names none."""
    before: list[torch.dtype] = []

    def enter(module: nn.Module, arguments: Any) -> None:
        before.append(torch.get_default_dtype())
        torch.set_default_dtype(dtype)

    def leave(module: nn.Module, arguments: Any, returned: Any) -> None:
        torch.set_default_dtype(before.pop())

    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave, always_call=True)
    return module


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
            expected = "the prediction must be one tensor with a row a record"
            raise InputError("task.output", type(prediction).__name__, expected)
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
