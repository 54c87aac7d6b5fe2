"""Beginning without a site that does not come, and how it is taken in when it does."""

import random
import threading
import time
from contextlib import suppress
from functools import partial

import pytest

from communication.secure import mesh as meshes
from communication.secure.mesh import (
    LIMIT,
    NAMES,
    KilledError,
    Mesh,
    MortalJournal,
    Puppet,
    formed,
    together,
    until,
)
from tacit.communication.secure import meeting
from tacit.communication.secure.journal import Journal, Session
from tacit.errors import GoneError, InputError, LeftOutError, MeetAnewError, PeerError

LONGER = 3.0  # seconds of a wait that must not end while something is heard
SHORT = 0.3  # seconds of a wait that is to end


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    meshes.quick(monkeypatch)


def begin(mesh, tmp_path, *, without, settings=None, **more):
    """Wires of all sites but some, which have begun."""
    here = [rank for rank in range(3) if rank not in without]
    wires = [mesh.wire(rank, tmp_path / NAMES[rank], **(settings or {})) for rank in here]
    for wire in wires:
        mesh.start(wire)
    form_all(wires, **more)
    return wires


def form_all(wires, limit=LIMIT, **more):
    """Rank 0 decides, after a short wait, which the others await for as long as `limit`."""
    if len(wires) > 1:  # who is there was heard before that wait begins
        until(lambda: wires[0].peers[1].beat is not None)
    limits = [4 * SHORT] + [limit] * (len(wires) - 1)
    together(partial(wire.form, most, **more) for wire, most in zip(wires, limits, strict=True))


def test_rank_0_begins_without_a_site_that_does_not_come_and_takes_it_in_later(tmp_path):
    mesh = Mesh(3)
    north, south = begin(mesh, tmp_path, without=[2], is_new=True)
    assert north.left == south.left == {2: 0}
    assert north.session.nonces == south.session.nonces
    assert north.session.nonces is not None
    assert north.session.nonces[2] == meeting.ABSENT
    south.send(0, "exchange", b"first", limit=LIMIT)
    assert north.take(1, "exchange", limit=LIMIT) == b"first"
    with pytest.raises(GoneError):
        north.fact_of(2, "what it runs", limit=LIMIT)
    north.takes_back = True
    west = mesh.wire(2, tmp_path / "west")
    mesh.start(west)

    def wait():
        with suppress(InputError):  # which is asked for below
            west.form(LONGER, has_part=False)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    until(lambda: 2 in north.back)
    assert north.back[2][1].step == 0
    assert north.refused[0] == south.refused[0] == 0
    written = Journal(tmp_path / "west").session()
    assert written is not None
    assert (written.rejoins, written.nonces, written.earlier) == (0, None, {})
    time.sleep(1.2 * LONGER)
    assert waiting.is_alive()
    north.takes_back = False
    waiting.join(LIMIT)
    with pytest.raises(InputError, match="--site = 'west': came too late: the others began"):
        west.check()
    for wire in (north, south, west):
        wire.close(ended=False, linger=0.0)
    mesh.end()


def test_a_site_that_has_taken_part_does_not_come_as_one_that_never_did(tmp_path):
    mesh = Mesh(3)
    wires = begin(mesh, tmp_path, without=[2], is_new=True)
    west = mesh.wire(2, tmp_path / "west")
    mesh.start(west)
    with pytest.raises(InputError, match="others have begun this run without west, of which a run"):
        west.form(LIMIT, has_part=True)
    assert west.session.rejoins is None
    assert 2 not in wires[0].back  # nobody stops for it
    for wire in (*wires, west):
        wire.close(ended=False, linger=0.0)
    mesh.end()


@pytest.mark.slow
def test_nobody_begins_alone_nor_where_the_settings_do_not_allow_it(tmp_path):
    cases = [([1, 2], {}, {}), ([2], {"lets_begin": False}, {}), ([2], {}, {"is_new": False})]
    for number, (without, settings, changed) in enumerate(cases):
        mesh = Mesh(3)
        with pytest.raises(PeerError, match=r"west did not come within 1.2 s: "):
            begin(
                mesh,
                tmp_path / str(number),
                without=without,
                settings=settings,
                limit=4 * SHORT,
                **({"is_new": True} | changed),
            )
        mesh.end()


def test_a_run_that_was_stopped_begins_without_those_that_it_had_lost(tmp_path):
    mesh = Mesh(3)
    for name in NAMES[:2]:
        Journal(tmp_path / name).write_session(Session.new(without=[2]))
    north, south = begin(mesh, tmp_path, without=[2])
    assert north.left == south.left == {2: 0}
    for wire in (north, south):
        wire.close(ended=False, linger=0.0)
    mesh.end()


