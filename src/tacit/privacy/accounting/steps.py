"""One step as a pair of distributions on a line, and its masses between chosen points.

Every pair here has a privacy loss log(dP/dQ) that rises with the output x, so that an interval of
x is an interval of losses. Which pair dominates which mechanism is said by `factors`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.special import ndtr

from tacit.privacy.accounting.gaussian import Array

__all__ = ["Binned", "Design", "LaplaceStep", "NormalStep", "Step", "design", "normal_masses"]

_COARSE = 96  # cells from which the fine ones are designed
_MORE = 2  # for each standard deviation of outputs
_MOST = 20_000
_ALIKE = 8  # steps that share their design, to the doubling of means
_SPREAD = 0.1  # share of the fine cells that is spread evenly


@dataclass(frozen=True, eq=False)
class Binned:
    """The masses of a pair (P, Q) between ascending losses.

    Args:
        losses: log(dP/dQ) at the ends of the cells, `[cells + 1]`.
        p: masses of P where the loss lies below, between and above them, `[cells + 2]`.
        q: masses of Q likewise.
        bounded: nothing lies beyond the outermost losses: what is below has the lowest loss
            itself, what is above the highest.
        middle: mass of P (and of Q) at a loss of 0 beside the cells.
        mirrored: the cells' mirror image belongs to the pair as well, with P and Q swapped.
        p_error: what rounding may have moved in each mass, in units of roundoff, `[cells + 2]`.
        q_error: likewise.
        size: what a loss was formed of, whose rounding it may carry.
    """

    losses: Array
    p: Array
    q: Array
    bounded: bool
    middle: float
    mirrored: bool
    p_error: Array
    q_error: Array
    size: float

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
    Q = (1-q) N(-m, 1) + q N(-d, 1).

    Args:
        rate: q in (0, 1].
        drawn_mean: mean where the record is drawn, positive.
        undrawn_mean: mean where it is not, in 0..drawn_mean.
        opposite: 0, or -drawn_mean for a record that pulls the other way.
        symmetric: stands for the pointwise maximum of the profiles of (P, Q) and (Q, P) instead,
            with `undrawn_mean` and `opposite` 0.

    The loss is that of P over N(0, 1) less that of Q over N(0, 1); the first rises with x, the
    second falls.

    *The maximum of both directions.* With U = dP/dQ = 1 - q + q R, R = dN(d)/dN(0), call C(k) =
    E_Q (R - k)+, A = 1 + (a-1)/q and B = 1 - (a-1)/(a q), a >= 1. Then H_a(P||Q) = q C(A), and
    H_a(Q||P) = a q E_Q (B - R)+ = a q B C(1/B) by the symmetry of the Gaussian (0 if B <= 0). As
    A B = 1 + (a-1)^2 (1 - 1/q) / (a q) <= 1 and a B <= 1, C falling, H_a(P||Q) >= H_a(Q||P) for
    every a >= 1. The maximum is therefore (P, Q)'s profile from a = 1 on, and below it the mirror
    image that symmetry asks for: P on losses above 0, Q mirrored below, the rest at 0.
    """

    rate: float
    drawn_mean: float
    undrawn_mean: float = 0.0
    opposite: float = 0.0
    symmetric: bool = False

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
        low = self._neutral() if self.symmetric else self.opposite - reach
        return low, self.drawn_mean + reach

    @property
    def both_ways(self) -> bool:
        """(P, Q) and (Q, P) have the same losses."""
        return self.symmetric or self.opposite == -self.drawn_mean

    def _neutral(self) -> float:
        """Where the loss is 0: R = 1."""
        return self.drawn_mean / 2

    def loss(self, x: Array) -> Array:
        """The privacy loss at each output."""
        loss = self._over_null(x)
        return loss - self._over_null(-x) if self.opposite else loss

    def _over_null(self, x: Array) -> Array:
        """Log dP/dN(0, 1)."""
        drawn, undrawn = self.drawn_mean, self.undrawn_mean
        lifted = _sampled(self.rate, (drawn - undrawn) * (x - (drawn + undrawn) / 2))
        return lifted + undrawn * (x - undrawn / 2) if undrawn else lifted

    def binned(self, edges: Array) -> Binned:
        """Masses between outputs, `[cells + 1]`, ascending."""
        still = normal_masses(edges)
        undrawn = normal_masses(edges - self.undrawn_mean) if self.undrawn_mean else still
        p, p_error = _mixture(self.rate, undrawn, normal_masses(edges - self.drawn_mean))
        q, q_error = still
        if self.opposite:
            away = normal_masses(edges + self.undrawn_mean) if self.undrawn_mean else still
            q, q_error = _mixture(self.rate, away, normal_masses(edges - self.opposite))
        losses = np.maximum.accumulate(self.loss(edges))
        middle = 0.0
        if self.symmetric:
            losses[0] = 0.0
            middle = max(0.0, float(p[0]) - float(q[1:].sum()))
            p[0] = 0.0
            q = np.append(0.0, q[1:])
        size = self.drawn_mean - self.opposite
        reach = max(abs(float(edges[0])), abs(float(edges[-1])))
        return Binned(
            losses,
            p,
            q,
            bounded=False,
            middle=middle,
            mirrored=self.symmetric,
            p_error=p_error,
            q_error=q_error,
            size=size * (reach + size),
        )


@dataclass(frozen=True)
class LaplaceStep:
    """P = (1-q) Lap(0) + q Lap(shift) against Q = Lap(0), scale 1.

    The loss of Lap(shift) over Lap(0) is 2 x - shift within 0..shift and constant outside: two
    atoms, which are kept as they are.

    Args:
        rate: q in (0, 1].
        shift: l1 bound of the contribution over the scale, positive.
    """

    rate: float
    shift: float

    @property
    def alike(self) -> LaplaceStep:
        """Itself: its cells end where its losses do."""
        return self

    @property
    def both_ways(self) -> bool:
        """(P, Q) and (Q, P) have the same losses."""
        return self.rate == 1

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
        return Binned(
            losses,
            p,
            q,
            bounded=True,
            middle=0.0,
            mirrored=False,
            p_error=16 * p,
            q_error=16 * q,
            size=shift,
        )


Step = NormalStep | LaplaceStep


def normal_masses(edges: Array) -> tuple[Array, Array]:
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


def _mixture(
    rate: float, undrawn: tuple[Array, Array], drawn: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Masses and errors of both, mixed."""
    masses, errors = ((1 - rate) * a + rate * b for a, b in zip(undrawn, drawn, strict=True))
    return masses, errors + 3 * masses


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


@dataclass(frozen=True, eq=False)
class Design:
    """How densely outputs should be cut, for the least error in epsilon with so many cells.

    A cell of width w in the loss that holds the share m of the tilted masses adds a variance of
    about m w^2 / 6 to the loss; for a given number of cells their sum is least where m w^2 is the
    same for each, that is where cells follow the cube root of (density x slope^2).

    Args:
        points: outputs, `[coarse + 1]`.
        losses: there, in the direction's own sign, `[coarse + 1]`.
        shares: of the cells, `[coarse]`.
        error: sum of m w^2 for one cell in all; with n cells it is that over n^2.
    """

    points: Array
    losses: Array
    shares: Array
    error: float

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
    """The design of the cells of a step.

    Args:
        step: the pair.
        reverse: for (Q, P).
        tilt: theta; masses are weighed by e^(theta loss), and by e^(theta loss / 2): where one
            large loss decides, what matters lies between the bulk and what theta points to.
        reach: standard deviations that the cells must cover.
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
