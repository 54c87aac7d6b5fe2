"""The commands `tacit site ...` and `tacit consortium ...`: who takes part, and with which key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from tacit.cli.options import Json, check_new, command_group, write_new
from tacit.errors import InputError

if TYPE_CHECKING:
    from tacit.identities.bundle import Bundle, Member

site_app = command_group(
    "site", "This member of a consortium: its key, its request, and the bundle that it has joined."
)
consortium_app = command_group(
    "consortium",
    "The coordinator: approve members, revoke them, and sign the bundle that all join.",
)

_Consortium = Annotated[
    Path, Option("--folder", metavar="DIR", help="The coordinator's private folder.")
]
_Own = Annotated[
    Path | None,
    Option("--folder", metavar="DIR", help="The site folder; default: the only one that is here."),
]


@site_app.command("create")
def create_(
    name: Annotated[str, Argument(metavar="NAME", help="Of the member: a-z, 0-9 and -, unique.")],
    role: Annotated[str, Option(help="site, or relay: it passes messages on.")] = "site",
    address: Annotated[
        list[str] | None,
        Option(
            metavar="HOST:PORT",
            help="Where others reach it, for relays and direct connections; repeatable.",
        ),
    ] = None,
    folder: Annotated[
        Path | None, Option(metavar="DIR", help="The site folder to make; default: NAME.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a site folder with a new key, and NAME.request.json to send to the coordinator."""
    from tacit.identities.certificates import key_fingerprint
    from tacit.identities.site import asked_for, create_site

    if role not in ("site", "relay"):
        raise InputError("--role", role, "must be site or relay")
    home = Path(name) if folder is None else folder
    request = create_site(home, name, "relay" if role == "relay" else "site", address or ())
    asked = asked_for(home)
    fingerprint = key_fingerprint(asked.key)
    if as_json:
        values = {"folder": str(home), "request": str(request), "name": name, "role": role}
        more = {"addresses": list(asked.addresses), "fingerprint": fingerprint}
        typer.echo(json.dumps({**values, **more}, indent=2))
        return
    typer.echo(f"{home}: holds the private key of {role} {name}, which never leaves it")
    typer.echo(f"{request}: send it to the coordinator")
    typer.echo(f"fingerprint of {name}: {_grouped(fingerprint)}")
    typer.echo("Read the fingerprint out to the coordinator, who compares it.")


