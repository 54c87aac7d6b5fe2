r"""What it costs to release the best of a random number of trials, and nothing of the others.

*Mechanism.* K is drawn from a public law and kept secret. K times, a setting is drawn uniformly
from a public list and a trial is run with it, independently; each trial ends in an outcome and a
score that is a function of the outcome. The first outcome of the largest score is released.

*Trust model.* The observer sees the released outcome alone: not K, not the other trials, not how
long they took. Whoever sees the messages of every trial sees their adaptive composition
(`tacit.privacy.compose`), and nothing here holds against it. *Relation and unit* are those of the
trials.

*Theorem* (`docs/proofs/choosing.md`). Let f be the generating function of K, s(T) = f'(1 - T), and
delta(t) the privacy profile of a trial, the larger of both directions. With
U(T) = min(1, min over t of e^t T + delta(t)), the winner's profile at epsilon is at most
E[phi(e^-L)], L the privacy loss of a trial, where
phi(x) = max over T of (s(T) - e^epsilon s(U(T)) x)+ is convex and falls, so that

    E[phi(e^-L)] <= sum of c_k x_k delta(-ln x_k)

for any polygon sum of c_k (x_k - x)+ that is nowhere below phi. Only that f' does not fall is used
of the law of K. It implies Theorems of Papernot and Steinke (*Hyperparameter tuning with Renyi
differential privacy*, ICLR 2022) and of Koskela, Redberg and Wang (*Privacy profiles for private
selection*, ICML 2024), whose bound is m delta(epsilon - ln max s / s(U)) for the mean m of K.
What is out of its range is an InputError that names it.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Protocol

import numpy as np

from tacit.errors import InputError
from tacit.privacy.accounting import accounting
from tacit.privacy.accounting.gaussian import Array, least
from tacit.privacy.mechanisms.base import Mechanism

MOST_TRIALS = 10_000.0  # in the mean
_LARGEST_ETA = 100.0
_LEAST_GAMMA = 1e-5
_TAILS = 3000  # cells of T, the chance of a better trial, even and by powers
_POINTS = 40  # of a profile
_FINE = 32  # more of them, where they decide
_LARGEST_LOSS = 600.0  # of a profile: its exponential is a number
_NOTHING = 1e-4  # share of delta that lies beyond the largest loss of a profile
_SAFE = 1 + 1e-9  # sums of up to thousands of numbers, each right to some 1e-14
_EXACT = 1e-11  # one of them, an exponential of up to 10,000 included
_BITS = 256  # of the coin that K is drawn with
_DRAWN = 2.0**-120  # by how much the law of K that is drawn may differ from the stated one
_PLACES = 100  # decimal places
_LAST_MASS = Decimal(10) ** -80


class Trials(Protocol):
    """The law of the number of trials."""

    @property
    def mean(self) -> float:
        """The expected number of trials."""

    def slope(self, tails: Array) -> Array:
        """f'(1 - T) at each T, exact to some roundings; it does not rise with T, `[tails]`."""

    def masses(self, context: Context) -> tuple[int, Callable[[int, Decimal], Decimal], Decimal]:
        """The least K, the mass of K + 1 from K and its mass, and the mass of the least K."""


