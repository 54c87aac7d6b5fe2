"""From counted guesses to lower bounds: statistics, true with a stated confidence and no proof.

Every bound here is a statement of the form: if the mechanism were (epsilon, delta)-DP, what was
counted would have a chance of at most 1 - confidence. That is evidence, not a theorem about the
code: with confidence 0.95 one audit in twenty of a tight mechanism may say more than is true.

An attack guesses which of two neighbouring data sets `D` (positive) and `D'` (negative) it saw. A
guess counts only if the attack, its threshold included, was fixed before the guess was made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import ndtri
from scipy.stats import beta, binom

from tacit.errors import InputError
from tacit.privacy.accounting.gaussian import gaussian_epsilon

Array = NDArray[np.float64]
ROUNDING = 1e-9  # of the quantiles, to the safe side
STRIP = 0.45  # of the error: what one tail alone may take of it
CORNERS = 64  # of the region that holds both rates
MOST_EPSILON = 500.0


@dataclass(frozen=True)
class Counts:
    """How often a fixed attack guessed D, in repetitions on D (positives) and on D' (negatives)."""

    positives: int
    true_positives: int
    negatives: int
    false_positives: int

    def __post_init__(self) -> None:
        for hits, trials in (
            (self.true_positives, self.positives),
            (self.false_positives, self.negatives),
        ):
            if not 0 <= hits <= trials:
                raise InputError("counts", (hits, trials), "needs 0 <= hits <= trials")


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise InputError("confidence", confidence, "must lie strictly between 0 and 1")


def rate_below(hits: ArrayLike, trials: ArrayLike, alpha: ArrayLike) -> Array:
    """A rate that the true one exceeds, but for a chance `alpha`: Clopper and Pearson (1934)."""
    successes, total = np.asarray(hits, np.float64), np.asarray(trials, np.float64)
    low = beta.ppf(alpha, np.maximum(successes, 0.5), total - successes + 1)
    return np.where(successes > 0, low * (1 - ROUNDING), 0.0)


def rate_above(hits: ArrayLike, trials: ArrayLike, alpha: ArrayLike) -> Array:
    """A rate that the true one stays below, but for a chance `alpha`: Clopper and Pearson."""
    successes, total = np.asarray(hits, np.float64), np.asarray(trials, np.float64)
    high = beta.isf(alpha, successes + 1, np.maximum(total - successes, 0.5))
    return np.where(successes < total, np.minimum(high * (1 + ROUNDING), 1.0), 1.0)


def error_rates(counts: Counts, confidence: float) -> tuple[float, float]:
    """(true positive rate from below, false positive rate from above), jointly.

    Each is one-sided at half of what the confidence leaves, so both hold together (Bonferroni).
    """
    _check_confidence(confidence)
    alpha = (1 - confidence) / 2
    return (
        float(rate_below(counts.true_positives, counts.positives, alpha)),
        float(rate_above(counts.false_positives, counts.negatives, alpha)),
    )


def _corners(counts: Counts, confidence: float) -> tuple[Array, Array]:
    """(true positive rates from below, false positive rates from above): one pair holds, jointly.

    The corners of a region that holds the true rates with this confidence: neither tail is below
    `share`, and their product is not below `product` (`docs/proofs/audits.md`, *Lower bounds from
    guesses*).
    """
    _check_confidence(confidence)
    alpha = 1 - confidence
    share = STRIP * alpha
    product = _least_product(share, alpha)
    levels = np.geomspace(share, product / share, CORNERS + 1)
    return (
        rate_below(counts.true_positives, counts.positives, levels[:-1]),
        rate_above(counts.false_positives, counts.negatives, product / levels[1:]),
    )


@lru_cache(maxsize=64)
def _least_product(share: float, alpha: float) -> float:
    """The c with 2 a + c (log(c / a^2) - 1) = alpha, rounded down."""

    def excess(log: float) -> float:
        return 2 * share + math.exp(log) * (log - 2 * math.log(share) - 1) - alpha

    root = brentq(excess, 2 * math.log(share), math.log(share), xtol=1e-13)
    return math.exp(float(root)) * (1 - ROUNDING)


