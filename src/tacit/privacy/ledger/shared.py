"""The ledgers of data: a folder with one file a node's data, which outlives every run.

A file is found by its records (`account_file`), never by the number of a node. Runs draw on one
budget where they have the same set of records, and on the budgets of all accounts that share some
(`tacit.privacy.ledger.spent`). In the folder lie `data-NAME.sqlite`, an account each, and the key
`ledger.key`, without which no record can be told from another.

*Who may draw on them*: of runs whose records overlap, one at a time. A run is admitted by looking
at what all ledgers say of its records, and its own blocks are reserved later, in its own accounts
alone. So from before it looks until it ends, no other run may draw on any of the same records: each
process keeps a file `in-use-*` in the folder with the digests of its records, which counts for as
long as the process lives (the operating system's lock on it ends with the process). Processes of
one run, which say the same session, do not hinder each other.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InputError
from tacit.privacy.ledger.file import KEY_FILE, LedgerKey, find_key, make_key
from tacit.privacy.ledger.ledger import (
    Closing,
    DataAccount,
    Interval,
    Ledger,
    Snapshot,
    data_name,
    read_ledger,
)
from tacit.privacy.ledger.spent import Held, holders
from tacit.private_files import make_private_folder, new_private_file

__all__ = [
    "SharedLedgers",
    "WantedAccount",
    "account_file",
    "account_files",
    "admission",
    "folder_key",
]

_WAIT = 60.0  # seconds; an admission takes as long as to read the ledgers
_PAUSE = 0.02
_LOCK = "admission.lock"
_PREFIX = "in-use-"


@dataclass(frozen=True, eq=False)
class _InUse:
    """What a process draws on.

    Args:
        session: of its run, the same in all processes of it.
        nodes: of the run, which this process has.
        accounts: names of the accounts.
        digests: of all their records, `[records]`.
    """

    session: str
    nodes: frozenset[int]
    accounts: frozenset[str]
    digests: NDArray[np.uint64]


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
        declaration = json.loads(head)
        records = np.frombuffer(digests, "<u8").astype(np.uint64)
        nodes, accounts = frozenset(declaration["nodes"]), frozenset(declaration["accounts"])
        processes.append(_InUse(declaration["session"], nodes, accounts, records))
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
        "accounts": sorted(mine.accounts),
    }
    with ExitStack() as stack:
        try:
            file = stack.enter_context(os.fdopen(new_private_file(path), "wb"))
            stack.callback(path.unlink, missing_ok=True)
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(json.dumps(head).encode() + b"\n" + mine.digests.astype("<u8").tobytes())
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
    """The budget that a run expects of a node's data.

    Args:
        node: the node.
        digests: of its records, `[records]`, in any order.
        epsilon: what the budget must be; None takes the one on file.
        delta: likewise.
        new_epsilon: the budget of a new file where `epsilon` is None; None: there is none.
        new_delta: likewise.
    """

    node: int
    digests: NDArray[np.uint64]
    epsilon: float | None
    delta: float | None
    new_epsilon: float | None
    new_delta: float

    @property
    def content(self) -> bytes:
        """The digests as a ledger holds them."""
        return np.sort(self.digests).astype("<u8").tobytes()


def account_file(folder: Path, name: str) -> Path:
    """Where the ledger of the data of a name lies."""
    return folder / f"data-{name[:16]}.sqlite"


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


class SharedLedgers(Closing):
    """The ledgers of the data of a run's nodes, which no other run draws on until it is closed.

    Without nodes it is the shared ledger of a run that has none: it allows and reserves nothing.

    Attributes:
        folder: where they lie.
        accounts: of each node's data; those of two nodes with equal records are the same.
        snapshots: what each account that holds some of the records said at the start, by name.
        held: which accounts hold the records of each node.
    """

    def __init__(self, folder: Path) -> None:
        """Draw on nothing; see `open`."""
        self.folder = folder
        self.accounts: Mapping[int, DataAccount] = {}
        self.snapshots: Mapping[str, Snapshot] = {}
        self.held: Mapping[int, Held] = {}
        self._nodes: dict[str, list[int]] = {}
        self._contents: Mapping[str, bytes] = {}
        self._ledgers: dict[str, Ledger] = {}
        self._stack = ExitStack()

    @classmethod
    def open(cls, folder: Path, wanted: Sequence[WantedAccount], *, session: str) -> Self:
        """Keep other runs from these records, read what was spent of them, and agree on budgets.

        It makes no account yet, and locks none: processes of one run, which look through the same
        accounts, have all to be here before one of them enters.

        Args:
            folder: of the ledgers; its key must be there.
            wanted: the nodes of this process.
            session: the same for all processes of the run, and for no other run. Processes of one
                run have different nodes, and so different records, also where some are equal.

        Raises:
            InputError: the records are in use, a ledger is damaged or has another budget than is
                wanted, or a new one needs a budget and none was given.
        """
        shared = cls(folder)
        contents = {account.node: account.content for account in wanted}
        names = {node: data_name(content) for node, content in contents.items()}
        every = np.concatenate([np.zeros(0, np.uint64), *(account.digests for account in wanted)])
        mine = _InUse(session, frozenset(names), frozenset(names.values()), np.unique(every))
        with shared._stack as stack:
            with admission(folder):
                others = _in_use(folder)
                _check_free(folder, mine, others)
                # What another run draws on shares nothing with this one, and cannot be read now.
                apart = {
                    name for other in others if other.session != session for name in other.accounts
                }
                known = _read_accounts(folder, apart)
                shared.accounts = {
                    account.node: _agreed(account, names[account.node], known, folder)
                    for account in wanted
                }
                for node, account in shared.accounts.items():
                    shared._nodes.setdefault(account.name, []).append(node)
                _check_one_budget(shared.accounts)
                stack.enter_context(_declared(folder, mine))
            sets = {name: np.frombuffer(account.digests, "<u8") for name, account in known.items()}
            held = holders({str(account.node): account.digests for account in wanted}, sets)
            shared.held = {int(node): groups for node, groups in held.items()}
            touched = {
                name for groups in held.values() for group in groups for name in group
            } | mine.accounts
            shared.snapshots = {name: account for name, account in known.items() if name in touched}
            shared._contents = {names[node]: content for node, content in contents.items()}
            shared._stack = stack.pop_all()
        return shared

    def file(self, node: int) -> Path:
        """Where the ledger of a node's data lies."""
        return account_file(self.folder, self.accounts[node].name)

    def mates(self, node: int) -> list[int]:
        """The nodes of this process that have the same records as a node, itself included."""
        return self._nodes[self.accounts[node].name]

    def reserved(self, node: int, run_id: str | None) -> tuple[Interval, ...]:
        """What the ledger of a node's data had charged a run there at the start."""
        known = self.snapshots.get(self.accounts[node].name)
        runs = () if known is None else known.runs
        return next((run.charged.get(node, ()) for run in runs if run.run_id == run_id), ())

    def entered(self, run_id: str) -> Path | None:
        """A ledger that held a run at the start; None: no ledger of these records."""
        for name, known in self.snapshots.items():
            if any(run.run_id == run_id for run in known.runs):
                return account_file(self.folder, name)
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

        Args:
            run_id: the identity that the run's own ledger has.
            digest: of its plan.
            statements: its mechanism at each node.
            sent: what the run's own ledger has charged each node so far.

        Raises:
            InputError: the run has sent more than is in these ledgers, or a file cannot be written.
        """
        for node in self.accounts:
            # Elsewhere, on other data or on an older copy of its ledger a run must not go on.
            before, now = _steps(sent.get(node, ())), _steps(self.reserved(node, run_id))
            if before > now:
                raise InputError(
                    "privacy.ledger",
                    str(self.file(node)),
                    f"the ledgers of this run and of its data: they have {now} of the {before} "
                    "steps that it was charged",
                )
        accounts = {account.name: account for account in self.accounts.values()}
        key = find_key(self.folder)

        def enter(account: DataAccount) -> None:
            path = account_file(self.folder, account.name)
            if account.name not in self._ledgers:
                if account.name not in self.snapshots:
                    assert key is not None
                    Ledger.create_account(path, key, account, self._contents[account.name])
                ledger = Ledger.open_account(path)
                self._ledgers[account.name] = self._stack.enter_context(ledger)
            mechanisms = {node: statements[node] for node in self._nodes[account.name]}
            self._ledgers[account.name].enter(run_id, digest=digest, statements=mechanisms)

        _at_once(enter, accounts.values())

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


def _check_free(folder: Path, mine: _InUse, others: Sequence[_InUse]) -> None:
    """Refuse records that another run draws on now."""
    for other in others:
        if other.session == mine.session and not mine.nodes & other.nodes:
            both = sorted(mine.accounts & other.accounts)
            if both:
                expected = "data of one node alone: another process of this run has the same"
                raise InputError("privacy.ledger", str(account_file(folder, both[0])), expected)
        elif count := int(np.isin(mine.digests, other.digests).sum()):
            expected = (
                f"records that no other run draws on: one is running it now, on {count} of the "
                f"{len(mine.digests)} different records of this run"
            )
            raise InputError("privacy.ledger", str(folder), expected)


def _check_one_budget(accounts: Mapping[int, DataAccount]) -> None:
    """Refuse two budgets for one set of records."""
    first: dict[str, int] = {}
    for node, account in accounts.items():
        other = first.setdefault(account.name, node)
        if accounts[other] != account:
            expected = f"one budget for nodes {other} and {node}, which have the same records"
            raise InputError("privacy.ledger_epsilon", account.epsilon_budget, expected)


def _read_accounts(folder: Path, apart: Collection[str]) -> dict[str, Snapshot]:
    """All accounts in a folder, by name, but for some."""
    skipped = {account_file(folder, name) for name in apart}
    files = [path for path in account_files(folder) if path not in skipped]
    accounts = {}
    for path in files:
        known = read_ledger(path)
        if known.data is None or account_file(folder, known.data.name) != path:
            raise InputError("ledger", str(path), "the ledger of the data that it is named after")
        accounts[known.data.name] = known
    return accounts


def _at_once(change: Callable[[_T], None], items: Collection[_T]) -> None:
    """Do something for every item, several at a time; every one is waited for."""
    if items:
        with ThreadPoolExecutor(min(_THREADS, len(items))) as pool:
            list(pool.map(change, items))


def _steps(intervals: Sequence[Interval]) -> int:
    return sum(until - first for first, until in intervals)


def _agreed(
    wanted: WantedAccount, name: str, known: Mapping[str, Snapshot], folder: Path
) -> DataAccount:
    """The account on file, if it has the budget that is wanted; or one that is yet to be made."""
    path = account_file(folder, name)
    account = known[name].data if name in known else None
    if account is None:
        epsilon = wanted.new_epsilon if wanted.epsilon is None else wanted.epsilon
        delta = wanted.new_delta if wanted.delta is None else wanted.delta
        if epsilon is None:
            expected = f"is needed to make {path}, since privacy.epsilon gives no budget"
            raise InputError("privacy.ledger_epsilon", None, expected)
        return DataAccount(name, len(wanted.digests), epsilon, delta)
    asked = {"epsilon": wanted.epsilon, "delta": wanted.delta}
    kept = {"epsilon": account.epsilon_budget, "delta": account.delta}
    for key, value in asked.items():
        if value is not None and value != kept[key]:
            raise InputError(
                f"privacy.ledger_{key}",
                value,
                f"the budget in {path} was set to {kept[key]!r} when it was made: leave this out",
            )
    return account
