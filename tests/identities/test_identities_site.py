"""Members: what is made, how they know each other, and every line of a refusal."""

import base64
import os
import shutil
import socket
import ssl
import stat
import subprocess
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from consortia import consortium, refused
from tacit.base.private_files import locked
from tacit.errors import InputError
from tacit.identities.bundle import read_bundle
from tacit.identities.certificates import issue_certificate, key_of, key_pem, new_authority, pem
from tacit.identities.consortium import AUTHORITY_FILE, approve, load_consortium, revoke
from tacit.identities.names import check_address, check_name
from tacit.identities.site import create_site, join, load_site, sign, verify

NOW = datetime.now(UTC)
MINUTE = timedelta(minutes=1)
YEAR = timedelta(days=366)
PRIVATE = {"authority.pem", "bundle.json", "certificate.pem", "key.pem", "lock", "request.json"}


# What is made.


def test_three_commands_make_members_that_know_each_other(made):
    north, south, relay = (load_site(made / name) for name in ("north", "south", "relay"))
    assert [member.name for member in north.bundle.sites] == ["north", "south"]
    assert [member.rank for member in north.bundle.sites] == [0, 1]
    assert [(member.name, member.rank) for member in north.bundle.relays] == [("relay", None)]
    assert relay.own.addresses == ("127.0.0.1:7447",)
    assert north.bundle.consortium == south.bundle.consortium == relay.bundle.consortium
    assert len(north.bundle.consortium) == 32
    assert int(north.bundle.consortium, 16)
    for site in (north, south, relay):
        assert all(site.bundle.refusal(member, NOW) is None for member in site.bundle.members)


@pytest.mark.parametrize("umask", [0, 0o077, 0o777])
def test_folders_and_files_are_private_whatever_the_umask(tmp_path, umask):
    if umask == 0o777 and os.geteuid() != 0:
        pytest.skip("nothing can be opened with it by whoever is not root")
    before = os.umask(umask)
    try:
        consortium(tmp_path)
    finally:
        os.umask(before)
    for name in ("north", "consortium"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o700
        for path in (tmp_path / name).iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert {path.name for path in (tmp_path / "north").iterdir()} == PRIVATE


def test_a_key_never_leaves_and_is_never_shown(made):
    site = load_site(made / "north")
    secret = site.key.private_bytes_raw()
    lines = (made / "north" / "key.pem").read_text().splitlines()
    assert lines[1] not in repr(site)
    assert secret.hex() not in repr(site)
    elsewhere = [path for path in made.rglob("*") if path.is_file() and path.name != "key.pem"]
    assert len(elsewhere) > 10
    for path in elsewhere:
        assert secret not in path.read_bytes()
        assert lines[1].encode() not in path.read_bytes()


def test_nothing_is_overwritten(own):
    for folder, name in (("north", "another"), ("another", "north")):
        with pytest.raises(InputError) as error:
            create_site(own / folder, name)
        refused(error, "--folder", "exists")
    assert not (own / "another").exists()
    assert load_site(own / "north")


def test_a_relay_needs_an_address(tmp_path):
    with pytest.raises(InputError) as error:
        create_site(tmp_path / "relay", "relay", "relay")
    refused(error, "--address", "a relay needs one")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["", "North", "1st", "-a", "a-", "a.b", "a_b", "ä", "a" * 41, "localhost", "a\n"]
)
def test_names_that_cannot_be(name):
    with pytest.raises(InputError, match="must be 1 to 40"):
        check_name(name)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "host",
        "host:",
        "host:0",
        "host:65536",
        "host:\uff10443",  # a digit that is not one of ASCII
        ":443",
        "*.example.org:443",
        "a b:443",
        "256.1.1.1:443",
        "0.0.0.0:443",
        "[::]:443",
        "::1:443",
        "[::1]:443",  # the engine takes the brackets for a part of a name
        "[127.0.0.1]:443",
        "[fe80::1%eth0]:443",
        "224.0.0.1:443",
        "tcp/host:443",
        "host/path:443",
        "a" * 64 + ":443",
        "host\n:443",
    ],
)
def test_addresses_that_cannot_be(address):
    with pytest.raises(InputError, match="must be HOST:PORT"):
        check_address(address)


