r"""From one step's privacy loss as atoms, by transforms, to delta: a sum whose every error is
bounded.

*Atoms* dominate the pair or are dominated by it. Above, the dots are connected (Doroshenko et al.,
2022): in a cell [l, r] of the loss the masses p of P and q of Q move to its two ends so that both
are kept,

    q_r = (e^-l p - q) / (e^(r-l) - 1),   q_l = q - q_r,   p_l = e^l q_l,   p_r = e^r q_r;

what lies above the cells is infinite loss, what lies below is raised to their lowest. Below, an
observer sees only the cell of the output.

*The sum.* Let M(z) = E[e^(z L)] be the transform of the losses L of one direction of a composition,
the product of its steps'. For any theta > 0, with z = theta + i t,

    delta(eps) = (1 / 2 pi) * integral of e^(-z eps) M(z) / (z (z + 1)) dt

(the inverse Laplace transform of (1 - e^-y)+). It is summed at t = 0, h, 2 h, ..., T:

- *Aliases* only add to it (Poisson's formula), and each is bounded by Chernoff, delta(eps) <= M(s)
  k(s) e^(-s eps) with k(s) = s^s / (1+s)^(1+s), at an order s above theta or below.
- *Truncation*. Losses are smoothed by a further Gaussian step of parameter s, which can only raise
  delta: the upper bound. For the lower one, f >= 2 f_s - f_r for r = s (1 + e^(r^2 / 8)), f_s the
  smoothed profile.
- *Rounding*. What it may have moved in each mass is known and weighed like the masses; relative
  errors of the steps add up, and |M(z)| <= M(theta) carries them through the sum over t.

Weights e^(theta loss) put the masses that matter in the middle: errors are relative to Chernoff's
bound on delta, about ten times delta itself, however small that is. theta is chosen near
Chernoff's best. Proofs: `docs/proofs/composition.md`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from tacit.privacy.accounting.dominating_pairs import Binned, Step, design
from tacit.privacy.accounting.gaussian import Array
from tacit.privacy.accounting.listed import UNITS, ListPart

UNIT = 2.0**-53  # unit roundoff
_TINY = 1e-280
_STEEP = 600.0  # a loss above which its exponential may leave the floating-point range


@dataclass(frozen=True, eq=False)
class Atoms:
    """A measure of losses."""

    losses: Array  # where its atoms are, `[atoms]`
    masses: Array  # how much they weigh under P, `[atoms]`
    infinite: float  # mass at infinite loss, which adds to delta as it is
    error_losses: Array  # the losses of the cells, `[cells]`
    # What rounding may have moved in each, in units of roundoff: masses, and masses times losses.
    errors: Array
    size: float  # what a loss was formed of


def above(binned: Binned) -> Atoms:
    """Atoms whose profile lies on or above that of the pair."""
    losses, p, q = binned.losses, binned.p[1:-1], binned.q[1:-1]
    left, right = losses[:-1], losses[1:]
    width = right - left
    # The ratio p / q is only formed where e^-l is in range; elsewhere all of p goes to the right,
    # and all of q, which a mirrored pair needs, to the left: the worse end for each.
    steep = (right > _STEEP) | (left < -_STEEP) | (width <= 0) | (width > _STEEP)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        q_right = (np.exp(-np.where(steep, 0.0, left)) * p - q) / np.expm1(
            np.where(steep, 1.0, width)
        )
    q_right = np.where(steep, 0.0, np.clip(q_right, 0.0, q))
    p_right = np.where(steep, p, np.minimum(q_right * np.exp(np.where(steep, 0.0, right)), p))
    masses = np.append(p - p_right, 0.0) + np.append(0.0, p_right)
    masses[0] += binned.p[0]
    infinite = 0.0 if binned.bounded else float(binned.p[-1])
    if binned.bounded:
        masses[-1] += binned.p[-1]
    if binned.mirrored:
        images = np.append(q - q_right, 0.0) + np.append(0.0, q_right)
        images[-1] += binned.q[-1]
        losses = np.concatenate((-losses[::-1], losses, [0.0]))
        masses = np.concatenate((images[::-1], masses, [binned.middle]))
    return Atoms(losses, masses, infinite, *_errors(binned))


def _errors(binned: Binned) -> tuple[Array, Array, float]:
    """Per cell: the error of p, and of e^loss q; both of the image, where there is one.

    An error h in p - e^l q moves h / (e^(r-l) - 1) from one end of a cell to the other, which
    changes e^(z loss) by |z| (r - l) at most: as much as |z| h.
    """
    at = np.append(binned.losses, binned.losses[-1])
    lifted = np.exp(np.clip(at, -_STEEP, _STEEP))
    errors = binned.p_error + lifted * binned.q_error
    if binned.mirrored:
        images = binned.q_error + binned.p_error / lifted
        at, errors = np.concatenate((at, -at)), np.concatenate((errors, images))
    return at, errors, binned.size


def below(binned: Binned) -> Atoms:
    """Atoms whose profile lies on or below that of the pair.

    Raises:
        ValueError: the pair is mirrored, which stands for an upper bound to begin with.
    """
    if binned.mirrored:
        raise ValueError("a maximum of two directions has no lower bound of its own")
    p, q = binned.p, binned.q
    ends = binned.losses
    lowest = np.concatenate(([-np.inf], ends))
    # What is above the cells is lowered to their end: a far atom would only spoil moments.
    highest = np.append(ends, ends[-1])
    # Where a mass is about to underflow its logarithm is no good; the cell's lower end will do.
    sound = (p > _TINY) & (q > _TINY)
    losses = np.where(sound, np.log(np.where(sound, p / np.where(sound, q, 1.0), 1.0)), lowest)
    losses = np.clip(losses, lowest, highest)
    if binned.bounded:
        losses[0], losses[-1] = ends[0], ends[-1]
    held = (p > 0) & np.isfinite(losses)
    return Atoms(losses[held], p[held], 0.0, *_errors(binned))


_BOUNDS = {True: above, False: below}


@dataclass(frozen=True)
class Cut:
    """How a step is cut into cells."""

    tilt: float  # theta, about which the losses are weighed by e^(theta loss)
    reach: float  # standard deviations to cover
    cells: int  # how many, besides those of the next line
    width: float  # at most so wide are cells at losses between 0 and `most`
    most: float  # about the largest loss that matters


@lru_cache(maxsize=512)
def atoms(step: Step, reverse: bool, upper: bool, cut: Cut) -> Atoms:
    """The losses of a step (P, Q), or of (Q, P) in `reverse`, in cells.

    Its atoms dominate the pair if `upper`; otherwise they are dominated by it.
    """
    edges = design(step.alike, reverse, cut.tilt, cut.reach).edges(cut.cells, cut.width, cut.most)
    binned = step.binned(edges)
    return _BOUNDS[upper](binned.reverse if reverse else binned)


def list_atoms(part: ListPart) -> Atoms:
    """The losses of a list, as they are."""
    size = float(part.losses[-1])
    return Atoms(part.losses, part.masses, part.lost, part.losses, UNITS * part.masses, size)


def log_moments(measure: Atoms, orders: Array) -> Array:
    """Log E[e^(t loss); loss finite] at each order t, `[orders]`."""
    held = measure.masses > 0
    exponents = np.outer(orders, measure.losses[held]) + np.log(measure.masses[held])
    top = exponents.max(axis=1)
    return np.asarray(top + np.log(np.exp(exponents - top[:, None]).sum(axis=1)))


Complex = NDArray[np.complex128]
SMOOTHEST = 0.5  # above it no r as in the module's docstring need exist


@dataclass(frozen=True)
class Contour:
    """The line of the complex plane along which transforms are taken."""

    tilt: float  # theta, positive
    step: float  # h, the distance of two points on the line
    count: int  # how many points there are after the first; T = count x step
    smooth: float  # s of the smoothing step
    above: float  # an order above theta for Chernoff's bound on the aliases
    below: float  # one below, 0 or more

    @cached_property
    def points(self) -> Complex:
        """Theta + i t for every t, then the two orders, `[count + 3]`."""
        along = self.tilt + 1j * self.step * np.arange(self.count + 1)
        return np.concatenate((along, [self.above, self.below]))

    @property
    def window(self) -> float:
        """W, the distance of a loss from its alias."""
        return 2 * math.pi / self.step


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The logarithm of a transform on a line, and what is known of its error."""

    line: Contour  # where
    log: Complex  # log E[e^(z loss); loss finite] at each of the line's points (any branch)
    # Relative error of the transform, to be multiplied by 1 and by |z|.
    rounding: tuple[float, float] = (0.0, 0.0)
    infinite: float = 0.0  # mass at infinite loss
    slack: float = 0.0  # absolute error of delta from elsewhere
    # mu^2 of the Gaussian steps that are part of it: |M(z)| falls with t at least as fast as
    # e^(-mu^2 t^2 / 2).
    gaussian: float = 0.0

    @cached_property
    def size(self) -> float:
        """Log M(theta)."""
        return float(self.log[0].real)

    def upper(self, epsilon: float) -> float:
        """A delta that the losses do not exceed."""
        smooth = self._smoothing
        bound = self._sum(epsilon, smooth) + self._errors(epsilon, smooth)
        bound += self.infinite + self.slack
        return math.inf if math.isnan(bound) else bound  # what cannot be computed is no bound

    def lower(self, epsilon: float) -> float:
        """A delta that the losses reach."""
        smooth = self._smoothing
        bound = self._sum(epsilon, smooth) - self._aliases(epsilon, smooth)
        errors = self._errors(epsilon, smooth)
        if smooth == 0:
            return bound - errors - self.slack
        if smooth > SMOOTHEST:
            return -math.inf
        rough = rougher(smooth)
        other = self._sum(epsilon, rough) + self._errors(epsilon, rough)
        return 2 * (bound - errors) - other - self.slack

    def bend(self, epsilon: float) -> float:
        """By what share of delta doubling the smoothing would change it: no bound, a check."""
        smooth = self._smoothing
        total = self._sum(epsilon, smooth)
        return abs(self._sum(epsilon, 2 * smooth) - total) / total if total > 0 else 0.0

    @property
    def _smoothing(self) -> float:
        """The line's, unless Gaussian steps smooth as much already."""
        return self.line.smooth if self.gaussian < self.line.smooth**2 else 0.0

    def _gain(self, smooth: float) -> Array:
        """Logarithm of |smoothing step's transform| on the line, at most, `[count + 1]`."""
        t = self.line.points[: self.line.count + 1].imag
        tilt = self.line.tilt
        return np.asarray((tilt * (tilt + 1) - t * t) * (smooth * smooth / 2))

    def _weights(self, smooth: float) -> Complex:
        z = self.line.points[: self.line.count + 1]
        return _trapezoid(self.line) * np.exp(
            self.log[: len(z)] - self.size + z * (z + 1) * (smooth * smooth / 2)
        )

    @cached_property
    def _kept(self) -> dict[float, Complex]:
        return {}

    def _sum(self, epsilon: float, smooth: float) -> float:
        weights = self._kept.setdefault(smooth, np.empty(0, dtype=np.complex128))
        if not len(weights):
            weights = self._kept[smooth] = self._weights(smooth)
        t = self.line.points[: self.line.count + 1].imag
        phases = np.exp(-1j * epsilon * t)
        return _exp(self.size - self.line.tilt * epsilon) * float((weights * phases).sum().real)

    def _errors(self, epsilon: float, smooth: float) -> float:
        """Truncation and rounding."""
        line = self.line
        z = np.abs(line.points[: line.count + 1])
        relative, steep = self.rounding
        # Forming and adding the terms, and the phase of e^(-z eps).
        relative += (line.count + 64 + 4 * (abs(self.size) + line.tilt * abs(epsilon))) * UNIT
        steep += 4 * UNIT * (1 + abs(epsilon))
        carried = np.exp(
            self._gain(math.sqrt(smooth * smooth + self.gaussian))
            - self._gain(math.sqrt(self.gaussian))[0]
        )
        rounding = float((np.abs(_trapezoid(line)) * carried * (relative + steep * z)).sum())
        # The terms beyond T fall with t: their sum is less than the integral from T on.
        spread = smooth * smooth + self.gaussian
        top = line.count * line.step
        tail = smooth * smooth * line.tilt * (line.tilt + 1) / 2 - spread * top * top / 2
        cut = _exp(tail) / (math.pi * top) * min(1.0, 1 / max(1e-300, spread * top * top))
        return _exp(self.size - line.tilt * epsilon) * (rounding + cut)

    def _aliases(self, epsilon: float, smooth: float) -> float:
        line, total = self.line, 0.0
        for order, log in (
            (line.above, float(self.log[-2].real)),
            (line.below, float(self.log[-1].real)),
        ):
            log += smooth * smooth * order * (order + 1) / 2
            falling = abs(order - line.tilt) * line.window
            bound = 0.0  # the logarithm of Chernoff's bound on delta at an order of 0 or more
            if order:
                bound = log - order * (epsilon + math.log1p(1 / order)) - math.log1p(order)
            first = bound - falling
            total += _exp(first) / -math.expm1(-falling)
        infinite = self.infinite * math.exp(-line.tilt * line.window)
        return total * (1 + 1e-6) + infinite


