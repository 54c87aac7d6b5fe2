"""Frames: what is packed is read back; whatever else comes is refused, with its reason."""

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import example, given, settings
from hypothesis import strategies as st

from communication.secure.mesh import NAMES, RUN, Keys, signer
from tacit.communication.secure import frames
from tacit.communication.secure.frames import BEAT, DATA, Frame, RefusedError, digest_of

SITES = NAMES[:3]
KEYS = Keys(3)
LARGEST = 1000
SESSION = bytes(range(100, 116))
BODY = b"what is said"
FRAME = Frame(DATA, 1, 0, SESSION, 7, "exchange", BODY, digest_of(BODY))
TOPICS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=160)


def packed(frame=FRAME, run=RUN, key=None):
    return frames.pack(frame, run, signer(key or KEYS.private[frame.sender]))


def read(message, own=0, run=RUN, largest=LARGEST):
    return frames.unpack(
        message, run=run, own=own, sites=SITES, largest=largest, verify=KEYS.verify
    )[0]


def refused(message, **more):
    with pytest.raises(RefusedError) as caught:
        read(message, **more)
    line = str(caught.value)
    assert line.isprintable()
    assert len(line) < 200
    return line


@given(
    kind=st.sampled_from([DATA, BEAT]),
    sender=st.integers(1, 2),
    session=st.binary(min_size=16, max_size=16),
    number=st.integers(0, 2**64 - 1),
    topic=TOPICS,
    body=st.binary(max_size=LARGEST),
)
@settings(max_examples=60)
def test_every_frame_is_read_back(kind, sender, session, number, topic, body):
    frame = Frame(kind, sender, 0, session, number, topic, body, digest_of(body))
    assert read(packed(frame)) == frame


def test_every_flipped_bit_is_refused():
    message = packed()
    lines = set()
    for bit in range(8 * len(message)):
        changed = bytearray(message)
        changed[bit // 8] ^= 1 << bit % 8
        lines.add(refused(bytes(changed)))
    assert "a message in the name of south was changed on its way" in lines
    assert "a message in the name of south was refused: its signature is not that site's" in lines


def test_every_cut_is_refused():
    message = packed()
    for length in range(len(message)):
        refused(message[:length])


@given(more=st.binary(min_size=1, max_size=50))
def test_every_extension_is_refused(more):
    assert "does not have the form" in refused(packed() + more)
    refused(more + packed())


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"receiver": 2}, "a message of south is for another site"),
        ({"receiver": 2**32 - 1}, "a message of south is for another site"),
        ({"sender": 0}, "a message of north is for another site"),
        ({"digest": digest_of(b"another")}, "in the name of south was changed on its way"),
        ({"topic": "two\nlines"}, "south sent a message whose topic is none"),
        ({"topic": "\x1b[2J"}, "south sent a message whose topic is none"),
        ({"topic": "x" * 161}, "does not have the form"),
        ({"kind": 0}, "does not have the form"),
        ({"kind": 3}, "does not have the form"),
        ({"body": bytes(LARGEST + 1), "digest": digest_of(bytes(LARGEST + 1))}, "the form"),
    ],
)
def test_who_signs_what_no_frame_may_be_is_refused(change, line):
    assert line in refused(packed(replace(FRAME, **change)))


def test_a_frame_of_another_run_or_to_another_site_is_refused():
    assert refused(packed(run=bytes(16))) == "south sent a message of another run"
    assert refused(packed(), own=2) == "a message of south is for another site"


@pytest.mark.parametrize(
    "change", [{"session": bytes(16)}, {"number": 8}, {"topic": "metrics!"}, {"kind": BEAT}]
)
def test_a_signature_is_over_every_field(change):
    message, other = packed(), packed(replace(FRAME, **change))
    head = len(message) - len(BODY) - 64
    assert len(other) == len(message)
    refused(other[:head] + message[head:])
    assert read(other) == replace(FRAME, **change)


def test_a_frame_in_the_name_of_another_is_refused():
    line = "a message in the name of west was refused: its signature is not that site's"
    assert refused(packed(replace(FRAME, sender=2), key=KEYS.private[1])) == line
    stranger = Ed25519PrivateKey.generate()
    assert "in the name of south was refused" in refused(packed(key=stranger))


def test_a_signature_without_the_purpose_is_refused():
    key = KEYS.private[1]
    bare = frames.pack(FRAME, RUN, lambda data: key.sign(data.removeprefix(b"tacit frame 1\x00")))
    assert "its signature is not that site's" in refused(bare)


def test_a_site_that_is_not_there_is_not_asked_for_its_key():
    message = bytearray(packed())
    message[12:16] = (3).to_bytes(4, "little")
    assert refused(bytes(message)) == "a message says that it is of site 3; there are 3"


def test_nothing_is_asked_of_the_key_before_the_form_is_right():
    def never(rank, signature, data):
        raise AssertionError("asked")

    said = bytearray(packed())
    said[64:72] = (2**63).to_bytes(8, "little")  # the length of a body that nobody has
    for message in (b"", bytes(103), bytes(10_000), bytes(said), packed()[:-1]):
        with pytest.raises(RefusedError):
            frames.unpack(message, run=RUN, own=0, sites=SITES, largest=LARGEST, verify=never)


@given(garbage=st.binary(max_size=400))
@example(b"tacit\x00\x01\x01" + bytes(200))
def test_garbage_is_refused(garbage):
    refused(garbage)
    refused(packed()[:8] + garbage)
