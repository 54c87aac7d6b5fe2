"""The ledger: what each node has spent, on file before a message leaves.

One SQLite file holds accounts (a node's data and its budget), runs with the mechanism that each
of them releases from an account, and the blocks of steps that were booked. It is used in two ways:

- the ledger of *a run*: one run, one account for each node of the process (`Ledger.create`);
- the ledger of *a node's data*, which outlives runs: one account, one run after the other
  (`Ledger.create_account`, `Ledger.open_account`, `Ledger.enter`).

A block is booked durably *before* its first message leaves, and counts in full until a clean stop
settles it. So a process that is killed at any instant may have booked more than it sent, never
less; and anyone can recompute every epsilon from the file alone.

What the file defends against, and what not:

- Two processes at once: an open ledger is locked by the operating system, and the lock dies with
  its process. A *copy* of the file is another ledger: nothing here can tell.
- Damage and careless edits: SQLite's own check and digests of the values and of the file's bytes
  are verified when a ledger is opened. They have no secret: whoever has this code can forge a
  ledger that opens, and whoever may write to its folder can remove it.

While a ledger is open, do not open its file by other means in the same process: on POSIX systems,
closing that second handle would release the lock.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tacit.errors import InputError
from tacit.privacy.ledger_file import (
    ACCOUNTS,
    FORMAT_VERSION,
    MECHANISMS,
    RUNS,
    AccountRow,
    changing,
    connecting,
    insert_run,
    lock,
    verify,
    write_new,
)
from tacit.privacy.ledger_records import (
    Account,
    BookedRun,
    Interval,
    NodeStatement,
    Snapshot,
    StepRun,
    check_exists,
    read_ledger,
    snapshot,
    step_runs,
)

__all__ = [
    "FORMAT_VERSION",
    "Account",
    "BookedRun",
    "Interval",
    "Ledger",
    "NodeStatement",
    "Snapshot",
    "StepRun",
    "read_ledger",
    "step_runs",
]


class Ledger:
    """An open ledger, closed by `close`.

    It is a context manager. Leaving it closes the file and settles nothing: blocks that were not
    settled count in full.
    """

    def __init__(self, connection: sqlite3.Connection, path: str, run: int | None) -> None:
        """Take over a connection whose content is verified; use the class methods instead.

        Args:
            connection: to a ledger, locked unless it is in memory.
            path: its file, for messages.
            run: the row of the run to book for; None until `enter` says.
        """
        self._connection = connection
        self._path = path
        self._nodes = tuple(node for node, _, _ in connection.execute(ACCOUNTS))
        self._run = run
        (last,) = connection.execute("SELECT max(session) FROM block").fetchone()
        self._session = 1 if last is None else last + 1

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        digest: str,
        statements: Sequence[NodeStatement],
        run_id: str | None = None,
    ) -> Self:
        """A new ledger of a run in a new file, durable when this returns.

        Args:
            path: a file that does not exist, in a folder that does.
            digest: identifies the plan: a run is only ever continued under the same one.
            statements: one for each node that this ledger books for.
            run_id: of the run, where several ledgers are of one; by default a new one.

        Raises:
            InputError: the file exists or cannot be written, or the statements are unusable.
        """
        texts = _texts(statements)
        with _plain_os_errors(path):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        with connecting(str(path)) as connection:
            lock(connection)
            run = _fill(connection, str(path), digest, statements, texts, run_id)
            return cls(connection, str(path), run)

    @classmethod
    def open(cls, path: str | Path, *, digest: str | None) -> Self:
        """The ledger of a run's earlier session, to be continued.

        Args:
            path: a ledger's file.
            digest: the plan's; None accepts any.

        Raises:
            InputError: the file is missing, is no ledger of a run, is damaged or edited, has
                another format version, belongs to another plan, or is in use by another process.
        """
        with _opening(path) as connection:
            runs = connection.execute(RUNS).fetchall()
            if len(runs) != 1:
                raise InputError("ledger", str(path), f"the ledger of one run; it has {len(runs)}")
            ledger = cls(connection, str(path), runs[0][0])
            if digest not in (None, ledger.digest):
                expected = f"the ledger of this plan ({digest}); it is that of {ledger.digest}"
                raise InputError("ledger", str(path), expected)
            return ledger

    @classmethod
    def in_memory(cls, *, digest: str, statements: Sequence[NodeStatement]) -> Self:
        """A run's ledger without a file, for a run without a folder: it dies with the process.

        Raises:
            InputError: the statements are unusable.
        """
        texts = _texts(statements)
        with connecting(":memory:") as connection:
            run = _fill(connection, ":memory:", digest, statements, texts)
            return cls(connection, ":memory:", run)

    @classmethod
    def create_account(cls, path: str | Path, account: Account) -> None:
        """Make the ledger of a node's data, whole or not at all; it does not stay open.

        Args:
            path: a file that does not exist, in a folder that does, on a file system with hard
                links.
            account: the node and the budget of its data.

        Raises:
            InputError: the file exists or cannot be written.
        """
        # A file that is cut short must never pass for a new one, so it appears when it is whole.
        aside = f"{path}.{secrets.token_hex(8)}.new"
        with _plain_os_errors(path):
            os.close(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            try:
                with connecting(aside) as connection:
                    with changing(connection, aside):
                        write_new(connection, [account])
                    connection.close()
                os.link(aside, path)
            finally:
                with suppress(OSError):
                    os.unlink(aside)
            folder = os.open(Path(path).parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    @classmethod
    def open_account(cls, path: str | Path) -> Self:
        """The ledger of a node's data; `enter` says for which run it is to book.

        Raises:
            InputError: the file is missing, is no ledger, is damaged or edited, has another format
                version, or is in use by another process.
        """
        with _opening(path) as connection:
            return cls(connection, str(path), None)

    def enter(
        self, run_id: str, *, digest: str, statements: Mapping[int, Mapping[str, Any]]
    ) -> None:
        """Book for this run from now on; a run that is on file already is continued.

        Args:
            run_id: the identity that its own ledger has.
            digest: of its plan.
            statements: its mechanism at each node of this ledger.

        Raises:
            InputError: the run is on file with another plan or mechanism, or the file cannot be
                written.
        """
        texts = {node: _text(node, statement) for node, statement in statements.items()}
        if sorted(texts) != sorted(self._nodes):
            raise InputError("ledger", list(texts), f"a mechanism for each of {list(self._nodes)}")
        known = {run: (number, plan) for number, run, plan, *_ in self._connection.execute(RUNS)}
        if run_id in known:
            number, plan = known[run_id]
            rows = self._connection.execute(MECHANISMS)
            booked = {node: text for run, node, text in rows if run == number}
            if (plan, booked) != (digest, texts):
                expected = f"the run as it was entered in {self._path}: its plan has changed"
                raise InputError("run", run_id, expected)
            self._run = number
            return
        with changing(self._connection, self._path):
            number = insert_run(self._connection, run_id, digest, texts)
        self._run = number

    @property
    def run_id(self) -> str:
        """Random identity of the run, 32 hexadecimal digits."""
        return self._current().run_id

    @property
    def digest(self) -> str:
        """Digest of the plan that this ledger books for."""
        return self._current().digest

    @property
    def statements(self) -> tuple[NodeStatement, ...]:
        """What each node runs and may spend, by node."""
        booked = self._current().statements
        accounts = self._connection.execute(ACCOUNTS)
        return tuple(NodeStatement(node, booked[node], *budget) for node, *budget in accounts)

    @property
    def nodes(self) -> tuple[int, ...]:
        """The nodes this ledger books for, in order."""
        return self._nodes

    def snapshot(self) -> Snapshot:
        """All that the ledger says now."""
        return snapshot(self._connection)

    def reserve(self, first_step: int, until: int) -> None:
        """Book steps `first_step .. until - 1` for every node, durably, before they are sent.

        Steps that were booked before are booked again: a repeated step is charged twice.

        Raises:
            InputError: the interval is empty or begins below 0, no run was entered, or the file
                cannot be written.
        """
        if not 0 <= first_step < until:
            expected = "steps first_step .. until - 1, at least one, from 0 on"
            raise InputError("ledger", (first_step, until), expected)
        run = self._entered()
        # Sealing the bytes would take as long again: it waits for the settlement.
        with changing(self._connection, self._path, seal=False):
            self._connection.executemany(
                "INSERT INTO block (run, node, session, first_step, reserved_until, digest) "
                "VALUES (?, ?, ?, ?, ?, x'')",
                [(run, node, self._session, first_step, until) for node in self.nodes],
            )

    def settle(self, used_until: int) -> None:
        """Close this session's open blocks at a clean stop: steps from `used_until` on were unused.

        No message of a step >= `used_until` may have left since those blocks were booked. Blocks
        of earlier sessions that were killed stay as they are: they count in full.

        Raises:
            InputError: `used_until` is negative, or the file cannot be written.
        """
        if used_until < 0:
            raise InputError("ledger", used_until, "a number of steps, at least 0")
        with changing(self._connection, self._path):
            self._connection.execute(
                "UPDATE block "
                "SET used_until = max(first_step, min(reserved_until, ?)), digest = x'' "
                "WHERE session = ? AND used_until IS NULL",
                (used_until, self._session),
            )

    def charged(self) -> dict[int, tuple[Interval, ...]]:
        """The run's booked intervals at each node, in the order of booking, repeats included."""
        return dict(self._current().charged)

    def charged_steps(self, node: int) -> tuple[StepRun, ...]:
        """The steps charged to `node` with their multiplicity, for an accountant to compose.

        Raises:
            InputError: the ledger does not book for this node.
        """
        if node not in self.nodes:
            raise InputError("ledger", node, f"one of the ledger's nodes, {list(self.nodes)}")
        return step_runs(self.charged()[node])

    def _entered(self) -> int:
        if self._run is None:
            raise InputError("ledger", self._path, "needs to know which run it books for: enter it")
        return self._run

    def _current(self) -> BookedRun:
        """The run that this ledger books for."""
        number = self._entered()
        rows = self._connection.execute(RUNS).fetchall()
        position = next(place for place, row in enumerate(rows) if row[0] == number)
        return snapshot(self._connection).runs[position]

    def close(self) -> None:
        """Close the file and release the lock; closing twice is harmless."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@contextmanager
def _opening(path: str | Path) -> Iterator[sqlite3.Connection]:
    """A ledger's file, locked and verified."""
    check_exists(path)
    with connecting(str(path)) as connection:
        lock(connection)
        verify(connection, str(path))
        yield connection


