"""Compiled loops over tensors of images: on the processor, on as many threads as PyTorch uses.

Elsewhere layers do the same with PyTorch's operations.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tacit.kernels.threads import over_threads

# Handing work to a thread takes some 30 us: as long as a thread takes to move so many numbers.
_THREAD_NUMBERS = 1 << 17


def serves(values: Tensor) -> bool:
    """Whether loops can work on a tensor."""
    return values.device.type == "cpu" and values.dtype != torch.bfloat16


def over_records(records: int, numbers: int, work: Callable[[slice], None]) -> None:
    """Call `work`, a compiled loop, with slices that make up all records.

    It is called on several threads at once. `numbers`, that all records read or write, decide how
    many threads pay.
    """
    count = max(1, min(torch.get_num_threads(), records, numbers // _THREAD_NUMBERS))
    bounds = [records * part // count for part in range(count + 1)]
    over_threads(work, [slice(*pair) for pair in pairwise(bounds)])


def last_channels(images: Tensor) -> Any:
    """The array `[r, height, width, channels]` of images `[r, channels, height, width]`.

    It is contiguous, and shares the memory of images that lie channels last.
    """
    return images.detach().permute(0, 2, 3, 1).contiguous().numpy()
