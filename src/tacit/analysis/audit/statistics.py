"""Attacks: statistics that tend to be larger on D than on D', and how one is chosen and counted.

None of them needs to be right for a bound to hold: each is one attack, and what it achieves is
counted. The likelihood ratio is the best there is where the code does what the plan says; the
others look for what a defect would leave.

What was released, `y`, is `[steps, nodes, width]` in units of the noise of its step.

An attack is fixed on one part of the repetitions, and its guesses are counted on the rest
(`fix_and_count`). Statistic and threshold are chosen on the first part; the second part is counted
once. So what is chosen cannot flatter what is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.analysis.audit.bounds import (
    MOST_EPSILON,
    Counts,
    epsilon_bounds_of,
    rate_above,
    rate_below,
)
from tacit.analysis.audit.canaries import CANARY, CROWD, OPPOSED, Problem
from tacit.analysis.audit.likelihood import Known, likelihood_ratio, opposed_ratio

Array = NDArray[np.float64]
LIKELIHOOD_RATIO = "likelihood ratio"

Statistic = Callable[[Array, Known], Array]
"""(what was released, what is known beforehand) -> scores `[nodes]`."""


def _shortest(y: Array, known: Known) -> Array:
    """How far the sum falls short of the batch that was expected, at most."""
    return _highest(known.batch * known.mu[:, None] - y[:, :, CROWD])


def _largest(y: Array, known: Known) -> Array:
    """The largest value at any step: what outgrows the clipping bound."""
    return _highest(y[:, :, CANARY])


def _farthest(y: Array, known: Known) -> Array:
    """The same where the sign of gradients changes."""
    return _highest(np.abs(y[:, :, CANARY]))


def _highest(values: Array) -> Array:
    """The largest of all steps, `[nodes]`, of those in which something was released."""
    return np.asarray(np.where(np.isfinite(values), values, -np.inf).max(0), np.float64)


def statistics_of(problem: Problem) -> Mapping[str, Statistic]:
    """The statistics that are tried on a problem, by name."""
    if problem == OPPOSED:
        return {LIKELIHOOD_RATIO: opposed_ratio, "largest value": _shortest}
    return {
        LIKELIHOOD_RATIO: likelihood_ratio(problem),
        "largest value": _farthest if problem.flips else _largest,
    }


Bools = NDArray[np.bool_]
LEARNING_SHARE = 0.4
MOST_THRESHOLDS = 2000

Merit = Callable[[Array, Array], Array]
"""(true positive rates, false positive rates) -> what the attack would prove, elementwise."""


@dataclass(frozen=True)
class Guesses:
    """A fixed attack, by the name of its statistic, and its counts on the repetitions kept back."""

    statistic: str
    counts: Counts


def epsilon_merit(delta: float) -> Merit:
    """An attack is as good as the epsilon it proves at `delta`."""
    return lambda tpr, fpr: epsilon_bounds_of(tpr, fpr, delta)


def excess_merit(certificate: Mapping[float, float]) -> Merit:
    """An attack is as good as what it proves beyond a certificate, at its worst delta.

    The certificate is the certified epsilon at each of some deltas.
    """

    def merit(tpr: Array, fpr: Array) -> Array:
        beyond = [
            epsilon_bounds_of(tpr, fpr, delta) - min(epsilon, MOST_EPSILON)
            for delta, epsilon in certificate.items()
        ]
        return np.asarray(np.max(beyond, axis=0), np.float64)

    return merit


def balance_merit(tpr: Array, fpr: Array) -> Array:
    """An attack is as good as its two errors are alike.

    Between Gaussians every threshold shows the same mu; where the errors are alike it is known
    best.
    """
    return np.asarray(-np.abs(tpr + fpr - 1), np.float64)


def fix_and_count(
    scores: Mapping[str, Array], inserted: Bools, *, merit: Merit, confidence: float
) -> Guesses:
    """Choose the best statistic and threshold on the first repetitions, count on the others.

    Scores are `[repetitions]` for every statistic; `inserted`, bool `[repetitions]`, is True on D.
    The confidence is that of the bound that is to be stated.
    """
    learning = int(LEARNING_SHARE * len(inserted))
    chosen = [
        (*_best_threshold(values[:learning], inserted[:learning], merit, confidence), name)
        for name, values in scores.items()
    ]
    _, threshold, name = max(chosen)
    guessed, truth = scores[name][learning:] >= threshold, inserted[learning:]
    counts = Counts(
        positives=int(truth.sum()),
        true_positives=int((guessed & truth).sum()),
        negatives=int((~truth).sum()),
        false_positives=int((guessed & ~truth).sum()),
    )
    return Guesses(name, counts)


def _best_threshold(
    scores: Array, inserted: Bools, merit: Merit, confidence: float
) -> tuple[tuple[float, float], float]:
    """(merit with its confidence, merit at even odds), and the threshold that has the most."""
    thresholds = _candidates(scores)
    on, off = np.sort(scores[inserted]), np.sort(scores[~inserted])
    hits = len(on) - np.searchsorted(on, thresholds, side="left")
    false = len(off) - np.searchsorted(off, thresholds, side="left")
    # Where a part of the repetitions proves nothing yet, the likelier attack is taken.
    sure, likely = (
        merit(rate_below(hits, len(on), alpha), rate_above(false, len(off), alpha))
        for alpha in ((1 - confidence) / 2, 0.5)
    )
    best = max(range(len(thresholds)), key=lambda i: (sure[i], likely[i]))
    return (float(sure[best]), float(likely[best])), float(thresholds[best])


def _candidates(scores: Array) -> Array:
    """Thresholds half-way between neighbouring scores; where there are many, quantiles of them."""
    values = np.unique(scores)
    if len(values) < 2:
        return np.append(values, np.inf)  # all or nothing
    middles = (values[1:] + values[:-1]) / 2
    if len(middles) <= MOST_THRESHOLDS:
        return np.asarray(middles, np.float64)
    picked = np.linspace(0, len(middles) - 1, MOST_THRESHOLDS).astype(np.int64)
    ends = np.concatenate([np.arange(100), len(middles) - 1 - np.arange(100)])
    return np.asarray(middles[np.union1d(picked, ends)], np.float64)
