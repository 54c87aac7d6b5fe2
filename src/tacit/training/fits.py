"""What the fits of this process have released of one record, together: a count in memory.

Records are known by keyed digests of their inputs and of the ids of their units, as in ledgers
(`tacit.data.own`). Each fit enters, before anything is sent, all that it is about to release. What
one record went through is then at most the composition of the fits that had its digest, whichever
of its nodes it was at (`tacit.privacy.ledger.spent`). Of many different sets of fits one bound is
made: of all that shared any record.
"""

from __future__ import annotations

import math
import secrets
from contextlib import suppress
from dataclasses import InitVar, dataclass, field

import numpy as np
from numpy.typing import NDArray

from tacit.data import Dataset
from tacit.data.own import record_digests, unit_digests
from tacit.errors import InputError
from tacit.privacy import Mechanism
from tacit.privacy.ledger.spent import combined, compositions, cost, dominating
from tacit.training.hooks import Callback
from tacit.training.plan import Plan

_KEY = secrets.token_bytes(32)
_FITS: list[FitCount] = []
_MOST = 16  # sets of fits of which each is composed


@dataclass(eq=False)
class FitCount(Callback):
    """One fit; a callback of its run, which says what it releases.

    Args:
        records: that it trains on.
        released: what each of its nodes releases, of which a record meets one; None: nothing is
            certified of it.
    """

    records: InitVar[Dataset]
    released: tuple[Mechanism, ...] | None = None
    digests: NDArray[np.uint64] = field(init=False, repr=False)

    def __post_init__(self, records: Dataset) -> None:
        self.by_unit = records.units is not None
        ids = unit_digests(() if records.units is None else np.unique(records.units), _KEY)
        found = np.unique(np.concatenate([record_digests(records.inputs, _KEY), ids]))
        held = (fit.digests for fit in tuple(_FITS))  # a search fits the same folds again
        self.digests = next((own for own in held if np.array_equal(own, found)), found)

    def on_start(self, plan: Plan) -> None:
        """All that is planned counts, however the run ends."""
        with suppress(InputError):  # what is not clipped has no mechanism
            if plan.accounted:
                nodes = [node for node in plan.nodes if node.records]
                release = plan.release
                each = tuple(release.mechanism(node, release.planned) for node in nodes)
                # No digest tells which client a record is of: there all nodes count together.
                client = any(mechanism.unit == "client" for mechanism in each)
                worst = combined(each) if client else dominating(each)
                self.released = each if worst is None else (worst,)
        _FITS.append(self)

    def total(self, epsilon: float, delta: float) -> tuple[int, float]:
        """How many fits shared records, this one included, and a bound of all that one lost.

        `epsilon` is that of this fit alone; at `delta`, for whom this fit protects. Infinite where
        nothing is certified of one of the fits, or some were not by the same unit.
        """
        met = {
            fit: found
            for fit in tuple(_FITS)
            if fit is not self and (found := np.isin(self.digests, fit.digests)).any()
        }
        if not met:
            return 1, epsilon
        sets: NDArray[np.bool_] = np.unique(np.array([*met.values()]), axis=1).T
        if len(sets) <= _MOST**2:  # each is compared with each
            sets = sets[[(own <= sets).all(1).sum() == 1 for own in sets]]  # within no other
        if len(sets) > _MOST:
            sets = np.ones((1, len(met)), np.bool_)
        if self.released is None or any(fit.by_unit < self.by_unit for fit in met):
            return 1 + len(met), math.inf
        worst = epsilon
        for chosen in sets:
            runs = [self.released]
            for fit, there in zip(met, chosen, strict=True):
                if there and fit.released is None:
                    return 1 + len(met), math.inf
                runs += [fit.released] if there and fit.released is not None else []
            try:
                ways = compositions(runs, delta)
            except InputError:  # of another relation, unit or trust model
                return 1 + len(met), math.inf
            worst = max(worst, *(cost(way, delta) for way in ways))
        return 1 + len(met), worst
