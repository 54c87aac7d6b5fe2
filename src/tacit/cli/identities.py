"""The commands `tacit site ...` and `tacit consortium ...`: who takes part, and with which key."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from tacit.cli.options import Json, check_new, command_group, show_lines, write_new
from tacit.errors import InputError

if TYPE_CHECKING:
    from tacit.identities.bundle import Bundle

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
    values = {"folder": str(home), "request": str(request), "name": name, "role": role}
    lines = (
        f"{home}: holds the private key of {role} {name}, which never leaves it",
        f"{request}: send it to the coordinator",
        f"fingerprint of {name}: {_grouped(fingerprint)}",
        "Read the fingerprint out to the coordinator, who compares it.",
    )
    more = {"addresses": list(asked.addresses), "fingerprint": fingerprint}
    show_lines({**values, **more}, lines, as_json=as_json)


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
    values = {"folder": str(site.folder), "name": site.own.name}
    own = "relay" if site.own.rank is None else f"rank {site.own.rank}"
    lines = [f"{site.folder}: {site.own.name} ({own}) has joined the consortium"]
    if fingerprint is None:
        lines.append("Compare the consortium's fingerprint with the one that the coordinator says.")
    _show(site.bundle, values, lines, as_json=as_json)


@site_app.command("show")
def show_site(folder: _Own = None, as_json: Json = False) -> None:
    """Show this member, and the consortium that it has joined, if it may take part in it."""
    from tacit.identities.certificates import key_fingerprint
    from tacit.identities.site import asked_for, has_joined, load_site

    home = _own_folder(folder)
    asked = asked_for(home)
    fingerprint = key_fingerprint(asked.key)
    values = {"folder": str(home), "name": asked.name, "role": asked.role}
    values["fingerprint"] = fingerprint
    site = load_site(home) if has_joined(home) else None
    if not as_json:
        typer.echo(f"{home}: {asked.role} {asked.name}")
        typer.echo(f"fingerprint of {asked.name}: {_grouped(fingerprint)}")
    if site is not None:
        _show(site.bundle, values, as_json=as_json)
    else:
        alone = "It has joined no consortium: its request may not have been approved yet."
        show_lines(values, [alone], as_json=as_json)


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
    path, lines = out or done.path, []
    if done.is_new:
        lines = [f"{folder}: a new consortium; keep a copy of this folder, and keep it secret"]
    lines.append(f"{path}: send it to every member, once the fingerprints are compared")
    values = {"bundle": str(path), "new": done.is_new, "changes": done.changes}
    _show(done.bundle, values, lines, done.changes, as_json=as_json)


@consortium_app.command("revoke")
def revoke_(
    name: Annotated[str, Argument(metavar="NAME", help="The member's.")],
    folder: _Consortium = Path("consortium"),
    as_json: Json = False,
) -> None:
    """Revoke a member's key: whoever joins the new bundle accepts nothing from it."""
    from tacit.identities.consortium import revoke

    bundle, path = revoke(folder, name)
    lines = (
        f"{path}: send it to every member, who joins it and starts its processes again",
        f"Until then a member still accepts {name}.",
    )
    _show(bundle, {"bundle": str(path)}, lines, {name: "revoked now"}, as_json=as_json)


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
    _show(shown, {}, as_json=as_json)


def _own_folder(folder: Path | None) -> Path:
    from tacit.identities.site import KEY_FILE, REQUEST_FILE

    if folder is not None:
        return folder
    requests = sorted(Path().glob(f"*/{REQUEST_FILE}"))
    found = [path.parent for path in requests if (path.parent / KEY_FILE).exists()]
    if len(found) != 1:
        names = ", ".join(map(str, found[:10])) or None
        raise InputError("--folder", names, "name one site folder, which `tacit site create` made")
    return found[0]


def _grouped(fingerprint: str) -> str:
    """A fingerprint as people read it out: in groups of four.

    >>> _grouped("0743c74e97b4ee20")
    '0743 c74e 97b4 ee20'
    """
    return " ".join(fingerprint[i : i + 4] for i in range(0, len(fingerprint), 4))


def _show(
    bundle: Bundle,
    more: Mapping[str, object],
    lines: Iterable[str] = (),
    changes: Mapping[str, str] | None = None,
    *,
    as_json: bool,
) -> None:
    """Print `more` and the members as JSON, or a table of the members, then `lines`."""
    from tacit.report.terminal import terminal
    from tacit.report.view import Table

    if as_json:
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
        return
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
    own = _grouped(bundle.consortium)
    typer.echo(f"fingerprint of the consortium: {own}, issue {bundle.issue}")
    for line in lines:
        typer.echo(line)
