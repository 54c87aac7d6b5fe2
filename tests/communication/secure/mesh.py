"""Sites in one process: real keys and journals, a carrier that loses things, and other sites' lies.

A `Mesh` carries frames between wires, and drops, repeats, delays and reorders them as a generator
draws. It notes the digest of every frame that left. A `MortalJournal` dies at a chosen operation
on the disk, where it may write a part of a record; `power_cut` then takes off what was not synced.
A `Puppet` is a site whose every word a test chooses.
"""

import json
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tacit.communication.received import BEAT as BEAT_FORM
from tacit.communication.received import Beat
from tacit.communication.secure import frames, pacing, wire
from tacit.communication.secure.frames import BEAT, DATA, Frame, digest_of
from tacit.communication.secure.journal import Journal
from tacit.communication.secure.wire import Wire

RUN = bytes(range(16))
NAMES = ("north", "south", "west", "east", "centre")
LIMIT = 60.0  # seconds after which a wait of a test fails


class KilledError(Exception):
    """The process ends here."""


def unacknowledged(wire):
    """How many frames to each other site may not be on its disk."""
    return {rank: len(out.kept) for rank, out in wire._out.items()}


def quick(monkeypatch):
    """Beats and looks follow each other fast, and nothing waits for the disk."""
    for name, seconds in {"_LOOK": 0.004, "_BEAT": 0.05, "_FAREWELL": 0.5}.items():
        monkeypatch.setattr(wire, name, seconds)
    for name, number in {"LEAST": 0.1, "LONGEST": 0.4, "SLOWEST": 1e9}.items():
        monkeypatch.setattr(pacing, name, number)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(os, "fdatasync", _note_synced)


_synced = {}


def _note_synced(descriptor):
    found = os.fstat(descriptor)
    _synced[found.st_dev, found.st_ino] = found.st_size


def power_cut(folder, draws):
    """Take off some of what was written to segments and not brought to the disk."""
    for path in sorted(folder.glob("*-*")):
        if path.name.startswith(("sent", "received")):
            found = path.stat()
            synced = min(_synced.get((found.st_dev, found.st_ino), 0), found.st_size)
            os.truncate(path, draws.randint(synced, found.st_size))


def signer(key):
    return key.sign


class Keys:
    """Of some sites."""

    def __init__(self, count):
        self.private = [Ed25519PrivateKey.generate() for _ in range(count)]
        self.public = [key.public_key() for key in self.private]

    def verify(self, rank, signature, data):
        try:
            self.public[rank].verify(signature, data)
        except InvalidSignature:
            return "its signature is not that site's"
        return None


class MortalJournal(Journal):
    """One that dies at an operation on the disk.

    Args:
        folder: of the session.
        fuse: the number of the operation at which it dies; None: of old age.
        draws: what of a record is written then.
    """

    def __init__(self, folder, fuse, draws):
        self.dead = threading.Event()
        self._left, self._draws, self._count = fuse, draws, threading.Lock()
        super().__init__(folder)

    def _burn(self):
        """One more operation."""
        with self._count:
            if self._left is not None:
                self._left -= 1
                if self._left < 0:
                    self.dead.set()
            if self.dead.is_set():
                raise KilledError

    def _append(self, kind, content):
        try:
            self._burn()
        except KilledError:
            if kind in self._descriptors:  # the machine stops within a write
                os.write(self._descriptors[kind], content[: self._draws.randint(0, len(content))])
            raise
        super()._append(kind, content)
        self._burn()

    def sync_received(self):
        self._burn()
        super().sync_received()
        self._burn()

    def begin_segment(self, step):
        self._burn()
        super().begin_segment(step)
        self._burn()

    def write_snapshot(self, step, records):
        self._burn()
        super().write_snapshot(step, records)
        self._burn()

    def forget_before(self, step):
        self._burn()
        super().forget_before(step)

    def write_session(self, session, *, is_new=False):
        self._burn()
        super().write_session(session, is_new=is_new)
        self._burn()


class Mesh:
    """Carries frames between sites, badly.

    Args:
        count: of sites.
        seed: of what is lost.
        losses: of each frame, the chance to be dropped; and of each, to be repeated or delayed.
    """

    def __init__(self, count, seed=0, losses=0.0):
        self.names, self.keys = NAMES[:count], Keys(count)
        self.takers: dict[int, Callable[[bytes], None]] = {}
        self.left: dict[tuple[bytes, int, int, int], set[bytes]] = {}
        self.sent: list[Frame] = []  # data that left, in order
        self.cut: set[int] = set()  # whom nothing reaches, and who reaches nobody
        self._draws, self._losses = random.Random(seed), losses
        self._held: list[tuple[int, bytes]] = []
        self._lock, self._more = threading.Lock(), threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def publisher(self, sender):
        return Post(self, sender)

    def publish(self, sender, rank, message):
        frame = self.read(message, rank)
        with self._lock:
            if frame.kind == DATA:
                key = (frame.session, sender, rank, frame.number)
                self.left.setdefault(key, set()).add(frame.digest)
                self.sent.append(frame)
            copies = 1
            if self._losses:
                copies = 0 if self._draws.random() < self._losses else self._draws.choice((1, 1, 2))
            self._held += [(rank, message)] * (0 if {sender, rank} & self.cut else copies)
        self._more.set()

    def read(self, message, rank):
        """A frame that a site has sent, checked."""
        return frames.unpack(
            message, run=RUN, own=rank, sites=self.names, largest=2**30, verify=self.keys.verify
        )[0]

    def end(self):
        self._ended = True
        self._more.set()
        self._thread.join(10)

    def _carry(self):
        while not self._ended:
            self._more.wait(1.0)
            with self._lock:
                if not self._held:
                    self._more.clear()
                    continue
                ahead = min(len(self._held), 6) if self._losses else 1
                rank, message = self._held.pop(self._draws.randrange(ahead))
            taker = self.takers.get(rank)
            if taker is not None:
                taker(message)

    def wire(self, rank, folder, journal=None, **more):
        journal = journal or Journal(folder)
        return Wire(
            self.names,
            rank,
            RUN,
            journal,
            sign=signer(self.keys.private[rank]),
            verify=self.keys.verify,
            **{"lets_leave": True, "lets_begin": True, **more},
        )

    def start(self, wire_, step=None):
        self.takers[wire_.own] = wire_.receive
        wire_.start(self.publisher(wire_.own), step)

    def kill(self, wire_, journal):
        """The process ends: nothing of it writes or speaks any more."""
        self.takers.pop(wire_.own, None)
        journal.dead.set()
        wire_._failure = wire_._failure or RuntimeError("killed")
        wire_._carrier = None
        wire_._ending = True
        for thread in wire_._threads:
            thread.join(10)
            assert not thread.is_alive()
        journal.close()

    def mixed(self):
        """The frames in place of which two different ones have left."""
        with self._lock:
            return [key for key, digests in self.left.items() if len(digests) > 1]


