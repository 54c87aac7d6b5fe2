"""How a ledger lies on disk: one SQLite file, locked, durable, and checked byte for byte.

Two digests, neither of them secret, tell damage and careless edits from what this module wrote:

- a chain of BLAKE2b digests over every value: identity, mechanisms, then block after block; its
  end is noted as `head`;
- a digest of the file's bytes, `image`, which also covers those that hold no value. It is written
  right after each change, in a transaction of its own; if a kill comes between the two it is all
  zeros, and the chain alone vouches for the values.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib import metadata

from tacit.errors import InputError

__all__ = [
    "FORMAT_VERSION",
    "MECHANISMS",
    "META",
    "MechanismRow",
    "changing",
    "connecting",
    "lock",
    "verify",
    "write_new",
]

FORMAT_VERSION = 1

MechanismRow = tuple[int, str, float | None, float | None]

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE mechanism (
    node INTEGER PRIMARY KEY,
    statement TEXT NOT NULL,
    epsilon_budget REAL,
    delta REAL
);
CREATE TABLE image (digest BLOB NOT NULL);
CREATE TABLE block (
    id INTEGER PRIMARY KEY,
    node INTEGER NOT NULL REFERENCES mechanism,
    session INTEGER NOT NULL,
    first_step INTEGER NOT NULL,
    reserved_until INTEGER NOT NULL,
    used_until INTEGER,
    digest BLOB NOT NULL
);
"""
META = "SELECT key, value FROM meta WHERE key != 'head' ORDER BY key"
MECHANISMS = "SELECT node, statement, epsilon_budget, delta FROM mechanism ORDER BY node"
_BLOCKS = (
    "SELECT id, node, session, first_step, reserved_until, used_until, digest "
    "FROM block WHERE id >= ? ORDER BY id"
)
_UNSEALED = bytes(32)


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
        connection = sqlite3.connect(path, timeout=0.0, isolation_level=None)
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
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing, and on the disk when it ends."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def changing(connection: sqlite3.Connection, path: str) -> Iterator[None]:
    """A change, durable when it ends; changed blocks must have been left with an empty digest.

    Raises:
        InputError: the file cannot be written.
    """
    with _plain_errors(path):
        with _transaction(connection):
            yield
            _seal_values(connection)
            connection.execute("UPDATE image SET digest = ?", (_UNSEALED,))
        _seal_image(connection)


def write_new(
    connection: sqlite3.Connection, path: str, digest: str, mechanism_rows: Sequence[MechanismRow]
) -> None:
    """Fill a new ledger with the identity of a run of the plan `digest` and its mechanisms.

    Raises:
        InputError: the file cannot be written.
    """
    meta = {
        "format_version": str(FORMAT_VERSION),
        "tacit_version": metadata.version("tacit"),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "run_id": secrets.token_hex(16),
        "digest": digest,
    }
    with changing(connection, path):
        # executescript would commit the transaction, hence one statement at a time.
        for statement in filter(str.strip, _SCHEMA.split(";")):
            connection.execute(statement)
        connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
        connection.executemany("INSERT INTO mechanism VALUES (?, ?, ?, ?)", mechanism_rows)
        connection.execute("INSERT INTO image VALUES (?)", (_UNSEALED,))
        _set_head(connection, _chain_start(connection))


def _digest(previous: bytes, row: Sequence[object]) -> bytes:
    return hashlib.blake2b(previous + ascii(tuple(row)).encode(), digest_size=32).digest()


def _chain_start(connection: sqlite3.Connection) -> bytes:
    """The digest that the first block's continues: that of identity and mechanisms."""
    link = b""
    for query in (META, MECHANISMS):
        for row in connection.execute(query):
            link = _digest(link, row)
    return link


def _seal_values(connection: sqlite3.Connection) -> None:
    """Renew the chain of digests from the first block whose digest was emptied by a change."""
    (first,) = connection.execute("SELECT min(id) FROM block WHERE digest = x''").fetchone()
    if first is None:
        return
    before = "SELECT digest FROM block WHERE id < ? ORDER BY id DESC LIMIT 1"
    (link,) = connection.execute(before, (first,)).fetchone() or (_chain_start(connection),)
    changed = []
    for row in connection.execute(_BLOCKS, (first,)):
        link = _digest(link, row[:-1])
        changed.append((link, row[0]))
    connection.executemany("UPDATE block SET digest = ? WHERE id = ?", changed)
    _set_head(connection, link)


def _set_head(connection: sqlite3.Connection, link: bytes) -> None:
    """Note the chain's end, so that blocks missing from the end are missed."""
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('head', ?)", (link.hex(),))


def _seal_image(connection: sqlite3.Connection) -> None:
    """Note the digest of the file as it is, after a change is committed."""
    with _transaction(connection):
        digest = _image_digest(connection, _UNSEALED)
        connection.execute("UPDATE image SET digest = ?", (digest,))
        # Noting it must not move other bytes. SQLite overwrites a value of equal length in place,
        # but does not promise to: better no seal than one that would refuse a sound ledger.
        if not _image_is_sound(connection):
            connection.execute("UPDATE image SET digest = ?", (_UNSEALED,))


def _image_is_sound(connection: sqlite3.Connection) -> bool:
    rows = connection.execute("SELECT cast(digest AS BLOB) FROM image").fetchall()
    if len(rows) != 1 or len(rows[0][0]) != len(_UNSEALED):
        return False
    (digest,) = rows[0]
    return digest in (_UNSEALED, _image_digest(connection, digest))


def _image_digest(connection: sqlite3.Connection, noted: bytes) -> bytes:
    """Digest of the file's bytes, but for the `noted` digest and SQLite's change counters."""
    image = bytearray(connection.serialize())
    for counter in (slice(24, 28), slice(92, 100)):
        image[counter] = bytes(counter.stop - counter.start)
    return hashlib.blake2b(image.replace(noted, _UNSEALED), digest_size=32).digest()


def verify(connection: sqlite3.Connection, path: str) -> None:
    """Refuse a file that is not what this module wrote.

    Raises:
        InputError: the file is damaged or edited, or has another format version.
    """
    (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        raise InputError("ledger", path, f"an undamaged ledger: {found}")
    meta = dict(connection.execute("SELECT key, value FROM meta").fetchall())
    if meta.get("format_version") != str(FORMAT_VERSION):
        version, writer = meta.get("format_version"), meta.get("tacit_version")
        expected = f"a ledger of format {FORMAT_VERSION}; this is {version}, of tacit {writer}"
        raise InputError("ledger", path, expected)
    link = _chain_start(connection)
    for row in connection.execute(_BLOCKS, (0,)):
        link = _digest(link, row[:-1])
        if row[-1] != link:
            raise InputError("ledger", path, f"an unedited ledger: block {row[0]} was changed")
    if meta.get("head") != link.hex():
        expected = "an unedited ledger: its identity, a mechanism or its last block was changed"
        raise InputError("ledger", path, expected)
    if not _image_is_sound(connection):
        raise InputError("ledger", path, "an undamaged ledger: bytes without a value were changed")
