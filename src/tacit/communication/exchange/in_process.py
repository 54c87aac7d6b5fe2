"""The exchange of the simulator: all nodes are rows of the same tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.base.sending import sent
from tacit.communication.colours import Summand
from tacit.communication.compression import Coding
from tacit.communication.exchange.protocol import (
    Active,
    Message,
    descent_of,
    everybody,
    message_values,
    row_bytes,
    sizes,
    summand_rows,
)
from tacit.communication.exchange.rows import Mixer, Server, compile_rows
from tacit.communication.masks import wrapped_sum
from tacit.topology.mixing import Weights


class InProcessExchange:
    """Mixes rows of stacked tensors, and counts what each node would have sent.

    `weights` are of one period, one for each of its graphs; or a function of the round, where no
    two need be the same. All else is as in `tacit.communication.exchange.between.Graphs`.
    """

    def __init__(
        self,
        weights: Sequence[Weights] | Callable[[int], Weights],
        *,
        dtype: torch.dtype,
        device: torch.device,
        active: Active = everybody,
        arrives: Active = everybody,
        rounds: int = 1,
    ) -> None:
        self._dtype, self._device, self._rounds = dtype, device, rounds
        self._active, self._arrives = active, arrives
        self._changing = weights if callable(weights) else None
        listed = [weights(0)] if callable(weights) else list(weights)
        self._steps = [self._compiled(one) for one in listed]
        self._server = Server(listed[0].nodes)
        self.dropped: dict[int, int] = {}
        self.bytes_sent: NDArray[np.int64] = np.zeros(listed[0].nodes, dtype=np.int64)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds of it; see `Exchange.tensors`."""
        return {"bytes_sent": torch.from_numpy(self.bytes_sent)}

    def load(self, tensors: Mapping[str, Tensor], *, same_session: bool) -> None:
        """Take up what a checkpoint holds; see `Exchange.load`."""
        self.bytes_sent[:] = tensors["bytes_sent"].cpu().numpy()

    def mix(
        self,
        k: int,
        *messages: Message,
        coding: Coding | None = None,
        descent: tuple[Message, float] | None = None,
        extra: int = 0,
    ) -> tuple[Tensor, ...]:
        """Weighted sums over the in-neighbours of a round of step k; see `Exchange.mix`."""
        values, first = message_values("mix", k, messages), descent_of(k, descent)
        number = k * self._rounds + extra
        if self._changing is not None:
            mixer, degrees = self._compiled(self._changing(number))
        else:
            mixer, degrees = self._steps[number % len(self._steps)]
        self.bytes_sent += sizes(values, coding) * degrees
        descents = (first, *(None for _ in values[1:]))
        return tuple(map(mixer.begin, values, descents))

    def swap(self, k: int, partner: Tensor, *messages: Message) -> tuple[Tensor, ...]:
        """What each node's partner holds; see `Exchange.swap`."""
        values = message_values("swap", k, messages)
        paired = partner.numpy() != np.arange(len(partner))
        self.bytes_sent += sizes(values, None) * paired
        return tuple(value.index_select(0, sent(partner, value.device)) for value in values)

    def average(
        self, k: int, *messages: Message, latest: bool = False, coding: Coding | None = None
    ) -> tuple[Tensor, ...]:
        """The server's mean, for everyone; see `Exchange.average`."""
        values = message_values("average", k, messages)
        nodes = np.arange(len(self.bytes_sent))
        active, arrived = self._active(k), self._arrives(k)
        sending = nodes if active is None else np.flatnonzero(active)
        rows = nodes if latest else sending
        if arrived is not None and active is not None:
            arrived = arrived & active
        self.bytes_sent[sending] += _of(sizes(values, coding), sending, len(values[0]))
        return tuple(
            self._server.mean(position, value, rows[: len(value)], arrived, latest=latest)
            for position, value in enumerate(values)
        )

    def secure_sum(self, k: int, summands: Summand[Tensor], *, part: int = 0) -> Tensor:
        """The sum over the active clients; see `Exchange.secure_sum`."""
        active = self._active(k)
        sending = slice(None) if active is None else active
        value = summand_rows(k, summands, len(self.bytes_sent[sending]))
        self.bytes_sent[sending] += row_bytes(value)
        return wrapped_sum(value)

    def _compiled(self, weights: Weights) -> tuple[Mixer, NDArray[np.int64]]:
        everyone = range(weights.nodes)
        mixer = compile_rows(weights, nodes=everyone, dtype=self._dtype, device=self._device)
        return mixer, weights.out_degrees


def _of(each: NDArray[np.int64], chosen: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """Sizes of the chosen nodes' messages, from those of all rows, of the chosen, or of each."""
    return each[chosen] if len(each) == rows > len(chosen) else each
