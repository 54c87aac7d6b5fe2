"""The sites of a run over a wire: votes, metrics and secrets of those who come back."""

import random
import tempfile
import threading
import time
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import pytest
import torch

import consortia
from communication.secure import mesh as meshes
from communication.secure.mesh import LIMIT, Mesh, Puppet, facing_puppets, formed
from tacit.communication.peers import READY
from tacit.communication.received import STEP, Beat
from tacit.communication.secure.certificates import Certificates
from tacit.communication.secure.frames import DATA
from tacit.communication.secure.journal import Journal, Record, Session
from tacit.communication.secure.meeting import differs
from tacit.communication.secure.sites import (
    SiteChannel,
    SiteCluster,
    _bytes,
    _taken_up,
    session_folder,
    session_lasts,
)
from tacit.communication.secure.streams import AWAY
from tacit.errors import BudgetError, InputError, LeftOutError, MeetAnewError, PeerError


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    meshes.quick(monkeypatch)


# Messages.


@pytest.mark.parametrize("size", [0, 1, 1000])
def test_an_arrival_has_the_bytes_that_came(tmp_path, size):
    mesh = Mesh(2)
    sent = torch.arange(size, dtype=torch.int64).to(torch.uint8)
    with formed(mesh, tmp_path) as (north, south):
        device = torch.device("cpu")
        channel = SiteChannel(north, device, LIMIT)
        channel.send(1, sent)
        channel.send(1, channel.envelope(3).zero_())
        arrival = SiteChannel(south, device, LIMIT).receive(0, size)
        assert torch.equal(arrival(), sent)
        assert torch.equal(arrival(), sent)  # the same, however often it is asked
        expected = SiteChannel(south, device, LIMIT).receive(0, 1000)  # another size than came
        assert torch.equal(expected(), torch.zeros(3, dtype=torch.uint8))
        assert channel.bytes_sent == size + 3


@pytest.mark.parametrize("whole", [bytes, bytearray])
def test_numbers_that_came_lie_where_they_can_be_read_as_any_dtype(whole):
    frame = whole(range(64))
    for at in range(20):
        came = _bytes(memoryview(frame)[at:])
        assert came.tolist() == list(range(at, 64))
        assert came.data_ptr() % 16 == 0


# What a site remembers.


class Nobody:
    """A carrier that is not asked for anything here."""

    def publish(self, rank, frame):
        raise AssertionError

    def connected(self):
        return True

    def close(self):
        """Nothing is open."""


@cache
def member():
    """One on whose consortium's certificates a site depends: for a month from now."""
    with tempfile.TemporaryDirectory() as folder:
        return next(iter(consortia.consortium(Path(folder), days=30).values()))


def cluster(wire, returned_to=None):
    certificates = Certificates(member(), datetime.now(UTC))
    return SiteCluster(wire, Nobody(), certificates, patience=LIMIT, returned_to=returned_to)


def test_secrets_are_those_of_the_session_and_of_their_names(tmp_path):
    mesh = Mesh(2)
    with facing_puppets(mesh, tmp_path) as (wire, _):
        session = cluster(wire).session
        first = [session.secret(name) for name in ("nodes", "pairs")]
        assert len({*first, bytes.fromhex(wire.session.secret)}) == 3
        assert all(len(secret) == 32 for secret in first)
        wire.close(ended=False, linger=0.0)
        again = mesh.wire(0, tmp_path / "own")
        assert [cluster(again).session.secret(name) for name in ("nodes", "pairs")] == first
        again.close(ended=True, linger=0.0)
        third = mesh.wire(0, tmp_path / "own")
        assert not {cluster(third).session.secret(n) for n in ("nodes", "pairs")} & set(first)
        third.close(ended=False, linger=0.0)


def test_what_was_made_when_the_session_began_comes_back_with_its_snapshot(tmp_path):
    mesh = Mesh(2)
    with facing_puppets(mesh, tmp_path) as (wire, puppets):
        sites = cluster(wire)
        assert sites.session.remember("first", lambda: 7, STEP) == 7
        sites.begin(0)
        wire.close(ended=False, linger=0.0)
        again = mesh.wire(0, tmp_path / "own")
        mesh.start(again, _taken_up(again._journal, []))
        meshes.meet(again, puppets)
        sites = cluster(again, 0)
        assert sites.session.returned
        assert sites.session.remember("first", lambda: 8, STEP) == 7
        again.close(ended=False, linger=0.0)


