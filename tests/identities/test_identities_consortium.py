"""What a coordinator approves: no request that is damaged or asks for more, no name twice."""

import errno
import os
import shutil
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from consortia import consortium, refused
from tacit.errors import InputError
from tacit.identities import (
    approve,
    create_site,
    join,
    load_consortium,
    load_site,
)
from tacit.identities.certificates import MALFORMED
from tacit.identities.requests import new_request, read_request


def signed_request(key, *extensions, name="east", unit="site"):
    parts = [(NameOID.ORGANIZATIONAL_UNIT_NAME, unit), (NameOID.COMMON_NAME, name)]
    subject = x509.Name([x509.NameAttribute(oid, value) for oid, value in parts if value])
    builder = x509.CertificateSigningRequestBuilder(subject)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(key, None).public_bytes(Encoding.PEM)


def names(*items):
    return x509.SubjectAlternativeName(items)


def uri(text):
    return x509.UniformResourceIdentifier(f"tacit://{text}")


LOCAL = x509.DNSName("localhost")


@pytest.mark.parametrize(
    ("extensions", "unit", "words"),
    [
        ([x509.BasicConstraints(True, None)], "site", "asks to be an authority"),
        ([x509.BasicConstraints(False, None)], "site", "asks for 2.5.29.19"),
        ([x509.ExtendedKeyUsage([NameOID.COMMON_NAME])], "site", "asks for 2.5.29.37"),
        ([names(LOCAL)], "site", "the host of one of its addresses"),
        ([names(x509.DNSName("south"))], "site", "the host of one of its addresses"),
        ([names(x509.DNSName("b"), uri("a:1"))], "site", "the host of one of its addresses"),
        ([names(LOCAL, LOCAL, uri("localhost:1"))], "site", "the host of one of its addresses"),
        ([names(LOCAL, *[uri("localhost:1")] * 2)], "site", "the host of one of its addresses"),
        ([names(LOCAL, uri("LOCALHOST:1"))], "site", "the host of one of its addresses"),
        ([names(x509.RFC822Name("a@b.org"))], "site", "the host of one of its addresses"),
        ([names(LOCAL, uri("localhost:0"))], "site", "must be HOST:PORT"),
        ([names(uri("*:1"))], "site", "must be HOST:PORT"),
        ([names(LOCAL, *[uri(f"localhost:{i}") for i in range(1, 10)])], "site", "8 addresses"),
        ([], "relay", "must have an address"),
        ([], "authority", "site or relay as its role"),
        ([], "", "site or relay as its role"),
    ],
)
def test_requests_for_what_no_member_is_given(tmp_path, extensions, unit, words):
    path = tmp_path / "east.request.pem"
    path.write_bytes(signed_request(Ed25519PrivateKey.generate(), *extensions, unit=unit))
    with pytest.raises(InputError) as error:
        approve(tmp_path / "consortium", [path])
    refused(error, str(path), words)
    assert not (tmp_path / "consortium").exists()


def test_a_request_whose_signature_is_wrong(tmp_path):
    der = x509.load_pem_x509_csr(new_request(Ed25519PrivateKey.generate(), "east", "site", ()))
    content = der.public_bytes(Encoding.DER).replace(b"east", b"west")
    path = tmp_path / "east.request.pem"
    path.write_bytes(x509.load_der_x509_csr(content).public_bytes(Encoding.PEM))
    with pytest.raises(InputError, match="its signature is wrong"):
        approve(tmp_path / "consortium", [path])


def test_a_request_of_another_kind_of_key(tmp_path):
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "east")])
    request = x509.CertificateSigningRequestBuilder(subject).sign(
        ec.generate_private_key(ec.SECP256R1()), SHA256()
    )
    with pytest.raises(InputError, match="it is damaged"):
        read_request(request.public_bytes(Encoding.PEM), tmp_path)


_SIGNATURE = 2 + 5 + 3 + 64  # bytes of its algorithm and of itself, at the end of a request


@given(data=st.data())
def test_a_request_that_was_changed_is_refused_in_a_line(data):
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    der = x509.load_pem_x509_csr(new_request(key, "east", "relay", ["localhost:1", "127.0.0.1:2"]))
    content = der.public_bytes(Encoding.DER)
    at = data.draw(st.integers(0, len(content) - 1))
    bits = data.draw(st.integers(1, 255))
    changed = content[:at] + bytes([content[at] ^ bits]) + content[at + 1 :]
    try:
        text = x509.load_der_x509_csr(changed).public_bytes(Encoding.PEM)
    except MALFORMED:
        text = changed
    if changed[:-_SIGNATURE] == content[:-_SIGNATURE] and changed[-64:] == content[-64:]:
        return  # a byte of the encoding between what is signed and the signature
    with pytest.raises(InputError) as error:
        read_request(text, Path("east.request.pem"))
    refused(error, "east.request.pem")


def test_two_requests_of_one_name_or_key(own, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    two = [create_site(tmp_path / folder / "east", "east") for folder in ("a", "b")]
    with pytest.raises(InputError) as error:
        approve(own / "consortium", two)
    refused(error, "'east'", "the name of two requests")
    key = load_site(own / "north").key
    path = tmp_path / "east.request.pem"
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
    again = approve(own / "consortium", [own / "south.request.pem"])
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
        approve(tmp_path / "new", [made / "north.request.pem"], days=days)


def test_a_place_where_no_consortium_can_be_made(made, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError) as error:
        approve(tmp_path / "file", [made / "north.request.pem"])
    refused(error, "--folder", "cannot be written")
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / "authority.key.part").write_text("-----BEGIN")
    assert approve(tmp_path / "killed", [made / "north.request.pem"]).is_new


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
