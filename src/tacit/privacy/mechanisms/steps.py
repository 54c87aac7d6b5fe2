"""Mechanisms of one release a step, each with its own noise: what one record contributes, as data.

Unit, trust model, noise multiplier, coordinates and relation are explained in
`tacit.privacy.mechanisms.base`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal, Self

from tacit.errors import InputError
from tacit.privacy.mechanisms.base import (
    ADD_OR_REMOVE_ONE,
    REPLACE_ONE,
    TRUST_MODEL,
    Mechanism,
    Relation,
    Unit,
    check_fields,
    few_enough,
    fixed_size,
    multipliers,
    word,
)

SILENT = 1e9
"""Noise multiplier that stands for no release at all: it reveals more than none does, by a part in
10^18 of the square of what a step of noise multiplier 1 does."""

Sampling = Literal["poisson", "fixed", "groups"]
_SAMPLING_WORDS = {
    "poisson": "Poisson sampling",
    "fixed": "batches of fixed size",
    "groups": "in groups, each by a coin",
}


class Scheduled(Mechanism):
    """A mechanism of one release a step: the base of those with a schedule of noise multipliers."""

    noise_multiplier: float | Sequence[float]
    steps: int | None
    relation: Relation
    trust_model: str
    unit: Unit
    coordinates: int = 0

    def __post_init__(self) -> None:
        """Check every field, and spell out the schedule: one multiplier a step."""
        check_fields(self)
        values = multipliers(self.noise_multiplier, self.steps)
        object.__setattr__(self, "noise_multiplier", values)
        object.__setattr__(self, "steps", len(values))

    @property
    def rate(self) -> float:
        """Share of the records that joins a step, in expectation, or chance that one is drawn."""
        return getattr(self, "sample_rate", 1.0)

    def with_schedule(self, noise_multipliers: Sequence[float]) -> Self:
        """The same mechanism with another schedule, one noise multiplier a step."""
        mechanism: Any = self  # a dataclass, as every mechanism is
        scheduled: Self = replace(mechanism, noise_multiplier=noise_multipliers, steps=None)
        return scheduled

    def describe(self) -> str:
        """The mechanism in one line: kind, rate and steps, without its noise multipliers."""
        return f"{self._summary()}, {self.steps} steps"

    def explain(self, number_text: Callable[[float], str]) -> str:
        """What is released, in words for someone who has to answer for it."""
        values = [z for z in schedule(self) if z < SILENT] or [SILENT]
        low, high = number_text(min(values)), number_text(max(values))
        size = low if low == high else f"{low} to {high}"
        steps = f"{len(values):,} step{'s' if len(values) > 1 else ''}"
        return f"{self._release(number_text)}, noise multiplier {size}, {steps}"

    @abstractmethod
    def _summary(self) -> str:
        """Kind and rate."""

    @abstractmethod
    def _release(self, number_text: Callable[[float], str]) -> str:
        """What the noise is added to."""

    def released_values(self) -> int:
        """Noised values that all steps release on the lattice; 0 for ideal noise."""
        return len(schedule(self)) * self.coordinates

    def repeated(self, times: int) -> Self:
        """The mechanism with its schedule so many times over."""
        few_enough("times", len(schedule(self)) * times)
        return self.with_schedule(schedule(self) * times)

    def of_steps(self, steps: Sequence[tuple[int, int, int]]) -> Self:
        """The mechanism with the multipliers of these steps.

        A repeated step is a release of its own with fresh coins and noise.
        """
        planned = schedule(self)
        return self.with_schedule(
            [z for first, until, times in steps for z in planned[first:until] * times]
        )

    def merge_key(self) -> Self:
        """The mechanism without its schedule: those that differ in it alone become one."""
        return self.with_schedule([1.0])

    @classmethod
    def merged(cls, parts: Sequence[Self]) -> Self:
        """One mechanism with the schedules of all parts, end to end."""
        few_enough("parts", sum(len(schedule(part)) for part in parts))
        if len(parts) == 1:
            return parts[0]
        return parts[0].with_schedule(tuple(chain.from_iterable(map(schedule, parts))))


@dataclass(frozen=True)
class Gaussian(Scheduled):
    """Every record at every step: Gaussian noise on the sum of all clipped contributions.

    Adaptive composition of Gaussians is one Gaussian: `mu^2 = sum_k (s / z_k)^2` with `s` = 1
    (add-or-remove-one) or 2 (replace-one) and `z_k` the multiplier of step k (Dong, Roth and Su,
    *Gaussian differential privacy*, Cor. 3.3).

    Args:
        noise_multiplier: one number, or one a step.
        steps: how many steps; with a schedule it may be left out.
        relation: the neighbouring relation.
        coordinates: numbers that a step releases on the lattice; 0 states ideal noise.
    """

    kind = "gaussian"
    noise_multiplier: float | Sequence[float]
    steps: int | None = None
    relation: Relation = ADD_OR_REMOVE_ONE
    trust_model: str = TRUST_MODEL
    unit: Unit = "record"
    coordinates: int = 0

    def _summary(self) -> str:
        return "Gaussian on every record"

    def _release(self, number_text: Callable[[float], str]) -> str:
        return "Gaussian noise on the sum over every record at every step"


@dataclass(frozen=True)
class SampledGaussian(Scheduled):
    """Poisson-sampled Gaussian: every record joins a step's batch with the sampling rate.

    The dominating pair of one step with mu = 1 / z is, under add-or-remove-one,
    ((1-q) N(0, 1) + q N(mu, 1), N(0, 1)) and its reverse, the larger of the two after
    composition (Zhu, Dong and Wang, *Optimal accounting of differential privacy*, Thm. 11);
    under replace-one, ((1-q) N(0, 1) + q N(mu, 1), (1-q) N(0, 1) + q N(-mu, 1)).

    Args:
        sample_rate: q in (0, 1], the same at every step; independent coins for every record.

    Other fields are those of `Gaussian`.
    """

    kind = "sampled-gaussian"
    sample_rate: float
    noise_multiplier: float | Sequence[float]
    steps: int | None = None
    relation: Relation = ADD_OR_REMOVE_ONE
    trust_model: str = TRUST_MODEL
    unit: Unit = "record"
    coordinates: int = 0

    def _summary(self) -> str:
        return f"Poisson-sampled Gaussian, rate {self.rate:.4g}"

    def _release(self, number_text: Callable[[float], str]) -> str:
        return (
            "Gaussian noise on the sum over a random batch, which each record joins with "
            f"probability {number_text(self.sample_rate)} (Poisson sampling)"
        )


@dataclass(frozen=True)
class FixedBatchGaussian(Scheduled):
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

    Other fields are those of `Gaussian`.
    """

    kind = "fixed-batch-gaussian"
    batch: int
    records: int
    noise_multiplier: float | Sequence[float]
    steps: int | None = None
    relation: Relation = REPLACE_ONE
    trust_model: str = TRUST_MODEL
    unit: Unit = "record"
    coordinates: int = 0

    def __post_init__(self) -> None:
        fixed_size(self.relation)
        super().__post_init__()
        if self.batch > self.records:
            raise InputError("batch", self.batch, f"must lie in 1..{self.records}, the records")

    @property
    def rate(self) -> float:
        """Share of the records that joins a step."""
        return self.batch / self.records

    def _summary(self) -> str:
        return f"Gaussian on {self.batch} of {self.records} records without replacement"

    def _release(self, number_text: Callable[[float], str]) -> str:
        return (
            f"Gaussian noise on the sum over a random batch of {self.batch:,} of {self.records:,} "
            "records, drawn without replacement"
        )


