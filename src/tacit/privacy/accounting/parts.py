"""A mechanism as independent privacy losses: which pair dominates each of its steps.

Trust model: all messages. Steps are adaptive; composition of the dominating pairs dominates them,
each direction for itself (Zhu, Dong and Wang, *Optimal accounting of differential privacy*,
Thm. 10). A lower bound is for the pair: linear losses and public other records realise it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

from tacit.privacy.accounting.gaussian import Array
from tacit.privacy.accounting.private_state import worst_means
from tacit.privacy.accounting.steps import LaplaceStep, NormalStep, Step
from tacit.privacy.mechanisms.composed import (
    REPLACE_ONE,
    ClientSampling,
    Composed,
    FixedBatchGaussian,
    Gaussian,
    Laplace,
    Mechanism,
    PrivateState,
    SampledGaussian,
    schedule,
)

__all__ = [
    "GaussianPart",
    "LaplacePart",
    "Levels",
    "MixedPart",
    "Part",
    "StepsPart",
    "largest_level",
    "parts_of",
    "pure_epsilon",
    "scaled",
    "softened",
    "total_variation",
]


_LARGEST = 1e152  # of a level: its square is a number


@dataclass(frozen=True, eq=False)
class Levels:
    """Different levels of one kind of step.

    Args:
        values: ascending, positive, `[levels]`.
        counts: number of steps of each, `[levels]`.
    """

    values: Array
    counts: NDArray[np.int64]

    def __len__(self) -> int:
        """How many different ones there are."""
        return len(self.values)

    @property
    def steps(self) -> int:
        """Number of steps of all levels."""
        return int(self.counts.sum())

    def pairs(self) -> list[tuple[float, int]]:
        """Each level and its number of steps."""
        return list(zip(self.values.tolist(), self.counts.tolist(), strict=True))

    def rounded(self, grain: float, *, up: bool) -> Levels:
        """The levels, rounded to multiples of a grain, up or down."""
        multiples = np.round(self.values / grain)
        multiples += np.where(multiples * grain < self.values, 1.0, 0.0) if up else 0.0
        multiples -= np.where(multiples * grain > self.values, 1.0, 0.0) if not up else 0.0
        points, index = np.unique(multiples * grain, return_inverse=True)
        return Levels(points, np.bincount(index, self.counts).astype(np.int64))


@dataclass(frozen=True)
class GaussianPart:
    """Gaussian steps on every record: together one of parameter mu, losses N(mu^2/2, mu^2).

    Args:
        square: mu^2.
    """

    square: float


@dataclass(frozen=True, eq=False)
class LaplacePart:
    """Laplace steps on every record.

    Args:
        levels: shift (l1 bound over scale) and number of steps.
    """

    levels: Levels


@dataclass(frozen=True, eq=False)
class StepsPart:
    """Steps whose losses are put into cells.

    Args:
        unit: the step at level 1.
        levels: what the unit's means are multiplied by, and number of steps.
    """

    unit: Step
    levels: Levels


@dataclass(frozen=True, eq=False)
class MixedPart:
    """Rounds in which something is released with a chance, which is seen; else nothing is.

    Args:
        inner: what.
        share: the chance, in (0, 1].
        rounds: how many.
    """

    inner: tuple[Part, ...]
    share: float
    rounds: int


Part = GaussianPart | LaplacePart | StepsPart | MixedPart


def parts_of(mechanism: Mechanism, *, upper: bool) -> tuple[Part, ...]:
    """The independent losses that dominate a mechanism, or (for a lower bound) that it reaches.

    Raises:
        InputError: no bound is known for the combination.
    """
    return _PARTS[type(mechanism)](mechanism, upper)


def scaled(step: Step, level: float) -> Step:
    """A step with the distances of all means multiplied by the level."""
    if isinstance(step, LaplaceStep):
        return LaplaceStep(step.rate, step.shift * level)
    return replace(
        step,
        drawn_mean=step.drawn_mean * level,
        undrawn_mean=step.undrawn_mean * level,
        opposite=step.opposite * level,
    )


def _levels(mechanism: Any, upper: bool, sensitivity: float = 1.0) -> Levels:
    """Sensitivity over noise of each step, rounded to the safe side, and number of steps."""
    noises, counts = np.unique(np.asarray(schedule(mechanism)), return_counts=True)
    values = np.nextafter(sensitivity / noises, math.inf if upper else 0.0)
    return Levels(np.minimum(values, _LARGEST)[::-1], counts[::-1])


def _gaussian(mechanism: Any, upper: bool) -> tuple[Part, ...]:
    sensitivity = 2.0 if mechanism.relation == REPLACE_ONE else 1.0
    levels = _levels(mechanism, upper, sensitivity)
    return (GaussianPart(float((levels.values**2 * levels.counts).sum())),)


def _sampled(mechanism: Any, upper: bool) -> tuple[Part, ...]:
    if mechanism.rate == 1:
        return _gaussian(mechanism, upper)
    opposite = -1.0 if mechanism.relation == REPLACE_ONE else 0.0
    unit = NormalStep(mechanism.rate, 1.0, opposite=opposite)
    return (StepsPart(unit, _levels(mechanism, upper)),)


def _fixed_batch(mechanism: Any, upper: bool) -> tuple[Part, ...]:
    """Above: the maximum of both directions. Below: one record changes from nothing to 2 C."""
    if mechanism.rate == 1:
        return _gaussian(mechanism, upper)
    unit = NormalStep(mechanism.rate, 1.0, symmetric=upper)
    return (StepsPart(unit, _levels(mechanism, upper, 2.0)),)


def _laplace(mechanism: Any, upper: bool) -> tuple[Part, ...]:
    if mechanism.rate == 1:
        return (
            LaplacePart(
                _levels(mechanism, upper, 2.0 if mechanism.relation == REPLACE_ONE else 1.0)
            ),
        )
    return (StepsPart(LaplaceStep(mechanism.rate, 1.0), _levels(mechanism, upper)),)


def _private_state(mechanism: Any, upper: bool) -> tuple[Part, ...]:
    """Theorem A's pair (`private_state`), which constant shifts attain."""
    opposite = worst_means(mechanism)[1][1]
    if mechanism.rate == 1 or mechanism.undrawn_norm == mechanism.drawn_norm:
        distance = mechanism.drawn_norm - opposite
        levels = _levels(mechanism, upper, distance)
        return (GaussianPart(float((levels.values**2 * levels.counts).sum())),)
    unit = NormalStep(
        mechanism.rate,
        mechanism.drawn_norm,
        undrawn_mean=mechanism.undrawn_norm,
        opposite=opposite,
    )
    return (StepsPart(unit, _levels(mechanism, upper)),)


