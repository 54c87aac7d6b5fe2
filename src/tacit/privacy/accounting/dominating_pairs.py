"""A mechanism as independent privacy losses: the pair that dominates each step, and its masses.

Trust model: all messages. Steps are adaptive; composition of the dominating pairs dominates them,
each direction for itself (Zhu, Dong and Wang, *Optimal accounting of differential privacy*,
Thm. 10). A lower bound is for the pair: linear losses and public other records realise it.

Every pair here has a privacy loss log(dP/dQ) that rises with the output x, so that an interval of
x is an interval of losses.

*Laplace noise*, add-or-remove-one (zero-out) with or without Poisson sampling, replace-one without
(twice the shift): ((1-q) Lap(0) + q Lap(shift), Lap(0)) and its reverse, with the bound of a
contribution in the l1 norm as shift, whatever the dimension. Trade-off functions of one coordinate
after the other concatenate to that of one coordinate at the l1 norm, and sampling keeps the worst
pair the worst: `docs/proofs/composition.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf, logsumexp, ndtr

from tacit.privacy.accounting.allocation import Ratios, epoch_levels, likelihood_ratios, sums_square
from tacit.privacy.accounting.gaussian import Array
from tacit.privacy.accounting.listed import ListPart, listed
from tacit.privacy.accounting.private_state import worst_means
from tacit.privacy.mechanisms.allocation import RandomAllocationGaussian
from tacit.privacy.mechanisms.base import REPLACE_ONE, Mechanism
from tacit.privacy.mechanisms.composed import ClientSampling, Composed
from tacit.privacy.mechanisms.known import KnownRelease
from tacit.privacy.mechanisms.matrix import MatrixGaussian
from tacit.privacy.mechanisms.steps import (
    FixedBatchGaussian,
    Gaussian,
    Laplace,
    PrivateState,
    SampledGaussian,
    schedule,
)

_COARSE = 96  # cells from which the fine ones are designed
_MORE = 2  # for each standard deviation of outputs
_MOST = 20_000
_ALIKE = 8  # steps that share their design, to the doubling of means
_SPREAD = 0.1  # share of the fine cells that is spread evenly
_PLACES = 16.0  # of likelihood ratios, for what counts as a standard deviation of outputs


@dataclass(frozen=True, eq=False)
class Binned:
    """The masses of a pair (P, Q) between ascending losses."""

    losses: Array  # log(dP/dQ) at the ends of the cells, `[cells + 1]`
    p: Array  # masses of P where the loss lies below, between and above them, `[cells + 2]`
    q: Array  # masses of Q likewise
    p_error: Array  # what rounding may have moved in each mass, in units of roundoff, `[cells + 2]`
    q_error: Array  # likewise
    size: float  # what a loss was formed of, whose rounding it may carry
    # Nothing lies beyond the outermost losses: what is below has the lowest loss itself, what is
    # above the highest.
    bounded: bool = False
    middle: float = 0.0  # mass of P (and of Q) at a loss of 0 beside the cells
    mirrored: bool = False  # the cells' mirror image belongs to it as well, with P and Q swapped

    @property
    def reverse(self) -> Binned:
        """The pair (Q, P)."""
        return replace(
            self,
            losses=-self.losses[::-1],
            p=self.q[::-1],
            q=self.p[::-1],
            p_error=self.q_error[::-1],
            q_error=self.p_error[::-1],
        )


@dataclass(frozen=True)
class NormalStep:
    """P = (1-q) N(m, 1) + q N(d, 1) against N(0, 1), or against its mirror image.

    m is `undrawn_mean` and d is `drawn_mean`. The mirror image, for `opposite` = -d, is
    Q = (1-q) N(-m, 1) + q N(-d, 1). A person with r rows, of which a step draws j ~ Bin(r, q),
    moves the mean by j d + (r - j) m: mixtures of r + 1 components (`docs/proofs/units.md`).

    Args:
        rate: q in (0, 1].
        drawn_mean: mean where the record is drawn, positive.
        undrawn_mean: mean where it is not, in 0..drawn_mean.
        opposite: 0, or -drawn_mean for a record that pulls the other way.
        symmetric: stands for the pointwise maximum of the profiles of (P, Q) and (Q, P) instead,
            with `undrawn_mean` and `opposite` 0, and one row.
        rows: r.

    The loss is that of P over N(0, 1) less that of Q over N(0, 1); the first rises with x, the
    second falls.

    *The maximum of both directions* is (P, Q)'s profile from a = 1 on, and below it the mirror
    image that symmetry asks for (`docs/proofs/composition.md`): P on losses above 0, Q mirrored
    below, the rest at 0.
    """

    rate: float
    drawn_mean: float
    undrawn_mean: float = 0.0
    opposite: float = 0.0
    symmetric: bool = False
    rows: int = 1

    @property
    def alike(self) -> NormalStep:
        """A step with means a little further apart, the same for many: its cells serve as well."""
        if self.symmetric:  # whose cells begin where its own loss is 0
            return self
        factor = 2.0 ** (math.ceil(_ALIKE * math.log2(self.drawn_mean)) / _ALIKE) / self.drawn_mean
        return replace(
            self,
            drawn_mean=factor * self.drawn_mean,
            undrawn_mean=factor * self.undrawn_mean,
            opposite=factor * self.opposite,
        )

    def interval(self, reach: float) -> tuple[float, float]:
        """The outputs between which all but Phi(-reach) of P and of Q lies, on either side."""
        # A symmetric pair's cells begin where its loss is 0: R = 1.
        low = self.drawn_mean / 2 if self.symmetric else self.rows * self.opposite - reach
        return low, self.rows * self.drawn_mean + reach

    @property
    def both_ways(self) -> bool:
        """(P, Q) and (Q, P) have the same losses."""
        return self.symmetric or self.opposite == -self.drawn_mean

    @property
    def distance(self) -> float:
        """The largest distance of two means."""
        return self.rows * (self.drawn_mean - self.opposite)

    @property
    def largest_loss(self) -> float:
        """None is the largest."""
        return math.inf

    @property
    def means(self) -> Array:
        """That of P by the number of rows that are drawn, `[rows + 1]`."""
        drawn = np.arange(self.rows + 1)
        return drawn * self.drawn_mean + drawn[::-1] * self.undrawn_mean

    @property
    def weights(self) -> Array:
        """Chances of these numbers, `[rows + 1]`, each within rows + 8 units of roundoff."""
        r, q = self.rows, self.rate
        return np.asarray([math.comb(r, j) * q**j * (1 - q) ** (r - j) for j in range(r + 1)])

    def total_variations(self, levels: Array) -> Array:
        """At least that of each level, `[levels]`.

        P and Q are mixtures with the same weights: at most the mixed distance of their parts.
        Where Q has means away from 0, they are opposite to P's.
        """
        apart = zip(self.weights, self.means * (2 if self.opposite else 1), strict=True)
        return np.asarray(sum(w * erf(mean * levels / math.sqrt(8)) for w, mean in apart))

    def scaled(self, level: float) -> NormalStep:
        """The step with the distances of all means multiplied by the level."""
        return replace(
            self,
            drawn_mean=self.drawn_mean * level,
            undrawn_mean=self.undrawn_mean * level,
            opposite=self.opposite * level,
        )

    def loss(self, x: Array) -> Array:
        """The privacy loss at each output."""
        loss = self.over_null(x)
        return loss - self.over_null(-x) if self.opposite else loss

    def over_null(self, x: Array) -> Array:
        """Log dP/dN(0, 1)."""
        if self.rows > 1:
            return _mixed_loss(self.weights, self.means, x)
        drawn, undrawn = self.drawn_mean, self.undrawn_mean
        lifted = _sampled(self.rate, (drawn - undrawn) * (x - (drawn + undrawn) / 2))
        return lifted + undrawn * (x - undrawn / 2) if undrawn else lifted

    def binned(self, edges: Array) -> Binned:
        """Masses between outputs, `[cells + 1]`, ascending."""
        p, p_error = self._mixture(edges, 1.0)
        q, q_error = self._mixture(edges, -1.0) if self.opposite else _normal_masses(edges)
        losses = np.maximum.accumulate(self.loss(edges))
        middle = 0.0
        if self.symmetric:
            losses[0] = 0.0
            middle = max(0.0, float(p[0]) - float(q[1:].sum()))
            p[0] = 0.0
            q = np.append(0.0, q[1:])
        reach = max(abs(float(edges[0])), abs(float(edges[-1])))
        size = self.distance * (reach + self.distance)
        size *= 1 if self.rows == 1 else 8 * (self.rows + 10)
        binned = Binned(losses, p, q, p_error, q_error, size)
        return replace(binned, middle=middle, mirrored=self.symmetric)

    def _mixture(self, edges: Array, sign: float) -> tuple[Array, Array]:
        """Masses of P, or of its mirror image, between outputs, and their errors: `[cells + 2]`."""
        masses, errors = np.zeros((2, len(edges) + 1))
        for weight, mean in zip(self.weights, sign * self.means, strict=True):
            mass, error = _normal_masses(edges - mean)
            masses += weight * mass
            errors += weight * error
        return masses, errors + (3 if self.rows == 1 else 2 * self.rows + 12) * masses


@dataclass(frozen=True)
class LaplaceStep:
    """P = (1-q) Lap(0) + q Lap(shift) against Q = Lap(0), scale 1.

    The loss of Lap(shift) over Lap(0) is 2 x - shift within 0..shift and constant outside: two
    atoms, which are kept as they are.
    """

    rate: float  # q in (0, 1]
    shift: float  # l1 bound of the contribution over the scale, positive

    @property
    def alike(self) -> LaplaceStep:
        """Itself: its cells end where its losses do."""
        return self

    @property
    def both_ways(self) -> bool:
        """(P, Q) and (Q, P) have the same losses."""
        return self.rate == 1

    @property
    def distance(self) -> float:
        """The shift."""
        return self.shift

    @property
    def largest_loss(self) -> float:
        """That of the outputs beyond the shift."""
        return self.shift + math.log(self.rate + (1 - self.rate) * math.exp(-self.shift))

    def total_variations(self, levels: Array) -> Array:
        """That of each level, `[levels]`."""
        return np.asarray(-self.rate * np.expm1(-self.shift * levels / 2))

    def scaled(self, level: float) -> LaplaceStep:
        """The step with the shift multiplied by the level."""
        return LaplaceStep(self.rate, self.shift * level)

    def interval(self, reach: float) -> tuple[float, float]:
        """The outputs at which the loss changes, whatever the reach."""
        return 0.0, self.shift

    def loss(self, x: Array) -> Array:
        """The privacy loss at each output between 0 and the shift."""
        return _sampled(self.rate, 2 * x - self.shift)

    def binned(self, edges: Array) -> Binned:
        """Masses between outputs from 0 to the shift, `[cells + 1]`."""
        rate, shift = self.rate, self.shift
        width = -np.expm1(-np.diff(edges)) / 2
        ends = (0.5,), (math.exp(-shift) / 2,)
        q = np.concatenate((ends[0], np.exp(-edges[:-1]) * width, ends[1]))
        moved = np.concatenate((ends[1], np.exp(edges[1:] - shift) * width, ends[0]))
        p = (1 - rate) * q + rate * moved
        losses = np.maximum.accumulate(self.loss(edges))
        return Binned(losses, p, q, 16 * p, 16 * q, size=shift, bounded=True)


@dataclass(frozen=True)
class AllocationStep:
    """One epoch of random allocation (`allocation`): P = (1/t) sum_i N(e_i, ..) against N(0, ..).

    What stands for an output is a place in the list of likelihood ratios, which rise with it.
    """

    # 1 / z of the steps that are released, ascending, each with how many.
    means: tuple[tuple[float, int], ...]
    steps: int  # t, of the whole epoch

    @property
    def ratios(self) -> Ratios:
        """The law of the likelihood ratio, from above."""
        return likelihood_ratios(self.means, self.steps)

    @property
    def alike(self) -> AllocationStep:
        """Itself."""
        return self

    @property
    def both_ways(self) -> bool:
        """(P, Q) and (Q, P) have the same losses."""
        return False

    @property
    def distance(self) -> float:
        """The largest distance of the means of a step."""
        return self.means[-1][0]

    @property
    def largest_loss(self) -> float:
        """None is the largest."""
        return math.inf

    def total_variations(self, levels: Array) -> Array:
        """At most that of each level, `[levels]`: that of an observer who knows the step."""
        mean, count = np.asarray(self.means).T
        return np.asarray(erf(np.outer(levels, mean) / math.sqrt(8)) @ count / self.steps)

    def scaled(self, level: float) -> AllocationStep:
        """The step with all means multiplied by the level, rounded up."""
        up = 1.0 if level == 1.0 else 1 + 2.0**-52
        return replace(self, means=tuple((mean * level * up, n) for mean, n in self.means))

    def interval(self, reach: float) -> tuple[float, float]:
        """The places between which all but Phi(-reach) of P and of Q lies, on either side."""
        ratios, beyond = self.ratios, float(ndtr(-reach))
        from_below = np.cumsum(ratios.masses)
        from_above = np.cumsum((ratios.masses * ratios.values)[::-1])
        low, high = (int(np.searchsorted(mass, beyond)) for mass in (from_below, from_above))
        last = len(ratios.values) - 1
        return min(low, last) / _PLACES, max(last - high, min(low, last) + 1) / _PLACES

    def loss(self, x: Array) -> Array:
        """The privacy loss at each place."""
        losses = np.log(self.ratios.values)
        return np.asarray(np.interp(x * _PLACES, np.arange(len(losses)), losses))

    def binned(self, edges: Array) -> Binned:
        """Masses between places, `[cells + 1]`."""
        ratios = self.ratios
        at, ends = np.log(ratios.values), self.loss(edges)
        cell = np.searchsorted(ends, at)
        q, p = (
            np.bincount(cell, weights, len(edges) + 1).astype(np.float64)
            for weights in (ratios.masses, ratios.masses * ratios.values)
        )
        q[0] += ratios.lost_q
        p[-1] += ratios.lost_p
        # A word modulo t draws no step by more than t / 2^64 likelier, or less likely, than 1 / t.
        uneven = self.steps * 2.0**-11
        size = float(np.abs(at[[0, -1]]).max()) + 4 + uneven
        errors = (len(at) + 16 + uneven) * p, (len(at) + 16) * q
        return Binned(ends, p, q, *errors, size)


Step = NormalStep | LaplaceStep | AllocationStep


def _normal_masses(edges: Array) -> tuple[Array, Array]:
    """Standard normal mass left of, between and right of ascending edges, from the nearer tails.

    Returns:
        The masses, and what rounding may have moved in each, in units of roundoff: (8 + x^2)
        times the larger of the two tails. A tail is right to some 6 u of itself; its argument to
        u of itself, which moves it by u x (x + 1) of itself. `[edges + 1]` each.
    """
    sizes = np.abs(edges)
    tails = np.concatenate(([0.0], ndtr(-sizes), [0.0]))
    masses = np.abs(np.diff(tails))
    middle = int(np.searchsorted(edges, 0.0))
    masses[middle] = 1.0 - tails[middle] - tails[middle + 1]
    moved = tails * np.concatenate(([0.0], 9 + sizes * (sizes + 1), [0.0]))
    errors = np.maximum(moved[:-1], moved[1:])
    errors[middle] += 1.0
    return masses, errors


def _sampled(rate: float, loss: Array) -> Array:
    """log(1 - q + q e^loss), accurate near 0 and without overflow."""
    if rate == 1:
        return loss
    rest = math.log1p(-rate)
    low = np.logaddexp(rest, math.log(rate) + np.minimum(loss, 0.0))
    middle = np.log1p(rate * np.expm1(np.clip(loss, -1.0, 1.0)))
    high = loss + np.log(rate + (1 - rate) * np.exp(-np.maximum(loss, 0.5)))
    return np.asarray(
        np.where(loss < -0.7, low, np.where(loss < 1, middle, high)), dtype=np.float64
    )


def _mixed_loss(weights: Array, means: Array, x: Array) -> Array:
    """Log sum_j w_j e^(y_j), y_j = m_j (x - m_j / 2): accurate near 0 and without overflow.

    It errs by less than 8 (rows + 10) units of roundoff of the largest |y_j|.
    """
    exponents = means * (x[:, None] - means / 2)
    near = np.log1p(np.expm1(np.clip(exponents, -1.0, 1.0)) @ weights)
    far = logsumexp(exponents, axis=1, b=weights)
    return np.asarray(np.where(np.abs(exponents).max(axis=1) <= 1, near, far))


@dataclass(frozen=True, eq=False)
class Design:
    """How densely outputs should be cut, for the least error in epsilon with so many cells.

    A cell of width w in the loss that holds the share m of the tilted masses adds a variance of
    about m w^2 / 6 to the loss; for a given number of cells their sum is least where m w^2 is the
    same for each, that is where cells follow the cube root of (density x slope^2).
    """

    points: Array  # outputs, `[coarse + 1]`
    losses: Array  # there, in the direction's own sign, `[coarse + 1]`
    shares: Array  # of the cells, `[coarse]`
    error: float  # sum of m w^2 for one cell in all; with n cells it is that over n^2

    def edges(self, cells: int, width: float, most: float) -> Array:
        """Outputs between so many cells, and none between losses of 0 and `most` wider than said.

        Where one large loss decides, what it may be is spread far wider than tilted masses are.
        """
        inside = np.abs(np.diff(np.clip(self.losses, 0.0, most)))
        below = np.append(0.0, np.cumsum(cells * self.shares + inside / width))
        count = math.ceil(below[-1])
        return np.interp(np.linspace(0.0, below[-1], count + 1), below, self.points)


@lru_cache(maxsize=2048)
def design(step: Step, reverse: bool, tilt: float, reach: float) -> Design:
    """The design of the cells of a step, or of its `reverse`, that cover `reach` deviations.

    Masses are weighed by e^(theta loss), theta the `tilt`, and by e^(theta loss / 2): where one
    large loss decides, what matters lies between the bulk and what theta points to.
    """
    low, high = step.interval(reach)
    coarse = min(_COARSE + math.ceil(_MORE * (high - low)), _MOST)
    points = np.linspace(low, high, coarse + 1)
    binned = step.binned(points)
    sign = -1.0 if reverse else 1.0
    losses = sign * binned.losses
    width = np.abs(np.diff(losses))
    middle = (losses[:-1] + losses[1:]) / 2
    masses = (binned.q if reverse else binned.p)[1:-1]
    even = np.full(coarse, 1 / coarse)
    shares = np.stack(
        [_shares(masses, binned.middle, width, order * middle) for order in (tilt, tilt / 2)]
    )
    sizes = shares.sum(axis=1)
    parts = np.where(sizes[:, None] > 0, shares / np.maximum(sizes, 1e-300)[:, None], even)
    mixed = (1 - _SPREAD) * parts.mean(axis=0) + _SPREAD * even
    return Design(points, losses, mixed, float(sizes.max()) ** 3)


def _shares(masses: Array, middle: float, width: Array, exponents: Array) -> Array:
    """Cube roots of m w^2, m the share of each cell, `[cells]`."""
    with np.errstate(divide="ignore"):
        logs = np.append(np.log(masses) + exponents, np.log(max(middle, 1e-300)))
    weights = np.exp(logs - logs.max())
    return np.asarray(np.cbrt(weights[:-1] / weights.sum() * width * width))


_LARGEST = 1e152  # of a level: its square is a number


@dataclass(frozen=True, eq=False)
class Levels:
    """Different levels of one kind of step, ascending and positive, with numbers of steps."""

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
        return self.moved(multiples * grain)

    def moved(self, values: Array) -> Levels:
        """The levels at other values, of which some may be equal."""
        points, index = np.unique(values, return_inverse=True)
        return Levels(points, np.bincount(index, self.counts).astype(np.int64))


@dataclass(frozen=True)
class GaussianPart:
    """Gaussian steps on every record: together one of mu^2 = `square`, losses N(mu^2/2, mu^2)."""

    square: float


@dataclass(frozen=True, eq=False)
class LaplacePart:
    """Laplace steps on every record, whose levels are shifts (l1 bound over scale)."""

    levels: Levels


@dataclass(frozen=True, eq=False)
class StepsPart:
    """Steps whose losses are put into cells; levels are what means of `unit` are multiplied by."""

    unit: Step
    levels: Levels


@dataclass(frozen=True, eq=False)
class MixedPart:
    """Rounds in which `inner` is released with a chance, `share`, which is seen; or nothing."""

    inner: tuple[Part, ...]
    share: float
    rounds: int


Part = GaussianPart | LaplacePart | StepsPart | MixedPart | ListPart


def parts_of(mechanism: Mechanism, *, upper: bool) -> tuple[Part, ...]:
    """The independent losses that dominate a mechanism, or (for a lower bound) that it reaches."""
    return _PARTS[type(mechanism)](mechanism, upper)


def _levels(mechanism: Any, upper: bool, sensitivity: float = 1.0) -> Levels:
    """Sensitivity over noise of each step, rounded to the safe side, and number of steps."""
    noises, counts = np.unique(np.asarray(schedule(mechanism)), return_counts=True)
    values = np.nextafter(sensitivity / noises, math.inf if upper else 0.0)
    return Levels(np.minimum(values, _LARGEST)[::-1], counts[::-1])


def _gaussian(mechanism: Any, upper: bool, sensitivity: float | None = None) -> tuple[Part, ...]:
    """Of the relation's sensitivity, if no other is given."""
    moved = _sensitivity(mechanism) if sensitivity is None else sensitivity
    levels = _levels(mechanism, upper, moved)
    return (GaussianPart(float((levels.values**2 * levels.counts).sum())),)


