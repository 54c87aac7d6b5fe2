"""Streams of messages between sites that may be away, over a carrier that may lose some.

From every site to every other goes one stream, whose frames are numbered within a session. A
receiver takes the frame that is due, puts it into its journal, and drops every other: one that was
taken before, or one that is ahead. Once its journal is on the disk it says in a *beat* which frame
is due. A sender keeps what is not acknowledged. It sends it again when the way to the receiver was
lost, when it is asked to, and when the time has passed that acknowledgements take
(`tacit.communication.secure.pacing`). So the order of a stream is that in which it was sent,
nothing is taken twice, and whoever is killed and comes back misses nothing.

*Facts* are small texts that a site states once, and all others keep: what it runs, its public
keys, its votes. A fact that was stated stays as it was, also for the site itself when it comes
back and would now say something else.

*What leaves a site leaves once.* Of every frame the SHA-256 is on the disk before the frame leaves,
and those of all that were made before it, for whichever site. A process that makes steps again and
makes another frame is refused, and nothing leaves: `docs/proofs/returning-sites.md`.

Beats go to every other site once a second and when there is something to acknowledge. They also say
where a site stands, for whom it waits, whether it has ended, and why. A beat counts only if it
echoes a random number of the process that reads it: one that was recorded before that process
started says nothing to it.

Nothing that another site says makes this one hold more than a fixed amount for it, or wait for ever
(`Wire.wait_for`).
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Literal

from tacit.communication.received import BEAT as BEAT_FORM
from tacit.communication.received import Beat, Report
from tacit.communication.reports import awaited, error_of
from tacit.communication.secure import meeting
from tacit.communication.secure.frames import (
    BEAT,
    DATA,
    LONGEST_HEAD,
    Body,
    Frame,
    RefusedError,
    Sign,
    Verify,
    digest_of,
    pack,
    unpack,
)
from tacit.communication.secure.journal import (
    RECEIVED,
    SENT,
    STATED,
    UNSENT,
    Journal,
    Record,
    Session,
)
from tacit.communication.secure.meeting import Meeting, spared
from tacit.communication.secure.streams import FACT_TOPIC, PeerView, Streams, cost
from tacit.errors import GoneError, MeetAnewError, PeerError

if TYPE_CHECKING:
    from tacit.communication.secure.carrier import Carrier

LARGEST = 2**30  # bytes of one body
_ROOM = 2**28  # bytes from one sender that wait to be read, or to one receiver to be acknowledged
_BEAT = 1.0  # seconds between beats where nothing happens
_LOOK = 0.1  # seconds between two looks of the keeper: how long an acknowledgement may wait
_BURST = 2**23  # bytes that are sent again at once
_FAREWELL = 3.0  # seconds in which a site that is done says so
_IDLE = 10  # times the limit of a wait: for how long a site may move and come no further
_FORMING = bytes(16)
_LARGEST_NOTE = "largest message"

State = Literal["forming", "running", "done", "failed"]


@lru_cache(maxsize=8)
def _session_digest(run: bytes, nonces: tuple[str, ...] | None) -> bytes:
    """What frames name a session by, whose sites have met with these random numbers."""
    if nonces is None:
        return _FORMING
    return hashlib.sha256(run + " ".join(nonces).encode()).digest()[:16]


class Wire:
    """The streams of one site; opened by `start`, ended by `close`.

    Args:
        sites: names of all sites, by rank.
        run: 16 bytes that name the run, the same at every site.
        journal: of the session.
        sign: with this site's key.
        verify: against the keys of all.
        largest: bytes that the body of a message may have; `expect` says it anew.
        lets_leave: whether the run can go on without a site, by the settings of this one; else
            rank 0 is not believed that it does.
        lets_begin: whether it can begin without one, likewise.
        furthest: the last step from which this site can go on: that of its last checkpoint.

    Attributes:
        streams: what a snapshot holds; its notes are the run's.
        peers: what is known of every other site, by rank.
        session: as it is written.
        returned: whether this process comes back to a session that it was in.
        refused: how many messages were refused, and why the last one was.
        bytes_sent: of frames, as handed to the carrier.
        left: ranks of sites that are left out, and from which step on; rank 0 says so in its beats.
        back: which of them wait to be taken back: when last heard, and what they said.
        may_leave: at rank 0, whether the run can go on without these ranks; None: without nobody.
        takes_back: at rank 0, whether it takes them back; None: it cannot tell yet.
        grace: how many times its limit a wait lasts, so that rank 0 may say so first.
        can_spare: whether one that cannot take part ends only the session, and not the run.
        barred: why a site is not believed now, whatever it says; None: it is.
        watch: called again and again while the wire is open, also while the run waits.
    """

    def __init__(
        self,
        sites: Sequence[str],
        own: int,
        run: bytes,
        journal: Journal,
        *,
        sign: Sign,
        verify: Verify,
        largest: int = LARGEST,
        lets_leave: bool = False,
        lets_begin: bool = False,
        furthest: int = 0,
    ) -> None:
        self.sites, self.own = tuple(sites), own
        self.others = tuple(rank for rank in range(len(sites)) if rank != own)
        self.refused: tuple[int, str] = (0, "")
        self.bytes_sent = 0
        self.step = self.waiting_for = -1  # beats say both
        self.state: State = "forming"
        self.report: Report | None = None
        self.left: dict[int, int] = {}
        self.back: dict[int, tuple[float, Beat]] = {}
        self.may_leave: Callable[[frozenset[int]], bool] | None = None
        self.takes_back: bool | None = None
        self.grace = 1
        self.can_spare: Callable[[Collection[int]], bool] = lambda ranks: False
        self.barred: Callable[[int], str | None] = lambda rank: None
        self.watch: Callable[[], None] = lambda: None
        self.largest = largest
        self._run, self._journal, self._sign = run, journal, sign
        self._unpacked = partial(unpack, run=run, own=own, sites=self.sites, verify=verify)
        self._lets_leave, self.lets_begin = lets_leave, lets_begin
        self._unbegun = True  # no step of the session, by any process of this site
        self._token = secrets.token_hex(16)  # of this process
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        self._to_send = threading.Condition(lock)  # wakes the thread that publishes, and no other
        self._gathers = False  # whether what is sent waits for more to leave with it
        self._disk = threading.Lock()  # of the journal; taken after the condition, never before
        self.streams = Streams(own, self.others, journal.whole)
        self._in, self._out = self.streams.incoming, self.streams.outgoing
        self._last: tuple[Body, bytes] = (b"", digest_of(b""))  # that was sent, and its digest
        # Made, in this order, and their digests are not yet on the disk: rule 1 of the proof.
        self._fresh: deque[Record] = deque()
        self.peers = {rank: PeerView() for rank in self.others}
        where = str(journal.folder)
        self._meeting = Meeting(self.sites, own, self.peers, where, lets_begin, furthest)
        self._dirty, self._beats = False, 0
        self._came = self._given = 0  # beats say both; see `Beat`
        self._failure: Exception | None = None
        self._ending = False
        self._carrier: Carrier | None = None
        self._threads: list[threading.Thread] = []
        self.session = journal.take_up(len(self.sites))
        self.returned = self.session.nonces is not None

    # The session.

    def _digest(self) -> bytes:
        return _session_digest(self._run, self.session.nonces)

    def start(self, carrier: Carrier, step: int | None = None) -> None:
        """Take up the session at a snapshot, or at its beginning, and begin to speak.

        The carrier has been given `receive`, which drops what comes before.
        `step` is that of the snapshot; None: there is none. Errors are those of `Journal.load`.
        """
        self.session = self.session.model_copy(update={"starts": self.session.starts + 1})
        self._journal.write_session(self.session)
        self._unbegun = step is None
        self.streams.restore(*self._journal.load(step))
        self.largest = max(self.largest, int(self.streams.notes.get(_LARGEST_NOTE, "0")))
        self.left = meeting.left_out(self.streams.stated)
        self._journal.begin_segment(self._journal.last_segment())
        with self._changed:
            self._carrier = carrier
        for run in (self._publish_frames, self._keep):
            thread = threading.Thread(target=self._guarded, args=(run,), daemon=True)
            thread.name = f"tacit{run.__name__}"
            self._threads.append(thread)
            thread.start()

    def form(self, limit: float, *, is_new: bool = False, has_part: bool = True) -> None:
        """Wait until every site has come, and write down how they met.

        Rank 0 says when they have met. Where the settings let it, and more than half are there, it
        begins a new run without some that do not come, and one that was stopped without those that
        it had lost; at once, where these are known to be away. Who comes later waits to be taken
        in, or back, as long as it hears rank 0.

        `limit` is the seconds to wait. `is_new` says whether the run is new; only rank 0 is asked.
        `has_part` says whether this site may have taken part in the run before.

        Raises:
            PeerError: one has not come within the limit.
            InputError: the others are in a session of which this site has nothing, or from now on
                without it.
        """
        if self.session.nonces is None:
            began = time.monotonic()
            spare: Collection[int] = self.others if is_new else self.session.without
            told: Sequence[str] = []
            with self._changed:
                while not self._meeting.all_met(self.session):
                    self._check_failure()
                    self.session = self._meeting.checked(self.session, has_part=has_part)
                    if self._meeting.begun_without and self.session.rejoins is None:
                        self.session = self._meeting.waiting(self.session)
                        self._journal.write_session(self.session)
                    rejoins = self.session.rejoins
                    self.step = -1 if rejoins is None else rejoins
                    since = began if rejoins is None else max(began, self.peers[0].heard)
                    left = since + limit - time.monotonic()
                    if left <= 0 and rejoins is None and self._meeting.rank_0_is_near:
                        left += (meeting.GRACE - 1) * limit  # until it has said who meets
                    at_once = self.session.absent if self.session.starts == 1 else ()
                    absent = at_once if left > 0 else spare
                    if self._meeting.can_begin(self.session, absent):
                        break
                    if left <= 0:
                        self._meeting.refuse_forgotten(self.session, self.others)
                        raise self._meeting.not_met(limit)
                    told = self._meeting.say_unheard(told, time.monotonic() - began)
                    self._changed.wait(min(left, 0.5))
                self.step = -1
                gone = self._meeting.left_by_rank_0 if self.own else self._meeting.missing
                self._write_met(gone(self.session))
        with self._changed:
            for stream in self._in.values():  # ask for what came too early, or while it was away
                stream.missing, stream.told = True, -1
            self._to_send.notify()
        self.state = "running"

    def _write_met(self, without: Collection[int]) -> None:
        """Write down with whom this site begins, and without whom, before anybody hears of it."""
        notes = {f"{meeting.LEFT}{rank}": "0" for rank in without}
        if notes:
            with self._disk:
                self._journal.add_sent(
                    Record(STATED, self.own, 0, key, text.encode()) for key, text in notes.items()
                )
        self._token = secrets.token_hex(16)  # what was said before is of sessions that have ended
        self.session = self._meeting.met(self.session, without)
        self._journal.write_session(self.session)
        self.streams.stated |= notes
        self.left = meeting.left_out(notes)
        for rank in without:
            meeting.say_left(self.sites[rank], 0)
        for view in self.peers.values():
            view.greeted = False  # they wait for word of it

    # What the run asks for.

    def send(self, rank: int, topic: str, body: Body, *, limit: float) -> None:
        """Add a message to the stream to a site; returns before it has left.

        The topic says what reads it there; the body must not be changed later. `limit` is the
        seconds to wait where too much is under way to the site already.

        Raises:
            InputError: a process before this one has sent another message in its place.
            PeerError: the site has not acknowledged enough within the limit.
        """
        if len(body) > self.largest:
            raise ValueError(f"a message of {len(body)} bytes; {self.largest} can be sent")
        out = self._out[rank]
        if self._last[0] is not body:  # most methods send all others the same
            self._last = (body, digest_of(body))
        digest = self._last[1]
        with suppress(GoneError):
            self.wait_for(rank, lambda: out.held <= _ROOM, limit)
        with self._changed:
            self._check_failure()
            if rank in self.left:
                return
            if out.number < out.before and self.streams.sent.get((rank, out.number)) != digest:
                raise meeting.differs(self.sites[self.own], self.sites[rank], self.step)
            record = Record(UNSENT, rank, out.number, topic, body, digest)
            if self.streams.sent.pop((rank, out.number), None) is None:
                self._fresh.append(record)
            out.hold(record)
            out.number += 1
            out.trim()
            if not self._gathers:
                self._to_send.notify()

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is sent within leaves at the end: one write brings all its digests to the disk."""
        self._gathers = True
        try:
            yield
        finally:
            with self._changed:
                self._gathers = False
                self._to_send.notify()

    def state_fact(self, key: str, text: str, *, limit: float) -> str:
        """State a fact to all; the text that stands, which is an earlier one where there was one.

        A text has at most 8 MiB; `limit` is as in `send`.
        """
        streams = self.streams
        if (self.own, key) in streams.facts:
            return streams.facts[self.own, key]
        self._check_failure()
        if key not in streams.stated:
            with self._disk:
                self._journal.add_sent([Record(STATED, self.own, 0, key, text.encode())])
        with self._changed:
            text = streams.stated.pop(key, text)
            streams.know(self.own, key, text)
        body = text.encode()
        with self.together():
            for rank in self.others:
                self.send(rank, FACT_TOPIC + key, body, limit=limit)
        return text

    def fact_of(self, rank: int, key: str, *, limit: float) -> str:
        """What a site has stated; see `wait_for`."""
        self.wait_for(rank, lambda: (rank, key) in self.streams.facts, limit)
        return self.streams.facts[rank, key]

    def forget_facts(self, keys: Iterable[str]) -> None:
        """Forget what all sites have stated under some keys, which nobody will ask for again."""
        with self._changed:
            self.streams.forget(keys)

    def messages(self, rank: int, topic: str) -> int:
        """How many messages of a site wait to be read."""
        with self._changed:
            self._check_failure()
            return len(self._in[rank].waiting.get(topic, ()))

    def take(self, rank: int, topic: str, *, limit: float) -> Body:
        """The next message of a site on a topic, as it sent them in order; see `wait_for`."""
        self.wait_for(rank, lambda: self.messages(rank, topic) > 0, limit)
        with self._changed:
            stream = self._in[rank]
            record = stream.waiting[topic].popleft()
            if not stream.waiting[topic]:
                del stream.waiting[topic]
            stream.has_read(cost(record), _ROOM)
        return self._journal.whole(record).body

    def wait_for(self, rank: int, found: Callable[[], bool], limit: float) -> None:
        """Wait for something that a site has to do.

        It ends: a site that does nothing is waited for during `limit` seconds, and one that does
        much and comes no further, such as one that starts again and again, ten times as long. How
        long it takes to come further, step by step, a site can choose within that.

        Raises:
            PeerError: the site, or the last of those that wait for one another behind it, has not
                come further for so long; or one has ended the run.
            GoneError: the site is left out, and has not done it before.
        """
        with self._changed:
            if found():
                return
        self.waiting_for = rank
        try:
            began, left = time.monotonic(), len(self.left)
            with self._changed:
                while not found():
                    self._check_failure()
                    self.check()
                    if rank in self.left:
                        raise GoneError(f"the run goes on without {self.sites[rank]}")
                    now = time.monotonic()
                    if len(self.left) != left:  # who waited for that one can go on from here
                        began, left = now, len(self.left)
                    quiet = now - began
                    if quiet > limit:  # else nobody is late
                        quiet = self._dismiss_late(rank, began, limit)
                    self._changed.wait(min(0.5, limit - quiet + 0.01) if quiet < limit else 0.5)
        finally:
            self.waiting_for = -1

    def _dismiss_late(self, rank: int, began: float, limit: float) -> float:
        """Raise or leave out who holds up a wait for a site that began then; how long it is quiet.

        It may be another, for which that site waits itself.
        """
        culprit = awaited(self.own, rank, meeting.progress(self._here(), limit))[-1]
        now = time.monotonic()
        quiet = now - max(meeting.since(self.peers[culprit], limit), began)
        for late, without, most in (
            (culprit, quiet, limit),
            (rank, now - max(self.peers[rank].gained, began), _IDLE * limit),
        ):
            if without > most * (self.grace if late else 1):
                out = frozenset({*self.left, late})
                if self.may_leave is None or not self.may_leave(out):
                    why = self.barred(self.own) or self.barred(late)
                    error = meeting.lost(late, self.own, most, self.sites, self.peers[late], why)
                    raise spared(str(error), late) if self.can_spare({late}) else error
                self._leave(late, self.step + len(self.sites) + 1)
                break
        return quiet

    def expect(self, largest: int) -> None:
        """Send and take messages of so many bytes, also when a process comes back."""
        with self._changed:
            if largest > self.largest:
                self.largest = largest
                self.streams.note(_LARGEST_NOTE, str(largest))
                for stream in self._in.values() if self.refused[0] else ():
                    stream.missing, stream.told = True, -1  # ask for what was too large until now

    def begin_step(self, step: int) -> None:
        """Say in beats which step begins; who is left out during it, is so from a later one."""
        with self._changed:
            self.step, self.streams.reached = step, max(self.streams.reached, step)

    def _here(self) -> dict[int, PeerView]:
        return {rank: view for rank, view in self.peers.items() if rank not in self.left}

    def _leave(self, rank: int, step: int) -> None:
        """Leave a site out for good, but for its messages that are here; all on the disk."""
        self._journal.sync_received()
        record = Record(STATED, self.own, 0, f"{meeting.LEFT}{rank}", str(step).encode())
        with self._disk:
            self._journal.add_sent([record])
        self.streams.stated[record.topic] = str(step)
        self.left = {**self.left, rank: step}  # others read it meanwhile
        meeting.say_left(self.sites[rank], step)
        self._changed.notify_all()

    def check(self) -> None:
        """Raise why the run ends, as the kind of error that another site has reported."""
        self._check_failure()
        for rank, view in self._here().items():
            if (report := view.report_of(self.sites[rank])) is not None:
                raise spared(report.line, rank) if self.can_spare({rank}) else error_of(report)

    def snapshot(self, step: int) -> None:
        """Write down where all streams stand, and the notes, so that a process can go on from here.

        Call it before the checkpoint of the same step is written, which makes it count.
        """
        self._journal.sync_received()  # most of it without holding up what comes
        with self._changed, self._disk:
            self._check_failure()
            self._unbegun = False
            self._journal.sync_received()
            # What a snapshot holds may leave; a process that comes back earlier finds its digests.
            self._bring_to_disk(tuple(self._fresh), self.streams.reached)
            records = self.streams.records()
            self._journal.begin_segment(step)
        # Where the process ends here, an earlier snapshot stands, and all segments since.
        self._journal.write_snapshot(step, records)

    def forget_before(self, step: int) -> None:
        """Snapshots of earlier steps are not needed any more."""
        with self._disk:
            self._journal.forget_before(step)

    def close(
        self,
        *,
        ended: bool,
        linger: float,
        following: Callable[[Set[int]], Session | None] = lambda late: None,
    ) -> None:
        """Stop speaking; where the run has ended, once all that was sent is on others' disks.

        `ended` says whether the session has come to its clean end; others that are away are waited
        for `linger` seconds. `following` gives the session that takes this one's place, of who has
        not come to its end.
        """
        if ended:
            self.state = "done"
            deadline = time.monotonic() + linger
            self._wait_while(lambda: meeting.owes(self._out, self._here()), deadline)
            # Who has not heard that this site is done waits for it: several beats say so.
            until = min(deadline, time.monotonic() + _FAREWELL)
            self._wait_while(lambda: meeting.untold(self._here().values()), until)
        elif self.report is not None:
            self.state = "failed"
            # Nobody believes why before this site has heard what is to be echoed.
            apart = lambda: not all(view.met for view in self._here().values())  # noqa: E731
            self._wait_while(apart, time.monotonic() + _FAREWELL)
        with self._changed:
            self._ending = True
            self._to_send.notify()
        for thread in self._threads:
            thread.join(5.0)
        late = {rank for rank, view in self.peers.items() if not view.done}
        try:
            with self._changed:
                if ended:
                    self._journal.sync_received()
                    for stream in self._in.values():
                        stream.on_disk = stream.due
            if self._threads:
                with suppress(Exception):  # where the carrier is broken, nobody can be told
                    for rank in self.others * 2:
                        self._beat_to(rank)
        finally:
            with self._changed, self._disk:
                self._carrier = None  # nothing is taken any more
                if (session := following(late)) is not None:
                    self._journal.begin_anew(session)
                elif ended:
                    self._journal.write_session(self.session.model_copy(update={"ended": True}))
                    self._journal.remove()
                self._journal.close()

    def _wait_while(self, holds: Callable[[], bool], deadline: float) -> None:
        with self._changed:
            while time.monotonic() < deadline and self._failure is None and holds():
                self._changed.wait(0.1)

    # What comes in; called by threads of the carrier.

    def receive(self, message: bytes | bytearray) -> None:
        """Take a frame from the carrier; one that is refused is counted, and changes nothing."""
        if self._carrier is None or self._failure is not None:
            return  # not yet, or not any more: it is not acknowledged, and comes again
        try:
            frame, _ = self._unpacked(message, largest=self.largest)
            if frame.kind == BEAT:
                self._heard_beat(frame)
            else:
                self._heard_data(frame)
        except PeerError as error:
            self._refuse(error)
        except Exception as error:  # such as a full disk: raised where the run asks next
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify_all()

    def _refuse(self, error: PeerError) -> None:
        with self._changed:
            self.refused = (self.refused[0] + 1, str(error))

    def _heard_beat(self, frame: Frame) -> None:
        beat = BEAT_FORM.read(bytes(frame.body), frame.sender, "beat")
        with self._changed:
            view, now = self.peers[frame.sender], time.monotonic()
            here = frame.session == self._digest() != _FORMING
            if view.meets(beat, here):  # a new process, which waits for an answer
                self._to_send.notify()
                self._in[frame.sender].told = self._out[frame.sender].asked = -1
            if any(rank >= len(self.sites) for rank, _ in beat.left):
                raise RefusedError(f"{self.sites[frame.sender]} leaves out a site that is none")
            if beat.echo != self._token:
                return  # recorded before this process spoke to the other, or not yet an answer
            nonces = self.session.nonces
            if nonces is not None and beat.nonce != nonces[frame.sender]:
                left = dict(beat.left) if frame.sender == 0 else {}
                lasts = not self._unbegun or self.session.rejoins is not None
                if self.own in left and lasts:  # the others have met anew without this site
                    self._leave_behind(left[self.own], beat.takes_back, here=True)
                elif frame.sender in self.left and beat.state == "forming":
                    last = self.back.get(frame.sender, (now, None))[1]
                    new = last is None or beat.nonce != last.nonce or beat.is_after(last)
                    if beat.step >= 0 and new:  # it waits, and does not come as if to the start
                        self.back[frame.sender] = (now, beat)
                elif self._unbegun and (beat.state == "forming" or self.own in left):
                    why = "has given up the session, of which no step was begun"
                    error = MeetAnewError(f"{self.sites[frame.sender]} {why}")
                    self._failure = self._failure or error
                    self._changed.notify_all()
                elif beat.state != "done":
                    name = self.sites[frame.sender]
                    raise RefusedError(f"{name} came back without its session of this run")
                return
            before = view.beat
            if not view.hear(beat, now, self.step):
                return  # an older one, that came late or was sent again by somebody else
            moved = before is not None and before.came != beat.came
            self._given += moved and self._out[frame.sender].under_way > 0
            out = self._out[frame.sender]
            if here and beat.due > out.acknowledged:
                out.acknowledge(beat.due, now)
            if here and beat.again:
                out.answer()
                self._to_send.notify()
            if frame.sender == 0 and here:
                try:
                    left_now = {*self.left, *(rank for rank, _ in beat.left)}
                    self._meeting.check_left(left_now, allowed=self._lets_leave)
                except PeerError as error:  # nothing of it is done, and the run ends
                    self._failure = self._failure or error
                    self._changed.notify_all()
                    return
            for rank, step in beat.left if frame.sender == 0 else ():
                if rank == self.own and (here or self.session.rejoins is not None):
                    self._leave_behind(step, beat.takes_back, here=here)
                elif here and rank in self.peers and rank not in self.left:
                    self._leave(rank, max(step, self.step + 1))
            self._changed.notify_all()

    def _leave_behind(self, step: int, takes_back: bool | None, *, here: bool) -> None:
        """Rank 0 says that this site is left out; see `left_behind`."""
        error: Exception | None = meeting.left_behind(self.sites[self.own], step, takes_back, here)
        if not self._lets_leave:
            name = self.sites[self.own]
            error = PeerError(f"{self.sites[0]} leaves out {name}, which no setting allows")
        self._failure = self._failure or error
        self._changed.notify_all()

    def _is_taken(self, head: Frame, size: int) -> bool:
        """Whether a frame is one that this site takes now, by its head."""
        if self._carrier is None or self._failure is not None or head.sender in self.left:
            return False
        if self.session.nonces is None:
            return False  # the sender has met all already; it sends this again
        if head.session != self._digest():
            raise RefusedError(f"{self.sites[head.sender]} sent a message of another session")
        room = LARGEST if head.topic.startswith(FACT_TOPIC) else _ROOM
        return self._in[head.sender].is_due(head.number, room, size)

    def begins(self, piece: bytes) -> int:
        """How many bytes a frame has of which this is the beginning; 0 where it is not taken."""
        try:
            head, length = self._unpacked(piece, largest=self.largest, whole=False)
            with self._changed:
                taken = head.kind == DATA and self._is_taken(head, length)
                return LONGEST_HEAD + length if taken else 0
        except PeerError as error:
            self._refuse(error)
            return 0

    def moves(self, rank: int) -> None:
        """A piece has come of a frame that a site has begun."""
        with self._changed:
            self._came += 1
            self.peers[rank].moved = time.monotonic()

    def _heard_data(self, frame: Frame) -> None:
        record = Record(RECEIVED, frame.sender, frame.number, frame.topic, frame.body, frame.digest)
        with self._changed:
            if not self._is_taken(frame, cost(record)):
                return
            stream, view = self._in[frame.sender], self.peers[frame.sender]
            if frame.topic.startswith(FACT_TOPIC):
                self.streams.check_fact(record, self.sites[record.rank])
            self._journal.add_received(record)
            self._dirty = True
            stream.due += 1
            stream.missing = False
            view.heard = view.moved = view.gained = time.monotonic()
            self.streams.accept(record)
            self._changed.notify_all()

    # What goes out; by two threads, so that beats go on where a frame is held up.

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception as error:  # raised again where the run asks
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify_all()

    def _publish_frames(self) -> None:
        while True:
            with self._changed:
                # In order; a part at once, where much is to be sent again.
                ready = [out for rank, out in self._out.items() if out.kept and self._takes(rank)]
                batch = [record for out in ready for record in out.due(_BURST)]
                if not batch and self._ending:
                    return
                if not batch:
                    self._to_send.wait(0.2)
                    continue
                session = self._digest()
                made, reached = tuple(self._fresh), self.streams.reached
            with self._disk:
                self._bring_to_disk(made, reached)
            for record in batch:
                out = self._out[record.rank]
                if record.number >= out.published:
                    continue  # what comes before it is to be sent again
                said = (record.number, record.topic, record.body, record.digest)
                frame = Frame(DATA, self.own, record.rank, session, *said)
                message, began = pack(frame, self._run, self._sign), time.monotonic()
                taken = self._publish(record.rank, message)
                with self._changed:
                    under_way = self._under_way() + len(message)
                    if taken:
                        out.took(record.number, began, time.monotonic(), len(message), under_way)
                    else:
                        out.published = min(out.published, record.number)

    def _bring_to_disk(self, made: Sequence[Record], reached: int) -> None:
        """Write the digests of the first messages that are fresh; before any of them leaves.

        `reached` is the last step that this site had begun. Two threads may have seen the same.
        """
        step = b"%d" % reached
        if made:
            self._journal.add_sent(replace(record, kind=SENT, body=step) for record in made)
        for record in made:
            if self._fresh and self._fresh[0] is record:
                self._fresh.popleft()

    def _takes(self, rank: int) -> bool:
        """Whether there is a way to a site, which has met this one: it takes no frame before."""
        met, carrier = self.session.nonces is not None and self.peers[rank].met, self._carrier
        return met and carrier is not None and carrier.reaches(rank)

    def _keep(self) -> None:
        """Bring the journal to the disk, beat, and have what was lost sent again."""
        last = dict.fromkeys(self.others, 0.0)
        while not self._ending:
            with self._changed:
                dirty, self._dirty = self._dirty, False
                due = {rank: stream.due for rank, stream in self._in.items()}
            if dirty:
                self._journal.sync_received()
            self.watch()
            now, under_way, carrier = time.monotonic(), self._under_way(), self._carrier
            for rank in self.others:
                stream, out = self._in[rank], self._out[rank]
                breaks = out.breaks if carrier is None else carrier.breaks(rank)
                with self._changed:
                    stream.on_disk = max(stream.on_disk, due[rank])
                    news = stream.told != stream.on_disk or not self.peers[rank].greeted
                    if out.looked(now, breaks, under_way):
                        self._to_send.notify()
                if now - last[rank] > (_LOOK if news else _BEAT):
                    self._beat_to(rank)
                    last[rank] = now
            time.sleep(_LOOK)

    def _beat_to(self, rank: int) -> None:
        with self._changed:
            stream, view, nonces = self._in[rank], self.peers[rank], self.session.nonces
            self._beats += 1
            beat = Beat(
                nonce=self.session.nonce,
                nonce_of_receiver=None if nonces is None else nonces[rank],
                token=self._token,
                echo=view.token,
                start=self.session.starts,
                counter=self._beats,
                due=stream.on_disk,
                again=stream.missing,
                step=self.step,
                waiting_for=self.waiting_for,
                came=self._came,
                given=self._given,
                state=self.state,
                report=self.report,
                left=tuple(self.left.items()) if self.own == 0 else (),
                takes_back=self.takes_back if self.own == 0 else None,
            )
            stream.told, stream.missing, view.greeted = stream.on_disk, False, True
            session = self._digest()
        body = BEAT_FORM.write(beat).encode()
        frame = Frame(BEAT, self.own, rank, session, 0, "beat", body, digest_of(body))
        self._publish(rank, pack(frame, self._run, self._sign), urgent=True)

    def _publish(self, rank: int, message: bytes, *, urgent: bool = False) -> bool:
        carrier = self._carrier
        if carrier is None:
            return False  # closed while it was made
        with self._changed:
            self.bytes_sent += len(message)
        return carrier.publish(rank, message, urgent=urgent)

    def _under_way(self) -> int:
        """Bytes that the engine has taken and nobody has acknowledged."""
        return sum(out.under_way for out in self._out.values())

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