def test_addresses_are_written_one_way():
    assert check_address("Relay.Example.org:443") == "relay.example.org:443"
    assert check_address("localhost:1") == "localhost:1"


# Certificates as others see them.


@pytest.mark.process
def test_openssl_accepts_the_certificates(made):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here")
    for name in ("north", "relay"):
        site = load_site(made / name)
        for purpose in ("sslserver", "sslclient"):
            files = [str(site.authority_file), str(site.certificate_file)]
            command = ["openssl", "verify", "-x509_strict", "-purpose", purpose, "-CAfile", *files]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert ended.returncode == 0, ended.stderr


def connected(server, client, host):
    """The common names that two ends see of each other after mutual TLS on loopback.

    Raises:
        ssl.SSLError: one of them refuses the other.
    """
    contexts = []
    for site, protocol in ((server, ssl.PROTOCOL_TLS_SERVER), (client, ssl.PROTOCOL_TLS_CLIENT)):
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.load_verify_locations(site.authority_file)
        context.load_cert_chain(site.certificate_file, site.key_file)
        contexts.append(context)
    seen = []

    def name(connection):
        subject = (connection.getpeercert() or {})["subject"]
        return dict(pair for (pair,) in subject)["commonName"]

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(30)

        def accept():
            with listening.accept()[0] as plain:
                plain.settimeout(30)
                try:
                    with contexts[0].wrap_socket(plain, server_side=True) as connection:
                        seen.append(name(connection))
                        connection.sendall(b"!")
                except (ssl.SSLError, ConnectionError):
                    pass

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            with (
                socket.create_connection(listening.getsockname(), timeout=30) as plain,
                contexts[1].wrap_socket(plain, server_hostname=host) as connection,
            ):
                assert connection.recv(1) == b"!"  # only now has the server accepted the client
                return name(connection), seen[0]
        finally:
            thread.join(timeout=60)
            assert not thread.is_alive()


def test_a_mutual_tls_connection_on_loopback(made, tmp_path):
    relay, north = load_site(made / "relay"), load_site(made / "north")
    assert connected(relay, north, "127.0.0.1") == ("relay", "north")
    assert connected(relay, north, "relay") == ("relay", "north")
    with pytest.raises(ssl.SSLCertVerificationError, match="match"):
        connected(relay, north, "south")
    others = consortium(tmp_path)
    with pytest.raises(ssl.SSLError):
        connected(relay, others["north"], "127.0.0.1")
    with pytest.raises(ssl.SSLError):
        connected(others["relay"], north, "127.0.0.1")


# Who is refused, and why.


def test_an_expired_certificate_is_refused_at_both_ends(tmp_path):
    site = consortium(tmp_path, days=1, now=NOW)["north"]
    ends = site.own.certificate.not_valid_after_utc
    assert site.bundle.refusal(site.bundle.sites[1], ends) is None
    line = site.bundle.refusal(site.bundle.sites[1], ends + MINUTE)
    assert line == f"the certificate of south expired on {ends:%Y-%m-%d %H:%M} UTC"
    with pytest.raises(InputError) as error:
        load_site(tmp_path / "north", ends + MINUTE)
    refused(error, "site folder", "the certificate of north expired on")
    with pytest.raises(InputError) as error:
        join(tmp_path / "north", tmp_path / "consortium" / "bundle.json", now=ends + MINUTE)
    refused(error, "the certificate of north expired on")


def test_a_certificate_that_is_not_yet_valid_is_refused(tmp_path):
    later = NOW + timedelta(days=30)
    site = consortium(tmp_path, now=later)["north"]
    assert site.bundle.refusal(site.own, later - timedelta(minutes=59)) is None  # clocks differ
    line = site.bundle.refusal(site.bundle.sites[1], NOW)
    assert line is not None
    assert line.startswith("the certificate of south is not yet valid: it holds from ")
    with pytest.raises(InputError) as error:
        load_site(tmp_path / "north")
    refused(error, "the certificate of north is not yet valid")


