"""What a coordinator approves: no request that is damaged or asks for more, no name twice."""

from __future__ import annotations

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

from consortia import refused
from tacit.errors import InputError
from tacit.identities import (
    approve,
    create_site,
    load_consortium,
    load_site,
)
from tacit.identities.certificates import MALFORMED
from tacit.identities.requests import new_request, read_request


def signed_request(
    key: Ed25519PrivateKey, *extensions: x509.ExtensionType, name: str = "east", unit: str = "site"
) -> bytes:
    parts = [(NameOID.ORGANIZATIONAL_UNIT_NAME, unit), (NameOID.COMMON_NAME, name)]
    subject = x509.Name([x509.NameAttribute(oid, value) for oid, value in parts if value])
    builder = x509.CertificateSigningRequestBuilder(subject)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(key, None).public_bytes(Encoding.PEM)


def names(*items: x509.GeneralName) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName(items)


def uri(text: str) -> x509.UniformResourceIdentifier:
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
def test_requests_for_what_no_member_is_given(
    tmp_path: Path, extensions: list[x509.ExtensionType], unit: str, words: str
) -> None:
    path = tmp_path / "east.request.pem"
    path.write_bytes(signed_request(Ed25519PrivateKey.generate(), *extensions, unit=unit))
    with pytest.raises(InputError) as error:
        approve(tmp_path / "consortium", [path])
    refused(error, str(path), words)
    assert not (tmp_path / "consortium").exists()


def test_a_request_whose_signature_is_wrong(tmp_path: Path) -> None:
    der = x509.load_pem_x509_csr(new_request(Ed25519PrivateKey.generate(), "east", "site", ()))
    content = der.public_bytes(Encoding.DER).replace(b"east", b"west")
    path = tmp_path / "east.request.pem"
    path.write_bytes(x509.load_der_x509_csr(content).public_bytes(Encoding.PEM))
    with pytest.raises(InputError, match="its signature is wrong"):
        approve(tmp_path / "consortium", [path])


def test_a_request_of_another_kind_of_key(tmp_path: Path) -> None:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "east")])
    request = x509.CertificateSigningRequestBuilder(subject).sign(
        ec.generate_private_key(ec.SECP256R1()), SHA256()
    )
    with pytest.raises(InputError, match="it is damaged"):
        read_request(request.public_bytes(Encoding.PEM), tmp_path)


@given(data=st.data())
def test_a_request_that_was_changed_is_refused_in_a_line(data: st.DataObject) -> None:
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    der = x509.load_pem_x509_csr(new_request(key, "east", "relay", ["localhost:1", "[::1]:2"]))
    content = der.public_bytes(Encoding.DER)
    at = data.draw(st.integers(0, len(content) - 1))
    bits = data.draw(st.integers(1, 255))
    changed = content[:at] + bytes([content[at] ^ bits]) + content[at + 1 :]
    try:
        text = x509.load_der_x509_csr(changed).public_bytes(Encoding.PEM)
    except MALFORMED:
        text = changed
    with pytest.raises(InputError) as error:
        read_request(text, Path("east.request.pem"))
    refused(error, "east.request.pem")


def test_two_requests_of_one_name_or_key(own: Path, tmp_path: Path) -> None:
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


def test_no_host_may_be_the_name_of_another_member(own: Path) -> None:
    """TLS knows a member by its name: who listens under that of another could pass for it."""
    request = create_site(own / "east", "east", addresses=["south:7447"])
    with pytest.raises(InputError, match="the host south, which is the name of another member"):
        approve(own / "consortium", [request])
    west = create_site(own / "west", "west", addresses=["gate:7447", "west:1"])
    approve(own / "consortium", [west])
    gate = create_site(own / "gate", "gate")
    with pytest.raises(InputError, match="is a host at which west listens"):
        approve(own / "consortium", [gate])


def test_all_are_approved_or_none(own: Path) -> None:
    before = (own / "consortium" / "bundle.json").read_bytes()
    request = create_site(own / "west", "west")
    with pytest.raises(InputError):
        approve(own / "consortium", [request, own / "consortium" / "bundle.json"])
    assert (own / "consortium" / "bundle.json").read_bytes() == before


def test_members_that_come_later_keep_all_ranks(own: Path) -> None:
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
def test_how_long_certificates_hold_is_bounded(made: Path, tmp_path: Path, days: int) -> None:
    with pytest.raises(InputError, match="must be from 1 to 3650"):
        approve(tmp_path / "new", [made / "north.request.pem"], days=days)
