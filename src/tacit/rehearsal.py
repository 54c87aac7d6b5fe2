"""How long a process of a cluster computes: a few steps of its nodes, with nobody to talk to.

Nothing leaves this process, nothing is written, and the keys are thrown away: no privacy is spent.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.cluster.forecast import Forecast, forecast, parse_links
from tacit.cluster.traffic import traffic
from tacit.compression import Coding
from tacit.data import StackedData
from tacit.exchange.server import mean_of_rows
from tacit.placement import place
from tacit.prepare import Job
from tacit.spending import node_keys
from tacit.world import StackedWorld

__all__ = ["foretell", "seconds_a_step"]

_STEPS = 7


def foretell(job: Job, cluster: str) -> Forecast:
    """What a step and the run would take on a cluster.

    Args:
        job: prepared in this process, with all nodes' records.
        cluster: its links, as `bandwidth=10Gbit,latency=1ms,processes=64`.

    Raises:
        InputError: on `--cluster`, naming the part that is wrong, or if there are more processes
            than nodes.
    """
    links = parse_links(cluster)
    placement = place(len(job.plan.nodes), links.processes, job.config.nodes.placement)
    blocks = [placement.hosted(rank) for rank in range(links.processes)]
    largest = max(blocks, key=len)
    return forecast(
        traffic(job.plan, placement, job.dtype),
        links,
        compute=seconds_a_step(job, largest),
        nodes=len(largest),
        steps=job.plan.steps,
    )


def seconds_a_step(job: Job, hosted: Sequence[int]) -> float:
    """The median time of a step of some of the nodes, in seconds, after a first one."""
    chosen, model = job.config.algorithm, job.model
    world = StackedWorld(
        job.plan,
        model,
        _part(job.train, hosted),
        node_keys(job.plan, hosted),
        _Nobody(len(hosted)),
        hosted,
    )
    start = model.start(len(hosted), job.dtype, job.device)
    state = chosen.definition.start(start, chosen.options, world)
    times = []
    for k in range(min(_STEPS, job.plan.steps)):
        began = time.perf_counter()
        state = chosen.definition.step(state, k, chosen.options, world)
        float(chosen.definition.models(state).sum())  # waits for a device
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:] or times)


def _part(train: StackedData, hosted: Sequence[int]) -> StackedData:
    """The records of some of the nodes."""
    rows = torch.as_tensor(hosted, device=train.sizes.device)
    return StackedData(train.inputs, train.targets, train.offsets[rows], train.sizes[rows])


class _Nobody:
    """An exchange that gives back what it gets."""

    def __init__(self, nodes: int) -> None:
        self.bytes_sent: NDArray[np.int64] = np.zeros(nodes, np.int64)

    def mix(self, k: int, *values: Tensor, coding: Coding | None = None) -> tuple[Tensor, ...]:
        """See `Exchange`."""
        return tuple(value.clone() for value in values)

    def swap(self, k: int, partner: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        """See `Exchange`."""
        return tuple(value.clone() for value in values)

    def average(
        self, k: int, *values: Tensor, latest: bool = False, coding: Coding | None = None
    ) -> tuple[Tensor, ...]:
        """See `Exchange`."""
        return tuple(map(mean_of_rows, values))
