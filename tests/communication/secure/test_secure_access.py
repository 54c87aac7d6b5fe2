"""What members and strangers may do at a relay, and at a site that listens: little, or nothing."""

import shutil
import struct
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import zenoh
from ways import QUIET, RUN, approved_again, awaited, ends, members, relaying

from consortia import consortium
from tacit.communication.secure.carrier import Carrier
from tacit.communication.secure.sessions import session_config
from tacit.errors import InputError, PeerError
from tacit.identities.consortium import revoke
from tacit.identities.site import join

pytestmark = pytest.mark.process  # they wait for what does not come

BLOCK = zenoh.CongestionControl.BLOCK
WHOLE = struct.pack(">QII", 1, 0, 1)  # the place of a frame's only piece


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    return members(tmp_path_factory.mktemp("sites"))


@pytest.fixture(scope="module")
def two(sites):
    """Sites 0 and 1 through a relay; tests speak to it as site 2."""
    with relaying(sites["relay-0"]), ends(sites["site-0"], sites["site-1"]) as found:
        yield found


@contextmanager
def engine(site, address):
    """A session of the engine with a site's certificate, and no access control of its own."""
    config = session_config(site, "client", [], "0", connect=[address])
    config.insert_json5("access_control", '{"enabled": false}')
    config.insert_json5("connect/timeout_ms", "3000")  # until a stranger gives up
    with zenoh.open(config) as session:
        yield session


@pytest.fixture
def third(sites, two):
    with engine(sites["site-2"], sites["relay-0"].own.addresses[0]) as session:
        yield session


def key_of(site, receiver, sender):
    return f"tacit/{site.bundle.consortium}/{RUN}/to/{receiver}/from/{sender}"


def test_a_member_cannot_listen_to_what_is_sent_to_another(sites, two, third):
    heard = []
    own, others = (key_of(sites["site-2"], rank, 0) for rank in (2, 1))
    wide = ("**", "tacit/**", "tacit/*/*/to/**", "tacit/*/*/to/*/from/*", "tacit/*/*/to/1/from/*")
    for key in (*wide, others, own):
        third.declare_subscriber(key, lambda sample: heard.append(str(sample.key_expr)))
    awaited(lambda: two[0].carrier.reaches(2), "a way to site 2")
    two[0].send(two[1], b"for site 1 alone")
    assert two[1].take() == b"for site 1 alone"
    two[0].carrier.publish(2, b"for site 2")
    awaited(lambda: own in heard, "what is for site 2")
    assert set(heard) == {own}


@pytest.mark.parametrize(
    "key",
    [
        "tacit/{c}/{run}/to/1/from/0",  # in the name of another
        "tacit/{c}/{run}/to/1/from/*",
        "tacit/{c}/{run}/to/*/from/2",  # to all at once
        "tacit/{c}/{run}/to/**",
        "tacit/{c}/door",
        "tacit/dddddddddddddddddddddddddddddddd/{run}/to/1/from/2",
        "**",
    ],
)
def test_a_member_cannot_send_in_another_name(sites, two, third, key):
    key = key.format(c=sites["site-2"].bundle.consortium, run=RUN)
    third.put(key, b"a lie", attachment=WHOLE, congestion_control=BLOCK)
    own = key_of(sites["site-2"], 1, 2)  # sent later on the same connection
    third.put(own, b"the truth", attachment=WHOLE, congestion_control=BLOCK)
    assert two[1].take() == b"the truth"
    assert two[0].nothing_comes()
    assert two[1].nothing_comes()


def test_queries_and_tokens_are_not_passed_on(sites, third):
    with engine(sites["site-1"], sites["relay-0"].own.addresses[0]) as other:
        token = other.liveliness().declare_token(f"tacit/{sites['site-1'].bundle.consortium}/here")
        other.declare_queryable("tacit/**", lambda query: query.reply("tacit/question", b"answer"))
        assert list(third.liveliness().get("**", timeout=QUIET)) == []
        assert list(third.get("tacit/question", timeout=QUIET)) == []
        answers = [reply.ok for reply in third.get("@/**", timeout=QUIET)]
        own = str(third.info.zid())  # of its own state the engine tells its own process
        assert all(own in str(answer.key_expr) for answer in answers if answer is not None)
        token.undeclare()


