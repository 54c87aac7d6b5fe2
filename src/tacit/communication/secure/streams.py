"""What the wire keeps of every other site: the stream from it, the stream to it, what it says."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from tacit.communication.received import Beat
from tacit.communication.secure.frames import RefusedError
from tacit.communication.secure.journal import FACT, NOTES, SENT, STATED, Record
from tacit.errors import InputError, LeftOutError, MeetAnewError, PeerError, TacitError

__all__ = [
    "ABSENT",
    "AWAY",
    "GRACE",
    "LEFT",
    "Incoming",
    "Outgoing",
    "PeerView",
    "Publisher",
    "SnapshotNotes",
    "begun_without",
    "check_fact",
    "cost",
    "fact_bytes",
    "forgotten",
    "given_up",
    "last_awaited",
    "left_behind",
    "left_out",
    "lost",
    "not_allowed",
    "not_met",
    "say_back",
    "say_left",
    "say_waits",
    "snapshot_records",
]

_log = logging.getLogger(__name__)

ABSENT = "0" * 32  # stands for the random number of a site without which the others began
AWAY = 5.0  # seconds without a word after which a site counts as away
LEFT = "left out "  # and a rank: what a journal says of a site that is left out
GRACE = 3  # times as long other sites wait until rank 0 has said without whom the run goes on
_TWO_BEATS = 2.0  # seconds
_FACT_BYTES = 2**23  # of one fact
_FACTS_BYTES = 2**26  # of all facts of a site
_RECORD_BYTES = 2**10  # at least what a message costs that waits to be read


class SnapshotNotes(BaseModel):
    """What a snapshot says of the streams, and what the run has put in."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    due: tuple[int, ...]
    numbers: tuple[int, ...]
    notes: dict[str, str]
    reached: int


class Publisher(Protocol):
    """What the wire needs of a carrier; see `tacit.communication.secure.carrier`."""

    def publish(self, rank: int, frame: bytes) -> None:
        """Hand a frame over for a site."""


@dataclass
class PeerView:
    """What another site was last heard to say, and when.

    Attributes:
        beat: its last beat; None before the first.
        heard: when something new came from it, by the monotonic clock.
        moved: when it last did something: a frame, another step, another one that it waits for.
        gained: when it last came further than ever before: a frame, or a step that is not ahead of
            this site's, since by its word alone anybody is ever further.
        furthest: that step.
        token: of its process, to be echoed.
        greeted: whether it has been.
    """

    beat: Beat | None = None
    heard: float = field(default_factory=time.monotonic)
    moved: float = field(default_factory=time.monotonic)
    gained: float = field(default_factory=time.monotonic)
    furthest: int = -1
    token: str | None = None
    greeted: bool = True
    order: tuple[str, int, int] = ("", -1, -1)  # of the beat that gave the token

    def hear(self, beat: Beat, now: float, step: int) -> bool:
        """Take up a beat that came now; False for one that is not newer than the last.

        Args:
            beat: of the site.
            now: by the monotonic clock.
            step: at which this site is.
        """
        before = self.beat
        if before is not None and (
            before.nonce == beat.nonce
            and (beat.start, beat.counter) <= (before.start, before.counter)
        ):
            return False
        if before is None or (beat.step, beat.waiting_for, beat.start) != (
            before.step,
            before.waiting_for,
            before.start,
        ):
            self.moved = now
        self.beat, self.heard = beat, now
        if self.furthest < beat.step <= step:
            self.furthest, self.gained = beat.step, now
        return True

    @property
    def done(self) -> bool:
        """Whether it has come to the end of the run."""
        return self.beat is not None and self.beat.state == "done"


@dataclass
class Incoming:
    """The stream from a site."""

    due: int = 0
    on_disk: int = 0  # frames before this one are in the journal on the disk
    told: int = -1  # what the last beat said of it
    missing: bool = False  # whether one came that was ahead
    waiting: dict[str, deque[Record]] = field(default_factory=dict)
    held: int = 0  # what those that wait cost, in bytes
    facts: int = 0  # likewise of its facts


