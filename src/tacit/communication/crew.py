"""The processes of a run as one of them holds them, whatever joins them."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

from tacit.communication.peers import Peers
from tacit.communication.received import Form
from tacit.communication.stop_vote import Link, StopVote

if TYPE_CHECKING:
    import torch

    from tacit.communication.exchange.protocol import Channel
    from tacit.communication.marks import Gatherer

T = TypeVar("T")


class Crew(Peers, Link):
    """The processes of a run as one of them holds them: in one rack, or at several sites.

    `hosts` are of each rank the nodes that it hosts, to be set when known. `stopped` says whether
    the run has stopped before its end, and can be gone on with; `meets_again`, so that all meet
    again, and go on.
    """

    def __init__(self, rank: int, names: Sequence[str]) -> None:
        self.rank, self.processes, self.names = rank, len(names), tuple(names)
        self.hosts: Sequence[Sequence[int]] = ()
        self.meets_again = self.stopped = False
        self._rounds: Counter[str] = Counter()
        self._stop_vote: StopVote | None = None

    def share(self, what: str, value: T, schema: Form[T]) -> list[T]:
        """See `Peers.share`; also a TacitError, where the value is too long to be shared.

        The same word for `what` is shared may be used again, in the same order on every rank.
        """
        key = f"share {what} {self._rounds[what]}"
        self._rounds[what] += 1
        text = schema.write(value)
        own = self.state(key, text)
        others = [rank for rank in range(self.processes) if rank != self.rank]
        texts = {self.rank: own} | self.collect(key, others, what, loading=True)
        return [
            value
            if rank == self.rank and own == text
            else schema.read(texts.get(rank, texts[0]), rank, what)
            for rank in range(self.processes)
        ]

    def begin(self, step: int) -> None:
        """See `Peers.begin`."""
        self._stop_vote = StopVote(self, step + 1)

    def agreed_stop(self, step: int, asked: bool) -> bool:
        """See `Peers.agreed_stop`, and `StopVote`.

        Every step after the first is asked for, in order, and after `at(step)`.
        """
        assert self._stop_vote is not None, "begin first"
        return self._stop_vote.stop(step, asked)

    def expect(self, *, steps: int, largest: int) -> None:
        """Say what the plan says; before anybody can send a message of the exchange.

        The largest of these messages has at most `largest` bytes.
        """

    @abstractmethod
    def connect(
        self, device: torch.device, numbers: Sequence[int], added: int, stack: ExitStack
    ) -> tuple[Channel, Gatherer]:
        """Open what the exchange and the metrics go through; `stack` closes it.

        Messages of the exchange lie on `device`. A part of a mark has so many `numbers` by rank,
        the last `added` of which are a sum of models.
        """

    def let_leave(
        self, goes_on: Callable[[frozenset[int]], bool] | None, *, takes_back: bool
    ) -> Callable[[int], frozenset[int]]:
        """Let the run go on without processes that are away for too long, where they may be.

        `goes_on` says whether it can go on without these ranks (None: without nobody), `takes_back`
        whether one that comes back later can go on with the server's model. What is returned gives
        the ranks that are left out of a step: none, where processes come and go together.
        """
        return lambda step: frozenset()

    def note(self, name: str, text: str) -> None:
        """Leave a text that later attempts of the same launcher's run will find."""

    def noted(self, name: str) -> str | None:
        """The text left under a name; None without one. Whoever reaches a launcher may write it."""
        return None