def test_one_in_its_old_session_does_not_keep_those_from_beginning_that_had_lost_it(tmp_path):
    mesh, old = Mesh(3), "f" * 32
    for name in NAMES[:2]:
        Journal(tmp_path / name).write_session(Session.new(without=[2]))
    wires = [mesh.wire(rank, tmp_path / NAMES[rank]) for rank in range(2)]
    lost = [Puppet(mesh, 2, target=rank) for rank in range(2)]
    ended = threading.Event()

    def speak():
        while not ended.wait(SHORT / 10):
            for puppet in lost:
                mesh.takers[2] = puppet.take  # it hears whom it speaks to
                time.sleep(0.02)
                if puppet.heard:
                    puppet.say(puppet.beat(nonce_of_receiver=old, step=7))

    for wire in wires:
        mesh.start(wire)
    speaking = threading.Thread(target=speak, daemon=True)
    speaking.start()
    try:
        form_all(wires)
        assert wires[0].left == wires[1].left == {2: 0}
    finally:
        ended.set()
        speaking.join(LIMIT)
        for wire in wires:
            wire.close(ended=False, linger=0.0)
        mesh.end()


@pytest.mark.parametrize(
    ("left", "settings"),
    [([2], {"lets_begin": False}), ([2, 3], {}), ([2, 3], {"lets_begin": False})],
)
def test_rank_0_is_not_believed_that_others_are_absent_who_may_not_be(left, settings, tmp_path):
    """With shared noise or masks it could take their place, and know all that hides a site."""
    mesh = Mesh(4)
    wire = mesh.wire(1, tmp_path / "own", **settings)
    north = Puppet(mesh, 0, target=1)
    mesh.start(wire)
    until(lambda: north.heard)
    told = [[rank, 0] for rank in left]
    north.say(north.beat(left=told, nonce_of_receiver=wire.session.nonce))
    with pytest.raises(PeerError, match=r"north goes on without west.* do not allow"):
        wire.form(SHORT)
    assert wire.session.nonces is None
    assert wire.left == {}
    wire.close(ended=False, linger=0.0)
    mesh.end()


def test_rank_0_is_not_believed_that_others_were_lost_who_may_not_be(tmp_path):
    mesh = Mesh(3)
    wire = mesh.wire(1, tmp_path / "own", lets_leave=False)
    north, west = Puppet(mesh, 0, target=1), Puppet(mesh, 2, target=1)
    mesh.start(wire)
    until(lambda: north.heard and west.heard)
    for puppet in (north, west):
        puppet.say(puppet.beat(nonce_of_receiver=wire.session.nonce))
    wire.form(LIMIT)
    until(lambda: north.heard[-1].nonce_of_receiver is not None)
    north.say(north.beat(left=[[2, 5]], nonce_of_receiver=wire.session.nonce))
    with pytest.raises(PeerError, match="north goes on without west"):
        wire.check()
    assert wire.left == {}
    wire.close(ended=False, linger=0.0)
    mesh.end()


def test_a_session_of_which_no_step_was_begun_ends_when_one_has_given_it_up(tmp_path):
    mesh = Mesh(3)
    with formed(mesh, tmp_path) as (north, south, west):
        west.snapshot(0)  # it may have begun
        mesh.takers.pop(1)
        south.close(ended=False, linger=0.0, following=lambda late: Session.new())
        again = mesh.wire(1, tmp_path / "south")
        assert again.session.nonces is None
        mesh.start(again)
        until(lambda: north._failure is not None)
        with pytest.raises(MeetAnewError, match="south has given up the session"):
            north.check()
        until(lambda: "south came back without its session" in west.refused[1])
        west.check()  # and waits for the one that it knows
        again.close(ended=False, linger=0.0)


def test_only_rank_0_says_without_whom_the_others_begin(tmp_path):
    mesh = Mesh(3)
    wire = mesh.wire(1, tmp_path / "own")
    north, west = Puppet(mesh, 0, target=1), Puppet(mesh, 2, target=1)
    mesh.start(wire)
    forming = threading.Thread(target=wire.form, args=(LIMIT,), daemon=True)
    forming.start()
    try:
        until(lambda: north.heard and west.heard)
        own = wire.session.nonce
        west.say(west.beat(left=[[0, 0]], nonce_of_receiver=own))
        west.say(west.beat(nonce_of_receiver=meeting.ABSENT))
        north.say(north.beat(left=[[2, 7]], state="forming"))  # of another session
        time.sleep(SHORT)
        assert forming.is_alive()
        assert wire.session.rejoins is None
        north.say(north.beat(left=[[2, 0]], nonce_of_receiver=own))
        forming.join(LIMIT)
        assert wire.session.nonces == (north.nonce, own, meeting.ABSENT)
        assert wire.left == {2: 0}
    finally:
        wire.close(ended=False, linger=0.0)
        mesh.end()