@dataclass(frozen=True)
class NegativeBinomialTrials:
    """K from the truncated negative binomial law: 1 or more, never none.

    P(K = k) is proportional to (1 - gamma)^k times Gamma(k + eta) / k! (Papernot and Steinke, 2022,
    Definition 1). `eta = 1` is the geometric law, `eta = 0` the logarithmic one.

    Args:
        eta: above -1. The smaller, the less it costs and the more K spreads.
        gamma: in (0, 1]. The smaller, the more trials; 1 is one trial.
    """

    eta: float
    gamma: float

    def __post_init__(self) -> None:
        if not (-1 < self.eta <= _LARGEST_ETA):
            expected = f"must be above -1 and at most {_LARGEST_ETA:g}"
            raise InputError("eta", self.eta, expected)
        if not (_LEAST_GAMMA <= self.gamma <= 1):
            raise InputError("gamma", self.gamma, f"must be in {_LEAST_GAMMA:g}..1")
        if not self.mean <= MOST_TRIALS:
            expected = f"gives {self.mean:.6g} trials in the mean: at most {MOST_TRIALS:g}"
            raise InputError("gamma", self.gamma, expected)

    @classmethod
    def of_mean(cls, eta: float, mean: float) -> NegativeBinomialTrials:
        """The law of this shape with so many trials in the mean."""
        if not 1 <= mean <= MOST_TRIALS:
            raise InputError("expected_trials", mean, f"must be in 1..{MOST_TRIALS:g}")
        low, high = _LEAST_GAMMA, 1.0
        if not -1 < eta <= _LARGEST_ETA or not _negative_binomial_mean(eta, low) >= mean:
            raise InputError("expected_trials", mean, f"are too many for eta = {eta:g}")
        for _ in range(200):
            middle = math.sqrt(low * high)
            if _negative_binomial_mean(eta, middle) > mean:
                low = middle
            else:
                high = middle
        return cls(eta, high)

    @property
    def mean(self) -> float:
        """The expected number of trials."""
        return _negative_binomial_mean(self.eta, self.gamma)

    def slope(self, tails: Array) -> Array:
        """Mean times (1 + (1 - gamma) / gamma T)^-(eta + 1), `[tails]`."""
        odds = (1 - self.gamma) / self.gamma
        return np.asarray(self.mean * np.exp(-(self.eta + 1) * np.log1p(odds * tails)))

    def masses(self, context: Context) -> tuple[int, Callable[[int, Decimal], Decimal], Decimal]:
        """Of K = 1, and each from the one before."""
        eta, gamma = Decimal(self.eta), Decimal(self.gamma)
        rest = context.subtract(Decimal(1), gamma)
        if rest == 0:
            first = Decimal(1)
        elif eta == 0:
            first = context.divide(rest, -context.ln(gamma))
        else:
            above = context.subtract(context.power(gamma, -eta), Decimal(1))
            first = context.divide(context.multiply(eta, rest), above)

        def following(k: int, mass: Decimal) -> Decimal:
            ratio = context.multiply(rest, context.divide(k + eta, Decimal(k + 1)))
            return context.multiply(mass, ratio)

        return 1, following, first


def _negative_binomial_mean(eta: float, gamma: float) -> float:
    if gamma == 1:
        return 1.0
    log = math.log(gamma)
    if abs(eta * log) < 1e-9:  # the limit, right to (eta log)^2
        return (1 / gamma - 1) / -log * (1 - eta * log / 2)
    return eta * (1 - gamma) / (gamma * -math.expm1(eta * log))


@dataclass(frozen=True)
class PoissonTrials:
    """K from a Poisson law; where it is 0, the release is that there is no winner.

    Args:
        mean: expected number of trials, positive (Papernot and Steinke, 2022, Theorem 6).
    """

    mean: float

    def __post_init__(self) -> None:
        if not 0 < self.mean <= MOST_TRIALS:
            raise InputError("mean", self.mean, f"must be above 0 and at most {MOST_TRIALS:g}")

    def slope(self, tails: Array) -> Array:
        """Mean times e^(-mean T), `[tails]`."""
        return np.asarray(self.mean * np.exp(-self.mean * tails))

    def masses(self, context: Context) -> tuple[int, Callable[[int, Decimal], Decimal], Decimal]:
        """Of K = 0, and each from the one before."""
        mean = Decimal(self.mean)

        def following(k: int, mass: Decimal) -> Decimal:
            return context.divide(context.multiply(mass, mean), Decimal(k + 1))

        return 0, following, context.exp(-mean)


def draw_trials(trials: Trials, coin: int | None = None) -> int:
    """The secret number of trials.

    The law is summed in decimals of 100 places and met by a coin of 256 bits, so that what is drawn
    differs from the law by less than 2^-120 in total variation, which every bound counts.

    The coin is a number below 2^256, by default the operating system's. Whoever knows it knows K.
    """
    context = Context(prec=_PLACES)
    drawn = secrets.randbits(_BITS) if coin is None else coin
    k, following, mass = trials.masses(context)
    share = context.divide(Decimal(drawn), Decimal(2**_BITS))
    total = mass
    # Beyond such a mass all further ones together are next to nothing, and rounding could go on.
    while total <= share and not (mass < _LAST_MASS and k > trials.mean):
        mass = following(k, mass)
        k += 1
        total = context.add(total, mass)
    return k


