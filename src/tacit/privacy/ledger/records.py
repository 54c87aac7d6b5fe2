"""What a ledger says, as plain records, and how they are read from its file."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tacit.errors import InputError
from tacit.privacy.ledger.file import Log, connecting, verified

__all__ = [
    "Account",
    "BookedRun",
    "DataAccount",
    "Interval",
    "NodeStatement",
    "Snapshot",
    "StepRun",
    "check_exists",
    "data_name",
    "lacking_steps",
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
    """A node of a run and the budget that it has there."""

    node: int
    epsilon_budget: float | None
    delta: float | None


class DataAccount(NamedTuple):
    """A node's data and the budget they have, whichever number the node has.

    Args:
        name: digest of the data's set of records, hexadecimal.
        records: how many they are.
        epsilon_budget: the most that may be spent of them.
        delta: the delta that the budget goes with.
    """

    name: str
    records: int
    epsilon_budget: float
    delta: float


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
        public_key: with which its signature is checked, hexadecimal.
        heads: the head of the chain after each entry, hexadecimal; the last one stands for all.
        accounts: of a run's ledger, by node.
        data: of a ledger of data, whose they are.
        digests: of its records, 64 bits each, little-endian, ascending.
        runs: in the order in which they were entered.
        sessions: how many sessions have booked.
    """

    created: str
    tacit_version: str
    public_key: str
    heads: tuple[str, ...]
    accounts: tuple[Account, ...]
    data: DataAccount | None
    digests: bytes
    runs: tuple[BookedRun, ...]
    sessions: int

    @property
    def head(self) -> str:
        """The digest that stands for everything in the ledger, hexadecimal."""
        return self.heads[-1]


def step_runs(intervals: Iterable[tuple[int, int]]) -> tuple[StepRun, ...]:
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


def lacking_steps(intervals: Iterable[tuple[int, int]], until: int) -> int:
    """How many of the steps `0 .. until - 1` are in none of the intervals."""
    runs = step_runs(intervals)
    return until - sum(min(run.until, until) - run.first for run in runs if run.first < until)


def read_ledger(path: str | Path) -> Snapshot:
    """All that a ledger file says, verified; the file is not kept open.

    Raises:
        InputError: the file is missing, is no ledger, is damaged or edited, has another format
            version, or is in use: a run that goes on is not disturbed.
    """
    check_exists(path)
    with connecting(str(path)) as connection:
        connection.execute("BEGIN")
        content = snapshot(verified(connection, str(path)), str(path))
        connection.close()
        return content


@dataclass
class _Block:
    run: str
    session: int
    first: int
    until: int
    settled: bool = False


def snapshot(log: Log, path: str) -> Snapshot:
    """What the entries of a verified ledger come to.

    Args:
        log: what is in its file.
        path: of the file, for messages.

    Raises:
        InputError: an entry is none that this version writes.
    """
    first, *entries = log.entries
    try:
        of_kind: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for entry in entries:
            of_kind[entry["kind"]].append(entry)
        charged = _charged(entries)
        runs = tuple(
            _booked(entry, tuple(charged.get(entry["run"], ()))) for entry in of_kind["run"]
        )
        sessions = [entry["session"] for entry in of_kind["reserve"]]
        rows = (
            Account(row["node"], row["epsilon_budget"], row["delta"]) for row in of_kind["account"]
        )
        data = [
            DataAccount(row["name"], row["records"], row["epsilon_budget"], row["delta"])
            for row in of_kind["data"]
        ]
        current = Snapshot(
            created=first["created"],
            tacit_version=first["tacit_version"],
            public_key=first["public_key"],
            heads=log.heads,
            accounts=tuple(sorted(rows)),
            data=data[0] if data else None,
            digests=log.records,
            runs=runs,
            sessions=max(sessions, default=0),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        expected = f"a whole ledger: {type(error).__name__}: {error}"
        raise InputError("ledger", path, expected) from None
    if current.data is not None and current.data.name != data_name(log.records):
        raise InputError("ledger", path, "an unedited ledger: its records were changed")
    return current


def data_name(digests: bytes) -> str:
    """The name of a set of records: a digest of theirs, which are ascending; hexadecimal."""
    return hashlib.blake2b(digests, digest_size=16).hexdigest()


def _charged(entries: Iterable[Mapping[str, Any]]) -> dict[str, list[Interval]]:
    """The intervals that each run was charged: all that was booked, but for what was settled."""
    blocks: list[_Block] = []
    for entry in entries:
        if entry["kind"] == "reserve":
            steps = entry["first"], entry["until"]
            blocks.append(_Block(entry["run"], entry["session"], *steps))
        elif entry["kind"] == "settle":
            for block in blocks:
                if block.session == entry["session"] and not block.settled:
                    block.until = max(block.first, min(block.until, entry["until"]))
                    block.settled = True
    intervals: dict[str, list[Interval]] = defaultdict(list)
    for block in blocks:
        if block.first < block.until:
            intervals[block.run].append(Interval(block.first, block.until))
    return intervals


def _booked(entry: Mapping[str, Any], charged: tuple[Interval, ...]) -> BookedRun:
    statements = {int(node): statement for node, statement in entry["mechanisms"].items()}
    return BookedRun(
        run_id=entry["run"],
        digest=entry["digest"],
        created=entry["created"],
        tacit_version=entry["tacit_version"],
        statements=dict(sorted(statements.items())),
        charged=dict.fromkeys(sorted(statements), charged),
    )


def check_exists(path: str | Path) -> None:
    """Raise InputError where there is no file to open: SQLite would make one."""
    if not Path(path).is_file():
        raise InputError("ledger", str(path), "the file of an existing ledger")
