"""How far noise in finite arithmetic may lie from ideal noise: a bound that enters epsilon.

Without rounding errors, what `tacit.privacy.noise.gaussian` releases is a function of the analysed
mechanism. This module bounds what the errors may add, for every total and adaptively; the proof is
in `docs/proofs/finite-arithmetic.md`.

*Theorem.* Let 1 + xi be the ratio of the two laws of a pair of lattice points, that of careful
arithmetic over the ideal one, given everything before. Then |xi| <= h = 2^-32 (but for a chance of
2^-524), E xi = 0 and E xi^2 <= k = 2^-75. For a h <= 1/4 both Renyi divergences of order a are
below a k; they add up over N pairs, adaptively, so that both hockey-stick divergences at N a k +
ln(1/delta) / (a - 1) are at most delta + N 2^-523 (Mironov, CSF 2017, propositions 1 and 3).

*Assumed:* AES-256 in counter mode, or ChaCha20, is indistinguishable from random bits, so privacy
is computational; IEEE 754; logarithm, sine and cosine err by at most 4 units in the last place in
double precision, those of NumPy (tested, not proved; of a device's kernels it is proved); a
device's root in single precision errs by at most 2^-23 of it (as NVIDIA's
PTX manual states); totals are finite, over the spacing too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tacit.errors import InputError

# Bounds of a pair's relative deviation and of its mean square: h and k above.
_RATIO = 2.0**-32
_SQUARED_RATIO = 2.0**-75
_LOST = 2.0**-523
# Above this, e^epsilon times what is lost is no longer nothing.
_LARGEST_EPSILON = 300.0
# Of delta, for the arithmetic; more where that is not enough.
_FIRST_SHARE = 2.0**-20


@dataclass(frozen=True)
class Slack:
    """What finite arithmetic may add to a mechanism's (epsilon, delta), in one exchange of laws.

    The law of what is released and the ideal one are (`epsilon`, `delta`)-close, both ways round.
    """

    epsilon: float
    delta: float

    def total_epsilon(self, epsilon: float) -> float:
        """Epsilon of what runs, if the ideal mechanism has `epsilon`: two exchanges."""
        return math.nextafter(epsilon + 2.0 * self.epsilon, math.inf)

    def total_delta(self, epsilon: float, delta: float) -> float:
        """Delta of what runs at `total_epsilon(epsilon)`, if the ideal one has (epsilon, delta)."""
        own = (1.0 + math.exp(epsilon + self.epsilon)) * self.delta
        return (math.exp(self.epsilon) * delta + own) * (1.0 + 1e-14)


def slack(draws: int, delta: float) -> Slack:
    """How far the law of `draws` noised values may lie from the ideal one, at most.

    If the ideal mechanism is (epsilon, delta)-DP, what runs is (`total_epsilon(epsilon)`,
    `total_delta(epsilon, delta)`)-DP: from the law that runs to the ideal one, through the
    mechanism, and back. Trust model: every value of every step is seen, and later steps may depend
    on earlier ones. Theorem: see the module.

    Args:
        draws: noised values in all steps that the guarantee rests on: d times K of the node, and
            those of others where their noise counts for it.
        delta: what to spend on it; epsilon grows with the root of its logarithm only.

    Raises:
        InputError: `draws` is not in 0 .. 2^60, or `delta` not in (2^-1000, 1).
    """
    if not 0 <= draws <= 1 << 60:
        raise InputError("draws", draws, "a number of values from 0 to 2^60")
    if not 2.0**-1000 < delta < 1.0:
        raise InputError("delta", delta, "a probability between 2^-1000 and 1")
    if draws == 0:
        return Slack(0.0, 0.0)
    # A pair makes two values, of which at least one is used: never more pairs than values.
    pairs, log = float(draws), -math.log(delta)
    order = 1.0 + min(0.2 / _RATIO, math.sqrt(log / (pairs * _SQUARED_RATIO)))
    epsilon = pairs * order * _SQUARED_RATIO + log / (order - 1.0)
    return Slack(epsilon * (1.0 + 1e-9), delta + pairs * _LOST)


def with_slack(epsilon_at: Callable[[float], float], draws: int, delta: float) -> float:
    """Epsilon at `delta` of what runs in finite arithmetic: an upper bound that holds.

    A share of delta, a millionth where that is enough, pays for the arithmetic. `epsilon_at` is an
    upper bound of the ideal mechanism's epsilon at a delta; `draws` are the noised values of one
    node in all steps, d times K. Infinite where the ideal epsilon is above 300, for which none is
    proved.

    Raises:
        InputError: `draws` is not in 0 .. 2^60.
    """
    share = _FIRST_SHARE
    while share < 0.5:
        kept = delta * (1.0 - share)
        ideal = epsilon_at(kept)
        if not ideal <= _LARGEST_EPSILON:
            break
        # What this share of delta pays for at an epsilon.
        own = slack(draws, delta * share / 4.0 * math.exp(-ideal - 1.0))
        if own.total_delta(ideal, kept) <= delta:
            return own.total_epsilon(ideal)
        share = max(2.0 * share, 2.0 * own.epsilon)
    return math.inf


def epsilon_without_slack(
    epsilon_below: Callable[[float], float], draws: int, delta: float
) -> float:
    """An epsilon at `delta` below which what runs does not stay: a lower bound that holds.

    If what runs were (e, delta)-DP with e up to 300, the ideal mechanism would be
    (`total_epsilon(e)`, `total_delta(e, delta)`)-DP: the two laws are exchanged once more.
    `epsilon_below` is a lower bound of the ideal mechanism's epsilon at a delta; `draws` as in
    `with_slack`.
    """
    own = slack(draws, _spent_at(_LARGEST_EPSILON))
    ideal = epsilon_below(min(own.total_delta(_LARGEST_EPSILON, delta), math.nextafter(1.0, 0.0)))
    return min(_LARGEST_EPSILON, max(0.0, (ideal - 2.0 * own.epsilon) * (1.0 - 1e-15)))


def delta_with_slack(delta_at: Callable[[float], float], draws: int, epsilon: float) -> float:
    """Delta at `epsilon` of what runs in finite arithmetic: an upper bound that holds.

    Below epsilon 0 the ideal delta is read off that at 0: H_a <= 1 - a + H_1 for a < 1. `delta_at`
    is an upper bound of the ideal mechanism's delta at an epsilon; `draws` as in `with_slack`.
    Above epsilon 300 the bound is that at 300.
    """
    kept = min(epsilon, _LARGEST_EPSILON)
    own = slack(draws, _spent_at(kept))
    ideal = kept - 2.0 * own.epsilon
    below = -math.expm1(min(ideal, 0.0))
    return min(1.0, own.total_delta(kept, below + delta_at(max(ideal, 0.0))))


def delta_without_slack(delta_below: Callable[[float], float], draws: int, epsilon: float) -> float:
    """A delta at `epsilon` below which what runs does not stay: a lower bound that holds.

    `delta_below` is a lower bound of the ideal mechanism's delta at an epsilon; `draws` as in
    `with_slack`. Above epsilon 300 the bound is 0.
    """
    if epsilon > _LARGEST_EPSILON:
        return 0.0
    own = slack(draws, _spent_at(epsilon))
    ideal = delta_below(own.total_epsilon(epsilon)) - own.total_delta(epsilon, 0.0)
    return max(0.0, ideal * math.exp(-own.epsilon) * (1.0 - 1e-14))


def _spent_at(epsilon: float) -> float:
    """A delta for the arithmetic that is nothing beside any other, e^epsilon included."""
    return 1e-30 * math.exp(-epsilon)
