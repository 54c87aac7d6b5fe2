"""The wire: streams that lose nothing, and other sites that lie, flood or stay away."""

import errno
import os
import threading
import time
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from communication.secure import mesh as meshes
from communication.secure.mesh import LIMIT, Mesh, Puppet, facing_puppets, formed, until
from few import few
from tacit.communication.reports import report_of
from tacit.communication.secure import meeting, pacing, streams
from tacit.communication.secure import wire as wires
from tacit.communication.secure.frames import DATA
from tacit.communication.secure.journal import Journal, Session
from tacit.errors import BudgetError, GoneError, InputError, LeftOutError, PeerError, TacitError

PATIENCE = 2.5  # seconds, of one that waits: several times those between two beats
LONGER = 5.0  # seconds of a wait that must not end while something is heard
SHORT = 0.3  # seconds of a wait that is to end in an error


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    meshes.quick(monkeypatch)


@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=30),
    losses=st.sampled_from([0.0, 0.2, 0.5]),
)
@settings(few(4, 8), suppress_health_check=list(HealthCheck))
def test_streams_arrive_whole_in_order_and_once(seed, sizes, losses, tmp_path_factory):
    mesh = Mesh(3, seed, losses)
    expected = [bytes([i]) * size for i, size in enumerate(sizes)]
    with formed(mesh, tmp_path_factory.mktemp("mesh")) as found:

        def work(wire):
            for body in expected:
                for other in wire.others:
                    wire.send(other, f"topic {len(body) % 2}", body, limit=LIMIT)
            for body in expected:
                for other in wire.others:
                    assert wire.take(other, f"topic {len(body) % 2}", limit=LIMIT) == body

        meshes.together(partial(work, wire) for wire in found)
        assert not any(wire.messages(r, "topic 0") for wire in found for r in wire.others)
    assert mesh.mixed() == []


def test_facts_are_the_same_everywhere_and_stay(tmp_path):
    mesh = Mesh(3, 5, 0.2)
    with formed(mesh, tmp_path) as found:
        for wire in found:
            assert wire.state_fact("key", wire.sites[wire.own], limit=LIMIT) == mesh.names[wire.own]
            assert wire.state_fact("key", "another", limit=LIMIT) == mesh.names[wire.own]
        for wire in found:
            for other in wire.others:
                assert wire.fact_of(other, "key", limit=LIMIT) == mesh.names[other]
                assert wire.streams.facts.get((other, "nothing")) is None
            wire.forget_facts(["key"])
            assert all(wire.streams.facts.get((rank, "key")) is None for rank in range(3))


def test_a_site_that_was_cut_off_gets_what_it_missed(tmp_path):
    mesh = Mesh(2)
    with formed(mesh, tmp_path) as (north, south):
        mesh.cut.add(1)
        for i in range(5):
            north.send(1, "exchange", bytes([i]), limit=LIMIT)
        time.sleep(0.1)
        assert south.messages(0, "exchange") == 0
        mesh.cut.clear()
        assert [south.take(0, "exchange", limit=LIMIT) for _ in range(5)] == [
            bytes([i]) for i in range(5)
        ]
        until(lambda: meshes.unacknowledged(north) == {1: 0}, "an acknowledgement")


def test_what_is_acknowledged_is_on_the_disk(tmp_path, monkeypatch):
    done = [threading.Event(), threading.Event()]
    calls = []

    def slow(descriptor):
        calls.append(descriptor)
        done[min(len(calls), 2) - 1].wait(LIMIT)

    mesh = Mesh(2)
    with facing_puppets(mesh, tmp_path) as (wire, (puppet,)):
        monkeypatch.setattr(os, "fdatasync", slow)
        puppet.say(puppet.packed(DATA, 0, "exchange", b"one"))
        assert wire.take(1, "exchange", limit=LIMIT) == b"one"
        until(lambda: calls, "the disk")
        puppet.say(puppet.packed(DATA, 1, "exchange", b"two"))  # while the first is written
        assert all(beat.due == 0 for beat in puppet.heard)
        done[0].set()
        until(lambda: len(calls) == 2 and puppet.heard[-1].due == 1, "an acknowledgement")
        assert all(beat.due <= 1 for beat in puppet.heard)
        done[1].set()
        until(lambda: puppet.heard[-1].due == 2, "an acknowledgement")


