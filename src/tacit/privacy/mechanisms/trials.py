"""The winner of a search whose other trials nobody sees, as a mechanism: points of its profile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from tacit.errors import InputError
from tacit.privacy.mechanisms.base import (
    ADD_OR_REMOVE_ONE,
    REPLACE_ONE,
    TRUST_MODEL,
    UNITS,
    Mechanism,
    Relation,
    Unit,
    assumed,
    number,
    whole,
    word,
)

__all__ = ["BestOfTrials"]


@dataclass(frozen=True)
class BestOfTrials(Mechanism):
    """The best of a secret number of trials is released, and nothing else of them.

    Beside other mechanisms it is accounted by basic composition: it is (epsilon, delta)-DP at each
    of its points, whatever was released before, so that the sums of both bound all together (Dwork
    and Roth, *The algorithmic foundations of differential privacy*, Theorem B.1).

    Args:
        points: (epsilon, delta) pairs, each of which holds (`choosing_epsilon`).
        times: searches of this kind.
        relation: the neighbouring relation.
    """

    kind = "best-of-trials"
    points: Sequence[tuple[float, float]]
    times: int = 1
    relation: Relation = ADD_OR_REMOVE_ONE
    trust_model: str = TRUST_MODEL
    unit: Unit = "record"

    def __post_init__(self) -> None:
        word("relation", self.relation, (ADD_OR_REMOVE_ONE, REPLACE_ONE))
        assumed("trust_model", self.trust_model)
        word("unit", self.unit, UNITS)
        whole("times", self.times)
        points = [tuple(pair) if isinstance(pair, list | tuple) else () for pair in self.points]
        for pair in points or [()]:
            if len(pair) != 2 or number("points", pair[0]) < 0 or not 0 < pair[1] < 1:
                expected = "must be pairs of an epsilon of 0 or more and a delta between 0 and 1"
                raise InputError("points", pair, expected)
        object.__setattr__(self, "points", tuple(points))

    @property
    def steps(self) -> int:
        """One for each search."""
        return self.times

    @property
    def rate(self) -> float:
        """Every record may take part."""
        return 1.0

    def describe(self) -> str:
        """The mechanism in one line."""
        return f"the best of a secret number of trials, {self.times} searches"

    def explain(self, number_text: Callable[[float], str]) -> str:
        """What is released, with the first of its points."""
        epsilon, delta = self.points[0]
        return (
            "the best of a secret number of trials, and nothing else of them: epsilon "
            f"{number_text(epsilon)} at delta {number_text(delta)}, {self.times:,} times"
        )

    def released_values(self) -> int:
        """None on a lattice: what finite arithmetic adds is part of the points."""
        return 0

    def repeated(self, times: int) -> Self:
        """So many times the searches."""
        return replace(self, times=self.times * times)

    def merge_key(self) -> Self:
        """The mechanism of one search."""
        return replace(self, times=1)

    @classmethod
    def merged(cls, parts: Sequence[Self]) -> Self:
        """All searches of one kind."""
        return replace(parts[0], times=sum(part.times for part in parts))
