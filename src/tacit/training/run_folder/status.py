"""`status.json`: written about once a second while a process runs, for `tacit watch`.

A thread of its own writes it, since the main thread may wait for another process inside a step.
The thread only looks at what the run keeps anyhow: a step of training does nothing for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tacit.base.private_files import write_passing
from tacit.communication.peers import Peers, PeerState
from tacit.errors import InputError, public_line
from tacit.report.documents.base import dump
from tacit.report.documents.status import (
    FINAL,
    STATUS,
    ProcessState,
    SiteStatus,
    StatusDocument,
    read_status,
)

_BETWEEN = 1.0  # seconds between two looks
_TO_END = 5.0  # seconds that a write which is under way may take


@dataclass(frozen=True)
class Standing:
    """Where the run of a process stands; see `StatusDocument`."""

    step: int = 0
    steps: int | None = None
    epsilon: float | None = None
    budget: float | None = None
    bytes_sent: int = 0


class StatusWriter:
    """Writes the status of a process into its folder until `end`, every `between` seconds."""

    def __init__(
        self,
        folder: Path,
        peers: Peers,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        between: float = _BETWEEN,
    ) -> None:
        self._path, self._peers, self._clock, self._between = folder / STATUS, peers, clock, between
        self._standing: Callable[[], Standing] = Standing
        self._state: ProcessState = "starting"
        self._shown: tuple[ProcessState, str] = ("starting", _iso(clock()))
        self._last: tuple[int, tuple[int, ...]] = (-1, ())
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tacit-status", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def follow(self, standing: Callable[[], Standing]) -> None:
        """Show from now on where this says that the run stands.

        It is called in the thread that writes; it looks, and changes nothing.
        """
        self._standing, self._state = standing, "running"

    def end(self, state: ProcessState, last_error: str | None = None) -> None:
        """Write how the process ended, for good: a state of `FINAL`, and a line that is public."""
        assert state in FINAL, state
        self._ending.set()
        self._thread.join(_TO_END)
        if not self._thread.is_alive():  # else the disk hangs, and this write would as well
            self._write(state, last_error)

    def _run(self) -> None:
        while not self._ending.is_set():
            self._write(self._state, None)
            self._ending.wait(self._between)

    def _write(self, state: ProcessState, last_error: str | None) -> None:
        document = self._document(state, last_error)
        with suppress(OSError):  # a full disk ends the run where something is lost by it, not here
            write_passing(self._path, dump(document).encode())

    def _document(self, state: ProcessState, last_error: str | None) -> StatusDocument:
        now, standing, seen = self._clock(), self._standing(), self._peers.seen()
        own = seen[self._peers.rank]
        # A healthy step waits as well, for an instant: one that is still there at the next look
        # is worth a word.
        stands = (standing.step, own.waiting_for)
        waits = state not in FINAL and bool(own.waiting_for) and stands == self._last
        self._last = stands
        state = "waiting" if waits else state
        if state != self._shown[0]:
            self._shown = (state, _iso(now))
        errors = [other.last_error for other in seen if other.last_error is not None]
        return StatusDocument(
            format_version=StatusDocument.version,
            rank=self._peers.rank,
            site=own.name,
            state=state,
            step=standing.step,
            steps=standing.steps,
            epsilon=standing.epsilon,
            budget=standing.budget,
            bytes_sent=standing.bytes_sent,
            since=self._shown[1],
            updated=_iso(now),
            waiting_for=tuple(seen[rank].name for rank in own.waiting_for) if waits else (),
            sites=_sites(seen, own.rank, standing.step, now) if len(seen) > 1 else (),
            last_error=last_error or next(iter(errors), None),
        )


def _sites(seen: Sequence[PeerState], own: int, step: int, now: datetime) -> tuple[SiteStatus, ...]:
    """Of all sites; that of this process is at a step of which it knows more than it has told."""
    return tuple(
        SiteStatus(
            rank=site.rank,
            name=site.name,
            state=site.state,
            step=step if site.rank == own else site.step,
            last_seen=None if site.quiet is None else _iso(now - timedelta(seconds=site.quiet)),
            last_error=site.last_error,
            rate=site.rate,
            frames=site.frames,
            again=site.again,
        )
        for site in seen
    )


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")


@contextmanager
def written_status(folder: Path | None, peers: Peers) -> Iterator[StatusWriter | None]:
    """The status of a process, written within; of one that fails within, why.

    Without a folder nothing is written. Whoever leaves without an error has said how it ended.
    """
    if folder is None:
        yield None
        return
    writer = StatusWriter(folder, peers)
    writer.start()
    try:
        yield writer
    except BaseException as error:
        kind = f"{type(error).__name__}: what it says stands in the log of this process alone"
        writer.end("failed", public_line(error) or kind)
        raise


def say_done(folder: Path) -> None:
    """Write that a process has ended as it should, which was killed before it could."""
    with suppress(InputError, OSError):
        ended = read_status(folder).model_copy(update={"state": "done", "last_error": None})
        write_passing(folder / STATUS, dump(ended).encode())


def begun_by(out: Path, rank: int) -> int | None:
    """How many processes have begun the run in this folder, as far as a status here says it."""
    for folder in (out / f"rank-{rank:04d}", out / "rank-0000", out):
        with suppress(InputError):
            return len(read_status(folder).sites) or 1
    return None
