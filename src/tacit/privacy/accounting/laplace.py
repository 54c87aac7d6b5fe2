"""Laplace noise: the pair that dominates one step, why, and its profile.

Trust model: all messages. Relation: add-or-remove-one (zero-out) with or without Poisson
sampling; replace-one without (twice the shift). `shift` is the bound of a contribution in the
l1 norm over the scale of the noise.

*One dimension is enough.* Let f_t(a) = F(F^-1(1 - a) - t) be the trade-off function of Lap(0)
against Lap(t), F the distribution function: the density is log-concave, so the likelihood ratio
rises (weakly) with x, and a threshold on x is a best test at every level. A vector of independent
Laplace noises shifted by s is reached from no shift in one coordinate after the other, and each
change of one coordinate has the trade-off function f_|s_i| (the other coordinates carry nothing;
a negative shift is the mirror image). By group privacy (Dong, Roth and Su, *Gaussian differential
privacy*, Lemma A.5: T(P, R) >= g(1 - f) where T(P, Q) >= f and T(Q, R) >= g) the whole change has
a trade-off function of at least their concatenation, and

    f_s(1 - f_t(a)) = F(F^-1(f_t(a)) - s) = F(F^-1(1 - a) - t - s) = f_{t+s}(a),

so that it is at least f at the l1 norm of s, and f_t falls with t: (Lap(shift), Lap(0)) dominates
the step in both directions. A sum moved along one coordinate by the whole bound attains it.

*Sampling.* Given the coins of all other records (divergences are jointly convex, and those coins
are the same on both sides), without the record the output is Q, with it (1-q) Q + q P. Where
a > 1 - q,

    H_a((1-q) Q + q P || Q) = q H_{1 + (a-1)/q}(P || Q)

and is 1 - a below; where a < 1 / (1-q), with w = 1 - a (1-q),

    H_a(Q || (1-q) Q + q P) = w H_{aq/w}(Q || P)

and is 0 above. Both rise with the divergence on the right, so that the worst P remains the worst:
((1-q) Lap(0) + q Lap(shift), Lap(0)) and its reverse dominate the step, and adaptively composed
steps are dominated by the composition of the pairs, each direction for itself (Zhu, Dong and
Wang, *Optimal accounting of differential privacy*, Thm. 10).
"""

from __future__ import annotations

import math

import numpy as np

from tacit.privacy.accounting.gaussian import Array

__all__ = ["laplace_epsilon", "laplace_profile"]


def laplace_profile(shift: float, epsilon: Array) -> Array:
    """Hockey-stick divergence of Lap(shift) from Lap(0) at each epsilon (any real numbers).

    1 - e^((epsilon - shift) / 2) between -shift and shift, 0 above, 1 - e^epsilon below; right to
    a few roundings.
    """
    inside = -np.expm1(np.minimum((epsilon - shift) / 2, 0.0))
    below = -np.expm1(np.minimum(epsilon, 0.0))
    return np.asarray(np.where(epsilon < -shift, below, inside), dtype=np.float64)


def laplace_epsilon(shift: float, delta: float) -> float:
    """Smallest epsilon >= 0 of one step without sampling at `delta`, exact but for a rounding up.

    The inverse of the profile: shift + 2 log(1 - delta).
    """
    exact = shift + 2 * math.log1p(-delta)
    return max(0.0, min(shift, exact + 1e-15 * (shift - 2 * math.log1p(-delta))))
