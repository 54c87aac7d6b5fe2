"""Frames: what is packed is read back; whatever else comes is refused, with its reason."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ways import approved_again, members

from communication.secure.mesh import NAMES, RUN, Keys, signer
from tacit.communication.secure import frames, pacing
from tacit.communication.secure.certificates import Certificates, refuse_in_vain
from tacit.communication.secure.frames import BEAT, DATA, Frame, RefusedError, digest_of
from tacit.communication.secure.pacing import Pace
from tacit.communication.secure.streams import Outgoing
from tacit.errors import InputError
from tacit.identities.site import join

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


# Certificates that end: whose and when is said before a run, before they end, and then.


def test_it_is_said_once_whose_certificate_ends_before_the_run(tmp_path, caplog):
    site = members(tmp_path)["site-0"]
    ends = site.own.certificate.not_valid_after_utc
    for days, words in (
        (-20, []),
        (-1, ["the certificate of site-0 expires on", "and this run is likely to last until"]),
        (1, ["the certificate of site-0 expired on"]),
    ):
        now = ends + timedelta(days=days)
        certificates = Certificates(site, now + timedelta(days=10))
        caplog.clear()
        for second in range(3):
            certificates.look(now + timedelta(seconds=2 * second))
        said = [line for line in caplog.messages if "certificate of site-0" in line]
        assert len(said) == (1 if words else 0), said
        assert all(word in said[0] and "ask the coordinator" in said[0] for word in words)
        assert (certificates.expired(now) is not None) == (days > 0)


@pytest.mark.parametrize("name", ["site-1", "relay-0"])
def test_a_run_does_not_begin_with_a_certificate_that_has_expired(tmp_path, name):
    members(tmp_path)
    past = datetime.now(UTC) - timedelta(days=30)
    approved_again(tmp_path, name, past)
    site = join(tmp_path / "site-0", tmp_path / "consortium" / "bundle.json")
    with pytest.raises(
        InputError, match=f"'{name}': cannot .*the certificate of {name} expired on"
    ):
        refuse_in_vain(site, datetime.now(UTC))
    refuse_in_vain(site, past + timedelta(days=1))


# When frames are sent again: never before the time that was measured, then twice as late.


SECONDS = st.floats(1e-3, 1e4)
SIZES = st.integers(1, 2**30)
SEEN = st.lists(st.tuples(SECONDS, SIZES), max_size=30)


def paced(seen):
    pace = Pace()
    for seconds, size in seen:
        pace = pace.acknowledged(seconds, size)
    return pace


@given(seen=SEEN, size=SIZES)
def test_nothing_is_sent_again_before_the_time_that_was_measured(seen, size):
    wait = paced(seen).wait(size)
    assert wait >= pacing.LEAST
    assert wait >= size / max([pacing.SLOWEST, *(b / s for s, b in seen)])
    if seen:
        assert wait >= min(seconds for seconds, _ in seen)


@given(seconds=SECONDS, size=SIZES, times=st.integers(1, 30))
def test_a_way_that_does_not_change_is_given_longer_than_it_needs(seconds, size, times):
    assert paced([(seconds, size)] * times).wait(size) > seconds


@given(seen=SEEN, size=SIZES, attempts=st.integers(0, 60))
def test_each_attempt_waits_twice_as_long_up_to_a_limit(seen, size, attempts):
    first = pace = paced(seen)
    for _ in range(attempts):
        before, pace = pace.wait(size), pace.again()
        assert pace.wait(size) in (2 * before, max(first.wait(size), pacing.LONGEST))
    assert pace.acknowledged(1.0, size).attempts == 0
    assert pace.unclear().attempts == pace.attempts // 2
    assert replace(pace.unclear(), attempts=0) == first  # what was sent twice measures nothing


def handed(seen):
    """A stream of which the engine has taken frames of these sizes, at 0, 1, 2 ... seconds."""
    out = Outgoing(number=len(seen), published=len(seen))
    for number, size in enumerate(seen):
        out.took(number, float(number), number + 0.5, size, out.under_way + size)
    return out


@given(sizes=st.lists(SIZES, min_size=1, max_size=10), share=st.floats(0.0, 0.999))
def test_the_clock_runs_from_when_the_engine_had_taken_the_oldest_frame(sizes, share):
    out = handed(sizes)
    assert (out.frames, out.again, out.under_way) == (len(sizes), 0, sum(sizes))
    under_way = sum(sizes)
    wait = out.pace.wait(under_way)
    assert not out.looked(0.5 + share * wait, 0, under_way)
    assert out.looked(0.5 + 1.001 * wait, 0, under_way)
    assert (out.published, out.under_way, out.pace.attempts) == (0, 0, 1)
    assert not out.looked(1e9, 0, 0)  # the engine has not taken them anew
    out.took(0, 1e9, 1e9, sizes[0], sizes[0])
    assert (out.frames, out.again) == (len(sizes) + 1, 1)
    out.acknowledge(1, 1e9 + 5)
    assert out.pace.trip is None


def test_a_way_that_was_lost_begins_anew():
    out = handed([100, 200, 300])
    out.acknowledge(1, 4.0)
    out.answer()
    assert out.published == 1
    assert out.pace.trip == 4.0
    out.published = 3
    out.answer()  # it was asked for the same frame before
    assert out.published == 3
    assert out.looked(5.0, 1, 0)
    assert (out.published, out.pace, out.asked) == (1, Pace(), -1)
    assert not out.looked(5.1, 1, 0)


def test_the_rate_is_what_was_acknowledged_in_the_last_seconds():
    out = handed([1000] * 20)
    assert out.rate == 0.0
    for second in range(20):
        out.looked(float(second), 0, 0)
        out.acknowledge(second + 1, second + 0.5)
    assert out.rate == 1000.0