@dataclass(frozen=True)
class Laplace(Scheduled):
    """Laplace noise in every coordinate of a sum of contributions bounded in the l1 norm.

    A step is dominated by one Laplace distribution shifted by the l1 sensitivity, whatever the
    dimension (proof: `docs/proofs/composition.md`).

    Args:
        noise_multiplier: scale b of the noise over the l1 clipping bound; one number, or one a
            step.
        sample_rate: Poisson rate in (0, 1]; below 1 under add-or-remove-one only.
        relation: the neighbouring relation; `replace-one` doubles the shift.

    Other fields are those of `Gaussian`, but for `coordinates`.
    """

    kind = "laplace"
    noise_multiplier: float | Sequence[float]
    steps: int | None = None
    sample_rate: float = 1.0
    relation: Relation = ADD_OR_REMOVE_ONE
    trust_model: str = TRUST_MODEL
    unit: Unit = "record"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.relation == REPLACE_ONE and self.sample_rate < 1:
            raise InputError(
                "sample_rate",
                self.sample_rate,
                "must be 1 under 'replace-one': no bound is proved for sampled Laplace noise "
                "there; use 'add-or-remove-one'",
            )

    def _summary(self) -> str:
        return f"Laplace, rate {self.rate:.4g}"

    def _release(self, number_text: Callable[[float], str]) -> str:
        return (
            "Laplace noise on the sum over a batch that each record joins with probability "
            f"{number_text(self.sample_rate)}"
        )