def _composed(mechanism: Any, upper: bool) -> tuple[Part, ...]:
    return tuple(part for inner in mechanism.parts for part in parts_of(inner, upper=upper))


def _client_sampling(mechanism: Any, upper: bool) -> tuple[Part, ...]:
    inner = parts_of(mechanism.participation, upper=upper)
    return (MixedPart(inner, mechanism.rate, mechanism.rounds),)


_PARTS: Mapping[type[Mechanism], Callable[[Any, bool], tuple[Part, ...]]] = {
    Gaussian: _gaussian,
    SampledGaussian: _sampled,
    FixedBatchGaussian: _fixed_batch,
    Laplace: _laplace,
    PrivateState: _private_state,
    Composed: _composed,
    ClientSampling: _client_sampling,
}


def total_variation(parts: tuple[Part, ...]) -> float:
    """At least delta at epsilon 0, and so at any: the sum of what each step gives away."""
    distance = sum(_DISTANCES[type(part)](part) for part in parts)
    return min(1.0, distance * (1 + 1e-12))


def _steps_distance(part: StepsPart) -> float:
    """P and Q are mixtures with the same weights: at most the mixed distance of their parts."""
    unit, levels = part.unit, part.levels
    if isinstance(unit, LaplaceStep):
        return unit.rate * float(-np.expm1(-levels.values / 2) @ levels.counts)
    drawn = erf((unit.drawn_mean - unit.opposite) * levels.values / math.sqrt(8))
    # Where Q has a mean away from 0, its other one is opposite to P's.
    apart = 2 * unit.undrawn_mean if unit.opposite else unit.undrawn_mean
    undrawn = erf(apart * levels.values / math.sqrt(8))
    return float((unit.rate * drawn + (1 - unit.rate) * undrawn) @ levels.counts)


