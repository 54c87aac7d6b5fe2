"""What a coordinator approves: no request that is damaged or asks for more, no name twice."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from consortia import consortium, refused
from tacit.errors import FormatError, InputError
from tacit.identities.consortium import approve, load_consortium
from tacit.identities.signing import (
    MemberRequest,
    new_request,
    read_request,
    sign_bytes,
    write_signed,
)
from tacit.identities.site import create_site, join, load_site


def signed_request(key, **changed):
    """A request that its key has signed, whatever it asks for."""
    public = key.public_key().public_bytes_raw().hex()
    plain = {"name": "east", "role": "site", "addresses": [], "public_key": public}
    return write_signed(MemberRequest, plain | changed, key)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"ca": True}, "ca: Extra inputs are not permitted"),
        ({"extensions": ["2.5.29.37"]}, "extensions: Extra inputs are not permitted"),
        ({"addresses": ["localhost:1"] * 2}, "must name every address once"),
        ({"addresses": ["LOCALHOST:1"]}, "must be written as the program writes addresses"),
        ({"addresses": ["localhost:0"]}, "must be HOST:PORT"),
        ({"addresses": ["*:1"]}, "must be HOST:PORT"),
        ({"addresses": ["localhost"]}, "must be HOST:PORT"),
        ({"addresses": [1]}, "addresses.0: Input should be a valid string"),
        ({"addresses": [f"localhost:{i}" for i in range(1, 10)]}, "at most 8 items"),
        ({"addresses": [f"{'a.' * 200}b:1"]}, "at most 300 characters"),
        ({"role": "relay"}, "must have an address"),
        ({"role": "authority"}, "role: Input should be 'site' or 'relay'"),
        ({"role": ""}, "role: Input should be 'site' or 'relay'"),
        ({"name": "localhost"}, "and not be localhost"),
        ({"name": "East"}, "must be 1 to 40 of the characters"),
        ({"name": "a" * 41}, "at most 40 characters"),
        ({"public_key": "0" * 62}, "public_key: String should match pattern"),
        ({"public_key": "A" * 64}, "public_key: String should match pattern"),
        ({"public_key": "0" * 64}, "its signature is wrong"),
    ],
)
def test_requests_for_what_no_member_is_given(tmp_path, changed, words):
    path = tmp_path / "east.request.json"
    path.write_bytes(signed_request(Ed25519PrivateKey.generate(), **changed))
    with pytest.raises(InputError) as error:
        approve(tmp_path / "consortium", [path])
    refused(error, str(path), words)
    assert not (tmp_path / "consortium").exists()


def test_nobody_asks_for_the_key_of_another(tmp_path):
    """A request proves that whoever made it has the key: it is signed with it."""
    path = tmp_path / "east.request.json"
    theirs = Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex()
    path.write_bytes(signed_request(Ed25519PrivateKey.generate(), public_key=theirs))
    with pytest.raises(InputError, match="its signature is wrong"):
        approve(tmp_path / "consortium", [path])


def test_a_request_whose_signature_is_wrong(tmp_path):
    content = new_request(Ed25519PrivateKey.generate(), "east", "site", ())
    path = tmp_path / "east.request.json"
    path.write_bytes(content.replace(b"east", b"west"))
    with pytest.raises(InputError, match="its signature is wrong"):
        approve(tmp_path / "consortium", [path])


def test_a_signature_of_something_else_is_none_of_a_request(own, tmp_path):
    key = load_site(own / "north").key
    request = json.loads(signed_request(key))
    unsigned = {name: value for name, value in request.items() if name != "signature"}
    said = (json.dumps(unsigned, indent=1) + "\n").encode()
    path = tmp_path / "east.request.json"
    for purpose, words in (("tacit message", "its signature is wrong"), (MemberRequest.KIND, "")):
        signed = unsigned | {"signature": sign_bytes(key, purpose, said).hex()}
        path.write_text(json.dumps(signed, indent=1) + "\n")
        if words:
            with pytest.raises(InputError, match=words):
                read_request(path.read_bytes(), path)
        else:
            assert read_request(path.read_bytes(), path).key == key.public_key()


@given(data=st.data())
def test_a_request_that_was_changed_is_refused_in_a_line(data):
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    content = new_request(key, "east", "relay", ["localhost:1", "127.0.0.1:2"])
    at = data.draw(st.integers(0, len(content) - 1))
    bits = data.draw(st.integers(1, 255))
    changed = content[:at] + bytes([content[at] ^ bits]) + content[at + 1 :]
    with pytest.raises((InputError, FormatError)) as error:
        read_request(changed, Path("east.request.json"))
    assert "\n" not in str(error.value)
    assert "east.request.json" in str(error.value)


def test_two_requests_of_one_name_or_key(own, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    two = [create_site(tmp_path / folder / "east", "east") for folder in ("a", "b")]
    with pytest.raises(InputError) as error:
        approve(own / "consortium", two)
    refused(error, "'east'", "the name of two requests")
    key = load_site(own / "north").key
    path = tmp_path / "east.request.json"
    path.write_bytes(new_request(key, "east", "site", ()))
    with pytest.raises(InputError, match="has the key of north"):
        approve(own / "consortium", [path])
    path.write_bytes(new_request(Ed25519PrivateKey.generate(), "relay", "site", ()))
    with pytest.raises(InputError, match="is the name of a relay already"):
        approve(own / "consortium", [path])
    assert load_consortium(own / "consortium").issue == 1


def test_no_host_may_be_the_name_of_another_member(own):
    """TLS knows a member by its name: who listens under that of another could pass for it."""
    request = create_site(own / "east", "east", addresses=["south:7447"])
    with pytest.raises(InputError, match="the host south, which is the name of another member"):
        approve(own / "consortium", [request])
    west = create_site(own / "west", "west", addresses=["gate:7447", "west:1"])
    approve(own / "consortium", [west])
    gate = create_site(own / "gate", "gate")
    with pytest.raises(InputError, match="is a host at which west listens"):
        approve(own / "consortium", [gate])


def test_all_are_approved_or_none(own):
    before = (own / "consortium" / "bundle.json").read_bytes()
    request = create_site(own / "west", "west")
    with pytest.raises(InputError):
        approve(own / "consortium", [request, own / "consortium" / "bundle.json"])
    assert (own / "consortium" / "bundle.json").read_bytes() == before


def test_members_that_come_later_keep_all_ranks(own):
    for index, name in enumerate(("east", "west"), start=2):
        done = approve(own / "consortium", [create_site(own / name, name)])
        assert done.changes == {name: "new"}
        assert not done.is_new
        assert done.bundle.issue == index
    again = approve(own / "consortium", [own / "south.request.json"])
    assert [(m.name, m.rank) for m in again.bundle.members] == [
        ("north", 0),
        ("south", 1),
        ("relay", None),
        ("east", 2),
        ("west", 3),
    ]
    serials = {member.certificate.serial_number for member in again.bundle.members}
    assert len(serials) == 5


@pytest.mark.parametrize("days", [0, -1, 3651])
def test_how_long_certificates_hold_is_bounded(made, tmp_path, days):
    with pytest.raises(InputError, match="must be from 1 to 3650"):
        approve(tmp_path / "new", [made / "north.request.json"], days=days)


def test_a_place_where_no_consortium_can_be_made(made, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError) as error:
        approve(tmp_path / "file", [made / "north.request.json"])
    refused(error, "--folder", "cannot be written")
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / "authority.key.part").write_text("-----BEGIN")
    assert approve(tmp_path / "killed", [made / "north.request.json"]).is_new


def test_a_member_may_listen_at_a_host_of_its_own_name(tmp_path):
    """As services of one compose file do."""
    relay = consortium(tmp_path, {}, {"relay": ["relay:443", "relay:444"]})["relay"]
    assert relay.own.addresses == ("relay:443", "relay:444")
    extensions = relay.own.certificate.extensions
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [x509.DNSName("relay")]


@pytest.mark.parametrize("fails_at", [0, 1, 2])
def test_a_full_disk_loses_nothing(own, tmp_path, monkeypatch, fails_at):
    """Whichever file cannot be written: what was there holds, and the command can be repeated."""
    requests = [create_site(own / "west", "west")]
    replace = os.replace
    left = fails_at

    def filling(source, target):
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    newer = approve(own / "consortium", requests).path
    shutil.copytree(own / "consortium", tmp_path / "other")
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", filling)
        for folder in (tmp_path / "new", tmp_path / "other"):
            left = min(fails_at, 0 if folder.name == "other" else 1)
            with pytest.raises(InputError, match="No space left on device"):
                approve(folder, requests)
        left = fails_at
        with pytest.raises(InputError, match="No space left on device"):
            join(own / "north", newer)
    assert load_consortium(tmp_path / "other").issue == 2
    assert approve(tmp_path / "new", requests).bundle.issue == 1
    assert approve(tmp_path / "other", requests).bundle.issue == 3
    assert join(own / "north", newer).bundle.issue == load_site(own / "north").bundle.issue == 2
