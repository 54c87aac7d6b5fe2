"""What all mechanisms share: relation, unit and trust model, a kind, and words for people.

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

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

__all__ = [
    "ADD_OR_REMOVE_ONE",
    "REPLACE_ONE",
    "TRUST_MODEL",
    "TRUST_MODELS",
    "UNITS",
    "Mechanism",
    "Relation",
    "Unit",
]

Relation = Literal["add-or-remove-one", "replace-one"]
ADD_OR_REMOVE_ONE: Relation = "add-or-remove-one"
REPLACE_ONE: Relation = "replace-one"
TRUST_MODEL = "all-messages"
TRUST_MODELS = (TRUST_MODEL, "server")
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

        Args:
            number_text: writes a number for people.
        """

    @abstractmethod
    def released_values(self) -> int:
        """Noised values that all steps release on the lattice; 0 for ideal noise.

        Of a client that takes part in some rounds: as if it took part in all.
        """

    @abstractmethod
    def repeated(self, times: int) -> Mechanism:
        """The mechanism so many times over; `tacit.privacy.compose` checks the number first."""

    @abstractmethod
    def merge_key(self) -> Mechanism:
        """What is equal of two mechanisms that a composition makes one."""

    @classmethod
    @abstractmethod
    def merged(cls, parts: Sequence[Any]) -> Mechanism:
        """One mechanism of several with the same `merge_key`."""
