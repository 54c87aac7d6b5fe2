"""Requests: what a member asks the coordinator to approve, signed by the member's own key."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import Field

from tacit.errors import InputError
from tacit.identities.names import MOST_ADDRESSES, Address, PlainAddress, PlainName, Role
from tacit.identities.signing import (
    Hex32,
    SignedDocument,
    check_signature,
    read_signed,
    write_signed,
)


class MemberRequest(SignedDocument):
    """What somebody asks the coordinator to approve; `public_key` is hexadecimal."""

    KIND: ClassVar[str] = "tacit request"

    name: PlainName
    role: Role
    addresses: Annotated[tuple[PlainAddress, ...], Field(max_length=MOST_ADDRESSES)]
    public_key: Hex32

    @property
    def key(self) -> Ed25519PublicKey:
        """The public key that is to be the member's, which has signed the request."""
        return Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.public_key))


def new_request(
    key: Ed25519PrivateKey, name: str, role: Role, addresses: Sequence[Address]
) -> bytes:
    """A request that the key has signed; name and addresses were checked."""
    public = key.public_key().public_bytes_raw().hex()
    values = {"name": name, "role": role, "addresses": list(addresses), "public_key": public}
    return write_signed(MemberRequest, values, key)


def read_request(content: bytes, path: Path) -> MemberRequest:
    """A request that somebody sent, whose signature is that of its key.

    Raises:
        InputError: it is damaged, its signature is not that of its key, or it asks for something
            that no member is given.
    """
    request = read_signed(MemberRequest, content, path, "tacit site create")
    if not check_signature(request, request.key):
        reason = "must be signed by its own key: its signature is wrong"
    elif len(set(request.addresses)) != len(request.addresses):
        reason = "must name every address once"
    elif request.role == "relay" and not request.addresses:
        reason = "must have an address: a relay listens at one"
    else:
        return request
    raise InputError("request", str(path), reason)
