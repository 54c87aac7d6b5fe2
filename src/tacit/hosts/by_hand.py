"""What a party's run speaks through where somebody else carries its messages.

A step asks its exchange, and stands still until the answer has come, in a thread of its own. Where
it was cut off there, who goes on makes it again from its beginning, given what its context gave the
first time: sums over records and noise, which the checkpoint has that is written before a message
is handed out, but for unclipped sums, which are computed again. So the same bytes are sent.
"""

from __future__ import annotations

import json
import secrets
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.algorithms.context import StepContext, StepTable
from tacit.analysis.audit.recorder import Recorded
from tacit.base.plain_files import read_plain
from tacit.base.private_files import plain_errors, write_private
from tacit.communication.colours import Outgoing, Released, Summand, opened
from tacit.communication.compression import Coding
from tacit.communication.exchange import Graphs
from tacit.communication.exchange.protocol import (
    Message,
    descent_of,
    message_values,
    sizes,
)
from tacit.communication.exchange.rows import Server, compile_rows
from tacit.communication.peers import Peers, PeerState, SessionMemory
from tacit.communication.received import CHARGED, EXPERIMENT, IDENTITY, SESSION_ID, Experiment, Form
from tacit.errors import InputError, PeerError
from tacit.training.evaluation import Part

T = TypeVar("T")
Array = NDArray[Any]

Answer = Mapping[int, Sequence[Array]]

SERVER = -1  # whose rows answer an average
HERE = 1  # the rank of the party; all others are one process, of rank 0
_UNCLIPPED, _NOTHING = "unclipped sum", torch.empty(0)


@dataclass(frozen=True)
class PartyMessage:
    """What a party hands out, all of it noised or public.

    Args:
        turn: its number, from 0; what answers it names it.
        step: of the algorithm.
        kind: `average`: a server answers with the mean of all rows; `mix`: neighbours exchange
            rows, which the party weighs itself; `swap`: likewise one partner.
        to: nodes that get it; empty for a server.
        of: nodes whose rows answer it; empty for a server.
        latest: of `average`: whether the mean is over every client's latest row.
        arrays: one row of each value, without the dimension of nodes; none of a client that does
            not take part in this step.
    """

    turn: int
    step: int
    kind: Literal["average", "mix", "swap"]
    to: tuple[int, ...]
    of: tuple[int, ...]
    latest: bool
    arrays: tuple[Array, ...]


def checksum(arrays: Iterable[Array], name: str = "") -> int:
    """Of arrays in order, with types and shapes: tells changes that mean no harm, and no others."""
    found = zlib.crc32(name.encode())
    for array in arrays:
        found = zlib.crc32(f"{array.dtype} {array.shape} ".encode(), found)
        found = zlib.crc32(np.ascontiguousarray(array).tobytes(), found)
    return found


class ServersMean:
    """A server's part of a method: the mean of what clients send, in the simulator's bits."""

    def __init__(self, clients: int) -> None:
        self._clients, self._server, self._turn = clients, Server(clients), -1

    def answer(self, messages: Mapping[int, PartyMessage]) -> tuple[Array, ...]:
        """The mean `[...]` of each value, from the messages of all nodes by number.

        Raises:
            PeerError: one lacks, or is of another turn, kind or shape; names its node.
        """
        nodes = range(self._clients)
        for node in nodes:
            if node not in messages:
                raise PeerError(f"node {node} sent nothing")
        first = messages[0]
        for node in nodes:
            one = messages[node]
            if one.kind != "average" or (one.turn, one.latest) != (first.turn, first.latest):
                raise PeerError(f"node {node} is at another turn than node 0, or has no server")
        sending = [node for node in nodes if messages[node].arrays]
        if not sending or first.turn <= self._turn:
            raise PeerError(f"turn {first.turn} has no rows, or was answered: nothing is averaged")
        shapes = [[(a.shape, a.dtype) for a in messages[node].arrays] for node in sending]
        for node, shape in zip(sending, shapes, strict=True):
            if shape != shapes[0]:
                raise PeerError(f"node {node} sent other shapes than node {sending[0]}")
        self._turn, means = first.turn, []
        for place in range(len(shapes[0])):
            rows = torch.from_numpy(np.stack([messages[node].arrays[place] for node in sending]))
            senders = np.asarray(sending, np.int64)
            mean = self._server.mean(place, rows, senders, None, latest=first.latest)
            means.append(mean[0].numpy())
        return tuple(means)


