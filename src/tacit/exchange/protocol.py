"""What an algorithm may ask of an exchange: all that differs between one process and many."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Exchange"]


class Exchange(Protocol):
    """Moves messages along the edges of step k, or between clients and their server."""

    def mix(
        self, k: int, *values: Tensor, message_bytes: NDArray[np.int64] | None = None
    ) -> tuple[Tensor, ...]:
        """Weighted sums over in-neighbours: row i becomes `sum_j P^k[i, j] values[j]`.

        Args:
            k: the step, which selects the mixing matrix.
            values: tensors `[nodes, ...]`, sent together as one message.
            message_bytes: of each node's message as it is encoded, `[nodes]`, where that is not
                all of its numbers (compressed; 0 for a node that sends nothing).

        Returns:
            New tensors of the same shapes.
        """

    def swap(self, k: int, partner: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        """What each node's partner holds: row i becomes `values[partner[i]]`.

        Args:
            k: the step.
            partner: int64 `[nodes]`; a node paired with itself sends nothing.
            values: tensors `[nodes, ...]`, sent together as one message.
        """

    def average(
        self,
        k: int,
        *values: Tensor,
        weights: Tensor,
        sent: Tensor,
        message_bytes: NDArray[np.int64] | None = None,
    ) -> tuple[Tensor, ...]:
        """The server's weighted sum, which everyone gets: `sum_j weights[j] values[j]`.

        Args:
            k: the step.
            values: tensors `[nodes, ...]`, each client's latest message, or `[sending, ...]`, only
                those that are sent now.
            weights: one for each row, public; the server keeps the last message of clients that
                send none.
            sent: bool `[nodes]`, who sends a message now.
            message_bytes: as in `mix`.

        Returns:
            New tensors `[1, ...]`.
        """