@pytest.mark.parametrize("fuse", range(12))
def test_without_whom_a_site_begins_is_on_the_disk_before_it_says_so(fuse, tmp_path):
    mesh, folder = Mesh(3), tmp_path / "own"
    south = Puppet(mesh, 1)
    mortal = MortalJournal(folder, None, random.Random(fuse))
    wire = mesh.wire(0, folder, mortal)
    mesh.start(wire)
    until(lambda: south.heard)
    south.say(south.beat(state="forming"))
    mortal._left = fuse  # from here on it has so many operations
    with suppress(KilledError):
        wire.form(SHORT, is_new=True)
        until(lambda: mortal.dead.is_set() or south.heard[-1].left)
    mesh.kill(wire, mortal)
    heard = [beat for beat in south.heard if beat.left]
    again = mesh.wire(0, folder)
    mesh.start(again)
    begun = again.session.nonces is not None
    assert again.left == ({2: 0} if begun else {})
    assert begun or not heard
    again.close(ended=False, linger=0.0)
    mesh.end()


def test_a_session_begins_at_once_without_those_who_were_away_when_it_was_called(tmp_path):
    mesh = Mesh(3)
    for name in NAMES[:2]:
        Journal(tmp_path / name).write_session(Session.new(without=[2], absent=[2]))
    wires = [mesh.wire(rank, tmp_path / NAMES[rank]) for rank in range(2)]
    for wire in wires:
        mesh.start(wire)
    began = time.monotonic()
    together([partial(wire.form, 4 * LIMIT) for wire in wires])
    assert time.monotonic() - began < LIMIT
    assert wires[0].left == wires[1].left == {2: 0}
    for wire in wires:
        wire.close(ended=False, linger=0.0)
    mesh.end()


def met_as_south(mesh, wire, puppets, **first):
    """Have a wire, which is of site 1, hear the others say that they have met it."""
    mesh.start(wire)
    until(lambda: all(puppet.heard for puppet in puppets))
    for puppet in puppets:
        more = first if puppet.rank == 0 else {}
        puppet.say(puppet.beat(nonce_of_receiver=wire.session.nonce, **more))


def others_of_south(mesh, count):
    return [Puppet(mesh, rank, target=1) for rank in range(count) if rank != 1]


def test_rank_0_does_not_leave_out_one_after_the_other_until_half_are_left(tmp_path, monkeypatch):
    monkeypatch.setattr(meshes, "NAMES", (*NAMES, "centre"))
    mesh = Mesh(5)
    wire, puppets = mesh.wire(1, tmp_path / "own"), others_of_south(mesh, 5)
    met_as_south(mesh, wire, puppets)
    wire.form(LIMIT)
    until(lambda: puppets[0].heard[-1].nonce_of_receiver is not None)
    for rank in (2, 3, 4):
        puppets[0].say(puppets[0].beat(left=[[rank, 5]], nonce_of_receiver=wire.session.nonce))
    with pytest.raises(PeerError, match="north goes on without west, east, centre"):
        wire.check()
    assert wire.left.keys() <= {2, 3}
    wire.close(ended=False, linger=0.0)
    mesh.end()


@pytest.mark.parametrize("settings", [{}, {"lets_begin": False, "lets_leave": False}])
def test_rank_0_does_not_meet_a_site_and_begin_without_it(settings, tmp_path):
    mesh = Mesh(3)
    wire, puppets = mesh.wire(1, tmp_path / "own", **settings), others_of_south(mesh, 3)
    met_as_south(mesh, wire, puppets, left=[[1, 0]])
    with pytest.raises(PeerError, match="north says that it has met south, and begins without it"):
        wire.form(SHORT)
    assert wire.session.nonces is None
    wire.close(ended=False, linger=0.0)
    mesh.end()


def test_rank_0_leaves_out_no_site_that_is_none(tmp_path):
    mesh = Mesh(3)
    wire, puppets = mesh.wire(1, tmp_path / "own"), others_of_south(mesh, 3)
    met_as_south(mesh, wire, puppets, left=[[7, 0]])
    assert "north leaves out a site that is none" in wire.refused[1]
    with pytest.raises(PeerError, match="did not come"):
        wire.form(SHORT)
    assert wire.session.nonces is None
    wire.close(ended=False, linger=0.0)
    mesh.end()