# Sites that lie.


def test_what_another_site_says_of_the_streams_harms_itself_alone(tmp_path):
    mesh = Mesh(3)
    with facing_puppets(mesh, tmp_path) as (wire, (liar, honest)):
        liar.say(liar.beat(due=2**53))  # it has what was never sent
        for body in (b"one", b"two"):
            for rank in wire.others:
                wire.send(rank, "exchange", body, limit=LIMIT)
        until(lambda: len(honest.data) >= 2, "data")
        assert [frame.body for frame in honest.data[:2]] == [b"one", b"two"]
        liar.say(liar.beat(due=0, again=True))
        honest.say(honest.beat(due=1))
        until(lambda: meshes.unacknowledged(wire) == {1: 0, 2: 1})
        honest.say(honest.packed(DATA, 0, "exchange", b"still here"))
        assert wire.take(2, "exchange", limit=LIMIT) == b"still here"
        wire.check()


def test_a_site_that_asks_all_the_time_is_not_sent_all_the_time(tmp_path, monkeypatch):
    monkeypatch.setattr(pacing, "LEAST", LIMIT)
    mesh = Mesh(2)
    with facing_puppets(mesh, tmp_path) as (wire, (puppet,)):
        wire.send(1, "exchange", bytes(1000), limit=LIMIT)
        until(lambda: puppet.data)
        for _ in range(50):
            puppet.say(puppet.beat(again=True))
        time.sleep(0.2)
        assert len(puppet.data) <= 2


@pytest.mark.parametrize("waiting_for", [-1, 0, 1, 2, 5, 2**20 - 1])
def test_a_wait_ends_whatever_the_awaited_says_that_it_waits_for(tmp_path, waiting_for):
    mesh = Mesh(3)
    with facing_puppets(mesh, tmp_path) as (wire, (liar, _)):
        liar.say(liar.beat(waiting_for=waiting_for))
        with pytest.raises(PeerError, match="start every site again with --resume"):
            wire.take(1, "exchange", limit=SHORT)


@pytest.mark.parametrize("said", ["waits", "steps", "starts"])
def test_a_site_that_says_that_it_moves_and_does_not_is_given_up(tmp_path, monkeypatch, said):
    monkeypatch.setattr(wires, "_IDLE", 3)
    mesh = Mesh(3)
    with facing_puppets(mesh, tmp_path) as (wire, (liar, _)):
        wire.step = 7
        ended = threading.Event()

        def speak():
            for i in range(10**6):
                if ended.wait(0.02):
                    return
                more = {
                    "waits": {"waiting_for": (-1, 2)[i % 2]},
                    "steps": {"step": 8 + i},  # ahead of this site, which waits for it
                    "starts": {"start": 2 + i, "step": 3},
                }[said]
                liar.say(liar.beat(**more))

        speaker = threading.Thread(target=speak, daemon=True)
        speaker.start()
        try:
            with pytest.raises(PeerError, match=r"south|west"):
                wire.take(1, "exchange", limit=SHORT)
        finally:
            ended.set()
            speaker.join(10)


def test_a_site_that_comes_further_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(wires, "_IDLE", 1)
    mesh = Mesh(2)
    with facing_puppets(mesh, tmp_path) as (wire, (slow,)):
        wire.step = 50

        def speak():
            for step in range(25):
                time.sleep(0.1)
                slow.say(slow.beat(step=step))
            slow.say(slow.packed(DATA, 0, "exchange", b"at last"))

        speaker = threading.Thread(target=speak, daemon=True)
        speaker.start()
        assert wire.take(1, "exchange", limit=2.0) == b"at last"
        speaker.join(10)


def test_what_a_site_waited_for_another_is_not_held_against_it_once_it_falls_silent(tmp_path):
    with facing_puppets(Mesh(3), tmp_path) as (wire, (waits, works)):
        waits.say(waits.beat(waiting_for=2))
        works.say(works.beat(step=1))
        now = time.monotonic()
        for rank in (1, 2):
            view = wire.peers[rank]
            until(lambda view=view: view.beat is not None, "a beat")
            view.moved, view.heard = now - 100.0, now
            assert meeting.since(view, LIMIT) == view.moved
            view.heard = now - 20.0
            assert meeting.since(view, LIMIT) == (view.heard, view.moved)[rank - 1]


