"""What noise that cancels between pairs of nodes is worth to each node, against colluders.

*Mechanism.* Node i releases `G_i + eta_i + sum over its pairs e of s_ie zeta_e`. G_i moves by at
most 1 with a record of node i (the clip is the unit); eta_i ~ N(0, a_i^2 I) is its own noise; and
zeta_e ~ N(0, b_e^2 I) is known to the two ends of the pair e alone, which add it with opposite
signs.

*Trust model.* Everybody sees every release. Up to t colluders pool their records, noise and keys;
they and all others follow the protocol (honest but curious). *Relation:* that of the mechanism that
is stated with the multiplier.

*Theorem.* Let H be all nodes but the colluders. What the colluders see is a randomised function of
`G_i + N(0, sigma_i^2 I)` alone, where

    sigma_i^2 = 1 / [Sigma_H^-1]_ii,    Sigma_H = diag(a_j^2) + L_H,

L_H the Laplacian of the pairs within H with the weights b_e^2. So every theorem about a noised sum
holds with the noise multiplier sigma_i. It falls when pairs or nodes are taken away, so sets of
exactly t colluders are the worst. sigma_i^2 is the conductance between i and the ground in a
network where a_j^2 joins node j to the ground and b_e^2 joins the ends of e.

*Arithmetic.* Nodes are eliminated one after another without a subtraction (star to mesh;
Grassmann, Taksar and Heyman, 1985), and the diagonal of the inverse is a sum of squares. So all
rounding errors are relative: with n nodes the result errs by less than 3 (n + 2)^2 2^-53 of itself,
which is taken off. The proofs are in `docs/proofs/pairwise-noise.md`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InputError
from tacit.privacy.mechanisms.base import whole

# Within these, no square and no product of shares overflows, and what underflows is nothing.
_SMALLEST, _LARGEST = 2.0**-100, 2.0**100
# Sets of colluders times nodes cubed: up to this all sets are tried, in about half a second.
_MOST_WORK = 2e8
# Numbers that are worked on at once: those of a processor's cache.
_CHUNK = 1 << 16


def pairwise_multipliers(
    own: Sequence[float], pairs: Mapping[tuple[int, int], float], colluding: int
) -> list[float]:
    """The noise multiplier that each node can count on, against the worst set of colluders.

    Mechanism, trust model and theorem are in the module `tacit.privacy.pairwise`.

    Where all sets of `colluding` others can be tried in about half a second (100 nodes and one
    colluder, 20 nodes and five), the result is the exact minimum, less a relative 10^-11 or so for
    rounding. Where they cannot, it is a bound below it: of all pairs, node i counts on those of one
    tree of shortest ways from it, of which the colluders cut off the `colluding` best branches.

    Args:
        own: standard deviation of each node's own noise over the clip, `[nodes]`.
        pairs: for each pair of nodes `(i, j)` the standard deviation of its noise, in the same
            unit; 0 is no noise.
        colluding: how many others may pool all they know. From `nodes - 1` on, nothing but a node's
            own noise is left.

    Returns:
        A multiplier for each node, never above the true one, never below its own.

    Raises:
        InputError: a multiplier of `own` is not between 2^-100 and 2^100, one of `pairs` is not
            between 0 and 2^100, a pair is not of two different nodes or is named twice, or
            `colluding` is not a whole number from 0 on.
    """
    everybody = np.ones((1, len(own)), np.bool_)
    return [float(found) for found in multipliers_of_steps(own, pairs, colluding, everybody)[0]]


def pairwise_person(
    own: Sequence[float], pairs: Mapping[tuple[int, int], float], colluding: int, nodes: int
) -> float:
    """The noise multiplier that a person with records at several nodes can count on.

    Mechanism, trust model and units are those of `pairwise_multipliers`; *relation*: the sums of up
    to `nodes` nodes that do not collude move together, each by at most 1. *Theorem*: what the
    colluders see is no more than a sum that moves by 1 under noise of this multiplier,

        z^2 = min over sets S of so many nodes of H of 1 / (sum over i, j in S of [Sigma_H^-1]_ij),

    as no entry of the inverse is negative, so that all moves in one direction are the worst
    (`docs/proofs/units.md`). It is for sums over every record (`Gaussian`), over `rows` where a
    person has several at a node; where records are sampled, a step moves the person with the chance
    that any of all its rows is drawn.

    Where all sets can be tried in about half a second, the result is the exact minimum, less a
    relative 10^-11 or so for rounding; elsewhere a bound below it, the larger of what the nodes'
    own noise is worth and of the least of `pairwise_multipliers` over `nodes`.

    Raises:
        InputError: as there, or `nodes` is not a whole number of 1 or more.
    """
    multipliers, weights = _checked(own, pairs)
    count, bad, several = len(own), _colluders(colluding), min(whole("nodes", nodes), len(own))
    apart = math.fsum((1.0 / np.sort(multipliers)[:several] ** 2).tolist())
    best = max(apart**-0.5, min(pairwise_multipliers(own, pairs, bad)) / several)
    # Where so many collude that fewer nodes are left, the person is at all of these.
    sizes = [
        (k, max(count - bad, k)) for k in range(min(several, max(1, count - bad)), several + 1)
    ]
    work = sum(
        math.comb(count, left) * (float(left) ** 3 + math.comb(left, k) * k**2) for k, left in sizes
    )
    if work <= _MOST_WORK:
        worst = max(_together(multipliers**2, weights, k, left) for k, left in sizes)
        best = max(best, worst**-0.5)
    return float(best) * (1.0 - 4.0 * (count + 2.0) ** 2 * 2.0**-53)


def _together(
    ground: NDArray[np.float64], weights: NDArray[np.float64], several: int, left: int
) -> float:
    """The largest sum of entries of the inverse, over so many of so many that are left."""
    count = len(ground)
    honest = np.array(list(combinations(range(count), left)), np.intp)
    places = np.array(list(combinations(range(left), several)), np.intp)
    worst, step = 0.0, max(1, _CHUNK // max(left**2, len(places) * several**2))
    for start in range(0, len(honest), step):
        nodes = honest[start : start + step]
        within = weights[nodes[:, :, None], nodes[:, None, :]]
        entries = np.zeros((len(nodes), left, left))
        for k, (current, total) in enumerate(_eliminations(ground[nodes], within)):
            products = current[:, :, None] * current[:, None, :]
            entries[:, : k + 1, : k + 1] += products / total[:, :, None]
        sums = entries[:, places[:, :, None], places[:, None, :]].sum(axis=(2, 3))
        worst = max(worst, float(sums.max()))
    return worst


def multipliers_of_steps(
    own: Sequence[float],
    pairs: Mapping[tuple[int, int], float],
    colluding: int,
    active: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """`pairwise_multipliers` of steps in which some nodes are silent: `[steps, nodes]`.

    A pair has noise in the steps in which both its ends are active: `active` `[steps, nodes]` says
    who takes part when. A node that is silent has its own multiplier there. Steps with the same
    active nodes cost nothing more.

    Raises:
        InputError: as there.
    """
    multipliers, weights = _checked(own, pairs)
    others, ground = _colluders(colluding), multipliers**2
    sets, which = np.unique(active, axis=0, return_inverse=True)
    found = np.tile(multipliers, (len(sets), 1))
    sizes = sets.sum(axis=1)
    for size in set(sizes.tolist()):
        if others >= size - 1:
            continue
        rows = np.flatnonzero(sizes == size)
        members = np.nonzero(sets[rows])[1].reshape(len(rows), size)
        if math.comb(size, others) * float(size) ** 3 <= _MOST_WORK:
            conductances = _enumerated(ground, weights, members, others)
        else:
            conductances = _trees(ground, weights, members, others)
        kept = 1.0 - 3.0 * (size + 2.0) ** 2 * 2.0**-53
        counted = np.maximum(np.sqrt(conductances) * kept, multipliers[members])
        found[rows[:, None], members] = counted
    return found[which.ravel()]


def _checked(
    own: Sequence[float], pairs: Mapping[tuple[int, int], float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The nodes' own multipliers `[nodes]`, and the squares of those of pairs `[nodes, nodes]`."""
    count = len(own)
    for node, multiplier in enumerate(own):
        if not _SMALLEST < multiplier < _LARGEST:
            expected = "a noise multiplier between 2^-100 and 2^100"
            raise InputError(f"own[{node}]", multiplier, expected)
    weights = np.zeros((count, count))
    named = set()
    for (i, j), multiplier in pairs.items():
        where = f"pairs[{i!r}, {j!r}]"
        if not (i != j and _is_node(i, count) and _is_node(j, count)):
            raise InputError(where, (i, j), f"two different nodes from 0 to {count - 1}")
        if (j, i) in named:
            raise InputError(where, (i, j), "a pair that is named once, and not by both its orders")
        if not 0.0 <= multiplier < _LARGEST:
            raise InputError(where, multiplier, "a noise multiplier from 0 to 2^100")
        named.add((i, j))
        weights[i, j] = weights[j, i] = float(multiplier) ** 2
    return np.array(own, np.float64), weights


