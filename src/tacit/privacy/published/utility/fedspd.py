"""What FedSPD-DP promises of accuracy (Li, Wang, Chang and Chi): Theorem 2, equation 28.

Of convex losses, for rho >= sqrt(gamma_i^t) and the gamma_i^t of `fedspd_step_parameter`. What is
bounded is equation 25, H = sum_i E[F_i(x-bar_i) - F_i(x_0*)] + beta sum_i E norm(x-bar_i - x-bar_0)
with F_i = f_i + R_i; bars are means over all T rounds and Q inner iterates, and beta is the radius
of the ball of dual variables. Symbols and constants are those of `FedspdRun`, one a client; C(Q,
eps), equations 27 and 29, is `fedspd_constant`. Of Q = 1 the paper prints C alone: read as (28).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tacit.privacy.published.fedspd import (
    FedspdRun,
    fedspd_constant,
    fedspd_round_epsilon,
)
from tacit.privacy.published.formula import positive


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
