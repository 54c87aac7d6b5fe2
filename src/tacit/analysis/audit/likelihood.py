"""The likelihood ratio of D to D', with the secret coins marginalised.

What a record does to a release is what the mechanism of that step lets it move at most
(`fidelity.accounted`), since the laboratory's records are the worst there are. Steps with one such
mechanism each are independent, and their ratios multiply; the steps of an epoch that draws a record
once are taken together. No statistic of a node's releases is better (Neyman and Pearson) where that
is so. Where a private state ties the coins of several steps, or where a bound is of all losses and
constant gradients stay below it, the ratio is another statistic than the best, and nothing else
follows: `docs/proofs/audits.md`, *Any statistic will do*.

`y`, `[steps, nodes, width]`, is in units of the noise of its step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tacit.analysis.audit.colluders import Colluders
from tacit.analysis.audit.fidelity.accounted import of_step
from tacit.analysis.audit.laboratory import (
    CANARY,
    CROWD,
    OPPOSED,
    REPLACED_IN_BATCH,
    Problem,
    table_signs,
)
from tacit.training.plan import Plan
from tacit.training.release import NodePlan

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Known:
    """What the attacker knows of the audited nodes beforehand: the plan.

    Args:
        rate: the chance that a step draws the record, `[steps]`.
        drawn: how far the record moves the release then, in units of its noise, `[steps]`.
        undrawn: how far, and the other way, where it is not drawn, `[steps]`.
        signs: of what the record moves where it is drawn, `[steps]`.
        batch: q J.
        alone: how much farther than `drawn` it is from one end to the other, see `Accounted`.
        epoch: steps of an epoch in which the record is drawn once; 0: each step draws for itself.
    """

    rate: Array
    drawn: Array
    undrawn: Array
    signs: Array
    batch: float
    alone: float = 1.0
    noise: Literal["gaussian", "laplace"] = "gaussian"
    epoch: int = 0


def known_of(
    plan: Plan, node: NodePlan, whole: NDArray[np.bool_], colluders: Colluders | None = None
) -> Known:
    """What the plan says of a node's first steps, to who sees its releases in the laboratory.

    `whole` says which steps ask for a sum over all records, `[steps]`. Colluders see their estimate
    of the node's sum in place of its releases.
    """
    # In units of the node's own noise, and of every step, since nodes take part in different ones.
    release, steps = replace(plan.release, pairs=None, activity=None), range(len(whole))
    mechanisms = [release.assumed_mechanism(node, [(k, k + 1)]) for k in steps]
    moves = [of_step(mechanism) for mechanism in mechanisms]
    drawn = np.array([one.drawn for one in moves])
    undrawn = np.array([one.undrawn for one in moves])
    unit = np.array([1 / release.own_multiplier(node, k) for k in steps])
    if not release.algorithm.releases.models:
        # The bound is of all losses, far from what constant gradients do: about one of them.
        drawn, undrawn = unit, np.zeros(len(whole))
    # What a table keeps of a record shows more than a clipped difference: see `Slope`. There a
    # record moves as much where it is drawn as elsewhere, and the same way.
    kept = (undrawn > 0) & (drawn + undrawn < (2 - 1e-9) * unit)
    drawn = np.where(kept, -undrawn, drawn)
    bounds = np.array([release.clip.bound(k) or 1.0 for k in steps])
    longer = np.array([release.clip.attacked(k) for k in steps]) / bounds
    if colluders is not None:
        longer /= colluders.gains
    return Known(
        rate=np.array([mechanism.rate for mechanism in mechanisms]),
        drawn=drawn * longer,
        undrawn=undrawn * longer,
        # A sum over all records is the whole of a release, unless that has private state as well.
        signs=np.where(whole & (undrawn == 0) | kept, -1.0, table_signs(plan, len(whole))),
        batch=node.expected_batch,
        alone=moves[0].alone,
        noise="laplace" if release.algorithm.releases.noise.norm == "l1" else "gaussian",
        epoch=node.epoch_steps if release.setup.sampling == "allocation" else 0,
    )


# Mixtures, step by step.

Side = Sequence[tuple[Array, Array]]
"""Pairs of a chance and a place in units of the noise, `[steps, 1]` each."""


def likelihood_ratio(problem: Problem, y: Array, known: Known) -> Array:
    """Log of the likelihood of D over that of D', `[nodes]`.

    It is taken along the canary's direction; of a canary that opposes the others along theirs: how
    far the sum falls short of the batch that was expected.
    """
    present, absent = _sides(problem, known)
    y = y[:, :, CROWD if problem == OPPOSED else CANARY]
    ratios = _log_mixture(y, present, known) - _log_mixture(y, absent, known)
    ratios = np.where(np.isfinite(y), ratios, 0.0)  # whoever released nothing shows nothing
    if known.epoch <= 1:
        return np.asarray(ratios.sum(0), np.float64)
    # A step's ratio is 1 + (R - 1) / t, R that of a step that draws the record; an epoch's is
    # 1 + the sum of (R - 1) / t, since the record is drawn at one of its steps.
    total = np.zeros(ratios.shape[1])
    for first in range(0, len(ratios), known.epoch):
        moved = np.expm1(ratios[first : first + known.epoch]).sum(0)
        total += np.log1p(np.maximum(moved, -1 + 1e-12))
    return total


def _log_mixture(y: Array, side: Side, known: Known) -> Array:
    terms = []
    for chance, place in side:
        off = y - place
        # Of the noise, but for a constant, which is 0 where nothing is known.
        density = -np.abs(off) if known.noise == "laplace" else -(off**2) / 2
        with np.errstate(divide="ignore"):  # where a step has but one outcome
            terms.append(np.log(chance) + np.where(np.isnan(density), 0.0, density))
    return np.asarray(np.logaddexp.reduce(terms), np.float64)


def _sides(problem: Problem, known: Known) -> tuple[Side, Side]:
    """D and D', from what the record does in one step: in one that draws it, and in any other."""
    rate, signs, always = known.rate[:, None], known.signs[:, None], np.ones((len(known.rate), 1))
    drawn, undrawn = known.drawn[:, None], known.undrawn[:, None]
    moved = [(rate, signs * drawn), (1 - rate, -signs * undrawn)]
    if problem == OPPOSED:
        full = known.batch * drawn
        return [(chance, full - 2 * place) for chance, place in moved], [(always, full)]
    if problem.others[0] < 0:  # all others are at one end, and whom the canary displaces as well
        length = known.alone * drawn
        base = -length / 2 * (known.batch if problem == REPLACED_IN_BATCH else 1)
        return [(rate, base + length), (1 - rate, base)], [(always, base)]
    if problem.instead is None:
        return moved, [(always, 0 * always)]
    return moved, [(chance, -place) for chance, place in moved]
