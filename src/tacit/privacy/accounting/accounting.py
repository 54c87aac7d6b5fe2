"""Certified accounting: bounds on epsilon and delta that provably hold for a mechanism.

`epsilon` and `delta` are upper bounds; `epsilon_bounds` and `delta_bounds` add a lower bound that
the mechanism's worst instance reaches. What they rest on:

- `Gaussian` (and a sampling rate of 1): the closed form, exact.
- `SampledGaussian`, `Laplace`, `PrivateState` with Poisson sampling (Theorem A), and compositions
  of them: the pair that dominates each step (`dominating_pairs`), cut into cells from above and
  from below, composed on a line of the complex plane with every error bounded (`spectrum`). The
  larger of the two directions is taken after composition. The gap is some 0.03 % of epsilon; where
  there are more than 32 different noise levels, that of `tables` adds to it.
- `FixedBatchGaussian`: above, the same engine on the pointwise maximum of both directions of each
  step; below, one direction. Composed, there is a gap between what the two prove.
- `RandomAllocationGaussian`: above, a law that is wider than the likelihood ratio of an epoch
  (`allocation`), in the same engine; below, the sum over each epoch.
- `MatrixGaussian`: independent noise that loses as much (`docs/proofs/matrix-noise.md`).
- `PrivateState` with a fixed batch size or groups: above, Bound B (`private_state`), which gives up
  amplification; below, Theorem A's pair, which the instance where all other records
  contribute nothing reaches.
- `PersistentState`: above, Bound B with draws that add up (`private_state`); below, nothing is
  proved.
- `ClientSampling`: participation is seen, so a round's loss is a mixture, exactly.
- `KnownRelease`: above, the largest pair that it allows (`listed`); below, nothing is proved.
- `Person`: of the worst nodes together, the pairs for several rows of a step, or group privacy of
  the whole curve (`persons`); below, those pairs, or what one row loses.

The bounds are for ideal noise where a mechanism states no `coordinates`. What a run releases is
that, rounded to a public lattice (`tacit.privacy.noise.gaussian`); what finite arithmetic may
change is bounded in `tacit.privacy.noise.slack`, and part of every bound of a mechanism that states
how many numbers it releases. What is out of its range, or has no known bound, is an InputError that
names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial, wraps
from inspect import signature
from itertools import accumulate
from typing import Any, TypeVar, cast

import numpy as np

from tacit.errors import InputError
from tacit.privacy.accounting.dominating_pairs import (
    GaussianPart,
    LaplacePart,
    MixedPart,
    Part,
    StepsPart,
    largest_level,
    pure_epsilon,
    softened,
    total_variation,
)
from tacit.privacy.accounting.gaussian import gaussian_delta, gaussian_epsilon
from tacit.privacy.accounting.listed import ListPart
from tacit.privacy.accounting.persons import (
    has_pairs,
    parts_of,
    rows_delta,
    rows_epsilon,
    worst_nodes,
)
from tacit.privacy.accounting.private_state import (
    persistent_delta,
    persistent_epsilon,
    revealed_delta,
    revealed_epsilon,
)
from tacit.privacy.accounting.spectrum import UNIT, Spectrum, list_atoms, mixed, spectrum, sum_of
from tacit.privacy.accounting.tables import (
    Resolution,
    Survey,
    interpolates,
    laplace_transform,
    reach_for,
    resolve,
    steps_of,
    steps_spectrum,
    survey,
    surveyed,
)
from tacit.privacy.mechanisms.base import Mechanism
from tacit.privacy.mechanisms.composed import Person
from tacit.privacy.mechanisms.steps import PersistentState, PrivateState, Scheduled
from tacit.privacy.noise.slack import (
    delta_with_slack,
    delta_without_slack,
    epsilon_without_slack,
    with_slack,
)

Question = TypeVar("Question", bound=Callable[..., Any])


def vectorised(question: Question) -> Question:
    """A question about a mechanism, for lists of mechanisms and arrays of its numbers, broadcast.

    The answer is an array of their shape, or a pair of arrays; of plain ones, a plain one.
    """
    asked_for = signature(question)
    ends = (2,) if "tuple" in str(asked_for.return_annotation) else ()

    @wraps(question)
    def asked(mechanism: Any, *more: Any, **named: Any) -> Any:
        at = asked_for.bind(mechanism, *more, **named).arguments
        del at[next(iter(at))]
        arrays = [np.asarray(mechanism, dtype=object), *map(_numbers, at, at.values())]
        for one in arrays[0].flat:
            if not isinstance(one, Mechanism):
                expected = "must be a mechanism, as `privacy.Gaussian(2.0, 100)`, or a list of them"
                raise InputError("mechanism", one, expected)
        try:
            rows = np.broadcast(*arrays)
        except ValueError:
            shapes = [array.shape for array in arrays]
            raise InputError("shapes", shapes, "must be equal, or those of one number") from None
        found = [question(one, **dict(zip(at, map(float, to), strict=True))) for one, *to in rows]
        answers = np.asarray(found, dtype=np.float64).T
        return answers.reshape(ends + rows.shape) if rows.shape else found[0]

    return cast("Question", asked)


def _numbers(name: str, values: Any) -> Any:
    try:
        found = np.asarray(values)
    except ValueError:  # lists of different lengths
        found = np.asarray("")
    if found.dtype.kind not in "iuf":
        raise InputError(name, values, "must be a number, or an array of numbers")
    return found


@vectorised
@lru_cache(maxsize=256)
def epsilon(mechanism: Mechanism, *, delta: float) -> float:
    """An epsilon that holds for the mechanism at `delta`: an upper bound, never an estimate.

    Infinite where none is known to hold. Delta lies in (0, 1). Lists of mechanisms and arrays of
    numbers are broadcast to an array of answers, here and in the other questions.
    """
    _check_delta(delta)
    ideal = partial(_method(mechanism).epsilon, mechanism)
    values = mechanism.released_values()
    return with_slack(ideal, values, delta) if values else ideal(delta)


@vectorised
def epsilon_bounds(mechanism: Mechanism, *, delta: float) -> tuple[float, float]:
    """Two epsilons at `delta`: below the lower one none holds, the upper one does. Both proved."""
    upper = epsilon(mechanism, delta=delta)
    below = partial(_method(mechanism).epsilon_below, mechanism, guess=upper)
    values = mechanism.released_values()
    lower = epsilon_without_slack(below, values, delta) if values else below(delta)
    return min(upper, lower), upper


@vectorised
def delta(mechanism: Mechanism, *, epsilon: float) -> float:
    """A delta that holds for the mechanism at `epsilon` >= 0: an upper bound."""
    if not (epsilon >= 0 and math.isfinite(epsilon)):
        raise InputError("epsilon", epsilon, "must be 0 or more, and finite")
    ideal = partial(_method(mechanism).delta, mechanism)
    values = mechanism.released_values()
    return delta_with_slack(ideal, values, epsilon) if values else ideal(epsilon)


@vectorised
@lru_cache(maxsize=64)
def right_guess(mechanism: Mechanism) -> float:
    """How often whoever sees everything guesses right at most, at even odds: an upper bound.

    (1 + T) / 2 of the total variation T of the worst neighbours, which is delta at epsilon 0: from
    the curve itself (`docs/proofs/composition.md`), rounded up.
    """
    apart = delta(mechanism, epsilon=0.0)
    half = (1 + apart) / 2
    return half if 2 * half - 1 >= apart else math.nextafter(half, 1.0)  # the difference is exact


@vectorised
def delta_bounds(mechanism: Mechanism, *, epsilon: float) -> tuple[float, float]:
    """Two deltas at `epsilon`: below the lower one none holds, the upper one does. Both proved."""
    upper = delta(mechanism, epsilon=epsilon)
    below = partial(_method(mechanism).delta_below, mechanism)
    values = mechanism.released_values()
    lower = delta_without_slack(below, values, epsilon) if values else below(epsilon)
    return min(upper, lower), upper


def epsilon_curve(mechanism: Mechanism, marks: Sequence[int], *, delta: float) -> tuple[float, ...]:
    """Epsilon after the first `m` steps, for each `m` of the ascending `marks`; 0 after none.

    Each is an upper bound as `epsilon` gives. Delta lies in (0, 1).
    """
    _check_delta(delta)
    parts = mechanism.parts if isinstance(mechanism, Person) else [mechanism]
    if not all(isinstance(part, Scheduled) for part in parts):
        raise InputError("mechanism", type(mechanism).__name__, "needs a schedule of steps")
    steps = mechanism.steps or 0
    if any(not 0 <= mark <= steps for mark in marks) or list(marks) != sorted(marks):
        raise InputError("marks", list(marks), f"must ascend within 0..{steps}")
    first = {mark: _first(mechanism, mark) for mark in set(marks) if mark}
    bounds = {mark: epsilon(steps, delta=delta) for mark, steps in first.items()}
    # Epsilon never falls from step to step, so a later bound holds for an earlier mark as well.
    curve = list(accumulate((bounds.get(mark, 0.0) for mark in reversed(marks)), min))
    return tuple(reversed(curve))


def _first(mechanism: Any, steps: int) -> Mechanism:
    """The first steps of a schedule, or of that of every node."""
    if isinstance(mechanism, Person):
        return replace(mechanism, parts=[_first(part, steps) for part in mechanism.parts])
    first: Mechanism = mechanism.of_steps([(0, steps, 1)])
    return first


@lru_cache(maxsize=512)  # runs that differ in a key search the same noise
def rough_epsilon(mechanism: Mechanism, *, delta: float) -> float:
    """About what `epsilon` will say, where that is much faster: to search with, never to report."""
    _check_delta(delta)
    if _method(mechanism) is not _COMPOSED:
        return epsilon(mechanism, delta=delta)
    parts = parts_of(mechanism, upper=True)
    if _closed_mu(parts) is not None or not 1e-6 < largest_level(parts) < _LARGEST:
        return epsilon(mechanism, delta=delta)
    if total_variation(parts) <= delta:
        return 0.0
    if _lost(parts) >= delta:
        return epsilon(mechanism, delta=delta)
    log_delta, largest = math.log(delta), 0.0
    for reverse in _directions(parts):
        loss_survey = survey(parts, reverse, reach_for(log_delta, steps_of(parts)))
        most = loss_survey.epsilon(log_delta)
        if most > largest:
            largest = max(largest, _roughly(parts, reverse, loss_survey, most, log_delta))
    return min(largest, pure_epsilon(parts))


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise InputError("delta", delta, "must lie strictly between 0 and 1")


@dataclass(frozen=True)
class _Method:
    """How bounds are found."""

    epsilon: Callable[[Any, float], float]  # upper, of a mechanism and delta
    # Lower, of a mechanism and delta; `guess` is about what the upper one is.
    epsilon_below: Callable[..., float]
    delta: Callable[[Any, float], float]  # upper, of a mechanism and epsilon
    delta_below: Callable[[Any, float], float]  # lower, of a mechanism and epsilon


def _directions(parts: tuple[Part, ...]) -> tuple[bool, ...]:
    return (False,) if _is_symmetric(parts) else (False, True)


def _closed_mu(parts: tuple[Part, ...]) -> float | None:
    """The Gaussian-DP parameter where all parts are Gaussian; else None."""
    if not all(isinstance(part, GaussianPart) for part in parts):
        return None
    return math.sqrt(math.fsum(part.square for part in parts if isinstance(part, GaussianPart)))


def _single(parts: tuple[Part, ...]) -> ListPart | None:
    """The one step that there is, if it is a list: it says its profile."""
    first, *others = parts
    return first if isinstance(first, ListPart) and not others and first.count == 1 else None


def _lost(parts: tuple[Part, ...]) -> float:
    """At least the mass at infinite loss that lists have."""
    lists = (part.count * part.lost for part in parts if isinstance(part, ListPart))
    inner = [
        (part.rounds * part.share, part.inner) for part in parts if isinstance(part, MixedPart)
    ]
    return (sum(lists) + sum(times * _lost(within) for times, within in inner)) * (1 + _ROUNDED)


def _composed_epsilon(mechanism: Mechanism, delta: float) -> float:
    parts = parts_of(mechanism, upper=True)
    mu = _closed_mu(parts)
    if mu is not None:
        return gaussian_epsilon(mu, delta)
    if total_variation(parts) <= delta:
        return 0.0
    bound, pure = 0.0, pure_epsilon(parts)
    if len(parts) == 1 and isinstance(part := parts[0], ListPart):  # basic composition of a point
        more = part.count if part.count == 1 else part.count * (1 + _ROUNDED)
        pure = min([pure, *(more * loss for loss, spent in part.points if more * spent <= delta)])
    if largest_level(parts) > _LARGEST or _lost(parts) >= delta:
        return pure
    for reverse in _directions(parts):
        bound = max(bound, _epsilon_bound(parts, reverse, True, math.log(delta), enough=bound))
    return min(bound, pure)


def _composed_epsilon_below(mechanism: Mechanism, delta: float, *, guess: float) -> float:
    """Of the direction that comes closer to the upper bound; either is a lower bound."""
    parts = parts_of(mechanism, upper=False)
    mu = _closed_mu(parts)
    if mu is not None:
        return gaussian_epsilon(mu, delta, upper=False)
    if guess == 0:
        return 0.0
    lower = _reached(parts, delta, min(guess, _FAR)) if largest_level(parts) <= _LARGEST else 0.0
    if lower < guess / 2 and largest_level(parts) > _CLEAR:
        # Where single losses are huge the line is too short for a lower bound: one for more noise.
        lower = max(lower, _reached(softened(parts, _CLEAR), delta, None))
    return lower


def _reached(parts: tuple[Part, ...], delta: float, guess: float | None) -> float:
    """The larger of both directions' lower bounds; of the first alone where that is close."""
    lower = 0.0
    for reverse in _directions(parts):
        if guess is None or lower < _CLOSE * guess:
            bound = _epsilon_bound(parts, reverse, False, math.log(delta), guess=guess)
            lower = max(lower, bound)
    return lower


