"""Requests: what a member asks the coordinator to approve, signed by the member's own key.

A request is PKCS#10: its common name is the member's, its organisational unit the role, and its
alternative names are the hosts at which the member listens, and a URI `tacit://HOST:PORT` for each
address. Nothing else may stand in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding

from tacit.errors import InputError
from tacit.identities.certificates import (
    MALFORMED,
    host_names,
    public_key_of,
    refusing_doubts,
    subject_of,
    text_of_name,
)
from tacit.identities.names import MOST_ADDRESSES, Address, Role, check_address, check_name

_SCHEME = "tacit://"


@dataclass(frozen=True)
class MemberRequest:
    """What somebody asks the coordinator to approve; its signature, by `key`, was checked."""

    name: str
    role: Role
    addresses: tuple[Address, ...]
    key: Ed25519PublicKey


def new_request(
    key: Ed25519PrivateKey, name: str, role: Role, addresses: Sequence[Address]
) -> bytes:
    """A request (PEM) that the key has signed; name and addresses were checked."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject_of(name, role))
    if addresses:
        names = x509.SubjectAlternativeName(_names(addresses))
        builder = builder.add_extension(names, critical=False)
    return builder.sign(key, None).public_bytes(Encoding.PEM)


def _names(addresses: Sequence[Address]) -> list[x509.GeneralName]:
    uris = [x509.UniformResourceIdentifier(_SCHEME + address) for address in addresses]
    return [*host_names(addresses), *uris]


def read_request(content: bytes, path: Path) -> MemberRequest:
    """A request that somebody sent.

    Raises:
        InputError: it is damaged, its signature is not that of its key, or it asks for something
            that no member is given: to be an authority, or a name of another form.
    """

    def refuse(reason: str) -> InputError:
        return InputError("request", str(path), reason)

    try:
        with refusing_doubts():
            request = x509.load_pem_x509_csr(content)
            key, is_signed = public_key_of(request), request.is_signature_valid
            extensions = [extension.value for extension in request.extensions]
            name = text_of_name(request.subject)
    except MALFORMED:
        expected = "must be the request that `tacit site create` wrote: it is damaged"
        raise refuse(expected) from None
    if not is_signed:
        raise refuse("must be signed by its own key: its signature is wrong")
    if any(isinstance(value, x509.BasicConstraints) and value.ca for value in extensions):
        raise refuse("asks to be an authority, which no member can be")
    names: list[x509.GeneralName] = []
    for value in extensions:
        if not isinstance(value, x509.SubjectAlternativeName):
            raise refuse(f"asks for {value.oid.dotted_string}, which no member is given")
        names.extend(value)
    check_name(name, f"name in {path}")
    roles: tuple[Role, ...] = ("site", "relay")
    role = next((role for role in roles if request.subject == subject_of(name, role)), None)
    if role is None:
        raise refuse("must name one member, and site or relay as its role")
    uris = [str(item.value) for item in names if isinstance(item, x509.UniformResourceIdentifier)]
    if len(uris) > MOST_ADDRESSES:
        raise refuse(f"must have {MOST_ADDRESSES} addresses at most")
    where = f"address in {path}"
    addresses = tuple(check_address(uri.removeprefix(_SCHEME), where) for uri in uris)
    if names != _names(addresses) or len(set(addresses)) != len(addresses):
        raise refuse("asks for a name that is not the host of one of its addresses")
    if role == "relay" and not addresses:
        raise refuse("must have an address: a relay listens at one")
    return MemberRequest(name, role, addresses, key)
