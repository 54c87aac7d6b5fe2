"""A record that private state carries on: Theorem A, amplification by sampling kept.

Trust model: all messages; the state (a table of gradients, a local variable) is never sent.

**Theorem A.** The record is drawn at step k by a coin b_k of rate q, independent of everything
else. Let u be the other records' coins. If

- given u, the messages are y_k ~ N(base_k + s_k, sigma_k^2 I), where base_k, state of the others
  included, is a function of earlier messages and of u alone (the contribution is *added*), and
  s_k, the contribution, of earlier messages, of u and of b_1..b_k;
- the null record contributes nothing, whatever the coins (Poisson: no other record moves in);
- the norm of s_k is at most A_k where b_k = 1 and c_k where b_k = 0, whatever happened before:
  what is stored of a record is clipped as well;
- A_k, c_k and sigma_k are fixed in advance,

then, with A and c over the noise's standard deviation, the messages are dominated, both ways, by
the composition over k of the pairs

    (1-q) N(c, 1) + q N(A, 1)   against   N(0, 1)                              (zero-out),
    (1-q) N(c, 1) + q N(A, 1)   against   (1-q) N(-c, 1) + q N(-A, 1)          (replace-one).

*Proof.* Fix u: divergences are jointly convex, and u has the same law on both sides. Write s, b
for the first data set and s', b' for the second (zero-out: s' = 0). Since b_k is fresh,
y_k given y_<k and b_<k is the mixture M_k = (1-q) N(base + s(0)) + q N(base + s(1)) of the two
values of b_k, and P(y, b) = prod_k M_k(y_k | y_<k, b_<k) R_k(b_k | y_<=k, b_<k), R_k the posterior
of the coin; likewise with M'_k, R'_k. Extend both runs by the coins that the *other* would guess:

    P~(y, b, b') = prod_k M_k (y_k | y_<k, b_<k)   R_k(b_k | ..) R'_k(b'_k | y_<=k, b'_<k),
    Q~(y, b, b') = prod_k M'_k(y_k | y_<k, b'_<k)  R_k(b_k | ..) R'_k(b'_k | y_<=k, b'_<k).

Under P~ nothing of y or b depends on b', so that its marginal is P(y, b); under Q~ that of (y, b')
is Q. Given all that went before, a step is M_k on one side and M'_k on the other, followed by the
same channel on both. It remains to find the worst of such pairs. With L_i the likelihood ratio of
N(s_i) to N(0), log L_i Gaussian, the divergence is E F(sum_i w_i L_i, sum_j w_j L'_j), with
F(p, q) = max(p - a q, 0). Along a straight line of Gram matrices of all shifts its derivative is
half the sum over pairs of shifts of the change of s_i s_j times w_i w_j E[F_ij L_i L_j], where F_ij
is at least 0 for two shifts of one side and at most 0 for one of each (Gaussian interpolation): it
rises to the greatest products within a side and the least across, which collinear shifts of
greatest norm attain together, the two sides opposed. Steps dominated given all that went before
compose adaptively; dropping b and b' is post-processing. []

The pairs are attained within the class of such mechanisms (constant shifts); what one algorithm's
state can reach may be less, see `flip` for a table of gradients.

It fails for a batch of fixed size, where drawing the record moves another one out, and where
records are drawn in groups by one coin, so that the state of the others depends on the record's own
coin: `revealed` has the bound that remains for `sampling="fixed"` and `"groups"`.
"""

from __future__ import annotations

from tacit.errors import InputError
from tacit.privacy.mechanisms.base import REPLACE_ONE
from tacit.privacy.mechanisms.steps import PrivateState

__all__ = ["worst_means"]

Means = tuple[float, float]


def worst_means(mechanism: PrivateState) -> tuple[Means, Means]:
    """The pair of Theorem A: where each side has its means, over the clipping bound.

    Divided by the noise multiplier of a step they are those of the step's pair.

    Returns:
        The means of P and of Q, each where the record is not drawn (weight 1 - q) and where it is
        (weight q).

    Raises:
        InputError: a batch of fixed size or of groups, for which the theorem does not hold.
    """
    if mechanism.sampling != "poisson":
        expected = "must be 'poisson': others depend on the record's coin, see Bound B"
        raise InputError("sampling", mechanism.sampling, expected)
    means = (mechanism.undrawn_norm, mechanism.drawn_norm)
    opposed = (-mechanism.undrawn_norm, -mechanism.drawn_norm)
    return means, opposed if mechanism.relation == REPLACE_ONE else (0.0, 0.0)
