"""How the sites of a session meet: who is here, without whom it begins, and who comes too late."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tacit.communication.received import Beat
from tacit.communication.secure.journal import Session
from tacit.communication.secure.streams import AWAY, PeerView
from tacit.errors import InputError, MeetAnewError, PeerError

_log = logging.getLogger(__name__)

_SAY = 5.0  # seconds of waiting after which a site says for whom it waits
ABSENT = "0" * 32  # stands for the random number of a site without which the others began


@dataclass(frozen=True)
class Meeting:
    """What a site can tell of those that it is to meet, by what they were last heard to say.

    Args:
        sites: names of all sites, by rank.
        folder: of the session of this site, for messages.
        lets_begin: whether the run can begin without a site, by the settings of this one; else
            rank 0 is not believed that it does.
        furthest: the last step from which this site can go on.
    """

    sites: Sequence[str]
    own: int
    peers: Mapping[int, PeerView]
    folder: str
    lets_begin: bool
    furthest: int

    def all_met(self, session: Session) -> bool:
        """Whether all are here with whom rank 0 begins, and it has begun.

        Raises:
            InputError: others go on with a session of which nothing is here.
            PeerError: rank 0 begins without whom this site does not let it.
        """
        without = self.left_by_rank_0(session)
        # Of others than rank 0, what they say may be of a session that ends when it has begun.
        self.refuse_forgotten(session, [0] if self.own else set(self.peers) - set(session.without))
        if not self.missing(session) <= without:
            return False
        return self.own == 0 or (
            self._first is not None and self._first.nonce_of_receiver is not None
        )

    def missing(self, session: Session) -> set[int]:
        """Who is not here to meet this site, and has not met it.

        At rank 0 so is one who waits, and may have sent something of the step that follows.
        """
        return {
            rank
            for rank, view in self.peers.items()
            if view.beat is None
            or view.beat.state in ("done", "failed")
            or view.beat.nonce_of_receiver not in (None, session.nonce)
            or (self.own == 0 and view.beat.step > self.furthest and view.beat.state == "forming")
        }

    def can_begin(self, session: Session, without: Collection[int]) -> bool:
        """Whether this site, which has to be rank 0, can begin if none of these come any more."""
        missing = self.missing(session)
        many = 2 * len(missing) < len(self.sites)
        return self.own == 0 and self.lets_begin and many and missing <= set(without)

    @property
    def _first(self) -> Beat | None:
        """What rank 0 says, where that is another site."""
        return self.peers[0].beat if self.own else None

    @property
    def rank_0_is_near(self) -> bool:
        """Whether rank 0 is another site, which was heard just now."""
        return self._first is not None and time.monotonic() - self.peers[0].heard < AWAY

    @property
    def begun_without(self) -> bool:
        """Whether rank 0 has begun without this site, by its word."""
        return self._first is not None and self._first.nonce_of_receiver == ABSENT

    def left_by_rank_0(self, session: Session) -> set[int]:
        """The ranks without which rank 0 has begun, by its word.

        Raises:
            PeerError: this site does not let it, or is itself one of those whom rank 0 has met.
        """
        if self._first is None:
            return set()
        left = {rank for rank, step in self._first.left if step == 0}
        self.check_left(left, allowed=self.lets_begin)
        if self.own in left and self._first.nonce_of_receiver == session.nonce:
            first, name = self.sites[0], self.sites[self.own]
            raise PeerError(f"{first} says that it has met {name}, and begins without it")
        return left

    def check_left(self, left: Collection[int], *, allowed: bool) -> None:
        """Refuse a rank 0 that goes on without whom this site does not let it.

        Where nodes share noise or masks, it could take the place of those that it says are away.

        Raises:
            PeerError: naming them.
        """
        others = sorted(set(left) - {self.own})  # whether it leaves out this one, it says itself
        if others and (not allowed or 2 * len(left) >= len(self.sites)):
            names = [self.sites[rank] for rank in others if rank < len(self.sites)]
            raise PeerError(
                f"{self.sites[0]} goes on without {', '.join(names)}, which the settings of this "
                "run or the number of those that are left do not allow"
            )

    def refuse_forgotten(self, session: Session, ranks: Iterable[int]) -> None:
        """Refuse where one of these goes on with a session of this site of which nothing is here.

        One that has begun no step gives that session up when it hears this site.

        Raises:
            InputError: naming it.
        """
        for rank in ranks:
            beat = self.peers[rank].beat
            if beat is None or beat.state in ("done", "failed") or beat.step < 0:
                continue
            own = (None, ABSENT, session.nonce)
            if beat.nonce_of_receiver not in own and session.rejoins is None:
                raise InputError(
                    "--site",
                    self.folder,
                    f"{self.sites[rank]} is in the middle of this run with an earlier session of "
                    "this site, of which nothing is here: put the folder back, or stop all sites "
                    "and start a new run",
                )

    def waiting(self, session: Session) -> Session:
        """The session of a site that waits to be taken in, from a step of which it sent nothing."""
        name = self.sites[self.own]
        _log.warning("%s came after the others had begun: it waits until they take it in", name)
        return session.model_copy(update={"rejoins": session.sent})

    def checked(self, session: Session, *, has_part: bool) -> Session:
        """The session, with what it can tell of what was sent; refused where that is too little.

        It is of this site, and nobody has met in it. `has_part` says whether this site has a folder
        of the run, and a ledger in it.

        Raises:
            InputError: the others have begun without it, and it cannot tell what it has sent.
        """
        if session.sent is None and not has_part and not session.earlier:
            session = session.model_copy(update={"sent": 0})
        if session.rejoins is None and not self.begun_without:
            return session
        name = self.sites[self.own]
        if session.earlier and not has_part:
            expected = (
                f"the others have begun this run without {name}, whose session of it is here and "
                "whose run folder is not: put it back, or this site cannot take part any more"
            )
            raise InputError("--site", self.folder, expected)
        # A folder that came back while a site waited is of an earlier time.
        empty = session.sent == 0 and not session.earlier and not session.has_met
        if has_part and (session.sent is None or empty):
            expected = (
                f"the others have begun this run without {name}, of which a run folder is here: if "
                "it is of an earlier run, start this one under its own name; else this site cannot "
                "take part in the run any more"
            )
            raise InputError("--site", self.folder, expected)
        return session

    def met(self, session: Session, without: Collection[int]) -> Session:
        """The session with the random numbers of all that begin it."""
        nonces = [session.nonce] * len(self.sites)
        for rank, view in self.peers.items():
            beat = None if rank in without else view.beat
            nonces[rank] = ABSENT if beat is None else beat.nonce
        return session.model_copy(update={"nonces": tuple(nonces), "has_met": True})

    def not_met(self, limit: float) -> PeerError:
        """The error of sites that have not come within so many seconds."""
        return PeerError(
            f"{', '.join(self._unheard) or 'another site'} did not come within {limit:g} s: start "
            "it with the same name of --out as here, and with the same bundle"
        )

    def say_unheard(self, told: Sequence[str], waited: float) -> Sequence[str]:
        """Log whom this site has not heard in this run for some seconds; their names.

        `told` are those of whom it has said so; `waited` is in seconds.
        """
        if waited < _SAY or self._unheard == told:
            return told
        if self._unheard:
            _log.warning(
                "%s waits for %s to come to this run: who has another name of --out is in another",
                self.sites[self.own],
                ", ".join(self._unheard),
            )
        return self._unheard

    @property
    def _unheard(self) -> list[str]:
        """The names of those who have said nothing in this run yet."""
        return [self.sites[rank] for rank, view in self.peers.items() if view.beat is None]


def given_up(name: str) -> MeetAnewError:
    """The error of a session that a site has given up before any step of it."""
    return MeetAnewError(f"{name} has given up the session, of which no step was begun")


def spared(why: str, rank: int) -> MeetAnewError:
    """The error of a session in which a site that has come back cannot take part, and why."""
    return MeetAnewError(why, frozenset({rank}))
