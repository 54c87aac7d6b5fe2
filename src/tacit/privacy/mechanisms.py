"""Mechanisms: what an observer sees of one record, as frozen, serialisable data.

A mechanism says nothing about how epsilon is computed: every accountant reads the same
statement. Compatibility: a field of a mechanism never changes its meaning; a statement
(`to_statement`) carries a format version and is read back by every later release.

Common to all of them:

- *Unit*: one record of one node.
- *Trust model* `all-messages`: the observer sees every message of every step, the graph, the
  mixing weights, the start and who is active. Gossip, push-sum, momentum of noised gradients and
  compression are then post-processing of a node's noised gradients, which is all that is stated.
- *Noise multiplier*: standard deviation of the noise in every coordinate of the **sum** over the
  batch, over the clipping bound `C` of one record's contribution. The relation decides the
  sensitivity: `C` under `add-or-remove-one`, up to `2 C` under `replace-one`.
- *Relation* `add-or-remove-one`: neighbouring data sets differ in one record that contributes
  nothing in one of them; the number of records `J` is public (zero-out), so that the rate b / J
  and the fixed denominator reveal nothing. `replace-one`: one record has another value.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tacit.errors import InputError

__all__ = [
    "ADD_OR_REMOVE_ONE",
    "REPLACE_ONE",
    "FixedBatchGaussian",
    "Gaussian",
    "Mechanism",
    "Relation",
    "SampledGaussian",
    "from_statement",
    "levels",
    "schedule",
    "to_statement",
]

Relation = Literal["add-or-remove-one", "replace-one"]
ADD_OR_REMOVE_ONE: Relation = "add-or-remove-one"
REPLACE_ONE: Relation = "replace-one"
TRUST_MODEL = "all-messages"
STATEMENT_VERSION = 1


def _schedule(noise_multiplier: float | Sequence[float], steps: int | None) -> tuple[float, ...]:
    """One noise multiplier a step; raises InputError on anything but positive finite numbers."""
    if isinstance(noise_multiplier, (int, float)):
        count = 1 if steps is None else steps
        if count < 1:
            raise InputError("steps", steps, "must be 1 or more")
        values: tuple[float, ...] = (float(noise_multiplier),) * count
    else:
        values = tuple(float(value) for value in noise_multiplier)
        if not values:
            raise InputError("noise_multiplier", noise_multiplier, "needs one number a step")
        if steps is not None and steps != len(values):
            raise InputError(
                "steps", steps, f"must equal the length of the schedule, {len(values)}"
            )
    for value in values if len(set(values)) > 1 else values[:1]:
        if not (value > 0 and math.isfinite(value)):
            raise InputError("noise_multiplier", value, "must be positive and finite")
    return values


def _check_words(relation: str, trust_model: str) -> None:
    if trust_model != TRUST_MODEL:
        raise InputError("trust_model", trust_model, f"must be {TRUST_MODEL!r}, the one there is")
    if relation not in (ADD_OR_REMOVE_ONE, REPLACE_ONE):
        raise InputError("relation", relation, f"must be {ADD_OR_REMOVE_ONE!r} or {REPLACE_ONE!r}")


@dataclass(frozen=True)
class Gaussian:
    """Every record at every step: Gaussian noise on the sum of all clipped contributions.

    Adaptive composition of Gaussians is one Gaussian: `mu^2 = sum_k (s / z_k)^2` with `s` = 1
    (add-or-remove-one) or 2 (replace-one) and `z_k` the multiplier of step k (Dong, Roth and Su,
    *Gaussian differential privacy*, Cor. 3.3).

    Args:
        noise_multiplier: one number, or one a step.
        steps: how many steps; with a schedule it may be left out.
        relation: the neighbouring relation.
    """

    noise_multiplier: float | Sequence[float]
    steps: int | None = None
    relation: Relation = ADD_OR_REMOVE_ONE
    trust_model: str = TRUST_MODEL

    def __post_init__(self) -> None:
        _check_words(self.relation, self.trust_model)
        _freeze_schedule(self)

    @property
    def rate(self) -> float:
        """Share of the records that joins a step."""
        return 1.0


@dataclass(frozen=True)
class SampledGaussian:
    """Poisson-sampled Gaussian: every record joins a step's batch with the sampling rate.

    The dominating pair of one step with mu = 1 / z is, under add-or-remove-one,
    ((1-q) N(0, 1) + q N(mu, 1), N(0, 1)) and its reverse, the larger of the two after
    composition (Zhu, Dong and Wang, *Optimal accounting of differential privacy*, Thm. 11);
    under replace-one, ((1-q) N(0, 1) + q N(mu, 1), (1-q) N(0, 1) + q N(-mu, 1)).

    Args:
        sample_rate: q in (0, 1], the same at every step; independent coins for every record.
        noise_multiplier: one number, or one a step.
        steps: how many steps; with a schedule it may be left out.
        relation: the neighbouring relation.
    """

    sample_rate: float
    noise_multiplier: float | Sequence[float]
    steps: int | None = None
    relation: Relation = ADD_OR_REMOVE_ONE
    trust_model: str = TRUST_MODEL

    def __post_init__(self) -> None:
        if not 0 < self.sample_rate <= 1:
            raise InputError("sample_rate", self.sample_rate, "must lie in (0, 1]")
        _check_words(self.relation, self.trust_model)
        _freeze_schedule(self)

    @property
    def rate(self) -> float:
        """Share of the records that joins a step, in expectation."""
        return self.sample_rate


@dataclass(frozen=True)
class FixedBatchGaussian:
    """Gaussian on a batch of fixed size, drawn without replacement: replace-one only.

    With q = batch / records and mu = 2 / z one step is dominated by the pointwise maximum of the
    profiles of ((1-q) N(0, 1) + q N(mu, 1), N(0, 1)) and of its reverse (advanced joint convexity
    and a coupling of the batches; Balle, Barthe and Gaboardi, *Privacy amplification by
    subsampling*, Thm. 11). The worse direction may change from step to step, so the maximum is
    taken before composition. Zero-out is not offered: with a fixed size another record moves in,
    and the sensitivity is 2 C all the same.

    Args:
        batch: b, records a step.
        records: J, records of the node.
        noise_multiplier: over the clipping bound C (not over 2 C); one number, or one a step.
        steps: how many steps; with a schedule it may be left out.
    """

    batch: int
    records: int
    noise_multiplier: float | Sequence[float]
    steps: int | None = None
    relation: Relation = REPLACE_ONE
    trust_model: str = TRUST_MODEL

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= self.records:
            raise InputError("batch", self.batch, f"must lie in 1..{self.records}, the records")
        if self.relation != REPLACE_ONE:
            raise InputError(
                "relation",
                self.relation,
                "a batch of fixed size is accounted under 'replace-one' only: another record "
                "moves in for the one that is left out; use Poisson sampling",
            )
        _check_words(self.relation, self.trust_model)
        _freeze_schedule(self)

    @property
    def rate(self) -> float:
        """Share of the records that joins a step."""
        return self.batch / self.records


Mechanism = Gaussian | SampledGaussian | FixedBatchGaussian


def _freeze_schedule(mechanism: Mechanism) -> None:
    """Spell the schedule out, one multiplier a step, so that equal mechanisms compare equal."""
    multipliers = _schedule(mechanism.noise_multiplier, mechanism.steps)
    object.__setattr__(mechanism, "noise_multiplier", multipliers)
    object.__setattr__(mechanism, "steps", len(multipliers))


def levels(mechanism: Mechanism) -> tuple[tuple[float, int], ...]:
    """The distinct noise multipliers of a mechanism, ascending, each with its number of steps.

    Order is irrelevant to composition, so this is all an accountant needs.
    """
    return tuple(sorted(Counter(schedule(mechanism)).items()))


def schedule(mechanism: Mechanism) -> tuple[float, ...]:
    """The noise multiplier of each step, in order."""
    return _schedule(mechanism.noise_multiplier, mechanism.steps)


KINDS: Mapping[str, Callable[..., Mechanism]] = {
    "gaussian": Gaussian,
    "sampled-gaussian": SampledGaussian,
    "fixed-batch-gaussian": FixedBatchGaussian,
}


def to_statement(mechanism: Mechanism) -> dict[str, Any]:
    """A mechanism as JSON-ready data: kind, version, every number, the schedule in runs.

    The schedule is `[[multiplier, steps], ...]` in the order of the steps.
    """
    kind = next(name for name, make in KINDS.items() if make is type(mechanism))
    runs: list[list[float]] = []
    for value in schedule(mechanism):
        if runs and runs[-1][0] == value:
            runs[-1][1] += 1
        else:
            runs.append([value, 1])
    fields = {key: value for key, value in vars(mechanism).items() if key != "noise_multiplier"}
    return {"kind": kind, "version": STATEMENT_VERSION, **fields, "noise_multiplier": runs}


def from_statement(statement: Mapping[str, Any]) -> Mechanism:
    """The mechanism of a statement made by `to_statement`; raises InputError on anything else."""
    fields = dict(statement)
    kind = fields.pop("kind", None)
    version = fields.pop("version", None)
    if not isinstance(kind, str) or kind not in KINDS or version != STATEMENT_VERSION:
        raise InputError(
            "mechanism",
            f"{kind} version {version}",
            f"must be one of {', '.join(KINDS)}, version {STATEMENT_VERSION}",
        )
    try:
        runs = fields.pop("noise_multiplier")
        multipliers = [float(value) for value, count in runs for _ in range(count)]
        return KINDS[kind](noise_multiplier=multipliers, **fields)
    except InputError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            "mechanism", dict(statement), f"must have the fields of a {kind!r} statement"
        ) from error
