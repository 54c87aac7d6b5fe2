"""What the host knows, brought to the device without waiting for it."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def sent(array: NDArray[Any] | Tensor, device: torch.device) -> Tensor:
    """Numbers of the host as a tensor on the device; on the CPU, of the same memory.

    From pinned memory, which PyTorch keeps until the copy is made: a copy from other memory first
    waits for all that the device was told to do.
    """
    host = array if isinstance(array, Tensor) else torch.from_numpy(array)
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)