class ByHand:
    """The exchange of one node, whose messages are handed out and whose answers are handed in.

    It is the tape of a step as well: what each question of it was answered, by its context or from
    outside, in order.

    Attributes:
        message: what waits for an answer; None: nothing does.
        turn: how many messages were answered: the number of the one that waits, or comes next.
        stand: called with each message; it returns once the answer was taken.
    """

    stand: Callable[[], None]

    def __init__(
        self, node: int, graphs: Graphs, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._node, self._graphs, self._dtype, self._device = node, graphs, dtype, device
        self._kept: list[tuple[str, tuple[Tensor, ...]]] = []
        self._place = self.turn = 0
        self._all_latest_sent, self._answered = False, -1
        self._answer: Answer | None = None
        self._due: tuple[Sequence[int], Sequence[Tensor]] = (), ()
        self.message: PartyMessage | None = None
        self.bytes_sent: NDArray[np.int64] = np.zeros(1, np.int64)
        self.dropped: dict[int, int] = {}

    @property
    def waits(self) -> bool:
        """Whether nothing can be done before an answer comes."""
        return self.message is not None and self._answer is None

    def given(self, what: str, make: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """What `make` gives, or gave before the step was cut off; the caller may change it.

        Raises:
            InputError: the step asked something else there before: a bare sum is never given as
                noise, nor as a message of others.
        """
        again = self._place < len(self._kept)
        before, values = self._kept[self._place] if again else (what, ())
        if what != before:
            expected = f"must ask the same whenever its step is made: it asked for {before} before"
            raise InputError("algorithm.name", what, expected)
        self._place += 1
        if values:
            return tuple(value.clone() for value in values)
        made = make()
        if not again:
            kept = () if what == _UNCLIPPED else tuple(value.clone() for value in made)
            self._kept.append((what, kept))
        return made

    def forget(self) -> None:
        """A step is over: what it was given is not needed any more."""
        self._kept, self._place = [], 0

    def take(self, turn: int, answer: Answer) -> None:
        """Take what answers a turn; nothing where it is the one before, answered once more.

        Raises:
            InputError: it answers another turn, or an earlier one otherwise than before.
            PeerError: it is no answer to what was asked: of other nodes, shapes or types, or with
                numbers that are not finite.
        """
        try:  # copies: whoever brought them may change them before they are used
            answer = {node: [np.array(array) for array in answer[node]] for node in sorted(answer)}
        except (TypeError, ValueError):
            raise PeerError(f"what answers turn {turn} is no list of arrays of each node") from None
        arrays = [array for node in answer for array in answer[node]]
        content = checksum(arrays, str([(node, len(answer[node])) for node in answer]))
        last = self.turn - (self._answer is None)
        if turn == last and content == self._answered:
            return
        if self.message is None or turn != self.turn or self._answer is not None:
            expected = f"must be {self.turn}, once step has asked: what was answered stays so"
            raise InputError("turn", turn, expected, public=True)
        nodes, values = self._due
        if list(answer) != list(nodes):
            raise PeerError(f"turn {turn} waits for nodes {list(nodes)}, not {list(answer)}")
        for node in nodes:
            due = [(value[:0].numpy(force=True).dtype, value.shape[1:]) for value in values]
            if [(array.dtype, array.shape) for array in answer[node]] != due:
                raise PeerError(
                    f"what answers turn {turn} has other shapes or types than was asked"
                )
            if not all(np.isfinite(array).all() for array in answer[node]):
                raise PeerError(f"what answers turn {turn} has numbers that are not finite")
        self._answer, self._answered = answer, content

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds of it, of unclipped sums their places; see `Exchange.tensors`."""
        tape = {
            f"tape.{place}.{part}.{what}": value
            for place, (what, values) in enumerate(self._kept)
            for part, value in enumerate(values or [_NOTHING])
        }
        flags = int(self._all_latest_sent), int(self.waits)
        counted = torch.tensor([self.turn, *flags, self._answered])
        return {"bytes_sent": torch.from_numpy(self.bytes_sent), "counted": counted, **tape}

    def load(self, tensors: Mapping[str, Tensor], *, same_session: bool) -> None:
        """Take up what a checkpoint holds; see `Exchange.load`."""
        self.bytes_sent[:] = tensors["bytes_sent"].cpu().numpy()
        self.turn, sent, _, self._answered = tensors["counted"].tolist()
        self._all_latest_sent = bool(sent)
        places: dict[tuple[int, str], list[Tensor]] = {}
        tape = (name.split(".") for name in tensors if name.startswith("tape."))
        for name in sorted(tape, key=lambda name: [*map(int, name[1:3])]):
            places.setdefault((int(name[1]), name[3]), []).append(tensors[".".join(name)])
        self._kept, self._place = [], 0
        for (_, what), own in places.items():
            self._kept.append((what, () if what == _UNCLIPPED else tuple(own)))

    def mix(
        self,
        k: int,
        *messages: Message,
        coding: Coding | None = None,
        descent: tuple[Message, float] | None = None,
        extra: int = 0,
    ) -> tuple[Tensor, ...]:
        """Weighted sums over in-neighbours of a round of step k; see `Exchange.mix`."""
        values, first = message_values("mix", k, messages), descent_of(k, descent)
        values = values if first is None else (first.of(values[0]), *values[1:])
        weights = self._graphs.weights(k * self._graphs.rounds + extra)
        near = weights.targets != weights.sources
        others = sorted(weights.sources[near & (weights.targets == self._node)].tolist())
        to = sorted(weights.targets[near & (weights.sources == self._node)].tolist())

        def mixed() -> tuple[Tensor, ...]:
            came = self._asked("mix", k, values, values, others, to)
            mixer = compile_rows(
                weights, nodes=(self._node,), others=others, dtype=self._dtype, device=self._device
            )
            self.bytes_sent += sizes(values, None) * len(to)
            return tuple(
                mixer.finish(mixer.begin(value), value, rows)
                for value, rows in zip(values, came, strict=True)
            )

        return self.given("mix", mixed)

    def swap(self, k: int, partner: Tensor, *messages: Message) -> tuple[Tensor, ...]:
        """What the node's partner holds; see `Exchange.swap`."""
        values, (other,) = message_values("swap", k, messages), partner.tolist()
        others = [] if other == self._node else [other]

        def swapped() -> tuple[Tensor, ...]:
            came = self._asked("swap", k, values, values, others, others)
            self.bytes_sent += sizes(values, None) * len(others)
            return came if others else values

        return self.given("swap", swapped)

    def average(
        self, k: int, *messages: Message, latest: bool = False, coding: Coding | None = None
    ) -> tuple[Tensor, ...]:
        """The server's mean; see `Exchange.average`."""
        values, active = message_values("average", k, messages), self._graphs.active(k)
        joins = active is None or bool(active[self._node])
        sends = joins or (latest and not self._all_latest_sent)

        def averaged() -> tuple[Tensor, ...]:
            sent = values if sends else ()
            came = self._asked("average", k, sent, values, [SERVER], (), latest)
            self.bytes_sent += sizes(values, None) * joins
            self._all_latest_sent |= latest
            return came

        return self.given("average", averaged)

    def secure_sum(self, k: int, summands: Summand[Tensor], *, part: int = 0) -> Tensor:
        """There is none: no other carrier adds up under our masks."""
        raise InputError("privacy.aggregation", "secure", "is not to be had inside another carrier")

    def _asked(
        self,
        kind: Literal["average", "mix", "swap"],
        k: int,
        sent: Sequence[Tensor],
        like: Sequence[Tensor],
        others: Sequence[int],
        to: Sequence[int],
        latest: bool = False,
    ) -> tuple[Tensor, ...]:
        """Of each value the rows of these others, `[others, ...]`, once they have come."""
        arrays = tuple(value[0].numpy(force=True).copy() for value in sent)
        of = () if kind == "average" else tuple(others)
        self._due = tuple(others), tuple(like)
        self.message = PartyMessage(self.turn, k, kind, tuple(to), of, latest, arrays)
        self.stand()
        came, self._answer, self.message = self._answer or {}, None, None
        self.turn += 1
        return tuple(
            torch.from_numpy(np.stack([came[node][place] for node in others])).to(self._device)
            if others
            else value.new_empty(0, *value.shape[1:])
            for place, value in enumerate(like)
        )


def was_waiting(tensors: Mapping[str, Tensor]) -> bool:
    """Whether a checkpoint, of which these are all tensors, was written for a message to leave."""
    return bool(tensors["exchange.counted"][2])


class _TapedTable(Recorded):
    """A table of gradients that is changed once, also by a step that was cut off."""

    _inner: StepTable

    def __init__(self, inner: StepTable, tape: ByHand) -> None:
        super().__init__(inner)
        self._tape = tape

    def fill(self, at: Tensor) -> None:
        def filled() -> tuple[Tensor, ...]:
            self._inner.fill(at)
            return (at[:0],)

        self._tape.given("fill", filled)

    def total(self) -> Tensor:
        return self._tape.given("total", lambda: (self._inner.total(),))[0]

    def replace(self, at: Tensor, k: int, difference: float | None) -> Tensor:
        return self._tape.given("replace", lambda: (self._inner.replace(at, k, difference),))[0]


class _TapedContext(Recorded):
    _inner: StepContext

    def __init__(self, inner: StepContext, tape: ByHand) -> None:
        super().__init__(inner)
        self._tape = tape

    @property
    def table(self) -> StepTable:
        return cast(StepTable, _TapedTable(self._inner.table, self._tape))

    def among(self, k: int) -> StepContext:
        return taped(self._inner.among(k), self._tape)

    def batch_gradient(self, *asked: Any, clipped: bool = True, **more: Any) -> Tensor:
        def summed() -> tuple[Tensor, ...]:
            return (self._inner.batch_gradient(*asked, clipped=clipped, **more),)

        return self._tape.given("sum" if clipped else _UNCLIPPED, summed)[0]

    def batch_difference(self, *asked: Any, **more: Any) -> Tensor:
        return self._tape.given("sum", lambda: (self._inner.batch_difference(*asked, **more),))[0]

    def add_noise(self, total: Tensor, *asked: Any, **more: Any) -> Tensor:
        noise = self._inner.add_noise
        (noised,) = self._tape.given("noise", lambda: (noise(total, *asked, **more),))
        return total.copy_(noised)  # in place, also where a step that was cut off is made again


def taped(context: StepContext, tape: ByHand) -> StepContext:
    """The same context, which gives a step that was cut off the same sums and noise."""
    return cast(StepContext, _TapedContext(context, tape))


class Carried:
    """What a party's run speaks through: its exchange alone; nothing that is measured leaves it."""

    def __init__(self, exchange: ByHand) -> None:
        self.exchange = exchange

    def put(self, step: int, part: Outgoing[Part]) -> None:
        """It stays here."""

    def ready(self) -> list[tuple[int, list[Part]]]:
        """There are no others' either."""
        return []

    def finish(self) -> None:
        """Nothing is under way."""

    def mean(self, models: Outgoing[Tensor]) -> Tensor:
        """Of the models here: no other is known."""
        return opened(models, "a node's model").mean(0)

    def from_server(self, model: Released[Tensor]) -> Tensor:
        """What this party has of it."""
        return model.value


class PartyMemory(SessionMemory):
    """What a party remembers of its run, in a file of its own folder.

    What is under way stands in the checkpoint.
    """

    def __init__(self, path: Path | None, returned_to: int | None) -> None:
        self._path, self.returned_to = path, returned_to
        self.returned = returned_to is not None
        self._known: dict[str, str] = {}
        if path is not None and self.returned:
            try:
                self._known = json.loads(read_plain(path, 2**27))
            except (OSError, ValueError):
                expected = (
                    "is not there, or damaged: the run is done, or the file is to be put back"
                )
                raise InputError("out", str(path), expected) from None

    def secret(self, name: str) -> bytes:
        """32 random bytes, the same whenever the party goes on."""
        return bytes.fromhex(self._kept(f"secret {name}", lambda: secrets.token_hex(32)))

    def remember(self, name: str, make: Callable[[], T], schema: Form[T]) -> T:
        """What was made when the run began."""
        return schema.read(self._kept(name, lambda: schema.write(make())), HERE, name)

    def noted(self, name: str, value: str) -> str:
        """The same of a word, which is written with what follows: nobody holds the folder yet."""
        return self._known.setdefault(name, value)

    def _kept(self, name: str, make: Callable[[], str]) -> str:
        if name not in self._known:
            self._known[name] = make()
            if self._path is not None and self._path.parent.is_dir():
                with plain_errors("out", self._path):
                    write_private(self._path, json.dumps(self._known).encode())
        return self._known[name]


class TheOthers(Peers):
    """All other parties, as the process of rank 0 that a party's run agrees with.

    Nothing is asked of them but how many records each has, which the party was told: all else that
    they would say is taken to be what the party says, since its own account rests on none of it.

    Attributes:
        said: what all must have in common, by its name: for whoever compares.
    """

    rank, processes = HERE, 2

    def __init__(self, node: int, records: Sequence[int], session: PartyMemory) -> None:
        self.session = self._memory = session
        self._node, self._records = node, list(records)
        self.said: dict[str, Any] = {}

    def placed(self, placement: Literal["blocks"] | Sequence[int]) -> Sequence[int]:
        """The node here, and the others there."""
        return [HERE * (node == self._node) for node in range(len(self._records))]

    def seen(self) -> Sequence[PeerState]:
        """The others, of whom nothing is known, and this party."""
        return PeerState(0, "the others", "unknown"), PeerState(HERE, "this party", "connected")

    def share(self, what: str, value: Any, schema: Form[Any]) -> list[Any]:
        """What the others give, and what this party does."""
        others = len(self._records) - 1
        if schema is EXPERIMENT:
            if value.records != [self._records[self._node]]:
                expected = f"must be those of every node: node {self._node} has {value.records[0]}"
                raise InputError("records", self._records, expected)
            self.said[what] = value.identity
            told = [count for node, count in enumerate(self._records) if node != self._node]
            return [Experiment(identity=value.identity, records=told), value]
        if schema is IDENTITY:
            self.said[what] = value
        if schema is CHARGED:
            return [value * others, value]
        if schema is SESSION_ID:
            value = self._memory.noted(what, value)
        return [value, value]