def test_the_last_of_those_that_wait_for_one_another_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(meeting, "_TWO_BEATS", LIMIT)  # what was said counts, however long ago
    monkeypatch.setattr(meeting, "AWAY", LIMIT)
    mesh = Mesh(4)
    with facing_puppets(mesh, tmp_path) as (wire, (south, west, east)):
        south.say(south.beat(waiting_for=2))
        west.say(west.beat(waiting_for=3))
        east.say(east.beat(step=4))
        # It said so once, and may count as silent by the time that it is blamed.
        stands = (
            r"(is alive at step 4, but has sent nothing|was lost, last seen at step 4: it gives)"
        )
        with pytest.raises(PeerError, match=rf"^east {stands}"):
            wire.take(1, "exchange", limit=SHORT)
        east.say(east.beat(step=4, waiting_for=1))  # one of them lies: who, nobody here knows
        line = rf"^east {stands} .*, and says that it waits for south\);"
        with pytest.raises(PeerError, match=line):
            wire.take(1, "exchange", limit=SHORT)
        assert wire.waiting_for == -1


def test_what_a_site_reports_ends_the_run_in_its_own_name(tmp_path):
    mesh = Mesh(3)
    with facing_puppets(mesh, tmp_path) as (wire, (liar, _)):
        said = "west: a budget of its nodes forbids it"
        liar.say(liar.beat(report={"kind": "BudgetError", "line": said}, state="failed"))
        with pytest.raises(BudgetError, match=r"^south: west: a budget of its nodes"):
            wire.check()
        with pytest.raises(TacitError):
            wire.take(2, "exchange", limit=LIMIT)


def test_beats_that_are_none_are_counted_and_change_nothing(tmp_path):
    mesh = Mesh(2)
    with facing_puppets(mesh, tmp_path) as (wire, (puppet,)):
        before = wire.peers[1].beat
        wrong = [b"", b"null", b"[" * 10_000, b'{"nonce": 1}', bytes(2**15 + 1)]
        for body in wrong:
            puppet.say(puppet.packed(meshes.BEAT, 0, "beat", body))
        for more in ({"due": -1}, {"step": 2**60}, {"state": "gone"}, {"waiting_for": 2**20}):
            puppet.say(puppet.beat(**more))
        puppet.say(puppet.beat(nonce="ef" * 16))  # another session than the one it met with
        assert wire.refused[0] == len(wrong) + 5
        assert wire.refused[1] == "south came back without its session of this run"
        assert wire.peers[1].beat == before
        wire.check()


def test_frames_of_others_sessions_runs_and_numbers_are_not_taken(tmp_path):
    mesh = Mesh(3)
    with facing_puppets(mesh, tmp_path) as (wire, (south, _)):
        south.say(south.packed(DATA, 0, "exchange", b"old", session=b"another session!"))
        south.say(south.packed(DATA, 0, "exchange", b"old", session=bytes(16)))
        south.say(south.packed(DATA, 0, "exchange", b"for west", receiver=2))
        south.say(b"garbage")
        assert wire.refused[0] == 4
        south.say(south.packed(DATA, 2, "exchange", b"ahead"))
        first = south.packed(DATA, 0, "exchange", b"one")
        for message in (first, first, south.packed(DATA, 0, "exchange", b"in its place"), first):
            south.say(message)
        assert wire.messages(1, "exchange") == 1
        assert wire.take(1, "exchange", limit=LIMIT) == b"one"
        until(lambda: south.heard[-1].due == 1)


@pytest.mark.parametrize("size", [0, 500])
def test_a_flood_is_held_at_the_room_that_a_site_has(tmp_path, monkeypatch, size):
    monkeypatch.setattr(wires, "_ROOM", 20_000)
    mesh = Mesh(3)
    with facing_puppets(mesh, tmp_path) as (wire, (flood, honest)):
        for number in range(200):
            flood.say(flood.packed(DATA, number, f"nobody reads {number}", bytes(size)))
        taken = wire._in[1].due
        assert 0 < taken <= 20
        segment = tmp_path / "own" / "received-00000000"
        assert segment.stat().st_size < 40_000
        honest.say(honest.packed(DATA, 0, "exchange", bytes(19_000)))
        assert wire.take(2, "exchange", limit=LIMIT) == bytes(19_000)
        for number in range(5):  # and there is room again for what is read
            wire.take(1, f"nobody reads {number}", limit=LIMIT)
        flood.say(flood.packed(DATA, taken, "exchange", b"read"))
        assert wire.take(1, "exchange", limit=LIMIT) == b"read"


