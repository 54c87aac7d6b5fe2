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
    observer,
    whole,
)
from tacit.privacy.mechanisms.known import KnownRelease
from tacit.privacy.mechanisms.matrix import MatrixGaussian
from tacit.privacy.mechanisms.steps import (
    FixedBatchGaussian,
    Gaussian,
    Laplace,
    PersistentState,
    PrivateState,
    SampledGaussian,
)


class OfOthers(Mechanism):
    """A mechanism made of others, of one relation, unit and trust model: the base of those."""

    @property
    def relation(self) -> Relation:
        """The neighbouring relation, common to all of them."""
        return self.inner[0].relation

    @property
    def trust_model(self) -> str:
        """Who sees what, likewise."""
        return self.inner[0].trust_model

    @property
    def unit(self) -> Unit:
        """What neighbouring data sets differ in, likewise."""
        return self.inner[0].unit


class OfParts(OfOthers):
    """A mechanism made of parts, of which there may be several."""

    parts: Sequence[Mechanism]

    @property
    def inner(self) -> Sequence[Mechanism]:
        """The parts."""
        return self.parts

    @property
    def rate(self) -> float:
        """The largest share of the records that joins a step of a part."""
        return max(part.rate for part in self.parts)


@dataclass(frozen=True)
class Composed(OfParts):
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
        _agree(groups)
        parts = tuple(type(key).merged(parts) for key, parts in groups.items())
        object.__setattr__(self, "parts", parts)

    @property
    def steps(self) -> int:
        """Steps of all parts together."""
        return sum(part.steps or 0 for part in self.parts)

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

    @classmethod
    def merged(cls, parts: Sequence[Mechanism]) -> Self:
        """The composition of all parts."""
        return cls(parts)


@dataclass(frozen=True)
class ClientSampling(OfOthers):
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


MOST_ROWS = 256
"""Rows of one person at a node that are accounted for."""


@dataclass(frozen=True)
class Person(OfParts):
    """A person with several rows: what the mechanisms of a run, which protect a row, give a person.

    *Relation*: that of the parts, for up to `rows` records at each of up to `nodes` nodes together:
    all of them contribute nothing in one of the data sets, or each has another value. Both numbers
    are public and promised from outside; no run checks them. *Trust model*: that of the parts,
    which may neither share noise nor participation if `nodes` is above 1. *Theorem*: what any
    `nodes` of the parts release of `rows` records is dominated by the pairs, or by group privacy,
    of `docs/proofs/units.md`; the bound is the largest over all choices of parts.

    It is accounted by itself: compose what a node releases first, and state the person last.

    Args:
        parts: what each node releases, a mechanism a node; `unit` record.
        rows: records of a person at one node, at most; up to 256.
        nodes: nodes that hold records of one person, at most.
    """

    kind = "person"
    parts: Sequence[Mechanism]
    rows: int = 1
    nodes: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.parts, Iterable):
            raise InputError("parts", self.parts, "must be a list of mechanisms, one a node")
        object.__setattr__(self, "parts", tuple(self.parts))
        object.__setattr__(self, "rows", whole("rows", self.rows))
        object.__setattr__(self, "nodes", whole("nodes", self.nodes))
        if self.rows > MOST_ROWS:
            raise InputError("rows", self.rows, f"must be at most {MOST_ROWS}")
        kinds = {kind for part in self.parts for kind in _kinds(part)}
        if not kinds or not kinds <= set(MECHANISMS) - {Person}:
            raise InputError("parts", self.parts, "must be mechanisms of rows, at least one")
        _agree(self.parts)
        if self.unit != "record":
            expected = (
                "must be 'record': one that protects a client protects all rows at it already"
            )
            raise InputError("unit", self.unit, expected)
        if self.nodes == 1 or len(self.parts) == 1:
            return
        if observer(self.trust_model) in ("pairwise", "secure-sum"):
            expected = (
                "must be 'all-messages' or 'server': the noise of several nodes is not independent "
                "here; use `privacy.pairwise_person` for pairwise noise, and a person with "
                "nodes x rows rows for equal mechanisms behind secure sums"
            )
            raise InputError("trust_model", self.trust_model, expected)
        for kind in kinds & {ClientSampling, KnownRelease}:
            expected = (
                "what nodes share, as who takes part, or which trial wins, is not drawn for each "
                "node alone, so that no bound is proved for a person at several; state the rounds "
                "that each node took part in"
            )
            raise InputError("parts", kind.kind, expected)

    @property
    def steps(self) -> int:
        """Steps of the node that has most."""
        return max(part.steps or 0 for part in self.parts)

    def _who(self) -> str:
        nodes = "one node" if self.nodes == 1 else f"each of {self.nodes} nodes at most"
        return f"a person with at most {self.rows} row{'s' * (self.rows > 1)} at {nodes}"

    def describe(self) -> str:
        """Who is protected, and what different nodes release, each in one line."""
        words = dict.fromkeys(part.describe() for part in self.parts)
        return f"{self._who()}: {'; or '.join(words)}"

    def explain(self, number_text: Callable[[float], str]) -> str:
        """Who is protected, and what different nodes release, in words, each once."""
        words = dict.fromkeys(part.explain(number_text) for part in self.parts)
        return f"{self._who()}, promised and not checked: {'; or '.join(words)}"

    def released_values(self) -> int:
        """Noised values on the lattice that so many nodes release, at most."""
        values = sorted(part.released_values() for part in self.parts)
        return sum(values[-self.nodes :])

    def repeated(self, times: int) -> Self:
        """Every node's mechanism so many times over."""
        return replace(self, parts=[part.repeated(times) for part in self.parts])

    @classmethod
    def merged(cls, parts: Sequence[Self]) -> Self:
        """The same so many times over."""
        return parts[0].repeated(len(parts))


