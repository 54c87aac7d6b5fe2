"""Messages between two processes over torch.distributed: NCCL where each has a GPU, else gloo.

A message is uint8, and begins on the wire with 16 bytes that the channel adds and takes away: a
mark, and the length, little-endian. gloo does not say how long the message was that filled a
buffer, and a payload at a multiple of 16 bytes may be viewed as any dtype.

What torch 2.13 does over gloo when a peer is lost, as tried on loopback:

- a peer that was killed: the wait for it ends at once, "Connection closed by peer";
- a peer that was stopped: the wait ends after its timeout, for a receive and for a send, and takes
  every other connection of the group along ("Application timeout caused pair closure");
- the group is destroyed within milliseconds in both cases, with sends and receives still under
  way, and the interpreter ends as usual. `close` therefore only lets go of the group;
- a message longer than the buffer posted for it ends the *receiver* (std::terminate), which no
  caller can catch: sizes must follow from the plan on which the processes agreed.

Over NCCL all messages of a round begin as one batch (`together`), so that nobody's send waits for
a receive that its own send holds up. That is what `torch.distributed.batch_isend_irecv` does; it
refuses a group that is not registered with the default one, which is the user's and not used here
("Group ... is not registered", torch 2.13). Over gloo a batch begins one message after the other,
there as here, and tests run it so. A message over NCCL must be exactly as long as what was
announced for it, as all of an exchange are. **NCCL has not been run**, for want of two GPUs.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from tacit.communication import marks
from tacit.communication.exchange.protocol import Arrival, Channel
from tacit.errors import PeerError, describe

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from tacit.communication.exchange.protocol import Channel

Diagnose = Callable[[int, str], Exception]
"""Makes the error to raise, of the rank that was waited for and what was seen of it."""

Waiting = Callable[[int | None], None]
"""Is told whom this process begins to wait for; None: for nobody any more."""

Group: TypeAlias = Any
"""A process group of torch.distributed, of gloo or NCCL; only the latter supports coalescing."""

HEAD = 16
"""Bytes before the payload: the mark, then the payload's length."""

_MARK = b"tacit\x00\x00\x01"
_UNDER_WAY = 2  # messages to one process; the next one waits for the first to be taken
_PLAIN = {
    "closed by peer": "its connection was closed",
    "Connection reset": "its connection was closed",
    "Broken pipe": "its connection was closed",
    "Application timeout": "all connections were given up after a wait that took too long",
    "Timed out waiting": "nothing came to or from it within {timeout:g} s",
}


