"""FedSPD-DP (Li, Wang, Chang and Chi): claims as printed, and what its messages reveal.

Symbols: Q local steps on mini-batches of b of a client's m records; N clients, K chosen a round,
p = K / N; T rounds; rho, penalty; gamma_t, step parameter; G, gradient bound.

*What the printed form reveals.* Unit: one record of one client, replaced. Observer: all messages,
who is active, the graph. A client's inner iterate x and its dual lambda are private and never
noised, so two neighbouring runs that once differ keep differing, while the noise shrinks like
t^{-1/2}. With the coins fixed, the shifts of the messages are a linear function of them (linear
losses) or are bounded by a recursion of norms (smooth convex losses, gamma >= L / 2). *Above*
(`fedspd_upper`): Bound B over the sum of the responses' norms, loose. *Below* (`fedspd_lower`): all
records linear, one at stake, and the messages projected on one direction. Both are for a given set
of active rounds, which everyone sees. Derivation: `docs/proofs/primal-dual.md`.

Where K < N a client expects p T active rounds: `even_rounds` is that many, evenly spread.

*Accuracy*: Theorem 2, equation 28, of convex losses, for rho >= sqrt(gamma_i^t). What is bounded is
equation 25, H = sum_i E[F_i(x-bar_i) - F_i(x_0*)] + beta sum_i E norm(x-bar_i - x-bar_0) with F_i =
f_i + R_i; bars are means over all T rounds and Q inner iterates, and beta is the radius of the ball
of dual variables. Of Q = 1 the paper prints C alone: read as (28).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from scipy.special import log_ndtr, logsumexp

from tacit.errors import InputError
from tacit.privacy.accounting.gaussian import Array, gaussian_deltas, least
from tacit.privacy.published.formula import FormulaCondition, PublishedFormula, positive

SLACK = 3.04
"""c0, as printed."""

Drawing = Literal["without-replacement", "with-replacement"]
State = Literal["private", "public"]
_WORDS = ("drawing", "state")


def _chances(drawing: Drawing, records: int, drawn: int) -> tuple[float, float]:
    """q, that a round uses a given record, and 1 - q, also where q is 1 to the last digit."""
    if drawing == "without-replacement":
        return drawn / records, 1 - drawn / records
    log_missed = drawn * math.log1p(-1 / records) if records > 1 else -math.inf
    return -math.expm1(log_missed), math.exp(log_missed)


@dataclass(frozen=True)
class FedspdRun:
    """What FedSPD-DP's formulas read of one client.

    Args:
        records: m_i.
        batch: b.
        local_steps: Q.
        clients: N.
        chosen: K, clients a round.
        rounds: T.
        round_epsilon: eps of each round, which sets its noise.
        delta: of a round and of the total.
        penalty: rho.
        dimension: d.
        drawing: how a round's mini-batches are drawn.
        state: what a client starts a round from: its own last iterate, `private` and never noised
            (as printed), or what the server sent it, `public`.
        gradient_bound: G.
        diameter: d_X.
        dual_diameter: d_lambda.
        deviation: phi.

    Raises:
        InputError: a number is out of range.
    """

    records: int
    batch: int
    local_steps: int
    clients: int
    chosen: int
    rounds: int
    round_epsilon: float
    delta: float
    penalty: float
    dimension: int
    drawing: Drawing = "without-replacement"
    state: State = "private"
    gradient_bound: float = 1.0
    diameter: float = 1.0
    dual_diameter: float = 1.0
    deviation: float = 1.0

    def __post_init__(self) -> None:
        positive(
            **{name: value for name, value in vars(self).items() if name not in _WORDS},
            room=1 - self.delta,
        )
        if self.drawing not in get_args(Drawing):
            expected = f"must be one of {', '.join(get_args(Drawing))}"
            raise InputError("drawing", self.drawing, expected)
        distinct = self.drawing == "without-replacement"
        if distinct and self.local_steps * self.batch > self.records:
            most = (
                f"with {self.local_steps} local steps must be at most {self.records}, the records"
            )
            raise InputError("batch", self.batch, most)
        if self.chosen > self.clients:
            raise InputError("chosen", self.chosen, f"must be at most {self.clients}, the clients")

    @property
    def participation(self) -> float:
        """Chance of being chosen, p = K / N."""
        return self.chosen / self.clients

    @property
    def rate(self) -> float:
        """q_i, chance that a round uses a given record."""
        return _chances(self.drawing, self.records, self.batch * self.local_steps)[0]

    @property
    def noise_multiplier(self) -> float:
        """sigma_{i,t} over the published sensitivity: sqrt(2 ln(1.25 / delta)) / eps."""
        return math.sqrt(2 * math.log(1.25 / self.delta)) / self.round_epsilon


def fedspd_sensitivity(run: FedspdRun, step_parameter: float) -> float:
    """The published sensitivity of y: 4 Q G / ((Q-1)(rho + gamma)); without Q / (Q-1) at Q = 1."""
    averaging = run.local_steps / (run.local_steps - 1) if run.local_steps > 1 else 1.0
    return 4 * averaging * run.gradient_bound / (run.penalty + step_parameter)


def fedspd_constant(run: FedspdRun, local_steps: int, round_epsilon: float) -> float:
    """C(Q, eps) of equation 27, and of 29 at Q = 1: of other Q and eps than those of the run, too.

    G^2 + 2 d_lambda^2 + 2 phi^2 / b + 16 rho d G^2 ln(1.25/delta) / ((Q-1)^2 eps^2), without
    (Q-1)^2 at Q = 1. As printed: rho mixes the units, as rho >= sqrt(gamma_t) does.
    """
    noise = 16 * run.penalty * run.dimension * run.gradient_bound**2 * math.log(1.25 / run.delta)
    divisor = (max(local_steps - 1, 1) * round_epsilon) ** 2
    drift = run.gradient_bound**2 + 2 * run.dual_diameter**2 + 2 * run.deviation**2 / run.batch
    return drift + noise / divisor if divisor else math.inf


def fedspd_step_parameter(run: FedspdRun, round_number: int) -> float:
    """gamma_t = (2 sqrt(Q p C(Q, eps)) / d_X) sqrt(t), t from 1, as printed."""
    constant = fedspd_constant(run, run.local_steps, run.round_epsilon)
    root = math.sqrt(run.local_steps * run.participation * constant)
    return 2 * root / run.diameter * math.sqrt(round_number)


def fedspd_total_epsilon(run: FedspdRun) -> float:
    """eps-bar = c0 q_i eps sqrt(p_i T / (1 - q_i)), as printed; infinity at q_i = 1."""
    if run.rate >= 1:
        return math.inf
    visits = run.participation * run.rounds / (1 - run.rate)
    return SLACK * run.rate * run.round_epsilon * math.sqrt(visits)


def fedspd_round_epsilon(
    *,
    total: float,
    records: int,
    batch: int,
    local_steps: int,
    participation: float,
    rounds: int,
    drawing: Drawing = "without-replacement",
) -> float:
    """What a total budget gives each round: eps-bar sqrt(1 - q) / (c0 q sqrt(p T))."""
    positive(total=total, participation=participation, rounds=rounds)
    rate, missed = _chances(drawing, records, batch * local_steps)
    return total * math.sqrt(missed) / (SLACK * rate * math.sqrt(participation * rounds))


def _conditions(run: FedspdRun) -> tuple[FormulaCondition, ...]:
    root = math.sqrt(fedspd_step_parameter(run, run.rounds))
    first = math.sqrt(fedspd_step_parameter(run, 1))
    return (
        FormulaCondition(
            f"Theorem 2 needs rho >= sqrt(gamma_t): {run.penalty:g} against {first:.3g} in round 1 "
            f"and {root:.3g} in round {run.rounds}",
            run.penalty >= root,
        ),
        FormulaCondition(
            "the Gaussian mechanism's noise needs an epsilon of at most 1 a round "
            f"(here {run.round_epsilon:.3g})",
            run.round_epsilon <= 1,
        ),
        FormulaCondition(
            "its sensitivity starts each round from equal state, which a private state is not",
            run.state == "public",
        ),
    )


FEDSPD_DP = PublishedFormula[FedspdRun](
    statement="eps-bar = 3.04 q_i eps sqrt(p_i T / (1 - q_i)), eps of each round",
    source="FedSPD-DP, total privacy loss",
    reading="G bounds every record's gradient; activity counts in expectation, as printed",
    epsilon=fedspd_total_epsilon,
    conditions=_conditions,
)


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

    `active` are the numbers of the client's active rounds, from 1, ascending; `norms` asks for the
    recursion of norms (an upper bound) in place of the linear one (exact).

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

    Mini-batches of a round are disjoint, and epsilon is 0 or more. `drawn_norm` is the largest
    difference of a mini-batch gradient that draws the record (2 G / b).
    """
    mus, masses = _response_norms(run, tuple(active), drawn_norm)
    return min(1.0, float(masses @ gaussian_deltas(mus, epsilon)) * (1 + _ROUNDING))


