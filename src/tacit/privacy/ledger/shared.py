"""The ledgers of data: a folder with the accounts of sources, which outlives every run.

A *source* is a set of records with a public name. It has one budget, and what a run releases of
some of its records is charged to all of them alike: whether a run is admitted, and what it costs,
follows from names and plans, never from a record. In the folder lie `data-NAME.sqlite`, the files
of the sources, and the key `ledger.key`, without which no record can be told from another.

*What records are for*: a file knows those of its source by keyed digests, and persons by those of
their ids, if a run has them: what is said of a record here holds of a person as well. Each node
says which sources its records are of; where one is held by a source that it does not name, it may
not take part (`SharedLedgers.strangers`). So every source that holds a record has paid for every
run that the record was in (the theorem of docs/proofs/ledgers.md). That a node does not take part
is all that others learn of this, and what they are told is the same as of a budget that is used up.

*Who may draw on them*: of runs on one source, one at a time. From before it looks through the
ledgers until it ends, each process keeps a file `in-use-*` in the folder with its sources and the
digests of all their records, which counts for as long as the process lives (the operating system's
lock on it ends with the process). Processes of one run, which say the same session, do not hinder
each other.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from tacit.base.private_files import make_private_folder, new_private_file
from tacit.errors import InputError
from tacit.privacy.ledger.file import KEY_FILE, LedgerKey, find_key, make_key
from tacit.privacy.ledger.ledger import DataAccount, Interval, Ledger, Snapshot, read_ledger

_WAIT = 60.0  # seconds; an admission takes as long as to read the ledgers
_PAUSE = 0.02
_LOCK = "admission.lock"
_PREFIX = "in-use-"


@dataclass(frozen=True, eq=False)
class _InUse:
    """What a process draws on."""

    session: str  # of its run, the same in all processes of it
    nodes: frozenset[int]  # of the run, which this process has
    apart: bool  # as in `SharedLedgers.open`
    files: frozenset[str]  # that it writes
    held: Mapping[str, NDArray[np.uint64]]  # digests of the records of each source, `[records]`


@contextmanager
def admission(folder: Path) -> Iterator[None]:
    """One process at a time; others wait.

    Raises:
        InputError: another one takes too long, or the folder cannot be written.
    """
    path = folder / _LOCK
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InputError("privacy.ledger", str(folder), _unusable(error)) from None
    try:
        end = time.monotonic() + _WAIT
        while not _locked(descriptor):
            if time.monotonic() > end:
                expected = "ledgers that no other process is looking through: one has for a minute"
                raise InputError("privacy.ledger", str(folder), expected)
            time.sleep(_PAUSE)
        yield
    finally:
        os.close(descriptor)


def _in_use(folder: Path) -> list[_InUse]:
    """What living processes draw on; to be asked within `admission`.

    Files of processes that have died are removed.
    """
    processes = []
    for path in sorted(folder.glob(f"{_PREFIX}*")):
        try:
            file = path.open("r+b")
        except FileNotFoundError:  # it has just ended
            continue
        with file:
            if _locked(file.fileno()):
                path.unlink(missing_ok=True)
                continue
            head, _, digests = file.read().partition(b"\n")
        said = json.loads(head)
        ends = np.cumsum([count for _, count in said["held"]])
        parts = np.split(np.frombuffer(digests, "<u8").astype(np.uint64), ends[:-1])
        held = {source: part for (source, _), part in zip(said["held"], parts, strict=True)}
        nodes, files = frozenset(said["nodes"]), frozenset(said["files"])
        processes.append(_InUse(said["session"], nodes, said["apart"], files, held))
    return processes


@contextmanager
def _declared(folder: Path, mine: _InUse) -> Iterator[None]:
    """Let others know what this process draws on; to be entered within `admission`.

    Raises:
        InputError: the folder cannot be written.
    """
    path = folder / f"{_PREFIX}{secrets.token_hex(8)}"
    head = {
        "session": mine.session,
        "nodes": sorted(mine.nodes),
        "apart": mine.apart,
        "files": sorted(mine.files),
        "held": [(source, len(digests)) for source, digests in mine.held.items()],
    }
    content = b"".join(digests.astype("<u8").tobytes() for digests in mine.held.values())
    with ExitStack() as stack:
        try:
            file = stack.enter_context(os.fdopen(new_private_file(path), "wb"))
            stack.callback(path.unlink, missing_ok=True)
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(json.dumps(head).encode() + b"\n" + content)
            file.flush()
        except OSError as error:
            raise InputError("privacy.ledger", str(folder), _unusable(error)) from None
        yield


def _locked(descriptor: int) -> bool:
    """Whether the file's lock could be taken, which holds until the descriptor is closed."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unusable(error: OSError) -> str:
    return f"a folder that can be written: {error.strerror}"


