"""The coordinator's side: an authority in a private folder, which approves and revokes members.

The folder holds `authority.key` (the authority's private key and certificate: whoever has it can
approve members) and `bundle.json`, the bundle that was signed last, which is sent to all members.
Both are needed to approve others later: keep a copy of them in a safe place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tacit.base.private_files import LOCK, locked, make_private_folder, plain_errors, write_private
from tacit.errors import InputError, nearest
from tacit.identities import certificates
from tacit.identities.bundle import (
    MOST_MEMBERS,
    Bundle,
    Member,
    RevokedKey,
    bundle_text,
    read_bundle,
)
from tacit.identities.names import host_of
from tacit.identities.signing import MemberRequest, read_request

AUTHORITY_FILE = "authority.key"
BUNDLE_FILE = "bundle.json"
_FOLDER = "--folder"
_BUSY = "a folder that no other process changes: one is changing it now"


@dataclass(frozen=True)
class Approval:
    """What `approve` did: the bundle that is to be sent to all members, and its file.

    `is_new` says that the consortium was made. `changes` says what became of each request, by the
    member's name: "new", "renewed" (the same key), "new key", or "new key after it was revoked".
    """

    bundle: Bundle
    path: Path
    is_new: bool
    changes: dict[str, str]


def approve(
    folder: Path, requests: Sequence[Path], *, days: int = 365, now: datetime | None = None
) -> Approval:
    """Give certificates to those who asked, all or none, and sign a new bundle.

    The requests are files that `tacit site create` wrote; the certificates hold for so many days.
    The consortium is made where the folder is new. A member that is known already gets another
    certificate and keeps its rank.

    Raises:
        InputError: a request is damaged or asks for what no member is given, a name or key is taken
            or was revoked, the folder is no consortium's, or it cannot be written.
    """
    now = datetime.now(UTC) if now is None else now
    if not 1 <= days <= 3650:
        raise InputError("--days", days, "must be from 1 to 3650")
    wanted = [read_request(certificates.read_file(path, "request"), path) for path in requests]
    names = [request.name for request in wanted]
    for name in names:
        if names.count(name) > 1:
            raise InputError("request", name, "is the name of two requests: approve one of them")
    folder = Path(folder)
    with plain_errors(_FOLDER, folder):
        make_private_folder(folder)
        # The second is what a kill left of writing the first.
        present = {path.name for path in folder.iterdir()} - {LOCK, f"{AUTHORITY_FILE}.part"}
        if present and AUTHORITY_FILE not in present:  # a consortium would be made by mistake
            expected = "must be new, empty, or the folder of a consortium: it has no "
            raise InputError(_FOLDER, str(folder), f"{expected}{AUTHORITY_FILE}")
    with locked(folder, _FOLDER, _BUSY):
        is_new = not (folder / AUTHORITY_FILE).exists()
        if is_new:
            key = Ed25519PrivateKey.generate()
            authority = certificates.new_authority(key, now)
            bundle = Bundle(authority, 0, (), ())
        else:
            key, bundle = _load(folder)
        until = now + timedelta(days=days)
        ends = bundle.authority.not_valid_after_utc
        if until > ends:
            expected = f"must be {max((ends - now).days, 0)} at most: the authority's certificate "
            raise InputError("--days", days, f"{expected}ends on {certificates.shown_time(ends)}")
        changes: dict[str, str] = {}
        for request in wanted:
            changes[request.name] = _change(bundle, request)
            certificate = certificates.issue_certificate(
                bundle.authority,
                key,
                request.key,
                request.name,
                request.role,
                request.addresses,
                now,
                until,
            )
            known = bundle.member(request.name)
            rank = len(bundle.sites) if request.role == "site" else None
            member = Member(
                request.name,
                request.role,
                rank if known is None else known.rank,
                certificate,
                request.addresses,
                False,
            )
            members = (*bundle.members, member)
            if known is not None:
                members = _replaced(bundle.members, member)
            bundle = replace(bundle, members=members)
        bundle = replace(bundle, issue=bundle.issue + 1)
        with plain_errors(_FOLDER, folder):
            if is_new:
                content = certificates.key_pem(key) + certificates.pem(bundle.authority).encode()
                write_private(folder / AUTHORITY_FILE, content)
            write_private(folder / BUNDLE_FILE, bundle_text(bundle, key))
    return Approval(bundle, folder / BUNDLE_FILE, is_new, changes)


def revoke(folder: Path, name: str) -> tuple[Bundle, Path]:
    """Revoke a member's key, and sign a new bundle; the member keeps its rank.

    Raises:
        InputError: there is no such member, it was revoked before, or the folder is no consortium's
            or cannot be written.
    """
    folder = Path(folder)
    load_consortium(folder)
    with locked(folder, _FOLDER, _BUSY):
        key, bundle = _load(folder)
        member = bundle.member(name)
        if member is None:
            raise InputError("NAME", name, nearest(name, (each.name for each in bundle.members)))
        if member.revoked:
            raise InputError("NAME", name, "was revoked before")
        gone = RevokedKey(name=name, key=member.key.public_bytes_raw().hex())
        bundle = replace(
            bundle,
            issue=bundle.issue + 1,
            members=_replaced(bundle.members, replace(member, revoked=True)),
            revoked=(*bundle.revoked, gone),
        )
        with plain_errors(_FOLDER, folder):
            write_private(folder / BUNDLE_FILE, bundle_text(bundle, key))
    return bundle, folder / BUNDLE_FILE


def load_consortium(folder: Path) -> Bundle:
    """The bundle that a coordinator signed last; an InputError as of `approve`."""
    return _load(Path(folder))[1]


def _load(folder: Path) -> tuple[Ed25519PrivateKey, Bundle]:
    if not folder.is_dir():
        expected = "must be the folder of a consortium, which `tacit consortium approve` makes"
        raise InputError(_FOLDER, str(folder), expected)
    path = folder / AUTHORITY_FILE
    content = certificates.read_file(path, "authority")
    key = certificates.key_of(content, path)
    try:
        authority = certificates.certificate_of(content)
        fits = certificates.public_key_of(authority) == key.public_key()
    except ValueError:
        fits = False
    if not fits:
        raise InputError("authority", str(path), "must hold a key and its certificate: is damaged")
    if not (folder / BUNDLE_FILE).exists():  # killed before the first bundle was written
        return key, Bundle(authority, 0, (), ())
    bundle, _ = read_bundle(folder / BUNDLE_FILE)
    if bundle.authority != authority:
        expected = "must be of the authority beside it: it is of another consortium"
        raise InputError("bundle", str(folder / BUNDLE_FILE), expected)
    return key, bundle


def _change(bundle: Bundle, request: MemberRequest) -> str:
    """What approving a request would change, in words; an InputError where it must not be."""
    name, key = request.name, request.key.public_bytes_raw().hex()
    if any(entry.key == key for entry in bundle.revoked):
        raise InputError("request", name, "asks for a key that was revoked: let it make another")
    for member in bundle.members:
        if member.name != name and member.key == request.key:
            raise InputError("request", name, f"has the key of {member.name}: let it make its own")
    _check_hosts(bundle.members, request)
    known = bundle.member(name)
    if known is None:
        if len(bundle.members) == MOST_MEMBERS:
            expected = f"is one too many: a consortium has {MOST_MEMBERS} members at most"
            raise InputError("request", name, expected)
        return "new"
    if known.role != request.role:
        expected = f"is the name of a {known.role} already, and asks to be a {request.role}"
        raise InputError("request", name, expected)
    if known.key == request.key:
        return "renewed"
    return "new key after it was revoked" if known.revoked else "new key"


def _check_hosts(members: Iterable[Member], request: MemberRequest) -> None:
    """Refuse a host that is the name of another member, which TLS could take for that member."""
    hosts = {host_of(address) for address in request.addresses}
    for member in members:
        if member.name == request.name:
            continue
        if member.name in hosts:
            expected = f"asks for the host {member.name}, which is the name of another member"
            raise InputError("request", request.name, expected)
        if request.name in map(host_of, member.addresses):
            expected = f"is a host at which {member.name} listens: it needs another name"
            raise InputError("request", request.name, expected)


def _replaced(members: Sequence[Member], changed: Member) -> tuple[Member, ...]:
    return tuple(changed if member.name == changed.name else member for member in members)