def fedspd_upper(
    run: FedspdRun, active: Sequence[int], delta: float, *, drawn_norm: float
) -> float:
    """Epsilon that holds at `delta` for smooth convex losses, as printed: Bound B, loose.

    Infinity where no epsilon below 1e12 is enough. Arguments as in `fedspd_upper_delta`.
    """

    def enough(epsilon: float) -> bool:
        return fedspd_upper_delta(run, active, epsilon, drawn_norm=drawn_norm) <= delta

    return 0.0 if enough(0.0) else least(enough, 1.0, tolerance=1e-6, most=1e12)


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

    Arguments as in `fedspd_upper_delta`; `drawn_norm` is 2 G / b, or 2 G.
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

    A round draws it with probability Q b / m, at a local step that is uniform. Terms `[rounds, Q]`
    are rounded to a lattice, up or down.
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


def fedspd_bound(
    runs: Sequence[FedspdRun], *, regulariser_gradient: float
) -> tuple[float, float, float]:
    """Equation 28 less its first term: of the diameters, of R, and of steps and noise.

    (1 / (2 T Q)) sum_i (rho d_X^2 (Q + 1) / p_i + Q d_lambda^2 / (p_i rho));
    (1 / (2 T Q)) sum_i 4 G_R / p_i, as printed: in units of the loss it would be G_R d_X, the same
    at the paper's d_X = 1; sum_i 2 d_X sqrt(C(Q, eps)) / sqrt(T Q p_i). G_R bounds the subgradients
    of R, `regulariser_gradient`.
    """
    diameters, regulariser, rate = [], [], []
    for run in runs:
        visits = run.rounds * run.local_steps * run.participation  # T Q p
        ball = run.penalty * run.diameter**2 * (run.local_steps + 1)
        dual = run.local_steps * run.dual_diameter**2 / run.penalty
        constant = fedspd_constant(run, run.local_steps, run.round_epsilon)
        diameters.append((ball + dual) / (2 * visits))
        regulariser.append(2 * regulariser_gradient / visits)
        rate.append(2 * run.diameter * math.sqrt(constant / visits))
    return math.fsum(diameters), math.fsum(regulariser), math.fsum(rate)


