"""The sites of a run as one of them sees the others, over a `Wire`.

`join_sites` opens what a run holds (`SiteCluster`). It does what `Cluster` does in one rack, but a
process that goes away does not end the run: the others wait for it, and it comes back to where it
was (`tacit.communication.secure.journal`).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from torch import Tensor

from tacit.communication import marks
from tacit.communication.crew import Crew
from tacit.communication.exchange.protocol import Arrival
from tacit.communication.peers import READY, PeerState, SessionMemory
from tacit.communication.received import FLAG, Form
from tacit.communication.reports import peer_state, report_of
from tacit.communication.secure.certificates import Certificates, refuse_in_vain
from tacit.communication.secure.frames import Body
from tacit.communication.secure.journal import Journal, Session
from tacit.communication.secure.meeting import GRACE, progress, say_back
from tacit.communication.secure.streams import AWAY
from tacit.communication.secure.wire import Wire
from tacit.communication.stop_vote import StopVote
from tacit.errors import (
    BudgetError,
    DivergenceError,
    GoneError,
    InputError,
    LeakError,
    LeftOutError,
    MeetAnewError,
    PeerError,
    TacitError,
)

if TYPE_CHECKING:
    from tacit.communication.secure.carrier import Carrier
    from tacit.identities.site import Site

T = TypeVar("T")

_EXCHANGE, _METRICS, _VOTE = "exchange", "metrics", "last vote"
_READY = f"share {READY} 0"  # the key under which it is shared
_LEAVING, _MEETING = "whether sites may leave", "meet again"

_DOCUMENTS = 9 * 2**20  # bytes that a message may have beside numbers: a fact has 8 MiB
_CONNECTING = 60.0  # seconds until a way to the others must be open
_AT_LEAST = timedelta(days=1)  # that a run is likely to last, as far as nothing is known of it
# What starting again does not mend; of any other error the others hear nothing, and wait.
_FINAL = (BudgetError, DivergenceError, LeakError, PeerError)


class SiteSession(SessionMemory):
    """What a site remembers while a session lasts."""

    def __init__(
        self, wire: Wire, last_vote: Callable[[], str | None], returned_to: int | None
    ) -> None:
        self.returned, self.returned_to = wire.returned, returned_to
        self.rejoins = wire.session.rejoins
        self._wire, self._last_vote = wire, last_vote
        self._secret = bytes.fromhex(wire.session.secret)
        self._kept: list[int] = []

    def secret(self, name: str) -> bytes:
        """Derived from that of the session; see `SessionMemory.secret`."""
        info = f"tacit session 1 {name}".encode()
        return HKDF(SHA256(), 32, salt=None, info=info).derive(self._secret)

    def remember(self, name: str, make: Callable[[], T], schema: Form[T]) -> T:
        """See `SessionMemory.remember`."""
        noted = self._wire.streams.notes.get(name)
        if noted is not None:
            return schema.read(noted, self._wire.own, name)
        made = make()
        self._wire.streams.note(name, schema.write(made))
        return made

    def earlier(self, name: str, schema: Form[T]) -> T | None:
        """See `SessionMemory.earlier`, and `Session.earlier`."""
        noted = self._wire.session.earlier.get(name)
        return None if noted is None else schema.read(noted, self._wire.own, name)

    def keep(self, step: int) -> None:
        """See `SessionMemory.keep`."""
        if (vote := self._last_vote()) is not None:
            self._wire.streams.note(_VOTE, vote)
        self._wire.snapshot(step)

    def kept(self, step: int) -> None:
        """The checkpoint of a step is written: what is older than the one before is not needed."""
        self._kept = [*self._kept[-1:], step]
        self._wire.forget_before(self._kept[0])


class SiteCluster(Crew):
    """The one object that a run of several sites holds; made by `join_sites`.

    `timeout` is for how many seconds another site may not come further, `[train].patience`.
    """

    def __init__(
        self,
        wire: Wire,
        carrier: Carrier,
        certificates: Certificates,
        *,
        patience: float,
        returned_to: int | None,
    ) -> None:
        super().__init__(wire.own, wire.sites)
        self.timeout, self.wire = patience, wire
        self._certificates, self._steps = certificates, 0
        self._began: tuple[datetime, int] | None = None
        wire.can_spare = self.can_spare
        self._carrier = carrier
        self._own = SiteSession(wire, self._last_vote, returned_to)
        self.session = self._own
        self.authenticated = True
        self._goes_on: Callable[[frozenset[int]], bool] | None = None
        self._takes_back = self._calls = False
        self._gatherer: SiteGatherer | None = None

    def expect(self, *, steps: int, largest: int) -> None:
        """See `Crew.expect`."""
        self._steps = steps
        self.wire.expect(largest + _DOCUMENTS)

    def let_leave(
        self, goes_on: Callable[[frozenset[int]], bool] | None, *, takes_back: bool
    ) -> Callable[[int], frozenset[int]]:
        """Let the run go on without sites that are away for too long; see `Crew.let_leave`.

        Rank 0 decides, and says so in its beats. From when on a site leaves the lost one's edges
        out, it writes down before it acts on it: a step that it has not begun. So a process that
        comes back makes the same messages again. Before, it drops what does not come, and the
        journal tells which messages had come. What one site writes down changes no other's
        messages: who keeps what was for the lost one, keeps it for itself.

        A lost site that comes back gives its session up (`begin_anew`), and waits. Then rank 0
        asks for a stop, at a step of which the site has sent nothing, and all that are there meet
        in a new session; see `_calls_back`.
        """
        self._goes_on, self._takes_back = goes_on, takes_back
        return lambda step: frozenset(
            rank for rank, first in self.wire.left.items() if first <= step
        )

    def _may_leave(self, ranks: frozenset[int]) -> bool:
        """At rank 0: a side that has no majority might be the one that is cut off."""
        goes_on, gatherer = self._goes_on, self._gatherer
        majority = 2 * (self.processes - len(ranks)) > self.processes
        if not majority or goes_on is None or gatherer is None:
            return False
        return goes_on(ranks) and all(map(gatherer.knows, ranks))

    def can_spare(self, ranks: Collection[int]) -> bool:
        """Whether all meet anew without sites that come back, and cannot; see `Peers.can_spare`.

        This site has made no step of the session then, since it has not said that it is ready. One
        that comes back itself does not know who else does.
        """
        session, wire = self.wire.session, self.wire
        known = set(wire.others) - {0}
        if session.rejoins is None:
            known &= set(session.without)
        ready = wire.streams.has_stated(_READY)
        many = 2 * len(wire.left.keys() | set(ranks)) < self.processes
        return wire.lets_begin and not ready and many and set(ranks) <= known

    def state(self, key: str, text: str) -> str:
        """See `Link.state`."""
        return self.wire.state_fact(key, text, limit=self.timeout)

    def collect(
        self, key: str, ranks: Iterable[int], what: str, *, loading: bool = False
    ) -> dict[int, str]:
        """See `Link.collect`; for all, patience says how long."""
        texts = {}
        for rank in ranks:
            with suppress(GoneError) if rank else nullcontext():
                texts[rank] = self.wire.fact_of(rank, key, limit=self.timeout)
        return texts

    def forget(self, keys: Iterable[str]) -> None:
        """See `Link.forget`."""
        self.wire.forget_facts(keys)

    def report(self, error: BaseException) -> None:
        """Tell the others why the run ends; nothing, where starting this site again may mend it."""
        if isinstance(error, LeftOutError | MeetAnewError):
            return
        # Where the others are in the middle of the run, a wrong file at one does not end it.
        starting = self._stop_vote is None and not self._own.returned
        if isinstance(error, _FINAL) or (isinstance(error, TacitError) and starting):
            self.wire.report = report_of(error, self.wire.sites[self.rank])

    def at(self, step: int) -> None:
        """Say in beats which step this site has begun."""
        self.wire.begin_step(step)
        now = datetime.now(UTC)
        began, first = self._began = self._began or (now, step)
        if step > first:  # as long as so far, step by step
            left = (now - began) / (step - first) * max(self._steps - step, 0)
            self._certificates.until = max(self._certificates.until, now + left)

    def check(self) -> None:
        """See `Peers.check`; asks no network."""
        self.wire.check()

    def saved(self, step: int) -> int:
        """This site's own last checkpoint: it needs no other to come back."""
        self._own.kept(step)
        return step

    def begin(self, step: int) -> None:
        """See `Peers.begin`."""
        leaving = self._goes_on is not None
        self.wire.grace = GRACE if leaving and self.rank else 1
        if self.rank == 0:  # what it says holds for all
            self.wire.may_leave = self._may_leave if leaving else None
            self.wire.takes_back = leaving and self._takes_back
            self.state(_LEAVING, FLAG.write(leaving))
        self._stop_vote = StopVote(
            self, step + 1, counted=self._counted, last=self.wire.streams.notes.get(_VOTE)
        )
        returned_to = self.session.returned_to
        if returned_to is None:
            self.session.keep(step)
        self._own.kept(step if returned_to is None else returned_to)

    def _last_vote(self) -> str | None:
        return None if self._stop_vote is None else self._stop_vote.last

    def _counted(self) -> bool:
        """Whether rank 0 counts votes, since sites may leave: it says so at the beginning."""
        return FLAG.read(self.collect(_LEAVING, [0], _LEAVING)[0], 0, _LEAVING)

    def agreed_stop(self, step: int, asked: bool) -> bool:
        """See `Crew.agreed_stop`; and whether all meet again."""
        if self.rank == 0 and self._takes_back:
            self._calls = self._calls or self._calls_back()
        stop = super().agreed_stop(step, asked or self._calls)
        if stop and self._takes_back:
            wanted = not asked and (self._calls or self.rank > 0)
            flags: list[bool] = self.share(_MEETING, wanted, FLAG)
            self.meets_again = all(flags)
            if self.meets_again:
                say_back(step)
        return stop

    def _calls_back(self) -> bool:
        """At rank 0: whether to stop, since sites that are left out wait, and can come back now.

        Where a run cannot begin without a site, all of them have to wait: otherwise all would wait
        for one that may be away for good.
        """
        ready = self._ready()
        return bool(ready) and (self.wire.lets_begin or ready == self.wire.left.keys())

    def _ready(self) -> set[int]:
        """Who is left out, waits now, and has sent nothing of the step that follows."""
        now, step = time.monotonic(), self.wire.step
        return {
            rank
            for rank, (heard, beat) in tuple(self.wire.back.items())
            if rank in self.wire.left and now - heard < AWAY and beat.step <= step
        }

    def seen(self) -> Sequence[PeerState]:
        """See `Peers.seen`."""
        now = time.monotonic()
        views = self.wire.peers
        states = [PeerState(self.rank, self.names[self.rank], "unknown")] * self.processes
        for rank, said in progress(views, self.timeout).items():
            quiet, beat = now - views[rank].heard, views[rank].beat
            state = peer_state(rank, self.names[rank], said, quiet, away=quiet > AWAY)
            report = None if beat is None else beat.report
            states[rank] = replace(state, last_error=None if report is None else report.line)
        for rank, first in tuple(self.wire.left.items()):
            states[rank] = replace(states[rank], state="gone", left_from=first)
        for rank, out in self.wire.streams.outgoing.items():
            error = self.wire.barred(rank) or states[rank].last_error
            states[rank] = replace(
                states[rank], last_error=error, rate=out.rate, frames=out.frames, again=out.again
            )
        awaited = () if self.wire.waiting_for < 0 else (self.wire.waiting_for,)
        count, refused = self.wire.refused
        states[self.rank] = PeerState(
            self.rank,
            self.wire.sites[self.rank],
            "connected" if self._carrier.connected() else "away",
            quiet=0.0,
            waiting_for=awaited,
            last_error=self._certificates.expired(datetime.now(UTC))
            or (f"{refused} ({count} in all)" if count else None),
        )
        return states

    def close(self, *, ended: bool, error: BaseException | None = None) -> None:
        """Leave: at the end of the run once all that was sent has arrived.

        `ended` says whether it has come to its end; `error` is what has ended it otherwise.

        Raises:
            InputError: it was left out before it had begun, and cannot tell what it has sent.
        """
        if ended and not self.meets_again and self.wire.takes_back:
            self.wire.takes_back = False
        begun = self._stop_vote is not None or self.session.returned_to is not None
        left_out, streams = isinstance(error, LeftOutError), self.wire.streams

        def following(late: Set[int]) -> Session | None:
            if ended:
                return self._after_stop(late)
            if begun:
                sent = streams.reached + 1
                return Session.new(rejoins=sent, earlier=streams.notes) if left_out else None
            return self._instead(error)

        known = begun or self.wire.session.sent is not None
        self.wire.close(ended=ended, linger=self.timeout, following=following)
        self._carrier.close()
        if left_out and not known:
            expected = "was left out before it began to take part: start a new run"
            raise InputError("--site", self.wire.sites[self.rank], expected)

    def _after_stop(self, late: Set[int]) -> Session | None:
        """The session that follows a clean stop of a run that takes sites back.

        It knows what this site has sent, since the others may begin it without this site. Ranks
        that are `late` have not come to the end of this one; where the run may begin without them,
        they need not come.
        """
        if not self.stopped or not (self._takes_back or self.wire.left):
            return None
        without = set(self.wire.left) | (late if self.wire.lets_begin else set())
        peers, now = self.wire.peers, time.monotonic()
        here = {rank for rank in late if now - peers[rank].heard < AWAY} - self.wire.left.keys()
        streams = self.wire.streams
        return Session.new(
            sent=streams.reached + 1,
            earlier=streams.notes,
            without=without,
            absent=without - here - self._ready() if self.meets_again else (),
        )

    def _instead(self, error: BaseException | None) -> Session | None:
        """The session in place of one of which this site has begun no step; None: it stands.

        It is given up where another site has done so; where one says why the run ends, unless
        this site was ready to begin, since others may have begun then; and where the others go on
        without this site, which waits then.
        """
        session = self.wire.session
        rejoins, absent = session.rejoins, set[int]()
        if isinstance(error, MeetAnewError):  # who is known not to come is not waited for
            views = self.wire.peers.items()
            failed = {rank for rank, view in views if view.beat is not None and view.beat.report}
            spared = {rank for rank in failed if self.can_spare({rank})}
            absent = (self.wire.left.keys() - self._ready()) | spared | error.without
        elif isinstance(error, LeftOutError):
            if session.sent is None:
                return None
            rejoins = session.sent
        else:
            peers = self.wire.peers.items()
            beats = [view.beat for rank, view in peers if rank not in self.wire.left]
            reports = [self.wire.report, *(beat.report for beat in beats if beat is not None)]
            if not any(reports) or self.wire.streams.has_stated(_READY):
                return None
        # What was stated stands in a session: with a file that was mended, all need another.
        fresh = Session.new()
        kept = {"secret": fresh.secret, "nonce": fresh.nonce, "nonces": None, "starts": 0}
        return session.model_copy(update=kept | {"rejoins": rejoins, "absent": tuple(absent)})

    def connect(
        self, device: torch.device, numbers: Sequence[int], added: int, stack: ExitStack
    ) -> tuple[SiteChannel, SiteGatherer]:
        """See `Crew.connect`; the same wire carries both."""
        channel = SiteChannel(self.wire, device, self.timeout)
        self._gatherer = SiteGatherer(
            self.wire, numbers, added, self.timeout, needs_all=not self._takes_back
        )
        return channel, self._gatherer


