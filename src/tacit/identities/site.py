"""A member's own folder: its key, what it asked for, and the consortium that it has joined.

The folder has mode 0700, its files 0600. `key.pem` is the private key, which never leaves;
`request.json` is what it asked for; `bundle.json` is who belongs to the consortium. From these
follow `certificate.pem` and `authority.pem`, for TLS.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tacit.base.private_files import locked, make_private_folder, plain_errors, write_private
from tacit.errors import InputError
from tacit.identities.bundle import Bundle, Member, read_bundle
from tacit.identities.certificates import key_of, key_pem, pem, read_file
from tacit.identities.names import MOST_ADDRESSES, Role, check_address, check_name
from tacit.identities.signing import MemberRequest, is_signed, new_request, read_request, sign_bytes

KEY_FILE = "key.pem"
REQUEST_FILE = "request.json"
BUNDLE_FILE = "bundle.json"
_CERTIFICATE_FILE = "certificate.pem"
_AUTHORITY_FILE = "authority.pem"
_FOLDER = "site folder"
_MESSAGE = "tacit message"
_BUSY = "a folder that no other process changes: one is changing it now"


@dataclass(frozen=True)
class Site:
    """A member's own folder, loaded and checked. `own` is this member."""

    folder: Path
    bundle: Bundle
    own: Member
    key: Ed25519PrivateKey = field(repr=False)

    @property
    def key_file(self) -> Path:
        """The private key (PEM), for TLS."""
        return self.folder / KEY_FILE

    @property
    def certificate_file(self) -> Path:
        """The own certificate (PEM), for TLS."""
        return self.folder / _CERTIFICATE_FILE

    @property
    def authority_file(self) -> Path:
        """The authority's certificate (PEM), for TLS."""
        return self.folder / _AUTHORITY_FILE


def create_site(
    folder: Path, name: str, role: Role = "site", addresses: Sequence[str] = ()
) -> Path:
    """Make a member's folder with a new key, and the request that is sent to the coordinator.

    The request's path, which is given back, is beside the folder: `NAME.request.json`. The
    addresses are HOST:PORT at which others reach the member; a relay needs one.

    Raises:
        InputError: a name or address is none, or folder or request exist or cannot be written.
    """
    folder = Path(folder)
    check_name(name)
    checked = tuple(dict.fromkeys(check_address(address) for address in addresses))
    if len(checked) > MOST_ADDRESSES:
        raise InputError("--address", len(checked), f"must be {MOST_ADDRESSES} at most")
    if role == "relay" and not checked:
        raise InputError("--address", None, "a relay needs one: HOST:PORT, at which sites reach it")
    request = folder.parent / f"{name}.request.json"
    for path in (folder, request):
        if os.path.lexists(path):
            raise InputError("--folder", str(path), "exists: name a new folder with --folder")
    key = Ed25519PrivateKey.generate()
    content = new_request(key, name, role, checked)
    with plain_errors("--folder", folder):
        make_private_folder(folder)
        write_private(folder / KEY_FILE, key_pem(key))
        write_private(folder / REQUEST_FILE, content)
        write_private(request, content)
    return request


def asked_for(folder: Path) -> MemberRequest:
    """What the member of a folder has asked for; an InputError where it is none, or damaged."""
    return _own_request(Path(folder))[1]


def has_joined(folder: Path) -> bool:
    """Whether a bundle was joined in a member's folder."""
    return (Path(folder) / BUNDLE_FILE).exists()


def _own_request(folder: Path) -> tuple[Ed25519PrivateKey, MemberRequest]:
    if not folder.is_dir():
        expected = "must be the folder that `tacit site create` made"
        raise InputError(_FOLDER, str(folder), expected)
    path = folder / KEY_FILE
    key = key_of(read_file(path, "key"), path)
    mode = path.stat().st_mode
    if mode & 0o007:
        expected = f"must not be open to everyone (mode {mode & 0o777:o}): chmod 600 {path}"
        raise InputError("key", str(path), expected)
    path = folder / REQUEST_FILE
    request = read_request(read_file(path, "request"), path)
    if request.key != key.public_key():
        raise InputError("request", str(path), "must be of the key beside it: it is of another")
    return key, request


