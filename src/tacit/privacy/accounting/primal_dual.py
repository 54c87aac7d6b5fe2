"""What a client with a primal and a dual variable, neither of them noised, makes of one record.

The client of FedSPD-DP as printed, in a round with step parameter gamma and penalty rho:

    x <- prox[(gamma x + rho x_0 + lambda - g(x)) / (gamma + rho)]      Q times, g of a mini-batch
    lambda' = lambda + rho (x_0 - x_bar),    y = x_bar - lambda' / rho + noise,

x_bar the mean of the Q new iterates, prox that of a convex function over gamma + rho. Only y is
sent; x_0 is public. Take two runs on neighbouring data sets with the same coins, for any one
transcript, so with the same x_0. They differ by d in x and by l in lambda, and what is sent by
s = 2 mean d - l / rho, l from before the round, since y = 2 x_bar - x_0 - lambda / rho.

**One draw at a time.** Go from one run to the other by hybrids, each of which has the one record up
to a drawn step, and the other record from there on. Neighbouring hybrids differ in one draw, at
which mini-batch gradients differ by at most h, and have the same losses after it; their s add up.
So a norm of all s over the noise that holds after one draw, for every transcript, is what
`tacit.privacy.accounting.persistent_state` needs. Two such norms:

*Norms* (`carried_norms`). Let kept >= 0 with |gamma d - (g(x) - g(x'))| <= kept |d| for one and the
same mini-batch loss. Since prox is non-expansive,

    |d| <= (kept |d| + |l| + h) / (gamma + rho),   |l'| <= |l| + rho mean|d|,
    |s| <= 2 mean|d| + |l| / rho.

For convex L-smooth losses kept = max(gamma, L - gamma): x -> gamma x - g(x) has that Lipschitz
constant (Baillon and Haddad: g is co-coercive). For any other loss kept = gamma, and the difference
of two mini-batch gradients is itself a disturbance `later` of every local step after a draw,
bounded since gradients are clipped. Norms forget all cancellation, and grow exponentially with the
rounds.

*Energy* (`energy_norms`), for convex L-smooth losses with gamma >= L / 2. Then

    V = gamma |d|^2 + Q |l|^2 / rho   falls in a round by at least   Q rho |mean d|^2.

*Proof.* With d_r after r local steps, e_r = d_{r-1} - d_r and G_r the difference of gradients, prox
is the resolvent of a monotone operator: <gamma e_r + l - rho d_r - G_r, d_r> >= 0. By
co-coercivity -<G_r, d_r> <= -|G_r|^2 / L + |G_r| |e_r| <= L |e_r|^2 / 4. Sum over r, with
2 <e_r, d_r> = |d_{r-1}|^2 - |d_r|^2 - |e_r|^2, gamma >= L / 2 and sum |d_r|^2 >= Q |mean d|^2:

    gamma (|d_0|^2 - |d_Q|^2) / 2 + Q <l - rho mean d, mean d> >= 0,

where l - rho mean d = l', mean d = (l - l') / rho: the second term is
Q (|l|^2 - |l'|^2 - |l - l'|^2) / (2 rho). []

Gamma does not fall from round to round; from one to the next V rises by no more than gamma does.
So V_t / gamma_t falls, from V / gamma after the draw, by at least Q rho |mean d|^2 / gamma_t in a
round, and |l|^2 <= rho V / Q. With sigma_t the noise, by Minkowski, after the round of the draw,

    (sum |s_t / sigma_t|^2)^(1/2) <= (V / (gamma Q rho))^(1/2)
        (2 max_t (gamma_t / sigma_t^2)^(1/2) + (sum_t gamma_t / sigma_t^2)^(1/2)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacit.privacy.accounting.gaussian import Array

__all__ = ["ClientRound", "carried_norms", "energy_norms"]

_LARGEST = 1e250  # of a squared norm: beyond it nothing is left to protect
_UP = 1 + 1e-9  # sums of non-negative terms: a relative rounding each


@dataclass(frozen=True)
class ClientRound:
    """A round in which the client is active.

    Args:
        gamma: the step parameter.
        kept: bound of |gamma d - (g(x) - g(x'))| / |d|.
        noise_std: of the noise on y, for a gradient difference of 1 where the record is drawn.
        copies: how often its message is sent (more than once where rounds were run again).
    """

    gamma: float
    kept: float
    noise_std: float
    copies: int = 1


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
        if not (worst < _LARGEST and float(energy.max()) < _LARGEST):
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
