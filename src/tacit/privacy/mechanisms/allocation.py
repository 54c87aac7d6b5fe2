"""A record in one random step of each epoch: what random allocation releases, as data.

Unit, trust model, noise multiplier, coordinates and relation are explained in
`tacit.privacy.mechanisms.base`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self

from tacit.errors import InputError
from tacit.privacy.mechanisms.base import ADD_OR_REMOVE_ONE, TRUST_MODEL, Relation, Unit, few_enough
from tacit.privacy.mechanisms.steps import SILENT, Scheduled, schedule


@dataclass(frozen=True)
class RandomAllocationGaussian(Scheduled):
    """Gaussian on one random step of each epoch: every record takes part in exactly one of t.

    Each record draws its step of an epoch uniformly, independently of all other records and of all
    other epochs, so that the sizes of batches vary. What an observer of an epoch sees is then a
    random function of ((1/t) sum_i N(e_i, diag(z^2)), N(0, diag(z^2))), z_i the multiplier of step
    i, in both directions and whatever a step does with what went before it; epochs compose (proof:
    `docs/proofs/random-allocation.md`; Feldman and Shenfeld, *Privacy amplification by random
    allocation*, 2025, for equal noise). Batches of fixed size, cut from a shuffled list, are not
    this mechanism: there the other records tell where the one at stake is.

    Steps 0..t-1 of the schedule are one epoch, t..2t-1 the next, and so on. Of the last one the
    first steps may be all that is released; elsewhere a step that is not released has the noise
    multiplier `SILENT`.

    Args:
        epoch_steps: t, steps of an epoch.
        relation: `add-or-remove-one` only. Other fields are those of `Gaussian`.
    """

    kind = "random-allocation-gaussian"
    epoch_steps: int
    noise_multiplier: float | Sequence[float]
    steps: int | None = None
    relation: Relation = ADD_OR_REMOVE_ONE
    trust_model: str = TRUST_MODEL
    unit: Unit = "record"
    coordinates: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        few_enough("epoch_steps", self.epoch_steps)
        if self.relation != ADD_OR_REMOVE_ONE:
            raise InputError(
                "relation",
                self.relation,
                f"random allocation is accounted under {ADD_OR_REMOVE_ONE!r} only; use Poisson "
                "sampling",
            )

    @property
    def rate(self) -> float:
        """Share of the records that joins a step, in expectation."""
        return 1 / self.epoch_steps

    def _summary(self) -> str:
        return f"Gaussian in one random step of each epoch of {self.epoch_steps}"

    def _release(self, number_text: Callable[[float], str]) -> str:
        return (
            "Gaussian noise on the sum over a random batch, where each record takes part in one "
            f"uniformly random step of each epoch of {self.epoch_steps:,} steps (random allocation)"
        )

    def repeated(self, times: int) -> Self:
        """The mechanism with its epochs so many times over."""
        return self.merged([self] * times)

    def of_steps(self, steps: Sequence[tuple[int, int, int]]) -> Self:
        """The mechanism of the epochs that these steps belong to.

        Who goes on in the middle of an epoch draws anew, so that a record may take part in one
        step more. An epoch is therefore charged with all of its steps that were released, as often
        as the one that is repeated most: whoever goes on has to reserve it from its first step on.
        """
        planned = schedule(self)
        times = [0] * len(planned)
        for first, until, repeats in steps:
            times[first:until] = [repeats] * (until - first)
        t = self.epoch_steps
        charged: list[Self] = []
        for first in range(0, len(planned), t):
            own = times[first : first + t]
            released = [z if n else SILENT for z, n in zip(planned[first:], own, strict=False)]
            charged += [self.with_schedule(released)] * max(own)
        return self.merged(charged)

    @classmethod
    def merged(cls, parts: Sequence[Self]) -> Self:
        """One mechanism with the epochs of all parts, the last of each made whole with silence."""
        t = parts[0].epoch_steps
        whole_epochs = sum(-(-len(schedule(part)) // t) for part in parts)
        few_enough("parts", whole_epochs * t)
        values = list(
            chain.from_iterable(
                schedule(part) + (SILENT,) * (-len(schedule(part)) % t) for part in parts
            )
        )
        while len(values) > 1 and values[-1] >= SILENT:
            values.pop()
        return parts[0].with_schedule(values)


def epochs(mechanism: RandomAllocationGaussian) -> dict[tuple[float, ...], int]:
    """The noise multipliers of the steps that an epoch releases, ascending, and how many epochs.

    Order is irrelevant, within an epoch and among epochs.
    """
    values, t = schedule(mechanism), mechanism.epoch_steps
    return dict(Counter(tuple(sorted(values[k : k + t])) for k in range(0, len(values), t)))


def allocated(
    epoch_steps: int, released: Sequence[int], multipliers: Sequence[float], **words: Any
) -> RandomAllocationGaussian:
    """What is released by steps of these numbers, which may repeat; step k is of epoch k // t.

    `multipliers` `[released]` are of each, and `words` further fields of the mechanism.
    """
    planned = [SILENT] * (max(released) + 1)
    for step, multiplier in zip(released, multipliers, strict=True):
        planned[step] = multiplier
    mechanism = RandomAllocationGaussian(epoch_steps, planned, **words)
    if list(released) == list(range(len(planned))):
        return mechanism
    return mechanism.of_steps([(step, step + 1, n) for step, n in Counter(released).items()])