def test_facts_are_bounded_too(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "_FACTS_BYTES", 20_000)
    monkeypatch.setattr(streams, "_FACT_BYTES", 100)
    mesh = Mesh(2)
    with facing_puppets(mesh, tmp_path) as (wire, (liar,)):
        liar.say(liar.packed(DATA, 0, "fact long", bytes(101)))
        liar.say(liar.packed(DATA, 0, "fact binary", b"\xff"))
        assert wire.refused == (2, "south stated a fact that is no text")
        for number in range(200):
            liar.say(liar.packed(DATA, number, f"fact {number}", b"text"))
        assert wire._in[1].due <= 21
        assert wire.refused[1] == "south stated more than sites have to state"
        wire.forget_facts(str(number) for number in range(10))
        again = wire._in[1].due
        liar.say(liar.packed(DATA, again, "fact 15", b"another text"))
        assert wire.refused[1] == "south stated a fact twice"
        assert wire.streams.facts.get((1, "15")) == "text"
        assert wire._in[1].due == again


def test_a_message_that_is_too_large_is_not_taken(tmp_path):
    mesh = Mesh(2)
    with facing_puppets(mesh, tmp_path, largest=1000) as (wire, (puppet,)):
        puppet.say(puppet.packed(DATA, 0, "exchange", bytes(1001)))
        assert "does not have the form" in wire.refused[1]
        with pytest.raises(ValueError, match="1000 can be sent"):
            wire.send(1, "exchange", bytes(1001), limit=LIMIT)


def test_a_site_that_takes_nothing_holds_up_who_sends_to_it_for_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(wires, "_ROOM", 10_000)
    mesh = Mesh(3)
    with facing_puppets(mesh, tmp_path) as (wire, _):

        def fill():
            for _ in range(100):
                wire.send(1, "exchange", bytes(1000), limit=SHORT)

        with pytest.raises(PeerError, match=r"^south"):
            fill()
        assert wire._out[1].held <= 13_000
        wire.send(2, "exchange", b"as ever", limit=SHORT)


# Errors of this site.


def test_a_full_disk_ends_the_run_and_acknowledges_nothing(tmp_path, monkeypatch):
    mesh = Mesh(2)
    with facing_puppets(mesh, tmp_path) as (wire, (puppet,)):
        write, full = os.write, [True]

        def limited(descriptor, content):
            if full[0] and len(content) > 50:
                write(descriptor, content[:10])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(descriptor, content)

        monkeypatch.setattr(os, "write", limited)
        frame = puppet.packed(DATA, 0, "exchange", b"one")
        puppet.say(frame)
        full[0] = False  # there is room again, but the run has ended
        puppet.say(frame)
        with pytest.raises(InputError, match="No space left on device"):
            wire.take(1, "exchange", limit=LIMIT)
        with pytest.raises(InputError, match="No space left on device"):
            wire.send(1, "exchange", b"two", limit=LIMIT)
        with pytest.raises(InputError, match="No space left on device"):
            wire.state_fact("key", "text", limit=LIMIT)
        time.sleep(0.1)
        assert all(beat.due == 0 for beat in puppet.heard)
        assert wire._in[1].due == 0


def test_an_error_of_the_carrier_is_raised_where_the_run_asks(tmp_path):
    mesh = Mesh(2)
    with facing_puppets(mesh, tmp_path) as (wire, _):

        class Broken(meshes.Post):
            def publish(self, rank, frame, *, urgent=False):
                raise RuntimeError("broken")

        wire._carrier = Broken(mesh, 0)
        with pytest.raises(RuntimeError, match="broken"):
            wire.take(1, "exchange", limit=LIMIT)


# The beginning and the end.