def epsilon_bounds_of(tpr: ArrayLike, fpr: ArrayLike, delta: float) -> Array:
    """The least epsilon that allows a true positive rate at a false positive rate, elementwise.

    (epsilon, delta)-DP allows TPR <= e^epsilon FPR + delta, and for the opposite guess
    1 - FPR <= e^epsilon (1 - TPR) + delta; the larger of the two.
    """
    hit, false = np.asarray(tpr, np.float64), np.asarray(fpr, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        forward = np.log(np.maximum(hit - delta, 0.0)) - np.log(false)
        backward = np.log(np.maximum(1 - false - delta, 0.0)) - np.log1p(-hit)
    both = np.fmax(forward, backward)
    return np.clip(np.where(np.isnan(both), 0.0, both), 0.0, MOST_EPSILON)


def epsilon_lower(counts: Counts, *, delta: float, confidence: float) -> float:
    """An epsilon that the mechanism exceeds at `delta`, in [0, 1), at this confidence.

    The guesses are counted with a threshold that was fixed beforehand. The confidence is that the
    two rates lie in their joint region, which is the same for every delta, so that the bounds at
    several deltas hold together.

    Raises:
        InputError: a number is outside its range.
    """
    if not 0 <= delta < 1:
        raise InputError("delta", delta, "must lie in [0, 1)")
    return float(epsilon_bounds_of(*_corners(counts, confidence), delta).min())


def mu_lower(counts: Counts, *, confidence: float) -> float:
    """A Gaussian-DP parameter that the mechanism exceeds, at this confidence.

    A mu-GDP mechanism allows Phi^-1(TPR) - Phi^-1(FPR) <= mu (Dong, Roth and Su, *Gaussian
    differential privacy*, Def. 2.6), so that a larger difference contradicts mu-GDP whatever the
    mechanism is. To turn mu into an epsilon, `epsilon_of_mu`, the mechanism must be Gaussian.
    """
    tpr, fpr = _corners(counts, confidence)
    if tpr.min() <= 0 or fpr.max() >= 1:
        return 0.0
    return max(0.0, float((ndtri(tpr) - ndtri(fpr)).min()) * (1 - ROUNDING))


def epsilon_of_mu(mu: float, delta: float) -> float:
    """Epsilon at `delta` of a Gaussian mechanism, rounded down: only for exact Gaussians."""
    return 0.0 if mu <= 0 else gaussian_epsilon(mu, delta) * (1 - 1e-8)


def one_run_p_value(
    *, canaries: int, guesses: int, correct: int, epsilon: float, delta: float
) -> float:
    """Chance bound of `correct` guesses or more in one run of an (epsilon, delta)-DP mechanism.

    Steinke, Nasr and Jagielski, *Privacy Auditing with One (1) Training Run* (NeurIPS 2023),
    Theorem 5.2. With m canaries, each included by a fair coin of its own, and r guesses, fixed
    before the coins are seen (the rest abstained), P[v or more are correct] is at most
    `f(v) + 2 m delta max_{1 <= i <= v} (f(v - i) - f(v)) / i`, where
    f(v) = P[Binomial(r, e^epsilon / (1 + e^epsilon)) >= v].

    Raises:
        InputError: not 0 <= correct <= guesses <= canaries, or epsilon is below 0, or delta is not
            in [0, 1].
    """
    if not 0 <= correct <= guesses <= canaries:
        raise InputError(
            "guesses", (correct, guesses, canaries), "needs correct <= guesses <= canaries"
        )
    if not (epsilon >= 0 and 0 <= delta <= 1):
        raise InputError("epsilon, delta", (epsilon, delta), "must be >= 0 and in [0, 1]")
    accuracy = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(correct - 1, guesses, accuracy))
    if delta == 0 or correct == 0:
        return min(1.0, tail)
    gains = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, accuracy))
    worst = float((gains / np.arange(1, correct + 1)).max())
    return min(1.0, tail + 2 * canaries * delta * worst)
