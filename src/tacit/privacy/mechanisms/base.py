"""What all mechanisms share: relation, unit, trust model, a kind, words, checks of their numbers.

- *Unit*: what neighbouring data sets differ in: one `record` of one node, or all the data of one
  `client`. With `client`, read "client's contribution" for "record's contribution" below.
- *Trust model* `all-messages`: the observer sees every message of every step, the graph, the
  mixing weights, the start and who is active. `server`: so does the server, while clients see only
  what it sends them, which is computed from those messages; the bound is that against the server.
  Gossip, push-sum, momentum of noised gradients and compression are then post-processing of a
  node's noised gradients, which is all that is stated. `pairwise`: the observer sees what that of
  `all-messages` sees, and may know all that some number of nodes know; pairs of the others share
  noise, of which one adds what the other subtracts, and keep it to themselves. `secure-sum`: the
  server sees the sum of the participants' messages of a round and none of them alone; it may know
  all that some number of participants know. In both, the noise multiplier is what the noise of
  those who do not collude counts for (`docs/proofs/pairwise-noise.md`), and a bound holds only
  while the others keep to the protocol, which `all-messages` and `server` do not ask for. How many
  may collude belongs to these two: `pairwise, 1 colluding`. Mechanisms of different trust models
  are not composed: no one observer would be described by the sum.
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

What a number or word of a mechanism may not be is an `InputError` that names it.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from tacit.errors import InputError

Relation = Literal["add-or-remove-one", "replace-one"]
ADD_OR_REMOVE_ONE: Relation = "add-or-remove-one"
REPLACE_ONE: Relation = "replace-one"
TRUST_MODEL = "all-messages"
TRUST_MODELS = (TRUST_MODEL, "server", "pairwise", "secure-sum")
_COLLUDING = re.compile(r"(pairwise|secure-sum), (0|[1-9][0-9]{0,5}) colluding")
Unit = Literal["record", "client"]
UNITS = ("record", "client")


class Mechanism(ABC):
    """What an observer sees of one record, as data: the base of every mechanism.

    Every mechanism is a frozen dataclass with fields of its own, in the order of its arguments and
    of its statement; those that all share are declared here and kept there, since a field that is
    inherited would come before a mechanism's own. How epsilon is computed is the accountant's:
    `tacit.privacy.accounting.dominating_pairs`.

    Attributes:
        kind: its name in a statement (`tacit.privacy.to_statement`).
    """

    kind: ClassVar[str]

    if TYPE_CHECKING:  # fields of some mechanisms, properties of others

        @property
        def relation(self) -> Relation:
            """The neighbouring relation."""

        @property
        def trust_model(self) -> str:
            """Who sees what."""

        @property
        def unit(self) -> Unit:
            """What neighbouring data sets differ in."""

        @property
        def steps(self) -> int | None:
            """How many steps there are."""

        @property
        def rate(self) -> float:
            """Share of the records, or of the rounds, that a release draws on."""

    @property
    def inner(self) -> Sequence[Mechanism]:
        """The mechanisms that it is made of; none where it is not made of others."""
        return ()

    @abstractmethod
    def describe(self) -> str:
        """The mechanism in one line: kind, rate and steps, without its noise multipliers."""

    @abstractmethod
    def explain(self, number_text: Callable[[float], str]) -> str:
        """What is released, in words for someone who has to answer for it.

        `number_text` writes a number for people.
        """

    @abstractmethod
    def released_values(self) -> int:
        """Noised values that all steps release on the lattice; 0 for ideal noise.

        Of a client that takes part in some rounds: as if it took part in all.
        """

    @abstractmethod
    def repeated(self, times: int) -> Mechanism:
        """The mechanism so many times over; `tacit.privacy.compose` checks the number first."""

    def of_steps(self, steps: Sequence[tuple[int, int, int]]) -> Mechanism:
        """What is released when only some steps run, some of them repeatedly.

        A mechanism that does not say which step is which (compositions, rounds with sampled
        clients) is charged as a whole, as often as the step that is repeated most: never less than
        what ran.

        Args:
            steps: (first, until, times) of those that run, disjoint; at least one.
        """
        return self.repeated(max(times for _, _, times in steps))

    def merge_key(self) -> Self:
        """What is equal of two mechanisms that a composition makes one; by default all."""
        return self

    @classmethod
    @abstractmethod
    def merged(cls, parts: Sequence[Any]) -> Mechanism:
        """One mechanism of several with the same `merge_key`."""


MOST_STEPS = 1 << 24
"""Steps that one schedule may have: 128 MiB of multipliers."""

_NOT_SCHEDULES = (str, bytes, bytearray, Mapping, Set)


def number(where: str, value: object) -> float:
    """A finite number, as a float; raises InputError on truth values, text and the rest."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(where, value, "must be a number")
    try:
        plain = float(value)
    except OverflowError:
        plain = math.inf
    if not math.isfinite(plain):
        raise InputError(where, value, "must be finite")
    return plain


