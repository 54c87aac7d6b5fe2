"""Fixing an attack on one part of the repetitions, and counting its guesses on the rest.

Statistic and threshold are chosen on the first part; the second part is counted once. So what is
chosen cannot flatter what is counted.
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

__all__ = [
    "LEARNING_SHARE",
    "Guesses",
    "Merit",
    "balance_merit",
    "epsilon_merit",
    "excess_merit",
    "fix_and_count",
]

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
LEARNING_SHARE = 0.4
MOST_THRESHOLDS = 2000

Merit = Callable[[Array, Array], Array]
"""(true positive rates, false positive rates) -> what the attack would prove, elementwise."""


@dataclass(frozen=True)
class Guesses:
    """A fixed attack and what it counted.

    Args:
        statistic: its name.
        threshold: D is guessed at or above it.
        counts: on the repetitions that were kept back.
    """

    statistic: str
    threshold: float
    counts: Counts


def epsilon_merit(delta: float) -> Merit:
    """An attack is as good as the epsilon it proves at `delta`."""
    return lambda tpr, fpr: epsilon_bounds_of(tpr, fpr, delta)


def excess_merit(certificate: Mapping[float, float]) -> Merit:
    """An attack is as good as what it proves beyond a certificate, at its worst delta.

    Args:
        certificate: certified epsilon at each of some deltas.
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

    Args:
        scores: `[repetitions]` for every statistic.
        inserted: bool `[repetitions]`, True on D.
        merit: what to choose by.
        confidence: of the bound that is to be stated.
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
    return Guesses(name, threshold, counts)


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
