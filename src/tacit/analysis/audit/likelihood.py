"""The likelihood ratio of D to D', with the secret coins marginalised: the best attack there is.

Where the code does what the plan says, no statistic of a node's releases is better (Neyman and
Pearson), but for what the laws below leave out. `y`, `[steps, nodes, width]`, is in units of the
noise of its step, and `mu` is the clipping bound in the same unit.

| law | a step's release, noise aside | coins are marginalised |
|---|---|---|
| `sum`, `iterates` | sizes of the record's part, with their chances | exactly, by steps or epochs |
| `snapshot`, `anchors`, `steps` | the same, with sizes that depend on the step | likewise |
| `change` | one end of the ball, the other, or nothing | likewise |
| `table` | what is kept of the record, and its change where drawn | as if never drawn before |
| `carried` | a linear function of all earlier coins | as if none but its own step's did |

Where coins of several steps are tied by a private state, the last two leave that out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from tacit.algorithms.facets import Law
from tacit.algorithms.federated import round_sampling
from tacit.analysis.audit.laboratory import (
    CANARY,
    CROWD,
    Problem,
    law_of,
    sign_schedule,
)
from tacit.training.plan import NodePlan, Plan

Array = NDArray[np.float64]
MOST_LOCAL_STEPS = 10
"""Of more mini-batches a step that may each draw the record, only the number of hits counts."""

LEAST_CHANCE = 1e-15


@dataclass(frozen=True)
class Known:
    """What the attacker knows of the audited nodes beforehand: the plan.

    Args:
        rate: q, the chance that one mini-batch draws a record.
        batch: q J.
        mu: `[steps]`, clipping bound over the deviation of the noise in a release.
        law: how a release depends on one record.
        draws: what the mini-batches of one step draw of the record: (chance, hits of each).
        sizes: of a hit in each mini-batch, over the clipping bound, `[steps, mini-batches]`.
        nobody: the chance that no other record is drawn.
        signs: of the gradients of a flipping problem, `[steps]`, and
        older: of the older ones that are met, `[steps]`.
        difference: how far a clipped difference moves at most, over the clipping bound.
        every: steps from anchor to anchor.
        fresh: the share of gradients that are no differences, in steps between anchors.
        epoch: steps of an epoch in which the record is drawn once; 0: each step draws for itself.
    """

    rate: float
    batch: float
    mu: Array
    law: Law = "sum"
    noise: Literal["gaussian", "laplace"] = "gaussian"
    draws: tuple[tuple[float, tuple[int, ...]], ...] = ()
    sizes: Array = field(default_factory=lambda: np.ones((1, 1)))
    nobody: float = 0.0
    signs: Array = field(default_factory=lambda: np.ones(1))
    older: Array = field(default_factory=lambda: np.ones(1))
    difference: float = 2.0
    every: int = 1
    fresh: float = 0.0
    epoch: int = 0

    def __post_init__(self) -> None:
        if not self.draws:
            object.__setattr__(self, "draws", _independent_draws(self.rate, 1))


def known_of(plan: Plan, node: NodePlan, deviations: Array) -> Known:
    """What the plan says of a node's first steps, in the lab's model.

    `deviations` are those of the noise in each step's release, as plan and step say, `[steps]`; NaN
    where nothing was released, and nothing is attacked.
    """
    release, options = plan.release, cast(Any, plan.config.algorithm.options)
    law, count, steps = law_of(plan), release.local_steps, len(deviations)
    planned = np.array([release.noise_std(node, k) for k in range(steps)])
    deviations = np.where(np.isfinite(deviations), deviations, planned)
    mu = np.array([release.clip.attacked(k) for k in range(steps)]) / deviations
    sizes, draws = np.ones((steps, 1)), _independent_draws(node.rate, 1)
    if law in ("iterates", "carried"):
        # A sum of gradients moves an iterate by a unit, 1 / (b (gamma + rho)). Steps ask for noise
        # in this unit, or in two where what is noised moves twice as far as the iterates.
        unit = deviations / planned / (1 + (law == "carried"))
        mu, gammas = mu * unit, 1 / (unit * node.divisor) - options.penalty
        sizes = np.stack([_tails(gamma, options.penalty, count) for gamma in gammas])
        if release.disjoint and node.rate < 1:
            draws = _disjoint_draws(node.rate, count)
        else:
            draws = _independent_draws(node.rate, count)
        if len(draws[0][1]) != count:  # only the number of hits
            sizes = sizes.mean(1, keepdims=True)
    nobody = 0.0
    if law == "change":
        rate, _ = round_sampling(release.node_run(node, range(steps)))
        draws = _independent_draws(rate, 1)
        if release.setup.sampling == "poisson":
            nobody = (1 - rate) ** (node.records - 1)
    bound, (signs, older) = release.clip.bound(0) or 1.0, sign_schedule(plan, steps)
    return Known(
        rate=node.rate,
        batch=node.expected_batch,
        mu=mu,
        law=law,
        noise="laplace" if release.algorithm.releases.noise.norm == "l1" else "gaussian",
        draws=draws,
        sizes=sizes,
        nobody=nobody,
        signs=signs,
        older=older,
        difference=min(2.0, (getattr(options, "clip_difference", None) or np.inf) / bound),
        every=steps if law == "table" else getattr(options, "anchor_every", steps),
        fresh=getattr(options, "gradient_share", 0.0),
        epoch=node.epoch_steps if release.setup.sampling == "allocation" else 0,
    )


def _independent_draws(rate: float, count: int) -> tuple[tuple[float, tuple[int, ...]], ...]:
    """Every mini-batch draws the record by a coin of its own; of very many, how many do."""
    if rate == 1:
        return ((1.0, (1,) * count),)
    if count > MOST_LOCAL_STEPS:
        hits = np.arange(count + 1)
        return tuple(zip(binom.pmf(hits, count, rate), ((int(hit),) for hit in hits), strict=True))
    patterns = itertools.product((0, 1), repeat=count)
    return tuple(
        (rate ** sum(pattern) * (1 - rate) ** (count - sum(pattern)), pattern)
        for pattern in patterns
    )


def _disjoint_draws(rate: float, count: int) -> tuple[tuple[float, tuple[int, ...]], ...]:
    """At most one mini-batch draws the record."""
    hits = tuple((rate, tuple(int(part == hit) for part in range(count))) for hit in range(count))
    return ((1 - count * rate, (0,) * count), *hits)


def _tails(gamma: float, penalty: float, count: int) -> Array:
    """How far a hit at each local step moves the mean of the iterates."""
    powers = (gamma / (gamma + penalty)) ** np.arange(count)
    return np.asarray(np.cumsum(powers)[::-1] / count, np.float64)


# Mixtures, step by step.

Side = Sequence[tuple[Any, Any]]
"""Pairs of a chance and a place in units of the noise, each a number or `[steps, 1]`."""


def likelihood_ratio(problem: Problem) -> Callable[[Array, Known], Array]:
    """Log of the likelihood of D over that of D', `[nodes]`, along the canary's direction."""

    def ratio(y: Array, known: Known) -> Array:
        return _by_mixtures(y[:, :, CANARY], known, _sides(problem, known))

    return ratio


def opposed_ratio(y: Array, known: Known) -> Array:
    """How far the sum falls short of the batch that was expected."""
    full = known.batch * known.mu[:, None]
    present = [(chance, full - 2 * place) for chance, place in _hits(known)]
    return _by_mixtures(y[:, :, CROWD], known, (present, [(1.0, full)]))


def _by_mixtures(y: Array, known: Known, sides: tuple[Side, Side]) -> Array:
    """The sum over steps of the log-ratio of the two mixtures."""
    present, absent = sides
    ratios = _log_mixture(y, present, known) - _log_mixture(y, absent, known)
    ratios = np.where(np.isfinite(y), ratios, 0.0)  # whoever released nothing shows nothing
    if known.epoch > 1:
        return _once_an_epoch(ratios, known.epoch)
    return np.asarray(ratios.sum(0), np.float64)


def _once_an_epoch(ratios: Array, steps: int) -> Array:
    """The log-ratio of all steps, from that of each with the chance of one of so many, `[nodes]`.

    A step's ratio is 1 + (R - 1) / t, R that of a step that draws the record; an epoch's is
    1 + the sum of (R - 1) / t, since the record is drawn at one of its steps.
    """
    total = np.zeros(ratios.shape[1])
    for first in range(0, len(ratios), steps):
        moved = np.expm1(ratios[first : first + steps]).sum(0)
        total += np.log1p(np.maximum(moved, -1 + 1e-12))
    return total


def _log_mixture(y: Array, side: Side, known: Known) -> Array:
    with np.errstate(divide="ignore"):  # where a step has but one outcome
        terms = [np.log(chance) + _log_density(y - place, known) for chance, place in side]
    return np.asarray(np.logaddexp.reduce(terms), np.float64)


def _log_density(y: Array, known: Known) -> Array:
    """Log of the noise's density, but for a constant, which is 0 where nothing is known."""
    density = -np.abs(y) if known.noise == "laplace" else -(y**2) / 2
    return np.where(np.isnan(density), 0.0, density)


