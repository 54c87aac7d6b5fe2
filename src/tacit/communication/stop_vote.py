"""Stopping at the same step everywhere, without a leader and without anybody stopping to agree."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tacit.communication.received import VOTE
from tacit.errors import PeerError

_APART = 0.5  # seconds between two rounds: a stop comes within about one second


class Votes(Protocol):
    """Where votes are written."""

    def put(self, key: str, text: str) -> str:
        """Write a text, over what was there; the text that stands, which may be an earlier one."""

    def has(self, keys: Sequence[str]) -> bool:
        """Whether all of these have been written."""

    def get_all(self, keys: Sequence[str]) -> list[str]:
        """The texts under keys that have all been written, in their order."""


@dataclass(frozen=True)
class _Vote:
    """What a rank says in the round of this number.

    `following` is the step of the next round, as this rank knows it; `gap`, at least 1, is how many
    steps it wants from there to the round after it.
    """

    number: int
    following: int
    asked: bool
    gap: int


class StopVote:
    """The rounds in which all ranks find out whether one of them was asked to stop.

    Round r is held before step s_r. There each rank first reads the votes of round r - 1, stops if
    one of them asks for it, and otherwise casts its own vote of round r. Here s_0 is `first`,
    s_1 = s_0 + 1, and s_{r+1} = s_r + the least gap in the votes of round r - 1.

    *All ranks stop at the same step.* A rank casts one vote in a round and never changes it, so
    all ranks read the same votes. By induction all know the same s_r: s_{r+1} follows from s_r
    and the votes of round r - 1, which everyone has read in full before it goes on from s_r.
    Whether to stop before s_r follows from the same votes. So all stop there or none does,
    however far apart they are.

    *The wait cannot lock.* Let a rank be at the least step of all, t. If it waited in round r, it
    would wait for a vote of round r - 1, hence for a rank at or before s_{r-1} < s_r = t. So it
    never waits here, nor for a message of a rank that waits here, since such a rank is at t at
    the least and has sent all that belongs to the steps before. In practice nobody waits, for
    the votes that are read at s_r were cast about half a second before anyone came there.

    *Two places for each rank are enough.* Votes of round r and r + 2 are written to the same
    place. A rank casts its vote of round r + 2 after it has read everyone's vote of round r + 1,
    and each of these was cast after its rank had read all votes of round r.

    A rank that comes back in the same session goes on from its own last vote, which names the
    round and the step of the next one; its checkpoint lies before that step.

    Args:
        first: the step of the first round, the same on every rank.
        facts: where votes are written; they hold no votes when a session starts.
        wait: returns when the function that it is given returns no more ranks; that function
            names the ranks whose votes are missing.
        clock: seconds.

    Attributes:
        stopped: whether all have agreed to stop.
    """

    def __init__(
        self,
        rank: int,
        processes: int,
        first: int,
        facts: Votes,
        *,
        wait: Callable[[Callable[[], Sequence[int]]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rank, self._ranks = rank, range(processes)
        self._facts, self._wait, self._clock = facts, wait, clock
        self._asked = self.stopped = False
        self._now: tuple[int, float] | None = None  # step and time of the last own vote
        before = [
            self._read({rank: key})[rank]
            for key in (_key(0, rank), _key(1, rank))
            if facts.has([key])
        ]
        start = _Vote(-1, first, asked=False, gap=1)
        self._last = max(before, key=lambda vote: vote.number, default=start)
        self._asked = self._last.asked

    def stop(self, step: int, asked: bool) -> bool:
        """Whether the run stops before this step; the same answer on every rank.

        Every step from `first` on is asked for, in order; `asked` says whether this process was
        asked to stop.

        Raises:
            PeerError: from waiting, reading or writing; also if a vote makes no sense.
        """
        self._asked = self._asked or asked
        if self.stopped or step < self._last.following:
            return self.stopped
        gap = 1
        if self._last.number >= 0:
            votes = self._votes()
            self.stopped = any(vote.asked for vote in votes)
            gap = min(vote.gap for vote in votes)
        if not self.stopped:
            self._cast(step, gap)
        return self.stopped

    def _cast(self, step: int, gap: int) -> None:
        now, wanted = self._clock(), 1
        if self._now is not None:
            steps, seconds = step - self._now[0], now - self._now[1]
            wanted = int(_APART * steps / seconds) if seconds > 0 else 2 * gap
        self._now = (step, now)
        wanted = max(1, min(wanted, 2 * gap))
        number = self._last.number + 1
        text = VOTE.write((number, step + gap, self._asked, wanted))
        # Of a rank that came back, the vote stands that it cast before.
        stands = self._facts.put(_key(number, self._rank), text)
        self._last = _Vote(*VOTE.read(stands, self._rank, "vote"))

    def _votes(self) -> list[_Vote]:
        """Everyone's votes of the round of the own last vote, once they are there."""
        votes = {self._rank: self._last}  # what stands for this rank is not read back

        def missing() -> list[int]:
            open_ = [rank for rank in self._ranks if rank not in votes]
            votes.update(self._written(open_))
            return [rank for rank in open_ if rank not in votes]

        self._wait(missing)
        return [votes[rank] for rank in self._ranks]

    def _written(self, ranks: Sequence[int]) -> dict[int, _Vote]:
        """Those of these ranks' votes of this round that are there."""
        keys = {rank: _key(self._last.number, rank) for rank in ranks}
        if not self._facts.has(list(keys.values())):
            keys = {rank: key for rank, key in keys.items() if self._facts.has([key])}
        votes, own = self._read(keys), (self._last.number, self._last.following)
        for rank, vote in votes.items():
            of = (vote.number, vote.following)
            if of != own and vote.number != own[0] - 2:
                raise PeerError(f"rank {rank} sent a wrong vote: it is of another round")
        return {rank: vote for rank, vote in votes.items() if vote.number == own[0]}

    def _read(self, keys: Mapping[int, str]) -> dict[int, _Vote]:
        texts = self._facts.get_all(list(keys.values()))
        return {
            rank: _Vote(*VOTE.read(text, rank, "vote"))
            for rank, text in zip(keys, texts, strict=True)
        }


def _key(number: int, rank: int) -> str:
    return f"stop/{number % 2}/{rank}"
