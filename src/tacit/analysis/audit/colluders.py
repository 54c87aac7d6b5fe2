"""What nodes who pool all that they know make of messages that carry noise of pairs.

An attack on a node's records may use the messages of all nodes, and all that some others of them
know: their records, their own noise and coins, and the noise of each pair that they are an end of.
The attacker here subtracts what they know. He is also told what the remaining nodes summed up
before it was noised, as the theorem of `docs/proofs/pairwise-noise.md` allows him. Of what is left
he takes the Gauss-Markov estimate of the node's own sum: the mean of all messages that are left,
weighed by the inverse of the covariance of their noise. Nothing else that he could compute says
more of the node's records (`docs/proofs/audits.md`, *Nodes who pool what they know*).

Every node's release in a step is taken in units of its own noise; noise of pairs and of nodes then
depend on the step by one common factor, so that weights depend on who takes part alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.analysis.audit.recorder import Trace, TracedRelease, pair_keys_of
from tacit.privacy.noise import pairwise
from tacit.privacy.noise.pairwise import PairKeys
from tacit.training.plan import Plan
from tacit.training.release import NodePlan
from tacit.training.shared_noise import PairNoise

Array = NDArray[np.float64]

MOST_TRIED = 5000
"""Sets of colluders times sets of active nodes that are compared; of more, one by one is added."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """The Gauss-Markov estimate of a node's own sum, from what nodes release in one step.

    Args:
        weights: of the releases of all nodes, each in units of its own noise; the estimate then has
            a noise of deviation 1, `[nodes]`. 0 for who is absent or colludes.
        gain: deviation of the estimate's noise over that of the node's own: how much smaller a move
            of the node's sum is in the estimate than in its own release.
    """

    weights: Array
    gain: float


def estimate_of(pairs: PairNoise, node: int, hidden: Sequence[int]) -> Estimate:
    """The estimate of one node's sum, where all nodes but `hidden` are absent or collude.

    The node is among the hidden ones, whose noise is not known to the attacker.
    """
    place = {number: row for row, number in enumerate(hidden)}
    own = np.array([pairs.own[number] for number in hidden])
    covariance = np.diag(own**2)
    for i, j in pairs.pairs:
        if i in place and j in place:
            for one, other in ((i, j), (j, i)):
                covariance[place[one], place[one]] += pairs.deviation**2
                covariance[place[one], place[other]] -= pairs.deviation**2
    row = np.linalg.solve(covariance, np.eye(len(own))[place[node]])
    precision = float(row[place[node]])
    weights = np.zeros(len(pairs.own))
    weights[list(hidden)] = row * own / math.sqrt(precision)
    return Estimate(weights, 1 / math.sqrt(precision) / pairs.own[node])


@dataclass(frozen=True, eq=False)
class Colluders:
    """Some nodes, `members` in ascending order, who pool what they know of another one, `node`.

    Estimates of the node's sum are one a step; None where it takes no part.
    """

    node: int
    members: tuple[int, ...]
    estimates: tuple[Estimate | None, ...]

    @property
    def gains(self) -> Array:
        """Of every step, 1 where the node takes no part, `[steps]`."""
        return np.array([1.0 if one is None else one.gain for one in self.estimates])


def colluders_of(plan: Plan, node: NodePlan, colluding: int, steps: int) -> Colluders | None:
    """So many colluders who learn most of a node in its first steps; None without noise of pairs.

    All sets are compared, or, where they are too many, the one is added again and again who tells
    most. Any set is an attack that the certificate covers.
    """
    pairs = plan.release.pairs
    if pairs is None:
        return None
    count = len(plan.nodes)
    flags = np.ones((steps, count), np.bool_)
    if plan.release.activity is not None:
        flags = plan.release.activity.active[:steps]
    taking = flags[:, node.node]
    shape = np.asarray(plan.release.noise_shape[:steps])[taking]
    sets, which = np.unique(flags[taking], axis=0, return_inverse=True)

    def each(members: Sequence[int]) -> list[Estimate]:
        """The estimate of each set of active nodes."""
        hidden = [[i for i in np.flatnonzero(on).tolist() if i not in members] for on in sets]
        return [estimate_of(pairs, node.node, numbers) for numbers in hidden]

    def told(members: Sequence[int]) -> float:
        """What a unit of the node's sum shows in all steps, squared."""
        gains = np.array([one.gain for one in each(members)])
        return float(((gains[which.ravel()] * shape) ** -2.0).sum())

    others = [number for number in range(count) if number != node.node]
    wanted = min(colluding, len(others))
    members: tuple[int, ...] = ()
    if math.comb(len(others), wanted) * len(sets) <= MOST_TRIED:
        members = max(itertools.combinations(others, wanted), key=told)
    else:
        for _ in range(wanted):
            left = [number for number in others if number not in members]
            members = max(((*members, number) for number in left), key=told)
    found = each(members)
    estimates: list[Estimate | None] = [None] * steps
    for step, number in zip(np.flatnonzero(taking).tolist(), which.ravel().tolist(), strict=True):
        estimates[step] = found[number]
    return Colluders(node.node, tuple(sorted(members)), tuple(estimates))