def test_the_snapshot_before_the_last_stays_for_a_checkpoint_that_is_damaged(tmp_path):
    mesh = Mesh(2)
    with facing_puppets(mesh, tmp_path) as (wire, puppets):
        sites = cluster(wire)
        sites.begin(0)
        for step in (10, 20):
            sites.session.keep(step)
            sites.saved(step)
            assert wire._journal.snapshots() == [step - 10, step]
        wire.close(ended=False, linger=0.0)
        again = mesh.wire(0, tmp_path / "own")
        mesh.start(again, 20)
        meshes.meet(again, puppets)
        sites = cluster(again, 20)
        sites.begin(0)
        sites.session.keep(30)
        sites.saved(30)
        assert again._journal.snapshots() == [20, 30]
        again.close(ended=False, linger=0.0)


def test_what_a_site_shares_stands_when_it_comes_back(tmp_path):
    mesh = Mesh(2)
    with facing_puppets(mesh, tmp_path) as (wire, (puppet,)):
        puppet.say(puppet.packed(DATA, 0, "fact share last step 0", b"5"))
        puppet.say(puppet.packed(DATA, 1, "fact share last step 1", b'"five"'))
        sites = cluster(wire)
        assert sites.share("last step", 3, STEP) == [3, 5]
        with pytest.raises(PeerError, match="rank 1 sent a wrong last step"):
            sites.share("last step", 3, STEP)
        wire.close(ended=False, linger=0.0)
        again = mesh.wire(0, tmp_path / "own")
        mesh.start(again)
        meshes.meet(again, [puppet])
        assert cluster(again).share("last step", 4, STEP) == [3, 5]
        again.close(ended=False, linger=0.0)


def test_only_what_a_start_does_not_mend_is_told(tmp_path):
    mesh = Mesh(2)
    with facing_puppets(mesh, tmp_path) as (wire, _):
        sites = cluster(wire)
        sites.begin(0)
        full, other = InputError("out", "/data/patients", "is full"), differs("north", "south", 4)
        for error in (full, other, KeyboardInterrupt()):
            sites.report(error)
            assert wire.report is None
        sites.report(ValueError("record 17 of patient Smith"))
        assert wire.report is None
        sites.report(BudgetError("nothing is left"))
        assert wire.report is not None
        assert wire.report.line == "north: nothing is left"


def test_what_is_seen_of_sites_is_what_their_beats_say(tmp_path):
    mesh = Mesh(3)
    with facing_puppets(mesh, tmp_path) as (wire, (south, west)):
        south.say(south.beat(step=12, waiting_for=2))
        west.say(west.beat(state="done"))
        wire.receive(b"garbage")
        own, of_south, of_west = cluster(wire).seen()
        assert (own.state, own.last_error) == (
            "connected",
            "a message of 7 bytes is too short to be one of tacit's (1 in all)",
        )
        assert (of_south.state, of_south.step, of_south.waiting_for) == ("connected", 12, (2,))
        assert (of_west.name, of_west.state, of_west.step) == ("west", "done", None)


# Who was left out, and is taken back.


def waits_from(step, heard=None):
    """What a wire holds of a site that waits, and has sent nothing of a step."""
    return (time.monotonic() if heard is None else heard), Beat.model_construct(step=step)


@pytest.mark.parametrize("lets_begin", [True, False])
def test_all_meet_again_once_who_was_left_out_waits_and_owes_no_step(tmp_path, lets_begin):
    mesh = Mesh(3)
    with facing_puppets(mesh, tmp_path, lets_begin=lets_begin) as (wire, _):
        sites, gone = cluster(wire), time.monotonic() - 2 * AWAY
        wire.step = 9
        for left, back, expected in (
            ({}, {}, False),
            ({}, {2: waits_from(9)}, False),
            ({2: 8}, {}, False),
            ({2: 8}, {2: waits_from(9)}, True),
            ({2: 8}, {2: waits_from(10)}, False),  # it may have sent something of that step
            ({2: 8}, {2: waits_from(9, gone)}, False),  # it has gone again
            # Where nobody may begin without a site, all would wait for the other one.
            ({1: 7, 2: 8}, {2: waits_from(9)}, lets_begin),
            ({1: 7, 2: 8}, {1: waits_from(9, gone), 2: waits_from(9)}, lets_begin),
            ({1: 7, 2: 8}, {1: waits_from(10), 2: waits_from(9)}, lets_begin),
            ({1: 7, 2: 8}, {1: waits_from(0), 2: waits_from(9)}, True),
        ):
            wire.left, wire.back = left, back
            assert sites._calls_back() is expected
        wire.left = {}


