"""How many bytes messages take, and who sends them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tacit.communication.compression import Coding

__all__ = ["Active", "everybody", "row_bytes", "sizes"]

Active: TypeAlias = Callable[[int], NDArray[np.bool_] | None]
"""Of a step: which nodes, bool `[all nodes]`; None: all."""


def everybody(k: int) -> None:
    """All nodes, at every step."""


def row_bytes(value: Tensor) -> int:
    """Of one row of `[nodes, ...]`, whole."""
    return value.shape[1:].numel() * value.element_size()


def sizes(values: Sequence[Tensor], coding: Coding | None) -> NDArray[np.int64]:
    """Bytes of one message of each node, `[1]` or `[nodes]`."""
    if coding is not None:
        return coding.bytes
    return np.asarray([sum(map(row_bytes, values))], np.int64)
