"""The ledgers of the nodes' data: a folder with one file a node, which outlives every run.

Runs that share a folder draw on the same budgets. The files are locked, all of them, while a run
is open, and a file is made when the first run is entered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tacit.errors import InputError
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_records import Account, Interval, Snapshot

__all__ = ["SharedLedgers", "WantedAccount", "account_file"]

_T = TypeVar("_T")
_THREADS = 8  # they wait for the disk, not for a core
_NOTHING = Snapshot(created="", tacit_version="", head="", accounts=(), runs=())


@dataclass(frozen=True)
class WantedAccount:
    """The budget that a run expects of a node's data.

    Args:
        node: the node.
        epsilon: what the budget must be; None takes the one on file.
        delta: likewise.
        new_epsilon: the budget of a new file where `epsilon` is None; None: there is none.
        new_delta: likewise.
    """

    node: int
    epsilon: float | None
    delta: float | None
    new_epsilon: float | None
    new_delta: float


def account_file(folder: Path, node: int) -> Path:
    """Where the ledger of a node's data lies."""
    return folder / f"node-{node}.sqlite"


class SharedLedgers:
    """The ledgers of the data of a run's nodes, locked until they are closed.

    Without nodes it is the shared ledger of a run that has none: it allows and books nothing.
    """

    def __init__(self, folder: Path, accounts: Sequence[Account]) -> None:
        """Take over the folder and the accounts that are or will be there; see `open`."""
        self.folder = folder
        self.accounts: Mapping[int, Account] = {account.node: account for account in accounts}
        self._ledgers: dict[int, Ledger] = {}
        self._stack = ExitStack()

    @classmethod
    def open(cls, folder: Path, wanted: Sequence[WantedAccount]) -> Self:
        """Lock the ledgers that are there, and agree on budgets; makes no file yet.

        Raises:
            InputError: a ledger is in use, damaged, or has another budget than is wanted, or a new
                one needs a budget and none was given.
        """
        ledgers: dict[int, Ledger] = {}
        with ExitStack() as stack:
            accounts = []
            for one in sorted(wanted, key=lambda one: one.node):
                path = account_file(folder, one.node)
                if path.exists():
                    ledgers[one.node] = stack.enter_context(Ledger.open_account(path))
                    accounts.append(_agreed(one, ledgers[one.node], path))
                else:
                    accounts.append(_new(one, path))
            shared = cls(folder, accounts)
            shared._ledgers = ledgers
            shared._stack = stack.pop_all()
        return shared

    def snapshot(self, node: int) -> Snapshot:
        """What the ledger of a node's data says now; one without runs where there is no file."""
        return self._ledgers[node].snapshot() if node in self._ledgers else _NOTHING

    def file(self, node: int) -> Path:
        """Where the ledger of a node's data lies."""
        return account_file(self.folder, node)

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
            InputError: the run has sent more than is on these books, or a file cannot be written.
        """
        for node in self.accounts:
            self._check_sent(node, run_id, sent.get(node, ()))
        if self.accounts:
            _make_folder(self.folder)

        def enter(node: int) -> None:
            if node not in self._ledgers:
                Ledger.create_account(self.file(node), self.accounts[node])
                ledger = Ledger.open_account(self.file(node))
                self._ledgers[node] = self._stack.enter_context(ledger)
            self._ledgers[node].enter(run_id, digest=digest, statements={node: statements[node]})

        _at_once(enter, self.accounts)

    def _check_sent(self, node: int, run_id: str, sent: Sequence[Interval]) -> None:
        """Refuse to go on with a run elsewhere, or on an older copy of its books."""
        booked = {run.run_id: run.charged[node] for run in self.snapshot(node).runs}
        before, now = _steps(sent), _steps(booked.get(run_id, ()))
        if before > now:
            raise InputError(
                "privacy.ledger",
                str(self.file(node)),
                f"the books of this run: they have {now} of the {before} steps it was charged",
            )

    def reserve(self, first_step: int, until: int) -> None:
        """Book steps on every ledger, durably; see `Ledger.reserve`."""
        _at_once(lambda ledger: ledger.reserve(first_step, until), self._ledgers.values())

    def settle(self, used_until: int) -> None:
        """Give back what was booked and not used; see `Ledger.settle`."""
        _at_once(lambda ledger: ledger.settle(used_until), self._ledgers.values())

    def close(self) -> None:
        """Close the files and release their locks; closing twice is harmless."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _at_once(change: Callable[[_T], None], items: Collection[_T]) -> None:
    """Do something for every item, several at a time; every one is waited for."""
    if items:
        with ThreadPoolExecutor(min(_THREADS, len(items))) as pool:
            list(pool.map(change, items))


def _steps(intervals: Sequence[Interval]) -> int:
    return sum(until - first for first, until in intervals)


def _new(wanted: WantedAccount, path: Path) -> Account:
    """The account of a file that is yet to be made."""
    epsilon = wanted.new_epsilon if wanted.epsilon is None else wanted.epsilon
    delta = wanted.new_delta if wanted.delta is None else wanted.delta
    if epsilon is None:
        expected = f"is needed to make {path}, since privacy.epsilon gives no budget"
        raise InputError("privacy.ledger_epsilon", None, expected)
    return Account(wanted.node, epsilon, delta)


def _agreed(wanted: WantedAccount, ledger: Ledger, path: Path) -> Account:
    """The account on file, if it is that of the node and has the budget that is wanted."""
    accounts = ledger.snapshot().accounts
    if [account.node for account in accounts] != [wanted.node]:
        nodes = [account.node for account in accounts]
        raise InputError("ledger", str(path), f"that of node {wanted.node}; it is that of {nodes}")
    (account,) = accounts
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


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        expected = f"a folder that can be made: {error.strerror}"
        raise InputError("privacy.ledger", str(folder), expected) from None