@dataclass
class Outgoing:
    """The stream to a site."""

    number: int = 0  # of the next frame
    before: int = 0  # frames before this one were made by an earlier process, and may have left
    acknowledged: int = 0
    published: int = 0  # frames before this one were handed to the carrier
    kept: deque[Record] = field(default_factory=deque)  # that are not acknowledged
    held: int = 0  # what they cost, in bytes
    moved: float = field(default_factory=time.monotonic)
    asked: float = -1e9  # when they were last sent again since the site asked for it

    def hold(self, record: Record) -> None:
        """Keep a message until it is acknowledged."""
        self.kept.append(record)
        self.held += cost(record)

    def trim(self) -> None:
        """Let go of what is acknowledged."""
        while self.kept and self.kept[0].number < self.acknowledged:
            self.held -= cost(self.kept.popleft())
        self.published = max(self.published, self.acknowledged)

    def due(self, burst: int) -> list[Record]:
        """What is to be published next, of at most so many bytes, or one message."""
        batch: list[Record] = []
        size, until = 0, self.published
        for record in self.kept:
            if record.number < until:
                continue
            if size and size + len(record.body) > burst:
                break
            size += len(record.body)
            batch.append(record)
            self.published = record.number + 1
        return batch


def snapshot_records(
    notes: SnapshotNotes,
    facts: Mapping[tuple[int, str], str],
    waiting: Mapping[int, Incoming],
    kept: Mapping[int, Outgoing],
    sent: Mapping[tuple[int, int], bytes],
    stated: Mapping[str, str],
    own: int,
) -> list[Record]:
    """What a snapshot holds, in the order in which it is taken up.

    Args:
        notes: where the streams stand.
        facts: that are known, by rank and key.
        waiting: streams from others, whose messages are whole.
        kept: streams to others.
        sent: digests of what earlier processes sent beyond the step, whose segments may go.
        stated: likewise what they stated.
        own: rank of this site.
    """
    records = [Record(NOTES, body=notes.model_dump_json().encode())]
    records += [Record(FACT, rank, 0, key, text.encode()) for (rank, key), text in facts.items()]
    for stream in waiting.values():
        held = [record for queue in stream.waiting.values() for record in queue]
        records += sorted(held, key=lambda record: record.number)
    for out in kept.values():
        records += out.kept
    records += [
        Record(SENT, rank, number, "", b"", digest) for (rank, number), digest in sent.items()
    ]
    records += [Record(STATED, own, 0, key, text.encode()) for key, text in stated.items()]
    return records


def last_awaited(rank: int, own: int, peers: Mapping[int, PeerView], limit: float) -> int:
    """The site at the end of the chain of those that wait for one another.

    Args:
        rank: of the first.
        own: of this site.
        peers: what is known of the others.
        limit: seconds of the wait; what a site has said last does not count if it is away itself.
    """
    seen, now, silent = {own}, time.monotonic(), min(AWAY, max(limit / 2, _TWO_BEATS))
    while rank not in seen:
        seen.add(rank)
        beat = peers[rank].beat
        heard = beat is not None and now - peers[rank].heard <= silent
        following = beat.waiting_for if beat is not None and heard else -1
        if following in seen or following not in peers:
            break
        rank = following
    return rank


def not_met(limit: float, sites: Sequence[str], peers: Mapping[int, PeerView]) -> PeerError:
    """The error of sites that have not come within so many seconds."""
    missing = [sites[rank] for rank, view in peers.items() if view.beat is None]
    return PeerError(f"{', '.join(missing) or 'another site'} did not come within {limit:g} s")


def forgotten(name: str, folder: str) -> InputError:
    """The error of a site that has lost the session in which the others are."""
    return InputError(
        "--site",
        folder,
        f"{name} is in the middle of this run with an earlier session of this site, of which "
        "nothing is here: put the folder back, or stop all sites and start a new run",
    )


def begun_without(name: str, folder: str) -> InputError:
    """The error of a site that has taken part before, and finds that the others began anew."""
    return InputError(
        "--site",
        folder,
        f"the others have begun this run without {name}, of which a run folder is here: if it is "
        "of an earlier run, start this one under its own name; else stop all sites, and go on "
        "together with --resume",
    )


