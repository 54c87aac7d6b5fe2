"""Heartbeats: a thread that tells the others that this rank lives, and sees who does not.

Heartbeats go through the store, not between ranks: a rank that waits for a message, computes or
loads data beats all the same, and one whose process ended, was stopped or lost its network does
not. The first rank to be sure writes why the run ends; all others read it, and so agree.

Every rank reads every heartbeat: n^2 short texts each beat, 128 KB/s for 64 ranks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tacit.communication.cluster.store import KeyValueStore
from tacit.communication.received import HEARTBEAT
from tacit.communication.reports import PeerProgress, describe_rank, lost, read_report, write_report
from tacit.errors import PeerError, TacitError

_END = "end"
_MISSED = 2  # looks in a row without a new heartbeat: one may be missed by chance


class Heartbeat(NamedTuple):
    """What a heartbeat says, and as it is written; see `PeerProgress`."""

    beat: int = -1
    step: int = -1
    waiting: int | None = None
    done: bool = False

    @classmethod
    def read(cls, text: str, rank: int) -> Heartbeat:
        """What such a text says; a heartbeat that never beats where it says nothing."""
        try:
            return cls(*HEARTBEAT.read(text, rank, "heartbeat"))
        except PeerError:
            return cls()


@dataclass
class Seen:
    """What is known of a rank: its latest heartbeat, whose number is -1 where none was read yet.

    `missed` is how often in a row a look found no new one, and `quiet` for how many seconds.
    """

    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    missed: int = 0
    quiet: float = 0.0

    @property
    def progress(self) -> PeerProgress:
        """What it said last."""
        said = self.heartbeat
        silent, heard = self.missed >= _MISSED, said.beat >= 0
        return PeerProgress(said.step, said.waiting, said.done, silent=silent, heard=heard)


def beat_of(timeout: float) -> float:
    """Seconds between heartbeats: four in the time that `Cluster.diagnose` may take."""
    return min(max(timeout / 20, 0.05), 0.5)


def silence_of(timeout: float) -> float:
    """Seconds without a heartbeat after which a rank is lost."""
    return max(timeout / 4, 5 * beat_of(timeout))


class Watch:
    """The heartbeats of all ranks, and why the run ends if it must.

    `store` is a connection of its own, `timeout` is `[train].timeout` in seconds, and
    `kept_by_rank_0` says whether the store goes when rank 0 ends.

    Attributes:
        step, waiting: what this rank's heartbeat says; to be set.
        hosts: gives of each rank the nodes that it hosts, for messages; to be set.
        looks: how many times the others' heartbeats have been read.
    """

    def __init__(
        self,
        store: KeyValueStore,
        rank: int,
        processes: int,
        timeout: float,
        *,
        kept_by_rank_0: bool,
    ) -> None:
        self.step = -1
        self.waiting: int | None = None
        self.hosts: Callable[[], Sequence[Sequence[int]]] = tuple
        self.seen = [Seen() for _ in range(processes)]
        self.looks = 0
        self.beat, self.silence, self._timeout = beat_of(timeout), silence_of(timeout), timeout
        self._store, self._rank, self._kept_by_rank_0 = store, rank, kept_by_rank_0
        self._beats = 0
        self._end = ""
        self._lost: PeerError | None = None
        self._done = False
        self._wake, self._ending = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="tacit-watch", daemon=True)
        self._thread.start()

    def failure(self) -> TacitError | None:
        """Why the run ends, as far as this rank has seen; None: it does not."""
        return read_report(self._end) if self._end else self._lost

    def end(self, report: str) -> TacitError:
        """Write why the run ends, unless another has; returns the reason that stands.

        `report` is of `write_report`.
        """
        self._end = self._store.first(_END, report)
        return read_report(self._end)

    def close(self, linger: float) -> None:
        """Say that this rank is done, and end the thread.

        It waits `linger` seconds, at most, for the others to be done.
        """
        self._done = True
        self._wake.set()
        deadline = time.monotonic() + linger
        while time.monotonic() < deadline and self._thread.is_alive() and not self._all_done():
            time.sleep(0.01)
        self._ending.set()
        self._wake.set()
        self._thread.join(0.8)
        self._store.close()

    def _all_done(self) -> bool:
        others = [seen for rank, seen in enumerate(self.seen) if rank != self._rank]
        return all(seen.heartbeat.done or seen.quiet > self.silence for seen in others)

    def _run(self) -> None:
        before = time.monotonic()
        try:
            while not self._ending.is_set():
                self._say()
                now = time.monotonic()
                # This process may itself have been stopped, or slow: that is nobody's silence.
                self._look(min(now - before, 2 * self.beat))
                before = now
                self._wake.wait(self.beat)
                self._wake.clear()
            self._say()
        except PeerError as error:
            # Where rank 0 keeps the store and has ended as it should, nothing was lost.
            if not (self._kept_by_rank_0 and self.seen[0].heartbeat.done):
                self._lost = error

    def _say(self) -> None:
        self._beats += 1
        heartbeat = Heartbeat(self._beats, self.step, self.waiting, self._done)
        self.seen[self._rank].heartbeat = heartbeat
        self._store.put(_heart(self._rank), HEARTBEAT.write(heartbeat))

    def _look(self, passed: float) -> None:
        self._end = self._store.first(_END, "") or self._end
        others = [rank for rank in range(len(self.seen)) if rank != self._rank]
        present = [
            rank
            for rank in others
            if self.seen[rank].heartbeat.beat >= 0 or self._store.has([_heart(rank)])
        ]
        texts = dict(zip(present, self._store.get_all(list(map(_heart, present))), strict=True))
        for rank in others:
            seen = self.seen[rank]
            heartbeat = Heartbeat.read(texts[rank], rank) if rank in texts else Heartbeat()
            moved = heartbeat != seen.heartbeat
            seen.heartbeat = heartbeat
            seen.missed = 0 if moved else seen.missed + 1
            seen.quiet = 0.0 if moved else seen.quiet + passed
        self.looks += 1
        for rank in others:
            heartbeat, quiet = self.seen[rank].heartbeat, self.seen[rank].quiet
            # All have met: one that has not beaten since may have been stopped right after.
            limit = self.silence if heartbeat.beat >= 0 else self._timeout
            if quiet > limit and not heartbeat.done and not self._end:
                self.end(write_report(self._silent(rank, limit)))

    def _silent(self, rank: int, limit: float) -> PeerError:
        step = self.seen[rank].heartbeat.step
        at = f", last seen at step {step}" if step >= 0 else ""
        state = f"was lost{at}: it has given no sign of life for {limit:g} s"
        return lost(describe_rank(rank, self.hosts()), state)


def _heart(rank: int) -> str:
    return f"heartbeat/{rank}"
