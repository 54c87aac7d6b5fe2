"""The wire where sites are killed and come back: all see the same, and nothing leaves twice."""

import hashlib
import os
import random
import threading
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from communication.secure import mesh as meshes
from communication.secure.mesh import LIMIT, Mesh, MortalJournal, facing_puppets, meet, until
from few import few
from tacit.communication.secure import wire as wires
from tacit.communication.secure.journal import Journal
from tacit.errors import InputError, PeerError

pytestmark = pytest.mark.process  # they wait for what does not come


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    meshes.quick(monkeypatch)


class Life:
    """A site that makes rounds with all others, is killed at given moments, and comes back.

    In a round it states a fact, which no two of its processes would choose alike, sends every
    other site a message that follows from all before, and reads theirs.
    """

    def __init__(self, mesh, rank, folder, fuses, draws):
        self.mesh, self.rank, self.folder = mesh, rank, folder
        self.fuses, self.draws = list(fuses), draws
        self.checkpoints: dict[int, str] = {}
        self.votes: dict[tuple[int, int], str] = {}  # as seen here
        self.state: str | None = None
        self.deaths = 0

    def live(self, rounds, every, *, cuts):
        """To the end, however many processes that takes."""
        while not self.ended():
            fuse = self.fuses.pop(0) if self.fuses else None
            journal = MortalJournal(self.folder, fuse, self.draws)
            wire = None
            try:
                wire = self.mesh.wire(self.rank, self.folder, journal)
                self.run(wire, journal, rounds, every)
            except Exception:
                if not journal.dead.is_set():
                    raise
                self.deaths += 1
                if wire is not None:
                    self.mesh.kill(wire, journal)
                journal.close()
                if cuts and self.draws.random() < 0.5:  # the machine stops with the process, or not
                    meshes.power_cut(self.folder, self.draws)

    def ended(self):
        if self.state is None or not self.folder.is_dir():
            return self.state is not None
        session = Journal(self.folder).session()
        return session is None or session.ended

    def run(self, wire, journal, rounds, every):
        fitting = [step for step in journal.snapshots() if step in self.checkpoints or step == 0]
        at = fitting[-1] if fitting else None
        self.mesh.start(wire, at)
        wire.form(LIMIT)
        state = self.checkpoints.get(at or 0, "start")
        if wire.streams.notes:  # what a snapshot says and what its checkpoint says belong together
            assert wire.streams.notes["state"] == state
        for step in range(at or 0, rounds):
            if step % every == 0 and step != at:
                wire.streams.note("state", state)
                wire.snapshot(step)
                journal._burn()
                if step:
                    self.checkpoints[step] = state
                wire.forget_before(max([s for s in self.checkpoints if s < step], default=0))
            wire.step = step
            vote = wire.state_fact(f"vote {step}", f"{random.random()}", limit=LIMIT)
            for other in wire.others:
                body = message(state, self.rank, other, step)
                wire.send(other, "exchange", body, limit=LIMIT)
            heard = {self.rank: vote}
            for other in wire.others:
                heard[other] = wire.fact_of(other, f"vote {step}", limit=LIMIT)
                state = digest(state, wire.take(other, "exchange", limit=LIMIT).hex())
            for rank, text in sorted(heard.items()):
                assert self.votes.setdefault((rank, step), text) == text, "a fact changed"
                state = digest(state, text)
        assert not any(wire.messages(other, "exchange") for other in wire.others)
        self.state = state
        wire.close(ended=True, linger=LIMIT)


def digest(*texts):
    return hashlib.sha256(" ".join(texts).encode()).hexdigest()


def message(state, sender, receiver, step):
    text = digest(state, str(sender), str(receiver), str(step))
    return text.encode() * (100 if step % 3 else 1)  # some stay on the disk until they are read


def undisturbed(count, rounds, votes):
    """The states at the end where nobody was killed and nothing was lost, with these votes."""
    states = ["start"] * count
    for step in range(rounds):
        following = []
        for rank in range(count):
            state = states[rank]
            for other in (r for r in range(count) if r != rank):
                state = digest(state, message(states[other], other, rank, step).hex())
            for voter in range(count):
                state = digest(state, votes[voter, step])
            following.append(state)
        states = following
    return states


