"""What is signed: bytes for a purpose, JSON documents that carry their signature, and requests.

A signature is Ed25519 over the purpose and the data: none for one purpose passes for another. A
signed document is read only if its text is, to the byte, the one that its writer makes of what
stands in it, so that nothing can be said in it twice or beside what was signed. A request is what a
member asks the coordinator to approve, signed by the member's own key.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from tacit.errors import FormatError, InputError
from tacit.identities.names import MOST_ADDRESSES, Address, PlainAddress, PlainName, Role

Hex16 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}\z")]
Hex32 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}\z")]
_Hex64 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{128}\z")]


class SignedDocument(BaseModel):
    """A JSON object that ends with a signature over all the rest.

    `kind` and `format_version` say what it is; `signature` is hexadecimal.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    KIND: ClassVar[str]
    VERSION: ClassVar[int] = 1

    kind: Annotated[str, StringConstraints(max_length=40)]
    format_version: int
    signature: _Hex64


AnySigned = TypeVar("AnySigned", bound=SignedDocument)


def sign_bytes(key: Ed25519PrivateKey, purpose: str, data: bytes) -> bytes:
    """The signature, `[64]` bytes, of data for a purpose."""
    return key.sign(_message(purpose, data))


def is_signed(key: Ed25519PublicKey, signature: bytes, purpose: str, data: bytes) -> bool:
    """Whether the owner of a key has signed data for a purpose."""
    try:
        key.verify(signature, _message(purpose, data))
    except (InvalidSignature, ValueError):  # of another length
        return False
    return True


def _message(purpose: str, data: bytes) -> bytes:
    return f"{purpose} 1\n".encode() + data


def write_signed(
    form: type[SignedDocument], values: dict[str, Any], key: Ed25519PrivateKey
) -> bytes:
    """The text of a signed document.

    The values are its fields, but for kind, version and signature, as JSON has them.
    """
    values = {"kind": form.KIND, "format_version": form.VERSION, **values}
    signature = sign_bytes(key, form.KIND, _text(values))
    return _text({**values, "signature": signature.hex()})


def read_signed(form: type[AnySigned], content: bytes, path: Path, writer: str) -> AnySigned:
    """A document of a known form, whose signature is not yet checked.

    The content is of limited size; path and `writer`, the command that wrote it, are for errors.

    Raises:
        InputError: it is another document, of another version, damaged or cut.
    """
    where = form.KIND.removeprefix("tacit ")

    def refuse(reason: str) -> InputError:
        return InputError(where, str(path), reason)

    try:
        document = form.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        at = ".".join(str(part) for part in first["loc"]) or "its JSON"
        reason = f"must be what `{writer}` wrote: it is damaged ({at}: {first['msg']})"
        raise refuse(reason) from None
    if document.kind != form.KIND:
        raise refuse(f"must be what `{writer}` wrote: it is another document")
    if document.format_version != form.VERSION:
        raise FormatError(str(path), document.format_version, form.VERSION)
    if _text(document.model_dump()) != content:
        raise refuse(f"must be what `{writer}` wrote, to the byte: it was changed")
    return document


def check_signature(document: SignedDocument, key: Ed25519PublicKey) -> bool:
    """Whether a key has signed a document that was read."""
    values = document.model_dump(exclude={"signature"})
    return is_signed(key, bytes.fromhex(document.signature), document.KIND, _text(values))


def _text(values: dict[str, Any]) -> bytes:
    ordered = {name: value for name, value in values.items() if name != "signature"}
    if "signature" in values:
        ordered["signature"] = values["signature"]
    return (json.dumps(ordered, indent=1) + "\n").encode("ascii")


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
