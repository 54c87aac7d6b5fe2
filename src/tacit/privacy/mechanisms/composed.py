"""Mechanisms: what an observer sees of one record, as frozen, serialisable data.

A mechanism says nothing about how epsilon is computed: every accountant reads the same
statement. Compatibility: a field of a mechanism never changes its meaning; a statement
(`tacit.privacy.mechanisms.serialise`) carries a format version and is read back by every later
release.

Unit, trust model, noise multiplier and relation, which all mechanisms share, are explained in
`tacit.privacy.mechanisms.base`; those of one release a step are in
`tacit.privacy.mechanisms.steps`, and here are those made of others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Self

from tacit.errors import InputError
from tacit.privacy.mechanisms.allocation import RandomAllocationGaussian
from tacit.privacy.mechanisms.base import (
    Mechanism,
    Relation,
    Unit,
    check_fields,
    few_enough,
    whole,
)
from tacit.privacy.mechanisms.steps import (
    FixedBatchGaussian,
    Gaussian,
    Laplace,
    PersistentState,
    PrivateState,
    SampledGaussian,
)
from tacit.privacy.mechanisms.trials import BestOfTrials


@dataclass(frozen=True)
class Composed(Mechanism):
    """Several mechanisms on the same data, one after the other, each seeing what went before.

    What an adaptive composition costs does not depend on the order of its steps, so the parts are
    kept in one form, and equal compositions are equal: nested ones are flattened, those that differ
    in their schedules only become one with all of their steps, and those that differ in their
    rounds only one with all rounds. The parts are of one relation, unit and trust model.
    """

    kind = "composed"
    parts: Sequence[Mechanism]

    def __post_init__(self) -> None:
        if not isinstance(self.parts, Iterable):
            raise InputError("parts", self.parts, "must be a list of mechanisms")
        flat = list(chain.from_iterable(map(_flat, self.parts)))
        if not flat:
            raise InputError("parts", (), "needs at least one mechanism")
        groups: dict[Mechanism, list[Mechanism]] = {}
        keys: dict[int, Mechanism] = {}  # by identity: a million times the same part is common
        for part in flat:
            key = keys.get(id(part)) or keys.setdefault(id(part), part.merge_key())
            groups.setdefault(key, []).append(part)
        for name in ("relation", "unit", "trust_model"):
            values = sorted({getattr(key, name) for key in groups})
            if len(values) > 1:
                raise InputError("parts", values, f"must agree in their {name}")
        parts = tuple(type(key).merged(parts) for key, parts in groups.items())
        object.__setattr__(self, "parts", parts)

    @property
    def relation(self) -> Relation:
        """The neighbouring relation, common to all parts."""
        return self.parts[0].relation

    @property
    def trust_model(self) -> str:
        """Who sees what, common to all parts."""
        return self.parts[0].trust_model

    @property
    def unit(self) -> Unit:
        """What neighbouring data sets differ in, common to all parts."""
        return self.parts[0].unit

    @property
    def steps(self) -> int:
        """Steps of all parts together."""
        return sum(part.steps or 0 for part in self.parts)

    @property
    def rate(self) -> float:
        """The largest share of the records that joins a step of a part."""
        return max(part.rate for part in self.parts)

    @property
    def inner(self) -> Sequence[Mechanism]:
        """The parts."""
        return self.parts

    def describe(self) -> str:
        """Its parts, each in one line."""
        return "; then ".join(part.describe() for part in self.parts)

    def explain(self, number_text: Callable[[float], str]) -> str:
        """What its parts release, in words, each once."""
        words = [part.explain(number_text) for part in self.parts]
        return "; then ".join(dict.fromkeys(words))

    def released_values(self) -> int:
        """Noised values that its parts release on the lattice."""
        return sum(part.released_values() for part in self.parts)

    def repeated(self, times: int) -> Self:
        """The composition of its parts, each released so many times."""
        return replace(self, parts=[compose(part, times) for part in self.parts])

    def merge_key(self) -> Self:
        """The composition itself."""
        return self

    @classmethod
    def merged(cls, parts: Sequence[Mechanism]) -> Self:
        """The composition of all parts."""
        return cls(parts)


@dataclass(frozen=True)
class ClientSampling(Mechanism):
    """A client that takes part in some rounds only, which everyone sees.

    In each round the client takes part with probability `rate`, whatever its data, independently
    of other rounds (K of N clients drawn anew each round: K / N). Participation being visible, a
    round's privacy loss is 0 with probability 1 - rate and that of `participation` otherwise:
    delta is the exact mean over participation patterns. The bound is for epsilon stated before
    the clients are drawn; once the pattern is known, state the mechanism of the rounds that
    happened.

    Args:
        participation: everything a client releases in one round in which it takes part.
        rate: chance of taking part in a round, in (0, 1].
        rounds: number of rounds, T.
    """

    kind = "client-sampling"
    participation: Mechanism
    rate: float
    rounds: int

    def __post_init__(self) -> None:
        if type(self.participation) not in MECHANISMS:
            raise InputError("participation", self.participation, "must be a mechanism")
        check_fields(self)
        few_enough("rounds", self.rounds)

    @property
    def relation(self) -> Relation:
        """The neighbouring relation of a participation."""
        return self.participation.relation

    @property
    def trust_model(self) -> str:
        """Who sees what."""
        return self.participation.trust_model

    @property
    def unit(self) -> Unit:
        """What neighbouring data sets differ in."""
        return self.participation.unit

    @property
    def steps(self) -> int:
        """Steps if the client took part in every round."""
        return self.rounds * (self.participation.steps or 0)

    @property
    def inner(self) -> Sequence[Mechanism]:
        """What a participation releases."""
        return (self.participation,)

    def describe(self) -> str:
        """A participation in one line, the rounds, and the chance of taking part."""
        inner = self.participation.describe()
        return f"{inner} in each of {self.rounds} rounds, active with chance {self.rate:.4g}"

    def explain(self, number_text: Callable[[float], str]) -> str:
        """The rounds, the chance of taking part, and what is then released, in words."""
        return (
            f"{self.rounds:,} rounds, in each of which a client takes part with probability "
            f"{number_text(self.rate)} and then releases: {self.participation.explain(number_text)}"
        )

    def released_values(self) -> int:
        """Noised values on the lattice, as if the client took part in all rounds."""
        return self.rounds * self.participation.released_values()

    def repeated(self, times: int) -> Self:
        """The mechanism with so many times the rounds."""
        return replace(self, rounds=self.rounds * times)

    def merge_key(self) -> Self:
        """The mechanism with one round: those that differ in their rounds alone become one."""
        return replace(self, rounds=1)

    @classmethod
    def merged(cls, parts: Sequence[Self]) -> Self:
        """One mechanism with the rounds of all parts."""
        return replace(parts[0], rounds=sum(part.rounds for part in parts))


MECHANISMS: tuple[type[Mechanism], ...] = (
    Gaussian,
    SampledGaussian,
    FixedBatchGaussian,
    RandomAllocationGaussian,
    Laplace,
    PrivateState,
    PersistentState,
    Composed,
    ClientSampling,
    BestOfTrials,
)
"""Every mechanism that there is."""


def compose(mechanism: Mechanism, times: int) -> Mechanism:
    """The mechanism, released `times` times: its schedule, rounds or parts that many times over.

    Raises:
        InputError: `times` is not a whole number of 1 or more, or there are too many steps.
    """
    times = whole("times", times)
    if type(mechanism) not in MECHANISMS:
        raise InputError("mechanism", mechanism, "must be a mechanism")
    return mechanism.repeated(times)


def _flat(part: Mechanism) -> Iterable[Mechanism]:
    if type(part) not in MECHANISMS:
        raise InputError("parts", part, "must be a mechanism")
    return part.parts if isinstance(part, Composed) else (part,)
