"""Epsilon against any number of colluders, from what a statement says: mechanisms and noise shared.

The mechanisms of a run (`tacit.report.documents.ledger.LedgerReport`) hold noise multipliers as
they count against the colluders that the run allows for, and say how many these are. Against
another number they count for more or less, by a factor that is decided by who shares noise with
whom or by how many take part in a secure sum alone (`tacit.training.shared_noise`); all else of a
mechanism stays. Who took part in which step stands in the mechanisms: other steps have `SILENT`
noise there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InputError
from tacit.privacy import from_statement
from tacit.privacy.ledger.ledger import StepRun
from tacit.privacy.ledger.spent import cost, released
from tacit.privacy.mechanisms.base import Mechanism, against, observer
from tacit.privacy.mechanisms.composed import Composed
from tacit.privacy.mechanisms.steps import SILENT, Scheduled, schedule
from tacit.report.documents.base import plain_json
from tacit.report.documents.ledger import LedgerAccount, LedgerReport
from tacit.report.documents.trust import TrustTerms
from tacit.training.shared_noise import PairNoise, SecureSums

_SAME = 1e-6  # relative: of the same noise by two ways


def epsilon_against(
    ledger: LedgerReport, trust: TrustTerms
) -> tuple[tuple[float | None, ...], ...]:
    """Certified epsilon of what was charged, against 0 to `colluding` + 1 colluders.

    There is a row for each number of colluders, with an entry a node; None where no finite epsilon
    holds. What the terms themselves state of epsilon is not read.

    Raises:
        InputError: ledger and terms are not of the same nodes, or not of the same noise, or a node
            that is said to be absent is stated in other steps than the first.
    """
    if len(ledger.nodes) != len(trust.own):
        expected = f"must be of the {len(ledger.nodes)} nodes of its ledger"
        raise InputError("trust", len(trust.own), expected)
    mechanisms = [_mechanism(ledger, account, trust) for account in ledger.nodes]
    # One noise multiplier a planned step; None where a mechanism has parts of several kinds, as of
    # methods alone whose nodes take part in every step.
    steps = [schedule(one) if isinstance(one, Scheduled) else None for one in mechanisms]
    planned = np.array(steps).T if None not in steps else np.ones((1, len(mechanisms)))
    active, absent = planned < SILENT, list(trust.absent)
    if active[1:, absent].any():
        expected = "must take part in no step, and are stated as if they did in the first alone"
        raise InputError("trust: absent", absent, expected)
    active[:, absent] = False
    shared = _shared(mechanisms[0].trust_model, active, trust)
    gains = _gains(shared, active)
    if None not in steps:
        _check_noise(mechanisms, planned, active, gains, trust)
    known: dict[tuple[Mechanism, Any, float | None], float | None] = {}
    rows = []
    for colluding in range(len(trust.epsilon_by_colluders)):
        ratios = np.ones(gains.shape)
        if colluding != trust.colluding:
            ratios = _gains(shared.against(colluding), active) / gains
        row = []
        for node, account in enumerate(ledger.nodes):
            mechanism, delta = _counting(mechanisms[node], ratios[:, node]), account.delta
            key = mechanism, account.releases[0].charged, delta
            if key not in known:
                whole = released(mechanism, [StepRun(*run) for run in key[1]])
                known[key] = None if delta is None else plain_json(cost(whole, delta))
            row.append(known[key])
        rows.append(tuple(row))
    return tuple(rows)


def _counting(mechanism: Mechanism, ratios: NDArray[np.float64]) -> Mechanism:
    """The mechanism where noise counts for so many times as much, at every step or at all alike."""
    if isinstance(mechanism, Composed):
        return Composed([_counting(part, ratios) for part in mechanism.parts])
    if not isinstance(mechanism, Scheduled):
        expected = "a mechanism of steps with noise multipliers, where nodes share noise"
        raise InputError("mechanisms", mechanism.describe(), expected)
    if (ratios == 1.0).all():
        return mechanism
    # Rounded down: a multiplier never counts for more than it does.
    return mechanism.with_schedule(np.nextafter(schedule(mechanism) * ratios, 0.0).tolist())


def _mechanism(ledger: LedgerReport, account: LedgerAccount, trust: TrustTerms) -> Mechanism:
    (release,) = account.releases
    mechanism = from_statement(ledger.mechanisms[release.mechanism])
    model = mechanism.trust_model
    if model != against(observer(model), trust.colluding):
        expected = f"must be that of the mechanisms, whose trust model is {model!r}"
        raise InputError("trust: colluding", trust.colluding, expected)
    return mechanism


def _shared(model: str, active: NDArray[np.bool_], trust: TrustTerms) -> PairNoise | SecureSums:
    """What makes the noise of others count for a node."""
    absent = None if active.all() else active
    if observer(model) == "secure-sum":
        return SecureSums(len(trust.own), trust.colluding, absent)
    return PairNoise(
        pairs=trust.pairs,
        own=trust.own,
        deviation=trust.deviation,
        colluding=trust.colluding,
        active=absent,
    )


def _gains(shared: PairNoise | SecureSums, active: NDArray[np.bool_]) -> NDArray[np.float64]:
    """What own noise counts for, over what it is: `[1, nodes]`, or `[steps, nodes]`."""
    steps, nodes = active.shape
    rows = range(1 if active.all() else steps)
    return np.array([[shared.gain(node, k) for node in range(nodes)] for k in rows])


def _check_noise(
    mechanisms: Sequence[Mechanism],
    planned: NDArray[np.float64],
    active: NDArray[np.bool_],
    gains: NDArray[np.float64],
    trust: TrustTerms,
) -> None:
    """Refuse terms that the multipliers of the mechanisms do not follow from.

    Of each step, all nodes whose records are drawn in the same way have the same noise multiplier
    over gain, own deviation and batch.
    """
    own = gains * np.array(trust.own) * np.array(trust.expected_batch)
    shape = np.broadcast_shapes(planned.shape, own.shape, active.shape)
    unit = np.divide(planned, own, out=np.full(shape, np.nan), where=active)
    kinds = [(mechanism.kind, mechanism.rate == 1) for mechanism in mechanisms]
    for kind in set(kinds):
        alike = unit[:, [other == kind for other in kinds]]
        alike = alike[~np.isnan(alike).all(axis=1)]
        spread = np.nanmax(alike, axis=1) / np.nanmin(alike, axis=1) - 1.0
        if spread.size and spread.max() > _SAME:
            expected = "must be the noise that the noise multipliers of the ledger follow from"
            raise InputError("trust: own", list(trust.own), expected)
