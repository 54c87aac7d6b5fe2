"""Mechanisms of one release a step, each with its own noise: what one record contributes, as data.

Common to all of them:

- *Unit*: what neighbouring data sets differ in: one `record` of one node, or all the data of one
  `client`. With `client`, read "client's contribution" for "record's contribution" below.
- *Trust model* `all-messages`: the observer sees every message of every step, the graph, the
  mixing weights, the start and who is active. `server`: so does the server, while clients see only
  what it sends them, which is computed from those messages; the bound is that against the server.
  Gossip, push-sum, momentum of noised gradients and compression are then post-processing of a
  node's noised gradients, which is all that is stated.
- *Noise multiplier*: standard deviation of the noise in every coordinate of the **sum** over the
  batch (for Laplace noise its scale), over the clipping bound `C` of one record's contribution.
  The relation decides the sensitivity: `C` under `add-or-remove-one`, up to `2 C` under
  `replace-one`.
- *Coordinates*: how many numbers a step releases, each noised on the lattice of
  `tacit.privacy.noise.gaussian`; what finite arithmetic then adds to epsilon is part of every
  bound. 0 states ideal noise.
- *Relation* `add-or-remove-one`: neighbouring data sets differ in one record that contributes
  nothing in one of them; the number of records `J` is public (zero-out), so that the rate b / J
  and the fixed denominator reveal nothing. `replace-one`: one record has another value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tacit.errors import InputError
from tacit.privacy.mechanisms.checks import (
    count,
    fixed_size,
    multipliers,
    number,
    positive,
    share,
    whole,
    word,
)

__all__ = [
    "ADD_OR_REMOVE_ONE",
    "REPLACE_ONE",
    "TRUST_MODEL",
    "TRUST_MODELS",
    "CarriedState",
    "FixedBatchGaussian",
    "Gaussian",
    "Laplace",
    "PrivateState",
    "Relation",
    "SampledGaussian",
    "Scheduled",
    "Unit",
    "levels",
    "schedule",
]

Relation = Literal["add-or-remove-one", "replace-one"]
ADD_OR_REMOVE_ONE: Relation = "add-or-remove-one"
REPLACE_ONE: Relation = "replace-one"
TRUST_MODEL = "all-messages"
TRUST_MODELS = (TRUST_MODEL, "server")
UNITS = ("record", "client")
Unit = Literal["record", "client"]
Sampling = Literal["poisson", "fixed", "groups"]


def _freeze(mechanism: Any, **numbers: Callable[[str, object], float]) -> None:
    """Check every field and keep the numbers as plain ones, so that equal mechanisms are equal.

    The schedule is spelt out, one multiplier a step.
    """
    for name, check in numbers.items():
        object.__setattr__(mechanism, name, check(name, getattr(mechanism, name)))
    word("relation", mechanism.relation, (ADD_OR_REMOVE_ONE, REPLACE_ONE))
    word("trust_model", mechanism.trust_model, TRUST_MODELS)
    word("unit", mechanism.unit, UNITS)
    values = multipliers(mechanism.noise_multiplier, mechanism.steps)
    object.__setattr__(mechanism, "noise_multiplier", values)
    object.__setattr__(mechanism, "steps", len(values))


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
        coordinates: numbers that a step releases on the lattice; 0 states ideal noise.
    """

    noise_multiplier: float | Sequence[float]
    steps: int | None = None
    relation: Relation = ADD_OR_REMOVE_ONE
    trust_model: str = TRUST_MODEL
    unit: Unit = "record"
    coordinates: int = 0

    def __post_init__(self) -> None:
        _freeze(self, coordinates=count)

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
        coordinates: numbers that a step releases on the lattice; 0 states ideal noise.
    """

    sample_rate: float
    noise_multiplier: float | Sequence[float]
    steps: int | None = None
    relation: Relation = ADD_OR_REMOVE_ONE
    trust_model: str = TRUST_MODEL
    unit: Unit = "record"
    coordinates: int = 0

    def __post_init__(self) -> None:
        _freeze(self, sample_rate=share, coordinates=count)

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
        coordinates: numbers that a step releases on the lattice; 0 states ideal noise.
    """

    batch: int
    records: int
    noise_multiplier: float | Sequence[float]
    steps: int | None = None
    relation: Relation = REPLACE_ONE
    trust_model: str = TRUST_MODEL
    unit: Unit = "record"
    coordinates: int = 0

    def __post_init__(self) -> None:
        fixed_size(self.relation, REPLACE_ONE)
        _freeze(self, batch=whole, records=whole, coordinates=count)
        if self.batch > self.records:
            raise InputError("batch", self.batch, f"must lie in 1..{self.records}, the records")

    @property
    def rate(self) -> float:
        """Share of the records that joins a step."""
        return self.batch / self.records


