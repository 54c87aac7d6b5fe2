"""The winner of a search whose other trials nobody sees, as a mechanism: points of its profile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from tacit.errors import InputError
from tacit.privacy.mechanisms import base
from tacit.privacy.mechanisms.base import Mechanism, Relation, Unit

_ROUNDED = 1e-12  # more than a product loses, of its size


@dataclass(frozen=True)
class BestOfTrials(Mechanism):
    """The best of a secret number of trials is released, and nothing else of them.

    Beside other mechanisms, or several times, it is accounted by basic composition: it is (epsilon,
    delta)-DP at each of its points, whatever was released before, so that the sums of both bound
    all together (Dwork and Roth, *The algorithmic foundations of differential privacy*, Thm. B.1).

    Args:
        points: (epsilon, delta) pairs, each of which holds (`choosing_epsilon`).
        relation: the neighbouring relation.
    """

    kind = "best-of-trials"
    steps = 1
    rate = 1.0
    points: Sequence[tuple[float, float]]
    relation: Relation = base.ADD_OR_REMOVE_ONE
    trust_model: str = base.TRUST_MODEL
    unit: Unit = "record"

    def __post_init__(self) -> None:
        base.check_fields(self)
        points = [tuple(pair) if isinstance(pair, list | tuple) else () for pair in self.points]
        for pair in points or [()]:
            if len(pair) != 2 or base.number("points", pair[0]) < 0 or not 0 < pair[1] < 1:
                expected = "must be pairs of an epsilon of 0 or more and a delta between 0 and 1"
                raise InputError("points", pair, expected)
        object.__setattr__(self, "points", tuple(points))

    def describe(self) -> str:
        """The mechanism in one line."""
        return "the best of a secret number of trials"

    def explain(self, number_text: Callable[[float], str]) -> str:
        """What is released, with the first of its points."""
        epsilon, delta = map(number_text, self.points[0])
        return f"{self.describe()}, and nothing else of them: epsilon {epsilon} at delta {delta}"

    def released_values(self) -> int:
        """None on a lattice: what finite arithmetic adds is part of the points."""
        return 0

    def repeated(self, times: int) -> Self:
        """So many times the epsilon and the delta of each point."""
        most = times if times == 1 else times * (1 + _ROUNDED)
        points = [(most * loss, min(most * spent, 1 - 2**-53)) for loss, spent in self.points]
        return replace(self, points=points)

    def merge_key(self) -> Self:
        """The mechanism itself."""
        return self

    @classmethod
    def merged(cls, parts: Sequence[Self]) -> Self:
        """The same so many times over."""
        return parts[0].repeated(len(parts))
