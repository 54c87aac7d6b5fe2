"""What the processes of a run speak through: the exchange, and the gathering of metrics."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from itertools import combinations
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from tacit.communication.colours import Outgoing, opened
from tacit.communication.exchange import BetweenProcesses, Exchange, Graphs, InProcessExchange
from tacit.communication.exchange.protocol import Active, everybody
from tacit.communication.masks import PairMasks
from tacit.communication.pair_keys import agreed_pair_keys
from tacit.communication.received import METRICS, TOKEN, Metrics
from tacit.errors import InputError
from tacit.report.documents.base import plain_json
from tacit.training.evaluation import MetricsPart
from tacit.training.faults import effective
from tacit.training.prepare import Job

if TYPE_CHECKING:
    from tacit.communication.cluster import Cluster
    from tacit.communication.cluster.gathering import Gatherer

__all__ = ["Communication", "graphs_of", "local_exchange", "open_communication"]


_MEASURED = "what a process measured of its nodes"


class Communication(Protocol):
    """What a run's steps and marks go through; it takes what is `Public` or `Released`.

    Attributes:
        exchange: for the algorithm.
    """

    @property
    def exchange(self) -> Exchange:
        """For the algorithm."""

    def put(self, step: int, part: Outgoing[MetricsPart]) -> None:
        """Hand over what this process measured after `step` steps; returns at once."""

    def ready(self) -> list[tuple[int, list[MetricsPart]]]:
        """Steps of which all processes' parts have come, in order; only at rank 0."""

    def finish(self) -> None:
        """Wait, within limits, for all that was handed over."""

    def mean(self, models: Outgoing[Tensor]) -> Tensor:
        """The mean `[d]` of all nodes' models, given those of this process `[nodes, d]`."""


class _LocalCommunication:
    """All nodes are here."""

    def __init__(self, job: Job) -> None:
        self.exchange: Exchange = local_exchange(job)
        self._parts: list[tuple[int, list[MetricsPart]]] = []

    def put(self, step: int, part: Outgoing[MetricsPart]) -> None:
        """Its part is all there is."""
        self._parts.append((step, [opened(part, _MEASURED)]))

    def ready(self) -> list[tuple[int, list[MetricsPart]]]:
        """What was put since."""
        parts, self._parts = self._parts, []
        return parts

    def finish(self) -> None:
        """Nothing is under way."""

    def mean(self, models: Outgoing[Tensor]) -> Tensor:
        """Of the rows."""
        return opened(models, "a node's model").mean(0)


class _ProcessCommunication:
    """Nodes are in several processes."""

    def __init__(self, job: Job, exchange: BetweenProcesses, gatherer: Gatherer[Metrics]) -> None:
        self.exchange: Exchange = exchange
        self._mean = exchange.mean_of_all
        self._gatherer = gatherer
        self._limit = job.config.train.timeout

    def put(self, step: int, part: Outgoing[MetricsPart]) -> None:
        """Sent to rank 0 by a thread."""
        values, total = opened(part, _MEASURED)
        self._gatherer.put(step, Metrics.model_validate(plain_json(values)), total)

    def ready(self) -> list[tuple[int, list[MetricsPart]]]:
        """Complete steps."""
        return [
            (step, [(_measured(document), total) for document, total in parts])
            for step, parts in self._gatherer.ready()
        ]

    def finish(self) -> None:
        """All that was put has left, and at rank 0 has come."""
        self._gatherer.finish(self._limit)

    def mean(self, models: Outgoing[Tensor]) -> Tensor:
        """By way of rank 0."""
        return self._mean(models)


@contextmanager
def open_communication(job: Job, cluster: Cluster | None) -> Iterator[Communication]:
    """The communication of a run, closed at its end; without a cluster, that of one process."""
    if cluster is None:
        yield _LocalCommunication(job)
        return
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    from tacit.communication.cluster.channel import open_channel
    from tacit.communication.cluster.gathering import open_gatherer

    timeout = job.config.train.timeout
    with ExitStack() as stack:
        os.environ.update(cluster.settings)  # which interface gloo binds to
        cluster.hosts = [job.placement.hosted(number) for number in range(cluster.processes)]
        rank, processes = cluster.rank, cluster.processes
        # Where the process groups of this attempt find each other.
        token, *_ = cluster.share("process group", secrets.token_hex(8), TOKEN)
        store = PrefixStore(
            f"tacit/{token}",
            TCPStore(
                cluster.place.address,
                cluster.place.port,
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=cluster.timeout),
            ),
        )
        channel = open_channel(
            store,
            rank,
            processes,
            job.device,
            timeout,
            cluster.diagnose,
            cluster.waiting,
            patience=timeout - cluster.to_blame,
        )
        stack.callback(channel.close)
        gatherer = open_gatherer(store, rank, processes, METRICS, timeout, cluster.diagnose)
        stack.callback(gatherer.close)
        exchange = BetweenProcesses(
            channel,
            job.placement.ranks,
            graphs_of(job),
            dtype=job.dtype,
            device=job.device,
            tolerate=job.config.faults.tolerate,
            masks=_masks(job, cluster),
        )
        yield _ProcessCommunication(job, exchange, gatherer)


def _masks(job: Job, cluster: Cluster) -> PairMasks | None:
    """This process's masks for secure sums, with keys of this start; None without such sums.

    Raises:
        InputError: on `privacy.colluding`, a process hosts more clients than that.
    """
    sums = job.plan.release.sums
    if sums is None:
        return None
    hosted = [len(job.placement.hosted(rank)) for rank in range(cluster.processes)]
    if sums.colluding < max(hosted):
        raise InputError(
            "privacy.colluding",
            sums.colluding,
            f"must be at least {max(hosted)}: the process of rank {hosted.index(max(hosted))} "
            "hosts so many clients, and knows all that they know; or give each process fewer "
            "(nodes.placement)",
            public=True,
        )
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
        arrives=_arrives(job),
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
        arrives=_arrives(job),
        rounds=plan.rounds,
    )


def _measured(document: Metrics) -> dict[str, Any]:
    """As `tacit.training.evaluation.measure` makes it: what was not finite is no number again."""
    report = document.model_dump()
    if report["spread"] is None:
        report["spread"] = math.inf
    scores = report["scores"]
    if scores is not None:
        for name in ("accuracy", "loss"):
            values = scores[name]
            if values is not None:
                scores[name] = _numbers(values)
        if scores["consensus_loss"] is None:
            scores["consensus_loss"] = math.nan
        scores["metrics"] = [_numbers(values) for values in scores["metrics"]]
        scores["consensus_metrics"] = _numbers(scores["consensus_metrics"])
    return report


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _arrives(job: Job) -> Active:
    """Whose messages reach the server."""
    return everybody if job.plan.faults is None else job.plan.faults.arrives
