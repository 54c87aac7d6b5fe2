"""From steps in the ledger to the mechanism that they make up, which an accountant then composes.

What a run releases is its mechanism, restricted to the steps that it was charged; what has been
released from a node's data is the adaptive composition of that of all runs. It bounds what an
observer of all of them learns, provided that

- every run's noise and sampling coins are fresh;
- mechanisms and numbers of steps do not depend on what was released before. Gaussian mechanisms
  on every record may: a budget on the sum of their mu^2 is a privacy filter (Smith and Thakurta,
  *Fully adaptive composition for Gaussian differential privacy*, 2022). For sampled ones no such
  theorem is known for the composed privacy losses: a setting that was chosen by looking at an
  earlier run is outside the proof, as is a stop chosen by looking at the models.

*Overlap.* Data that are split anew, given to more nodes, or extended, have accounts of their own
which share records. What one record has paid is the adaptive composition, over runs, of the
mechanism of the node that held it. Records are told apart by which accounts hold them; of records
that are held by the same accounts, the same was released, a *history*. An account has spent what
the worst of the histories of its records comes to.

Two records may have equal inputs, so that a run may seem to have released one record at several
nodes. Where the account itself was charged by that run, the record is taken to be its own: a node's
whole data tell which of the equal records it has. Elsewhere any of the nodes may have held it, and
an upper bound on all of them is charged. Of one run, a record is at one node: what several nodes
release of one record is not covered, as statements say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InputError
from tacit.privacy.accounting.accounting import epsilon
from tacit.privacy.ledger.ledger import EnteredRun, Interval, StepRun, step_runs
from tacit.privacy.mechanisms.composed import (
    Composed,
    FixedBatchGaussian,
    Gaussian,
    Mechanism,
    RandomAllocationGaussian,
    SampledGaussian,
)
from tacit.privacy.mechanisms.serialise import from_statement

__all__ = [
    "AccountRelease",
    "Held",
    "check_agreement",
    "combined",
    "composed",
    "cost",
    "dominating",
    "histories",
    "holders",
    "released",
    "run_mechanism",
]

_GAUSSIANS: tuple[type[Mechanism], ...] = (Gaussian, SampledGaussian)
_OF_ONE_KIND: tuple[set[type[Mechanism]], ...] = ({FixedBatchGaussian}, {RandomAllocationGaussian})
_AGREE = ("relation", "unit", "trust_model")


def released(mechanism: Mechanism, steps: Sequence[StepRun]) -> Mechanism | None:
    """What is released when only some steps of a mechanism run, some of them repeatedly.

    What that is, the mechanism says: `Mechanism.of_steps`.

    Args:
        mechanism: of all planned steps.
        steps: which of them ran, disjoint, with their multiplicity.

    Returns:
        The mechanism; None where no step ran.

    Raises:
        InputError: a step lies beyond the last.
    """
    if not steps:
        return None
    if max(run.until for run in steps) > (mechanism.steps or 0):
        raise InputError("steps", steps[-1], f"must lie below {mechanism.steps}, the planned steps")
    return mechanism.of_steps(steps)


def combined(mechanisms: Iterable[Mechanism | None]) -> Mechanism | None:
    """All of the mechanisms on the same data, in as few parts as can be; None where there are none.

    Raises:
        InputError: they differ in relation, unit or trust model.
    """
    known = [mechanism for mechanism in mechanisms if mechanism is not None]
    if len(known) < 2:
        return known[0] if known else None
    whole = Composed(known)
    return whole.parts[0] if len(whole.parts) == 1 else whole


def run_mechanism(run: EnteredRun, node: int, more: Iterable[Interval] = ()) -> Mechanism | None:
    """What a run released from a node's data, by the ledger; None where nothing was charged.

    Args:
        run: the run.
        node: the node.
        more: steps that it is about to release on top.

    Raises:
        InputError: the statement is none that this version can read, or lacks a charged step.
    """
    charged = step_runs([*run.charged[node], *more])
    return released(from_statement(run.statements[node]), charged)


def dominating(nodes: Sequence[Mechanism]) -> Mechanism | None:
    """A mechanism at least as revealing as each of the given ones; None where none is known.

    Of (sampled) Gaussians of equal length the one with the largest rate and, step by step, the
    smallest noise multiplier dominates: less noise by post-processing; a smaller rate q' < q,
    because its pair is the mixture, with weight q'/q, of the pair of q and of one identical
    distribution, and hockey-stick divergences are jointly convex. Of random allocations with epochs
    of equal length likewise the one with the smallest multipliers.

    Args:
        nodes: mechanisms.
    """
    distinct = list(dict.fromkeys(nodes))
    if len(distinct) < 2:
        return distinct[0] if distinct else None
    terms = {
        (mechanism.relation, mechanism.unit, mechanism.trust_model, mechanism.steps)
        for mechanism in distinct
    }
    kinds = {type(mechanism) for mechanism in distinct}
    if len(terms) > 1 or not (kinds <= set(_GAUSSIANS) or kinds in _OF_ONE_KIND):
        return None
    gaussians: list[Any] = list(distinct)
    if kinds == {RandomAllocationGaussian} and len({each.rate for each in gaussians}) > 1:
        return None
    worst = max(gaussians, key=lambda mechanism: mechanism.rate)
    least = tuple(
        map(min, zip(*(mechanism.noise_multiplier for mechanism in gaussians), strict=True))
    )
    coordinates = max(mechanism.coordinates for mechanism in gaussians)
    # What finite arithmetic adds grows with the coordinates: their largest number is safe.
    made: Mechanism = replace(worst, noise_multiplier=least, coordinates=coordinates)
    return made


def cost(mechanism: Mechanism | None, delta: float) -> float:
    """Certified epsilon at `delta`, an upper bound; 0 for nothing."""
    return 0.0 if mechanism is None else epsilon(mechanism, delta=delta)


def check_agreement(mechanism: Mechanism, run: EnteredRun, node: int, where: str) -> None:
    """Refuse a mechanism that cannot be composed with what an earlier run released.

    Args:
        mechanism: what a node is to release.
        run: that released something from some of the same records.
        node: that is to release, for the message.
        where: the run's ledger, likewise.

    Raises:
        InputError: relation, unit or trust model differ.
    """
    for statement in run.statements.values():
        before = from_statement(statement)
        for key in _AGREE:
            if getattr(before, key) != getattr(mechanism, key):
                raise InputError(
                    f"{key} of node {node}",
                    getattr(mechanism, key),
                    f"run {run.run_id[:8]} in {where} was reserved under {getattr(before, key)!r}, "
                    "and the two do not add up: use the same, or another ledger",
                )


MOST_HISTORIES = 16  # of one account; beyond, one that is at least as costly as all

Held = Mapping[tuple[str, ...], int]
"""Of a set of records: which accounts hold them, in order, and how many records each such group
has."""


@dataclass(frozen=True)
class AccountRelease:
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


History = tuple[AccountRelease, ...]


def histories(
    account: str,
    groups: Iterable[tuple[str, ...]],
    releases: Mapping[str, Sequence[AccountRelease]],
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


def composed(history: Iterable[AccountRelease]) -> Mechanism | None:
    """A mechanism at least as revealing as a history; None where nothing was released.

    Of one run, what the nodes of one account released is composed, since all of them hold all of
    its records; over accounts, the record is in one of them, and the bound covers each.

    Raises:
        InputError: relation, unit or trust model of two runs differ.
    """
    return combined(_worst(accounts.values()) for accounts in _by_run(history).values())


def _by_run(history: Iterable[AccountRelease]) -> dict[str, dict[str, list[Mechanism]]]:
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