FUSES = st.lists(st.integers(0, 120), max_size=4)


@given(
    seed=st.integers(0, 2**32),
    fuses=st.lists(FUSES, min_size=2, max_size=3),
    losses=st.sampled_from([0.0, 0.1, 0.3]),
    every=st.integers(1, 5),
    cuts=st.booleans(),
)
@settings(few(4, 10), suppress_health_check=list(HealthCheck))
def test_whoever_is_killed_whenever_the_run_is_the_undisturbed_one(
    seed, fuses, losses, every, cuts
):
    rounds, draws, mesh = 9, random.Random(seed), Mesh(len(fuses), seed, losses)
    with TemporaryDirectory() as folder:
        lives = [
            Life(mesh, rank, Path(folder) / mesh.names[rank], fuse, random.Random(draws.random()))
            for rank, fuse in enumerate(fuses)
        ]
        try:
            meshes.together(partial(life.live, rounds, every, cuts=cuts) for life in lives)
        finally:
            mesh.end()
    assert mesh.mixed() == []
    assert all(life.votes == lives[0].votes for life in lives)
    assert [life.state for life in lives] == undisturbed(len(lives), rounds, lives[0].votes)


def killed(*_):
    raise meshes.KilledError


def dead(mesh, wire):
    """End a wire's process; a journal of its own kind is not needed."""
    mesh.takers.pop(wire.own, None)
    wire._failure = RuntimeError("killed")
    with wire._changed:
        wire._carrier = None
        wire._ending = True
        wire._changed.notify_all()
    for thread in wire._threads:
        thread.join(10)
    wire._journal.close()


def returned(mesh, folder, puppets, step=None):
    """Another process of site 0."""
    again = mesh.wire(0, folder / "own")
    assert again.returned
    mesh.start(again, step)
    meet(again, puppets)
    return again


def arrived(puppet, count):
    until(lambda: len(puppet.data) >= count, "data")
    return [frame.body for frame in puppet.data]


def test_a_message_that_differs_does_not_leave(tmp_path):
    mesh = Mesh(2)
    with facing_puppets(mesh, tmp_path) as (wire, puppets):
        for body in (b"one", b"two"):
            wire.send(1, "exchange", body, limit=LIMIT)
        arrived(puppets[0], 2)
        dead(mesh, wire)
        again = returned(mesh, tmp_path, puppets)
        again.send(1, "exchange", b"one", limit=LIMIT)
        with pytest.raises(InputError, match="to south at step -1 differs") as caught:
            again.send(1, "exchange", b"2wo", limit=LIMIT)
        assert "2wo" not in str(caught.value)
        with pytest.raises(InputError, match="differs"):
            again.send(1, "exchange", b"2wo", limit=LIMIT)
        again.close(ended=False, linger=0.0)
    assert {frame.body for frame in mesh.sent} == {b"one", b"two"}
    assert mesh.mixed() == []


def test_nothing_leaves_before_what_was_made_earlier_is_in_the_journal(tmp_path, monkeypatch):
    """Else a process with other records sends the one that did not leave, with the same noise."""
    monkeypatch.setattr(wires, "_BURST", 10)
    mesh = Mesh(3)
    with facing_puppets(mesh, tmp_path) as (wire, puppets):
        gate, gone = threading.Event(), []

        class Slow(meshes.Post):
            def publish(self, rank, frame, *, urgent=False):
                taken = super().publish(rank, frame)
                if mesh.read(frame, rank).kind == meshes.DATA:
                    gone.append(rank)
                    gate.wait(LIMIT)  # the process ends within this
                return taken

        with wire._changed:  # both are made before the publisher looks
            wire._carrier = Slow(mesh, 0)
            wire.send(2, "exchange", bytes(20), limit=LIMIT)  # fills what goes to west at once
            wire.send(2, "exchange", b"x + noise, to west", limit=LIMIT)
            wire.send(1, "exchange", b"x + noise, to south", limit=LIMIT)
        until(lambda: gone, "a frame")
        mesh.takers.pop(0)
        monkeypatch.setattr(wire._journal, "add_sent", killed)
        wire._failure = RuntimeError("killed")
        with wire._changed:
            wire._carrier, wire._ending = None, True
        gate.set()
        dead(mesh, wire)
        assert [frame.body for frame in mesh.sent] == [b"x + noise, to south"]
        again = returned(mesh, tmp_path, puppets)
        again.send(2, "exchange", bytes(20), limit=LIMIT)
        with pytest.raises(InputError, match="differs"):
            again.send(2, "exchange", b"y + noise, to west", limit=LIMIT)
        again.close(ended=False, linger=0.0)
    assert {frame.body for frame in mesh.sent} <= {b"x + noise, to south", bytes(20)}


