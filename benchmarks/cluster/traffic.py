"""What goes between processes at a step: how many messages, and how many bytes.

Counted from the plan alone, as the exchange between processes sends: one message a step for each
ordered pair of processes that share an edge, and in it each node's row once, however many nodes
over there need it. Nothing goes over the network between nodes of one process.

A step is a sequence of phases, in each of which all processes send at once, and then wait:

| exchange | phases | rows | hops |
|---|---|---|---|
| `mix` | 1 | of each node, to every process with an out-neighbour of it | 2 |
| `swap` | 1 | of each node that is paired, to its partner's process | 2 |
| `average` | 2 | of each active client, to rank 0; then the mean, to every process | 1, 1 |

gloo sends the bytes of a message when it has heard that the receiver waits for them: a hop there
and a hop back, where both begin to wait at the same time. A server and its clients wait for each
other by turns, so that it has been heard by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.communication.exchange.messages import HEADER_BYTES
from tacit.topology.mixing import Weights
from tacit.training.plan import Plan
from tacit.training.run_folder.result import message_bytes

if TYPE_CHECKING:
    from tacit.communication.peers import Placement

PREFIX_BYTES = 16
"""What a channel puts before a message: its length."""

MESSAGE_BYTES = PREFIX_BYTES + HEADER_BYTES
"""Of one message, beside its rows."""

_SERVER = 0  # the rank that hosts it
_MOST_STEPS = 1000  # that are counted, where every step differs

Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Phase:
    """Messages that go at the same time, `[steps, processes]` each.

    Args:
        hops: latencies until its bytes begin to arrive.
        row_bytes: of one row, expected.
        messages_out: sent by each process.
        messages_in: received by each.
        rows_out: in the messages sent.
        rows_in: in those received.
    """

    hops: int
    row_bytes: float
    messages_out: Counts
    messages_in: Counts
    rows_out: Counts
    rows_in: Counts

    @property
    def bytes_out(self) -> NDArray[np.float64]:
        """On the wire, sent by each process, `[steps, processes]`."""
        return self.needed_out + self.messages_out * float(MESSAGE_BYTES)

    @property
    def bytes_in(self) -> NDArray[np.float64]:
        """On the wire, received by each process, `[steps, processes]`."""
        received = self.messages_in * float(MESSAGE_BYTES) + self.rows_in * self.row_bytes
        return np.asarray(received, np.float64)

    @property
    def needed_out(self) -> NDArray[np.float64]:
        """Bytes of the rows that each process sends, `[steps, processes]`."""
        return np.asarray(self.rows_out * self.row_bytes, np.float64)

    @property
    def silent(self) -> NDArray[np.bool_]:
        """At which steps nothing is sent at all, `[steps]`."""
        return np.asarray(~self.messages_out.any(axis=1), np.bool_)


@dataclass(frozen=True)
class Traffic:
    """What goes between processes at the steps of a run.

    Means are over the steps that are counted: one period of the graph, or, where activity is drawn
    step by step, up to 1000 steps evenly spread over the run.

    Args:
        phases: of a step, in order.
    """

    phases: tuple[Phase, ...]

    @property
    def processes(self) -> int:
        """How many there are."""
        return int(self.phases[0].messages_out.shape[1])

    @cached_property
    def messages_out(self) -> NDArray[np.float64]:
        """Sent by each process, mean a step, `[processes]`."""
        return self._mean(lambda phase: phase.messages_out)

    @cached_property
    def messages_in(self) -> NDArray[np.float64]:
        """Received by each process, mean a step, `[processes]`."""
        return self._mean(lambda phase: phase.messages_in)

    @cached_property
    def bytes_out(self) -> NDArray[np.float64]:
        """On the wire, sent by each process, mean a step, `[processes]`."""
        return self._mean(lambda phase: phase.bytes_out)

    @cached_property
    def bytes_in(self) -> NDArray[np.float64]:
        """On the wire, received by each process, mean a step, `[processes]`."""
        return self._mean(lambda phase: phase.bytes_in)

    @cached_property
    def needed_out(self) -> NDArray[np.float64]:
        """Bytes of the rows that each process sends, mean a step, `[processes]`.

        That is what the algorithm needs; what is on the wire beside it are headers.
        """
        return self._mean(lambda phase: phase.needed_out)

    def _mean(
        self, of: Callable[[Phase], NDArray[np.int64] | NDArray[np.float64]]
    ) -> NDArray[np.float64]:
        total = sum((of(phase).mean(axis=0) for phase in self.phases), np.zeros(self.processes))
        return np.asarray(total, np.float64)


@dataclass(frozen=True)
class _Sent:
    """Rows that go at one step; entry i says that the process of `targets[i]` needs `sources[i]`.

    Args:
        rows: numbers that tell rows apart, `[n]`.
        sources: the rank that has each, `[n]`.
        targets: the rank that needs it, `[n]`.
    """

    rows: Counts
    sources: Counts
    targets: Counts


def traffic(plan: Plan, placement: Placement, dtype: torch.dtype) -> Traffic:
    """What goes between processes at a step of a plan.

    Args:
        plan: says who sends to whom.
        placement: the rank of each node; of as many nodes as the plan has.
        dtype: of the numbers that are sent.
    """
    ranks = np.asarray(placement.ranks, np.int64)
    row = message_bytes(plan, dtype.itemsize)
    mean_row = float(plan.parameters * dtype.itemsize)
    kind = _kind(plan)
    phases = _KINDS[kind](plan, ranks)
    sizes = (row, mean_row)  # only a server has a second phase: it sends its mean
    return Traffic(
        tuple(
            _phase(steps, placement.processes, size, _HOPS[kind])
            for steps, size in zip(phases, sizes, strict=False)
        )
    )


def _kind(plan: Plan) -> str:
    """Which exchange a step has."""
    if plan.mixing.kind == "server":
        return "average"
    activity = plan.release.activity
    paired = activity is not None and activity.partner is not None
    return "swap" if paired else "mix"


def _mixed(plan: Plan, ranks: Counts) -> tuple[list[_Sent], ...]:
    return ([_along_edges(weights, ranks) for weights in plan.mixing.weights],)


def _along_edges(weights: Weights, ranks: Counts) -> _Sent:
    return _Sent(weights.sources, ranks[weights.sources], ranks[weights.targets])


def _swapped(plan: Plan, ranks: Counts) -> tuple[list[_Sent], ...]:
    activity = plan.release.activity
    assert activity is not None
    assert activity.partner is not None
    nodes = np.arange(len(ranks))
    partners = (activity.partner[k] for k in _counted(activity.partner.shape[0]))
    return ([_Sent(nodes, ranks, ranks[partner]) for partner in partners],)


def _averaged(plan: Plan, ranks: Counts) -> tuple[list[_Sent], ...]:
    everyone = np.ones((1, len(ranks)), np.bool_)
    activity = plan.release.activity
    active = everyone if activity is None else activity.active
    sending = (np.flatnonzero(active[k]) for k in _counted(len(active)))
    up = [_Sent(nodes, ranks[nodes], np.full(len(nodes), _SERVER)) for nodes in sending]
    others = np.arange(int(ranks.max()) + 1)
    down = _Sent(np.zeros_like(others), np.full_like(others, _SERVER), others)
    return up, [down] * len(up)


_KINDS: Mapping[str, Callable[[Plan, Counts], tuple[list[_Sent], ...]]] = MappingProxyType(
    {"mix": _mixed, "swap": _swapped, "average": _averaged}
)


_HOPS: Mapping[str, int] = MappingProxyType({"mix": 2, "swap": 2, "average": 1})


def _counted(steps: int) -> Iterable[int]:
    """Steps evenly spread."""
    return (int(k) for k in np.linspace(0, steps - 1, min(steps, _MOST_STEPS)).round())


def _phase(steps: list[_Sent], processes: int, row_bytes: float, hops: int) -> Phase:
    counts = np.stack([_count(sent, processes) for sent in steps])
    return Phase(hops, row_bytes, counts[:, 0], counts[:, 1], counts[:, 2], counts[:, 3])


def _count(sent: _Sent, processes: int) -> Counts:
    """Messages out, messages in, rows out and rows in of each process, `[4, processes]`."""
    crosses = sent.sources != sent.targets
    entries = np.stack([sent.sources, sent.targets, sent.rows])[:, crosses]
    rows = np.unique(entries, axis=1)  # each row once to each process
    messages = np.unique(entries[:2], axis=1)
    return np.stack(
        [
            np.bincount(ends, minlength=processes)
            for ends in (messages[0], messages[1], rows[0], rows[1])
        ]
    )
