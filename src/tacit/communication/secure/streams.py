"""What the wire keeps of every other site: the stream from it, the stream to it, what it says."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from tacit.communication.received import Beat, Report
from tacit.communication.secure.frames import RefusedError
from tacit.communication.secure.journal import FACT, NOTES, RECEIVED, SENT, STATED, UNSENT, Record
from tacit.communication.secure.pacing import Pace

AWAY = 5.0  # seconds without a word after which a site counts as away
FACT_TOPIC = "fact "
_FACT_BYTES = 2**23  # of one fact
_FACTS_BYTES = 2**26  # of all facts of a site
_MARKS = 11  # of what was acknowledged, a second apart
_RECORD_BYTES = 2**10  # at least what a message costs that waits to be read


class _SnapshotNotes(BaseModel):
    """What a snapshot says of the streams, and what the run has put in."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    due: tuple[int, ...]
    numbers: tuple[int, ...]
    notes: dict[str, str]
    reached: int


@dataclass
class PeerView:
    """What another site was last heard to say, and when.

    Attributes:
        beat: its last beat; None before the first.
        heard: when something new came from it, by the monotonic clock.
        moved: when it last did something: a frame or a piece of one, another step, another one
            that it waits for.
        gained: when it last came further than ever before: a frame, or a step that is not ahead of
            this site's, since by its word alone anybody is ever further.
        furthest: that step.
        token: of its process, to be echoed.
        met: whether it has spoken in the session, so that what is said to it counts.
        greeted: whether it has been.
    """

    beat: Beat | None = None
    heard: float = field(default_factory=time.monotonic)
    moved: float = field(default_factory=time.monotonic)
    gained: float = field(default_factory=time.monotonic)
    furthest: int = -1
    token: str | None = None
    met: bool = False
    greeted: bool = True
    order: tuple[str, int, int] = ("", -1, -1)  # of the beat that gave the token

    def meets(self, beat: Beat, here: bool) -> bool:
        """Take up the token of a beat; whether it is of another process than the last.

        `here` says whether the beat was said in the session.
        """
        order = (beat.nonce, beat.start, beat.counter)
        if order[0] == self.order[0] and order <= self.order:
            return False
        new = beat.token != self.token
        self.order, self.token = order, beat.token
        self.greeted &= not new
        self.met |= here
        return new

    def hear(self, beat: Beat, now: float, step: int) -> bool:
        """Take up a beat that came now, with this site at `step`; whether it is a new one."""
        before = self.beat
        if before is not None and before.nonce == beat.nonce and not beat.is_after(before):
            return False
        if before is None or beat.stands != before.stands:
            self.moved = now
        self.beat, self.heard = beat, now
        if self.furthest < beat.step <= step:
            self.furthest, self.gained = beat.step, now
        return True

    def report_of(self, name: str) -> Report | None:
        """Why it ends the run, by its word: it speaks for itself alone."""
        report = None if self.beat is None else self.beat.report
        if report is None or report.line.startswith(f"{name}: "):
            return report
        return report.model_copy(update={"line": f"{name}: {report.line}"})

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
    refused: int = 0  # what the one that is due costs, where there was no room for it

    def is_due(self, number: int, most: int, size: int) -> bool:
        """Whether a frame is the one that is taken next, and there is room for it.

        Where it is not, the next beat says what is due; and it asks for that where it was lost,
        or there is room again. The frame costs `size` bytes, and `most` may wait to be read.
        """
        if number != self.due:
            self.missing |= number > self.due and not self.refused
            self.told = -1
            return False
        self.refused = size if self.held and self.held + size > most else 0
        return not self.refused

    def has_read(self, size: int, most: int) -> None:
        """One that waited was read."""
        self.held -= size
        if self.refused and not (self.held and self.held + self.refused > most):
            self.refused, self.missing, self.told = 0, True, -1


class Handed(NamedTuple):
    """A frame that the engine has taken, and that is not acknowledged."""

    began: float  # when it was handed over, by the monotonic clock
    taken: float  # when the engine had taken all of it
    size: int  # in bytes
    under_way: int  # bytes, to all sites, with it
    again: bool  # whether it was taken before