@pytest.mark.parametrize("lets_begin", [True, False])
def test_what_follows_a_stop_knows_who_was_away_and_what_was_sent(tmp_path, lets_begin):
    mesh = Mesh(4)
    with facing_puppets(mesh, tmp_path, lets_begin=lets_begin) as (wire, _):
        sites = cluster(wire)
        wire.begin_step(9)
        wire.streams.note("what was agreed", "this")
        sites.stopped = True
        assert sites._after_stop({1}) is None  # nobody is taken back in this run
        sites.let_leave(lambda ranks: True, takes_back=True)
        sites.stopped = False
        assert sites._after_stop({1}) is None  # it did not stop, but end
        sites.stopped = True
        wire.peers[2].heard = time.monotonic() - 2 * AWAY
        following = sites._after_stop({1, 2})
        assert following is not None
        assert set(following.without) == ({1, 2} if lets_begin else set())
        assert (following.absent, following.sent, following.rejoins) == ((), 10, None)
        assert following.earlier == {"what was agreed": "this"}
        wire.left, wire.back = {2: 7, 3: 8}, {3: waits_from(9)}
        sites.meets_again = True
        following = sites._after_stop({1})
        assert following is not None
        assert set(following.without) == ({1, 2, 3} if lets_begin else {2, 3})
        assert following.absent == (2,)
        wire.left = {}


class Asked:
    """A vote that ends as it should."""

    def __init__(self, outcome):
        self.outcome, self.asked = outcome, False

    def stop(self, step, asked):
        self.asked = asked
        return self.outcome


@pytest.mark.parametrize("takes_back", [True, False])
@pytest.mark.parametrize("by_somebody", [True, False])
@pytest.mark.parametrize("others", ["true", "false"])
def test_a_stop_that_anybody_asked_for_is_one_for_good(tmp_path, takes_back, by_somebody, others):
    mesh = Mesh(3)
    with facing_puppets(mesh, tmp_path) as (wire, (south, _)):
        sites = cluster(wire)
        sites.let_leave(lambda ranks: True, takes_back=takes_back)
        wire.step, wire.left, wire.back = 9, {2: 8}, {2: waits_from(9)}
        sites._stop_vote = Asked(outcome=True)
        south.say(south.packed(DATA, 0, "fact share meet again 0", others.encode()))
        assert sites.agreed_stop(10, by_somebody)
        assert sites._stop_vote.asked is (takes_back or by_somebody)
        assert sites.meets_again is (takes_back and not by_somebody and others == "true")
        wire.left = {}


def test_of_which_step_a_site_may_have_sent_something_it_says_by_what_it_has_written(tmp_path):
    """Also after the machine lost what had come and was not on the disk yet."""
    mesh, folder = Mesh(2), tmp_path / "own"
    puppet = Puppet(mesh, 0, target=1)

    def met(journal):
        wire = mesh.wire(1, folder, journal)
        mesh.start(wire, 0 if wire.returned else None)
        forming = threading.Thread(target=wire.form, args=(LIMIT,), daemon=True)
        forming.start()
        meshes.until(lambda: puppet.heard)
        puppet.say(puppet.beat(nonce_of_receiver=puppet.heard[-1].nonce))
        forming.join(LIMIT)
        meshes.until(lambda: puppet.session == wire._digest(), "a session")
        puppet.say(puppet.beat(nonce_of_receiver=wire.session.nonce))
        return wire

    try:
        mortal = meshes.MortalJournal(folder, None, random.Random(0))
        wire = met(mortal)
        cluster(wire).session.keep(0)
        assert wire.streams.reached == -1
        for step in range(4):
            wire.begin_step(step)
            if step != 1:  # none of its clients takes part in that round
                said = b"%d" % step
                wire.send(0, "exchange", said, limit=LIMIT)
                meshes.until(lambda said=said: said in [frame.body for frame in puppet.data])
        wire.begin_step(9)  # of that nothing left
        mesh.kill(wire, mortal)
        for segment in folder.glob("received-*"):
            segment.write_bytes(b"")
        again = met(Journal(folder))
        assert again.streams.reached == 3
        again.begin_step(2)
        again.snapshot(2)  # what the first process had sent beyond it is not forgotten
        again.close(ended=False, linger=0.0)
        last = mesh.wire(1, folder)
        mesh.start(last, 2)
        assert last.streams.reached == 3
        before = last.session.secret
        cluster(last, returned_to=2).close(ended=False, error=LeftOutError("west was left out"))
    finally:
        mesh.end()
    session = Journal(folder).session()
    assert session is not None
    assert (session.rejoins, session.nonces) == (4, None)
    assert session.secret != before


