"""Gathers every process's part of a step's metrics on rank 0, and stops nobody.

One thread in each process, over a channel of its own. Rank 0 takes the parts of a mark (a step at
which there are metrics) in the order of the ranks, once it has put its own; the others' wait with
their senders. How long each is, the plan says (`tacit.communication.marks`).

The threads wait as long as the channel lets them: a rank may lag behind rank 0 by more than one
wait of a step. That a rank is *lost*, the exchange of the steps finds out, and the heartbeat. The
waits of `put` and `finish`, which hold up the run, are limited.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from tacit.communication import marks
from tacit.communication.cluster.channel import Diagnose, open_channel
from tacit.communication.exchange.protocol import Channel

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

PATIENCE = 86400.0
"""Seconds that a thread waits for one message; nothing else waits for the thread this long."""

_PENDING = 4


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


class Gatherer:
    """Collects marks; `put` and `finish` in every process, `ready` on rank 0.

    Args:
        channel: used by nobody else, on the CPU; with `PATIENCE`, and `LostError` as what it makes.
        timeout: seconds that `put` may have to wait.
        diagnose: makes the error for a rank that was waited for in vain; only called where the run
            asks (`put`, `ready`, `finish`).
        numbers: that the part of each rank has.
    """

    def __init__(
        self, channel: Pipe, numbers: Sequence[int], timeout: float, diagnose: Diagnose
    ) -> None:
        self._channel, self._numbers = channel, numbers
        self._timeout, self._diagnose = timeout, diagnose
        self._changed = threading.Condition()  # of what the thread and the run both touch:
        self._pending = 0  # marks that were put and are not taken, or on rank 0 not complete
        self._complete: list[tuple[int, list[Tensor]]] = []
        self._failure: Callable[[], Exception] | None = None
        self._awaited = 1 if channel.rank == 0 else 0
        self._queue: queue.SimpleQueue[tuple[int, Tensor] | None] = queue.SimpleQueue()
        handle = self._collect if channel.rank == 0 else self._deliver
        self._thread = threading.Thread(
            target=self._run, args=(handle,), name="tacit-gatherer", daemon=True
        )
        self._thread.start()

    def put(self, step: int, part: Tensor) -> None:
        """This process's part of the next mark; every process puts the same steps in order.

        Returns at once, unless four marks are under way: then it waits for the first of them. The
        vector is float64, and is not changed afterwards.

        Raises:
            PeerError: a part that came was wrong.
            Exception: what `diagnose` makes, if a rank was lost or nothing moves within the
            timeout.
        """
        self._wait(lambda: self._pending < _PENDING, self._timeout)
        with self._changed:
            self._pending += 1
        self._queue.put((step, part))

    def ready(self) -> list[tuple[int, list[Tensor]]]:
        """The marks whose parts have all come since it was last asked, in order; on rank 0.

        Each is a step and the vectors in the order of ranks.

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

    def _run(self, handle: Callable[[int, Tensor], None]) -> None:
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

    def _deliver(self, step: int, part: Tensor) -> None:
        self._channel.send(0, marks.written(step, part))
        self._channel.finish()

    def _collect(self, step: int, part: Tensor) -> None:
        parts = [part]
        for rank in range(1, self._channel.processes):
            self._awaited, numbers = rank, self._numbers[rank]
            message = self._channel.receive(rank, marks.message_bytes(numbers)).wait()
            parts.append(marks.read(message, step, numbers, f"rank {rank}"))
        with self._changed:
            self._complete.append((step, parts))


def open_gatherer(
    store: Store,
    rank: int,
    processes: int,
    numbers: Sequence[int],
    timeout: float,
    diagnose: Diagnose,
) -> Gatherer:
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
    return Gatherer(channel, numbers, timeout, diagnose)


def _nobody_asks(rank: int | None) -> None:
    """For whom the thread waits is no concern of the heartbeat, which speaks of the run."""


def _same(error: Exception) -> Exception:
    return error
