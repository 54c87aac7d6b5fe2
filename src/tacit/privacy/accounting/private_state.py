"""Bounds for a record that private state carries on: to all other steps, or to all later ones.

Trust model: all messages (`server`: so does the server); the state (a table of gradients, a local
variable) is never sent. Proofs: `docs/proofs/private-state.md`, and for the client with a primal
and a dual variable `docs/proofs/primal-dual.md`.

**Theorem A** (`worst_means`), amplification by sampling kept: where the record is drawn by a coin
of rate q, independent of everything else, and what it adds is at most A_k where it is drawn and c_k
where it is not, both over the noise, the messages are dominated, both ways, by the pairs

    (1-q) N(c, 1) + q N(A, 1)   against   N(0, 1)                              (zero-out),
    (1-q) N(c, 1) + q N(A, 1)   against   (1-q) N(-c, 1) + q N(-A, 1)          (replace-one).

It fails for a batch of fixed size, and where records are drawn in groups by one coin.

**Bound B** (`revealed_*`), for any relation, sampling and state; amplification is given up:

    delta(eps) <= E_b[delta_Gauss(eps; mu(b))],   mu(b)^2 = sum_k shift_k(b)^2 / sigma_k^2,

over the coins b, with shifts of `drawn_norm` or `undrawn_norm`, twice both under replace-one. Where
a drawn record moves all later messages (`persistent_*`), mu(b) is the sum over draws of 1 / z_j.

*How the mean is taken.* What a draw adds to mu^2, or to mu, is rounded up to a lattice (delta rises
with mu), of the one increment itself where noise is constant: exact then. The sum over equal
increments is binomial; sums of different ones are convolved directly, in non-negative terms, so
that rounding is relative. Tails that are cut count as delta = 1.

**A table of gradients leaks at least** what an explicit instance and a test show
(`table_lower_*`): all other records are linear, and the gradient of the one at stake flips once,
right after the start. Along its direction it contributes -q until it is next drawn, 2 - q at that
step, +q at every later one. The test asks whether some message exceeds its threshold.

**A client with a primal and a dual variable**, neither of them noised (`carried_norms`,
`energy_norms`), moves what it sends after one draw by no more than the norms that these bound: what
`PersistentState` needs of such a method as its paper prints it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from tacit.errors import InputError
from tacit.privacy.accounting.gaussian import Array, gaussian_deltas, gaussian_epsilon, least
from tacit.privacy.mechanisms.base import REPLACE_ONE
from tacit.privacy.mechanisms.steps import PersistentState, PrivateState, levels, schedule

Means = tuple[float, float]


def worst_means(mechanism: PrivateState) -> tuple[Means, Means]:
    """The pair of Theorem A: where each side has its means, over the clipping bound.

    Divided by the noise multiplier of a step they are those of the step's pair.

    Returns:
        The means of P and of Q, each where the record is not drawn (weight 1 - q) and where it is
        (weight q).
    """
    if mechanism.sampling != "poisson":
        expected = "must be 'poisson': others depend on the record's coin, see Bound B"
        raise InputError("sampling", mechanism.sampling, expected)
    means = (mechanism.undrawn_norm, mechanism.drawn_norm)
    opposed = (-mechanism.undrawn_norm, -mechanism.drawn_norm)
    return means, opposed if mechanism.relation == REPLACE_ONE else (0.0, 0.0)


_LOG_TAIL = 80.0  # a tail that is cut is below e^-80 = 2e-35
_NEGLIGIBLE = 1e-40
_REVEALED_LATTICES = (512, 256, 128, 64, 32, 16, 8)
_MOST_PRODUCTS = 4e8
_MEAN_ROUNDING = 1e-8  # relative, of all sums here: up to a million terms at some 1e-15 each


@dataclass(frozen=True, eq=False)
class _Shifts:
    """The law of mu(b), as an upper bound."""

    mu: Array  # values, `[values]`
    weights: Array  # their chances, rounded up
    tail: float  # chance of everything else


def revealed_delta(mechanism: PrivateState, epsilon: float) -> float:
    """Bound B: a delta that holds at `epsilon` >= 0, whichever the sampling and the relation."""
    return _mean_delta(_revealed_shifts(mechanism), epsilon)


def revealed_epsilon(mechanism: PrivateState, delta: float) -> float:
    """The smallest epsilon >= 0 at which `revealed_delta` is at most `delta`, rounded up."""
    return _mean_epsilon(_revealed_shifts(mechanism), delta)


def _mean_epsilon(shifts: _Shifts, delta: float) -> float:
    """The smallest epsilon >= 0 at which `_mean_delta` is at most `delta`, rounded up.

    Infinite where what is cut from the law is worth `delta`.
    """
    if shifts.tail >= delta:
        return math.inf
    if _mean_delta(shifts, 0.0) <= delta:
        return 0.0
    high = 1.0 + gaussian_epsilon(float(shifts.mu[-1]), delta)
    if math.isinf(high):
        return math.inf
    return least(lambda epsilon: _mean_delta(shifts, epsilon) <= delta, high, tolerance=1e-9)


def _mean_delta(shifts: _Shifts, epsilon: float) -> float:
    """E[delta_Gauss(epsilon; mu)] over the law of mu, rounded up, what is cut counting as 1."""
    mean = float(np.sum(shifts.weights * gaussian_deltas(shifts.mu, epsilon)))
    return min(1.0, mean * (1 + _MEAN_ROUNDING) + shifts.tail)


def _revealed_shifts(mechanism: PrivateState) -> _Shifts:
    """The law of mu(b): a sum of independent increments on a lattice."""
    double = 2.0 if mechanism.relation == REPLACE_ONE else 1.0
    drawn, undrawn = double * mechanism.drawn_norm, double * mechanism.undrawn_norm
    noises = levels(mechanism)
    always = math.fsum(steps * (undrawn / z) ** 2 for z, steps in noises)
    increments = [((drawn - undrawn) * (drawn + undrawn) / z / z, steps) for z, steps in noises]
    largest = max(size for size, _ in increments)
    if not math.isfinite(largest + always):
        return _Shifts(np.ones(1), np.ones(1), 1.0)
    if not largest > 0:
        mu = math.sqrt(always) * (1 + 1e-12)
        return _Shifts(np.asarray([mu]), np.ones(1), 0.0)
    sums, weights, tail = _sum_over_draws(increments, mechanism.sample_rate)
    return _Shifts(np.sqrt(always + sums) * (1 + 1e-12), weights, tail)


def _sum_over_draws(
    increments: Sequence[tuple[float, int]],
    rate: float,
    lattices: Sequence[int] = _REVEALED_LATTICES,
) -> tuple[Array, Array, float]:
    """The law of a sum of increments over the steps that draw a record, as an upper bound.

    Args:
        increments: of a step, 0 or more and finite, not all 0; each with its number of steps.
        rate: chance that a step draws the record, independently.
        lattices: in how many units the largest increment may be cut, finest first; coarser ones
            are taken where the finer would take too long.

    Returns:
        Values (rounded up to the lattice, and a rounding more is for the caller), their chances,
        and the chance of everything else.
    """
    largest = max(size for size, _ in increments)
    for marks in lattices if len(increments) > 1 else (1,):
        unit = largest / marks
        counts: dict[int, int] = {}
        for size, steps in increments:
            mark = max(1, math.ceil(size / unit))
            counts[mark] = counts.get(mark, 0) + steps
        # About how many products `_sum_of_draws` takes.
        low, high = _reach(counts, rate)
        terms = sum(min(steps, 12 + 25 * math.sqrt(steps * rate)) for steps in counts.values())
        if terms * (high - low) <= _MOST_PRODUCTS:
            break
    start, weights, tail = _sum_of_draws(counts, rate)
    held = np.flatnonzero(weights > _NEGLIGIBLE)
    tail += float(len(weights) * _NEGLIGIBLE)
    return np.asarray(unit * (start + held)), weights[held], tail * (1 + _MEAN_ROUNDING)


def _sum_of_draws(counts: dict[int, int], rate: float) -> tuple[int, Array, float]:
    """The law of sum_l l Bin(steps_l, rate) over marks l: its start, weights and what is cut."""
    _, top = _reach(counts, rate)
    start, law, tail = 0, np.ones(1), math.exp(-_LOG_TAIL)
    for mark, steps in counts.items():
        first, chances = _binomial(steps, rate)
        kept = np.flatnonzero(chances > _NEGLIGIBLE)
        tail += 2 * math.exp(-_LOG_TAIL) + len(chances) * _NEGLIGIBLE
        first, chances = first + int(kept[0]), chances[kept[0] : kept[-1] + 1]
        start += mark * first
        # What exceeds the reach of the whole sum stays there: its chance is in the tail.
        size = min(len(law) + mark * (len(chances) - 1), max(1, top - start + 1))
        summed = np.zeros(size)
        for i, chance in enumerate(chances[: 1 + (size - 1) // mark]):
            part = law[: size - mark * i]
            summed[mark * i : mark * i + len(part)] += chance * part
        law = summed
    return start, law, tail


def _reach(counts: dict[int, int], rate: float) -> tuple[int, int]:
    """Bernstein's inequality: the sum exceeds either end with a chance of at most e^-80."""
    mean = rate * math.fsum(mark * steps for mark, steps in counts.items())
    variance = rate * (1 - rate) * math.fsum(m * m * steps for m, steps in counts.items())
    third = _LOG_TAIL * max(counts) / 3
    away = third + math.sqrt(third * third + 2 * _LOG_TAIL * variance)
    most = sum(mark * steps for mark, steps in counts.items())
    return max(0, math.floor(mean - away)), min(most, math.ceil(mean + away))


