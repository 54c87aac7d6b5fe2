"""Stopping at the same step everywhere, without a leader and without anybody stopping to agree."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Protocol

from tacit.communication.received import VOTE, VOTES
from tacit.errors import PeerError

_APART = 0.5  # seconds between two rounds: a stop comes within about one second


class Link(Protocol):
    """What processes that agree need of what joins them: texts that each of them states to all.

    What a process states under a key stays, also when it comes back and would state another. The
    names of all processes, by rank, are for messages.
    """

    rank: int
    names: Sequence[str]

    def state(self, key: str, text: str) -> str:
        """State a text to all; the one that stands, which may be of this process's last start."""

    def collect(
        self, key: str, ranks: Iterable[int], what: str, *, loading: bool = False
    ) -> dict[int, str]:
        """What these other ranks have stated under a key, once all have; `what` it is, in words.

        A rank without which the run goes on is not waited for, and may lack. `loading` says that
        ranks may still be about to load data and models.

        Raises:
            PeerError: a rank was lost, or has not come further in time.
            TacitError: what another rank reported.
        """

    def forget(self, keys: Iterable[str]) -> None:
        """Let go of texts that this process does not ask for, nor others for its own, any more."""


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

    *Old votes may be forgotten.* A rank casts its vote of round r + 2 after it has read everyone's
    vote of round r + 1, and each of these was cast after its rank had read all votes of round r.

    Where ranks may be left out, a vote that one rank has and another has not would part them. There
    rank 0 counts: it states all votes of a round, those of who is left out as not asking, and
    everyone reads what it states. It does so when it comes to the round's end, so at the least step
    of all nobody waits for it.

    A rank that comes back goes on from the last vote that it had cast before its checkpoint, and
    finds those that it cast since as they were.

    The `link` has no votes when a session starts, and `first` is the step of the first round, the
    same on every rank. `counted` says whether rank 0 counts, the same on every rank; it may wait
    for that. `last` is as `StopVote.last` was at the checkpoint from which this rank goes on, and
    `clock` is in seconds. Once all have agreed to stop, it is `stopped`.
    """

    def __init__(
        self,
        link: Link,
        first: int,
        *,
        counted: Callable[[], bool] = lambda: False,
        last: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link, self._counted, self._clock = link, counted, clock
        self._ranks = range(len(link.names))
        self._now: tuple[int, float] | None = None  # step and time of the last own vote
        self._last = _Vote(-1, first, asked=False, gap=1)
        if last is not None:
            self._last = _Vote(*VOTE.read(last, link.rank, "vote"))
        self._asked, self.stopped = self._last.asked, False

    @property
    def last(self) -> str | None:
        """The last vote of this rank; None before the first."""
        return None if self._last.number < 0 else VOTE.write(astuple(self._last))

    def stop(self, step: int, asked: bool) -> bool:
        """Whether the run stops before this step; the same answer on every rank.

        Every step from `first` on is asked for, in order; `asked` says whether this process was
        asked to stop. A vote that makes no sense is a PeerError, as those of the link are.
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
        stands = self._link.state(f"vote {number}", text)
        self._last = _Vote(*VOTE.read(stands, self._link.rank, "vote"))
        self._link.forget(f"{what} {number - 2}" for what in ("vote", "count"))

    def _votes(self) -> list[_Vote]:
        """Everyone's votes of the round of the own last vote, once they are there."""
        votes = self._count() if self._counted() else self._cast_by(self._ranks)
        votes[self._link.rank] = self._last  # what stands for this rank is not read back
        for rank, vote in votes.items():
            if (vote.number, vote.following) != (self._last.number, self._last.following):
                name = self._link.names[rank]
                raise PeerError(f"{name} sent a wrong vote: it is of another round")
        return [votes[rank] for rank in self._ranks]

    def _cast_by(self, ranks: Iterable[int]) -> dict[int, _Vote]:
        others = [rank for rank in ranks if rank != self._link.rank]
        texts = self._link.collect(f"vote {self._last.number}", others, "vote")
        return {rank: _Vote(*VOTE.read(text, rank, "vote")) for rank, text in texts.items()}

    def _count(self) -> dict[int, _Vote]:
        """The votes of the round as rank 0 has counted them."""
        key, what = f"count {self._last.number}", "count of votes"
        if self._link.rank == 0:
            absent = replace(self._last, asked=False)
            votes = dict.fromkeys(self._ranks, absent) | self._cast_by(self._ranks)
            votes[0] = self._last
            text = self._link.state(key, VOTES.write([astuple(vote) for vote in votes.values()]))
        else:
            text = self._link.collect(key, [0], what)[0]
        counted = VOTES.read(text, 0, what)
        if len(counted) != len(self._ranks):
            raise PeerError(f"{self._link.names[0]} counted {len(counted)} votes")
        return {rank: _Vote(*vote) for rank, vote in enumerate(counted)}
