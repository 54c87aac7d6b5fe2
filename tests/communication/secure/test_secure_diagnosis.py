"""What is said of a connection that does not come about: tried with real sockets and relays."""

import socket
import threading
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from ways import LIMIT, RUN, approved_again, members, relaying

from consortia import consortium
from ports import free_address
from tacit.communication.secure.carrier import Carrier
from tacit.communication.secure.certificates import explain
from tacit.errors import PeerError
from tacit.identities.consortium import revoke
from tacit.identities.site import join

pytestmark = pytest.mark.process  # they wait for what does not come

TIME = 5.0  # seconds to explain


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    return members(tmp_path_factory.mktemp("sites"))


def address_of(relay):
    return relay.own.addresses[0]


@contextmanager
def answering(words):
    """The address of a server that says something to each connection and closes it; or nothing."""
    held = []

    def work(listener):
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            if words is None:
                held.append(connection)
                continue
            with connection:
                connection.sendall(words)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=work, args=(listener,), daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    for connection in held:
        connection.close()


def test_nothing_is_wrong(sites):
    with relaying(sites["relay-0"]):
        assert explain(sites["site-0"], address_of(sites["relay-0"]), TIME) is None


def test_nobody_listens(sites):
    address = free_address()
    assert explain(sites["site-0"], address, TIME) == f"{address}: Connection refused"


def test_a_name_that_nobody_has(sites):
    assert explain(sites["site-0"], "relay.invalid:443", TIME) == (
        "relay.invalid:443: the name relay.invalid is not known here"
    )


@pytest.mark.parametrize("words", [b"SSH-2.0-OpenSSH_9.6\r\n", b"", b"\x16\x03\x03\xff\xff" * 99])
def test_what_speaks_no_tls(sites, words):
    with answering(words) as address:
        reason = explain(sites["site-0"], address, TIME)
    assert reason in (
        f"{address}: what answers there does not speak TLS",
        f"{address}: Connection reset by peer",
    )


def test_what_says_nothing(sites):
    with answering(None) as address:
        assert explain(sites["site-0"], address, 0.3) == f"{address}: no answer within 0.3 seconds"


def test_the_other_end_is_of_another_authority(sites, tmp_path):
    address = free_address()
    other = consortium(tmp_path, {"site-0": ()}, {"relay-0": [address]})
    with relaying(other["relay-0"]):
        assert explain(sites["site-0"], address, TIME) == (
            f"{address}: its certificate is signed by another authority"
        )


@pytest.mark.parametrize(
    ("days", "words"),
    [(-30, "its certificate has expired"), (30, "its certificate is not valid yet")],
)
def test_the_other_end_is_out_of_date(tmp_path, days, words):
    made = members(tmp_path)
    relay = approved_again(tmp_path, "relay-0", datetime.now(UTC) + timedelta(days=days))
    with relaying(relay):
        address = address_of(relay)
        assert explain(made["site-0"], address, TIME) == f"{address}: {words}"
        with pytest.raises(PeerError, match=f"no connection within 5 seconds: .*: {words}"):
            Carrier(made["site-0"], RUN, print, timeout=5)


def test_the_other_end_has_another_name(sites):
    port = address_of(sites["relay-0"]).rpartition(":")[2]
    with relaying(sites["relay-0"]):  # its certificate is for 127.0.0.1
        assert explain(sites["site-0"], f"localhost:{port}", TIME) == (
            f"localhost:{port}: its certificate is for another name than localhost"
        )


def test_the_own_certificate_is_out_of_date(tmp_path):
    made = members(tmp_path)
    site = approved_again(tmp_path, "site-0", datetime.now(UTC) - timedelta(days=30))
    with relaying(made["relay-0"]):
        address = address_of(made["relay-0"])
        assert explain(site, address, TIME) == (
            f"{address}: it refuses the certificate of this site: it has expired"
        )


def test_the_own_certificate_is_of_another_authority(sites, tmp_path):
    address = address_of(sites["relay-0"])
    other = consortium(tmp_path, {"site-0": ()}, {"relay-0": [address]})["site-0"]
    other.authority_file.write_bytes(sites["site-0"].authority_file.read_bytes())
    with relaying(sites["relay-0"]):
        reason = explain(other, address, TIME)
    assert reason is not None
    assert "it refuses the certificate of this site: it is signed by another authority" in reason


def test_the_other_end_was_revoked(tmp_path):
    made = members(tmp_path)
    _, bundle = revoke(tmp_path / "consortium", "relay-0")
    site = join(tmp_path / "site-0", bundle)
    with relaying(made["relay-0"]):
        address = address_of(made["relay-0"])
        assert explain(site, address, TIME) == f"{address}: relay-0 was revoked"


def test_the_other_end_is_another_member(tmp_path):
    made = members(tmp_path, relays=2)
    first, second = made["relay-0"], made["relay-1"]
    swapped = replace(first.own, addresses=second.own.addresses)
    with relaying(replace(first, own=swapped)):
        address = address_of(second)
        assert explain(made["site-0"], address, TIME) == (
            f"{address}: relay-0 answers there, and it is the address of relay-1"
        )


def test_each_way_that_failed_has_its_reason(tmp_path):
    made = members(tmp_path, relays=2)
    past = datetime.now(UTC) - timedelta(days=30)
    with relaying(approved_again(tmp_path, "relay-1", past)), pytest.raises(PeerError) as error:
        Carrier(made["site-0"], RUN, print, timeout=5)
    text = str(error.value)
    assert "\n" not in text
    assert f"{address_of(made['relay-0'])}: Connection refused" in text
    assert f"{address_of(made['relay-1'])}: its certificate has expired" in text


def test_a_wait_for_nobody_ends(tmp_path):
    made = members(tmp_path, relays=0, direct=(0,))
    failures = []

    def work():
        try:
            Carrier(made["site-0"], RUN, print, timeout=0.5)
        except PeerError as error:
            failures.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(LIMIT)
    address = made["site-0"].own.addresses[0]
    assert [str(error) for error in failures] == [
        f"no connection within 0.5 seconds: nobody connected to {address}"
    ]
