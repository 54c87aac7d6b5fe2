"""Noise that cancels between nodes who share a secret, as a run plans it.

Node i adds noise of its own and, for each of its partners, noise of the pair, which the partner
subtracts. In units of the **mean** over a batch, at noise shape 1 and clipping bound 1, the own
noise has standard deviation a_i and that of every pair b. What observers and colluders together can
learn of a record of node i is what they could learn from one sum whose noise is larger than the own
noise by a *gain* (`tacit.privacy.pairwise_multipliers`, `docs/proofs/pairwise-noise.md`). The gain
depends on the ratios of all deviations alone, so that clipping and noise shape leave it as it is;
who is active at a step decides which pairs there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.config import Config
from tacit.errors import InputError
from tacit.privacy.noise.pairwise import LEAST_POINTS
from tacit.privacy.pairwise import multipliers_of_steps
from tacit.topology.graphs import GraphSchedule, complete, k_regular

Pair = tuple[int, int]

# Variance of what is not known of a pair's noise, over the square of its lattice's spacing, from
# which on the lattice changes no density by more than a relative 2^-100.
_LEAST_COVER = 3.6
_STEP = math.log(1.02)


@dataclass(frozen=True, eq=False)
class PairNoise:
    """The noise of all pairs of a run.

    Args:
        pairs: the nodes that share a secret, the smaller number first, ascending.
        own: standard deviation of each node's own noise in the mean over its batch, at noise shape
            1 and clipping bound 1, `[nodes]`.
        deviation: standard deviation of a pair's noise, likewise.
        colluding: how many nodes may pool all that they know.
        active: who takes part when, bool `[steps, nodes]`; None: everybody always.
    """

    pairs: tuple[Pair, ...]
    own: tuple[float, ...]
    deviation: float
    colluding: int
    active: NDArray[np.bool_] | None = None

    @property
    def ratio(self) -> float:
        """The deviation of a pair's noise over the root mean square of the nodes' own."""
        return self.deviation / root_mean_square(self.own)

    @cached_property
    def gains(self) -> NDArray[np.float64]:
        """What the own noise counts for, over what it is, never rounded up: `[steps, nodes]`.

        One row where all take part in every step.
        """
        active = np.ones((1, len(self.own)), np.bool_) if self.active is None else self.active
        shared = dict.fromkeys(self.pairs, self.deviation)
        found = multipliers_of_steps(self.own, shared, self.colluding, active)
        # A quotient that is rounded down stays a lower bound.
        # To parts of 2^30, so that nodes that are alike do not differ in their last digits.
        gains = np.floor(np.nextafter(found / self.own, 0.0) * 2.0**30) / 2.0**30
        if self.active is not None:
            # To steps of 2 %: the accountant takes its time for every multiplier of its own.
            gains = np.exp(np.floor(np.log(gains) / _STEP) * _STEP) * (1 - 1e-12)
        return np.maximum(gains, 1.0)

    @property
    def typical_gains(self) -> NDArray[np.float64]:
        """An average over the steps in which a node takes part, for a first guess: `[nodes]`."""
        weights = np.ones(self.gains.shape) if self.active is None else self.active.astype(float)
        mean = (weights / self.gains**2).sum(0) / np.maximum(weights.sum(0), 1.0)
        return 1.0 / np.sqrt(np.where(mean > 0, mean, 1.0))

    def gain(self, node: int, k: int) -> float:
        """That of one node at step k."""
        steps, nodes = self.gains.shape
        return float(self.gains[k if steps > 1 else 0, node % nodes])

    def against(self, colluding: int) -> PairNoise:
        """The same noise, before another number of nodes who pool what they know."""
        return replace(self, colluding=min(colluding, len(self.own) - 1))

    def scaled(self, factor: float) -> PairNoise:
        """With so much more of all noise: every gain stays as it is."""
        own = tuple(factor * std for std in self.own)
        return replace(self, own=own, deviation=factor * self.deviation)

    def identity(self) -> list[Any]:
        """What tells it from other noise of pairs."""
        return [self.deviation, self.colluding, *map(list, self.pairs)]

    @property
    def most(self) -> float:
        """The largest `ratio` that may be: beyond, the lattice of pair noise would show through.

        The lattice must be fine beside the own noises that cover it at both ends of a pair; see
        `docs/proofs/pairwise-noise.md`.
        """
        inverse = 1.0 / np.square(self.own)
        largest = max(float(inverse[i] + inverse[j]) for i, j in self.pairs)
        most = (LEAST_POINTS**2 / _LEAST_COVER - 1.0) / largest
        return math.sqrt(most) / root_mean_square(self.own)


def root_mean_square(values: Sequence[float]) -> float:
    """Of some numbers."""
    return math.sqrt(math.fsum(value**2 for value in values) / len(values))


def partners(config: Config, schedule: GraphSchedule) -> tuple[Pair, ...]:
    """The pairs of nodes that share a secret, as `[topology].partners` says.

    For `"graph"` they are who ever sends to whom in `schedule`, both ways.

    Raises:
        InputError: on `topology.partners`, a node would have no partner.
    """
    count = config.nodes.count
    chosen, _, degree = str(config.topology.partners).partition(":")
    graphs = schedule.graphs
    if chosen == "complete":
        graphs = (complete(count),)
    elif chosen == "circulant":
        graphs = (k_regular(count, int(degree)),)
    edges = {edge for graph in graphs for edge in graph.edges}
    pairs = tuple(sorted({(min(edge), max(edge)) for edge in edges}))
    lonely = set(range(count)) - {node for pair in pairs for node in pair}
    if lonely:
        raise InputError(
            "topology.partners",
            config.topology.partners,
            f"leaves node {min(lonely)} without a partner: choose another graph, 'complete' or "
            "'circulant:K'",
        )
    return pairs