def test_who_is_left_out_before_it_has_begun_cannot_tell_and_ends(tmp_path):
    mesh = Mesh(2)
    with facing_puppets(mesh, tmp_path) as (wire, _):
        with pytest.raises(InputError, match="was left out before it began to take part"):
            cluster(wire).close(ended=False, error=LeftOutError("west was left out"))
        session = Journal(tmp_path / "own").session()
        assert session is not None
        assert session.rejoins is None


def test_who_is_left_out_before_it_has_begun_and_knows_what_it_sent_waits(tmp_path):
    for number, (sent, earlier) in enumerate([(0, {}), (7, {"terms": "{}"})]):
        mesh, folder = Mesh(2), tmp_path / str(number)
        Journal(folder / "own").write_session(Session.new(sent=sent, earlier=earlier))
        with facing_puppets(mesh, folder) as (wire, _):
            before = wire.session.secret
            cluster(wire).close(ended=False, error=LeftOutError("west was left out"))
        session = Journal(folder / "own").session()
        assert session is not None
        assert (session.rejoins, session.sent, session.nonces) == (sent, sent, None)
        assert (session.earlier, session.has_met) == (earlier, True)
        assert session.secret != before


@pytest.mark.parametrize(
    ("written", "lets_begin", "is_ready", "ranks", "expected"),
    [
        ({"without": (2,)}, True, False, {2}, True),
        ({}, True, False, {2}, False),
        ({"without": (2,)}, False, False, {2}, False),  # the run cannot begin without it
        ({"without": (2,)}, True, True, {2}, False),  # others may have begun
        ({"without": (2, 3)}, True, False, {2, 3}, True),
        ({"without": (2, 3, 4)}, True, False, {2, 3, 4}, False),  # too few would be left
        ({"without": (0, 2)}, True, False, {0, 2}, False),  # nobody begins without rank 0
        ({"without": (1, 2)}, True, False, {1, 2}, False),  # this one itself
        ({"rejoins": 9}, True, False, {2, 4}, True),  # it does not know who else comes back
        ({"rejoins": 9}, True, False, {0}, False),
    ],
)
def test_who_can_be_spared(tmp_path, written, lets_begin, is_ready, ranks, expected):
    Journal(tmp_path).write_session(Session.new(**written))
    mesh = Mesh(5)
    wire = mesh.wire(1, tmp_path, lets_begin=lets_begin)
    try:
        mesh.start(wire)
        if is_ready:
            wire.streams.stated[f"share {READY} 0"] = "true"
        assert cluster(wire).can_spare(ranks) is expected
    finally:
        wire.close(ended=False, linger=0.0)
        mesh.end()


NOTHING_LEFT = {"kind": "BudgetError", "line": "west: nothing is left"}


@pytest.mark.parametrize("spared", [True, False])
def test_who_is_taken_back_and_cannot_take_part_ends_the_session_and_not_the_run(tmp_path, spared):
    folder, without = tmp_path / "own", (2,) if spared else ()
    Journal(folder).write_session(Session.new(sent=9, without=without))
    with facing_puppets(Mesh(3), tmp_path, lets_begin=True) as (wire, (_, west)):
        sites = cluster(wire)
        west.say(west.beat(state="failed", report=NOTHING_LEFT))
        kind = MeetAnewError if spared else BudgetError
        with pytest.raises(kind, match="west: nothing is left") as refusal:
            sites.share("steps", 1, STEP)
        sites.report(refusal.value)
        sites.close(ended=False, error=refusal.value)
    session = Journal(folder).session()
    assert session is not None
    assert (session.sent, session.without) == (9, without)
    assert (session.nonces, session.absent) == (None, without)


