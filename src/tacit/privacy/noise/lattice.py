"""What releases on a public lattice share: its spacing, the check of a total, and rows on the host.

Why a release lies on a lattice, and what that guarantees, is in `tacit.privacy.noise.gaussian` and
`tacit.privacy.noise.laplace`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import InputError

__all__ = ["check_total", "host_rows", "lattice_spacing"]

# Lattice points a standard deviation (of Laplace noise: a scale): at least 2^6 and below 2^7.
_POINTS_LOG2 = 6
_SIZE_RANGE = (2.0**-500, 2.0**500)


def lattice_spacing(what: str, size: float) -> float:
    """The lattice's spacing at this size of the noise: a power of two, size / 128 to size / 64.

    Args:
        what: the size's name, for the message.
        size: standard deviation, or scale.

    Raises:
        InputError: the size is not between 2^-500 and 2^500.
    """
    if not _SIZE_RANGE[0] < size < _SIZE_RANGE[1]:
        raise InputError(what, size, "a number between 2^-500 and 2^500")
    return math.ldexp(1.0, math.frexp(size)[1] - 1 - _POINTS_LOG2)


def check_total(
    total: Tensor, nodes: Sequence[int], sizes: Sequence[float], size_word: str
) -> None:
    """Refuse a total that is not `[nodes, d]` of float32 or float64, with a noise size a row.

    Args:
        total: what is to be released.
        nodes: which nodes, in the order of the rows.
        sizes: standard deviations or scales.
        size_word: what they are, for the message.

    Raises:
        InputError: the shapes differ, or the dtype is another one.
    """
    if total.shape[:1] != (len(nodes),) or len(sizes) != len(nodes) or total.dim() != 2:
        raise InputError(
            "total", tuple(total.shape), f"one row for each of {len(nodes)} nodes and {size_word}"
        )
    if total.dtype not in (torch.float32, torch.float64):
        raise InputError("train.dtype", str(total.dtype), "float32 or float64")


@contextmanager
def host_rows(total: Tensor) -> Iterator[NDArray[Any]]:
    """The rows of a total, to be changed in place on the host; the total has the change at the end.

    Args:
        total: on any device; where it lies contiguous on the CPU, the rows are its own memory.
    """
    in_place = total.device.type == "cpu" and total.is_contiguous()
    host = total if in_place else total.cpu().contiguous()
    yield host.detach().numpy()
    if not in_place:
        with torch.no_grad():
            total.copy_(host)
