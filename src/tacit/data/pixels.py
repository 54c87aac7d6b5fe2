"""Images as the bytes that they came from: a quarter of the memory, and the very same numbers.

A pixel of most data sets is a byte, and what a model takes is the byte over 255. Numbers that are
all of this kind can be kept as bytes and be divided anew when they are read: the division of two
numbers in float32 has one right result, so that no bit differs. Whether they are is tried out and
not assumed.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_WHITE = 255
_AT_ONCE = 2**15  # numbers, which with their bytes fit a core's own cache


def to_bytes(values: Tensor) -> Tensor | None:
    """The bytes of which all numbers are 255ths, bit for bit; None where a number is another.

    `values` `[records, ...]` are on the CPU, of any type, and only float32 can be 255ths. The bytes
    are uint8 of the same shape: `from_bytes` gives `values` back.
    """
    if values.dtype != torch.float32 or not values.numel():
        return None
    rows = values.detach().reshape(len(values), -1).numpy()
    found = np.empty(rows.shape, np.uint8)
    white, every = np.float32(_WHITE), max(1, _AT_ONCE // rows.shape[1])
    with np.errstate(all="ignore"):  # whatever is no 255th is found out below
        for start in range(0, len(rows), every):
            part, into = rows[start : start + every], found[start : start + every]
            np.copyto(into, np.rint(part * white), casting="unsafe")
            again = np.divide(into, white, dtype=np.float32)
            # As bits: a negative zero is equal to a byte's zero, and is another number.
            if not np.array_equal(again.view(np.int32), part.view(np.int32)):
                return None
    return torch.from_numpy(found).view(values.shape)


def from_bytes(values: Tensor) -> Tensor:
    """Bytes over 255, float32."""
    return values.to(torch.float32).div_(_WHITE)
