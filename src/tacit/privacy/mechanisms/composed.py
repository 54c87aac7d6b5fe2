"""Mechanisms: what an observer sees of one record, as frozen, serialisable data.

A mechanism says nothing about how epsilon is computed: every accountant reads the same
statement. Compatibility: a field of a mechanism never changes its meaning; a statement
(`tacit.privacy.mechanisms.serialise`) carries a format version and is read back by every later
release.

Unit, trust model, noise multiplier and relation, which all mechanisms share, are explained in
`tacit.privacy.mechanisms.steps`, where those of one release a step are; here are those made of
others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType
from typing import Any

from tacit.errors import InputError
from tacit.privacy.mechanisms.checks import few_enough, share, whole
from tacit.privacy.mechanisms.steps import (
    ADD_OR_REMOVE_ONE,
    REPLACE_ONE,
    CarriedState,
    FixedBatchGaussian,
    Gaussian,
    Laplace,
    PrivateState,
    Relation,
    SampledGaussian,
    Scheduled,
    Unit,
    levels,
    schedule,
)

__all__ = [
    "ADD_OR_REMOVE_ONE",
    "MECHANISMS",
    "REPLACE_ONE",
    "CarriedState",
    "ClientSampling",
    "Composed",
    "FixedBatchGaussian",
    "Gaussian",
    "Laplace",
    "Mechanism",
    "PrivateState",
    "Relation",
    "SampledGaussian",
    "Scheduled",
    "Unit",
    "compose",
    "levels",
    "released_values",
    "schedule",
]


@dataclass(frozen=True)
class Composed:
    """Several mechanisms on the same data, one after the other, each seeing what went before.

    What an adaptive composition costs does not depend on the order of its steps, so the parts are
    kept in one form, and equal compositions are equal: nested ones are flattened, those that
    differ in their schedules only become one with all of their steps, and those that differ in
    their rounds only one with all rounds.

    Args:
        parts: what is released, of one relation, unit and trust model.
    """

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
            key = keys.get(id(part)) or keys.setdefault(id(part), _merging(part).key(part))
            groups.setdefault(key, []).append(part)
        for name in ("relation", "unit", "trust_model"):
            values = sorted({getattr(key, name) for key in groups})
            if len(values) > 1:
                raise InputError("parts", values, f"must agree in their {name}")
        parts = tuple(_merging(key).merge(parts) for key, parts in groups.items())
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


@dataclass(frozen=True)
class ClientSampling:
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

    participation: Mechanism
    rate: float
    rounds: int

    def __post_init__(self) -> None:
        if type(self.participation) not in MECHANISMS:
            raise InputError("participation", self.participation, "must be a mechanism")
        object.__setattr__(self, "rate", share("rate", self.rate))
        object.__setattr__(self, "rounds", whole("rounds", self.rounds))
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


Mechanism = Scheduled | Composed | ClientSampling
MECHANISMS: tuple[type[Mechanism], ...] = (
    Gaussian,
    SampledGaussian,
    FixedBatchGaussian,
    Laplace,
    PrivateState,
    CarriedState,
    Composed,
    ClientSampling,
)


def compose(mechanism: Mechanism, times: int) -> Mechanism:
    """The mechanism, released `times` times: its schedule, rounds or parts that many times over.

    Raises:
        InputError: `times` is not a whole number of 1 or more, or there are too many steps.
    """
    times = whole("times", times)
    if type(mechanism) not in MECHANISMS:
        raise InputError("mechanism", mechanism, "must be a mechanism")
    return _merging(mechanism).repeat(mechanism, times)


@dataclass(frozen=True)
class _Merging:
    """How mechanisms of one kind become one.

    Args:
        key: what must be equal of two that become one.
        merge: one mechanism of several of one key.
        repeat: one mechanism, so many times.
    """

    key: Callable[[Any], Mechanism]
    merge: Callable[[Sequence[Any]], Mechanism]
    repeat: Callable[[Any, int], Mechanism]


def _flat(part: Mechanism) -> Iterable[Mechanism]:
    if type(part) not in MECHANISMS:
        raise InputError("parts", part, "must be a mechanism")
    return part.parts if isinstance(part, Composed) else (part,)


def _end_to_end(parts: Sequence[Scheduled]) -> Scheduled:
    few_enough("parts", sum(part.steps or 0 for part in parts))
    if len(parts) == 1:
        return parts[0]
    steps = tuple(chain.from_iterable(map(schedule, parts)))
    return replace(parts[0], noise_multiplier=steps, steps=None)


def _over_and_over(mechanism: Scheduled, times: int) -> Scheduled:
    few_enough("times", (mechanism.steps or 0) * times)
    return replace(mechanism, noise_multiplier=schedule(mechanism) * times, steps=None)


_SCHEDULES = _Merging(
    key=lambda part: replace(part, noise_multiplier=1.0, steps=1),
    merge=_end_to_end,
    repeat=_over_and_over,
)
_OTHERS: Mapping[type[Mechanism], _Merging] = MappingProxyType(
    {
        ClientSampling: _Merging(
            key=lambda part: replace(part, rounds=1),
            merge=lambda parts: replace(parts[0], rounds=sum(part.rounds for part in parts)),
            repeat=lambda part, times: replace(part, rounds=part.rounds * times),
        ),
        Composed: _Merging(
            key=lambda part: part,
            merge=Composed,
            repeat=lambda whole, times: Composed([compose(part, times) for part in whole.parts]),
        ),
    }
)


def _merging(mechanism: Mechanism) -> _Merging:
    return _OTHERS.get(type(mechanism), _SCHEDULES)


def released_values(mechanism: Mechanism) -> int:
    """Noised values that a mechanism releases on the lattice, in all steps; 0 for ideal noise.

    Of a client that takes part in some rounds: as if it took part in all.
    """
    return _VALUES.get(type(mechanism), _scheduled_values)(mechanism)


def _scheduled_values(mechanism: Any) -> int:
    return int(mechanism.steps * getattr(mechanism, "coordinates", 0))


_VALUES: Mapping[type[Mechanism], Callable[[Any], int]] = MappingProxyType(
    {
        Composed: lambda whole: sum(map(released_values, whole.parts)),
        ClientSampling: lambda one: one.rounds * released_values(one.participation),
    }
)
