"""Gathers every process's part of a step's metrics on rank 0, over connections of their own.

gloo sends a message once the other side has begun to receive it, and says that it has come only to
who waits for it. So rank 0 begins to receive all parts of a mark when it puts its own, and takes
them once the heartbeats say that all have come further: then nobody is waited for. At the latest it
does so at the next mark. How long each part is, the plan says (`tacit.communication.marks`).

Who is ahead waits for who is behind, and never the other way: rank 0, before a mark, for parts of
the mark before; another rank, before a mark, until rank 0 has put the second mark before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from tacit.communication import marks
from tacit.communication.exchange.protocol import Arrival, Channel


class Pipe(Channel, Protocol):
    """A channel that can also say when all that was sent has been taken."""

    def finish(self) -> None:
        """Wait until every message that was sent has been taken."""


class RackGatherer(marks.Gatherer):
    """A gatherer over a channel of the CPU that nobody else uses.

    Args:
        reached: says whether a rank has begun a step, and so has put what it measured before.
    """

    def __init__(
        self,
        channel: Pipe,
        names: Sequence[str],
        numbers: Sequence[int],
        reached: Callable[[int, int], bool],
    ) -> None:
        super().__init__(channel.rank, names, numbers)
        self._channel, self._reached = channel, reached
        self._arrivals: dict[int, Arrival] = {}

    def put(self, step: int, part: Tensor) -> None:
        """See `Gatherer.put`."""
        if self.rank == 0:
            super().finish()
            sizes = {rank: marks.message_bytes(self._numbers[rank]) for rank in self.others}
            self._arrivals = {rank: self._channel.receive(rank, n) for rank, n in sizes.items()}
        super().put(step, part)

    def send(self, message: Tensor) -> None:
        """See `Gatherer.send`."""
        self._channel.send(0, message)

    def is_here(self, rank: int, step: int) -> bool:
        """As far as the heartbeats say."""
        return self._reached(rank, step)

    def take(self, rank: int) -> Tensor:
        """See `Gatherer.take`."""
        return self._arrivals[rank].wait()

    def finish(self) -> None:
        """See `Gatherer.finish`; elsewhere, wait until rank 0 has taken all that was put."""
        super().finish()
        self._channel.finish()
