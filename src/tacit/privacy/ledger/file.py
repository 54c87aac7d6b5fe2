"""How a ledger lies on disk: a log in one SQLite file, locked, durable, chained and signed.

The log only grows: what a ledger says (`tacit.privacy.ledger.ledger`) is what its entries say in
order. Five things tell damage and edits from what this module wrote:

- every entry has a BLAKE2b digest of itself and of the digest before it; the last one is the
  *head*, which stands for everything in the ledger. All earlier heads stay in the file, so that a
  head which someone noted is found again in every later copy, and in no earlier one;
- the head is signed (Ed25519) with the ledger's key; the public key is in the first entry. Entries
  cannot be changed or added without the key;
- digests of records, of which the chain says nothing, are signed beside it, with its first head;
- the tables are the three that are made here, and nothing else is in the file: no trigger that
  would undo what is added, no view in a table's place;
- a digest of the file's bytes, `image`, covers those that hold no value as well. It is written
  with each change but a reservation, which must be quick; after one, and after a kill, it is all
  zeros, and the chain alone vouches for the values.

The key is a file of 32 random bytes, `ledger.key`, beside the ledgers: in the run folder, or in the
folder of the data's ledgers. It signs ledgers, and it makes the digests of records secret: whoever
has it can write ledgers that pass for true, and can test whether a known record is in them; whoever
lacks it can do neither.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tacit.base.plain_files import read_plain
from tacit.base.private_files import appearing
from tacit.base.version import __version__
from tacit.errors import FormatError, InputError

KEY_FILE = "ledger.key"
_KEY_BYTES = 32
_MOST_KEY_BYTES = 2**16


@dataclass(frozen=True)
class LedgerKey:
    """A secret key of 32 bytes."""

    secret: bytes = field(repr=False)

    @cached_property
    def _private(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.secret)

    @property
    def public(self) -> str:
        """The public key that its signatures are checked with, hexadecimal."""
        return self._private.public_key().public_bytes_raw().hex()

    @property
    def salt(self) -> bytes:
        """The key of the digests of records, `[32]` bytes."""
        return hashlib.blake2b(b"digests of records", digest_size=32, key=self.secret).digest()

    def sign(self, message: bytes) -> bytes:
        """The Ed25519 signature of a message, `[64]` bytes."""
        return self._private.sign(message)


def new_key() -> LedgerKey:
    """A fresh key of the operating system's random source, in memory alone."""
    return LedgerKey(secrets.token_bytes(_KEY_BYTES))


def make_key(folder: Path) -> LedgerKey:
    """The key in a folder, made durably if there is none.

    Raises:
        InputError: it is damaged, or cannot be read or made.
    """
    path = folder / KEY_FILE
    if not path.exists():
        try:
            with appearing(path) as aside, aside.open("r+b") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            pass  # another process made it at the same moment
        except OSError as error:
            expected = f"a file that can be written: {error.strerror}"
            raise InputError("ledger key", str(path), expected) from None
    key = find_key(folder)
    assert key is not None
    return key


def find_key(folder: Path) -> LedgerKey | None:
    """The key in a folder; None where there is none.

    Raises:
        InputError: it is damaged or cannot be read.
    """
    path = folder / KEY_FILE
    try:
        secret = read_plain(path, _MOST_KEY_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        expected = f"a key that can be read: {error.strerror}"
        raise InputError("ledger key", str(path), expected) from None
    if len(secret) != _KEY_BYTES:
        raise InputError(
            "ledger key", str(path), f"a key of {_KEY_BYTES} bytes; it has {len(secret)}"
        )
    return LedgerKey(secret)


def is_signed(public: str, message: bytes, signature: bytes) -> bool:
    """Whether the owner of a public key has signed a message."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def fingerprint(public: str) -> str:
    """A public key in 16 hexadecimal digits, for people to compare."""
    return hashlib.blake2b(bytes.fromhex(public), digest_size=8).hexdigest()


FORMAT_VERSION = 6

_SCHEMA = (
    "CREATE TABLE entry (id INTEGER PRIMARY KEY, content TEXT NOT NULL, digest BLOB NOT NULL)",
    "CREATE TABLE records (digests BLOB NOT NULL, signature BLOB NOT NULL)",
    "CREATE TABLE seal (image BLOB NOT NULL, signature BLOB NOT NULL)",
)
_UNSEALED = bytes(32)
_SIGNED = b"head of a tacit ledger: "
_OF_RECORDS = b"records of a tacit ledger: "
_SIZE = ("count", "size")
_PATIENCE = 0.3  # seconds: a reader is done by then, a run is not
_EDITED = "an unedited ledger: entry {}, or what stands before it, was changed"


class Log(NamedTuple):
    """What is in a ledger's file."""

    entries: tuple[Mapping[str, Any], ...]  # in order; the first tells of the ledger itself
    heads: tuple[str, ...]  # the head of the chain after each of them, hexadecimal
    records: bytes  # 64-bit digests of records, little-endian, ascending; of a run's ledger, none
    changes: tuple[int, int]  # of the file when it was read: numbers that grow with each


@contextlib.contextmanager
def _plain_errors(path: str) -> Iterator[None]:
    """Say in plain words what SQLite cannot do with the file."""
    try:
        yield
    # SQLite quotes damaged text in its messages, which Python then cannot decode.
    except (sqlite3.Error, UnicodeDecodeError) as error:
        busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
        expected = (
            "a ledger that no other process runs: one is running it now"
            if busy
            else f"an undamaged ledger that can be read and written: {error}"
        )
        raise InputError("ledger", path, expected) from error


@contextlib.contextmanager
def connecting(path: str) -> Iterator[sqlite3.Connection]:
    """A connection without implicit transactions, closed again if what follows fails.

    Raises:
        InputError: what follows meets an error of SQLite, a lock of another process included.
    """
    with _plain_errors(path):
        # One thread at a time uses a connection, but not always the one that made it.
        connection = sqlite3.connect(
            path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
        )
        try:
            # EXTRA, not FULL: with a rollback journal, FULL can lose the last commit in a power
            # cut, since the journal's removal need not be on the disk yet.
            for pragma in ("page_size = 512", "journal_mode = DELETE", "synchronous = EXTRA"):
                connection.execute(f"PRAGMA {pragma}")
            connection.execute("PRAGMA fullfsync = ON")
            yield connection
        except BaseException:
            connection.close()
            raise


def lock(connection: sqlite3.Connection) -> None:
    """Hold the file's exclusive lock from now until the connection, or the process, ends."""
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("BEGIN EXCLUSIVE")
    connection.execute("COMMIT")


@contextlib.contextmanager
def _in_transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing, and on the disk when it ends."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def entered() -> dict[str, str]:
    """When something is entered, and by which version."""
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "tacit_version": __version__,
    }


