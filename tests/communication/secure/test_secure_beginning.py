"""Beginning without a site that does not come, and how it is taken in when it does."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping, Sequence
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
from tacit.communication.secure.wire import Wire
from tacit.errors import GoneError, InputError, LeftOutError, MeetAnewError, PeerError

SHORT = 0.3  # seconds of a wait that is to end


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    meshes.quick(monkeypatch)


def begin(
    mesh, tmp_path, *, without: Sequence[int], settings: Mapping[str, bool] = {}, **more
) -> list[Wire]:
    """Wires of all sites but some, which have begun."""
    here = [rank for rank in range(3) if rank not in without]
    wires = [mesh.wire(rank, tmp_path / NAMES[rank], **settings) for rank in here]
    for wire in wires:
        mesh.start(wire)
    together([partial(wire.form, 4 * SHORT, **more) for wire in wires])
    return wires


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

    def wait() -> None:
        with suppress(InputError):  # which is asked for below
            west.form(4 * SHORT, has_part=False)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    until(lambda: 2 in north.back)
    assert north.back[2][1] == 0
    assert north.refused[0] == south.refused[0] == 0
    written = Journal(tmp_path / "west").session()
    assert written is not None
    assert (written.rejoins, written.nonces, written.earlier) == (0, None, {})
    time.sleep(8 * SHORT)
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


def test_nobody_begins_alone_nor_where_the_settings_do_not_allow_it(tmp_path):
    cases = [([1, 2], {}, {}), ([2], {"lets_begin": False}, {}), ([2], {}, {"is_new": False})]
    for number, (without, settings, changed) in enumerate(cases):
        mesh = Mesh(3)
        with pytest.raises(PeerError, match=r"west did not come within 1.2 s$"):
            begin(
                mesh,
                tmp_path / str(number),
                without=without,
                settings=settings,
                **({"is_new": True} | changed),
            )
        mesh.end()


def test_a_run_that_was_stopped_begins_without_those_that_it_had_lost(tmp_path):
    mesh = Mesh(3)
    for name in NAMES[:2]:
        Journal(tmp_path / name).write_session(Session.new(without=[2]))
    north, south = begin(mesh, tmp_path, without=[2])
    assert north.left == south.left == {2: 0}
    # The lost one is in its old session still, and hears that they have met without it.
    west = mesh.wire(2, tmp_path / "west")
    journal = west._journal
    west._session = west.session.model_copy(update={"nonces": ("a" * 32, "b" * 32, "c" * 32)})
    journal.write_session(west.session)
    north.takes_back = True
    mesh.start(west)
    west.form(LIMIT)
    until(lambda: west._failure is not None)
    with pytest.raises(LeftOutError):
        west.check()
    for wire in (north, south, west):
        wire.close(ended=False, linger=0.0)
    mesh.end()


def test_one_in_its_old_session_does_not_keep_those_from_beginning_that_had_lost_it(tmp_path):
    mesh, old = Mesh(3), "f" * 32
    for name in NAMES[:2]:
        Journal(tmp_path / name).write_session(Session.new(without=[2]))
    wires = [mesh.wire(rank, tmp_path / NAMES[rank]) for rank in range(2)]
    lost = [Puppet(mesh, 2, target=rank) for rank in range(2)]
    ended = threading.Event()

    def speak() -> None:
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
        together([partial(wire.form, 4 * SHORT) for wire in wires])
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
        south.close(ended=False, linger=0.0, following=Session.new())
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
