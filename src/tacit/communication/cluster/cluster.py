"""The processes of a run as one of them sees the others: agreeing, and finding out who failed."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from tacit.communication import reports
from tacit.communication.cluster.store import KeyValueStore, open_store
from tacit.communication.cluster.watch import Watch
from tacit.communication.crew import Crew
from tacit.communication.peers import PeerState
from tacit.communication.received import STEP, TOKEN
from tacit.errors import PeerError, TacitError

if TYPE_CHECKING:
    import torch

    from tacit.communication.cluster.channel import RackGatherer, TorchChannel

T = TypeVar("T")

START_UP = 600.0  # seconds that ranks may be apart while they load data and models
_LOOKS = 3  # of the watch, before somebody is blamed
_AWAY = 4  # looks in a row without a new heartbeat, of a rank that is then shown as away
_ASK_WHO = 1.0  # seconds between two questions who has not come yet


@dataclass(frozen=True)
class Place:
    """A process' place among the others.

    `address` is that of the rendezvous, as a number, of which rank 0 keeps the store, or a launcher
    (`keeps_store`), whose run has the `run_id`. `settings` are to be set in the environment before
    a process group is made.
    """

    rank: int
    processes: int
    address: str
    port: int
    keeps_store: bool
    run_id: str
    settings: Mapping[str, str] = field(default_factory=dict)


class Cluster(Crew):
    """The one object that a run of several processes holds; made by `connect`. Who is lost ends it.

    Attributes:
        timeout: seconds, `[train].timeout`.
        start_up: seconds that ranks may be apart while they load data and models.
    """

    def __init__(
        self,
        place: Place,
        store: KeyValueStore,
        lasting: KeyValueStore,
        watch: Watch,
        *,
        timeout: float,
        start_up: float = START_UP,
        server: object = None,
    ) -> None:
        self._store, self._lasting, self._watch = store, lasting, watch
        super().__init__(place.rank, [f"rank {rank}" for rank in range(place.processes)])
        self.place, self.timeout, self.start_up = place, timeout, start_up
        self.settings = place.settings
        watch.hosts = lambda: self.hosts
        self._server = server  # kept alive: with it goes the store
        self._absent: tuple[int, ...] = ()  # who has not yet shared what this rank waits for

    @property
    def to_blame(self) -> float:
        """Seconds that `diagnose` may take: part of the timeout."""
        return min(2.0, self.timeout / 4)

    def state(self, key: str, text: str) -> str:
        """The text itself: what stands in the store is not read back."""
        return self._store.put(f"{key}/{self.rank}", text)

    def collect(
        self, key: str, ranks: Iterable[int], what: str, *, loading: bool = False
    ) -> dict[int, str]:
        """See `Link.collect`."""
        keys = {rank: f"{key}/{rank}" for rank in ranks}
        limit, asked = self.start_up if loading else self.timeout, time.monotonic()

        def missing() -> list[int]:
            return [rank for rank, key in keys.items() if not self._store.has([key])]

        def come() -> bool:
            nonlocal asked
            if self._store.has(list(keys.values())):
                return True
            if time.monotonic() - asked > _ASK_WHO:
                self._absent, asked = tuple(missing()), time.monotonic()
                self.waiting(next(iter(self._absent), None))
            return False

        def late() -> TacitError:
            absent = missing() or list(keys)
            if not loading:
                return self.diagnose(absent[0], f"no word from it for {limit:g} s")
            named = ", ".join(reports.describe_rank(rank, self.hosts) for rank in absent)
            return self._verdict(PeerError(f"{named} did not send the {what} within {limit:g} s"))

        try:
            self._until(come, limit, late)
        finally:
            self._absent = ()
        self.waiting(None)
        return dict(zip(keys, self._store.get_all(list(keys.values())), strict=True))

    def forget(self, keys: Iterable[str]) -> None:
        """See `Link.forget`."""
        for key in keys:
            self._store.delete(f"{key}/{self.rank}")

    def report(self, error: BaseException) -> None:
        """Tell the others why this rank ends; they raise the same kind, `rank 2: <message>`.

        The first report of a run stands. Where the store has gone there is nobody to tell.
        """
        if not isinstance(error, TacitError):
            error = PeerError("it ended with an error of its own; see its own screen")
        try:
            self._watch.end(reports.write_report(error, self.rank))
        except PeerError:
            return

    def at(self, step: int) -> None:
        """Say in the heartbeat which step this rank has begun."""
        self._watch.step = step

    def waiting(self, rank: int | None) -> None:
        """Say in the heartbeat for whom this rank waits; None: for nobody."""
        self._watch.waiting = rank

    def check(self) -> None:
        """Raise why the run ends, if it does, as far as the watch has seen; asks no network.

        See `Peers.check`: a lost rank may be the one that keeps the rendezvous.
        """
        failure = self._watch.failure()
        if failure is not None:
            raise failure

    def diagnose(self, waiting_for: int, reason: str) -> TacitError:
        """The error to raise when a message did not come, the same on every rank if possible.

        What another rank reported, or the rank whose heartbeat stopped; else the one at the end of
        the chain of those that wait for one another. Takes at most 2 s or a quarter of the
        timeout, the less of both, for the heartbeats to tell.

        The message was to come from rank `waiting_for`; `reason` says how the wait ended, in words.
        """
        self.waiting(waiting_for)
        enough = self._watch.looks + _LOOKS
        deadline = time.monotonic() + self.to_blame
        while self._watch.looks < enough and time.monotonic() < deadline:
            failure = self._watch.failure()
            if failure is not None:
                return failure
            time.sleep(self._watch.beat / 5)
        progress = {rank: seen.progress for rank, seen in enumerate(self._watch.seen)}
        names = [reports.describe_rank(rank, self.hosts) for rank in progress]
        waits = reports.awaited(self.rank, waiting_for, progress)
        return self._verdict(reports.first_failure(waits, reason, progress, names))

    def saved(self, step: int) -> int:
        """See `Peers.saved`; 0 before there is any checkpoint that every rank has."""
        keys = [f"saved/{rank}" for rank in range(self.processes)]
        self._store.put(keys[self.rank], STEP.write(step))
        if not self._store.has(keys):
            return 0
        return min(
            step if rank == self.rank else STEP.read(text, rank, "step of a checkpoint")
            for rank, text in enumerate(self._store.get_all(keys))
        )

    def seen(self) -> Sequence[PeerState]:
        """What the heartbeats say of every rank; see `Peers.seen`."""
        states = [
            reports.peer_state(
                rank, self.names[rank], seen.progress, seen.quiet, away=seen.missed >= _AWAY
            )
            for rank, seen in enumerate(self._watch.seen)
        ]
        own = reports.PeerProgress(self._watch.step, self._watch.waiting)
        shown = reports.peer_state(self.rank, self.names[self.rank], own, 0.0)
        if self._absent:
            shown = replace(shown, waiting_for=self._absent)
        return [*states[: self.rank], shown, *states[self.rank + 1 :]]

    def note(self, name: str, text: str) -> None:
        """See `Crew.note`."""
        self._lasting.put(name, text)

    def noted(self, name: str) -> str | None:
        """See `Crew.noted`."""
        return self._lasting.get_all([name])[0] if self._lasting.has([name]) else None

    def connect(
        self, device: torch.device, numbers: Sequence[int], added: int, stack: ExitStack
    ) -> tuple[TorchChannel, RackGatherer]:
        """See `Crew.connect`."""
        import torch
        from torch._C._distributed_c10d import PrefixStore

        from tacit.communication.cluster.channel import RackGatherer, open_channel

        os.environ.update(self.settings)  # which interface gloo binds to
        # Where the process groups of this attempt find each other.
        token, *_ = self.share("process group", secrets.token_hex(8), TOKEN)

        def connected() -> list[TorchChannel]:
            own = open_store(self.place.address, self.place.port, self.timeout)
            store, patience = PrefixStore(f"tacit/{token}", own), self.timeout - self.to_blame
            return [
                open_channel(
                    store,
                    self.rank,
                    self.processes,
                    where,
                    self.timeout,
                    self.diagnose,
                    self.waiting,
                    name=name,
                    patience=patience,
                )
                for name, where in (("channel", device), ("gatherer", torch.device("cpu")))
            ]

        channel, pipe = self._watched(connected)
        stack.callback(channel.close)
        stack.callback(pipe.close)
        return channel, RackGatherer(pipe, self.names, numbers, self._reached)

    def _reached(self, rank: int, step: int) -> bool:
        """Whether a rank has begun a step, as far as its heartbeat has said."""
        return self._watch.seen[rank].heartbeat.step >= step

    def close(self) -> None:
        """End the watch, within a second; the others do not miss a rank that has closed.

        Where rank 0 keeps the store, it waits for the others to close first, up to 2 s: they
        could not read why it ended otherwise.
        """
        self._watch.close(2.0 if self._server is not None else 0.0)
        self._lasting.close()
        self._store.close()
        self._server = None

    def _verdict(self, error: PeerError) -> TacitError:
        try:
            return self._watch.end(reports.write_report(error))
        except PeerError as gone:
            return self._watch.failure() or gone

    def _until(
        self, found: Callable[[], bool], limit: float, late: Callable[[], TacitError]
    ) -> None:
        deadline = time.monotonic() + limit
        pause = 0.002
        while not found():
            self.check()
            if time.monotonic() > deadline:
                raise late()
            time.sleep(pause)
            pause = min(2 * pause, 0.1)

    def _watched(self, work: Callable[[], T]) -> T:
        """What comes of calls that may never return: where who keeps the store was stopped.

        A thread of its own makes them, and is left alone when the run ends meanwhile.
        """
        answer: Future[T] = Future()

        def call() -> None:
            try:
                answer.set_result(work())
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=call, name="tacit-connecting", daemon=True).start()
        limit = 4 * self.timeout  # two groups, in each of which all assemble and then connect
        reason = f"the processes could not be connected within {limit:g} s"
        self._until(answer.done, limit, lambda: self._verdict(PeerError(reason)))
        return answer.result()
