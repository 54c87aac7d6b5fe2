"""The bundle: who belongs to a consortium, signed by its authority, one file for all members.

It has the authority's certificate, all members in the order in which they were approved with their
certificates, and the keys that were revoked. Its issue number rises by one with each change, so
that an older bundle is refused where a newer one was seen. Nothing in it is secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from tacit.errors import InputError
from tacit.identities import signing
from tacit.identities.certificates import (
    certificate_of,
    common_name,
    key_fingerprint,
    pem,
    public_key_of,
    read_file,
    shown_time,
    signed_by,
    states,
)
from tacit.identities.names import MOST_ADDRESSES, Address, PlainAddress, PlainName, Role

MOST_MEMBERS = 1000
_MOST_REVOKED = 4000
_MOST_BYTES = 2**22


_Pem = Annotated[str, StringConstraints(max_length=2**13)]


class _Entry(BaseModel):
    """A member as the file has it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: PlainName
    role: Role
    rank: Annotated[int, Field(ge=0, lt=MOST_MEMBERS)] | None
    addresses: Annotated[tuple[PlainAddress, ...], Field(max_length=MOST_ADDRESSES)]
    certificate: _Pem


class RevokedKey(BaseModel):
    """A public key, in 64 hexadecimal digits, that no longer stands for the member it was of."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: PlainName
    key: signing.Hex32


class _BundleDocument(signing.SignedDocument):
    """A bundle as the file has it."""

    KIND: ClassVar[str] = "tacit bundle"

    issue: Annotated[int, Field(ge=1, le=10**9)]
    authority: _Pem
    members: Annotated[tuple[_Entry, ...], Field(max_length=MOST_MEMBERS)]
    revoked: Annotated[tuple[RevokedKey, ...], Field(max_length=_MOST_REVOKED)]


@dataclass(frozen=True)
class Member:
    """A member as the coordinator approved it.

    Its name is unique in the consortium, and the common name of its certificate, the one that was
    approved last. A site takes part in runs, and has a rank, its place from 0 in the order of
    approval; a relay passes messages on. A member whose key was revoked keeps its rank.
    """

    name: str
    role: Role
    rank: int | None
    certificate: x509.Certificate
    addresses: tuple[Address, ...]
    revoked: bool

    @cached_property
    def key(self) -> Ed25519PublicKey:
        """Its public key."""
        return public_key_of(self.certificate)

    @property
    def fingerprint(self) -> str:
        """Of its key, in 32 hexadecimal digits, for people to compare."""
        return key_fingerprint(self.key)


@dataclass(frozen=True)
class Bundle:
    """Who belongs to a consortium; every certificate and the signature were checked.

    The authority's certificate signs all others. The issue rises by one with each change. Members
    are in the order in which they were approved, and revoked are keys of earlier certificates too.
    """

    authority: x509.Certificate
    issue: int
    members: tuple[Member, ...]
    revoked: tuple[RevokedKey, ...]

    @cached_property
    def consortium(self) -> str:
        """What it is known by: 32 hexadecimal digits of SHA-256 of its authority's certificate."""
        return self.authority.fingerprint(SHA256()).hex()[:32]

    @property
    def sites(self) -> tuple[Member, ...]:
        """The sites by rank, revoked ones included."""
        return tuple(member for member in self.members if member.role == "site")

    @property
    def relays(self) -> tuple[Member, ...]:
        """The relays."""
        return tuple(member for member in self.members if member.role == "relay")

    def member(self, name: str) -> Member | None:
        """The member of a name."""
        return next((member for member in self.members if member.name == name), None)

    def is_revoked(self, certificate: x509.Certificate) -> bool:
        """Whether the key of a certificate was revoked."""
        key = public_key_of(certificate).public_bytes_raw().hex()
        return any(entry.key == key for entry in self.revoked)

    def refusal(self, shown: Member | x509.Certificate, now: datetime) -> str | None:
        """Why a member, or whoever showed a certificate, is not accepted at a time; None: it is.

        The member may be one of another bundle. `now` has a time zone.
        """
        certificate = shown.certificate if isinstance(shown, Member) else shown
        if any(shown is member for member in self.members):  # checked when the bundle was read
            name = common_name(certificate)
            reason = f"{name} was revoked" if self.is_revoked(certificate) else None
        else:
            name = common_name(certificate) or "somebody"
            reason = self._stranger(certificate, name)
        return (
            reason
            or _out_of_date(certificate, f"the certificate of {name}", now)
            or _out_of_date(self.authority, "the certificate of the consortium's authority", now)
        )

    def _stranger(self, certificate: x509.Certificate, name: str) -> str | None:
        """Why a certificate is none of a member, whatever the time."""
        if not signed_by(certificate, self.authority):
            return f"the certificate of {name} was signed by another authority"
        member = self.member(name)
        if member is None:
            return f"unknown name: {name} is no member of the consortium"
        if self.is_revoked(certificate):
            return f"{name} was revoked"
        if public_key_of(certificate) != member.key:  # a renewed certificate of its key passes
            return f"the certificate of {name} is of a key that is not the one approved last"
        return None