class TorchChannel:
    """A `Channel` over a process group that nobody else uses.

    Messages are made and read on the `device`; gloo takes them through the host. `batched` says
    whether what is begun `together` begins as one batch, and not each at once. One wait may take
    `timeout` seconds; `diagnose` is called while `waiting` still names the rank.

    `bytes_sent` were handed to the network so far, heads included.
    """

    def __init__(
        self,
        group: Group,
        *,
        rank: int,
        processes: int,
        device: torch.device,
        timeout: float,
        diagnose: Diagnose,
        waiting: Waiting,
        batched: bool,
    ) -> None:
        self.rank, self.processes, self.bytes_sent = rank, processes, 0
        self._group: Group = group
        self._device, self._timeout = device, timeout
        self._wire = device if group.supports_coalescing else torch.device("cpu")
        self._diagnose, self._waiting = diagnose, waiting
        self._batched, self._gathering = batched, False
        self._due: list[_Operation] = []
        self._sending: dict[int, deque[tuple[_Operation, Tensor]]] = {}
        # The whole buffer of each envelope that is still in somebody's hands.
        self._envelopes: MutableMapping[Tensor, Tensor] = WeakTensorKeyDictionary()

    def envelope(self, size: int) -> Tensor:
        """A buffer uint8 `[size]` to build a message in: `send` copies a slice of it, and not it.

        The same envelope may be sent to several processes.
        """
        whole = torch.empty(HEAD + size, dtype=torch.uint8, device=self._device)
        head = bytearray(_MARK + struct.pack("<Q", size))
        whole[:HEAD] = torch.frombuffer(head, dtype=torch.uint8).to(self._device)
        payload = whole[HEAD:]
        self._envelopes[payload] = whole
        return payload

    def send(self, rank: int, message: Tensor) -> None:
        """Begin to send uint8 `[n]`; an envelope must not be changed afterwards.

        Two messages to a process may be under way; a third waits for the first. gloo sends when the
        other side has begun to receive: who sends a third before receiving anything, to one that
        does the same, waits in vain. What is not taken in time raises what `diagnose` makes.
        """
        group = self._group_for(rank)
        if message.dtype != torch.uint8 or message.ndim != 1:
            raise ValueError(f"a message is uint8 [n], not {message.dtype} {list(message.shape)}")
        whole = self._envelopes.get(message)
        if whole is None:
            own = self.envelope(len(message))
            own.copy_(message)
            whole = self._envelopes[own]
        whole = whole.to(self._wire)
        sending = self._sending.setdefault(rank, deque())
        with self._watched(rank):
            while len(sending) >= _UNDER_WAY:
                self._wait(sending[0][0])
                sending.popleft()
            sending.append((self._begin(rank, partial(group.send, [whole], rank, 0)), whole))
        self.bytes_sent += len(whole)

    def receive(self, rank: int, size: int) -> Arrival:
        """Begin to receive one message of at most `size` bytes.

        Where the connection is known to be lost, it raises what `diagnose` makes.
        """
        group = self._group_for(rank)
        whole = torch.empty(HEAD + size, dtype=torch.uint8, device=self._wire)
        whole[:HEAD].zero_()  # no head that lay in this memory before passes for one that came
        with self._watched(rank):
            begun = self._begin(rank, partial(group.recv, [whole], rank, 0))

        @cache
        def arrival() -> Tensor:
            with self._watched(rank):
                self._wait(begun)
            return _payload(rank, whole).to(self._device)

        return arrival

    @contextmanager
    def together(self) -> Iterator[None]:
        """See `Channel.together`: in one batch, where the channel is `batched`."""
        self._gathering = self._batched
        try:
            yield
        finally:
            self._gathering = False
        if self._due:
            with self._watched(self._due[0].rank):
                self._begin_due()

    def finish(self) -> None:
        """Wait until every message that was sent has been taken.

        What is not taken in time raises what `diagnose` makes.
        """
        for rank, sending in self._sending.items():
            with self._watched(rank):
                while sending:
                    self._wait(sending[0][0])
                    sending.popleft()

    def close(self) -> None:
        """Let go of the connections; at once, whatever is under way and whoever was lost."""
        self._sending.clear()
        self._due.clear()
        group, self._group = self._group, None
        if group is not None and group.supports_coalescing:
            group.abort()

    def _begin(self, rank: int, begin: Callable[[], dist.Work]) -> _Operation:
        operation = _Operation(rank, begin)
        self._due.append(operation)
        if not self._gathering:
            self._begin_due()
        return operation

    def _begin_due(self) -> None:
        due, self._due = self._due, []
        group = self._group
        if not group.supports_coalescing:
            for operation in due:
                operation.work = operation.begin()
            return
        group._start_coalescing(self._device)
        for operation in due:
            operation.begin()
        work = group._end_coalescing(self._device)
        for operation in due:
            operation.work = work

    def _wait(self, operation: _Operation) -> None:
        if operation.work is None:
            self._begin_due()
        assert operation.work is not None
        operation.work.wait(timedelta(seconds=self._timeout))

    def _group_for(self, peer: int) -> Group:
        if self._group is None:
            raise ValueError("the channel is closed")
        if peer == self.rank or not 0 <= peer < self.processes:
            raise ValueError(f"rank {self.rank} of {self.processes} has no channel to {peer}")
        return self._group

    @contextmanager
    def _watched(self, rank: int) -> Iterator[None]:
        """Say for whom this process waits, and turn what gloo throws into what `diagnose` makes."""
        self._waiting(rank)
        try:
            yield
        except RuntimeError as error:
            raise self._diagnose(rank, _plainly(error, self._timeout)) from None
        finally:
            self._waiting(None)


@dataclass(eq=False, slots=True)
class _Operation:
    """A message to or from a rank: how it begins, and what is under way once it has."""

    rank: int
    begin: Callable[[], dist.Work]
    work: dist.Work | None = None


def open_channel(
    store: Store,
    rank: int,
    processes: int,
    device: torch.device,
    timeout: float,
    diagnose: Diagnose,
    waiting: Waiting,
    *,
    name: str = "channel",
    patience: float | None = None,
    batched: bool = False,
) -> TorchChannel:
    """Connect this process with all others, which must do the same within the timeout.

    No default process group is made or used. Which network interface gloo listens on, the
    environment says (GLOO_SOCKET_IFNAME), when this is called.

    Messages lie on `device`. Where each process has a CUDA device of its own they go by NCCL, and
    otherwise by gloo, through the host, `batched` or not. Times are in seconds: one wait may take
    `patience`, or as long as the timeout where that is None. Another name is another channel, of
    connections of its own.

    Raises:
        PeerError: the processes could not be connected.
        Exception: what `diagnose` makes, of the first rank that did not come.
    """
    own = dist.PrefixStore(f"tacit-{name}", store)  # type: ignore[attr-defined]
    devices = _assemble(own, rank, processes, _own_device(device), timeout, diagnose)
    nccl = processes > 1 and all(devices) and len(set(devices)) == processes
    try:
        group = (_nccl if nccl else _gloo)(own, rank, processes, timeout)
    except RuntimeError as error:
        reason = _plainly(error, timeout)
        raise PeerError(f"rank {rank} could not be connected with the others: {reason}") from None
    channel = TorchChannel(
        group,
        rank=rank,
        processes=processes,
        device=device,
        timeout=patience or timeout,
        diagnose=diagnose,
        waiting=waiting,
        batched=batched or nccl,
    )
    if channel._batched:
        _greet(channel)
    return channel