def test_no_site_gives_its_session_up_for_rank_0_where_its_settings_let_nobody_leave(tmp_path):
    mesh = Mesh(3)
    wire = mesh.wire(1, tmp_path / "own", lets_begin=False, lets_leave=False)
    puppets = others_of_south(mesh, 3)
    met_as_south(mesh, wire, puppets)
    wire.form(LIMIT)
    until(lambda: puppets[0].heard[-1].nonce_of_receiver is not None)
    said = puppets[0].beat(left=[[1, 3]], takes_back=True, nonce_of_receiver=wire.session.nonce)
    puppets[0].say(said)
    with pytest.raises(PeerError, match="north leaves out south, which no setting allows"):
        wire.check()
    wire.close(ended=False, linger=0.0)
    mesh.end()


def test_what_rank_0_said_before_all_met_is_not_believed_after(tmp_path):
    """A relay could say again that a site is left out: of the session before, in which it was."""
    mesh = Mesh(3)
    Journal(tmp_path / "own").write_session(Session.new(rejoins=5))
    wire, (north, west) = mesh.wire(1, tmp_path / "own"), others_of_south(mesh, 3)
    mesh.start(wire)
    forming = threading.Thread(target=wire.form, args=(LIMIT,), daemon=True)
    forming.start()
    until(lambda: north.heard and west.heard)
    recorded = north.beat(nonce_of_receiver="e" * 32, left=[[1, 4]], takes_back=True, step=9)
    north.say(recorded)
    assert forming.is_alive()
    north.nonce, north.counter = "a" * 32, 0
    west.say(west.beat(state="forming"))
    north.say(north.beat(nonce_of_receiver=wire.session.nonce))
    forming.join(LIMIT)
    assert wire.session.nonces is not None
    wire.snapshot(9)
    wire.receive(recorded)
    wire.check()
    wire.close(ended=False, linger=0.0)
    mesh.end()


def test_one_that_was_killed_before_it_began_may_come_to_a_session_begun_without_it(tmp_path):
    mesh = Mesh(3)
    with formed(mesh, tmp_path) as wires:
        west = wires[2]
        mesh.takers.pop(2)
        for wire in wires[:2]:  # as they do where one says why the run ends
            mesh.takers.pop(wire.own)
            wire.close(ended=False, linger=0.0, following=lambda late: Session.new())
        west.close(ended=False, linger=0.0)
        others = begin(mesh, tmp_path, without=[2], is_new=True)
        others[0].takes_back = True
        again = mesh.wire(2, tmp_path / "west")
        mesh.start(again)
        again.form(LIMIT, has_part=False)  # to the session that it knows
        until(lambda: again._failure is not None)
        with pytest.raises(MeetAnewError, match="north has given up the session"):
            again.check()
        again.close(ended=False, linger=0.0, following=lambda late: Session.new())
        third = mesh.wire(2, tmp_path / "west")
        mesh.start(third)

        def wait():
            with suppress(KilledError):
                third.form(LIMIT, has_part=False)

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        until(lambda: 2 in others[0].back)
        assert others[0].back[2][1].step == 0
        third._failure = KilledError()
        waiting.join(LIMIT)
        for wire in (*others, third):
            wire.close(ended=False, linger=0.0)


MET = {"has_met": True}
TERMS = {"terms": "{}"}


@pytest.mark.parametrize(
    ("session", "has_part", "waits_from"),
    [
        (Session.new(), False, 0),
        (Session.new(), True, None),
        (Session.new().model_copy(update=MET), True, None),
        (Session.new(sent=7, earlier=TERMS), True, 7),  # it was stopped
        (Session.new(sent=7, earlier=TERMS), False, None),  # its folder was removed
        (Session.new(rejoins=7, earlier=TERMS), True, 7),
        (Session.new(rejoins=7, earlier=TERMS), False, None),
        (Session.new(rejoins=0, earlier=TERMS), True, 0),
        (Session.new(rejoins=0), False, 0),
        (Session.new(rejoins=0), True, None),  # its folder came back while it waited
        # Its folder was made in a session of which it began no step.
        (Session.new(rejoins=0).model_copy(update=MET), True, 0),
        (Session.new(sent=0).model_copy(update=MET), True, 0),
    ],
)
def test_who_may_have_sent_something_does_not_come_as_one_that_has_not(
    session, has_part, waits_from, tmp_path
):
    mesh = Mesh(3)
    Journal(tmp_path / "west").write_session(session)
    west, north = mesh.wire(2, tmp_path / "west"), Puppet(mesh, 0, target=2)
    mesh.start(west)
    until(lambda: north.heard)
    north.say(north.beat(nonce_of_receiver=meeting.ABSENT, left=[[2, 0]]))
    with pytest.raises(InputError if waits_from is None else PeerError) as caught:
        west.form(SHORT, has_part=has_part)
    refused = "have begun this run without west" in str(caught.value)
    assert refused is (waits_from is None)
    assert west.session.rejoins == (session.rejoins if refused else waits_from)
    west.close(ended=False, linger=0.0)
    mesh.end()


