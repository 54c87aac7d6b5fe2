"""The exchange of many processes: only what crosses between them is a message.

At a step, two processes that share an edge exchange one message each way at most, in which a
node's row stands once however many neighbours it has there. What needs no message is computed
while messages are under way. Sums have the order that they have in one process.

A server's work is done by the process of rank 0, which gets the rows of active clients, and sends
every other process the mean. The first time that a mean over everybody's *latest* message is
asked for, also of a session that goes on from a checkpoint, all clients' rows are sent: values
that start equal and public, or were sent before.

Of a secure sum the server gets one row a process: the sum of its active clients' integers, under
masks. It adds these up, and everyone gets the sum. A message that does not come, or is none, ends
the run: nothing can be made of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.communication.colours import Masked, Summand
from tacit.communication.compression import Coding
from tacit.communication.exchange.messages import (
    HEADER_BYTES,
    Envelope,
    Kind,
    Nodes,
    Route,
    check,
    gossip_route,
    pair_route,
    server_route,
    unfinite,
    write_header,
)
from tacit.communication.exchange.protocol import (
    Active,
    Arrival,
    Channel,
    Message,
    descent_of,
    everybody,
    message_values,
    row_bytes,
    sizes,
    summand_rows,
)
from tacit.communication.exchange.rows import Mixer, Server, compile_rows
from tacit.communication.masks import PairMasks, wrapped_sum
from tacit.errors import DivergenceError, GoneError, InputError, PeerError
from tacit.topology.mixing import Weights

SERVER = 0  # the rank whose process does a server's work
_DISPENSABLE = ("mix", "swap", "average")  # kinds of messages of which one may be missing


@dataclass(frozen=True)
class Graphs:
    """What is public of who talks to whom.

    The `weights` are of the mixing in a round, and repeat after `period` rounds; None: never. At a
    step, `active` says who sends, and `arrives` whose messages reach the server; None: everybody. A
    step has so many gossip `rounds`.
    """

    weights: Callable[[int], Weights]
    period: int | None
    kind: Literal["column-stochastic", "doubly-stochastic", "server"]
    active: Active = everybody
    arrives: Active = everybody
    rounds: int = 1


@dataclass(frozen=True)
class _Gossip:
    """The mixing of one graph as this process sees it."""

    weights: Weights
    route: Route
    mixer: Mixer
    degrees: NDArray[np.int64]


class BetweenProcesses:
    """Mixes rows of the nodes of this process with those that others send.

    Args:
        ranks: of each node of the run, the process that hosts it.
        device: of the values, and of the channel.
        tolerate: whether a bad message is dropped, with its edges, for this round; otherwise it
            raises PeerError. With column-stochastic weights the mass that it carried is lost; with
            doubly stochastic ones the receiver weighs its own row in its place.
        masks: of this process, whose number is the first node that it hosts, for secure sums;
            None: there are none.
        absent: the ranks without which the run goes on at a step. Their edges are lost, and what
            was for them is kept by its sender. A message that does not come any more, at a step
            before, is dropped like a bad one.

    Attributes:
        dropped: how many rows of each node of the run were dropped here.
    """

    def __init__(
        self,
        channel: Channel,
        ranks: Sequence[int],
        graphs: Graphs,
        *,
        dtype: torch.dtype,
        device: torch.device,
        tolerate: bool = False,
        masks: PairMasks | None = None,
        absent: Callable[[int], frozenset[int]] = lambda step: frozenset(),
    ) -> None:
        self._masks, self._absent, self._left = masks, absent, frozenset[int]()
        self._channel, self._ranks, self._graphs = channel, tuple(ranks), graphs
        self._dtype, self._device, self._tolerate = dtype, device, tolerate
        self._nodes = tuple(n for n, rank in enumerate(ranks) if rank == channel.rank)
        self._place = {node: place for place, node in enumerate(self._nodes)}
        self._known: dict[int, _Gossip] = {}
        self._server = Server(len(ranks))
        self._all_latest_sent = False
        self._turn = 0
        self.bytes_sent: NDArray[np.int64] = np.zeros(len(self._nodes), dtype=np.int64)
        self.dropped: dict[int, int] = {}

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds of it; see `Exchange.tensors`."""
        counted = torch.tensor([self._turn, int(self._all_latest_sent)])
        kept = {f"latest.{place}": rows for place, rows in self._server.kept.items()}
        return {"bytes_sent": torch.from_numpy(self.bytes_sent), "counted": counted, **kept}

    def load(self, tensors: Mapping[str, Tensor], *, same_session: bool) -> None:
        """Take up what a checkpoint holds; see `Exchange.load`."""
        self.bytes_sent[:] = tensors["bytes_sent"].cpu().numpy()
        if same_session:
            self._turn, sent = tensors["counted"].tolist()
            self._all_latest_sent = bool(sent)
            self._server.kept = {
                int(name.removeprefix("latest.")): rows.clone()
                for name, rows in tensors.items()
                if name.startswith("latest.")
            }

    def mix(
        self,
        k: int,
        *messages: Message,
        coding: Coding | None = None,
        descent: tuple[Message, float] | None = None,
        extra: int = 0,
    ) -> tuple[Tensor, ...]:
        """Weighted sums over the in-neighbours of a round of step k; see `Exchange.mix`."""
        values, first = message_values("mix", k, messages), descent_of(k, descent)
        if first is not None:
            values = (first.of(values[0]), *values[1:])
        gossip = self._gossip(k * self._graphs.rounds + extra, self._absent(k))
        self.bytes_sent += sizes(values, coding) * gossip.degrees
        silent = self._graphs.active(k) if coding is not None else None
        route = gossip.route.only(silent)
        post = self._exchange("mix", k, route, values, self._nodes, coding)
        mixed = [gossip.mixer.begin(value) for value in values]
        others = gossip.route.others
        came = _Came(others, values)
        bad = self._collected(post, came)
        if bad:
            gossip = self._without(gossip, bad)
            mixed = [gossip.mixer.begin(value) for value in values]
        return tuple(
            gossip.mixer.finish(total, value, rows)
            for total, value, rows in zip(mixed, values, came.values, strict=True)
        )

    def swap(self, k: int, partner: Tensor, *messages: Message) -> tuple[Tensor, ...]:
        """What each node's partner holds; see `Exchange.swap`."""
        values = message_values("swap", k, messages)
        paired = dict(zip(self._nodes, partner.tolist(), strict=True))
        alone = np.asarray([node == other for node, other in paired.items()])
        self.bytes_sent += sizes(values, None) * ~alone
        route = pair_route(paired, self._ranks, self._channel.rank)
        post = self._exchange("swap", k, route, values, self._nodes, None)
        others = route.others
        came = _Came(others, values)
        bad = self._collected(post, came)
        position = {node: len(self._nodes) + place for place, node in enumerate(others)}
        position |= self._place
        sources = torch.tensor(
            [position[node if other in bad else other] for node, other in paired.items()],
            device=self._device,
        )
        return tuple(
            torch.cat([value, rows]).index_select(0, sources) if len(others) else value[sources]
            for value, rows in zip(values, came.values, strict=True)
        )

    def average(
        self, k: int, *messages: Message, latest: bool = False, coding: Coding | None = None
    ) -> tuple[Tensor, ...]:
        """The server's mean, for everyone; see `Exchange.average`."""
        values = message_values("average", k, messages)
        flags = self._graphs.active(k)
        active = range(len(self._ranks)) if flags is None else np.flatnonzero(flags).tolist()
        everyone = latest and not self._all_latest_sent
        self._all_latest_sent |= latest
        sending = range(len(self._ranks)) if everyone else active
        own = [node for node in active if node in self._place]
        rows_of = self._nodes if len(values[0]) == len(self._nodes) else tuple(own)
        each = np.broadcast_to(sizes(values, coding), len(rows_of))
        counted = dict(zip(rows_of, each.tolist(), strict=True))
        for node in own:
            self.bytes_sent[self._place[node]] += counted[node]
        route = server_route(sending, self._ranks, self._channel.rank, SERVER)
        post = self._exchange("average", k, route, values, rows_of, coding)
        mean = tuple(value.new_zeros(1, *value.shape[1:]) for value in values)
        if self._channel.rank == SERVER:
            here = tuple(node for node in sending if node in self._place)
            own_rows = [value[self._rows(here, rows_of)] for value in values]
            mean = self._averaged(k, post, own_rows, here, latest, everyone)
        return self._told(k, mean)

    def secure_sum(self, k: int, summands: Summand[Tensor], *, part: int = 0) -> Tensor:
        """The sum over the active clients; see `Exchange.secure_sum`."""
        if self._masks is None:
            raise InputError("exchange", "without masks", "is needed with them for a secure sum")
        flags = self._graphs.active(k)
        active = range(len(self._ranks)) if flags is None else np.flatnonzero(flags).tolist()
        here = [self._place[node] for node in active if node in self._place]
        value = summand_rows(k, summands, len(here))
        self.bytes_sent[here] += row_bytes(value)
        taking_part = sorted({self._ranks[node] for node in active})
        own = Summand(wrapped_sum(value))
        if self._channel.rank not in taking_part:
            return self._added_up(k, taking_part, Masked(torch.zeros_like(own.value)))
        parties = [self._ranks.index(rank) for rank in taking_part]
        return self._added_up(k, taking_part, self._masks.over(own, k, part, parties))

    def _added_up(self, k: int, taking_part: Sequence[int], own: Masked[Tensor]) -> Tensor:
        """The sum of all processes' parts, made at the server, for everyone."""
        row, total = (0,), own.value
        others = [rank for rank in taking_part if rank != SERVER]
        route = Route({}, {})
        if self._channel.rank == SERVER:
            route = Route({}, dict.fromkeys(others, row))
        elif self._channel.rank in taking_part:
            route = Route({SERVER: row}, {})
        post = self._exchange("masked", k, route, [total], row, None)
        for rank, arrival in post.arrivals.items():
            came = _Came(row, [total])
            if self._collected(replace(post, arrivals={rank: arrival}), came):
                raise PeerError(f"rank {rank} sent a bad message at step {k}: its part of a sum")
            total = wrapped_sum(torch.cat([total, came.values[0]]))
        (told,) = self._told(k, (total,))
        return told

    def mean_of_all(self, message: Message) -> Tensor:
        """The mean `[d]` of all nodes' rows, given those of this process; not counted as sent."""
        (models,) = message_values("mean_of_all", 0, [message])
        total = models.sum(0, keepdim=True) * (len(self._nodes) / len(models))
        others = [rank for rank in range(self._channel.processes) if rank != SERVER]
        here, row, nodes = self._channel.rank == SERVER, (0,), len(self._ranks)
        route = Route({}, dict.fromkeys(others, row)) if here else Route({SERVER: row}, {})
        post = self._exchange("total", 0, route, [total], row, None)
        for rank in others if here else []:
            came = _Came(row, [total])
            try:
                bad = self._collected(replace(post, arrivals={rank: post.arrivals[rank]}), came)
            except GoneError:
                nodes -= self._ranks.count(rank)
                continue
            if bad:
                raise PeerError(f"rank {rank} sent models that are not finite")
            total = total + came.values[0]
        (mean,) = self._told(0, (total / nodes,))
        return mean[0]

    def from_server(self, message: Message) -> Tensor:
        """What the server's process gives, `[1, d]`, for everyone; not counted as sent."""
        values = message_values("from_server", 0, [message])
        return self._told(0, values)[0]

    def _averaged(
        self, k: int, post: _Post, own: Sequence[Tensor], here: Nodes, latest: bool, everyone: bool
    ) -> tuple[Tensor, ...]:
        """At the server: the mean of its own clients' rows and those that come."""
        others = post.route.others
        came = _Came(others, own)
        bad = self._collected(post, came)
        if bad and everyone:
            raise PeerError(
                f"the first message of node {min(bad)} was bad: the server has no other"
            )
        nodes = np.asarray([*here, *others], np.int64)
        order = np.argsort(nodes)
        arrived = self._graphs.arrives(k)
        if bad:
            arrived = np.ones(len(self._ranks), np.bool_) if arrived is None else arrived.copy()
            arrived[list(bad)] = False
        places = torch.from_numpy(order).to(self._device)
        return tuple(
            self._server.mean(
                position, torch.cat([mine, rows])[places], nodes[order], arrived, latest=latest
            )
            for position, (mine, rows) in enumerate(zip(own, came.values, strict=True))
        )

    def _told(self, k: int, mean: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The server's mean, in every process."""
        rank, row = self._channel.rank, (0,)
        if rank == SERVER:
            others = [other for other in range(self._channel.processes) if other != SERVER]
            self._exchange("mean", k, Route(dict.fromkeys(others, row), {}), mean, row, None)
            return mean
        post = self._exchange("mean", k, Route({}, {SERVER: row}), mean, row, None)
        came = _Came(row, mean)
        if self._collected(post, came):
            raise PeerError(f"rank {SERVER} sent a bad message at step {k}: the server's mean")
        return tuple(came.values)

    def _gossip(self, number: int, absent: frozenset[int]) -> _Gossip:
        """The mixing of the round of this number, without some ranks."""
        period = self._graphs.period
        if absent != self._left:
            self._known, self._left = {}, absent
        if period is not None and number % period in self._known:
            return self._known[number % period]
        weights = self._graphs.weights(number)
        if absent:
            left = [node for node, rank in enumerate(self._ranks) if rank in absent]
            weights = weights.apart(left)
        route = gossip_route(weights, self._ranks, self._channel.rank)
        degrees = weights.out_degrees[list(self._nodes)]
        made = _Gossip(weights, route, self._mixer(weights, route), degrees)
        if period is not None:
            self._known[number % period] = made
        return made

    def _mixer(self, weights: Weights, route: Route) -> Mixer:
        return compile_rows(
            weights, nodes=self._nodes, others=route.others, dtype=self._dtype, device=self._device
        )

    def _without(self, gossip: _Gossip, bad: set[int]) -> _Gossip:
        """This step's sums without what some nodes sent."""
        old = gossip.weights
        lost = np.flatnonzero(np.isin(old.targets, self._nodes) & np.isin(old.sources, sorted(bad)))
        keep = self._graphs.kind == "doubly-stochastic"
        weights = old.without(lost, old.targets[lost] if keep else None)
        mixer = self._mixer(weights, gossip.route)
        return _Gossip(weights, gossip.route, mixer, gossip.degrees)

    def _rows(self, wanted: Nodes, rows_of: Nodes) -> Tensor:
        place = {node: row for row, node in enumerate(rows_of)}
        return torch.tensor([place[node] for node in wanted], device=self._device).long()

    def _exchange(
        self,
        kind: Kind,
        k: int,
        route: Route,
        values: Sequence[Tensor],
        rows_of: Nodes,
        coding: Coding | None,
    ) -> _Post:
        """Begin to receive, then begin to send: rows of `values`, which are those of `rows_of`.

        Where a number to be sent is not finite, and nobody tolerates that, it is a DivergenceError.
        """
        if route.sends and not self._tolerate:
            sent = {node for nodes in route.sends.values() for node in nodes}
            if wrong := sorted(sent & {rows_of[row] for row in unfinite(values)}):
                what = (
                    f"the model of node {wrong[0]}" if kind in _DISPENSABLE else "the common model"
                )
                raise DivergenceError(
                    f"{what} is no longer finite at step {k}: lower algorithm.learning_rate"
                )
        shapes = tuple(value.shape[1:] for value in values)
        dtype = values[0].dtype

        def envelope(sender: int, nodes: Nodes) -> Envelope:
            lengths = None
            if coding is not None:
                d = shapes[0].numel()
                lengths = tuple(coding.size(d, dtype, node) for node in nodes)
            return Envelope(sender, kind, k, self._turn, shapes, dtype, nodes, lengths)

        expected = {rank: envelope(rank, nodes) for rank, nodes in sorted(route.receives.items())}
        with self._channel.together():
            arrivals = {rank: self._channel.receive(rank, e.size) for rank, e in expected.items()}
            made: dict[Nodes, Tensor] = {}  # the same rows are one message, whoever gets them
            for rank, nodes in sorted(route.sends.items()):
                if nodes not in made:
                    own = envelope(self._channel.rank, nodes)
                    message = made[nodes] = self._channel.envelope(own.size)
                    header = torch.frombuffer(bytearray(write_header(own)), dtype=torch.uint8)
                    message[:HEADER_BYTES] = header.to(message.device)
                    _fill(message[HEADER_BYTES:], values, self._rows(nodes, rows_of), own, coding)
                self._channel.send(rank, made[nodes])
        self._turn += 1
        return _Post(route, expected, arrivals, coding)

    def _collected(self, post: _Post, came: _Came) -> set[int]:
        """Wait for all that was announced, check it, and put it in its place; nodes left out."""
        bad: set[int] = set()
        gone: set[int] = set()
        for rank, arrival in post.arrivals.items():
            expected = post.expected[rank]
            try:
                message = arrival()
            except GoneError:  # without it this round goes on, if it can do without anybody
                if not self._tolerate or expected.kind not in _DISPENSABLE:
                    raise
                gone |= set(expected.nodes)
                continue
            try:
                check(message, expected)
                rows = _rows_in(message[HEADER_BYTES:], expected, post.coding)
                wrong = {expected.nodes[row] for row in unfinite(rows)}
                if wrong:
                    numbers = ", ".join(map(str, sorted(wrong)))
                    reason = f"numbers of node {numbers} are not finite"
                    if not self._tolerate:
                        raise PeerError(
                            f"rank {rank} sent a bad message at step {expected.step}: {reason}"
                        )
            except PeerError:
                if not self._tolerate:
                    raise
                wrong = set(expected.nodes)
            else:
                came.put(expected.nodes, rows, wrong)
            bad |= wrong
        for node in bad:
            self.dropped[node] = self.dropped.get(node, 0) + 1
        return bad | gone


@dataclass(frozen=True)
class _Post:
    """Messages that are under way to this process."""

    route: Route
    expected: Mapping[int, Envelope]
    arrivals: Mapping[int, Arrival]
    coding: Coding | None


class _Came:
    """Rows that come, `[others, ...]` like some values; zeros where nothing did."""

    def __init__(self, nodes: Nodes, like: Sequence[Tensor]) -> None:
        self._nodes, self._like = nodes, like
        self._values: Sequence[Tensor] | None = None

    @property
    def values(self) -> Sequence[Tensor]:
        """One tensor a value."""
        if self._values is None:
            self._values = [
                like.new_zeros(len(self._nodes), *like.shape[1:]) for like in self._like
            ]
        return self._values

    def put(self, nodes: Nodes, rows: Sequence[Tensor], wrong: set[int]) -> None:
        """Lay the rows of some nodes in their places, but for the wrong ones."""
        if nodes == self._nodes and not wrong:  # all of one process: used as they lie
            self._values = rows
            return
        place = {node: row for row, node in enumerate(self._nodes)}
        taken = [row for row, node in enumerate(nodes) if node not in wrong]
        to = torch.tensor([place[nodes[row]] for row in taken], device=rows[0].device).long()
        for value, found in zip(self.values, rows, strict=True):
            value.index_copy_(0, to, found if len(taken) == len(nodes) else found[taken])


def _fill(
    payload: Tensor,
    values: Sequence[Tensor],
    rows: Tensor,
    envelope: Envelope,
    coding: Coding | None,
) -> None:
    """Write rows into the part of a message that follows the header."""
    at = 0
    if coding is not None:
        assert envelope.sizes is not None
        for row, node, size in zip(rows.tolist(), envelope.nodes, envelope.sizes, strict=True):
            written = coding.write(values[0][row].reshape(-1), node)
            payload[at : at + size] = written.to(payload.device)
            at += size
        return
    for value in values:
        size = len(rows) * value.shape[1:].numel() * value.element_size()
        into = payload[at : at + size].view(value.dtype).view(len(rows), *value.shape[1:])
        torch.index_select(value, 0, rows, out=into)
        at += size


def _rows_in(payload: Tensor, expected: Envelope, coding: Coding | None) -> list[Tensor]:
    """The rows of a message, one tensor `[rows, ...]` a value."""
    at, count = 0, len(expected.nodes)
    if coding is not None:
        assert expected.sizes is not None
        shape, d = expected.shapes[0], expected.shapes[0].numel()
        read: list[Tensor] = []
        for node, size in zip(expected.nodes, expected.sizes, strict=True):
            try:
                read.append(coding.read(payload[at : at + size], d, expected.dtype, node))
            except InputError as error:
                sender, step = expected.sender, expected.step
                raise PeerError(
                    f"rank {sender} sent a bad message at step {step}: {error}"
                ) from None
            at += size
        return [torch.stack(read).view(count, *shape).to(payload.device)]
    rows = []
    for shape in expected.shapes:
        size = count * shape.numel() * expected.dtype.itemsize
        rows.append(payload[at : at + size].view(expected.dtype).view(count, *shape))
        at += size
    return rows