def _hits(known: Known) -> Side:
    """What the record does in a step, over all its coins."""
    mu = known.mu[:, None]
    return [
        (chance, mu * (known.sizes @ np.asarray(hits, np.float64))[:, None])
        for chance, hits in known.draws
        if chance > LEAST_CHANCE
    ]


def _sides(problem: Problem, known: Known) -> tuple[Side, Side]:
    """D and D', from what the record does in one step."""
    mu, hits = known.mu[:, None], _hits(known)
    nothing: Side = [(1.0, 0.0 * mu)]
    if known.law == "change":
        drawn = sum(chance for chance, place in hits if np.any(place))
        others = [(1 - known.nobody, -mu), (known.nobody, 0.0 * mu)]
        others = [(chance, place) for chance, place in others if chance > LEAST_CHANCE]
        if drawn == 1:
            return [(1.0, mu)], others
        return [(drawn, mu), *(((1 - drawn) * chance, place) for chance, place in others)], others
    if known.law in ("table", "snapshot", "anchors", "steps"):
        hits = _differences(known)
    if problem.others[0] < 0:  # whoever the canary displaces is its opposite
        base = -known.batch * known.sizes.sum(1, keepdims=True) * mu
        return [(chance, base + 2 * place) for chance, place in hits], [(1.0, base)]
    if problem.instead is None:
        return hits, nothing
    return hits, [(chance, -place) for chance, place in hits]


def _differences(known: Known) -> Side:
    """What is kept of the record, and its change where drawn; chances and places `[steps, 1]`.

    At an anchor, a snapshot, or where a table is filled, every record is drawn and nothing changes.
    """
    taken = np.arange(len(known.mu)) % known.every == 0
    at = np.where(taken, known.signs, known.older)
    moved = np.clip(known.signs - at, -known.difference, known.difference)
    if known.law in ("table", "snapshot"):
        kept = known.rate * at
        drawn, missed = kept + moved, kept
    else:
        moved = known.fresh * known.signs + (1 - known.fresh) * moved
        drawn, missed = np.where(taken, at, moved), np.zeros_like(at)
    chance = np.where(taken, 1.0, known.rate)
    return [
        (chance[:, None], (known.mu * drawn)[:, None]),
        (1 - chance[:, None], (known.mu * missed)[:, None]),
    ]