def test_what_a_snapshot_holds_is_compared_where_an_earlier_one_is_gone_back_to(tmp_path):
    mesh = Mesh(2)
    with facing_puppets(mesh, tmp_path) as (wire, puppets):
        wire.snapshot(0)
        with wire._changed:  # it is killed before anything leaves
            wire.send(1, "exchange", b"of step 1", limit=LIMIT)
            wire.snapshot(5)
            wire._carrier, wire._ending = None, True
        dead(mesh, wire)
        again = returned(mesh, tmp_path, puppets, 5)
        assert set(arrived(puppets[0], 1)) == {b"of step 1"}
        dead(mesh, again)
        third = returned(mesh, tmp_path, puppets, 0)  # the checkpoint of step 5 was lost
        with pytest.raises(InputError, match="differs"):
            third.send(1, "exchange", b"another of step 1", limit=LIMIT)
        third.close(ended=False, linger=0.0)
    assert mesh.mixed() == []


def test_digests_outlast_the_segments_that_they_stood_in(tmp_path):
    """A process that writes its snapshots at other steps forgets nothing that left."""
    mesh = Mesh(2)
    with facing_puppets(mesh, tmp_path) as (wire, puppets):
        wire.snapshot(0)
        for body in (b"one", b"two", b"three"):
            wire.send(1, "exchange", body, limit=LIMIT)
        first = wire.state_fact("vote", "yes", limit=LIMIT)
        arrived(puppets[0], 4)
        dead(mesh, wire)
        again = returned(mesh, tmp_path, puppets, 0)
        again.send(1, "exchange", b"one", limit=LIMIT)
        again.snapshot(3)
        again.forget_before(3)
        dead(mesh, again)
        third = returned(mesh, tmp_path, puppets, 3)
        third.send(1, "exchange", b"two", limit=LIMIT)
        with pytest.raises(InputError, match="differs"):
            third.send(1, "exchange", b"3ree", limit=LIMIT)
        third.send(1, "exchange", b"three", limit=LIMIT)
        assert third.state_fact("vote", "no", limit=LIMIT) == first == "yes"
        third.close(ended=False, linger=0.0)
    assert mesh.mixed() == []


def test_a_fact_that_was_stated_and_did_not_leave_stands(tmp_path):
    mesh = Mesh(2)
    with facing_puppets(mesh, tmp_path) as (wire, puppets):
        with wire._changed:
            assert wire.state_fact("vote", "yes", limit=LIMIT) == "yes"
            wire._failure = RuntimeError("killed")
            wire._ending = True
            wire._out[1].kept.clear()
        dead(mesh, wire)
        again = returned(mesh, tmp_path, puppets)
        assert again.state_fact("vote", "no", limit=LIMIT) == "yes"
        assert set(arrived(puppets[0], 1)) == {b"yes"}
        again.close(ended=False, linger=0.0)


def test_what_comes_before_the_session_is_taken_up_is_dropped(tmp_path):
    mesh = Mesh(2)
    with facing_puppets(mesh, tmp_path) as (wire, (puppet,)):
        early = puppet.packed(meshes.DATA, 0, "exchange", b"early")
        dead(mesh, wire)
        again = mesh.wire(0, tmp_path / "own")
        again.receive(early)  # the carrier is open before the wire has read its journal
        again.receive(puppet.beat())
        mesh.start(again)
        meet(again, [puppet])
        puppet.say(early)
        assert again.take(1, "exchange", limit=LIMIT) == b"early"
        again.close(ended=False, linger=0.0)


