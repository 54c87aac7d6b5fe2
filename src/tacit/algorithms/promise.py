"""What the theorems of an algorithm's paper promise of a planned run: what they read and say.

An algorithm states it in its file, as a function of a `PromisedRun`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tacit.privacy.published import FormulaCondition
from tacit.privacy.published.utility import Budget
from tacit.topology.mixing import Mixing

__all__ = ["PromiseTerm", "PromisedBound", "PromisedRun", "constant_rate", "ordinary_run", "terms"]


@dataclass(frozen=True)
class PromisedRun:
    """A planned run as the theorems of its paper see it.

    Args:
        options: of the algorithm, without open rules.
        steps: K.
        parameters: d.
        records: J of each node.
        rates: learning rate of each step, `[steps]`.
        expected_batch: the largest of any node.
        budgets: of each node, as they were asked for; None where one has none.
        clip: C_k, `[steps]`; None: nothing is clipped.
        noise: deviation of the noise of each step up to a factor, `[steps]`.
        variances: of each node's own noise in one coordinate of its batch mean, the mean over the
            steps, `[nodes]`.
        start_norm: the squared l2 norm of the start.
        constants: of `[promise]`, by key; NaN where one is not given.
        c2: the paper's unspecified constant.
        claimed: what the paper's privacy formula reads of each node; none without noise and clip.
        claim_conditions: of that formula.
        mixing: of the steps.
        own_noise: whether each node draws its noise for itself.
        faultless: whether no message is lost and no node away.
    """

    options: Any
    steps: int
    parameters: int
    records: tuple[int, ...]
    rates: tuple[float, ...]
    expected_batch: float
    budgets: tuple[Budget, ...] | None
    clip: tuple[float, ...] | None
    noise: tuple[float, ...]
    variances: tuple[float, ...]
    start_norm: float
    constants: Mapping[str, float]
    c2: float
    claimed: Sequence[Any]
    claim_conditions: tuple[FormulaCondition, ...]
    mixing: Mixing
    own_noise: bool
    faultless: bool

    @property
    def nodes(self) -> int:
        """How many there are."""
        return len(self.records)

    @property
    def budget(self) -> Budget | None:
        """That of every node, where all nodes are alike."""
        return self.budgets[0] if self.budgets and len(set(self.budgets)) == 1 else None


@dataclass(frozen=True)
class PromiseTerm:
    """A term of the bound; `value` is None where it is not evaluated, for that `reason`."""

    name: str
    value: float | None
    reason: str = ""


@dataclass(frozen=True)
class PromisedBound:
    """The paper's words of a run, as `report.documents.plan.PlannedPromise` has them.

    `reads` are the keys of `[promise]` without which not all that can be evaluated is.
    """

    source: str
    quantity: str
    terms: tuple[PromiseTerm, ...]
    reads: tuple[str, ...] = ()
    best_steps: float | None = None
    best_bound: float | None = None
    trivial_bound: float | None = None
    order: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    conditions: tuple[FormulaCondition, ...] = ()


def terms(rows: Sequence[tuple[str, str]], values: Sequence[float]) -> tuple[PromiseTerm, ...]:
    """Terms of a bound, from name and what it reads; those that are NaN are not evaluated."""
    return tuple(
        PromiseTerm(name, None, f"reads {reads}") if math.isnan(value) else PromiseTerm(name, value)
        for (name, reads), value in zip(rows, values, strict=True)
    )


def constant_rate(run: PromisedRun, right: float, text: str) -> FormulaCondition:
    """The condition that every step has the `right` learning rate, which `text` has in symbols."""
    here = " to ".join(f"{rate:.4g}" for rate in sorted({min(run.rates), max(run.rates)}))
    return FormulaCondition(
        f"a learning rate of {text} = {right:.4g} at every step (here {here})",
        all(math.isclose(rate, right, rel_tol=1e-3) for rate in run.rates),
    )


def ordinary_run(run: PromisedRun) -> Iterator[FormulaCondition]:
    """What no theorem covers: noise that nodes share, and faults."""
    yield FormulaCondition("noise that each node draws for itself", run.own_noise)
    yield FormulaCondition("no lost messages, and no node away", run.faultless)