def write_new(path: Path, key: LedgerKey, entries: Iterable[Mapping[str, Any]]) -> None:
    """Make the file of a ledger, whole or not at all, durably; arguments are those of `fill`."""
    with connecting(":memory:") as connection, appearing(path) as aside, aside.open("r+b") as file:
        fill(connection, str(path), key, entries)
        file.write(connection.serialize())
        file.flush()
        os.fsync(file.fileno())
        connection.close()


def fill(
    connection: sqlite3.Connection,
    path: str,
    key: LedgerKey,
    entries: Iterable[Mapping[str, Any]],
) -> None:
    """Fill an empty database with a ledger.

    The entries, at least one, follow the ledger's own. The path is for messages.

    Raises:
        InputError: the file cannot be written.
    """
    first = {
        "kind": "ledger",
        "format_version": FORMAT_VERSION,
        "public_key": key.public,
        **entered(),
    }
    with _plain_errors(path), _in_transaction(connection):
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.execute("INSERT INTO seal VALUES (?, ?)", (_UNSEALED, bytes(64)))
        _extend(connection, key, [first, *entries])
        signature = key.sign(_records_message(connection, b""))
        connection.execute("INSERT INTO records VALUES (?, ?)", (b"", signature))
        _seal_image(connection)


def write_records(
    connection: sqlite3.Connection, path: str, key: LedgerKey, records: bytes
) -> None:
    """Add digests of records, durably; the chain, which may be shown, does not tell of them.

    The digests are as in `Log`, and the path is for messages.

    Raises:
        InputError: the file cannot be written.
    """
    known = np.frombuffer(read_log(connection).records, "<u8")
    every = np.union1d(known, np.frombuffer(records, "<u8")).astype("<u8")
    if len(every) == len(known):
        return
    with _plain_errors(path), _in_transaction(connection):
        signature = key.sign(_records_message(connection, every.tobytes()))
        signed = "UPDATE records SET digests = ?, signature = ?"
        connection.execute(signed, (every.tobytes(), signature))
        connection.execute("UPDATE seal SET image = ?", (_UNSEALED,))
        _seal_image(connection)


def _records_message(connection: sqlite3.Connection, records: bytes) -> bytes:
    """What is signed of digests: they, and the second entry's head, which is this file's alone."""
    ((head,),) = connection.execute("SELECT digest FROM entry WHERE id = 2").fetchall()
    return _OF_RECORDS + bytes(head) + records


def append(
    connection: sqlite3.Connection,
    path: str,
    key: LedgerKey,
    entries: Iterable[Mapping[str, Any]],
    *,
    seal: bool = True,
) -> None:
    """Add entries to the log, durably when this returns, all or none.

    The entries are data that JSON can hold, and the path is for messages. `seal` says that the
    file's bytes are digested as well, which takes as long again.

    Raises:
        InputError: the file cannot be written.
    """
    with _plain_errors(path), _in_transaction(connection):
        _extend(connection, key, entries)
        if seal:
            _seal_image(connection)