def _composed_delta(mechanism: Mechanism, epsilon: float) -> float:
    parts = parts_of(mechanism, upper=True)
    mu = _closed_mu(parts)
    if mu is not None:
        return gaussian_delta(mu, epsilon)
    most = 0.0 if epsilon >= pure_epsilon(parts) else total_variation(parts)
    if most == 0 or largest_level(parts) > _LARGEST or _lost(parts) >= 1:
        return most
    bound = max(_delta_bound(parts, reverse, True, epsilon) for reverse in _directions(parts))
    return min(most, bound)


def _composed_delta_below(mechanism: Mechanism, epsilon: float) -> float:
    parts = parts_of(mechanism, upper=False)
    mu = _closed_mu(parts)
    if mu is not None:
        return gaussian_delta(mu, epsilon, upper=False)
    if largest_level(parts) > _LARGEST:
        return 0.0
    return max(_delta_bound(parts, reverse, False, epsilon) for reverse in _directions(parts))


_CLOSE = 0.995  # of the upper bound: what the other direction could add is not worth it
_CLEAR = 40.0  # a distance of means over the noise that no lower bound is lost to
_LARGEST = 3e3  # a distance of means over the noise beyond which nothing is left to protect
_FAR = 1e9  # an epsilon from which a search starts where none is known to hold
_COMPOSED = _Method(
    _composed_epsilon, _composed_epsilon_below, _composed_delta, _composed_delta_below
)
# A batch of fixed size, or of groups, draws one given record with independent coins all the same,
# so that the mechanism with Poisson sampling is an instance: the other records contribute nothing.
_REVEALED = _Method(
    revealed_epsilon,
    lambda mechanism, delta, *, guess: _composed_epsilon_below(
        replace(mechanism, sampling="poisson"), delta, guess=guess
    ),
    revealed_delta,
    lambda mechanism, epsilon: _composed_delta_below(
        replace(mechanism, sampling="poisson"), epsilon
    ),
)