def test_beats_of_before_say_nothing_to_a_new_process(tmp_path):
    mesh = Mesh(2)
    report = {"kind": "PeerError", "line": "south: it lost a peer"}
    with facing_puppets(mesh, tmp_path) as (wire, (puppet,)):
        wire.send(1, "exchange", b"one", limit=LIMIT)
        arrived(puppet, 1)
        old = [
            puppet.beat(state="failed", report=report),
            puppet.beat(state="done", due=1, counter=2**50),
            puppet.beat(due=1, again=True, counter=2**51),
        ]
        dead(mesh, wire)
        again = returned(mesh, tmp_path, [puppet])
        again.send(1, "exchange", b"one", limit=LIMIT)
        for message_ in old * 3:
            puppet.say(message_)
        again.check()
        assert not again.peers[1].done
        assert meshes.unacknowledged(again) == {1: 1}
        puppet.say(puppet.beat(due=1, counter=2**52))
        assert meshes.unacknowledged(again) == {1: 0}
        for message_ in old:  # nor are those of this process ever taken twice
            puppet.say(message_)
        puppet.say(puppet.beat(state="failed", report=report, counter=2**52))
        again.check()
        again.close(ended=False, linger=0.0)


def test_a_beat_of_an_earlier_session_neither_meets_nor_stops_a_new_one(tmp_path):
    mesh = Mesh(2)
    with facing_puppets(mesh, tmp_path / "first") as (wire, (puppet,)):
        old = puppet.beat(nonce_of_receiver=wire.session.nonce, counter=2**50)
    mesh = Mesh(2, seed=1)
    mesh.keys = puppet.mesh.keys
    own = mesh.wire(0, tmp_path / "second" / "own")
    other = meshes.Puppet(mesh, 1)
    other.nonce = "ab" * 16
    mesh.start(own)
    own.receive(old)  # it would say that south is in the middle of the run with an earlier session
    with pytest.raises(PeerError, match="south did not come"):
        own.form(0.2)
    meet(own, [other])
    assert own.session.nonces == (own.session.nonce, other.nonce)
    own.close(ended=False, linger=0.0)
    mesh.end()


def test_a_site_without_its_session_is_told_so(tmp_path):
    mesh = Mesh(2)
    with facing_puppets(mesh, tmp_path) as (wire, (puppet,)):
        before = wire.session.nonce
        dead(mesh, wire)
        (tmp_path / "own").rename(tmp_path / "lost")
        again = mesh.wire(0, tmp_path / "own")
        mesh.start(again)
        until(lambda: puppet.heard and puppet.heard[-1].start == 1)
        puppet.say(puppet.beat(nonce_of_receiver=before, token="cd" * 16))
        until(lambda: puppet.heard[-1].echo == "cd" * 16)
        puppet.say(puppet.beat(nonce_of_receiver=before, step=3))
        with pytest.raises(InputError, match="an earlier session of this site, of which nothing"):
            again.form(LIMIT)
        again.close(ended=False, linger=0.0)


def test_a_session_of_other_sites_is_refused(tmp_path):
    mesh = Mesh(2)
    with facing_puppets(mesh, tmp_path) as (wire, _):
        dead(mesh, wire)
        with pytest.raises(InputError, match="of a run of 2 sites, and the consortium has 3 now"):
            Mesh(3).wire(0, tmp_path / "own")


def test_two_processes_of_a_site_do_not_both_go_on(tmp_path):
    mesh = Mesh(2)
    with facing_puppets(mesh, tmp_path) as (wire, _):
        with pytest.raises(InputError, match="another process of this site"):
            mesh.wire(0, tmp_path / "own")
        wire.check()


