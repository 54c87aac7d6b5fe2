"""What a process measured after a step, its part of a mark: one vector on its way to rank 0.

The step stands before the numbers, and all are float64. What the numbers say,
`tacit.training.evaluation` knows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tacit.errors import PeerError


def written(step: int, part: Tensor) -> Tensor:
    """The message, uint8."""
    return torch.cat([torch.tensor([step], dtype=torch.float64), part]).view(torch.uint8)


def message_bytes(numbers: int) -> int:
    """How long it is."""
    return 8 * (1 + numbers)


def read(message: Tensor, step: int, numbers: int, who: str) -> Tensor:
    """The numbers in a message that `who` sent.

    Raises:
        PeerError: it has another length, or is of another step.
    """
    due = message_bytes(numbers)
    if len(message) != due:
        raise PeerError(f"{who} sent {len(message)} bytes of metrics, where {due} were due")
    values = message.clone().view(torch.float64)
    if float(values[0]) != step:
        found = f"{float(values[0]):.15g}"
        raise PeerError(f"{who} sent metrics of step {found}, where {step} was due")
    return values[1:]