def _sensitivity(mechanism: Any) -> float:
    return 2.0 if mechanism.relation == REPLACE_ONE else 1.0


def _sampled_gaussian(mechanism: Any, upper: bool) -> tuple[Part, ...]:
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
        return (LaplacePart(_levels(mechanism, upper, _sensitivity(mechanism))),)
    return (StepsPart(LaplaceStep(mechanism.rate, 1.0), _levels(mechanism, upper)),)


def _private_state(mechanism: Any, upper: bool) -> tuple[Part, ...]:
    """Theorem A's pair (`private_state`), which constant shifts attain."""
    opposite = worst_means(mechanism)[1][1]
    if mechanism.rate == 1 or mechanism.undrawn_norm == mechanism.drawn_norm:
        return _gaussian(mechanism, upper, mechanism.drawn_norm - opposite)
    drawn, undrawn = mechanism.drawn_norm, mechanism.undrawn_norm
    unit = NormalStep(mechanism.rate, drawn, undrawn_mean=undrawn, opposite=opposite)
    return (StepsPart(unit, _levels(mechanism, upper)),)


def _allocation(mechanism: Any, upper: bool) -> tuple[Part, ...]:
    """Above: epochs, and what stands for no release beside them as steps on every record.

    Below: of each whole epoch the sum of what its steps release, in which the record is once.
    """
    if not upper:
        return (GaussianPart(sums_square(mechanism)),)
    charged, square = epoch_levels(mechanism)
    t, one = mechanism.epoch_steps, np.ones(1)
    parts: list[Part] = [
        StepsPart(AllocationStep(levels, t), Levels(one, np.asarray([count])))
        for levels, count in charged.items()
    ]
    return (*parts, GaussianPart(square)) if square else tuple(parts)


