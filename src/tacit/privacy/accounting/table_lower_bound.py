"""What a table of gradients leaks at least: a lower bound on delta, by an instance and a test.

*The instance* (PrivSGP-VR: y_k = grad_new - grad_old + mean of the table, noise sigma; the table
starts with the gradients at z^0 and is private). Take C, the bound of a gradient, as the unit; q =
b / J is an entry's weight in the mean, so that `undrawn_norm` = q and `drawn_norm` = 2 - q. All
other records are linear: their gradients are constants, their differences 0, and what they
contribute is known and subtracted. The gradient of the record at stake lies along one unit vector e
and depends on z along e alone: -1 in the point z^0, +1 farther than w from it, in between as smooth
as one likes. As w tends to 0, the chance that noise leaves any later z within w tends to 0, so that
the supremum over instances is that of a gradient that flips once, right after the start. Its
contribution along e is then

    -q       at step 0, drawn or not, and at every step before it is next drawn (the table still
             holds -1),
    2 - q    at the first step from 1 on that draws it: 1 - (-1) + q (-1),
    +q       at every later step, drawn or not: the table holds +1.

Without the record (zero-out) it is 0. Under replace-one the other record is its mirror image,
-e for e: +q before, q - 2 at the first draw, -q later. One of J draws the record with chance 1 / J
at each step, independently, just as a coin does.

*The test*: does some message exceed its threshold along e? Thresholds lie where a shift by
`drawn_norm` has one likelihood ratio at all steps, which is then the best on a grid: any threshold
gives a bound. delta >= P(some) - e^epsilon P'(some), with the first formed in non-negative terms
over the first draw and rounded down, and the second bounded by the sum over steps and rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import log_ndtr

from tacit.errors import InputError
from tacit.privacy.accounting.gaussian import Array
from tacit.privacy.mechanisms.base import REPLACE_ONE
from tacit.privacy.mechanisms.steps import PrivateState, schedule

__all__ = ["table_lower_delta", "table_lower_epsilon"]

_ROUNDING = 1e-9  # relative: of sums over up to a million steps, of terms right to 1e-15 each


def table_lower_delta(mechanism: PrivateState, epsilon: float) -> float:
    """A lower bound on the delta of a table of gradients at `epsilon` >= 0.

    Raises:
        InputError: `drawn_norm` is not 2 - `undrawn_norm`: no table of gradients whose differences
            are not clipped on their own.
    """

    def gain(ratio: float) -> float:
        some, log_against = _chances(mechanism, ratio)
        return some - math.exp(min(epsilon + log_against, 1.0))

    slack = 10.0 - math.log(mechanism.sample_rate) + math.log(mechanism.steps or 1)
    return max(0.0, _greatest(gain, epsilon - 2.0, epsilon + slack))


def table_lower_epsilon(mechanism: PrivateState, delta: float) -> float:
    """An epsilon below which a table of gradients exceeds `delta`; 0 if none is found.

    Raises:
        InputError: as `table_lower_delta`.
    """

    def exceeded(ratio: float) -> float:
        some, log_against = _chances(mechanism, ratio)
        return math.log(some - delta) - log_against if some > delta else -math.inf

    seen = mechanism.drawn_norm / min(schedule(mechanism))
    greatest = _greatest(exceeded, 0.0, seen * seen / 2 + 9.0 * seen + 1.0)
    return max(0.0, greatest - 1e-9 * (1 + abs(greatest))) if greatest > 0 else 0.0


def _greatest(function: Callable[[float], float], low: float, high: float) -> float:
    """The greatest value found between two ends, by ever finer grids around the best so far."""
    best = -math.inf
    for _ in range(5):
        points = np.linspace(low, high, 33)
        values = [function(float(point)) for point in points]
        top = int(np.argmax(values))
        best = max(best, values[top])
        low, high = float(points[max(0, top - 1)]), float(points[min(32, top + 1)])
    return best


def _chances(mechanism: PrivateState, ratio: float) -> tuple[float, float]:
    """The chance that some message exceeds its threshold, rounded down, and the other's logarithm.

    The other is the same chance without the record (or with its mirror image), rounded up.

    Args:
        mechanism: a table of gradients.
        ratio: logarithm of the likelihood ratio of a shift by `drawn_norm` at every threshold.
    """
    drawn, undrawn = mechanism.drawn_norm, mechanism.undrawn_norm
    if abs(drawn + undrawn - 2) > 1e-9:
        needed = f"2 - undrawn_norm = {2 - undrawn:g}"
        expected = f"must be {needed}: a table of gradients, differences unclipped"
        raise InputError("drawn_norm", drawn, expected)
    noise: Array = np.asarray(schedule(mechanism))
    threshold = ratio * noise / drawn + drawn / (2 * noise)
    below_before = log_ndtr(threshold + undrawn / noise)
    below_drawn = log_ndtr(threshold - drawn / noise)
    below_after = log_ndtr(threshold - undrawn / noise)
    # None exceeds, given the first draw from step 1 on: all before, the draw itself, all after.
    before = np.cumsum(below_before)
    after = np.append(np.cumsum(below_after[::-1])[::-1], 0.0)
    none = before[:-1] + below_drawn[1:] + after[2:]
    rate, later = mechanism.sample_rate, len(noise) - 1
    first_draws = rate * np.power(1 - rate, np.arange(later))
    some = float(np.sum(first_draws * -np.expm1(none)))
    some += (1 - rate) ** later * -math.expm1(float(before[-1]))
    # At step k the mirror image still adds +q where nothing was drawn since step 1, else less.
    shift = undrawn if mechanism.relation == REPLACE_ONE else 0.0
    still = np.power(1 - rate, np.arange(len(noise)))
    with np.errstate(divide="ignore"):
        weights = np.log(np.concatenate((still, 1 - still)))
    tails = log_ndtr(np.concatenate((shift / noise - threshold, -shift / noise - threshold)))
    log_against = float(np.logaddexp.reduce(weights + tails))
    # An argument of log_ndtr is off by a rounding of its terms, times the slope, at most itself.
    largest = float(np.max(drawn / noise + np.abs(threshold)))
    rounding = _ROUNDING + 1e-14 * largest * (1 + largest)
    return some * (1 - rounding), log_against + rounding
