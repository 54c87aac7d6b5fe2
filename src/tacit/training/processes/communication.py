"""What the processes of a run speak through: the exchange, and the gathering of metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import combinations
from typing import Protocol

import numpy as np
from torch import Tensor

from tacit.communication.colours import Outgoing, Released, opened
from tacit.communication.crew import Crew
from tacit.communication.exchange import BetweenProcesses, Exchange, Graphs, InProcessExchange
from tacit.communication.exchange.protocol import everybody
from tacit.communication.marks import Gatherer
from tacit.communication.masks import PairMasks
from tacit.communication.pair_keys import agreed_pair_keys
from tacit.topology.graphs import reached
from tacit.training.evaluation import Part, numbers_of, of_server, packed, unpacked
from tacit.training.faults import effective
from tacit.training.job import Job
from tacit.training.shared_noise import check_pooled

_MEASURED = "what a process measured of its nodes"


class Communication(Protocol):
    """What a run's steps and marks go through; it takes what is `Public` or `Released`."""

    @property
    def exchange(self) -> Exchange:
        """For the algorithm."""

    def put(self, step: int, part: Outgoing[Part]) -> None:
        """Hand over what this process measured after `step` steps; returns at once."""

    def ready(self) -> list[tuple[int, list[Part]]]:
        """Steps of which all processes' parts have come, in order; only at rank 0."""

    def finish(self) -> None:
        """Wait, within limits, for all that was handed over."""

    def mean(self, models: Outgoing[Tensor]) -> Tensor:
        """The mean `[d]` of all nodes' models, given those of this process `[nodes, d]`."""

    def from_server(self, model: Released[Tensor]) -> Tensor:
        """What rank 0 gives, `[1, d]`; every process gives something of this shape and dtype."""


class _LocalCommunication:
    """All nodes are here."""

    def __init__(self, job: Job) -> None:
        self.exchange: Exchange = local_exchange(job)
        self._parts: list[tuple[int, list[Part]]] = []

    def put(self, step: int, part: Outgoing[Part]) -> None:
        self._parts.append((step, [opened(part, _MEASURED)]))

    def ready(self) -> list[tuple[int, list[Part]]]:
        parts, self._parts = self._parts, []
        return parts

    def finish(self) -> None:
        """Nothing is under way."""

    def mean(self, models: Outgoing[Tensor]) -> Tensor:
        return opened(models, "a node's model").mean(0)

    def from_server(self, model: Released[Tensor]) -> Tensor:
        return model.value


class _ProcessCommunication:
    """Nodes are in several processes: parts and means go by way of rank 0."""

    def __init__(self, job: Job, exchange: BetweenProcesses, gatherer: Gatherer) -> None:
        self.exchange: Exchange = exchange
        self.mean, self.from_server = exchange.mean_of_all, exchange.from_server
        self._job, self._gatherer = job, gatherer

    def put(self, step: int, part: Outgoing[Part]) -> None:
        self._gatherer.put(step, packed(opened(part, _MEASURED)))

    def ready(self) -> list[tuple[int, list[Part]]]:
        return [(step, self._parts(vectors)) for step, vectors in self._gatherer.ready()]

    def _parts(self, vectors: Sequence[Tensor]) -> list[Part]:
        own = unpacked(vectors[0], self._job, 0)
        return [
            unpacked(vector, self._job, rank) if len(vector) else of_server(self._job, own, rank)
            for rank, vector in enumerate(vectors)
        ]

    def finish(self) -> None:
        self._gatherer.finish()


@contextmanager
def open_communication(job: Job, cluster: Crew | None) -> Iterator[Communication]:
    """The communication of a run, closed at its end; without a cluster, that of one process."""
    if cluster is None:
        yield _LocalCommunication(job)
        return
    with ExitStack() as stack:
        cluster.hosts = [job.placement.hosted(number) for number in range(cluster.processes)]
        cluster.expect(steps=job.plan.steps, largest=_largest_message(job, cluster.hosts))
        goes_on = _goes_on_without(job)
        absent = cluster.let_leave(goes_on, takes_back=job.config.takes_back)
        channel, gatherer = cluster.connect(job.device, *numbers_of(job), stack)
        exchange = BetweenProcesses(
            channel,
            job.placement.ranks,
            graphs_of(job),
            dtype=job.dtype,
            device=job.device,
            tolerate=job.config.faults.tolerate,
            masks=_masks(job, cluster),
            absent=absent,
        )
        yield _ProcessCommunication(job, exchange, gatherer)


def _largest_message(job: Job, hosts: Sequence[Sequence[int]]) -> int:
    """A bound on the bytes of what one process sends another: rows of all its nodes, or a part.

    Numbers have 8 bytes at most, and as many for their places where they are compressed.
    """
    chosen, d = job.config.algorithm, job.plan.parameters
    numbers = max(d, math.ceil(chosen.definition.graph.message_numbers(chosen.options, d)))
    part = 8 * (1 + max(numbers_of(job)[0]))
    return max(part, max(map(len, hosts)) * (16 * numbers + 2**12))


def _goes_on_without(job: Job) -> Callable[[frozenset[int]], bool] | None:
    """Whether the run can go on without the nodes of some ranks; None where it never can.

    It can where `[faults].tolerate` allows it, no noise of theirs cancels that of others and none
    hides the others' summands, so that every node's account stands on what it adds itself. And
    where the others' graph holds together.
    """
    mixing = job.plan.mixing
    if not job.config.goes_on_without:
        return None

    def goes_on(ranks: frozenset[int]) -> bool:
        if mixing.kind == "server":
            return True
        here = np.array([rank not in ranks for rank in job.placement.ranks])
        ends = [
            (weights.targets[kept], weights.sources[kept])
            for weights in mixing.weights
            for kept in [here[weights.targets] & here[weights.sources]]
        ]
        targets, sources = (np.concatenate(side) for side in zip(*ends, strict=True))
        first = int(np.argmax(here))
        onward = reached(len(here), sources, targets, first)
        back = reached(len(here), targets, sources, first)
        return bool((onward & back)[here].all())

    return goes_on


def _masks(job: Job, cluster: Crew) -> PairMasks | None:
    """This process's masks for secure sums, with keys of this start; None without such sums."""
    sums = job.plan.release.sums
    if sums is None:
        return None
    check_pooled(sums.colluding, "clients", job.placement, cluster)
    parties = [job.placement.hosted(rank)[0] for rank in range(cluster.processes)]
    pairs = list(combinations(sorted(parties), 2))
    keys = agreed_pair_keys(cluster, pairs, job.placement.ranks, "masks of sums")
    return PairMasks(parties[cluster.rank], keys)


def local_exchange(job: Job) -> InProcessExchange:
    """The exchange of a run in one process, faults that are simulated included."""
    plan = job.plan
    lossy = plan.faults is not None and plan.faults.lossy
    return InProcessExchange(
        effective(plan.mixing, plan.faults) if lossy else plan.mixing.weights,
        dtype=job.dtype,
        device=job.device,
        active=plan.release.active,
        arrives=everybody if plan.faults is None else plan.faults.arrives,
        rounds=plan.rounds,
    )


def graphs_of(job: Job) -> Graphs:
    """Who talks to whom, as the plan says."""
    plan = job.plan
    lossy = plan.faults is not None and plan.faults.lossy
    return Graphs(
        weights=effective(plan.mixing, plan.faults),
        period=None if lossy else len(plan.mixing.weights),
        kind=plan.mixing.kind,
        active=plan.release.active,
        arrives=everybody if plan.faults is None else plan.faults.arrives,
        rounds=plan.rounds,
    )
