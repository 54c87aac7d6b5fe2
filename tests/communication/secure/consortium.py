"""A consortium for tests: an authority, relays and sites with folders, on loopback."""

from __future__ import annotations

import datetime
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@dataclass(frozen=True)
class LocalMember:
    name: str
    role: str
    rank: int | None
    certificate: x509.Certificate
    addresses: tuple[str, ...]
    revoked: bool = False


@dataclass(frozen=True)
class LocalSite:
    folder: Path
    consortium: str
    own: LocalMember
    members: tuple[LocalMember, ...]
    key: Ed25519PrivateKey = field(repr=False)

    @property
    def sites(self):
        return tuple(member for member in self.members if member.role == "site")

    @property
    def relays(self):
        return tuple(member for member in self.members if member.role == "relay")

    @property
    def key_file(self):
        return self.folder / "key.pem"

    @property
    def certificate_file(self):
        return self.folder / "certificate.pem"

    @property
    def authority_file(self):
        return self.folder / "authority.pem"


def _name(text):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


class Authority:
    def __init__(self, consortium="c" * 32, name="authority"):
        self.consortium = consortium
        self.name = name
        self.key = Ed25519PrivateKey.generate()
        self.certificate = self._signed(name, self.key, ca=True)

    def _signed(self, name, key, *, ca=False, hosts=(), start=-1, end=10):
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(_name(self.name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + start * DAY)
            .not_valid_after(now + end * DAY)
            .add_extension(x509.BasicConstraints(ca, 0 if ca else None), True)
        )
        if ca:
            usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
            return builder.add_extension(usage, True).sign(self.key, None)
        names = [x509.DNSName(name)]
        for host in hosts:
            try:
                names.append(x509.IPAddress(ipaddress.ip_address(host)))
            except ValueError:
                names.append(x509.DNSName(host))
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return (
            builder.add_extension(x509.SubjectAlternativeName(names), False)
            .add_extension(x509.ExtendedKeyUsage(uses), False)
            .sign(self.key, None)
        )

    def member(self, name, rank=None, addresses: Sequence[str] = (), key=None, hosts=None, **when):
        key = key or Ed25519PrivateKey.generate()
        hosts = [address.rpartition(":")[0] for address in addresses] if hosts is None else hosts
        certificate = self._signed(name, key, hosts=hosts, **when)
        role = "relay" if rank is None else "site"
        return LocalMember(name, role, rank, certificate, tuple(addresses)), key


def make_site(folder: Path, authority: Authority, own, key, members) -> LocalSite:
    folder.mkdir(parents=True)
    site = LocalSite(folder, authority.consortium, own, tuple(members), key)
    pem = serialization.Encoding.PEM
    site.authority_file.write_bytes(authority.certificate.public_bytes(pem))
    site.certificate_file.write_bytes(own.certificate.public_bytes(pem))
    site.key_file.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return site


def consortium(folder: Path, sites=2, relays=1, listening=(), authority=None):
    """Site folders by name: site-0, site-1, ..., relay-0, ...; some sites listen as well."""
    authority = authority or Authority()
    made = {}
    for i in range(relays):
        made[f"relay-{i}"] = authority.member(f"relay-{i}", None, [f"127.0.0.1:{free_port()}"])
    for i in range(sites):
        addresses = [f"localhost:{free_port()}"] if i in listening else []
        made[f"site-{i}"] = authority.member(f"site-{i}", i, addresses)
    members = [member for member, _ in made.values()]
    return {
        name: make_site(folder / name, authority, member, key, members)
        for name, (member, key) in made.items()
    }
