"""From counted guesses to lower bounds: statistics, true with a stated confidence and no proof.

Every bound here is a statement of the form: if the mechanism were (epsilon, delta)-DP, what was
counted would have a chance of at most 1 - confidence. That is evidence, not a theorem about the
code: with confidence 0.95 one audit in twenty of a tight mechanism may say more than is true. A
guess counts only if the attack, its threshold included, was fixed before the guess was made.

*Many repetitions* (`Counts`). An attack guesses which of two neighbouring data sets `D` (positive)
and `D'` (negative) it saw.

*One run* (`Guessed`), by the trade-off function that a mechanism is held to. It says how often a
test of one record can be right at each rate of being wrong, and is held from the safe side, by
finitely many pairs (epsilon, delta): the mechanism that is put to the test is (epsilon, delta)-DP
for each of them, in both orders of two neighbours. Each pair bounds the power of a test at a false
positive rate x, and the least of these bounds is g:

    g(x) = min(e^epsilon x + delta, 1 - e^-epsilon (1 - delta - x)).

The bound on right guesses is that of Mahloujifar, Melis and Chaudhuri, *Auditing f-Differential
Privacy in One Run* (arXiv 2410.22235), proved for this code in `docs/proofs/audits.md`, *One
training run*; that of Steinke, Nasr and Jagielski (2023), Theorem 5.2, holds for every pair. Both
bound the same chance, so that the smaller of the two is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import ndtri
from scipy.stats import beta, binom, nct

from tacit import privacy
from tacit.errors import InputError
from tacit.privacy.accounting.accounting import rough_epsilon
from tacit.privacy.accounting.gaussian import gaussian_epsilon

Array = NDArray[np.float64]
ROUNDING = 1e-9  # of the quantiles, to the safe side
STRIP = 0.45  # of the error: what one tail alone may take of it
CORNERS = 64  # of the region that holds both rates
MOST_EPSILON = 500.0
_LOUDEST = 1e4  # deviations


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
    if not 0 < confidence < 1:
        raise InputError("confidence", confidence, "must lie strictly between 0 and 1")
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
    if not 0 < confidence < 1:
        raise InputError("confidence", confidence, "must lie strictly between 0 and 1")
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


def loudness(present: Array, absent: Array, alpha: float) -> float:
    """What the sum of the means of `present` over the noise exceeds, but for a chance `alpha`.

    Of normal scores with one deviation, `absent` about 0: it is the centre of a noncentral t. One
    of more than `_LOUDEST` counts as that, a lower bound too: SciPy ends there, and no noise is 0.
    """
    noise = max(math.sqrt(float(np.mean(absent**2)) * len(present)), 1e-300)
    found = min(float(present.sum()) / noise, _LOUDEST)

    def excess(centre: float) -> float:
        return float(nct.sf(found, len(absent), centre)) - alpha

    centre = brentq(excess, 0.0, 2 * found + 10, xtol=1e-10) if excess(0.0) < 0 else 0.0
    return max(1e-300, float(centre) * math.sqrt(len(present)) * (1 - 1e-9))


# One run, and what a mechanism is held to.

ROUNDING_OF_SUMS = 1e-9  # of chances: far more than a thousand additions can lose
POINTS = 24  # pairs that an accountant is asked for
FAMILY_POINTS = 8  # for each amount of noise that is tried
FAMILY_STEP = 1.02  # between a factor that is refuted and one that is not
MOST_FACTOR = 1e6  # of noise, up and down, that is searched


@dataclass(frozen=True)
class Guessed:
    """What was guessed in one run: m, r and v of `one_run_p_value`.

    Raises:
        InputError: not 0 <= correct <= guesses <= canaries, or no canary at all.
    """

    canaries: int
    guesses: int
    correct: int

    def __post_init__(self) -> None:
        if not (0 <= self.correct <= self.guesses <= self.canaries and self.canaries):
            found = (self.correct, self.guesses, self.canaries)
            raise InputError("guesses", found, "needs correct <= guesses <= canaries, one or more")


def one_run_p_value(guessed: Guessed, epsilon: float, delta: float) -> float:
    """Chance bound of as many right guesses or more in one run of an (epsilon, delta)-DP mechanism.

    Steinke, Nasr and Jagielski, *Privacy Auditing with One (1) Training Run* (NeurIPS 2023),
    Theorem 5.2. With m canaries, each included by a fair coin of its own, and r guesses, fixed
    before the coins are seen (the rest abstained), P[v or more are correct] is at most
    `f(v) + 2 m delta max_{1 <= i <= v} (f(v - i) - f(v)) / i`, where
    f(v) = P[Binomial(r, e^epsilon / (1 + e^epsilon)) >= v].

    Raises:
        InputError: epsilon is below 0, or delta is not in [0, 1].
    """
    if not (epsilon >= 0 and 0 <= delta <= 1):
        raise InputError("epsilon, delta", (epsilon, delta), "must be >= 0 and in [0, 1]")
    guesses, correct = guessed.guesses, guessed.correct
    accuracy = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(correct - 1, guesses, accuracy))
    if delta == 0 or correct == 0:
        return min(1.0, tail)
    gains = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, accuracy))
    worst = float((gains / np.arange(1, correct + 1)).max())
    return min(1.0, tail + 2 * guessed.canaries * delta * worst)


@dataclass(frozen=True)
class TradeOff:
    """What a test of one canary can achieve, from above.

    Args:
        epsilons: ascending, each 0 or more.
        deltas: for which the mechanism is (epsilon, delta)-DP, in [0, 1] each; rounded up.
        times: how many neighbouring steps lie between a canary that is in and one that is out: 1,
            or 2 where one record stands in another's place and the guarantee is for adding or
            removing one.

    Raises:
        InputError: the numbers of both differ or are 0, or one is out of range.
    """

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]
    times: int = 1

    def __post_init__(self) -> None:
        pairs = list(zip(self.epsilons, self.deltas, strict=False))
        right = len(self.epsilons) == len(self.deltas) > 0 and self.times in (1, 2)
        if not (right and all(e >= 0 and 0 <= d <= 1 for e, d in pairs)):
            raise InputError(
                "trade-off", pairs, "needs epsilons of 0 or more, and a delta in [0, 1] for each"
            )

    @cached_property
    def _lines(self) -> tuple[Array, Array]:
        """Slopes and intercepts of the lines above g, those of the opposite test last."""
        epsilons = np.minimum(np.asarray(self.epsilons), MOST_EPSILON)
        deltas = np.where(np.asarray(self.epsilons) > MOST_EPSILON, 1.0, np.asarray(self.deltas))
        opposite = np.exp(-epsilons)
        slopes = np.concatenate([np.exp(epsilons), opposite])
        return slopes, np.concatenate([deltas, 1 - opposite * (1 - deltas)])

    def needed(self, power: float) -> float:
        """The least false positive rate at this power, from below; infinite above power 1."""
        slopes, intercepts = self._lines
        for _ in range(self.times):
            if power > 1:
                return math.inf
            rate = float(((power - intercepts) / slopes).max())
            power = max(0.0, rate * (1 - 1e-12) - 1e-15)
        return power

    def pairs(self) -> list[tuple[float, float]]:
        """Its (epsilon, delta), of `times` steps: e^epsilon (e^epsilon x + delta) + delta."""
        single = zip(self.epsilons, self.deltas, strict=True)
        if self.times == 1:
            return list(single)
        return [
            (2 * epsilon, min(1.0, delta * (1 + math.exp(epsilon)) * (1 + 1e-15)))
            for epsilon, delta in single
            if epsilon < MOST_EPSILON
        ]


def of_mechanisms(
    mechanisms: Sequence[privacy.Mechanism], *, times: int = 1, points: int = POINTS
) -> TradeOff:
    """One that holds for each of some mechanisms, from the product's accountant.

    The accountant's deltas are upper bounds, so that what is allowed here is never less than what
    the mechanisms allow.

    Raises:
        InputError: no bound is known for one of them.
    """
    reach = [rough_epsilon(mechanism, delta=1e-6) for mechanism in mechanisms]
    most = max(min(epsilon, MOST_EPSILON) for epsilon in reach)
    epsilons = np.linspace(0.0, most, points).tolist() if most > 0 else [0.0]
    deltas = [
        min(1.0, max(privacy.delta(mechanism, epsilon=epsilon) for mechanism in mechanisms))
        for epsilon in epsilons
    ]
    return TradeOff(tuple(epsilons), tuple(deltas), times)


def refutes(guessed: Guessed, trade_off: TradeOff, *, level: float) -> bool:
    """Whether as many right guesses have a chance of at most `level` under the trade-off function.

    Raises:
        InputError: the level does not lie in (0, 1).
    """
    if not 0 < level < 1:
        raise InputError("level", level, "must lie strictly between 0 and 1")
    if guessed.correct == 0:
        return False
    if _least_total(level, guessed, trade_off) > 1 + ROUNDING_OF_SUMS:
        return True
    return any(one_run_p_value(guessed, *pair) <= level for pair in trade_off.pairs())


def p_value(guessed: Guessed, trade_off: TradeOff) -> float:
    """The chance, at most, of as many right guesses or more under the trade-off function."""
    if guessed.correct == 0:
        return 1.0
    low, high = -700.0, 0.0  # logarithms; below and above the largest chance that is possible
    if _least_total(math.exp(low), guessed, trade_off) <= 1 + ROUNDING_OF_SUMS:
        for _ in range(50):
            middle = (low + high) / 2
            if _least_total(math.exp(middle), guessed, trade_off) > 1 + ROUNDING_OF_SUMS:
                high = middle
            else:
                low = middle
    else:
        high = low
    single = min((one_run_p_value(guessed, *pair) for pair in trade_off.pairs()), default=1.0)
    return min(1.0, math.exp(high), single)


def epsilon_of_any(guessed: Guessed, *, delta: float, confidence: float, times: int = 1) -> float:
    """The largest epsilon at `delta` that one run refutes, whatever the mechanism is; 0 if none.

    Raises:
        InputError: delta or the confidence is out of range.
    """
    if not 0 <= delta <= 1:
        raise InputError("delta", delta, "must lie in [0, 1]")

    def refuted(epsilon: float) -> bool:
        held_to = TradeOff((epsilon,), (delta,), times)
        return refutes(guessed, held_to, level=1 - confidence)

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high) and high < MOST_EPSILON:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def quietest_not_refuted(
    guessed: Guessed, held_to: Callable[[float], TradeOff], *, confidence: float
) -> float | None:
    """How much noise one run still allows, as a factor of what was planned.

    Of a family of mechanisms that differ in how much noise they add, `held_to` gives the trade-off
    function under so many times the planned noise. More noise is never less private, so that a run
    which refutes a factor refutes all larger ones; each of them with this confidence.

    Returns:
        A factor that is refuted, less than 2 % above one that is not; None where none is.
    """
    # What the count does not refute of guesses at even odds, it refutes of no mechanism.
    if not refutes(guessed, TradeOff((0.0,), (0.0,)), level=1 - confidence):
        return None

    def refuted(factor: float) -> bool:
        return refutes(guessed, held_to(factor), level=1 - confidence)

    low, high = 0.5, 1.0
    if refuted(high):
        while low > 1 / MOST_FACTOR and refuted(low):
            low, high = low / 2, low
    else:
        low, high = 1.0, 2.0
        while not refuted(high):
            if high > MOST_FACTOR:
                return None
            low, high = high, 2 * high
    while high / low > FAMILY_STEP:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if refuted(middle) else (middle, high)
    return high


def epsilon_of_family(
    guessed: Guessed,
    mechanisms: Callable[[float], Sequence[privacy.Mechanism]],
    *,
    delta: float,
    confidence: float,
    times: int = 1,
) -> tuple[float, float | None]:
    """The epsilon that one run refutes, if what ran is the plan with some other amount of noise.

    `mechanisms` gives those of the audited nodes under so many times the planned noise; epsilon is
    that of the node that leaks most. Beside it stands the factor: there was less noise than so many
    times the planned one. 0 and None where nothing is refuted.

    Raises:
        InputError: no bound is known for a mechanism, or a number is out of range.
    """

    def held_to(factor: float) -> TradeOff:
        return of_mechanisms(mechanisms(factor), times=times, points=FAMILY_POINTS)

    factor = quietest_not_refuted(guessed, held_to, confidence=confidence)
    if factor is None:
        return 0.0, None
    lower = [privacy.epsilon_bounds(one, delta=delta)[0] for one in mechanisms(factor)]
    return max(lower), factor


def _least_total(tail: float, guessed: Guessed, trade_off: TradeOff) -> float:
    """The least sum of chances of all counts, if `correct` or more had the chance `tail`.

    Above 1 that is impossible. It grows with `tail` (`docs/proofs/audits.md`).

    Counting down, `total` is the chance of c or more right guesses, and `right` is m times less
    than the mean number of right guesses on that event. What is wrong at c - 1 or more must be at
    least `needed(right)`; the rest of it is put on c - 1 right guesses.
    """
    canaries, guesses = guessed.canaries, guessed.guesses
    total, right = tail, guessed.correct * tail / canaries
    for count in range(guessed.correct, 0, -1):
        wrong = guesses * total / canaries - right
        missing = (trade_off.needed(right) - wrong) * canaries / (guesses - count + 1)
        if missing <= 0 or total > 2:
            break  # nothing changes any more; or enough is known
        total += missing
        right += (count - 1) * missing / canaries
    return total