def fedspd_best_local_steps(run: FedspdRun, total: float) -> int:
    """The Q of equations 32 and 33: the whole Q >= 1 that makes C(Q, eps) / Q least.

    That is the third term's square but for what Q does not move. For a given eps *a round* it falls
    with every Q, so that there is no best one; here the total eps-bar is given, and eps of a round
    falls as its Q b records rise. From Q = 2 on C / Q is then convex: its parts are products of
    log-convex functions, 1 / Q, 1 / (Q - 1)^2 and q^2 / (1 - q) over Q.
    """
    positive(total=total)

    def ratio(steps: int) -> float:
        if run.drawing == "without-replacement" and steps * run.batch >= run.records:
            return math.inf
        epsilon = fedspd_round_epsilon(
            total=total,
            records=run.records,
            batch=run.batch,
            local_steps=steps,
            participation=run.participation,
            rounds=run.rounds,
            drawing=run.drawing,
        )
        return fedspd_constant(run, steps, epsilon) / steps

    low = high = 2
    while ratio(high + 1) < ratio(high):
        low, high = high, 2 * high
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if ratio(middle + 1) < ratio(middle) else (low, middle)
    return min(1, low, key=ratio)


def fedspd_rate(*, participation: float, rounds: int, local_steps: int) -> float:
    """Equation 30, the order in which the error falls: 1 / sqrt(p T Q), without its constants."""
    positive(participation=participation, rounds=rounds, local_steps=local_steps)
    return 1 / math.sqrt(participation * rounds * local_steps)
