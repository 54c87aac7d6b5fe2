"""Beginning without a site that does not come, and how it is taken in when it does."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
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
    together,
    until,
)
from tacit.communication.secure import streams
from tacit.communication.secure.journal import Journal
from tacit.communication.secure.wire import Wire
from tacit.errors import GoneError, InputError, PeerError

SHORT = 0.3  # seconds of a wait that is to end


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    meshes.quick(monkeypatch)


def begin(mesh, tmp_path, *, without: Sequence[int], **more) -> list[Wire]:
    """Wires of all sites but some, which have begun."""
    wires = [mesh.wire(r, tmp_path / NAMES[r]) for r in range(3) if r not in without]
    for wire in wires:
        mesh.start(wire)
    together([partial(wire.form, 4 * SHORT, **more) for wire in wires])
    return wires


def test_rank_0_begins_without_a_site_that_does_not_come_and_takes_it_in_later(tmp_path):
    mesh = Mesh(3)
    north, south = begin(mesh, tmp_path, without=[2], may_begin_without=[2])
    assert north.left == south.left == {2: 0}
    assert north.session.nonces == south.session.nonces
    assert north.session.nonces is not None
    assert north.session.nonces[2] == streams.ABSENT
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
    wires = begin(mesh, tmp_path, without=[2], may_begin_without=[2])
    west = mesh.wire(2, tmp_path / "west")
    mesh.start(west)
    with pytest.raises(InputError, match="others have begun this run without west, of which a run"):
        west.form(LIMIT, has_part=True)
    assert west.session.rejoins is None
    assert 2 not in wires[0].back  # nobody stops for it
    for wire in (*wires, west):
        wire.close(ended=False, linger=0.0)
    mesh.end()


def test_nobody_begins_alone_nor_where_the_method_does_not_allow_it(tmp_path):
    for number, (without, allowed) in enumerate([([1, 2], [1, 2]), ([2], []), ([2], [1])]):
        mesh = Mesh(3)
        with pytest.raises(PeerError, match=r"west did not come within 1.2 s$"):
            begin(mesh, tmp_path / str(number), without=without, may_begin_without=allowed)
        mesh.end()


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
        west.say(west.beat(nonce_of_receiver=streams.ABSENT))
        north.say(north.beat(left=[[2, 7]], state="forming"))  # of another session
        time.sleep(SHORT)
        assert forming.is_alive()
        assert wire.session.rejoins is None
        north.say(north.beat(left=[[2, 0]], nonce_of_receiver=own))
        forming.join(LIMIT)
        assert wire.session.nonces == (north.nonce, own, streams.ABSENT)
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
        wire.form(SHORT, may_begin_without=[2])
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