def _out_of_date(certificate: x509.Certificate, whose: str, now: datetime) -> str | None:
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begins:
        times = f"from {shown_time(begins)} on, and now it is {shown_time(now)}"
        return f"{whose} is not yet valid: it holds {times}"
    return f"{whose} expired on {shown_time(ends)}" if now > ends else None


def bundle_text(bundle: Bundle, key: Ed25519PrivateKey) -> bytes:
    """A bundle as it is sent to the members, signed by its authority's key."""
    members = [
        {
            "name": member.name,
            "role": member.role,
            "rank": member.rank,
            "addresses": list(member.addresses),
            "certificate": pem(member.certificate),
        }
        for member in bundle.members
    ]
    values = {
        "issue": bundle.issue,
        "authority": pem(bundle.authority),
        "members": members,
        "revoked": [entry.model_dump() for entry in bundle.revoked],
    }
    return signing.write_signed(_BundleDocument, values, key)


def read_bundle(path: Path) -> tuple[Bundle, bytes]:
    """A bundle from its file, and the file's content.

    Whether it is the bundle of one's own consortium, only its fingerprint tells: whoever likes can
    make an authority, and a bundle that it has signed.

    Raises:
        InputError: it cannot be read, is damaged, cut or changed, or contradicts itself.
    """
    content = read_file(path, "bundle", _MOST_BYTES)
    return bundle_of(content, path), content


def bundle_of(content: bytes, path: Path) -> Bundle:
    """A bundle from the content of its file; see `read_bundle`. The path is for errors."""
    document = signing.read_signed(_BundleDocument, content, path, "tacit consortium approve")
    try:
        return _checked(document)
    except ValueError as error:
        raise InputError("bundle", str(path), str(error)) from None


def _checked(document: _BundleDocument) -> Bundle:
    """A bundle whose signature and certificates hold; a ValueError says what does not."""
    authority = certificate_of(document.authority.encode())
    basic = [item.value for item in authority.extensions if item.oid == x509.BasicConstraints.oid]
    if not signed_by(authority, authority) or [getattr(item, "ca", 0) for item in basic] != [True]:
        raise ValueError("must have an authority that signed its own certificate")
    if not signing.check_signature(document, public_key_of(authority)):
        raise ValueError("must be signed by its authority: it was changed or damaged")
    keys = {entry.key for entry in document.revoked}
    members = tuple(_member(entry, authority, keys) for entry in document.members)
    _check_unlike(members)
    return Bundle(authority, document.issue, members, document.revoked)


def _member(entry: _Entry, authority: x509.Certificate, revoked: set[str]) -> Member:
    certificate = certificate_of(entry.certificate.encode())
    if not signed_by(certificate, authority):
        raise ValueError(f"the certificate of {entry.name} was signed by another authority")
    if not states(certificate, entry.name, entry.role, entry.addresses):
        raise ValueError(f"the certificate of {entry.name} is one of another member")
    is_revoked = public_key_of(certificate).public_bytes_raw().hex() in revoked
    return Member(
        entry.name, entry.role, entry.rank, certificate, tuple(entry.addresses), is_revoked
    )


def _check_unlike(members: Sequence[Member]) -> None:
    """Refuse members that share a name or a key, and ranks that are not those of the sites."""
    if len({member.name for member in members}) != len(members):
        raise ValueError("must name every member once")
    if len({member.fingerprint for member in members}) != len(members):
        raise ValueError("must have another key for every member")
    ranks = [member.rank for member in members if member.role == "site"]
    relays = [member.rank for member in members if member.role == "relay"]
    if ranks != list(range(len(ranks))) or any(rank is not None for rank in relays):
        raise ValueError("must number its sites from 0 in their order, and no relay")