_T = TypeVar("_T")
_THREADS = 8  # they wait for the disk, not for a core


@dataclass(frozen=True, eq=False)
class WantedAccount:
    """The budget that a run expects of a node's data."""

    node: int
    # Names of those that its records are of, at least one; records that no source holds yet are the
    # first one's from then on.
    sources: tuple[str, ...]
    # Of its records, and of its units where ids say whose they are, in any order.
    digests: NDArray[np.uint64]
    epsilon: float | None  # what the budget must be; None takes the one on file
    delta: float | None  # likewise
    # The budget of a new file where `epsilon` is None; None: there is none.
    new_epsilon: float | None
    new_delta: float  # likewise


@dataclass(frozen=True)
class Strangers:
    """Records of a node that are of sources which it does not name; for its own eyes."""

    node: int
    records: int  # how many of its different records, units counted beside them
    of: int  # all of these
    sources: tuple[str, ...]  # all that hold records of it, which it would have to name


def account_file(folder: Path, source: str, first: int) -> Path:
    """Where the ledger of a source lies that a process makes whose lowest node there is `first`."""
    name = hashlib.blake2b(f"{first} {source}".encode(), digest_size=8).hexdigest()
    return folder / f"data-{name}.sqlite"


def account_files(folder: Path) -> list[Path]:
    """All ledgers of data in a folder."""
    return sorted(folder.glob("data-*.sqlite"))


def folder_key(folder: Path) -> LedgerKey:
    """The key of a folder of ledgers; folder and key are made if there is none.

    Raises:
        InputError: there are ledgers without their key, or the folder cannot be written.
    """
    if find_key(folder) is None and account_files(folder):
        expected = f"ledgers with their key: without {KEY_FILE} no record can be told from another"
        raise InputError("privacy.ledger", str(folder), expected)
    try:
        make_private_folder(folder)
    except OSError as error:
        expected = f"a folder that can be made: {error.strerror}"
        raise InputError("privacy.ledger", str(folder), expected) from None
    return make_key(folder)