def _composed(mechanism: Any, upper: bool) -> tuple[Part, ...]:
    curves = [one for one in mechanism.parts if isinstance(one, KnownRelease) and not one.points]
    others = [one for one in mechanism.parts if one not in curves]
    parts = tuple(part for inner in others for part in parts_of(inner, upper=upper))
    return (*parts, *_known(curves, upper)) if curves else parts


def _known(mechanisms: Sequence[KnownRelease], upper: bool) -> tuple[Part, ...]:
    """Below: nothing."""
    return (listed(tuple(mechanisms)) if upper else GaussianPart(0.0),)


_PARTS: Mapping[type[Mechanism], Callable[[Any, bool], tuple[Part, ...]]] = {
    Gaussian: _gaussian,
    SampledGaussian: _sampled_gaussian,
    FixedBatchGaussian: _fixed_batch,
    RandomAllocationGaussian: _allocation,
    MatrixGaussian: lambda m, upper: parts_of(m.independent(upper=upper), upper=upper),
    Laplace: _laplace,
    PrivateState: _private_state,
    Composed: _composed,
    KnownRelease: lambda mechanism, upper: _known([mechanism], upper),
    ClientSampling: lambda mechanism, upper: (
        MixedPart(parts_of(mechanism.participation, upper=upper), mechanism.rate, mechanism.rounds),
    ),
}


