"""A relay that floods: what a site holds for it is what others have signed, whatever it sends."""

import os
import struct
import threading
from contextlib import contextmanager

import pytest
import zenoh
from hypothesis import given, settings
from hypothesis import strategies as st
from ways import LIMIT, RUN, awaited, ends, members

from communication.secure.mesh import NAMES, Keys, signer
from tacit.communication.secure import carrier as carriers
from tacit.communication.secure.frames import DATA, LONGEST_HEAD, Frame, digest_of, pack
from tacit.communication.secure.journal import Journal
from tacit.communication.secure.sessions import PIECE, door, session_config
from tacit.communication.secure.wire import Wire

LARGEST = 200_000  # bytes of the plan's largest message
BLOCK = zenoh.CongestionControl.BLOCK


class Sample:
    """A piece as it comes."""

    kind = zenoh.SampleKind.PUT

    def __init__(self, payload, place):
        self.payload = zenoh.ZBytes(payload)
        self.attachment = None if place is None else zenoh.ZBytes(struct.pack(">QII", *place))


PLACES = st.tuples(st.integers(0, 2), st.integers(0, 8), st.integers(0, 9))


@given(
    pieces=st.lists(st.tuples(st.integers(0, PIECE + 1), PLACES), max_size=40),
    most=st.integers(0, 6 * PIECE),
)
@settings(deadline=None, max_examples=60)
def test_no_more_is_held_than_the_first_piece_may_announce(pieces, most):
    unfinished = carriers._Unfinished(lambda piece: most, lambda: None)
    for size, place in pieces:
        frame = unfinished.add(Sample(bytes(size), place))  # type: ignore[arg-type]
        assert unfinished.held <= -(-most // PIECE) * PIECE
        assert frame is None or len(frame) <= max(PIECE, -(-most // PIECE) * PIECE)


@contextmanager
def flooding(relay, key, pieces):
    """The relay, which lets a site in and sends it pieces again and again; how many it has sent."""
    config = session_config(relay, "router", relay.bundle.sites, "*", listen=relay.own.addresses)
    stop, sent = threading.Event(), [0]

    def flood(session):
        while not stop.is_set():
            for payload, place in pieces:
                session.put(key, payload, attachment=place, congestion_control=BLOCK)
                sent[0] += 1
                if stop.is_set():
                    return

    with zenoh.open(config) as session:
        session.declare_subscriber(door(relay), lambda sample: None)
        thread = threading.Thread(target=flood, args=(session,), daemon=True)
        thread.start()
        try:
            yield sent
        finally:
            stop.set()
            thread.join(LIMIT)


def beginning(keys, session, length, number=0, by=1):
    """The first piece of a frame of south, of so many bytes, that says it is of south."""
    body = bytes(2 * PIECE)
    frame = Frame(DATA, 1, 0, session, number, "exchange", body, digest_of(body))
    message = pack(frame, bytes.fromhex(RUN), signer(keys.private[by]))
    if length != len(body):  # the length is signed: this one is forged
        message = message[:64] + length.to_bytes(8, "little") + message[72:]
    return message[:PIECE]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["no head", "a forged length", "a replay", "what is due"])
def test_a_relay_that_floods_has_a_site_hold_what_others_have_signed(kind, tmp_path):
    made, keys = members(tmp_path), Keys(3)
    wire = Wire(
        NAMES[:3],
        0,
        bytes.fromhex(RUN),
        Journal(tmp_path / "own"),
        sign=signer(keys.private[0]),
        verify=keys.verify,
        largest=LARGEST,
    )
    nonces = ("a" * 32, "b" * 32, "c" * 32)
    wire.session = wire.session.model_copy(update={"nonces": nonces})
    session = wire._digest()
    first, count = {
        "no head": (os.urandom(PIECE), 17_476),
        "a forged length": (beginning(keys, session, 2**30), 17_476),
        "a replay": (beginning(keys, session, 2 * PIECE, number=7), 3),
        "what is due": (beginning(keys, session, 2 * PIECE), 17_476),
    }[kind]
    place = [struct.pack(">QII", 5, index, count) for index in range(min(count, 400))]
    pieces = [(first, place[0]), *((os.urandom(PIECE), where) for where in place[1:])]
    key = f"tacit/{made['relay-0'].bundle.consortium}/{RUN}/to/0/from/1"
    most, held = [0], []

    class Weighed(carriers._Unfinished):
        """Says after each piece what it holds."""

        def add(self, sample):
            frame = super().add(sample)
            most[0] = max(most[0], self.held + len(frame or b""))
            held.append(self.held)
            return frame

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(carriers, "_Unfinished", Weighed)
        with flooding(made["relay-0"], key, pieces) as sent:
            options = {"receive": wire.receive, "begins": wire.begins, "moves": wire.moves}
            with ends(made["site-0"], **options) as (end,):
                wire._carrier = end.carrier
                awaited(lambda: len(held) > 2000, "the flood")
                assert sent[0] > 2000
    # Of what is due, as much as south has signed; of the rest, nothing.
    assert most[0] <= (2 * PIECE + LONGEST_HEAD + PIECE if kind == "what is due" else 0)
    assert most[0] <= 2 * LARGEST