def test_sites_that_do_not_come_are_named(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(meeting, "_SAY", 0.0)
    mesh = Mesh(3)
    wire, south = mesh.wire(0, tmp_path / "own"), Puppet(mesh, 1)
    mesh.start(wire)
    try:
        until(lambda: south.heard)
        south.say(south.beat(state="forming"))
        with pytest.raises(
            PeerError, match=r"^west did not come within 0.3 s: start it with the same"
        ):
            wire.form(SHORT)
        told = [one for one in caplog.messages if "to come to this run" in one]
        assert told[-1].startswith("north waits for west to come")  # south was heard
        assert len(told) == len(set(told))
    finally:
        wire.close(ended=False, linger=0.0)
        mesh.end()


def test_the_end_waits_until_all_have_what_was_sent(tmp_path):
    mesh = Mesh(2)
    with facing_puppets(mesh, tmp_path) as (wire, (puppet,)):
        wire.send(1, "exchange", b"last", limit=LIMIT)
        closed = threading.Event()

        def close():
            wire.close(ended=True, linger=LIMIT)
            closed.set()

        closing = threading.Thread(target=close, daemon=True)
        closing.start()
        assert not closed.wait(0.3)
        assert (tmp_path / "own" / "session.json").exists()
        puppet.say(puppet.beat(due=1))
        assert closed.wait(LIMIT)
        until(lambda: puppet.heard[-1].state == "done")
        assert not (tmp_path / "own").exists()


def test_the_end_does_not_wait_for_who_is_done_or_never_comes(tmp_path):
    mesh = Mesh(3)
    with facing_puppets(mesh, tmp_path) as (wire, (south, west)):
        for rank in wire.others:
            wire.send(rank, "exchange", b"last", limit=LIMIT)
        south.say(south.beat(state="done"))
        west.say(west.beat())
        began = time.monotonic()
        wire.close(ended=True, linger=SHORT)
        assert time.monotonic() - began < LIMIT


def test_after_the_end_nothing_is_taken(tmp_path):
    mesh = Mesh(2)
    with facing_puppets(mesh, tmp_path) as (wire, (puppet,)):
        wire.close(ended=False, linger=0.0)
        before = wire.refused
        puppet.say(puppet.packed(DATA, 0, "exchange", b"late"))
        puppet.say(b"garbage")
        assert wire.refused == before
        assert wire._failure is None


def test_rank_0_leaves_a_silent_site_out_and_what_it_had_sent_is_still_read(tmp_path):
    mesh, asked = Mesh(3), []
    with facing_puppets(mesh, tmp_path) as (wire, (south, west)):
        wire.may_leave = lambda ranks: asked.append(ranks) or True
        wire.step = 4
        south.say(south.beat(waiting_for=2, step=4))
        west.say(west.packed(DATA, 0, "exchange", b"first"))
        until(lambda: wire.messages(2, "exchange") == 1)
        assert wire.take(2, "exchange", limit=SHORT) == b"first"
        with pytest.raises(GoneError, match="the run goes on without west"):
            wire.take(2, "exchange", limit=SHORT)
        assert asked == [frozenset({2})]
        assert wire.left == {2: 4 + 3 + 1}
        until(lambda: (2, 8) in south.heard[-1].left, "word of it")
        west.say(west.packed(DATA, 1, "exchange", b"late"))
        west.say(west.beat(state="failed", report={"kind": "PeerError", "line": "west: lost"}))
        wire.check()
        assert wire.messages(2, "exchange") == 0
        wire.send(2, "exchange", b"to nobody", limit=SHORT)
        assert not [frame for frame in west.data if frame.body == b"to nobody"]
        with pytest.raises(GoneError):
            wire.fact_of(2, "vote 0", limit=LIMIT)


def test_what_a_silent_site_waited_for_is_not_held_against_that_one(tmp_path):
    mesh = Mesh(3)
    with facing_puppets(mesh, tmp_path) as (wire, (south, west)):
        wire.may_leave = lambda ranks: True
        west.say(west.beat(waiting_for=1, step=4))  # its last word
        ended = threading.Event()

        def speak():
            while not ended.wait(SHORT / 10):
                south.say(south.beat(waiting_for=0, step=5))

        threading.Thread(target=speak, daemon=True).start()
        try:
            with pytest.raises(GoneError, match="without west"):
                wire.take(2, "exchange", limit=PATIENCE)
            assert set(wire.left) == {2}
        finally:
            ended.set()


def test_a_run_that_cannot_do_without_a_site_ends(tmp_path):
    mesh = Mesh(3)
    with facing_puppets(mesh, tmp_path) as (wire, _):
        wire.may_leave = lambda ranks: False
        with pytest.raises(PeerError, match=r"^south .* start every site again"):
            wire.take(1, "exchange", limit=SHORT)
        assert wire.left == {}


def test_rank_0_alone_says_who_is_left_out_and_of_itself_a_site_believes_that_it_ends(tmp_path):
    mesh = Mesh(3)
    with formed(mesh, tmp_path) as (north, south, west):
        south.left[2] = 1  # it may think so: nobody hears it
        time.sleep(0.2)
        assert (north.left, west.left) == ({}, {})
        north.may_leave = lambda ranks: True
        north.step = 2
        with pytest.raises(GoneError):
            north.take(2, "exchange", limit=SHORT)
        time.sleep(0.2)
        west.check()  # north may take it back, and has not said that it does not
        north.takes_back = False
        until(lambda: west._failure is not None)
        with pytest.raises(InputError, match="--site = 'west': was left out, from step 6"):
            west.check()
    with facing_puppets(mesh := Mesh(3), tmp_path / "more") as (wire, (south, _)):
        south.say(south.beat(left=[[2, 5], [0, 5]]))
        assert wire.left == {}
        wire.check()


def test_who_is_left_out_stays_so_for_a_process_that_comes_back(tmp_path):
    mesh = Mesh(3)
    with facing_puppets(mesh, tmp_path) as (wire, puppets):
        wire.snapshot(0)
        wire.may_leave, wire.step = (lambda ranks: True), 5
        with pytest.raises(GoneError):
            wire.take(1, "exchange", limit=SHORT)
        for snapshot in (0, 6):
            if snapshot:
                wire.snapshot(snapshot)
            wire.close(ended=False, linger=0.0)
            wire = mesh.wire(0, tmp_path / "own")
            mesh.start(wire, snapshot)
            meshes.meet(wire, puppets)
            with pytest.raises(GoneError):
                wire.take(1, "exchange", limit=LIMIT)
            assert wire.left == {1: 9}
        wire.close(ended=False, linger=0.0)


@pytest.mark.slow
def test_a_site_that_is_taken_back_waits_in_a_session_with_other_keys(tmp_path):
    mesh = Mesh(3)
    with formed(mesh, tmp_path) as (north, _, west):
        north.may_leave, north.takes_back, north.step = (lambda ranks: True), True, 2
        before = west.session
        west.send(0, "exchange", b"a step of long ago", limit=LIMIT)
        west.snapshot(0)
        with pytest.raises(GoneError):
            north.fact_of(2, "a fact that never comes", limit=SHORT)
        until(lambda: west._failure is not None)
        with pytest.raises(LeftOutError, match="west was left out"):
            west.check()
        west.close(ended=False, linger=0.0, following=lambda late: Session.new(rejoins=7))
        again = mesh.wire(2, tmp_path / "west")
        written = Journal(tmp_path / "west")
        assert again.session == written.session()
        assert (again.session.rejoins, again.session.nonces, again.returned) == (7, None, False)
        assert written.snapshots() == []
        assert {again.session.secret, again.session.nonce}.isdisjoint({before.secret, before.nonce})
        assert north.back == {}
        mesh.start(again)
        waiting = threading.Thread(target=lambda: raises_none(again), daemon=True)
        waiting.start()
        until(lambda: 2 in north.back)
        heard, beat = north.back[2]
        assert (beat.step, north.refused[0]) == (7, 0)
        time.sleep(1.2 * LONGER)
        assert waiting.is_alive()  # as long as it hears north
        assert north.back[2][0] > heard
        north.takes_back = False  # the end of the run came first
        waiting.join(LIMIT)
        with pytest.raises(InputError, match="--site = 'west': was left out, from step"):
            again.check()
        again.close(ended=False, linger=0.0)


def raises_none(wire):
    """Wait to be taken back; what ends that is asked for later."""
    with suppress(InputError):
        wire.form(LONGER)


def test_one_that_waits_and_hears_nobody_or_what_was_recorded_gives_up(tmp_path):
    mesh = Mesh(2)
    puppet = Puppet(mesh, 0, target=1)
    journal = Journal(tmp_path / "own")
    journal.write_session(Session.new(rejoins=3))
    wire = mesh.wire(1, tmp_path / "own", journal)
    mesh.start(wire)
    until(lambda: puppet.heard)
    assert {beat.step for beat in puppet.heard} == {-1}
    recorded = puppet.beat(nonce_of_receiver="f" * 32, left=[[1, 5]], takes_back=True)
    ended, began = threading.Event(), time.monotonic()

    def repeat():
        while not ended.wait(SHORT / 10):
            puppet.say(recorded)

    threading.Thread(target=repeat, daemon=True).start()
    try:
        with pytest.raises(PeerError, match=f"another site did not come within {SHORT:g} s"):
            wire.form(SHORT)
        assert time.monotonic() - began < LIMIT
        until(lambda: puppet.heard[-1].step == 3)
    finally:
        ended.set()
        wire.close(ended=False, linger=0.0)
        mesh.end()


def test_who_is_not_left_out_does_not_come_with_another_session(tmp_path):
    mesh = Mesh(3)
    with facing_puppets(mesh, tmp_path) as (wire, (_, west)):
        wire.snapshot(0)  # it has begun
        west.say(west.beat(nonce="c" * 32, state="forming", step=3))
        assert wire.back == {}
        assert "west came back without its session of this run" in wire.refused[1]
        wire.may_leave = lambda ranks: True
        with pytest.raises(GoneError):
            wire.take(2, "exchange", limit=SHORT)
        west.say(west.beat(nonce="c" * 32, state="forming", step=3, echo="a" * 32))  # a recording
        west.say(west.beat(state="forming", step=3))  # of the session that it was in
        assert wire.back == {}
        west.say(west.beat(nonce="c" * 32, state="forming", step=3))
        assert wire.back[2][1].step == 3


def test_no_step_begins_while_it_is_written_down_that_a_site_is_left_out_of_it(tmp_path):
    mesh, writing, go_on = Mesh(3), threading.Event(), threading.Event()
    with formed(mesh, tmp_path) as (north, south, _):
        add = south._journal.add_sent

        def slow(records):
            kept = list(records)
            if any(record.topic.startswith(meeting.LEFT) for record in kept):
                writing.set()
                assert go_on.wait(LIMIT)
            add(kept)

        south._journal.add_sent = slow  # type: ignore[method-assign]
        south.begin_step(9)
        north.begin_step(0)  # far behind: the step that it names has begun at south
        north.may_leave = lambda ranks: True
        with pytest.raises(GoneError):
            north.take(2, "exchange", limit=SHORT)
        assert writing.wait(LIMIT)
        begins = threading.Thread(target=south.begin_step, args=(10,))
        begins.start()
        begins.join(0.2)
        assert (south.step, begins.is_alive()) == (9, True)
        go_on.set()
        begins.join(LIMIT)
        assert (south.step, south.left) == (10, {2: 10})


def test_one_that_fails_as_soon_as_all_have_met_is_believed_why(tmp_path):
    """Each draws a number to be echoed when it has met the others, and tells it a moment later."""
    with facing_puppets(Mesh(3), tmp_path) as (wire, puppets):
        for view in wire.peers.values():  # as where no beat has come since they met
            view.met = False
        wire.report = report_of(BudgetError("nothing is left"), "north")
        closing = threading.Thread(target=partial(wire.close, ended=False, linger=0.0))
        closing.start()
        time.sleep(0.3)
        for puppet in puppets:
            puppet.token = f"{puppet.rank + 200:032x}"
            puppet.say(puppet.beat())
        closing.join(LIMIT)
        for puppet in puppets:
            until(lambda puppet=puppet: puppet.heard[-1].echo == puppet.token, "the last beat")
            report = puppet.heard[-1].report
            assert report is not None
            assert report.line == "north: nothing is left"


def test_one_that_fails_waits_no_longer_than_to_say_so_for_others_that_are_silent(tmp_path):
    with facing_puppets(Mesh(3), tmp_path) as (wire, _):
        for view in wire.peers.values():  # as where no beat has come since they met
            view.met = False
        wire.report = report_of(BudgetError("nothing is left"), "north")
        began = time.monotonic()
        wire.close(ended=False, linger=0.0)
        assert wires._FAREWELL <= time.monotonic() - began < LIMIT