def join(
    folder: Path, bundle: Path, *, fingerprint: str | None = None, now: datetime | None = None
) -> Site:
    """Take over a bundle that the coordinator sent, if it is a later one of the same consortium.

    The fingerprint is that of the consortium, as the coordinator says it; None: not checked here.

    Raises:
        InputError: the bundle is damaged or changed, has no certificate for this folder's key and
            name, is of another consortium or older than the one here, or changes a rank; or the
            certificate does not hold now.
    """
    folder = Path(folder)
    key, request = _own_request(folder)
    joined, content = read_bundle(Path(bundle))
    digits = "".join((fingerprint or "").split()).replace(":", "").lower()
    if fingerprint is not None and digits != joined.consortium:
        expected = f"must be the consortium's fingerprint; that of {bundle} is {joined.consortium}"
        raise InputError("--fingerprint", fingerprint, expected)
    with locked(folder, _FOLDER, _BUSY):
        if (folder / BUNDLE_FILE).exists():
            before, earlier_content = read_bundle(folder / BUNDLE_FILE)
            if content != earlier_content:
                _check_follows(before, joined, Path(bundle))
        own = _own_member(joined, key, request, Path(bundle))
        _check_own(joined, own, Path(bundle), now)
        site = Site(folder, joined, own, key)
        with plain_errors(_FOLDER, folder):
            # A kill in between leaves files of two bundles, which `load_site` refuses until this
            # is called again; the bundle is first, so that an older one is refused all the same.
            write_private(folder / BUNDLE_FILE, content)
            write_private(site.authority_file, pem(joined.authority).encode())
            write_private(site.certificate_file, pem(own.certificate).encode())
    return site


def _check_follows(before: Bundle, after: Bundle, path: Path) -> None:
    """Refuse a bundle that does not follow the one that was joined."""
    if after.consortium != before.consortium:
        expected = (
            f"must be of the consortium {before.consortium}, which this folder has joined; it is "
            f"of {after.consortium}"
        )
        raise InputError("bundle", str(path), expected)
    if after.issue <= before.issue:
        expected = f"must be later than issue {before.issue}, which this folder has: it is issue "
        raise InputError("bundle", str(path), f"{expected}{after.issue}")
    for member in before.members:
        now = after.member(member.name)
        if now is None or (now.role, now.rank) != (member.role, member.rank):
            expected = f"must leave {member.name} in its place: sites are known by their ranks"
            raise InputError("bundle", str(path), expected)


def _own_member(
    bundle: Bundle, key: Ed25519PrivateKey, request: MemberRequest, path: Path
) -> Member:
    own = next((member for member in bundle.members if member.key == key.public_key()), None)
    if own is None:
        reason = f"has no certificate for {request.name}: the coordinator has not approved it"
        if bundle.member(request.name) is not None:
            reason = f"has a certificate for another key of {request.name}"
        raise InputError("bundle", str(path), reason)
    approved = (own.name, own.role, own.addresses)
    if approved != (request.name, request.role, request.addresses):
        reason = f"gives this folder's key to {own.role} {own.name}, which is not what it asked for"
        raise InputError("bundle", str(path), reason)
    return own


def _check_own(bundle: Bundle, own: Member, path: Path, now: datetime | None) -> None:
    reason = bundle.refusal(own.certificate, datetime.now(UTC) if now is None else now)
    if reason is not None:
        raise InputError(_FOLDER, str(path), f"cannot take part: {reason}")


def load_site(folder: Path | str, now: datetime | None = None) -> Site:
    """A member's folder, checked: it has joined a consortium, in which it may take part.

    Raises:
        InputError: there is no such folder, a file in it is damaged or open to everyone, the key
            does not fit, no bundle was joined, or the own certificate has expired, is not yet valid
            or was revoked.
    """
    folder = Path(folder)
    key, request = _own_request(folder)
    path = folder / BUNDLE_FILE
    if not path.exists():
        expected = "has joined no consortium: send its request to the coordinator, and then call "
        raise InputError(_FOLDER, str(folder), f"{expected}`tacit site join BUNDLE`")
    bundle, _ = read_bundle(path)
    own = _own_member(bundle, key, request, path)
    _check_own(bundle, own, folder, now)
    site = Site(folder, bundle, own, key)
    for file, certificate in (
        (site.authority_file, bundle.authority),
        (site.certificate_file, own.certificate),
    ):
        if read_file(file, "certificate") != pem(certificate).encode():
            expected = "must be the one in bundle.json: join the bundle again"
            raise InputError("certificate", str(file), expected)
    return site


def sign(site: Site, data: bytes) -> bytes:
    """This member's signature of a message, `[64]` bytes; it passes for nothing but a message."""
    return sign_bytes(site.key, _MESSAGE, data)


def verify(member: Member, signature: bytes, data: bytes) -> bool:
    """Whether a member has signed a message; whether it may take part now, the bundle says."""
    return is_signed(member.key, signature, _MESSAGE, data)
