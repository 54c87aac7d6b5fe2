"""How a ledger lies on disk: one SQLite file, locked, durable, and checked byte for byte.

Two digests, neither of them secret, tell damage and careless edits from what this module wrote:

- a chain of BLAKE2b digests over every value: identity, accounts, runs and their mechanisms, then
  block after block; its end is noted as `head`;
- a digest of the file's bytes, `image`, which also covers those that hold no value. It is written
  after each change but a booking, which must be quick, in a transaction of its own; until then, and
  after a kill, it is all zeros, and the chain alone vouches for the values.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata

from tacit.errors import InputError

__all__ = [
    "ACCOUNTS",
    "FORMAT_VERSION",
    "MECHANISMS",
    "META",
    "RUNS",
    "AccountRow",
    "changing",
    "connecting",
    "insert_run",
    "lock",
    "verify",
    "write_new",
]

FORMAT_VERSION = 2

AccountRow = tuple[int, float | None, float | None]  # node, epsilon budget, delta

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE account (node INTEGER PRIMARY KEY, epsilon_budget REAL, delta REAL);
CREATE TABLE run (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE,
    digest TEXT NOT NULL,
    created TEXT NOT NULL,
    tacit_version TEXT NOT NULL
);
CREATE TABLE mechanism (
    run INTEGER NOT NULL REFERENCES run,
    node INTEGER NOT NULL REFERENCES account,
    statement TEXT NOT NULL,
    PRIMARY KEY (run, node)
) WITHOUT ROWID;
CREATE TABLE image (digest BLOB NOT NULL);
CREATE TABLE block (
    id INTEGER PRIMARY KEY,
    run INTEGER NOT NULL REFERENCES run,
    node INTEGER NOT NULL REFERENCES account,
    session INTEGER NOT NULL,
    first_step INTEGER NOT NULL,
    reserved_until INTEGER NOT NULL,
    used_until INTEGER,
    digest BLOB NOT NULL
);
"""
META = "SELECT key, value FROM meta WHERE key != 'head' ORDER BY key"
ACCOUNTS = "SELECT node, epsilon_budget, delta FROM account ORDER BY node"
RUNS = "SELECT id, run_id, digest, created, tacit_version FROM run ORDER BY id"
MECHANISMS = "SELECT run, node, statement FROM mechanism ORDER BY run, node"
_BLOCKS = (
    "SELECT id, run, node, session, first_step, reserved_until, used_until, digest "
    "FROM block WHERE id >= ? ORDER BY id"
)
_EDITED = "an unedited ledger: block {}, or what stands before it, was changed"
_UNSEALED = bytes(32)
_SIZE = ("count", "size")
_PATIENCE = 0.3  # seconds: a reader is done by then, a run is not


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
def changing(connection: sqlite3.Connection, path: str, *, seal: bool = True) -> Iterator[None]:
    """A change, durable when it ends; changed blocks must have been left with an empty digest.

    Args:
        connection: to the ledger.
        path: its file, for messages.
        seal: whether the file's bytes are digested as well, which takes as long again.

    Raises:
        InputError: the file cannot be written.
    """
    with _plain_errors(path):
        with _transaction(connection):
            yield
            _seal_values(connection)
            connection.execute("UPDATE image SET digest = ?", (_UNSEALED,))
        if seal:
            _seal_image(connection)


def write_new(connection: sqlite3.Connection, accounts: Sequence[AccountRow]) -> None:
    """Fill a new ledger, inside `changing`, with its identity and accounts."""
    meta = {
        "format_version": str(FORMAT_VERSION),
        "tacit_version": metadata.version("tacit"),
        "created": _now(),
    }
    # executescript would commit the transaction, hence one statement at a time.
    for statement in filter(str.strip, _SCHEMA.split(";")):
        connection.execute(statement)
    connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
    connection.executemany("INSERT INTO account VALUES (?, ?, ?)", accounts)
    connection.execute("INSERT INTO image VALUES (?)", (_UNSEALED,))


def insert_run(
    connection: sqlite3.Connection, run_id: str, digest: str, statements: Mapping[int, str]
) -> int:
    """Enter a run, inside `changing`, with each node's mechanism as JSON; gives its row."""
    row = (run_id, digest, _now(), metadata.version("tacit"))
    insert = "INSERT INTO run (run_id, digest, created, tacit_version) VALUES (?, ?, ?, ?)"
    number = connection.execute(insert, row).lastrowid
    assert number is not None
    rows = [(number, node, statement) for node, statement in statements.items()]
    connection.executemany("INSERT INTO mechanism VALUES (?, ?, ?)", rows)
    # Runs stand before all blocks in the chain.
    connection.execute("UPDATE block SET digest = x''")
    return number


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _digest(previous: bytes, row: Sequence[object]) -> bytes:
    return hashlib.blake2b(previous + ascii(tuple(row)).encode(), digest_size=32).digest()


def _chain_start(connection: sqlite3.Connection) -> bytes:
    """The digest that the first block's continues: that of all tables before the blocks."""
    link = b""
    for query in (META, ACCOUNTS, RUNS, MECHANISMS):
        for row in connection.execute(query):
            link = _digest(link, row)
    return link


def _seal_values(connection: sqlite3.Connection) -> None:
    """Renew the chain of digests from the first block whose digest was emptied by a change."""
    (first,) = connection.execute(
        "SELECT coalesce(min(CASE WHEN digest = x'' THEN id END), max(id) + 1, 1) FROM block"
    ).fetchone()
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
    (pages,), (size,) = (connection.execute(f"PRAGMA page_{of}").fetchone() for of in _SIZE)
    if os.stat(path).st_size != pages * size:  # SQLite takes what is missing of a page for zeros
        raise InputError("ledger", path, f"an undamaged ledger, of {pages * size} bytes")
    meta = dict(connection.execute("SELECT key, value FROM meta").fetchall())
    if meta.get("format_version") != str(FORMAT_VERSION):
        version, writer = meta.get("format_version"), meta.get("tacit_version")
        expected = f"a ledger of format {FORMAT_VERSION}; this is {version}, of tacit {writer}"
        raise InputError("ledger", path, expected)
    link = _chain_start(connection)
    for row in connection.execute(_BLOCKS, (0,)):
        link = _digest(link, row[:-1])
        if row[-1] != link:
            raise InputError("ledger", path, _EDITED.format(row[0]))
    if meta.get("head") != link.hex():
        expected = "an unedited ledger: identity, a budget, a run or the last block was changed"
        raise InputError("ledger", path, expected)
    if not _image_is_sound(connection):
        raise InputError("ledger", path, "an undamaged ledger: bytes without a value were changed")
