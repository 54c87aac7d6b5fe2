"""What a step of an experiment takes on a cluster: measured here, and forecast for given links.

`python benchmarks/cluster/forecast_job.py FILE bandwidth=10Gbit,latency=1ms,processes=64` runs a
few steps of the largest block in this process, and adds what messages would take on such links. It
needs the records of all nodes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from forecast import Forecast, forecast, forecast_document, parse_links
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import Tensor
from traffic import traffic

from tacit.communication.compression import Coding
from tacit.communication.exchange import Exchange
from tacit.communication.exchange.protocol import Message, descent_of, message_values
from tacit.communication.exchange.rows import Mixer, compile_rows
from tacit.communication.peers import Placement, place
from tacit.config import load_config
from tacit.errors import InputError, TacitError
from tacit.privacy.noise.draws import seeded_keys
from tacit.report.wording import bytes_text
from tacit.training.job import Job
from tacit.training.prepare import prepare
from tacit.training.stacked_context import StackedContext

_STEPS, _SECONDS = 20, 3.0  # measured at most; at least one, after one that is not


def cluster_forecast(job: Job, asked: str) -> Forecast:
    """What a step of a job takes on a cluster.

    A few steps of the largest block are run here, on seeded keys: nothing of them is released.

    Args:
        job: with the records of all nodes.
        asked: the links: `bandwidth=10Gbit,latency=1ms,processes=64`.

    Raises:
        InputError: on `LINKS`, or on `nodes.placement` where it is for another number of
            processes.
    """
    links, plan = parse_links(asked), job.plan
    if links.processes > len(plan.nodes):
        expected = f"must be at most {len(plan.nodes)}, the nodes"
        raise InputError("LINKS", f"processes={links.processes}", expected)
    placement = place(len(plan.nodes), links.processes, job.config.nodes.placement)
    hosted = _largest(placement)
    return forecast(
        traffic(plan, placement, job.dtype),
        links,
        compute=step_seconds(job, hosted),
        nodes=len(hosted),
        steps=plan.steps,
    )


def _largest(placement: Placement) -> tuple[int, ...]:
    blocks = (placement.hosted(rank) for rank in range(placement.processes))
    return max(blocks, key=len)


def step_seconds(job: Job, hosted: Sequence[int], *, limit: float = _SECONDS) -> float:
    """Seconds that a step of some nodes takes in this process, without messages: a median.

    Args:
        job: with the records of all nodes.
        hosted: which nodes, ascending.
        limit: seconds after which no further step begins.
    """
    algorithm, options = job.config.algorithm.definition, job.config.algorithm.options
    context = block_context(job, hosted, Within(job, hosted))
    start = job.model.start(len(hosted), job.dtype, job.device)
    state = algorithm.step(algorithm.start(start, options, context), 0, options, context)
    took: list[float] = []
    while not took or (len(took) < _STEPS and sum(took) < limit):
        began = _now(job.device)
        state = algorithm.step(state, min(len(took) + 1, job.plan.steps - 1), options, context)
        took.append(_now(job.device) - began)
    return float(np.median(took))


def block_context(job: Job, hosted: Sequence[int], exchange: Exchange) -> StackedContext:
    """The context of some nodes, on seeded keys: nothing of it may be released.

    Args:
        job: with the records of all nodes.
        hosted: which nodes, ascending.
        exchange: moves messages.
    """
    rows = torch.tensor(hosted, device=job.train.offsets.device)
    # The same records, read at other places.
    own = replace(job.train, offsets=job.train.offsets[rows], sizes=job.train.sizes[rows])
    return StackedContext(job.plan, job.model, own, seeded_keys(0, hosted), exchange, hosted)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class Within:
    """An exchange of some nodes with themselves: the local work of mixing, without messages.

    Args:
        job: says how they are mixed.
        hosted: which nodes.
    """

    def __init__(self, job: Job, hosted: Sequence[int]) -> None:
        self.bytes_sent: NDArray[np.int64] = np.zeros(len(hosted), np.int64)
        self.dropped: dict[int, int] = {}
        self._hosted = hosted
        self._job = job
        self._mixers: dict[int, Mixer] = {}

    def mix(
        self,
        k: int,
        *messages: Message,
        coding: Coding | None = None,
        descent: tuple[Message, float] | None = None,
        extra: int = 0,
    ) -> tuple[Tensor, ...]:
        """What stays within these nodes."""
        values, first = message_values("mix", k, messages), descent_of(k, descent)
        number = k * self._job.plan.rounds + extra
        mixer = self._mixer(number % len(self._job.plan.mixing.weights))
        return tuple(map(mixer.begin, values, (first, *(None for _ in values[1:]))))

    def _mixer(self, k: int) -> Mixer:
        if k not in self._mixers:
            weights, job = self._job.plan.mixing.at(k).among(self._hosted), self._job
            nodes = range(weights.nodes)
            self._mixers[k] = compile_rows(weights, nodes=nodes, dtype=job.dtype, device=job.device)
        return self._mixers[k]

    def swap(self, k: int, partner: Tensor, *messages: Message) -> tuple[Tensor, ...]:
        """Everyone is paired with itself."""
        return tuple(value.clone() for value in message_values("swap", k, messages))

    def average(
        self, k: int, *messages: Message, latest: bool = False, coding: Coding | None = None
    ) -> tuple[Tensor, ...]:
        """The mean of these nodes alone."""
        values = message_values("average", k, messages)
        return tuple(value.mean(0, keepdim=True).nan_to_num() for value in values)


def forecast_table(estimate: Forecast) -> None:
    """The forecast for people."""
    links = estimate.links
    title = f"forecast for {links.processes} processes, links of {links.bandwidth / 1e6:g} Mbit/s"
    title += f" and {links.latency * 1e3:g} ms"
    table = Table(show_header=False, title=title, title_justify="left")
    table.add_column()
    table.add_column(justify="right")
    for label, seconds in (
        (f"computing, {estimate.nodes} nodes a process at most", estimate.compute),
        ("handling messages", estimate.messages),
        ("copying their bytes", estimate.copying),
        ("bytes on the wire", estimate.transfer),
        ("latency", estimate.latency),
        ("one step", estimate.seconds_a_step),
        (f"{estimate.steps} steps", estimate.seconds),
    ):
        table.add_row(label, _duration(seconds))
    for label, count in (
        ("sent a step by the busiest process", estimate.bytes_out),
        ("of these, needed by the algorithm", estimate.bytes_needed),
        ("sent over the run by all processes", estimate.bytes_run),
    ):
        table.add_row(label, bytes_text(count))
    Console().print(table)


def _duration(seconds: float) -> str:
    """Three digits, in the unit that suits."""
    unit, size = next((pair for pair in _UNITS if seconds >= pair[1]), _UNITS[-1])
    return f"{seconds / size:.3g} {unit}"


_UNITS = (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("us", 1e-6))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the forecast; the exit code of the error where it is refused."""
    parser = argparse.ArgumentParser(
        "python benchmarks/cluster/forecast_job.py", description=__doc__
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="an experiment file")
    parser.add_argument("links", metavar="LINKS", help="of the cluster, as above")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args(arguments)
    try:
        found = cluster_forecast(prepare(load_config(asked.file)), asked.links)
    except TacitError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return error.exit_code
    if asked.json:
        print(json.dumps(forecast_document(found), indent=2))
    else:
        forecast_table(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