class Post:
    """What a wire is given to publish with."""

    def __init__(self, mesh, sender):
        self._mesh, self._sender = mesh, sender

    def publish(self, rank, frame, *, urgent=False):
        self._mesh.publish(self._sender, rank, frame)
        return True

    def reaches(self, rank):
        return True

    def breaks(self, rank):
        return 0


class Puppet:
    """A site without a wire: it says what a test wants, with the right signature.

    Args:
        mesh: of which site it takes the place.
        rank: of that.
        target: the site to which it speaks.
    """

    def __init__(self, mesh, rank, target=0):
        self.mesh, self.rank, self.target = mesh, rank, target
        self.nonce, self.token = f"{rank:032x}", f"{rank + 100:032x}"
        self.heard: list[Beat] = []
        self.data: list[Frame] = []
        self.counter, self.session = 0, bytes(16)
        mesh.takers[rank] = self.take

    def take(self, message):
        frame = self.mesh.read(message, self.rank)
        if frame.sender != self.target:
            return
        if frame.kind == BEAT:
            self.session = frame.session
            self.heard.append(BEAT_FORM.read(frame.body, frame.sender, "beat"))
        else:
            self.data.append(frame)

    def beat(self, **more):
        """One that is right where a test does not say otherwise."""
        self.counter += 1
        last = self.heard[-1] if self.heard else None
        said = {
            "nonce": self.nonce,
            "nonce_of_receiver": None,
            "token": self.token,
            "echo": None if last is None else last.token,
            "start": 1,
            "counter": self.counter,
            "due": 0,
            "again": False,
            "step": -1,
            "waiting_for": -1,
            "came": 0,
            "given": 0,
            "state": "running",
            "report": None,
            "left": [],
            "takes_back": None,
        } | more
        return self.packed(BEAT, 0, "beat", json.dumps(said).encode())

    def packed(self, kind, number, topic, body, **more):
        said = {
            "kind": kind,
            "sender": self.rank,
            "receiver": self.target,
            "session": self.session,
            "number": number,
            "topic": topic,
            "body": body,
            "digest": digest_of(body),
        } | more
        return frames.pack(Frame(**said), RUN, signer(self.mesh.keys.private[self.rank]))

    def say(self, message):
        self.mesh.takers[self.target](message)


def until(found, what="it"):
    """Wait for what another thread does."""
    deadline = time.monotonic() + LIMIT
    while not found():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.002)


def together(works):
    """Do these at once, and raise what one of them raises."""
    errors = []

    def work(one):
        try:
            one()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=partial(work, one), daemon=True) for one in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LIMIT)
    assert not any(thread.is_alive() for thread in threads), "a site hangs"
    if errors:
        raise errors[0]


@contextmanager
def formed(mesh, folder):
    """Wires of all sites, which have met."""
    wires = [mesh.wire(rank, folder / name) for rank, name in enumerate(mesh.names)]
    try:
        for one in wires:
            mesh.start(one)
        together(partial(one.form, LIMIT) for one in wires)
        yield wires
    finally:
        for one in wires:
            one.close(ended=False, linger=0.0)
        mesh.end()


@contextmanager
def facing_puppets(mesh, folder, **more):
    """The wire of site 0, which has met the puppets that stand for all others."""
    own = mesh.wire(0, folder / "own", **more)
    puppets = [Puppet(mesh, rank) for rank in range(1, len(mesh.names))]
    try:
        mesh.start(own)
        meet(own, puppets)
        yield own, puppets
    finally:
        own.close(ended=False, linger=0.0)
        mesh.end()


def meet(own, puppets):
    """Have a wire meet the puppets, or meet them again."""
    for puppet in puppets:
        puppet.heard.clear()
        puppet.say(puppet.beat())
        puppet.heard.clear()
        until(lambda puppet=puppet: puppet.heard and puppet.heard[-1].echo == puppet.token)
        puppet.say(puppet.beat())
    own.form(LIMIT)
    for puppet in puppets:
        until(lambda puppet=puppet: puppet.session != bytes(16), "a session")
        puppet.say(puppet.beat())  # in it: nothing is sent to it before