def _extend(
    connection: sqlite3.Connection, key: LedgerKey, entries: Iterable[Mapping[str, Any]]
) -> None:
    """Lengthen the chain and sign its new head."""
    last = "SELECT id, digest FROM entry ORDER BY id DESC LIMIT 1"
    number, head = connection.execute(last).fetchone() or (0, b"")
    for entry in entries:
        number += 1
        content = json.dumps(dict(entry), sort_keys=True, allow_nan=False)
        head = _digest(head, number, content)
        connection.execute("INSERT INTO entry VALUES (?, ?, ?)", (number, content, head))
    signature = key.sign(_SIGNED + head)
    connection.execute("UPDATE seal SET image = ?, signature = ?", (_UNSEALED, signature))


def _digest(previous: bytes, number: int, content: str) -> bytes:
    message = previous + ascii((number, content)).encode()
    return hashlib.blake2b(message, digest_size=32).digest()


def _seal_image(connection: sqlite3.Connection) -> None:
    """Note the digest of the file as a transaction, which is open, will leave it."""
    digest = _image_digest(connection, _UNSEALED)
    connection.execute("UPDATE seal SET image = ?", (digest,))
    # Noting it must not move other bytes. SQLite overwrites a value of equal length in place,
    # but does not promise to: better no seal than one that would refuse a sound ledger.
    if not _image_is_sound(connection, digest):
        connection.execute("UPDATE seal SET image = ?", (_UNSEALED,))


def _image_is_sound(connection: sqlite3.Connection, noted: bytes) -> bool:
    return noted in (_UNSEALED, _image_digest(connection, noted))


def _image_digest(connection: sqlite3.Connection, noted: bytes) -> bytes:
    """Digest of the file's bytes, but for the `noted` digest and SQLite's change counters."""
    image = bytearray(connection.serialize())
    for counter in (slice(24, 28), slice(92, 100)):
        image[counter] = bytes(counter.stop - counter.start)
    return hashlib.blake2b(image.replace(noted, _UNSEALED), digest_size=32).digest()


def read_log(connection: sqlite3.Connection, known: Log | None = None) -> Log:
    """What is in the file of an open, verified ledger: `known`, where nothing was written since."""
    # What is another with every change: by this connection, and by any other.
    (others,) = connection.execute("PRAGMA data_version").fetchone()
    changes = connection.total_changes, others
    if known is not None and known.changes == changes:
        return known
    rows = connection.execute("SELECT content, digest FROM entry ORDER BY id").fetchall()
    ((records,),) = connection.execute("SELECT digests FROM records").fetchall()
    entries = tuple(json.loads(content) for content, _ in rows)
    return Log(entries, tuple(digest.hex() for _, digest in rows), records, changes)


def verified(connection: sqlite3.Connection, path: str) -> Log:
    """What is in a file, which is refused unless this module wrote it with its key.

    Raises:
        InputError: the file is damaged or edited, is signed with another key than that which lies
            beside it, or has another format version.
    """
    # First of all: what reads like a table of ours may be a view that never ends.
    if connection.execute("SELECT sql FROM sqlite_master").fetchall() != [(s,) for s in _SCHEMA]:
        expected = "an unedited ledger: tables, triggers or the like were changed or added"
        raise InputError("ledger", path, expected)
    (verdict,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if verdict != "ok":
        raise InputError("ledger", path, f"an undamaged ledger: {verdict}")
    (pages,), (size,) = (connection.execute(f"PRAGMA page_{of}").fetchone() for of in _SIZE)
    if os.stat(path).st_size != pages * size:  # SQLite takes what is missing of a page for zeros
        raise InputError("ledger", path, f"an undamaged ledger, of {pages * size} bytes")
    try:
        log = read_log(connection)
        ((image, signature),) = connection.execute(
            "SELECT cast(image AS BLOB), cast(signature AS BLOB) FROM seal"
        ).fetchall()
        version, public = log.entries[0]["format_version"], log.entries[0].get("public_key", "")
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        expected = f"an undamaged ledger: {type(error).__name__}: {error}"
        raise InputError("ledger", path, expected) from None
    if version != FORMAT_VERSION:
        raise FormatError(path, version, FORMAT_VERSION)
    head = b""
    for place, row in enumerate(connection.execute("SELECT * FROM entry ORDER BY id"), start=1):
        head = _digest(head, row[0], row[1])
        if (row[0], row[2]) != (place, head):
            raise InputError("ledger", path, _EDITED.format(place))
    if not is_signed(public, _SIGNED + head, signature):
        expected = "an unedited ledger: its last entries were changed, or its signature was"
        raise InputError("ledger", path, expected)
    of_records = bytes(connection.execute("SELECT signature FROM records").fetchone()[0])
    if not is_signed(public, _records_message(connection, log.records), of_records):
        raise InputError("ledger", path, "an unedited ledger: its records were changed")
    key = find_key(Path(path).parent)
    if key is not None and key.public != public:
        expected = "a ledger that is signed with the key beside it; it is signed with another"
        raise InputError("ledger", path, expected)
    if len(image) != len(_UNSEALED) or not _image_is_sound(connection, image):
        raise InputError("ledger", path, "an undamaged ledger: bytes without a value were changed")
    return log
