"""One step's privacy loss as finitely many atoms, dominating the pair or dominated by it.

A measure M of losses stands for the profile f(a) = integral of (1 - a e^-l)+ dM(l). Composition
keeps the order of profiles: that of A and B is a -> integral of f_A(a e^-m) dM_B(m), which rises
with f_A since M_B is no less than 0, and likewise with f_B. No measure needs to have mass 1.

*Above*: connecting the dots (Doroshenko et al., 2022) in its mass-splitting form. In a cell [l, r]
of the loss log(dP/dQ), the masses p of P and q of Q move to the cell's two ends so that both are
kept,

    q_r = (e^-l p - q) / (e^(r-l) - 1),   q_l = q - q_r,   p_l = e^l q_l,   p_r = e^r q_r.

The atoms' profile interpolates the true one linearly in a between the cells' ends: it dominates.
What lies above the cells is counted as infinite loss, what lies below is raised to their lowest.

*Below*: binning. An observer who sees only the cell of the output learns no more than one who
sees the output; of a cell it learns the loss log(p/q), which lies in the cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tacit.privacy.accounting.gaussian import Array
from tacit.privacy.accounting.steps import Binned, Step, design

__all__ = ["UNIT", "Atoms", "Cut", "above", "atoms", "below", "log_moments", "tilted_errors"]

UNIT = 2.0**-53  # unit roundoff
_TINY = 1e-280
_STEEP = 600.0  # a loss above which its exponential may leave the floating-point range


@dataclass(frozen=True, eq=False)
class Atoms:
    """A measure of losses.

    Args:
        losses: where its atoms are, `[atoms]`.
        masses: how much they weigh under P, `[atoms]`.
        infinite: mass at infinite loss, which adds to delta as it is.
        error_losses: the losses of the cells, `[cells]`.
        errors: what rounding may have moved in each, in units of roundoff: masses, and masses
            times losses.
        size: what a loss was formed of.
    """

    losses: Array
    masses: Array
    infinite: float
    error_losses: Array
    errors: Array
    size: float


def above(binned: Binned) -> Atoms:
    """Atoms whose profile lies on or above that of the pair."""
    losses, p, q = binned.losses, binned.p[1:-1], binned.q[1:-1]
    left, right = losses[:-1], losses[1:]
    width = right - left
    # The ratio p / q is only formed where e^-l is in range; elsewhere all of p goes to the right,
    # and all of q, which a mirrored pair needs, to the left: the worse end for each.
    steep = (right > _STEEP) | (left < -_STEEP) | (width <= 0) | (width > _STEEP)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        q_right = (np.exp(-np.where(steep, 0.0, left)) * p - q) / np.expm1(
            np.where(steep, 1.0, width)
        )
    q_right = np.where(steep, 0.0, np.clip(q_right, 0.0, q))
    p_right = np.where(steep, p, np.minimum(q_right * np.exp(np.where(steep, 0.0, right)), p))
    masses = np.append(p - p_right, 0.0) + np.append(0.0, p_right)
    masses[0] += binned.p[0]
    infinite = 0.0 if binned.bounded else float(binned.p[-1])
    if binned.bounded:
        masses[-1] += binned.p[-1]
    if binned.mirrored:
        images = np.append(q - q_right, 0.0) + np.append(0.0, q_right)
        images[-1] += binned.q[-1]
        losses = np.concatenate((-losses[::-1], losses, [0.0]))
        masses = np.concatenate((images[::-1], masses, [binned.middle]))
    return Atoms(losses, masses, infinite, *_errors(binned))


def _errors(binned: Binned) -> tuple[Array, Array, float]:
    """Per cell: the error of p, and of e^loss q; both of the image, where there is one.

    An error h in p - e^l q moves h / (e^(r-l) - 1) from one end of a cell to the other, which
    changes e^(z loss) by |z| (r - l) at most: as much as |z| h.
    """
    at = np.append(binned.losses, binned.losses[-1])
    lifted = np.exp(np.clip(at, -_STEEP, _STEEP))
    errors = binned.p_error + lifted * binned.q_error
    if binned.mirrored:
        images = binned.q_error + binned.p_error / lifted
        at, errors = np.concatenate((at, -at)), np.concatenate((errors, images))
    return at, errors, binned.size


def below(binned: Binned) -> Atoms:
    """Atoms whose profile lies on or below that of the pair.

    Raises:
        ValueError: the pair is mirrored, which stands for an upper bound to begin with.
    """
    if binned.mirrored:
        raise ValueError("a maximum of two directions has no lower bound of its own")
    p, q = binned.p, binned.q
    ends = binned.losses
    lowest = np.concatenate(([-np.inf], ends))
    # What is above the cells is lowered to their end: a far atom would only spoil moments.
    highest = np.append(ends, ends[-1])
    # Where a mass is about to underflow its logarithm is no good; the cell's lower end will do.
    sound = (p > _TINY) & (q > _TINY)
    losses = np.where(sound, np.log(np.where(sound, p / np.where(sound, q, 1.0), 1.0)), lowest)
    losses = np.clip(losses, lowest, highest)
    if binned.bounded:
        losses[0], losses[-1] = ends[0], ends[-1]
    held = (p > 0) & np.isfinite(losses)
    return Atoms(losses[held], p[held], 0.0, *_errors(binned))


_BOUNDS = {True: above, False: below}


@dataclass(frozen=True)
class Cut:
    """How a step is cut into cells.

    Args:
        tilt: theta, about which the losses are weighed by e^(theta loss).
        reach: standard deviations to cover.
        cells: how many, besides those of the next line.
        width: at most so wide are cells at losses between 0 and `most`.
        most: about the largest loss that matters.
    """

    tilt: float
    reach: float
    cells: int
    width: float
    most: float


@lru_cache(maxsize=512)
def atoms(step: Step, reverse: bool, upper: bool, cut: Cut) -> Atoms:
    """A step's losses in cells.

    Args:
        step: the pair (P, Q).
        reverse: take (Q, P).
        upper: dominate the pair; otherwise be dominated by it.
        cut: how fine.
    """
    edges = design(step.alike, reverse, cut.tilt, cut.reach).edges(cut.cells, cut.width, cut.most)
    binned = step.binned(edges)
    return _BOUNDS[upper](binned.reverse if reverse else binned)


def log_moments(measure: Atoms, orders: Array) -> Array:
    """Log E[e^(t loss); loss finite] at each order t, `[orders]`."""
    held = measure.masses > 0
    exponents = np.outer(orders, measure.losses[held]) + np.log(measure.masses[held])
    top = exponents.max(axis=1)
    return np.asarray(top + np.log(np.exp(exponents - top[:, None]).sum(axis=1)))


def tilted_errors(measure: Atoms, tilt: float) -> tuple[float, float]:
    """What rounding moves in sums of e^(z loss) and of |z| e^(z loss), over that of e^(theta loss).

    In units of roundoff: errors of masses, and those of losses (of which E|loss| is a share).
    """
    with np.errstate(divide="ignore"):
        exponents = np.log(measure.masses) + tilt * measure.losses
        moved = np.log(measure.errors) + tilt * measure.error_losses
    top = exponents.max()
    weights = np.exp(exponents - top)
    total = float(weights.sum())
    masses = float(np.exp(np.minimum(moved - top, 700.0)).sum()) / total
    size = float((weights * np.abs(measure.losses)).sum()) / total
    return masses, masses + 4 * (size + measure.size)