def for_a_unit(mechanism: Mechanism, rows: int) -> Mechanism:
    """What a run whose mechanism protects a row gives a person with at most `rows` rows at a node.

    Exact for noise on sums over every record (`Gaussian`, `Laplace`: the noise multiplier over
    `rows`) and for Poisson sampling, private state included, where the number of the person's rows
    that a step draws is binomial; for these inside `Composed` and `ClientSampling` as well. For all
    else (batches of fixed size, random allocation, sampled Laplace noise, persistent state, known
    releases) by group privacy of the mechanism's whole curve of epsilon and delta, with the best
    split of epsilon over the rows. What is proved of which: `Person`.

    Raises:
        InputError: `rows` is not a whole number from 1 to 256, or the mechanism protects a client.
    """
    rows = whole("rows", rows)
    if isinstance(mechanism, Person):
        return replace(mechanism, rows=rows * mechanism.rows)
    person = Person((mechanism,), rows)
    return person if rows > 1 else mechanism


def across_nodes(mechanisms: Sequence[Mechanism], nodes: int) -> Mechanism:
    """What a person gets who has rows at no more than `nodes` of the nodes of a run.

    Each node adds noise of its own, so that what a person loses is the adaptive composition over
    the nodes that hold rows; the bound is the largest over all sets of `nodes` of them. Mechanisms
    may be those of `for_a_unit`; the largest of their `rows` then holds for each.

    Args:
        mechanisms: what each node releases, a mechanism a node.
        nodes: how many of them hold rows of one person at most: a public promise.

    Raises:
        InputError: there is no mechanism, they differ in relation or trust model, or nothing is
            proved for noise or participation that nodes share (`Person`).
    """
    parts: list[Mechanism] = []
    rows = 1
    for mechanism in mechanisms:
        if not isinstance(mechanism, Person):
            parts.append(mechanism)
        elif len(mechanism.parts) == 1:
            parts.append(mechanism.parts[0])
            rows = max(rows, mechanism.rows)
        else:
            raise InputError("mechanisms", mechanism.describe(), "must be one node's each")
    return Person(parts, rows, nodes)


def _agree(parts: Iterable[Mechanism]) -> None:
    for name in ("relation", "unit", "trust_model"):
        values = sorted({getattr(part, name) for part in parts})
        if len(values) > 1:
            raise InputError("parts", values, f"must agree in their {name}")


def _kinds(part: Mechanism) -> set[type[Mechanism]]:
    """The kinds of a mechanism and of all that it is made of."""
    return {type(part)}.union(*map(_kinds, getattr(part, "inner", ())))


MECHANISMS: tuple[type[Mechanism], ...] = (
    Gaussian,
    SampledGaussian,
    FixedBatchGaussian,
    RandomAllocationGaussian,
    MatrixGaussian,
    Laplace,
    PrivateState,
    PersistentState,
    Composed,
    ClientSampling,
    Person,
    KnownRelease,
)
"""Every mechanism that there is."""


def compose(mechanism: Mechanism, times: int) -> Mechanism:
    """The mechanism, released `times` times: its schedule, rounds or parts that many times over.

    Raises:
        InputError: `times` is not a whole number of 1 or more, or there are too many steps.
    """
    if type(mechanism) not in MECHANISMS:
        raise InputError("mechanism", mechanism, "must be a mechanism; `Composed` is of several")
    if isinstance(times, Mechanism):
        expected = "must be a number of times; one after the other is `Composed([a, b])`"
        raise InputError("times", times, expected)
    return mechanism.repeated(whole("times", times))


def _flat(part: Mechanism) -> Iterable[Mechanism]:
    if type(part) not in MECHANISMS:
        raise InputError("parts", part, "must be a mechanism")
    return part.parts if isinstance(part, Composed) else (part,)