def _own_device(device: torch.device) -> str:
    """What a process's GPU is told by, for NCCL takes one a process; empty: there is none."""
    if device.type != "cuda" or not dist.is_nccl_available():
        return ""
    return str(torch.cuda.get_device_properties(device).uuid)


def _assemble(
    store: Store, rank: int, processes: int, word: str, timeout: float, diagnose: Diagnose
) -> list[str]:
    """Wait until every process is here, or diagnose the first that is not; the word of each."""
    store.set(f"here/{rank}", word)
    keys = [f"here/{other}" for other in range(processes)]
    try:
        store.wait(keys, timedelta(seconds=timeout))
    except RuntimeError as error:
        absent = [other for other, key in enumerate(keys) if not store.check([key])]
        if not absent:
            raise PeerError(f"the rendezvous failed: {describe(error)}") from None
        reason = f"it did not come to be connected within {timeout:g} s"
        raise diagnose(absent[0], reason) from None
    return [store.get(key).decode() for key in keys]


def _gloo(store: Store, rank: int, processes: int, timeout: float) -> Group:
    return dist.ProcessGroupGloo(store, rank, processes, timedelta(seconds=timeout))


def _nccl(store: Store, rank: int, processes: int, timeout: float) -> Group:
    # Its watchdog ends the process when a peer is lost; the waits here find out by themselves.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=10 * timeout)
    return dist.ProcessGroupNCCL(store, rank, processes, options)


def _greet(channel: Channel) -> None:
    """An empty message around the ring: NCCL connects everybody in the first batch."""
    with channel.together():
        arrival = channel.receive((channel.rank - 1) % channel.processes, 0)
        channel.send((channel.rank + 1) % channel.processes, channel.envelope(0))
    arrival()


def _payload(rank: int, whole: Tensor) -> Tensor:
    """What follows the head, cut to its length."""
    head, room = bytes(whole[:HEAD].tolist()), len(whole) - HEAD
    (size,) = struct.unpack("<Q", head[len(_MARK) :])
    if not head.startswith(_MARK):
        raise PeerError(f"rank {rank} sent a message that is none of tacit's")
    if size > room:
        raise PeerError(f"rank {rank} sent a message of {size} bytes, where {room} were due")
    return whole[HEAD : HEAD + size]


def _plainly(error: Exception, timeout: float) -> str:
    """What gloo reports, in plain words where it is one of the usual cases."""
    text = str(error)
    texts = (plain.format(timeout=timeout) for words, plain in _PLAIN.items() if words in text)
    return next(texts, describe(error))


class RackGatherer(marks.Gatherer):
    """Gathers every process's part of a step's metrics, over a channel of the CPU of its own.

    gloo sends a message once the other side has begun to receive it, and says that it has come only
    to who waits for it. So rank 0 begins to receive all parts of a mark when it puts its own, and
    takes them once the heartbeats say that all have come further: then nobody is waited for
    (`reached`: whether a rank has begun a step, and so has put what it measured before). At the
    latest it does so at the next mark. How long each part is, the plan says.

    Who is ahead waits for who is behind, and never the other way: rank 0, before a mark, for parts
    of the mark before; another rank, before a mark, until rank 0 has put the second mark before.
    """

    def __init__(
        self,
        channel: TorchChannel,
        names: Sequence[str],
        numbers: Sequence[int],
        reached: Callable[[int, int], bool],
    ) -> None:
        super().__init__(channel.rank, names, numbers)
        self._channel, self._reached = channel, reached
        self._arrivals: dict[int, Arrival] = {}

    def put(self, step: int, part: Tensor) -> None:
        """See `Gatherer.put`."""
        if self.rank == 0:
            super().finish()
            sizes = {rank: marks.message_bytes(self._numbers[rank]) for rank in self.others}
            self._arrivals = {rank: self._channel.receive(rank, n) for rank, n in sizes.items()}
        super().put(step, part)

    def send(self, message: Tensor) -> None:
        """See `Gatherer.send`."""
        self._channel.send(0, message)

    def is_here(self, rank: int, step: int) -> bool:
        """As far as the heartbeats say."""
        return self._reached(rank, step)

    def take(self, rank: int) -> Tensor:
        """See `Gatherer.take`."""
        return self._arrivals[rank]()

    def finish(self) -> None:
        """See `Gatherer.finish`; elsewhere, wait until rank 0 has taken all that was put."""
        super().finish()
        self._channel.finish()