@dataclass
class Outgoing:
    """The stream to a site."""

    number: int = 0  # of the next frame
    before: int = 0  # frames before this one were made by an earlier process, and may have left
    acknowledged: int = 0
    published: int = 0  # frames before this one were handed to the carrier
    kept: deque[Record] = field(default_factory=deque)  # that are not acknowledged
    held: int = 0  # what they cost, in bytes
    handed: dict[int, Handed] = field(default_factory=dict)  # of these, what is under way
    under_way: int = 0  # its bytes
    pace: Pace = field(default_factory=Pace)
    moved: float = -1e9  # when some were acknowledged
    asked: int = -1  # the frame that was sent again since the site asked for it
    breaks: int = 0  # of the way to it
    furthest: int = 0  # frames before this one were taken by the engine at least once
    frames: int = 0  # that the engine has taken
    again: int = 0  # of these, that it had taken before
    arrived: int = 0  # bytes that were acknowledged
    marks: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_MARKS))

    @property
    def rate(self) -> float:
        """Bytes a second that were acknowledged in the last seconds."""
        if len(self.marks) < 2:
            return 0.0
        (since, before), (now, after) = self.marks[0], self.marks[-1]
        return (after - before) / (now - since)

    def took(self, number: int, began: float, taken: float, size: int, under_way: int) -> None:
        """The engine has taken a frame; see `Handed`."""
        again = number < self.furthest
        self.furthest = max(self.furthest, number + 1)
        self.frames, self.again = self.frames + 1, self.again + again
        if number >= self.acknowledged:
            self.handed[number] = Handed(began, taken, size, under_way, again)
            self.under_way += size

    def acknowledge(self, due: int, now: float) -> None:
        """The site has all frames before this one on its disk."""
        last = self.handed.get(due - 1)
        if last is not None:
            seconds = now - last.began
            clear = not last.again
            pace = self.pace
            self.pace = pace.acknowledged(seconds, last.under_way) if clear else pace.unclear()
        for number in [number for number in self.handed if number < due]:
            gone = self.handed.pop(number)
            self.under_way, self.arrived = self.under_way - gone.size, self.arrived + gone.size
        self.acknowledged, self.moved = due, now
        self.trim()

    def looked(self, now: float, breaks: int, under_way: int) -> bool:
        """Look whether all that is not acknowledged is to be sent again, and have it sent.

        It is where the way to the site was lost, and all that was under way with it, or where the
        time to acknowledge the oldest frame that the engine took has passed.

        `now` is by the monotonic clock, `breaks` is how often the way was lost, and `under_way` are
        the bytes to all sites, which share the line.
        """
        if not self.marks or now - self.marks[-1][0] >= 1.0:
            self.marks.append((now, self.arrived))
        oldest = self.handed.get(self.acknowledged)
        if breaks != self.breaks:  # the next way may be another
            self.breaks, self.asked, self.pace = breaks, -1, Pace()
        elif oldest is not None and now > max(oldest.taken, self.moved) + self.pace.wait(under_way):
            self.pace = self.pace.again()
        else:
            return False
        self.send_again()
        return True

    def send_again(self) -> None:
        """Send all that is not acknowledged once more."""
        self.published, self.under_way = self.acknowledged, 0
        self.handed.clear()

    def answer(self) -> None:
        """Send once more what the site asks for; once, until it was acknowledged or the time for it
        has passed: what was under way when it was sent again has the site ask again.
        """
        if self.asked != self.acknowledged and self.acknowledged in self.handed:
            self.asked = self.acknowledged
            self.send_again()

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


