"""Keys and certificates: X.509 and Ed25519 of `cryptography`, with tacit's few rules.

Every key is Ed25519, of TLS as well. A member's certificate is good for both ends of a TLS
connection; its common name is the member's, its organisational unit the role, and its alternative
names are the member's name and the hosts at which it listens. The authority is a certificate that
signs itself, and may sign members and no other authorities.
"""

from __future__ import annotations

import hashlib
import ipaddress
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InternalError, InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tacit.base.plain_files import read_plain
from tacit.errors import InputError
from tacit.identities.names import Address, Role, host_of, is_name

_MOST_BYTES = 2**16  # of a file with a key, a request or a certificate
_BACKDATED = timedelta(hours=1)  # clocks of organisations differ
_AUTHORITY_DAYS = 3653

# What `cryptography` raises where bytes from outside are no certificate or key of a form
# that it knows.
MALFORMED = (
    ValueError,
    TypeError,
    UserWarning,  # where `refusing_doubts` makes an error of it
    UnsupportedAlgorithm,
    InternalError,  # of a key whose length is not that of its kind
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)


@contextmanager
def refusing_doubts() -> Iterator[None]:
    """Within, what `cryptography` only warns of is an error: a serial number of 0, say."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


def read_file(path: Path, where: str, most: int = _MOST_BYTES) -> bytes:
    """A file's content, of so many bytes at most; nothing waits for what is no plain file.

    Else, or where it cannot be read, it is an InputError on `where`.
    """
    try:
        return read_plain(path, most)
    except OSError as error:
        expected = f"must be a file that can be read ({error.strerror})"
        raise InputError(where, str(path), expected) from None


def key_pem(key: Ed25519PrivateKey) -> bytes:
    """A private key as it is kept in a file of mode 0600 (PKCS#8)."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def key_of(content: bytes, path: Path) -> Ed25519PrivateKey:
    """The private key in a file's content; an InputError where it is none of Ed25519."""
    try:
        key = load_pem_private_key(content, password=None)
    except MALFORMED:
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError("key", str(path), "must be an Ed25519 key that tacit made: it is damaged")
    return key


def public_key_of(item: x509.Certificate) -> Ed25519PublicKey:
    """The public key of a certificate; a ValueError where it is none of Ed25519."""
    try:
        key = item.public_key()
    except MALFORMED as error:
        raise ValueError("its key cannot be read") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("its key is not one of Ed25519")
    return key


def key_fingerprint(key: Ed25519PublicKey) -> str:
    """What people compare of a member: 32 hexadecimal digits of SHA-256 of its public key."""
    encoded = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(encoded).hexdigest()[:32]


def pem(certificate: x509.Certificate) -> str:
    """A certificate as text."""
    return certificate.public_bytes(Encoding.PEM).decode("ascii")


def subject_of(name: str, role: Role) -> x509.Name:
    """Under which a member's certificates stand."""
    unit = x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role)
    return x509.Name([unit, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def new_authority(key: Ed25519PrivateKey, now: datetime) -> x509.Certificate:
    """The certificate of a new consortium, which signs those of its members."""
    public = key.public_key()
    title = f"tacit consortium {key_fingerprint(public)[:8]}"
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, title)])
    identifier = x509.SubjectKeyIdentifier.from_public_key(public)
    return (
        _builder(name, name, public, now, now + timedelta(days=_AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, None)
    )


def issue_certificate(
    authority: x509.Certificate,
    authority_key: Ed25519PrivateKey,
    public: Ed25519PublicKey,
    name: str,
    role: Role,
    addresses: Sequence[Address],
    now: datetime,
    until: datetime,
) -> x509.Certificate:
    """A member's certificate: for both ends of TLS, under its name and its hosts."""
    usage = x509.ExtendedKeyUsage(
        [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    )
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    own = x509.SubjectKeyIdentifier.from_public_key(public)
    subject = subject_of(name, role)
    return (
        _builder(subject, authority.subject, public, now, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(usage, critical=False)
        .add_extension(_alternatives(name, addresses), critical=False)
        .add_extension(own, critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority_key, None)
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Ed25519PublicKey, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(until)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def certificate_of(text: bytes) -> x509.Certificate:
    """A certificate of an Ed25519 key from its PEM; a ValueError where it is none."""
    try:
        with refusing_doubts():
            certificate = x509.load_pem_x509_certificate(text)
            public_key_of(certificate)
            tuple(certificate.extensions)  # parsed on first use
            for field in ("subject", "issuer", "not_valid_before_utc", "not_valid_after_utc"):
                getattr(certificate, field)
    except MALFORMED as error:
        raise ValueError("must hold certificates: one is damaged") from error
    return certificate


def common_name(certificate: x509.Certificate) -> str:
    """The member's name that a certificate claims; empty where it claims none that can be one."""
    try:
        found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        name = str(found[0].value) if len(found) == 1 else ""
    except MALFORMED:
        return ""
    return name if is_name(name) else ""


def states(
    certificate: x509.Certificate, name: str, role: Role, addresses: Sequence[Address]
) -> bool:
    """Whether a certificate is one of a member with this name, role and addresses."""
    try:
        extensions = certificate.extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        basic = extensions.get_extension_for_class(x509.BasicConstraints).value
    except (*MALFORMED, x509.ExtensionNotFound):
        return False
    expected = subject_of(name, role), _alternatives(name, addresses), False
    return (certificate.subject, names, basic.ca) == expected


def _alternatives(name: str, addresses: Sequence[Address]) -> x509.SubjectAlternativeName:
    """The member's name, which may be a host as well, and the hosts of addresses, each once."""
    names: list[x509.GeneralName] = [x509.DNSName(name)]
    for host in map(host_of, addresses):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return x509.SubjectAlternativeName(dict.fromkeys(names))


def signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether an authority has signed a certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (*MALFORMED, InvalidSignature):
        return False
    return True


def shown_time(moment: datetime) -> str:
    """A moment for people, in UTC to the minute.

    >>> shown_time(datetime(2026, 12, 1, 9, 5, tzinfo=UTC))
    '2026-12-01 09:05 UTC'
    """
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