def drawn_pairs(
    plan: Plan, keys: PairKeys, chosen: Sequence[int], width: int, step: int, part: int = 0
) -> Array:
    """The noise of single pairs, as the product draws it and the smaller end adds it.

    It is `[chosen, width]`, in units of the mean over a batch; `chosen` are places of pairs among
    the keys. To have them one by one, the product is asked as if no two pairs shared a node.
    """
    apart = tuple((2 * place, 2 * place + 1) for place in range(len(keys.pairs)))
    ends = [2 * place for place in chosen]
    drawn = pairwise.pair_sums(
        PairKeys(apart, keys.keys),
        ends,
        None,
        [1.0] * len(ends),
        plan.release.pair_noise_std(step),
        width,
        step,
        part,
        torch.device("cpu"),
    )
    found: Array = drawn.dense().numpy()
    return found


def pooled(y: Array, trace: Trace, colluders: Colluders, copies: int) -> Array:
    """What colluders make of the releases of a run: the estimate of their node's sum in each copy.

    `y` is of all nodes, in units of their own noise, `[steps, nodes, d]`. So is what is returned,
    with noise of deviation 1 at the colluders' node in every copy, and NaN at others. The same
    nodes collude in each copy of the graph; the trace says what the attacker is told.
    """
    estimates = np.full(y.shape, math.nan)
    released = {release.step: release for release in trace.releases}
    own = slice(colluders.node, None, y.shape[1] // copies)
    keys = keys_of(colluders, trace.plan, copies)
    for step, values in enumerate(y):
        if step in released:
            found = estimated(values, trace.plan, released[step], colluders, keys, copies)
            estimates[step, own] = np.where(np.isfinite(values[own]), found, math.nan)
    return estimates


def keys_of(colluders: Colluders, plan: Plan, copies: int = 1) -> PairKeys:
    """The keys of pairs that colluders are an end of, in all copies of the graph."""
    nodes = len(plan.nodes) // copies
    known = [copy * nodes + member for copy in range(copies) for member in colluders.members]
    keys = pair_keys_of(plan, known)
    assert keys is not None
    return keys


def estimated(
    values: Array,
    plan: Plan,
    release: TracedRelease,
    colluders: Colluders,
    keys: PairKeys,
    copies: int = 1,
) -> Array:
    """The estimate of the colluders' node in one step, noise of deviation 1, `[copies, d]`.

    NaN in a step in which the node takes no part. `values` are what each node released, in units of
    its own noise, `[nodes, d]`. The plan is of all copies of the graph, with the `noise_seed` of
    the run; the release says what the attacker is told; `keys` are of the pairs that the colluders
    are an end of.
    """
    estimate, nodes = colluders.estimates[release.step], len(values) // copies
    if estimate is None:
        return np.full((copies, values.shape[1]), math.nan)
    told, noise = np.zeros_like(values), release.deviations
    units = np.divide(1.0, noise, out=np.zeros_like(noise), where=noise > 0)
    told[list(release.nodes)] = release.before.double().cpu().numpy() * units[:, None]
    told[colluders.node :: nodes] = 0.0  # of whom nothing is told
    pairs, active = plan.release.pairs, set(release.nodes)
    assert pairs is not None
    known = np.zeros_like(values)  # of the pairs that they are an end of
    chosen = [place for place, pair in enumerate(keys.pairs) if active.issuperset(pair)]
    if chosen:
        drawn = drawn_pairs(plan, keys, chosen, known.shape[1], release.step, release.part)
        shares = drawn * (pairs.deviation / plan.release.pair_noise_std(release.step))
        ends = np.array([keys.pairs[place] for place in chosen])
        np.add.at(known, ends[:, 0], shares)
        np.subtract.at(known, ends[:, 1], shares)
    told += known / np.asarray(pairs.own)[:, None]
    left = np.nan_to_num(values - told).reshape(copies, nodes, -1)
    return np.asarray(np.einsum("j,cjd->cd", estimate.weights, left), np.float64)