def rougher(smooth: float) -> float:
    """An r with r >= s (1 + e^(r^2 / 8)), hardly above the least one; s at most `SMOOTHEST`."""
    rough = 2 * smooth
    while rough < smooth * (1 + math.exp(rough * rough / 8)) * (1 + 1e-12):
        rough = smooth * (1 + math.exp(rough * rough / 8)) * (1 + 1e-9)
    return rough


def _exp(exponent: float) -> float:
    return math.exp(exponent) if exponent < 700 else math.inf


@lru_cache(maxsize=64)
def _trapezoid(line: Contour) -> Complex:
    """H / pi / (z (z + 1)) at each point, the first one counted half."""
    z = line.points[: line.count + 1]
    weights = np.asarray(line.step / math.pi / (z * (z + 1)), dtype=np.complex128)
    weights[0] /= 2
    return weights


@dataclass(frozen=True, eq=False)
class Transform:
    """The transform of one step's losses on a line, and what is known of its error."""

    values: Complex  # E[e^(z loss); loss finite] e^-scale at theta + i t for every t, `[count + 1]`
    scale: float  # a logarithm
    anchors: Array  # its logarithm at the two orders, `[2]`
    rounding: tuple[float, float]  # relative error, to be multiplied by 1 and by |z|
    infinite: float  # mass at infinite loss


