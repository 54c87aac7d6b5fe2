"""Calibration: the least noise with which a mechanism meets a budget, rounded to the safe side.

The answer is one of few numbers: a search only tries scales of `_BITS` more bits than the tolerance
asks for. So it is nearly always the same on every machine and for every number of threads, although
the last bits of an accountant's sums are not. Where it is not, it is the next of these numbers, and
certified as well: processes, which compare noise to five digits, agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from tacit.errors import BudgetError, InputError
from tacit.privacy.accounting import accounting
from tacit.privacy.mechanisms.base import Mechanism, number, positive

TOLERANCE = 1e-3
_ROUGH = 2e-3  # a search for where to search
_BITS = 10


def calibrate(
    mechanism: Callable[[float], Mechanism],
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    guess: float | None = None,
    tolerance: float = TOLERANCE,
    start: float = 1.0,
) -> float:
    """The smallest scale `s`, within `tolerance`, for which `mechanism(s)` meets the budget.

    The budget is an epsilon at a delta, or how often a guess may be right.

    Args:
        mechanism: a mechanism for each noise scale; its epsilon must fall as the scale rises.
        epsilon: the budget, positive.
        delta: the budget, in (0, 1).
        guess: the budget in place of both, in (0.5, 1): see `right_guess`.
        tolerance: relative; the answer is never below the true one, and at most this far above.
        start: a first guess.

    Returns:
        A scale whose **certified** epsilon is at most `epsilon`, or right guess at most `guess`.

    Raises:
        InputError: epsilon is not positive and finite, delta outside (0, 1), or `guess` outside
            (0.5, 1) or given beside another.
        BudgetError: no scale up to 1e9 meets the budget.
    """
    target, rough, cost = _costs(epsilon, delta, guess)
    if not callable(mechanism) or not isinstance(mechanism(positive("start", start)), Mechanism):
        raise InputError("mechanism", mechanism, "must be a function of a scale, to a mechanism")
    if mechanism(start).rate == 1:
        tolerance = min(tolerance, 1e-9)  # a closed form costs nothing
    rough_scale = least_scale(
        lambda scale: rough(mechanism(scale)),
        target=target,
        tolerance=max(tolerance, _ROUGH),
        start=start,
    )
    bits = _BITS - math.floor(math.log2(tolerance))
    scale = least_scale(
        lambda scale: cost(mechanism(_rounded(scale, bits))),
        target=target,
        tolerance=tolerance,
        start=rough_scale,
        factor=1 + 3 * max(tolerance, _ROUGH),
    )
    return _rounded(scale, bits)


_Cost = Callable[[Mechanism], float]


def _costs(
    epsilon: float | None, delta: float | None, guess: float | None
) -> tuple[float, _Cost, _Cost]:
    """What may be spent at most, about what a mechanism costs, and what is certified of it."""
    if guess is not None:
        if not 0.5 < number("guess", guess) < 1:
            raise InputError("guess", guess, "must lie strictly between 0.5 and 1")
        if epsilon is not None or delta is not None:
            raise InputError("guess", guess, "is in place of epsilon and delta: give one")
        apart = partial(accounting.delta, epsilon=0.0)
        return 2 * guess - 1, apart, apart  # the difference is exact
    if epsilon is None or not number("epsilon", epsilon) > 0:
        raise InputError("epsilon", epsilon, "must be positive and finite")
    if delta is None:
        raise InputError("delta", delta, "must lie strictly between 0 and 1")
    rough = partial(accounting.rough_epsilon, delta=delta)
    return epsilon, rough, partial(accounting.epsilon, delta=delta)


def _rounded(scale: float, bits: int) -> float:
    """The nearest number of so many bits."""
    part, exponent = math.frexp(scale)
    return math.ldexp(round(math.ldexp(part, bits)), exponent - bits)


def least_scale(
    cost: Callable[[float], float],
    *,
    target: float,
    tolerance: float = TOLERANCE,
    start: float = 1.0,
    factor: float = 1.3,
) -> float:
    """The smallest scale, within a relative tolerance, at which a falling cost is <= `target`.

    Regula falsi in the logarithms of both, kept inside a bracket: a cost takes long to compute,
    and is close to a power of the scale.

    Raises:
        BudgetError: the cost stays above the target up to a scale of 1e9.
    """
    low, high = start, start  # cost(low) > target >= cost(high)
    value = cost(start)
    low_cost = high_cost = value
    first = factor
    while low_cost <= target:
        high, high_cost = low, low_cost
        low /= factor
        if low < 1e-9:
            return high
        low_cost = cost(low)
        factor = min(factor * factor, 8.0)
    factor = first
    while high_cost > target:
        low, low_cost = high, high_cost
        high *= factor
        if high > 1e9:
            raise BudgetError(
                f"no noise scale up to 1e9 brings the cost down to {target:g}{_remedy(low_cost)}"
            )
        high_cost = cost(high)
        factor = min(factor * factor, 8.0)
    for attempt in range(200):
        if high <= low * (1 + tolerance):
            break
        bracket = (low, low_cost, high, high_cost)
        middle = _between(bracket, target, tolerance, bisect=attempt % 3 == 2)
        value = cost(middle)
        if value <= target:
            high, high_cost = middle, value
        else:
            low, low_cost = middle, value
    return high


def _remedy(least: float) -> str:
    """What is possible, where the most noise that was tried costs `least`."""
    if not 0 < least < math.inf:
        return ": fewer steps, or a smaller share of the records in a batch, cost less"
    unit = 10.0 ** (math.floor(math.log10(least)) - 1)
    return (
        f", since finite arithmetic has a price: {math.ceil(1.05 * least / unit) * unit:.2g} fits"
    )


def _between(
    bracket: tuple[float, float, float, float], target: float, tolerance: float, *, bisect: bool
) -> float:
    """A point strictly inside the bracket: interpolated a hair to the safe side, or the middle."""
    low, low_cost, high, high_cost = bracket
    share = 0.5
    if not bisect and 0 < high_cost < low_cost < math.inf:
        share = math.log(low_cost / target) / math.log(low_cost / high_cost)
    guess: float = low * math.pow(high / low, share) * (1 + 0.4 * tolerance)
    margin = 1 + 0.45 * tolerance
    return min(max(guess, low * margin), high / margin)
