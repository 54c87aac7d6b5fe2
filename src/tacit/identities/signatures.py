"""Files that a member signs for others: a statement, or what its ledgers say.

Each signature lies beside the file, as `FILE.NAME.signature` of its member: who signed which
content when, with the certificate of that time. It is checked against a bundle. The time is the
signer's own word.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import StringConstraints

from tacit.base.private_files import plain_errors, write_private
from tacit.errors import InputError
from tacit.identities import certificates, signing
from tacit.identities.bundle import Bundle
from tacit.identities.site import Site

_MOST_BYTES = 2**28  # of a file that is signed
_WRITER = "tacit privacy statement --site"


class _SignatureDocument(signing.SignedDocument):
    """The signature of a file, as its own file has it."""

    KIND: ClassVar[str] = "tacit signature"

    consortium: signing.Hex16
    certificate: Annotated[str, StringConstraints(max_length=2**13)]
    date: Annotated[str, StringConstraints(max_length=40)]
    sha256: signing.Hex32


@dataclass(frozen=True)
class SignedFile:
    """Who signed a file; the signature was checked. `date` is when, by the signer's own word.

    `rank` is None where it is no site.
    """

    name: str
    rank: int | None
    fingerprint: str
    consortium: str
    date: datetime

    @property
    def words(self) -> str:
        """Who has signed when, in words."""
        rank = "a relay" if self.rank is None else f"rank {self.rank}"
        who = f"signed by the key {self.fingerprint} ({rank} of the consortium {self.consortium})"
        return f"{who}, by its own word on {self.date.isoformat()}"


def signature_path(path: Path, name: str) -> Path:
    """Where the signature of a file by a member lies: beside it."""
    return path.with_name(f"{path.name}.{name}.signature")


def sign_file(site: Site, path: Path, now: datetime | None = None) -> Path:
    """Sign a file as a member, and give the path of the signature.

    A signature of the same content by the same key stays as it is.

    Raises:
        InputError: the file cannot be read, or another signature is there.
    """
    now = datetime.now(UTC) if now is None else now
    digest, place = _digest(path), signature_path(path, site.own.name)
    if place.exists():
        try:
            found = check_signed_file(path, site.bundle, site.own.name)
        except InputError:
            found = None
        if found is None or found.fingerprint != site.own.fingerprint:
            expected = "is there, and is no signature of this file by this site: move it away"
            raise InputError("signature", str(place), expected)
        return place
    values = {
        "consortium": site.bundle.consortium,
        "certificate": certificates.pem(site.own.certificate),
        "date": now.astimezone(UTC).isoformat(timespec="seconds"),
        "sha256": digest,
    }
    with plain_errors("signature", place):
        write_private(place, signing.write_signed(_SignatureDocument, values, site.key))
    return place


def verified_signatures(path: Path, bundle: Bundle) -> dict[str, SignedFile | InputError | None]:
    """Of each site, and of whose signature else lies beside a file, what was verified.

    None: it has not signed. An error says why a signature is refused; a file that cannot be read
    raises one.
    """
    _digest(path)
    begins, ends = f"{path.name}.", ".signature"
    files = (file.name for file in path.parent.iterdir() if file.name.startswith(begins))
    others = sorted(name[len(begins) : -len(ends)] for name in files if name.endswith(ends))
    found: dict[str, SignedFile | InputError | None] = {}
    for name in dict.fromkeys([*(site.name for site in bundle.sites), *others]):
        found[name] = None
        if name in others:
            try:
                found[name] = check_signed_file(path, bundle, name)
            except InputError as error:
                found[name] = error
    return found


def check_signed_file(path: Path, bundle: Bundle, name: str) -> SignedFile:
    """Check the signature of a member that lies beside a file.

    Raises:
        InputError: there is no signature, or it is damaged, of another file or consortium, by
            somebody who is no member, by a key that was revoked, or by a certificate that did not
            hold at its date.
    """
    place, whose = signature_path(path, name), name
    digest = _digest(path)
    document = signing.read_signed(
        _SignatureDocument, certificates.read_file(place, "signature"), place, _WRITER
    )

    def refuse(reason: str) -> InputError:
        return InputError("signature", str(place), reason)

    try:
        certificate = certificates.certificate_of(document.certificate.encode())
        date = datetime.fromisoformat(document.date)
    except ValueError as error:
        raise refuse(f"must have a certificate and a date: {error}") from None
    if date.tzinfo is None:
        raise refuse("must have a date with a time zone")
    name = certificates.common_name(certificate) or "somebody"
    key = certificates.public_key_of(certificate)
    if document.consortium != bundle.consortium or not certificates.signed_by(
        certificate, bundle.authority
    ):
        reason = f"must be by a member of the consortium {bundle.consortium}; it is of "
        raise refuse(f"{reason}{document.consortium}")
    if not signing.check_signature(document, key):
        raise refuse(f"must be signed with the key of {name}: it was changed or forged")
    if document.sha256 != digest:
        raise refuse(f"must be of {path.name} as it is: the file was changed since {name} signed")
    if name != whose:
        raise refuse(f"must be by {whose}, whose it is called: it is by {name}")
    member = bundle.member(name)
    if member is None:
        raise refuse(f"must be by a member: {name} is none in this bundle")
    if bundle.is_revoked(certificate):
        raise refuse(f"must not be by a key that was revoked: {name} was revoked")
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not begins <= date <= ends:
        times = f"from {certificates.shown_time(begins)} to {certificates.shown_time(ends)}"
        reason = f"the certificate of {name} held {times}"
        raise refuse(f"must be dated when its certificate held: {reason}")
    return SignedFile(name, member.rank, certificates.key_fingerprint(key), bundle.consortium, date)


def _digest(path: Path) -> str:
    return hashlib.sha256(certificates.read_file(path, "file", _MOST_BYTES)).hexdigest()
