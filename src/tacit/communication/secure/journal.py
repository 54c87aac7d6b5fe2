"""What a site must not forget while it takes part in a run: the session, on its own disk.

A *session* of a run goes from the moment when its sites have met to its clean end. A process that
is killed in between comes back to where it was: it loads its last checkpoint and makes the steps
since then again, with the same noise and the same messages of others, so that it makes the same
messages. For that its site's folder keeps

- `session.json`: a secret from which all keys of the session derive, and how the sites met;
- `snapshot-STEP`: what the wire held when the checkpoint of that step was written;
- `received-STEP`: every message that came since, whole;
- `sent-STEP`: of every message that was sent since its SHA-256, in the order in which they were
  made, and the facts that this site has stated, on the disk before a byte of them leaves.

All of it goes when the session has ended. The files are the site's alone (0600): whoever has them
and the messages of the run can take off the noise of this site's own nodes, as whoever has its
records needs not even do.

A file may end in the middle of a record, where the machine was stopped. Such a record counts as
never written: a message that came is acknowledged, and one that is sent leaves, only once its
record is on the disk.
"""

from __future__ import annotations

import os
import re
import secrets
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tacit.base.plain_files import read_plain
from tacit.base.private_files import (
    LOCK,
    locked,
    make_private_folder,
    plain_errors,
    remove_files,
    sync_folder,
    write_private,
)
from tacit.communication.secure.frames import Body, digest_of
from tacit.errors import InputError

NOTES, RECEIVED, SENT, FACT, UNSENT, STATED = range(6)
"""Kinds of records: notes of a snapshot (JSON), a message that came, the digest of one that was
sent, a fact that is known, a message that was sent and not acknowledged, and a fact that this site
has stated, and states again when it comes to the same place."""

_MESSAGES = (RECEIVED, UNSENT)  # whose bodies are told by their SHA-256, others by the checksum

_RECORD = struct.Struct("<IBIQHQ32s")  # checksum, kind, rank, number, lengths of topic and body
_FILE = re.compile(r"(snapshot|received|sent)-(\d{8,16})")
_SEGMENTS = ("received", "sent")
_SHORT = 2**12  # bytes of a body that does not stay on the disk
_SESSION = "session.json"
_LONGEST_SESSION = 2**27  # bytes
_WHERE = "--site"
_FILES = "session"  # what an error speaks of where one of its files cannot be read or written

_Hex32 = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
_Rank = Annotated[int, Field(ge=0, lt=2**31)]


