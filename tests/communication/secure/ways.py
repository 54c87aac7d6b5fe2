"""Relays and carriers on loopback for tests."""

import queue
import socket
import threading
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

from consortia import consortium
from ports import free_address, host_and_port
from tacit.communication.secure.carrier import Carrier
from tacit.communication.secure.sessions import run_relay
from tacit.identities.consortium import approve
from tacit.identities.site import join

RUN = "a" * 32
LIMIT = 120.0  # seconds for anything that must come
QUIET = 0.5  # seconds in which what must not come would have


def members(folder, *, relays=1, direct=()):
    """Three sites, site-0 to site-2, of which some listen; and relays; made sixty days ago."""
    sites = {f"site-{i}": [free_address()] if i in direct else [] for i in range(3)}
    made = {f"relay-{i}": [free_address()] for i in range(relays)}
    return consortium(folder, sites, made, now=datetime.now(UTC) - timedelta(days=60))


def approved_again(folder, name, when):
    """A member of the consortium in a folder, with a certificate of ten days from then on."""
    request = folder / f"{name}.request.json"
    bundle = approve(folder / "consortium", [request], days=10, now=when).path
    return join(folder / name, bundle, now=when + timedelta(minutes=1))


def awaited(condition, what):
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {LIMIT} seconds"
        time.sleep(0.02)


@contextmanager
def relaying(site, listen=None):
    """The relay runs within, in a thread; gives what it tells."""
    where = listen or site.own.addresses
    stop = threading.Event()
    events = []
    failures = []

    def work():
        try:
            run_relay(site, where, stop.is_set, tell=lambda *said: events.append(said))
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        awaited(lambda: bool(events or failures), "a relay that listens")
        assert not failures, failures
        yield events
    finally:
        stop.set()
        thread.join(LIMIT)
        assert not thread.is_alive()


class End:
    """A site's carrier, and what has come to it."""

    def __init__(self, site, *, run=RUN, receive=None, **options):
        self.site = site
        self.frames: queue.Queue[bytes] = queue.Queue()
        taker = receive or self.frames.put
        self.carrier = Carrier(site, run, taker, timeout=LIMIT, **options)

    def send(self, other, frame):
        """Hand over a frame once the other is known to listen."""
        rank = other.site.own.rank
        assert rank is not None
        awaited(lambda: self.carrier.reaches(rank), f"a way to {other.site.own.name}")
        self.carrier.publish(rank, frame)

    def reach(self, other, frame):
        """Have the other get a frame; where a way breaks, which may lose it, hand it over again."""
        breaks = None

        def came():
            nonlocal breaks
            before, breaks = breaks, self.carrier.breaks(other.site.own.rank)
            if other.frames.empty() and before != breaks:
                self.send(other, frame)
            return not other.frames.empty()

        awaited(came, f"a frame of {self.site.own.name}")
        assert other.take() == frame

    def take(self):
        return self.frames.get(timeout=LIMIT)

    def nothing_comes(self):
        try:
            self.frames.get(timeout=QUIET)
        except queue.Empty:
            return True
        return False


@contextmanager
def ends(*sites, **options):
    """The carriers of these sites, opened at the same time."""
    opened = {}

    def work(site):
        try:
            opened[site.own.name] = End(site, **options)
        except Exception as error:
            opened[site.own.name] = error

    threads = [threading.Thread(target=work, args=(site,), daemon=True) for site in sites]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT + 10)
    found = [opened[site.own.name] for site in sites]
    try:
        failed = [end for end in found if not isinstance(end, End)]
        assert not failed, failed
        yield [end for end in found if isinstance(end, End)]
    finally:
        for end in found:
            if isinstance(end, End):
                end.carrier.close()


def all_reach_all(found):
    for sender in found:
        for receiver in found:
            if sender is not receiver:
                sender.reach(
                    receiver, f"{sender.site.own.name} to {receiver.site.own.name}".encode()
                )
    assert all(end.nothing_comes() for end in found)


@contextmanager
def forwarding(outside, inside, rate=None):
    """Connections to one address are passed on to another one, each way at so many bytes/s."""

    def pump(source, sink):
        try:
            while data := source.recv(2**14):
                sink.sendall(data)
                if rate is not None:
                    time.sleep(len(data) / rate)
        except OSError:
            pass
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def work(listener):
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            far = socket.socket()
            far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
            try:
                far.connect(host_and_port(inside))
            except OSError:  # nobody listens there yet
                near.close()
                far.close()
                continue
            for pair in ((near, far), (far, near)):
                threading.Thread(target=pump, args=pair, daemon=True).start()

    with socket.create_server(host_and_port(outside)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        threading.Thread(target=work, args=(listener,), daemon=True).start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
