"""What was released from the same records through different accounts, and what it comes to.

Data that are split anew, given to more nodes, or extended, have accounts of their own which share
records. What one record has paid is the adaptive composition, over runs, of the mechanism of the
node that held it. Records are told apart by which accounts hold them; of records that are held by
the same accounts, the same was released, a *history*. An account has spent what the worst of the
histories of its records comes to.

Two records may have equal inputs, so that a run may seem to have released one record at several
nodes. Where the account itself was charged by that run, the record is taken to be its own: a node's
whole data tell which of the equal records it has. Elsewhere any of the nodes may have held it, and
an upper bound on all of them is charged. Of one run, a record is at one node: what several nodes
release of one record is not covered, as statements say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.privacy.ledger.spent import combined, dominating
from tacit.privacy.mechanisms.composed import Mechanism

__all__ = ["Held", "History", "Release", "composed", "histories", "holders"]

MOST_HISTORIES = 16  # of one account; beyond, one that is at least as costly as all

Held = Mapping[tuple[str, ...], int]
"""Of a set of records: which accounts hold them, in order, and how many records each such group
has."""


@dataclass(frozen=True)
class Release:
    """What a run released from an account at one node.

    Args:
        run: its identity.
        account: whose records it released.
        node: the number that the run gave to the node.
        mechanism: what was charged; None: nothing.
    """

    run: str
    account: str
    node: int
    mechanism: Mechanism | None


def holders(
    wanted: Mapping[str, NDArray[np.uint64]], accounts: Mapping[str, NDArray[np.uint64]]
) -> dict[str, Held]:
    """Which accounts hold the records of some sets.

    Args:
        wanted: digests of the records of each set, `[records]`.
        accounts: likewise, of every account that may hold them.

    Returns:
        Of each set, how its records are held; those that no account holds are under `()`.
    """
    every = np.concatenate([np.zeros(0, np.uint64), *wanted.values()])
    known, place = np.unique(every, return_inverse=True)
    held: list[list[str]] = [[] for _ in known]
    for name in sorted(accounts):
        digests = np.unique(accounts[name])
        at = np.searchsorted(known, digests)
        inside = at < len(known)
        at, digests = at[inside], digests[inside]
        for record in at[known[at] == digests]:
            held[record].append(name)
    groups = [tuple(names) for names in held]
    holding: dict[str, Held] = {}
    first = 0
    for name, digests in wanted.items():
        records = place[first : first + len(digests)]
        holding[name] = dict(Counter(groups[record] for record in records))
        first += len(digests)
    return holding


History = tuple[Release, ...]


def histories(
    account: str,
    groups: Iterable[tuple[str, ...]],
    releases: Mapping[str, Sequence[Release]],
) -> list[History]:
    """What records of an account may have been through.

    Args:
        account: its name; it need not have released anything yet.
        groups: which accounts hold its records, one entry for each kind of record.
        releases: of each account.

    Returns:
        The histories, for `composed`, that are not the same as another, at most `MOST_HISTORIES`.
    """
    own = tuple(releases.get(account, ()))
    settled = {release.run for release in own if release.mechanism is not None}
    distinct: dict[object, History] = {}
    for group in groups:
        elsewhere = (
            release
            for name in group
            if name != account
            for release in releases.get(name, ())
            if release.run not in settled
        )
        history = (*own, *elsewhere)
        # Two histories of equal mechanisms cost the same, whichever accounts they went through.
        mechanisms = frozenset(
            (run, frozenset(map(tuple, accounts.values())))
            for run, accounts in _by_run(history).items()
        )
        distinct.setdefault(mechanisms, history)
    if len(distinct) <= MOST_HISTORIES:
        return list(distinct.values())
    return [tuple(dict.fromkeys(release for history in distinct.values() for release in history))]


def composed(history: Iterable[Release]) -> Mechanism | None:
    """A mechanism at least as revealing as a history; None where nothing was released.

    Of one run, what the nodes of one account released is composed, since all of them hold all of
    its records; over accounts, the record is in one of them, and the bound covers each.

    Raises:
        InputError: relation, unit or trust model of two runs differ.
    """
    return combined(_worst(accounts.values()) for accounts in _by_run(history).values())


def _by_run(history: Iterable[Release]) -> dict[str, dict[str, list[Mechanism]]]:
    """What each run released from each account."""
    runs: dict[str, dict[str, list[Mechanism]]] = {}
    for release in history:
        if release.mechanism is not None:
            accounts = runs.setdefault(release.run, {})
            accounts.setdefault(release.account, []).append(release.mechanism)
    return runs


def _worst(accounts: Iterable[Sequence[Mechanism]]) -> Mechanism | None:
    """At least as revealing as what was released from each account."""
    whole = [mechanism for mechanism in map(combined, accounts) if mechanism is not None]
    # All of them together reveal no less than any one does.
    return dominating(whole) or combined(whole)
