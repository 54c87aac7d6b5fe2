"""Gathers every process's part of a step's metrics on rank 0, and stops nobody.

One thread in each process, over a channel of its own. Rank 0 takes the parts of a mark (a step at
which there are metrics) in the order of the ranks, once it has put its own; the others' wait with
their senders. A part is two messages: a head of three numbers (int64: the step, the length of the
document, the length of the vector), then the document as JSON, padded to a multiple of 8 bytes,
and the vector as float64. The head says how long the body is; both lengths are checked before
anything is received, the document is parsed into the type that its schema says, and nothing is
unpickled.

The threads wait as long as the channel lets them: a rank may lag behind rank 0 by more than one
wait of a step. That a rank is *lost*, the exchange of the steps finds out, and the heartbeat. The
waits of `put` and `finish`, which hold up the run, are limited.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from tacit.communication.cluster.channel import Diagnose, open_channel
from tacit.communication.exchange.protocol import Channel
from tacit.communication.received import Form
from tacit.errors import PeerError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

T = TypeVar("T")

PATIENCE = 86400.0
"""Seconds that a thread waits for one message; nothing else waits for the thread this long."""

_PENDING = 4
_HEAD_BYTES = 24
_WHAT = "document of metrics"


class LostError(Exception):
    """A rank that the thread waited for in vain: blamed when the run asks, not by the thread."""

    def __init__(self, rank: int, reason: str) -> None:
        self.rank, self.reason = rank, reason
        super().__init__(f"rank {rank}: {reason}")


class Pipe(Channel, Protocol):
    """A channel that can also say when all that was sent has been taken."""

    def finish(self) -> None:
        """Wait until every message that was sent has been taken."""

    def close(self) -> None:
        """Let go of the connections, at once."""


class Gatherer(Generic[T]):
    """Collects marks; `put` and `finish` in every process, `ready` on rank 0.

    Args:
        channel: used by nobody else, on the CPU; with `PATIENCE`, and `LostError` as what it makes.
        timeout: seconds that `put` may have to wait.
        diagnose: makes the error for a rank that was waited for in vain; only called where the run
            asks (`put`, `ready`, `finish`).
    """

    def __init__(self, channel: Pipe, schema: Form[T], timeout: float, diagnose: Diagnose) -> None:
        self._channel, self._schema = channel, schema
        self._timeout, self._diagnose = timeout, diagnose
        self._changed = threading.Condition()  # of what the thread and the run both touch:
        self._pending = 0  # marks that were put and are not taken, or on rank 0 not complete
        self._complete: list[tuple[int, list[tuple[T, Tensor]]]] = []
        self._failure: Callable[[], Exception] | None = None
        self._awaited = 1 if channel.rank == 0 else 0
        self._queue: queue.SimpleQueue[tuple[int, bytes, Tensor] | None] = queue.SimpleQueue()
        handle = self._collect if channel.rank == 0 else self._deliver
        self._thread = threading.Thread(
            target=self._run, args=(handle,), name="tacit-gatherer", daemon=True
        )
        self._thread.start()

    def put(self, step: int, document: T, vector: Tensor) -> None:
        """This process's part of the next mark; every process puts the same steps in order.

        Returns at once, unless four marks are under way: then it waits for the first of them. The
        vector, `[d]` of any dtype and device, is copied; it is of the same length in every process.

        Raises:
            TacitError: the document is too long.
            ValueError: the vector is none.
            PeerError: a part that came was wrong.
            Exception: what `diagnose` makes, if a rank was lost or nothing moves within the
            timeout.
        """
        text = self._schema.write(document).encode()
        if vector.ndim != 1:
            raise ValueError(f"a vector is [d], not {list(vector.shape)}")
        copied = vector.detach().to("cpu", torch.float64, copy=True)
        self._wait(lambda: self._pending < _PENDING, self._timeout)
        with self._changed:
            self._pending += 1
        self._queue.put((step, text, copied))

    def ready(self) -> list[tuple[int, list[tuple[T, Tensor]]]]:
        """The marks whose parts have all come since it was last asked, in order; on rank 0.

        Each is a step and, in the order of ranks, the documents and the vectors, float64 `[d]` on
        the CPU.

        Raises:
            PeerError: a part that came was wrong.
            Exception: what `diagnose` makes: a rank was lost.
        """
        with self._changed:
            complete, self._complete = self._complete, []
        if self._failure is not None and not complete:
            raise self._failure()
        return complete

    def finish(self, limit: float) -> None:
        """Wait until all that was put has been taken by rank 0, and there, until all has come.

        `limit` is in seconds.

        Raises:
            PeerError: a part that came was wrong.
            Exception: what `diagnose` makes, if a rank was lost or once the limit has passed.
        """
        self._wait(lambda: self._pending == 0, limit)

    def close(self) -> None:
        """End the thread if it is idle, and let go of the channel; at once, whatever happened."""
        self._queue.put(None)
        self._thread.join(timeout=0.2)
        if not self._thread.is_alive():
            self._channel.close()

    def _wait(self, until: Callable[[], bool], limit: float) -> None:
        deadline = time.monotonic() + limit
        with self._changed:
            while self._failure is None and not until():
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            if self._failure is None and until():
                return
            late = partial(
                self._diagnose, self._awaited, f"its metrics did not move in {limit:g} s"
            )
            failure = self._failure or late
        raise failure()  # outside the lock: diagnose may take its time

    def _run(self, handle: Callable[[int, bytes, Tensor], None]) -> None:
        try:
            while (item := self._queue.get()) is not None:
                handle(*item)
                with self._changed:
                    self._pending -= 1
                    self._changed.notify_all()
        except LostError as lost:
            self._fail(partial(self._diagnose, lost.rank, lost.reason))
        except Exception as error:  # of whatever kind: it is raised again where the run asks
            self._fail(partial(_same, error))

    def _fail(self, failure: Callable[[], Exception]) -> None:
        with self._changed:
            self._failure = failure
            self._changed.notify_all()

    def _deliver(self, step: int, text: bytes, vector: Tensor) -> None:
        head = torch.tensor([step, len(text), len(vector)], dtype=torch.int64)
        body = torch.zeros(_body_bytes(len(text), len(vector)), dtype=torch.uint8)
        body[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        body[len(body) - 8 * len(vector) :] = vector.view(torch.uint8)
        self._channel.send(0, head.view(torch.uint8))
        self._channel.send(0, body)
        self._channel.finish()

    def _collect(self, step: int, text: bytes, vector: Tensor) -> None:
        parts = [(self._schema.read(text, 0, _WHAT), vector)]
        for rank in range(1, self._channel.processes):
            self._awaited = rank
            parts.append(self._part_of(rank, step, len(vector)))
        with self._changed:
            self._complete.append((step, parts))

    def _part_of(self, rank: int, step: int, length: int) -> tuple[T, Tensor]:
        head = _whole(rank, self._channel.receive(rank, _HEAD_BYTES).wait(), _HEAD_BYTES)
        theirs, text_bytes, theirs_length = head.view(torch.int64).tolist()
        if theirs != step:
            raise PeerError(f"rank {rank} sent metrics of step {theirs}, where {step} was due")
        if theirs_length != length:
            raise PeerError(
                f"rank {rank} sent metrics of {theirs_length} parameters; rank 0 has {length}"
            )
        if not 0 <= text_bytes <= self._schema.longest:
            raise PeerError(
                f"rank {rank} sent metrics of {text_bytes} bytes; at most {self._schema.longest}"
            )
        size = _body_bytes(text_bytes, length)
        body = _whole(rank, self._channel.receive(rank, size).wait(), size)
        vector = body[size - 8 * length :].view(torch.float64).clone()
        if not bool(torch.isfinite(vector).all()):
            raise PeerError(f"rank {rank} sent metrics with a sum of models that is not finite")
        return self._schema.read(body[:text_bytes].numpy().tobytes(), rank, _WHAT), vector


def open_gatherer(
    store: Store, rank: int, processes: int, schema: Form[T], timeout: float, diagnose: Diagnose
) -> Gatherer[T]:
    """A gatherer over gloo connections of its own; every process opens one.

    `timeout` is the seconds until the others must have come, and that `put` may have to wait.

    Raises:
        PeerError: the processes could not be connected.
        Exception: what `diagnose` makes, of the first rank that did not come.
    """
    cpu = torch.device("cpu")
    try:
        channel = open_channel(
            store,
            rank,
            processes,
            cpu,
            timeout,
            LostError,
            _nobody_asks,
            name="gatherer",
            patience=PATIENCE,
        )
    except LostError as lost:
        raise diagnose(lost.rank, lost.reason) from None
    return Gatherer(channel, schema, timeout, diagnose)


def _nobody_asks(rank: int | None) -> None:
    """For whom the thread waits is no concern of the heartbeat, which speaks of the run."""


def _same(error: Exception) -> Exception:
    return error


def _body_bytes(text: int, vector: int) -> int:
    return (text + 7) // 8 * 8 + 8 * vector


def _whole(rank: int, message: Tensor, size: int) -> Tensor:
    if len(message) != size:
        raise PeerError(f"rank {rank} sent {len(message)} bytes of metrics, where {size} were due")
    return message
