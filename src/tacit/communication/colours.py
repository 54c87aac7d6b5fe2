"""Colours of values, and the border that only two of them may pass.

| colour | what it is | where it may go |
|---|---|---|
| `Public` | known to everyone beforehand: settings, the graph, push-sum weights | anywhere |
| `Released` | what was noised (`StepContext.add_noise`), or a function of that | anywhere |
| `Summand` | what was noised for a sum over nodes, too little for itself | a sum, masked |
| `Masked` | summands under masks that cancel in the sum over all parties | anywhere |
| `Private` | depends on records in any other way | its node's own files; marked, a simulation's |

Algorithms compute with plain tensors, and state the colour where they hand something over:
`context.exchange.mix(k, Released(x), Public(w))`. What carries values away from a node takes
`Outgoing` ones only: mypy checks that, and `opened` checks it again when the program runs.
A wrapper proves nothing of what is in it. That is done by the tests of non-interference: with
noise that ignores what it is added to, all that leaves a node is the same for any records.

A `Summand` is not `Outgoing`: no exchange sends one but through `Exchange.secure_sum`, which adds
those of this process, and hands to what sends them only what `tacit.communication.masks` has made
`Masked`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from tacit.errors import LeakError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Public(Generic[T]):
    """A value that everyone may know, whatever the records are."""

    value: T


@dataclass(frozen=True, slots=True, eq=False)
class Released(Generic[T]):
    """A value computed from noised and public ones only; what it leaks is accounted."""

    value: T


@dataclass(frozen=True, slots=True, eq=False)
class Summand(Generic[T]):
    """A node's noised part of a sum: what is accounted is the sum, and only that may be seen."""

    value: T


@dataclass(frozen=True, slots=True, eq=False)
class Masked(Generic[T]):
    """Summands under masks, uniformly random to whoever lacks one of the masks."""

    value: T


@dataclass(frozen=True, slots=True, eq=False)
class Private(Generic[T]):
    """A value that depends on a node's records: for that node's eyes only."""

    value: T


Outgoing: TypeAlias = Public[T] | Released[T]
"""What may leave a node."""


def summand_value(value: Summand[T], what: str) -> T:
    """The plain value, where it is added to others or masked; `what` it is stands in the error.

    It is a LeakError where the value is no `Summand`: nothing was sent.
    """
    if type(value) is Summand:
        return value.value
    raise LeakError(
        f"{what} is a {type(value).__name__}, and only a Summand is noised for a sum: this is a "
        "defect of the algorithm, and nothing was sent"
    )


def opened(value: Outgoing[T], what: str) -> T:
    """The plain value, at the border, where something leaves a node; `what` is for the error.

    It is a LeakError where the value is neither `Public` nor `Released`: nothing was sent.
    """
    if type(value) is Released or type(value) is Public:
        return value.value
    raise LeakError(
        f"{what} is a {type(value).__name__}, and only what is Public or Released may leave a "
        "node: this is a defect of the algorithm, and nothing was sent"
    )
