"""The ledger: what each node of a run has spent, on file before a message leaves.

One SQLite file holds the run's identity, each node's mechanism and budget, and the blocks of
steps that were booked. A block is booked durably *before* its first message leaves, and counts in
full until a clean stop settles it. So a process that is killed at any instant may have booked more
than it sent, never less; and anyone can recompute every epsilon from the file alone.

What the file defends against, and what not:

- Two processes at once: an open ledger is locked by the operating system, and the lock dies with
  its process. A *copy* of the file is another ledger: nothing here can tell.
- Damage and careless edits: SQLite's own check and digests of the values and of the file's bytes
  are verified when a ledger is opened. They have no secret: whoever has this code can forge a
  ledger that opens.

While a ledger is open, do not open its file by other means in the same process: on POSIX systems,
closing that second handle would release the lock.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from tacit.errors import InputError
from tacit.privacy.ledger_file import (
    FORMAT_VERSION,
    MECHANISMS,
    META,
    MechanismRow,
    changing,
    connecting,
    lock,
    verify,
    write_new,
)

__all__ = ["FORMAT_VERSION", "Interval", "Ledger", "NodeStatement", "StepRun", "step_runs"]


@dataclass(frozen=True)
class NodeStatement:
    """What one node runs and may spend.

    Args:
        node: its number, at least 0.
        statement: its mechanism as data that JSON can hold, enough to recompute its epsilon.
        epsilon_budget: the most it may spend; None if it has no budget.
        delta: the delta that its budget goes with; None if it has no budget.
    """

    node: int
    statement: Mapping[str, object]
    epsilon_budget: float | None
    delta: float | None


class Interval(NamedTuple):
    """Steps `first .. until - 1`, charged once."""

    first: int
    until: int


class StepRun(NamedTuple):
    """Steps `first .. until - 1`, each charged `times` times."""

    first: int
    until: int
    times: int


def step_runs(intervals: Iterable[Interval]) -> tuple[StepRun, ...]:
    """The steps of possibly overlapping intervals with their multiplicity, in order.

    The result is disjoint, and neighbours that touch differ in `times`.
    """
    change: defaultdict[int, int] = defaultdict(int)
    for first, until in intervals:
        change[first] += 1
        change[until] -= 1
    runs: list[StepRun] = []
    times = begin = 0
    for step in sorted(step for step, by in change.items() if by):
        if times:
            runs.append(StepRun(begin, step, times))
        times += change[step]
        begin = step
    return tuple(runs)


class Ledger:
    """The open ledger of a run; made by `create`, `open` or `in_memory`, closed by `close`.

    It is a context manager. Leaving it closes the file and settles nothing: blocks that were not
    settled count in full.
    """

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        """Take over a connection whose content is verified; use the class methods instead."""
        self._connection = connection
        self._path = path
        self._meta: dict[str, str] = dict(connection.execute(META).fetchall())
        self._statements = tuple(
            NodeStatement(node, json.loads(text), budget, delta)
            for node, text, budget, delta in connection.execute(MECHANISMS)
        )
        (last,) = connection.execute("SELECT max(session) FROM block").fetchone()
        self._session = 1 if last is None else last + 1

    @classmethod
    def create(cls, path: str | Path, *, digest: str, statements: Sequence[NodeStatement]) -> Self:
        """A new ledger in a new file, durable when this returns.

        Args:
            path: a file that does not exist, in a folder that does.
            digest: identifies the plan: a ledger is only ever continued under the same one.
            statements: one for each node that this ledger books for.

        Raises:
            InputError: the file exists or cannot be written, or the statements are unusable.
        """
        rows = _mechanism_rows(statements)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644))
        except FileExistsError:
            raise InputError("ledger", str(path), "a file that does not exist yet") from None
        except OSError as error:
            expected = f"a file that can be written: {error.strerror}"
            raise InputError("ledger", str(path), expected) from None
        with connecting(str(path)) as connection:
            lock(connection)
            write_new(connection, str(path), digest, rows)
            return cls(connection, str(path))

    @classmethod
    def open(cls, path: str | Path, *, digest: str | None) -> Self:
        """The ledger of an earlier session, to be continued or to be read.

        Args:
            path: a ledger's file.
            digest: the plan's; None accepts any, for a reader who recomputes what was spent.

        Raises:
            InputError: the file is missing, is no ledger, is damaged or edited, has another format
                version, belongs to another plan, or is in use by another process.
        """
        if not Path(path).is_file():
            raise InputError("ledger", str(path), "the file of an existing ledger")
        with connecting(str(path)) as connection:
            lock(connection)
            verify(connection, str(path))
            ledger = cls(connection, str(path))
            if digest not in (None, ledger.digest):
                expected = f"the ledger of this plan ({digest}); it is that of {ledger.digest}"
                raise InputError("ledger", str(path), expected)
            return ledger

    @classmethod
    def in_memory(cls, *, digest: str, statements: Sequence[NodeStatement]) -> Self:
        """A ledger without a file, for a run without a folder: it dies with the process.

        Raises:
            InputError: the statements are unusable.
        """
        rows = _mechanism_rows(statements)
        with connecting(":memory:") as connection:
            write_new(connection, ":memory:", digest, rows)
            return cls(connection, ":memory:")

    @property
    def run_id(self) -> str:
        """Random identity of the run, 32 hexadecimal digits."""
        return self._meta["run_id"]

    @property
    def digest(self) -> str:
        """Digest of the plan that this ledger books for."""
        return self._meta["digest"]

    @property
    def statements(self) -> tuple[NodeStatement, ...]:
        """What each node runs and may spend, by node."""
        return self._statements

    @property
    def nodes(self) -> tuple[int, ...]:
        """The nodes this ledger books for, in order."""
        return tuple(statement.node for statement in self._statements)

    def reserve(self, first_step: int, until: int) -> None:
        """Book steps `first_step .. until - 1` for every node, durably, before they are sent.

        Steps that were booked before are booked again: a repeated step is charged twice.

        Raises:
            InputError: the interval is empty or begins below 0, or the file cannot be written.
        """
        if not 0 <= first_step < until:
            expected = "steps first_step .. until - 1, at least one, from 0 on"
            raise InputError("ledger", (first_step, until), expected)
        with changing(self._connection, self._path):
            self._connection.executemany(
                "INSERT INTO block (node, session, first_step, reserved_until, digest) "
                "VALUES (?, ?, ?, ?, x'')",
                [(node, self._session, first_step, until) for node in self.nodes],
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
        """The booked intervals of each node, in the order of booking, repeats included."""
        intervals: dict[int, list[Interval]] = {node: [] for node in self.nodes}
        rows = self._connection.execute(
            "SELECT node, first_step, ifnull(used_until, reserved_until) FROM block ORDER BY id"
        )
        for node, first, until in rows:
            if first < until:
                intervals[node].append(Interval(first, until))
        return {node: tuple(booked) for node, booked in intervals.items()}

    def charged_steps(self, node: int) -> tuple[StepRun, ...]:
        """The steps charged to `node` with their multiplicity, for an accountant to compose.

        Raises:
            InputError: the ledger does not book for this node.
        """
        if node not in self.nodes:
            raise InputError("ledger", node, f"one of the ledger's nodes, {list(self.nodes)}")
        return step_runs(self.charged()[node])

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


def _mechanism_rows(
    statements: Sequence[NodeStatement],
) -> list[MechanismRow]:
    nodes = [statement.node for statement in statements]
    if not nodes or min(nodes) < 0 or len(set(nodes)) < len(nodes):
        raise InputError("ledger", nodes, "one statement a node, of at least one node, from 0 on")
    rows = []
    for one in statements:
        try:
            text = json.dumps(dict(one.statement), sort_keys=True, allow_nan=False)
        except (TypeError, ValueError) as error:
            expected = f"a statement that JSON can hold, with finite numbers: {error}"
            raise InputError(f"mechanism of node {one.node}", one.statement, expected) from None
        rows.append((one.node, text, one.epsilon_budget, one.delta))
    return rows
