"""Frames of bytes between sites, over zenoh with mutual TLS: through relays, and directly.

A site holds one session with every relay, which it connects to, and one more where it or another
site can be connected to directly. A frame goes the first way on which its receiver is known to
listen: directly, else through a relay. Nothing here vouches for a frame: it may be lost where a
connection breaks, it may come twice, and a relay sees and could change it. What is built on top
numbers, signs and sends again.

Whom a process talks to is decided by certificates alone. Both ends verify the other's against the
consortium's authority, and each end lets the member of that name do what its place allows: a site
hands over frames for others, and takes those for itself.

Raises `PeerError` where no way could be opened, with the reason that `explain` finds: the engine
itself gives none where a certificate is wrong.
"""

from __future__ import annotations

import itertools
import json
import logging
import secrets
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import zenoh

from tacit.communication.secure.diagnosis import explain
from tacit.errors import InputError, PeerError, describe

if TYPE_CHECKING:
    from tacit.identities import Member, Site

__all__ = ["LARGEST_FRAME", "Carrier", "open_carrier", "run_relay"]

LARGEST_FRAME = 2**30  # bytes, where nothing smaller is said
_RETRY_MS = 1000  # a connection that was lost is tried again after this time, then
_LONGEST_RETRY_MS = 2000  # after twice as long, and so on for ever
_ATTEMPT = 2.0  # seconds of one attempt to open a session with a relay
_PIECE = 60 * 2**10  # bytes of a message of the engine, which divides longer than 65,535
_PLACE = struct.Struct(">QII")  # of a piece: which frame, which piece of it, of how many
_LARGEST_MESSAGE = 2**20  # bytes that the engine collects of one message
_WAITING_PIECES = 1000  # of one session, until `receive` has taken them: then senders wait
_STALLED_US = 5_000_000  # a connection on which a piece has not gone out so long is given up
_POLL = 0.02  # seconds

_log = logging.getLogger(__name__)


class Carrier(Protocol):
    """Takes frames to other sites."""

    def publish(self, rank: int, frame: bytes) -> None:
        """Hand a frame over for a site; it may be lost. Waits while the way is congested."""

    def connected(self) -> bool:
        """Whether there is a way to any relay or site now."""

    def close(self) -> None:
        """End all connections; nothing is received afterwards."""


def open_carrier(
    site: Site,
    run: str,
    receive: Callable[[bytes], None],
    *,
    timeout: float,
    largest: int = LARGEST_FRAME,
) -> Carrier:
    """Connect a site to the relays and sites of its consortium.

    Returns once there is one way; the others are tried in the background as long as it is open,
    and so is each that is lost, every one to two seconds.

    Args:
        site: this site.
        run: 32 hex digits; frames of other runs do not come.
        receive: takes one frame at a time, from a thread of the carrier. While it works, others
            wait in the engine, and their senders where these are many. It must not call `publish`:
            two sites that wait for each other would only go on when their connections break.
        timeout: seconds until the first way must be there.
        largest: bytes that a frame may have; longer ones that come are dropped by the engine.

    Raises:
        InputError: there is nobody to connect to, or an own address cannot be listened at.
        PeerError: no way could be opened in time; one line that says why.
    """
    carrier = _ZenohCarrier(site, run, receive, largest)
    try:
        carrier.open(timeout)
    except BaseException:
        carrier.close()
        raise
    return carrier


def run_relay(
    site: Site,
    listen: Sequence[str],
    until: Callable[[], bool],
    *,
    on_change: Callable[[str, bool], None] | None = None,
) -> None:
    """Pass frames on between the sites of a consortium, until it is to end.

    Args:
        site: the relay's own folder.
        listen: HOST:PORT of each address.
        until: asked five times a second whether to end.
        on_change: called with a member's name and whether it has connected or left, from a thread.

    Raises:
        InputError: an address cannot be listened at.
    """
    config = _config(site, "router", site.sites, "*", listen=listen)
    session = _listening(config, "--listen", listen)
    with session:
        session.declare_subscriber(_door(site), lambda sample: None)
        watched = None
        if on_change is not None:
            watched = session.info.declare_link_events_listener(
                lambda event: on_change(
                    event.link.auth_identifier or "unknown", event.kind == zenoh.SampleKind.PUT
                ),
                history=True,
            )
        while not until():
            time.sleep(0.2)
        if watched is not None:
            watched.undeclare()  # type: ignore[no-untyped-call]