def test_an_authority_that_has_expired_approves_and_vouches_for_nobody(own):
    site = load_site(own / "north")
    ends = site.bundle.authority.not_valid_after_utc
    request = own / "north.request.json"
    approve(own / "consortium", [request], days=400, now=ends - timedelta(days=401))
    with pytest.raises(InputError) as error:
        approve(own / "consortium", [request], days=2, now=ends - timedelta(days=1, minutes=1))
    refused(error, "--days = 2", "must be 1 at most", "authority's certificate ends on")
    with pytest.raises(InputError, match="must be 0 at most"):
        approve(own / "consortium", [request], days=1, now=ends + MINUTE)


def test_a_revoked_member_is_refused_at_both_ends(own):
    bundle, path = revoke(own / "consortium", "south")
    north = join(own / "north", path)
    assert north.bundle.refusal(north.bundle.sites[1], NOW) == "south was revoked"
    assert [(member.name, member.revoked) for member in north.bundle.sites] == [
        ("north", False),
        ("south", True),
    ]
    assert north.bundle.issue == bundle.issue == 2
    with pytest.raises(InputError) as error:
        join(own / "south", path)
    refused(error, "south was revoked")
    assert load_site(own / "south").bundle.issue == 1
    shutil.copy(path, own / "south" / "bundle.json")
    with pytest.raises(InputError) as error:
        load_site(own / "south")
    refused(error, "site folder", "cannot take part: south was revoked")
    with pytest.raises(InputError, match="was revoked before"):
        revoke(own / "consortium", "south")
    with pytest.raises(InputError, match="did you mean 'south'"):
        revoke(own / "consortium", "soth")


def test_a_revoked_key_stays_revoked_and_another_takes_its_rank(own):
    revoke(own / "consortium", "south")
    with pytest.raises(InputError) as error:
        approve(own / "consortium", [own / "south.request.json"])
    refused(error, "south", "a key that was revoked")
    earlier = load_site(own / "south").own.certificate
    (own / "south.request.json").unlink()
    request = create_site(own / "south-2", "south")
    done = approve(own / "consortium", [request])
    assert done.changes == {"south": "new key after it was revoked"}
    south = join(own / "south-2", done.path)
    assert south.own.rank == 1
    assert not south.own.revoked
    assert south.bundle.refusal(south.own, NOW) is None
    assert south.bundle.refusal(earlier, NOW) == "south was revoked"


def test_another_authority_an_unknown_name_and_another_key_are_refused(made, own, tmp_path):
    north = load_site(own / "north")
    stranger = consortium(tmp_path / "other", {"south": ()}, {})["south"]
    line = north.bundle.refusal(stranger.own, NOW)
    assert line == "the certificate of south was signed by another authority"
    request = create_site(tmp_path / "west", "west")
    west = join(tmp_path / "west", approve(own / "consortium", [request]).path)
    assert (
        north.bundle.refusal(west.own, NOW) == "unknown name: west is no member of the consortium"
    )
    assert west.bundle.refusal(north.own, NOW) is None
    renewed = create_site(tmp_path / "south", "south")
    done = approve(own / "consortium", [renewed])
    assert done.changes == {"south": "new key"}
    south = join(tmp_path / "south", done.path)
    line = south.bundle.refusal(load_site(own / "south").own, NOW)
    assert line == "the certificate of south is of a key that is not the one approved last"


def test_a_certificate_with_a_wrong_name_is_refused(made):
    """Signed by somebody who says to be the authority, or by it under a name that cannot be."""
    site = load_site(made / "north")
    key = Ed25519PrivateKey.generate()
    impostor = new_authority(key, NOW)
    shown = issue_certificate(impostor, key, key.public_key(), "south", "site", (), NOW, NOW + YEAR)
    assert (
        site.bundle.refusal(shown, NOW)
        == "the certificate of south was signed by another authority"
    )
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "so\nuth")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, NOW, NOW + YEAR)
    line = site.bundle.refusal(builder.sign(key, None), NOW)
    assert line == "the certificate of somebody was signed by another authority"