class Session(BaseModel):
    """How the sites of a run met.

    Attributes:
        secret: 32 bytes as hexadecimal digits, from which this site's keys derive.
        nonce: this site's random number.
        nonces: of every site, by rank, once all have met; None before.
        starts: how many processes of this site have taken part, so that what an earlier one said
            is never taken for newer than what this one says.
        ended: whether it has come to a clean end.
        sent: the first step of the run of which this site has sent nothing in the sessions
            before; None: it cannot tell.
        rejoins: the same, of a session that waits to be taken in or back; else None.
        has_met: whether this site has met the others since it could tell.
        earlier: the notes of the session before, where one follows another.
        without: ranks without which the run may begin, since they were left out, or did not come
            to the stop before.
        absent: of these, who was away when the others stopped to take the rest back: the process
            that did begins without them at once.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    secret: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", repr=False)]
    nonce: _Hex32
    nonces: tuple[_Hex32, ...] | None = None
    starts: Annotated[int, Field(ge=0, lt=2**53)] = 0
    ended: bool = False
    sent: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    rejoins: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    has_met: bool = False
    earlier: dict[str, str] = Field(default_factory=dict)
    without: tuple[_Rank, ...] = ()
    absent: tuple[_Rank, ...] = ()

    @classmethod
    def new(cls, **known: Any) -> Session:
        """One that nobody has met in, with some fields; where it rejoins, it has sent so far."""
        known = {"sent": known.get("rejoins"), **known}
        return cls(secret=secrets.token_hex(32), nonce=secrets.token_hex(16), **known)


@dataclass(frozen=True)
class Record:
    """One thing that happened.

    Args:
        kind: see `NOTES`.
        rank: of the site it came from, went to, or that stated it.
        number: in the stream from or to that site.
        topic: of a message, or the name of a fact.
        body: of a message that came, or the text of a fact; of one that was sent, the step that the
            site had come to.
        digest: SHA-256 of a message's body.
        place: where the body stands instead, of one that was left on the disk: file, first byte
            and length; see `Journal.whole`.
    """

    kind: int
    rank: int = 0
    number: int = 0
    topic: str = ""
    body: Body = b""
    digest: bytes = bytes(32)
    place: tuple[Path, int, int] | None = None

    @property
    def size(self) -> int:
        """Bytes of its body."""
        return len(self.body) if self.place is None else self.place[2]

    def packed(self) -> bytes:
        """As it is written."""
        topic = self.topic.encode("ascii")
        rest = _RECORD.pack(
            0, self.kind, self.rank, self.number, len(topic), len(self.body), self.digest
        )[4:]
        checksum = zlib.crc32(
            b"" if self.kind in _MESSAGES else self.body, zlib.crc32(rest + topic)
        )
        return b"".join((checksum.to_bytes(4, "little"), rest, topic, self.body))


class Journal:
    """The files of one session, in a folder that is made if missing.

    What comes is added by one thread, what goes by another; `begin_segment` by a third, while
    neither does.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._descriptors: dict[str, int] = {}
        self._opened = threading.Lock()  # of the descriptors
        self._lock: ExitStack | None = None
        with plain_errors(_FILES, folder):
            if not folder.is_dir():
                make_private_folder(folder)
                sync_folder(folder.parent)  # else a power cut may take the folder, and all in it

    def hold(self) -> None:
        """Keep all other processes from the session until `close`, or refuse where another has it.

        Two that went on with one session would send different messages with the same noise.
        """
        if self._lock is None:
            expected = "is in use: another process of this site takes part in the run now"
            with ExitStack() as stack:
                stack.enter_context(locked(self.folder, _WHERE, expected))
                self._lock = stack.pop_all()

    def session(self) -> Session | None:
        """What is written of the session; None before there is any. It is refused if damaged."""
        path = self.folder / _SESSION
        if not path.exists():
            return None
        with plain_errors(_FILES, path):
            content = read_plain(path, _LONGEST_SESSION)
        try:
            return Session.model_validate_json(content)
        except ValidationError:
            expected = "is damaged: put a copy back, or remove the folder and start a new run"
            raise InputError(_WHERE, str(path), expected) from None

    def write_session(self, session: Session, *, is_new: bool = False) -> None:
        """Write it durably; of a new one, after what an earlier one has left is removed."""
        with plain_errors(_FILES, self.folder):
            if is_new:
                self._remove_all()
            write_private(self.folder / _SESSION, session.model_dump_json().encode())

    def take_up(self, sites: int) -> Session:
        """The session that lasts, or a new one; held. One of another number of sites is refused."""
        self.hold()
        found = self.session()
        lasting = () if found is None or found.ended else found.nonces or ()
        if lasting and len(lasting) != sites:
            expected = (
                f"is of a run of {len(lasting)} sites, and the consortium has "
                f"{sites} now: join the bundle of that time, or start a new run"
            )
            raise InputError(_WHERE, str(self.folder), expected)
        if found is None or found.ended:
            found = Session.new()
            self.write_session(found, is_new=True)
        elif found.nonces is None:  # nothing went in it yet: what lies here is of an earlier one
            with plain_errors(_FILES, self.folder):
                self._remove_all()
        return found

    def begin_anew(self, session: Session) -> None:
        """Give the session up for one that nobody has met in; what lies here of it goes."""
        self.write_session(session)  # before what lies here
        with plain_errors(_FILES, self.folder):
            self._remove_all()

    def begin_segment(self, step: int) -> None:
        """Write what follows into the segment of a step; what it holds already stays.

        That is brought to the disk: a process that was killed may have written it and no more, and
        what is read here counts as safe from now on.
        """
        with self._opened:
            self._let_go()
            for kind in _SEGMENTS:
                path = self.folder / f"{kind}-{step:08d}"
                with plain_errors(_FILES, path):
                    found = path.exists()
                    if found:  # but for the part of a record at its end
                        os.truncate(path, _whole_bytes(path))
                    flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
                    self._descriptors[kind] = os.open(path, flags, 0o600)
                    os.fchmod(self._descriptors[kind], 0o600)
                    if found:
                        os.fdatasync(self._descriptors[kind])
            with plain_errors(_FILES, self.folder):
                sync_folder(self.folder)

    def add_received(self, record: Record) -> None:
        """Add a message that came; on the disk only after `sync_received`."""
        self._append("received", record.packed())

    def sync_received(self) -> None:
        """Bring to the disk what came; nothing without a segment."""
        with plain_errors(_FILES, self.folder):
            with self._opened:  # not while another thread begins a segment
                if "received" not in self._descriptors:
                    return
                descriptor = os.dup(self._descriptors["received"])
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)

    def add_sent(self, records: Iterable[Record]) -> None:
        """Add digests of messages, or facts, that are about to leave; they are on the disk then."""
        self._append("sent", b"".join(record.packed() for record in records))
        with plain_errors(_FILES, self.folder):
            os.fdatasync(self._descriptors["sent"])

    def _append(self, kind: str, content: bytes) -> None:
        """Add all of it or, where there is no room, nothing: what followed a part would be lost."""
        view, descriptor = memoryview(content), self._descriptors[kind]
        with plain_errors(_FILES, self.folder):
            size = os.fstat(descriptor).st_size
            try:
                while view:
                    view = view[os.write(descriptor, view) :]
            except OSError:
                with suppress(OSError):
                    os.ftruncate(descriptor, size)
                raise

    def write_snapshot(self, step: int, records: Sequence[Record]) -> None:
        """Write what the wire holds at a step, whole or not at all."""
        path = self.folder / f"snapshot-{step:08d}"
        with plain_errors(_FILES, path):
            write_private(path, b"".join(record.packed() for record in records))

    def snapshots(self) -> list[int]:
        """The steps of which there are snapshots, ascending."""
        return sorted(step for kind, step, _ in self._files() if kind == "snapshot")

    def load(self, step: int | None) -> tuple[list[Record], Iterator[Record]]:
        """The records of the snapshot of a step, and all that happened since.

        Without a step, all that happened since the session began. Of the messages that came since,
        which may be more than memory holds, long bodies stay on the disk. A damaged snapshot, or a
        damaged segment that is not the last of its kind, is an InputError.
        """
        held: list[Record] = []
        if step is not None:
            path = self.folder / f"snapshot-{step:08d}"
            held = [record for record, _ in _read(path)]
            if not held or not _is_whole(path):
                raise _damaged(path)
        segments = sorted(
            (number, kind, path)
            for kind, number, path in self._files()
            if kind in _SEGMENTS and number >= (step or 0)
        )
        last = {kind: path for _, kind, path in segments}
        for _, kind, path in segments:  # the last ones may end in the middle of a record
            if path != last[kind] and not _is_whole(path):
                raise _damaged(path)
        return held, (
            _left_on_disk(record, path, end)
            for _, _, path in segments
            for record, end in _read(path)
        )

    def whole(self, record: Record) -> Record:
        """A record with its body, or an InputError where that was changed on the disk."""
        if record.place is None:
            return record
        path, first, length = record.place
        with plain_errors(_FILES, path), path.open("rb") as file:
            file.seek(first)
            body = file.read(length)
        if digest_of(body) != record.digest:
            raise _damaged(path)
        return replace(record, body=body, place=None)

    def last_segment(self) -> int:
        """The step of the newest segment; 0 without one."""
        return max((step for kind, step, _ in self._files() if kind in _SEGMENTS), default=0)

    def forget_before(self, step: int) -> None:
        """Remove the snapshots and segments of earlier steps."""
        with plain_errors(_FILES, self.folder):
            old = [path.name for _, number, path in self._files() if number < step]
            remove_files(self.folder, *old)

    def close(self) -> None:
        """Let go of the segment, and of the session."""
        with self._opened:
            self._let_go()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _let_go(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def remove(self) -> None:
        """Remove the session: it has ended."""
        with self._opened:
            self._let_go()
        with plain_errors(_FILES, self.folder):
            names = [path.name for _, _, path in self._files()]
            parts = [path.name for path in self.folder.glob("*.part")]  # of a write cut off
            remove_files(self.folder, *names, *parts, _SESSION, LOCK)
        with suppress(OSError):  # there may be something that is not tacit's
            self.folder.rmdir()
        self.close()

    def _remove_all(self) -> None:
        """What was written of a session, but for the session itself."""
        remove_files(self.folder, *(path.name for _, _, path in self._files()))

    def _files(self) -> list[tuple[str, int, Path]]:
        found = ((path, _FILE.fullmatch(path.name)) for path in self.folder.iterdir())
        return [(match[1], int(match[2]), path) for path, match in found if match]


def _read(path: Path) -> Iterator[tuple[Record, int]]:
    """The records of a file, up to the first that is not whole, and where each of them ends."""
    with plain_errors(_FILES, path), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        while len(head := file.read(_RECORD.size)) == _RECORD.size:
            checksum, kind, rank, number, topic_length, length, digest = _RECORD.unpack(head)
            if topic_length + length > size - file.tell():
                return
            topic, body = file.read(topic_length), file.read(length)
            message = kind in _MESSAGES
            if zlib.crc32(b"" if message else body, zlib.crc32(head[4:] + topic)) != checksum or (
                message and digest_of(body) != digest
            ):
                return
            record = Record(kind, rank, number, topic.decode("ascii", "replace"), body, digest)
            yield record, file.tell()


def _left_on_disk(record: Record, path: Path, end: int) -> Record:
    """The same of a message that came, without its body where that is long."""
    length = len(record.body)
    if record.kind != RECEIVED or length <= _SHORT:
        return record
    return replace(record, body=b"", place=(path, end - length, length))


def _whole_bytes(path: Path) -> int:
    """How many bytes of a file are whole records."""
    return max((end for _, end in _read(path)), default=0)


def _is_whole(path: Path) -> bool:
    return _whole_bytes(path) == path.stat().st_size


def _damaged(path: Path) -> InputError:
    expected = "is damaged: put a copy back, or stop all sites and start a new run"
    return InputError(_WHERE, str(path), expected)
