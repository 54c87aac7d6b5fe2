"""The ledger: what each node has spent, on file before a message leaves.

One SQLite file holds accounts with their budgets, runs with the mechanism that each node releases,
and the blocks of steps that were reserved. It is used in two ways:

- the ledger of *a run*: one run, one account for each node of the process (`Ledger.create`);
- the ledger of *data*, which outlives runs: the account of a source, the digests of its records,
  one run after the other (`Ledger.create_account`, `Ledger.open_account`, `Ledger.enter`).

A block is reserved durably *before* its first message leaves, and counts in full until a clean stop
settles it. So a process that is killed at any instant may have reserved more than it sent, never
less; and anyone can recompute every epsilon from the file alone.

What the file defends against, and what not:

- Two processes at once: an open ledger is locked by the operating system, and the lock dies with
  its process. A *copy* of the file is another ledger: nothing here can tell.
- Damage and edits: entries are only ever added, each with a digest of all before it, and the last
  digest is signed with a key beside the file. Nobody without that key can change what is written.
  Who has it (whoever may read the owner's private files) can.
- An older copy put in the ledger's place: it is sound by itself. Who kept a later head of the
  chain, as every statement does, finds that the copy lacks it.

While a ledger is open, do not open its file by other means in the same process: on POSIX systems,
closing that second handle would release the lock.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from tacit.base.plain_files import check_plain
from tacit.errors import InputError
from tacit.privacy.ledger.file import (
    LedgerKey,
    Log,
    append,
    connecting,
    entered,
    fill,
    find_key,
    lock,
    make_key,
    new_key,
    read_log,
    verified,
    write_new,
    write_records,
)


@dataclass(frozen=True)
class NodeStatement:
    """What one node runs and may spend."""

    node: int  # its number, at least 0
    # Its mechanism as data that JSON can hold, enough to recompute its epsilon.
    statement: Mapping[str, Any]
    epsilon_budget: float | None  # the most it may spend; None if it has no budget
    delta: float | None  # the delta that its budget goes with; None if it has no budget


class Account(NamedTuple):
    """A node of a run and the budget that it has there."""

    node: int
    epsilon_budget: float | None
    delta: float | None


class DataAccount(NamedTuple):
    """A source of records and the budget it has: public, whatever its records are."""

    source: str
    # The lowest node that the process had which made the file; processes of one run that share a
    # source have a file each.
    first: int
    epsilon_budget: float  # the most that may be spent of it
    delta: float  # the delta that the budget goes with


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
class EnteredRun:
    """A run in the ledger."""

    run_id: str  # its random identity, 32 hexadecimal digits
    digest: str  # of its plan
    created: str  # when it was entered, ISO 8601, UTC
    tacit_version: str
    statements: Mapping[int, Mapping[str, Any]]  # its mechanism at each node
    # The reserved intervals of each node, in the order of reservation, repeats included.
    charged: Mapping[int, tuple[Interval, ...]]
    # Whether its nodes hold different records of a source, since tacit has divided them.
    apart: bool = True
    # What its epsilon was of, as `privacy.unit` says: a record, or whoever a column names.
    unit: str = "record"
    # Steps that are charged and were not sent, where the last session ended with a stop that kept
    # them charged (`Ledger.settle`): whoever goes on has paid for them.
    unsent: Interval | None = None


@dataclass(frozen=True)
class Snapshot:
    """All that a ledger says, at one moment."""

    created: str  # when the file was made, ISO 8601, UTC
    tacit_version: str
    public_key: str  # with which its signature is checked, hexadecimal
    # The head of the chain after each entry, hexadecimal; the last one stands for all.
    heads: tuple[str, ...]
    accounts: tuple[Account, ...]  # of a run's ledger, by node
    data: DataAccount | None  # of a ledger of data, whose they are
    digests: bytes  # of its records, 64 bits each, little-endian, ascending
    runs: tuple[EnteredRun, ...]  # in the order in which they were entered
    sessions: int  # how many sessions have reserved

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
    _check_exists(path)
    with connecting(str(path)) as connection:
        connection.execute("BEGIN")
        content = snapshot(verified(connection, str(path)), str(path))
        connection.close()
        return content


def snapshot(log: Log, path: str) -> Snapshot:
    """What the entries of a verified ledger come to; the path is for messages.

    Raises:
        InputError: an entry is none that this version writes.
    """
    first, *entries = log.entries
    try:
        of_kind: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for entry in entries:
            of_kind[entry["kind"]].append(entry)
        charged, unsent = _charged(entries)
        runs = tuple(
            _entered_run(entry, tuple(charged.get(entry["run"], ())), unsent.get(entry["run"]))
            for entry in of_kind["run"]
        )
        sessions = [entry["session"] for entry in of_kind["reserve"]]
        rows = (Account(*row) for entry in of_kind["accounts"] for row in entry["accounts"])
        data = [
            DataAccount(row["source"], row["first"], row["epsilon_budget"], row["delta"])
            for row in of_kind["data"]
        ]
        return Snapshot(
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


def _charged(
    entries: Iterable[Mapping[str, Any]],
) -> tuple[dict[str, list[Interval]], dict[str, Interval]]:
    """Of each run what was reserved, but for what was settled; and what nobody has sent since.

    The latter are the steps that its last stop kept charged.
    """
    blocks: list[tuple[str, Interval]] = []
    unsettled: dict[int, list[int]] = defaultdict(list)  # places of a session's blocks
    unsent: dict[str, Interval] = {}
    for entry in entries:
        if entry["kind"] in ("reserve", "use"):
            unsent.pop(entry["run"], None)
        if entry["kind"] == "reserve":
            unsettled[entry["session"]].append(len(blocks))
            blocks.append((entry["run"], Interval(entry["first"], entry["until"])))
        elif entry["kind"] == "settle":
            for at in unsettled.pop(entry["session"], ()):
                run, (first, until) = blocks[at]
                blocks[at] = run, Interval(first, max(first, min(until, entry["until"])))
            if "sent" in entry:
                unsent[entry["run"]] = Interval(entry["sent"], entry["until"])
    charged: dict[str, list[Interval]] = defaultdict(list)
    for run, block in blocks:
        if block.first < block.until:
            charged[run].append(block)
    return charged, unsent


def _entered_run(
    entry: Mapping[str, Any], charged: tuple[Interval, ...], unsent: Interval | None
) -> EnteredRun:
    statements = {node: statement for statement, nodes in entry["mechanisms"] for node in nodes}
    return EnteredRun(
        run_id=entry["run"],
        digest=entry["digest"],
        created=entry["created"],
        tacit_version=entry["tacit_version"],
        statements=dict(sorted(statements.items())),
        charged=dict.fromkeys(sorted(statements), charged),
        apart=entry.get("apart", True),
        unit=entry.get("unit", "record"),
        unsent=unsent,
    )


def _check_exists(path: str | Path) -> None:
    """Raise InputError where there is no file to open (SQLite would make one), or a huge one."""
    try:
        check_plain(path)
    except OSError as error:
        reason = "there is no file" if isinstance(error, FileNotFoundError) else error.strerror
        expected = f"{reason}: must be the file of an existing ledger"
        raise InputError("ledger", str(path), expected) from None


class Ledger(AbstractContextManager["Ledger"]):
    """An open ledger, closed by `close`.

    It is a context manager. Leaving it closes the file and settles nothing: blocks that were not
    settled count in full.
    """

    def __init__(
        self, connection: sqlite3.Connection, path: str, key: LedgerKey, run_id: str | None
    ) -> None:
        """Take over a connection whose content is verified; use the class methods instead.

        The ledger is locked unless it is in memory; its path is for messages. `run_id` is that of
        the run that it reserves for; None until `enter` says.
        """
        self._connection = connection
        self._path = path
        self._key = key
        self._run_id = run_id
        self._log: Log | None = None
        self._session = self.snapshot().sessions + 1

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        digest: str,
        statements: Sequence[NodeStatement],
        run_id: str | None = None,
    ) -> Self:
        """A new ledger of a run in a new file, whole or not at all, durable when this returns.

        Args:
            path: a file that does not exist, in a folder that does, on a file system with hard
                links. The key that signs it lies beside it, and is made if there is none.
            digest: identifies the plan: a run is only ever continued under the same one.
            statements: one for each node of this ledger.
            run_id: of the run, where several ledgers are of one; by default a new one.

        Raises:
            InputError: the file exists or cannot be written, or the statements are unusable.
        """
        entries = _run_entries(digest, statements, run_id or secrets.token_hex(16))
        with _plain_os_errors(path):
            if Path(path).exists():
                raise FileExistsError
            write_new(Path(path), make_key(Path(path).parent), entries)
        return cls.open(path, digest=digest)

    @classmethod
    def open(cls, path: str | Path, *, digest: str | None) -> Self:
        """The ledger of a run's earlier session, to be continued.

        The digest is the plan's; None accepts any.

        Raises:
            InputError: the file or its key is missing, is no ledger of a run, is damaged or edited,
                has another format version, belongs to another plan, or is in use by another
                process.
        """
        ledger = cls.open_account(path)
        try:
            runs = ledger.snapshot().runs
            if len(runs) != 1:
                raise InputError("ledger", str(path), f"the ledger of one run; it has {len(runs)}")
            if digest not in (None, runs[0].digest):
                expected = f"the ledger of this plan ({digest}); it is that of {runs[0].digest}"
                raise InputError("ledger", str(path), expected)
            ledger._run_id = runs[0].run_id
        except BaseException:
            ledger.close()
            raise
        return ledger

    @classmethod
    def in_memory(cls, *, digest: str, statements: Sequence[NodeStatement]) -> Self:
        """A run's ledger without a file, for a run without a folder: it dies with the process.

        Raises:
            InputError: the statements are unusable.
        """
        run_id = secrets.token_hex(16)
        entries = _run_entries(digest, statements, run_id)
        with connecting(":memory:") as connection:
            key = new_key()
            fill(connection, ":memory:", key, entries)
            return cls(connection, ":memory:", key, run_id)

    @classmethod
    def create_account(cls, path: str | Path, key: LedgerKey, account: DataAccount) -> None:
        """Make the ledger of a source without records, whole or not at all; it does not stay open.

        The file must not exist, but its folder must, on a file system with hard links. The key
        signs it.

        Raises:
            InputError: the file exists or cannot be written.
        """
        entry = {"kind": "data", **account._asdict()}
        with _plain_os_errors(path):
            write_new(Path(path), key, [entry])

    @classmethod
    def open_account(cls, path: str | Path) -> Self:
        """A ledger; where it is one of data, `enter` says of which run it is.

        Raises:
            InputError: the file or its key is missing, is no ledger, is damaged or edited, has
                another format version, or is in use by another process.
        """
        _check_exists(path)
        with connecting(str(path)) as connection:
            lock(connection)
            snapshot(verified(connection, str(path)), str(path))
            key = find_key(Path(path).parent)
            if key is None:
                expected = "a ledger with its key beside it: without it nothing can be reserved"
                raise InputError("ledger", str(path), expected)
            return cls(connection, str(path), key, None)

    def enter(
        self,
        run_id: str,
        *,
        digest: str,
        statements: Mapping[int, Mapping[str, Any]],
        apart: bool = True,
        unit: str = "record",
        digests: bytes = b"",
    ) -> None:
        """Reserve for this run from now on; a run that is on file already is continued.

        Args:
            run_id: the identity that its own ledger has.
            digest: of its plan.
            statements: its mechanism at each of its nodes that hold these data.
            apart: as in `EnteredRun`.
            unit: likewise.
            digests: of records that belong to the source from now on, as in `Snapshot`.

        Raises:
            InputError: the run is on file with another plan or mechanism, or the file cannot be
                written.
        """
        texts = _all_texts(statements)
        if not texts:
            raise InputError("ledger", list(texts), "a mechanism for each node of these data")
        known = {run.run_id: run for run in self.snapshot().runs}
        write_records(self._connection, self._path, self._key, digests)
        if run_id not in known:
            entry = _run_entry(run_id, digest, statements)
            self._append({**entry, "apart": apart, "unit": unit})
        elif (known[run_id].digest, _all_texts(known[run_id].statements)) != (digest, texts):
            expected = f"the run as it was entered in {self._path}: its plan has changed"
            raise InputError("run", run_id, expected)
        self._run_id = run_id

    @property
    def run_id(self) -> str:
        """Random identity of the run, 32 hexadecimal digits."""
        return self._entered()

    @property
    def digest(self) -> str:
        """Digest of the plan of this ledger."""
        return self._current().digest

    @property
    def statements(self) -> tuple[NodeStatement, ...]:
        """What each node runs and may spend, by node."""
        reserved = self._current().statements
        accounts = self.snapshot().accounts
        return tuple(NodeStatement(node, reserved[node], *budget) for node, *budget in accounts)

    @property
    def nodes(self) -> tuple[int, ...]:
        """The nodes of this ledger, in order."""
        return tuple(self._current().statements)

    def snapshot(self) -> Snapshot:
        """All that the ledger says now."""
        log = read_log(self._connection, self._log)
        if log is not self._log:
            self._log, self._snapshot = log, snapshot(log, self._path)
        return self._snapshot

    def reserve(self, first_step: int, until: int) -> None:
        """Reserve steps `first_step .. until - 1` for every node, durably, before they are sent.

        Steps that were reserved before are reserved again: a repeated step is charged twice.

        Raises:
            InputError: the interval is empty or begins below 0, no run was entered, or the file
                cannot be written.
        """
        if not 0 <= first_step < until:
            expected = "steps first_step .. until - 1, at least one, from 0 on"
            raise InputError("ledger", (first_step, until), expected)
        steps = {"session": self._session, "first": first_step, "until": until}
        # Sealing the bytes would take as long again: it waits for the settlement.
        self._append({"kind": "reserve", "run": self._entered(), **steps}, seal=False)

    def settle(self, used_until: int, charged_until: int | None = None) -> None:
        """Close this session's open blocks at a clean stop: steps from `used_until` on were unused.

        No message of a step >= `used_until` may have left since those blocks were reserved. Blocks
        of earlier sessions that were killed stay as they are: they count in full.

        Args:
            used_until: the first step that was not sent.
            charged_until: where the stop was chosen by what was released: up to which step the run
                stays charged. All steps up to it must have been reserved. None: `used_until`.

        Raises:
            InputError: a number is negative or out of order, or the file cannot be written.
        """
        if used_until < 0:
            raise InputError("ledger", used_until, "a number of steps, at least 0")
        if charged_until is None or charged_until == used_until:
            self._append({"kind": "settle", "session": self._session, "until": used_until})
            return
        lacking = max(
            lacking_steps(intervals, charged_until) for intervals in self.charged().values()
        )
        if charged_until < used_until or lacking:
            expected = f"steps that are reserved, and at least {used_until}; {lacking} are not"
            raise InputError("ledger", charged_until, expected)
        kept = {"until": charged_until, "sent": used_until, "run": self._entered()}
        self._append({"kind": "settle", "session": self._session, **kept})

    def use(self) -> None:
        """Say that steps which a stop had kept charged are sent from now on; durably, before.

        Raises:
            InputError: no run was entered, or the file cannot be written.
        """
        self._append({"kind": "use", "session": self._session, "run": self._entered()})

    def charged(self) -> dict[int, tuple[Interval, ...]]:
        """The run's reserved intervals at each node, in order, repeats included."""
        return dict(self._current().charged)

    @property
    def unsent(self) -> Interval | None:
        """The steps of the run that are charged and were not sent; see `EnteredRun`."""
        return self._current().unsent

    def _append(self, entry: Mapping[str, Any], *, seal: bool = True) -> None:
        append(self._connection, self._path, self._key, [entry], seal=seal)

    def _entered(self) -> str:
        if self._run_id is None:
            raise InputError("ledger", self._path, "needs to know of which run it is: enter it")
        return self._run_id

    def _current(self) -> EnteredRun:
        """The run of this ledger."""
        run_id = self._entered()
        return next(run for run in self.snapshot().runs if run.run_id == run_id)

    def close(self) -> None:
        """Close the file and release the lock; closing twice is harmless."""
        self._connection.close()

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def _plain_os_errors(path: str | Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise InputError("ledger", str(path), "a file that does not exist yet") from None
    except OSError as error:
        expected = f"a file that can be written: {error.strerror}"
        raise InputError("ledger", str(path), expected) from None


def _run_entries(
    digest: str, statements: Sequence[NodeStatement], run_id: str
) -> list[dict[str, Any]]:
    """What a run's ledger begins with: the accounts of its nodes, and the run."""
    nodes = [statement.node for statement in statements]
    if not nodes or min(nodes) < 0 or len(set(nodes)) < len(nodes):
        raise InputError("ledger", nodes, "one statement a node, of at least one node, from 0 on")
    accounts = [(each.node, each.epsilon_budget, each.delta) for each in statements]
    run = _run_entry(run_id, digest, {each.node: each.statement for each in statements})
    return [{"kind": "accounts", "accounts": accounts}, run]


def _run_entry(
    run_id: str, digest: str, statements: Mapping[int, Mapping[str, Any]]
) -> dict[str, Any]:
    alike: dict[str, list[int]] = defaultdict(list)  # each is written once, with its nodes
    for node, text in _all_texts(statements).items():
        alike[text].append(node)
    mechanisms = [(dict(statements[nodes[0]]), nodes) for nodes in alike.values()]
    return {"kind": "run", "run": run_id, "digest": digest, "mechanisms": mechanisms, **entered()}


def _all_texts(statements: Mapping[int, Mapping[str, Any]]) -> dict[int, str]:
    """Each node's mechanism in JSON; raises InputError where JSON cannot hold it."""
    texts, known = {}, dict[int, str]()  # the text of one object is one
    for node, statement in statements.items():
        try:
            if id(statement) not in known:
                known[id(statement)] = json.dumps(dict(statement), sort_keys=True, allow_nan=False)
            texts[node] = known[id(statement)]
        except (TypeError, ValueError) as error:
            expected = f"a statement that JSON can hold, with finite numbers: {error}"
            raise InputError(f"mechanism of node {node}", statement, expected) from None
    return texts