class _ZenohCarrier:
    """The sessions of one site in one run."""

    def __init__(
        self, site: Site, run: str, receive: Callable[[bytes], None], largest: int
    ) -> None:
        if site.own.rank is None:
            raise InputError("--site", site.own.name, "is a relay; a site takes part in a run")
        self._site = site
        self._own_rank = site.own.rank
        self._run = run
        self._receive = receive
        self._largest = largest
        self._one_at_a_time = threading.Lock()
        self._changes = threading.Lock()
        self._closed = threading.Event()
        self._ways: tuple[_Way, ...] = ()
        self._numbers = itertools.count(secrets.randbits(62))
        self._one_sends = {site.rank: threading.Lock() for site in site.sites}
        self._threads: list[threading.Thread] = []

    def open(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        relays = [relay for relay in self._site.relays if relay.addresses and not relay.revoked]
        called = _called_directly(self._site)
        listening = self._site.own.addresses
        if not (relays or called or listening):
            raise InputError(
                "--site", self._site.own.name, "its consortium has no relay and no site's address"
            )
        if called or listening:
            self._open_direct(called)
        for relay in relays:
            self._start(self._open_relay, relay)
        while not self.connected():
            if time.monotonic() > deadline:
                raise PeerError(_why_not(self._site, [*relays, *called], timeout))
            time.sleep(_POLL)

    def publish(self, rank: int, frame: bytes) -> None:
        if len(frame) > self._largest:
            raise ValueError(f"a frame of {len(frame)} bytes; {self._largest} can be sent")
        for way in self._ways:
            if way.leads_to(rank):
                # Pieces of two frames must not mix; a session that is closed meanwhile loses them.
                with self._one_sends[rank], suppress(zenoh.ZError):
                    number = next(self._numbers)
                    for piece, place in _pieces(frame, number):
                        way.publishers[rank].put(piece, attachment=place)
                return

    def connected(self) -> bool:
        return any(way.leads_anywhere() for way in self._ways)

    def close(self) -> None:
        with self._changes:
            self._closed.set()
            ways, self._ways = self._ways, ()
        for way in ways:
            way.close()
        for thread in self._threads:
            thread.join(2 * _ATTEMPT)

    def _open_direct(self, called: Sequence[Member]) -> None:
        config = _config(
            self._site,
            "peer",
            self._site.sites,
            str(self._own_rank),
            listen=self._site.own.addresses,
            connect=[address for other in called for address in other.addresses],
        )
        self._add(_listening(config, "--site", self._site.own.addresses), None)

    def _open_relay(self, relay: Member) -> None:
        config = _config(
            self._site,
            "client",
            [relay],
            str(self._own_rank),
            connect=relay.addresses,
        )
        while not self._closed.is_set():
            started = time.monotonic()
            try:
                session = zenoh.open(config)
            except zenoh.ZError as error:
                _log.debug("%s cannot be reached: %s", relay.name, error)
                time.sleep(max(0.0, started + _RETRY_MS / 1000 - time.monotonic()))
                continue
            self._add(session, session.declare_publisher(_door(self._site)))
            return

    def _add(self, session: zenoh.Session, door: zenoh.Publisher | None) -> None:
        """One more way; directly before those through relays."""
        own, place = self._own_rank, f"tacit/{self._site.consortium}/{self._run}/to"
        publishers = {
            other.rank: session.declare_publisher(
                f"{place}/{other.rank}/from/{own}",
                congestion_control=zenoh.CongestionControl.BLOCK,
                reliability=zenoh.Reliability.RELIABLE,
            )
            for other in self._site.sites
            if other.rank is not None and other.rank != own
        }
        subscriber = session.declare_subscriber(
            f"{place}/{own}/from/*", zenoh.handlers.FifoChannel(_WAITING_PIECES)
        )
        way = _Way(session, door, publishers, subscriber)
        with self._changes:
            if not self._closed.is_set():
                self._ways = (*self._ways, way) if door is not None else (way, *self._ways)
                self._start(self._take, way)
                return
        way.close()

    def _take(self, way: _Way) -> None:
        for frame in way.frames(self._largest):
            with self._one_at_a_time:
                if self._closed.is_set():
                    return
                try:
                    self._receive(frame)
                except Exception as error:
                    _log.error("a frame could not be taken: %s", describe(error))

    def _start(self, work: Callable[[Any], None], argument: object) -> None:
        thread = threading.Thread(target=work, args=(argument,), daemon=True)
        self._threads.append(thread)
        thread.start()


class _Way:
    """One session: a publisher for each other site, and what comes for this one.

    Args:
        session: with a relay, or with the sites that can be connected to directly.
        door: at a relay, to see whether it lets this site in.
        publishers: by the rank of the site that takes what they send.
        subscriber: of the pieces that come.
    """

    def __init__(
        self,
        session: zenoh.Session,
        door: zenoh.Publisher | None,
        publishers: dict[int, zenoh.Publisher],
        subscriber: zenoh.Subscriber[zenoh.handlers.Handler[zenoh.Sample]],
    ) -> None:
        self._session = session
        self._door = door
        self.publishers = publishers
        self._subscriber = subscriber

    def leads_to(self, rank: int) -> bool:
        """Whether a site is known to listen on it."""
        return _listened(self.publishers[rank])

    def leads_anywhere(self) -> bool:
        """Whether a relay lets this site in, or another site listens."""
        doors = self.publishers.values() if self._door is None else (self._door,)
        return any(map(_listened, doors))

    def frames(self, largest: int) -> Iterator[bytes]:
        """What comes, until the session is closed."""
        unfinished: dict[str, _Unfinished] = {}
        with suppress(zenoh.ZError):
            for sample in self._subscriber:
                sender = str(sample.key_expr)  # one of few: access control has seen to it
                frame = unfinished.setdefault(sender, _Unfinished(largest)).add(sample)
                if frame is not None:
                    yield frame

    def close(self) -> None:
        with suppress(zenoh.ZError):
            self._session.close()  # type: ignore[no-untyped-call]


def _listened(publisher: zenoh.Publisher) -> bool:
    status: Any = publisher.matching_status  # its stub says that it is a bool
    return bool(status.matching)


def _pieces(frame: bytes, number: int) -> Iterator[tuple[bytes, bytes]]:
    """A frame in pieces that the engine need not divide, each with its place.

    The engine gives up a connection on which one message has not gone out in five seconds, however
    well it is going: on a line of 1 MB/s, no frame above 5 MB would ever arrive in one piece.
    """
    view = memoryview(frame)
    starts = range(0, max(1, len(frame)), _PIECE)
    for i, start in enumerate(starts):
        yield bytes(view[start : start + _PIECE]), _PLACE.pack(number, i, len(starts))


class _Unfinished:
    """The pieces of one sender's frame that have come so far; a frame that lacks one is dropped."""

    def __init__(self, largest: int) -> None:
        self._most_pieces = max(1, -(-largest // _PIECE))
        self._number = -1
        self._pieces: list[bytes] = []

    def add(self, sample: zenoh.Sample) -> bytes | None:
        """The frame, where this piece was its last."""
        place = b"" if sample.attachment is None else sample.attachment.to_bytes()
        if sample.kind != zenoh.SampleKind.PUT or len(place) != _PLACE.size:
            return None
        number, index, count = _PLACE.unpack(place)
        if index == 0:
            self._number, self._pieces = number, []
        fits = count <= self._most_pieces and len(sample.payload) <= _PIECE
        if not fits or number != self._number or index != len(self._pieces):
            self._number, self._pieces = -1, []
            return None
        self._pieces.append(sample.payload.to_bytes())
        if len(self._pieces) < count:
            return None
        frame = b"".join(self._pieces)
        self._number, self._pieces = -1, []
        return frame


def _called_directly(site: Site) -> list[Member]:
    """The sites that this one connects to: of two, the higher rank calls the one that listens."""
    return [
        other
        for other in site.sites
        if other.rank != site.own.rank
        and other.addresses
        and not other.revoked
        and (not site.own.addresses or (other.rank or 0) < (site.own.rank or 0))
    ]


def _why_not(site: Site, others: Sequence[Member], timeout: float) -> str:
    reasons = [
        explain(site, address, min(timeout, 5.0))
        or f"{other.name} at {address} answers, but lets {site.own.name} not in: has it the same "
        "list of members?"
        for other in others
        for address in other.addresses
    ]
    if not reasons:
        reasons = [f"nobody connected to {', '.join(site.own.addresses)}"]
    return f"no connection within {timeout:g} seconds: {'; '.join(reasons)}"


def _listening(config: zenoh.Config, where: str, listen: Sequence[str]) -> zenoh.Session:
    try:
        return zenoh.open(config)
    except zenoh.ZError as error:
        reason = "must be a free HOST:PORT of this machine"
        raise InputError(where, ", ".join(listen), f"{reason} ({error})") from None


def _config(
    site: Site,
    mode: str,
    others: Sequence[Member],
    own: str,
    *,
    listen: Sequence[str] = (),
    connect: Sequence[str] = (),
) -> zenoh.Config:
    """Of one session: TLS with both certificates, no scouting, nobody but `others`."""
    config = zenoh.Config()
    tls = {
        "enable_mtls": True,
        "verify_name_on_connect": True,
        "close_link_on_expiration": True,
        "root_ca_certificate": str(site.authority_file),
        "listen_certificate": str(site.certificate_file),
        "listen_private_key": str(site.key_file),
        "connect_certificate": str(site.certificate_file),
        "connect_private_key": str(site.key_file),
    }
    retry = {
        "period_init_ms": _RETRY_MS,
        "period_max_ms": _LONGEST_RETRY_MS,
        "period_increase_factor": 2.0,
    }
    settings = {
        "mode": mode,
        "scouting/multicast/enabled": False,
        "scouting/gossip/enabled": False,
        "adminspace/enabled": False,
        "plugins_loading/enabled": False,
        "transport/shared_memory/enabled": False,
        "transport/link/protocols": ["tls"],
        "transport/link/tls": tls,
        "transport/link/rx/max_message_size": _LARGEST_MESSAGE,
        "transport/link/tx/queue/congestion_control/block/wait_before_close": _STALLED_US,
        "listen/endpoints": [f"tls/{address}" for address in listen],
        "listen/exit_on_failure": True,
        "connect/endpoints": [f"tls/{address}" for address in connect],
        # A client that reached nobody fails; a peer goes on trying in the background.
        "connect/timeout_ms": int(_ATTEMPT * 1000) if mode == "client" else -1,
        "connect/exit_on_failure": mode == "client",
        "connect/retry": retry,
        "open/return_conditions/connect_scouted": False,
        "access_control": _access(site, others, own),
    }
    for key, value in settings.items():
        config.insert_json5(key, json.dumps(value))
    return config


def _door(site: Site) -> str:
    """Where a relay listens, and nothing is sent: who sees it there has been let in."""
    return f"tacit/{site.consortium}/door"


def _access(site: Site, others: Sequence[Member], own: str) -> dict[str, object]:
    """What each of the others may do here; nobody else may do anything.

    Args:
        site: whose members they are.
        others: by the common names of their certificates.
        own: the rank whose frames this process takes and sends; `*` at a relay, which does so for
            all.
    """
    place = f"tacit/{site.consortium}/*/to"
    rules: list[dict[str, object]] = []
    policies: list[dict[str, object]] = []
    subjects: list[dict[str, object]] = []
    for other in others:
        if other.revoked or other.name == site.own.name:
            continue
        theirs = "*" if other.rank is None else str(other.rank)
        allowed = {
            ("ingress", "put"): [f"{place}/{own}/from/{theirs}"],
            ("egress", "put"): [f"{place}/{theirs}/from/{own}"],
            ("ingress", "declare_subscriber"): [f"{place}/{theirs}/from/*", _door(site)],
            ("egress", "declare_subscriber"): [f"{place}/{own}/from/*", _door(site)],
        }
        for (flow, message), keys in allowed.items():
            rule = f"{other.name} {flow} {message}"
            rules.append(
                {
                    "id": rule,
                    "permission": "allow",
                    "flows": [flow],
                    "messages": [message],
                    "key_exprs": keys,
                }
            )
        subjects.append({"id": other.name, "cert_common_names": [other.name]})
        policies.append(
            {"rules": [rule["id"] for rule in rules[-len(allowed) :]], "subjects": [other.name]}
        )
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": subjects,
        "policies": policies,
    }