GARBAGE = {
    "no place": (b"x", None),
    "a short place": (b"x", b"123"),
    "a long place": (b"x", bytes(100)),
    "a middle piece": (b"x", struct.pack(">QII", 1, 5, 9)),
    "a first piece without an end": (b"x", struct.pack(">QII", 1, 0, 2)),
    "too many pieces": (b"", struct.pack(">QII", 1, 0, 2**32 - 1)),
    "a piece that is too long": (bytes(62_000), WHOLE),
    "a piece that the engine must divide": (bytes(100_000), WHOLE),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_of_a_member_is_dropped(sites, two, third, name):
    payload, place = GARBAGE[name]
    own = key_of(sites["site-2"], 1, 2)
    for _ in range(3):
        third.put(own, payload, attachment=place, congestion_control=BLOCK)
    third.put(own, b"whole", attachment=WHOLE, congestion_control=BLOCK)
    assert two[1].take() == b"whole"


def test_a_message_above_the_limit_of_the_engine_is_collected_by_nobody(sites, two, third):
    own = key_of(sites["site-2"], 1, 2)
    third.put(own, bytes(50_000_000), attachment=WHOLE, congestion_control=BLOCK)
    assert two[1].nothing_comes()
    two[0].send(two[1], b"next")  # others go on
    assert two[1].take() == b"next"


def test_a_piece_that_is_lost_costs_its_frame_alone(sites, two, third):
    own = key_of(sites["site-2"], 1, 2)
    for place in ((7, 0, 3), (7, 2, 3), (8, 1, 2), (9, 0, 2), (10, 1, 2), (11, 0, 2), (11, 1, 2)):
        packed = struct.pack(">QII", *place)
        third.put(own, repr(place).encode(), attachment=packed, congestion_control=BLOCK)
    assert two[1].take() == b"(11, 0, 2)(11, 1, 2)"
    assert two[1].nothing_comes()


def test_another_authority_gets_nothing(sites, two, tmp_path):
    """A stranger of a member's name, who was told where the relay is."""
    address = sites["relay-0"].own.addresses[0]
    stranger = consortium(tmp_path / "other", {"site-0": ()}, {"relay-0": [address]})["site-0"]
    trusting = Path(shutil.copytree(stranger.folder, tmp_path / "trusting"))
    shutil.copy(sites["site-0"].authority_file, trusting / "authority.pem")
    with pytest.raises(zenoh.ZError), engine(replace(stranger, folder=trusting), address):
        pass
    with pytest.raises(PeerError, match="signed by another authority"):
        Carrier(stranger, RUN, print, timeout=5)
    assert two[0].nothing_comes()


def test_a_member_who_has_expired_gets_nothing(tmp_path):
    made = members(tmp_path)
    expired = approved_again(tmp_path, "site-2", datetime.now(UTC) - timedelta(days=30))
    with relaying(made["relay-0"]):
        with pytest.raises(zenoh.ZError), engine(expired, made["relay-0"].own.addresses[0]):
            pass
        with pytest.raises(PeerError, match="it refuses the certificate of this site: it has exp"):
            Carrier(expired, RUN, print, timeout=5)


def test_a_revoked_member_is_let_in_by_no_relay(tmp_path):
    made = members(tmp_path)
    _, bundle = revoke(tmp_path / "consortium", "site-2")
    relay, site = (join(tmp_path / name, bundle) for name in ("relay-0", "site-0"))
    with relaying(relay) as events, ends(site) as (honest,):
        with pytest.raises(
            InputError, match=r"'site-2': was revoked, by issue 2 of the bundle: ask"
        ):
            Carrier(made["site-2"], RUN, print, timeout=5)
        awaited(lambda: ("refused", "site-2") in events, "what the relay tells")
        heard = []
        with engine(made["site-2"], relay.own.addresses[0]) as spy:
            spy.declare_subscriber("**", heard.append, allowed_origin=zenoh.Locality.REMOTE)
            for sender in (1, 2):
                key = key_of(site, 0, sender)
                spy.put(key, b"a lie", attachment=WHOLE, congestion_control=BLOCK)
            assert honest.nothing_comes()
        assert heard == []
        assert not honest.carrier.reaches(2)


def test_a_revoked_member_is_let_in_by_no_site(tmp_path):
    made = members(tmp_path, relays=0, direct=(0,))
    _, bundle = revoke(tmp_path / "consortium", "site-2")
    site = join(tmp_path / "site-0", bundle)
    with ends(site, made["site-1"]) as (listening, _):
        with pytest.raises(PeerError, match=r"site-0 answers at .* does not let site-2 in"):
            Carrier(made["site-2"], RUN, print, timeout=5)
        assert listening.nothing_comes()


def test_a_member_at_the_address_of_another_gets_nothing(tmp_path):
    """Its certificate is good for the host, and not of the member that is expected there."""
    made = members(tmp_path, direct=(1,))
    address = made["relay-0"].own.addresses[0]
    heard = []
    config = session_config(made["site-1"], "router", [], "*", listen=[address])
    config.insert_json5("access_control", '{"enabled": false}')
    with zenoh.open(config) as pretender:
        pretender.declare_subscriber("**", heard.append)
        with pytest.raises(PeerError, match="site-1 answers there, and it is the address of relay"):
            Carrier(made["site-0"], RUN, print, timeout=5)
    assert heard == []
