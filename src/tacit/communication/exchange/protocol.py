"""What an algorithm may ask of an exchange: all that differs between one process and many.

How many bytes messages take (`sizes`), and who sends them (`Active`), is the same for both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.communication.colours import Outgoing, Summand, opened, summand_value
from tacit.communication.compression import Coding
from tacit.errors import LeakError

Message: TypeAlias = Outgoing[Tensor]
"""A value of a message, which says that it may leave its node."""


def message_values(verb: str, k: int, values: Sequence[Message]) -> tuple[Tensor, ...]:
    """The plain tensors of a message that is about to be sent, by a `verb` such as `mix`.

    Errors are those of `opened`.
    """
    return tuple(
        opened(value, f"value {place} that exchange.{verb} was given at step {k}")
        for place, value in enumerate(values)
    )


def summand_rows(k: int, summands: Summand[Tensor], active: int) -> Tensor:
    """The plain rows of what is about to be added up, int64 `[active, ...]`.

    They are of the `active` clients of this process, so many: what hides in a sum is counted by who
    takes part. Anything else is a LeakError.
    """
    value = summand_value(summands, f"what exchange.secure_sum was given at step {k}")
    if len(value) != active or value.dtype != torch.int64:
        raise LeakError(
            f"exchange.secure_sum was given {len(value)} rows of {value.dtype} at step {k}, and "
            f"{active} clients take part here: this is a defect, and nothing was sent"
        )
    return value


@dataclass(frozen=True)
class Descent:
    """A step along a direction that comes before the mixing: x - step direction is mixed."""

    direction: Tensor
    step: float

    def of(self, x: Tensor) -> Tensor:
        """Where it leads: a new tensor. Each operation is rounded, as in `mix_rows`."""
        return self.direction.mul(-self.step).add_(x)


def descent_of(k: int, descent: tuple[Message, float] | None) -> Descent | None:
    """The descent of a message that is about to be sent, its direction checked like its values."""
    if descent is None:
        return None
    (direction,) = message_values("mix", k, descent[:1])
    return Descent(direction, descent[1])


class Exchange(Protocol):
    """Moves messages along the edges of step k, or between clients and their server.

    It takes values that are `Public` or `Released`, raises `LeakError` for any other before it
    sends anything, and gives plain tensors back.
    """

    @property
    def bytes_sent(self) -> NDArray[np.int64]:
        """Int64 `[nodes]` of this process, so far: of messages to out-neighbours, partners or the
        server.

        None is to the node itself, and what a server sends back is not counted.
        """

    @property
    def dropped(self) -> Mapping[int, int]:
        """How many rows of each node were bad, and left out here; none in one process."""

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds of it."""

    def load(self, tensors: Mapping[str, Tensor], *, same_session: bool) -> None:
        """Take up what a checkpoint holds, as `tensors` gave it.

        `same_session` says whether the other processes go on with theirs, as they were then; else
        all start again, and only what was counted is taken up.
        """

    def mix(
        self,
        k: int,
        *values: Message,
        coding: Coding | None = None,
        descent: tuple[Message, float] | None = None,
        extra: int = 0,
    ) -> tuple[Tensor, ...]:
        """Weighted sums over in-neighbours: row i becomes `sum_j P^t[i, j] values[j]`.

        Tensors are new, and of the same shapes. With R gossip rounds a step, the mixing matrix is
        that of round t = k R + `extra`: graphs and simulated losses advance from round to round.

        Args:
            k: the step, which says who is active.
            values: tensors `[nodes, ...]` of the nodes of this process, sent together as one
                message.
            coding: how a message is written, where that is not all of its numbers (of a single
                value; a node that is not active then sends nothing).
            descent: a direction like the first value, and a step: what is sent and mixed is the
                first value less so much of the direction. It saves a pass over memory.
            extra: how many rounds of the step came before: 0 for the one that the algorithm's own
                step makes. R and above are rounds that follow the last step.
        """

    def swap(self, k: int, partner: Tensor, *values: Message) -> tuple[Tensor, ...]:
        """What each node's partner holds: row i becomes `values[partner[i]]`.

        `partner` is int64 `[nodes]` on the host, numbers of nodes; one paired with itself sends
        nothing. The values, `[nodes, ...]`, are sent together as one message.
        """

    def average(
        self, k: int, *values: Message, latest: bool = False, coding: Coding | None = None
    ) -> tuple[Tensor, ...]:
        """The server's mean of what clients send, which everyone gets: new tensors `[1, ...]`.

        Args:
            k: the step, which says who is active: only active clients send.
            values: tensors `[active clients of this process, ...]`; with `latest`, `[clients of
                this process, ...]`, each one's latest message.
            latest: whether the mean is over every client's latest message, which the server keeps,
                in place of those sent now.
            coding: as in `mix`.
        """

    def secure_sum(self, k: int, summands: Summand[Tensor], *, part: int = 0) -> Tensor:
        """The sum of what the active clients hold, which everyone gets, and nobody more.

        Between processes each adds up its own clients' rows and sends the sum under masks
        (`tacit.communication.masks`): the server sees no process's part, and no client's. In one
        process masks would cancel in the integers that they are added to: there are none.

        Args:
            k: the step, which says who is active.
            summands: int64 `[active clients of this process, ...]`, whose sum over all clients is
                between -2^63 and 2^63 - 1.
            part: its number, where a step has several sums.

        Returns:
            A new tensor, int64 `[1, ...]`: exact, the same whoever hosts which node.

        Raises:
            LeakError: no `Summand`, other rows than those of the active clients here, or masks that
                were used already; nothing was sent.
            InputError: this exchange has no masks.
        """


Arrival: TypeAlias = Callable[[], Tensor]
"""Of a message on its way: waits for the bytes that came, uint8 `[at most the size announced]`.

However often it is asked, the answer is the same. It raises a PeerError that names the lost rank
where nothing came in time, or the peer was lost.
"""


class Channel(Protocol):
    """Point-to-point messages between processes; between two of them, in order.

    `bytes_sent` counts what this process has sent so far, on the wire.
    """

    rank: int
    processes: int
    bytes_sent: int

    def envelope(self, size: int) -> Tensor:
        """A new uint8 `[size]` on the channel's device to write a message in, aligned to 16."""

    def send(self, rank: int, message: Tensor) -> None:
        """Begin to send uint8 `[n]` on the channel's device; it must not be changed later.

        It is a PeerError where an earlier message to the same process could not be sent in time.
        """

    def receive(self, rank: int, size: int) -> Arrival:
        """Begin to receive one message of at most `size` bytes."""

    def together(self) -> AbstractContextManager[object]:
        """Within, messages may begin at the end, all at once: nothing is waited for there."""


Active: TypeAlias = Callable[[int], NDArray[np.bool_] | None]
"""Of a step: which nodes, bool `[all nodes]`; None: all."""


def everybody(k: int) -> None:
    """All nodes, at every step."""


def row_bytes(value: Tensor) -> int:
    """Of one row of `[nodes, ...]`, whole."""
    return value.shape[1:].numel() * value.element_size()


def sizes(values: Sequence[Tensor], coding: Coding | None) -> NDArray[np.int64]:
    """Bytes of one message of each node, `[1]` or `[nodes]`."""
    if coding is not None:
        return coding.bytes
    return np.asarray([sum(map(row_bytes, values))], np.int64)