def _binomial(steps: int, rate: float) -> tuple[int, Array]:
    """Chances of a number of draws, from the first that counts: upper bounds.

    Neighbouring chances have a simple ratio; divided by their own sum, which is at most 1, they
    are upper bounds.
    """
    if rate == 1:
        return steps, np.ones(1)
    low, high = _reach({1: steps}, rate)
    draws = np.arange(low, high, dtype=np.float64)
    ratios = np.log(steps - draws) - np.log(draws + 1) + (math.log(rate) - math.log1p(-rate))
    logs = np.concatenate(([0.0], np.cumsum(ratios)))
    chances = np.exp(logs - logs.max())
    return low, chances / chances.sum()


_PERSISTENT_LATTICES = (8192, 4096, 2048, 1024, 512, 256, 128, 64, 32, 16, 8)
_MOST_VALUES = 4096
_SMALL = 1e-5  # of the largest increment
_LARGEST_SHIFT = 1e100  # of a shift over the noise: nothing is left to protect


def persistent_delta(mechanism: PersistentState, epsilon: float) -> float:
    """Bound B: a delta that holds at `epsilon` >= 0, an upper bound under either relation."""
    return _mean_delta(_persistent_shifts(mechanism), epsilon)


def persistent_epsilon(mechanism: PersistentState, delta: float) -> float:
    """The smallest epsilon >= 0 at which `persistent_delta` is at most `delta`, rounded up.

    Infinite where none is found, as for a multiplier that is next to nothing.
    """
    return _mean_epsilon(_persistent_shifts(mechanism), delta)