def transform(measure: Atoms, line: Contour) -> Transform:
    """The transform of one step's losses.

    With t = (a B + b) h the phase is a product of two, so that the sum over atoms is a product of
    two matrices, `[A, atoms] x [atoms, B]`.
    """
    losses = measure.losses
    with np.errstate(divide="ignore"):
        exponents = np.log(measure.masses) + line.tilt * losses
        errors = np.log(measure.errors) + line.tilt * measure.error_losses
    top = float(exponents.max())
    weights = np.exp(exponents - top)
    fine = 1 << max(0, math.ceil(math.log2(line.count + 1) / 2))
    coarse = -(-(line.count + 1) // fine)
    slow = _powers(losses * (line.step * fine), coarse)
    slow *= weights
    values = (slow @ _powers(losses * line.step, fine).T).ravel()[: line.count + 1]
    # What rounding moves in sums of e^(z loss), and of |z| e^(z loss), over that of e^(theta loss),
    # in units of roundoff: errors of masses, and those of losses (of which E|loss| is a share).
    total = float(weights.sum())
    moved = float(np.exp(np.minimum(errors - top, 700.0)).sum()) / total
    size = float((weights * np.abs(losses)).sum()) / total
    steep = moved + 4 * (size + measure.size)
    # Phases are products of at most 2 log2(count) factors; sums add one unit for each atom.
    relative = moved + len(losses) + 16 * math.log2(line.count + 2) + 64
    # A transform of exactly 0 is raised by less than its rounding, so that it has a logarithm.
    values = np.where(values == 0, 1e-300, values)
    return Transform(
        values,
        top,
        log_moments(measure, np.asarray([line.above, line.below])),
        (UNIT * relative, UNIT * steep),
        measure.infinite,
    )


def spectrum(measure: Atoms, line: Contour) -> Spectrum:
    """The spectrum of one step's losses."""
    transformed = transform(measure, line)
    log: Complex = np.concatenate(
        (np.log(transformed.values) + transformed.scale, transformed.anchors + 0j)
    )
    return Spectrum(line, log, rounding=transformed.rounding, infinite=transformed.infinite)


def _powers(angles: Array, count: int) -> Complex:
    """e^(i k angle) for k = 0..count - 1, by doubling, `[count, angles]`."""
    powers = np.empty((count, len(angles)), dtype=np.complex128)
    powers[0] = 1.0
    done = 1
    while done < count:
        more = min(done, count - done)
        np.multiply(powers[:more], np.exp(1j * done * angles), out=powers[done : done + more])
        done += more
    return powers


def sum_of(parts: list[tuple[Spectrum, int]]) -> Spectrum:
    """The spectrum of independent losses, each so many times over."""
    line = parts[0][0].line
    log = np.zeros(line.count + 3, dtype=np.complex128)
    for part, count in parts:
        log += part.log * count
    steps = sum(count for _, count in parts)
    return Spectrum(
        line,
        log,
        rounding=(
            sum(part.rounding[0] * count for part, count in parts)
            + 8 * UNIT * (steps + len(parts) + sum(abs(part.size) * n for part, n in parts)),
            sum(part.rounding[1] * count for part, count in parts),
        ),
        infinite=min(1.0, math.fsum(part.infinite * count for part, count in parts)),
        slack=math.fsum(part.slack * count for part, count in parts),
        gaussian=math.fsum(part.gaussian * count for part, count in parts),
    )


def mixed(inner: Spectrum, share: float, times: int) -> Spectrum:
    """Losses of rounds in which `inner` is released with a chance, visibly, and nothing else."""
    log = inner.log
    mixed_log = np.where(
        log.real > 0,
        log + np.log(share + (1 - share) * np.exp(-np.maximum(log.real, 0) - 1j * log.imag)),
        np.log((1 - share) + share * np.exp(np.minimum(log.real, 0) + 1j * log.imag)),
    )
    infinite, slack = share * inner.infinite, share * inner.slack
    once = replace(inner, log=mixed_log, infinite=infinite, slack=slack, gaussian=0.0)
    return sum_of([(once, times)])