class SharedLedgers(AbstractContextManager["SharedLedgers"]):
    """The ledgers of the sources of a run's nodes, which no other run draws on until it is closed.

    Without nodes it is the shared ledger of a run that has none: it allows and reserves nothing.
    """

    def __init__(self, folder: Path) -> None:
        """Draw on nothing; see `open`."""
        self.folder = folder  # where they lie
        self.apart, self.unit = True, "record"  # as in `open`
        # Of each source: the account that this process writes, the nodes of this process whose
        # records are of it, and what its files said at the start.
        self.accounts: Mapping[str, DataAccount] = {}
        self.nodes: Mapping[str, tuple[int, ...]] = {}
        self.snapshots: Mapping[str, Sequence[Snapshot]] = {}
        self.strangers: Sequence[Strangers] = ()  # nodes that may not take part
        self._new: Mapping[str, NDArray[np.uint64]] = {}
        self._ledgers: dict[str, Ledger] = {}
        self._stack = ExitStack()

    @classmethod
    def open(
        cls,
        folder: Path,
        wanted: Sequence[WantedAccount],
        *,
        session: str,
        apart: bool = False,
        unit: str = "record",
    ) -> Self:
        """Keep other runs from these sources, read what was spent of them, and agree on budgets.

        It makes no account yet, and locks none: processes of one run, which look through the same
        accounts, have all to be here before one of them enters.

        Args:
            folder: of the ledgers; its key must be there.
            wanted: the nodes of this process.
            session: the same for all processes of the run, and for no other run. Processes of one
                run have different nodes.
            apart: whether each record is at one node, since tacit has divided one data set among
                all of them. Else what the nodes of a source release adds up, and all of them are
                in one process.
            unit: what epsilon of the run is of, as in `EnteredRun`.

        Raises:
            InputError: a source is in use, a ledger is damaged or has another budget than is
                wanted, or a new one needs a budget and none was given.
        """
        shared = cls(folder)
        shared.apart, shared.unit = apart, unit
        nodes: dict[str, list[WantedAccount]] = {}
        for node in wanted:
            for source in node.sources:
                nodes.setdefault(source, []).append(node)
        shared.nodes = {source: tuple(one.node for one in ones) for source, ones in nodes.items()}
        numbers = frozenset(one.node for one in wanted)
        with shared._stack as stack:
            with admission(folder):
                others = _in_use(folder)
                _check_free(folder, session, numbers, nodes.keys(), apart, others)
                # What another run writes cannot be read now: it says itself what that holds.
                busy = [other for other in others if other.session != session]
                known = _read_accounts(folder, {name for other in busy for name in other.files})
                shared.accounts = {
                    source: _agreed(source, ones, known.get(source, ()), folder)
                    for source, ones in nodes.items()
                }
                held = [(name, _digests(snapshots)) for name, snapshots in known.items()]
                taken = [pair for other in others for pair in other.held.items()]
                known_now = [*held, *(pair for other in busy for pair in other.held.items())]
                homes = [(one.sources[0], _without(one.digests, known_now)) for one in wanted]
                shared.strangers = _strangers(wanted, [*held, *taken, *homes])
                shared._new = {source: _of(source, homes) for source in nodes}
                mine = {source: _of(source, [*held, *homes]) for source in nodes}
                files = frozenset(shared.file(source).name for source in nodes)
                stack.enter_context(_declared(folder, _InUse(session, numbers, apart, files, mine)))
            shared.snapshots = {source: known.get(source, ()) for source in nodes}
            shared._stack = stack.pop_all()
        return shared

    def file(self, source: str) -> Path:
        """Where this process writes what it draws on a source."""
        return account_file(self.folder, source, self.accounts[source].first)

    def reserved(self, source: str, run_id: str | None) -> tuple[Interval, ...]:
        """What this process's ledger of a source had charged a run at the start."""
        return next(
            (
                run.charged[self.nodes[source][0]]
                for snapshot in self.snapshots[source]
                for run in snapshot.runs
                if run.run_id == run_id and self.nodes[source][0] in run.charged
            ),
            (),
        )

    def entered(self, run_id: str) -> Path | None:
        """The ledger of a source that held a run at the start; None: no ledger here."""
        for source, snapshots in self.snapshots.items():
            if any(run.run_id == run_id for snapshot in snapshots for run in snapshot.runs):
                return self.file(source)
        return None

    def enter(
        self,
        run_id: str,
        *,
        digest: str,
        statements: Mapping[int, Mapping[str, Any]],
        sent: Mapping[int, Sequence[Interval]],
    ) -> None:
        """Enter a run into every ledger, or go on with it where it was entered before.

        `run_id` and `digest` are those of the run's own ledger, `statements` its mechanism at each
        node, and `sent` is what its own ledger has charged each node so far.

        Raises:
            InputError: the run has sent more than is in these ledgers, or a file cannot be written.
        """
        for source, nodes in self.nodes.items():
            # Elsewhere, on other data or on an older copy of its ledger a run must not go on.
            before = max(_steps(sent.get(node, ())) for node in nodes)
            now = _steps(self.reserved(source, run_id))
            if before > now:
                raise InputError(
                    "privacy.ledger",
                    str(self.file(source)),
                    f"the ledgers of this run and of its data: they have {now} of the {before} "
                    "steps that it was charged",
                )
        key = find_key(self.folder)

        def enter(account: DataAccount) -> None:
            source, path = account.source, self.file(account.source)
            if source not in self._ledgers:
                if not path.exists():
                    assert key is not None
                    Ledger.create_account(path, key, account)
                self._ledgers[source] = self._stack.enter_context(Ledger.open_account(path))
            self._ledgers[source].enter(
                run_id,
                digest=digest,
                statements={node: statements[node] for node in self.nodes[source]},
                apart=self.apart,
                unit=self.unit,
                digests=self._new[source].astype("<u8").tobytes(),
            )

        _at_once(enter, self.accounts.values())

    def reserve(self, first_step: int, until: int) -> None:
        """Reserve steps on every ledger, durably; see `Ledger.reserve`."""
        _at_once(lambda ledger: ledger.reserve(first_step, until), self._ledgers.values())

    def settle(self, used_until: int, charged_until: int | None = None) -> None:
        """Give back what was reserved and not used; see `Ledger.settle`."""
        _at_once(lambda ledger: ledger.settle(used_until, charged_until), self._ledgers.values())

    def use(self) -> None:
        """Say that steps which a stop had kept charged are sent from now on; see `Ledger.use`."""
        _at_once(lambda ledger: ledger.use(), self._ledgers.values())

    def unsent(self) -> set[Interval | None]:
        """What each ledger keeps charged of the run and has not sent; see `EnteredRun`."""
        return {ledger.unsent for ledger in self._ledgers.values()}

    def close(self) -> None:
        """Close the files and release their locks; closing twice is harmless."""
        self._stack.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_free(
    folder: Path,
    session: str,
    nodes: frozenset[int],
    sources: Set[str],
    apart: bool,
    others: Sequence[_InUse],
) -> None:
    """Refuse sources that another run draws on now, or a process of this one that may not."""
    for other in others:
        both = sorted(sources & other.held.keys())
        of_one_run = other.session == session and not nodes & other.nodes
        if both and not (of_one_run and apart and other.apart):
            reason = "one that no other run draws on: one is running it now"
            if of_one_run:
                reason = "one that a single process of a run draws on, where nodes bring their own"
            raise InputError("privacy.ledger_source", both[0], f"{reason} (in {folder})")