def test_a_site_that_waits_and_may_have_sent_the_next_step_is_not_met(tmp_path):
    """All would end, since it cannot come in; it is taken in later, or keeps the others away."""
    mesh = Mesh(3)
    Journal(tmp_path / "north").write_session(Session.new(without=[2]))
    Journal(tmp_path / "west").write_session(Session.new(rejoins=9, earlier=TERMS))
    wires = [mesh.wire(0, tmp_path / "north", furthest=8), mesh.wire(1, tmp_path / "south")]
    west = mesh.wire(2, tmp_path / "west")
    for wire in (*wires, west):
        mesh.start(wire)

    def wait():
        with suppress(KilledError):
            west.form(LIMIT, has_part=True)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    until(lambda: wires[0].peers[2].beat is not None and wires[0].peers[2].beat.step == 9)
    form_all(wires)
    assert wires[0].left == wires[1].left == {2: 0}
    until(lambda: 2 in wires[0].back)
    west._failure = KilledError()
    waiting.join(LIMIT)
    for wire in (*wires, west):
        wire.close(ended=False, linger=0.0)
    mesh.end()


def test_who_was_away_once_is_waited_for_by_every_later_process(tmp_path):
    mesh = Mesh(3)
    for name in NAMES[:2]:
        session = Session.new(without=[2], absent=[2]).model_copy(update={"starts": 1})
        Journal(tmp_path / name).write_session(session)
    wires = [mesh.wire(rank, tmp_path / NAMES[rank]) for rank in range(3)]
    for wire in wires[:2]:
        mesh.start(wire)
    forming = [threading.Thread(target=wire.form, args=(LIMIT,), daemon=True) for wire in wires]
    for one in forming[:2]:
        one.start()
    time.sleep(SHORT)
    assert all(one.is_alive() for one in forming[:2])
    mesh.start(wires[2])
    forming[2].start()
    for one in forming:
        one.join(LIMIT)
    assert wires[0].left == {}
    for wire in wires:
        wire.close(ended=False, linger=0.0)
    mesh.end()


def test_a_recorded_beat_of_one_that_waits_does_not_call_a_stop(tmp_path):
    mesh = Mesh(3)
    wires = begin(mesh, tmp_path, without=[2], is_new=True)
    north, west = wires[0], Puppet(mesh, 2)
    until(lambda: west.heard)
    recorded = west.beat(state="forming", step=0)
    west.say(recorded)
    heard, _ = north.back[2]
    west.say(recorded)
    assert north.back[2][0] == heard
    west.say(west.beat(state="forming", step=0))
    assert north.back[2][0] > heard
    for wire in wires:
        wire.close(ended=False, linger=0.0)
    mesh.end()


def test_one_that_was_killed_at_a_clean_stop_is_left_out_of_what_follows_and_waits(tmp_path):
    mesh = Mesh(3)
    with formed(mesh, tmp_path) as wires:
        for wire in wires:
            wire.snapshot(0)
            wire.begin_step(7)
        west = wires[2]
        mesh.takers.pop(2)
        west.close(ended=False, linger=0.0)
        late = []

        def following(found):
            late.extend(found)
            return Session.new(without=found)

        together(
            [
                partial(wire.close, ended=True, linger=SHORT, following=following)
                for wire in wires[:2]
            ]
        )
        assert late == [2, 2]
        others = begin(mesh, tmp_path, without=[2])
        assert others[0].left == {2: 0}
        others[0].takes_back = True
        again = mesh.wire(2, tmp_path / "west")
        mesh.start(again, 0)
        again.form(LIMIT)
        until(lambda: again._failure is not None)
        with pytest.raises(LeftOutError):
            again.check()
        for wire in (*others, again):
            wire.close(ended=False, linger=0.0)