class SiteChannel:
    """A `Channel` over a wire."""

    def __init__(self, wire: Wire, device: torch.device, patience: float) -> None:
        self.rank, self.processes, self.bytes_sent = wire.own, len(wire.sites), 0
        self._wire, self._device, self._patience = wire, device, patience
        self._last: tuple[Tensor | None, memoryview] = (None, memoryview(b""))

    def envelope(self, size: int) -> Tensor:
        """See `Channel.envelope`."""
        return torch.empty(size, dtype=torch.uint8, device=self._device)

    def send(self, rank: int, message: Tensor) -> None:
        """Hand over a message; see `Wire.send`."""
        if self._last[0] is not message:  # the same to all is one body
            self._last = (message, message.cpu().numpy().data.toreadonly())
        body = self._last[1]
        self._wire.expect(len(body))
        self._wire.send(rank, _EXCHANGE, body, limit=self._patience)
        self.bytes_sent += len(body)

    def receive(self, rank: int, size: int) -> Arrival:
        """The next message of a site, whatever its length: the reader checks it."""
        self._wire.expect(size)

        @cache
        def arrival() -> Tensor:
            body = self._wire.take(rank, _EXCHANGE, limit=self._patience)
            return _bytes(body).to(self._device)

        return arrival

    def together(self) -> AbstractContextManager[object]:
        """See `Channel.together`."""
        return self._wire.together()


