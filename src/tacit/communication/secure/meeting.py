"""Who takes part: how sites meet, without whom a run begins or goes on, and who is at fault."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tacit.communication.received import Beat
from tacit.communication.reports import PeerProgress, first_failure
from tacit.communication.secure.journal import Session
from tacit.communication.secure.streams import AWAY, Outgoing, PeerView
from tacit.errors import InputError, LeftOutError, MeetAnewError, PeerError, TacitError

_log = logging.getLogger(__name__)

_SAY = 5.0  # seconds of waiting after which a site says for whom it waits
LEFT = "left out "  # and a rank: what a journal says of a site that is left out
GRACE = 3  # times as long other sites wait until rank 0 has said without whom the run goes on
_TWO_BEATS = 2.0  # seconds
ABSENT = "0" * 32  # stands for the random number of a site without which the others began


@dataclass(frozen=True)
class Meeting:
    """What a site can tell of those that it is to meet, by what they were last heard to say.

    `sites` are the names of all, by rank, and the `folder` of the session is for messages.
    `lets_begin` says whether the run can begin without a site, by the settings of this one; else
    rank 0 is not believed that it does. `furthest` is the last step from which this site can go on.
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

        It is a PeerError where this site does not let it, or is itself one of those whom rank 0 has
        met.
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
        """Refuse a rank 0 that goes on without whom this site does not let it, as a PeerError.

        Where nodes share noise or masks, it could take the place of those that it says are away.
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
        """
        for rank in ranks:
            beat = self.peers[rank].beat
            if beat is None or beat.state in ("done", "failed") or beat.step < 0:
                continue
            own = (None, ABSENT, session.nonce)
            if beat.nonce_of_receiver not in own and session.rejoins is None:
                expected = (
                    f"{self.sites[rank]} is in the middle of this run with an earlier session of "
                    "this site, of which nothing is here: put the folder back, or stop all sites "
                    "and start a new run"
                )
                raise InputError("--site", self.folder, expected)

    def waiting(self, session: Session) -> Session:
        """The session of a site that waits to be taken in, from a step of which it sent nothing."""
        name = self.sites[self.own]
        _log.warning("%s came after the others had begun: it waits until they take it in", name)
        return session.model_copy(update={"rejoins": session.sent})

    def checked(self, session: Session, *, has_part: bool) -> Session:
        """The session, with what it can tell of what was sent; refused where that is too little.

        It is of this site, and nobody has met in it. `has_part` says whether this site has a folder
        of the run, and a ledger in it.
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


def spared(why: str, rank: int) -> MeetAnewError:
    """The error of a session in which a site that has come back cannot take part, and why."""
    return MeetAnewError(why, frozenset({rank}))


def progress(peers: Mapping[int, PeerView], limit: float) -> dict[int, PeerProgress]:
    """What sites said last, where a wait has a limit of so many seconds."""
    heard_since = time.monotonic() - _silence(limit)
    return {
        rank: PeerProgress(silent=True, heard=False)
        if view.beat is None
        else PeerProgress(
            view.beat.step,
            None if view.beat.waiting_for < 0 else view.beat.waiting_for,
            view.done,
            silent=view.heard < heard_since,
        )
        for rank, view in peers.items()
    }


def since(view: PeerView, limit: float) -> float:
    """From when on a site does nothing, by the monotonic clock; `limit` is as in `progress`.

    One that was waiting when it fell silent could do nothing while it was heard, and counts from
    when it was heard last: else it had no time at all where its wait was as long as the limit.
    """
    waited = view.beat is not None and view.beat.waiting_for >= 0
    away = time.monotonic() - view.heard > _silence(limit)
    return view.heard if waited and away else view.moved


def _silence(limit: float) -> float:
    """Seconds without a word after which what a site has said last does not count any more."""
    return min(AWAY, max(limit / 2, _TWO_BEATS))


def untold(views: Iterable[PeerView]) -> bool:
    """Whether somebody is there who is not done, and may not know that this site is."""
    heard_since = time.monotonic() - AWAY
    return any(view.heard > heard_since and not view.done for view in views)


def owes(outs: Mapping[int, Outgoing], views: Mapping[int, PeerView]) -> bool:
    """Whether somebody who is not done may still need something that was sent to it."""
    return any(
        outs[rank].kept and not view.done and view.beat is not None for rank, view in views.items()
    )


def lost(
    rank: int, own: int, limit: float, sites: Sequence[str], view: PeerView, barred: str | None
) -> PeerError:
    """The error of a site that has not come further for `limit` seconds.

    `barred` says why it is not believed, or this site by others; None: it is.
    """
    away = time.monotonic() - view.heard
    silent = away > min(AWAY, limit / 2)
    reason = (
        f"it was away for {away:.0f} s" if silent else f"it has not come further for {limit:g} s"
    )
    said = replace(progress({rank: view}, limit)[rank], silent=silent)
    if (awaited := said.waiting) is not None and awaited < len(sites):
        reason += f", and says that it waits for {sites[awaited]}"
    reason += "" if barred is None else f"; {barred}"
    return first_failure((own, rank), reason, {rank: said}, sites, "every site")


def differs(name: str, receiver: str, step: int) -> InputError:
    """The error of a site that has come back, and would send another message than it did before."""
    expected = (
        f"the message to {receiver} at step {step} differs from the one that was sent before this "
        "process came back, and nothing was sent: put the records, the versions and the machine "
        "back as they were, and start this site again, or start a new run"
    )
    return InputError("--site", name, expected)


def left_out(stated: Mapping[str, str]) -> dict[int, int]:
    """Ranks that are left out, and from which step on, by what a journal holds."""
    held = {key: text for key, text in stated.items() if key.startswith(LEFT)}
    return {int(key.removeprefix(LEFT)): int(text) for key, text in held.items()}


def left_behind(name: str, step: int, takes_back: bool | None, here: bool) -> TacitError | None:
    """The error of a site without which the others go on, from `step` on at the latest.

    `takes_back` says whether they take it back; None: it is not known yet. `here` says whether the
    site is in their session still, and not in one that waits for that.
    """
    if takes_back is None or (takes_back and not here):
        return None
    if takes_back:
        return LeftOutError(f"{name} was left out, and the others take it back")
    if step == 0:
        expected = "came too late: the others began without it, and do not take it in any more"
        return InputError("--site", name, expected)
    return InputError(
        "--site",
        name,
        f"was left out, from step {step} at the latest: it was away, or came no further, for "
        "longer than train.patience, and the others go on without it; what it sent stays charged "
        "in its ledger",
    )


def say_left(name: str, step: int) -> None:
    """Log that the run goes on without a site, or begins without it."""
    if step == 0:
        _log.warning(
            "%s did not come within train.patience: the run begins without it, and takes it in "
            "when it comes",
            name,
        )
        return
    _log.warning(
        "%s was away, or came no further, for longer than train.patience: the run goes on without "
        "it, and from step %d on nobody counts on it",
        name,
        step,
    )


def say_back(step: int) -> None:
    """Log that the run stops for sites that were left out."""
    _log.warning(
        "who was left out is back: the run stops after step %d, and goes on from there with all "
        "that are there",
        step,
    )