@contextmanager
def _plain_os_errors(path: str | Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise InputError("ledger", str(path), "a file that does not exist yet") from None
    except OSError as error:
        expected = f"a file that can be written: {error.strerror}"
        raise InputError("ledger", str(path), expected) from None


def _fill(
    connection: sqlite3.Connection,
    path: str,
    digest: str,
    statements: Sequence[NodeStatement],
    texts: Mapping[int, str],
    run_id: str | None = None,
) -> int:
    """Make a run's ledger of an empty file; gives the run's row."""
    accounts: list[AccountRow] = [(one.node, one.epsilon_budget, one.delta) for one in statements]
    with changing(connection, path):
        write_new(connection, accounts)
        return insert_run(connection, run_id or secrets.token_hex(16), digest, texts)


def _texts(statements: Sequence[NodeStatement]) -> dict[int, str]:
    nodes = [statement.node for statement in statements]
    if not nodes or min(nodes) < 0 or len(set(nodes)) < len(nodes):
        raise InputError("ledger", nodes, "one statement a node, of at least one node, from 0 on")
    return {one.node: _text(one.node, one.statement) for one in statements}


def _text(node: int, statement: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(statement), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        expected = f"a statement that JSON can hold, with finite numbers: {error}"
        raise InputError(f"mechanism of node {node}", statement, expected) from None