def _last(rank: int) -> str:
    """The note that holds the last part of a site."""
    return f"last metrics of {rank}"


class SiteGatherer(marks.Gatherer):
    """A gatherer over a wire.

    The last `added` numbers of a part are a sum of models: of a site that is left out, the others
    of its last part stand. `needs_all` says whether the run cannot go on without a site of which no
    part has ever come.
    """

    def __init__(
        self, wire: Wire, numbers: Sequence[int], added: int, patience: float, *, needs_all: bool
    ) -> None:
        super().__init__(wire.own, wire.sites, numbers)
        self._wire, self._added = wire, added
        self._patience, self._needs_all = patience, needs_all

    def send(self, message: Tensor) -> None:
        """See `Gatherer.send`."""
        self._wire.send(0, _METRICS, message.numpy().tobytes(), limit=self._patience)

    def knows(self, rank: int) -> bool:
        """Whether something stands for the parts of this site if it is left out."""
        if not self._needs_all or _last(rank) in self._wire.streams.notes:
            return True
        return self._wire.messages(rank, _METRICS) > 0

    def is_here(self, rank: int, step: int) -> bool:
        """Or it will not come."""
        return self._wire.messages(rank, _METRICS) > 0 or rank in self._wire.left

    def take(self, rank: int) -> Tensor:
        """See `Gatherer.take`."""
        return _bytes(self._wire.take(rank, _METRICS, limit=self._patience))

    def part_of(self, rank: int, step: int) -> Tensor:
        """Of one that is gone, its last scores stand, and it has no model any more."""
        notes = self._wire.streams.notes
        try:
            part = super().part_of(rank, step)
        except GoneError:
            return _bytes(bytes.fromhex(notes.get(_last(rank), ""))).view(torch.float64)
        if self._wire.may_leave is not None:
            scores = part[: len(part) - self._added].numpy().tobytes()
            self._wire.streams.note(_last(rank), scores.hex())
        return part


