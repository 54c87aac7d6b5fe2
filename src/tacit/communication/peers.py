"""The other processes of a run, as what trains sees them; and nobody, for a run of one process."""

from __future__ import annotations

from typing import Protocol, TypeVar

from tacit.communication.received import Schema
from tacit.errors import TacitError

__all__ = ["ALONE", "Alone", "Peers"]

T = TypeVar("T")


class Peers(Protocol):
    """What a run asks of its other processes beside the messages of its algorithm.

    Attributes:
        rank: of this process.
        processes: how many there are.
    """

    rank: int
    processes: int

    def share(self, what: str, value: T, schema: Schema[T]) -> list[T]:
        """What every process gives, in the order of ranks; waits for all, within limits.

        What stands for this process is the value itself, whatever others made of it on the way.

        Raises:
            PeerError: a process was lost, or gave what the schema refuses.
            TacitError: what another process reported.
        """

    def report(self, error: TacitError) -> None:
        """Tell the others why this process ends."""

    def at(self, step: int) -> None:
        """Say where this process stands."""

    def check(self) -> None:
        """Raise what another process reported, or PeerError for a lost one; without waiting."""

    def saved(self, step: int) -> int:
        """Say that this process has a checkpoint of a step; the last that every process has."""

    def begin(self, step: int) -> None:
        """Say at which step this session starts, before the first `agreed_stop`."""

    def agreed_stop(self, step: int, asked: bool) -> bool:
        """Whether all stop after `step` steps: the same answer in every process.

        Args:
            step: steps made.
            asked: whether this process was asked to.
        """


class Alone:
    """No other process: every question is answered here."""

    rank = 0
    processes = 1

    def share(self, what: str, value: T, schema: Schema[T]) -> list[T]:
        """What this process gives."""
        return [value]

    def report(self, error: TacitError) -> None:
        """Nobody listens."""

    def at(self, step: int) -> None:
        """Nobody asks."""

    def check(self) -> None:
        """Nobody can be lost."""

    def saved(self, step: int) -> int:
        """Its own."""
        return step

    def begin(self, step: int) -> None:
        """There is nothing to agree on."""

    def agreed_stop(self, step: int, asked: bool) -> bool:
        """As it was asked."""
        return asked


ALONE = Alone()