_PERSISTENT = _Method(
    persistent_epsilon,
    lambda mechanism, delta, *, guess: 0.0,
    persistent_delta,
    lambda mechanism, epsilon: 0.0,
)


def _worst(bound: str) -> Callable[..., float]:
    """The largest of a bound over all choices of a person's nodes."""

    def largest(person: Person, at: float, **guess: float) -> float:
        found = [_at_one_node(one) for one in worst_nodes(person)]
        bounds = [getattr(method, bound)(one, at, **guess) for method, one in found]
        return float(max(bounds))

    return largest


def _at_one_node(one: Person) -> tuple[_Method, Mechanism]:
    """How a person at one node is accounted, and as what."""
    (part,) = one.parts
    if one.rows == 1:
        return _method(part), part
    return _COMPOSED if has_pairs(part) else _BY_ROWS, one


def _below_row(one: Person, delta: float, *, guess: float) -> float:
    """What one row loses: a person may have no more."""
    method, row = _method(one.parts[0]), one.parts[0]
    return method.epsilon_below(row, delta, guess=min(guess, method.epsilon(row, delta)))


def _row_delta(one: Person) -> Callable[[float], float]:
    return partial(_method(one.parts[0]).delta, one.parts[0])


_BY_ROWS = _Method(
    lambda one, delta: rows_epsilon(_row_delta(one), one.rows, delta),
    _below_row,
    lambda one, epsilon: rows_delta(_row_delta(one), one.rows, epsilon),
    lambda one, epsilon: _method(one.parts[0]).delta_below(one.parts[0], epsilon),
)
_PERSON = _Method(*map(_worst, ("epsilon", "epsilon_below", "delta", "delta_below")))


