"""Noise of other nodes that counts for a node: of pairs, which cancels, and in secure sums.

**Pairs.** Node i adds noise of its own and, for each of its partners, noise of the pair, which the
partner subtracts. In units of the **mean** over a batch, at noise shape 1 and clipping bound 1, the
own noise has standard deviation a_i and that of every pair b. What observers and colluders together
can learn of a record of node i is what they could learn from one sum whose noise is larger than the
own noise by a *gain* (`tacit.privacy.pairwise_multipliers`, `docs/proofs/pairwise-noise.md`). The
gain depends on the ratios of all deviations alone, so that clipping and noise shape leave it as it
is; who is active at a step decides which pairs there are.

**Sums.** In round k every participant has noise of one and the same deviation a(k), in units of the
mean over its batch, weighed, whatever its batch and its budget; the server sees the sum over the m
participants and no message alone. Before any t of them who pool what they know, the noise of m - t
hides a record, so that the own noise counts for sqrt(m - t) times what it is: its *gain*
(`tacit.privacy.noise.summands`, `docs/proofs/pairwise-noise.md`).

*One deviation for all.* The strictest budget decides it, and the others spend less than theirs.
Where all need the same noise that is the least in total; where they do not, its variance in the sum
is at most m / (m - t) times the least. The lattice is then common too, which the sum needs: its
spacing is a function of a(k).

*Rounding.* Values are divided by the batch in float64 before noise is added, which errs by a share
of 2^-53 of a sum of at most J clipped gradients: a record of up to J = 2^30 moves a value by less
than C (1 + 2^-21) / B. Deviations that should be equal may differ in their last bits. `_MARGIN` of
every gain pays for both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.communication.peers import Peers, Placement
from tacit.config import Config
from tacit.errors import InputError
from tacit.privacy.mechanisms.clipping import Clipping
from tacit.privacy.noise.pairwise import LEAST_POINTS
from tacit.privacy.noise.summands import MOST_PARTICIPANTS, MOST_POINTS, most_points
from tacit.privacy.pairwise import multipliers_of_steps
from tacit.report.wording import count_text
from tacit.topology.graphs import GraphSchedule, complete, k_regular

Pair = tuple[int, int]

# Variance of what is not known of a pair's noise, over the square of its lattice's spacing, from
# which on the lattice changes no density by more than a relative 2^-100.
_LEAST_COVER = 3.6
_STEP = math.log(1.02)
_MARGIN = 1.0 - 2.0**-20
_MOST_RECORDS = 1 << 30
SUMMAND_BYTES = 8
"""Of one number of a client's message: an int64."""


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

    def note(self, partners: object) -> str:
        """What it comes to, in one line; `partners` is what decides who shares a secret."""
        gains = self.typical_gains
        least, most = (f"{value:.3g}" for value in (gains.min(), gains.max()))
        counts = least if least == most else f"{least} to {most}"
        return (
            f"noise of pairs: {count_text(len(self.pairs), 'pair')} of nodes (partners = "
            f"'{partners}') with noise of {self.ratio:.3g} times the deviation of a "
            "node's own, which cancels in the mean; against "
            f"{count_text(self.colluding, 'colluding node')}, whichever they are, the own noise "
            f"counts {counts} times"
        )

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
    """The pairs of nodes that share a secret, as `[topology].partners` says: in ascending order.

    For `"graph"` they are who ever sends to whom in `schedule`, both ways. No node may lack one.
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


@dataclass(frozen=True, eq=False)
class SecureSums:
    """That the server of a run sees sums only.

    Args:
        nodes: how many clients there are.
        colluding: how many of them may pool all that they know, with the server too: between
            processes rank 0 is the server, and its own clients are among these.
        active: who takes part when, bool `[steps, nodes]`; None: everybody always.
    """

    nodes: int
    colluding: int
    active: NDArray[np.bool_] | None = None

    @cached_property
    def participants(self) -> NDArray[np.int64]:
        """How many take part: `[steps]`; one number where all do in every step."""
        if self.active is None:
            return np.array([self.nodes], np.int64)
        return np.asarray(self.active.sum(axis=1), np.int64)

    @property
    def most(self) -> int:
        """Participants of the largest round."""
        return int(self.participants.max())

    @cached_property
    def gains(self) -> NDArray[np.float64]:
        """What own noise counts for, over what it is: `[steps, 1]`, never rounded up.

        sqrt(m - t), and 1 where nobody honest would be left: its own noise is its own. The same
        for every participant; one row where all take part in every step.
        """
        honest = np.maximum(1, self.participants - self.colluding)
        return np.asarray(np.sqrt(honest) * _MARGIN, np.float64)[:, None]

    def gain(self, node: int, k: int) -> float:
        """That of one node in round k."""
        return float(self.gains[k if len(self.gains) > 1 else 0, 0])

    @property
    def note(self) -> str:
        """What they come to, in one line."""
        least, most = (
            f"{math.sqrt(max(1, int(m) - self.colluding)):.3g}"
            for m in (self.participants.min(), self.participants.max())
        )
        counted = least if least == most else f"{least} to {most}"
        return (
            "secure sums: the server sees the sum over a round's clients, and no message alone; "
            f"against it and {count_text(self.colluding, 'colluding client')}, whichever they are, "
            f"a client's own noise counts {counted} times; between processes the server is that of "
            "rank 0, whose own clients are among those that collude with it"
        )

    def against(self, colluding: int) -> SecureSums:
        """The same sums, before another number of clients who pool what they know."""
        return replace(self, colluding=colluding)


def most_value(bound: float, most: float) -> float:
    """The largest number that a client adds to a sum, without noise; for certain.

    At most every record is drawn, and contributes at most `bound` (C), or twice that where
    differences of gradients are added, to a sum that is divided by the share q of their number, and
    weighed. Twice that leaves room for any rounding. `most` is the largest weight / q of all
    clients.
    """
    return 4.0 * bound * most


def check_range(
    sums: SecureSums,
    clip: Clipping,
    deviations: Sequence[float],
    most: float,
    records: Sequence[int],
) -> None:
    """Refuse sums that could leave 64 bits; what is checked is public, and holds for certain.

    `deviations` are a(k) of every step, `most` is the largest weight / q of all clients, and
    `records` is J of each.

    Raises:
        InputError: on `privacy.aggregation`; on `algorithm.clip`, nothing is clipped.
    """
    if clip.bounds is None:
        expected = "must be given: secure sums hold numbers that are bounded before they are added"
        raise InputError("algorithm.clip", None, expected)
    if sums.most > MOST_PARTICIPANTS:
        expected = f"takes {MOST_PARTICIPANTS} clients a round at most, and there are {sums.most}"
        raise InputError("privacy.aggregation", "secure-sum", expected)
    if max(records) > _MOST_RECORDS:
        expected = f"is proved for clients of up to {_MOST_RECORDS} records"
        raise InputError("privacy.aggregation", "secure-sum", expected)
    for bound, deviation in set(zip(clip.bounds, deviations, strict=True)):
        largest = most_points(most_value(bound, most), deviation)
        if largest > MOST_POINTS:
            expected = (
                f"counts values in steps of about 1/100 of their noise, and here one could have "
                f"{largest:.3g} of them, above {MOST_POINTS:.3g}: choose larger batches, or more "
                "noise"
            )
            raise InputError("privacy.aggregation", "secure-sum", expected)


def check_pooled(colluding: int, members: str, placement: Placement, peers: Peers) -> None:
    """Refuse a process that hosts more nodes, or other `members`, than may pool what they know."""
    hosted = [len(placement.hosted(rank)) for rank in range(peers.processes)]
    if max(hosted) > colluding:
        raise InputError(
            "privacy.colluding",
            colluding,
            f"must be at least {max(hosted)}: the process of rank {hosted.index(max(hosted))} "
            f"hosts so many {members}, and knows all that they know; or give each process fewer "
            "(nodes.placement)",
            public=True,
        )
