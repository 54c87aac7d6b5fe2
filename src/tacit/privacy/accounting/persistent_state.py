"""A record that un-noised state carries to all later steps: Bound B, with draws that add up.

Trust model: all messages (`server`: so does the server); the state is never sent. Let b be the
coins that draw the record, independent of the data and of each other, b_k = 1 with chance q. Given
b and the messages before it, message k is a Gaussian in both runs, of the same public standard
deviation sigma_k, their means apart by

    s_k = sum over j <= k with b_j = 1 of r_jk,

where the responses r_jk may depend on b and on earlier messages, but for every transcript

    (sum_k |r_jk / sigma_k|^2)^(1/2) <= 1 / z_j,   z_j fixed in advance.

*Bound.* By Minkowski's inequality (sum_k |s_k / sigma_k|^2)^(1/2) <= mu(b) = sum over draws of
1 / z_j, for every transcript. Given b, the messages are then mu(b)-GDP: a budget on the sum of
squares is a privacy filter for Gaussian steps chosen adaptively (Smith and Thakurta, *Fully
adaptive composition for Gaussian differential privacy*, 2022; where every |r_jk| has a bound of its
own, Cor. 3.3 of Dong, Roth and Su is enough). Divergences are jointly convex, hence

    delta(eps) <= E_b[delta_Gauss(eps; sum over draws of 1 / z_j)],

and twice the sum under `replace-one`, where a draw moves it twice as far. This is Bound B of
`revealed_participation` with the sum itself in place of its root. Amplification by sampling is
given up, and Minkowski is loose where responses overlap little in time: an upper bound, far from
tight; no lower bound beyond 0 is stated.

*Composition.* Two such mechanisms in a row, each with state and coins of its own, have
mu_1(b_1)^2 + mu_2(b_2)^2 <= (mu_1(b_1) + mu_2(b_2))^2 as their budget: the steps of both together,
as one schedule, are a bound. The first n steps respond to their draws by no more than all steps do:
the first n multipliers are a bound for them. Where steps are run again from a state of before, up
to R copies of each, a draw is followed by at most R copies of every later message: z / R^(1/2).

*How the mean is taken.* Increments 1 / z_j are rounded up to a lattice of 1/8192 of the largest (a
coarser one where there are very many steps), and convolved in non-negative terms
(`revealed_participation`); of the values of the sum, neighbours are then put together at the
largest, until few thousand are left.
Steps that add next to nothing (those in which a client is silent) count as if all of them drew it.
"""

from __future__ import annotations

import math

import numpy as np

from tacit.privacy.accounting.revealed_participation import (
    Shifts,
    mean_delta,
    mean_epsilon,
    sum_over_draws,
)
from tacit.privacy.mechanisms.base import REPLACE_ONE
from tacit.privacy.mechanisms.steps import PersistentState, levels

__all__ = ["persistent_delta", "persistent_epsilon"]

_LATTICES = (8192, 4096, 2048, 1024, 512, 256, 128, 64, 32, 16, 8)
_MOST_VALUES = 4096
_SMALL = 1e-5  # of the largest increment
_LARGEST = 1e100  # of a shift over the noise: nothing is left to protect


def persistent_delta(mechanism: PersistentState, epsilon: float) -> float:
    """Bound B: a delta that holds at `epsilon` >= 0, an upper bound under either relation."""
    return mean_delta(_shifts(mechanism), epsilon)


def persistent_epsilon(mechanism: PersistentState, delta: float) -> float:
    """The smallest epsilon >= 0 at which `persistent_delta` is at most `delta`, rounded up.

    Infinite where none is found, as for a multiplier that is next to nothing.
    """
    return mean_epsilon(_shifts(mechanism), delta)


def _shifts(mechanism: PersistentState) -> Shifts:
    """The law of the sum over draws, as an upper bound of mu."""
    double = 2.0 if mechanism.relation == REPLACE_ONE else 1.0
    increments = [(double / z, steps) for z, steps in levels(mechanism)]
    largest = max(size for size, _ in increments)
    if largest > _LARGEST:
        return Shifts(np.ones(1), np.ones(1), 1.0)
    total = math.fsum(size * steps for size, steps in increments)
    if mechanism.sample_rate == 1:
        return Shifts(np.asarray([total * (1 + 1e-12)]), np.ones(1), 0.0)
    large = [(size, steps) for size, steps in increments if size > _SMALL * largest]
    always = math.fsum(size * steps for size, steps in increments if size <= _SMALL * largest)
    sums, weights, tail = sum_over_draws(large, mechanism.sample_rate, _LATTICES)
    together = -(-len(sums) // _MOST_VALUES)
    first = np.concatenate(
        ([0], np.arange(1, len(sums), together))
    )  # no draw at all stays by itself
    last = np.append(first[1:], len(sums)) - 1
    # What the lattice rounds up is bounded by the sum over all steps.
    mu = np.minimum(always + sums[last], total) * (1 + 1e-12)
    return Shifts(mu, np.add.reduceat(weights, first), tail)
