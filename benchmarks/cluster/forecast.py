"""What a step takes on a cluster, from the plan and a few facts about its links.

A step computes, and then has one or two phases of messages (see `traffic`).
Of each phase the slowest process counts, and everything else waits for it:

    step  = compute + sum over phases of (the slowest process's costs + hops * latency)
    costs = messages * per_message + bytes * per_byte + 8 * max(bytes out, bytes in) / bandwidth

with messages and bytes those that a process sends and receives. Links are full duplex and carry
nothing else; every process has one of its own. Left out is what a link's frames add to the bytes
(6 % with frames of 1500 bytes, 1 % with 9000), and the time that TCP takes to fill a long link.
How far the forecast is off, `python benchmarks/cluster --only check` measures.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from traffic import Phase, Traffic

from tacit.errors import InputError, nearest

_WHERE = "LINKS"
_EXAMPLE = "bandwidth=10Gbit,latency=1ms,processes=64"
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z/]*)")
_MOST_PROCESSES = 1_000_000
_BANDWIDTHS = MappingProxyType({"bit/s": 1.0, "kbit": 1e3, "Mbit": 1e6, "Gbit": 1e9})
_TIMES = MappingProxyType({"s": 1.0, "ms": 1e-3, "us": 1e-6})


@dataclass(frozen=True)
class ClusterLinks:
    """The links of a cluster.

    Args:
        bandwidth: of each process's link, each way, in bits a second.
        latency: from process to process, one way, in seconds.
        processes: how many.
    """

    bandwidth: float
    latency: float
    processes: int


@dataclass(frozen=True)
class Costs:
    """What messages take beside the network.

    Args:
        per_message: seconds, of one sent or received.
        per_byte: seconds, of one sent or received.
        measured_by: the command that these come from.
    """

    per_message: float
    per_byte: float
    measured_by: str


COSTS = Costs(
    per_message=3.0e-4, per_byte=7e-10, measured_by="python benchmarks/cluster --only fit"
)
"""Of gloo over TCP, on the machine of `docs/performance.md`."""


@dataclass(frozen=True)
class Forecast:
    """What a step is expected to take, and a run.

    Args:
        links: of the cluster.
        nodes: of the process that hosts most.
        steps: of the run.
        compute: seconds a step, as are the next four.
        messages: software, by the number of messages.
        copying: software, by their bytes.
        transfer: on the wire.
        latency: until bytes arrive.
        bytes_out: on the wire a step, sent by the process that sends most.
        bytes_needed: likewise, without headers.
        bytes_run: on the wire over the run, sent by all processes.
    """

    links: ClusterLinks
    nodes: int
    steps: int
    compute: float
    messages: float
    copying: float
    transfer: float
    latency: float
    bytes_out: float
    bytes_needed: float
    bytes_run: float

    @property
    def seconds_a_step(self) -> float:
        """The sum of the five parts."""
        return self.compute + self.messages + self.copying + self.transfer + self.latency

    @property
    def seconds(self) -> float:
        """Of the run, without what it does before and after its steps."""
        return self.steps * self.seconds_a_step


def parse_links(text: str) -> ClusterLinks:
    """Read `bandwidth=10Gbit,latency=1ms,processes=64`, in any order.

    Raises:
        InputError: on `LINKS`, naming the part that is wrong.
    """
    values: dict[str, float] = {}
    for part in text.split(","):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key not in _READERS:
            raise InputError(_WHERE, part.strip(), f"{nearest(key, _READERS)}; as {_EXAMPLE}")
        if key in values:
            raise InputError(_WHERE, part.strip(), f"{key} is given twice")
        values[key] = _READERS[key](part.strip(), value)
    missing = [key for key in _READERS if key not in values]
    if missing:
        raise InputError(_WHERE, text, f"lacks {' and '.join(missing)}: give it as {_EXAMPLE}")
    return ClusterLinks(values["bandwidth"], values["latency"], int(values["processes"]))


def _quantity(part: str, value: str, units: Mapping[str, float], example: str) -> float:
    match = _NUMBER.fullmatch(value)
    if match is None or match[2] not in units:
        expected = f"must be a number and one of {', '.join(units)}, such as {example}"
        raise InputError(_WHERE, part, expected)
    return float(match[1]) * units[match[2]]


def _bandwidth(part: str, value: str) -> float:
    bandwidth = _quantity(part, value, _BANDWIDTHS, "10Gbit")
    if not 0 < bandwidth < math.inf:
        raise InputError(_WHERE, part, "must be more than 0")
    return bandwidth


def _latency(part: str, value: str) -> float:
    return _quantity(part, value, _TIMES, "1ms")


def _processes(part: str, value: str) -> float:
    whole = value.isascii() and value.isdigit() and len(value) <= len(str(_MOST_PROCESSES))
    if not (whole and 1 <= int(value) <= _MOST_PROCESSES):
        expected = f"must be a whole number from 1 to {_MOST_PROCESSES}"
        raise InputError(_WHERE, part, expected)
    return float(value)


_READERS: Mapping[str, Callable[[str, str], float]] = MappingProxyType(
    {"bandwidth": _bandwidth, "latency": _latency, "processes": _processes}
)


def forecast(
    traffic: Traffic,
    links: ClusterLinks,
    *,
    compute: float,
    nodes: int,
    steps: int,
    costs: Costs = COSTS,
) -> Forecast:
    """What a step takes, and a run.

    Args:
        traffic: of a step; of as many processes as the links have.
        links: of the cluster.
        compute: seconds of a step of the largest process, alone.
        nodes: of that process.
        steps: of the run.
        costs: of messages, beside the network.
    """
    parts = sum((_slowest(phase, links, costs) for phase in traffic.phases), np.zeros(4))
    on_messages, copying, transfer, latency = (float(part) for part in parts)
    return Forecast(
        links=links,
        nodes=nodes,
        steps=steps,
        compute=compute,
        messages=on_messages,
        copying=copying,
        transfer=transfer,
        latency=latency,
        bytes_out=float(traffic.bytes_out.max()),
        bytes_needed=float(traffic.needed_out.max()),
        bytes_run=float(traffic.bytes_out.sum()) * steps,
    )


def _slowest(phase: Phase, links: ClusterLinks, costs: Costs) -> NDArray[np.float64]:
    """Parts of the time of the slowest process, mean over steps, `[4]`."""
    sent, received = phase.bytes_out, phase.bytes_in
    parts = np.stack(
        [
            (phase.messages_out + phase.messages_in) * costs.per_message,
            (sent + received) * costs.per_byte,
            np.maximum(sent, received) * 8 / links.bandwidth,
        ]
    )
    slowest = parts.sum(axis=0).argmax(axis=1)
    of_slowest = parts[:, np.arange(len(slowest)), slowest].mean(axis=1)
    waits = float((~phase.silent).mean()) * phase.hops * links.latency
    return np.append(of_slowest, waits)


def forecast_document(prediction: Forecast) -> dict[str, Any]:
    """The forecast as JSON-ready data: seconds, bytes, bits a second."""
    return {
        **asdict(prediction),
        "seconds_a_step": prediction.seconds_a_step,
        "seconds": prediction.seconds,
        "costs": asdict(COSTS),
    }