@dataclass(frozen=True, eq=False)
class Profile:
    """Upper bounds on a privacy profile, of the larger direction."""

    losses: Array  # t >= 0, ascending from 0, `[points]`
    deltas: Array  # at each, at least H_(e^t)(P || Q) and H_(e^t)(Q || P), `[points]`

    @property
    def both_sides(self) -> tuple[Array, Array]:
        """Below 0 as well, by H_a(P || Q) = 1 - a + a H_(1/a)(Q || P), `[2 points - 1]`."""
        lower = -self.losses[:0:-1]
        mirrored = -np.expm1(lower) + np.exp(lower) * self.deltas[:0:-1]
        deltas = np.concatenate((mirrored * (1 + _EXACT), self.deltas))
        return np.concatenate((lower, self.losses)), np.minimum(deltas, 1.0)

    def better(self, tails: Array) -> Array:
        """U: at most so likely is under the other law what has chance T under one, `[tails]`."""
        losses, deltas = self.both_sides
        chances = np.ones(len(tails))
        for loss, delta in zip(losses.tolist(), deltas.tolist(), strict=True):
            chances = np.minimum(chances, math.exp(loss) * tails + delta)
        return np.minimum(chances * (1 + _EXACT), 1.0)

    def with_points(self, profile: Callable[[float], float], losses: Array) -> Profile:
        """With more points."""
        more = np.setdiff1d(losses[losses >= 0], self.losses)
        every = np.concatenate((self.losses, more))
        deltas = np.concatenate((self.deltas, [profile(float(loss)) for loss in more]))
        order = np.argsort(every)
        return Profile(every[order], deltas[order])


@dataclass(frozen=True, eq=False)
class _Segments:
    """phi without its factor e^epsilon: the larger of a - e^epsilon b x, over cells of T."""

    a: Array  # s at the lower end of each cell, rounded up, `[cells]`
    b: Array  # s(U) at its upper end, rounded down, `[cells]`

    @property
    def most(self) -> float:
        """Logarithm of the largest s(T) / s(U(T)): what choosing adds to epsilon, at most."""
        with np.errstate(divide="ignore"):
            return float((np.log(self.a) - np.log(self.b)).max())

    def envelope(self, epsilon: float, x: Array) -> Array:
        """Phi at each x, rounded up, `[x]`."""
        with np.errstate(over="ignore", invalid="ignore"):
            log_x = np.log(x) + epsilon
            values = self.a[:, None] - self.b[:, None] * np.exp(np.minimum(log_x, 700.0))
        return np.asarray(np.maximum(values.max(axis=0), 0.0) * (1 + _EXACT))


def _lines(profile: Profile, trials: Trials) -> _Segments:
    """Those that matter: of two lines, the one that is nowhere above the other is left out."""
    powers = np.geomspace(1e-4 / max(1.0, trials.mean), 1.0, _TAILS)
    tails = np.union1d(powers, np.linspace(0.0, 1.0, _TAILS))
    a = trials.slope(tails[:-1]) * (1 + _EXACT)
    b = trials.slope(profile.better(tails[1:])) * (1 - _EXACT)
    # a falls from cell to cell: a later line only matters with a smaller b.
    least = np.minimum.accumulate(b)
    kept = np.concatenate(([True], b[1:] < least[:-1]))
    return _Segments(a[kept], b[kept])


def winner_delta(profile: Profile, trials: Trials, epsilon: float) -> float:
    """Delta of the winner at `epsilon` of 0 or more, of one trial's profile: an upper bound."""
    return _bound(profile, _lines(profile, trials), epsilon)


def _bound(profile: Profile, lines: _Segments, epsilon: float) -> float:
    losses, deltas = profile.both_sides
    x, deltas = np.exp(-losses[::-1]), deltas[::-1]  # ascending
    values = lines.envelope(epsilon, x)
    # Chords of a convex function lie on or above it; so does the chord from x = 0.
    x_all = np.concatenate(([0.0], x))
    top = float(lines.a[0]) * (1 + _EXACT)
    falls = -np.diff(np.concatenate(([top], values))) / np.diff(x_all)
    bends = np.maximum(falls - np.append(falls[1:], 0.0), 0.0)
    # Beyond the last point phi is at most what it is there.
    total = float(values[-1]) + float((bends * x * deltas).sum())
    drawn = _DRAWN * (1 + math.exp(min(epsilon, 600.0)))
    return min(1.0, total * _SAFE + drawn)