class Streams:
    """The streams of a site, the facts that it knows, and what a snapshot holds of both.

    Args:
        whole: a record with its body, where that was left on the disk; see `Journal.whole`.

    Attributes:
        incoming: the stream from each other site, by rank.
        outgoing: the stream to each, likewise.
        facts: that are known, by rank and key.
        sent: digests of what earlier processes sent, and this one may make again, by rank and
            number.
        stated: likewise facts that they stated, to be stated again.
        notes: texts that come back with a snapshot.
        reached: the last step that any process of the session has begun, if a message of it left.
    """

    def __init__(self, own: int, others: Iterable[int], whole: Callable[[Record], Record]) -> None:
        self.incoming = {rank: Incoming() for rank in others}
        self.outgoing = {rank: Outgoing() for rank in self.incoming}
        self.facts: dict[tuple[int, str], str] = {}
        self.sent: dict[tuple[int, int], bytes] = {}
        self.stated: dict[str, str] = {}
        self.notes: Mapping[str, str] = {}
        self.reached = -1
        self._own, self._whole = own, whole

    def restore(self, held: Iterable[Record], since: Iterable[Record]) -> None:
        """The streams as they were at a snapshot, with what has come and gone since."""
        for record in held:
            if record.kind == NOTES:
                notes = _SnapshotNotes.model_validate_json(bytes(record.body))
                self.notes, self.reached = notes.notes, notes.reached
                places = zip(self.incoming, notes.due, notes.numbers, strict=True)
                for rank, due, number in places:
                    self.incoming[rank].due = self.incoming[rank].on_disk = due
                    out = self.outgoing[rank]
                    out.number = out.before = out.acknowledged = out.published = number
            elif record.kind == FACT:
                self.know(record.rank, record.topic, str(record.body, "utf-8"))
            elif record.kind == RECEIVED:
                self.accept(record)
            elif record.kind == UNSENT:
                self.outgoing[record.rank].hold(record)
            else:
                self._take_up(record)
        for out in self.outgoing.values():
            if out.kept:
                out.acknowledged = out.published = out.kept[0].number
        for record in since:
            if record.kind == RECEIVED:
                stream = self.incoming[record.rank]
                if record.number == stream.due:
                    stream.due = stream.on_disk = record.number + 1
                    self.accept(record)
            else:
                self._take_up(record)

    def _take_up(self, record: Record) -> None:
        """What an earlier process has sent or stated, and this one may make again."""
        if record.kind == STATED:
            self.stated.setdefault(record.topic, str(record.body, "utf-8"))
            return
        self.reached = max(self.reached, int(record.body or b"-1"))
        if record.number >= (out := self.outgoing[record.rank]).number:
            self.sent.setdefault((record.rank, record.number), record.digest)
            out.before = max(out.before, record.number + 1)

    def records(self) -> list[Record]:
        """What a snapshot holds, in the order in which `restore` takes it up."""
        for stream in self.incoming.values():
            for topic, queue in stream.waiting.items():  # their segments may go
                stream.waiting[topic] = deque(map(self._whole, queue))
        notes = _SnapshotNotes(
            due=tuple(stream.due for stream in self.incoming.values()),
            numbers=tuple(out.number for out in self.outgoing.values()),
            notes=dict(self.notes),
            reached=self.reached,
        )
        records = [Record(NOTES, body=notes.model_dump_json().encode())]
        records += [Record(FACT, rank, 0, key, t.encode()) for (rank, key), t in self.facts.items()]
        for stream in self.incoming.values():
            waiting = [record for queue in stream.waiting.values() for record in queue]
            records += sorted(waiting, key=lambda record: record.number)
        for out in self.outgoing.values():
            records += out.kept
        records += [Record(SENT, *place, "", b"", digest) for place, digest in self.sent.items()]
        records += [Record(STATED, self._own, 0, key, t.encode()) for key, t in self.stated.items()]
        return records

    def accept(self, record: Record) -> None:
        """Put a message where it is asked for."""
        if record.topic.startswith(FACT_TOPIC):
            text = str(self._whole(record).body, "utf-8")
            self.know(record.rank, record.topic.removeprefix(FACT_TOPIC), text)
            return
        stream = self.incoming[record.rank]
        stream.waiting.setdefault(record.topic, deque()).append(record)
        stream.held += cost(record)

    def know(self, rank: int, key: str, text: str) -> None:
        """Take up a fact; one that is known stays as it is."""
        if (rank, key) in self.facts:
            return
        self.facts[rank, key] = text
        if rank != self._own:
            self.incoming[rank].facts += _fact_bytes(key, text)

    def has_stated(self, key: str) -> bool:
        """Whether any process of this site has stated a fact in the session."""
        return (self._own, key) in self.facts or key in self.stated

    def note(self, name: str, text: str) -> None:
        """Have a text come back with the next snapshot, in place of an earlier one of that name."""
        self.notes = {**self.notes, name: text}

    def forget(self, keys: Iterable[str]) -> None:
        """Forget what all sites have stated under some keys."""
        for key in keys:
            for rank in (self._own, *self.incoming):
                text = self.facts.pop((rank, key), None)
                if text is not None and rank != self._own:
                    self.incoming[rank].facts -= _fact_bytes(key, text)

    def check_fact(self, record: Record, name: str) -> None:
        """Refuse what a site that keeps to its word does not state; its stream then ends here."""
        if (record.rank, record.topic.removeprefix(FACT_TOPIC)) in self.facts:
            raise RefusedError(f"{name} stated a fact twice")
        stream = self.incoming[record.rank]
        if len(record.body) > _FACT_BYTES or stream.facts > _FACTS_BYTES:
            raise RefusedError(f"{name} stated more than sites have to state")
        try:
            str(record.body, "utf-8")
        except UnicodeDecodeError:
            raise RefusedError(f"{name} stated a fact that is no text") from None


def cost(record: Record) -> int:
    """Bytes that a message takes while it is kept."""
    return _RECORD_BYTES + record.size


def _fact_bytes(key: str, text: str) -> int:
    return _RECORD_BYTES + len(key) + len(text)