_DISTANCES: Mapping[type[Part], Callable[[Any], float]] = {
    GaussianPart: lambda part: math.erf(math.sqrt(part.square / 8)),
    LaplacePart: lambda part: float(-np.expm1(-part.levels.values / 2) @ part.levels.counts),
    StepsPart: _steps_distance,
    MixedPart: lambda part: part.rounds * part.share * total_variation(part.inner),
}


def largest_level(parts: tuple[Part, ...]) -> float:
    """The largest distance of two means of one step, over the noise."""
    return max(_LARGEST_LEVELS[type(part)](part) for part in parts)


def _steps_largest(part: StepsPart) -> float:
    if isinstance(part.unit, LaplaceStep):
        return float(part.levels.values[-1])
    return float(part.levels.values[-1]) * (part.unit.drawn_mean - part.unit.opposite)


_LARGEST_LEVELS: Mapping[type[Part], Callable[[Any], float]] = {
    GaussianPart: lambda part: math.sqrt(part.square),
    LaplacePart: lambda part: float(part.levels.values[-1]),
    StepsPart: _steps_largest,
    MixedPart: lambda part: largest_level(part.inner),
}


def softened(parts: tuple[Part, ...], most: float) -> tuple[Part, ...]:
    """Steps whose means are no further apart than `most`, over the noise: dominated by the given.

    More noise turns a step into one of smaller distances.
    """
    return tuple(_SOFTENED[type(part)](part, most) for part in parts)


def _softened_steps(part: StepsPart, most: float) -> StepsPart:
    reach = most * float(part.levels.values[-1]) / _steps_largest(part)
    points, index = np.unique(np.minimum(part.levels.values, reach), return_inverse=True)
    counts = np.bincount(index, part.levels.counts).astype(np.int64)
    return StepsPart(part.unit, Levels(points, counts))


_SOFTENED: Mapping[type[Part], Callable[[Any, float], Part]] = {
    GaussianPart: lambda part, most: GaussianPart(min(part.square, most * most)),
    LaplacePart: lambda part, most: part,
    StepsPart: _softened_steps,
    MixedPart: lambda part, most: replace(part, inner=softened(part.inner, most)),
}


def pure_epsilon(parts: tuple[Part, ...]) -> float:
    """The largest loss there is, at which delta is 0; infinite for Gaussian noise."""
    return sum(_LARGEST_LOSSES[type(part)](part) for part in parts) * (1 + 1e-12)


def _steps_pure(part: StepsPart) -> float:
    if not isinstance(part.unit, LaplaceStep):
        return math.inf
    rate, shifts = part.unit.rate, part.levels.values
    largest = shifts + np.log(rate + (1 - rate) * np.exp(-shifts))
    return float((largest * part.levels.counts).sum())


_LARGEST_LOSSES: Mapping[type[Part], Callable[[Any], float]] = {
    GaussianPart: lambda part: math.inf,
    LaplacePart: lambda part: float((part.levels.values * part.levels.counts).sum()),
    StepsPart: _steps_pure,
    MixedPart: lambda part: part.rounds * pure_epsilon(part.inner),
}