def total_variation(parts: tuple[Part, ...]) -> float:
    """At least delta at epsilon 0, and so at any: the sum of what each step gives away."""
    distance = sum(_DISTANCES[type(part)](part) for part in parts)
    return min(1.0, distance * (1 + 1e-12))


_DISTANCES: Mapping[type[Part], Callable[[Any], float]] = {
    GaussianPart: lambda part: math.erf(math.sqrt(part.square / 8)),
    LaplacePart: lambda part: float(-np.expm1(-part.levels.values / 2) @ part.levels.counts),
    StepsPart: lambda part: float(
        part.unit.total_variations(part.levels.values) @ part.levels.counts
    ),
    MixedPart: lambda part: part.rounds * part.share * total_variation(part.inner),
    ListPart: lambda part: part.count * part.delta(0.0),
}


def largest_level(parts: tuple[Part, ...]) -> float:
    """The largest distance of two means of one step, over the noise."""
    return max(_LARGEST_LEVELS[type(part)](part) for part in parts)


def _steps_largest(part: StepsPart) -> float:
    return float(part.levels.values[-1]) * part.unit.distance


_LARGEST_LEVELS: Mapping[type[Part], Callable[[Any], float]] = {
    GaussianPart: lambda part: math.sqrt(part.square),
    LaplacePart: lambda part: float(part.levels.values[-1]),
    StepsPart: _steps_largest,
    MixedPart: lambda part: largest_level(part.inner),
    ListPart: lambda part: min(math.sqrt(2 * part.losses[-1]) + 1e-3, 40.0),  # about, and enough
}


