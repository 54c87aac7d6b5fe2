"""What a published privacy formula is: a claim, its reading and the conditions that it needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from tacit.errors import InputError
from tacit.privacy.accounting.gaussian import Array

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
