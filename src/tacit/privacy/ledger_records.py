"""What a ledger says, as plain records, and how they are read from its file."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tacit.errors import InputError
from tacit.privacy.ledger_file import ACCOUNTS, MECHANISMS, META, RUNS, connecting, verify

__all__ = [
    "Account",
    "BookedRun",
    "Interval",
    "NodeStatement",
    "Snapshot",
    "StepRun",
    "check_exists",
    "read_ledger",
    "snapshot",
    "step_runs",
]


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
    statement: Mapping[str, Any]
    epsilon_budget: float | None
    delta: float | None


class Account(NamedTuple):
    """A node's data and the budget they have."""

    node: int
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


@dataclass(frozen=True)
class BookedRun:
    """A run on the books.

    Args:
        run_id: its random identity, 32 hexadecimal digits.
        digest: of its plan.
        created: when it was entered, ISO 8601, UTC.
        tacit_version: of the software that entered it.
        statements: its mechanism at each node.
        charged: the booked intervals of each node, in the order of booking, repeats included.
    """

    run_id: str
    digest: str
    created: str
    tacit_version: str
    statements: Mapping[int, Mapping[str, Any]]
    charged: Mapping[int, tuple[Interval, ...]]


@dataclass(frozen=True)
class Snapshot:
    """All that a ledger says, at one moment.

    Args:
        created: when the file was made, ISO 8601, UTC.
        tacit_version: of the software that made it.
        head: digest of every value in the file, hexadecimal.
        accounts: by node.
        runs: in the order in which they were entered.
    """

    created: str
    tacit_version: str
    head: str
    accounts: tuple[Account, ...]
    runs: tuple[BookedRun, ...]


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


def read_ledger(path: str | Path) -> Snapshot:
    """All that a ledger file says, verified; the file is not kept open.

    Raises:
        InputError: the file is missing, is no ledger, is damaged or edited, has another format
            version, or is in use: a run that goes on is not disturbed.
    """
    check_exists(path)
    with connecting(str(path)) as connection:
        connection.execute("BEGIN")
        verify(connection, str(path))
        found = snapshot(connection)
        connection.close()
        return found


def snapshot(connection: sqlite3.Connection) -> Snapshot:
    """All that an open, verified ledger says."""
    meta = dict(connection.execute(META).fetchall())
    accounts = tuple(Account(*row) for row in connection.execute(ACCOUNTS))
    ((head,),) = connection.execute("SELECT value FROM meta WHERE key = 'head'").fetchall()
    statements: dict[int, dict[int, Any]] = defaultdict(dict)
    for run, node, text in connection.execute(MECHANISMS):
        statements[run][node] = json.loads(text)
    charged: dict[tuple[int, int], list[Interval]] = defaultdict(list)
    for run, node, first, until in connection.execute(
        "SELECT run, node, first_step, ifnull(used_until, reserved_until) FROM block ORDER BY id"
    ):
        if first < until:
            charged[run, node].append(Interval(first, until))
    runs = tuple(
        BookedRun(
            run_id=run_id,
            digest=digest,
            created=created,
            tacit_version=version,
            statements=statements[run],
            charged={node: tuple(charged[run, node]) for node in statements[run]},
        )
        for run, run_id, digest, created, version in connection.execute(RUNS)
    )
    return Snapshot(meta["created"], meta["tacit_version"], head, accounts, runs)


def check_exists(path: str | Path) -> None:
    """Raise InputError where there is no file to open: SQLite would make one."""
    if not Path(path).is_file():
        raise InputError("ledger", str(path), "the file of an existing ledger")