def _method(mechanism: Mechanism) -> _Method:
    """The method for a mechanism."""
    own = _alone(mechanism)
    if own is not None:
        return own[0]
    for part in _within(mechanism):
        if (alone := _alone(part)) is not None:
            _, what, instead = alone
            raise InputError(
                *what,
                "this is accounted by itself only: no bound is known that "
                f"composes it with others; {instead}",
            )
    return _COMPOSED


def _alone(mechanism: Mechanism) -> tuple[_Method, tuple[str, str], str] | None:
    """Of a mechanism that no bound composes with others: its own method, and of the error where it
    is composed the key and value at fault, and what to do instead.
    """
    if isinstance(mechanism, Person):
        return _PERSON, ("mechanism", "person"), "compose what a node releases, the person last"
    if isinstance(mechanism, PersistentState):
        return _PERSISTENT, ("mechanism", "carried state"), "use a public state"
    if isinstance(mechanism, PrivateState) and mechanism.sampling != "poisson":
        return _REVEALED, ("sampling", "fixed"), "use Poisson sampling"
    return None


def _within(mechanism: Mechanism) -> Iterator[Mechanism]:
    """All that it is made of, and what that is made of."""
    for part in mechanism.inner:
        yield part
        yield from _within(part)


_NEAR = 0.1  # an answer is looked for again where the first guess was off by more
_ROUNDED = 1e-12  # more than a sum of some numbers loses
_ROUGHLY_NEAR = 0.6  # and about where it is
_EXACT = 1e-9
_BENT = 0.02  # share of delta that smoothing may change
_LOG_TINY = -700.0  # below it delta is no number
_FIRST_GUESS = 0.5  # of Chernoff's bound, at least