def softened(parts: tuple[Part, ...], most: float) -> tuple[Part, ...]:
    """Steps whose means are no further apart than `most`, over the noise: dominated by the given.

    More noise turns a step into one of smaller distances.
    """
    return tuple(_SOFTENED[type(part)](part, most) for part in parts)


def _softened_steps(part: StepsPart, most: float) -> StepsPart:
    reach = most * float(part.levels.values[-1]) / _steps_largest(part)
    return StepsPart(part.unit, part.levels.moved(np.minimum(part.levels.values, reach)))


_SOFTENED: Mapping[type[Part], Callable[[Any, float], Part]] = {
    GaussianPart: lambda part, most: GaussianPart(min(part.square, most * most)),
    LaplacePart: lambda part, most: part,
    StepsPart: _softened_steps,
    MixedPart: lambda part, most: replace(part, inner=softened(part.inner, most)),
    ListPart: lambda part, most: part,
}


def pure_epsilon(parts: tuple[Part, ...]) -> float:
    """The largest loss there is, at which delta is 0; infinite for Gaussian noise."""
    return sum(_LARGEST_LOSSES[type(part)](part) for part in parts) * (1 + 1e-12)


_LARGEST_LOSSES: Mapping[type[Part], Callable[[Any], float]] = {
    GaussianPart: lambda part: math.inf,
    LaplacePart: lambda part: float((part.levels.values * part.levels.counts).sum()),
    StepsPart: lambda part: sum(
        count * part.unit.scaled(level).largest_loss for level, count in part.levels.pairs()
    ),
    MixedPart: lambda part: part.rounds * pure_epsilon(part.inner),
    ListPart: lambda part: math.inf if part.lost else part.count * float(part.losses[-1]),
}
