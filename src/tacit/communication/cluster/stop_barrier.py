"""Stopping at the same step everywhere, without stopping anybody to agree on it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tacit.communication.received import GATE
from tacit.errors import PeerError

__all__ = ["Notes", "StopBarrier"]

_ASKED = "gates/asked"
_APART = 0.5  # seconds between gates, so that a gate is published about one second ahead


class Notes(Protocol):
    """What gates need of a store; see `tacit.communication.cluster.store.KeyValueStore`."""

    def set(self, key: str, text: str) -> None:
        """Write a text."""

    def has(self, keys: list[str]) -> bool:
        """Whether all of these are written."""

    def delete(self, key: str) -> None:
        """Forget a key."""


@dataclass(frozen=True)
class _Gate:
    number: int
    step: int
    stop: bool


class StopBarrier:
    """Steps at which a rank looks whether to stop; each rank asks once before every step.

    Gate i is the i-th of these steps, s_0 < s_1 < ..., and a flag, whether the run stops there.
    Gates 0 and 1 are `first` and `first + 1`, without a stop. Rank 0, when it passes gate i,
    writes gate i + 2; every other rank, when it passes gate i >= 1, reads gate i + 1.

    *All ranks stop at the same step.* A gate is written once, by rank 0, before anybody knows
    it; a rank goes on from gate i only when it knows gate i + 1, hence at every step it knows
    the nearest gate that lies ahead, and that gate is the same for all. It stops at a gate if
    and only if the gate says so. No assumption on how far ranks are apart is used: a rank that is
    ahead of rank 0 waits, at gate i, until rank 0 has passed gate i - 1.

    *The wait cannot lock.* A rank that waits at gate i for rank 0 has sent all that belongs to
    steps before s_i, and rank 0 is at a step before s_i: it never waits here, and by induction
    over steps it, and whoever it waits for, can go on. In practice nobody waits, for gate i + 1 is
    written about a second before anyone reaches gate i.

    Args:
        rank: of this process.
        first: the first step of the run, the same on every rank.
        notes: where gates are written.
        read: the text under a key, once it is there; may wait.
        passed: the least step that any rank is known to have begun; gates before it are forgotten.
        clock: seconds.
    """

    def __init__(
        self,
        rank: int,
        first: int,
        notes: Notes,
        *,
        read: Callable[[str], str],
        passed: Callable[[], int] = lambda: -1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._leads = rank == 0
        self._notes, self._read, self._passed, self._clock = notes, read, passed, clock
        self._here = _Gate(0, first, stop=False)
        self._ahead = deque([_Gate(1, first + 1, stop=False)])
        self._written: deque[_Gate] = deque()
        self._asked = False
        self._last = (first, clock())
        self._gap = 1

    def stop(self, step: int, asked: bool) -> bool:
        """Whether the run stops before this step; the same answer on every rank.

        Args:
            step: which is next; every step from `first` on is asked for, in order.
            asked: whether this process was asked to stop.

        Raises:
            PeerError: from reading or writing; also if a gate makes no sense.
        """
        if asked and not self._asked:
            if not self._leads:
                self._notes.set(_ASKED, "yes")
            self._asked = True
        while step >= self._here.step and not self._here.stop:
            if self._leads:
                self._publish(step)
            elif not self._ahead:
                self._ahead.append(self._following())
            self._here = self._ahead.popleft()
        return self._here.stop and step >= self._here.step

    def _following(self) -> _Gate:
        number = self._here.number + 1
        gate = _Gate(number, *GATE.read(self._read(_key(number)), 0, "gate"))
        if gate.step <= self._here.step:
            raise PeerError("rank 0 sent a gate that lies behind the one before it")
        return gate

    def _publish(self, step: int) -> None:
        last = self._ahead[-1]
        if last.stop:
            return
        now = self._clock()
        steps, seconds = step - self._last[0], now - self._last[1]
        if steps > 0:
            wanted = _APART * steps / seconds if seconds > 0 else 2 * self._gap
            self._gap = max(1, min(int(wanted), 2 * self._gap))
        self._last = (step, now)
        stop = self._asked or self._notes.has([_ASKED])
        gate = _Gate(last.number + 1, last.step + (1 if stop else self._gap), stop)
        self._notes.set(_key(gate.number), GATE.write((gate.step, gate.stop)))
        self._ahead.append(gate)
        self._written.append(gate)
        # Who has begun a step after a gate's own has read it before.
        while self._written and self._written[0].step < self._passed():
            self._notes.delete(_key(self._written.popleft().number))


def _key(number: int) -> str:
    return f"gates/{number}"