def _read_accounts(folder: Path, busy: Collection[str]) -> dict[str, list[Snapshot]]:
    """What the files of each source say, but for those that another run writes."""
    accounts: dict[str, list[Snapshot]] = {}
    for path in (path for path in account_files(folder) if path.name not in busy):
        known = read_ledger(path)
        data = known.data
        if data is None or account_file(folder, data.source, data.first) != path:
            raise InputError("ledger", str(path), "the ledger of the data that it is named after")
        accounts.setdefault(data.source, []).append(known)
    return accounts


def _digests(snapshots: Sequence[Snapshot]) -> NDArray[np.uint64]:
    """Of the records of a source, `[records]`."""
    return np.frombuffer(b"".join(known.digests for known in snapshots), "<u8").astype(np.uint64)


def _of(source: str, held: Sequence[tuple[str, NDArray[np.uint64]]]) -> NDArray[np.uint64]:
    """All digests of a source, each once."""
    own = [digests for name, digests in held if name == source]
    return np.unique(np.concatenate([np.zeros(0, np.uint64), *own]))


def _without(
    digests: NDArray[np.uint64], held: Sequence[tuple[str, NDArray[np.uint64]]]
) -> NDArray[np.uint64]:
    """Those that no source holds."""
    for _, known in held:
        digests = digests[~np.isin(digests, known)]
    return digests


def _strangers(
    wanted: Sequence[WantedAccount], taken: Sequence[tuple[str, NDArray[np.uint64]]]
) -> list[Strangers]:
    """Nodes with records that a source holds, or will hold, which they do not name."""
    found = []
    for node in wanted:
        own = np.unique(node.digests)
        by = [(source, np.isin(own, digests)) for source, digests in taken]
        holding = dict.fromkeys(source for source, at in by if at.any())
        strange = [at for source, at in by if source not in node.sources]
        count = int(np.any([*strange, np.zeros(len(own), bool)], axis=0).sum())
        if count:
            found.append(Strangers(node.node, count, len(own), tuple(sorted(holding))))
    return found


def _agreed(
    source: str, wanted: Sequence[WantedAccount], known: Sequence[Snapshot], folder: Path
) -> DataAccount:
    """The account of a source: as on file, if that has the budget that is wanted, or a new one."""
    first = min(one.node for one in wanted)
    accounts = [snapshot.data for snapshot in known if snapshot.data is not None]
    budget = {}
    for key in ("epsilon", "delta"):
        asked = {getattr(one, key) for one in wanted}
        if not accounts and asked == {None}:
            asked = {getattr(one, f"new_{key}") for one in wanted}
        if len(asked) > 1:
            nodes = ", ".join(str(one.node) for one in wanted)
            expected = f"one budget for nodes {nodes}, whose records are of one source, {source!r}"
            raise InputError(f"privacy.ledger_{key}", sorted(asked, key=str), expected)
        (value,) = asked
        # Processes of one run that made their files at once may have had different ones.
        field = "epsilon_budget" if key == "epsilon" else key
        least = min((getattr(account, field) for account in accounts), default=value)
        if value is not None and value != least:
            expected = (
                f"the budget of {source!r} in {folder} was set to {least!r} when it was made: "
                "leave this out"
            )
            raise InputError(f"privacy.ledger_{key}", value, expected)
        if least is None:
            expected = f"is needed for the ledger of {source!r}: privacy.epsilon gives no budget"
            raise InputError(f"privacy.ledger_{key}", None, expected)
        budget[key] = least
    return DataAccount(source, first, budget["epsilon"], budget["delta"])


def _at_once(change: Callable[[_T], None], items: Collection[_T]) -> None:
    """Do something for every item, several at a time; every one is waited for."""
    if items:
        with ThreadPoolExecutor(min(_THREADS, len(items))) as pool:
            list(pool.map(change, items))


def _steps(intervals: Sequence[Interval]) -> int:
    return sum(until - first for first, until in intervals)
