"""The server of federated methods: it averages, and keeps clients' last messages."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Server", "mean_of_rows"]


def mean_of_rows(value: Tensor) -> Tensor:
    """The mean `[1, ...]` of rows `[n, ...]`, as one product; zeros of none."""
    if not len(value):
        return value.new_zeros(1, *value.shape[1:])
    weights = value.new_full((len(value),), 1 / len(value))
    return (weights @ value.reshape(len(value), -1)).view(1, *value.shape[1:])


class Server:
    """Averages what arrives; of messages that are lost, it goes on with those it has.

    The first time that it is asked for a mean of latest messages, all arrive: it has no others.

    Args:
        clients: how many there are.
    """

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self._kept: dict[int, Tensor] = {}

    def mean(
        self,
        position: int,
        value: Tensor,
        nodes: NDArray[np.int64],
        arrived: NDArray[np.bool_] | None,
        *,
        latest: bool,
    ) -> Tensor:
        """The mean `[1, ...]` of the messages of this step, or of every client's latest one.

        Args:
            position: of the value in its message.
            value: `[rows, ...]`.
            nodes: whose rows they are. The first time that `latest` is asked for, and whenever
                no message can be missing, they are all clients'.
            arrived: of all clients, whose message of this step came; None: all that sent one.
            latest: over all clients, in place of those that sent.
        """
        if not latest:
            return mean_of_rows(value if arrived is None else value[self._rows(nodes, arrived)])
        kept = self._kept.get(position)
        if kept is None or (arrived is None and len(nodes) == self._clients):
            self._kept[position] = value if arrived is None else value.clone()
            return mean_of_rows(value)
        came = slice(None) if arrived is None else self._rows(nodes, arrived)
        places = torch.from_numpy(nodes).to(value.device)
        kept[places[came]] = value[came]
        return mean_of_rows(kept)

    def _rows(self, nodes: NDArray[np.int64], arrived: NDArray[np.bool_]) -> Tensor:
        return torch.from_numpy(np.flatnonzero(arrived[nodes]))