@site_app.command("join")
def join_(
    bundle: Annotated[
        Path, Argument(metavar="BUNDLE", help="The bundle.json that the coordinator sent.")
    ],
    folder: _Own = None,
    fingerprint: Annotated[
        str | None, Option(metavar="HEX", help="Of the consortium, as the coordinator says it.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Take over a bundle: who belongs to the consortium, and this member's own certificate."""
    from tacit.identities.site import join

    site = join(_own_folder(folder), bundle, fingerprint=fingerprint)
    if as_json:
        _print_json(site.bundle, {"folder": str(site.folder), "name": site.own.name})
        return
    _print_members(site.bundle)
    typer.echo(f"{site.folder}: {_described(site.own)} has joined the consortium")
    if fingerprint is None:
        typer.echo("Compare the consortium's fingerprint with the one that the coordinator says.")


@site_app.command("show")
def show_site(folder: _Own = None, as_json: Json = False) -> None:
    """Show this member, and the consortium that it has joined, if it may take part in it."""
    from tacit.identities.certificates import key_fingerprint
    from tacit.identities.site import asked_for, has_joined, load_site

    home = _own_folder(folder)
    asked = asked_for(home)
    fingerprint = key_fingerprint(asked.key)
    values = {"folder": str(home), "name": asked.name, "role": asked.role}
    values |= {"fingerprint": fingerprint}
    site = load_site(home) if has_joined(home) else None
    if as_json and site is not None:
        _print_json(site.bundle, values)
    elif as_json:
        typer.echo(json.dumps(values, indent=2))
    else:
        typer.echo(f"{home}: {asked.role} {asked.name}")
        typer.echo(f"fingerprint of {asked.name}: {_grouped(fingerprint)}")
        if site is None:
            typer.echo("It has joined no consortium: its request may not have been approved yet.")
        else:
            _print_members(site.bundle)


@consortium_app.command("approve")
def approve_(
    requests: Annotated[
        list[Path], Argument(metavar="REQUEST...", help="What the members have sent.")
    ],
    folder: _Consortium = Path("consortium"),
    days: Annotated[int, Option(help="For how long the certificates hold, from 1 to 3650.")] = 365,
    out: Annotated[
        Path | None, Option(metavar="FILE", help="Write the bundle to this new file, too.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Give certificates to members, and sign the bundle; a new folder becomes a new consortium.

    Ask each member for the fingerprint of its key, and compare, before you send the bundle to all.
    Approve a name again to renew its certificate; it keeps its rank.
    """
    from tacit.identities.consortium import approve

    if out is not None:
        check_new("--out", out)
    done = approve(folder, requests, days=days)
    if out is not None:
        write_new("--out", out, done.path.read_bytes())
    if as_json:
        values = {"bundle": str(out or done.path), "new": done.is_new, "changes": done.changes}
        _print_json(done.bundle, values)
        return
    _print_members(done.bundle, done.changes)
    if done.is_new:
        typer.echo(f"{folder}: a new consortium; keep a copy of this folder, and keep it secret")
    typer.echo(f"{out or done.path}: send it to every member, once the fingerprints are compared")


@consortium_app.command("revoke")
def revoke_(
    name: Annotated[str, Argument(metavar="NAME", help="The member's.")],
    folder: _Consortium = Path("consortium"),
    as_json: Json = False,
) -> None:
    """Revoke a member's key: whoever joins the new bundle accepts nothing from it."""
    from tacit.identities.consortium import revoke

    bundle, path = revoke(folder, name)
    if as_json:
        _print_json(bundle, {"bundle": str(path)})
        return
    _print_members(bundle, {name: "revoked now"})
    typer.echo(f"{path}: send it to every member, who joins it and starts its processes again")
    typer.echo(f"Until then a member still accepts {name}.")


@consortium_app.command("show")
def show_consortium(
    bundle: Annotated[
        Path | None,
        Argument(metavar="[BUNDLE]", help="A bundle.json; default: the one in the folder."),
    ] = None,
    folder: _Consortium = Path("consortium"),
    as_json: Json = False,
) -> None:
    """Show the members of a consortium, and the fingerprints to compare."""
    from tacit.identities.bundle import read_bundle
    from tacit.identities.consortium import load_consortium

    shown = load_consortium(folder) if bundle is None else read_bundle(bundle)[0]
    if as_json:
        _print_json(shown, {})
    else:
        _print_members(shown)


def _own_folder(folder: Path | None) -> Path:
    from tacit.identities.site import KEY_FILE, REQUEST_FILE

    if folder is not None:
        return folder
    found = [path.parent for path in sorted(Path().glob(f"*/{REQUEST_FILE}"))]
    found = [path for path in found if (path / KEY_FILE).exists()]
    if len(found) != 1:
        names = ", ".join(map(str, found[:10])) or None
        raise InputError("--folder", names, "name one site folder, which `tacit site create` made")
    return found[0]


def _described(member: Member) -> str:
    return f"{member.name} ({'relay' if member.rank is None else f'rank {member.rank}'})"


def _grouped(fingerprint: str) -> str:
    """A fingerprint as people read it out: in groups of four.

    >>> _grouped("0743c74e97b4ee20")
    '0743 c74e 97b4 ee20'
    """
    return " ".join(fingerprint[i : i + 4] for i in range(0, len(fingerprint), 4))


def _print_members(bundle: Bundle, changes: Mapping[str, str] | None = None) -> None:
    from tacit.report.terminal import terminal
    from tacit.report.view import Table

    columns = ("name", "role", "rank", "", "addresses", "valid until", "fingerprint")
    rows = [
        (
            member.name,
            member.role,
            "" if member.rank is None else str(member.rank),
            (changes or {}).get(member.name) or ("revoked" if member.revoked else ""),
            " ".join(member.addresses),
            f"{member.certificate.not_valid_after_utc:%Y-%m-%d}",
            _grouped(member.fingerprint),
        )
        for member in bundle.members
    ]
    terminal([Table(columns, rows, left=columns)])
    typer.echo(
        f"fingerprint of the consortium: {_grouped(bundle.consortium)}, issue {bundle.issue}"
    )


def _print_json(bundle: Bundle, more: Mapping[str, object]) -> None:
    members = [
        {
            "name": member.name,
            "role": member.role,
            "rank": member.rank,
            "addresses": list(member.addresses),
            "revoked": member.revoked,
            "valid_from": member.certificate.not_valid_before_utc.isoformat(),
            "valid_until": member.certificate.not_valid_after_utc.isoformat(),
            "fingerprint": member.fingerprint,
        }
        for member in bundle.members
    ]
    values = {"consortium": bundle.consortium, "issue": bundle.issue, "members": members}
    typer.echo(json.dumps({**more, **values}, indent=2))