def _bytes(body: Body) -> Tensor:
    """A body that may be written over as it lies, where numbers in it are at a multiple of 16."""
    if isinstance(body, bytes) or body.readonly or not body:
        return torch.frombuffer(bytearray(body or b"\0"), dtype=torch.uint8)[: len(body)]
    came = torch.frombuffer(body, dtype=torch.uint8)
    return came if came.data_ptr() % 16 == 0 else came.clone()


def join_sites(
    site: Site,
    name: str,
    folder: Path,
    *,
    patience: float,
    checkpoints: Sequence[int],
    lets_leave: bool = False,
    lets_begin: bool = False,
    is_new: bool = False,
    has_part: bool = True,
    largest: int = _DOCUMENTS,
) -> SiteCluster:
    """Meet the other sites of a run, or come back to them; returns when all have been here.

    `name` is that of the run, the same at every site, and `folder` that of the session (see
    `session_folder`). `patience` is in seconds, `[train].patience`; `checkpoints` are the steps of
    which this site has checkpoints of the run. `lets_leave` and `lets_begin` are as in `Wire`, and
    `largest` as in `Crew.expect`, until the plan says more. `is_new` says whether the run is new,
    and `has_part` whether this site has a ledger of it: one that has none, and finds that the
    others have begun, waits to be taken in.

    Raises:
        InputError: the session of this site is damaged, or lost; or a site without which the run
            cannot begin was revoked, or its certificate does not hold now.
        PeerError: no way to the others is open, or not all have come in time.
    """
    from tacit.communication.secure.carrier import Carrier
    from tacit.identities.site import sign, verify

    members = site.bundle.sites

    @lru_cache(maxsize=len(members))
    def refused(rank: int, second: int) -> str | None:
        """Why a site is not accepted at a time: looked up once a second, not for every message."""
        return site.bundle.refusal(members[rank], datetime.fromtimestamp(second, UTC))

    @lru_cache(maxsize=4 * len(members))
    def signed(rank: int, signature: bytes, data: bytes) -> bool:
        """Asked twice of a long frame: at its beginning, and once all of it is here."""
        return verify(members[rank], signature, data)

    def judged(rank: int, signature: bytes, data: bytes) -> str | None:
        """Why a message is not accepted as one of the site of this rank."""
        if not signed(rank, signature, data):
            return "its signature is not that site's"
        return refused(rank, int(time.time()))

    run = hashlib.sha256(f"tacit run {site.bundle.consortium} {name}".encode()).digest()[:16]
    names = [member.name for member in members]
    assert site.own.rank is not None
    journal = Journal(folder)
    wire = Wire(
        names,
        site.own.rank,
        run,
        journal,
        sign=lambda data: sign(site, data),
        verify=judged,
        largest=largest,
        lets_leave=lets_leave,
        lets_begin=lets_begin,
        furthest=max(checkpoints, default=0),
    )
    likely = max(timedelta(seconds=patience), _AT_LEAST)
    certificates = Certificates(site, datetime.now(UTC) + likely)
    wire.barred = lambda rank: refused(rank, int(time.time()))
    with ExitStack() as stack:
        stack.callback(wire.close, ended=False, linger=0.0)
        if not (lets_begin or wire.returned):  # it would wait in vain
            refuse_in_vain(site, datetime.now(UTC))
        certificates.look(datetime.now(UTC))
        step = _taken_up(journal, checkpoints)
        limit = min(patience, _CONNECTING)
        carrier = Carrier(
            site, run.hex(), wire.receive, timeout=limit, begins=wire.begins, moves=wire.moves
        )
        stack.callback(carrier.close)

        def watch() -> None:
            certificates.look(datetime.now(UTC))
            if (error := carrier.revoked()) is not None:
                raise error

        wire.watch = watch
        stack.callback(wire.close, ended=False, linger=0.0)  # while it can still speak
        wire.start(carrier, step)
        wire.form(patience, is_new=is_new, has_part=has_part)
        stack.pop_all()
    return SiteCluster(wire, carrier, certificates, patience=patience, returned_to=step)


def session_folder(out: Path, rank: int) -> Path:
    """Where a site keeps its session of a run: beside the run folder, hidden, and its own alone."""
    return out.with_name(f".{out.name}.session-{rank:04d}")


def session_lasts(folder: Path) -> bool:
    """Whether a site has begun this session, and not ended it: others may wait for it.

    What is written of it may be damaged: that is an InputError.
    """
    session = Journal(folder).session() if folder.is_dir() else None
    return session is not None and not session.ended


def _taken_up(journal: Journal, checkpoints: Sequence[int]) -> int | None:
    """The snapshot that fits a checkpoint; None where the run had not begun.

    It is an InputError where there are snapshots, and a checkpoint of none of them.
    """
    snapshots = journal.snapshots()
    fitting = [step for step in snapshots if step in checkpoints or step == 0]
    if snapshots and not fitting:
        expected = (
            f"has no checkpoint of step {snapshots[-1]}, with which this site could come back to "
            "the run: put its run folder back, or stop all sites and start a new run"
        )
        raise InputError("--out", journal.folder.name, expected)
    return fitting[-1] if fitting else None
