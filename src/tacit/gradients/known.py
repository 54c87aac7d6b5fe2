"""What can be asked of a tensor without waiting for an accelerator to catch up."""

from __future__ import annotations

from torch import Tensor

__all__ = ["all_known_true"]


def all_known_true(flags: Tensor) -> bool:
    """Whether all flags are True, as far as that is known: always False on an accelerator.

    There an answer would hold up the queue of every step; the caller does what is right for any
    flags instead. On the CPU the answer saves passes over whole batches.
    """
    return flags.device.type == "cpu" and bool(flags.all())