def positive(where: str, value: object) -> float:
    """A finite number above 0; raises InputError on anything else."""
    plain = number(where, value)
    if not plain > 0:
        raise InputError(where, value, "must be positive")
    return plain


def share(where: str, value: object) -> float:
    """A rate in (0, 1]; raises InputError on anything else."""
    plain = number(where, value)
    if not 0 < plain <= 1:
        raise InputError(where, value, "must lie in (0, 1]")
    return plain


def whole(where: str, value: object) -> int:
    """A whole number of 1 or more; raises InputError on anything else."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(where, value, "must be a whole number")
    if value < 1:
        raise InputError(where, value, "must be 1 or more")
    return int(value)


def count(where: str, value: object) -> int:
    """A whole number of 0 or more, within 2^40; raises InputError on anything else."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(where, value, "must be a whole number")
    plain = int(value)
    if not 0 <= plain <= 1 << 40:
        raise InputError(where, value, "must lie in 0..2^40")
    return plain


def word(where: str, value: object, known: Sequence[str]) -> object:
    """One of the known words; raises InputError on anything else."""
    if value not in known:
        raise InputError(where, value, f"must be {' or '.join(map(repr, known))}")
    return value


def assumed(where: str, value: object) -> object:
    """A trust model, with the number of colluders if it has; raises InputError on anything else.

    Mechanisms that bear different numbers are of different trust models, and not composed.
    """
    plain = TRUST_MODELS[:2]
    if value in plain or (isinstance(value, str) and _COLLUDING.fullmatch(value)):
        return value
    known = " or ".join(map(repr, (*plain, *(against(name, 1) for name in TRUST_MODELS[2:]))))
    raise InputError(where, value, f"must be {known}, or the like with another number")


_CHECKS: Mapping[str, Callable[[str, object], object]] = {
    "sample_rate": share,
    "rate": share,
    "rounds": whole,
    "epoch_steps": whole,
    "turns": whole,
    "batch": whole,
    "records": whole,
    "drawn_norm": positive,
    "undrawn_norm": number,
    "coordinates": count,
    "relation": partial(word, known=(ADD_OR_REMOVE_ONE, REPLACE_ONE)),
    "trust_model": assumed,
    "unit": partial(word, known=UNITS),
}
"""What a field of a mechanism must be, by its name, in the order in which they are checked."""


def check_fields(mechanism: Any) -> None:
    """Check the fields of a mechanism, and keep numbers as plain ones: equal mechanisms are equal.

    Raises:
        InputError: a number or word is not what its name says.
    """
    for name in [name for name in _CHECKS if name in mechanism.__dataclass_fields__]:
        value = _CHECKS[name](name, getattr(mechanism, name))
        object.__setattr__(mechanism, name, value)


def against(trust_model: str, colluding: int) -> str:
    """The trust model `pairwise` or `secure-sum` with the number of those who may collude."""
    return f"{trust_model}, {colluding} colluding"


def observer(trust_model: str) -> str:
    """Which of `TRUST_MODELS` it is, without the number of those who may collude."""
    return trust_model.partition(",")[0]


def fixed_size(relation: object) -> None:
    """Raises InputError unless the relation is `replace-one`, as a batch of fixed size needs."""
    if relation != REPLACE_ONE:
        raise InputError(
            "relation",
            relation,
            f"a batch of fixed size is accounted under {REPLACE_ONE!r} only: another record "
            "moves in for the one that is left out; use Poisson sampling",
        )


def multipliers(noise_multiplier: object, steps: object) -> tuple[float, ...]:
    """One noise multiplier a step, from one for all steps or from a flat schedule.

    Raises:
        InputError: no step, more than `MOST_STEPS`, lengths that disagree, or anything in the
            schedule but positive finite numbers.
    """
    length = None if steps is None else whole("steps", steps)
    if not isinstance(noise_multiplier, Iterable):
        value = positive("noise_multiplier", noise_multiplier)
        few_enough("steps", length or 1)
        return (value,) * (length or 1)
    if isinstance(noise_multiplier, _NOT_SCHEDULES):
        expected = "must be a number, or a list of one a step"
        raise InputError("noise_multiplier", noise_multiplier, expected)
    given = tuple(noise_multiplier)
    if not given:
        raise InputError("noise_multiplier", [], "needs one number a step")
    if length not in (None, len(given)):
        raise InputError("steps", length, f"must equal the length of the schedule, {len(given)}")
    few_enough("noise_multiplier", len(given))
    if set(map(type, given)) == {float}:  # a million steps with few distinct values
        for distinct in set(given):
            _multiplier(distinct)
        return given
    return tuple(map(_multiplier, given))


def few_enough(where: str, steps: int) -> None:
    """Raises InputError for more steps than a schedule may have, before one is spelt out."""
    if steps > MOST_STEPS:
        expected = f"a mechanism of more than {MOST_STEPS:,} steps would not fit in memory"
        raise InputError(where, steps, expected)


def _multiplier(value: object) -> float:
    if isinstance(value, Iterable) and not isinstance(value, str):
        raise InputError("noise_multiplier", value, "must be one number a step: schedules are flat")
    return positive("noise_multiplier", value)
