"""What the theorems of an algorithm's paper promise of a planned run: what they read and say.

An algorithm states it in its file, as a function of a `PromisedRun`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tacit.privacy.published import Budget, FormulaCondition
from tacit.report.documents.plan import PlannedPromise, PlannedTerm
from tacit.report.documents.run import ClaimCondition
from tacit.topology.mixing import Mixing

_UNSAID: Mapping[str, Any] = MappingProxyType(
    {**dict.fromkeys(("best_steps", "best_bound", "trivial_bound", "order")), "figures": {}}
)  # in every document, also where a paper has nothing of the kind


@dataclass(frozen=True)
class PromisedRun:
    """A planned run as the theorems of its paper see it.

    One entry a step: `rates`, `clip` (C_k; None: nothing is clipped) and `noise` (its deviation, up
    to a factor). One a node: `records` (J), `budgets` (None where one has none), `variances` (of
    its own noise in a coordinate of its batch mean, the mean over the steps) and `claimed` (what
    the privacy formula reads; none without noise and clip). `start_norm` is squared, and
    `expected_batch` the largest. Constants of `[promise]` that are not given are NaN. `general` are
    conditions of every theorem, `claim_conditions` those of the privacy formula.
    """

    options: Any
    steps: int
    parameters: int
    rates: tuple[float, ...]
    clip: tuple[float, ...] | None
    noise: tuple[float, ...]
    records: tuple[int, ...]
    budgets: tuple[Budget, ...] | None
    variances: tuple[float, ...]
    claimed: Sequence[Any]
    expected_batch: float
    start_norm: float
    constants: Mapping[str, float]
    c2: float
    mixing: Mixing
    general: tuple[FormulaCondition, ...]
    claim_conditions: tuple[FormulaCondition, ...]

    @property
    def budget(self) -> Budget | None:
        """That of every node, where all nodes are alike."""
        return self.budgets[0] if self.budgets and len(set(self.budgets)) == 1 else None


def promised(
    run: PromisedRun,
    terms: Sequence[tuple[str, str]],
    values: Sequence[float],
    *,
    reads: Sequence[str] = (),
    conditions: Iterable[FormulaCondition] = (),
    **said: Any,
) -> PlannedPromise:
    """The document of a bound's terms, name and what it reads, and values, NaN if not known.

    `reads` are the keys of `[promise]` without which not all that can be evaluated is; what else is
    `said` are fields of the document.
    """
    known = [value for value in values if not math.isnan(value)]
    evaluated = math.fsum(known) if known else None
    return PlannedPromise(
        steps=run.steps,
        bound=evaluated if len(known) == len(values) else None,
        evaluated=evaluated,
        terms=tuple(
            PlannedTerm(name=name, value=None, reason=f"reads {what}")
            if math.isnan(value)
            else PlannedTerm(name=name, value=value, reason="")
            for (name, what), value in zip(terms, values, strict=True)
        ),
        needs=tuple(key for key in reads if math.isnan(run.constants[key])),
        conditions=tuple(
            ClaimCondition(text=condition.text, holds=condition.holds)
            for condition in (*conditions, *run.general)
        ),
        **{**_UNSAID, **said},
    )


def constant_rate(run: PromisedRun, right: float, text: str) -> FormulaCondition:
    """The condition that every step has the `right` learning rate, which `text` has in symbols."""
    here = " to ".join(f"{rate:.4g}" for rate in sorted({min(run.rates), max(run.rates)}))
    return FormulaCondition(
        f"a learning rate of {text} = {right:.4g} at every step (here {here})",
        all(math.isclose(rate, right, rel_tol=1e-3) for rate in run.rates),
    )