def _is_symmetric(parts: tuple[Part, ...]) -> bool:
    """Both directions have the same losses."""
    return all(_SYMMETRIC[type(part)](part) for part in parts)


_SYMMETRIC: Mapping[type[Part], Callable[[Any], bool]] = {
    GaussianPart: lambda part: True,
    LaplacePart: lambda part: True,
    StepsPart: lambda part: part.unit.both_ways,
    ListPart: lambda part: True,
    MixedPart: lambda part: _is_symmetric(part.inner),
}


def _spectrum(parts: tuple[Part, ...], reverse: bool, upper: bool, at: Resolution) -> Spectrum:
    return sum_of([(_SPECTRA[type(part)](part, reverse, upper, at), 1) for part in parts])


def _gaussian(part: GaussianPart, reverse: bool, upper: bool, at: Resolution) -> Spectrum:
    z = at.line.points
    return Spectrum(at.line, part.square * z * (z + 1) / 2, (16 * UNIT, 0.0), gaussian=part.square)


def _laplace(part: LaplacePart, reverse: bool, upper: bool, at: Resolution) -> Spectrum:
    z = at.line.points
    log = np.zeros(len(z), dtype=np.complex128)
    for shift, count in part.levels.pairs():
        log += count * laplace_transform(shift, z)
    steps = part.levels.steps
    size = float((part.levels.values * part.levels.counts).sum())
    return Spectrum(at.line, log, (64 * UNIT * steps, 8 * UNIT * size))


def _mixed(part: MixedPart, reverse: bool, upper: bool, at: Resolution) -> Spectrum:
    return mixed(_spectrum(part.inner, reverse, upper, at), part.share, part.rounds)


_SPECTRA: Mapping[type[Part], Callable[[Any, bool, bool, Resolution], Spectrum]] = {
    GaussianPart: _gaussian,
    LaplacePart: _laplace,
    StepsPart: steps_spectrum,
    MixedPart: _mixed,
    ListPart: lambda part, reverse, upper, at: sum_of(
        [(spectrum(list_atoms(part), at.line), part.count)]
    ),
}