def test_who_is_known_not_to_come_is_not_waited_for_when_all_meet_anew(tmp_path):
    """One was away before, one has said that it cannot, and a third gave the session up."""
    folder = tmp_path / "own"
    Journal(folder).write_session(Session.new(sent=9, without=(2, 3)))
    with facing_puppets(Mesh(5), tmp_path, lets_begin=True) as (wire, puppets):
        sites = cluster(wire)
        wire.left = {3: 0}
        puppets[1].say(puppets[1].beat(state="failed", report=NOTHING_LEFT))
        puppets[0].nonce = "f" * 32
        puppets[0].say(puppets[0].beat(state="forming"))
        with pytest.raises(MeetAnewError, match="has given up the session") as refusal:
            sites.share("steps", 1, STEP)
        sites.close(ended=False, error=refusal.value)
    session = Journal(folder).session()
    assert session is not None
    assert set(session.absent) == {2, 3}


def test_who_has_come_back_and_falls_silent_before_a_step_ends_the_session_and_not_the_run(
    tmp_path,
):
    Journal(tmp_path / "own").write_session(Session.new(sent=9, without=(2,)))
    with facing_puppets(Mesh(3), tmp_path, lets_begin=True) as (wire, _):
        sites = cluster(wire)
        with pytest.raises(MeetAnewError, match="west was lost") as refusal:
            wire.wait_for(2, lambda: False, 0.5)
        assert refusal.value.without == {2}
        assert sites.can_spare({2})


# Where a session is taken up.


def journal_with(folder, *steps):
    journal = Journal(folder)
    for step in steps:
        journal.write_snapshot(step, [Record(0)])
    return journal


@pytest.mark.parametrize(
    ("snapshots", "checkpoints", "expected"),
    [
        ([], [], None),
        ([], [20], None),  # of an earlier session
        ([0], [], 0),
        ([0, 20], [], 0),  # killed before the checkpoint of step 20 was written
        ([0, 20], [20], 20),
        ([20, 40], [20], 20),
        ([20, 40], [20, 40, 60], 40),
        ([37], [37], 37),
    ],
)
def test_the_last_snapshot_with_a_checkpoint_counts(tmp_path, snapshots, checkpoints, expected):
    assert _taken_up(journal_with(tmp_path / "s", *snapshots), checkpoints) == expected


@pytest.mark.parametrize("checkpoints", [[], [10], [30, 60]])
def test_snapshots_without_their_checkpoints_are_refused(tmp_path, checkpoints):
    with pytest.raises(InputError, match="has no checkpoint of step 40"):
        _taken_up(journal_with(tmp_path / "s", 20, 40), checkpoints)


def test_a_session_lasts_from_its_beginning_to_its_end(tmp_path):
    folder = session_folder(tmp_path / "run", 3)
    assert folder == tmp_path / ".run.session-0003"
    assert not session_lasts(folder)
    journal, session = Journal(folder), Session(secret="5" * 64, nonce="7" * 32)
    assert not session_lasts(folder)
    journal.write_session(session)
    journal.hold()
    assert session_lasts(folder)
    journal.write_session(session.model_copy(update={"ended": True}))
    assert not session_lasts(folder)
    journal.remove()
    assert not session_lasts(folder)


# Certificates that end.


def test_the_likely_end_follows_from_the_steps_that_were_made(tmp_path):
    with facing_puppets(Mesh(2), tmp_path) as (wire, _):
        sites = cluster(wire)
        sites.expect(steps=10**9, largest=1000)
        before = sites._certificates.until
        sites.at(0)
        time.sleep(0.01)
        sites.at(1)  # 10^9 steps of a hundredth of a second take four months
        assert sites._certificates.until > before + timedelta(days=100)


def test_who_is_barred_is_named_where_it_is_shown_and_where_it_is_lost(tmp_path):
    with facing_puppets(Mesh(3), tmp_path) as (wire, _):
        wire.barred = lambda rank: "the certificate of west expired on ..." if rank == 2 else None
        states = cluster(wire).seen()
        assert [state.last_error for state in states] == [None, None, wire.barred(2)]
        with pytest.raises(
            PeerError, match=r"west .*; the certificate of west expired on ...\); what"
        ):
            wire.take(2, "exchange", limit=0.3)


def test_what_was_handed_over_is_counted_for_each_site(tmp_path):
    with facing_puppets(Mesh(2), tmp_path) as (wire, (south,)):
        for _ in range(3):
            wire.send(1, "exchange", bytes(100), limit=LIMIT)
        meshes.until(lambda: len(south.data) == 3, "data")
        south.say(south.beat(due=1))
        south.say(south.beat(due=1, again=True))
        meshes.until(lambda: len(south.data) >= 5, "two of them again")
        state = cluster(wire).seen()[1]
        assert (state.frames or 0) - (state.again or 0) == 3
        assert (state.again or 0) >= 2
