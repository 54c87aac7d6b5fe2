"""Small groups of ranks for tests: real processes over loopback, or threads of this one.

The processes are forked from one server that has imported torch already, so that a group starts in
a fraction of a second. All are ended when the block ends, whatever happened.
"""

import json
import multiprocessing
import os
import socket
import sys
import threading
import time
import traceback
from collections import defaultdict, deque
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import TCPStore

from forks import forked_process
from tacit.communication.cluster.channel import open_channel
from tacit.errors import PeerError

CPU = torch.device("cpu")
START = 60.0  # seconds until all processes must have come


@dataclass
class Seat:
    """What a function that is run as a rank gets.

    Attributes:
        rank: its number.
        processes: how many there are.
        channel: to the others.
        store: where processes find each other; None for threads.
        waited: for whom the channel has waited.
    """

    rank: int
    processes: int
    channel: Any = None
    store: Any = None
    waited: list[int | None] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """How a rank ended: exit code (of threads: 0, or the error's), and value or error's text."""

    code: int | None
    value: Any


def lost(rank, reason):
    """A diagnose that takes the one waited for at its word."""
    return PeerError(f"rank {rank} was lost: {reason}")


@contextmanager
def rendezvous():
    """Hosts a store on loopback, and yields its port."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = int(bound.getsockname()[1])
        bound.listen()
        store = TCPStore(
            "127.0.0.1",
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=START),
            master_listen_fd=os.dup(bound.fileno()),
        )
        yield port
        del store


def take_seat(rank, processes, port, timeout, name="channel", diagnose=lost, batched=False):
    """Connects this process with the others, over loopback alone."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=START))
    seat = Seat(rank, processes, store=store)
    seat.channel = open_channel(
        store,
        rank,
        processes,
        CPU,
        START,
        diagnose,
        seat.waited.append,
        name=name,
        patience=timeout,
        batched=batched,
    )
    return seat


@contextmanager
def started(function, ranks, processes, port, timeout):
    """Some of the ranks as processes, each with the end of a pipe where its result comes."""
    running = []
    try:
        for rank in ranks:
            here, there = multiprocessing.Pipe(duplex=False)
            process = forked_process(
                _child, function, rank, processes, port, timeout, there, daemon=True
            )
            process.start()
            there.close()
            running.append((process, here))
        yield running
    finally:
        for process, here in running:
            process.kill()
            process.join(10)
            here.close()


def run_ranks(function, processes, *, timeout=10.0, limit=120.0):
    """Runs a function of a module in each of a group of processes.

    Args:
        function: gets a `Seat`, returns JSON.
        processes: how many.
        timeout: seconds that one wait of a channel may take.
        limit: seconds until all must have ended.
    """
    deadline = time.monotonic() + limit
    with (
        rendezvous() as port,
        started(function, list(range(processes)), processes, port, timeout) as running,
    ):
        return [_outcome(process, here, deadline) for process, here in running]


def _outcome(process, here, deadline):
    value = None
    if here.poll(max(0.0, deadline - time.monotonic())):
        try:
            value = json.loads(here.recv_bytes())
        except EOFError:
            value = None
    process.join(max(0.0, deadline - time.monotonic()))
    return Outcome(process.exitcode, value)


def _child(function, rank, processes, port, timeout, there):
    try:
        seat = take_seat(rank, processes, port, timeout)
        value, code = function(seat), 0
        seat.channel.close()
    except PeerError as error:
        value, code = str(error), error.exit_code
    except Exception:
        traceback.print_exc()
        value, code = traceback.format_exc(), 1
    there.send_bytes(json.dumps(value).encode())
    there.close()
    sys.exit(code)


class Hub:
    """What the channels of a group of threads share."""

    def __init__(self, processes):
        self.processes = processes
        self.changed = threading.Condition()
        self.letters: dict[tuple[int, int], deque[Tensor]] = defaultdict(deque)
        self.turn: dict[tuple[int, int], int] = defaultdict(int)  # arrivals waited for so far
        self.gone: set[int] = set()


class ThreadChannel:
    """A `Channel` between threads of one process; counts bytes without heads."""

    def __init__(self, hub, rank, timeout, diagnose=lost):
        self.rank, self.processes, self.bytes_sent = rank, hub.processes, 0
        self._hub, self._timeout, self._diagnose = hub, timeout, diagnose
        self._posted: dict[int, int] = defaultdict(int)

    def envelope(self, size):
        """A buffer for a message."""
        return torch.empty(size, dtype=torch.uint8)

    def send(self, rank, message):
        """See `Channel`; as many as one likes may be under way."""
        assert rank != self.rank
        assert message.dtype == torch.uint8
        assert message.ndim == 1
        with self._hub.changed:
            self._hub.letters[self.rank, rank].append(message.clone())
            self._hub.changed.notify_all()
        self.bytes_sent += len(message)

    def receive(self, rank, size):
        """See `Channel`."""
        assert rank != self.rank
        self._posted[rank] += 1
        return ThreadArrival(self, rank, size, self._posted[rank] - 1)

    def together(self):
        """Messages begin each at once."""
        return nullcontext()

    def finish(self):
        """Waits until all that was sent has been taken."""
        for (source, target), letters in list(self._hub.letters.items()):
            if source == self.rank:
                self._until(target, lambda letters=letters: not letters)

    def close(self):
        """The others find the connection closed."""
        with self._hub.changed:
            self._hub.gone.add(self.rank)
            self._hub.changed.notify_all()

    def take(self, rank, size, number):
        """The message of this number from a rank, whose turn it is once those before are taken."""
        key, hub = (rank, self.rank), self._hub
        self._until(rank, lambda: hub.turn[key] == number and bool(hub.letters[key]))
        with hub.changed:
            hub.turn[key] += 1
            letter = hub.letters[key].popleft()
            hub.changed.notify_all()
        if len(letter) > size:
            raise PeerError(f"rank {rank} sent {len(letter)} bytes, where {size} were due")
        return letter

    def _until(self, rank, there):
        with self._hub.changed:
            self._hub.changed.wait_for(lambda: there() or rank in self._hub.gone, self._timeout)
            if there():
                return
            closed = rank in self._hub.gone
        raise self._diagnose(
            rank, "its connection was closed" if closed else "nothing came from it"
        )


@dataclass
class ThreadArrival:
    """An `Arrival` between threads; several of one rank are waited for in order."""

    _channel: ThreadChannel
    _rank: int
    _size: int
    _number: int
    _letter: Tensor | None = None

    def __call__(self):
        if self._letter is None:
            self._letter = self._channel.take(self._rank, self._size, self._number)
        return self._letter


def run_threads(function, processes, *, timeout=10.0, limit=30.0, channel=ThreadChannel):
    """Runs a function in threads that stand for ranks; see `run_ranks`."""
    hub = Hub(processes)
    outcomes = [Outcome(None, None)] * processes

    def sit(rank):
        own = channel(hub, rank, timeout)
        try:
            outcomes[rank] = Outcome(0, function(Seat(rank, processes, own)))
        except PeerError as error:
            outcomes[rank] = Outcome(error.exit_code, str(error))
        except Exception:
            outcomes[rank] = Outcome(1, traceback.format_exc())
        finally:
            own.close()

    threads = [threading.Thread(target=sit, args=(rank,), daemon=True) for rank in range(processes)]
    deadline = time.monotonic() + limit
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return outcomes