def _persistent_shifts(mechanism: PersistentState) -> _Shifts:
    """The law of the sum over draws, as an upper bound of mu."""
    double = 2.0 if mechanism.relation == REPLACE_ONE else 1.0
    increments = [(double / z, steps) for z, steps in levels(mechanism)]
    largest = max(size for size, _ in increments)
    if largest > _LARGEST_SHIFT:
        return _Shifts(np.ones(1), np.ones(1), 1.0)
    total = math.fsum(size * steps for size, steps in increments)
    if mechanism.sample_rate == 1:
        return _Shifts(np.asarray([total * (1 + 1e-12)]), np.ones(1), 0.0)
    large = [(size, steps) for size, steps in increments if size > _SMALL * largest]
    always = math.fsum(size * steps for size, steps in increments if size <= _SMALL * largest)
    sums, weights, tail = _sum_over_draws(large, mechanism.sample_rate, _PERSISTENT_LATTICES)
    together = -(-len(sums) // _MOST_VALUES)
    # No draw at all stays by itself.
    first = np.concatenate(([0], np.arange(1, len(sums), together)))
    last = np.append(first[1:], len(sums)) - 1
    # What the lattice rounds up is bounded by the sum over all steps.
    mu = np.minimum(always + sums[last], total) * (1 + 1e-12)
    return _Shifts(mu, np.add.reduceat(weights, first), tail)


# Relative: of sums over up to a million steps, of terms right to 1e-15 each.
_CHANCE_ROUNDING = 1e-9


def table_lower_delta(mechanism: PrivateState, epsilon: float) -> float:
    """A lower bound on the delta of a table of gradients at `epsilon` >= 0."""

    def gain(ratio: float) -> float:
        some, log_against = _chances(mechanism, ratio)
        return some - math.exp(min(epsilon + log_against, 1.0))

    slack = 10.0 - math.log(mechanism.sample_rate) + math.log(mechanism.steps or 1)
    return max(0.0, _greatest(gain, epsilon - 2.0, epsilon + slack))


def table_lower_epsilon(mechanism: PrivateState, delta: float) -> float:
    """An epsilon below which a table of gradients exceeds `delta`; 0 if none is found."""

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

    The other is the same chance without the record (or with its mirror image), rounded up. The
    mechanism is a table of gradients; `ratio` is the logarithm of the likelihood ratio of a shift
    by `drawn_norm` at every threshold.
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
    rounding = _CHANCE_ROUNDING + 1e-14 * largest * (1 + largest)
    return some * (1 - rounding), log_against + rounding


_LARGEST_ENERGY = 1e250  # of a squared norm: beyond it nothing is left to protect
_UP = 1 + 1e-9  # sums of non-negative terms: a relative rounding each


@dataclass(frozen=True)
class ClientRound:
    """A round in which the client is active."""

    gamma: float  # the step parameter
    kept: float  # bound of |gamma d - (g(x) - g(x'))| / |d|
    noise_std: float  # of the noise on y, for a gradient difference of 1 where the record is drawn
    copies: int = 1  # how often its message is sent (more than once where rounds were run again)


def carried_norms(
    rounds: Sequence[ClientRound], penalty: float, draws: Sequence[Sequence[float]], later: float
) -> list[float]:
    """By how much a draw in each round moves that message and all later ones, over their noise.

    One vector of all messages, in the l2 norm; an upper bound by the recursion of norms, infinite
    where it overflows.

    Args:
        rounds: the client's active rounds, in order.
        penalty: rho.
        draws: what a round that draws the record may make of its local steps: gradient differences,
            `[ways, Q]`; the worst way counts.
        later: gradient difference of every local step of the rounds after.
    """
    norms: list[float] = []
    energy = np.zeros((3, 3))  # squared norm of all later messages, as a form in (|d|, |l|, later)
    for each in reversed(rounds):
        over = each.copies / each.noise_std**2
        ends = [_with_draw(each, penalty, way, later) for way in draws]
        with np.errstate(over="ignore", invalid="ignore"):
            worst = max(over * shift**2 + float(state @ energy @ state) for state, shift in ends)
            step, shown = _without_draw(each, penalty, len(draws[0]))
            energy = over * np.outer(shown, shown) + step.T @ energy @ step
        if not (worst < _LARGEST_ENERGY and float(energy.max()) < _LARGEST_ENERGY):
            return [math.inf] * (len(rounds) - len(norms)) + norms[::-1]
        norms.append(math.sqrt(worst) * _UP)
    return norms[::-1]


def energy_norms(
    rounds: Sequence[ClientRound], penalty: float, draws: Sequence[Sequence[float]]
) -> list[float]:
    """The same by the energy, which needs kept = gamma (gamma >= L / 2) in every round.

    Infinite where that does not hold, or gamma falls. Arguments as in `carried_norms`.
    """
    gammas = [each.gamma for each in rounds]
    if any(each.kept > each.gamma for each in rounds) or gammas != sorted(gammas):
        return [math.inf] * len(rounds)
    count = len(draws[0])
    norms: list[float] = []
    most = max((each.copies for each in rounds), default=1)
    largest = total = 0.0  # of gamma / sigma^2, over later rounds
    for each in reversed(rounds):
        over = 1 / each.noise_std**2
        worst = 0.0
        for way in draws:
            (d, dual, _), shift = _with_draw(each, penalty, way, 0.0)
            energy = each.gamma * d**2 + count * dual**2 / penalty
            root = 2 * math.sqrt(most * largest) + math.sqrt(total)
            after = energy / (each.gamma * count * penalty) * root**2
            worst = max(worst, each.copies * over * shift**2 + after)
        norms.append(math.sqrt(worst) * _UP)
        largest = max(largest, each.gamma * over)
        total += each.copies * each.gamma * over
    return norms[::-1]


def _with_draw(
    each: ClientRound, penalty: float, way: Sequence[float], later: float
) -> tuple[Array, float]:
    """From equal states, with a draw: (|d|, |l|, later) after the round, and the shift of y."""
    d = total = 0.0
    for difference in way:
        d = (each.kept * d + difference) / (each.gamma + penalty)
        total += d
    mean = total / len(way)
    return np.asarray([d, penalty * mean, later]), 2 * mean


def _without_draw(each: ClientRound, penalty: float, local_steps: int) -> tuple[Array, Array]:
    """A round without a draw: (|d|, |l|, later) after it, a matrix, and the shift of y, a row."""
    own, dual, later = np.eye(3)
    d, total = own, np.zeros(3)
    for _ in range(local_steps):
        d = (each.kept * d + dual + later) / (each.gamma + penalty)
        total = total + d
    mean = total / local_steps
    return np.stack([d, dual + penalty * mean, later]), 2 * mean + dual / penalty