def test_a_renewed_certificate_passes_before_all_have_the_new_bundle(own):
    north = load_site(own / "north")
    done = approve(own / "consortium", [own / "south.request.json"], days=700)
    assert done.changes == {"south": "renewed"}
    south = join(own / "south", done.path)
    assert south.own.rank == 1
    assert north.bundle.refusal(south.own, NOW) is None
    assert north.bundle.refusal(south.own, NOW + YEAR) is None
    assert north.bundle.refusal(north.bundle.sites[1], NOW + YEAR) is not None


# Folders.


def test_a_consortium_is_not_made_in_a_folder_of_something_else(made, tmp_path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(InputError, match="must be new, empty, or the folder of a consortium"):
        approve(tmp_path, [made / "north.request.json"])
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]
    with pytest.raises(InputError, match="must be the folder of a consortium"):
        load_consortium(tmp_path / "none")
    with pytest.raises(InputError, match="must be the folder of a consortium"):
        revoke(tmp_path / "none", "north")
    assert not (tmp_path / "none").exists()


def test_a_consortium_that_was_killed_before_its_first_bundle_goes_on(own):
    (own / "consortium" / "bundle.json").unlink()
    done = approve(own / "consortium", [own / "north.request.json"])
    assert done.bundle.consortium == load_site(own / "north").bundle.consortium
    assert not done.is_new


def test_a_coordinator_s_folder_that_is_damaged_or_of_two_is_refused(own, tmp_path):
    request = [own / "north.request.json"]
    authority = own / "consortium" / AUTHORITY_FILE
    approve(tmp_path / "other", request)
    content = authority.read_bytes()
    other = (tmp_path / "other" / AUTHORITY_FILE).read_bytes()
    half = len(content) // 2
    for changed, words in (
        (other, "it is of another consortium"),
        (content[:half], "damaged"),
        (b"", "damaged"),
        (content[: content.index(b"-----BEGIN CERT")] + other[half:], "damaged"),
    ):
        authority.write_bytes(changed)
        with pytest.raises(InputError) as error:
            approve(own / "consortium", request)
        refused(error, words)
        assert "PRIVATE" not in str(error.value)


def test_only_one_process_changes_a_folder(own):
    with locked(own / "consortium"), pytest.raises(InputError, match="one is changing it now"):
        approve(own / "consortium", [own / "north.request.json"])
    with locked(own / "north"), pytest.raises(InputError, match="one is changing it now"):
        join(own / "north", own / "consortium" / "bundle.json")


def test_a_folder_that_is_none_or_has_joined_nothing(tmp_path):
    with pytest.raises(InputError) as error:
        load_site(tmp_path / "none")
    refused(error, "site folder = ", "must be the folder that `tacit site create` made")
    create_site(tmp_path / "north", "north")
    with pytest.raises(InputError) as error:
        load_site(tmp_path / "north")
    refused(error, "has joined no consortium", "tacit site join BUNDLE")