def test_snapshots_are_written_while_messages_come_and_go(tmp_path):
    mesh = Mesh(3)
    with meshes.formed(mesh, tmp_path) as found:

        def work(wire):
            for step in range(150):
                for other in wire.others:
                    wire.send(other, "exchange", b"%d" % step, limit=LIMIT)
                wire.snapshot(step)
                wire.forget_before(step - 1)
                for other in wire.others:
                    assert wire.take(other, "exchange", limit=LIMIT) == b"%d" % step

        meshes.together(partial(work, wire) for wire in found)
    assert mesh.mixed() == []


def test_an_ended_session_is_gone_and_its_keys_with_it(tmp_path):
    mesh = Mesh(2)
    with meshes.formed(mesh, tmp_path) as found:
        secret = found[0].session.secret
        meshes.together(partial(wire.close, ended=True, linger=LIMIT) for wire in found)
        assert not (tmp_path / "north").exists()
        again = mesh.wire(0, tmp_path / "north")
        assert not again.returned
        assert again.session.secret != secret
        again.close(ended=False, linger=0.0)


class Unsynced(meshes.MortalJournal):
    """One whose process is killed after it wrote something, and before that is on the disk."""

    armed = False

    def add_sent(self, records):
        written = list(records)
        self._append("sent", b"".join(record.packed() for record in written))
        if self.armed:
            self.dead.set()
            raise meshes.KilledError
        os.fdatasync(self._descriptors["sent"])

    def sync_received(self):
        if self.armed:
            self.dead.set()
            raise meshes.KilledError
        super().sync_received()


class Worst(random.Random):
    """Nothing of what was not brought to the disk is there after a power cut."""

    def randint(self, a, b):
        return a


@contextmanager
def killed_before_the_disk(mesh, folder, act):
    """South, which site 0 has met; it was killed in the middle of what it was made to do."""
    south = mesh.wire(1, folder / "south")
    mesh.start(south)
    journal = Unsynced(folder / "own", None, random.Random(0))
    first = mesh.wire(0, folder / "own", journal)
    mesh.start(first)
    meshes.together([partial(one.form, LIMIT) for one in (first, south)])
    journal.armed = True
    act(first, south)
    until(journal.dead.is_set, "its death")
    mesh.kill(first, journal)
    try:
        yield south
    finally:
        south.close(ended=False, linger=0.0)
        mesh.end()


def process(mesh, folder):
    """Another process of site 0."""
    journal = meshes.MortalJournal(folder / "own", None, random.Random(0))
    wire = mesh.wire(0, folder / "own", journal)
    mesh.start(wire)
    wire.form(LIMIT)
    return wire, journal


def test_what_a_killed_process_wrote_is_on_the_disk_before_anything_rests_on_it(tmp_path):
    """Killed before the disk had its digest, then a power cut: another message would leave."""
    mesh = Mesh(2)

    def send(wire, south):
        wire.begin_step(7)
        wire.send(1, "exchange", b"f(r) + noise", limit=LIMIT)

    with killed_before_the_disk(mesh, tmp_path, send):
        assert mesh.sent == []
        second, journal = process(mesh, tmp_path)
        send(second, second)
        until(lambda: mesh.sent, "the message")
        mesh.kill(second, journal)
        meshes.power_cut(tmp_path / "own", Worst())
        third, _ = process(mesh, tmp_path)
        assert third.streams.reached == 7
        with pytest.raises(InputError, match="differs"):
            third.send(1, "exchange", b"f(q) + noise", limit=LIMIT)
        third.close(ended=False, linger=0.0)
    assert mesh.mixed() == []


def test_what_came_is_on_the_disk_before_its_sender_may_forget_it(tmp_path):
    mesh = Mesh(2)

    def hear(wire, south):
        south.send(0, "exchange", b"r", limit=LIMIT)

    with killed_before_the_disk(mesh, tmp_path, hear) as south:
        second, journal = process(mesh, tmp_path)
        until(lambda: not meshes.unacknowledged(south)[0], "an acknowledgement")
        mesh.kill(second, journal)
        meshes.power_cut(tmp_path / "own", Worst())
        third, _ = process(mesh, tmp_path)
        assert third.take(1, "exchange", limit=LIMIT) == b"r"
        third.close(ended=False, linger=0.0)