def winner_epsilon(profile: Profile, trials: Trials, delta: float) -> float:
    """Epsilon of the winner at `delta`, of one trial's profile: an upper bound.

    Infinite where none is proved.
    """
    lines = _lines(profile, trials)
    if _bound(profile, lines, 0.0) <= delta:
        return 0.0
    return least(
        lambda epsilon: _bound(profile, lines, epsilon) <= delta,
        float(profile.losses[-1]) + 0.01,
        tolerance=1e-9,
        most=2 * _LARGEST_LOSS,
    )


def profile_of(
    mechanisms: Sequence[Mechanism], trials: Trials, *, delta: float, points: int = _POINTS
) -> tuple[Profile, Callable[[float], float]]:
    """The profile of one trial whose setting is drawn uniformly, as far as `delta` needs it.

    The setting is part of the outcome, so that the profile is the mean of those of all settings, of
    which each has a mechanism. Delta is that of the winner, in (0, 1); there are at least 2 points.

    Returns:
        The profile at these points, and at any.
    """
    if not mechanisms:
        raise InputError("mechanisms", [], "needs at least one")
    for key in ("relation", "unit", "trust_model"):
        values = sorted({str(getattr(each, key)) for each in mechanisms})
        if len(values) > 1:
            raise InputError("mechanisms", values, f"must agree in their {key}")
    counted = Counter(mechanisms)

    def profile(loss: float) -> float:
        total = math.fsum(
            count * accounting.delta(each, epsilon=loss) for each, count in counted.items()
        )
        return min(1.0, total / len(mechanisms) * (1 + _EXACT))

    tiny = min(0.5, delta * _NOTHING / max(1.0, trials.mean))
    most = max(accounting.epsilon(each, delta=tiny) for each in counted)
    if not math.isfinite(most):
        return Profile(np.zeros(1), np.ones(1)), profile
    losses = np.linspace(0.0, min(max(most, 1e-9), _LARGEST_LOSS), points)
    return Profile(losses, np.asarray([profile(float(loss)) for loss in losses])), profile


def choosing_epsilon(
    mechanisms: Mechanism | Sequence[Mechanism], trials: Trials, *, delta: float
) -> float:
    """Epsilon at `delta` of the best of a random number of trials: an upper bound.

    It holds against an observer who sees the winner alone: not the number of trials, and nothing of
    the others. Scores must be functions of what a trial releases and of public records.

    Args:
        mechanisms: what one trial releases; or of each setting, of which each trial draws one with
            equal chances.
        trials: the law of the number of trials, which is drawn in secret.
        delta: in (0, 1).
    """
    if not 0 < delta < 1:
        raise InputError("delta", delta, "must lie strictly between 0 and 1")
    settings = [mechanisms] if isinstance(mechanisms, Mechanism) else list(mechanisms)
    known, profile = profile_of(settings, trials, delta=delta)
    rough = winner_epsilon(known, trials, delta)
    if not 0 < rough < math.inf:
        return rough
    # More points where the largest parts of the bound come from.
    start, width = rough - _lines(known, trials).most, 4 * float(known.losses[1])
    where = np.linspace(max(0.0, start - width / 2), max(0.0, start) + width, _FINE)
    finer = known.with_points(profile, where)
    return min(rough, winner_epsilon(finer, trials, delta))


def choosing_delta(
    mechanisms: Mechanism | Sequence[Mechanism], trials: Trials, *, epsilon: float
) -> float:
    """Delta at `epsilon` of the best of a random number of trials: an upper bound.

    The mechanisms and the law of their number are as for `choosing_epsilon`; epsilon is 0 or more.
    """
    if not (epsilon >= 0 and math.isfinite(epsilon)):
        raise InputError("epsilon", epsilon, "must be 0 or more, and finite")
    settings = [mechanisms] if isinstance(mechanisms, Mechanism) else list(mechanisms)
    bound = 1.0
    for delta in (1e-3, 1e-6, 1e-10, 1e-15):
        known, _ = profile_of(settings, trials, delta=delta, points=_POINTS + _FINE)
        bound = min(bound, winner_delta(known, trials, epsilon))
        if bound > delta:
            break
    return bound