@pytest.mark.parametrize("name", sorted(PRIVATE - {"lock"}))
def test_a_damaged_file_of_a_site_is_named(own, name):
    path = own / "north" / name
    content = path.read_bytes()
    other = (own / "south" / name).read_bytes()
    cases = [b"", content[: len(content) // 2], bytes(100), b"x" * 2**23]
    if other != content:
        cases.append(other)
    for changed in cases:
        path.write_bytes(changed)
        with pytest.raises(InputError) as error:
            load_site(own / "north")
        refused(error, "north/")
        assert "BEGIN" not in str(error.value)
    path.unlink()
    with pytest.raises(InputError):
        load_site(own / "north")
    path.write_bytes(content)
    path.chmod(0o600)
    assert load_site(own / "north")


def test_a_key_of_another_kind_or_with_a_password_is_refused(own):
    path = own / "north" / "key.pem"
    key = ec.generate_private_key(ec.SECP256R1())
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(InputError, match="must be an Ed25519 key"):
        load_site(own / "north")


def test_a_key_that_everyone_can_read_is_refused(own):
    path = own / "north" / "key.pem"
    path.chmod(0o604)
    with pytest.raises(InputError) as error:
        load_site(own / "north")
    refused(error, "must not be open to everyone", f"chmod 600 {path}")
    path.chmod(0o640)
    assert load_site(own / "north")


def test_a_join_that_was_killed_is_done_again(own):
    newer = approve(own / "consortium", [own / "north.request.json"]).path
    shutil.copy(newer, own / "north" / "bundle.json")  # the certificates are those of the first
    with pytest.raises(InputError, match="join the bundle again"):
        load_site(own / "north")
    join(own / "north", newer)
    assert load_site(own / "north").bundle.issue == 2


def test_folders_are_found_where_they_are_moved(own):
    shutil.move(own / "north", own / "moved")
    site = load_site(own / "moved")
    for path in (site.key_file, site.certificate_file, site.authority_file):
        assert path.parent == own / "moved"
        assert path.is_file()


# Messages.


def test_messages_are_signed_by_the_member_and_for_nothing_else(made):
    north, south = load_site(made / "north"), load_site(made / "south")
    signature = sign(north, b"data")
    assert len(signature) == 64
    assert verify(south.bundle.sites[0], signature, b"data")
    assert not verify(south.bundle.sites[1], signature, b"data")
    assert not verify(south.bundle.sites[0], signature, b"date")
    assert not verify(south.bundle.sites[0], signature[:-1], b"data")
    assert not verify(south.bundle.sites[0], b"", b"data")
    assert not verify(south.bundle.sites[0], north.key.sign(b"data"), b"data")


@given(data=st.binary(max_size=100), at=st.integers(0, 511))
def test_no_bit_of_a_signature_can_be_flipped(made, data, at):
    north = load_site_once(made)
    signature = bytearray(sign(north, data))
    assert verify(north.own, bytes(signature), data)
    signature[at // 8] ^= 1 << at % 8
    assert not verify(north.own, bytes(signature), data)


_LOADED = {}


def load_site_once(made):
    if made not in _LOADED:
        _LOADED[made] = load_site(made / "north")
    return _LOADED[made]


def test_what_openssl_says_of_the_authority_is_the_fingerprint(made):
    bundle = read_bundle(made / "consortium" / "bundle.json")[0]
    digest = bundle.authority.fingerprint(SHA256()).hex()
    assert bundle.consortium == digest[:32]
    assert (made / "north" / "authority.pem").read_text() == pem(bundle.authority)


@pytest.mark.parametrize("length", [0, 31, 33, 57])
def test_a_key_of_another_length_is_refused_in_a_line(length):
    """OpenSSL fails in ways of its own where a key's length is not that of its kind."""
    kind = bytes.fromhex("300506032b6570")  # Ed25519, in a key of PKCS#8
    content = bytes([2, 1, 0]) + kind + bytes([4, length + 2, 4, length]) + bytes(length)
    text = base64.b64encode(bytes([0x30, len(content)]) + content)
    text = b"-----BEGIN PRIVATE KEY-----\n" + text + b"\n-----END PRIVATE KEY-----\n"
    with pytest.raises(InputError, match="must be an Ed25519 key"):
        key_of(text, Path("key.pem"))


@given(data=st.data())
def test_a_key_that_was_changed_is_refused_in_a_line(data):
    lines = key_pem(Ed25519PrivateKey.from_private_bytes(bytes(range(32)))).splitlines()
    content = base64.b64decode(lines[1])
    at = data.draw(st.integers(0, 15))  # later bytes are the key, of which any is one
    rest = data.draw(st.integers(at, 15))
    changed = content[:at] + data.draw(st.binary(max_size=4)) + content[rest:]
    with suppress(InputError):  # nothing else is raised
        key_of(b"\n".join([lines[0], base64.b64encode(changed), lines[2], b""]), Path("key.pem"))
