"""A release that is known by what it guarantees: points of a privacy curve, Renyi divergences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from tacit.errors import InputError
from tacit.privacy.mechanisms import base
from tacit.privacy.mechanisms.base import Mechanism, Relation, Unit

_MOST = 1 << 13  # numbers of a list


@dataclass(frozen=True)
class KnownRelease(Mechanism):
    """A release that is made `steps` times, of which this holds each time, whatever went before.

    All of it is of both directions of the relation. With points, these are composed, as the pair
    whose profile is the largest that they allow; without, divergences, which add up
    (`docs/proofs/curves.md`).

    Args:
        points: (epsilon, delta) pairs, epsilon of 0 or more, that each hold.
        orders: above 1, ascending, `[orders]`.
        values: the Renyi divergence of each order is at most that, in nats, `[orders]`.
        rho: that of every order is at most rho times the order (rho-zCDP); None: not known.
        steps: how many times.
        relation: the neighbouring relation that it holds for.
        words: what is released.
    """

    kind = "known"
    rate = 1.0
    points: Sequence[tuple[float, float]] = ()
    orders: Sequence[float] = ()
    values: Sequence[float] = ()
    rho: float | None = None
    steps: int = 1
    relation: Relation = base.ADD_OR_REMOVE_ONE
    trust_model: str = base.TRUST_MODEL
    unit: Unit = "record"
    words: str = "a release known by what it guarantees"

    def __post_init__(self) -> None:
        base.check_fields(self)
        steps = base.count("steps", base.whole("steps", self.steps))
        pairs = [numbers("points", pair) for pair in _list("points", self.points)]
        orders, values = numbers("orders", self.orders), numbers("values", self.values)
        for pair in pairs:
            if len(pair) != 2 or not (pair[0] >= 0 and 0 <= pair[1] <= 1):
                expected = "must be an epsilon of 0 or more and a delta of 0 to 1"
                raise InputError("points", pair, expected)
        if list(orders) != sorted({*orders}) or min(orders, default=2.0) <= 1:
            raise InputError("orders", orders, "must ascend, and be above 1")
        if len(values) != len(orders) or min(values, default=0.0) < 0:
            raise InputError("values", values, "must be one of 0 or more for each order")
        rho = None if self.rho is None else base.number("rho", self.rho)
        if rho is not None and rho < 0:
            raise InputError("rho", rho, "must be 0 or more")
        if not (pairs or orders or rho is not None):
            raise InputError("points", (), "must be given, or orders and values, or rho")
        if not isinstance(self.words, str):
            raise InputError("words", self.words, "must be text")
        plain = {"points": tuple(pairs), "orders": orders, "values": values}
        for name, value in (plain | {"rho": rho, "steps": steps}).items():
            object.__setattr__(self, name, value)

    def describe(self) -> str:
        """What is released, and how often."""
        return self.words if self.steps == 1 else f"{self.words}, {self.steps} steps"

    def explain(self, number_text: Callable[[float], str]) -> str:
        """Likewise, with the first of its points."""
        if not self.points:
            return self.describe()
        return "{}: epsilon {} at delta {}".format(
            self.describe(), *map(number_text, self.points[0])
        )

    def released_values(self) -> int:
        """None on the lattice of tacit's own noise."""
        return 0

    def repeated(self, times: int) -> Self:
        """So many times over."""
        return replace(self, steps=self.steps * times)

    def merge_key(self) -> Self:
        """One release."""
        return replace(self, steps=1)

    @classmethod
    def merged(cls, parts: Sequence[Self]) -> Self:
        """The releases of all parts."""
        return replace(parts[0], steps=sum(part.steps for part in parts))


def _list(where: str, values: Any) -> tuple[Any, ...]:
    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        raise InputError(where, values, "must be a list")
    if len(found := tuple(values)) > _MOST:
        raise InputError(where, len(found), f"must be at most {_MOST} numbers")
    return found


def numbers(where: str, values: Any) -> tuple[float, ...]:
    """A list of finite numbers; raises InputError on anything else."""
    return tuple(base.number(where, value) for value in _list(where, values))
