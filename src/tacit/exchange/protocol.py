"""What an algorithm may ask of an exchange: all that differs between one process and many."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

__all__ = ["Exchange"]


class Exchange(Protocol):
    """Moves messages along the edges of step k."""

    def mix(self, k: int, *values: Tensor) -> tuple[Tensor, ...]:
        """Weighted sums over in-neighbours: row i becomes `sum_j P^k[i, j] values[j]`.

        Args:
            k: the step, which selects the mixing matrix.
            values: tensors `[nodes, ...]`, sent together as one message.

        Returns:
            New tensors of the same shapes.
        """