@dataclass(frozen=True)
class PrivateState(Scheduled):
    """A record drawn at random steps, which private state carries into all the others.

    At a step that draws the record the norm of its contribution to the sum is at most `drawn_norm`,
    at any other at most `undrawn_norm`, both over the clipping bound C and whatever happened before
    (gradient tables, un-noised local variables). Under `replace-one` both double. What else must
    hold for the bounds, the proofs and the reach of each is in
    `tacit.privacy.accounting.private_state`.

    A table of gradients, without clipping their differences: `drawn_norm` = 2 - q and
    `undrawn_norm` = q, for the batch mean times qJ. With the difference clipped at C_d:
    `drawn_norm` = C_d / C + q.

    Args:
        sample_rate: q in (0, 1], chance that a step draws the record, independently.
        drawn_norm: bound of the contribution's norm where the record is drawn, over C.
        undrawn_norm: that where it is not drawn, over C; at most `drawn_norm`.
        sampling: `poisson` (a coin for every record, independent of everything else), or `fixed`
            (a batch of fixed size, one record included: replace-one only), or `groups` (a coin
            for every group of records, which are drawn together).

    Other fields are those of `Gaussian`.
    """

    kind = "private-state"
    sample_rate: float
    drawn_norm: float
    undrawn_norm: float
    noise_multiplier: float | Sequence[float]
    steps: int | None = None
    sampling: Sampling = "poisson"
    relation: Relation = ADD_OR_REMOVE_ONE
    trust_model: str = TRUST_MODEL
    unit: Unit = "record"
    coordinates: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        word("sampling", self.sampling, tuple(_SAMPLING_WORDS))
        if not 0 <= self.undrawn_norm <= self.drawn_norm:
            expected = f"must lie between 0 and drawn_norm = {self.drawn_norm:g}"
            raise InputError("undrawn_norm", self.undrawn_norm, expected)
        if self.sampling == "fixed":
            fixed_size(self.relation)

    def _summary(self) -> str:
        norms = f"{self.drawn_norm:.4g} C where drawn, {self.undrawn_norm:.4g} C elsewhere"
        return (
            f"Gaussian with private state, {self.sampling} sampling, rate {self.rate:.4g}, {norms}"
        )

    def _release(self, number_text: Callable[[float], str]) -> str:
        return (
            "Gaussian noise on sums that private state carries on: a record is drawn with "
            f"probability {number_text(self.sample_rate)} a step "
            f"({_SAMPLING_WORDS[self.sampling]}), contributes at most "
            f"{number_text(self.drawn_norm)} clipping bounds then and "
            f"{number_text(self.undrawn_norm)} at any other step"
        )


@dataclass(frozen=True)
class PersistentState(Scheduled):
    """A record that un-noised state carries on, from the step that draws it to all later ones.

    Once drawn at step k, the record moves the messages of step k and of all later ones, each over
    the standard deviation of its noise and taken together as one vector, by at most `1 / z_k` in
    the l2 norm, whatever happened before; what several drawn steps move adds up; twice that under
    `replace-one`. A record that no step draws moves nothing. What else must hold, and the bound
    (Bound B: amplification is given up), is in `tacit.privacy.accounting.private_state`.

    The first steps of such a mechanism are bounded by the first multipliers. A step that is run
    again, from state of before, is more than one multiplier: see `of_steps`.

    Args:
        sample_rate: q in (0, 1], chance that a step draws the record, independently.
        noise_multiplier: z_k of each step, as above; one number, or one a step.

    Other fields are those of `Gaussian`.
    """

    kind = "carried-state"
    sample_rate: float
    noise_multiplier: float | Sequence[float]
    steps: int | None = None
    relation: Relation = ADD_OR_REMOVE_ONE
    trust_model: str = TRUST_MODEL
    unit: Unit = "record"
    coordinates: int = 0

    def of_steps(self, steps: Sequence[tuple[int, int, int]]) -> Self:
        """The mechanism with the multipliers of these steps, over the root of the most repeats.

        State carries a record to later steps, so that those come up to as often as the one that is
        repeated most (`tacit.privacy.accounting.private_state`).
        """
        fresh, most = super().of_steps(steps), max(times for _, _, times in steps)
        return fresh.with_schedule([z / math.sqrt(most) for z in schedule(fresh)])

    def _summary(self) -> str:
        carried = "private state that carries a drawn record to all later steps"
        return f"Gaussian with {carried}, rate {self.rate:.4g}"

    def _release(self, number_text: Callable[[float], str]) -> str:
        return (
            "Gaussian noise on what private state carries on: a record is drawn with probability "
            f"{number_text(self.sample_rate)} a step and then moves all later messages"
        )


def levels(mechanism: Scheduled) -> tuple[tuple[float, int], ...]:
    """The distinct noise multipliers of a mechanism, ascending, each with its number of steps.

    Order is irrelevant to composition, so this is all an accountant needs.
    """
    return tuple(sorted(Counter(schedule(mechanism)).items()))


def schedule(mechanism: Scheduled) -> tuple[float, ...]:
    """The noise multiplier of each step, in order."""
    return mechanism.noise_multiplier  # type: ignore[return-value]  # a tuple once it is made