def _is_node(number: object, count: int) -> bool:
    return isinstance(number, int | np.integer) and 0 <= int(number) < count


def _colluders(colluding: int) -> int:
    try:
        number = operator.index(colluding)
    except TypeError:
        number = -1
    if number < 0:
        raise InputError("colluding", colluding, "a whole number of colluders, 0 or more")
    return number


def _enumerated(
    ground: NDArray[np.float64],
    weights: NDArray[np.float64],
    members: NDArray[np.intp],
    colluding: int,
) -> NDArray[np.float64]:
    """The least conductance of every member, over all sets of so many others: `[groups, members]`.

    `ground` `[nodes]` and `weights` `[nodes, nodes]` are conductances to the ground and between
    nodes, `members` `[groups, members]` nodes that are there together, of whom so many collude.
    """
    groups, count = members.shape
    honest = np.array(list(combinations(range(count), count - colluding)), np.intp)
    worst = np.zeros(members.shape)  # resistances
    total, step = groups * len(honest), max(1, _CHUNK // count**2)
    for start in range(0, total, step):
        group, choice = np.divmod(np.arange(start, min(start + step, total)), len(honest))
        places = honest[choice]
        nodes = members[group[:, None], places]
        within = weights[nodes[:, :, None], nodes[:, None, :]]
        resistances = np.zeros(nodes.shape)
        for k, (current, conductance) in enumerate(_eliminations(ground[nodes], within)):
            resistances[:, : k + 1] += current**2 / conductance
        np.maximum.at(worst, (group[:, None], places), resistances)
    return 1.0 / worst


def _eliminations(
    ground: NDArray[np.float64], weights: NDArray[np.float64]
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """What each node k passes on when it is eliminated, and its conductance to all others then.

    Conductances to the ground, `[networks, nodes]`, and between nodes, `[networks, nodes, nodes]`,
    are changed.

    Yields:
        Of a unit current into each of the nodes up to k, what node k passes on,
        `[networks, k + 1]`; and the conductance, `[networks, 1]`.
    """
    networks, count = ground.shape
    # Of a unit current into node i, what node k passes on when it is eliminated: [.., k, i].
    passed = np.broadcast_to(np.eye(count), (networks, count, count)).copy()
    for k in range(count):
        row = weights[:, k, k + 1 :]
        total = (ground[:, k] + row.sum(axis=1))[:, None]
        share = row / total
        ground[:, k + 1 :] += share * ground[:, k, None]
        weights[:, k + 1 :, k + 1 :] += share[:, :, None] * row[:, None, :]
        current = passed[:, k, : k + 1]
        passed[:, k + 1 :, : k + 1] += share[:, :, None] * current[:, None, :]
        yield current, total


def _trees(
    ground: NDArray[np.float64],
    weights: NDArray[np.float64],
    members: NDArray[np.intp],
    colluding: int,
) -> NDArray[np.float64]:
    """A bound below it, likewise: what a tree of each node's own leaves."""
    bounds = np.empty(members.shape)
    for group, nodes in enumerate(members):
        within = weights[np.ix_(nodes, nodes)]
        partners = [np.flatnonzero(row).tolist() for row in within]
        bounds[group] = [
            _tree(node, ground[nodes], within, partners, colluding) for node in range(len(nodes))
        ]
    return bounds


def _tree(
    root: int,
    ground: NDArray[np.float64],
    weights: NDArray[np.float64],
    partners: Sequence[Sequence[int]],
    colluding: int,
) -> float:
    """The root's conductance in a tree of shortest ways, without its so many best branches."""
    parents = _parents(root, partners)
    reached = ground.tolist()
    branches = []
    for node, parent in reversed(parents.items()):
        branch = 1.0 / (1.0 / float(weights[parent, node]) + 1.0 / reached[node])
        if parent == root:
            branches.append(branch)
        else:
            reached[parent] += branch
    kept = sorted(branches)[: max(0, len(branches) - colluding)]
    return float(ground[root]) + math.fsum(kept)


def _parents(root: int, partners: Sequence[Sequence[int]]) -> dict[int, int]:
    """The parent of every node that the root reaches, near ones first, with few children each."""
    parents: dict[int, int] = {}
    layer, seen = [root], {root}
    while layer and len(seen) < len(partners):
        found: dict[int, list[int]] = {}
        for parent in layer:
            for node in partners[parent]:
                if node not in seen:
                    found.setdefault(node, []).append(parent)
        children = dict.fromkeys(layer, 0)
        for node, known in found.items():
            parents[node] = min(known, key=children.__getitem__)
            children[parents[node]] += 1
        layer = list(found)
        seen.update(layer)
    return parents
