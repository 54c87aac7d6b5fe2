"""FedSPD-DP as printed, with its private state: what its messages reveal, from both sides.

Unit: one record of one client, replaced. Observer: all messages, who is active, the graph.
A client's inner iterate x and its dual lambda are private and never noised, so two neighbouring
runs that once differ keep differing, while the noise shrinks like t^{-1/2}.

**Recursion.** Condition on the transcript so far (so the broadcast x_0 is the same in both runs)
and on the coins: which records each mini-batch takes, the same in both runs, with the replaced
record at the place of its replacement. Let d be the difference of x, l that of lambda, h_r that of
the mini-batch gradient at local step r. For linear losses (and R linear where the iterates are,
as 0 is, and the l1 norm away from zero)

    d <- (gamma d + l - h_r) / (gamma + rho)  for r = 1..Q;   l' = l - rho mean(d);

and the message y = x - lambda' / rho shifts by s = 2 mean(d) - l / rho. Here h_r = 0 unless step r
draws the record; then |h_r| <= 2 G / b, or 2 G if G bounds mini-batch gradients only. The shifts
are a *linear* function of the coins. For convex L-smooth losses with gamma >= L / 2 the map
x -> gamma x - grad is gamma-Lipschitz (Baillon and Haddad) and prox is non-expansive, so norms obey

    |d| <= (gamma |d| + |l| + |h_r|) / (gamma + rho),  |l'| <= |l| + rho mean|d|,
    |s| <= 2 mean|d| + |l| / rho.

**Upper bound** (`fedspd_upper`). Given the coins, each message is a Gaussian whose shift is bounded
by a function of the coins alone, so delta(eps) <= E[delta_Gauss(eps; mu)], mu^2 = sum_t s_t^2 /
sigma_t^2, by joint convexity of the hockey-stick divergence (Bound B). s is a sum over draws, so mu
is at most the sum over draws of the norms of their responses (Minkowski), whose distribution is an
exact convolution on a lattice, each value rounded up. Norms are bounded by the second recursion:
it holds for smooth convex losses, and is loose.

**Lower bound** (`fedspd_lower`). All records have linear losses, all but one the gradient zero;
that one has a gradient of the largest norm, and in the neighbouring data set its opposite. With the
messages projected on one direction and divided by sigma_t, run and neighbour are
N(+S(coins)/2, 1) and N(-S(coins)/2, 1) along any fixed unit combination w of the rounds, S a sum of
independent terms, one a round. For the event "w . y > tau", P - delta <= e^eps Q for every
(eps, delta) that holds; hence eps >= log((P - delta) / Q). S is rounded down on its lattice, which
lowers P and raises Q.

Both are for a given set of active rounds, which everyone sees.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr, logsumexp

from tacit.errors import InputError
from tacit.privacy.accounting.gaussian import Array
from tacit.privacy.published.fedspd import FedspdRun, fedspd_sensitivity, fedspd_step_parameter

__all__ = [
    "even_rounds",
    "fedspd_lower",
    "fedspd_responses",
    "fedspd_upper",
    "fedspd_upper_delta",
    "repaired_multiplier",
]

_LATTICE = 8192
_ROUNDING = 1e-11  # of a probability, relative: convolutions of positive masses, a few u a round


def even_rounds(run: FedspdRun) -> tuple[int, ...]:
    """As many active rounds as a client expects, p T, evenly spread, the last one being T."""
    count = round(run.participation * run.rounds)
    if count < 1:
        raise InputError("rounds", run.rounds, "leave no active round in expectation")
    return tuple(round((index + 1) * run.rounds / count) for index in range(count))


def fedspd_responses(run: FedspdRun, active: Sequence[int], *, norms: bool) -> Array:
    """Shift of each message over its noise, for a unit difference of one mini-batch gradient.

    Args:
        run: the client, with noise as published.
        active: numbers of its active rounds, from 1, ascending.
        norms: the recursion of norms (an upper bound) in place of the linear one (exact).

    Returns:
        `[rounds * Q, rounds]`: a row for each (round, local step) that may draw the record.
    """
    rho, local = run.penalty, run.local_steps
    sign = 1.0 if norms else -1.0
    impulses = np.eye(len(active) * local)
    d, dual = np.zeros(len(impulses)), np.zeros(len(impulses))
    shifts = np.zeros((len(impulses), len(active)))
    for index, number in enumerate(active):
        gamma = fedspd_step_parameter(run, number)
        total = np.zeros(len(impulses))
        for step in range(local):
            d = (gamma * d + dual + impulses[index * local + step]) / (gamma + rho)
            total += d
        mean = total / local
        noise = run.noise_multiplier * fedspd_sensitivity(run, gamma)
        shifts[:, index] = (2 * mean + sign * dual / rho) / noise
        dual = dual + sign * rho * mean
    return shifts


def fedspd_upper_delta(
    run: FedspdRun, active: Sequence[int], epsilon: float, *, drawn_norm: float
) -> float:
    """Delta that holds at `epsilon` for smooth convex losses, as printed: Bound B, loose.

    Args:
        run: the client; its mini-batches of a round are disjoint.
        active: numbers of its active rounds.
        epsilon: at least 0.
        drawn_norm: largest difference of a mini-batch gradient that draws the record (2 G / b).
    """
    mus, masses = _response_norms(run, tuple(active), drawn_norm)
    first = log_ndtr(mus / 2 - epsilon / mus)
    second = epsilon + log_ndtr(-mus / 2 - epsilon / mus)
    # As `gaussian_delta` does it, with the same allowance for rounding.
    slope = 1 + np.sqrt(2 * np.abs(second - epsilon))
    sizes = 1 + np.abs(first) + np.abs(second) + epsilon + slope * (mus + epsilon / mus)
    rounding = 1e-15 * sizes
    deltas = np.exp(first) * (-np.expm1(np.minimum(second - first, 0.0)) + rounding)
    return min(1.0, float(masses @ np.minimum(deltas * (1 + rounding), 1.0)) * (1 + _ROUNDING))


def fedspd_upper(
    run: FedspdRun, active: Sequence[int], delta: float, *, drawn_norm: float
) -> float:
    """Epsilon that holds at `delta` for smooth convex losses, as printed: Bound B, loose.

    Infinity where no epsilon below 1e12 is enough. Arguments as in `fedspd_upper_delta`.
    """

    def enough(epsilon: float) -> bool:
        return fedspd_upper_delta(run, active, epsilon, drawn_norm=drawn_norm) <= delta

    if enough(0.0):
        return 0.0
    high = 1.0
    while not enough(high):
        high *= 2
        if high > 1e12:
            return math.inf
    low = 0.0
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


@lru_cache(maxsize=16)
def _response_norms(
    run: FedspdRun, active: tuple[int, ...], drawn_norm: float
) -> tuple[Array, Array]:
    """An upper bound on mu: its positive values and their probabilities."""
    norms = np.linalg.norm(fedspd_responses(run, active, norms=True), axis=1) * drawn_norm
    values, masses = _sum_over_draws(run, norms.reshape(-1, run.local_steps), up=True)
    held = (masses > 0) & (values > 0)
    return values[held] * (1 + 1e-12), masses[held]


def fedspd_lower(
    run: FedspdRun, active: Sequence[int], delta: float, *, drawn_norm: float
) -> float:
    """An epsilon that the printed algorithm exceeds or meets at `delta`, on an explicit instance.

    Args:
        run: the client; its mini-batches of a round are disjoint.
        active: numbers of its active rounds.
        delta: of the guarantee.
        drawn_norm: difference of a mini-batch gradient that draws the record (2 G / b, or 2 G).
    """
    responses = fedspd_responses(run, active, norms=False)
    weights = responses.sum(axis=0)
    weights /= np.linalg.norm(weights)
    terms = (responses @ weights).reshape(-1, run.local_steps) * drawn_norm
    sums, masses = _sum_over_draws(run, terms, up=False)
    held = masses > 0
    sums, log_masses = sums[held], np.log(masses[held])

    def bound(tau: float) -> float:
        p = math.exp(logsumexp(log_masses + log_ndtr(sums / 2 - tau))) * (1 - _ROUNDING)
        log_q = float(logsumexp(log_masses + log_ndtr(-sums / 2 - tau))) + _ROUNDING
        return math.log(p - delta) - log_q if p > delta else 0.0

    best, left, right = 0.0, 0.0, float(sums.max()) / 2 + 6.0
    for _ in range(4):  # any threshold gives a bound: a coarse search is safe
        taus = np.linspace(left, right, 17)
        bounds = [bound(tau) for tau in taus.tolist()]
        top = int(np.argmax(bounds))
        best = max(best, bounds[top])
        left, right = taus[max(top - 1, 0)], taus[min(top + 1, len(taus) - 1)]
    return best * (1 - 1e-9)


def repaired_multiplier(run: FedspdRun) -> float:
    """Noise multiplier of the repaired form (`state = "public"`) at the published noise.

    The client starts each round from the broadcast x_0, releases x~ = x + noise, and updates
    lambda from released values. y = 2 x - (public), so the published noise of y is half as large
    on x. With disjoint mini-batches, fixed batch Q b of m, per-record clipping at G and convex
    L-smooth losses with gamma >= L / 2, a round shifts x by at most (2 G / b) / (gamma + rho) times
    the mean of (gamma / (gamma + rho))^r, which is at most 1: a fixed-batch Gaussian with
    multiplier sigma / 2 over (G / b) / (gamma + rho), the same in every round.
    """
    gamma = fedspd_step_parameter(run, 1)
    noise = run.noise_multiplier * fedspd_sensitivity(run, gamma) / 2
    return noise * run.batch * (gamma + run.penalty) / run.gradient_bound


def _sum_over_draws(run: FedspdRun, terms: Array, *, up: bool) -> tuple[Array, Array]:
    """The sum of a term for every round that draws the record: values and probabilities.

    A round draws it with probability Q b / m, at a local step that is uniform. Terms are rounded to
    a lattice, up or down.

    Args:
        run: gives the probability.
        terms: `[rounds, Q]`.
        up: the direction of rounding.
    """
    span = float(np.maximum(terms.max(axis=1), 0).sum() - np.minimum(terms.min(axis=1), 0).sum())
    step = span / _LATTICE
    # A nudge first, so that the division's own rounding cannot go the wrong way.
    nudged = terms / step + (1e-9 if up else -1e-9)
    cells = (np.ceil(nudged) if up else np.floor(nudged)).astype(np.int64)
    lowest, highest = np.minimum(cells.min(axis=1), 0), np.maximum(cells.max(axis=1), 0)
    masses = np.zeros(int((highest - lowest).sum()) + 1)
    masses[0] = 1.0
    drawn = run.batch * run.local_steps / run.records
    for row, low in zip(cells, lowest, strict=True):
        spread = np.zeros_like(masses)
        moves = [(0, 1 - drawn), *((int(cell), drawn / run.local_steps) for cell in row)]
        for cell, chance in moves:
            offset = cell - int(low)
            spread[offset:] += chance * masses[: len(masses) - offset]
        masses = spread
    values = (int(lowest.sum()) + np.arange(len(masses), dtype=np.float64)) * step
    return np.asarray(values, np.float64), masses