def _epsilon_bound(
    parts: tuple[Part, ...],
    reverse: bool,
    upper: bool,
    log_delta: float,
    *,
    guess: float | None = None,
    enough: float = 0.0,
) -> float:
    """An epsilon >= 0 that holds at delta (upper), or below which none holds (lower).

    `guess` is about what the answer is. An upper bound as low as `enough` is not made any lower.
    """
    if (single := _single(parts)) is not None:
        return _root(single.delta, upper, math.exp(log_delta), 1 + float(single.losses[-1]), 1.0)
    loss_survey = survey(parts, reverse, reach_for(log_delta, steps_of(parts)))
    left = math.exp(log_delta) - _lost(parts)
    most = loss_survey.epsilon(math.log(left) if left < math.exp(log_delta) else log_delta)
    if upper and most <= enough:
        return max(0.0, most)
    if guess is None:
        guess = _roughly(parts, reverse, loss_survey, most, log_delta)
    delta = math.exp(log_delta)
    value, finer = most, 1.0
    for _ in range(4):
        at = resolve(parts, reverse, loss_survey, guess, log_delta, finer=finer)
        losses = _spectrum(parts, reverse, upper, at)
        value = _root(
            losses.upper if upper else losses.lower, upper, delta, guess, at.line.window / 256
        )
        bent = losses.bend(value) if math.isfinite(value) else 0.0
        is_close = abs(value - guess) <= _NEAR * guess + 0.1 / at.line.tilt
        if not math.isfinite(value) or (is_close and bent <= _BENT):
            break
        # Delta changes on a smaller scale than its slope says.
        finer *= min(64.0, max(1.0, 2 * bent / _BENT))
        guess = max(value, 0.01 / at.line.tilt)
    return value


def _roughly(
    parts: tuple[Part, ...], reverse: bool, loss_survey: Survey, most: float, log_delta: float
) -> float:
    """About what epsilon is, from few levels and few cells."""
    few = tuple(
        surveyed(part) if isinstance(part, StepsPart) and not interpolates(part.unit) else part
        for part in parts
    )
    # Chernoff's bound on delta is some e^3 times delta.
    guess = max(loss_survey.epsilon(min(0.0, log_delta + 3)), _FIRST_GUESS * most)
    for _ in range(4):
        at = resolve(few, reverse, loss_survey, guess, log_delta, rough=True)
        losses = _spectrum(few, reverse, True, at)
        value = _root(losses.upper, True, math.exp(log_delta), guess, at.line.window / 256)
        is_close = abs(value - guess) <= _ROUGHLY_NEAR * guess
        guess = min(most, max(value, 0.01 / at.line.tilt))
        if is_close:
            break
    return guess


def _root(
    bound: Callable[[float], float],
    upper: bool,
    delta: float,
    start: float,
    step: float,
    tolerance: float = _EXACT,
) -> float:
    """The end of the epsilons at which a bound on delta lies on the right side of delta.

    Whatever it returns was tried: there an upper bound was at most delta, a lower one above it. The
    search begins at `start` and goes `step` far at first; the tolerance is relative.
    """

    def excess(epsilon: float) -> float:
        value = bound(epsilon)
        return math.log(value / delta) if value > 0 else -1e3

    low, high = 0.0, start
    at_low = math.nan
    at_high = excess(high)
    if at_high > 0:
        while at_high > 0:
            low, at_low = high, at_high
            high, step = high + step, 2 * step
            at_high = excess(high)
            if high > 64 * start:
                return math.inf if upper else low
    else:
        low, at_low = high, at_high
        while at_low <= 0:
            if low == 0:
                return 0.0
            high, at_high = low, at_low
            low, step = max(0.0, low - step), 2 * step
            at_low = excess(low)
    side = 0
    for _ in range(100):
        if high - low <= tolerance * high:
            break
        share = at_low / (at_low - at_high)
        middle = low + (high - low) * min(max(share, 1e-3), 1 - 1e-3)
        value = excess(middle)
        if value > 0:
            low, at_low = middle, value
            at_high /= 2 if side == 1 else 1
            side = 1
        else:
            high, at_high = middle, value
            at_low /= 2 if side == -1 else 1
            side = -1
    return high if upper else low


def _delta_bound(parts: tuple[Part, ...], reverse: bool, upper: bool, epsilon: float) -> float:
    """A delta that holds at epsilon (upper), or below which none holds (lower)."""
    if (single := _single(parts)) is not None:
        return single.delta(epsilon)
    steps = steps_of(parts)
    loss_survey = survey(parts, reverse, reach_for(math.log(1e-4), steps))
    log_delta = loss_survey.log_delta(epsilon)
    reach = reach_for(log_delta, steps)
    if reach != loss_survey.reach:
        loss_survey = survey(parts, reverse, reach)
    log_delta = loss_survey.log_delta(epsilon)
    at = resolve(parts, reverse, loss_survey, epsilon, max(log_delta - 3, _LOG_TINY))
    losses = _spectrum(parts, reverse, upper, at)
    return min(1.0, losses.upper(epsilon)) if upper else max(0.0, losses.lower(epsilon))