def say_waits(name: str) -> None:
    """Log that this site came after the others had begun."""
    _log.warning("%s came after the others had begun: it waits until they take it in", name)


def not_allowed(name: str, others: Sequence[str]) -> PeerError:
    """The error of a rank 0 that leaves out whom this site does not let it leave out."""
    return PeerError(
        f"{name} goes on without {', '.join(others)}, which the settings of this run or the number "
        "of those that are left do not allow"
    )


def given_up(name: str) -> MeetAnewError:
    """The error of a session that a site has given up before any step of it."""
    return MeetAnewError(f"{name} has given up the session, of which no step was begun")


def lost(rank: int, limit: float, sites: Sequence[str], view: PeerView) -> PeerError:
    """The error of a site that has not come further for so many seconds."""
    name = sites[rank]
    away = time.monotonic() - view.heard
    step = -1 if view.beat is None else view.beat.step
    awaited = -1 if view.beat is None else view.beat.waiting_for
    at = f", last seen at step {step}" if step >= 0 else ""
    if 0 <= awaited < len(sites):
        at += f", and says that it waits for {sites[awaited]}"
    what = (
        f"was away for {away:.0f} s{at}"
        if away > min(AWAY, limit / 2)
        else f"answers, but has not come further for {limit:g} s{at}"
    )
    return PeerError(f"{name} {what}; what was done is kept: start every site again with --resume")


def check_fact(record: Record, stream: Incoming, name: str, *, known: bool) -> None:
    """Refuse what a site that keeps to its word does not state; its stream then ends here.

    Raises:
        RefusedError: it is stated twice, too long or no text, or the site has stated too much.
    """
    if known:
        raise RefusedError(f"{name} stated a fact twice")
    if len(record.body) > _FACT_BYTES or stream.facts > _FACTS_BYTES:
        raise RefusedError(f"{name} stated more than sites have to state")
    try:
        record.body.decode()
    except UnicodeDecodeError:
        raise RefusedError(f"{name} stated a fact that is no text") from None


def left_out(stated: Mapping[str, str]) -> dict[int, int]:
    """Ranks that are left out, and from which step on, by what a journal holds."""
    held = {key: text for key, text in stated.items() if key.startswith(LEFT)}
    return {int(key.removeprefix(LEFT)): int(text) for key, text in held.items()}


def say_left(name: str, step: int) -> None:
    """Log that the run goes on without a site, or begins without it."""
    if step == 0:
        _log.warning(
            "%s did not come within train.patience: the run begins without it, and takes it in "
            "when it comes",
            name,
        )
        return
    _log.warning(
        "%s was away, or came no further, for longer than train.patience: the run goes on without "
        "it, and from step %d on nobody counts on it",
        name,
        step,
    )


def say_back(step: int) -> None:
    """Log that the run stops for sites that were left out."""
    _log.warning(
        "who was left out is back: the run stops after step %d, and goes on from there with all "
        "sites",
        step,
    )


def left_behind(name: str, step: int, takes_back: bool | None, here: bool) -> TacitError | None:
    """The error of a site without which the others go on.

    Args:
        name: of the site.
        step: from which on, at the latest.
        takes_back: whether they take it back; None: it is not known yet.
        here: whether the site is in their session still, and not in one that waits for that.
    """
    if takes_back is None or (takes_back and not here):
        return None
    if takes_back:
        return LeftOutError(f"{name} was left out, and the others take it back")
    if step == 0:
        expected = "came too late: the others began without it, and do not take it in any more"
        return InputError("--site", name, expected)
    return InputError(
        "--site",
        name,
        f"was left out, from step {step} at the latest: it was away, or came no further, for "
        "longer than train.patience, and the others go on without it; what it sent stays charged "
        "in its ledger",
    )


def cost(record: Record) -> int:
    """Bytes that a message takes while it is kept."""
    return _RECORD_BYTES + record.size


def fact_bytes(key: str, text: str) -> int:
    """Bytes that a fact takes."""
    return _RECORD_BYTES + len(key) + len(text)
