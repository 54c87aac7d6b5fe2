"""Frames of bytes between sites, over zenoh with mutual TLS: through relays, and directly.

A site holds one session with every relay, which it connects to, and one more where it or another
site can be connected to directly. A frame goes the first way on which its receiver is known to
listen: directly, else through a relay. Nothing here vouches for a frame: it may be lost where a
connection breaks, it may come twice, and a relay sees and could change it. What is built on top
numbers, signs and sends again.

The engine loses what waits at a connection that breaks, and gives up a connection on which one
message has not gone out in five seconds, however well it is going: on a line of 1 MB/s, nothing
above 5 MB would ever arrive. So a frame travels in small pieces, each with its place.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import zenoh

from tacit.communication.secure.certificates import explain
from tacit.communication.secure.sessions import (
    PIECE,
    RETRY,
    door,
    notice,
    open_listening,
    session_config,
)
from tacit.errors import InputError, PeerError, describe
from tacit.identities.bundle import Member, bundle_of
from tacit.identities.site import Site

LARGEST_FRAME = 2**30  # bytes, where nothing smaller is said
_FRAME_PRIORITY, _URGENT = zenoh.Priority.DATA, zenoh.Priority.INTERACTIVE_HIGH
_PLACE = struct.Struct(">QII")  # of a piece: which frame, which piece of it, of how many
_WAITING_PIECES = 1000  # of one session, until `receive` has taken them: then senders wait
_POLL = 0.02  # seconds
_TO_EXPLAIN = 5.0  # seconds
_TO_END = 4.0  # seconds; a thread that still tries to connect then ends by itself

_log = logging.getLogger(__name__)


class Carrier:
    """The sessions of one site in one run, which take frames to the other sites of its consortium.

    It is made once there is one way; the others are tried in the background as long as it is open,
    and so is each that is lost, every one to two seconds.

    Args:
        site: this site.
        run: 32 hex digits; frames of other runs do not come.
        receive: takes one frame at a time, from a thread of the carrier. While it works, others
            wait in the engine, and their senders where these are many. It must not call `publish`:
            two sites that wait for each other would only go on when their connections break.
        timeout: seconds until the first way must be there.
        begins: given the first piece of a long frame, how many bytes the frame may have; 0: it is
            dropped. No more is held of it, and one frame at most of a sender on each way.
        moves: told the rank of the sender for each piece that is held.
        listen: HOST:PORT of this machine at which other sites connect, where that is not what they
            call: behind a router that maps ports. By default, the addresses of the site.

    Raises:
        InputError: there is nobody to connect to, or an own address cannot be listened at; or
            this site was revoked, by a newer bundle that a relay has.
        PeerError: no way could be opened in time; one line that says why.
    """

    def __init__(
        self,
        site: Site,
        run: str,
        receive: Callable[[bytes | bytearray], None],
        *,
        timeout: float,
        begins: Callable[[bytes], int] = lambda piece: LARGEST_FRAME,
        moves: Callable[[int], None] = lambda rank: None,
        listen: Sequence[str] | None = None,
    ) -> None:
        if site.own.rank is None:
            raise InputError("--site", site.own.name, "is a relay; a site takes part in a run")
        self._site = site
        self._own_rank = site.own.rank
        self._run = run
        self._receive = receive
        self._begins, self._moves = begins, moves
        self._listen = site.own.addresses if listen is None else listen
        self._one_at_a_time = threading.Lock()
        self._changes = threading.Lock()
        self._closed = threading.Event()
        self._ways: tuple[_Way, ...] = ()
        self._numbers = itertools.count(secrets.randbits(62))
        self._one_sends = {site.rank: threading.Lock() for site in site.bundle.sites}
        self._breaks: Counter[int] = Counter()
        self._revoked: InputError | None = None
        self._threads: list[threading.Thread] = []
        try:
            self._open(timeout)
        except BaseException:
            self.close()
            raise

    def _open(self, timeout: float) -> None:
        deadline, site, own = time.monotonic() + timeout, self._site, self._site.own
        relays = [relay for relay in site.bundle.relays if relay.addresses and not relay.revoked]
        called = [  # of two sites, the higher rank calls the one that listens
            other
            for other in site.bundle.sites
            if other.rank != own.rank
            and other.addresses
            and not other.revoked
            and (not own.addresses or (other.rank or 0) < (own.rank or 0))
        ]
        if not (relays or called or self._listen):
            expected = "must be in a consortium with a relay, or with a site that has an address"
            raise InputError("--site", own.name, expected)
        if called or self._listen:
            addresses = [address for other in called for address in other.addresses]
            config = session_config(
                site,
                "peer",
                site.bundle.sites,
                str(own.rank),
                listen=self._listen,
                connect=addresses,
            )
            self._add(open_listening(config, "--listen", self._listen), None)
        for relay in relays:
            self._start(self._open_relay, relay)
        while not self.connected():
            if self._revoked is not None:
                raise self._revoked
            if time.monotonic() > deadline:
                raise PeerError(_why_not(site, [*relays, *called], timeout))
            time.sleep(_POLL)

    def publish(self, rank: int, frame: bytes, *, urgent: bool = False) -> bool:
        """Hand a frame over for a site; whether there was a way, and the engine has taken all of
        it.

        It may be lost all the same. This waits while the way is congested. An `urgent` one, of 60
        KiB at most, overtakes what waits in the engine on the way, and may be handed over while
        another thread hands over a long one.
        """
        for way in self._ways:
            if way.leads_to(rank):
                pieces = _pieces(frame, next(self._numbers))
                with suppress(zenoh.ZError):  # a session that is closed meanwhile loses it
                    if urgent and len(frame) <= PIECE:
                        piece, place = next(pieces)
                        way.urgent[rank].put(piece, attachment=place)
                        return True
                    with self._one_sends[rank]:  # pieces of two frames must not mix
                        for piece, place in pieces:
                            way.publishers[rank].put(piece, attachment=place)
                    return True
                return False
        return False

    def connected(self) -> bool:
        """Whether there is a way to any relay or site now."""
        return any(way.leads_anywhere() for way in self._ways)

    def reaches(self, rank: int) -> bool:
        """Whether a site is known to listen now."""
        return any(way.leads_to(rank) for way in self._ways)

    def breaks(self, rank: int) -> int:
        """How many times a site was known to listen on some way, and then was not any more."""
        return self._breaks[rank]

    def revoked(self) -> InputError | None:
        """What is wrong, where a relay has shown that this site was revoked; None: nothing."""
        return self._revoked

    def close(self) -> None:
        """End all connections; nothing is received afterwards."""
        with self._changes:
            self._closed.set()
            ways, self._ways = self._ways, ()
        for way in ways:
            way.close()
        for thread in self._threads:
            if thread is not threading.current_thread():  # where `receive` has called this
                thread.join(_TO_END)

    def _open_relay(self, relay: Member) -> None:
        own = str(self._own_rank)
        config = session_config(self._site, "client", [relay], own, connect=relay.addresses)
        while not self._closed.is_set():
            started = time.monotonic()
            try:
                session = zenoh.open(config)
                self._add(session, session.declare_publisher(door(self._site)))
                return
            except zenoh.ZError as error:
                _log.debug("%s cannot be reached: %s", relay.name, error)
                self._closed.wait(max(0.0, started + RETRY - time.monotonic()))

    def _add(self, session: zenoh.Session, relay: zenoh.Publisher | None) -> None:
        """One more way; directly before those through relays."""
        own, place = self._own_rank, f"tacit/{self._site.bundle.consortium}/{self._run}/to"
        others = [one.rank for one in self._site.bundle.sites if one.rank not in (None, own)]

        def declared(priority: zenoh.Priority) -> dict[int, zenoh.Publisher]:
            return {
                rank: session.declare_publisher(
                    f"{place}/{rank}/from/{own}",
                    congestion_control=zenoh.CongestionControl.BLOCK,
                    reliability=zenoh.Reliability.RELIABLE,
                    priority=priority,
                )
                for rank in others
            }

        subscriber = session.declare_subscriber(
            f"{place}/{own}/from/*", zenoh.handlers.FifoChannel(_WAITING_PIECES)
        )
        unfinished = {
            f"{place}/{own}/from/{rank}": _Unfinished(self._begins, partial(self._moves, rank))
            for rank in others
        }
        if relay is not None:
            session.declare_subscriber(notice(self._site, self._site.own.name), self._told)
        publishers = declared(_FRAME_PRIORITY)
        way = _Way(session, relay, publishers, declared(_URGENT), subscriber, unfinished)
        way.follow(self._lost)
        with self._changes:
            if not self._closed.is_set():
                self._ways = (*self._ways, way) if relay is not None else (way, *self._ways)
                self._start(self._take, way)
                return
        way.close()

    def _told(self, sample: zenoh.Sample) -> None:
        """A relay that does not let this site in shows why: its authority has signed that."""
        own, content = self._site.own, sample.payload.to_bytes()
        with suppress(InputError):
            bundle = bundle_of(content, Path(str(sample.key_expr)))
            if bundle.consortium == self._site.bundle.consortium and bundle.is_revoked(
                own.certificate
            ):
                expected = (
                    f"was revoked, by issue {bundle.issue} of the bundle: ask the coordinator, and "
                    "join a newer bundle if this site is approved again"
                )
                self._revoked = InputError("--site", own.name, expected)

    def _lost(self, rank: int) -> None:
        with self._changes:
            self._breaks[rank] += 1

    def _take(self, way: _Way) -> None:
        for frame in way.frames():
            with self._one_at_a_time:
                if self._closed.is_set():
                    return
                try:
                    self._receive(frame)
                except Exception as error:
                    _log.error("a frame could not be taken: %s", describe(error))

    def _start(self, work: Callable[[Any], None], argument: object) -> None:
        name = f"tacit{work.__name__}"
        thread = threading.Thread(target=work, name=name, args=(argument,), daemon=True)
        self._threads.append(thread)
        thread.start()


@dataclass
class _Way:
    """One session: a publisher for each other site, and what comes for this one.

    It is with a relay, whose `door` shows whether it lets this site in, or with the sites that can
    be connected to directly. `publishers` are of long frames and `urgent` of what overtakes them,
    by rank; `unfinished` are frames, by the key that their sender puts them to.
    """

    session: zenoh.Session
    door: zenoh.Publisher | None
    publishers: dict[int, zenoh.Publisher]
    urgent: dict[int, zenoh.Publisher]
    subscriber: zenoh.Subscriber[zenoh.handlers.Handler[zenoh.Sample]]
    unfinished: dict[str, _Unfinished]
    leads: dict[int, bool] = field(default_factory=dict)  # to whom, as far as is known

    def leads_to(self, rank: int) -> bool:
        """Whether a site is known to listen on it."""
        return self.leads.get(rank, False)

    def follow(self, lost: Callable[[int], None]) -> None:
        """Know of each site whether it listens, and tell of it when it does not any more."""

        def told(rank: int, status: Any) -> None:
            self.leads[rank] = status.matching
            if not status.matching:
                lost(rank)

        self._followed = [
            publisher.declare_matching_listener(partial(told, rank))
            for rank, publisher in self.publishers.items()
        ]
        for rank, publisher in self.publishers.items():
            self.leads.setdefault(rank, _listened(publisher))  # what was told meanwhile is newer

    def leads_anywhere(self) -> bool:
        """Whether a relay lets this site in, or another site listens."""
        doors = self.publishers.values() if self.door is None else (self.door,)
        return any(map(_listened, doors))

    def frames(self) -> Iterator[bytes | bytearray]:
        """What comes, until the session is closed."""
        with suppress(zenoh.ZError):
            for sample in self.subscriber:
                unfinished = self.unfinished.get(str(sample.key_expr))
                frame = None if unfinished is None else unfinished.add(sample)
                if frame is not None:
                    yield frame

    def close(self) -> None:
        with suppress(zenoh.ZError):
            self.session.close()  # type: ignore[no-untyped-call]


def _listened(publisher: zenoh.Publisher) -> bool:
    status: Any = publisher.matching_status  # its stub says that it is a bool
    return bool(status.matching)


def _pieces(frame: bytes, number: int) -> Iterator[tuple[bytes, bytes]]:
    """A frame in pieces that the engine need not divide, each with its place."""
    view = memoryview(frame)
    starts = range(0, max(1, len(frame)), PIECE)
    for i, start in enumerate(starts):
        yield bytes(view[start : start + PIECE]), _PLACE.pack(number, i, len(starts))


class _Unfinished:
    """The pieces of one sender's frame that have come so far; a frame that lacks one is dropped.

    Pieces were signed by nobody. So no more of them is held than the frame may have by its first
    one, which holds the head that its sender has signed. A frame of one piece is not held, and may
    come between those of a long one.

    `begins` is that of `Carrier`; `moves` is called for each piece that is held.
    """

    def __init__(self, begins: Callable[[bytes], int], moves: Callable[[], None]) -> None:
        self._begins, self._moves = begins, moves
        self._frame = (-1, 0)  # its number, and how many pieces it has
        self._pieces: list[bytes] = []

    @property
    def held(self) -> int:
        """Bytes of pieces."""
        return sum(map(len, self._pieces))

    def add(self, sample: zenoh.Sample) -> bytes | bytearray | None:
        """The frame, where this piece was its last."""
        place = b"" if sample.attachment is None else sample.attachment.to_bytes()
        if sample.kind != zenoh.SampleKind.PUT or len(place) != _PLACE.size:
            return None
        number, index, count = _PLACE.unpack(place)
        fits = index < count and len(sample.payload) <= PIECE
        if fits and count == 1:
            return sample.payload.to_bytes()
        pieces, self._pieces = self._pieces, []
        if fits and index == 0:
            pieces, self._frame = [], (number, count)
            fits = count <= -(-self._begins(sample.payload.to_bytes()) // PIECE)
        if not fits or (number, count) != self._frame or index != len(pieces):
            self._frame = (-1, 0)
            return None
        pieces.append(sample.payload.to_bytes())
        self._moves()
        if len(pieces) < count:
            self._pieces = pieces
            return None
        self._frame = (-1, 0)
        return bytearray().join(pieces)  # its reader may use the memory as it lies


def _why_not(site: Site, others: Sequence[Member], timeout: float) -> str:
    ways = [(other, address) for other in others for address in other.addresses]

    def reason(way: tuple[Member, str]) -> str:
        other, address = way
        return explain(site, address, min(timeout, _TO_EXPLAIN)) or (
            f"{other.name} answers at {address}, but does not let {site.own.name} in: it does not "
            f"run, its bundle is another, or {site.own.name} was revoked: ask the coordinator"
        )

    with ThreadPoolExecutor(len(ways) or 1) as pool:
        reasons = list(pool.map(reason, ways)) or [
            f"nobody connected to {', '.join(site.own.addresses)}"
        ]
    return f"no connection within {timeout:g} seconds: {'; '.join(dict.fromkeys(reasons))}"