@dataclass(frozen=True)
class Laplace:
    """Laplace noise in every coordinate of a sum of contributions bounded in the l1 norm.

    A step is dominated by one Laplace distribution shifted by the l1 sensitivity, whatever the
    dimension (proof in `tacit.privacy.accounting.laplace`).

    Args:
        noise_multiplier: scale b of the noise over the l1 clipping bound; one number, or one a
            step.
        steps: how many steps; with a schedule it may be left out.
        sample_rate: Poisson rate in (0, 1]; below 1 under add-or-remove-one only.
        relation: the neighbouring relation; `replace-one` doubles the shift.
    """

    noise_multiplier: float | Sequence[float]
    steps: int | None = None
    sample_rate: float = 1.0
    relation: Relation = ADD_OR_REMOVE_ONE
    trust_model: str = TRUST_MODEL
    unit: Unit = "record"

    def __post_init__(self) -> None:
        _freeze(self, sample_rate=share)
        if self.relation == REPLACE_ONE and self.sample_rate < 1:
            raise InputError(
                "sample_rate",
                self.sample_rate,
                "must be 1 under 'replace-one': no bound is proved for sampled Laplace noise "
                "there; use 'add-or-remove-one'",
            )

    @property
    def rate(self) -> float:
        """Share of the records that joins a step, in expectation."""
        return self.sample_rate


@dataclass(frozen=True)
class PrivateState:
    """A record drawn at random steps, which private state carries into all the others.

    At a step that draws the record its contribution to the sum is at most `hit`, at any other at
    most `miss`, both over the clipping bound C and whatever happened before (gradient tables,
    un-noised local variables). Under `replace-one` both double. What else must hold for the
    bounds, the proofs and the reach of each is in `tacit.privacy.accounting.private_state`.

    A table of gradients, without clipping their differences: hit = 2 - q, miss = q, for the batch
    mean times qJ. With the difference clipped at C_d: hit = C_d / C + q.

    Args:
        sample_rate: q in (0, 1], chance that a step draws the record, independently.
        hit: bound of the contribution where it is drawn, over C.
        miss: bound of the contribution where it is not, over C; at most `hit`.
        noise_multiplier: over C, of the sum; one number, or one a step.
        steps: how many steps; with a schedule it may be left out.
        sampling: `poisson` (a coin for every record, independent of everything else), or `fixed`
            (a batch of fixed size, one record included: replace-one only), or `groups` (a coin
            for every group of records, which are drawn together).
        relation: the neighbouring relation.
        coordinates: numbers that a step releases on the lattice; 0 states ideal noise.
    """

    sample_rate: float
    hit: float
    miss: float
    noise_multiplier: float | Sequence[float]
    steps: int | None = None
    sampling: Sampling = "poisson"
    relation: Relation = ADD_OR_REMOVE_ONE
    trust_model: str = TRUST_MODEL
    unit: Unit = "record"
    coordinates: int = 0

    def __post_init__(self) -> None:
        _freeze(self, sample_rate=share, hit=positive, miss=number, coordinates=count)
        word("sampling", self.sampling, ("poisson", "fixed", "groups"))
        if not 0 <= self.miss <= self.hit:
            raise InputError("miss", self.miss, f"must lie between 0 and hit = {self.hit:g}")
        if self.sampling == "fixed":
            fixed_size(self.relation, REPLACE_ONE)

    @property
    def rate(self) -> float:
        """Chance that a step draws the record."""
        return self.sample_rate


@dataclass(frozen=True)
class CarriedState:
    """A record that un-noised state carries on, from the step that draws it to all later ones.

    Once drawn at step k, the record moves the messages of step k and of all later ones, each over
    the standard deviation of its noise and taken together as one vector, by at most `1 / z_k` in
    the l2 norm, whatever happened before; what several drawn steps move adds up; twice that under
    `replace-one`. A record that no step draws moves nothing. What else must hold, and the bound
    (Bound B: amplification is given up), is in `tacit.privacy.accounting.persistent_state`.

    The first steps of such a mechanism are bounded by the first multipliers. A step that is run
    again, from state of before, is more than one multiplier: see `tacit.privacy.ledger.spent`.

    Args:
        sample_rate: q in (0, 1], chance that a step draws the record, independently.
        noise_multiplier: z_k of each step, as above; one number, or one a step.
        steps: how many steps; with a schedule it may be left out.
        relation: the neighbouring relation.
        coordinates: numbers that a step releases on the lattice; 0 states ideal noise.
    """

    sample_rate: float
    noise_multiplier: float | Sequence[float]
    steps: int | None = None
    relation: Relation = ADD_OR_REMOVE_ONE
    trust_model: str = TRUST_MODEL
    unit: Unit = "record"
    coordinates: int = 0

    def __post_init__(self) -> None:
        _freeze(self, sample_rate=share, coordinates=count)

    @property
    def rate(self) -> float:
        """Chance that a step draws the record."""
        return self.sample_rate


Scheduled = Gaussian | SampledGaussian | FixedBatchGaussian | Laplace | PrivateState | CarriedState


def levels(mechanism: Scheduled) -> tuple[tuple[float, int], ...]:
    """The distinct noise multipliers of a mechanism, ascending, each with its number of steps.

    Order is irrelevant to composition, so this is all an accountant needs.
    """
    return tuple(sorted(Counter(schedule(mechanism)).items()))


def schedule(mechanism: Scheduled) -> tuple[float, ...]:
    """The noise multiplier of each step, in order."""
    return mechanism.noise_multiplier  # type: ignore[return-value]  # a tuple once it is made
