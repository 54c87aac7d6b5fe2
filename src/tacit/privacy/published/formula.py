"""What a published privacy formula is, and one line of the table of claims.

A formula is a claim, its reading and the conditions that it needs. A line of the table is a paper's
experiment under one reading, with its bounds. Readings differ in relation and sampler where a paper
leaves them open or contradicts itself. The kindest to the paper comes first: Poisson sampling and
one record left out (zero-out), under which the same noise costs least. The paper's own words, where
they differ, are a second line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Generic, TypeVar

import numpy as np

from tacit.errors import InputError
from tacit.privacy.accounting import accounting
from tacit.privacy.accounting.gaussian import Array
from tacit.privacy.accounting.private_state import table_lower_epsilon
from tacit.privacy.mechanisms.base import REPLACE_ONE, Mechanism, Relation
from tacit.privacy.mechanisms.steps import FixedBatchGaussian, PrivateState, SampledGaussian

Run = TypeVar("Run")


@dataclass(frozen=True)
class ClaimedRun:
    """What a published formula of a noised-gradient method reads of one node's run.

    Args:
        records: J.
        clip: clipping bound of each step.
        noise_std: standard deviation of the noise in the batch mean, each step.
        expected_batch: q J; the papers draw one record.
        delta: the delta of the claim.
        constant: the unspecified constant (c2 of PrivSGP-VR).
    """

    records: int
    clip: Sequence[float]
    noise_std: Sequence[float]
    expected_batch: float
    delta: float
    constant: float = 1.0

    @property
    def mu(self) -> Array:
        """mu_k = C_k / sigma_k, each step."""
        return np.asarray(self.clip, np.float64) / np.asarray(self.noise_std, np.float64)


@dataclass(frozen=True)
class FormulaCondition:
    """A condition that the paper states, or silently needs, and whether this run meets it."""

    text: str
    holds: bool


@dataclass(frozen=True)
class PublishedFormula(Generic[Run]):
    """A published privacy formula, over the parameters that it reads (`Run`).

    Args:
        statement: the formula as printed, in one line.
        source: paper and number.
        reading: how it is applied here, in the way kindest to the paper.
        epsilon: the epsilon it claims for a run; infinity if the formula overflows.
        conditions: what it needs.
    """

    statement: str
    source: str
    reading: str
    epsilon: Callable[[Run], float]
    conditions: Callable[[Run], tuple[FormulaCondition, ...]]


Formula = PublishedFormula[ClaimedRun]


def one_record(run: ClaimedRun) -> FormulaCondition:
    """The formulas are printed for one record a step."""
    return FormulaCondition(
        f"printed for one record a step (expected here {run.expected_batch:.4g})",
        run.expected_batch <= 1,
    )


def positive(**values: float) -> None:
    """Refuse parameters of a formula that are not positive and finite; raises InputError."""
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise InputError(name, value, "must be positive and finite")


Bounds = Callable[[float], tuple[float | None, float | None]]
"""From delta: a proved lower bound on epsilon (None: none is known), and a certified upper one."""

# Several algorithms release one mechanism.
_remembered = lru_cache(maxsize=512)

KINDEST = "Poisson sampling, one record left out"
ONE_OF_J = "one of J drawn, one record replaced"


@dataclass(frozen=True)
class PaperSetting:
    """A paper's own experiment under one reading.

    Args:
        paper: where it is printed.
        algorithm: whose noise.
        experiment: data set and the numbers that matter.
        reading: sampler, relation and what had to be assumed, in one line.
        kindest: whether this is the reading most favourable to the paper.
        claimed: epsilon that the paper claims; None where it claims none.
        delta: of claim and bounds; None where none is printed.
        noise_multiplier: first and last; noise standard deviation over the clipping bound, of the
            sum; None where it is not determined by what is printed.
        relation: the neighbouring relation; None without a mechanism.
        mechanism: what an observer sees; None where it is not determined, or none states it.
        bounds: how epsilon is bounded; None where nothing can be.
        conditions: of the claim, and whether they hold.
        missing: what is not printed, where nothing can be certified.
    """

    paper: str
    algorithm: str
    experiment: str
    reading: str
    kindest: bool = True
    claimed: float | None = None
    delta: float | None = None
    noise_multiplier: tuple[float, float] | None = None
    relation: Relation | None = None
    mechanism: Mechanism | None = None
    bounds: Bounds | None = None
    conditions: tuple[FormulaCondition, ...] = ()
    missing: str = ""


@dataclass(frozen=True)
class Reading:
    """A mechanism that a paper's words may mean, and its bounds."""

    text: str
    kindest: bool
    mechanism: Mechanism
    bounds: Bounds


def certified_bounds(mechanism: Mechanism, *, bound_is_tight: bool) -> Bounds:
    """The certified bound of a mechanism, and the lower one where the algorithm attains it.

    `bound_is_tight` says that an instance of the algorithm is known to attain the mechanism's pair,
    as linear losses do; where none is, no lower bound is stated.
    """
    return partial(_tight_bounds if bound_is_tight else _upper_bound, mechanism)


@_remembered
def _tight_bounds(mechanism: Mechanism, delta: float) -> tuple[float | None, float | None]:
    return accounting.epsilon_bounds(mechanism, delta=delta)


@_remembered
def _upper_bound(mechanism: Mechanism, delta: float) -> tuple[float | None, float | None]:
    return None, accounting.epsilon(mechanism, delta=delta)


@_remembered
def _table_bounds(mechanism: PrivateState, delta: float) -> tuple[float | None, float | None]:
    """The certified bound of a gradient table, and what an explicit instance of it proves."""
    lower = table_lower_epsilon(mechanism, delta)
    return lower or None, accounting.epsilon(mechanism, delta=delta)


def one_record_readings(
    records: int, noise_multiplier: float | Sequence[float], steps: int
) -> tuple[Reading, Reading]:
    """One record a step without private state: the kindest reading and the papers' own words."""
    poisson = SampledGaussian(1 / records, noise_multiplier, steps)
    fixed = FixedBatchGaussian(1, records, noise_multiplier, steps)
    return (
        Reading(KINDEST, True, poisson, certified_bounds(poisson, bound_is_tight=True)),
        Reading(ONE_OF_J, False, fixed, certified_bounds(fixed, bound_is_tight=True)),
    )


def private_table_readings(
    records: int, noise_multiplier: float, steps: int
) -> tuple[Reading, Reading]:
    """PrivSGP-VR: a private table carries the record to the steps that do not draw it.

    A step that draws it shifts by at most (2 - 1/J) G, any other by G / J; twice that if replaced.
    """
    drawn_norm, undrawn_norm = 2 - 1 / records, 1 / records
    poisson = PrivateState(1 / records, drawn_norm, undrawn_norm, noise_multiplier, steps)
    fixed = PrivateState(
        1 / records,
        drawn_norm,
        undrawn_norm,
        noise_multiplier,
        steps,
        sampling="fixed",
        relation=REPLACE_ONE,
    )
    return (
        Reading(KINDEST, True, poisson, partial(_table_bounds, poisson)),
        Reading(ONE_OF_J, False, fixed, partial(_table_bounds, fixed)),
    )


def schedule_run(
    records: int,
    noise_multiplier: float | Sequence[float],
    steps: int,
    delta: float,
    constant: float = 1.0,
) -> ClaimedRun:
    """What a formula reads of an experiment with one record a step, clipped at 1."""
    noise = np.broadcast_to(np.asarray(noise_multiplier, np.float64), steps)
    return ClaimedRun(records, (1.0,) * steps, tuple(noise.tolist()), 1.0, delta, constant)
